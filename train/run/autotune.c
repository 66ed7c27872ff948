/* autotune.c: see autotune.h. */
#include "train/run/autotune.h"

#include "engine/hash.h"
#include "engine/times/calibration_cache.h"
#include "memory/clock.h"
#include "memory/host.h"
#include "memory/processors.h"
#include "train/run/budget.h"
#include "train/run/cutting.h"
#include "train/run/setup.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 4, MOST_TRIED = 5, MOST_CUTS = 4 }; /* the first step of a session is not counted */

/* A candidate replaces the setting if it takes less than this share of its time, because shorter differences are noise. */
static const double worth = 0.97;

typedef struct {
    rm_trainer *t;
    const rm_model_spec *spec;
    rm_times known;
    const char *file; /* NULL: times are not kept */
    uint64_t best_ns;
    uint64_t predicted_ns;                /* with the default settings */
    int64_t buckets[MOST_TRIED], n_tried; /* numbers of buckets that were measured */
    bool tries_buckets, tries_cuts;
    uint64_t tile, threads; /* rank 0's, as chosen without --autotune */
} tuner;

/* ---- One candidate ----------------------------------------------------------------------------------------------- */

/* Of all that decides the time of a step. */
static uint64_t key_of(const tuner *u) {
    const rm_trainer *t = u->t;
    char text[RM_PATH_BYTES];
    uint64_t hash = rm_hash("autotune 1", 10, 0);
    for (int i = 0; i < rm_options_count(); i++) {
        if (rm_options_memory(i) == RM_FORGOTTEN) continue;
        rm_options_text(t->options, i, text, sizeof text);
        hash = rm_hash(text, strlen(text), rm_hash(rm_options_name(i), strlen(rm_options_name(i)), hash));
    }
    if (t->ranks.cut) hash = rm_hash(t->ranks.cut, strlen(t->ranks.cut), hash);
    snprintf(text, sizeof text, "%s %s %d %d", t->ranks.size > 1 ? rm_group_engine(t->ranks.group) : "", t->plan.device,
             t->ranks.size, rm_processors_get()->usable);
    hash = rm_hash(text, strlen(text), hash);
    return hash ? hash : 1;
}

static remat_status one_step(rm_trainer *t) {
    remat_step_result result;
    int64_t windows = rm_setup_windows(t->options), calls = t->loader.config.micro_steps * windows;
    for (int64_t k = 0; k < calls; k++) {
        rm_window window = windows > 1 ? rm_setup_window(t->options, k % windows) : rm_batch_whole(&t->loader.batch);
        TRY(rm_batch_write(&t->loader.batch, window, t->session));
        TRY(k + 1 < calls ? remat_gradients(t->session, &result) : remat_step(t->session, 0, &result));
    }
    return REMAT_OK;
}

/* The shortest step of the slowest rank. */
static remat_status measure(rm_trainer *t, uint64_t *ns) {
    *ns = UINT64_MAX;
    for (int i = 0; i < STEPS; i++) {
        uint64_t start = rm_now_ns();
        TRY(one_step(t));
        uint64_t took = rm_now_ns() - start;
        if (i && took < *ns) *ns = took;
    }
    return rm_ranks_most(&t->ranks, ns);
}

/* Predictions say nothing about buckets, but they may be the same as with a candidate before. */
static bool is_hopeless(const tuner *u) {
    const rm_trainer *t = u->t;
    if (u->tries_cuts) return false; /* predicted when they were listed */
    if (!u->tries_buckets) return u->predicted_ns && t->plan.step_ns > u->predicted_ns / 4 * 5;
    for (int64_t i = 0; i < u->n_tried && t->ranks.parts == 1; i++)
        if (u->buckets[i] == t->plan.n_buckets) return true;
    return false;
}

/* Rank 0 decides for all. 0: measure; UINT64_MAX: it cannot be the best; otherwise the time that the file has. */
static uint64_t expectation(const tuner *u, uint64_t key) {
    const rm_time_entry *known = rm_times_find(&u->known, key);
    if (known) return known->time_ns;
    return is_hopeless(u) ? UINT64_MAX : 0;
}

