/* create.c: creates and frees a session: describe -> plan -> check -> place. remat_session_create decides everything;
 * step.c and update.c only run. */
#include "engine/abi.h"
#include "engine/session/parts.h"
#include "engine/session/pipeline_cut.h"
#include "engine/session/planning.h"

#include "memory/host.h"

#include <unistd.h>

/* ---- Describe: a copy of the graph, folded and cut ------------------------------------------------------------- */

/* Differentiated outputs receive their gradients from the caller. */
static remat_status check_differentiated(const remat_graph *graph, int32_t loss, const remat_config *config) {
    int n = config->n_differentiated;
    REQUIRE(n >= 0 && n <= config->n_outputs, INVALID, "n_differentiated is %d; use 0 to n_outputs, which is %d", n,
            config->n_outputs);
    for (int i = 0; i < n && !config->inference; i++) {
        int32_t id = config->outputs[i].id;
        REQUIRE(graph->value[id].needs_gradient, INVALID,
                "output %d is to be differentiated, but depends on no parameter and no input that requires a gradient",
                i);
        REQUIRE(id != loss, INVALID, "output %d is the loss, whose gradient is 1; differentiate other outputs", i);
        for (int j = 0; j < i; j++)
            REQUIRE(config->outputs[j].id != id, INVALID, "outputs %d and %d are the same value; differentiate it once",
                    j, i);
    }
    return REMAT_OK;
}

static remat_status check_ends(const remat_graph *graph, int32_t loss, const remat_config *config) {
    REQUIRE(loss >= 0 && loss < graph->n_values, INVALID, "the loss is not a value of this graph");
    REQUIRE(loss || config->inference || config->n_differentiated, INVALID,
            "training needs a loss, or outputs to differentiate (n_differentiated); set inference to run without");
    REQUIRE(!graph->value[loss].view_of, INVALID, "the loss is a reshape; use the tensor that it reshapes as the loss");
    REQUIRE(!loss || graph->value[loss].origin == RM_VALUE_RESULT, INVALID,
            "the loss is not computed by any operation");
    REQUIRE(!loss || graph->value[loss].desc.rank == 0, INVALID,
            "the loss is not a scalar; end the graph in softmax_cross_entropy, mse or an op of your own with a scalar "
            "result, or differentiate outputs instead (n_differentiated)");
    REQUIRE(!loss || config->inference || graph->value[loss].needs_gradient, INVALID,
            "the loss depends on no parameter and no input that requires a gradient, so there is nothing to train");
    REQUIRE(config->n_outputs >= 0, INVALID, "n_outputs is %d; use at least 0", config->n_outputs);
    REQUIRE(config->outputs || !config->n_outputs, INVALID, "n_outputs is %d, but outputs is NULL", config->n_outputs);
    for (int i = 0; i < config->n_outputs; i++) {
        int32_t id = config->outputs[i].id;
        REQUIRE(id <= 0 || id >= graph->n_values || !graph->value[id].view_of, INVALID,
                "output %d is a reshape; use the tensor that it reshapes as the output", i);
        REQUIRE(id > 0 && id < graph->n_values && graph->value[id].origin == RM_VALUE_RESULT, INVALID,
                "output %d is not the result of an operation of this graph", i);
    }
    return check_differentiated(graph, loss, config);
}

static const char *const kind_text[] = {
    [REMAT_INPUT] = "input",       [REMAT_PARAM] = "parameter",
    [REMAT_GRADIENT] = "gradient", [REMAT_OUTPUT] = "output",
    [REMAT_BUFFER] = "buffer",     [REMAT_OUTPUT_GRADIENT] = "gradient of an output",
    [REMAT_CARRIED] = "state",     [REMAT_OPTIMIZER] = "optimizer state"};

/* What other ranks read or write is handed to them bucket by bucket. */
static remat_status check_external_of_ranks(const remat_session *s, const remat_external *e) {
    bool reduced = e->kind == REMAT_GRADIENT && s->ranks.size > 1 && !s->inference;
    bool gathered = e->kind == REMAT_PARAM && s->ranks.shard_optimizer && !s->inference;
    REQUIRE(!reduced, INVALID,
            "gradients cannot be external with other ranks, which reduce them in the arena; leave them out of "
            "external");
    REQUIRE(!gathered, INVALID,
            "parameters cannot be external with a sharded optimizer, whose ranks gather them in the arena; leave them "
            "out of external, or do not shard");
    return REMAT_OK;
}

