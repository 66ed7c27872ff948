/* gemm.h: matrix products for ops, by the library that was measured fastest (docs/notes/cells.md). Row-major.
 *
 *   C (m,n) = alpha op(A) (m,k) op(B) (k,n) + beta C          op(X) = X or X^T
 *
 * `real` is the precision of the including file (real.h). gemm.c itself divides the work among `threads`, in a way
 * that depends on the shape and the number of threads alone, so the same call gives the same bits. Call it outside
 * of OpenMP parallel regions.
 */
#ifndef RM_GEMM_H
#define RM_GEMM_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/status.h"
#include "ops/real.h"

typedef enum { RM_PLAIN, RM_TRANSPOSED } rm_orientation;

#ifdef RM_REAL_DOUBLE
#define rm_gemm rm_gemm_f64
#define rm_gemm_library rm_gemm_library_f64
#define rm_gemm_begin rm_gemm_begin_f64
#define rm_gemm_end rm_gemm_end_f64
#define rm_gemm_alone rm_gemm_alone_f64
#endif

/* Opens the library and lets it allocate all its buffers. Call it once before products with up to this many threads. */
remat_status rm_gemm_prepare(int threads);

/* Name and version of the library, for `remat info`. */
const char *rm_gemm_library(void);

void rm_gemm(int threads, rm_orientation a_is, rm_orientation b_is, int64_t m, int64_t n, int64_t k, real alpha,
             const real *a, int64_t lda, const real *b, int64_t ldb, real beta, real *c, int64_t ldc);

/* For loops over many products, each on one thread. Call begin and end outside the parallel region, around the loop. */
bool rm_gemm_begin(int threads);
void rm_gemm_end(bool open);
void rm_gemm_alone(bool open, rm_orientation a_is, rm_orientation b_is, int64_t m, int64_t n, int64_t k, real alpha,
                   const real *a, int64_t lda, const real *b, int64_t ldb, real beta, real *c, int64_t ldc);

#endif
