/* remat.h: the public interface of Remat. Everything a program needs to describe a network, see the
 * plan of its training step, and run that step inside a known number of bytes.
 *
 *     remat_graph *g;                                   // 1. describe
 *     remat_graph_create(&g);
 *     remat_value tokens  = remat_input(g, "tokens",  REMAT_I32, REMAT_SEQUENCE, 2, (int64_t[]){T, B});
 *     remat_value targets = remat_input(g, "targets", REMAT_I32, REMAT_SEQUENCE, 2, (int64_t[]){T, B});
 *     remat_value e = remat_embedding(g, tokens, remat_param(g, "embedding.weight", 2, (int64_t[]){256, E},
 *                                                            remat_init_normal(1.0)));
 *     remat_value h = remat_lstm(g, e, w_ih, w_hh, b_ih, b_hh);
 *     remat_value loss = remat_softmax_cross_entropy(g, remat_linear(g, h, w, b), targets);
 *
 *     remat_config config = REMAT_CONFIG_INIT;          // 2. plan
 *     config.strategy = "segments"; config.segments = 32;
 *     remat_session *s;
 *     if (remat_session_create(g, loss, &config, &s)) die(remat_last_error());
 *
 *     remat_write(s, REMAT_INPUT, 0, my_tokens, bytes);  // 3. run
 *     remat_write(s, REMAT_INPUT, 1, my_targets, bytes);
 *     remat_step_result r;
 *     remat_step(s, 1e-3, &r);                          // forward, backward, clip, update
 *
 * Ops that are not in the list below, a program brings itself: remat_op.h.
 *
 * Ownership  What you _create you _free; _free(NULL) is allowed. Values belong to their graph. Configs
 *            and strings are copied. A returned const pointer is borrowed, valid until its owner is freed.
 * NULL       is allowed where a comment says so. Elsewhere a function that returns a status says INVALID and what it needs;
 *            all others do nothing, and return 0, false, NULL, REMAT_NONE, an index of -1, or a struct of these.
 * Errors     Every fallible call returns a remat_status; the sentence, with numbers, is remat_last_error().
 *            The library never exits, never prints, and reads no file of its own accord.
 * Threads    One object is used by one thread at a time; the error text is per thread. A session computes
 *            on its own `threads` OpenMP threads.
 * Shapes     Row-major, written (T,B,C): timesteps, batch, features; innermost last. Units are in names.
 * ABI        A program runs with every later libremat.so of the same number (.so.0), as it was compiled: docs/promises.md.
 *            The library exports all functions, those that are `static inline` as NAME_sized: see Sizes, at the end.
 * C++        The header is for both: where C writes (int64_t[]){T, B}, C++ wants an array with a name, and for
 *            &(remat_job_config){0} a variable.
 * Bits       Loss, gradients and parameters are bit-identical for every strategy and segment count on the
 *            same device, thread count and tile. See docs/promises.md.
 */
#ifndef REMAT_H
#define REMAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define REMAT_VERSION "0.1.0"
#define REMAT_MAX_RANK 8

/* ---- Errors ------------------------------------------------------------------------------------- */

#define REMAT_STATUS_MAP(X)                                                                                            \
    X(OK, "success")                                                                                                   \
    X(INVALID, "the caller passed something that cannot work")                                                         \
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

const char *remat_status_text(remat_status status); /* the general sentence above; never NULL */
/* What exactly went wrong in this thread's last call that failed; "" if none has. Calls that succeed leave it as it is: read it
 * after a status that is not OK. */
const char *remat_last_error(void);

/* ---- Describe: the graph ------------------------------------------------------------------------ */

typedef struct remat_graph remat_graph;
typedef struct remat_session remat_session;
typedef struct {
    int32_t id; /* 0 is "no value" */
} remat_value;
#ifdef __cplusplus
#define REMAT_NONE (remat_value())
#else
#define REMAT_NONE ((remat_value){0})
#endif

typedef enum { REMAT_F32, REMAT_F64, REMAT_I32 } remat_dtype;

/* Whether the first axis of a value is time. Time is what Remat cuts into tiles: a SEQUENCE input is
 * (T,B) or (T,B,C); a WHOLE one has no time axis, e.g. labels (B) or features (B,C). Sequences may differ
 * in T and B: layers join only what agrees. */
typedef enum { REMAT_STATIC, REMAT_SEQUENCE } remat_axis;

/* How a parameter starts. Drawn from (seed, parameter, element): the same on any machine. */
typedef enum { REMAT_INIT_ZERO, REMAT_INIT_CONSTANT, REMAT_INIT_NORMAL, REMAT_INIT_UNIFORM } remat_init_kind;
typedef struct {
    remat_init_kind kind;
    double
        scale; /* the constant; the standard deviation; the bound of [-scale, scale]: finite, the last two not below 0 */
} remat_init;
remat_init remat_init_of(remat_init_kind, double scale);
remat_init remat_init_zero(void);
remat_init remat_init_constant(double value);
remat_init remat_init_normal(double deviation);
remat_init remat_init_uniform(double bound);

remat_status remat_graph_create(remat_graph **out);
void remat_graph_free(remat_graph *graph);

/* The first mistake made while building, or REMAT_OK. Builders nest: after a mistake they return "no
 * value", which later builders pass on, so one test at the end is enough. */
remat_status remat_graph_check(const remat_graph *graph);

remat_value remat_input(remat_graph *, const char *name, remat_dtype, remat_axis, int rank, const int64_t *dim);
remat_value remat_param(remat_graph *, const char *name, int rank, const int64_t *dim, remat_init);
/* An array that a layer keeps from step to step beside its parameters (batch norm's running statistics): written once a
 * training step, whatever the plan runs again; read by evaluations. REMAT_BUFFER. */
remat_value remat_buffer(remat_graph *, const char *name, int rank, const int64_t *dim, remat_init);
/* Asks for the gradient of an input (f32), and returns the input: each backward pass leaves it in REMAT_GRADIENT under the
 * input's name. */
remat_value remat_requires_grad(remat_graph *, remat_value input);

/* Layers. x is a sequence (T,B,C) or whole (B,C); biases may be REMAT_NONE where marked [b]. Equations, gate
 * order and the layout of weights are PyTorch's, so parameters move between the two unchanged. */
remat_value remat_embedding(remat_graph *, remat_value tokens, remat_value weight); /* (T,B),(V,C) -> (T,B,C) */
remat_value remat_linear(remat_graph *, remat_value x, remat_value w, remat_value b /*[b]*/); /* w (N,C) -> (..,N) */
remat_value remat_lstm(remat_graph *, remat_value x, remat_value w_ih, remat_value w_hh,      /* (4H,C),(4H,H)      */
                       remat_value b_ih /*[b]*/, remat_value b_hh /*[b]*/);                   /* (4H),(4H); i,f,g,o  */
remat_value remat_gru(remat_graph *, remat_value x, remat_value w_ih, remat_value w_hh,       /* (3H,C),(3H,H)      */
                      remat_value b_ih /*[b]*/, remat_value b_hh /*[b]*/);                    /* (3H),(3H); r,z,n    */
remat_value remat_rnn_tanh(remat_graph *, remat_value x, remat_value w_ih, remat_value w_hh,  /* (H,C),(H,H)    */
                           remat_value b_ih /*[b]*/, remat_value b_hh /*[b]*/);               /* (H),(H)        */
/* y[t] = a[t] y[t-1] + b[t], element by element, a and b (T,B,..); where `reset` (T,B) is above 0, y[t] = b[t]. */
remat_value remat_linear_scan(remat_graph *, remat_value a, remat_value b, remat_value reset /*[reset]*/);
/* minGRU and minLSTM (Feng et al. 2024), behind a linear layer without bias whose rows are those of minGRU-pytorch's
 * to_hidden_and_gate (2H,C), hidden, gate; and to_hidden_and_f_i_gate (3H,C), hidden, f, i: (T,B,2H), (T,B,3H) -> (T,B,H).
 * h = (1 - z) h + z g(hidden), z = sigmoid(gate); h = (f h + i g(hidden)) / (f + i), f and i sigmoids too;
 * g(x) = x + 1/2 where x >= 0, else sigmoid(x). */
