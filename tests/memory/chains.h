/* chains.h: random problems from a seed, for the tests of memory/. Each kind has a property that has caused an error
 * before: unequal stages, states read far from where they are made or by nobody, states kept by their makers but not by
 * their readers, empty objects. */
#ifndef TEST_CHAINS_H
#define TEST_CHAINS_H

#include <stdlib.h>
#include <string.h>

#include "memory/bytes.h"
#include "memory/host.h"
#include "memory/problem.h"

typedef struct {
    uint64_t state;
} dice;

/* splitmix64 */
static inline uint64_t roll(dice *d) {
    uint64_t x = d->state += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}
static inline int64_t roll_below(dice *d, int64_t n) { return (int64_t)(roll(d) % (uint64_t)n); }

typedef struct {
    int64_t n_stages;
    bool unlike;            /* sizes vary from a tenth to all of the following; otherwise they equal it */
    uint64_t state_bytes;   /* of the state that a stage passes to the next; 0: empty */
    uint64_t saved_bytes;   /* of a saved block */
    uint64_t scratch_bytes; /* of any run */
    int skips;              /* number of states that are also read one to three stages later */
    bool shares;            /* a stage's backward also reads the state that the stage makes */
    bool lean;              /* a second option, with a fifth of the bytes */
    bool loose;             /* backward keeps only a part of what forward reads, and a part of it has no gradient */
} chain;

static inline uint64_t size_from(dice *d, const chain *c, uint64_t bytes) {
    if (c->unlike) bytes = bytes / 10 + roll(d) % (bytes - bytes / 10 + 1);
    return rm_align_up(bytes);
}

static inline rm_work work_from(dice *d, const chain *c, uint64_t time_ns) {
    return (rm_work){c->unlike ? 1 + roll(d) % time_ns : time_ns, size_from(d, c, c->scratch_bytes)};
}

static inline void stage_from(dice *d, const chain *c, rm_stage *stage) {
    stage->drop = work_from(d, c, 900);
    stage->n_options = 1 + c->lean;
    stage->option[0] =
        (rm_stage_option){"all", size_from(d, c, c->saved_bytes), work_from(d, c, 1000), work_from(d, c, 2000)};
    if (c->lean)
        stage->option[1] = (rm_stage_option){"lean", rm_align_up(stage->option[0].saved_bytes / 5),
                                             work_from(d, c, 950), work_from(d, c, 2300)};
}

/* One state of a problem under construction: its maker and its readers. It has one piece or two. */
typedef struct {
    int64_t maker, pieces;
    uint64_t bytes;
    bool own;          /* its maker's backward keeps it */
    int n_readers;
    int64_t reader[4]; /* ascending */
} draft;

static inline bool draft_reads(const draft *state, int64_t s) {
    for (int k = 0; k < state->n_readers; k++)
        if (state->reader[k] == s) return true;
    return false;
}

static inline void add_reader(draft *state, int64_t s) {
    if (draft_reads(state, s)) return;
    int k = state->n_readers++;
    for (; k > 0 && state->reader[k - 1] > s; k--) state->reader[k] = state->reader[k - 1];
    state->reader[k] = s;
}

static inline int draft_by_maker(const void *a, const void *b) {
    const draft *x = a, *y = b;
    if (x->maker != y->maker) return x->maker < y->maker ? -1 : 1;
    return x < y ? -1 : x > y;
}

static inline void put(rm_lists *lists, int64_t list, int64_t item) {
    lists->item[lists->start[list + 1]++] = (int32_t)item;
}

/* Does neither stage s nor a later one make or read the state? */
static inline bool draft_is_past(const draft *state, int64_t s) {
    return state->maker < s && (!state->n_readers || state->reader[state->n_readers - 1] < s);
}

/* States are in the order of their makers. */
static inline void draft_lists(dice *d, const chain *c, const draft *state, int64_t n_states, rm_problem *p) {
    rm_lists *all[] = {&p->reads, &p->keeps, &p->adds};
    for (int64_t s = 0, first = 0; s < p->n_stages; s++) {
        for (int l = 0; l < 3; l++) all[l]->start[s + 1] = all[l]->start[s];
        while (first < n_states && draft_is_past(&state[first], s)) first++;
        for (int64_t i = first; i < n_states && state[i].maker <= s; i++) {
            bool reads = draft_reads(&state[i], s), own = state[i].own && state[i].maker == s;
            if (reads) put(&p->reads, s, i);
            if (own || (reads && !(c->loose && roll_below(d, 3) == 0))) put(&p->keeps, s, i);
            if (reads && !(c->loose && roll_below(d, 4) == 0)) put(&p->adds, s, i);
        }
    }
}

/* The pieces of the states, then those of the existing gradients. */
static inline void draft_pieces(dice *d, const chain *c, const draft *state, rm_problem *p, int32_t *last) {
    int64_t next = 0;
    for (int64_t i = 0; i < p->n_states; i++) {
        p->state[i] = next;
        for (int64_t k = 0; k < state[i].pieces; k++) p->piece[next++].bytes = size_from(d, c, state[i].bytes);
        p->made[state[i].maker + 1]++;
    }
    p->state[p->n_states] = next;
    for (int64_t s = 0; s < p->n_stages; s++) p->made[s + 1] += p->made[s];
    rm_last_adders(p, last);
    for (int64_t i = 0; i < p->n_states; i++) {
        p->dstate[i] = next;
        for (int64_t k = 0; last[i] >= 0 && k < state[i].pieces; k++)
            p->piece[next++].bytes = size_from(d, c, state[i].bytes);
    }
    p->n_pieces = p->dstate[p->n_states] = next;
}

/* Every stage reads the state of the stage before it, and some read an earlier one, too. */
static inline remat_status chain_problem(const chain *c, uint64_t seed, rm_problem *problem) {
    dice d = {seed};
    int64_t n = c->n_stages, n_states = n + c->skips;
    draft *state = rm_calloc((size_t)n_states, sizeof *state);
    int32_t *last = rm_calloc((size_t)n_states, sizeof *last);
    if (!state || !last) abort();
    for (int64_t i = 0; i < n; i++) {
        state[i] = (draft){.maker = i, .pieces = 1, .bytes = i == n - 1 ? 0 : c->state_bytes, .own = c->shares};
        if (i + 1 < n) add_reader(&state[i], i + 1);
    }
    for (int64_t k = n; k < n_states; k++) {
        state[k] = (draft){.maker = roll_below(&d, n), .pieces = 1 + roll_below(&d, 2), .bytes = c->state_bytes};
        for (int64_t r = roll_below(&d, 4); r > 0 && state[k].maker + 1 < n; r--)
            add_reader(&state[k], state[k].maker + 1 + roll_below(&d, n - state[k].maker - 1));
    }
    if (c->skips) qsort(state, (size_t)n_states, sizeof *state, draft_by_maker);
    remat_status status = rm_problem_alloc(
        problem, (rm_extent){n, n_states, 4 * n_states, 4 * n_states, 5 * n_states, 4 * n_states});
    if (!status) {
        for (int64_t s = 0; s < n; s++) stage_from(&d, c, &problem->stage[s]);
        draft_lists(&d, c, state, n_states, problem);
        draft_pieces(&d, c, state, problem, last);
        problem->n_resident = 2;
        problem->resident[0] = (rm_resident){"parameters", 4096};
        problem->resident[1] = (rm_resident){"optimizer state", 8200};
        status = rm_problem_check(problem);
    }
    rm_free(state);
    rm_free(last);
    return status;
}

#endif
