/* test_ops.c: compares every op and optimizer on a real device with its definition on the CPU: everything that
 * rm_op_check_again tests, with its tolerances (NaN fails), and rows and channels longer than its samples' (long_rows.h), for
 * which there are other kernels. The device's own queue launches the kernels (on_device.h).
 *
 *     gpu_test_ops [--device=cuda] [--small] [--few-elements] [--op=NAME]
 *     gpu_test_ops --list
 *
 * --small: a few calls of each kernel, for compute-sanitizer. --few-elements: no long arrays, for an emulated
 * device. --op: only that op or optimizer, or sum_of_squares. --list prints such a flag for each, without a GPU: a
 * failing kernel makes the GPU unusable for its process, so run.sh gives each op its own process.
 *
 * --device=cpu tests this program. Exits with 77 without such a device. */
#include <math.h>

#include "ops/check/op_check.h"
#include "tests/cuda/long_rows.h"
#include "tests/gpu/on_device.h"
#include "tests/gpu/skip.h"

static int failures;

static void fail(const char *name, const char *wrong) {
    printf("%-22s FAILED: %s\n", name, wrong);
    failures++;
}

/* ---- Ops -------------------------------------------------------------------------------------------------------- */

static bool has_kernels(const remat_op *op) {
    const rm_device_api *api = on_device_now()->api;
    if (!api->runs) return true;
    return api->runs(op, REMAT_FORWARD) && (op->constant || api->runs(op, REMAT_BACKWARD));
}

static const char *run_once(const remat_op *op, rm_op_outputs *out) {
    rm_op_setup setup = {.op = op, .threads = 1};
    rm_op_inputs in;
    rm_op_inputs_make(&setup, 21, &in);
    const char *wrong = rm_op_run(&setup, &in, out);
    rm_op_inputs_free(&in);
    return wrong;
}

/* NULL, or what is wrong. */
static const char *check_long_row(const long_row *row) {
    static char text[120];
    const remat_sample sample = long_row_sample(row);
    remat_op op = *rm_op_find(row->op);
    rm_op_outputs here = {0}, there = {0};
    op.samples = &sample, op.n_samples = 1;
    const char *wrong = run_once(&op, &here), *on_gpu = run_once(on_device(&op), &there), *why = on_device_complaint();
    if (!wrong) wrong = why ? why : on_gpu;
    for (int i = -1; i < 2 * REMAT_MAX_INPUTS && !wrong; i++) {
        const int input = i % REMAT_MAX_INPUTS, buffer = i >= REMAT_MAX_INPUTS;
        const rm_op_array *a = i < 0 ? &here.y : buffer ? &here.buffer[input] : &here.dx[input];
        const rm_op_array *b = i < 0 ? &there.y : buffer ? &there.buffer[input] : &there.dx[input];
        const int64_t at = long_row_difference(a, b);
        if (at < 0) continue;
        snprintf(text, sizeof text, "long rows (%lld,%lld ..): element %lld of %s is %.9g, not %.9g",
                 (long long)row->dim[0], (long long)row->dim[1], (long long)at,
                 i < 0    ? "y"
                 : buffer ? "a buffer"
                          : rm_op_dx_name[input],
                 b->value[at], a->value[at]);
        wrong = text;
    }
    rm_op_outputs_free(&here), rm_op_outputs_free(&there);
    return wrong;
}

static void check_op(const remat_op *op) {
    remat_op_report report;
    int64_t calls = on_device_now()->calls;
    remat_status status = rm_op_check_again(on_device(op), rm_op_find_f64(op->name), &report);
    const char *why = on_device_complaint();
    if (!status && !why)
        for (int i = 0; i < LONG_ROWS && !why; i++)
            if (!strcmp(long_rows[i].op, op->name)) why = check_long_row(&long_rows[i]);
    if (status || why) {
        fail(op->name, why ? why : remat_last_error());
        return;
    }
    printf("%-22s %7lld calls   differences at most %5.1f %% of what is allowed\n", op->name,
           (long long)(on_device_now()->calls - calls), 100 * report.float_error);
    fflush(stdout);
}

