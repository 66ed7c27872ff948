/* ranks_watch.h: a thread, started by ranks.c, that reports a silent rank long before the silence becomes a failure. It also makes it a
 * failure after `timeout_s`, if the group's engine does not do so itself. */
#ifndef RM_TRAIN_RANKS_WATCH_H
#define RM_TRAIN_RANKS_WATCH_H

#include "train/ranks/ranks.h"

/* The ranks' group and store are borrowed. */
remat_status rm_ranks_watch_start(const rm_ranks *ranks, double timeout_s, rm_ranks_watch **out);
/* Call when the main thread will report the error itself. The watch then only ensures that the process ends, because a library that
 * waits for a stopped rank may block the main thread. NULL allowed. */
void rm_ranks_watch_hush(rm_ranks_watch *watch, remat_status status);
void rm_ranks_watch_stop(rm_ranks_watch *watch); /* NULL allowed */

#endif
