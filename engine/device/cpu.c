/* cpu.c: the default device. Its queue runs work immediately on the caller's OpenMP threads, so events and synchronisation do nothing.
 * Its block is the arena of memory/arena.h. */
#include <pthread.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "engine/device/device.h"
#include "memory/arena.h"
#include "memory/clock.h"
#include "memory/host.h"
#include "memory/spill.h"
#include "ops/cpu/kernels.h"
#include "ops/math/gemm.h"
#include "ops/recurrent/recurrent.h"

struct rm_device {
    int threads;
    bool bf16;
    remat_op in_bf16[RM_CELLS]; /* if so */
};
struct rm_queue {
    int threads;
};

static remat_status cpu_open(int threads, rm_device **out) {
    TRY(rm_cell_kernels_check());
    TRY(rm_gemm_prepare(threads));
    *out = rm_calloc(1, sizeof **out);
    REQUIRE(*out, MEMORY, "out of memory for a device");
    (*out)->threads = threads;
    return REMAT_OK;
}
static void cpu_close(rm_device *device) { rm_free(device); }

static remat_status cpu_set_precision(rm_device *device, rm_precision precision) {
    REQUIRE(precision != RM_TF32, MISSING,
            "precision tf32 needs a GPU's tensor cores: use the device cuda or another precision");
    device->bf16 = precision == RM_BF16;
    for (int i = 0; device->bf16 && i < RM_CELLS; i++)
        REQUIRE(rm_recurrent_in_bf16((rm_cell)i, &device->in_bf16[i]), MISSING,
                "precision bf16 needs a processor and a build with AVX512_BF16: use precision fp32");
    return REMAT_OK;
}

static remat_status cpu_variant(rm_device *device, const remat_op *op, const void *attr, const remat_desc *x,
                                const int64_t tau[2], rm_variant *out) {
    (void)attr, (void)x, (void)tau;
    for (int i = 0; device->bf16 && i < RM_CELLS; i++)
        if (!strcmp(device->in_bf16[i].name, op->name)) out->op = &device->in_bf16[i];
    return REMAT_OK;
}

