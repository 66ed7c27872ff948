/* test_sequence_end.c: remat_set_sequence_end. Random recurrent networks whose rows all end early, in one or both
 * directions, with a loss at every timestep or at each row's last one, under every strategy. Timesteps after the end
 * may be skipped and may hold NaN; no bit of a loss, parameter or output changes. */
#include <check.h>
#include <math.h>

#include "engine/abi.h"
#include "tests/cases.h"
#include "tests/engine/random_net.h"
#include "tests/says.h"
#include "tests/suite.h"

enum { MAX_T = 48, MAX_B = 3, MAX_WIDTH = 8, CLASSES = 3, STEPS = 3 };

typedef struct {
    int64_t T, B, width, tile, longest, end;
    bool every_step; /* the loss and the first output cover all timesteps */
    const char *strategy;
    int64_t length[MAX_B];
} drawn;

static remat_value layer(net *n, remat_value x, remat_value ends, int64_t in, int64_t width) {
    static remat_value (*const cell[])(remat_graph *, remat_value, remat_value, remat_value, remat_value,
                                       remat_value) = {remat_lstm, remat_gru, remat_rnn_tanh};
    static const int64_t gates[] = {4, 3, 1};
    uint32_t which = draw(3);
    int64_t wide = gates[which] * width;
    remat_value bias = draw(2) ? param(n, 1, wide, 0) : REMAT_NONE;
    remat_value y = cell[which](n->graph, x, param(n, 2, wide, in), param(n, 2, wide, width), bias, bias);
    if (draw(3) == 0) remat_initial_state(n->graph, y, 0, param(n, 2, n->batch, width));
    return ends.id ? remat_reset_states(n->graph, y, ends) : y;
}

/* Attention that sees no padding: it is causal, or knows where rows end. */
static remat_value attention(net *n, const drawn *d, remat_value x, int64_t in) {
    if (draw(2)) return remat_attention(n->graph, x, x, x, 1, true);
    remat_value padding = remat_input(n->graph, "padding", REMAT_I32, REMAT_SEQUENCE, 2, (int64_t[]){d->T, d->B});
    remat_value q = remat_linear(n->graph, x, param(n, 2, in, in), REMAT_NONE);
    return remat_cross_attention(n->graph, q, x, x, 1, padding);
}

/* Inputs: x, the ends of rows (as numbers, and as marks), the targets. */
static remat_value describe(net *n, const drawn *d, remat_value *output) {
    remat_graph *g = n->graph;
    int64_t in = d->width;
    remat_value x = remat_input(g, "x", REMAT_F32, REMAT_SEQUENCE, 3, (int64_t[]){d->T, d->B, in});
    remat_value last = remat_input(g, "last", REMAT_I32, REMAT_STATIC, 1, &d->B);
    remat_value ends = remat_input(g, "ends", REMAT_F32, REMAT_SEQUENCE, 2, (int64_t[]){d->T, d->B});
    remat_value target = remat_input(g, "target", REMAT_I32, d->every_step ? REMAT_SEQUENCE : REMAT_STATIC,
                                     d->every_step ? 2 : 1, d->every_step ? (int64_t[]){d->T, d->B} : &d->B);
    remat_value back = REMAT_NONE, there = REMAT_NONE;
    bool attends = draw(2); /* once */
    for (uint32_t layers = 1 + draw(3); layers > 0; layers--) {
        uint32_t ways = draw(3); /* forward, backward, both */
        there = ways == 1 ? REMAT_NONE : layer(n, x, REMAT_NONE, in, d->width);
        back = ways == 0 ? REMAT_NONE : layer(n, remat_reverse(g, x), remat_reverse(g, ends), in, d->width);
        if (ways == 0) x = there;
        if (ways == 1) x = remat_reverse(g, back);
        if (ways == 2) x = remat_concat(g, (remat_value[]){there, remat_reverse(g, back)}, 2);
        in = ways == 2 ? 2 * d->width : d->width;
        if (draw(2)) x = remat_dropout(g, remat_tanh(g, x), 0.3);
        if (attends && draw(2)) x = attention(n, d, x, in), attends = false;
    }
    if (!d->every_step && there.id && back.id && draw(2))
        x = remat_concat(g, (remat_value[]){remat_step_at(g, there, last), remat_last_step(g, back)}, 2);
    else if (!d->every_step)
        x = back.id && draw(2) ? remat_last_step(g, back) : remat_step_at(g, x, last);
    *output = x;
    return target;
}

