/* cells_of_ops.h: the built-in cells written as bodies of remat_scan, with the same weights and gates. */
#ifndef RM_CELLS_OF_OPS_H
#define RM_CELLS_OF_OPS_H

#include <string.h>

#include "engine/remat.h"

enum { CELL_LSTM, CELL_GRU, CELL_RNN, CELL_KINDS };
enum { CELL_W_IH, CELL_W_HH, CELL_B_IH, CELL_B_HH, CELL_WEIGHTS };
static const int cell_gates[] = {4, 3, 1};

typedef struct {
    remat_graph *body;
    remat_value x, weight[CELL_WEIGHTS], state[2], next[2];
    remat_cell cell;
} written_cell;

static remat_value body_input(remat_graph *g, const char *name, int rank, int64_t rows, int64_t columns) {
    return remat_input(g, name, REMAT_F32, REMAT_STATIC, rank, (int64_t[]){rows, columns});
}

static void body_lstm(written_cell *w, remat_value gates, int64_t width) {
    remat_graph *g = w->body;
    remat_value i = remat_sigmoid(g, remat_slice(g, gates, 0, width));
    remat_value f = remat_sigmoid(g, remat_slice(g, gates, width, width));
    remat_value n = remat_tanh(g, remat_slice(g, gates, 2 * width, width));
    remat_value o = remat_sigmoid(g, remat_slice(g, gates, 3 * width, width));
    w->next[1] = remat_add(g, remat_mul(g, f, w->state[1]), remat_mul(g, i, n));
    w->next[0] = remat_mul(g, o, remat_tanh(g, w->next[1]));
}

static void body_gru(written_cell *w, remat_value of_x, remat_value of_h, int64_t width) {
    remat_graph *g = w->body;
    remat_value sums = remat_add(g, remat_slice(g, of_x, 0, 2 * width), remat_slice(g, of_h, 0, 2 * width));
    remat_value gates = remat_sigmoid(g, sums);
    remat_value r = remat_slice(g, gates, 0, width), z = remat_slice(g, gates, width, width);
    remat_value q = remat_mul(g, r, remat_slice(g, of_h, 2 * width, width));
    remat_value n = remat_tanh(g, remat_add(g, remat_slice(g, of_x, 2 * width, width), q));
    remat_value rest = remat_add(g, w->state[0], remat_scale(g, n, -1));
    w->next[0] = remat_add(g, n, remat_mul(g, z, rest)); /* (1 - z) n + z h */
}

/* The caller frees the body, after the last remat_scan. */
static inline void write_cell(int kind, int64_t batch, int64_t in, int64_t width, written_cell *w) {
    static const char *const names[] = {"lstm of ops", "gru of ops", "rnn of ops"};
    int64_t wide = cell_gates[kind] * width;
    memset(w, 0, sizeof *w);
    remat_graph_create(&w->body);
    remat_graph *g = w->body;
    w->x = body_input(g, "x", 2, batch, in);
    w->weight[CELL_W_IH] = body_input(g, "w_ih", 2, wide, in);
    w->weight[CELL_W_HH] = body_input(g, "w_hh", 2, wide, width);
    w->weight[CELL_B_IH] = body_input(g, "b_ih", 1, wide, 0);
    w->weight[CELL_B_HH] = body_input(g, "b_hh", 1, wide, 0);
    w->state[0] = body_input(g, "h", 2, batch, width);
    if (kind == CELL_LSTM) w->state[1] = body_input(g, "c", 2, batch, width);
    remat_value of_x = remat_linear(g, w->x, w->weight[CELL_W_IH], w->weight[CELL_B_IH]);
    remat_value of_h = remat_linear(g, w->state[0], w->weight[CELL_W_HH], w->weight[CELL_B_HH]);
    if (kind == CELL_LSTM) body_lstm(w, remat_add(g, of_x, of_h), width);
    if (kind == CELL_GRU) body_gru(w, of_x, of_h, width);
    if (kind == CELL_RNN) w->next[0] = remat_tanh(g, remat_add(g, of_x, of_h));
    w->cell.struct_bytes = sizeof w->cell;
    w->cell.name = names[kind];
    w->cell.body = g;
    w->cell.inputs = &w->x, w->cell.n_inputs = 1;
    w->cell.weights = w->weight, w->cell.n_weights = CELL_WEIGHTS;
    w->cell.states = w->state, w->cell.next_states = w->next, w->cell.n_states = kind == CELL_LSTM ? 2 : 1;
    w->cell.output = w->next[0];
}

#endif
