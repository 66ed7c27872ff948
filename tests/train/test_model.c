/* test_model.c: the networks that `remat` trains. Networks without biases compute the same as with zero biases, and
 * have no arrays for them. A bidirectional network equals two networks, one of which reads backwards. */
#include "train/models/model.h"

#include "tests/train/train_test.h"

#include <math.h>

enum { T = 12, B = 2, MOST = 256 * 8 };
static const char *const cells[] = {"lstm", "gru", "rnn", "rnn_relu"};

typedef struct {
    rm_model model;
    remat_session *session;
} built;

static built build(const char *cell, bool no_bias) {
    built b;
    rm_model_spec spec = {
        .name = cell, .layers = 2, .hidden = 8, .embed = 6, .no_bias = no_bias, .data = rm_text_shape(T, 0)};
    remat_config config = REMAT_CONFIG_INIT;
    config.threads = 1;
    config.tile = 5;
    config.fold_embedding = true;
    ck_ok(rm_model_build(&spec, B, true, &b.model));
    ck_ok(remat_session_create(b.model.graph, b.model.loss, &config, &b.session));
    for (int input = 0; input < 2; input++) {
        int32_t token[T * B];
        for (int i = 0; i < T * B; i++) token[i] = (i * 37 + input * 11) % 256;
        ck_ok(remat_write(b.session, REMAT_INPUT, input, token, sizeof token));
    }
    return b;
}

static void release(built *b) {
    remat_session_free(b->session);
    rm_model_free(&b->model);
}

/* The array of `from` with that name; zeros if there is none. */
static int64_t find(remat_session *from, const remat_array *array, remat_kind kind, float *data) {
    int64_t there = remat_find(from, kind, array->name);
    ck_assert_uint_le(array->bytes, MOST * sizeof *data);
    memset(data, 0, array->bytes);
    if (there >= 0) ck_ok(remat_read(from, kind, there, data, array->bytes));
    return there;
}

START_TEST(no_bias_equals_zero_bias) {
    static float with_data[MOST], without_data[MOST];
    built with = build(cells[_i], false), without = build(cells[_i], true);
    remat_array array;
    int biases = 0;
    for (int64_t i = 0; i < remat_count(with.session, REMAT_PARAM); i++) {
        ck_ok(remat_array_info(with.session, REMAT_PARAM, i, &array));
        bool there = find(without.session, &array, REMAT_PARAM, without_data) >= 0;
        ck_assert_msg(there != !!strstr(array.name, "bias"), "%s", array.name);
        biases += !there;
        ck_ok(remat_write(with.session, REMAT_PARAM, i, without_data, array.bytes));
    }
    ck_assert_int_eq(biases, 2 * 2 + 1);
    remat_step_result a, b;
    ck_ok(remat_gradients(with.session, &a));
    ck_ok(remat_gradients(without.session, &b));
    ck_assert_msg(fabs(a.loss - b.loss) <= 1e-6, "%.9g, not %.9g", b.loss, a.loss);
    for (int64_t i = 0; i < remat_count(without.session, REMAT_GRADIENT); i++) {
        ck_ok(remat_array_info(without.session, REMAT_GRADIENT, i, &array));
        ck_ok(remat_read(without.session, REMAT_GRADIENT, i, without_data, array.bytes));
        find(with.session, &array, REMAT_GRADIENT, with_data);
        for (uint64_t k = 0; k < array.bytes / sizeof(float); k++)
            ck_assert_msg(fabsf(with_data[k] - without_data[k]) <= 1e-6f, "%s[%d]: %.9g, not %.9g", array.name, (int)k,
                          without_data[k], with_data[k]);
    }
    release(&with);
    release(&without);
}
END_TEST

/* ---- Both directions -------------------------------------------------------------------------------------------- */

enum { F = 3, H = 5, CLASSES = 4 };

