/* summary.c: the numbers of a session's plan, read from the checked plan. describe.c prints them. Main entry: remat_session_plan. */
#include <string.h>

#include "engine/abi.h"
#include "engine/session/budget.h"

static uint64_t resident_bytes(const remat_session *s, const char *name) {
    for (int i = 0; i < s->chain.problem.n_resident; i++)
        if (!strcmp(s->chain.problem.resident[i].name, name)) return s->chain.problem.resident[i].bytes;
    return 0;
}

static remat_plan_summary summary_of(const remat_session *s) {
    const rm_schedule *schedule = rm_session_schedule(s);
    const rm_verdict *verdict = &schedule->verdict;
    remat_plan_summary plan = {
        .strategy = s->strategy->name,
        .device = s->api->name,
        .precision = rm_precision_names[s->precision],
        .rnn_kernels = s->cudnn ? "cudnn" : "remat",
        .threads = s->threads,
        .timesteps = s->chain.timesteps,
        .batch = s->chain.batch,
        .tile = s->chain.tile,
        .n_tiles = (s->chain.timesteps + s->chain.tile - 1) / s->chain.tile,
        .n_stages = s->chain.n_stages,
        .segments = s->training.proposal.segments,
        .segments_requested = s->segments_requested ? s->segments_requested : s->training.proposal.segments,
        .params_bytes = resident_bytes(s, "parameters") + resident_bytes(s, "frozen parameters"),
        .gradients_bytes = resident_bytes(s, "gradients"),
        .optimizer_bytes = resident_bytes(s, "optimizer"),
        .inputs_bytes = resident_bytes(s, "inputs"),
        .packed_bytes = resident_bytes(s, "packed weights"),
        .activations_peak_bytes = s->arena_bytes - s->chain.at.bytes,
        .activations_floor_bytes = schedule->placement.floor_bytes,
        .planned_peak_bytes = s->arena_bytes,
        .workspace_bytes = rm_session_workspace_bytes(s),
        .tables_bytes = rm_session_tables_bytes(s),
        .budgeted_bytes = rm_session_budgeted_bytes(s),
        .memory_budget = s->memory_budget,
        .spill_bytes = verdict->save_bytes,
        .peak_step = verdict->peak_step,
        .forward_ns = verdict->forward_ns,
        .recompute_ns = verdict->recompute_ns,
        .backward_ns = verdict->backward_ns,
        .transfer_ns = verdict->transfer_ns,
        .wait_ns = verdict->wait_ns,
        .step_ns = verdict->total_ns,
        .fixed_ns = s->fixed_ns,
        .measured_times = s->measured_times,
        .measured_busy = s->measured_busy,
        .recompute_factor = verdict->recompute_factor,
        .n_steps = schedule->plan.n_steps,
        .n_buckets = s->chain.at.buckets.n,
    };
    plan.other_bytes = s->chain.at.bytes - plan.params_bytes - plan.gradients_bytes - plan.optimizer_bytes -
                       plan.inputs_bytes - plan.packed_bytes;
    return plan;
}

remat_plan_summary rm_plan_summary_of(const remat_session *s) { return s ? summary_of(s) : (remat_plan_summary){0}; }

remat_status remat_session_plan(const remat_session *s, remat_plan_summary *out) {
    NEED(s, "a session");
    NEED(out, "a place for the result");
    *out = summary_of(s);
    return REMAT_OK;
}

remat_status remat_session_products(const remat_session *s, remat_products *out) {
    NEED(s, "a session");
    NEED(out, "a place for the result");
    rm_products known = {.shapes = 0};
    if (s->api->products && s->device) s->api->products(s->device, &known);
    *out = (remat_products){.shapes = known.shapes,
                            .in_fp32 = known.in_fp32,
                            .by_cublas = known.by_cublas,
                            .split = known.split,
                            .alone = known.alone,
                            .whole = known.whole,
                            .batched = known.batched,
                            .blocks = known.blocks};
    return REMAT_OK;
}

remat_status remat_session_recordings(const remat_session *s, remat_recordings *out) {
    NEED(s, "a session");
    NEED(out, "a place for the result");
    rm_recordings known = {.calls = 0};
    if (s->api->recordings && s->runner.queue) s->api->recordings(s->runner.queue, &known);
    *out = (remat_recordings){.calls = known.calls,
                              .graphs = known.graphs,
                              .bytes = known.bytes,
                              .limit_bytes = known.limit_bytes,
                              .ended = known.ended};
    return REMAT_OK;
}
