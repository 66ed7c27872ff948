/* command_plan.c: `remat plan`: prints what `remat train` would do with the same flags, without training. --pareto lists
 * alternative plans; --plot draws either. */
#include "engine/abi.h"
#include "train/commands/commands.h"
#include "train/commands/plan_pipeline.h"

#include "memory/host.h"
#include "train/run/budget.h"
#include "train/run/cutting.h"
#include "train/run/ema.h"
#include "train/run/evaluator.h"
#include "train/file.h"
#include "train/report/metrics.h"
#include "train/report/plot.h"
#include "train/flags/presets.h"
#include "train/flags/lr_schedule.h"
#include "train/ranks/ranks.h"
#include "train/run/setup.h"
#include "train/run/start.h"
#include "train/text.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* ---- The plan --------------------------------------------------------------------------------------------------- */

static remat_status print_text(char *text) {
    REQUIRE(text, MEMORY, "no memory for the text of the plan");
    fputs(text, stdout);
    remat_text_free(text);
    return REMAT_OK;
}

/* The engine does not know the batch size of graphs without timesteps; the flags do. */
static remat_plan_summary summary_of(const remat_session *session, const rm_options *o) {
    remat_plan_summary plan = rm_plan_summary_of(session);
    if (!plan.batch) plan.batch = rm_setup_rows(o);
    return plan;
}

