/* footprint.c: see footprint.h. Everything is a difference of running sums over the cuts where states begin and end. */
#include "memory/footprint.h"

#include "memory/bytes.h"
#include "memory/host.h"
#include "memory/schedule.h"

/* A state crosses the cuts from..until and its gradient the cuts from..d_until (d_until < from: it has no gradient). */
typedef struct {
    int32_t from, until, d_until;
} span;

typedef struct {
    const rm_problem *problem;
    span *span; /* n_states */
    /* By cut: bytes of the states that cross it, bytes of those that cross no later cut, bytes of the gradients that
     * cross it. */
    uint64_t *crossing, *ending, *d_crossing;
    uint64_t *unkept; /* by stage: bytes of the states that it alone reads, and in forward only */
    bool exact;
} ledger;

static bool skips(span at) { return at.until > at.from; }

/* ---- The cuts that a state crosses ---------------------------------------------------------------- */

static void find_spans(ledger *l) {
    const rm_problem *p = l->problem;
    for (int64_t s = 0; s < p->n_stages; s++)
        for (int64_t i = p->made[s]; i < p->made[s + 1]; i++)
            l->span[i] = (span){(int32_t)s + 1, (int32_t)s + 1, (int32_t)s};
    for (int64_t s = 0; s < p->n_stages; s++) {
        for (int64_t k = p->reads.start[s]; k < p->reads.start[s + 1]; k++)
            l->span[p->reads.item[k]].until = (int32_t)s;
        for (int64_t k = p->keeps.start[s]; k < p->keeps.start[s + 1]; k++)
            if (p->keeps.item[k] < p->made[s]) l->span[p->keeps.item[k]].until = (int32_t)s;
        for (int64_t k = p->adds.start[s]; k < p->adds.start[s + 1]; k++) l->span[p->adds.item[k]].d_until = (int32_t)s;
    }
}

/* Whether the next stage reads it; also true if nobody reads a state of the last stage. */
static bool is_read_next(const ledger *l, int64_t i) {
    const rm_problem *p = l->problem;
    int64_t next = l->span[i].from;
    return l->span[i].until == next && (next == p->n_stages || rm_in_list(&p->reads, next, i));
}

/* Whether exactly one stage reads it, in forward alone. */
static bool is_unkept(const ledger *l, int64_t i) {
    const rm_problem *p = l->problem;
    span at = l->span[i];
    bool kept = at.until < p->n_stages && (rm_in_list(&p->keeps, at.until, i) || rm_in_list(&p->keeps, at.from - 1, i));
    return !skips(at) && at.until < p->n_stages && !kept;
}

static void add_up(ledger *l) {
    const rm_problem *p = l->problem;
    l->exact = true;
    for (int64_t i = 0; i < p->n_states; i++) {
        span at = l->span[i];
        uint64_t bytes = rm_state_bytes(p, i), d_bytes = rm_dstate_bytes(p, i);
        l->crossing[at.from] += bytes;
        l->crossing[at.until + 1] -= bytes;
        l->ending[at.until] += bytes;
        if (at.d_until >= at.from) l->d_crossing[at.from] += d_bytes, l->d_crossing[at.d_until + 1] -= d_bytes;
        l->exact &= is_read_next(l, i);
        if (is_unkept(l, i)) l->unkept[at.until] += bytes;
    }
    for (int64_t c = 1; c <= p->n_stages; c++) {
        l->crossing[c] += l->crossing[c - 1];
        l->d_crossing[c] += l->d_crossing[c - 1];
    }
}

/* ---- Bytes that cross one cut but not another ----------------------------------------------------- */

/* Counts states by `until`, for states in the order of their makers: a persistent tree over `until`, in which each new
 * version shares all nodes but one path with the version before it. */
typedef struct {
    int32_t left, right;
    uint64_t bytes;
} node;

struct rm_skips {
    int64_t n, n_cuts;
    int32_t *from;          /* of each skipping state, ascending */
    int32_t *version;       /* n+1: the tree of the first i skipping states */
    uint64_t *short_ending; /* by cut: bytes of the states that skip no stage and end at this cut or earlier */
    node *node;
    int64_t used;
};

