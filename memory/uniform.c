/* uniform.c: see uniform.h.
 *
 * Splitting. A node of the tree of splits is an interval of n stages during which k states are held from outside. A
 * leaf may be G(k) stages long, where G(k) follows from the bytes that the limit leaves beside k states. A split puts
 * its right part at k+1 and its left part at k, after one more forward sweep. So if f(k,r) counts the stages that are
 * swept r times below a node at k,
 *
 *     f(k,0) = G(k)        f(k,r) = f(k+1,r) + f(k,r-1)
 *
 * This is Pascal's triangle with G along its edge instead of ones. Stages are cheapest where r is smallest, so a node
 * of n stages is filled in the order of r, and the two terms say how many of them are in its right and in its left
 * part. If the stages of a leaf have several options, the stages that do not fit in the fastest option form further
 * f(k,r), dearer by the cost of the smaller option, and all are filled in the order of their price.
 *
 * Using G(k) for the leaf of a node that is later split counts a few stages too many as cheap. These end up one sweep
 * further back, so the result is near the optimum, but not always optimal: docs/notes/planner.md gives the gap. */
#include "memory/uniform.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "memory/bytes.h"
#include "memory/host.h"

enum { MOST_ROWS = 66, MOST_DEPTH = 4096, WAYS = RM_MAX_OPTIONS };

/* Number of stages of a node, by sweeps and by way; all counts saturate at the number of stages. */
typedef struct {
    int32_t way[WAYS];
} share;

typedef struct {
    double price; /* time per stage */
    int row, way;
} turn;

struct rm_uniform {
    const rm_footprint *footprint;
    int64_t n_stages;
    const rm_foot *foot, *inner, *last; /* of all stages; of an inner stage; of the last stage */
    int n_ways;                         /* options on the lower hull of bytes and time, fastest first */
    int way[WAYS];
    double price[WAYS];          /* of one more stage in a leaf, gained with smaller options */
    uint64_t unit[WAYS];         /* bytes held for each stage of a leaf */
    uint64_t beside;             /* other bytes that a leaf needs */
    int64_t last_extra;          /* what the leaf with the last stage needs beyond other leaves */
    turn turn[MOST_ROWS * WAYS]; /* rows and ways in the order of their price */
    /* For one limit: */
    uint64_t limit;
    int64_t depth; /* the most states held */
    int rows;
    share *inside, *tail; /* f: rows of depth + 2; tail: of nodes that end with the chain */
    int64_t room;         /* capacity of each, in shares */
    struct node *stack;
};

/* An interval still to be solved. `tail`: it ends with the chain. */
typedef struct node {
    int64_t begin, n, held;
    bool tail;
} node;

/* ---- Comparing stages, and their costs ---------------------------------------------------------- */

static bool same_times(const rm_foot *a, const rm_foot *b) {
    if (a->drop_ns != b->drop_ns || a->n_options != b->n_options) return false;
    for (int k = 0; k < a->n_options; k++)
        if (a->kept[k].time_ns != b->kept[k].time_ns) return false;
    return true;
}

static bool alike(const rm_footprint *footprint) {
    int64_t n = footprint->problem->n_stages;
    const rm_foot *foot = footprint->foot;
    if (n < 4 || footprint->skips || !footprint->exact || !same_times(&foot[0], &foot[1])) return false;
    for (int64_t s = 2; s + 1 < n; s++)
        if (memcmp(&foot[s], &foot[1], sizeof *foot)) return false;
    return true;
}

/* Starts with the fastest option and goes on to the one that frees the most bytes for its time, and so on. */
static void find_ways(rm_uniform *u) {
    const rm_foot *inner = u->inner;
    int at = 0;
    for (int k = 1; k < inner->n_options; k++)
        if (inner->kept[k].time_ns < inner->kept[at].time_ns) at = k;
    for (; at >= 0; u->n_ways++) {
        const rm_kept *from = &inner->kept[at];
        u->way[u->n_ways] = at;
        u->unit[u->n_ways] = rm_larger(from->held_bytes, 1);
        double best = INFINITY;
        at = -1;
        for (int k = 0; k < inner->n_options; k++) {
            const rm_kept *to = &inner->kept[k];
            if (to->held_bytes >= from->held_bytes) continue;
            double price = (double)(to->time_ns - from->time_ns) / (double)(from->held_bytes - to->held_bytes);
            if (price >= best) continue;
            best = price;
            at = k;
        }
    }
}

