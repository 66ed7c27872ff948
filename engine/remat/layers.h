/* layers.h: layers and losses. Part of remat.h.
 *
 * Equations, gate order and weight layouts are PyTorch's, so parameters move between the two unchanged. x is a sequence
 * (T,B,C) or static (B,C) unless a comment says otherwise. Every builder returns REMAT_NONE after a mistake
 * (remat_graph_check). */
#ifndef REMAT_LAYERS_H
#define REMAT_LAYERS_H

#include "graph.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Linear and embedding layers ---------------------------------------------------------------- */

/* tokens i32 (T,B), weight (V,C) -> (T,B,C). */
remat_value remat_embedding(remat_graph *graph, remat_value tokens, remat_value weight);
/* y = x w^T + b: w (N,C), b (N) -> (..,N). */
remat_value remat_linear(remat_graph *graph, remat_value x, remat_value w, REMAT_OPTIONAL remat_value b);
/* y = x w + b: w (C,N), b (N) -> (..,N). GPT-2's Conv1D. */
remat_value remat_matmul(remat_graph *graph, remat_value x, remat_value w, REMAT_OPTIONAL remat_value b);
/* Learned positions: y[t] = x[t] + w[t]; x (T,B,C), w (P,C), P >= T. */
remat_value remat_positions(remat_graph *graph, remat_value x, remat_value w);
/* Rotary positions (Su et al. 2021), for q and k before remat_attention. Features i and i + D/2 of each head of
 * D = C/heads are rotated by t base^(-2i/D), as Hugging Face's Llama pairs them; base is usually 10000. x (T,B,C), D
 * even. */
remat_value remat_rotary(remat_graph *graph, remat_value x, int64_t heads, double base);

/* ---- Recurrent layers: (T,B,C) -> (T,B,H) ------------------------------------------------------- */

/* w_ih (4H,C), w_hh (4H,H), biases (4H); gates i, f, g, o. */
remat_value remat_lstm(remat_graph *graph, remat_value x, remat_value w_ih, remat_value w_hh,
                       REMAT_OPTIONAL remat_value b_ih, REMAT_OPTIONAL remat_value b_hh);
/* PyTorch's nn.LSTM(proj_size=P): h = w_hr (o tanh(c)), so y is (T,B,P). w_ih (4H,C), w_hh (4H,P), w_hr (P,H). */
remat_value remat_lstm_projected(remat_graph *graph, remat_value x, remat_value w_ih, remat_value w_hh,
                                 REMAT_OPTIONAL remat_value b_ih, REMAT_OPTIONAL remat_value b_hh, remat_value w_hr);
/* w_ih (3H,C), w_hh (3H,H), biases (3H); gates r, z, n. */
remat_value remat_gru(remat_graph *graph, remat_value x, remat_value w_ih, remat_value w_hh,
                      REMAT_OPTIONAL remat_value b_ih, REMAT_OPTIONAL remat_value b_hh);
/* w_ih (H,C), w_hh (H,H), biases (H). */
remat_value remat_rnn_tanh(remat_graph *graph, remat_value x, remat_value w_ih, remat_value w_hh,
                           REMAT_OPTIONAL remat_value b_ih, REMAT_OPTIONAL remat_value b_hh);
/* y[t] = a[t] y[t-1] + b[t], element-wise; a and b (T,B,..). Where reset (T,B) is above 0, y[t] = b[t]. */
remat_value remat_linear_scan(remat_graph *graph, remat_value a, remat_value b, REMAT_OPTIONAL remat_value reset);
/* minGRU and minLSTM (Feng et al. 2024), after a linear layer without bias. Its rows are those of minGRU-pytorch's
 * to_hidden_and_gate (2H,C): hidden, gate; or of to_hidden_and_f_i_gate (3H,C): hidden, f, i.
 * (T,B,2H) -> (T,B,H): h = (1 - z) h + z g(hidden), z = sigmoid(gate).
 * (T,B,3H) -> (T,B,H): h = (f h + i g(hidden)) / (f + i), f and i sigmoids.
 * g(x) is x + 1/2 for x >= 0 and sigmoid(x) below. */