static int32_t insert(rm_skips *t, int32_t old, int64_t low, int64_t high, int64_t at, uint64_t bytes) {
    int32_t new = (int32_t)t->used++;
    t->node[new] = t->node[old];
    t->node[new].bytes += bytes;
    if (high - low == 1) return new;
    int64_t middle = (low + high) / 2;
    int32_t child = at < middle ? insert(t, t->node[old].left, low, middle, at, bytes)
                                : insert(t, t->node[old].right, middle, high, at, bytes);
    *(at < middle ? &t->node[new].left : &t->node[new].right) = child;
    return new;
}

/* Bytes of the version's states with until < at. */
static uint64_t bytes_before(const rm_skips *t, int32_t version, int64_t at) {
    int64_t low = 0, high = t->n_cuts;
    uint64_t bytes = 0;
    while (version && high - low > 1) {
        int64_t middle = (low + high) / 2;
        const node *n = &t->node[version];
        if (at >= middle) bytes += t->node[n->left].bytes;
        version = at >= middle ? n->right : n->left;
        *(at >= middle ? &low : &high) = middle;
    }
    return at > low ? bytes + t->node[version].bytes : bytes;
}

/* Number of skipping states that begin at cut c or earlier. */
static int64_t begun(const rm_skips *t, int64_t c) {
    int64_t low = 0, high = t->n;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        *(t->from[middle] <= c ? &low : &high) = t->from[middle] <= c ? middle + 1 : middle;
    }
    return low;
}

static void free_skips(rm_skips *t) {
    if (!t) return;
    rm_free(t->from);
    rm_free(t->version);
    rm_free(t->short_ending);
    rm_free(t->node);
    rm_free(t);
}

static int depth_of(int64_t n) {
    int depth = 2;
    while (n > 1) n = (n + 1) / 2, depth++;
    return depth;
}

static bool make_skips(const ledger *l, rm_skips **out) {
    const rm_problem *p = l->problem;
    int64_t n = 0, cuts = p->n_stages + 2;
    for (int64_t i = 0; i < p->n_states; i++) n += skips(l->span[i]);
    if (n == 0) return true;
    rm_skips *t = *out = rm_calloc(1, sizeof *t);
    if (!t) return false;
    t->n_cuts = cuts;
    t->from = rm_malloc((size_t)n * sizeof *t->from);
    t->version = rm_calloc((size_t)n + 1, sizeof *t->version);
    t->short_ending = rm_calloc((size_t)cuts, sizeof *t->short_ending);
    t->node = rm_calloc((size_t)(n * depth_of(cuts) + 1), sizeof *t->node);
    if (!t->from || !t->version || !t->short_ending || !t->node) return false;
    t->used = 1; /* node 0 is the empty tree */
    for (int64_t i = 0; i < p->n_states; i++) {
        span at = l->span[i];
        uint64_t bytes = rm_state_bytes(p, i);
        if (!skips(at)) {
            t->short_ending[at.until] += bytes;
            continue;
        }
        t->from[t->n] = at.from;
        t->version[t->n + 1] = insert(t, t->version[t->n], 0, cuts, at.until, bytes);
        t->n++;
    }
    return true;
}

/* Of the states that cross a, the short ones end there. Of the skipping ones, those count that begin at a or earlier
 * and end in [a,j). */
uint64_t rm_beside(const rm_footprint *footprint, int64_t a, int64_t j) {
    const rm_skips *t = footprint->skips;
    if (!t) return footprint->foot[a].state_bytes;
    int32_t version = t->version[begun(t, a)];
    return t->short_ending[a] + bytes_before(t, version, j) - bytes_before(t, version, a);
}

/* ---- One stage ---------------------------------------------------------------------------------- */

static void measure_options(const ledger *l, int64_t s, rm_foot *foot) {
    const rm_problem *p = l->problem;
    const rm_stage *stage = &p->stage[s];
    uint64_t own_states = 0, own_gradients = 0;
    for (int64_t i = p->made[s]; i < p->made[s + 1]; i++) {
        if (rm_in_list(&p->keeps, s, i)) own_states += rm_state_bytes(p, i);
        if (l->span[i].d_until >= l->span[i].from) own_gradients += rm_dstate_bytes(p, i);
    }
    foot->n_options = stage->n_options;
    for (int k = 0; k < stage->n_options; k++) {
        const rm_stage_option *option = &stage->option[k];
        uint64_t own = rm_align_up(option->saved_bytes);
        foot->kept[k] = (rm_kept){
            .held_bytes = l->ending[s] - l->unkept[s] + own,
            .forward_bytes = l->ending[s] + own + foot->next_state_bytes + rm_align_up(option->forward.scratch_bytes),
            .backward_bytes = foot->state_bytes - l->unkept[s] + own_states + own + foot->dstate_bytes + own_gradients +
                              rm_align_up(option->backward.scratch_bytes),
            .time_ns = option->forward.time_ns + option->backward.time_ns,
        };
    }
}