/* X bytes hold X/unit stages. Keeping all of them in way i costs time[i] X/unit[i] more than the fastest way. So one
 * more stage costs the difference in time over the difference in stages, for any X. */
static void find_prices(rm_uniform *u) {
    double fastest = (double)u->inner->kept[u->way[0]].time_ns;
    for (int i = 1; i < u->n_ways; i++) {
        double before = 1 / (double)u->unit[i - 1], here = 1 / (double)u->unit[i];
        double extra_before = ((double)u->inner->kept[u->way[i - 1]].time_ns - fastest) * before;
        double extra_here = ((double)u->inner->kept[u->way[i]].time_ns - fastest) * here;
        u->price[i] = here > before ? (extra_here - extra_before) / (here - before) : 0;
    }
}

static int by_price(const void *a, const void *b) {
    const turn *x = a, *y = b;
    if (x->price != y->price) return x->price < y->price ? -1 : 1;
    return x->row != y->row ? x->row - y->row : x->way - y->way;
}

static void find_turns(rm_uniform *u) {
    int n = 0;
    for (int row = 0; row < MOST_ROWS; row++)
        for (int i = 0; i < u->n_ways; i++)
            u->turn[n++] = (turn){(double)row * (double)u->inner->drop_ns + u->price[i], row, i};
    qsort(u->turn, (size_t)n, sizeof *u->turn, by_price);
}

static void find_needs(rm_uniform *u) {
    const rm_foot *inner = u->inner, *last = u->last;
    u->last_extra = INT64_MIN;
    for (int i = 0; i < u->n_ways; i++) {
        const rm_kept *kept = &inner->kept[u->way[i]];
        uint64_t most = rm_larger(kept->forward_bytes + inner->next_dstate_bytes, kept->backward_bytes);
        u->beside = rm_larger(u->beside, most - kept->held_bytes);
    }
    for (int i = 0; i < u->n_ways && u->way[i] < last->n_options; i++) {
        const rm_kept *kept = &last->kept[u->way[i]];
        int64_t extra =
            (int64_t)rm_larger(kept->forward_bytes, kept->backward_bytes) - (int64_t)(u->unit[i] + u->beside);
        if (extra > u->last_extra) u->last_extra = extra;
    }
    if (u->last_extra == INT64_MIN) u->last_extra = 0;
}

remat_status rm_uniform_make(const rm_footprint *footprint, rm_uniform **out) {
    *out = NULL;
    if (!alike(footprint)) return REMAT_OK;
    rm_uniform *u = rm_calloc(1, sizeof *u);
    REQUIRE(u, MEMORY, "out of host memory to plan");
    u->footprint = footprint;
    u->n_stages = footprint->problem->n_stages;
    u->foot = footprint->foot;
    u->inner = &u->foot[1];
    u->last = &u->foot[u->n_stages - 1];
    find_ways(u);
    find_prices(u);
    find_turns(u);
    find_needs(u);
    *out = u;
    return REMAT_OK;
}

void rm_uniform_free(rm_uniform *uniform) {
    if (!uniform) return;
    rm_free(uniform->inside);
    rm_free(uniform->tail);
    rm_free(uniform->stack);
    rm_free(uniform);
}

int rm_uniform_limits(const rm_uniform *u, uint64_t *limit) {
    double unit = (double)u->unit[0], beside = (double)u->beside;
    double all = unit * (double)u->n_stages + beside + (double)llabs(u->last_extra) + RM_ALIGN;
    double next = (double)u->unit[u->n_ways - 1] + beside;
    int n = 0;
    while (n + 1 < RM_UNIFORM_LIMITS && next < all) {
        limit[n++] = (uint64_t)next;
        double fit = next > unit + beside ? (next - beside) / unit : 1;
        next *= 1 + fmax(0.02, 0.12 / sqrt(fit));
    }
    limit[n++] = (uint64_t)all;
    return n;
}

/* ---- The triangle ------------------------------------------------------------------------------- */

