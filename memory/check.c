/* check.c: the judge (check.h). One pass over the plan, counting what is alive; time and memory are proportional to the
 * plan and the problem. Nothing here knows how plans are made. Main entry: rm_plan_check. */
#include "memory/check.h"

#include <stdarg.h>

#include "engine/tensor.h"
#include "memory/host.h"

typedef struct {
    bool alive[3];       /* by rm_object: state(c), saved(c), dstate(c) */
    bool ran;            /* forward of stage c, in any way  */
    bool was_saved;      /* saved(c) was made, ever         */
    int8_t option;       /* of saved(c), while it is alive  */
    int64_t saved_since; /* where the private block's lifetime is written down */
} cut;

typedef struct {
    int32_t uses;  /* alive objects it belongs to */
    int64_t since; /* where its lifetime is written down */
} piece;

typedef struct {
    const rm_problem *problem;
    rm_lifetimes *lifetimes; /* NULL: nobody wants them */
    rm_verdict *verdict;
    rm_step step;
    int64_t t;             /* the step's number */
    cut *cut;              /* n_stages + 1 */
    piece *piece;          /* n_pieces     */
    int64_t next_backward; /* the stage to be differentiated next; -1: all are */
    bool forward_only;     /* an evaluation: every stage runs, none is differentiated */
    uint64_t alive_bytes;
} judge;

void rm_lifetimes_free(rm_lifetimes *lifetimes) {
    rm_free(lifetimes->item);
    *lifetimes = (rm_lifetimes){0};
}

__attribute__((format(printf, 2, 3))) static remat_status object_to(const judge *j, const char *format, ...) {
    char why[160], step[RM_STEP_TEXT];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(why, sizeof why, format, arguments);
    va_end(arguments);
    FAIL(INTERNAL, "step %lld (%s): %s", (long long)j->t, rm_step_text(j->problem, j->step, step), why);
}

#define OBJECT_UNLESS(condition, ...)                                                                                  \
    do {                                                                                                               \
        if (!(condition)) return object_to(j, __VA_ARGS__);                                                            \
    } while (0)

/* ---- Buffers ------------------------------------------------------------------------------------ */

/* Bytes become alive at this step. *since is where that was written down, for `end`. */
static remat_status begin(judge *j, rm_buffer_kind kind, int64_t index, uint64_t bytes, int64_t *since) {
    bytes = rm_align_up(bytes);
    j->alive_bytes += bytes;
    rm_lifetimes *list = j->lifetimes;
    if (!list || bytes == 0) return REMAT_OK;
    if (list->count == list->capacity) {
        int64_t capacity = list->capacity ? list->capacity * 2 : 64;
        rm_lifetime *grown = rm_realloc(list->item, (size_t)capacity * sizeof *grown);
        REQUIRE(grown, MEMORY, "out of host memory for the lifetimes of %lld buffers", (long long)capacity);
        list->item = grown;
        list->capacity = capacity;
    }
    *since = list->count;
    list->item[list->count++] =
        (rm_lifetime){.kind = (uint8_t)kind, .index = (int32_t)index, .first = j->t, .last = j->t, .bytes = bytes};
    return REMAT_OK;
}

/* Bytes that began at `since` are dead from this step on. */
static void end(judge *j, uint64_t bytes, int64_t since) {
    bytes = rm_align_up(bytes);
    j->alive_bytes -= bytes;
    if (j->lifetimes && bytes > 0) j->lifetimes->item[since].last = j->t - 1;
}

static const rm_lists *pieces_of(const rm_problem *problem, rm_object object) {
    return object == RM_STATE ? &problem->state : object == RM_DSTATE ? &problem->dstate : &problem->saved;
}

static remat_status begin_pieces(judge *j, rm_object object, int64_t c) {
    const rm_lists *lists = pieces_of(j->problem, object);
    for (int64_t k = lists->start[c]; k < lists->start[c + 1]; k++) {
        piece *piece = &j->piece[lists->item[k]];
        if (piece->uses++ > 0) continue;
        TRY(begin(j, RM_BUFFER_PIECE, lists->item[k], j->problem->piece[lists->item[k]].bytes, &piece->since));
    }
    return REMAT_OK;
}

