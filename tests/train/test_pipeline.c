/* test_pipeline.c: `remat train --pipeline`, from outside: the bits of one rank, states that other numbers of ranks read,
 * and what is said when a rank stops, dies, or has other flags. */
#include "tests/sanitized.h"
#include "tests/train/train_test.h"

#define FLAGS "--hidden=12 --layers=3 --seq-len=24 --tile=5 --threads=1 --lr=0.01 --calibration=off "

static const char *text_file(void) { return make_text("text", 20000); }

/* Both directories have a last state with these files, "model ema". */
static void same_states(const char *a, const char *b, int step, const char *files) {
    char command[1024];
    snprintf(command, sizeof command,
             "for f in %s; do cmp %s/step-%08d/$f.safetensors %s/step-%08d/$f.safetensors || exit 1; done", files,
             in_scratch(a), step, in_scratch(b), step);
    ck_assert_msg(system(command) == 0, "%s of %s and %s differ after step %d", files, a, b, step);
}

/* The lines of evaluations. */
static const char *evaluations(char text[4096]) {
    size_t n = 0;
    text[0] = 0;
    for (const char *at = program_output; (at = strstr(at, "\neval ")) != NULL; at++)
        n += (size_t)snprintf(text + n, 4096 - n, "%.*s", (int)strcspn(at + 1, "\n") + 1, at);
    return text;
}

/* Step, loss and accuracy of each step's line. */
static const char *steps(char text[4096]) {
    size_t n = 0;
    text[0] = 0;
    for (const char *at = program_output; (at = strstr(at, "\nstep ")) != NULL; at++)
        n += (size_t)snprintf(text + n, 4096 - n, "%.*s", (int)(strchr(at, '%') - at), at); /* times come after that */
    return text;
}

static void train(const char *flags, const char *directory, const char *ranks) {
    ck_assert_msg(run_program("train %s %s --save=%s %s", flags, ranks, in_scratch(directory), "--eval-every=3") == 0,
                  "%s %s: %s", flags, ranks, program_errors);
}

/* ---- Bits -------------------------------------------------------------------------------------------------------- */

static const struct {
    const char *flags, *files;
} plans[] = {
    {"--checkpoint=none", "model"},
    {"--checkpoint=sqrt --verify-recompute --clip-grad-norm=0.1", "model"},
    {"--checkpoint=lean --dropout=0.2", "model"},
    {"--seq-len=200 --hidden=32 --memory-budget=4MiB --accumulate-steps=2", "model"},
    {"--checkpoint-segments=2 --stateful --ema=0.9", "model ema carried"},
    {"--tbptt=12 --model=gru", "model"},
    {"--model=gpt2 --heads=2 --no-tie --deterministic-world=4", "model"},
    {"--model=gpt2 --heads=2 --no-tie --accumulate-steps=8 --dropout=0.1 --checkpoint=sqrt --verify-recompute",
     "model"},
    {"--model=gpt2 --heads=2 --no-tie --accumulate-steps=8 --memory-budget=2710KiB", "model"},
};
enum { PLANS = sizeof plans / sizeof *plans };

START_TEST(pipelines_have_the_bits_of_one_rank) {
    if (rm_release_only(_i, 3)) return;
    char flags[512], one[4096], now[4096];
    static const char *const ranks[] = {"--devices=cpu:2 --pipeline=2", "--devices=cpu:3 --pipeline=3"};
    snprintf(flags, sizeof flags, FLAGS "--data=%s --eval-data=%s --steps=6 --batch=4 %s", text_file(), text_file(),
             plans[_i].flags);
    train(flags, "one", "");
    evaluations(one);
    ck_assert_ptr_nonnull(strstr(one, "loss"));
    for (int r = 0; r < 2; r++) {
        train(flags, r ? "three" : "two", ranks[r]);
        same_states("one", r ? "three" : "two", 6, plans[_i].files);
        ck_assert_str_eq(evaluations(now), one);
    }
}
END_TEST

/* Replicas of a pipeline add up gradients as ranks with the whole network do. */
START_TEST(replicas_of_a_pipeline_train_as_ranks) {
    char flags[512], two[4096], now[4096];
    static const char *const more[] = {"", "--zero=1", "--fused-update --bucket-cap-mb=0.001"};
    snprintf(flags, sizeof flags, FLAGS "--data=%s --eval-data=%s --steps=6 --batch=2 --checkpoint=sqrt %s",
             text_file(), text_file(), more[_i]);
    train(flags, "two", "--devices=cpu:2");
    evaluations(two);
    train(flags, "four", "--devices=cpu:4 --pipeline=2:rnn.weight_ih_l1");
    same_states("two", "four", 6, "model");
    ck_assert_str_eq(evaluations(now), two);
}
END_TEST

