/* test_command_plan.c: `remat plan` predicts a run; budgets, and the advice when none fits. */
#include "tests/train/train_test.h"

#include <sys/stat.h>

#define SMALL "--hidden=8 --layers=1 --seq-len=16 --batch=2 --threads=1 "
#define LONGER "--hidden=16 --layers=1 --seq-len=600 --tile=8 --batch=4 --threads=1 --calibration=off "

START_TEST(plan_predicts_the_run) {
    const char *text = make_text("text", 40000), *metrics = in_scratch("m.jsonl");
    char want[64], found[64];
    for (int n = 1; n <= 9; n += 4) {
        unlink(metrics);
        ck_runs("train --data=%s " SMALL "--seq-len=300 --tile=16 --steps=3 --checkpoint-segments=%d --metrics=%s",
                text, n, metrics);
        FILE *file = fopen(metrics, "r");
        ck_assert_ptr_nonnull(fgets(program_errors, sizeof program_errors, file));
        fclose(file);
        ck_assert_int_eq(sscanf(strstr(program_errors, "planned_peak_bytes"), "planned_peak_bytes\":%63[0-9]", want),
                         1);
        ck_runs("plan --data=%s " SMALL "--seq-len=300 --tile=16 --checkpoint-segments=%d --json", text, n);
        ck_assert_int_eq(sscanf(strstr(program_output, "planned_peak_bytes"), "planned_peak_bytes\": %63[0-9]", found),
                         1);
        ck_assert_str_eq(want, found);
    }
}
END_TEST

/* Any command line of train can be planned unchanged. With --resume, the saved run's flags are used. */
START_TEST(any_train_command_line_can_be_planned) {
    const char *text = make_text("text", 4096), *st = in_scratch("st");
    char *ignored = in_scratch("ignored");
    ck_runs("plan --data=%s " SMALL "--save=%s --resume=%s --save-every=2 --keep=1 --log-every=1 --metrics=%s "
            "--dump-grads=%s --json",
            text, ignored, ignored, ignored, ignored);
    ck_assert(access(ignored, F_OK));
    ck_runs("train --data=%s " SMALL "--checkpoint=sqrt --verify-recompute --tile=4 --steps=1 --save=%s", text, st);
    ck_runs("plan --resume=%s --json", st);
    ck_says_all(program_output, "\"strategy\": \"sqrt\"");
    uint64_t resumed = strtoull(strstr(program_output, "\"budgeted_bytes\": ") + 18, NULL, 10);
    ck_runs("plan --data=%s " SMALL "--checkpoint=sqrt --tile=4 --json --verify-recompute", text);
    ck_assert_uint_eq(strtoull(strstr(program_output, "\"budgeted_bytes\": ") + 18, NULL, 10), resumed);
    ck_runs("plan --data=%s " SMALL "--checkpoint=sqrt --tile=4 --json", text);
    ck_assert_uint_lt(strtoull(strstr(program_output, "\"budgeted_bytes\": ") + 18, NULL, 10), resumed);
    ck_refuses(2, "--length|flag", "plan --length=3");
}
END_TEST

/* The advice does not name flags that a saved run cannot change. */
START_TEST(advice_fits_a_resumed_run) {
    const char *text = make_text("text", 4096), *st = in_scratch("st"), *spill = in_scratch("spill");
    ck_assert_int_eq(mkdir(spill, 0700), 0);
    ck_runs("train --data=%s " SMALL "--steps=1 --save=%s --checkpoint=optimal --calibration=off --spill=%s", text, st,
            spill);
    static const char *const commands[] = {"train", "plan"};
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(run_program("%s --resume=%s --memory-budget=20KB", commands[i], st), 2);
        ck_says_all(program_errors, "\n  --memory-budget=");
        ck_says_all(program_errors, "--memory-budget=20KB");
        ck_assert_msg(!strstr(program_errors, "--tile") && !strstr(program_errors, "--batch"), "%s", program_errors);
        ck_says_all(program_errors, "resume");
    }
    ck_assert_int_eq(rmdir(spill), 0);
    ck_refuses(1, "--spill=DIR", "train --resume=%s --steps=2", st);
    ck_runs("train --resume=%s --steps=2 --calibration=off --spill=%s", st, scratch());
    ck_assert_int_eq(chdir(scratch()), 0);
    ck_runs("train --data=text " SMALL "--steps=1 --save=relative");
    ck_assert_int_eq(chdir("/"), 0);
    for (int i = 0; i < 2; i++)
        ck_refuses(1, "--data=text|folder", "%s --resume=%s", commands[i], in_scratch("relative"));
    ck_runs("train --resume=%s --data=%s --steps=2", in_scratch("relative"), text);
}
END_TEST

