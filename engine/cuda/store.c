/* store.c: the CUDA device's second tier: page-locked memory of the host, reached by a stream of its own beside the
 * queue's. One stream for both directions, because a plan counts on its transfers being done one at a time and in their
 * order; the queue and it wait for each other by events alone, and the host for neither. */
#include "engine/cuda/cuda.h"
#include "memory/clock.h"
#include "memory/host.h"

/* Transfers whose ends are told apart. One that ended longer ago is waited for as the one that took its event. */
enum { RING = 64 };

struct rm_store {
    rm_device *device;
    cudaStream_t copies;
    cudaEvent_t begin, done[RING];
    char *memory; /* page-locked */
    uint64_t bytes, given;
};

static remat_status make(rm_store *store) {
    const rm_cuda_library *lib = store->device->lib;
    const unsigned plain = cudaEventDisableTiming;
    TRY(rm_cuda_status(lib, lib->cudaStreamCreateWithFlags(&store->copies, cudaStreamNonBlocking), "making a stream"));
    TRY(rm_cuda_status(lib, lib->cudaEventCreateWithFlags(&store->begin, plain), "making an event"));
    for (int i = 0; i < RING; i++)
        TRY(rm_cuda_status(lib, lib->cudaEventCreateWithFlags(&store->done[i], plain), "making an event"));
    return REMAT_OK;
}

remat_status rm_cuda_store_open(rm_device *device, const char *where, rm_store **out) {
    (void)where; /* a directory for the CPU's file; here the host's memory is large and near enough */
    rm_store *store = rm_calloc(1, sizeof *store);
    REQUIRE(store, MEMORY, "out of host memory for a store");
    store->device = device;
    remat_status status = make(store);
    if (status) rm_cuda_store_close(store);
    *out = device->store = status ? NULL : store;
    return status;
}

void rm_cuda_store_settle(rm_store *store) {
    if (store)
        (void)rm_cuda_went(store->device, store->device->lib->cudaStreamSynchronize(store->copies),
                           "waiting for copies");
}

void rm_cuda_store_close(rm_store *store) {
    if (!store) return;
    store->device->store = NULL;
    const rm_cuda_library *lib = store->device->lib;
    if (store->copies) (void)lib->cudaStreamSynchronize(store->copies);
    if (store->memory) (void)lib->cudaFreeHost(store->memory);
    if (store->begin) (void)lib->cudaEventDestroy(store->begin);
    for (int i = 0; i < RING; i++)
        if (store->done[i]) (void)lib->cudaEventDestroy(store->done[i]);
    if (store->copies) (void)lib->cudaStreamDestroy(store->copies);
    (void)lib->cudaGetLastError();
    rm_free(store);
}

remat_status rm_cuda_store_reserve(rm_store *store, uint64_t bytes) {
    const rm_cuda_library *lib = store->device->lib;
    void *memory;
    if (bytes <= store->bytes) return REMAT_OK;
    TRY(rm_cuda_status(lib, lib->cudaStreamSynchronize(store->copies), "waiting for copies"));
    if (store->memory) (void)lib->cudaFreeHost(store->memory);
    store->memory = NULL;
    store->bytes = 0;
    if (lib->cudaMallocHost(&memory, bytes) != cudaSuccess) {
        (void)lib->cudaGetLastError();
        FAIL(MEMORY,
             "the plan moves %llu bytes to the host, which has no room for them as page-locked memory: that cannot be "
             "swapped out, so it must be free (free -m), and within the memory that a container or a job of Slurm's "
             "allows; use a larger memory budget, or give the host more",
             (unsigned long long)bytes);
    }
    store->memory = memory;
    store->bytes = bytes;
    return REMAT_OK;
}

/* ---- Transfers ------------------------------------------------------------------------------------------------- */

/* After what the queue was given before it. */
static bool order_after(rm_queue *queue, rm_store *store) {
    const rm_cuda_library *lib = store->device->lib;
    return rm_cuda_went(store->device, lib->cudaEventRecord(store->begin, queue->stream), "recording an event") &&
           rm_cuda_went(store->device, lib->cudaStreamWaitEvent(store->copies, store->begin, 0), "ordering a copy");
}