static bool same_name(const char *a, const char *b) { return !a || !b || !strcmp(a, b); }

static remat_status check_external(const remat_session *s, const remat_config *config) {
    REQUIRE(config->n_external >= 0 && (config->external || !config->n_external), INVALID,
            "n_external is %d, but external is NULL", config->n_external);
    REQUIRE(!config->n_external || s->api->kernels == REMAT_ON_CPU, MISSING,
            "the %s device cannot read host memory; use the device cpu, or do not pass external memory", s->api->name);
    for (int i = 0; i < config->n_external; i++) {
        const remat_external *e = &config->external[i];
        REQUIRE((unsigned)e->kind < RM_ARRAY_KINDS, INVALID, "external[%d].kind is %d; use a remat_kind", i,
                (int)e->kind);
        REQUIRE(e->name || !e->memory, INVALID,
                "external[%d] names all arrays of a kind, which cannot share one address: set memory to NULL and call "
                "remat_set_external for each",
                i);
        for (int j = 0; j < i; j++)
            REQUIRE(config->external[j].kind != e->kind || !same_name(config->external[j].name, e->name), INVALID,
                    "external[%d] and external[%d] are the same array; list it once", j, i);
        TRY(check_external_of_ranks(s, e));
    }
    return REMAT_OK;
}

/* Checks that the device has kernels for all live nodes. */
static remat_status check_kernels(const remat_session *s) {
    for (int32_t n = 0; n < s->graph->n_nodes && s->api->runs; n++) {
        const remat_op *op = s->graph->node[n].op;
        if (s->chain.role[n] == RM_ROLE_DEAD) continue;
        bool runs =
            s->api->runs(op, REMAT_FORWARD) && (s->inference || op->constant || s->api->runs(op, REMAT_BACKWARD));
        REQUIRE(runs, MISSING, "the device \"%s\" has no kernel for %s yet; use the device cpu", s->api->name,
                op->name);
    }
    return REMAT_OK;
}

/* Length of the layer's name: "layer4.0.bn1" in the buffer "layer4.0.bn1.running_mean". */
static int layer_name(const char *buffer) {
    const char *dot = strrchr(buffer, '.');
    return (int)(dot ? (size_t)(dot - buffer) : strlen(buffer));
}

/* With a single value per channel the mean is that value, so batch norm would output a constant, pass no gradient
 * and let its running variance decay. If ranks share statistics, there are at least two values. */
static remat_status check_statistics(const remat_session *s) {
    const remat_op *norm = rm_op_find("batch_norm");
    for (int32_t n = 0; n < s->graph->n_nodes && !s->inference; n++) {
        const rm_node *node = &s->graph->node[n];
        if (node->op != norm || s->chain.role[n] == RM_ROLE_DEAD || s->chain.use[node->y] == RM_UNUSED) continue;
        const rm_batch_norm_attr *attr = node->attr;
        const char *buffer = s->graph->value[node->x[1]].name;
        remat_desc x[REMAT_MAX_INPUTS], y, state[REMAT_MAX_STATES];
        char shape[REMAT_DESC_TEXT];
        rm_node_descs(s->graph, node, 0, x, &y, state);
        bool several = rm_desc_count(x) > x->dim[attr->axis] || (attr->sync && s->ranks.size > 1);
        REQUIRE(several, INVALID,
                "the batch norm %.*s has one value per channel, x %s: training makes its output constant and passes no "
                "gradient; use a larger batch or larger inputs",
                layer_name(buffer), buffer, rm_desc_text(x, shape));
    }
    return REMAT_OK;
}

/* Number of partial sums of gradients: of 1, 2, 4, ... micro steps, each waiting for its second half. */
static int gradient_sums(const remat_session *s) {
    int n = 0;
    while (s->deterministic_world && 1 << n < s->micro_steps) n++;
    return n;
}

static bool keeps_states(const rm_chain *chain, const rm_sweep *sweep) {
    bool keeps = false;
    for (int32_t k = 0; k < sweep->n_carried; k++) keeps |= chain->carried[sweep->first_carried + k].keeps;
    return keeps;
}

