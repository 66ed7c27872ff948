/* layers.c: the builders of remat.h for layers that are a single op: its name, its attributes and the order of its
 * inputs. */
#include "engine/graph/graph.h"

static remat_value build(remat_graph *graph, const char *op, const int32_t *x, const void *attr) {
    return (remat_value){rm_graph_add(graph, rm_op_find(op), x, attr)};
}
#define BUILD(op, ...) build(graph, op, (int32_t[REMAT_MAX_INPUTS]){__VA_ARGS__}, NULL)
#define BUILD_WITH(attr, op, ...) build(graph, op, (int32_t[REMAT_MAX_INPUTS]){__VA_ARGS__}, &(attr))

/* The op's third and fourth input are optional, but every value in the caller's list must exist. */
static remat_status check_concat(const remat_value *x, int n) {
    REQUIRE(x && n >= 2 && n <= 4, INVALID, "concat: %d values were given; give 2 to 4", x ? n : 0);
    for (int i = 0; i < n; i++) REQUIRE(x[i].id, INVALID, "concat: input %d is missing", i);
    return REMAT_OK;
}

/* NULL: it is not a value of this graph. */
static const rm_value *value_of(const remat_graph *graph, remat_value x) {
    return graph && x.id > 0 && x.id < graph->n_values ? &graph->value[x.id] : NULL;
}
static bool is_sequence(const remat_graph *graph, remat_value x) {
    const rm_value *value = value_of(graph, x);
    return value && value->sequence;
}

