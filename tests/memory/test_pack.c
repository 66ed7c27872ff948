/* test_pack.c: the packing used by rm_place. It is optimal where everything can be tried, valid everywhere, and good on
 * instances with a known perfect answer, made by cutting up a full rectangle. */
#include "memory/pack.h"

#include "memory/host.h"
#include "memory/pack_critical.h"
#include "memory/place.h"
#include "tests/cases.h"
#include "tests/memory/chains.h"
#include "tests/memory/memory_test.h"

enum { MOST = 400 };

typedef struct {
    rm_pack_item item[MOST];
    int64_t n;
    uint64_t offset[MOST];
} instance;

static rm_pack_limit work(uint64_t work) { return (rm_pack_limit){.work = work}; }

static int by_first(const void *a, const void *b) {
    const rm_pack_item *x = a, *y = b;
    return (x->first > y->first) - (x->first < y->first);
}

static bool together(const rm_pack_item *a, const rm_pack_item *b) {
    return a->first <= b->last && b->first <= a->last;
}

/* Checks the definition of a placement. */
static void ck_placed(const instance *p, uint64_t capacity) {
    for (int64_t i = 0; i < p->n; i++) {
        ck_assert_uint_le(p->offset[i] + p->item[i].bytes, capacity);
        for (int64_t k = 0; k < i; k++)
            ck_assert(!together(&p->item[i], &p->item[k]) || p->offset[i] + p->item[i].bytes <= p->offset[k] ||
                      p->offset[k] + p->item[k].bytes <= p->offset[i]);
    }
}

static void random_instance(dice *d, int64_t n, int64_t steps, int64_t sizes, instance *out) {
    out->n = n;
    for (int64_t i = 0; i < n; i++) {
        int64_t first = roll_below(d, steps);
        out->item[i] =
            (rm_pack_item){first, first + roll_below(d, steps - first), (uint64_t)(1 + roll_below(d, sizes))};
    }
    qsort(out->item, (size_t)n, sizeof *out->item, by_first);
}

/* ---- Exact answers ------------------------------------------------------------------------------ */

/* The smallest possible block: in some order, every item lies on top of all earlier items that it overlaps in time. */
static uint64_t best_of_all(instance *p, int64_t placed, uint64_t mask, uint64_t so_far, uint64_t best) {
    if (so_far >= best) return best;
    if (placed == p->n) return so_far;
    for (int64_t i = 0; i < p->n; i++) {
        if (mask >> i & 1) continue;
        uint64_t at = 0;
        for (int64_t k = 0; k < p->n; k++)
            if (mask >> k & 1 && together(&p->item[i], &p->item[k]) && p->offset[k] + p->item[k].bytes > at)
                at = p->offset[k] + p->item[k].bytes;
        p->offset[i] = at;
        uint64_t top = at + p->item[i].bytes;
        best = best_of_all(p, placed + 1, mask | 1ull << i, top > so_far ? top : so_far, best);
    }
    return best;
}

/* The capacity is used up at every step: when items end, others with as many bytes begin. Even among these instances,
 * few need more than the floor. */
static void full_instance(dice *d, int64_t n, uint64_t capacity, instance *out) {
    rm_pack_item *item = out->item;
    int64_t step = 0, count = 0;
    for (uint64_t left = capacity; count < n; left = 0) {
        for (int64_t i = 0, alive = count; i < alive; i++)
            if (item[i].last == INT64_MAX && roll_below(d, 2)) {
                item[i].last = step - 1;
                left += item[i].bytes;
            }
        for (uint64_t bytes; left > 0; left -= bytes) {
            bytes = 1 + roll(d) % (left < 3 ? left : 3);
            item[count++] = (rm_pack_item){step, INT64_MAX, bytes};
        }
        step++;
    }
    for (int64_t i = 0; i < count; i++)
        if (item[i].last == INT64_MAX) item[i].last = step;
    out->n = count;
}

/* Tries every item at every height. */
static bool fits_somehow(instance *p, const uint64_t *above, int64_t i, uint64_t capacity) {
    if (i == p->n) return true;
    for (uint64_t at = above ? above[i] : 0; at + p->item[i].bytes <= capacity; at++) {
        bool free = true;
        for (int64_t k = 0; k < i && free; k++)
            free = !together(&p->item[i], &p->item[k]) || at + p->item[i].bytes <= p->offset[k] ||
                   p->offset[k] + p->item[k].bytes <= at;
        p->offset[i] = at;
        if (free && fits_somehow(p, above, i + 1, capacity)) return true;
    }
    return false;
}

