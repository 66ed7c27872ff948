/* learning_rate.h: the learning rate of every update: scaling with the batch, warm-up, and schedule. It is a pure
 * function of the config and the update number. Nothing needs to be saved: a resumed run, on any number of ranks,
 * continues with exactly the same rates. Main entry: rm_learning_rate_at. docs/large_batch.md says when to use which
 * schedule.
 *
 *   scale    k = 1, B/b (linear, Goyal et al. 2017) or sqrt(B/b); eta = k lr, with B the global batch, b base_batch
 *
 *   warm-up  update t = 1 .. Tw: from lr to eta in equal steps, reaching eta at t = Tw (Goyal's "gradual"); from 0 if
 *            there is no scaling: eta t / Tw (MLPerf)
 *
 *   then     with S = decay_steps, or the rest of the run: steps - Tw
 *
 *            constant  eta
 *            step      eta gamma^(milestones < t)        milestones are updates: each is the last one with the old rate
 *            linear    eta + (end - eta) s/S             s = t - Tw - 1: PyTorch's LinearLR, starting at eta
 *            cosine    end + (eta - end)(1 + cos(pi s/S))/2              and CosineAnnealingLR
 *            poly      end + (eta - end)(1 - s/D)^power  s = t - Tw, D = decay_steps or S + 1: MLPerf (power 2, end 1e-4)
 *            restarts  end + (eta - end)(1 + cos(pi s/S))/2  repeatedly, each cycle cycle_mult times as long: PyTorch's
 *                      CosineAnnealingWarmRestarts
 *            one-cycle by two half cosines from eta/div_factor to eta at s = pct_start S - 1, and on to
 *                      eta/div_factor/final_div_factor at s = S - 1: PyTorch's OneCycleLR
 *            exponential  eta gamma^floor((t - Tw - 1) / S)      PyTorch's ExponentialLR, and StepLR of S updates
 *            plateau   eta gamma^reductions, but not below end; the evaluations count the reductions (train/run/watch.h)
 *
 * In linear and cosine the last update has the rate of s = S - 1. The rate `end` itself would belong to the first
 * update after the run; with an end of 0, an update with it would be wasted. After that many updates the rate stays at
 * `end`.
 *
 * With hold > 1 the rate changes only every `hold` updates (an epoch), as if PyTorch's scheduler.step() were called
 * then. Each update of such a group has the rate of the first one or, within the warm-up, of the last one, so that the
 * warm-up reaches eta.
 *
 *      eta           ______
 *                   /      \__                         rm_learning_rate_check refuses a milestone within the warm-up and a
 *      lr or 0    _/          \____ end                decay without any updates left.
 *                 1   Tw        Tw + S
 */
#ifndef RM_LEARNING_RATE_H
#define RM_LEARNING_RATE_H

#include "engine/status.h"

typedef enum {
#define SCHEDULE(ENUM, NAME, SETTINGS) RM_LR_##ENUM,
#include "dist/large_batch/schedules.def"
#undef SCHEDULE
    RM_LR_SCHEDULES
} rm_lr_schedule;
typedef enum { RM_SCALE_NONE, RM_SCALE_LINEAR, RM_SCALE_SQRT, RM_LR_SCALES } rm_lr_scale;

#define RM_LR_MILESTONES 16

typedef struct {
    rm_lr_schedule schedule;
    rm_lr_scale scale;
    double lr, end_lr, power, gamma;
    double batch, base_batch;    /* global, in samples; only read if the rate is scaled */
    int64_t warmup_steps, steps; /* in updates; steps: of the whole run, at which a decay ends */
    int64_t decay_steps;         /* S, or D of poly; 0: until `steps`, which is only read then */
    int64_t hold;                /* updates that have one rate; 0: 1 */
    int64_t milestone[RM_LR_MILESTONES];
    int n_milestones;
    int64_t cycle_mult, reductions;                 /* for restarts; for plateau */
    double pct_start, div_factor, final_div_factor; /* for one-cycle */
} rm_learning_rate;

/* INVALID: the message names the setting and what is wrong with it. */
remat_status rm_learning_rate_check(const rm_learning_rate *config);

/* Requires a config that has been checked. `update` counts from 1. */
double rm_learning_rate_at(const rm_learning_rate *config, int64_t update);
double rm_learning_rate_peak(const rm_learning_rate *config); /* eta */

const char *rm_lr_schedule_name(rm_lr_schedule schedule); /* "cosine", as in the flag */
/* Whether the schedule of this name reads the setting (schedules.def); false if there is no such schedule. */
bool rm_lr_schedule_reads(const char *schedule, const char *setting);
const char *rm_lr_scale_name(rm_lr_scale scale);

#endif
