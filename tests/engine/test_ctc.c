/* test_ctc.c: remat_ctc. It matches PyTorch and the explicit sum over all paths; every plan has the same bits and the
 * planned bytes; labels that do not fit are tested too. */
#include <math.h>
#include <string.h>

#include "engine/abi.h"
#include "tests/cases.h"
#include "tests/golden/golden.h"
#include "tests/net.h"
#include "tests/says.h"
#include "tests/suite.h"

/* The loss and its gradient with respect to the logits, which are an input. */
typedef struct {
    int steps, batch, classes, labels, blank;
    bool zero_infinity;
    const float *logits;
    const int32_t *target, *input_length, *target_length; /* the last two may be NULL */
} problem;

static remat_value lengths(remat_graph *g, const char *name, const int32_t *length, int64_t batch) {
    return length ? remat_input(g, name, REMAT_I32, REMAT_STATIC, 1, &batch) : REMAT_NONE;
}

static void feed(remat_session *s, const char *name, const void *data, size_t count) {
    if (data) CHECKED(remat_write(s, REMAT_INPUT, remat_find(s, REMAT_INPUT, name), data, 4 * count));
}

static double solve(const problem *p, int64_t tile, float *gradient) {
    remat_graph *g;
    remat_session *s;
    remat_step_result r, evaluated;
    CHECKED(remat_graph_create(&g));
    size_t batch = (size_t)p->batch, count = (size_t)(p->steps * p->classes) * batch;
    remat_value logits = remat_requires_grad(
        g, remat_input(g, "logits", REMAT_F32, REMAT_SEQUENCE, 3, (int64_t[]){p->steps, p->batch, p->classes}));
    remat_value targets = remat_input(g, "targets", REMAT_I32, REMAT_STATIC, 2, (int64_t[]){p->batch, p->labels});
    remat_value loss = remat_ctc(g, logits, targets, lengths(g, "input_lengths", p->input_length, p->batch),
                                 lengths(g, "target_lengths", p->target_length, p->batch), p->blank, p->zero_infinity);
    remat_config config = REMAT_CONFIG_INIT;
    config.threads = 1, config.tile = tile, config.strategy = "segments", config.segments = 2;
    CHECKED(remat_session_create(g, loss, &config, &s));
    feed(s, "logits", p->logits, count);
    feed(s, "targets", p->target, batch * (size_t)p->labels);
    feed(s, "input_lengths", p->input_length, batch);
    feed(s, "target_lengths", p->target_length, batch);
    CHECKED(remat_gradients(s, &r));
    CHECKED(remat_evaluate(s, &evaluated));
    CHECKED(remat_read(s, REMAT_GRADIENT, remat_find(s, REMAT_GRADIENT, "logits"), gradient, 4 * count));
    ck_assert(evaluated.loss == r.loss);
    ck_assert_uint_eq(r.arena_peak_bytes, rm_plan_summary_of(s).planned_peak_bytes);
    remat_session_free(s);
    remat_graph_free(g);
    return r.loss;
}

/* ---- PyTorch ----------------------------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    int blank;
    bool zero_infinity;
    double tolerance; /* of the gradient, at most about 1/B; alpha is a float log probability with rounding errors */
} goldens[] = {{"short", 0, true, 1e-7}, {"certain", 4, false, 1e-6}, {"long", 0, false, 1e-6}};

