/* test_recurrences.c: layers that save no state but the one before a tile give the same bits under every plan and number
 * of threads: in both directions of time, with resets, with initial states that are computed, and with a loss that reads the final states. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/remat.h"
#include "tests/suite.h"

enum { T = 23, B = 3, C = 6, H = 10, MOST = 1 << 14 };
#define OK(call) ck_assert_msg((call) == REMAT_OK, "%s: %s", #call, remat_last_error())

static remat_value param(remat_graph *g, const char *name, int rank, int64_t d0, int64_t d1, int64_t d2) {
    return remat_param(g, name, rank, (int64_t[]){d0, d1, d2}, remat_init_uniform(0.5));
}
static remat_value projected(remat_graph *g, const char *name, remat_value x, int64_t width) {
    return remat_linear(g, x, param(g, name, 2, width, C, 0), REMAT_NONE);
}

/* N states of each of H channels. */
static remat_value selective_scan(remat_graph *g, remat_value x) {
    enum { N = 4 };
    return remat_selective_scan(g, projected(g, "u", x, H), projected(g, "dt", x, H), param(g, "A_log", 2, H, N, 0),
                                projected(g, "B", x, N), projected(g, "C", x, N), param(g, "D", 1, H, 0, 0),
                                projected(g, "z", x, H), param(g, "dt_bias", 1, H, 0, 0));
}
static remat_value slstm(remat_graph *g, remat_value x) {
    return remat_slstm(g, projected(g, "W", x, 4 * H), param(g, "R", 3, 2, 2 * H, H / 2),
                       param(g, "bias", 1, 4 * H, 0, 0));
}

/* Two heads of 4 keys and 5 values, which share one q and k; a decay of each key. */
static remat_value delta_scan(remat_graph *g, remat_value x) {
    return remat_delta_scan(g, projected(g, "q", x, 4), projected(g, "k", x, 4), projected(g, "v", x, H),
                            projected(g, "a", x, 8), projected(g, "b", x, 2), param(g, "A_log", 1, 2, 0, 0),
                            param(g, "dt_bias", 1, 8, 0, 0), 1, true);
}

/* Two heads of 4 keys and 5 values. */
static remat_value m2rnn(remat_graph *g, remat_value x) {
    return remat_m2rnn(g, projected(g, "q", x, 8), projected(g, "k", x, 8), projected(g, "v", x, H),
                       remat_sigmoid(g, projected(g, "f", x, 2)), param(g, "w", 3, 2, 5, 5));
}

static remat_value ndm(remat_graph *g, remat_value x) {
    return remat_ndm(g, projected(g, "q", x, 8), projected(g, "k", x, 8), projected(g, "v", x, H),
                     projected(g, "g", x, 2));
}

/* Two heads of 5 numbers and 4 states. */
static remat_value ssd(remat_graph *g, remat_value x) {
    return remat_ssd(g, projected(g, "inner", x, H), projected(g, "dt", x, 2), param(g, "A_log", 1, 2, 0, 0),
                     projected(g, "B", x, 4), projected(g, "C", x, 4), param(g, "D", 1, 2, 0, 0),
                     param(g, "dt_bias", 1, 2, 0, 0), 1);
}

/* Two heads of 4 keys and 5 values. q is so large that n matters. */
static remat_value mlstm(remat_graph *g, remat_value x) {
    return remat_mlstm(g, remat_scale(g, projected(g, "q", x, 8), 8), projected(g, "k", x, 8), projected(g, "v", x, H),
                       projected(g, "i", x, 2), projected(g, "f", x, 2));
}
static remat_value rwkv7(remat_graph *g, remat_value x) {
    return remat_rwkv7(g, projected(g, "r", x, 8), projected(g, "w", x, 8), projected(g, "k", x, 8),
                       projected(g, "v", x, H), projected(g, "kappa", x, 8), projected(g, "a", x, 8), 2);
}

