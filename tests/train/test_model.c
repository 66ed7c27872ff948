/* test_model.c: the networks that `remat` trains. Without biases they compute what they compute with biases of zero, and have
 * no arrays for them. */
#include "train/run/model.h"

#include "tests/train/train_test.h"

#include <math.h>

enum { T = 12, B = 2, MOST = 256 * 8 };
static const char *const cells[] = {"lstm", "gru", "rnn"};

typedef struct {
    rm_model model;
    remat_session *session;
} built;

static built build(const char *cell, bool no_bias) {
    built b;
    rm_model_spec spec = {
        .cell = cell, .layers = 2, .hidden = 8, .embed = 6, .no_bias = no_bias, .data = rm_text_shape(T)};
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

/* What `from` has by that name; zeros where it has none. */
static int64_t find(remat_session *from, const remat_array *array, remat_kind kind, float *data) {
    int64_t there = remat_find(from, kind, array->name);
    ck_assert_uint_le(array->bytes, MOST * sizeof *data);
    memset(data, 0, array->bytes);
    if (there >= 0) ck_ok(remat_read(from, kind, there, data, array->bytes));
    return there;
}

START_TEST(no_bias_is_a_bias_of_zero) {
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

int main(void) {
    TCase *tests = tcase_create("model");
    tcase_add_loop_test(tests, no_bias_is_a_bias_of_zero, 0, sizeof cells / sizeof *cells);
    return run_suite("model", tests);
}
