/* test_carried_states.c: stateful sessions. Several calls compute the same as one long call; states have names, and can
 * be read, set and reset; gradients stop at the start of a call. */
#include <string.h>

#include "tests/net.h"
#include "tests/suite.h"

enum { B = 2, E = 4, H = 5, LONG = 12, SHORT = 6, MOST = 4 * H * H };

typedef struct {
    remat_graph *graph;
    remat_session *session;
} opened;

static remat_value matrix(remat_graph *g, const char *name, int layer, int64_t rows, int64_t columns) {
    return net_param(g, name, "", layer, 2, rows, columns, 0.5);
}

static remat_value layer(remat_graph *g, net_cell cell, int number, remat_value x, int64_t width) {
    remat_value w = matrix(g, "w_ih", number, net_gates[cell] * H, width);
    remat_value u = matrix(g, "w_hh", number, net_gates[cell] * H, H);
    if (cell == NET_LSTM) return remat_lstm(g, x, w, u, REMAT_NONE, REMAT_NONE);
    if (cell == NET_GRU) return remat_gru(g, x, w, u, REMAT_NONE, REMAT_NONE);
    return remat_rnn_tanh(g, x, w, u, REMAT_NONE, REMAT_NONE);
}

/* Two layers of a cell. h is the output, and the loss compares it with a target. */
static opened build(net_cell cell, int64_t timesteps, bool stateful, bool inference) {
    opened o;
    CHECKED(remat_graph_create(&o.graph));
    remat_graph *g = o.graph;
    remat_value x = remat_input(g, "x", REMAT_F32, REMAT_SEQUENCE, 3, (int64_t[]){timesteps, B, E});
    remat_value h = layer(g, cell, 1, layer(g, cell, 0, x, E), H);
    remat_value loss = remat_mse(g, h, remat_input(g, "y", REMAT_F32, REMAT_SEQUENCE, 3, (int64_t[]){timesteps, B, H}));
    remat_config config = REMAT_CONFIG_INIT;
    config.threads = 1;
    config.tile = 2;
    config.stateful = stateful;
    config.inference = inference;
    config.outputs = &h;
    config.n_outputs = 1;
    CHECKED(remat_session_create(g, loss, &config, &o.session));
    return o;
}

static void release(opened *o) {
    remat_session_free(o->session);
    remat_graph_free(o->graph);
}

/* Timesteps of one series, starting at `first`. */
static void feed(remat_session *s, int64_t first) {
    for (int64_t i = 0; i < remat_count(s, REMAT_INPUT); i++) {
        float data[LONG * B * H];
        remat_array info;
        CHECKED(remat_array_info(s, REMAT_INPUT, i, &info));
        for (uint64_t k = 0; k < info.bytes / sizeof *data; k++)
            data[k] = (float)sin(1.7 * (double)(k + (uint64_t)first * B * (i ? H : E)) + (double)i);
        CHECKED(remat_write(s, REMAT_INPUT, i, data, info.bytes));
    }
}

static void output_of(remat_session *s, int64_t first, float *out, uint64_t count) {
    remat_step_result result;
    feed(s, first);
    CHECKED(remat_evaluate(s, &result));
    CHECKED(remat_read(s, REMAT_OUTPUT, 0, out, count * sizeof *out));
}

static void set_states(remat_session *s, float value) {
    for (int64_t i = 0; i < remat_count(s, REMAT_CARRIED); i++) {
        float state[B * H];
        for (int k = 0; k < B * H; k++) state[k] = value;
        CHECKED(remat_write(s, REMAT_CARRIED, i, state, sizeof state));
    }
}

/* ---- The tests -------------------------------------------------------------------------------------------------- */

