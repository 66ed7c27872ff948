/* test_ranks.c: `remat train` on several ranks: results do not depend on how a batch is divided among ranks, and a run
 * continues on another number of ranks. */
#define _GNU_SOURCE /* sched_getaffinity */
#include "tests/ports.h"
#include "tests/train/rank_jobs.h"

#include <jansson.h>
#include <sched.h>

/* ---- Running ranks ----------------------------------------------------------------------------------------------- */

static bool same_files(const char *a, const char *b) {
    char command[1200];
    snprintf(command, sizeof command, "cmp %s %s", a, b);
    return system(command) == 0;
}

/* ---- Results ---------------------------------------------------------------------------------------------------- */

/* The same global batch on 1, 2, 4 and 8 ranks: the same losses, evaluations and parameters, to the last bit. */
START_TEST(bits_do_not_depend_on_the_world_size) {
    job j;
    char reports[1024] = "report --require-identical";
    const char *text = text_file();
    for (int size = 1; size <= 8; size *= 2) {
        run_ranks(&j, size,
                  "train --data=%s --eval-data=%s --eval-every=3 " FLAGS
                  "--batch=%d --deterministic-world --dropout=0.2 "
                  "--steps=6 --clip-grad-norm=0.1 --metrics=%s/%d.jsonl --save=%s/st%d",
                  text, text, 16 / size, scratch(), size, scratch(), size);
        ck_all_end(&j, 0);
        snprintf(reports + strlen(reports), sizeof reports - strlen(reports), " %s/%d.jsonl", scratch(), size);
    }
    ck_runs("%s", reports);
    ck_says_all(program_output, "4 runs|identical");
    for (int size = 2; size <= 8; size *= 2) {
        char one[256], other[256];
        snprintf(one, sizeof one, "%s/st1/step-00000006/model.safetensors", scratch());
        snprintf(other, sizeof other, "%s/st%d/step-00000006/model.safetensors", scratch(), size);
        ck_assert_msg(same_files(one, other), "%d ranks have other parameters than one", size);
    }
}
END_TEST

/* Also if norms of whole arrays scale the update, and each rank has only its part of the optimizer's state. */
START_TEST(layerwise_bits_do_not_depend_on_the_world_size) {
    static const char *const optimizers[] = {"sgd --momentum=0.9", "adamw", "lars", "lamb"};
    job j;
    char reports[1024] = "report --require-identical";
    const char *text = text_file();
    for (int size = 1; size <= 4; size *= 2) {
        run_ranks(&j, size,
                  "train --data=%s " FLAGS
                  "--batch=%d --deterministic-world=4 --steps=4 --lr=0.1 --clip-grad-norm=0.05 "
                  "--zero=%d --bucket-cap-mb=0.003 --metrics=%s/%d.jsonl --optimizer=%s",
                  text, 8 / size, size == 2, scratch(), size, optimizers[_i]);
        ck_all_end(&j, 0);
        snprintf(reports + strlen(reports), sizeof reports - strlen(reports), " %s/%d.jsonl", scratch(), size);
    }
    ck_runs("%s", reports);
}
END_TEST

/* Of a step in a metrics file. */
static double number_of(const char *path, int64_t step, const char *key) {
    char line[4096];
    double number = -1;
    FILE *file = fopen(path, "r");
    ck_assert_ptr_nonnull(file);
    while (fgets(line, sizeof line, file)) {
        json_t *event = json_loads(line, 0, NULL);
        if (json_integer_value(json_object_get(event, "step")) == step && strstr(line, "\"event\":\"step\""))
            number = json_number_value(json_object_get(event, key));
        json_decref(event);
    }
    fclose(file);
    return number;
}

static double loss_of(const char *path, int64_t step) { return number_of(path, step, "loss"); }

