/* place.c: places a plan's buffers in one block (place.h), aligned. The work is counted and bounded, so that the same
 * plan is placed in the same way on every machine. pack.h and its implementation find the placement. Main entry:
 * rm_place. rm_placement_check, the independent check, is in place_check.c. */
#include "memory/place.h"

#include "memory/bytes.h"
#include "memory/host.h"
#include "memory/pack.h"

#define SMALL_PLAN 1000    /* buffers; for plans above this size ... */
#define LARGE_SLACK 0.001  /* ... a block 0.1 % above the floor is good enough */
#define MOST_WORK 20000000 /* units of about a nanosecond */
#define WORK_PER_BUFFER 10000
#define LARGE_PLAN                                                                                                     \
    20000 /* buffers; a single sweep through such a plan is slow, so the first good placement is accepted */
#define LARGE_PLAN_SLACK 0.01
#define LARGE_PLAN_WORK 100000000 /* a tenth of a second */
#define LARGE_PLAN_WORK_PER_BUFFER 200

static remat_status require_sense(const rm_lifetimes *lifetimes) {
    REQUIRE(lifetimes->count < INT32_MAX, INVALID, "%lld buffers are too many to be placed",
            (long long)lifetimes->count);
    uint64_t sum = 0;
    for (int64_t i = 0; i < lifetimes->count; i++) {
        const rm_lifetime *item = &lifetimes->item[i];
        REQUIRE(item->first >= 0 && item->first <= item->last, INVALID, "buffer %lld lives from step %lld to step %lld",
                (long long)i, (long long)item->first, (long long)item->last);
        REQUIRE(i == 0 || item->first >= item[-1].first, INVALID, "buffer %lld begins before the one listed before it",
                (long long)i);
        REQUIRE(item->bytes > 0, INVALID, "buffer %lld is empty; leave it out", (long long)i);
        REQUIRE(item->bytes < (uint64_t)1 << 60 && (sum += rm_align_up(item->bytes)) < (uint64_t)1 << 61, INVALID,
                "the buffers' bytes add up to more than 2^60");
    }
    return REMAT_OK;
}

static uint64_t work_for(int64_t n) {
    return n > LARGE_PLAN ? LARGE_PLAN_WORK + LARGE_PLAN_WORK_PER_BUFFER * (uint64_t)n
                          : MOST_WORK + WORK_PER_BUFFER * (uint64_t)n;
}

static double slack_for(int64_t n) { return n > LARGE_PLAN ? LARGE_PLAN_SLACK : n > SMALL_PLAN ? LARGE_SLACK : 0; }

remat_status rm_place(const rm_lifetimes *lifetimes, rm_placement *out) {
    *out = (rm_placement){0};
    TRY(require_sense(lifetimes));
    int64_t n = lifetimes->count;
    rm_pack_item *item = rm_malloc((size_t)n * sizeof *item);
    rm_packing packing = {0};
    rm_pack_outcome outcome = RM_PACK_NO_MEMORY;
    if (item) {
        for (int64_t i = 0; i < n; i++)
            item[i] = (rm_pack_item){lifetimes->item[i].first, lifetimes->item[i].last,
                                     rm_align_up(lifetimes->item[i].bytes)};
        rm_pack_limit limit = {.work = work_for(n)};
        rm_pack_request request = {.slack = slack_for(n), .limit = &limit};
        outcome = rm_pack_smallest(item, n, &request, &packing);
    }
    rm_free(item);
    if (outcome == RM_PACK_NO_MEMORY) FAIL(MEMORY, "out of host memory to place %lld buffers", (long long)n);
    *out = (rm_placement){.offset = packing.offset, .bytes = packing.bytes, .floor_bytes = packing.floor_bytes};
    return REMAT_OK;
}

void rm_placement_free(rm_placement *placement) {
    rm_free(placement->offset);
    *placement = (rm_placement){0};
}