/* Two heads of 5 numbers, 4 of them rotated, which share one k and v. */
static remat_value local_attention(remat_graph *g, remat_value x) {
    return remat_local_attention(g, projected(g, "q", x, H), projected(g, "k", x, H / 2), projected(g, "v", x, H / 2),
                                 2, H + 1, 4, 100);
}

static const struct {
    remat_value (*build)(remat_graph *, remat_value x);
    int states, rank;
    int64_t state[4];
} layers[] = {{selective_scan, 1, 3, {B, H, 4}}, {slstm, 4, 2, {B, H}},
              {delta_scan, 1, 4, {B, 2, 4, 5}},  {m2rnn, 1, 4, {B, 2, 4, 5}},
              {ssd, 1, 4, {B, 2, 4, 5}},         {mlstm, 3, 4, {B, 2, 4, 5}},
              {rwkv7, 1, 4, {B, 2, 4, 5}},       {local_attention, 2, 3, {B, H, H / 2}},
              {ndm, 1, 4, {B, 2, 4, 5}}};
enum { LAYERS = sizeof layers / sizeof *layers };

/* A final state of the layer starts a second one, which makes the loss. Both may read time backwards. */
static remat_value describe(remat_graph *g, int layer, bool backwards) {
    remat_value x = remat_input(g, "x", REMAT_F32, REMAT_SEQUENCE, 3, (int64_t[]){T, B, C});
    remat_value reset = remat_input(g, "reset", REMAT_F32, REMAT_SEQUENCE, 2, (int64_t[]){T, B});
    remat_value target = remat_input(g, "target", REMAT_F32, REMAT_SEQUENCE, 3, (int64_t[]){T, B, H});
    if (backwards) x = remat_reverse(g, x), reset = remat_reverse(g, reset);
    remat_value start[REMAT_MAX_RANK];
    for (int k = 0; k < layers[layer].states; k++) {
        char name[16] = "initial0";
        name[7] = (char)('0' + k);
        start[k] = remat_param(g, name, layers[layer].rank - (layers[layer].rank == 4 ? k : 0), layers[layer].state,
                               remat_init_constant(1 + 0.1 * k));
        start[k] = remat_tanh(g, start[k]);
    }
    bool counts = layers[layer].build == local_attention; /* the state after these: how many timesteps they hold */
    remat_value held = REMAT_NONE;
    if (counts) held = remat_input(g, "held", REMAT_F32, REMAT_STATIC, 1, (int64_t[]){B});
    remat_value first = remat_reset_states(g, layers[layer].build(g, x), reset);
    for (int k = 0; k < layers[layer].states; k++) remat_initial_state(g, first, k, start[k]);
    if (counts) remat_initial_state(g, first, layers[layer].states, held);
    remat_value last = remat_final_state(g, first, layers[layer].rank == 2 ? 1 : 0);
    if (layers[layer].rank == 3) last = remat_mean(g, last, 1); /* (B,H) */
    if (layers[layer].rank == 4) last = remat_slice(g, remat_reshape(g, last, 2, (int64_t[]){B, 40}), 7, H);
    remat_value w_ih = param(g, "w_ih", 2, H, H, 0), w_hh = param(g, "w_hh", 2, H, H, 0);
    remat_value second = remat_rnn_tanh(g, first, w_ih, w_hh, REMAT_NONE, REMAT_NONE);
    remat_initial_state(g, second, 0, last);
    return remat_mse(g, backwards ? remat_reverse(g, second) : second, target);
}

static void fill(remat_session *s) {
    for (int64_t i = 0; i < remat_count(s, REMAT_INPUT); i++) {
        static float data[T * B * H];
        remat_array info;
        OK(remat_array_info(s, REMAT_INPUT, i, &info));
        for (int64_t k = 0; k < info.count; k++)
            data[k] = strcmp(info.name, "reset") ? (float)(k * 37 % 19) / 9 - 1 : k % 11 == 8;
        OK(remat_write(s, REMAT_INPUT, i, data, info.bytes));
    }
}

