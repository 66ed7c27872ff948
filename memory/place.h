/* place.h: lifetimes in, offsets out. Static packing of buffers with known lifetimes into one block (dynamic storage
 * allocation with everything known beforehand). */
#ifndef RM_PLACE_H
#define RM_PLACE_H

#include "memory/check.h"

typedef struct {
    uint64_t *offset;     /* of lifetimes->item[i], a multiple of RM_ALIGN */
    uint64_t bytes;       /* the block's size: the largest offset + size   */
    uint64_t floor_bytes; /* the most alive at once: the lower bound   */
} rm_placement;

/* The smallest block that is found with a bounded amount of work. Up to 1,000 buffers any byte is worth it; above, a
 * thousandth more than the floor is good enough; above 20,000 a hundredth is, and about a tenth of a second is spent. */
remat_status rm_place(const rm_lifetimes *lifetimes, rm_placement *out);
void rm_placement_free(rm_placement *placement);

/* A deliberately dumb second opinion: INTERNAL when two buffers alive together overlap, one is misaligned, or one lies
 * outside `bytes`. It reads offset and bytes alone. */
remat_status rm_placement_check(const rm_lifetimes *lifetimes, const rm_placement *placement);
/* For buffers that a session did not make: offsets need be multiples of `alignment` (at least 1) alone. */
remat_status rm_placement_check_aligned(const rm_lifetimes *lifetimes, const rm_placement *placement,
                                        uint64_t alignment);

#endif