remat_value remat_min_gru(remat_graph *, remat_value hidden_and_gate);
remat_value remat_min_lstm(remat_graph *, remat_value hidden_and_f_i_gate);
/* Each feature convolved over time by a filter of its own: y[t] reads x[t-k+1] to x[t]; 2 <= k <= 16. PyTorch's
 * Conv1d(C, C, k, groups=C) behind padding on the left. */
remat_value remat_causal_conv(remat_graph *, remat_value x, remat_value w, remat_value b /*[b]*/); /* (C,1,k), (C) */
/* PyTorch's nn.LSTM(proj_size=P): h = w_hr (o tanh(c)), so y is (T,B,P); w_ih (4H,C), w_hh (4H,P), w_hr (P,H). */
remat_value remat_lstm_projected(remat_graph *, remat_value x, remat_value w_ih, remat_value w_hh,
                                 remat_value b_ih /*[b]*/, remat_value b_hh /*[b]*/, remat_value w_hr);
/* linear with its weights the other way, w (C,N): y = x w + b; GPT-2's Conv1D. */
remat_value remat_matmul(remat_graph *, remat_value x, remat_value w, remat_value b /*[b]*/);
/* Learned positions: y[t] = x[t] + w[t], x (T,B,C), w (P,C), P >= T. */
remat_value remat_positions(remat_graph *, remat_value x, remat_value w);
/* Rotary positions (Su et al. 2021), for q and k before remat_attention: features i and i + D/2 of each head of D = C/heads are turned
 * by the angle t base^(-2i/D), as Hugging Face's Llama pairs them; base is usually 10000. x (T,B,C), D even. */
remat_value remat_rotary(remat_graph *, remat_value x, int64_t heads, double base);
/* Images and signals, as PyTorch's Conv2d and Conv1d: x (N,C,H,W), w (O,C/groups,h,w), b (O) -> (N,O,H',W'), where
 * H' = (H + 2 padding - dilation (h - 1) - 1) / stride + 1, rounded down; (N,C,L), (O,C/groups,l) -> (N,O,L'). Pairs are over height and
 * width; NULL: strides and dilations of 1, no padding. Of a sequence (T,B,C,H,W) or (T,B,C,L), each timestep by itself. */
remat_value remat_conv2d(remat_graph *, remat_value x, remat_value w, remat_value b /*[b]*/, const int64_t stride[2],
                         const int64_t padding[2], const int64_t dilation[2], int64_t groups);
remat_value remat_conv1d(remat_graph *, remat_value x, remat_value w, remat_value b /*[b]*/, int64_t stride,
                         int64_t padding, int64_t dilation, int64_t groups);
/* The largest, or the mean, of each window of a plane: x (..,H,W) -> (..,H',W'), H' as above. PyTorch's MaxPool2d, and AvgPool2d, which
 * counts padding as zeros. Pairs are over height and width; stride NULL: the window; padding NULL: none, and at most half a window. */
remat_value remat_max_pool2d(remat_graph *, remat_value x, const int64_t window[2], const int64_t stride[2],
                             const int64_t padding[2]);
remat_value remat_avg_pool2d(remat_graph *, remat_value x, const int64_t window[2], const int64_t stride[2],
                             const int64_t padding[2]);
/* The mean over the last `axes` axes, 1 or more: over 2, (N,C,H,W) -> (N,C), a global average pool. */
remat_value remat_mean(remat_graph *, remat_value x, int axes);
/* Planes that become `scale` times as high and wide, x (..,H,W): PyTorch's Upsample; nearest, bilinear, or bilinear with corners that lie
 * upon each other (align_corners=True). */
typedef enum { REMAT_NEAREST, REMAT_BILINEAR, REMAT_BILINEAR_CORNERS } remat_upsample;
remat_value remat_upsample2d(remat_graph *, remat_value x, const int64_t scale[2], remat_upsample mode);
/* Zeros before and behind, over height and width: (..,H,W) -> (..,before[0]+H+behind[0],before[1]+W+behind[1]); NULL: none. */
remat_value remat_pad2d(remat_graph *, remat_value x, const int64_t before[2], const int64_t behind[2]);
/* Two axes change places, PyTorch's x.transpose(one, other); the (T,B) of a sequence stay. */
remat_value remat_transpose(remat_graph *, remat_value x, int one, int other);
/* Carried states as values, of any layer that has them, by the y that it returned. An LSTM's are 0: h, 1: c; others have h alone.
 * initial_state: state number `state` begins with `initial` (shaped like it, (B,H), made before the layer) instead of zeros, and
 * has a gradient, if it is on the way from a parameter; returns y. final_state: what it is after the last timestep. So an
 * encoder's end is a decoder's beginning:
 *     h = remat_lstm(g, source, ...); y = remat_lstm(g, target, ...);       // in this order
 *     for (int k = 0; k < 2; k++) remat_initial_state(g, y, k, remat_final_state(g, h, k)); */
remat_value remat_initial_state(remat_graph *, remat_value y, int state, remat_value initial);
remat_value remat_final_state(remat_graph *, remat_value y, int state);
/* Sequences that begin in the middle of a row, by the y of their layer (a recurrent one or causal_conv): where `reset`, f32 (T,B),
 * is above 0, all states of that row are zeros before that timestep, initial ones too; nothing passes there in either
 * direction. No gradient goes to `reset`. Returns y. Rows of different lengths, padded behind their ends, need it in layers
 * over remat_reverse, where padding comes first: 1 at each row's last timestep, turned round as x is
 * (docs/stateful.md). */
remat_value remat_reset_states(remat_graph *, remat_value y, remat_value reset);
remat_value remat_layer_norm(remat_graph *, remat_value x, remat_value gain, remat_value bias, double epsilon);
remat_value remat_rms_norm(remat_graph *, remat_value x, remat_value gain, double epsilon); /* PyTorch's RMSNorm */
/* PyTorch's GroupNorm: the channels of x (N,C,..), or of a sequence (T,B,C,..), in so many groups; gain, bias (C). */
remat_value remat_group_norm(remat_graph *, remat_value x, int64_t groups, remat_value gain, remat_value bias,
                             double epsilon);
/* Batch normalisation (Ioffe, Szegedy 2015), as PyTorch defines it: each channel of x (N,C,..), or of a sequence (T,B,C,..), is brought
 * to mean 0 and variance 1 over all else, then scaled and shifted. In training by the batch's own statistics, which are made once a
 * step and never again, and of which the running ones take `momentum`: running = (1 - momentum) running + momentum batch's (the
 * variance there is the unbiased one). In evaluation by the running ones. gain, bias: (C), parameters. running_mean, running_var:
 * (C), of remat_buffer, which begin at 0 and 1. sync: statistics over the batches of all ranks (SyncBatchNorm). A session that
 * trains is refused where a channel has one value: its variance is 0, and no gradient would pass. */
remat_value remat_batch_norm(remat_graph *, remat_value x, remat_value gain /*[b]*/, remat_value bias /*[b]*/,
                             remat_value running_mean, remat_value running_var, double momentum, double epsilon,
                             bool sync);
/* Scaled dot-product attention, heads side by side along C: y[t] = sum over s of v[s] softmax over s of q[t].k[s] / sqrt(C/heads),
 * causal: over s <= t alone. q, k and v are sequences (T,B,C); k and v may have fewer heads of as many features, each of which serves
 * heads/theirs neighbours of q's (PyTorch's enable_gqa). Layers q = linear(x, ..) and so on before it are the caller's. */
