/* scale.cu: the CUDA kernel of the op `scale` (scale.c); backward is forward without the shift. */
#include "ops/cuda/fours.cuh"

static __global__ void scale(int64_t n, float factor, float shift, const float *in, float *out) {
    rm_map(n, in, out, [&](int64_t, float v) { return v * factor + shift; });
}

static void launch(const remat_call *call, float shift, const void *in, void *out) {
    int64_t n = rm_desc_count(&call->y.desc);
    float factor = (float)((const rm_scale_attr *)call->attr)->factor;
    if (out) RM_LAUNCH_FOURS(scale, n, call->queue, n, factor, shift, (const float *)in, (float *)out);
}

void rm_scale_forward_cuda(const remat_call *call) { launch(call, (float)((const rm_scale_attr *)call->attr)->shift, call->x[0].data, call->y.data); }
void rm_scale_backward_cuda(const remat_call *call) { launch(call, 0, call->dy.data, call->dx[0].data); }
