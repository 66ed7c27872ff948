/* local_watch.h: a thread that watches the other ranks of this host. It notices a dead rank at once (by pidfd) and a
 * stopped rank after a second (by its heartbeat). It writes what it found where all ranks read it, so that all stop
 * with the same message. */
#ifndef RM_LOCAL_WATCH_H
#define RM_LOCAL_WATCH_H

#include "dist/group/local_arena.h"

typedef struct rm_local_watch rm_local_watch;

/* All ranks have mapped the arena. `config` and `arena` are borrowed. */
remat_status rm_local_watch_start(const rm_group_config *config, rm_local_arena *arena, rm_local_watch **out);
void rm_local_watch_stop(rm_local_watch *watch); /* accepts NULL */

/* Tells all ranks to stop, unless another rank already has. Returns PEER with the first message. */
remat_status rm_local_announce(rm_local_arena *arena, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* OK, or the announced failure. */
remat_status rm_local_stopped(const rm_local_arena *arena);

bool rm_local_silent(rm_local_watch *watch, rm_notice *out); /* for notice() */

/* "rank 1 on node7 (process 4711)" and "which was in call 12, all_reduce of ...", into buffers of RM_RANK_TEXT
 * bytes. */
#define RM_RANK_TEXT (RM_FINGERPRINT_TEXT + 64)
const char *rm_local_who(const rm_local_arena *arena, int32_t rank, char *buffer);
const char *rm_local_doing(const rm_group_config *config, const rm_local_arena *arena, int32_t rank, char *buffer);

#endif
