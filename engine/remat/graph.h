/* graph.h: errors, and the graph that describes a network: values, inputs, parameters. Part of remat.h. */
#ifndef REMAT_GRAPH_H
#define REMAT_GRAPH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define REMAT_VERSION "0.1.0"
#define REMAT_MAX_RANK 8

/* Marks a parameter that may be NULL, or REMAT_NONE. Generators of bindings may define it as a word that they parse. */
#ifndef REMAT_OPTIONAL
#define REMAT_OPTIONAL
#endif

/* ---- Errors ------------------------------------------------------------------------------------- */

#define REMAT_STATUS_MAP(X)                                                                                            \
    X(OK, "success")                                                                                                   \
    X(INVALID, "the caller passed an invalid argument")                                                                \
    X(MEMORY, "the host or the device is out of memory")                                                               \
    X(INFEASIBLE, "no plan fits the budget")                                                                           \
    X(MISSING, "this build or device lacks the requested feature")                                                     \
    X(DEVICE, "the device reported a failure")                                                                         \
    X(PEER, "another rank failed, or disagrees about the plan")                                                        \
    X(IO, "a file could not be read or written")                                                                       \
    X(INTERNAL, "a bug in Remat: please report it")

typedef enum {
#define REMAT_STATUS_ENUM(name, text) REMAT_##name,
    REMAT_STATUS_MAP(REMAT_STATUS_ENUM)
#undef REMAT_STATUS_ENUM
} remat_status;

const char *remat_status_text(remat_status status); /* the general text above; never NULL */
/* The message of this thread's last failed call; "" if no call has failed. Successful calls do not clear it, so read it
 * only after a status other than OK. */
const char *remat_last_error(void);

/* ---- Values ------------------------------------------------------------------------------------- */

typedef struct remat_graph remat_graph;
typedef struct remat_session remat_session;
typedef struct {
    int32_t id; /* 0: no value */
} remat_value;
#ifdef __cplusplus
#define REMAT_NONE (remat_value())
#else
#define REMAT_NONE ((remat_value){0})
#endif

typedef enum { REMAT_F32, REMAT_F64, REMAT_I32 } remat_dtype;

/* Says whether the first axis of a value is time. Remat cuts time into tiles. A SEQUENCE is (T,B) or (T,B,C); a STATIC
 * value, such as labels (B) or features (B,C), has no time axis. Sequences may differ in T and B; the inputs of one
 * layer must agree. */
typedef enum { REMAT_STATIC, REMAT_SEQUENCE } remat_axis;

/* Initial values of a parameter. They are a function of (seed, name, element): the same on any machine, with any
 * compiler, and in any order of creation. */
typedef enum {
    REMAT_INIT_ZERO,
    REMAT_INIT_CONSTANT,
    REMAT_INIT_NORMAL,
    REMAT_INIT_UNIFORM,
    REMAT_INIT_LOG_COUNT, /* log(1), log(2), .. along the last axis: Mamba's A_log */
    REMAT_INIT_TIME_STEP, /* softplus(value) is log-uniform in [scale/100, scale]: Mamba's dt_proj.bias, scale 0.1 */
    REMAT_INIT_LOG_UNIFORM, /* exp(value) is uniform in [scale/1600, scale]: Gated DeltaNet's A_log, scale 16 */
    REMAT_INIT_RING, /* exp(-2 softplus(value)) is uniform in [0.9^2, 0.999^2]: RG-LRU's recurrent_param */
    REMAT_INIT_FORGET_GATES, /* xLSTM's biases (4H) for heads of d units, scale = d + depth/2, where depth is 0 in the
                                first block and 1 in the last: 5 - 12 (k/(d-1))^(0.3 + 1.3 depth) for unit k of a head
                                in the second quarter, the forget gates; 0 elsewhere */
    REMAT_INIT_EVENLY, /* from scale/2 to scale in equal steps: the biases of mLSTM's forget gates, scale 6 */
    REMAT_INIT_IDENTITY, /* 1 where the indices along the last two axes are equal, else 0: M2RNN's state_weight */
    REMAT_INIT_ORTHOGONAL, /* a matrix with orthogonal rows of length scale (columns, if it has more rows): PyTorch's
                              orthogonal_ with this gain */
    /* RWKV-LM's values for channel i of C = the last axis, with l = i/(C-1) - 1/2 and, in heads of N channels,
     * z = u |u|, u = 2 (i mod N)/(N-1) - 1. */
    REMAT_INIT_RWKV7_MIX,   /* x_r, x_w, ..: 1 - (i/C)^scale */
    REMAT_INIT_RWKV7_DECAY, /* w0: -5.5 + 6 (i/(C-1))^(1 + depth^0.3) + 2.5 z; scale = N + depth/2, as above */
    REMAT_INIT_RWKV7_RATE,  /* a0: -0.19 + 0.3 z + 0.4 l; scale = N */
    REMAT_INIT_RWKV7_VALUE, /* v0: 0.73 - 0.4 l */
    REMAT_INIT_RWKV7_KEY,   /* k_k: 0.71 - 0.1 l */
} remat_init_kind;
typedef struct {
    remat_init_kind kind;
    double scale; /* CONSTANT: the value; NORMAL: standard deviation, at least 0; UNIFORM: the bound of [-scale, scale],
                     at least 0; TIME_STEP and LOG_UNIFORM: the largest number, above 0. Always finite */
} remat_init;
remat_init remat_init_of(remat_init_kind kind, double scale);
remat_init remat_init_zero(void);
remat_init remat_init_constant(double value);
remat_init remat_init_normal(double deviation);
remat_init remat_init_uniform(double bound);

