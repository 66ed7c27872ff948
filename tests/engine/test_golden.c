/* test_golden.c: compares the engine with results of PyTorch in files (tests/golden/): loss, every gradient, and ten
 * steps of each optimizer, for each kind of cell, an LSTM with projections, a mixture of the other layers, image
 * layers with running statistics, and sequences of different lengths; and truncated back-propagation; under several
 * plans.
 *
 * Tolerance. The files hold float64 results; Remat computes in float. One rounding is 2^-24 of a number, and an
 * array's error is measured against its largest magnitude M: LIMIT * 2^-24 * M. PyTorch's own float run stays within
 * 11 such units of the files (make.py prints it). Here the order of roundings differs, and sigmoid and tanh differ
 * by an ulp or two, so the limit is 48. A wrong formula is off by thousands of units. */
#include <string.h>

#include "tests/golden/golden.h"
#include "tests/net.h"
#include "tests/suite.h"

#define LIMIT 48
#define STEPS 10
enum { T = 7, B = 3, V = 11, E = 4, H = 5 };

static const net byte_model = {.layers = 2, .vocabulary = V, .embed = E, .hidden = H, .timesteps = T, .batch = B};

static remat_value matrix(remat_graph *g, const char *name, int64_t rows, int64_t columns) {
    return remat_param(g, name, 2, (int64_t[]){rows, columns}, remat_init_zero());
}
static remat_value vector(remat_graph *g, const char *name, int64_t count) {
    return remat_param(g, name, 1, &count, remat_init_zero());
}

/* make.py's Mixture. */
static remat_value mixture(remat_graph *g) {
    remat_value x = remat_input(g, "x", REMAT_F32, REMAT_SEQUENCE, 3, (int64_t[]){T, B, E});
    remat_value target = remat_input(g, "target", REMAT_F32, REMAT_STATIC, 2, (int64_t[]){B, 2});
    remat_value inner = remat_linear(g, x, matrix(g, "inner.weight", H, E), vector(g, "inner.bias", H));
    remat_value a =
        remat_layer_norm(g, remat_gelu(g, inner), vector(g, "norm.weight", H), vector(g, "norm.bias", H), 1e-5);
    remat_value w_ih = matrix(g, "rnn.weight_ih_l0", 3 * H, H), w_hh = matrix(g, "rnn.weight_hh_l0", 3 * H, H);
    remat_value b_ih = vector(g, "rnn.bias_ih_l0", 3 * H), b_hh = vector(g, "rnn.bias_hh_l0", 3 * H);
    remat_value h = remat_gru(g, a, w_ih, w_hh, b_ih, b_hh);
    remat_value gate = remat_sigmoid(g, remat_linear(g, a, matrix(g, "gate.weight", H, H), vector(g, "gate.bias", H)));
    remat_value z = remat_add(g, remat_mul(g, h, gate), remat_scale(g, remat_relu(g, a), 0.5));
    remat_value pooled = remat_add(g, remat_tanh(g, remat_mean_over_time(g, z)), remat_last_step(g, z));
    remat_value y = remat_linear(g, pooled, matrix(g, "head.weight", 2, H), vector(g, "head.bias", 2));
    return remat_mse(g, y, target);
}

/* make.py's ByteModel(nn.LSTM, PROJECTION). */
static remat_value projected(remat_graph *g) {
    enum { P = 3 };
    remat_value tokens = remat_input(g, "tokens", REMAT_I32, REMAT_SEQUENCE, 2, (int64_t[]){T, B});
    remat_value targets = remat_input(g, "targets", REMAT_I32, REMAT_SEQUENCE, 2, (int64_t[]){T, B});
    remat_value y = remat_embedding(g, tokens, matrix(g, "embedding.weight", V, E));
    y = remat_lstm_projected(g, y, matrix(g, "rnn.weight_ih_l0", 4 * H, E), matrix(g, "rnn.weight_hh_l0", 4 * H, P),
                             vector(g, "rnn.bias_ih_l0", 4 * H), vector(g, "rnn.bias_hh_l0", 4 * H),
                             matrix(g, "rnn.weight_hr_l0", P, H));
    y = remat_lstm_projected(g, y, matrix(g, "rnn.weight_ih_l1", 4 * H, P), matrix(g, "rnn.weight_hh_l1", 4 * H, P),
                             vector(g, "rnn.bias_ih_l1", 4 * H), vector(g, "rnn.bias_hh_l1", 4 * H),
                             matrix(g, "rnn.weight_hr_l1", P, H));
    y = remat_linear(g, y, matrix(g, "head.weight", V, P), vector(g, "head.bias", V));
    return remat_softmax_cross_entropy(g, y, targets);
}

