/* verify.h: checks that recomputation on this machine gives the same bits. Every state is hashed (64 bits) when it is
 * first computed in a step, and compared whenever
 *
 *   it is recomputed    by a RUN that repeats a stage, or
 *   it is read          by any RUN: a checkpoint in memory or from the second tier, or an operand of backward
 *
 * so that neither a non-deterministic kernel nor a flipped bit in memory reaches the gradients undetected. Values that
 * a stage saves for its own backward, gradients and parameters are not hashed. run.c calls it around each program.
 *
 * If the host can read the device's memory, it waits for the queue before each comparison, and a difference ends the
 * step there. If the device compares by itself (device.h, compare), the host never waits: the step continues, and the
 * first difference, in the order of the plan, is reported at its end. */
#ifndef RM_VERIFY_H
#define RM_VERIFY_H

#include "engine/chain/chain.h"
#include "memory/plan.h"

typedef struct rm_verify rm_verify;

/* Allocates the tables for the chain's training problem. A device that compares by itself uses chain->at.hashes_bytes
 * of its block, whose first resident byte is `resident`. All arguments are borrowed. MEMORY. rm_verify_free(NULL) is
 * allowed. */
remat_status rm_verify_create(const rm_chain *chain, const rm_device_api *api, rm_queue *queue, char *resident,
                              rm_verify **out);
void rm_verify_free(rm_verify *verify);
uint64_t rm_verify_bytes(const rm_chain *chain); /* host memory that create allocates */

/* Starts a new step by forgetting all hashes. */
void rm_verify_begin(rm_verify *verify);

/* One run: line `number` of the plan is `step`, whose program is `program`. `piece` holds addresses by piece. */
typedef struct {
    const rm_program *program;
    void *const *piece;
    rm_step step;
    int64_t position; /* of the stage in its sweep */
    int64_t number;
} rm_verify_run;

/* before: compares the states that the run reads. after: compares the states that it recomputed. The error, DEVICE,
 * names stage, timesteps, tensor, line and both hashes; if the device compares, rm_verify_end returns it instead. */
remat_status rm_verify_before(rm_verify *verify, const rm_verify_run *run);
remat_status rm_verify_after(rm_verify *verify, const rm_verify_run *run);

/* Call it after the last run of `plan` in a step, before using its gradients and states. It waits for the queue and
 * fails with the first difference that the device found. */
remat_status rm_verify_end(rm_verify *verify, const rm_plan *plan);

/* Number of comparisons since create. For tests. */
int64_t rm_verify_comparisons(const rm_verify *verify);

#endif
