/* dnn.h: cuDNN for the layers of one device: recurrent layers (rnn.c) and convolutions (conv.c) share a handle and its
 * messages. Private to the CUDA device. */
#ifndef RM_CUDA_DNN_H
#define RM_CUDA_DNN_H

#include "engine/cuda/library.h"
#include "engine/device/device.h"

#ifdef RM_HAVE_CUDNN

typedef struct {
    const rm_cudnn_library *lib;
    cudnnHandle_t handle;
} rm_cuda_dnn;

/* cuDNN does not document the alignment of its spaces, so they start at multiples of 256 bytes, like memory from
 * cudaMalloc. A plan's buffers start at multiples of RM_ALIGN, so each is planned with the bytes needed to align it. */
enum { RM_CUDA_SPACE_ALIGN = 256, RM_CUDA_SPACE_MORE = RM_CUDA_SPACE_ALIGN - RM_ALIGN };
static inline uint64_t rm_cuda_space_bytes(uint64_t bytes) {
    return (bytes + RM_CUDA_SPACE_ALIGN - 1) / RM_CUDA_SPACE_ALIGN * RM_CUDA_SPACE_ALIGN;
}
static inline char *rm_cuda_space_in(const void *buffer) { return (char *)rm_cuda_space_bytes((uintptr_t)buffer); }

/* As rm_cuda_status and rm_cuda_went (cuda.h), for errors of cuDNN. */
remat_status rm_cuda_dnn_status(const rm_device *device, cudnnStatus_t error, const char *doing);
bool rm_cuda_dnn_went(rm_device *device, cudnnStatus_t error, const char *doing);
/* Gives the handle the queue's stream. Returns false if work cannot be queued. */
bool rm_cuda_dnn_begin(rm_queue *q);

#else
typedef struct rm_cuda_dnn rm_cuda_dnn;
#endif

/* Opens cuDNN for this device (device->dnn), unless it is open. MISSING: there is no cuDNN, or this build has no
 * kernels. Call it through rm_cuda_use_dnn (cuda.h), which measures the memory that it takes. */
remat_status rm_cuda_dnn_open(rm_device *device);
void rm_cuda_dnn_close(rm_device *device);             /* no call may be pending */
uint64_t rm_cuda_dnn_version(const rm_device *device); /* 0: not open */

#endif