static remat_value tensor(remat_graph *g, const char *name, int rank, const int64_t *dim) {
    return remat_param(g, name, rank, dim, remat_init_zero());
}

/* make.py's Images. */
static remat_value images(remat_graph *g) {
    const int64_t six[] = {6};
    remat_value x = remat_input(g, "x", REMAT_F32, REMAT_STATIC, 4, (int64_t[]){B, 2, 9, 8});
    remat_value target = remat_input(g, "target", REMAT_I32, REMAT_STATIC, 1, (int64_t[]){B});
    remat_value w = tensor(g, "conv1.weight", 4, (int64_t[]){6, 2, 3, 2});
    remat_value y = remat_conv2d(g, x, w, REMAT_NONE, (int64_t[]){2, 1}, (int64_t[]){1, 2}, (int64_t[]){1, 2}, 1);
    remat_value mean = remat_buffer(g, "norm.running_mean", 1, six, remat_init_zero());
    remat_value var = remat_buffer(g, "norm.running_var", 1, six, remat_init_constant(1));
    y = remat_batch_norm(g, y, vector(g, "norm.weight", 6), vector(g, "norm.bias", 6), mean, var, 0.2, 1e-5, false);
    y = remat_max_pool2d(g, remat_relu(g, y), (int64_t[]){3, 2}, (int64_t[]){1, 2}, (int64_t[]){1, 0});
    w = tensor(g, "conv2.weight", 4, (int64_t[]){8, 3, 3, 3});
    y = remat_conv2d(g, y, w, vector(g, "conv2.bias", 8), NULL, (int64_t[]){1, 1}, NULL, 2);
    remat_value s = remat_avg_pool2d(g, y, (int64_t[]){2, 2}, (int64_t[]){1, 1}, (int64_t[]){1, 1});
    s = remat_reshape(g, s, 3, (int64_t[]){B, 8, -1});
    s = remat_conv1d(g, s, tensor(g, "signal.weight", 3, (int64_t[]){4, 8, 3}), vector(g, "signal.bias", 4), 2, 1, 1,
                     1);
    s = remat_mean(g, s, 1);
    y = remat_add(g, remat_mean(g, y, 2), remat_concat(g, (remat_value[]){s, s}, 2));
    y = remat_linear(g, y, matrix(g, "head.weight", 3, 8), vector(g, "head.bias", 3));
    return remat_softmax_cross_entropy(g, y, target);
}

/* make.py's Labels. */
static remat_value labels(remat_graph *g) {
    remat_value x = remat_input(g, "x", REMAT_F32, REMAT_SEQUENCE, 3, (int64_t[]){T, B, E});
    remat_value target = remat_input(g, "target", REMAT_F32, REMAT_SEQUENCE, 3, (int64_t[]){T, B, 3});
    remat_value a = remat_softmax(g, remat_linear(g, x, matrix(g, "inner.weight", H, E), vector(g, "inner.bias", H)));
    remat_value b = remat_log_softmax(g, remat_linear(g, x, matrix(g, "gate.weight", H, E), vector(g, "gate.bias", H)));
    remat_value y = remat_linear(g, remat_mul(g, a, b), matrix(g, "head.weight", 3, H), vector(g, "head.bias", 3));
    return remat_bce_with_logits(g, remat_scale(g, y, 3), target);
}

