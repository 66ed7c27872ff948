/* pack_search.c: an exact search for a placement within a given capacity. It is a depth-first search over the question
 * "what lies on the floor of this section: this item, that one, or nothing?", asked where there are the fewest answers.
 * Main entry: rm_pack_fit.
 *
 * No solution is lost: let every item of a solution fall as low as it can. The lowest item of a section in a niche
 * (pack_state.h) then either lies on the niche's ground, entirely inside it, or on something higher. There is one
 * branch for each case.
 *
 * What makes it fast, most effective first:
 *   - it looks at all niches, not only at the lowest: a section with one answer or none is found early;
 *   - rm_pack_state_infer ends most wrong branches within a few steps;
 *   - it remembers failed states: many orders of placing lead to the same state;
 *   - parts of time that no open item links fail independently, without retrying placements elsewhere (backjumping over
 *     steps that cannot be to blame: Prosser, "Hybrid algorithms for the constraint satisfaction problem", 1993);
 *   - it restarts with another ordering of the choices when it gets lost (Gomes, Selman, Kautz, "Boosting
 *     combinatorial search through randomization", 1998). Failed states stay remembered.
 */
#include <stdlib.h>
#include <string.h>

#include "memory/host.h"
#include "memory/pack_state.h"

#define LOOK_EVERY 2000000 /* units of work between calls of limit->stop */

typedef struct {
    int64_t trail_before;      /* before inference */
    int64_t trail_after;       /* before any answer */
    int64_t first, next, last; /* the answers: range of items in `choice` */
    int32_t placed;            /* the item being tried; -1: none */
    bool may_stay_empty;       /* "nothing" is still to be tried as the last answer */
    rm_pack_spot spot;
} frame;

typedef struct {
    rm_pack_state state;
    frame *frame;
    int64_t n_frames, frame_capacity;
    int32_t *choice;
    int64_t n_choices, choice_capacity;
    uint64_t *failed; /* names of failed parts, indexed by their low bits */
    uint64_t failed_mask;
    int64_t nodes;
    rm_pack_limit *limit;
    uint64_t next_look; /* work count at the next call of limit->stop */
    bool stopped;
} search;

/* ---- Frames ------------------------------------------------------------------------------------- */

/* Best first, by insertion sort, since there are few. */
static void list_choices(search *s, frame *f) {
    const rm_pack_box *box = s->state.box;
    f->first = f->next = s->n_choices;
    for (int32_t o = 0; o < s->state.n_open; o++) {
        int32_t i = s->state.open[o];
        if (!rm_pack_state_choice(&s->state, &f->spot, i)) continue;
        int64_t to = s->n_choices++;
        for (; to > f->first && box[s->choice[to - 1]].rank < box[i].rank; to--) s->choice[to] = s->choice[to - 1];
        s->choice[to] = i;
    }
    f->last = s->n_choices;
}

static void take_back(search *s, frame *f) {
    if (f->placed >= 0) rm_pack_state_unplace(&s->state, f->placed);
    f->placed = -1;
    rm_pack_state_undo(&s->state, f->trail_after);
}

/* Tries the next answer to the frame's question. Returns false if none is left. */
static bool answer(search *s, frame *f) {
    take_back(s, f);
    if (f->next < f->last) {
        f->placed = s->choice[f->next++];
        rm_pack_state_place(&s->state, f->placed, f->spot.height);
        return true;
    }
    if (!f->may_stay_empty) return false;
    f->may_stay_empty = false;
    rm_pack_state_raise(&s->state, f->spot.section, f->spot.height + f->spot.raise);
    return true;
}

static void drop_frame(search *s) {
    frame *f = &s->frame[s->n_frames - 1];
    take_back(s, f);
    rm_pack_state_undo(&s->state, f->trail_before);
    s->n_choices = f->first;
    s->n_frames--;
}

/* A part has failed regardless of the rest: remembers it, and drops the frames whose answers do not affect it. */
static void fail_part(search *s, const rm_pack_spot *spot) {
    s->failed[spot->name & s->failed_mask] = spot->name;
    for (; s->n_frames > 0; drop_frame(s)) {
        const rm_pack_spot *top = &s->frame[s->n_frames - 1].spot;
        if (top->part_begin < spot->part_end && spot->part_begin < top->part_end) return;
    }
}

/* ---- The search --------------------------------------------------------------------------------- */

static bool over(search *s) {
    if (s->stopped || s->state.no_memory) return true;
    if (s->state.work >= s->limit->work) s->stopped = true;
    if (s->state.work < s->next_look || !s->limit->stop) return s->stopped;
    s->next_look = s->state.work + LOOK_EVERY;
    return s->stopped = s->stopped || s->limit->stop(s->limit->context);
}

/* Pushes a frame for the current state. Inference alone may fail it at once. */
static void enter(search *s) {
    s->nodes++;
    frame f = {.trail_before = s->state.n_trail, .placed = -1};
    if (!rm_pack_state_infer(&s->state)) {
        rm_pack_state_undo(&s->state, f.trail_before);
        return;
    }
    f.trail_after = s->state.n_trail;
    f.spot = rm_pack_state_spot(&s->state);
    f.may_stay_empty = f.spot.raise > 0;
    if (s->failed[f.spot.name & s->failed_mask] == f.spot.name) {
        rm_pack_state_undo(&s->state, f.trail_before);
        fail_part(s, &f.spot);
        return;
    }
    if (!rm_grow(&s->frame, &s->frame_capacity, s->n_frames + 1, sizeof *s->frame) ||
        !rm_grow(&s->choice, &s->choice_capacity, s->n_choices + s->state.n_open, sizeof *s->choice)) {
        s->state.no_memory = true;
        return;
    }
    list_choices(s, &f);
    s->frame[s->n_frames++] = f;
}

