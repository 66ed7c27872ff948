/* trainer.c: opens and closes a run. Each rank's own steps come first, then rm_ranks_agree reports a failure to all
 * ranks before they continue together. See trainer.h. */
#include "train/run/trainer.h"

#include "memory/host.h"
#include "train/data/class_weights.h"
#include "train/models/loss.h"
#include "train/run/autotune.h"
#include "train/run/budget.h"
#include "train/run/cutting.h"
#include "train/flags/device_flag.h"
#include "train/report/dump.h"
#include "train/run/interrupt.h"
#include "train/report/plot.h"
#include "train/flags/presets.h"
#include "train/run/setup.h"
#include "train/run/start.h"
#include "train/run/trainer_world.h"
#include "train/ranks/patient_barrier.h"
#include "train/state/held.h"
#include "train/state/state_directory.h"
#include "train/state/weights.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

/* A resumed run must continue with the same data. */
static remat_status check_data(rm_trainer *t) {
    const rm_options *o = t->options;
    TRY(rm_dataset_checksum(t->dataset, &t->data_crc32));
    if (!*t->state) return REMAT_OK;
    TRY(rm_setup_check_classes(t->state, t->dataset, o->data.data));
    REQUIRE(t->start.samples == t->dataset->count, INVALID,
            "the data has %lld samples, but %s was saved with %lld: resume with the data that it was trained on",
            (long long)t->dataset->count, t->state, (long long)t->start.samples);
    REQUIRE(
        !t->start.data_crc32 || t->start.data_crc32 == t->data_crc32, INVALID,
        "%s%s%s has as many samples as the data of %s, but other content (checksum %08x, not %08x): resume with the "
        "data that it was trained on",
        o->data.data, o->data.labels ? " with " : "", o->data.labels ? o->data.labels : "", t->state,
        (unsigned)t->data_crc32, (unsigned)t->start.data_crc32);
    return REMAT_OK;
}

/* A resumed run keeps its --loss-mean, which states contain. States of versions before --loss-mean imply `parts`. */
static remat_status keep_mean(rm_trainer *t, const rm_model_spec *spec) {
    rm_options *o = t->options;
    int64_t parts = t->ranks.replicas * rm_setup_micro_steps(o) * rm_setup_windows(o);
    bool said = rm_options_given(o, "loss-mean"), older = *t->state && t->start.mean_unsaid && !said;
    if (!rm_model_counts(spec)) return REMAT_OK;
    if (older && parts > 1) TRY(rm_options_adopt(o, RM_TRAIN, "loss-mean", "parts", t->state));
    if (older && parts > 1 && t->ranks.rank == 0)
        fprintf(stderr,
                "remat train: note: %s was saved by a version without --loss-mean; the run continues with "
                "--loss-mean=parts\n",
                t->state);
    rm_options_mark(o, "loss-mean", true);
    return REMAT_OK;
}

static remat_status open_data(rm_trainer *t, rm_model_spec *spec) {
    TRY(rm_setup_dataset(t->options, &t->dataset));
    TRY(check_data(t));
    TRY(rm_setup_spec(t->options, t->dataset, spec));
    TRY(keep_mean(t, spec));
    const rm_options *o = t->options;
    if (o->class_weights) TRY(rm_class_weights_read(o->class_weights, rm_budget_given(o), t->dataset));
    rm_loader_config order = o->order;
    order.seed = o->data.seed;
    order.rank = t->ranks.replica;
    order.size = t->ranks.replicas;
    order.micro_steps = rm_setup_micro_steps(o);
    order.threads = o->data.threads;
    remat_status status = rm_loader_create(t->dataset, &order, &t->loader);
    bool by_preset = o->preset && !rm_options_given(o, "batch");
    if (status == REMAT_INVALID && by_preset)
        return rm_fail_in(status, "--preset=%s sets --batch=%lld", o->preset, (long long)o->order.batch);
    TRY(status);
    return rm_loader_seek(&t->loader, t->start.epoch, t->start.consumed);
}

static remat_status restore(rm_trainer *t) {
    TRY(rm_state_restore(t->state, &t->start, true, t->session));
    t->ema.begun = t->ema.session && t->start.ema;
    if (t->ema.begun) TRY(rm_state_restore_ema(t->state, t->ema.session));
    return t->start.stateful ? rm_state_restore_carried(t->state, t->ranks.replica, t->ranks.replicas, t->session)
                             : REMAT_OK;
}