remat_value remat_attention(remat_graph *, remat_value q, remat_value k, remat_value v, int64_t heads, bool causal);
/* The same over another sequence, of as many timesteps as it has: q (T,B,C), k and v (S,B,C); a decoder's over its encoder. Keys where
 * `padding`, i32 (S,B), is 1 are left out (PyTorch's key_padding_mask); where all are, y is 0. */
remat_value remat_cross_attention(remat_graph *, remat_value q, remat_value k, remat_value v, int64_t heads,
                                  remat_value padding /*[b]*/);
remat_value remat_softmax(remat_graph *, remat_value x);                     /* along the last axis */
remat_value remat_log_softmax(remat_graph *, remat_value x);                 /* its logarithm       */
remat_value remat_dropout(remat_graph *, remat_value x, double probability); /* identity in evaluation */
remat_value remat_add(remat_graph *, remat_value a, remat_value b);          /* same shape             */
remat_value remat_mul(remat_graph *, remat_value a, remat_value b);          /* same shape             */
remat_value remat_scale(remat_graph *, remat_value x, double factor);
remat_value remat_sigmoid(remat_graph *, remat_value x);
remat_value remat_tanh(remat_graph *, remat_value x);
remat_value remat_relu(remat_graph *, remat_value x);
remat_value remat_gelu(remat_graph *, remat_value x);                 /* the exact one, x Phi(x), PyTorch's default */
remat_value remat_gelu_tanh(remat_graph *, remat_value x);            /* by a tanh: GPT-2's gelu_new               */
remat_value remat_silu(remat_graph *, remat_value x);                 /* x sigmoid(x)                              */
remat_value remat_concat(remat_graph *, const remat_value *x, int n); /* 2 to 4: (..,C1),(..,C2),.. -> (..,C1+C2+..) */
remat_value remat_slice(remat_graph *, remat_value x, int64_t first, int64_t count); /* (..,C) -> (..,count) */
/* A value without a time axis, (T,B,..), as a sequence of T timesteps: what is made of it is cut into tiles. So the rows of a batch
 * go through a large head some at a time: reshape (N,C) to (N,1,C), and its targets are a sequence (N,1). x is made of
 * inputs and parameters without a time axis alone, not of what a sequence has become (its last step, say). */
remat_value remat_as_sequence(remat_graph *, remat_value x);
/* The same numbers in another shape; one of dim may be -1, which is what remains. Nothing is copied. A sequence keeps its (T,B), and
 * is given the axes behind them. It cannot be an output or the loss: what it is made of can. */
remat_value remat_reshape(remat_graph *, remat_value x, int rank, const int64_t *dim);
/* x with time reversed: y[t] = x[T-1-t]. What is made of it runs backwards, too; two sequences that meet in a layer or a loss
 * run the same way, so one is turned round again. The last step of a reversed sequence is the first timestep. */
remat_value remat_reverse(remat_graph *, remat_value x);
remat_value remat_last_step(remat_graph *, remat_value x); /* (T,B,C) -> (B,C), step T-1       */
remat_value remat_step_at(remat_graph *, remat_value x,
                          remat_value index);                   /* (T,B,C),(B) i32 -> (B,C), row b's step index[b] */
remat_value remat_mean_over_time(remat_graph *, remat_value x); /* (T,B,C) -> (B,C)                 */

/* A recurrent layer of one's own (examples/10_your_own_cell.c). `body` is a graph that describes one timestep: its leaves are f32
 * inputs without a time axis, (B,C) and the like, each of which is listed once. At every timestep the body is given that step of
 * each sequence, the weights, and its states: zeros at first, and then what next_states were a timestep before. The
 * layers in it: linear, layer_norm, dropout, add, mul, scale, sigmoid, tanh, relu, gelu, concat and slice; at most 64. There is one
 * output; remat_concat joins several, and more than eight states alike. */
typedef struct {
    const char *name; /* at most 40 bytes: carried states are called NAME.0.h, NAME.0.c */
    const remat_graph *body;
    const remat_value *inputs; /* the body's leaf for each sequence, and below for each weight: at most 16 in all */
    int n_inputs;
    const remat_value *weights;
    int n_weights;
    const remat_value *states, *next_states; /* leaves, and results of the same shapes: 1 to 8 */
    int n_states;
    remat_value output; /* a result that begins with B, such as (B,H) */
} remat_cell;
/* y (T,B,..) = the cell's output at each timestep of n_inputs sequences (T,B,..), with n_weights parameters or values without a
 * time axis. All of the cell is copied. On the CPU alone. Where each sequence is read by a layer that differentiates by it (linear,
 * mul, ..), lean plans keep y and the states before each tile, and nothing else. */
static inline remat_value remat_scan(remat_graph *, const remat_cell *cell, const remat_value *sequences,
                                     const remat_value *weights);

/* Losses: a mean over every row (softmax_cross_entropy, in nats) or every element (mse, mae, huber); a scalar. */
remat_value remat_softmax_cross_entropy(remat_graph *, remat_value logits, remat_value targets); /* (..,V),(..) */
/* Label smoothing (Szegedy et al. 2016), as PyTorch defines it: the target is (1 - smoothing) of its class and smoothing/V of
 * every class; 0 <= smoothing <= 1. In training only: remat_evaluate gives the plain loss, so that evaluations of runs with
 * and without it can be compared. */
remat_value remat_softmax_cross_entropy_smoothed(remat_graph *, remat_value logits, remat_value targets,
                                                 double smoothing);
/* PyTorch's cross_entropy(weight=class_weights, ignore_index=ignored): rows whose target is `ignored`, which may be -100 or any other
 * number, count nothing; the others count as much as their class's weight (V), REMAT_NONE: 1; and the loss is the mean by
 * weight, over all tiles, micro steps and ranks (remat_config.loss_mean): the targets are weighed before the first tile. Where
 * nothing counts, the loss and its gradients are 0; PyTorch gives NaN. With smoothing, every class's part of a target counts by
 * that class's weight. */
remat_value remat_softmax_cross_entropy_weighted(remat_graph *, remat_value logits, remat_value targets,
                                                 remat_value class_weights /*[b]*/, int64_t ignored, double smoothing);
remat_value remat_mse(remat_graph *, remat_value x, remat_value target);
/* Binary cross entropy of each element's sigmoid, targets f32 in [0,1]: of labels of which several may be right. PyTorch's
 * BCEWithLogitsLoss. */
remat_value remat_bce_with_logits(remat_graph *, remat_value logits, remat_value targets);
remat_value remat_mae(remat_graph *, remat_value x, remat_value target); /* PyTorch's l1_loss */
/* d^2/2 where |d| <= delta, and delta (|d| - delta/2) beyond; d = x - target, delta > 0. */
remat_value remat_huber(remat_graph *, remat_value x, remat_value target, double delta);
/* The same over rows that are no padding: padding I32, of x's shape but for the last axis, (T,B) for (T,B,V), is 1 where a row counts
 * nothing and what it holds is not read, and 0 elsewhere. The mean is over the elements that count in all tiles, micro steps and
 * ranks (remat_config.loss_mean): rows are counted before the first tile. Where none count, the loss and its gradients are 0. */
remat_value remat_mse_padded(remat_graph *, remat_value x, remat_value target, remat_value padding);
remat_value remat_mae_padded(remat_graph *, remat_value x, remat_value target, remat_value padding);
remat_value remat_huber_padded(remat_graph *, remat_value x, remat_value target, remat_value padding, double delta);
remat_value remat_bce_with_logits_padded(remat_graph *, remat_value logits, remat_value targets, remat_value padding);
/* Connectionist temporal classification (Graves et al. 2006), PyTorch's CTCLoss on log_softmax(logits): logits (T,B,V), a sequence; targets
 * (B,S), I32 without a time axis, a row of labels for each sample, not the blank; lengths (B), I32. A row is as long as target_lengths
 * says, and ends before its first -1. Each sample's loss is divided by its number of labels, if any, and the mean is over samples.
 * Labels that need more timesteps than there are (one each, and one more between two that are the same) have an infinite loss, and
 * gradients that are no numbers; zero_infinity: 0 and 0. A recurrence along time: logits exist for one tile at a time, and what
 * backward keeps beside them is 4 (tau+1) B (2S+1) + 8 tau B bytes for a tile of tau timesteps. */