/* Owns the object. */
static remat_status print_object(json_t *object, bool bad) {
    bad = !object || bad || json_dumpf(object, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
    json_decref(object);
    REQUIRE(!bad, MEMORY, "no memory for the plan as JSON");
    putchar('\n');
    return REMAT_OK;
}

/* Parses JSON text and adds it under a name; frees the text. True: failed. */
static bool add_parsed(json_t *object, const char *name, char *text) {
    bool bad = !text || json_object_set_new(object, name, json_loads(text, 0, NULL));
    remat_text_free(text);
    return bad;
}

/* The members common to both kinds of --json. */
static json_t *begin_json(const remat_plan_summary *summary, const rm_options *options, uint64_t held) {
    json_t *plan = rm_metrics_plan_json(summary, options);
    json_object_set_new(plan, "program_bytes", json_integer((json_int_t)held));
    return plan;
}

static remat_status print_json(const remat_session *session, const rm_options *options, uint64_t held,
                               const rm_plan_pipeline *pipeline) {
    remat_plan_summary summary = summary_of(session, options);
    json_t *plan = begin_json(&summary, options, held);
    if (pipeline->n) json_object_set_new(plan, "pipeline", rm_plan_pipeline_json(pipeline));
    bool bad = add_parsed(plan, "peak", remat_plan_peak_json(session));
    bad = add_parsed(plan, "stages", remat_plan_stages_json(session)) || bad;
    bad = add_parsed(plan, "convolutions", remat_plan_convolutions_json(session)) || bad;
    return print_object(plan, bad);
}

static remat_status plot_plan(const remat_session *session, const rm_options *o) {
    remat_live_point *points;
    rm_timeline timeline = {0};
    remat_plan_summary plan = summary_of(session, o);
    TRY(remat_plan_timeline(session, &points, &timeline.n));
    timeline.planned = points;
    remat_status status = rm_plot_timeline(o, &plan, &timeline);
    remat_text_free((char *)points);
    return status;
}

static remat_status print_plan(const remat_session *session, const rm_options *o, uint64_t held,
                               const rm_plan_pipeline *pipeline) {
    if (o->plot) TRY(plot_plan(session, o));
    if (o->json) return print_json(session, o, held, pipeline);
    if (o->steps_text) return print_text(remat_plan_steps_text(session));
    if (o->problem) return print_text(remat_plan_problem_text(session));
    TRY(print_text(remat_plan_describe(session)));
    if (pipeline->n) rm_plan_pipeline_print(pipeline);
    return REMAT_OK;
}

/* ---- Memory against time ---------------------------------------------------------------------------------------- */

typedef struct {
    remat_pareto_point *point;
    int64_t count;
    double none_ns; /* time of `none`; 0: not listed */
    remat_plan_summary plan;
    uint64_t held; /* bytes outside the session */
    bool images;   /* no timesteps */
} pareto;

static bool is_this_plan(const pareto *p, const remat_pareto_point *q) {
    return !strcmp(q->strategy, p->plan.strategy) && q->budgeted_bytes == p->plan.budgeted_bytes &&
           q->step_ns == p->plan.step_ns;
}

static void print_pareto_row(const pareto *p, const remat_pareto_point *q) {
    char activations[RM_TEXT], all[RM_TEXT], spilled[RM_TEXT], segments[RM_TEXT], relative[RM_TEXT];
    snprintf(segments, sizeof segments, strcmp(q->strategy, "spill") ? "%lld" : "-", (long long)q->segments);
    snprintf(relative, sizeof relative, p->none_ns > 0 ? "%.3f" : "-", (double)q->step_ns / p->none_ns);
    printf("%c %-10s %9s %14s %14s %12s %11.1f %9s %9.3f%s\n", q->frontier ? '*' : ' ', q->strategy, segments,
           rm_bytes_text(q->activations_peak_bytes, activations), rm_bytes_text(q->budgeted_bytes, all),
           q->spill_bytes ? rm_bytes_text(q->spill_bytes, spilled) : "-", 1e-6 * (double)q->step_ns, relative,
           q->recompute_factor, is_this_plan(p, q) ? "  <- this plan" : "");
}

static remat_status print_pareto(const pareto *p) {
    char work[96];
    if (p->images)
        snprintf(work, sizeof work, "batch %lld, %lld stages", (long long)p->plan.batch, (long long)p->plan.n_stages);
    else
        snprintf(work, sizeof work, "%lld timesteps x batch %lld in %lld tile%s of %lld", (long long)p->plan.timesteps,
                 (long long)p->plan.batch, (long long)p->plan.n_tiles, p->plan.n_tiles == 1 ? "" : "s",
                 (long long)p->plan.tile);
    printf("Memory against time: %s; times are %s\n\n", work,
           p->plan.measured_busy
               ? "predicted from kernels measured while other programs used the processors, probably too long"
           : p->plan.measured_times ? "predicted from kernels measured here"
                                    : "estimated from the device's rates");
    printf("  %-10s %9s %14s %14s %12s %11s %9s %9s\n", "strategy", "segments", "activations", "total", "spilled",
           "step [ms]", "vs none", "recompute");
    for (int64_t i = 0; i < p->count; i++) print_pareto_row(p, &p->point[i]);
    printf("\n* no other plan needs less memory and less time. `total` is what --memory-budget limits.\n");
    return REMAT_OK;
}

static json_t *pareto_row_json(const pareto *p, const remat_pareto_point *q) {
    return json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:f, s:o, s:b, s:b}", "strategy", q->strategy, "segments",
                     (json_int_t)q->segments, "activations_peak_bytes", (json_int_t)q->activations_peak_bytes,
                     "budgeted_bytes", (json_int_t)q->budgeted_bytes, "spill_bytes", (json_int_t)q->spill_bytes,
                     "step_ns", (json_int_t)q->step_ns, "recompute_factor", q->recompute_factor, "relative_time",
                     p->none_ns > 0 ? json_real((double)q->step_ns / p->none_ns) : json_null(), "frontier", q->frontier,
                     "this_plan", is_this_plan(p, q));
}

static remat_status print_pareto_json(const pareto *p, const rm_options *o) {
    json_t *object = begin_json(&p->plan, o, p->held), *list = json_array();
    bool bad = false;
    for (int64_t i = 0; i < p->count; i++) bad = json_array_append_new(list, pareto_row_json(p, &p->point[i])) || bad;
    bad = json_object_set_new(object, "pareto", list) || bad;
    return print_object(object, bad);
}

