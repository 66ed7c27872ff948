/* start.h: where `remat train` begins: afresh, or at the training state that --resume names, on as many ranks as it was saved
 * by or on others. state.h reads states; this decides what a run makes of one. */
#ifndef RM_TRAIN_START_H
#define RM_TRAIN_START_H

#include "train/ranks/ranks.h"
#include "train/state/state.h"

/* Collective, as soon as ranks have met: in a job that was started again --resume becomes the newest of the states that it
 * saved itself and that is not damaged, as rank 0 finds it; without any, nothing changes. */
remat_status rm_start_again(rm_ranks *ranks, rm_options *options);

/* Finds the state (`state` is "" for a fresh start) and takes its flags over. options->world_size is how many ranks there
 * are now: an update goes on having as many samples as before, so on other ranks --batch becomes what that takes; INVALID
 * where it cannot be, or where flags that were given say otherwise. */
remat_status rm_start_find(rm_options *options, char state[RM_PATH_BYTES], rm_state_point *point);

/* The same of a state that has been found. */
remat_status rm_start_read(rm_options *options, const char *state, rm_state_point *point);

#endif
