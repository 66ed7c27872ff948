/* session.c: describe -> plan -> check -> place -> run, tied together. remat_session_create does everything up to the
 * first byte of the block; the steps after that only run. */
#include "engine/planning.h"

#include <omp.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "memory/host.h"

/* ---- Configuration -------------------------------------------------------------------------------------------- */

/* For sentences that say what there is: "none, segments, sqrt". */
static void append_name(char *list, size_t size, const char *name) {
    size_t length = strlen(list);
    snprintf(list + length, size - length, "%s%s", length ? ", " : "", name);
}

static remat_status set_up_devices(remat_session *s, const remat_config *config) {
    s->api = rm_device_find(config->device ? config->device : "cpu");
    REQUIRE(s->api, MISSING, "this build has no device \"%s\"; it has: %s", config->device, remat_build().devices);
    REQUIRE(config->threads >= 0 && config->threads <= 4096, INVALID, "threads is %d; use 1 to 4096, or 0 for all",
            config->threads);
    s->threads = config->threads ? config->threads : omp_get_max_threads();
    return s->api->open(s->threads, &s->device);
}

static remat_status set_up_policy(remat_session *s, const remat_config *config) {
    s->strategy = rm_strategy_find(config->strategy ? config->strategy : "none");
    char known[128] = "";
    for (int i = 0; i < rm_n_strategies; i++) append_name(known, sizeof known, rm_strategies[i]->name);
    REQUIRE(s->strategy, INVALID, "there is no strategy \"%s\"; there are: %s", config->strategy, known);
    REQUIRE(config->tile >= 0, INVALID, "tile is %lld; use at least 1, or 0 to let the shapes decide",
            (long long)config->tile);
    static const char *const ways[] = {"auto", "exact-only", "off"};
    const char *way = config->recompute ? config->recompute : "auto";
    while (s->recompute <= RM_RECOMPUTE_OFF && strcmp(ways[s->recompute], way)) s->recompute++;
    REQUIRE(s->recompute <= RM_RECOMPUTE_OFF, INVALID, "recompute is \"%s\"; it can be auto, exact-only or off", way);
    s->segments_requested = config->segments;
    s->memory_budget = config->memory_budget;
    s->plan_only = config->plan_only;
    s->inference = config->inference;
    s->stateful = config->stateful;
    s->verify_recompute = config->verify_recompute && !config->inference && rm_session_is_real(s);
    s->clip_grad_norm = config->clip_grad_norm;
    REQUIRE(config->clip_grad_norm >= 0, INVALID, "clip_grad_norm is %g; use a positive norm, or 0 for none",
            config->clip_grad_norm);
    return REMAT_OK;
}

static remat_status set_up_optimizer(remat_session *s, const remat_config *config) {
    s->update = (rm_update){.momentum = config->momentum,
                            .beta1 = config->beta1,
                            .beta2 = config->beta2,
                            .epsilon = config->epsilon,
                            .weight_decay = config->weight_decay,
                            .nesterov = config->nesterov,
                            .threads = s->threads};
    if (!config->optimizer || config->inference) return REMAT_OK;
    s->optimizer = rm_optimizer_find(config->optimizer);
    char known[128] = "";
    for (int i = 0; i < rm_n_optimizers; i++) append_name(known, sizeof known, rm_optimizers[i]->name);
    REQUIRE(s->optimizer, INVALID, "there is no optimizer \"%s\"; there are: %s", config->optimizer, known);
    REQUIRE(config->momentum >= 0 && config->momentum < 1, INVALID, "momentum is %g; use 0 to below 1",
            config->momentum);
    REQUIRE(!config->nesterov || config->momentum > 0, INVALID, "nesterov needs a momentum above 0");
    REQUIRE(config->beta1 >= 0 && config->beta1 < 1 && config->beta2 >= 0 && config->beta2 < 1, INVALID,
            "beta1 and beta2 are %g and %g; use 0 to below 1", config->beta1, config->beta2);
    REQUIRE(config->epsilon >= 0 && config->weight_decay >= 0, INVALID,
            "epsilon and weight_decay are %g and %g; neither may be negative", config->epsilon, config->weight_decay);
    return REMAT_OK;
}

