/* cpu/pack.c: packs weights in the order in which the products read them (view.h), once after each update. Compiled
 * once per instruction set. */
#include "ops/cpu/view.h"

uint64_t rm_cell_packed_bytes(rm_cell cell, bool folded, int64_t in, int64_t hidden) {
    /* in whole cache lines for any vector width, so that every instruction set fits */
    return ((uint64_t)packing_of(cell, folded, in, hidden).floats * sizeof(float) + 63) / 64 * 64;
}

/* [block][step][gate][lane] from w (gates*hidden, depth), taking its row blocks in the order gate[]. */
static void pack_gates(const float *w, int gates, const int *gate, int64_t depth, int64_t hidden, int64_t block,
                       float *panels) {
    float *panel = panels + block * steps_of(depth) * gates * LANES;
    int n = lanes_of(block, hidden);
    for (int g = 0; g < gates; g++)
        for (int lane = 0; lane < LANES; lane++) {
            const float *row = w + (gate[g] * hidden + block * LANES + lane) * depth;
            for (int64_t k = 0; k < steps_of(depth); k++)
                panel[(k * gates + g) * LANES + lane] = lane < n ? step_at(row, k, depth) : 0;
        }
}

/* Row k of w (gates*hidden, columns), its row blocks in the order gate[]; past the last NULL. */
static const float *row_of(const float *w, int gates, const int *gate, int64_t hidden, int64_t columns, int64_t k) {
    return k < gates * hidden ? w + (gate[k / hidden] * hidden + k % hidden) * columns : NULL;
}

RM_INLINE rm_vec block_of(const float *row, int64_t columns, int64_t block) {
    return row ? rm_load_n(row + block * LANES, lanes_of(block, columns)) : rm_splat(0);
}

/* A group of [four blocks][step][block][lane] from w (gates*hidden, columns): k runs over its rows. */
static void pack_back(const float *w, int gates, const int *gate, int64_t hidden, int64_t columns, int64_t block,
                      float *panels) {
    int64_t depth = gates * hidden, blocks = ceil_div(columns, LANES);
    group into = group_at(panels, depth, block, blocks, blocks);
    for (int64_t k = 0; k < depth; k += STEP) {
        const float *first = row_of(w, gates, gate, hidden, columns, k);
        const float *second = STEP > 1 ? row_of(w, gates, gate, hidden, columns, k + 1) : NULL;
        for (int i = 0; i < into.width; i++)
            rm_store((float *)into.w + k / STEP * into.w_step + i * LANES,
                     step_of(block_of(first, columns, block + i), block_of(second, columns, block + i)));
    }
}

/* [four blocks][step][block][lane] from w (hidden, depth): the plain RNN's forward panels. */
static void pack_units(const float *w, int64_t depth, int64_t hidden, int64_t block, float *panels) {
    group into = group_at(panels, depth, block, block + 1, ceil_div(hidden, LANES));
    int n = lanes_of(block, hidden);
    for (int lane = 0; lane < LANES; lane++)
        for (int64_t k = 0; k < steps_of(depth); k++)
            ((float *)into.w)[k * into.w_step + lane] =
                lane < n ? step_at(w + (block * LANES + lane) * depth, k, depth) : 0;
}

/* The initial values of the sums: b_ih + b_hh, except if x's and h's products are in two columns (a GRU's n and q),
 * which get one each. */
static void pack_biases(rm_cell cell, int64_t hidden, const float *b_ih, const float *b_hh, const packing *at,
                        float *packed) {
    const rm_cell_layout *l = &rm_cell_layouts[cell];
    int64_t units = ceil_div(hidden, LANES) * LANES;
    memset(packed + at->x_bias, 0, (size_t)(5 * units) * sizeof *packed);
    for (int v = 0; v < l->gates; v++)
        for (int64_t j = 0; j < hidden; j++) {
            int64_t u = l->x_gate[v] * hidden + j;
            bool only_x = l->first_h + l->x_gate[v] != v;
            float of_x = b_ih ? b_ih[u] : 0, of_h = b_hh ? b_hh[u] : 0;
            packed[at->x_bias + v * units + j] = only_x ? of_x : of_x + of_h;
            if (only_x) packed[at->q_bias + j] = of_h;
        }
}

void rm_cell_pack(rm_cell cell, bool folded, int64_t in, int64_t hidden, const float *w_ih, const float *w_hh,
                  const float *b_ih, const float *b_hh, float *packed, int thread, int threads) {
    static const int in_order[4] = {0, 1, 2, 3};
    const rm_cell_layout *l = &rm_cell_layouts[cell];
    packing at = packing_of(cell, folded, in, hidden);
    int64_t blocks = ceil_div(hidden, LANES), in_blocks = folded ? 0 : ceil_div(in, LANES);
    bool plain = l->gates == 1;
    if (thread == 0) pack_biases(cell, hidden, b_ih, b_hh, &at, packed);
    for (int64_t block = thread; block < blocks; block += threads) {
        if (plain)
            pack_units(w_hh, hidden, hidden, block, packed + at.hh);
        else
            pack_gates(w_hh, l->gates, in_order, hidden, hidden, block, packed + at.hh);
        if (folded) continue;
        if (plain)
            pack_units(w_ih, in, hidden, block, packed + at.ih);
        else
            pack_gates(w_ih, l->gates, l->x_gate, in, hidden, block, packed + at.ih);
    }
    for (int64_t block = thread * WIDTH_MAX; block < blocks; block += threads * WIDTH_MAX)
        pack_back(w_hh, l->gates, in_order, hidden, hidden, block, packed + at.hh_back);
    for (int64_t block = thread * WIDTH_MAX; block < in_blocks; block += threads * WIDTH_MAX)
        pack_back(w_ih, l->gates, l->x_gate, hidden, in, block, packed + at.ih_back);
}
