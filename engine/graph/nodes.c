/* nodes.c: adds nodes to a graph: checks them and infers the shapes of their results; initial and final states, views, and
 * ops of users. The builders of layers are in layers.c, and those of scans in scan.c. */
#include "engine/graph/graph.h"

#include <string.h>

#include "engine/abi.h"
#include "memory/host.h"
#include "ops/scan/scan.h"

/* ---- Nodes --------------------------------------------------------------------------------------------------- */

remat_desc rm_value_desc(const remat_graph *graph, int32_t value, int64_t tau) {
    remat_desc desc = graph->value[value].desc;
    if (tau && graph->value[value].sequence) desc.dim[0] = tau;
    return desc;
}

static void input_descs(const remat_graph *graph, const rm_node *node, int64_t tau, remat_desc *x) {
    for (int i = 0; i < REMAT_MAX_INPUTS; i++)
        x[i] = node->x[i] ? rm_value_desc(graph, node->seen[i] ? node->seen[i] : node->x[i], tau)
                          : (remat_desc){.rank = -1};
}

void rm_node_descs(const remat_graph *graph, const rm_node *node, int64_t tau, remat_desc *x, remat_desc *y,
                   remat_desc *state) {
    input_descs(graph, node, tau, x);
    *y = rm_value_desc(graph, node->y, tau);
    for (int k = 0; k < node->op->n_state; k++) state[k] = node->state[k];
}

static remat_status check_node(const remat_graph *graph, const rm_node *node, int64_t tau, remat_device_kind device) {
    const remat_op *op = node->op;
    char text[REMAT_DESC_TEXT], other[REMAT_DESC_TEXT];
    remat_desc x[REMAT_MAX_INPUTS], y = rm_desc_make(REMAT_F32, 0, NULL), state[REMAT_MAX_STATES] = {{0}};
    remat_desc part = rm_value_desc(graph, node->y, tau);
    input_descs(graph, node, tau, x);
    TRY(rm_op_infer(op, x, node->attr, &y, state));
    REQUIRE(rm_desc_equal(&y, &part), INVALID, "its result would be %s, but this part of the whole result is %s",
            rm_desc_text(&y, text), rm_desc_text(&part, other));
    return rm_op_check_demands(op, x, &y, node->attr, device);
}

remat_status rm_node_check(const remat_graph *graph, const rm_node *node, int64_t tau, remat_device_kind device) {
    remat_status status = check_node(graph, node, tau, device);
    if (!status || !tau) return status;
    return rm_fail_in(status, "%s, for tiles of %lld timestep%s", node->op->name, (long long)tau, tau == 1 ? "" : "s");
}

/* All inputs must have a time axis, except for shared weights, or none. */
static remat_status check_axes(const remat_graph *graph, const remat_op *op, const int32_t *x, bool *sequence) {
    *sequence = graph->value[x[0]].sequence;
    for (int i = 0; i < op->n_in; i++) {
        if (!x[i]) continue;
        bool is = graph->value[x[i]].sequence, weight = rm_op_shares(op, i);
        REQUIRE(!(weight && is), INVALID, "%s: input %d is shared by all timesteps, so it cannot be a sequence",
                op->name, i);
        REQUIRE(weight || is == *sequence, INVALID,
                "%s: input %d %s a time axis, but input 0 %s; make both sequences, or neither", op->name, i,
                is ? "has" : "lacks", *sequence ? "has one" : "does not");
    }
    REQUIRE(!*sequence || op->time != REMAT_TIME_BEGIN, INVALID, "%s: its input is already a sequence", op->name);
    REQUIRE(*sequence || !rm_op_needs_time(op), INVALID,
            "%s works along time, but its input is not a sequence; make it a REMAT_SEQUENCE input", op->name);
    return REMAT_OK;
}