remat_value remat_min_gru(remat_graph *graph, remat_value hidden_and_gate);
remat_value remat_min_lstm(remat_graph *graph, remat_value hidden_and_f_i_gate);
/* Depthwise convolution over time: y[t] reads x[t-k+1] to x[t], 2 <= k <= 16. PyTorch's Conv1d(C, C, k, groups=C) after
 * padding on the left. w (C,1,k), b (C). */
remat_value remat_causal_conv(remat_graph *graph, remat_value x, remat_value w, REMAT_OPTIONAL remat_value b);

/* Mamba's scan (Gu and Dao 2023): selective_scan_fn(delta_softplus=True) of mamba_ssm, with time first. u, dt, z
 * (T,B,E); A_log (E,N), N <= 256; B, C (T,B,N); D, dt_bias (E) -> (T,B,E). With delta = softplus(dt + dt_bias):
 *     h[e,n] = exp(-delta[e] exp(A_log[e,n])) h[e,n] + delta[e] B[n] u[e];  y[e] = (C.h[e] + D[e] u[e]) silu(z[e]).
 * Its carried state is h (B,E,N). CPU only. */
remat_value remat_selective_scan(remat_graph *graph, remat_value u, remat_value dt, remat_value a_log, remat_value b,
                                 remat_value c, REMAT_OPTIONAL remat_value d, REMAT_OPTIONAL remat_value z,
                                 REMAT_OPTIONAL remat_value dt_bias);

/* xLSTM's sLSTM (Beck et al. 2024), after linear layers: x (T,B,4H) = i, f, z, o side by side, r (heads,4d,d) with the
 * rows i, f, z, o of each head of d = H/heads units, bias (4H) -> (T,B,H). x, r and bias are ordered as in xlstm's
 * "vanilla" kernel. Its carried states are y, c, n, m (B,H) each; n is at least 1 after a timestep. CPU only. */
remat_value remat_slstm(remat_graph *graph, remat_value x, remat_value r, REMAT_OPTIONAL remat_value bias);

/* Gated DeltaNet (Yang et al. 2024), or Kimi Delta Attention: for each of H heads a matrix S (K,V), with q and k
 * normalised (x / sqrt(sum x^2 + 1e-6)), q divided by sqrt(K):
 *     S = decay S;  S = S + k (sigmoid(b) (v - S^T k))^T;  y = S^T q;  decay = exp(-exp(A_log) softplus(a + dt_bias)).
 * Heads lie side by side: q, k (T,B,key_heads K), v (T,B,HV), b (T,B,H); a (T,B,H), or (T,B,HK) for a decay of each key
 * (KDA); A_log (H); dt_bias (H), or (HK) -> (T,B,HV). key_heads divides H; H/key_heads neighbouring heads share q and k.
 * Its carried state is S (B,H,K,V). CPU only. */
remat_value remat_delta_scan(remat_graph *graph, remat_value q, remat_value k, remat_value v, remat_value a,
                             remat_value b, REMAT_OPTIONAL remat_value a_log, REMAT_OPTIONAL remat_value dt_bias,
                             int64_t key_heads);

/* Carried states as values. `y` is the result of a recurrent layer; the states of an LSTM are 0: h, 1: c, those of an
 * sLSTM 0: y, 1: c, 2: n, 3: m; other layers have h alone.
 * initial_state: state `state` starts with `initial` (B,H) instead of zeros; returns y. `initial` is made before the
 * layer, and gets a gradient if it depends on a parameter.
 * final_state: the state after the last timestep. It may be an output, also one that the program differentiates. An
 * encoder's final state starts a decoder like this:
 *     h = remat_lstm(g, source, ...); y = remat_lstm(g, target, ...);       // in this order
 *     for (int k = 0; k < 2; k++) remat_initial_state(g, y, k, remat_final_state(g, h, k)); */
remat_value remat_initial_state(remat_graph *graph, remat_value y, int state, remat_value initial);
remat_value remat_final_state(remat_graph *graph, remat_value y, int state);
/* Sequences that start in the middle of a row. Where `reset`, f32 (T,B), is above 0, all states of that row of the
 * layer that made y (recurrent or causal_conv) are zero before that timestep, initial states too; nothing passes there
 * in either direction. `reset` gets no gradient. Returns y. Rows of different lengths, padded at the end, need this in
 * layers over remat_reverse, where the padding comes first: 1 at the last timestep of each row, reversed as x is
 * (docs/stateful.md). */