static remat_value with_loss(net *n, const drawn *d, remat_value *output) {
    remat_value target = describe(n, d, output);
    int64_t in = n->graph->value[output->id].desc.dim[d->every_step ? 2 : 1];
    *output = remat_linear(n->graph, *output, param(n, 2, CLASSES, in), REMAT_NONE);
    return remat_softmax_cross_entropy_weighted(n->graph, *output, target, REMAT_NONE, -100, 0);
}

/* Writes another batch in every step. With `nothing`, timesteps after the end that are certainly not computed are
 * NaN. */
static void feed(remat_session *s, const drawn *d, int step, bool nothing) {
    static float x[MAX_T * MAX_B * MAX_WIDTH], ends[MAX_T * MAX_B];
    static int32_t target[MAX_T * MAX_B], padding[MAX_T * MAX_B], last[MAX_B];
    int64_t tiles = (d->T + d->tile - 1) / d->tile, first = (d->end + d->tile - 1) / d->tile * d->tile;
    for (int64_t t = 0; t < d->T; t++)
        for (int64_t b = 0; b < d->B; b++) {
            int64_t row = t * d->B + b;
            bool skipped = nothing && t >= first && t < (tiles - 1) * d->tile, real = t < d->length[b];
            padding[row] = !real;
            ends[row] = t == d->length[b] - 1;
            if (ends[row] > 0) last[b] = (int32_t)t;
            target[row] = real ? (int32_t)((row + step) % CLASSES) : -100;
            for (int64_t c = 0; c < d->width; c++)
                x[row * d->width + c] = skipped ? NAN : (float)sin((double)(row * 7 + c * 3 + step * 11));
        }
    if (!d->every_step)
        for (int64_t b = 0; b < d->B; b++) target[b] = (int32_t)((b + step) % CLASSES);
    int64_t rows = d->T * d->B;
    ck_assert(!remat_write(s, REMAT_INPUT, 0, x, (uint64_t)(rows * d->width * 4)));
    for (int64_t i = 1; i < remat_count(s, REMAT_INPUT); i++) {
        remat_array info;
        ck_assert(!remat_array_info(s, REMAT_INPUT, i, &info));
        const void *data = !strcmp(info.name, "last")      ? (void *)last
                           : !strcmp(info.name, "ends")    ? (void *)ends
                           : !strcmp(info.name, "padding") ? (void *)padding
                                                           : (void *)target;
        ck_assert_msg(!remat_write(s, REMAT_INPUT, i, data, info.bytes), "%s", remat_last_error());
    }
}

typedef struct {
    double loss[STEPS], evaluated;
    float *output;
    char *parameters;
    uint64_t output_bytes, parameter_bytes;
} outcome;

static void *read_all(remat_session *s, remat_kind kind, uint64_t *bytes) {
    char *all = NULL;
    *bytes = 0;
    for (int64_t i = 0; i < remat_count(s, kind); i++) {
        remat_array info;
        ck_assert(!remat_array_info(s, kind, i, &info));
        all = realloc(all, *bytes + info.bytes);
        ck_assert(all && !remat_read(s, kind, i, all + *bytes, info.bytes));
        *bytes += info.bytes;
    }
    return all;
}

static outcome run(const drawn *d, uint32_t seed, bool short_of_it) {
    net n = {.width = d->width, .steps = d->T, .batch = d->B};
    remat_value output;
    remat_session *s;
    outcome o = {0};
    ck_assert(!remat_graph_create(&n.graph));
    rng_state = seed;
    remat_value loss = with_loss(&n, d, &output);
    remat_config config = REMAT_CONFIG_INIT;
    config.tile = d->tile, config.strategy = d->strategy, config.outputs = &output, config.n_outputs = 1;
    config.threads = 1 + (int)draw(2), config.verify_recompute = draw(2), config.segments = 3;
    config.optimizer = "sgd", config.calibration = "";
    ck_assert_msg(!remat_session_create(n.graph, loss, &config, &s), "%s", remat_last_error());
    feed(s, d, 0, false);
    ck_assert(!remat_evaluate(s, NULL)); /* so that outputs hold values */
    if (short_of_it) ck_assert_msg(!remat_set_sequence_end(s, d->T, d->end), "%s", remat_last_error());
    for (int step = 0; step < STEPS; step++) {
        remat_step_result r;
        feed(s, d, step, short_of_it);
        ck_assert_msg(!remat_step(s, 0.1, &r), "%s", remat_last_error());
        o.loss[step] = r.loss;
        ck_assert_uint_eq(r.arena_peak_bytes, rm_plan_summary_of(s).planned_peak_bytes);
    }
    remat_step_result r;
    ck_assert(!remat_evaluate(s, &r));
    o.evaluated = r.loss;
    o.output = read_all(s, REMAT_OUTPUT, &o.output_bytes);
    o.parameters = read_all(s, REMAT_PARAM, &o.parameter_bytes);
    remat_session_free(s);
    remat_graph_free(n.graph);
    return o;
}