/* A buffer has one writer and no other reader, so it does not matter when in a step it is written. */
static remat_status check_buffers(const remat_graph *graph, const remat_op *op, const int32_t *x) {
    for (int i = 0; i < op->n_in; i++) {
        bool marked = op->buffers >> i & 1, is = graph->value[x[i]].origin == RM_VALUE_BUFFER;
        REQUIRE(!x[i] || marked == is, INVALID, "%s: input %d %s", op->name, i,
                marked ? "is written by it, so it must be a buffer; make it with remat_buffer"
                       : "is a buffer, which only ops that keep running statistics can read");
        for (int j = 0; is && j < i; j++)
            REQUIRE(x[j] != x[i], INVALID, "%s: inputs %d and %d are the same buffer; use two buffers", op->name, j, i);
        for (int32_t n = 0; is && n < graph->n_nodes; n++)
            for (int k = 0; k < REMAT_MAX_INPUTS; k++)
                REQUIRE(graph->node[n].x[k] != x[i], INVALID,
                        "%s: another layer uses the buffer %s; make separate buffers for each layer", op->name,
                        graph->value[x[i]].name);
    }
    return REMAT_OK;
}

bool rm_graph_counts_symbols(const remat_graph *graph, int32_t n) {
    const rm_node *node = &graph->node[n];
    const rm_value *symbols = &graph->value[rm_bytes_of(graph, node->x[0])];
    bool counts =
        node->op->time == REMAT_TIME_SUM && symbols->origin == RM_VALUE_INPUT && symbols->desc.dtype == REMAT_I32;
    for (int i = 1; i < REMAT_MAX_INPUTS; i++) {
        const rm_value *x = &graph->value[rm_bytes_of(graph, node->x[i])];
        bool there = !x->depends || (x->origin == RM_VALUE_INPUT && !x->sequence);
        counts = counts && (!node->x[i] || there);
    }
    return counts;
}

/* Values that depend on these inputs, and are no inputs themselves, are computed within the step. */
static bool is_made_in_step(const remat_graph *graph, int32_t value, uint8_t dependence) {
    const rm_value *v = &graph->value[rm_bytes_of(graph, value)];
    return v->origin == RM_VALUE_RESULT && v->depends & dependence && !rm_graph_counts_symbols(graph, v->node);
}

/* Some values must exist before the first stage runs. */
static remat_status check_order(const remat_graph *graph, const remat_op *op, const int32_t *x, const void *attr) {
    uint8_t depends = 0;
    for (int i = 0; i < op->n_in; i++) {
        if (!x[i]) continue;
        depends |= graph->value[x[i]].depends;
        REQUIRE(op->time != REMAT_TIME_BEGIN || !is_made_in_step(graph, x[i], RM_ON_SEQUENCE), INVALID,
                "%s: input %d is computed from a sequence, but must exist before layers along time run; compute it "
                "from parameters and inputs without a time axis",
                op->name, i);
        bool packs = op->on[REMAT_ON_CPU].pack && op->shared >> i & 1;
        REQUIRE(!packs || !is_made_in_step(graph, x[i], RM_ON_STATIC | RM_ON_SEQUENCE), INVALID,
                "%s: input %d is a weight, which this layer packs before the step, but it is computed from inputs "
                "within the step; compute it from parameters alone",
                op->name, i);
    }
    REQUIRE(depends || !op->collective || !op->collective(attr), INVALID,
            "%s: it sums over ranks, but reads parameters alone, which are the same on all ranks; turn off `sync`",
            op->name);
    return REMAT_OK;
}

/* Layers that run in tiles read the same timesteps of all inputs. */
static remat_status check_lengths(const remat_graph *graph, const remat_op *op, const int32_t *x) {
    const remat_desc *first = &graph->value[x[0]].desc;
    for (int i = 1; i < op->n_in && op->time != REMAT_TIME_FULL; i++) {
        const rm_value *value = &graph->value[x[i]];
        REQUIRE(!value->sequence || (value->desc.dim[0] == first->dim[0] && value->desc.dim[1] == first->dim[1]),
                INVALID, "%s: input %d has T=%lld, B=%lld, but input 0 has T=%lld, B=%lld; they must agree", op->name,
                i, (long long)value->desc.dim[0], (long long)value->desc.dim[1], (long long)first->dim[0],
                (long long)first->dim[1]);
    }
    return REMAT_OK;
}

