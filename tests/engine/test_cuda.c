/* test_cuda.c: the CUDA device on a fake CUDA (tests/engine/fake_cuda) that records all calls and runs the CPU's
 * kernels in its streams. Random networks under random plans with transfers to the host and back give the CPU's bits
 * in every order of execution; every rule of order and lifetime holds; a fault at any call gives one message and
 * leaks nothing.
 *
 * The behaviour of a real GPU is tested in tests/gpu. */
#include <check.h>
#include <math.h>

#ifdef HAVE_CUDA_HEADERS

#include "engine/abi.h"
#include "tests/cases.h"
#include "tests/engine/fake_cuda/expect.h"
#include "tests/engine/fake_cuda/stand_ins.h"
#include "tests/engine/random_net.h"
#include "tests/sanitized.h"
#include "tests/says.h"
#include "tests/suite.h"

enum { STEPS = 3 };

/* ---- Plans with transfers -------------------------------------------------------------------------------------- */

/* Does the state stay unchanged between a run and the backward run of the same stage? */
static bool is_idle(const rm_problem *p, const rm_plan *plan, int64_t from, int64_t stage, int64_t state) {
    for (int64_t i = from; plan->step[i].verb != RM_RUN_BACKWARD || plan->step[i].index != stage; i++) {
        rm_step step = plan->step[i];
        bool forward = step.verb == RM_RUN_FORWARD;
        if (step.verb == RM_FREE) continue;
        if (forward && rm_state_maker(p, state) == step.index) return false;
        if (rm_in_list(forward ? &p->reads : &p->keeps, step.index, state)) return false;
    }
    return true;
}

static void send_out(rm_plan *plan, rm_object object, int64_t i) {
    ck_assert(!rm_plan_save(plan, object, i));
    if (draw(2)) ck_assert(!rm_plan_free_object(plan, object, i));
}

/* Live objects are freed first. */
static void fetch(rm_plan *plan, rm_object object, int64_t i) {
    for (int64_t k = plan->n_steps - 1;; k--) {
        rm_step step = plan->step[k];
        if (step.object != object || step.index != i) continue;
        if (step.verb == RM_SAVE) ck_assert(!rm_plan_free_object(plan, object, i));
        if (step.verb == RM_SAVE || step.verb == RM_FREE) break;
    }
    ck_assert(!rm_plan_load(plan, object, i));
}

/* Changes a random plan: some saved blocks and states move to the host, and return just before they are read. They are
 * freed at once, or when they return. */
static char *moving_plan(const remat_session *s, const char *text) {
    const rm_problem *p = &s->chain.problem;
    rm_plan plan = {0}, out = {0};
    bool *away[2] = {calloc((size_t)p->n_states + 1, 1), calloc((size_t)p->n_stages + 1, 1)};
    bool *copied = calloc((size_t)p->n_states + 1, 1);
    char *moved;
    size_t length;
    ck_assert(!rm_plan_read(p, &plan, text, strlen(text)));
    for (int64_t i = 0; i < plan.n_steps; i++) {
        rm_step step = plan.step[i];
        int64_t stage = step.index;
        if (step.verb == RM_FREE) continue;
        const rm_lists *keeps = &p->keeps;
        for (int64_t k = keeps->start[stage]; step.verb == RM_RUN_BACKWARD && k < keeps->start[stage + 1]; k++) {
            if (away[0][keeps->item[k]]) fetch(&out, RM_STATE, keeps->item[k]);
            away[0][keeps->item[k]] = false;
        }
        if (step.verb == RM_RUN_BACKWARD && away[1][stage]) fetch(&out, RM_SAVED, stage);
        ck_assert(!rm_plan_add(&out, step));
        if (step.verb != RM_RUN_FORWARD || step.option == RM_DROP) continue;
        if ((away[1][stage] = draw(3) > 0)) send_out(&out, RM_SAVED, stage);
        for (int64_t k = keeps->start[stage]; k < keeps->start[stage + 1]; k++) {
            int32_t state = keeps->item[k];
            if (!rm_in_list(&p->reads, stage, state) || !draw(3) || !is_idle(p, &plan, i + 1, stage, state)) continue;
            if (copied[state]) continue; /* once per step */
            send_out(&out, RM_STATE, state);
            away[0][state] = copied[state] = true;
        }
    }
    ck_assert(!rm_plan_free_dead(p, &out));
    FILE *to = open_memstream(&moved, &length);
    ck_assert(!rm_plan_write(p, &out, to));
    fclose(to);
    rm_plan_free(&plan);
    rm_plan_free(&out);
    free(away[0]);
    free(away[1]);
    free(copied);
    return moved;
}