START_TEST(two_calls_match_one_long_call) {
    enum { COUNT = SHORT * B * H };
    float whole[2 * COUNT], part[COUNT];
    opened longer = build(_i, LONG, false, true), shorter = build(_i, SHORT, true, true);
    output_of(longer.session, 0, whole, 2 * COUNT);
    output_of(shorter.session, 0, part, COUNT);
    ck_assert(!memcmp(part, whole, sizeof part));
    output_of(shorter.session, SHORT, part, COUNT);
    ck_assert(!memcmp(part, whole + COUNT, sizeof part));
    set_states(shorter.session, 0); /* as at the start */
    output_of(shorter.session, 0, part, COUNT);
    ck_assert(!memcmp(part, whole, sizeof part));
    release(&longer);
    release(&shorter);
}
END_TEST

/* A name consists of the kind of layer, its index and the state: "lstm.1.c". h of the last layer is the last output. */
START_TEST(states_are_found_by_name) {
    static const char *const names[][5] = {{"lstm.0.h", "lstm.0.c", "lstm.1.h", "lstm.1.c", NULL},
                                           {"gru.0.h", "gru.1.h", NULL},
                                           {"rnn_tanh.0.h", "rnn_tanh.1.h", NULL}};
    static const char *const last[] = {"lstm.1.h", "gru.1.h", "rnn_tanh.1.h"};
    float out[SHORT * B * H], state[B * H];
    opened o = build(_i, SHORT, true, true);
    int64_t count = 0;
    for (; names[_i][count]; count++) ck_assert_int_eq(remat_find(o.session, REMAT_CARRIED, names[_i][count]), count);
    ck_assert_int_eq(remat_count(o.session, REMAT_CARRIED), count);
    ck_assert_int_eq(remat_find(o.session, REMAT_CARRIED, "lstm.2.h"), -1);
    output_of(o.session, 0, out, SHORT * B * H);
    CHECKED(remat_read(o.session, REMAT_CARRIED, remat_find(o.session, REMAT_CARRIED, last[_i]), state, sizeof state));
    ck_assert(!memcmp(state, out + (SHORT - 1) * B * H, sizeof state));
    release(&o);
}
END_TEST

static double loss_from(remat_session *s, float states) {
    remat_step_result result;
    set_states(s, states);
    CHECKED(remat_evaluate(s, &result));
    return result.loss;
}

/* Truncated back-propagation: the derivative for fixed states at the start of the call, by central differences along
 * the gradient. */
START_TEST(gradients_stop_at_the_start_of_a_call) {
    const double step = 1e-2;
    opened o = build(_i, SHORT, true, false);
    remat_session *s = o.session;
    remat_step_result result;
    float gradient[MOST], weight[MOST], moved[MOST];
    remat_array info;
    feed(s, 0);
    set_states(s, 0.3f);
    CHECKED(remat_gradients(s, &result));
    ck_assert(result.loss == loss_from(s, 0.3f));
    CHECKED(remat_array_info(s, REMAT_GRADIENT, 1, &info)); /* w_hh of the first layer */
    CHECKED(remat_read(s, REMAT_GRADIENT, 1, gradient, info.bytes));
    CHECKED(remat_read(s, REMAT_PARAM, 1, weight, info.bytes));
    double norm = 0, loss[2];
    for (uint64_t k = 0; k < info.bytes / sizeof *weight; k++) norm += (double)gradient[k] * gradient[k];
    norm = sqrt(norm);
    for (int side = 0; side < 2; side++) {
        for (uint64_t k = 0; k < info.bytes / sizeof *weight; k++)
            moved[k] = weight[k] + (float)((side ? step : -step) * gradient[k] / norm);
        CHECKED(remat_write(s, REMAT_PARAM, 1, moved, info.bytes));
        loss[side] = loss_from(s, 0.3f);
    }
    double slope = (loss[1] - loss[0]) / (2 * step);
    ck_assert_msg(fabs(slope - norm) <= 0.02 * norm, "the loss rises by %g, its gradient says %g", slope, norm);
    release(&o);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("carried states");
    tcase_add_loop_test(tests, two_calls_match_one_long_call, 0, NET_CELLS);
    tcase_add_loop_test(tests, states_are_found_by_name, 0, NET_CELLS);
    tcase_add_loop_test(tests, gradients_stop_at_the_start_of_a_call, 0, NET_CELLS);
    return run_cases("carried states", tests);
}