/* Time must have the same direction in all sequences. */
static remat_status check_direction(const remat_graph *graph, const remat_op *op, const int32_t *x, bool *reversed) {
    *reversed = graph->value[x[0]].reversed;
    for (int i = 0; i < op->n_in; i++)
        REQUIRE(!graph->value[x[i]].sequence || graph->value[x[i]].reversed == *reversed, INVALID,
                "%s: time runs %s in input %d, but %s in input 0; reverse one of them with remat_reverse", op->name,
                *reversed ? "forwards" : "backwards", i, *reversed ? "backwards" : "forwards");
    return REMAT_OK;
}

/* The result of a tile of one timestep must have the shape of the whole result, except for its length. */
static remat_status check_tile(const remat_op *op, remat_desc *x, const void *attr, remat_desc y,
                               const remat_desc *state) {
    char whole[REMAT_DESC_TEXT], tile[REMAT_DESC_TEXT];
    remat_desc y_of_one = y, state_of_one[REMAT_MAX_STATES];
    for (int i = 0; i < op->n_in; i++)
        if (x[i].rank > 0 && !rm_op_shares(op, i)) x[i].dim[0] = 1;
    memcpy(state_of_one, state, sizeof state_of_one);
    TRY(rm_op_infer(op, x, attr, &y_of_one, state_of_one));
    if (rm_op_keeps_time(op)) y.dim[0] = 1;
    REQUIRE(rm_desc_equal(&y, &y_of_one), INVALID,
            "%s: for one timestep its result would be %s, but one timestep of the whole result is %s", op->name,
            rm_desc_text(&y_of_one, tile), rm_desc_text(&y, whole));
    for (int k = 0; k < op->n_state; k++)
        REQUIRE(rm_desc_equal(&state[k], &state_of_one[k]), INVALID,
                "%s: for one timestep state %d would be %s, but for all timesteps it is %s", op->name, k,
                rm_desc_text(&state_of_one[k], tile), rm_desc_text(&state[k], whole));
    return REMAT_OK;
}

/* Checks the shapes that infer has returned. Changes `x`. */
static remat_status check_result(const remat_op *op, bool sequence, remat_desc *x, const void *attr,
                                 const remat_desc *y, const remat_desc *state) {
    char text[REMAT_DESC_TEXT];
    TRY(rm_desc_check(y, op->name));
    REQUIRE(y->dtype == REMAT_F32, INVALID, "%s: its result is %s; results are f32", op->name, rm_desc_text(y, text));
    for (int k = 0; k < op->n_state; k++) {
        TRY(rm_desc_check(&state[k], op->name));
        REQUIRE(state[k].dtype == REMAT_F32, INVALID, "%s: its state %d is %s; states are f32", op->name, k,
                rm_desc_text(&state[k], text));
    }
    REQUIRE(op->time != REMAT_TIME_BEGIN || y->rank >= 2, INVALID, "%s: its result is %s; a sequence starts with (T,B)",
            op->name, rm_desc_text(y, text));
    if (!sequence) return REMAT_OK;
    REQUIRE(!rm_op_keeps_time(op) || (y->rank >= 2 && y->dim[0] == x[0].dim[0] && y->dim[1] == x[0].dim[1]), INVALID,
            "%s: its result is %s; it is a sequence like its input, so it must start with (%lld,%lld)", op->name,
            rm_desc_text(y, text), (long long)x[0].dim[0], (long long)x[0].dim[1]);
    return op->time == REMAT_TIME_FULL ? REMAT_OK : check_tile(op, x, attr, *y, state);
}

/* Gives the node its own copies of attributes and states. They are NULL if there are none, since ops may test this. The
 * caller frees both after an error. */
remat_status rm_node_own_data(rm_node *node, const void *attr, const remat_desc *state) {
    size_t state_bytes = (size_t)node->op->n_state * sizeof *state;
    node->attr = node->attr_bytes ? rm_malloc(node->attr_bytes) : NULL;
    node->state = state_bytes ? rm_malloc(state_bytes) : NULL;
    REQUIRE((node->attr || !node->attr_bytes) && (node->state || !state_bytes), MEMORY, "out of memory for a node");
    if (node->attr) memcpy(node->attr, attr, node->attr_bytes);
    if (node->state) memcpy(node->state, state, state_bytes);
    return REMAT_OK;
}

