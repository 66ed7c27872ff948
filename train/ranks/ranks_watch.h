/* ranks_watch.h: a thread that tells people when a rank has gone quiet, long before that is a failure (ranks.c starts it); and
 * that makes it a failure after `timeout_s`, where the group's engine does not do so itself. */
#ifndef RM_TRAIN_RANKS_WATCH_H
#define RM_TRAIN_RANKS_WATCH_H

#include "train/ranks/ranks.h"

/* The ranks' group and store are borrowed. */
remat_status rm_ranks_watch_start(const rm_ranks *ranks, double timeout_s, rm_ranks_watch **out);
/* The main thread says itself why it ends. From here on the watch only sees to it that it does: a library that waits for a
 * stopped rank may not let it. NULL allowed. */
void rm_ranks_watch_hush(rm_ranks_watch *watch, remat_status status);
void rm_ranks_watch_stop(rm_ranks_watch *watch); /* NULL allowed */

#endif
