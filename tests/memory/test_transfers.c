/* test_transfers.c: plans that use the second tier are acted out on values, with a channel that does each transfer as late
 * as the table of waits lets it, and another that does each at once: both must end right. No step waits for more than the
 * judge says it must. Copies lie apart. */
#include "memory/transfers.h"

#include "memory/bytes.h"
#include "memory/check.h"
#include "memory/family.h"
#include "memory/host.h"
#include "tests/memory/chains.h"
#include "tests/memory/memory_test.h"

enum { STAGES = 40, PIECES = 200, TRANSFERS = 8 * STAGES };

/* What memory holds. 0 is rubbish; a right piece is 1000 + its number, a right block 1 + the option that made it. */
typedef struct {
    const rm_problem *problem;
    uint64_t piece[PIECES], block[STAGES];
    uint64_t piece_copy[2][STAGES + 1][PIECES], block_copy[STAGES];
    int uses[PIECES];
    rm_step given[TRANSFERS];
    bool moves[TRANSFERS][PIECES]; /* the pieces it reads, or fetches */
    int64_t n_given, n_done;
} theatre;

static const rm_lists *lists_of(const rm_problem *p, int object) {
    return object == RM_STATE ? &p->state : object == RM_SAVED ? &p->saved : &p->dstate;
}

/* The k-th piece of an object; -1 behind the last. */
static int64_t piece_of(const theatre *a, int object, int64_t c, int64_t k) {
    const rm_lists *lists = lists_of(a->problem, object);
    return lists->start[c] + k < lists->start[c + 1] ? lists->item[lists->start[c] + k] : -1;
}
static bool is_empty(const theatre *a, int64_t id) { return a->problem->piece[id].bytes == 0; }

static void do_transfers_until(theatre *a, int64_t number) {
    for (; a->n_done < number; a->n_done++) {
        rm_step step = a->given[a->n_done];
        int64_t c = step.index;
        for (int64_t id = 0; id < a->problem->n_pieces; id++) {
            uint64_t *copy = &a->piece_copy[step.object][c][id];
            if (!a->moves[a->n_done][id]) continue;
            *(step.verb == RM_SAVE ? copy : &a->piece[id]) = step.verb == RM_SAVE ? a->piece[id] : *copy;
        }
        if (step.object == RM_SAVED && step.verb == RM_SAVE) a->block_copy[c] = a->block[c];
        if (step.object == RM_SAVED && step.verb == RM_LOAD) a->block[c] = a->block_copy[c];
    }
}

static void give(theatre *a, rm_step step) {
    ck_assert_int_lt(a->n_given, TRANSFERS);
    a->given[a->n_given] = step;
    for (int64_t k = 0, id; (id = piece_of(a, step.object, step.index, k)) >= 0; k++) {
        a->moves[a->n_given][id] = step.verb == RM_SAVE || a->uses[id] == 0;
        a->uses[id] += step.verb == RM_LOAD;
    }
    a->n_given++;
}

/* A transfer that may be under way just now moves this piece, or this stage's block. */
static bool piece_moves(const theatre *a, int64_t id) {
    for (int64_t i = a->n_done; i < a->n_given; i++)
        if (a->moves[i][id] && !is_empty(a, id)) return true;
    return false;
}
static bool block_moves(const theatre *a, int64_t s) {
    for (int64_t i = a->n_done; i < a->n_given; i++)
        if (a->given[i].object == RM_SAVED && a->given[i].index == s) return true;
    return false;
}

static bool is_right(const theatre *a, int object, int64_t c) {
    for (int64_t k = 0, id; (id = piece_of(a, object, c, k)) >= 0; k++)
        if (!is_empty(a, id) && a->piece[id] != 1000 + (uint64_t)id) return false;
    return true;
}

/* False: somebody copies it, or fetches it, while it is written. */
static bool make(theatre *a, int object, int64_t c) {
    bool undisturbed = true;
    for (int64_t k = 0, id; (id = piece_of(a, object, c, k)) >= 0; k++) {
        undisturbed = undisturbed && !piece_moves(a, id);
        a->piece[id] = 1000 + (uint64_t)id;
        a->uses[id]++;
    }
    return undisturbed;
}

