/* metrics.h: the --metrics file: one JSON object a line, flushed as soon as it is written. Events: plan, step, eval, end;
 * docs for their fields are in train/README.md. A number that is not finite is written as null. Reading such files is
 * command_report.c's business. */
#ifndef RM_METRICS_H
#define RM_METRICS_H

#include "train/options.h"

typedef struct {
    FILE *file; /* NULL: nobody wants metrics; then every function below does nothing */
    const char *path;
} rm_metrics;

/* path NULL: none. A run that continues from resumed_step > 0 keeps the file up to that step and appends; another one
 * starts it anew. INVALID, and nothing is touched, when something else than metrics is there. `path` is borrowed. */
remat_status rm_metrics_open(const char *path, int64_t resumed_step, rm_metrics *out);
remat_status rm_metrics_close(rm_metrics *metrics);

typedef struct {
    int64_t step; /* from 1 */
    double loss, grad_norm, lr, step_ms, tokens_per_s;
    uint64_t arena_peak_bytes, rss_peak_bytes;
    bool has_comm; /* there are other ranks; then what gradients took (rm_ddp_cost) */
    uint64_t comm_bytes;
    double comm_busy_ms, comm_wait_ms;
} rm_step_event;

typedef struct {
    int64_t step, samples;
    double loss, accuracy; /* accuracy < 0: not a task that has one */
    bool bytes;            /* lm: also bits per byte and perplexity */
} rm_eval_event;

typedef struct {
    int64_t steps;
    double loss, wall_s;
    uint64_t arena_peak_bytes, rss_peak_bytes;
    int signal; /* that stopped the run, or 0 */
} rm_end_event;

remat_status rm_metrics_plan(rm_metrics *, const remat_plan_summary *, const rm_options *, int64_t resumed_step);
remat_status rm_metrics_step(rm_metrics *, const rm_step_event *);
remat_status rm_metrics_eval(rm_metrics *, const rm_eval_event *);
remat_status rm_metrics_end(rm_metrics *, const rm_end_event *);

/* The plan's fields as a JSON object's text, for `remat plan --json` too: a json_t * of jansson, or NULL. */
void *rm_metrics_plan_json(const remat_plan_summary *, const rm_options *);

#endif