/* Samples of real features, (T,B,F), with one class each. */
static built build_classifier(const char *cell, int layers, bool bidirectional, bool backwards) {
    built b;
    rm_model_spec spec = {.name = cell, .layers = layers, .hidden = H, .bidirectional = bidirectional};
    spec.data = (rm_data_shape){.timesteps = T, .features = F, .classes = CLASSES};
    remat_config config = REMAT_CONFIG_INIT;
    config.threads = 1;
    config.tile = 5;
    config.outputs = &b.model.logits;
    config.n_outputs = 1;
    ck_ok(rm_model_build(&spec, B, false, &b.model));
    config.inference = true;
    ck_ok(remat_session_create(b.model.graph, REMAT_NONE, &config, &b.session));
    float x[T][B][F];
    for (int t = 0; t < T; t++)
        for (int i = 0; i < B * F; i++)
            (&x[0][0][0])[(backwards ? T - 1 - t : t) * B * F + i] = sinf((float)(t * 7 + i * 3));
    ck_ok(remat_write(b.session, REMAT_INPUT, 0, x, sizeof x));
    return b;
}

static void read_logits(built *b, float logits[B * CLASSES]) {
    remat_step_result r;
    ck_ok(remat_evaluate(b->session, &r));
    ck_ok(remat_read(b->session, REMAT_OUTPUT, 0, logits, B * CLASSES * sizeof *logits));
}

/* The parameters of one direction; of the head, its half of the columns. */
static void copy_direction(built *both, built *one, bool reverse) {
    static float data[MOST], half[MOST];
    remat_array array;
    char name[80];
    for (int64_t i = 0; i < remat_count(one->session, REMAT_PARAM); i++) {
        ck_ok(remat_array_info(one->session, REMAT_PARAM, i, &array));
        bool rnn = !strncmp(array.name, "rnn.", 4), head = !strcmp(array.name, "head.weight");
        snprintf(name, sizeof name, "%s%s", array.name, rnn && reverse ? "_reverse" : "");
        int64_t from = remat_find(both->session, REMAT_PARAM, name);
        ck_assert_msg(from >= 0, "there is no %s", name);
        ck_ok(remat_read(both->session, REMAT_PARAM, from, data, array.bytes * (head ? 2 : 1)));
        for (int k = 0; head && k < CLASSES * H; k++) half[k] = data[k / H * 2 * H + (reverse ? H : 0) + k % H];
        if (!strcmp(array.name, "head.bias") && reverse) memset(data, 0, array.bytes);
        ck_ok(remat_write(one->session, REMAT_PARAM, i, head ? half : data, array.bytes));
    }
}

/* The logits of the bidirectional model are the sum of those of one direction and those of the other on reversed
 * input. */
START_TEST(bidirectional_model_equals_two_models) {
    built both = build_classifier(cells[_i], 1, true, false), ahead = build_classifier(cells[_i], 1, false, false);
    built back = build_classifier(cells[_i], 1, false, true);
    float sum[B * CLASSES], one[B * CLASSES], other[B * CLASSES];
    copy_direction(&both, &ahead, false);
    copy_direction(&both, &back, true);
    read_logits(&both, sum);
    read_logits(&ahead, one);
    read_logits(&back, other);
    for (int i = 0; i < B * CLASSES; i++) {
        ck_assert_float_eq_tol(sum[i], one[i] + other[i], 1e-5f);
        ck_assert(fabsf(one[i]) > 1e-4f && fabsf(other[i]) > 1e-4f);
    }
    release(&both);
    release(&ahead);
    release(&back);
}
END_TEST

START_TEST(upper_layers_read_both_directions) {
    built b = build_classifier(cells[_i], 2, true, false);
    remat_array array;
    ck_ok(remat_array_info(b.session, REMAT_PARAM, remat_find(b.session, REMAT_PARAM, "rnn.weight_ih_l1_reverse"),
                           &array));
    ck_assert_int_eq(array.dim[1], 2 * H);
    ck_ok(remat_array_info(b.session, REMAT_PARAM, remat_find(b.session, REMAT_PARAM, "head.weight"), &array));
    ck_assert_int_eq(array.dim[1], 2 * H);
    release(&b);
}
END_TEST

/* Loss of a model before and after it has dropout in two more places: evaluations have none. */
static double evaluated_loss(const rm_model_spec *spec, double *trained) {
    rm_model model;
    remat_session *session;
    remat_step_result result;
    remat_config config = REMAT_CONFIG_INIT;
    int32_t token[T * B];
    config.threads = 1;
    ck_ok(rm_model_build(spec, B, true, &model));
    ck_ok(remat_session_create(model.graph, model.loss, &config, &session));
    for (int i = 0; i < T * B; i++) token[i] = i * 37 % 256;
    for (int input = 0; input < 2; input++) ck_ok(remat_write(session, REMAT_INPUT, input, token, sizeof token));
    ck_ok(remat_gradients(session, &result));
    *trained = result.loss;
    ck_ok(remat_evaluate(session, &result));
    remat_session_free(session);
    rm_model_free(&model);
    return result.loss;
}

