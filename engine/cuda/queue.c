/* queue.c: the CUDA device's queue: one stream, which orders all work, its cuBLAS handle, and page-locked staging
 * memory for copies of pageable host memory. Nothing is allocated after the queue has been made. */
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/cuda/cuda.h"
#include "memory/bytes.h"
#include "memory/clock.h"
#include "memory/host.h"

/* ---- Life ----------------------------------------------------------------------------------------------------- */

static remat_status make_stages(rm_queue *q) {
    const rm_cuda_library *lib = q->device->lib;
    void *memory;
    TRY(rm_cuda_status(lib, lib->cudaMallocHost(&memory, RM_CUDA_STAGES * RM_CUDA_STAGE_BYTES),
                       "taking page-locked memory for copies to and from the GPU"));
    for (int i = 0; i < RM_CUDA_STAGES; i++) {
        q->stage[i].memory = (char *)memory + i * RM_CUDA_STAGE_BYTES;
        TRY(rm_cuda_status(lib, lib->cudaEventCreateWithFlags(&q->stage[i].done, cudaEventDisableTiming),
                           "making an event"));
    }
    return REMAT_OK;
}

static remat_status make_blas(rm_queue *q) {
    const rm_cuda_library *lib = q->device->lib;
    TRY(rm_cublas_status(lib, lib->cublasCreate_v2(&q->blas), "starting cuBLAS"));
    TRY(rm_cublas_status(lib, lib->cublasSetStream_v2(q->blas, q->stream), "giving cuBLAS its stream"));
    return rm_cublas_status(lib, lib->cublasSetWorkspace_v2(q->blas, q->own, q->device->blas_bytes),
                            "giving cuBLAS its workspace");
}

int rm_cuda_clusters(void) {
    const char *set = getenv("REMAT_CUDA_CLUSTERS");
    bool off = set && !strcmp(set, "OFF");
    return off || !rm_cuda_kernels_built.clusters ? 0 : rm_cuda_kernels_built.clusters();
}

static remat_status make(rm_queue *q) {
    const rm_device *device = q->device;
    const rm_cuda_library *lib = device->lib;
    uint64_t partials = RM_CUDA_PARTIAL_BYTES, sums = RM_MAX_OPTIMIZER_SUMS * sizeof(double);
    void *own;
    TRY(rm_cuda_status(lib, lib->cudaStreamCreateWithFlags(&q->stream, cudaStreamNonBlocking), "making a stream"));
    TRY(rm_cuda_status(lib, lib->cudaMalloc(&own, device->blas_bytes + partials + sums),
                       "taking the GPU's memory for cuBLAS's workspace"));
    q->own = own;
    double *partial = (double *)(q->own + device->blas_bytes);
    q->sums = partial + RM_CUDA_PARTIAL_BYTES / sizeof *partial;
    TRY(make_blas(q));
    TRY(make_stages(q));
    TRY(rm_cuda_graphs_make(q));
    q->shown = (rm_cuda_queue){.stream = q->stream,
                               .partial = partial,
                               .clusters = rm_cuda_clusters(),
                               .multiply = device->multiply,
                               .begin = rm_cuda_graph_begin,
                               .end = rm_cuda_graph_end};
    return REMAT_OK;
}

void rm_cuda_queue_destroy(rm_queue *q) {
    if (!q) return;
    const rm_cuda_library *lib = q->device->lib;
    if (q->stream) (void)lib->cudaStreamSynchronize(q->stream);
    rm_cuda_graphs_destroy(q);
    if (q->blas) (void)lib->cublasDestroy_v2(q->blas);
    for (int i = 0; i < RM_CUDA_STAGES; i++)
        if (q->stage[i].done) (void)lib->cudaEventDestroy(q->stage[i].done);
    if (q->stage[0].memory) (void)lib->cudaFreeHost(q->stage[0].memory);
    if (q->own) (void)lib->cudaFree(q->own);
    if (q->rounded) (void)lib->cudaFree(q->rounded);
    if (q->stream) (void)lib->cudaStreamDestroy(q->stream);
    (void)lib->cudaGetLastError();
    rm_free(q);
}

remat_status rm_cuda_queue_make(rm_device *device, rm_queue **out) {
    rm_queue *q = rm_calloc(1, sizeof *q);
    REQUIRE(q, MEMORY, "out of host memory for a queue");
    q->device = device;
    remat_status status = make(q);
    if (status) rm_cuda_queue_destroy(q);
    *out = status ? NULL : q;
    return status;
}

