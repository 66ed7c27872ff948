/* verify.h: does recomputing give the same bits here? A 64-bit hash of every state at every cut, taken when it is first
 * made in a step, and compared whenever
 *
 *   it is made again    by a RUN that repeats a stage, or
 *   it is read          by any RUN: a kept checkpoint, one that came back from the second tier, or what backward reads
 *
 * so that neither a kernel that is not repeatable nor a flipped bit in memory reaches the gradients unnoticed. What is not
 * hashed: what a stage saves for its own backward, gradients, parameters. Called by run.c around each program; holds no
 * opinion about plans. For devices whose memory the host can read. */
#ifndef RM_VERIFY_H
#define RM_VERIFY_H

#include "engine/chain.h"
#include "memory/plan.h"

typedef struct rm_verify rm_verify;

/* Tables for the chain's training problem. MEMORY. rm_verify_free(NULL) is allowed. */
remat_status rm_verify_create(const rm_chain *chain, rm_verify **out);
void rm_verify_free(rm_verify *verify);
uint64_t rm_verify_bytes(const rm_chain *chain); /* that create takes */

/* A new step: nothing has been made yet. */
void rm_verify_begin(rm_verify *verify);

/* One run of the plan: line `number` of it, `step`, whose program is `program`. `piece` holds the addresses by piece. */
typedef struct {
    const rm_program *program;
    void *const *piece;
    rm_step step;
    int64_t number;
} rm_verify_run;

/* Before the run: whatever it reads is what was made; after it: whatever it made again is what was made first. DEVICE names
 * stage, timesteps, tensor, line and both hashes. */
remat_status rm_verify_before(rm_verify *verify, const rm_verify_run *run);
remat_status rm_verify_after(rm_verify *verify, const rm_verify_run *run);

/* How often a hash was compared since create: for tests and for the curious. */
int64_t rm_verify_comparisons(const rm_verify *verify);

#endif
