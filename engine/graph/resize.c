/* resize.c: the same network for other lengths and batches: a copy of the graph whose inputs have other shapes, and
 * whose other shapes follow from these. Main entry: remat_graph_resized. */
#include "engine/graph/graph.h"

/* T timesteps become new_t, B rows new_b; 0: they stay. */
typedef struct {
    int64_t t, new_t, b, new_b;
} sizes;

static int64_t resized(int64_t dim, int64_t from, int64_t to) { return from && dim == from ? to : dim; }

static remat_desc resized_input(const rm_value *value, const sizes *s) {
    remat_desc desc = value->desc;
    int rows = value->sequence ? 1 : 0;
    if (value->sequence && desc.rank > 0) desc.dim[0] = resized(desc.dim[0], s->t, s->new_t);
    if (desc.rank > rows) desc.dim[rows] = resized(desc.dim[rows], s->b, s->new_b);
    bool becomes_sequence = !value->sequence && desc.rank > 1 && s->t && value->desc.dim[0] == s->t &&
                            value->desc.dim[1] == s->b; /* (T,B,..) for remat_as_sequence */
    if (becomes_sequence) desc.dim[0] = s->new_t, desc.dim[1] = s->new_b;
    return desc;
}

static int64_t product(const remat_desc *desc, int from, int until) {
    int64_t n = 1;
    for (int i = from; i < until; i++) n *= desc->dim[i];
    return n;
}

/* Dimensions whose sizes change with the rows, the timesteps, or both. */
static int64_t resized_dim(int64_t dim, const sizes *s) {
    if (s->t && s->b && dim == s->t * s->b) return s->new_t * s->new_b;
    return dim == s->t ? s->new_t : resized(dim, s->b, s->new_b);
}

/* Resizes the dimensions from..until of a reshape, which correspond to dimensions of its input that now have `count`
 * elements. */
static remat_status resize_block(remat_desc *view, int from, int until, int64_t count, const sizes *s) {
    char text[REMAT_DESC_TEXT];
    if (product(view, from, until) == count) return REMAT_OK;
    if (until - from == 1) view->dim[from] = count;
    for (int i = from; i < until && until - from > 1; i++) view->dim[i] = resized_dim(view->dim[i], s);
    REQUIRE(product(view, from, until) == count, INVALID,
            "a reshape to %s does not say which of its dimensions are timesteps or rows; build a new graph",
            rm_desc_text(view, text));
    return REMAT_OK;
}

/* A reshape keeps row-major order, so the shortest runs of dimensions with equally many elements correspond. */
static remat_status resize_view(const remat_desc *before, const remat_desc *now, remat_desc *view, const sizes *s) {
    const remat_desc old = *view;
    for (int a = 0, b = 0; a < before->rank || b < old.rank;) {
        int first_a = a, first_b = b;
        int64_t left = a < before->rank ? before->dim[a++] : 1, right = b < old.rank ? old.dim[b++] : 1;
        while (left != right)
            if (left < right)
                left *= before->dim[a++];
            else
                right *= old.dim[b++];
        TRY(resize_block(view, first_b, b, product(now, first_a, a), s));
    }
    return REMAT_OK;
}

static remat_status resize_value(const remat_graph *graph, remat_graph *copy, int32_t v, const sizes *s) {
    rm_value *value = &copy->value[v];
    switch (value->origin) {
    case RM_VALUE_INPUT:
        value->desc = resized_input(value, s);
        break;
    case RM_VALUE_VIEW:
        return resize_view(&graph->value[value->view_of].desc, &copy->value[value->view_of].desc, &value->desc, s);
    case RM_VALUE_RESULT:
        if (!value->state) return rm_node_infer(copy, value->node);
        value->desc = copy->node[value->node].state[value->state - 1];
        break;
    case RM_VALUE_PARAM:
    case RM_VALUE_BUFFER:
        break;
    }
    return REMAT_OK;
}

static remat_status check_initial(const remat_graph *graph, const rm_node *node) {
    char wanted[REMAT_DESC_TEXT], text[REMAT_DESC_TEXT];
    for (int k = 0; k < node->op->n_state; k++) {
        const remat_desc *initial = &graph->value[rm_initial(node, k)].desc;
        REQUIRE(!rm_initial(node, k) || rm_desc_equal(initial, &node->state[k]), INVALID,
                "initial_state: state %d of %s becomes %s, and the value stays %s; it must have rows, too", k,
                node->op->name, rm_desc_text(&node->state[k], wanted), rm_desc_text(initial, text));
    }
    return REMAT_OK;
}

static remat_status resize(const remat_graph *graph, remat_graph *copy, const sizes *s) {
    bool any = false;
    for (int32_t v = 1; v < graph->n_values; v++) {
        TRY(resize_value(graph, copy, v, s));
        any |= graph->value[v].origin == RM_VALUE_INPUT && !rm_desc_equal(&graph->value[v].desc, &copy->value[v].desc);
    }
    bool same = s->t == s->new_t && s->b == s->new_b;
    REQUIRE(any || same, INVALID, "no input of this graph has %lld timesteps or %lld rows", (long long)s->t,
            (long long)s->b);
    for (int32_t n = 0; n < copy->n_nodes; n++) TRY(check_initial(copy, &copy->node[n]));
    return REMAT_OK;
}

remat_status remat_graph_resized(const remat_graph *graph, int64_t timesteps, int64_t new_timesteps, int64_t rows,
                                 int64_t new_rows, remat_graph **out) {
    NEED(graph, "a graph");
    NEED(out, "a place for the result");
    REQUIRE(timesteps >= 0 && (new_timesteps > 0 || !timesteps), INVALID,
            "%lld timesteps cannot become %lld; use numbers above 0", (long long)timesteps, (long long)new_timesteps);
    REQUIRE(rows >= 0 && (new_rows > 0 || !rows), INVALID, "%lld rows cannot become %lld; use numbers above 0",
            (long long)rows, (long long)new_rows);
    remat_graph *copy = NULL;
    TRY(rm_graph_clone(graph, &copy));
    remat_status status = resize(graph, copy, &(sizes){timesteps, new_timesteps, rows, new_rows});
    if (status) remat_graph_free(copy);
    if (!status) *out = copy;
    return status;
}