/* ---- Describe: an own copy of the graph, folded and cut -------------------------------------------------------- */

static remat_status check_ends(const remat_graph *graph, int32_t loss, const remat_config *config) {
    REQUIRE(loss >= 0 && loss < graph->n_values, INVALID, "the loss is not a value of this graph");
    REQUIRE(loss || config->inference, INVALID, "training needs a loss; set inference to run without one");
    REQUIRE(!loss || graph->value[loss].origin == RM_VALUE_RESULT, INVALID,
            "the loss is not computed by any operation");
    REQUIRE(!loss || graph->value[loss].desc.rank == 0, INVALID,
            "the loss is not a scalar; end the graph in softmax_cross_entropy or mse");
    REQUIRE(!loss || config->inference || graph->value[loss].needs_gradient, INVALID,
            "the loss depends on no parameter, so there is nothing to train");
    REQUIRE(config->n_outputs >= 0 && config->n_outputs <= 16, INVALID, "n_outputs is %d; use 0 to 16",
            config->n_outputs);
    for (int i = 0; i < config->n_outputs; i++) {
        int32_t id = config->outputs[i].id;
        REQUIRE(id > 0 && id < graph->n_values && graph->value[id].origin == RM_VALUE_RESULT, INVALID,
                "output %d is not the result of an operation of this graph", i);
    }
    return REMAT_OK;
}

static remat_status cut(remat_session *s, int32_t loss, const remat_config *config) {
    int32_t keep[17];
    for (int i = 0; i < config->n_outputs; i++) keep[i] = config->outputs[i].id;
    keep[config->n_outputs] = loss;
    if (config->fold_embedding) TRY(rm_graph_fold_embeddings(s->graph, keep, config->n_outputs + 1, &s->n_folded));
    rm_chain_config chain = {.tile = config->tile,
                             .threads = s->threads,
                             .inference = config->inference,
                             .lean = s->recompute == RM_RECOMPUTE_AUTO,
                             .kernels = s->api->kernels,
                             .stateful = config->stateful,
                             .optimizer_states = s->optimizer ? s->optimizer->states_used(&s->update) : 0,
                             .rates = rm_standard_rates()};
    return rm_chain_build(s->graph, loss, keep, config->n_outputs, &chain, &s->chain);
}

/* ---- The block ------------------------------------------------------------------------------------------------ */

static remat_status allocate(remat_session *s, uint64_t seed) {
    rm_runner *r = &s->runner;
    *r = (rm_runner){.api = s->api,
                     .chain = &s->chain,
                     .arena_offset = s->chain.at.bytes,
                     .seed = seed,
                     .stateful = s->stateful,
                     .store = r->store};
    s->arena_bytes = s->chain.at.bytes + rm_session_activations_bytes(s);
    if (s->plan_only) return REMAT_OK;
    TRY(s->api->block_create(s->device, s->arena_bytes, &r->block));
    TRY(s->api->queue_create(s->device, &r->queue));
    r->resident = s->api->claim(r->block, 0, s->chain.at.bytes);
    r->piece = rm_calloc((size_t)s->chain.problem.n_pieces + 1, sizeof *r->piece);
    r->saved = rm_calloc((size_t)s->chain.n_stages + 1, sizeof *r->saved);
    r->kept = rm_calloc((size_t)s->chain.n_stages, sizeof *r->kept);
    s->loss = rm_calloc((size_t)s->chain.n_stages, sizeof *s->loss);
    REQUIRE(r->piece && r->saved && r->kept && s->loss, MEMORY, "out of memory for the executor's tables");
    if (s->verify_recompute) TRY(rm_verify_create(&s->chain, &r->verify));
    float one = 1;
    s->api->copy_in(r->queue, r->resident + s->chain.at.one_offset, &one, sizeof one);
    TRY(s->api->synchronize(r->queue));
    return rm_session_draw_parameters(s);
}

