/* resident.c: lays out the arrays that stay in memory for the session's whole life, from offset 0 of the block:
 *
 *   parameters | gradients | inputs' and tables' gradients | optimizer | packed weights | one timestep | inputs | ...
 *
 * Arrays in external memory (remat_config.external) are left out; they have a slot instead of an offset.
 *
 * Every array starts at a multiple of RM_ALIGN. The sections of parameters and gradients start on a page, because other
 * ranks may map these pages (remat_ranks.map). A block starts at any multiple of RM_ALIGN, so that it can end at a
 * guard page; the resident part starts at its first page boundary, and its size includes the bytes before it. The sizes
 * become the problem's resident entries. */
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

static bool runs_here(const rm_chain *chain, int32_t n) {
    return chain->role[n] != RM_ROLE_DEAD && rm_runs_on(chain, n, chain->rank);
}

static uint64_t page_bytes(void) { return (uint64_t)sysconf(_SC_PAGESIZE); }

char *rm_resident_begin(void *block) {
    return (char *)(((uintptr_t)block + page_bytes() - 1) & ~(uintptr_t)(page_bytes() - 1));
}

/* ---- External memory ------------------------------------------------------------------------------------------- */

/* The entry of config->external for this array; -1: none. */
static int entry_of(const rm_chain_config *config, remat_kind kind, const char *name) {
    for (int i = 0; i < config->n_external; i++) {
        const remat_external *e = &config->external[i];
        if (e->kind == kind && (!e->name || !strcmp(e->name, name))) return i;
    }
    return -1;
}

/* Whether the array is external. If so, *where is a new slot. */
static bool borrow(rm_chain *chain, const rm_chain_config *config, remat_kind kind, const char *name, uint64_t bytes,
                   rm_where *where) {
    int entry = entry_of(config, kind, name);
    if (entry < 0 && !(config->shared && config->shared(config->owner, kind, name, bytes))) return false;
    *where = (rm_where){.space = RM_EXTERNAL, .slot = chain->at.n_external};
    chain->at.external[chain->at.n_external++] = (rm_slot){entry, bytes};
    return true;
}

/* Every array that could be external. */
static int64_t count_arrays(const rm_chain *chain, const rm_chain_config *config) {
    return 2 * (int64_t)chain->graph->n_values + config->optimizer_states * (int64_t)chain->at.buckets.n_params +
           chain->n_carried + 2 * chain->n_outputs + 1; /* packed weights */
}

/* ---- Sections -------------------------------------------------------------------------------------------------- */

static uint64_t in_pages(uint64_t bytes) { return (bytes + page_bytes() - 1) / page_bytes() * page_bytes(); }

/* Lays out parameters or gradients in the order of the buckets. Offsets and slots both increase in this order, since
 * buckets.c searches them. The padding to whole pages is not counted in the section's size. */
static uint64_t lay_out_section(rm_chain *chain, const rm_chain_config *config, remat_kind kind, rm_where *where,
                                const char *name) {
    const rm_buckets *b = &chain->at.buckets;
    uint64_t start = chain->at.bytes, left_out = 0;
    for (int32_t i = 0; i < b->n_trained; i++) {
        const rm_parameter *p = &b->param[b->order[i]];
        uint64_t bytes = value_bytes(chain, p->value), offset = start + (uint64_t)p->at * sizeof(float) - left_out;
        where[p->value] = resident(offset);
        where[p->value].slot = chain->at.n_external;
        if (!borrow(chain, config, kind, chain->graph->value[p->value].name, bytes, &where[p->value])) continue;
        where[p->value].offset = offset;
        left_out += rm_align_up(bytes);
    }
    uint64_t bytes = chain->at.section_bytes - left_out;
    chain->at.bytes = start + bytes;
    close_section(chain, name, start);
    chain->at.bytes = start + in_pages(bytes);
    return bytes;
}

static void lay_out_params(rm_chain *chain, const rm_chain_config *config) {
    rm_residents *at = &chain->at;
    at->section_bytes = (uint64_t)at->buckets.count * sizeof(float);
    at->parameters_offset = at->bytes;
    at->parameters_bytes = lay_out_section(chain, config, REMAT_PARAM, at->value, "parameters");
    if (config->inference) return;
    at->gradients_offset = at->bytes;
    at->gradients_bytes = lay_out_section(chain, config, REMAT_GRADIENT, at->gradient, "gradients");
}

