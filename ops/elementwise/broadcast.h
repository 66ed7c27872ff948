/* broadcast.h: NumPy's broadcasting for the ops add, sub, mul, div and masked, on the CPU and CUDA. Axes are aligned from the last; where
 * one operand has 1, or no axis, its elements are repeated, and its gradient is a sum.
 *
 * The second operand is x[B] if it is a sequence exactly if x[A] is one, and x[SHARED] if it is static and x[A] a sequence:
 * all tiles then read it, and its gradient is added up over them. */
#ifndef RM_BROADCAST_H
#define RM_BROADCAST_H

#include "ops/real.h"

#include "engine/host_device.h"
#include "ops/op.h"

/* y and its operands. Neighbouring axes that all walk through alike are merged, so equal shapes have one axis. */
typedef struct {
    int axes;
    int64_t count, dim[REMAT_MAX_RANK];
    int64_t stride[2][REMAT_MAX_RANK]; /* of the operands, in elements; 0: repeated */
} rm_broadcast;

/* The element of each operand that element e of y is made of. */
RM_HD void rm_broadcast_at(const rm_broadcast *s, int64_t e, int64_t at[2]) {
    at[0] = at[1] = 0;
    for (int d = s->axes - 1; d >= 0; d--) {
        int64_t i = e % s->dim[d];
        at[0] += i * s->stride[0][d], at[1] += i * s->stride[1][d], e /= s->dim[d];
    }
}

RM_HD bool rm_broadcast_repeats(const rm_broadcast *s, int operand) {
    for (int d = 0; d < s->axes; d++)
        if (s->stride[operand][d] == 0 && s->dim[d] > 1) return true;
    return false;
}

static inline rm_broadcast rm_broadcast_of(const remat_desc *x, const remat_desc *y) {
    const remat_desc *const operand[] = {&x[0], x[1].rank >= 0 ? &x[1] : &x[2]};
    rm_broadcast s = {0, 1, {0}, {{0}}};
    int64_t size[2] = {1, 1};
    for (int d = y->rank - 1; d >= 0; d--) {
        int64_t stride[2], last = s.axes - 1; /* from the last axis to the first; reversed below */
        for (int i = 0; i < 2; i++) {
            int at = d - (y->rank - operand[i]->rank);
            int64_t dim = at < 0 ? 1 : operand[i]->dim[at];
            stride[i] = dim == 1 ? 0 : size[i];
            size[i] *= dim;
        }
        s.count *= y->dim[d];
        if (y->dim[d] == 1) continue;
        if (s.axes && stride[0] == s.stride[0][last] * s.dim[last] && stride[1] == s.stride[1][last] * s.dim[last]) {
            s.dim[last] *= y->dim[d];
            continue;
        }
        s.dim[s.axes] = y->dim[d], s.stride[0][s.axes] = stride[0], s.stride[1][s.axes++] = stride[1];
    }
    if (!s.axes) s.axes = 1, s.dim[0] = 1;
    for (int i = 0, j = s.axes - 1; i < j; i++, j--) {
        int64_t dim = s.dim[i], a = s.stride[0][i], b = s.stride[1][i];
        s.dim[i] = s.dim[j], s.stride[0][i] = s.stride[0][j], s.stride[1][i] = s.stride[1][j];
        s.dim[j] = dim, s.stride[0][j] = a, s.stride[1][j] = b;
    }
    return s;
}

/* What dy and f, the element of the other operand, make of an operand's gradient. */
typedef enum {
    RM_TIMES,   /* dy f; dy if there is no other */
    RM_OVER,    /* dy / f */
    RM_WHERE_ON /* dy where f > 0, else 0 */
} rm_broadcast_term;

/* The gradient of an operand: the sum of terms over the elements of y that its element is part of, times a sign; then divided
 * twice by the operand's own element, unless that is NULL. */
typedef struct {
    double sign;
    rm_broadcast_term term;
    const void *other, *own; /* real */
} rm_broadcast_slope;

#ifndef __cplusplus
#include "ops/shape.h"

enum { A, B, SHARED };

