/* test_place.c: placements are valid (by two checks, one of them brute force) and as small as promised. */
#include "memory/place.h"

#include "memory/holes.h"
#include "memory/host.h"
#include "memory/pack.h"
#include "memory/strategy.h"
#include "tests/memory/chains.h"
#include "tests/memory/memory_test.h"
#include "tests/memory/plans.h"

/* Compares every pair of buffers: the definition itself. */
static bool overlap_by_brute_force(const rm_lifetimes *l, const uint64_t *offset) {
    for (int64_t i = 0; i < l->count; i++)
        for (int64_t k = 0; k < i; k++) {
            const rm_lifetime *a = &l->item[i], *b = &l->item[k];
            bool together = a->first <= b->last && b->first <= a->last;
            if (together && offset[i] < offset[k] + b->bytes && offset[k] < offset[i] + a->bytes) return true;
        }
    return false;
}

static void random_lifetimes(dice *d, int64_t count, int64_t steps, rm_lifetimes *out) {
    *out = (rm_lifetimes){.item = rm_calloc((size_t)count, sizeof *out->item), .count = count, .capacity = count};
    int64_t first = 0;
    for (int64_t i = 0; i < count; i++) {
        first += roll_below(d, 3) == 0 ? roll_below(d, steps) : 0;
        out->item[i] = (rm_lifetime){.kind = RM_BUFFER_SAVED,
                                     .index = (int32_t)i,
                                     .first = first,
                                     .last = first + roll_below(d, steps),
                                     .bytes = 64 * (1 + roll(d) % 40)};
    }
}

/* ---- Validity ----------------------------------------------------------------------------------- */

START_TEST(random_lifetimes_are_placed_validly) {
    dice d = {1};
    for (int round = 0; round < 400; round++) {
        rm_lifetimes l;
        random_lifetimes(&d, roll_below(&d, 120), 1 + roll_below(&d, 30), &l);
        rm_placement p, again;
        ck_ok(rm_place(&l, &p));
        ck_ok(rm_placement_check(&l, &p));
        ck_assert(!overlap_by_brute_force(&l, p.offset));
        uint64_t end = 0;
        for (int64_t i = 0; i < l.count; i++) {
            ck_assert_uint_eq(p.offset[i] % RM_ALIGN, 0);
            if (p.offset[i] + l.item[i].bytes > end) end = p.offset[i] + l.item[i].bytes;
        }
        ck_assert_uint_eq(p.bytes, end);
        ck_assert_uint_ge(p.bytes, p.floor_bytes);
        ck_ok(rm_place(&l, &again)); /* the same answer every time: plans are reproducible */
        ck_assert(p.bytes == again.bytes && !memcmp(p.offset, again.offset, (size_t)l.count * sizeof *p.offset));
        rm_placement_free(&p);
        rm_placement_free(&again);
        rm_lifetimes_free(&l);
    }
}
END_TEST

START_TEST(placement_check_agrees_with_brute_force) {
    dice d = {2};
    int overlaps = 0, fine = 0;
    for (int round = 0; round < 4000; round++) {
        rm_lifetimes l;
        random_lifetimes(&d, 1 + roll_below(&d, 12), 1 + roll_below(&d, 12), &l);
        rm_placement p = {.offset = rm_malloc((size_t)l.count * 8), .bytes = UINT64_MAX / 2};
        for (int64_t i = 0; i < l.count; i++) p.offset[i] = 64 * (roll(&d) % 300);
        bool overlap = overlap_by_brute_force(&l, p.offset);
        ck_assert_int_eq(rm_placement_check(&l, &p), overlap ? REMAT_INTERNAL : REMAT_OK);
        *(overlap ? &overlaps : &fine) += 1;
        rm_placement_free(&p);
        rm_lifetimes_free(&l);
    }
    ck_assert(overlaps > 500 && fine > 500);
}
END_TEST

START_TEST(errors_of_bad_placements_are_named) {
    rm_lifetime item[] = {{.first = 0, .last = 3, .bytes = 128}, {.first = 3, .last = 4, .bytes = 64}};
    rm_lifetimes l = {item, 2, 2};
    uint64_t offset[] = {0, 128};
    rm_placement p = {.offset = offset, .bytes = 192};
    ck_ok(rm_placement_check(&l, &p));
    offset[1] = 64;
    ck_fails(rm_placement_check(&l, &p), INTERNAL, "buffers 0 (at 0, 128 bytes) and 1 (at 64, 64 bytes) overlap");
    offset[1] = 130;
    ck_fails(rm_placement_check(&l, &p), INTERNAL, "not a multiple of 64");
    offset[1] = 192;
    ck_fails(rm_placement_check(&l, &p), INTERNAL, "does not lie inside");
    offset[1] = UINT64_MAX - 63;
    ck_fails(rm_placement_check(&l, &p), INTERNAL, "does not lie inside");
}
END_TEST

