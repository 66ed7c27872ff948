/* linear.c: the op `linear`: y = x w^T + b, with weights in PyTorch's layout, or y = x w + b with `by_input`. gemm.h
 * computes the products. The recurrent ops have their own input projections (recurrent.h). */
#include "ops/real.h"

#include <string.h>

#include "ops/math/gemm.h"
#include "ops/op.h"
#include "ops/shape.h"

enum { X, W, B };

/* w is (C,N), not (N,C) */
static bool by_input(const void *attr) { return attr && ((const rm_linear_attr *)attr)->by_input; }

typedef struct {
    int64_t rows, c, n;       /* x is (rows,C), y (rows,N) */
    int64_t along_n, along_c; /* steps from one element of w to the next along N, C */
    int64_t ld;
    rm_orientation w_is, other; /* of (C,N), and of (N,C) */
} shape;

static shape shape_of(const remat_desc *x, const void *attr) {
    shape s = {rm_desc_rows(&x[X]), x[W].dim[1], x[W].dim[0], x[W].dim[1], 1, x[W].dim[1], RM_TRANSPOSED, RM_PLAIN};
    if (by_input(attr)) s = (shape){s.rows, s.n, s.c, 1, s.c, s.c, RM_PLAIN, RM_TRANSPOSED};
    return s;
}

static shape shape_of_call(const remat_call *call) {
    remat_desc x[] = {call->x[X].desc, call->x[W].desc};
    return shape_of(x, call->attr);
}

static remat_status infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    (void)state;
    TRY(rm_want_real("linear", "x", &x[X]));
    TRY(rm_want_rank("linear", "x", &x[X], 2, REMAT_MAX_RANK));
    TRY(rm_want_real("linear", "w", &x[W]));
    bool of_width_one = !by_input(attr) && x[W].rank == 3 && x[W].dim[2] == 1; /* the layout of PyTorch's Conv1d(C, N,
                                                                                  1) */
    if (!of_width_one) TRY(rm_want_rank("linear", "w", &x[W], 2, 2));
    char x_text[REMAT_DESC_TEXT], w_text[REMAT_DESC_TEXT];
    shape s = shape_of(x, attr);
    REQUIRE(rm_desc_last(&x[X]) == s.c, INVALID,
            by_input(attr) ? "linear: x is %s and w is %s; w must be (%lld,outputs), as many rows as x has features"
                           : "linear: x is %s and w is %s; w must be (outputs,%lld), as many columns as x has features",
            rm_desc_text(&x[X], x_text), rm_desc_text(&x[W], w_text), (long long)rm_desc_last(&x[X]));
    if (x[B].rank >= 0) TRY(rm_want_vector("linear", "b", &x[B], s.n));
    *y = x[X];
    y->dim[y->rank - 1] = s.n;
    return REMAT_OK;
}

static void cost(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass, remat_cost *out) {
    const shape s = shape_of(x, attr);
    double rows = (double)s.rows, c = (double)s.c, n = (double)s.n;
    double once = (double)(rm_desc_count(&x[X]) + rm_desc_count(&x[W]) + rm_desc_count(y)) * sizeof(real);
    *out = (remat_cost){.flops = 2 * rows * c * n + rows * n, .moved_bytes = once};
    if (pass == REMAT_BACKWARD) *out = (remat_cost){.flops = 4 * rows * c * n + rows * n, .moved_bytes = 2 * once};
}

static void define_forward(const remat_call *call) {
    const real *x = call->x[X].data, *w = call->x[W].data, *b = call->x[B].data;
    real *y = call->y.data;
    const shape s = shape_of_call(call);
    for (int64_t r = 0; r < s.rows; r++)
        for (int64_t j = 0; j < s.n; j++) {
            real sum = b ? b[j] : 0;
            for (int64_t i = 0; i < s.c; i++) sum += x[r * s.c + i] * w[j * s.along_n + i * s.along_c];
            y[r * s.n + j] = sum;
        }
}

static void define_backward(const remat_call *call) {
    const real *x = call->x[X].data, *w = call->x[W].data, *dy = call->dy.data;
    real *dx = call->dx[X].data, *dw = call->dx[W].data, *db = call->dx[B].data;
    const shape s = shape_of_call(call);
    if (dx) memset(dx, 0, (size_t)(s.rows * s.c) * sizeof *dx);
    for (int64_t r = 0; r < s.rows; r++)
        for (int64_t j = 0; j < s.n; j++) {
            real d = dy[r * s.n + j]; /* y[r,j] = b[j] + sum over i of x[r,i] w[j,i] */
            if (db) db[j] += d;
            for (int64_t i = 0; i < s.c; i++) {
                int64_t at = j * s.along_n + i * s.along_c;
                if (dx) dx[r * s.c + i] += d * w[at];
                if (dw) dw[at] += d * x[r * s.c + i];
            }
        }
}

