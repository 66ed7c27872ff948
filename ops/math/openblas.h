/* openblas.h: OpenBLAS, opened when something on the CPU first needs it: what plans, reports or waits starts without, and has
 * none of the threads that OpenBLAS starts when it is loaded. Only gemm.c uses it. */
#ifndef RM_OPENBLAS_H
#define RM_OPENBLAS_H

#include <cblas.h>

#include "engine/status.h"

typedef struct {
    __typeof__(cblas_sgemm) *sgemm;
    __typeof__(openblas_get_config) *config;
} rm_openblas_api;

/* Opens it, and takes room for as many callers as there will be at once. MISSING, MEMORY: with what to do about it. */
remat_status rm_openblas_prepare(int threads);
const rm_openblas_api *rm_openblas(void); /* NULL until that has succeeded once */

/* Products are made between these two, from any number of threads: OpenBLAS then works on the caller's thread alone. */
void rm_openblas_begin(void);
void rm_openblas_end(void);

#endif
