/* ema.h: --ema=D: an exponential moving average of the weights. After each update, average = D average + (1 - D) weights; it starts
 * with the weights after the first update. PyTorch's AveragedModel with get_ema_multi_avg_fn does the same. Buffers are copied, not
 * averaged.
 *
 * The average is kept in a session for one sample of one timestep, so that it is saved, read and evaluated like any weights. */
#ifndef RM_EMA_H
#define RM_EMA_H

#include "train/models/model.h"
#include "train/flags/options.h"

typedef struct {
    rm_model model;
    remat_session *session; /* NULL: no average */
    float *room;            /* scratch for parts of two arrays */
    bool begun;             /* false before the first update, unless read from a training state */
} rm_ema;

/* `spec` is the training model's. --ema=0: *out is all zero. plan_only: only rm_ema_bytes is valid. Free even after an error. */
remat_status rm_ema_create(const rm_options *options, const rm_model_spec *spec, bool plan_only, rm_ema *out);
void rm_ema_free(rm_ema *ema);
uint64_t rm_ema_bytes(const rm_ema *ema); /* total memory; 0 without an average */

/* Call after each update of `weights`. Does nothing without an average. */
remat_status rm_ema_update(rm_ema *ema, double decay, remat_session *weights);
/* *out is the session to evaluate and save: the average, with the buffers of `weights`; without an average, `weights`. */
remat_status rm_ema_settle(rm_ema *ema, remat_session *weights, remat_session **out);

#endif
