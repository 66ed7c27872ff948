/* intervals.c: rm_solve: solves every interval of one group's children, shortest first, in the three ways of
 * footprint.h. */
#include "memory/groups.h"

#include <string.h>

#include "memory/bytes.h"
#include "memory/host.h"

/* An unfinished frontier may be this many times longer than the finished one before it is thinned. */
#define SLACK 3
#define PAGE_POINTS 1024
#define TRY_ALL 12 /* children; intervals up to this length are split at every position */

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
    for (int64_t i = 0; i < solver->n_pages; i++) {
        rm_free(solver->page[i].cost);
        rm_free(solver->page[i].how);
    }
    rm_free(solver->page);
    rm_free(solver->scratch);
    *solver = (rm_solver){0};
}

/* Allocates the arrays for one group; they are reused for the next group. */
static remat_status make_room(rm_solver *solver, int32_t n) {
    if (!solver->scratch) {
        solver->page_points = solver->whole_points > PAGE_POINTS ? solver->whole_points : PAGE_POINTS;
        size_t points = (size_t)(2 * (SLACK + 2) + 2) * (size_t)solver->whole_points;
        solver->scratch = rm_malloc(points * sizeof *solver->scratch);
        if (!solver->scratch) return no_memory(n);
    }
    if (n <= solver->room) return REMAT_OK;
    free_intervals(solver);
    size_t intervals = (size_t)rm_intervals(n);
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

/* ---- The pool ----------------------------------------------------------------------------------- */

static rm_point_cost *cost_at(const rm_solver *solver, int32_t i) {
    return &solver->page[i / solver->page_points].cost[i % solver->page_points];
}
static rm_how *how_at(const rm_solver *solver, int32_t i) {
    return &solver->page[i / solver->page_points].how[i % solver->page_points];
}

/* Makes room for n points on one page, from `used` on. */
static remat_status make_points(rm_solver *solver, int n) {
    int32_t left = solver->page_points - solver->used % solver->page_points;
    if (left < n) solver->used += left;
    if (solver->used / solver->page_points < solver->n_pages) return REMAT_OK;
    if (!rm_grow(&solver->page, &solver->page_capacity, solver->n_pages + 1, sizeof *solver->page))
        return no_memory(solver->n);
    struct rm_solver_page *page = &solver->page[solver->n_pages++];
    page->cost = rm_malloc((size_t)solver->page_points * sizeof *page->cost);
    page->how = rm_malloc((size_t)solver->page_points * sizeof *page->how);
    return page->cost && page->how ? REMAT_OK : no_memory(solver->n);
}

/* Stores the points of an interval once they are final. */
static remat_status keep_points(rm_solver *solver, int u, int v, const rm_point *point, int n) {
    TRY(make_points(solver, n));
    solver->first[rm_interval(u, v)] = solver->used;
    solver->count[rm_interval(u, v)] = n;
    for (int i = 0; i < n; i++, solver->used++) {
        *cost_at(solver, solver->used) = (rm_point_cost){point[i].peak_bytes, point[i].time_ns};
        *how_at(solver, solver->used) = (rm_how){point[i].move, point[i].right, point[i].left};
    }
    return REMAT_OK;
}

static const rm_point_cost *costs(const rm_solver *solver, int u, int v, int *n) {
    *n = solver->count[rm_interval(u, v)];
    return cost_at(solver, solver->first[rm_interval(u, v)]);
}

static const rm_group *child(const rm_solver *solver, int u) { return &solver->below->group[solver->child[u]]; }

/* Consecutive equal children share their points, and so do longer intervals of them (rm_solve): each point is numbered
 * once. */
static remat_status solve_one(rm_solver *solver, int u) {
    const rm_group *alone = child(solver, u);
    if (u > 0 && solver->child[u] == solver->child[u - 1]) {
        solver->first[rm_interval(u, u + 1)] = solver->first[rm_interval(u - 1, u)];
        solver->count[rm_interval(u, u + 1)] = solver->count[rm_interval(u - 1, u)];
        return REMAT_OK;
    }
    TRY(keep_points(solver, u, u + 1, alone->alone, alone->n_alone));
    for (int i = 0; i < alone->n_alone; i++)
        *how_at(solver, solver->first[rm_interval(u, u + 1)] + i) = (rm_how){.right = (uint16_t)i};
    return REMAT_OK;
}

/* ---- One interval ------------------------------------------------------------------------------- */

/* The frontier so far, and room for its successor and for the points of one more way. */
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

/* The most bytes of state(begin[u]) and of the states in a forward sweep over child i that are alive at once. */
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

/* Candidate positions for splits. A short interval may be split anywhere. A longer one is split only at, or next to,
 * the splits of the two intervals that are one child shorter. */
static rm_cuts likely_cuts(const rm_solver *solver, int u, int v) {
    rm_cuts likely = {0};
    if (v - u > TRY_ALL) {
        const rm_cuts *a = &solver->cuts[rm_interval(u, v - 1)];
        const rm_cuts *b = &solver->cuts[rm_interval(u + 1, v)];
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
    rm_split_cost sweep = {0};
    for (int j = u + 1; j < v; j++) {
        sweep_bytes = rm_larger(sweep_bytes, sweep_over(solver, u, j - 1));
        sweep.time_ns += child(solver, j - 1)->drop_ns;
        if (!has(&likely, j)) continue;
        sweep.sweep_bytes = sweep_bytes + dstate;
        sweep.beside_bytes = rm_beside(solver->footprint, solver->begin[u], solver->begin[j]);
        int n_right, n_left;
        const rm_point_cost *right = costs(solver, j, v, &n_right), *left = costs(solver, u, j, &n_left);
        add_way(a, rm_frontier_split(right, n_right, left, n_left, sweep, j - u, a->way), most);
    }
}

static void try_firsts(rm_solver *solver, int u, int v, int most, attempt *a) {
    const rm_group *first = child(solver, u);
    uint64_t dstate = child(solver, v - 1)->next_dstate_bytes;
    int n_right;
    const rm_point_cost *right = costs(solver, u + 1, v, &n_right);
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
    rm_cuts *cuts = &solver->cuts[rm_interval(u, v)];
    *cuts = (rm_cuts){0};
    for (int i = 0; i < a.n; i++)
        if (a.best[i].move > 0) put(cuts, u + a.best[i].move);
    return keep_points(solver, u, v, a.best, a.n);
}

static rm_cuts moved_on(rm_cuts cuts) {
    rm_cuts on = {0};
    for (int i = 0; i + 1 < RM_MOST_CHILDREN; i++)
        if (has(&cuts, i)) put(&on, i + 1);
    return on;
}

/* ---- All intervals ------------------------------------------------------------------------------ */

/* [u,v) equals the interval [u-1,v-1): all children in [u-1,v) are equal. */
static bool same_as_before(const rm_solver *solver, int u, int v) {
    if (u == 0) return false;
    for (int i = u; i < v; i++)
        if (solver->child[i] != solver->child[u - 1]) return false;
    return true;
}

/* ---- Keeping what writing a plan needs ---------------------------------------------------------- */

static void add_drops(rm_drops *sum, rm_drops more) {
    sum->runs += more.runs;
    sum->table_bytes += more.table_bytes;
}

/* The drops of point i of [u,v): sweeps over left parts and lone children. */
static rm_drops drops_of(const rm_solver *solver, int u, int v, int i) {
    rm_drops sum = {0};
    for (;;) {
        rm_how how = *how_at(solver, solver->first[rm_interval(u, v)] + i);
        if (v == u + 1) break;
        if (how.move < 0) {
            u++;
            i = how.right;
            continue;
        }
        for (int k = u; k < u + how.move; k++) add_drops(&sum, child(solver, k)->drops);
        add_drops(&sum, drops_of(solver, u + how.move, v, how.right));
        v = u + how.move;
        i = how.left;
    }
    add_drops(&sum, child(solver, u)->alone_drops[i]);
    return sum;
}

/* The number of each kept point within its interval. It overwrites the point's cost, which is no longer needed by
 * then. */
enum { FORGOTTEN = 0, WANTED = 1 };
static uint64_t *mark(const rm_solver *solver, int u, int v, int i) {
    return &cost_at(solver, solver->first[rm_interval(u, v)] + i)->peak_bytes;
}

/* Marks as WANTED every point that some point of the whole is made of. Longer intervals come first. */
static void mark_wanted(const rm_solver *solver) {
    int32_t n = solver->n;
    for (int u = 0; u < n; u++)
        for (int v = u + 1; v <= n; v++)
            for (int i = 0; i < solver->count[rm_interval(u, v)]; i++)
                *mark(solver, u, v, i) = v - u == n ? WANTED : FORGOTTEN;
    for (int length = n; length > 1; length--)
        for (int u = 0, v = length; v <= n; u++, v++)
            for (int i = 0; i < solver->count[rm_interval(u, v)]; i++) {
                rm_how how = *how_at(solver, solver->first[rm_interval(u, v)] + i);
                if (*mark(solver, u, v, i) != WANTED) continue;
                *mark(solver, how.move < 0 ? u + 1 : u + how.move, v, how.right) = WANTED;
                if (how.move > 0) *mark(solver, u, u + how.move, how.left) = WANTED;
            }
}

/* Whether an earlier interval has the same place in the pool. */
static bool is_shared(const rm_solver *solver, int u, int v) {
    return u > 0 && solver->first[rm_interval(u, v)] == solver->first[rm_interval(u - 1, v - 1)];
}

/* Numbers the wanted points from 1 on and gives every interval its place. Returns the number of wanted points. */
static int32_t number_wanted(const rm_solver *solver, int32_t *first) {
    int32_t used = 0;
    for (int length = 1; length <= solver->n; length++)
        for (int u = 0, v = length; v <= solver->n; u++, v++) {
            first[rm_interval(u, v)] = is_shared(solver, u, v) ? first[rm_interval(u - 1, v - 1)] : used;
            uint64_t number = 0;
            for (int i = 0; i < solver->count[rm_interval(u, v)] && !is_shared(solver, u, v); i++)
                if (*mark(solver, u, v, i) != FORGOTTEN) *mark(solver, u, v, i) = ++number, used++;
        }
    return used;
}

static uint16_t number_of(const rm_solver *solver, int u, int v, int i) {
    return (uint16_t)(*mark(solver, u, v, i) - 1);
}

static void copy_wanted(const rm_solver *solver, rm_group *group) {
    for (int length = 1; length <= solver->n; length++)
        for (int u = 0, v = length; v <= solver->n; u++, v++)
            for (int i = 0; i < solver->count[rm_interval(u, v)]; i++) {
                if (*mark(solver, u, v, i) == FORGOTTEN) continue;
                rm_how how = *how_at(solver, solver->first[rm_interval(u, v)] + i);
                if (how.move > 0) how.left = number_of(solver, u, u + how.move, how.left);
                if (length > 1) how.right = number_of(solver, how.move < 0 ? u + 1 : u + how.move, v, how.right);
                group->how[group->first[rm_interval(u, v)] + number_of(solver, u, v, i)] = how;
            }
}

/* Keeps the frontier of the whole and what is needed to write its plans. */
static remat_status remember(const rm_solver *solver, rm_group *group) {
    int n;
    const rm_point_cost *whole = costs(solver, 0, group->n, &n);
    group->alone = rm_calloc((size_t)n, sizeof *group->alone);
    group->alone_drops = rm_malloc((size_t)n * sizeof *group->alone_drops);
    group->first = rm_malloc((size_t)rm_intervals(group->n) * sizeof *group->first);
    if (!group->alone || !group->alone_drops || !group->first) return no_memory(solver->n);
    for (int i = 0; i < n; i++) {
        group->alone[i] = (rm_point){.peak_bytes = whole[i].peak_bytes, .time_ns = whole[i].time_ns};
        group->alone_drops[i] = drops_of(solver, 0, group->n, i);
    }
    group->n_alone = n;
    mark_wanted(solver);
    group->how = rm_malloc((size_t)number_wanted(solver, group->first) * sizeof *group->how);
    if (!group->how) return no_memory(solver->n);
    copy_wanted(solver, group);
    return REMAT_OK;
}

remat_status rm_solve(rm_solver *solver, rm_group *group) {
    TRY(begin(solver, group));
    for (int u = 0; u < solver->n; u++) {
        solver->cuts[rm_interval(u, u + 1)] = (rm_cuts){0};
        TRY(solve_one(solver, u));
    }
    for (int length = 2; length <= solver->n; length++)
        for (int u = 0; u + length <= solver->n; u++) {
            if (!same_as_before(solver, u, u + length)) {
                TRY(solve_interval(solver, u, u + length));
                continue;
            }
            int32_t here = rm_interval(u, u + length), before = rm_interval(u - 1, u - 1 + length);
            solver->first[here] = solver->first[before];
            solver->count[here] = solver->count[before];
            solver->cuts[here] = moved_on(solver->cuts[before]);
        }
    return remember(solver, group);
}
