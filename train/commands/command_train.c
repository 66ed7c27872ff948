/* command_train.c: `remat train`: the training loop, set up by trainer.h: next batch, step, metrics, progress, and periodically an
 * evaluation and a training state. All ranks (ranks.h) run this loop, each on its own samples; only rank 0 plans, prints and
 * writes. Main entry: rm_command_train. */
#include "train/commands/commands.h"

#include "dist/launch/launch.h"
#include "dist/launch/world.h"
#include "engine/report/observe.h"
#include "memory/host.h"
#include "train/report/dump.h"
#include "train/file.h"
#include "train/run/interrupt.h"
#include "train/run/outputs.h"
#include "train/report/plot.h"
#include "train/text.h"
#include "train/run/setup.h"
#include "train/run/trainer_world.h"
#include "train/state/held.h"
#include "train/state/carried.h"
#include "train/state/state_directory.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

/* ---- A step ----------------------------------------------------------------------------------------------------- */

/* A report that cannot be written does not end the run. The warning appears once, because the report is then closed. */
static void do_without(rm_trainer *t, const char *what, remat_status status) {
    if (status) rm_progress_warn(&t->progress, "%s; the run continues without %s", remat_last_error(), what);
}

/* For --timeline: what the program does between the session's calls. */
static uint64_t begins(const rm_trainer *t) { return t->timeline ? rm_now_ns() : 0; }
static void ends(const rm_trainer *t, uint64_t begin_ns, const char *name) {
    if (!t->timeline) return;
    rm_observed(remat_timeline_observer(t->timeline), begin_ns,
                (remat_event){.kind = REMAT_EVENT_PROGRAM, .name = name});
}

/* Calls of the session per update: each window of each micro step. */
static int64_t calls_of(const rm_trainer *t) { return t->loader.config.micro_steps * rm_setup_windows(t->options); }

/* The session refuses an update whose norm is not finite. The step is then reported like any other before the run ends
 * (must_be_finite). */
static remat_status unless_diverged(const remat_step_result *result, remat_status status) {
    return isfinite(result->grad_norm) ? status : REMAT_OK;
}

/* The last call, and the update. With --dump-grads the first update is split into backward and update, with the same bits; all ranks
 * split it, so that their collectives match. An elastic job may split all updates. */
static remat_status finish_update(rm_trainer *t, remat_step_result *result) {
    const char *dump = t->step == t->start.step ? t->options->dump_grads : NULL;
    bool keeps = rm_trainer_keeps_early(t);
    if (calls_of(t) == 1 && !dump && !keeps) return unless_diverged(result, remat_step(t->session, t->lr, result));
    TRY(remat_gradients(t->session, result));
    if (keeps) TRY(rm_trainer_keep_early(t, t->step + 1));
    if (dump && t->ranks.rank == 0) do_without(t, "its gradients", rm_dump_gradients(t->session, dump));
    double loss = result->loss;
    remat_status status = remat_update(t->session, t->lr, result);
    result->loss = loss;
    return unless_diverged(result, status);
}

static bool computes(const rm_trainer *t) { return strcmp(t->options->session.device, "null") != 0; }

static int64_t answers_of(const rm_trainer *t) { return t->loader.batch.batch * rm_data_answers(&t->dataset->shape); }

static remat_status count_right(rm_trainer *t, const void *targets) {
    int64_t K = t->model.classes, B = answers_of(t);
    remat_array output;
    if (!t->logits) return REMAT_OK;
    TRY(remat_array_info(t->session, REMAT_OUTPUT, 0, &output));
    if (!output.count) return REMAT_OK; /* another rank of the pipeline has it */
    TRY(remat_read(t->session, REMAT_OUTPUT, 0, t->logits, (uint64_t)(B * K) * sizeof *t->logits));
    t->counted[0] += (double)remat_correct(t->logits, targets, B, K, 1);
    t->counted[1] += (double)rm_count_targets(targets, B);
    return REMAT_OK;
}

/* Counts after micro step `k`. If micro steps are in flight together, the last one has the outputs of all. */
static remat_status count_after(rm_trainer *t, int64_t k) {
    const void *targets = t->loader.batch.data[RM_TARGET];
    int64_t B = answers_of(t), parts = remat_pipeline_parts(t->session);
    if (!t->targets) return count_right(t, targets);
    memcpy(t->targets + k * B, targets, (size_t)B * sizeof *t->targets);
    for (int64_t part = 0; k + 1 == parts && part < parts; part++) {
        TRY(remat_pipeline_part(t->session, (int)part));
        TRY(count_right(t, t->targets + part * B));
    }
    return REMAT_OK;
}