START_TEST(loss_and_gradient_match_pytorch) {
    golden *g = golden_open("ctc");
    const char *name = goldens[_i].name;
    const golden_array *logits = golden_find(g, name, "logits"), *target = golden_find(g, name, "targets");
    const golden_array *mean = golden_find(g, name, "mean"), *slope = golden_find(g, name, "gradient");
    problem p = {.steps = (int)logits->dim[0],
                 .batch = (int)logits->dim[1],
                 .classes = (int)logits->dim[2],
                 .labels = (int)target->dim[1],
                 .blank = goldens[_i].blank,
                 .zero_infinity = goldens[_i].zero_infinity,
                 .logits = logits->data,
                 .target = target->data,
                 .input_length = golden_find(g, name, "input_lengths")->data};
    float *gradient = malloc(sizeof *gradient * (size_t)logits->count);
    for (int way = 0; way < 6; way++) {
        p.target_length = way % 2 ? golden_find(g, name, "target_lengths")->data : NULL; /* NULL: up to the first -1 */
        double loss = solve(&p, (int64_t[]){1, 4, p.steps}[way / 2], gradient), expected = *(const double *)mean->data;
        ck_assert_msg(fabs(loss - expected) <= 3e-7 * expected, "%s: %.9g, not %.9g", name, loss, expected);
        for (int64_t i = 0; i < logits->count; i++) {
            double off = fabs(gradient[i] - ((const double *)slope->data)[i]);
            ck_assert_msg(off <= goldens[_i].tolerance, "%s: gradient %lld is off by %g", name, (long long)i, off);
        }
    }
    free(gradient);
    golden_close(g);
}
END_TEST

/* ---- Explicit sum over all paths -------------------------------------------------------------------------------- */

/* Does a path collapse to the labels? */
static bool reads(const int *path, int steps, int blank, const int32_t *target, int labels) {
    int k = 0;
    for (int t = 0; t < steps; t++) {
        if (path[t] == blank || (t && path[t] == path[t - 1])) continue;
        if (k == labels || target[k++] != path[t]) return false;
    }
    return k == labels;
}

enum { V = 3, MOST = 6 };

static uint64_t draw(uint64_t *seed, uint64_t n) {
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (*seed >> 33) % n;
}

/* The probability of all paths that give the sample's labels, and the part of it in class v at timestep t. */
static double enumerate(const double p[MOST][V], int steps, int blank, const int32_t *target, int labels,
                        double part[MOST][V]) {
    int path[MOST], paths = 1;
    double all = 0;
    memset(part, 0, sizeof(double[MOST][V]));
    for (int t = 0; t < steps; t++) paths *= V;
    for (int number = 0; number < paths; number++) {
        double likely = 1;
        for (int t = 0, rest = number; t < steps; t++, rest /= V) likely *= p[t][path[t] = rest % V];
        if (!reads(path, steps, blank, target, labels)) continue;
        all += likely;
        for (int t = 0; t < steps; t++) part[t][path[t]] += likely;
    }
    return all;
}

static void softmax(const float *x, double *p) {
    double sum = 0;
    for (int v = 0; v < V; v++) sum += p[v] = exp((double)x[v]);
    for (int v = 0; v < V; v++) p[v] /= sum;
}

START_TEST(loss_is_the_sum_over_all_paths) {
    enum { B = 4, S = 3 };
    uint64_t seed = 1000 + (uint64_t)_i;
    float logits[MOST * B * V], gradient[MOST * B * V];
    int32_t target[B * S], input_length[B], target_length[B];
    problem p = {.steps = 1 + (int)draw(&seed, MOST),
                 .batch = B,
                 .classes = V,
                 .labels = S,
                 .blank = (int)draw(&seed, V),
                 .zero_infinity = true,
                 .logits = logits,
                 .target = target,
                 .input_length = input_length,
                 .target_length = target_length};
    for (int i = 0; i < p.steps * B * V; i++) logits[i] = (float)draw(&seed, 4001) / 1000 - 2;
    for (int i = 0; i < B * S; i++) target[i] = (int32_t)((p.blank + 1 + (int)draw(&seed, V - 1)) % V);
    for (int b = 0; b < B; b++) input_length[b] = (int32_t)draw(&seed, (uint64_t)p.steps + 1);
    for (int b = 0; b < B; b++) target_length[b] = (int32_t)draw(&seed, S + 1);
    double loss = solve(&p, 1 + (int64_t)draw(&seed, MOST), gradient), expected = 0;
    for (int b = 0; b < B; b++) {
        double likely[MOST][V], part[MOST][V], labels = target_length[b] ? target_length[b] : 1;
        for (int t = 0; t < p.steps; t++) softmax(logits + (t * B + b) * V, likely[t]);
        double all = enumerate(likely, input_length[b], p.blank, target + b * S, target_length[b], part);
        expected -= all > 0 ? log(all) / labels / B : 0;
        for (int t = 0; t < p.steps; t++)
            for (int v = 0; v < V; v++) {
                double slope = all > 0 && t < input_length[b] ? (likely[t][v] - part[t][v] / all) / labels / B : 0;
                ck_assert_msg(fabs(gradient[(t * B + b) * V + v] - slope) <= 2e-7, "case %d, sample %d, timestep %d",
                              _i, b, t);
            }
    }
    ck_assert_msg(fabs(loss - expected) <= 1e-6 * (1 + expected), "case %d: %.9g, not %.9g", _i, loss, expected);
}
END_TEST

