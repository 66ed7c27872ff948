/* broadcast.cuh: the CUDA kernels of the ops add, sub, mul, div and masked (broadcast.h): a thread per element of y, and of the gradient
 * of an operand that is not repeated, or for four if both operands have the shape of y; for a gradient that is a sum, a thread or
 * blocks for each element, by the number of terms. */
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

/* The sum of terms from .. to of element `mine` of an operand, every `step`-th: those with its place along the axes that it has,
 * and any along the others. */
static __device__ inline double sum_of_terms(const rm_broadcast &s, int operand, int64_t mine, int64_t from, int64_t to,
                                             int64_t step, const float *dy, const rm_broadcast_slope &slope) {
    double sum = 0;
    for (int64_t k = from; k < to; k += step) {
        int64_t own = mine, other = k, e = 0, apart = 1;
        for (int d = s.axes - 1; d >= 0; d--) {
            const bool has = s.stride[operand][d];
            const int64_t at = has ? own : other, next = rm_row_of(at, s.dim[d]);
            e += (at - next * s.dim[d]) * apart, apart *= s.dim[d];
            if (has)
                own = next;
            else
                other = next;
        }
        sum += term_of<double>(s, operand, e, dy, slope);
    }
    return sum;
}

static __device__ inline void conclude_gradient(const rm_broadcast_slope &slope, int64_t e, double sum, bool add,
                                                float *dx) {
    const float *own = (const float *)slope.own;
    if (own) sum = sum / own[e] / own[e];
    dx[e] = (add ? dx[e] : 0) + (float)slope.sign * (float)sum;
}

/* A thread for each element of the operand. */
static __global__ void short_sums(rm_broadcast s, int operand, int64_t count, int64_t terms, rm_broadcast_slope slope,
                                  const float *dy, bool add, float *dx) {
    RM_EACH(e, count) conclude_gradient(slope, e, sum_of_terms(s, operand, e, 0, terms, 1, dy, slope), add, dx);
}

/* Blocks for each part of the terms of each element; partial (parts,count). */
static __global__ void long_sums(rm_broadcast s, int operand, int64_t count, int64_t terms, int64_t parts,
                                 rm_broadcast_slope slope, const float *dy, bool add, float *dx, double *partial) {
    const int64_t part = blockIdx.x / count, e = blockIdx.x - part * count, each = (terms + parts - 1) / parts;
    const int64_t to = (part + 1) * each < terms ? (part + 1) * each : terms;
    const double sum = rm_block_sum(sum_of_terms(s, operand, e, part * each + threadIdx.x, to, blockDim.x, dy, slope));
    if (threadIdx.x > 0) return;
    if (parts > 1)
        partial[blockIdx.x] = sum;
    else
        conclude_gradient(slope, e, sum, add, dx);
}

static __global__ void join_sums(int64_t count, int64_t parts, rm_broadcast_slope slope, const double *partial,
                                 bool add, float *dx) {
    RM_EACH(e, count) {
        double sum = 0;
        for (int64_t part = 0; part < parts; part++) sum += partial[part * count + e];
        conclude_gradient(slope, e, sum, add, dx);
    }
}

/* The gradient of an operand that is repeated, or that all tiles share. Few terms are a thread's, others a block's; those of few
 * elements are dealt to about BLOCKS blocks. */
static inline void launch_summed(const remat_call *call, const rm_broadcast &s, int operand, int64_t count,
                                 rm_broadcast_slope slope, bool add, float *dx) {
    enum { FEW = 64, BLOCKS = 1024 };
    double *partial = ((const rm_cuda_queue *)call->queue)->partial;
    const float *dy = (const float *)call->dy.data;
    const int64_t terms = s.count / count;
    if (terms <= FEW) {
        RM_LAUNCH_EACH(short_sums, count, call->queue, s, operand, count, terms, slope, dy, add, dx);
        return;
    }
    int64_t parts = rm_blocks_of(terms, 4 * RM_SUM_THREADS);
    if (parts > rm_blocks_of(BLOCKS, count)) parts = rm_blocks_of(BLOCKS, count);
    RM_LAUNCH_TOGETHER(long_sums, parts * count, RM_SUM_THREADS, call->queue, s, operand, count, terms, parts, slope,
                       dy, add, dx, partial);
    if (parts > 1) RM_LAUNCH_EACH(join_sums, count, call->queue, count, parts, slope, partial, add, dx);
}

static inline void launch_gradient(const remat_call *call, int operand, rm_broadcast_slope slope) {
    const rm_broadcast s = broadcast_of(call, &call->dy.desc);
    const int input = operand ? second_of(call) : A;
    const float *dy = (const float *)call->dy.data;
    float *dx = (float *)call->dx[input].data;
    int64_t count = rm_desc_count(&call->x[input].desc);
    if (!dx) return;
    if (rm_broadcast_repeats(&s, operand) || input == SHARED)
        launch_summed(call, s, operand, count, slope, input == SHARED, dx);
    else if (is_plain(s) && slope.term == RM_TIMES && !slope.own)
        RM_LAUNCH_FOURS(gradient_plain, s.count, call->queue, s.count, dy, (const float *)slope.other,
                        (float)slope.sign, dx);
    else
        RM_LAUNCH_EACH(gradient, s.count, call->queue, s, operand, slope, dy, dx);
}

#endif