/* ---- Runs ------------------------------------------------------------------------------------------------------ */

typedef struct {
    net n;
    remat_value loss;
    remat_config config;
    char *plan;
    uint64_t seed;
} problem;

static void make_problem(problem *p, uint64_t seed, const char *optimizer) {
    *p = (problem){.config = REMAT_CONFIG_INIT, .seed = seed};
    rng_state = seed * 7919 + 3;
    bool timed = seed % 3 > 0;
    p->loss = random_net_with(&p->n, timed, seed % 2 == 1);
    ask_for_outputs(&p->config, &p->n);
    p->config.threads = 1;
    p->config.tile = timed ? 1 + draw(4) : draw(3);
    p->config.seed = seed;
    p->config.optimizer = optimizer;
    p->config.momentum = 0.9;
    p->config.clip_grad_norm = seed % 2 ? 0.5 : 0;
    p->config.verify_recompute = seed / 2 % 2;
    remat_session *s;
    remat_config only = p->config;
    only.plan_only = true;
    ck_assert_msg(!remat_session_create(p->n.graph, p->loss, &only, &s), "%s", remat_last_error());
    char *plan = random_plan(s);
    p->plan = moving_plan(s, plan);
    free(plan);
    remat_session_free(s);
    p->config.plan_steps = p->plan;
    p->config.spill_dir = "/tmp";
}

static void free_problem(problem *p) {
    free(p->plan);
    remat_graph_free(p->n.graph);
}

typedef struct {
    double number[3 * STEPS];
    char *arrays;
    size_t bytes;
    int64_t allocations, graphs; /* after the first step; after the second step */
} outcome;

static remat_status write_inputs(remat_session *s, uint64_t seed) {
    remat_status status = REMAT_OK;
    rng_state = seed;
    for (int64_t i = 0; i < remat_count(s, REMAT_INPUT) && !status; i++) {
        remat_array info;
        remat_array_info(s, REMAT_INPUT, i, &info);
        const int64_t bound = s->array[REMAT_INPUT][i].bound;
        float *data = malloc(info.bytes);
        for (uint64_t k = 0; k < info.bytes / 4; k++)
            if (info.dtype == REMAT_I32)
                ((int32_t *)data)[k] = (int32_t)draw(bound ? (uint32_t)bound : 3);
            else
                data[k] = draw_real();
        status = remat_write(s, REMAT_INPUT, i, data, info.bytes);
        free(data);
    }
    return status;
}

static remat_status read_arrays(remat_session *s, remat_kind kind, outcome *o) {
    for (int64_t i = 0; i < remat_count(s, kind); i++) {
        remat_array info;
        remat_array_info(s, kind, i, &info);
        o->arrays = realloc(o->arrays, o->bytes + info.bytes);
        remat_status status = remat_read(s, kind, i, o->arrays + o->bytes, info.bytes);
        if (status) return status;
        o->bytes += info.bytes;
    }
    return REMAT_OK;
}