/* Checks the answers of both searches for the smallest capacity and for one less. */
static void ck_exact(instance *p, uint64_t best) {
    uint64_t floor = rm_pack_floor(p->item, p->n);
    rm_pack_limit limit = work(RM_PACK_ENDLESS);
    ck_assert_int_eq(rm_pack_fit(p->item, NULL, p->n, best, &limit, p->offset), RM_PACK_FITS);
    ck_placed(p, best);
    ck_assert_int_eq(rm_pack_fit(p->item, NULL, p->n, best - 1, &limit, p->offset), RM_PACK_IMPOSSIBLE);
    rm_packing packing;
    ck_assert_int_eq(rm_pack_smallest(p->item, p->n, &(rm_pack_request){.limit = &limit}, &packing), RM_PACK_FITS);
    ck_assert_uint_eq(packing.bytes, best);
    ck_assert_uint_eq(packing.proved_bytes, best);
    ck_assert_uint_eq(packing.floor_bytes, floor);
    memcpy(p->offset, packing.offset, (size_t)p->n * sizeof *p->offset);
    ck_placed(p, best);
    rm_free(packing.offset);
    if (best == 1) return; /* a capacity of 0 means "none given" */
    rm_pack_request one_less = {.capacity = best - 1, .limit = &limit};
    ck_assert_int_eq(rm_pack_smallest(p->item, p->n, &one_less, &packing), RM_PACK_IMPOSSIBLE);
    rm_free(packing.offset);
}

START_TEST(search_is_exact_on_small_instances) {
    dice d = {1};
    int above_floor = 0, rounds = rm_cases(4000, 1000);
    for (int round = 0; round < rounds; round++) {
        instance p;
        if (round % 4 == 0) {
            random_instance(&d, 1 + roll_below(&d, 7), 2 + roll_below(&d, 8), 2 + roll_below(&d, 9), &p);
            ck_exact(&p, best_of_all(&p, 0, 0, 0, UINT64_MAX));
            continue;
        }
        uint64_t capacity = 4 + roll(&d) % 3;
        full_instance(&d, 14 + roll_below(&d, 14), capacity, &p);
        ck_assert_uint_eq(rm_pack_floor(p.item, p.n), capacity);
        while (!fits_somehow(&p, NULL, 0, capacity)) capacity++, above_floor++;
        ck_exact(&p, capacity);
    }
    ck_assert_msg(above_floor >= rounds / 400, "only %d instances need more than the floor", above_floor);
}
END_TEST

START_TEST(search_is_exact_with_lower_limits_of_items) {
    dice d = {2};
    int stricter = 0, rounds = rm_cases(4000, 1000);
    for (int round = 0; round < rounds; round++) {
        instance p;
        uint64_t above[MOST], best = 3 + roll(&d) % 3;
        full_instance(&d, 4 + roll_below(&d, 10), best, &p);
        for (int64_t i = 0; i < p.n; i++) above[i] = roll(&d) % 3 ? 0 : roll(&d) % 6;
        while (!fits_somehow(&p, above, 0, best)) best++;
        rm_pack_limit limit = work(RM_PACK_ENDLESS);
        ck_assert_int_eq(rm_pack_fit(p.item, above, p.n, best, &limit, p.offset), RM_PACK_FITS);
        ck_placed(&p, best);
        uint64_t top = 0; /* the height that a single item needs */
        for (int64_t i = 0; i < p.n; i++) {
            ck_assert_uint_ge(p.offset[i], above[i]);
            if (above[i] + p.item[i].bytes > top) top = above[i] + p.item[i].bytes;
        }
        stricter += best > top && best > rm_pack_floor(p.item, p.n);
        ck_assert_int_eq(rm_pack_fit(p.item, above, p.n, best - 1, &limit, p.offset), RM_PACK_IMPOSSIBLE);
    }
    ck_assert_msg(stricter > rounds * 3 / 40, "only %d instances are not trivial", stricter);
}
END_TEST

START_TEST(critical_search_never_gives_a_wrong_proof) {
    dice d = {3};
    int fits = 0, impossible = 0, rounds = rm_cases(3000, 1000);
    for (int round = 0; round < rounds; round++) {
        instance p;
        random_instance(&d, 1 + roll_below(&d, 7), 2 + roll_below(&d, 8), 2 + roll_below(&d, 9), &p);
        uint64_t best = best_of_all(&p, 0, 0, 0, UINT64_MAX), capacity = best - 1 + roll(&d) % 3;
        rm_pack_limit limit = work(RM_PACK_ENDLESS);
        rm_pack_outcome outcome = rm_pack_critical(p.item, p.n, capacity, &limit, p.offset);
        if (outcome == RM_PACK_FITS) ck_placed(&p, capacity);
        if (outcome == RM_PACK_IMPOSSIBLE) ck_assert_uint_lt(capacity, best);
        fits += outcome == RM_PACK_FITS;
        impossible += outcome == RM_PACK_IMPOSSIBLE;
    }
    ck_assert_msg(fits > rounds / 2 && impossible > rounds / 6, "%d fit, %d are impossible", fits, impossible);
}
END_TEST

