/* saved.c: what each way of keeping a stage saves for its backward run, and where in the stage's saved block:
 * everything that backward reads, or, kept lean, what cannot be made again for less. program.c writes programs by it.
 * Main entries: rm_program_mark_spine, rm_program_mark_early, rm_program_lay_out_saved. */
#include <string.h>

#include "engine/chain/builder.h"

void rm_program_mark_spine(builder *b) {
    const remat_graph *graph = b->chain->graph;
    for (int32_t i = b->class->n_nodes - 1; i >= 0; i--) {
        const rm_node *node = node_at(b, i);
        bool needed = crosses_out(b, node->y) || node->op->n_state || accumulates(b, node);
        for (int32_t j = i + 1; !needed && j < b->class->n_nodes; j++)
            for (int k = 0; k < REMAT_MAX_INPUTS; k++)
                needed |= node_at(b, j)->x[k] == node->y && b->spine[index_of(b, node_at(b, j))];
        b->spine[node - graph->node] = needed && b->chain->use[node->y] != RM_UNUSED;
    }
}

void rm_program_mark_early(builder *b) {
    for (int32_t i = b->class->n_nodes - 1; b->chain->n_differentiated && i >= 0; i--) {
        const rm_node *node = node_at(b, i);
        bool early = rm_chain_is_differentiated_outside(b->chain, node->y);
        for (int32_t j = i + 1; !early && j < b->class->n_nodes; j++)
            for (int k = 0; k < REMAT_MAX_INPUTS; k++)
                early |= node_at(b, j)->x[k] == node->y && b->early[index_of(b, node_at(b, j))];
        b->early[index_of(b, node)] = early;
    }
}

/* Is a node's result read by the stage's backward run: by a backward that declared it, or by a forward that is run there, a
 * leaf's or one that is run again? (The last is known of all nodes behind this one.) */
static bool read_in_backward(const builder *b, const rm_node *maker) {
    if (learns(b, maker) && maker->op->saves.out) return true;
    for (int32_t i = 0; i < b->class->n_nodes; i++) {
        const rm_node *node = node_at(b, i);
        bool any_input = b->again[index_of(b, node)] == RUN_AGAIN;
        for (int k = 0; k < node->op->n_in; k++)
            if (node->x[k] == maker->y && (any_input || backward_reads(b, node, k))) return true;
    }
    return false;
}

/* Its result lies at the next cut, or in a carried sum: no stage saves it. */
static bool lies_outside(const builder *b, const rm_node *node) {
    return crosses_out(b, node->y) || accumulates(b, node);
}

static uint64_t aux_bytes(const builder *b, const rm_node *node, const remat_desc *x) {
    return learns(b, node) && node->op->aux_bytes ? node->op->aux_bytes(x, node->attr) : 0;
}

/* The node of this class that makes `value`; NULL: it comes from outside. */
static const rm_node *maker_of(const builder *b, int32_t value) {
    for (int32_t i = 0; value && i < b->class->n_nodes; i++)
        if (node_at(b, i)->y == value) return node_at(b, i);
    return NULL;
}

/* Arithmetic of a node's forward for each byte that it makes. */
static double operations_a_byte(const builder *b, const rm_node *node) {
    remat_desc x[REMAT_MAX_INPUTS], y, state[REMAT_MAX_STATES];
    rm_node_descs(b->chain->graph, node, b->class->tau, x, &y, state);
    remat_cost cost = {0};
    node->op->cost(x, &y, node->attr, REMAT_FORWARD, &cost);
    return cost.flops / (double)(rm_desc_bytes(&y) + aux_bytes(b, node, x));
}

static bool could_run_again(const builder *b, const rm_node *node) {
    return !node->op->n_state && is_on_spine(b, node) && !lies_outside(b, node);
}

static bool is_worth_it(const builder *b, const rm_node *node) {
    bool of_its_inputs = node->op->time == REMAT_TIME_POINTWISE || node->op->time == REMAT_TIME_FULL;
    return node->op->cheap || (of_its_inputs && operations_a_byte(b, node) <= b->worth_a_byte);
}

static bool may_run_again(const builder *b, const rm_node *node) {
    return could_run_again(b, node) && is_worth_it(b, node);
}

/* Bytes that would have to be saved, which are not saved anyway, for `value` to be there in the backward run: nothing, or
 * the value itself, or what the cheap op that makes it needs to run again. */
enum { MOST_IN_A_ROW = 4 };
static uint64_t price_of(const builder *b, int32_t value, int depth) {
    const rm_node *maker = maker_of(b, value);
    if (!maker || lies_outside(b, maker) || read_in_backward(b, maker)) return 0;
    uint64_t bytes = tile_bytes(b, value), again = 0;
    if (!may_run_again(b, maker) || depth == MOST_IN_A_ROW) return bytes;
    for (int k = 0; k < maker->op->n_in; k++) again += price_of(b, maker->x[k], depth + 1);
    return again < bytes ? again : bytes;
}

