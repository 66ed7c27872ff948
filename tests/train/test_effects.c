/* test_effects.c: every setting of every optimizer, group and schedule changes the trained parameters, or is refused.
 * None is silently ignored. */
#include "train/flags/lr_schedule.h"
#include "train/flags/options.h"
#include "train/run/setup.h"

#include "tests/train/train_test.h"

static rm_options o;

/* Parses flags, split at spaces, as the program does. */
static remat_status take(const char *line) {
    static char copy[1024];
    static char *argv[32];
    int argc = 0;
    rm_options_free(&o);
    snprintf(copy, sizeof copy, "%s", line);
    for (char *word = strtok(copy, " "); word; word = strtok(NULL, " ")) argv[argc++] = word;
    TRY(rm_options_parse(&o, RM_TRAIN, argc, argv));
    return rm_options_check(&o, RM_TRAIN);
}

static void expect_refusal(const char *line) {
    static const char *const words[] = {"has no effect", "has no other warm-up", "one-cycle", "cannot be combined"};
    bool said = false;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) said |= strstr(remat_last_error(), words[i]) != NULL;
    ck_assert_msg(said, "%s: %s", line, remat_last_error());
}

/* ---- Optimizers and groups -------------------------------------------------------------------------------------- */

enum { B = 6, C = 5, K = 4, UPDATES = 3 };

typedef struct {
    float weight[K * C], bias[K];
} outcome;

/* Trains a linear layer for some updates with changing learning rates. */
static outcome train(void) {
    static const double rates[UPDATES] = {0.1, 0.05, 0.2};
    outcome out;
    remat_graph *g;
    remat_session *s;
    ck_ok(remat_graph_create(&g));
    remat_value x = remat_input(g, "x", REMAT_F32, REMAT_STATIC, 2, (int64_t[]){B, C});
    remat_value t = remat_input(g, "t", REMAT_I32, REMAT_STATIC, 1, (int64_t[]){B});
    remat_value w = remat_param(g, "weight", 2, (int64_t[]){K, C}, remat_init_uniform(0.5));
    remat_value b = remat_param(g, "bias", 1, (int64_t[]){K}, remat_init_uniform(0.5));
    remat_config config = rm_setup_training_config(&o);
    config.threads = 1;
    ck_ok(remat_session_create(g, remat_softmax_cross_entropy(g, remat_linear(g, x, w, b), t), &config, &s));
    float data[B * C];
    int32_t target[B];
    for (int i = 0; i < B * C; i++) data[i] = (float)(i * 7 % 11 - 5) / 4;
    for (int i = 0; i < B; i++) target[i] = i * 3 % K;
    ck_ok(remat_write(s, REMAT_INPUT, 0, data, sizeof data));
    ck_ok(remat_write(s, REMAT_INPUT, 1, target, sizeof target));
    for (int i = 0; i < UPDATES; i++) ck_ok(remat_step(s, rates[i], NULL));
    ck_ok(remat_read(s, REMAT_PARAM, 0, out.weight, sizeof out.weight));
    ck_ok(remat_read(s, REMAT_PARAM, 1, out.bias, sizeof out.bias));
    remat_session_free(s);
    remat_graph_free(g);
    return out;
}

static const char *const optimizers[] = {"sgd", "adam", "adamw", "rmsprop", "adagrad", "adadelta", "lars", "lamb"};
enum { OPTIMIZERS = sizeof optimizers / sizeof *optimizers };