/* Finds, for each sweep, the stage whose carried states are kept for the next call. */
static remat_status find_carry_stages(remat_session *s, int64_t carry_stride) {
    for (int32_t w = 0; w < s->chain.n_sweeps; w++) {
        rm_sweep *sweep = &s->chain.sweep[w];
        sweep->carry_stage = sweep->count - 1;
        if (!carry_stride || !keeps_states(&s->chain, sweep) || carry_stride == sweep->timesteps) continue;
        REQUIRE(!sweep->down, INVALID,
                "{carry_stride} is %lld, but a layer runs backwards in time and cannot continue from the middle of a "
                "sequence; leave {carry_stride} out, or remove the reversed layer",
                (long long)carry_stride);
        REQUIRE(carry_stride < sweep->timesteps, INVALID,
                "{carry_stride} is %lld, but a layer has only %lld timesteps; use no more than that",
                (long long)carry_stride, (long long)sweep->timesteps);
        int64_t fits = sweep->tile;
        while (carry_stride % fits) fits--;
        REQUIRE(fits == sweep->tile, INVALID,
                "{carry_stride} is %lld, which is not a multiple of the tile of %lld timesteps; set {tile}=%lld",
                (long long)carry_stride, (long long)sweep->tile, (long long)fits);
        sweep->carry_stage = carry_stride / sweep->tile - 1;
    }
    return REMAT_OK;
}

/* `keep` has the outputs, then the loss. */
static remat_status cut_keeping(remat_session *s, const int32_t *keep, int32_t loss, const remat_config *config) {
    if (config->fold_embedding && !s->cudnn) /* cuDNN's kernels do not read folded tables */
        TRY(rm_graph_fold_embeddings(s->graph, keep, config->n_outputs + 1, &s->n_folded));
    TRY(rm_graph_fold_relus(s->graph, keep, config->n_outputs + 1));
    int32_t variants;
    TRY(rm_graph_choose_variants(s->graph, s->api, s->device, config->tile, config->carry_stride, &variants));
    REQUIRE(
        s->precision == RM_FP32 || variants || !s->api->rounded, MISSING,
        "precision %s on the device \"%s\" affects only products of %s, and this network has none; use precision fp32",
        rm_precision_names[s->precision], s->api->name, s->api->rounded);
    const remat_ranks ranks = rm_session_layout_ranks(s);
    rm_chain_config chain = {.tile = config->tile,
                             .carry_stride = config->carry_stride,
                             .threads = s->threads,
                             .n_differentiated = config->inference ? 0 : config->n_differentiated,
                             .inference = config->inference,
                             .hashes = s->verify_recompute && s->api->compare,
                             .lean = s->recompute == RM_RECOMPUTE_AUTO,
                             .kernels = s->api->kernels,
                             .stateful = config->stateful,
                             .external = config->external,
                             .n_external = config->n_external,
                             .ranks = &ranks,
                             .shared = s->lender ? rm_session_shares : NULL,
                             .owner = s,
                             .full = s->full,
                             .n_full = s->n_full,
                             .packed_room = s->lender ? rm_session_root(s)->chain.at.packed_bytes : 0,
                             .gradient_sums = gradient_sums(s),
                             .optimizer_state_name = s->optimizer ? s->optimizer->state_name : NULL,
                             .optimizer_states = s->optimizer ? s->optimizer->states_used(&s->update) : 0,
                             .rates = rm_standard_rates()};
    TRY(rm_session_build_chain(s, loss, keep, config->n_outputs, &chain));
    TRY(find_carry_stages(s, config->carry_stride));
    TRY(check_statistics(s));
    return check_kernels(s);
}

static remat_status cut(remat_session *s, int32_t loss, const remat_config *config) {
    int32_t *keep = rm_calloc((size_t)config->n_outputs + 1, sizeof *keep);
    REQUIRE(keep, MEMORY, "out of memory for %d outputs", config->n_outputs);
    for (int i = 0; i < config->n_outputs; i++) keep[i] = config->outputs[i].id;
    keep[config->n_outputs] = loss;
    remat_status status = cut_keeping(s, keep, loss, config);
    rm_free(keep);
    return status;
}

/* ---- The block ------------------------------------------------------------------------------------------------- */

