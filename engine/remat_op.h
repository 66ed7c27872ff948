/* remat_op.h: for authors of ops: the descriptor of an op, a call that puts an op of your own into a graph, and a check
 * that an op keeps its promises. The same struct describes Remat's own ops. examples/softsign.c is a complete op.
 *
 *     const remat_op softsign = {.struct_bytes = sizeof softsign, // constant; outlives graphs and sessions
 *                                .name = "softsign", .n_in = 2, ...};
 *     remat_op_check(&softsign, &softsign_f64, NULL);             // in a test: does it keep its promises?
 *     remat_value y, x_and_slope[] = {x, slope};
 *     remat_apply(graph, &softsign, x_and_slope, 2, NULL, &y);    // y = softsign(x, slope)
 *
 * Remat plans, stores lean, calibrates and traces such an op like its own, and names it in messages.
 *
 * Rules
 *   - SAVED data lives from forward to backward; SCRATCH lives for one call.
 *   - Backward gets data = NULL for every input and output that the op did not declare in `saves`.
 *   - Kernels overwrite y, state_out, aux, dx and dstate_in completely; the graph accumulates. The exceptions are
 *     inputs marked `shared`, which all tiles read: backward ADDS its tile's gradient to dx. Tiles are always added
 *     in the same order, so that every plan has the same bits.
 *   - dx[i].data == NULL means "not wanted": skip that work. So does dstate_in[k].data. dy is never NULL.
 *   - The same call gives the same bits, however often it is made and at whatever addresses its buffers are. A kernel
 *     depends on its call only: no static variables, no clock. Random numbers come from remat_random. A sum over
 *     several threads does not depend on their speed: add blocks of fixed size first, then the blocks' sums in order.
 *   - Kernels allocate nothing and cannot fail: infer refuses invalid inputs.
 *   - A ONCE result is small and is computed once a step, however often a plan recomputes the stage: statistics of a
 *     batch, or a random choice. The kernel `once` computes it before the node's first forward run; all runs read it.
 *     Only `once` writes BUFFERS (running statistics, in training steps), and it may communicate with other ranks.
 *   - A stage may be kept LEAN. It then does not save the aux of an op that has `rebuild`: rebuild recomputes aux, bit
 *     for bit, just before the op's backward. Nor does it save y and aux of an op marked `cheap`: forward runs again.
 *
 * Memory     Buffers are row-major and as long as their shapes say. aux, scratch, states and results start at multiples
 *            of 64 bytes; x, y and dy of a tile may start at any element. Buffers belong to the session: do not keep
 *            their addresses from call to call. Do not write to inputs.
 * Threads    A kernel may use up to call->threads threads. A session makes one call after another. Sessions in
 *            different threads call at the same time: infer, cost and kernels must not write to shared data.
 * Precision  Sessions compute in REMAT_F32. For precise finite differences remat_op_check needs the op in REMAT_F64,
 *            too: compile one source twice, with another `real`.
 */
#ifndef REMAT_OP_H
#define REMAT_OP_H

#include "remat.h"

