/* test_learning_rate.c: rates compared with PyTorch's schedulers and MLPerf's formula (learning_rates.h), and with a
 * reference that steps from update to update instead of evaluating a formula; inconsistent settings are refused. */
#include "dist/large_batch/learning_rate.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/dist/learning_rates.h"
#include "tests/suite.h"
enum { GOLDEN = sizeof golden / sizeof golden[0] };

static void check(const rm_learning_rate *c) { ck_assert_msg(!rm_learning_rate_check(c), "%s", remat_last_error()); }

static void close_to(double rate, double expected, double largest, const char *what, int64_t update) {
    ck_assert_msg(fabs(rate - expected) <= 1e-14 * largest, "%s, update %lld: %.17g, not %.17g", what,
                  (long long)update, rate, expected);
}

START_TEST(rates_match_pytorch_and_mlperf) {
    const rm_learning_rate *c = &golden[_i].config;
    check(c);
    for (int t = 1; t <= 12; t++)
        close_to(rm_learning_rate_at(c, t), golden[_i].rate[t - 1], rm_learning_rate_peak(c), golden[_i].name, t);
}
END_TEST

/* ---- The reference: from one update to the next, in long double -------------------------------------------------- */

typedef struct {
    long double lr, re, im; /* the current rate; cosine: a point that moves on a circle */
    int64_t done;           /* updates of the decay so far */
} walker;

static long double peak_of(const rm_learning_rate *c) {
    long double k = (long double)c->batch / c->base_batch;
    if (c->scale == RM_SCALE_NONE) return c->lr;
    return c->lr * (c->scale == RM_SCALE_LINEAR ? k : sqrtl(k));
}

static void step_of_decay(const rm_learning_rate *c, walker *w, int64_t update, long double eta) {
    bool poly = c->schedule == RM_LR_POLY;
    int64_t length = c->decay_steps ? c->decay_steps : c->steps - c->warmup_steps + (poly ? 1 : 0);
    long double end = c->end_lr, angle = acosl(-1) / length;
    if (w->done > length) return;
    if (w->done > 0 && c->schedule == RM_LR_LINEAR) w->lr -= (eta - end) / length;
    if (w->done > 0 && c->schedule == RM_LR_COSINE) {
        long double re = w->re * cosl(angle) - w->im * sinl(angle);
        w->im = w->re * sinl(angle) + w->im * cosl(angle);
        w->re = re;
        w->lr = end + (eta - end) * (1 + w->re) / 2;
    }
    if (poly) {
        long double left = (long double)(length - w->done - 1) / length;
        w->lr = w->done < length && left > 0 ? end + (eta - end) * expl(c->power * logl(left)) : end;
    }
    for (int m = 0; c->schedule == RM_LR_STEP && m < c->n_milestones; m++)
        if (c->milestone[m] + 1 == update) w->lr *= c->gamma;
    if (c->schedule != RM_LR_STEP && c->schedule != RM_LR_CONSTANT) w->done++;
}

static void walk(const rm_learning_rate *c, int64_t updates) {
    long double eta = peak_of(c), from = c->scale != RM_SCALE_NONE && eta > c->lr ? c->lr : 0;
    walker w = {.lr = c->warmup_steps ? from : eta, .re = 1};
    for (int64_t t = 1; t <= updates; t++) {
        if (t <= c->warmup_steps)
            w.lr += (eta - from) / c->warmup_steps;
        else
            step_of_decay(c, &w, t, eta);
        double rate = rm_learning_rate_at(c, t);
        ck_assert_msg(fabsl(rate - w.lr) <= 1e-13L * eta, "%s after %lld, update %lld: %.17g, not %.17Lg",
                      rm_lr_schedule_name(c->schedule), (long long)c->warmup_steps, (long long)t, rate, w.lr);
    }
}

static uint64_t drawn = 1;
static int64_t draw(int64_t low, int64_t high) {
    drawn = drawn * 6364136223846793005u + 1442695040888963407u;
    return low + (int64_t)((drawn >> 33) % (uint64_t)(high - low + 1));
}

static rm_learning_rate random_config(void) {
    rm_learning_rate c = {.schedule = (rm_lr_schedule)draw(0, RM_LR_POLY),
                          .scale = (rm_lr_scale)draw(0, RM_LR_SCALES - 1),
                          .lr = (double)draw(1, 1000) / 128,
                          .power = (double)draw(1, 12) / 4,
                          .gamma = (double)draw(1, 12) / 8,
                          .batch = (double)draw(1, 70000),
                          .base_batch = (double)draw(1, 512),
                          .steps = draw(2, 200)};
    c.warmup_steps = draw(0, 1) * draw(0, c.steps - 1);
    c.decay_steps = draw(0, 1) * draw(1, 250);
    c.end_lr = rm_learning_rate_peak(&c) * (double)draw(0, 4) / 4;
    for (int64_t at = c.warmup_steps; c.n_milestones < RM_LR_MILESTONES && (c.n_milestones == 0 || draw(0, 3));)
        c.milestone[c.n_milestones++] = at += draw(1, 20);
    return c;
}