/* Frozen parameters are outside the section that ranks share. */
static void lay_out_frozen(rm_chain *chain, const rm_chain_config *config) {
    uint64_t start = chain->at.bytes;
    for (int32_t i = 0; i < chain->at.buckets.n_params; i++) {
        const rm_parameter *p = &chain->at.buckets.param[i];
        uint64_t bytes = value_bytes(chain, p->value);
        rm_where *where = &chain->at.value[p->value];
        if (!rm_chain_holds(chain, p->value))
            *where = chain->at.gradient[p->value] = resident(RM_ELSEWHERE);
        else if (p->bucket < 0 && !borrow(chain, config, REMAT_PARAM, chain->graph->value[p->value].name, bytes, where))
            *where = resident(reserve(&chain->at.bytes, bytes));
    }
    if (chain->at.bytes > start) close_section(chain, "frozen parameters", start);
}

static rm_where along_time(const rm_chain *chain, int32_t v, rm_where where) {
    const rm_value *value = &chain->graph->value[v];
    if (value->sequence) where.per_time = value_bytes(chain, v) / (uint64_t)value->desc.dim[0];
    where.from_end = value->reversed;
    return where;
}

/* Reserves a whole value in the block, or in external memory unless `name` is NULL. If it is a sequence, stages
 * address their tile's part. */
static rm_where reserve_value(rm_chain *chain, const rm_chain_config *config, int32_t v, remat_kind kind,
                              const char *name) {
    rm_where where;
    rm_chain_config unshared = *config;
    if (kind == REMAT_GRADIENT) unshared.shared = NULL; /* an input's gradient; its name may be that of another
                                                           session's parameter */
    if (!rm_chain_holds(chain, v)) return resident(RM_ELSEWHERE);
    if (!name || !borrow(chain, &unshared, kind, name, value_bytes(chain, v), &where))
        where = resident(reserve(&chain->at.bytes, value_bytes(chain, v)));
    return along_time(chain, v, where);
}

/* Also used for gradients of inputs: both are zeroed at the start of a pass. */
static void lay_out_table_gradients(rm_chain *chain, const rm_chain_config *config) {
    rm_residents *at = &chain->at;
    const remat_graph *graph = chain->graph;
    at->table_gradients_offset = at->bytes;
    for (int32_t v = 1; v < graph->n_values && !config->inference; v++)
        if (is_table(chain, v) ? chain->use[v] == RM_DIFFERENTIATED
                               : graph->value[v].origin == RM_VALUE_INPUT && graph->value[v].needs_gradient)
            at->gradient[v] = reserve_value(chain, config, v, REMAT_GRADIENT, graph->value[v].name);
    at->table_gradients_bytes = at->bytes - at->table_gradients_offset;
    close_section(chain, "input and table gradients", at->table_gradients_offset);
}

/* Bytes of the longest "PARAMETER.STATE", with its end. */
static size_t longest_state_name(const rm_chain *chain, const rm_chain_config *config) {
    size_t parameter = 0, state = 0;
    for (int32_t i = 0; i < chain->at.buckets.n_params; i++) {
        size_t length = strlen(chain->graph->value[chain->at.buckets.param[i].value].name);
        if (length > parameter) parameter = length;
    }
    for (int k = 0; k < config->optimizer_states; k++)
        if (strlen(config->optimizer_state_name[k]) > state) state = strlen(config->optimizer_state_name[k]);
    return parameter + state + 2;
}

/* Lays out optimizer state k for this rank's part of a bucket, at `start`. *left_out: bytes of external arrays so
 * far. `name` has room for every state's. */
static void lay_out_state(rm_chain *chain, const rm_chain_config *config, const rm_bucket *bucket, int k,
                          uint64_t start, uint64_t *left_out, char *name) {
    const rm_buckets *b = &chain->at.buckets;
    for (int32_t i = bucket->first_param; i < bucket->first_param + bucket->n_params; i++) {
        const rm_parameter *p = &b->param[b->order[i]];
        uint64_t within = p->held ? (uint64_t)(p->at + p->first - bucket->at - rm_part_at(b, bucket)) : 0;
        uint64_t bytes = (uint64_t)p->held * sizeof(float);
        rm_where *where = &chain->at.optimizer_state[b->order[i] * RM_MAX_OPTIMIZER_STATE + k];
        sprintf(name, "%s.%s", chain->graph->value[p->value].name, config->optimizer_state_name[k]);
        if (borrow(chain, config, REMAT_OPTIMIZER, name, bytes, where))
            *left_out += rm_align_up(bytes);
        else
            *where = resident(start + within * sizeof(float) - *left_out);
    }
}

