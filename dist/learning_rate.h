/* learning_rate.h: the learning rate of every update: scaling with the batch, warm-up, and what follows. A pure function of
 * the config and the number of the update, so there is nothing to save.
 *
 *   scale    k = 1, B/b (linear, Goyal et al. 2017) or sqrt(B/b): eta = k * lr, B the global batch, b base_batch
 *   warm-up  update t = 1 .. Tw: from lr (not scaled) to eta in equal steps, reached at t = Tw (Goyal's "gradual");
 *            where nothing is scaled, from 0: eta t / Tw (MLPerf)
 *   then     s = t - Tw of S = steps - Tw:   constant  eta
 *            step      eta * gamma^(number of milestones passed)      linear   eta + (end - eta) s/S
 *            cosine    end + (eta - end)(1 + cos(pi s/S))/2           poly     end + (eta - end)(1 - s/D)^power, D = S + 1
 *                                                                              (MLPerf: power 2, end 1e-4)
 */
#ifndef RM_LEARNING_RATE_H
#define RM_LEARNING_RATE_H

#include "engine/status.h"

typedef enum { RM_LR_CONSTANT, RM_LR_STEP, RM_LR_LINEAR, RM_LR_COSINE, RM_LR_POLY, RM_LR_SCHEDULES } rm_lr_schedule;
typedef enum { RM_SCALE_NONE, RM_SCALE_LINEAR, RM_SCALE_SQRT } rm_lr_scale;

#define RM_LR_MILESTONES 16

typedef struct {
    rm_lr_schedule schedule;
    rm_lr_scale scale;
    double lr, end_lr, power, gamma;
    double batch, base_batch;       /* global; of the scale */
    int64_t warmup_steps, steps;    /* updates in all: where linear, cosine and poly end */
    int64_t decay_steps;            /* D of poly; 0: S + 1 */
    int64_t milestone[RM_LR_MILESTONES];
    int n_milestones;
} rm_learning_rate;

remat_status rm_learning_rate_check(const rm_learning_rate *config); /* INVALID names what is wrong */
double rm_learning_rate_at(const rm_learning_rate *config, int64_t update); /* from 1 */

#endif
