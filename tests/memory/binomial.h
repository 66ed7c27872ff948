/* binomial.h: the optimal schedule for equal stages, counted in slots and in closed form, so that nothing is
 * proportional to the length of the chain (Griewank, "Achieving logarithmic growth", 1992; Griewank and Walther,
 * "Algorithm 799: Revolve", 2000). A million tiles are planned in microseconds and a few hundred bytes. No strategy
 * plans with it: memory/uniform.h works in bytes instead of slots, with stages that may be kept. This one serves
 * test_binomial.c and bench/planner.c.
 *
 * There are t stages and m slots for states; the first slot holds the state at the start of the chain. The last forward
 * run of every stage is a tape: it keeps, and the stage is differentiated at once. Earlier runs drop. The minimum
 * number of forward runs, tapes included, is
 *
 *     C(t,1) = t(t+1)/2      C(t,m) = min over 0 < y < t of  y + C(t-y,m-1) + C(y,m)
 *            = (r+1) t - beta(m+1,r-1)      beta(m,r) = binomial(m+r,r),  r the least with beta(m,r) >= t
 *
 * beta(m,r) is the largest number of stages for which m slots and r sweeps over any stage suffice. Numbers saturate at
 * 2^63-1. */
#ifndef RM_BINOMIAL_H
#define RM_BINOMIAL_H

#include "engine/status.h"

/* beta(m,r); 0 for r < 0. */
int64_t rm_binomial_reach(int64_t slots, int64_t sweeps);

/* C(t,m), and a y for which the minimum is reached: the stage at which the next state is held. t >= 0, m >= 1; y
 * requires t >= 2. */
int64_t rm_binomial_runs(int64_t stages, int64_t slots);
int64_t rm_binomial_split(int64_t stages, int64_t slots);

typedef enum {
    RM_BINOMIAL_SWEEP,   /* run begin..end-1 forward, dropping, from the held state `begin` */
    RM_BINOMIAL_HOLD,    /* hold state `begin`, which was just made, in a slot */
    RM_BINOMIAL_TAPE,    /* run `begin` forward, keeping, and then backward; its state is held or was just made */
    RM_BINOMIAL_RELEASE, /* release the slot of state `begin` */
    RM_BINOMIAL_END
} rm_binomial_verb;

typedef struct {
    rm_binomial_verb verb;
    int64_t begin, end;
} rm_binomial_action;

typedef struct {
    int64_t begin, stages, slots;
} rm_binomial_part;

/* The schedule, as one action after another; state 0 holds a slot from the start. Memory: one part for each slot, and
 * no more slots than stages. */
typedef struct {
    rm_binomial_part *part; /* parts still to be solved, the next one last */
    int64_t parts, capacity;
    rm_binomial_action next[2]; /* the actions after the one just returned */
    int n_next;
} rm_binomial;

remat_status rm_binomial_begin(rm_binomial *schedule, int64_t stages, int64_t slots); /* INVALID, MEMORY */
rm_binomial_action rm_binomial_next(rm_binomial *schedule);
void rm_binomial_free(rm_binomial *schedule);

#endif