static remat_status import(rm_trainer *t, const rm_model_spec *spec) {
    const rm_options *o = t->options;
    if (strcmp(o->init_head, "new")) return rm_weights_import(t->session, o->init, NULL);
    rm_model_head(spec, t->new_head, sizeof t->new_head);
    return rm_weights_import(t->session, o->init, t->new_head);
}

static remat_status fill_session(rm_trainer *t, const rm_model_spec *spec) {
    if (t->goes_on && t->ranks.rank) return REMAT_OK;
    if (t->goes_on) return rm_held_fill(t->session, t->held.ema ? t->ema.session : NULL, &t->held_early);
    if (*t->state) return rm_state_advise(t->options->resume, t->state, restore(t));
    return t->options->init ? import(t, spec) : REMAT_OK;
}

/* Catches signals only from here on: before, there is nothing to finish or save, and planning may be interrupted at
 * once. */
static remat_status open_session(rm_trainer *t, const rm_model_spec *spec) {
    TRY(rm_trainer_create_session(t, spec));
    rm_interrupt_catch();
    TRY(rm_ranks_agree(&t->ranks, fill_session(t, spec)));
    TRY(rm_ranks_broadcast(&t->ranks, t->session));
    return rm_trainer_share_step(t);
}

/* A run of --epochs counts samples: its position in the learning rate's schedule is the number of updates of the current
 * size that its samples would have made. This differs from the step if a resume changed the size (--resume-batch). */
static int64_t schedule_shift(const rm_trainer *t) {
    const rm_loader *l = &t->loader;
    if (!rm_options_given(t->options, "epochs")) return 0;
    return (l->epoch + 1) * l->per_epoch - rm_loader_left(l, l->epoch + 1) - t->step;
}

/* Sets the number of updates and their learning rates. */
static remat_status set_updates(rm_trainer *t) {
    const rm_options *o = t->options;
    const rm_loader *l = &t->loader;
    t->step = t->start.step;
    t->watch = t->start.watch;
    t->epoch = t->start.epoch, t->consumed = t->start.consumed;
    t->last_step = rm_options_given(o, "epochs") ? t->start.step + rm_loader_left(l, o->epochs) : o->steps;
    t->shift = schedule_shift(t);
    return rm_lr_schedule_make(o, &(rm_lr_schedule_facts){l->global, l->per_epoch, t->last_step + t->shift}, &t->rate);
}

/* Each rank's own steps, before the collective ones. */
static remat_status prepare(rm_trainer *t, rm_model_spec *spec) {
    rm_options *o = t->options;
    bool speaks = t->ranks.rank == 0;
    TRY(rm_plot_check(o->plot));
    TRY(rm_start_find(o, t->state, &t->start));
    if (t->goes_on) t->start = t->held, *t->state = 0; /* with the flags of the state that the job resumed */
    if (!*t->state) TRY(rm_setup_init(o));             /* a state has weights of its own */
    TRY(rm_device_choose(o, speaks));
    TRY(rm_options_check(o, RM_TRAIN)); /* including the state's flags */
    TRY(rm_preset_share_batch(o));
    TRY(rm_setup_world(o));
    REQUIRE(!(o->dump_grads && o->ddp.shard_optimizer && t->ranks.size > 1), INVALID,
            "--dump-grads cannot be combined with --zero=1, because no rank has all gradients: remove one of the two");
    REQUIRE(t->ranks.size == 1 || strcmp(o->session.device, "null"), INVALID,
            "--device=null does not compute gradients for %d ranks: use --device=cpu, or `remat plan --world-size=%d`",
            t->ranks.size, t->ranks.size);
    if (speaks) TRY(rm_dump_try(o->dump_grads));
    if (speaks) rm_setup_warn_of_calibration(o);
    TRY(open_data(t, spec));
    return set_updates(t);
}

/* Compares what must be the same on all ranks and is not in the flags. */
static remat_status connect_ranks(rm_trainer *t) {
    char facts[320];
    const rm_data_shape *shape = &t->dataset->shape;
    snprintf(facts, sizeof facts,
             "samples in the data: %lld\nchecksum of the data: %08x\ntimesteps of a sample: %lld\nfeatures "
             "of a timestep: %lld\nclasses: %lld\n"
             "step of the training state: %lld\n",
             (long long)t->dataset->count, (unsigned)t->data_crc32, (long long)shape->timesteps,
             (long long)shape->features, (long long)shape->classes, (long long)t->start.step);
    return rm_ranks_connect(&t->ranks, t->options, facts);
}

