/* trainer_world.h: a run in an elastic job (dist/launch/world.h): takes its place before ranks meet, takes up the step
 * that the latest of them holds in memory, and joins the next world when a rank is lost or more have come. In any other
 * job all functions do nothing. */
#ifndef RM_TRAINER_WORLD_H
#define RM_TRAINER_WORLD_H

#include "train/run/trainer.h"

/* Waits for a place; sets trainer->over if the job has ended. Shares the global batch, which is that of the most ranks. */
remat_status rm_trainer_enter_world(rm_trainer *trainer);

/* While ranks meet, which may wait for one that is gone: follows a call at once. */
typedef struct rm_trainer_meeting rm_trainer_meeting;
remat_status rm_trainer_begin_meeting(rm_trainer_meeting **out);
void rm_trainer_end_meeting(rm_trainer_meeting *meeting); /* NULL allowed; keeps remat_last_error() */

/* Collective. Sets trainer->goes_on, and trainer->start on all ranks, if rank 0 holds a step later than the last training
 * state of the job. */
remat_status rm_trainer_take_up(rm_trainer *trainer);
/* Whether ranks take part only if they fit a job that has begun (rm_ranks.selective). */
bool rm_trainer_is_chosen(const rm_trainer *trainer);
/* Collective, after the parameters are rank 0's on all ranks. */
remat_status rm_trainer_share_step(rm_trainer *trainer);

/* Whether a step must be split into gradients and update, with rm_trainer_keep_early between them. */
bool rm_trainer_keeps_early(const rm_trainer *trainer);
remat_status rm_trainer_keep_early(rm_trainer *trainer, int64_t step); /* collective */

/* Whether a step's end is a place at which to join again. */
bool rm_trainer_can_go_on(const rm_trainer *trainer);

/* Holds the last finished step, closes the trainer, and loads the program again. Returns only if that is impossible: then
 * the trainer is closed, and the message is the one that came in. */
void rm_trainer_join_again(rm_trainer *trainer);

#endif