static rm_pack_outcome explore(search *s, int64_t most_nodes) {
    rm_pack_state_clear(&s->state);
    s->n_frames = s->n_choices = s->nodes = 0;
    for (;;) {
        if (s->state.n_open == 0) return RM_PACK_FITS;
        if (over(s) || s->nodes >= most_nodes) return s->state.no_memory ? RM_PACK_NO_MEMORY : RM_PACK_STOPPED;
        enter(s);
        while (s->n_frames > 0 && !answer(s, &s->frame[s->n_frames - 1])) {
            rm_pack_spot spot = s->frame[s->n_frames - 1].spot;
            drop_frame(s);
            fail_part(s, &spot);
        }
        if (s->n_frames == 0) return s->state.no_memory ? RM_PACK_NO_MEMORY : RM_PACK_IMPOSSIBLE;
    }
}

/* ---- Orderings ---------------------------------------------------------------------------------- */

typedef enum { WIDE, LARGE, TALL, LONG_LIVED, N_TASTES } taste;

static double rank_in(taste taste, const rm_pack_box *box, const rm_pack_item *item) {
    double life = (double)(item->last - item->first) + 1;
    return taste == WIDE ? box->end - box->begin : taste == LARGE ? box->size * life : taste == TALL ? box->size : life;
}

#define FIRST_NODES 2000 /* nodes before the first restart, ... */
#define GROWTH 1.06      /* ... multiplied by this factor after each round of orderings */
#define NOISE 0.2

static void rank_all(search *s, const rm_pack_item *item, int64_t round, uint64_t *seed) {
    for (int32_t i = 0; i < s->state.n; i++) {
        double noise = NOISE * (double)(rm_pack_random(seed) % 4096) / 4096;
        s->state.box[i].rank = rank_in((taste)(round % N_TASTES), &s->state.box[i], &item[i]);
        if (round >= N_TASTES) s->state.box[i].rank *= 1 - noise;
    }
}

/* ---- The whole search --------------------------------------------------------------------------- */

static bool create(search *s, const rm_pack_item *item, const uint64_t *above, int32_t n, uint64_t capacity,
                   rm_pack_limit *limit) {
    *s = (search){.limit = limit};
    uint64_t names = 1 << 12; /* one for every ten microseconds or so, at most 16 MiB */
    while (names < 1 << 21 && names < limit->work / 10000) names *= 2;
    s->failed_mask = names - 1;
    s->failed = rm_calloc(names, sizeof *s->failed);
    return s->failed && rm_pack_state_create(&s->state, item, above, n, capacity);
}

static void destroy(search *s) {
    rm_pack_state_free(&s->state);
    rm_free(s->frame);
    rm_free(s->choice);
    rm_free(s->failed);
}

/* The work of placing one item after another without a wrong choice. */
static uint64_t work_of_one_way(const rm_pack_state *state) {
    uint64_t widths = 0;
    for (int32_t i = 0; i < state->n; i++) widths += 20 + (uint64_t)(state->box[i].end - state->box[i].begin) / 2;
    return widths / 2 * (uint64_t)state->n;
}

/* Fits a group of items that share no step with any other item. */
static rm_pack_outcome fit_part(const rm_pack_item *item, const uint64_t *above, int32_t n, uint64_t capacity,
                                rm_pack_limit *limit, uint64_t *offset) {
    search s;
    rm_pack_outcome outcome = RM_PACK_NO_MEMORY;
    if (create(&s, item, above, n, capacity, limit)) {
        outcome = RM_PACK_STOPPED;
        if (work_of_one_way(&s.state) > limit->work) s.stopped = true;
        uint64_t seed = 1;
        double nodes = FIRST_NODES;
        for (int64_t round = 0; !s.stopped && outcome == RM_PACK_STOPPED; round++) {
            rank_all(&s, item, round, &seed);
            outcome = explore(&s, (int64_t)nodes);
            if (round % N_TASTES == N_TASTES - 1) nodes *= GROWTH;
        }
        for (int32_t i = 0; i < n; i++) offset[i] = (uint64_t)s.state.box[i].height * s.state.unit;
        if (outcome == RM_PACK_IMPOSSIBLE && !s.state.exact) outcome = RM_PACK_STOPPED;
    }
    rm_pack_spend(limit, s.state.work);
    destroy(&s);
    return outcome;
}

rm_pack_outcome rm_pack_fit(const rm_pack_item *item, const uint64_t *above, int64_t n, uint64_t capacity,
                            rm_pack_limit *limit, uint64_t *offset) {
    rm_pack_outcome outcome = RM_PACK_FITS;
    for (int64_t i = 0, end; i < n && outcome == RM_PACK_FITS; i = end) {
        int64_t last = item[i].last;
        for (end = i + 1; end < n && item[end].first <= last; end++)
            if (item[end].last > last) last = item[end].last;
        uint64_t floor_bytes = rm_pack_floor(item + i, end - i);
        for (int64_t k = i; k < end && above; k++)
            if (above[k] + item[k].bytes > capacity) return RM_PACK_IMPOSSIBLE;
        if (floor_bytes == UINT64_MAX)
            outcome = RM_PACK_NO_MEMORY;
        else if (floor_bytes > capacity)
            outcome = RM_PACK_IMPOSSIBLE;
        else if (end - i > RM_PACK_STATE_MOST)
            outcome = RM_PACK_STOPPED;
        else
            outcome = fit_part(item + i, above ? above + i : NULL, (int32_t)(end - i), capacity, limit, offset + i);
    }
    return outcome;
}