/* `optimal` is planned for many budgets. Drops plans whose tables cost more memory than they save: no budget would choose them. */
static void drop_unwanted(pareto *p) {
    int64_t n = 0;
    for (int64_t i = 0; i < p->count; i++) {
        const remat_pareto_point *q = &p->point[i];
        if (q->frontier || strcmp(q->strategy, "optimal") || is_this_plan(p, q)) p->point[n++] = *q;
    }
    p->count = n;
}

static remat_status show_pareto(const remat_session *session, const rm_options *o, uint64_t held) {
    pareto p = {.plan = summary_of(session, o), .held = held, .images = rm_model_is(o->model.name, "images")};
    TRY(remat_plan_pareto(session, &p.point, &p.count));
    drop_unwanted(&p);
    for (int64_t i = 0; i < p.count; i++)
        if (!strcmp(p.point[i].strategy, "none")) p.none_ns = (double)p.point[i].step_ns;
    remat_status status = o->plot ? rm_plot_pareto(o, &p.plan, p.point, p.count) : REMAT_OK;
    if (!status) status = o->json ? print_pareto_json(&p, o) : print_pareto(&p);
    remat_text_free((char *)p.point);
    return status;
}

/* ---- The command ------------------------------------------------------------------------------------------------ */

typedef struct {
    rm_dataset *dataset, *eval_dataset;
    rm_evaluator evaluator;
    rm_ema ema;
    rm_model model;
    remat_session *session;
    remat_pipeline pipeline; /* with `cut`, for all sessions */
    rm_cut_choice cut;
    rm_plan_pipeline ranks; /* of the pipeline */
    bool resuming;
    char rate[RM_LR_SCHEDULE_TEXT]; /* the learning rate schedule in words; "": constant, or no data */
} planner;

/* The part of --memory-budget that the program itself uses. */
static void print_share(const rm_options *o, uint64_t held) {
    char all[RM_TEXT], data[RM_TEXT];
    uint64_t budget = rm_budget_given(o);
    if (!budget || o->json || o->pareto || o->steps_text || o->problem) return;
    printf("\n%s: %s, of which %s are for the program's data%s\n",
           o->session.memory_budget ? "--memory-budget" : "--assume-memory is the budget", rm_bytes_text(budget, all),
           rm_bytes_text(held, data), o->eval_every || o->held_out.data || rm_setup_splits(o) ? " and evaluation" : "");
}

/* The costs of data parallelism. */
static void print_ranks(const rm_options *o, const remat_session *session) {
    char parameters[RM_TEXT], optimizer[RM_TEXT];
    remat_plan_summary plan = rm_plan_summary_of(session);
    if (rm_setup_ranks(o) <= 1 || o->json || o->pareto || o->steps_text || o->problem) return;
    printf("\nEach of %lld ranks: %lld bucket%s of gradients, total %s; optimizer's state %s%s\n",
           (long long)rm_setup_ranks(o), (long long)plan.n_buckets, plan.n_buckets == 1 ? "" : "s",
           rm_bytes_text(plan.gradients_bytes, parameters), rm_bytes_text(plan.optimizer_bytes, optimizer),
           o->ddp.shard_optimizer ? ", this rank's share (--zero=1)" : " (--zero=1 would divide it among the ranks)");
}

