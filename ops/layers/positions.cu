/* positions.cu: the CUDA kernels of the op `positions` (positions.c): a thread per element of y, and per element of dw,
 * which sums the batch. */
#include "ops/cuda/kernel.cuh"

enum { X, W };

/* Rows of `c` elements, `batch` rows per timestep. */
static __global__ void add_rows(int64_t count, int64_t batch, int64_t c, const float *x, const float *w, float *y) {
    RM_EACH(i, count) {
        int64_t row = rm_row_of(i, c);
        y[i] = x[i] + w[rm_row_of(row, batch) * c + i - row * c];
    }
}

static __global__ void add_gradients(int64_t count, int64_t batch, int64_t c, const float *dy, float *dw) {
    RM_EACH(i, count) {
        int64_t t = rm_row_of(i, c);
        const float *from = dy + t * batch * c + i - t * c;
        float sum = 0;
        for (int64_t b = 0; b < batch; b++) sum += from[b * c];
        dw[i] += sum;
    }
}

static __global__ void copy(int64_t count, const float *dy, float *dx) { RM_EACH(i, count) dx[i] = dy[i]; }

void rm_positions_forward_cuda(const remat_call *call) {
    int64_t count = rm_desc_count(&call->y.desc), batch = call->y.desc.dim[1], c = call->y.desc.dim[2];
    const float *w = (const float *)call->x[W].data + call->t0 * c;
    RM_LAUNCH_EACH(add_rows, count, call->queue, count, batch, c, (const float *)call->x[X].data, w,
                   (float *)call->y.data);
}

void rm_positions_backward_cuda(const remat_call *call) {
    int64_t steps = call->dy.desc.dim[0], batch = call->dy.desc.dim[1], c = call->dy.desc.dim[2];
    const float *dy = (const float *)call->dy.data;
    float *dx = (float *)call->dx[X].data, *dw = (float *)call->dx[W].data;
    if (dx) RM_LAUNCH_EACH(copy, steps * batch * c, call->queue, steps * batch * c, dy, dx);
    if (dw) RM_LAUNCH_EACH(add_gradients, steps * c, call->queue, steps * c, batch, c, dy, dw + call->t0 * c);
}
