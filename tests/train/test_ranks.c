/* test_ranks.c: `remat train` on several ranks, from outside: real processes that meet through a file, and through
 * --devices. Their results, their messages when one of them differs, fails, dies, hangs or is stopped, and the files
 * that they leave. */
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

/* Every rank gets `line`; rank `odd` also gets `more`. */
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
    ck_assert_msg(says_all((j)->errors[rank], part), "rank %d: \"%s\" does not say all of \"%s\"", rank,               \
                  (j)->errors[rank], part)

/* Waits until a metrics file has this many steps. */
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

/* Whether the process is running or ready to run, and not waiting for another rank. */
static bool is_busy(pid_t process) {
    char path[40], text[400] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", (int)process);
    FILE *file = fopen(path, "r");
    ck_assert(file && fread(text, 1, sizeof text - 1, file) > 0 && strrchr(text, ')'));
    fclose(file);
    return strrchr(text, ')')[2] == 'R';
}

/* Stops a rank while it computes: the others then wait for it in their next collective. */
static void delay(pid_t process) {
    for (int i = 0; i < 5000 && !is_busy(process); i++) wait_ms(1);
    kill(process, SIGSTOP);
    wait_ms(500);
    kill(process, SIGCONT);
    wait_ms(100);
}

/* Rank 2 is delayed again and again; the end of the run names it, whatever the engine. */
START_TEST(straggler_is_named) {
    static const char *const engines[] = {"local", "gloo"};
    job j;
    char line[1024], last[4096] = "";
    const char *metrics = in_scratch("straggler");
    ck_runs("info");
    if (!says_all(program_output, engines[_i])) return;
    snprintf(
        line, sizeof line,
        "train --data=%s --hidden=64 --seq-len=64 --threads=1 --batch=8 --steps=100000 --metrics=%s --dist-backend=%s",
        text_file(), metrics, engines[_i]);
    start_ranks(&j, 3, line, -1, "");
    wait_for_steps(metrics, 5);
    for (int i = 0; i < 8; i++) delay(j.process[2]);
    kill(j.process[0], SIGTERM);
    finish_ranks(&j);
    ck_all_end(&j, 128 + SIGTERM);
    ck_assert_msg(says_all(j.output[0], "ranks waited|rank 2 on"), "%s", j.output[0]);
    FILE *file = fopen(metrics, "r");
    while (fgets(last, sizeof last, file)) continue;
    fclose(file);
    json_t *end = json_loads(last, 0, NULL), *straggler = json_object_get(end, "straggler");
    ck_assert_msg(json_integer_value(json_object_get(straggler, "rank")) == 2, "%s", last);
    ck_assert_double_gt(json_real_value(json_object_get(straggler, "waited_s")), 0.5);
    json_decref(end);
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

START_TEST(devices_flag_starts_ranks) {
    const char *text = text_file();
    ck_runs("train --devices=cpu:2 --data=%s " FLAGS "--batch=4 --steps=3 --metrics=%s", text, in_scratch("d.jsonl"));
    ck_says_all(program_output, "2 ranks|local");
    job j;
    run_ranks(&j, 2, "train --data=%s " FLAGS "--batch=4 --steps=3 --metrics=%s", text, in_scratch("e.jsonl"));
    ck_runs("report --require-identical %s %s", in_scratch("d.jsonl"), in_scratch("e.jsonl"));
}
END_TEST

/* ---- One plan, one budget --------------------------------------------------------------------------------------- */

static uint64_t whole_after(const char *text, const char *label) {
    const char *at = strstr(text, label);
    ck_assert_msg(at, "no %s in %s", label, text);
    return strtoull(at + strlen(label), NULL, 10);
}

/* The smallest budget of `plan` for two ranks is what two ranks need, to the byte; one rank reports it for both. */
START_TEST(smallest_budget_of_ranks_is_exact) {
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

/* The value of a line of /proc/PID/FILE that starts with `label`, converted from kB to bytes. */
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

/* The memory that the ranks of this host share, from an open file of one of them: reserved, whether touched or not. */
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

/* The flags, and how many half sections of gradients a rank maps of the shared memory. All are in VmRSS, its own ones
 * twice. */
static const struct {
    const char *flags;
    int shared, twice; /* half sections: shared by a rank; counted in addition to its own */
} memories[] = {
    {"", 2, 2}, {"--zero=1", 4, 4}, {"--grad-compress=fp16", 3, 1}, {"--grad-compress=bf16 --zero=1", 5, 3}};
enum { MEMORIES = sizeof memories / sizeof *memories };

/* Two ranks with a section of gradients of 34 MiB, on the smallest budget. docs/promises.md states the limits of Pss
 * and VmHWM. The shared memory is known to the byte: per rank 256 KiB for data, 8 KiB for each of two calls and a page
 * of identity; in addition 256 KiB and a page; and the sections. */
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

/* The plan counts the smaller, sharded state of the optimizer. */
START_TEST(plans_count_shards_of_other_ranks) {
    ck_runs("plan " FLAGS "--world-size=4 --json");
    uint64_t whole = whole_after(program_output, "\"optimizer_bytes\": ");
    ck_runs("plan " FLAGS "--world-size=4 --zero=1 --json");
    uint64_t share = whole_after(program_output, "\"optimizer_bytes\": ");
    ck_assert_msg(share < whole / 3, "%llu and %llu", (unsigned long long)share, (unsigned long long)whole);
    ck_runs("plan " FLAGS "--world-size=4 --zero=1 --bucket-cap-mb=0.002");
    ck_says_all(program_output, "4 ranks");
}
END_TEST

/* ---- Messages --------------------------------------------------------------------------------------------------- */

/* One rank prints the refusal, and all end with the same status. */
static const struct {
    const char *line, *odd; /* additional flags of rank 1 */
    int status, speaker;
    const char *part, *other;
} refusals[] = {
    {"--batch=4", "--hidden=13", 2, 0, "--hidden=13", "rank 1"},
    {"--batch=4", "--lr=0.02", 2, 0, "--lr=", "rank 1"},
    {"--batch=4", "--seed=3", 2, 0, "--seed=3", "rank 1"},
    {"--batch=4", "--batch=8", 2, 0, "--batch=8", "rank 1"},
    {"--batch=4", "--data=%s/longer", 2, 0, "samples", "rank 1"},
    {"--batch=4", "--data=%s/other", 2, 0, "checksum|data", "rank 1"},
    {"--batch=4 --eval-data=%s/text", "--eval-data=%s/longer", 2, 0, "evaluation|samples", "rank 1"},
    {"--batch=4 --eval-data=%s/text", "--eval-data=%s/other", 2, 0, "evaluation|checksum", "rank 1"},
    {"--batch=4", "--zero=1", 2, 0, "--zero=1", "rank 1"},
    {"--batch=4", "--dist-backend=local", 2, 0, "rank 0|--dist-backend=auto", "rank 1|--dist-backend=local"},
    {"--batch=4 --save=%s/st", "--checkpoint=sqrt", 2, 0, "rank 0|--checkpoint=none", "rank 1|--checkpoint=sqrt"},
    {"--batch=4", "--save=%s/st", 2, 0, "--save", "rank 1"},
    {"--batch=4", "--data=%s/nothing", 1, 1, "nothing|exist", "rank 1 of 2"},
    {"--batch=4 --data=%s/nothing", "", 1, 0, "nothing|exist", "rank 0 of 2"},
    {"--batch=4000", "", 2, 0, "--batch=4000", "2 ranks"},
    {"--batch=4 --metrics=/nowhere/m", "", 1, 0, "--metrics", "rank 0 of 2"},
    {"--batch=4 --save=/proc/nowhere", "", 1, 0, "--save", "rank 0 of 2"},
    {"--batch=3 --deterministic-world=4", "", 2, 0, "multiple of 2", "rank 0"},
    {"--batch=4 --deterministic-world=1", "", 2, 0, "--deterministic-world=2", "rank 0"},
    {"--batch=4 --device=null", "", 2, 0, "remat plan|--world-size=2", "rank 0"},
    {"--batch=4 --zero=1 --dump-grads=%s/g", "", 2, 0, "--dump-grads", "rank 0"},
    {"--task=adding --batch=4 --optimizer=sgd --lr=1e6", "", 1, 0, "reduce --lr", "step"},
    {"--batch=4", "--memory-budget=1GiB", 2, 0, "rank 0|--memory-budget", "--memory-budget=1073741824"},
};
enum { REFUSALS = sizeof refusals / sizeof *refusals };

/* A text as long as the first, with other content. */
static void make_other_text(void) {
    struct stat about;
    ck_assert_int_eq(stat(text_file(), &about), 0);
    char *zeros = calloc(1, (size_t)about.st_size);
    make_file("other", zeros, (size_t)about.st_size);
    free(zeros);
}

START_TEST(refusals_come_from_one_rank) {
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

/* Patches another version number into the program. */
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
    ck_says_all(program_errors, "Remat " REMAT_VERSION "|rank 1");
    ck_says_all(program_errors, "Remat 9.8.7");
}
END_TEST

/* All ranks have the same command line: one reports the error, and nothing is restarted. */
START_TEST(wrong_flags_are_reported_once) {
    int status = run_program("launch --nproc-per-node=3 --max-restarts=2 " RM_BINARY_DIR "/remat train --hiden=4");
    ck_assert_int_eq(status, 2);
    const char *said = strstr(program_errors, "--hiden is not a flag");
    ck_assert_msg(said && !strstr(strchr(said, '\n'), "is not a flag"), "%s", program_errors);
    ck_says_all(program_errors, "[0] remat train: ");
    ck_says_all(program_errors, "no restart: exit status");
}
END_TEST

/* A feature that this machine lacks will also be missing at the next attempt. */
START_TEST(missing_features_are_not_restarted) {
    int status = run_program("launch --nproc-per-node=2 --max-restarts=2 " RM_BINARY_DIR "/remat train --data=%s " FLAGS
                             "--batch=4 --steps=2 --precision=tf32",
                             text_file());
    ck_assert_int_eq(status, 2);
    ck_says_all(program_errors, "precision|tf32");
    ck_says_all(program_errors, "no restart: exit status");
}
END_TEST

/* Errors are reported once even before the group exists. The message for mpi depends on the build. */
START_TEST(wrong_engines_are_reported_once) {
    static const char *const names[] = {"nccl", "mpi"};
    setenv("ASAN_OPTIONS", "detect_leaks=0", 1); /* MPI itself leaks; leaks are the other tests' business */
    int lines = 0,
        status = run_program("train --devices=cpu:3 --dist-backend=%s --data=%s " FLAGS "--batch=4 --steps=9",
                             names[_i], text_file());
    ck_assert_int_eq(status, 2);
    /* On a busy machine MPI starts slowly, and rank 0 reports that it waits. */
    for (const char *at = program_errors; (at = strstr(at, "remat train: ")); at++)
        lines += strncmp(at, "remat train: rank 0 of 3: waiting for ", 38) != 0;
    ck_assert_msg(lines == 1 && strstr(program_errors, "remat train: rank 0 of 3 on "), "%s", program_errors);
#ifdef REMAT_HAVE_MPI
    const char *remedy = "rank 0 of 3|MPI|0 of 1|--dist-backend=mpi";
    ck_assert_msg(!_i || says_all(program_errors, remedy), "%s", program_errors);
#endif
}
END_TEST

START_TEST(unsupported_backend_is_refused_for_one_rank) {
    int status = run_program("train --dist-backend=nccl --data=%s " FLAGS "--batch=4 --steps=1", text_file());
    ck_assert_int_eq(status, 2);
    ck_says_all(program_errors, "--dist-backend=nccl|GPU");
}
END_TEST

/* A rank whose disk is full in the middle of the run reports it; the others report which rank stopped them. */
START_TEST(full_disk_of_one_rank_stops_all) {
    job j;
    char line[1024];
    snprintf(line, sizeof line, "train --data=%s " FLAGS "--batch=4 --steps=100000 --metrics-per-rank --metrics=%s/m",
             text_file(), scratch());
    ck_assert_int_eq(symlink("/dev/full", in_scratch("m.rank1")), 0);
    start_ranks(&j, 3, line, -1, "");
    finish_ranks(&j);
    ck_assert_int_eq(j.status[1], 1);
    ck_says(&j, 1, "m.rank1|space");
    for (int r = 0; r < 3; r += 2) {
        ck_assert_msg(j.status[r] == 1 || j.status[r] == 3, "exit %d", j.status[r]);
        if (j.status[r] == 3) ck_says(&j, r, "rank 1");
    }
}
END_TEST

/* ---- Ranks that die, hang and are stopped ----------------------------------------------------------------------- */

static const char *long_run(const char *more) {
    static char line[2048];
    snprintf(line, sizeof line, "train --data=%s " FLAGS "--batch=4 --steps=1000000 --metrics=%s/run.jsonl %s",
             text_file(), scratch(), more);
    return line;
}

START_TEST(killed_rank_is_named) {
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
        ck_says(&j, r, "rank 1");
        ck_says(&j, r, "signal 9");
        ck_says(&j, r, r ? "remat train: rank 2 of 3 on " : "remat train: rank 0 of 3 on ");
    }
}
END_TEST

/* A stopped rank is named within two seconds, by rank 0 alone, and the run ends after --hang-timeout. If it continues
 * in time, nothing happens. Engines that do not watch their ranks are watched through the store. */
static const char *const engines[] = {
    "local",
#ifdef REMAT_HAVE_GLOO
    "gloo",
#endif
};
enum { ENGINES = sizeof engines / sizeof *engines };

START_TEST(stopped_rank_is_named) {
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
    ck_says_all(said, "waiting|4 s");
    kill(j.process[1], SIGCONT);
    wait_ms(300);
    ck_assert_int_eq(waitpid(j.process[0], NULL, WNOHANG), 0);
    kill(j.process[1], SIGSTOP);
    stopped = now_s();
    reap(&j, 0);
    double ended = now_s() - stopped;
    ck_assert_int_eq(j.status[0], 3);
    ck_says(&j, 0, "--hang-timeout=4");
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

/* If a laptop sleeps or a batch system suspends the job, all ranks stop and continue, and the time asleep does not
 * count. A single rank that was suspended is named, and accuses no other. */
START_TEST(suspended_rank_accuses_no_other) {
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

/* Does a running rank print these words in time? */
static bool is_said(int err, const char *words, double within_s) {
    static char said[1 << 14];
    for (double start = now_s(); now_s() - start < within_s; wait_ms(20)) {
        ssize_t got = pread(err, said, sizeof said - 1, 0);
        said[got > 0 ? got : 0] = 0;
        if (says_all(said, words)) return true;
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

/* Starts rank `rank` of `size`, at that port. */
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

/* Rank 0 reports at once which rank it has refused and how to start it, and after some seconds for which ranks it
 * waits. */
START_TEST(missing_ranks_are_named) {
    job j = {0};
    int port = free_port();
    start_one(&j, 0, port, 0, 5, "--dist-backend=local");
    start_one(&j, 1, port, 1, 2, "--dist-backend=local");
    start_one(&j, 2, port, 3, 5, "--dist-backend=local");
    ck_assert(is_said(j.err[0], "rank 0 of 5: |refused|rank 1 of 2", 3));
    reap(&j, 1);
    ck_assert_int_eq(j.status[1], 2);
    ck_says(&j, 1, "--world-size|--nnodes|--nproc-per-node");
    ck_assert(is_said(j.err[0], "rank 0 of 5: |waiting|ranks 1, 2, 4 of 5|2 s|300 s", 8));
    start_one(&j, 1, port, 1, 5, "--dist-backend=local");
    start_one(&j, 3, port, 2, 5, "--dist-backend=local");
    start_one(&j, 4, port, 4, 5, "--dist-backend=local");
    finish_ranks(&j);
    ck_all_end(&j, 0);
    for (int r = 1; r < 5; r++) ck_assert_str_eq(j.errors[r], "");
}
END_TEST

START_TEST(ranks_wait_for_rank_0) {
    job j = {0}, lost = {0};
    int port = free_port();
    char words[100];
    start_one(&j, 0, port, 1, 2, "");
    start_one(&lost, 0, port, 1, 2, "--init-method=tcp://no-such-host.invalid:5");
    ck_assert(is_said(lost.err[0], "rank 1 of 2: |no-such-host.invalid|rank 0", 4));
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

/* All ranks print the same message, and end with the status for a missing rank. */
START_TEST(join_timeout_ends_the_program) {
    job j = {0};
    int port = free_port();
    start_one(&j, 0, port, 0, 3, "--join-timeout=2");
    start_one(&j, 1, port, 2, 3, "--join-timeout=2");
    finish_ranks(&j);
    ck_all_end(&j, 3);
    for (int r = 0; r < 2; r++) ck_says(&j, r, "rank 1 of 3|2000 ms|--join-timeout=2");
    ck_says(&j, 0, "rank 0 of 3: |waiting|rank 1 of 3|2 s");
    start_one(&j, 0, port, 1, 3, "--join-timeout=2");
    finish_ranks(&j);
    ck_assert_int_eq(j.status[0], 3);
    ck_says(&j, 0, "rank 1|rank 0");
    ck_says(&j, 0, "2000 ms");
}
END_TEST

/* For three ranks no number of shards works, and the message does not ask for one. */
START_TEST(three_ranks_have_no_deterministic_world) {
    job j;
    run_ranks(&j, 3, "train --data=%s " FLAGS "--batch=4 --steps=2 --deterministic-world=%d", text_file(), _i ? 4 : 8);
    ck_all_end(&j, 2);
    ck_says(&j, 0, "3 ranks|power of two");
}
END_TEST

/* If rank 0 itself has the wrong address, no rank reaches it. 192.0.2.1 is reserved for documentation (RFC 5737). */
START_TEST(wrong_address_of_rank_0_is_reported) {
    static const char *const wrong[] = {"192.0.2.1", "no-such-host.invalid"};
    static const char *const words[] = {"192.0.2.1|MASTER_ADDR", "no-such-host.invalid|MASTER_ADDR"};
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

/* ---- Long distances --------------------------------------------------------------------------------------------- */

enum { ONE_WAY_MS = 200 };

static void hand_on(int from, int to) {
    char bytes[1 << 16];
    wait_ms(ONE_WAY_MS); /* data that arrived meanwhile is sent, too */
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

/* A port that forwards to `port` with a delay each way. It ends with its connections, or with the test. */
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

/* With a round trip of 400 ms to the store a heartbeat takes two seconds, which must not count as silence. */
START_TEST(slow_network_does_not_count_as_silence) {
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
    for (int r = 0; r < 2; r++) { /* perhaps once, before the distance is known */
        const char *said = strstr(j.errors[r], "has not responded");
        ck_assert_msg(!said || !strstr(said + 1, "has not responded"), "rank %d: %s", r, j.errors[r]);
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

/* Each rank is restarted when it ends, as in a cluster. The first restarted rank finds the others of the previous
 * attempt, which must learn that it died, and end. It waits until they are restarted, too. */
START_TEST(restarted_rank_waits_for_the_others) {
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
    ck_assert_msg(_i == 2 || says_all(after.errors[1], "attempt|waiting"), "%s", after.errors[1]);
}
END_TEST

#ifdef REMAT_HAVE_MPI
/* Ranks of Open MPI that believe to be alone on their hosts: only MPI knows where rank 0 is. Rank `stopped`, if any,
 * never starts. */
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

/* MPI connects the ranks and their store: stopped and dead ranks are named as with other engines. Open MPI 5 names dead
 * ranks itself, and ends the others at once. */
START_TEST(silent_ranks_are_named_with_mpi_alone) {
    int err = temporary(), pid = 0, status;
    if (system("mpirun --version 2>/dev/null | grep -q 'Open MPI'")) return;
    pid_t mpirun = start_under_mpirun(3, -1, long_run("--hang-timeout=3"), err);
    wait_for_steps(in_scratch("run.jsonl"), 5);
    FILE *file = fopen(in_scratch("rank.1"), "r");
    ck_assert(file && fscanf(file, "%d", &pid) == 1);
    fclose(file);
    ck_assert_int_eq(kill(pid, _i ? SIGKILL : SIGSTOP), 0);
    if (_i && system("mpirun --version | grep -q 'Open MPI) [1-4]'")) {
        ck_assert(is_said(err, "rank 1 with PID", 3));
    } else if (_i) {
        ck_assert(is_said(err, "rank 1 (", 3));
        ck_assert(is_said(err, "store", 1));
    } else {
        ck_assert(is_said(err, "rank 0 of 3: |rank 1", 3));
        ck_assert(is_said(err, "--hang-timeout=3", 6));
    }
    double start = now_s();
    while (!waitpid(mpirun, &status, WNOHANG) && now_s() - start < 15) wait_ms(20);
    ck_assert_msg(now_s() - start < 15, "mpirun goes on");
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == (_i ? 137 : 3), "status %x", (unsigned)status);
    close(err);
}
END_TEST

/* MPI waits for a missing rank without naming it, and cannot be interrupted: the program ends itself. */
START_TEST(waiting_mpi_is_ended) {
    int err = temporary(), status, pid = 0;
    if (system("mpirun --version 2>/dev/null | grep -q 'Open MPI'")) return;
    pid_t mpirun = start_under_mpirun(2, 1, long_run("--join-timeout=3"), err);
    ck_assert(is_said(err, "rank 0 of 2: |waiting|2 s|3 s|MPI", 20));
    ck_assert(is_said(err, "ranks|3000 ms", 20));
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

/* A signal to one rank, or to all, ends all after the same step, with one state, from which other ranks resume. Before
 * that, SIGUSR1 to one rank makes all save and continue. */
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
    tcase_add_loop_test(tests, straggler_is_named, 0, 2);
    tcase_add_test(tests, debug_variables_describe_ranks_and_buckets);
    tcase_add_test(tests, processors_are_shared);
    tcase_add_test(tests, devices_flag_starts_ranks);
    tcase_add_loop_test(tests, smallest_budget_of_ranks_is_exact, 0, 6);
    tcase_add_loop_test(tests, ranks_stay_within_their_budget, 0, MEMORIES);
    tcase_add_test(tests, plans_count_shards_of_other_ranks);
    tcase_add_loop_test(tests, refusals_come_from_one_rank, 0, REFUSALS);
    tcase_add_test(tests, another_version_is_refused);
    tcase_add_test(tests, wrong_flags_are_reported_once);
    tcase_add_test(tests, missing_features_are_not_restarted);
    tcase_add_loop_test(tests, wrong_engines_are_reported_once, 0, 2);
    tcase_add_test(tests, unsupported_backend_is_refused_for_one_rank);
    tcase_add_test(tests, full_disk_of_one_rank_stops_all);
    tcase_add_test(tests, killed_rank_is_named);
    tcase_add_loop_test(tests, stopped_rank_is_named, 0, ENGINES);
    tcase_add_loop_test(tests, suspended_rank_accuses_no_other, 0, ENGINES);
#ifdef REMAT_HAVE_MPI
    tcase_add_loop_test(tests, silent_ranks_are_named_with_mpi_alone, 0, 2);
    tcase_add_test(tests, waiting_mpi_is_ended);
#endif
    tcase_add_test(tests, missing_ranks_are_named);
    tcase_add_test(tests, ranks_wait_for_rank_0);
    tcase_add_test(tests, join_timeout_ends_the_program);
    tcase_add_loop_test(tests, three_ranks_have_no_deterministic_world, 0, 2);
    tcase_add_loop_test(tests, wrong_address_of_rank_0_is_reported, 0, 2);
    if (HAS_GLOO) tcase_add_test(tests, slow_network_does_not_count_as_silence);
    tcase_add_loop_test(tests, restarted_rank_waits_for_the_others, 0, 3);
    tcase_add_loop_test(tests, signals_stop_all_after_the_same_step, 0, 3);
    tcase_add_loop_test(tests, resume_on_other_ranks_has_the_same_losses, 0, 2);
    tcase_add_loop_test(tests, evaluations_match_eval, 0, 2);
    tcase_add_test(tests, update_keeps_its_samples_on_other_ranks);
    tcase_add_test(tests, ranks_keep_their_batch_when_told_so);
    tcase_add_test(tests, stateful_rows_keep_an_updates_samples);
    return run_suite("train/ranks", tests);
}