static remat_status run_session(remat_session *s, const problem *p, outcome *o) {
    for (int step = 0; step < STEPS; step++) {
        remat_step_result r, e;
        remat_status status = write_inputs(s, p->seed + (uint64_t)step);
        if (!status) status = remat_step(s, 0.01, &r);
        if (!status) status = remat_evaluate(s, &e);
        if (status) return status;
        memcpy(&o->number[3 * step], (double[]){r.loss, r.grad_norm, e.loss}, 3 * sizeof(double));
        if (step == 0) o->allocations = fake_cuda_allocations();
        if (step == 1) o->graphs = fake_cuda_graphs();
    }
    remat_status status = read_arrays(s, REMAT_PARAM, o);
    if (!status) status = read_arrays(s, REMAT_GRADIENT, o);
    return status ? status : read_arrays(s, REMAT_OPTIMIZER, o);
}

/* Recorded launches become graphs when they occur for the second time. */
static void expect_nothing_new(const outcome *o) {
    ck_assert_int_eq(o->allocations, fake_cuda_allocations());
    ck_assert_int_eq(o->graphs, fake_cuda_graphs());
}

static remat_status run_problem(const problem *p, const char *device, outcome *o) {
    remat_session *s;
    remat_config config = p->config;
    config.device = device;
    *o = (outcome){.allocations = 0};
    remat_status status = remat_session_create(p->n.graph, p->loss, &config, &s);
    if (status) return status;
    status = run_session(s, p, o);
    if (!status && !strcmp(device, "cuda")) expect_nothing_new(o);
    remat_session_free(s);
    return status;
}

static void expect_same(const outcome *a, const outcome *b, const char *what) {
    ck_assert_msg(isfinite(a->number[0]) && !memcmp(a->number, b->number, sizeof a->number), "%s: numbers differ",
                  what);
    ck_assert_msg(a->bytes && a->bytes == b->bytes && !memcmp(a->arrays, b->arrays, a->bytes), "%s: arrays differ",
                  what);
}

/* ---- The same as the CPU --------------------------------------------------------------------------------------- */

static const char *const optimizers[] = {"sgd", "adamw", "lamb", "lars", "adam"};

START_TEST(cuda_has_the_bits_of_the_cpu) {
    if (rm_release_only(_i, 3)) return;
    problem p;
    outcome cpu, cuda;
    char what[64];
    make_problem(&p, (uint64_t)_i, optimizers[_i % 5]);
    ck_assert_msg(!run_problem(&p, "cpu", &cpu), "%s", remat_last_error());
    for (uint64_t order = 0; order < 3; order++) {
        snprintf(what, sizeof what, "network %d, order %d", _i, (int)order);
        stand_in_reset(order * 1000 + (uint64_t)_i);
        ck_assert_msg(!run_problem(&p, "cuda", &cuda), "%s: %s", what, remat_last_error());
        ck_assert_int_gt(fake_cuda_replays(), fake_cuda_graphs()); /* in the third step */
        expect_clean(what);
        expect_same(&cpu, &cuda, what);
        free(cuda.arrays);
    }
    free(cpu.arrays);
    free_problem(&p);
}
END_TEST

/* ---- Faults ---------------------------------------------------------------------------------------------------- */

/* A call whose result is not needed (a release) may fail unreported; then the numbers are right. */
static void try_fault(const problem *p, const outcome *right, int64_t call, cudaError_t error) {
    outcome o;
    char what[64];
    snprintf(what, sizeof what, "error %d at call %lld", (int)error, (long long)call);
    stand_in_reset((uint64_t)call);
    fake_cuda_fail_at(call, error);
    remat_status status = run_problem(p, "cuda", &o);
    fake_cuda_fail_at(0, 0);
    if (status)
        expect_sentence("");
    else
        expect_same(right, &o, what);
    expect_clean(what);
    free(o.arrays);
}

