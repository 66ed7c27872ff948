/* scratch.h: memory for an engine's copies of buffers, kept between calls, so that a training loop allocates only in
 * its first step. It is host memory; group_nccl.c has its own on the GPU. */
#ifndef RM_SCRATCH_H
#define RM_SCRATCH_H

#include "engine/status.h"

typedef struct {
    void *block; /* aligned to 64 bytes */
    uint64_t bytes;
} rm_scratch; /* starts zeroed */

/* Provides at least so many bytes; earlier contents are lost. MEMORY leaves it empty. */
remat_status rm_scratch_take(rm_scratch *scratch, uint64_t bytes);
void rm_scratch_free(rm_scratch *scratch);

#endif
