/* check.c: the judge (check.h). It makes one pass over the plan and counts the live bytes; time and memory are
 * proportional to the plan and the problem. It does not know how plans are made. Main entry: rm_plan_check. */
#include "engine/neutral.h"
#include "memory/check.h"

#include <stdarg.h>

#include "memory/bytes.h"
#include "memory/host.h"

/* Transfers of the second tier that still touch a buffer, as moments on the computation's clock. */
typedef struct {
    uint64_t read_ns;  /* when the last copy from it ends: it may then be written or freed */
    uint64_t there_ns; /* when its load ends: it may then also be read */
} transit;

typedef struct {
    bool alive;
    bool copied;     /* the second tier has a copy, or will have one */
    bool was_made;   /* saved(s) alone: at any earlier step */
    int8_t option;   /* saved(s) alone: the option it was made with */
    bool ran;        /* for a stage s without an object of its own: whether its forward has run */
    int64_t since;   /* index of the lifetimes of its buffers, which are consecutive */
    transit transit; /* of all its buffers */
} object;

typedef struct {
    const rm_problem *problem;
    rm_lifetimes *lifetimes; /* NULL: the caller does not want them */
    rm_verdict *verdict;
    rm_step step;
    int64_t t;              /* number of the step */
    object *object[3];      /* by rm_object; lengths n_states, n_stages, n_states */
    int32_t *last_adder;    /* by state */
    int64_t next_backward;  /* the next stage to be differentiated; -1: all are done */
    int64_t likely_buffers; /* initial capacity for lifetimes; entries that are never written use no memory */
    bool forward_only;      /* an evaluation: every stage runs forward, none is differentiated */
    uint64_t alive_bytes;
    uint64_t now_ns;          /* the computation's clock */
    uint64_t channel_free_ns; /* when the second tier finishes all transfers issued so far */
} judge;

void rm_lifetimes_free(rm_lifetimes *lifetimes) {
    rm_free(lifetimes->item);
    *lifetimes = (rm_lifetimes){0};
}

__attribute__((format(printf, 2, 3))) static remat_status object_to(const judge *j, const char *format, ...) {
    char why[160], step[RM_STEP_TEXT];
    va_list arguments;
    va_start(arguments, format);
    rm_vsnprintf(why, sizeof why, format, arguments);
    va_end(arguments);
    FAIL(INTERNAL, "step %lld (%s): %s", (long long)j->t, rm_step_text(j->problem, j->step, step), why);
}

#define OBJECT_UNLESS(condition, ...)                                                                                  \
    do {                                                                                                               \
        if (!(condition)) return object_to(j, __VA_ARGS__);                                                            \
    } while (0)

/* ---- Buffers ------------------------------------------------------------------------------------ */

/* These bytes are alive from this step on. */
static remat_status begin(judge *j, rm_buffer_kind kind, int64_t index, uint64_t bytes) {
    bytes = rm_align_up(bytes);
    j->alive_bytes += bytes;
    j->verdict->buffers += bytes > 0;
    rm_lifetimes *list = j->lifetimes;
    if (!list || bytes == 0) return REMAT_OK;
    int64_t needed = list->capacity ? list->count + 1 : j->likely_buffers;
    REQUIRE(rm_grow(&list->item, &list->capacity, needed, sizeof *list->item), MEMORY,
            "out of host memory for the lifetimes of %lld buffers", (long long)needed);
    list->item[list->count++] =
        (rm_lifetime){.kind = (uint8_t)kind, .index = (int32_t)index, .first = j->t, .last = j->t, .bytes = bytes};
    return REMAT_OK;
}

/* The buffer whose lifetime is at *since is dead from this step on. Advances *since to the object's next buffer. */
static void end_buffer(judge *j, uint64_t bytes, int64_t *since) {
    bytes = rm_align_up(bytes);
    j->alive_bytes -= bytes;
    if (j->lifetimes && bytes > 0) j->lifetimes->item[(*since)++].last = j->t - 1;
}

/* Called after every step that makes something. */
static void note_peak(judge *j) {
    if (j->alive_bytes <= j->verdict->peak_bytes) return;
    j->verdict->peak_bytes = j->alive_bytes;
    j->verdict->peak_step = j->t;
}

