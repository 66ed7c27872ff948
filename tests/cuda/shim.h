/* shim.h: enough of CUDA's language for ops/NAME.cu to be compiled as C++ and executed on the CPU
 * (ops/cuda/kernel.cuh includes it when RM_CUDA_EMULATED is defined). Device memory is host memory. A launch runs at
 * once, or when its turn in a stream comes (emulation.h): blocks one after the other, and the threads of a block as
 * a plain loop, or (RM_LAUNCH_TOGETHER) as fibers that wait for each other (shim.cc). The blocks of a cluster
 * (cluster.cuh) run together as fibers, cluster after cluster.
 *
 * It reports these errors and aborts: a __syncthreads, shuffle or rm_cluster_sync that not all threads reach, or
 * different ones; a wait in a kernel launched with RM_LAUNCH; blocks larger than CUDA allows; mailboxes with a wait
 * that never ends, with use before opening, with two openings, with a phase that is expected twice or gets more than
 * expected; values sent outside the cluster or the block's memory, or to a returning block. AddressSanitizer finds
 * accesses outside arrays. tests/cuda/test_kernels.c finds races: it runs every kernel with threads and blocks in
 * several orders and compares the bits; sent values arrive at once in some orders, and as late as possible in
 * others. Atomics are missing on purpose. The emulation says nothing about speed or about nvcc. */
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
extern int rm_emulated_kernel_error, rm_emulated_clusters; /* emulation.h */

typedef struct {
    int64_t blocks; /* in all clusters */
    int threads;
    bool together;
    int size;      /* blocks per cluster; 0: no clusters */
    size_t shared; /* bytes of rm_cluster_memory */
} rm_emulated_grid;

/* `body` is the work of one thread, on `context` or on a copy of its `bytes`. */
void rm_emulated_launch(const void *queue, const char *kernel, const rm_emulated_grid *grid, void (*body)(void *),
                        const void *context, size_t bytes);
void rm_emulated_syncthreads(const char *file, int line);
/* Sets *value to the value of `lane` in the warp. */
void rm_emulated_exchange(unsigned mask, void *value, size_t bytes, int lane, const char *file, int line);

/* cluster.cuh */
typedef struct {
    int32_t missing;        /* bytes: expected - arrived; negative if they arrive first */
    uint32_t expected : 20; /* 0: nothing expected yet in this phase */
    uint32_t phase : 1;
    uint32_t seal : 11; /* marks an open mailbox */
} rm_mailbox;
static_assert(sizeof(rm_mailbox) == 8, "a mailbox is as large as on a GPU");

float *rm_cluster_memory(void);
unsigned rm_cluster_rank(void), rm_cluster_size(void);
void rm_mailbox_open(rm_mailbox *box), rm_mailbox_expect(rm_mailbox *box, unsigned bytes);
typedef unsigned rm_peer; /* the block's rank */
static inline rm_peer rm_cluster_peer(unsigned rank) { return rank; }
void rm_mailbox_send(rm_peer peer, float *slot, rm_mailbox *box, float value);
void rm_fetch(void *shared, const void *global), rm_fetch_end(void), rm_emulated_fetch_wait(int batches);
void rm_emulated_cluster_sync(const char *file, int line);
void rm_emulated_mailbox_wait(rm_mailbox *box, unsigned phase, const char *file, int line);
}

#define __launch_bounds__(...)
#define __popc(bits) __builtin_popcount(bits)
#define rm_clusters_at_once(kernel, size, threads, bytes) ((void)(kernel), rm_emulated_clusters)
#define __syncthreads() rm_emulated_syncthreads(__FILE__, __LINE__)
#define __shfl_sync(mask, value, lane) rm_emulated_shuffle(mask, value, lane, __FILE__, __LINE__)
#define __shfl_xor_sync(mask, value, apart) __shfl_sync(mask, value, (int)(threadIdx.x % 32) ^ (apart))
#define rm_cluster_sync() rm_emulated_cluster_sync(__FILE__, __LINE__)
#define rm_mailbox_wait(box, phase) rm_emulated_mailbox_wait(box, phase, __FILE__, __LINE__)

template <int N> static inline void rm_fetch_wait(void) { rm_emulated_fetch_wait(N); }

template <typename T>
static inline T rm_emulated_shuffle(unsigned mask, T value, int lane, const char *file, int line) {
    rm_emulated_exchange(mask, &value, sizeof value, lane, file, line);
    return value;
}

/* A kernel's arguments, copied at the launch. */
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
    rm_emulated_grid grid = {blocks, threads, together, 0, 0};
    rm_emulated_launch(queue, name, &grid, call.run, &call, sizeof call);
}

template <typename A>
static inline void rm_emulate_clusters(const void *queue, const char *name, void (*kernel)(A), int64_t clusters,
                                       int size, int threads, size_t bytes, A argument) {
    rm_emulated_call<void (*)(A), A> call = {kernel, std::tuple<A>(argument)};
    rm_emulated_grid grid = {clusters * size, threads, true, size, bytes};
    rm_emulated_launch(queue, name, &grid, call.run, &call, sizeof call);
}

#define RM_LAUNCH_EMULATED(together, kernel, blocks, threads, queue, ...)                                              \
    rm_emulate(                                                                                                        \
        queue, #kernel, blocks, threads, together, [](auto... argument) { kernel(argument...); }, __VA_ARGS__)
#define RM_KERNEL_ERROR(kernel) ((void)(kernel), rm_emulated_kernel_error)
#define RM_LAUNCH(...) RM_LAUNCH_EMULATED(false, __VA_ARGS__)
#define RM_LAUNCH_TOGETHER(...) RM_LAUNCH_EMULATED(true, __VA_ARGS__)
#define RM_LAUNCH_CLUSTERS(kernel, clusters, size, threads, bytes, queue, argument)                                    \
    rm_emulate_clusters(queue, #kernel, kernel, clusters, size, threads, bytes, argument)

#endif