START_TEST(rates_match_the_reference) {
    for (int i = 0; i < 2000; i++) {
        rm_learning_rate c = random_config();
        check(&c);
        walk(&c, 320);
    }
}
END_TEST

/* ---- Guarantees -------------------------------------------------------------------------------------------------- */

START_TEST(peak_is_reached_exactly) {
    for (int i = 0; i < 500; i++) {
        rm_learning_rate c = random_config();
        double before = c.warmup_steps ? rm_learning_rate_at(&c, c.warmup_steps) : rm_learning_rate_peak(&c);
        ck_assert_double_eq(before, rm_learning_rate_peak(&c));
        ck_assert_double_ge(rm_learning_rate_at(&c, 1), 0);
    }
}
END_TEST

START_TEST(no_update_has_a_rate_of_zero) { /* with an end of 0, no update has the rate 0 */
    for (int schedule = RM_LR_CONSTANT; schedule <= RM_LR_POLY; schedule++)
        for (int64_t warmup = 0; warmup < 10; warmup++) {
            rm_learning_rate c = {.schedule = (rm_lr_schedule)schedule,
                                  .lr = 1,
                                  .power = 2,
                                  .gamma = 0.5,
                                  .steps = 10,
                                  .warmup_steps = warmup,
                                  .milestone = {9},
                                  .n_milestones = 1};
            check(&c);
            for (int64_t t = 1; t <= 10; t++) ck_assert_double_gt(rm_learning_rate_at(&c, t), 0);
        }
}
END_TEST

START_TEST(rate_stays_constant_after_the_end) {
    for (int schedule = RM_LR_LINEAR; schedule <= RM_LR_POLY; schedule++) {
        rm_learning_rate c = {
            .schedule = (rm_lr_schedule)schedule, .lr = 1, .end_lr = 0.25, .power = 2, .steps = 10, .warmup_steps = 3};
        static const int64_t late[] = {12, 1000, INT64_MAX};
        for (int i = 0; i < 3; i++) ck_assert_double_eq(rm_learning_rate_at(&c, late[i]), 0.25);
    }
}
END_TEST

/* A cycle that begins far beyond any real run, with lengths that double as long as possible. */
START_TEST(late_restarts_are_computed_quickly) {
    rm_learning_rate c = {
        .schedule = RM_LR_RESTARTS, .lr = 1, .decay_steps = 7, .cycle_mult = 2, .warmup_steps = 2, .steps = 10};
    check(&c);
    for (int64_t begin = 3, length = 7; length < (int64_t)1 << 60; begin += length, length *= 2)
        ck_assert_double_eq(rm_learning_rate_at(&c, begin), 1);
    ck_assert_double_ge(rm_learning_rate_at(&c, INT64_MAX), 0);
}
END_TEST

/* For batches smaller than the base, the warm-up starts at 0, since a warm-up from lr would decrease. */
START_TEST(warm_up_rises_for_scaled_down_rates) {
    rm_learning_rate c = {
        .scale = RM_SCALE_LINEAR, .lr = 1, .batch = 64, .base_batch = 256, .steps = 10, .warmup_steps = 5};
    check(&c);
    for (int t = 1; t <= 5; t++) close_to(rm_learning_rate_at(&c, t), 0.25 * t / 5, 0.25, "scaled down", t);
}
END_TEST

/* ---- Refusals ---------------------------------------------------------------------------------------------------- */

