/* test_share.c: sessions that share parameters, optimizer state and arena (remat_config.share) have the bits of separate
 * ones: other batches and lengths (remat_graph_resized), evaluations, micro steps; and what one does to the other's passes. */
#include <string.h>

#include "engine/abi.h"
#include "engine/session/session.h"
#include "tests/engine/team.h"
#include "tests/net.h"
#include "tests/says.h"
#include "tests/suite.h"

enum { T = 24, B = 4, H = 6, V = 9 };
static const net whole = {.cell = NET_LSTM,
                          .layers = 2,
                          .vocabulary = V,
                          .embed = 5,
                          .hidden = H,
                          .timesteps = T,
                          .batch = B,
                          .dropout = 0.2};

static net shaped(int64_t timesteps, int64_t batch) {
    net n = whole;
    n.timesteps = timesteps, n.batch = batch;
    return n;
}

static remat_status create(const net *n, const remat_config *config, remat_session **s) {
    remat_graph *g;
    CHECKED(remat_graph_create(&g));
    remat_status status = remat_session_create(g, net_build(g, n), config, s);
    remat_graph_free(g);
    return status;
}

/* The graph of another size, made from that of `whole`. */
static remat_session *opened_resized(const net *n, const remat_config *config) {
    remat_graph *g, *other;
    remat_session *s;
    CHECKED(remat_graph_create(&g));
    remat_value loss = net_build(g, &whole);
    CHECKED(remat_graph_resized(g, T, n->timesteps, B, n->batch, &other));
    CHECKED(remat_session_create(other, loss, config, &s));
    remat_graph_free(g), remat_graph_free(other);
    return s;
}

static remat_session *opened(const net *n, const remat_config *config) {
    remat_session *s;
    CHECKED(create(n, config, &s));
    return s;
}

static remat_config configured(int i) {
    static const char *const strategies[] = {"none", "segments", "lean", "optimal"};
    remat_config config = REMAT_CONFIG_INIT;
    config.tile = 5;
    config.threads = 1 + i % 2;
    config.strategy = strategies[i % 4];
    config.segments = 3;
    config.optimizer = i % 3 ? "adam" : "sgd";
    config.momentum = i % 3 ? 0 : 0.9;
    config.clip_grad_norm = 0.05;
    return config;
}

static void expect_same(remat_session *a, remat_session *b, remat_kind kind) {
    size_t bytes, other;
    unsigned char *x = net_read_all(a, kind, &bytes), *y = net_read_all(b, kind, &other);
    ck_assert_msg(bytes && bytes == other && !memcmp(x, y, bytes), "arrays of kind %d differ", kind);
    free(x), free(y);
}

static void copy(remat_session *from, remat_session *to, remat_kind kind) {
    for (int64_t i = 0; i < remat_count(to, kind); i++) {
        float data[4 * H * H + V * H];
        remat_array info;
        CHECKED(remat_array_info(to, kind, i, &info));
        CHECKED(remat_read(from, kind, i, data, info.bytes));
        CHECKED(remat_write(to, kind, i, data, info.bytes));
    }
}

/* From one session to another that shares nothing, what an update leaves. */
static void hand_over(remat_session *from, remat_session *to) {
    if (from == to) return;
    copy(from, to, REMAT_PARAM);
    copy(from, to, REMAT_OPTIMIZER);
    remat_set_step_count(to, remat_step_count(from));
    remat_set_last_lr(to, remat_last_lr(from));
}

enum { SESSIONS = 4 };
static const int64_t shapes[SESSIONS][2] = {{T, B}, {T, 2}, {11, B}, {1, 1}};

static void open_all(const remat_config *config, bool shared, remat_session **s) {
    for (int i = 0; i < SESSIONS; i++) {
        net n = shaped(shapes[i][0], shapes[i][1]);
        remat_config own = *config;
        own.share = shared && i ? s[i / 2] : NULL; /* also one that shares itself */
        s[i] = (shared ? opened_resized : opened)(&n, &own);
    }
}

