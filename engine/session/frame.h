/* frame.h: the running stage: its tile, and the addresses of its program's operands. Private to the executor: run.c,
 * and sequence_end.c, which replaces programs. */
#ifndef RM_FRAME_H
#define RM_FRAME_H

#include "engine/session/run.h"

/* The stage whose program runs, and the origins of its addresses. */
typedef struct {
    rm_runner *runner;
    int64_t stage, tau, t0, position; /* position: in its sweep */
    int64_t t0_from_end;              /* of reversed sequences */
    int64_t gradients;                /* first piece that holds a gradient */
    bool first;                       /* this is the stage's first forward run in this step */
    bool collective;                  /* kernels may call collectives: the plan of a training step runs */
    bool past_end;                    /* past the end of all sequences: nothing is computed */
} rm_frame;

rm_frame rm_frame_of(rm_runner *runner, int64_t stage);

/* Returns NULL for an operand without an address: the carried state before the first tile, or an unused result. */
void *rm_frame_find(const rm_frame *f, const rm_where *where);
static inline void *rm_frame_address(const rm_frame *f, const rm_where *where) {
    return where->space == RM_NOWHERE ? NULL : rm_frame_find(f, where); /* most operands of a call */
}
void *rm_frame_piece(const rm_frame *f, const rm_where *where); /* of an AT_PIECE address */
/* Whether the session keeps the state from call to call. */
bool rm_frame_keeps(const rm_runner *runner, int32_t slot);

/* sequence_end.c. is_past_end: the stage needs no computation. skip_stage replaces its program: it zeroes the buffers
 * that begin to live here (lifetimes from..until) and copies carried states through. */
bool rm_is_past_end(const rm_frame *f);
void rm_skip_stage(const rm_frame *f, const rm_problem *problem, const rm_schedule *schedule, bool forward,
                   int64_t from, int64_t until);

#endif