static void end_pieces(judge *j, rm_object object, int64_t c) {
    const rm_lists *lists = pieces_of(j->problem, object);
    for (int64_t k = lists->start[c]; k < lists->start[c + 1]; k++) {
        piece *piece = &j->piece[lists->item[k]];
        if (--piece->uses == 0) end(j, j->problem->piece[lists->item[k]].bytes, piece->since);
    }
}

/* ---- Objects ------------------------------------------------------------------------------------ */

static const char *const object_name[] = {[RM_STATE] = "state", [RM_SAVED] = "saved", [RM_DSTATE] = "dstate"};

static remat_status must_live(const judge *j, rm_object object, int64_t c) {
    OBJECT_UNLESS(j->cut[c].alive[object], "%s %lld is not alive", object_name[object], (long long)c);
    return REMAT_OK;
}

static remat_status make(judge *j, rm_object object, int64_t c) {
    OBJECT_UNLESS(!j->cut[c].alive[object], "%s %lld is alive already", object_name[object], (long long)c);
    j->cut[c].alive[object] = true;
    return begin_pieces(j, object, c);
}

static remat_status make_saved(judge *j, int64_t s, int option) {
    cut *cut = &j->cut[s];
    OBJECT_UNLESS(!cut->was_saved, "saved %lld is made a second time", (long long)s);
    TRY(make(j, RM_SAVED, s));
    cut->was_saved = true;
    cut->option = (int8_t)option;
    return begin(j, RM_BUFFER_SAVED, s, j->problem->stage[s].option[option].saved_bytes, &cut->saved_since);
}

static uint64_t saved_bytes(const judge *j, int64_t s) {
    return j->problem->stage[s].option[j->cut[s].option].saved_bytes;
}

/* ---- Steps -------------------------------------------------------------------------------------- */

static uint64_t add(uint64_t a, uint64_t b) { return a + b < a ? UINT64_MAX : a + b; }

/* The call itself: scratch, and the moment at which most is alive. */
static remat_status run(judge *j, int64_t s, rm_work work) {
    int64_t since = -1;
    TRY(begin(j, RM_BUFFER_SCRATCH, s, work.scratch_bytes, &since));
    if (j->alive_bytes > j->verdict->peak_bytes) {
        j->verdict->peak_bytes = j->alive_bytes;
        j->verdict->peak_step = j->t;
    }
    j->alive_bytes -= rm_align_up(work.scratch_bytes); /* its lifetime is [t,t], as begin wrote it */
    return REMAT_OK;
}

static remat_status run_forward(judge *j) {
    int64_t s = j->step.index;
    int option = j->step.option;
    OBJECT_UNLESS(s >= 0 && s < j->problem->n_stages, "there is no such stage");
    const rm_stage *stage = &j->problem->stage[s];
    OBJECT_UNLESS(option == RM_DROP || (option >= 0 && option < stage->n_options), "the stage has no option %d",
                  option);
    OBJECT_UNLESS(s <= j->next_backward, "stage %lld has been differentiated; nobody needs its forward", (long long)s);
    TRY(must_live(j, RM_STATE, s));
    TRY(make(j, RM_STATE, s + 1));
    if (option != RM_DROP) TRY(make_saved(j, s, option));
    rm_work work = option == RM_DROP ? stage->drop : stage->option[option].forward;
    rm_verdict *verdict = j->verdict;
    uint64_t *time = j->cut[s].ran ? &verdict->recompute_ns : &verdict->forward_ns;
    *time = add(*time, work.time_ns);
    verdict->recomputed_stages += j->cut[s].ran;
    j->cut[s].ran = true;
    return run(j, s, work);
}

