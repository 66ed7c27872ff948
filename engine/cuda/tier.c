/* tier.c: the CUDA device's second tier: page-locked host memory, with a separate stream for copies. A single stream
 * serves both directions, since a plan assumes that transfers run one at a time and in order. The stream and the queue
 * wait for each other through events; the host waits for neither. */
#include "engine/cuda/cuda.h"
#include "memory/clock.h"
#include "memory/host.h"

/* Number of events for the ends of transfers. To wait for an older transfer is to wait for the later one that reuses
 * its event. */
enum { RING = 64 };

struct rm_second_tier {
    rm_device *device;
    cudaStream_t copies;
    cudaEvent_t begin, done[RING];
    char *memory; /* page-locked */
    uint64_t bytes, given;
};

static remat_status make(rm_second_tier *tier) {
    const rm_cuda_library *lib = tier->device->lib;
    const unsigned plain = cudaEventDisableTiming;
    TRY(rm_cuda_status(lib, lib->cudaStreamCreateWithFlags(&tier->copies, cudaStreamNonBlocking), "making a stream"));
    TRY(rm_cuda_status(lib, lib->cudaEventCreateWithFlags(&tier->begin, plain), "making an event"));
    for (int i = 0; i < RING; i++)
        TRY(rm_cuda_status(lib, lib->cudaEventCreateWithFlags(&tier->done[i], plain), "making an event"));
    return REMAT_OK;
}

remat_status rm_cuda_tier_open(rm_device *device, const char *where, rm_second_tier **out) {
    (void)where; /* the directory is for the CPU's tier, a file; here host memory is large and fast enough */
    rm_second_tier *tier = rm_calloc(1, sizeof *tier);
    REQUIRE(tier, MEMORY, "out of host memory for a tier");
    tier->device = device;
    remat_status status = make(tier);
    if (status) rm_cuda_tier_close(tier);
    *out = device->tier = status ? NULL : tier;
    return status;
}

void rm_cuda_tier_settle(rm_second_tier *tier) {
    if (tier)
        (void)rm_cuda_went(tier->device, tier->device->lib->cudaStreamSynchronize(tier->copies), "waiting for copies");
}

void rm_cuda_tier_close(rm_second_tier *tier) {
    if (!tier) return;
    tier->device->tier = NULL;
    const rm_cuda_library *lib = tier->device->lib;
    if (tier->copies) (void)lib->cudaStreamSynchronize(tier->copies);
    if (tier->memory) (void)lib->cudaFreeHost(tier->memory);
    if (tier->begin) (void)lib->cudaEventDestroy(tier->begin);
    for (int i = 0; i < RING; i++)
        if (tier->done[i]) (void)lib->cudaEventDestroy(tier->done[i]);
    if (tier->copies) (void)lib->cudaStreamDestroy(tier->copies);
    (void)lib->cudaGetLastError();
    rm_free(tier);
}

remat_status rm_cuda_tier_reserve(rm_second_tier *tier, uint64_t bytes) {
    const rm_cuda_library *lib = tier->device->lib;
    void *memory;
    if (bytes <= tier->bytes) return REMAT_OK;
    TRY(rm_cuda_status(lib, lib->cudaStreamSynchronize(tier->copies), "waiting for copies"));
    if (tier->memory) (void)lib->cudaFreeHost(tier->memory);
    tier->memory = NULL;
    tier->bytes = 0;
    if (lib->cudaMallocHost(&memory, bytes) != cudaSuccess) {
        (void)lib->cudaGetLastError();
        FAIL(MEMORY,
             "the plan moves %llu bytes to the host, which cannot allocate as much page-locked memory; this cannot be "
             "swapped out, so it must be free (free -m) and within the limit of a container or Slurm job; use a larger "
             "memory budget, or give the host more memory",
             (unsigned long long)bytes);
    }
    tier->memory = memory;
    tier->bytes = bytes;
    return REMAT_OK;
}

/* ---- Transfers ------------------------------------------------------------------------------------------------- */

/* Orders the next copy after all work in the queue. */
static bool order_after(rm_queue *queue, rm_second_tier *tier) {
    const rm_cuda_library *lib = tier->device->lib;
    return rm_cuda_went(tier->device, lib->cudaEventRecord(tier->begin, queue->stream), "recording an event") &&
           rm_cuda_went(tier->device, lib->cudaStreamWaitEvent(tier->copies, tier->begin, 0), "ordering a copy");
}