START_TEST(a_fault_at_any_call_gives_one_message) {
    problem p;
    outcome right;
    make_problem(&p, (uint64_t)_i + 2, optimizers[_i + 1]);
    stand_in_reset(1);
    ck_assert_msg(!run_problem(&p, "cuda", &right), "%s", remat_last_error());
    int64_t calls = fake_cuda_calls();
    expect_clean("without a fault");
    const uint64_t close = (uint64_t)rm_cases(1, SANITIZED ? 8 : 4), far = SANITIZED ? 150 : 60;
    for (int64_t call = 1; call <= calls; call += 1 + (int64_t)draw(call < 300 ? close : far))
        try_fault(&p, &right, call,
                  call % 3 == 0   ? cudaErrorMemoryAllocation
                  : call % 3 == 1 ? cudaErrorLaunchFailure
                                  : cudaErrorUnknown);
    free(right.arrays);
    free_problem(&p);
}
END_TEST

/* Timers between programs measure times, and the fake checks that they are read only after they were reached. Timers
 * change no bits, and a failing timer gives one message. */
START_TEST(timers_change_no_bits) {
    problem p;
    outcome cpu, cuda;
    remat_session *s;
    make_problem(&p, 40 + (uint64_t)_i, "sgd");
    ck_assert_msg(!run_problem(&p, "cpu", &cpu), "%s", remat_last_error());
    p.config.calibration = "";
    remat_config config = p.config;
    config.device = "cuda";
    stand_in_reset((uint64_t)_i);
    ck_assert_msg(!remat_session_create(p.n.graph, p.loss, &config, &s), "%s", remat_last_error());
    int64_t calls = fake_cuda_calls();
    ck_assert(rm_plan_summary_of(s).measured_times && rm_plan_summary_of(s).step_ns > 0);
    remat_session_free(s);
    expect_clean("measured");
    ck_assert_msg(!run_problem(&p, "cuda", &cuda), "%s", remat_last_error());
    expect_same(&cpu, &cuda, "measured");
    free(cuda.arrays);
    for (int64_t call = 1 + (int64_t)draw(40); call < calls; call += 1 + (int64_t)draw((uint32_t)calls / 3)) {
        stand_in_reset((uint64_t)call);
        fake_cuda_fail_at(call, call % 2 ? cudaErrorUnknown : cudaErrorMemoryAllocation);
        if (!remat_session_create(p.n.graph, p.loss, &config, &s))
            remat_session_free(s);
        else
            expect_sentence("");
        expect_clean("a fault while measuring");
    }
    free(cpu.arrays);
    free_problem(&p);
}
END_TEST

/* A kernel that fails while it runs is reported later, at the next wait. The message names the step of the plan. */
static bool break_at(int kernel) {
    problem p;
    outcome o = {.allocations = 0};
    remat_session *s;
    make_problem(&p, 3, "adamw"); /* some of its kernels finish before the plan does */
    stand_in_reset((uint64_t)kernel);
    remat_config config = p.config;
    config.device = "cuda";
    ck_assert_msg(!remat_session_create(p.n.graph, p.loss, &config, &s), "%s", remat_last_error());
    fake_cuda_break_at(kernel);
    ck_assert_int_eq(run_session(s, &p, &o), REMAT_DEVICE);
    expect_sentence("error 700");
    expect_sentence("last");
    bool names_the_step = says_all(remat_last_error(), "step|plan");
    remat_session_free(s);
    expect_clean("after a broken kernel");
    free(o.arrays);
    free_problem(&p);
    return names_the_step;
}

/* The error is reported while the plan runs, or only at the final wait. */
START_TEST(a_failing_kernel_is_reported_at_the_next_wait) {
    int named = 0, kernels = 12;
    for (int i = 0; i < kernels; i++) named += break_at(10 + 6 * i);
    ck_assert_int_gt(named, 0);
    ck_assert_int_lt(named, kernels);
}
END_TEST

