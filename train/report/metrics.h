/* metrics.h: writes the --metrics file: one JSON object per line, flushed after each line. Events: plan, step, gpu, eval, end;
 * docs/train.md describes their fields. Non-finite numbers become null. command_report.c reads such files. */
#ifndef RM_METRICS_H
#define RM_METRICS_H

#include "train/flags/options.h"
#include "train/report/scores.h"

typedef struct {
    FILE *file; /* NULL: no metrics, or a line could not be written; then every function below does nothing */
    const char *path;
    bool standard_output;
} rm_metrics;

/* The run that writes metrics. */
typedef struct {
    const char *name;     /* stays the same when the run is resumed; "": an evaluation without a run */
    int64_t resumed_step; /* 0: the run starts */
    bool again;           /* an earlier attempt may have been killed before it saved */
} rm_metrics_run;

/* path NULL: no metrics; "-": standard output. A resumed run keeps the lines of its file up to the resumed step and continues after
 * them. An evaluation without a run appends to earlier evaluations. INVALID, without changing the file, when it has other content or
 * another run's metrics; IO when another run is writing to it. `path` is borrowed. Close even after an error. */
remat_status rm_metrics_open(const char *path, const rm_metrics_run *run, rm_metrics *out);
remat_status rm_metrics_close(rm_metrics *metrics);
FILE *rm_metrics_words(const rm_metrics *metrics); /* for text output: stdout, or stderr if metrics use stdout */

typedef struct {
    int64_t step;  /* from 1 */
    double epoch;  /* passes over the data, this step's samples included */
    bool computed; /* false: on the null device, where loss and grad_norm are NAN */
    double loss, grad_norm, lr, step_ms, tokens_per_s;
    const char *unit; /* of tokens_per_s; NULL: "tokens" */
    double accuracy;  /* of the step's samples on all ranks; < 0: the task has no accuracy */
    uint64_t arena_peak_bytes, rss_peak_bytes;
    bool has_comm; /* with several ranks: the cost of sending gradients follows (rm_ddp_cost) */
    uint64_t comm_bytes;
    double comm_busy_ms, comm_wait_ms;
} rm_step_event;

/* "loss 1.234  bits per byte 1.78  perplexity 3.43  (1115 samples)"; into text of at least 160 bytes. */
const char *rm_eval_text(const rm_eval_event *event, char *text, size_t bytes);

typedef struct {
    int64_t steps;
    double loss, wall_s;
    uint64_t arena_peak_bytes, rss_peak_bytes;
    int signal;                 /* the signal that stopped the run, or 0 */
    int straggler;              /* the rank that the others waited for longest */
    const char *straggler_host; /* NULL: there is only one rank */
    double straggler_s;         /* how long they waited for it */
} rm_end_event;

remat_status rm_metrics_plan(rm_metrics *, const remat_plan_summary *, const rm_options *, const rm_metrics_run *);
remat_status rm_metrics_step(rm_metrics *, const rm_step_event *);
remat_status rm_metrics_gpu(rm_metrics *, int64_t step, const remat_products *, const remat_recordings *);
remat_status rm_metrics_eval(rm_metrics *, const rm_eval_event *);
remat_status rm_metrics_end(rm_metrics *, const rm_end_event *);

/* An evaluation as an object, a json_t * of jansson; NULL: no memory. `confusion` (classes,classes) has a row per true class; NULL:
 * left out. */
void *rm_metrics_eval_json(const rm_eval_event *, const int64_t *confusion, int64_t classes);

/* The plan's fields as an object, also for `remat plan --json`: a json_t * of jansson; NULL: no memory. */
void *rm_metrics_plan_json(const remat_plan_summary *, const rm_options *);

#endif
