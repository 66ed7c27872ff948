/* cpu/m2rnn.c: the element-wise loops of M2RNN, and its products of a matrix and a vector, in vectors of columns of H;
 * ops/recurrent/m2rnn.c has the definition and the order of calls. Compiled once per instruction set. */
#include <stddef.h>

#include "ops/cpu/isa.h"
#include "ops/cpu/lane_sums.h"
#include "ops/recurrent/m2rnn.h"

enum { LANES = RM_LANES, WIDE = 4 /* sums of `answer` at a time */ };

/* The lanes of the vector at column j that are columns. */
RM_INLINE int lanes_at(int64_t values, int64_t j) { return values - j < LANES ? (int)(values - j) : LANES; }

static void outer(const rm_m2rnn_step *s, float *z) {
    for (int64_t i = 0; i < s->keys; i++)
        for (int64_t j = 0; j < s->values; j += LANES) {
            int n = lanes_at(s->values, j);
            rm_store_n(z + i * s->values + j, rm_splat(s->k[i]) * rm_load_n(s->v + j, n), n);
        }
}

static void mix(const rm_m2rnn_step *s, const float *from, float *z, float *to) {
    rm_vec f = rm_splat(s->f), rest = rm_splat(1 - s->f);
    for (int64_t at = 0, count = s->keys * s->values; at < count; at += LANES) {
        int n = lanes_at(count, at);
        rm_vec squashed = rm_vec_tanh(rm_load_n(z + at, n));
        rm_store_n(z + at, squashed, n);
        rm_store_n(to + at, rm_fma(rest, squashed, f * (from ? rm_load_n(from + at, n) : rm_splat(0))), n);
    }
}

RM_INLINE void answer_columns(const rm_m2rnn_step *s, int wide, int64_t j, const float *by, const float *matrix,
                              float *out) {
    rm_vec sum[WIDE] = {{0}};
    for (int64_t i = 0; i < s->keys; i++)
        for (int w = 0; w < wide; w++) {
            int64_t at = j + w * LANES;
            sum[w] = rm_fma(rm_splat(by[i]), rm_load_n(matrix + i * s->values + at, lanes_at(s->values, at)), sum[w]);
        }
    for (int w = 0; w < wide; w++) rm_store_n(out + j + w * LANES, sum[w], lanes_at(s->values, j + w * LANES));
}

static void answer(const rm_m2rnn_step *s, const float *by, const float *matrix, float *out) {
    int64_t j = 0;
    for (; j + WIDE * LANES <= s->values; j += WIDE * LANES) answer_columns(s, WIDE, j, by, matrix, out);
    for (; j < s->values; j += LANES) answer_columns(s, 1, j, by, matrix, out);
}

/* Comments quote the forward lines. */
static void back(const rm_m2rnn_step *s, float *G, float *dp) {
    const rm_vec f = rm_splat(s->f), rest = rm_splat(1 - s->f);
    rm_vec by_f = rm_splat(0);
    _Alignas(64) float lanes[2][LANES];
    for (int64_t i = 0; i < s->keys; i++) {
        rm_vec by_q = rm_splat(0), by_k = rm_splat(0);
        for (int64_t j = 0; j < s->values; j += LANES) {
            int n = lanes_at(s->values, j);
            int64_t at = i * s->values + j;
            rm_vec dy = rm_load_n(s->dy + j, n), z = rm_load_n(s->z + at, n);
            rm_vec before = s->before ? rm_load_n(s->before + at, n) : rm_splat(0);
            rm_vec g = rm_fma(rm_splat(s->q[i]), dy, rm_load_n(G + at, n)); /* y = H'^T q */
            by_q = rm_fma(rm_load_n(s->after + at, n), dy, by_q);
            by_f = rm_fma(g, before - z, by_f);                /* H' = f H + (1 - f) Z */
            rm_vec dz = rest * g * rm_fma(-z, z, rm_splat(1)); /* Z = tanh(H W + k v^T) */
            by_k = rm_fma(dz, rm_load_n(s->v + j, n), by_k);
            rm_store_n(dp + at, dz, n);
            rm_store_n(G + at, s->before ? f * g : rm_splat(0), n);
        }
        rm_store(lanes[0], by_q), rm_store(lanes[1], by_k);
        rm_four sums = rm_sum_lanes(2, lanes);
        if (s->dq) s->dq[i] = sums[0];
        if (s->dk) s->dk[i] = sums[1];
    }
    rm_store(lanes[0], by_f);
    if (s->df) *s->df = rm_sum_lanes(1, lanes)[0];
    if (s->dv) answer(s, s->k, dp, s->dv);
}

const rm_m2rnn_rows rm_cell_m2rnn = {outer, mix, answer, back};
