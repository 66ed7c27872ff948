/* test_weighted_loss.c: weighted cross-entropy (remat_softmax_cross_entropy_weighted). The divisor covers all
 * timesteps, for every tile and plan, and is known before the first tile; ignored targets do not count. Comparisons
 * with PyTorch: tests/ops/test_losses.c. */
#include <string.h>

#include "engine/abi.h"
#include "tests/net.h"
#include "tests/says.h"
#include "tests/suite.h"

enum { T = 13, B = 3, V = 7, H = 6, IGNORED = -100 };
static const net lstm = {.layers = 1, .vocabulary = V, .embed = 4, .hidden = H, .timesteps = T, .batch = B};
static const float class_weight[V] = {0.5f, 1, 2, 0.25f, 3, 1, 0.75f};

typedef enum { PLAIN, IGNORING, WEIGHTED, BY_PARAMETER, SMOOTHED, KINDS } kind;

static remat_value weights_of(remat_graph *g, kind k) {
    int64_t shape[] = {V};
    if (k == BY_PARAMETER) return remat_param(g, "class_weights", 1, shape, remat_init_constant(1.5));
    return k == WEIGHTED || k == SMOOTHED ? remat_input(g, "class_weights", REMAT_F32, REMAT_STATIC, 1, shape)
                                          : REMAT_NONE;
}

typedef struct {
    remat_graph *graph;
    remat_value logits, loss;
} described;

static described describe(kind k) {
    described d;
    CHECKED(remat_graph_create(&d.graph));
    remat_graph *g = d.graph;
    int64_t shape[] = {T, B};
    remat_value tokens = remat_input(g, "tokens", REMAT_I32, REMAT_SEQUENCE, 2, shape);
    remat_value targets = remat_input(g, "targets", REMAT_I32, REMAT_SEQUENCE, 2, shape);
    remat_value table = remat_param(g, "embedding.weight", 2, (int64_t[]){V, 4}, remat_init_normal(1));
    remat_value h = net_layer(g, &lstm, 0, remat_embedding(g, tokens, table));
    d.logits = remat_linear(g, h, net_param(g, "head.", "weight", -1, 2, V, H, 1), REMAT_NONE);
    d.loss = k == PLAIN ? remat_softmax_cross_entropy(g, d.logits, targets)
                        : remat_softmax_cross_entropy_weighted(g, d.logits, targets, weights_of(g, k), IGNORED,
                                                               k == SMOOTHED ? 0.1 : 0);
    CHECKED(remat_graph_check(g));
    return d;
}

static remat_session *session_of(kind k, remat_config config) {
    remat_session *s;
    described d = describe(k);
    config.threads = 1;
    config.outputs = &d.logits;
    config.n_outputs = 1;
    CHECKED(remat_session_create(d.graph, d.loss, &config, &s));
    remat_graph_free(d.graph);
    if (k == WEIGHTED || k == SMOOTHED) CHECKED(remat_write(s, REMAT_INPUT, 2, class_weight, sizeof class_weight));
    return s;
}

/* Every third target of the second half is ignored, so the number of counting targets differs between tiles. */
static void feed(remat_session *s, int32_t target[T * B], bool ignoring) {
    net_feed(s, &lstm, 3);
    CHECKED(remat_read(s, REMAT_INPUT, 1, target, T * B * sizeof *target));
    for (int i = T * B / 2; ignoring && i < T * B; i += 3) target[i] = IGNORED;
    CHECKED(remat_write(s, REMAT_INPUT, 1, target, T * B * sizeof *target));
}

static double row_loss(const float *x, int32_t target) {
    double sum = 0;
    for (int v = 0; v < V; v++) sum += exp((double)x[v]);
    return log(sum) - x[target];
}

/* PyTorch's definition, computed from the logits. */
static double loss_by_definition(remat_session *s, const int32_t *target, const float *weight) {
    static float logits[T * B][V];
    double sum = 0, total = 0;
    CHECKED(remat_read(s, REMAT_OUTPUT, 0, logits, sizeof logits));
    for (int r = 0; r < T * B; r++) {
        if (target[r] == IGNORED) continue;
        double w = weight ? weight[target[r]] : 1;
        sum += w * row_loss(logits[r], target[r]);
        total += w;
    }
    return sum / total;
}

