/* session.h: a session plans the training step of a graph and runs it. Part of remat.h. */
#ifndef REMAT_SESSION_H
#define REMAT_SESSION_H

#include "graph.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Plan --------------------------------------------------------------------------------------- */

/* The kinds of named arrays that a session has.
 *   GRADIENT         of the trained parameters, then of the inputs of remat_requires_grad. Gradients of inputs are
 *                    those of the last call's batch, not summed over micro steps or ranks; with micro_steps = K they
 *                    are scaled by 1/K. If the loss ignores targets, the scale is the share of targets that count.
 *                    Before the last micro step that share is not known: it is 1/K of what counts by what counts in
 *                    the first
 *   OPTIMIZER        "PARAMETER.momentum_buffer", "PARAMETER.exp_avg", "PARAMETER.exp_avg_sq", ..
 *   OUTPUT           of the last remat_evaluate, or of the last pass of any kind if the loss depends on the output.
 *                    INVALID before the first
 *   CARRIED          states (B,H) of a stateful session: "lstm.0.h" and "lstm.0.c" of the first LSTM layer, "gru.1.h"
 *                    of the second GRU layer, .. (docs/stateful.md)
 *   OUTPUT_GRADIENT  of the differentiated outputs, in their shapes. The program writes it between remat_forward and
 *                    remat_backward */
typedef enum {
    REMAT_INPUT,
    REMAT_PARAM,
    REMAT_GRADIENT,
    REMAT_OPTIMIZER,
    REMAT_OUTPUT,
    REMAT_CARRIED,
    REMAT_OUTPUT_GRADIENT,
    REMAT_BUFFER
} remat_kind;

/* An array in the program's own memory instead of the arena. Passes and updates read and write it there, without a copy.
 * Its contents are the program's: the session neither draws parameters there nor sets states to zero. On the device
 * "cpu" (and planned on "null"). With other ranks gradients cannot be external, and with a sharded optimizer parameters
 * cannot. */
typedef struct {
    remat_kind kind;
    const char *name; /* as in remat_array; NULL: all arrays of the kind, whose memory comes later */
    void *memory;     /* remat_array.bytes, aligned like its elements; valid until the session is freed or
                         remat_set_external replaces it. NULL: remat_set_external gives it, before the first pass */
} remat_external;

/* Pointers are borrowed until remat_session_create returns, but for the memory of `external`. Members that are NULL or
 * 0 mean what their comment says. */
