/* emulation.h: what tests ask of the emulation of CUDA kernels (shim.h), which takes no part in it. */
#ifndef RM_EMULATION_H
#define RM_EMULATION_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "ops/cuda/cuda_queue.h"

/* In what order clusters, blocks, and the threads of a block between two waits, are run. On a GPU it is anything. What is sent
 * to a mailbox arrives at once with RM_IN_ORDER; else in that order too, when no thread can run. With RM_WARPS_APART a warp is
 * drawn, again and again, and runs until it waits for others, so that some are far ahead; what is sent arrives at once for some
 * time, and then late for some. */
typedef enum { RM_IN_ORDER, RM_REVERSED, RM_EVEN_LAST, RM_WARPS_APART, RM_ORDERS } rm_emulated_order;
void rm_emulate_in(rm_emulated_order order);

/* Launches so far. */
int64_t rm_emulated_launches(void);

/* Launches are given to whoever keeps the queue's stream, who calls `work` on a copy of `bytes` of context, aligned to 16, when
 * the stream gets there: from any thread, one at a time. NULL, as at first: they are run at once. */
typedef void rm_emulated_giver(void *stream, void (*work)(void *context), const void *context, size_t bytes);
void rm_emulate_by(rm_emulated_giver *giver);

/* What a kernel answers that is asked whether it is made for this GPU: 0, or one of CUDA's errors. */
extern int rm_emulated_kernel_error;

/* What a GPU answers that is asked how many clusters it runs at once (rm_clusters_cuda); 0 at first. */
extern int rm_emulated_clusters;

/* For remat_call.queue: launches are made at once, products in plain loops (product.c). The one is of a GPU that has no clusters,
 * the other of one that has two; copies may say any number. */
extern const rm_cuda_queue rm_emulated_queue, rm_emulated_clusters_queue;

#ifdef __cplusplus
}
#endif

#endif
