/* learning_rate.c: see learning_rate.h, which has the formulas. */
#include "dist/large_batch/learning_rate.h"

#include <math.h>
#include <string.h>

#include "memory/words.h"

static const struct {
    const char *name, *settings;
} schedules[] = {
#define SCHEDULE(ENUM, NAME, SETTINGS) {NAME, SETTINGS},
#include "dist/large_batch/schedules.def"
#undef SCHEDULE
};
static const char *const scale_names[] = {"none", "linear", "sqrt"};
_Static_assert(sizeof scale_names / sizeof *scale_names == RM_LR_SCALES, "a scale without a name");

const char *rm_lr_schedule_name(rm_lr_schedule schedule) { return schedules[schedule].name; }
const char *rm_lr_scale_name(rm_lr_scale scale) { return scale_names[scale]; }

static double scale_factor(const rm_learning_rate *c) {
    double times = c->batch / c->base_batch;
    return c->scale == RM_SCALE_LINEAR ? times : c->scale == RM_SCALE_SQRT ? sqrt(times) : 1;
}

double rm_learning_rate_peak(const rm_learning_rate *c) { return c->lr * scale_factor(c); }

/* Whether the rate changes between the end of the warm-up and the end of the run (or of decay_steps). */
static bool decays(const rm_learning_rate *c) {
    return c->schedule == RM_LR_LINEAR || c->schedule == RM_LR_COSINE || c->schedule == RM_LR_POLY ||
           c->schedule == RM_LR_ONE_CYCLE;
}

bool rm_lr_schedule_reads(const char *schedule, const char *setting) {
    int i = 0;
    while (i < RM_LR_SCHEDULES && strcmp(schedules[i].name, schedule)) i++;
    return i < RM_LR_SCHEDULES && rm_has_word(schedules[i].settings, setting);
}

/* S of linear and cosine, D of poly. */
static int64_t decay_length(const rm_learning_rate *c) {
    if (c->decay_steps) return c->decay_steps;
    return c->steps - c->warmup_steps + (c->schedule == RM_LR_POLY);
}

/* ---- Checks ------------------------------------------------------------------------------------------------------ */

static bool is_rate(double x) { return isfinite(x) && x >= 0; }

static remat_status check_rates(const rm_learning_rate *c) {
    REQUIRE(is_rate(c->lr), INVALID, "{lr}=%g is not a learning rate; use a finite number that is 0 or more", c->lr);
    if (c->scale != RM_SCALE_NONE) {
        REQUIRE(isfinite(c->batch) && c->batch >= 1 && isfinite(c->base_batch) && c->base_batch >= 1, INVALID,
                "{scale}=%s cannot scale with a batch of %g and {base_batch}=%g; both must be 1 or more",
                scale_names[c->scale], c->batch, c->base_batch);
        REQUIRE(is_rate(rm_learning_rate_peak(c)), INVALID,
                "{lr}=%g scaled to a batch of %g is not finite; reduce one of them", c->lr, c->batch);
    }
    if (!rm_has_word(schedules[c->schedule].settings, "end_lr")) return REMAT_OK;
    REQUIRE(is_rate(c->end_lr), INVALID, "{end_lr}=%g is not a learning rate; use a finite number that is 0 or more",
            c->end_lr);
    REQUIRE(c->end_lr <= rm_learning_rate_peak(c), INVALID,
            "{end_lr}=%g is above the initial rate of {schedule}=%s, %g; reduce it, or raise {lr}", c->end_lr,
            schedules[c->schedule].name, rm_learning_rate_peak(c));
    REQUIRE(c->schedule != RM_LR_POLY || (isfinite(c->power) && c->power > 0), INVALID,
            "{power}=%g is not a power for {schedule}=poly; use a finite number above 0", c->power);
    return REMAT_OK;
}

static remat_status check_lengths(const rm_learning_rate *c) {
    REQUIRE(c->warmup_steps >= 0 && c->decay_steps >= 0, INVALID,
            "a warm-up of %lld updates and a decay over %lld are not possible; neither may be negative",
            (long long)c->warmup_steps, (long long)c->decay_steps);
    if (c->decay_steps) return REMAT_OK;
    REQUIRE(c->steps >= 1, INVALID, "a run of %lld updates is not possible; it needs at least one",
            (long long)c->steps);
    REQUIRE(c->warmup_steps <= c->steps, INVALID,
            "the warm-up takes %lld updates, but the whole run only %lld, so it would never end; reduce "
            "{warmup_steps}, or make the run longer",
            (long long)c->warmup_steps, (long long)c->steps);
    REQUIRE(!decays(c) || c->warmup_steps < c->steps, INVALID,
            "the warm-up takes all %lld updates of the run and leaves none for {schedule}=%s; make it shorter",
            (long long)c->steps, schedules[c->schedule].name);
    return REMAT_OK;
}

