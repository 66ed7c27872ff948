/* resident.c: lays out what stays in memory for the session's whole life, in one run of bytes from offset 0:
 *
 *   parameters | gradients | inputs' and tables' gradients | optimizer | packed weights | one timestep | inputs | ...
 *
 * Every array starts on a multiple of RM_ALIGN; parameters and gradients, in buckets, on a page, because other ranks may share
 * these pages (remat_ranks.map). A block begins on any multiple of RM_ALIGN, so that it can end at a guard page: what is
 * resident begins at its first page, and has that much room more. The sizes become the problem's resident entries. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/chain/buckets.h"
#include "memory/host.h"

static uint64_t reserve(uint64_t *cursor, uint64_t bytes) {
    uint64_t offset = *cursor;
    *cursor += rm_align_up(bytes);
    return offset;
}

static void close_section(rm_chain *chain, const char *name, uint64_t start) {
    rm_problem *problem = &chain->problem;
    rm_resident *section = &problem->resident[problem->n_resident++];
    snprintf(section->name, sizeof section->name, "%s", name);
    section->bytes = chain->at.bytes - start;
}

static rm_where resident(uint64_t offset) { return (rm_where){.space = RM_RESIDENT, .offset = offset}; }

static uint64_t value_bytes(const rm_chain *chain, int32_t value) {
    return rm_desc_bytes(&chain->graph->value[value].desc);
}

static bool is_table(const rm_chain *chain, int32_t value) {
    const rm_value *v = &chain->graph->value[value];
    return v->origin == RM_VALUE_RESULT && chain->role[v->node] == RM_ROLE_TABLE;
}

static uint64_t page_bytes(void) { return (uint64_t)sysconf(_SC_PAGESIZE); }

char *rm_resident_begin(void *block) {
    return (char *)(((uintptr_t)block + page_bytes() - 1) & ~(uintptr_t)(page_bytes() - 1));
}

/* Parameters or gradients, in buckets. Pages are filled up outside the section, so that its size is that of its arrays. */
static uint64_t reserve_section(rm_chain *chain, const char *name) {
    rm_residents *at = &chain->at;
    uint64_t offset = at->bytes;
    at->bytes += at->section_bytes;
    close_section(chain, name, offset);
    at->bytes = offset + at->section_pages_bytes;
    return offset;
}

static void lay_out_params(rm_chain *chain, const rm_chain_config *config) {
    rm_residents *at = &chain->at;
    at->section_bytes = (uint64_t)at->buckets.count * sizeof(float);
    at->section_pages_bytes = (at->section_bytes + page_bytes() - 1) / page_bytes() * page_bytes();
    at->parameters_offset = reserve_section(chain, "parameters");
    if (!config->inference) at->gradients_offset = reserve_section(chain, "gradients");
    for (int32_t i = 0; i < at->buckets.n_params; i++) {
        const rm_parameter *p = &at->buckets.param[i];
        if (p->bucket < 0) continue;
        uint64_t offset = (uint64_t)p->at * sizeof(float);
        at->value[p->value] = resident(at->parameters_offset + offset);
        if (!config->inference) at->gradient[p->value] = resident(at->gradients_offset + offset);
    }
}

/* No other rank has a part in them. */
static void lay_out_frozen(rm_chain *chain) {
    uint64_t start = chain->at.bytes;
    for (int32_t i = 0; i < chain->at.buckets.n_params; i++) {
        const rm_parameter *p = &chain->at.buckets.param[i];
        if (p->bucket < 0)
            chain->at.value[p->value] = resident(reserve(&chain->at.bytes, value_bytes(chain, p->value)));
    }
    if (chain->at.bytes > start) close_section(chain, "frozen parameters", start);
}

static rm_where along_time(const rm_chain *chain, int32_t v, rm_where where) {
    const rm_value *value = &chain->graph->value[v];
    if (value->sequence) where.per_time = value_bytes(chain, v) / (uint64_t)value->desc.dim[0];
    where.from_end = value->reversed;
    return where;
}

