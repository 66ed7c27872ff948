/* local_watch.h: keeping an eye on the other ranks of this host, from a thread of its own: a rank that dies is known at
 * once (its pidfd), one that is stopped after a second (its heartbeat). What is found is written where all ranks read it,
 * so that everybody stops with the same sentence. */
#ifndef RM_LOCAL_WATCH_H
#define RM_LOCAL_WATCH_H

#include "dist/group/local_arena.h"

typedef struct rm_local_watch rm_local_watch;

/* All ranks are in the arena. `config` and `arena` are borrowed. */
remat_status rm_local_watch_start(const rm_group_config *config, rm_local_arena *arena, rm_local_watch **out);
void rm_local_watch_stop(rm_local_watch *watch); /* NULL allowed */

/* Tells all ranks to stop, unless one has done so before; returns PEER with the sentence that counts. */
remat_status rm_local_announce(rm_local_arena *arena, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* OK, or what was announced. */
remat_status rm_local_stopped(const rm_local_arena *arena);

bool rm_local_silent(rm_local_watch *watch, char *text, size_t bytes); /* for notice() */

/* "rank 1 on node7 (process 4711)"; "which was in call 12, all_reduce of ..." into buffers of RM_RANK_TEXT bytes. */
#define RM_RANK_TEXT (RM_FINGERPRINT_TEXT + 64)
const char *rm_local_who(const rm_local_arena *arena, int32_t rank, char *buffer);
const char *rm_local_doing(const rm_group_config *config, const rm_local_arena *arena, int32_t rank, char *buffer);

#endif
