/* batched_matmul.c: the op `batched_matmul`: products of computed matrices, one for each index of the leading axes, as in
 * attention that is written out. gemm.h computes them: large ones one after another, each by all threads, small ones side
 * by side. Which of the two depends on the size of a product alone, not on the number of products in a tile. */
#include "ops/real.h"

#include "ops/math/gemm.h"
#include "ops/op.h"
#include "ops/shape.h"

enum { A, B };
enum { LARGE = 1 << 22 }; /* multiply-adds: about 100 us on one thread */

static bool transposes(const void *attr) { return attr && ((const rm_batched_matmul_attr *)attr)->transpose_b; }

typedef struct {
    int64_t count, m, n, k; /* a is (count,M,K), b (count,K,N) or (count,N,K), y (count,M,N) */
    rm_orientation b_is;
    int64_t ldb;
} shape;

static shape shape_of(const remat_desc *a, const remat_desc *b, const void *attr) {
    const int64_t m = a->dim[a->rank - 2], k = a->dim[a->rank - 1], columns = b->dim[b->rank - 1];
    const bool transposed = transposes(attr);
    return (shape){.count = rm_desc_count(a) / (m * k),
                   .m = m,
                   .n = transposed ? b->dim[b->rank - 2] : columns,
                   .k = k,
                   .b_is = transposed ? RM_TRANSPOSED : RM_PLAIN,
                   .ldb = columns};
}

static bool fit(const remat_desc *a, const remat_desc *b, bool transposed) {
    for (int i = 0; i < a->rank - 2; i++)
        if (a->dim[i] != b->dim[i]) return false;
    return a->dim[a->rank - 1] == b->dim[b->rank - (transposed ? 1 : 2)];
}

static remat_status infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    (void)state;
    char a_text[REMAT_DESC_TEXT], b_text[REMAT_DESC_TEXT];
    const bool transposed = transposes(attr);
    TRY(rm_want_real("batched_matmul", "a", &x[A]));
    TRY(rm_want_rank("batched_matmul", "a", &x[A], 3, REMAT_MAX_RANK));
    TRY(rm_want_real("batched_matmul", "b", &x[B]));
    REQUIRE(x[A].rank == x[B].rank && fit(&x[A], &x[B], transposed), INVALID,
            "batched_matmul: a is %s and b is %s; a must be (..,M,K) and b %s, with the same leading axes",
            rm_desc_text(&x[A], a_text), rm_desc_text(&x[B], b_text), transposed ? "(..,N,K)" : "(..,K,N)");
    *y = x[A];
    y->dim[y->rank - 1] = x[B].dim[x[B].rank - (transposed ? 2 : 1)];
    return REMAT_OK;
}

static void cost(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass, remat_cost *out) {
    const shape s = shape_of(&x[A], &x[B], attr);
    double passes = pass == REMAT_BACKWARD ? 2 : 1;
    double once = (double)(rm_desc_count(&x[A]) + rm_desc_count(&x[B]) + rm_desc_count(y)) * sizeof(real);
    *out = (remat_cost){.flops = 2 * passes * (double)rm_desc_count(y) * (double)s.k, .moved_bytes = passes * once};
}

static void define_forward(const remat_call *call) {
    const real *a = call->x[A].data, *b = call->x[B].data;
    real *y = call->y.data;
    const shape s = shape_of(&call->x[A].desc, &call->x[B].desc, call->attr);
    const int64_t row = s.b_is ? 1 : s.n, column = s.b_is ? s.k : 1;
    for (int64_t p = 0; p < s.count; p++)
        for (int64_t i = 0; i < s.m; i++)
            for (int64_t j = 0; j < s.n; j++) {
                real sum = 0;
                for (int64_t c = 0; c < s.k; c++)
                    sum += a[(p * s.m + i) * s.k + c] * b[p * s.k * s.n + c * row + j * column];
                y[(p * s.m + i) * s.n + j] = sum;
            }
}

static void define_backward(const remat_call *call) {
    const real *a = call->x[A].data, *b = call->x[B].data, *dy = call->dy.data;
    real *da = call->dx[A].data, *db = call->dx[B].data;
    const shape s = shape_of(&call->x[A].desc, &call->x[B].desc, call->attr);
    const int64_t row = s.b_is ? 1 : s.n, column = s.b_is ? s.k : 1;
    for (int64_t i = 0; da && i < s.count * s.m * s.k; i++) da[i] = 0;
    for (int64_t i = 0; db && i < s.count * s.k * s.n; i++) db[i] = 0;
    for (int64_t p = 0; p < s.count; p++)
        for (int64_t i = 0; i < s.m; i++)
            for (int64_t j = 0; j < s.n; j++)
                for (int64_t c = 0; c < s.k; c++) { /* y[i,j] = sum over c of a[i,c] b[c,j] */
                    const int64_t at = (p * s.m + i) * s.k + c, other = p * s.k * s.n + c * row + j * column;
                    const real d = dy[(p * s.m + i) * s.n + j];
                    if (da) da[at] += d * b[other];
                    if (db) db[other] += d * a[at];
                }
}

