/* device.c: the device "cuda": one NVIDIA GPU. Opening it, its block, its speed, and the table rm_device_cuda. cuda.h
 * lists the other files of the device. */
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/cuda/cuda.h"
#include "engine/hash.h"
#include "memory/bytes.h"
#include "memory/clock.h"
#include "memory/host.h"

/* ---- Opening --------------------------------------------------------------------------------------------------- */

static remat_status check_driver(const rm_cuda_library *lib) {
    int driver = 0, runtime = 0;
    TRY(rm_cuda_status(lib, lib->cudaDriverGetVersion(&driver), "asking for the NVIDIA driver"));
    REQUIRE(
        driver, MISSING,
        "the device \"cuda\" needs an NVIDIA driver, but this machine has none; install one, or use the device cpu");
    TRY(rm_cuda_status(lib, lib->cudaRuntimeGetVersion(&runtime), "asking for the CUDA runtime"));
    REQUIRE(
        driver / 1000 >= runtime / 1000, MISSING,
        "this machine's NVIDIA driver is made for CUDA %d.%d, which is too old for this runtime, CUDA %d.%d; install a "
        "newer driver, or use the device cpu",
        driver / 1000, driver / 10 % 100, runtime / 1000, runtime / 10 % 100);
    return REMAT_OK;
}

/* Chooses the visible GPU with the launcher's LOCAL_RANK as its number, or the only one. */
static remat_status choose_gpu(const rm_cuda_library *lib, int *number) {
    int count = 0;
    const char *rank = getenv("LOCAL_RANK");
    TRY(rm_cuda_status(lib, lib->cudaGetDeviceCount(&count), "looking for GPUs"));
    REQUIRE(count > 0, MISSING,
            "CUDA finds no GPU on this machine; check nvidia-smi and CUDA_VISIBLE_DEVICES, or use the device cpu");
    *number = rank && *rank && count > 1 ? atoi(rank) : 0;
    REQUIRE(*number >= 0 && *number < count, INVALID,
            "LOCAL_RANK is %s, but CUDA finds %d GPUs on this host; start at most one rank per GPU", rank, count);
    return REMAT_OK;
}

enum { OLDEST_MAJOR = 7, OLDEST_MINOR = 5, ROUNDING_MAJOR = 8, ROOMY_MAJOR = 9 };

static remat_status check_gpu(rm_device *device) {
    const rm_cuda_library *lib = device->lib;
    int major = 0, minor = 0;
    TRY(rm_cuda_status(lib, lib->cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device->number),
                       "asking for the GPU's kind"));
    TRY(rm_cuda_status(lib, lib->cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device->number),
                       "asking for the GPU's kind"));
    REQUIRE(major > OLDEST_MAJOR || (major == OLDEST_MAJOR && minor >= OLDEST_MINOR), MISSING,
            "GPU %d has compute capability %d.%d; Remat needs %d.%d or newer (Turing); use the device cpu",
            device->number, major, minor, OLDEST_MAJOR, OLDEST_MINOR);
    device->major = major, device->minor = minor;
    device->blas_bytes = (uint64_t)(major >= ROOMY_MAJOR ? 32 : 4) << 20; /* what NVIDIA recommends */
    return REMAT_OK;
}

static remat_status free_memory(rm_device *device, uint64_t *bytes) {
    size_t free = 0, total = 0;
    TRY(rm_cuda_status(device->lib, device->lib->cudaSetDevice(device->number), "choosing the GPU"));
    TRY(rm_cuda_status(device->lib, device->lib->cudaMemGetInfo(&free, &total), "asking for the GPU's free memory"));
    *bytes = free;
    return REMAT_OK;
}

/* Detects a build for other GPUs before its first kernel runs. Loading a kernel also takes memory that must be
 * measured. */
static remat_status check_kernels(const rm_device *device) {
    char doing[100];
    snprintf(doing, sizeof doing, "looking for kernels for GPU %d, of compute capability %d.%d", device->number,
             device->major, device->minor);
    return rm_cuda_status(device->lib, (cudaError_t)rm_cuda_kernels_built.error(), doing);
}

static uint64_t fewer(uint64_t before, uint64_t after) { return before > after ? before - after : 0; }

/* Larger GPUs gain more from recorded launches and have more memory to spare. */
static remat_status set_graph_bytes(rm_device *device) {
    size_t free = 0, total = 0;
    TRY(rm_cuda_status(device->lib, device->lib->cudaMemGetInfo(&free, &total), "asking for the GPU's memory"));
    device->graph_bytes =
        rm_smaller(rm_larger(RM_CUDA_GRAPH_BYTES, total / RM_CUDA_GRAPH_SHARE), RM_CUDA_MOST_GRAPH_BYTES);
    return REMAT_OK;
}

