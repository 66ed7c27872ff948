/* kernel.cuh: the first include of every .cu file of an op. Such a file holds one op's CUDA kernels and their
 * launchers, the functions that RM_CUDA(NAME, forward) names (op.h). A launcher reads the call on the host and launches
 * kernels on its queue.
 *
 * Two compilers read a .cu file: nvcc, and the host's compiler as ordinary C++ with RM_CUDA_EMULATED defined
 * (tests/cuda/shim.h). So the tests execute every kernel on machines without a GPU, too. Hence the rules:
 *   - Launch with RM_LAUNCH. Use RM_LAUNCH_TOGETHER if threads of a block wait for each other (__syncthreads,
 *     __shfl_sync and __shfl_xor_sync with a full mask, functions of reduce.cuh), and RM_LAUNCH_CLUSTERS if blocks do
 *     (cluster.cuh). Use no other way to wait.
 *   - No atomics: their order is not fixed, so bits would change. The emulation does not support them.
 *     (Sums of integers modulo 2^64 would keep their bits, but partial sums per block work for these too: compare.cu.)
 *   - Every thread reaches every __syncthreads, and returns after the last one. Blocks are one-dimensional.
 *   - No result depends on the number of threads, unless that number is a constant.
 */
#ifndef RM_KERNEL_CUH
#define RM_KERNEL_CUH

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ops/real.h"

#ifdef RM_CUDA_EMULATED
#include "tests/cuda/shim.h"
#else
#include <cuda_runtime.h>
/* With 0 blocks nothing is launched. Errors surface when engine/cuda/device.c next checks. */
#define RM_LAUNCH(kernel, blocks, threads, queue, ...)                                                                 \
    do {                                                                                                               \
        unsigned rm_blocks_ = (unsigned)(blocks);                                                                      \
        cudaStream_t rm_stream_ = (cudaStream_t)((const rm_cuda_queue *)(queue))->stream;                              \
        if (rm_blocks_) kernel<<<rm_blocks_, (threads), 0, rm_stream_>>>(__VA_ARGS__);                                 \
    } while (0)
#define RM_LAUNCH_TOGETHER RM_LAUNCH
/* 0 if this build has the kernel for the current GPU, else CUDA's error. */
#define RM_KERNEL_ERROR(kernel) rm_kernel_error((const void *)(kernel))
static inline int rm_kernel_error(const void *kernel) {
    struct cudaFuncAttributes about;
    return (int)cudaFuncGetAttributes(&about, kernel);
}
#endif

extern "C" {
#include "ops/cuda/cuda_queue.h"
#include "ops/op.h"
#include "ops/tile.h"
}

/* ---- Loops over n elements, a thread for each or for several ----------------------------------------------------- */

enum { RM_EACH_THREADS = 256, RM_EACH_BLOCKS = 8192 };

#define RM_EACH(i, n)                                                                                                  \
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < (n); i += (int64_t)gridDim.x * blockDim.x)

/* i / n. A 64-bit division takes tens of instructions, more than the rest of the work on most elements. */
static __device__ inline int64_t rm_row_of(int64_t i, int64_t n) {
    return i >> 32 || n >> 32 ? i / n : (int64_t)((uint32_t)i / (uint32_t)n);
}

/* The number of blocks of `size` that cover n; rm_blocks_within: at most `most`, for loops that stride over the
 * rest. */
static inline int64_t rm_blocks_of(int64_t n, int64_t size) { return (n + size - 1) / size; }
static inline int64_t rm_blocks_within(int64_t n, int64_t size, int64_t most) {
    return rm_blocks_of(n, size) < most ? rm_blocks_of(n, size) : most;
}

/* The kernel's loop is RM_EACH(i, n). */
#define RM_LAUNCH_EACH(kernel, n, queue, ...)                                                                          \
    RM_LAUNCH(kernel, rm_blocks_within(n, RM_EACH_THREADS, RM_EACH_BLOCKS), RM_EACH_THREADS, queue, __VA_ARGS__)

#endif
