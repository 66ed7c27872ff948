/* op_run.h: runs one op on one sample, forward and backward, as an executor would: tile after tile, carried states
 * threaded through, weight gradients added up. Every number goes in and comes out as a double, so that runs in float
 * and in double, of any tile, can be compared. What is to be concluded from such runs is op_check.c's business. */
#ifndef RM_OP_RUN_H
#define RM_OP_RUN_H

#include "ops/op.h"

enum { RM_OP_MAX_ARRAYS = 2 * REMAT_MAX_INPUTS + 1 + 3 * REMAT_MAX_STATES };

typedef struct {
    int64_t count; /* 0: not there */
    double *value;
} rm_op_array;

/* What goes in: for the whole sequence, whatever the tile. Reals are floats exactly. */
typedef struct {
    rm_op_array x[REMAT_MAX_INPUTS], state[REMAT_MAX_STATES], dy, dstate[REMAT_MAX_STATES];
} rm_op_inputs;

/* What comes out. y and dx are for the whole sequence, state is what the last tile carries on, dstate the gradient of
 * what the first one was given. */
typedef struct {
    rm_op_array y, state[REMAT_MAX_STATES], dx[REMAT_MAX_INPUTS], dstate[REMAT_MAX_STATES];
    rm_op_array buffer[REMAT_MAX_INPUTS]; /* what is left in inputs that are buffers */
} rm_op_outputs;

/* Things backward, and rebuild before it, may be tricked with. Numbers of inputs, RM_OP_OUT and RM_OP_STATE name what is or is not declared in `saves`. */
enum { RM_OP_OUT = REMAT_MAX_INPUTS, RM_OP_STATE, RM_OP_SAVEABLE };
typedef enum {
    RM_OP_PLAIN,             /* everything is readable                                             */
    RM_OP_UNDECLARED_NAN,    /* what is not declared is NaN (integers: other integers)             */
    RM_OP_UNDECLARED_OTHER,  /* what is not declared has other values                              */
    RM_OP_UNDECLARED_ABSENT, /* what is not declared is NULL: the contract                         */
    RM_OP_DECLARED_OTHER,    /* `which`, which is declared, has other values                       */
    RM_OP_UNWANTED,          /* dx[which] is NULL; from REMAT_MAX_INPUTS on, dstate_in[which - REMAT_MAX_INPUTS] */
    RM_OP_ONTO,              /* weight gradients are added to 3, not to 0                          */
} rm_op_trick;

typedef struct {
    const remat_op *op; /* of either precision */
    int sample;
    bool define;      /* the definitions, where there are any, not the device's kernels               */
    bool with_states; /* the first tile is given states and the last one their gradients; else NULL */
    bool evaluate;    /* call.training is false */
    bool no_aux;      /* forward only, aux NULL */
    bool lean;        /* what backward reads is rebuilt, or forward run again, where the op says how    */
    bool forward_only;
    int64_t tau; /* 0: one tile, which it is anyway where the op's time is WHOLE */
    int threads, variant;
    rm_op_trick trick;
    int which;
} rm_op_setup;

extern const char *const rm_op_x_name[REMAT_MAX_INPUTS], *const rm_op_dx_name[REMAT_MAX_INPUTS]; /* for sentences */

/* What calls get as their queue: NULL, unless a test of another device's kernels says otherwise. */
extern const void *rm_op_queue;

/* The steps of the sample's time axis; 1 when it has none. */
int64_t rm_op_steps(const rm_op_setup *setup);
/* The most tiles that they may be cut into: as many, or 1. */
int64_t rm_op_tiles(const rm_op_setup *setup);
/* Random inputs in +-[0.1, 1.1], buffers above 0, integers inside their bounds; the same for the same sample and seed. Empty where memory is short. */
void rm_op_inputs_make(const rm_op_setup *setup, uint64_t seed, rm_op_inputs *out);
void rm_op_inputs_free(rm_op_inputs *inputs);
void rm_op_outputs_free(rm_op_outputs *outputs);

/* Whether memory was short in any call of this thread since it was set to false: then sentences say no more than that. */
extern _Thread_local bool rm_op_starved;

/* NULL, or a sentence: refused by infer, a buffer overrun, an input changed; if lean, that what was rebuilt is not what
 * forward left, though the op says so. `out` is to be freed either way. */
const char *rm_op_run(const rm_op_setup *setup, const rm_op_inputs *in, rm_op_outputs *out);

/* The sum over everything of dy y + dstate state: what backward differentiates. */
double rm_op_objective(const rm_op_inputs *in, const rm_op_outputs *out);

#endif