static remat_status allocate_tables(remat_session *s) {
    rm_runner *r = &s->runner;
    size_t stages = (size_t)s->chain.n_stages, params = (size_t)s->chain.at.buckets.n_params + 1;
    r->piece = rm_calloc((size_t)s->chain.problem.n_pieces + 1, sizeof *r->piece);
    r->saved = rm_calloc(stages + 1, sizeof *r->saved);
    r->kept = rm_calloc(stages, sizeof *r->kept);
    r->end = rm_calloc((size_t)s->chain.n_sweeps, sizeof *r->end);
    s->loss = rm_calloc(stages, sizeof *s->loss);
    s->shard_loss = rm_calloc((size_t)rm_session_exchange_count(s), sizeof *s->shard_loss);
    s->shard_count = rm_calloc((size_t)s->ranks.size * (size_t)s->micro_steps, sizeof *s->shard_count);
    s->squares = rm_calloc(params, sizeof *s->squares);
    s->sums = rm_calloc(params * RM_MAX_OPTIMIZER_SUMS, sizeof *s->sums);
    REQUIRE(r->piece && r->saved && r->kept && r->end && s->loss && s->shard_loss && s->shard_count && s->squares &&
                s->sums,
            MEMORY, "out of memory for the executor's tables");
    for (int32_t w = 0; w < s->chain.n_sweeps; w++) r->end[w] = INT64_MAX;
    if (s->verify_recompute) TRY(rm_verify_create(&s->chain, s->api, r->queue, r->resident, &r->verify));
    return rm_parts_allocate(s);
}

/* Maps the pages that other ranks read, before anything is written there. */
static remat_status share_pages(remat_session *s) {
    const remat_ranks *ranks = &s->ranks;
    const rm_residents *at = &s->chain.at;
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), bytes = (at->section_bytes + page - 1) / page * page;
    if (!ranks->map || !bytes) return REMAT_OK;
    TRY(ranks->map(ranks->context, s->runner.resident + at->gradients_offset, bytes));
    s->n_mapped++;
    if (!ranks->shard_optimizer) return REMAT_OK;
    TRY(ranks->map(ranks->context, s->runner.resident + at->parameters_offset, bytes));
    s->n_mapped++;
    return REMAT_OK;
}

/* NULL: some of its arrays are external, or nothing is allocated. */
static float *begin_of(const remat_session *s, const rm_bucket *bucket, const rm_where *where) {
    const rm_buckets *b = &s->chain.at.buckets;
    for (int32_t k = bucket->first_param; k < bucket->first_param + bucket->n_params; k++)
        if (where[b->param[b->order[k]].value].space == RM_EXTERNAL) return NULL;
    const rm_where *first = &where[b->param[b->order[bucket->first_param]].value];
    return s->runner.resident ? rm_run_address(&s->runner, first) : NULL;
}

static remat_bucket bucket_of(const remat_session *s, int64_t index) {
    const rm_residents *at = &s->chain.at;
    const rm_bucket *bucket = &at->buckets.item[index];
    const rm_parameter *first = &at->buckets.param[at->buckets.order[bucket->first_param]];
    return (remat_bucket){.index = (int32_t)index,
                          .parameters = begin_of(s, bucket, at->value),
                          .gradients = s->inference ? NULL : begin_of(s, bucket, at->gradient),
                          .count = bucket->count,
                          .first = s->graph->value[first->value].name};
}

static remat_status make_buckets(remat_session *s) {
    int64_t n = remat_bucket_count(s);
    s->bucket = rm_calloc((size_t)n + 1, sizeof *s->bucket);
    REQUIRE(s->bucket, MEMORY, "out of memory for %lld buckets", (long long)n);
    for (int64_t i = 0; i < n; i++) s->bucket[i] = bucket_of(s, i);
    return rm_session_share_buckets(s);
}

