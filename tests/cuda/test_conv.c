/* test_conv.c: convolutions through cuDNN (engine/cuda/conv.c) on the emulated device (device.h), with a fake cuDNN
 * that computes them in plain loops and checks descriptors, algorithms, work spaces and order
 * (tests/engine/fake_cuda/fake_conv.c). Results are compared with the CPU's; every plan has the same bits; memory is
 * planned; without cuDNN, and for shapes that it refuses, products take over. Neither a GPU nor the real cuDNN is
 * used. */
#include "engine/abi.h"
#include "tests/cases.h"
#include "tests/says.h"

#if defined HAVE_CUDA_HEADERS && __has_include(<cudnn.h>)

#include <inttypes.h>
#include <math.h>

#include "engine/rng.h"
#include "tests/cuda/device.h"

/* PASSES: of the four layers that cuDNN computes; the first has no gradient of x, and the fifth is refused. */
enum { STEPS = 3, NUMBERS = 2, PASSES = 4 + 3 + 4, GROUPED_PASSES = 3 };
#define CHECKED(call) ck_assert_msg((call) == REMAT_OK, "%s: %s", #call, remat_last_error())

typedef struct {
    bool timed; /* a sequence of images */
} model;

typedef struct {
    const char *device, *precision, *strategy;
    int64_t segments;
    uint64_t budget;
    bool verify;
} way;

typedef struct {
    double number[STEPS][NUMBERS]; /* loss and norm */
    float *parameters;
    size_t bytes;
    remat_plan_summary plan;
    int64_t convolutions; /* calls of cuDNN */
} outcome;

static remat_value param(remat_graph *g, const char *name, int rank, const int64_t *dim) {
    return remat_param(g, name, rank, dim, remat_init_uniform(0.4));
}

/* A filter of (outputs,channels,h,w) and a bias; conv and conv_transpose share the first. */
static remat_value filter(remat_graph *g, const char *name, int64_t o, int64_t c, int64_t h, int64_t w) {
    return param(g, name, 4, (int64_t[]){o, c, h, w});
}

/* Padding, strides, dilations, groups, 1x1, a transposed convolution with output padding, and one whose output padding
 * is more than its stride, which cuDNN refuses. */
static remat_value build(remat_graph *g, const model *m) {
    static const int64_t one[] = {1, 1}, two[] = {2, 2}, uneven[] = {1, 2};
    const int64_t image[] = {5, 2, 4, 7, 6}, result[] = {5, 2, 2, 10, 8};
    const int skip = m->timed ? 0 : 1;
    remat_axis axis = m->timed ? REMAT_SEQUENCE : REMAT_STATIC;
    remat_value none = {0};
    remat_value x = remat_input(g, "x", REMAT_F32, axis, 5 - skip, image + skip);
    remat_value target = remat_input(g, "target", REMAT_F32, axis, 5 - skip, result + skip);
    remat_value y =
        remat_conv2d(g, x, filter(g, "w1", 6, 4, 3, 3), param(g, "b1", 1, (int64_t[]){6}), NULL, one, NULL, 1);
    y = remat_relu(g, y);
    y = remat_conv2d(g, y, filter(g, "w2", 4, 3, 3, 2), none, uneven, one, two, 2);
    y = remat_tanh(
        g, remat_conv2d(g, y, filter(g, "w3", 5, 4, 1, 1), param(g, "b3", 1, (int64_t[]){5}), NULL, NULL, NULL, 1));
    y = remat_conv_transpose2d(g, y, filter(g, "w4", 5, 3, 2, 3), param(g, "b4", 1, (int64_t[]){3}), two, one,
                               (int64_t[]){1, 0}, 1, NULL);
    y = remat_conv_transpose2d(g, remat_tanh(g, y), filter(g, "w5", 3, 2, 1, 2), none, NULL, NULL, one, 1, two);
    return remat_mse(g, y, target);
}

static remat_status feed(remat_session *s, int step) {
    remat_status status = REMAT_OK;
    for (int64_t input = 0; input < 2 && !status; input++) {
        remat_array info;
        CHECKED(remat_array_info(s, REMAT_INPUT, input, &info));
        float *data = malloc(info.bytes);
        for (uint64_t i = 0; i < info.bytes / sizeof *data; i++)
            data[i] = (float)((uint32_t)rm_random(17, step, (int)input, 0, (int64_t)i) % 1001) / 500 - 1;
        status = remat_write(s, REMAT_INPUT, input, data, info.bytes);
        free(data);
    }
    return status;
}

