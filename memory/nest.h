/* nest.h: the best nested segments of a chain of any stages: a frontier of plans (frontier.h), by Rotor's recurrence over
 * exact bytes (Herrmann, Beaumont, Eyraud-Dubois, Hermann, Joly, Shilova: "Optimal checkpointing for heterogeneous chains",
 * 2019), coarse to fine. Differs from uniform.h, which knows more about less: chains of stages that are alike.
 *
 * Up to RM_NEST_FLAT stages every interval is solved in all three ways of footprint.h; as long as no frontier has to be
 * thinned and no interval has more than a dozen stages, that is the best there is among nested segments. A longer interval
 * is split only where one that is shorter by a stage was, or next to it. A longer chain is cut into groups of stages,
 * groups of groups, ..., at most about 16 in each, until no more than RM_NEST_FLAT are left, which are solved in the same
 * way. A group can be
 *
 *   dropped   all its stages are
 *   kept      all its stages are, in one of several mixes of their options
 *   solved    alone, by its own frontier, which was found one level down
 *
 * so a segment ends inside a group only if the group is solved alone. Groups that are alike are solved once. What all this
 * costs against solving every interval with many points (measured in docs/notes/planner.md, on stages that differ tenfold):
 * on average 0.3 % of the time for 40 stages, 2 % for 96, 5 to 8 % for some hundred. */
#ifndef RM_NEST_H
#define RM_NEST_H

#include "memory/groups.h"
#include "memory/strategy.h"

#define RM_NEST_FLAT 96

typedef struct rm_nest rm_nest;

/* How much is spent. 0: chosen here, by the number of stages. */
typedef struct {
    int flat;         /* the most stages or groups whose intervals are solved together, >= 2 */
    int points;       /* the most in the frontier of an interval, >= 2 ... */
    int whole_points; /* ... and of the whole chain; no less */
} rm_effort;

/* MEMORY. The footprint must outlive it. */
remat_status rm_nest_make(const rm_footprint *footprint, rm_effort effort, rm_nest **out);
void rm_nest_free(rm_nest *nest);

/* The frontier of the whole chain; what point i drops. */
int rm_nest_count(const rm_nest *nest);
rm_point rm_nest_point(const rm_nest *nest, int i);
rm_drops rm_nest_drops(const rm_nest *nest, int i);

/* Appends the runs of point i's plan. segments: how many runs of kept stages end in a backward. */
remat_status rm_nest_write(const rm_nest *nest, int i, rm_plan *plan, int64_t *segments);

#endif
