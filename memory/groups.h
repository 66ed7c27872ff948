/* groups.h: internal to nest.c. One level of a chain is a row of groups of items on the level below; the intervals of a
 * group are solved together. groups.c makes levels, intervals.c solves them. Equal groups share one rm_group. */
#ifndef RM_GROUPS_H
#define RM_GROUPS_H

#include "memory/frontier.h"

/* The stages that a point drops: their forward runs, and what these add to the tables (rm_foot). */
typedef struct {
    int64_t runs;
    uint64_t table_bytes;
} rm_drops;

/* What remains of a point once its numbers are no longer needed: enough to write its plan. */
typedef struct {
    int16_t move; /* a lone child: 0; kept first in way k: -1-k; split before child j: j */
    uint16_t right, left;
} rm_how;

typedef struct {
    int64_t begin, length; /* the position of one such group, in stages */
    int32_t n;             /* number of children; 0: a stage */
    int64_t child_at;      /* index of the first child in the `member` of the level below */
    uint64_t drop_ns;
    rm_drops drops;                             /* of one forward sweep over it */
    /* the most bytes alive in such a sweep: at its first stage; at the others (0: none) */
    uint64_t first_drop_bytes, rest_drop_bytes;
    uint64_t next_dstate_bytes;
    int n_kept; /* number of ways to keep all of it */
    rm_kept *kept;
    uint8_t *mix; /* n_kept rows of n: the way in which each child is kept */
    int n_alone;
    rm_point *alone;       /* the frontier of the group solved alone. Of a stage: `right` is the option */
    rm_drops *alone_drops; /* of each point */
    int32_t *first;        /* by interval of its children: index in `how` of those points of its frontier ... */
    rm_how *how;           /* ... that some point of `alone` is made of */
} rm_group;

typedef struct {
    int64_t count;
    int32_t *member; /* the numbers of `count` consecutive groups */
    rm_group *group;
    int64_t n_groups;
} rm_level;

/* The only failure is MEMORY. */
remat_status rm_level_of_stages(const rm_footprint *footprint, rm_level *level);
remat_status rm_level_of_groups(const rm_level *below, int64_t size, bool all_differ, rm_level *level);
void rm_level_free(rm_level *level);

static inline int32_t rm_child(const rm_level *below, const rm_group *group, int i) {
    return below->member[group->child_at + i];
}

/* Fills `kept` and `mix`: from all children in their fastest way to all in their smallest, converting first the
 * children that save most bytes for their time. */
remat_status rm_group_mixes(const rm_level *below, rm_group *group);

/* The children u..v-1 of n are one of rm_intervals(n) intervals. */
static inline int32_t rm_interval(int u, int v) { return v * (v - 1) / 2 + u; }
static inline int32_t rm_intervals(int32_t n) { return n * (n + 1) / 2; }

static inline rm_how rm_group_how(const rm_group *group, int u, int v, int i) {
    return group->how[group->first[rm_interval(u, v)] + i];
}

/* A set of children of one group. */
#define RM_MOST_CHILDREN 256 /* children of the root of a short chain */
typedef struct {
    uint64_t bit[RM_MOST_CHILDREN / 64];
} rm_cuts;

/* Every interval of one group's children, while they are being solved. Starts zeroed except for the first line. */
typedef struct {
    const rm_footprint *footprint;
    const rm_level *below;
    int points, whole_points; /* the most points in any interval's frontier, and in that of all children; < 2^16 */
    int32_t n, room;
    int32_t *child; /* length n */
    int64_t *begin; /* length n + 1: positions of the children in the group that was solved */
    int32_t *first; /* by interval: its first point in the pool ... */
    int32_t *count; /* ... their number ... */
    rm_cuts *cuts;  /* ... and the positions at which they split it */
    /* The pool: pages of page_points points, which never move. The points of an interval share a page. */
    struct rm_solver_page {
        rm_point_cost *cost;
        rm_how *how;
    } *page;
    int64_t n_pages, page_capacity;
    int32_t page_points, used;
    rm_point *scratch;
} rm_solver;

/* Fills `alone`, `first` and `how`. */
remat_status rm_solve(rm_solver *solver, rm_group *group);
void rm_solver_free(rm_solver *solver);

#endif
