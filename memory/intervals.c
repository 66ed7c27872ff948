/* intervals.c: rm_solve: every interval of one group's children, shortest first, in the three ways of footprint.h. */
#include "memory/groups.h"

#include <string.h>

#include "memory/bytes.h"
#include "memory/host.h"

/* A frontier in the making may be so many times longer than it will end, before it is thinned. */
#define SLACK 3
#define TRY_ALL 12 /* children: up to there an interval is split everywhere */

static remat_status no_memory(int64_t n) {
    return rm_fail(REMAT_MEMORY, "out of host memory to solve %lld stages or groups", (long long)n);
}

static void free_intervals(rm_solver *solver) {
    rm_free(solver->child);
    rm_free(solver->begin);
    rm_free(solver->first);
    rm_free(solver->count);
    rm_free(solver->cuts);
    solver->cuts = NULL;
    solver->child = solver->first = solver->count = NULL;
    solver->begin = NULL;
    solver->room = 0;
}

void rm_solver_free(rm_solver *solver) {
    free_intervals(solver);
    rm_free(solver->pool);
    rm_free(solver->drops);
    rm_free(solver->scratch);
    *solver = (rm_solver){0};
}

/* Room for one group's numbers; it stays from group to group. */
static remat_status make_room(rm_solver *solver, int32_t n) {
    if (!solver->scratch) {
        size_t points = (size_t)(2 * (SLACK + 2) + 2) * (size_t)solver->whole_points;
        solver->scratch = rm_malloc(points * sizeof *solver->scratch);
        if (!solver->scratch) return no_memory(n);
    }
    if (n <= solver->room) return REMAT_OK;
    free_intervals(solver);
    size_t intervals = (size_t)n * (size_t)(n + 1);
    solver->child = rm_malloc((size_t)n * sizeof *solver->child);
    solver->begin = rm_malloc((size_t)(n + 1) * sizeof *solver->begin);
    solver->first = rm_malloc(intervals * sizeof *solver->first);
    solver->count = rm_malloc(intervals * sizeof *solver->count);
    solver->cuts = rm_malloc(intervals * sizeof *solver->cuts);
    if (!solver->child || !solver->begin || !solver->first || !solver->count || !solver->cuts) return no_memory(n);
    solver->room = n;
    return REMAT_OK;
}

static remat_status begin(rm_solver *solver, const rm_group *group) {
    int32_t n = group->n;
    TRY(make_room(solver, n));
    solver->n = n;
    solver->used = 0;
    solver->begin[0] = group->begin;
    for (int32_t i = 0; i < n; i++) {
        solver->child[i] = rm_child(solver->below, group, i);
        solver->begin[i + 1] = solver->begin[i] + solver->below->group[solver->child[i]].length;
    }
    return REMAT_OK;
}

static remat_status grow(rm_solver *solver, int n) {
    int64_t pool_capacity = solver->capacity;
    bool grown = rm_grow(&solver->pool, &pool_capacity, (int64_t)solver->used + n, sizeof *solver->pool) &&
                 rm_grow(&solver->drops, &solver->capacity, (int64_t)solver->used + n, sizeof *solver->drops);
    return grown ? REMAT_OK : no_memory(solver->n);
}

/* The interval's points, once they are final; what they drop is added up for these alone. */
static remat_status keep_points(rm_solver *solver, int u, int v, const rm_point *point, const rm_drops *drops, int n) {
    TRY(grow(solver, n));
    memcpy(solver->pool + solver->used, point, (size_t)n * sizeof *point);
    memcpy(solver->drops + solver->used, drops, (size_t)n * sizeof *drops);
    solver->first[rm_interval(solver->n, u, v)] = solver->used;
    solver->count[rm_interval(solver->n, u, v)] = n;
    solver->used += n;
    return REMAT_OK;
}

static const rm_point *points(const rm_solver *solver, int u, int v, int *n) {
    *n = solver->count[rm_interval(solver->n, u, v)];
    return &solver->pool[solver->first[rm_interval(solver->n, u, v)]];
}

static const rm_group *child(const rm_solver *solver, int u) { return &solver->below->group[solver->child[u]]; }

static remat_status solve_one(rm_solver *solver, int u) {
    const rm_group *alone = child(solver, u);
    TRY(keep_points(solver, u, u + 1, alone->alone, alone->alone_drops, alone->n_alone));
    rm_point *point = &solver->pool[solver->used - alone->n_alone];
    for (int i = 0; i < alone->n_alone; i++) {
        point[i].move = 0;
        point[i].right = (uint16_t)i;
    }
    return REMAT_OK;
}

static rm_drops drops_of(const rm_solver *solver, int u, int v, int i) {
    return solver->drops[solver->first[rm_interval(solver->n, u, v)] + i];
}