/* Infers a node's result from its inputs, and checks that the node can be planned. */
typedef struct {
    remat_desc y, state[REMAT_MAX_STATES];
    bool needs_gradient, sequence, reversed;
    uint8_t depends;
} made;

static remat_status infer(const remat_graph *graph, const remat_op *op, const int32_t *x, const void *attr, made *m) {
    remat_desc descs[REMAT_MAX_INPUTS];
    *m = (made){.y = rm_desc_make(REMAT_F32, 0, NULL)};
    for (int i = 0; i < REMAT_MAX_INPUTS; i++) {
        bool given = i < op->n_in && x[i];
        REQUIRE(i >= op->n_in || given || op->optional >> i & 1, INVALID, "%s: input %d is missing", op->name, i);
        descs[i] = given ? graph->value[x[i]].desc : (remat_desc){.rank = -1};
        m->needs_gradient |= given && !op->constant && graph->value[x[i]].needs_gradient;
        m->depends |= given ? graph->value[x[i]].depends : 0;
    }
    TRY(check_axes(graph, op, x, &m->sequence));
    if (m->sequence) TRY(check_lengths(graph, op, x));
    TRY(check_direction(graph, op, x, &m->reversed));
    TRY(check_order(graph, op, x, attr));
    TRY(rm_op_infer(op, descs, attr, &m->y, m->state));
    TRY(rm_op_check_discrete(op, descs));
    return check_result(op, m->sequence, descs, attr, &m->y, m->state);
}

remat_status rm_node_infer(remat_graph *graph, int32_t n) {
    rm_node *node = &graph->node[n];
    made m;
    TRY(infer(graph, node->op, node->x, node->attr, &m));
    graph->value[node->y].desc = m.y;
    for (int k = 0; k < node->op->n_state; k++) node->state[k] = m.state[k];
    return REMAT_OK;
}

static remat_status add_node(remat_graph *graph, const remat_op *op, const int32_t *x, const void *attr, int32_t *id) {
    made m;
    TRY(infer(graph, op, x, attr, &m));
    TRY(check_buffers(graph, op, x));
    rm_node node = {.op = op, .attr_bytes = attr ? op->attr_bytes : 0, .key = (uint32_t)graph->n_nodes};
    memcpy(node.x, x, (size_t)op->n_in * sizeof *x);
    TRY(rm_graph_grow(graph, graph->n_values + 1, graph->n_nodes + 1));
    bool keeps_time = op->time == REMAT_TIME_BEGIN || (m.sequence && rm_op_keeps_time(op));
    remat_status status = rm_node_own_data(&node, attr, m.state);
    if (!status)
        status = rm_graph_add_value(graph, NULL,
                                    (rm_value){.origin = RM_VALUE_RESULT,
                                               .desc = m.y,
                                               .sequence = keeps_time,
                                               .reversed = keeps_time && m.reversed != (op->time == REMAT_TIME_REVERSE),
                                               .needs_gradient = m.needs_gradient,
                                               .depends = keeps_time ? RM_ON_STATIC | RM_ON_SEQUENCE : m.depends,
                                               .node = graph->n_nodes},
                                    &node.y);
    if (status) {
        rm_free(node.attr);
        rm_free(node.state);
        return status;
    }
    graph->node[graph->n_nodes++] = node;
    *id = node.y;
    return REMAT_OK;
}

int32_t rm_graph_add(remat_graph *graph, const remat_op *op, const int32_t *x, const void *attr) {
    if (!graph || graph->status) return 0;
    for (int i = 0; i < op->n_in; i++)
        if (x[i] < 0 || x[i] >= graph->n_values)
            return rm_graph_mistake(graph,
                                    rm_fail(REMAT_INVALID, "%s: input %d is not a value of this graph", op->name, i));
    int32_t id = 0;
    remat_status status = add_node(graph, op, x, attr, &id);
    return status ? rm_graph_mistake(graph, status) : id;
}

