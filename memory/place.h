/* place.h: assigns offsets to buffers with known lifetimes: static packing into one block (dynamic storage allocation
 * with everything known beforehand). */
#ifndef RM_PLACE_H
#define RM_PLACE_H

#include "memory/check.h"

typedef struct {
    uint64_t *offset;     /* of lifetimes->item[i], a multiple of RM_ALIGN */
    uint64_t bytes;       /* size of the block: the largest offset + size */
    uint64_t floor_bytes; /* the most bytes alive at once: a lower bound of `bytes` */
} rm_placement;

/* Finds a small block with a bounded amount of work. Up to 1,000 buffers it looks for the smallest block; above that it
 * accepts 0.1 % more than the floor; above 20,000 it accepts 1 % and takes about a tenth of a second. */
remat_status rm_place(const rm_lifetimes *lifetimes, rm_placement *out);
void rm_placement_free(rm_placement *placement);

/* An independent, deliberately simple check. INTERNAL if two buffers that are alive together overlap, a buffer is
 * misaligned, or one lies outside `bytes`. It reads only offset and bytes. */
remat_status rm_placement_check(const rm_lifetimes *lifetimes, const rm_placement *placement);
/* For buffers that a session did not make: offsets only have to be multiples of `alignment` (at least 1). */
remat_status rm_placement_check_aligned(const rm_lifetimes *lifetimes, const rm_placement *placement,
                                        uint64_t alignment);

#endif