/* make.py's Arithmetic. */
static remat_value arithmetic(remat_graph *g) {
    remat_value x = remat_input(g, "x", REMAT_F32, REMAT_SEQUENCE, 3, (int64_t[]){T, B, E});
    remat_value target = remat_input(g, "target", REMAT_F32, REMAT_SEQUENCE, 3, (int64_t[]){T, B, 3});
    remat_value y = remat_linear(g, x, matrix(g, "inner.weight", H, E), vector(g, "inner.bias", H));
    remat_value gain = vector(g, "gain", H), shift = matrix(g, "shift", B, 1);
    remat_value row = tensor(g, "row", 3, (int64_t[]){1, B, H});
    remat_value mean = remat_reshape(g, remat_mean(g, x, 1), 3, (int64_t[]){T, B, 1});
    y = remat_sub(g, shift, remat_mul(g, remat_softplus(g, y), gain));
    y = remat_add(g, y, remat_mul(g, row, mean));
    y = remat_sub(g, remat_exp(g, remat_hardtanh(g, y, -1.5, 0.5)),
                  remat_mul(g, remat_clamp(g, y, -INFINITY, 0.25), remat_sigmoid(g, gain)));
    y = remat_reshape(g, y, 4, (int64_t[]){T, B, 1, H});
    y = remat_concat_axis(g, (remat_value[]){y, remat_sub(g, gain, y)}, 2, -2);
    y = remat_mean(g, remat_transpose(g, y, 2, 3), 1);
    y = remat_linear(g, y, matrix(g, "head.weight", 3, H), vector(g, "head.bias", 3));
    return remat_mse(g, remat_add(g, y, shift), target);
}

/* make.py's Turned. */
static remat_value turned(remat_graph *g) {
    enum { HEADS = 4, GROUPS = 2, WIDTH = 4 };
    remat_value x = remat_input(g, "x", REMAT_F32, REMAT_SEQUENCE, 3, (int64_t[]){T, B, E});
    remat_value target = remat_input(g, "target", REMAT_F32, REMAT_SEQUENCE, 3, (int64_t[]){T, B, 3});
    remat_value q = remat_linear(g, x, matrix(g, "q.weight", HEADS * WIDTH, E), vector(g, "q.bias", HEADS * WIDTH));
    remat_value k = remat_linear(g, x, matrix(g, "k.weight", GROUPS * WIDTH, E), vector(g, "k.bias", GROUPS * WIDTH));
    remat_value v = remat_linear(g, x, matrix(g, "v.weight", GROUPS * WIDTH, E), vector(g, "v.bias", GROUPS * WIDTH));
    q = remat_rotary(g, q, HEADS, 100), k = remat_rotary(g, k, GROUPS, 100);
    remat_value y = remat_attention(g, q, k, v, HEADS, true);
    return remat_mse(g, remat_linear(g, y, matrix(g, "head.weight", 3, HEADS * WIDTH), vector(g, "head.bias", 3)),
                     target);
}

