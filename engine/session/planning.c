/* planning.c: see planning.h. */
#include "engine/session/planning.h"

#include <string.h>

#include "engine/session/budget.h"
#include "engine/session/parts.h"
#include "engine/times/calibrate.h"
#include "memory/host.h"

/* ---- Times ---------------------------------------------------------------------------------------------------- */

rm_rates rm_standard_rates(void) { return (rm_rates){.flops_per_s = 1e11, .bytes_per_s = 1e10, .call_ns = 2000}; }

rm_tier rm_standard_tier(uint64_t host_bytes) {
    return (rm_tier){.save_bytes_per_s = 1000000000,
                     .load_bytes_per_s = 1000000000,
                     .latency_ns = 100000,
                     .cost_ns_per_mib = 250000,
                     .host_bytes = host_bytes};
}

void rm_tier_by_standard(rm_tier *tier) {
    if (rm_tier_there(tier)) *tier = rm_standard_tier(tier->host_bytes);
}

bool rm_session_plans_by_standard(const remat_session *s, const remat_config *config) {
    return s->strategy->choose && !config->calibration && rm_session_is_real(s);
}

static remat_status guess_times(remat_session *s, const remat_config *config, bool standard) {
    rm_rates rates = rm_standard_rates();
    bool assumed = config->assume_flops != 0 || config->assume_bandwidth != 0;
    if (!standard) TRY(s->api->rates(s->device, &rates));
    REQUIRE(config->assume_flops >= 0 && config->assume_bandwidth >= 0, INVALID,
            "assume_flops and assume_bandwidth are %g and %g; neither may be negative", config->assume_flops,
            config->assume_bandwidth);
    REQUIRE(!assumed || !rm_session_is_real(s), INVALID,
            "assume_flops and assume_bandwidth describe another machine, so they need the device \"null\"");
    if (config->assume_flops > 0) rates.flops_per_s = config->assume_flops;
    if (config->assume_bandwidth > 0) rates.bytes_per_s = config->assume_bandwidth;
    s->rates = rates;
    if (s->pipeline.size == 1) rm_chain_guess_times(&s->chain, &rates); /* else standard times choose */
    int states = s->optimizer ? s->optimizer->states_used(&s->update) : 0;
    uint64_t gradients = s->chain.at.section_bytes + s->chain.at.table_gradients_bytes;
    double bytes = (4 + 2.0 * states) * (double)gradients; /* zeroed, summed, updated */
    s->fixed_ns = s->chain.prologue.time_ns + s->chain.epilogue.time_ns + rm_chain_once_ns(&s->chain) +
                  (uint64_t)(1e9 * bytes / rates.bytes_per_s);
    return REMAT_OK;
}

/* ---- One schedule --------------------------------------------------------------------------------------------- */

static remat_status read_given(remat_session *s, const char *steps) {
    TRY(rm_plan_read(&s->chain.problem, &s->training.plan, steps, strlen(steps)));
    if (rm_schedule_settle(&s->chain.problem, false, &s->training))
        return rm_fail(REMAT_INVALID, "plan_steps is not a valid plan: %s", remat_last_error());
    return REMAT_OK;
}

/* `budget`: of the schedule. *fits: in a pipeline, all parts fit into the session's budget on every rank. */
static remat_status propose_within(remat_session *s, const remat_config *config, uint64_t budget, bool *fits) {
    uint64_t needed;
    int rank;
    rm_plan_request request = {.segments = config->segments,
                               .budget_bytes = budget,
                               .no_recompute = s->recompute == RM_RECOMPUTE_OFF,
                               .least_block_bytes = s->evaluation.placement.bytes};
    rm_schedule_free(&s->training);
    remat_status status = rm_schedule_propose(&s->chain.problem, s->strategy, &request, &s->training);
    *fits = !status;
    if (s->pipeline.size == 1 || !config->memory_budget || (status && status != REMAT_INFEASIBLE)) return status;
    TRY(rm_session_neediest_rank(s, &rank, &needed));
    *fits = needed <= config->memory_budget;
    return *fits ? REMAT_OK : REMAT_INFEASIBLE;
}

/* A plan is for one part and for the largest bytes of any rank, but all parts must fit together, on each rank by its own
 * bytes: finds the schedule's budget, between one that fits and one that does not. */
static remat_status propose_divided(remat_session *s, const remat_config *config) {
    uint64_t most = rm_session_allowance(s, config->memory_budget), least = 1, middle;
    bool fits;
    remat_status status = propose_within(s, config, most, &fits);
    if (status != REMAT_INFEASIBLE) return status;
    status = propose_within(s, config, least, &fits); /* the smallest plan */
    if (!fits || !s->strategy->choose) return status;
    for (int i = 0; i < 12; i++) {
        middle = least + (most - least) / 2;
        status = propose_within(s, config, middle, &fits);
        if (status && status != REMAT_INFEASIBLE) return status;
        if (fits)
            least = middle;
        else
            most = middle;
    }
    return fits ? REMAT_OK : propose_within(s, config, least, &fits);
}

static remat_status propose(remat_session *s, const remat_config *config) {
    bool fits;
    if (config->plan_steps) return read_given(s, config->plan_steps);
    if (s->pipeline.size > 1) return propose_divided(s, config);
    return propose_within(s, config, rm_session_allowance(s, config->memory_budget), &fits);
}

