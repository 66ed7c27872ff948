/* test_forward_backward.c: remat_forward and remat_backward: the order of calls, and what is refused. test_outside.c
 * tests the results. */
#include "tests/engine/callers_loss.h"
#include "tests/suite.h"

/* ---- A network, and a loss of the caller ------------------------------------------------------------------------ */

static void expect_invalid(remat_status status, const char *sentence) {
    ck_assert_int_eq(status, REMAT_INVALID);
    ck_says_all(remat_last_error(), sentence);
}

static void write_constant(remat_session *s, float value) {
    float gradient[T * B * V];
    for (int i = 0; i < T * B * V; i++) gradient[i] = value;
    CHECKED(remat_write(s, REMAT_OUTPUT_GRADIENT, 0, gradient, sizeof gradient));
}

/* ---- Cost ------------------------------------------------------------------------------------------------------- */

START_TEST(trace_covers_forward_and_backward) {
    tagger t = build(0, false);
    remat_config config = configured();
    config.strategy = "sqrt";
    remat_session *s = open_session(&t, config);
    remat_step_result r;
    remat_live_point *planned, *traced;
    int64_t n_planned, n_traced;
    feed(s, 0);
    CHECKED(remat_trace_next(s));
    CHECKED(own_gradients(s, 0, &r));
    CHECKED(remat_plan_timeline(s, &planned, &n_planned));
    CHECKED(remat_traced_timeline(s, &traced, &n_traced));
    ck_assert_int_eq(n_traced, n_planned);
    for (int64_t i = 0; i < n_traced; i++)
        ck_assert_msg(!memcmp(traced[i].bytes, planned[i].bytes, sizeof planned->bytes), "step %ld", (long)i);
    remat_text_free((char *)planned);
    remat_text_free((char *)traced);
    close_session(&t, s);
}
END_TEST

/* A pass that has started is not "the next one", and half a pass has no timeline. */
START_TEST(half_a_trace_is_refused) {
    tagger t = build(0, false);
    remat_session *s = open_session(&t, configured());
    remat_step_result r;
    remat_live_point *traced;
    int64_t n;
    feed(s, 0);
    expect_invalid(remat_traced_timeline(s, &traced, &n), "remat_trace_next|remat_forward|remat_backward");
    CHECKED(remat_forward(s));
    CHECKED(remat_trace_next(s));
    write_constant(s, 1);
    CHECKED(remat_backward(s, &r));
    expect_invalid(remat_traced_timeline(s, &traced, &n), "remat_trace_next");
    CHECKED(remat_forward(s));
    expect_invalid(remat_traced_timeline(s, &traced, &n), "remat_backward");
    CHECKED(remat_evaluate(s, &r)); /* abandons the pass; the next one is traced instead */
    expect_invalid(remat_traced_timeline(s, &traced, &n), "remat_forward|remat_backward");
    CHECKED(own_gradients(s, 0, &r));
    CHECKED(remat_traced_timeline(s, &traced, &n));
    remat_text_free((char *)traced);
    close_session(&t, s);
}
END_TEST

/* ---- The order of calls ---------------------------------------------------------------------------------------- */

START_TEST(calls_in_the_wrong_order_are_refused) {
    static float logits[T * B * V];
    tagger t = build(0, false);
    remat_session *s = open_session(&t, configured());
    expect_invalid(remat_forward(s), "input x|written");
    feed(s, 0);
    expect_invalid(remat_read(s, REMAT_OUTPUT, 0, logits, sizeof logits), "output|yet");
    expect_invalid(remat_backward(s, NULL), "forward pass|remat_forward");
    expect_invalid(remat_gradients(s, NULL), "outputs|gradients");
    expect_invalid(remat_step(s, 0.1, NULL), "outputs|gradients");
    write_constant(s, 1); /* before remat_forward: too early */
    CHECKED(remat_forward(s));
    CHECKED(remat_read(s, REMAT_OUTPUT, 0, logits, sizeof logits));
    expect_invalid(remat_update(s, 0.1, NULL), "remat_forward|remat_backward|remat_update");
    expect_invalid(remat_backward(s, NULL), "gradient|output 0|remat_forward");
    write_constant(s, 1);
    CHECKED(remat_backward(s, NULL));
    expect_invalid(remat_backward(s, NULL), "forward pass");
    CHECKED(remat_forward(s));
    expect_invalid(remat_backward(s, NULL), "written"); /* the last pass consumed its gradient */
    CHECKED(remat_update(s, 0.1, NULL));                /* the gradients of the pass before are there */
    close_session(&t, s);
}
END_TEST