static remat_status take_steps(remat_session *s, outcome *o) {
    int64_t allocations = 0;
    for (int step = 0; step < STEPS; step++) {
        remat_step_result r;
        remat_status status = feed(s, step);
        if (!status) status = remat_step(s, 0.1, &r);
        if (status) return status;
        memcpy(o->number[step], (double[]){r.loss, r.grad_norm}, sizeof o->number[step]);
        if (step == 0) allocations = fake_cuda_allocations();
        ck_assert_int_eq(fake_cuda_allocations(), allocations);
    }
    for (int64_t i = 0; i < remat_count(s, REMAT_PARAM); i++) {
        remat_array info;
        CHECKED(remat_array_info(s, REMAT_PARAM, i, &info));
        o->parameters = realloc(o->parameters, o->bytes + info.bytes);
        remat_status status = remat_read(s, REMAT_PARAM, i, (char *)o->parameters + o->bytes, info.bytes);
        if (status) return status;
        o->bytes += info.bytes;
    }
    return REMAT_OK;
}

static remat_status run(const model *m, const way *w, outcome *o) {
    remat_config config = REMAT_CONFIG_INIT;
    remat_graph *g;
    remat_session *s;
    memset(o, 0, sizeof *o);
    config.device = w->device;
    config.precision = w->precision;
    config.strategy = w->strategy;
    config.segments = w->segments;
    config.memory_budget = w->budget;
    config.verify_recompute = w->verify;
    config.tile = 2; /* the last one is short */
    config.threads = 1;
    config.seed = 5;
    config.optimizer = "sgd";
    config.momentum = 0.9;
    config.clip_grad_norm = 0.5;
    CHECKED(remat_graph_create(&g));
    remat_value loss = build(g, m);
    CHECKED(remat_graph_check(g));
    remat_status status = remat_session_create(g, loss, &config, &s);
    if (!status) {
        CHECKED(remat_session_plan(s, &o->plan));
        status = take_steps(s, o);
        remat_session_free(s);
    }
    remat_graph_free(g);
    o->convolutions = fake_conv_counted();
    return status;
}

static void reset(int order) {
    unsetenv("REMAT_CUDA_CUDNN");
    emulated_device_reset((uint64_t)order);
    rm_emulate_in((rm_emulated_order)(order % RM_ORDERS));
}

/* After a reset. */
static outcome run_on(const model *m, const way *w) {
    outcome o;
    ck_assert_msg(!run(m, w, &o), "%s: %s", w->strategy, remat_last_error());
    ck_assert_msg(!fake_cuda_violation(), "%s: %s", w->strategy, fake_cuda_violation());
    ck_assert_int_eq(fake_cuda_live(), 0);
    return o;
}

static outcome run_well(const model *m, const way *w, int order) {
    reset(order);
    return run_on(m, w);
}

static bool same(const outcome *a, const outcome *b) {
    return !memcmp(a->number, b->number, sizeof a->number) && a->bytes && a->bytes == b->bytes &&
           !memcmp(a->parameters, b->parameters, a->bytes);
}

/* The largest difference of a parameter. */
static double apart(const outcome *a, const outcome *b) {
    double most = 0;
    ck_assert_uint_eq(a->bytes, b->bytes);
    for (size_t i = 0; i < a->bytes / sizeof *a->parameters; i++)
        most = fmax(most, fabs((double)a->parameters[i] - (double)b->parameters[i]));
    return most;
}

/* ---- Results ---------------------------------------------------------------------------------------------------- */

START_TEST(cudnn_convolutions_have_the_same_bits_in_every_plan) {
    static const char *const precisions[] = {"fp32", "tf32", "bf16"};
    static const struct { double least, most; } off[] = {{0, 2e-6}, {1e-6, 2e-3}, {1e-5, 2e-2}}; /* from the CPU's */
    model m = {.timed = _i % 2};
    const char *precision = precisions[_i / 2];
    const way ways[] = {{"cuda", precision, "none", 0, 0, false},
                        {"cuda", precision, "segments", 2, 0, true},
                        {"cuda", precision, "sqrt", 0, 0, false},
                        {"cuda", precision, "segments", 3, 0, false}};
    outcome first = {.bytes = 0};
    for (int i = 0; i < (int)(sizeof ways / sizeof *ways); i++) {
        outcome o = run_well(&m, &ways[i], i);
        ck_assert_int_ge(o.convolutions, STEPS * PASSES * (m.timed ? 3 : 1)); /* three tiles */
        if (!i) ck_assert_int_eq(o.convolutions, STEPS * PASSES * (m.timed ? 3 : 1));
        if (i) ck_assert_msg(same(&first, &o), "%s has other bits", ways[i].strategy);
        if (i)
            free(o.parameters);
        else
            first = o;
    }
    outcome cpu;
    ck_assert_msg(!run(&m, &(way){"cpu", "fp32", "none", 0, 0, false}, &cpu), "%s", remat_last_error());
    double is = apart(&cpu, &first);
    ck_assert_msg(is >= off[_i / 2].least && is <= off[_i / 2].most, "%s: parameters are off by %g", precision, is);
    free(cpu.parameters), free(first.parameters);
}
END_TEST

