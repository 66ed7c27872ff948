/* local_meeting.h: where the ranks of one host wait for each other: each raises its count of meetings, in its slot, and
 * waits until the others have raised theirs. What is done between meetings is group_local.c's; who is dead or stopped,
 * local_watch.c's. */
#ifndef RM_LOCAL_MEETING_H
#define RM_LOCAL_MEETING_H

#include "dist/group/local_arena.h"

typedef struct {
    const rm_group_config *config; /* borrowed, as is the arena */
    rm_local_arena *arena;
    uint32_t count; /* meetings that this rank has come to */
    int spins;
    _Atomic int32_t waits_for; /* the rank, -1: none; and since when */
    _Atomic uint64_t waits_since_ns;
} rm_local_meeting;

void rm_local_meeting_init(const rm_group_config *config, rm_local_arena *arena, rm_local_meeting *out);

/* Returns when all have come; PEER with what was announced (local_watch.h), also when one does not come in time. */
remat_status rm_local_meet(rm_local_meeting *meeting);

/* For notice(), from another thread: whether this rank has waited for a second for one that lives, and for which. */
bool rm_local_waits(rm_local_meeting *meeting, char *text, size_t bytes);

#endif
