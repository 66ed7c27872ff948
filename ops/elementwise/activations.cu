/* activations.cu: the CUDA kernels of the ops in activations.def (activations.c). */
#include "ops/cuda/fours.cuh"

#include "ops/elementwise/activation.h"

/* The tensor that backward reads, x or y. */
#define KEPT_x call->x[0].data
#define KEPT_y call->y.data

#define ACTIVATION(op, formula, reads, ...)                                                                            \
    static __global__ void forward_##op(int64_t n, const float *x, float *y) {                                         \
        rm_map(n, x, y, [](int64_t, float v) { return rm_##op(v); });                                                  \
    }                                                                                                                  \
    static __global__ void backward_##op(int64_t n, const float *dy, const float *kept, float *dx) {                   \
        rm_map_two(n, dy, kept, dx, [](int64_t, float d, float v) { return rm_##op##_backward(d, v); });               \
    }                                                                                                                  \
    void rm_##op##_forward_cuda(const remat_call *call) {                                                                 \
        int64_t n = rm_desc_count(&call->y.desc);                                                                      \
        RM_LAUNCH_FOURS(forward_##op, n, call->queue, n, (const float *)call->x[0].data, (float *)call->y.data);       \
    }                                                                                                                  \
    void rm_##op##_backward_cuda(const remat_call *call) {                                                                \
        int64_t n = rm_desc_count(&call->dy.desc);                                                                     \
        if (!call->dx[0].data) return;                                                                                 \
        RM_LAUNCH_FOURS(backward_##op, n, call->queue, n, (const float *)call->dy.data, (const float *)KEPT_##reads,   \
                        (float *)call->dx[0].data);                                                                    \
    }
#include "ops/elementwise/activations.def"
