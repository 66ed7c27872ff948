/* scan.c: remat_scan: describes a body, which is a graph, by the attributes of one recurrent op (ops/scan/scan.h).
 * Unsupported bodies are refused with a message that names the cell. */
#include "engine/graph/graph.h"

#include <string.h>

#include "engine/abi.h"
#include "memory/host.h"
#include "ops/scan/scan.h"

/* State of describing a cell. */
typedef struct {
    const remat_cell *cell;
    const remat_graph *body;
    rm_scan *scan;
    int32_t *number; /* by value id of the body: its number in the scan; 0: none yet */
    bool *alive;     /* by value id of the body: the output or a next state depends on it */
} writer;

/* ---- Names and counts -------------------------------------------------------------------------------------------- */

static remat_status check_name(const remat_graph *graph, const char *name) {
    REQUIRE(name && *name && strlen(name) <= RM_SCAN_NAME, INVALID,
            "a cell needs a name of 1 to %d bytes; this one's is \"%.60s\"", RM_SCAN_NAME, name ? name : "");
    REQUIRE(!rm_op_find(name), INVALID, "%s: Remat has an op with this name; rename your cell", name);
    for (int32_t n = 0; n < graph->n_nodes; n++)
        REQUIRE((graph->node[n].own_op && !graph->node[n].given) || strcmp(graph->node[n].op->name, name), INVALID,
                "%s: an op in this graph has this name; rename your cell", name);
    return REMAT_OK;
}

static remat_status check_counts(const remat_cell *c) {
    REQUIRE(c->n_inputs >= 1 && c->n_weights >= 0 && c->n_inputs <= REMAT_MAX_INPUTS - c->n_weights, INVALID,
            "%s: it has %d inputs and %d weights; use at least 1 input, and a total of at most %d", c->name,
            c->n_inputs, c->n_weights, REMAT_MAX_INPUTS);
    REQUIRE(c->n_states >= 1 && c->n_states <= REMAT_MAX_STATES, INVALID,
            "%s: it carries %d states; use 1 to %d (join states with remat_concat; without states, no scan is needed)",
            c->name, c->n_states, REMAT_MAX_STATES);
    REQUIRE(c->inputs && (c->weights || !c->n_weights) && c->states && c->next_states, INVALID,
            "%s: a list of inputs, weights, states or next states is NULL", c->name);
    return REMAT_OK;
}

/* ---- Leaves ------------------------------------------------------------------------------------------------------ */

static rm_scan_value shape_of(const remat_graph *graph, int32_t v) {
    const remat_desc *desc = &graph->value[v].desc;
    rm_scan_value value = {.rank = desc->rank};
    for (int i = 0; i < REMAT_MAX_RANK; i++) value.dim[i] = desc->dim[i];
    return value;
}

static remat_status list_leaf(writer *w, const char *what, int i, remat_value leaf) {
    const char *cell = w->cell->name;
    REQUIRE(leaf.id > 0 && leaf.id < w->body->n_values, INVALID, "%s: %s %d is not a value of its body", cell, what, i);
    const rm_value *value = &w->body->value[leaf.id];
    REQUIRE(value->origin == RM_VALUE_INPUT, INVALID, "%s: %s %d is not an input of its body; make it with remat_input",
            cell, what, i);
    REQUIRE(value->desc.dtype == REMAT_F32 && !value->sequence, INVALID,
            "%s: the body's input %s is %s, but a body describes one timestep of f32; use REMAT_F32 and REMAT_STATIC",
            cell, value->name, value->sequence ? "a sequence" : "integers");
    REQUIRE(!w->number[leaf.id], INVALID, "%s: the body's input %s is listed twice", cell, value->name);
    w->number[leaf.id] = w->scan->n_values;
    w->scan->value[w->scan->n_values++] = shape_of(w->body, leaf.id);
    return REMAT_OK;
}

/* Inputs, states and results must have the same rows. */
static remat_status check_rows(const writer *w, int32_t v, const char *what, int i) {
    const remat_desc *desc = &w->body->value[v].desc, *first = &w->body->value[w->cell->inputs[0].id].desc;
    char text[REMAT_DESC_TEXT];
    REQUIRE(desc->rank >= 1 && desc->rank < REMAT_MAX_RANK && desc->dim[0] == first->dim[0], INVALID,
            "%s: %s %d is %s; it must start with the batch, %lld as in input 0, and have rank 1 to %d", w->cell->name,
            what, i, rm_desc_text(desc, text), (long long)first->dim[0], REMAT_MAX_RANK - 1);
    return REMAT_OK;
}

