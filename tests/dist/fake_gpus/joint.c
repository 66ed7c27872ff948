/* joint.c: combines the fake libnccl (tests/dist/fake_nccl) and the recording fake of CUDA (tests/engine/fake_cuda) in
 * one library. Sessions on "cuda" can thus be ranks, and the fake checks the order of communication by the same rules
 * as that of computation. This file implements the functions that the fake libnccl otherwise calls in its own, simpler
 * libcudart. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/engine/fake_cuda/fake.h"

/* As in fake_nccl/fake.h, whose fake_push is named fake_push_collective here (link_test_gpus.cmake). */
typedef struct {
    const void *in;
    void *out;
    size_t in_bytes, out_bytes;
} fake_touched;
void fake_push_collective(cudaStream_t stream, cudaError_t (*work)(void *), void *context, fake_touched touched);
long fake_fault(const char *name, long otherwise);
void fake_violation(const char *format, ...);
bool fake_streams_go_on(void);
int fake_stream_device(cudaStream_t stream);
int fake_current_device(void);
void fake_need_device_memory(const void *start, size_t bytes, const char *who);

typedef struct {
    cudaError_t (*work)(void *context);
    void *context;
} collective;

static bool run(void *context) {
    const collective *c = context;
    cudaError_t error = c->work(c->context);
    if (error && error != cudaErrorNotReady) fake_broken = true;
    return error != cudaErrorNotReady;
}

void fake_push_collective(cudaStream_t stream, cudaError_t (*work)(void *), void *context, fake_touched touched) {
    collective c = {work, context};
    fake_range range[] = {{touched.in, touched.in_bytes, false}, {touched.out, touched.out_bytes, true}};
    fake_push_patient(stream, run, &c, sizeof c, range, 2);
}

bool fake_streams_go_on(void) {
    fake_take_turns();
    return !fake_broken;
}

/* Only the fake of CUDA is asked for faults. */
long fake_fault(const char *name, long otherwise) {
    (void)name;
    return otherwise;
}

void fake_violation(const char *format, ...) {
    char sentence[300];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(sentence, sizeof sentence, format, arguments);
    va_end(arguments);
    fprintf(stderr, "against the rules of NCCL: %s\n", sentence);
    abort();
}

/* There is one device per process. */
int fake_stream_device(cudaStream_t stream) {
    if (!fake_stream_lives(stream)) fake_violation("a stream that is not, or no longer, there");
    return fake_cuda_current();
}
int fake_current_device(void) { return fake_cuda_current(); }

void fake_need_device_memory(const void *start, size_t bytes, const char *who) {
    if (!fake_lies_in(start, bytes, true)) fake_violation("%s: %zu bytes at %p are no GPU memory", who, bytes, start);
}
