/* footprint.h: a problem in the terms a planner of nested segments thinks in: what holding a stage costs, and what is
 * alive while it runs. States are gone; numbers are left. One pass over the problem: rm_footprint_make.
 *
 * Cut c lies before stage c. What crosses it are the states that a stage before it makes and a stage behind it reads (a
 * state that nobody reads crosses one cut). To SOLVE the interval [a,b) is to differentiate its stages, last first, given
 * what crosses a and the gradients of what crosses b; both are used up and the gradients of what crosses a are left. Every
 * plan of nested segments solves intervals in one of three ways:
 *
 *   leaf    [a,a+1)   forward a keeping, backward a
 *   first   [a,b)     forward a keeping; solve [a+1,b) beside what a's backward needs; backward a
 *   split   at j      forward a..j-1 dropping; solve [j,b) beside what crosses a; solve [a,j)
 *
 * The peak of an interval counts what crosses a, the gradients of what crosses b, and all that comes and goes between.
 * What crosses two cuts is counted once. That is exact if no state crosses more than one cut (`exact` below), as in time
 * cut into tiles; where states skip, some end earlier than is counted here, and the judge may find less. */
#ifndef RM_FOOTPRINT_H
#define RM_FOOTPRINT_H

#include "memory/problem.h"

/* A stage, or several in a row, run to keep. */
typedef struct {
    uint64_t held_bytes;    /* states and saved, what of them is beside the state that follows: until backward begins */
    uint64_t forward_bytes; /* the most alive in the forward runs, dstate(b) not counted */
    uint64_t backward_bytes; /* the most alive in the backward runs */
    uint64_t time_ns;        /* of both */
} rm_kept;

typedef struct {
    uint64_t state_bytes, next_state_bytes, dstate_bytes, next_dstate_bytes; /* across cut s, and cut s+1 */
    uint64_t drop_bytes;  /* what crosses s and s+1, and scratch */
    uint64_t drop_ns;     /* one forward run that keeps nothing */
    uint64_t table_bytes; /* what such a run adds to rm_schedule_bytes besides the block; not less than that */
    int64_t n_options;    /* as in the stage */
    rm_kept kept[RM_MAX_OPTIONS];
} rm_foot;

typedef struct rm_skips rm_skips;

typedef struct {
    const rm_problem *problem; /* borrowed */
    rm_foot *foot;             /* n_stages */
    rm_skips *skips;           /* states that cross more than one cut; NULL: there are none */
    bool exact;
    uint64_t table_bytes; /* of a plan that runs every stage once; not less than that */
} rm_footprint;

/* MEMORY. *footprint zeroed before; `problem` must outlive it. */
remat_status rm_footprint_make(const rm_problem *problem, rm_footprint *footprint);
void rm_footprint_free(rm_footprint *footprint);

/* Bytes that cross cut a and not cut j, a < j. */
uint64_t rm_beside(const rm_footprint *footprint, int64_t a, int64_t j);

/* `next` kept behind `first`, as if they were one. */
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