remat_status rm_cuda_queue_fit(rm_queue *q) {
    const rm_cuda_library *lib = q ? q->device->lib : NULL;
    const rm_cuda_products *products = q ? q->device->products : NULL;
    const uint64_t bytes = q && products->precision == RM_BF16 ? products->rounded_bytes : 0;
    void *memory;
    if (!q || !q->rounded == !bytes) return REMAT_OK;
    TRY(rm_cuda_status(lib, lib->cudaSetDevice(q->device->number), "choosing the GPU"));
    if (bytes) {
        TRY(rm_cuda_status(lib, lib->cudaMalloc(&memory, bytes), "taking the GPU's memory for operands in bf16"));
        q->rounded = memory;
        return REMAT_OK;
    }
    memory = q->rounded;
    q->rounded = NULL;
    return rm_cuda_status(lib, lib->cudaFree(memory), "giving back the memory for operands in bf16");
}

remat_status rm_cuda_queue_create(rm_device *device, rm_queue **out) {
    rm_queue *q = device->spare;
    remat_status status = REMAT_OK;
    *out = device->spare = NULL;
    if (!q) {
        TRY(rm_cuda_status(device->lib, device->lib->cudaSetDevice(device->number), "choosing the GPU"));
        status = rm_cuda_queue_make(device, &q);
    }
    if (!status) status = rm_cuda_queue_fit(q);
    if (status)
        rm_cuda_queue_destroy(q);
    else
        *out = q;
    return status;
}

/* The launches that a calibration recorded are not those of training, so the spare queue forgets them, which frees
 * their slots. */
void rm_cuda_queue_free(rm_queue *q) {
    if (!q) return;
    rm_device *device = q->device;
    (void)device->lib->cudaSetDevice(device->number);
    rm_cuda_queue_settle(q);
    q->poll = NULL;
    device->failed = REMAT_OK;
    if (device->spare) {
        rm_cuda_queue_destroy(q);
        return;
    }
    rm_cuda_graphs_forget(q);
    device->spare = q;
}

/* ---- Events ---------------------------------------------------------------------------------------------------- */

static remat_status create_event(rm_device *device, unsigned flags, rm_event **out) {
    rm_event *event = rm_calloc(1, sizeof *event);
    REQUIRE(event, MEMORY, "out of host memory for an event");
    event->device = device;
    remat_status status =
        rm_cuda_status(device->lib, device->lib->cudaEventCreateWithFlags(&event->event, flags), "making an event");
    if (status) rm_free(event);
    *out = status ? NULL : event;
    return status;
}
remat_status rm_cuda_event_create(rm_device *device, rm_event **out) {
    return create_event(device, cudaEventDisableTiming, out);
}
remat_status rm_cuda_timer_create(rm_device *device, rm_event **out) {
    return create_event(device, cudaEventDefault, out);
}
uint64_t rm_cuda_between_ns(rm_event *from, rm_event *to) {
    float ms = 0;
    bool went = rm_cuda_went(from->device, from->device->lib->cudaEventElapsedTime(&ms, from->event, to->event),
                             "reading how long work took");
    return went && ms > 0 ? (uint64_t)(1e6 * (double)ms) : 0;
}
void rm_cuda_event_free(rm_event *event) {
    if (event) (void)event->device->lib->cudaEventDestroy(event->event);
    rm_free(event);
}
void rm_cuda_event_record(rm_queue *q, rm_event *event) {
    if (!rm_cuda_ready(q->device)) return;
    (void)rm_cuda_went(q->device, q->device->lib->cudaEventRecord(event->event, q->stream), "recording an event");
}
void rm_cuda_event_wait(rm_queue *q, rm_event *event) {
    if (!rm_cuda_ready(q->device)) return;
    (void)rm_cuda_went(q->device, q->device->lib->cudaStreamWaitEvent(q->stream, event->event, 0),
                       "waiting for an event");
}

/* ---- Waiting --------------------------------------------------------------------------------------------------- */

/* While another process may be the reason for the wait: sleeps between polls after a while. */
enum { AWAKE_NS = 1000000, NAP_NS = 50000 };

/* Waits for the event, or for all work if it is NULL. After a poll has failed, the wait continues until the queue is
 * empty, because the caller may free memory that its work uses. */