/* False: somebody still copies it, or will yet write into memory that is somebody else's by then. */
static bool end(theatre *a, int object, int64_t c) {
    bool undisturbed = object != RM_SAVED || !block_moves(a, c);
    for (int64_t k = 0, id; (id = piece_of(a, object, c, k)) >= 0; k++) {
        if (--a->uses[id] > 0) continue;
        undisturbed = undisturbed && !piece_moves(a, id);
        a->piece[id] = 0;
    }
    if (object == RM_SAVED) a->block[c] = 0;
    return undisturbed;
}

static bool act(theatre *a, rm_step step) {
    int64_t c = step.index;
    switch (step.verb) {
    case RM_FREE:
        return end(a, step.object, c);
    case RM_RUN_FORWARD:
        if (!is_right(a, RM_STATE, c) || !make(a, RM_STATE, c + 1)) return false;
        if (step.option == RM_DROP) return true;
        a->block[c] = 1 + (uint64_t)step.option;
        return make(a, RM_SAVED, c);
    case RM_RUN_BACKWARD:
        return is_right(a, RM_STATE, c) && is_right(a, RM_SAVED, c) && is_right(a, RM_DSTATE, c + 1) && a->block[c] &&
               make(a, RM_DSTATE, c);
    default:
        give(a, step);
        return true;
    }
}

/* `late`: transfers are done only when a step waits for them; else as soon as they are given. Either channel may be. */
static bool plays_well(const rm_problem *problem, const rm_plan *plan, const rm_transfers *transfers, bool late) {
    theatre *a = calloc(1, sizeof *a);
    a->problem = problem;
    bool fine = make(a, RM_STATE, 0) && make(a, RM_DSTATE, problem->n_stages);
    for (int64_t i = 0; i < plan->n_steps && fine; i++) {
        ck_assert_int_le(transfers->wait[i], a->n_given);
        do_transfers_until(a, late ? transfers->wait[i] : a->n_given);
        fine = act(a, plan->step[i]);
    }
    free(a);
    return fine;
}

/* ---- By the clock --------------------------------------------------------------------------------- */

/* The wait that the table makes of the plan, step by step. */
static uint64_t waits(const rm_problem *p, const rm_plan *plan, const rm_transfers *transfers) {
    theatre *a = calloc(1, sizeof *a);
    a->problem = p;
    uint64_t done[TRANSFERS + 1] = {0}, now = 0, free_at = 0, wait = 0;
    int8_t option[STAGES] = {0};
    make(a, RM_STATE, 0);
    make(a, RM_DSTATE, p->n_stages);
    for (int64_t i = 0; i < plan->n_steps; i++) {
        rm_step step = plan->step[i];
        uint64_t ready = done[transfers->wait[i]];
        wait += ready > now ? ready - now : 0;
        now = ready > now ? ready : now;
        const rm_stage *stage = &p->stage[step.index < p->n_stages ? step.index : 0];
        do_transfers_until(a, a->n_given);
        act(a, step);
        if (step.verb == RM_RUN_FORWARD && step.option != RM_DROP) option[step.index] = step.option;
        if (step.verb == RM_RUN_FORWARD)
            now += step.option == RM_DROP ? stage->drop.time_ns : stage->option[step.option].forward.time_ns;
        if (step.verb == RM_RUN_BACKWARD) now += stage->option[option[step.index]].backward.time_ns;
        if (step.verb != RM_SAVE && step.verb != RM_LOAD) continue;
        uint64_t bytes = step.object == RM_SAVED ? rm_align_up(stage->option[option[step.index]].saved_bytes) : 0;
        for (int64_t id = 0; id < p->n_pieces; id++) bytes += a->moves[a->n_given - 1][id] ? p->piece[id].bytes : 0;
        uint64_t rate = step.verb == RM_SAVE ? p->tier.save_bytes_per_s : p->tier.load_bytes_per_s;
        if (bytes) free_at = (free_at > now ? free_at : now) + p->tier.latency_ns + bytes * 1000000000u / rate;
        wait += bytes * p->tier.cost_ns_per_mib >> 20;
        now += bytes * p->tier.cost_ns_per_mib >> 20;
        done[a->n_given] = bytes ? free_at : done[a->n_given - 1];
    }
    free(a);
    return wait;
}