typedef struct {
    size_t struct_bytes;     /* sizeof(remat_config) */
    const char *device;      /* "cpu"; "cuda": one NVIDIA GPU; "null": computes nothing, counts everything */
    const char *precision;   /* of the operands of matrix products: "fp32"; on "cuda" also "tf32" (10-bit mantissa) and
                                "bf16" (7-bit); on a CPU with AVX512_BF16 also "bf16", for lstm, gru, rnn_tanh (MISSING
                                for a network without any). "null" takes all. Sums and stored values are fp32 */
    const char *rnn_kernels; /* of recurrent layers: "remat"; on "cuda" also "cudnn" (fp32 and tf32; no lean plans, no
                                folded embedding; docs/notes/cuda.md). Their bits differ. NULL, "auto": "remat" */
    int threads;             /* 0: OMP_NUM_THREADS, else the processors that the affinity mask and the container's quota
                                (cgroups) allow. Ranks on one host do not divide processors: `remat launch` sets
                                OMP_NUM_THREADS to each rank's share and torchrun sets it to 1; set it yourself where
                                mpirun or srun has not bound ranks to processors */
    uint64_t seed;           /* of initial parameters and dropout */
    const char *strategy;    /* "none", "segments", "sqrt", "lean", "optimal": memory/strategies.def */
    int64_t segments;        /* for "segments" */
    const char *plan_steps;  /* a plan instead of a strategy, in the format of remat_plan_steps_text; it is checked like
                                any other. NULL: none */
    uint64_t memory_budget;  /* bytes that the session may use (remat_plan_summary.budgeted_bytes); 0: no limit.
                                "optimal" chooses the fastest plan that fits. INFEASIBLE, before anything is allocated,
                                if no plan of the strategy fits */
    const char *recompute;   /* "auto"; "exact-only": only whole stages, no lean options; "off": nothing */
    const char *spill_dir;   /* plans may SAVE to and LOAD from a file in this directory. NULL: no spill file */
    bool verify_recompute;   /* hash every state when it is first computed, and compare when it is recomputed or loaded.
                                A difference fails the step and names stage and tensor */
    const char *calibration; /* file of measured kernel times, kept from run to run. "": measure, keep nothing. NULL: do
                         not measure; "optimal" then chooses by the rates of an assumed machine, so that the same
                         config gives the same plan everywhere, and times are predicted from the device's rates */
    double assume_flops, assume_bandwidth; /* "null": operations and bytes a second of the assumed machine; 0: some */
    int64_t tile;                          /* timesteps in a tile; 0: chosen by shapes and device (docs/plans.md) */
    bool fold_embedding;        /* turn embedding -> recurrent input projection into one table if that is smaller */
    bool plan_only;             /* allocate nothing: the plan can be read, nothing can run */
    bool inference;             /* no gradients, no optimizer: remat_evaluate only */
    bool stateful;              /* carried states continue from call to call instead of starting at zero. In a training
                                          session remat_evaluate starts with them and does not change them */
    const remat_value *outputs; /* values that remat_evaluate keeps whole, as REMAT_OUTPUT; training steps keep those
                                   that the loss depends on */
    int n_outputs;
    int n_differentiated; /* the first so many outputs are differentiated by gradients that the program writes,
                                       for a loss of its own beside `loss` or instead of it (remat_forward); 0 with
                                       `inference` */
    const remat_external *external; /* arrays outside the arena */
    int n_external;
    const char *optimizer; /* "sgd", "adam", "adamw", "rmsprop", "adagrad", "adadelta", "lars", "lamb"; NULL: gradients only */
    double momentum;       /* sgd, rmsprop, lars */
    bool nesterov;         /* sgd, lars */
    double beta1, beta2, epsilon; /* adam, adamw, lamb; epsilon also of lars, where MLPerf uses 0 */
    double weight_decay;          /* sgd, adam, lars: added to the gradient; adamw, lamb: decoupled */
    double alpha;                 /* rmsprop: smoothing of the squares */
    double clip_grad_norm;        /* largest global 2-norm of all gradients; 0: no clipping */
    double clip_grad_value;       /* largest absolute value of a gradient's element; 0: no clipping. Not together with
                                     clip_grad_norm, and not with lars or lamb, which use whole gradients */
    double trust_coefficient;     /* lars */
    bool momentum_correction;     /* lars: multiply momentum by lr / the last update's lr */
    bool adapt_vectors;           /* lars, lamb: scale biases and gains by their norms, too */
    bool decay_vectors;           /* lars, lamb: decay biases and gains, too; else only as `groups` says */
    double norm_limit;            /* lamb: upper limit of a parameter's norm; 0: none */
    const char *train_only;   /* prefixes of names, comma separated: only these parameters are trained. The others are
                                     frozen (requires_grad_(False)): no gradient, no optimizer state. NULL: all */
    int micro_steps;          /* parts of an update's batch, each with its own remat_gradients; 0: 1 */
    bool deterministic_world; /* sum micro steps and ranks as a balanced tree, so that the bits depend only on the
                                     product of their numbers, which are powers of two (docs/distributed.md) */
    const struct remat_ranks *ranks;       /* the other ranks of a data-parallel job; copied. NULL: none */
    const struct remat_pipeline *pipeline; /* layers over several ranks; copied. NULL: all are here */
    const char *groups;    /* parameters with their own learning rate (a factor) or weight decay, by words in
                                        their names; the first group that matches counts:
                                        "bias,norm:weight_decay=0;wte:lr=0.1". NULL: none */
    int64_t carry_stride;  /* stateful: keep the states after this many timesteps (whole tiles) for the next
                                        call, so that windows overlap; 0: after all timesteps */
    const char *loss_mean; /* of losses with ignored targets or class weights, over micro steps and ranks.
                                        NULL, "batch": the mean over all that counts in the update; "parts": the average
                                        of each part's mean, as under PyTorch's DDP (docs/large_batch.md) */
    remat_session *share;            /* a session whose arrays and arena this one uses (Sessions that share, below). NULL:
                                        none */
} remat_config;