/* ---- Graphs ------------------------------------------------------------------------------------- */

remat_status remat_graph_create(remat_graph **out);
void remat_graph_free(REMAT_OPTIONAL remat_graph *graph);

/* Returns the first mistake made while building, or OK. After a mistake builders return REMAT_NONE, and later builders
 * pass it on. Calls can therefore be nested, and one check at the end is enough. */
remat_status remat_graph_check(const remat_graph *graph);

/* Clears the mistake, for programs that continue after one, such as an interactive session. Values that were created
 * before it stay valid. */
void remat_graph_forget_mistake(remat_graph *graph);

/* A value's shape, and its name if it is an input, parameter or buffer. */
typedef struct {
    const char *name; /* NULL: the result of a layer. Valid until the graph is freed */
    remat_dtype dtype;
    remat_axis axis;
    int rank; /* 0: a scalar */
    int64_t dim[REMAT_MAX_RANK];
    uint64_t reserved[8]; /* zeros */
} remat_value_info;
remat_status remat_value_describe(const remat_graph *graph, remat_value value, remat_value_info *out);

/* `dim` has `rank` entries. Names are unique among inputs, parameters and buffers. */
remat_value remat_input(remat_graph *graph, const char *name, remat_dtype dtype, remat_axis axis, int rank,
                        const int64_t *dim);
remat_value remat_param(remat_graph *graph, const char *name, int rank, const int64_t *dim, remat_init init);
/* An array that a layer updates without a gradient and keeps from step to step, such as batch norm's running
 * statistics. A training step writes it once, however often the plan recomputes the layer; evaluations read it. See
 * REMAT_BUFFER. */
remat_value remat_buffer(remat_graph *graph, const char *name, int rank, const int64_t *dim, remat_init init);
/* Requests the gradient of an f32 input; returns the input. Each backward pass writes the gradient to the
 * REMAT_GRADIENT array that has the input's name. */
remat_value remat_requires_grad(remat_graph *graph, remat_value input);

/* Copies the network for another length or batch size. Inputs of `timesteps` timesteps get new_timesteps, and inputs
 * of `rows` rows get new_rows (0: unchanged); all other shapes follow. Timesteps are the first axis of a sequence.
 * Rows are its second axis, and the first axis of a static input; a STATIC (T,B,..) for remat_as_sequence has both.
 * Values keep their ids, so the loss and the outputs of `graph` also name those of the copy. To compute a shorter
 * sequence or a last batch, create a session of the copy that shares the arrays of the first session
 * (remat_config.share). INVALID: no input has the old size, or a layer does not work in the new one (an initial state
 * that is a parameter, for example). */
remat_status remat_graph_resized(const remat_graph *graph, int64_t timesteps, int64_t new_timesteps, int64_t rows,
                                 int64_t new_rows, remat_graph **out);

#ifdef __cplusplus
}
#endif
#endif