START_TEST(loss_is_the_weighted_mean_over_all_tiles) {
    for (kind k = IGNORING; k <= WEIGHTED; k++) {
        int32_t target[T * B];
        remat_step_result r, evaluated;
        remat_config config = REMAT_CONFIG_INIT;
        config.tile = _i;
        remat_session *s = session_of(k, config);
        feed(s, target, true);
        CHECKED(remat_gradients(s, &r));
        CHECKED(remat_evaluate(s, &evaluated));
        double expected = loss_by_definition(s, target, k == WEIGHTED ? class_weight : NULL);
        ck_assert_msg(fabs(r.loss - expected) <= 4e-7 * expected, "%.9g, not %.9g", r.loss, expected);
        ck_assert(evaluated.loss == r.loss);
        ck_assert_uint_eq(r.arena_peak_bytes, rm_plan_summary_of(s).planned_peak_bytes);
        remat_session_free(s);
    }
}
END_TEST

static unsigned char *gradients(kind k, remat_config config, double *loss, size_t *bytes) {
    int32_t target[T * B];
    remat_step_result r;
    remat_session *s = session_of(k, config);
    feed(s, target, k != PLAIN);
    CHECKED(remat_gradients(s, &r));
    *loss = r.loss;
    unsigned char *all = net_read_all(s, REMAT_GRADIENT, bytes);
    remat_session_free(s);
    return all;
}

START_TEST(weighted_losses_have_the_same_bits_in_every_plan) {
    static const struct {
        const char *strategy;
        int64_t segments;
    } plans[] = {{"none", 0}, {"segments", 2}, {"segments", 5}, {"sqrt", 0}, {"lean", 0}, {"optimal", 0}};
    double loss, first_loss;
    size_t bytes;
    remat_config config = REMAT_CONFIG_INIT;
    config.tile = 2;
    unsigned char *first = gradients(_i, config, &first_loss, &bytes);
    for (size_t p = 1; p < sizeof plans / sizeof *plans; p++) {
        config.strategy = plans[p].strategy;
        config.segments = plans[p].segments;
        config.verify_recompute = true;
        config.calibration = p + 1 == sizeof plans / sizeof *plans ? "" : NULL; /* the last one measures */
        unsigned char *other = gradients(_i, config, &loss, &bytes);
        ck_assert_msg(loss == first_loss && !memcmp(first, other, bytes), "%s", plans[p].strategy);
        free(other);
    }
    free(first);
}
END_TEST

/* If every target has weight 1, both losses are equal, with the same number of stages. */
START_TEST(equal_weights_give_the_unweighted_loss) {
    int32_t target[T * B];
    remat_step_result a, b;
    remat_config config = REMAT_CONFIG_INIT;
    config.tile = 4;
    remat_session *plain = session_of(PLAIN, config), *s = session_of(IGNORING, config);
    feed(plain, target, false);
    feed(s, target, false);
    CHECKED(remat_gradients(plain, &a));
    CHECKED(remat_gradients(s, &b));
    size_t bytes;
    unsigned char *x = net_read_all(plain, REMAT_GRADIENT, &bytes), *y = net_read_all(s, REMAT_GRADIENT, &bytes);
    ck_assert(a.loss == b.loss && !memcmp(x, y, bytes));
    ck_assert_int_eq(rm_plan_summary_of(plain).n_stages, rm_plan_summary_of(s).n_stages);
    ck_assert_uint_eq(rm_plan_summary_of(plain).activations_peak_bytes, rm_plan_summary_of(s).activations_peak_bytes);
    free(x), free(y);
    remat_session_free(plain);
    remat_session_free(s);
}
END_TEST

/* The same loss without gradients, with the same weights. */
START_TEST(inference_uses_the_weights) {
    int32_t target[T * B];
    remat_step_result a, b;
    remat_config config = REMAT_CONFIG_INIT;
    config.tile = 4;
    remat_session *s = session_of(WEIGHTED, config);
    config.inference = true;
    remat_session *other = session_of(WEIGHTED, config);
    feed(s, target, true);
    feed(other, target, true);
    CHECKED(remat_evaluate(s, &a));
    CHECKED(remat_evaluate(other, &b));
    ck_assert_msg(a.loss == b.loss, "%.9g, %.9g", a.loss, b.loss);
    remat_session_free(s);
    remat_session_free(other);
}
END_TEST

