/* emulation.h: the tests' interface to the emulation of CUDA kernels (shim.h). */
#ifndef RM_EMULATION_H
#define RM_EMULATION_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "ops/cuda/cuda_queue.h"

/* The order of clusters, of blocks, and of the threads of a block between two waits. On a GPU any order is possible.
 * Values sent to a mailbox arrive at once with RM_IN_ORDER; otherwise they arrive in the given order, when no thread
 * can run. With RM_WARPS_APART a randomly drawn warp runs until it waits for others, again and again, so that some
 * warps are far ahead; sent values first arrive at once, later with delay. */
typedef enum { RM_IN_ORDER, RM_REVERSED, RM_EVEN_LAST, RM_WARPS_APART, RM_ORDERS } rm_emulated_order;
void rm_emulate_in(rm_emulated_order order);

/* The number of launches, and of products by the queues below, so far. */
int64_t rm_emulated_launches(void);
int64_t rm_emulated_products(void);

/* Passes launches to the owner of the queue's stream, who calls `work` when its turn in the stream comes, on a copy of
 * `bytes` of context, aligned to 16: from any thread, one at a time. NULL, the default: launches run at once. */
typedef void rm_emulated_giver(void *stream, void (*work)(void *context), const void *context, size_t bytes);
void rm_emulate_by(rm_emulated_giver *giver);

/* The answer of a kernel when asked whether it fits this GPU: 0, or a CUDA error. */
extern int rm_emulated_kernel_error;

/* How many clusters the GPU runs at once (rm_clusters_cuda); 0 by default. */
extern int rm_emulated_clusters;

/* For remat_call.queue: launches run at once, products in plain loops (product.c). The first is for a GPU without
 * clusters, the second for a GPU with two; copies may set any number. */
extern const rm_cuda_queue rm_emulated_queue, rm_emulated_clusters_queue;

#ifdef __cplusplus
}
#endif

#endif
