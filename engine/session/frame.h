/* frame.h: a stage that is being run: which tile it is, and where an operand of its program lies. Private to the executor: run.c,
 * and sequence_end.c, which takes a program's place. */
#ifndef RM_FRAME_H
#define RM_FRAME_H

#include "engine/session/run.h"

/* The stage whose program runs, and what its addresses are relative to. stage < 0: tables. */
typedef struct {
    rm_runner *runner;
    int64_t stage, tau, t0, position; /* position: in its sweep */
    int64_t t0_from_end;              /* of reversed sequences */
    int64_t gradients;                /* the first piece of one */
    bool first;                       /* of the stage's forward runs in this step */
    bool collective;                  /* kernels may talk to other ranks: a training step's plan is run */
    bool past_end;                    /* of the sequences: nothing is computed */
} rm_frame;

rm_frame rm_frame_of(rm_runner *runner, int64_t stage);

/* NULL: there is nothing: before the first tile there is no carried state, and what nobody wants has no place. */
void *rm_frame_find(const rm_frame *f, const rm_where *where);
static inline void *rm_frame_address(const rm_frame *f, const rm_where *where) {
    return where->space == RM_NOWHERE ? NULL : rm_frame_find(f, where); /* most operands of a call */
}
void *rm_frame_piece(const rm_frame *f, const rm_where *where); /* of an AT_PIECE address */
/* Is it a state that goes on from call to call? */
bool rm_frame_keeps(const rm_runner *runner, int32_t slot);

/* sequence_end.c. Whether nothing of this stage need be computed; and what is done in place of its program: what begins to live (the
 * lifetimes from..until) is 0, but what is carried goes through. */
bool rm_is_past_end(const rm_frame *f);
void rm_pass_by(const rm_frame *f, const rm_problem *problem, const rm_schedule *schedule, bool forward, int64_t from,
                int64_t until);

#endif