remat_value remat_reset_states(remat_graph *graph, remat_value y, remat_value reset);

/* A recurrent layer of your own (examples/10_your_own_cell.c). `body` is a graph that describes one timestep. Its
 * inputs are f32 without a time axis, such as (B,C), each listed once in `inputs`, `weights` or `states`. At every time
 * step the body gets that step of each sequence, the weights, and its states: zeros at first, then next_states of the
 * timestep before. It may use linear, layer_norm, dropout, add, mul, scale, sigmoid, tanh, relu, gelu, concat and
 * slice, at most 64 layers. It has one output; remat_concat joins several. */
typedef struct {
    size_t struct_bytes; /* sizeof(remat_cell) */
    const char *name;    /* at most 40 bytes; carried states are called NAME.0.h, NAME.0.c, NAME.0.s2, NAME.0.s3 */
    const remat_graph *body;
    const remat_value *inputs; /* the body's input for each sequence; with the weights at most 12 */
    int n_inputs;
    const remat_value *weights;
    int n_weights;
    const remat_value *states, *next_states; /* inputs, and results of the same shapes; 1 to 4 */
    int n_states;
    remat_value output; /* a result whose first axis is B, such as (B,H) */
} remat_cell;
/* y (T,B,..): the cell's output at each timestep of n_inputs sequences (T,B,..), with n_weights parameters or static
 * values. The cell is copied. CPU only. Where each sequence is read by a layer that differentiates by it (linear, mul,
 * ..), lean plans keep y and the states before each tile, and nothing else. */
remat_value remat_scan(remat_graph *graph, const remat_cell *cell, const remat_value *sequences,
                       const remat_value *weights);

/* ---- Images and signals ------------------------------------------------------------------------- */

/* PyTorch's Conv2d and Conv1d: x (N,C,H,W), w (O,C/groups,h,w), b (O) -> (N,O,H',W'), where
 * H' = (H + 2 padding - dilation (h - 1) - 1) / stride + 1, rounded down; or (N,C,L), (O,C/groups,l) -> (N,O,L').
 * Pairs are over height and width; NULL means strides and dilations of 1, no padding. A sequence (T,B,C,H,W) or
 * (T,B,C,L) is convolved at each timestep separately. */
remat_value remat_conv2d(remat_graph *graph, remat_value x, remat_value w, REMAT_OPTIONAL remat_value b,
                         REMAT_OPTIONAL const int64_t stride[2], REMAT_OPTIONAL const int64_t padding[2],
                         REMAT_OPTIONAL const int64_t dilation[2], int64_t groups);
remat_value remat_conv1d(remat_graph *graph, remat_value x, remat_value w, REMAT_OPTIONAL remat_value b, int64_t stride,
                         int64_t padding, int64_t dilation, int64_t groups);
/* PyTorch's conv_transpose2d: x (N,C,H,W), w (C,O/groups,h,w), b (O) -> (N,O,H',W'), where
 * H' = (H - 1) stride - 2 padding + dilation (h - 1) + output_padding + 1. Pairs are over height and width; NULL means
 * strides and dilations of 1, no padding. output_padding is less than the stride or the dilation. A sequence
 * (T,B,C,H,W) is treated at each timestep separately. */
remat_value remat_conv_transpose2d(remat_graph *graph, remat_value x, remat_value w, REMAT_OPTIONAL remat_value b,
                                   REMAT_OPTIONAL const int64_t stride[2], REMAT_OPTIONAL const int64_t padding[2],
                                   REMAT_OPTIONAL const int64_t output_padding[2], int64_t groups,
                                   REMAT_OPTIONAL const int64_t dilation[2]);
/* PyTorch's MaxPool2d and AvgPool2d (which counts padding as zeros): x (..,H,W) -> (..,H',W'), H' as above. Pairs are
 * over height and width. NULL: the stride is the window; no padding. Padding is at most half a window. */
remat_value remat_max_pool2d(remat_graph *graph, remat_value x, const int64_t window[2],
                             REMAT_OPTIONAL const int64_t stride[2], REMAT_OPTIONAL const int64_t padding[2]);