#ifdef REMAT_HAVE_MPI
/* Two replicas of two ranks under mpirun, which exchange gradients and activations over MPI or over shared memory. */
START_TEST(replicas_under_mpirun_train_as_ranks) {
    static const char *const backends[] = {"mpi", "auto"};
    char flags[512], command[2048];
    int out = temporary();
    if (system("command -v mpirun >/dev/null")) return;
    snprintf(flags, sizeof flags, FLAGS "--data=%s --eval-data=%s --steps=6 --batch=2 --checkpoint=sqrt", text_file(),
             text_file());
    train(flags, "two", "--devices=cpu:2");
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1), setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    setenv("ASAN_OPTIONS", "detect_leaks=0", 1); /* MPI itself leaks; leaks are the other tests' business */
    snprintf(
        command, sizeof command,
        "mpirun -np 4 $(mpirun --version | grep -q 'Open MPI' && echo --oversubscribe --bind-to none) " RM_BINARY_DIR
        "/remat train %s --eval-every=3 --pipeline=2:rnn.weight_ih_l1 --dist-backend=%s --save=%s >&%d 2>&%d",
        flags, backends[_i], in_scratch("mpi"), out, out);
    int status = system(command);
    read_back(out, program_output, sizeof program_output);
    ck_assert_msg(status == 0 && strstr(program_output, "4 ranks"), "%d: %s", status, program_output);
    same_states("two", "mpi", 6, "model");
}
END_TEST
#endif

/* The rank with the logits counts right answers. */
START_TEST(accuracy_is_that_of_one_rank) {
    static int32_t labels[32], lengths[32];
    static float data[32 * 6 * 2];
    char flags[512], one[4096], now[4096];
    for (int i = 0; i < 32; i++) labels[i] = i % 3, lengths[i] = 1 + i % 6;
    for (int i = 0; i < 32 * 6 * 2; i++) data[i] = (float)(i / 12 % 3) + (float)(i % 7) * 0.1f;
    const char *x = make_npy("x.npy", "<f4", "(32, 6, 2)", data, sizeof data);
    const char *y = make_npy("y.npy", "<i4", "(32,)", labels, sizeof labels);
    const char *n = make_npy("n.npy", "<i4", "(32,)", lengths, sizeof lengths);
    snprintf(flags, sizeof flags,
             "--task=classify --data=%s --labels=%s --eval-data=%s --eval-labels=%s --hidden=8 --layers=2 --threads=1 "
             "--steps=6 --batch=4 --tile=2",
             x, y, x, y);
    if (_i) snprintf(flags + strlen(flags), sizeof flags - strlen(flags), " --lengths=%s --eval-lengths=%s", n, n);
    train(flags, "one", "");
    evaluations(one);
    ck_assert_ptr_nonnull(strstr(one, "accuracy"));
    train(flags, "four", "--devices=cpu:2 --pipeline=2");
    ck_assert_str_eq(evaluations(now), one);
    same_states("one", "four", 6, "model");
}
END_TEST

/* Micro steps are in flight together: losses, accuracies, weights and batch norm's running statistics are those of one
 * rank. */
START_TEST(images_in_flight_have_the_bits_of_one_rank) {
    static uint8_t pixels[32 * 3 * 8 * 8], labels[32];
    char flags[640], one[4096], now[4096];
    static const char *const plans[] = {"--checkpoint=sqrt --verify-recompute", "--memory-budget=132MiB",
                                        "--checkpoint=none --clip-grad-norm=1"};
    uint32_t draw = 1;
    for (size_t i = 0; i < sizeof pixels; i++) pixels[i] = (uint8_t)((draw = draw * 1664525 + 1013904223) >> 24);
    for (int i = 0; i < 32; i++) labels[i] = (uint8_t)(i % 3);
    const char *x = make_npy("x.npy", "|u1", "(32, 3, 8, 8)", pixels, sizeof pixels);
    const char *y = make_npy("y.npy", "|u1", "(32,)", labels, sizeof labels);
    snprintf(flags, sizeof flags,
             "--task=classify --model=resnet18 --stem=cifar --data=%s --labels=%s --eval-data=%s --eval-labels=%s "
             "--threads=1 --steps=3 --calibration=off --optimizer=sgd --lr=0.01 --save-every=3 --log-every=1 --batch=2 "
             "--accumulate-steps=8 %s",
             x, y, x, y, plans[_i]);
    train(flags, "one", "");
    steps(one);
    ck_says_all(one, "step|loss|accuracy");
    train(flags, "two", "--devices=cpu:2 --pipeline=2");
    ck_says_all(program_output, "8 micro steps are in flight|batch norm");
    ck_assert_str_eq(steps(now), one);
    same_states("one", "two", 3, "model");
}
END_TEST

