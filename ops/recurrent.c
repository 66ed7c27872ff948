/* recurrent.c: what lstm, gru and rnn_tanh share (recurrent.h): shapes, costs, and the readable definitions' common
 * loops. In float it also leads calls to the fast kernels of cell/. */
#include "ops/real.h"

#include "ops/recurrent.h"

rm_recurrent rm_recurrent_of(const rm_call *call) {
    const rm_desc *x = &call->x[RM_X].desc, *w_hh = &call->x[RM_W_HH].desc;
    bool folded = x->dtype == REMAT_I32;
    return (rm_recurrent){
        .tau = x->dim[0],
        .batch = x->dim[1],
        .in = folded ? 0 : x->dim[2],
        .hidden = w_hh->dim[1],
        .gates = (int)(w_hh->dim[0] / w_hh->dim[1]),
        .token = folded ? call->x[RM_X].data : NULL,
        .x = folded ? NULL : call->x[RM_X].data,
        .w_ih = call->x[RM_W_IH].data,
        .w_hh = call->x[RM_W_HH].data,
        .b_ih = call->x[RM_B_IH].desc.rank < 0 ? NULL : call->x[RM_B_IH].data,
        .b_hh = call->x[RM_B_HH].desc.rank < 0 ? NULL : call->x[RM_B_HH].data,
    };
}

/* ---- Shapes and costs ------------------------------------------------------------------------------ */

static remat_status want_weight(const char *cell, const char *input, const rm_desc *w, int64_t rows, int64_t columns,
                                const char *meaning) {
    char text[RM_DESC_TEXT];
    REQUIRE(w->dim[0] == rows && w->dim[1] == columns, INVALID, "%s: %s is %s; here it must be %s = (%lld,%lld)", cell,
            input, rm_desc_text(w, text), meaning, (long long)rows, (long long)columns);
    return REMAT_OK;
}

remat_status rm_recurrent_infer(const char *cell, int gates, int n_state, const rm_desc *x, rm_desc *y,
                                rm_desc *state) {
    const rm_desc *w_ih = &x[RM_W_IH], *w_hh = &x[RM_W_HH];
    bool folded = x[RM_X].dtype == REMAT_I32;
    TRY(rm_want_rank(cell, "x", &x[RM_X], folded ? 2 : 3, folded ? 2 : 3));
    if (!folded) TRY(rm_want_real(cell, "x", &x[RM_X]));
    TRY(rm_want_real(cell, "w_ih", w_ih));
    TRY(rm_want_rank(cell, "w_ih", w_ih, 2, 2));
    TRY(rm_want_real(cell, "w_hh", w_hh));
    TRY(rm_want_rank(cell, "w_hh", w_hh, 2, 2));

    int64_t hidden = w_hh->dim[1], wide = gates * hidden;
    TRY(want_weight(cell, "w_hh", w_hh, wide, hidden, "(gates*hidden, hidden)"));
    if (folded)
        TRY(want_weight(cell, "the folded table", w_ih, w_ih->dim[0], wide, "(vocabulary, gates*hidden)"));
    else
        TRY(want_weight(cell, "w_ih", w_ih, wide, x[RM_X].dim[2], "(gates*hidden, features of x)"));
    if (x[RM_B_IH].rank >= 0) TRY(rm_want_vector(cell, "b_ih", &x[RM_B_IH], wide));
    if (x[RM_B_HH].rank >= 0) TRY(rm_want_vector(cell, "b_hh", &x[RM_B_HH], wide));

    *y = rm_desc_make(RM_REAL, 3, (int64_t[]){x[RM_X].dim[0], x[RM_X].dim[1], hidden});
    for (int i = 0; i < n_state; i++) state[i] = rm_desc_make(RM_REAL, 2, (int64_t[]){x[RM_X].dim[1], hidden});
    return REMAT_OK;
}

int64_t rm_recurrent_bound(const rm_desc *x, const void *attr, int input) {
    (void)attr;
    return input == RM_X && x[RM_X].dtype == REMAT_I32 ? x[RM_W_IH].dim[0] : 0;
}