static void move(rm_queue *queue, rm_second_tier *tier, const rm_part *part, bool save) {
    rm_device *device = tier->device;
    const rm_cuda_library *lib = device->lib;
    bool last = part->bytes == part->left, well = rm_cuda_ready(device);
    char *copy = tier->memory + part->at;
    if (well && part->address && part->bytes && order_after(queue, tier)) {
        cudaError_t error =
            save ? lib->cudaMemcpyAsync(copy, part->address, part->bytes, cudaMemcpyDeviceToHost, tier->copies)
                 : lib->cudaMemcpyAsync(part->address, copy, part->bytes, cudaMemcpyHostToDevice, tier->copies);
        (void)rm_cuda_went(device, error, save ? "saving to the host" : "loading from the host");
    }
    if (!last) return;
    tier->given++;
    if (!device->failed)
        (void)rm_cuda_went(device, lib->cudaEventRecord(tier->done[tier->given % RING], tier->copies),
                           "recording an event");
}

void rm_cuda_tier_save(rm_queue *queue, rm_second_tier *tier, const rm_part *part) { move(queue, tier, part, true); }
void rm_cuda_tier_load(rm_queue *queue, rm_second_tier *tier, const rm_part *part) { move(queue, tier, part, false); }

/* Waits for all copies and reports the failure. */
static remat_status give_up(rm_queue *queue, rm_second_tier *tier) {
    (void)rm_cuda_went(tier->device, tier->device->lib->cudaStreamSynchronize(tier->copies), "waiting for copies");
    rm_cuda_queue_settle(queue);
    return rm_cuda_tell(tier->device);
}

remat_status rm_cuda_tier_wait(rm_queue *queue, rm_second_tier *tier, uint64_t count) {
    const rm_cuda_library *lib = tier->device->lib;
    if (rm_cuda_ready(tier->device) && count)
        (void)rm_cuda_went(tier->device, lib->cudaStreamWaitEvent(queue->stream, tier->done[count % RING], 0),
                           "waiting for a copy");
    return tier->device->failed ? give_up(queue, tier) : REMAT_OK;
}

uint64_t rm_cuda_tier_given(const rm_second_tier *tier) { return tier->given; }

/* ---- Speed ----------------------------------------------------------------------------------------------------- */

/* Seconds of the fastest of four copies. *error: the first failure. */
static double fastest(const rm_second_tier *tier, void *to, const void *from, uint64_t bytes, cudaError_t *error) {
    const rm_cuda_library *lib = tier->device->lib;
    double best = 1e30;
    for (int i = 0; i < 4 && !*error; i++) {
        uint64_t start = rm_now_ns();
        *error = lib->cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, tier->copies);
        if (!*error) *error = lib->cudaStreamSynchronize(tier->copies);
        double took = 1e-9 * (double)(rm_now_ns() - start + 1);
        if (took < best) best = took;
    }
    return best;
}

remat_status rm_cuda_tier_measure(rm_second_tier *tier, rm_tier *rates) {
    enum { BYTES = 16 << 20 };
    const rm_cuda_library *lib = tier->device->lib;
    void *device;
    TRY(rm_cuda_tier_reserve(tier, BYTES));
    TRY(rm_cuda_status(lib, lib->cudaMalloc(&device, BYTES), "measuring how fast copies are"));
    cudaError_t error = lib->cudaMemsetAsync(device, 0, BYTES, tier->copies);
    double save = fastest(tier, tier->memory, device, BYTES, &error);
    double load = fastest(tier, device, tier->memory, BYTES, &error);
    if (error) (void)lib->cudaStreamSynchronize(tier->copies);
    (void)lib->cudaFree(device);
    TRY(rm_cuda_status(lib, error, "measuring how fast copies are"));
    *rates = (rm_tier){.save_bytes_per_s = (uint64_t)(BYTES / save),
                       .load_bytes_per_s = (uint64_t)(BYTES / load),
                       .latency_ns = 10000,
                       .cost_ns_per_mib = 1000}; /* copy engines run concurrently with kernels */
    return REMAT_OK;
}
