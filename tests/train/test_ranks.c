/* test_ranks.c: `remat train` on several ranks, from outside: real processes that meet in a file, and through --devices. What
 * they compute, what they say when one of them differs, fails, dies, hangs or is stopped, and what is left on disk. */
#define _GNU_SOURCE /* sched_getaffinity */
#include "tests/train/train_test.h"

#include <arpa/inet.h>
#include <jansson.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <time.h>

#define FLAGS "--hidden=12 --layers=2 --seq-len=24 --threads=1 --lr=0.01 "
enum { MOST = 8 };

/* ---- Running ranks ----------------------------------------------------------------------------------------------- */

typedef struct {
    int size;
    pid_t process[MOST];
    int out[MOST], err[MOST];
    int status[MOST]; /* exit status; 128 + n: signal n ended it */
    char output[MOST][1 << 14], errors[MOST][1 << 13];
} job;

static int meetings;

static void wait_ms(int ms) { nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000L}, NULL); }

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Every rank gets `line`; rank `odd` gets `more` besides. */
static void start_ranks(job *j, int size, const char *line, int odd, const char *more) {
    *j = (job){.size = size};
    meetings++;
    for (int r = 0; r < size; r++) {
        char whole[3072];
        snprintf(whole, sizeof whole, "%s --init-method=file://%s/meeting%d --world-size=%d --rank=%d %s", line,
                 scratch(), meetings, size, r, r == odd ? more : "");
        j->out[r] = temporary();
        j->err[r] = temporary();
        j->process[r] = start_program(whole, j->out[r], j->err[r]);
    }
}

static void reap(job *j, int r) {
    int status;
    if (!j->process[r]) return;
    ck_assert_int_eq(waitpid(j->process[r], &status, 0), j->process[r]);
    j->process[r] = 0;
    j->status[r] = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    read_back(j->out[r], j->output[r], sizeof j->output[r]);
    read_back(j->err[r], j->errors[r], sizeof j->errors[r]);
}

static void finish_ranks(job *j) {
    for (int r = 0; r < j->size; r++) reap(j, r);
}

