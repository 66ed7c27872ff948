/* footprint.c: see footprint.h. */
#include "memory/footprint.h"

#include "memory/bytes.h"
#include "memory/host.h"
#include "memory/schedule.h"

/* The lists a piece is in: the first, the last, and how many; until -1: none. */
typedef struct {
    int32_t from, until, times;
} span;

/* Bytes of unions and differences of lists, by marking pieces with the number of the question. */
typedef struct {
    const rm_problem *problem;
    int64_t *mark; /* n_pieces */
    int64_t question;
    span *span; /* 3 n_pieces: in states, in gradients, in saved */
    bool exact; /* as in the footprint */
} ledger;

static uint64_t count_new(ledger *l, const rm_lists *lists, int64_t i) {
    uint64_t bytes = 0;
    for (int64_t k = lists->start[i]; k < lists->start[i + 1]; k++) {
        int32_t piece = lists->item[k];
        if (l->mark[piece] == l->question) continue;
        l->mark[piece] = l->question;
        bytes += l->problem->piece[piece].bytes;
    }
    return bytes;
}

/* How many buffers making state(c) begins, where every piece is in neighbouring states only: those that are not in the
 * state before it. Where not, 0. */
static int64_t count_begun(const ledger *l, int64_t c) {
    const rm_lists *lists = &l->problem->state;
    int64_t begun = 0;
    for (int64_t k = lists->start[c]; l->exact && k < lists->start[c + 1]; k++)
        begun += l->problem->piece[lists->item[k]].bytes > 0 && l->span[lists->item[k]].from == c;
    return begun;
}

/* The same for dstate(c), which is made after the one behind it. */
static int64_t count_begun_gradients(const ledger *l, int64_t c) {
    const rm_lists *lists = &l->problem->dstate;
    const span *span = l->span + l->problem->n_pieces;
    int64_t begun = 0;
    for (int64_t k = lists->start[c]; l->exact && k < lists->start[c + 1]; k++)
        begun += l->problem->piece[lists->item[k]].bytes > 0 && span[lists->item[k]].until == c;
    return begun;
}

/* ---- One stage ---------------------------------------------------------------------------------- */

static void measure_options(ledger *l, int64_t s, rm_foot *foot) {
    const rm_problem *p = l->problem;
    const rm_stage *stage = &p->stage[s];
    l->question++;
    count_new(l, &p->state, s + 1);
    uint64_t beside = count_new(l, &p->state, s) + count_new(l, &p->saved, s);
    l->question++;
    uint64_t together = count_new(l, &p->state, s) + count_new(l, &p->saved, s);
    uint64_t gradients = count_new(l, &p->dstate, s) + count_new(l, &p->dstate, s + 1);
    foot->n_options = stage->n_options;
    for (int k = 0; k < stage->n_options; k++) {
        const rm_option *option = &stage->option[k];
        uint64_t own = rm_align_up(option->saved_bytes);
        foot->kept[k] = (rm_kept){
            .held_bytes = beside + own,
            .forward_bytes = beside + own + foot->next_state_bytes + rm_align_up(option->forward.scratch_bytes),
            .backward_bytes = together + own + gradients + rm_align_up(option->backward.scratch_bytes),
            .time_ns = option->forward.time_ns + option->backward.time_ns,
        };
    }
}

static uint64_t lone_bytes(ledger *l, const rm_lists *lists, int64_t i) {
    l->question++;
    return count_new(l, lists, i);
}

static void measure(ledger *l, int64_t s, rm_foot *foot) {
    const rm_problem *p = l->problem;
    foot->state_bytes = lone_bytes(l, &p->state, s);
    foot->next_state_bytes = lone_bytes(l, &p->state, s + 1);
    foot->dstate_bytes = lone_bytes(l, &p->dstate, s);
    foot->next_dstate_bytes = lone_bytes(l, &p->dstate, s + 1);
    l->question++;
    uint64_t states = count_new(l, &p->state, s) + count_new(l, &p->state, s + 1);
    foot->drop_bytes = states + rm_align_up(p->stage[s].drop.scratch_bytes);
    foot->drop_ns = p->stage[s].drop.time_ns;
    int64_t buffers = (p->stage[s].drop.scratch_bytes > 0) + count_begun(l, s + 1);
    foot->table_bytes = rm_table_bytes(2, buffers); /* the run, and the freeing of the state it made */
    measure_options(l, s, foot);
}

/* ---- Who shares what ---------------------------------------------------------------------------- */

static void find_spans(const rm_lists *lists, int64_t count, int64_t n_pieces, span *spans) {
    for (int64_t i = 0; i < n_pieces; i++) spans[i] = (span){.until = -1};
    for (int64_t i = 0; i < count; i++)
        for (int64_t k = lists->start[i]; k < lists->start[i + 1]; k++) {
            span *span = &spans[lists->item[k]];
            if (span->until < 0) span->from = (int32_t)i;
            span->until = (int32_t)i;
            span->times++;
        }
}

