/* footprint.h: a problem as a planner of nested segments sees it: the cost of keeping a stage, and the bytes alive
 * while it runs. It contains numbers only, no states. rm_footprint_make needs one pass over the problem.
 *
 * Cut c lies before stage c. A state crosses the cut if an earlier stage makes it and stage c or a later one reads it
 * (a state that nobody reads crosses one cut). To SOLVE the interval [a,b) is to differentiate its stages, last first.
 * The states that cross a and the gradients of the states that cross b are given and used up; the gradients of the
 * states that cross a are the result. Every plan of nested segments solves intervals in one of three ways:
 *
 *   leaf    [a,a+1)   forward a keeping, backward a
 *   first   [a,b)     forward a keeping; solve [a+1,b) while what a's backward needs is held; backward a
 *   split   at j      forward a..j-1 dropping; solve [j,b) while the states that cross a are held; solve [a,j)
 *
 * The peak of an interval counts the states that cross a, the gradients of the states that cross b, and all temporary
 * bytes between. A state that crosses two cuts is counted once. The peak is exact if no state crosses more than one cut
 * (`exact` below), as in tiled time. Where states skip stages, some end earlier than this count assumes, and the judge
 * may find a smaller peak. */
#ifndef RM_FOOTPRINT_H
#define RM_FOOTPRINT_H

#include "memory/problem.h"

/* One stage, or several consecutive ones, run to keep. */
typedef struct {
    uint64_t held_bytes;    /* states and saved blocks; the part besides the next state, held until backward begins */
    uint64_t forward_bytes; /* the most bytes alive in the forward runs, without dstate(b) */
    uint64_t backward_bytes; /* the most bytes alive in the backward runs */
    uint64_t time_ns;        /* forward and backward time */
} rm_kept;

typedef struct {
    uint64_t state_bytes, next_state_bytes, dstate_bytes, next_dstate_bytes; /* bytes across cut s and across cut s+1 */
    uint64_t drop_bytes;  /* bytes that cross s and s+1, plus scratch */
    uint64_t drop_ns;     /* time of one forward run that keeps nothing */
    uint64_t table_bytes; /* a lower bound of what such a run adds to rm_schedule_bytes besides the block */
    int64_t n_options;    /* as in the stage */
    rm_kept kept[RM_MAX_OPTIONS];
} rm_foot;

typedef struct rm_skips rm_skips;

typedef struct {
    const rm_problem *problem; /* borrowed */
    rm_foot *foot;             /* n_stages */
    rm_skips *skips;           /* the states that cross more than one cut; NULL: none does */
    bool exact;
    uint64_t table_bytes; /* a lower bound for a plan that runs every stage once */
} rm_footprint;

/* *footprint is zeroed before the call; `problem` must outlive it. MEMORY. */
remat_status rm_footprint_make(const rm_problem *problem, rm_footprint *footprint);
void rm_footprint_free(rm_footprint *footprint);

/* Bytes that cross cut a but not cut j, for a < j. */
uint64_t rm_beside(const rm_footprint *footprint, int64_t a, int64_t j);

/* The costs of keeping `first` and then `next`, as if they were one stage. */
static inline rm_kept rm_kept_then(rm_kept first, rm_kept next) {
    uint64_t forward = first.held_bytes + next.forward_bytes, backward = first.held_bytes + next.backward_bytes;
    return (rm_kept){
        .held_bytes = first.held_bytes + next.held_bytes,
        .forward_bytes = forward > first.forward_bytes ? forward : first.forward_bytes,
        .backward_bytes = backward > first.backward_bytes ? backward : first.backward_bytes,
        .time_ns = first.time_ns + next.time_ns,
    };
}

#endif
