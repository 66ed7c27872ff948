/* local_meeting.h: where the ranks of one host wait for each other. Each rank increments its count of meetings in its
 * slot and waits until the others have done the same. group_local.c does the work between meetings; local_watch.c
 * detects dead and stopped ranks. */
#ifndef RM_LOCAL_MEETING_H
#define RM_LOCAL_MEETING_H

#include "dist/group/local_arena.h"

typedef struct {
    const rm_group_config *config; /* borrowed, as is the arena */
    rm_local_arena *arena;
    int64_t limit_ms; /* for another rank: join_ms for the first meeting, set to timeout_ms after it */
    uint32_t count;   /* number of meetings that this rank has arrived at */
    int spins;
} rm_local_meeting;

void rm_local_meeting_init(const rm_group_config *config, rm_local_arena *arena, rm_local_meeting *out);

/* Returns when all ranks have arrived. PEER: the announced failure (local_watch.h), or a rank did not arrive in
 * time. */
remat_status rm_local_meet(rm_local_meeting *meeting);

/* Point to point (group.h), through the ring of the two ranks. Returns when the bytes lie in the ring, or have been
 * received from it. Statuses as above. */
remat_status rm_local_send(rm_local_meeting *meeting, int32_t to, const void *data, uint64_t bytes);
remat_status rm_local_receive(rm_local_meeting *meeting, int32_t from, void *data, uint64_t bytes);

/* For notice(), from another thread: whether this rank has waited a second for a rank that is alive, and for which
 * one. */
bool rm_local_waits(rm_local_meeting *meeting, rm_notice *out);

#endif
