/* early.h: the arrays that a step changes before its update: batch norm's running statistics, and the states that --stateful carries
 * to the next batch. A step that fails has changed them already, and a rank that dies takes the states of its rows with it. So each
 * rank of an elastic job (trainer_world.h) keeps a copy of the last two steps' arrays: its own statistics, and all ranks' states. */
#ifndef RM_EARLY_H
#define RM_EARLY_H

#include "train/ranks/ranks.h"

typedef struct {
    char *data;
    uint64_t bytes;
    int64_t step; /* -1: none */
} rm_early_copy;

typedef struct {
    rm_early_copy copy[2];
} rm_early;

bool rm_early_any(const remat_session *session, bool stateful); /* whether there are such arrays */

/* Collective if `stateful`. Call it between the last remat_gradients of step `step` and its remat_update: whichever of the two has
 * failed, there is a copy for the parameters that a rank has. The copy of step - 1 is kept. */
remat_status rm_early_keep(rm_early *early, rm_ranks *ranks, remat_session *session, bool stateful, int64_t step);
const rm_early_copy *rm_early_find(const rm_early *early, int64_t step); /* NULL: none */
void rm_early_free(rm_early *early);

/* Collective: every rank writes rank 0's copy to its session, of the states those of its own rows. The copy may come from another
 * number of ranks with as many rows. INTERNAL: from another network. */
remat_status rm_early_share(rm_early_copy *copy, rm_ranks *ranks, remat_session *session, bool stateful);

#endif
