/* slices.h: sums in a fixed order over transports that have an order of their own, or do not know the type: ranks exchange
 * slices, each adds up its own (dist/group/reduce.h), and the sums are gathered. As many bytes travel as in a ring. */
#ifndef RM_SLICES_H
#define RM_SLICES_H

#include "dist/group/group.h"
#include "dist/group/scratch.h"

/* What a transport has to offer. exchange: row r of `to` becomes what rank r has in its row `rank` of `from`, `bytes` a row.
 * gather: row r of `to` becomes rank r's `from`. Nothing overlaps. */
typedef struct {
    remat_status (*exchange)(void *context, const void *from, void *to, uint64_t bytes);
    remat_status (*gather)(void *context, const void *from, void *to, uint64_t bytes);
    void *context;
    int32_t rank, size;
    rm_scratch *scratch;
} rm_slices;

/* Whether a reduction has to be made this way. */
bool rm_is_sliced(const rm_collective *what);

/* An all_reduce or reduce_scatter, with the bits of rm_reduce over all ranks. Scratch is bounded: 4.25 MiB (a row for every
 * rank, twice, and one for the sum), or with very many ranks rows of 64 elements; and a pointer for each rank. */
remat_status rm_slices_reduce(const rm_slices *slices, const rm_collective *what);

#endif