static remat_status start(rm_device *device) {
    uint64_t context, before, after;
    TRY(rm_cuda_library_open(&device->lib));
    TRY(check_driver(device->lib));
    TRY(choose_gpu(device->lib, &device->number));
    TRY(check_gpu(device));
    TRY(rm_cuda_library_open_products());
    TRY(rm_cuda_context_begin(device->lib, device->number, &context));
    device->in_context = true;
    TRY(set_graph_bytes(device));
    TRY(free_memory(device, &before));
    REQUIRE(before > device->blas_bytes, MEMORY,
            "GPU %d has %" PRIu64 " bytes of free memory, but cuBLAS alone needs %" PRIu64
            "; end other programs on it (nvidia-smi lists them)",
            device->number, before, device->blas_bytes);
    TRY(check_kernels(device));
    TRY(rm_cuda_products_create(device, &device->products));
    device->multiply = rm_cuda_multiply;
    TRY(rm_cuda_queue_make(device, &device->spare));
    TRY(free_memory(device, &after));
    device->overhead_bytes = context + rm_cuda_context_most(device->number, RM_CUDA_OPENING, fewer(before, after)) +
                             device->graph_bytes + device->products->trial_bytes;
    return REMAT_OK;
}

static void cuda_close(rm_device *device) {
    if (!device) return;
    if (device->in_context) rm_cuda_context_end(device->number);
    rm_cuda_queue_destroy(device->spare);
    rm_cuda_rnns_free(device->rnns);
    rm_cuda_convs_free(device->convs);
    rm_cuda_dnn_close(device);
    rm_cuda_products_free(device->products);
    rm_free(device);
}

static remat_status cuda_open(int threads, rm_device **out) {
    (void)threads;
    rm_device *device = rm_calloc(1, sizeof *device);
    REQUIRE(device, MEMORY, "out of host memory for a device");
    device->step = -1;
    device->doing = "nothing";
    remat_status status = start(device);
    if (status) cuda_close(device);
    *out = status ? NULL : device;
    return status;
}

static uint64_t cuda_free_bytes(rm_device *device) {
    uint64_t bytes = 0;
    return free_memory(device, &bytes) ? 0 : bytes;
}
static int cuda_number(const rm_device *device) { return device->number; }
static uint64_t cuda_overhead_bytes(rm_device *device) { return device->overhead_bytes; }

static bool cuda_runs(const remat_op *op, remat_pass pass) { return rm_cuda_kernels_built.kernel(op, pass); }

/* A hash of everything that the speed of kernels depends on. Unknown values count as 0. */
static uint64_t cuda_identity(rm_device *device) {
    static const enum cudaDeviceAttr properties[] = {cudaDevAttrComputeCapabilityMajor,
                                                     cudaDevAttrComputeCapabilityMinor,
                                                     cudaDevAttrMultiProcessorCount,
                                                     cudaDevAttrClockRate,
                                                     cudaDevAttrMemoryClockRate,
                                                     cudaDevAttrGlobalMemoryBusWidth,
                                                     cudaDevAttrL2CacheSize};
    const rm_cuda_library *lib = device->lib;
    int value[sizeof properties / sizeof *properties + 4] = {0};
    for (size_t i = 0; i < sizeof properties / sizeof *properties; i++)
        (void)lib->cudaDeviceGetAttribute(&value[i + 4], properties[i], device->number);
    (void)lib->cudaDriverGetVersion(&value[0]);
    (void)lib->cudaRuntimeGetVersion(&value[1]);
    value[2] = (int)(lib->cublasLtGetVersion() + rm_cuda_dnn_version(device));
    (void)lib->cudaSetDevice(device->number);
    value[3] = rm_cuda_clusters();
    for (int i = 0; i < 4; i++) {
        static const char *const off[] = {"REMAT_CUDA_SPLIT_K", "REMAT_CUDA_WORKSPACE", "REMAT_CUDA_GRAPHS",
                                          "REMAT_CUDA_ROUND"};
        const char *set = getenv(off[i]);
        value[3] = 2 * value[3] + (set && !strcmp(set, "OFF"));
    }
    (void)lib->cudaGetLastError();
    return rm_hash(value, sizeof value, 0);
}

static remat_status cuda_set_precision(rm_device *device, rm_precision precision) {
    REQUIRE(precision == RM_FP32 || device->major >= ROUNDING_MAJOR, MISSING,
            "precision %s needs a GPU of compute capability %d.0 or newer (Ampere), but GPU %d has %d; use precision "
            "fp32",
            rm_precision_names[precision], ROUNDING_MAJOR, device->number, device->major);
    const rm_cuda_products *products = device->products;
    device->overhead_bytes += precision == RM_BF16 ? products->rounded_bytes : 0;
    device->overhead_bytes -= products->precision == RM_BF16 ? products->rounded_bytes : 0;
    rm_cuda_products_precision(device->products, precision);
    return rm_cuda_queue_fit(device->spare);
}