/* Number of non-empty pieces in the states that stage s makes. */
static int64_t made_pieces(const rm_problem *p, int64_t s) {
    int64_t n = 0;
    for (int64_t k = p->state[p->made[s]]; k < p->state[p->made[s + 1]]; k++) n += p->piece[k].bytes > 0;
    return n;
}

/* A run that drops and, since every run remakes its states, the FREEs of these states. */
static uint64_t drop_tables(const ledger *l, int64_t s) {
    const rm_problem *p = l->problem;
    int64_t scratch = p->stage[s].drop.scratch_bytes > 0;
    if (!l->exact) return rm_table_bytes(1, scratch);
    return rm_table_bytes(1 + p->made[s + 1] - p->made[s], scratch + made_pieces(p, s));
}

static void measure(const ledger *l, int64_t s, rm_foot *foot) {
    const rm_stage *stage = &l->problem->stage[s];
    *foot = (rm_foot){.state_bytes = l->crossing[s],
                      .next_state_bytes = l->crossing[s + 1],
                      .dstate_bytes = l->d_crossing[s],
                      .next_dstate_bytes = l->d_crossing[s + 1],
                      .drop_ns = stage->drop.time_ns,
                      .table_bytes = drop_tables(l, s)};
    foot->drop_bytes = l->ending[s] + l->crossing[s + 1] + rm_align_up(stage->drop.scratch_bytes);
    measure_options(l, s, foot);
}

/* ---- All stages --------------------------------------------------------------------------------- */

/* Each stage runs forward and backward, and each object is made and freed, at least once. */
static uint64_t least_tables(const ledger *l) {
    const rm_problem *p = l->problem;
    int64_t steps = 3 * p->n_stages + p->n_states, buffers = 0;
    for (int64_t i = 0; i < p->n_states; i++) steps += l->span[i].d_until >= l->span[i].from;
    for (int64_t i = 0; i < p->n_pieces; i++) buffers += p->piece[i].bytes > 0;
    for (int64_t s = 0; s < p->n_stages; s++) {
        const rm_stage *stage = &p->stage[s];
        int64_t least = INT64_MAX;
        for (int k = 0; k < stage->n_options; k++) {
            const rm_stage_option *option = &stage->option[k];
            int64_t own =
                (option->saved_bytes > 0) + (option->forward.scratch_bytes > 0) + (option->backward.scratch_bytes > 0);
            if (own < least) least = own;
        }
        buffers += least;
    }
    return rm_table_bytes(steps, buffers);
}

static bool measure_all(ledger *l, rm_footprint *footprint) {
    find_spans(l);
    add_up(l);
    footprint->exact = l->exact;
    if (!make_skips(l, &footprint->skips)) return false;
    for (int64_t s = 0; s < l->problem->n_stages; s++) measure(l, s, &footprint->foot[s]);
    footprint->table_bytes = least_tables(l);
    return true;
}

remat_status rm_footprint_make(const rm_problem *problem, rm_footprint *footprint) {
    size_t cuts = (size_t)problem->n_stages + 2;
    footprint->problem = problem;
    footprint->foot = rm_calloc((size_t)problem->n_stages, sizeof *footprint->foot);
    ledger l = {.problem = problem,
                .span = rm_malloc((size_t)problem->n_states * sizeof *l.span),
                .crossing = rm_calloc(4 * cuts, sizeof *l.crossing)};
    bool room = footprint->foot && l.span && l.crossing;
    if (room) {
        l.ending = l.crossing + cuts;
        l.d_crossing = l.ending + cuts;
        l.unkept = l.d_crossing + cuts;
        room = measure_all(&l, footprint);
    }
    rm_free(l.span);
    rm_free(l.crossing);
    if (room) return REMAT_OK;
    rm_footprint_free(footprint);
    FAIL(MEMORY, "out of host memory to plan for %lld stages", (long long)problem->n_stages);
}

void rm_footprint_free(rm_footprint *footprint) {
    rm_free(footprint->foot);
    free_skips(footprint->skips);
    *footprint = (rm_footprint){0};
}