/* ---- Without cuDNN, and for some shapes ---------------------------------------------------------------------------- */

START_TEST(products_take_over_without_cudnn) {
    model m = {.timed = _i % 2};
    way w = {"cuda", "fp32", "none", 0, 0, false};
    outcome with = run_well(&m, &w, 0);
    reset(0);
    setenv("REMAT_CUDA_CUDNN", "OFF", 1);
    outcome without = run_on(&m, &w);
    ck_assert_int_eq(without.convolutions, 0);
    ck_assert_msg(apart(&with, &without) <= 2e-6, "off by %g", apart(&with, &without));
    ck_assert_uint_gt(with.plan.budgeted_bytes - with.plan.planned_peak_bytes, /* cuDNN's own memory is counted */
                      without.plan.budgeted_bytes - without.plan.planned_peak_bytes);
    free(with.parameters), free(without.parameters);
}
END_TEST

START_TEST(missing_library_is_no_error) {
    model m = {.timed = false};
    reset(0);
    setenv("REMAT_CUDNN_LIBRARY", "/nowhere", 1);
    outcome o = run_on(&m, &(way){"cuda", "fp32", "none", 0, 0, false});
    ck_assert_int_eq(o.convolutions, 0);
    free(o.parameters);
}
END_TEST

START_TEST(refused_shapes_use_products) {
    model m = {.timed = false};
    way w = {"cuda", "fp32", "none", 0, 0, false};
    outcome with = run_well(&m, &w, 0);
    reset(0);
    fake_conv_refuses_groups();
    outcome fewer = run_on(&m, &w);
    ck_assert_int_eq(fewer.convolutions, STEPS * (PASSES - GROUPED_PASSES));
    reset(0);
    fake_conv_wants((int64_t)65 << 20); /* more than any of them may use */
    outcome none = run_on(&m, &w);
    ck_assert_int_eq(none.convolutions, 0);
    ck_assert_msg(apart(&with, &fewer) <= 2e-6 && apart(&with, &none) <= 2e-6, "off by %g and %g", apart(&with, &fewer),
                  apart(&with, &none));
    free(with.parameters), free(fewer.parameters), free(none.parameters);
}
END_TEST

/* ---- Plans ------------------------------------------------------------------------------------------------------ */

/* A text about the plan of such a session. The caller frees it. */
static char *text_of(const model *m, char *(*write)(const remat_session *)) {
    remat_config config = REMAT_CONFIG_INIT;
    remat_graph *g;
    remat_session *s;
    config.device = "cuda", config.plan_only = true, config.tile = m->timed ? 2 : 0;
    CHECKED(remat_graph_create(&g));
    CHECKED(remat_session_create(g, build(g, m), &config, &s));
    char *text = write(s);
    remat_session_free(s);
    remat_graph_free(g);
    ck_assert_ptr_nonnull(text);
    return text;
}

static void expect_text(const model *m, const char *says) {
    char *text = text_of(m, remat_plan_describe);
    ck_says_all(text, says);
    free(text);
}

START_TEST(plan_names_the_algorithms) {
    const model m = {.timed = _i};
    reset(0);
    expect_text(&m, "4 convolutions by cuDNN: FWD IMPLICIT_PRECOMP_GEMM, BWD_DATA ALGO_1, BWD_FILTER ALGO_1; work space "
                    "up to |: w1 .. w4\n|  1 convolution by matrix products; work space up to |: w5\n");
    fake_conv_refuses_groups();
    expect_text(&m, "3 convolutions by cuDNN: FWD |  2 convolutions by matrix products; work space up to |: w2 .. w5\n");
    setenv("REMAT_CUDA_CUDNN", "OFF", 1);
    expect_text(&m, "  5 convolutions by matrix products; work space up to |: w1 .. w5\n");
    reset(0);
}
END_TEST

/* An object for each convolution, in the order of the network. */
START_TEST(plan_as_json_names_each_algorithm) {
    const model m = {.timed = _i};
    reset(0);
    fake_conv_wants(4096);
    char *text = text_of(&m, remat_plan_convolutions_json), *at = text;
    ck_assert(!strncmp(text, "[\n", 2) && !strcmp(text + strlen(text) - 4, "}\n]\n"));
    for (int i = 1; i <= 5; i++) {
        char want[160];
        snprintf(want, sizeof want, "{\"layer\": \"w%d\", \"by\": \"%s\", \"work_bytes\": ", i,
                 i < 5 ? "cuDNN: FWD IMPLICIT_PRECOMP_GEMM, BWD_DATA ALGO_1, BWD_FILTER ALGO_1" : "matrix products");
        ck_assert_msg((at = strstr(at, want)), "no %s in %s", want, text);
        const long long work = atoll(at + strlen(want));
        ck_assert_msg(work > (i < 5 ? 4096 : 0), "w%d: %lld bytes", i, work);
    }
    ck_assert_ptr_null(strstr(at + 3, "layer"));
    free(text);
    reset(0);
}
END_TEST