/* ---- Objects ------------------------------------------------------------------------------------ */

static const char *const object_name[] = {[RM_STATE] = "state", [RM_SAVED] = "saved", [RM_DSTATE] = "dstate"};

static object *the(const judge *j, rm_object kind, int64_t i) { return &j->object[kind][i]; }

/* The pieces of a state or of its gradient. */
static const int64_t *pieces_of(const judge *j, rm_object kind, int64_t i) {
    return (kind == RM_STATE ? j->problem->state : j->problem->dstate) + i;
}

static uint64_t saved_bytes(const judge *j, int64_t s) {
    return j->problem->stage[s].option[the(j, RM_SAVED, s)->option].saved_bytes;
}

static uint64_t object_bytes(const judge *j, rm_object kind, int64_t i) {
    return kind == RM_SAVED   ? rm_align_up(saved_bytes(j, i))
           : kind == RM_STATE ? rm_state_bytes(j->problem, i)
                              : rm_dstate_bytes(j->problem, i);
}

static remat_status must_live(const judge *j, rm_object kind, int64_t i) {
    OBJECT_UNLESS(the(j, kind, i)->alive, "%s %lld is not alive", object_name[kind], (long long)i);
    return REMAT_OK;
}

static remat_status make(judge *j, rm_object kind, int64_t i) {
    object *object = the(j, kind, i);
    OBJECT_UNLESS(!object->alive, "%s %lld is already alive", object_name[kind], (long long)i);
    object->alive = true;
    if (j->lifetimes) object->since = j->lifetimes->count;
    if (kind == RM_SAVED) return begin(j, RM_BUFFER_SAVED, i, saved_bytes(j, i));
    const int64_t *pieces = pieces_of(j, kind, i);
    for (int64_t k = pieces[0]; k < pieces[1]; k++) TRY(begin(j, RM_BUFFER_PIECE, k, j->problem->piece[k].bytes));
    return REMAT_OK;
}

static void end(judge *j, rm_object kind, int64_t i) {
    object *object = the(j, kind, i);
    int64_t next = object->since;
    object->alive = false;
    if (kind == RM_SAVED) end_buffer(j, saved_bytes(j, i), &next);
    const int64_t *pieces = kind == RM_SAVED ? (int64_t[]){0, 0} : pieces_of(j, kind, i);
    for (int64_t k = pieces[0]; k < pieces[1]; k++) end_buffer(j, j->problem->piece[k].bytes, &next);
}

static remat_status make_saved(judge *j, int64_t s, int option) {
    object *saved = the(j, RM_SAVED, s);
    OBJECT_UNLESS(!saved->was_made, "saved %lld is made a second time", (long long)s);
    saved->was_made = true;
    saved->option = (int8_t)option;
    return make(j, RM_SAVED, s);
}

/* ---- Two clocks --------------------------------------------------------------------------------- */

static uint64_t add(uint64_t a, uint64_t b) { return a + b < a ? UINT64_MAX : a + b; }

static void wait_until(judge *j, uint64_t moment_ns) {
    if (moment_ns <= j->now_ns) return;
    j->verdict->wait_ns = add(j->verdict->wait_ns, moment_ns - j->now_ns);
    j->now_ns = moment_ns;
}

typedef enum { TO_READ, TO_WRITE } intent; /* freeing a buffer counts as writing it */

static void wait_for(judge *j, const transit *transit, intent intent) {
    wait_until(j, transit->there_ns);
    if (intent == TO_WRITE) wait_until(j, transit->read_ns);
}

static void wait_for_object(judge *j, rm_object kind, int64_t i, intent intent) {
    wait_for(j, &the(j, kind, i)->transit, intent);
}

/* Issues a transfer to the second tier and returns the moment at which it is done. A transfer of no bytes takes no
 * time. */