remat_value remat_avg_pool2d(remat_graph *graph, remat_value x, const int64_t window[2],
                             REMAT_OPTIONAL const int64_t stride[2], REMAT_OPTIONAL const int64_t padding[2]);
/* The mean over the last `axes` axes, 1 or more. axes = 2: (N,C,H,W) -> (N,C), global average pooling. */
remat_value remat_mean(remat_graph *graph, remat_value x, int axes);
/* PyTorch's Upsample: x (..,H,W) becomes `scale` times as high and wide. BILINEAR_CORNERS is align_corners=True. */
typedef enum { REMAT_NEAREST, REMAT_BILINEAR, REMAT_BILINEAR_CORNERS } remat_upsample;
remat_value remat_upsample2d(remat_graph *graph, remat_value x, const int64_t scale[2], remat_upsample mode);
/* Zero padding over height and width: (..,H,W) -> (..,before[0]+H+after[0],before[1]+W+after[1]). */
remat_value remat_pad2d(remat_graph *graph, remat_value x, REMAT_OPTIONAL const int64_t before[2],
                        REMAT_OPTIONAL const int64_t after[2]);

/* ---- Normalisation, attention, dropout ---------------------------------------------------------- */

/* PyTorch's LayerNorm, RMSNorm and GroupNorm. gain and bias: (C). group_norm: the channels of x (N,C,..), or of a
 * sequence (T,B,C,..), in `groups` groups. */
remat_value remat_layer_norm(remat_graph *graph, remat_value x, remat_value gain, remat_value bias, double epsilon);
remat_value remat_rms_norm(remat_graph *graph, remat_value x, remat_value gain, double epsilon);
remat_value remat_group_norm(remat_graph *graph, remat_value x, int64_t groups, remat_value gain, remat_value bias,
                             double epsilon);
/* Batch normalisation (Ioffe, Szegedy 2015), PyTorch's BatchNorm: each channel of x (N,C,..), or of a sequence
 * (T,B,C,..), is normalised over all other axes to mean 0 and variance 1, then scaled and shifted. Training uses the
 * statistics of the batch, computed once a step, and updates the running ones:
 *     running = (1 - momentum) running + momentum batch     (with the unbiased variance).
 * Evaluation uses the running ones. gain, bias: (C), parameters. running_mean, running_var: (C), of remat_buffer, which
 * start at 0 and 1. sync: statistics over the batches of all ranks (SyncBatchNorm). A training session in which a
 * channel has a single value is INVALID: its variance is 0. */
remat_value remat_batch_norm(remat_graph *graph, remat_value x, REMAT_OPTIONAL remat_value gain,
                             REMAT_OPTIONAL remat_value bias, remat_value running_mean, remat_value running_var,
                             double momentum, double epsilon, bool sync);
/* Scaled dot-product attention with the heads side by side along C:
 *     y[t] = sum over s of v[s] softmax over s of q[t].k[s] / sqrt(C/heads); causal: over s <= t only.
 * q, k and v are sequences (T,B,C). k and v may have fewer heads of the same size, each shared by heads/theirs
 * neighbouring heads of q (PyTorch's enable_gqa). */
remat_value remat_attention(remat_graph *graph, remat_value q, remat_value k, remat_value v, int64_t heads,
                            bool causal);
/* Attention over another sequence of any length: q (T,B,C), k and v (S,B,C), such as a decoder over its encoder. Keys
 * where `padding`, i32 (S,B), is 1 are masked (PyTorch's key_padding_mask); where all are, y is 0. */
remat_value remat_cross_attention(remat_graph *graph, remat_value q, remat_value k, remat_value v, int64_t heads,
                                  REMAT_OPTIONAL remat_value padding);
/* Either, with dropout of the weights after softmax: scaled_dot_product_attention's dropout_p, GPT-2's attn_pdrop. Nothing is
 * dropped in evaluation. 0 <= probability < 1. */
remat_value remat_attention_dropout(remat_graph *graph, remat_value q, remat_value k, remat_value v, int64_t heads,
                                    bool causal, REMAT_OPTIONAL remat_value padding, double probability);
