/* trainer.h: sets up a run of `remat train` and owns its parts. The training loop is in command_train.c.
 *
 *   trainer.c            opens data, order, ranks, training state and metrics, in the same order on all ranks
 *   trainer_session.c    creates the session, with rank 0's plan on every rank
 *   trainer_introduce.c  prints the lines before the first step */
#ifndef RM_TRAINER_H
#define RM_TRAINER_H

#include "train/run/early.h"
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
    uint32_t data_crc32; /* of `dataset`; 0: generated */
    rm_model model;
    remat_session *session;
    remat_plan_summary plan; /* the session's, with rank 0's strategy and times */
    rm_loader loader;
    rm_evaluator evaluator;
    rm_ema ema;
    rm_state_store store;
    rm_metrics metrics;
    remat_timeline *timeline; /* --timeline; NULL: none */
    rm_metrics_run run;
    rm_tensorboard tensorboard;
    rm_progress progress;
    char tuned[200]; /* what --autotune chose; "": nothing */
    char state[RM_PATH_BYTES]; /* the state that is resumed; "": none */
    rm_state_point start;      /* position at which this run starts */
    char new_head[32];         /* prefix of the parameters that --init-head=new initialises; "": none */
    int64_t step, last_step;
    int64_t shift; /* from `step` to the position in the learning rate's schedule: schedule_shift */
    int stop;                              /* the signal for which all ranks stop, or 0 */
    bool saved;                            /* this run has saved a training state */
    bool save_now;                         /* a rank has received SIGUSR1 */
    bool over;                             /* the elastic job has ended without this process */
    bool homeless;                         /* it has no place for this process */
    bool goes_on, filled;                  /* from `held`; the session has its parameters and state */
    rm_state_point held;                   /* the step that rank 0 held in memory (trainer_world.h) */
    rm_early_copy held_early;              /* of that step, until it is shared */
    rm_early early;                        /* of the steps of this run, in an elastic job */
    bool again;                            /* ranks join again after this step */
    int64_t epoch, consumed;               /* start of the next step, as in rm_loader */
    bool intact;                           /* the state in memory is that after `step`, and may be saved */
    bool evaluation_due;                   /* a signal came before the evaluation that is due after this step */
    bool is_best;                          /* the evaluation after this step is the best (--keep-best) */
    char metrics_path[RM_PATH_BYTES + 32]; /* this rank's */
    rm_learning_rate rate;
    rm_watch watch; /* of the evaluations so far */
    double lr, loss, started_s;
    float *logits;     /* of a batch, (B,K); NULL: the task has no accuracy */
    int32_t *targets;  /* of micro steps that are in flight together (remat_pipeline_parts), (micro steps,B); or NULL */
    double counted[2]; /* correct and counted answers of the update so far; finally of all ranks */
    uint64_t arena_peak_bytes;
} rm_trainer;

/* Opens everything; collective. Signals are caught once there is a session (interrupt.h). Close even after an error. The trainer
 * must not move in memory. */
remat_status rm_trainer_open(rm_options *options, rm_trainer *out);
void rm_trainer_close(rm_trainer *trainer);

bool rm_trainer_evaluation_due(const rm_trainer *trainer);  /* after this step */
rm_state_point rm_trainer_point(const rm_trainer *trainer); /* after this step */

/* Builds the model and creates the session, with the part of the budget that data and evaluator leave. */
remat_status rm_trainer_create_session(rm_trainer *trainer, const rm_model_spec *spec);
void rm_trainer_free_session(rm_trainer *trainer); /* and the model; another may be created */

void rm_trainer_introduce(rm_trainer *trainer); /* prints to trainer->progress */

#endif
