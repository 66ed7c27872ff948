/* test_cells.c: measures the parts of a recurrent layer's time on a real device: forward, rebuild and backward of
 * one tile, in microseconds per timestep, with and without recorded launches, and products and element-wise kernels
 * alone.
 *
 *     gpu_test_cells [--device=cuda] [--small] [--cell=lstm|gru|rnn_tanh|rnn_relu] [--batch=B] [--hidden=H] [--precision=fp32|tf32|bf16]
 *                    [--tile=timesteps]
 *     gpu_test_cells --list [--small]
 *
 * --list prints the last four flags for each shape of the bench (bench/gpu.py) in each precision, so that run.sh can
 * give each its own process. Exits with 77 without such a device. */
#include <math.h>

#include "ops/cuda/cuda_queue.h"
#include "ops/op.h"
#include "tests/gpu/skip.h"

enum { TRIES = 5, X = 0, W_IH, W_HH, B_IH, B_HH, INPUTS, RESET = INPUTS /* not given */ };

static const rm_device_api *api;
static rm_device *device;
static rm_queue *queue;
static rm_block *block;
static rm_event *from, *to;
static uint64_t at;
static int64_t tau = 64;

static void check(remat_status status) {
    if (status) printf("%s\n", remat_last_error()), exit(EXIT_FAILURE);
}

/* ---- A call ------------------------------------------------------------------------------------------------------ */

static void *take(uint64_t bytes) {
    void *memory = block ? api->claim(block, at, bytes) : NULL; /* without a block: only counts the bytes */
    at += (bytes + 255) / 256 * 256;
    return memory;
}
static remat_tensor tensor(remat_desc desc) { return (remat_tensor){desc, take(rm_desc_bytes(&desc))}; }

static remat_desc real(int rank, int64_t a, int64_t b, int64_t c) {
    return (remat_desc){.dtype = REMAT_F32, .rank = rank, .dim = {a, b, c}};
}

/* A tile in the middle of a sequence; x is as wide as h; everything is saved. */
static remat_call make_call(const remat_op *op, int64_t gates, int64_t batch, int64_t hidden) {
    remat_call c = {.t0 = tau, .t_total = 3 * tau, .training = true, .threads = 1};
    const remat_desc state = real(2, batch, hidden, 0), y = real(3, tau, batch, hidden);
    const remat_desc x[] = {y,
                            real(2, gates * hidden, hidden, 0),
                            real(2, gates * hidden, hidden, 0),
                            real(1, gates * hidden, 0, 0),
                            real(1, gates * hidden, 0, 0),
                            {.rank = -1}};
    at = 0;
    for (int i = 0; i < INPUTS; i++) c.x[i] = tensor(x[i]), c.dx[i] = tensor(x[i]);
    c.x[RESET].desc = x[RESET];
    c.y = tensor(y), c.dy = tensor(y);
    for (int k = 0; k < op->n_state; k++) {
        c.state_in[k] = tensor(state), c.state_out[k] = tensor(state);
        c.dstate_out[k] = tensor(state), c.dstate_in[k] = tensor(state);
    }
    if (op->aux_bytes) c.aux = take(op->aux_bytes(x, c.attr));
    c.scratch = take(op->on[REMAT_ON_CUDA].scratch_bytes(x, c.attr, REMAT_BACKWARD, true, 1) + 256);
    c.fixed = take(op->on[REMAT_ON_CUDA].fixed_bytes(x, c.attr));
    return c;
}

/* ---- Times ------------------------------------------------------------------------------------------------------ */

static void nothing(const rm_cuda_queue *q, const rm_cuda_product *p) { (void)q, (void)p; }

/* Microseconds per timestep of the fastest of some calls; the first two calls load and record. */
static double time_of(const remat_op *op, remat_pass pass, const remat_call *call) {
    double best = 1e30;
    for (int i = 0; i < TRIES + 2; i++) {
        api->event_record(queue, from);
        api->run(queue, op, pass, call);
        api->event_record(queue, to);
        check(api->synchronize(queue));
        if (i >= 2) best = fmin(best, 1e-3 * (double)api->between_ns(from, to) / tau);
    }
    return best;
}

/* The product of each timestep of a tile: h w_hh^T forward, or dgates w_hh backward. */
static double time_of_products(const remat_call *call, int64_t gates, bool back) {
    const rm_cuda_queue *q = (const rm_cuda_queue *)queue;
    const int64_t batch = call->y.desc.dim[1], hidden = call->y.desc.dim[2], wide = gates * hidden;
    void *const made = call->aux ? call->aux : call->scratch;
    const rm_cuda_product p = {.a = back ? made : call->state_in[0].data,
                               .b = call->x[W_HH].data,
                               .c = back ? call->state_out[0].data : made,
                               .m = batch,
                               .n = back ? hidden : wide,
                               .k = back ? wide : hidden,
                               .lda = back ? wide : hidden,
                               .ldb = hidden,
                               .ldc = back ? hidden : wide,
                               .rows_like = back ? 0 : batch,
                               .transpose_b = !back,
                               .add = !back};
    double best = 1e30;
    for (int i = 0; i < TRIES + 2; i++) {
        api->event_record(queue, from);
        for (int t = 0; t < tau; t++) q->multiply(q, &p);
        api->event_record(queue, to);
        check(api->synchronize(queue));
        if (i >= 2) best = fmin(best, 1e-3 * (double)api->between_ns(from, to) / tau);
    }
    return best;
}