/* Two ranks with a batch of 4 match two micro steps of 4: the samples are the same, the order of sums differs. */
START_TEST(two_ranks_match_two_micro_steps) {
    job j;
    const char *text = text_file();
    run_ranks(&j, 2, "train --data=%s " FLAGS "--batch=4 --steps=8 --metrics=%s", text, in_scratch("ranks.jsonl"));
    ck_all_end(&j, 0);
    ck_assert_msg(says_all(j.output[0], "2 ranks|local|batch 2 x 4 = 8"), "%s", j.output[0]);
    ck_assert_str_eq(j.output[1], "");
    ck_runs("train --data=%s " FLAGS "--batch=4 --accumulate-steps=2 --steps=8 --metrics=%s", text,
            in_scratch("micro.jsonl"));
    ck_runs("train --data=%s " FLAGS "--batch=8 --steps=8 --metrics=%s", text, in_scratch("whole.jsonl"));
    for (int step = 1; step <= 8; step++) {
        double ranks = loss_of(in_scratch("ranks.jsonl"), step), micro = loss_of(in_scratch("micro.jsonl"), step),
               whole = loss_of(in_scratch("whole.jsonl"), step);
        ck_assert_msg(ranks > 0 && !(ranks - whole > 2e-5 || whole - ranks > 2e-5), "step %d: %.9g, %.9g", step, ranks,
                      whole);
        ck_assert_msg(micro > 0 && !(micro - whole > 2e-5 || whole - micro > 2e-5), "step %d: %.9g, %.9g", step, micro,
                      whole);
    }
}
END_TEST

/* The place of the optimizer's state, the time of updates, the sizes of buckets and the plan change no bit. */
START_TEST(sharding_and_buckets_change_no_bit) {
    static const char *const ways[] = {"",
                                       "--zero=1",
                                       "--fused-update",
                                       "--zero=1 --fused-update --bucket-cap-mb=0.002",
                                       "--checkpoint-segments=3 --tile=4",
                                       "--memory-budget=2MiB --tile=4",
                                       "--dist-backend=local --metrics-per-rank"};
    enum { WAYS = sizeof ways / sizeof *ways };
    job j;
    const char *text = text_file();
    char reports[2][1024] = {"report --require-identical", "report --require-identical"};
    for (int i = 0; i < WAYS; i++) {
        bool tiled = strstr(ways[i], "--tile") != NULL;
        run_ranks(&j, 3, "train --data=%s " FLAGS "--batch=4 --dropout=0.1 --steps=5 --metrics=%s/w%d %s", text,
                  scratch(), i, ways[i]);
        ck_all_end(&j, 0);
        char *report = reports[tiled];
        snprintf(report + strlen(report), sizeof reports[0] - strlen(report), " %s/w%d%s", scratch(), i,
                 strstr(ways[i], "per-rank") ? ".rank0" : "");
    }
    ck_runs("%s", reports[0]);
    ck_runs("%s", reports[1]);
    ck_runs("report --require-identical %1$s/w6.rank0 %1$s/w6.rank1 %1$s/w6.rank2", scratch());
    ck_assert(access(in_scratch("w6"), R_OK));
}
END_TEST

/* Compressed gradients are near, not equal. All ranks still have the same bits; otherwise the comparison at a resume
 * would fail. */
START_TEST(compressed_gradients_train) {
    job j;
    const char *text = text_file();
    for (int i = 0; i < 3; i++) {
        run_ranks(&j, 2, "train --data=%s " FLAGS "--batch=4 --steps=6 --grad-compress=%s --metrics=%s/c%d", text,
                  (const char *[]){"none", "fp16", "bf16"}[i], scratch(), i);
        ck_all_end(&j, 0);
    }
    double plain = loss_of(in_scratch("c0"), 6);
    for (int i = 1; i < 3; i++) {
        double loss = loss_of(in_scratch(i == 1 ? "c1" : "c2"), 6);
        ck_assert_msg(!(loss - plain > 0.02 || plain - loss > 0.02), "%.9g and %.9g", loss, plain);
        ck_assert(loss != plain);
    }
}
END_TEST

START_TEST(metrics_count_transferred_bytes) {
    job j;
    char line[4096];
    bool found = false;
    run_ranks(&j, 2, "train --data=%s " FLAGS "--batch=4 --steps=2 --metrics=%s", text_file(), in_scratch("m"));
    ck_all_end(&j, 0);
    FILE *file = fopen(in_scratch("m"), "r");
    while (fgets(line, sizeof line, file)) {
        json_t *event = json_loads(line, 0, NULL);
        if (strstr(line, "\"event\":\"plan\"")) {
            ck_assert_int_eq(json_integer_value(json_object_get(event, "ranks")), 2);
            ck_assert_int_eq(json_integer_value(json_object_get(event, "global_batch")), 8);
        } else if (strstr(line, "\"event\":\"step\"")) {
            found = true;
            ck_assert_int_gt(json_integer_value(json_object_get(event, "comm_bytes")), 0);
            ck_assert(json_is_number(json_object_get(event, "comm_busy_ms")));
            ck_assert(json_is_number(json_object_get(event, "comm_wait_ms")));
        }
        json_decref(event);
    }
    fclose(file);
    ck_assert(found);
}
END_TEST

