/* test_lr_schedule.c: from flags to learning rates: epochs and milestones, the batch of all ranks, presets with
 * additional flags, and flags without effect. tests/dist/test_learning_rate.c tests the rates. */
#include "train/flags/lr_schedule.h"

#include <math.h>

#include "tests/train/train_test.h"
#include "train/flags/presets.h"

static rm_options o;

static remat_status parse(const char *line) {
    static char copy[1024];
    static char *argv[32];
    int argc = 0;
    rm_options_free(&o);
    strcpy(copy, line);
    for (char *word = strtok(copy, " "); word; word = strtok(NULL, " ")) argv[argc++] = word;
    return rm_options_parse(&o, RM_TRAIN, argc, argv);
}

static remat_status make(const char *line, rm_lr_schedule_facts facts, rm_learning_rate *rate) {
    TRY(parse(line));
    return rm_lr_schedule_make(&o, &facts, rate);
}

static const rm_lr_schedule_facts facts = {.batch = 1024, .per_epoch = 30, .steps = 600};

START_TEST(without_flags_the_rate_is_constant) {
    static const struct {
        const char *line;
        double lr;
    } lines[] = {{"--lr=0.5", 0.5},       {"--optimizer=sgd", 0.1},   {"--optimizer=adam", 1e-3},
                 {"--optimizer=lars", 1}, {"--optimizer=lamb", 1e-3}, {"--optimizer=lars --lr=0", 0}};
    char text[RM_LR_SCHEDULE_TEXT];
    rm_learning_rate rate;
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        ck_ok(make(lines[i].line, facts, &rate));
        ck_assert_double_eq(rm_learning_rate_at(&rate, 1), lines[i].lr);
        ck_assert_double_eq(rm_learning_rate_at(&rate, 600), lines[i].lr);
        ck_assert_str_eq(rm_lr_schedule_text(&rate, text), "");
    }
    rm_options_free(&o);
}
END_TEST

START_TEST(epochs_become_updates) {
    rm_learning_rate rate;
    ck_ok(make("--warmup-epochs=2.5", facts, &rate));
    ck_assert_int_eq(rate.warmup_steps, 75);
    ck_ok(make("--warmup-steps=7", facts, &rate));
    ck_assert_int_eq(rate.warmup_steps, 7);
    ck_ok(make("--lr-schedule=step --milestones=100,10e,12.5e,500", facts, &rate));
    ck_assert_int_eq(rate.n_milestones, 4);
    static const int64_t expected[] = {100, 300, 375, 500};
    ck_assert_mem_eq(rate.milestone, expected, sizeof expected);
    rm_options_free(&o);
}
END_TEST

START_TEST(rate_scales_with_the_global_batch) {
    rm_learning_rate rate;
    char text[RM_LR_SCHEDULE_TEXT];
    ck_ok(make("--lr=0.05 --scale-lr=linear --base-batch=16 --warmup-steps=20 --lr-schedule=cosine", facts, &rate));
    ck_assert_double_eq(rm_learning_rate_peak(&rate), 0.05 * 64);
    ck_assert_str_eq(
        rm_lr_schedule_text(&rate, text),
        "learning rate: 3.2 = 0.05 x 64 (linear; batch 1024 against 16), after a warm-up of 20 updates; then "
        "cosine to 0 after update 600");
    ck_ok(make("--lr=0.05 --scale-lr=sqrt --base-batch=16", facts, &rate));
    ck_assert_double_eq(rm_learning_rate_peak(&rate), 0.05 * 8);
    ck_ok(make("--lr=1 --lr-schedule=step --milestones=30,60", facts, &rate));
    ck_assert_str_eq(rm_lr_schedule_text(&rate, text), "learning rate: 1; falls after update 30, 60, to 0.01");
    rm_options_free(&o);
}
END_TEST

