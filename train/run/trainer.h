/* trainer.h: all that a run of `remat train` consists of, and its setting up. The loop over it is command_train.c's.
 *
 *   trainer.c            data, order, ranks, training state, metrics: opened in an order that all ranks follow
 *   trainer_session.c    the session: rank 0's plan on every rank
 *   trainer_introduce.c  what a run says of itself before its first step */
#ifndef RM_TRAINER_H
#define RM_TRAINER_H

#include "train/run/ema.h"
#include "train/run/evaluator.h"
#include "train/report/metrics.h"
#include "train/report/progress.h"
#include "train/report/tensorboard.h"
#include "train/ranks/ranks.h"
#include "train/flags/lr_schedule.h"
#include "train/state/state.h"

typedef struct {
    rm_options *options;
    rm_ranks ranks;
    rm_dataset *dataset, *eval_dataset;
    uint32_t data_crc32; /* of the first; 0: generated */
    rm_model model;
    remat_session *session;
    remat_plan_summary plan; /* the session's; strategy and times as rank 0 chose by them */
    rm_loader loader;
    rm_evaluator evaluator;
    rm_ema ema;
    rm_state_store store;
    rm_metrics metrics;
    rm_metrics_run run;
    rm_tensorboard tensorboard;
    rm_progress progress;
    char state[RM_PATH_BYTES]; /* resumed from; "" */
    rm_state_point start;      /* where this run began */
    char new_head[32];         /* parameters so called were drawn, in spite of --init; "" */
    int64_t step, last_step;
    int stop;                              /* the signal that all ranks stop at, or 0 */
    bool saved;                            /* a training state, by this run */
    bool save_now;                         /* SIGUSR1 has come to one of them */
    int64_t epoch, consumed;               /* where the next step begins, as the loader has them */
    bool intact;                           /* all that is saved is as it was after `step` */
    bool evaluation_due;                   /* a signal has come before the one after this step */
    bool is_best;                          /* the evaluation after this step, by --keep-best */
    char metrics_path[RM_PATH_BYTES + 32]; /* this rank's */
    rm_learning_rate rate;
    rm_watch watch; /* of the evaluations up to now */
    double lr, loss, started_s;
    float *logits; /* of a batch, (B,K); NULL: the task has no accuracy */
    double
        counted[2]; /* of the update's samples so far, those that are right and those that count; then of all ranks' */
    uint64_t arena_peak_bytes;
} rm_trainer;

/* Opens everything; on many ranks collective. From the moment that there is a session, signals are caught (interrupt.h).
 * Close in any case. The trainer must not move. */
remat_status rm_trainer_open(rm_options *options, rm_trainer *out);
void rm_trainer_close(rm_trainer *trainer);

/* The model, and the session with its plan, within what data and evaluator leave of the budget. */
remat_status rm_trainer_create_session(rm_trainer *trainer, const rm_model_spec *spec);

void rm_trainer_introduce(rm_trainer *trainer); /* to trainer->progress */

#endif
