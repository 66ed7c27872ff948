/* gemm.c: matrix products (gemm.h). In float they come from OpenBLAS, on one of its threads: this file cuts the
 * larger side of C among OpenMP threads itself, because the library's own threads wake slowly beside an OpenMP pool and
 * may divide the work differently from call to call. In double, which only tests use, and where OpenBLAS was not found,
 * plain loops: no build needs a BLAS to pass its tests.
 */
#include "ops/real.h"

#include "ops/math/gemm.h"

#include <stdbool.h>

/* ---- Plain loops ---------------------------------------------------------------------------------------------- */

/* The sum over p of a[p stride] b[p], in eight running sums: a fixed order that vector code can follow. */
static real dot(int64_t k, const real *a, int64_t stride, const real *b) {
    enum { LANES = 8 };
    real lane[LANES] = {0}, sum = 0;
    int64_t p = 0;
    if (stride == 1)
        for (; p + LANES <= k; p += LANES)
            for (int i = 0; i < LANES; i++) lane[i] += a[p + i] * b[p + i];
    for (; p < k; p++) sum += a[p * stride] * b[p];
    for (int i = 0; i < LANES; i++) sum += lane[i];
    return sum;
}

/* Along the direction in which b is stored. beta 0 must not read c: it may hold anything, NaN included. */
static void multiply_plainly(rm_orientation a_is, rm_orientation b_is, int64_t m, int64_t n, int64_t k, real alpha,
                             const real *a, int64_t lda, const real *b, int64_t ldb, real beta, real *c, int64_t ldc) {
    int64_t down = a_is == RM_TRANSPOSED ? 1 : lda, along = a_is == RM_TRANSPOSED ? lda : 1;
    for (int64_t i = 0; i < m; i++) {
        real *row = c + i * ldc;
        for (int64_t j = 0; j < n; j++) row[j] = beta == 0 ? 0 : beta * row[j];
        if (b_is == RM_TRANSPOSED)
            for (int64_t j = 0; j < n; j++) row[j] += alpha * dot(k, a + i * down, along, b + j * ldb);
        else
            for (int64_t p = 0; p < k; p++) {
                real left = alpha * a[i * down + p * along];
                for (int64_t j = 0; j < n; j++) row[j] += left * b[p * ldb + j];
            }
    }
}

#if defined(REMAT_HAVE_OPENBLAS) && !defined(RM_REAL_DOUBLE)

/* ---- OpenBLAS ------------------------------------------------------------------------------------------------- */

#include "ops/math/openblas.h"

remat_status rm_gemm_prepare(int threads) { return rm_openblas_prepare(threads); }

const char *rm_gemm_library(void) {
    return rm_gemm_prepare(1) ? "OpenBLAS, which cannot be opened" : rm_openblas()->config();
}

static CBLAS_TRANSPOSE orientation(rm_orientation is) { return is == RM_TRANSPOSED ? CblasTrans : CblasNoTrans; }

/* On AVX-512 OpenBLAS sends products of up to 100^3 multiply-adds to kernels that call malloc, and after its first step
 * Remat allocates nothing; those are small enough for plain loops. */
static bool allocates(int64_t m, int64_t n, int64_t k) { return (double)m * (double)n * (double)k <= 1e6; }

/* False: no rm_gemm_prepare for so many threads came before, and none succeeds now. */
bool rm_gemm_begin(int threads) {
    bool open = !rm_gemm_prepare(threads);
    if (open) rm_openblas_begin();
    return open;
}
void rm_gemm_end(bool open) {
    if (open) rm_openblas_end();
}
static bool begin(int threads, int64_t m, int64_t n, int64_t k) {
    return !allocates(m, n, k) && rm_gemm_begin(threads);
}

void rm_gemm_alone(bool open, rm_orientation a_is, rm_orientation b_is, int64_t m, int64_t n, int64_t k, real alpha,
                   const real *a, int64_t lda, const real *b, int64_t ldb, real beta, real *c, int64_t ldc) {
    if (!open || allocates(m, n, k)) { /* a share may be small where the whole is not */
        multiply_plainly(a_is, b_is, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
        return;
    }
    rm_openblas()->sgemm(CblasRowMajor, orientation(a_is), orientation(b_is), (blasint)m, (blasint)n, (blasint)k, alpha,
                         a, (blasint)lda, b, (blasint)ldb, beta, c, (blasint)ldc);
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
const char *rm_gemm_library(void) { return "plain loops"; }
void rm_gemm_alone(bool open, rm_orientation a_is, rm_orientation b_is, int64_t m, int64_t n, int64_t k, real alpha,
                   const real *a, int64_t lda, const real *b, int64_t ldb, real beta, real *c, int64_t ldc) {
    (void)open;
    multiply_plainly(a_is, b_is, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

#endif

/* ---- Both ----------------------------------------------------------------------------------------------------- */

/* Below this many multiply-adds (about 5 us of one core) a second thread costs more than it brings. */
enum { SPLIT_MIN = 1 << 18 };
/* Shares are whole multiples of this many rows or columns, so that no share but the last has ragged vectors. */
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
#pragma omp parallel for num_threads(threads) schedule(static, 1)
    for (int64_t share = 0; share < shares; share++) {
        int64_t from = grains * share / shares * GRAIN, to = grains * (share + 1) / shares * GRAIN;
        int64_t size = (to < side ? to : side) - from;
        if (m >= n)
            rm_gemm_alone(open, a_is, b_is, size, n, k, alpha, a + from * (a_is == RM_TRANSPOSED ? 1 : lda), lda, b,
                          ldb, beta, c + from * ldc, ldc);
        else
            rm_gemm_alone(open, a_is, b_is, m, size, k, alpha, a, lda, b + from * (b_is == RM_TRANSPOSED ? ldb : 1),
                          ldb, beta, c + from, ldc);
    }
    rm_gemm_end(open);
}
