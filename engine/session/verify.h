/* verify.h: does recomputing give the same bits here? A 64-bit hash of every state, taken when it is first
 * made in a step, and compared whenever
 *
 *   it is made again    by a RUN that repeats a stage, or
 *   it is read          by any RUN: a kept checkpoint, one that came back from the second tier, or what backward reads
 *
 * so that neither a kernel that is not repeatable nor a flipped bit in memory reaches the gradients unnoticed. What is not
 * hashed: what a stage saves for its own backward, gradients, parameters. Called by run.c around each program; holds no
 * opinion about plans.
 *
 * A device whose memory the host can read is waited for before each comparison, and a difference ends the step there. One that
 * checks by itself (device.h, compare) is never waited for: the step goes on, and the first difference, in the order of
 * the plan, is known at its end. */
#ifndef RM_VERIFY_H
#define RM_VERIFY_H

#include "engine/chain/chain.h"
#include "memory/plan.h"

typedef struct rm_verify rm_verify;

/* Tables for the chain's training problem; what a device keeps lies in chain->at.hashes_bytes of its block, whose first
 * resident byte is `resident`. All are borrowed. MEMORY. rm_verify_free(NULL) is allowed. */
remat_status rm_verify_create(const rm_chain *chain, const rm_device_api *api, rm_queue *queue, char *resident,
                              rm_verify **out);
void rm_verify_free(rm_verify *verify);
uint64_t rm_verify_bytes(const rm_chain *chain); /* that create takes on the host */

/* A new step: nothing has been made yet. */
void rm_verify_begin(rm_verify *verify);

/* One run of the plan: line `number` of it, `step`, whose program is `program`. `piece` holds the addresses by piece. */
typedef struct {
    const rm_program *program;
    void *const *piece;
    rm_step step;
    int64_t position; /* of the stage in its sweep */
    int64_t number;
} rm_verify_run;

/* Before the run: whatever it reads is what was made; after it: whatever it made again is what was made first. DEVICE names
 * stage, timesteps, tensor, line and both hashes; where the device checks, it is rm_verify_end that does. */
remat_status rm_verify_before(rm_verify *verify, const rm_verify_run *run);
remat_status rm_verify_after(rm_verify *verify, const rm_verify_run *run);

/* After the last run of `plan` in a step, before anything is made of its gradients and states: waits for the queue, and tells
 * of the first difference that the device has found. */
remat_status rm_verify_end(rm_verify *verify, const rm_plan *plan);

/* How often a hash was compared since create: for tests and for the curious. */
int64_t rm_verify_comparisons(const rm_verify *verify);

#endif