static const struct {
    const char *line, *part;
} wrong[] = {
    {"--power=3", "--power|--lr-schedule=constant|--lr-schedule=poly"},
    {"--power=3 --lr-schedule=cosine", "--lr-schedule=poly"},
    {"--end-lr=0.1", "--lr-schedule=linear, cosine, poly, restarts or plateau"},
    {"--end-lr=0.1 --lr-schedule=step --milestones=3", "--lr-schedule=linear, cosine, poly, restarts or plateau"},
    {"--decay-steps=9", "--decay-steps"},
    {"--gamma=0.5", "--lr-schedule=step"},
    {"--milestones=3,6", "--lr-schedule=step"},
    {"--base-batch=32", "--scale-lr"},
    {"--lr-schedule=step", "--milestones="},
    {"--warmup-steps=3 --warmup-epochs=1", "--warmup-steps|--warmup-epochs"},
    {"--momentum-correction --optimizer=sgd", "--optimizer=lars"},
    {"--preset=mlperf-resnet-4095", "N = 1632, 3264"},
    {"--preset=imagenet", "preset|imagenet"},
    {"--lr-schedule=step --milestones=3,", "number"},
    {"--lr-schedule=step --milestones=3.5", "3.5|number"},
    {"--lr-schedule=step --milestones=1e20", "1e20|number"},
    {"--lr-schedule=step --milestones=0x10", "0x10|number"},
    {"--lr-schedule=step --milestones=30e5", "30e5|number"},
    {"--lr-schedule=step --milestones=9999999999999999999", "--milestones|9999999999999999999"},
    {"--lr-schedule=step --milestones=3x", "'3x'"},
    {"--lr-schedule=step --milestones=nan", "'nan'"},
    {"--lr-schedule=step --milestones=1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17", "16"},
    {"--lr-schedule=step --milestones=5,4", "milestone|2|4"},
    {"--warmup-epochs=21", "warm-up|630 updates"},
    {"--warmup-epochs=20 --lr-schedule=poly", "warm-up|none"},
    {"--label-smoothing=2", "0|1"},
};
enum { WRONG = sizeof wrong / sizeof wrong[0] };

START_TEST(invalid_schedules_are_refused) {
    rm_learning_rate rate;
    ck_fails(make(wrong[_i].line, facts, &rate), REMAT_INVALID, wrong[_i].part);
    rm_options_free(&o);
}
END_TEST

/* ---- Presets ---------------------------------------------------------------------------------------------------- */

START_TEST(preset_sets_the_flags_of_its_row) {
    rm_learning_rate rate;
    ck_ok(parse("--preset=mlperf-resnet-49152"));
    ck_ok(rm_preset_share_batch(&o));
    ck_assert_str_eq(o.session.optimizer, "lars");
    ck_assert(o.session.momentum == 0.951807 && o.session.weight_decay == 1e-4 &&
              o.session.trust_coefficient == 0.001 && o.order.batch == 49152);
    ck_ok(rm_lr_schedule_make(&o, &(rm_lr_schedule_facts){49152, 26, 1900}, &rate)); /* ImageNet: 26 updates an epoch */
    ck_assert_int_eq(rate.warmup_steps, 24 * 26);
    /* MLPerf's: s of D after the warm-up */
    for (int64_t t = 1; t <= 3000; t++) {
        double s = fmin((double)(t - 624), 1846), left = 1 - s / 1846;
        double expected = t <= 624 ? 19.405 * (double)t / 624 : 1e-4 + (19.405 - 1e-4) * left * left;
        double found = rm_learning_rate_at(&rate, t);
        ck_assert_msg(fabs(found - expected) <= 1e-13 * 19.405, "%lld: %.17g, not %.17g", (long long)t, found,
                      expected);
    }
    rm_options_free(&o);
}
END_TEST

START_TEST(flags_override_a_preset) {
    ck_ok(parse("--preset=mlperf-resnet-8192 --lr=3 --warmup-steps=10 --momentum=0.5"));
    ck_assert(o.rate.lr == 3 && o.rate.warmup_steps == 10 && o.warmup_epochs == 0 && o.session.momentum == 0.5 &&
              o.rate.decay_steps == 6095);
    ck_assert(rm_options_given(&o, "decay-steps") &&
              !rm_options_given(&o, "warmup-epochs")); /* a training state keeps both */
    const char *file = make_file("f.conf", "lr = 4\npreset = mlperf-resnet-8192\n", 34);
    char line[300];
    snprintf(line, sizeof line, "--config=%s", file);
    ck_ok(parse(line));
    ck_assert(o.rate.lr == 4 && o.session.momentum == 0.9);
    rm_options_free(&o);
}
END_TEST