/* The session can be used after a failed step. */
START_TEST(session_continues_after_a_failed_step) {
    problem p;
    outcome first, again;
    make_problem(&p, 5, "sgd");
    stand_in_reset(3);
    remat_session *s;
    remat_step_result r;
    remat_config config = p.config;
    config.device = "cuda";
    config.optimizer = NULL;
    first = again = (outcome){.allocations = 0};
    ck_assert_msg(!remat_session_create(p.n.graph, p.loss, &config, &s), "%s", remat_last_error());
    ck_assert(!write_inputs(s, 1) && !remat_gradients(s, &r) && !read_arrays(s, REMAT_GRADIENT, &first));
    fake_cuda_fail_at(fake_cuda_calls() + 60, cudaErrorUnknown);
    ck_assert_int_eq(remat_gradients(s, &r), REMAT_DEVICE);
    expect_sentence("plan");
    ck_assert(!remat_gradients(s, &r) && !read_arrays(s, REMAT_GRADIENT, &again));
    ck_assert(first.bytes == again.bytes && !memcmp(first.arrays, again.arrays, first.bytes));
    remat_session_free(s);
    expect_clean("after a step that failed");
    free(first.arrays);
    free(again.arrays);
    free_problem(&p);
}
END_TEST

/* ---- Opening --------------------------------------------------------------------------------------------------- */

static void expect_refusal(remat_status expected, const char *part) {
    rm_device *device;
    ck_assert_int_eq(rm_device_cuda.open(1, &device), expected);
    ck_assert_ptr_null(device);
    expect_sentence(part);
    expect_clean(part);
}

START_TEST(unsuitable_machines_are_refused) {
    stand_in_reset(1);
    fake_cuda_machine(0, 13000, 1 << 30);
    expect_refusal(REMAT_MISSING, "GPU");
    fake_cuda_machine(1, 0, 1 << 30);
    expect_refusal(REMAT_MISSING, "NVIDIA driver");
    fake_cuda_machine(1, 12040, 1 << 30);
    expect_refusal(REMAT_MISSING, "driver|CUDA 12.4");
    fake_cuda_machine(1, 13000, 3 << 20);
    expect_refusal(REMAT_MEMORY, "3145728 bytes|free");
    fake_cuda_machine(1, 13000, 1 << 30);
    stand_in_kernels_answer(cudaErrorNoKernelImageForDevice);
    expect_refusal(REMAT_MISSING, "GPU 0|compute capability 8.0");
    expect_sentence("kernels");
    stand_in_kernels_answer(cudaErrorUnsupportedPtxVersion);
    expect_refusal(REMAT_MISSING, "driver|build");
    stand_in_kernels_answer(cudaSuccess);
    fake_cuda_machine(2, 13000, 1 << 30);
    setenv("LOCAL_RANK", "2", 1);
    expect_refusal(REMAT_INVALID, "LOCAL_RANK|2 GPUs");
}
END_TEST

START_TEST(plans_larger_than_gpu_memory_are_refused) {
    rm_device *device;
    rm_block *block;
    stand_in_reset(1);
    fake_cuda_machine(1, 13000, 64 << 20);
    ck_assert(!rm_device_cuda.open(1, &device));
    ck_assert_uint_gt(rm_device_cuda.overhead_bytes(device), 0);
    ck_assert_int_eq(rm_device_cuda.block_create(device, 1 << 30, &block), REMAT_MEMORY);
    expect_sentence("1073741824 bytes|83886080");
    fake_cuda_machine(1, 13000, 256 << 20);
    uint64_t free = rm_device_cuda.free_bytes(device), beside = 83886080; /* 64 MiB and 16 */
    ck_assert_int_eq(rm_device_cuda.block_create(device, free - beside + 1, &block), REMAT_MEMORY);
    ck_assert(!rm_device_cuda.block_create(device, free - beside, &block));
    rm_device_cuda.block_free(block);
    rm_device_cuda.close(device);
    expect_clean("too large");
}
END_TEST

