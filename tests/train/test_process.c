/* test_process.c: the memory of the whole process, as the system counts it (VmHWM), compared with the plan: at most one
 * per cent above the arena and the plan's tables, plus a fixed overhead for code, libraries and their buffers. */
#include "tests/cases.h"
#include "tests/sanitized.h"
#include "tests/train/train_test.h"

#include <jansson.h>

#include "engine/remat.h"

static const struct {
    int timesteps; /* 0: the task's default */
    const char *flags;
} runs[] = {
    {512, "--hidden=32 --batch=4 --checkpoint=none"},
    {2000, "--hidden=256 --layers=2 --batch=8 --checkpoint=none"},
    {4000, "--hidden=256 --layers=1 --batch=8 --checkpoint=lean"},
    {20000, "--hidden=128 --layers=2 --batch=1 --checkpoint-segments=32 --dropout=0.1"},
    {4000, "--hidden=256 --layers=1 --batch=8 --memory-budget=24MiB --calibration=off"},
    {30000, "--model=gru --hidden=128 --batch=1 --memory-budget=12MiB --calibration=off"},
    {300000, "--hidden=8 --batch=1 --memory-budget=16MiB --calibration=off"},
    {100000, "--hidden=8 --tile=16 --batch=1 --memory-budget=20MiB --calibration=off"},
    {1000, "--model=rnn --hidden=256 --batch=32 --checkpoint=sqrt --optimizer=sgd"},
    {4000, "--hidden=256 --batch=8 --memory-budget=48MiB --calibration=off --recompute=off --spill=/tmp"},
    {0, "--task=classify --hidden=64 --batch=16 --memory-budget=8MiB --calibration=off"},
    {16, "--model=gpt2 --heads=2 --layers=150 --hidden=16 --batch=2 --memory-budget=16MB --calibration=off"},
    {5000, "--task=adding --bidirectional --layers=3 --hidden=32 --batch=1 --memory-budget=12MiB --calibration=off"},
};
enum { RUNS = sizeof runs / sizeof runs[0] };

/* The run's flags, with half the length if few cases are tried, and less under sanitizers, where memory is not compared. */
static const char *flags_of(int run) {
    static char flags[300];
    int n = snprintf(flags, sizeof flags, "--steps=2 %s", runs[run].flags);
    const int divisor = SANITIZED && runs[run].timesteps > 1000 ? 16 : rm_cases(1, 2);
    if (runs[run].timesteps)
        snprintf(flags + n, sizeof flags - (size_t)n, " --seq-len=%d", runs[run].timesteps / divisor);
    return flags;
}

static json_t *event_named(const char *path, const char *name) {
    char line[1 << 16];
    FILE *file = fopen(path, "r");
    json_t *found = NULL;
    ck_assert_ptr_nonnull(file);
    while (!found && fgets(line, sizeof line, file)) {
        json_t *event = json_loads(line, 0, NULL);
        ck_assert_ptr_nonnull(event);
        if (!strcmp(json_string_value(json_object_get(event, "event")), name))
            found = event;
        else
            json_decref(event);
    }
    fclose(file);
    ck_assert_msg(found != NULL, "%s has no event %s", path, name);
    return found;
}

static uint64_t number(const json_t *event, const char *name) {
    json_t *value = json_object_get(event, name);
    ck_assert_msg(json_is_integer(value), "no %s", name);
    return (uint64_t)json_integer_value(value);
}

/* An IDX file with this many bytes of 28 x 28 images, or of labels: the numbers 0 to 9 repeated. */
static const char *make_idx(const char *name, bool images, size_t count) {
    static uint8_t all[16 + 100 * 784];
    size_t head = images ? 16 : 8, bytes = count * (images ? 784 : 1);
    ck_assert_uint_le(head + bytes, sizeof all);
    memset(all, 0, head);
    all[2] = 8;
    all[3] = images ? 3 : 1;
    all[7] = (uint8_t)count;
    if (images) all[11] = all[15] = 28;
    for (size_t i = 0; i < bytes; i++) all[head + i] = (uint8_t)(i % 10);
    return make_file(name, all, head + bytes);
}

/* The flags for the data of the run's task. */
static const char *data_flags(const char *run) {
    static char flags[600];
    if (strstr(run, "--task=classify"))
        snprintf(flags, sizeof flags, "--data=%s --labels=%s", make_idx("images", true, 100),
                 make_idx("labels", false, 100));
    else if (strstr(run, "--task=adding"))
        strcpy(flags, "--samples=64");
    else
        snprintf(flags, sizeof flags, "--data=%s", make_text("text", 400000));
    return flags;
}

static void ck_within(const char *metrics, const char *run) {
    json_t *plan = event_named(metrics, "plan"), *end = event_named(metrics, "end");
    uint64_t budgeted = number(plan, "budgeted_bytes"), arena = number(plan, "planned_peak_bytes");
    uint64_t peak = number(end, "rss_peak_bytes");
    ck_assert_uint_eq(number(end, "arena_peak_bytes"), arena);
    ck_assert_uint_ge(budgeted, arena);
    ck_assert_msg(peak <= budgeted + budgeted / 100 + OVERHEAD_BYTES,
                  "the process took %.1f MiB; planned were %.1f (arena %.1f), so %.1f are not accounted for",
                  (double)peak / 1048576, (double)budgeted / 1048576, (double)arena / 1048576,
                  ((double)peak - (double)budgeted) / 1048576);
    if (getenv("SHOW"))
        fprintf(stderr, "%7.1f MiB planned, %7.1f more: %s\n", (double)budgeted / 1048576,
                ((double)peak - (double)budgeted) / 1048576, run);
    json_decref(plan);
    json_decref(end);
}

START_TEST(process_stays_within_the_plan) {
    if (rm_release_only(_i, 3)) return;
    const char *metrics = in_scratch("metrics.jsonl");
    const char *flags = flags_of(_i);
    ck_runs("train %s --metrics=%s --threads=2 %s", data_flags(flags), metrics, flags);
    ck_within(metrics, flags);
}
END_TEST

/* Single arrays are larger than the allowed overhead of the process. */
START_TEST(writing_files_takes_no_additional_memory) {
    static const char run[] = "--hidden=1200 --seq-len=8 --batch=1";
    const char *text = data_flags(run), *metrics = in_scratch("metrics.jsonl"), *more = in_scratch("more.jsonl");
    const char *folder = in_scratch("saved"), *gradients = in_scratch("gradients");
    ck_runs("train %s --metrics=%s --steps=2 --threads=2 %s --save=%s --save-every=1 --dump-grads=%s", text, metrics,
            run, folder, gradients);
    ck_within(metrics, "saving and dumping");
    ck_runs("train %s --metrics=%s --steps=3 --threads=2 %s --resume=%s", text, more, run, folder);
    ck_within(more, "resuming");
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("process");
    tcase_add_loop_test(tests, process_stays_within_the_plan, 0, RUNS);
    tcase_add_test(tests, writing_files_takes_no_additional_memory);
    return run_suite("process", tests);
}