remat_value remat_softmax(remat_graph *graph, remat_value x); /* along the last axis */
remat_value remat_log_softmax(remat_graph *graph, remat_value x);
/* The identity in evaluation. Masks differ by the layer's place in the order of creation: create layers in statements
 * of their own, not inside one call's arguments, where every compiler should give the same masks. */
remat_value remat_dropout(remat_graph *graph, remat_value x, double probability);

/* ---- Element-wise ------------------------------------------------------------------------------- */

/* a + b, a - b, a b. Shapes broadcast by NumPy's rules: axes are aligned from the last; where one value has 1, or no axis,
 * its elements are repeated. A static value broadcasts over a sequence (T,B,..) along time: (C), (B,C) or (1,B,C). Two
 * sequences have the same T, B and number of axes. */
remat_value remat_add(remat_graph *graph, remat_value a, remat_value b);
remat_value remat_sub(remat_graph *graph, remat_value a, remat_value b);
remat_value remat_mul(remat_graph *graph, remat_value a, remat_value b);
remat_value remat_scale(remat_graph *graph, remat_value x, double factor); /* factor x */
/* PyTorch's functions of the same names. */
remat_value remat_sigmoid(remat_graph *graph, remat_value x);
remat_value remat_tanh(remat_graph *graph, remat_value x);
remat_value remat_relu(remat_graph *graph, remat_value x);
remat_value remat_gelu(remat_graph *graph, remat_value x);      /* exact, x Phi(x): PyTorch's default */
remat_value remat_gelu_tanh(remat_graph *graph, remat_value x); /* the tanh approximation: GPT-2's gelu_new */
remat_value remat_silu(remat_graph *graph, remat_value x);      /* x sigmoid(x) */
remat_value remat_exp(remat_graph *graph, remat_value x);
remat_value remat_softplus(remat_graph *graph, remat_value x); /* log(1 + e^x) */
/* min(max(x, low), high); a bound may be infinite. They differ in the gradient where x is a bound itself: PyTorch's
 * clamp passes it, hardtanh (usually from -1 to 1) does not. */
remat_value remat_clamp(remat_graph *graph, remat_value x, double low, double high);
remat_value remat_hardtanh(remat_graph *graph, remat_value x, double low, double high);

/* ---- Shapes ------------------------------------------------------------------------------------- */

remat_value remat_concat(remat_graph *graph, const remat_value *x,
                         int n); /* n = 2 to 4: (..,C1),(..,C2) -> (..,C1+C2) */
/* The same along any axis, PyTorch's cat(x, dim=axis); a negative one counts from the end. A sequence keeps its (T,B). */
remat_value remat_concat_axis(remat_graph *graph, const remat_value *x, int n, int axis);
remat_value remat_slice(remat_graph *graph, remat_value x, int64_t first, int64_t count); /* (..,C) -> (..,count) */
/* Swaps two axes: PyTorch's x.transpose(one, other). The (T,B) of a sequence stay where they are. */
remat_value remat_transpose(remat_graph *graph, remat_value x, int one, int other);
/* The same elements in another shape, without a copy. One dim may be -1: it is computed from the others. A sequence
 * keeps its (T,B); `dim` lists the axes after them. The result cannot be an output or the loss: use the tensor it
 * reshapes. */
remat_value remat_reshape(remat_graph *graph, remat_value x, int rank, const int64_t *dim);

/* ---- Time --------------------------------------------------------------------------------------- */

/* A static value (T,B,..) as a sequence of T timesteps, so that layers after it run tile by tile. With it the rows of
 * a batch go through a large head a few at a time: reshape (N,C) to (N,1,C); the targets are a sequence (N,1). x must
 * depend on static inputs and parameters only, not on a sequence (its last step, say). */
remat_value remat_as_sequence(remat_graph *graph, remat_value x);
/* Reversed in time: y[t] = x[T-1-t]. Layers after it run backwards in time. Sequences that meet in a layer or loss must
 * run the same way, so reverse one again. The last step of a reversed sequence is the first timestep. */
