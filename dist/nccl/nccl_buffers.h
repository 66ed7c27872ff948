/* nccl_buffers.h: allocates and frees GPU memory for users of a group over NCCL (rm_group_alloc). Buffers that were not
 * freed are freed with the group. Any thread. */
#ifndef RM_NCCL_BUFFERS_H
#define RM_NCCL_BUFFERS_H

#include <pthread.h>

#include "dist/nccl/nccl_comm.h"

typedef struct rm_nccl_buffer rm_nccl_buffer;

typedef struct {
    pthread_mutex_t lock;
    rm_nccl_buffer *first;
} rm_nccl_buffers;

void rm_nccl_buffers_init(rm_nccl_buffers *buffers);
/* Frees all remaining buffers; frees nothing on a GPU that NCCL may still hold (rm_nccl.stuck). */
void rm_nccl_buffers_free(const rm_nccl *nccl, rm_nccl_buffers *buffers);

/* Allocates zeroed memory on the group's GPU. NULL: MEMORY or DEVICE, with a message. */
void *rm_nccl_buffers_take(const rm_nccl *nccl, rm_nccl_buffers *buffers, uint64_t bytes);
void rm_nccl_buffers_give_back(const rm_nccl *nccl, rm_nccl_buffers *buffers, void *start);

#endif
