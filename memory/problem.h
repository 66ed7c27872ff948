/* problem.h: what a strategy is given: a chain of stages, as numbers. memory/ knows bytes, times, lifetimes and
 * offsets; it has never heard of a tensor.
 *
 * The chain.          cut 0     cut 1     cut 2            cut S
 *                       | stage 0 | stage 1 |  ...  stage S-1 |
 *
 *   state(c)   everything alive across cut c in the forward pass: carried states for a time-tiled net, activations
 *              for a deep one. Keeping state(c) is a checkpoint at cut c.
 *   saved(s)   what stage s's backward needs from its forward, if that forward was run to keep.
 *   dstate(c)  gradient of state(c). dstate(S) has no pieces: nothing follows.
 *
 *   RUN forward s, dropping      reads state(s);                        makes state(s+1)
 *   RUN forward s, keeping k     reads state(s);                        makes state(s+1) and saved(s), option k
 *   RUN backward s               reads state(s), saved(s), dstate(s+1); makes dstate(s)
 *
 * The three kinds are OBJECTS. An object is a set of PIECES: a piece is one contiguous buffer, and may belong to
 * several objects (a skip connection crosses many cuts): it is alive while any of them is, and counted once.
 * A RUN that makes a piece which is already alive writes the same bits over it. Besides its pieces saved(s) owns one
 * private block of option[k].saved_bytes. Each RUN also has scratch, alive during that step alone.
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
 * "boundary" (nothing but the states at the cuts). A new kind of option adds its name here. */
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
    int64_t n_pieces;
    rm_shard *piece;
    rm_lists state;  /* n_stages+1 lists of pieces */
    rm_lists dstate; /* n_stages+1 lists           */
    rm_lists saved;  /* n_stages lists: the pieces of saved(s) besides its private block (usually none) */
    int n_resident;
    rm_resident resident[16];
    rm_tier tier;
} rm_problem;

/* Zeroed arrays for so many stages, pieces and list items in all; MEMORY when there is none. The caller fills
 * them. rm_problem_free frees what is inside and leaves *problem zeroed. */
remat_status rm_problem_alloc(rm_problem *problem, int64_t n_stages, int64_t n_pieces, int64_t n_state_items,
                              int64_t n_dstate_items, int64_t n_saved_items);
void rm_problem_free(rm_problem *problem);

uint64_t rm_problem_resident_bytes(const rm_problem *problem); /* each rounded up to RM_ALIGN */

/* Of the pieces in list i, one of problem->state, ->dstate, ->saved. */
uint64_t rm_list_bytes(const rm_problem *problem, const rm_lists *lists, int64_t i);

/* INVALID with a sentence when the numbers contradict each other: no stages, no option, a piece id out of range, a piece
 * that is not a multiple of RM_ALIGN, list starts that do not ascend, pieces in dstate(S), bytes or times that add up to
 * 2^60 and more, names that are unknown, repeated or unprintable, a second tier with one rate alone or none. Every other function in memory/ assumes a problem that
 * passed. */
remat_status rm_problem_check(const rm_problem *problem);

/* Text, one line a fact, that reads back to the same problem: for tests/problems/, bug reports and diffing (the form is
 * drawn in problem_text.c). The reader takes any bytes, answers INVALID naming line and reason, and gives only problems
 * that pass rm_problem_check; on failure *problem is left zeroed. Memory taken is proportional to `length`. */
remat_status rm_problem_write(const rm_problem *problem, FILE *file);
remat_status rm_problem_read(rm_problem *problem, const char *text, size_t length);

#endif
