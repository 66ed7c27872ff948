/* test_stateful.c: stateful sessions: when carried states continue from call to call, and when they stay unchanged. */
#include <string.h>

#include "tests/net.h"
#include "tests/says.h"
#include "tests/suite.h"

enum { T = 20, B = 3, H = 5, V = 7, C = 4 };
static const net lstm = {
    .layers = 2, .vocabulary = V, .embed = 4, .hidden = H, .timesteps = T, .batch = B, .dropout = 0.1};

static remat_session *open_stateful(bool inference) {
    remat_graph *g;
    remat_session *s;
    remat_config config = REMAT_CONFIG_INIT;
    CHECKED(remat_graph_create(&g));
    remat_value loss = net_build(g, &lstm);
    config.stateful = true;
    config.inference = inference;
    config.optimizer = "adam";
    config.tile = 6;
    config.threads = 1;
    CHECKED(remat_session_create(g, loss, &config, &s));
    remat_graph_free(g);
    return s;
}

static double evaluate(remat_session *s) {
    remat_step_result r;
    CHECKED(remat_evaluate(s, &r));
    return r.loss;
}

static void expect_same(remat_session *a, remat_session *b, remat_kind kind) {
    size_t bytes, other;
    unsigned char *x = net_read_all(a, kind, &bytes), *y = net_read_all(b, kind, &other);
    ck_assert_msg(bytes && bytes == other && !memcmp(x, y, bytes), "arrays of kind %d differ", kind);
    free(x), free(y);
}

/* Evaluations may come at any time, also between gradients and update. */
START_TEST(evaluation_does_not_change_training_states) {
    remat_session *with = open_stateful(false), *without = open_stateful(false);
    for (int step = 0; step < 3; step++) {
        remat_step_result a, b;
        net_feed(with, &lstm, 100);
        double first = evaluate(with);
        ck_assert_msg(evaluate(with) == first, "evaluated to %.9g, and then to %.9g", first, evaluate(with));
        net_feed(with, &lstm, step);
        net_feed(without, &lstm, step);
        CHECKED(remat_gradients(with, &a));
        CHECKED(remat_gradients(without, &b));
        ck_assert(a.loss == b.loss && a.grad_norm == b.grad_norm);
        evaluate(with);
        CHECKED(remat_update(with, 0.01, &a));
        CHECKED(remat_update(without, 0.01, &b));
        expect_same(with, without, REMAT_CARRIED);
        expect_same(with, without, REMAT_OPTIMIZER);
        expect_same(with, without, REMAT_PARAM);
    }
    remat_session_free(with);
    remat_session_free(without);
}
END_TEST

/* States in the program's own memory: a truncated window continues from wherever the program says. */
START_TEST(states_may_be_external) {
    static float state[4][B * H];
    remat_session *s[2];
    size_t bytes;
    for (int i = 0; i < 2; i++) {
        remat_graph *g;
        remat_config config = REMAT_CONFIG_INIT;
        CHECKED(remat_graph_create(&g));
        remat_value loss = net_build(g, &lstm);
        config.stateful = true;
        config.inference = _i;
        config.tile = 6;
        config.external = &(remat_external){REMAT_CARRIED, NULL, NULL};
        config.n_external = i;
        CHECKED(remat_session_create(g, loss, &config, &s[i]));
        remat_graph_free(g);
    }
    for (int64_t k = 0; k < 4; k++) CHECKED(remat_set_external(s[1], REMAT_CARRIED, k, state[k], sizeof *state));
    for (int step = 0; step < 3; step++) {
        remat_step_result r[2];
        for (int i = 0; i < 2; i++) {
            net_feed(s[i], &lstm, step);
            CHECKED((_i ? remat_evaluate : remat_gradients)(s[i], &r[i]));
        }
        ck_assert(r[0].loss == r[1].loss);
        unsigned char *kept = net_read_all(s[0], REMAT_CARRIED, &bytes);
        ck_assert(bytes == sizeof state && !memcmp(kept, state, sizeof state));
        free(kept);
    }
    for (int i = 0; i < 2; i++) remat_session_free(s[i]);
}
END_TEST

/* A session that only evaluates continues from its own states. */
START_TEST(inference_continues_its_states) {
    remat_session *s = open_stateful(true);
    net_feed(s, &lstm, 0);
    ck_assert(evaluate(s) != evaluate(s));
    remat_session_free(s);
}
END_TEST

enum { AFTER = 8 };

static remat_status open_windows(const net *n, int64_t tile, int64_t carry_stride, const char *strategy,
                                 remat_session **s) {
    remat_graph *g;
    remat_config config = REMAT_CONFIG_INIT;
    CHECKED(remat_graph_create(&g));
    remat_value loss = net_build(g, n);
    config.stateful = true;
    config.tile = tile;
    config.carry_stride = carry_stride;
    config.strategy = strategy;
    config.segments = 2;
    config.threads = 1;
    remat_status status = remat_session_create(g, loss, &config, s);
    remat_graph_free(g);
    return status;
}

/* Windows of T timesteps, one every AFTER timesteps. Each starts with the states of a session that runs only the
 * timesteps between their starts. */
