/* cell/pack.c: weights, laid out as the products read them (view.h); once after each update. Compiled once per
 * instruction set. */
#include "ops/recurrent/cell/view.h"

uint64_t rm_cell_packed_bytes(rm_cell cell, bool folded, int64_t in, int64_t hidden) {
    /* in whole cache lines whatever the width, so that every instruction set fits */
    return ((uint64_t)packing_of(cell, folded, in, hidden).floats * sizeof(float) + 63) / 64 * 64;
}

/* [block][k][gate][lane] from w (gates*hidden, depth), taking its row blocks in the order gate[]. */
static void pack_gates(const float *w, int gates, const int *gate, int64_t depth, int64_t hidden, int64_t block,
                       float *panels) {
    float *panel = panels + block * depth * gates * LANES;
    int n = lanes_of(block, hidden);
    for (int g = 0; g < gates; g++)
        for (int lane = 0; lane < LANES; lane++) {
            const float *row = w + (gate[g] * hidden + block * LANES + lane) * depth;
            for (int64_t k = 0; k < depth; k++) panel[(k * gates + g) * LANES + lane] = lane < n ? row[k] : 0;
        }
}

/* [four blocks][k][block][lane] from w (gates*hidden, columns): k runs over its rows, row blocks in the order gate[]. */
static void pack_back(const float *w, int gates, const int *gate, int64_t hidden, int64_t columns, int64_t block,
                      float *panels) {
    int64_t depth = gates * hidden;
    group into = group_at(panels, depth, block, block + 1, ceil_div(columns, LANES));
    int n = lanes_of(block, columns);
    for (int g = 0; g < gates; g++)
        for (int64_t j = 0; j < hidden; j++)
            rm_store((float *)into.w + (g * hidden + j) * into.w_step,
                     rm_load_n(w + (gate[g] * hidden + j) * columns + block * LANES, n));
}

/* [four blocks][k][block][lane] from w (hidden, depth): the plain RNN's forward panels. */
static void pack_units(const float *w, int64_t depth, int64_t hidden, int64_t block, float *panels) {
    group into = group_at(panels, depth, block, block + 1, ceil_div(hidden, LANES));
    int n = lanes_of(block, hidden);
    for (int lane = 0; lane < LANES; lane++)
        for (int64_t k = 0; k < depth; k++)
            ((float *)into.w)[k * into.w_step + lane] = lane < n ? w[(block * LANES + lane) * depth + k] : 0;
}

/* What the sums start from: b_ih + b_hh, except a GRU's n and q, which take one each. */
static void pack_biases(rm_cell cell, int64_t hidden, const float *b_ih, const float *b_hh, const packing *at,
                        float *packed) {
    const layout *l = &layouts[cell];
    int64_t units = ceil_div(hidden, LANES) * LANES;
    memset(packed + at->x_bias, 0, (size_t)(5 * units) * sizeof *packed);
    for (int v = 0; v < l->gates; v++)
        for (int64_t j = 0; j < hidden; j++) {
            int64_t u = l->x_gate[v] * hidden + j;
            bool only_x = cell == RM_CELL_GRU && l->x_gate[v] == 2;
            float of_x = b_ih ? b_ih[u] : 0, of_h = b_hh ? b_hh[u] : 0;
            packed[at->x_bias + v * units + j] = only_x ? of_x : of_x + of_h;
            if (only_x) packed[at->q_bias + j] = of_h;
        }
}

void rm_cell_pack(rm_cell cell, bool folded, int64_t in, int64_t hidden, const float *w_ih, const float *w_hh,
                  const float *b_ih, const float *b_hh, float *packed, int thread, int threads) {
    static const int in_order[4] = {0, 1, 2, 3};
    const layout *l = &layouts[cell];
    packing at = packing_of(cell, folded, in, hidden);
    int64_t blocks = ceil_div(hidden, LANES), in_blocks = folded ? 0 : ceil_div(in, LANES);
    bool plain = l->gates == 1;
    if (thread == 0) pack_biases(cell, hidden, b_ih, b_hh, &at, packed);
    for (int64_t block = thread; block < blocks; block += threads) {
        if (plain)
            pack_units(w_hh, hidden, hidden, block, packed + at.hh);
        else
            pack_gates(w_hh, l->gates, in_order, hidden, hidden, block, packed + at.hh);
        pack_back(w_hh, l->gates, in_order, hidden, hidden, block, packed + at.hh_back);
        if (folded) continue;
        if (plain)
            pack_units(w_ih, in, hidden, block, packed + at.ih);
        else
            pack_gates(w_ih, l->gates, l->x_gate, in, hidden, block, packed + at.ih);
    }
    for (int64_t block = thread; block < in_blocks; block += threads)
        pack_back(w_ih, l->gates, l->x_gate, hidden, in, block, packed + at.ih_back);
}
