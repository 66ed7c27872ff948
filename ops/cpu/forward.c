/* cpu/forward.c: forward of a tile, timestep by timestep. Compiled once per instruction set. rebuild.c computes the
 * same gates if h is already known. */
#include "ops/cpu/view.h"

/* gates[from.., columns of this block] = bias + x w_ih^T */
static void project_rows(const view *v, group g, int64_t bias_vector, int64_t from, int64_t rows) {
    const rm_cell_job *job = v->job;
    const float *bias = job->packed + v->at.x_bias + g.first * LANES;
    chunk c;
    for (int64_t r = 0; r < rows; r++)
        for (int i = 0; i < g.width; i++) rm_store(c.sum[r][i], rm_load(bias + i * bias_vector));
    rm_multiply(
        (rm_product){job->x + from * job->in, job->in, 1, g.w, g.w_step, c.sum[0][0], WIDTH_MAX * LANES, LANES, 0},
        rows, g.width, job->in);
    for (int i = 0; i < g.width; i++) {
        int64_t column = column_of(v, g.first, i);
        int n = lanes_of(column % v->hidden / LANES, v->hidden);
        for (int64_t r = 0; r < rows; r++)
            rm_store_n(job->gates + (from - v->window + r) * v->row + column, rm_load(c.sum[r][i]), n);
    }
}

/* Projects timesteps [t, t+steps). */
static void project(const view *v, int64_t t, int64_t steps) {
    const float *panels = v->job->packed + v->at.ih;
    bool plain = v->l->gates == 1;
    int64_t in = v->job->in, first = t * v->batch, end = first + steps * v->batch;
    if (v->job->token) return;
    for (int64_t block = v->first; block < v->end;) {
        group g = gates_at(v, panels, in, block);
        for (int64_t from = first; from < end; from += ROWS_CHUNK)
            project_rows(v, g, plain ? LANES : v->units, from, min64(ROWS_CHUNK, end - from));
        block += plain ? g.width : 1;
    }
}

void rm_cell_forward(const rm_cell_job *job, int thread, int threads) {
    view v = view_of(job, thread, threads);
    int64_t ahead = rm_cell_steps_ahead(job->batch);
    for (int64_t t = 0; t < job->tau; t++) {
        if (t % ahead == 0) {
            v.window = job->keep || !v.l->keeps ? 0 : t * v.batch;
            project(&v, t, min64(ahead, job->tau - t));
        }
        v.cell->forward(&v, t);
        if (t + 1 < job->tau && !meet(&v, t + 1)) {
            rm_stream_end();
            return;
        }
    }
    rm_stream_end();
    int64_t last = (job->tau - 1) * v.batch * v.hidden;
    copy_units(&v, job->h_out, job->y + last);
    if (job->c) copy_units(&v, job->c_out, job->c + last);
}