rm_cost rm_recurrent_cost(rm_cell cell, const rm_desc *x, rm_pass pass, double element_flops) {
    bool folded = x[RM_X].dtype == REMAT_I32;
    double rows = (double)x[RM_X].dim[0] * (double)x[RM_X].dim[1];
    double wide = (double)x[RM_W_HH].dim[0], hidden = (double)x[RM_W_HH].dim[1];
    double in = folded ? 0 : (double)x[RM_X].dim[2];
    double passes = pass == RM_BACKWARD ? 2 : 1; /* backward: the gradient of the weights and of the operand */
    double weights = wide * hidden + (folded ? fmin(rows, (double)x[RM_W_IH].dim[0]) * wide : wide * in);
    return (rm_cost){
        .flops = passes * 2 * rows * wide * (in + hidden) + element_flops * rows * hidden,
        .moved_bytes = passes * (weights * sizeof(real) + (double)rm_desc_bytes(&x[RM_X])),
        .scratch_bytes = pass == RM_REBUILD ? 0
                                            : rm_cell_scratch_bytes(cell, pass == RM_BACKWARD, folded, x[RM_X].dim[0],
                                                                    x[RM_X].dim[1], x[RM_W_HH].dim[1]) /
                                                  sizeof(float) * sizeof(real),
    };
}

/* Forward: first the tokens, where an embedding is folded in; then, if no aux is kept, the gates: all of the tile's where x
 * is projected by one product, one timestep's where projections are read from the table. recurrent.cuh lays it out so. */
uint64_t rm_recurrent_cuda_scratch_bytes(rm_cell cell, const rm_desc *x, rm_pass pass, bool aux) {
    bool folded = x[RM_X].dtype == REMAT_I32;
    int64_t batch = x[RM_X].dim[1], rows = x[RM_X].dim[0] * batch, hidden = x[RM_W_HH].dim[1];
    int64_t gates = aux || cell == RM_CELL_RNN_TANH ? 0 : rm_cell_columns(cell) * hidden;
    if (pass != RM_FORWARD) return rm_recurrent_cost(cell, x, pass, 0).scratch_bytes;
    uint64_t tokens = folded ? rm_align_up((uint64_t)rows * sizeof(int32_t)) : 0;
    return tokens + (uint64_t)((folded ? batch : rows) * gates) * sizeof(real);
}

/* ---- Definitions ------------------------------------------------------------------------------------ */

real rm_recurrent_input(const rm_recurrent *r, int64_t t, int64_t b, int64_t u) {
    int64_t row = t * r->batch + b;
    real sum = r->b_ih ? r->b_ih[u] : 0;
    if (r->token) return sum + r->w_ih[r->token[row] * r->gates * r->hidden + u];
    for (int64_t c = 0; c < r->in; c++) sum += r->x[row * r->in + c] * r->w_ih[u * r->in + c];
    return sum;
}

real rm_recurrent_hidden(const rm_recurrent *r, const real *h, int64_t u) {
    real sum = r->b_hh ? r->b_hh[u] : 0;
    for (int64_t k = 0; h && k < r->hidden; k++) sum += h[k] * r->w_hh[u * r->hidden + k];
    return sum;
}

const real *rm_recurrent_previous(const rm_recurrent *r, const real *sequence, const rm_tensor *state_in, int64_t t,
                                  int64_t b) {
    if (t > 0) return sequence + ((t - 1) * r->batch + b) * r->hidden;
    return state_in->data ? (const real *)state_in->data + b * r->hidden : NULL;
}

void rm_recurrent_define_dh(const rm_recurrent *r, const rm_dgates *d, int64_t t, real *dh) {
    int64_t hidden = r->hidden;
    for (int64_t b = 0; b < r->batch; b++)
        for (int g = 0; g < r->gates; g++)
            for (int64_t j = 0; j < hidden; j++) {
                real dgate = d->dgates[(t * r->batch + b) * d->width + d->h_part[g] * hidden + j];
                const real *w = r->w_hh + (g * hidden + j) * hidden;
                for (int64_t k = 0; k < hidden; k++) dh[b * hidden + k] += dgate * w[k];
            }
}

