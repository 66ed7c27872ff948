/* ranks_wait.h: progress messages while ranks try to reach rank 0, which may take minutes, from rank 1 and the first rank of each host.
 * Once connected, the group reports (dist/group/joining.h), and once it is open, ranks_watch.h. */
#ifndef RM_TRAIN_RANKS_WAIT_H
#define RM_TRAIN_RANKS_WAIT_H

#include "dist/store/rendezvous.h"

typedef struct rm_ranks_wait rm_ranks_wait;

/* Call before reaching rank 0, which may take up to `timeout_s`. `where` is borrowed. *out is NULL if this rank prints nothing. */
remat_status rm_ranks_wait_begin(const rm_rendezvous *where, double timeout_s, rm_ranks_wait **out);
void rm_ranks_wait_end(rm_ranks_wait *wait); /* NULL allowed; keeps remat_last_error() */

/* Prints "remat train: rank 0 of 4: SENTENCE". */
void rm_ranks_wait_say(int32_t rank, int32_t size, const char *sentence);

#endif