/* make.py's Planes. A part of a plane's rows is a slice of the plane in the shape of one row. */
static remat_value planes(remat_graph *g) {
    const int64_t two[] = {2, 2}, wide[] = {2, 3};
    remat_value x = remat_input(g, "x", REMAT_F32, REMAT_STATIC, 4, (int64_t[]){B, 2, 2, 3});
    remat_value target = remat_input(g, "target", REMAT_I32, REMAT_STATIC, 2, (int64_t[]){B, 4 * 18});
    remat_value w = tensor(g, "conv.weight", 4, (int64_t[]){6, 2, 3, 3});
    remat_value y = remat_conv2d(g, x, w, vector(g, "conv.bias", 6), NULL, (int64_t[]){1, 1}, NULL, 1);
    w = tensor(g, "wide.weight", 4, (int64_t[]){6, 3, 2, 2});
    y = remat_conv_transpose2d(g, y, w, vector(g, "wide.bias", 6), (int64_t[]){1, 2}, (int64_t[]){1, 2},
                               (int64_t[]){0, 1}, 2, (int64_t[]){2, 1});
    y = remat_group_norm(g, y, 3, vector(g, "norm.weight", 6), vector(g, "norm.bias", 6), 1e-5);
    remat_value beside =
        remat_pad2d(g, remat_upsample2d(g, y, two, REMAT_BILINEAR_CORNERS), (int64_t[]){0, 1}, (int64_t[]){0, 2});
    y = remat_mul(g, remat_tanh(g, remat_upsample2d(g, y, wide, REMAT_NEAREST)), beside);
    y = remat_slice(g, remat_reshape(g, y, 3, (int64_t[]){B, 6, 4 * 9}), 0, 2 * 9);
    y = remat_upsample2d(g, remat_reshape(g, y, 4, (int64_t[]){B, 6, 2, 9}), two, REMAT_BILINEAR);
    y = remat_transpose(g, remat_reshape(g, y, 3, (int64_t[]){B, 6, -1}), 2, 1);
    y = remat_linear(g, y, matrix(g, "head.weight", 5, 6), vector(g, "head.bias", 5));
    return remat_softmax_cross_entropy(g, y, target);
}

/* A layer of make.py's Packed, in one direction. */
static remat_value one_way(remat_graph *g, int cell, remat_value x, int64_t width, remat_value ends) {
    static remat_value (*const layer[])(remat_graph *, remat_value, remat_value, remat_value, remat_value,
                                        remat_value) = {remat_lstm, remat_gru, remat_rnn_tanh};
    static const char *const name[] = {"lstm", "gru", "rnn"};
    static const int64_t gates[] = {4, 3, 1};
    const char *tail = ends.id ? "_reverse" : "";
    char full[4][64];
    snprintf(full[0], sizeof *full, "%s.weight_ih_l0%s", name[cell], tail);
    snprintf(full[1], sizeof *full, "%s.weight_hh_l0%s", name[cell], tail);
    snprintf(full[2], sizeof *full, "%s.bias_ih_l0%s", name[cell], tail);
    snprintf(full[3], sizeof *full, "%s.bias_hh_l0%s", name[cell], tail);
    int64_t wide = gates[cell] * H;
    remat_value y = layer[cell](g, x, matrix(g, full[0], wide, width), matrix(g, full[1], wide, H),
                                vector(g, full[2], wide), vector(g, full[3], wide));
    return ends.id ? remat_reset_states(g, y, ends) : y;
}

/* make.py's Packed: padding comes first in reversed time, and states are reset after it. */
static remat_value packed(remat_graph *g) {
    remat_value x = remat_input(g, "x", REMAT_F32, REMAT_SEQUENCE, 3, (int64_t[]){T, B, E}), there = x, back = x;
    remat_value target = remat_input(g, "target", REMAT_F32, REMAT_STATIC, 2, (int64_t[]){B, 2});
    remat_value last = remat_input(g, "last", REMAT_I32, REMAT_STATIC, 1, (int64_t[]){B});
    remat_value ends = remat_reverse(g, remat_input(g, "ends", REMAT_F32, REMAT_SEQUENCE, 2, (int64_t[]){T, B}));
    for (int cell = 0; cell < NET_CELLS; cell++) {
        there = one_way(g, cell, x, cell ? 2 * H : E, REMAT_NONE);
        back = one_way(g, cell, remat_reverse(g, x), cell ? 2 * H : E, ends);
        x = remat_concat(g, (remat_value[]){there, remat_reverse(g, back)}, 2);
    }
    remat_value h = remat_concat(g, (remat_value[]){remat_step_at(g, there, last), remat_last_step(g, back)}, 2);
    return remat_mse(g, remat_linear(g, h, matrix(g, "head.weight", 2, 2 * H), vector(g, "head.bias", 2)), target);
}

