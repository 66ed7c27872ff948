/* start.h: decides where `remat train` starts: from scratch, or from the training state of --resume, which may have been saved by
 * another number of ranks. state.h reads states. */
#ifndef RM_TRAIN_START_H
#define RM_TRAIN_START_H

#include "train/ranks/ranks.h"
#include "train/state/state.h"

/* Collective. In a job that was restarted, --resume becomes the newest undamaged state that the job itself saved, as rank 0 finds
 * it. Without such a state nothing changes. */
remat_status rm_start_again(rm_ranks *ranks, rm_options *options);

/* Finds the state (`state` is "" for a fresh start) and adopts its flags. An update keeps its number of samples, so --batch
 * changes if options->world_size differs from the state's, unless --resume-batch=rank keeps it. INVALID when no --batch fits, or given
 * flags contradict it. */
remat_status rm_start_find(rm_options *options, char state[RM_PATH_BYTES], rm_state_point *point);

/* The same for a state that has been found. */
remat_status rm_start_read(rm_options *options, const char *state, rm_state_point *point);

#endif