/* Forward and backward of each sample, whole and in tiles of two timesteps, with rebuild if the op has it. */
static void touch_op(const remat_op *op) {
    for (int sample = 0; sample < op->n_samples; sample++)
        for (int64_t tau = 0; tau <= 2; tau += 2) {
            rm_op_setup setup = {.op = on_device(op), .sample = sample, .threads = 1, .tau = tau, .lean = true};
            rm_op_inputs in;
            rm_op_outputs out;
            setup.with_states = tau > 0;
            rm_op_inputs_make(&setup, 5, &in);
            const char *wrong = rm_op_run(&setup, &in, &out), *why = on_device_complaint();
            if (wrong || why) fail(op->name, why ? why : wrong);
            rm_op_outputs_free(&out), rm_op_inputs_free(&in);
        }
}

/* ---- Optimizers ------------------------------------------------------------------------------------------------- */

static const rm_update configurations[] = {
    {.momentum_factor = 1, .trust_coefficient = 1e-3},
    {.momentum = 0.9, .weight_decay = 0.1, .adapt = true, .trust_coefficient = 1e-3, .momentum_factor = 0.5},
    {.momentum = 0.9, .nesterov = true, .weight_decay = 0.1, .trust_coefficient = 1e-3, .momentum_factor = 1},
    {.adapt = true, .trust_coefficient = 1e-3, .momentum_factor = 1, .norm_limit = 2},
};
enum { CONFIGURATIONS = sizeof configurations / sizeof *configurations, STEPS = 3 };

static void gradient_of_step(float *g, int64_t n, int64_t step) {
    for (int64_t i = 0; i < n; i++) g[i] = (float)((i * 7 + step * 13) % 23 - 11) / 8;
}

/* `all` contains the parameters, both states and the gradient, one after the other, n floats each. */
static void step_on_cpu(const rm_optimizer *o, rm_update *u, int64_t n, float *all) {
    float *const state[] = {all + n, all + 2 * n};
    gradient_of_step(all + 3 * n, n, u->step);
    memset(u->sum, 0, sizeof u->sum);
    if (o->measure) {
        double sum[RM_MAX_OPTIMIZER_SUMS] = {0};
        o->measure(u, n, all, all + 3 * n, state, sum);
        memcpy(u->sum, sum, sizeof sum);
    }
    o->update(u, n, all, all + 3 * n, state);
}

static void step_on_device(const rm_optimizer *o, rm_update *u, int64_t n, char *room, float *gradient) {
    const on_device_state *d = on_device_now();
    uint64_t apart = rm_align_up((uint64_t)n * sizeof(float));
    float *const state[] = {(float *)(room + apart), (float *)(room + 2 * apart)};
    float *parameter = (float *)room, *g = (float *)(room + 3 * apart);
    gradient_of_step(gradient, n, u->step);
    d->api->copy_in(d->queue, g, gradient, (uint64_t)n * sizeof(float));
    memset(u->sum, 0, sizeof u->sum);
    if (o->measure) {
        double sum[RM_MAX_OPTIMIZER_SUMS] = {0};
        d->api->measure(d->queue, o, u, n, parameter, g, state, sum);
        memcpy(u->sum, sum, sizeof sum);
    }
    d->api->update(d->queue, o, u, n, parameter, g, state);
}

static remat_status train_on_device(const rm_optimizer *o, rm_update u, int64_t n, float *all) {
    const on_device_state *d = on_device_now();
    uint64_t bytes = (uint64_t)n * sizeof(float), apart = rm_align_up(bytes);
    char *room = on_device_room(4 * apart + RM_ALIGN);
    REQUIRE(room, MEMORY, "%s", on_device_complaint());
    for (int k = 0; k < 3; k++) d->api->copy_in(d->queue, room + k * apart, all + k * n, bytes);
    for (u.step = 1; u.step <= STEPS; u.step++) step_on_device(o, &u, n, room, all + 3 * n);
    for (int k = 0; k < 3; k++) d->api->copy_out(d->queue, all + k * n, room + k * apart, bytes);
    return d->api->synchronize(d->queue);
}

/* The results may differ by a few roundings per step: norms are summed in another order. */
static bool close_enough(const float *a, const float *b, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (!(fabsf(a[i] - b[i]) <= 2e-6f * (1 + fabsf(a[i])))) return false;
    return true;
}

