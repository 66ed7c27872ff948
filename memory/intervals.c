/* intervals.c: rm_solve: every interval of one group's children, shortest first, in the three ways of footprint.h. */
#include "memory/groups.h"

#include <string.h>

#include "memory/host.h"

/* A frontier in the making may be so many times longer than it will end, before it is thinned. */
#define SLACK 3

static remat_status no_memory(int64_t n) {
    return rm_fail(REMAT_MEMORY, "out of host memory to solve %lld stages or groups", (long long)n);
}

void rm_solver_free(rm_solver *solver) {
    rm_free(solver->child);
    rm_free(solver->begin);
    rm_free(solver->first);
    rm_free(solver->count);
    rm_free(solver->pool);
    rm_free(solver->scratch);
    *solver = (rm_solver){.solved = -1};
}

/* Room for one group's numbers; the pool stays from group to group. */
static remat_status begin(rm_solver *solver, const rm_group *group) {
    int32_t n = group->n;
    if (n > solver->n || !solver->child) {
        size_t intervals = (size_t)n * (size_t)(n + 1);
        rm_free(solver->child);
        rm_free(solver->begin);
        rm_free(solver->first);
        rm_free(solver->count);
        solver->child = rm_malloc((size_t)n * sizeof *solver->child);
        solver->begin = rm_malloc((size_t)(n + 1) * sizeof *solver->begin);
        solver->first = rm_malloc(intervals * sizeof *solver->first);
        solver->count = rm_malloc(intervals * sizeof *solver->count);
    }
    size_t scratch = 2 * (size_t)(SLACK + 2) * (size_t)solver->whole_points + 2 * (size_t)solver->whole_points;
    if (!solver->scratch) solver->scratch = rm_malloc(scratch * sizeof *solver->scratch);
    solver->n = n;
    solver->used = 0;
    solver->solved = -1;
    if (!solver->child || !solver->begin || !solver->first || !solver->count || !solver->scratch) {
        rm_solver_free(solver);
        return no_memory(n);
    }
    solver->begin[0] = group->begin;
    for (int32_t i = 0; i < n; i++) {
        solver->child[i] = rm_child(solver->below, group, i);
        solver->begin[i + 1] = solver->begin[i] + solver->below->group[solver->child[i]].length;
    }
    return REMAT_OK;
}

static remat_status keep_points(rm_solver *solver, int u, int v, const rm_point *point, int n) {
    if (solver->used + n > solver->capacity) {
        int64_t capacity = solver->capacity * 2 > solver->used + n ? solver->capacity * 2 : solver->used + n + 1024;
        rm_point *grown = rm_realloc(solver->pool, (size_t)capacity * sizeof *grown);
        if (!grown) return no_memory(solver->n);
        solver->pool = grown;
        solver->capacity = capacity;
    }
    memcpy(solver->pool + solver->used, point, (size_t)n * sizeof *point);
    solver->first[rm_interval(solver, u, v)] = solver->used;
    solver->count[rm_interval(solver, u, v)] = n;
    solver->used += n;
    return REMAT_OK;
}

static const rm_group *child(const rm_solver *solver, int u) { return &solver->below->group[solver->child[u]]; }

static remat_status solve_one(rm_solver *solver, int u) {
    const rm_group *alone = child(solver, u);
    TRY(keep_points(solver, u, u + 1, alone->alone, alone->n_alone));
    rm_point *point = &solver->pool[solver->first[rm_interval(solver, u, u + 1)]];
    for (int i = 0; i < alone->n_alone; i++) point[i].right = i;
    return REMAT_OK;
}

/* ---- One interval ------------------------------------------------------------------------------- */

/* The frontier so far, and room for its successor and for one more way. */
typedef struct {
    rm_point *best, *next, *way;
    int n;
} attempt;

static void add_way(attempt *a, int n_way, int most) {
    a->n = rm_frontier_merge(a->best, a->n, a->way, n_way, a->next);
    rm_point *swap = a->best;
    a->best = a->next;
    a->next = swap;
    if (a->n > SLACK * most) a->n = rm_frontier_thin(a->best, a->n, most);
}

static const rm_point *points(const rm_solver *solver, int u, int v, int *n) {
    *n = solver->count[rm_interval(solver, u, v)];
    return rm_solver_point(solver, u, v, 0);
}

static uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* What of state(begin[u]) and the states in a sweep over child i is alive at most. */
static uint64_t sweep_over(const rm_solver *solver, int u, int i) {
    const rm_footprint *f = solver->footprint;
    const rm_group *over = child(solver, i);
    int64_t begin = solver->begin[u];
    uint64_t most = i == u ? over->first_drop_bytes : 0;
    if (!f->until) {
        uint64_t rest = i == u ? over->rest_drop_bytes : larger(over->first_drop_bytes, over->rest_drop_bytes);
        return rest ? larger(most, f->foot[begin].state_bytes + rest) : most;
    }
    for (int64_t s = solver->begin[i] + (i == u); s < solver->begin[i + 1]; s++)
        most = larger(most, rm_beside(f, begin, s) + f->foot[s].drop_bytes);
    return most;
}

static void try_splits(rm_solver *solver, int u, int v, int most, attempt *a) {
    uint64_t dstate = child(solver, v - 1)->next_dstate_bytes, sweep_bytes = 0;
    rm_sweep sweep = {0};
    for (int j = u + 1; j < v; j++) {
        const rm_group *over = child(solver, j - 1);
        int n_right, n_left;
        const rm_point *right = points(solver, j, v, &n_right), *left = points(solver, u, j, &n_left);
        sweep_bytes = larger(sweep_bytes, sweep_over(solver, u, j - 1));
        sweep.sweep_bytes = sweep_bytes + dstate;
        sweep.beside_bytes = rm_beside(solver->footprint, solver->begin[u], solver->begin[j]);
        sweep.time_ns += over->drop_ns;
        sweep.table_bytes += over->table_bytes;
        sweep.drops += over->length;
        add_way(a, rm_frontier_split(right, n_right, left, n_left, sweep, j - u, a->way), most);
    }
}

static void try_firsts(rm_solver *solver, int u, int v, int most, attempt *a) {
    const rm_group *first = child(solver, u);
    uint64_t dstate = child(solver, v - 1)->next_dstate_bytes;
    int n_right;
    const rm_point *right = points(solver, u + 1, v, &n_right);
    for (int k = 0; k < first->n_kept; k++)
        add_way(a, rm_frontier_first(first->kept[k], dstate, right, n_right, -1 - k, a->way), most);
}

static remat_status solve_interval(rm_solver *solver, int u, int v) {
    int most = v - u == solver->n ? solver->whole_points : solver->points;
    size_t room = (size_t)(SLACK + 2) * (size_t)solver->whole_points;
    attempt a = {solver->scratch, solver->scratch + room, solver->scratch + 2 * room, 0};
    try_firsts(solver, u, v, most, &a);
    try_splits(solver, u, v, most, &a);
    a.n = rm_frontier_thin(a.best, a.n, most);
    return keep_points(solver, u, v, a.best, a.n);
}

/* ---- All intervals ------------------------------------------------------------------------------ */

/* [u,v) is the interval before it, one child further on: all children in [u-1,v) are alike. */
static bool same_as_before(const rm_solver *solver, int u, int v) {
    if (u == 0) return false;
    for (int i = u; i < v; i++)
        if (solver->child[i] != solver->child[u - 1]) return false;
    return true;
}

remat_status rm_solve(rm_solver *solver, const rm_group *group, int64_t id) {
    if (solver->solved == id) return REMAT_OK;
    TRY(begin(solver, group));
    for (int u = 0; u < solver->n; u++) TRY(solve_one(solver, u));
    for (int length = 2; length <= solver->n; length++)
        for (int u = 0; u + length <= solver->n; u++) {
            int64_t here = rm_interval(solver, u, u + length), before = rm_interval(solver, u - 1, u + length - 1);
            if (same_as_before(solver, u, u + length)) {
                solver->first[here] = solver->first[before];
                solver->count[here] = solver->count[before];
            } else {
                TRY(solve_interval(solver, u, u + length));
            }
        }
    solver->solved = id;
    return REMAT_OK;
}

remat_status rm_solver_whole(const rm_solver *solver, rm_group *group) {
    int n;
    const rm_point *whole = points(solver, 0, solver->n, &n);
    group->alone = rm_malloc((size_t)n * sizeof *group->alone);
    if (!group->alone) return no_memory(solver->n);
    memcpy(group->alone, whole, (size_t)n * sizeof *whole);
    group->n_alone = n;
    return REMAT_OK;
}