static inline remat_status rm_broadcast_infer(const char *op, const remat_desc *x, remat_desc *y) {
    const remat_desc *a = &x[A], *b = x[B].rank >= 0 ? &x[B] : &x[SHARED];
    char a_text[REMAT_DESC_TEXT], b_text[REMAT_DESC_TEXT];
    TRY(rm_want_real(op, "a", a));
    REQUIRE(b->rank >= 0, INVALID, "%s: b is missing; give two values", op);
    REQUIRE(b == &x[SHARED] || x[SHARED].rank < 0, INVALID, "%s: inputs 1 and 2 are given; one of them is b", op);
    TRY(rm_want_real(op, "b", b));
    rm_desc_text(a, a_text), rm_desc_text(b, b_text);
    *y = a->rank >= b->rank ? *a : *b;
    for (int d = 0; d < y->rank; d++) {
        int at[] = {d - (y->rank - a->rank), d - (y->rank - b->rank)};
        int64_t one = at[0] < 0 ? 1 : a->dim[at[0]], other = at[1] < 0 ? 1 : b->dim[at[1]];
        REQUIRE(one == other || one == 1 || other == 1, INVALID,
                "%s: a is %s and b is %s; axes are aligned from the last, and %lld and %lld do not broadcast: give "
                "equal sizes, or 1",
                op, a_text, b_text, (long long)one, (long long)other);
        y->dim[d] = one == 1 ? other : one;
    }
    REQUIRE(b == &x[B] || (y->rank == a->rank && y->dim[0] == a->dim[0] && (b->rank < a->rank || b->dim[0] == 1)),
            INVALID,
            "%s: a is %s, a sequence, and b is %s, which has no time axis; give b at most the axes after time, or make "
            "it a sequence (remat_as_sequence)",
            op, a_text, b_text);
    return REMAT_OK;
}

static inline void rm_broadcast_cost(const remat_desc *x, const remat_desc *y, double streams, remat_pass pass,
                                     remat_cost *out) {
    *out = pass == REMAT_BACKWARD ? rm_cost_streaming(y, 2, streams) : rm_cost_streaming(y, 1, 3);
    if (pass != REMAT_BACKWARD) return;
    for (int i = 0; i < 3; i++) { /* sums, in double, of one operand at a time */
        uint64_t count = x[i].rank < 0 ? 0 : (uint64_t)rm_desc_count(&x[i]);
        bool summed = i == SHARED || count < (uint64_t)rm_desc_count(y);
        if (summed && count * sizeof(double) > out->scratch_bytes) out->scratch_bytes = count * sizeof(double);
    }
}

/* ---- Rows of y, in blocks that threads share ---------------------------------------------------------------------- */

enum { RM_BROADCAST_BLOCK = 1 << 12 };
typedef struct {
    int64_t at[2], y, count, stride[2]; /* first elements of the operands and of y; strides are 0 or 1 */
} rm_broadcast_row;

static inline int64_t rm_broadcast_blocks(const rm_broadcast *s) {
    return (s->dim[s->axes - 1] + RM_BROADCAST_BLOCK - 1) / RM_BROADCAST_BLOCK;
}
static inline int64_t rm_broadcast_items(const rm_broadcast *s) {
    return s->count / s->dim[s->axes - 1] * rm_broadcast_blocks(s);
}
static inline rm_broadcast_row rm_broadcast_item(const rm_broadcast *s, int64_t item) {
    int64_t wide = s->dim[s->axes - 1], blocks = rm_broadcast_blocks(s), from = item % blocks * RM_BROADCAST_BLOCK;
    rm_broadcast_row r = {.y = item / blocks * wide + from, .count = wide - from};
    if (r.count > RM_BROADCAST_BLOCK) r.count = RM_BROADCAST_BLOCK;
    for (int i = 0; i < 2; i++) r.stride[i] = s->stride[i][s->axes - 1];
    rm_broadcast_at(s, r.y, r.at);
    return r;
}

