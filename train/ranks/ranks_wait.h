/* ranks_wait.h: what people are told while ranks find each other, which may take minutes; from then on ranks_watch.h
 * speaks. Rank 0 says whom it waits for and whom it has refused, and of the others the first of each host says that it
 * waits for rank 0. */
#ifndef RM_TRAIN_RANKS_WAIT_H
#define RM_TRAIN_RANKS_WAIT_H

#include "dist/store/rendezvous.h"

typedef struct rm_ranks_wait rm_ranks_wait;

/* Around reaching rank 0. `where` is borrowed. *out is NULL where there is nothing to be said. */
remat_status rm_ranks_wait_begin(const rm_rendezvous *where, rm_ranks_wait **out);
void rm_ranks_wait_end(rm_ranks_wait *wait); /* NULL allowed; keeps remat_last_error() */

/* One such line: "remat train: rank 0 of 4: SENTENCE". */
void rm_ranks_wait_say(int32_t rank, int32_t size, const char *sentence);

#endif
