/* place_check.c: checks placements independently of place.c and shares no code with it. It walks through time with the
 * set of live buffers, ordered by address. A new buffer that overlaps any other overlaps a neighbour. Dead buffers are
 * removed when they are met. Main entries: rm_placement_check, rm_placement_check_aligned. */
#include "memory/place.h"

#include <stdlib.h>

#include "memory/bytes.h"
#include "memory/host.h"

/* ---- A set of numbers 0..n-1 with neighbour queries: bits, and bits that mark the non-empty words -------------- */

enum { LEVELS = 6 }; /* 64^6 numbers */

typedef struct {
    uint64_t *level[LEVELS];
} bits;

static bool bits_alloc(bits *set, int64_t n) {
    bool all = true;
    for (int l = 0; l < LEVELS; l++) {
        n = n / 64 + 1;
        set->level[l] = rm_calloc((size_t)n, sizeof(uint64_t));
        all = all && set->level[l];
    }
    return all;
}

static void bits_free(bits *set) {
    for (int l = 0; l < LEVELS; l++) rm_free(set->level[l]);
}

static void bits_add(bits *set, int64_t i) {
    for (int l = 0; l < LEVELS; l++, i /= 64) set->level[l][i / 64] |= 1ull << i % 64;
}

static void bits_remove(bits *set, int64_t i) {
    for (int l = 0; l < LEVELS; l++, i /= 64)
        if (set->level[l][i / 64] &= ~(1ull << i % 64)) return;
}

/* The nearest member below (up: above) i; -1: none. Climbs to the first level whose word has a member, then
 * descends. */
static int64_t bits_next(const bits *set, int64_t i, bool up) {
    int l = 0;
    for (; l < LEVELS; l++, i /= 64) {
        /* two shifts, since a shift by 64 is undefined */
        uint64_t beyond = up ? ~0ull << i % 64 << 1 : (1ull << i % 64) - 1;
        uint64_t word = set->level[l][i / 64] & beyond;
        if (!word) continue;
        i = i / 64 * 64 + (up ? __builtin_ctzll(word) : 63 - __builtin_clzll(word));
        break;
    }
    if (l == LEVELS) return -1;
    while (l-- > 0) {
        uint64_t word = set->level[l][i];
        i = i * 64 + (up ? __builtin_ctzll(word) : 63 - __builtin_clzll(word));
    }
    return i;
}

/* ---- The walk ----------------------------------------------------------------------------------- */

typedef struct {
    uint64_t offset;
    int64_t id;
} place;

static int by_offset(const void *a, const void *b) {
    const place *x = a, *y = b;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

static remat_status check_alone(const rm_lifetimes *lifetimes, const rm_placement *placement, uint64_t alignment) {
    for (int64_t i = 0; i < lifetimes->count; i++) {
        uint64_t offset = placement->offset[i], bytes = lifetimes->item[i].bytes;
        REQUIRE(i == 0 || lifetimes->item[i].first >= lifetimes->item[i - 1].first, INTERNAL,
                "buffer %lld begins before the one listed before it", (long long)i);
        REQUIRE(offset % alignment == 0, INTERNAL, "buffer %lld is placed at %llu, not a multiple of %llu",
                (long long)i, (unsigned long long)offset, (unsigned long long)alignment);
        REQUIRE(bytes <= placement->bytes && offset <= placement->bytes - bytes, INTERNAL,
                "buffer %lld, %llu bytes at %llu, does not lie inside the block of %llu bytes", (long long)i,
                (unsigned long long)bytes, (unsigned long long)offset, (unsigned long long)placement->bytes);
    }
    return REMAT_OK;
}

/* The nearest place to `rank` on one side whose buffer is alive at step `now`; -1: none. */
static int64_t living_neighbour(const rm_lifetimes *lifetimes, const place *order, bits *set, int64_t rank, int64_t now,
                                bool up) {
    int64_t other;
    while ((other = bits_next(set, rank, up)) >= 0 && lifetimes->item[order[other].id].last < now)
        bits_remove(set, other);
    return other;
}

static remat_status walk(const rm_lifetimes *lifetimes, const place *order, const int64_t *rank_of, bits *set) {
    const rm_lifetime *item = lifetimes->item;
    for (int64_t i = 0; i < lifetimes->count; i++) {
        int64_t rank = rank_of[i];
        int64_t below = living_neighbour(lifetimes, order, set, rank, item[i].first, false);
        int64_t above = living_neighbour(lifetimes, order, set, rank, item[i].first, true);
        int64_t other = -1;
        if (below >= 0 && order[below].offset + item[order[below].id].bytes > order[rank].offset) other = below;
        if (above >= 0 && order[rank].offset + item[i].bytes > order[above].offset) other = above;
        REQUIRE(other < 0, INTERNAL,
                "buffers %lld (at %llu, %llu bytes) and %lld (at %llu, %llu bytes) overlap, and both are alive at step "
                "%lld",
                (long long)order[other].id, (unsigned long long)order[other].offset,
                (unsigned long long)item[order[other].id].bytes, (long long)i, (unsigned long long)order[rank].offset,
                (unsigned long long)item[i].bytes, (long long)item[i].first);
        bits_add(set, rank);
    }
    return REMAT_OK;
}

remat_status rm_placement_check(const rm_lifetimes *lifetimes, const rm_placement *placement) {
    return rm_placement_check_aligned(lifetimes, placement, RM_ALIGN);
}

remat_status rm_placement_check_aligned(const rm_lifetimes *lifetimes, const rm_placement *placement,
                                        uint64_t alignment) {
    TRY(check_alone(lifetimes, placement, alignment));
    size_t n = (size_t)lifetimes->count;
    bits set = {{0}};
    place *order = rm_malloc(n * sizeof *order);
    int64_t *rank_of = rm_malloc(n * sizeof *rank_of);
    remat_status status = REMAT_OK;
    if (!bits_alloc(&set, (int64_t)n) || !order || !rank_of)
        status = rm_fail(REMAT_MEMORY, "out of host memory to check the offsets of %zu buffers", n);
    if (!status) {
        for (size_t i = 0; i < n; i++) order[i] = (place){placement->offset[i], (int64_t)i};
        qsort(order, n, sizeof *order, by_offset);
        for (size_t i = 0; i < n; i++) rank_of[order[i].id] = (int64_t)i;
        status = walk(lifetimes, order, rank_of, &set);
    }
    bits_free(&set);
    rm_free(order);
    rm_free(rank_of);
    return status;
}
