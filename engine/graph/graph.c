/* graph.c: a graph and its leaves: inputs, parameters and buffers; their names, and which of them are trained. The graph
 * remembers its first error, after which builders return "no value". nodes.c adds nodes. */
#include "engine/graph/graph.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "engine/abi.h"
#include "memory/host.h"

remat_status remat_graph_create(remat_graph **out) {
    NEED(out, "a place for the graph");
    remat_graph *graph = rm_calloc(1, sizeof *graph);
    REQUIRE(graph, MEMORY, "out of memory for a graph");
    if (!rm_grow(&graph->value, &graph->value_capacity, 1, sizeof *graph->value)) {
        remat_graph_free(graph);
        FAIL(MEMORY, "out of memory for a graph");
    }
    graph->value[graph->n_values++] = (rm_value){.name = NULL}; /* "no value" */
    *out = graph;
    return REMAT_OK;
}

void remat_graph_free(remat_graph *graph) {
    if (!graph) return;
    for (int32_t i = 0; graph->value && i < graph->n_values; i++) rm_free(graph->value[i].name);
    for (int32_t i = 0; graph->node && i < graph->n_nodes; i++) {
        rm_free(graph->node[i].own_op);
        rm_free(graph->node[i].attr);
        rm_free(graph->node[i].state);
    }
    rm_free(graph->value);
    rm_free(graph->node);
    rm_free(graph);
}

remat_status remat_graph_check(const remat_graph *graph) {
    NEED(graph, "a graph");
    if (graph->status) return rm_fail(graph->status, "%s", graph->error);
    return REMAT_OK;
}

void remat_graph_forget_mistake(remat_graph *graph) {
    if (graph) graph->status = REMAT_OK, graph->error[0] = 0;
}

remat_status remat_value_describe(const remat_graph *graph, remat_value value, remat_value_info *out) {
    NEED(graph, "a graph");
    NEED(out, "a place for the result");
    REQUIRE(value.id > 0 && value.id < graph->n_values, INVALID,
            "value %d does not belong to this graph, whose values are 1 to %d", value.id, graph->n_values - 1);
    const rm_value *v = &graph->value[value.id];
    *out = (remat_value_info){.name = v->name,
                              .dtype = v->desc.dtype,
                              .axis = v->sequence ? REMAT_SEQUENCE : REMAT_STATIC,
                              .rank = v->desc.rank};
    memcpy(out->dim, v->desc.dim, sizeof out->dim);
    return REMAT_OK;
}

/* ---- Growing, and the first error ---------------------------------------------------------------------------- */

int32_t rm_graph_mistake(remat_graph *graph, remat_status status) {
    if (!graph->status) {
        graph->status = status;
        strncpy(graph->error, remat_last_error(), sizeof graph->error - 1);
    }
    return 0;
}

remat_status rm_graph_grow(remat_graph *graph, int64_t n_values, int64_t n_nodes) {
    REQUIRE(rm_grow(&graph->value, &graph->value_capacity, n_values, sizeof *graph->value) &&
                rm_grow(&graph->node, &graph->node_capacity, n_nodes, sizeof *graph->node),
            MEMORY, "out of memory for a graph of %lld values", (long long)n_values);
    return REMAT_OK;
}

remat_status rm_graph_add_value(remat_graph *graph, const char *name, rm_value value, int32_t *id) {
    TRY(rm_graph_grow(graph, graph->n_values + 1, graph->n_nodes));
    if (name) {
        value.name = rm_strdup(name);
        REQUIRE(value.name, MEMORY, "out of memory for the name %s", name);
    }
    *id = graph->n_values++;
    graph->value[*id] = value;
    return REMAT_OK;
}

/* ---- Leaves -------------------------------------------------------------------------------------------------- */

static remat_status check_name(const remat_graph *graph, const char *name) {
    REQUIRE(name && *name, INVALID, "an input or parameter needs a name");
    for (int32_t i = 1; i < graph->n_values; i++)
        REQUIRE(!graph->value[i].name || strcmp(graph->value[i].name, name), INVALID,
                "the name %s is used twice; give each input and parameter a different name", name);
    return REMAT_OK;
}

static remat_status check_dimensions(const char *name, int rank, const int64_t *dim) {
    REQUIRE(dim || rank <= 0, INVALID, "%s has rank %d, but no dimensions were given", name, rank);
    return REMAT_OK;
}

static remat_status check_sequence(const char *name, const remat_desc *desc) {
    REQUIRE(desc->rank >= 2, INVALID, "%s is a sequence of rank %d; make it (T,B) or (T,B,C)", name, desc->rank);
    return REMAT_OK;
}

static remat_status add_input(remat_graph *graph, const char *name, remat_dtype dtype, remat_axis axis, int rank,
                              const int64_t *dim, int32_t *id) {
    TRY(check_name(graph, name));
    TRY(check_dimensions(name, rank, dim));
    REQUIRE(dtype == REMAT_F32 || dtype == REMAT_I32, INVALID, "input %s: only f32 and i32 inputs are supported", name);
    remat_desc desc = rm_desc_make(dtype, rank, dim);
    TRY(rm_desc_check(&desc, name));
    if (axis == REMAT_SEQUENCE) TRY(check_sequence(name, &desc));
    return rm_graph_add_value(graph, name,
                              (rm_value){.origin = RM_VALUE_INPUT,
                                         .desc = desc,
                                         .sequence = axis == REMAT_SEQUENCE,
                                         .depends = axis == REMAT_SEQUENCE ? RM_ON_SEQUENCE : RM_ON_STATIC},
                              id);
}