/* The defaults: device "cpu", precision "fp32", strategy "none", recompute "auto", fold_embedding, PyTorch's beta1,
 * beta2, alpha and epsilon, trust_coefficient 0.001; all else 0. */
#ifdef __cplusplus
#define REMAT_CONFIG_INIT                                                                                              \
    ([] {                                                                                                              \
        remat_config config = remat_config();                                                                          \
        config.struct_bytes = sizeof config;                                                                           \
        remat_config_defaults(&config);                                                                                \
        return config;                                                                                                 \
    }())
#else
#define REMAT_CONFIG_INIT                                                                                              \
    ((remat_config){.struct_bytes = sizeof(remat_config),                                                              \
                    .device = "cpu",                                                                                   \
                    .precision = "fp32",                                                                               \
                    .strategy = "none",                                                                                \
                    .recompute = "auto",                                                                               \
                    .fold_embedding = true,                                                                            \
                    .beta1 = 0.9,                                                                                      \
                    .beta2 = 0.999,                                                                                    \
                    .epsilon = 1e-8,                                                                                   \
                    .alpha = 0.99,                                                                                     \
                    .trust_coefficient = 0.001})
#endif
/* Writes the defaults to a config whose struct_bytes is set. For languages without the macro. */
remat_status remat_config_defaults(remat_config *config);

/* Plans, checks and places the step that minimises `loss`, a scalar of `graph`. The graph is copied. `loss` may be
 * REMAT_NONE for inference, or if outputs are differentiated instead. INVALID names the mistake; MEMORY says how many
 * bytes were wanted; INFEASIBLE says the smallest memory_budget that would work, to the byte, where the peak is, and
 * what is largest there. */
remat_status remat_session_create(const remat_graph *graph, REMAT_OPTIONAL remat_value loss, const remat_config *config,
                                  remat_session **out);
uint64_t remat_smallest_budget(void); /* after INFEASIBLE, on this thread: the smallest memory_budget that would work */
void remat_session_free(REMAT_OPTIONAL remat_session *session);

/* ---- Arrays ------------------------------------------------------------------------------------- */

/* A named array of a session, by kind and index in order of definition. */
typedef struct {
    const char *name;
    remat_dtype dtype;
    int rank;
    int64_t dim[REMAT_MAX_RANK];
    uint64_t bytes;        /* that this session holds: all, unless the optimizer is sharded */
    int64_t first, count;  /* elements that this session holds, in row-major order. A sharded OPTIMIZER array: the part
                              of  this rank, which may be empty */
    uint64_t reserved[11]; /* zeros */
} remat_array;

int64_t remat_count(const remat_session *session, remat_kind kind);
remat_status remat_array_info(const remat_session *session, remat_kind kind, int64_t index, remat_array *out);
int64_t remat_find(const remat_session *session, remat_kind kind, const char *name); /* -1: there is none */

/* Copies an array in or out; `bytes` must be remat_array.bytes. INVALID names the first integer outside of the range
 * that the layers reading it allow. */
remat_status remat_write(remat_session *session, remat_kind kind, int64_t index, const void *data, uint64_t bytes);
remat_status remat_read(remat_session *session, remat_kind kind, int64_t index, void *data, uint64_t bytes);
/* The same for `bytes` bytes from byte `first` on, both multiples of the element size. */
remat_status remat_write_part(remat_session *session, remat_kind kind, int64_t index, uint64_t first, const void *data,
                              uint64_t bytes);
remat_status remat_read_part(remat_session *session, remat_kind kind, int64_t index, uint64_t first, void *data,
                             uint64_t bytes);

/* Where the array lies: the address of remat_array.bytes bytes, which stays the same until the session is freed (of an
 * external array: until remat_set_external). On "cuda" it is device memory. The program may read and write there between
 * passes: the next pass uses what it finds. An input counts as written; its integers are then checked in every pass. */