static size_t gradients(int layer, bool backwards, const char *strategy, int64_t segments, int threads,
                        unsigned char *out) {
    remat_graph *g;
    remat_session *s;
    remat_step_result r;
    remat_config config = REMAT_CONFIG_INIT;
    size_t bytes = 0;
    OK(remat_graph_create(&g));
    remat_value loss = describe(g, layer, backwards);
    OK(remat_graph_check(g));
    config.strategy = strategy, config.segments = segments, config.tile = 3, config.threads = threads;
    OK(remat_session_create(g, loss, &config, &s));
    fill(s);
    OK(remat_gradients(s, &r));
    for (int64_t i = 0; i < remat_count(s, REMAT_GRADIENT); i++) {
        remat_array info;
        bool any = false;
        OK(remat_array_info(s, REMAT_GRADIENT, i, &info));
        ck_assert_uint_le(bytes + info.bytes, MOST);
        OK(remat_read(s, REMAT_GRADIENT, i, out + bytes, info.bytes));
        for (size_t k = 0; k < info.bytes; k++) any |= out[bytes + k] != 0;
        ck_assert_msg(any, "the gradient of %s is zero", info.name);
        bytes += info.bytes;
    }
    memcpy(out + bytes, &r.loss, sizeof r.loss);
    remat_session_free(s);
    remat_graph_free(g);
    return bytes + sizeof r.loss;
}

START_TEST(every_plan_has_the_same_bits) {
    static const struct {
        const char *strategy;
        int64_t segments;
    } plans[] = {{"sqrt", 0}, {"lean", 0}, {"segments", 2}, {"segments", 5}, {"segments", 8}};
    static unsigned char kept[MOST], other[MOST];
    size_t bytes = gradients(_i / 2, _i % 2, "none", 0, 1, kept);
    for (size_t p = 0; p < sizeof plans / sizeof *plans; p++)
        for (int threads = 1; threads <= 2; threads++) {
            ck_assert_uint_eq(gradients(_i / 2, _i % 2, plans[p].strategy, plans[p].segments, threads, other), bytes);
            ck_assert_msg(!memcmp(kept, other, bytes), "%s %ld, %d threads", plans[p].strategy, (long)plans[p].segments,
                          threads);
        }
}
END_TEST

/* Each thread needs room of its own; there are 6 heads of rows, so at most 6 work. */
START_TEST(scratch_is_planned_for_the_threads_of_the_session) {
    static const int layer_of[] = {0, 2, 4}, threads[] = {1, 2, 8, 64};
    const int layer = layer_of[_i];
    uint64_t peak[4];
    for (int k = 0; k < 4; k++) {
        remat_graph *g;
        remat_session *s;
        remat_plan_summary plan;
        remat_config config = REMAT_CONFIG_INIT;
        OK(remat_graph_create(&g));
        remat_value loss = describe(g, layer, false);
        config.threads = threads[k], config.tile = T, config.device = "null";
        OK(remat_session_create(g, loss, &config, &s));
        OK(remat_session_plan(s, &plan));
        peak[k] = plan.planned_peak_bytes;
        remat_session_free(s);
        remat_graph_free(g);
    }
    ck_assert_uint_lt(peak[0], peak[1]);
    ck_assert_uint_eq(peak[2], peak[3]);
}
END_TEST

/* RG-LRU, which is composed of other layers, has the loss and the gradients of transformers' in double. Parameter i and
 * x are 1/2 sin(s + 0.7 n), n the index, in transformers' layout (B,T,C); the loss is the sum of y times such an array. */
enum { STEPS = 7, ROWS = 2, WIDTH = 6, HEADS = 2 };
static float by_sine(double s, int64_t n) { return (float)(0.5 * sin(s + 0.7 * (double)n)); }