static void compare_outputs(const drawn *d, const outcome *whole, const outcome *part) {
    int64_t computed = (d->end + d->tile - 1) / d->tile * d->tile;
    ck_assert_uint_eq(whole->output_bytes, part->output_bytes);
    for (int64_t t = 0; t < (d->every_step ? d->T : 1); t++)
        for (int64_t b = 0; b < d->B; b++) {
            const float *of_whole = &whole->output[(t * d->B + b) * CLASSES];
            const float *of_part = &part->output[(t * d->B + b) * CLASSES], zeros[CLASSES] = {0};
            if (t < d->length[b]) ck_assert(!memcmp(of_whole, of_part, sizeof zeros));
            if (t >= computed) ck_assert(!memcmp(zeros, of_part, sizeof zeros));
        }
}

START_TEST(skipping_padding_changes_no_bit) {
    static const char *const strategies[] = {"none", "sqrt", "segments", "lean", "optimal"};
    for (int k = 0, cases = rm_cases(300, 30); k < cases; k++) {
        rng_state = (uint64_t)(_i * 1000 + k);
        drawn d = {.T = 10 + draw(MAX_T - 10),
                   .B = 1 + draw(MAX_B),
                   .width = 1 + draw(MAX_WIDTH),
                   .tile = 2 + draw(9),
                   .every_step = draw(2),
                   .strategy = strategies[_i]};
        uint32_t most = 1 + draw((uint32_t)d.T - 1);
        for (int b = 0; b < d.B; b++) {
            d.length[b] = 1 + draw(most);
            if (d.length[b] > d.longest) d.longest = d.length[b];
        }
        d.end = d.longest + draw((uint32_t)(d.T - d.longest) + 1);
        outcome whole = run(&d, 77 + (uint32_t)k, false), part = run(&d, 77 + (uint32_t)k, true);
        for (int step = 0; step < STEPS; step++)
            ck_assert_msg(whole.loss[step] == part.loss[step],
                          "case %d, step %d: %.9g, and %.9g with the end at %d of %d", k, step, whole.loss[step],
                          part.loss[step], (int)d.end, (int)d.T);
        ck_assert(whole.evaluated == part.evaluated && whole.parameter_bytes == part.parameter_bytes);
        ck_assert(!memcmp(whole.parameters, part.parameters, whole.parameter_bytes));
        compare_outputs(&d, &whole, &part);
        free(whole.output), free(whole.parameters), free(part.output), free(part.parameters);
    }
}
END_TEST

