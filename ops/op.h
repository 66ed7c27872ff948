/* op.h: what an op is. An op is one file that ends in one `const rm_op`; this header is all its author
 * needs. It knows tensors; it never knows plans, checkpoints or ranks.
 *
 * Rules of the road
 *   - SAVED lives from forward to backward; SCRATCH dies with the call.
 *   - Backward is handed data = NULL for every input and output it did not declare in `saves`.
 *   - Kernels overwrite dx; the graph adds. The exceptions are inputs marked in `weights`: those are the
 *     same for every tile, and backward ADDS its tile's gradient to dx (their sum over tiles is always
 *     made in the same order: that is what makes every plan's bits equal).
 *   - dx[i].data == NULL means "not wanted": skip that work. dy is never NULL.
 *   - The same call gives the same bits, however often it is made and wherever its buffers lie (all of
 *     them are aligned to RM_ALIGN bytes). Randomness is rm_random (rng.h), keyed by call->key.
 *   - Kernels allocate nothing, and cannot fail: what can be wrong is refused by infer.
 *   - Saving less. A stage may be kept LEAN: then it saves no aux of an op that has `rebuild`, which makes aux again, bit
 *     for bit, just before the op's backward; and neither y nor aux of an op marked `cheap`, whose forward is run again.
 *     docs/notes/cells.md says what that saves and costs.
 *
 * Two precisions. An op file is compiled twice: as float (rm_op_gelu) and, for the tests' finite
 * differences, as double (rm_op_gelu_f64). Its code says `real`. `define_*` is the readable definition, plain
 * loops; `forward`/`backward` are what runs on each device, and may be the same functions.
 */
#ifndef RM_OP_H
#define RM_OP_H

#include "engine/status.h"
#include "engine/tensor.h"

#define RM_MAX_IN 5
#define RM_MAX_STATE 2

typedef enum { RM_FORWARD, RM_BACKWARD, RM_REBUILD } rm_pass;
typedef enum { RM_DEVICE_CPU, RM_DEVICE_CUDA, RM_DEVICE_KINDS } rm_device_kind;

/* How an op behaves along time, when its first input is a sequence. Shapes below are a tile's. */
typedef enum {
    RM_TIME_POINTWISE, /* y (tau,B,..) from x (tau,B,..): any tile by itself. On WHOLE inputs: anything        */
    RM_TIME_RECURRENT, /* as above, and carries `n_state` states from each tile to the next                   */
    RM_TIME_SUM,       /* y has no time axis: the tiles' y add up to the result; each call gives its tile's
                          share, already divided by t_total where the op is a mean. dy is the same for all   */
    RM_TIME_LAST,      /* y has no time axis and reads only the last tile                                     */
} rm_time;

typedef struct {
    uint64_t seed, step; /* of an update and a shard of its batch: rng.h */
    uint32_t node;
} rm_key;

/* One call of a kernel, for one tile (or for the whole value, where there is no time axis). */
typedef struct {
    const void *attr;                                          /* the op's own attributes, or NULL                  */
    rm_tensor x[RM_MAX_IN];                                    /* inputs; desc.rank == -1: optional and not given   */
    rm_tensor y;                                               /* forward: to fill; backward: if declared in saves  */
    rm_tensor state_in[RM_MAX_STATE], state_out[RM_MAX_STATE]; /* carried; state_in.data NULL: zeros. Both
                                                           are readable in backward too (saves.state)        */
    rm_tensor dy, dx[RM_MAX_IN];                               /* backward                                          */
    rm_tensor dstate_out[RM_MAX_STATE];                        /* backward, in: gradient of state_out; NULL: zeros  */
    rm_tensor dstate_in[RM_MAX_STATE];                         /* backward, to fill; NULL: not wanted               */
    void *aux;          /* aux_bytes of the op's own saved data. Forward fills it, unless NULL: a forward-only
                           pass. Backward reads it and may overwrite it.                                     */
    void *scratch;      /* scratch_bytes, uninitialised                                                      */
    void *fixed;        /* fixed_bytes, uninitialised; NULL where the device needs none                      */
    const void *packed; /* packed_bytes derived from the weights by `pack`, made anew after every update     */
    rm_key key;
    int64_t t0, t_total; /* first timestep of this tile, timesteps in all; 0 and 1 where there is no time    */
    bool training;       /* false: evaluation, where dropout is the identity                                 */
    int threads;
    void *
        queue; /* CUDA: the rm_cuda_queue (cuda_queue.h) whose stream kernels are launched on; NULL on the CPU. There, all
                    data above lies in the device's memory; attr and the call itself in the host's             */
} rm_call;

typedef void rm_kernel(const rm_call *call);

typedef struct {
    double flops;           /* multiply and add count as two                          */
    double moved_bytes;     /* read and written, each operand once                    */
    uint64_t scratch_bytes; /* of one such call                                       */
} rm_cost;

/* A sample the tests run: shapes of x, attributes. Inputs that are integers are drawn from [0, bound). */
typedef struct {
    const char *name;
    rm_desc x[RM_MAX_IN]; /* rank -1: not given */
    bool sequence;        /* x[0] has a time axis: the harness also cuts it into tiles                        */
    const void *attr;
} rm_sample;

