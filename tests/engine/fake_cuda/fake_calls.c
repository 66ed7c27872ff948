/* fake_calls.c: the functions of CUDA, cuBLAS and NVML that Remat's device calls (fake.h). */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake.h"

static char violation[400];
static int64_t calls, allocations, fail_at, handles;
static cudaError_t failure;
static _Thread_local cudaError_t last;
static struct {
    int gpus, driver;
    size_t free_bytes;
    bool used; /* this process has a context on it */
    bool loaded[FAKE_LIBRARIES];
    size_t others, others_take; /* bytes used by other programs, and bytes that they take with the next graph */
} machine = {.gpus = 1, .driver = 13000, .free_bytes = (size_t)1 << 30};

void fake_violate(const char *format, ...) {
    va_list arguments;
    if (violation[0]) return;
    va_start(arguments, format);
    vsnprintf(violation, sizeof violation, format, arguments);
    va_end(arguments);
}

const char *fake_cuda_violation(void) { return violation[0] ? violation : NULL; }
int64_t fake_cuda_live(void) { return fake_memory_live() + fake_order_live() + handles; }
int64_t fake_cuda_calls(void) { return calls; }
int64_t fake_cuda_allocations(void) { return allocations; }
void fake_cuda_fail_at(int64_t call, cudaError_t error) { fail_at = call, failure = error; }
void fake_cuda_break_at(int64_t work) { fake_break = work; }
void fake_cuda_machine(int gpus, int driver, size_t free_bytes) {
    machine.gpus = gpus, machine.driver = driver, machine.free_bytes = free_bytes;
}

void fake_cuda_reset(uint64_t seed) {
    fake_order_reset(seed);
    fake_memory_reset();
    violation[0] = 0;
    calls = allocations = fail_at = handles = 0;
    fake_lt_reset();
    fake_dnn_reset();
    fake_conv_reset();
    last = cudaSuccess;
    machine.used = false;
    memset(machine.loaded, 0, sizeof machine.loaded);
    machine.others = machine.others_take = 0;
    fake_cuda_machine(1, 13000, (size_t)1 << 30);
}

/* The status of a valid call. */
static cudaError_t answer(void) {
    FAKE_INSIDE;
    cudaError_t error = ++calls == fail_at ? failure : fake_broken ? cudaErrorIllegalAddress : cudaSuccess;
    return error ? last = error : error;
}

#define ENTER()                                                                                                        \
    do {                                                                                                               \
        cudaError_t entered = answer();                                                                                \
        if (entered) return entered;                                                                                   \
    } while (0)

/* ---- The machine ----------------------------------------------------------------------------------------------- */

cudaError_t cudaDriverGetVersion(int *version) {
    ENTER();
    *version = machine.driver;
    return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int *version) {
    ENTER();
    *version = 13000;
    return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int *count) {
    ENTER();
    *count = machine.gpus;
    return machine.gpus ? cudaSuccess : (last = cudaErrorNoDevice);
}
static _Thread_local int current;
int fake_cuda_current(void) { return current; }

cudaError_t cudaSetDevice(int device) {
    ENTER();
    if (device < 0 || device >= machine.gpus) return last = cudaErrorInvalidDevice;
    machine.used = true;
    current = device;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
    (void)device;
    ENTER();
    *value = attribute == cudaDevAttrComputeCapabilityMajor ? 8 : 0;
    return cudaSuccess;
}
enum { CONTEXT = 300 << 20, OTHERS = 77 << 20, GRAPH = 64 << 10 };
static size_t taken(void) {
    size_t bytes = machine.others + ((size_t)fake_memory_live() << 20) + (size_t)fake_graphs_live() * GRAPH;
    for (int i = 0; i < FAKE_LIBRARIES; i++) bytes += machine.loaded[i] ? (size_t)FAKE_LIBRARY_BYTES : 0;
    return bytes;
}

void fake_load(int library) {
    FAKE_INSIDE;
    machine.loaded[library] = true;
}