static uint64_t transfer(judge *j, uint64_t bytes, uint64_t bytes_per_s) {
    if (bytes == 0) return j->now_ns;
    unsigned __int128 ns = (unsigned __int128)bytes * 1000000000u / bytes_per_s;
    uint64_t takes_ns = add(ns > UINT64_MAX ? UINT64_MAX : (uint64_t)ns, j->problem->tier.latency_ns);
    uint64_t begin_ns = j->now_ns > j->channel_free_ns ? j->now_ns : j->channel_free_ns;
    j->verdict->transfer_ns = add(j->verdict->transfer_ns, takes_ns);
    unsigned __int128 cost_ns = (unsigned __int128)bytes * j->problem->tier.cost_ns_per_mib >> 20;
    wait_until(j, add(j->now_ns, cost_ns > UINT64_MAX ? UINT64_MAX : (uint64_t)cost_ns));
    return j->channel_free_ns = add(begin_ns, takes_ns);
}

/* ---- Steps -------------------------------------------------------------------------------------- */

/* The call itself: its time and its scratch. */
static remat_status run(judge *j, int64_t s, rm_work work) {
    j->now_ns = add(j->now_ns, work.time_ns);
    TRY(begin(j, RM_BUFFER_SCRATCH, s, work.scratch_bytes));
    note_peak(j);
    j->alive_bytes -= rm_align_up(work.scratch_bytes); /* its lifetime is [t,t], as `begin` recorded it */
    return REMAT_OK;
}

static remat_status read_states(judge *j, const rm_lists *lists, int64_t s) {
    for (int64_t k = lists->start[s]; k < lists->start[s + 1]; k++) {
        TRY(must_live(j, RM_STATE, lists->item[k]));
        wait_for_object(j, RM_STATE, lists->item[k], TO_READ);
    }
    return REMAT_OK;
}

/* Recomputing a live state overwrites it with identical bits. */
static remat_status make_states(judge *j, int64_t s) {
    for (int64_t i = j->problem->made[s]; i < j->problem->made[s + 1]; i++) {
        wait_for_object(j, RM_STATE, i, TO_WRITE);
        if (!the(j, RM_STATE, i)->alive) TRY(make(j, RM_STATE, i));
    }
    return REMAT_OK;
}

static remat_status run_forward(judge *j) {
    int64_t s = j->step.index;
    int option = j->step.option;
    OBJECT_UNLESS(s >= 0 && s < j->problem->n_stages, "there is no such stage");
    const rm_stage *stage = &j->problem->stage[s];
    OBJECT_UNLESS(option == RM_DROP || (option >= 0 && option < stage->n_options), "the stage has no option %d",
                  option);
    OBJECT_UNLESS(s <= j->next_backward,
                  "stage %lld has already been differentiated, so its forward is no longer needed", (long long)s);
    OBJECT_UNLESS(s == 0 || the(j, RM_SAVED, s - 1)->ran, "stage %lld has not run yet", (long long)s - 1);
    TRY(read_states(j, &j->problem->reads, s));
    TRY(make_states(j, s));
    object *it = the(j, RM_SAVED, s);
    if (option != RM_DROP) wait_for_object(j, RM_SAVED, s, TO_WRITE);
    if (option != RM_DROP) TRY(make_saved(j, s, option));
    rm_work work = option == RM_DROP ? stage->drop : stage->option[option].forward;
    rm_verdict *verdict = j->verdict;
    uint64_t *time = it->ran ? &verdict->recompute_ns : &verdict->forward_ns;
    *time = add(*time, work.time_ns);
    verdict->recomputed_stages += it->ran;
    it->ran = true;
    return run(j, s, work);
}

/* The gradients of the stage's own states, where they exist. */
static remat_status read_gradients(judge *j, int64_t s) {
    for (int64_t i = j->problem->made[s]; i < j->problem->made[s + 1]; i++) {
        if (j->last_adder[i] < 0) continue;
        TRY(must_live(j, RM_DSTATE, i));
        wait_for_object(j, RM_DSTATE, i, TO_READ);
    }
    return REMAT_OK;
}

static remat_status add_to_gradients(judge *j, int64_t s) {
    const rm_lists *adds = &j->problem->adds;
    for (int64_t k = adds->start[s]; k < adds->start[s + 1]; k++) {
        bool begins = j->last_adder[adds->item[k]] == s;
        TRY(begins ? make(j, RM_DSTATE, adds->item[k]) : must_live(j, RM_DSTATE, adds->item[k]));
    }
    return REMAT_OK;
}