static remat_status list_leaves(writer *w) {
    const remat_cell *c = w->cell;
    w->scan->n_values = 1;
    for (int i = 0; i < c->n_inputs; i++) TRY(list_leaf(w, "input", i, c->inputs[i]));
    for (int i = 0; i < c->n_weights; i++) TRY(list_leaf(w, "weight", i, c->weights[i]));
    for (int k = 0; k < c->n_states; k++) TRY(list_leaf(w, "state", k, c->states[k]));
    for (int i = 0; i < c->n_inputs; i++) TRY(check_rows(w, c->inputs[i].id, "input", i));
    for (int k = 0; k < c->n_states; k++) TRY(check_rows(w, c->states[k].id, "state", k));
    return REMAT_OK;
}

/* ---- Results ----------------------------------------------------------------------------------------------------- */

static remat_status check_result(const writer *w, const char *what, int k, remat_value end) {
    REQUIRE(end.id > 0 && end.id < w->body->n_values && w->body->value[end.id].origin == RM_VALUE_RESULT, INVALID,
            "%s: %s %d is not the result of a layer of its body; use remat_scale(.., 1) to pass a value on",
            w->cell->name, what, k);
    return check_rows(w, end.id, what, k);
}

static remat_status check_ends(const writer *w) {
    const remat_cell *c = w->cell;
    char text[REMAT_DESC_TEXT], other[REMAT_DESC_TEXT];
    TRY(check_result(w, "output", 0, c->output));
    for (int k = 0; k < c->n_states; k++) {
        TRY(check_result(w, "next state", k, c->next_states[k]));
        const remat_desc *before = &w->body->value[c->states[k].id].desc;
        const remat_desc *after = &w->body->value[c->next_states[k].id].desc;
        REQUIRE(rm_desc_equal(before, after), INVALID,
                "%s: state %d is %s, but next state %d is %s; give both the same shape", c->name, k,
                rm_desc_text(before, text), k, rm_desc_text(after, other));
    }
    return REMAT_OK;
}

static void find_alive(writer *w) {
    w->alive[w->cell->output.id] = true;
    for (int k = 0; k < w->cell->n_states; k++) w->alive[w->cell->next_states[k].id] = true;
    for (int32_t n = w->body->n_nodes - 1; n >= 0; n--)
        for (int i = 0; i < REMAT_MAX_INPUTS && w->alive[w->body->node[n].y]; i++)
            w->alive[w->body->node[n].x[i]] = true;
}

static remat_status check_leaves_alive(const writer *w) {
    for (int32_t v = 1; v < w->body->n_values; v++)
        REQUIRE(!w->body->value[v].view_of, INVALID, "%s: its body has a reshape, which cells do not support",
                w->cell->name);
    for (int32_t v = 1; v < w->body->n_values; v++) {
        const rm_value *value = &w->body->value[v];
        if (value->origin == RM_VALUE_RESULT) continue;
        REQUIRE(value->origin != RM_VALUE_PARAM, INVALID,
                "%s: its body has a parameter, %s; make it a remat_input, list it among the weights, and give the "
                "outer graph's parameter to remat_scan",
                w->cell->name, value->name);
        REQUIRE(w->number[v] || !w->alive[v], INVALID,
                "%s: the body's input %s is neither an input, nor a weight, nor a state of the cell; list it as one",
                w->cell->name, value->name);
        REQUIRE(!w->number[v] || w->alive[v], INVALID,
                "%s: neither output nor next states depend on the body's input %s; leave it out", w->cell->name,
                value->name);
    }
    return REMAT_OK;
}

/* ---- Nodes ------------------------------------------------------------------------------------------------------- */

static int32_t number_of_op(const remat_op *op) {
    for (int32_t i = 0; i < rm_n_ops; i++)
        if (rm_ops[i] == op) return i;
    return -1;
}