static remat_status run_backward(judge *j) {
    int64_t s = j->step.index;
    OBJECT_UNLESS(s >= 0 && s < j->problem->n_stages, "there is no such stage");
    OBJECT_UNLESS(!j->forward_only, "this plan is for an evaluation; it differentiates nothing");
    OBJECT_UNLESS(j->next_backward >= 0, "every stage has been differentiated");
    OBJECT_UNLESS(s == j->next_backward, "the stage to be differentiated now is %lld", (long long)j->next_backward);
    TRY(must_live(j, RM_STATE, s));
    TRY(must_live(j, RM_SAVED, s));
    TRY(must_live(j, RM_DSTATE, s + 1));
    TRY(make(j, RM_DSTATE, s));
    rm_work work = j->problem->stage[s].option[j->cut[s].option].backward;
    j->verdict->backward_ns = add(j->verdict->backward_ns, work.time_ns);
    j->next_backward = s - 1;
    return run(j, s, work);
}

static remat_status free_object(judge *j) {
    int64_t c = j->step.index;
    OBJECT_UNLESS(j->step.object <= RM_DSTATE, "there is no object of kind %d", j->step.object);
    rm_object object = (rm_object)j->step.object;
    OBJECT_UNLESS(c >= 0 && c < j->problem->n_stages + (object != RM_SAVED), "there is no such object");
    TRY(must_live(j, object, c));
    j->cut[c].alive[object] = false;
    end_pieces(j, object, c);
    if (object == RM_SAVED) end(j, saved_bytes(j, c), j->cut[c].saved_since);
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
    case RM_LOAD:
        return object_to(j, "there is no second tier to move it to or from");
    default:
        return object_to(j, "there is no such verb");
    }
}

/* ---- From start to end -------------------------------------------------------------------------- */

static remat_status start(judge *j) {
    int64_t n_stages = j->problem->n_stages;
    j->cut = rm_calloc((size_t)n_stages + 1, sizeof *j->cut);
    j->piece = rm_calloc((size_t)j->problem->n_pieces, sizeof *j->piece);
    REQUIRE(j->cut && j->piece, MEMORY, "out of host memory to check a plan for %lld stages", (long long)n_stages);
    j->next_backward = n_stages - 1;
    TRY(make(j, RM_STATE, 0));
    return make(j, RM_DSTATE, n_stages);
}

static remat_status finish(const judge *j) {
    REQUIRE(j->forward_only || j->next_backward < 0, INTERNAL,
            "the plan ends before stage %lld has been differentiated", (long long)j->next_backward);
    for (int64_t s = 0; s < j->problem->n_stages; s++)
        REQUIRE(j->cut[s].ran, INTERNAL, "the plan ends and stage %lld never ran", (long long)s);
    for (int64_t c = 0; c <= j->problem->n_stages; c++)
        for (int object = RM_STATE; object <= RM_DSTATE; object++)
            REQUIRE(!j->cut[c].alive[object], INTERNAL, "the plan ends and %s %lld was never freed",
                    object_name[object], (long long)c);
    return REMAT_OK;
}

static remat_status judge_plan(const rm_problem *problem, const rm_plan *plan, bool forward_only, rm_verdict *verdict,
                               rm_lifetimes *lifetimes) {
    judge j = {.problem = problem, .forward_only = forward_only, .lifetimes = lifetimes, .verdict = verdict};
    *verdict = (rm_verdict){.recompute_factor = 1};
    if (lifetimes) *lifetimes = (rm_lifetimes){0};
    remat_status status = start(&j);
    for (; !status && j.t < plan->n_steps; j.t++) {
        j.step = plan->step[j.t];
        status = take_step(&j);
    }
    if (!status) status = finish(&j);
    if (verdict->forward_ns > 0)
        verdict->recompute_factor =
            ((double)verdict->forward_ns + (double)verdict->recompute_ns) / (double)verdict->forward_ns;
    if (status && lifetimes) rm_lifetimes_free(lifetimes);
    rm_free(j.cut);
    rm_free(j.piece);
    return status;
}

remat_status rm_plan_check(const rm_problem *problem, const rm_plan *plan, rm_verdict *verdict,
                           rm_lifetimes *lifetimes) {
    return judge_plan(problem, plan, false, verdict, lifetimes);
}

remat_status rm_plan_check_forward(const rm_problem *problem, const rm_plan *plan, rm_verdict *verdict,
                                   rm_lifetimes *lifetimes) {
    return judge_plan(problem, plan, true, verdict, lifetimes);
}