/* ---- Plans ---------------------------------------------------------------------------------------- */

static void some_chain(uint64_t seed, rm_problem *problem) {
    chain c = {.n_stages = 1 + (int64_t)(seed % 13),
               .unlike = seed % 2,
               .state_bytes = seed % 3 * 128,
               .saved_bytes = 4000,
               .scratch_bytes = 999,
               .skips = (int)(seed % 4),
               .shares = seed % 5 < 2,
               .lean = seed % 7 < 3};
    ck_ok(chain_problem(&c, seed, problem));
    problem->tier = (rm_tier){1000000ull << seed % 14, 700000ull << seed % 15, seed % 2 ? 0 : 100, seed % 3 << 15, 0};
}

/* Out after the forward run, some of it a little later; in again before the backward run, some of it a little earlier. */
static void spill_some(dice *d, const rm_problem *problem, rm_plan *plan) {
    bool away[2][STAGES] = {{false}}, late[2][STAGES] = {{false}};
    for (int64_t s = 0; s < problem->n_stages; s++) {
        ck_ok(rm_plan_run_forward(plan, s, (int)roll_below(d, problem->stage[s].n_options)));
        for (int o = 0; o < 2; o++) {
            if (s > 0 && late[o][s - 1]) ck_ok(rm_plan_free_object(plan, (rm_object)o, s - 1));
            if (!roll_below(d, 3)) continue;
            away[o][s] = true;
            ck_ok(rm_plan_save(plan, (rm_object)o, s));
            late[o][s] = s + 1 < problem->n_stages && roll_below(d, 2);
            if (!late[o][s]) ck_ok(rm_plan_free_object(plan, (rm_object)o, s));
        }
    }
    ck_ok(rm_plan_free_object(plan, RM_STATE, problem->n_stages));
    for (int64_t s = problem->n_stages - 1; s >= 0; s--) {
        for (int64_t t = s; t >= 0 && t >= s - roll_below(d, 3); t--)
            for (int o = 0; o < 2; o++) {
                if (away[o][t]) ck_ok(rm_plan_load(plan, (rm_object)o, t));
                away[o][t] = false;
            }
        ck_ok(rm_plan_run_backward(plan, s));
        ck_ok(rm_plan_free_object(plan, RM_SAVED, s));
        ck_ok(rm_plan_free_object(plan, RM_STATE, s));
        ck_ok(rm_plan_free_object(plan, RM_DSTATE, s + 1));
    }
    ck_ok(rm_plan_free_object(plan, RM_DSTATE, 0));
}

static void copies_lie_apart(const rm_problem *p, const rm_transfers *t, const rm_verdict *v) {
    uint64_t at[2 * STAGES + 1], n = 0;
    for (int64_t c = 0; c <= p->n_stages; c++)
        if (t->state_at[c] != RM_NO_COPY) at[n++] = t->state_at[c];
    for (int64_t s = 0; s < p->n_stages; s++)
        if (t->saved_at[s] != RM_NO_COPY) at[n++] = t->saved_at[s];
    for (uint64_t i = 0; i < n; i++) {
        ck_assert_uint_eq(at[i] % RM_TRANSFER_ALIGN, 0);
        ck_assert_uint_le(at[i], t->room_bytes);
    }
    ck_assert_uint_ge(t->room_bytes, v->save_bytes);
    ck_assert_uint_lt(t->room_bytes, v->save_bytes + (n + 1) * RM_TRANSFER_ALIGN);
}

static void examine(uint64_t seed, const rm_problem *problem, const rm_plan *plan) {
    rm_verdict v;
    rm_transfers t;
    ck_ok(rm_plan_check(problem, plan, &v, NULL));
    ck_ok(rm_transfers_find(problem, plan, &t));
    if (t.count) {
        ck_assert_msg(plays_well(problem, plan, &t, false), "seed %d, a quick channel", (int)seed);
        ck_assert_msg(plays_well(problem, plan, &t, true), "seed %d, a slow channel", (int)seed);
        ck_assert_uint_eq(waits(problem, plan, &t), v.wait_ns);
        copies_lie_apart(problem, &t, &v);
    }
    rm_transfers_free(&t);
    ck_assert(!t.wait && !t.count);
}