/* Plans like `remat train`, without allocating memory. */
static remat_status make_plan(planner *p, const rm_options *o, const rm_model_spec *spec) {
    TRY(rm_ema_create(o, spec, true, &p->ema));
    TRY(rm_evaluator_open(o, spec, p->dataset, rm_setup_eval_batch(o), true, &p->eval_dataset, &p->evaluator));
    uint64_t evaluator = rm_evaluator_bytes(&p->evaluator) + rm_ema_bytes(&p->ema);
    if (p->cut.cut) TRY(rm_cutting_evaluation_bytes(o, spec, &p->pipeline, p->dataset, &evaluator));
    uint64_t held = rm_budget_data_bytes(o, &spec->data, p->dataset) + evaluator;
    remat_ranks table;
    remat_config config = rm_setup_training_config(o);
    config.plan_only = true;
    config.ranks = rm_ranks_imagined(o, &table);
    remat_status status = rm_budget_apply(o, held, &config);
    if (!status) status = rm_model_build(spec, rm_setup_rows(o), true, &p->model);
    if (!status) status = rm_setup_session(&p->model, &config, &p->session);
    if (status == REMAT_INFEASIBLE)
        return rm_budget_advise(o, spec, p->dataset, &(rm_budget_advice){"plan", evaluator, p->resuming, config.ranks});
    if (!status && p->cut.cut && !o->pareto)
        status = rm_plan_pipeline_make(&p->model, &config, p->session, &p->cut, &p->ranks);
    if (!status) status = o->pareto ? show_pareto(p->session, o, held) : print_plan(p->session, o, held, &p->ranks);
    if (!status) print_ranks(o, p->session);
    if (!status) print_share(o, held);
    bool shown = *p->rate && !(o->json || o->pareto || o->steps_text || o->problem);
    if (!status && shown) printf("\n%s\n", p->rate);
    return status;
}

/* With --resume, plans with the flags of the saved run. If there is none yet, `remat train` would start one. */
static remat_status adopt_state(planner *p, rm_options *o) {
    char state[RM_PATH_BYTES];
    rm_state_point point;
    if (!o->resume) return REMAT_OK;
    TRY(rm_state_find(o->resume, state, &p->resuming));
    if (p->resuming) TRY(rm_state_advise(o->resume, state, rm_start_read(o, state, &point)));
    return rm_options_check(o, RM_PLAN); /* with the flags of the state */
}

/* The sessions of a pipeline are rank 0's; all have the same cut. */
static remat_status cut_network(planner *p, rm_options *o, const rm_model_spec *spec) {
    TRY(rm_setup_pipeline(o, &p->pipeline));
    if (p->pipeline.size == 1) return REMAT_OK;
    TRY(rm_cutting_choose(o, spec, &p->pipeline, p->dataset, -1, &p->cut));
    p->pipeline.cut = p->cut.cut;
    o->session.pipeline = &p->pipeline;
    return REMAT_OK;
}

/* Describes the learning rate of `remat train`, or fails if it is invalid. */
static remat_status describe_rate(planner *p, const rm_options *o) {
    rm_learning_rate rate;
    rm_lr_schedule_facts facts = {.batch = rm_setup_rows(o) * rm_setup_micro_steps(o) * rm_setup_ranks(o)};
    facts.per_epoch = p->dataset ? p->dataset->count / facts.batch : 0;
    if (facts.per_epoch == 0) return REMAT_OK;
    facts.steps = rm_options_given(o, "epochs") ? o->epochs * facts.per_epoch : o->steps;
    TRY(rm_lr_schedule_make(o, &facts, &rate));
    rm_lr_schedule_text(&rate, p->rate);
    return REMAT_OK;
}

remat_status rm_command_plan(rm_options *options, int *exit_status) {
    (void)exit_status;
    planner p = {0};
    rm_model_spec spec;
    TRY(rm_plot_check(options->plot));
    TRY(adopt_state(&p, options));
    rm_setup_warn_of_calibration(options);
    if (options->data.data || rm_setup_generates(options)) TRY(rm_setup_dataset(options, &p.dataset));
    remat_status status = rm_preset_share_batch(options);
    if (!status) status = rm_setup_world(options);
    if (!status) status = rm_setup_spec(options, p.dataset, &spec);
    if (!status) status = describe_rate(&p, options);
    if (!status) status = cut_network(&p, options, &spec);
    if (!status) status = make_plan(&p, options, &spec);
    rm_plan_pipeline_free(&p.ranks);
    remat_session_free(p.session);
    rm_model_free(&p.model);
    rm_evaluator_free(&p.evaluator);
    rm_ema_free(&p.ema);
    rm_dataset_close(p.eval_dataset);
    rm_dataset_close(p.dataset);
    rm_cut_choice_free(&p.cut);
    return status ? status : rm_file_flush_output();
}
