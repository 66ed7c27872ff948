/* transfers.c: makes one pass over a plan and tracks, for each object, the last transfer that touches it. See
 * transfers.h. */
#include "memory/transfers.h"

#include "memory/bytes.h"
#include "memory/host.h"

/* The numbers of the last transfers of an object. */
typedef struct {
    int32_t from; /* copies from the object: it may be read until then, but not written or freed */
    int32_t to;   /* loads the object: it may not even be read until then */
} touched;

typedef struct {
    const rm_problem *problem;
    touched *object[3]; /* by rm_object, by index; gradients are never moved: NULL */
    int8_t *option;     /* by stage: the option it was kept in */
    rm_transfers *out;
} tracker;

static int32_t later(int32_t a, int32_t b) { return a > b ? a : b; }

/* The transfer that must be done before an object is read or written. */
static int32_t to_read(const tracker *t, rm_object object, int64_t i) { return t->object[object][i].to; }
static int32_t to_write(const tracker *t, rm_object object, int64_t i) {
    return later(t->object[object][i].from, t->object[object][i].to);
}

static int32_t to_read_all(const tracker *t, const rm_lists *lists, int64_t s) {
    int32_t wait = 0;
    for (int64_t k = lists->start[s]; k < lists->start[s + 1]; k++)
        wait = later(wait, to_read(t, RM_STATE, lists->item[k]));
    return wait;
}

static int32_t run(tracker *t, rm_step step) {
    int64_t s = step.index;
    if (step.verb == RM_RUN_BACKWARD) return later(to_read_all(t, &t->problem->keeps, s), to_read(t, RM_SAVED, s));
    int32_t wait = to_read_all(t, &t->problem->reads, s);
    for (int64_t i = t->problem->made[s]; i < t->problem->made[s + 1]; i++)
        wait = later(wait, to_write(t, RM_STATE, i));
    if (step.option == RM_DROP) return wait;
    t->option[s] = step.option;
    return later(wait, to_write(t, RM_SAVED, s));
}

static int32_t end(const tracker *t, rm_step step) {
    return step.object == RM_DSTATE ? 0 : to_write(t, (rm_object)step.object, step.index);
}

static uint64_t bytes_of(const tracker *t, rm_step step) {
    if (step.object == RM_STATE) return rm_state_bytes(t->problem, step.index);
    return rm_align_up(t->problem->stage[step.index].option[t->option[step.index]].saved_bytes);
}

/* An empty object needs no transfer to wait for. The room of each copy is rounded up, so that the next one is
 * aligned. */
static void save(tracker *t, rm_step step) {
    uint64_t bytes = bytes_of(t, step);
    int32_t number = (int32_t)++t->out->count;
    (step.object == RM_STATE ? t->out->state_at : t->out->saved_at)[step.index] = t->out->room_bytes;
    t->out->room_bytes += (bytes + RM_TRANSFER_ALIGN - 1) / RM_TRANSFER_ALIGN * RM_TRANSFER_ALIGN;
    if (bytes) t->object[step.object][step.index].from = number;
}

static void load(tracker *t, rm_step step) {
    int32_t number = (int32_t)++t->out->count;
    t->object[step.object][step.index].to = number;
}

static void follow(tracker *t, const rm_plan *plan) {
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
        if (plan->step[i].verb == RM_SAVE) return true; /* without a SAVE there is nothing to LOAD */
    return false;
}

uint64_t rm_transfers_table_bytes(const rm_problem *problem, const rm_plan *plan) {
    const rm_transfers *it = NULL;
    if (!uses_second_tier(plan)) return 0;
    return problem->tier.host_bytes + (uint64_t)(problem->n_stages + problem->n_states) * sizeof *it->state_at +
           (uint64_t)plan->n_steps * sizeof *it->wait;
}

static bool allocate(tracker *t, const rm_plan *plan) {
    size_t stages = (size_t)t->problem->n_stages, states = (size_t)t->problem->n_states;
    rm_transfers *out = t->out;
    t->object[RM_STATE] = rm_calloc(states + stages, sizeof(touched));
    t->option = rm_calloc(stages, sizeof *t->option);
    out->state_at = rm_malloc(states * sizeof *out->state_at);
    out->saved_at = rm_malloc(stages * sizeof *out->saved_at);
    out->wait = rm_calloc((size_t)plan->n_steps, sizeof *out->wait);
    if (!t->object[RM_STATE] || !t->option || !out->state_at || !out->saved_at || !out->wait) return false;
    t->object[RM_SAVED] = t->object[RM_STATE] + states;
    out->table_bytes = rm_transfers_table_bytes(t->problem, plan);
    for (size_t i = 0; i < states; i++) out->state_at[i] = RM_NO_COPY;
    for (size_t s = 0; s < stages; s++) out->saved_at[s] = RM_NO_COPY;
    return true;
}

remat_status rm_transfers_find(const rm_problem *problem, const rm_plan *plan, rm_transfers *transfers) {
    *transfers = (rm_transfers){0};
    if (!uses_second_tier(plan)) return REMAT_OK;
    REQUIRE(plan->n_steps < INT32_MAX, INVALID, "%lld steps are too many: their transfers cannot be numbered",
            (long long)plan->n_steps);
    tracker t = {.problem = problem, .out = transfers};
    bool there = allocate(&t, plan);
    if (there) follow(&t, plan);
    rm_free(t.object[RM_STATE]);
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