/* ---- Plans ------------------------------------------------------------------------------------------------------- */

/* The ranks need not exist; a budget holds for each. */
START_TEST(plans_show_every_rank) {
    const char *flags = "--task=copy --seq-len=4000 --hidden=64 --layers=4 --batch=1 --pipeline=4";
    ck_runs("plan %s --device=null", flags);
    ck_says_all(program_output, "Pipeline: 4 ranks|rnn.weight_ih_l|waits");
    ck_runs("plan %s --device=null --world-size=8", flags);
    ck_says_all(program_output, "Pipeline: 4 ranks|Each of 2 ranks");
    ck_runs("plan %s --memory-budget=8MiB --json", flags);
    int ranks = 0;
    for (const char *at = program_output; (at = strstr(at, "\"budgeted_bytes\": ")) != NULL; at += 18, ranks++)
        ck_assert_uint_le(strtoull(at + 18, NULL, 10), 8 << 20);
    ck_assert_int_eq(ranks, 5); /* the plan's and each rank's */
    ck_refuses(2, "--pipeline=4|6 ranks", "plan %s --world-size=6", flags);
}
END_TEST

/* The first rank has the embedding, so the fastest cut needs more than the budget there. */
START_TEST(plans_show_why_a_cut_was_chosen) {
    const char *flags = "--vocab=4000 --hidden=64 --layers=6 --seq-len=3000 --tile=16 --batch=1 --pipeline=3 "
                        "--device=null --checkpoint=none";
    ck_runs("plan %s", flags);
    ck_says_all(program_output, "start with rnn.weight_ih_l3,head.weight|counted work");
    ck_assert(!strstr(program_output, "ruled out"));
    ck_runs("plan %s --memory-budget=20MiB", flags);
    ck_says_all(program_output, "start with rnn.weight_ih_l2,|ruled out|rnn.weight_ih_l3,head.weight|rank 0|20.8 MiB");
    ck_runs("plan %s:rnn.weight_ih_l1,head.weight", "--vocab=400 --layers=4 --device=null --pipeline=3");
    ck_assert(!strstr(program_output, "least time"));
}
END_TEST

/* Also if the data alone exceeds the budget. */
START_TEST(refusals_name_the_least_budget_of_all_cuts) {
    const char *flags = "--layers=4 --hidden=32 --seq-len=64 --tile=16 --pipeline=2 --device=null", *text = text_file();
    unsigned long long least[2];
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(run_program("plan --data=%s %s --memory-budget=%s", text, flags, i ? "2MiB" : "1KiB"), 2);
        const char *named = strstr(program_errors, "\n  --memory-budget=");
        ck_assert_msg(named != NULL, "%s", program_errors);
        least[i] = strtoull(named + strlen("\n  --memory-budget="), NULL, 10);
    }
    ck_assert_uint_eq(least[0], least[1]);
    ck_runs("plan --data=%s %s --memory-budget=%llu", text, flags, least[0]);
    ck_assert_int_eq(run_program("plan --data=%s %s --memory-budget=%llu", text, flags, least[0] - 1), 2);
}
END_TEST

/* 600 words, whose embedding makes the first rank's evaluation large, too. */
static const char *words_file(void) {
    static char text[1 << 14];
    for (int i = 0, n = 0; i < 3000; i++) n += snprintf(text + n, sizeof text - (size_t)n, "w%d ", i * 7919 % 600);
    return make_file("words", text, strlen(text));
}