static bool wait_and_poll(rm_queue *q, cudaEvent_t event, const char *doing) {
    rm_device *device = q->device;
    const rm_cuda_library *lib = device->lib;
    for (uint64_t start = rm_now_ns();;) {
        cudaError_t state = event && !device->failed ? lib->cudaEventQuery(event) : lib->cudaStreamQuery(q->stream);
        if (state == cudaErrorNotReady) (void)lib->cudaGetLastError(); /* CUDA remembers it as if it were an error */
        remat_status lost = q->poll(q->poller);
        if (lost && !device->failed) {
            device->failed = lost;
            snprintf(device->sentence, sizeof device->sentence, "%s", remat_last_error());
        }
        if (state != cudaErrorNotReady) return rm_cuda_went(device, state, doing) && !device->failed;
        if (rm_now_ns() - start < AWAKE_NS)
            sched_yield();
        else
            nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
    }
}

static bool wait_for_event(rm_queue *q, cudaEvent_t event, const char *doing) {
    if (q->poll) return wait_and_poll(q, event, doing);
    return rm_cuda_went(q->device, q->device->lib->cudaEventSynchronize(event), doing);
}

static bool wait_for_all(rm_queue *q, const char *doing) {
    if (q->poll) return wait_and_poll(q, NULL, doing);
    return rm_cuda_went(q->device, q->device->lib->cudaStreamSynchronize(q->stream), doing);
}

void *rm_cuda_stream(rm_queue *q, remat_status (*poll)(void *context), void *context) {
    q->poll = poll;
    q->poller = context;
    return q->stream;
}

/* ---- Copies ---------------------------------------------------------------------------------------------------- */

/* Copies data that have arrived from the GPU to their destination. */
static void unload(rm_cuda_stage *stage) {
    if (stage->travels && stage->to) memcpy(stage->to, stage->memory, stage->bytes);
    stage->travels = false;
}

void rm_cuda_queue_settle(rm_queue *q) {
    rm_device *device = q->device;
    bool well = wait_for_all(q, "waiting for the GPU");
    for (int i = 0; i < RM_CUDA_STAGES; i++) {
        rm_cuda_stage *stage = &q->stage[(q->next_stage + i) % RM_CUDA_STAGES]; /* the oldest first */
        if (!well || device->failed) stage->to = NULL;
        unload(stage);
    }
}

/* The least recently used stage, emptied; NULL after a failure. */
static rm_cuda_stage *take_stage(rm_queue *q) {
    rm_cuda_stage *stage = &q->stage[q->next_stage];
    if (stage->travels && !wait_for_event(q, stage->done, "waiting for a copy")) return NULL;
    unload(stage);
    q->next_stage = (q->next_stage + 1) % RM_CUDA_STAGES;
    return stage;
}

/* Starts the copy between a stage and the GPU. `to`: the final destination on the host; NULL: the copy goes to the
 * GPU. */
static bool send(rm_queue *q, rm_cuda_stage *stage, void *device, void *to, uint64_t bytes) {
    const rm_cuda_library *lib = q->device->lib;
    cudaError_t error = to ? lib->cudaMemcpyAsync(stage->memory, device, bytes, cudaMemcpyDeviceToHost, q->stream)
                           : lib->cudaMemcpyAsync(device, stage->memory, bytes, cudaMemcpyHostToDevice, q->stream);
    if (!rm_cuda_went(q->device, error, to ? "copying from the GPU" : "copying to the GPU")) return false;
    if (!rm_cuda_went(q->device, lib->cudaEventRecord(stage->done, q->stream), "recording an event")) return false;
    stage->travels = true;
    stage->to = to;
    stage->bytes = bytes;
    return true;
}

static void travel(rm_queue *q, char *device, char *host, uint64_t bytes, bool in) {
    if (!rm_cuda_ready(q->device)) return;
    for (uint64_t done = 0; done < bytes; done += RM_CUDA_STAGE_BYTES) {
        uint64_t part = bytes - done < RM_CUDA_STAGE_BYTES ? bytes - done : RM_CUDA_STAGE_BYTES;
        rm_cuda_stage *stage = take_stage(q);
        if (!stage) return;
        if (in) memcpy(stage->memory, host + done, part);
        if (!send(q, stage, device + done, in ? NULL : host + done, part)) return;
    }
}

void rm_cuda_copy_in(rm_queue *q, void *device, const void *host, uint64_t bytes) {
    travel(q, device, (char *)(uintptr_t)host, bytes, true);
}
void rm_cuda_copy_out(rm_queue *q, void *host, const void *device, uint64_t bytes) {
    travel(q, (char *)(uintptr_t)device, host, bytes, false);
}
void rm_cuda_copy(rm_queue *q, void *to, const void *from, uint64_t bytes) {
    if (!bytes || !rm_cuda_ready(q->device)) return;
    cudaError_t error = q->device->lib->cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, q->stream);
    (void)rm_cuda_went(q->device, error, "copying within the GPU");
}
void rm_cuda_fill(rm_queue *q, void *device, int byte, uint64_t bytes) {
    if (!bytes || !rm_cuda_ready(q->device)) return;
    (void)rm_cuda_went(q->device, q->device->lib->cudaMemsetAsync(device, byte, bytes, q->stream),
                       "filling the GPU's memory");
}

