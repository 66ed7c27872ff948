/* session.c: describe -> plan -> check -> place, tied together: a session's life. remat_session_create does everything up to
 * the first byte of the block; step.c and update.c only run. */
#include "engine/planning.h"

#include <inttypes.h>
#include <math.h>
#include <omp.h>
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
    TRY(s->api->open(s->threads, &s->device));
    TRY(rm_device_set_precision(s->api, s->device, config->precision, &s->precision));
    return rm_device_choose_cells(s->api, s->device, config->rnn_kernels, &s->cudnn);
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
    REQUIRE(!s->verify_recompute || s->api->compare || s->api->reachable, MISSING,
            "verify_recompute compares states where they lie, which neither the device \"%s\" nor the host can do "
            "there; use the device cpu",
            s->api->name);
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
                            .trust_coefficient = config->trust_coefficient,
                            .decay_vectors = config->decay_vectors,
                            .norm_limit = config->norm_limit,
                            .threads = s->threads};
    s->momentum_correction = config->momentum_correction;
    s->adapt_vectors = config->adapt_vectors;
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
    REQUIRE(config->trust_coefficient >= 0 && config->norm_limit >= 0, INVALID,
            "trust_coefficient and norm_limit are %g and %g; neither may be negative", config->trust_coefficient,
            config->norm_limit);
    return REMAT_OK;
}

/* ---- Ranks and micro steps ------------------------------------------------------------------------------------ */

static bool power_of_two(int n) { return n > 0 && (n & (n - 1)) == 0; }

static remat_status check_pairwise(const remat_session *s) {
    if (!s->pairwise) return REMAT_OK;
    REQUIRE(power_of_two(s->ranks.size) && power_of_two(s->micro_steps), INVALID,
            "pairwise sums need powers of two, but there are %d ranks and %d micro steps", s->ranks.size,
            s->micro_steps);
    REQUIRE(s->ranks.weight == 1, INVALID,
            "pairwise sums need batches of the same size on all ranks, but this rank's weighs %g of the mean",
            s->ranks.weight);
    REQUIRE(!s->stateful || s->micro_steps == 1, INVALID,
            "a stateful session carries its states on from one micro step to the next, which pairwise are different "
            "samples; use one micro step");
    return REMAT_OK;
}

static remat_status check_slots(const remat_session *s) {
    const remat_ranks *r = &s->ranks;
    const char *needed = s->api->reachable || !rm_session_is_real(s) ? "cpu" : s->api->name;
    REQUIRE(!strcmp(r->device ? r->device : "cpu", needed), MISSING,
            "these ranks add up gradients in the memory of the device \"%s\", and this session's lie in that of \"%s\"; "
            "both must be the same",
            r->device ? r->device : "cpu", s->api->name);
    REQUIRE(r->reduce && r->wait && r->sum, INVALID, "remat_ranks lacks one of reduce, wait and sum");
    REQUIRE(!r->shard_optimizer || (r->gather && r->gathered), INVALID,
            "remat_ranks shards the optimizer, but lacks gather or gathered");
    REQUIRE(rm_session_is_real(s), MISSING,
            "the device \"%s\" computes nothing that other ranks could add up; plan for it with plan_only",
            s->api->name);
    return REMAT_OK;
}

/* A session that only plans, or makes no gradients, is laid out for so many ranks, and never calls them. */
static remat_status set_up_ranks(remat_session *s, const remat_config *config) {
    remat_ranks *r = &s->ranks;
    *r = config->ranks ? *config->ranks : (remat_ranks){.size = 1};
    if (r->weight == 0) r->weight = 1;
    s->pairwise = config->pairwise;
    s->micro_steps = config->micro_steps ? config->micro_steps : 1;
    REQUIRE(r->size >= 1 && r->rank >= 0 && r->rank < r->size, INVALID, "rank %d of %d: ranks are numbered from 0",
            r->rank, r->size);
    REQUIRE(r->weight > 0 && isfinite(r->weight), INVALID, "this rank's weight is %g; it must be above 0", r->weight);
    REQUIRE(s->micro_steps >= 1 && (int64_t)s->micro_steps * r->size < 1 << 24, INVALID,
            "%d micro steps on %d ranks: use at least 1, and fewer than %d in all", s->micro_steps, r->size, 1 << 24);
    TRY(check_pairwise(s));
    bool runs = config->ranks && !s->plan_only && !s->inference;
    if (runs) return check_slots(s);
    r->agree = NULL, r->map = NULL, r->unmap = NULL, r->prepare = NULL, r->reduce = r->wait = r->gather = r->gathered = NULL;
    r->sum = NULL, r->poll = NULL;
    return REMAT_OK;
}