/* The networks, in the order of the loops below. */
static const char *const names[] = {"lstm",   "gru",    "rnn",    "lstm_projected", "mixture",   "images",
                                    "packed", "planes", "labels", "turned",         "arithmetic"};
enum { PROJECTED = NET_CELLS, MIXTURE }; /* from MIXTURE on, networks have no carried states */
static remat_value build(remat_graph *g, int network) {
    net n = byte_model;
    n.cell = network;
    static remat_value (*const others[])(remat_graph *) = {projected, mixture, images, packed,
                                                           planes,    labels,  turned, arithmetic};
    if (network >= NET_CELLS) return others[network - NET_CELLS](g);
    return net_build(g, &n);
}

/* ---- Comparing -------------------------------------------------------------------------------------------------- */

/* Compares count values with the array, starting at its element `from`. */
static void compare(const golden_array *expected, int64_t from, const double *got, int64_t count, const char *what) {
    double largest = 0;
    for (int64_t i = 0; i < expected->count; i++) largest = fmax(largest, fabs(((double *)expected->data)[i]));
    double limit = LIMIT * 0x1p-24 * largest;
    for (int64_t i = 0; i < count; i++) {
        double want = ((double *)expected->data)[from + i];
        ck_assert_msg(fabs(got[i] - want) <= limit, "%s: %s[%ld] is %.9g, PyTorch says %.9g; %.1f units of 2^-24", what,
                      expected->name, (long)(from + i), got[i], want, fabs(got[i] - want) / (0x1p-24 * largest));
    }
}

/* Compares every array of one kind with "FOLDER/its name". */
static void compare_all(remat_session *s, remat_kind kind, const golden *g, const char *folder, const char *what) {
    for (int64_t i = 0; i < remat_count(s, kind); i++) {
        remat_array info;
        CHECKED(remat_array_info(s, kind, i, &info));
        const golden_array *expected = golden_find(g, folder, info.name);
        ck_assert_uint_eq(info.bytes, expected->count * sizeof(float));
        float *data = malloc(info.bytes);
        double *wide = malloc(2 * info.bytes);
        CHECKED(remat_read(s, kind, i, data, info.bytes));
        for (int64_t k = 0; k < expected->count; k++) wide[k] = data[k];
        compare(expected, 0, wide, expected->count, what);
        free(data);
        free(wide);
    }
}

static void load(remat_session *s, const golden *g) {
    for (int64_t i = 0; i < remat_count(s, REMAT_PARAM); i++) {
        remat_array info;
        CHECKED(remat_array_info(s, REMAT_PARAM, i, &info));
        const golden_array *start = golden_find(g, "parameter", info.name);
        CHECKED(remat_write(s, REMAT_PARAM, i, start->data, start->count * sizeof(float)));
    }
}

/* For Packed: the third number of each target is the length of its sequence. */
static void feed_packed(remat_session *s, const golden *g, int step) {
    const float *all = golden_find(g, "target", NULL)->data;
    float target[B][2], ends[T][B] = {0};
    int32_t last[B];
    for (int b = 0; b < B; b++) {
        const float *mine = all + (step * B + b) * 3;
        memcpy(target[b], mine, sizeof target[b]);
        last[b] = (int32_t)mine[2] - 1;
        ends[last[b]][b] = 1;
    }
    uint64_t bytes = T * B * E * 4;
    CHECKED(remat_write(s, REMAT_INPUT, 0, (char *)golden_find(g, "input", NULL)->data + step * bytes, bytes));
    CHECKED(remat_write(s, REMAT_INPUT, 1, target, sizeof target));
    CHECKED(remat_write(s, REMAT_INPUT, 2, last, sizeof last));
    CHECKED(remat_write(s, REMAT_INPUT, 3, ends, sizeof ends));
}

/* Writes batch number `step`. The files hold STEPS batches in one array. */
static void feed(remat_session *s, const golden *g, int step) {
    static const char *const slot[] = {"input", "target"};
    if (remat_count(s, REMAT_INPUT) == 4) {
        feed_packed(s, g, step);
        return;
    }
    for (int i = 0; i < 2; i++) {
        const golden_array *all = golden_find(g, slot[i], NULL);
        uint64_t bytes = all->count / STEPS * 4;
        CHECKED(remat_write(s, REMAT_INPUT, i, (char *)all->data + step * bytes, bytes));
    }
}

