/* timeline.c: bytes alive at each step of a session's plan, by kind: planned (from the judge's lifetimes) and, for a traced step, as
 * measured by the executor (trace.h). Main entries: remat_plan_timeline, remat_trace_next, remat_traced_timeline. */
#include <stdlib.h>
#include <string.h>

#include "engine/abi.h"
#include "engine/session/session.h"
#include "memory/host.h"

/* ---- Planned -------------------------------------------------------------------------------------------------- */

static remat_live kind_of(const rm_problem *problem, const rm_lifetime *life) {
    switch ((rm_buffer_kind)life->kind) {
    case RM_BUFFER_SAVED:
        return REMAT_LIVE_SAVED;
    case RM_BUFFER_SCRATCH:
        return REMAT_LIVE_SCRATCH;
    case RM_BUFFER_PIECE:
        break;
    }
    return life->index >= problem->dstate[0] ? REMAT_LIVE_GRADIENTS : REMAT_LIVE_STATES;
}

/* Writes changes, then their running sums. Negative changes wrap around, and the sums wrap back. */
static void fill_bytes(const rm_problem *problem, const rm_lifetimes *lives, int64_t n, remat_live_point *point) {
    for (int64_t i = 0; i < lives->count; i++) {
        const rm_lifetime *life = &lives->item[i];
        remat_live kind = kind_of(problem, life);
        point[life->first].bytes[kind] += life->bytes;
        if (life->last + 1 < n) point[life->last + 1].bytes[kind] -= life->bytes;
    }
    for (int64_t i = 1; i < n; i++)
        for (int k = 0; k < REMAT_LIVE_KINDS; k++) point[i].bytes[k] += point[i - 1].bytes[k];
}

/* Callers free the arrays with remat_text_free. */
static remat_status allocate(int64_t count, remat_live_point **points) {
    *points = calloc((size_t)count + 1, sizeof **points);
    REQUIRE(*points, MEMORY, "out of memory for a timeline of %lld steps", (long long)count);
    return REMAT_OK;
}

remat_status remat_plan_timeline(const remat_session *s, remat_live_point **points, int64_t *count) {
    NEED(s, "a session");
    NEED(points && count, "a place for the result");
    const rm_problem *problem = rm_session_problem(s);
    const rm_schedule *schedule = rm_session_schedule(s);
    int64_t n = schedule->plan.n_steps;
    remat_live_point *point = NULL;
    uint64_t *begin_ns = rm_malloc((size_t)(n + 1) * sizeof *begin_ns);
    remat_status status = begin_ns ? allocate(n, &point) : rm_fail(REMAT_MEMORY, "out of memory for a timeline");
    if (!status) status = rm_plan_times(problem, &schedule->plan, s->inference, begin_ns);
    if (!status) {
        fill_bytes(problem, &schedule->lifetimes, n, point);
        for (int64_t i = 0; i < n; i++) point[i].step = i, point[i].begin_ns = begin_ns[i];
    }
    if (!status) {
        *points = point;
        *count = n;
    } else {
        free(point);
    }
    rm_free(begin_ns);
    return status;
}

/* ---- Measured ------------------------------------------------------------------------------------------------- */

remat_status remat_trace_next(remat_session *s) {
    NEED(s, "a session");
    REQUIRE(!s->plan_only && !s->inference, INVALID,
            "only training steps can be traced, and this session computes no gradients");
    if (!s->trace) TRY(rm_trace_create(&s->chain.problem, s->training.plan.n_steps, &s->trace));
    s->trace_next = true;
    return REMAT_OK;
}

remat_status remat_traced_timeline(const remat_session *s, remat_live_point **points, int64_t *count) {
    NEED(s, "a session");
    NEED(points && count, "a place for the result");
    int64_t n = 0, n_steps = s->training.plan.n_steps;
    const remat_live_point *traced = s->trace ? rm_trace_points(s->trace, &n) : NULL;
    REQUIRE(n, INVALID, "no step has been traced yet: call remat_trace_next, then %s", rm_session_pass_text(s));
    REQUIRE(n == n_steps, INVALID,
            "the pass is not finished, only %lld of the plan's %lld steps were traced: call %s first", (long long)n,
            (long long)n_steps, s->ran_forward ? "remat_backward" : rm_session_pass_text(s));
    remat_live_point *copy = NULL;
    TRY(allocate(n, &copy));
    memcpy(copy, traced, (size_t)n * sizeof *traced);
    *points = copy;
    *count = n;
    return REMAT_OK;
}