/* In the block, whole; of a sequence, each tile's part. */
static rm_where reserve_value(rm_chain *chain, int32_t v) {
    return along_time(chain, v, resident(reserve(&chain->at.bytes, value_bytes(chain, v))));
}

/* The same, or in memory of the program's. */
static rm_where reserve_or_borrow(rm_chain *chain, const rm_chain_config *config, int32_t v) {
    for (int i = 0; i < config->n_external; i++)
        if (config->external[i].value.id == v) return along_time(chain, v, (rm_where){.space = RM_EXTERNAL, .slot = i});
    return reserve_value(chain, v);
}

/* Of inputs, too: both begin a pass at zero. */
static void lay_out_table_gradients(rm_chain *chain, const rm_chain_config *config) {
    rm_residents *at = &chain->at;
    const remat_graph *graph = chain->graph;
    at->table_gradients_offset = at->bytes;
    for (int32_t v = 1; v < graph->n_values && !config->inference; v++)
        if (is_table(chain, v) ? chain->use[v] == RM_DIFFERENTIATED
                               : graph->value[v].origin == RM_VALUE_INPUT && graph->value[v].needs_gradient)
            at->gradient[v] = reserve_value(chain, v);
    at->table_gradients_bytes = at->bytes - at->table_gradients_offset;
    close_section(chain, "input and table gradients", at->table_gradients_offset);
}

/* For each bucket, each array of state of this rank's part of it. */
static void lay_out_optimizer(rm_chain *chain, const rm_chain_config *config) {
    rm_residents *at = &chain->at;
    const rm_buckets *b = &at->buckets;
    uint64_t start = at->bytes;
    int states = config->inference ? 0 : config->optimizer_states;
    for (int32_t i = 0; i < b->n_trained && states; i++) {
        const rm_parameter *p = &b->param[b->order[i]];
        const rm_bucket *bucket = &b->item[p->bucket];
        int64_t part = rm_part_count(b, bucket), within = p->at + p->first - bucket->at - rm_part_at(b, bucket);
        uint64_t begin = start + (uint64_t)(bucket->at / b->parts * states) * sizeof(float);
        for (int k = 0; k < states; k++)
            at->optimizer_state[p->value * RM_MAX_OPTIMIZER_STATE + k] =
                begin + (uint64_t)(k * part + (p->held ? within : 0)) * sizeof(float);
    }
    at->bytes += (uint64_t)(b->count / b->parts * states) * sizeof(float);
    close_section(chain, "optimizer", start);
}

static void lay_out_sums(rm_chain *chain, const rm_chain_config *config) {
    rm_residents *at = &chain->at;
    at->sums_offset = at->bytes;
    at->bytes += config->inference ? 0 : (uint64_t)config->gradient_sums * at->section_bytes;
    close_section(chain, "gradient sums", at->sums_offset);
}

/* They are made before the first stage runs. */
static remat_status check_packed(rm_chain *chain, int32_t n) {
    const rm_node *node = &chain->graph->node[n];
    for (int k = 0; k < node->op->n_in; k++) {
        const rm_value *value = &chain->graph->value[node->x[k]];
        if (!(node->op->shared >> k & 1) || !node->x[k]) continue;
        bool there =
            value->origin != RM_VALUE_RESULT || (is_table(chain, node->x[k]) && chain->role[n] != RM_ROLE_TABLE);
        REQUIRE(there, INVALID,
                "%s: input %d is a weight, which this layer arranges anew before a step, but it is made of data within "
                "the step; make it of parameters alone",
                node->op->name, k);
        chain->at.packs_inputs |= value->origin == RM_VALUE_INPUT;
    }
    return REMAT_OK;
}