/* ---- Initial and final states --------------------------------------------------------------------------------- */

static remat_status find_layer(remat_graph *graph, int32_t y, int state, const char *what, int32_t *n) {
    REQUIRE(y > 0 && y < graph->n_values, INVALID, "%s: this is not a value of this graph", what);
    const rm_value *value = &graph->value[y];
    REQUIRE(value->origin == RM_VALUE_RESULT && !value->state, INVALID, "%s: y is not the result of a recurrent layer",
            what);
    const remat_op *op = graph->node[value->node].op;
    REQUIRE(state >= 0 && state < op->n_state, INVALID, "%s: %s has %d carried states, so there is no state %d", what,
            op->name, op->n_state, state);
    *n = value->node;
    return REMAT_OK;
}

static remat_status set_initial(remat_graph *graph, int32_t y, int state, int32_t initial) {
    int32_t n = 0;
    remat_desc x[REMAT_MAX_INPUTS], result, states[REMAT_MAX_STATES];
    char wanted[REMAT_DESC_TEXT], text[REMAT_DESC_TEXT];
    TRY(find_layer(graph, y, state, "initial_state", &n));
    REQUIRE(initial > 0 && initial < graph->n_values, INVALID, "initial_state: this is not a value of this graph");
    rm_node *node = &graph->node[n];
    REQUIRE(!node->op->within_call, INVALID,
            "initial_state: %s starts anew in each call; put the initial value before the first timestep of x",
            node->op->name);
    const rm_value *value = &graph->value[initial], *made = &graph->value[rm_bytes_of(graph, initial)];
    REQUIRE(value->origin != RM_VALUE_BUFFER, INVALID, "initial_state: the value is the buffer of another layer");
    REQUIRE(made->origin != RM_VALUE_RESULT || made->node < n, INVALID,
            "initial_state: the value is computed after the layer; compute it before");
    rm_node_descs(graph, node, 0, x, &result, states);
    REQUIRE(!value->sequence && rm_desc_equal(&value->desc, &states[state]), INVALID,
            "initial_state: state %d of %s is %s, but the value is %s%s", state, node->op->name,
            rm_desc_text(&states[state], wanted), rm_desc_text(&value->desc, text),
            value->sequence ? ", a sequence" : "");
    REQUIRE(node->op->n_in + node->op->n_state <= REMAT_MAX_INPUTS, INVALID,
            "initial_state: %s has %d inputs and %d states; layers with initial states may have %d together",
            node->op->name, node->op->n_in, node->op->n_state, REMAT_MAX_INPUTS);
    node->x[node->op->n_in + state] = initial;
    rm_graph_update_needs(graph);
    return REMAT_OK;
}

remat_value remat_initial_state(remat_graph *graph, remat_value y, int state, remat_value initial) {
    if (!graph || graph->status || !y.id || !initial.id) return REMAT_NONE;
    remat_status status = set_initial(graph, y.id, state, initial.id);
    return (remat_value){status ? rm_graph_mistake(graph, status) : y.id};
}

static remat_status add_final(remat_graph *graph, int32_t y, int state, int32_t *id) {
    int32_t n = 0;
    remat_desc x[REMAT_MAX_INPUTS], result, states[REMAT_MAX_STATES];
    TRY(find_layer(graph, y, state, "final_state", &n));
    *id = graph->node[n].final[state];
    if (*id) return REMAT_OK;
    rm_node_descs(graph, &graph->node[n], 0, x, &result, states);
    TRY(rm_graph_add_value(graph, NULL,
                           (rm_value){.origin = RM_VALUE_RESULT,
                                      .desc = states[state],
                                      .needs_gradient = graph->value[y].needs_gradient,
                                      .depends = graph->value[y].depends,
                                      .node = n,
                                      .state = state + 1},
                           id));
    graph->node[n].final[state] = *id;
    return REMAT_OK;
}

