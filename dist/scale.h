/* scale.h: means over transports that only sum, and room for copies: what the engines mpi and gloo share. */
#ifndef RM_SCALE_H
#define RM_SCALE_H

#include "dist/group.h"

/* Kept from call to call, so that a training loop allocates in its first step only. */
typedef struct {
    void *block;
    uint64_t bytes;
} rm_scratch;

remat_status rm_scratch_take(rm_scratch *scratch, uint64_t bytes); /* at least; what was in it is lost */
void rm_scratch_free(rm_scratch *scratch);

/* to = what this rank contributes to the sum: in, or fl32(in * fl32(1/size)) for a mean. to may be in. */
void rm_contribute(const rm_collective *what, int32_t size, void *to);

#endif