static remat_status run_backward(judge *j) {
    int64_t s = j->step.index;
    OBJECT_UNLESS(s >= 0 && s < j->problem->n_stages, "there is no such stage");
    OBJECT_UNLESS(!j->forward_only, "this plan is for an evaluation, so no stage may run backward");
    OBJECT_UNLESS(j->next_backward >= 0, "every stage has already been differentiated");
    OBJECT_UNLESS(s == j->next_backward, "the next stage to be differentiated is %lld", (long long)j->next_backward);
    TRY(must_live(j, RM_SAVED, s));
    wait_for_object(j, RM_SAVED, s, TO_READ);
    TRY(read_states(j, &j->problem->keeps, s));
    TRY(read_gradients(j, s));
    TRY(add_to_gradients(j, s));
    rm_work work = j->problem->stage[s].option[the(j, RM_SAVED, s)->option].backward;
    j->verdict->backward_ns = add(j->verdict->backward_ns, work.time_ns);
    j->next_backward = s - 1;
    return run(j, s, work);
}

/* The step's object, whose kind may be freed or moved. */
static remat_status find_object(const judge *j, rm_object last_kind) {
    int64_t i = j->step.index;
    OBJECT_UNLESS(j->step.object <= RM_DSTATE, "there is no object of kind %d", j->step.object);
    OBJECT_UNLESS(j->step.object <= last_kind, "a %s cannot be moved to the second tier", object_name[j->step.object]);
    OBJECT_UNLESS(i >= 0 && i < (j->step.object == RM_SAVED ? j->problem->n_stages : j->problem->n_states),
                  "there is no such object");
    return REMAT_OK;
}

/* An object that is freed waits for the transfers that still touch it. */
static remat_status free_object(judge *j) {
    TRY(find_object(j, RM_DSTATE));
    rm_object kind = (rm_object)j->step.object;
    TRY(must_live(j, kind, j->step.index));
    wait_for_object(j, kind, j->step.index, TO_WRITE);
    end(j, kind, j->step.index);
    return REMAT_OK;
}

static remat_status find_movable(const judge *j) {
    OBJECT_UNLESS(rm_tier_there(&j->problem->tier), "there is no second tier to move it to or from");
    return find_object(j, RM_SAVED);
}

static remat_status save(judge *j) {
    TRY(find_movable(j));
    rm_object kind = (rm_object)j->step.object;
    TRY(must_live(j, kind, j->step.index));
    object *object = the(j, kind, j->step.index);
    OBJECT_UNLESS(!object->copied, "%s %lld is saved a second time", object_name[kind], (long long)j->step.index);
    object->copied = true;
    uint64_t bytes = object_bytes(j, kind, j->step.index);
    object->transit.read_ns = transfer(j, bytes, j->problem->tier.save_bytes_per_s);
    j->verdict->save_bytes = add(j->verdict->save_bytes, bytes);
    return REMAT_OK;
}

static remat_status load(judge *j) {
    TRY(find_movable(j));
    rm_object kind = (rm_object)j->step.object;
    object *object = the(j, kind, j->step.index);
    OBJECT_UNLESS(object->copied, "%s %lld has no copy to load", object_name[kind], (long long)j->step.index);
    TRY(make(j, kind, j->step.index));
    note_peak(j);
    uint64_t bytes = object_bytes(j, kind, j->step.index);
    object->transit.there_ns = transfer(j, bytes, j->problem->tier.load_bytes_per_s);
    j->verdict->load_bytes = add(j->verdict->load_bytes, bytes);
    return REMAT_OK;
}

static remat_status take_step(judge *j) {
    switch (j->step.verb) {
    case RM_RUN_FORWARD:
        return run_forward(j);
    case RM_RUN_BACKWARD:
        return run_backward(j);
    case RM_FREE:
        return free_object(j);
    case RM_SAVE:
        return save(j);
    case RM_LOAD:
        return load(j);
    default:
        return object_to(j, "there is no such verb");
    }
}

/* ---- From start to end -------------------------------------------------------------------------- */

