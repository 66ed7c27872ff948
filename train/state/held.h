/* held.h: a step in memory, for a process that loads its program again to join other ranks (dist/launch/world.h). It
 * has what a training state has, without a disk: the position, parameters, the optimizer's state, the average of the
 * weights, and running statistics and carried states (train/run/early.h). It lies in a file without a name (memfd), which ends with the process; REMAT_HELD
 * is its descriptor. */
#ifndef RM_HELD_H
#define RM_HELD_H

#include "train/run/early.h"
#include "train/state/state.h"

/* Whether one rank has all that a step consists of, and a failed step after it has changed no parameters. */
bool rm_held_possible(const remat_session *session, const rm_options *options);

/* Replaces an earlier one. `ema`: the average's session, NULL: none; `early` likewise. IO, MEMORY: the earlier one is
 * kept. */
remat_status rm_held_keep(remat_session *session, remat_session *ema, const rm_early_copy *early,
                          const rm_state_point *point);

bool rm_held_find(rm_state_point *point); /* false: none */
/* `early` becomes what it was; the caller frees its data with rm_free. */
remat_status rm_held_fill(remat_session *session, remat_session *ema, rm_early_copy *early);
void rm_held_drop(void);

#endif
