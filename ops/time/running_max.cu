/* running_max.cu: the CUDA kernels of the op `running_max` (running_max.c). A thread computes one column through the tile. */
#include "ops/cuda/kernel.cuh"

enum { THREADS = 64 /* threads of a block: few, since few columns are common */ };

static __device__ inline bool is_larger(float now, float before) {
    return now > before || (now != now && before == before);
}

static __global__ void forward(int64_t tau, int64_t columns, const float *before, const float *x, float *y, float *out,
                               float *aux) {
    RM_EACH(i, columns) {
        float most = before ? before[i] : x[i];
        if (aux) aux[i] = !before || is_larger(x[i], most);
        for (int64_t t = 0; t < tau; t++) {
            float now = x[t * columns + i];
            if (is_larger(now, most)) most = now;
            y[t * columns + i] = most;
        }
        out[i] = most;
    }
}

static __global__ void backward(int64_t tau, int64_t columns, const float *aux, const float *y, const float *dy,
                                const float *d_out, float *dx, float *d_in) {
    RM_EACH(i, columns) {
        float d = d_out ? d_out[i] : 0;
        for (int64_t t = tau - 1; t >= 0; t--) {
            int64_t at = t * columns + i;
            bool begins = t ? is_larger(y[at], y[at - columns]) : aux[i] > 0;
            d += dy[at];
            if (dx) dx[at] = begins ? d : 0;
            if (begins) d = 0;
        }
        if (d_in) d_in[i] = d;
    }
}

void rm_running_max_forward_cuda(const remat_call *call) {
    int64_t tau = call->x[0].desc.dim[0], columns = rm_desc_count(&call->x[0].desc) / tau;
    const float *before = call->t0 ? (const float *)call->state_in[0].data : NULL;
    RM_LAUNCH(forward, rm_blocks_within(columns, THREADS, RM_EACH_BLOCKS), THREADS, call->queue, tau, columns, before,
              (const float *)call->x[0].data, (float *)call->y.data, (float *)call->state_out[0].data,
              (float *)call->aux);
}

void rm_running_max_backward_cuda(const remat_call *call) {
    int64_t tau = call->x[0].desc.dim[0], columns = rm_desc_count(&call->x[0].desc) / tau;
    RM_LAUNCH(backward, rm_blocks_within(columns, THREADS, RM_EACH_BLOCKS), THREADS, call->queue, tau, columns,
              (const float *)call->aux, (const float *)call->y.data, (const float *)call->dy.data,
              (const float *)call->dstate_out[0].data, (float *)call->dx[0].data, (float *)call->dstate_in[0].data);
}
