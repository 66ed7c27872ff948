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
/* The same for each head by itself: x (..,heads C), w (heads,N,C), b (heads N) -> (..,heads N); a block-diagonal matrix.
 * xlstm's LinearHeadwiseExpand; for weights (heads,C,N), as in RG-LRU, transpose their last two axes. */
remat_value remat_headwise_linear(remat_graph *graph, remat_value x, remat_value w, REMAT_OPTIONAL remat_value b);
/* y = x w + b: w (C,N), b (N) -> (..,N). GPT-2's Conv1D. */
remat_value remat_matmul(remat_graph *graph, remat_value x, remat_value w, REMAT_OPTIONAL remat_value b);
/* PyTorch's bmm, with any leading axes: a (..,M,K), b (..,K,N) -> (..,M,N), or with transpose_b b (..,N,K). Both are values;
 * of two sequences (T,B,..,M,K) it multiplies those of one timestep. */
remat_value remat_batched_matmul(remat_graph *graph, remat_value a, remat_value b, bool transpose_b);
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
/* w_ih (H,C), w_hh (H,H), biases (H). PyTorch's nn.RNN; remat_rnn_relu: its nonlinearity="relu", whose gradient at 0 is 0. */
remat_value remat_rnn_tanh(remat_graph *graph, remat_value x, remat_value w_ih, remat_value w_hh,
                           REMAT_OPTIONAL remat_value b_ih, REMAT_OPTIONAL remat_value b_hh);
remat_value remat_rnn_relu(remat_graph *graph, remat_value x, remat_value w_ih, remat_value w_hh,
                           REMAT_OPTIONAL remat_value b_ih, REMAT_OPTIONAL remat_value b_hh);
/* y[t] = a[t] y[t-1] + b[t], element-wise; a and b (T,B,..). Where reset (T,B) is above 0, y[t] = b[t]. */
remat_value remat_linear_scan(remat_graph *graph, remat_value a, remat_value b, REMAT_OPTIONAL remat_value reset);
/* minGRU and minLSTM (Feng et al. 2024), to be applied after a linear layer without bias. The rows of that layer's
 * weight are ordered as in minGRU-pytorch: to_hidden_and_gate (2H,C): hidden, gate; to_hidden_and_f_i_gate (3H,C):
 * hidden, f, i.
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
 * Its carried state is h (B,E,N). */
remat_value remat_selective_scan(remat_graph *graph, remat_value u, remat_value dt, remat_value a_log, remat_value b,
                                 remat_value c, REMAT_OPTIONAL remat_value d, REMAT_OPTIONAL remat_value z,
                                 REMAT_OPTIONAL remat_value dt_bias);

/* Mamba-2's SSD (Dao and Gu 2024): mamba_chunk_scan_combined(dt_softplus=True) of mamba_ssm, with time first. For each of H
 * heads a matrix S (N,P), with delta = softplus(dt + dt_bias):
 *     S = exp(-delta exp(A_log)) S + B (delta x)^T;  y = S^T C + D x.
 * Heads lie side by side: x (T,B,HP), dt (T,B,H), A_log, D, dt_bias (H), B, C (T,B,groups N) -> (T,B,HP). groups divides
 * H: H/groups neighbouring heads share B and C. Its carried state is S (B,H,N,P). */
remat_value remat_ssd(remat_graph *graph, remat_value x, remat_value dt, remat_value a_log, remat_value b,
                      remat_value c, REMAT_OPTIONAL remat_value d, REMAT_OPTIONAL remat_value dt_bias, int64_t groups);

/* xLSTM's mLSTM (Beck et al. 2024): for each of H heads a matrix C (K,V), a vector n (K) and a number m:
 *     m' = max(log sigmoid(f) + m, i);  decay = exp(log sigmoid(f) + m - m');  take = exp(i - m');
 *     C = decay C + take k v^T;  n = decay n + take k;  y = C^T q / (max(|n.q|, exp(-m') sqrt(K)) + 1e-6 sqrt(K)).
 * Heads lie side by side: q, k (T,B,HK), v (T,B,HV), i, f (T,B,H) -> (T,B,HV). Its carried states are C (B,H,K,V), n
 * (B,H,K), m (B,H). */
