/* gemm.c: matrix products (gemm.h). In float they come from OpenBLAS, which is kept to one thread: this file cuts the
 * larger side of C among OpenMP threads itself, because the library's own threads wake slowly beside an OpenMP pool and
 * may divide the work differently from call to call. In double, which only tests use, and where OpenBLAS was not found,
 * plain loops: no build needs a BLAS to pass its tests.
 */
#include "ops/real.h"

#include "ops/gemm.h"

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

#include <cblas.h>
#include <pthread.h>
#include <stdatomic.h>

/* OpenBLAS maps a packing buffer when one more caller than ever before is inside it at the same moment: in any step, as
 * chance has it. So as many as there can be are taken at once, and given back, before the first product: it keeps them. */
void *blas_memory_alloc(int position) __attribute__((weak));
void blas_memory_free(void *buffer) __attribute__((weak));

enum { MOST_BUFFERS = 64 };
static void take_buffers(int n) {
    void *buffer[MOST_BUFFERS];
    if (!blas_memory_alloc || !blas_memory_free) return; /* a build that hides them */
    if (n > MOST_BUFFERS) n = MOST_BUFFERS;
    for (int i = 0; i < n; i++) buffer[i] = blas_memory_alloc(0);
    for (int i = 0; i < n; i++) blas_memory_free(buffer[i]);
}

static void prepare(int threads) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static atomic_int prepared;
    if (atomic_load_explicit(&prepared, memory_order_acquire) >= threads) return;
    pthread_mutex_lock(&lock);
    if (atomic_load(&prepared) == 0) openblas_set_num_threads(1);
    if (atomic_load(&prepared) < threads) take_buffers(threads);
    if (atomic_load(&prepared) < threads) atomic_store_explicit(&prepared, threads, memory_order_release);
    pthread_mutex_unlock(&lock);
}
const char *rm_gemm_library(void) { return openblas_get_config(); }

static CBLAS_TRANSPOSE orientation(rm_orientation is) { return is == RM_TRANSPOSED ? CblasTrans : CblasNoTrans; }

/* On AVX-512 OpenBLAS sends products of up to 100^3 multiply-adds to kernels that call malloc, and after its first step
 * Remat allocates nothing; those are small enough for plain loops. */
static bool allocates(int64_t m, int64_t n, int64_t k) { return (double)m * (double)n * (double)k <= 1e6; }

static void multiply(rm_orientation a_is, rm_orientation b_is, int64_t m, int64_t n, int64_t k, real alpha,
                     const real *a, int64_t lda, const real *b, int64_t ldb, real beta, real *c, int64_t ldc) {
    if (allocates(m, n, k)) {
        multiply_plainly(a_is, b_is, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
        return;
    }
    cblas_sgemm(CblasRowMajor, orientation(a_is), orientation(b_is), (blasint)m, (blasint)n, (blasint)k, alpha, a,
                (blasint)lda, b, (blasint)ldb, beta, c, (blasint)ldc);
}

#else

static void prepare(int threads) { (void)threads; }
const char *rm_gemm_library(void) { return "plain loops"; }
#define multiply multiply_plainly

#endif

/* ---- Both ----------------------------------------------------------------------------------------------------- */

/* Below this many multiply-adds (about 5 us of one core) a second thread costs more than it brings. */
enum { SPLIT_MIN = 1 << 18 };
/* Shares are whole multiples of this many rows or columns, so that no share but the last has ragged vectors. */
enum { GRAIN = 16 };

void rm_gemm(int threads, rm_orientation a_is, rm_orientation b_is, int64_t m, int64_t n, int64_t k, real alpha,
             const real *a, int64_t lda, const real *b, int64_t ldb, real beta, real *c, int64_t ldc) {
    prepare(threads);
    int64_t side = m >= n ? m : n, grains = (side + GRAIN - 1) / GRAIN;
    if (threads < 2 || grains < 2 || (double)m * (double)n * (double)k < SPLIT_MIN) {
        multiply(a_is, b_is, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
        return;
    }
    int64_t shares = threads < grains ? threads : grains;
#pragma omp parallel for num_threads(threads) schedule(static, 1)
    for (int64_t share = 0; share < shares; share++) {
        int64_t from = grains * share / shares * GRAIN, to = grains * (share + 1) / shares * GRAIN;
        int64_t size = (to < side ? to : side) - from;
        if (m >= n)
            multiply(a_is, b_is, size, n, k, alpha, a + from * (a_is == RM_TRANSPOSED ? 1 : lda), lda, b, ldb, beta,
                     c + from * ldc, ldc);
        else
            multiply(a_is, b_is, m, size, k, alpha, a, lda, b + from * (b_is == RM_TRANSPOSED ? ldb : 1), ldb, beta,
                     c + from, ldc);
    }
}