/* ---- Budgets ---------------------------------------------------------------------------------------------------- */

static uint64_t whole_after(const char *text, const char *label) {
    const char *at = strstr(text, label);
    ck_assert_msg(at, "no %s in %s", label, text);
    return strtoull(at + strlen(label), NULL, 10);
}

/* A refusal names the smallest budget. It works for plan and train; one byte less is refused, in other processes,
 * too. */
START_TEST(smallest_budget_is_exact) {
    static const char *const more[] = {"", "--checkpoint=none", "--checkpoint-segments=3", "--eval-every=1",
                                       "--task=copy --eval-every=2 --samples=50"};
    const char *text = make_text("text", 40000);
    char data[512];
    snprintf(data, sizeof data, strstr(more[_i], "--task") ? "%s" : "%s --data=%s --eval-data=%s", more[_i], text,
             text);
    if (!strstr(more[_i], "--eval-every")) snprintf(data, sizeof data, "%s --data=%s", more[_i], text);
    ck_assert_int_eq(run_program("plan " LONGER "--memory-budget=1.5KiB %s", data), 2);
    ck_says_all(program_errors, "--memory-budget=1.5KiB");
    uint64_t least = whole_after(program_errors, "\n  --memory-budget=");
    ck_runs("plan " LONGER "--memory-budget=%llu %s", (unsigned long long)least, data);
    ck_runs("train " LONGER "--memory-budget=%llu --steps=2 %s", (unsigned long long)least, data);
    ck_says_all(program_output, "budget: ");
    ck_assert_int_eq(run_program("plan " LONGER "--memory-budget=%llu %s", (unsigned long long)least - 1, data), 2);
    ck_assert_uint_eq(whole_after(program_errors, "\n  --memory-budget="), least);
    ck_assert_int_eq(run_program("train " LONGER "--memory-budget=%llu %s", (unsigned long long)least - 1, data), 2);
    ck_assert_uint_eq(whole_after(program_errors, "\n  --memory-budget="), least);
}
END_TEST

/* The advised flags fit. They are appended, because the last value of a flag counts. */
START_TEST(advised_flags_fit) {
    static const struct {
        const char *flags, *advice;
    } cases[] = {
        {"--memory-budget=600KiB --recompute=off", "--recompute=auto would fit"},
        {"--memory-budget=600KiB --checkpoint=none", "--checkpoint=optimal would fit"},
        {"--memory-budget=600KiB --recompute=off --checkpoint=none", "--recompute=auto --checkpoint=optimal would fit"},
        {"--memory-budget=3000KB --spill=/tmp --seq-len=20000 --tile=256", "--tile="},
        {"--memory-budget=700KB --spill=/tmp --seq-len=100 --batch=64", "--batch="},
        {"--memory-budget=30MiB --hidden=256 --layers=2 --tile=0 --seq-len=20000 --batch=8", "--batch="},
        {"--memory-budget=600KB --seq-len=100 --batch=256 --tile=1 --deterministic-world=8", "--batch="},
    };
    char change[128];
    ck_assert_int_eq(run_program("plan " LONGER "%s", cases[_i].flags), 2);
    const char *at = strstr(program_errors, "\n  --memory-budget");
    ck_assert_msg(at && (at = strstr(at + 1, "\n  --")), "no advice in %s", program_errors);
    ck_assert_msg(strstr(at, cases[_i].advice), "%s", program_errors);
    snprintf(change, sizeof change, "%.*s", (int)(strstr(at, " would fit") - at - 3), at + 3);
    ck_runs("plan " LONGER "%s %s", cases[_i].flags, change);
}
END_TEST