/* Updates by sessions of several shapes, in turn. */
static void expect_same_updates(remat_session **a, remat_session **b) {
    static const int turns[] = {0, 1, 1, 2, 0, 3, 2, 0};
    remat_session *last = b[0];
    for (int step = 0; step < 8; step++) {
        int i = turns[step];
        net n = shaped(shapes[i][0], shapes[i][1]);
        remat_step_result ra, rb;
        net_feed(a[i], &n, step), net_feed(b[i], &n, step);
        hand_over(last, b[i]);
        last = b[i];
        CHECKED(remat_step(a[i], 0.1 / (1 + step), &ra));
        CHECKED(remat_step(b[i], 0.1 / (1 + step), &rb));
        ck_assert_msg(ra.loss == rb.loss && ra.grad_norm == rb.grad_norm, "step %d: loss %.9g, %.9g", step, ra.loss,
                      rb.loss);
        ck_assert_uint_eq(rm_plan_summary_of(a[i]).planned_peak_bytes, ra.arena_peak_bytes);
        expect_same(a[(i + 1) % SESSIONS], b[i], REMAT_PARAM);
        expect_same(a[i], b[i], REMAT_OPTIMIZER);
        ck_assert_int_eq(remat_step_count(a[0]), step + 1);
    }
}

START_TEST(shared_sessions_have_the_bits_of_separate_ones) {
    remat_session *a[SESSIONS], *b[SESSIONS];
    remat_config config = configured(_i);
    open_all(&config, true, a), open_all(&config, false, b);
    expect_same_updates(a, b);
    for (int i = 0; i < SESSIONS; i++) remat_session_free(a[i]), remat_session_free(b[i]);
}
END_TEST

/* Frozen parameters are in no bucket, but in the order that the sessions agree on. */
START_TEST(shared_sessions_with_frozen_parameters_have_the_bits_of_separate_ones) {
    remat_session *a[SESSIONS], *b[SESSIONS];
    remat_config config = configured(1);
    config.train_only = _i ? "embedding,head.weight" : "rnn.weight_hh";
    open_all(&config, true, a), open_all(&config, false, b);
    expect_same_updates(a, b);
    for (int i = 0; i < SESSIONS; i++) remat_session_free(a[i]), remat_session_free(b[i]);
}
END_TEST

/* Parameters lie once, plain and packed, and activations in the arena of the first. */
START_TEST(shared_sessions_take_their_own_bytes_alone) {
    remat_session *a[SESSIONS];
    remat_config config = configured(_i);
    void *x, *y;
    open_all(&config, true, a);
    for (int i = 1; i < SESSIONS; i++) {
        remat_plan_summary plan = rm_plan_summary_of(a[i]);
        ck_assert_uint_eq(plan.params_bytes + plan.gradients_bytes + plan.optimizer_bytes, 0);
        /* One timestep of one row is too small to fold the embedding, so its packed weights are larger. */
        ck_assert_int_eq(plan.packed_bytes > rm_plan_summary_of(a[0]).packed_bytes, shapes[i][0] == 1);
        ck_assert(!plan.packed_bytes || shapes[i][0] == 1);
        CHECKED(remat_array_memory(a[0], REMAT_PARAM, 2, &x));
        CHECKED(remat_array_memory(a[i], REMAT_PARAM, 2, &y));
        ck_assert_ptr_eq(x, y);
        ck_assert_ptr_eq(a[i]->runner.block, a[0]->runner.block);
    }
    for (int i = 0; i < SESSIONS; i++) remat_session_free(a[i]); /* the first one first */
}
END_TEST

