/* tensorboard.h: --tensorboard: the numbers of metrics.h as an event file that TensorBoard draws. Each run of the program
 * writes a file of its own, events.out.tfevents.TIME.HOST.PID, and TensorBoard takes all in a directory for one run's; where it
 * went on from a training state, it is told to forget what was written after that. Tags: train/loss, train/lr,
 * train/grad_norm, train/tokens_per_s, eval/loss, eval/accuracy. */
#ifndef RM_TENSORBOARD_H
#define RM_TENSORBOARD_H

#include "train/file.h"
#include "train/report/metrics.h"

typedef struct {
    rm_file_writer writer; /* fd -1: nobody wants it, or it could not be written, and every function below does nothing */
    char path[RM_PATH_BYTES];
} rm_tensorboard;

/* Creates the directory where needed; NULL: none. Must not move while it is open. */
remat_status rm_tensorboard_open(const char *directory, const rm_metrics_run *run, rm_tensorboard *out);
remat_status rm_tensorboard_step(rm_tensorboard *board, const rm_step_event *event);
remat_status rm_tensorboard_eval(rm_tensorboard *board, const rm_eval_event *event);
remat_status rm_tensorboard_close(rm_tensorboard *board);

#endif
