/* lr_schedule.h: from flags to a learning rate for every update (dist/large_batch/learning_rate.h), once the data and the ranks are known:
 * epochs become updates, the batch that is scaled by is that of all ranks. */
#ifndef RM_LR_SCHEDULE_H
#define RM_LR_SCHEDULE_H

#include "dist/large_batch/learning_rate.h"
#include "train/flags/options.h"

typedef struct {
    int64_t batch;     /* samples of an update, of all ranks and micro steps */
    int64_t per_epoch; /* updates */
    int64_t steps;     /* updates of the whole run */
} rm_lr_schedule_facts;

double rm_lr_given(const rm_options *options); /* --lr, or the one that is usual for the optimizer */

/* INVALID names the flag. Steps and epochs need not come out even: a warm-up is rounded to whole updates. */
remat_status rm_lr_schedule_make(const rm_options *options, const rm_lr_schedule_facts *facts, rm_learning_rate *out);

/* "learning rate: 3.2 = 0.05 x 64 (batch 1024 against 16), after a warm-up of 20 updates; then cosine to 0 at update 200".
 * Empty where it is constant from the first update to the last. */
#define RM_LR_SCHEDULE_TEXT 240
const char *rm_lr_schedule_text(const rm_learning_rate *rate, char text[RM_LR_SCHEDULE_TEXT]);

#endif
