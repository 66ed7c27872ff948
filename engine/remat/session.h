/* session.h: a session plans the training step of a graph and runs it. Part of remat.h. */
#ifndef REMAT_SESSION_H
#define REMAT_SESSION_H

#include "graph.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Plan --------------------------------------------------------------------------------------- */

/* The kinds of named arrays that a session has.
 *   INPUT, PARAM, BUFFER  of remat_input, remat_param and remat_buffer
 *   GRADIENT         of the trained parameters, then of the inputs of remat_requires_grad. Gradients of inputs belong
 *                    to the last call's batch; they are not summed over micro steps or ranks. With micro_steps = K
 *                    they are scaled by 1/K. If the loss ignores targets, they are scaled by the batch's share of all
 *                    targets that count. Before the last micro step that share is an estimate, which assumes that all
 *                    micro steps have as many targets as the first
 *   OPTIMIZER        "PARAMETER.momentum_buffer", "PARAMETER.exp_avg", "PARAMETER.exp_avg_sq", ..
 *   OUTPUT           of the last remat_evaluate, or of the last pass of any kind if the loss depends on the output.
 *                    INVALID before that pass
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

/* An array in the program's own memory instead of the arena. Passes and updates read and write it there, without a
 * copy. The program initialises it: the session neither draws parameters there nor sets states to zero. Only the device
 * "cpu" supports external memory ("null" plans it). With other ranks gradients cannot be external; with a sharded
 * optimizer parameters cannot be external either. */
typedef struct {
    remat_kind kind;
    const char *name; /* as in remat_array; NULL: all arrays of the kind; `memory` is then NULL */
    void *memory;     /* remat_array.bytes, aligned like its elements; valid until the session is freed or
                         remat_set_external replaces it. NULL: remat_set_external gives it, before the first pass */
} remat_external;

/* remat_session_create copies what pointers point to, except the memory of `external`. The comments say what NULL and 0
 * mean. */