/* Every optimizer state is found by its name. */
START_TEST(names_of_shared_arrays_may_be_long) {
    char name[600];
    remat_graph *g;
    remat_session *s[2];
    void *x, *y;
    remat_config config = configured(1);
    memset(name, 'n', sizeof name - 1), name[sizeof name - 1] = 0;
    CHECKED(remat_graph_create(&g));
    remat_value in = remat_input(g, "x", REMAT_F32, REMAT_STATIC, 2, (int64_t[]){B, H});
    remat_value w = remat_param(g, name, 2, (int64_t[]){H, H}, remat_init_uniform(1));
    remat_value loss = remat_mse(g, remat_linear(g, in, w, REMAT_NONE), in);
    for (int k = 0; k < 2; k++) {
        config.share = k ? s[0] : NULL;
        CHECKED(remat_session_create(g, loss, &config, &s[k]));
    }
    for (int k = 0; k < 2; k++) {
        CHECKED(remat_array_memory(s[0], REMAT_OPTIMIZER, k, &x));
        CHECKED(remat_array_memory(s[1], REMAT_OPTIMIZER, k, &y));
        ck_assert_ptr_eq(x, y);
    }
    remat_session_free(s[0]), remat_session_free(s[1]);
    remat_graph_free(g);
}
END_TEST

/* An evaluation of other data between all steps, and within them. */
START_TEST(shared_evaluation_does_not_change_training) {
    remat_config config = configured(_i);
    remat_session *with = opened(&whole, &config), *without = opened(&whole, &config);
    config.inference = true;
    remat_session *like = opened(&whole, &config);
    config.share = with;
    remat_session *evaluation = opened(&whole, &config);
    net_feed(evaluation, &whole, 50), net_feed(like, &whole, 50);
    for (int step = 0; step < 3; step++) {
        remat_step_result a, b;
        CHECKED(remat_copy_parameters(like, without));
        CHECKED(remat_evaluate(evaluation, &a));
        CHECKED(remat_evaluate(like, &b));
        ck_assert(a.loss == b.loss);
        net_feed(with, &whole, step), net_feed(without, &whole, step);
        CHECKED(remat_gradients(with, &a));
        CHECKED(remat_gradients(without, &b));
        CHECKED(remat_evaluate(evaluation, NULL));
        CHECKED(remat_update(with, 0.1, &a));
        CHECKED(remat_update(without, 0.1, &b));
        ck_assert(a.grad_norm == b.grad_norm);
        expect_same(with, without, REMAT_PARAM);
    }
    remat_session_free(with); /* its parameters live on */
    CHECKED(remat_evaluate(evaluation, NULL));
    remat_session_free(evaluation), remat_session_free(like), remat_session_free(without);
}
END_TEST

static remat_value tanh_layer(remat_graph *g, remat_value x, const char *w_ih, const char *w_hh) {
    remat_value w = remat_param(g, w_ih, 2, (int64_t[]){H, H}, remat_init_uniform(1));
    return remat_rnn_tanh(g, x, w, remat_param(g, w_hh, 2, (int64_t[]){H, H}, remat_init_uniform(1)), REMAT_NONE,
                          REMAT_NONE);
}

/* A network of the layers a and b, or of b alone. */
static remat_session *opened_tanh(bool both, remat_session *share) {
    remat_graph *g;
    remat_session *s;
    remat_config config = configured(0);
    config.share = share;
    CHECKED(remat_graph_create(&g));
    remat_value x = remat_input(g, "x", REMAT_F32, REMAT_SEQUENCE, 3, (int64_t[]){T, B, H});
    remat_value y = tanh_layer(g, both ? tanh_layer(g, x, "a.ih", "a.hh") : x, "b.ih", "b.hh");
    CHECKED(remat_session_create(g, remat_mse(g, y, x), &config, &s));
    remat_graph_free(g);
    float data[T * B * H];
    for (int i = 0; i < T * B * H; i++) data[i] = (float)(i % 7) / 7;
    CHECKED(remat_write(s, REMAT_INPUT, 0, data, sizeof data));
    return s;
}