/* Unwritten parts of a gradient are zero, whatever the last pass left there. */
START_TEST(unwritten_parts_of_a_gradient_are_zero) {
    tagger t = build(0, false);
    trace got[2] = {{.n = 0}, {.n = 0}};
    for (int i = 0; i < 2; i++) {
        float gradient[T * B * V] = {[B * V] = 1, [B * V + 1] = -2, [T * B * V - 1] = 3};
        remat_config config = configured();
        config.strategy = "sqrt";
        remat_session *s = open_session(&t, config);
        feed(s, 0);
        CHECKED(remat_forward(s));
        write_constant(s, 5);
        CHECKED(remat_backward(s, NULL));
        CHECKED(remat_forward(s));
        if (i) {
            CHECKED(remat_write_part(s, REMAT_OUTPUT_GRADIENT, 0, sizeof gradient - 4, &gradient[T * B * V - 1], 4));
            CHECKED(remat_write_part(s, REMAT_OUTPUT_GRADIENT, 0, B * V * 4, &gradient[B * V], 8));
        } else {
            CHECKED(remat_write(s, REMAT_OUTPUT_GRADIENT, 0, gradient, sizeof gradient));
        }
        CHECKED(remat_backward(s, NULL));
        read_all(s, REMAT_GRADIENT, &got[i]);
        remat_session_free(s);
    }
    ck_assert_msg(!memcmp(got[0].bits, got[1].bits, got[0].n), "unwritten parts are not zero");
    remat_graph_free(t.graph);
}
END_TEST

static void evaluate_between(remat_session *s) { CHECKED(remat_evaluate(s, NULL)); }

static void feed_between(remat_session *s) { feed(s, 1); }

static void count_between(remat_session *s) { remat_set_step_count(s, 7); }

static void update_between(remat_session *s) { CHECKED(remat_update(s, 0.1, NULL)); }

static void write_between(remat_session *s, remat_kind kind) {
    float data[T * B * V] = {0};
    remat_array info;
    CHECKED(remat_array_info(s, kind, 0, &info));
    CHECKED(remat_write(s, kind, 0, data, info.bytes));
}

static void parameter_between(remat_session *s) { write_between(s, REMAT_PARAM); }

static void view_between(remat_session *s) {
    void *memory;
    CHECKED(remat_array_memory(s, REMAT_PARAM, 0, &memory));
    *(float *)memory += 1;
}

static void output_between(remat_session *s) { write_between(s, REMAT_OUTPUT); }

static void state_between(remat_session *s) { write_between(s, REMAT_CARRIED); }

START_TEST(other_passes_abandon_the_forward_pass) {
    static void (*const between[])(remat_session *) = {evaluate_between,  feed_between, count_between,  update_between,
                                                       parameter_between, view_between, output_between, state_between};
    tagger t = build(0, false);
    remat_config config = configured();
    config.stateful = true;
    remat_session *s = open_session(&t, config);
    remat_step_result r;
    feed(s, 0);
    for (size_t i = 0; i < sizeof between / sizeof *between; i++) {
        CHECKED(own_gradients(s, 0, &r));
        CHECKED(remat_forward(s));
        write_constant(s, 1);
        between[i](s);
        expect_invalid(remat_backward(s, NULL), "forward pass");
    }
    close_session(&t, s);
}
END_TEST

/* A second remat_forward replaces the first. Older gradients may be read and written in between. */
START_TEST(second_forward_replaces_the_first) {
    tagger t = build(0, false);
    remat_step_result r;
    trace got[2] = {{.n = 0}, {.n = 0}};
    for (int i = 0; i < 2; i++) {
        remat_config config = configured();
        config.stateful = true;
        config.strategy = "sqrt";
        remat_session *s = open_session(&t, config);
        feed(s, 5);
        if (i) CHECKED(remat_forward(s));
        feed(s, 0);
        if (i) CHECKED(remat_forward(s));
        CHECKED(own_gradients(s, 0, &r));
        feed(s, 1);
        CHECKED(remat_forward(s));
        write_constant(s, 0.01f);
        if (i) write_between(s, REMAT_GRADIENT);
        if (i) write_between(s, REMAT_OPTIMIZER);
        if (i) CHECKED(remat_read(s, REMAT_GRADIENT, 0, (float[4 * H * C]){0}, sizeof(float) * 4 * H * C));
        CHECKED(remat_backward(s, &r));
        read_all(s, REMAT_GRADIENT, &got[i]);
        read_all(s, REMAT_CARRIED, &got[i]);
        remat_session_free(s);
    }
    ck_assert_msg(!memcmp(got[0].bits, got[1].bits, got[0].n), "the first forward pass has an effect");
    remat_graph_free(t.graph);
}
END_TEST

