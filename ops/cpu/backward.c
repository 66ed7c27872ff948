/* cpu/backward.c: backward of a tile, timestep by timestep: gates are replaced by the gradients of their
 * pre-activations. The gradients of weights and x, which do not depend on the order in time, are in gradients.c.
 * Compiled once per instruction set. */
#include "ops/cpu/view.h"

/* dh of rows from.. of timestep t: dy[t] + dgates[t+1] w_hh, plus the gradient from the next tile. */
static void gather_dh(const view *v, chunk *c, group g, int64_t t, int64_t from, int64_t rows) {
    const rm_cell_job *job = v->job;
    bool last = t == job->tau - 1;
    for (int i = 0; i < g.width; i++) {
        int64_t unit = (g.first + i) * LANES;
        int n = lanes_of(g.first + i, v->hidden);
        for (int64_t r = from; r < from + rows; r++) {
            rm_vec dh = t >= 0 ? rm_load_n(job->dy + (t * v->batch + r) * v->hidden + unit, n) : rm_splat(0);
            if (last && job->dh_out) dh += rm_load_n(job->dh_out + r * v->hidden + unit, n);
            rm_store(c->sum[r - from][i], dh);
        }
    }
    if (last) return;
    const float *dgates = job->gates + ((t + 1) * v->batch + from) * v->row + v->l->first_h * v->hidden;
    rm_product p = {dgates, v->row, 1, g.w, g.w_step, c->sum[0][0], WIDTH_MAX * LANES, LANES, v->ahead};
    multiply_states(v, p, (t + 1) * v->batch + from, rows, g.width, v->l->gates * v->hidden);
}

/* dh_in = dgates[0] w_hh, plus the part that bypasses the gates. */
static void finish_dh(const view *v, const chunk *from_gates, group g, int64_t from, int64_t rows) {
    for (int i = 0; i < g.width; i++) {
        int64_t unit = (g.first + i) * LANES;
        int n = lanes_of(g.first + i, v->hidden);
        for (int64_t r = 0; r < rows; r++) {
            rm_vec dh = rm_load(from_gates->sum[r][i]);
            int64_t at = (from + r) * v->hidden + unit;
            if (v->l->carries_dh) dh += rm_load_n(v->job->carry + at, n);
            rm_store_n(v->job->dh_in + at, dh, n);
        }
    }
}

/* t -1: before the tile's first timestep. */
static void backward_step(const view *v, int64_t t) {
    const float *panels = v->job->packed + v->at.hh_back;
    for (int64_t i = 0, block; (block = turn(v, WIDTH_MAX, t, i)) >= 0; i++) {
        group g = group_at(panels, v->l->gates * v->hidden, block, v->end, v->blocks);
        for (int64_t from = 0; from < v->batch; from += ROWS_CHUNK) {
            int64_t rows = min64(ROWS_CHUNK, v->batch - from);
            chunk dh;
            gather_dh(v, &dh, g, t, from, rows);
            if (t >= 0)
                v->cell->backward(v, &dh, g, t, from, rows);
            else
                finish_dh(v, &dh, g, from, rows);
        }
    }
}

void rm_cell_backward(const rm_cell_job *job, int thread, int threads) {
    view v = view_of(job, thread, threads);
    copy_units(&v, job->carry, job->dc_out);
    for (int64_t t = job->tau - 1; t >= 0; t--) {
        backward_step(&v, t);
        if (!meet(&v, job->tau - t)) return;
    }
    if (job->dh_in) backward_step(&v, -1);
    copy_units(&v, job->dc_in, job->carry);
    rm_cell_gradients(&v);
}