/* The accuracy over an update's samples, on all ranks; -1: undefined, or no sample counts. */
static remat_status find_accuracy(rm_trainer *t, double *accuracy) {
    const remat_ranks *ranks = rm_ranks_replicas(&t->ranks);
    *accuracy = -1;
    if (!t->model.classes || !computes(t)) return REMAT_OK;
    if (ranks) TRY(ranks->sum(ranks->context, t->counted, 2));
    if (t->counted[1] > 0) *accuracy = t->counted[0] / t->counted[1];
    return REMAT_OK;
}

/* Resets carried states if the batch's samples do not continue those before. */
static remat_status next_batch(rm_trainer *t) {
    uint64_t begin_ns = begins(t);
    TRY(rm_loader_next(&t->loader));
    ends(t, begin_ns, "load batch");
    return t->loader.begins ? rm_carried_clear(t->session) : REMAT_OK;
}

/* One update; *seconds: the time of the session and of the average of the weights. */
static remat_status update(rm_trainer *t, remat_step_result *result, double *seconds) {
    int64_t windows = rm_setup_windows(t->options), calls = calls_of(t);
    *seconds = t->counted[0] = t->counted[1] = 0;
    for (int64_t k = 0; k < calls; k++) {
        if (k % windows == 0) TRY(next_batch(t));
        rm_window window = windows > 1 ? rm_setup_window(t->options, k % windows) : rm_batch_whole(&t->loader.batch);
        if (k % windows && !window.first)
            TRY(rm_carried_clear(t->session)); /* each micro step starts its samples anew */
        TRY(rm_batch_write(&t->loader.batch, window, t->session));
        double start = rm_now_s();
        t->intact = false;
        TRY(k + 1 < calls ? remat_gradients(t->session, result) : finish_update(t, result));
        *seconds += rm_now_s() - start;
        TRY(count_after(t, k));
        t->intact =
            k + 1 < calls && !t->options->order.stateful; /* a training state has no gradients, but carried states */
    }
    double start = rm_now_s();
    if (computes(t)) TRY(rm_ema_update(&t->ema, t->options->ema, t->session));
    *seconds += rm_now_s() - start;
    return REMAT_OK;
}

/* Checked before saving, so that states with NaN parameters do not replace good ones. */
static remat_status must_be_finite(const rm_trainer *t, const remat_step_result *result) {
    if (!computes(t)) return REMAT_OK;
    bool finite = isfinite(result->loss) && isfinite(result->grad_norm);
    REQUIRE(finite || t->step > 1, INTERNAL,
            "step 1: the loss is %g and the gradient's norm %g before any update: look for non-finite values in --init",
            result->loss, result->grad_norm);
    REQUIRE(finite, INTERNAL,
            "step %lld: the loss is %g and the gradient's norm %g: training has diverged; reduce --lr or set "
            "--clip-grad-norm=1",
            (long long)t->step, result->loss, result->grad_norm);
    return REMAT_OK;
}

/* --plot draws the second step, which is warmed up, or the only one. */
static bool is_drawn(const rm_trainer *t) {
    bool only = t->last_step == t->start.step + 1;
    return t->options->plot && t->ranks.rank == 0 && t->step == t->start.step + !only;
}