static remat_status check_cycles(const rm_learning_rate *c) {
    REQUIRE(c->schedule != RM_LR_RESTARTS || (c->decay_steps >= 1 && c->cycle_mult >= 1), INVALID,
            "{schedule}=restarts needs the length of the first cycle; set {decay_steps}=N");
    REQUIRE(c->schedule != RM_LR_EXPONENTIAL || c->decay_steps >= 1, INVALID,
            "{schedule}=exponential needs the updates between two drops; set {decay_steps}=N");
    if (c->schedule != RM_LR_ONE_CYCLE) return REMAT_OK;
    REQUIRE(!c->warmup_steps, INVALID,
            "{schedule}=one-cycle includes a warm-up of {pct_start} of the cycle; remove {warmup_steps}");
    REQUIRE(c->pct_start >= 0 && c->pct_start < 1 && c->div_factor >= 1 && c->final_div_factor >= 1, INVALID,
            "{pct_start}=%g, {div_factor}=%g and {final_div_factor}=%g are not possible; the first must be below 1, "
            "the others 1 or more",
            c->pct_start, c->div_factor, c->final_div_factor);
    return REMAT_OK;
}

static remat_status check_milestones(const rm_learning_rate *c) {
    bool drops = c->schedule == RM_LR_STEP || c->schedule == RM_LR_EXPONENTIAL;
    if (!drops && c->schedule != RM_LR_PLATEAU) return REMAT_OK;
    REQUIRE(isfinite(c->gamma) && c->gamma > 0, INVALID, "{gamma}=%g is not a factor; use a finite number above 0",
            c->gamma);
    REQUIRE(drops || c->gamma < 1, INVALID,
            "{gamma}=%g does not reduce the rate with {schedule}=plateau; use a factor below 1", c->gamma);
    if (c->schedule != RM_LR_STEP) return REMAT_OK;
    REQUIRE(c->n_milestones >= 1 && c->n_milestones <= RM_LR_MILESTONES, INVALID,
            "{schedule}=step cannot have %d milestones; give 1 to %d in {milestone}", c->n_milestones,
            RM_LR_MILESTONES);
    for (int i = 0; i < c->n_milestones; i++) {
        long long m = c->milestone[i], before = i ? c->milestone[i - 1] : 0;
        REQUIRE(m > before, INVALID,
                "milestone %d is update %lld, which is not after %s %lld; list them in ascending order", i + 1, m,
                i ? "the previous one," : "update", before);
        REQUIRE(m >= c->warmup_steps, INVALID,
                "milestone %d, update %lld, is within the warm-up of %lld updates; move one of them", i + 1, m,
                (long long)c->warmup_steps);
    }
    return REMAT_OK;
}

remat_status rm_learning_rate_check(const rm_learning_rate *c) {
    TRY(check_rates(c));
    TRY(check_lengths(c));
    TRY(check_cycles(c));
    return check_milestones(c);
}

/* ---- The rate of an update --------------------------------------------------------------------------------------- */

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

/* Half a cosine from one rate to another; `part` runs from 0 to 1. */
static double annealed(double from, double to, double part) { return to + (from - to) * (1 + cos(M_PI * part)) / 2; }

static double restarted(const rm_learning_rate *c, int64_t update, double eta) {
    int64_t s = update - c->warmup_steps - 1, length = c->decay_steps;
    if (c->cycle_mult == 1) s %= length;
    while (s >= length) {
        s -= length;
        if (__builtin_mul_overflow(length, c->cycle_mult, &length)) length = INT64_MAX;
    }
    return annealed(eta, c->end_lr, (double)s / (double)length);
}

static double in_one_cycle(const rm_learning_rate *c, int64_t update, double eta) {
    double total = (double)decay_length(c), s = (double)(update - 1), top = c->pct_start * total - 1, last = total - 1;
    double first = eta / c->div_factor, end = first / c->final_div_factor;
    if (s >= last) return end;
    return s <= top ? annealed(first, eta, top > 0 ? s / top : 1) : annealed(eta, end, (s - top) / (last - top));
}

static double reduced(const rm_learning_rate *c, double eta) {
    for (int64_t k = 0; k < c->reductions && eta > c->end_lr; k++) eta = fmax(eta * c->gamma, c->end_lr);
    return eta;
}

/* The update whose rate this one has. */
static int64_t held(const rm_learning_rate *c, int64_t update) {
    if (c->hold <= 1) return update;
    int64_t first = (update - 1) / c->hold * c->hold + 1, last = first + c->hold - 1;
    if (first > c->warmup_steps) return first;
    return last < c->warmup_steps ? last : c->warmup_steps;
}

double rm_learning_rate_at(const rm_learning_rate *c, int64_t update) {
    double eta = rm_learning_rate_peak(c);
    update = held(c, update);
    if (update < c->warmup_steps) return warm_up(c, update, eta);
    if (c->warmup_steps && update == c->warmup_steps) return eta; /* exactly, without rounding */
    if (c->schedule == RM_LR_STEP) return after_milestones(c, update, eta);
    if (c->schedule == RM_LR_RESTARTS) return restarted(c, update, eta);
    if (c->schedule == RM_LR_ONE_CYCLE) return in_one_cycle(c, update, eta);
    if (c->schedule == RM_LR_PLATEAU) return reduced(c, eta);
    if (c->schedule == RM_LR_EXPONENTIAL)
        return eta * pow(c->gamma, (double)((update - c->warmup_steps - 1) / c->decay_steps));
    return decays(c) ? decayed(c, update, eta) : eta;
}
