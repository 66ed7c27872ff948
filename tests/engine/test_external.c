/* test_external.c: inputs and outputs in the program's own memory (remat_config.external): the bits are the same, and
 * the arena is smaller by exactly their size. */
#include "engine/abi.h"
#include "tests/cases.h"
#include "tests/engine/random_net.h"
#include "tests/says.h"

enum { T = 29, B = 2, C = 5 };
typedef float sequence[T][B][C];

static remat_value describe(net *n, remat_value *x, remat_value *y) {
    const int64_t dim[] = {T, B, C};
    *n = (net){.width = C};
    ck_assert(!remat_graph_create(&n->graph));
    *x = remat_input(n->graph, "x", REMAT_F32, REMAT_SEQUENCE, 3, dim);
    remat_value back = remat_reverse(n->graph, *x),
                target = remat_input(n->graph, "target", REMAT_F32, REMAT_SEQUENCE, 3, dim);
    *y = remat_rnn_tanh(n->graph, remat_add(n->graph, back, remat_scale(n->graph, back, 0.5)), param(n, 2, C, C),
                        param(n, 2, C, C), REMAT_NONE, REMAT_NONE); /* a reversed output */
    return remat_mse(n->graph, remat_linear(n->graph, remat_reverse(n->graph, *y), param(n, 2, C, C), REMAT_NONE),
                     target);
}

static void fill(sequence x, int seed) {
    for (int i = 0; i < T * B * C; i++) (&x[0][0][0])[i] = (float)sin(seed + 3 * i);
}

typedef struct {
    sequence y, seen; /* after a step; after an evaluation of another x */
    float gradient[C * C];
    double loss;
    uint64_t bytes;
} outcome;

static remat_config configured(const remat_value *output) {
    remat_config config = REMAT_CONFIG_INIT;
    config.tile = 4;
    config.threads = 1;
    config.strategy = "sqrt";
    config.calibration = ""; /* programs are measured on external memory */
    config.outputs = output;
    config.n_outputs = 1;
    return config;
}

static void copied(outcome *o) {
    net n;
    sequence x;
    remat_session *s;
    remat_step_result r;
    remat_value in, out, loss = describe(&n, &in, &out);
    remat_config config = configured(&out);
    ck_assert_msg(!remat_session_create(n.graph, loss, &config, &s), "%s", remat_last_error());
    o->bytes = rm_plan_summary_of(s).planned_peak_bytes;
    fill(x, 2);
    ck_assert(!remat_write(s, REMAT_INPUT, 1, x, sizeof x));
    fill(x, 1);
    ck_assert(!remat_write(s, REMAT_INPUT, 0, x, sizeof x) && !remat_gradients(s, &r));
    o->loss = r.loss;
    ck_assert(!remat_read(s, REMAT_OUTPUT, 0, o->y, sizeof o->y));
    ck_assert(!remat_read(s, REMAT_GRADIENT, 0, o->gradient, sizeof o->gradient));
    fill(x, 5);
    ck_assert(!remat_write(s, REMAT_INPUT, 0, x, sizeof x) && !remat_evaluate(s, NULL));
    ck_assert(!remat_read(s, REMAT_OUTPUT, 0, o->seen, sizeof o->seen));
    remat_session_free(s);
    remat_graph_free(n.graph);
}

static void lent(outcome *o) {
    net n;
    static sequence x, other, read;
    remat_session *s;
    remat_step_result r;
    remat_value in, out, loss = describe(&n, &in, &out);
    remat_config config = configured(&out);
    config.external = (remat_external[]){{out, o->y}, {in, x}};
    config.n_external = 2;
    ck_assert_msg(!remat_session_create(n.graph, loss, &config, &s), "%s", remat_last_error());
    o->bytes = rm_plan_summary_of(s).planned_peak_bytes;
    fill(read, 2);
    ck_assert(!remat_write(s, REMAT_INPUT, 1, read, sizeof read));
    fill(x, 1);
    ck_assert(!remat_gradients(s, &r));
    o->loss = r.loss;
    ck_assert_uint_eq(r.arena_peak_bytes, o->bytes);
    ck_assert(!remat_read(s, REMAT_OUTPUT, 0, read, sizeof read) && !memcmp(read, o->y, sizeof read));
    ck_assert(!remat_read(s, REMAT_GRADIENT, 0, o->gradient, sizeof o->gradient));
    fill(other, 5);
    ck_assert(!remat_forward(s));
    ck_assert(!remat_set_external(s, REMAT_INPUT, 0, other) && !remat_set_external(s, REMAT_OUTPUT, 0, o->seen));
    ck_assert_int_eq(remat_backward(s, NULL), REMAT_INVALID); /* the inputs changed after the forward pass */
    ck_assert(!remat_evaluate(s, NULL));
    ck_assert_int_eq(remat_set_external(s, REMAT_INPUT, 1, other), REMAT_INVALID);
    ck_says_all(remat_last_error(), "target|arena");
    remat_session_free(s);
    remat_graph_free(n.graph);
}

START_TEST(external_memory_has_the_same_bits_in_a_smaller_arena) {
    static outcome a, b;
    copied(&a), lent(&b);
    ck_assert(a.loss == b.loss);
    ck_assert(!memcmp(a.gradient, b.gradient, sizeof a.gradient));
    ck_assert(!memcmp(a.y, b.y, sizeof a.y) && !memcmp(a.seen, b.seen, sizeof a.seen));
    ck_assert_uint_eq(a.bytes - b.bytes, 2 * ((sizeof(sequence) + 63) / 64 * 64));
}
END_TEST

/* A session that only plans allocates memory while it measures. */
START_TEST(plan_only_needs_no_external_memory) {
    net n;
    remat_session *s;
    remat_value in, out, loss = describe(&n, &in, &out);
    remat_config config = configured(&out);
    config.external = (remat_external[]){{out, NULL}, {in, NULL}};
    config.n_external = 2;
    config.plan_only = true;
    ck_assert_msg(!remat_session_create(n.graph, loss, &config, &s), "%s", remat_last_error());
    remat_session_free(s);
    remat_graph_free(n.graph);
}
END_TEST

START_TEST(invalid_external_memory_is_refused) {
    static const char *const words[] = {"f32|input|output", "not a value", "memory|NULL",
                                        "external[0]|external[1]|value|once", "external|NULL"};
    static sequence memory;
    net n;
    remat_session *s;
    remat_value in, out, loss = describe(&n, &in, &out);
    remat_config config = configured(&out);
    remat_external lent[] = {{in, memory},
                             {_i == 0   ? loss
                              : _i == 1 ? (remat_value){1000}
                              : _i == 3 ? in
                                        : out,
                              memory}};
    if (_i == 2) lent[1].memory = NULL;
    config.external = _i == 4 ? NULL : lent;
    config.n_external = 2;
    ck_assert_int_eq(remat_session_create(n.graph, loss, &config, &s), REMAT_INVALID);
    ck_says_all(remat_last_error(), words[_i]);
    config.device = "null"; /* which does not read data */
    if (_i == 2) ck_assert(!remat_session_create(n.graph, loss, &config, &s)), remat_session_free(s);
    remat_graph_free(n.graph);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("external");
    TCase *tests = tcase_create("external");
    tcase_add_test(tests, external_memory_has_the_same_bits_in_a_smaller_arena);
    tcase_add_test(tests, plan_only_needs_no_external_memory);
    tcase_add_loop_test(tests, invalid_external_memory_is_refused, 0, 5);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