static const char *compare_optimizer(const rm_optimizer *o, rm_update u, int64_t n) {
    float *cpu = calloc((size_t)(4 * n + 1), sizeof *cpu), *device = calloc((size_t)(4 * n + 1), sizeof *device);
    if (!cpu || !device) abort();
    u.lr = 0.1, u.beta1 = 0.9, u.beta2 = 0.99, u.epsilon = 1e-6, u.gradient_scale = 0.75, u.threads = 1;
    for (int64_t i = 0; i < n; i++) cpu[i] = device[i] = (float)(i % 19 - 9) / 8;
    remat_status status = train_on_device(o, u, n, device);
    for (u.step = 1; u.step <= STEPS; u.step++) step_on_cpu(o, &u, n, cpu);
    bool same = !status && close_enough(cpu, device, 3 * n);
    free(cpu), free(device);
    return same ? NULL : status ? remat_last_error() : "the numbers differ from the CPU's";
}

static void check_optimizer(const rm_optimizer *o, bool few) {
    static const int64_t length[] = {1, 255, 20000, 5000003};
    for (int k = 0; k < (few ? 3 : 4); k++)
        for (int c = 0; c < CONFIGURATIONS; c++) {
            const char *wrong = compare_optimizer(o, configurations[c], length[k]);
            if (!wrong) continue;
            fail(o->name, wrong);
            return;
        }
    printf("%-22s as on the CPU\n", o->name);
}

static void check_sum_of_squares(void) {
    enum { N = 1 << 20 };
    const on_device_state *d = on_device_now();
    float *x = malloc(N * sizeof *x);
    char *room = on_device_room(N * sizeof *x);
    if (!x || !room) abort();
    for (int64_t i = 0; i < N; i++) x[i] = (float)((i * 2654435761u) % 2000) / 1000 - 1;
    d->api->copy_in(d->queue, room, x, N * sizeof *x);
    for (int64_t n = 1; n <= N; n = n * 8 - 1) {
        double expected = rm_sum_of_squares(x, n, 1), got = d->api->sum_of_squares(d->queue, (float *)room, n);
        double again = d->api->sum_of_squares(d->queue, (float *)room, n);
        if (!(fabs(got - expected) <= 1e-13 * expected) || memcmp(&got, &again, sizeof got))
            fail("sum_of_squares", "the sum differs from the CPU's, or between two runs");
    }
    free(x);
}

static bool wanted(const char *only, const char *name) { return !only || !strcmp(only, name); }

static int list(void) {
    for (int i = 0; i < rm_n_ops; i++) printf("--op=%s\n", rm_ops[i]->name);
    for (int i = 0; i < rm_n_optimizers; i++) printf("--op=%s\n", rm_optimizers[i]->name);
    puts("--op=sum_of_squares");
    return EXIT_SUCCESS;
}

int main(int argc, char **argv) {
    if (has_flag(argc, argv, "--list")) return list();
    const char *only = value_of(argc, argv, "--op=", NULL);
    int ops = 0, optimizers = 0;
    bool small = has_flag(argc, argv, "--small"), few = small || has_flag(argc, argv, "--few-elements");
    need_device(on_device_open(value_of(argc, argv, "--device=", "cuda")));
    for (int i = 0; i < rm_n_ops; i++) {
        if (!wanted(only, rm_ops[i]->name)) continue;
        ops++;
        if (!has_kernels(rm_ops[i]))
            fail(rm_ops[i]->name, "no kernels for this device");
        else if (small)
            touch_op(rm_ops[i]);
        else
            check_op(rm_ops[i]);
    }
    for (int i = 0; i < rm_n_optimizers; i++) {
        if (!wanted(only, rm_optimizers[i]->name)) continue;
        optimizers++;
        check_optimizer(rm_optimizers[i], few);
    }
    const bool sum = wanted(only, "sum_of_squares");
    if (sum) check_sum_of_squares();
    if (!ops && !optimizers && !sum) fail(only, "no such op or optimizer; use --list");
    printf("%d ops, %d optimizers, %lld calls of kernels on %s: %d failed\n", ops, optimizers,
           (long long)on_device_now()->calls, on_device_now()->api->name, failures);
    on_device_close();
    return failures ? EXIT_FAILURE : EXIT_SUCCESS;
}