static remat_status lay_out_packed(rm_chain *chain, const rm_chain_config *config) {
    uint64_t start = chain->at.bytes;
    for (int32_t n = 0; n < chain->graph->n_nodes; n++) {
        const rm_node *node = &chain->graph->node[n];
        const remat_op_device *on = &node->op->on[config->kernels];
        chain->at.packed[n] = UINT64_MAX;
        if (chain->role[n] == RM_ROLE_DEAD || !on->packed_bytes) continue;
        remat_desc x[REMAT_MAX_INPUTS], y, state[REMAT_MAX_STATES];
        rm_node_descs(chain->graph, node, 0, x, &y, state);
        uint64_t bytes = on->packed_bytes(x, node->attr, config->threads);
        if (!bytes) continue;
        TRY(check_packed(chain, n));
        chain->at.packed[n] = reserve(&chain->at.bytes, bytes);
    }
    close_section(chain, "packed weights", start);
    return REMAT_OK;
}

/* What launches of all tiles share (remat_op.h, fixed): as much as the largest node needs, since they take turns. */
static void lay_out_fixed(rm_chain *chain, const rm_chain_config *config) {
    rm_residents *at = &chain->at;
    for (int32_t n = 0; n < chain->graph->n_nodes; n++) {
        const rm_node *node = &chain->graph->node[n];
        const remat_op_device *on = &node->op->on[config->kernels];
        if (chain->role[n] == RM_ROLE_DEAD || !on->fixed_bytes) continue;
        remat_desc x[REMAT_MAX_INPUTS], y, state[REMAT_MAX_STATES];
        rm_node_descs(chain->graph, node, 0, x, &y, state);
        uint64_t bytes = on->fixed_bytes(x, node->attr);
        if (bytes > at->fixed_bytes) at->fixed_bytes = bytes;
    }
    at->fixed = reserve(&at->bytes, at->fixed_bytes);
    close_section(chain, "one timestep", at->fixed);
}

/* Buffers; and once results, one for each stage of the node's sweep, or, of nodes that run once, one. */
static void lay_out_once(rm_chain *chain) {
    rm_residents *at = &chain->at;
    uint64_t start = at->bytes;
    for (int32_t v = 1; v < chain->graph->n_values; v++)
        if (chain->graph->value[v].origin == RM_VALUE_BUFFER) at->value[v] = reserve_value(chain, v);
    for (int32_t n = 0; n < chain->graph->n_nodes; n++) {
        const rm_node *node = &chain->graph->node[n];
        if (chain->role[n] == RM_ROLE_DEAD || !node->op->once_bytes) continue;
        const rm_sweep *sweep = chain->role[n] == RM_ROLE_CHAIN ? &chain->sweep[chain->sweep_of[n]] : NULL;
        bool tiles = sweep && !sweep->whole;
        remat_desc x[REMAT_MAX_INPUTS], y, state[REMAT_MAX_STATES];
        rm_node_descs(chain->graph, node, tiles ? sweep->tile : 0, x, &y, state);
        at->once_bytes[n] = rm_align_up(node->op->once_bytes(x, node->attr));
        at->once[n] = reserve(&at->bytes, at->once_bytes[n] * (uint64_t)(sweep ? sweep->count : 1));
    }
    close_section(chain, "buffers and once results", start);
}

static void lay_out_inputs(rm_chain *chain, const rm_chain_config *config) {
    uint64_t start = chain->at.bytes;
    for (int32_t v = 1; v < chain->graph->n_values; v++)
        if (chain->graph->value[v].origin == RM_VALUE_INPUT) chain->at.value[v] = reserve_or_borrow(chain, config, v);
    close_section(chain, "inputs", start);
}