START_TEST(overlapping_windows_continue_from_their_middle) {
    static const char *const strategy[] = {"none", "segments", "lean"};
    net whole = lstm, between = lstm;
    whole.cell = between.cell = (net_cell)(_i / 6);
    whole.dropout = between.dropout = 0;
    between.timesteps = AFTER;
    remat_session *windows, *alone;
    remat_step_result r;
    CHECKED(open_windows(&whole, _i % 2 ? 4 : 0, AFTER, strategy[_i / 2 % 3], &windows));
    CHECKED(open_windows(&between, 0, 0, "none", &alone));
    for (int window = 0; window < 3; window++) {
        net_feed(windows, &whole, window), net_feed(alone, &between, window);
        CHECKED(remat_gradients(windows, &r));
        CHECKED(remat_gradients(alone, &r));
        expect_same(windows, alone, REMAT_CARRIED);
    }
    remat_session_free(windows), remat_session_free(alone);
}
END_TEST

START_TEST(windows_off_the_tile_grid_are_refused) {
    remat_session *s;
    ck_assert_int_eq(open_windows(&lstm, 6, AFTER, "none", &s), REMAT_INVALID);
    ck_says_all(remat_last_error(), "tile|6");
    ck_assert_int_eq(open_windows(&lstm, 0, T + 1, "none", &s), REMAT_INVALID);
    ck_assert_int_eq(open_windows(&lstm, 0, -1, "none", &s), REMAT_INVALID);
    CHECKED(open_windows(&lstm, 6, T, "none", &s));
    remat_session_free(s);
}
END_TEST

/* A running sum or maximum is carried from tile to tile, but not from call to call: each call has its own mean. */
static void expect_one_call(bool inference, remat_value (*reduced)(remat_graph *, remat_value)) {
    remat_graph *g;
    remat_session *s;
    float x[2][T * B * C], target[B * C] = {0}, mean[3][B * C];
    remat_step_result step[3];
    for (int i = 0; i < T * B * C; i++) x[0][i] = (float)(i % 7) - 2, x[1][i] = 10 * x[0][i];
    CHECKED(remat_graph_create(&g));
    remat_value sequence = remat_input(g, "x", REMAT_F32, REMAT_SEQUENCE, 3, (int64_t[]){T, B, C});
    remat_value w = remat_param(g, "w", 2, (int64_t[]){C, C}, remat_init_uniform(1));
    remat_value y = reduced(g, remat_linear(g, sequence, w, REMAT_NONE));
    remat_value t = remat_input(g, "t", REMAT_F32, REMAT_STATIC, 2, (int64_t[]){B, C});
    remat_config config = REMAT_CONFIG_INIT;
    config.stateful = true;
    config.inference = inference;
    config.tile = 6;
    config.outputs = &y;
    config.n_outputs = 1;
    CHECKED(remat_session_create(g, remat_mse(g, y, t), &config, &s));
    CHECKED(remat_write(s, REMAT_INPUT, 1, target, sizeof target));
    for (int call = 0; call < 3; call++) { /* what the second leaves would be seen in the third */
        CHECKED(remat_write(s, REMAT_INPUT, 0, x[call % 2], sizeof *x));
        if (!config.inference) CHECKED(remat_gradients(s, &step[call]));
        CHECKED(remat_evaluate(s, NULL));
        CHECKED(remat_read(s, REMAT_OUTPUT, 0, mean[call], sizeof *mean));
    }
    ck_assert_msg(!memcmp(mean[0], mean[2], sizeof *mean), "%g, and then %g", mean[0][0], mean[2][0]);
    ck_assert(config.inference || (step[0].loss == step[2].loss && step[0].grad_norm == step[2].grad_norm));
    ck_assert_int_eq(remat_count(s, REMAT_CARRIED), 0);
    remat_session_free(s);
    remat_graph_free(g);
}

START_TEST(reductions_over_time_cover_one_call) {
    expect_one_call(_i % 2, _i / 2 ? remat_max_over_time : remat_mean_over_time);
}
END_TEST

START_TEST(a_maximum_over_time_takes_no_initial_state) {
    remat_graph *g;
    CHECKED(remat_graph_create(&g));
    remat_value first = remat_param(g, "first", 2, (int64_t[]){B, C}, remat_init_zero());
    remat_value y = remat_running_max(g, remat_input(g, "x", REMAT_F32, REMAT_SEQUENCE, 3, (int64_t[]){T, B, C}));
    ck_assert_int_eq(remat_initial_state(g, y, 0, first).id, 0);
    ck_says_all(remat_last_error(), "running_max starts anew in each call|before the first timestep");
    remat_graph_free(g);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("stateful");
    tcase_add_test(tests, evaluation_does_not_change_training_states);
    tcase_add_loop_test(tests, states_may_be_external, 0, 2);
    tcase_add_test(tests, inference_continues_its_states);
    tcase_add_loop_test(tests, overlapping_windows_continue_from_their_middle, 0, 6 * NET_CELLS);
    tcase_add_test(tests, windows_off_the_tile_grid_are_refused);
    tcase_add_loop_test(tests, reductions_over_time_cover_one_call, 0, 4);
    tcase_add_test(tests, a_maximum_over_time_takes_no_initial_state);
    return run_cases("stateful", tests);
}
