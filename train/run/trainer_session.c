/* trainer_session.c: creates the session of a run. With several ranks, rank 0 plans, all ranks create sessions with its
 * plan, and compare them. See trainer.h. */
#include "engine/abi.h"
#include "train/run/trainer.h"

#include "memory/host.h"
#include "train/run/budget.h"
#include "train/run/setup.h"

#include <stdio.h>
#include <string.h>

static uint64_t evaluation_bytes(const rm_trainer *t) {
    return rm_evaluator_bytes(&t->evaluator) + rm_ema_bytes(&t->ema);
}

/* Rank 0 plans for all ranks: all must run the same plan, but measured times, which choose it, differ between ranks. */
static remat_status propose(rm_trainer *t, const rm_model_spec *spec, remat_config config, char **steps) {
    remat_session *session;
    rm_budget_advice about = {"train", evaluation_bytes(t), *t->state != 0, config.ranks};
    config.plan_only = true;
    remat_status status = rm_setup_session(&t->model, &config, &session);
    if (status == REMAT_INFEASIBLE) return rm_budget_advise(t->options, spec, t->dataset, &about);
    TRY(status);
    t->plan = rm_plan_summary_of(session);
    *steps = remat_plan_steps_text(session);
    remat_session_free(session);
    REQUIRE(*steps, MEMORY, "no memory for the text of the plan");
    return REMAT_OK;
}

/* Takes bytes from this session, and on rank 0 the times that chose the plan. */
static void settle_plan(rm_trainer *t) {
    remat_plan_summary chosen = t->plan;
    t->plan = rm_plan_summary_of(t->session);
    if (!t->plan.batch)
        t->plan.batch = rm_setup_rows(t->options); /* without timesteps the engine does not know the batch */
    if (t->ranks.rank || t->ranks.size == 1) return;
    t->plan.segments = chosen.segments;
    t->plan.segments_requested = chosen.segments_requested;
    t->plan.forward_ns = chosen.forward_ns;
    t->plan.recompute_ns = chosen.recompute_ns;
    t->plan.backward_ns = chosen.backward_ns;
    t->plan.transfer_ns = chosen.transfer_ns;
    t->plan.wait_ns = chosen.wait_ns;
    t->plan.step_ns = chosen.step_ns;
    t->plan.fixed_ns = chosen.fixed_ns;
    t->plan.measured_times = chosen.measured_times;
    t->plan.measured_busy = chosen.measured_busy;
}

/* Compares what depends on the machine as well as on the flags. */
static remat_status compare_plans(rm_trainer *t) {
    char text[256], buckets[40] = "";
    const remat_plan_summary *p = &t->plan;
    if (t->ranks.parts == 1) snprintf(buckets, sizeof buckets, "buckets: %lld\n", (long long)p->n_buckets);
    snprintf(text, sizeof text, "timesteps of a tile: %lld\nstages: %lld\nlines of the plan: %lld\n%s",
             (long long)p->tile, (long long)p->n_stages, (long long)p->n_steps, buckets);
    return rm_ranks_compare(&t->ranks, "the plan", text);
}

static remat_status create_among_ranks(rm_trainer *t, const rm_model_spec *spec, remat_config config) {
    char *proposed = NULL, *steps = NULL;
    remat_status status = t->ranks.rank ? REMAT_OK : propose(t, spec, config, &proposed);
    status = rm_ranks_agree(&t->ranks, status);
    if (!status) status = rm_ranks_share(&t->ranks, proposed, &steps);
    remat_text_free(proposed);
    config.plan_steps = steps;
    config.calibration = NULL; /* the plan is given */
    if (!status) status = rm_setup_session(&t->model, &config, &t->session);
    rm_free(steps);
    TRY(status);
    settle_plan(t);
    return compare_plans(t);
}

static remat_status create_alone(rm_trainer *t, const rm_model_spec *spec, const remat_config *config) {
    remat_status status = rm_setup_session(&t->model, config, &t->session);
    rm_budget_advice about = {"train", evaluation_bytes(t), *t->state != 0, NULL};
    if (status == REMAT_INFEASIBLE) return rm_budget_advise(t->options, spec, t->dataset, &about);
    if (!status) settle_plan(t);
    return status;
}

/* Sets the session's budget and builds the graph. `evaluator`: bytes of the rank whose evaluator is largest. */
static remat_status describe(rm_trainer *t, const rm_model_spec *spec, uint64_t evaluator, remat_config *config) {
    uint64_t held = rm_budget_data_bytes(t->options, &spec->data, t->dataset) + evaluator;
    rm_budget_advice about = {"train", evaluator, *t->state != 0, config->ranks};
    remat_status status = rm_budget_apply(t->options, held, config);
    if (!status) return rm_model_build(spec, rm_setup_rows(t->options), true, &t->model);
    return t->ranks.rank ? status : rm_budget_advise(t->options, spec, t->dataset, &about);
}

remat_status rm_trainer_create_session(rm_trainer *t, const rm_model_spec *spec) {
    remat_config config = rm_setup_training_config(t->options);
    config.ranks = rm_ranks_table(&t->ranks);
    config.observer = remat_timeline_observer(t->timeline);
    uint64_t evaluator = evaluation_bytes(t);
    if (t->ranks.parts > 1) TRY(rm_ranks_most(&t->ranks, &evaluator)); /* ranks hold other layers, and have one plan */
    TRY(rm_ranks_agree(&t->ranks, describe(t, spec, evaluator, &config)));
    TRY(t->ranks.size > 1 ? create_among_ranks(t, spec, config) : create_alone(t, spec, &config));
    rm_model_free(&t->model); /* the session has a copy of the graph */
    rm_host_trim();
    size_t answers = (size_t)rm_setup_rows(t->options) * (size_t)rm_data_answers(&t->dataset->shape);
    size_t bytes = (size_t)t->model.classes * answers * sizeof *t->logits;
    if (!bytes || !strcmp(t->options->session.device, "null")) return REMAT_OK;
    t->logits = rm_malloc(bytes);
    REQUIRE(t->logits, MEMORY, "no memory for the outputs of a batch");
    if (remat_pipeline_parts(t->session) == 1) return REMAT_OK;
    t->targets = rm_calloc((size_t)remat_pipeline_parts(t->session), answers * sizeof *t->targets);
    REQUIRE(t->targets, MEMORY, "no memory for the targets of a batch");
    return REMAT_OK;
}

void rm_trainer_free_session(rm_trainer *t) {
    remat_session_free(t->session);
    rm_model_free(&t->model);
    rm_free(t->logits);
    t->session = NULL;
    t->logits = NULL;
}
