/* nest.c: see nest.h. Main entries: rm_nest_make, rm_nest_write. Intervals of one group are solved in intervals.c. */
#include "memory/nest.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "memory/groups.h"
#include "memory/host.h"

#define MOST_LEVELS 12
#define GROUP 16 /* stages or groups in a group, about */

struct rm_nest {
    const rm_footprint *footprint;
    int n_levels;
    rm_level level[MOST_LEVELS]; /* [0]: stages; the last: one group, the whole chain */
    rm_solver solver[MOST_LEVELS];
};

/* ---- Building ----------------------------------------------------------------------------------- */

/* How many groups levels there are between the stages and the root, and how many of one level make one of the next. */
static int64_t group_size(int64_t n_stages, int flat, int *between) {
    double ratio = (double)n_stages / flat;
    *between = ratio <= 1 ? 0 : (int)ceil(log(ratio) / log(GROUP) - 1e-9);
    if (*between > MOST_LEVELS - 2) *between = MOST_LEVELS - 2;
    if (ratio > 1 && *between == 0) *between = 1;
    return *between ? (int64_t)ceil(pow(ratio, 1.0 / *between)) : n_stages;
}

/* Few points where there are many intervals: 10,000 stages in well under a second. */
static int points_inside(int64_t n_stages) { return n_stages <= GROUP ? 512 : n_stages <= 2000 ? 64 : 32; }

static remat_status build(rm_nest *nest, int flat) {
    int64_t n_stages = nest->footprint->problem->n_stages;
    int between;
    int64_t size = group_size(n_stages, flat, &between);
    nest->n_levels = between + 2;
    TRY(rm_level_of_stages(nest->footprint, &nest->level[0]));
    for (int l = 1; l < nest->n_levels; l++) {
        bool root = l + 1 == nest->n_levels;
        const rm_level *below = &nest->level[l - 1];
        rm_solver *solver = &nest->solver[l];
        *solver = (rm_solver){.footprint = nest->footprint, .below = below, .solved = -1};
        solver->points = points_inside(n_stages);
        solver->whole_points = root ? 512 : solver->points;
        TRY(rm_level_of_groups(below, root ? below->count : size, nest->footprint->until != NULL, &nest->level[l]));
        for (int64_t i = 0; i < nest->level[l].n_groups; i++) {
            rm_group *group = &nest->level[l].group[i];
            if (!root) TRY(rm_group_mixes(below, group));
            TRY(rm_solve(solver, group, i));
            TRY(rm_solver_whole(solver, group));
        }
    }
    return REMAT_OK;
}

remat_status rm_nest_make(const rm_footprint *footprint, int flat, rm_nest **out) {
    *out = rm_calloc(1, sizeof **out);
    REQUIRE(*out, MEMORY, "out of host memory to plan");
    (*out)->footprint = footprint;
    remat_status status = build(*out, flat);
    if (!status) return REMAT_OK;
    rm_nest_free(*out);
    *out = NULL;
    return status;
}

void rm_nest_free(rm_nest *nest) {
    if (!nest) return;
    for (int l = 0; l < MOST_LEVELS; l++) {
        rm_level_free(&nest->level[l]);
        rm_solver_free(&nest->solver[l]);
    }
    rm_free(nest);
}

const rm_point *rm_nest_points(const rm_nest *nest, int *count) {
    const rm_group *root = &nest->level[nest->n_levels - 1].group[0];
    *count = root->n_alone;
    return root->alone;
}

/* ---- Writing ------------------------------------------------------------------------------------ */

typedef struct {
    rm_nest *nest;
    rm_plan *plan;
    int64_t *segments;
} writer;

static remat_status write_kept(writer *w, int level, int32_t id, int64_t begin, int mix) {
    const rm_group *group = &w->nest->level[level].group[id];
    if (level == 0) return rm_plan_run_forward(w->plan, begin, mix);
    for (int i = 0; i < group->n; i++) {
        int32_t child = rm_child(&w->nest->level[level - 1], group, i);
        TRY(write_kept(w, level - 1, child, begin, group->mix[mix * group->n + i]));
        begin += w->nest->level[level - 1].group[child].length;
    }
    return REMAT_OK;
}

static remat_status write_interval(writer *w, int level, int64_t begin, int u, int v, int i);

/* Group `id` of `level`, which stands at `begin`, by point i of its own frontier. */
static remat_status write_alone(writer *w, int level, int32_t id, int64_t begin, int i) {
    const rm_group *group = &w->nest->level[level].group[id];
    if (level > 0) {
        TRY(rm_solve(&w->nest->solver[level], group, id));
        return write_interval(w, level, begin, 0, group->n, i);
    }
    ++*w->segments;
    TRY(rm_plan_run_forward(w->plan, begin, group->alone[i].right));
    TRY(rm_plan_free_object(w->plan, RM_STATE, begin + 1));
    return rm_plan_differentiate(w->plan, begin);
}

/* Children u..v-1 of the group that solver[level] holds; the first stands at `begin`. Right parts recur, no deeper than
 * there are children; the left part is the rest of the loop. */
static remat_status write_interval(writer *w, int level, int64_t begin, int u, int v, int i) {
    const rm_solver *solver = &w->nest->solver[level];
    const rm_level *below = &w->nest->level[level - 1];
    for (;;) {
        rm_point p = *rm_solver_point(solver, u, v, i);
        if (v == u + 1) return write_alone(w, level - 1, solver->child[u], begin, p.right);
        if (p.move < 0) {
            int64_t end = begin + below->group[solver->child[u]].length;
            TRY(write_kept(w, level - 1, solver->child[u], begin, -1 - p.move));
            TRY(write_interval(w, level, end, u + 1, v, p.right));
            while (end > begin) TRY(rm_plan_differentiate(w->plan, --end));
            return REMAT_OK;
        }
        int j = u + p.move;
        int64_t cut = begin + (solver->begin[j] - solver->begin[u]);
        TRY(rm_plan_sweep(w->plan, begin, cut));
        TRY(write_interval(w, level, cut, j, v, p.right));
        v = j;
        i = p.left;
    }
}

remat_status rm_nest_write(rm_nest *nest, int i, rm_plan *plan, int64_t *segments) {
    *segments = 0;
    return write_alone(&(writer){nest, plan, segments}, nest->n_levels - 1, 0, 0, i);
}
