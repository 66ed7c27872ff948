/* clusters.cu: whether this GPU runs clusters (cluster.cuh), and how many at once. */
#include "ops/cuda/cluster.cuh"

/* Stands for every persistent kernel: with so much shared memory a block has a multiprocessor to itself, as those of wide layers
 * have. */
enum { THREADS = 256, BYTES = 200 << 10 };
static __global__ void __launch_bounds__(THREADS) alone(int) {}

int rm_clusters_cuda(void) { return rm_clusters_at_once(alone, RM_CLUSTER_MOST, THREADS, BYTES); }
