/* test_cudnn.c: recurrent layers through cuDNN (engine/cuda/rnn.c) on the emulated device (device.h), with a fake cuDNN
 * in plain loops whose buffer layouts are as unusual as the real ones may be (tests/engine/fake_cuda/fake_dnn.c).
 * Results are compared with the CPU's; every plan has the same bits; memory is planned and counted; faults and messages
 * are checked. Neither a GPU nor the real cuDNN is used. */
#include "engine/abi.h"
#include "tests/cases.h"
#include "tests/net.h"
#include "tests/says.h"

#if defined HAVE_CUDA_HEADERS && __has_include(<cudnn.h>)

#include <inttypes.h>

#include "tests/cuda/device.h"
#include "tests/suite.h"

enum { STEPS = 4, NUMBERS = 3 };
static int steps = STEPS; /* each test has its own process */

/* A language model, or with `bare` one layer over real inputs without a gradient, with or without a bias. */
typedef struct {
    net n;
    bool bare, relu; /* relu: of a plain RNN that is bare */
    int biases;
} model;

typedef struct {
    const char *device, *cells, *strategy;
    int64_t segments;
    uint64_t budget;
} way;

typedef struct {
    double number[STEPS][NUMBERS]; /* loss, norm, loss of an evaluation */
    unsigned char *parameters;
    size_t bytes;
    remat_plan_summary plan;
} outcome;

/* A prime number of timesteps in tiles of 5: the last one is short. */
static model model_number(int i) {
    net n = {.cell = (net_cell)(i % 3),
             .layers = 2,
             .vocabulary = 13,
             .embed = 6,
             .hidden = i / 3 % 2 ? 9 : 8,
             .timesteps = 23,
             .batch = i % 4 == 3 ? 1 : 3,
             .dropout = 0.2};
    return (model){n, i >= 6, i < 12, i / 3 % 3};
}

static remat_value build_bare(remat_graph *g, const model *m) {
    const net *n = &m->n;
    int64_t rows = net_gates[n->cell] * n->hidden;
    remat_value none = {0};
    remat_value x = remat_input(g, "x", REMAT_F32, REMAT_SEQUENCE, 3, (int64_t[]){n->timesteps, n->batch, n->embed});
    remat_value target =
        remat_input(g, "target", REMAT_F32, REMAT_SEQUENCE, 3, (int64_t[]){n->timesteps, n->batch, n->hidden});
    remat_value w_ih = net_param(g, "w_ih", "", -1, 2, rows, n->embed, 0.5);
    remat_value w_hh = net_param(g, "w_hh", "", -1, 2, rows, n->hidden, 0.5);
    remat_value b_ih = m->biases == 1 ? net_param(g, "b_ih", "", -1, 1, rows, 0, 0.5) : none;
    remat_value b_hh = m->biases == 2 ? net_param(g, "b_hh", "", -1, 1, rows, 0, 0.5) : none;
    remat_value y = n->cell == NET_LSTM  ? remat_lstm(g, x, w_ih, w_hh, b_ih, b_hh)
                    : n->cell == NET_GRU ? remat_gru(g, x, w_ih, w_hh, b_ih, b_hh)
                    : m->relu            ? remat_rnn_relu(g, x, w_ih, w_hh, b_ih, b_hh)
                                         : remat_rnn_tanh(g, x, w_ih, w_hh, b_ih, b_hh);
    return remat_mse(g, y, target);
}

static remat_status feed(remat_session *s, const model *m, int step) {
    remat_status status = REMAT_OK;
    for (int64_t input = 0; input < 2 && !status; input++) {
        remat_array info;
        CHECKED(remat_array_info(s, REMAT_INPUT, input, &info));
        int32_t *data = malloc(info.bytes);
        for (uint64_t i = 0; i < info.bytes / 4; i++) {
            uint32_t drawn = (uint32_t)rm_random(17, step, (int)input, 0, (int64_t)i);
            float real = (float)(drawn % 1001) / 500 - 1;
            if (m->bare)
                memcpy(&data[i], &real, 4);
            else
                data[i] = (int32_t)(drawn % m->n.vocabulary);
        }
        status = remat_write(s, REMAT_INPUT, input, data, info.bytes);
        free(data);
    }
    return status;
}