static const struct {
    rm_learning_rate config;
    const char *why;
} refused[] = {
    {{.lr = -1, .steps = 9}, "lr=-1"},
    {{.lr = NAN, .steps = 9}, "lr=nan"},
    {{.lr = INFINITY, .steps = 9}, "lr=inf"},
    {{.lr = 1, .steps = 9, .scale = RM_SCALE_LINEAR, .batch = 64}, "base_batch=0"},
    {{.lr = 1, .steps = 9, .scale = RM_SCALE_SQRT, .batch = NAN, .base_batch = 32}, "batch of nan"},
    {{.lr = 1e300, .steps = 9, .scale = RM_SCALE_LINEAR, .batch = 1e12, .base_batch = 32}, "not finite"},
    {{.lr = 1, .steps = 9, .schedule = RM_LR_COSINE, .end_lr = -1}, "end_lr=-1"},
    {{.lr = 1, .steps = 9, .schedule = RM_LR_COSINE, .end_lr = NAN}, "end_lr=nan"},
    {{.lr = 1, .steps = 9, .schedule = RM_LR_LINEAR, .end_lr = 2}, "above"},
    {{.lr = 1, .steps = 9, .schedule = RM_LR_POLY, .power = 0}, "power=0"},
    {{.lr = 1, .steps = 9, .schedule = RM_LR_POLY, .power = NAN}, "power=nan"},
    {{.lr = 1, .steps = 9, .warmup_steps = -1}, "negative"},
    {{.lr = 1, .steps = 9, .decay_steps = -1}, "negative"},
    {{.lr = 1, .steps = 0}, "at least one"},
    {{.lr = 1, .steps = 100, .warmup_steps = 101}, "the warm-up takes 101 updates"},
    {{.lr = 1, .steps = 9, .warmup_steps = 9, .schedule = RM_LR_LINEAR}, "leaves none for schedule=linear"},
    {{.lr = 1, .steps = 9, .schedule = RM_LR_STEP, .gamma = 0, .milestone = {3}, .n_milestones = 1}, "gamma=0"},
    {{.lr = 1, .steps = 9, .schedule = RM_LR_STEP, .gamma = 0.1}, "0 milestones"},
    {{.lr = 1, .steps = 9, .schedule = RM_LR_STEP, .gamma = 0.1, .n_milestones = 17}, "17 milestones"},
    {{.lr = 1, .steps = 9, .schedule = RM_LR_STEP, .gamma = 0.1, .milestone = {6, 3}, .n_milestones = 2},
     "milestone 2 is update 3"},
    {{.lr = 1, .steps = 9, .schedule = RM_LR_STEP, .gamma = 0.1, .milestone = {0, 3}, .n_milestones = 2},
     "milestone 1 is update 0"},
    {{.lr = 1,
      .steps = 9,
      .schedule = RM_LR_STEP,
      .gamma = 0.1,
      .warmup_steps = 4,
      .milestone = {3},
      .n_milestones = 1},
     "within the warm-up"},
    {{.lr = 1, .steps = 9, .schedule = RM_LR_RESTARTS, .cycle_mult = 1}, "decay_steps=N"},
    {{.lr = 1, .steps = 9, .schedule = RM_LR_RESTARTS, .decay_steps = 3, .cycle_mult = 1, .end_lr = 2}, "above"},
    {{.lr = 1, .steps = 9, .schedule = RM_LR_ONE_CYCLE, .warmup_steps = 3}, "pct_start"},
    {{.lr = 1, .steps = 9, .schedule = RM_LR_ONE_CYCLE, .pct_start = 1, .div_factor = 1, .final_div_factor = 1},
     "below 1"},
    {{.lr = 1, .steps = 9, .schedule = RM_LR_PLATEAU, .gamma = 1}, "below 1"},
};
enum { REFUSED = sizeof refused / sizeof refused[0] };

START_TEST(impossible_configs_are_refused) {
    ck_assert_int_eq(rm_learning_rate_check(&refused[_i].config), REMAT_INVALID);
    ck_assert_msg(strstr(remat_last_error(), refused[_i].why) != NULL, "\"%s\" does not say \"%s\"", remat_last_error(),
                  refused[_i].why);
}
END_TEST

/* Values at the limits are accepted, and values that a schedule does not read are ignored. */
START_TEST(valid_configs_are_accepted) {
    const rm_learning_rate fine[] = {
        {.lr = 0, .steps = 1},
        {.lr = 0.1, .steps = 100, .warmup_steps = 100},
        {.lr = 0.1, .warmup_steps = 100, .schedule = RM_LR_POLY, .power = 2, .decay_steps = 50},
        {.lr = 0.1, .steps = 100, .warmup_steps = 99, .schedule = RM_LR_COSINE, .end_lr = 0.1},
        {.lr = 0.1, .steps = 9, .end_lr = 7, .power = NAN, .gamma = NAN, .base_batch = NAN},
        {.lr = 1,
         .steps = 9,
         .schedule = RM_LR_STEP,
         .gamma = 2,
         .milestone = {4},
         .n_milestones = 1,
         .warmup_steps = 4},
    };
    for (size_t i = 0; i < sizeof fine / sizeof *fine; i++) check(&fine[i]);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("learning_rate");
    tcase_add_loop_test(tests, rates_match_pytorch_and_mlperf, 0, GOLDEN);
    tcase_add_test(tests, rates_match_the_reference);
    tcase_add_test(tests, peak_is_reached_exactly);
    tcase_add_test(tests, no_update_has_a_rate_of_zero);
    tcase_add_test(tests, rate_stays_constant_after_the_end);
    tcase_add_test(tests, late_restarts_are_computed_quickly);
    tcase_add_test(tests, warm_up_rises_for_scaled_down_rates);
    tcase_add_loop_test(tests, impossible_configs_are_refused, 0, REFUSED);
    tcase_add_test(tests, valid_configs_are_accepted);
    return run_cases("learning_rate", tests);
}
