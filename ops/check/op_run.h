/* op_run.h: runs one op on one sample, forward and backward, as the engine would: tile by tile, with states
 * carried over and weight gradients accumulated. All inputs and outputs are doubles, so that runs in float
 * and in double, and with any tile size, can be compared. op_check.h draws the conclusions. */
#ifndef RM_OP_RUN_H
#define RM_OP_RUN_H

#include "ops/op.h"

enum { RM_OP_MAX_ARRAYS = 2 * REMAT_MAX_INPUTS + 1 + 3 * REMAT_MAX_STATES };

typedef struct {
    int64_t count; /* 0: absent */
    double *value;
} rm_op_array;

/* Inputs for the whole sequence, whatever the tile size. Real values are exactly representable as floats. */
typedef struct {
    rm_op_array x[REMAT_MAX_INPUTS], state[REMAT_MAX_STATES], dy, dstate[REMAT_MAX_STATES];
} rm_op_inputs;

/* Results. y and dx cover the whole sequence; state is the last tile's state_out, dstate the gradient of the first
 * tile's state_in. */
typedef struct {
    rm_op_array y, state[REMAT_MAX_STATES], dx[REMAT_MAX_INPUTS], dstate[REMAT_MAX_STATES];
    rm_op_array buffer[REMAT_MAX_INPUTS]; /* inputs that are buffers, after the run */
} rm_op_outputs;

/* Tricks to play on backward, and on rebuild before it. The tensors of `saves` are numbered: the inputs, RM_OP_OUT,
 * RM_OP_STATE. */
enum { RM_OP_OUT = REMAT_MAX_INPUTS, RM_OP_STATE, RM_OP_SAVEABLE };
typedef enum {
    RM_OP_PLAIN,             /* everything is readable                                             */
    RM_OP_UNDECLARED_NAN,    /* undeclared tensors are NaN (integers: other integers)              */
    RM_OP_UNDECLARED_OTHER,  /* undeclared tensors have other values                               */
    RM_OP_UNDECLARED_ABSENT, /* undeclared tensors are NULL, as the contract says                  */
    RM_OP_DECLARED_OTHER,    /* the declared tensor `which` has other values                       */
    RM_OP_UNWANTED,          /* dx[which] is NULL; from REMAT_MAX_INPUTS on, dstate_in[which - REMAT_MAX_INPUTS] */
    RM_OP_ONTO,              /* weight gradients start at 3 instead of 0                           */
} rm_op_trick;

typedef struct {
    const remat_op *op; /* in either precision */
    int sample;
    bool define;      /* run the definitions, if any, instead of the device's kernels                 */
    bool with_states; /* the first tile gets states and the last tile their gradients; else NULL    */
    bool evaluate;    /* call.training is false */
    bool no_aux;      /* forward only, aux NULL */
    bool lean;        /* call rebuild, or forward again, before backward, if the op supports it        */
    bool forward_only;
    int64_t tau; /* timesteps of a tile; 0, and always for ops whose time is WHOLE: one tile */
    int threads, variant;
    rm_op_trick trick;
    int which;
} rm_op_setup;

extern const char *const rm_op_x_name[REMAT_MAX_INPUTS], *const rm_op_dx_name[REMAT_MAX_INPUTS]; /* for messages */
extern const char *const rm_op_state_in_name[REMAT_MAX_STATES], *const rm_op_state_out_name[REMAT_MAX_STATES];
extern const char *const rm_op_dstate_in_name[REMAT_MAX_STATES];

/* The queue of all calls: NULL, unless a test of another device's kernels sets it. */
extern const void *rm_op_queue;

/* The length of the sample's time axis; 1 if it has none. */
int64_t rm_op_steps(const rm_op_setup *setup);
/* The largest number of tiles: one per timestep, or 1 if the op cannot be cut. */
int64_t rm_op_tiles(const rm_op_setup *setup);
/* Random inputs in +-[0.1, 1.1], buffers above 0, integers within their bounds; a function of sample and seed. Empty if
 * memory is short. */
void rm_op_inputs_make(const rm_op_setup *setup, uint64_t seed, rm_op_inputs *out);
void rm_op_inputs_free(rm_op_inputs *inputs);
void rm_op_outputs_free(rm_op_outputs *outputs);

/* Whether memory was short in any call of this thread since it was set to false. Then messages say only that. */
extern _Thread_local bool rm_op_starved;

/* Returns NULL, or an error message: infer refused, a buffer was overrun, an input changed; if lean, rebuild differs
 * from forward although the op claims equal bits. Free `out` in either case. */
const char *rm_op_run(const rm_op_setup *setup, const rm_op_inputs *in, rm_op_outputs *out);

/* The scalar that backward differentiates: the sum of dy y + dstate state over all elements. */
double rm_op_objective(const rm_op_inputs *in, const rm_op_outputs *out);

#endif