remat_init remat_init_of(remat_init_kind kind, double scale) { return (remat_init){kind, scale}; }
remat_init remat_init_zero(void) { return remat_init_of(REMAT_INIT_ZERO, 0); }
remat_init remat_init_constant(double value) { return remat_init_of(REMAT_INIT_CONSTANT, value); }
remat_init remat_init_normal(double deviation) { return remat_init_of(REMAT_INIT_NORMAL, deviation); }
remat_init remat_init_uniform(double bound) { return remat_init_of(REMAT_INIT_UNIFORM, bound); }

remat_value remat_input(remat_graph *graph, const char *name, remat_dtype dtype, remat_axis axis, int rank,
                        const int64_t *dim) {
    int32_t id = 0;
    if (!graph) return REMAT_NONE;
    remat_status status = graph->status ? graph->status : add_input(graph, name, dtype, axis, rank, dim, &id);
    return (remat_value){status ? rm_graph_mistake(graph, status) : id};
}

/* Deviations and bounds must not be negative. A parameter initialised to NaN would always remain NaN. */
static remat_status check_init(const char *name, int rank, remat_init init) {
    static const char *const what[] = {"zero",           "constant", "deviation", "bound",       "count",    "step",
                                       "largest number", "ring",     "width",     "last number", "identity", "gain",
                                       "power",          "width",    "width",     "scale",       "scale"};
    REQUIRE((unsigned)init.kind <= REMAT_INIT_RWKV7_KEY, INVALID,
            "parameter %s: %d is not a kind of initial values; use 0 to %d", name, (int)init.kind,
            (int)REMAT_INIT_RWKV7_KEY);
    REQUIRE(init.kind != REMAT_INIT_ORTHOGONAL || rank == 2, INVALID,
            "parameter %s: only a matrix has orthogonal initial values, and it has rank %d", name, rank);
    bool above_zero = init.kind == REMAT_INIT_TIME_STEP || init.kind == REMAT_INIT_LOG_UNIFORM;
    above_zero |= init.kind == REMAT_INIT_FORGET_GATES || init.kind == REMAT_INIT_RWKV7_DECAY;
    above_zero |= init.kind == REMAT_INIT_RWKV7_MIX || init.kind == REMAT_INIT_RWKV7_RATE;
    bool positive = init.kind == REMAT_INIT_NORMAL || init.kind == REMAT_INIT_UNIFORM;
    REQUIRE(fabs(init.scale) <= FLT_MAX && (init.scale >= 0 || !positive), INVALID,
            "parameter %s: the %s of its initial values is %g; use a finite number%s", name, what[init.kind],
            init.scale, positive ? " of at least 0" : "");
    REQUIRE(!above_zero || init.scale > 0, INVALID,
            "parameter %s: the %s of its initial values is %g; use a number above 0", name, what[init.kind],
            init.scale);
    return REMAT_OK;
}

/* Parameters and buffers: arrays that persist from step to step. */
static remat_status add_stored(remat_graph *graph, rm_origin origin, const char *name, int rank, const int64_t *dim,
                               remat_init init, int32_t *id) {
    TRY(check_name(graph, name));
    TRY(check_dimensions(name, rank, dim));
    remat_desc desc = rm_desc_make(REMAT_F32, rank, dim);
    TRY(rm_desc_check(&desc, name));
    TRY(check_init(name, rank, init));
    return rm_graph_add_value(
        graph, name,
        (rm_value){.origin = origin, .desc = desc, .needs_gradient = origin == RM_VALUE_PARAM, .init = init}, id);
}

static remat_value stored(remat_graph *graph, rm_origin origin, const char *name, int rank, const int64_t *dim,
                          remat_init init) {
    int32_t id = 0;
    if (!graph) return REMAT_NONE;
    remat_status status = graph->status ? graph->status : add_stored(graph, origin, name, rank, dim, init, &id);
    return (remat_value){status ? rm_graph_mistake(graph, status) : id};
}

remat_value remat_param(remat_graph *graph, const char *name, int rank, const int64_t *dim, remat_init init) {
    return stored(graph, RM_VALUE_PARAM, name, rank, dim, init);
}

remat_value remat_buffer(remat_graph *graph, const char *name, int rank, const int64_t *dim, remat_init init) {
    return stored(graph, RM_VALUE_BUFFER, name, rank, dim, init);
}