remat_value remat_ctc(remat_graph *, remat_value logits, remat_value targets, remat_value input_lengths /*[b]*/,
                      remat_value target_lengths /*[b]*/, int64_t blank, bool zero_infinity);

/* ---- Plan: the session -------------------------------------------------------------------------- */

/* An f32 input or an output that lies in the program's own memory, not in the arena: tiles are read there, or written, and nothing is
 * copied. On the device "cpu" (planned on "null"). */
typedef struct {
    remat_value value;
    void *
        memory; /* as long as the value; there until the session is freed, or remat_set_external gives it another; plan_only: NULL */
} remat_external;

typedef struct {
    const char *device;      /* "cpu"; "cuda": one NVIDIA GPU; or "null": computes nothing, counts everything */
    const char *precision;   /* what matrix products round their operands to: "fp32"; on "cuda" also "tf32" (10 bits
                                behind the point) and "bf16" (7); on a CPU with AVX512_BF16 "bf16", in lstm, gru
                                and rnn_tanh (a network without is MISSING it). "null" takes any. Sums and
                                all that is stored are fp32                                               */
    const char *rnn_kernels; /* whose kernels run recurrent layers: "remat", or, on "cuda", "cudnn" (fp32 and tf32; no
                                lean option, no folded embedding; docs/notes/cuda.md); the same for every
                                plan, since their bits differ. "auto", NULL: "remat"                      */
    int threads;             /* 0: OMP_NUM_THREADS, or else as many as there are processors that this process may
                             run on, by its affinity mask and its container's quota (cgroups). Ranks of one
                             host do not share these out: `remat launch` sets OMP_NUM_THREADS to each one's
                             part, torchrun to 1; where mpirun or srun has not bound ranks to processors of
                             their own, each takes all of them, so set it                                 */
    uint64_t seed;           /* parameters and dropout are drawn from it                                     */
    const char *strategy;    /* "none", "segments", "sqrt", "lean", "optimal": see memory/strategies.def     */
    int64_t segments;        /* for "segments"                                                               */
    const char *plan_steps;  /* a plan of your own instead of a strategy's, as remat_plan_steps_text prints
                               it; it is judged like any other. Borrowed during create; NULL: none        */
    uint64_t memory_budget;  /* bytes that all of a session may use (remat_plan_summary.budgeted_bytes); 0: no
                               limit. "optimal" takes the fastest plan that fits; every strategy is refused
                               with INFEASIBLE, before anything is allocated, where its plan does not       */
    const char *recompute;   /* "auto"; "exact-only": only by running whole stages again, no lean options;
                              "off": nothing is computed twice                                            */
    const char *spill_dir;   /* plans may SAVE to and LOAD from a file here; borrowed during create; NULL: no */
    bool verify_recompute;   /* hash every state when it is first made, and compare whenever it is
                              made or loaded again: a difference fails the step, naming stage and tensor   */
    const char *calibration; /* file that keeps measured kernel times from run to run; "": measure, keep
                                nothing; NULL: nothing measured chooses between plans: "optimal" goes by the
                                rates of one assumed machine, and the same config gives the same plan
                                everywhere; other strategies have one plan, and its time is predicted from
                                the device's rates. Borrowed                                              */
    double assume_flops, assume_bandwidth; /* device "null": operations and bytes a second of the machine that
                                is planned for; 0: some                                                   */
    int64_t tile;        /* timesteps in a tile; 0: from the shapes and the kind of device (docs/plans.md) */
    bool fold_embedding; /* rewrite embedding -> recurrent input projection into one table where smaller */
    bool plan_only;      /* allocate nothing: the plan can be read, nothing can run                      */
    bool inference;      /* no gradients and no optimizer: only remat_evaluate                           */
    bool stateful;       /* carried states continue from call to call instead of starting at zero. Where a session
                             trains, remat_evaluate begins with them and leaves them as they are          */
    const remat_value *outputs; /* borrowed during create: values that remat_evaluate keeps whole, for
                                   remat_read(REMAT_OUTPUT); training steps keep what the loss depends on  */
    int n_outputs;
    int n_differentiated; /* so many outputs, from the first on, are differentiated by gradients that the program
                             writes: a loss of its own, beside `loss` or in its place (remat_forward); where
                             `inference` is set, none                                                      */
    const remat_external *external; /* borrowed during create: inputs and outputs that the arena has no room for */
    int n_external;
    const char *optimizer;        /* "sgd", "adam", "adamw", "rmsprop", "adagrad", "lars", "lamb"; NULL: gradients only,
                                     remat_step refuses                                                   */
    double momentum;              /* sgd, rmsprop, lars                                                           */
    bool nesterov;                /* sgd, lars                                                                   */
    double beta1, beta2, epsilon; /* adam, adamw, lamb; lars: epsilon, which MLPerf has 0                 */
    double weight_decay;          /* sgd, adam, lars: added to the gradient; adamw, lamb: decoupled       */
    double alpha;                 /* rmsprop: of the mean of squares; PyTorch's                           */
    double clip_grad_norm;        /* global 2-norm over all parameters; 0: no clipping                    */
    double clip_grad_value;       /* largest size of any element of a gradient; 0: no clipping; one of the two, and not
                                     with lars or lamb, which look at whole gradients                     */
    double trust_coefficient;     /* lars                                                                 */
    bool momentum_correction;     /* lars: momentum is also multiplied by lr / the last update's lr       */
    bool adapt_vectors;           /* lars, lamb: scale biases and gains by their norms too, not only what has two
                                     dimensions or more                                                   */
    bool decay_vectors; /* lars, lamb: weight decay for biases and gains, too: else they have what a group gives them */
    double norm_limit;  /* lamb: a larger norm of a parameter counts as this much; 0: no limit  */
    const char *train_only;   /* beginnings of names, comma separated: these parameters alone are trained. The others
                                     are frozen, PyTorch's requires_grad_(False): no gradient, no optimizer state, no
                                     place in a bucket. Borrowed during create; NULL: all                 */
    int micro_steps;          /* parts that the batch of one update comes in, each with a call of
                                     remat_gradients of its own; 0: 1                                     */
    bool deterministic_world; /* micro steps and ranks are summed as one balanced tree, so that their product
                                     alone decides the bits; both must be powers of two (docs/distributed.md) */
    const struct remat_ranks *ranks; /* the other ranks of a data-parallel job; copied; NULL: there are none */
    const char
        *groups; /* parameters with a rate (a factor of the step's) or a weight decay of their own, by words in their
                           names; the first group with such a word counts: "bias,norm:weight_decay=0;wte:lr=0.1".
                           Borrowed during create; NULL: none                                            */
    int64_t
        carry_stride; /* stateful sessions keep states for the next call as they are after so many timesteps, whole tiles
                            (with tile 0 one is chosen that fits): windows that overlap, every `carry_stride` timesteps one;
                            0: after all                                                                  */
    const char
        *loss_mean; /* of losses that leave targets out or weigh classes, where an update has several micro steps or
                              ranks. "batch", NULL: the mean over all that counts in the update, as of one batch; "parts":
                              each has a mean of its own, and those are averaged, as under PyTorch's DDP (docs/large_batch.md) */
} remat_config;

/* What a config begins as: device "cpu", precision "fp32", strategy "none", recompute "auto", fold_embedding, PyTorch's beta1,
 * beta2, alpha and epsilon, trust_coefficient 0.001. The rest is zero. */
