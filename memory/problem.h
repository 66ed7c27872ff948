/* problem.h: the input of a strategy: stages, and what passes between them, as numbers. memory/ works with bytes,
 * times, lifetimes and offsets. It does not know about tensors.
 *
 * Stages run forward in their order, 0 to S-1, and backward from last to first. A stage passes states to later stages.
 * Often a stage makes one state, which only the next stage reads (a tile's carried states, a layer's activation). A
 * state may also be read much later (a skip connection, or the result of one time direction for the other), and a stage
 * may make several states.
 *
 *   stage 0 --0--> stage 1 --1--> stage 2 --3--> stage 3        states 0, 1 and 2, 3, 4 are made by stages 0, 1, 2, 3;
 *                     |                            ^            reads(3) = {2, 3}: state 2 skips stage 2
 *                     +-------------2--------------+
 *
 *   RUN forward s, dropping      reads reads(s);                    makes the states of s
 *   RUN forward s, keeping k     reads reads(s);                    makes the states of s and saved(s), option k
 *   RUN backward s               reads saved(s), keeps(s) and the gradients of its states; adds to those of adds(s)
 *
 *   saved(s)    the data that backward of stage s needs from its own forward: one block of option[k].saved_bytes
 *   keeps(s)    the states that backward of stage s reads in addition, possibly its own
 *   dstate(i)   the gradient of state i. The last stage that adds to it runs first in backward, so it initialises the
 *               gradient; the others accumulate. If no stage adds to it, there is no gradient.
 *
 * States, saved blocks and gradients are OBJECTS: alive as a whole, from the RUN that makes them to a FREE. A state and
 * a gradient consist of PIECES, one contiguous buffer each. Recomputing a live state overwrites it with identical bits.
 * Each RUN also has scratch, which is alive during that step only.
 *
 * Resident bytes (parameters, gradients, optimizer state, inputs) are always alive. */
#ifndef RM_PROBLEM_H
#define RM_PROBLEM_H

#include <stdio.h>

#include "engine/status.h"

#define RM_MAX_OPTIONS 4
#define RM_DROP (-1) /* the option of a forward run that keeps nothing */

/* The allowed names of options, ending in NULL: "all" (everything that backward reads), "lean" (less; rebuilt in
 * backward), "leaner" (also recomputes the cheapest of the costly intermediates), "boundary" (only the states at the
 * cuts). A new kind of option adds its name here. */
extern const char *const rm_option_names[];

typedef struct {
    uint64_t bytes; /* a multiple of RM_ALIGN */
} rm_state_piece;

typedef struct {
    uint64_t time_ns, scratch_bytes;
} rm_work;

typedef struct {
    const char *name;     /* one of rm_option_names; unique within a stage */
    uint64_t saved_bytes; /* size of the saved block */
    rm_work forward, backward;
} rm_stage_option;

typedef struct {
    rm_work drop; /* the forward run that keeps nothing */
    int n_options;
    rm_stage_option option[RM_MAX_OPTIONS]; /* [0] keeps everything that backward can use; it always exists */
} rm_stage;

/* A list of lists: list i is item[start[i]] .. item[start[i+1]-1]. */
typedef struct {
    int64_t *start;
    int32_t *item;
} rm_lists;

typedef struct {
    char name[32]; /* "parameters", ... */
    uint64_t bytes;
} rm_resident;

/* The second tier (a spill file, or host memory beside a device): SAVE copies an object to it, LOAD fetches the copy.
 * Transfers run one at a time, in the order of the plan, in parallel to the computation. A transfer takes latency_ns +
 * bytes / rate, or no time if it has no bytes. If copying uses the processors of the computation, a transfer also
 * delays the computation, by cost_ns_per_mib. A plan that uses the tier takes host_bytes of extra memory for it. All 0:
 * there is no second tier. */
typedef struct {
    uint64_t save_bytes_per_s, load_bytes_per_s, latency_ns, cost_ns_per_mib, host_bytes;
} rm_tier;

static inline bool rm_tier_there(const rm_tier *tier) { return tier->save_bytes_per_s > 0; }

typedef struct rm_problem {
    int64_t n_stages;
    rm_stage *stage;
    int64_t n_states;
    int64_t *made; /* n_stages+1 entries: stage s makes the states made[s] .. made[s+1]-1 */
    int64_t n_pieces;
    rm_state_piece *piece;
    int64_t *state; /* n_states+1 entries: state i consists of the pieces state[i] .. state[i+1]-1 */
    /* n_states+1 entries: its gradient of dstate[i] .. dstate[i+1]-1; these follow the pieces of all states */
    int64_t *dstate;
    rm_lists reads; /* n_stages ascending lists of states, each made by an earlier stage */
    rm_lists keeps; /* the same, or made by s itself */
    rm_lists adds;  /* as `reads` */
    int n_resident;
    rm_resident resident[16];
    rm_tier tier;
} rm_problem;

/* The sizes of a problem. */
typedef struct {
    int64_t stages, states, pieces, reads, keeps, adds;
} rm_extent;

/* Allocates zeroed arrays of this extent, for the caller to fill; MEMORY. rm_problem_free frees them and leaves
 * *problem zeroed. */
remat_status rm_problem_alloc(rm_problem *problem, rm_extent extent);
void rm_problem_free(rm_problem *problem);
/* A deep copy into the zeroed *to; MEMORY. */
remat_status rm_problem_copy(const rm_problem *problem, rm_problem *to);

uint64_t rm_problem_bytes(const rm_problem *problem);          /* size of the arrays */
uint64_t rm_problem_resident_bytes(const rm_problem *problem); /* each block rounded up to RM_ALIGN */

/* Bytes of state i, of its gradient, and of all states that stage s makes. */
uint64_t rm_state_bytes(const rm_problem *problem, int64_t i);
uint64_t rm_dstate_bytes(const rm_problem *problem, int64_t i);
uint64_t rm_made_bytes(const rm_problem *problem, int64_t s);

int64_t rm_state_maker(const rm_problem *problem, int64_t i); /* the stage that makes state i */
bool rm_in_list(const rm_lists *lists, int64_t list, int64_t item);

/* For each state, fills `last` (n_states entries) with the last stage that adds to its gradient; -1: it has no
 * gradient. */
void rm_last_adders(const rm_problem *problem, int32_t *last);

/* INVALID if the numbers contradict each other: no stages, no option, states, pieces or lists that do not ascend, a
 * state that is read before it was made, a gradient with bytes to which no stage adds, a piece that is not a multiple
 * of RM_ALIGN, bytes or times that add up to 2^60 or more, names that are unknown, repeated or unprintable, a second
 * tier with only one rate or none. Every other function in memory/ assumes a problem that passed this check. */
remat_status rm_problem_check(const rm_problem *problem);

/* The text form has one fact per line and reads back to the same problem. It serves tests/problems/, bug reports and
 * diffs; problem_text.c shows it. The reader accepts any bytes and gives only problems that pass rm_problem_check.
 * INVALID names line and reason; on failure *problem is left zeroed. The memory used is proportional to `length`. */
remat_status rm_problem_write(const rm_problem *problem, FILE *file);
remat_status rm_problem_read(rm_problem *problem, const char *text, size_t length);

#endif
