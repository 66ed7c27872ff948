/* test_ranks_memory.c: the memory of `remat train` on several ranks: one plan, one budget for each rank. */
#include "tests/train/rank_jobs.h"

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
    ck_quiet(&j, 1);
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

int main(void) {
    TCase *tests = tcase_create("ranks_memory");
    tcase_add_loop_test(tests, smallest_budget_of_ranks_is_exact, 0, 6);
    tcase_add_loop_test(tests, ranks_stay_within_their_budget, 0, MEMORIES);
    tcase_add_test(tests, plans_count_shards_of_other_ranks);
    return run_suite("train/ranks_memory", tests);
}