START_TEST(errors_of_bad_lifetimes_are_named) {
    rm_lifetime item[] = {{.first = 4, .last = 6, .bytes = 64}, {.first = 3, .last = 4, .bytes = 64}};
    rm_lifetimes l = {item, 2, 2};
    rm_placement p;
    ck_fails(rm_place(&l, &p), INVALID, "buffer 1 begins before");
    item[1].first = 5;
    ck_fails(rm_place(&l, &p), INVALID, "from step 5 to step 4");
    item[1].last = 5;
    item[1].bytes = UINT64_MAX;
    ck_fails(rm_place(&l, &p), INVALID, "2^60");
    item[1].bytes = 64;
    ck_ok(rm_place(&l, &p));
    rm_placement_free(&p);
    ck_assert_ptr_null(p.offset);
}
END_TEST

START_TEST(late_steps_and_unaligned_sizes_are_placed) {
    rm_lifetime item[] = {{.first = 0, .last = INT64_MAX - 1, .bytes = 1},
                          {.first = 5, .last = (int64_t)1 << 40, .bytes = 65},
                          {.first = ((int64_t)1 << 40) + 1, .last = INT64_MAX - 1, .bytes = 100}};
    rm_lifetimes l = {item, 3, 3};
    rm_placement p;
    ck_ok(rm_place(&l, &p));
    ck_assert_uint_eq(p.floor_bytes, 64 + 128);
    ck_assert_uint_eq(p.bytes, 192);
    ck_ok(rm_placement_check(&l, &p));
    rm_placement_free(&p);
}
END_TEST

START_TEST(every_failed_allocation_is_handled) {
    dice d = {3};
    rm_lifetimes l;
    random_lifetimes(&d, 200, 20, &l);
    for (int n = 1;; n++) {
        rm_placement p;
        rm_host_fail_at(n);
        remat_status status = rm_place(&l, &p);
        if (!status) {
            ck_assert_int_gt(n, 5);
            rm_host_fail_at(1);
            ck_assert_int_eq(rm_placement_check(&l, &p), REMAT_MEMORY);
            rm_host_fail_at(0);
            rm_placement_free(&p);
            break;
        }
        ck_assert_int_eq(status, REMAT_MEMORY);
        ck_assert_ptr_null(p.offset);
    }
    rm_lifetimes_free(&l);
}
END_TEST

/* ---- Holes -------------------------------------------------------------------------------------- */

/* Compared with a map of cells: lowest or highest place, joined holes, nothing lost. */
START_TEST(holes_agree_with_a_map_of_cells) {
    enum { CELLS = 300 };
    dice d = {4};
    rm_holes holes = {0};
    for (int round = 0; round < 50; round++) {
        bool used[CELLS] = {false};
        uint64_t at[CELLS], size[CELLS];
        int taken = 0;
        ck_assert(rm_holes_begin(&holes, CELLS));
        for (int step = 0; step < 600; step++) {
            if (taken > 0 && roll_below(&d, 5) < 2) {
                int64_t k = roll_below(&d, taken);
                ck_assert(rm_holes_give(&holes, at[k], size[k]));
                memset(used + at[k], 0, size[k]);
                at[k] = at[--taken];
                size[k] = size[taken];
                continue;
            }
            uint64_t bytes = 1 + roll(&d) % 20, got = 0;
            bool high = roll_below(&d, 2);
            int64_t expected = -1; /* the first hole that fits, from that end */
            for (int64_t c = 0; c + (int64_t)bytes <= CELLS && expected < 0; c++) {
                int64_t start = high ? CELLS - (int64_t)bytes - c : c;
                if (!memchr(used + start, true, bytes)) expected = start;
            }
            bool ok = (high ? rm_holes_take_high : rm_holes_take_low)(&holes, bytes, &got);
            ck_assert_int_eq(ok, expected >= 0);
            if (!ok) continue;
            ck_assert_int_eq((int64_t)got, expected);
            memset(used + got, 1, bytes);
            at[taken] = got;
            size[taken++] = bytes;
        }
    }
    rm_holes_free(&holes);
}
END_TEST

/* ---- Size --------------------------------------------------------------------------------------- */

/* Lifetimes like those of a recurrent net: small states, large saved blocks, scratch of about one saved block. Then
 * lifetimes like those of a deep net: states as large as saved blocks, and pieces that cross many cuts. */
static const struct {
    const char *what;
    chain chain;
    double promised;
} family[] = {
    {"like tiles", {.state_bytes = 4096, .saved_bytes = 1 << 20, .scratch_bytes = 1 << 20}, 1},
    {"like tiles, little scratch", {.state_bytes = 4096, .saved_bytes = 1 << 20, .scratch_bytes = 4096}, 1},
    {"like tiles that share",
     {.state_bytes = 65536, .saved_bytes = 1 << 20, .scratch_bytes = 1 << 19, .shares = true},
     1},
    {"unlike tiles",
     {.unlike = true, .state_bytes = 4096, .saved_bytes = 1 << 20, .scratch_bytes = 1 << 20, .lean = true},
     1.01},
    {"unlike, larger states",
     {.unlike = true, .state_bytes = 1 << 16, .saved_bytes = 1 << 20, .scratch_bytes = 1 << 20},
     1.01},
    {"unlike, largest states",
     {.unlike = true, .state_bytes = 1 << 20, .saved_bytes = 1 << 20, .scratch_bytes = 1 << 20, .lean = true},
     1.01},
    {"skips",
     {.unlike = true, .state_bytes = 1 << 18, .saved_bytes = 1 << 20, .scratch_bytes = 1 << 20, .skips = 3},
     1.01},
    {"many large skips",
     {.unlike = true,
      .state_bytes = 1 << 20,
      .saved_bytes = 1 << 20,
      .scratch_bytes = 1 << 19,
      .skips = 6,
      .lean = true},
     1.01},
};

