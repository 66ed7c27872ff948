/* trainer_world.c: see trainer_world.h. */
#define _GNU_SOURCE
#include "train/run/trainer_world.h"

#include "dist/group/side_thread.h"
#include "dist/launch/world.h"
#include "memory/host.h"
#include "train/ranks/patient_barrier.h"
#include "train/run/again.h"
#include "train/state/held.h"
#include "train/state/state_directory.h"
#include "train/text.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LOOK_S 0.05

/* ---- The place ------------------------------------------------------------------------------------------------------ */

static int64_t divisor(int64_t a, int64_t b) { return b ? divisor(b, a % b) : a; }

/* Which numbers of ranks can share the batch, and the shards, which are added as a binary tree. */
static int64_t units(const rm_options *o, bool preset_batch) {
    int64_t all = preset_batch ? 0 : o->order.batch * rm_world_most(), shards = o->order.shards;
    return shards ? divisor(all, shards & -shards) : all;
}

static void say(void *context, const char *sentence) {
    (void)context;
    fprintf(stderr, "remat train: process %s: %s\n", getenv(RM_WORLD_VARIABLE) ? getenv("RANK") : "?", sentence);
}

remat_status rm_trainer_enter_world(rm_trainer *t) {
    rm_options *o = t->options;
    rm_state_point held;
    if (!rm_world_exists()) return REMAT_OK;
    REQUIRE(
        !o->pipeline, INVALID,
        "--pipeline cannot be used with --nnodes=MIN:MAX, because each rank holds a part of the network: remove one "
        "of the two");
    bool preset_batch = o->preset && !rm_options_given(o, "batch");
    rm_world_request request = {.step = rm_held_find(&held) ? held.step : -1,
                                .units = units(o, preset_batch),
                                .engine = o->dist_backend,
                                .timeout_ms = (int64_t)(1000 * o->join_timeout),
                                .say = say};
    remat_status status = rm_world_join(&request, &t->over);
    t->homeless = status == REMAT_PEER;
    TRY(status);
    if (!t->over && !preset_batch) o->order.batch = o->order.batch * rm_world_most() / atoll(getenv("WORLD_SIZE"));
    return REMAT_OK;
}

/* ---- Joining again -------------------------------------------------------------------------------------------------- */

/* The step after the last may be finished, too, if a rank was lost after the update. */
static bool is_finished(rm_trainer *t) {
    int64_t made = t->session && t->filled ? remat_step_count(t->session) : -1;
    if (made != t->step && made != t->step + 1) return false;
    if (made == t->step) return true;
    t->step = made;
    t->epoch = t->loader.epoch, t->consumed = t->loader.consumed;
    t->evaluation_due = rm_trainer_evaluation_due(t);
    return true;
}

static void hold(rm_trainer *t) {
    remat_session *ema = t->ema.begun ? t->ema.session : NULL;
    if (!t->session || !rm_held_possible(t->session, t->options) || !is_finished(t)) return;
    rm_state_point point = rm_trainer_point(t);
    point.ema = ema != NULL;
    point.last_lr = remat_last_lr(t->session);
    const rm_early_copy *early = rm_early_find(&t->early, t->step);
    if (rm_trainer_keeps_early(t) && !early) return;
    if (rm_held_keep(t->session, ema, early, &point))
        fprintf(stderr, "remat train: %s; the last training state is used instead\n", remat_last_error());
}

bool rm_trainer_can_go_on(const rm_trainer *t) {
    return rm_world_exists() && (rm_held_possible(t->session, t->options) || t->options->save);
}

void rm_trainer_join_again(rm_trainer *t) {
    rm_reason why = rm_reason_kept();
    bool goes_on = t->ranks.selective || rm_again_counts(t->step > t->start.step); /* not its own failure: another rank has left */
    if (goes_on) hold(t);
    if (goes_on) rm_ranks_hurry(&t->ranks);
    rm_trainer_close(t);
    if (goes_on) rm_again_load();
    (void)rm_reason_again(REMAT_PEER, &why);
}

/* ---- What a step changes before its update ------------------------------------------------------------------------- */

bool rm_trainer_keeps_early(const rm_trainer *t) {
    return rm_world_exists() && rm_held_possible(t->session, t->options) &&
           rm_early_any(t->session, t->options->order.stateful);
}

remat_status rm_trainer_keep_early(rm_trainer *t, int64_t step) {
    return rm_early_keep(&t->early, &t->ranks, t->session, t->options->order.stateful, step);
}

/* ---- Meeting -------------------------------------------------------------------------------------------------------- */

struct rm_trainer_meeting {
    rm_side_thread side;
};

static void *heed_calls(void *context) {
    rm_trainer_meeting *m = context;
    rm_side_thread_lock(&m->side);
    while (rm_side_thread_doze(&m->side, rm_now_s() + LOOK_S))
        if (rm_world_called()) rm_again_load();
    rm_side_thread_unlock(&m->side);
    return NULL;
}

remat_status rm_trainer_begin_meeting(rm_trainer_meeting **out) {
    *out = NULL;
    if (!rm_world_exists()) return REMAT_OK;
    rm_trainer_meeting *m = rm_calloc(1, sizeof *m);
    REQUIRE(m, MEMORY, "no memory to meet other ranks");
    remat_status status = rm_side_thread_start(&m->side, heed_calls, m, "heed calls of other ranks");
    if (!status) *out = m;
    if (status) rm_free(m);
    return status;
}

void rm_trainer_end_meeting(rm_trainer_meeting *m) {
    if (!m) return;
    rm_side_thread_end(&m->side);
    rm_free(m);
}

/* ---- Taking up a step ----------------------------------------------------------------------------------------------- */

/* A rank that was stopped for long may hold an older step than the job's last training state. */
static bool is_latest(const rm_trainer *t, int64_t step) {
    int64_t *steps = NULL, n = 0;
    const char *save = t->options->save;
    bool later = save && rm_path_exists(save) && !rm_state_list_all(save, &steps, &n) && n && steps[0] > step;
    rm_free(steps);
    return !later;
}

remat_status rm_trainer_take_up(rm_trainer *t) {
    struct {
        rm_state_point point;
        bool held;
    } told;
    memset(&told, 0, sizeof told);
    if (!rm_world_exists()) return REMAT_OK;
    told.held = t->ranks.rank == 0 && rm_held_find(&told.point) && is_latest(t, told.point.step);
    TRY(rm_ranks_tell(&t->ranks, &told, sizeof told));
    t->goes_on = told.held;
    t->held = told.point;
    return REMAT_OK;
}

bool rm_trainer_is_chosen(const rm_trainer *t) { return rm_world_exists() && (t->goes_on || rm_state_restarted()); }

remat_status rm_trainer_share_step(rm_trainer *t) {
    if (t->goes_on) {
        TRY(rm_ranks_send_arrays(&t->ranks, t->session, REMAT_OPTIMIZER));
        if (t->held.ema) TRY(rm_ranks_send_arrays(&t->ranks, t->ema.session, REMAT_PARAM));
        if (rm_trainer_keeps_early(t))
            TRY(rm_early_share(&t->held_early, &t->ranks, t->session, t->options->order.stateful));
        t->ema.begun = t->held.ema;
        remat_set_step_count(t->session, t->held.step);
        if (t->held.last_lr > 0) remat_set_last_lr(t->session, t->held.last_lr);
    }
    rm_held_drop();
    if (rm_trainer_keeps_early(t)) TRY(rm_trainer_keep_early(t, t->step));
    t->filled = true;
    return REMAT_OK;
}
