/* openblas.h: OpenBLAS, opened when a CPU kernel first needs it. So programs that only plan, report or wait start
 * without it and without the threads that OpenBLAS starts when it is loaded. Only gemm.c uses this. */
#ifndef RM_OPENBLAS_H
#define RM_OPENBLAS_H

#include <cblas.h>

#include "engine/status.h"

typedef struct {
    __typeof__(cblas_sgemm) *sgemm;
    __typeof__(openblas_get_config) *config;
} rm_openblas_api;

/* Opens the library and lets it allocate buffers for `threads` concurrent callers. MISSING, MEMORY: the error says what
 * to do. */
remat_status rm_openblas_prepare(int threads);
const rm_openblas_api *rm_openblas(void); /* NULL until rm_openblas_prepare has succeeded */

/* Between these two, any number of threads may call products; OpenBLAS then works on the caller's thread alone. */
void rm_openblas_begin(void);
void rm_openblas_end(void);

#endif