remat_value remat_mlstm(remat_graph *graph, remat_value q, remat_value k, remat_value v, remat_value i, remat_value f);

/* RWKV-7's recurrence (Peng et al. 2025): for each head a matrix S (K,V), the transpose of RWKV's:
 *     u = kappa / max(|kappa|, 1e-12);  decay = exp(-exp(-1/2) sigmoid(w));
 *     S = decay S - (u sigmoid(a)) (S^T u)^T + k v^T;  y = S^T r.
 * Heads lie side by side: r, w, k, kappa, a (T,B,heads K), v (T,B,heads V) -> (T,B,heads V). Its carried state is S
 * (B,heads,K,V). */
remat_value remat_rwkv7(remat_graph *graph, remat_value r, remat_value w, remat_value k, remat_value v,
                        remat_value kappa, remat_value a, int64_t heads);

/* RG-LRU (De et al. 2024), Griffin's recurrence: transformers' RecurrentGemmaRglru after the gates' block-diagonal linear
 * layers (remat_headwise_linear). x, input_gate, recurrent_gate (T,B,C), a_param (C) -> (T,B,C):
 *     a = exp(-8 sigmoid(recurrent_gate) softplus(a_param));  h = a h + sqrt(1 - a^2) sigmoid(input_gate) x,
 * and h = sigmoid(input_gate) x at a row's first timestep and where reset (T,B) is above 0. The derivative of the root
 * is limited to 1000. The layer is composed of others: one linear scan computes h, and another tracks whether a row has
 * begun. remat_reset_states does not work on its result: pass `reset` instead. */
remat_value remat_rg_lru(remat_graph *graph, remat_value x, remat_value input_gate, remat_value recurrent_gate,
                         remat_value a_param, REMAT_OPTIONAL remat_value reset);

/* M2RNN (2026): for each of H heads a state S (K,V) and a square matrix w. Heads lie side by side:
 *     Z = tanh(S w + k v^T);  S = f S + (1 - f) Z;  y = S^T q.
 * q, k (T,B,HK), v (T,B,HV), f (T,B,H), usually a sigmoid, w (H,V,V) -> (T,B,HV). Its carried state is S
 * (B,H,K,V). */
remat_value remat_m2rnn(remat_graph *graph, remat_value q, remat_value k, remat_value v, remat_value f, remat_value w);

/* NDM (E88, 2026): for each of H heads a state S (K,V), a delta rule inside a tanh. Heads lie side by side:
 *     S = tanh(exp(g) S + k (v - S^T k)^T);  y = S^T q.
 * q, k (T,B,HK), v (T,B,HV), g (T,B,H) -> (T,B,HV). NDM divides q and k of each head by their norms before, and g is
 * -exp(A_log) softplus(a + dt_bias). Its carried state is S (B,H,K,V). */
remat_value remat_ndm(remat_graph *graph, remat_value q, remat_value k, remat_value v, remat_value g);

/* xLSTM's sLSTM (Beck et al. 2024), after linear layers: x (T,B,4H) = i, f, z, o side by side, r (heads,4d,d) with the
 * rows i, f, z, o of each head of d = H/heads units, bias (4H) -> (T,B,H). x, r and bias are ordered as in xlstm's
 * "vanilla" kernel. Its carried states are y, c, n, m (B,H) each; n is at least 1 after a timestep. */
remat_value remat_slstm(remat_graph *graph, remat_value x, remat_value r, REMAT_OPTIONAL remat_value bias);

/* Gated DeltaNet (Yang et al. 2024), or Kimi Delta Attention: for each of H heads a matrix S (K,V), with q and k
 * normalised (x / sqrt(sum x^2 + 1e-6)), q divided by sqrt(K):
 *     S = decay S;  S = S + k (sigmoid(b) (v - S^T k))^T;  y = S^T q;  decay = exp(-exp(A_log) softplus(a + dt_bias)).
 * Heads lie side by side: q, k (T,B,key_heads K), v (T,B,HV), b (T,B,H); A_log (H); a (T,B,H) and dt_bias (H), or for
 * KDA, whose decay differs by key feature, (T,B,HK) and (HK) -> (T,B,HV). key_heads divides H; H/key_heads neighbouring
 * heads share q and k. allow_neg_eigval takes 2 sigmoid(b) instead, so that S can change its sign along k (Grazzi et al.
 * 2024).
 * Its carried state is S (B,H,K,V). */
