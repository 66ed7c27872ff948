/* headwise_linear.c: the op `headwise_linear`: a linear layer whose heads meet no other: y = x w^T + b for each head, which
 * has its part of the features, or of the rows of a block-diagonal matrix. gemm.h computes the products. */
#include "ops/real.h"

#include <string.h>

#include "ops/math/gemm.h"
#include "ops/op.h"
#include "ops/shape.h"

enum { X, W, B };

typedef struct {
    int64_t rows, heads, n, c; /* x is (rows,heads,C), y (rows,heads,N), w (heads,N,C) */
} shape;

static shape shape_of(const remat_desc *x, const remat_desc *w) {
    return (shape){rm_desc_rows(x), w->dim[0], w->dim[1], w->dim[2]};
}

static remat_status infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    (void)attr, (void)state;
    char x_text[REMAT_DESC_TEXT], w_text[REMAT_DESC_TEXT];
    TRY(rm_want_real("headwise_linear", "x", &x[X]));
    TRY(rm_want_rank("headwise_linear", "x", &x[X], 2, REMAT_MAX_RANK));
    TRY(rm_want_real("headwise_linear", "w", &x[W]));
    TRY(rm_want_rank("headwise_linear", "w", &x[W], 3, 3));
    REQUIRE(rm_desc_last(&x[X]) == x[W].dim[0] * x[W].dim[2], INVALID,
            "headwise_linear: x is %s and w is %s; w must be (heads,outputs,inputs), with heads x inputs = %lld",
            rm_desc_text(&x[X], x_text), rm_desc_text(&x[W], w_text), (long long)rm_desc_last(&x[X]));
    if (x[B].rank >= 0) TRY(rm_want_vector("headwise_linear", "b", &x[B], x[W].dim[0] * x[W].dim[1]));
    *y = x[X];
    y->dim[y->rank - 1] = x[W].dim[0] * x[W].dim[1];
    return REMAT_OK;
}

static void cost(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass, remat_cost *out) {
    (void)attr;
    const shape s = shape_of(&x[X], &x[W]);
    double passes = pass == REMAT_BACKWARD ? 2 : 1, results = (double)rm_desc_count(y);
    double once = (double)(rm_desc_count(&x[X]) + rm_desc_count(&x[W]) + rm_desc_count(y)) * sizeof(real);
    *out = (remat_cost){.flops = results * (2 * passes * (double)s.c + 1), .moved_bytes = passes * once};
}

static void define_forward(const remat_call *call) {
    const real *x = call->x[X].data, *w = call->x[W].data, *b = call->x[B].data;
    real *y = call->y.data;
    const shape s = shape_of(&call->x[X].desc, &call->x[W].desc);
    for (int64_t r = 0; r < s.rows; r++)
        for (int64_t j = 0; j < s.heads * s.n; j++) {
            real sum = b ? b[j] : 0;
            for (int64_t i = 0; i < s.c; i++) sum += x[(r * s.heads + j / s.n) * s.c + i] * w[j * s.c + i];
            y[r * s.heads * s.n + j] = sum;
        }
}

static void define_backward(const remat_call *call) {
    const real *x = call->x[X].data, *w = call->x[W].data, *dy = call->dy.data;
    real *dx = call->dx[X].data, *dw = call->dx[W].data, *db = call->dx[B].data;
    const shape s = shape_of(&call->x[X].desc, &call->x[W].desc);
    if (dx) memset(dx, 0, (size_t)(s.rows * s.heads * s.c) * sizeof *dx);
    for (int64_t r = 0; r < s.rows; r++)
        for (int64_t j = 0; j < s.heads * s.n; j++) {
            real d = dy[r * s.heads * s.n + j]; /* y[r,j] = b[j] + sum over i of x[r,head,i] w[j,i] */
            if (db) db[j] += d;
            for (int64_t i = 0; i < s.c; i++) {
                int64_t at = (r * s.heads + j / s.n) * s.c + i;
                if (dx) dx[at] += d * w[j * s.c + i];
                if (dw) dw[j * s.c + i] += d * x[at];
            }
        }
}

