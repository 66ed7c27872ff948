/* transfers.c: one pass over a plan that follows, buffer by buffer, the last transfer that touches it. See transfers.h. */
#include "memory/transfers.h"

#include "memory/bytes.h"
#include "memory/host.h"

/* The last transfers of a buffer, by number. */
typedef struct {
    int32_t from; /* copies from it: it may be read, but not written, and must not end */
    int32_t to;   /* fetches it: it may not even be read */
} touched;

typedef struct {
    const rm_problem *problem;
    touched *piece, *block; /* by piece, by stage */
    int32_t *uses;          /* by piece: alive objects it belongs to */
    int8_t *option;         /* by stage: that it was kept in */
    rm_transfers *out;
} tracker;

static const rm_lists *lists_of(const tracker *t, uint8_t object) {
    return object == RM_STATE ? &t->problem->state : object == RM_DSTATE ? &t->problem->dstate : &t->problem->saved;
}

static int32_t later(int32_t a, int32_t b) { return a > b ? a : b; }

/* The transfer that must be done before buffers of an object are read, or written. */
static int32_t last_of(const tracker *t, uint8_t object, int64_t i, bool to_write) {
    const rm_lists *lists = lists_of(t, object);
    touched all = object == RM_SAVED ? t->block[i] : (touched){0};
    for (int64_t k = lists->start[i]; k < lists->start[i + 1]; k++) {
        all.from = later(all.from, t->piece[lists->item[k]].from);
        all.to = later(all.to, t->piece[lists->item[k]].to);
    }
    return to_write ? later(all.from, all.to) : all.to;
}

static void make(tracker *t, uint8_t object, int64_t i) {
    const rm_lists *lists = lists_of(t, object);
    for (int64_t k = lists->start[i]; k < lists->start[i + 1]; k++) t->uses[lists->item[k]]++;
}

static int32_t run(tracker *t, rm_step step) {
    int64_t s = step.index;
    int32_t wait = last_of(t, RM_STATE, s, false);
    if (step.verb == RM_RUN_BACKWARD) {
        wait = later(wait, later(last_of(t, RM_SAVED, s, false), last_of(t, RM_DSTATE, s + 1, false)));
        wait = later(wait, last_of(t, RM_DSTATE, s, true));
        make(t, RM_DSTATE, s);
        return wait;
    }
    wait = later(wait, last_of(t, RM_STATE, s + 1, true));
    make(t, RM_STATE, s + 1);
    if (step.option == RM_DROP) return wait;
    wait = later(wait, last_of(t, RM_SAVED, s, true));
    make(t, RM_SAVED, s);
    t->option[s] = step.option;
    return wait;
}

/* Only what ends waits: a piece that lives on in another object does not. */
static int32_t end(tracker *t, rm_step step) {
    const rm_lists *lists = lists_of(t, step.object);
    int32_t wait = step.object == RM_SAVED ? later(t->block[step.index].from, t->block[step.index].to) : 0;
    for (int64_t k = lists->start[step.index]; k < lists->start[step.index + 1]; k++) {
        int32_t id = lists->item[k];
        if (--t->uses[id] == 0) wait = later(wait, later(t->piece[id].from, t->piece[id].to));
    }
    return wait;
}

static uint64_t bytes_of(const tracker *t, rm_step step) {
    const rm_lists *lists = lists_of(t, step.object);
    uint64_t bytes = 0;
    for (int64_t k = lists->start[step.index]; k < lists->start[step.index + 1]; k++)
        bytes += t->problem->piece[lists->item[k]].bytes;
    if (step.object == RM_SAVED)
        bytes += rm_align_up(t->problem->stage[step.index].option[t->option[step.index]].saved_bytes);
    return bytes;
}

/* Nobody waits for a copy of nothing. Each copy's room is rounded up, so that the next one begins aligned. */
static void save(tracker *t, rm_step step) {
    const rm_lists *lists = lists_of(t, step.object);
    uint64_t bytes = bytes_of(t, step);
    int32_t number = (int32_t)++t->out->count;
    (step.object == RM_STATE ? t->out->state_at : t->out->saved_at)[step.index] = t->out->room_bytes;
    t->out->room_bytes += (bytes + RM_TRANSFER_ALIGN - 1) / RM_TRANSFER_ALIGN * RM_TRANSFER_ALIGN;
    for (int64_t k = lists->start[step.index]; bytes && k < lists->start[step.index + 1]; k++)
        t->piece[lists->item[k]].from = number;
    if (bytes && step.object == RM_SAVED) t->block[step.index].from = number;
}

