/* held.h: a step in memory, for a process that loads its program again to join other ranks (dist/launch/world.h). It
 * has what a training state has, without a disk: the position, parameters, the optimizer's state, and the average of the
 * weights. It lies in a file without a name (memfd), which ends with the process; REMAT_HELD
 * is its descriptor. */
#ifndef RM_HELD_H
#define RM_HELD_H

#include "train/state/state.h"

/* Whether one rank has all that a step consists of, and the failed step after it has changed nothing. */
bool rm_held_possible(const remat_session *session, const rm_options *options);

/* Replaces an earlier one. `ema`: the average's session, NULL: none. IO, MEMORY: the earlier one is kept. */
remat_status rm_held_keep(remat_session *session, remat_session *ema, const rm_state_point *point);

bool rm_held_find(rm_state_point *point); /* false: none */
remat_status rm_held_fill(remat_session *session, remat_session *ema);
void rm_held_drop(void);

#endif
