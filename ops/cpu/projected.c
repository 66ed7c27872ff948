/* cpu/projected.c: the computation of an LSTM with projection (ops/recurrent/lstm_projected.c) for one row between its
 * two products, in vectors. Compiled once per instruction set. */
#include <stddef.h>

#include "ops/cpu/isa.h"
#include "ops/math/vecmath.h"

enum { LANES = RM_LANES };

#define EACH_VECTOR(j, n, hidden)                                                                                      \
    for (int64_t j = 0, n; n = (hidden)-j < LANES ? (hidden)-j : LANES, j < (hidden); j += LANES)

static void forward(int64_t hidden, float *gates, const float *c_before, float *c, float *m) {
    float *row[4] = {gates, gates + hidden, gates + 2 * hidden, gates + 3 * hidden};
    EACH_VECTOR(j, lanes, hidden) {
        int n = (int)lanes;
        rm_vec i = rm_vec_sigmoid(rm_load_n(row[0] + j, n)), f = rm_vec_sigmoid(rm_load_n(row[1] + j, n));
        rm_vec g = rm_vec_tanh(rm_load_n(row[2] + j, n)), o = rm_vec_sigmoid(rm_load_n(row[3] + j, n));
        rm_vec next = rm_fma(f, c_before ? rm_load_n(c_before + j, n) : rm_splat(0), i * g); /* c = f c + i g */
        rm_store_n(row[0] + j, i, n), rm_store_n(row[1] + j, f, n);
        rm_store_n(row[2] + j, g, n), rm_store_n(row[3] + j, o, n);
        rm_store_n(c + j, next, n);
        rm_store_n(m + j, o * rm_vec_tanh(next), n);
    }
}

/* Like unit_back in lstm.c. */
static void backward(int64_t hidden, float *gates, const float *c_before, const float *c, const float *dm, float *dc,
                     float *m) {
    const rm_vec one = rm_splat(1);
    float *row[4] = {gates, gates + hidden, gates + 2 * hidden, gates + 3 * hidden};
    EACH_VECTOR(j, lanes, hidden) {
        int n = (int)lanes;
        rm_vec i = rm_load_n(row[0] + j, n), f = rm_load_n(row[1] + j, n);
        rm_vec g = rm_load_n(row[2] + j, n), o = rm_load_n(row[3] + j, n);
        rm_vec tanh_c = rm_vec_tanh(rm_load_n(c + j, n)), d = rm_load_n(dm + j, n);
        rm_vec dnext = rm_fma(d * o, rm_fma(-tanh_c, tanh_c, one), rm_load_n(dc + j, n)); /* m = o tanh(c) */
        rm_vec before = c_before ? rm_load_n(c_before + j, n) : rm_splat(0);
        rm_store_n(row[0] + j, dnext * g * i * (one - i), n); /* c = f c + i g */
        rm_store_n(row[1] + j, dnext * before * f * (one - f), n);
        rm_store_n(row[2] + j, dnext * i * rm_fma(-g, g, one), n);
        rm_store_n(row[3] + j, d * tanh_c * o * (one - o), n);
        rm_store_n(dc + j, dnext * f, n);
        rm_store_n(m + j, o * tanh_c, n);
    }
}

const rm_projected_rows rm_cell_projected = {forward, backward};