/* A later, longer batch is computed to its end. */
START_TEST(sequence_end_can_be_moved) {
    drawn d = {.T = 20, .B = 2, .width = 4, .tile = 4, .longest = 20, .end = 20, .strategy = "none", .length = {20, 3}};
    net n = {.width = 4, .steps = 20, .batch = 2};
    remat_value output;
    remat_session *s;
    remat_step_result before, without, after;
    ck_assert(!remat_graph_create(&n.graph));
    rng_state = 5;
    remat_value loss = with_loss(&n, &d, &output);
    remat_config config = REMAT_CONFIG_INIT;
    config.tile = 4, config.optimizer = "sgd", config.strategy = "sqrt";
    ck_assert_msg(!remat_session_create(n.graph, loss, &config, &s), "%s", remat_last_error());
    feed(s, &d, 0, false);
    ck_assert(!remat_evaluate(s, &before));
    ck_assert(!remat_set_sequence_end(s, 20, 1) && !remat_evaluate(s, &without));
    ck_assert(!remat_set_sequence_end(s, 20, 20) && !remat_evaluate(s, &after));
    ck_assert(before.loss != without.loss && before.loss == after.loss);
    ck_assert(!remat_forward(s) && !remat_set_sequence_end(s, 20, 3));
    ck_assert_int_eq(remat_backward(s, NULL), REMAT_INVALID); /* the forward pass had another end */
    static const struct {
        int64_t timesteps, end;
        const char *word;
    } wrong[] = {{20, 0, "end|0"}, {20, 21, "end|21"}, {19, 3, "sequence|19"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        ck_assert_int_eq(remat_set_sequence_end(s, wrong[i].timesteps, wrong[i].end), REMAT_INVALID);
        ck_says_all(remat_last_error(), wrong[i].word);
    }
    remat_session_free(s);
    remat_graph_free(n.graph);
}
END_TEST

/* For outputs without a time axis the last tile is always computed, from the state that was passed through. */
START_TEST(final_states_are_written) {
    net n = {.width = 4};
    remat_session *s;
    float x[20 * 2 * 4], y[20 * 2 * 4], state[2 * 4];
    rng_state = 9;
    ck_assert(!remat_graph_create(&n.graph));
    remat_value in = remat_input(n.graph, "x", REMAT_F32, REMAT_SEQUENCE, 3, (int64_t[]){20, 2, 4}), output[2];
    output[0] = remat_rnn_tanh(n.graph, in, param(&n, 2, 4, 4), param(&n, 2, 4, 4), REMAT_NONE, REMAT_NONE);
    output[1] = remat_final_state(n.graph, output[0], 0);
    remat_config config = REMAT_CONFIG_INIT;
    config.tile = 4, config.outputs = output, config.n_outputs = 2;
    for (int i = 0; i < 160; i++) x[i] = draw_real();
    ck_assert_msg(!remat_session_create(n.graph, remat_mse(n.graph, output[0], in), &config, &s), "%s",
                  remat_last_error());
    ck_assert(!remat_write(s, REMAT_INPUT, 0, x, sizeof x) && !remat_evaluate(s, NULL));
    ck_assert(!remat_read(s, REMAT_OUTPUT, 0, y, sizeof y) && !remat_read(s, REMAT_OUTPUT, 1, state, sizeof state));
    ck_assert(!memcmp(state, &y[19 * 8], sizeof state));
    ck_assert(!remat_set_sequence_end(s, 20, 7) && !remat_evaluate(s, NULL));
    memset(state, 0, sizeof state);
    ck_assert(!remat_read(s, REMAT_OUTPUT, 0, y, sizeof y) && !remat_read(s, REMAT_OUTPUT, 1, state, sizeof state));
    ck_assert(!memcmp(state, &y[19 * 8],
                      sizeof state)); /* the last tile was computed, starting from the state at timestep 7 */
    remat_session_free(s);
    remat_graph_free(n.graph);
}
END_TEST

/* The loss and all gradients of layers that run backward, forward and backward. Each starts with a parameter, or with
 * the final state of the layer before. */
static double as_long_as(int64_t timesteps, int64_t end, const float *x, float *gradients) {
    net n = {.width = 4};
    remat_session *s;
    remat_step_result r;
    rng_state = 13;
    ck_assert(!remat_graph_create(&n.graph));
    remat_graph *g = n.graph;
    remat_value in = remat_input(g, "x", REMAT_F32, REMAT_SEQUENCE, 3, (int64_t[]){timesteps, 2, 4});
    remat_value state = param(&n, 2, 2, 4), y = in;
    for (int layer = 0; layer < 3; layer++) {
        y = remat_reverse(g, y);
        y = remat_gru(g, y, param(&n, 2, 12, 4), param(&n, 2, 12, 4), REMAT_NONE, REMAT_NONE);
        remat_initial_state(g, y, 0, state);
        state = remat_final_state(g, y, 0);
    }
    remat_config config = REMAT_CONFIG_INIT;
    config.tile = 4, config.strategy = "sqrt", config.verify_recompute = true;
    remat_value loss = remat_mse(g, state, param(&n, 2, 2, 4));
    ck_assert_msg(!remat_session_create(g, loss, &config, &s), "%s", remat_last_error());
    ck_assert(!remat_write(s, REMAT_INPUT, 0, x, (uint64_t)timesteps * 2 * 4 * sizeof *x));
    ck_assert(!remat_set_sequence_end(s, timesteps, end));
    ck_assert_msg(!remat_gradients(s, &r), "%s", remat_last_error());
    uint64_t bytes;
    float *all = read_all(s, REMAT_GRADIENT, &bytes);
    memcpy(gradients, all, bytes);
    free(all);
    remat_session_free(s);
    remat_graph_free(g);
    return r.loss;
}

/* After the end of all rows, states pass through, in both directions. */
START_TEST(padded_sequences_match_shorter_ones) {
    float x[20 * 2 * 4], shorter[1000] = {0}, longer[1000] = {0};
    rng_state = 17;
    for (int i = 0; i < 160; i++) x[i] = draw_real();
    ck_assert(as_long_as(8, 8, x, shorter) == as_long_as(20, 8, x, longer));
    for (int i = 0; i < 1000; i++) ck_assert_msg(shorter[i] == longer[i], "%d: %g, %g", i, shorter[i], longer[i]);
    ck_assert(shorter[0] != 0);
}
END_TEST

/* Outputs on which no loss depends keep the values of the last evaluation. */
START_TEST(training_keeps_evaluated_outputs) {
    net n = {.width = 4};
    remat_session *s;
    float x[20 * 2 * 4], before[20 * 2 * 4], after[20 * 2 * 4];
    rng_state = 11;
    ck_assert(!remat_graph_create(&n.graph));
    remat_value in = remat_input(n.graph, "x", REMAT_F32, REMAT_SEQUENCE, 3, (int64_t[]){20, 2, 4});
    remat_value y = remat_rnn_tanh(n.graph, in, param(&n, 2, 4, 4), param(&n, 2, 4, 4), REMAT_NONE, REMAT_NONE);
    remat_value apart = remat_sigmoid(n.graph, y);
    remat_config config = REMAT_CONFIG_INIT;
    config.tile = 4, config.outputs = &apart, config.n_outputs = 1;
    for (int i = 0; i < 160; i++) x[i] = draw_real();
    ck_assert_msg(!remat_session_create(n.graph, remat_mse(n.graph, y, in), &config, &s), "%s", remat_last_error());
    ck_assert(!remat_write(s, REMAT_INPUT, 0, x, sizeof x) && !remat_evaluate(s, NULL));
    ck_assert(!remat_read(s, REMAT_OUTPUT, 0, before, sizeof before));
    ck_assert(!remat_set_sequence_end(s, 20, 7) && !remat_gradients(s, NULL));
    ck_assert(!remat_read(s, REMAT_OUTPUT, 0, after, sizeof after));
    ck_assert(!memcmp(before, after, sizeof before));
    remat_session_free(s);
    remat_graph_free(n.graph);
}
END_TEST

START_TEST(stateful_sessions_refuse_a_sequence_end) {
    net n = {.width = 4};
    remat_session *s;
    ck_assert(!remat_graph_create(&n.graph));
    remat_value x = remat_input(n.graph, "x", REMAT_F32, REMAT_SEQUENCE, 3, (int64_t[]){20, 2, 4});
    remat_value y = remat_rnn_tanh(n.graph, x, param(&n, 2, 4, 4), param(&n, 2, 4, 4), REMAT_NONE, REMAT_NONE);
    remat_config config = REMAT_CONFIG_INIT;
    config.stateful = true;
    ck_assert_msg(!remat_session_create(n.graph, remat_mse(n.graph, y, x), &config, &s), "%s", remat_last_error());
    ck_assert_int_eq(remat_set_sequence_end(s, 20, 3), REMAT_INVALID);
    ck_says_all(remat_last_error(), "stateful");
    remat_session_free(s);
    remat_graph_free(n.graph);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("sequence_end");
    tcase_add_loop_test(tests, skipping_padding_changes_no_bit, 0, 5);
    tcase_add_test(tests, sequence_end_can_be_moved);
    tcase_add_test(tests, final_states_are_written);
    tcase_add_test(tests, padded_sequences_match_shorter_ones);
    tcase_add_test(tests, training_keeps_evaluated_outputs);
    tcase_add_test(tests, stateful_sessions_refuse_a_sequence_end);
    return run_cases("sequence_end", tests);
}