/* pre = x w_ih^T + b_ih: one row's gradient of pre, for gate unit u, goes to row u of dw_ih, to db_ih and to dx. */
static void define_input_gradient(const rm_call *call, const rm_recurrent *r, int64_t row, int64_t u, real dpre) {
    real *dw_ih = call->dx[RM_W_IH].data, *db_ih = call->dx[RM_B_IH].data, *dx = call->dx[RM_X].data;
    if (db_ih) db_ih[u] += dpre;
    if (dw_ih && r->token) dw_ih[r->token[row] * r->gates * r->hidden + u] += dpre;
    for (int64_t c = 0; dw_ih && c < r->in; c++) dw_ih[u * r->in + c] += dpre * r->x[row * r->in + c];
    for (int64_t c = 0; dx && c < r->in; c++) dx[row * r->in + c] += dpre * r->w_ih[u * r->in + c];
}

/* pre = h w_hh^T + b_hh */
static void define_hidden_gradient(const rm_call *call, const rm_recurrent *r, const real *h, int64_t u, real dpre) {
    real *dw_hh = call->dx[RM_W_HH].data, *db_hh = call->dx[RM_B_HH].data;
    if (db_hh) db_hh[u] += dpre;
    for (int64_t k = 0; h && dw_hh && k < r->hidden; k++) dw_hh[u * r->hidden + k] += dpre * h[k];
}

void rm_recurrent_define_gradients(const rm_call *call, const rm_recurrent *r, const rm_dgates *d) {
    real *dx = call->dx[RM_X].data;
    for (int64_t i = 0; dx && i < r->tau * r->batch * r->in; i++) dx[i] = 0;
    for (int64_t t = 0; t < r->tau; t++)
        for (int64_t b = 0; b < r->batch; b++) {
            int64_t row = t * r->batch + b;
            const real *dgates = d->dgates + row * d->width;
            const real *h = rm_recurrent_previous(r, call->y.data, &call->state_in[0], t, b);
            for (int g = 0; g < r->gates; g++)
                for (int64_t j = 0; j < r->hidden; j++) {
                    int64_t u = g * r->hidden + j;
                    define_input_gradient(call, r, row, u, dgates[d->x_part[g] * r->hidden + j]);
                    define_hidden_gradient(call, r, h, u, dgates[d->h_part[g] * r->hidden + j]);
                }
        }
}

/* ---- To the fast kernels ----------------------------------------------------------------------------- */

#ifndef RM_REAL_DOUBLE

#include <omp.h>
#include <string.h>

extern const rm_cell_kernels rm_cell_kernels_baseline;
#ifdef RM_HAVE_X86_KERNELS
extern const rm_cell_kernels rm_cell_kernels_avx2, rm_cell_kernels_avx512;
#endif

static const rm_cell_kernels *chosen; /* by rm_cell_kernels_use; NULL: the best */