START_TEST(dropout_of_ends_applies_in_training_only) {
    rm_model_spec spec = {.name = cells[_i], .layers = 1, .hidden = 8, .embed = 6, .data = rm_text_shape(T, 0)};
    double plain, in, out, loss = evaluated_loss(&spec, &plain);
    ck_assert(plain == loss);
    spec.dropout_in = 0.5;
    ck_assert(evaluated_loss(&spec, &in) == loss);
    spec.dropout_in = 0;
    spec.dropout_out = 0.5;
    ck_assert(evaluated_loss(&spec, &out) == loss);
    ck_assert(in != loss && out != loss && in != out);
}
END_TEST

/* word_language_model's init_weights. */
START_TEST(init_range_is_that_of_the_ends) {
    rm_model_spec spec = {
        .name = cells[_i], .layers = 1, .hidden = 8, .embed = 6, .init_range = 0.01, .data = rm_text_shape(T, 0)};
    static float data[MOST];
    rm_model model;
    remat_session *session;
    remat_array array;
    remat_config config = REMAT_CONFIG_INIT;
    ck_ok(rm_model_build(&spec, B, true, &model));
    ck_ok(remat_session_create(model.graph, model.loss, &config, &session));
    for (int64_t i = 0; i < remat_count(session, REMAT_PARAM); i++) {
        double most = 0, bound = 1 / sqrt(8);
        ck_ok(remat_array_info(session, REMAT_PARAM, i, &array));
        ck_ok(remat_read(session, REMAT_PARAM, i, data, array.bytes));
        for (uint64_t k = 0; k < array.bytes / sizeof(float); k++) most = fmax(most, fabs((double)data[k]));
        if (!strncmp(array.name, "rnn.", 4))
            ck_assert(most > 0.5 * bound && most <= bound);
        else if (!strcmp(array.name, "head.bias"))
            ck_assert(most == 0);
        else
            ck_assert(most > 0.009 && most <= 0.0100001);
    }
    remat_session_free(session);
    rm_model_free(&model);
}
END_TEST

/* transformers' widths for these: int((hidden * 2.667 + 63) // 64 * 64). */
START_TEST(xlstm_large_rounds_its_mlp_like_transformers) {
    static const int64_t widths[][2] = {{48, 128}, {49, 192}, {24, 64}, {32, 128}};
    rm_model_spec spec = {.name = "xlstm_large", .layers = 1, .heads = 1, .data = rm_text_shape(T, 0)};
    remat_config config = REMAT_CONFIG_INIT;
    remat_array array;
    built b;
    spec.hidden = spec.embed = widths[_i][0];
    config.plan_only = true;
    ck_ok(rm_model_build(&spec, B, true, &b.model));
    ck_ok(remat_session_create(b.model.graph, b.model.loss, &config, &b.session));
    int64_t at = remat_find(b.session, REMAT_PARAM, "backbone.blocks.0.ffn.proj_up.weight");
    ck_ok(remat_array_info(b.session, REMAT_PARAM, at, &array));
    ck_assert_int_eq(array.dim[0], widths[_i][1]);
    release(&b);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("model");
    tcase_add_loop_test(tests, xlstm_large_rounds_its_mlp_like_transformers, 0, 4);
    tcase_add_loop_test(tests, dropout_of_ends_applies_in_training_only, 0, sizeof cells / sizeof *cells);
    tcase_add_loop_test(tests, init_range_is_that_of_the_ends, 0, sizeof cells / sizeof *cells);
    tcase_add_loop_test(tests, no_bias_equals_zero_bias, 0, sizeof cells / sizeof *cells);
    tcase_add_loop_test(tests, bidirectional_model_equals_two_models, 0, sizeof cells / sizeof *cells);
    tcase_add_loop_test(tests, upper_layers_read_both_directions, 0, sizeof cells / sizeof *cells);
    return run_suite("model", tests);
}