/* What one kind of device runs, and what memory of its own that takes. */
typedef struct {
    rm_kernel *forward, *backward, *rebuild; /* NULL: this device lacks it */
    /* Scratch of a call, where that is other than cost's scratch_bytes; `aux`: the call has one. NULL: the same. */
    uint64_t (*scratch_bytes)(const rm_desc *x, const void *attr, rm_pass pass, bool aux);
    /* More memory of a call, that lies in the same place in all calls of a session, whatever the node, tile or pass: what
     * touches nothing else that differs from tile to tile can be recorded once for all (cuda_queue.h, begin). NULL: none. */
    uint64_t (*fixed_bytes)(const rm_desc *x, const void *attr);
    uint64_t (*packed_bytes)(const rm_desc *x, const void *attr, int threads); /* NULL: none */
    void (*pack)(const rm_call *call, void *packed); /* reads x[i] of `weights`; NULL exactly if packed_bytes is */
} rm_op_device;

typedef struct {
    const char *name, *doc;
    int n_in, n_state;
    uint32_t optional; /* bit i: input i may be absent                                                       */
    uint32_t weights;  /* bit i: input i has no time axis and is shared by all tiles; dx[i] is added to      */
    uint32_t discrete; /* bit i: input i is I32 and has no gradient                                          */
    rm_time time;
    struct {
        uint32_t in; /* bit i: backward reads x[i].data */
        bool out;    /* backward reads y                */
        bool state;  /* backward reads state_in         */
    } saves;
    /* Result shape, and shapes of the carried states. The inputs' dtypes and ranks are checked here; the sentence
     * names the op and the shapes. */
    remat_status (*infer)(const rm_desc *x, const void *attr, rm_desc *y, rm_desc *state);
    void (*cost)(const rm_desc *x, const rm_desc *y, const void *attr, rm_pass pass, rm_cost *out);
    uint64_t (*aux_bytes)(const rm_desc *x, const void *attr); /* NULL: none */
    int64_t (*bound)(const rm_desc *x, const void *attr, int input); /* exclusive upper limit of a
                                                                        discrete input; NULL: none */
    rm_kernel *define_forward, *define_backward;
    rm_op_device on[RM_DEVICE_KINDS];
    /* Lean saving. rebuild fills call->aux with what forward left there, every bit of it. It may read what backward may
     * (x of saves.in, y, state_in), the inputs marked in `weights`, and `packed`; its cost is that of pass RM_REBUILD.
     * NULL: aux, if any, is always saved. An op either has rebuild or is cheap, not both. */
    rm_kernel *define_rebuild;
    bool (*rebuilds)(const rm_desc *x,
                     const void *attr); /* shapes for which the bits are the same; NULL: all of them */
    bool cheap; /* forward costs about as much as reading a saved y would: rather run it again than save */
    const rm_sample *samples;
    int n_samples;
} rm_op;

/* NULL: this device lacks it. */
static inline rm_kernel *rm_op_kernel(const rm_op *op, rm_device_kind device, rm_pass pass) {
    const rm_op_device *on = &op->on[device];
    return pass == RM_FORWARD ? on->forward : pass == RM_BACKWARD ? on->backward : on->rebuild;
}

/* The list, in the order of ops.def. */
extern const rm_op *const rm_ops[];
extern const int rm_n_ops;
const rm_op *rm_op_find(const char *name);     /* NULL: no such op */
const rm_op *rm_op_find_f64(const char *name); /* the same in double precision; tests only */

/* The CUDA column of a descriptor, RM_CUDA(mul, forward): the launcher in ops/elementwise/mul.cu, or NULL in a build without. */
#if (defined REMAT_HAVE_CUDA || defined RM_CUDA_EMULATED) && !defined RM_REAL_DOUBLE
#define OP(folder, name) extern rm_kernel rm_##name##_forward_cuda, rm_##name##_backward_cuda, rm_##name##_rebuild_cuda;
#include "ops/ops.def"
#undef OP
#define RM_CUDA(name, pass) rm_##name##_##pass##_cuda
#else
#define RM_CUDA(name, pass) NULL
#endif
#define RM_CUDA_KERNELS(name) {.forward = RM_CUDA(name, forward), .backward = RM_CUDA(name, backward)}

/* ---- Attributes of the ops that have some ------------------------------------------------------- */
typedef struct {
    double probability;
} rm_dropout_attr;
typedef struct {
    double factor;
} rm_scale_attr;
typedef struct {
    double epsilon;
} rm_layer_norm_attr;
typedef struct {
    double smoothing;
} rm_cross_entropy_attr; /* no attribute: 0 */

/* Recurrent ops (lstm, gru, rnn_tanh): inputs x, w_ih, w_hh, b_ih, b_hh.
 * x (tau,B,C) real: the input projection is x w_ih^T, w_ih (G*H,C).
 * x (tau,B) I32:    the embedding was folded in: slot w_ih holds a TABLE (V,G*H), and row x[t,b] of it is the
 *                   projection. The table's gradient is a scatter-add in a fixed order. */

#endif