static inline remat_config remat_config_init(void);
#define REMAT_CONFIG_INIT (remat_config_init())

/* Plans, checks and places the step that minimises `loss`, a scalar of `graph` (for inference, and where outputs are
 * differentiated in its place, it may be REMAT_NONE). The graph is copied. INVALID names the mistake; MEMORY says how
 * many bytes were wanted; INFEASIBLE says the smallest memory_budget that would work, to the byte, where the peak is, and
 * what is largest there. */
static inline remat_status remat_session_create(const remat_graph *, remat_value loss, const remat_config *,
                                                remat_session **out);
uint64_t remat_smallest_budget(void); /* after INFEASIBLE, on this thread: the memory_budget that would just do */
void remat_session_free(remat_session *);

/* What the plan promises. Bytes are exact; times are predictions. */
typedef struct {
    const char *strategy, *device, *precision;
    const char *rnn_kernels; /* "remat" or "cudnn" */
    int threads;
    int64_t timesteps, batch, tile, n_tiles, n_stages;
    int64_t segments;           /* as run                                                                 */
    int64_t segments_requested; /* as asked; larger than `segments` when there are fewer stages than that */
    uint64_t params_bytes, gradients_bytes, optimizer_bytes, inputs_bytes, packed_bytes, other_bytes;
    uint64_t activations_peak_bytes;  /* checkpoints, saved, gradients of activations and scratch together */
    uint64_t activations_floor_bytes; /* the most that is ever alive at once: no placement can be below  */
    uint64_t planned_peak_bytes;      /* the arena: everything that the step's kernels touch             */
    uint64_t workspace_bytes;         /* kept beside it: matrix packing, spill buffers, wire_bytes (below) */
    uint64_t tables_bytes;            /* the plan itself and what describes it, on the host              */
    uint64_t budgeted_bytes;          /* the three together: what memory_budget limits                   */
    uint64_t memory_budget;           /* as configured; 0: no limit                                      */
    uint64_t spill_bytes;             /* room taken in the spill file                                    */
    int64_t peak_step;                /* the step of the plan at which activations peak                  */
    uint64_t forward_ns, recompute_ns, backward_ns; /* predicted                                          */
    uint64_t transfer_ns, wait_ns; /* the second tier's busy time; how long computing waits for it    */
    uint64_t step_ns;              /* forward + recompute + backward + wait                           */
    uint64_t fixed_ns;             /* beside it: packing weights, tables, what only outputs that are differentiated
                                      need in forward, clipping, the optimizer; whole step: sum            */
    bool measured_times;           /* predicted from measurements of this device, not from rates      */
    bool measured_busy;            /* ... taken while other programs took the processors, too: likely too long, and not
                                          kept: the next session measures again                           */
    double recompute_factor;       /* forward work done / forward work needed, 1 when nothing is redone */
    int64_t n_steps;               /* lines of the plan                                               */
    int64_t n_buckets;             /* of gradients: see remat_bucket                                  */
} remat_plan_summary;
static inline remat_plan_summary remat_session_plan(const remat_session *);

/* The matrix products that a GPU has met, told apart by shape and alignment: all of them after the first step. Tensor cores are
 * allowed to round what they multiply, not made to: where the library has no such algorithm whose bits repeat, or a quicker
 * one without, products stay in fp32 although config.precision is another. */
typedef struct {
    int64_t shapes, in_fp32; /* the second: in spite of the precision; 0 where that is fp32 itself */
    int64_t by_cublas; /* of the shapes: made by cuBLAS in fp32, since cuBLASLt has no algorithm whose bits repeat */
    int64_t split;     /* of the shapes: their sums are made in parts, and added in an order that repeats */
    /* The same products, also told apart by how far rows lie apart: those that stand for themselves; and those of many rows, which
     * must have the bits of few: made as one product, as a batch, or, which is slow, block by block. */
    int64_t alone, whole, batched, blocks;
} remat_products;
static inline remat_products remat_session_products(const remat_session *);

/* Kernels that a GPU starts many at a time (CUDA graphs), which are all recorded after the second step. */
typedef struct {
    int64_t calls, graphs; /* different calls that came, and how many of them are recorded */
    uint64_t bytes,
        limit_bytes;   /* that graphs take of the GPU's memory, as seen; that are set aside for them; 0: no GPU */
    const char *ended; /* why no more are recorded, in words; NULL: they would be */
} remat_recordings;
static inline remat_recordings remat_session_recordings(const remat_session *);

/* Texts for people and for diffing; the caller frees them with remat_text_free. NULL when out of memory. */
char *remat_plan_describe(const remat_session *);     /* the table: per stage what is kept, bytes, the peak */
char *remat_plan_stages_json(const remat_session *);  /* the same as one JSON array                         */
char *remat_plan_peak_json(const remat_session *);    /* what is alive at the peak, as one JSON object      */
char *remat_plan_steps_text(const remat_session *);   /* the program itself, one RUN / FREE a line          */
char *remat_plan_problem_text(const remat_session *); /* what the strategy was given                        */
void remat_text_free(char *text);

/* Memory against time: what each strategy would need and take, for the session's own graph, device and tile. Points are
 * in ascending order of bytes within a strategy; `frontier` marks those that no other beats in both. The array is the
 * caller's, to free with remat_text_free((char *)points). */
typedef struct {
    const char *strategy;
    int64_t segments;
    uint64_t activations_peak_bytes, budgeted_bytes, spill_bytes;
    uint64_t step_ns; /* predicted */
    double recompute_factor;
    bool frontier;
} remat_pareto_point;
static inline remat_status remat_plan_pareto(const remat_session *, remat_pareto_point **points, int64_t *count);

/* Bytes alive at each step of the plan, by kind, planned and (after a step that was traced) measured. The arrays are
 * freed with remat_text_free((char *)points). */
typedef enum {
    REMAT_LIVE_STATES,
    REMAT_LIVE_SAVED,
    REMAT_LIVE_GRADIENTS,
    REMAT_LIVE_SCRATCH,
    REMAT_LIVE_KINDS
} remat_live;
typedef struct {
    int64_t step;      /* line of the plan                                                                */
    uint64_t begin_ns; /* since the plan's first step: predicted, or measured                             */
    uint64_t bytes[REMAT_LIVE_KINDS];
    uint64_t resident_bytes; /* of the process, where measured; else 0                                    */
} remat_live_point;
static inline remat_status remat_plan_timeline(const remat_session *, remat_live_point **points, int64_t *count);
/* Traces the next remat_gradients, or remat_forward and remat_backward: costs a few microseconds a step of the plan. The traced
 * timeline is INVALID until such a pass has come to its end. */
remat_status remat_trace_next(remat_session *);
static inline remat_status remat_traced_timeline(const remat_session *, remat_live_point **points, int64_t *count);

/* ---- Ranks: the same step in several processes --------------------------------------------------------- */

/* What a session asks of whoever connects it to the other ranks of a data-parallel job; dist/ddp/ddp.h fills it in. It is all
 * that a session knows of them. docs/distributed.md has the picture.
 *
 * Buckets. Parameters, and in the same order their gradients, lie one after the other in the order in which the backward
 * pass makes gradients final (a property of the graph, the same for every plan), cut into buckets by PyTorch's rule: one is
 * closed as soon as it holds its limit, first_bucket_bytes for the first, bucket_bytes for the others. A bucket's count is
 * a multiple of 16 * size floats, what is beyond its arrays is zero, and rank r's part of it is the r-th of `size` equal
 * parts. Every rank calls for the same buckets in the same order.
 *
 * Each slot returns a status, with its sentence in place, and a session returns it on. After a failure in the middle of a
 * step the ranks are no longer in step, so it is the last: the caller ends the job. Slots are called by the thread that
 * called the session, and only where the comment says; a plan_only or inference session calls none. Of agree, map, unmap,
 * prepare and poll any may be NULL; gather and gathered are for where it shards. */