static void move(rm_queue *queue, rm_store *store, const rm_part *part, bool save) {
    rm_device *device = store->device;
    const rm_cuda_library *lib = device->lib;
    bool last = part->bytes == part->left, well = rm_cuda_ready(device);
    char *copy = store->memory + part->at;
    if (well && part->address && part->bytes && order_after(queue, store)) {
        cudaError_t error =
            save ? lib->cudaMemcpyAsync(copy, part->address, part->bytes, cudaMemcpyDeviceToHost, store->copies)
                 : lib->cudaMemcpyAsync(part->address, copy, part->bytes, cudaMemcpyHostToDevice, store->copies);
        (void)rm_cuda_went(device, error, save ? "saving to the host" : "loading from the host");
    }
    if (!last) return;
    store->given++;
    if (!device->failed)
        (void)rm_cuda_went(device, lib->cudaEventRecord(store->done[store->given % RING], store->copies),
                           "recording an event");
}

void rm_cuda_store_save(rm_queue *queue, rm_store *store, const rm_part *part) { move(queue, store, part, true); }
void rm_cuda_store_load(rm_queue *queue, rm_store *store, const rm_part *part) { move(queue, store, part, false); }

/* Nothing is under way afterwards, and the failure has been said. */
static remat_status give_up(rm_queue *queue, rm_store *store) {
    (void)rm_cuda_went(store->device, store->device->lib->cudaStreamSynchronize(store->copies), "waiting for copies");
    rm_cuda_queue_settle(queue);
    return rm_cuda_tell(store->device);
}

remat_status rm_cuda_store_wait(rm_queue *queue, rm_store *store, uint64_t count) {
    const rm_cuda_library *lib = store->device->lib;
    if (rm_cuda_ready(store->device) && count)
        (void)rm_cuda_went(store->device, lib->cudaStreamWaitEvent(queue->stream, store->done[count % RING], 0),
                           "waiting for a copy");
    return store->device->failed ? give_up(queue, store) : REMAT_OK;
}

uint64_t rm_cuda_store_given(const rm_store *store) { return store->given; }

/* ---- Speed ----------------------------------------------------------------------------------------------------- */

/* Seconds of the fastest of four copies; negative where one fails. */
static double fastest(const rm_store *store, void *to, const void *from, uint64_t bytes, cudaError_t *error) {
    const rm_cuda_library *lib = store->device->lib;
    double best = 1e30;
    for (int i = 0; i < 4 && !*error; i++) {
        uint64_t start = rm_now_ns();
        *error = lib->cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, store->copies);
        if (!*error) *error = lib->cudaStreamSynchronize(store->copies);
        double took = 1e-9 * (double)(rm_now_ns() - start + 1);
        if (took < best) best = took;
    }
    return best;
}

remat_status rm_cuda_store_measure(rm_store *store, rm_tier *rates) {
    enum { BYTES = 16 << 20 };
    const rm_cuda_library *lib = store->device->lib;
    void *device;
    TRY(rm_cuda_store_reserve(store, BYTES));
    TRY(rm_cuda_status(lib, lib->cudaMalloc(&device, BYTES), "measuring how fast copies are"));
    cudaError_t error = lib->cudaMemsetAsync(device, 0, BYTES, store->copies);
    double save = fastest(store, store->memory, device, BYTES, &error);
    double load = fastest(store, device, store->memory, BYTES, &error);
    if (error) (void)lib->cudaStreamSynchronize(store->copies);
    (void)lib->cudaFree(device);
    TRY(rm_cuda_status(lib, error, "measuring how fast copies are"));
    *rates = (rm_tier){.save_bytes_per_s = (uint64_t)(BYTES / save),
                       .load_bytes_per_s = (uint64_t)(BYTES / load),
                       .latency_ns = 10000,
                       .cost_ns_per_mib = 1000}; /* the GPU's copy engines work beside its processors */
    return REMAT_OK;
}