/* ---- The tests -------------------------------------------------------------------------------------------------- */

typedef struct {
    const char *name;
    remat_config config;
    double lr;
} recipe;

static const recipe recipes[] = {
    {"sgd", {.optimizer = "sgd", .momentum = 0.9, .nesterov = true, .weight_decay = 0.01, .clip_grad_norm = 0.25}, 0.5},
    {"sgd_plain", {.optimizer = "sgd"}, 0.1},
    {"adam",
     {.optimizer = "adam", .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-3, .weight_decay = 0.01, .clip_grad_norm = 0.25},
     0.01},
    {"adamw", {.optimizer = "adamw", .beta1 = 0.8, .beta2 = 0.99, .epsilon = 1e-3, .weight_decay = 0.1}, 0.01},
};

/* Three ways to run the same step: keep everything; recompute from a few tiles; do not fold the embedding. */
static remat_config with_plan(remat_config config, int plan) {
    config.device = "cpu";
    config.threads = plan == 2 ? 2 : 1;
    config.strategy = plan == 1 ? "segments" : "none";
    config.segments = plan == 1 ? 3 : 0;
    config.tile = plan == 1 ? 2 : 0;
    config.fold_embedding = plan != 2;
    config.struct_bytes = sizeof config;
    return config;
}
enum { PLANS = 3 };

/* Opens session and file for (network, plan, recipe). The caller must call done(). */
typedef struct {
    remat_graph *graph;
    remat_session *session;
    golden *file;
} fixture;

static fixture start(int network, int plan, const recipe *r) {
    fixture b;
    CHECKED(remat_graph_create(&b.graph));
    remat_value loss = build(b.graph, network);
    CHECKED(remat_graph_check(b.graph));
    remat_config config = with_plan(r->config, plan);
    CHECKED(remat_session_create(b.graph, loss, &config, &b.session));
    b.file = golden_open(names[network]);
    load(b.session, b.file);
    return b;
}
static void done(fixture *b) {
    remat_session_free(b->session);
    remat_graph_free(b->graph);
    golden_close(b->file);
}

START_TEST(loss_and_gradients_match_pytorch) {
    int network = _i / PLANS, plan = _i % PLANS;
    fixture b = start(network, plan, &recipes[1]);
    feed(b.session, b.file, 0);
    remat_step_result r;
    CHECKED(remat_gradients(b.session, &r));
    compare(golden_find(b.file, "loss", NULL), 0, &r.loss, 1, names[network]);
    compare_all(b.session, REMAT_GRADIENT, b.file, "gradient", names[network]);
    done(&b);
}
END_TEST

START_TEST(ten_steps_match_pytorch) {
    int network = _i / PLANS, plan = _i % PLANS;
    for (size_t k = 0; k < sizeof recipes / sizeof *recipes; k++) {
        const recipe *r = &recipes[k];
        fixture b = start(network, plan, r);
        double losses[STEPS], norms[STEPS];
        for (int step = 0; step < STEPS; step++) {
            remat_step_result result;
            feed(b.session, b.file, step);
            CHECKED(remat_step(b.session, r->lr, &result));
            losses[step] = result.loss;
            norms[step] = result.grad_norm;
        }
        compare(golden_find(b.file, r->name, "losses"), 0, losses, STEPS, names[network]);
        compare(golden_find(b.file, r->name, "norms"), 0, norms, STEPS, names[network]);
        compare_all(b.session, REMAT_PARAM, b.file, r->name, names[network]);
        compare_all(b.session, REMAT_BUFFER, b.file, r->name, names[network]);
        done(&b);
    }
}
END_TEST