/* Their packed weights lie in the same memory, in turn. */
START_TEST(shared_sessions_of_other_layers_do_not_mix_up_packed_weights) {
    remat_session *both = opened_tanh(true, NULL), *shares = opened_tanh(false, both),
                  *alone = opened_tanh(false, NULL);
    remat_step_result first, again, of_shared, of_alone;
    ck_assert_uint_eq(rm_plan_summary_of(shares).packed_bytes, 0);
    CHECKED(remat_copy_parameters(alone, both));
    CHECKED(remat_evaluate(both, &first));
    CHECKED(remat_evaluate(alone, &of_alone));
    for (int i = 0; i < 2; i++) {
        CHECKED(remat_evaluate(shares, &of_shared));
        CHECKED(remat_evaluate(both, &again));
        ck_assert(of_shared.loss == of_alone.loss && again.loss == first.loss);
    }
    remat_session_free(shares), remat_session_free(both), remat_session_free(alone);
}
END_TEST

/* One arena, and one set of gradients. */
START_TEST(other_sessions_discard_forward_passes_and_gradients) {
    remat_config config = configured(1);
    config.micro_steps = 2;
    remat_session *a = opened(&whole, &config);
    config.share = a;
    remat_session *b = opened(&whole, &config);
    net_feed(a, &whole, 0), net_feed(b, &whole, 1);
    CHECKED(remat_forward(a));
    if (_i == 0) CHECKED(remat_evaluate(b, NULL));
    if (_i == 1) copy(b, b, REMAT_PARAM); /* written, if to the same values */
    if (_i == 2) remat_set_step_count(b, 7);
    ck_assert_int_eq(remat_backward(a, NULL), REMAT_INVALID);
    ck_says_all(remat_last_error(), "remat_forward");
    CHECKED(remat_gradients(a, NULL));
    CHECKED(remat_gradients(b, NULL));
    ck_assert_int_eq(remat_gradients(a, NULL), REMAT_INVALID);
    ck_says_all(remat_last_error(), "another session|micro steps");
    CHECKED(remat_gradients(b, NULL));
    CHECKED(remat_gradients(a, NULL));
    ck_assert_int_eq(remat_update(b, 0.1, NULL), REMAT_INVALID);
    CHECKED(remat_gradients(a, NULL));
    CHECKED(remat_update(a, 0.1, NULL));
    remat_session_free(a), remat_session_free(b);
}
END_TEST

START_TEST(sessions_that_cannot_share_are_refused) {
    remat_session *s, *more;
    remat_config config = configured(1);
    net small = shaped(T, 1), wide = whole;
    wide.hidden = 2 * H;
    remat_session *first = opened(&small, &config);
    config.share = first;
    ck_assert_int_eq(create(&whole, &config, &s), REMAT_INVALID);
    ck_says_all(remat_last_error(), "share|activations|memory_budget");
    config.strategy = "optimal";
    config.memory_budget = strtoull(strstr(remat_last_error(), "at most ") + 8, NULL, 10);
    if (create(&whole, &config, &more) == REMAT_OK) { /* if that suffices for any plan */
        net_feed(more, &whole, 0);
        CHECKED(remat_step(more, 0.1, NULL));
        remat_session_free(more);
    }
    config = configured(1);
    config.share = first;
    ck_assert_int_eq(create(&wide, &config, &s), REMAT_INVALID);
    ck_says_all(remat_last_error(), "share|shape");
    config.optimizer = "sgd";
    ck_assert_int_eq(create(&small, &config, &s), REMAT_INVALID);
    ck_says_all(remat_last_error(), "optimizer|sgd|adam");
    config.optimizer = "adam";
    config.device = "null";
    ck_assert_int_eq(create(&small, &config, &s), REMAT_INVALID);
    ck_says_all(remat_last_error(), "device|cpu");
    remat_session_free(first);
}
END_TEST

