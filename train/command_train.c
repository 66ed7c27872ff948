/* command_train.c: `remat train`: sets everything up, then one loop: next batch, step, metrics, progress, and every so
 * often an evaluation and a training state. On many ranks (ranks.h) all run this same loop, each on its own samples; rank 0
 * alone plans, prints and writes. Main entry: rm_command_train. */
#include "train/commands.h"

#include "train/budget.h"
#include "train/evaluator.h"
#include "train/metrics.h"
#include "train/plot.h"
#include "train/presets.h"
#include "train/progress.h"
#include "train/schedule.h"
#include "train/setup.h"
#include "train/start.h"
#include "train/text.h"
#include "train/together.h"
#include "train/weights.h"

#include "memory/host.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef struct {
    rm_options *options;
    rm_ranks ranks;
    rm_dataset *dataset, *eval_dataset;
    rm_model model;
    remat_session *session;
    remat_plan_summary plan; /* the session's; strategy and times as rank 0 chose by them */
    rm_loader loader;
    rm_evaluator evaluator;
    rm_state_store store;
    rm_metrics metrics;
    rm_progress progress;
    char state[RM_PATH_BYTES]; /* resumed from; "" */
    rm_state_point start;      /* where this run began */
    int64_t step, last_step;
    int stop;                              /* the signal that all ranks stop at, or 0 */
    char metrics_path[RM_PATH_BYTES + 32]; /* this rank's */
    rm_learning_rate rate;
    double lr, loss, started_s;
    uint64_t arena_peak_bytes;
} trainer;

/* ---- Signals ---------------------------------------------------------------------------------------------------- */

static volatile sig_atomic_t caught;
static volatile time_t caught_s;

/* The step that is running is finished and saved; a second signal ends the program at once. But Slurm signals every process
 * of a step, and the launcher among them passes it on: what comes within a second or so is the first one again. */
static void remember(int number) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (caught && now.tv_sec > caught_s + 1) {
        signal(number, SIG_DFL);
        raise(number);
    } else if (!caught) {
        caught_s = now.tv_sec;
        caught = number;
    }
}

