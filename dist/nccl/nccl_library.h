/* nccl_library.h: NVIDIA's libnccl and libcudart, opened when the first group asks for them and not before: a Remat that
 * was built with NCCL starts on machines that have neither. Here are the functions and their names; what they are used for
 * is in nccl_comm.c and group_nccl.c.
 *
 * Looked for: libnccl.so.2 and, in a build without kernels for GPUs, libcudart.so.N, N being the version of CUDA that Remat
 * was built with, where the system's loader looks, then where CMake found them. A build with kernels has the runtime linked
 * in, and takes that: streams and events are the driver's, whichever runtime NCCL has. REMAT_NCCL_LIBRARY and
 * REMAT_CUDART_LIBRARY name other files; tests put a libnccl there that computes on the CPU. */
#ifndef RM_NCCL_LIBRARY_H
#define RM_NCCL_LIBRARY_H

#include <nccl.h>

#include "engine/status.h"

#define RM_NCCL_CALLS(X)                                                                                               \
    X(ncclGetVersion)                                                                                                  \
    X(ncclGetUniqueId)                                                                                                 \
    X(ncclGetErrorString)                                                                                              \
    X(ncclGetLastError)                                                                                                \
    X(ncclCommInitRankConfig)                                                                                          \
    X(ncclCommSplit)                                                                                                   \
    X(ncclCommGetAsyncError)                                                                                           \
    X(ncclCommFinalize)                                                                                                \
    X(ncclCommDestroy)                                                                                                 \
    X(ncclCommAbort)                                                                                                   \
    X(ncclRedOpCreatePreMulSum)                                                                                        \
    X(ncclRedOpDestroy)                                                                                                \
    X(ncclAllReduce)                                                                                                   \
    X(ncclBroadcast)                                                                                                   \
    X(ncclAllGather)                                                                                                   \
    X(ncclReduceScatter)

#define RM_CUDART_CALLS(X)                                                                                             \
    X(cudaGetDeviceCount)                                                                                              \
    X(cudaSetDevice)                                                                                                   \
    X(cudaGetErrorString)                                                                                              \
    X(cudaGetLastError)                                                                                                \
    X(cudaMemGetInfo)                                                                                                  \
    X(cudaPointerGetAttributes)                                                                                        \
    X(cudaMalloc)                                                                                                      \
    X(cudaFree)                                                                                                        \
    X(cudaMallocHost)                                                                                                  \
    X(cudaFreeHost)                                                                                                    \
    X(cudaMemcpyAsync)                                                                                                 \
    X(cudaMemsetAsync)                                                                                                 \
    X(cudaStreamCreateWithFlags)                                                                                       \
    X(cudaStreamSynchronize)                                                                                           \
    X(cudaStreamQuery)                                                                                                 \
    X(cudaStreamWaitEvent)                                                                                             \
    X(cudaStreamDestroy)                                                                                               \
    X(cudaEventQuery)

/* Fields are named as the functions they point to: lib->ncclAllReduce(...). */
typedef struct {
#define FIELD(name) __typeof__(name) *name;
    RM_NCCL_CALLS(FIELD)
    RM_CUDART_CALLS(FIELD)
#undef FIELD
    int version; /* of NCCL: 22809 is 2.28.9 */
} rm_nccl_library;

/* The table, the same for the whole process; it stays open, because NCCL has threads. MISSING: not there, or too old. */
remat_status rm_nccl_library_open(const rm_nccl_library **out);

/* What CUDA calls failed with: OK, or MEMORY or DEVICE with a sentence; CUDA's own memory of it is cleared. */
remat_status rm_cuda_check(const rm_nccl_library *lib, cudaError_t error, const char *doing);

#endif