/* The toolkit's real libraries on a machine without a GPU; with a GPU they may open. */
START_TEST(real_libraries_open_or_say_why_not) {
    rm_device *device;
    unsetenv("REMAT_CUDART_LIBRARY");
    unsetenv("REMAT_CUBLAS_LIBRARY");
    unsetenv("REMAT_CUBLASLT_LIBRARY");
    remat_status status = rm_device_cuda.open(1, &device);
    if (status) {
        ck_assert_ptr_null(device);
        expect_sentence("device");
        printf("real libraries: %s\n", remat_last_error());
    }
    rm_device_cuda.close(device);
}
END_TEST

START_TEST(missing_library_is_reported) {
    rm_device *device;
    setenv("REMAT_CUDART_LIBRARY", "/nowhere/libcudart.so", 1);
    ck_assert_int_eq(rm_device_cuda.open(1, &device), REMAT_MISSING);
    expect_sentence("REMAT_CUDART_LIBRARY=/nowhere/libcudart.so");
}
END_TEST

/* ---- The device alone ------------------------------------------------------------------------------------------ */

/* Copies through two staging buffers of 1 MiB, several times, in pieces of odd sizes. */
START_TEST(copies_arrive_unchanged) {
    enum { BYTES = 5 * 1000 * 1000 + 17 };
    const rm_device_api *api = &rm_device_cuda;
    rm_device *device;
    rm_block *block;
    rm_queue *queue;
    stand_in_reset((uint64_t)_i);
    ck_assert(!api->open(1, &device) && !api->block_create(device, 2 * BYTES + 64, &block));
    ck_assert(!api->queue_create(device, &queue));
    char *a = api->claim(block, 0, BYTES), *b = api->claim(block, BYTES + 47, BYTES);
    unsigned char *in = malloc(BYTES), *out = malloc(BYTES);
    for (int i = 0; i < BYTES; i++) in[i] = (unsigned char)(i * 7 + i / 251);
    api->copy_out(queue, out, b, BYTES);
    ck_assert(!api->synchronize(queue));
    ck_assert_msg(!out[0] && !memcmp(out, out + 1, BYTES - 1), "a new block is not all zeros");
    api->copy_in(queue, a, in, BYTES);
    api->copy(queue, b, a, BYTES);
    api->fill(queue, a, 9, BYTES);
    api->copy_out(queue, out, b, BYTES);
    ck_assert(!api->synchronize(queue));
    ck_assert(!memcmp(in, out, BYTES));
    api->queue_free(queue);
    api->block_free(block);
    api->close(device);
    expect_clean("copies");
    free(in);
    free(out);
}
END_TEST

START_TEST(events_order_two_queues) {
    const rm_device_api *api = &rm_device_cuda;
    rm_device *device;
    rm_block *block;
    rm_queue *first, *second;
    rm_event *event;
    char out[64];
    stand_in_reset((uint64_t)_i);
    ck_assert(!api->open(1, &device) && !api->block_create(device, 64, &block));
    ck_assert(!api->queue_create(device, &first) && !api->queue_create(device, &second));
    ck_assert(!api->event_create(device, &event));
    char *memory = api->claim(block, 0, 64);
    api->fill(first, memory, 7, 64);
    bool ordered = _i % 2;
    if (ordered) api->event_record(first, event);
    if (ordered) api->event_wait(second, event);
    api->copy_out(second, out, memory, 64);
    ck_assert(!api->synchronize(second) && !api->synchronize(first));
    ck_assert_int_eq(!fake_cuda_violation(), ordered); /* without the event the fake reports a violation */
    if (ordered) ck_assert(out[0] == 7 && out[63] == 7);
    api->event_free(event);
    api->queue_free(first);
    api->queue_free(second);
    api->block_free(block);
    api->close(device);
    ck_assert_int_eq(fake_cuda_live(), 0);
}
END_TEST

/* ---- What the device reports --------------------------------------------------------------------------------------- */

