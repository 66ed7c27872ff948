/* saved.c: decides what each option saves for the backward run of a stage, and lays it out in the stage's saved block:
 * everything that backward reads, or, for a lean option, only what is not recomputed. program.c writes the programs
 * accordingly. Main entries: rm_program_mark_spine, rm_program_mark_early, rm_program_lay_out_saved. */
#include <string.h>

#include "engine/chain/builder.h"

void rm_program_mark_spine(builder *b) {
    const remat_graph *graph = b->chain->graph;
    for (int32_t i = b->kind->n_nodes - 1; i >= 0; i--) {
        const rm_node *node = node_at(b, i);
        bool needed = crosses_out(b, node->y) || node->op->n_state || accumulates(b, node);
        for (int32_t j = i + 1; !needed && j < b->kind->n_nodes; j++)
            for (int k = 0; k < REMAT_MAX_INPUTS; k++)
                needed |= node_at(b, j)->x[k] == node->y && b->spine[index_of(b, node_at(b, j))];
        b->spine[node - graph->node] = needed && b->chain->use[node->y] != RM_UNUSED;
    }
}

void rm_program_mark_early(builder *b) {
    for (int32_t i = b->kind->n_nodes - 1; b->chain->n_differentiated && i >= 0; i--) {
        const rm_node *node = node_at(b, i);
        bool early = rm_chain_is_differentiated_outside(b->chain, node->y);
        for (int32_t j = i + 1; !early && j < b->kind->n_nodes; j++)
            for (int k = 0; k < REMAT_MAX_INPUTS; k++)
                early |= node_at(b, j)->x[k] == node->y && b->early[index_of(b, node_at(b, j))];
        b->early[index_of(b, node)] = early;
    }
}

/* Whether the stage's backward run reads a node's result: in a backward that declares it, or in the forward of a leaf
 * or of a recomputed node. (Recomputation has been decided for all nodes after this one.) */
static bool read_in_backward(const builder *b, const rm_node *maker) {
    if (learns(b, maker) && maker->op->saves.out) return true;
    for (int32_t i = 0; i < b->kind->n_nodes; i++) {
        const rm_node *node = node_at(b, i);
        bool any_input = b->again[index_of(b, node)] == RUN_AGAIN;
        for (int k = 0; k < node->op->n_in; k++)
            if (node->x[k] == maker->y && (any_input || backward_reads(b, node, k))) return true;
    }
    return false;
}

/* Whether the result is a state or a carried sum, which no stage saves. */
static bool is_outside(const builder *b, const rm_node *node) {
    return crosses_out(b, node->y) || accumulates(b, node);
}

static uint64_t aux_bytes(const builder *b, const rm_node *node, const remat_desc *x) {
    return learns(b, node) && node->op->aux_bytes ? node->op->aux_bytes(x, node->attr) : 0;
}

/* The node of this kind that makes `value`; NULL: another stage makes it. */
static const rm_node *maker_of(const builder *b, int32_t value) {
    for (int32_t i = 0; value && i < b->kind->n_nodes; i++)
        if (node_at(b, i)->y == value) return node_at(b, i);
    return NULL;
}

/* Arithmetic of a node's forward per byte of its results. */
static double flops_per_byte(const builder *b, const rm_node *node) {
    remat_desc x[REMAT_MAX_INPUTS], y, state[REMAT_MAX_STATES];
    rm_node_descs(b->chain->graph, node, b->kind->tau, x, &y, state);
    remat_cost cost = {0};
    node->op->cost(x, &y, node->attr, REMAT_FORWARD, &cost);
    return cost.flops / (double)(rm_desc_bytes(&y) + aux_bytes(b, node, x));
}

static bool could_run_again(const builder *b, const rm_node *node) {
    return !node->op->n_state && is_on_spine(b, node) && !is_outside(b, node);
}

static bool is_worth_it(const builder *b, const rm_node *node) {
    bool of_its_inputs = node->op->time == REMAT_TIME_POINTWISE || node->op->time == REMAT_TIME_FULL;
    return node->op->cheap || (of_its_inputs && flops_per_byte(b, node) <= b->recompute_limit);
}

static bool may_run_again(const builder *b, const rm_node *node) {
    return could_run_again(b, node) && is_worth_it(b, node);
}

/* Additional bytes to save so that `value` is available in the backward run: none, the value itself, or the inputs of
 * the cheap op that recomputes it. */
