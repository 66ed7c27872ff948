/* gemm.c: matrix products (gemm.h). Float products use OpenBLAS with one of its threads: this file itself divides the
 * larger side of C among OpenMP threads, because the library's own threads wake slowly beside an OpenMP pool and
 * may divide the work differently from call to call. Small products, and all products in builds without OpenBLAS, use
 * cpu/small_product.c, so a BLAS is optional: a program that was built without one does not need it. Double products,
 * used only by tests, are plain loops. */
#include "ops/real.h"

#include "ops/math/gemm.h"
#include "ops/math/parallel.h"

#include <stdbool.h>

#ifdef RM_REAL_DOUBLE

/* With beta 0, c must not be read: it may hold anything, including NaN. */
static void multiply_alone(rm_orientation a_is, rm_orientation b_is, int64_t m, int64_t n, int64_t k, real alpha,
                           const real *a, int64_t lda, const real *b, int64_t ldb, real beta, real *c, int64_t ldc) {
    int64_t down = a_is == RM_TRANSPOSED ? 1 : lda, along = a_is == RM_TRANSPOSED ? lda : 1;
    int64_t deeper = b_is == RM_TRANSPOSED ? 1 : ldb, beside = b_is == RM_TRANSPOSED ? ldb : 1;
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            real sum = 0, *to = c + i * ldc + j;
            for (int64_t p = 0; p < k; p++) sum += a[i * down + p * along] * b[p * deeper + j * beside];
            *to = alpha * sum + (beta == 0 ? 0 : beta * *to);
        }
}

#else

#include "ops/cpu/kernels.h"

static void multiply_alone(rm_orientation a_is, rm_orientation b_is, int64_t m, int64_t n, int64_t k, real alpha,
                           const real *a, int64_t lda, const real *b, int64_t ldb, real beta, real *c, int64_t ldc) {
    rm_cell_kernels_get()->small_product(&(rm_small_product){a_is == RM_TRANSPOSED, b_is == RM_TRANSPOSED, m, n, k,
                                                             alpha, beta, a, b, lda, ldb, c, ldc});
}

#endif

#if defined(RM_OPENS_OPENBLAS) && !defined(RM_REAL_DOUBLE)

/* ---- OpenBLAS ------------------------------------------------------------------------------------------------- */

#include "ops/math/openblas.h"

remat_status rm_gemm_prepare(int threads) { return rm_openblas_prepare(threads); }

const char *rm_gemm_library(void) {
    if (rm_gemm_prepare(1)) return "OpenBLAS, which cannot be opened";
    return rm_openblas_is_open() ? rm_openblas_config() : "Remat's own kernels";
}

/* Products of up to this many multiply-adds use small_product.c, which is as fast or faster there
 * (docs/notes/cells.md). Also, on AVX-512 OpenBLAS uses kernels that call malloc for products of up to 100^3, and Remat
 * must not allocate after its first step. */
static bool is_small(int64_t m, int64_t n, int64_t k) { return (double)m * (double)n * (double)k <= 1 << 24; }

/* Returns false if rm_gemm_prepare was not called for this many threads and fails now. */
bool rm_gemm_begin(int threads) {
    bool open = !rm_gemm_prepare(threads) && rm_openblas_is_open();
    if (open) rm_openblas_begin();
    return open;
}
void rm_gemm_end(bool open) {
    if (open) rm_openblas_end();
}
static bool begin(int threads, int64_t m, int64_t n, int64_t k) { return !is_small(m, n, k) && rm_gemm_begin(threads); }

void rm_gemm_alone(bool open, rm_orientation a_is, rm_orientation b_is, int64_t m, int64_t n, int64_t k, real alpha,
                   const real *a, int64_t lda, const real *b, int64_t ldb, real beta, real *c, int64_t ldc) {
    if (!open || is_small(m, n, k)) { /* a share may be small although the whole product is not */
        multiply_alone(a_is, b_is, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
        return;
    }
    rm_openblas_sgemm(a_is == RM_TRANSPOSED, b_is == RM_TRANSPOSED, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

#else

#ifndef RM_REAL_DOUBLE
remat_status rm_gemm_prepare(int threads) {
    (void)threads;
    return REMAT_OK;
}
#endif
bool rm_gemm_begin(int threads) { return (void)threads, false; }
void rm_gemm_end(bool open) { (void)open; }
#define begin(...) false
const char *rm_gemm_library(void) { return "Remat's own kernels"; }
void rm_gemm_alone(bool open, rm_orientation a_is, rm_orientation b_is, int64_t m, int64_t n, int64_t k, real alpha,
                   const real *a, int64_t lda, const real *b, int64_t ldb, real beta, real *c, int64_t ldc) {
    (void)open;
    multiply_alone(a_is, b_is, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

#endif

/* ---- Both ----------------------------------------------------------------------------------------------------- */

/* Below this many multiply-adds (about 5 us on one core) a second thread does not pay off. */
enum { SPLIT_MIN = 1 << 18 };
/* Shares are multiples of this many rows or columns, so that only the last share has partial vectors. */
enum { GRAIN = 16 };

void rm_gemm(int threads, rm_orientation a_is, rm_orientation b_is, int64_t m, int64_t n, int64_t k, real alpha,
             const real *a, int64_t lda, const real *b, int64_t ldb, real beta, real *c, int64_t ldc) {
    bool open = begin(threads, m, n, k);
    int64_t side = m >= n ? m : n, grains = (side + GRAIN - 1) / GRAIN;
    if (threads < 2 || grains < 2 || (double)m * (double)n * (double)k < SPLIT_MIN) {
        rm_gemm_alone(open, a_is, b_is, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
        rm_gemm_end(open);
        return;
    }
    int64_t shares = threads < grains ? threads : grains;
    RM_PARALLEL_EVEN(
        threads, true, for (int64_t share = 0; share < shares; share++) {
            int64_t from = grains * share / shares * GRAIN, to = grains * (share + 1) / shares * GRAIN;
            int64_t size = (to < side ? to : side) - from;
            if (m >= n)
                rm_gemm_alone(open, a_is, b_is, size, n, k, alpha, a + from * (a_is == RM_TRANSPOSED ? 1 : lda), lda, b,
                              ldb, beta, c + from * ldc, ldc);
            else
                rm_gemm_alone(open, a_is, b_is, m, size, k, alpha, a, lda, b + from * (b_is == RM_TRANSPOSED ? ldb : 1),
                              ldb, beta, c + from, ldc);
        });
    rm_gemm_end(open);
}
