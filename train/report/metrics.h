/* metrics.h: the --metrics file: one JSON object a line, flushed as soon as it is written. Events: plan, step, gpu, eval, end;
 * docs for their fields are in docs/train.md. A number that is not finite is written as null. Reading such files is
 * command_report.c's business. */
#ifndef RM_METRICS_H
#define RM_METRICS_H

#include "train/flags/options.h"
#include "train/report/scores.h"

typedef struct {
    FILE *file; /* NULL: nobody wants metrics, or a line could not be written; then every function below does nothing */
    const char *path;
    bool standard_output;
} rm_metrics;

/* Whose they are. */
typedef struct {
    const char *name;     /* of the run, the same whenever it is resumed; "": an evaluation by itself */
    int64_t resumed_step; /* 0: it begins */
    bool again;           /* it may have begun before, and been killed before anything was saved */
} rm_metrics_run;

/* path NULL: none; "-": standard output. A run that is resumed keeps its file up to that step, and goes on behind it; an
 * evaluation by itself is added to those that are there. INVALID, and nothing is
 * touched, when something else is there, or another run's metrics; IO when another run is writing to it. `path` is
 * borrowed. Close in any case. */
remat_status rm_metrics_open(const char *path, const rm_metrics_run *run, rm_metrics *out);
remat_status rm_metrics_close(rm_metrics *metrics);
FILE *rm_metrics_words(const rm_metrics *metrics); /* where words for people go: stdout, or else stderr */

typedef struct {
    int64_t step;  /* from 1 */
    double epoch;  /* passes over the data, this step's samples included */
    bool computed; /* false: on the null device, and loss and grad_norm are NAN */
    double loss, grad_norm, lr, step_ms, tokens_per_s;
    const char *unit; /* what there are so many of a second; NULL: "tokens" */
    double accuracy;  /* of the step's samples, on all ranks; < 0: not a task that has one */
    uint64_t arena_peak_bytes, rss_peak_bytes;
    bool has_comm; /* there are other ranks; then what gradients took (rm_ddp_cost) */
    uint64_t comm_bytes;
    double comm_busy_ms, comm_wait_ms;
} rm_step_event;

/* "loss 1.234  bits per byte 1.78  perplexity 3.43  (1115 samples)"; into text of at least 160 bytes. */
const char *rm_eval_text(const rm_eval_event *event, char *text, size_t bytes);

typedef struct {
    int64_t steps;
    double loss, wall_s;
    uint64_t arena_peak_bytes, rss_peak_bytes;
    int signal; /* that stopped the run, or 0 */
} rm_end_event;

remat_status rm_metrics_plan(rm_metrics *, const remat_plan_summary *, const rm_options *, const rm_metrics_run *);
remat_status rm_metrics_step(rm_metrics *, const rm_step_event *);
remat_status rm_metrics_gpu(rm_metrics *, int64_t step, const remat_products *, const remat_recordings *);
remat_status rm_metrics_eval(rm_metrics *, const rm_eval_event *);
remat_status rm_metrics_end(rm_metrics *, const rm_end_event *);

/* An evaluation as an object's text; with how often each class was taken for each, (classes,classes), a row for a true one. NULL:
 * without. A json_t * of jansson, or NULL. */
void *rm_metrics_eval_json(const rm_eval_event *, const int64_t *confusion, int64_t classes);

/* The plan's fields as a JSON object's text, for `remat plan --json` too: a json_t * of jansson, or NULL. */
void *rm_metrics_plan_json(const remat_plan_summary *, const rm_options *);

#endif
