/* slices.h: sums in a fixed order over transports that have their own order, or do not support the type. Ranks exchange
 * slices, each adds up its own (dist/group/reduce.h), and the sums are gathered. The number of bytes sent is the same
 * as with a ring. */
#ifndef RM_SLICES_H
#define RM_SLICES_H

#include "dist/group/group.h"
#include "dist/group/scratch.h"

/* The operations that a transport provides. exchange: row r of `to` becomes row `rank` of rank r's `from`; `bytes` per
 * row. gather: row r of `to` becomes rank r's `from`. Nothing overlaps. */
typedef struct {
    remat_status (*exchange)(void *context, const void *from, void *to, uint64_t bytes);
    remat_status (*gather)(void *context, const void *from, void *to, uint64_t bytes);
    void *context;
    int32_t rank, size;
    rm_scratch *scratch;
} rm_slices;

/* Whether a reduction has to be made in this way. */
bool rm_is_sliced(const rm_collective *what);

/* An all_reduce or reduce_scatter, with the bits of rm_reduce over all ranks. Scratch memory is bounded: 4.25 MiB (two
 * rows for each rank, and one for the sum), or rows of 64 elements with very many ranks; and one pointer per rank. */
remat_status rm_slices_reduce(const rm_slices *slices, const rm_collective *what);

#endif