/* A setting, and others that it needs. */
static const struct {
    const char *setting, *beside, *for_optimizers; /* the optimizers that support it */
} settings[] = {{"--momentum=0.9", "", "sgd rmsprop lars"},
                {"--nesterov", "--momentum=0.9", "sgd lars"},
                {"--nesterov", "", ""},
                {"--beta1=0.5", "", "adam adamw lamb"},
                {"--beta2=0.5", "", "adam adamw lamb"},
                {"--alpha=0.5", "", "rmsprop adadelta"},
                {"--eps=0.5", "", "adam adamw rmsprop adagrad adadelta lars lamb"},
                {"--weight-decay=0.1", "", "sgd adam adamw rmsprop adagrad adadelta lars lamb"},
                {"--clip-grad-norm=0.01", "", "sgd adam adamw rmsprop adagrad adadelta lars lamb"},
                {"--clip-grad-value=0.01", "", "sgd adam adamw rmsprop adagrad adadelta"},
                {"--clip-grad-value=0.01", "--clip-grad-norm=0.01", ""},
                {"--trust-coefficient=0.1", "", "lars"},
                {"--momentum-correction", "--momentum=0.9", "lars"},
                {"--momentum-correction", "", ""},
                {"--adapt-vectors", "", "lars lamb"},
                {"--decay-vectors", "--weight-decay=0.1", "lars lamb"},
                {"--decay-vectors", "--weight-decay=0.1 --adapt-vectors", "lars lamb"},
                {"--decay-vectors", "", ""},
                {"--decay-vectors", "--groups=bias:weight_decay=0.3", ""},
                {"--norm-limit=0.01", "", "lamb"}};

static bool is_for(const char *list, const char *optimizer) {
    const char *at = strstr(list, optimizer);
    size_t n = strlen(optimizer);
    return at && (at[n] == ' ' || !at[n] || (at = strstr(at + 1, optimizer)) != NULL);
}

START_TEST(optimizer_settings_change_parameters_or_are_refused) {
    const char *optimizer = optimizers[_i];
    char line[256];
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        snprintf(line, sizeof line, "--optimizer=%s %s %s", optimizer, settings[i].beside, settings[i].setting);
        remat_status status = take(line);
        ck_assert_msg(!status == is_for(settings[i].for_optimizers, optimizer), "%s: status %d", line, (int)status);
        if (status) {
            expect_refusal(line);
            continue;
        }
        const outcome with = train();
        snprintf(line, sizeof line, "--optimizer=%s %s", optimizer, settings[i].beside);
        ck_ok(take(line));
        const outcome without = train();
        ck_assert_msg(memcmp(&with, &without, sizeof with), "%s: %s changes nothing", line, settings[i].setting);
    }
    rm_options_free(&o);
}
END_TEST

/* Groups of matrices and of vectors, with all other flags that affect them. */
START_TEST(groups_change_their_parameters) {
    static const char *const beside[] = {"", "--weight-decay=0.1", "--adapt-vectors",
                                         "--adapt-vectors --weight-decay=0.1",
                                         "--adapt-vectors --weight-decay=0.1 --decay-vectors"};
    static const char *const members[] = {"lr=0.5", "lr=0", "weight_decay=0.3"};
    bool layerwise = _i >= 6;
    char line[256];
    for (int b = 0; b < (layerwise ? 5 : 2); b++)
        for (int m = 0; m < 3; m++)
            for (int of_bias = 0; of_bias < 2; of_bias++) {
                snprintf(line, sizeof line, "--optimizer=%s %s", optimizers[_i], beside[b]);
                ck_ok(take(line));
                const outcome without = train();
                snprintf(line, sizeof line, "--optimizer=%s %s --groups=%s:%s", optimizers[_i], beside[b],
                         of_bias ? "bias" : "weight", members[m]);
                ck_ok(take(line));
                const outcome with = train();
                bool weight = memcmp(with.weight, without.weight, sizeof with.weight) != 0;
                bool bias = memcmp(with.bias, without.bias, sizeof with.bias) != 0;
                ck_assert_msg(of_bias ? bias : weight, "%s changes nothing", line);
            }
    rm_options_free(&o);
}
END_TEST

/* Groups without effect, and the words of the refusal. */
START_TEST(groups_without_effect_are_refused) {
    static const char *const refused[][2] = {
        {"--optimizer=lamb --weight-decay=0.1 --groups=bias:weight-decay=0", "--groups|weight_decay"},
        {"--optimizer=lars --weight-decay=0.1 --groups=bias:weight-decay=0", "--groups|weight_decay"},
        {"--optimizer=adam --groups=bias:weight-decay=0", "--groups|weight_decay"},
        {"--optimizer=adamw --weight-decay=0.1 --groups=weight:weight-decay=0.1", "--groups|weight_decay"},
        {"--groups=head.bias:lr=3 --train-only=rnn.", "trained|--train-only"}};
    const char *text = make_text("text", 4096);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        ck_refuses(2, refused[i][1], "train --data=%s --hidden=4 --layers=1 --seq-len=16 --batch=2 --threads=1 %s",
                   text, refused[i][0]);
    ck_runs("train --data=%s --hidden=4 --layers=1 --seq-len=16 --batch=2 --threads=1 --steps=1 --optimizer=lamb "
            "--weight-decay=0.1 --decay-vectors --groups=bias:weight-decay=0",
            text);
}
END_TEST

