/* pack.h: packs time intervals with sizes into one block of bytes: dynamic storage allocation with everything known
 * beforehand. Unlike place.h, which places a plan's buffers, it knows neither alignment nor kinds of buffers.
 *
 *   bytes ^  +-------+ +-----+          time is given, offsets are to be found;
 *         |  |   2   | |  4  |          two items that share a step share no byte
 *         |  +--+----+-+---+-+
 *         |  | 0|    1     |
 *         +--+--+----------+-----> steps
 *
 *   pack_greedy.c     sweeps through time, and fits in other orders: fast, mostly good
 *   pack_search.c     an exact search: a placement within a given capacity, or a proof that there is none
 *   pack_smallest.c   combines both: the smallest block that it can find within a work limit
 */
#ifndef RM_PACK_H
#define RM_PACK_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    int64_t first, last; /* alive in steps first..last inclusive; 0 <= first <= last */
    uint64_t bytes;      /* 1 .. 2^60; the sum of all is below 2^61 */
} rm_pack_item;

/* When to stop. A limit on counted work gives the same answer on every machine; a clock would not. */
typedef struct {
    /* remaining work, in units of about a nanosecond; each function subtracts what it used */
    uint64_t work;
    bool (*stop)(void *context); /* called every few milliseconds; returning true stops the search; NULL: never */
    void *context;
} rm_pack_limit;

#define RM_PACK_ENDLESS UINT64_MAX /* an unlimited amount of work */

static inline void rm_pack_spend(rm_pack_limit *limit, uint64_t work) {
    if (limit->work != RM_PACK_ENDLESS) limit->work -= work < limit->work ? work : limit->work;
}
static inline bool rm_pack_over(const rm_pack_limit *limit) {
    return limit->work == 0 || (limit->stop && limit->stop(limit->context));
}

typedef enum {
    RM_PACK_FITS,
    RM_PACK_IMPOSSIBLE, /* proved: no placement fits this capacity */
    RM_PACK_STOPPED,    /* the limit was reached first */
    RM_PACK_NO_MEMORY,
} rm_pack_outcome;

/* The most bytes alive at one step: no block can be smaller. Returns 0 for n = 0 and UINT64_MAX if out of host memory.
 * Here and below, items are sorted by `first`. */
uint64_t rm_pack_floor(const rm_pack_item *item, int64_t n);

/* The greatest common divisor of all sizes; 0 for n = 0. */
uint64_t rm_pack_unit(const rm_pack_item *item, int64_t n);

/* When the result is FITS, fills offset[0..n-1] (the caller's array) with a placement in which offset + bytes <=
 * capacity for all items; otherwise the contents are undefined. Item i lies at above[i] or higher; NULL: anywhere. A
 * proof of IMPOSSIBLE relies on 64-bit hashes of failed states and is wrong with a probability of about (states seen)^2
 * / 2^64; a placement is always right. Memory: up to 16 MiB, less for little work. */
rm_pack_outcome rm_pack_fit(const rm_pack_item *item, const uint64_t *above, int64_t n, uint64_t capacity,
                            rm_pack_limit *limit, uint64_t *offset);

typedef struct {
    uint64_t *offset; /* length n */
    uint64_t bytes;   /* size of the block: the largest offset + size */
    uint64_t floor_bytes;
    uint64_t proved_bytes; /* proved lower bound: floor_bytes, or more if the search proved more */
} rm_packing;

typedef struct {
    uint64_t capacity; /* accept any block up to this size, and no larger one; 0: find the smallest */
    double slack;      /* 0.001: accept a block that is 0.1 % above the floor as the smallest */
    rm_pack_limit *limit;
} rm_pack_request;

/* Finds the smallest block within the limit. FITS: as small as requested, or proved to be the smallest. IMPOSSIBLE:
 * proved that no block of `capacity` is enough. STOPPED: neither. In all three cases *out holds the best placement
 * found; the caller frees its offsets with rm_free. After NO_MEMORY there is none. */
rm_pack_outcome rm_pack_smallest(const rm_pack_item *item, int64_t n, const rm_pack_request *request, rm_packing *out);

#endif
