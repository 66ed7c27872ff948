/* nccl_buffers.h: the GPU memory that a group over NCCL gives to its users (rm_group_alloc), and takes back: what they
 * have not given back ends with the group. From any thread. */
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
/* All that are left; nothing is freed on a GPU that NCCL may hold (rm_nccl.stuck). */
void rm_nccl_buffers_free(const rm_nccl *nccl, rm_nccl_buffers *buffers);

/* Zeros, on the group's GPU. NULL: MEMORY or DEVICE, with its sentence. */
void *rm_nccl_buffers_take(const rm_nccl *nccl, rm_nccl_buffers *buffers, uint64_t bytes);
void rm_nccl_buffers_give_back(const rm_nccl *nccl, rm_nccl_buffers *buffers, void *start);

#endif