/* NCCL's and PyTorch's variables describe each rank once, and the buckets. */
START_TEST(debug_variables_describe_ranks_and_buckets) {
    static const char *const variables[][2] = {{"NCCL_DEBUG", "INFO"}, {"TORCH_DISTRIBUTED_DEBUG", "detail"}};
    job j;
    const char *text = text_file();
    for (int i = 0; i < 3; i++) {
        if (i) setenv(variables[i - 1][0], variables[i - 1][1], 1);
        run_ranks(&j, 2, "train --data=%s " FLAGS "--batch=4 --steps=1 --bucket-cap-mb=0.001", text);
        if (i) unsetenv(variables[i - 1][0]);
        ck_all_end(&j, 0);
        for (int r = 0; r < 2; r++) {
            ck_assert_int_eq(says_all(j.errors[r], "of 2 on|file://|engine local|auto|one host"), i > 0);
            ck_assert_int_eq(says_all(j.errors[r], "bucket 1 of|over local|bytes|begins with"), i > 0 && r == 0);
        }
    }
}
END_TEST

/* By default ranks share the processors that they may use. */
START_TEST(processors_are_shared) {
    job j;
    char part[64];
    cpu_set_t set;
    unsetenv("OMP_NUM_THREADS");
    ck_assert_int_eq(sched_getaffinity(0, sizeof set, &set), 0);
    int each = CPU_COUNT(&set) > 1 ? CPU_COUNT(&set) / 2 : 1;
    run_ranks(&j, 2, "train --data=%s --hidden=8 --seq-len=16 --batch=2 --steps=1", text_file());
    ck_all_end(&j, 0);
    snprintf(part, sizeof part, "device cpu, %d thread", each);
    ck_assert_msg(strstr(j.output[0], part), "%s", j.output[0]);
    run_ranks(&j, 2, "train --data=%s --hidden=8 --seq-len=16 --batch=2 --steps=1 --threads=3", text_file());
    ck_assert_msg(strstr(j.output[0], "device cpu, 3 threads"), "%s", j.output[0]);
}
END_TEST

/* A launcher knows only its own ranks. The job is elastic, because other launchers on one host would need a name of it. */
START_TEST(launchers_on_one_host_share_its_processors) {
    char part[64], line[2048];
    cpu_set_t set;
    int status, port = reserved_port(), out[2] = {temporary(), temporary()}, err[2] = {temporary(), temporary()};
    pid_t launcher[2];
    unsetenv("OMP_NUM_THREADS");
    ck_assert_int_eq(sched_getaffinity(0, sizeof set, &set), 0);
    int each = CPU_COUNT(&set) > 1 ? CPU_COUNT(&set) / 2 : 1;
    for (int host = 0; host < 2; host++) {
        snprintf(
            line, sizeof line,
            "launch --nnodes=2:3 --node-rank=%d --master-addr=127.0.0.1 --master-port=%d --no-prefix " RM_BINARY_DIR
            "/remat train --data=%s --hidden=8 --seq-len=16 --batch=2 --steps=1",
            host, port, text_file());
        launcher[host] = start_program(line, out[host], err[host]);
    }
    for (int host = 0; host < 2; host++) {
        ck_assert_int_eq(waitpid(launcher[host], &status, 0), launcher[host]);
        read_back(err[host], program_errors, sizeof program_errors);
        ck_assert_msg(!status, "%d: %s", status, program_errors);
    }
    read_back(out[0], program_output, sizeof program_output);
    snprintf(part, sizeof part, "device cpu, %d thread", each);
    ck_assert_msg(strstr(program_output, part), "%s", program_output);
}
END_TEST

START_TEST(devices_flag_starts_ranks) {
    const char *text = text_file();
    ck_runs("train --devices=cpu:2 --data=%s " FLAGS "--batch=4 --steps=3 --metrics=%s", text, in_scratch("d.jsonl"));
    ck_says_all(program_output, "2 ranks|local");
    job j;
    run_ranks(&j, 2, "train --data=%s " FLAGS "--batch=4 --steps=3 --metrics=%s", text, in_scratch("e.jsonl"));
    ck_runs("report --require-identical %s %s", in_scratch("d.jsonl"), in_scratch("e.jsonl"));
}
END_TEST