typedef struct {
    int32_t index;                 /* from 0 */
    float *parameters, *gradients; /* its `count` of each, in the session's block: device memory, on a GPU. Who writes
                                      parameters here says so: remat_parameters_changed                      */
    int64_t count;
    const char *first; /* name of its first parameter */
    void *ready;       /* what is reached when the GPU is done with it, a cudaEvent_t; NULL: it is */
} remat_bucket;

typedef struct remat_ranks {
    size_t
        struct_bytes; /* sizeof(remat_ranks), for whoever fills this in; to be set anew in a copy of a library's table */
    void *context;
    int rank, size;
    uint64_t first_bucket_bytes, bucket_bytes; /* 0: 1 MiB, 25 MiB */
    double weight; /* this rank's share of the batch times `size`: 1 when all have as many rows; 0: 1. Where parts of
                             a batch weigh by what counts in them (remat_config.loss_mean), it is not used   */
    bool shard_optimizer; /* ZeRO stage 1: a rank keeps the optimizer's state of its part of each bucket alone */
    bool fused_update;    /* remat_step updates a bucket when it arrives, not after the last (without clipping) */
    const char *device;   /* whose memory its buckets lie in: "cuda"; NULL: the host's. Must be the session's        */
    bool heeds_events; /* reduce and gather take buckets that a GPU is not done with, and see to it that nothing touches
                             one before `ready` is reached; false: the session waits, and then calls them */
    uint64_t device_bytes; /* ... and how much of it collectives take beside the session: part of the budget         */
    int wire_bytes; /* of a gradient on its way, where it is not sent as it lies there: 2; 0: as it lies there. A session
                             counts this for each of a bucket's, in whole pages a bucket, in workspace_bytes */

    /* In remat_session_create, once each, in this order. agree: `order` is the parameters' indices by when their gradients
     * are final, `used` 1 where the loss depends on one; rank 0's order and the maximum of `used` replace them. map: whole
     * pages that gradients (and, where it shards, parameters) lie in; may become other memory, zero-filled, in place.
     * unmap, of each address that was mapped, comes before that memory goes: in remat_session_free, or when create fails. */
    remat_status (*agree)(void *context, int32_t *order, uint8_t *used, int64_t n_parameters);
    remat_status (*map)(void *context, void *address, uint64_t bytes);
    void (*unmap)(void *context, void *address); /* NULL slot: nothing to do */
    /* ... and after these, for each bucket in order: takes the memory that `reduce` will want for it. NULL: none */
    remat_status (*prepare)(void *context, const remat_bucket *bucket);

    /* In the last micro step of remat_gradients, for each bucket, in order: its gradients are final here (but for
     * heeds_events), and are left alone until wait. After wait they are the mean over ranks - on this rank's part of the bucket alone where it shards. */
    remat_status (*reduce)(void *context, const remat_bucket *bucket);
    remat_status (*wait)(void *context, const remat_bucket *bucket);

    /* In remat_update, where it shards: this rank's part of the parameters is new; after `gathered`, all parts are. */
    remat_status (*gather)(void *context, const remat_bucket *bucket);
    remat_status (*gathered)(void *context, const remat_bucket *bucket);

    /* Sums over ranks, in place, the same bits on all: what counts in the loss (before the last micro step's backward pass; of losses
     * that leave targets out), the loss (after the last bucket), norms of what is sharded. Beside the
     * losses every rank tells how many updates it has made, and with which learning rate. Where these are not the same on all
     * ranks, all of them fail with PEER and a sentence that names two: in remat_step before anything has been updated (but
     * for fused_update), in remat_gradients for the update before. */
    remat_status (*sum)(void *context, double *values, int64_t count);
    /* Before each run of a stage: is everybody still there? Must be cheap. */
    remat_status (*poll)(void *context);
} remat_ranks;

/* What must be the same on all ranks, or they drift apart: "momentum 0.9", one setting a line; the optimizer, micro steps, which
 * parameters are trained, updates made so far. Not in it: what each rank may choose (plan, threads, batch, seed). The caller
 * frees it with remat_text_free; NULL when out of memory. */
char *remat_settings_text(const remat_session *);

int64_t remat_bucket_count(const remat_session *); /* also without other ranks; 0: no parameters */
/* Its pointers are NULL where nothing is allocated. */
static inline remat_bucket remat_bucket_info(const remat_session *, int64_t index);
/* After parameters were written through these pointers, outside the slots above: kernels keep copies of weights, in an order
 * of their own, which the next pass then makes anew. remat_write sees to that itself. */
void remat_parameters_changed(remat_session *);

/* Of the size * micro_steps shards that the batch of an update is cut into, the t-th call of remat_gradients on rank r
 * computes shard r + size * j. j is t, or, deterministic_world, t with its log2(micro_steps) bits in reverse: so neighbouring calls are
 * what the tree adds first, and few sums wait at any time. Dropout is drawn by shard: shard 0 of a job of any size drops what
 * a session without ranks would. */
int64_t remat_micro_shard(int64_t t, int64_t micro_steps, bool deterministic_world); /* j */

/* ---- A job: who the other ranks are -------------------------------------------------------------------- */

/* Fills in the table above, in a process that `remat launch`, torchrun, srun or mpirun started (examples/06_two_ranks.c):
 *
 *     remat_job *job;
 *     remat_join(&(remat_job_config){0}, &job);
 *     config.ranks = remat_job_ranks(job);
 *     remat_session_create(graph, loss, &config, &session);
 *     remat_job_begin(job, session);           // the same network, the same settings; then the parameters of rank 0
 *     ...                                      // each rank writes rows of its own; remat_step as ever
 *     remat_session_free(session);             // first: after remat_leave its steps are refused
 *     remat_leave(job);
 *
 * A program that nobody launched is a job of one rank: the same code, no table, nothing to wait for. A rank that fails
 * leaves, or exits: the others' next call returns PEER, and the sentence names it. */
typedef struct remat_job remat_job;

typedef struct {
    int64_t rows;              /* of this rank's batch: its weight in the mean over all; 0: all have as many       */
    const char *backend;       /* "local" (one host), "mpi", "gloo"; NULL or "auto": what suits                    */
    const char *init_method;   /* where ranks meet: "env://", "tcp://HOST:PORT", "file:///PATH"; NULL: env://      */
    int world_size, rank;      /* 0, 0: as the launcher's variables say                                            */
    int64_t timeout_ms;        /* for a rank that lives and does not come; 0: ten minutes                          */
    const char *grad_compress; /* "fp16", "bf16": gradients travel as these; NULL or "none": as they are         */
    bool deterministic_world;  /* as in remat_config: for both, or for neither                                   */
    bool shard_optimizer, fused_update; /* as in remat_ranks, and                                                */
    uint64_t first_bucket_bytes, bucket_bytes; /* these too                                                      */
    int64_t join_timeout_ms; /* for ranks that remat_join waits for; 0: timeout_ms, and if that is 0, five minutes */
} remat_job_config;

/* Collective, that is, to be called by all ranks: returns when all are there. INVALID, MISSING: what cannot work, or is not in
 * this build; IO, PEER: they do not meet. */
static inline remat_status remat_join(const remat_job_config *, remat_job **out);
void remat_leave(remat_job *); /* waits for nobody; NULL allowed */

int remat_job_rank(const remat_job *);
int remat_job_size(const remat_job *);
const remat_ranks *remat_job_ranks(const remat_job *); /* for remat_config.ranks; NULL where there is but one */

/* Collective: compares parameters (name, shape, type) and remat_settings_text, and gives every session rank 0's parameters and
 * buffers. PEER, on all ranks, with two of them and the first difference named. */
