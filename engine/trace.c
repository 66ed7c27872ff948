/* trace.c: see trace.h. */
#include "engine/trace.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "memory/clock.h"
#include "memory/host.h"

/* An object's share in the pieces it consists of. A piece is alive while somebody holds it. */
typedef struct {
    int32_t holders;
    uint64_t bytes; /* claimed, and not yet ended */
} piece;

struct rm_trace {
    const rm_problem *problem;
    piece *piece;
    uint64_t *saved; /* by stage: claimed bytes of the private block */
    uint8_t *is_gradient;
    bool *holds[3]; /* by rm_object, by index: whether it holds its pieces */
    uint64_t live[REMAT_LIVE_KINDS];
    remat_live_point *point;
    int64_t count, capacity;
    uint64_t start_ns;
    int statm; /* /proc/self/statm; -1: there is none */
    uint64_t page_bytes;
};

uint8_t *rm_mark_gradients(const rm_problem *problem) {
    uint8_t *mark = rm_calloc((size_t)problem->n_pieces + 1, 1);
    for (int64_t i = 0; mark && i < problem->dstate.start[problem->n_stages + 1]; i++)
        mark[problem->dstate.item[i]] = 1;
    return mark;
}

/* ---- Life ----------------------------------------------------------------------------------------------------- */

remat_status rm_trace_create(const rm_problem *problem, int64_t n_steps, rm_trace **out) {
    rm_trace *t = rm_calloc(1, sizeof *t);
    REQUIRE(t, MEMORY, "out of memory for a trace");
    size_t cuts = (size_t)problem->n_stages + 1;
    *t = (rm_trace){.problem = problem, .capacity = n_steps, .page_bytes = (uint64_t)sysconf(_SC_PAGESIZE)};
    t->statm = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    t->piece = rm_calloc((size_t)problem->n_pieces + 1, sizeof *t->piece);
    t->saved = rm_calloc(cuts, sizeof *t->saved);
    t->is_gradient = rm_mark_gradients(problem);
    t->point = rm_calloc((size_t)n_steps + 1, sizeof *t->point);
    bool *holds = t->holds[0] = rm_calloc(3 * cuts, sizeof *holds);
    if (!t->piece || !t->saved || !t->is_gradient || !t->point || !holds) {
        rm_trace_free(t);
        FAIL(MEMORY, "out of memory for a trace of %lld steps", (long long)n_steps);
    }
    t->holds[1] = holds + cuts;
    t->holds[2] = holds + 2 * cuts;
    *out = t;
    return REMAT_OK;
}

void rm_trace_free(rm_trace *t) {
    if (!t) return;
    if (t->statm >= 0) close(t->statm);
    rm_free(t->piece);
    rm_free(t->saved);
    rm_free(t->is_gradient);
    rm_free(t->point);
    rm_free(t->holds[0]);
    rm_free(t);
}

const remat_live_point *rm_trace_points(const rm_trace *t, int64_t *count) {
    *count = t->count;
    return t->point;
}

/* ---- What is alive -------------------------------------------------------------------------------------------- */

static uint64_t *live_pieces(rm_trace *t, int32_t piece) {
    return &t->live[t->is_gradient[piece] ? REMAT_LIVE_GRADIENTS : REMAT_LIVE_STATES];
}

static const rm_lists *pieces_of(const rm_problem *problem, rm_object object) {
    return object == RM_STATE ? &problem->state : object == RM_DSTATE ? &problem->dstate : &problem->saved;
}

/* An object begins to hold its pieces; claims for them follow. */
static void hold(rm_trace *t, rm_object object, int64_t c) {
    const rm_lists *lists = pieces_of(t->problem, object);
    if (t->holds[object][c]) return;
    t->holds[object][c] = true;
    for (int64_t k = lists->start[c]; k < lists->start[c + 1]; k++) t->piece[lists->item[k]].holders++;
}

/* An object ends, and with it the pieces that nobody else holds. */
static void let_go(rm_trace *t, rm_object object, int64_t c) {
    const rm_lists *lists = pieces_of(t->problem, object);
    if (!t->holds[object][c]) return;
    t->holds[object][c] = false;
    for (int64_t k = lists->start[c]; k < lists->start[c + 1]; k++) {
        piece *piece = &t->piece[lists->item[k]];
        if (--piece->holders > 0) continue;
        *live_pieces(t, lists->item[k]) -= piece->bytes;
        piece->bytes = 0;
    }
    if (object != RM_SAVED) return;
    t->live[REMAT_LIVE_SAVED] -= t->saved[c];
    t->saved[c] = 0;
}

void rm_trace_claim(rm_trace *t, rm_buffer_kind kind, int64_t index, uint64_t bytes) {
    remat_live_point *now = &t->point[t->count - 1];
    switch (kind) {
    case RM_BUFFER_PIECE:
        t->piece[index].bytes += bytes;
        *live_pieces(t, (int32_t)index) += bytes;
        break;
    case RM_BUFFER_SAVED:
        t->saved[index] += bytes;
        t->live[REMAT_LIVE_SAVED] += bytes;
        break;
    case RM_BUFFER_SCRATCH:
        t->live[REMAT_LIVE_SCRATCH] += bytes;
        break;
    }
    for (int k = 0; k < REMAT_LIVE_KINDS; k++) now->bytes[k] = t->live[k];
}

/* ---- Steps ---------------------------------------------------------------------------------------------------- */

static uint64_t resident_bytes(const rm_trace *t) {
    char text[128];
    ssize_t got = t->statm < 0 ? 0 : pread(t->statm, text, sizeof text - 1, 0);
    text[got > 0 ? got : 0] = 0;
    char *second;
    strtoull(text, &second, 10);
    return strtoull(second, NULL, 10) * t->page_bytes;
}

void rm_trace_begin(rm_trace *t) {
    for (int object = RM_STATE; object <= RM_DSTATE; object++)
        for (int64_t c = 0; c < t->problem->n_stages + (object != RM_SAVED); c++) let_go(t, (rm_object)object, c);
    for (int k = 0; k < REMAT_LIVE_KINDS; k++) t->live[k] = 0;
    t->count = 0;
    hold(t, RM_STATE, 0);
    hold(t, RM_DSTATE, t->problem->n_stages);
    t->start_ns = rm_now_ns();
}

/* Which objects a step makes or ends. */
static void begin_step(rm_trace *t, rm_step step) {
    int64_t c = step.index;
    if (step.verb == RM_RUN_FORWARD) {
        hold(t, RM_STATE, c + 1);
        if (step.option != RM_DROP) hold(t, RM_SAVED, c);
    } else if (step.verb == RM_RUN_BACKWARD) {
        hold(t, RM_DSTATE, c);
    } else if (step.verb == RM_LOAD) {
        hold(t, (rm_object)step.object, c);
    } else if (step.verb == RM_FREE) {
        let_go(t, (rm_object)step.object, c);
    }
}

void rm_trace_step(rm_trace *t, rm_step step) {
    if (t->count >= t->capacity) return;
    t->live[REMAT_LIVE_SCRATCH] = 0; /* it died with the step before */
    begin_step(t, step);
    remat_live_point *now = &t->point[t->count];
    *now = (remat_live_point){
        .step = t->count, .begin_ns = rm_now_ns() - t->start_ns, .resident_bytes = resident_bytes(t)};
    for (int k = 0; k < REMAT_LIVE_KINDS; k++) now->bytes[k] = t->live[k];
    t->count++;
}