static void cuda_products(rm_device *device, rm_products *out) { rm_cuda_products_known(device->products, out); }

static remat_status cuda_use_cudnn(rm_device *device) { return rm_cuda_rnns_create(device, &device->rnns); }

static remat_status cuda_variant(rm_device *device, const remat_op *op, const void *attr, const remat_desc *x,
                                 const int64_t tau[2], rm_variant *out) {
    TRY(rm_cuda_rnn_variant(device, op, x, tau, out));
    return out->op ? REMAT_OK : rm_cuda_conv_variant(device, op, attr, x, tau, out);
}

remat_status rm_cuda_use_dnn(rm_device *device) {
    uint64_t before, after;
    if (device->dnn) return REMAT_OK;
    TRY(free_memory(device, &before));
    TRY(rm_cuda_dnn_open(device));
    TRY(free_memory(device, &after));
    device->overhead_bytes += rm_cuda_context_most(device->number, RM_CUDA_CUDNN, fewer(before, after));
    return REMAT_OK;
}

/* ---- The block ------------------------------------------------------------------------------------------------- */

static remat_status cuda_synchronize(rm_queue *q) {
    (void)rm_cuda_ready(q->device);
    rm_cuda_queue_settle(q);
    if (q->device->failed) rm_cuda_tier_settle(q->device->tier); /* after a failure the caller may free buffers */
    return rm_cuda_tell(q->device);
}

static remat_status cuda_hand_over(rm_queue *q, rm_event *event, void **native) {
    rm_cuda_event_record(q, event);
    *native = event->event;
    return q->device->failed ? cuda_synchronize(q) : REMAT_OK;
}

struct rm_block {
    rm_device *device;
    char *memory;
    uint64_t high_water;
};

static void cuda_block_free(rm_block *block) {
    if (!block) return;
    if (block->memory) (void)block->device->lib->cudaFree(block->memory);
    (void)block->device->lib->cudaGetLastError();
    rm_free(block);
}

/* The memory that the first steps need for trials and recordings must remain free; otherwise products would silently
 * not be tried and kernels not recorded.
 *
 * A queue zeroes the block: a fill on the default stream would not be ordered with our streams. */
static remat_status take_block(rm_device *device, uint64_t bytes, rm_block *block) {
    const rm_cuda_library *lib = device->lib;
    const uint64_t beside = device->products->trial_bytes + device->graph_bytes;
    uint64_t free;
    void *memory;
    rm_queue *queue;
    TRY(free_memory(device, &free));
    REQUIRE(bytes <= free && beside <= free - bytes, MEMORY,
            "the plan needs %" PRIu64 " bytes of GPU memory, and %" PRIu64
            " more to try products and record kernels, but "
            "%" PRIu64 " are free on GPU %d; end other programs on it (nvidia-smi lists them), or set a smaller memory "
            "budget",
            bytes, beside, free, device->number);
    TRY(rm_cuda_status(lib, lib->cudaMalloc(&memory, bytes ? bytes : 1), "taking the plan's memory"));
    block->memory = memory;
    TRY(rm_cuda_queue_create(device, &queue));
    rm_cuda_fill(queue, memory, 0, bytes);
    remat_status status = cuda_synchronize(queue);
    rm_cuda_queue_free(queue);
    return status;
}

static remat_status cuda_block_create(rm_device *device, uint64_t bytes, rm_block **out) {
    rm_block *block = rm_calloc(1, sizeof *block);
    REQUIRE(block, MEMORY, "out of host memory for a block");
    block->device = device;
    remat_status status = take_block(device, bytes, block);
    if (status) cuda_block_free(block);
    *out = status ? NULL : block;
    return status;
}

static void *cuda_claim(rm_block *block, uint64_t offset, uint64_t bytes) {
    if (offset + bytes > block->high_water) block->high_water = offset + bytes;
    return block->memory + offset;
}
static uint64_t cuda_high_water(const rm_block *block) { return block->high_water; }

/* ---- Speed ----------------------------------------------------------------------------------------------------- */

enum { N = 2048, TRIES = 6, CALLS = 64 };