static void run_ranks(job *j, int size, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void run_ranks(job *j, int size, const char *format, ...) {
    char line[2048];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    start_ranks(j, size, line, -1, "");
    finish_ranks(j);
}

#define ck_all_end(j, expected)                                                                                        \
    do {                                                                                                               \
        for (int r_ = 0; r_ < (j)->size; r_++)                                                                         \
            ck_assert_msg((j)->status[r_] == (expected), "rank %d: exit %d, not %d: %s", r_, (j)->status[r_],          \
                          expected, (j)->errors[r_]);                                                                  \
    } while (0)
#define ck_says(j, rank, part)                                                                                         \
    ck_assert_msg(strstr((j)->errors[rank], part), "rank %d: \"%s\" does not say \"%s\"", rank, (j)->errors[rank], part)

/* Waits until a metrics file has so many steps. */
static void wait_for_steps(const char *path, int steps) {
    for (int i = 0; i < 2000; i++) {
        char line[4096];
        int seen = 0;
        FILE *file = fopen(path, "r");
        while (file && fgets(line, sizeof line, file)) seen += strstr(line, "\"event\":\"step\"") != NULL;
        if (file) fclose(file);
        if (seen >= steps) return;
        wait_ms(10);
    }
    ck_abort_msg("%s never had %d steps", path, steps);
}

static bool same_files(const char *a, const char *b) {
    char command[1200];
    snprintf(command, sizeof command, "cmp %s %s", a, b);
    return system(command) == 0;
}

static const char *text_file(void) { return make_text("text", 20000); }

/* ---- What they compute -------------------------------------------------------------------------------------------- */

/* The same global batch on 1, 2, 4 and 8 ranks: the same losses, evaluations and parameters, to the last bit. */
START_TEST(bits_do_not_depend_on_the_world) {
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
    ck_assert_ptr_nonnull(strstr(program_output, "all 4 runs are identical"));
    for (int size = 2; size <= 8; size *= 2) {
        char one[256], other[256];
        snprintf(one, sizeof one, "%s/st1/step-00000006/model.safetensors", scratch());
        snprintf(other, sizeof other, "%s/st%d/step-00000006/model.safetensors", scratch(), size);
        ck_assert_msg(same_files(one, other), "%d ranks have other parameters than one", size);
    }
}
END_TEST

/* Also where whole arrays' norms scale the update, and each rank has only its share of the optimizer's state. */
START_TEST(optimizers_do_not_see_the_world) {
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

static double loss_of(const char *path, int64_t step) {
    char line[4096];
    double loss = -1;
    FILE *file = fopen(path, "r");
    ck_assert_ptr_nonnull(file);
    while (fgets(line, sizeof line, file)) {
        json_t *event = json_loads(line, 0, NULL);
        if (json_integer_value(json_object_get(event, "step")) == step && strstr(line, "\"event\":\"step\""))
            loss = json_number_value(json_object_get(event, "loss"));
        json_decref(event);
    }
    fclose(file);
    return loss;
}

/* Two ranks with a batch of 4 are two micro steps of 4: the samples are the same, the order of the sums is not. */
START_TEST(two_ranks_are_two_micro_steps) {
    job j;
    const char *text = text_file();
    run_ranks(&j, 2, "train --data=%s " FLAGS "--batch=4 --steps=8 --metrics=%s", text, in_scratch("ranks.jsonl"));
    ck_all_end(&j, 0);
    ck_assert_msg(strstr(j.output[0], "2 ranks over local, batch 2 x 4 = 8"), "%s", j.output[0]);
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

/* Where the optimizer's state lies, when parameters are updated, and how buckets are cut changes no bit; so does the plan. */
START_TEST(ways_of_doing_the_same) {
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

/* Compressed gradients are near, not equal; every rank still has the same bits, or the comparison at a resume would fail. */
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

START_TEST(metrics_count_what_travels) {
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

/* Ranks that may use the same processors share them, where nothing else is said. */
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

START_TEST(devices_start_ranks) {
    const char *text = text_file();
    ck_runs("train --devices=cpu:2 --data=%s " FLAGS "--batch=4 --steps=3 --metrics=%s", text, in_scratch("d.jsonl"));
    ck_assert_msg(strstr(program_output, "2 ranks over local"), "%s", program_output);
    job j;
    run_ranks(&j, 2, "train --data=%s " FLAGS "--batch=4 --steps=3 --metrics=%s", text, in_scratch("e.jsonl"));
    ck_runs("report --require-identical %s %s", in_scratch("d.jsonl"), in_scratch("e.jsonl"));
}
END_TEST

/* ---- One plan, one budget ----------------------------------------------------------------------------------------- */

static uint64_t whole_after(const char *text, const char *label) {
    const char *at = strstr(text, label);
    ck_assert_msg(at, "no %s in %s", label, text);
    return strtoull(at + strlen(label), NULL, 10);
}

/* What `plan` says to be the least for two ranks is what two ranks need, to the byte; and one says so, for both. */
START_TEST(a_budget_holds_for_ranks) {
    static const char *const more[] = {"",
                                       "--zero=1",
                                       "--eval-every=2",
                                       "--deterministic-world=4 --eval-every=2",
                                       "--grad-compress=fp16 --bucket-cap-mb=0.003",
                                       "--grad-compress=bf16 --zero=1"};
    job j;
    const char *text = text_file();
    char flags[1024];
    snprintf(flags, sizeof flags, "--data=%s --eval-data=%s " FLAGS "--seq-len=200 --tile=8 --batch=4 --steps=2 %s",
             text, text, more[_i]);
    if (!strstr(more[_i], "eval"))
        snprintf(flags, sizeof flags, "--data=%s " FLAGS "--seq-len=200 --tile=8 --batch=4 --steps=2 %s", text,
                 more[_i]);
    ck_assert_int_eq(run_program("plan --world-size=2 --memory-budget=1 %s", flags), 2);
    uint64_t least = whole_after(program_errors, "\n  --memory-budget=");
    run_ranks(&j, 2, "train %s --memory-budget=%llu", flags, (unsigned long long)least);
    ck_all_end(&j, 0);
    run_ranks(&j, 2, "train %s --memory-budget=%llu", flags, (unsigned long long)least - 1);
    ck_all_end(&j, 2);
    ck_assert_uint_eq(whole_after(j.errors[0], "\n  --memory-budget="), least);
    ck_assert_str_eq(j.errors[1], "");
}
END_TEST

/* A line of /proc/PID/FILE that begins with `label` and holds kB, in bytes. */
static uint64_t process_bytes(pid_t process, const char *file, const char *label) {
    char path[64], line[256];
    uint64_t bytes = UINT64_MAX;
    snprintf(path, sizeof path, "/proc/%d/%s", (int)process, file);
    FILE *in = fopen(path, "r");
    ck_assert_msg(in, "no %s: the rank has ended", path);
    while (fgets(line, sizeof line, in))
        if (!strncmp(line, label, strlen(label))) bytes = strtoull(line + strlen(label), NULL, 10) * 1024;
    fclose(in);
    ck_assert_msg(bytes != UINT64_MAX, "no %s in %s", label, path);
    return bytes;
}

/* What the ranks of this host share, by an open file of one of them: taken from the system, touched or not. */
static uint64_t shared_bytes(pid_t process) {
    for (int fd = 3; fd < 64; fd++) {
        char path[64], target[128] = "";
        struct stat about;
        snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)process, fd);
        if (readlink(path, target, sizeof target - 1) < 0 || strncmp(target, "/memfd:remat", 12)) continue;
        ck_assert_int_eq(stat(path, &about), 0);
        return (uint64_t)about.st_blocks * 512;
    }
    ck_abort_msg("process %d shares no memory", (int)process);
}

static uint64_t whole_pages(uint64_t bytes) { return (bytes + 4095) / 4096 * 4096; }

/* The flags, and how many sections of gradients (in halves) a rank maps of what it shares: all are in VmRSS, its own ones
 * twice. */
static const struct {
    const char *flags;
    int shared, twice; /* halves of a section: shared by a rank; counted above its own */
} memories[] = {
    {"", 2, 2}, {"--zero=1", 4, 4}, {"--grad-compress=fp16", 3, 1}, {"--grad-compress=bf16 --zero=1", 5, 3}};
enum { MEMORIES = sizeof memories / sizeof *memories };

/* Two ranks with a section of gradients of 34 MiB, on the least budget there is. docs/promises.md says what is promised of
 * Pss and of VmHWM; what they share is known to the byte: per rank 256 KiB to pass data through and 8 KiB for each of two
 * calls and a page to say who it is, beside these 256 KiB and a page; and the sections. */
START_TEST(ranks_stay_within_their_budget) {
    job j;
    char flags[512], line[1024];
    snprintf(flags, sizeof flags,
             "--data=%s --hidden=1024 --layers=1 --seq-len=4 --batch=1 --threads=1 --optimizer=sgd %s", text_file(),
             memories[_i].flags);
    ck_runs("plan --world-size=2 --json %s", flags);
    uint64_t section = whole_after(program_output, "\"gradients_bytes\": ");
    ck_assert_int_eq(run_program("plan --world-size=2 --memory-budget=1 %s", flags), 2);
    uint64_t budget = whole_after(program_errors, "\n  --memory-budget="),
             most = budget + budget / 100 + OVERHEAD_BYTES;
    snprintf(line, sizeof line, "train %s --memory-budget=%llu --steps=100000 --log-every=100000 --metrics=%s", flags,
             (unsigned long long)budget, in_scratch("m"));
    start_ranks(&j, 2, line, -1, "");
    wait_for_steps(in_scratch("m"), 3);
    uint64_t shared = shared_bytes(j.process[0]), halves = (uint64_t)memories[_i].twice * section / 2;
    for (int r = 0; r < 2; r++) {
        uint64_t pss = process_bytes(j.process[r], "smaps_rollup", "Pss:");
        uint64_t peak = process_bytes(j.process[r], "status", "VmHWM:");
        if (getenv("SHOW"))
            fprintf(stderr, "%s rank %d: budget %.1f MiB, Pss %+.1f, VmHWM %+.1f\n", memories[_i].flags, r,
                    (double)budget / 1048576, ((double)pss - (double)budget) / 1048576,
                    ((double)peak - (double)budget) / 1048576);
        ck_assert_msg(pss <= most, "rank %d: Pss is %llu bytes, and the budget %llu", r, (unsigned long long)pss,
                      (unsigned long long)budget);
        ck_assert_msg(peak <= most + halves, "rank %d: VmHWM is %llu bytes, and the budget %llu", r,
                      (unsigned long long)peak, (unsigned long long)budget);
    }
    uint64_t parts = (uint64_t)(memories[_i].shared / 2) * whole_pages(section);
    if (memories[_i].shared % 2) parts += whole_pages(section / 2);
    ck_assert_uint_eq(shared, 4096 + (256 << 10) + 2 * (4096 + 2 * (8 << 10) + (256 << 10) + parts));
    kill(j.process[0], SIGINT);
    finish_ranks(&j);
    ck_all_end(&j, 128 + SIGINT);
}
END_TEST

/* Shared out among ranks the optimizer's state is smaller, and that is in the plan. */
START_TEST(plans_for_ranks_that_are_not_there) {
    ck_runs("plan " FLAGS "--world-size=4 --json");
    uint64_t whole = whole_after(program_output, "\"optimizer_bytes\": ");
    ck_runs("plan " FLAGS "--world-size=4 --zero=1 --json");
    uint64_t share = whole_after(program_output, "\"optimizer_bytes\": ");
    ck_assert_msg(share < whole / 3, "%llu and %llu", (unsigned long long)share, (unsigned long long)whole);
    ck_runs("plan " FLAGS "--world-size=4 --zero=1 --bucket-cap-mb=0.002");
    ck_assert_msg(strstr(program_output, "Each of 4 ranks: "), "%s", program_output);
}
END_TEST

/* ---- What they say ------------------------------------------------------------------------------------------------ */

/* Every refusal comes from one rank, and ends all with the same status. */
static const struct {
    const char *line, *odd; /* what rank 1 has besides */
    int status, speaker;
    const char *part, *other;
} refusals[] = {
    {"--batch=4", "--hidden=13", 2, 0, "--hidden=13", "rank 1"},
    {"--batch=4", "--lr=0.02", 2, 0, "--lr=", "rank 1"},
    {"--batch=4", "--seed=3", 2, 0, "--seed=3", "rank 1"},
    {"--batch=4", "--batch=8", 2, 0, "--batch=8", "rank 1"},
    {"--batch=4", "--data=%s/longer", 2, 0, "samples in the data", "rank 1"},
    {"--batch=4", "--data=%s/other", 2, 0, "the run: 'checksum of what is in the data: ", "rank 1"},
    {"--batch=4 --eval-data=%s/text", "--eval-data=%s/longer", 2, 0,
     "the evaluation: 'samples to evaluate on: ", "rank 1"},
    {"--batch=4 --eval-data=%s/text", "--eval-data=%s/other", 2, 0, "the evaluation: 'checksum of what is in ",
     "rank 1"},
    {"--batch=4", "--zero=1", 2, 0, "--zero=1", "rank 1"},
    {"--batch=4", "--dist-backend=local", 2, 0, "rank 0 has --dist-backend=auto", ") has --dist-backend=local"},
    {"--batch=4 --save=%s/st", "--checkpoint=sqrt", 2, 0,
     "the run: '--checkpoint=none' on rank 0, but '--checkpoint=sqrt' on rank 1", ""},
    {"--batch=4", "--save=%s/st", 2, 0, "--save", "rank 1"},
    {"--batch=4", "--data=%s/nothing", 1, 1, "does not exist", "rank 1 of 2 on "},
    {"--batch=4 --data=%s/nothing", "", 1, 0, "does not exist", "rank 0 of 2 on "},
    {"--batch=4000", "", 2, 0, "fewer than --batch=4000", "2 ranks"},
    {"--batch=4 --metrics=/nowhere/m", "", 1, 0, "--metrics", "rank 0 of 2 on "},
    {"--batch=4 --save=/proc/nowhere", "", 1, 0, "--save", "rank 0 of 2 on "},
    {"--batch=3 --deterministic-world=4", "", 2, 0, "a multiple of 2", "rank 0"},
    {"--batch=4 --deterministic-world=1", "", 2, 0, "use --deterministic-world=2", "rank 0"},
    {"--batch=4 --device=null", "", 2, 0, "remat plan --world-size=2", "rank 0"},
    {"--batch=4 --zero=1 --dump-grads=%s/g", "", 2, 0, "--dump-grads", "rank 0"},
    {"--task=adding --batch=4 --optimizer=sgd --lr=1e6", "", 1, 0, "--lr smaller", "step"},
    {"--batch=4", "--memory-budget=1GiB", 2, 0,
     "the run: 'no --memory-budget' on rank 0, but '--memory-budget=1073741824'", ""},
};
enum { REFUSALS = sizeof refusals / sizeof *refusals };

/* As long as the first, and not the same. */
static void make_other_text(void) {
    struct stat about;
    ck_assert_int_eq(stat(text_file(), &about), 0);
    char *zeros = calloc(1, (size_t)about.st_size);
    make_file("other", zeros, (size_t)about.st_size);
    free(zeros);
}

START_TEST(one_sentence_for_all) {
    job j;
    char line[1024], flags[256], odd[256];
    text_file();
    make_text("longer", 30000);
    make_other_text();
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(flags, sizeof flags, refusals[_i].line, scratch());
    snprintf(odd, sizeof odd, refusals[_i].odd, scratch());
#pragma GCC diagnostic pop
    snprintf(line, sizeof line, "train %s%s%s " FLAGS "--steps=40 %s",
             strstr(flags, "--task") ? "" : "--data=", strstr(flags, "--task") ? "" : scratch(),
             strstr(flags, "--task") ? "" : "/text", flags);
    start_ranks(&j, 2, line, 1, odd);
    finish_ranks(&j);
    ck_all_end(&j, refusals[_i].status);
    int speaker = refusals[_i].speaker;
    ck_says(&j, speaker, refusals[_i].part);
    ck_says(&j, speaker, refusals[_i].other);
    ck_assert_msg(!*j.errors[1 - speaker], "rank %d also says: %s", 1 - speaker, j.errors[1 - speaker]);
}
END_TEST

/* The program with another version's number in it. */
static void make_other_version(const char *path) {
    char command[600];
    snprintf(command, sizeof command,
             "sed 's/" REMAT_VERSION "\\x00/9.8.7\\x00/g' " RM_BINARY_DIR "/remat >%s && chmod +x %s", path, path);
    ck_assert_int_eq(system(command), 0);
}

START_TEST(another_version_is_refused) {
    const char *other = in_scratch("remat-9.8.7");
    char flags[600], command[1500];
    make_other_version(other);
    snprintf(flags, sizeof flags,
             "train --data=%s " FLAGS "--batch=4 --steps=2 --world-size=2 --init-method=file://%s --rank=", text_file(),
             in_scratch("versions"));
    snprintf(command, sizeof command, "%s %s1 2>%s &", other, flags, in_scratch("errors"));
    ck_assert_int_eq(system(command), 0);
    ck_refuses(2, "rank 0 on ", "%s0", flags);
    ck_assert_ptr_nonnull(strstr(program_errors, " runs Remat " REMAT_VERSION ", but rank 1 on "));
    ck_assert_ptr_nonnull(strstr(program_errors, " runs Remat 9.8.7"));
}
END_TEST

/* All ranks have the same command line: one says what is wrong with it, and nothing is restarted. */
START_TEST(wrong_flags_are_said_once) {
    int status = run_program("launch --nproc-per-node=3 --max-restarts=2 " RM_BINARY_DIR "/remat train --hiden=4");
    ck_assert_int_eq(status, 2);
    const char *said = strstr(program_errors, "--hiden is not a flag");
    ck_assert_msg(said && !strstr(strchr(said, '\n'), "is not a flag"), "%s", program_errors);
    ck_assert_msg(strstr(program_errors, "[0] remat train: "), "%s", program_errors);
    ck_assert_msg(strstr(program_errors, "no restart: exit status"), "%s", program_errors);
}
END_TEST

/* What this machine has not got will not be there at the next attempt either. */
START_TEST(what_is_missing_is_not_tried_again) {
    int status = run_program("launch --nproc-per-node=2 --max-restarts=2 " RM_BINARY_DIR "/remat train --data=%s " FLAGS
                             "--batch=4 --steps=2 --precision=tf32",
                             text_file());
    ck_assert_int_eq(status, 2);
    ck_assert_msg(strstr(program_errors, "precision tf32"), "%s", program_errors);
    ck_assert_msg(strstr(program_errors, "no restart: exit status"), "%s", program_errors);
}
END_TEST

/* Also before there is a group to agree over. The words for mpi depend on the build. */
START_TEST(wrong_engines_are_said_once) {
    static const char *const names[] = {"nccl", "mpi"};
    setenv("ASAN_OPTIONS", "detect_leaks=0", 1); /* MPI itself leaks; leaks are the other tests' business */
    int lines = 0,
        status = run_program("train --devices=cpu:3 --dist-backend=%s --data=%s " FLAGS "--batch=4 --steps=9",
                             names[_i], text_file());
    ck_assert_int_eq(status, 2);
    /* On a busy machine MPI takes long to start, and rank 0 says that it waits. */
    for (const char *at = program_errors; (at = strstr(at, "remat train: ")); at++)
        lines += strncmp(at, "remat train: rank 0 of 3: waiting for ", 38) != 0;
    ck_assert_msg(lines == 1 && strstr(program_errors, "remat train: rank 0 of 3 on "), "%s", program_errors);
#ifdef REMAT_HAVE_MPI
    const char *remedy = "this is rank 0 of 3, but MPI says 0 of 1; with --dist-backend=mpi";
    ck_assert_msg(!_i || strstr(program_errors, remedy), "%s", program_errors);
#endif
}
END_TEST

START_TEST(one_rank_is_refused_as_many_are) {
    int status = run_program("train --dist-backend=nccl --data=%s " FLAGS "--batch=4 --steps=1", text_file());
    ck_assert_int_eq(status, 2);
    ck_assert_msg(strstr(program_errors, "--dist-backend=nccl is for GPUs"), "%s", program_errors);
}
END_TEST

/* A rank whose disk is full in the middle of the run says so; the others say who stopped them. */
START_TEST(a_failure_in_the_middle) {
    job j;
    char line[1024];
    snprintf(line, sizeof line, "train --data=%s " FLAGS "--batch=4 --steps=100000 --metrics-per-rank --metrics=%s/m",
             text_file(), scratch());
    ck_assert_int_eq(symlink("/dev/full", in_scratch("m.rank1")), 0);
    start_ranks(&j, 3, line, -1, "");
    finish_ranks(&j);
    ck_assert_int_eq(j.status[1], 1);
    ck_says(&j, 1, "make room");
    for (int r = 0; r < 3; r += 2) {
        ck_assert_msg(j.status[r] == 1 || j.status[r] == 3, "exit %d", j.status[r]);
        if (j.status[r] == 3) ck_says(&j, r, "rank 1 on ");
    }
}
END_TEST

/* ---- Ranks that die, hang and are stopped ------------------------------------------------------------------------- */

static const char *long_run(const char *more) {
    static char line[2048];
    snprintf(line, sizeof line, "train --data=%s " FLAGS "--batch=4 --steps=1000000 --metrics=%s/run.jsonl %s",
             text_file(), scratch(), more);
    return line;
}

START_TEST(a_killed_rank_is_named) {
    job j;
    start_ranks(&j, 3, long_run(""), -1, "");
    wait_for_steps(in_scratch("run.jsonl"), 5);
    double killed = now_s();
    kill(j.process[1], SIGKILL);
    reap(&j, 0);
    reap(&j, 2);
    double took = now_s() - killed;
    ck_assert_msg(took < 2, "it took the others %.1f s to stop", took);
    finish_ranks(&j);
    for (int r = 0; r < 3; r += 2) {
        ck_assert_int_eq(j.status[r], 3);
        ck_says(&j, r, "rank 1 on ");
        ck_says(&j, r, "signal 9");
        ck_says(&j, r, r ? "remat train: rank 2 of 3 on " : "remat train: rank 0 of 3 on ");
    }
}
END_TEST

/* Named within two seconds, by rank 0 alone; ended after --hang-timeout. And when it goes on in time, nothing happens. The
 * engines that do not watch their ranks have them watched through the store. */
static const char *const engines[] = {
    "local",
#ifdef REMAT_HAVE_GLOO
    "gloo",
#endif
};
enum { ENGINES = sizeof engines / sizeof *engines };

START_TEST(a_stopped_rank_is_named) {
    job j;
    char more[64];
    snprintf(more, sizeof more, "--hang-timeout=4 --dist-backend=%s", engines[_i]);
    start_ranks(&j, 2, long_run(more), -1, "");
    wait_for_steps(in_scratch("run.jsonl"), 5);
    kill(j.process[1], SIGSTOP);
    double stopped = now_s();
    char said[4096] = "";
    while (!strstr(said, "rank 1 on ") && now_s() - stopped < 3.5) {
        wait_ms(20);
        ssize_t got = pread(j.err[0], said, sizeof said - 1, 0);
        said[got > 0 ? got : 0] = 0;
    }
    double named = now_s() - stopped;
    ck_assert_msg(named < 3, "after %.1f s rank 0 had said only \"%s\"", named, said);
    ck_assert_msg(strstr(said, "waiting up to 4 s"), "%s", said);
    kill(j.process[1], SIGCONT);
    wait_ms(300);
    ck_assert_int_eq(waitpid(j.process[0], NULL, WNOHANG), 0);
    kill(j.process[1], SIGSTOP);
    stopped = now_s();
    reap(&j, 0);
    double ended = now_s() - stopped;
    ck_assert_int_eq(j.status[0], 3);
    ck_says(&j, 0, "which is longer than --hang-timeout=4");
    ck_assert_msg(ended > 3.5 && ended < 9, "rank 0 ended after %.1f s", ended);
    kill(j.process[1], SIGCONT);
    kill(j.process[1], SIGKILL);
    finish_ranks(&j);
}
END_TEST

static void signal_all(const job *j, int size, int signal) {
    for (int r = 0; r < size; r++) kill(j->process[r], signal);
}

static int64_t lines_of(const char *path) {
    int64_t lines = 0;
    int c;
    FILE *file = fopen(path, "r");
    while (file && (c = getc(file)) != EOF) lines += c == '\n';
    if (file) fclose(file);
    return lines;
}

/* A laptop that sleeps, a batch system that suspends: all ranks stop and go on, and none counts what it slept. A rank that
 * was away alone is named, and names nobody. */
START_TEST(who_was_away_accuses_nobody) {
    job j;
    char more[64];
    snprintf(more, sizeof more, "--hang-timeout=3 --dist-backend=%s", engines[_i]);
    start_ranks(&j, 3, long_run(more), -1, "");
    for (int again = 0; again < 2; again++) {
        wait_for_steps(in_scratch("run.jsonl"), (int)lines_of(in_scratch("run.jsonl")) + 5);
        signal_all(&j, 3, SIGSTOP);
        wait_ms(3500);
        signal_all(&j, 3, SIGCONT);
    }
    wait_for_steps(in_scratch("run.jsonl"), (int)lines_of(in_scratch("run.jsonl")) + 5);
    for (int again = 0; again < 2; again++) {
        kill(j.process[1], SIGSTOP);
        wait_ms(2200);
        kill(j.process[1], SIGCONT);
        wait_ms(700);
    }
    wait_for_steps(in_scratch("run.jsonl"), (int)lines_of(in_scratch("run.jsonl")) + 5);
    signal_all(&j, 3, SIGTERM);
    finish_ranks(&j);
    ck_all_end(&j, 143);
    ck_assert_str_eq(j.errors[1], "");
    ck_assert_str_eq(j.errors[2], "");
    ck_assert_msg(strstr(j.errors[0], "rank 1 on "), "%s", j.errors[0]);
    ck_assert_msg(!strstr(j.errors[0], "rank 2 on "), "%s", j.errors[0]);
}
END_TEST

/* Whether a rank that runs has said so, of itself, in time. */
static bool is_said(int err, const char *words, double within_s) {
    static char said[1 << 14];
    for (double start = now_s(); now_s() - start < within_s; wait_ms(20)) {
        ssize_t got = pread(err, said, sizeof said - 1, 0);
        said[got > 0 ? got : 0] = 0;
        if (strstr(said, words)) return true;
    }
    fprintf(stderr, "%s", said);
    return false;
}

static int free_port(void) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    ck_assert(fd >= 0 && !bind(fd, (struct sockaddr *)&at, sizeof at));
    ck_assert(!getsockname(fd, (struct sockaddr *)&at, &length));
    close(fd);
    return ntohs(at.sin_port);
}

/* Rank `rank` of `size`, at that port. */
static void start_one(job *j, int slot, int port, int rank, int size, const char *more) {
    char line[2048];
    snprintf(line, sizeof line,
             "train --data=%s " FLAGS "--batch=4 --steps=3 --init-method=tcp://127.0.0.1:%d %s "
             "--rank=%d --world-size=%d",
             text_file(), port, more, rank, size);
    if (j->size <= slot) j->size = slot + 1;
    j->out[slot] = temporary();
    j->err[slot] = temporary();
    j->process[slot] = start_program(line, j->out[slot], j->err[slot]);
}

/* Rank 0 says at once whom it has refused, who has to be started otherwise, and after some seconds whom it waits for. */
START_TEST(the_missing_are_named) {
    job j = {0};
    int port = free_port();
    start_one(&j, 0, port, 0, 5, "--dist-backend=local");
    start_one(&j, 1, port, 1, 2, "--dist-backend=local");
    start_one(&j, 2, port, 3, 5, "--dist-backend=local");
    ck_assert(is_said(j.err[0], "remat train: rank 0 of 5: has refused rank 1 of 2 from ", 3));
    reap(&j, 1);
    ck_assert_int_eq(j.status[1], 2);
    ck_says(&j, 1, "give all ranks the same --world-size, and all hosts the same --nnodes and --nproc-per-node");
    ck_assert(is_said(j.err[0], "rank 0 of 5: waiting for ranks 1, 2, 4 of 5 since 2 s; up to 300 s", 8));
    start_one(&j, 1, port, 1, 5, "--dist-backend=local");
    start_one(&j, 3, port, 2, 5, "--dist-backend=local");
    start_one(&j, 4, port, 4, 5, "--dist-backend=local");
    finish_ranks(&j);
    ck_all_end(&j, 0);
    for (int r = 1; r < 5; r++) ck_assert_str_eq(j.errors[r], "");
}
END_TEST

START_TEST(rank_0_is_awaited) {
    job j = {0}, lost = {0};
    int port = free_port();
    char words[100];
    start_one(&j, 0, port, 1, 2, "");
    start_one(&lost, 0, port, 1, 2, "--init-method=tcp://no-such-host.invalid:5");
    ck_assert(is_said(lost.err[0], "remat train: rank 1 of 2: finds no host 'no-such-host.invalid', where rank 0", 4));
    kill(lost.process[0], SIGKILL);
    finish_ranks(&lost);
    snprintf(words, sizeof words, "remat train: rank 1 of 2: rank 0 is not at 127.0.0.1:%d yet", port);
    ck_assert(is_said(j.err[0], words, 8));
    start_one(&j, 1, port, 0, 2, "");
    finish_ranks(&j);
    ck_all_end(&j, 0);
    ck_assert_str_eq(j.errors[1], "");
}
END_TEST

/* The same sentence on all ranks, and the status of ranks that another has kept waiting. */
START_TEST(join_timeout_ends_the_wait) {
    job j = {0};
    int port = free_port();
    start_one(&j, 0, port, 0, 3, "--join-timeout=2");
    start_one(&j, 1, port, 2, 3, "--join-timeout=2");
    finish_ranks(&j);
    ck_all_end(&j, 3);
    for (int r = 0; r < 2; r++)
        ck_says(&j, r, "rank 1 of 3 did not come within 2000 ms. This is the limit of --join-timeout=2");
    ck_says(&j, 0, "remat train: rank 0 of 3: waiting for rank 1 of 3 since 2 s; up to 2 s\n");
    start_one(&j, 0, port, 1, 3, "--join-timeout=2");
    finish_ranks(&j);
    ck_assert_int_eq(j.status[0], 3);
    ck_says(&j, 0, "rank 1 cannot reach rank 0");
    ck_says(&j, 0, "within 2000 ms");
}
END_TEST

/* Of three ranks no number of shards would do, and the sentence does not ask for one. */
START_TEST(three_ranks_have_no_deterministic_world) {
    job j;
    run_ranks(&j, 3, "train --data=%s " FLAGS "--batch=4 --steps=2 --deterministic-world=%d", text_file(), _i ? 4 : 8);
    ck_all_end(&j, 2);
    ck_says(&j, 0, "cannot be shared out to 3 ranks: start 1, 2, 4 or another power of two");
}
END_TEST

/* Where rank 0 itself has the wrong address it hears nobody, and the others look elsewhere. 192.0.2.1 is nobody's (RFC 5737). */
START_TEST(wrong_address_of_rank_0_is_doubted) {
    static const char *const wrong[] = {"192.0.2.1", "no-such-host.invalid"};
    static const char *const words[] = {"192.0.2.1 (MASTER_ADDR)", "'no-such-host.invalid' (MASTER_ADDR)"};
    job j = {0};
    char more[200];
    int port = free_port();
    snprintf(more, sizeof more, "--init-method=tcp://%s:%d --join-timeout=3", wrong[_i], port);
    start_one(&j, 0, port, 0, 2, more);
    finish_ranks(&j);
    ck_all_end(&j, 3);
    ck_says(&j, 0, words[_i]);
}
END_TEST

/* ---- Far apart -------------------------------------------------------------------------------------------------------- */

enum { ONE_WAY_MS = 200 };

static void hand_on(int from, int to) {
    char bytes[1 << 16];
    wait_ms(ONE_WAY_MS); /* what came meanwhile goes along */
    ssize_t n = recv(from, bytes, sizeof bytes, 0);
    if (n <= 0 || send(to, bytes, (size_t)n, MSG_NOSIGNAL) != n) _exit(0);
}

static void relay(int near, int far) {
    static const int one = 1;
    setsockopt(near, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(far, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    for (;;) {
        struct pollfd ready[2] = {{.fd = near, .events = POLLIN}, {.fd = far, .events = POLLIN}};
        if (poll(ready, 2, -1) <= 0) _exit(0);
        if (ready[0].revents) hand_on(near, far);
        if (ready[1].revents) hand_on(far, near);
    }
}

/* A port that leads to `port` and takes its time, each way. Ends when its connections do, or with the test. */
static pid_t start_far_away(int port, int *far_port) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    ck_assert(listener >= 0 && !bind(listener, (struct sockaddr *)&at, sizeof at) && !listen(listener, 8));
    ck_assert(!getsockname(listener, (struct sockaddr *)&at, &length));
    *far_port = ntohs(at.sin_port);
    pid_t pid = fork();
    if (pid) {
        close(listener);
        return pid;
    }
    for (int near; (near = accept(listener, NULL, NULL)) >= 0; close(near)) {
        int far = socket(AF_INET, SOCK_STREAM, 0);
        at.sin_port = htons((uint16_t)port);
        if (connect(far, (struct sockaddr *)&at, sizeof at) == 0 && fork() == 0) relay(near, far);
        close(far);
    }
    _exit(0);
}

#ifdef REMAT_HAVE_GLOO
enum { HAS_GLOO = 1 };
#else
enum { HAS_GLOO = 0 };
#endif

/* With a round trip of 400 ms to the store a sign of life takes two seconds, and that is no silence. */
START_TEST(distance_is_no_silence) {
    job j = {0};
    char more[300];
    int port = free_port(), far_port;
    pid_t proxy = start_far_away(port, &far_port);
    snprintf(more, sizeof more, "--dist-backend=gloo --steps=1000000 --metrics=%s", in_scratch("run.jsonl"));
    start_one(&j, 0, port, 0, 2, more);
    start_one(&j, 1, far_port, 1, 2, more);
    wait_for_steps(in_scratch("run.jsonl"), 1);
    wait_ms(6000);
    signal_all(&j, 2, SIGTERM);
    finish_ranks(&j);
    kill(proxy, SIGKILL);
    ck_assert_int_eq(waitpid(proxy, NULL, 0), proxy);
    ck_all_end(&j, 143);
    for (int r = 0; r < 2;
         r++) { /* once, perhaps, while it is not known how far it is; it used to be every two seconds */
        const char *said = strstr(j.errors[r], "no sign of life");
        ck_assert_msg(!said || !strstr(said + 1, "no sign of life"), "rank %d: %s", r, j.errors[r]);
    }
}
END_TEST

static void start_at(job *j, int slot, const char *place, int rank, const char *flags) {
    char line[2048];
    snprintf(line, sizeof line, "train --data=%s " FLAGS "--batch=4 --init-method=%s --rank=%d --world-size=3 %s",
             text_file(), place, rank, flags);
    if (j->size <= slot) j->size = slot + 1;
    j->out[slot] = temporary();
    j->err[slot] = temporary();
    j->process[slot] = start_program(line, j->out[slot], j->err[slot]);
}

/* Each rank has somebody who starts it again when it ends, as in a cluster. The first that comes again finds the others of the attempt
 * before, which must hear that it died, and end; it waits for them to come again too. */
START_TEST(rank_that_comes_again_waits_for_the_others) {
    static const char *const backends[] = {"auto", "gloo", "gloo"};
    job before = {0}, after = {0};
    char place[300], flags[400], again[100];
    if (_i == 2)
        snprintf(place, sizeof place, "tcp://127.0.0.1:%d", free_port());
    else
        snprintf(place, sizeof place, "file://%s/again", scratch());
    snprintf(flags, sizeof flags, "--dist-backend=%s --steps=1000000 --metrics=%s", backends[_i],
             in_scratch("run.jsonl"));
    snprintf(again, sizeof again, "--dist-backend=%s --steps=3", backends[_i]);
    for (int r = 0; r < 3; r++) start_at(&before, r, place, r, flags);
    wait_for_steps(in_scratch("run.jsonl"), 3);
    kill(before.process[0], SIGSTOP);
    kill(before.process[2], SIGSTOP);
    kill(before.process[1], SIGKILL);
    reap(&before, 1);
    start_at(&after, 1, place, 1, again);
    if (_i < 2) ck_assert(is_said(after.err[1], "rank 1 was in ", 10));
    if (_i == 2) wait_ms(300);
    kill(before.process[0], SIGCONT);
    kill(before.process[2], SIGCONT);
    reap(&before, 0);
    reap(&before, 2);
    for (int r = 0; r < 3; r += 2) {
        ck_assert_msg(before.status[r] == 3, "rank %d: exit %d: %s", r, before.status[r], before.errors[r]);
        ck_says(&before, r, "rank 1 ");
    }
    start_at(&after, 0, place, 0, again);
    start_at(&after, 2, place, 2, again);
    finish_ranks(&after);
    ck_all_end(&after, 0);
    ck_assert_msg(_i == 2 ||
                      strstr(after.errors[1], "has ended: that attempt ends without it; waiting for the next one"),
                  "%s", after.errors[1]);
}
END_TEST

#ifdef REMAT_HAVE_MPI
/* Open MPI's, whose ranks take themselves for the only ones of their hosts: nobody tells them where rank 0 is. Rank `stopped`, if
 * there is one, never begins. */
static pid_t start_under_mpirun(int size, int stopped, const char *line, int err) {
    static char script[4096];
    snprintf(
        script, sizeof script,
        "export OMPI_COMM_WORLD_LOCAL_SIZE=1 OMPI_COMM_WORLD_LOCAL_RANK=0; echo $$ >%s/rank.$OMPI_COMM_WORLD_RANK; "
        "[ $OMPI_COMM_WORLD_RANK != %d ] || kill -STOP $$; exec %s/remat %s",
        scratch(), stopped, RM_BINARY_DIR, line);
    pid_t child = fork();
    if (child == 0) {
        char ranks[16];
        snprintf(ranks, sizeof ranks, "%d", size);
        setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1), setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
        setenv("ASAN_OPTIONS", "detect_leaks=0", 1); /* MPI itself leaks; leaks are the other tests' business */
        dup2(err, 1);
        dup2(err, 2);
        execlp("mpirun", "mpirun", "-np", ranks, "--oversubscribe", "--bind-to", "none", "sh", "-c", script, NULL);
        _exit(127);
    }
    ck_assert_int_gt(child, 0);
    return child;
}

/* MPI brings them together, and a store with it: who is stopped or dies is named as elsewhere. Open MPI 5 names who dies itself, and
 * ends the others at once. */
START_TEST(mpi_alone_names_the_silent_too) {
    int err = temporary(), pid = 0, status;
    if (system("mpirun --version 2>/dev/null | grep -q 'Open MPI'")) return;
    pid_t mpirun = start_under_mpirun(3, -1, long_run("--hang-timeout=3"), err);
    wait_for_steps(in_scratch("run.jsonl"), 5);
    FILE *file = fopen(in_scratch("rank.1"), "r");
    ck_assert(file && fscanf(file, "%d", &pid) == 1);
    fclose(file);
    ck_assert_int_eq(kill(pid, _i ? SIGKILL : SIGSTOP), 0);
    if (_i && system("mpirun --version | grep -q 'Open MPI) [1-4]'")) {
        ck_assert(is_said(err, "process rank 1 with PID", 3));
    } else if (_i) {
        ck_assert(is_said(err, "rank 1 (", 3));
        ck_assert(is_said(err, "is gone: it ended without closing its store", 1));
    } else {
        ck_assert(is_said(err, "rank 0 of 3: rank 1 on ", 3));
        ck_assert(is_said(err, "which is longer than --hang-timeout=3", 6));
    }
    double start = now_s();
    while (!waitpid(mpirun, &status, WNOHANG) && now_s() - start < 15) wait_ms(20);
    ck_assert_msg(now_s() - start < 15, "mpirun goes on");
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == (_i ? 137 : 3), "status %x", (unsigned)status);
    close(err);
}
END_TEST

/* MPI waits for a rank that never comes, names nobody, and cannot be told to stop: the program ends by itself. */
START_TEST(mpi_that_waits_is_ended) {
    int err = temporary(), status, pid = 0;
    if (system("mpirun --version 2>/dev/null | grep -q 'Open MPI'")) return;
    pid_t mpirun = start_under_mpirun(2, 1, long_run("--join-timeout=3"), err);
    ck_assert(is_said(err, "rank 0 of 2: waiting for the other ranks since 2 s; up to 3 s; only MPI knows them", 20));
    ck_assert(is_said(err, "the other ranks did not come within 3000 ms", 20));
    FILE *file = fopen(in_scratch("rank.1"), "r");
    ck_assert(file && fscanf(file, "%d", &pid) == 1);
    fclose(file);
    kill(pid, SIGKILL);
    ck_assert_int_eq(waitpid(mpirun, &status, 0), mpirun);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status), "status %x", (unsigned)status);
    close(err);
}
END_TEST
#endif