/* ---- Resuming on other ranks ------------------------------------------------------------------------------------ */

static void copy_state(const char *from, const char *to) {
    char command[600];
    snprintf(command, sizeof command, "cp -r %s %s", from, to);
    ck_assert_int_eq(system(command), 0);
}

/* From 2 ranks to 1, 4 and 2: with a deterministic world the losses are those of an uninterrupted run; the number of
 * ranks determines the batch per rank. */
START_TEST(resume_on_other_ranks_has_the_same_losses) {
    static const int sizes[] = {1, 2, 4};
    job j;
    const char *text = text_file();
    const char *zero = _i ? "--zero=1" : "";
    run_ranks(&j, 2, "train --data=%s " FLAGS "--batch=4 --deterministic-world=4 --steps=9 --metrics=%s %s", text,
              in_scratch("whole.jsonl"), zero);
    ck_all_end(&j, 0);
    run_ranks(&j, 2, "train --data=%s " FLAGS "--batch=4 --deterministic-world=4 --steps=5 --metrics=%s --save=%s %s",
              text, in_scratch("part.jsonl"), in_scratch("st"), zero);
    ck_all_end(&j, 0);
    for (int i = 0; i < 3; i++) {
        char state[64], metrics[64];
        snprintf(state, sizeof state, "st%d", i);
        snprintf(metrics, sizeof metrics, "part%d.jsonl", i);
        copy_state(in_scratch("st"), in_scratch(state));
        copy_state(in_scratch("part.jsonl"), in_scratch(metrics));
        run_ranks(&j, sizes[i], "train --resume=%s --steps=9 --metrics=%s --zero=%d", in_scratch(state),
                  in_scratch(metrics), i == 2);
        ck_all_end(&j, 0);
        ck_runs("report --require-identical %s %s", in_scratch("whole.jsonl"), in_scratch(metrics));
    }
    run_ranks(&j, 2, "train --resume=%s --steps=9 --batch=6", in_scratch("st"));
    ck_all_end(&j, 2);
    ck_says(&j, 0, "state");
}
END_TEST

/* The evaluations of a run on any ranks match `remat eval` on its state. */
START_TEST(evaluations_match_eval) {
    static const char *const worlds[] = {"", "--deterministic-world=4"};
    char loss[40] = "", found[40];
    job j;
    make_text("other", 3000);
    for (int size = 1; size <= 4; size *= 2) {
        char state[20], line[64];
        snprintf(state, sizeof state, "eval%d", size);
        run_ranks(&j, size, "train --data=%s " FLAGS "--batch=%d %s --steps=3 --eval-every=3 --eval-data=%s --save=%s",
                  text_file(), 16 / size, worlds[_i], in_scratch("other"), in_scratch(state));
        ck_all_end(&j, 0);
        const char *said = strstr(j.output[0], "eval      3  ");
        ck_assert_msg(said && sscanf(said, "eval 3 loss %39s", found) == 1, "%s", j.output[0]);
        if (_i && *loss) ck_assert_str_eq(found, loss);
        strcpy(loss, found);
        ck_runs("eval --resume=%s --data=%s", in_scratch(state), in_scratch("other"));
        snprintf(line, sizeof line, "loss %s  ", loss);
        ck_says_all(program_output, line);
    }
}
END_TEST

/* Without a deterministic world an update keeps its number of samples: --batch is adapted, or the run is refused. */
START_TEST(update_keeps_its_samples_on_other_ranks) {
    job j;
    run_ranks(&j, 2, "train --data=%s " FLAGS "--batch=6 --steps=4 --save=%s", text_file(), in_scratch("st"));
    ck_all_end(&j, 0);
    run_ranks(&j, 3, "train --resume=%s --steps=6", in_scratch("st"));
    ck_all_end(&j, 0);
    ck_assert_msg(strstr(j.output[0], "batch 3 x 4 = 12"), "%s", j.output[0]);
    ck_runs("plan --resume=%s --world-size=4 --json", in_scratch("st"));
    ck_says_all(program_output, "\"batch\": 3,");
    run_ranks(&j, 1, "train --resume=%s --steps=8 --batch=3 --accumulate-steps=4", in_scratch("st"));
    ck_all_end(&j, 0);
    run_ranks(&j, 5, "train --resume=%s --steps=9", in_scratch("st"));
    ck_all_end(&j, 2);
    ck_says(&j, 0, "12 samples|5 ranks|4");
    ck_assert_msg(!strstr(j.errors[0], "--batch="), "a flag that was not given: %s", j.errors[0]);
}
END_TEST

