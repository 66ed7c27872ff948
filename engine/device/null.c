/* null.c: the device that computes nothing and counts everything. Its block has addresses but no memory, so a plan for any network runs
 * in milliseconds on any machine. It tests the plan, the order of calls and the bytes. */
#include <string.h>

#include "engine/device/device.h"
#include "memory/host.h"
#include "memory/spill.h"

struct rm_second_tier {
    uint64_t given; /* transfers */
};

struct rm_block {
    uint64_t bytes, high_water;
};

/* Addresses in a null block are never NULL and never read. */
static char *const nowhere = (char *)(uintptr_t)(1 << 20);

static remat_status null_open(int threads, rm_device **out) {
    (void)threads;
    *out = (rm_device *)nowhere;
    return REMAT_OK;
}
static void null_close(rm_device *device) { (void)device; }
static uint64_t null_free_bytes(rm_device *device) {
    (void)device;
    return 0;
}
/* Accepts every precision, to plan for machines that have it; bytes are those of fp32. */
static remat_status null_set_precision(rm_device *device, rm_precision precision) {
    (void)device, (void)precision;
    return REMAT_OK;
}
/* Round numbers, the same on every machine: 1 TFLOP/s and 100 GB/s. */
static remat_status null_rates(rm_device *device, rm_rates *out) {
    (void)device;
    *out = (rm_rates){.flops_per_s = 1e12, .bytes_per_s = 1e11, .call_ns = 1000};
    return REMAT_OK;
}

static remat_status null_block_create(rm_device *device, uint64_t bytes, rm_block **out) {
    (void)device;
    *out = rm_calloc(1, sizeof **out);
    REQUIRE(*out, MEMORY, "out of memory for a block");
    (*out)->bytes = bytes;
    return REMAT_OK;
}
static void null_block_free(rm_block *block) { rm_free(block); }
static void *null_claim(rm_block *block, uint64_t offset, uint64_t bytes) {
    if (offset + bytes > block->high_water) block->high_water = offset + bytes;
    return nowhere + offset;
}
static uint64_t null_high_water(const rm_block *block) { return block->high_water; }

static remat_status null_queue_create(rm_device *device, rm_queue **out) {
    *out = (rm_queue *)device;
    return REMAT_OK;
}
static void null_queue_free(rm_queue *queue) { (void)queue; }
static remat_status null_event_create(rm_device *device, rm_event **out) {
    *out = (rm_event *)device;
    return REMAT_OK;
}
static void null_event_free(rm_event *event) { (void)event; }
static void null_event(rm_queue *queue, rm_event *event) { (void)queue, (void)event; }
static remat_status null_synchronize(rm_queue *queue) {
    (void)queue;
    return REMAT_OK;
}
static void null_copy(rm_queue *queue, void *to, const void *from, uint64_t bytes) {
    (void)queue, (void)to, (void)from, (void)bytes;
}
static void null_copy_out(rm_queue *queue, void *host, const void *device, uint64_t bytes) {
    (void)queue, (void)device;
    memset(host, 0, bytes); /* reading from the null device gives zeros */
}
static void null_fill(rm_queue *queue, void *device, int byte, uint64_t bytes) {
    (void)queue, (void)device, (void)byte, (void)bytes;
}
static void null_run(rm_queue *queue, const remat_op *op, remat_pass pass, const remat_call *call) {
    (void)queue, (void)op, (void)pass, (void)call;
}
static void null_pack(rm_queue *queue, const remat_op *op, const remat_call *call, void *packed) {
    (void)queue, (void)op, (void)call, (void)packed;
}
static void null_update(rm_queue *queue, const rm_optimizer *optimizer, const rm_update *update, int64_t n,
                        float *parameter, const float *gradient, float *const *state) {
    (void)queue, (void)optimizer, (void)update, (void)n, (void)parameter, (void)gradient, (void)state;
}
static void null_measure(rm_queue *queue, const rm_optimizer *optimizer, const rm_update *update, int64_t n,
                         const float *parameter, const float *gradient, float *const *state, double *sum) {
    (void)queue, (void)optimizer, (void)update, (void)n, (void)parameter, (void)gradient, (void)state, (void)sum;
}
static double null_sum_of_squares(rm_queue *queue, const float *x, int64_t n) {
    (void)queue, (void)x, (void)n;
    return 0;
}

static remat_status null_tier_open(rm_device *device, const char *where, rm_second_tier **out) {
    (void)device, (void)where;
    *out = rm_calloc(1, sizeof **out);
    REQUIRE(*out, MEMORY, "out of memory for a tier");
    return REMAT_OK;
}
/* A round number: 10 GB/s in each direction. */
static remat_status null_tier_measure(rm_second_tier *tier, rm_tier *rates) {
    (void)tier;
    *rates = (rm_tier){
        .save_bytes_per_s = 10000000000, .load_bytes_per_s = 10000000000, .latency_ns = 10000, .cost_ns_per_mib = 1000};
    return REMAT_OK;
}
static remat_status null_tier_reserve(rm_second_tier *tier, uint64_t bytes) {
    (void)tier, (void)bytes;
    return REMAT_OK;
}
static void null_tier_close(rm_second_tier *tier) { rm_free(tier); }
static void null_tier_move(rm_queue *queue, rm_second_tier *tier, const rm_part *part) {
    (void)queue;
    tier->given += part->bytes == part->left;
}
static remat_status null_tier_wait(rm_queue *queue, rm_second_tier *tier, uint64_t count) {
    (void)queue, (void)tier, (void)count;
    return REMAT_OK;
}
static uint64_t null_tier_given(const rm_second_tier *tier) { return tier->given; }

const rm_device_api rm_device_null = {
    .name = "null",
    .doc = "computes nothing, counts everything",
    .kernels = REMAT_ON_CPU,
    .open = null_open,
    .close = null_close,
    .free_bytes = null_free_bytes,
    .set_precision = null_set_precision,
    .rates = null_rates,
    .block_create = null_block_create,
    .block_free = null_block_free,
    .claim = null_claim,
    .high_water = null_high_water,
    .queue_create = null_queue_create,
    .queue_free = null_queue_free,
    .event_create = null_event_create,
    .event_free = null_event_free,
    .event_record = null_event,
    .event_wait = null_event,
    .synchronize = null_synchronize,
    .copy_in = null_copy,
    .copy_out = null_copy_out,
    .copy = null_copy,
    .fill = null_fill,
    .run = null_run,
    .pack = null_pack,
    .update = null_update,
    .measure = null_measure,
    .sum_of_squares = null_sum_of_squares,
    .tier_host_bytes = RM_SPILL_HOST_BYTES, /* the CPU's, because plans are made for it */
    .tier_open = null_tier_open,
    .tier_measure = null_tier_measure,
    .tier_reserve = null_tier_reserve,
    .tier_close = null_tier_close,
    .tier_save = null_tier_move,
    .tier_load = null_tier_move,
    .tier_wait = null_tier_wait,
    .tier_given = null_tier_given,
};