static remat_status write_node(writer *w, const rm_node *node) {
    rm_scan *scan = w->scan;
    const char *cell = w->cell->name, *op = node->op->name;
    int32_t number = number_of_op(node->op);
    bool works = number >= 0 && node->op->time == REMAT_TIME_POINTWISE && !node->op->discrete &&
                 !node->op->on[REMAT_ON_CPU].pack && node->attr_bytes <= RM_SCAN_ATTR;
    REQUIRE(works, INVALID,
            "%s: its body has a layer %s; a body can have linear, layer_norm, dropout, add, mul, scale, sigmoid, tanh, "
            "relu, gelu, concat and slice",
            cell, op);
    REQUIRE(scan->n_nodes < RM_SCAN_NODES, INVALID, "%s: its body has more than %d layers; use fewer", cell,
            RM_SCAN_NODES);
    rm_scan_node *to = &scan->node[scan->n_nodes++];
    to->op = number;
    for (int i = 0; i < REMAT_MAX_INPUTS; i++) to->x[i] = w->number[node->x[i]];
    to->has_attr = node->attr != NULL;
    if (node->attr) memcpy(to->attr, node->attr, node->attr_bytes);
    w->number[node->y] = scan->n_values;
    scan->value[scan->n_values++] = shape_of(w->body, node->y);
    return REMAT_OK;
}

static remat_status write_cell(writer *w) {
    const remat_cell *c = w->cell;
    rm_scan *scan = w->scan;
    memcpy(scan->name, c->name, strlen(c->name));
    scan->n_sequences = c->n_inputs, scan->n_weights = c->n_weights, scan->n_states = c->n_states;
    TRY(list_leaves(w));
    TRY(check_ends(w));
    find_alive(w);
    TRY(check_leaves_alive(w));
    for (int32_t n = 0; n < w->body->n_nodes; n++)
        if (w->alive[w->body->node[n].y]) TRY(write_node(w, &w->body->node[n]));
    scan->output = w->number[c->output.id];
    for (int k = 0; k < c->n_states; k++) scan->next[k] = w->number[c->next_states[k].id];
    return REMAT_OK;
}

/* ---- The scan's node --------------------------------------------------------------------------------------------- */

static remat_status add_scan(remat_graph *graph, const rm_scan *scan, const remat_value *sequences,
                             const remat_value *weights, int32_t *id) {
    int32_t x[REMAT_MAX_INPUTS] = {0};
    remat_op op;
    rm_scan_describe(scan, &op);
    for (int i = 0; i < scan->n_sequences; i++) x[i] = sequences[i].id;
    for (int i = 0; i < scan->n_weights; i++) x[scan->n_sequences + i] = weights[i].id;
    TRY(rm_op_check_descriptor(&op));
    *id = rm_graph_add(graph, &op, x, scan);
    TRY(graph->status);
    rm_node *node = &graph->node[graph->n_nodes - 1];
    TRY(rm_node_own_op(node));
    return rm_node_check(graph, node, 0, REMAT_ON_CPU);
}

static remat_status scan_with(remat_graph *graph, writer *w, const remat_value *sequences, const remat_value *weights,
                              int32_t *id) {
    w->scan = rm_calloc(1, sizeof *w->scan);
    w->number = rm_calloc((size_t)w->body->n_values, sizeof *w->number);
    w->alive = rm_calloc((size_t)w->body->n_values, sizeof *w->alive);
    REQUIRE(w->scan && w->number && w->alive, MEMORY, "out of memory for a scan");
    TRY(write_cell(w));
    return add_scan(graph, w->scan, sequences, weights, id);
}

static remat_status scan(remat_graph *graph, const remat_cell *cell, const remat_value *sequences,
                         const remat_value *weights, int32_t *id) {
    REQUIRE(cell, INVALID, "remat_scan needs a cell, and was given NULL");
    TRY(check_name(graph, cell->name));
    REQUIRE(cell->body, INVALID, "%s: it has no body", cell->name);
    TRY(remat_graph_check(cell->body));
    TRY(check_counts(cell));
    REQUIRE(sequences && (weights || !cell->n_weights), INVALID, "%s: no %s were given", cell->name,
            sequences ? "weights" : "sequences");
    writer w = {.cell = cell, .body = cell->body};
    remat_status status = scan_with(graph, &w, sequences, weights, id);
    rm_free(w.scan);
    rm_free(w.number);
    rm_free(w.alive);
    return status;
}

remat_value remat_scan(remat_graph *graph, const remat_cell *cell, const remat_value *sequences,
                       const remat_value *weights) {
    int32_t id = 0;
    remat_cell ours;
    if (!graph || graph->status) return REMAT_NONE;
    remat_status status = cell ? rm_take(&ours, sizeof ours, cell, "remat_cell") : REMAT_OK;
    if (!status) status = scan(graph, cell ? &ours : NULL, sequences, weights, &id);
    return (remat_value){status ? rm_graph_mistake(graph, status) : id};
}