/* What point p of [u,v) drops: a sweep over the left part, and what its parts do. */
static rm_drops sum_drops(const rm_solver *solver, int u, int v, rm_point p) {
    if (p.move < 0) return drops_of(solver, u + 1, v, p.right);
    rm_drops right = drops_of(solver, u + p.move, v, p.right), left = drops_of(solver, u, u + p.move, p.left);
    rm_drops sum = {right.runs + left.runs, right.table_bytes + left.table_bytes};
    for (int i = u; i < u + p.move; i++) {
        sum.runs += child(solver, i)->drops.runs;
        sum.table_bytes += child(solver, i)->drops.table_bytes;
    }
    return sum;
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

/* What of state(begin[u]) and the states in a sweep over child i is alive at most. */
static uint64_t sweep_over(const rm_solver *solver, int u, int i) {
    const rm_footprint *f = solver->footprint;
    const rm_group *over = child(solver, i);
    int64_t begin = solver->begin[u];
    uint64_t most = i == u ? over->first_drop_bytes : 0;
    if (!f->skips) {
        uint64_t rest = i == u ? over->rest_drop_bytes : rm_larger(over->first_drop_bytes, over->rest_drop_bytes);
        return rest ? rm_larger(most, f->foot[begin].state_bytes + rest) : most;
    }
    for (int64_t s = solver->begin[i] + (i == u); s < solver->begin[i + 1]; s++)
        most = rm_larger(most, rm_beside(f, begin, s) + f->foot[s].drop_bytes);
    return most;
}

static bool has(const rm_cuts *cuts, int i) { return cuts->bit[i / 64] >> (i % 64) & 1; }
static void put(rm_cuts *cuts, int i) { cuts->bit[i / 64] |= (uint64_t)1 << (i % 64); }

/* Where an interval may be split. A short one anywhere; a longer one where the two intervals that are shorter by a child
 * were, and next to that. */
static rm_cuts likely_cuts(const rm_solver *solver, int u, int v) {
    rm_cuts likely = {0};
    if (v - u > TRY_ALL) {
        const rm_cuts *a = &solver->cuts[rm_interval(solver->n, u, v - 1)];
        const rm_cuts *b = &solver->cuts[rm_interval(solver->n, u + 1, v)];
        for (int j = u + 1; j < v; j++)
            if (has(a, j - 1) || has(a, j) || has(a, j + 1) || has(b, j - 1) || has(b, j) || has(b, j + 1))
                put(&likely, j);
    } else {
        for (int j = u + 1; j < v; j++) put(&likely, j);
    }
    return likely;
}

static void try_splits(rm_solver *solver, int u, int v, int most, attempt *a) {
    rm_cuts likely = likely_cuts(solver, u, v);
    uint64_t dstate = child(solver, v - 1)->next_dstate_bytes, sweep_bytes = 0;
    rm_sweep sweep = {0};
    for (int j = u + 1; j < v; j++) {
        sweep_bytes = rm_larger(sweep_bytes, sweep_over(solver, u, j - 1));
        sweep.time_ns += child(solver, j - 1)->drop_ns;
        if (!has(&likely, j)) continue;
        sweep.sweep_bytes = sweep_bytes + dstate;
        sweep.beside_bytes = rm_beside(solver->footprint, solver->begin[u], solver->begin[j]);
        int n_right, n_left;
        const rm_point *right = points(solver, j, v, &n_right), *left = points(solver, u, j, &n_left);
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
    rm_drops *drops = (rm_drops *)a.way; /* room enough: a point is larger */
    rm_cuts *cuts = &solver->cuts[rm_interval(solver->n, u, v)];
    *cuts = (rm_cuts){0};
    for (int i = 0; i < a.n; i++) {
        drops[i] = sum_drops(solver, u, v, a.best[i]);
        if (a.best[i].move > 0) put(cuts, u + a.best[i].move);
    }
    return keep_points(solver, u, v, a.best, drops, a.n);
}

static rm_cuts moved_on(rm_cuts cuts) {
    rm_cuts on = {0};
    for (int i = 0; i + 1 < RM_MOST_CHILDREN; i++)
        if (has(&cuts, i)) put(&on, i + 1);
    return on;
}

/* ---- All intervals ------------------------------------------------------------------------------ */

/* [u,v) is the interval before it, one child further on: all children in [u-1,v) are alike. */
static bool same_as_before(const rm_solver *solver, int u, int v) {
    if (u == 0) return false;
    for (int i = u; i < v; i++)
        if (solver->child[i] != solver->child[u - 1]) return false;
    return true;
}

/* What is needed for writing, and the frontier of the whole. */
static remat_status remember(const rm_solver *solver, rm_group *group) {
    int n, intervals = group->n * (group->n + 1);
    const rm_point *whole = points(solver, 0, group->n, &n);
    group->alone = rm_malloc((size_t)n * sizeof *group->alone);
    group->alone_drops = rm_malloc((size_t)n * sizeof *group->alone_drops);
    group->first = rm_malloc((size_t)intervals * sizeof *group->first);
    group->how = rm_malloc((size_t)solver->used * sizeof *group->how);
    if (!group->alone || !group->alone_drops || !group->first || !group->how) return no_memory(solver->n);
    memcpy(group->alone, whole, (size_t)n * sizeof *whole);
    memcpy(group->alone_drops, solver->drops + (whole - solver->pool), (size_t)n * sizeof *group->alone_drops);
    memcpy(group->first, solver->first, (size_t)intervals * sizeof *group->first);
    for (int i = 0; i < solver->used; i++) {
        const rm_point *p = &solver->pool[i];
        group->how[i] = (rm_how){p->move, p->right, p->left};
    }
    group->n_alone = n;
    return REMAT_OK;
}

remat_status rm_solve(rm_solver *solver, rm_group *group) {
    TRY(begin(solver, group));
    memset(solver->first, 0, (size_t)group->n * (size_t)(group->n + 1) * sizeof *solver->first);
    for (int u = 0; u < solver->n; u++) {
        solver->cuts[rm_interval(solver->n, u, u + 1)] = (rm_cuts){0};
        TRY(solve_one(solver, u));
    }
    for (int length = 2; length <= solver->n; length++)
        for (int u = 0; u + length <= solver->n; u++) {
            if (!same_as_before(solver, u, u + length)) {
                TRY(solve_interval(solver, u, u + length));
                continue;
            }
            int32_t here = rm_interval(solver->n, u, u + length),
                    before = rm_interval(solver->n, u - 1, u - 1 + length);
            solver->first[here] = solver->first[before];
            solver->count[here] = solver->count[before];
            solver->cuts[here] = moved_on(solver->cuts[before]);
        }
    return remember(solver, group);
}