#ifdef __cplusplus
extern "C" {
#endif

#define REMAT_MAX_INPUTS 12 /* inputs of an op and initial values of its carried states together */
#define REMAT_MAX_STATES 4  /* states that an op carries along time */

/* A shape. rank 0: a scalar; -1: an optional input that was not given. Unused dims are 1. */
typedef struct {
    remat_dtype dtype;
    int32_t rank;
    int64_t dim[REMAT_MAX_RANK];
} remat_desc;

typedef struct {
    remat_desc desc;
    void *data; /* borrowed; NULL: absent, or not wanted */
} remat_tensor;

int64_t remat_desc_count(const remat_desc *desc); /* elements; a scalar has 1 */
uint64_t remat_desc_bytes(const remat_desc *desc);
/* "f32 (331,4,64)", into a buffer of at least REMAT_DESC_TEXT bytes, which is returned. */
#define REMAT_DESC_TEXT 192
const char *remat_desc_text(const remat_desc *desc, char *buffer);

typedef enum { REMAT_FORWARD, REMAT_BACKWARD, REMAT_REBUILD, REMAT_ONCE } remat_pass;
typedef enum { REMAT_ON_CPU, REMAT_ON_CUDA, REMAT_DEVICE_KINDS } remat_device_kind;
#define REMAT_MAX_DEVICE_KINDS 4

/* How an op behaves along time if its first input is a sequence. Shapes are a tile's: tau timesteps. */
typedef enum {
    REMAT_TIME_POINTWISE, /* y (tau,B,..) from x (tau,B,..): tiles are independent. With STATIC inputs: any shapes */
    REMAT_TIME_RECURRENT, /* the same, and `n_state` states are carried from each tile to the next */
    REMAT_TIME_SUM,     /* y has no time axis: it is the sum of the tiles' y. Each call gives its tile's share, divided
                           by t_total if the op is a mean. dy is the same for all. A scalar y can be a session's loss */
    REMAT_TIME_LAST,    /* y has no time axis and reads the last tile only */
    REMAT_TIME_REVERSE, /* y is x reversed in time. A call reverses one tile; the graph takes the tiles in reverse
                           order: x[t0 .. t0 + tau) becomes y[t_total - t0 - tau .. t_total - t0) */
    REMAT_TIME_FULL,    /* x and y have a time axis, and a call gets all of it: no tiles. STATIC inputs: any shapes */
    REMAT_TIME_BEGIN,   /* x has no time axis, and y is a sequence (T,B,..), made at once */
} remat_time;

/* Identifies a stream of random numbers: the seed, an update and a shard of its batch (`step`), a node of the graph. */
typedef struct {
    uint64_t seed, step;
    uint32_t node;
} remat_key;
/* 32 random bits, a function of the arguments only: the same however often a tile is recomputed. `timestep` counts from
 * the start of the sequence (call->t0 + t), `element` within the timestep. */
uint32_t remat_random(const remat_key *key, int64_t timestep, uint64_t element);

/* One call of a kernel, for one tile, or for the whole value if there is no time axis. */
typedef struct {
    const void *attr;                          /* the op's own attributes, or NULL */
    remat_tensor x[REMAT_MAX_INPUTS];          /* inputs; desc.rank == -1: not given */
    remat_tensor y;                            /* forward: to fill; backward: if declared in saves */
    remat_tensor state_in[REMAT_MAX_STATES];   /* carried; data NULL: zeros. Backward: if declared in saves */
    remat_tensor state_out[REMAT_MAX_STATES];  /* forward: to fill; absent in backward */
    remat_tensor dy, dx[REMAT_MAX_INPUTS];     /* backward */
    remat_tensor dstate_out[REMAT_MAX_STATES]; /* backward: gradient of state_out; data NULL: zeros */
    remat_tensor dstate_in[REMAT_MAX_STATES];  /* backward: to fill; data NULL: not wanted */
    void *aux;     /* aux_bytes of saved data. Forward fills it, unless NULL (a forward-only pass). Backward reads it
                      and may overwrite it */
    void *scratch; /* scratch_bytes, uninitialised */
    void *fixed;   /* fixed_bytes, uninitialised; NULL if the device needs none */
    const void *packed; /* packed_bytes that `pack` made of the weights, again before a pass if they changed */
    void *once;         /* once_bytes: `once` fills it, the others read it. Valid until the step's end */
    const void *ranks;  /* for remat_sum_over_ranks */
    remat_key key;
    int64_t t0, t_total; /* first timestep of this tile, timesteps in total; 0 and 1 if there is no time axis */
    bool training;       /* false: evaluation, where dropout is the identity */
    int threads;
    void *queue; /* NULL on the CPU. On CUDA: for remat_cuda_stream; all data above is in device memory, while attr
                    and the call are in host memory */
} remat_call;

typedef void remat_kernel(const remat_call *call);

/* The cudaStream_t for the launches of a kernel, which returns before they are done. NULL on the CPU. */
void *remat_cuda_stream(const remat_call *call);

/* Sums `count` numbers over all ranks, in place (on CUDA in device memory); the same bits on all. Each rank must make
 * the same calls in the same order. Only kernels that run exactly once under every plan may therefore call it: `once`
 * and `backward` of a `collective` op. Without other ranks, and in evaluations, the numbers are unchanged. A rank that
 * fails ends the step. */
void remat_sum_over_ranks(const remat_call *call, double *values, int64_t count);

/* Finite numbers, 0 or more. An op may ask for at most 2^60 bytes of each kind of memory. */
typedef struct {
    double flops;           /* multiply and add count as two */
    double moved_bytes;     /* read and written, each operand once */
    uint64_t scratch_bytes; /* of one such call */
} remat_cost;

/* A sample that remat_op_check runs. Integer inputs are drawn from [0, bound), real ones from both signs. */
typedef struct {
    const char *name;
    remat_desc x[REMAT_MAX_INPUTS]; /* rank -1: not given */
    bool sequence;                  /* x[0] has a time axis: the check also cuts it into tiles */
    bool positive;                  /* real inputs are drawn above 0, as a logarithm needs them */
    const void *attr;
} remat_sample;

/* An op's kernels on one kind of device, and the memory that they take. All but the CPU's forward and backward may be
 * NULL. */
typedef struct {
    remat_kernel *forward, *backward, *rebuild; /* NULL: not on this device; sessions on it say so */
    /* Scratch of a call if it differs from cost's scratch_bytes (NULL: it does not). `aux`: the call has aux; `threads`:
     * those of the session, and at least the call's. */
    uint64_t (*scratch_bytes)(const remat_desc *x, const void *attr, remat_pass pass, bool aux, int threads);
    /* Memory that has the same address in all calls of a session, whatever the node, tile or pass. A CUDA graph of
     * work on this memory and other constant addresses can be recorded once and replayed for every tile. NULL: none. */
    uint64_t (*fixed_bytes)(const remat_desc *x, const void *attr);
    uint64_t (*packed_bytes)(const remat_desc *x, const void *attr, int threads); /* NULL: none */
    /* Reads the `shared` inputs, which must exist before the first stage. NULL exactly if packed_bytes is. */
    void (*pack)(const remat_call *call, void *packed);
    remat_kernel *once; /* NULL exactly if the op's once_bytes is */
} remat_op_device;

typedef struct {
    size_t struct_bytes; /* sizeof(remat_op) */
    const char *name;    /* at most 40 bytes; in messages, measured times and names of carried states ("NAME.0.h") */
    const char *doc;     /* one line for readers, or NULL */
    int n_in, n_state;   /* 1 <= n_in <= REMAT_MAX_INPUTS; x[0] is always given. n_state: of RECURRENT ops only */
    const char *state_name[REMAT_MAX_STATES]; /* of carried states, after "NAME.0."; NULL: "h", "c", "s2", "s3" */
    uint32_t optional;                        /* bit i: input i may be absent */
    uint32_t shared;   /* bit i: input i has no time axis and is shared by all tiles; backward adds to dx[i] */
    uint32_t discrete; /* bit i: input i is I32 and has no gradient */
    uint32_t buffers;  /* bit i: input i is a buffer (remat_buffer), which `once` reads and, if call->training, writes.
                          Other kernels get NULL. A buffer that is written is an input of one node only */
    uint32_t resets; /* the bit of one optional input, F32 (T,B), of a RECURRENT op: where it is above 0, states before
                        that timestep are zero (remat_reset_states). 0: none */
    size_t attr_bytes; /* size of attr, which the graph copies. Numbers only, without addresses or padding: equal
                          attributes have equal bytes. 0: attr is NULL. Otherwise it may be NULL, too, and infer refuses
                          that or uses defaults */
    remat_time time;
    struct {
        uint32_t in; /* bit i: backward reads x[i].data */
        bool out;    /* backward reads y */
        bool state;  /* backward reads state_in */
    } saves;
    /* Writes the shapes of the result and of the carried states, all F32 (F64 for F64 inputs). Checks dtypes and ranks
     * of the inputs: return remat_refuse(..) with a message that names the op and the shapes. It is also called for
     * tiles, except for FULL ops: sequences, and y if it has a time axis, then have fewer timesteps, and nothing else
     * changes. If it refuses a length, remat_session_create says which tiles work. */
    remat_status (*infer)(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state);
    void (*cost)(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass, remat_cost *out);
    uint64_t (*aux_bytes)(const remat_desc *x, const void *attr);  /* NULL: none */
    uint64_t (*once_bytes)(const remat_desc *x, const void *attr); /* of a tile, if there are tiles; NULL: none */
    bool (*collective)(const void *attr);                          /* it calls remat_sum_over_ranks; NULL: never */
    /* Exclusive upper limit of a discrete input; NULL: none. */
    int64_t (*bound)(const remat_desc *x, const void *attr, int input);
    /* A value outside [0, bound) that a discrete input may also have, if all ops that read it say so; NULL, or a value
     * inside: none. */
    int64_t (*ignored)(const void *attr, int input);
    remat_op_device on[REMAT_MAX_DEVICE_KINDS]; /* by remat_device_kind */
    /* The op as plain loops, to which the check compares the kernels. All NULL: the CPU's kernels are the definition.
     */
    remat_kernel *define_forward, *define_backward, *define_rebuild, *define_once;
    /* For lean plans. rebuild fills call->aux with what forward left there, bit for bit. It may read what backward may
     * (x of saves.in, y, state_in), the `shared` inputs, and `packed`; its cost is that of REMAT_REBUILD. An op without
     * rebuild always saves its aux. An op has rebuild or is cheap, not both. */
    bool (*rebuilds)(const remat_desc *x, const void *attr); /* are bits equal for these shapes? NULL: for all */
    bool cheap; /* forward costs about as much as reading a saved y: run it again instead of saving. POINTWISE
                   and REVERSE ops only */
    int n_samples;
    const remat_sample *samples; /* two to five small ones, for remat_op_check */
    uint64_t first_for;   /* bit i: backward reads x[0] for the gradient of input i. If none of these is wanted, x[0] is
                             not saved, and backward gets NULL. 0: it reads x[0] for any gradient */
    uint64_t denominator; /* the bit of one `shared` scalar input of a SUM, the number of targets that count: y is
                             divided by it. It also weights micro steps and ranks (remat_config.loss_mean). 0: none */
    uint64_t random;      /* 1: a dropout: with call->training it draws from remat_random, else y = x. In evaluations
                             with dropout (remat_set_dropout), call->training is set for such ops only */
    uint64_t within_call; /* 1: the states of a RECURRENT op are carried from tile to tile, but not from call to call
                             (remat_config.stateful), nor given: it does not read state_in where call->t0 is 0 */
    uint64_t constant;    /* 1: back-propagation takes y for a constant: its inputs get no gradient from it, and backward is
                             never called and may be NULL */
} remat_op;

/* For infer: records the message, printf-style ("softsign: slope is %s; ..."), and returns INVALID. */
__attribute__((format(printf, 1, 2))) remat_status remat_refuse(const char *format, ...);

/* results[0] = op(inputs[0], ..). `inputs` has n_inputs values; REMAT_NONE stands for an optional input that is not
 * given, and optional inputs at the end may be left out. The graph copies attr (op->attr_bytes) and keeps the address
 * of op. After a mistake results[0] is REMAT_NONE, and remat_graph_check returns the same status. INVALID: the inputs
 * or the descriptor are invalid, or another op has the same name. `results` may be `inputs`. */
remat_status remat_apply(remat_graph *graph, const remat_op *op, const remat_value *inputs, int n_inputs,
                         REMAT_OPTIONAL const void *attr, remat_value *results);

/* ---- The check ---------------------------------------------------------------------------------- */

typedef struct {
    bool same_across_threads; /* one thread and two gave the same bits: desirable, not required */
    double gradient_error;    /* largest difference between a finite difference and a gradient / the tolerance */
    double float_error;   /* largest difference between float kernels and double definitions / the tolerance */
    uint64_t reserved[5]; /* zeros */
} remat_op_report;

/* Runs the op's CPU kernels and definitions on all its samples, in milliseconds to seconds, and checks:
 *   - infer refuses wrong inputs and names the op; shapes and costs follow the timesteps
 *   - outputs are written completely, and nothing outside of the buffers
 *   - a call has the same bits at whatever addresses its buffers are
 *   - backward reads exactly what `saves` declares; unwanted gradients change nothing
 *   - gradients of `shared` inputs are added to dx
 *   - any tile gives the same result (mirrored for REVERSE; FULL ops are not cut)
 *   - tensors that a lean stage does not save are rebuilt bit for bit
 *   - float kernels agree with double, and gradients with finite differences
 * It cannot know whether forward computes what you meant.
 *
 * op_f64 is the same op in double. INVALID: the message says which promise is broken, on which sample, by how much.
 * First the check changes data that backward does not declare and compares the results; only then does it pass NULL for
 * them. A kernel that then reads a NULL pointer crashes the program. Different threads may call it at the same time. */
remat_status remat_op_check(const remat_op *op, const remat_op *op_f64, REMAT_OPTIONAL remat_op_report *report);

#ifdef __cplusplus
}
#endif
#endif