static remat_status create(remat_session *s, const remat_graph *graph, int32_t loss, const remat_config *config) {
    TRY(remat_graph_check(graph));
    TRY(set_up_devices(s, config));
    TRY(set_up_policy(s, config));
    TRY(set_up_optimizer(s, config));
    TRY(check_ends(graph, loss, config));
    TRY(rm_graph_copy(graph, &s->graph));
    TRY(cut(s, loss, config));
    TRY(rm_session_open_store(s, config));
    TRY(rm_session_make_plans(s, config));
    TRY(rm_session_settle_store(s));
    TRY(rm_session_list_arrays(s));
    rm_host_trim(); /* what planning took for a moment, before the block is there as well */
    return allocate(s, config->seed);
}

remat_status remat_session_create(const remat_graph *graph, remat_value loss, const remat_config *config,
                                  remat_session **out) {
    REQUIRE(!config || !config->ranks, MISSING, "training on several ranks is not there yet");
    REQUIRE(graph && config && out, INVALID, "remat_session_create needs a graph, a config and a place for the result");
    remat_session *s = rm_calloc(1, sizeof *s);
    REQUIRE(s, MEMORY, "out of memory for a session");
    remat_status status = create(s, graph, loss.id, config);
    if (status) {
        remat_session_free(s);
        return status;
    }
    *out = s;
    return REMAT_OK;
}

void remat_session_free(remat_session *s) {
    if (!s) return;
    rm_session_free_arrays(s);
    rm_trace_free(s->trace);
    rm_free(s->loss);
    rm_free(s->runner.piece);
    rm_free(s->runner.saved);
    rm_free(s->runner.kept);
    rm_verify_free(s->runner.verify);
    if (s->runner.store) s->api->store_close(s->runner.store);
    if (s->runner.queue) s->api->queue_free(s->runner.queue);
    if (s->runner.block) s->api->block_free(s->runner.block);
    rm_schedule_free(&s->training);
    rm_schedule_free(&s->evaluation);
    rm_chain_free(&s->chain);
    remat_graph_free(s->graph);
    if (s->device) s->api->close(s->device);
    rm_free(s);
}

/* ---- Run ------------------------------------------------------------------------------------------------------ */

/* What every pass begins with: fresh packed weights if the parameters changed, tables, zeroed loss slots. */
static void begin_pass(remat_session *s, bool training) {
    s->runner.training = training;
    if (s->packed_is_stale) rm_run_packing(&s->runner);
    s->packed_is_stale = false;
    s->api->fill(s->runner.queue, s->runner.resident + s->chain.at.loss_offset, 0, s->chain.at.loss_bytes);
    rm_run_tables(&s->runner, &s->chain.prologue);
}

/* The tiles' shares of the loss, added in tile order whatever order the plan made them in. */
static remat_status end_pass(remat_session *s, remat_step_result *result) {
    const rm_residents *at = &s->chain.at;
    rm_queue *queue = s->runner.queue;
    uint64_t carried_bytes = at->carried_next - at->carried;
    if (carried_bytes)
        s->api->copy(queue, s->runner.resident + at->carried, s->runner.resident + at->carried_next, carried_bytes);
    s->api->copy_out(queue, s->loss, s->runner.resident + at->loss_offset, at->loss_bytes);
    TRY(s->api->synchronize(queue));
    double loss = 0;
    for (int64_t i = 0; i < s->chain.n_stages; i++) loss += s->loss[i];
    result->loss = (float)loss;
    result->arena_peak_bytes = s->api->high_water(s->runner.block);
    return REMAT_OK;
}

/* Parameters in order of definition, each summed in an order of its own length alone. */
static double gradient_norm(const remat_session *s) {
    double sum = 0;
    for (int64_t i = 0; i < s->n_arrays[REMAT_GRADIENT]; i++) {
        const rm_array *array = &s->array[REMAT_GRADIENT][i];
        sum += s->api->sum_of_squares(s->runner.queue, (const float *)(s->runner.resident + array->offset),
                                      rm_desc_count(&array->desc));
    }
    return sqrt(sum);
}