static void forward(const remat_call *call) {
    const real *x = call->x[X].data, *w = call->x[W].data, *b = call->x[B].data;
    real *y = call->y.data;
    const shape s = shape_of(&call->x[X].desc, &call->x[W].desc);
    int64_t wide = s.heads * s.n;
    for (int64_t r = 0; b && r < s.rows; r++) memcpy(y + r * wide, b, (size_t)wide * sizeof *y);
    for (int64_t h = 0; h < s.heads; h++)
        rm_gemm(call->threads, RM_PLAIN, RM_TRANSPOSED, s.rows, s.n, s.c, 1, x + h * s.c, s.heads * s.c,
                w + h * s.n * s.c, s.c, b ? 1 : 0, y + h * s.n, wide);
}

/* y = x w^T + b:  dx = dy w,  dw += dy^T x,  db += columns of dy */
static void backward(const remat_call *call) {
    const real *x = call->x[X].data, *w = call->x[W].data, *dy = call->dy.data;
    real *dx = call->dx[X].data, *dw = call->dx[W].data, *db = call->dx[B].data;
    const shape s = shape_of(&call->x[X].desc, &call->x[W].desc);
    int64_t wide = s.heads * s.n, features = s.heads * s.c;
    for (int64_t h = 0; h < s.heads; h++) {
        const real *d = dy + h * s.n;
        if (dx)
            rm_gemm(call->threads, RM_PLAIN, RM_PLAIN, s.rows, s.c, s.n, 1, d, wide, w + h * s.n * s.c, s.c, 0,
                    dx + h * s.c, features);
        if (dw)
            rm_gemm(call->threads, RM_TRANSPOSED, RM_PLAIN, s.n, s.c, s.rows, 1, d, wide, x + h * s.c, features, 1,
                    dw + h * s.n * s.c, s.c);
    }
    for (int64_t r = 0; db && r < s.rows; r++)
        for (int64_t j = 0; j < wide; j++) db[j] += dy[r * wide + j];
}

static const remat_sample samples[] = {
    {.name = "sequence",
     .sequence = true,
     .x = {RM_SHAPE3(RM_REAL, 5, 2, 6), RM_SHAPE3(RM_REAL, 3, 4, 2), RM_SHAPE1(RM_REAL, 12)}},
    {.name = "no bias", .x = {RM_SHAPE2(RM_REAL, 3, 4), RM_SHAPE3(RM_REAL, 2, 1, 2), RM_ABSENT}},
    {.name = "one head", .x = {RM_SHAPE2(RM_REAL, 3, 4), RM_SHAPE3(RM_REAL, 1, 5, 4), RM_SHAPE1(RM_REAL, 5)}},
    {.name = "large enough for threads",
     .sequence = true,
     .x = {RM_SHAPE3(RM_REAL, 16, 8, 96), RM_SHAPE3(RM_REAL, 2, 40, 48), RM_SHAPE1(RM_REAL, 80)}},
};

const remat_op RM_OP(headwise_linear) = {
    .struct_bytes = sizeof(remat_op),
    .name = "headwise_linear",
    .doc = "y (..,heads N) = x (..,heads C) w^T + b for each head; w (heads,N,C), b (heads N) is optional",
    .n_in = 3,
    .optional = 1u << B,
    .shared = 1u << W | 1u << B,
    .time = REMAT_TIME_POINTWISE,
    .saves = {.in = 1u << X | 1u << W},
    .infer = infer,
    .cost = cost,
    .define_forward = define_forward,
    .define_backward = define_backward,
    .on = {{.forward = forward, .backward = backward}, RM_CUDA_KERNELS(headwise_linear)},
    .samples = samples,
    .n_samples = sizeof samples / sizeof *samples,
    .first_for = 1u << W,
};
