/* test_transfers.c: plays plans that use the second tier on values, once with a channel that does each transfer as late
 * as the table of waits allows, and once with one that does each at once. Both must end with the right values. No step
 * waits longer than the judge says. Copies are contiguous and aligned. */
#include "memory/transfers.h"

#include "memory/bytes.h"
#include "memory/check.h"
#include "memory/family.h"
#include "memory/host.h"
#include "tests/memory/chains.h"
#include "tests/memory/memory_test.h"

enum { STAGES = 40, TRANSFERS = 8 * STAGES };

/* Contents of memory, by object: 0: garbage; >= 1: right, and for a saved block 1 + the option that made it. */
typedef struct {
    const rm_problem *problem;
    int32_t last[STAGES];
    uint64_t value[3][STAGES], copy[2][STAGES];
    rm_step given[TRANSFERS];
    int64_t n_given, n_done;
} theatre;

static theatre *open_theatre(const rm_problem *problem) {
    theatre *a = calloc(1, sizeof *a);
    ck_assert(problem->n_states < STAGES && problem->n_stages < STAGES);
    a->problem = problem;
    rm_last_adders(problem, a->last);
    return a;
}

static bool is_empty(const theatre *a, int object, int64_t i) {
    return object == RM_STATE ? !rm_state_bytes(a->problem, i) : object == RM_DSTATE;
}

static void do_transfers_until(theatre *a, int64_t number) {
    for (; a->n_done < number; a->n_done++) {
        rm_step step = a->given[a->n_done];
        uint64_t *value = &a->value[step.object][step.index], *copy = &a->copy[step.object][step.index];
        *(step.verb == RM_SAVE ? copy : value) = step.verb == RM_SAVE ? *value : *copy;
    }
}

static void give(theatre *a, rm_step step) {
    ck_assert_int_lt(a->n_given, TRANSFERS);
    a->given[a->n_given++] = step;
}

/* Whether a transfer that may still be running moves this object. */
static bool moves(const theatre *a, int object, int64_t i) {
    for (int64_t k = a->n_done; k < a->n_given; k++)
        if (a->given[k].object == object && a->given[k].index == i && !is_empty(a, object, i)) return true;
    return false;
}

static bool all_right(const theatre *a, const rm_lists *lists, int64_t s) {
    for (int64_t k = lists->start[s]; k < lists->start[s + 1]; k++)
        if (!is_empty(a, RM_STATE, lists->item[k]) && !a->value[RM_STATE][lists->item[k]]) return false;
    return true;
}

/* False if the object is being copied or loaded while it is written. */
static bool make(theatre *a, int object, int64_t i, uint64_t value) {
    a->value[object][i] = value;
    return !moves(a, object, i);
}

static bool act(theatre *a, rm_step step) {
    int64_t s = step.index;
    const rm_problem *p = a->problem;
    bool fine = true;
    switch (step.verb) {
    /* False if it is still being copied, or if a load will still write to its memory, which then belongs to another
     * object */
    case RM_FREE:
        return make(a, step.object, s, 0);
    case RM_RUN_FORWARD:
        if (!all_right(a, &p->reads, s)) return false;
        for (int64_t i = p->made[s]; i < p->made[s + 1]; i++) fine = make(a, RM_STATE, i, 1) && fine;
        return fine && (step.option == RM_DROP || make(a, RM_SAVED, s, 1 + (uint64_t)step.option));
    case RM_RUN_BACKWARD:
        return all_right(a, &p->keeps, s) && a->value[RM_SAVED][s];
    default:
        give(a, step);
        return true;
    }
}

/* `late`: transfers are done only when a step waits for them; otherwise as soon as they are issued. A real channel may
 * do either. */
static bool plays_well(const rm_problem *problem, const rm_plan *plan, const rm_transfers *transfers, bool late) {
    theatre *a = open_theatre(problem);
    bool fine = true;
    for (int64_t i = 0; i < plan->n_steps && fine; i++) {
        ck_assert_int_le(transfers->wait[i], a->n_given);
        do_transfers_until(a, late ? transfers->wait[i] : a->n_given);
        fine = act(a, plan->step[i]);
    }
    free(a);
    return fine;
}

/* ---- Waits as times ------------------------------------------------------------------------------- */

/* The time that the plan waits according to the table, step by step. */
static uint64_t waits(const rm_problem *p, const rm_plan *plan, const rm_transfers *transfers) {
    theatre *a = open_theatre(p);
    uint64_t done[TRANSFERS + 1] = {0}, now = 0, free_at = 0, wait = 0;
    int8_t option[STAGES] = {0};
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
        uint64_t bytes = step.object == RM_SAVED ? rm_align_up(stage->option[option[step.index]].saved_bytes)
                                                 : rm_state_bytes(p, step.index);
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
               .saved_bytes = seed % 17 < 4 ? RM_TRANSFER_ALIGN : 4000,
               .scratch_bytes = 999,
               .skips = (int)(seed % 4),
               .shares = seed % 5 < 2,
               .lean = seed % 7 < 3,
               .loose = seed % 11 < 3};
    ck_ok(chain_problem(&c, seed, problem));
    problem->tier = (rm_tier){1000000ull << seed % 14, 700000ull << seed % 15, seed % 2 ? 0 : 100, seed % 3 << 15, 0};
}

