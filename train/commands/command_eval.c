/* command_eval.c: `remat eval`: the exact mean loss of saved weights over a data set. */
#include "train/commands/commands.h"

#include "train/file.h"
#include "train/run/evaluator.h"

typedef struct {
    rm_saved_evaluator saved;
    rm_metrics metrics;
} evaluation;

static remat_status evaluate(evaluation *e, rm_options *options) {
    char text[160];
    TRY(rm_saved_evaluator_open(options, RM_EVAL, &e->saved));
    rm_evaluator *evaluator = &e->saved.evaluator;
    rm_eval_event event = {.step = e->saved.point.step};
    TRY(rm_metrics_open(options->metrics, &(rm_metrics_run){.name = ""}, &e->metrics)); /* first: an evaluation can take long */
    TRY(rm_evaluator_run(evaluator, rm_evaluator_session(evaluator), &event));
    TRY(rm_metrics_eval(&e->metrics, &event));
    TRY(rm_metrics_close(&e->metrics));
    fprintf(rm_metrics_words(&e->metrics), "%s\n", rm_eval_text(&event, text, sizeof text));
    return rm_file_flush_output();
}

remat_status rm_command_eval(rm_options *options, int *exit_status) {
    (void)exit_status;
    evaluation e = {0};
    remat_status status = evaluate(&e, options);
    rm_metrics_close(&e.metrics);
    rm_saved_evaluator_free(&e.saved);
    return status;
}
