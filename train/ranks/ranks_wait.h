/* ranks_wait.h: what people are told while a rank looks for rank 0, which may take minutes: the first of each host, and rank 1,
 * say so. From the first connection on the group speaks (dist/group/joining.h), and once it is open ranks_watch.h. */
#ifndef RM_TRAIN_RANKS_WAIT_H
#define RM_TRAIN_RANKS_WAIT_H

#include "dist/store/rendezvous.h"

typedef struct rm_ranks_wait rm_ranks_wait;

/* Around reaching rank 0, for up to `timeout_s`. `where` is borrowed. *out is NULL where there is nothing to be said. */
remat_status rm_ranks_wait_begin(const rm_rendezvous *where, double timeout_s, rm_ranks_wait **out);
void rm_ranks_wait_end(rm_ranks_wait *wait); /* NULL allowed; keeps remat_last_error() */

/* One such line: "remat train: rank 0 of 4: SENTENCE". */
void rm_ranks_wait_say(int32_t rank, int32_t size, const char *sentence);

#endif