/* If no output is differentiated, the two calls equal remat_gradients. */
START_TEST(forward_and_backward_equal_gradients) {
    tagger t = build(0, true);
    remat_step_result whole, halves;
    trace a = {.n = 0}, b = {.n = 0};
    remat_session *s = open_session(&t, configured());
    feed(s, 0);
    CHECKED(remat_gradients(s, &whole));
    read_all(s, REMAT_GRADIENT, &a);
    CHECKED(remat_forward(s));
    CHECKED(remat_backward(s, &halves));
    read_all(s, REMAT_GRADIENT, &b);
    ck_assert(whole.loss == halves.loss && whole.loss > 0 && whole.grad_norm == halves.grad_norm);
    ck_assert(!memcmp(a.bits, b.bits, a.n));
    close_session(&t, s);
}
END_TEST

START_TEST(sessions_that_do_not_train_are_refused) {
    tagger t = build(0, false);
    remat_config config = configured();
    config.plan_only = true;
    remat_session *s = open_session(&t, config);
    expect_invalid(remat_forward(s), "plan");
    expect_invalid(remat_backward(s, NULL), "plan");
    remat_session_free(s);
    config = configured();
    config.inference = true;
    s = open_session(&t, config);
    expect_invalid(remat_forward(s), "inference");
    ck_assert_int_eq(remat_count(s, REMAT_GRADIENT) + remat_count(s, REMAT_OUTPUT_GRADIENT), 0);
    close_session(&t, s);
}
END_TEST

/* ---- Refusals --------------------------------------------------------------------------------------------------- */

static void expect_refused(const tagger *t, remat_value loss, const remat_value *outputs, int n, int n_differentiated,
                           const char *sentence) {
    remat_session *s;
    remat_config config = configured();
    config.outputs = outputs;
    config.n_outputs = n;
    config.n_differentiated = n_differentiated;
    expect_invalid(remat_session_create(t->graph, loss, &config, &s), sentence);
}

START_TEST(invalid_differentiated_outputs_are_refused) {
    tagger t = build(0, true);
    remat_graph *g = t.graph;
    remat_value data = remat_input(g, "data", REMAT_F32, REMAT_SEQUENCE, 3, (int64_t[]){T, B, C});
    remat_value table = remat_tanh(g, matrix(g, "w3", C, C)), of_data = remat_tanh(g, data);
    remat_value outputs[] = {t.logits,
                             t.logits,
                             of_data,
                             t.loss,
                             remat_scale(g, t.loss, 2),
                             table,
                             remat_linear(g, data, table, REMAT_NONE)};
    expect_refused(&t, t.logits, NULL, 0, 0, "scalar|outputs");
    expect_refused(&t, REMAT_NONE, outputs, 1, 0, "loss|outputs|differentiate");
    expect_refused(&t, REMAT_NONE, outputs, 1, 2, "n_differentiated|2|n_outputs|1");
    expect_refused(&t, REMAT_NONE, outputs, 1, -1, "n_differentiated|-1");
    expect_refused(&t, REMAT_NONE, outputs, 2, 2, "0|1|value|once");
    expect_refused(&t, t.loss, outputs + 2, 1, 1, "parameter|input|gradient");
    expect_refused(&t, t.loss, outputs + 3, 1, 1, "output 0|loss");
    expect_refused(&t, t.loss, outputs + 4, 1, 1, "loss");
    expect_refused(&t, REMAT_NONE, outputs + 5, 2, 1, "weight");
    remat_graph_free(g);
}
END_TEST

static void expect_mistake(remat_graph *g, remat_value value, const char *sentence) {
    ck_assert_int_eq(value.id, 0);
    expect_invalid(remat_graph_check(g), sentence);
    remat_graph_free(g);
}

START_TEST(requires_grad_is_refused_for_other_values) {
    tagger t = build(0, false);
    expect_mistake(t.graph, remat_requires_grad(t.graph, t.logits), "requires_grad|input");
    t = build(0, false);
    expect_mistake(t.graph, remat_requires_grad(t.graph, (remat_value){99}), "value|graph");
    t = build(0, true);
    remat_value tokens = remat_input(t.graph, "tokens", REMAT_I32, REMAT_SEQUENCE, 2, (int64_t[]){T, B});
    expect_mistake(t.graph, remat_requires_grad(t.graph, tokens), "tokens|f32");
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("forward_backward");
    tcase_set_timeout(tests, 300);
    tcase_add_test(tests, trace_covers_forward_and_backward);
    tcase_add_test(tests, half_a_trace_is_refused);
    tcase_add_test(tests, calls_in_the_wrong_order_are_refused);
    tcase_add_test(tests, unwritten_parts_of_a_gradient_are_zero);
    tcase_add_test(tests, other_passes_abandon_the_forward_pass);
    tcase_add_test(tests, second_forward_replaces_the_first);
    tcase_add_test(tests, forward_and_backward_equal_gradients);
    tcase_add_test(tests, sessions_that_do_not_train_are_refused);
    tcase_add_test(tests, invalid_differentiated_outputs_are_refused);
    tcase_add_test(tests, requires_grad_is_refused_for_other_values);
    return run_cases("forward_backward", tests);
}
