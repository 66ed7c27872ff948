/* learning_rate.h: the learning rate of every update: scaling with the batch, warm-up, and what follows. A pure function of
 * the config and the number of the update, so there is nothing to save: a run that is resumed, at any number of ranks, goes
 * on exactly where it was. Main entry: rm_learning_rate_at. docs/large_batch.md says when to use what.
 *
 *   scale    k = 1, B/b (linear, Goyal et al. 2017) or sqrt(B/b); eta = k lr, with B the global batch, b base_batch
 *
 *   warm-up  update t = 1 .. Tw: from lr to eta in equal steps, reached at t = Tw (Goyal's "gradual"); from 0 where
 *            nothing is scaled up: eta t / Tw (MLPerf)
 *
 *   then     with S = decay_steps, or what is left of the run: steps - Tw
 *
 *            constant  eta
 *            step      eta gamma^(milestones < t)        milestones are updates: the m-th is the last with the old rate
 *            linear    eta + (end - eta) s/S             s = t - Tw - 1: PyTorch's LinearLR, from eta on
 *            cosine    end + (eta - end)(1 + cos(pi s/S))/2              and CosineAnnealingLR
 *            poly      end + (eta - end)(1 - s/D)^power  s = t - Tw, D = decay_steps or S + 1: MLPerf (power 2, end 1e-4)
 *            restarts  end + (eta - end)(1 + cos(pi s/S))/2  over and over, each time cycle_mult times as long: PyTorch's
 *                      CosineAnnealingWarmRestarts
 *            one-cycle by two half cosines from eta/div_factor to eta at s = pct_start S - 1, and on to
 *                      eta/div_factor/final_div_factor at s = S - 1: PyTorch's OneCycleLR
 *            plateau   eta gamma^reductions, but not below end: whoever sees evaluations counts them (train/run/watch.h)
 *
 * In linear and cosine the last update has the rate of s = S - 1: one of `end` would be the first after the run, and with
 * an end of 0 a wasted one within it. After that many updates the rate stays at `end`.
 *
 *      eta           ______
 *                   /      \__                         A milestone within the warm-up, a decay that nothing is left for:
 *      lr or 0    _/          \____ end                rm_learning_rate_check says so in one sentence.
 *                 1   Tw        Tw + S
 */
#ifndef RM_LEARNING_RATE_H
#define RM_LEARNING_RATE_H

#include "engine/status.h"

typedef enum {
    RM_LR_CONSTANT,
    RM_LR_STEP,
    RM_LR_LINEAR,
    RM_LR_COSINE,
    RM_LR_POLY,
    RM_LR_RESTARTS,
    RM_LR_ONE_CYCLE,
    RM_LR_PLATEAU,
    RM_LR_SCHEDULES
} rm_lr_schedule;
typedef enum { RM_SCALE_NONE, RM_SCALE_LINEAR, RM_SCALE_SQRT, RM_LR_SCALES } rm_lr_scale;

#define RM_LR_MILESTONES 16

typedef struct {
    rm_lr_schedule schedule;
    rm_lr_scale scale;
    double lr, end_lr, power, gamma;
    double batch, base_batch;    /* global, in samples; read where there is a scale */
    int64_t warmup_steps, steps; /* updates; steps: of the whole run, where a decay ends */
    int64_t decay_steps;         /* S, or D of poly; 0: until `steps`, which is not read otherwise */
    int64_t milestone[RM_LR_MILESTONES];
    int n_milestones;
    int64_t cycle_mult, reductions;                 /* restarts; plateau */
    double pct_start, div_factor, final_div_factor; /* one-cycle */
} rm_learning_rate;

/* INVALID names the member and what is wrong with it. */
remat_status rm_learning_rate_check(const rm_learning_rate *config);

/* Of a config that has been checked. `update` counts from 1. */
double rm_learning_rate_at(const rm_learning_rate *config, int64_t update);
double rm_learning_rate_peak(const rm_learning_rate *config); /* eta */

const char *rm_lr_schedule_name(rm_lr_schedule schedule); /* "cosine", as the flag says it */
const char *rm_lr_scale_name(rm_lr_scale scale);

#endif