/* All sessions of a rank hold the same layers. */
static remat_status cut_network(rm_trainer *t, const rm_model_spec *spec) {
    rm_cut_choice choice = {0};
    remat_status status = REMAT_OK;
    if (t->ranks.parts == 1) return REMAT_OK;
    if (t->ranks.rank == 0)
        status = rm_cutting_choose(t->options, spec, t->options->session.pipeline, t->dataset, -1, &choice);
    status = rm_ranks_agree(&t->ranks, status);
    if (!status) status = rm_ranks_set_cut(&t->ranks, choice.cut);
    rm_cut_choice_free(&choice);
    return status;
}

/* A run that was killed right after it saved a state may not have updated the link. */
static remat_status prepare_best(rm_trainer *t) {
    char aside[RM_PATH_BYTES];
    const char *save = t->options->save;
    if (t->ranks.rank || !strcmp(t->options->keep_best, "none")) return REMAT_OK;
    TRY(rm_state_make_way(save, aside));
    if (*aside) rm_progress_warn(&t->progress, "%s/" RM_STATE_BEST " is a copy of a state: renamed to %s", save, aside);
    return t->store.best ? rm_state_link_best(save, t->store.best) : REMAT_OK;
}

static remat_status open_store(rm_trainer *t) {
    const rm_options *o = t->options;
    rm_state_ranks ranks = rm_patient_barrier_ranks(&t->ranks, o->ddp.shard_optimizer);
    if (!o->save) return REMAT_OK;
    TRY(rm_state_store_open(o->save, o->keep, t->start.step, t->ranks.size > 1 ? &ranks : NULL, &t->store));
    t->store.tokenizer = t->dataset->tokenizer;
    t->store.tokenizer_bytes = t->dataset->tokenizer_bytes;
    t->store.classes = t->dataset->class_names;
    t->store.best = rm_watch_best_step(&t->watch, o);
    return rm_ranks_agree(&t->ranks, prepare_best(t));
}

static remat_status create_evaluator(rm_trainer *t, const rm_model_spec *spec, uint32_t *crc32) {
    const rm_options *o = t->options;
    TRY(rm_ema_create(o, spec, false, &t->ema));
    t->store.ema = t->ema.session;
    TRY(rm_evaluator_open(o, spec, t->dataset, rm_setup_eval_batch(o), false, &t->eval_dataset, &t->evaluator));
    return t->eval_dataset && t->ranks.all ? rm_dataset_checksum(t->eval_dataset, crc32) : REMAT_OK;
}

/* Comes before the training session, whose budget depends on the evaluator's size. Each rank evaluates its share of the
 * samples. */
static remat_status open_evaluator(rm_trainer *t, const rm_model_spec *spec) {
    char facts[160];
    uint32_t crc32 = 0;
    TRY(rm_ranks_agree(&t->ranks, create_evaluator(t, spec, &crc32)));
    t->evaluator.ranks = rm_ranks_replicas(&t->ranks);
    t->evaluator.part = t->ranks.part;
    if (!t->eval_dataset) return REMAT_OK;
    snprintf(facts, sizeof facts, "samples for evaluation: %lld\nchecksum of their data: %08x\n",
             (long long)t->eval_dataset->count, (unsigned)crc32);
    return rm_ranks_compare(&t->ranks, "the evaluation", facts);
}

/* Rank 0 writes FILE, or every rank writes FILE.rankN. */
static remat_status open_metrics(rm_trainer *t) {
    const rm_options *o = t->options;
    char *path = t->metrics_path;
    if (o->metrics) snprintf(path, sizeof t->metrics_path, "%s", o->metrics);
    if (o->metrics_per_rank) snprintf(path, sizeof t->metrics_path, "%s.rank%d", o->metrics, t->ranks.rank);
    bool writes = o->metrics && (o->metrics_per_rank || t->ranks.rank == 0);
    t->run = (rm_metrics_run){t->start.run, t->start.step, o->resume || rm_state_restarted()};
    TRY(rm_metrics_open(writes ? path : NULL, &t->run, &t->metrics));
    return rm_tensorboard_open(t->ranks.rank == 0 ? o->tensorboard : NULL, &t->run, &t->tensorboard);
}