/* With --resume-batch=rank each rank keeps its --batch, so an update has other samples. The run continues with the next
 * sample, and at the same part of its epochs in the learning rate's schedule. */
START_TEST(ranks_keep_their_batch_when_told_so) {
    const char *run = "--task=adding --samples=240 --lr-schedule=cosine --threads=1 --hidden=6 --seq-len=9";
    job j;
    run_ranks(&j, 2, "train %s --batch=6 --epochs=2 --save=%s", run, in_scratch("st"));
    ck_all_end(&j, 0);
    copy_state(in_scratch("st"), in_scratch("plan"));
    run_ranks(&j, 3, "train --resume=%s --resume-batch=rank --epochs=4 --metrics=%s", in_scratch("st"),
              in_scratch("kept"));
    ck_all_end(&j, 0);
    ck_says_all(j.output[0], "batch 3 x 6 = 18|18 samples|12 before");
    ck_runs("train %s --batch=18 --epochs=4 --metrics=%s", run, in_scratch("fresh"));
    for (int i = 1; i <= 26; i++) { /* 20 updates of 12 in an epoch before, 13 of 18 now */
        double kept = number_of(in_scratch("kept"), 40 + i, "lr"), fresh = number_of(in_scratch("fresh"), 26 + i, "lr");
        ck_assert_msg(kept >= 0 && kept == fresh, "update %d: %.17g and %.17g", i, kept, fresh);
    }
    ck_assert_double_eq_tol(number_of(in_scratch("kept"), 42, "epoch"), 2 + 2 * 18 / 240.0, 1e-9);
    ck_runs("plan --resume=%s --world-size=5 --resume-batch=rank --json", in_scratch("plan"));
    ck_says_all(program_output, "\"batch\": 6,");
    ck_refuses(2, "--batch=7|12 samples|--resume-batch=rank", "train --resume=%s --batch=7 --epochs=4",
               in_scratch("plan"));
    ck_runs("train --resume=%s --batch=7 --epochs=4 --resume-batch=rank", in_scratch("plan"));
    ck_says_all(program_output, "7 samples|12 before");
}
END_TEST

/* Rows of --stateful belong to parts of the text, of which other updates would have other numbers. */
START_TEST(stateful_rows_keep_an_updates_samples) {
    job j;
    run_ranks(&j, 2, "train --data=%s " FLAGS "--stateful --batch=4 --steps=2 --save=%s", text_file(),
              in_scratch("st"));
    ck_all_end(&j, 0);
    run_ranks(&j, 3, "train --resume=%s --resume-batch=rank --steps=4", in_scratch("st"));
    ck_all_end(&j, 2);
    ck_says(&j, 0, "--resume-batch=rank|--stateful|8 to 12");
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("ranks");
    tcase_add_test(tests, bits_do_not_depend_on_the_world_size);
    tcase_add_loop_test(tests, layerwise_bits_do_not_depend_on_the_world_size, 0, 4);
    tcase_add_test(tests, two_ranks_match_two_micro_steps);
    tcase_add_test(tests, sharding_and_buckets_change_no_bit);
    tcase_add_test(tests, compressed_gradients_train);
    tcase_add_test(tests, metrics_count_transferred_bytes);
    tcase_add_test(tests, debug_variables_describe_ranks_and_buckets);
    tcase_add_test(tests, processors_are_shared);
    tcase_add_test(tests, launchers_on_one_host_share_its_processors);
    tcase_add_test(tests, devices_flag_starts_ranks);
    tcase_add_loop_test(tests, resume_on_other_ranks_has_the_same_losses, 0, 2);
    tcase_add_loop_test(tests, evaluations_match_eval, 0, 2);
    tcase_add_test(tests, update_keeps_its_samples_on_other_ranks);
    tcase_add_test(tests, ranks_keep_their_batch_when_told_so);
    tcase_add_test(tests, stateful_rows_keep_an_updates_samples);
    return run_suite("train/ranks", tests);
}