remat_status remat_job_begin(remat_job *, remat_session *);
/* Collective: gives every session rank 0's buffers. Ranks keep running statistics of their own batches (of all, where layers are
 * `sync`), and no step looks at them: before an evaluation in which ranks take part, this makes them evaluate one network. */
remat_status remat_job_share_buffers(remat_job *, remat_session *);
/* Collective: adds up `count` numbers over ranks, in place; the same bits on all. */
remat_status remat_job_sum(remat_job *, double *values, int64_t count);

/* Which samples a rank sees, and in what order: PyTorch's DistributedSampler, index for index. With order = a permutation of
 * 0 .. n-1 drawn from seed + epoch (or 0 .. n-1 itself), repeated from its begin until every rank has as many (drop_last: cut
 * off instead), rank r of W has order[r], order[r + W], order[r + 2 W], ... */
typedef struct remat_sampler remat_sampler;

typedef struct {
    int64_t n;              /* samples in the data set, 1 .. 2^32-1 */
    int64_t replicas, rank; /* remat_job_size, remat_job_rank */
    bool shuffle, drop_last;
    int64_t seed;
} remat_sampler_config;

/* The order of epoch 0. INVALID names what is wrong in the config; MEMORY: 4 bytes a sample are needed. */
static inline remat_status remat_sampler_create(const remat_sampler_config *, remat_sampler **out);
void remat_sampler_free(remat_sampler *);
void remat_sampler_set_epoch(remat_sampler *, int64_t epoch); /* epoch >= 0; redraws the order, allocates nothing */
int64_t remat_sampler_count(const remat_sampler *);           /* samples of this rank in one epoch; may be 0 */
int64_t remat_sampler_at(const remat_sampler *, int64_t k);   /* the k-th sample of this rank, 0 <= k < count */

/* ---- Run ---------------------------------------------------------------------------------------- */

/* Named arrays of a session. OPTIMIZER holds the optimizer's state as "PARAMETER.momentum_buffer",
 * "PARAMETER.exp_avg", "PARAMETER.exp_avg_sq"; OUTPUT the values asked for in the config, as the last
 * remat_evaluate made them, or, where the loss depends on them, the last pass of either kind (INVALID before the first);
 * CARRIED the carried states (B,H) of a stateful session: "lstm.0.h" and "lstm.0.c" of its first LSTM layer, "gru.1.h" of its
 * second GRU layer, "rnn_tanh.0.h" and so on (docs/stateful.md). GRADIENT has the trained parameters first, in their order, then the
 * inputs of remat_requires_grad: of the last call's batch alone, neither added up over micro steps nor over ranks; with
 * micro_steps = K they carry its share in the whole batch, 1/K; of a loss that leaves targets out, their part of what counts, and before
 * the last micro step, when that is not known yet, 1/K of what counts in it by what counts in the first.
 * OUTPUT_GRADIENT is the program's to write, between remat_forward and remat_backward: of the outputs that are differentiated,
 * shaped like them. Indices run from 0 in order of definition. */
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
typedef struct {
    const char *name;
    remat_dtype dtype;
    int rank;
    int64_t dim[REMAT_MAX_RANK];
    uint64_t bytes; /* of what this session holds: all of it, unless it is sharded */
    int64_t first,
        count; /* elements of it that this session holds, in row-major order: 0 and all; OPTIMIZER arrays of a
                             session that shards them: the part of this rank, which may be none */
} remat_array;

int64_t remat_count(const remat_session *, remat_kind);
static inline remat_status remat_array_info(const remat_session *, remat_kind, int64_t index, remat_array *out);
int64_t remat_find(const remat_session *, remat_kind, const char *name); /* -1 when there is none */

/* Copies an array (what the session holds of it) in or out; `bytes` must be that size. Integers are checked against the range
 * that the layers reading them allow (INVALID names the first that is outside). */
remat_status remat_write(remat_session *, remat_kind, int64_t index, const void *data, uint64_t bytes);
remat_status remat_read(remat_session *, remat_kind, int64_t index, void *data, uint64_t bytes);
/* The same for `bytes` bytes of it from byte `first` on, both multiples of an element's size: large arrays by little room. */
remat_status remat_write_part(remat_session *, remat_kind, int64_t index, uint64_t first, const void *data,
                              uint64_t bytes);
remat_status remat_read_part(remat_session *, remat_kind, int64_t index, uint64_t first, void *data, uint64_t bytes);

/* Other memory for an INPUT or OUTPUT of config.external, from the next pass on: two buffers in turn, say. Inputs in it count as
 * written; they are left alone during passes, and between remat_forward and remat_backward, as are outputs that are
 * differentiated. */
remat_status remat_set_external(remat_session *, remat_kind, int64_t index, void *memory);

/* From the next pass on, of sequences of `timesteps` timesteps tiles that begin at `end` or later are not computed, but for a last one
 * that something without time follows: for a batch whose rows all end there or earlier (docs/stateful.md, rows that begin and end);
 * `end` = timesteps computes all of them again. Where a network looks at nothing behind its rows' ends, loss, gradients and updates
 * keep their bits. In tiles that are not computed outputs are 0, and carried states stay as they are. Bytes are as planned. Ranks may
 * end at different timesteps. INVALID: no sequence of this graph has so many timesteps; an end that is not 1 .. timesteps; a stateful
 * session; layers that talk to other ranks at every tile. */
remat_status remat_set_sequence_end(remat_session *, int64_t timesteps, int64_t end);

typedef struct {
    double loss; /* a float's value; mean over all that counts (of all ranks), in the units of the loss. Before the last
                         micro step: over those so far, of this rank; of remat_evaluate: of this rank     */
    double grad_norm;          /* global 2-norm before clipping; of the last micro step, else 0                    */
    uint64_t arena_peak_bytes; /* counted as it runs: the furthest byte of the arena claimed by any step   */
    uint64_t recomputed_stages;
    double
        counted; /* what `loss` is a mean over: targets that count, or the sum of their classes' weights; 0: the loss has no
                       such count, or it is a mean of several ones                                        */
} remat_step_result;

/* The result is filled by each of these; NULL: not wanted. Inputs stay as they are until they are written again; a pass while
 * one that the loss or an output depends on has never been written is INVALID, and names it. With micro_steps = K, each call of
 * remat_gradients adds 1/K of a batch's gradient, the first of K from zero, and the K-th reduces them over ranks; remat_step is
 * for K = 1. Parameters that the loss does not depend on (on any rank) are left alone by updates: no weight decay, as where
 * PyTorch has no grad.
 * remat_evaluate calls no collective: ranks may evaluate as much as each likes; and it changes nothing that a training step
 * goes on from. */
static inline remat_status remat_gradients(remat_session *, remat_step_result *);         /* forward and backward */
static inline remat_status remat_update(remat_session *, double lr, remat_step_result *); /* clip, then the optimizer */
static inline remat_status remat_step(remat_session *, double lr, remat_step_result *);   /* both */
static inline remat_status remat_evaluate(remat_session *, remat_step_result *);          /* forward only, no dropout */

/* remat_gradients as two calls, for a loss of one's own (examples/09_your_own_loss.c):
 *
 *     config.outputs = &logits; config.n_outputs = config.n_differentiated = 1;
 *     remat_session_create(g, REMAT_NONE, &config, &s);
 *     remat_forward(s);                                          // PyTorch: logits = model(x)
 *     remat_read(s, REMAT_OUTPUT, 0, logits, bytes);
 *     remat_write(s, REMAT_OUTPUT_GRADIENT, 0, d_logits, bytes); // d my_loss / d logits, the program's own
 *     remat_backward(s, &r);                                     // PyTorch: logits.backward(d_logits)
 *     remat_update(s, 1e-3, &r);
 *
 * remat_forward runs the plan up to its first backward run; then the outputs that are differentiated can be read. They and
 * their gradients lie in the arena whole, for all timesteps. All gradients are written anew after each forward pass, which
 * sets them to zero: parts of one that are not written (remat_write_part) stay zero. Backward takes their share of the batch
 * (1/K with micro_steps = K, and this rank's weight), as it takes the loss's, and uses them up.
 * remat_backward runs the rest, as in remat_gradients; the loss in its result is that of `loss`, 0 without one. Where outputs
 * are differentiated, remat_gradients and remat_step are INVALID; elsewhere the two calls do what remat_gradients does.
 *     remat_backward without a forward pass to go on from is INVALID; so is one before something of every gradient is
 * written. remat_forward again begins anew. What a plan may still compute from is left alone in between: any other pass, an
 * update, and writing inputs, parameters, outputs or carried states give the forward pass up, and remat_backward then is
 * INVALID. */