void rm_graph_update_needs(remat_graph *graph) {
    for (int32_t n = 0; n < graph->n_nodes; n++) {
        const rm_node *node = &graph->node[n];
        bool *need = &graph->value[node->y].needs_gradient;
        *need = false;
        for (int i = 0; i < REMAT_MAX_INPUTS && !node->op->constant; i++)
            *need |= graph->value[rm_bytes_of(graph, node->x[i])].needs_gradient;
        for (int k = 0; k < REMAT_MAX_STATES; k++)
            if (node->final[k]) graph->value[node->final[k]].needs_gradient = *need;
    }
    for (int32_t v = 1; v < graph->n_values; v++)
        graph->value[v].needs_gradient = graph->value[rm_bytes_of(graph, v)].needs_gradient;
}

/* Also affects values that were computed from the input before this call. */
static remat_status require_gradient(remat_graph *graph, int32_t input) {
    REQUIRE(input >= 0 && input < graph->n_values, INVALID, "requires_grad: this is not a value of this graph");
    rm_value *value = &graph->value[rm_bytes_of(graph, input)];
    REQUIRE(value->origin == RM_VALUE_INPUT, INVALID,
            "requires_grad: this value is not an input; parameters always have gradients, and results have them as "
            "needed");
    REQUIRE(value->desc.dtype == REMAT_F32, INVALID, "requires_grad: the input %s is not f32, so it has no gradient",
            value->name);
    value->needs_gradient = true;
    rm_graph_update_needs(graph);
    return REMAT_OK;
}

bool rm_begins_like_one(const char *name, const char *prefixes) {
    for (const char *at = prefixes; *at; at += *at == ',') {
        size_t length = strcspn(at, ",");
        if (length && !strncmp(name, at, length)) return true;
        at += length;
    }
    return false;
}

static const char *first_parameter(const remat_graph *graph) {
    for (int32_t v = 1; v < graph->n_values; v++)
        if (graph->value[v].origin == RM_VALUE_PARAM) return graph->value[v].name;
    return "";
}

static bool is_prefix(const remat_graph *graph, const char *prefix, size_t length) {
    for (int32_t v = 1; v < graph->n_values && length; v++)
        if (graph->value[v].origin == RM_VALUE_PARAM && !strncmp(graph->value[v].name, prefix, length)) return true;
    return false;
}

remat_status rm_graph_check_beginnings(const remat_graph *graph, const char *prefixes) {
    REQUIRE(*prefixes, INVALID, "{train_only} is empty; list the prefixes of the parameters to train");
    for (const char *at = prefixes; *at; at += *at == ',') {
        size_t length = strcspn(at, ",");
        REQUIRE(is_prefix(graph, at, length), INVALID,
                "{train_only} has \"%.*s\", but no parameter's name starts like this; the first parameter is \"%s\"",
                (int)length, at, first_parameter(graph));
        at += length;
    }
    return REMAT_OK;
}

remat_status rm_graph_train_only(remat_graph *graph, const char *prefixes) {
    TRY(rm_graph_check_beginnings(graph, prefixes));
    for (int32_t v = 1; v < graph->n_values; v++) {
        rm_value *value = &graph->value[v];
        if (value->origin == RM_VALUE_PARAM) value->needs_gradient = rm_begins_like_one(value->name, prefixes);
    }
    rm_graph_update_needs(graph);
    return REMAT_OK;
}

remat_value remat_requires_grad(remat_graph *graph, remat_value input) {
    if (!graph || graph->status || !input.id) return REMAT_NONE;
    remat_status status = require_gradient(graph, input.id);
    return (remat_value){status ? rm_graph_mistake(graph, status) : input.id};
}

/* ---- Copy ---------------------------------------------------------------------------------------------------- */

static remat_status copy_into(const remat_graph *graph, remat_graph *copy) {
    TRY(rm_graph_grow(copy, graph->n_values, graph->n_nodes));
    for (int32_t i = 1; i < graph->n_values; i++) {
        int32_t id;
        TRY(rm_graph_add_value(copy, graph->value[i].name, graph->value[i], &id));
    }
    for (int32_t i = 0; i < graph->n_nodes; i++) {
        rm_node node = graph->node[i];
        node.own_op = NULL;
        copy->node[copy->n_nodes++] = node; /* from here on the copy frees its own data */
        TRY(rm_node_own_data(&copy->node[i], graph->node[i].attr, graph->node[i].state));
        if (graph->node[i].own_op) TRY(rm_node_own_op(&copy->node[i]));
    }
    return REMAT_OK;
}

remat_status rm_graph_clone(const remat_graph *graph, remat_graph **out) {
    TRY(remat_graph_check(graph));
    remat_graph *copy;
    TRY(remat_graph_create(&copy));
    remat_status status = copy_into(graph, copy);
    if (status) {
        remat_graph_free(copy);
        return status;
    }
    *out = copy;
    return REMAT_OK;
}

remat_status rm_graph_copy(const remat_graph *graph, remat_graph **out) {
    TRY(rm_graph_clone(graph, out));
    for (int32_t i = 0; i < graph->n_nodes; i++) {
        rm_node *node = &(*out)->node[i];
        for (int k = 0; k < REMAT_MAX_INPUTS; k++) {
            if (graph->value[node->x[k]].view_of) node->seen[k] = node->x[k];
            node->x[k] = rm_bytes_of(graph, node->x[k]);
        }
    }
    return REMAT_OK;
}