/* y = FORMULA of a and b. */
#define RM_BROADCAST_FORWARD(call, FORMULA)                                                                            \
    do {                                                                                                               \
        const rm_broadcast s = rm_broadcast_of_call(call);                                                             \
        const real *all_a = (call)->x[A].data, *all_b = (call)->x[rm_broadcast_second(call)].data;                     \
        RM_PARALLEL_FOR((call)->threads, s.count > RM_PARALLEL_MIN,                                                    \
                        for (int64_t item = 0; item < rm_broadcast_items(&s); item++) {                                \
                            const rm_broadcast_row r = rm_broadcast_item(&s, item);                                    \
                            const real *pa = all_a + r.at[0], *pb = all_b + r.at[1];                                   \
                            real *py = (real *)(call)->y.data + r.y;                                                   \
                            if (r.stride[0] && r.stride[1])                                                            \
                                RM_BROADCAST_LOOP(FORMULA, pa[i], pb[i])                                               \
                            else if (r.stride[0])                                                                      \
                                RM_BROADCAST_LOOP(FORMULA, pa[i], *pb)                                                 \
                            else                                                                                       \
                                RM_BROADCAST_LOOP(FORMULA, *pa, pb[i])                                                 \
                        });                                                                                            \
    } while (0)
#define RM_BROADCAST_LOOP(FORMULA, from_a, from_b)                                                                     \
    for (int64_t i = 0; i < r.count; i++) {                                                                            \
        const real a = from_a, b = from_b;                                                                             \
        py[i] = FORMULA;                                                                                               \
    }

/* Which input is the second operand. */
static inline int rm_broadcast_second(const remat_call *call) { return call->x[B].desc.rank >= 0 ? B : SHARED; }

static inline rm_broadcast rm_broadcast_of_call(const remat_call *call) {
    remat_desc x[] = {call->x[A].desc, call->x[B].desc, call->x[SHARED].desc};
    const remat_desc *y = call->y.desc.rank >= 0 && call->y.data ? &call->y.desc : &call->dy.desc;
    return rm_broadcast_of(x, y);
}

/* ---- Gradients ---------------------------------------------------------------------------------------------------- */

/* sums += the terms of one row, for an operand that is `along` the row or not. */
static inline void rm_broadcast_sum_row(const rm_broadcast_row *r, int operand, const real *dy,
                                        rm_broadcast_slope slope, double *sums) {
    const int64_t along = r->stride[operand], step = r->stride[!operand];
    const real *f = slope.other ? (const real *)slope.other + r->at[!operand] : NULL;
    double *to = sums + r->at[operand];
    if (slope.term == RM_OVER)
        for (int64_t i = 0; i < r->count; i++) to[i * along] += (double)dy[r->y + i] / (double)f[i * step];
    else if (slope.term == RM_WHERE_ON)
        for (int64_t i = 0; i < r->count; i++) to[i * along] += f[i * step] > 0 ? (double)dy[r->y + i] : 0;
    else
        for (int64_t i = 0; i < r->count; i++) to[i * along] += (double)dy[r->y + i] * (f ? (double)f[i * step] : 1);
}

static inline void rm_broadcast_gradient_row(const rm_broadcast_row *r, int operand, const real *dy,
                                             rm_broadcast_slope slope, real *dx) {
    const int64_t step = r->stride[!operand];
    const real *f = slope.other ? (const real *)slope.other + r->at[!operand] : NULL, sign = (real)slope.sign;
    const real *own = slope.own;
    if (slope.term == RM_OVER)
        for (int64_t i = 0; i < r->count; i++) dx[r->y + i] = sign * dy[r->y + i] / f[i * step];
    else if (slope.term == RM_WHERE_ON)
        for (int64_t i = 0; i < r->count; i++) dx[r->y + i] = f[i * step] > 0 ? dy[r->y + i] : 0;
    else
        for (int64_t i = 0; i < r->count; i++) dx[r->y + i] = sign * dy[r->y + i] * (f ? f[i * step] : 1);
    for (int64_t i = 0; own && i < r->count; i++) dx[r->y + i] = dx[r->y + i] / own[r->y + i] / own[r->y + i];
}