static remat_status draw(const rm_trainer *t) {
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

/* Ctrl-C may interrupt the drawing; that is not an error. */
static void show_step(rm_trainer *t) {
    remat_status status = draw(t);
    if (!status)
        rm_progress_say(&t->progress, "step %lld is drawn in %s", (long long)t->step, t->options->plot);
    else if (!rm_interrupt_caught())
        do_without(t, "its chart", status);
}

static void add_cost(const rm_trainer *t, rm_step_event *event) {
    if (!t->ranks.ddp) return;
    rm_ddp_cost cost = rm_ddp_last_cost(t->ranks.ddp);
    event->has_comm = true;
    event->comm_bytes = cost.bytes;
    event->comm_busy_ms = (double)cost.busy_ns * 1e-6;
    event->comm_wait_ms = (double)cost.waited_ns * 1e-6;
}

/* Complete once every product has run. */
static void tell_precision(rm_trainer *t, const remat_products *p) {
    if (!p->in_fp32) return;
    rm_progress_say(&t->progress,
                    "note: of %lld matrix products, by shape, %lld are computed in fp32 despite --precision=%s: the "
                    "library has no other reproducible algorithm for them, or only slower ones",
                    (long long)p->shapes, (long long)p->in_fp32, t->plan.precision);
}

/* The GPU's algorithms are fixed in the second step; report them, because a slow choice would go unnoticed. */
static void tell_gpu(rm_trainer *t) {
    remat_products p;
    remat_recordings r;
    if (remat_session_products(t->session, &p) || remat_session_recordings(t->session, &r)) return;
    char bytes[RM_TEXT], limit[RM_TEXT];
    const bool only = t->last_step == t->start.step + 1;
    if (t->step != t->start.step + 2 - only || !r.limit_bytes) return;
    rm_progress_say(&t->progress,
                    "products: %lld alone; for a whole tile %lld at once, %lld in batches, %lld timestep by timestep; "
                    "of %lld shapes %lld split sums, %lld fell back to cuBLAS in fp32",
                    (long long)p.alone, (long long)p.whole, (long long)p.batched, (long long)p.blocks,
                    (long long)p.shapes, (long long)p.split, (long long)p.by_cublas);
    rm_progress_say(&t->progress, "graphs: %lld of %lld calls are recorded, in %s of %s%s%s", (long long)r.graphs,
                    (long long)r.calls, rm_bytes_text(r.bytes, bytes), rm_bytes_text(r.limit_bytes, limit),
                    r.ended ? "; recording has ended: " : "", r.ended ? r.ended : "");
    tell_precision(t, &p);
    do_without(t, "its metrics", rm_metrics_gpu(&t->metrics, t->step, &p, &r));
}

/* What the rate counts; NULL: tokens. Vectors are images of height 1. */
static const char *unit_of(const rm_data_shape *shape) {
    if (!shape->channels) return NULL;
    return shape->height > 1 ? "images" : "samples";
}

static remat_status make_step(rm_trainer *t) {
    double seconds, accuracy;
    remat_step_result result = {0};
    bool drawn = is_drawn(t);
    if (drawn) TRY(remat_trace_next(t->session));
    t->rate.reductions = t->watch.reductions;
    t->lr = rm_learning_rate_at(&t->rate, t->step + 1 + t->shift);
    TRY(update(t, &result, &seconds));
    TRY(find_accuracy(t, &accuracy));
    if (!computes(t)) result.loss = result.grad_norm = NAN;
    t->step++;
    t->loss = result.loss;
    t->arena_peak_bytes = result.arena_peak_bytes;
    rm_step_event event = {.step = t->step,
                           .epoch = (double)t->loader.epoch + (double)t->loader.consumed / (double)t->dataset->count,
                           .computed = computes(t),
                           .loss = result.loss,
                           .accuracy = accuracy,
                           .grad_norm = result.grad_norm,
                           .lr = t->lr,
                           .step_ms = seconds * 1e3,
                           .unit = unit_of(&t->dataset->shape),
                           .tokens_per_s = (double)(t->dataset->shape.timesteps * t->loader.global) / seconds,
                           .arena_peak_bytes = result.arena_peak_bytes,
                           .rss_peak_bytes = rm_rss_peak_bytes()};
    add_cost(t, &event);
    do_without(t, "its metrics", rm_metrics_step(&t->metrics, &event));
    do_without(t, "TensorBoard's file", rm_tensorboard_step(&t->tensorboard, &event));
    rm_progress_step(&t->progress, &event);
    tell_gpu(t);
    if (drawn) show_step(t);
    remat_status status = must_be_finite(t, &result);
    if (status) return rm_ranks_fail_alike(&t->ranks, status); /* loss and norm are the same on all ranks */
    t->intact = true;
    t->epoch = t->loader.epoch, t->consumed = t->loader.consumed;
    return REMAT_OK;
}

/* Whether an evaluation is due after this step. */
static bool is_due(const rm_trainer *t) { return t->options->eval_every && t->step % t->options->eval_every == 0; }

static remat_status evaluate(rm_trainer *t) {
    char text[160];
    remat_session *weights;
    rm_eval_event event = {.step = t->step};
    TRY(rm_ranks_share_buffers(&t->ranks, t->session));
    TRY(rm_ema_settle(&t->ema, t->session, &weights));
    uint64_t begin_ns = begins(t);
    TRY(rm_evaluator_run(&t->evaluator, weights, &event));
    ends(t, begin_ns, "evaluate");
    do_without(t, "its metrics", rm_metrics_eval(&t->metrics, &event));
    do_without(t, "TensorBoard's file", rm_tensorboard_eval(&t->tensorboard, &event));
    rm_progress_say(&t->progress, "eval %6lld  %s", (long long)t->step, rm_eval_text(&event, text, sizeof text));
    if (!is_due(t)) return REMAT_OK; /* the final evaluation: a longer run would not have it */
    if (rm_watch_see(&t->watch, t->options, &event, t->step + t->shift >= t->rate.warmup_steps))
        rm_progress_say(&t->progress, "learning rate: reduced, as evaluations no longer improve (%lld times now)",
                        (long long)t->watch.reductions);
    t->is_best = rm_watch_best_step(&t->watch, t->options) == t->step;
    return REMAT_OK;
}

/* A resumed run may have stopped early already. */
static void stop_early(rm_trainer *t) {
    if (!rm_watch_ends(&t->watch, t->options) || t->step >= t->last_step) return;
    rm_progress_say(&t->progress, "early stop after step %lld: %lld evaluation%s without a better %s than %.9g",
                    (long long)t->step, (long long)t->watch.since, t->watch.since == 1 ? "" : "s",
                    rm_scores[t->options->metric].name, t->watch.by[t->options->metric].best);
    t->last_step = t->step;
}

static remat_status save(rm_trainer *t) {
    remat_session *weights;
    TRY(rm_ema_settle(&t->ema, t->session, &weights));
    t->store.best = rm_watch_best_step(&t->watch, t->options);
    t->intact = false; /* if saving fails, do not try again */
    uint64_t begin_ns = begins(t);
    TRY(rm_state_save(&t->store, t->session, t->options, rm_trainer_point(t)));
    ends(t, begin_ns, "save training state");
    t->intact = t->saved = true;
    return REMAT_OK;
}

/* A signal to any rank makes all ranks stop or save after the same step. */
static remat_status heed_signals(rm_trainer *t) {
    bool save = rm_interrupt_take_save();
    t->stop = rm_interrupt_caught();
    t->again = rm_world_called();
    TRY(rm_ranks_heed(&t->ranks, &t->stop, &save, &t->again));
    t->again = t->again && rm_trainer_can_go_on(t);
    t->save_now = t->save_now || save;
    if (!t->save_now || t->options->save) return REMAT_OK;
    rm_progress_say(&t->progress,
                    "SIGUSR1 requests a training state, but there is no place for it: --save=DIR is not set");
    t->save_now = false;
    return REMAT_OK;
}

/* The ranks of an elastic job hold the last step in memory, so that it goes on without a training state. */
static remat_status try_to_save(rm_trainer *t) {
    remat_status status = save(t);
    if (!status || status == REMAT_PEER || !rm_trainer_can_go_on(t)) return status;
    if (*remat_last_error()) rm_progress_warn(&t->progress, "%s; the run continues without it", remat_last_error());
    t->intact = true;
    t->ranks.over = t->ranks.alike = false;
    return REMAT_OK;
}

static remat_status after_step(rm_trainer *t) {
    const rm_options *o = t->options;
    bool last = t->step == t->last_step;
    t->is_best = false;
    bool due = rm_trainer_evaluation_due(t), decides = is_due(t) && rm_watch_matters(o);
    t->evaluation_due = due;
    TRY(heed_signals(t));
    if (due && (!t->stop || decides)) { /* otherwise stop at once: the resumed run evaluates */
        TRY(evaluate(t));
        t->evaluation_due = false;
        TRY(heed_signals(t));
        stop_early(t);
        last = t->step == t->last_step;
    }
    bool must = last || t->stop;
    if (!o->save || !(must || t->save_now || t->is_best || t->step % o->save_every == 0)) return REMAT_OK;
    TRY(must ? save(t) : try_to_save(t));
    if (t->save_now) rm_progress_say(&t->progress, "saved after step %lld, for SIGUSR1", (long long)t->step);
    t->save_now = false;
    return REMAT_OK;
}

/* The evaluation that a signal prevented, if it is still due with the current flags. */
static remat_status make_up_evaluation(rm_trainer *t) {
    t->evaluation_due = t->start.evaluation_due && t->eval_dataset && (is_due(t) || t->step == t->last_step);
    if (!t->evaluation_due || t->stop) return REMAT_OK;
    TRY(evaluate(t));
    t->evaluation_due = false;
    TRY(heed_signals(t));
    return t->options->save ? save(t) : REMAT_OK; /* so that it is not repeated */
}

/* If a resume added --keep-best or --save=DIR, the best evaluation may be an earlier one, whose state is not in this directory. */
static remat_status say_best(rm_trainer *t) {
    char state[RM_PATH_BYTES], link[RM_PATH_BYTES];
    TRY(rm_state_path(t->options->save, "", t->store.best, state));
    TRY(rm_path_join(link, sizeof link, t->options->save, RM_STATE_BEST));
    bool kept = rm_path_exists(state);
    const char *there = rm_path_exists(link) ? link : state; /* the file system may not support links */
    rm_progress_say(&t->progress, "the best evaluation was after step %lld%s%s", (long long)t->store.best,
                    kept ? ": " : ", whose state is not in ", kept ? there : t->options->save);
    return REMAT_OK;
}

/* Less than half a second, or than a hundredth of the time, is not worth a line. */
static void say_straggler(rm_trainer *t, const rm_straggler *s, double wall_s) {
    if (s->rank >= 0 && s->waited_s > 0.5 && s->waited_s > wall_s / 100)
        rm_progress_say(&t->progress, "the other ranks waited %.1f s for rank %d on %s, %.0f %% of the time",
                        s->waited_s, s->rank, s->host, 100 * s->waited_s / wall_s);
}

static remat_status finish(rm_trainer *t) {
    rm_straggler straggler;
    if (rm_ranks_straggler(&t->ranks, &straggler)) straggler.rank = -1; /* a rank is gone, but the run has ended well */
    char wall[RM_TEXT], memory[RM_TEXT], arena[RM_TEXT], loss[64] = "nothing was computed";
    rm_end_event end = {.steps = t->step,
                        .loss = t->loss,
                        .wall_s = rm_now_s() - t->started_s,
                        .arena_peak_bytes = t->arena_peak_bytes,
                        .rss_peak_bytes = rm_rss_peak_bytes(),
                        .signal = t->stop,
                        .straggler = straggler.rank,
                        .straggler_host = straggler.rank < 0 ? NULL : straggler.host,
                        .straggler_s = straggler.waited_s};
    do_without(t, "its metrics", rm_metrics_end(&t->metrics, &end));
    do_without(t, "its metrics", rm_metrics_close(&t->metrics));
    do_without(t, "TensorBoard's file", rm_tensorboard_close(&t->tensorboard));
    if (computes(t)) snprintf(loss, sizeof loss, "loss %.9g", t->loss);
    if (t->step > t->start.step)
        rm_progress_say(&t->progress, "%s after step %lld: %s, %s, arena %s of %s planned, process %s",
                        t->stop ? "stopped" : "done", (long long)t->step, loss, rm_duration_text(end.wall_s, wall),
                        rm_bytes_text(end.arena_peak_bytes, arena),
                        rm_bytes_text(t->plan.planned_peak_bytes, (char[RM_TEXT]){0}),
                        rm_bytes_text(end.rss_peak_bytes, memory));
    else if (t->stop)
        rm_progress_say(&t->progress, "stopped after step %lld, before the first of this run", (long long)t->step);
    say_straggler(t, &straggler, end.wall_s);
    if (t->saved) rm_progress_say(&t->progress, "saved in %s", t->options->save);
    if (t->store.best) TRY(say_best(t));
    return REMAT_OK;
}

/* The other ranks wait for this one in the middle of a step, so none can save; the message names the state to resume from. */
static remat_status name_last_state(const rm_trainer *t, remat_status status) {
    char sentence[700], state[RM_PATH_BYTES] = "";
    int64_t *steps = NULL, count = 0;
    snprintf(sentence, sizeof sentence, "%s", remat_last_error());
    if (!rm_state_list(t->options->save, &steps, &count) && count) rm_state_path(t->options->save, "", steps[0], state);
    rm_free(steps);
    if (!*state) return rm_fail(status, "%s; no training state was saved before it", sentence);
    return rm_fail(status, "%s; nothing was saved since the last training state, %s", sentence, state);
}

/* A failure such as data that changed during the run loses no training: saves the state after the last whole step, and the message says
 * so. */
static remat_status save_first(rm_trainer *t, remat_status status) {
    char sentence[700];
    if (!t->intact || !t->options->save || t->step == t->start.step) return status;
    if (status == REMAT_PEER && rm_world_exists()) return status; /* nothing is lost */
    if (t->ranks.size > 1) return name_last_state(t, status);
    snprintf(sentence, sizeof sentence, "%s", remat_last_error());
    if (save(t)) return rm_fail(status, "%s; and %s", sentence, remat_last_error());
    return rm_fail(status, "%s; step %lld is saved in %s", sentence, (long long)t->step, t->options->save);
}

static remat_status step_by_step(rm_trainer *t) {
    /* At least one step, so that a rank that joins and fails again and again does not stop the others */
    while (t->step < t->last_step && !t->stop && !(t->again && t->step > t->start.step)) {
        TRY(make_step(t));
        TRY(after_step(t));
        if (t->again && !rm_held_possible(t->session, t->options)) TRY(save(t));
    }
    return REMAT_OK;
}

/* A rank was lost after the last step, perhaps before it was saved; or the run is stopped before this world makes a step. */
static remat_status make_up_save(rm_trainer *t) {
    const rm_options *o = t->options;
    if (!t->goes_on || !o->save || !t->step) return REMAT_OK;
    bool must = t->step == t->last_step || t->stop;
    bool due = must || t->step % o->save_every == 0 || rm_watch_best_step(&t->watch, o) == t->step;
    return due ? save(t) : REMAT_OK;
}

/* A run with nothing left to do: --save=DIR may be another directory than that of --resume, and should have the state. */
static remat_status say_nothing_left(rm_trainer *t) {
    char state[RM_PATH_BYTES], missing = 0;
    const rm_options *o = t->options;
    if (t->step < t->last_step || rm_watch_ends(&t->watch, o)) return REMAT_OK;
    rm_progress_say(&t->progress, "step %lld of %lld: nothing is left to do; give a larger --%s to continue",
                    (long long)t->step, (long long)t->last_step, rm_options_given(o, "epochs") ? "epochs" : "steps");
    if (!o->save || !t->step || t->saved || t->stop) return REMAT_OK;
    TRY(rm_state_path(o->save, "", t->step, state));
    missing = !rm_path_exists(state);
    TRY(rm_ranks_tell(&t->ranks, &missing, sizeof missing));
    return missing ? save(t) : REMAT_OK;
}

static remat_status train(rm_trainer *t) {
    TRY(rm_metrics_plan(&t->metrics, &t->plan, t->options, &t->run));
    t->started_s = rm_now_s();
    rm_progress_start(&t->progress, t->ranks.rank ? NULL : rm_metrics_words(&t->metrics), t->start.step, t->last_step,
                      t->options->log_every);
    rm_trainer_introduce(t);
    TRY(heed_signals(t));
    TRY(make_up_evaluation(t));
    TRY(make_up_save(t));
    stop_early(t);
    TRY(say_nothing_left(t));
    remat_status status = step_by_step(t);
    if (!status && t->again && t->step < t->last_step && !t->stop) return REMAT_OK;
    return status ? save_first(t, status) : finish(t);
}

/* Errors while closing must not replace the message. */
static remat_status fail(rm_trainer *t, remat_status status) {
    char sentence[1024];
    bool lost_one = status == REMAT_PEER && t->ranks.group;
    status = rm_ranks_failed(&t->ranks, "train", status);
    if (lost_one && rm_world_exists()) {
        rm_trainer_join_again(t);
        return status;
    }
    snprintf(sentence, sizeof sentence, "%s", remat_last_error());
    rm_trainer_close(t);
    return rm_fail(status, "%s", sentence);
}

remat_status rm_command_train(rm_options *options, int *exit_status) {
    bool ran;
    rm_interrupt_catch_save();
    signal(SIGPIPE, SIG_IGN); /* the run continues and is saved even if the reader of its output exits */
    TRY(rm_command_devices(options, &ran, exit_status));
    if (ran) return REMAT_OK;
    rm_trainer t;
    remat_status status = rm_trainer_open(options, &t);
    if (t.over) fputs("remat train: the job has ended before this process was needed\n", stderr);
    if (!status && !t.over) status = train(&t);
    if (t.homeless) *exit_status = RM_EXIT_NO_WORLD;
    if (status) return fail(&t, status);
    if (t.again && t.step < t.last_step && !t.stop) {
        rm_trainer_join_again(&t);
        return rm_fail(REMAT_INTERNAL, "cannot load this program again: %s", strerror(errno));
    }
    rm_trainer_close(&t);
    rm_world_done();
    if (t.stop) *exit_status = 128 + t.stop;
    if (t.stop && !rm_interrupt_caught())
        rm_ranks_let_others_go_first(); /* the launcher should name the rank that was signalled */
    return REMAT_OK;
}
