/* ranks_watch.h: a thread that tells people when a rank has gone quiet, long before that is a failure (ranks.c starts it). */
#ifndef RM_TRAIN_RANKS_WATCH_H
#define RM_TRAIN_RANKS_WATCH_H

#include "train/ranks.h"

/* `timeout_s`: what the sentence says is waited for. The group is borrowed. */
remat_status rm_ranks_watch_start(rm_group *group, double timeout_s, rm_ranks_watch **out);
void rm_ranks_watch_stop(rm_ranks_watch *watch); /* NULL allowed */

#endif