/* Allocates send buffers and the like now, so that no step allocates. */
static remat_status prepare_buckets(const remat_session *s) {
    for (int64_t i = 0; i < remat_bucket_count(s) && s->ranks.prepare; i++)
        TRY(s->ranks.prepare(s->ranks.context, &s->bucket[i]));
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

static remat_status allocate(remat_session *s, uint64_t seed) {
    rm_runner *r = &s->runner;
    s->parameters_version = 1;
    *r = (rm_runner){.api = s->api,
                     .chain = &s->chain,
                     .arena_offset = s->chain.at.bytes,
                     .own_from = UINT64_MAX,
                     .seed = seed,
                     .stateful = s->stateful,
                     .dropout_sample = -1,
                     .ranks = &s->ranks,
                     .owner = s,
                     .external = r->external,
                     .tier = r->tier,
                     .pipeline = &s->pipeline};
    rm_run_connect_ranks(r);
    s->arena_bytes = s->chain.at.bytes + rm_session_activations_bytes(s);
    if (s->plan_only) return make_buckets(s);
    TRY(s->api->block_create(s->device, s->lender ? s->chain.at.bytes : s->arena_bytes, &s->block));
    TRY(s->api->queue_create(s->device, &r->queue));
    if (s->pipeline.device) r->stream = s->api->stream(r->queue, s->pipeline.poll, s->pipeline.context);
    r->resident = rm_resident_begin(s->api->claim(s->block, 0, s->chain.at.bytes));
    r->block = s->block;
    if (s->lender) TRY(rm_session_share_arena(s));
    TRY(make_buckets(s));
    if (!s->lender) TRY(share_pages(s));
    if (!s->lender) TRY(prepare_buckets(s));
    TRY(make_events(s));
    TRY(allocate_tables(s));
    float share = (float)rm_session_loss_share(s);
    s->api->copy_in(r->queue, r->resident + s->chain.at.one_offset, &share, sizeof share);
    TRY(s->api->synchronize(r->queue));
    return rm_session_draw_parameters(s);
}

/* rm_moved, in the thread that makes the transfers. */
static void tell_of_transfer(void *runner, bool save, uint64_t begin_ns, uint64_t bytes) {
    const rm_runner *r = runner;
    rm_observed(&r->observer, begin_ns,
                (remat_event){.kind = save ? REMAT_EVENT_SAVE : REMAT_EVENT_LOAD, .bytes = bytes});
}

/* From here on passes are observed; measurements of kernels were not. */
static remat_status begin_observing(remat_session *s, const remat_config *config) {
    rm_runner *r = &s->runner;
    TRY(rm_take_observer(config->observer, &r->observer));
    if (!r->observer.event || s->plan_only) return REMAT_OK;
    if (r->tier && s->api->tier_watch) s->api->tier_watch(r->tier, tell_of_transfer, r);
    return s->inference ? REMAT_OK : rm_trace_create(&s->chain.problem, s->training.plan.n_steps, &s->trace);
}

/* Gives the session the memory of the external arrays that the program named. Its arrays must have been listed. */
static remat_status borrow(remat_session *s, const remat_config *config) {
    int32_t n = s->chain.at.n_external;
    s->runner.external = rm_calloc((size_t)n + 1, sizeof *s->runner.external);
    REQUIRE(s->runner.external, MEMORY, "out of memory for external arrays");
    for (int i = 0; i < config->n_external; i++) {
        const remat_external *e = &config->external[i];
        int64_t index = e->name ? remat_find(s, e->kind, e->name) : 0;
        REQUIRE(index >= 0, INVALID, "external[%d]: this session has no %s \"%s\"", i, kind_text[e->kind], e->name);
        if (!e->memory || s->plan_only) continue;
        TRY(remat_set_external(s, e->kind, index, e->memory, rm_session_held_bytes(&s->array[e->kind][index])));
    }
    return REMAT_OK;
}

/* Applies train_only. The loss or a differentiated output must depend on a parameter that is still trained. */
static remat_status freeze(remat_graph *graph, int32_t loss, const remat_config *config) {
    if (!config->train_only || config->inference) return REMAT_OK;
    TRY(rm_graph_train_only(graph, config->train_only));
    bool any = graph->value[loss].needs_gradient;
    for (int i = 0; i < config->n_differentiated; i++) any |= graph->value[config->outputs[i].id].needs_gradient;
    REQUIRE(
        any, INVALID,
        "{train_only} is \"%s\", but neither the loss nor a differentiated output depends on these parameters; name "
        "parameters that it depends on",
        config->train_only);
    return REMAT_OK;
}

static remat_status create(remat_session *s, const remat_graph *graph, int32_t loss, const remat_config *config) {
    TRY(remat_graph_check(graph));
    TRY(rm_session_configure(s, config));
    TRY(rm_session_join(s, config->share));
    TRY(check_ends(graph, loss, config));
    TRY(check_external(s, config));
    TRY(rm_graph_copy(graph, &s->graph));
    TRY(freeze(s->graph, loss, config));
    TRY(cut(s, loss, config));
    TRY(rm_session_choose_mean(s, loss, config));
    rm_parts_choose(s);
    TRY(rm_session_choose_groups(s, config->groups));
    TRY(rm_session_open_tier(s, config));
    TRY(rm_session_make_plans(s, config));
    TRY(rm_session_settle_tier(s));
    TRY(rm_session_list_arrays(s));
    TRY(rm_session_connect(s));
    TRY(borrow(s, config));
    rm_host_trim(); /* return planning's temporary memory before the block is allocated */
    TRY(allocate(s, config->seed));
    return begin_observing(s, config);
}

remat_status rm_session_try_cut(const remat_graph *graph, int32_t loss, const remat_config *config,
                                const rm_node_run *full, int n_full, rm_layer_times *times, remat_session **out) {
    remat_session *s = *out = rm_calloc(1, sizeof *s);
    remat_config planned = *config;
    REQUIRE(s, MEMORY, "out of memory for a session");
    s->full = full;
    s->n_full = n_full;
    s->layer_times = times;
    s->tries_cut = planned.plan_only = true;
    planned.calibration = NULL; /* only bytes matter */
    return create(s, graph, loss, &planned);
}

remat_status remat_session_create(const remat_graph *graph, remat_value loss, const remat_config *config,
                                  remat_session **out) {
    remat_config ours;
    rm_cut_choice choice = {0};
    remat_pipeline pipeline;
    remat_session *s = NULL;
    remat_status status = REMAT_OK;
    NEED(graph, "a graph");
    NEED(config, "a config");
    NEED(out, "a place for the session");
    TRY(rm_take(&ours, sizeof ours, config, "remat_config"));
    if (ours.pipeline) {
        TRY(rm_take(&pipeline, sizeof pipeline, ours.pipeline, "remat_pipeline"));
        ours.pipeline = &pipeline;
    }
    if (ours.pipeline) status = rm_session_agree_on_cut(graph, loss.id, &ours, &choice);
    if (choice.cut) pipeline.cut = choice.cut;
    if (!status) s = rm_calloc(1, sizeof *s);
    if (!status) status = s ? create(s, graph, loss.id, &ours) : rm_fail(REMAT_MEMORY, "out of memory for a session");
    rm_cut_choice_free(&choice);
    if (status)
        remat_session_free(s);
    else
        *out = s;
    return status;
}

void remat_session_free(remat_session *s) {
    if (!s) return;
    if (s->n_sharing) {
        s->freed = true;
        return;
    }
    rm_session_free_arrays(s);
    rm_parts_free(s);
    rm_trace_free(s->trace);
    rm_free(s->loss);
    rm_free(s->shard_loss);
    rm_free(s->shard_count);
    rm_free(s->squares);
    rm_free(s->bucket);
    rm_free(s->sums);
    rm_free(s->runner.piece);
    rm_free(s->runner.saved);
    rm_free(s->runner.kept);
    rm_free(s->runner.end);
    rm_free(s->runner.external);
    rm_verify_free(s->runner.verify);
    /* Here a lost rank ends the wait for its messages. */
    if (s->runner.stream) (void)s->api->synchronize(s->runner.queue);
    if (s->runner.tier) s->api->tier_close(s->runner.tier);
    if (s->runner.queue) s->api->queue_free(s->runner.queue);
    if (s->block) unshare_pages(s);
    free_events(s); /* no rank waits for them any more */
    if (s->block) s->api->block_free(s->block);
    rm_schedule_free(&s->training);
    rm_schedule_free(&s->evaluation);
    rm_chain_free(&s->chain);
    rm_session_free_needs(s);
    rm_problem_free(&s->most.problem);
    rm_problem_free(&s->most.evaluation);
    remat_graph_free(s->graph);
    if (s->device) s->api->close(s->device);
    rm_session_leave(s);
    rm_free(s);
}