/* The smallest batch is tried first, then values in between: with thousands of tiles there is no time to step down to
 * it. */
START_TEST(largest_batch_that_fits_is_found) {
    static const int batches[] = {1, 2, 4};
    for (int i = 0; i < 3; i++) {
        char want[64];
        int status = run_program("plan " LONGER "--tile=1 --seq-len=1000 --batch=%d --memory-budget=1", batches[i]);
        ck_assert_int_eq(status, 2);
        uint64_t least = whole_after(program_errors, "\n  --memory-budget=");
        ck_assert_int_eq(run_program("plan " LONGER "--tile=1 --seq-len=1000 --batch=16 --memory-budget=%llu",
                                     (unsigned long long)least),
                         2);
        snprintf(want, sizeof want, "\n  --batch=%d would fit", batches[i]);
        ck_says_all(program_errors, want);
    }
}
END_TEST

START_TEST(missing_advice_is_reported) {
    ck_assert_int_eq(run_program("plan --hidden=512 --memory-budget=1MiB --calibration=off"), 2);
    ck_says_all(program_errors, "--hidden|--layers");
    ck_assert_msg(!strstr(program_errors, "not all were tried"), "%s", program_errors);
    ck_assert_int_eq(run_program("plan --hidden=512 --tile=64 --seq-len=100000 --memory-budget=1MiB --calibration=off"),
                     2);
    ck_says_all(program_errors, "not all were tried");
}
END_TEST

/* A budget alone selects optimal; with a strategy it is a limit. An assumed machine has a budget, too. */
START_TEST(budgets_choose_the_strategy) {
    ck_runs("plan " LONGER "--memory-budget=1GiB --json");
    ck_says_all(program_output, "\"strategy\": \"optimal\"");
    ck_runs("plan " LONGER "--memory-budget=1GiB --checkpoint=sqrt --json");
    ck_says_all(program_output, "\"strategy\": \"sqrt\"");
    ck_runs("plan " LONGER "--memory-budget=1GiB --checkpoint-segments=3 --json");
    ck_says_all(program_output, "\"strategy\": \"segments\"");
    ck_runs("plan " LONGER "--device=null --assume-memory=80GiB --assume-flops=60T --assume-bandwidth=3.3TB");
    ck_says_all(program_output, "--assume-memory|budget|80.0 GiB");
    ck_runs("plan " LONGER "--device=null --assume-flops=1T --json");
    double slow = (double)whole_after(program_output, "\"step_ns\": ");
    ck_runs("plan " LONGER "--device=null --assume-flops=1M --json");
    ck_assert((double)whole_after(program_output, "\"step_ns\": ") > 100 * slow);
}
END_TEST

/* ---- Memory against time ---------------------------------------------------------------------------------------- */

START_TEST(pareto_has_every_strategy) {
    static const char *const strategies[] = {"none", "segments", "sqrt", "lean", "optimal"};
    ck_runs("plan " LONGER "--pareto --checkpoint-segments=4");
    for (int i = 0; i < 5; i++) ck_says_all(program_output, strategies[i]);
    ck_says_all(program_output, "<- this plan");
    ck_runs("plan " LONGER "--pareto --json");
    ck_says_all(program_output, "\"pareto\": [");
    ck_says_all(program_output, "\"this_plan\": true");
    ck_assert(!strstr(program_output, "\"spill\""));
    ck_runs("plan " LONGER "--pareto --json --device=null --spill=/tmp");
    ck_says_all(program_output, "\"spill\"");
    ck_runs("plan --hidden=4 --layers=1 --seq-len=1000 --tile=4 --batch=1 --pareto --calibration=off");
    ck_says_all(program_output, "\n* optimal");
    ck_assert_msg(!strstr(program_output, "\n  optimal"), "a plan that no budget would choose");
}
END_TEST

