/* cell/call.c: from a call of lstm, gru or rnn_tanh to the fast kernels: turns it into a job, opens the parallel region
 * and runs the given instruction set's kernels on every thread of it. Compiled once, for float. Main entries:
 * rm_recurrent_forward, rm_recurrent_rebuild, rm_recurrent_backward and rm_recurrent_pack (ops/recurrent/recurrent.h). */
#include "ops/recurrent/recurrent.h"

#include <omp.h>

uint64_t rm_recurrent_packed_bytes(const rm_cell_kernels *kernels, rm_cell cell, const remat_desc *x) {
    bool folded = x[RM_X].dtype == REMAT_I32;
    return kernels->packed_bytes(cell, folded, folded ? 0 : x[RM_X].dim[2], x[RM_W_HH].dim[1]);
}

void rm_recurrent_pack(const rm_cell_kernels *kernels, rm_cell cell, const remat_call *call, void *packed) {
    rm_recurrent r = rm_recurrent_of(call);
    bool folded = call->x[RM_X].desc.dtype == REMAT_I32;
    bool large = r.hidden * r.hidden >= RM_PARALLEL_MIN / 4;
    rm_region region = rm_region_begin(large ? call->threads : 1, true);
    if (region.threads < 2) {
        kernels->pack(cell, folded, r.in, r.hidden, r.w_ih, r.w_hh, r.b_ih, r.b_hh, packed, 0, 1);
    } else {
#pragma omp parallel num_threads(region.threads)
        {
            kernels->pack(cell, folded, r.in, r.hidden, r.w_ih, r.w_hh, r.b_ih, r.b_hh, packed, omp_get_thread_num(),
                          omp_get_num_threads());
#pragma omp master
            rm_region_own(&region);
        }
    }
    rm_region_end(&region, 0);
}

static _Thread_local unsigned pretended_last;

void rm_recurrent_pretend_last(unsigned meeting) { pretended_last = meeting; }

/* All that a call's time depends on. */
static uint64_t kind_of(rm_cell_kernel *kernel, const rm_cell_job *job, int threads) {
    const uint64_t parts[] = {(uintptr_t)kernel,  (uint64_t)job->tau,    (uint64_t)job->batch,
                              (uint64_t)job->in,  (uint64_t)job->hidden, (uint64_t)threads,
                              job->token != NULL, job->reset != NULL,    job->keep,
                              job->dx != NULL,    job->dw_ih != NULL,    job->dw_hh != NULL};
    uint64_t hash = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        hash = (hash ^ parts[i]) * UINT64_C(0x9E3779B97F4A7C15);
        hash ^= hash >> 29;
    }
    return hash;
}

/* Threads beyond the blocks of units have nothing to do, but the region still asks for all (parallel.h). */
static void run(rm_cell_kernel *kernel, const rm_cell_job *job, int threads, int lanes) {
    int64_t blocks = (job->hidden + lanes - 1) / lanes,
            most = blocks < RM_BARRIER_THREADS ? blocks : RM_BARRIER_THREADS;
    rm_region region = rm_region_begin_like(blocks < 2 ? 1 : threads, true, kind_of(kernel, job, threads));
    rm_barrier *barrier = job->barrier;
    int met = 1;
    if (region.threads < 2) {
        kernel(job, 0, 1);
        rm_region_end(&region, 0);
        return;
    }
    if (barrier) barrier->region = &region, barrier->thread[0].last = pretended_last;
#pragma omp parallel num_threads(region.threads)
    {
        int thread = omp_get_thread_num(), given = omp_get_num_threads();
        int working = given < most ? given : (int)most;
        if (thread < working) kernel(job, thread, working);
        if (thread == 0) met = working, rm_region_own(&region);
    }
    rm_region_end(&region, barrier && met > 1 ? rm_barrier_lost_ns(barrier, met) : 0);
}

static rm_cell_job job_of(const remat_call *call, rm_barrier *barrier) {
    rm_recurrent r = rm_recurrent_of(call);
    return (rm_cell_job){
        .tau = r.tau,
        .batch = r.batch,
        .in = r.in,
        .hidden = r.hidden,
        .token = r.token,
        .reset = r.reset,
        .x = r.x,
        .table = r.token ? r.w_ih : NULL,
        .packed = call->packed,
        .y = call->y.data,
        .h_in = call->state_in[0].data,
        .c_in = call->state_in[1].data,
        .gates = call->aux,
        .barrier = barrier,
        .cache_bytes = rm_cell_cache_bytes(),
    };
}

void rm_recurrent_forward(const rm_cell_kernels *kernels, rm_cell cell, const remat_call *call) {
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

void rm_recurrent_rebuild(const rm_cell_kernels *kernels, rm_cell cell, const remat_call *call) {
    rm_cell_job job = job_of(call, NULL); /* nobody waits for anybody */
    if (cell == RM_CELL_LSTM) job.c = job.gates + job.tau * job.batch * rm_cell_columns(cell) * job.hidden;
    run(kernels->rebuild[cell], &job, call->threads, kernels->lanes);
}

void rm_recurrent_backward(const rm_cell_kernels *kernels, rm_cell cell, const remat_call *call) {
    rm_barrier barrier = {0};
    rm_cell_job job = job_of(call, &barrier);
    int64_t state = job.batch * job.hidden, rows = job.tau * job.batch;
    job.carry = call->scratch;
    if (cell == RM_CELL_RNN_TANH) job.gates = job.carry + 2 * state;
    job.right = job.carry + rm_cell_right_at(cell, job.tau, job.batch, job.hidden);
    if (cell == RM_CELL_LSTM) {
        job.c = job.gates + rows * rm_cell_columns(cell) * job.hidden;
        job.dc_out = call->dstate_out[1].data;
        job.dc_in = call->dstate_in[1].data;
    }
    if (call->dx[RM_RESET].data) memset(call->dx[RM_RESET].data, 0, (size_t)rows * sizeof(float));
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