static void lay_out_small(rm_chain *chain, const rm_chain_config *config) {
    rm_residents *at = &chain->at;
    uint64_t start = at->bytes;
    for (int32_t v = 1; v < chain->graph->n_values; v++)
        if (is_table(chain, v)) at->value[v] = resident(reserve(&at->bytes, value_bytes(chain, v)));
    close_section(chain, "tables", start);
    start = at->bytes;
    at->one_offset = reserve(&at->bytes, sizeof(float));
    at->loss_bytes = (uint64_t)chain->n_stages * sizeof(float);
    at->loss_offset = reserve(&at->bytes, at->loss_bytes);
    if (!chain->timed && chain->loss) { /* where later stages read it, for outputs made of it */
        int32_t sweep = chain->sweep_of[chain->graph->value[chain->loss].node];
        at->value[chain->loss] = resident(at->loss_offset + (uint64_t)chain->sweep[sweep].first * sizeof(float));
    }
    uint64_t carried_bytes = 0;
    for (int k = 0; config->stateful && k < chain->n_carried; k++)
        if (chain->carried[k].state >= 0) chain->carried[k].kept = reserve(&carried_bytes, chain->carried[k].bytes);
    at->carried = reserve(&at->bytes, carried_bytes);
    at->carried_next = reserve(&at->bytes, carried_bytes);
    close_section(chain, "loss and carried state", start);
    start = at->bytes;
    for (int i = 0; i < chain->n_outputs; i++) at->output[i] = reserve_or_borrow(chain, config, chain->outputs[i]);
    for (int i = 0; i < chain->n_differentiated; i++)
        at->gradient[chain->outputs[i]] = reserve_value(chain, chain->outputs[i]);
    close_section(chain, "outputs", start);
}

remat_status rm_chain_lay_out(rm_chain *chain, const rm_chain_config *config) {
    size_t values = (size_t)chain->graph->n_values, nodes = (size_t)chain->graph->n_nodes + 1;
    rm_residents *at = &chain->at;
    at->value = rm_calloc(values, sizeof *at->value);
    at->gradient = rm_calloc(values, sizeof *at->gradient);
    at->packed = rm_calloc(nodes, sizeof *at->packed);
    at->once = rm_calloc(nodes, sizeof *at->once);
    at->once_bytes = rm_calloc(nodes, sizeof *at->once_bytes);
    at->output = rm_calloc((size_t)chain->n_outputs + 1, sizeof *at->output);
    at->optimizer_state = rm_calloc(values * RM_MAX_OPTIMIZER_STATE, sizeof *at->optimizer_state);
    REQUIRE(at->value && at->gradient && at->packed && at->once && at->once_bytes && at->output && at->optimizer_state,
            MEMORY, "out of memory for the layout of %zu values", values);
    TRY(rm_buckets_cut(chain, config->ranks));
    lay_out_params(chain, config);
    lay_out_frozen(chain);
    lay_out_table_gradients(chain, config);
    lay_out_optimizer(chain, config);
    lay_out_sums(chain, config);
    TRY(lay_out_packed(chain, config));
    lay_out_fixed(chain, config);
    lay_out_once(chain);
    lay_out_inputs(chain, config);
    lay_out_small(chain, config);
    return REMAT_OK;
}

static void lay_out_hashes(rm_chain *chain, const rm_chain_config *config) {
    rm_residents *at = &chain->at;
    if (!config->hashes) return;
    at->hashes_bytes = sizeof(rm_difference) + (uint64_t)rm_chain_state_pieces(chain) * sizeof(uint64_t);
    at->hashes_offset = reserve(&at->bytes, at->hashes_bytes);
    close_section(chain, "hashes of states", at->hashes_offset);
}

void rm_chain_lay_out_rest(rm_chain *chain, const rm_chain_config *config) {
    rm_residents *at = &chain->at;
    uint64_t before = chain->prologue.scratch_bytes, after = chain->epilogue.scratch_bytes;
    at->table_scratch = reserve(&at->bytes, before > after ? before : after);
    close_section(chain, "table scratch", at->table_scratch);
    lay_out_hashes(chain, config);
    uint64_t sections = config->inference ? 1 : 2; /* what fills their pages up is in at->bytes already */
    uint64_t filling = sections * (at->section_pages_bytes - at->section_bytes);
    at->bytes += page_bytes() - RM_ALIGN; /* the most that lies between the block's begin and its first page */
    close_section(chain, "alignment", at->bytes - (page_bytes() - RM_ALIGN) - filling);
}
