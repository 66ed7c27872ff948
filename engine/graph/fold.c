/* fold.c: rewrites of a session's copy of the graph.
 *
 * A recurrent layer over an embedding computes weight[token] w_ih^T for every row, but there
 * are only V different results. If V < T*B, the table (V,G*H) = weight w_ih^T is computed once per step, and the layer
 * reads a row of it for each token:
 *
 *     lstm(embedding(tokens, weight), w_ih, ...)   ->   lstm(tokens, linear(weight, w_ih), ...)
 *
 * The sums are the same, but rounded differently, so bits differ from the unfolded graph. remat_config.fold_embedding
 * switches it off.
 *
 * A relu that alone reads a sum, or a batch norm, is computed in the same pass over memory:
 *
 *     relu(add(a, b))          ->   add_relu(a, b)             a, b: of one shape
 *     relu(batch_norm(x, ..))  ->   batch_norm(x, ..; relu)
 *
 * That has the same bits, so nothing switches it off. */
#include "engine/graph/graph.h"

#include <string.h>

static bool is_kept(const int32_t *keep, int n_keep, int32_t value) {
    for (int i = 0; i < n_keep; i++)
        if (keep[i] == value) return true;
    return false;
}

static int count_readers(const remat_graph *graph, int32_t value) {
    int readers = 0;
    for (int32_t n = 0; n < graph->n_nodes; n++)
        for (int i = 0; i < graph->node[n].op->n_in; i++) readers += graph->node[n].x[i] == value;
    return readers;
}

/* The embedding that feeds node n and can be folded into it, or NULL. */
static const rm_node *foldable(const remat_graph *graph, int32_t n, const int32_t *keep, int n_keep) {
    const rm_node *layer = &graph->node[n];
    const rm_value *x = &graph->value[layer->x[0]];
    if (layer->op->time != REMAT_TIME_RECURRENT || x->origin != RM_VALUE_RESULT) return NULL;
    if (rm_op_find(layer->op->name) != layer->op) return NULL; /* ops of users do not read tables */
    if (!layer->op->bound) return NULL;                        /* nor do ops that take no tokens */
    const rm_node *embedding = &graph->node[x->node];
    if (layer->seen[0] || layer->seen[1] || embedding->seen[0] || embedding->seen[1]) return NULL; /* other shapes */
    if (strcmp(embedding->op->name, "embedding") || !graph->value[embedding->x[0]].sequence) return NULL;
    if (graph->value[layer->x[1]].origin != RM_VALUE_PARAM) return NULL;
    if (graph->value[embedding->x[1]].depends) return NULL; /* the table must exist before the step */
    if (count_readers(graph, layer->x[0]) != 1 || is_kept(keep, n_keep, layer->x[0])) return NULL;
    int64_t vocabulary = graph->value[embedding->x[1]].desc.dim[0];
    const remat_desc *tokens = &graph->value[embedding->x[0]].desc;
    return vocabulary < tokens->dim[0] * tokens->dim[1] ? embedding : NULL;
}

remat_status rm_graph_fold_embeddings(remat_graph *graph, const int32_t *keep, int n_keep, int *n_folded) {
    *n_folded = 0;
    for (int32_t n = 0; n < graph->n_nodes; n++) {
        const rm_node *embedding = foldable(graph, n, keep, n_keep);
        if (!embedding) continue;
        int32_t tokens = embedding->x[0], slot = graph->value[graph->node[n].x[0]].node;
        int32_t table = rm_graph_add(graph, rm_op_find("linear"),
                                     (int32_t[REMAT_MAX_INPUTS]){embedding->x[1], graph->node[n].x[1]}, NULL);
        if (!table) return remat_graph_check(graph);
        /* The table's node takes the embedding's place in the order; the embedding's moves to the end, unread. */
        rm_node made = graph->node[graph->n_nodes - 1], removed = graph->node[slot];
        graph->node[slot] = made;
        graph->node[graph->n_nodes - 1] = removed;
        graph->value[made.y].node = slot;
        graph->value[removed.y].node = graph->n_nodes - 1;
        graph->node[n].x[0] = tokens;
        graph->node[n].x[1] = table;
        ++*n_folded;
    }
    return REMAT_OK;
}

/* The node whose result relu node n alone reads, as it is, and that need not exist by itself; else NULL. */
static const rm_node *only_read_by(const remat_graph *graph, int32_t n, const int32_t *keep, int n_keep) {
    const rm_node *relu = &graph->node[n];
    const rm_value *x = &graph->value[relu->x[0]];
    if (relu->op != rm_op_find("relu") || relu->seen[0] || x->origin != RM_VALUE_RESULT || x->state) return NULL;
    return count_readers(graph, relu->x[0]) == 1 && !is_kept(keep, n_keep, relu->x[0]) ? &graph->node[x->node] : NULL;
}

static bool adds_one_shape(const remat_graph *graph, const rm_node *node) {
    return node->op == rm_op_find("add") && node->x[0] && node->x[1] && !node->seen[0] && !node->seen[1] &&
           rm_desc_equal(&graph->value[node->x[0]].desc, &graph->value[node->x[1]].desc);
}

remat_status rm_graph_fold_relus(remat_graph *graph, const int32_t *keep, int n_keep) {
    const remat_op *norm = rm_op_find("batch_norm"), *add_relu = rm_op_find("add_relu");
    for (int32_t n = 0; n < graph->n_nodes; n++) {
        const rm_node *before = only_read_by(graph, n, keep, n_keep); /* it stays, unread */
        rm_node *relu = &graph->node[n];
        if (before && before->op == norm) {
            rm_batch_norm_attr attr = *(const rm_batch_norm_attr *)before->attr;
            attr.relu = 1;
            relu->attr_bytes = before->attr_bytes;
            TRY(rm_node_own_data(relu, &attr, NULL));
        } else if (!before || !adds_one_shape(graph, before)) {
            continue;
        }
        relu->op = before->op == norm ? norm : add_relu;
        memcpy(relu->x, before->x, sizeof relu->x);
        memcpy(relu->seen, before->seen, sizeof relu->seen);
    }
    return REMAT_OK;
}