static uint64_t cpu_free_bytes(rm_device *device) {
    (void)device;
    return (uint64_t)sysconf(_SC_AVPHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
}

static double seconds(void) { return 1e-9 * (double)rm_now_ns(); }

/* Takes the best of a few products on one core, times the number of cores, and the best of a few copies. Products on several cores at once
 * would measure how busy the machine is. */
static void measure_rates(float *block, int64_t n, int threads, rm_rates *out) {
    double product = 1e30, copy = 1e30;
    float *a = block, *b = block + n * n, *c = block + 2 * n * n;
    for (int i = 0; i < 8; i++) {
        double start = seconds();
        rm_gemm(1, RM_PLAIN, RM_PLAIN, n, n, n, 1, a, n, b, n, 0, c, n);
        product = fmin(product, seconds() - start);
        start = seconds();
        memcpy(c, a, (size_t)(n * n) * sizeof *a);
        copy = fmin(copy, seconds() - start);
    }
    *out = (rm_rates){.flops_per_s = threads * 2.0 * (double)(n * n * n) / product,
                      .bytes_per_s = 2.0 * (double)(n * n) * sizeof *a / copy,
                      .call_ns = 2000};
}

/* Measured once per process and thread count, for all sessions. */
static remat_status cpu_rates(rm_device *device, rm_rates *out) {
    enum { N = 256, COUNTS = 64 };
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static rm_rates known[COUNTS];
    rm_rates own = {0}, *rates = device->threads < COUNTS ? &known[device->threads] : &own;
    pthread_mutex_lock(&lock);
    float *block = rates->flops_per_s > 0 ? NULL : rm_calloc(3 * N * N, sizeof *block);
    if (block) measure_rates(block, N, device->threads, rates);
    *out = *rates;
    pthread_mutex_unlock(&lock);
    rm_free(block);
    REQUIRE(out->flops_per_s > 0, MEMORY, "out of memory for measuring the CPU's speed");
    return REMAT_OK;
}

static remat_status cpu_block_create(rm_device *device, uint64_t bytes, rm_block **out) {
    (void)device;
    return rm_arena_create(bytes, (rm_arena **)out);
}
static void cpu_block_free(rm_block *block) { rm_arena_free((rm_arena *)block); }
static void *cpu_claim(rm_block *block, uint64_t offset, uint64_t bytes) {
    return rm_arena_claim((rm_arena *)block, offset, bytes);
}
static uint64_t cpu_high_water(const rm_block *block) { return rm_arena_high_water((const rm_arena *)block); }

static remat_status cpu_queue_create(rm_device *device, rm_queue **out) {
    *out = rm_calloc(1, sizeof **out);
    REQUIRE(*out, MEMORY, "out of memory for a queue");
    (*out)->threads = device->threads;
    return REMAT_OK;
}
static void cpu_queue_free(rm_queue *queue) { rm_free(queue); }

/* Work is finished when the call returns, so one shared token stands for every event. */
static remat_status cpu_event_create(rm_device *device, rm_event **out) {
    *out = (rm_event *)device;
    return REMAT_OK;
}
static void cpu_event_free(rm_event *event) { (void)event; }
static void cpu_event(rm_queue *queue, rm_event *event) { (void)queue, (void)event; }
static remat_status cpu_synchronize(rm_queue *queue) {
    (void)queue;
    return REMAT_OK;
}

static void cpu_copy_in(rm_queue *queue, void *device, const void *host, uint64_t bytes) {
    (void)queue;
    memcpy(device, host, bytes);
}
static void cpu_copy_out(rm_queue *queue, void *host, const void *device, uint64_t bytes) {
    (void)queue;
    memcpy(host, device, bytes);
}
static void cpu_fill(rm_queue *queue, void *device, int byte, uint64_t bytes) {
    (void)queue;
    memset(device, byte, bytes);
}

static void cpu_run(rm_queue *queue, const remat_op *op, remat_pass pass, const remat_call *call) {
    remat_call threaded = *call;
    threaded.threads = queue->threads;
    rm_op_kernel(op, REMAT_ON_CPU, pass)(&threaded);
}
static void cpu_pack(rm_queue *queue, const remat_op *op, const remat_call *call, void *packed) {
    remat_call threaded = *call;
    threaded.threads = queue->threads;
    op->on[REMAT_ON_CPU].pack(&threaded, packed);
}
static void cpu_update(rm_queue *queue, const rm_optimizer *optimizer, const rm_update *update, int64_t n,
                       float *parameter, const float *gradient, float *const *state) {
    rm_update threaded = *update;
    threaded.threads = queue->threads;
    optimizer->update(&threaded, n, parameter, gradient, state);
}
static void cpu_measure(rm_queue *queue, const rm_optimizer *optimizer, const rm_update *update, int64_t n,
                        const float *parameter, const float *gradient, float *const *state, double *sum) {
    rm_update threaded = *update;
    threaded.threads = queue->threads;
    optimizer->measure(&threaded, n, parameter, gradient, state, sum);
}
static double cpu_sum_of_squares(rm_queue *queue, const float *x, int64_t n) {
    return rm_sum_of_squares(x, n, queue->threads);
}

static remat_status cpu_tier_open(rm_device *device, const char *where, rm_second_tier **out) {
    (void)device;
    return rm_spill_open(where, (rm_spill **)out);
}
static remat_status cpu_tier_measure(rm_second_tier *tier, rm_tier *rates) {
    return rm_spill_measure((rm_spill *)tier, rates);
}
static remat_status cpu_tier_reserve(rm_second_tier *tier, uint64_t bytes) {
    return rm_spill_reserve((rm_spill *)tier, bytes);
}
static void cpu_tier_close(rm_second_tier *tier) { rm_spill_close((rm_spill *)tier); }
static void cpu_tier_save(rm_queue *queue, rm_second_tier *tier, const rm_part *part) {
    (void)queue;
    rm_spill_save((rm_spill *)tier, part);
}
static void cpu_tier_load(rm_queue *queue, rm_second_tier *tier, const rm_part *part) {
    (void)queue;
    rm_spill_load((rm_spill *)tier, part);
}
static remat_status cpu_tier_wait(rm_queue *queue, rm_second_tier *tier, uint64_t count) {
    (void)queue;
    return rm_spill_wait((rm_spill *)tier, count);
}
static void cpu_tier_watch(rm_second_tier *tier, rm_moved *moved, void *context) {
    rm_spill_watch((rm_spill *)tier, moved, context);
}
static uint64_t cpu_tier_given(const rm_second_tier *tier) { return rm_spill_given((const rm_spill *)tier); }

const rm_device_api rm_device_cpu = {
    .name = "cpu",
    .doc = "this machine's processors, through OpenMP",
    .kernels = REMAT_ON_CPU,
    .reachable = true,
    .open = cpu_open,
    .close = cpu_close,
    .free_bytes = cpu_free_bytes,
    .set_precision = cpu_set_precision,
    .variant = cpu_variant,
    .rounded = "lstm (without a projection), gru and rnn",
    .rates = cpu_rates,
    .block_create = cpu_block_create,
    .block_free = cpu_block_free,
    .claim = cpu_claim,
    .high_water = cpu_high_water,
    .queue_create = cpu_queue_create,
    .queue_free = cpu_queue_free,
    .event_create = cpu_event_create,
    .event_free = cpu_event_free,
    .event_record = cpu_event,
    .event_wait = cpu_event,
    .synchronize = cpu_synchronize,
    .copy_in = cpu_copy_in,
    .copy_out = cpu_copy_out,
    .copy = cpu_copy_in,
    .fill = cpu_fill,
    .run = cpu_run,
    .pack = cpu_pack,
    .update = cpu_update,
    .measure = cpu_measure,
    .sum_of_squares = cpu_sum_of_squares,
    .tier_host_bytes = RM_SPILL_HOST_BYTES,
    .tier_open = cpu_tier_open,
    .tier_measure = cpu_tier_measure,
    .tier_reserve = cpu_tier_reserve,
    .tier_close = cpu_tier_close,
    .tier_save = cpu_tier_save,
    .tier_load = cpu_tier_load,
    .tier_wait = cpu_tier_wait,
    .tier_given = cpu_tier_given,
    .tier_watch = cpu_tier_watch,
};
