/* remat_op.h: for authors of ops: what an op is, how a program puts one of its own into a graph, and a check of what an
 * op promises. Remat's own ops are described by the same struct. examples/softsign.c is a complete op.
 *
 *     const remat_op softsign = {.struct_bytes = sizeof softsign, // constant; outlives graphs and sessions
 *                                .name = "softsign", .n_in = 2, ...};
 *     remat_op_check(&softsign, &softsign_f64, NULL);             // in a test: does it keep its promises?
 *     remat_value y, x_and_slope[] = {x, slope};
 *     remat_apply(graph, &softsign, x_and_slope, 2, NULL, &y);    // y = softsign(x, slope)
 *
 * Such an op is planned, stored lean, calibrated, traced and named in messages like Remat's own.
 *
 * Rules
 *   - SAVED data lives from forward to backward; SCRATCH lives for one call.
 *   - Backward gets data = NULL for every input and output that the op did not declare in `saves`.
 *   - Kernels overwrite y, state_out, aux, dx and dstate_in completely; the graph accumulates. The exceptions are
 *     inputs marked `shared`: they are the same for every tile, and backward ADDS its tile's gradient to dx. The
 *     tiles' sum is always made in the same order, so that every plan has the same bits.
 *   - dx[i].data == NULL means "not wanted": skip that work. So does dstate_in[k].data. dy is never NULL.
 *   - The same call gives the same bits, however often it is made and wherever its buffers lie. A kernel depends on its
 *     call only: no static variables, no clock. Random numbers come from remat_random. Several threads add up in an
 *     order that does not depend on their speed: blocks of fixed size first, then the blocks' sums in order.
 *   - Kernels allocate nothing and cannot fail: infer refuses what cannot work.
 *   - A ONCE result is small and is computed once a step, however often a plan recomputes the stage: statistics of a
 *     batch, or a random choice. The kernel `once` computes it before the node's first forward run; all runs read it.
 *     Only `once` writes BUFFERS (running statistics, in training steps), and it may communicate with other ranks.
 *   - A stage may be kept LEAN. It then does not save aux of an op that has `rebuild`, which recomputes aux, bit for
 *     bit, just before the op's backward; nor y and aux of an op marked `cheap`, whose forward is run again.
 *
 * Memory     Buffers are row-major and as long as their shapes say. aux, scratch, states and results start at multiples
 *            of 64 bytes; x, y and dy of a tile may start at any element. Buffers belong to the session: keep none from
 *            call to call. Do not write to inputs.
 * Threads    A kernel may use up to call->threads threads. A session makes one call after another. Sessions in
 *            different threads call at the same time: infer, cost and kernels share nothing that is written.
 * Precision  Sessions compute in REMAT_F32. remat_op_check wants the op in REMAT_F64, too, for sharp finite
 *            differences: compile one source twice, with another `real`.
 */
#ifndef REMAT_OP_H
#define REMAT_OP_H

#include "remat.h"