remat_value remat_final_state(remat_graph *graph, remat_value y, int state) {
    int32_t id = 0;
    if (!graph || graph->status || !y.id) return REMAT_NONE;
    remat_status status = add_final(graph, y.id, state, &id);
    return (remat_value){status ? rm_graph_mistake(graph, status) : id};
}

static remat_status set_reset(remat_graph *graph, int32_t y, int32_t reset) {
    int32_t n = 0, x[REMAT_MAX_INPUTS];
    bool sequence, reversed;
    remat_desc descs[REMAT_MAX_INPUTS], result, states[REMAT_MAX_STATES];
    TRY(find_layer(graph, y, 0, "reset_states", &n));
    rm_node *node = &graph->node[n];
    const remat_op *op = node->op;
    REQUIRE(op->resets, INVALID, "reset_states: %s has no input for resets of its states", op->name);
    REQUIRE(reset > 0 && reset < graph->n_values, INVALID, "reset_states: this is not a value of this graph");
    const rm_value *made = &graph->value[rm_bytes_of(graph, reset)];
    REQUIRE(made->origin != RM_VALUE_RESULT || made->node < n, INVALID,
            "reset_states: the value is computed after the layer; compute it before");
    int input = __builtin_ctz(op->resets);
    rm_node_descs(graph, node, 0, descs, &result, states);
    descs[input] = graph->value[reset].desc;
    memcpy(x, node->x, sizeof x);
    x[input] = reset;
    TRY(check_axes(graph, op, x, &sequence));
    TRY(check_buffers(graph, op, x));
    TRY(check_direction(graph, op, x, &reversed));
    TRY(rm_op_infer(op, descs, node->attr, &result, states));
    node->x[input] = reset;
    return REMAT_OK;
}

remat_value remat_reset_states(remat_graph *graph, remat_value y, remat_value reset) {
    if (!graph || graph->status || !y.id || !reset.id) return REMAT_NONE;
    remat_status status = set_reset(graph, y.id, reset.id);
    return (remat_value){status ? rm_graph_mistake(graph, status) : y.id};
}

/* ---- Views ----------------------------------------------------------------------------------------------------- */

static remat_status view(remat_graph *graph, int32_t x, int rank, const int64_t *dim, int32_t *id) {
    char text[REMAT_DESC_TEXT];
    REQUIRE(x > 0 && x < graph->n_values, INVALID, "reshape: this is not a value of this graph");
    REQUIRE(rank >= 1 && rank <= REMAT_MAX_RANK && dim, INVALID, "reshape: the rank is %d; use 1 to %d, and dimensions",
            rank, REMAT_MAX_RANK);
    rm_value value = graph->value[x];
    int64_t count = rm_desc_count(&value.desc), rest = count;
    int unknown = -1;
    value.desc.rank = rank;
    for (int i = 0; i < REMAT_MAX_RANK; i++) value.desc.dim[i] = i < rank ? dim[i] : 1;
    for (int i = 0; i < rank; i++) {
        REQUIRE(dim[i] >= 1 || (dim[i] == -1 && unknown < 0), INVALID,
                "reshape: dimension %d is %lld; use numbers above 0, and at most one -1 for the rest", i,
                (long long)dim[i]);
        if (dim[i] == -1) unknown = i;
        if (dim[i] > 0) rest = rest % dim[i] ? 0 : rest / dim[i];
    }
    if (unknown >= 0) value.desc.dim[unknown] = rest ? rest : 1;
    REQUIRE(rest && (unknown >= 0 || rest == 1), INVALID, "reshape: a value of %lld elements cannot become %s",
            (long long)count, rm_desc_text(&value.desc, text));
    const int64_t *old = graph->value[x].desc.dim;
    REQUIRE(!value.sequence || (rank >= 2 && value.desc.dim[0] == old[0] && value.desc.dim[1] == old[1]), INVALID,
            "reshape: x is a sequence, but %s does not start with its (T,B), (%lld,%lld)",
            rm_desc_text(&value.desc, text), (long long)old[0], (long long)old[1]);
    REQUIRE(value.origin != RM_VALUE_BUFFER, INVALID, "reshape: x is a buffer, which only its layer reads and writes");
    value.name = NULL;
    value.origin = RM_VALUE_VIEW;
    value.view_of = rm_bytes_of(graph, x);
    return rm_graph_add_value(graph, NULL, value, id);
}

