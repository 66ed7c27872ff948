/* last_step.cu: the CUDA kernels of the op `last_step` (last_step.c). */
#include "ops/cuda/kernel.cuh"

static __global__ void copy(int64_t n, const float *in, float *out) { RM_EACH(i, n) out[i] = in[i]; }

/* dx is 0 before element `from` and dy from there on; from == n if this is not the last tile. */
static __global__ void backward(int64_t n, int64_t from, const float *dy, float *dx) {
    RM_EACH(i, n) dx[i] = i < from ? 0 : dy[i - from];
}

void rm_last_step_forward_cuda(const remat_call *call) {
    int64_t steps = call->x[0].desc.dim[0], width = rm_desc_count(&call->y.desc);
    RM_LAUNCH_EACH(copy, width, call->queue, width, (const float *)call->x[0].data + (steps - 1) * width,
                   (float *)call->y.data);
}

void rm_last_step_backward_cuda(const remat_call *call) {
    int64_t steps = call->x[0].desc.dim[0], width = rm_desc_count(&call->dy.desc), n = steps * width;
    int64_t from = call->t0 + steps == call->t_total ? n - width : n;
    if (!call->dx[0].data) return;
    RM_LAUNCH_EACH(backward, n, call->queue, n, from, (const float *)call->dy.data, (float *)call->dx[0].data);
}
