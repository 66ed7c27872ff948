/* test_once.c: once results of an op along time, one per tile. Each is computed once per step, before the first run
 * that reads it, under every plan and at every place in the network; all runs of its tile read it. */
#include "engine/remat_op.h"
#include "tests/cases.h"
#include "tests/engine/random_net.h"
#include "tests/suite.h"

enum { T = 11, TILE = 3, TILES = 4, B = 2, C = 3 };

/* y = x (t0 + 1), where t0 + 1 is the tile's once result; in an evaluation it is 1. The op tells the other ranks how
 * many timesteps it has seen. */
static int n_made, n_told;

static remat_status infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    (void)attr, (void)state;
    *y = x[0];
    return REMAT_OK;
}
static void cost(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass, remat_cost *out) {
    (void)y, (void)attr, (void)pass;
    *out = (remat_cost){.flops = 1, .moved_bytes = (double)remat_desc_bytes(&x[0])};
}
static uint64_t once_bytes(const remat_desc *x, const void *attr) {
    (void)attr;
    return (uint64_t)x[0].dim[0] * sizeof(double);
}
static bool talks(const void *attr) { return (void)attr, true; }

static void once(const remat_call *call) {
    double *of = call->once;
    n_made++;
    for (int64_t t = 0; t < call->x[0].desc.dim[0]; t++) of[t] = call->training ? (double)call->t0 + 1 : 1;
    remat_sum_over_ranks(call, of, call->x[0].desc.dim[0]);
}
static void multiply(const remat_call *call, const float *from, float *to) {
    const double *of = call->once;
    int64_t n = remat_desc_count(&call->y.desc), row = n / call->y.desc.dim[0];
    for (int64_t i = 0; to && i < n; i++) to[i] = from[i] * (float)of[i / row];
}
static void forward(const remat_call *call) { multiply(call, call->x[0].data, call->y.data); }
static void backward(const remat_call *call) { multiply(call, call->dy.data, call->dx[0].data); }

static const remat_op numbered = {.struct_bytes = sizeof(remat_op),
                                  .name = "numbered",
                                  .n_in = 1,
                                  .time = REMAT_TIME_POINTWISE,
                                  .infer = infer,
                                  .cost = cost,
                                  .once_bytes = once_bytes,
                                  .collective = talks,
                                  .on = {{.forward = forward, .backward = backward, .once = once}}};

typedef enum { ON_THE_SPINE, LEAF, HANDED_OUT, PLACES } place;

static remat_value apply(net *n, remat_value x) {
    remat_value y;
    remat_apply(n->graph, &numbered, &x, 1, NULL, &y);
    return y;
}

static remat_value layer(net *n, remat_value x) {
    return remat_rnn_tanh(n->graph, x, param(n, 2, C, C), param(n, 2, C, C), REMAT_NONE, REMAT_NONE);
}

/* The output depends on the op's result, which the backward run then recomputes. */
static void describe(net *n, place where, remat_value *loss, remat_value *output) {
    *n = (net){.width = C};
    ck_assert(!remat_graph_create(&n->graph));
    const int64_t dim[] = {T, B, C};
    remat_value x = remat_input(n->graph, "x", REMAT_F32, REMAT_SEQUENCE, 3, dim), y = layer(n, x);
    remat_value t = remat_input(n->graph, "t", REMAT_F32, REMAT_SEQUENCE, 3, dim);
    *output = y = apply(n, y);
    if (where == ON_THE_SPINE) y = layer(n, y);
    if (where == HANDED_OUT) *output = remat_mul(n->graph, y, y);
    *loss = where == HANDED_OUT ? REMAT_NONE : remat_mse(n->graph, y, t);
    ck_assert_msg(!remat_graph_check(n->graph), "%s", remat_last_error());
}