/* The budget suffices for the fastest cut, but not with its evaluations. */
START_TEST(evaluations_count_where_a_network_is_cut) {
    char flags[512];
    const char *words = words_file();
    snprintf(flags, sizeof flags,
             "--data=%s --eval-data=%s --tokenizer=words --layers=4 --hidden=32 --embed=200 --seq-len=16 --batch=2 "
             "--threads=1 --checkpoint=none --pipeline=2",
             words, words);
    ck_runs("plan %s --device=null", flags);
    ck_says_all(program_output, "start with rnn.weight_ih_l2");
    ck_runs("plan %s --device=null --memory-budget=5000KB", flags);
    ck_says_all(program_output, "start with rnn.weight_ih_l0|ruled out");
    ck_runs("train %s --devices=cpu:2 --memory-budget=5000KB --steps=2", flags);
    ck_assert_int_eq(run_program("plan %s --device=null --memory-budget=1KB", flags), 2);
    const char *named = strstr(program_errors, "\n  --memory-budget=");
    ck_assert_msg(named != NULL, "%s", program_errors);
    unsigned long long least = strtoull(named + strlen("\n  --memory-budget="), NULL, 10);
    ck_runs("plan %s --device=null --memory-budget=%llu", flags, least);
    ck_assert_int_eq(run_program("plan %s --device=null --memory-budget=%llu", flags, least - 1), 2);
}
END_TEST

/* Rewrites times of a calibration file: a step of the head takes as long as many layers. */
static void slow_the_head_down(const char *file) {
    char command[512];
    snprintf(command, sizeof command, "sed -i 's/^\\([0-9a-f]*\\) [0-9]* \\(.*linear.*\\)$/\\1 9000000000 \\2/' %s",
             file);
    ck_assert_int_eq(system(command), 0);
}

/* Layers are measured once, part by part, and divided by what the file has. */
START_TEST(layers_are_divided_by_measured_times) {
    const char *flags = "--task=copy --seq-len=60 --hidden=32 --layers=4 --batch=1 --pipeline=2 --threads=1";
    const char *file = in_scratch("times");
    ck_runs("plan %s --calibration=off", flags);
    ck_says_all(program_output, "predicted by the layers' counted work");
    ck_assert(!strstr(program_output, "measured times of the layers"));
    ck_runs("plan %s --calibration=%s", flags, file);
    ck_says_all(program_output,
                "least time with this cut, by measured times of the layers|predicted by measured times");
    slow_the_head_down(file);
    ck_runs("plan %s --calibration=%s", flags, file);
    ck_says_all(program_output, "start with head.weight");
    const char *last = strstr(program_output, "\n  1  ");
    double ms;
    ck_assert(last && sscanf(last, " %*d %*f %*s %*f %*s %lf", &ms) == 1 && ms > 1000); /* the head's time */
}
END_TEST

/* ---- States ------------------------------------------------------------------------------------------------------ */

START_TEST(states_resume_on_any_pipeline) {
    static const struct {
        int steps;
        const char *ranks;
    } parts[] = {{3, ""},
                 {5, "--devices=cpu:2 --pipeline=2"},
                 {7, "--devices=cpu:3 --pipeline=3:rnn.weight_ih_l1,head."},
                 {9, "--devices=cpu:4 --pipeline=2 --zero=1"},
                 {11, "--devices=cpu:2"},
                 {12, ""}};
    const char *flags = FLAGS "--ema=0.9 --deterministic-world=4";
    ck_runs("train %s --batch=4 --data=%s --steps=12 --save=%s", flags, text_file(), in_scratch("whole"));
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        ck_runs("train %s --data=%s --steps=%d --save=%s --resume=%s %s %s", flags, text_file(), parts[i].steps,
                in_scratch("parts"), in_scratch("parts"), parts[i].ranks, i ? "" : "--batch=4");
    same_states("whole", "parts", 12, "model ema optimizer");
    ck_runs("eval --resume=%s --data=%s", in_scratch("parts"), text_file());
}
END_TEST

/* ---- What is said ------------------------------------------------------------------------------------------------ */