/* A signal to any one rank, or to all, ends all after the same step, with one state, from which other ranks go on; before that
 * SIGUSR1 to one has all save, and go on. */
START_TEST(signals_stop_all_after_the_same_step) {
    job j;
    static const int whom[] = {0, 1, -1};
    int signal = _i == 0 ? SIGINT : _i == 1 ? SIGTERM : SIGHUP;
    const char *text = text_file();
    char more[512];
    snprintf(more, sizeof more, "--deterministic-world=2 --save=%s --save-every=1000000", in_scratch("st"));
    start_ranks(&j, 2, long_run(more), -1, "");
    wait_for_steps(in_scratch("run.jsonl"), 5);
    if (_i == 2) kill(j.process[1], SIGUSR1);
    if (_i == 2) wait_for_state(in_scratch("st"));
    for (int r = 0; r < 2; r++)
        if (whom[_i] < 0 || whom[_i] == r) kill(j.process[r], signal);
    finish_ranks(&j);
    ck_all_end(&j, 128 + signal);
    ck_assert_msg(strstr(j.output[0], "stopped after step "), "%s", j.output[0]);
    ck_assert_msg(!strstr(j.output[0], ", for SIGUSR1") == (_i != 2), "%s", j.output[0]);
    int64_t step = (int64_t)whole_after(j.output[0], "stopped after step ");
    ck_assert_str_eq(j.errors[1], "");
    ck_runs("train --resume=%s --steps=%lld --metrics=%s", in_scratch("st"), (long long)step + 3,
            in_scratch("run.jsonl"));
    ck_runs("train --data=%s " FLAGS "--batch=8 --deterministic-world=2 --steps=%lld --metrics=%s", text,
            (long long)step + 3, in_scratch("alone.jsonl"));
    ck_runs("report --require-identical %s %s", in_scratch("run.jsonl"), in_scratch("alone.jsonl"));
}
END_TEST