static remat_status measure_rates(rm_queue *q, float *block, rm_rates *out) {
    float *a = block, *b = block + N * N, *c = block + 2 * N * N;
    const rm_cuda_product square = {.a = a, .b = b, .c = c, .m = N, .n = N, .k = N, .lda = N, .ldb = N, .ldc = N};
    double product = 1e30, copy = 1e30, calls = 1e30;
    rm_cuda_fill(q, block, 0, 3 * sizeof *block * N * N);
    TRY(cuda_synchronize(q));
    for (int i = 0; i < TRIES; i++) {
        uint64_t start = rm_now_ns();
        rm_cuda_multiply(&q->shown, &square);
        TRY(cuda_synchronize(q));
        product = fmin(product, (double)(rm_now_ns() - start + 1));
        start = rm_now_ns();
        rm_cuda_copy(q, c, a, sizeof *a * N * N);
        TRY(cuda_synchronize(q));
        copy = fmin(copy, (double)(rm_now_ns() - start + 1));
        start = rm_now_ns();
        for (int k = 0; k < CALLS; k++) rm_cuda_fill(q, c, 0, sizeof *c);
        TRY(cuda_synchronize(q));
        calls = fmin(calls, (double)(rm_now_ns() - start + 1));
    }
    *out = (rm_rates){.flops_per_s = 2e9 * N * (double)N * N / product,
                      .bytes_per_s = 2e9 * sizeof *a * N * N / copy,
                      .call_ns = calls / CALLS};
    return REMAT_OK;
}

static remat_status measure_once(rm_device *device, rm_rates *rates) {
    const rm_cuda_library *lib = device->lib;
    rm_queue *queue;
    void *block;
    TRY(rm_cuda_queue_create(device, &queue));
    remat_status status =
        rm_cuda_status(lib, lib->cudaMalloc(&block, 3 * sizeof(float) * N * N), "measuring the GPU's speed");
    if (!status) {
        status = measure_rates(queue, block, rates);
        rm_cuda_queue_settle(queue);
        (void)lib->cudaFree(block);
    }
    rm_cuda_queue_free(queue);
    return status;
}

/* Measured once per process, GPU and precision. */
static remat_status cuda_rates(rm_device *device, rm_rates *out) {
    enum { GPUS = 64 };
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static rm_rates known[GPUS][RM_PRECISIONS];
    rm_rates own = {0};
    rm_rates *rates = device->number < GPUS ? &known[device->number][device->products->precision] : &own;
    pthread_mutex_lock(&lock);
    remat_status status = rates->flops_per_s > 0 ? REMAT_OK : measure_once(device, rates);
    *out = *rates;
    pthread_mutex_unlock(&lock);
    return status;
}

const rm_device_api rm_device_cuda = {
    .name = "cuda",
    .doc = "one NVIDIA GPU",
    .kernels = REMAT_ON_CUDA,
    .open = cuda_open,
    .close = cuda_close,
    .free_bytes = cuda_free_bytes,
    .overhead_bytes = cuda_overhead_bytes,
    .number = cuda_number,
    .runs = cuda_runs,
    .identity = cuda_identity,
    .set_precision = cuda_set_precision,
    .products = cuda_products,
    .recordings = rm_cuda_graphs_known,
    .use_cudnn = cuda_use_cudnn,
    .variant = cuda_variant,
    .method = rm_cuda_conv_method,
    .rates = cuda_rates,
    .block_create = cuda_block_create,
    .block_free = cuda_block_free,
    .claim = cuda_claim,
    .high_water = cuda_high_water,
    .queue_create = rm_cuda_queue_create,
    .queue_free = rm_cuda_queue_free,
    .event_create = rm_cuda_event_create,
    .timer_create = rm_cuda_timer_create,
    .between_ns = rm_cuda_between_ns,
    .event_free = rm_cuda_event_free,
    .event_record = rm_cuda_event_record,
    .event_wait = rm_cuda_event_wait,
    .synchronize = cuda_synchronize,
    .hand_over = cuda_hand_over,
    .stream = rm_cuda_stream,
    .note = rm_cuda_note,
    .copy_in = rm_cuda_copy_in,
    .copy_out = rm_cuda_copy_out,
    .copy = rm_cuda_copy,
    .fill = rm_cuda_fill,
    .run = rm_cuda_run,
    .pack = rm_cuda_pack,
    .update = rm_cuda_update,
    .measure = rm_cuda_measure,
    .sum_of_squares = rm_cuda_sum_of_squares,
    .compare = rm_cuda_compare,
    .tier_open = rm_cuda_tier_open,
    .tier_measure = rm_cuda_tier_measure,
    .tier_reserve = rm_cuda_tier_reserve,
    .tier_close = rm_cuda_tier_close,
    .tier_save = rm_cuda_tier_save,
    .tier_load = rm_cuda_tier_load,
    .tier_wait = rm_cuda_tier_wait,
    .tier_given = rm_cuda_tier_given,
};