START_TEST(plans_describe_their_steps) {
    ck_runs("plan " LONGER "--json --checkpoint=lean");
    static const char *const names[] = {
        "workspace_bytes", "tables_bytes",   "budgeted_bytes", "memory_budget", "spill_bytes", "transfer_ns", "wait_ns",
        "step_ns",         "measured_times", "peak",           "largest",       "rebuilt",     "spilled",     "option",
        "convolutions"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) ck_says_all(program_output, names[i]);
    ck_runs("plan " LONGER "--checkpoint=lean");
    ck_says_all(program_output, "kept lean");
    ck_says_all(program_output, "estimated from");
    ck_runs("plan " LONGER "--seq-len=3000 --recompute=off "
            "--checkpoint=none --spill=/tmp --device=null --memory-budget=3300KiB --checkpoint=optimal");
    ck_says_all(program_output, "spilled");
}
END_TEST

START_TEST(plots_are_drawn) {
    const char *text = make_text("text", 40000);
    if (system("command -v gnuplot >/dev/null 2>&1")) return;
    ck_runs("plan " LONGER "--checkpoint=sqrt --plot=%s", in_scratch("a.svg"));
    ck_runs("plan " LONGER "--pareto --plot=%s", in_scratch("b.html"));
    ck_runs("train --data=%s " LONGER "--checkpoint=sqrt --steps=3 --plot=%s", text, in_scratch("c.png"));
    ck_says_all(program_output, "step 2|drawn");
    ck_runs("train --data=%s " LONGER "--steps=1 --plot=%s", text, in_scratch("d.svg"));
    ck_says_all(program_output, "step 1|drawn");
    for (int i = 0; i < 4; i++)
        ck_assert(!access(in_scratch((const char *[]){"a.svg", "b.html", "c.png", "d.svg"}[i]), R_OK));
}
END_TEST

/* none, segments and sqrt, with a short last evaluation batch; checked by `remat report`. */
START_TEST(plans_have_the_same_losses) {
    static const char *const plans[] = {"--checkpoint=none", "--checkpoint-segments=3", "--checkpoint=sqrt"};
    const char *text = make_text("text", 9000);
    for (int i = 0; i < 3; i++)
        ck_runs("train --data=%s --eval-data=%s --eval-every=2 %s " SMALL
                "--seq-len=200 --tile=16 --steps=4 --dropout=0.1 "
                "--layers=2 --batch=4 --metrics=%s/%d.jsonl",
                text, text, plans[i], scratch(), i);
    ck_says_all(program_output, "bits per byte");
    ck_runs("report %1$s/0.jsonl %1$s/1.jsonl %1$s/2.jsonl --require-identical", scratch());
    ck_says_all(program_output, "3 runs|identical");
    ck_runs("train --data=%s " SMALL "--seq-len=200 --steps=4 --seed=1 --metrics=%s/3.jsonl", text, scratch());
    ck_assert_int_eq(run_program("report %1$s/0.jsonl %1$s/3.jsonl --require-identical", scratch()), 1);
    ck_says_all(program_output, "differ|step 1");
    ck_runs("report %1$s/0.jsonl %1$s/3.jsonl", scratch());
    static const char without_loss[] = "{\"event\":\"plan\"}\n{\"event\":\"step\",\"step\":1,\"loss\":null}\n";
    make_file("nan.jsonl", without_loss, sizeof without_loss - 1);
    ck_assert_int_eq(run_program("report %1$s/nan.jsonl %1$s/nan.jsonl --require-identical", scratch()), 1);
    ck_says_all(program_output, "compared|step 1");
    ck_assert_msg(!strstr(program_output, "differ"), "%s", program_output);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("command_plan");
    tcase_add_test(tests, plan_predicts_the_run);
    tcase_add_test(tests, any_train_command_line_can_be_planned);
    tcase_add_test(tests, advice_fits_a_resumed_run);
    tcase_add_loop_test(tests, smallest_budget_is_exact, 0, 5);
    tcase_add_loop_test(tests, advised_flags_fit, 0, 7);
    tcase_add_test(tests, largest_batch_that_fits_is_found);
    tcase_add_test(tests, missing_advice_is_reported);
    tcase_add_test(tests, budgets_choose_the_strategy);
    tcase_add_test(tests, pareto_has_every_strategy);
    tcase_add_test(tests, plans_describe_their_steps);
    tcase_add_test(tests, plots_are_drawn);
    tcase_add_test(tests, plans_have_the_same_losses);
    return run_suite("train/command_plan", tests);
}
