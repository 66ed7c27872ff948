/* cluster.cuh: thread block clusters, whose blocks run together and write into each other's shared memory (compute
 * capability 9.0 and up; PTX ISA 8.0: st.async and mbarrier). They are for kernels that stay on the GPU for many
 * timesteps: the blocks exchange their results in a third of a microsecond.
 *
 * A kernel launched by RM_LAUNCH_CLUSTERS has no other shared memory than rm_cluster_memory(), so that the emulation
 * can give each block its own. A peer's slots and mailboxes have the same offsets in every block. A mailbox counts the
 * bytes still to come. When all have arrived, its phase ends and the waiting threads continue:
 *
 *     one thread:   rm_mailbox_open(&box); rm_mailbox_expect(&box, n);    then all: rm_cluster_sync()
 *     any block:    rm_mailbox_send(peer, &slot, &box, value)             4 bytes into that block's slot, and its box
 *     all threads:  rm_mailbox_wait(&box, phase)                          until n bytes have arrived; phase 0, 1, 0,
 *     ... in turn one thread:   rm_mailbox_expect(&box, n)                            for the next phase, before it
 *     sends anything itself
 *
 * Request global memory many steps ahead: rm_fetch copies 4 bytes into shared memory while the thread
 * continues (cp.async). rm_fetch_end ends a batch; after rm_fetch_wait<N> this thread sees all its batches but the last
 * N.
 *
 * A mailbox keeps one bit of its phase: a thread that misses two phases waits for ever. So no block may send for the
 * next phase before every waiting thread has seen this phase end. Two mailboxes used in turn ensure that, provided that
 * a block continues only after each waiting warp of the other blocks has sent something after its own wait, or after a
 * __syncthreads() that follows it.
 *
 * rm_cluster_sync() comes last: a block that has returned has no shared memory to send to. */
#ifndef RM_CLUSTER_CUH
#define RM_CLUSTER_CUH

#include "ops/cuda/kernel.cuh"

enum { RM_CLUSTER_MOST = 16 }; /* blocks; sizes above 8 are "non-portable" in CUDA's terms; sm_90 supports them */

#ifndef RM_CUDA_EMULATED /* the emulation is in shim.h */

typedef unsigned long long rm_mailbox;

#if defined __CUDA_ARCH__ && __CUDA_ARCH__ < 900
#define RM_CLUSTER_ASM(...) __trap() /* never launched there (rm_cuda_queue.clusters) */
#else
#define RM_CLUSTER_ASM(...) asm volatile(__VA_ARGS__)
#endif

static __device__ inline float *rm_cluster_memory(void) {
    extern __shared__ __align__(16) float memory[];
    return memory;
}
static __device__ inline unsigned rm_cluster_rank(void) {
    unsigned rank = 0;
    RM_CLUSTER_ASM("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
static __device__ inline unsigned rm_cluster_size(void) {
    unsigned size = 0;
    RM_CLUSTER_ASM("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
    return size;
}
static __device__ inline void rm_cluster_sync(void) {
    RM_CLUSTER_ASM("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/* A block of the cluster: the distance of its shared memory from this block's. */
typedef unsigned rm_peer;
static __device__ inline unsigned rm_cluster_here(const void *shared) { return (unsigned)__cvta_generic_to_shared(shared); }
static __device__ inline rm_peer rm_cluster_peer(unsigned rank) {
    unsigned here = rm_cluster_here(rm_cluster_memory()), there = 0;
    RM_CLUSTER_ASM("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(rank));
    return there - here;
}

static __device__ inline void rm_mailbox_open(rm_mailbox *box) {
    RM_CLUSTER_ASM("mbarrier.init.shared::cta.b64 [%0], 1;\n\tfence.mbarrier_init.release.cluster;" ::"r"(
                       rm_cluster_here(box))
                   : "memory");
}
static __device__ inline void rm_mailbox_expect(rm_mailbox *box, unsigned bytes) {
    RM_CLUSTER_ASM("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(rm_cluster_here(box)), "r"(bytes)
                   : "memory");
}
static __device__ inline void rm_mailbox_send(rm_peer peer, float *slot, rm_mailbox *box, float value) {
    RM_CLUSTER_ASM("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(
                       rm_cluster_here(slot) + peer),
                   "r"(__float_as_int(value)), "r"(rm_cluster_here(box) + peer)
                   : "memory");
}
/* Block scope, PTX's default, is enough: the data arrive in shared memory, where no cache can hide them. Cluster scope
 * would flush the first-level cache at each wait (CCTL.IVALL), and would first wait for all outstanding loads. */
static __device__ inline void rm_mailbox_wait(rm_mailbox *box, unsigned phase) {
    RM_CLUSTER_ASM("{\n\t.reg .pred there;\n"
                   "again:\n\tmbarrier.try_wait.parity.acquire.cta.shared::cta.b64 there, [%0], %1;\n\t"
                   "@!there bra again;\n\t}" ::"r"(rm_cluster_here(box)),
                   "r"(phase)
                   : "memory");
}

static inline void rm_cluster_config(cudaLaunchConfig_t *config, cudaLaunchAttribute *attribute, const void *kernel,
                                     int64_t clusters, int size, int threads, size_t bytes) {
    attribute->id = cudaLaunchAttributeClusterDimension;
    attribute->val.clusterDim.x = (unsigned)size, attribute->val.clusterDim.y = attribute->val.clusterDim.z = 1;
    config->gridDim = dim3((unsigned)(clusters * size)), config->blockDim = dim3((unsigned)threads);
    config->dynamicSmemBytes = bytes, config->attrs = attribute, config->numAttrs = 1;
    cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
}

static __device__ inline void rm_fetch(void *shared, const void *global) {
    RM_CLUSTER_ASM("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(rm_cluster_here(shared)), "l"(global) : "memory");
}
static __device__ inline void rm_fetch_end(void) { RM_CLUSTER_ASM("cp.async.commit_group;" ::: "memory"); }
template <int N> static __device__ inline void rm_fetch_wait(void) {
    RM_CLUSTER_ASM("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* Launches `kernel` on `clusters` clusters of `size` blocks, each block with `bytes` of shared memory. Errors surface
 * as with RM_LAUNCH. */
template <typename A>
static inline void rm_launch_clusters(void (*kernel)(A), int64_t clusters, int size, int threads, size_t bytes,
                                      void *stream, A argument) {
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attribute = {};
    rm_cluster_config(&config, &attribute, (const void *)kernel, clusters, size, threads, bytes);
    config.stream = (cudaStream_t)stream;
    cudaLaunchKernelEx(&config, kernel, argument);
}

/* The number of such clusters that run at once on this thread's current GPU; 0: clusters do not work there. */
template <typename A>
static inline int rm_clusters_at_once(void (*kernel)(A), int size, int threads, size_t bytes) {
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attribute = {};
    int count = 0;
    rm_cluster_config(&config, &attribute, (const void *)kernel, 1, size, threads, bytes);
    cudaFuncAttributes about; /* code built for an older GPU and compiled by the driver for this one has empty
                                 kernels */
    if (cudaFuncGetAttributes(&about, (const void *)kernel) || about.ptxVersion < 90 ||
        cudaOccupancyMaxActiveClusters(&count, kernel, &config))
        count = 0;
    (void)cudaGetLastError();
    return count;
}
#define RM_LAUNCH_CLUSTERS(kernel, clusters, size, threads, bytes, queue, argument)                                    \
    rm_launch_clusters(kernel, clusters, size, threads, bytes, ((const rm_cuda_queue *)(queue))->stream, argument)

#endif
#endif