static remat_config config_of(const way *w) {
    remat_config config = REMAT_CONFIG_INIT;
    config.device = w->device;
    config.rnn_kernels = w->cells;
    config.strategy = w->strategy;
    config.segments = w->segments;
    config.memory_budget = w->budget;
    config.fold_embedding = w->cells && !strcmp(w->cells, "cudnn"); /* where it has no effect */
    config.tile = 5;
    config.threads = 1;
    config.seed = 5;
    config.optimizer = "sgd";
    config.momentum = 0.9;
    config.clip_grad_norm = 0.5;
    return config;
}

/* From the second step on nothing is allocated, and no cuDNN descriptor is created. */
static remat_status take_steps(remat_session *s, const model *m, outcome *o) {
    int64_t allocations = 0;
    for (int step = 0; step < steps; step++) {
        remat_step_result r, e;
        remat_status status = feed(s, m, step);
        if (!status) status = remat_step(s, 0.1, &r);
        if (!status) status = remat_evaluate(s, &e);
        if (status) return status;
        memcpy(o->number[step], (double[]){r.loss, r.grad_norm, e.loss}, sizeof o->number[step]);
        if (step == 0) allocations = fake_cuda_allocations();
        ck_assert_int_eq(fake_cuda_allocations(), allocations);
    }
    o->parameters = NULL;
    o->bytes = 0;
    for (int64_t i = 0; i < remat_count(s, REMAT_PARAM); i++) {
        remat_array info;
        CHECKED(remat_array_info(s, REMAT_PARAM, i, &info));
        o->parameters = realloc(o->parameters, o->bytes + info.bytes);
        remat_status status = remat_read(s, REMAT_PARAM, i, o->parameters + o->bytes, info.bytes);
        if (status) return status;
        o->bytes += info.bytes;
    }
    return REMAT_OK;
}

static remat_status run(const model *m, const way *w, outcome *o) {
    remat_config config = config_of(w);
    remat_graph *g;
    remat_session *s;
    memset(o, 0, sizeof *o);
    CHECKED(remat_graph_create(&g));
    remat_value loss = m->bare ? build_bare(g, m) : net_build(g, &m->n);
    CHECKED(remat_graph_check(g));
    remat_status status = remat_session_create(g, loss, &config, &s);
    if (!status) {
        o->plan = rm_plan_summary_of(s);
        status = take_steps(s, m, o);
        remat_session_free(s);
    }
    remat_graph_free(g);
    return status;
}

static void reset(int order) {
    emulated_device_reset((uint64_t)order);
    rm_emulate_in((rm_emulated_order)(order % RM_ORDERS));
}

static outcome run_well(const model *m, const way *w, int order) {
    outcome o;
    reset(order);
    ck_assert_msg(!run(m, w, &o), "%s: %s", w->strategy, remat_last_error());
    ck_assert_msg(!fake_cuda_violation(), "%s: %s", w->strategy, fake_cuda_violation());
    ck_assert_int_eq(fake_cuda_live(), 0);
    ck_assert_str_eq(o.plan.rnn_kernels, w->cells);
    ck_assert_int_eq(fake_dnn_counted() > 0, !strcmp(w->cells, "cudnn"));
    return o;
}

static void expect_same(const outcome *a, const outcome *b, const char *what) {
    ck_assert_msg(!memcmp(a->number, b->number, sizeof a->number), "%s: numbers differ", what);
    ck_assert_msg(a->bytes && a->bytes == b->bytes && !memcmp(a->parameters, b->parameters, a->bytes),
                  "%s: parameters differ", what);
}

/* Both round, in different ways (test_sessions.c). */
static void expect_near(const outcome *cpu, const outcome *cuda) {
    for (int i = 0; i < STEPS * NUMBERS; i++) {
        double right = cpu->number[i / NUMBERS][i % NUMBERS], is = cuda->number[i / NUMBERS][i % NUMBERS];
        ck_assert_msg(fabs(right - is) <= (i % 3 == 1 ? 2e-5 : 2e-6) * right, "number %d of step %d: %.9g, not %.9g",
                      i % NUMBERS, i / NUMBERS, is, right);
    }
    const float *a = (const float *)cpu->parameters, *b = (const float *)cuda->parameters;
    ck_assert_uint_eq(cpu->bytes, cuda->bytes);
    for (size_t i = 0; i < cpu->bytes / sizeof *a; i++)
        ck_assert_msg(fabsf(a[i] - b[i]) <= 2e-6f, "parameter %d: %.9g, and %.9g on the CPU", (int)i, (double)b[i],
                      (double)a[i]);
}

/* ---- Results ---------------------------------------------------------------------------------------------------- */

