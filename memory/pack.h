/* pack.h: intervals of time with a size, into one block of bytes: dynamic storage allocation with everything known
 * beforehand. It knows less than place.h, which is about a plan's buffers: no alignment, no kinds.
 *
 *   bytes ^  +-------+ +-----+          time is given, the height is to be found;
 *         |  |   2   | |  4  |          two items that share a step share no byte
 *         |  +--+----+-+---+-+
 *         |  | 0|    1     |
 *         +--+--+----------+-----> steps
 *
 *   pack_greedy.c     sweeps through time, and fits in an order that is not time's: fast, mostly good
 *   pack_search.c     an exact search: a placement inside a given capacity, or a proof that there is none
 *   pack_smallest.c   both together: the smallest block that can be found within a limit
 */
#ifndef RM_PACK_H
#define RM_PACK_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    int64_t first, last; /* alive in first..last, both included; 0 <= first <= last */
    uint64_t bytes;      /* 1 .. 2^60, and their sum below 2^61 */
} rm_pack_item;

/* How long to go on. The same work gives the same answer on every machine; a clock does not. */
typedef struct {
    uint64_t work;               /* what is left, in about nanoseconds; each function takes off what it used */
    bool (*stop)(void *context); /* asked every few milliseconds, true ends it; NULL: never */
    void *context;
} rm_pack_limit;

#define RM_PACK_ENDLESS UINT64_MAX /* work that is never used up */

static inline void rm_pack_spend(rm_pack_limit *limit, uint64_t work) {
    if (limit->work != RM_PACK_ENDLESS) limit->work -= work < limit->work ? work : limit->work;
}
static inline bool rm_pack_over(const rm_pack_limit *limit) {
    return limit->work == 0 || (limit->stop && limit->stop(limit->context));
}

typedef enum {
    RM_PACK_FITS,
    RM_PACK_IMPOSSIBLE, /* proved: no placement has this capacity */
    RM_PACK_STOPPED,    /* the limit came first */
    RM_PACK_NO_MEMORY,
} rm_pack_outcome;

/* The most alive at one step: no block can be smaller. 0 for n = 0. UINT64_MAX: out of host memory. Items are in order of
 * `first`, here and below. */
uint64_t rm_pack_floor(const rm_pack_item *item, int64_t n);

/* The greatest common divisor of all sizes; 0 for n = 0. */
uint64_t rm_pack_unit(const rm_pack_item *item, int64_t n);

/* offset[0..n-1] (the caller's) of a placement with offset + bytes <= capacity for all, when it FITS; undefined
 * otherwise. Item i lies at above[i] or higher; NULL: all may lie anywhere. The proof of IMPOSSIBLE rests on 64-bit hashes of states that failed: it errs once in about 2^64 / states
 * seen squared. A placement rests on nothing. Memory: up to 16 MiB, less for little work. */
rm_pack_outcome rm_pack_fit(const rm_pack_item *item, const uint64_t *above, int64_t n, uint64_t capacity,
                            rm_pack_limit *limit, uint64_t *offset);

typedef struct {
    uint64_t *offset; /* n */
    uint64_t bytes;   /* the block: the largest offset + size */
    uint64_t floor_bytes;
    uint64_t proved_bytes; /* no block is smaller: floor_bytes, or more where the search proved more */
} rm_packing;

typedef struct {
    uint64_t capacity; /* any block no larger than this will do, and no other; 0: the smallest there is */
    double slack;      /* 0.001: a thousandth above the floor is as good as the smallest */
    rm_pack_limit *limit;
} rm_pack_wish;

/* The smallest block found within the limit. FITS: as small as wished, or proved to be the smallest. IMPOSSIBLE: no block
 * of `capacity` is enough, proved. STOPPED: neither. After all of these there is a placement in *out, the best found; its
 * offsets are the caller's to rm_free. After NO_MEMORY there is none. */
rm_pack_outcome rm_pack_smallest(const rm_pack_item *item, int64_t n, const rm_pack_wish *wish, rm_packing *out);

#endif