const rm_cell_kernels *rm_cell_kernels_list(int i) {
    if (i == 0) return &rm_cell_kernels_baseline;
#ifdef RM_HAVE_X86_KERNELS
    __builtin_cpu_init();
    if (i == 1 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return &rm_cell_kernels_avx2;
    if (i == 2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return &rm_cell_kernels_avx512;
#endif
    return NULL;
}

void rm_cell_kernels_use(const rm_cell_kernels *kernels) { chosen = kernels; }

const rm_cell_kernels *rm_cell_kernels_get(void) {
    if (chosen) return chosen;
    for (int i = RM_CELL_ISAS - 1; i > 0; i--)
        if (rm_cell_kernels_list(i)) return rm_cell_kernels_list(i);
    return &rm_cell_kernels_baseline;
}

uint64_t rm_recurrent_packed_bytes(rm_cell cell, const rm_desc *x) {
    bool folded = x[RM_X].dtype == REMAT_I32;
    return rm_cell_kernels_get()->packed_bytes(cell, folded, folded ? 0 : x[RM_X].dim[2], x[RM_W_HH].dim[1]);
}

void rm_recurrent_pack(rm_cell cell, const rm_call *call, void *packed) {
    rm_recurrent r = rm_recurrent_of(call);
    const rm_cell_kernels *kernels = rm_cell_kernels_get();
    bool folded = call->x[RM_X].desc.dtype == REMAT_I32;
    bool alone = call->threads < 2 || r.hidden * r.hidden < RM_PARALLEL_MIN / 4;
    if (alone) {
        kernels->pack(cell, folded, r.in, r.hidden, r.w_ih, r.w_hh, r.b_ih, r.b_hh, packed, 0, 1);
        return;
    }
#pragma omp parallel num_threads(call->threads)
    kernels->pack(cell, folded, r.in, r.hidden, r.w_ih, r.w_hh, r.b_ih, r.b_hh, packed, omp_get_thread_num(),
                  omp_get_num_threads());
}

/* Threads beyond the blocks of units have nothing to do, but the region still asks for all (parallel.h). */
static void run(rm_cell_kernel *kernel, const rm_cell_job *job, int threads, int lanes) {
    int64_t blocks = (job->hidden + lanes - 1) / lanes,
            most = blocks < RM_BARRIER_THREADS ? blocks : RM_BARRIER_THREADS;
    if (threads < 2 || blocks < 2) {
        kernel(job, 0, 1);
        return;
    }
#pragma omp parallel num_threads(threads)
    {
        int thread = omp_get_thread_num(), given = omp_get_num_threads();
        int working = given < most ? given : (int)most;
        if (thread < working) kernel(job, thread, working);
    }
}

static rm_cell_job job_of(const rm_call *call, rm_barrier *barrier) {
    rm_recurrent r = rm_recurrent_of(call);
    return (rm_cell_job){
        .tau = r.tau,
        .batch = r.batch,
        .in = r.in,
        .hidden = r.hidden,
        .token = r.token,
        .x = r.x,
        .table = r.token ? r.w_ih : NULL,
        .packed = call->packed,
        .y = call->y.data,
        .h_in = call->state_in[0].data,
        .c_in = call->state_in[1].data,
        .gates = call->aux,
        .barrier = barrier,
    };
}

void rm_recurrent_forward(rm_cell cell, const rm_call *call) {
    const rm_cell_kernels *kernels = rm_cell_kernels_get();
    rm_barrier barrier = {0};
    rm_cell_job job = job_of(call, &barrier);
    int64_t wide = rm_cell_columns(cell) * job.hidden;
    job.keep = cell != RM_CELL_RNN_TANH && call->aux;
    if (cell == RM_CELL_RNN_TANH)
        job.gates = job.y; /* the projection of x waits in h's place */
    else if (!call->aux)
        job.gates = call->scratch;
    job.h_out = call->state_out[0].data;
    if (cell == RM_CELL_LSTM) {
        job.c_out = call->state_out[1].data;
        job.c = call->aux ? job.gates + job.tau * job.batch * wide : NULL;
    }
    run(kernels->forward[cell], &job, call->threads, kernels->lanes);
}

void rm_recurrent_rebuild(rm_cell cell, const rm_call *call) {
    const rm_cell_kernels *kernels = rm_cell_kernels_get();
    rm_cell_job job = job_of(call, NULL); /* nobody waits for anybody */
    if (cell == RM_CELL_LSTM) job.c = job.gates + job.tau * job.batch * rm_cell_columns(cell) * job.hidden;
    run(kernels->rebuild[cell], &job, call->threads, kernels->lanes);
}

void rm_recurrent_backward(rm_cell cell, const rm_call *call) {
    const rm_cell_kernels *kernels = rm_cell_kernels_get();
    rm_barrier barrier = {0};
    rm_cell_job job = job_of(call, &barrier);
    int64_t state = job.batch * job.hidden, rows = job.tau * job.batch;
    job.carry = call->scratch;
    if (cell == RM_CELL_RNN_TANH) job.gates = job.carry + 2 * state;
    if (cell == RM_CELL_LSTM) {
        job.c = job.gates + rows * rm_cell_columns(cell) * job.hidden;
        job.dc_out = call->dstate_out[1].data;
        job.dc_in = call->dstate_in[1].data;
    }
    job.dy = call->dy.data;
    job.dh_out = call->dstate_out[0].data;
    job.dh_in = call->dstate_in[0].data;
    job.dx = job.token ? NULL : call->dx[RM_X].data;
    job.dw_ih = call->dx[RM_W_IH].data;
    job.dw_hh = call->dx[RM_W_HH].data;
    job.db_ih = call->dx[RM_B_IH].data;
    job.db_hh = call->dx[RM_B_HH].data;
    run(kernels->backward[cell], &job, call->threads, kernels->lanes);
}

#endif