START_TEST(cudnn_has_the_same_bits_in_every_plan) {
    static const way ways[] = {{"cuda", "cudnn", "none", 0, 0},     {"cuda", "cudnn", "lean", 0, 0},
                               {"cuda", "cudnn", "segments", 2, 0}, {"cuda", "cudnn", "segments", 3, 0},
                               {"cuda", "cudnn", "sqrt", 0, 0},     {"cuda", "cudnn", "segments", 5, 0}};
    model m = model_number(_i);
    outcome first = {.bytes = 0}, cpu;
    for (int i = 0; i < (int)(sizeof ways / sizeof *ways); i++) {
        outcome o = run_well(&m, &ways[i], i);
        if (i) expect_same(&first, &o, ways[i].strategy);
        if (i)
            free(o.parameters);
        else
            first = o;
    }
    ck_assert_msg(!run(&m, &(way){"cpu", "remat", "none", 0, 0}, &cpu), "%s", remat_last_error());
    expect_near(&cpu, &first);
    free(cpu.parameters), free(first.parameters);
}
END_TEST

/* "auto" selects Remat's kernels, and works without cuDNN. */
START_TEST(auto_selects_remats_kernels) {
    model m = model_number(0);
    outcome o, other;
    reset(1);
    setenv("REMAT_CUDNN_LIBRARY", "/nowhere", 1);
    ck_assert_msg(!run(&m, &(way){"cuda", "auto", "none", 0, 0}, &o), "%s", remat_last_error());
    ck_assert_str_eq(o.plan.rnn_kernels, "remat");
    ck_assert_int_eq(fake_dnn_counted(), 0);
    reset(1);
    ck_assert_msg(!run(&m, &(way){"cuda", "remat", "none", 0, 0}, &other), "%s", remat_last_error());
    expect_same(&o, &other, "auto and remat");
    free(o.parameters), free(other.parameters);
}
END_TEST

/* ---- Plans ------------------------------------------------------------------------------------------------------ */

/* cuDNN's weight spaces are resident; stages save its reserve spaces, here 13 numbers per unit; its work space is
 * scratch; its other memory is counted. */
START_TEST(cudnn_memory_is_planned) {
    model m = model_number(_i);
    way own = {"cuda", "remat", "none", 0, 0}, theirs = {"cuda", "cudnn", "none", 0, 0};
    outcome remat = run_well(&m, &own, 0), cudnn = run_well(&m, &theirs, 0);
    uint64_t units = (uint64_t)(m.n.timesteps * m.n.batch * m.n.hidden * m.n.layers);
    ck_assert_uint_eq(remat.plan.packed_bytes, 0);
    ck_assert_uint_gt(cudnn.plan.packed_bytes, 0);
    ck_assert_uint_gt(cudnn.plan.activations_peak_bytes, 13 * sizeof(float) * units);
    ck_assert_uint_gt(cudnn.plan.budgeted_bytes - cudnn.plan.planned_peak_bytes,
                      remat.plan.budgeted_bytes - remat.plan.planned_peak_bytes);
    free(remat.parameters), free(cudnn.parameters);
}
END_TEST

/* A second device also counts the permanent memory of cuDNN's first handle. */
START_TEST(second_device_counts_cudnns_memory) {
    uint64_t bytes[2];
    reset(0);
    for (int i = 0; i < 2; i++) {
        rm_device *device;
        CHECKED(rm_device_cuda.open(1, &device));
        CHECKED(rm_device_cuda.use_cudnn(device));
        bytes[i] = rm_device_cuda.overhead_bytes(device);
        rm_device_cuda.close(device);
    }
    ck_assert_uint_gt(bytes[0], 3 * FAKE_LIBRARY_BYTES);
    ck_assert_uint_eq(bytes[1], bytes[0]);
}
END_TEST

/* The smallest budget works, with the same bits; one byte less is refused. */
START_TEST(smallest_budget_works) {
    model m = model_number(_i);
    outcome free_of_it = run_well(&m, &(way){"cuda", "cudnn", "none", 0, 0}, 0), o;
    way w = {"cuda", "cudnn", "optimal", 0, 1};
    reset(0);
    ck_assert_int_eq(run(&m, &w, &o), REMAT_INFEASIBLE);
    w.budget = remat_smallest_budget();
    outcome least = run_well(&m, &w, 0);
    ck_assert_uint_le(least.plan.budgeted_bytes, w.budget);
    ck_assert_uint_lt(least.plan.activations_peak_bytes, free_of_it.plan.activations_peak_bytes);
    expect_same(&free_of_it, &least, "optimal");
    w.budget--;
    reset(0);
    ck_assert_int_eq(run(&m, &w, &o), REMAT_INFEASIBLE);
    free(free_of_it.parameters), free(least.parameters);
}
END_TEST

