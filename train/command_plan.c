/* command_plan.c: `remat plan`: what `remat train` with the same flags would do, and nothing done. */
#include "train/commands.h"

#include "train/metrics.h"
#include "train/setup.h"

#include <jansson.h>
#include <stdlib.h>

static remat_status print_text(char *text) {
    REQUIRE(text, MEMORY, "no memory for the text of the plan");
    fputs(text, stdout);
    remat_text_free(text);
    return REMAT_OK;
}

static remat_status print_json(const remat_session *session, const rm_options *options) {
    remat_plan_summary summary = remat_session_plan(session);
    json_t *plan = rm_metrics_plan_json(&summary, options);
    char *stages = remat_plan_stages_json(session);
    json_t *parsed = stages ? json_loads(stages, 0, NULL) : NULL;
    bool bad = !parsed || json_object_set_new(plan, "stages", parsed) ||
               json_dumpf(plan, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
    remat_text_free(stages);
    json_decref(plan);
    REQUIRE(!bad, MEMORY, "no memory for the plan as JSON");
    putchar('\n');
    return REMAT_OK;
}

static remat_status print_plan(const remat_session *session, const rm_options *o) {
    if (o->json) return print_json(session, o);
    if (o->steps_text) return print_text(remat_plan_steps_text(session));
    if (o->problem) return print_text(remat_plan_problem_text(session));
    return print_text(remat_plan_describe(session));
}

static remat_status make_plan(const rm_options *options, const rm_model_spec *spec) {
    rm_model model;
    remat_session *session = NULL;
    remat_config config = rm_setup_training_config(options);
    config.plan_only = true;
    remat_status status = rm_model_build(spec, options->batch, true, &model);
    if (!status) status = remat_session_create(model.graph, model.loss, &config, &session);
    if (!status) status = print_plan(session, options);
    remat_session_free(session);
    rm_model_free(&model);
    return status;
}

remat_status rm_command_plan(rm_options *options, int *exit_status) {
    (void)exit_status;
    rm_model_spec spec;
    rm_dataset *dataset = NULL;
    if (options->data) TRY(rm_setup_dataset(options, false, &dataset));
    remat_status status = rm_setup_spec(options, dataset, &spec);
    if (!status) status = make_plan(options, &spec);
    rm_dataset_close(dataset);
    return status ? status : rm_commands_flush();
}
