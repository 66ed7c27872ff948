/* test_threads.c: the memory of many threads besides the plan: 16 MiB for up to 8 threads, and 1 MiB for each
 * additional one, for any number of processors. test_process.c tests few threads. */
#include "tests/train/train_test.h"

/* The number after the last "name": in a metrics file. */
static uint64_t last_number(const char *path, const char *name) {
    char line[1 << 15], quoted[64];
    uint64_t found = 0;
    FILE *file = fopen(path, "r");
    ck_assert_ptr_nonnull(file);
    snprintf(quoted, sizeof quoted, "\"%s\":", name);
    while (fgets(line, sizeof line, file)) {
        const char *at = strstr(line, quoted);
        if (at) found = strtoull(at + strlen(quoted), NULL, 10);
    }
    fclose(file);
    ck_assert_msg(found > 0, "no %s in %s", name, path);
    return found;
}

static const struct {
    const char *flags;
    uint64_t threads;
} runs[] = {
    {"--hidden=512 --seq-len=64 --batch=32 --checkpoint=sqrt", 16},
    {"--hidden=512 --seq-len=64 --batch=32", 32},
    {"--hidden=512 --seq-len=64 --batch=32 --checkpoint=sqrt", 64},
    {"--hidden=32 --seq-len=256 --batch=4", 64},
};

START_TEST(threads_stay_within_the_promise) {
    const char *metrics = in_scratch("metrics.jsonl"), *text = make_text("text", 40000);
    setenv("OMP_WAIT_POLICY", "passive", 1); /* there are more threads than processors */
    ck_runs("train --data=%s --layers=1 --steps=1 --metrics=%s --threads=%d %s", text, metrics, (int)runs[_i].threads,
            runs[_i].flags);
    uint64_t budgeted = last_number(metrics, "budgeted_bytes"), peak = last_number(metrics, "rss_peak_bytes");
    uint64_t allowed = OVERHEAD_BYTES + ((runs[_i].threads - 8) << 20);
    ck_assert_msg(peak <= budgeted + budgeted / 100 + allowed, "%.1f MiB beside %.1f planned ones: %s",
                  ((double)peak - (double)budgeted) / 1048576, (double)budgeted / 1048576, runs[_i].flags);
    if (getenv("SHOW"))
        fprintf(stderr, "%7.1f MiB planned, %7.1f more: %d threads, %s\n", (double)budgeted / 1048576,
                ((double)peak - (double)budgeted) / 1048576, (int)runs[_i].threads, runs[_i].flags);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("threads");
    tcase_add_loop_test(tests, threads_stay_within_the_promise, 0, sizeof runs / sizeof *runs);
    return run_suite("threads", tests);
}
