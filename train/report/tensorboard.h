/* tensorboard.h: --tensorboard: writes the numbers of metrics.h as an event file for TensorBoard. Each start of the program writes a
 * new file, events.out.tfevents.TIME.HOST.PID; TensorBoard shows all files in a directory as one run. A resumed run tells it to drop
 * earlier values after the resumed step. Tags: train/loss, train/lr, train/grad_norm, train/tokens_per_s, eval/loss, eval/accuracy. */
#ifndef RM_TENSORBOARD_H
#define RM_TENSORBOARD_H

#include "train/file.h"
#include "train/report/metrics.h"

typedef struct {
    rm_file_writer writer; /* fd -1: no event file, or writing failed; then every function below does nothing */
    char path[RM_PATH_BYTES];
} rm_tensorboard;

/* Creates the directory if it does not exist; NULL: no event file. *out must not move in memory while it is open. */
remat_status rm_tensorboard_open(const char *directory, const rm_metrics_run *run, rm_tensorboard *out);
remat_status rm_tensorboard_step(rm_tensorboard *board, const rm_step_event *event);
remat_status rm_tensorboard_eval(rm_tensorboard *board, const rm_eval_event *event);
remat_status rm_tensorboard_close(rm_tensorboard *board);

#endif