/* ---- Under a plan ----------------------------------------------------------------------------------------------- */

enum { T = 13, B = 3, H = 6, CLASSES = 5, S = 4 };
static const net lstm = {.layers = 1, .vocabulary = CLASSES, .embed = 4, .hidden = H, .timesteps = T, .batch = B};
static const int32_t labels[B * S] = {1, 2, 2, -1, 4, 4, 4, 1, 3, -1, -1, -1};

/* LSTMs, optionally bidirectional, a head, and ctc. */
static remat_session *session_of(bool both, remat_config config) {
    remat_graph *g;
    remat_session *s;
    CHECKED(remat_graph_create(&g));
    remat_value tokens = remat_input(g, "tokens", REMAT_I32, REMAT_SEQUENCE, 2, (int64_t[]){T, B});
    remat_value x = remat_embedding(
        g, tokens, remat_param(g, "embedding.weight", 2, (int64_t[]){CLASSES, 4}, remat_init_normal(1)));
    remat_value h = net_layer(g, &lstm, 0, x);
    if (both) {
        remat_value back = remat_lstm(g, remat_reverse(g, x), net_param(g, "back.", "w_ih", -1, 2, 4 * H, 4, 0.5),
                                      net_param(g, "back.", "w_hh", -1, 2, 4 * H, H, 0.5), REMAT_NONE, REMAT_NONE);
        h = remat_concat(g, (remat_value[]){h, remat_reverse(g, back)}, 2);
    }
    remat_value w = net_param(g, "head.", "weight", -1, 2, CLASSES, both ? 2 * H : H, 1);
    remat_value target = remat_input(g, "labels", REMAT_I32, REMAT_STATIC, 2, (int64_t[]){B, S});
    remat_value loss = remat_ctc(g, remat_linear(g, h, w, REMAT_NONE), target, REMAT_NONE, REMAT_NONE, 0, false);
    CHECKED(remat_graph_check(g));
    CHECKED(remat_session_create(g, loss, &config, &s));
    remat_graph_free(g);
    int32_t token[T * B];
    for (int i = 0; i < T * B; i++) token[i] = i * i % CLASSES;
    CHECKED(remat_write(s, REMAT_INPUT, 0, token, sizeof token));
    CHECKED(remat_write(s, REMAT_INPUT, 1, labels, sizeof labels));
    return s;
}

static unsigned char *gradients(bool both, remat_config config, double *loss, size_t *bytes) {
    remat_step_result r;
    remat_session *s = session_of(both, config);
    CHECKED(remat_gradients(s, &r));
    ck_assert_uint_eq(r.arena_peak_bytes, rm_plan_summary_of(s).planned_peak_bytes);
    *loss = r.loss;
    unsigned char *all = net_read_all(s, REMAT_GRADIENT, bytes);
    remat_session_free(s);
    return all;
}