static uint64_t held_bytes(const rm_uniform *u, int64_t held) {
    return held ? u->foot[0].state_bytes + (uint64_t)(held - 1) * u->inner->state_bytes : 0;
}

/* The bytes left for the stages of a leaf. */
static int64_t leaf_bytes(const rm_uniform *u, int64_t held, bool tail) {
    int64_t left = (int64_t)u->limit - (int64_t)held_bytes(u, held) - (int64_t)u->beside;
    return left - (tail ? u->last_extra : 0);
}

/* G(held), by way: how many more stages of a leaf fit once the ways before it are exhausted. */
static share leaf_share(const rm_uniform *u, int64_t held, bool tail) {
    share share = {{0}};
    int64_t bytes = leaf_bytes(u, held, tail), before = 0;
    for (int i = 0; i < u->n_ways && bytes > 0; i++) {
        int64_t fit = rm_fewer((int64_t)((uint64_t)bytes / u->unit[i]), u->n_stages);
        share.way[i] = (int32_t)(fit > before ? fit - before : 0);
        before = fit > before ? fit : before;
    }
    return share;
}

static int64_t total(const rm_uniform *u, const share *share) {
    int64_t sum = 0;
    for (int i = 0; i < u->n_ways; i++) sum += share->way[i];
    return sum;
}

/* The number of states worth holding: at most as many as fit beside a leaf of one stage, and as many as a chain needs
 * whose leaves are swept only once and kept in the fastest way. */
static int64_t find_depth(const rm_uniform *u) {
    int64_t depth = 0, stages = 0;
    for (; depth < MOST_DEPTH && stages < u->n_stages; depth++) {
        share share = leaf_share(u, depth, false);
        if (total(u, &share) == 0) return depth - 1;
        stages += share.way[0];
    }
    return depth;
}

static share *row_of(const rm_uniform *u, share *table, int row) { return table + (int64_t)row * (u->depth + 2); }

static remat_status make_room(rm_uniform *u, int rows) {
    int64_t room = rows * (u->depth + 2);
    int64_t inside = u->room, tail = u->room;
    REQUIRE(rm_grow(&u->inside, &inside, room, sizeof *u->inside) && rm_grow(&u->tail, &tail, room, sizeof *u->tail) &&
                rm_grow(&u->stack, &u->room, room, sizeof *u->stack),
            MEMORY, "out of host memory to plan for %lld stages", (long long)u->n_stages);
    return REMAT_OK;
}

static share sum(const rm_uniform *u, share a, share b) {
    uint32_t most = (uint32_t)u->n_stages; /* < 2^31 */
    for (int i = 0; i < WAYS; i++) {
        uint32_t both = (uint32_t)a.way[i] + (uint32_t)b.way[i];
        a.way[i] = (int32_t)(both < most ? both : most);
    }
    return a;
}

static void fill_row(rm_uniform *u, int row) {
    share *inside = row_of(u, u->inside, row), *tail = row_of(u, u->tail, row);
    inside[u->depth + 1] = tail[u->depth + 1] = (share){{0}};
    for (int64_t k = u->depth; k >= 0; k--) {
        if (row == 0) {
            inside[k] = leaf_share(u, k, false);
            tail[k] = leaf_share(u, k, true);
        } else if (k == u->depth) {
            inside[k] = tail[k] = (share){{0}}; /* nothing more can be held, so this node is never split */
        } else {
            share left = row_of(u, u->inside, row - 1)[k];
            inside[k] = sum(u, inside[k + 1], left);
            tail[k] = sum(u, tail[k + 1], left);
        }
    }
}

/* Adds rows until the whole chain has room, and two more for the stages that were counted too cheap. */
static remat_status fill(rm_uniform *u, uint64_t limit, bool *fits) {
    u->limit = limit;
    u->depth = find_depth(u);
    *fits = false;
    if (u->depth < 0) return REMAT_OK;
    int64_t stages = 0;
    int spare = 2;
    for (u->rows = 0; u->rows < MOST_ROWS && spare > 0; u->rows++) {
        TRY(make_room(u, u->rows + 1));
        fill_row(u, u->rows);
        if (stages >= u->n_stages) spare--;
        stages += total(u, &row_of(u, u->tail, u->rows)[0]);
    }
    *fits = stages >= u->n_stages && (u->depth > 0 || total(u, &u->tail[0]) >= u->n_stages);
    return REMAT_OK;
}

