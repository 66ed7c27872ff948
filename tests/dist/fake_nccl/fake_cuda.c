/* fake_cuda.c: libcudart without a GPU: fake.h. A stream is a thread that works through its queue. cudaFree waits for
 * all streams, as the real one does. */
#include "fake.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef struct task {
    struct task *next;
    cudaError_t (*work)(void *context);
    void *context;
} task;

struct CUstream_st {
    struct CUstream_st *next;
    int device;
    pthread_t thread;
    pthread_cond_t change;
    task *first, **last;
    bool busy, closing;
    cudaError_t error;
};

typedef struct allocation {
    struct allocation *next;
    char *start;
    size_t bytes;
    int device; /* -1: page-locked host memory */
} allocation;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* protects the lists and all streams */
static struct CUstream_st *streams;
static allocation *allocations;
static int live;
static _Thread_local int current;
static _Thread_local cudaError_t last;

long fake_fault(const char *name, long otherwise) {
    const char *list = getenv("FAKE_NCCL");
    const size_t length = strlen(name);
    for (const char *at = list; at && *at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (!strncmp(at, name, length) && strchr("=,", at[length]))
            return at[length] == '=' ? atol(at + length + 1) : 1;
    return otherwise;
}

void fake_violation(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("against the rules of CUDA or NCCL: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    abort();
}

static cudaError_t remember(cudaError_t error) { return error ? last = error : error; }

/* ---- Devices ----------------------------------------------------------------------------------------------------- */

cudaError_t cudaGetDeviceCount(int *count) {
    *count = (int)fake_fault("gpus", 8);
    return remember(*count ? cudaSuccess : cudaErrorNoDevice);
}
cudaError_t cudaSetDevice(int device) {
    if (device < 0 || device >= fake_fault("gpus", 8)) return remember(cudaErrorInvalidDevice);
    current = device;
    return cudaSuccess;
}
int fake_current_device(void) { return current; }

const char *cudaGetErrorString(cudaError_t error) {
    if (error == cudaErrorNoDevice) return "no CUDA-capable device is detected";
    return error == cudaErrorLaunchFailure ? "unspecified launch failure" : "some error";
}
cudaError_t cudaGetLastError(void) {
    cudaError_t was = last;
    last = cudaSuccess;
    return was;
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

static allocation *find(const void *start, size_t bytes) {
    for (allocation *a = allocations; a; a = a->next)
        if ((const char *)start >= a->start && (const char *)start + bytes <= a->start + a->bytes) return a;
    return NULL;
}

/* The device that the memory is on; -1 for page-locked memory, -2 for any other. */
static int place_of(const void *start, size_t bytes) {
    pthread_mutex_lock(&lock);
    allocation *a = find(start, bytes);
    int place = a ? a->device : -2;
    pthread_mutex_unlock(&lock);
    return place;
}

void fake_need_device_memory(const void *start, size_t bytes, const char *who) {
    int place = place_of(start, bytes);
    if (place != current)
        fake_violation("%s: %zu bytes at %p are not memory of GPU %d (%d)", who, bytes, start, current, place);
}

static cudaError_t take(void **start, size_t bytes, int device) {
    allocation *a = calloc(1, sizeof *a);
    if (fake_fault("no_memory", 0) || posix_memalign(start, 256, bytes)) {
        free(a);
        *start = NULL;
        return remember(cudaErrorMemoryAllocation);
    }
    memset(*start, 0xA5, bytes);
    pthread_mutex_lock(&lock);
    *a = (allocation){.next = allocations, .start = *start, .bytes = bytes, .device = device};
    allocations = a;
    live++;
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

/* `only` NULL: waits for all streams of all devices, which is stricter than the real one. */
static void wait_for_the_gpu(cudaStream_t only, const char *who) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 30;
    for (struct CUstream_st *s = streams; s; s = s->next)
        while ((!only || s == only) && (s->busy || s->first))
            if (pthread_cond_timedwait(&s->change, &lock, &until)) fake_violation("%s waits for ever for the GPU", who);
}

static cudaError_t give_back(void *start, bool host, const char *who) {
    allocation **link = &allocations, *a;
    if (!start) return cudaSuccess;
    pthread_mutex_lock(&lock);
    wait_for_the_gpu(NULL, who);
    while ((a = *link) && a->start != (char *)start) link = &a->next;
    if (!a || (a->device < 0) != host) fake_violation("%s of %p, which it did not give", who, start);
    *link = a->next;
    live--;
    pthread_mutex_unlock(&lock);
    free(a->start);
    free(a);
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **start, size_t bytes) { return take(start, bytes, current); }
cudaError_t cudaMallocHost(void **start, size_t bytes) { return take(start, bytes, -1); }
cudaError_t cudaFree(void *start) { return give_back(start, false, "cudaFree"); }
cudaError_t cudaFreeHost(void *start) { return give_back(start, true, "cudaFreeHost"); }

/* As if all memory were allocated in pieces of 1 MiB. */
cudaError_t cudaMemGetInfo(size_t *free, size_t *total) {
    *total = (size_t)16 << 30;
    *free = *total - ((size_t)fake_cuda_live() << 20);
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *about, const void *address) {
    int place = place_of(address, 1);
    memset(about, 0, sizeof *about);
    about->device = place;
    about->type = place == -2 ? cudaMemoryTypeUnregistered : place == -1 ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
    return cudaSuccess;
}

typedef struct {
    void *to;
    const void *from; /* NULL: `byte` */
    int byte;
    size_t bytes;
} copying;

static cudaError_t copy(void *context) {
    copying c = *(copying *)context;
    free(context);
    if (c.from)
        memmove(c.to, c.from, c.bytes);
    else
        memset(c.to, c.byte, c.bytes);
    return cudaSuccess;
}

static cudaError_t push_copy(copying c, cudaStream_t stream) {
    copying *kept = malloc(sizeof *kept);
    *kept = c;
    fake_push(stream, copy, kept, (fake_touched){.in = NULL});
    return cudaSuccess;
}

/* Host memory must be page-locked: otherwise the real function blocks. */
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream) {
    const int to_place = kind == cudaMemcpyDeviceToHost ? -1 : current;
    const int from_place = kind == cudaMemcpyHostToDevice ? -1 : current;
    if (place_of(to, bytes) != to_place || place_of(from, bytes) != from_place)
        fake_violation("cudaMemcpyAsync of %zu bytes, kind %d: from or to the wrong kind of memory", bytes, (int)kind);
    return push_copy((copying){.to = to, .from = from, .bytes = bytes}, stream);
}
cudaError_t cudaMemsetAsync(void *to, int byte, size_t bytes, cudaStream_t stream) {
    fake_need_device_memory(to, bytes, "cudaMemsetAsync");
    return push_copy((copying){.to = to, .byte = byte, .bytes = bytes}, stream);
}

/* ---- Streams ----------------------------------------------------------------------------------------------------- */

static void *run_stream(void *context) {
    cudaStream_t s = context;
    pthread_mutex_lock(&lock);
    while (s->first || !s->closing) {
        if (!s->first) {
            pthread_cond_wait(&s->change, &lock);
            continue;
        }
        task *t = s->first;
        if (!(s->first = t->next)) s->last = &s->first;
        s->busy = true;
        pthread_mutex_unlock(&lock);
        cudaError_t error;
        while ((error = t->work(t->context)) == cudaErrorNotReady) usleep(20);
        free(t);
        pthread_mutex_lock(&lock);
        s->busy = false;
        if (!s->error) s->error = error;
        pthread_cond_broadcast(&s->change);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags) {
    cudaStream_t s = calloc(1, sizeof *s);
    if (flags != cudaStreamNonBlocking) fake_violation("a stream that waits for the default stream");
    s->device = current;
    s->last = &s->first;
    pthread_cond_init(&s->change, NULL);
    pthread_create(&s->thread, NULL, run_stream, s);
    pthread_mutex_lock(&lock);
    s->next = streams;
    streams = s;
    live++;
    pthread_mutex_unlock(&lock);
    *out = s;
    return cudaSuccess;
}

static cudaStream_t *known(cudaStream_t stream) {
    cudaStream_t *link = &streams;
    while (*link && *link != stream) link = &(*link)->next;
    if (!*link) fake_violation("a stream that is not, or no longer, there");
    return link;
}

void fake_push(cudaStream_t stream, cudaError_t (*work)(void *context), void *context, fake_touched touched) {
    (void)touched; /* tests/dist/fake_gpus uses it */
    task *t = malloc(sizeof *t);
    *t = (task){.work = work, .context = context};
    pthread_mutex_lock(&lock);
    known(stream);
    *stream->last = t;
    stream->last = &t->next;
    pthread_cond_broadcast(&stream->change);
    pthread_mutex_unlock(&lock);
}

/* They have threads of their own. */
bool fake_streams_go_on(void) { return true; }

int fake_stream_device(cudaStream_t stream) {
    pthread_mutex_lock(&lock);
    int device = (*known(stream))->device;
    pthread_mutex_unlock(&lock);
    return device;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
    pthread_mutex_lock(&lock);
    known(stream);
    cudaError_t answer = stream->error                   ? stream->error
                         : stream->busy || stream->first ? cudaErrorNotReady
                                                         : cudaSuccess;
    pthread_mutex_unlock(&lock);
    return remember(answer);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    pthread_mutex_lock(&lock);
    known(stream);
    while (stream->busy || stream->first) pthread_cond_wait(&stream->change, &lock);
    cudaError_t answer = stream->error;
    pthread_mutex_unlock(&lock);
    return remember(answer);
}

/* The real one returns at once, and the stream ends when it is empty. This one waits, but not forever. */
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    pthread_mutex_lock(&lock);
    wait_for_the_gpu(stream, "cudaStreamDestroy");
    *known(stream) = stream->next;
    live--;
    stream->closing = true;
    pthread_cond_broadcast(&stream->change);
    pthread_mutex_unlock(&lock);
    pthread_join(stream->thread, NULL);
    pthread_cond_destroy(&stream->change);
    free(stream);
    return cudaSuccess;
}

/* ---- Events ------------------------------------------------------------------------------------------------------ */

struct CUevent_st {
    uint64_t recorded, reached; /* how often */
};
static pthread_cond_t some_event = PTHREAD_COND_INITIALIZER;

static void reach(cudaEvent_t event) {
    pthread_mutex_lock(&lock);
    event->reached++;
    pthread_cond_broadcast(&some_event);
    pthread_mutex_unlock(&lock);
}

cudaEvent_t fake_event(void) {
    static struct CUevent_st all[8];
    static int n;
    cudaEvent_t event = &all[n++ % 8];
    *event = (struct CUevent_st){.recorded = 1};
    return event;
}
void fake_event_reach(cudaEvent_t event) { reach(event); }

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
    if (flags != cudaEventDisableTiming) fake_violation("an event that keeps time");
    *event = calloc(1, sizeof **event);
    pthread_mutex_lock(&lock);
    live++;
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
    pthread_mutex_lock(&lock);
    if (event->reached < event->recorded) fake_violation("an event is destroyed that has not been reached");
    live--;
    pthread_mutex_unlock(&lock);
    free(event);
    return cudaSuccess;
}

static cudaError_t reach_event(void *event) {
    reach(event);
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    pthread_mutex_lock(&lock);
    event->recorded++;
    pthread_mutex_unlock(&lock);
    fake_push(stream, reach_event, event, (fake_touched){.in = NULL});
    return cudaSuccess;
}

static cudaError_t wait_for_event(void *event) {
    cudaEvent_t e = event;
    pthread_mutex_lock(&lock);
    while (e->reached < e->recorded) pthread_cond_wait(&some_event, &lock);
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
    (void)flags;
    fake_push(stream, wait_for_event, event, (fake_touched){.in = NULL});
    return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
    pthread_mutex_lock(&lock);
    bool reached = event->reached >= event->recorded;
    pthread_mutex_unlock(&lock);
    return reached ? cudaSuccess : remember(cudaErrorNotReady);
}

int fake_cuda_live(void) {
    pthread_mutex_lock(&lock);
    int n = live;
    pthread_mutex_unlock(&lock);
    return n;
}