typedef struct {
    size_t struct_bytes;     /* sizeof(remat_config) */
    const char *device;      /* "cpu"; "cuda": one NVIDIA GPU; "null": computes nothing, counts everything */
    const char *precision;   /* precision of matrix products' operands: "fp32"; on "cuda" also "tf32" (10-bit mantissa)
                                and "bf16" (7-bit); on a CPU with AVX512_BF16 also "bf16", for lstm, gru and
                                the rnns (MISSING for a network without these). "null" accepts all. Sums and stored values are
                                fp32 */
    const char *rnn_kernels; /* kernels of recurrent layers: "remat"; on "cuda" also "cudnn" (fp32, tf32; no lean
                                plans, no folded embedding; docs/notes/cuda.md); bits differ. NULL, "auto": "remat" */
    int threads;             /* 0: OMP_NUM_THREADS, else the processors that the affinity mask and the container's quota
                                (cgroups) allow. Sessions do not divide processors among the ranks of a host: `remat
                                launch` sets OMP_NUM_THREADS to each rank's share, and torchrun sets it to 1. Set it
                                yourself if mpirun or srun does not bind ranks to processors */
    uint64_t seed;           /* random seed for initial parameters and dropout */
    const char *strategy;    /* "none", "segments", "sqrt", "lean", "optimal": memory/strategies.def */
    int64_t segments;        /* for "segments" */
    const char *plan_steps;  /* a plan instead of a strategy, in the format of remat_plan_steps_text; it is checked like
                                any other. NULL: none */
    uint64_t memory_budget;  /* bytes that the session may use (remat_plan_summary.budgeted_bytes); 0: no limit.
                                "optimal" chooses the fastest plan that fits. If no plan of the strategy fits, create
                                returns INFEASIBLE before it allocates anything */
    const char *recompute;   /* "auto"; "exact-only": recompute whole stages only, no lean ones; "off": recompute
                                nothing */
    const char *spill_dir;   /* plans may SAVE to and LOAD from a file in this directory. NULL: no spill file */
    bool verify_recompute;   /* hash every state when it is first computed, and compare when it is recomputed or loaded.
                                A difference fails the step; the message names stage and tensor */
    const char *calibration; /* file of measured kernel times, kept from run to run. "": measure, store nothing. NULL:
                                do not measure; "optimal" then uses the rates of an assumed machine, so that the same
                                config gives the same plan everywhere, and predicted times use the device's rates */
    double assume_flops, assume_bandwidth; /* "null": rates per second of the assumed machine; 0: defaults */
    int64_t tile;                          /* timesteps in a tile; 0: chosen from shapes and device (docs/plans.md) */
    bool fold_embedding;        /* turn embedding -> recurrent input projection into one table if that is smaller */
    bool plan_only;             /* allocate nothing: the plan can be read, nothing can run */
    bool inference;             /* no gradients, no optimizer: remat_evaluate only */
    bool stateful;              /* carried states continue from call to call instead of starting at zero. In a training
                                   session remat_evaluate starts with them and does not change them */
    const remat_value *outputs; /* values that remat_evaluate stores for all timesteps, as REMAT_OUTPUT; training steps
                                   store those that the loss depends on */
    int n_outputs;
    int n_differentiated; /* the program supplies the gradients of the first n_differentiated outputs (remat_forward),
                             for a loss of its own that replaces `loss` or is added to it; 0 with `inference` */
    const remat_external *external; /* arrays outside the arena */
    int n_external;
    const char *optimizer; /* "sgd", "adam", "adamw", "rmsprop", "adagrad", "adadelta", "lars", "lamb"; NULL: compute
                              gradients only */
    double momentum;       /* sgd, rmsprop, lars */
    bool nesterov;         /* sgd, lars */
    double beta1, beta2, epsilon; /* betas: adam, adamw, lamb; epsilon: all except sgd (for lars MLPerf uses 0) */
    double weight_decay;          /* adamw, lamb: decoupled; all others: added to the gradient */
    double alpha;                 /* rmsprop, adadelta (rho): decay of the mean squared gradient */
    double clip_grad_norm;        /* largest global 2-norm of all gradients; 0: no clipping */
    double clip_grad_value;       /* largest absolute value of a gradient's element; 0: no clipping. Cannot be combined
                                     with clip_grad_norm, nor with lars or lamb, which use the norms of gradients */
    double trust_coefficient;     /* lars */
    bool momentum_correction;     /* lars: multiply momentum by lr / (lr of the previous update) */
    bool adapt_vectors;           /* lars, lamb: scale biases and gains by their norms, too */
    bool decay_vectors;           /* lars, lamb: decay biases and gains, too; false: only those named in `groups` */
    double norm_limit;            /* lamb: upper limit of a parameter's norm; 0: none */
    const char *train_only;   /* prefixes of names, comma separated: only these parameters are trained. The others are
                                     frozen (requires_grad_(False)): no gradient, no optimizer state. NULL: all */
    int micro_steps;          /* parts of an update's batch, each with its own remat_gradients; 0: 1 */
    bool deterministic_world; /* sum micro steps and ranks as a balanced tree, so that the bits depend only on the
                                     product of their numbers, which are powers of two (docs/distributed.md) */
    const struct remat_ranks *ranks;       /* the other ranks of a data-parallel job; copied. NULL: none */
    const struct remat_pipeline *pipeline; /* distributes layers over ranks; copied. NULL: this rank has all layers */
    const char *groups;    /* groups of parameters with a learning rate (a factor) or weight decay of their own, chosen
                              by words in names: "bias,norm:weight_decay=0;wte:lr=0.1". A parameter belongs to the first
                              group that matches. NULL: none */
    int64_t carry_stride;  /* stateful: the next call starts with the states after this many timesteps (whole tiles), so
                              that windows overlap; 0: after all timesteps */
    const char *loss_mean; /* how a loss with ignored targets or class weights is averaged over micro steps and ranks.
                              NULL, "batch": one mean over all targets of the update; "parts": the average of each
                              part's mean, as with PyTorch's DDP (docs/large_batch.md) */
    remat_session *share;  /* a session whose arrays and arena this one uses (Sessions that share, below). NULL: none */
    const struct remat_observer *observer; /* gets the session's events (observe.h); copied. NULL: none */
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

/* Plans, checks and allocates the step that minimises `loss`, a scalar of `graph`. The graph is copied. `loss` may be
 * REMAT_NONE for inference, or if outputs are differentiated instead. INVALID: the message names the mistake. MEMORY:
 * it says how many bytes could not be allocated. INFEASIBLE: it says the smallest memory_budget that works, to the
 * byte, where the peak is, and which tensors are largest there. */
remat_status remat_session_create(const remat_graph *graph, REMAT_OPTIONAL remat_value loss, const remat_config *config,
                                  remat_session **out);
uint64_t remat_smallest_budget(void); /* after INFEASIBLE, on this thread: the smallest memory_budget that would work */
void remat_session_free(REMAT_OPTIONAL remat_session *session);

/* ---- Arrays ------------------------------------------------------------------------------------- */

/* A named array of a session. Arrays of a kind are numbered in the order of definition. */
typedef struct {
    const char *name;
    remat_dtype dtype;
    int rank;
    int64_t dim[REMAT_MAX_RANK];
    uint64_t bytes;        /* held by this session: the whole array, unless the optimizer is sharded */
    int64_t first, count;  /* elements held by this session, in row-major order. Of a sharded OPTIMIZER array: this
                              rank's part, which may be empty */
    uint64_t reserved[11]; /* zeros */
} remat_array;

int64_t remat_count(const remat_session *session, remat_kind kind);
remat_status remat_array_info(const remat_session *session, remat_kind kind, int64_t index, remat_array *out);
int64_t remat_find(const remat_session *session, remat_kind kind, const char *name); /* -1: there is none */

/* Copies an array in or out; `bytes` must be remat_array.bytes. INVALID: an integer is outside the range that the
 * layers reading it allow; the message names the first one. */
remat_status remat_write(remat_session *session, remat_kind kind, int64_t index, const void *data, uint64_t bytes);
remat_status remat_read(remat_session *session, remat_kind kind, int64_t index, void *data, uint64_t bytes);
/* The same for `bytes` bytes from byte `first` on, both multiples of the element size. */
remat_status remat_write_part(remat_session *session, remat_kind kind, int64_t index, uint64_t first, const void *data,
                              uint64_t bytes);
remat_status remat_read_part(remat_session *session, remat_kind kind, int64_t index, uint64_t first, void *data,
                             uint64_t bytes);

/* Collective: copies part of an array from the rank of the pipeline that holds it to `data` of rank 0. On the other
 * ranks `data` needs the same size, and its contents are undefined. Without a pipeline: remat_read_part. */
remat_status remat_pipeline_read(remat_session *session, remat_kind kind, int64_t index, uint64_t first, void *data,
                                 uint64_t bytes);
/* The cut that the pipeline uses, given or chosen. Another session of the same network that gets it as
 * remat_pipeline.cut holds the same parameters on each rank. Valid until the session is freed; NULL: no pipeline. */
const char *remat_pipeline_cut(const remat_session *session);

/* In a pipeline of a network without time, or with layers that need all timesteps at once (attention), tiles cannot
 * overlap. The ranks then work on different micro steps of an update at the same time: all micro steps run forward, then
 * all run backward (GPipe's schedule; docs/pipeline.md). Only the last remat_gradients of an update runs backward.
 * remat_pipeline_parts returns the number of micro steps in flight together; 1: each ends before the next begins.
 * remat_pipeline_part makes the inputs and outputs of micro step `part`, from 0, current until the next pass; call it
 * after the update's last remat_gradients. INVALID: another pass came between, or there is no such part. */
int remat_pipeline_parts(const remat_session *session);
remat_status remat_pipeline_part(remat_session *session, int part);

/* Returns the address of an array of remat_array.bytes bytes. It is valid until the session is freed (of an external
 * array: until remat_set_external). On "cuda" it is device memory. The program may read and write there between passes.
 * An input whose address was returned counts as written; every pass then checks its integers. */
remat_status remat_array_memory(remat_session *session, remat_kind kind, int64_t index, void **memory);
/* Replaces the memory of an array of config.external from the next pass on; contents are not moved. `bytes` must be
 * remat_array.bytes. External inputs count as written; every pass checks their integers. Do not change external arrays
 * during a pass, nor inputs, parameters, buffers, states or outputs between remat_forward and remat_backward. Gradients
 * may be given their memory between the two. remat_backward adds to an output's gradient if a layer reads the output,
 * too; else it only reads it. */
remat_status remat_set_external(remat_session *session, remat_kind kind, int64_t index, void *memory, uint64_t bytes);

/* For batches whose rows all end early (docs/stateful.md): from the next pass on, sequences of `timesteps` timesteps
 * skip the tiles that start at timestep `end` or later, except a last tile that static values depend on. end =
 * timesteps computes all tiles again. Loss, gradients and updates keep their bits if the network ignores the padding after
 * a row's end. In skipped tiles outputs are 0 and carried states are unchanged. The planned bytes do not change. Ranks
 * may use different ends. INVALID: no sequence has that many timesteps; `end` is outside 1 .. timesteps; the session
 * is stateful; a layer communicates with other ranks in every tile. */
remat_status remat_set_sequence_end(remat_session *session, int64_t timesteps, int64_t end);

/* ---- Sessions that share ------------------------------------------------------------------------ */

/* Sessions of different graphs can share their weights and the arena. Use this for evaluation during training, for a
 * short last batch, for other lengths, or for a decoder that uses an encoder's weights. A session with
 * config.share = other shares with it
 *   - parameters and buffers of the same name, which must have the same shape. Those that the other lacks are its own
 *   - the arena: activations of both use the same memory. Create the session that needs most activations first; if the
 *     arena is too small, INVALID says how many bytes are missing
 *   - the memory of packed weights, if the first session's is large enough: a pass packs weights again after a pass of
 *     another session
 *   - if both train: gradients, optimizer state, counters (remat_step_count) and, for batches of the same size, carried
 *     states. Each session continues from the other's last update. Both must have the same optimizer, the same ranks
 *     and the same trained parameters in the same order of definition.
 * Inputs and outputs are not shared; remat_plan_summary counts these and the shared activations. A pass of one session
 * discards a forward pass (remat_forward) of the other; its first micro step also discards the gradients. Use such
 * sessions from one thread at a time. Each may be freed at any time; shared memory lives until the last is. */

/* ---- Run ---------------------------------------------------------------------------------------- */

typedef struct {
    double loss;               /* in float precision: the mean over the update's batch on all ranks. Before the last
                                  micro step: over this rank's batch so far, or 0 if micro steps are in flight together
                                  (remat_pipeline_parts). After remat_evaluate: over its batch */
    double grad_norm;          /* global 2-norm before clipping, after the last micro step; else 0 */
    uint64_t arena_peak_bytes; /* the end of the highest range of the arena that any step has used */
    uint64_t recomputed_stages;
    double counted;        /* the denominator of the mean `loss`: the number of targets that count, or the sum of their
                              class weights; 0: the loss has no such count, or combines several means */
    uint64_t reserved[11]; /* zeros */
} remat_step_result;

/* Inputs keep their values until they are written again. A pass is INVALID if an input that the loss or an output
 * depends on was never written. With micro_steps = K, each call of remat_gradients adds 1/K of a batch's gradient; the
 * first of K calls starts from zero, and the K-th also reduces over ranks. remat_step requires K = 1. An update skips
 * parameters that the loss does not depend on, on any rank. Like PyTorch for parameters without a gradient, it does not
 * decay their weights either.
 * If the loss is not finite because an f32 input is not, remat_gradients and remat_step return INVALID and name the
 * first such element. If the norm of the gradients is not finite, remat_step and remat_update return INVALID; the result
 * has loss and norm. In both cases parameters and the optimizer's state keep their values (except with fused_update), but
 * buffers and carried states may have changed: write them again.
 * Elements that no layer reads, such as padding, may be NaN. remat_evaluate returns such a loss as it is, calls no
 * collective, and changes nothing that training continues from. */
remat_status remat_gradients(remat_session *session, REMAT_OPTIONAL remat_step_result *result); /* forward, backward */
remat_status remat_update(remat_session *session, double lr,
                          REMAT_OPTIONAL remat_step_result *result); /* clip, optimizer */
remat_status remat_step(remat_session *session, double lr, REMAT_OPTIONAL remat_step_result *result); /* both */
remat_status remat_evaluate(remat_session *session,
                            REMAT_OPTIONAL remat_step_result *result); /* forward only, without dropout */

/* From the next update on, trains only parameters whose names start with one of these prefixes (comma separated, as in
 * config.train_only); NULL: all that the session can train. Other parameters keep their values and optimizer state,
 * and the gradient norm leaves them out: the bits are those of a session with that train_only. Computing their
 * gradients still takes time and memory. The call discards gradients that no update has used. All ranks must pass the
 * same names; otherwise the next step returns PEER. INVALID: a prefix matches no parameter, or this session can train
 * none of those that match. */
remat_status remat_train_only(remat_session *session, REMAT_OPTIONAL const char *names);

/* Dropout in evaluations (Monte Carlo dropout): from the next remat_evaluate on, dropout masks are a function of
 * `sample` and the seed. Other layers behave as in any evaluation. sample < 0 turns dropout off again. */
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
 * gradients lie in the arena for all timesteps. Each forward pass sets all gradients of outputs to zero; elements that
 * the program does not write (remat_write_part) stay zero. remat_backward runs the rest of the plan. It scales these
 * gradients like the loss: by 1/K with micro_steps = K, and by the rank's weight. Its result has the value of `loss`,
 * or 0 if there is none. A session with differentiated outputs refuses remat_gradients and remat_step; in other
 * sessions the two calls do what remat_gradients does. remat_backward is INVALID without a forward pass, or if the
 * program has written no part of some output gradient. Another pass, an update, or a write to inputs, parameters,
 * outputs or carried states discards the forward pass; so does a change of a parameter in memory that the program
 * knows (remat_array_memory, external memory). */
remat_status remat_forward(remat_session *session);
remat_status remat_backward(remat_session *session, REMAT_OPTIONAL remat_step_result *result);

/* Save to and load from a safetensors file. WEIGHTS: parameters and buffers by name (PyTorch's names, if the graph uses
 * them). TRAINING: also the optimizer's state ("optimizer/PARAMETER.exp_avg"), carried states ("carried/lstm.0.h") and
 * the two counters below. With these, training that was saved between two updates continues with the same bits.
 *
 * save writes f32, and replaces an existing file only when the new one is complete. load requires every requested array
 * in the session's shape, as F32, F16 or BF16. The file may contain no other arrays, except "..num_batches_tracked" and
 * those that TRAINING adds. INVALID: the message names the first difference, and nothing is loaded; or the optimizer is
 * sharded, so that no rank has all of TRAINING. IO: the file cannot be read or is damaged. With other ranks, one rank
 * saves and all load. */
typedef enum { REMAT_WEIGHTS, REMAT_TRAINING } remat_contents;
remat_status remat_save(remat_session *session, const char *path, remat_contents contents);
remat_status remat_load(remat_session *session, const char *path, remat_contents contents);
/* Copies every parameter and buffer of `to` from the array with the same name in `from`, which may have more arrays.
 * INVALID: an array is missing or has another shape; the message names the first, and nothing is copied. */
remat_status remat_copy_parameters(remat_session *to, remat_session *from);

/* The number of updates so far. Dropout's random key and Adam's bias correction use it. Set it, and the last update's
 * learning rate (for momentum_correction), when you restore a training state yourself. */
int64_t remat_step_count(const remat_session *session);
void remat_set_step_count(remat_session *session, int64_t steps);
double remat_last_lr(const remat_session *session); /* 0: there was no update yet */
void remat_set_last_lr(remat_session *session, double lr);

#ifdef __cplusplus
}
#endif
#endif