remat_status remat_array_memory(remat_session *session, remat_kind kind, int64_t index, void **memory);
/* Replaces the memory of an array of config.external from the next pass on; contents are not moved. `bytes` must be
 * remat_array.bytes. External inputs count as written; their integers are checked in every pass. Do not change external
 * arrays during a pass, nor inputs, parameters, buffers, states or outputs between remat_forward and remat_backward. The
 * gradient of an output may get its memory there; remat_backward adds to it. */
remat_status remat_set_external(remat_session *session, remat_kind kind, int64_t index, void *memory, uint64_t bytes);

/* From the next pass on, skips tiles that start at timestep `end` or later of all sequences of `timesteps` timesteps,
 * except a last tile that static values depend on. For batches whose rows all end by then (docs/stateful.md); end =
 * timesteps computes all tiles again. If the network ignores what follows the rows' ends, loss, gradients and updates
 * keep their bits. In skipped tiles outputs are 0 and carried states are unchanged. Bytes are as planned. Ranks may use
 * different ends. INVALID: no sequence has so many timesteps; an end outside 1 .. timesteps; a stateful session;
 * layers that communicate with other ranks in every tile. */
remat_status remat_set_sequence_end(remat_session *session, int64_t timesteps, int64_t end);

/* ---- Sessions that share ------------------------------------------------------------------------ */

/* Evaluation beside training, a last short batch, other lengths, a decoder of an encoder's weights: a session with
 * config.share = other, of any graph, uses
 *   - the parameters and buffers of the other that have the names of its own, in the same shapes; those of other names
 *     are its own
 *   - the arena: its activations lie where the other's lie. Create the session that needs most activations first;
 *     INVALID says how many bytes are missing
 *   - if both train, the other's gradients, optimizer state, counters (remat_step_count) and, for batches of the same
 *     size, carried states: each goes on from the other's last update. The optimizer is the same, as are the other ranks,
 *     and then the trained parameters, in one order of definition.
 * Inputs, outputs and packed weights are its own; remat_plan_summary counts these and the shared activations. A pass
 * discards a remat_forward of the other, and the first micro step its gradients. Sessions that share are used by one
 * thread at a time. Each may be freed at any time; what they share stays until the last is. */

/* ---- Run ---------------------------------------------------------------------------------------- */

typedef struct {
    double loss;               /* in float precision: the mean over all that counts, of all ranks. Before the last micro
                                  step, and after remat_evaluate: of this rank, so far */
    double grad_norm;          /* global 2-norm before clipping, after the last micro step; else 0 */
    uint64_t arena_peak_bytes; /* the furthest byte of the arena that any step has claimed */
    uint64_t recomputed_stages;
    double counted;        /* what `loss` is a mean over: targets that count, or the sum of their class weights; 0: the
                                  loss has no such count, or is a mean of several */
    uint64_t reserved[11]; /* zeros */
} remat_step_result;

/* Inputs keep their values until they are written again. A pass is INVALID if an input that the loss or an output
 * depends on was never written. With micro_steps = K, each call of remat_gradients adds 1/K of a batch's gradient, the
 * first of K to zero; the K-th also reduces over ranks. remat_step is for K = 1. Updates leave out parameters that the
 * loss does not depend on, on any rank: no weight decay either, as in PyTorch for parameters without a gradient.
 * If the loss is not finite because an f32 input is not, these calls return INVALID and name the first such element;
 * parameters are not updated (but for fused_update). Buffers may be: write them again. Elements that no layer reads, such
 * as padding, may be NaN. remat_evaluate calls no collective, and changes nothing that training continues from. */
remat_status remat_gradients(remat_session *session, REMAT_OPTIONAL remat_step_result *result); /* forward, backward */
remat_status remat_update(remat_session *session, double lr,
                          REMAT_OPTIONAL remat_step_result *result); /* clip, optimizer */
remat_status remat_step(remat_session *session, double lr, REMAT_OPTIONAL remat_step_result *result); /* both */
remat_status remat_evaluate(remat_session *session,
                            REMAT_OPTIONAL remat_step_result *result); /* forward only, without dropout */