START_TEST(impossible_pipelines_are_refused) {
    const char *text = text_file();
    ck_refuses(2, "--pipeline=2|2 ranks|--devices=cpu:2", "train --data=%s --pipeline=2", text);
    ck_refuses(2, "--pipeline=two|2:rnn.weight_ih_l1", "train --data=%s --pipeline=two", text);
    ck_refuses(2, "--pipeline=65|64", "train --data=%s --pipeline=65", text);
    run_program("train --data=%s --steps=1 --devices=cpu:2 --pipeline=2 --memory-budget=400KiB", text);
    ck_says_all(program_errors, "400KiB is too small|(1052672 for messages of --pipeline)|is the least that fits");
    static const struct {
        const char *flags, *says;
    } cases[] = {{"--devices=cpu:3 --pipeline=2", "--pipeline=2|3 ranks|multiple"},
                 {"--devices=cpu:2 --pipeline=2:nothing", "nothing|no layer"},
                 {"--devices=cpu:3 --pipeline=3:rnn.weight_ih_l1", "3 ranks have 2 cuts"},
                 {"--devices=cpu:2 --pipeline=2:rnn.weight_ih_l1,head", "2 ranks have 1 cut;"},
                 {"--nnodes=2 --pipeline=2", "--nnodes is a flag of remat launch"},
                 {"--devices=cpu:2 --pipeline=2 --dump-grads=grads", "--dump-grads|--pipeline"},
                 {"--devices=cpu:2 --pipeline=2 --model=gpt2", "tie"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ck_assert_int_eq(run_program("train --data=%s --steps=1 %s", text, cases[i].flags), 2);
        ck_says_all(program_errors, cases[i].says);
    }
}
END_TEST

/* Starts the ranks of one job by hand. */
static void start_ranks(int size, const char *flags, const char *of_rank_1, pid_t *process, int *err) {
    for (int r = 0; r < size; r++) {
        char line[1024];
        snprintf(line, sizeof line,
                 "train " FLAGS "--data=%s %s --init-method=file://%s/place --world-size=%d --rank=%d %s", text_file(),
                 flags, scratch(), size, r, r == 1 ? of_rank_1 : "");
        err[r] = temporary();
        process[r] = start_program(line, temporary(), err[r]);
    }
}

static int end_of(pid_t process) {
    int status;
    ck_assert_int_eq(waitpid(process, &status, 0), process);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

START_TEST(ranks_with_other_pipelines_are_refused) {
    pid_t process[2];
    int err[2];
    char said[4096];
    start_ranks(2, "--steps=1", "--pipeline=2", process, err);
    for (int r = 0; r < 2; r++) ck_assert_int_eq(end_of(process[r]), 2);
    read_back(err[0], said, sizeof said);
    ck_says_all(said, "--pipeline|ranks 0 and 1");
}
END_TEST

/* The other rank of its pipeline waits for what it sends, and another pipeline for its gradients. All name it. */
START_TEST(a_lost_rank_is_named) {
    static const struct {
        int signal, timeout_s;
        const char *says;
    } cases[] = {{SIGKILL, 60, "rank 3 on |killed"}, {SIGSTOP, 5, "rank 3 on |--hang-timeout=5"}};
    pid_t process[4];
    int err[4];
    char flags[512], said[4096];
    snprintf(flags, sizeof flags, "--pipeline=2 --steps=10000000 --save-every=1000000 --save=%s --hang-timeout=%d",
             in_scratch("states"), cases[_i].timeout_s);
    start_ranks(4, flags, "", process, err);
    wait_until_handled(process[0], SIGUSR1);
    kill(process[0], SIGUSR1); /* saves a state, so that all train */
    wait_for_state(in_scratch("states"));
    kill(process[3], cases[_i].signal);
    for (int r = 0; r < 3; r++) {
        ck_assert_int_eq(end_of(process[r]), 3);
        read_back(err[r], said, sizeof said);
        ck_says_all(said, cases[_i].says);
    }
    kill(process[3], SIGKILL);
    end_of(process[3]);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("pipeline");
    tcase_add_loop_test(tests, pipelines_have_the_bits_of_one_rank, 0, PLANS);
    tcase_add_loop_test(tests, replicas_of_a_pipeline_train_as_ranks, 0, 3);
#ifdef REMAT_HAVE_MPI
    tcase_add_loop_test(tests, replicas_under_mpirun_train_as_ranks, 0, 2);
#endif
    tcase_add_loop_test(tests, accuracy_is_that_of_one_rank, 0, 2);
    tcase_add_loop_test(tests, images_in_flight_have_the_bits_of_one_rank, 0, SANITIZED ? 1 : 3);
    tcase_add_test(tests, plans_show_every_rank);
    tcase_add_test(tests, plans_show_why_a_cut_was_chosen);
    tcase_add_test(tests, refusals_name_the_least_budget_of_all_cuts);
    tcase_add_test(tests, evaluations_count_where_a_network_is_cut);
    tcase_add_test(tests, layers_are_divided_by_measured_times);
    tcase_add_test(tests, states_resume_on_any_pipeline);
    tcase_add_test(tests, impossible_pipelines_are_refused);
    tcase_add_test(tests, ranks_with_other_pipelines_are_refused);
    tcase_add_loop_test(tests, a_lost_rank_is_named, 0, 2);
    return run_suite("pipeline", tests);
}