/* ---- Resuming on other ranks -------------------------------------------------------------------------------------- */

static void copy_state(const char *from, const char *to) {
    char command[600];
    snprintf(command, sizeof command, "cp -r %s %s", from, to);
    ck_assert_int_eq(system(command), 0);
}

/* From 2 ranks to 1, 4 and 2: with a deterministic world the losses are those of a run that was never stopped; the batch of
 * a rank follows from their number. */
START_TEST(resumed_on_other_ranks) {
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
    ck_says(&j, 0, "does not agree");
}
END_TEST

/* What a run on any ranks finds of its parameters is what `remat eval` finds of its state. */
START_TEST(evaluations_agree) {
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
        ck_assert_msg(strstr(program_output, line), "%d ranks found %s, then: %s", size, loss, program_output);
    }
}
END_TEST

/* Without one, an update keeps its samples: --batch becomes what that takes, or it is said that nothing does. */
START_TEST(an_update_keeps_its_samples) {
    job j;
    run_ranks(&j, 2, "train --data=%s " FLAGS "--batch=6 --steps=4 --save=%s", text_file(), in_scratch("st"));
    ck_all_end(&j, 0);
    run_ranks(&j, 3, "train --resume=%s --steps=6", in_scratch("st"));
    ck_all_end(&j, 0);
    ck_assert_msg(strstr(j.output[0], "batch 3 x 4 = 12"), "%s", j.output[0]);
    ck_runs("plan --resume=%s --world-size=4 --json", in_scratch("st"));
    ck_assert_msg(strstr(program_output, "\"batch\": 3,"), "%.600s", program_output);
    run_ranks(&j, 1, "train --resume=%s --steps=8 --batch=3 --accumulate-steps=4", in_scratch("st"));
    ck_all_end(&j, 0);
    run_ranks(&j, 5, "train --resume=%s --steps=9", in_scratch("st"));
    ck_all_end(&j, 2);
    ck_says(&j, 0, "updates of 12 samples, which 5 ranks with 4 batches each cannot share equally");
    ck_assert_msg(!strstr(j.errors[0], "--batch="), "a number that nobody has said: %s", j.errors[0]);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("ranks");
    tcase_add_test(tests, bits_do_not_depend_on_the_world);
    tcase_add_loop_test(tests, optimizers_do_not_see_the_world, 0, 4);
    tcase_add_test(tests, two_ranks_are_two_micro_steps);
    tcase_add_test(tests, ways_of_doing_the_same);
    tcase_add_test(tests, compressed_gradients_train);
    tcase_add_test(tests, metrics_count_what_travels);
    tcase_add_test(tests, processors_are_shared);
    tcase_add_test(tests, devices_start_ranks);
    tcase_add_loop_test(tests, a_budget_holds_for_ranks, 0, 6);
    tcase_add_loop_test(tests, ranks_stay_within_their_budget, 0, MEMORIES);
    tcase_add_test(tests, plans_for_ranks_that_are_not_there);
    tcase_add_loop_test(tests, one_sentence_for_all, 0, REFUSALS);
    tcase_add_test(tests, another_version_is_refused);
    tcase_add_test(tests, wrong_flags_are_said_once);
    tcase_add_test(tests, what_is_missing_is_not_tried_again);
    tcase_add_loop_test(tests, wrong_engines_are_said_once, 0, 2);
    tcase_add_test(tests, one_rank_is_refused_as_many_are);
    tcase_add_test(tests, a_failure_in_the_middle);
    tcase_add_test(tests, a_killed_rank_is_named);
    tcase_add_loop_test(tests, a_stopped_rank_is_named, 0, ENGINES);
    tcase_add_loop_test(tests, who_was_away_accuses_nobody, 0, ENGINES);
#ifdef REMAT_HAVE_MPI
    tcase_add_loop_test(tests, mpi_alone_names_the_silent_too, 0, 2);
    tcase_add_test(tests, mpi_that_waits_is_ended);
#endif
    tcase_add_test(tests, the_missing_are_named);
    tcase_add_test(tests, rank_0_is_awaited);
    tcase_add_test(tests, join_timeout_ends_the_wait);
    tcase_add_loop_test(tests, three_ranks_have_no_deterministic_world, 0, 2);
    tcase_add_loop_test(tests, wrong_address_of_rank_0_is_doubted, 0, 2);
    if (HAS_GLOO) tcase_add_test(tests, distance_is_no_silence);
    tcase_add_loop_test(tests, rank_that_comes_again_waits_for_the_others, 0, 3);
    tcase_add_loop_test(tests, signals_stop_all_after_the_same_step, 0, 3);
    tcase_add_loop_test(tests, resumed_on_other_ranks, 0, 2);
    tcase_add_loop_test(tests, evaluations_agree, 0, 2);
    tcase_add_test(tests, an_update_keeps_its_samples);
    return run_suite("train/ranks", tests);
}
