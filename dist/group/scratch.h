/* scratch.h: room for copies that an engine makes of buffers, kept from call to call, so that a training loop allocates
 * in its first step only. In host memory; group_nccl.c keeps its own on the GPU. */
#ifndef RM_SCRATCH_H
#define RM_SCRATCH_H

#include "engine/status.h"

typedef struct {
    void *block; /* aligned to 64 bytes */
    uint64_t bytes;
} rm_scratch; /* begins as zeros */

/* At least so many bytes; what was in it is lost. MEMORY leaves it empty. */
remat_status rm_scratch_take(rm_scratch *scratch, uint64_t bytes);
void rm_scratch_free(rm_scratch *scratch);

#endif
