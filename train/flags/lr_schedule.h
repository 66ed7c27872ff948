/* lr_schedule.h: the learning rate of every update (dist/large_batch/learning_rate.h), from the flags. The data and the number of ranks
 * must be known: epochs become updates, and --scale-lr uses the global batch size. */
#ifndef RM_LR_SCHEDULE_H
#define RM_LR_SCHEDULE_H

#include "dist/large_batch/learning_rate.h"
#include "train/flags/options.h"

typedef struct {
    int64_t batch;     /* samples per update, over all ranks and micro steps */
    int64_t per_epoch; /* updates per epoch */
    int64_t steps;     /* updates of the run */
} rm_lr_schedule_facts;

double rm_lr_given(const rm_options *options); /* --lr, or the optimizer's default */

/* INVALID names the flag. A warm-up in epochs is rounded to whole updates. */
remat_status rm_lr_schedule_make(const rm_options *options, const rm_lr_schedule_facts *facts, rm_learning_rate *out);

/* "learning rate: 3.2 = 0.05 x 64 (batch 1024 against 16), after a warm-up of 20 updates; then cosine to 0 at update 200".
 * Empty if the rate is constant. */
#define RM_LR_SCHEDULE_TEXT 240
const char *rm_lr_schedule_text(const rm_learning_rate *rate, char text[RM_LR_SCHEDULE_TEXT]);

#endif
