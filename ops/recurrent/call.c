/* call.c: runs the fast kernels (ops/cpu) for a call of a recurrent cell: turns the call into a job, opens the
 * parallel region, and runs the kernels of the given instruction set on every thread. Compiled once, for float.
 * Main entries: rm_recurrent_forward, rm_recurrent_rebuild, rm_recurrent_backward and rm_recurrent_pack
 * (ops/recurrent/recurrent.h). */
#include "ops/recurrent/minimal.h"

#include <omp.h>

const rm_cell_layout rm_cell_layouts[RM_CELLS] = {
#define CELL(name, ...) {.op = #name, __VA_ARGS__},
#include "ops/recurrent/cells.def"
#undef CELL
};

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

/* Everything that the time of a call depends on. */
static uint64_t kind_of(rm_cell_kernel *kernel, const rm_cell_job *job, int threads) {
    const uint64_t parts[] = {
        (uintptr_t)kernel,     (uint64_t)job->cell, (uint64_t)job->tau, (uint64_t)job->batch, (uint64_t)job->in,
        (uint64_t)job->hidden, (uint64_t)threads,   job->token != NULL, job->reset != NULL,   job->keep,
        job->dx != NULL,       job->dw_ih != NULL,  job->dw_hh != NULL};
    uint64_t hash = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        hash = (hash ^ parts[i]) * UINT64_C(0x9E3779B97F4A7C15);
        hash ^= hash >> 29;
    }
    return hash;
}

/* If there are fewer blocks of units than threads, some threads have nothing to do, but the region still includes them
 * (parallel.h). */
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

