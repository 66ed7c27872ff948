/* test_projected.c: two LSTM layers with projection, large enough for library products and several threads. Every plan
 * and number of threads has the same bits and uses the planned bytes. Also what a cut carries. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/abi.h"
#include "engine/remat.h"
#include "tests/suite.h"

enum { T = 13, B = 16, C = 24, H = 160, P = 136, STEPS = 2 };
#define CHECKED(call) ck_assert_msg(!(call), "%s: %s", #call, remat_last_error())

static remat_value param(remat_graph *g, const char *name, int layer, int rank, int64_t rows, int64_t columns) {
    char full[40];
    snprintf(full, sizeof full, "%s_l%d", name, layer);
    return remat_param(g, full, rank, (int64_t[]){rows, columns}, remat_init_uniform(0.15));
}

static remat_value layer(remat_graph *g, remat_value x, int n, int64_t in) {
    return remat_lstm_projected(g, x, param(g, "weight_ih", n, 2, 4 * H, in), param(g, "weight_hh", n, 2, 4 * H, P),
                                param(g, "bias_ih", n, 1, 4 * H, 0), param(g, "bias_hh", n, 1, 4 * H, 0),
                                param(g, "weight_hr", n, 2, P, H));
}

static remat_graph *build(int64_t timesteps, remat_value *loss) {
    remat_graph *g;
    CHECKED(remat_graph_create(&g));
    remat_value x = remat_input(g, "x", REMAT_F32, REMAT_SEQUENCE, 3, (int64_t[]){timesteps, B, C});
    remat_value target = remat_input(g, "target", REMAT_F32, REMAT_SEQUENCE, 3, (int64_t[]){timesteps, B, P});
    *loss = remat_mse(g, layer(g, layer(g, x, 0, C), 1, P), target);
    return g;
}

typedef struct {
    const char *strategy;
    int64_t segments;
    int threads;
} way;
static const way ways[] = {{"none", 0, 1}, {"none", 0, 2}, {"segments", 2, 1}, {"segments", 5, 2},
                           {"sqrt", 0, 1}, {"lean", 0, 2}, {"none", 0, 3},     {"segments", 100, 2}};

static remat_session *start(const remat_graph *g, remat_value loss, way how, int64_t tile) {
    remat_session *s;
    remat_config config = REMAT_CONFIG_INIT;
    config.strategy = how.strategy;
    config.segments = how.segments;
    config.threads = how.threads;
    config.tile = tile;
    config.seed = 5;
    config.optimizer = "sgd";
    CHECKED(remat_session_create(g, loss, &config, &s));
    return s;
}

static void feed(remat_session *s) {
    static float data[T * B * (P > C ? P : C)];
    for (int input = 0; input < 2; input++) {
        int64_t n = T * B * (input ? P : C);
        for (int64_t i = 0; i < n; i++) data[i] = (float)((i * 37 + input * 11) % 101) / 50 - 1;
        CHECKED(remat_write(s, REMAT_INPUT, input, data, (uint64_t)n * sizeof *data));
    }
}

enum { NUMBERS = 4 * H * (C + 3 * P) + 4 * 4 * H + 2 * P * H };

/* All parameters after some steps, and the losses of these steps. */
static void train(way how, float *numbers, double *loss) {
    remat_value at;
    remat_graph *g = build(T, &at);
    remat_session *s = start(g, at, how, 3);
    feed(s);
    for (int i = 0; i < STEPS; i++) {
        remat_step_result r;
        CHECKED(remat_step(s, 0.1, &r));
        loss[i] = r.loss;
        ck_assert_uint_eq(r.arena_peak_bytes, rm_plan_summary_of(s).planned_peak_bytes);
    }
    int64_t n = 0;
    for (int64_t i = 0; i < remat_count(s, REMAT_PARAM); i++) {
        remat_array info;
        CHECKED(remat_array_info(s, REMAT_PARAM, i, &info));
        CHECKED(remat_read(s, REMAT_PARAM, i, numbers + n, info.bytes));
        n += (int64_t)(info.bytes / sizeof *numbers);
    }
    ck_assert_int_eq(n, NUMBERS);
    remat_session_free(s);
    remat_graph_free(g);
}

START_TEST(projected_lstms_have_the_same_bits_in_every_plan) {
    static float first[NUMBERS], other[NUMBERS];
    double loss[2][STEPS];
    train(ways[0], first, loss[0]);
    ck_assert(loss[0][1] < loss[0][0]);
    train(ways[_i], other, loss[1]);
    ck_assert(!memcmp(loss[0], loss[1], sizeof *loss));
    ck_assert(!memcmp(first, other, sizeof first));
}
END_TEST

/* A cut carries h (B,P) and c (B,H) of each layer. */
START_TEST(a_cut_costs_only_the_carried_states) {
    enum { TILE = 4 };
    uint64_t bytes[2];
    for (int i = 0; i < 2; i++) {
        remat_value loss;
        remat_graph *g = build(100 * (i + 1) * TILE, &loss);
        remat_session *s = start(g, loss, (way){"segments", 100 * (i + 1), 1}, TILE);
        bytes[i] = rm_plan_summary_of(s).activations_peak_bytes;
        remat_session_free(s);
        remat_graph_free(g);
    }
    ck_assert_uint_eq(bytes[1] - bytes[0], 100 * 2 * B * (P + H) * sizeof(float));
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("projected");
    tcase_set_timeout(tests, 300);
    tcase_add_loop_test(tests, projected_lstms_have_the_same_bits_in_every_plan, 1, sizeof ways / sizeof *ways);
    tcase_add_test(tests, a_cut_costs_only_the_carried_states);
    return run_cases("projected", tests);
}