START_TEST(rg_lru_matches_transformers) {
    static const struct {
        const char *name;
        int rank;
        int64_t dim[3];
        double s, norm;
    } arrays[] = {{"recurrent_param", 1, {WIDTH}, 2, 0.224093418410},
                  {"input_gate_weight", 3, {HEADS, 3, 3}, 3, 0.310251292165},
                  {"input_gate_bias", 1, {WIDTH}, 4, 0.123338106333},
                  {"recurrent_gate_weight", 3, {HEADS, 3, 3}, 5, 0.048886437799},
                  {"recurrent_gate_bias", 1, {WIDTH}, 6, 0.133937151082},
                  {"x", 3, {STEPS, ROWS, WIDTH}, 1, 1.569555830497},
                  {"weights", 3, {STEPS, ROWS, WIDTH}, 9, 0}};
    enum { PARAMS = 5, X = 5, ALL = 7 };
    remat_value v[ALL];
    remat_graph *g;
    remat_session *s;
    remat_step_result r;
    remat_config config = REMAT_CONFIG_INIT;
    OK(remat_graph_create(&g));
    for (int i = 0; i < ALL; i++)
        v[i] = i < PARAMS ? remat_param(g, arrays[i].name, arrays[i].rank, arrays[i].dim, remat_init_zero())
                          : remat_input(g, arrays[i].name, REMAT_F32, REMAT_SEQUENCE, 3, arrays[i].dim);
    remat_requires_grad(g, v[X]);
    remat_value in = remat_headwise_linear(g, v[X], remat_transpose(g, v[1], 1, 2), v[2]);
    remat_value keep = remat_headwise_linear(g, v[X], remat_transpose(g, v[3], 1, 2), v[4]);
    remat_value y = remat_rg_lru(g, v[X], in, keep, v[0], REMAT_NONE);
    remat_value loss = remat_mean(g, remat_mean_over_time(g, remat_mean(g, remat_mul(g, y, v[X + 1]), 1)), 1);
    config.strategy = "segments", config.segments = 2, config.tile = 2;
    OK(remat_session_create(g, remat_scale(g, loss, STEPS * ROWS * WIDTH), &config, &s));
    for (int i = 0; i < ALL; i++) {
        float data[STEPS * ROWS * WIDTH];
        int64_t count = i < PARAMS ? 1 : STEPS * ROWS * WIDTH;
        for (int k = 0; k < arrays[i].rank && i < PARAMS; k++) count *= arrays[i].dim[k];
        for (int64_t n = 0; n < count; n++) {
            int64_t t = n / (ROWS * WIDTH), b = n / WIDTH % ROWS;
            data[n] = by_sine(arrays[i].s, i < PARAMS ? n : (b * STEPS + t) * WIDTH + n % WIDTH);
        }
        remat_kind kind = i < PARAMS ? REMAT_PARAM : REMAT_INPUT;
        OK(remat_write(s, kind, remat_find(s, kind, arrays[i].name), data, (uint64_t)count * sizeof *data));
    }
    OK(remat_gradients(s, &r));
    ck_assert_msg(fabs(r.loss + 0.522634798447) <= 1e-6, "the loss is %.9f", r.loss);
    for (int i = 0; i <= X; i++) {
        float data[STEPS * ROWS * WIDTH];
        double sum = 0;
        remat_array info;
        remat_kind kind = REMAT_GRADIENT;
        OK(remat_array_info(s, kind, remat_find(s, kind, arrays[i].name), &info));
        OK(remat_read(s, kind, remat_find(s, kind, arrays[i].name), data, info.bytes));
        for (int64_t n = 0; n < info.count; n++) sum += (double)data[n] * data[n];
        ck_assert_msg(fabs(sqrt(sum) - arrays[i].norm) <= 1e-6, "%s: %.9f", arrays[i].name, sqrt(sum));
    }
    remat_session_free(s);
    remat_graph_free(g);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("recurrences");
    tcase_add_loop_test(tests, every_plan_has_the_same_bits, 0, 2 * LAYERS);
    tcase_add_loop_test(tests, scratch_is_planned_for_the_threads_of_the_session, 0, 3);
    tcase_add_test(tests, rg_lru_matches_transformers);
    return run_cases("recurrences", tests);
}
