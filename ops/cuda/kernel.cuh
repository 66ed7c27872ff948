/* kernel.cuh: what every ops/NAME.cu includes first. Such a file holds one op's CUDA kernels and their launchers, the
 * functions that RM_CUDA(NAME, forward) names (op.h): a launcher reads the call on the host and launches on its queue.
 *
 * Two compilers read it: nvcc, and, as ordinary C++ with RM_CUDA_EMULATED defined, the host's (tests/cuda/shim.h), so that
 * every kernel is executed by the tests of machines that have no GPU. Hence the rules:
 *   - Launch with RM_LAUNCH; with RM_LAUNCH_TOGETHER where threads of a block wait for each other (__syncthreads,
 *     __shfl_sync and __shfl_xor_sync with a full mask, and what is in reduce.cuh); with RM_LAUNCH_CLUSTERS where blocks do
 *     (cluster.cuh). There are no other ways to wait.
 *   - No atomics: their order is not fixed, so bits would change. The emulation does not know them.
 *     (Sums of integers modulo 2^64 would have the same bits; partial sums, one a block, do for these too: compare.cu.)
 *   - Every thread reaches every __syncthreads, and returns after the last. Blocks are one-dimensional.
 *   - No result depends on how many threads there are, unless their number is a constant.
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
/* Nothing is launched where there are 0 blocks. Failures surface when the device next looks (engine/cuda/device.c). */
#define RM_LAUNCH(kernel, blocks, threads, queue, ...)                                                                 \
    do {                                                                                                               \
        unsigned rm_blocks_ = (unsigned)(blocks);                                                                      \
        cudaStream_t rm_stream_ = (cudaStream_t)((const rm_cuda_queue *)(queue))->stream;                              \
        if (rm_blocks_) kernel<<<rm_blocks_, (threads), 0, rm_stream_>>>(__VA_ARGS__);                                 \
    } while (0)
#define RM_LAUNCH_TOGETHER RM_LAUNCH
/* 0, or CUDA's error: whether this build has the kernel for the GPU that is chosen. */
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

/* ---- A thread for each of n elements, or for every so many ---------------------------------------------------------- */

enum { RM_EACH_THREADS = 256, RM_EACH_BLOCKS = 8192 };

#define RM_EACH(i, n)                                                                                                  \
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < (n); i += (int64_t)gridDim.x * blockDim.x)

/* Of element i in rows of n: a division of 64 bits takes tens of instructions, more than most elements do in all. */
static __device__ inline int64_t rm_row_of(int64_t i, int64_t n) {
    return i >> 32 || n >> 32 ? i / n : (int64_t)((uint32_t)i / (uint32_t)n);
}

/* How many blocks of `size` make n; at most so many of them, for loops that stride over the rest. */
static inline int64_t rm_blocks_of(int64_t n, int64_t size) { return (n + size - 1) / size; }
static inline int64_t rm_blocks_within(int64_t n, int64_t size, int64_t most) {
    return rm_blocks_of(n, size) < most ? rm_blocks_of(n, size) : most;
}

/* The kernel's loop is RM_EACH(i, n). */
#define RM_LAUNCH_EACH(kernel, n, queue, ...)                                                                          \
    RM_LAUNCH(kernel, rm_blocks_within(n, RM_EACH_THREADS, RM_EACH_BLOCKS), RM_EACH_THREADS, queue, __VA_ARGS__)

#endif