remat_status remat_gradients(remat_session *s, remat_step_result *result) {
    REQUIRE(!s->plan_only, INVALID, "this session was made to plan only; it cannot run");
    REQUIRE(!s->inference, INVALID, "this session was made for inference; it has no gradients");
    const rm_residents *at = &s->chain.at;
    *result = (remat_step_result){.recomputed_stages = (uint64_t)s->training.verdict.recomputed_stages};
    begin_pass(s, true);
    s->api->fill(s->runner.queue, s->runner.resident + at->gradients_offset, 0, at->gradients_bytes);
    if (s->trace_next) rm_trace_begin(s->runner.trace = s->trace);
    s->has_gradients = false;
    remat_status status = rm_run(&s->runner, &s->chain.problem, &s->training);
    s->trace_next = false;
    s->runner.trace = NULL;
    TRY(status);
    rm_run_tables(&s->runner, &s->chain.epilogue);
    TRY(end_pass(s, result));
    s->grad_norm = result->grad_norm = gradient_norm(s);
    s->has_gradients = true;
    return REMAT_OK;
}

remat_status remat_update(remat_session *s, double lr, remat_step_result *result) {
    REQUIRE(s->optimizer, INVALID, "this session has no optimizer; name one in the config");
    REQUIRE(s->has_gradients, INVALID, "there are no gradients yet; call remat_gradients before remat_update");
    REQUIRE(lr >= 0 && isfinite(lr), INVALID, "the learning rate is %g; use a finite number of at least 0", lr);
    double scale =
        s->clip_grad_norm > 0 ? s->clip_grad_norm / (s->grad_norm + 1e-6) : 1; /* as PyTorch's clip_grad_norm_ */
    s->update.gradient_scale = scale < 1 ? scale : 1;
    if (isnan(scale)) s->update.gradient_scale = scale; /* a NaN norm stays visible */
    s->update.lr = lr;
    s->update.step = (int64_t)s->runner.updates + 1;
    int n_state = s->optimizer->states_used(&s->update);
    for (int64_t i = 0; i < s->n_arrays[REMAT_PARAM]; i++) {
        float *state[RM_MAX_OPTIMIZER_STATE] = {0};
        for (int k = 0; k < n_state; k++)
            state[k] = (float *)(s->runner.resident + s->array[REMAT_OPTIMIZER][i * n_state + k].offset);
        const rm_array *param = &s->array[REMAT_PARAM][i];
        s->api->update(s->runner.queue, s->optimizer, &s->update, rm_desc_count(&param->desc),
                       (float *)(s->runner.resident + param->offset),
                       (const float *)(s->runner.resident + s->array[REMAT_GRADIENT][i].offset), state);
    }
    TRY(s->api->synchronize(s->runner.queue));
    s->packed_is_stale = true;
    s->has_gradients = false;
    s->runner.updates++;
    result->grad_norm = s->grad_norm;
    return REMAT_OK;
}

remat_status remat_step(remat_session *s, double lr, remat_step_result *result) {
    REQUIRE(s->optimizer, INVALID, "this session has no optimizer; name one in the config");
    TRY(remat_gradients(s, result));
    return remat_update(s, lr, result);
}

remat_status remat_evaluate(remat_session *s, remat_step_result *result) {
    REQUIRE(!s->plan_only, INVALID, "this session was made to plan only; it cannot run");
    *result = (remat_step_result){0};
    begin_pass(s, false);
    TRY(rm_run(&s->runner, &s->chain.evaluation, &s->evaluation));
    return end_pass(s, result);
}

int64_t remat_step_count(const remat_session *s) { return (int64_t)s->runner.updates; }
void remat_set_step_count(remat_session *s, int64_t steps) { s->runner.updates = (uint64_t)steps; }