START_TEST(if_no_target_counts_the_loss_is_0) {
    int32_t target[T * B];
    remat_step_result r;
    size_t bytes;
    remat_session *s = session_of(WEIGHTED, REMAT_CONFIG_INIT);
    feed(s, target, true);
    for (int i = 0; i < T * B; i++) target[i] = IGNORED;
    CHECKED(remat_write(s, REMAT_INPUT, 1, target, sizeof target));
    CHECKED(remat_gradients(s, &r));
    ck_assert(r.loss == 0 && r.grad_norm == 0);
    free(net_read_all(s, REMAT_GRADIENT, &bytes));
    remat_session_free(s);
}
END_TEST

/* A weight's gradient has two parts: the losses of its rows, and the sum of weights. */
START_TEST(trained_class_weights_have_gradients) {
    int32_t target[T * B];
    float weight[V], gradient[V];
    remat_step_result r;
    remat_config config = REMAT_CONFIG_INIT;
    config.tile = 4;
    remat_session *s = session_of(BY_PARAMETER, config);
    int64_t at = remat_find(s, REMAT_PARAM, "class_weights");
    CHECKED(remat_write(s, REMAT_PARAM, at, class_weight, sizeof class_weight));
    feed(s, target, true);
    CHECKED(remat_gradients(s, &r));
    CHECKED(remat_read(s, REMAT_GRADIENT, at, gradient, sizeof gradient));
    for (int v = 0; v < V; v++) {
        double moved[2];
        for (int side = 0; side < 2; side++) {
            memcpy(weight, class_weight, sizeof weight);
            weight[v] += side ? 1e-3f : -1e-3f;
            moved[side] = loss_by_definition(s, target, weight);
        }
        double slope = (moved[1] - moved[0]) / 2e-3;
        ck_assert_msg(fabs(gradient[v] - slope) <= 1e-4, "class %d: %g, not %g", v, (double)gradient[v], slope);
    }
    remat_session_free(s);
}
END_TEST

/* Only the ignored index is accepted, and only if every layer that reads the input ignores it. */
START_TEST(ignored_targets_may_be_written) {
    int32_t target[T * B] = {0};
    remat_session *s = session_of(IGNORING, REMAT_CONFIG_INIT);
    target[5] = IGNORED;
    CHECKED(remat_write(s, REMAT_INPUT, 1, target, sizeof target));
    ck_assert_int_eq(remat_write(s, REMAT_INPUT, 0, target, sizeof target), REMAT_INVALID);
    target[5] = -1;
    ck_assert_int_eq(remat_write(s, REMAT_INPUT, 1, target, sizeof target), REMAT_INVALID);
    ck_says_all(remat_last_error(), "element 5|-1|0|6");
    target[5] = V;
    ck_assert_int_eq(remat_write(s, REMAT_INPUT, 1, target, sizeof target), REMAT_INVALID);
    remat_session_free(s);
}
END_TEST

/* An embedding reads the targets, too, and has no row -100. */
START_TEST(ignored_targets_are_refused_if_another_layer_reads_them) {
    remat_graph *g;
    remat_session *s;
    int32_t token[T * B] = {0};
    CHECKED(remat_graph_create(&g));
    remat_value tokens = remat_input(g, "tokens", REMAT_I32, REMAT_SEQUENCE, 2, (int64_t[]){T, B});
    remat_value table = remat_param(g, "table", 2, (int64_t[]){V, V}, remat_init_normal(1));
    remat_value loss =
        remat_softmax_cross_entropy_weighted(g, remat_embedding(g, tokens, table), tokens, REMAT_NONE, IGNORED, 0);
    remat_config config = REMAT_CONFIG_INIT;
    CHECKED(remat_session_create(g, loss, &config, &s));
    CHECKED(remat_write(s, REMAT_INPUT, 0, token, sizeof token));
    token[0] = IGNORED;
    ck_assert_int_eq(remat_write(s, REMAT_INPUT, 0, token, sizeof token), REMAT_INVALID);
    remat_session_free(s);
    remat_graph_free(g);
}
END_TEST