remat_value remat_delta_scan(remat_graph *graph, remat_value q, remat_value k, remat_value v, remat_value a,
                             remat_value b, REMAT_OPTIONAL remat_value a_log, REMAT_OPTIONAL remat_value dt_bias,
                             int64_t key_heads, bool allow_neg_eigval);

/* Carried states as values. `y` is the result of a recurrent layer. The states of an LSTM are 0: h, 1: c; those of an
 * sLSTM are 0: y, 1: c, 2: n, 3: m; those of local attention are 0: k, 1: v, 2: their number; other layers have one state, h.
 * initial_state: state number `state` starts with `initial` (B,H) instead of zeros; returns y. Create `initial` before
 * the layer. It gets a gradient if it depends on a parameter.
 * final_state: the state after the last timestep. It may be an output, also a differentiated one. An encoder's final
 * state starts a decoder like this:
 *     h = remat_lstm(g, source, ...); y = remat_lstm(g, target, ...);       // in this order
 *     for (int k = 0; k < 2; k++) remat_initial_state(g, y, k, remat_final_state(g, h, k)); */
remat_value remat_initial_state(remat_graph *graph, remat_value y, int state, remat_value initial);
remat_value remat_final_state(remat_graph *graph, remat_value y, int state);
/* Starts new sequences in the middle of a row. y is the result of a recurrent layer or of causal_conv. Where `reset`,
 * f32 (T,B), is above 0, the layer sets all states of that row to zero before that timestep, initial states too; no
 * gradient flows back past it. `reset` itself gets no gradient. Returns y. A layer after remat_reverse sees the padding
 * of a short row first and needs a reset there: set it to 1 at the row's last timestep and reverse it as x is reversed
 * (docs/stateful.md). */
remat_value remat_reset_states(remat_graph *graph, remat_value y, remat_value reset);

/* A recurrent layer of your own (examples/10_your_own_cell.c). `body` is a graph that describes one timestep. Its
 * inputs are f32 without a time axis, such as (B,C), each listed once in `inputs`, `weights` or `states`. At every
 * timestep the body gets that timestep of each sequence, the weights, and its states: zeros at the first timestep, then
 * the next_states of the previous one. It may use up to 64 layers: linear, layer_norm, dropout, add, mul, scale,
 * sigmoid, tanh, relu, gelu, concat and slice. It has one output; to return several values, join them by remat_concat.
 */
typedef struct {
    size_t struct_bytes; /* sizeof(remat_cell) */
    const char *name;    /* at most 40 bytes; carried states are called NAME.0.h, NAME.0.c, NAME.0.s2, NAME.0.s3 */
    const remat_graph *body;
    const remat_value *inputs; /* the body's input for each sequence; n_inputs + n_weights is at most 12 */
    int n_inputs;
    const remat_value *weights;
    int n_weights;
    const remat_value *states, *next_states; /* 1 to 4 inputs, and the results of the same shapes that replace them */
    int n_states;
    remat_value output; /* a result whose first axis is B, such as (B,H) */
} remat_cell;
/* y (T,B,..): the cell's output at each timestep. `sequences` has n_inputs values (T,B,..), `weights` n_weights
 * parameters or static values. The cell is copied. CPU only. Lean plans keep only y and the states before each tile if
 * in the body each sequence is an input of a layer whose backward reads it (linear or mul, for example). */
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
 * (T,B,C,H,W) is convolved at each timestep separately. */
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
/* The mean, or the sum, over the last `axes` axes, 1 or more. axes = 2: (N,C,H,W) -> (N,C), global average pooling. */
remat_value remat_mean(remat_graph *graph, remat_value x, int axes);
remat_value remat_sum(remat_graph *graph, remat_value x, int axes);
/* PyTorch's Upsample: x (..,H,W) becomes `scale` times as high and wide. BILINEAR_CORNERS is align_corners=True. */
typedef enum { REMAT_NEAREST, REMAT_BILINEAR, REMAT_BILINEAR_CORNERS } remat_upsample;
remat_value remat_upsample2d(remat_graph *graph, remat_value x, const int64_t scale[2], remat_upsample mode);
/* Zero padding over height and width: (..,H,W) -> (..,before[0]+H+after[0],before[1]+W+after[1]). */
remat_value remat_pad2d(remat_graph *graph, remat_value x, REMAT_OPTIONAL const int64_t before[2],
                        REMAT_OPTIONAL const int64_t after[2]);

