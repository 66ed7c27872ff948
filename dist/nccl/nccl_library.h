/* nccl_library.h: NVIDIA's libnccl and libcudart, opened when the first group needs them: a Remat built with NCCL also
 * starts on machines without them. This file lists the functions and their names; nccl_comm.c and group_nccl.c use
 * them.
 *
 * The files are libnccl.so.2 and, in a build without CUDA kernels, libcudart.so.N, where N is the version of CUDA that
 * Remat was built with. They are searched by the system's loader, then in the folders where CMake found them. A build
 * with kernels uses the runtime that is linked into it; streams and events belong to the driver, so NCCL may use
 * another runtime. REMAT_NCCL_LIBRARY and REMAT_CUDART_LIBRARY name other files; tests use a libnccl that computes on
 * the CPU. */
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
    X(ncclReduceScatter)                                                                                               \
    X(ncclSend)                                                                                                        \
    X(ncclRecv)

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
    X(cudaEventCreateWithFlags)                                                                                        \
    X(cudaEventRecord)                                                                                                 \
    X(cudaEventQuery)                                                                                                  \
    X(cudaEventDestroy)

/* Members have the names of the functions that they point to: lib->ncclAllReduce(...). */
typedef struct {
#define FIELD(name) __typeof__(name) *name;
    RM_NCCL_CALLS(FIELD)
    RM_CUDART_CALLS(FIELD)
#undef FIELD
    int version; /* of NCCL: 22809 is 2.28.9 */
} rm_nccl_library;

/* The table, the same for the whole process. It stays open, because NCCL has threads. MISSING: not found, or too
 * old. */
remat_status rm_nccl_library_open(const rm_nccl_library **out);

/* OK, or MEMORY or DEVICE with a message for the error of a CUDA call; clears CUDA's own record of the error. */
remat_status rm_cuda_check(const rm_nccl_library *lib, cudaError_t error, const char *doing);

#endif