/* In its own queue, which reads the environment when it is created. The queue is destroyed at the end, so that the next
 * call gets a new one. */
enum { LINES = 4 };
static rm_queue *used[LINES];
static int n_used;

static void time_line(const remat_op *op, const remat_call *call, const char *what, bool clusters, bool recorded,
                      bool multiplies) {
    if (!recorded) setenv("REMAT_CUDA_GRAPHS", "OFF", 1);
    rm_queue *first = queue;
    check(api->queue_create(device, &queue));
    unsetenv("REMAT_CUDA_GRAPHS");
    rm_cuda_queue *shown = (rm_cuda_queue *)queue; /* the launchers' view of it */
    __typeof__(shown->multiply) multiply = shown->multiply;
    const int found = shown->clusters;
    if (!multiplies) shown->multiply = nothing;
    if (!clusters) shown->clusters = 0;
    double forward = time_of(op, REMAT_FORWARD, call), backward = time_of(op, REMAT_BACKWARD, call), rebuild = 0;
    if (op->on[REMAT_ON_CUDA].rebuild) rebuild = time_of(op, REMAT_REBUILD, call);
    shown->multiply = multiply, shown->clusters = found;
    used[n_used++] = queue;
    queue = first;
    printf("  %-26s forward %8.2f   rebuild %8.2f   backward %8.2f us a timestep\n", what, forward, rebuild, backward);
    fflush(stdout);
}

static void time_cell(const remat_op *op, int64_t batch, int64_t hidden, const char *precision) {
    const int64_t gates = !strcmp(op->name, "lstm") ? 4 : !strcmp(op->name, "gru") ? 3 : 1;
    rm_products known;
    remat_call call = make_call(op, gates, batch, hidden);
    check(api->block_create(device, at, &block)); /* zeros */
    call = make_call(op, gates, batch, hidden);
    printf("%s, batch %lld, hidden %lld, %s, a tile of %lld timesteps\n", op->name, (long long)batch, (long long)hidden,
           precision, (long long)tau);
    time_line(op, &call, "as in training", true, true, true);
    time_line(op, &call, "without clusters", false, true, true);
    time_line(op, &call, "and launches one by one", false, false, true);
    time_line(op, &call, "element-wise kernels alone", false, true, false);
    printf("  %-26s forward %8.2f   %-18s backward %8.2f us a timestep", "its products alone, one by one",
           time_of_products(&call, gates, false), "", time_of_products(&call, gates, true));
    api->products(device, &known);
    printf("; the last by %s\n", known.latest);
    while (n_used) api->queue_free(used[--n_used]);
    api->block_free(block);
}

/* ---- Main entry ------------------------------------------------------------------------------------------------- */

static int list(bool small) {
    static const char *const shape[] = {"--batch=64 --hidden=1024", "--batch=16 --hidden=512",
                                        "--batch=1 --hidden=256",   "--batch=64 --hidden=512",
                                        "--batch=64 --hidden=256",  "--batch=256 --hidden=256"};
    for (rm_precision p = RM_FP32; p < (small ? RM_TF32 : RM_PRECISIONS); p++)
        for (int i = 0; i < (p == RM_BF16 ? 3 : 6) && !small; i++)
            printf("--cell=lstm %s --precision=%s\n", shape[i], rm_precision_names[p]);
    if (small) puts("--cell=lstm --batch=4 --hidden=8 --precision=fp32");
    puts(small ? "--cell=gru --batch=3 --hidden=5 --precision=fp32"
               : "--cell=gru --batch=64 --hidden=1024 --precision=fp32");
    return EXIT_SUCCESS;
}

int main(int argc, char **argv) {
    if (has_flag(argc, argv, "--list")) return list(has_flag(argc, argv, "--small"));
    const char *name = value_of(argc, argv, "--device=", "cuda"), *cell = value_of(argc, argv, "--cell=", "lstm");
    const char *precision = value_of(argc, argv, "--precision=", "fp32");
    const remat_op *op = rm_op_find(cell);
    rm_precision chosen;
    if (!op || !op->on[REMAT_ON_CUDA].fixed_bytes) printf("there is no recurrent cell %s\n", cell), exit(EXIT_FAILURE);
    tau = atoll(value_of(argc, argv, "--tile=", "64"));
    need_device(try_device(name));
    api = rm_device_find(name);
    if (api->kernels != REMAT_ON_CUDA) printf("skipped: the device %s has no CUDA queue\n", name), exit(SKIPPED);
    check(api->open(1, &device));
    need_device(rm_device_set_precision(api, device, precision, &chosen));
    check(api->queue_create(device, &queue));
    check(api->timer_create(device, &from));
    check(api->timer_create(device, &to));
    time_cell(op, atoll(value_of(argc, argv, "--batch=", "16")), atoll(value_of(argc, argv, "--hidden=", "512")),
              precision);
    api->event_free(from);
    api->event_free(to);
    api->queue_free(queue);
    api->close(device);
    puts("microseconds a timestep are above");
    return EXIT_SUCCESS;
}