/* ---- Schedules -------------------------------------------------------------------------------------------------- */

static const struct {
    const char *name, *needs;
} schedules[] = {{"constant", ""},
                 {"step", "--milestones=300"},
                 {"linear", ""},
                 {"cosine", ""},
                 {"poly", ""},
                 {"restarts", "--decay-steps=100"},
                 {"one-cycle", ""},
                 {"exponential", ""},
                 {"plateau", "--eval-every=5"}};
enum { SCHEDULES = sizeof schedules / sizeof *schedules, RUN = 600 };

static const char *const rates[] = {"--warmup-steps=20",
                                    "--warmup-epochs=2",
                                    "--milestones=100,200",
                                    "--gamma=0.5",
                                    "--end-lr=0.01",
                                    "--decay-steps=250",
                                    "--power=3",
                                    "--cycle-mult=3",
                                    "--pct-start=0.5",
                                    "--div-factor=10",
                                    "--final-div-factor=100",
                                    "--scale-lr=linear --base-batch=256",
                                    "--scale-lr=sqrt --base-batch=256",
                                    "--scale-lr=none --base-batch=256",
                                    "--lr-step=epoch",
                                    "--lr=0.25"};

/* The rates of all updates, before and after evaluations that stop improving; or a refusal. */
static remat_status rates_of(const char *line, double rate[3 * RUN]) {
    rm_learning_rate r;
    TRY(take(line));
    TRY(rm_lr_schedule_make(&o, &(rm_lr_schedule_facts){.batch = 1024, .per_epoch = 30, .steps = RUN}, &r));
    for (int i = 0; i < 3 * RUN; i++) {
        r.reductions = i / RUN * 4;
        rate[i] = rm_learning_rate_at(&r, 1 + i % RUN);
    }
    return REMAT_OK;
}

START_TEST(schedule_settings_change_rates_or_are_refused) {
    static double with[3 * RUN], without[3 * RUN];
    char base[256], line[400];
    snprintf(base, sizeof base, "--lr=0.5 --task=copy --lr-schedule=%s %s", schedules[_i].name, schedules[_i].needs);
    ck_ok(rates_of(base, without));
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++) {
        snprintf(line, sizeof line, "%s %s", base, rates[i]);
        remat_status status = rates_of(line, with);
        ck_assert_msg(status || memcmp(with, without, sizeof with), "%s changes nothing", line);
        if (status) expect_refusal(line);
    }
    rm_options_free(&o);
}
END_TEST

/* Settings for evaluations, which only the schedule plateau uses. */
START_TEST(plateau_settings_are_refused_without_evaluations) {
    static const char *const flags[] = {"--patience=3", "--threshold=0.5"};
    char line[256];
    for (int i = 0; i < 2; i++) {
        snprintf(line, sizeof line, "--task=copy --lr-schedule=%s %s %s", schedules[_i].name, schedules[_i].needs,
                 flags[i]);
        remat_status status = take(line);
        ck_assert_msg(!status == (_i == SCHEDULES - 1), "%s: status %d", line, (int)status);
        if (status) expect_refusal(line);
    }
    rm_options_free(&o);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("effects");
    tcase_add_loop_test(tests, optimizer_settings_change_parameters_or_are_refused, 0, OPTIMIZERS);
    tcase_add_loop_test(tests, groups_change_their_parameters, 0, OPTIMIZERS);
    tcase_add_test(tests, groups_without_effect_are_refused);
    tcase_add_loop_test(tests, schedule_settings_change_rates_or_are_refused, 0, SCHEDULES);
    tcase_add_loop_test(tests, plateau_settings_are_refused_without_evaluations, 0, SCHEDULES);
    return run_suite("train/effects", tests);
}