/* Every row is repeated here, so that a wrong digit in the table fails the test. */
START_TEST(presets_match_mlperf) {
    static const struct {
        int batch;
        double lr;
        int warmup;
        double momentum, decay;
        int steps;
    } rows[] = {{1632, 7.4, 2, .9, 5e-5, 27476},          {3264, 10.5, 2, .9, 5e-5, 14523},
                {4096, 10, 5, .9, 2e-4, 13137},           {8192, 17, 5, .9, 2e-4, 6095},
                {13056, 12.8, 9, .9, 2.5e-5, 4710},       {32768, 21.2, 16, .94, 2.5e-5, 2267},
                {49152, 19.405, 24, .951807, 1e-4, 1846}, {58880, 23.246, 29, .951807, 1e-4, 1785},
                {65536, 24.699, 31, .951807, 1e-4, 1133}, {67840, 24.699, 31, .951807, 1e-4, 1133}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char line[64];
        snprintf(line, sizeof line, "--preset=mlperf-resnet-%d", rows[i].batch);
        ck_ok(parse(line));
        ck_assert(o.rate.lr == rows[i].lr && o.warmup_epochs == rows[i].warmup &&
                  o.session.momentum == rows[i].momentum);
        ck_assert(o.session.weight_decay == rows[i].decay && o.rate.decay_steps == rows[i].steps &&
                  o.rate.base_batch == rows[i].batch);
        ck_assert(o.rate.power == 2 && o.rate.end_lr == 1e-4);
        ck_assert_int_eq(o.rate.schedule, RM_LR_POLY);
    }
    rm_options_free(&o);
}
END_TEST

static remat_status share(const char *line, int64_t ranks) {
    TRY(parse(line));
    o.world_size = ranks;
    return rm_preset_share_batch(&o);
}

START_TEST(a_preset_is_for_one_global_batch) {
    ck_ok(share("--preset=mlperf-resnet-8192", 16));
    ck_assert_int_eq(o.order.batch, 512);
    ck_ok(share("--preset=mlperf-resnet-8192 --accumulate-steps=4", -1));
    ck_assert_int_eq(o.order.batch, 2048);
    ck_ok(share("--preset=mlperf-resnet-8192 --batch=128 --accumulate-steps=4", 16));
    ck_fails(share("--preset=mlperf-resnet-8192 --batch=64", 16), REMAT_INVALID,
             "1024|--batch=64|16 ranks|--batch=512|--accumulate-steps=8");
    ck_fails(share("--preset=mlperf-resnet-8192 --batch=1000", 16), REMAT_INVALID, "--batch=512|--scale-lr");
    ck_fails(share("--preset=mlperf-resnet-8192", 3), REMAT_INVALID, "3 ranks");
    ck_ok(share("--preset=mlperf-resnet-8192 --batch=64 --scale-lr=linear", 16));
    rm_learning_rate rate;
    ck_ok(rm_lr_schedule_make(&o, &(rm_lr_schedule_facts){1024, 1251, 20000}, &rate));
    ck_assert_double_eq(rm_learning_rate_peak(&rate), 17.0 / 8);
    rm_options_free(&o);
}
END_TEST

/* ---- The program ------------------------------------------------------------------------------------------------ */

#define SMALL "--model=rnn --layers=1 --hidden=8 --seq-len=20 --batch=4 --threads=1 "

static double loss_in(const char *metrics, const char *event) {
    static char line[4096];
    double loss = NAN;
    FILE *file = fopen(metrics, "r");
    ck_assert_ptr_nonnull(file);
    while (fgets(line, sizeof line, file))
        if (strstr(line, event)) loss = strtod(strstr(line, "\"loss\":") + 7, NULL);
    fclose(file);
    return loss;
}

/* A training state saves only the number of updates, and the previous rate for momentum correction. */
START_TEST(resumed_run_has_the_same_rates) {
    static const char flags[] =
        SMALL "--optimizer=lars --momentum=0.9 --momentum-correction --lr=2 --weight-decay=1e-3 "
              "--warmup-steps=3 --lr-schedule=poly --decay-steps=9 --label-smoothing=0.1";
    const char *text = make_text("text", 3000), *once = in_scratch("a.jsonl"), *twice = in_scratch("b.jsonl");
    ck_runs("train --data=%s %s --steps=10 --metrics=%s", text, flags, once);
    ck_runs("train --data=%s %s --steps=4 --save=%s", text, flags, in_scratch("st"));
    ck_runs("train --resume=%s --steps=10 --metrics=%s", in_scratch("st"), twice);
    ck_assert_double_eq(loss_in(once, "\"step\":10,"), loss_in(twice, "\"step\":10,"));
    ck_assert_double_eq(loss_in(once, "\"step\":5,"), loss_in(twice, "\"step\":5,"));
}
END_TEST