enum { MOST_IN_A_ROW = 4 };
static uint64_t price_of(const builder *b, int32_t value, int depth) {
    const rm_node *maker = maker_of(b, value);
    if (!maker || is_outside(b, maker) || read_in_backward(b, maker)) return 0;
    uint64_t bytes = tile_bytes(b, value), again = 0;
    if (!may_run_again(b, maker) || depth == MOST_IN_A_ROW) return bytes;
    for (int k = 0; k < maker->op->n_in; k++) again += price_of(b, maker->x[k], depth + 1);
    return again < bytes ? again : bytes;
}

/* How a lean stage recomputes a node's aux, or its y, too. */
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

/* Leaves run in the backward run. A leaf that has run in the first forward run runs again only if necessary: if it is
 * an output, its value is in the output's array, and its inputs may have no other reader. */
static bool leaf_runs(const builder *b, const rm_node *node) {
    remat_desc x[REMAT_MAX_INPUTS], y, state[REMAT_MAX_STATES];
    if (!b->early[index_of(b, node)]) return true;
    rm_node_descs(b->chain->graph, node, b->kind->tau, x, &y, state);
    if (aux_bytes(b, node, x)) return true;
    if (rm_chain_is_differentiated_outside(b->chain, node->y)) return false;
    return rm_chain_is_output(b->chain, node->y) || read_in_backward(b, node);
}

static void choose_leaves(builder *b) {
    for (int32_t i = b->kind->n_nodes - 1; i >= 0; i--) {
        const rm_node *node = node_at(b, i);
        if (is_leaf(b, node) && leaf_runs(b, node)) b->again[index_of(b, node)] = RUN_AGAIN;
    }
}

/* The cursor after `bytes`, bounded so that sums do not overflow: problems of 2^60 bytes are refused
 * (chain_problem.c). */
static uint64_t advance(uint64_t cursor, uint64_t bytes) {
    return rm_smaller(cursor + rm_align_up(bytes), (uint64_t)1 << 62);
}

/* Limit for the leaner option, in flops per byte of result: it recomputes the ops whose saved results take the least.
 * The lean option must have been laid out. */
static double leaner_limit(const builder *b) {
    enum { ALIKE = 2 };
    double least = 0;
    for (int32_t i = 0; i < b->kind->n_nodes; i++) {
        const rm_node *node = node_at(b, i);
        if (!could_run_again(b, node) || b->saved_value[node->y].space != RM_AT_SAVED || node->op->cheap) continue;
        double flops = flops_per_byte(b, node);
        if (least == 0 || flops < least) least = flops;
    }
    return ALIKE * least;
}

/* Goes from the last node to the first, so that all readers of a node's result have been decided. */
void rm_program_lay_out_saved(builder *b, rm_leanness lean, rm_kind_option *option) {
    const remat_graph *graph = b->chain->graph;
    uint64_t cursor = 0;
    b->recompute_limit = lean == RM_LEANER ? leaner_limit(b) : 0;
    memset(b->saved_value, 0, (size_t)graph->n_values * sizeof *b->saved_value);
    memset(b->saved_aux, 0, (size_t)graph->n_nodes * sizeof *b->saved_aux);
    memset(b->again, 0, (size_t)graph->n_nodes);
    choose_leaves(b);
    for (int32_t i = b->kind->n_nodes - 1; i >= 0; i--) {
        const rm_node *node = node_at(b, i);
        if (!is_on_spine(b, node)) continue;
        remat_desc x[REMAT_MAX_INPUTS], y, state[REMAT_MAX_STATES];
        rm_node_descs(graph, node, b->kind->tau, x, &y, state);
        uint8_t again = lean != RM_ALL ? how_again(b, node, x) : NOT_AGAIN;
        b->again[index_of(b, node)] = again;
        if (aux_bytes(b, node, x) && again == NOT_AGAIN) {
            b->saved_aux[index_of(b, node)] = (rm_where){.space = RM_AT_SAVED, .offset = cursor};
            cursor = advance(cursor, aux_bytes(b, node, x));
        }
        if (read_in_backward(b, node) && !is_outside(b, node) && again != RUN_AGAIN) {
            b->saved_value[node->y] = (rm_where){.space = RM_AT_SAVED, .offset = cursor};
            cursor = advance(cursor, tile_bytes(b, node->y));
        }
    }
    option->saved_bytes = cursor;
}