static remat_status try_session(tuner *u, const char *what, uint64_t *ns) {
    rm_trainer *t = u->t;
    uint64_t key = key_of(u);
    *ns = expectation(u, key);
    TRY(rm_ranks_tell(&t->ranks, ns, sizeof *ns));
    if (*ns) return REMAT_OK;
    TRY(measure(t, ns));
    return rm_times_put(&u->known, key, *ns, what);
}

/* Measures the current options. *ns is UINT64_MAX if they cannot be the best. */
static remat_status measure_options(tuner *u, const char *what, uint64_t *ns) {
    rm_trainer *t = u->t;
    remat_status status = rm_trainer_create_session(t, u->spec);
    if (!status) status = try_session(u, what, ns);
    if (!status && u->n_tried < MOST_TRIED) u->buckets[u->n_tried++] = t->plan.n_buckets;
    if (!status && !u->predicted_ns) u->predicted_ns = t->plan.step_ns;
    rm_trainer_free_session(t);
    return status;
}

/* ---- The settings ------------------------------------------------------------------------------------------------ */

static remat_status set_bucket(rm_trainer *t, double value) {
    t->options->bucket_cap_mb = value;
    return rm_ranks_set_buckets(&t->ranks, t->options);
}
static remat_status set_tile(rm_trainer *t, double value) {
    t->options->session.tile = (int64_t)value;
    return REMAT_OK;
}
static remat_status set_threads(rm_trainer *t, double value) {
    t->options->session.threads = (int)value;
    return REMAT_OK;
}

/* Sums over `local`, and sums that are trees, do not depend on where buckets end. */
static bool bucket_keeps_bits(const rm_trainer *t) {
    return !t->ranks.gpus && (t->options->order.shards || !strcmp(rm_group_engine(t->ranks.same), "local"));
}

typedef struct {
    const char *flag;
    remat_status (*set)(rm_trainer *, double value);
    double value, candidate[4]; /* 0 ends them */
    bool possible;
} setting;

static remat_status tune(tuner *u, const setting *s) {
    rm_trainer *t = u->t;
    double best = s->value;
    uint64_t given = rm_options_given(t->options, s->flag);
    TRY(rm_ranks_most(&t->ranks, &given)); /* ranks may differ */
    if (given || !s->possible) return REMAT_OK;
    u->tries_buckets = s->set == set_bucket;
    for (int i = 0; i < 4 && s->candidate[i] > 0; i++) {
        char what[RM_TIME_NOTE];
        uint64_t ns;
        if (s->candidate[i] == s->value) continue;
        TRY(s->set(t, s->candidate[i]));
        snprintf(what, sizeof what, "a step with --%s=%.6g", s->flag, s->candidate[i]);
        TRY(measure_options(u, what, &ns));
        if ((double)ns >= worth * (double)u->best_ns) continue;
        u->best_ns = ns;
        best = s->candidate[i];
    }
    size_t used = strlen(t->tuned);
    snprintf(t->tuned + used, sizeof t->tuned - used, " --%s=%.6g", s->flag, best);
    return s->set(t, best);
}

/* ---- The pipeline's cut ------------------------------------------------------------------------------------------ */

/* The cut in use, and for each rank the fastest with fewer layers there; predictions choose them, so they are few. */
static remat_status list_cuts(const tuner *u, char *cut[MOST_CUTS], uint64_t *n) {
    const rm_trainer *t = u->t;
    *n = 0;
    for (int r = 0; r < t->ranks.parts && *n < MOST_CUTS; r++) {
        rm_cut_choice choice;
        TRY(rm_cutting_choose(t->options, u->spec, t->options->session.pipeline, t->dataset, r, &choice));
        if (choice.cut) cut[(*n)++] = rm_strdup(choice.cut);
        rm_cut_choice_free(&choice);
    }
    return REMAT_OK;
}

