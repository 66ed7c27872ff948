/* learning_rate.c: see learning_rate.h, which has the formulas. */
#include "dist/large_batch/learning_rate.h"

#include <math.h>

static const char *const schedule_names[] = {"constant", "step", "linear", "cosine", "poly"};
static const char *const scale_names[] = {"none", "linear", "sqrt"};
_Static_assert(sizeof schedule_names / sizeof *schedule_names == RM_LR_SCHEDULES, "a schedule without a name");
_Static_assert(sizeof scale_names / sizeof *scale_names == RM_LR_SCALES, "a scale without a name");

const char *rm_lr_schedule_name(rm_lr_schedule schedule) { return schedule_names[schedule]; }
const char *rm_lr_scale_name(rm_lr_scale scale) { return scale_names[scale]; }

static double scale_factor(const rm_learning_rate *c) {
    double times = c->batch / c->base_batch;
    return c->scale == RM_SCALE_LINEAR ? times : c->scale == RM_SCALE_SQRT ? sqrt(times) : 1;
}

double rm_learning_rate_peak(const rm_learning_rate *c) { return c->lr * scale_factor(c); }

static bool decays(const rm_learning_rate *c) {
    return c->schedule == RM_LR_LINEAR || c->schedule == RM_LR_COSINE || c->schedule == RM_LR_POLY;
}

/* S of linear and cosine, D of poly. */
static int64_t decay_length(const rm_learning_rate *c) {
    if (c->decay_steps) return c->decay_steps;
    return c->steps - c->warmup_steps + (c->schedule == RM_LR_POLY);
}

/* ---- What cannot work --------------------------------------------------------------------------------------------- */

static bool is_rate(double x) { return isfinite(x) && x >= 0; }

static remat_status check_rates(const rm_learning_rate *c) {
    REQUIRE(is_rate(c->lr), INVALID, "--lr=%g: a learning rate is a finite number, 0 or more", c->lr);
    if (c->scale != RM_SCALE_NONE) {
        REQUIRE(isfinite(c->batch) && c->batch >= 1 && isfinite(c->base_batch) && c->base_batch >= 1, INVALID,
                "--scale-lr=%s with a batch of %g and --base-batch=%g: both must be 1 or more", scale_names[c->scale],
                c->batch, c->base_batch);
        REQUIRE(is_rate(rm_learning_rate_peak(c)), INVALID,
                "--lr=%g scaled to a batch of %g is no finite number: make one of them smaller", c->lr, c->batch);
    }
    if (!decays(c)) return REMAT_OK;
    REQUIRE(is_rate(c->end_lr), INVALID, "--end-lr=%g: a learning rate is a finite number, 0 or more", c->end_lr);
    REQUIRE(c->end_lr <= rm_learning_rate_peak(c), INVALID,
            "--end-lr=%g is above the rate that --lr-schedule=%s comes down from, %g: make it smaller, or --lr larger",
            c->end_lr, schedule_names[c->schedule], rm_learning_rate_peak(c));
    REQUIRE(c->schedule != RM_LR_POLY || (isfinite(c->power) && c->power > 0), INVALID,
            "--power=%g: the power of --lr-schedule=poly must be a finite number above 0", c->power);
    return REMAT_OK;
}

static remat_status check_lengths(const rm_learning_rate *c) {
    REQUIRE(c->warmup_steps >= 0 && c->decay_steps >= 0, INVALID,
            "a warm-up of %lld updates and a decay over %lld: "
            "neither can be negative",
            (long long)c->warmup_steps, (long long)c->decay_steps);
    if (c->decay_steps) return REMAT_OK;
    REQUIRE(c->steps >= 1, INVALID, "a run of %lld updates: it takes at least one", (long long)c->steps);
    REQUIRE(c->warmup_steps <= c->steps, INVALID,
            "the warm-up takes %lld updates and the whole run %lld: it would never be over; make --warmup-steps or "
            "--warmup-epochs smaller, or the run longer",
            (long long)c->warmup_steps, (long long)c->steps);
    REQUIRE(!decays(c) || c->warmup_steps < c->steps, INVALID,
            "the warm-up takes all %lld updates of the run, which leaves none for --lr-schedule=%s: make it shorter",
            (long long)c->steps, schedule_names[c->schedule]);
    return REMAT_OK;
}

static remat_status check_milestones(const rm_learning_rate *c) {
    if (c->schedule != RM_LR_STEP) return REMAT_OK;
    REQUIRE(isfinite(c->gamma) && c->gamma > 0, INVALID,
            "--gamma=%g: the factor at each milestone must be a finite "
            "number above 0",
            c->gamma);
    REQUIRE(
        c->n_milestones >= 1 && c->n_milestones <= RM_LR_MILESTONES, INVALID,
        "--lr-schedule=step with %d milestones: give 1 to %d, as --milestones=300,600 (updates) or 30e,60e (epochs)",
        c->n_milestones, RM_LR_MILESTONES);
    for (int i = 0; i < c->n_milestones; i++) {
        long long m = c->milestone[i], before = i ? c->milestone[i - 1] : 0;
        REQUIRE(m > before, INVALID,
                "milestone %d is update %lld, which does not come after %s %lld: give them in order", i + 1, m,
                i ? "the one before it," : "update", before);
        REQUIRE(m >= c->warmup_steps, INVALID,
                "milestone %d, update %lld, lies within the warm-up of %lld updates: move one of them", i + 1, m,
                (long long)c->warmup_steps);
    }
    return REMAT_OK;
}

remat_status rm_learning_rate_check(const rm_learning_rate *c) {
    TRY(check_rates(c));
    TRY(check_lengths(c));
    return check_milestones(c);
}

/* ---- What comes out ----------------------------------------------------------------------------------------------- */

static double warm_up(const rm_learning_rate *c, int64_t update, double eta) {
    double from = eta > c->lr ? c->lr : 0, part = (double)update / (double)c->warmup_steps;
    return from + (eta - from) * part;
}

static double after_milestones(const rm_learning_rate *c, int64_t update, double eta) {
    int passed = 0;
    while (passed < c->n_milestones && c->milestone[passed] < update) passed++;
    return eta * pow(c->gamma, passed);
}

static double decayed(const rm_learning_rate *c, int64_t update, double eta) {
    int64_t length = decay_length(c), s = update - c->warmup_steps - (c->schedule != RM_LR_POLY);
    if (s >= length) return c->end_lr;
    double part = (double)s / (double)length, left = 1 - part;
    if (c->schedule == RM_LR_COSINE) left = (1 + cos(M_PI * part)) / 2;
    if (c->schedule == RM_LR_POLY) left = pow(left, c->power);
    return c->end_lr + (eta - c->end_lr) * left;
}

double rm_learning_rate_at(const rm_learning_rate *c, int64_t update) {
    double eta = rm_learning_rate_peak(c);
    if (update < c->warmup_steps) return warm_up(c, update, eta);
    if (update == c->warmup_steps) return eta; /* to the bit */
    if (c->schedule == RM_LR_STEP) return after_milestones(c, update, eta);
    return decays(c) ? decayed(c, update, eta) : eta;
}
