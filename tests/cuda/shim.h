/* shim.h: enough of CUDA's language for ops/NAME.cu to be compiled as C++ and executed on the CPU (ops/cuda/kernel.cuh includes
 * it when RM_CUDA_EMULATED is defined). Device memory is host memory; a launch runs at once, or when a stream gets there
 * (emulation.h): blocks one after the other, and the threads of a block as a plain loop, or (RM_LAUNCH_TOGETHER) as fibers
 * that wait for each other (shim.cc).
 *
 * What it finds, saying so and calling abort: a __syncthreads or shuffle that not all threads reach, or not the same one;
 * waiting in a kernel that was launched with RM_LAUNCH; blocks larger than CUDA's. AddressSanitizer finds accesses outside
 * arrays, and tests/cuda/test_kernels.c races: it runs every kernel with threads and blocks in several orders and compares
 * the bits. Atomics are not there on purpose. What it cannot find: anything about speed, or about nvcc. */
#ifndef RM_SHIM_H
#define RM_SHIM_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <tuple>

#define __global__
#define __device__
#define __host__
#define __shared__ static /* blocks run one after the other */

typedef struct {
    unsigned x;
} rm_index;

extern "C" {
extern rm_index threadIdx, blockIdx, blockDim, gridDim;
extern int rm_emulated_kernel_error; /* emulation.h */

/* `body` is one thread's work, on `context` or on a copy of its `bytes`. */
void rm_emulated_launch(const void *queue, const char *kernel, int64_t blocks, int threads, bool together,
                        void (*body)(void *), const void *context, size_t bytes);
void rm_emulated_syncthreads(const char *file, int line);
/* *value becomes what lane (this one ^ apart) of the warp came with. */
void rm_emulated_exchange(unsigned mask, void *value, size_t bytes, int apart, const char *file, int line);
}

#define __syncthreads() rm_emulated_syncthreads(__FILE__, __LINE__)
#define __shfl_xor_sync(mask, value, apart) rm_emulated_shuffle(mask, value, apart, __FILE__, __LINE__)

template <typename T>
static inline T rm_emulated_shuffle(unsigned mask, T value, int apart, const char *file, int line) {
    rm_emulated_exchange(mask, &value, sizeof value, apart, file, line);
    return value;
}

/* A kernel's arguments, kept as they are when it is launched. */
template <typename K, typename... P> struct rm_emulated_call {
    K kernel;
    std::tuple<P...> arguments;
    static void run(void *call) {
        rm_emulated_call *c = (rm_emulated_call *)call;
        std::apply(c->kernel, c->arguments);
    }
};

template <typename K, typename... P>
static inline void rm_emulate(const void *queue, const char *name, int64_t blocks, int threads, bool together, K kernel,
                              P... arguments) {
    rm_emulated_call<K, P...> call = {kernel, std::tuple<P...>(arguments...)};
    rm_emulated_launch(queue, name, blocks, threads, together, call.run, &call, sizeof call);
}

#define RM_LAUNCH_EMULATED(together, kernel, blocks, threads, queue, ...)                                              \
    rm_emulate(                                                                                                        \
        queue, #kernel, blocks, threads, together, [](auto... argument) { kernel(argument...); }, __VA_ARGS__)
#define RM_KERNEL_ERROR(kernel) ((void)(kernel), rm_emulated_kernel_error)
#define RM_LAUNCH(...) RM_LAUNCH_EMULATED(false, __VA_ARGS__)
#define RM_LAUNCH_TOGETHER(...) RM_LAUNCH_EMULATED(true, __VA_ARGS__)

#endif