static remat_session *open_session(const net *n, place where, remat_value loss, remat_value *output, char *steps) {
    remat_config config = REMAT_CONFIG_INIT;
    remat_session *s;
    config.threads = 1;
    config.tile = TILE;
    config.outputs = output;
    config.n_outputs = 1;
    config.n_differentiated = where == HANDED_OUT;
    config.plan_steps = steps;
    ck_assert_msg(!remat_session_create(n->graph, loss, &config, &s), "%s", remat_last_error());
    fill_inputs(s, 3);
    return s;
}

static void step(remat_session *s, place where, float *gradient, float y[T][B][C]) {
    const float dy[T][B][C] = {{{1, 2, 3}}, {{-1, 0, 1}}, {{0.5f}}};
    n_made = 0;
    if (where == HANDED_OUT) {
        ck_assert(!remat_forward(s));
        ck_assert_int_eq(n_made, TILES);
        ck_assert(!remat_write(s, REMAT_OUTPUT_GRADIENT, 0, dy, sizeof dy) && !remat_backward(s, NULL));
    } else {
        ck_assert(!remat_gradients(s, NULL));
    }
    ck_assert_int_eq(n_made, TILES);
    ck_assert(!remat_read(s, REMAT_GRADIENT, 0, gradient, C * C * sizeof *gradient));
    ck_assert(!remat_read(s, REMAT_OUTPUT, 0, y, sizeof(float) * T * B * C));
}

START_TEST(once_results_are_computed_once) {
    net n;
    float first[C * C], y[T][B][C], other[C * C], its_y[T][B][C], evaluated[T][B][C];
    remat_value loss, output;
    describe(&n, (place)_i, &loss, &output);
    remat_session *s = open_session(&n, (place)_i, loss, &output, NULL), *again;
    step(s, (place)_i, first, y);
    n_made = 0;
    ck_assert(!remat_evaluate(s, NULL) && n_made == TILES);
    ck_assert(!remat_read(s, REMAT_OUTPUT, 0, evaluated, sizeof evaluated));
    for (int t = 0; t < T; t++)
        for (int c = 0; c < C; c++) {
            float factor = (float)(t / TILE * TILE + 1);
            ck_assert_float_eq_tol(y[t][0][c], evaluated[t][0][c] * factor * (_i == HANDED_OUT ? factor : 1), 1e-5f);
        }
    for (int i = 0; i < rm_cases(200, 40); i++) {
        rng_state = (uint64_t)i;
        char *steps = random_plan(s);
        again = open_session(&n, (place)_i, loss, &output, steps);
        step(again, (place)_i, other, its_y);
        ck_assert_msg(!memcmp(first, other, sizeof first) && !memcmp(y, its_y, sizeof y), "different bits: %s", steps);
        remat_session_free(again);
        free(steps);
    }
    remat_session_free(s);
    remat_graph_free(n.graph);
}
END_TEST

static remat_status count(void *context, double *values, int64_t n) {
    (void)context, (void)values;
    n_told += (int)n;
    return REMAT_OK;
}
static remat_status no_bucket(void *context, const remat_bucket *bucket) {
    return (void)context, (void)bucket, REMAT_OK;
}

/* Only training steps call the other ranks; evaluations do not, so each rank may evaluate at any time. */
START_TEST(evaluations_call_no_collectives) {
    net n;
    remat_value loss, output;
    remat_session *s;
    remat_ranks ranks = {.struct_bytes = sizeof ranks, .size = 2, .sum = count, .reduce = no_bucket, .wait = no_bucket};
    remat_config config = REMAT_CONFIG_INIT;
    describe(&n, ON_THE_SPINE, &loss, &output);
    config.tile = TILE;
    config.ranks = &ranks;
    ck_assert(!remat_session_create(n.graph, loss, &config, &s));
    fill_inputs(s, 3);
    ck_assert(!remat_evaluate(s, NULL));
    ck_assert_int_eq(n_told, 0);
    ck_assert(!remat_forward(s));
    ck_assert_int_eq(n_told, T);
    remat_session_free(s);
    remat_graph_free(n.graph);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("once");
    tcase_add_loop_test(tests, once_results_are_computed_once, 0, PLACES);
    tcase_add_test(tests, evaluations_call_no_collectives);
    return run_cases("once", tests);
}