static void forward(const remat_call *call) {
    const real *x = call->x[X].data, *w = call->x[W].data, *b = call->x[B].data;
    real *y = call->y.data;
    const shape s = shape_of_call(call);
    if (b) {
        RM_PARALLEL_FOR(call->threads, s.rows * s.n > RM_PARALLEL_MIN,
                        for (int64_t r = 0; r < s.rows; r++) memcpy(y + r * s.n, b, (size_t)s.n * sizeof *y););
    }
    rm_gemm(call->threads, RM_PLAIN, s.w_is, s.rows, s.n, s.c, 1, x, s.c, w, s.ld, b ? 1 : 0, y, s.n);
}

/* db (N) += column sums of dy (rows,N). Rows are added in order and threads divide the columns, so the bits
 * do not depend on the number of threads. */
static void add_column_sums(int threads, int64_t rows, int64_t n, const real *dy, real *db) {
    enum { WIDTH = 64 };
    RM_PARALLEL_FOR(
        threads, rows * n > RM_PARALLEL_MIN, for (int64_t from = 0; from < n; from += WIDTH) {
            int64_t width = n - from < WIDTH ? n - from : WIDTH;
            real sum[WIDTH] = {0};
            for (int64_t r = 0; r < rows; r++)
                for (int64_t j = 0; j < width; j++) sum[j] += dy[r * n + from + j];
            for (int64_t j = 0; j < width; j++) db[from + j] += sum[j];
        });
}

/* dw += dy^T x, (N,C), or x^T dy, (C,N) */
static void add_weight_gradient(const remat_call *call, const shape *s) {
    const real *x = call->x[X].data, *dy = call->dy.data;
    real *dw = call->dx[W].data;
    if (by_input(call->attr))
        rm_gemm(call->threads, RM_TRANSPOSED, RM_PLAIN, s->c, s->n, s->rows, 1, x, s->c, dy, s->n, 1, dw, s->n);
    else
        rm_gemm(call->threads, RM_TRANSPOSED, RM_PLAIN, s->n, s->c, s->rows, 1, dy, s->n, x, s->c, 1, dw, s->c);
}

/* y = x w^T + b:  dx = dy w,  db += columns of dy */
static void backward(const remat_call *call) {
    const real *w = call->x[W].data, *dy = call->dy.data;
    real *dx = call->dx[X].data, *db = call->dx[B].data;
    const shape s = shape_of_call(call);
    if (dx) rm_gemm(call->threads, RM_PLAIN, s.other, s.rows, s.c, s.n, 1, dy, s.n, w, s.ld, 0, dx, s.c);
    if (call->dx[W].data) add_weight_gradient(call, &s);
    if (db) add_column_sums(call->threads, s.rows, s.n, dy, db);
}

static const rm_linear_attr weights_by_input = {1};
static const remat_sample samples[] = {
    {.name = "sequence",
     .sequence = true,
     .x = {RM_SHAPE3(RM_REAL, 5, 2, 6), RM_SHAPE2(RM_REAL, 7, 6), RM_SHAPE1(RM_REAL, 7)}},
    {.name = "no bias", .x = {RM_SHAPE2(RM_REAL, 3, 4), RM_SHAPE2(RM_REAL, 5, 4), RM_ABSENT}},
    {.name = "more axes",
     .sequence = true,
     .x = {RM_SHAPE4(RM_REAL, 4, 2, 3, 5), RM_SHAPE2(RM_REAL, 2, 5), RM_SHAPE1(RM_REAL, 2)}},
    {.name = "one by one", .x = {RM_SHAPE2(RM_REAL, 1, 1), RM_SHAPE2(RM_REAL, 1, 1), RM_SHAPE1(RM_REAL, 1)}},
    {.name = "weights by input",
     .sequence = true,
     .attr = &weights_by_input,
     .x = {RM_SHAPE3(RM_REAL, 5, 2, 6), RM_SHAPE2(RM_REAL, 6, 7), RM_SHAPE1(RM_REAL, 7)}},
    {.name = "large enough for threads and the library",
     .sequence = true,
     .x = {RM_SHAPE3(RM_REAL, 16, 8, 160), RM_SHAPE2(RM_REAL, 131, 160), RM_SHAPE1(RM_REAL, 131)}},
};

const remat_op RM_OP(linear) = {
    .struct_bytes = sizeof(remat_op),
    .name = "linear",
    .doc = "y (..,N) = x (..,C) w^T + b; w (N,C), b (N) is optional; or x w + b, w (C,N)",
    .n_in = 3,
    .optional = 1u << B,
    .shared = 1u << W | 1u << B,
    .attr_bytes = sizeof(rm_linear_attr),
    .time = REMAT_TIME_POINTWISE,
    .saves = {.in = 1u << X | 1u << W},
    .infer = infer,
    .cost = cost,
    .define_forward = define_forward,
    .define_backward = define_backward,
    .on = {{.forward = forward, .backward = backward}, RM_CUDA_KERNELS(linear)},
    .samples = samples,
    .n_samples = sizeof samples / sizeof *samples,
    .first_for = 1u << W,
};
