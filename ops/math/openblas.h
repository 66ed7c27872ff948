/* openblas.h: OpenBLAS, opened when a CPU kernel first needs it. So programs that only plan, report or wait start
 * without it and without the threads that OpenBLAS starts when it is loaded. Only gemm.c uses this. */
#ifndef RM_OPENBLAS_H
#define RM_OPENBLAS_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/status.h"

/* Opens the library and lets it allocate buffers for `threads` concurrent callers. OK also if it is not on this machine
 * and the build does not expect it. MISSING, MEMORY: the error says what to do. */
remat_status rm_openblas_prepare(int threads);
bool rm_openblas_is_open(void);

/* If it is open. c (m,n) = alpha a b + beta c, row-major; a is (m,k), or (k,m) if it is transposed, and so on. */
void rm_openblas_sgemm(bool a_transposed, bool b_transposed, int64_t m, int64_t n, int64_t k, float alpha,
                       const float *a, int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc);
const char *rm_openblas_config(void);

/* Between these two, any number of threads may call products; OpenBLAS then works on the caller's thread alone. */
void rm_openblas_begin(void);
void rm_openblas_end(void);

#endif
