/* nccl_messages.h: which messages the streams of a GPU have been given and have not exchanged yet, for group_nccl.c, which
 * must know whom a stream waits for: two events around each message. At most RM_NCCL_MESSAGES are kept in mind. One thread
 * at a time. */
#ifndef RM_NCCL_MESSAGES_H
#define RM_NCCL_MESSAGES_H

#include "dist/nccl/nccl_comm.h"

enum { RM_NCCL_MESSAGES = 64 };

typedef struct {
    uint64_t number; /* from 1 */
    int32_t peer;
    bool sending;
} rm_nccl_message;

typedef struct {
    rm_nccl_message item[RM_NCCL_MESSAGES];
    cudaEvent_t reached[RM_NCCL_MESSAGES], done[RM_NCCL_MESSAGES];
    uint64_t given, exchanged; /* how many */
    uint64_t since_ns;         /* when the first that has not been exchanged was seen to be reached; 0: it was not */
} rm_nccl_messages;

remat_status rm_nccl_messages_make(const rm_nccl *nccl, rm_nccl_messages *messages); /* free it even after an error */
void rm_nccl_messages_free(const rm_nccl *nccl, rm_nccl_messages *messages);

/* Around NCCL's call. begin numbers the message; there must be room. end: it is kept in mind from here on. */
remat_status rm_nccl_messages_begin(const rm_nccl *nccl, rm_nccl_messages *messages, rm_nccl_message *message,
                                    cudaStream_t stream);
remat_status rm_nccl_messages_end(const rm_nccl *nccl, rm_nccl_messages *messages, const rm_nccl_message *message,
                                  cudaStream_t stream);
bool rm_nccl_messages_full(const rm_nccl *nccl, rm_nccl_messages *messages);

/* The message that a stream is waiting for, and since when; NULL, 0: none. */
const rm_nccl_message *rm_nccl_messages_first(const rm_nccl *nccl, rm_nccl_messages *messages, uint64_t *waited_ns);
/* The first that has not been exchanged, or NULL. */
const rm_nccl_message *rm_nccl_messages_oldest(const rm_nccl_messages *messages);

#endif