START_TEST(waits_are_enough_and_no_more) {
    dice d = {3};
    for (uint64_t seed = 0; seed < 400; seed++) {
        rm_problem problem;
        some_chain(seed, &problem);
        for (int i = 0; i < 10; i++) {
            rm_plan plan = {0};
            spill_some(&d, &problem, &plan);
            examine(seed, &problem, &plan);
            rm_plan_free(&plan);
        }
        rm_problem_free(&problem);
    }
}
END_TEST

START_TEST(whole_families) {
    for (uint64_t seed = 0; seed < 60; seed++) {
        rm_problem problem;
        rm_family family;
        some_chain(seed, &problem);
        ck_ok(rm_family_spill(&problem, &(rm_wish){0}, &family));
        for (int64_t i = 0; i < family.count; i++) {
            rm_plan plan = {0};
            rm_proposal proposal;
            ck_ok(family.write(&family, &problem, i, &plan, &proposal));
            examine(seed, &problem, &plan);
            rm_plan_free(&plan);
        }
        rm_family_free(&family);
        rm_problem_free(&problem);
    }
}
END_TEST

/* A wait left out of the table is noticed, wherever it was needed. */
START_TEST(a_missing_wait_shows) {
    dice d = {4};
    int64_t left_out = 0, noticed = 0;
    for (uint64_t seed = 0; seed < 60; seed++) {
        rm_problem problem;
        rm_plan plan = {0};
        rm_transfers t;
        some_chain(seed, &problem);
        spill_some(&d, &problem, &plan);
        ck_ok(rm_transfers_find(&problem, &plan, &t));
        int64_t done = 0;
        for (int64_t i = 0; t.count && i < plan.n_steps; i++) {
            int32_t wait = t.wait[i];
            if (wait <= done) continue;
            t.wait[i] = (int32_t)done; /* as if this step were forgotten */
            left_out++;
            noticed += !plays_well(&problem, &plan, &t, true);
            t.wait[i] = wait;
            done = wait;
        }
        rm_transfers_free(&t);
        rm_plan_free(&plan);
        rm_problem_free(&problem);
    }
    ck_assert_int_gt(left_out, 300);
    ck_assert_int_ge(noticed * 10, left_out * 9); /* copies of empty objects cannot be spoilt */
}
END_TEST

START_TEST(no_second_tier_costs_nothing) {
    rm_problem problem;
    rm_plan plan = {0};
    rm_transfers t;
    rm_proposal proposal;
    some_chain(12, &problem);
    ck_ok(rm_strategy_find("none")->propose(&problem, &(rm_wish){0}, &plan, &proposal));
    rm_host_fail_at(1);
    ck_ok(rm_transfers_find(&problem, &plan, &t));
    rm_host_fail_at(0);
    ck_assert(!t.wait && !t.count && !t.room_bytes && !t.table_bytes);
    rm_plan_free(&plan);
    rm_problem_free(&problem);
}
END_TEST

START_TEST(every_failed_allocation_is_survived) {
    dice d = {5};
    rm_problem problem;
    rm_plan plan = {0};
    rm_transfers t;
    some_chain(12, &problem);
    spill_some(&d, &problem, &plan);
    for (int n = 1;; n++) {
        rm_host_fail_at(n);
        remat_status status = rm_transfers_find(&problem, &plan, &t);
        rm_host_fail_at(0);
        if (!status) {
            ck_assert_int_gt(n, 6);
            break;
        }
        ck_assert_int_eq(status, REMAT_MEMORY);
        ck_assert_ptr_null(t.wait);
    }
    rm_transfers_free(&t);
    rm_plan_free(&plan);
    rm_problem_free(&problem);
}
END_TEST

RUN_TESTS("memory/transfers", waits_are_enough_and_no_more, whole_families, a_missing_wait_shows,
          no_second_tier_costs_nothing, every_failed_allocation_is_survived)