static remat_status try_cut(tuner *u, const char *cut, char **best) {
    rm_trainer *t = u->t;
    char what[RM_TIME_NOTE];
    uint64_t ns;
    TRY(rm_ranks_set_cut(&t->ranks, cut));
    snprintf(what, sizeof what, "a step with --pipeline=%d:%s", t->ranks.parts, t->ranks.cut);
    TRY(measure_options(u, what, &ns));
    if ((double)ns >= worth * (double)u->best_ns) return REMAT_OK;
    u->best_ns = ns;
    rm_free(*best);
    *best = rm_strdup(t->ranks.cut);
    return REMAT_OK;
}

static remat_status tune_cut(tuner *u) {
    rm_trainer *t = u->t;
    char *cut[MOST_CUTS] = {0}, *best;
    uint64_t n = 0;
    remat_status status = REMAT_OK;
    if (t->ranks.parts == 1 || strchr(t->options->pipeline, ':')) return REMAT_OK;
    if (t->ranks.rank == 0) status = list_cuts(u, cut, &n);
    status = rm_ranks_agree(&t->ranks, status);
    if (!status) status = rm_ranks_tell(&t->ranks, &n, sizeof n);
    best = rm_strdup(t->ranks.cut);
    u->tries_cuts = true;
    for (uint64_t i = 0; i < n && !status; i++) status = try_cut(u, cut[i], &best);
    u->tries_cuts = false;
    if (!status) status = rm_ranks_set_cut(&t->ranks, best);
    size_t used = strlen(t->tuned);
    snprintf(t->tuned + used, sizeof t->tuned - used, " --pipeline=%d:%s", t->ranks.parts, best);
    for (int i = 0; i < MOST_CUTS; i++) rm_free(cut[i]);
    rm_free(best);
    return status;
}

/* ---- All of them ------------------------------------------------------------------------------------------------- */

static remat_status tune_all(tuner *u) {
    rm_trainer *t = u->t;
    const rm_options *o = t->options;
    const bool any = !strcmp(o->autotune, "any");
    TRY(measure_options(u, "a step with the default settings", &u->best_ns));
    u->tile = (uint64_t)t->plan.tile;
    u->threads = (uint64_t)t->plan.threads;
    TRY(tune_cut(u));
    TRY(rm_ranks_tell(&t->ranks, &u->tile, sizeof u->tile));
    TRY(rm_ranks_tell(&t->ranks, &u->threads, sizeof u->threads));
    const double tile = (double)u->tile, threads = (double)u->threads;
    const setting settings[] = {
        {"bucket-cap-mb", set_bucket, o->bucket_cap_mb, {1, 5, 25, 100}, t->ranks.ddp && (any || bucket_keeps_bits(t))},
        {"tile",
         set_tile,
         tile,
         {tile / 2, 2 * tile <= (double)t->dataset->shape.timesteps ? 2 * tile : 0},
         any && tile >= 2 && !rm_budget_given(o)},
        {"threads", set_threads, threads, {threads / 2}, any && threads >= 2},
    };
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) TRY(tune(u, &settings[i]));
    return REMAT_OK;
}

remat_status rm_autotune(rm_trainer *t, const rm_model_spec *spec) {
    const rm_options *o = t->options;
    if (!strcmp(o->autotune, "off")) return REMAT_OK;
    tuner u = {.t = t, .spec = spec, .file = rm_setup_calibration_file(o)};
    remat_timeline *timeline = t->timeline; /* is not of the run */
    t->timeline = NULL;
    u.best_ns = UINT64_MAX;
    strcpy(t->tuned, "autotune:");
    if (u.file && *u.file) (void)rm_times_read(&u.known, u.file);
    remat_status status = rm_loader_next(&t->loader);
    if (!status) status = tune_all(&u);
    if (!status) status = rm_loader_seek(&t->loader, t->start.epoch, t->start.consumed);
    if (!status && u.file && *u.file && t->ranks.rank == 0) (void)rm_times_write(&u.known, u.file);
    rm_times_free(&u.known);
    t->timeline = timeline;
    if (!strchr(t->tuned, '='))
        strcpy(t->tuned, "autotune: no setting is left to choose");
    else
        snprintf(t->tuned + strlen(t->tuned), 40, ", %.3g ms a step", (double)u.best_ns * 1e-6);
    return status;
}
