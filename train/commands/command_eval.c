/* command_eval.c: `remat eval`: the exact mean loss of saved weights over a data set. */
#include "train/commands/commands.h"

#include "memory/host.h"
#include "train/file.h"
#include "train/run/evaluator.h"
#include "train/tasks/task.h"

#include <jansson.h>
#include <string.h>

typedef struct {
    rm_saved_evaluator saved;
    rm_metrics metrics;
    int64_t *confusion; /* NULL: not shown */
} evaluation;

static remat_status count_confusion(evaluation *e, const char *task) {
    rm_evaluator *evaluator = &e->saved.evaluator;
    size_t classes = rm_task_find(task)->row == RM_ROW_CLASSES ? (size_t)evaluator->width : 0;
    if (!classes) return REMAT_OK;
    e->confusion = evaluator->confusion = rm_calloc(classes * classes, sizeof *e->confusion);
    REQUIRE(e->confusion, MEMORY, "no memory for the confusion matrix of %zu classes", classes);
    return REMAT_OK;
}

static remat_status print_json(evaluation *e, const rm_eval_event *event) {
    json_t *object = rm_metrics_eval_json(event, e->confusion, e->saved.evaluator.width);
    bool bad = !object || json_dumpf(object, rm_metrics_words(&e->metrics), JSON_COMPACT | JSON_REAL_PRECISION(9));
    json_decref(object);
    REQUIRE(!bad, MEMORY, "no memory for a JSON object");
    fputc('\n', rm_metrics_words(&e->metrics));
    return rm_file_flush_output();
}

static remat_status evaluate(evaluation *e, rm_options *options) {
    char text[160];
    TRY(rm_saved_evaluator_open(options, RM_EVAL, &e->saved));
    rm_evaluator *evaluator = &e->saved.evaluator;
    rm_eval_event event = {.step = e->saved.point.step};
    TRY(rm_metrics_open(options->metrics, &(rm_metrics_run){.name = ""},
                        &e->metrics)); /* before the evaluation, which may take long */
    if (options->json) TRY(count_confusion(e, options->task));
    TRY(rm_evaluator_run(evaluator, rm_evaluator_session(evaluator), &event));
    TRY(rm_metrics_eval(&e->metrics, &event));
    TRY(rm_metrics_close(&e->metrics));
    if (options->json) return print_json(e, &event);
    fprintf(rm_metrics_words(&e->metrics), "%s\n", rm_eval_text(&event, text, sizeof text));
    return rm_file_flush_output();
}

remat_status rm_command_eval(rm_options *options, int *exit_status) {
    (void)exit_status;
    evaluation e = {0};
    remat_status status = evaluate(&e, options);
    rm_metrics_close(&e.metrics);
    rm_saved_evaluator_free(&e.saved);
    rm_free(e.confusion);
    return status;
}