/* Values after the end of a sequence only need to be finite. */
START_TEST(padding_changes_no_bit) {
    enum { PACKED = MIXTURE + 2 };
    fixture b = start(PACKED, _i, &recipes[1]);
    float *gradient[2][64], x[T][B][E];
    double loss[2];
    for (int i = 0; i < 2; i++) {
        remat_step_result r;
        feed(b.session, b.file, 0);
        const float *target = golden_find(b.file, "target", NULL)->data;
        memcpy(x, golden_find(b.file, "input", NULL)->data, sizeof x);
        for (int row = 0; row < B; row++)
            for (int t = (int)target[row * 3 + 2]; t < T; t++)
                for (int k = 0; k < E; k++) x[t][row][k] = i ? 1e6f * (float)(k - 1) : 0;
        CHECKED(remat_write(b.session, REMAT_INPUT, 0, x, sizeof x));
        CHECKED(remat_gradients(b.session, &r));
        loss[i] = r.loss;
        for (int64_t k = 0; k < remat_count(b.session, REMAT_GRADIENT); k++) {
            remat_array info;
            CHECKED(remat_array_info(b.session, REMAT_GRADIENT, k, &info));
            gradient[i][k] = malloc(info.bytes);
            CHECKED(remat_read(b.session, REMAT_GRADIENT, k, gradient[i][k], info.bytes));
            if (i) ck_assert_mem_eq(gradient[0][k], gradient[1][k], info.bytes);
            if (i) free(gradient[0][k]), free(gradient[1][k]);
        }
    }
    ck_assert_mem_eq(&loss[0], &loss[1], sizeof *loss);
    done(&b);
}
END_TEST

/* ---- Truncated back-propagation --------------------------------------------------------------------------------- */

static fixture start_stateful(int network, int plan, int micro_steps) {
    recipe plain = {"truncated", {.optimizer = "sgd", .stateful = true, .micro_steps = micro_steps}, 0.5};
    return start(network, plan, &plain);
}

/* The ten batches are windows of one sequence; in PyTorch the states are detached between them. */
START_TEST(gradients_stop_at_the_start_of_a_window) {
    int network = _i / PLANS, plan = _i % PLANS;
    fixture b = start_stateful(network, plan, STEPS);
    remat_step_result r;
    for (int window = 0; window < STEPS; window++) {
        feed(b.session, b.file, window);
        CHECKED(remat_gradients(b.session, &r));
    }
    compare(golden_find(b.file, "windows", "loss"), 0, &r.loss, 1, names[network]);
    compare_all(b.session, REMAT_GRADIENT, b.file, "windows", names[network]);
    done(&b);
}
END_TEST

START_TEST(one_step_per_window_matches_pytorch) {
    int network = _i / PLANS, plan = _i % PLANS;
    fixture b = start_stateful(network, plan, 1);
    double losses[STEPS];
    for (int window = 0; window < STEPS; window++) {
        remat_step_result r;
        feed(b.session, b.file, window);
        CHECKED(remat_step(b.session, 0.5, &r));
        losses[window] = r.loss;
    }
    compare(golden_find(b.file, "truncated", "losses"), 0, losses, STEPS, names[network]);
    compare_all(b.session, REMAT_PARAM, b.file, "truncated", names[network]);
    done(&b);
}
END_TEST

int main(void) {
    int runs = (int)(sizeof names / sizeof *names) * PLANS;
    TCase *tcase = tcase_create("pytorch");
    tcase_set_timeout(tcase, 300);
    tcase_add_loop_test(tcase, loss_and_gradients_match_pytorch, 0, runs);
    tcase_add_loop_test(tcase, ten_steps_match_pytorch, 0, runs);
    tcase_add_loop_test(tcase, padding_changes_no_bit, 0, PLANS);
    tcase_add_loop_test(tcase, gradients_stop_at_the_start_of_a_window, 0, MIXTURE * PLANS);
    tcase_add_loop_test(tcase, one_step_per_window_matches_pytorch, 0, MIXTURE * PLANS);
    return run_cases("golden", tcase);
}