START_TEST(ctc_has_the_same_bits_in_every_plan) {
    static const struct {
        const char *strategy;
        int64_t segments;
    } plans[] = {{"none", 0}, {"segments", 2}, {"segments", 5}, {"sqrt", 0}, {"lean", 0}, {"optimal", 0}};
    double loss, first_loss;
    size_t bytes;
    remat_config config = REMAT_CONFIG_INIT;
    config.tile = 2, config.threads = 2;
    unsigned char *first = gradients(_i, config, &first_loss, &bytes);
    ck_assert(first_loss > 0.1 && first_loss < 100);
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

/* ---- Bad input -------------------------------------------------------------------------------------------------- */

START_TEST(labels_too_long_for_the_input_have_an_infinite_loss) {
    float logits[3 * 2] = {0}, gradient[3 * 2];
    int32_t target[2] = {1, 1}; /* two equal labels need three timesteps */
    problem p = {.steps = 3, .batch = 1, .classes = 2, .labels = 2, .logits = logits, .target = target};
    ck_assert(fabs(solve(&p, 1, gradient) - 3 * log(2) / 2) < 1e-6);
    p.steps = 2;
    ck_assert(solve(&p, 1, gradient) == INFINITY && isnan(gradient[0]));
    p.zero_infinity = true;
    ck_assert(solve(&p, 1, gradient) == 0 && gradient[0] == 0);
}
END_TEST

static const struct {
    int64_t batch, lengths, blank;
    const char *says;
} mistakes[] = {{2, 3, 0, "ctc|f32 (5,3,4)|i32 (2,2)|(B,S)"},
                {3, 2, 0, "ctc|input_lengths|i32 (2)|3"},
                {3, 3, 4, "ctc|blank|4|classes"}};

START_TEST(invalid_ctc_arguments_are_refused) {
    remat_graph *g;
    CHECKED(remat_graph_create(&g));
    remat_value logits = remat_input(g, "logits", REMAT_F32, REMAT_SEQUENCE, 3, (int64_t[]){5, 3, 4});
    remat_value targets = remat_input(g, "t", REMAT_I32, REMAT_STATIC, 2, (int64_t[]){mistakes[_i].batch, 2});
    remat_value length = remat_input(g, "l", REMAT_I32, REMAT_STATIC, 1, &mistakes[_i].lengths);
    ck_assert_int_eq(remat_ctc(g, logits, targets, length, REMAT_NONE, mistakes[_i].blank, false).id, 0);
    ck_says_all(remat_last_error(), mistakes[_i].says);
    remat_graph_free(g);
}
END_TEST

/* -1 ends a row of labels; other values out of range are refused. */
START_TEST(minus_one_pads_labels) {
    int32_t target[B * S] = {1, -1};
    remat_session *s = session_of(false, REMAT_CONFIG_INIT);
    CHECKED(remat_write(s, REMAT_INPUT, 1, target, sizeof target));
    target[3] = -2;
    ck_assert_int_eq(remat_write(s, REMAT_INPUT, 1, target, sizeof target), REMAT_INVALID);
    target[3] = CLASSES;
    ck_assert_int_eq(remat_write(s, REMAT_INPUT, 1, target, sizeof target), REMAT_INVALID);
    remat_session_free(s);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("ctc");
    tcase_add_loop_test(tests, loss_and_gradient_match_pytorch, 0, 3);
    tcase_add_loop_test(tests, loss_is_the_sum_over_all_paths, 0, rm_cases(2000, 60));
    tcase_add_loop_test(tests, ctc_has_the_same_bits_in_every_plan, 0, 2);
    tcase_add_test(tests, labels_too_long_for_the_input_have_an_infinite_loss);
    tcase_add_loop_test(tests, invalid_ctc_arguments_are_refused, 0, 3);
    tcase_add_test(tests, minus_one_pads_labels);
    return run_cases("ctc", tests);
}