/* From the next update on, only parameters whose names begin like one of these are trained (comma separated, as
 * config.train_only); NULL: all that the session can train. The others keep their values and their optimizer state, and
 * do not count in the norm: the bits are those of a session with that train_only. Their gradients still take their time
 * and memory. Discards gradients that no update has used. With other ranks: the same on all, PEER says if not. INVALID:
 * no parameter begins so, or none that this session can train. */
remat_status remat_train_only(remat_session *session, REMAT_OPTIONAL const char *names);

/* Dropout in evaluations (Monte Carlo dropout): from the next remat_evaluate on, masks are drawn by `sample` and the
 * seed; the same sample has the same masks. All else stays as in evaluations. sample < 0: no dropout again. */
remat_status remat_set_dropout(remat_session *session, int64_t sample);

/* remat_gradients as two calls, for a loss of your own (examples/09_your_own_loss.c):
 *
 *     config.outputs = &logits; config.n_outputs = config.n_differentiated = 1;
 *     remat_session_create(g, REMAT_NONE, &config, &s);
 *     remat_forward(s);                                          // PyTorch: logits = model(x)
 *     remat_read(s, REMAT_OUTPUT, 0, logits, bytes);
 *     remat_write(s, REMAT_OUTPUT_GRADIENT, 0, d_logits, bytes); // d my_loss / d logits, computed by the program
 *     remat_backward(s, &r);                                     // PyTorch: logits.backward(d_logits)
 *     remat_update(s, 1e-3, &r);
 *
 * remat_forward runs the plan up to its first backward run. Differentiated outputs can then be read; they and their
 * gradients lie in the arena for all timesteps. Each forward pass sets all gradients of outputs to zero; what the
 * program does not write (remat_write_part) stays zero. remat_backward runs the rest. It scales these gradients like
 * the loss: by 1/K with micro_steps = K, and by the rank's weight. The loss in its result is that of `loss`, 0 without
 * one. A session with differentiated outputs refuses remat_gradients and remat_step; in others the two calls do what
 * remat_gradients does. remat_backward is INVALID without a forward pass, or if part of every output gradient was never
 * written. Another pass, an update, or a write to inputs, parameters, outputs or carried states discards the forward
 * pass. */
remat_status remat_forward(remat_session *session);
remat_status remat_backward(remat_session *session, REMAT_OPTIONAL remat_step_result *result);

/* To and from a safetensors file. WEIGHTS: parameters and buffers, by name: PyTorch's names, if the graph uses them.
 * TRAINING: also the optimizer's state ("optimizer/PARAMETER.exp_avg"), carried states ("carried/lstm.0.h") and the two
 * counters below. Between updates this is all that training continues from, with the same bits.
 *
 * save writes f32, and replaces an existing file only when all is written. load wants every array that it is asked for
 * in its shape, as F32, F16 or BF16, and no others (but for "..num_batches_tracked", and what TRAINING adds). INVALID
 * names the first difference, and then nothing is loaded; a rank with a part of a sharded optimizer cannot save TRAINING.
 * IO: the file cannot be read or is damaged. With other ranks, one rank saves and all load. */
typedef enum { REMAT_WEIGHTS, REMAT_TRAINING } remat_contents;
remat_status remat_save(remat_session *session, const char *path, remat_contents contents);
remat_status remat_load(remat_session *session, const char *path, remat_contents contents);
/* Copies every parameter and buffer of `to` from the array of its name in `from`, which may have more. INVALID names the
 * first that is missing or has another shape, and then nothing is copied. */
remat_status remat_copy_parameters(remat_session *to, remat_session *from);

/* The number of updates so far: part of dropout's random key and of Adam's bias correction. Set it, and the last
 * update's learning rate (for momentum_correction), when you restore a training state. */
int64_t remat_step_count(const remat_session *session);
void remat_set_step_count(remat_session *session, int64_t steps);
double remat_last_lr(const remat_session *session); /* 0: there was no update yet */
void remat_set_last_lr(remat_session *session, double lr);

#ifdef __cplusplus
}
#endif
#endif