static rm_cell_job job_of(rm_cell cell, const remat_call *call, rm_barrier *barrier) {
    rm_recurrent r = rm_recurrent_of(call);
    return (rm_cell_job){
        .cell = cell,
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

/* The c of an LSTM, in aux. Other cells have no c. */
static float *c_of(const rm_cell_job *job) {
    const rm_cell_layout *l = &rm_cell_layouts[job->cell];
    return l->states > 1 ? job->gates + job->tau * job->batch * l->columns * job->hidden : NULL;
}

void rm_recurrent_forward(const rm_cell_kernels *kernels, rm_cell cell, const remat_call *call) {
    rm_barrier barrier = {0};
    rm_cell_job job = job_of(cell, call, &barrier);
    job.keep = call->aux;
    if (!rm_cell_layouts[cell].keeps)
        job.gates = job.y; /* the projection of x is stored where h will be */
    else if (!call->aux)
        job.gates = call->scratch;
    job.c = job.keep ? c_of(&job) : NULL;
    job.h_out = call->state_out[0].data, job.c_out = call->state_out[1].data;
    run(kernels->forward, &job, call->threads, kernels->lanes);
}

void rm_recurrent_rebuild(const rm_cell_kernels *kernels, rm_cell cell, const remat_call *call) {
    rm_cell_job job = job_of(cell, call, NULL); /* nobody waits for anybody */
    job.c = c_of(&job);
    run(kernels->rebuild, &job, call->threads, kernels->lanes);
}

void rm_recurrent_backward(const rm_cell_kernels *kernels, rm_cell cell, const remat_call *call) {
    rm_barrier barrier = {0};
    rm_cell_job job = job_of(cell, call, &barrier);
    int64_t state = job.batch * job.hidden, rows = job.tau * job.batch;
    job.carry = call->scratch;
    if (!rm_cell_layouts[cell].keeps) job.gates = job.carry + 2 * state;
    job.right = job.carry + rm_cell_right_at(cell, job.tau, job.batch, job.hidden);
    job.c = c_of(&job);
    if (call->dx[RM_RESET].data) memset(call->dx[RM_RESET].data, 0, (size_t)rows * sizeof(float));
    job.dy = call->dy.data;
    job.dh_out = call->dstate_out[0].data;
    job.dh_in = call->dstate_in[0].data;
    if (job.c) job.dc_out = call->dstate_out[1].data, job.dc_in = call->dstate_in[1].data;
    job.dx = job.token ? NULL : call->dx[RM_X].data;
    job.dw_ih = call->dx[RM_W_IH].data;
    job.dw_hh = call->dx[RM_W_HH].data;
    job.db_ih = call->dx[RM_B_IH].data;
    job.db_hh = call->dx[RM_B_HH].data;
    run(kernels->backward, &job, call->threads, kernels->lanes);
}

/* ---- In bf16 ----------------------------------------------------------------------------------------------------------- */

/* Products round their operands to bf16 (cpu/product.h): x, h, weights and the gates' gradients. Sums, gates,
 * states and all stored values are floats. */
static const rm_cell_kernels *in_bf16(void) { return rm_cell_kernels_bf16(); }

#define CELL(op, ...)                                                                                                  \
    static uint64_t packed_bytes_##op(const remat_desc *x, const void *attr, int threads) {                            \
        (void)attr, (void)threads;                                                                                     \
        return rm_recurrent_packed_bytes(in_bf16(), RM_CELL_##op, x);                                                  \
    }                                                                                                                  \
    static void pack_##op(const remat_call *call, void *to) { rm_recurrent_pack(in_bf16(), RM_CELL_##op, call, to); }  \
    static void forward_##op(const remat_call *call) { rm_recurrent_forward(in_bf16(), RM_CELL_##op, call); }          \
    static void rebuild_##op(const remat_call *call) { rm_recurrent_rebuild(in_bf16(), RM_CELL_##op, call); }          \
    static void backward_##op(const remat_call *call) { rm_recurrent_backward(in_bf16(), RM_CELL_##op, call); }
#include "ops/recurrent/cells.def"
#undef CELL

static const remat_op_device on_cpu_in_bf16[RM_CELLS] = {
#define CELL(op, ...)                                                                                                  \
    {.packed_bytes = packed_bytes_##op,                                                                                \
     .pack = pack_##op,                                                                                                \
     .forward = forward_##op,                                                                                          \
     .rebuild = rebuild_##op,                                                                                          \
     .backward = backward_##op},
#include "ops/recurrent/cells.def"
#undef CELL
};

bool rm_recurrent_in_bf16(rm_cell cell, remat_op *out) {
    if (!in_bf16()) return false;
    *out = *rm_op_find(rm_cell_layouts[cell].op);
    out->on[REMAT_ON_CPU] = on_cpu_in_bf16[cell];
    if (!rm_cell_layouts[cell].keeps) out->on[REMAT_ON_CPU].rebuild = NULL;
    return true;
}

/* ---- min_gru and min_lstm ------------------------------------------------------------------------------------------------ */

/* Columns are independent: each thread computes its own columns through the whole tile. */
static void run_columns(rm_cell_kernel *kernel, const rm_cell_job *job, int threads) {
    bool large = job->tau * job->batch * job->hidden > RM_PARALLEL_MIN_HEAVY;
    rm_region region = rm_region_begin(large ? threads : 1, true);
    if (region.threads < 2) {
        kernel(job, 0, 1);
    } else {
#pragma omp parallel num_threads(region.threads)
        {
            kernel(job, omp_get_thread_num(), omp_get_num_threads());
#pragma omp master
            rm_region_own(&region);
        }
    }
    rm_region_end(&region, 0);
}

static rm_cell_job min_job_of(const remat_call *call) {
    const remat_desc *y = &call->y.desc;
    return (rm_cell_job){
        .tau = y->dim[0],
        .batch = y->dim[1],
        .hidden = y->dim[2],
        .x = call->x[RM_MIN_X].data,
        .reset = call->x[RM_MIN_RESET].data,
        .y = call->y.data,
        .h_in = call->state_in[0].data,
    };
}

void rm_min_forward(rm_min_cell cell, const remat_call *call) {
    rm_cell_job job = min_job_of(call);
    job.h_out = call->state_out[0].data;
    run_columns(rm_cell_kernels_get()->minimal[cell].forward, &job, call->threads);
}

void rm_min_backward(rm_min_cell cell, const remat_call *call) {
    rm_cell_job job = min_job_of(call);
    job.dy = call->dy.data, job.dh_out = call->dstate_out[0].data;
    job.dx = call->dx[0].data, job.dh_in = call->dstate_in[0].data, job.carry = call->scratch;
    run_columns(rm_cell_kernels_get()->minimal[cell].backward, &job, call->threads);
    rm_min_clear_reset(call);
}