/* A new run gets a random name. A resumed run keeps its name, unless its state is too old to have one. */
static remat_status name_run(rm_trainer *t) {
    uint64_t number = 0;
    char *name = t->start.run;
    remat_status status = REMAT_OK;
    if (!*name && getrandom(&number, sizeof number, 0) != sizeof number)
        status = rm_fail(REMAT_IO, "cannot get random numbers from the system: %s", strerror(errno));
    if (!*name) snprintf(name, sizeof t->start.run, "%016llx", (unsigned long long)number);
    TRY(rm_ranks_agree(&t->ranks, status));
    return rm_ranks_tell(&t->ranks, name, sizeof t->start.run);
}

/* Every rank empties the file before it meets the others, and writes to it after that. */
static remat_status open_timeline(rm_trainer *t) {
    remat_timeline_config config = {
        .struct_bytes = sizeof config, .path = t->options->timeline, .append = rm_state_restarted()};
    return config.path ? remat_timeline_open(&config, &t->timeline) : REMAT_OK;
}

static remat_status meet(rm_trainer *t) {
    rm_trainer_meeting *meeting;
    remat_status status = open_timeline(t);
    rm_reason why = rm_reason_kept();
    TRY(rm_trainer_begin_meeting(&meeting));
    remat_status met = rm_ranks_open(t->options, remat_timeline_observer(t->timeline), &t->ranks);
    rm_trainer_end_meeting(meeting);
    return met ? met : rm_ranks_agree(&t->ranks, rm_reason_again(status, &why));
}

static remat_status set_up(rm_trainer *t) {
    rm_model_spec spec;
    rm_options *o = t->options;
    TRY(rm_trainer_enter_world(t));
    if (t->over) return REMAT_OK;
    TRY(meet(t));
    TRY(rm_trainer_take_up(t));
    t->ranks.selective = rm_trainer_is_chosen(t);
    if (!t->goes_on) TRY(rm_start_again(&t->ranks, o));
    TRY(rm_ranks_agree(&t->ranks, prepare(t, &spec)));
    TRY(connect_ranks(t));
    TRY(name_run(t));
    TRY(open_store(t));
    TRY(cut_network(t, &spec));
    TRY(rm_autotune(t, &spec));
    TRY(open_evaluator(t, &spec));
    TRY(open_session(t, &spec));
    TRY(rm_ranks_agree(&t->ranks, open_metrics(t)));
    t->ranks.selective = false;
    t->loss = NAN;
    return REMAT_OK;
}

bool rm_trainer_evaluation_due(const rm_trainer *t) {
    const rm_options *o = t->options;
    return t->eval_dataset && (t->step == t->last_step || (o->eval_every && t->step % o->eval_every == 0));
}

rm_state_point rm_trainer_point(const rm_trainer *t) {
    rm_state_point point = {.step = t->step,
                            .epoch = t->epoch,
                            .consumed = t->consumed,
                            .samples = t->dataset->count,
                            .data_crc32 = t->data_crc32,
                            .last_lr = t->step > t->start.step ? t->lr : remat_last_lr(t->session),
                            .watch = t->watch,
                            .evaluation_due = t->evaluation_due,
                            .shards = t->loader.config.shards};
    memcpy(point.run, t->start.run, sizeof point.run);
    return point;
}

remat_status rm_trainer_open(rm_options *options, rm_trainer *t) {
    *t = (rm_trainer){.options = options,
                      .store.lock = -1,
                      .tensorboard.writer.fd = -1,
                      .ranks = {.size = 1, .replicas = 1, .parts = 1}};
    return set_up(t);
}

void rm_trainer_close(rm_trainer *t) {
    rm_evaluator_free(&t->evaluator);
    rm_ema_free(&t->ema);
    rm_loader_free(&t->loader);
    rm_free(t->logits);
    rm_free(t->targets);
    rm_free(t->held_early.data);
    rm_early_free(&t->early);
    remat_session_free(t->session);
    rm_model_free(&t->model);
    rm_dataset_close(t->eval_dataset);
    rm_dataset_close(t->dataset);
    rm_state_store_close(&t->store);
    rm_metrics_close(&t->metrics);
    rm_tensorboard_close(&t->tensorboard);
    rm_ranks_close(&t->ranks);
    if (remat_timeline_close(t->timeline)) rm_progress_warn(&t->progress, "%s", remat_last_error());
}