void fake_cuda_others_take(size_t bytes) { machine.others_take = bytes; }

cudaError_t cudaMemGetInfo(size_t *free, size_t *total) {
    ENTER();
    *free = machine.free_bytes - taken();
    *total = machine.free_bytes + CONTEXT;
    return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *about, const void *address) {
    ENTER();
    memset(about, 0, sizeof *about);
    about->type = fake_lies_in(address, 1, true)    ? cudaMemoryTypeDevice
                  : fake_lies_in(address, 1, false) ? cudaMemoryTypeHost
                                                    : cudaMemoryTypeUnregistered;
    about->device = fake_cuda_current();
    return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char *bus, int length, int device) {
    ENTER();
    snprintf(bus, (size_t)length, "0000:%02X:00.0", device + 1);
    return cudaSuccess;
}
const char *cudaGetErrorString(cudaError_t error) { return error ? "a fault that a test has asked for" : "no error"; }
cudaError_t cudaGetLastError(void) {
    cudaError_t was = last;
    last = cudaSuccess;
    return fake_broken ? cudaErrorIllegalAddress : was;
}

/* NVML, which reports the memory of all programs. */
typedef struct {
    unsigned long long total, free, used;
} memory_seen;
int nvmlInit_v2(void);
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **gpu);
int nvmlDeviceGetMemoryInfo(void *gpu, memory_seen *out);

int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **gpu) {
    *gpu = &machine;
    return strncmp(bus, "0000:", 5);
}
int nvmlDeviceGetMemoryInfo(void *gpu, memory_seen *out) {
    *out = (memory_seen){.used = OTHERS + taken() + (machine.used ? CONTEXT : 0)};
    return gpu != &machine;
}

/* ---- Memory ---------------------------------------------------------------------------------------------------- */

static cudaError_t take(void **start, size_t bytes, bool on_gpu) {
    allocations++;
    *start = NULL;
    if (fake_records()) fake_violate("memory is allocated while a stream records");
    ENTER();
    *start = fake_take(bytes, on_gpu);
    return *start ? cudaSuccess : (last = cudaErrorMemoryAllocation);
}
#undef cudaMalloc
#undef cudaMallocHost
cudaError_t cudaMalloc(void **start, size_t bytes) { return take(start, bytes, true); }
cudaError_t cudaMallocHost(void **start, size_t bytes) { return take(start, bytes, false); }

/* The memory is released even if the call returns the error of earlier work. NULL is ignored. */
cudaError_t cudaFree(void *start) {
    if (fake_records()) fake_violate("memory is freed while a stream records");
    if (start) fake_give_back(start, true);
    return answer();
}
cudaError_t cudaFreeHost(void *start) {
    if (fake_records()) fake_violate("memory is freed while a stream records");
    if (start) fake_give_back(start, false);
    return answer();
}

typedef struct {
    void *to;
    const void *from;
    int byte;
    size_t bytes;
} moving;

static void move(void *context) {
    moving *m = context;
    if (m->from)
        memmove(m->to, m->from, m->bytes);
    else
        memset(m->to, m->byte, m->bytes);
}

static void push_move(cudaStream_t stream, moving m) {
    fake_range range[] = {{m.to, m.bytes, true}, {m.from, m.from ? m.bytes : 0, false}};
    fake_push(stream, move, &m, sizeof m, range, 2);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream) {
    ENTER();
    bool in = kind == cudaMemcpyHostToDevice, out = kind == cudaMemcpyDeviceToHost;
    if (kind != cudaMemcpyDefault && (!fake_lies_in(to, bytes, !out) || !fake_lies_in(from, bytes, !in)))
        fake_violate(
            "a copy of %zu bytes from %p to %p is not of its declared kind (%d), or its host memory is pageable", bytes,
            from, to, (int)kind);
    push_move(stream, (moving){to, from, 0, bytes});
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void *to, int byte, size_t bytes, cudaStream_t stream) {
    ENTER();
    push_move(stream, (moving){to, NULL, byte, bytes});
    return cudaSuccess;
}

