/* clusters.cu: how many clusters (cluster.cuh) this GPU runs at once, if any. */
#include "ops/cuda/cluster.cuh"

/* A stand-in for every persistent kernel: with this much shared memory a block has a multiprocessor to itself, like the
 * kernels of wide layers. */
enum { THREADS = 256, BYTES = 200 << 10 };
static __global__ void __launch_bounds__(THREADS) alone(int) {}

int rm_clusters_cuda(void) { return rm_clusters_at_once(alone, RM_CLUSTER_MOST, THREADS, BYTES); }
