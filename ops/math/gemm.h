/* gemm.h: matrix products for ops, on the library that was measured fastest (docs/notes/cells.md). Row-major.
 *
 *   C (m,n) = alpha op(A) (m,k) op(B) (k,n) + beta C          op(X) = X or X^T
 *
 * `real` is the precision of the file that includes it (real.h). Work is cut among `threads` by this file, in a way
 * that depends on the shape and the thread count alone, so the same call gives the same bits. Must be called outside
 * an OpenMP parallel region.
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

/* Once for all products with so many threads: opens the library, and takes all the room it will want. */
remat_status rm_gemm_prepare(int threads);

/* Which library it is, with its version: for `remat info`. */
const char *rm_gemm_library(void);

void rm_gemm(int threads, rm_orientation a_is, rm_orientation b_is, int64_t m, int64_t n, int64_t k, real alpha,
             const real *a, int64_t lda, const real *b, int64_t ldb, real beta, real *c, int64_t ldc);

/* For loops over many products, each on one thread: between begin and end, which stand outside the parallel region. */
bool rm_gemm_begin(int threads);
void rm_gemm_end(bool open);
void rm_gemm_alone(bool open, rm_orientation a_is, rm_orientation b_is, int64_t m, int64_t n, int64_t k, real alpha,
                   const real *a, int64_t lda, const real *b, int64_t ldb, real beta, real *c, int64_t ldc);

#endif
