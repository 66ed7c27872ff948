/* op_run.h: runs one op on one sample, forward and backward, as an executor would: tile after tile, carried states
 * threaded through, weight gradients added up. Every number goes in and comes out as a double, so that runs in float
 * and in double, of any tile, can be compared. What is to be concluded from such runs is op_check.h's business. */
#ifndef RM_TEST_OP_RUN_H
#define RM_TEST_OP_RUN_H

#include "ops/op.h"

enum { OP_MAX_ARRAYS = RM_MAX_IN + 1 + 3 * RM_MAX_STATE };

typedef struct {
    int64_t count; /* 0: not there */
    double *value;
} op_array;

/* What goes in: for the whole sequence, whatever the tile. Reals are floats exactly. */
typedef struct {
    op_array x[RM_MAX_IN], state[RM_MAX_STATE], dy, dstate[RM_MAX_STATE];
} op_inputs;

/* What comes out. y and dx are for the whole sequence, state is what the last tile carries on, dstate the gradient of
 * what the first one was given. */
typedef struct {
    op_array y, state[RM_MAX_STATE], dx[RM_MAX_IN], dstate[RM_MAX_STATE];
} op_outputs;

/* Things backward, and rebuild before it, may be tricked with. OP_INPUT(i), OP_OUT and OP_STATE name what is or is not declared in `saves`. */
enum { OP_OUT = RM_MAX_IN, OP_STATE, OP_SAVEABLE };
typedef enum {
    OP_PLAIN,             /* everything is readable                                             */
    OP_UNDECLARED_NAN,    /* what is not declared is NaN (integers: other integers)             */
    OP_UNDECLARED_OTHER,  /* what is not declared has other values                              */
    OP_UNDECLARED_ABSENT, /* what is not declared is NULL: the contract                         */
    OP_DECLARED_OTHER,    /* `which`, which is declared, has other values                       */
    OP_UNWANTED,          /* dx[which] is NULL; from RM_MAX_IN on, dstate_in[which - RM_MAX_IN] */
    OP_ONTO,              /* weight gradients are added to 3, not to 0                          */
} op_trick;

typedef struct {
    const rm_op *op; /* of either precision */
    int sample;
    bool define;      /* the definitions, not the device's kernels                                    */
    bool with_states; /* the first tile is given states and the last one their gradients; else NULL */
    bool evaluate;    /* call.training is false */
    bool no_aux;      /* forward only, aux NULL */
    bool lean;        /* what backward reads is rebuilt, or forward run again, where the op says how    */
    bool forward_only;
    int64_t tau; /* 0: one tile */
    int threads, variant;
    op_trick trick;
    int which;
} op_setup;

/* What calls get as their queue: NULL, unless a test of another device's kernels says otherwise. */
extern const void *op_queue;

/* The steps of the sample's time axis; 1 when it has none. */
int64_t op_steps(const op_setup *setup);
/* Random inputs in +-[0.1, 1.1], integers inside their bounds; the same for the same sample and seed. */
void op_inputs_make(const op_setup *setup, uint64_t seed, op_inputs *out);
void op_inputs_free(op_inputs *inputs);
void op_outputs_free(op_outputs *outputs);

/* NULL, or a sentence: refused by infer, a buffer overrun, an input changed; if lean, that what was rebuilt is not what
 * forward left, though the op says so. `out` is to be freed either way. */
const char *op_run(const op_setup *setup, const op_inputs *in, op_outputs *out);

/* The sum over everything of dy y + dstate state: what backward differentiates. */
double op_objective(const op_inputs *in, const op_outputs *out);

#endif
