/* library.h: the functions of NVIDIA's libcudart and libcublas. The libraries are opened when the first session
 * requests the device "cuda", so a Remat built with CUDA also starts on machines without them.
 * (dist/nccl/nccl_library.h does the same for NCCL.)
 *
 * If Remat's own kernels are part of the build (REMAT_HAVE_CUDA), nvcc has linked the runtime with them, and this one
 * is used: the error of a failed launch is recorded in the library that launched.
 *
 * cuDNN is opened when a session requests its recurrent kernels (rnn.c) or has convolutions (conv.c). Toolkits do not
 * contain it; a build without cudnn.h of version 9 does not support it.
 *
 * Files are lib*.so.N, where N is the version of CUDA that Remat was built with, first in the loader's path, then in
 * the folders where CMake found them. REMAT_CUDART_LIBRARY, REMAT_CUBLAS_LIBRARY and REMAT_CUDNN_LIBRARY name other
 * files, such as the recording library of the tests (tests/engine/fake_cuda). */
#ifndef RM_CUDA_LIBRARY_H
#define RM_CUDA_LIBRARY_H

#include <cublasLt.h>
#include <cublas_v2.h>
#include <cuda_runtime.h>

#if __has_include(<cudnn.h>)
#include <cudnn.h>
#if CUDNN_MAJOR == 9
#define RM_HAVE_CUDNN
#endif
#endif

#include "engine/status.h"

#define RM_CUDA_RUNTIME_CALLS(X)                                                                                       \
    X(cudaDriverGetVersion)                                                                                            \
    X(cudaRuntimeGetVersion)                                                                                           \
    X(cudaGetDeviceCount)                                                                                              \
    X(cudaSetDevice)                                                                                                   \
    X(cudaDeviceGetAttribute)                                                                                          \
    X(cudaDeviceGetPCIBusId)                                                                                           \
    X(cudaMemGetInfo)                                                                                                  \
    X(cudaGetErrorString)                                                                                              \
    X(cudaGetLastError)                                                                                                \
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
    X(cudaStreamBeginCapture)                                                                                          \
    X(cudaStreamEndCapture)                                                                                            \
    X(cudaGraphGetNodes)                                                                                               \
    X(cudaGraphInstantiate)                                                                                            \
    X(cudaGraphUpload)                                                                                                 \
    X(cudaGraphLaunch)                                                                                                 \
    X(cudaGraphDestroy)                                                                                                \
    X(cudaGraphExecDestroy)                                                                                            \
    X(cudaEventCreateWithFlags)                                                                                        \
    X(cudaEventRecord)                                                                                                 \
    X(cudaEventSynchronize)                                                                                            \
    X(cudaEventQuery)                                                                                                  \
    X(cudaEventElapsedTime)                                                                                            \
    X(cudaEventDestroy)

#define RM_CUBLAS_CALLS(X)                                                                                             \
    X(cublasCreate_v2)                                                                                                 \
    X(cublasDestroy_v2)                                                                                                \
    X(cublasSetStream_v2)                                                                                              \
    X(cublasSetWorkspace_v2)                                                                                           \
    X(cublasGemmEx_64)                                                                                                 \
    X(cublasGetStatusString)

#define RM_CUBLASLT_CALLS(X)                                                                                           \
    X(cublasLtCreate)                                                                                                  \
    X(cublasLtDestroy)                                                                                                 \
    X(cublasLtGetVersion)                                                                                              \
    X(cublasLtMatmul)                                                                                                  \
    X(cublasLtMatmulDescCreate)                                                                                        \
    X(cublasLtMatmulDescDestroy)                                                                                       \
    X(cublasLtMatmulDescSetAttribute)                                                                                  \
    X(cublasLtMatrixLayoutCreate)                                                                                      \
    X(cublasLtMatrixLayoutDestroy)                                                                                     \
    X(cublasLtMatrixLayoutSetAttribute)                                                                                \
    X(cublasLtMatmulPreferenceCreate)                                                                                  \
    X(cublasLtMatmulPreferenceDestroy)                                                                                 \
    X(cublasLtMatmulPreferenceSetAttribute)                                                                            \
    X(cublasLtMatmulAlgoGetHeuristic)                                                                                  \
    X(cublasLtMatmulAlgoCheck)                                                                                         \
    X(cublasLtMatmulAlgoConfigGetAttribute)                                                                            \
    X(cublasLtMatmulAlgoCapGetAttribute)