static void load(tracker *t, rm_step step) {
    const rm_lists *lists = lists_of(t, step.object);
    int32_t number = (int32_t)++t->out->count;
    for (int64_t k = lists->start[step.index]; k < lists->start[step.index + 1]; k++)
        if (t->uses[lists->item[k]]++ == 0) t->piece[lists->item[k]].to = number;
    if (step.object == RM_SAVED) t->block[step.index].to = number;
}

static void follow(tracker *t, const rm_plan *plan) {
    make(t, RM_STATE, 0);
    make(t, RM_DSTATE, t->problem->n_stages);
    for (int64_t i = 0; i < plan->n_steps; i++) {
        rm_step step = plan->step[i];
        if (step.verb == RM_SAVE)
            save(t, step);
        else if (step.verb == RM_LOAD)
            load(t, step);
        else
            t->out->wait[i] = step.verb == RM_FREE ? end(t, step) : run(t, step);
    }
}

static bool uses_second_tier(const rm_plan *plan) {
    for (int64_t i = 0; i < plan->n_steps; i++)
        if (plan->step[i].verb == RM_SAVE) return true; /* without one there is nothing to LOAD */
    return false;
}

uint64_t rm_transfers_table_bytes(const rm_problem *problem, const rm_plan *plan) {
    const rm_transfers *it = NULL;
    if (!uses_second_tier(plan)) return 0;
    return problem->tier.host_bytes + (2 * (uint64_t)problem->n_stages + 1) * sizeof *it->state_at +
           (uint64_t)plan->n_steps * sizeof *it->wait;
}

static bool allocate(tracker *t, const rm_plan *plan) {
    size_t stages = (size_t)t->problem->n_stages, pieces = (size_t)t->problem->n_pieces;
    rm_transfers *out = t->out;
    t->piece = rm_calloc(pieces, sizeof *t->piece);
    t->block = rm_calloc(stages, sizeof *t->block);
    t->uses = rm_calloc(pieces, sizeof *t->uses);
    t->option = rm_calloc(stages, sizeof *t->option);
    out->state_at = rm_malloc((stages + 1) * sizeof *out->state_at);
    out->saved_at = rm_malloc(stages * sizeof *out->saved_at);
    out->wait = rm_calloc((size_t)plan->n_steps, sizeof *out->wait);
    if (!t->piece || !t->block || !t->uses || !t->option || !out->state_at || !out->saved_at || !out->wait)
        return false;
    out->table_bytes = rm_transfers_table_bytes(t->problem, plan);
    for (size_t c = 0; c <= stages; c++) out->state_at[c] = RM_NO_COPY;
    for (size_t s = 0; s < stages; s++) out->saved_at[s] = RM_NO_COPY;
    return true;
}

remat_status rm_transfers_find(const rm_problem *problem, const rm_plan *plan, rm_transfers *transfers) {
    *transfers = (rm_transfers){0};
    if (!uses_second_tier(plan)) return REMAT_OK;
    REQUIRE(plan->n_steps < INT32_MAX, INVALID, "%lld steps are more than transfers can be numbered for",
            (long long)plan->n_steps);
    tracker t = {.problem = problem, .out = transfers};
    bool there = allocate(&t, plan);
    if (there) follow(&t, plan);
    rm_free(t.piece);
    rm_free(t.block);
    rm_free(t.uses);
    rm_free(t.option);
    if (there) return REMAT_OK;
    rm_transfers_free(transfers);
    FAIL(MEMORY, "out of host memory for the transfers of a plan of %lld steps", (long long)plan->n_steps);
}

void rm_transfers_free(rm_transfers *transfers) {
    rm_free(transfers->state_at);
    rm_free(transfers->saved_at);
    rm_free(transfers->wait);
    *transfers = (rm_transfers){0};
}
