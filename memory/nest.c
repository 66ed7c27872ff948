/* nest.c: see nest.h. Main entries: rm_nest_make, rm_nest_write. intervals.c solves the intervals of one group. */
#include "memory/nest.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "memory/host.h"

#define MOST_LEVELS 12
#define WHOLE_POINTS 512 /* points in the frontier of the whole chain */
#define GROUP 16         /* about how many stages or groups form one group */

struct rm_nest {
    const rm_footprint *footprint;
    int n_levels;
    rm_level level[MOST_LEVELS]; /* [0]: the stages; the last: one group, the whole chain */
};

/* ---- Building ----------------------------------------------------------------------------------- */

/* Chooses the number of levels between the stages and the root, and the number of items in one group of the next
 * level. */
static int64_t group_size(int64_t n_stages, int flat, int *between) {
    double ratio = (double)n_stages / flat;
    *between = ratio <= 1 ? 0 : (int)ceil(log(ratio) / log(GROUP) - 1e-9);
    if (*between > MOST_LEVELS - 2) *between = MOST_LEVELS - 2;
    if (ratio > 1 && *between == 0) *between = 1;
    return *between ? (int64_t)ceil(pow(ratio, 1.0 / *between)) : n_stages;
}

/* Fewer points for more intervals, so that 10,000 stages take well under a second. */
static int points_inside(int64_t n_stages) {
    return n_stages <= 16 ? 512 : n_stages <= 40 ? 128 : n_stages <= 2000 ? 64 : n_stages <= 20000 ? 32 : 16;
}

static remat_status solve_level(rm_nest *nest, int l, int points, int whole_points) {
    rm_level *level = &nest->level[l];
    rm_solver solver = {.footprint = nest->footprint, .below = &nest->level[l - 1]};
    solver.points = points;
    solver.whole_points = whole_points;
    remat_status status = REMAT_OK;
    for (int64_t i = 0; i < level->n_groups && !status; i++) {
        bool root = l + 1 == nest->n_levels;
        if (!root) status = rm_group_mixes(&nest->level[l - 1], &level->group[i]);
        if (!status) status = rm_solve(&solver, &level->group[i]);
    }
    rm_solver_free(&solver);
    return status;
}

static remat_status build(rm_nest *nest, rm_effort effort) {
    int64_t n_stages = nest->footprint->problem->n_stages;
    bool all_differ = nest->footprint->skips != NULL;
    int points = effort.points ? effort.points : points_inside(n_stages), between;
    int whole_points = effort.whole_points ? effort.whole_points : WHOLE_POINTS;
    int64_t size = group_size(n_stages, effort.flat ? effort.flat : RM_NEST_FLAT, &between);
    nest->n_levels = between + 2;
    TRY(rm_level_of_stages(nest->footprint, &nest->level[0]));
    for (int l = 1; l < nest->n_levels; l++) {
        bool root = l + 1 == nest->n_levels;
        const rm_level *below = &nest->level[l - 1];
        TRY(rm_level_of_groups(below, root ? below->count : size, all_differ, &nest->level[l]));
        TRY(solve_level(nest, l, points, root ? whole_points : points));
    }
    return REMAT_OK;
}

remat_status rm_nest_make(const rm_footprint *footprint, rm_effort effort, rm_nest **out) {
    *out = rm_calloc(1, sizeof **out);
    REQUIRE(*out, MEMORY, "out of host memory to plan");
    (*out)->footprint = footprint;
    remat_status status = build(*out, effort);
    if (!status) return REMAT_OK;
    rm_nest_free(*out);
    *out = NULL;
    return status;
}

void rm_nest_free(rm_nest *nest) {
    if (!nest) return;
    for (int l = 0; l < MOST_LEVELS; l++) rm_level_free(&nest->level[l]);
    rm_free(nest);
}

static const rm_group *root_of(const rm_nest *nest) { return &nest->level[nest->n_levels - 1].group[0]; }

int rm_nest_count(const rm_nest *nest) { return root_of(nest)->n_alone; }
rm_point rm_nest_point(const rm_nest *nest, int i) { return root_of(nest)->alone[i]; }
rm_drops rm_nest_drops(const rm_nest *nest, int i) { return root_of(nest)->alone_drops[i]; }

/* ---- Writing ------------------------------------------------------------------------------------ */

typedef struct {
    const rm_nest *nest;
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

static remat_status write_interval(writer *w, int level, int32_t id, int64_t begin, int u, int v, int i);

/* Writes group `id` of `level`, which begins at `begin`, by point i of its own frontier. */
static remat_status write_alone(writer *w, int level, int32_t id, int64_t begin, int i) {
    const rm_group *group = &w->nest->level[level].group[id];
    if (level > 0) return write_interval(w, level, id, begin, 0, group->n, i);
    ++*w->segments;
    TRY(rm_plan_run_forward(w->plan, begin, group->alone[i].right));
    return rm_plan_run_backward(w->plan, begin);
}

/* Writes its children u..v-1, the first of which begins at `begin`. The loop handles left parts. Right parts recurse,
 * no deeper than the number of children. */
static remat_status write_interval(writer *w, int level, int32_t id, int64_t begin, int u, int v, int i) {
    const rm_group *group = &w->nest->level[level].group[id];
    const rm_level *below = &w->nest->level[level - 1];
    for (;;) {
        rm_how how = rm_group_how(group, u, v, i);
        int32_t first = rm_child(below, group, u);
        int64_t cut = begin + below->group[first].length;
        if (v == u + 1) return write_alone(w, level - 1, first, begin, how.right);
        if (how.move < 0) {
            TRY(write_kept(w, level - 1, first, begin, -1 - how.move));
            TRY(write_interval(w, level, id, cut, u + 1, v, how.right));
            while (cut > begin) TRY(rm_plan_run_backward(w->plan, --cut));
            return REMAT_OK;
        }
        int j = u + how.move;
        for (int k = u + 1; k < j; k++) cut += below->group[rm_child(below, group, k)].length;
        TRY(rm_plan_sweep(w->plan, begin, cut));
        TRY(write_interval(w, level, id, cut, j, v, how.right));
        v = j;
        i = how.left;
    }
}

remat_status rm_nest_write(const rm_nest *nest, int i, rm_plan *plan, int64_t *segments) {
    *segments = 0;
    return write_alone(&(writer){nest, plan, segments}, nest->n_levels - 1, 0, 0, i);
}