/* ---- A rectangle, cut up ------------------------------------------------------------------------ */

/* n items that fill steps x bytes without a gap: repeatedly cuts one item in two, large ones more often. */
static void cut_up(dice *d, int64_t n, int64_t steps, uint64_t bytes, instance *out) {
    out->item[0] = (rm_pack_item){0, steps - 1, bytes};
    for (out->n = 1; out->n < n;) {
        rm_pack_item *old = &out->item[roll_below(d, out->n)], *rival = &out->item[roll_below(d, out->n)];
        if ((rival->last - rival->first + 1) * (int64_t)rival->bytes >
            (old->last - old->first + 1) * (int64_t)old->bytes)
            old = rival;
        rm_pack_item rest = *old;
        if (roll_below(d, 2)) {
            if (old->last == old->first) continue;
            old->last = old->first + roll_below(d, old->last - old->first);
            rest.first = old->last + 1;
        } else {
            if (old->bytes < 2) continue;
            old->bytes = 1 + roll(d) % (old->bytes - 1);
            rest.bytes -= old->bytes;
        }
        out->item[out->n++] = rest;
    }
}

static void shuffle(dice *d, instance *p) {
    for (int64_t i = p->n - 1; i > 0; i--) {
        int64_t k = roll_below(d, i + 1);
        rm_pack_item swap = p->item[i];
        p->item[i] = p->item[k];
        p->item[k] = swap;
    }
}

static void turn_round(instance *p, int64_t steps) {
    for (int64_t i = 0; i < p->n; i++)
        p->item[i] = (rm_pack_item){steps - 1 - p->item[i].last, steps - 1 - p->item[i].first, p->item[i].bytes};
}

/* Also shuffled (as far as the order of `first` allows) and with time reversed. */
START_TEST(cut_rectangle_is_packed_without_gaps) {
    static const int64_t sizes[] = {2, 5, 20, 50, 100, 150, 200, 300};
    dice d = {4};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
        for (int round = 0; round < 3; round++) {
            instance p;
            int64_t steps = 3 * sizes[s];
            cut_up(&d, sizes[s], steps, 1 << 16, &p);
            for (int way = 0; way < 3; way++) {
                if (way == 1) shuffle(&d, &p);
                if (way == 2) turn_round(&p, steps);
                qsort(p.item, (size_t)p.n, sizeof *p.item, by_first);
                ck_assert_uint_eq(rm_pack_floor(p.item, p.n), 1 << 16);
                rm_pack_limit limit = work(20000000000);
                ck_assert_msg(rm_pack_fit(p.item, NULL, p.n, 1 << 16, &limit, p.offset) == RM_PACK_FITS,
                              "%lld pieces, round %d, way %d", (long long)p.n, round, way);
                ck_placed(&p, 1 << 16);
                ck_assert_int_eq(rm_pack_fit(p.item, NULL, p.n, (1 << 16) - 1, &limit, p.offset), RM_PACK_IMPOSSIBLE);
            }
        }
}
END_TEST

/* With some pieces missing there is more than one solution, and the search has to try leaving gaps. Few steps, so that
 * it does get lost. */
START_TEST(cut_rectangle_with_missing_pieces_is_packed) {
    dice d = {11};
    int found = 0;
    for (int round = 0; round < 150; round++) {
        instance p;
        cut_up(&d, 60 + roll_below(&d, 60), 12 + roll_below(&d, 30), 200, &p);
        shuffle(&d, &p);
        p.n -= 1 + roll_below(&d, 3);
        qsort(p.item, (size_t)p.n, sizeof *p.item, by_first);
        rm_pack_limit limit = work(50000000);
        rm_pack_outcome outcome = rm_pack_fit(p.item, NULL, p.n, 200, &limit, p.offset);
        ck_assert_int_ne(outcome, RM_PACK_IMPOSSIBLE);
        if (outcome == RM_PACK_FITS) ck_placed(&p, 200);
        found += outcome == RM_PACK_FITS;
    }
    ck_assert_msg(found > 100, "%d of 150 were found", found);
}
END_TEST