remat_value remat_reshape(remat_graph *graph, remat_value x, int rank, const int64_t *dim) {
    int32_t id = 0;
    if (!graph || graph->status || !x.id) return REMAT_NONE;
    remat_status status = view(graph, x.id, rank, dim, &id);
    return (remat_value){status ? rm_graph_mistake(graph, status) : id};
}
/* ---- Ops of users -------------------------------------------------------------------------------------------- */

/* Names of ops must be unique: they identify measured times and carried states, and rewrites find ops by name. */
static remat_status check_op_name(const remat_graph *graph, const remat_op *op) {
    const remat_op *ours = rm_op_find(op->name);
    REQUIRE(!ours || ours == op, INVALID, "%s: Remat has an op with this name; rename yours", op->name);
    for (int32_t n = 0; n < graph->n_nodes; n++) {
        const rm_node *node = &graph->node[n];
        REQUIRE(node->op == op || node->given == op || strcmp(node->op->name, op->name), INVALID,
                "%s: two different ops in this graph have this name; rename one of them", op->name);
    }
    return REMAT_OK;
}

remat_status rm_node_own_op(rm_node *node) {
    node->own_op = rm_malloc(sizeof *node->own_op);
    REQUIRE(node->own_op, MEMORY, "out of memory for a node");
    node->op = node->own_op;
    if (node->given) return rm_take(node->own_op, sizeof *node->own_op, node->given, "remat_op");
    rm_scan_describe(node->attr, node->own_op);
    return REMAT_OK;
}

/* The user's op is borrowed, but if its struct is shorter than ours, the node gets a copy. */
static remat_status settle_op(rm_node *node, const remat_op *given) {
    node->op = given;
    if (given->struct_bytes >= sizeof *given) return REMAT_OK;
    node->given = given;
    return rm_node_own_op(node);
}

static remat_status apply(remat_graph *graph, const remat_op *given, const remat_value *inputs, int n_inputs,
                          const void *attr, int32_t *id) {
    int32_t x[REMAT_MAX_INPUTS] = {0};
    remat_op taken;
    const remat_op *op = &taken;
    TRY(rm_take(&taken, sizeof taken, given, "remat_op"));
    TRY(rm_op_check_descriptor(op));
    TRY(check_op_name(graph, given));
    REQUIRE(n_inputs >= 1 && n_inputs <= op->n_in, INVALID, "%s: %d inputs were given; give 1 to %d", op->name,
            n_inputs, op->n_in);
    REQUIRE(!attr || op->attr_bytes, INVALID, "%s: attributes were given, but attr_bytes is 0", op->name);
    for (int i = 0; i < n_inputs; i++) x[i] = inputs[i].id;
    *id = rm_graph_add(graph, op, x, attr);
    TRY(graph->status);
    rm_node *node = &graph->node[graph->n_nodes - 1];
    TRY(settle_op(node, given));
    return rm_node_check(graph, node, 0, REMAT_ON_CPU);
}

remat_status remat_apply(remat_graph *graph, const remat_op *op, const remat_value *inputs, int n_inputs,
                         const void *attr, remat_value *results) {
    const char *lacks = !graph     ? "a graph"
                        : !op      ? "an op"
                        : !inputs  ? "inputs"
                        : !results ? "a place for the result"
                                   : NULL;
    int32_t id = 0;
    remat_status status = lacks           ? rm_fail(REMAT_INVALID, "%s needs %s, and was given NULL", __func__, lacks)
                          : graph->status ? graph->status
                                          : apply(graph, op, inputs, n_inputs, attr, &id);
    if (graph && status) rm_graph_mistake(graph, status);
    if (results) results[0] = (remat_value){status ? 0 : id}; /* last: results may overlap inputs */
    return lacks ? status : remat_graph_check(graph);
}