static double worst, worst_spilled;
static int far_from_floor;
static void measure(const rm_lifetimes *l, double *most) {
    rm_placement p;
    ck_ok(rm_place(l, &p));
    ck_ok(rm_placement_check(l, &p));
    double ratio = p.floor_bytes ? (double)p.bytes / (double)p.floor_bytes : 1;
    if (ratio > *most) *most = ratio;
    rm_placement_free(&p);
}

/* Lifetimes with randomly spilled buffers: often no block near the floor exists. The reference is then the best block
 * found with twenty times the work. */
static void measure_spilled(const rm_lifetimes *l) {
    double ratio = 1;
    measure(l, &ratio);
    if (ratio <= 1.01) return;
    rm_pack_item *item = rm_malloc((size_t)l->count * sizeof *item);
    for (int64_t i = 0; i < l->count; i++)
        item[i] = (rm_pack_item){l->item[i].first, l->item[i].last, l->item[i].bytes};
    rm_packing best;
    rm_pack_limit limit = {.work = 400000000};
    ck_assert_int_ne(rm_pack_smallest(item, l->count, &(rm_pack_request){.limit = &limit}, &best), RM_PACK_NO_MEMORY);
    ratio *= (double)best.floor_bytes / (double)best.bytes;
    if (ratio > worst_spilled) worst_spilled = ratio;
    far_from_floor++;
    rm_free(best.offset);
    rm_free(item);
}

/* Judges and places the plan, then places it again with some buffers spilled to a second tier. */
static void measure_plan(dice *d, const rm_problem *problem, rm_plan *plan) {
    rm_verdict v;
    rm_lifetimes l = {0};
    ck_ok(rm_plan_check(problem, plan, &v, &l));
    measure(&l, &worst);
    spill_some(d, 2, 1 + roll_below(d, 30), &l);
    measure_spilled(&l);
    rm_lifetimes_free(&l);
    rm_plan_free(plan);
}

static void measure_strategies(dice *d, const rm_problem *problem) {
    for (int i = 0; i < rm_n_strategies; i++) {
        rm_plan plan = {0};
        rm_proposal proposal;
        rm_plan_request request = {.segments = 1 + roll_below(d, problem->n_stages)};
        ck_ok(rm_strategies[i]->propose(problem, &request, &plan, &proposal));
        measure_plan(d, problem, &plan);
    }
}

/* Nested plans, split in halves or anywhere, down to one stage or to a few kept ones. */
static void measure_nested(dice *d, const rm_problem *problem) {
    for (int k = 0; k < 4; k++) {
        rm_plan plan = {0};
        ck_ok(nested_plan(d, problem, k < 2 ? 1 : 2 + roll_below(d, 10), k % 2, &plan));
        measure_plan(d, problem, &plan);
    }
}

/* Makes `rounds` random chains and measures the plans that `plans` makes for them. */
static void measure_chains(chain c, uint64_t seed, int rounds, int64_t most_stages,
                           void (*plans)(dice *, const rm_problem *)) {
    dice d = {seed};
    for (int round = 0; round < rounds; round++) {
        rm_problem problem;
        c.n_stages = 1 + roll_below(&d, most_stages);
        ck_ok(chain_problem(&c, roll(&d), &problem));
        plans(&d, &problem);
        rm_problem_free(&problem);
    }
}

START_TEST(plans_are_placed_at_the_floor) {
    for (size_t i = 0; i < sizeof family / sizeof family[0]; i++) {
        worst = worst_spilled = 1, far_from_floor = 0;
        measure_chains(family[i].chain, 10 + i, 25, 40, measure_strategies);
        measure_chains(family[i].chain, 20 + i, 2, 2000, measure_strategies);
        measure_chains(family[i].chain, 30 + i, 25, 40, measure_nested);
        measure_chains(family[i].chain, 40 + i, 2, 1500, measure_nested);
        printf("%-28s worst block / floor: %.4f; spilled at random, / the best found: %.4f (%d)\n", family[i].what,
               worst, worst_spilled, far_from_floor);
        ck_assert_msg(worst <= family[i].promised && worst_spilled <= 1.02, "%s: %.4f, spilled %.4f", family[i].what,
                      worst, worst_spilled);
    }
}
END_TEST

RUN_TESTS("memory/place", random_lifetimes_are_placed_validly, placement_check_agrees_with_brute_force,
          errors_of_bad_placements_are_named, errors_of_bad_lifetimes_are_named,
          late_steps_and_unaligned_sizes_are_placed, every_failed_allocation_is_handled,
          holes_agree_with_a_map_of_cells, plans_are_placed_at_the_floor)