/* The gradient of one operand. A fixed order: row by row, in double. */
static inline void rm_broadcast_gradient(const remat_call *call, int operand, rm_broadcast_slope slope) {
    const int input = operand ? rm_broadcast_second(call) : A;
    const real *dy = call->dy.data, *own = slope.own;
    real *dx = call->dx[input].data;
    double *sums = call->scratch;
    if (!dx) return;
    const rm_broadcast s = rm_broadcast_of_call(call);
    const int64_t items = rm_broadcast_items(&s), count = rm_desc_count(&call->x[input].desc);
    if (!rm_broadcast_repeats(&s, operand) && input != SHARED) {
        RM_PARALLEL_FOR(
            call->threads, s.count > RM_PARALLEL_MIN, for (int64_t item = 0; item < items; item++) {
                const rm_broadcast_row r = rm_broadcast_item(&s, item);
                rm_broadcast_gradient_row(&r, operand, dy, slope, dx);
            });
        return;
    }
    for (int64_t i = 0; i < count; i++) sums[i] = 0;
    for (int64_t item = 0; item < items; item++) {
        const rm_broadcast_row r = rm_broadcast_item(&s, item);
        rm_broadcast_sum_row(&r, operand, dy, slope, sums);
    }
    for (int64_t i = 0; i < count; i++) {
        const double sum = own ? sums[i] / own[i] / own[i] : sums[i];
        dx[i] = (input == SHARED ? dx[i] : 0) + (real)slope.sign * (real)sum;
    }
}

/* ---- Samples, and what the descriptors have in common ------------------------------------------------------------------ */

static const remat_sample samples[] = {
    {.name = "sequence", .sequence = true, .x = {RM_SHAPE3(RM_REAL, 5, 2, 7), RM_SHAPE3(RM_REAL, 5, 2, 7), RM_ABSENT}},
    {.name = "whole", .x = {RM_SHAPE2(RM_REAL, 3, 11), RM_SHAPE2(RM_REAL, 3, 11), RM_ABSENT}},
    {.name = "one element", .x = {RM_SHAPE1(RM_REAL, 1), RM_SHAPE1(RM_REAL, 1), RM_ABSENT}},
    {.name = "both are repeated", .x = {RM_SHAPE3(RM_REAL, 2, 1, 3), RM_SHAPE2(RM_REAL, 4, 1), RM_ABSENT}},
    {.name = "a scalar and planes", .x = {RM_SCALAR(RM_REAL), RM_SHAPE4(RM_REAL, 2, 3, 2, 2), RM_ABSENT}},
    {.name = "channels of planes", .x = {RM_SHAPE4(RM_REAL, 2, 3, 2, 2), RM_SHAPE3(RM_REAL, 3, 1, 1), RM_ABSENT}},
    {.name = "sequences, one repeated",
     .sequence = true,
     .x = {RM_SHAPE3(RM_REAL, 4, 2, 1), RM_SHAPE3(RM_REAL, 4, 2, 3), RM_ABSENT}},
    {.name = "a vector for all timesteps",
     .sequence = true,
     .x = {RM_SHAPE3(RM_REAL, 4, 2, 3), RM_ABSENT, RM_SHAPE1(RM_REAL, 3)}},
    {.name = "rows for all timesteps",
     .sequence = true,
     .x = {RM_SHAPE4(RM_REAL, 3, 2, 1, 3), RM_ABSENT, RM_SHAPE3(RM_REAL, 2, 2, 1)}},
};

/* An op's infer and cost. `streams`: arrays of the size of y that backward moves. */
#define RM_BROADCAST_SHAPES(op, streams)                                                                               \
    static remat_status infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {               \
        (void)attr, (void)state;                                                                                       \
        return rm_broadcast_infer(op, x, y);                                                                           \
    }                                                                                                                  \
    static void cost(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass, remat_cost *out) {   \
        (void)attr;                                                                                                    \
        rm_broadcast_cost(x, y, streams, pass, out);                                                                   \
    }

#define RM_BROADCAST_OP                                                                                                \
    .struct_bytes = sizeof(remat_op), .n_in = 3, .optional = 1u << B | 1u << SHARED, .shared = 1u << SHARED,           \
    .time = REMAT_TIME_POINTWISE, .infer = infer, .cost = cost, .define_forward = forward,                             \
    .define_backward = backward, .cheap = true, .samples = samples, .n_samples = sizeof samples / sizeof *samples
#endif

#endif
