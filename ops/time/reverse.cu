/* reverse.cu: the CUDA kernel of the op `reverse` (reverse.c); both passes reverse a tile. */
#include "ops/cuda/kernel.cuh"

/* to[steps - 1 - t] = from[t], of `width` elements each */
static __global__ void reverse_tile(int64_t n, int64_t steps, int64_t width, const float *from, float *to) {
    RM_EACH(i, n) {
        int64_t t = rm_row_of(i, width);
        to[(steps - 1 - t) * width + i - t * width] = from[i];
    }
}

static void launch(const remat_call *call, const void *from, void *to) {
    int64_t steps = call->x[0].desc.dim[0], n = rm_desc_count(&call->x[0].desc);
    if (to) RM_LAUNCH_EACH(reverse_tile, n, call->queue, n, steps, n / steps, (const float *)from, (float *)to);
}

void rm_reverse_forward_cuda(const remat_call *call) { launch(call, call->x[0].data, call->y.data); }
void rm_reverse_backward_cuda(const remat_call *call) { launch(call, call->dy.data, call->dx[0].data); }
