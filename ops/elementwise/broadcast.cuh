/* broadcast.cuh: the CUDA kernels of the ops add, sub and mul (broadcast.h): a thread per element of y, and of the gradient
 * of an operand that is not repeated, or for four if both operands have the shape of y; a block per element of a gradient that is a
 * sum. */
#ifndef RM_BROADCAST_CUH
#define RM_BROADCAST_CUH

#include "ops/cuda/fours.cuh"

extern "C" {
#include "ops/elementwise/broadcast.h"
}

enum { A, B, SHARED };

/* Whether element i of y meets element i of both operands. */
static inline bool is_plain(const rm_broadcast &s) { return s.axes == 1 && s.stride[A][0] == 1 && s.stride[B][0] == 1; }

/* y = FORMULA of a and b, and the op's launcher. */
#define RM_BROADCAST_FORWARD_CUDA(op, FORMULA)                                                                         \
    static __global__ void forward_plain(int64_t n, const float *all_a, const float *all_b, float *y) {                \
        rm_map_two(n, all_a, all_b, y, [](int64_t, float a, float b) { return FORMULA; });                             \
    }                                                                                                                  \
    static __global__ void forward(rm_broadcast s, const float *all_a, const float *all_b, float *y) {                 \
        RM_EACH(i, s.count) {                                                                                          \
            int64_t at[2];                                                                                             \
            rm_broadcast_at(&s, i, at);                                                                                \
            const float a = all_a[at[0]], b = all_b[at[1]];                                                            \
            y[i] = FORMULA;                                                                                            \
        }                                                                                                              \
    }                                                                                                                  \
    void rm_##op##_forward_cuda(const remat_call *call) {                                                              \
        const rm_broadcast s = broadcast_of(call, &call->y.desc);                                                      \
        const float *a = (const float *)call->x[A].data, *b = (const float *)call->x[second_of(call)].data;            \
        if (is_plain(s))                                                                                               \
            RM_LAUNCH_FOURS(forward_plain, s.count, call->queue, s.count, a, b, (float *)call->y.data);                \
        else                                                                                                           \
            RM_LAUNCH_EACH(forward, s.count, call->queue, s, a, b, (float *)call->y.data);                             \
    }

static inline int second_of(const remat_call *call) { return call->x[B].desc.rank >= 0 ? B : SHARED; }

static inline rm_broadcast broadcast_of(const remat_call *call, const remat_desc *y) {
    const remat_desc x[] = {call->x[A].desc, call->x[B].desc, call->x[SHARED].desc};
    return rm_broadcast_of(x, y);
}

/* The element of the other operand that meets element e of y; 1 if `factor` is NULL. */
static __device__ float factor_of(const rm_broadcast &s, int operand, int64_t e, const float *factor) {
    int64_t at[2];
    rm_broadcast_at(&s, e, at);
    return factor ? factor[at[!operand]] : 1;
}

static __global__ void gradient(rm_broadcast s, int operand, const float *dy, const float *factor, float sign,
                                float *dx) {
    RM_EACH(i, s.count) dx[i] = sign * dy[i] * factor_of(s, operand, i, factor);
}

static __global__ void gradient_plain(int64_t n, const float *dy, const float *factor, float sign, float *dx) {
    if (factor)
        rm_map_two(n, dy, factor, dx, [&](int64_t, float d, float f) { return sign * d * f; });
    else
        rm_map(n, dy, dx, [&](int64_t, float d) { return sign * d; });
}

/* Block e sums the terms of element e of the operand: those with its place along the axes that it has, and any along the
 * others. */
static __global__ void summed_gradient(rm_broadcast s, int operand, int64_t terms, const float *dy, const float *factor,
                                       float sign, bool add, float *dx) {
    double sum = 0;
    for (int64_t k = threadIdx.x; k < terms; k += blockDim.x) {
        int64_t mine = blockIdx.x, other = k, e = 0, step = 1;
        for (int d = s.axes - 1; d >= 0; d--) {
            int64_t *from = s.stride[operand][d] ? &mine : &other;
            e += *from % s.dim[d] * step, *from /= s.dim[d], step *= s.dim[d];
        }
        sum += (double)dy[e] * (double)factor_of(s, operand, e, factor);
    }
    sum = rm_block_sum(sum);
    if (threadIdx.x == 0) dx[blockIdx.x] = (add ? dx[blockIdx.x] : 0) + sign * (float)sum;
}

static inline void launch_gradient(const remat_call *call, int operand, const void *factor, float sign) {
    const rm_broadcast s = broadcast_of(call, &call->dy.desc);
    const int input = operand ? second_of(call) : A;
    const float *dy = (const float *)call->dy.data, *other = (const float *)factor;
    float *dx = (float *)call->dx[input].data;
    int64_t count = rm_desc_count(&call->x[input].desc);
    if (!dx) return;
    if (rm_broadcast_repeats(&s, operand) || input == SHARED)
        RM_LAUNCH_TOGETHER(summed_gradient, count, RM_SUM_THREADS, call->queue, s, operand, s.count / count, dy, other,
                           sign, input == SHARED, dx);
    else if (is_plain(s))
        RM_LAUNCH_FOURS(gradient_plain, s.count, call->queue, s.count, dy, other, sign, dx);
    else
        RM_LAUNCH_EACH(gradient, s.count, call->queue, s, operand, dy, other, sign, dx);
}

#endif