#ifdef __cplusplus
extern "C" {
#endif

#define REMAT_MAX_INPUTS 16 /* of an op: its inputs and the initial values of its carried states together */
#define REMAT_MAX_STATES 8  /* that an op carries along time */

/* A shape. rank 0 is a scalar; -1: an optional input that was not given. Unused dims are 1. */
typedef struct {
    remat_dtype dtype;
    int32_t rank;
    int64_t dim[REMAT_MAX_RANK];
} remat_desc;

typedef struct {
    remat_desc desc;
    void *data; /* borrowed; NULL: not there, or not wanted */
} remat_tensor;

int64_t remat_desc_count(const remat_desc *); /* elements; a scalar has 1 */
uint64_t remat_desc_bytes(const remat_desc *);
/* "f32 (331,4,64)", into a buffer of at least REMAT_DESC_TEXT bytes, which is returned. */
#define REMAT_DESC_TEXT 192
const char *remat_desc_text(const remat_desc *, char *buffer);

typedef enum { REMAT_FORWARD, REMAT_BACKWARD, REMAT_REBUILD, REMAT_ONCE } remat_pass;
typedef enum { REMAT_ON_CPU, REMAT_ON_CUDA, REMAT_DEVICE_KINDS } remat_device_kind;
#define REMAT_MAX_DEVICE_KINDS 4

/* How an op behaves along time, when its first input is a sequence. Shapes below are a tile's: tau timesteps. */
typedef enum {
    REMAT_TIME_POINTWISE, /* y (tau,B,..) from x (tau,B,..): any tile by itself. On WHOLE inputs: anything        */
    REMAT_TIME_RECURRENT, /* as above, and carries `n_state` states from each tile to the next                   */
    REMAT_TIME_SUM,       /* y has no time axis: the tiles' y add up to the result; each call gives its tile's
                             share, already divided by t_total where the op is a mean. dy is the same for all.
                             With a scalar y it can be a session's loss                                         */
    REMAT_TIME_LAST,      /* y has no time axis and reads only the last tile                                     */
    REMAT_TIME_REVERSE,   /* y is x with time reversed. A call sees one tile and reverses it; the graph takes the
                             tiles in reverse order: x[t0 .. t0 + tau) becomes y[t_total - t0 - tau .. t_total - t0) */
    REMAT_TIME_FULL,      /* x and y have a time axis, and a call is given all of it: never cut into tiles. On WHOLE
                             inputs: anything                                                                   */
    REMAT_TIME_BEGIN,     /* x has no time axis, and y has: it is a sequence (T,B,..), made whole              */
} remat_time;

/* Names what is drawn: of an update and a shard of its batch, and of a node of the graph. */
typedef struct {
    uint64_t seed, step;
    uint32_t node;
} remat_key;
/* 32 random bits, a function of these alone: the same however often a tile is run. `timestep` counts from the begin of
 * the sequence (call->t0 + t), `element` within it. */
uint32_t remat_random(const remat_key *, int64_t timestep, uint64_t element);

/* One call of a kernel, for one tile (or for the whole value, where there is no time axis). */
typedef struct {
    const void *attr;                 /* the op's own attributes, or NULL                                        */
    remat_tensor x[REMAT_MAX_INPUTS]; /* inputs; desc.rank == -1: optional and not given                         */
    remat_tensor y;                   /* forward: to fill; backward: if declared in saves                        */
    remat_tensor state_in[REMAT_MAX_STATES];   /* carried; data NULL: zeros. Backward: if declared in saves        */
    remat_tensor state_out[REMAT_MAX_STATES];  /* forward: to fill; not there in backward                         */
    remat_tensor dy, dx[REMAT_MAX_INPUTS];     /* backward                                                        */
    remat_tensor dstate_out[REMAT_MAX_STATES]; /* backward, in: gradient of state_out; NULL: zeros               */
    remat_tensor dstate_in[REMAT_MAX_STATES];  /* backward, to fill; NULL: not wanted                             */
    void *aux;          /* aux_bytes of the op's own saved data. Forward fills it, unless NULL: a forward-only
                           pass. Backward reads it and may overwrite it.                                     */
    void *scratch;      /* scratch_bytes, uninitialised                                                      */
    void *fixed;        /* fixed_bytes, uninitialised; NULL where the device needs none                      */
    const void *packed; /* packed_bytes derived from the weights by `pack`, anew before passes where they changed */
    void *once;         /* once_bytes. `once` fills it; the others read it. It lies there until the step's end */
    const void *ranks;  /* for remat_sum_over_ranks */
    remat_key key;
    int64_t t0, t_total; /* first timestep of this tile, timesteps in all; 0 and 1 where there is no time    */
    bool training;       /* false: evaluation, where dropout is the identity                                 */
    int threads;
    void *queue; /* on CUDA: for remat_cuda_stream; NULL on the CPU. There, all data above lies in the device's memory;
                    attr and the call itself in the host's                                                        */
} remat_call;

typedef void remat_kernel(const remat_call *call);

/* The cudaStream_t that a kernel's launches go to, and nothing else: a call returns before it is done. NULL on the CPU.
 */
void *remat_cuda_stream(const remat_call *);

/* Adds up `count` numbers over all ranks that train together, in place (on CUDA, in the device's memory): the same bits
 * on all. Each rank makes the same such calls in the same order, so they are for what every plan runs once: `once`, and
 * `backward`, of an op that is `collective`. Without other ranks, and in an evaluation, the numbers stay as they are. A
 * rank that fails ends the step. */
void remat_sum_over_ranks(const remat_call *call, double *values, int64_t count);

/* Numbers that are finite and not negative. No kind of memory that an op asks for is more than 2^60 bytes. */
typedef struct {
    double flops;           /* multiply and add count as two                          */
    double moved_bytes;     /* read and written, each operand once                    */
    uint64_t scratch_bytes; /* of one such call                                       */
} remat_cost;

/* A sample that remat_op_check runs: shapes of x, attributes. Inputs that are integers are drawn from [0, bound). */
typedef struct {
    const char *name;
    remat_desc x[REMAT_MAX_INPUTS]; /* rank -1: not given */
    bool sequence;                  /* x[0] has a time axis: the check also cuts it into tiles                   */
    const void *attr;
} remat_sample;

/* What one kind of device runs, and what memory of its own that takes. All but the CPU's forward and backward may be
 * NULL. */
typedef struct {
    remat_kernel *forward, *backward, *rebuild; /* NULL: this device lacks it; sessions on it say so */
    /* Scratch of a call, where that is other than cost's scratch_bytes; `aux`: the call has one. NULL: the same. */
    uint64_t (*scratch_bytes)(const remat_desc *x, const void *attr, remat_pass pass, bool aux);
    /* More memory of a call, that lies in the same place in all calls of a session, whatever the node, tile or pass:
     * what touches nothing else that differs from tile to tile can be recorded once for all. NULL: none. */
    uint64_t (*fixed_bytes)(const remat_desc *x, const void *attr);
    uint64_t (*packed_bytes)(const remat_desc *x, const void *attr, int threads); /* NULL: none */
    void (*pack)(const remat_call *call, void *packed); /* reads x[i] of `shared`, which have to be there before
                                                            the first stage; NULL exactly if packed_bytes is */
    remat_kernel *once;                                 /* NULL exactly if the op's once_bytes is */
} remat_op_device;

typedef struct {
    size_t struct_bytes;    /* sizeof(remat_op): an op may be compiled apart from the program, with another header */
    const char *name, *doc; /* doc: one line for readers, or NULL. name: at most 40 bytes; sentences, measured times and
                               carried states ("NAME.0.h") are called by it */
    int n_in,
        n_state; /* 1 <= n_in <= REMAT_MAX_INPUTS, of which x[0] is always given; n_state: of RECURRENT ops alone */
    const char *state_name[REMAT_MAX_STATES]; /* what carried states are called after "NAME.0."; NULL: "h", "c", "s2",
                                                 "s3", .. */
    uint32_t optional; /* bit i: input i may be absent                                                       */
    uint32_t shared;   /* bit i: input i has no time axis and is shared by all tiles; dx[i] is added to      */
    uint32_t discrete; /* bit i: input i is I32 and has no gradient                                          */
    uint32_t
        buffers;     /* bit i: input i is a buffer (remat_buffer), which `once` reads and, where call->training, writes;
                              other kernels are handed NULL. A buffer that is written is an input of one node only */
    uint32_t resets; /* the bit of one optional input, F32 (T,B), of a RECURRENT op: where it is above 0, the op takes
                        its states before that timestep as zeros (remat_reset_states). 0: it has none                 */
    size_t attr_bytes; /* that attr points to, copied by the graph. Numbers alone, no addresses and no padding: the same
                          attributes are the same bytes. 0: attr is NULL. It may be NULL otherwise, too: infer
                          refuses that, or takes defaults                                                    */
    remat_time time;
    struct {
        uint32_t in; /* bit i: backward reads x[i].data                */
        bool out;    /* backward reads y                               */
        bool state;  /* backward reads state_in                        */
    } saves;
    /* Result shape, and shapes of the carried states, all F32 (F64 of F64 inputs). The inputs' dtypes and ranks are
     * checked here: return remat_refuse(..), whose sentence names the op and the shapes. Also called for tiles (but for
     * WHOLE ops): inputs with a time axis then have fewer timesteps, and so has y, if it has one; nothing else changes
     * with them. A length may be refused: then remat_session_create says for which tiles. */
    remat_status (*infer)(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state);
    void (*cost)(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass, remat_cost *out);
    uint64_t (*aux_bytes)(const remat_desc *x, const void *attr);  /* NULL: none */
    uint64_t (*once_bytes)(const remat_desc *x, const void *attr); /* NULL: none; of a tile, where there are tiles */
    bool (*collective)(const void *attr);                          /* it calls remat_sum_over_ranks; NULL: never */
    int64_t (*bound)(const remat_desc *x, const void *attr, int input); /* exclusive upper limit of a
                                                                           discrete input; NULL: none */
    int64_t (*ignored)(const void *attr, int input); /* a value outside [0, bound) that a discrete input may have, too,
                                                        if all that read it say so; NULL, or one inside: none */
    remat_op_device on[REMAT_MAX_DEVICE_KINDS];      /* by remat_device_kind */
    /* The op as plain loops, which the check compares kernels with. All NULL: the CPU's kernels are that. */
    remat_kernel *define_forward, *define_backward, *define_rebuild, *define_once;
    /* Lean saving. rebuild fills call->aux with what forward left there, every bit of it. It may read what backward may
     * (x of saves.in, y, state_in), the inputs marked in `shared`, and `packed`; its cost is that of pass
     * REMAT_REBUILD. NULL: aux, if any, is always saved. An op either has rebuild or is cheap, not both. */
    bool (*rebuilds)(const remat_desc *x,
                     const void *attr); /* shapes for which the bits are the same; NULL: all of them */
    bool cheap; /* forward costs about as much as reading a saved y would: rather run it again than save. POINTWISE and
                   REVERSE ops alone */
    int n_samples;
    const remat_sample *samples; /* two to five small ones, for remat_op_check */
    uint64_t first_for;   /* bit i: backward reads x[0] for the gradient of input i. Where none of these is wanted, x[0]
                             is not saved, and backward is handed NULL. 0: it reads x[0] for any gradient */
    uint64_t denominator; /* the bit of one scalar input, marked in `shared`, of a SUM: y is a sum divided by it, the
                             number of targets that count. Micro steps and ranks weigh such a loss by it
                             (remat_config.loss_mean). 0: none */
} remat_op;

/* Refuses in infer: records the sentence, printf-style ("softsign: slope is %s; ..."), and returns REMAT_INVALID. */
__attribute__((format(printf, 1, 2))) remat_status remat_refuse(const char *format, ...);

/* results[0] = op(inputs[0], ..): n_inputs values, or REMAT_NONE where an optional one is not given; those missing at
 * the end are not given. The graph copies attr (op->attr_bytes; NULL: none) and keeps the address of op. After a
 * mistake results[0] is "no value", and the graph remembers it as of any builder (remat_graph_check); the status is the
 * same. INVALID: what cannot work, also in the descriptor; a name that an op of Remat's has, or another op of this
 * graph. `results` may be `inputs`. */
remat_status remat_apply(remat_graph *, const remat_op *op, const remat_value *inputs, int n_inputs, const void *attr,
                         remat_value *results);

/* ---- The check ---------------------------------------------------------------------------------- */

typedef struct {
    bool same_across_threads; /* one thread and two gave the same bits: wished for, not demanded */
    double gradient_error;    /* the worst difference between a finite difference and a gradient, of what is allowed */
    double float_error;   /* the worst difference between float kernels and definitions in double, of what is allowed */
    uint64_t reserved[5]; /* zeros */
} remat_op_report;

/* Runs the op's CPU kernels and definitions on all its samples, in milliseconds to seconds: infer refuses, and names
 * the op; shapes and costs fit the timesteps; outputs are written in full, and nothing outside the buffers; the same
 * call gives the same bits, wherever the buffers lie; backward reads what `saves` declares, nothing else, and needs all
 * of it; unwanted gradients change nothing; weight gradients are added; any tile gives the same result (mirrored where
 * time is REVERSE; WHOLE ops are not cut); what a lean stage does not save is made again bit for bit; float kernels
 * agree with double; gradients agree with finite differences. What it cannot know is whether forward computes what was
 * meant.
 *
 * op_f64 is the same op in double. INVALID: a promise is broken, and the sentence says which, on which sample, by how
 * much. MEMORY. A kernel that follows a NULL pointer ends the program: what backward did not declare is absent only
 * after it was found not to matter. `report` NULL: not wanted. May run in several threads at once. */
remat_status remat_op_check(const remat_op *op, const remat_op *op_f64, remat_op_report *report);

#ifdef __cplusplus
}
#endif
#endif
