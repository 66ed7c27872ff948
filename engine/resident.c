/* resident.c: lays out what stays in memory for the session's whole life, in one run of bytes from offset 0:
 *
 *   parameters | gradients (and tables' gradients) | optimizer | packed weights | inputs | tables, loss, outputs, ...
 *
 * Every array starts on a multiple of RM_ALIGN. The sizes become the problem's resident entries. */
#include <stdio.h>
#include <string.h>

#include "engine/chain.h"
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

static void lay_out_params(rm_chain *chain, const rm_chain_config *config) {
    rm_residents *at = &chain->at;
    const remat_graph *graph = chain->graph;
    uint64_t start = at->bytes;
    for (int32_t v = 1; v < graph->n_values; v++)
        if (graph->value[v].origin == RM_VALUE_PARAM)
            at->value[v] = resident(reserve(&at->bytes, value_bytes(chain, v)));
    close_section(chain, "parameters", start);
    start = at->gradients_offset = at->bytes;
    for (int32_t v = 1; v < graph->n_values && !config->inference; v++)
        if (graph->value[v].origin == RM_VALUE_PARAM)
            at->gradient[v] = resident(reserve(&at->bytes, value_bytes(chain, v)));
    close_section(chain, "gradients", start);
    uint64_t tables = at->bytes;
    for (int32_t v = 1; v < graph->n_values && !config->inference; v++)
        if (is_table(chain, v) && graph->value[v].needs_gradient)
            at->gradient[v] = resident(reserve(&at->bytes, value_bytes(chain, v)));
    close_section(chain, "table gradients", tables);
    at->gradients_bytes = at->bytes - at->gradients_offset;
    start = at->bytes;
    for (int32_t v = 1; v < graph->n_values && !config->inference; v++)
        for (int i = 0; graph->value[v].origin == RM_VALUE_PARAM && i < config->optimizer_states; i++)
            at->optimizer_state[v * RM_MAX_OPTIMIZER_STATE + i] = reserve(&at->bytes, value_bytes(chain, v));
    close_section(chain, "optimizer", start);
}

static void lay_out_packed(rm_chain *chain, const rm_chain_config *config) {
    uint64_t start = chain->at.bytes;
    for (int32_t n = 0; n < chain->graph->n_nodes; n++) {
        const rm_node *node = &chain->graph->node[n];
        chain->at.packed[n] = UINT64_MAX;
        if (chain->role[n] == RM_ROLE_DEAD || !node->op->packed_bytes) continue;
        rm_desc x[RM_MAX_IN], y, state[RM_MAX_STATE];
        rm_node_descs(chain->graph, node, 0, x, &y, state);
        uint64_t bytes = node->op->packed_bytes(x, node->attr, config->threads);
        if (bytes) chain->at.packed[n] = reserve(&chain->at.bytes, bytes);
    }
    close_section(chain, "packed weights", start);
}

static void lay_out_inputs(rm_chain *chain) {
    uint64_t start = chain->at.bytes;
    for (int32_t v = 1; v < chain->graph->n_values; v++) {
        const rm_value *value = &chain->graph->value[v];
        if (value->origin != RM_VALUE_INPUT) continue;
        chain->at.value[v] = resident(reserve(&chain->at.bytes, value_bytes(chain, v)));
        if (value->sequence) chain->at.value[v].per_time = value_bytes(chain, v) / (uint64_t)chain->timesteps;
    }
    close_section(chain, "inputs", start);
}

static void lay_out_rest(rm_chain *chain, const rm_chain_config *config) {
    rm_residents *at = &chain->at;
    uint64_t start = at->bytes;
    for (int32_t v = 1; v < chain->graph->n_values; v++)
        if (is_table(chain, v)) at->value[v] = resident(reserve(&at->bytes, value_bytes(chain, v)));
    close_section(chain, "tables", start);
    start = at->bytes;
    at->one_offset = reserve(&at->bytes, sizeof(float));
    at->loss_bytes = (uint64_t)chain->n_stages * sizeof(float);
    at->loss_offset = reserve(&at->bytes, at->loss_bytes);
    uint64_t carried_bytes = 0;
    for (int k = 0; config->stateful && k < chain->n_carried; k++) carried_bytes += chain->carried[k].bytes;
    at->carried = reserve(&at->bytes, carried_bytes);
    at->carried_next = reserve(&at->bytes, carried_bytes);
    close_section(chain, "loss and carried state", start);
    start = at->bytes;
    for (int i = 0; i < chain->n_outputs; i++)
        at->output[i] = reserve(&at->bytes, value_bytes(chain, chain->outputs[i]));
    close_section(chain, "outputs", start);
}

remat_status rm_chain_lay_out(rm_chain *chain, const rm_chain_config *config) {
    size_t values = (size_t)chain->graph->n_values, nodes = (size_t)chain->graph->n_nodes + 1;
    rm_residents *at = &chain->at;
    at->value = rm_calloc(values, sizeof *at->value);
    at->gradient = rm_calloc(values, sizeof *at->gradient);
    at->packed = rm_calloc(nodes, sizeof *at->packed);
    at->output = rm_calloc((size_t)chain->n_outputs + 1, sizeof *at->output);
    at->optimizer_state = rm_calloc(values * RM_MAX_OPTIMIZER_STATE, sizeof *at->optimizer_state);
    REQUIRE(at->value && at->gradient && at->packed && at->output && at->optimizer_state, MEMORY,
            "out of memory for the layout of %zu values", values);
    lay_out_params(chain, config);
    lay_out_packed(chain, config);
    lay_out_inputs(chain);
    lay_out_rest(chain, config);
    return REMAT_OK;
}
