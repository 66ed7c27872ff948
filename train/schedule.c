/* schedule.c: see schedule.h. */
#include "train/schedule.h"

#include "train/setup.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Flags that belong together ------------------------------------------------------------------------------------ */

static bool one_of(const char *value, const char *a, const char *b, const char *c) {
    return !strcmp(value, a) || !strcmp(value, b) || !strcmp(value, c);
}

static remat_status needs(const rm_options *o, const char *flag, bool is_read, const char *remedy) {
    REQUIRE(is_read || !rm_options_given(o, flag), INVALID, "--%s says nothing here: it needs %s", flag, remedy);
    return REMAT_OK;
}

remat_status rm_schedule_check_flags(const rm_options *o) {
    const char *schedule = o->lr_schedule;
    bool decays = one_of(schedule, "linear", "cosine", "poly"), steps = !strcmp(schedule, "step");
    REQUIRE(!(rm_options_given(o, "warmup-steps") && rm_options_given(o, "warmup-epochs")), INVALID,
            "--warmup-steps and --warmup-epochs exclude each other: give one");
    REQUIRE(!steps || o->milestones, INVALID,
            "--lr-schedule=step needs to know where: say --milestones=300,600 (updates) or 30e,60e (epochs)");
    TRY(needs(o, "end-lr", decays, "--lr-schedule=linear, cosine or poly"));
    TRY(needs(o, "decay-steps", decays, "--lr-schedule=linear, cosine or poly"));
    TRY(needs(o, "power", !strcmp(schedule, "poly"), "--lr-schedule=poly"));
    TRY(needs(o, "gamma", steps, "--lr-schedule=step"));
    TRY(needs(o, "milestones", steps, "--lr-schedule=step"));
    TRY(needs(o, "base-batch", strcmp(o->scale_lr, "none") != 0, "--scale-lr=linear or sqrt"));
    return needs(
        o, "momentum-correction", !strcmp(o->optimizer, "lars") || !o->momentum_correction,
        "--optimizer=lars, whose velocity holds the learning rate; that of sgd does not, and is right as it is");
}

/* ---- Numbers ------------------------------------------------------------------------------------------------------- */

static remat_status to_updates(double epochs, int64_t per_epoch, const char *flag, int64_t *out) {
    double updates = round(epochs * (double)per_epoch);
    REQUIRE(updates >= 0 && updates <= 1e15, INVALID, "--%s: %g epochs of %lld updates are too many", flag, epochs,
            (long long)per_epoch);
    *out = (int64_t)updates;
    return REMAT_OK;
}

/* "300" is updates, "30e" epochs; *end is left behind it. */
static remat_status read_milestone(const char *at, int64_t per_epoch, char **end, int64_t *out) {
    double number = strtod(at, end);
    bool epochs = **end == 'e', whole = number == floor(number);
    *end += epochs;
    bool good = *end > at && (**end == ',' || !**end) && isfinite(number) && number >= 0 && (epochs || whole);
    REQUIRE(good, INVALID, "--milestones: '%.24s' is not a number of updates, like 300, or of epochs, like 30e", at);
    return to_updates(number, epochs ? per_epoch : 1, "milestones", out);
}

static remat_status read_milestones(const char *text, int64_t per_epoch, rm_learning_rate *rate) {
    for (const char *at = text; at;) {
        char *end;
        REQUIRE(rate->n_milestones < RM_LR_MILESTONES, INVALID, "--milestones has more than %d of them",
                RM_LR_MILESTONES);
        TRY(read_milestone(at, per_epoch, &end, &rate->milestone[rate->n_milestones++]));
        at = *end ? end + 1 : NULL;
    }
    return REMAT_OK;
}

static int find_name(const char *name, const char *(*name_of)(int), int n) {
    for (int i = 0; i < n; i++)
        if (!strcmp(name, name_of(i))) return i;
    return 0;
}
static const char *schedule_name(int i) { return rm_lr_schedule_name((rm_lr_schedule)i); }
static const char *scale_name(int i) { return rm_lr_scale_name((rm_lr_scale)i); }

remat_status rm_schedule_make(const rm_options *o, const rm_schedule_facts *facts, rm_learning_rate *out) {
    *out = (rm_learning_rate){.schedule = (rm_lr_schedule)find_name(o->lr_schedule, schedule_name, RM_LR_SCHEDULES),
                              .scale = (rm_lr_scale)find_name(o->scale_lr, scale_name, RM_LR_SCALES),
                              .lr = rm_setup_learning_rate(o),
                              .end_lr = o->end_lr,
                              .power = o->power,
                              .gamma = o->gamma,
                              .batch = (double)facts->batch,
                              .base_batch = (double)o->base_batch,
                              .warmup_steps = o->warmup_steps,
                              .steps = facts->steps,
                              .decay_steps = o->decay_steps};
    if (o->warmup_epochs > 0) TRY(to_updates(o->warmup_epochs, facts->per_epoch, "warmup-epochs", &out->warmup_steps));
    if (out->schedule == RM_LR_STEP) TRY(read_milestones(o->milestones, facts->per_epoch, out));
    return rm_learning_rate_check(out);
}

/* ---- In words ------------------------------------------------------------------------------------------------------ */

/* Appends; what does not fit is cut. */
#define SAY(...) snprintf(text + strlen(text), RM_SCHEDULE_TEXT - strlen(text), __VA_ARGS__)

const char *rm_schedule_text(const rm_learning_rate *c, char text[RM_SCHEDULE_TEXT]) {
    double eta = rm_learning_rate_peak(c);
    bool poly = c->schedule == RM_LR_POLY;
    int64_t end = c->decay_steps ? c->warmup_steps + c->decay_steps - poly : c->steps;
    *text = 0;
    if (c->schedule == RM_LR_CONSTANT && c->scale == RM_SCALE_NONE && !c->warmup_steps) return text;
    SAY("learning rate: %.6g", eta);
    if (c->scale != RM_SCALE_NONE)
        SAY(" = %.6g x %.6g (%s; batch %.15g against %.15g)", c->lr, c->lr > 0 ? eta / c->lr : 1,
            rm_lr_scale_name(c->scale), c->batch, c->base_batch);
    if (c->warmup_steps)
        SAY(", after a warm-up of %lld update%s", (long long)c->warmup_steps, c->warmup_steps == 1 ? "" : "s");
    for (int i = 0; i < c->n_milestones && i < 4; i++)
        SAY("%s%lld", i ? ", " : "; falls after update ", (long long)c->milestone[i]);
    if (c->schedule == RM_LR_STEP)
        SAY("%s, to %.6g", c->n_milestones > 4 ? ", ..." : "", rm_learning_rate_at(c, INT64_MAX));
    if (c->schedule != RM_LR_STEP && c->schedule != RM_LR_CONSTANT)
        SAY("; then %s to %.6g after update %lld", rm_lr_schedule_name(c->schedule), c->end_lr, (long long)end);
    return text;
}