/* Sums of 1, 2, 4, ... micro steps that wait for their other half. */
static int gradient_sums(const remat_session *s) {
    int n = 0;
    while (s->pairwise && 1 << n < s->micro_steps) n++;
    return n;
}

int64_t remat_micro_shard(int64_t t, int64_t micro_steps, bool pairwise) {
    int64_t reversed = 0;
    for (int64_t bit = 1; bit < micro_steps; bit *= 2) reversed = reversed * 2 + ((t & bit) != 0);
    return pairwise ? reversed : t;
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

/* Of every op that is not dead. */
static remat_status check_kernels(const remat_session *s) {
    for (int32_t n = 0; n < s->graph->n_nodes && s->api->runs; n++) {
        const rm_op *op = s->graph->node[n].op;
        if (s->chain.role[n] == RM_ROLE_DEAD) continue;
        bool runs = s->api->runs(op, RM_FORWARD) && (s->inference || s->api->runs(op, RM_BACKWARD));
        REQUIRE(runs, MISSING, "the device \"%s\" has no kernel for %s yet; use the device cpu", s->api->name, op->name);
    }
    return REMAT_OK;
}

static remat_status cut(remat_session *s, int32_t loss, const remat_config *config) {
    int32_t keep[17];
    for (int i = 0; i < config->n_outputs; i++) keep[i] = config->outputs[i].id;
    keep[config->n_outputs] = loss;
    if (config->fold_embedding && !s->cudnn) /* which knows no tables */
        TRY(rm_graph_fold_embeddings(s->graph, keep, config->n_outputs + 1, &s->n_folded));
    TRY(rm_graph_choose_variants(s->graph, s->api, s->device, config->tile));
    rm_chain_config chain = {.tile = config->tile,
                             .threads = s->threads,
                             .inference = config->inference,
                             .hashes = s->verify_recompute && s->api->compare,
                             .lean = s->recompute == RM_RECOMPUTE_AUTO,
                             .kernels = s->api->kernels,
                             .stateful = config->stateful,
                             .ranks = &s->ranks,
                             .gradient_sums = gradient_sums(s),
                             .optimizer_states = s->optimizer ? s->optimizer->states_used(&s->update) : 0,
                             .rates = rm_standard_rates()};
    TRY(rm_chain_build(s->graph, loss, keep, config->n_outputs, &chain, &s->chain));
    return check_kernels(s);
}

/* ---- The block ------------------------------------------------------------------------------------------------ */

static remat_status allocate_tables(remat_session *s) {
    rm_runner *r = &s->runner;
    size_t stages = (size_t)s->chain.n_stages, params = (size_t)s->chain.at.buckets.n_params + 1;
    r->piece = rm_calloc((size_t)s->chain.problem.n_pieces + 1, sizeof *r->piece);
    r->saved = rm_calloc(stages + 1, sizeof *r->saved);
    r->kept = rm_calloc(stages, sizeof *r->kept);
    s->loss = rm_calloc(stages, sizeof *s->loss);
    s->shard_loss = rm_calloc((size_t)rm_session_told_count(s), sizeof *s->shard_loss);
    s->squares = rm_calloc(params, sizeof *s->squares);
    s->sums = rm_calloc(params * RM_MAX_OPTIMIZER_SUMS, sizeof *s->sums);
    REQUIRE(r->piece && r->saved && r->kept && s->loss && s->shard_loss && s->squares && s->sums, MEMORY,
            "out of memory for the executor's tables");
    return s->verify_recompute ? rm_verify_create(&s->chain, s->api, r->queue, r->resident, &r->verify) : REMAT_OK;
}

/* The pages that other ranks may read, before anything is written there. */
static remat_status share_pages(remat_session *s) {
    const remat_ranks *ranks = &s->ranks;
    const rm_residents *at = &s->chain.at;
    if (!ranks->map || !at->section_pages_bytes) return REMAT_OK;
    TRY(ranks->map(ranks->context, s->runner.resident + at->gradients_offset, at->section_pages_bytes));
    s->n_mapped++;
    if (!ranks->shard_optimizer) return REMAT_OK;
    TRY(ranks->map(ranks->context, s->runner.resident + at->parameters_offset, at->section_pages_bytes));
    s->n_mapped++;
    return REMAT_OK;
}

/* What else is needed to send them, so that no step allocates. */
static remat_status prepare_buckets(const remat_session *s) {
    for (int64_t i = 0; i < remat_bucket_count(s) && s->ranks.prepare; i++) {
        remat_bucket bucket = remat_bucket_info(s, i);
        TRY(s->ranks.prepare(s->ranks.context, &bucket));
    }
    return REMAT_OK;
}

static remat_status make_events(remat_session *s) {
    int64_t n = remat_bucket_count(s);
    if (!s->ranks.reduce || !s->ranks.heeds_events || !s->api->hand_over) return REMAT_OK;
    s->ready = rm_calloc((size_t)n + 1, sizeof *s->ready);
    REQUIRE(s->ready, MEMORY, "out of memory for the events of %lld buckets", (long long)n);
    for (int64_t i = 0; i < n; i++) TRY(s->api->event_create(s->device, &s->ready[i]));
    return REMAT_OK;
}

static void free_events(remat_session *s) {
    for (int64_t i = 0; s->ready && i < remat_bucket_count(s); i++) s->api->event_free(s->ready[i]);
    rm_free(s->ready);
}

static void unshare_pages(remat_session *s) {
    const rm_residents *at = &s->chain.at;
    if (!s->ranks.unmap) return;
    if (s->n_mapped > 0) s->ranks.unmap(s->ranks.context, s->runner.resident + at->gradients_offset);
    if (s->n_mapped > 1) s->ranks.unmap(s->ranks.context, s->runner.resident + at->parameters_offset);
}

/* The share of a batch in the mean over all: the gradient of the loss that backward begins with. Pairwise it must not depend on
 * how many of the shards a rank computes; that is made up for when a bucket is final (step.c). */
static float loss_share(const remat_session *s) {
    double shards = (double)s->micro_steps * (s->pairwise ? s->ranks.size : 1);
    return (float)(s->ranks.weight / shards);
}

static remat_status allocate(remat_session *s, uint64_t seed) {
    rm_runner *r = &s->runner;
    *r = (rm_runner){.api = s->api,
                     .chain = &s->chain,
                     .arena_offset = s->chain.at.bytes,
                     .seed = seed,
                     .stateful = s->stateful,
                     .ranks = &s->ranks,
                     .owner = s,
                     .store = r->store};
    s->arena_bytes = s->chain.at.bytes + rm_session_activations_bytes(s);
    if (s->plan_only) return REMAT_OK;
    TRY(s->api->block_create(s->device, s->arena_bytes, &r->block));
    TRY(s->api->queue_create(s->device, &r->queue));
    r->resident = rm_resident_begin(s->api->claim(r->block, 0, s->chain.at.bytes));
    TRY(share_pages(s));
    TRY(prepare_buckets(s));
    TRY(make_events(s));
    TRY(allocate_tables(s));
    float share = loss_share(s);
    s->api->copy_in(r->queue, r->resident + s->chain.at.one_offset, &share, sizeof share);
    TRY(s->api->synchronize(r->queue));
    return rm_session_draw_parameters(s);
}

static remat_status create(remat_session *s, const remat_graph *graph, int32_t loss, const remat_config *config) {
    TRY(remat_graph_check(graph));
    TRY(set_up_devices(s, config));
    TRY(set_up_policy(s, config));
    TRY(set_up_ranks(s, config));
    TRY(set_up_optimizer(s, config));
    TRY(check_ends(graph, loss, config));
    TRY(rm_graph_copy(graph, &s->graph));
    TRY(cut(s, loss, config));
    TRY(rm_session_choose_trained(s, config->train_only));
    TRY(rm_session_open_store(s, config));
    TRY(rm_session_make_plans(s, config));
    TRY(rm_session_settle_store(s));
    TRY(rm_session_list_arrays(s));
    rm_host_trim(); /* what planning took for a moment, before the block is there as well */
    return allocate(s, config->seed);
}

remat_status remat_session_create(const remat_graph *graph, remat_value loss, const remat_config *config,
                                  remat_session **out) {
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
    rm_free(s->shard_loss);
    rm_free(s->squares);
    rm_free(s->sums);
    rm_free(s->runner.piece);
    rm_free(s->runner.saved);
    rm_free(s->runner.kept);
    rm_verify_free(s->runner.verify);
    if (s->runner.store) s->api->store_close(s->runner.store);
    if (s->runner.queue) s->api->queue_free(s->runner.queue);
    if (s->runner.block) unshare_pages(s);
    free_events(s); /* nobody waits for them any more */
    if (s->runner.block) s->api->block_free(s->runner.block);
    rm_schedule_free(&s->training);
    rm_schedule_free(&s->evaluation);
    rm_chain_free(&s->chain);
    remat_graph_free(s->graph);
    if (s->device) s->api->close(s->device);
    rm_free(s);
}
