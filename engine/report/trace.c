/* trace.c: see trace.h. */
#include "engine/report/trace.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "memory/clock.h"
#include "memory/host.h"

struct rm_trace {
    const rm_problem *problem;
    uint64_t *piece; /* by piece: bytes claimed and not yet freed */
    uint64_t *saved; /* by stage: bytes of the saved block */
    uint64_t live[REMAT_LIVE_KINDS];
    remat_live_point *point;
    int64_t count, capacity;
    uint64_t start_ns;
    int statm; /* /proc/self/statm; -1: unavailable */
    uint64_t page_bytes;
    bool resident; /* points have resident bytes */
};

/* ---- Life ----------------------------------------------------------------------------------------------------- */

remat_status rm_trace_create(const rm_problem *problem, int64_t n_steps, rm_trace **out) {
    rm_trace *t = rm_calloc(1, sizeof *t);
    REQUIRE(t, MEMORY, "out of memory for a trace");
    *t = (rm_trace){.problem = problem, .capacity = n_steps, .page_bytes = (uint64_t)sysconf(_SC_PAGESIZE)};
    t->statm = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    t->piece = rm_calloc((size_t)problem->n_pieces + 1, sizeof *t->piece);
    t->saved = rm_calloc((size_t)problem->n_stages, sizeof *t->saved);
    t->point = rm_calloc((size_t)n_steps + 1, sizeof *t->point);
    if (!t->piece || !t->saved || !t->point) {
        rm_trace_free(t);
        FAIL(MEMORY, "out of memory for a trace of %lld steps", (long long)n_steps);
    }
    *out = t;
    return REMAT_OK;
}

void rm_trace_free(rm_trace *t) {
    if (!t) return;
    if (t->statm >= 0) close(t->statm);
    rm_free(t->piece);
    rm_free(t->saved);
    rm_free(t->point);
    rm_free(t);
}

uint64_t rm_trace_live_bytes(const rm_trace *t) {
    uint64_t sum = 0;
    for (int k = 0; k < REMAT_LIVE_KINDS; k++) sum += t->live[k];
    return sum;
}

const remat_live_point *rm_trace_points(const rm_trace *t, int64_t *count) {
    *count = t->count;
    return t->point;
}

/* ---- Live bytes -------------------------------------------------------------------------------------------- */

static uint64_t *live_pieces(rm_trace *t, int64_t piece) {
    return &t->live[piece >= t->problem->dstate[0] ? REMAT_LIVE_GRADIENTS : REMAT_LIVE_STATES];
}

static void end_pieces(rm_trace *t, int64_t from, int64_t to) {
    for (int64_t k = from; k < to; k++) {
        *live_pieces(t, k) -= t->piece[k];
        t->piece[k] = 0;
    }
}

static void end(rm_trace *t, rm_object object, int64_t i) {
    const rm_problem *p = t->problem;
    if (object == RM_STATE) end_pieces(t, p->state[i], p->state[i + 1]);
    if (object == RM_DSTATE) end_pieces(t, p->dstate[i], p->dstate[i + 1]);
    if (object != RM_SAVED) return;
    t->live[REMAT_LIVE_SAVED] -= t->saved[i];
    t->saved[i] = 0;
}

void rm_trace_claim(rm_trace *t, rm_buffer_kind kind, int64_t index, uint64_t bytes) {
    remat_live_point *now = &t->point[t->count - 1];
    switch (kind) {
    case RM_BUFFER_PIECE:
        t->piece[index] += bytes;
        *live_pieces(t, index) += bytes;
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

void rm_trace_begin(rm_trace *t, bool resident) {
    t->resident = resident;
    end_pieces(t, 0, t->problem->n_pieces);
    for (int64_t i = 0; i < t->problem->n_stages; i++) t->saved[i] = 0;
    for (int k = 0; k < REMAT_LIVE_KINDS; k++) t->live[k] = 0;
    t->count = 0;
    t->start_ns = rm_now_ns();
}

void rm_trace_step(rm_trace *t, rm_step step) {
    if (t->count >= t->capacity) return;
    t->live[REMAT_LIVE_SCRATCH] = 0; /* freed at the end of the step before */
    if (step.verb == RM_FREE) end(t, (rm_object)step.object, step.index);
    remat_live_point *now = &t->point[t->count];
    *now = (remat_live_point){.step = t->count, .begin_ns = rm_now_ns() - t->start_ns};
    if (t->resident) now->resident_bytes = resident_bytes(t);
    for (int k = 0; k < REMAT_LIVE_KINDS; k++) now->bytes[k] = t->live[k];
    t->count++;
}