/* ---- Normalisation, attention, dropout ---------------------------------------------------------- */

/* PyTorch's LayerNorm, RMSNorm and GroupNorm. gain and bias: (C). Without a bias, layer_norm is LayerNorm(bias=False).
 * group_norm normalises the channels of x (N,C,..), or of a sequence (T,B,C,..), in `groups` groups. */
remat_value remat_layer_norm(remat_graph *graph, remat_value x, remat_value gain, REMAT_OPTIONAL remat_value bias,
                             double epsilon);
remat_value remat_rms_norm(remat_graph *graph, remat_value x, remat_value gain, double epsilon);
remat_value remat_group_norm(remat_graph *graph, remat_value x, int64_t groups, remat_value gain, remat_value bias,
                             double epsilon);
/* Batch normalisation (Ioffe, Szegedy 2015), PyTorch's BatchNorm: each channel of x (N,C,..), or of a sequence
 * (T,B,C,..), is normalised over all other axes to mean 0 and variance 1, then scaled and shifted. Training uses the
 * statistics of the batch, computed once a step, and updates the running statistics:
 *     running = (1 - momentum) running + momentum batch     (with the unbiased variance).
 * Evaluation uses the running statistics. gain, bias: parameters (C). running_mean, running_var: buffers (C)
 * (remat_buffer) that start at 0 and 1. sync: compute the statistics over the batches of all ranks (SyncBatchNorm). A
 * training session in which a channel has a single value is INVALID, because its variance is 0. */
remat_value remat_batch_norm(remat_graph *graph, remat_value x, REMAT_OPTIONAL remat_value gain,
                             REMAT_OPTIONAL remat_value bias, remat_value running_mean, remat_value running_var,
                             double momentum, double epsilon, bool sync);
/* Scaled dot-product attention with the heads side by side along C:
 *     y[t] = sum over s of v[s] softmax over s of q[t].k[s] / sqrt(C/heads); causal: over s <= t only.
 * q, k and v are sequences (T,B,C). k and v may have fewer heads n of the same size; heads/n neighbouring heads of q
 * then share one of them (PyTorch's enable_gqa). */
remat_value remat_attention(remat_graph *graph, remat_value q, remat_value k, remat_value v, int64_t heads,
                            bool causal);
/* Causal attention to the last `window` timesteps, t itself included (transformers' sliding_window); 0: to all. The
 * compute and scratch of a timestep depend on the window, not on the length of the sequence. */
remat_value remat_window_attention(remat_graph *graph, remat_value q, remat_value k, remat_value v, int64_t heads,
                                   int64_t window);
/* remat_window_attention with rotary positions, as a recurrent layer: tiles carry the keys and values of the last window - 1
 * timesteps, so that memory depends on the window and the plan instead of T, and a session of single timesteps with
 * config.stateful continues a sequence (RecurrentGemma's attention). window >= 2. The first `rotary` features of each
 * head of q and k, an even number, are rotated as by remat_rotary; 0: none. Its carried states are k and v
 * (B,window-1,C of k), with k before the rotation, and the number of timesteps that they hold (B). */
remat_value remat_local_attention(remat_graph *graph, remat_value q, remat_value k, remat_value v, int64_t heads,
                                  int64_t window, int64_t rotary, double base);
/* Attention over another sequence of any length: q (T,B,C), k and v (S,B,C), such as a decoder over its encoder. Keys
 * where `padding`, i32 (S,B), is 1 are masked (PyTorch's key_padding_mask); if all keys of a row are masked, y is 0. */
remat_value remat_cross_attention(remat_graph *graph, remat_value q, remat_value k, remat_value v, int64_t heads,
                                  REMAT_OPTIONAL remat_value padding);
/* Attention or cross attention with dropout of the weights after softmax: dropout_p of scaled_dot_product_attention,
 * GPT-2's attn_pdrop. Evaluation drops nothing. 0 <= probability < 1. */