/* The last states of a shorter sequence, rows without the last ones, and reshapes. */
static remat_value encoder(remat_graph *g, int64_t timesteps, int64_t batch, remat_value *final) {
    const int64_t dim[] = {timesteps, batch, H}, flat[] = {timesteps, batch, 2, H / 2}, rows[] = {-1, 2 * H};
    remat_value x = remat_input(g, "x", REMAT_F32, REMAT_SEQUENCE, 3, dim), none = REMAT_NONE;
    remat_value first = remat_input(g, "first", REMAT_F32, REMAT_STATIC, 2, (int64_t[]){batch, H});
    x = remat_reshape(g, remat_gelu(g, remat_reshape(g, x, 4, flat)), 3, dim);
    remat_value w = remat_param(g, "w", 2, (int64_t[]){4 * H, H}, remat_init_uniform(0.5));
    remat_value v = remat_param(g, "v", 2, (int64_t[]){4 * H, H}, remat_init_uniform(0.5));
    remat_value y = remat_lstm(g, remat_reverse(g, x), w, v, none, none);
    remat_initial_state(g, y, 0, first);
    for (int k = 0; k < 2; k++) final[k] = remat_final_state(g, y, k);
    remat_value all = remat_concat(g, (remat_value[]){final[0], final[1]}, 2);
    all = remat_tanh(g, remat_reshape(g, all, 2, rows));
    return remat_mse(g, all, remat_input(g, "target", REMAT_F32, REMAT_STATIC, 2, (int64_t[]){batch, 2 * H}));
}

static void feed(remat_session *s) {
    for (int64_t i = 0; i < remat_count(s, REMAT_INPUT); i++) {
        float data[T * B * H];
        remat_array info;
        CHECKED(remat_array_info(s, REMAT_INPUT, i, &info));
        for (int k = 0; k < T * B * H; k++) data[k] = (float)sin(info.name[0] + 0.37 * k);
        CHECKED(remat_write(s, REMAT_INPUT, i, data, info.bytes));
    }
}

START_TEST(resized_graphs_have_the_bits_of_graphs_of_that_size) {
    const int64_t *shape = shapes[1 + _i / 4];
    remat_graph *g[3];
    remat_value final[3][2], loss[2];
    remat_session *s[3];
    remat_config config = configured(_i % 4);
    remat_step_result a, b;
    for (int k = 0; k < 2; k++) CHECKED(remat_graph_create(&g[k]));
    loss[0] = encoder(g[0], T, B, final[0]);
    loss[1] = encoder(g[1], shape[0], shape[1], final[1]);
    CHECKED(remat_graph_resized(g[0], T, shape[0], B, shape[1], &g[2]));
    for (int k = 0; k < 3; k++) {
        config.outputs = final[k == 1];
        config.n_outputs = 2;
        config.share = k == 2 ? s[0] : NULL;
        CHECKED(remat_session_create(g[k], loss[k == 1], &config, &s[k]));
        feed(s[k]);
    }
    CHECKED(remat_step(s[2], 0.1, &a));
    CHECKED(remat_step(s[1], 0.1, &b));
    ck_assert(a.loss == b.loss && a.grad_norm == b.grad_norm);
    expect_same(s[0], s[1], REMAT_PARAM);
    expect_same(s[2], s[1], REMAT_OUTPUT);
    for (int k = 0; k < 3; k++) remat_session_free(s[k]), remat_graph_free(g[k]);
}
END_TEST

START_TEST(impossible_sizes_are_refused) {
    remat_graph *g, *other;
    CHECKED(remat_graph_create(&g));
    remat_value x = remat_input(g, "x", REMAT_F32, REMAT_SEQUENCE, 3, (int64_t[]){T, B, H}), none = REMAT_NONE;
    remat_value w = remat_param(g, "w", 2, (int64_t[]){H, H}, remat_init_uniform(0.5));
    remat_value y = remat_rnn_tanh(g, x, w, w, none, none);
    remat_initial_state(g, y, 0, remat_param(g, "h", 2, (int64_t[]){B, H}, remat_init_zero()));
    ck_assert_int_eq(remat_graph_resized(g, T + 1, 3, 0, 0, &other), REMAT_INVALID);
    ck_says_all(remat_last_error(), "25 timesteps");
    ck_assert_int_eq(remat_graph_resized(g, T, 0, 0, 0, &other), REMAT_INVALID);
    ck_assert_int_eq(remat_graph_resized(g, 0, 0, B, 1, &other), REMAT_INVALID);
    ck_says_all(remat_last_error(), "initial_state|rows");
    CHECKED(remat_graph_resized(g, T, 3, 0, 0, &other));
    remat_graph_free(other), remat_graph_free(g);
}
END_TEST