/* The memory that NVML reports after the first use of the GPU is the context (300 MiB in the fake), which stays. So
 * does the memory of libraries. A device that is opened later counts both, too. */
START_TEST(context_memory_is_counted) {
    problem p;
    remat_session *s;
    make_problem(&p, 2, "sgd");
    remat_config config = p.config;
    config.device = "cuda";
    config.plan_only = true;
    stand_in_reset(1);
    rm_device *check;
    ck_assert(!rm_device_cuda.open(1, &check));
    rm_device_cuda.close(check); /* `remat train` calls it first (remat_device_check) */
    for (int i = 0; i < 2; i++) {
        ck_assert_msg(!remat_session_create(p.n.graph, p.loss, &config, &s), "%s", remat_last_error());
        ck_assert_uint_ge(rm_plan_summary_of(s).workspace_bytes,
                          (300u << 20) + RM_CUDA_GRAPH_BYTES + (64u << 20) + 2 * FAKE_LIBRARY_BYTES + (1u << 20));
        ck_assert_uint_lt(rm_plan_summary_of(s).workspace_bytes, 400u << 20);
        remat_session_free(s);
    }
    remat_session *beside;
    ck_assert(!remat_session_create(p.n.graph, p.loss, &config, &s));
    ck_assert(!remat_session_create(p.n.graph, p.loss, &config, &beside));
    ck_assert_uint_lt(rm_plan_summary_of(beside).workspace_bytes, 100u << 20); /* the sessions share the context */
    remat_session_free(s);
    remat_session_free(beside);
    config.memory_budget = 300u << 20;
    ck_assert_int_eq(remat_session_create(p.n.graph, p.loss, &config, &s), REMAT_INFEASIBLE);
    expect_clean("context");
    free_problem(&p);
}
END_TEST

START_TEST(speeds_are_measured) {
    const rm_device_api *api = &rm_device_cuda;
    rm_device *device;
    rm_second_tier *tier;
    rm_rates rates;
    rm_tier moves;
    stand_in_reset(1);
    ck_assert(!api->open(1, &device) && !api->rates(device, &rates));
    ck_assert(rates.flops_per_s > 0 && rates.bytes_per_s > 0 && rates.call_ns > 0);
    ck_assert(!api->tier_open(device, "/tmp", &tier) && !api->tier_measure(tier, &moves));
    ck_assert(moves.save_bytes_per_s > 0 && moves.load_bytes_per_s > 0);
    api->tier_close(tier);
    api->close(device);
    expect_clean("speeds");
}
END_TEST

int main(void) {
    TCase *same = tcase_create("same"), *faults = tcase_create("faults"), *c = tcase_create("rest");
    tcase_add_loop_test(same, cuda_has_the_bits_of_the_cpu, 0, rm_cases(60, 15));
    tcase_set_timeout(faults, 300);
    tcase_add_loop_test(faults, a_fault_at_any_call_gives_one_message, 0, rm_cases(3, 1));
    tcase_add_loop_test(faults, timers_change_no_bits, 0, 2);
    tcase_add_test(c, a_failing_kernel_is_reported_at_the_next_wait);
    tcase_add_test(c, session_continues_after_a_failed_step);
    tcase_add_test(c, unsuitable_machines_are_refused);
    tcase_add_test(c, plans_larger_than_gpu_memory_are_refused);
    tcase_add_test(c, real_libraries_open_or_say_why_not);
    tcase_add_test(c, missing_library_is_reported);
    tcase_add_loop_test(c, copies_arrive_unchanged, 0, 8);
    tcase_add_loop_test(c, events_order_two_queues, 0, 16);
    tcase_add_test(c, context_memory_is_counted);
    tcase_add_test(c, speeds_are_measured);
    return run_cases("cuda", same, faults, c);
}

#else

#include <stdio.h>

int main(void) { return puts("skipped: needs CUDA's headers"), 77; }

#endif