remat_value remat_attention_dropout(remat_graph *graph, remat_value q, remat_value k, remat_value v, int64_t heads,
                                    bool causal, REMAT_OPTIONAL remat_value padding, double probability);
/* The same with a bias (heads,P,R) that is added to the scores before softmax: bias[h,t,s] to those of q[t] and k[s]. P >= T,
 * R >= S. It is a parameter or a static value, the same for all rows of the batch, such as the relative positions of T5 or of
 * Swin's windows. Its gradient is the sum over the rows. probability: of attention_dropout; 0: none. */
remat_value remat_biased_attention(remat_graph *graph, remat_value q, remat_value k, remat_value v, int64_t heads,
                                   bool causal, REMAT_OPTIONAL remat_value padding, remat_value bias,
                                   double probability);
remat_value remat_softmax(remat_graph *graph, remat_value x); /* along the last axis */
remat_value remat_log_softmax(remat_graph *graph, remat_value x); /* the logarithm of softmax */
/* Dropout; the identity in evaluation. A layer's masks depend on its number in the order of creation. Create layers in
 * separate statements: C does not define the order of nested calls among arguments, so compilers could differ. */
remat_value remat_dropout(remat_graph *graph, remat_value x, double probability);

/* ---- Element-wise ------------------------------------------------------------------------------- */

/* a + b, a - b, a b, a / b. Shapes broadcast by NumPy's rules: axes are aligned from the last, and a value repeats along an
 * axis where it has length 1 or no axis. A static value (C), (B,C) or (1,B,C) broadcasts over a sequence (T,B,..)
 * along time. Two sequences must have the same T, B and number of axes. */
remat_value remat_add(remat_graph *graph, remat_value a, remat_value b);
remat_value remat_sub(remat_graph *graph, remat_value a, remat_value b);
remat_value remat_mul(remat_graph *graph, remat_value a, remat_value b);
remat_value remat_div(remat_graph *graph, remat_value a, remat_value b);
/* x where mask > 0, elsewhere 0, also where x or its gradient is infinite or NaN. The mask, f32, has no gradient. Shapes
 * broadcast as those of remat_mul. */
remat_value remat_masked(remat_graph *graph, remat_value x, remat_value mask);
remat_value remat_scale(remat_graph *graph, remat_value x, double factor); /* factor x */
remat_value remat_shift(remat_graph *graph, remat_value x, double amount); /* x + amount */
/* PyTorch's functions of the same names. */
remat_value remat_sigmoid(remat_graph *graph, remat_value x);
remat_value remat_tanh(remat_graph *graph, remat_value x);
remat_value remat_relu(remat_graph *graph, remat_value x);
remat_value remat_gelu(remat_graph *graph, remat_value x);      /* exact, x Phi(x): PyTorch's default */
remat_value remat_gelu_tanh(remat_graph *graph, remat_value x); /* the tanh approximation: GPT-2's gelu_new */
remat_value remat_silu(remat_graph *graph, remat_value x);      /* x sigmoid(x) */
remat_value remat_exp(remat_graph *graph, remat_value x);       /* e^x */
remat_value remat_softplus(remat_graph *graph, remat_value x); /* log(1 + e^x) */
remat_value remat_log(remat_graph *graph, remat_value x);      /* log(x): -infinity at 0, NaN below */
remat_value remat_sqrt(remat_graph *graph, remat_value x);     /* sqrt(x): NaN below 0; the gradient at 0 is infinite */
/* sqrt(x) of a sum of squares x, a norm or a standard deviation: the gradient at 0 is 0, as in PyTorch's norm and std. */
remat_value remat_norm_root(remat_graph *graph, remat_value x);
remat_value remat_rsqrt(remat_graph *graph, remat_value x);      /* 1 / sqrt(x) */
remat_value remat_reciprocal(remat_graph *graph, remat_value x); /* 1 / x */
/* sin and cos are accurate below 2^30, where neighbouring floats are 64 apart; above it they are 0. */
remat_value remat_sin(remat_graph *graph, remat_value x);
remat_value remat_cos(remat_graph *graph, remat_value x);
remat_value remat_erf(remat_graph *graph, remat_value x);
remat_value remat_log1p(remat_graph *graph, remat_value x); /* log(1 + x) */
remat_value remat_expm1(remat_graph *graph, remat_value x); /* e^x - 1 */
/* y = x, which back-propagation takes for a constant: PyTorch's x.detach(). */
remat_value remat_stop_gradient(remat_graph *graph, remat_value x);
/* min(max(x, low), high); a bound may be infinite. The two differ in the gradient where x equals a bound: clamp passes
 * it on and hardtanh (usually from -1 to 1) does not, as in PyTorch. */