/* A piece is in unbroken rows of lists: states; or gradients alone; a saved(s) that lists it is alone in that, and lies
 * beside one of those states. */
static bool neighbours_alone(const rm_problem *problem, const span *state, const span *dstate, const span *saved) {
    for (int64_t i = 0; i < problem->n_pieces; i++) {
        const span *a = &state[i], *d = &dstate[i], *s = &saved[i];
        if (a->until >= 0 && a->times != a->until - a->from + 1) return false;
        if (d->until >= 0 && d->times != d->until - d->from + 1) return false;
        if (d->until >= 0 && (a->until >= 0 || s->until >= 0)) return false;
        if (s->until < 0) continue;
        if (s->times > 1) return false;
        if (a->until >= 0 && (a->from > s->from + 1 || a->until < s->from)) return false;
    }
    return true;
}

/* Fills `exact`, and `until` if two states share a piece. */
static void find_shares(ledger *l, rm_footprint *footprint) {
    const rm_problem *p = l->problem;
    int64_t n = p->n_pieces;
    find_spans(&p->state, p->n_stages + 1, n, l->span);
    find_spans(&p->dstate, p->n_stages + 1, n, l->span + n);
    find_spans(&p->saved, p->n_stages, n, l->span + 2 * n);
    l->exact = footprint->exact = neighbours_alone(p, l->span, l->span + n, l->span + 2 * n);
    bool share = false;
    for (int64_t i = 0; i < n; i++) {
        share |= l->span[i].until > l->span[i].from;
        footprint->until[i] = l->span[i].until;
    }
    if (share) return;
    rm_free(footprint->until);
    footprint->until = NULL;
}

/* ---- All of them -------------------------------------------------------------------------------- */

/* Pieces of saved(s) with bytes, besides those of the states around it. */
static int64_t count_own_saved(ledger *l, int64_t s) {
    l->question++;
    count_new(l, &l->problem->state, s);
    count_new(l, &l->problem->state, s + 1);
    const rm_lists *saved = &l->problem->saved;
    int64_t own = 0;
    for (int64_t k = saved->start[s]; l->exact && k < saved->start[s + 1]; k++)
        own += l->problem->piece[saved->item[k]].bytes > 0 && l->mark[saved->item[k]] != l->question;
    return own;
}

/* Every run makes one object or two and each is freed: 3 steps for a keeping run, 2 for a backward run, and the two
 * objects that the plan begins with. Of the buffers only those are counted that are there for certain; if the footprint is
 * exact, that is all of them. */
static uint64_t least_tables(ledger *l) {
    const rm_problem *p = l->problem;
    int64_t buffers = count_begun(l, 0);
    for (int64_t s = 0; s < p->n_stages; s++) {
        const rm_stage *stage = &p->stage[s];
        int64_t least = INT64_MAX;
        for (int k = 0; k < stage->n_options; k++) {
            const rm_option *option = &stage->option[k];
            int64_t own =
                (option->saved_bytes > 0) + (option->forward.scratch_bytes > 0) + (option->backward.scratch_bytes > 0);
            if (own < least) least = own;
        }
        buffers += least + count_begun(l, s + 1) + count_begun_gradients(l, s) + count_own_saved(l, s);
    }
    return rm_table_bytes(5 * p->n_stages + 2, buffers);
}

remat_status rm_footprint_make(const rm_problem *problem, rm_footprint *footprint) {
    size_t n = (size_t)problem->n_pieces;
    footprint->problem = problem;
    footprint->foot = rm_calloc((size_t)problem->n_stages, sizeof *footprint->foot);
    footprint->until = rm_malloc(n * sizeof *footprint->until);
    ledger l = {.problem = problem, .mark = rm_calloc(n, sizeof *l.mark), .span = rm_malloc(3 * n * sizeof *l.span)};
    bool room = footprint->foot && footprint->until && l.mark && l.span;
    if (room) {
        find_shares(&l, footprint);
        for (int64_t s = 0; s < problem->n_stages; s++) measure(&l, s, &footprint->foot[s]);
        footprint->table_bytes = least_tables(&l);
    }
    rm_free(l.mark);
    rm_free(l.span);
    if (room) return REMAT_OK;
    rm_footprint_free(footprint);
    FAIL(MEMORY, "out of host memory to plan for %lld stages", (long long)problem->n_stages);
}

void rm_footprint_free(rm_footprint *footprint) {
    rm_free(footprint->foot);
    rm_free(footprint->until);
    *footprint = (rm_footprint){0};
}

uint64_t rm_beside(const rm_footprint *footprint, int64_t a, int64_t j) {
    if (!footprint->until || !footprint->exact) return footprint->foot[a].state_bytes;
    const rm_lists *lists = &footprint->problem->state;
    uint64_t bytes = 0;
    for (int64_t k = lists->start[a]; k < lists->start[a + 1]; k++)
        if (footprint->until[lists->item[k]] < j) bytes += footprint->problem->piece[lists->item[k]].bytes;
    return bytes;
}