remat_status remat_forward(remat_session *);
static inline remat_status remat_backward(remat_session *, remat_step_result *);

/* The number of updates made so far: part of the random key of dropout and of Adam's bias correction. Set it
 * when a training state is restored. */
int64_t remat_step_count(const remat_session *);
void remat_set_step_count(remat_session *, int64_t steps);
void remat_set_last_lr(remat_session *, double lr); /* likewise, of the last update: for momentum_correction */

/* ---- About this build --------------------------------------------------------------------------- */

typedef struct {
    const char *version, *compiler, *instruction_set, *gemm_library, *host_allocator;
    int threads;         /* that a session uses by default                                               */
    const char *devices; /* comma separated                                                              */
    uint64_t host_allocated_bytes, host_resident_bytes; /* the allocator's own statistics; 0: unknown     */
} remat_build_info;
static inline remat_build_info remat_build(void);

/* Opens a device and closes it: OK, or what a session on it would be refused with: MISSING (not in this build, no driver, no
 * such hardware), MEMORY, DEVICE. */
remat_status remat_device_check(const char *device);

/* ---- Sizes -------------------------------------------------------------------------------------- */

/* A program may be compiled with an older header than that of the library it runs with, and then has shorter structs. So of a
 * function that reads or fills a struct which may grow there are two: NAME is compiled into the program, and tells NAME_sized, in
 * the library, how large the struct is there. Programs call NAME; bindings, which read no header, NAME_sized.
 * Where you add one: NAME above, both of them here. A new member goes to the end of its struct (engine/abi.c). */

remat_value remat_scan_sized(remat_graph *, const remat_cell *cell, size_t cell_bytes, const remat_value *sequences,
                             const remat_value *weights);
static inline remat_value remat_scan(remat_graph *graph, const remat_cell *cell, const remat_value *sequences,
                                     const remat_value *weights) {
    return remat_scan_sized(graph, cell, sizeof(remat_cell), sequences, weights);
}

void remat_config_init_sized(remat_config *out, size_t out_bytes);
static inline remat_config remat_config_init(void) {
    remat_config config;
    remat_config_init_sized(&config, sizeof config);
    return config;
}

remat_status remat_session_create_sized(const remat_graph *, remat_value loss, const remat_config *,
                                        size_t config_bytes, remat_session **out);
static inline remat_status remat_session_create(const remat_graph *graph, remat_value loss, const remat_config *config,
                                                remat_session **out) {
    return remat_session_create_sized(graph, loss, config, sizeof(remat_config), out);
}

void remat_session_plan_sized(const remat_session *, remat_plan_summary *out, size_t out_bytes);
static inline remat_plan_summary remat_session_plan(const remat_session *session) {
    remat_plan_summary plan;
    remat_session_plan_sized(session, &plan, sizeof plan);
    return plan;
}

void remat_session_products_sized(const remat_session *, remat_products *out, size_t out_bytes);
static inline remat_products remat_session_products(const remat_session *session) {
    remat_products products;
    remat_session_products_sized(session, &products, sizeof products);
    return products;
}

void remat_session_recordings_sized(const remat_session *, remat_recordings *out, size_t out_bytes);
static inline remat_recordings remat_session_recordings(const remat_session *session) {
    remat_recordings recordings;
    remat_session_recordings_sized(session, &recordings, sizeof recordings);
    return recordings;
}

remat_status remat_plan_pareto_sized(const remat_session *, remat_pareto_point **points, size_t point_bytes,
                                     int64_t *count);
static inline remat_status remat_plan_pareto(const remat_session *session, remat_pareto_point **points,
                                             int64_t *count) {
    return remat_plan_pareto_sized(session, points, sizeof(remat_pareto_point), count);
}

remat_status remat_plan_timeline_sized(const remat_session *, remat_live_point **points, size_t point_bytes,
                                       int64_t *count);
static inline remat_status remat_plan_timeline(const remat_session *session, remat_live_point **points,
                                               int64_t *count) {
    return remat_plan_timeline_sized(session, points, sizeof(remat_live_point), count);
}

remat_status remat_traced_timeline_sized(const remat_session *, remat_live_point **points, size_t point_bytes,
                                         int64_t *count);
static inline remat_status remat_traced_timeline(const remat_session *session, remat_live_point **points,
                                                 int64_t *count) {
    return remat_traced_timeline_sized(session, points, sizeof(remat_live_point), count);
}

void remat_bucket_info_sized(const remat_session *, int64_t index, remat_bucket *out, size_t out_bytes);
static inline remat_bucket remat_bucket_info(const remat_session *session, int64_t index) {
    remat_bucket bucket;
    remat_bucket_info_sized(session, index, &bucket, sizeof bucket);
    return bucket;
}

remat_status remat_join_sized(const remat_job_config *, size_t config_bytes, remat_job **out);
static inline remat_status remat_join(const remat_job_config *config, remat_job **out) {
    return remat_join_sized(config, sizeof(remat_job_config), out);
}

remat_status remat_sampler_create_sized(const remat_sampler_config *, size_t config_bytes, remat_sampler **out);
static inline remat_status remat_sampler_create(const remat_sampler_config *config, remat_sampler **out) {
    return remat_sampler_create_sized(config, sizeof(remat_sampler_config), out);
}

remat_status remat_array_info_sized(const remat_session *, remat_kind, int64_t index, remat_array *out,
                                    size_t out_bytes);
static inline remat_status remat_array_info(const remat_session *session, remat_kind kind, int64_t index,
                                            remat_array *out) {
    return remat_array_info_sized(session, kind, index, out, sizeof(remat_array));
}

remat_status remat_gradients_sized(remat_session *, remat_step_result *, size_t result_bytes);
static inline remat_status remat_gradients(remat_session *session, remat_step_result *result) {
    return remat_gradients_sized(session, result, sizeof(remat_step_result));
}

remat_status remat_update_sized(remat_session *, double lr, remat_step_result *, size_t result_bytes);
static inline remat_status remat_update(remat_session *session, double lr, remat_step_result *result) {
    return remat_update_sized(session, lr, result, sizeof(remat_step_result));
}

remat_status remat_step_sized(remat_session *, double lr, remat_step_result *, size_t result_bytes);
static inline remat_status remat_step(remat_session *session, double lr, remat_step_result *result) {
    return remat_step_sized(session, lr, result, sizeof(remat_step_result));
}

remat_status remat_evaluate_sized(remat_session *, remat_step_result *, size_t result_bytes);
static inline remat_status remat_evaluate(remat_session *session, remat_step_result *result) {
    return remat_evaluate_sized(session, result, sizeof(remat_step_result));
}

remat_status remat_backward_sized(remat_session *, remat_step_result *, size_t result_bytes);
static inline remat_status remat_backward(remat_session *session, remat_step_result *result) {
    return remat_backward_sized(session, result, sizeof(remat_step_result));
}

void remat_build_sized(remat_build_info *out, size_t out_bytes);
static inline remat_build_info remat_build(void) {
    remat_build_info build;
    remat_build_sized(&build, sizeof build);
    return build;
}

#ifdef __cplusplus
}
#endif
#endif
