/* broadcast.cuh: the CUDA kernels of the ops add, sub, mul, div and masked (broadcast.h): a thread per element of y, and of the gradient
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

/* The term of element e of y. */
template <typename number>
static __device__ number term_of(const rm_broadcast &s, int operand, int64_t e, const float *dy,
                                 const rm_broadcast_slope &slope) {
    int64_t at[2];
    rm_broadcast_at(&s, e, at);
    if (!slope.other) return dy[e];
    number f = ((const float *)slope.other)[at[!operand]];
    if (slope.term == RM_WHERE_ON) return f > 0 ? (number)dy[e] : 0;
    return slope.term == RM_OVER ? (number)dy[e] / f : (number)dy[e] * f;
}

static __global__ void gradient(rm_broadcast s, int operand, rm_broadcast_slope slope, const float *dy, float *dx) {
    const float *own = (const float *)slope.own;
    RM_EACH(i, s.count) {
        float d = (float)slope.sign * term_of<float>(s, operand, i, dy, slope);
        dx[i] = own ? d / own[i] / own[i] : d;
    }
}

static __global__ void gradient_plain(int64_t n, const float *dy, const float *factor, float sign, float *dx) {
    if (factor)
        rm_map_two(n, dy, factor, dx, [&](int64_t, float d, float f) { return sign * d * f; });
    else
        rm_map(n, dy, dx, [&](int64_t, float d) { return sign * d; });
}

/* Block e sums the terms of element e of the operand: those with its place along the axes that it has, and any along the
 * others. */
static __global__ void summed_gradient(rm_broadcast s, int operand, int64_t terms, rm_broadcast_slope slope,
                                       const float *dy, bool add, float *dx) {
    const float *own = (const float *)slope.own;
    double sum = 0;
    for (int64_t k = threadIdx.x; k < terms; k += blockDim.x) {
        int64_t mine = blockIdx.x, other = k, e = 0, step = 1;
        for (int d = s.axes - 1; d >= 0; d--) {
            int64_t *from = s.stride[operand][d] ? &mine : &other;
            e += *from % s.dim[d] * step, *from /= s.dim[d], step *= s.dim[d];
        }
        sum += term_of<double>(s, operand, e, dy, slope);
    }
    sum = rm_block_sum(sum);
    if (threadIdx.x > 0) return;
    if (own) sum = sum / own[blockIdx.x] / own[blockIdx.x];
    dx[blockIdx.x] = (add ? dx[blockIdx.x] : 0) + (float)slope.sign * (float)sum;
}

static inline void launch_gradient(const remat_call *call, int operand, rm_broadcast_slope slope) {
    const rm_broadcast s = broadcast_of(call, &call->dy.desc);
    const int input = operand ? second_of(call) : A;
    const float *dy = (const float *)call->dy.data;
    float *dx = (float *)call->dx[input].data;
    int64_t count = rm_desc_count(&call->x[input].desc);
    if (!dx) return;
    if (rm_broadcast_repeats(&s, operand) || input == SHARED)
        RM_LAUNCH_TOGETHER(summed_gradient, count, RM_SUM_THREADS, call->queue, s, operand, s.count / count, slope, dy,
                           input == SHARED, dx);
    else if (is_plain(s) && slope.term == RM_TIMES && !slope.own)
        RM_LAUNCH_FOURS(gradient_plain, s.count, call->queue, s.count, dy, (const float *)slope.other,
                        (float)slope.sign, dx);
    else
        RM_LAUNCH_EACH(gradient, s.count, call->queue, s, operand, slope, dy, dx);
}

#endif