/* ---- The tree ----------------------------------------------------------------------------------- */

/* The time that a leaf of n stages takes beyond the fastest way; INFINITY if it does not fit. */
static double leaf_price(const rm_uniform *u, const share *share, int64_t n) {
    double price = 0;
    for (int i = 0; i < u->n_ways && n > 0; n -= share->way[i], i++)
        price += (double)rm_fewer(n, share->way[i]) * u->price[i];
    return n > 0 ? INFINITY : price;
}

/* The number of the node's stages in the left part. *price: the cost of its sweeps and smaller options. */
static int64_t split(const rm_uniform *u, const node *node, double *price) {
    int64_t open = node->n, left = 0;
    *price = 0;
    for (int t = 0; t < u->rows * u->n_ways && open > 0; t++) {
        const turn *turn = &u->turn[t];
        if (turn->row >= u->rows) continue;
        const share *table = node->tail ? u->tail : u->inside;
        int64_t in_right = row_of(u, (share *)table, turn->row)[node->held + 1].way[turn->way];
        int64_t in_left = turn->row ? row_of(u, u->inside, turn->row - 1)[node->held].way[turn->way] : 0;
        int64_t taken = rm_fewer(open, in_right + in_left);
        left += taken - rm_fewer(taken, in_right);
        open -= taken;
        *price += (double)taken * turn->price;
    }
    left += open;
    if (left < 1) return 1;
    return rm_fewer(left, node->n - 1);
}

/* 0: a leaf; otherwise the length of the left part. */
static int64_t decide(const rm_uniform *u, const node *node) {
    if (node->n == 1 || node->held >= u->depth) return 0;
    const share *leaf = &(node->tail ? u->tail : u->inside)[node->held];
    double whole = leaf_price(u, leaf, node->n), parts;
    if (whole == 0) return 0;
    int64_t left = split(u, node, &parts);
    return whole <= parts ? 0 : left;
}

/* A leaf's options: the first `n_small` stages in way `small`, the others in the next faster one. */
typedef struct {
    int small, fast;
    int64_t n_small;
} mix;

static mix mix_of(const rm_uniform *u, const node *node) {
    int64_t bytes = leaf_bytes(u, node->held, node->tail);
    if (bytes < 0) bytes = 0;
    for (int i = 0; i < u->n_ways; i++) {
        if ((uint64_t)node->n * u->unit[i] > (uint64_t)bytes && i + 1 < u->n_ways) continue;
        if (i == 0) return (mix){u->way[0], u->way[0], 0};
        uint64_t all = (uint64_t)node->n * u->unit[i - 1], gain = u->unit[i - 1] - u->unit[i];
        uint64_t small = (all - (uint64_t)bytes + gain - 1) / gain;
        return (mix){u->way[i], u->way[i - 1], rm_fewer((int64_t)small, node->n)};
    }
    return (mix){0};
}

static int option_in(const rm_uniform *u, mix mix, const node *node, int64_t s) {
    int option = s - node->begin < mix.n_small ? mix.small : mix.fast;
    return option < u->foot[s].n_options ? option : 0;
}

/* Calls solve on every leaf and sweep on every split, in the order of the plan. */
typedef struct {
    remat_status (*leaf)(void *context, const rm_uniform *, const node *);
    remat_status (*sweep)(void *context, const rm_uniform *, const node *, int64_t left);
    void *context;
} visitor;

static remat_status visit(const rm_uniform *u, const visitor *v) {
    int64_t n = 0;
    u->stack[n++] = (node){0, u->n_stages, 0, true};
    while (n > 0) {
        node at = u->stack[--n];
        int64_t left = decide(u, &at);
        if (left == 0) {
            TRY(v->leaf(v->context, u, &at));
            continue;
        }
        TRY(v->sweep(v->context, u, &at, left));
        u->stack[n++] = (node){at.begin, left, at.held, false};
        u->stack[n++] = (node){at.begin + left, at.n - left, at.held + 1, at.tail};
    }
    return REMAT_OK;
}

/* ---- Estimating --------------------------------------------------------------------------------- */

typedef struct {
    uint64_t peak_bytes, time_ns;
    rm_drops drops;
} weight;