#define RM_CUDNN_CALLS(X)                                                                                              \
    X(cudnnCreate)                                                                                                     \
    X(cudnnDestroy)                                                                                                    \
    X(cudnnGetVersion)                                                                                                 \
    X(cudnnGetErrorString)                                                                                             \
    X(cudnnSetStream)                                                                                                  \
    X(cudnnCreateDropoutDescriptor)                                                                                    \
    X(cudnnSetDropoutDescriptor)                                                                                       \
    X(cudnnDestroyDropoutDescriptor)                                                                                   \
    X(cudnnCreateTensorDescriptor)                                                                                     \
    X(cudnnSetTensorNdDescriptor)                                                                                      \
    X(cudnnGetTensorNdDescriptor)                                                                                      \
    X(cudnnDestroyTensorDescriptor)                                                                                    \
    X(cudnnCreateRNNDescriptor)                                                                                        \
    X(cudnnSetRNNDescriptor_v8)                                                                                        \
    X(cudnnDestroyRNNDescriptor)                                                                                       \
    X(cudnnCreateRNNDataDescriptor)                                                                                    \
    X(cudnnSetRNNDataDescriptor)                                                                                       \
    X(cudnnDestroyRNNDataDescriptor)                                                                                   \
    X(cudnnGetRNNTempSpaceSizes)                                                                                       \
    X(cudnnGetRNNWeightSpaceSize)                                                                                      \
    X(cudnnGetRNNWeightParams)                                                                                         \
    X(cudnnRNNForward)                                                                                                 \
    X(cudnnRNNBackwardData_v8)                                                                                         \
    X(cudnnRNNBackwardWeights_v8)                                                                                      \
    X(cudnnCreateFilterDescriptor)                                                                                     \
    X(cudnnSetFilterNdDescriptor)                                                                                      \
    X(cudnnDestroyFilterDescriptor)                                                                                    \
    X(cudnnCreateConvolutionDescriptor)                                                                                \
    X(cudnnSetConvolutionNdDescriptor)                                                                                 \
    X(cudnnSetConvolutionGroupCount)                                                                                   \
    X(cudnnSetConvolutionMathType)                                                                                     \
    X(cudnnGetConvolutionNdForwardOutputDim)                                                                           \
    X(cudnnDestroyConvolutionDescriptor)                                                                               \
    X(cudnnGetConvolutionForwardWorkspaceSize)                                                                         \
    X(cudnnGetConvolutionBackwardDataWorkspaceSize)                                                                    \
    X(cudnnGetConvolutionBackwardFilterWorkspaceSize)                                                                  \
    X(cudnnConvolutionForward)                                                                                         \
    X(cudnnConvolutionBackwardData)                                                                                    \
    X(cudnnConvolutionBackwardFilter)

/* Members have the names of the functions: lib->cudaMalloc(...). */
typedef struct {
#define FIELD(name) __typeof__(name) *name;
    RM_CUDA_RUNTIME_CALLS(FIELD)
    RM_CUBLAS_CALLS(FIELD)
    RM_CUBLASLT_CALLS(FIELD)
#undef FIELD
} rm_cuda_library;

/* Opens the libraries, which stay open. The table is shared by the whole process. MISSING: not found, or too old. The
 * first function fills in only the runtime. Call the second, which adds cuBLAS, once a GPU is known to exist, since
 * cuBLAS takes 150 MiB of host memory. */
remat_status rm_cuda_library_open(const rm_cuda_library **out);
remat_status rm_cuda_library_open_products(void);

/* The same for cuDNN. MISSING: as above, or this build does not support it. */
typedef struct {
#ifdef RM_HAVE_CUDNN
#define FIELD(name) __typeof__(name) *name;
    RM_CUDNN_CALLS(FIELD)
#undef FIELD
#else
    int unknown;
#endif
} rm_cudnn_library;

remat_status rm_cudnn_library_open(const rm_cudnn_library **out);

#endif
