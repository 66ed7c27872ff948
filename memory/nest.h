/* nest.h: the best nested segments of a chain of arbitrary stages: a frontier of plans (frontier.h), by Rotor's
 * recurrence over exact bytes (Herrmann, Beaumont, Eyraud-Dubois, Hermann, Joly, Shilova: "Optimal checkpointing for
 * heterogeneous chains", 2019), from coarse to fine. uniform.h does better for chains of equal stages.
 *
 * Up to RM_NEST_FLAT stages, every interval is solved in all three ways of footprint.h. The result is optimal among
 * nested segments as long as no frontier has to be thinned and no interval has more than a dozen stages. A longer
 * interval is split only at, or next to, a split of an interval that is one stage shorter. A longer chain is cut into
 * groups of stages, groups of groups and so on, with at most about 16 items in each, until no more than RM_NEST_FLAT
 * are left, which are solved in the same way. A group can be
 *
 *   dropped   all its stages are dropped
 *   kept      all its stages are kept, in one of several mixes of their options
 *   solved    by its own frontier, which was found one level down
 *
 * so a segment ends inside a group only if the group is solved alone. Equal groups are solved once. Compared with
 * solving every interval with many points, this costs on average 0.3 % of the time for 40 stages, 2 % for 96, and 5 to
 * 8 % for some hundred (measured in docs/notes/planner.md, on stages that differ tenfold). */
#ifndef RM_NEST_H
#define RM_NEST_H

#include "memory/groups.h"
#include "memory/strategy.h"

#define RM_NEST_FLAT 96

typedef struct rm_nest rm_nest;

/* Limits of the search. 0: chosen by the number of stages. */
typedef struct {
    int flat;         /* the most stages or groups whose intervals are solved together, >= 2 */
    int points;       /* the most points in the frontier of an interval, >= 2 ... */
    int whole_points; /* ... and of the whole chain, at least as many */
} rm_effort;

/* The footprint must outlive the nest. MEMORY. */
remat_status rm_nest_make(const rm_footprint *footprint, rm_effort effort, rm_nest **out);
void rm_nest_free(rm_nest *nest);

/* The number of points in the frontier of the whole chain; its points; what point i drops. */
int rm_nest_count(const rm_nest *nest);
rm_point rm_nest_point(const rm_nest *nest, int i);
rm_drops rm_nest_drops(const rm_nest *nest, int i);

/* Appends the runs of point i's plan. segments: the number of runs of kept stages that end in a backward. */
remat_status rm_nest_write(const rm_nest *nest, int i, rm_plan *plan, int64_t *segments);

#endif