/* ---- Streams and events ---------------------------------------------------------------------------------------- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    allocations++;
    *stream = NULL;
    ENTER();
    if (flags != cudaStreamNonBlocking) fake_violate("a stream waits for the default stream");
    *stream = fake_stream_make();
    return *stream ? cudaSuccess : (last = cudaErrorMemoryAllocation);
}
/* The work runs in any case: the status is about earlier work. */
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    if (!fake_stream_lives(stream))
        fake_violate("a wait for a stream that does not exist");
    else
        fake_finish_stream(stream);
    return answer();
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
    ENTER();
    if (!fake_stream_lives(stream)) fake_violate("a query of a stream that does not exist");
    if (fake_query_stream(stream)) return fake_broken ? (last = cudaErrorIllegalAddress) : cudaSuccess;
    return last = cudaErrorNotReady;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
    (void)flags;
    ENTER();
    fake_wait(stream, event);
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    fake_stream_end(stream);
    return answer();
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
    allocations++;
    *event = NULL;
    ENTER();
    *event = fake_event_make();
    if (!(flags & cudaEventDisableTiming)) fake_event_keeps_time(*event);
    return cudaSuccess;
}
#undef cudaEventElapsedTime
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to) {
    ENTER();
    *ms = fake_event_between_ms(from, to);
    return cudaSuccess;
}
#undef cudaEventRecord
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    ENTER();
    fake_record(event, stream);
    return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    fake_finish_event(event);
    return answer();
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
    ENTER();
    if (fake_query_event(event)) return fake_broken ? (last = cudaErrorIllegalAddress) : cudaSuccess;
    return last = cudaErrorNotReady;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
    fake_event_end(event);
    return answer();
}

/* ---- Graphs ---------------------------------------------------------------------------------------------------- */

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
    ENTER();
    if (mode != cudaStreamCaptureModeThreadLocal) fake_violate("a recording that is not limited to its thread");
    return fake_record_begin(stream) ? cudaSuccess : (last = cudaErrorIllegalState);
}
/* If it fails, the stream stops recording, and there is no graph. */
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
    cudaError_t error = answer();
    *graph = fake_record_end(stream);
    if (error && *graph) fake_graph_end(*graph);
    if (error) *graph = NULL;
    return error;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    fake_graph_end(graph);
    return answer();
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count) {
    ENTER();
    if (nodes) fake_violate("a graph's nodes are requested, not their number");
    *count = fake_graph_launches(graph);
    return cudaSuccess;
}
#undef cudaGraphInstantiate
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags) {
    *exec = NULL;
    ENTER();
    if (flags || fake_records()) fake_violate("a graph is created with flags %llu, or while a stream records", flags);
    *exec = fake_graph_make(graph);
    machine.others += machine.others_take;
    machine.others_take = 0;
    return cudaSuccess;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream) {
    (void)exec;
    ENTER();
    if (!fake_stream_lives(stream)) fake_violate("a graph is launched on a stream that does not exist");
    return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
    ENTER();
    fake_graph_launch(exec, stream);
    return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
    fake_graph_exec_end(exec);
    return answer();
}

/* ---- cuBLAS ---------------------------------------------------------------------------------------------------- */

struct cublasContext {
    cudaStream_t stream;
    void *workspace;
    size_t bytes;
};

cublasStatus_t fake_blas_answer(void) {
    cudaError_t error = answer();
    last = cudaSuccess; /* cuBLAS has its own errors */
    if (!error) return CUBLAS_STATUS_SUCCESS;
    return error == cudaErrorMemoryAllocation ? CUBLAS_STATUS_ALLOC_FAILED : CUBLAS_STATUS_EXECUTION_FAILED;
}

void fake_blas_handle(int more) {
    handles += more;
    allocations += more > 0;
}