/* For each bucket, one array per optimizer state, for this rank's part of the bucket. */
static remat_status lay_out_optimizer(rm_chain *chain, const rm_chain_config *config) {
    const rm_buckets *b = &chain->at.buckets;
    uint64_t start = chain->at.bytes, cursor = start, left_out = 0;
    char *name = rm_malloc(longest_state_name(chain, config));
    REQUIRE(name, MEMORY, "out of memory for the names of the optimizer's state");
    for (int32_t i = 0; i < b->n && !config->inference; i++)
        for (int k = 0; k < config->optimizer_states; k++) {
            lay_out_state(chain, config, &b->item[i], k, cursor, &left_out, name);
            cursor += (uint64_t)rm_part_count(b, &b->item[i]) * sizeof(float);
        }
    rm_free(name);
    chain->at.bytes = cursor - left_out;
    close_section(chain, "optimizer", start);
    return REMAT_OK;
}

static void lay_out_sums(rm_chain *chain, const rm_chain_config *config) {
    rm_residents *at = &chain->at;
    at->sums_offset = at->bytes;
    at->bytes += config->inference ? 0 : (uint64_t)config->gradient_sums * at->section_bytes;
    close_section(chain, "gradient sums", at->sums_offset);
}

/* Packed weights are made before the first stage runs. */
static remat_status check_packed(rm_chain *chain, int32_t n) {
    const rm_node *node = &chain->graph->node[n];
    for (int k = 0; k < node->op->n_in; k++) {
        const rm_value *value = &chain->graph->value[node->x[k]];
        if (!(node->op->shared >> k & 1) || !node->x[k]) continue;
        bool there =
            value->origin != RM_VALUE_RESULT || (is_table(chain, node->x[k]) && chain->role[n] != RM_ROLE_TABLE);
        REQUIRE(there, INVALID,
                "%s: input %d is a weight, which this layer packs before a step, but it is computed from data within "
                "the step; compute it from parameters only",
                node->op->name, k);
        chain->at.packs_inputs |= value->origin == RM_VALUE_INPUT;
    }
    return REMAT_OK;
}

/* In another session's memory if they fit there. */
static void place_packed(rm_chain *chain, const rm_chain_config *config) {
    rm_residents *at = &chain->at;
    uint64_t start = at->bytes;
    if (at->packed_bytes && at->packed_bytes <= config->packed_room) {
        at->packed_at = (rm_where){.space = RM_EXTERNAL, .slot = at->n_external};
        at->external[at->n_external++] = (rm_slot){-1, at->packed_bytes};
    } else {
        at->packed_at = resident(reserve(&at->bytes, at->packed_bytes));
    }
    close_section(chain, "packed weights", start);
}

static remat_status lay_out_packed(rm_chain *chain, const rm_chain_config *config) {
    for (int32_t n = 0; n < chain->graph->n_nodes; n++) {
        const rm_node *node = &chain->graph->node[n];
        const remat_op_device *on = &node->op->on[config->kernels];
        chain->at.packed[n] = UINT64_MAX;
        if (!runs_here(chain, n) || !on->packed_bytes) continue;
        remat_desc x[REMAT_MAX_INPUTS], y, state[REMAT_MAX_STATES];
        rm_node_descs(chain->graph, node, 0, x, &y, state);
        uint64_t bytes = on->packed_bytes(x, node->attr, config->threads);
        if (!bytes) continue;
        TRY(check_packed(chain, n));
        chain->at.packed[n] = reserve(&chain->at.packed_bytes, bytes);
    }
    place_packed(chain, config);
    return REMAT_OK;
}

/* Memory that the launches of all tiles share (remat_op.h, fixed): as much as the largest node needs, since nodes use
 * it in turn. */
static void lay_out_fixed(rm_chain *chain, const rm_chain_config *config) {
    rm_residents *at = &chain->at;
    for (int32_t n = 0; n < chain->graph->n_nodes; n++) {
        const rm_node *node = &chain->graph->node[n];
        const remat_op_device *on = &node->op->on[config->kernels];
        if (!runs_here(chain, n) || !on->fixed_bytes) continue;
        remat_desc x[REMAT_MAX_INPUTS], y, state[REMAT_MAX_STATES];
        rm_node_descs(chain->graph, node, 0, x, &y, state);
        uint64_t bytes = on->fixed_bytes(x, node->attr);
        if (bytes > at->fixed_bytes) at->fixed_bytes = bytes;
    }
    at->fixed = reserve(&at->bytes, at->fixed_bytes);
    close_section(chain, "one timestep", at->fixed);
}

