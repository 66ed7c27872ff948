/* command_train.c: `remat train`: sets everything up, then one loop: next batch, step, metrics, progress, and every so
 * often an evaluation and a training state. Main entry: rm_command_train. */
#include "train/commands.h"

#include "train/budget.h"
#include "train/evaluator.h"
#include "train/metrics.h"
#include "train/plot.h"
#include "train/progress.h"
#include "train/setup.h"
#include "train/text.h"
#include "train/weights.h"

#include "memory/host.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    rm_options *options;
    rm_dataset *dataset, *eval_dataset;
    rm_model model;
    remat_session *session;
    rm_loader loader;
    rm_evaluator evaluator;
    rm_state_store store;
    rm_metrics metrics;
    rm_progress progress;
    char state[RM_PATH_BYTES]; /* resumed from; "" */
    rm_state_point start;      /* where this run began */
    int64_t step, last_step;
    double lr, loss, started_s;
    uint64_t arena_peak_bytes;
} trainer;

/* ---- Signals ---------------------------------------------------------------------------------------------------- */

static volatile sig_atomic_t caught;
static void remember(int signal) { caught = signal; }

/* The step that is running is finished and saved; a second signal of the kind ends the program at once. */
static void catch_signals(void) {
    struct sigaction action = {.sa_handler = remember, .sa_flags = (int)SA_RESETHAND | SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

/* ---- Setting up ------------------------------------------------------------------------------------------------- */

static bool same_place(const char *a, const char *b) {
    size_t n = strlen(a), m = strlen(b);
    while (n > 1 && a[n - 1] == '/') n--;
    while (m > 1 && b[m - 1] == '/') m--;
    return n == m && !memcmp(a, b, n);
}

/* A restart script says --save=DIR --resume=DIR every time: the first time there is nothing yet, and that is no mistake. */
static remat_status find_start(trainer *t) {
    bool found;
    rm_options *o = t->options;
    if (!o->resume) return REMAT_OK;
    TRY(rm_state_find(o->resume, t->state, &found));
    if (found && !o->save && !same_place(t->state, o->resume)) { /* a run goes on saving where it saved */
        o->save = rm_strdup(o->resume);
        REQUIRE(o->save, MEMORY, "no memory for the name %s", o->resume);
    }
    if (found) return rm_state_read(t->state, RM_TRAIN, o, &t->start);
    if (o->save && same_place(o->save, o->resume)) return REMAT_OK;
    FAIL(IO,
         "%s holds no training state: give the directory that was named with --save (or the same one to both, to start "
         "there)",
         o->resume);
}

static remat_status open_data(trainer *t, rm_model_spec *spec) {
    TRY(rm_setup_dataset(t->options, false, &t->dataset));
    REQUIRE(
        !*t->state || t->start.samples == t->dataset->count, INVALID,
        "the data has %lld samples, but %s was saved with %lld: that is other data; resume with what it was trained on",
        (long long)t->dataset->count, t->state, (long long)t->start.samples);
    TRY(rm_setup_spec(t->options, t->dataset, spec));
    const rm_options *o = t->options;
    rm_loader_config order = {.batch = o->batch, .seed = o->seed, .shuffle = !o->no_shuffle};
    TRY(rm_loader_create(t->dataset, &order, &t->loader));
    return rm_loader_seek(&t->loader, t->start.epoch, t->start.consumed);
}

/* Within what the evaluator and the data leave of the budget. */
static remat_status create_session(trainer *t, const rm_model_spec *spec) {
    remat_config config = rm_setup_training_config(t->options);
    uint64_t evaluator = rm_evaluator_bytes(&t->evaluator);
    uint64_t held = rm_budget_data_bytes(t->options, &spec->data, t->dataset) + evaluator;
    remat_status status = rm_budget_apply(t->options, held, &config);
    if (!status) status = rm_model_build(spec, t->options->batch, true, &t->model);
    if (!status) status = remat_session_create(t->model.graph, t->model.loss, &config, &t->session);
    rm_budget_advice about = {"train", evaluator, *t->state != 0};
    return status == REMAT_INFEASIBLE ? rm_budget_advise(t->options, spec, t->dataset, &about) : status;
}

/* The directory of a run that is resumed elsewhere, or after a restart, need not be there any more. */
static remat_status check_spill(const trainer *t) {
    const char *spill = t->options->spill;
    REQUIRE(!(*t->state && spill) || rm_path_exists(spill), IO,
            "the run in %s spills to %s, which does not exist here: create it, or name another with --spill=DIR",
            t->state, spill);
    return REMAT_OK;
}

/* Until there is a session there is nothing to finish or to save: planning can be interrupted at once. */
static remat_status open_session(trainer *t, const rm_model_spec *spec) {
    TRY(check_spill(t));
    TRY(create_session(t, spec));
    catch_signals();
    if (*t->state) return rm_state_restore(t->state, &t->start, true, t->session);
    return t->options->init ? rm_weights_import(t->session, t->options->init) : REMAT_OK;
}

static remat_status beside_path(const char *path, char beside[RM_PATH_BYTES]) {
    int length = snprintf(beside, RM_PATH_BYTES, "%s.unfinished", path);
    REQUIRE(length < RM_PATH_BYTES, INVALID, "the name %.60s... is too long", path);
    return REMAT_OK;
}

/* A first step can take long: that its gradients can be written is tried before. */
static remat_status try_dump(const char *path) {
    rm_file_writer writer;
    char beside[RM_PATH_BYTES];
    if (!path || (rm_path_exists(path) && !rm_path_is_file(path))) return REMAT_OK;
    TRY(beside_path(path, beside));
    remat_status status = rm_file_create(beside, &writer);
    if (status) return rm_fail(status, "%s: name a file that can be written with --dump-grads", remat_last_error());
    rm_file_abandon(&writer);
    rm_file_remove(beside);
    return REMAT_OK;
}

static remat_status set_up(trainer *t) {
    rm_model_spec spec;
    rm_options *o = t->options;
    TRY(rm_plot_check(o->plot));
    TRY(find_start(t));
    TRY(try_dump(o->dump_grads));
    rm_setup_warn_of_calibration(o);
    TRY(open_data(t, &spec));
    if (o->save) TRY(rm_state_store_open(o->save, o->keep, t->start.step, NULL, &t->store));
    TRY(rm_evaluator_open(o, &spec, 0, false, &t->eval_dataset,
                          &t->evaluator)); /* first: what it takes is not the session's */
    TRY(open_session(t, &spec));
    TRY(rm_metrics_open(o->metrics, t->start.step, &t->metrics));
    t->step = t->start.step;
    t->last_step = rm_options_given(o, "epochs") ? t->start.step + rm_loader_left(&t->loader, o->epochs) : o->steps;
    t->lr = rm_setup_learning_rate(o);
    t->loss = NAN;
    return REMAT_OK;
}

static void tear_down(trainer *t) {
    rm_evaluator_free(&t->evaluator);
    rm_loader_free(&t->loader);
    remat_session_free(t->session);
    rm_model_free(&t->model);
    rm_dataset_close(t->dataset);
    rm_dataset_close(t->eval_dataset);
    rm_state_store_close(&t->store);
    rm_metrics_close(&t->metrics);
}

/* ---- The loop --------------------------------------------------------------------------------------------------- */

static void introduce(trainer *t) {
    char a[RM_TEXT], b[RM_TEXT], c[RM_TEXT];
    const rm_options *o = t->options;
    remat_plan_summary plan = remat_session_plan(t->session);
    rm_progress_say(&t->progress, "%s, %lld x %lld: %s parameters; %s: %lld samples of %lld timesteps, batch %lld",
                    o->model, (long long)o->layers, (long long)o->hidden,
                    rm_count_text((double)plan.params_bytes / 4, a), o->data ? o->data : o->task,
                    (long long)t->dataset->count, (long long)plan.timesteps, (long long)plan.batch);
    rm_progress_say(&t->progress,
                    "plan: %s, %lld segment%s, %lld tile%s of %lld; arena %s, of which activations %s; device "
                    "%s, %d thread%s",
                    plan.strategy, (long long)plan.segments, plan.segments == 1 ? "" : "s", (long long)plan.n_tiles,
                    plan.n_tiles == 1 ? "" : "s", (long long)plan.tile, rm_bytes_text(plan.planned_peak_bytes, b),
                    rm_bytes_text(plan.activations_peak_bytes, c), plan.device, plan.threads,
                    plan.threads == 1 ? "" : "s");
    if (plan.segments_requested > plan.segments)
        rm_progress_say(&t->progress,
                        "note: %lld segments were asked for; there are %lld tiles (--tile makes them smaller)",
                        (long long)plan.segments_requested, (long long)plan.n_tiles);
    if (plan.memory_budget)
        rm_progress_say(&t->progress, "budget: %s of %s for the session, %s for data%s",
                        rm_bytes_text(plan.budgeted_bytes, a), rm_bytes_text(plan.memory_budget, b),
                        rm_bytes_text(rm_budget_given(o) - plan.memory_budget, c),
                        t->eval_dataset ? " and evaluation" : "");
    if (*t->state)
        rm_progress_say(&t->progress, "resumed from %s: step %lld, epoch %lld, batch %lld of %lld", t->state,
                        (long long)t->start.step, (long long)t->start.epoch,
                        (long long)(t->start.consumed / t->loader.global),
                        (long long)t->loader.per_epoch);
    if (*t->state && !o->save) rm_progress_say(&t->progress, "note: nothing will be saved; give --save=DIR to save");
}

/* Gradients are written beside their file and renamed, so that an earlier dump is replaced whole or not at all. What is
 * there and is no plain file (a pipe, a device) is written to directly. */
static remat_status dump_gradients(const trainer *t, const char *path) {
    rm_file_writer writer;
    char beside[RM_PATH_BYTES];
    if (rm_path_exists(path) && !rm_path_is_file(path))
        return rm_weights_save(t->session, REMAT_GRADIENT, path, &writer);
    TRY(beside_path(path, beside));
    TRY(rm_weights_save(t->session, REMAT_GRADIENT, beside, &writer));
    REQUIRE(!rename(beside, path), IO, "cannot rename %s to %s: %s", beside, path, strerror(errno));
    return REMAT_OK;
}

/* One update. With --dump-grads the first is done in two halves, which gives the same bits. */
static remat_status update(trainer *t, remat_step_result *result) {
    const char *dump = t->options->dump_grads;
    if (!dump || t->step != t->start.step) return remat_step(t->session, t->lr, result);
    TRY(remat_gradients(t->session, result));
    TRY(dump_gradients(t, dump));
    double loss = result->loss;
    TRY(remat_update(t->session, t->lr, result));
    result->loss = loss;
    return REMAT_OK;
}

/* Before anything is saved: parameters that are not numbers must not push good states out. */
static remat_status must_be_finite(const trainer *t, const remat_step_result *result) {
    if (!strcmp(t->options->device, "null")) return REMAT_OK;
    bool finite = isfinite(result->loss) && isfinite(result->grad_norm);
    REQUIRE(finite || t->step > 1, INTERNAL,
            "step 1: the loss is %g and the gradient's norm %g before any update: look for numbers that are not finite "
            "in the data or in --init",
            result->loss, result->grad_norm);
    REQUIRE(finite, INTERNAL,
            "step %lld: the loss is %g and the gradient's norm %g: training has diverged; make --lr smaller or set "
            "--clip-grad-norm=1",
            (long long)t->step, result->loss, result->grad_norm);
    return REMAT_OK;
}

/* --plot draws the second step, which is warm; or the only one. */
static bool is_drawn(const trainer *t) {
    bool only = t->last_step == t->start.step + 1;
    return t->options->plot && t->step == t->start.step + !only;
}

static remat_status draw(const trainer *t) {
    remat_live_point *planned = NULL, *measured = NULL;
    rm_timeline timeline = {0};
    remat_plan_summary plan = remat_session_plan(t->session);
    remat_status status = remat_plan_timeline(t->session, &planned, &timeline.n);
    if (!status) status = remat_traced_timeline(t->session, &measured, &timeline.n);
    timeline.planned = planned;
    timeline.measured = measured;
    if (!status) status = rm_plot_timeline(t->options, &plan, &timeline);
    remat_text_free((char *)planned);
    remat_text_free((char *)measured);
    return status;
}

static remat_status make_step(trainer *t) {
    remat_step_result result;
    bool drawn = is_drawn(t);
    TRY(rm_loader_next(&t->loader));
    TRY(rm_batch_write(&t->loader.batch, t->session));
    if (drawn) TRY(remat_trace_next(t->session));
    double start = rm_now_s();
    TRY(update(t, &result));
    double seconds = rm_now_s() - start;
    t->step++;
    t->loss = result.loss;
    t->arena_peak_bytes = result.arena_peak_bytes;
    rm_step_event event = {.step = t->step,
                           .loss = result.loss,
                           .grad_norm = result.grad_norm,
                           .lr = t->lr,
                           .step_ms = seconds * 1e3,
                           .tokens_per_s = (double)(t->dataset->shape.timesteps * t->loader.batch.batch) / seconds,
                           .arena_peak_bytes = result.arena_peak_bytes,
                           .rss_peak_bytes = rm_rss_peak_bytes()};
    TRY(rm_metrics_step(&t->metrics, &event));
    rm_progress_step(&t->progress, &event);
    remat_status status = drawn ? draw(t) : REMAT_OK;
    if (status && !caught) return status; /* a picture that Ctrl-C ended is no reason not to save */
    if (drawn && !status) rm_progress_say(&t->progress, "step %lld is drawn in %s", (long long)t->step, t->options->plot);
    return must_be_finite(t, &result);
}

static remat_status evaluate(trainer *t) {
    char text[160];
    rm_eval_event event = {.step = t->step};
    TRY(rm_evaluator_run(&t->evaluator, t->session, &event));
    TRY(rm_metrics_eval(&t->metrics, &event));
    rm_progress_say(&t->progress, "eval %6lld  %s", (long long)t->step, rm_eval_text(&event, text, sizeof text));
    return REMAT_OK;
}

static remat_status save(trainer *t) {
    rm_state_point point = {.step = t->step,
                            .epoch = t->loader.epoch,
                            .consumed = t->loader.consumed,
                            .samples = t->dataset->count,
                            .last_lr = t->lr};
    return rm_state_save(&t->store, t->session, t->options, point);
}

static remat_status after_step(trainer *t) {
    const rm_options *o = t->options;
    bool last = t->step == t->last_step || caught;
    bool eval_due =
        t->eval_dataset && !caught && (t->step == t->last_step || (o->eval_every && t->step % o->eval_every == 0));
    if (eval_due) TRY(evaluate(t));
    return o->save && (last || t->step % o->save_every == 0) ? save(t) : REMAT_OK;
}

static remat_status finish(trainer *t) {
    char wall[RM_TEXT], memory[RM_TEXT], arena[RM_TEXT];
    rm_end_event end = {.steps = t->step,
                        .loss = t->loss,
                        .wall_s = rm_now_s() - t->started_s,
                        .arena_peak_bytes = t->arena_peak_bytes,
                        .rss_peak_bytes = rm_rss_peak_bytes(),
                        .signal = caught};
    TRY(rm_metrics_end(&t->metrics, &end));
    TRY(rm_metrics_close(&t->metrics));
    if (t->step > t->start.step)
        rm_progress_say(&t->progress, "%s after step %lld: loss %.9g, %s, arena %s of %s planned, process %s",
                        caught ? "stopped" : "done", (long long)t->step, t->loss, rm_duration_text(end.wall_s, wall),
                        rm_bytes_text(end.arena_peak_bytes, arena),
                        rm_bytes_text(remat_session_plan(t->session).planned_peak_bytes, (char[RM_TEXT]){0}),
                        rm_bytes_text(end.rss_peak_bytes, memory));
    else if (caught)
        rm_progress_say(&t->progress, "stopped after step %lld, before the first of this run", (long long)t->step);
    if (t->options->save) rm_progress_say(&t->progress, "saved in %s", t->options->save);
    return rm_commands_flush();
}

static remat_status train(trainer *t) {
    TRY(set_up(t));
    remat_plan_summary plan = remat_session_plan(t->session);
    TRY(rm_metrics_plan(&t->metrics, &plan, t->options, t->start.step));
    t->started_s = rm_now_s();
    rm_progress_start(&t->progress, stdout, t->start.step, t->last_step, t->options->log_every);
    introduce(t);
    if (t->step >= t->last_step)
        rm_progress_say(&t->progress, "step %lld of %lld: nothing is left to do; give a larger --steps to go on",
                        (long long)t->step, (long long)t->last_step);
    while (t->step < t->last_step && !caught) {
        TRY(make_step(t));
        TRY(after_step(t));
    }
    return finish(t);
}

remat_status rm_command_train(rm_options *options, int *exit_status) {
    trainer t = {.options = options, .store.lock = -1};
    remat_status status = train(&t);
    tear_down(&t);
    if (!status && caught) *exit_status = 128 + caught;
    return status;
}