static void catch_signals(void) {
    struct sigaction action = {.sa_handler = remember, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

/* ---- Setting up ------------------------------------------------------------------------------------------------- */

static remat_status open_data(trainer *t, rm_model_spec *spec) {
    TRY(rm_setup_dataset(t->options, false, &t->dataset));
    REQUIRE(
        !*t->state || t->start.samples == t->dataset->count, INVALID,
        "the data has %lld samples, but %s was saved with %lld: that is other data; resume with what it was trained on",
        (long long)t->dataset->count, t->state, (long long)t->start.samples);
    TRY(rm_setup_spec(t->options, t->dataset, spec));
    const rm_options *o = t->options;
    rm_loader_config order = {.batch = o->batch,
                              .seed = o->seed,
                              .shuffle = !o->no_shuffle,
                              .pad = o->pad,
                              .rank = t->ranks.rank,
                              .size = t->ranks.size,
                              .micro_steps = rm_setup_micro_steps(o),
                              .shards = o->deterministic_world};
    TRY(rm_loader_create(t->dataset, &order, &t->loader));
    return rm_loader_seek(&t->loader, t->start.epoch, t->start.consumed);
}

/* Rank 0's plan for all: every rank must run the same, and times that are measured are nowhere the same twice. */
static remat_status propose(trainer *t, const rm_model_spec *spec, remat_config config, char **steps) {
    remat_session *session;
    rm_budget_advice about = {"train", rm_evaluator_bytes(&t->evaluator), *t->state != 0, config.ranks};
    config.plan_only = true;
    remat_status status = remat_session_create(t->model.graph, t->model.loss, &config, &session);
    if (status == REMAT_INFEASIBLE) return rm_budget_advise(t->options, spec, t->dataset, &about);
    TRY(status);
    t->plan = remat_session_plan(session);
    *steps = remat_plan_steps_text(session);
    remat_session_free(session);
    REQUIRE(*steps, MEMORY, "no memory for the text of the plan");
    return REMAT_OK;
}

/* The bytes are this session's; what the plan was chosen by is known to rank 0. */
static void settle_plan(trainer *t) {
    remat_plan_summary chosen = t->plan;
    t->plan = remat_session_plan(t->session);
    if (t->ranks.rank || t->ranks.size == 1) return;
    t->plan.segments = chosen.segments;
    t->plan.segments_requested = chosen.segments_requested;
    t->plan.forward_ns = chosen.forward_ns;
    t->plan.recompute_ns = chosen.recompute_ns;
    t->plan.backward_ns = chosen.backward_ns;
    t->plan.transfer_ns = chosen.transfer_ns;
    t->plan.wait_ns = chosen.wait_ns;
    t->plan.step_ns = chosen.step_ns;
    t->plan.fixed_ns = chosen.fixed_ns;
    t->plan.measured_times = chosen.measured_times;
}

/* What follows from the machine as well as from the flags. */
static remat_status compare_plans(trainer *t) {
    char text[256];
    const remat_plan_summary *p = &t->plan;
    snprintf(text, sizeof text, "timesteps of a tile: %lld\nstages: %lld\nlines of the plan: %lld\nbuckets: %lld\n",
             (long long)p->tile, (long long)p->n_stages, (long long)p->n_steps, (long long)p->n_buckets);
    return rm_ranks_compare(&t->ranks, "the plan", text);
}

static remat_status create_among_ranks(trainer *t, const rm_model_spec *spec, remat_config config) {
    char *proposed = NULL, *steps = NULL;
    remat_status status = t->ranks.rank ? REMAT_OK : propose(t, spec, config, &proposed);
    status = rm_ranks_agree(&t->ranks, status);
    if (!status) status = rm_ranks_share(&t->ranks, proposed, &steps);
    remat_text_free(proposed);
    config.plan_steps = steps;
    config.calibration = NULL; /* nothing is left to choose */
    if (!status) status = remat_session_create(t->model.graph, t->model.loss, &config, &t->session);
    rm_free(steps);
    TRY(status);
    settle_plan(t);
    return compare_plans(t);
}

static remat_status create_alone(trainer *t, const rm_model_spec *spec, const remat_config *config) {
    remat_status status = remat_session_create(t->model.graph, t->model.loss, config, &t->session);
    rm_budget_advice about = {"train", rm_evaluator_bytes(&t->evaluator), *t->state != 0, NULL};
    if (status == REMAT_INFEASIBLE) return rm_budget_advise(t->options, spec, t->dataset, &about);
    if (!status) settle_plan(t);
    return status;
}

/* What is left of the budget for the session, and the graph. */
static remat_status describe(trainer *t, const rm_model_spec *spec, remat_config *config) {
    uint64_t evaluator = rm_evaluator_bytes(&t->evaluator);
    uint64_t held = rm_budget_data_bytes(t->options, &spec->data, t->dataset) + evaluator;
    rm_budget_advice about = {"train", evaluator, *t->state != 0, config->ranks};
    remat_status status = rm_budget_apply(t->options, held, config);
    if (!status) return rm_model_build(spec, rm_setup_rows(t->options), true, &t->model);
    return t->ranks.rank ? status : rm_budget_advise(t->options, spec, t->dataset, &about);
}

/* Within what the evaluator and the data leave of the budget. */
static remat_status create_session(trainer *t, const rm_model_spec *spec) {
    remat_config config = rm_setup_training_config(t->options);
    config.ranks = rm_ranks_table(&t->ranks);
    TRY(rm_ranks_agree(&t->ranks, describe(t, spec, &config)));
    return config.ranks ? create_among_ranks(t, spec, config) : create_alone(t, spec, &config);
}

/* The directory of a run that is resumed elsewhere, or after a restart, need not be there any more. */
static remat_status check_spill(const trainer *t) {
    const char *spill = t->options->spill;
    REQUIRE(!(*t->state && spill) || rm_path_exists(spill), IO,
            "the run in %s spills to %s, which does not exist here: create it, or name another with --spill=DIR",
            t->state, spill);
    return REMAT_OK;
}

static remat_status fill_session(trainer *t) {
    if (*t->state) return rm_state_restore(t->state, &t->start, true, t->session);
    return t->options->init ? rm_weights_import(t->session, t->options->init) : REMAT_OK;
}

/* Until there is a session there is nothing to finish or to save: planning can be interrupted at once. */
static remat_status open_session(trainer *t, const rm_model_spec *spec) {
    TRY(create_session(t, spec));
    catch_signals();
    TRY(rm_ranks_agree(&t->ranks, fill_session(t)));
    return rm_ranks_broadcast(&t->ranks, t->session);
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

/* How many updates there are, and with which learning rates. */
static remat_status set_updates(trainer *t) {
    const rm_options *o = t->options;
    const rm_loader *l = &t->loader;
    t->step = t->start.step;
    t->last_step = rm_options_given(o, "epochs") ? t->start.step + rm_loader_left(l, o->epochs) : o->steps;
    return rm_schedule_make(o, &(rm_schedule_facts){l->global, l->per_epoch, t->last_step}, &t->rate);
}

/* What each rank does for itself, before anything that all do together. */
static remat_status prepare(trainer *t, rm_model_spec *spec) {
    rm_options *o = t->options;
    bool speaks = t->ranks.rank == 0;
    TRY(rm_plot_check(o->plot));
    TRY(rm_start_find(o, t->state, &t->start));
    TRY(rm_preset_share_batch(o));
    TRY(rm_setup_world(o));
    REQUIRE(!(o->dump_grads && o->zero && t->ranks.size > 1), INVALID,
            "--dump-grads writes all gradients, and with --zero=1 no rank has them all: leave one of the two out");
    if (speaks) TRY(try_dump(o->dump_grads));
    if (speaks) rm_setup_warn_of_calibration(o);
    TRY(check_spill(t));
    TRY(open_data(t, spec));
    return set_updates(t);
}

/* What is not in the flags, and must be the same on all ranks. */
static remat_status connect_ranks(trainer *t) {
    char facts[256];
    const rm_data_shape *shape = &t->dataset->shape;
    snprintf(facts, sizeof facts,
             "samples in the data: %lld\ntimesteps of a sample: %lld\nfeatures of a timestep: %lld\nclasses: %lld\n"
             "step of the training state: %lld\n",
             (long long)t->dataset->count, (long long)shape->timesteps, (long long)shape->features,
             (long long)shape->classes, (long long)t->start.step);
    return rm_ranks_connect(&t->ranks, t->options, facts);
}

static remat_status open_store(trainer *t) {
    const rm_options *o = t->options;
    rm_state_ranks ranks = rm_together_ranks(&t->ranks, o->zero);
    if (!o->save) return REMAT_OK;
    return rm_state_store_open(o->save, o->keep, t->start.step, t->ranks.size > 1 ? &ranks : NULL, &t->store);
}

/* First of all sessions, as what it takes is not the training session's. The batches of shards are the same for any number
 * of ranks, and so then are the last bits of what is found. */
static remat_status open_evaluator(trainer *t, const rm_model_spec *spec) {
    const rm_options *o = t->options;
    int64_t batch = o->deterministic_world ? rm_setup_rows(o) : 0;
    remat_status status = rm_evaluator_open(o, spec, batch, false, &t->eval_dataset, &t->evaluator);
    t->evaluator.ranks = rm_ranks_table(&t->ranks);
    return rm_ranks_agree(&t->ranks, status);
}

/* Rank 0 writes FILE; or every rank writes FILE.rankN. */
static remat_status open_metrics(trainer *t) {
    const rm_options *o = t->options;
    char *path = t->metrics_path;
    if (o->metrics) snprintf(path, sizeof t->metrics_path, "%s", o->metrics);
    if (o->metrics_per_rank) snprintf(path, sizeof t->metrics_path, "%s.rank%d", o->metrics, t->ranks.rank);
    bool writes = o->metrics && (o->metrics_per_rank || t->ranks.rank == 0);
    return rm_metrics_open(writes ? path : NULL, t->start.step, &t->metrics);
}

static remat_status set_up(trainer *t) {
    rm_model_spec spec;
    rm_options *o = t->options;
    TRY(rm_ranks_open(o, &t->ranks));
    TRY(rm_ranks_agree(&t->ranks, prepare(t, &spec)));
    TRY(connect_ranks(t));
    TRY(open_store(t));
    TRY(open_evaluator(t, &spec));
    TRY(open_session(t, &spec));
    TRY(rm_ranks_agree(&t->ranks, open_metrics(t)));
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
    rm_ranks_close(&t->ranks);
}

/* ---- The loop --------------------------------------------------------------------------------------------------- */

/* "batch 16"; "2 ranks over local, batch 2 x 16 = 32". */
static const char *batch_text(const trainer *t, char *text, size_t bytes) {
    const rm_options *o = t->options;
    char ranks[64] = "";
    int64_t global = t->loader.global;
    if (t->ranks.size > 1)
        snprintf(ranks, sizeof ranks, "%d ranks over %s, ", t->ranks.size, rm_group_engine(t->ranks.group));
    if (o->deterministic_world)
        snprintf(text, bytes, "%sbatch %lld in %lld shards of %lld", ranks, (long long)global,
                 (long long)o->deterministic_world, (long long)t->loader.batch.batch);
    else if (o->accumulate_steps > 1)
        snprintf(text, bytes, "%sbatch %lld = %d x %lld micro steps x %lld", ranks, (long long)global, t->ranks.size,
                 (long long)o->accumulate_steps, (long long)o->batch);
    else if (t->ranks.size > 1)
        snprintf(text, bytes, "%sbatch %d x %lld = %lld", ranks, t->ranks.size, (long long)o->batch, (long long)global);
    else
        snprintf(text, bytes, "batch %lld", (long long)global);
    return text;
}

static void introduce_ranks(trainer *t) {
    char a[RM_TEXT], b[RM_TEXT];
    const rm_options *o = t->options;
    const remat_plan_summary *plan = &t->plan;
    if (o->zero && t->ranks.size == 1)
        rm_progress_say(&t->progress,
                        "note: --zero=1 shares the optimizer's state among ranks; one rank saves nothing");
    if (t->ranks.size == 1) return;
    rm_progress_say(&t->progress, "each rank: gradients %s in %lld bucket%s%s%s; optimizer's state %s%s; %d thread%s",
                    rm_bytes_text(plan->gradients_bytes, a), (long long)plan->n_buckets,
                    plan->n_buckets == 1 ? "" : "s", strcmp(o->grad_compress, "none") ? ", sent as " : "",
                    strcmp(o->grad_compress, "none") ? o->grad_compress : "", rm_bytes_text(plan->optimizer_bytes, b),
                    o->zero ? ", its share" : "", plan->threads, plan->threads == 1 ? "" : "s");
}

static void introduce(trainer *t) {
    char a[RM_TEXT], b[RM_TEXT], c[RM_TEXT], batch[160], rate[RM_SCHEDULE_TEXT];
    const rm_options *o = t->options;
    remat_plan_summary plan = t->plan;
    rm_progress_say(&t->progress, "%s, %lld x %lld: %s parameters; %s: %lld samples of %lld timesteps, %s", o->model,
                    (long long)o->layers, (long long)o->hidden, rm_count_text((double)plan.params_bytes / 4, a),
                    o->data ? o->data : o->task, (long long)t->dataset->count, (long long)plan.timesteps,
                    batch_text(t, batch, sizeof batch));
    rm_progress_say(&t->progress,
                    "plan: %s, %lld segment%s, %lld tile%s of %lld; arena %s, of which activations %s; device "
                    "%s, %d thread%s",
                    plan.strategy, (long long)plan.segments, plan.segments == 1 ? "" : "s", (long long)plan.n_tiles,
                    plan.n_tiles == 1 ? "" : "s", (long long)plan.tile, rm_bytes_text(plan.planned_peak_bytes, b),
                    rm_bytes_text(plan.activations_peak_bytes, c), plan.device, plan.threads,
                    plan.threads == 1 ? "" : "s");
    introduce_ranks(t);
    if (*rm_schedule_text(&t->rate, rate)) rm_progress_say(&t->progress, "%s", rate);
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
                        (long long)(t->start.consumed / t->loader.global), (long long)t->loader.per_epoch);
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

/* One update; seconds is what the session took. With --dump-grads the first is done in two halves, which gives the same
 * bits; all ranks do so, that they stay in step. */
static remat_status finish_update(trainer *t, remat_step_result *result) {
    const char *dump = t->step == t->start.step ? t->options->dump_grads : NULL;
    if (t->loader.config.micro_steps == 1 && !dump) return remat_step(t->session, t->lr, result);
    TRY(remat_gradients(t->session, result));
    if (dump && t->ranks.rank == 0) TRY(dump_gradients(t, dump));
    double loss = result->loss;
    TRY(remat_update(t->session, t->lr, result));
    result->loss = loss;
    return REMAT_OK;
}

static remat_status update(trainer *t, remat_step_result *result, double *seconds) {
    int64_t micro_steps = t->loader.config.micro_steps;
    *seconds = 0;
    for (int64_t k = 1; k <= micro_steps; k++) {
        TRY(rm_loader_next(&t->loader));
        TRY(rm_batch_write(&t->loader.batch, t->session));
        double start = rm_now_s();
        TRY(k < micro_steps ? remat_gradients(t->session, result) : finish_update(t, result));
        *seconds += rm_now_s() - start;
    }
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
    return t->options->plot && t->ranks.rank == 0 && t->step == t->start.step + !only;
}

static remat_status draw(const trainer *t) {
    remat_live_point *planned = NULL, *measured = NULL;
    rm_timeline timeline = {0};
    remat_plan_summary plan = t->plan;
    remat_status status = remat_plan_timeline(t->session, &planned, &timeline.n);
    if (!status) status = remat_traced_timeline(t->session, &measured, &timeline.n);
    timeline.planned = planned;
    timeline.measured = measured;
    if (!status) status = rm_plot_timeline(t->options, &plan, &timeline);
    remat_text_free((char *)planned);
    remat_text_free((char *)measured);
    return status;
}

static void add_cost(const trainer *t, rm_step_event *event) {
    if (!t->ranks.ddp) return;
    rm_ddp_cost cost = rm_ddp_last_cost(t->ranks.ddp);
    event->has_comm = true;
    event->comm_bytes = cost.bytes;
    event->comm_busy_ms = (double)cost.busy_ns * 1e-6;
    event->comm_wait_ms = (double)cost.waited_ns * 1e-6;
}

static remat_status make_step(trainer *t) {
    double seconds;
    remat_step_result result;
    bool drawn = is_drawn(t);
    if (drawn) TRY(remat_trace_next(t->session));
    t->lr = rm_learning_rate_at(&t->rate, t->step + 1);
    TRY(update(t, &result, &seconds));
    t->step++;
    t->loss = result.loss;
    t->arena_peak_bytes = result.arena_peak_bytes;
    rm_step_event event = {.step = t->step,
                           .loss = result.loss,
                           .grad_norm = result.grad_norm,
                           .lr = t->lr,
                           .step_ms = seconds * 1e3,
                           .tokens_per_s = (double)(t->dataset->shape.timesteps * t->loader.global) / seconds,
                           .arena_peak_bytes = result.arena_peak_bytes,
                           .rss_peak_bytes = rm_rss_peak_bytes()};
    add_cost(t, &event);
    TRY(rm_metrics_step(&t->metrics, &event));
    rm_progress_step(&t->progress, &event);
    remat_status status = drawn ? draw(t) : REMAT_OK;
    if (status && !caught) return status; /* a picture that Ctrl-C ended is no reason not to save */
    if (drawn && !status)
        rm_progress_say(&t->progress, "step %lld is drawn in %s", (long long)t->step, t->options->plot);
    status = must_be_finite(t, &result);
    return status ? rm_ranks_alike(&t->ranks, status) : REMAT_OK; /* both numbers are the same on all ranks */
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
                            .last_lr = t->lr,
                            .shards = t->loader.config.shards};
    return rm_state_save(&t->store, t->session, t->options, point);
}

/* A signal to any rank stops all, after the same step. */
static remat_status heed_signals(trainer *t) { return rm_ranks_stop(&t->ranks, caught, &t->stop); }

static remat_status after_step(trainer *t) {
    const rm_options *o = t->options;
    bool last = t->step == t->last_step;
    TRY(heed_signals(t));
    if (t->eval_dataset && !t->stop && (last || (o->eval_every && t->step % o->eval_every == 0))) {
        TRY(evaluate(t));
        TRY(heed_signals(t));
    }
    return o->save && (last || t->stop || t->step % o->save_every == 0) ? save(t) : REMAT_OK;
}

static remat_status finish(trainer *t) {
    char wall[RM_TEXT], memory[RM_TEXT], arena[RM_TEXT];
    rm_end_event end = {.steps = t->step,
                        .loss = t->loss,
                        .wall_s = rm_now_s() - t->started_s,
                        .arena_peak_bytes = t->arena_peak_bytes,
                        .rss_peak_bytes = rm_rss_peak_bytes(),
                        .signal = t->stop};
    TRY(rm_metrics_end(&t->metrics, &end));
    TRY(rm_metrics_close(&t->metrics));
    if (t->step > t->start.step)
        rm_progress_say(&t->progress, "%s after step %lld: loss %.9g, %s, arena %s of %s planned, process %s",
                        t->stop ? "stopped" : "done", (long long)t->step, t->loss, rm_duration_text(end.wall_s, wall),
                        rm_bytes_text(end.arena_peak_bytes, arena),
                        rm_bytes_text(t->plan.planned_peak_bytes, (char[RM_TEXT]){0}),
                        rm_bytes_text(end.rss_peak_bytes, memory));
    else if (t->stop)
        rm_progress_say(&t->progress, "stopped after step %lld, before the first of this run", (long long)t->step);
    if (t->options->save) rm_progress_say(&t->progress, "saved in %s", t->options->save);
    return rm_commands_flush();
}

static remat_status train(trainer *t) {
    TRY(set_up(t));
    TRY(rm_metrics_plan(&t->metrics, &t->plan, t->options, t->start.step));
    t->started_s = rm_now_s();
    rm_progress_start(&t->progress, t->ranks.rank ? NULL : stdout, t->start.step, t->last_step, t->options->log_every);
    introduce(t);
    if (t->step >= t->last_step)
        rm_progress_say(&t->progress, "step %lld of %lld: nothing is left to do; give a larger --steps to go on",
                        (long long)t->step, (long long)t->last_step);
    TRY(heed_signals(t));
    while (t->step < t->last_step && !t->stop) {
        TRY(make_step(t));
        TRY(after_step(t));
    }
    return finish(t);
}

/* Closing things must not take the sentence's place. */
static remat_status fail(trainer *t, remat_status status) {
    char sentence[1024];
    status = rm_ranks_failed(&t->ranks, "train", status);
    snprintf(sentence, sizeof sentence, "%s", remat_last_error());
    tear_down(t);
    return rm_fail(status, "%s", sentence);
}

remat_status rm_command_train(rm_options *options, int *exit_status) {
    bool ran;
    TRY(rm_command_devices(options->devices, &ran, exit_status));
    if (ran) return REMAT_OK;
    trainer t = {.options = options, .store.lock = -1, .ranks.size = 1};
    remat_status status = train(&t);
    if (status) return fail(&t, status);
    tear_down(&t);
    if (t.stop) *exit_status = 128 + t.stop;
    return REMAT_OK;
}