remat_value remat_embedding(remat_graph *graph, remat_value tokens, remat_value weight) {
    return BUILD("embedding", tokens.id, weight.id);
}
remat_value remat_linear(remat_graph *graph, remat_value x, remat_value w, remat_value b) {
    return BUILD("linear", x.id, w.id, b.id);
}
remat_value remat_headwise_linear(remat_graph *graph, remat_value x, remat_value w, remat_value b) {
    return BUILD("headwise_linear", x.id, w.id, b.id);
}
remat_value remat_lstm(remat_graph *graph, remat_value x, remat_value w_ih, remat_value w_hh, remat_value b_ih,
                       remat_value b_hh) {
    return BUILD("lstm", x.id, w_ih.id, w_hh.id, b_ih.id, b_hh.id);
}
remat_value remat_gru(remat_graph *graph, remat_value x, remat_value w_ih, remat_value w_hh, remat_value b_ih,
                      remat_value b_hh) {
    return BUILD("gru", x.id, w_ih.id, w_hh.id, b_ih.id, b_hh.id);
}
remat_value remat_rnn_tanh(remat_graph *graph, remat_value x, remat_value w_ih, remat_value w_hh, remat_value b_ih,
                           remat_value b_hh) {
    return BUILD("rnn_tanh", x.id, w_ih.id, w_hh.id, b_ih.id, b_hh.id);
}
remat_value remat_rnn_relu(remat_graph *graph, remat_value x, remat_value w_ih, remat_value w_hh, remat_value b_ih,
                           remat_value b_hh) {
    return BUILD("rnn_relu", x.id, w_ih.id, w_hh.id, b_ih.id, b_hh.id);
}
remat_value remat_linear_scan(remat_graph *graph, remat_value a, remat_value b, remat_value reset) {
    return BUILD("linear_scan", a.id, b.id, reset.id);
}
/* `begun` is 1 at a row's first timestep and at least 3/2 after it, so that `first` is 1 there and 0 after it. */
remat_value remat_rg_lru(remat_graph *graph, remat_value x, remat_value input_gate, remat_value recurrent_gate,
                         remat_value a_param, remat_value reset) {
    remat_value rate = remat_scale(graph, remat_softplus(graph, a_param), -8);
    remat_value log_a = remat_mul(graph, remat_sigmoid(graph, recurrent_gate), rate);
    remat_value rest = remat_shift(graph, remat_scale(graph, remat_exp(graph, remat_scale(graph, log_a, 2)), -1), 1);
    remat_value root = BUILD("sqrt_bounded", rest.id);
    remat_value one = remat_shift(graph, remat_scale(graph, remat_slice(graph, log_a, 0, 1), 0), 1);
    remat_value begun = remat_linear_scan(graph, remat_scale(graph, one, 0.5), one, reset);
    remat_value first = remat_relu(graph, remat_shift(graph, remat_scale(graph, begun, -2), 3));
    remat_value others = remat_shift(graph, remat_scale(graph, first, -1), 1);
    remat_value share = remat_add(graph, remat_mul(graph, root, others), first);
    remat_value taken = remat_mul(graph, share, remat_mul(graph, x, remat_sigmoid(graph, input_gate)));
    return remat_linear_scan(graph, remat_exp(graph, log_a), taken, reset);
}
remat_value remat_m2rnn(remat_graph *graph, remat_value q, remat_value k, remat_value v, remat_value f, remat_value w) {
    return BUILD("m2rnn", q.id, k.id, v.id, f.id, w.id);
}
remat_value remat_ndm(remat_graph *graph, remat_value q, remat_value k, remat_value v, remat_value g) {
    return BUILD("ndm", q.id, k.id, v.id, g.id);
}
remat_value remat_min_gru(remat_graph *graph, remat_value x) { return BUILD("min_gru", x.id); }
remat_value remat_min_lstm(remat_graph *graph, remat_value x) { return BUILD("min_lstm", x.id); }
remat_value remat_causal_conv(remat_graph *graph, remat_value x, remat_value w, remat_value b) {
    return BUILD("causal_conv", x.id, w.id, b.id);
}
remat_value remat_selective_scan(remat_graph *graph, remat_value u, remat_value dt, remat_value a_log, remat_value b,
                                 remat_value c, remat_value d, remat_value z, remat_value dt_bias) {
    return BUILD("selective_scan", u.id, dt.id, a_log.id, b.id, c.id, d.id, z.id, dt_bias.id);
}
remat_value remat_ssd(remat_graph *graph, remat_value x, remat_value dt, remat_value a_log, remat_value b,
                      remat_value c, remat_value d, remat_value dt_bias, int64_t groups) {
    rm_ssd_attr attr = {groups};
    return BUILD_WITH(attr, "ssd", x.id, dt.id, a_log.id, b.id, c.id, d.id, dt_bias.id);
}
remat_value remat_mlstm(remat_graph *graph, remat_value q, remat_value k, remat_value v, remat_value i, remat_value f) {
    return BUILD("mlstm", q.id, k.id, v.id, i.id, f.id);
}
remat_value remat_rwkv7(remat_graph *graph, remat_value r, remat_value w, remat_value k, remat_value v,
                        remat_value kappa, remat_value a, int64_t heads) {
    rm_rwkv7_attr attr = {heads};
    return BUILD_WITH(attr, "rwkv7", r.id, w.id, k.id, v.id, kappa.id, a.id);
}
remat_value remat_slstm(remat_graph *graph, remat_value x, remat_value r, remat_value bias) {
    return BUILD("slstm", x.id, r.id, bias.id);
}
remat_value remat_delta_scan(remat_graph *graph, remat_value q, remat_value k, remat_value v, remat_value a,
                             remat_value b, remat_value a_log, remat_value dt_bias, int64_t key_heads,
                             bool allow_neg_eigval) {
    rm_delta_scan_attr attr = {key_heads, allow_neg_eigval};
    return BUILD_WITH(attr, "delta_scan", q.id, k.id, v.id, a.id, b.id, a_log.id, dt_bias.id);
}
remat_value remat_lstm_projected(remat_graph *graph, remat_value x, remat_value w_ih, remat_value w_hh,
                                 remat_value b_ih, remat_value b_hh, remat_value w_hr) {
    return BUILD("lstm_projected", x.id, w_ih.id, w_hh.id, b_ih.id, b_hh.id, w_hr.id);
}
remat_value remat_layer_norm(remat_graph *graph, remat_value x, remat_value gain, remat_value bias, double epsilon) {
    rm_layer_norm_attr attr = {epsilon};
    return BUILD_WITH(attr, "layer_norm", x.id, gain.id, bias.id);
}
remat_value remat_batch_norm(remat_graph *graph, remat_value x, remat_value gain, remat_value bias,
                             remat_value running_mean, remat_value running_var, double momentum, double epsilon,
                             bool sync) {
    rm_batch_norm_attr attr = {momentum, epsilon, is_sequence(graph, x) ? 2 : 1, sync, 0};
    return BUILD_WITH(attr, "batch_norm", x.id, running_mean.id, running_var.id, gain.id, bias.id);
}
static rm_conv_attr conv_attr(const int64_t stride[2], const int64_t padding[2], const int64_t dilation[2],
                              int64_t groups) {
    rm_conv_attr attr = {{1, 1}, {0, 0}, {1, 1}, .groups = groups};
    for (int d = 0; d < 2; d++) {
        if (stride) attr.stride[d] = stride[d];
        if (padding) attr.padding[d] = padding[d];
        if (dilation) attr.dilation[d] = dilation[d];
    }
    return attr;
}
remat_value remat_conv2d(remat_graph *graph, remat_value x, remat_value w, remat_value b, const int64_t stride[2],
                         const int64_t padding[2], const int64_t dilation[2], int64_t groups) {
    rm_conv_attr attr = conv_attr(stride, padding, dilation, groups);
    return BUILD_WITH(attr, "conv", x.id, w.id, b.id);
}
remat_value remat_conv_transpose2d(remat_graph *graph, remat_value x, remat_value w, remat_value b,
                                   const int64_t stride[2], const int64_t padding[2], const int64_t output_padding[2],
                                   int64_t groups, const int64_t dilation[2]) {
    rm_conv_attr attr = conv_attr(stride, padding, dilation, groups);
    attr.transposed = 1;
    for (int d = 0; d < 2 && output_padding; d++) attr.output_padding[d] = output_padding[d];
    return BUILD_WITH(attr, "conv_transpose", x.id, w.id, b.id);
}
remat_value remat_conv1d(remat_graph *graph, remat_value x, remat_value w, remat_value b, int64_t stride,
                         int64_t padding, int64_t dilation, int64_t groups) {
    rm_conv_attr attr = {{1, stride}, {0, padding}, {1, dilation}, .groups = groups};
    return BUILD_WITH(attr, "conv", x.id, w.id, b.id);
}
remat_value remat_matmul(remat_graph *graph, remat_value x, remat_value w, remat_value b) {
    rm_linear_attr attr = {1};
    return BUILD_WITH(attr, "linear", x.id, w.id, b.id);
}
remat_value remat_batched_matmul(remat_graph *graph, remat_value a, remat_value b, bool transpose_b) {
    rm_batched_matmul_attr attr = {transpose_b};
    return BUILD_WITH(attr, "batched_matmul", a.id, b.id);
}