/* A state may be spilled when this stage and later ones no longer read it forward. */
static bool is_read_from(const rm_problem *p, int64_t from, int64_t state) {
    for (int64_t s = from; s < p->n_stages; s++)
        if (rm_in_list(&p->reads, s, state)) return true;
    return false;
}

/* Spills after the forward run, sometimes a little later, and loads before the backward run, sometimes a little
 * earlier. */
static void spill_some(dice *d, const rm_problem *problem, rm_plan *plan) {
    bool away[2][STAGES] = {{false}}, asked[2][STAGES] = {{false}};
    int64_t n = problem->n_stages;
    for (int64_t s = 0; s < n; s++) {
        ck_ok(rm_plan_run_forward(plan, s, (int)roll_below(d, problem->stage[s].n_options)));
        for (int64_t t = s; t >= 0 && t > s - 3; t--) {
            if (asked[RM_SAVED][t] || (t == s && roll_below(d, 2))) continue;
            asked[RM_SAVED][t] = true;
            if ((away[RM_SAVED][t] = roll_below(d, 3) > 0)) {
                ck_ok(rm_plan_save(plan, RM_SAVED, t));
                ck_ok(rm_plan_free_object(plan, RM_SAVED, t));
            }
        }
        for (int64_t i = 0; i < problem->made[s + 1]; i++) {
            if (asked[RM_STATE][i] || is_read_from(problem, s + 1, i) || roll_below(d, 2)) continue;
            asked[RM_STATE][i] = true;
            if ((away[RM_STATE][i] = roll_below(d, 3) > 0)) {
                ck_ok(rm_plan_save(plan, RM_STATE, i));
                ck_ok(rm_plan_free_object(plan, RM_STATE, i));
            }
        }
    }
    for (int64_t s = n - 1; s >= 0; s--) {
        for (int64_t t = s; t >= 0 && t >= s - roll_below(d, 3); t--) {
            if (away[RM_SAVED][t]) ck_ok(rm_plan_load(plan, RM_SAVED, t));
            away[RM_SAVED][t] = false;
            for (int64_t k = problem->keeps.start[t]; k < problem->keeps.start[t + 1]; k++) {
                int32_t i = problem->keeps.item[k];
                if (away[RM_STATE][i]) ck_ok(rm_plan_load(plan, RM_STATE, i));
                away[RM_STATE][i] = false;
            }
        }
        ck_ok(rm_plan_run_backward(plan, s));
    }
    ck_ok(rm_plan_free_dead(problem, plan));
}

/* Each copy, in the order of the plan, lies at the first aligned byte after the one before: no space is lost or used
 * twice. */
static void copies_follow_one_another(const rm_problem *p, const rm_plan *plan, const rm_transfers *t) {
    int8_t option[STAGES] = {0};
    uint64_t end = 0;
    for (int64_t i = 0; i < plan->n_steps; i++) {
        rm_step step = plan->step[i];
        if (step.verb == RM_RUN_FORWARD && step.option != RM_DROP) option[step.index] = step.option;
        if (step.verb != RM_SAVE) continue;
        bool state = step.object == RM_STATE;
        while (end % RM_TRANSFER_ALIGN) end++;
        ck_assert_uint_eq((state ? t->state_at : t->saved_at)[step.index], end);
        end += state ? rm_state_bytes(p, step.index)
                     : rm_align_up(p->stage[step.index].option[option[step.index]].saved_bytes);
    }
    while (end % RM_TRANSFER_ALIGN) end++;
    ck_assert_uint_eq(t->room_bytes, end);
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
        copies_follow_one_another(problem, plan, &t);
    }
    rm_transfers_free(&t);
    ck_assert(!t.wait && !t.count);
}

START_TEST(waits_are_sufficient_and_minimal) {
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

START_TEST(plans_of_all_families_have_sufficient_waits) {
    for (uint64_t seed = 0; seed < 60; seed++) {
        rm_problem problem;
        rm_family family;
        some_chain(seed, &problem);
        ck_ok(rm_family_spill(&problem, &(rm_plan_request){0}, &family));
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

/* A wait that is removed from the table is noticed if it was needed. */
START_TEST(missing_wait_is_detected) {
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
            t.wait[i] = (int32_t)done; /* as if this step's wait had been forgotten */
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
    ck_assert_int_ge(noticed * 10, left_out * 9); /* copies of empty objects cannot be corrupted */
}
END_TEST

START_TEST(no_second_tier_costs_nothing) {
    rm_problem problem;
    rm_plan plan = {0};
    rm_transfers t;
    rm_proposal proposal;
    some_chain(12, &problem);
    ck_ok(rm_strategy_find("none")->propose(&problem, &(rm_plan_request){0}, &plan, &proposal));
    rm_host_fail_at(1);
    ck_ok(rm_transfers_find(&problem, &plan, &t));
    rm_host_fail_at(0);
    ck_assert(!t.wait && !t.count && !t.room_bytes && !t.table_bytes);
    rm_plan_free(&plan);
    rm_problem_free(&problem);
}
END_TEST

START_TEST(every_failed_allocation_is_handled) {
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
            ck_assert_int_gt(n, 5);
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

RUN_TESTS("memory/transfers", waits_are_sufficient_and_minimal, plans_of_all_families_have_sufficient_waits,
          missing_wait_is_detected, no_second_tier_costs_nothing, every_failed_allocation_is_handled)