/* Buffers, and once results: one for each stage of the node's sweep, or a single one for nodes that run once. */
static void lay_out_once(rm_chain *chain, const rm_chain_config *config) {
    rm_residents *at = &chain->at;
    uint64_t start = at->bytes;
    for (int32_t v = 1; v < chain->graph->n_values; v++)
        if (chain->graph->value[v].origin == RM_VALUE_BUFFER)
            at->value[v] = reserve_value(chain, config, v, REMAT_BUFFER, chain->graph->value[v].name);
    for (int32_t n = 0; n < chain->graph->n_nodes; n++) {
        const rm_node *node = &chain->graph->node[n];
        if (!runs_here(chain, n) || !node->op->once_bytes) continue;
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
        if (chain->graph->value[v].origin == RM_VALUE_INPUT)
            chain->at.value[v] = reserve_value(chain, config, v, REMAT_INPUT, chain->graph->value[v].name);
    close_section(chain, "inputs", start);
}

/* The states that a call starts with, and those it leaves for the next call, which are never external: a failed pass
 * changes no state. */
static void lay_out_carried(rm_chain *chain, const rm_chain_config *config) {
    rm_residents *at = &chain->at;
    uint64_t next_bytes = 0;
    for (int32_t k = 0; config->stateful && k < chain->n_carried; k++) {
        rm_carried *carried = &chain->carried[k];
        char name[80];
        if (!carried->keeps) continue;
        at->carried[k] = resident(RM_ELSEWHERE);
        if (!runs_here(chain, carried->node)) continue;
        rm_chain_state_name(chain, k, name);
        carried->kept = reserve(&next_bytes, carried->bytes);
        if (!borrow(chain, config, REMAT_CARRIED, name, carried->bytes, &at->carried[k]))
            at->carried[k] = resident(reserve(&at->bytes, carried->bytes));
    }
    at->carried_next = reserve(&at->bytes, next_bytes);
}

static void lay_out_small(rm_chain *chain, const rm_chain_config *config) {
    rm_residents *at = &chain->at;
    uint64_t start = at->bytes;
    for (int32_t v = 1; v < chain->graph->n_values; v++)
        if (is_table(chain, v)) at->value[v] = reserve_value(chain, config, v, REMAT_BUFFER, NULL);
    close_section(chain, "tables", start);
    start = at->bytes;
    at->one_offset = reserve(&at->bytes, sizeof(float));
    at->loss_bytes = (uint64_t)chain->n_stages * sizeof(float);
    at->loss_offset = reserve(&at->bytes, at->loss_bytes);
    if (!chain->timed && chain->loss) { /* later stages may read the loss to compute outputs */
        int32_t sweep = chain->sweep_of[chain->graph->value[chain->loss].node];
        at->value[chain->loss] = resident(at->loss_offset + (uint64_t)chain->sweep[sweep].first * sizeof(float));
    }
    lay_out_carried(chain, config);
    close_section(chain, "loss and carried state", start);
    start = at->bytes;
    for (int i = 0; i < chain->n_outputs; i++)
        at->output[i] =
            reserve_value(chain, config, chain->outputs[i], REMAT_OUTPUT, rm_output_name(i, (char[RM_OUTPUT_NAME]){0}));
    for (int i = 0; i < chain->n_differentiated; i++)
        at->gradient[chain->outputs[i]] = reserve_value(chain, config, chain->outputs[i], REMAT_OUTPUT_GRADIENT,
                                                        rm_output_name(i, (char[RM_OUTPUT_NAME]){0}));
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
    at->carried = rm_calloc((size_t)chain->n_carried + 1, sizeof *at->carried);
    TRY(rm_buckets_cut(chain, config->ranks));
    size_t states = (size_t)at->buckets.n_params * RM_MAX_OPTIMIZER_STATE + 1;
    at->optimizer_state = rm_calloc(states, sizeof *at->optimizer_state);
    if (config->n_external || config->shared)
        at->external = rm_calloc((size_t)count_arrays(chain, config), sizeof *at->external);
    REQUIRE(at->value && at->gradient && at->packed && at->once && at->once_bytes && at->output && at->carried &&
                at->optimizer_state && (at->external || !(config->n_external || config->shared)),
            MEMORY, "out of memory for the layout of %zu values", values);
    lay_out_params(chain, config);
    lay_out_frozen(chain, config);
    lay_out_table_gradients(chain, config);
    TRY(lay_out_optimizer(chain, config));
    lay_out_sums(chain, config);
    TRY(lay_out_packed(chain, config));
    lay_out_fixed(chain, config);
    lay_out_once(chain, config);
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
    uint64_t padding = in_pages(at->parameters_bytes) - at->parameters_bytes + in_pages(at->gradients_bytes) -
                       at->gradients_bytes; /* already included in at->bytes */
    at->bytes += page_bytes() - RM_ALIGN;   /* the largest distance between the block's start and its first page
                                               boundary */
    close_section(chain, "alignment", at->bytes - (page_bytes() - RM_ALIGN) - padding);
}