START_TEST(work_spaces_are_planned) {
    model m = {.timed = _i % 2};
    way w = {"cuda", _i / 2 ? "bf16" : "fp32", "none", 0, 0, false};
    outcome little = run_well(&m, &w, 0);
    reset(0);
    fake_conv_wants(1 << 20);
    outcome more = run_on(&m, &w);
    ck_assert_uint_ge(more.plan.planned_peak_bytes, little.plan.planned_peak_bytes + (1 << 19));
    free(little.parameters), free(more.parameters);
}
END_TEST

/* The smallest budget works, with the same bits; one byte less is refused. */
START_TEST(smallest_budget_works) {
    model m = {.timed = _i % 2};
    way w = {"cuda", _i / 2 ? "bf16" : "fp32", "optimal", 0, 1, false};
    outcome kept = run_well(&m, &(way){"cuda", w.precision, "none", 0, 0, false}, 0), o;
    reset(0);
    ck_assert_int_eq(run(&m, &w, &o), REMAT_INFEASIBLE);
    w.budget = remat_smallest_budget();
    outcome least = run_well(&m, &w, 1);
    ck_assert_uint_le(least.plan.budgeted_bytes, w.budget);
    ck_assert_msg(same(&kept, &least), "the smallest budget has other bits");
    w.budget--;
    reset(0);
    ck_assert_int_eq(run(&m, &w, &o), REMAT_INFEASIBLE);
    free(kept.parameters), free(least.parameters);
}
END_TEST

/* ---- Faults ----------------------------------------------------------------------------------------------------- */

/* A call whose result is not needed may fail unreported; then the numbers are right. */
START_TEST(a_fault_at_any_call_gives_one_message) {
    model m = {.timed = _i % 2};
    way w = {"cuda", _i / 2 ? "bf16" : "fp32", "segments", 2, 0, false};
    outcome right = run_well(&m, &w, 1), o;
    int64_t calls = fake_cuda_calls();
    for (int64_t call = 1; call <= calls; call += call < 500 ? 1 : 7) {
        reset(1);
        fake_cuda_fail_at(call, call % 3 ? cudaErrorUnknown : cudaErrorMemoryAllocation);
        remat_status status = run(&m, &w, &o);
        fake_cuda_fail_at(0, 0);
        ck_assert_msg(!status || strlen(remat_last_error()) > 20, "call %" PRId64 " has failed without a message",
                      call);
        if (!status) ck_assert_msg(same(&right, &o), "call %" PRId64 ": other bits after an unreported fault", call);
        ck_assert_msg(!fake_cuda_violation(), "call %" PRId64 ": %s", call, fake_cuda_violation());
        ck_assert_msg(fake_cuda_live() == 0, "call %" PRId64 " has failed, and objects were not released", call);
        free(o.parameters);
    }
    free(right.parameters);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("conv");
    TCase *results = tcase_create("results"), *plans = tcase_create("plans"), *faults = tcase_create("faults");
    tcase_set_timeout(results, 300);
    tcase_set_timeout(plans, 300);
    tcase_set_timeout(faults, 300);
    tcase_add_loop_test(results, cudnn_convolutions_have_the_same_bits_in_every_plan, 0, 6);
    tcase_add_loop_test(results, products_take_over_without_cudnn, 0, 2);
    tcase_add_test(results, missing_library_is_no_error);
    tcase_add_test(results, refused_shapes_use_products);
    tcase_add_loop_test(plans, plan_names_the_algorithms, 0, 2);
    tcase_add_loop_test(plans, plan_as_json_names_each_algorithm, 0, 2);
    tcase_add_loop_test(plans, work_spaces_are_planned, 0, 4);
    tcase_add_loop_test(plans, smallest_budget_works, 0, 4);
    tcase_add_loop_test(faults, a_fault_at_any_call_gives_one_message, 0, rm_cases(4, 1));
    suite_add_tcase(suite, results);
    suite_add_tcase(suite, plans);
    suite_add_tcase(suite, faults);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}

#else

#include <stdio.h>

int main(void) { return puts("skipped: needs CUDA's and cuDNN's headers"), 77; }

#endif
