/* binomial.h: the best schedule for stages that are alike, counted in slots, in closed form: nothing here is proportional to
 * the length of the chain (Griewank, "Achieving logarithmic growth", 1992; Griewank and Walther, "Algorithm 799: Revolve",
 * 2000). A million tiles are planned in microseconds and a few hundred bytes. In bytes instead of slots, and with stages
 * that may be kept: memory/uniform.h, by which strategies plan; none plans by this, which is for test_binomial.c and
 * bench/planner.c.
 *
 * t stages, m slots for states, of which the first holds the state that the chain begins with. Every stage is run forward
 * a last time by a tape: to keep, and to be differentiated at once. Runs before that drop. The least number of forward
 * runs, tapes included, is
 *
 *     C(t,1) = t(t+1)/2      C(t,m) = min over 0 < y < t of  y + C(t-y,m-1) + C(y,m)
 *            = (r+1) t - beta(m+1,r-1)      beta(m,r) = binomial(m+r,r),  r the least with beta(m,r) >= t
 *
 * beta(m,r) is how many stages m slots and r sweeps over any stage are enough for. Numbers that pass 2^63-1 stay there. */
#ifndef RM_BINOMIAL_H
#define RM_BINOMIAL_H

#include "engine/status.h"

/* beta(m,r); 0 for r < 0. */
int64_t rm_binomial_reach(int64_t slots, int64_t sweeps);

/* C(t,m), and a y at which it is reached: the step at which the next state is to be held. t >= 0, m >= 1; y wants t >= 2. */
int64_t rm_binomial_runs(int64_t stages, int64_t slots);
int64_t rm_binomial_split(int64_t stages, int64_t slots);

typedef enum {
    RM_BINOMIAL_SWEEP,   /* forward over begin..end-1, dropping, from the held state `begin` */
    RM_BINOMIAL_HOLD,    /* state `begin`, just made, takes a slot */
    RM_BINOMIAL_TAPE,    /* forward `begin`, keeping, and backward of it; its state is held or was just made */
    RM_BINOMIAL_RELEASE, /* state `begin` gives its slot back */
    RM_BINOMIAL_END
} rm_binomial_verb;

typedef struct {
    rm_binomial_verb verb;
    int64_t begin, end;
} rm_binomial_action;

typedef struct {
    int64_t begin, stages, slots;
} rm_binomial_part;

/* The schedule, one action after the other; state 0 holds a slot from the start. Memory: a part for each slot, no more
 * slots than stages. */
typedef struct {
    rm_binomial_part *part; /* to be solved, the next one last */
    int64_t parts, capacity;
    rm_binomial_action next[2]; /* what follows the action just given */
    int n_next;
} rm_binomial;

remat_status rm_binomial_begin(rm_binomial *schedule, int64_t stages, int64_t slots); /* INVALID, MEMORY */
rm_binomial_action rm_binomial_next(rm_binomial *schedule);
void rm_binomial_free(rm_binomial *schedule);

#endif
