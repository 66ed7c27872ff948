/* lr_schedule.c: see lr_schedule.h. */
#include "train/flags/lr_schedule.h"

#include "train/flags/usual.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Numbers ------------------------------------------------------------------------------------------------------- */

static remat_status too_late(const char *flag, const char *what) {
    FAIL(INVALID, "--%s=%.40s is out of range: a run has at most 1e15 updates", flag, what);
}

static remat_status to_updates(double epochs, int64_t per_epoch, const char *flag, const char *what, int64_t *out) {
    double updates = round(epochs * (double)per_epoch);
    if (!(updates >= 0 && updates <= 1e15)) return too_late(flag, what);
    *out = (int64_t)updates;
    return REMAT_OK;
}

/* "300" means updates, "30e" epochs. Numbers have digits and a point only, so "e" is never an exponent. *end: past the number. */
static remat_status read_milestone(const char *at, int64_t per_epoch, const char **end, int64_t *out) {
    char text[32];
    size_t length = strcspn(at, ","), digits = strspn(at, "0123456789."), copied = length < 31 ? length : 31;
    bool epochs = at[digits] == 'e';
    memcpy(text, at, copied);
    text[copied] = 0;
    char *read;
    double number = strtod(text, &read);
    bool good = digits && digits + epochs == length && length == copied && read == text + digits;
    REQUIRE(good && (epochs || number == floor(number)), INVALID,
            "--milestones: '%s' is neither a number of updates, such as 300, nor of epochs, such as 30e", text);
    *end = at + length;
    return to_updates(number, epochs ? per_epoch : 1, "milestones", text, out);
}

static remat_status read_milestones(const char *text, int64_t per_epoch, rm_learning_rate *rate) {
    for (const char *at = text; at;) {
        const char *end = at;
        REQUIRE(rate->n_milestones < RM_LR_MILESTONES, INVALID, "--milestones has more than %d entries; remove some",
                RM_LR_MILESTONES);
        TRY(read_milestone(at, per_epoch, &end, &rate->milestone[rate->n_milestones++]));
        at = *end ? end + 1 : NULL;
    }
    return REMAT_OK;
}

static remat_status warm_up_updates(double epochs, int64_t per_epoch, int64_t *out) {
    char text[32];
    snprintf(text, sizeof text, "%g", epochs);
    return to_updates(epochs, per_epoch, "warmup-epochs", text, out);
}

double rm_lr_given(const rm_options *o) { return o->rate.lr >= 0 ? o->rate.lr : rm_usual_of(o->session.optimizer)->lr; }

remat_status rm_lr_schedule_make(const rm_options *o, const rm_lr_schedule_facts *facts, rm_learning_rate *out) {
    *out = o->rate;
    out->lr = rm_lr_given(o);
    out->batch = (double)facts->batch;
    out->steps = facts->steps;
    if (o->warmup_epochs > 0) TRY(warm_up_updates(o->warmup_epochs, facts->per_epoch, &out->warmup_steps));
    out->hold = o->lr_by_epoch ? facts->per_epoch : 0;
    if (out->schedule == RM_LR_EXPONENTIAL && !out->decay_steps) out->decay_steps = facts->per_epoch;
    if (out->schedule == RM_LR_STEP) TRY(read_milestones(o->milestones, facts->per_epoch, out));
    return rm_learning_rate_check(out);
}

/* ---- In words ------------------------------------------------------------------------------------------------------ */

/* Appends to the text, which is cut if it does not fit. */
#define SAY(...) snprintf(text + strlen(text), RM_LR_SCHEDULE_TEXT - strlen(text), __VA_ARGS__)

const char *rm_lr_schedule_text(const rm_learning_rate *c, char text[RM_LR_SCHEDULE_TEXT]) {
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
    if (c->schedule == RM_LR_RESTARTS)
        SAY("; then cosine to %.6g, again and again, the first time in %lld updates", c->end_lr,
            (long long)c->decay_steps);
    if (c->schedule == RM_LR_ONE_CYCLE)
        SAY(", in one cycle: from %.6g up to it, and down to %.6g at update %lld", rm_learning_rate_at(c, 1),
            rm_learning_rate_at(c, end), (long long)end);
    if (c->schedule == RM_LR_EXPONENTIAL)
        SAY("; then times %.6g every %lld updates", c->gamma, (long long)c->decay_steps);
    if (c->hold > 1 && c->schedule != RM_LR_PLATEAU) SAY(", in steps of %lld updates", (long long)c->hold);
    if (c->schedule == RM_LR_PLATEAU)
        SAY("; times %.6g where evaluations no longer improve, down to %.6g", c->gamma, c->end_lr);
    if (c->schedule == RM_LR_LINEAR || c->schedule == RM_LR_COSINE || poly)
        SAY("; then %s to %.6g after update %lld", rm_lr_schedule_name(c->schedule), c->end_lr, (long long)end);
    return text;
}