/* ---- Faults and messages ---------------------------------------------------------------------------------------- */

/* Each call that creates the session and starts its first step fails once, then every seventh call. A call whose result
 * is not needed may fail unreported; then the numbers are right. */
START_TEST(a_fault_at_any_call_of_cudnn_gives_one_message) {
    model m = model_number(6 + _i);
    m.n.timesteps = 7, m.n.hidden = 3, m.n.embed = 2, m.n.batch = 1;
    steps = 2;
    way w = {"cuda", "cudnn", "segments", 2, 0};
    outcome right = run_well(&m, &w, 1), o;
    int64_t calls = fake_cuda_calls();
    for (int64_t call = 1; call <= calls; call += call < 400 ? 1 : 7) {
        reset(1);
        fake_cuda_fail_at(call, call % 3 ? cudaErrorUnknown : cudaErrorMemoryAllocation);
        remat_status status = run(&m, &w, &o);
        fake_cuda_fail_at(0, 0);
        ck_assert_msg(!status || strlen(remat_last_error()) > 20, "call %" PRId64 " has failed without a message",
                      call);
        if (!status) expect_same(&right, &o, "after an unreported fault");
        ck_assert_msg(!fake_cuda_violation(), "call %" PRId64 ": %s", call, fake_cuda_violation());
        ck_assert_msg(fake_cuda_live() == 0, "call %" PRId64 " has failed, and objects were not released", call);
        free(o.parameters);
    }
    free(right.parameters);
}
END_TEST

static void expect_refused(const model *m, const remat_config *config, remat_status code, const char *words) {
    remat_graph *g;
    remat_session *s = NULL;
    CHECKED(remat_graph_create(&g));
    remat_value loss = net_build(g, &m->n);
    remat_status status = remat_session_create(g, loss, config, &s);
    ck_assert_msg(status == code && says_all(remat_last_error(), words), "%d: %s", (int)status, remat_last_error());
    ck_assert_int_eq(fake_cuda_live(), 0);
    remat_graph_free(g);
}

START_TEST(unsupported_cudnn_settings_are_refused) {
    model m = model_number(0), long_one = m;
    remat_config config = config_of(&(way){"cuda", "cudnn", "none", 0, 0});
    reset(0);
    setenv("REMAT_CUDNN_LIBRARY", "/nowhere", 1);
    expect_refused(&m, &config, REMAT_MISSING, "REMAT_CUDNN_LIBRARY=/nowhere");
    reset(0);
    config.precision = "bf16";
    expect_refused(&m, &config, REMAT_MISSING, "bf16");
    config.precision = "fp32";
    config.rnn_kernels = "fast";
    expect_refused(&m, &config, REMAT_INVALID, "auto|remat|cudnn");
    config.rnn_kernels = "cudnn";
    long_one.n.timesteps = config.tile = 65536;
    expect_refused(&long_one, &config, REMAT_INVALID, "65535 timesteps");
    config.tile = 5;
    config.device = "cpu";
    expect_refused(&m, &config, REMAT_MISSING, "cuDNN|GPU");
}
END_TEST

int main(void) {
    TCase *results = tcase_create("results"), *plans = tcase_create("plans"), *faults = tcase_create("faults");
    tcase_set_timeout(results, 300);
    tcase_set_timeout(plans, 300);
    tcase_set_timeout(faults, 300);
    tcase_add_loop_test(results, cudnn_has_the_same_bits_in_every_plan, 0, rm_cases(15, 9));
    tcase_add_test(results, auto_selects_remats_kernels);
    tcase_add_loop_test(plans, cudnn_memory_is_planned, 0, 3);
    tcase_add_test(plans, second_device_counts_cudnns_memory);
    tcase_add_loop_test(plans, smallest_budget_works, 0, 3);
    tcase_add_loop_test(faults, a_fault_at_any_call_of_cudnn_gives_one_message, 0, rm_cases(3, 1));
    tcase_add_test(faults, unsupported_cudnn_settings_are_refused);
    return run_cases("cudnn", results, plans, faults);
}

#else

#include <stdio.h>

int main(void) { return puts("skipped: needs CUDA's and cuDNN's headers"), 77; }

#endif