const char *cublasGetStatusString(cublasStatus_t status) {
    return status ? "a fault that a test has asked for" : "well";
}
cublasStatus_t cublasCreate_v2(cublasHandle_t *handle) {
    allocations++;
    cublasStatus_t status = fake_blas_answer();
    *handle = status ? NULL : calloc(1, sizeof **handle);
    handles += !status;
    if (!status) fake_load(FAKE_CUBLAS);
    return status;
}
cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
    handles--;
    free(handle);
    return fake_blas_answer();
}
cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
    cublasStatus_t status = fake_blas_answer();
    if (!status) handle->stream = stream;
    return status;
}
cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void *workspace, size_t bytes) {
    cublasStatus_t status = fake_blas_answer();
    if (!fake_lies_in(workspace, bytes, true)) fake_violate("cuBLAS's workspace is not GPU memory");
    handle->workspace = status ? NULL : workspace;
    handle->bytes = bytes;
    return status;
}

typedef struct {
    bool ta, tb;
    int64_t m, n, k, lda, ldb, ldc;
    float alpha, beta;
    const void *a, *b;
    cudaDataType_t type; /* of A and B */
    float *c;
} product;

enum { LARGEST = 1 << 24 };

static void multiply(void *context) {
    const product *p = context;
    if (p->m * p->n * p->k > LARGEST) return; /* the device computes these only to measure their time */
    for (int64_t i = 0; i < p->m; i++)
        for (int64_t j = 0; j < p->n; j++) {
            double sum = 0;
            for (int64_t l = 0; l < p->k; l++)
                sum += (double)fake_blas_number(p->a, p->type, p->ta ? l + i * p->lda : i + l * p->lda) *
                       (double)fake_blas_number(p->b, p->type, p->tb ? j + l * p->ldb : l + j * p->ldb);
            float *c = &p->c[i + j * p->ldc];
            *c = (float)(p->alpha * sum + (p->beta != 0 ? (double)p->beta * (double)*c : 0));
        }
}

/* `columns` columns of ld numbers each, of which the first `rows` are accessed. The rest of the last column is not
 * accessed. */
static fake_range matrix(const void *start, cudaDataType_t type, int64_t rows, int64_t columns, int64_t ld,
                         bool writes) {
    if (ld < rows) fake_violate("a matrix with %lld rows, %lld numbers apart", (long long)rows, (long long)ld);
    return (fake_range){start, fake_blas_bytes(type) * (uint64_t)((columns - 1) * ld + rows), writes};
}

cublasStatus_t cublasGemmEx_64(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, int64_t m, int64_t n,
                               int64_t k, const void *alpha, const void *a, cudaDataType_t a_type, int64_t lda,
                               const void *b, cudaDataType_t b_type, int64_t ldb, const void *beta, void *c,
                               cudaDataType_t c_type, int64_t ldc, cublasComputeType_t compute,
                               cublasGemmAlgo_t algorithm) {
    bool turn_a = ta != CUBLAS_OP_N, turn_b = tb != CUBLAS_OP_N;
    cublasStatus_t status = fake_blas_answer();
    if (status) return status;
    if (!handle->workspace) fake_violate("a product without its own workspace");
    if (a_type != b_type || c_type != CUDA_R_32F || compute != CUBLAS_COMPUTE_32F || algorithm != CUBLAS_GEMM_DEFAULT)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    product p = {turn_a, turn_b, m, n, k, lda, ldb, ldc, *(const float *)alpha, *(const float *)beta, a, b, a_type, c};
    fake_range range[] = {matrix(a, a_type, turn_a ? k : m, turn_a ? m : k, lda, false),
                          matrix(b, b_type, turn_b ? n : k, turn_b ? k : n, ldb, false),
                          matrix(c, c_type, m, n, ldc, true),
                          {handle->workspace, handle->bytes, true}};
    fake_push(handle->stream, multiply, &p, sizeof p, range, 4);
    return status;
}
