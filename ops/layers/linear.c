/* linear.c: the op `linear`, y = x w^T + b, with weights stored as PyTorch stores them. The products are gemm.h's; the
 * recurrent ops have input projections of their own (recurrent.h). */
#include "ops/real.h"

#include <string.h>

#include "ops/math/gemm.h"
#include "ops/op.h"
#include "ops/shape.h"

enum { X, W, B };

static remat_status infer(const rm_desc *x, const void *attr, rm_desc *y, rm_desc *state) {
    (void)attr, (void)state;
    TRY(rm_want_real("linear", "x", &x[X]));
    TRY(rm_want_rank("linear", "x", &x[X], 2, REMAT_MAX_RANK));
    TRY(rm_want_real("linear", "w", &x[W]));
    bool of_width_one = x[W].rank == 3 && x[W].dim[2] == 1; /* as PyTorch's Conv1d(C, N, 1) has it */
    if (!of_width_one) TRY(rm_want_rank("linear", "w", &x[W], 2, 2));
    char x_text[RM_DESC_TEXT], w_text[RM_DESC_TEXT];
    REQUIRE(rm_desc_last(&x[X]) == x[W].dim[1], INVALID,
            "linear: x is %s and w is %s; w must be (outputs,%lld), as many columns as x has features",
            rm_desc_text(&x[X], x_text), rm_desc_text(&x[W], w_text), (long long)rm_desc_last(&x[X]));
    if (x[B].rank >= 0) TRY(rm_want_vector("linear", "b", &x[B], x[W].dim[0]));
    *y = x[X];
    y->dim[y->rank - 1] = x[W].dim[0];
    return REMAT_OK;
}

static void cost(const rm_desc *x, const rm_desc *y, const void *attr, rm_pass pass, rm_cost *out) {
    (void)attr;
    double rows = (double)rm_desc_rows(&x[X]), c = (double)x[W].dim[1], n = (double)x[W].dim[0];
    double once = (double)(rm_desc_count(&x[X]) + rm_desc_count(&x[W]) + rm_desc_count(y)) * sizeof(real);
    *out = (rm_cost){.flops = 2 * rows * c * n + rows * n, .moved_bytes = once};
    if (pass == RM_BACKWARD) *out = (rm_cost){.flops = 4 * rows * c * n + rows * n, .moved_bytes = 2 * once};
}

static void define_forward(const rm_call *call) {
    const real *x = call->x[X].data, *w = call->x[W].data, *b = call->x[B].data; /* (rows,C), (N,C), (N) */
    real *y = call->y.data;                                                      /* (rows,N)             */
    int64_t rows = rm_desc_rows(&call->x[X].desc), c = call->x[W].desc.dim[1], n = call->x[W].desc.dim[0];
    for (int64_t r = 0; r < rows; r++)
        for (int64_t j = 0; j < n; j++) {
            real sum = b ? b[j] : 0;
            for (int64_t i = 0; i < c; i++) sum += x[r * c + i] * w[j * c + i];
            y[r * n + j] = sum;
        }
}

static void define_backward(const rm_call *call) {
    const real *x = call->x[X].data, *w = call->x[W].data, *dy = call->dy.data;
    real *dx = call->dx[X].data, *dw = call->dx[W].data, *db = call->dx[B].data;
    int64_t rows = rm_desc_rows(&call->x[X].desc), c = call->x[W].desc.dim[1], n = call->x[W].desc.dim[0];
    if (dx) memset(dx, 0, (size_t)(rows * c) * sizeof *dx);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t j = 0; j < n; j++) {
            real d = dy[r * n + j]; /* y[r,j] = b[j] + sum over i of x[r,i] w[j,i] */
            if (db) db[j] += d;
            for (int64_t i = 0; i < c; i++) {
                if (dx) dx[r * c + i] += d * w[j * c + i];
                if (dw) dw[j * c + i] += d * x[r * c + i];
            }
        }
}

static void forward(const rm_call *call) {
    const real *x = call->x[X].data, *w = call->x[W].data, *b = call->x[B].data;
    real *y = call->y.data;
    int64_t rows = rm_desc_rows(&call->x[X].desc), c = call->x[W].desc.dim[1], n = call->x[W].desc.dim[0];
    if (b) {
        RM_PARALLEL_FOR(call->threads, rows * n > RM_PARALLEL_MIN,
                        for (int64_t r = 0; r < rows; r++) memcpy(y + r * n, b, (size_t)n * sizeof *y););
    }
    rm_gemm(call->threads, RM_PLAIN, RM_TRANSPOSED, rows, n, c, 1, x, c, w, c, b ? 1 : 0, y, n);
}

/* db (N) += the column sums of dy (rows,N). Rows are added in order and columns are divided among threads, so the bits
 * do not depend on the thread count. */
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

static void backward(const rm_call *call) {
    const real *x = call->x[X].data, *w = call->x[W].data, *dy = call->dy.data;
    real *dx = call->dx[X].data, *dw = call->dx[W].data, *db = call->dx[B].data;
    int64_t rows = rm_desc_rows(&call->x[X].desc), c = call->x[W].desc.dim[1], n = call->x[W].desc.dim[0];
    /* y = x w^T + b:  dx = dy w,  dw += dy^T x,  db += columns of dy */
    if (dx) rm_gemm(call->threads, RM_PLAIN, RM_PLAIN, rows, c, n, 1, dy, n, w, c, 0, dx, c);
    if (dw) rm_gemm(call->threads, RM_TRANSPOSED, RM_PLAIN, n, c, rows, 1, dy, n, x, c, 1, dw, c);
    if (db) add_column_sums(call->threads, rows, n, dy, db);
}

static const rm_sample samples[] = {
    {.name = "sequence",
     .sequence = true,
     .x = {RM_SHAPE3(RM_REAL, 5, 2, 6), RM_SHAPE2(RM_REAL, 7, 6), RM_SHAPE1(RM_REAL, 7)}},
    {.name = "no bias", .x = {RM_SHAPE2(RM_REAL, 3, 4), RM_SHAPE2(RM_REAL, 5, 4), RM_ABSENT}},
    {.name = "more axes",
     .sequence = true,
     .x = {RM_SHAPE4(RM_REAL, 4, 2, 3, 5), RM_SHAPE2(RM_REAL, 2, 5), RM_SHAPE1(RM_REAL, 2)}},
    {.name = "one by one", .x = {RM_SHAPE2(RM_REAL, 1, 1), RM_SHAPE2(RM_REAL, 1, 1), RM_SHAPE1(RM_REAL, 1)}},
    {.name = "large enough for threads and the library",
     .sequence = true,
     .x = {RM_SHAPE3(RM_REAL, 16, 8, 160), RM_SHAPE2(RM_REAL, 131, 160), RM_SHAPE1(RM_REAL, 131)}},
};

const rm_op RM_OP(linear) = {
    .struct_bytes = sizeof(rm_op),
    .name = "linear",
    .doc = "y (..,N) = x (..,C) w^T + b; w (N,C), b (N) optional",
    .n_in = 3,
    .optional = 1u << B,
    .weights = 1u << W | 1u << B,
    .time = RM_TIME_POINTWISE,
    .saves = {.in = 1u << X | 1u << W},
    .infer = infer,
    .cost = cost,
    .define_forward = define_forward,
    .define_backward = define_backward,
    .on = {{.forward = forward, .backward = backward}, RM_CUDA_KERNELS(linear)},
    .samples = samples,
    .n_samples = sizeof samples / sizeof *samples,
};