remat_value remat_clamp(remat_graph *graph, remat_value x, double low, double high);
remat_value remat_hardtanh(remat_graph *graph, remat_value x, double low, double high);

/* ---- Shapes ------------------------------------------------------------------------------------- */

remat_value remat_concat(remat_graph *graph, const remat_value *x,
                         int n); /* n = 2 to 4: (..,C1),(..,C2) -> (..,C1+C2) */
/* The same along any axis, PyTorch's cat(x, dim=axis); a negative one counts from the end. A sequence keeps its (T,B).
 */
remat_value remat_concat_axis(remat_graph *graph, const remat_value *x, int n, int axis);
remat_value remat_slice(remat_graph *graph, remat_value x, int64_t first, int64_t count); /* (..,C) -> (..,count) */
/* One column of each row: x (..,C), index i32 (..) -> (..), x[.., index]: PyTorch's gather of a single column. Rows whose
 * index is -1 give 0 and get no gradient. */
remat_value remat_pick(remat_graph *graph, remat_value x, remat_value index);
/* Swaps two axes: PyTorch's x.transpose(one, other). The (T,B) of a sequence stay where they are. */
remat_value remat_transpose(remat_graph *graph, remat_value x, int one, int other);
/* The same elements in another shape, without a copy. One dim may be -1: it is computed from the others. `dim`
 * lists all axes; those of a sequence start with its (T,B). The result cannot be an output or the loss: use x instead. */
remat_value remat_reshape(remat_graph *graph, remat_value x, int rank, const int64_t *dim);

/* ---- Time --------------------------------------------------------------------------------------- */

/* Makes a static value (T,B,..) a sequence of T timesteps, so that layers after it run tile by tile. For example, a
 * large head can process a batch a few rows at a time: reshape (N,C) to (N,1,C) and make the targets a sequence (N,1).
 * x may depend on static inputs and parameters only; a sequence's last step is not allowed, for example. */
remat_value remat_as_sequence(remat_graph *graph, remat_value x);
/* Reverses time: y[t] = x[T-1-t]. Layers after it run backwards in time. All sequences that a layer or loss reads must
 * run in the same direction: reverse the result again before you combine it with others. remat_last_step of a reversed
 * sequence is the first timestep. */
remat_value remat_reverse(remat_graph *graph, remat_value x);
remat_value remat_last_step(remat_graph *graph, remat_value x);      /* (T,B,C) -> (B,C): timestep T-1 */
remat_value remat_mean_over_time(remat_graph *graph, remat_value x); /* (T,B,C) -> (B,C) */
remat_value remat_sum_over_time(remat_graph *graph, remat_value x);  /* (T,B,C) -> (B,C) */
remat_value remat_max_over_time(remat_graph *graph, remat_value x);  /* (T,B,C) -> (B,C): remat_running_max's last step */
/* y[t] = the maximum of x[0] to x[t], element by element: PyTorch's cummax. remat_step_at of it is the maximum of a row's
 * first timesteps. Of several equal elements the first gets the gradient, as in PyTorch's max over an axis; NaN counts as the
 * largest. Each call starts anew (remat_config.stateful), so remat_initial_state is not for it. */
remat_value remat_running_max(remat_graph *graph, remat_value x);
/* (T,B,C), index i32 (B) -> (B,C): timestep index[b] of row b. */
remat_value remat_step_at(remat_graph *graph, remat_value x, remat_value index);

/* ---- Losses: scalars ---------------------------------------------------------------------------- */

/* Cross entropy in nats, the mean over all rows: logits (..,V), targets i32 (..). */
remat_value remat_softmax_cross_entropy(remat_graph *graph, remat_value logits, remat_value targets);
/* With label smoothing (Szegedy et al. 2016), as in PyTorch: a target's own class has probability 1 - smoothing, and
 * each class gets smoothing/V in addition; 0 <= smoothing <= 1. Only training smooths: remat_evaluate returns the plain
 * loss, so that evaluations of runs with and without smoothing can be compared. */
