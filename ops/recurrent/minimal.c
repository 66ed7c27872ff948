/* minimal.c: from a call of min_gru or min_lstm to the fast kernels of cpu/minimal.c. Compiled once, for float. Main entries:
 * rm_min_forward, rm_min_backward. */
#include "ops/recurrent/minimal.h"

#include <omp.h>

/* Columns do not meet: each thread takes its own through all of the tile. */
static void run(rm_cell_kernel *kernel, const rm_cell_job *job, int threads) {
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

static rm_cell_job job_of(const remat_call *call) {
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
    rm_cell_job job = job_of(call);
    job.h_out = call->state_out[0].data;
    run(rm_cell_kernels_get()->minimal[cell].forward, &job, call->threads);
}

void rm_min_backward(rm_min_cell cell, const remat_call *call) {
    rm_cell_job job = job_of(call);
    job.dy = call->dy.data, job.dh_out = call->dstate_out[0].data;
    job.dx = call->dx[0].data, job.dh_in = call->dstate_in[0].data, job.carry = call->scratch;
    run(rm_cell_kernels_get()->minimal[cell].backward, &job, call->threads);
    rm_min_clear_reset(call);
}