/* ---- Kernels ---------------------------------------------------------------------------------------------------- */

void rm_cuda_note(rm_queue *q, int64_t step) { q->device->step = step; }

/* Launchers return nothing; CUDA records failed launches. */
static void launched(rm_queue *q) {
    (void)rm_cuda_went(q->device, q->device->lib->cudaGetLastError(), "starting a kernel");
}

/* Prepares the call of a launcher. A session that needs a missing one is refused before it runs
 * (rm_device_api.runs). */
static bool there(rm_queue *q, const char *name, const void *what, uint64_t pass, bool has) {
    if (!rm_cuda_ready(q->device)) return false;
    q->device->doing = name;
    q->running[0] = (uintptr_t)what;
    q->running[1] = pass;
    if (has) return true;
    q->device->failed = REMAT_MISSING;
    snprintf(q->device->sentence, sizeof q->device->sentence, "%s has no CUDA kernel in this build; use the device cpu",
             name);
    return false;
}

void rm_cuda_run(rm_queue *q, const remat_op *op, remat_pass pass, const remat_call *call) {
    remat_kernel *kernel = rm_cuda_kernels_built.kernel(op, pass);
    if (!there(q, op->name, op, pass, kernel)) return;
    remat_call with_queue = *call;
    with_queue.queue = &q->shown;
    with_queue.threads = 1;
    kernel(&with_queue);
    launched(q);
}

void rm_cuda_pack(rm_queue *q, const remat_op *op, const remat_call *call, void *packed) {
    if (!there(q, op->name, op, REMAT_FORWARD, op->on[REMAT_ON_CUDA].pack)) return;
    remat_call with_queue = *call;
    with_queue.queue = &q->shown;
    op->on[REMAT_ON_CUDA].pack(&with_queue, packed);
    launched(q);
}

void rm_cuda_update(rm_queue *q, const rm_optimizer *optimizer, const rm_update *update, int64_t n, float *parameter,
                    const float *gradient, float *const *state) {
    __typeof__(optimizer->update_cuda) kernel = rm_cuda_kernels_built.update(optimizer);
    if (!there(q, optimizer->name, optimizer, 0, kernel)) return;
    kernel(&q->shown, update, n, parameter, gradient, state);
    launched(q);
}

/* Waits for the queue's sums. A failure makes them NaN, and shows at the next synchronize. */
static void fetch_sums(rm_queue *q, int count, double *sum) {
    rm_cuda_copy_out(q, sum, q->sums, (uint64_t)count * sizeof *sum);
    rm_cuda_queue_settle(q); /* also after a failure, so that nothing is written to `sum` later */
    for (int i = 0; i < count && q->device->failed; i++) sum[i] = NAN;
}

void rm_cuda_measure(rm_queue *q, const rm_optimizer *optimizer, const rm_update *update, int64_t n,
                     const float *parameter, const float *gradient, float *const *state, double *sum) {
    double share[RM_MAX_OPTIMIZER_SUMS];
    __typeof__(optimizer->measure_cuda) kernel = rm_cuda_kernels_built.measure(optimizer);
    if (there(q, optimizer->name, optimizer, 1, kernel)) {
        kernel(&q->shown, update, n, parameter, gradient, state, q->sums);
        launched(q);
    }
    fetch_sums(q, RM_MAX_OPTIMIZER_SUMS, share);
    for (int i = 0; i < RM_MAX_OPTIMIZER_SUMS; i++) sum[i] += share[i];
}

double rm_cuda_sum_of_squares(rm_queue *q, const float *x, int64_t n) {
    double sum;
    if (there(q, "sum_of_squares", NULL, 0, rm_cuda_kernels_built.sum_of_squares)) {
        rm_cuda_kernels_built.sum_of_squares(&q->shown, x, n, q->sums);
        launched(q);
    }
    fetch_sums(q, 1, &sum);
    return sum;
}

void rm_cuda_compare(rm_queue *q, const rm_comparison *check) {
    if (!there(q, "comparing states", NULL, 1, rm_cuda_kernels_built.compare)) return;
    rm_cuda_kernels_built.compare(&q->shown, check);
    launched(q);
}