remat_value remat_reverse(remat_graph *graph, remat_value x);
remat_value remat_last_step(remat_graph *graph, remat_value x);      /* (T,B,C) -> (B,C): step T-1 */
remat_value remat_mean_over_time(remat_graph *graph, remat_value x); /* (T,B,C) -> (B,C) */
/* (T,B,C), index i32 (B) -> (B,C): step index[b] of row b. */
remat_value remat_step_at(remat_graph *graph, remat_value x, remat_value index);

/* ---- Losses: scalars ---------------------------------------------------------------------------- */

/* Cross entropy in nats, the mean over all rows: logits (..,V), targets i32 (..). */
remat_value remat_softmax_cross_entropy(remat_graph *graph, remat_value logits, remat_value targets);
/* With label smoothing (Szegedy et al. 2016), as in PyTorch: a target is (1 - smoothing) of its class and smoothing/V
 * of every class; 0 <= smoothing <= 1. In training only: remat_evaluate returns the plain loss, so that evaluations of
 * runs with and without smoothing can be compared. */
remat_value remat_softmax_cross_entropy_smoothed(remat_graph *graph, remat_value logits, remat_value targets,
                                                 double smoothing);
/* PyTorch's cross_entropy(weight=class_weights, ignore_index=ignored). Rows whose target is `ignored` (any number, -100
 * for instance) do not count. Other rows count by their class's weight, class_weights (V), or 1. The loss is the
 * weighted mean over all tiles, micro steps and ranks (remat_config.loss_mean). If no row counts, loss and gradients
 * are 0, where PyTorch returns NaN. With smoothing, each class's part of a target counts by that class's weight. */
remat_value remat_softmax_cross_entropy_weighted(remat_graph *graph, remat_value logits, remat_value targets,
                                                 REMAT_OPTIONAL remat_value class_weights, int64_t ignored,
                                                 double smoothing);
/* The mean over all elements; x and target of one shape. PyTorch's mse_loss and l1_loss. */
remat_value remat_mse(remat_graph *graph, remat_value x, remat_value target);
remat_value remat_mae(remat_graph *graph, remat_value x, remat_value target);
/* d^2/2 where |d| <= delta, else delta (|d| - delta/2); d = x - target, delta > 0. */
remat_value remat_huber(remat_graph *graph, remat_value x, remat_value target, double delta);
/* PyTorch's BCEWithLogitsLoss: binary cross entropy of each element's sigmoid; targets f32 in [0,1]. */
remat_value remat_bce_with_logits(remat_graph *graph, remat_value logits, remat_value targets);
/* The same without padding: rows where `padding` is 1 do not count and are not read; it is i32, of x's shape without
 * the last axis: (T,B) for (T,B,V). The mean is over the elements that count in all tiles, micro steps and ranks
 * (remat_config.loss_mean). If none counts, loss and gradients are 0. */
remat_value remat_mse_padded(remat_graph *graph, remat_value x, remat_value target, remat_value padding);
remat_value remat_mae_padded(remat_graph *graph, remat_value x, remat_value target, remat_value padding);
remat_value remat_huber_padded(remat_graph *graph, remat_value x, remat_value target, remat_value padding,
                               double delta);
remat_value remat_bce_with_logits_padded(remat_graph *graph, remat_value logits, remat_value targets,
                                         remat_value padding);
/* Connectionist temporal classification (Graves et al. 2006): PyTorch's CTCLoss on log_softmax(logits). logits (T,B,V)
 * is a sequence; targets i32 (B,S) has a row of labels per sample, none of them `blank`; lengths are i32 (B). A row has
 * target_lengths labels, and ends at its first -1. Each sample's loss is divided by its number of labels, if it has
 * any; the result is the mean over samples. Labels that need more timesteps than there are (one each, and one more
 * between two equal ones) give an infinite loss and NaN gradients, or 0 and 0 with zero_infinity. Logits exist for one
 * tile at a time; for a tile of tau timesteps backward keeps 4 (tau+1) B (2S+1) + 8 tau B bytes. */
remat_value remat_ctc(remat_graph *graph, remat_value logits, remat_value targets,
                      REMAT_OPTIONAL remat_value input_lengths, REMAT_OPTIONAL remat_value target_lengths,
                      int64_t blank, bool zero_infinity);

#ifdef __cplusplus
}
#endif
#endif