/* ---- Ranks ------------------------------------------------------------------------------------------------------ */

typedef struct {
    bool shared;
    float parameters[1 << 12];
    size_t bytes;
    double loss[4];
} of_rank;

static void train_in_turn(teammate *mate) {
    of_rank *out = mate->data;
    remat_config config = configured(1);
    remat_session *s[2];
    net short_one = shaped(T, 2);
    config.ranks = &mate->ranks;
    config.threads = 1;
    s[0] = opened(&whole, &config);
    config.share = out->shared ? s[0] : NULL;
    s[1] = opened(&short_one, &config);
    for (int step = 0; step < 4; step++) {
        int i = step % 2;
        remat_step_result r;
        if (!out->shared && step) hand_over(s[!i], s[i]);
        net_feed(s[i], i ? &short_one : &whole, 10 * step + mate->rank);
        CHECKED(remat_step(s[i], 0.1, &r));
        out->loss[step] = r.loss;
    }
    unsigned char *all = net_read_all(s[1], REMAT_PARAM, &out->bytes);
    ck_assert_uint_le(out->bytes, sizeof out->parameters);
    memcpy(out->parameters, all, out->bytes);
    free(all);
    remat_session_free(s[1]), remat_session_free(s[0]);
}

START_TEST(shared_sessions_with_ranks_have_the_bits_of_separate_ones) {
    static of_rank out[2][2];
    for (int k = 0; k < 2; k++) {
        for (int r = 0; r < 2; r++) out[k][r].shared = k;
        void *data[TEAM_MOST] = {&out[k][0], &out[k][1]};
        team_run(&(team){.size = 2}, &(remat_ranks){.shard_optimizer = _i}, train_in_turn, data);
    }
    for (int r = 0; r < 2; r++) {
        ck_assert(!memcmp(out[0][r].loss, out[1][r].loss, sizeof out[0][r].loss));
        ck_assert(!memcmp(out[0][r].parameters, out[1][r].parameters, out[0][r].bytes));
    }
    ck_assert(!memcmp(out[1][0].parameters, out[1][1].parameters, out[1][0].bytes));
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("share");
    tcase_set_timeout(tests, 300);
    tcase_add_loop_test(tests, shared_sessions_have_the_bits_of_separate_ones, 0, 12);
    tcase_add_loop_test(tests, shared_sessions_with_frozen_parameters_have_the_bits_of_separate_ones, 0, 2);
    tcase_add_loop_test(tests, shared_sessions_take_their_own_bytes_alone, 0, 4);
    tcase_add_loop_test(tests, shared_evaluation_does_not_change_training, 0, 4);
    tcase_add_loop_test(tests, other_sessions_discard_forward_passes_and_gradients, 0, 3);
    tcase_add_test(tests, shared_sessions_of_other_layers_do_not_mix_up_packed_weights);
    tcase_add_test(tests, names_of_shared_arrays_may_be_long);
    tcase_add_test(tests, sessions_that_cannot_share_are_refused);
    tcase_add_loop_test(tests, resized_graphs_have_the_bits_of_graphs_of_that_size, 0, 12);
    tcase_add_test(tests, impossible_sizes_are_refused);
    tcase_add_loop_test(tests, shared_sessions_with_ranks_have_the_bits_of_separate_ones, 0, 2);
    return run_cases("share", tests);
}