/* c (m,n) = op(a) op(b) for each of `count` matrices, which lie one after another. */
static void multiply(const remat_call *call, int64_t count, rm_orientation a_is, rm_orientation b_is, int64_t m,
                     int64_t n, int64_t k, const real *a, int64_t lda, const real *b, int64_t ldb, real *c) {
    if ((double)m * (double)n * (double)k >= LARGE) {
        for (int64_t p = 0; p < count; p++)
            rm_gemm(call->threads, a_is, b_is, m, n, k, 1, a + p * m * k, lda, b + p * k * n, ldb, 0, c + p * m * n, n);
        return;
    }
    bool open = rm_gemm_begin(call->threads);
    RM_PARALLEL_EVEN(call->threads, count * m * n * k > RM_PARALLEL_MIN,
                     for (int64_t p = 0; p < count; p++) rm_gemm_alone(open, a_is, b_is, m, n, k, 1, a + p * m * k, lda,
                                                                       b + p * k * n, ldb, 0, c + p * m * n, n););
    rm_gemm_end(open);
}

static void forward(const remat_call *call) {
    const shape s = shape_of(&call->x[A].desc, &call->x[B].desc, call->attr);
    multiply(call, s.count, RM_PLAIN, s.b_is, s.m, s.n, s.k, call->x[A].data, s.k, call->x[B].data, s.ldb,
             call->y.data);
}

/* da = dy b^T,  db = a^T dy, or its transpose, dy^T a */
static void backward(const remat_call *call) {
    const real *a = call->x[A].data, *b = call->x[B].data, *dy = call->dy.data;
    const shape s = shape_of(&call->x[A].desc, &call->x[B].desc, call->attr);
    if (call->dx[A].data)
        multiply(call, s.count, RM_PLAIN, s.b_is ? RM_PLAIN : RM_TRANSPOSED, s.m, s.k, s.n, dy, s.n, b, s.ldb,
                 call->dx[A].data);
    if (!call->dx[B].data) return;
    if (s.b_is)
        multiply(call, s.count, RM_TRANSPOSED, RM_PLAIN, s.n, s.k, s.m, dy, s.n, a, s.k, call->dx[B].data);
    else
        multiply(call, s.count, RM_TRANSPOSED, RM_PLAIN, s.k, s.n, s.m, a, s.k, dy, s.n, call->dx[B].data);
}

static const rm_batched_matmul_attr transposed = {1};
static const remat_sample samples[] = {
    {.name = "sequence", .sequence = true, .x = {RM_SHAPE4(RM_REAL, 5, 2, 3, 4), RM_SHAPE4(RM_REAL, 5, 2, 4, 6)}},
    {.name = "transposed",
     .sequence = true,
     .attr = &transposed,
     .x = {RM_SHAPE4(RM_REAL, 5, 2, 3, 4), RM_SHAPE4(RM_REAL, 5, 2, 6, 4)}},
    {.name = "vectors", .x = {RM_SHAPE3(RM_REAL, 3, 1, 5), RM_SHAPE3(RM_REAL, 3, 5, 1)}},
    {.name = "small, enough for threads", .x = {RM_SHAPE3(RM_REAL, 9, 24, 20), RM_SHAPE3(RM_REAL, 9, 20, 33)}},
    {.name = "large", .attr = &transposed, .x = {RM_SHAPE3(RM_REAL, 2, 160, 170), RM_SHAPE3(RM_REAL, 2, 165, 170)}},
};

const remat_op RM_OP(batched_matmul) = {
    .struct_bytes = sizeof(remat_op),
    .name = "batched_matmul",
    .doc = "y (..,M,N) = a (..,M,K) b (..,K,N), or with transpose_b b (..,N,K)",
    .n_in = 2,
    .time = REMAT_TIME_POINTWISE,
    .attr_bytes = sizeof(rm_batched_matmul_attr),
    .saves = {.in = 1u << A | 1u << B},
    .infer = infer,
    .cost = cost,
    .define_forward = define_forward,
    .define_backward = define_backward,
    .on = {{.forward = forward, .backward = backward}, RM_CUDA_KERNELS(batched_matmul)},
    .samples = samples,
    .n_samples = sizeof samples / sizeof *samples,
};