START_TEST(layerwise_optimizers_train) {
    static const char *const flags[] = {
        "--optimizer=lars --momentum=0.9 --lr=2", "--optimizer=lamb --lr=0.02",
        "--optimizer=lamb --lr=0.02 --adapt-vectors --decay-vectors --weight-decay=0.01"};
    const char *text = make_text("text", 3000);
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        const char *metrics = in_scratch("m.jsonl");
        unlink(metrics);
        ck_runs("train --data=%s " SMALL "--steps=60 %s --metrics=%s", text, flags[i], metrics);
        double first = loss_in(metrics, "\"step\":1,"), last = loss_in(metrics, "\"event\":\"end\"");
        ck_assert_msg(last < 0.8 * first, "%s: the loss goes from %g to %g only", flags[i], first, last);
    }
}
END_TEST

/* examples/large_batch in short: with 64 times the learning rate of a batch of 4, a batch of 256 diverges within 30
 * updates. With a warm-up it reaches this rate, and holds it for a while, with a finite loss. */
START_TEST(warm_up_prevents_divergence) {
    static const char flags[] =
        "--task=adding --seq-len=20 --samples=20000 --model=gru --layers=1 --hidden=32 --threads=1 "
        "--optimizer=sgd --momentum=0.9 --lr=0.0075 --batch=256 --scale-lr=linear --base-batch=4";
    ck_refuses(1, "diverged", "train %s --steps=60", flags);
    ck_runs("train %s --steps=420 --warmup-steps=390 --eval-every=420", flags);
}
END_TEST

/* The training loss is smoothed, the evaluation loss is not. With a learning rate of 0 they can be compared. */
START_TEST(evaluation_reports_the_plain_loss) {
    const char *text = make_text("text", 3000), *plain = in_scratch("p.jsonl"), *smoothed = in_scratch("s.jsonl");
    ck_runs("train --data=%s --eval-data=%s " SMALL "--steps=1 --lr=0 --metrics=%s", text, text, plain);
    ck_runs("train --data=%s --eval-data=%s " SMALL "--steps=1 --lr=0 --metrics=%s --label-smoothing=0.5", text, text,
            smoothed);
    ck_assert_double_eq(loss_in(plain, "\"event\":\"eval\""), loss_in(smoothed, "\"event\":\"eval\""));
    ck_assert_double_ne(loss_in(plain, "\"event\":\"step\""), loss_in(smoothed, "\"event\":\"step\""));
    ck_refuses(2, "--label-smoothing|--task=adding|classify", "train --task=adding --seq-len=20 --samples=64 --label-smoothing=0.1 --steps=1");
}
END_TEST

START_TEST(presets_are_listed) {
    ck_runs("train --preset=list");
    ck_runs("plan --preset=list");
    ck_runs("plan --task=adding --samples=1024 --batch=64 --epochs=10 --lr=0.01 --scale-lr=linear --base-batch=4 "
            "--warmup-epochs=2");
    ck_says_all(program_output, "learning rate: 0.16 = 0.01 x 16 (linear; batch 64 against 4), after a "
                                "warm-up of 32 updates\n");
    ck_refuses(2, "--batch=8192", "train --data=%s --preset=mlperf-resnet-8192 --batch=3 --steps=3",
               make_text("text", 3000));
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("schedule");
    tcase_add_test(tests, without_flags_the_rate_is_constant);
    tcase_add_test(tests, epochs_become_updates);
    tcase_add_test(tests, rate_scales_with_the_global_batch);
    tcase_add_loop_test(tests, invalid_schedules_are_refused, 0, WRONG);
    tcase_add_test(tests, preset_sets_the_flags_of_its_row);
    tcase_add_test(tests, flags_override_a_preset);
    tcase_add_test(tests, presets_match_mlperf);
    tcase_add_test(tests, a_preset_is_for_one_global_batch);
    tcase_add_test(tests, resumed_run_has_the_same_rates);
    tcase_add_test(tests, layerwise_optimizers_train);
    tcase_add_test(tests, warm_up_prevents_divergence);
    tcase_add_test(tests, evaluation_reports_the_plain_loss);
    tcase_add_test(tests, presets_are_listed);
    return run_suite("schedule", tests);
}