/* Hundreds of items are alive at every moment, far from nested. The packing may fail, but must not claim a proof. */
START_TEST(bad_ground_gives_no_proof_of_impossibility) {
    dice d = {10};
    for (int round = 0; round < 20; round++) {
        instance p;
        cut_up(&d, MOST, 5, 1 << 12, &p);
        qsort(p.item, (size_t)p.n, sizeof *p.item, by_first);
        for (uint64_t capacity = 1 << 12; capacity < 5000; capacity += 300) {
            rm_pack_limit limit = work(100000000);
            rm_pack_outcome outcome = rm_pack_critical(p.item, p.n, capacity, &limit, p.offset);
            ck_assert_int_ne(outcome, RM_PACK_IMPOSSIBLE);
            if (outcome == RM_PACK_FITS) ck_placed(&p, capacity);
        }
    }
}
END_TEST

START_TEST(items_not_alive_together_share_bytes) {
    rm_pack_item item[] = {{0, 1, 6}, {1, 2, 6}, {2, 3, 6}, {3, 4, 6}, {0, 0, 6}, {4, 4, 6}};
    qsort(item, 6, sizeof *item, by_first);
    uint64_t offset[6];
    rm_pack_limit limit = work(RM_PACK_ENDLESS);
    ck_assert_uint_eq(rm_pack_floor(item, 6), 12);
    ck_assert_int_eq(rm_pack_fit(item, NULL, 6, 12, &limit, offset), RM_PACK_FITS);
    ck_assert_int_eq(rm_pack_fit(item, NULL, 6, 17, &limit, offset), RM_PACK_FITS); /* not a multiple of the unit */
    ck_assert_int_eq(rm_pack_fit(item, NULL, 6, 11, &limit, offset), RM_PACK_IMPOSSIBLE);
    ck_assert_int_eq(rm_pack_fit(item, NULL, 0, 0, &limit, offset), RM_PACK_FITS);
    ck_assert_int_eq(rm_pack_critical(item, 0, 0, &limit, offset), RM_PACK_FITS);
}
END_TEST

/* ---- Limits ------------------------------------------------------------------------------------- */

START_TEST(equal_work_gives_equal_answers) {
    dice d = {5};
    for (int round = 0; round < 20; round++) {
        instance p;
        cut_up(&d, 200, 40, 1000, &p); /* with few steps this is too hard to finish */
        qsort(p.item, (size_t)p.n, sizeof *p.item, by_first);
        rm_packing a, b;
        rm_pack_limit first = work(20000000), second = first;
        rm_pack_outcome outcome = rm_pack_smallest(p.item, p.n, &(rm_pack_request){.limit = &first}, &a);
        ck_assert_int_eq(rm_pack_smallest(p.item, p.n, &(rm_pack_request){.limit = &second}, &b), outcome);
        ck_assert_uint_eq(first.work, second.work);
        ck_assert_uint_eq(a.bytes, b.bytes);
        ck_assert(!memcmp(a.offset, b.offset, (size_t)p.n * sizeof *a.offset));
        memcpy(p.offset, a.offset, sizeof *a.offset * (size_t)p.n);
        ck_placed(&p, a.bytes); /* valid even if stopped */
        ck_assert(outcome == RM_PACK_FITS || (outcome == RM_PACK_STOPPED && first.work < 5000000));
        rm_free(a.offset);
        rm_free(b.offset);
    }
}
END_TEST

static bool count_down(void *context) { return --*(int *)context < 0; }

START_TEST(search_stops_when_stop_returns_true) {
    dice d = {6};
    instance p;
    cut_up(&d, 300, 40, 1000, &p);
    qsort(p.item, (size_t)p.n, sizeof *p.item, by_first);
    for (int looks = 0; looks < 200; looks += 1 + looks / 3) {
        int left = looks;
        rm_pack_limit limit = {.work = RM_PACK_ENDLESS, .stop = count_down, .context = &left};
        rm_packing packing;
        rm_pack_outcome outcome = rm_pack_smallest(p.item, p.n, &(rm_pack_request){.limit = &limit}, &packing);
        ck_assert(outcome == RM_PACK_STOPPED || packing.bytes == 1000);
        ck_assert_int_ge(left, -12); /* each caller on the way out may call it once more */
        memcpy(p.offset, packing.offset, (size_t)p.n * sizeof *p.offset);
        ck_placed(&p, packing.bytes);
        rm_free(packing.offset);
    }
}
END_TEST

/* So many units that heights do not fit into 32 bits: sizes are rounded up, and only the floor proves that a capacity
 * is impossible. */
