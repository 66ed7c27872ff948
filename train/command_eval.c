/* command_eval.c: `remat eval`: the exact mean loss of saved weights over a data set. */
#include "train/commands.h"

#include "train/evaluator.h"
#include "train/file.h"
#include "train/setup.h"

#include <string.h>

typedef struct {
    char state[RM_PATH_BYTES];
    rm_state_point point;
    rm_dataset *dataset;
    rm_evaluator evaluator;
    rm_metrics metrics;
} evaluation;

static remat_status report(evaluation *e, rm_options *options) {
    char text[160];
    rm_eval_event event = {.step = e->point.step};
    TRY(rm_metrics_open(options->metrics, 0, &e->metrics)); /* first: an evaluation can take long */
    TRY(rm_evaluator_run(&e->evaluator, rm_evaluator_session(&e->evaluator), &event));
    TRY(rm_metrics_eval(&e->metrics, &event));
    TRY(rm_metrics_close(&e->metrics));
    printf("%s\n", rm_eval_text(&event, text, sizeof text));
    return rm_file_flush_output();
}

/* That of the run's own evaluations, so that both find the same bits: a shard's rows, where it had shards. 0: --batch. */
static int64_t batch_of_run(const rm_options *o, const rm_state_point *run) {
    return run->shards ? o->batch * run->world_size / run->shards : 0;
}

static remat_status evaluate(evaluation *e, rm_options *options) {
    const bool said = rm_options_given(options, "batch");
    rm_model_spec spec;
    bool generated = !strcmp(options->task, "adding") || !strcmp(options->task, "copy");
    if (options->resume) TRY(rm_setup_resume(options, RM_EVAL, e->state, &e->point));
    TRY(rm_setup_dataset(options, generated, &e->dataset));
    TRY(rm_setup_spec(options, e->dataset, &spec));
    int64_t batch = said ? 0 : batch_of_run(options, &e->point);
    TRY(rm_evaluator_create(options, &spec, e->dataset, batch, false, &e->evaluator));
    TRY(rm_setup_weights(options, e->state, &e->point, rm_evaluator_session(&e->evaluator)));
    return report(e, options);
}

remat_status rm_command_eval(rm_options *options, int *exit_status) {
    (void)exit_status;
    evaluation e = {0};
    remat_status status = evaluate(&e, options);
    rm_metrics_close(&e.metrics);
    rm_evaluator_free(&e.evaluator);
    rm_dataset_close(e.dataset);
    return status;
}