/* How a lean stage does without a node's aux, or without its y too. */
static uint8_t how_again(const builder *b, const rm_node *node, const remat_desc *x) {
    const remat_op *op = node->op;
    uint64_t aux = aux_bytes(b, node, x), spared = aux + (read_in_backward(b, node) ? tile_bytes(b, node->y) : 0);
    if (may_run_again(b, node)) {
        uint64_t price = 0;
        for (int k = 0; k < op->n_in; k++) price += price_of(b, node->x[k], 0);
        return price < spared ? RUN_AGAIN : NOT_AGAIN;
    }
    bool same_bits = op->on[b->config->kernels].rebuild && (!op->rebuilds || op->rebuilds(x, node->attr));
    return same_bits && aux ? REBUILT : NOT_AGAIN;
}

/* A leaf runs in the backward run. One that ran before only if it must again: what was handed out lies there, and what that
 * alone was made of may have no other reader. */
static bool leaf_runs(const builder *b, const rm_node *node) {
    remat_desc x[REMAT_MAX_INPUTS], y, state[REMAT_MAX_STATES];
    if (!b->early[index_of(b, node)]) return true;
    rm_node_descs(b->chain->graph, node, b->class->tau, x, &y, state);
    if (aux_bytes(b, node, x)) return true;
    if (rm_chain_is_differentiated_outside(b->chain, node->y)) return false;
    return rm_chain_is_output(b->chain, node->y) || read_in_backward(b, node);
}

static void choose_leaves(builder *b) {
    for (int32_t i = b->class->n_nodes - 1; i >= 0; i--) {
        const rm_node *node = node_at(b, i);
        if (is_leaf(b, node) && leaf_runs(b, node)) b->again[index_of(b, node)] = RUN_AGAIN;
    }
}

/* What does not wrap in sums: problems of 2^60 bytes are refused (chain_problem.c). */
static uint64_t behind(uint64_t cursor, uint64_t bytes) {
    return rm_smaller(cursor + rm_align_up(bytes), (uint64_t)1 << 62);
}

/* What the ops cost that a leaner stage runs again, too: those whose saved results cost least to make, byte for byte. Called with
 * the lean stage laid out. */
static double worth_of_the_leaner(const builder *b) {
    enum { ALIKE = 2 };
    double least = 0;
    for (int32_t i = 0; i < b->class->n_nodes; i++) {
        const rm_node *node = node_at(b, i);
        if (!could_run_again(b, node) || b->saved_value[node->y].space != RM_AT_SAVED || node->op->cheap) continue;
        double a_byte = operations_a_byte(b, node);
        if (least == 0 || a_byte < least) least = a_byte;
    }
    return ALIKE * least;
}

/* From the last node to the first, so that whoever reads a node's result has been decided about. */
void rm_program_lay_out_saved(builder *b, rm_leanness lean, rm_kind_option *option) {
    const remat_graph *graph = b->chain->graph;
    uint64_t cursor = 0;
    b->worth_a_byte = lean == RM_LEANER ? worth_of_the_leaner(b) : 0;
    memset(b->saved_value, 0, (size_t)graph->n_values * sizeof *b->saved_value);
    memset(b->saved_aux, 0, (size_t)graph->n_nodes * sizeof *b->saved_aux);
    memset(b->again, 0, (size_t)graph->n_nodes);
    choose_leaves(b);
    for (int32_t i = b->class->n_nodes - 1; i >= 0; i--) {
        const rm_node *node = node_at(b, i);
        if (!is_on_spine(b, node)) continue;
        remat_desc x[REMAT_MAX_INPUTS], y, state[REMAT_MAX_STATES];
        rm_node_descs(graph, node, b->class->tau, x, &y, state);
        uint8_t again = lean != RM_ALL ? how_again(b, node, x) : NOT_AGAIN;
        b->again[index_of(b, node)] = again;
        if (aux_bytes(b, node, x) && again == NOT_AGAIN) {
            b->saved_aux[index_of(b, node)] = (rm_where){.space = RM_AT_SAVED, .offset = cursor};
            cursor = behind(cursor, aux_bytes(b, node, x));
        }
        if (read_in_backward(b, node) && !lies_outside(b, node) && again != RUN_AGAIN) {
            b->saved_value[node->y] = (rm_where){.space = RM_AT_SAVED, .offset = cursor};
            cursor = behind(cursor, tile_bytes(b, node->y));
        }
    }
    option->saved_bytes = cursor;
}