/* A classifier's loss: targets without a time axis. */
START_TEST(loss_of_the_last_step_is_weighted) {
    remat_graph *g;
    remat_session *s;
    remat_step_result r;
    CHECKED(remat_graph_create(&g));
    remat_value x = remat_input(g, "x", REMAT_F32, REMAT_SEQUENCE, 3, (int64_t[]){T, 4, V});
    remat_value targets = remat_input(g, "targets", REMAT_I32, REMAT_STATIC, 1, (int64_t[]){4});
    remat_value w = remat_param(g, "w", 2, (int64_t[]){V, V}, remat_init_normal(1));
    remat_value logits = remat_last_step(g, remat_linear(g, x, w, REMAT_NONE));
    remat_value loss = remat_softmax_cross_entropy_weighted(g, logits, targets, REMAT_NONE, 3, 0.1);
    remat_config config = REMAT_CONFIG_INIT;
    config.tile = 3;
    CHECKED(remat_session_create(g, loss, &config, &s));
    static float zeros[T * 4 * V];
    CHECKED(remat_write(s, REMAT_INPUT, 0, zeros, sizeof zeros));
    CHECKED(remat_write(s, REMAT_INPUT, 1, (int32_t[]){1, 3, 0, 3}, 16));
    CHECKED(remat_gradients(s, &r));
    ck_assert_msg(fabs(r.loss - log((double)V)) < 1e-6, "%g", r.loss);
    remat_session_free(s);
    remat_graph_free(g);
}
END_TEST

static void refused(double smoothing, bool weights, const char *part) {
    remat_graph *g;
    CHECKED(remat_graph_create(&g));
    remat_value x = remat_input(g, "x", REMAT_F32, REMAT_SEQUENCE, 3, (int64_t[]){T, B, V});
    remat_value targets = remat_input(g, "targets", REMAT_I32, REMAT_SEQUENCE, 2, (int64_t[]){T, B});
    remat_value w = weights ? remat_input(g, "w", REMAT_F32, REMAT_STATIC, 1, (int64_t[]){V - 1}) : REMAT_NONE;
    ck_assert_int_eq(remat_softmax_cross_entropy_weighted(g, x, targets, w, IGNORED, smoothing).id, 0);
    ck_assert_int_eq(remat_graph_check(g), REMAT_INVALID);
    ck_says_all(remat_last_error(), part);
    remat_graph_free(g);
}
START_TEST(invalid_weighted_losses_are_refused) {
    refused(0, true, "class_weights|f32 (6)");
    refused(2, false, "label smoothing|2");
}
END_TEST

START_TEST(invalid_value_handles_are_refused) {
    remat_graph *g;
    ck_assert(!remat_graph_create(&g));
    remat_value targets = remat_input(g, "targets", REMAT_I32, REMAT_SEQUENCE, 2, (int64_t[]){3, 2});
    remat_softmax_cross_entropy_weighted(g, (remat_value){_i ? 1 << 28 : -1}, targets, REMAT_NONE, -100, 0);
    ck_assert_int_eq(remat_graph_check(g), REMAT_INVALID);
    ck_says_all(remat_last_error(), "value|graph");
    remat_graph_free(g);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("weighted loss");
    tcase_add_loop_test(tests, loss_is_the_weighted_mean_over_all_tiles, 1, T + 1);
    tcase_add_loop_test(tests, weighted_losses_have_the_same_bits_in_every_plan, IGNORING, KINDS);
    tcase_add_test(tests, equal_weights_give_the_unweighted_loss);
    tcase_add_test(tests, inference_uses_the_weights);
    tcase_add_test(tests, if_no_target_counts_the_loss_is_0);
    tcase_add_test(tests, trained_class_weights_have_gradients);
    tcase_add_test(tests, ignored_targets_may_be_written);
    tcase_add_test(tests, ignored_targets_are_refused_if_another_layer_reads_them);
    tcase_add_test(tests, loss_of_the_last_step_is_weighted);
    tcase_add_test(tests, invalid_weighted_losses_are_refused);
    tcase_add_loop_test(tests, invalid_value_handles_are_refused, 0, 2);
    return run_cases("weighted loss", tests);
}