remat_value remat_softmax_cross_entropy_smoothed(remat_graph *graph, remat_value logits, remat_value targets,
                                                 double smoothing);
/* PyTorch's cross_entropy(weight=class_weights, ignore_index=ignored). Rows whose target is `ignored` (any number, -100
 * for instance) do not count. Other rows have the weight of their class, class_weights (V), or 1. The loss is the
 * weighted mean over all tiles, micro steps and ranks (remat_config.loss_mean). If no row counts, loss and gradients
 * are 0 (PyTorch returns NaN). With smoothing, each class's part of a target has the weight of that class. */
remat_value remat_softmax_cross_entropy_weighted(remat_graph *graph, remat_value logits, remat_value targets,
                                                 REMAT_OPTIONAL remat_value class_weights, int64_t ignored,
                                                 double smoothing);
/* The Dice loss of segmentations: logits (..,pixels,V), targets i32 (..,pixels). Each class of an image has the
 * coefficient (2 sum p q + e) / (sum p + sum q + e), with p the softmax of the logits, q 1 for the target's class, and
 * e = 1e-6; the loss is the mean of 1 - coefficient over classes and images. With `joint`, an image has one coefficient
 * for all classes, as in milesial's Pytorch-UNet. Pixels whose target is `ignored` do not count. The usual loss is its
 * sum with the cross entropy: remat_add. */
remat_value remat_dice(remat_graph *graph, remat_value logits, remat_value targets, int64_t ignored, bool joint);
/* The mean over all elements: PyTorch's mse_loss and l1_loss. x and target have the same shape. */
remat_value remat_mse(remat_graph *graph, remat_value x, remat_value target);
remat_value remat_mae(remat_graph *graph, remat_value x, remat_value target);
/* d^2/2 where |d| <= delta, else delta (|d| - delta/2); d = x - target, delta > 0. */
remat_value remat_huber(remat_graph *graph, remat_value x, remat_value target, double delta);
/* PyTorch's BCEWithLogitsLoss: binary cross entropy of each element's sigmoid; targets f32 in [0,1]. */
remat_value remat_bce_with_logits(remat_graph *graph, remat_value logits, remat_value targets);
/* The same losses for padded batches. `padding` is i32 and has the shape of x without the last axis: (T,B) for (T,B,V).
 * Rows where it is 1 do not count and are not read. The mean is over all other elements of all tiles, micro steps and
 * ranks (remat_config.loss_mean). If all rows are padding, loss and gradients are 0. */
remat_value remat_mse_padded(remat_graph *graph, remat_value x, remat_value target, remat_value padding);
remat_value remat_mae_padded(remat_graph *graph, remat_value x, remat_value target, remat_value padding);
remat_value remat_huber_padded(remat_graph *graph, remat_value x, remat_value target, remat_value padding,
                               double delta);
remat_value remat_bce_with_logits_padded(remat_graph *graph, remat_value logits, remat_value targets,
                                         remat_value padding);
/* Connectionist temporal classification (Graves et al. 2006): PyTorch's CTCLoss on log_softmax(logits). logits (T,B,V)
 * is a sequence; targets i32 (B,S) has a row of labels per sample, none of them `blank`; lengths are i32 (B). Row b has
 * target_lengths[b] labels, or fewer if it contains -1, which ends it. Each sample's loss is divided by its number of
 * labels (or 1, if it has none); the result is the mean over samples. Each label needs a timestep, and two equal
 * neighbours need one more between them. If a sequence is too short for its labels, the loss is infinite and gradients
 * are NaN, or both are 0 with zero_infinity. Logits exist for one tile at a time; for a tile of tau timesteps backward
 * keeps 4 (tau+1) B (2S+1) + 8 tau B bytes. */
remat_value remat_ctc(remat_graph *graph, remat_value logits, remat_value targets,
                      REMAT_OPTIONAL remat_value input_lengths, REMAT_OPTIONAL remat_value target_lengths,
                      int64_t blank, bool zero_infinity);

#ifdef __cplusplus
}
#endif
#endif
