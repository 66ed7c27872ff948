/* problem.h: what a strategy is given: stages and what passes between them, as numbers. memory/ knows bytes, times,
 * lifetimes and offsets; it has never heard of a tensor.
 *
 * Stages run forward in their order, 0 to S-1, and backward from last to first. What a stage hands on to later ones is its
 * states: often one, read by the stage behind it alone (a tile's carried states, a layer's activation); but a state may be
 * read much further on (a skip connection, what one direction of time made for the other), and a stage may make several.
 *
 *   stage 0 --0--> stage 1 --1--> stage 2 --3--> stage 3        states 0, 1 and 2, 3, 4 are made by stages 0, 1, 2, 3;
 *                     |                            ^            reads(3) = {2, 3}: state 2 skips stage 2
 *                     +-------------2--------------+
 *
 *   RUN forward s, dropping      reads reads(s);                    makes the states of s
 *   RUN forward s, keeping k     reads reads(s);                    makes the states of s and saved(s), option k
 *   RUN backward s               reads saved(s), keeps(s) and the gradients of the states of s; adds to those of adds(s)
 *
 *   saved(s)    what stage s's backward needs from its forward and from nowhere else: one block of option[k].saved_bytes
 *   keeps(s)    the states that it reads besides, its own among them
 *   dstate(i)   the gradient of state i. Of the stages that add to it the last is differentiated first, and begins it.
 *               There is none where no stage adds.
 *
 * States, saved blocks and gradients are OBJECTS: alive as a whole, from the RUN that makes them to a FREE. A state and a
 * gradient consist of PIECES, one contiguous buffer each. A RUN that makes a state which is alive writes the same bits over
 * it. Each RUN also has scratch, alive during that step alone.
 *
 * Resident bytes (parameters, gradients, optimizer state, inputs) are alive all the time.
 */
#ifndef RM_PROBLEM_H
#define RM_PROBLEM_H

#include <stdio.h>

#include "engine/status.h"

#define RM_MAX_OPTIONS 4
#define RM_DROP (-1) /* the option of a forward run that keeps nothing */

/* The names an option may have, NULL at the end: "all" (everything backward reads), "lean" (less, rebuilt in backward),
 * "leaner" (less still: of what costs time, what costs least is made again, too), "boundary" (nothing but the states at the cuts). A new kind of option adds its name here. */
extern const char *const rm_option_names[];

typedef struct {
    uint64_t bytes; /* a multiple of RM_ALIGN */
} rm_shard;

typedef struct {
    uint64_t time_ns, scratch_bytes;
} rm_work;

typedef struct {
    const char *name;     /* one of rm_option_names; no two options of a stage share one */
    uint64_t saved_bytes; /* the private block */
    rm_work forward, backward;
} rm_option;

typedef struct {
    rm_work drop; /* the forward run that keeps nothing */
    int n_options;
    rm_option option[RM_MAX_OPTIONS]; /* [0] keeps everything that backward wants; always there */
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

/* The second tier (a spill file, or a host's memory beside a device): where SAVE puts a copy of an object, and LOAD
 * fetches it from. Transfers run one at a time, in the order of the plan, beside the computation; each takes
 * latency_ns + bytes / rate, and none at all if there are no bytes to move. Where the tier's copying takes the computation's
 * processors, a transfer also holds the computation up, by cost_ns_per_mib. A plan that uses the tier takes host_bytes of
 * memory for it beside the data. All 0: there is no second tier. */
typedef struct {
    uint64_t save_bytes_per_s, load_bytes_per_s, latency_ns, cost_ns_per_mib, host_bytes;
} rm_tier;

static inline bool rm_tier_there(const rm_tier *tier) { return tier->save_bytes_per_s > 0; }

typedef struct rm_problem {
    int64_t n_stages;
    rm_stage *stage;
    int64_t n_states;
    int64_t *made; /* n_stages+1: stage s makes the states made[s] .. made[s+1]-1 */
    int64_t n_pieces;
    rm_shard *piece;
    int64_t *state;  /* n_states+1: state i is the pieces state[i] .. state[i+1]-1 */
    int64_t *dstate; /* n_states+1: its gradient dstate[i] .. dstate[i+1]-1; all of these come after all of those */
    rm_lists reads;  /* n_stages lists of states, ascending; each was made by an earlier stage */
    rm_lists keeps;  /* ... or by s itself */
    rm_lists adds;   /* as reads */
    int n_resident;
    rm_resident resident[16];
    rm_tier tier;
} rm_problem;

/* How much of everything a problem has. */
typedef struct {
    int64_t stages, states, pieces, reads, keeps, adds;
} rm_extent;

/* Zeroed arrays of this extent; MEMORY when there is none. The caller fills them. rm_problem_free frees what is inside
 * and leaves *problem zeroed. */
remat_status rm_problem_alloc(rm_problem *problem, rm_extent extent);
void rm_problem_free(rm_problem *problem);

uint64_t rm_problem_bytes(const rm_problem *problem);          /* of the arrays */
uint64_t rm_problem_resident_bytes(const rm_problem *problem); /* each rounded up to RM_ALIGN */

/* Of state i, of its gradient, and of all states that stage s makes. */
uint64_t rm_state_bytes(const rm_problem *problem, int64_t i);
uint64_t rm_dstate_bytes(const rm_problem *problem, int64_t i);
uint64_t rm_made_bytes(const rm_problem *problem, int64_t s);

int64_t rm_state_maker(const rm_problem *problem, int64_t i); /* the stage that makes state i */
bool rm_in_list(const rm_lists *lists, int64_t list, int64_t item);

/* By state, into `last` (n_states): the last stage that adds to its gradient; -1: it has none. */
void rm_last_adders(const rm_problem *problem, int32_t *last);

/* INVALID with a sentence when the numbers contradict each other: no stages, no option, states, pieces and lists that do
 * not ascend, a state that is read before it was made, a gradient with bytes to which nobody adds, a piece that is not a
 * multiple of RM_ALIGN, bytes or times that add up to 2^60 and more, names that are unknown, repeated or unprintable, a
 * second tier with one rate alone or none. Every other function in memory/ assumes a problem that passed. */
remat_status rm_problem_check(const rm_problem *problem);

/* Text, one line a fact, that reads back to the same problem: for tests/problems/, bug reports and diffing (the form is
 * drawn in problem_text.c). The reader takes any bytes, answers INVALID naming line and reason, and gives only problems
 * that pass rm_problem_check; on failure *problem is left zeroed. Memory taken is proportional to `length`. */
remat_status rm_problem_write(const rm_problem *problem, FILE *file);
remat_status rm_problem_read(rm_problem *problem, const char *text, size_t length);

#endif
