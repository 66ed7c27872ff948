/* nccl_buffers.c: see nccl_buffers.h. */
#include "dist/nccl/nccl_buffers.h"

#include <stdio.h>

#include "memory/host.h"

struct rm_nccl_buffer {
    rm_nccl_buffer *next;
    void *start;
};

void rm_nccl_buffers_init(rm_nccl_buffers *buffers) {
    pthread_mutex_init(&buffers->lock, NULL);
    buffers->first = NULL;
}

void rm_nccl_buffers_free(const rm_nccl *nccl, rm_nccl_buffers *buffers) {
    for (rm_nccl_buffer *b = buffers->first, *next; b; b = next) {
        next = b->next;
        if (!nccl->stuck) (void)nccl->lib->cudaFree(b->start);
        rm_free(b);
    }
    pthread_mutex_destroy(&buffers->lock);
}

static remat_status zero(const rm_nccl *nccl, void *start, uint64_t bytes) {
    const rm_nccl_library *lib = nccl->lib;
    cudaStream_t stream = NULL;
    TRY(rm_cuda_check(lib, lib->cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "creating a stream"));
    cudaError_t error = lib->cudaMemsetAsync(start, 0, bytes, stream);
    if (!error) error = lib->cudaStreamSynchronize(stream);
    (void)lib->cudaStreamDestroy(stream);
    return rm_cuda_check(lib, error, "clearing GPU memory");
}

void *rm_nccl_buffers_take(const rm_nccl *nccl, rm_nccl_buffers *buffers, uint64_t bytes) {
    const rm_nccl_library *lib = nccl->lib;
    char doing[80];
    rm_nccl_buffer *b = rm_calloc(1, sizeof *b);
    if (!b) {
        (void)rm_fail(REMAT_MEMORY, "out of memory for a buffer");
        return NULL;
    }
    snprintf(doing, sizeof doing, "a buffer of %llu bytes on GPU %d", (unsigned long long)bytes, nccl->device);
    remat_status status = rm_cuda_check(lib, lib->cudaSetDevice(nccl->device), doing);
    if (!status) status = rm_cuda_check(lib, lib->cudaMalloc(&b->start, bytes ? bytes : 1), doing);
    if (!status) status = zero(nccl, b->start, bytes ? bytes : 1);
    if (status) {
        if (b->start) (void)lib->cudaFree(b->start);
        rm_free(b);
        return NULL;
    }
    pthread_mutex_lock(&buffers->lock);
    b->next = buffers->first;
    buffers->first = b;
    pthread_mutex_unlock(&buffers->lock);
    return b->start;
}

void rm_nccl_buffers_give_back(const rm_nccl *nccl, rm_nccl_buffers *buffers, void *start) {
    rm_nccl_buffer **link = &buffers->first, *b;
    pthread_mutex_lock(&buffers->lock);
    while ((b = *link) && b->start != start) link = &b->next;
    if (b) *link = b->next;
    pthread_mutex_unlock(&buffers->lock);
    if (!b) return;
    (void)nccl->lib->cudaSetDevice(nccl->device);
    if (!nccl->stuck) (void)nccl->lib->cudaFree(start);
    rm_free(b);
}