static rm_kept repeat(rm_kept one, int64_t n) {
    uint64_t before = (uint64_t)(n - 1) * one.held_bytes;
    return (rm_kept){before + one.held_bytes, before + one.forward_bytes, before + one.backward_bytes,
                     (uint64_t)n * one.time_ns};
}

/* The first and the last stage of a leaf are added one by one, the stages between them in one or two groups. */
static rm_kept keep_leaf(const rm_uniform *u, const node *node) {
    mix mix = mix_of(u, node);
    int64_t first = node->begin, last = node->begin + node->n - 1;
    rm_kept all = u->foot[first].kept[option_in(u, mix, node, first)];
    int64_t small = rm_fewer(mix.n_small, node->n - 1) - 1; /* of the stages between */
    if (small < 0) small = 0;
    if (small > 0) all = rm_kept_then(all, repeat(u->inner->kept[mix.small], small));
    if (node->n - 2 > small) all = rm_kept_then(all, repeat(u->inner->kept[mix.fast], node->n - 2 - small));
    if (last > first) all = rm_kept_then(all, u->foot[last].kept[option_in(u, mix, node, last)]);
    return all;
}

static remat_status weigh_leaf(void *context, const rm_uniform *u, const node *node) {
    weight *w = context;
    rm_kept all = keep_leaf(u, node);
    uint64_t dstate = u->foot[node->begin + node->n - 1].next_dstate_bytes;
    uint64_t most = rm_larger(all.forward_bytes + dstate, all.backward_bytes);
    w->peak_bytes = rm_larger(w->peak_bytes, held_bytes(u, node->held) + most);
    w->time_ns = rm_saturate(w->time_ns, all.time_ns);
    return REMAT_OK;
}

static remat_status weigh_sweep(void *context, const rm_uniform *u, const node *node, int64_t left) {
    weight *w = context;
    const rm_foot *first = &u->foot[node->begin];
    uint64_t most = first->drop_bytes;
    if (left > 1) most = rm_larger(most, first->state_bytes + u->inner->drop_bytes);
    most += u->foot[node->begin + node->n - 1].next_dstate_bytes;
    w->peak_bytes = rm_larger(w->peak_bytes, held_bytes(u, node->held) + most);
    w->time_ns = rm_saturate(w->time_ns, (uint64_t)left * first->drop_ns);
    w->drops.runs += left;
    w->drops.table_bytes += (uint64_t)left * first->table_bytes;
    return REMAT_OK;
}

remat_status rm_uniform_weigh(rm_uniform *u, uint64_t limit, bool *fits, uint64_t *peak_bytes, uint64_t *time_ns,
                              rm_drops *drops) {
    TRY(fill(u, limit, fits));
    if (!*fits) return REMAT_OK;
    weight w = {0};
    TRY(visit(u, &(visitor){weigh_leaf, weigh_sweep, &w}));
    *peak_bytes = w.peak_bytes;
    *time_ns = w.time_ns;
    *drops = w.drops;
    return REMAT_OK;
}

/* ---- Writing ------------------------------------------------------------------------------------ */

typedef struct {
    rm_plan *plan;
    int64_t segments;
} writer;

static remat_status write_leaf(void *context, const rm_uniform *u, const node *node) {
    writer *w = context;
    mix mix = mix_of(u, node);
    int64_t end = node->begin + node->n;
    for (int64_t s = node->begin; s < end; s++) TRY(rm_plan_run_forward(w->plan, s, option_in(u, mix, node, s)));
    for (int64_t s = end - 1; s >= node->begin; s--) TRY(rm_plan_run_backward(w->plan, s));
    w->segments++;
    return REMAT_OK;
}

static remat_status write_sweep(void *context, const rm_uniform *u, const node *node, int64_t left) {
    (void)u;
    return rm_plan_sweep(((writer *)context)->plan, node->begin, node->begin + left);
}

remat_status rm_uniform_write(rm_uniform *u, uint64_t limit, rm_plan *plan, int64_t *segments) {
    bool fits;
    TRY(fill(u, limit, &fits));
    writer w = {plan, 0};
    TRY(visit(u, &(visitor){write_leaf, write_sweep, &w}));
    *segments = w.segments;
    return REMAT_OK;
}