static remat_status propose_or_refuse(remat_session *s, const remat_config *config) {
    remat_status status = propose(s, config);
    if (status == REMAT_INFEASIBLE) return rm_session_refuse(s, config->memory_budget);
    return status ? status : rm_session_check_budget(s, config->memory_budget);
}

/* An evaluation runs every stage forward once and keeps a state only until its last reader has run. */
static remat_status plan_evaluation(remat_session *s) {
    const rm_problem *problem = &s->chain.evaluation;
    TRY(rm_plan_sweep(&s->evaluation.plan, 0, problem->n_stages));
    TRY(rm_plan_free_dead(problem, &s->evaluation.plan));
    return rm_schedule_settle(problem, true, &s->evaluation);
}

uint64_t rm_session_activations_bytes(const remat_session *s) {
    uint64_t training = s->training.placement.bytes, evaluation = s->evaluation.placement.bytes;
    return training > evaluation ? training : evaluation;
}

/* ---- From standard times to better ones ----------------------------------------------------------------------- */

/* The smallest plan, which shows sooner than the fastest whether all ranks of a pipeline fit. */
static remat_status propose_smallest(remat_session *s, const remat_config *config) {
    bool fits;
    remat_status status = propose_within(s, config, 1, &fits);
    return status == REMAT_INFEASIBLE ? rm_session_refuse(s, config->memory_budget) : status;
}

/* Decides whether the budget suffices. */
static remat_status plan_by_standard_times(remat_session *s, const remat_config *config) {
    rm_tier tier = s->chain.problem.tier;
    bool smallest = s->pipeline.size > 1 && !config->plan_steps;
    rm_tier_by_standard(&s->chain.problem.tier);
    remat_status status = (smallest ? propose_smallest : propose_or_refuse)(s, config);
    s->chain.problem.tier = tier;
    return status;
}

/* Budgets that are too small have been refused by now. Measuring takes no more memory than the step will. */
static remat_status measure_times(remat_session *s, const remat_config *config) {
    bool known;
    if (!config->calibration || !rm_session_is_real(s) || s->pipeline.size > 1) return REMAT_OK;
    TRY(rm_session_calibrate_from_file(s, config, &known));
    if (known) return REMAT_OK;
    if (!s->training.plan.step) TRY(propose_or_refuse(s, config));
    uint64_t room =
        config->memory_budget ? rm_session_allowance(s, config->memory_budget) : rm_session_activations_bytes(s);
    return rm_session_calibrate(s, config, s->chain.at.bytes + room, RM_CALIBRATION_SECONDS);
}

/* If no plan made with the new times fits, the existing plan is kept with its times recomputed: it may be slower, but
 * its budget has been promised to suffice. */
static remat_status plan_again(remat_session *s, const remat_config *config) {
    rm_schedule before = s->training;
    s->training = (rm_schedule){0};
    if (!before.plan.step) return propose_or_refuse(s, config);
    remat_status status = propose(s, config);
    if (!status) status = rm_session_check_budget(s, config->memory_budget);
    if (status == REMAT_INFEASIBLE) {
        rm_schedule_free(&s->training);
        s->training = before;
        return rm_plan_check(&s->chain.problem, &s->training.plan, &s->training.verdict, NULL);
    }
    rm_schedule_free(&before);
    return status;
}

/* Chooses the plan by standard times, then predicts its duration from this machine's rates. */
static remat_status choose_by_standard(remat_session *s, const remat_config *config) {
    rm_tier tier = s->chain.problem.tier;
    rm_tier_by_standard(&s->chain.problem.tier);
    TRY(guess_times(s, config, true));
    TRY(propose_or_refuse(s, config));
    s->chain.problem.tier = tier;
    TRY(guess_times(s, config, false));
    return rm_plan_check(&s->chain.problem, &s->training.plan, &s->training.verdict, NULL);
}

static remat_status make_plans(remat_session *s, const remat_config *config) {
    TRY(plan_evaluation(s));
    if (s->tries_cut && !config->memory_budget) return REMAT_OK;
    if (s->tries_cut && !s->inference) return plan_by_standard_times(s, config);
    if (s->inference) {
        TRY(guess_times(s, config, false));
        TRY(rm_plan_check_forward(&s->chain.evaluation, &s->evaluation.plan, &s->evaluation.verdict, NULL));
        return rm_session_check_budget(s, config->memory_budget);
    }
    if (rm_session_plans_by_standard(s, config)) return choose_by_standard(s, config);
    if (config->memory_budget) TRY(plan_by_standard_times(s, config));
    rm_host_trim();
    TRY(guess_times(s, config, false));
    TRY(measure_times(s, config));
    return plan_again(s, config);
}

remat_status rm_session_make_plans(remat_session *s, const remat_config *config) {
    if (s->pipeline.size == 1) return make_plans(s, config);
    rm_session_swap_problems(s);
    remat_status status = make_plans(s, config);
    rm_session_swap_problems(s);
    TRY(status);
    rm_session_free_needs(s);
    if (s->tries_cut) return REMAT_OK;
    if (s->rates.flops_per_s > 0) rm_chain_guess_times(&s->chain, &s->rates); /* of this rank, to be reported */
    return rm_session_settle_part(s);
}