remat_value remat_positions(remat_graph *graph, remat_value x, remat_value w) { return BUILD("positions", x.id, w.id); }
remat_value remat_rotary(remat_graph *graph, remat_value x, int64_t heads, double base) {
    rm_rotary_attr attr = {base, heads};
    return BUILD_WITH(attr, "rotary", x.id);
}

static remat_value add_pool(remat_graph *graph, const char *op, remat_value x, const int64_t window[2],
                            const int64_t stride[2], const int64_t padding[2]) {
    rm_pool_attr attr = {{0, 0}, {0, 0}, {0, 0}}; /* the op refuses a window of 0 */
    for (int d = 0; d < 2 && window; d++) {
        attr.window[d] = window[d];
        attr.stride[d] = stride ? stride[d] : window[d];
        attr.padding[d] = padding ? padding[d] : 0;
    }
    return BUILD_WITH(attr, op, x.id);
}
remat_value remat_max_pool2d(remat_graph *graph, remat_value x, const int64_t window[2], const int64_t stride[2],
                             const int64_t padding[2]) {
    return add_pool(graph, "max_pool", x, window, stride, padding);
}
remat_value remat_avg_pool2d(remat_graph *graph, remat_value x, const int64_t window[2], const int64_t stride[2],
                             const int64_t padding[2]) {
    return add_pool(graph, "avg_pool", x, window, stride, padding);
}
remat_value remat_mean(remat_graph *graph, remat_value x, int axes) {
    rm_mean_attr attr = {axes, 0};
    return BUILD_WITH(attr, "mean", x.id);
}
remat_value remat_sum(remat_graph *graph, remat_value x, int axes) {
    rm_mean_attr attr = {axes, 1};
    return BUILD_WITH(attr, "mean", x.id);
}
remat_value remat_upsample2d(remat_graph *graph, remat_value x, const int64_t scale[2], remat_upsample mode) {
    rm_upsample_attr attr = {{scale ? scale[0] : 0, scale ? scale[1] : 0}, mode};
    return BUILD_WITH(attr, "upsample", x.id);
}
remat_value remat_pad2d(remat_graph *graph, remat_value x, const int64_t before[2], const int64_t after[2]) {
    rm_pad_attr attr = {{before ? before[0] : 0, before ? before[1] : 0}, {after ? after[0] : 0, after ? after[1] : 0}};
    return BUILD_WITH(attr, "pad", x.id);
}
/* Time and batch of a sequence cannot be swapped, since POINTWISE ops may get a tile of it. */
remat_value remat_transpose(remat_graph *graph, remat_value x, int one, int other) {
    rm_transpose_attr attr = {one < other ? one : other, one < other ? other : one};
    if (is_sequence(graph, x) && !graph->status && attr.one < 2)
        return (remat_value){rm_graph_mistake(
            graph, rm_fail(REMAT_INVALID,
                           "transpose: axes %d and %d of a sequence include time or batch, 0 and 1; choose later axes",
                           one, other))};
    return BUILD_WITH(attr, "transpose", x.id);
}
remat_value remat_group_norm(remat_graph *graph, remat_value x, int64_t groups, remat_value gain, remat_value bias,
                             double epsilon) {
    rm_group_norm_attr attr = {epsilon, groups, is_sequence(graph, x) ? 2 : 1};
    return BUILD_WITH(attr, "group_norm", x.id, gain.id, bias.id);
}
remat_value remat_rms_norm(remat_graph *graph, remat_value x, remat_value gain, double epsilon) {
    rm_rms_norm_attr attr = {epsilon};
    return BUILD_WITH(attr, "rms_norm", x.id, gain.id);
}
remat_value remat_attention(remat_graph *graph, remat_value q, remat_value k, remat_value v, int64_t heads,
                            bool causal) {
    rm_attention_attr attr = {heads, causal, 0, 0};
    return BUILD_WITH(attr, "attention", q.id, k.id, v.id);
}
remat_value remat_window_attention(remat_graph *graph, remat_value q, remat_value k, remat_value v, int64_t heads,
                                   int64_t window) {
    rm_attention_attr attr = {heads, true, 0, window};
    return BUILD_WITH(attr, "attention", q.id, k.id, v.id);
}
remat_value remat_local_attention(remat_graph *graph, remat_value q, remat_value k, remat_value v, int64_t heads,
                                  int64_t window, int64_t rotary, double base) {
    rm_local_attention_attr attr = {heads, window, rotary, base};
    return BUILD_WITH(attr, "local_attention", q.id, k.id, v.id);
}
remat_value remat_cross_attention(remat_graph *graph, remat_value q, remat_value k, remat_value v, int64_t heads,
                                  remat_value padding) {
    rm_attention_attr attr = {heads, false, 0, 0};
    return BUILD_WITH(attr, "attention", q.id, k.id, v.id, padding.id);
}
remat_value remat_attention_dropout(remat_graph *graph, remat_value q, remat_value k, remat_value v, int64_t heads,
                                    bool causal, remat_value padding, double probability) {
    rm_attention_attr attr = {heads, causal, probability, 0};
    return BUILD_WITH(attr, "attention", q.id, k.id, v.id, padding.id);
}
remat_value remat_biased_attention(remat_graph *graph, remat_value q, remat_value k, remat_value v, int64_t heads,
                                   bool causal, remat_value padding, remat_value bias, double probability) {
    rm_attention_attr attr = {heads, causal, probability, 0};
    return BUILD_WITH(attr, "attention", q.id, k.id, v.id, padding.id, bias.id);
}
remat_value remat_dropout(remat_graph *graph, remat_value x, double probability) {
    rm_dropout_attr attr = {probability};
    return BUILD_WITH(attr, "dropout", x.id);
}
remat_value remat_scale(remat_graph *graph, remat_value x, double factor) {
    rm_scale_attr attr = {factor, 0};
    return BUILD_WITH(attr, "scale", x.id);
}
remat_value remat_shift(remat_graph *graph, remat_value x, double amount) {
    rm_scale_attr attr = {1, amount};
    return BUILD_WITH(attr, "scale", x.id);
}
/* Builds an op whose inputs broadcast. If only one of the two is a sequence, it must be `a`; all tiles then read b. */
static remat_value add_broadcast(remat_graph *graph, const char *op, remat_value a, remat_value b) {
    const rm_value *one = value_of(graph, a), *other = value_of(graph, b);
    char text[REMAT_DESC_TEXT], other_text[REMAT_DESC_TEXT];
    if (!one || !other || !one->sequence) return BUILD(op, a.id, b.id);
    if (!other->sequence) return BUILD(op, a.id, 0, b.id);
    if (graph->status || one->desc.rank == other->desc.rank) return BUILD(op, a.id, b.id);
    return (remat_value){rm_graph_mistake(
        graph,
        rm_fail(REMAT_INVALID, "%s: a is %s and b is %s, both with a time axis; reshape the shorter to (T,B,1,..)", op,
                rm_desc_text(&one->desc, text), rm_desc_text(&other->desc, other_text)))};
}
static bool is_second(const remat_graph *graph, remat_value a, remat_value b) {
    return value_of(graph, a) && !is_sequence(graph, a) && is_sequence(graph, b);
}
remat_value remat_add(remat_graph *graph, remat_value a, remat_value b) {
    return is_second(graph, a, b) ? add_broadcast(graph, "add", b, a) : add_broadcast(graph, "add", a, b);
}
remat_value remat_mul(remat_graph *graph, remat_value a, remat_value b) {
    return is_second(graph, a, b) ? add_broadcast(graph, "mul", b, a) : add_broadcast(graph, "mul", a, b);
}
remat_value remat_sub(remat_graph *graph, remat_value a, remat_value b) {
    if (!is_second(graph, a, b)) return add_broadcast(graph, "sub", a, b);
    return remat_scale(graph, add_broadcast(graph, "sub", b, a), -1);
}
remat_value remat_div(remat_graph *graph, remat_value a, remat_value b) {
    return is_second(graph, a, b) ? remat_mul(graph, a, remat_reciprocal(graph, b)) : add_broadcast(graph, "div", a, b);
}
remat_value remat_masked(remat_graph *graph, remat_value x, remat_value mask) {
    if (is_second(graph, x, mask)) x = remat_add(graph, remat_scale(graph, mask, 0), x); /* repeated along time */
    return add_broadcast(graph, "masked", x, mask);
}
remat_value remat_sigmoid(remat_graph *graph, remat_value x) { return BUILD("sigmoid", x.id); }
remat_value remat_tanh(remat_graph *graph, remat_value x) { return BUILD("tanh", x.id); }
remat_value remat_relu(remat_graph *graph, remat_value x) { return BUILD("relu", x.id); }
remat_value remat_gelu(remat_graph *graph, remat_value x) { return BUILD("gelu", x.id); }
remat_value remat_gelu_tanh(remat_graph *graph, remat_value x) { return BUILD("gelu_tanh", x.id); }
remat_value remat_silu(remat_graph *graph, remat_value x) { return BUILD("silu", x.id); }
remat_value remat_exp(remat_graph *graph, remat_value x) { return BUILD("exp", x.id); }
remat_value remat_softplus(remat_graph *graph, remat_value x) { return BUILD("softplus", x.id); }
remat_value remat_log(remat_graph *graph, remat_value x) { return BUILD("log", x.id); }
remat_value remat_sqrt(remat_graph *graph, remat_value x) { return BUILD("sqrt", x.id); }
remat_value remat_norm_root(remat_graph *graph, remat_value x) { return BUILD("norm_root", x.id); }
remat_value remat_rsqrt(remat_graph *graph, remat_value x) { return BUILD("rsqrt", x.id); }
remat_value remat_reciprocal(remat_graph *graph, remat_value x) { return BUILD("reciprocal", x.id); }
remat_value remat_sin(remat_graph *graph, remat_value x) { return BUILD("sin", x.id); }
remat_value remat_cos(remat_graph *graph, remat_value x) { return BUILD("cos", x.id); }
remat_value remat_erf(remat_graph *graph, remat_value x) { return BUILD("erf", x.id); }
remat_value remat_log1p(remat_graph *graph, remat_value x) { return BUILD("log1p", x.id); }
remat_value remat_stop_gradient(remat_graph *graph, remat_value x) { return BUILD("stop_gradient", x.id); }
remat_value remat_expm1(remat_graph *graph, remat_value x) { return BUILD("expm1", x.id); }
remat_value remat_clamp(remat_graph *graph, remat_value x, double low, double high) {
    rm_clamp_attr attr = {low, high, 0};
    return BUILD_WITH(attr, "clamp", x.id);
}
remat_value remat_hardtanh(remat_graph *graph, remat_value x, double low, double high) {
    rm_clamp_attr attr = {low, high, 1};
    return BUILD_WITH(attr, "clamp", x.id);
}
static remat_value add_concat(remat_graph *graph, const remat_value *x, int n, const rm_concat_attr *attr) {
    int32_t id[REMAT_MAX_INPUTS] = {0};
    if (!graph || graph->status) return REMAT_NONE;
    remat_status status = check_concat(x, n);
    for (int i = 0; !status && i < n; i++) id[i] = x[i].id;
    return status ? (remat_value){rm_graph_mistake(graph, status)} : build(graph, "concat", id, attr);
}
remat_value remat_concat(remat_graph *graph, const remat_value *x, int n) { return add_concat(graph, x, n, NULL); }
remat_value remat_concat_axis(remat_graph *graph, const remat_value *x, int n, int axis) {
    const rm_value *first = x && n > 0 ? value_of(graph, x[0]) : NULL;
    rm_concat_attr attr = {axis < 0 && first ? axis + first->desc.rank : axis};
    if (first && !graph->status && first->sequence && attr.axis < 2)
        return (remat_value){
            rm_graph_mistake(graph, rm_fail(REMAT_INVALID,
                                            "concat: axis %d of a sequence is its time or its batch; join its values "
                                            "along axis 2 or a later one",
                                            axis))};
    return add_concat(graph, x, n, &attr);
}
remat_value remat_slice(remat_graph *graph, remat_value x, int64_t first, int64_t count) {
    rm_slice_attr attr = {first, count};
    return BUILD_WITH(attr, "slice", x.id);
}
remat_value remat_pick(remat_graph *graph, remat_value x, remat_value index) { return BUILD("pick", x.id, index.id); }
remat_value remat_as_sequence(remat_graph *graph, remat_value x) { return BUILD("as_sequence", x.id); }
remat_value remat_reverse(remat_graph *graph, remat_value x) { return BUILD("reverse", x.id); }
remat_value remat_last_step(remat_graph *graph, remat_value x) { return BUILD("last_step", x.id); }
remat_value remat_step_at(remat_graph *graph, remat_value x, remat_value index) {
    return BUILD("step_at", x.id, index.id);
}
remat_value remat_mean_over_time(remat_graph *graph, remat_value x) { return BUILD("mean_over_time", x.id); }
remat_value remat_sum_over_time(remat_graph *graph, remat_value x) {
    rm_over_time_attr attr = {1};
    return BUILD_WITH(attr, "mean_over_time", x.id);
}
remat_value remat_running_max(remat_graph *graph, remat_value x) { return BUILD("running_max", x.id); }
remat_value remat_max_over_time(remat_graph *graph, remat_value x) {
    return remat_last_step(graph, remat_running_max(graph, x));
}
remat_value remat_softmax_cross_entropy(remat_graph *graph, remat_value logits, remat_value targets) {
    return BUILD("softmax_cross_entropy", logits.id, targets.id);
}
remat_value remat_softmax_cross_entropy_smoothed(remat_graph *graph, remat_value logits, remat_value targets,
                                                 double smoothing) {
    rm_cross_entropy_attr attr = {.smoothing = smoothing};
    return BUILD_WITH(attr, "softmax_cross_entropy", logits.id, targets.id);
}
remat_value remat_softmax_cross_entropy_weighted(remat_graph *graph, remat_value logits, remat_value targets,
                                                 remat_value class_weights, int64_t ignored, double smoothing) {
    if (!graph || graph->status || !logits.id) return REMAT_NONE;
    bool there = logits.id > 0 && logits.id < graph->n_values; /* if not, the second op reports it */
    rm_target_weight_attr sum = {there ? rm_desc_last(&graph->value[logits.id].desc) : 1, ignored};
    rm_cross_entropy_attr attr = {smoothing, 1, ignored};
    remat_value weight = BUILD_WITH(sum, "target_weight", targets.id, class_weights.id);
    return BUILD_WITH(attr, "softmax_cross_entropy", logits.id, targets.id, class_weights.id, weight.id);
}
remat_value remat_dice(remat_graph *graph, remat_value logits, remat_value targets, int64_t ignored, bool joint) {
    rm_dice_attr attr = {joint, ignored};
    return BUILD_WITH(attr, "dice", logits.id, targets.id);
}
/* Number of rows without padding, counted before the first tile. */
static remat_value real_rows(remat_graph *graph, remat_value padding) {
    rm_target_weight_attr one = {2, 1}; /* of two classes, 0 and 1, the second is ignored */
    return BUILD_WITH(one, "target_weight", padding.id);
}
remat_value remat_mse(remat_graph *graph, remat_value x, remat_value target) { return BUILD("mse", x.id, target.id); }
remat_value remat_bce_with_logits(remat_graph *graph, remat_value logits, remat_value targets) {
    return BUILD("bce_with_logits", logits.id, targets.id);
}
remat_value remat_mse_padded(remat_graph *graph, remat_value x, remat_value target, remat_value padding) {
    return BUILD("mse", x.id, target.id, padding.id, real_rows(graph, padding).id);
}
remat_value remat_mae_padded(remat_graph *graph, remat_value x, remat_value target, remat_value padding) {
    return BUILD("mae", x.id, target.id, padding.id, real_rows(graph, padding).id);
}
remat_value remat_huber_padded(remat_graph *graph, remat_value x, remat_value target, remat_value padding,
                               double delta) {
    rm_huber_attr attr = {delta};
    return BUILD_WITH(attr, "huber", x.id, target.id, padding.id, real_rows(graph, padding).id);
}
remat_value remat_bce_with_logits_padded(remat_graph *graph, remat_value logits, remat_value targets,
                                         remat_value padding) {
    return BUILD("bce_with_logits", logits.id, targets.id, padding.id, real_rows(graph, padding).id);
}
remat_value remat_softmax(remat_graph *graph, remat_value x) { return BUILD("softmax", x.id); }
remat_value remat_log_softmax(remat_graph *graph, remat_value x) { return BUILD("log_softmax", x.id); }
remat_value remat_mae(remat_graph *graph, remat_value x, remat_value target) { return BUILD("mae", x.id, target.id); }
remat_value remat_huber(remat_graph *graph, remat_value x, remat_value target, double delta) {
    rm_huber_attr attr = {delta};
    return BUILD_WITH(attr, "huber", x.id, target.id);
}
remat_value remat_ctc(remat_graph *graph, remat_value logits, remat_value targets, remat_value input_lengths,
                      remat_value target_lengths, int64_t blank, bool zero_infinity) {
    rm_ctc_attr attr = {blank, zero_infinity};
    remat_value y = BUILD_WITH(attr, "ctc", logits.id, targets.id, input_lengths.id, target_lengths.id);
    return remat_mean(graph, remat_last_step(graph, y), 1);
}