START_TEST(enormous_sizes_are_packed) {
    dice d = {7};
    for (int round = 0; round < 200; round++) {
        instance p;
        random_instance(&d, 30, 20, 1 << 20, &p);
        for (int64_t i = 0; i < p.n; i++) p.item[i].bytes = (p.item[i].bytes << 33) + roll(&d) % 100;
        uint64_t floor = rm_pack_floor(p.item, p.n);
        rm_pack_limit limit = work(20000000);
        ck_assert_int_eq(rm_pack_fit(p.item, NULL, p.n, floor - 1, &limit, p.offset), RM_PACK_IMPOSSIBLE);
        ck_assert_int_ne(rm_pack_fit(p.item, NULL, p.n, floor, &limit, p.offset), RM_PACK_IMPOSSIBLE);
        limit = work(20000000);
        ck_assert_int_eq(rm_pack_fit(p.item, NULL, p.n, floor + floor / 20, &limit, p.offset), RM_PACK_FITS);
        ck_placed(&p, floor + floor / 20);
    }
}
END_TEST

START_TEST(every_failed_allocation_is_handled) {
    dice d = {8};
    instance p;
    cut_up(&d, 120, 30, 1000, &p);
    qsort(p.item, (size_t)p.n, sizeof *p.item, by_first);
    for (int n = 1;; n++) {
        rm_packing packing;
        rm_pack_limit limit = work(60000000);
        rm_host_fail_at(n);
        rm_pack_outcome outcome = rm_pack_smallest(p.item, p.n, &(rm_pack_request){.limit = &limit}, &packing);
        rm_host_fail_at(0);
        rm_free(packing.offset);
        if (outcome != RM_PACK_NO_MEMORY) {
            ck_assert_int_gt(n, 40);
            break;
        }
        ck_assert_ptr_null(packing.offset);
    }
}
END_TEST

/* ---- The placement check ------------------------------------------------------------------------ */

/* Changes any one field of a placement without gaps: the check must report it, and nothing else. */
START_TEST(placement_check_finds_any_wrong_field) {
    dice d = {9};
    instance p;
    cut_up(&d, 60, 300, 10000, &p);
    qsort(p.item, (size_t)p.n, sizeof *p.item, by_first);
    rm_pack_limit limit = work(RM_PACK_ENDLESS);
    ck_assert_int_eq(rm_pack_fit(p.item, NULL, p.n, 10000, &limit, p.offset), RM_PACK_FITS);
    rm_lifetime item[60];
    for (int64_t i = 0; i < p.n; i++)
        item[i] = (rm_lifetime){.first = p.item[i].first, .last = p.item[i].last, .bytes = p.item[i].bytes};
    rm_lifetimes l = {item, p.n, p.n};
    rm_placement placement = {.offset = p.offset, .bytes = 10000};
    ck_ok(rm_placement_check_aligned(&l, &placement, 1));
    placement.bytes = 9999;
    ck_fails(rm_placement_check_aligned(&l, &placement, 1), INTERNAL, "does not lie inside");
    placement.bytes = 10000;
    for (int64_t i = 0; i < p.n; i++) {
        rm_lifetime good = item[i];
        uint64_t at = p.offset[i];
        p.offset[i] = at + 1;
        ck_assert_int_eq(rm_placement_check_aligned(&l, &placement, 1), REMAT_INTERNAL);
        p.offset[i] = at - 1; /* wraps around at 0 */
        ck_assert_int_eq(rm_placement_check_aligned(&l, &placement, 1), REMAT_INTERNAL);
        p.offset[i] = at;
        item[i].bytes++;
        ck_assert_int_eq(rm_placement_check_aligned(&l, &placement, 1), REMAT_INTERNAL);
        item[i].bytes--;
        if (good.last < 299) {
            item[i].last++;
            ck_assert_int_eq(rm_placement_check_aligned(&l, &placement, 1), REMAT_INTERNAL);
            item[i] = good;
        }
        if (good.first > 0) { /* overlaps, or is out of order */
            item[i].first--;
            ck_assert_int_eq(rm_placement_check_aligned(&l, &placement, 1), REMAT_INTERNAL);
            item[i] = good;
        }
    }
    ck_ok(rm_placement_check_aligned(&l, &placement, 1));
}
END_TEST

RUN_TESTS("memory/pack", search_is_exact_on_small_instances, search_is_exact_with_lower_limits_of_items,
          critical_search_never_gives_a_wrong_proof, cut_rectangle_is_packed_without_gaps,
          cut_rectangle_with_missing_pieces_is_packed, bad_ground_gives_no_proof_of_impossibility,
          items_not_alive_together_share_bytes, equal_work_gives_equal_answers, search_stops_when_stop_returns_true,
          enormous_sizes_are_packed, every_failed_allocation_is_handled, placement_check_finds_any_wrong_field)
