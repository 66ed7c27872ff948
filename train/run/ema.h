/* ema.h: --ema=D: an exponential moving average of the weights: after each update average = D average + (1 - D) weights, from those
 * after the first update on, as PyTorch's AveragedModel with get_ema_multi_avg_fn has it. Buffers are not averaged, but the newest.
 *
 * It lies in a session of its own, of one sample of one timestep, so that it is saved, read and evaluated like any weights. */
#ifndef RM_EMA_H
#define RM_EMA_H

#include "train/models/model.h"
#include "train/flags/options.h"

typedef struct {
    rm_model model;
    remat_session *session; /* NULL: there is no average */
    float *room;            /* for a stretch of an array, twice */
    bool begun;             /* after the first update, or read from a training state */
} rm_ema;

/* Of the model that trains `spec`. --ema=0: left zeroed. plan_only: to know its bytes. Free in any case. */
remat_status rm_ema_create(const rm_options *options, const rm_model_spec *spec, bool plan_only, rm_ema *out);
void rm_ema_free(rm_ema *ema);
uint64_t rm_ema_bytes(const rm_ema *ema); /* all that it takes; 0 for a zeroed one */

/* Behind an update of `weights`. Nothing to do for a zeroed one. */
remat_status rm_ema_update(rm_ema *ema, double decay, remat_session *weights);
/* What is evaluated and saved: the average, with the buffers of `weights`; of a zeroed one `weights` themselves. */
remat_status rm_ema_settle(rm_ema *ema, remat_session *weights, remat_session **out);

#endif