static remat_status start(judge *j) {
    int64_t n_stages = j->problem->n_stages, n_states = j->problem->n_states;
    j->object[RM_STATE] = rm_calloc((size_t)(2 * n_states + n_stages), sizeof(object));
    j->last_adder = rm_malloc((size_t)n_states * sizeof *j->last_adder);
    REQUIRE(j->object[RM_STATE] && j->last_adder, MEMORY, "out of host memory to check a plan for %lld stages",
            (long long)n_stages);
    j->object[RM_SAVED] = j->object[RM_STATE] + n_states;
    j->object[RM_DSTATE] = j->object[RM_SAVED] + n_stages;
    j->next_backward = n_stages - 1;
    rm_last_adders(j->problem, j->last_adder);
    return REMAT_OK;
}

static remat_status finish(const judge *j) {
    int64_t n_stages = j->problem->n_stages, n_states = j->problem->n_states;
    REQUIRE(j->forward_only || j->next_backward < 0, INTERNAL,
            "the plan ends before stage %lld has been differentiated", (long long)j->next_backward);
    for (int64_t s = 0; s < n_stages; s++)
        REQUIRE(the(j, RM_SAVED, s)->ran, INTERNAL, "the plan ends and stage %lld never ran", (long long)s);
    for (int kind = RM_STATE; kind <= RM_DSTATE; kind++)
        for (int64_t i = 0; i < (kind == RM_SAVED ? n_stages : n_states); i++)
            REQUIRE(!j->object[kind][i].alive, INTERNAL, "the plan ends and %s %lld was never freed", object_name[kind],
                    (long long)i);
    return REMAT_OK;
}

/* Lifetimes are kept as long as the plan and dominate the memory of a long one. */
static void shrink(rm_lifetimes *list) {
    list->item = rm_shrink(list->item, (size_t)list->count * sizeof *list->item);
    list->capacity = list->count;
}

static _Thread_local uint64_t judged_steps;

uint64_t rm_judged_steps(void) { return judged_steps; }

static remat_status judge_plan(const rm_problem *problem, const rm_plan *plan, bool forward_only, rm_verdict *verdict,
                               rm_lifetimes *lifetimes, uint64_t *begin_ns) {
    judged_steps += (uint64_t)plan->n_steps;
    judge j = {.problem = problem, .forward_only = forward_only, .lifetimes = lifetimes, .verdict = verdict};
    *verdict = (rm_verdict){.recompute_factor = 1};
    j.likely_buffers = 64 + 3 * plan->n_steps;
    if (lifetimes) *lifetimes = (rm_lifetimes){0};
    remat_status status = start(&j);
    for (; !status && j.t < plan->n_steps; j.t++) {
        j.step = plan->step[j.t];
        if (begin_ns) begin_ns[j.t] = j.now_ns;
        status = take_step(&j);
    }
    if (!status) status = finish(&j);
    verdict->total_ns =
        add(add(verdict->forward_ns, verdict->recompute_ns), add(verdict->backward_ns, verdict->wait_ns));
    if (verdict->forward_ns > 0)
        verdict->recompute_factor =
            ((double)verdict->forward_ns + (double)verdict->recompute_ns) / (double)verdict->forward_ns;
    if (status && lifetimes) rm_lifetimes_free(lifetimes);
    if (!status && lifetimes) shrink(lifetimes);
    rm_free(j.object[RM_STATE]);
    rm_free(j.last_adder);
    return status;
}

remat_status rm_plan_check(const rm_problem *problem, const rm_plan *plan, rm_verdict *verdict,
                           rm_lifetimes *lifetimes) {
    return judge_plan(problem, plan, false, verdict, lifetimes, NULL);
}

remat_status rm_plan_check_forward(const rm_problem *problem, const rm_plan *plan, rm_verdict *verdict,
                                   rm_lifetimes *lifetimes) {
    return judge_plan(problem, plan, true, verdict, lifetimes, NULL);
}

remat_status rm_plan_times(const rm_problem *problem, const rm_plan *plan, bool forward_only, uint64_t *begin_ns) {
    rm_verdict verdict;
    return judge_plan(problem, plan, forward_only, &verdict, NULL, begin_ns);
}
