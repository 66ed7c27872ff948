/* test_calibrate.c: measured times. Reading the calibration file never fails; a session uses the times in it and
 * measures the missing ones; measuring changes no bits and takes no memory beyond the step's own. How well the times
 * predict is not tested here but measured by bench/predict.py. */
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "engine/abi.h"
#include "engine/times/calibrate.h"
#include "engine/times/calibration_cache.h"
#include "engine/times/contention.h"
#include "memory/host.h"
#include "tests/net.h"
#include "tests/says.h"
#include "tests/suite.h"

static char folder[] = "/tmp/remat-calibrate-XXXXXX", path[64];

static void make_folder(void) {
    strcpy(folder + strlen(folder) - 6, "XXXXXX");
    ck_assert(mkdtemp(folder) != NULL);
    snprintf(path, sizeof path, "%s/times", folder);
}
static void remove_folder(void) {
    unlink(path);
    rmdir(path);
    ck_assert_msg(!rmdir(folder), "files remain in %s", folder); /* not even a temporary file */
}

static void write_text(const char *text) {
    FILE *file = fopen(path, "w");
    ck_assert(file && fputs(text, file) >= 0);
    ck_assert_int_eq(fclose(file), 0);
}

/* ---- The file ------------------------------------------------------------------------------------------------- */

START_TEST(entries_are_found_and_replaced) {
    rm_times times = {0};
    for (uint64_t i = 1; i <= RM_TIMES_MOST + 10; i++) CHECKED(rm_times_put(&times, i, 10 * i, "note"));
    ck_assert_int_eq(times.count, RM_TIMES_MOST);
    ck_assert(!rm_times_find(&times, 10) && rm_times_find(&times, 11)); /* the oldest entry was evicted */
    CHECKED(rm_times_put(&times, 11, 5, "another\n\x80 note"));
    ck_assert_uint_eq(rm_times_find(&times, 11)->time_ns, 5);
    ck_assert_str_eq(rm_times_find(&times, 11)->note, "another?? note");
    CHECKED(rm_times_put(&times, 0, 5, "no key"));
    CHECKED(rm_times_put(&times, 12, 0, "no time"));
    ck_assert(!rm_times_find(&times, 0));
    ck_assert_uint_eq(rm_times_find(&times, 12)->time_ns, 120);
    rm_times_free(&times);
}
END_TEST

START_TEST(bad_lines_are_skipped) {
    static const struct {
        const char *text;
        int64_t count;
    } table[] = {
        {"remat calibration 1\n1 2 note\n", 1},
        {"remat calibration 1\n1 2 note", 0},            /* truncated: 2 may have been 25 */
        {"remat calibration 1\n1 2\n", 1},               /* without a note */
        {"remat calibration 1\nx 2\n\n3 4 \n 5 6\n", 1}, /* 3 alone */
        {"remat calibration 1\n1 2x\n2 -3\n4 5.0\n", 0},
        {"remat calibration 1\nABC 2 n\n", 0},      /* hexadecimal digits are lower case */
        {"remat calibration 1\n1 2 a\n1 3 b\n", 1}, /* the later entry counts */
        {"remat calibration 2\n1 2 note\n", 0},     /* another version */
        {"1 2 note\n", 0},
        {"", 0},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        rm_times times = {0};
        CHECKED(rm_times_parse(&times, table[i].text, strlen(table[i].text)));
        ck_assert_msg(times.count == table[i].count, "%ld entries in: %s", (long)times.count, table[i].text);
        rm_times_free(&times);
    }
}
END_TEST

START_TEST(files_that_cannot_be_read_are_empty) {
    make_folder();
    rm_times times = {0};
    CHECKED(rm_times_read(&times, path)); /* no such file */
    CHECKED(rm_times_read(&times, ""));
    ck_assert_int_eq(rm_times_read(&times, folder), REMAT_INVALID);
    write_text("remat calibration 1\n");
    ck_assert_int_eq(truncate(path, 1ll << 40), 0); /* a terabyte of zeros */
    CHECKED(rm_times_read(&times, path));
    ck_assert_int_eq(times.count, 0);
    unlink(path);
    ck_assert_int_eq(mkdir(path, 0700), 0);
    CHECKED(rm_times_put(&times, 1, 2, ""));
    ck_assert_int_eq(rm_times_write(&times, path), REMAT_INVALID); /* a directory cannot be replaced */
    ck_assert_int_eq(rm_times_write(&times, "/nonexistent/times"), REMAT_IO);
    rm_times_free(&times);
    remove_folder();
}
END_TEST

/* Files of another kind are refused and stay as they are. A symbolic link is followed and stays a link. */
START_TEST(other_files_are_not_overwritten) {
    make_folder();
    rm_times times = {0}, found = {0};
    struct stat about;
    char link[256];
    CHECKED(rm_times_put(&times, 1, 2, ""));
    write_text("a letter, long in the writing\n");
    ck_assert_int_eq(rm_times_read(&found, path), REMAT_INVALID);
    ck_assert_int_eq(rm_times_write(&times, path), REMAT_INVALID);
    ck_assert(!stat(path, &about) && about.st_size == 30);
    unlink(path);
    ck_assert_int_eq(mkfifo(path, 0600), 0); /* reading it would wait for a writer forever */
    ck_assert_int_eq(rm_times_read(&found, path), REMAT_INVALID);
    ck_assert_int_eq(rm_times_write(&times, path), REMAT_INVALID);
    ck_assert(!stat(path, &about) && S_ISFIFO(about.st_mode));
    unlink(path);
    write_text("");
    snprintf(link, sizeof link, "%s/link", folder);
    ck_assert_int_eq(symlink(path, link), 0);
    CHECKED(rm_times_write(&times, link));
    ck_assert(!lstat(link, &about) && S_ISLNK(about.st_mode));
    CHECKED(rm_times_read(&found, path));
    ck_assert_int_eq(found.count, 1);
    unlink(path);
    ck_assert_int_eq(rm_times_write(&times, link), REMAT_IO); /* a dangling link now */
    unlink(link);
    rm_times_free(&times);
    rm_times_free(&found);
    remove_folder();
}
END_TEST

/* Several processes add times of their own, a few at a time; none is lost. */
START_TEST(additions_are_merged) {
    make_folder();
    enum { WRITERS = 4, ROUNDS = 25 };
    for (uint64_t w = 0; w < WRITERS; w++) {
        if (fork()) continue;
        int bad = 0;
        for (uint64_t r = 0; r < ROUNDS; r++) {
            rm_times one = {0};
            bad |= rm_times_put(&one, 1 + w * ROUNDS + r, 7, "") | rm_times_write(&one, path);
            rm_times_free(&one);
        }
        _exit(bad != 0);
    }
    for (int status, w = 0; w < WRITERS; w++) ck_assert(wait(&status) > 0 && WIFEXITED(status) && !WEXITSTATUS(status));
    rm_times all = {0};
    CHECKED(rm_times_read(&all, path));
    ck_assert_int_eq(all.count, WRITERS * ROUNDS);
    rm_times_free(&all);
    remove_folder();
}
END_TEST

/* Four processes repeatedly write whole files; a reader never sees a mixture or a part of one. */
START_TEST(concurrent_writers_leave_whole_files) {
    make_folder();
    enum { WRITERS = 4, ROUNDS = 40, ENTRIES = 500 };
    pid_t child[WRITERS];
    for (int w = 0; w < WRITERS; w++) {
        child[w] = fork();
        if (child[w]) continue;
        rm_times times = {0};
        int bad = 0;
        for (uint64_t i = 1; i <= ENTRIES; i++) bad |= rm_times_put(&times, i, (uint64_t)w + 1, "");
        for (int r = 0; r < ROUNDS; r++) bad |= rm_times_write(&times, path);
        _exit(bad != 0);
    }
    int running = WRITERS;
    while (running) {
        rm_times times = {0};
        CHECKED(rm_times_read(&times, path));
        ck_assert(times.count == 0 || times.count == ENTRIES);
        for (int64_t i = 1; i < times.count; i++) ck_assert_uint_eq(times.item[i].time_ns, times.item[0].time_ns);
        rm_times_free(&times);
        int status;
        while (running && waitpid(-1, &status, WNOHANG) > 0) {
            ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
            running--;
        }
    }
    remove_folder();
}
END_TEST

/* ---- Sessions ------------------------------------------------------------------------------------------------- */

static const net small = {
    .cell = NET_LSTM, .layers = 1, .vocabulary = 9, .embed = 4, .hidden = 6, .timesteps = 70, .batch = 2};

static remat_config config_of(const char *strategy, const char *calibration) {
    remat_config config = REMAT_CONFIG_INIT;
    config.threads = 1;
    config.tile = 8;
    config.strategy = strategy;
    config.segments = 3;
    config.calibration = calibration;
    config.optimizer = "adam";
    return config;
}

static remat_session *open_net(const net *n, const remat_config *config) {
    remat_graph *graph;
    CHECKED(remat_graph_create(&graph));
    remat_session *s = NULL;
    CHECKED(remat_session_create(graph, net_build(graph, n), config, &s));
    remat_graph_free(graph);
    return s;
}

static remat_plan_summary summary_of(const net *n, const remat_config *config) {
    remat_session *s = open_net(n, config);
    remat_plan_summary summary = rm_plan_summary_of(s);
    remat_session_free(s);
    return summary;
}

static rm_times read_times(void) {
    rm_times times = {0};
    CHECKED(rm_times_read(&times, path));
    return times;
}

START_TEST(measured_times_need_a_calibration) {
    remat_config config = config_of("none", NULL);
    ck_assert(!summary_of(&small, &config).measured_times);
    config.calibration = "";
    remat_plan_summary measured = summary_of(&small, &config);
    ck_assert(measured.measured_times);
    ck_assert(measured.forward_ns > 0 && measured.backward_ns > 0 && measured.fixed_ns > 0);
    config.device = "null";
    ck_assert(!summary_of(&small, &config).measured_times);
    config.assume_flops = 1e9;
    config.assume_bandwidth = 1e9;
    remat_plan_summary slow = summary_of(&small, &config);
    config.assume_flops = 1e12;
    config.assume_bandwidth = 1e12;
    ck_assert_uint_gt(slow.step_ns, summary_of(&small, &config).step_ns);
}
END_TEST

START_TEST(assumed_rates_need_the_null_device) {
    remat_graph *graph;
    CHECKED(remat_graph_create(&graph));
    remat_value loss = net_build(graph, &small);
    remat_config config = config_of("none", NULL);
    config.assume_flops = 1e12;
    remat_session *s;
    ck_assert_int_eq(remat_session_create(graph, loss, &config, &s), REMAT_INVALID);
    ck_says_all(remat_last_error(), "assume_flops|device|null");
    remat_graph_free(graph);
}
END_TEST

/* Measuring a stage alone may need more memory than the budget leaves; then its time is estimated. */
START_TEST(stages_that_do_not_fit_are_not_measured) {
    remat_graph *g;
    remat_session *s = NULL;
    CHECKED(remat_graph_create(&g));
    remat_value x = remat_input(g, "x", REMAT_F32, REMAT_STATIC, 2, (int64_t[]){512, 16}), y = x;
    for (int i = 0; i < 4; i++) {
        char name[] = {'w', (char)('0' + i), 0};
        remat_value w = remat_param(g, name, 2, (int64_t[]){16, 16}, remat_init_uniform(1));
        y = remat_relu(g, remat_linear(g, y, w, REMAT_NONE));
    }
    remat_value loss = remat_mse(g, y, x);
    remat_config config = config_of("optimal", "");
    config.tile = 0;
    config.memory_budget = 1;
    ck_assert_int_eq(remat_session_create(g, loss, &config, &s), REMAT_INFEASIBLE);
    config.memory_budget = remat_smallest_budget();
    CHECKED(remat_session_create(g, loss, &config, &s));
    remat_session_free(s);
    remat_graph_free(g);
}
END_TEST

/* Predictions come from the file: the test replaces every time, and adds an entry, which must stay. */
START_TEST(predicted_times_come_from_the_file) {
    make_folder();
    remat_config config = config_of("segments", path);
    remat_plan_summary first = summary_of(&small, &config), again = summary_of(&small, &config);
    ck_assert_uint_eq(first.step_ns, again.step_ns);
    ck_assert_uint_eq(first.fixed_ns, again.fixed_ns);
    rm_times times = read_times();
    ck_assert_int_ge(times.count, 2 * (1 + 2 + 2) + 1); /* two stage kinds, options all and lean, and the fixed times */
    for (int64_t i = 0; i < times.count; i++) {
        bool backward = !strncmp(times.item[i].note, "backward", 8), drop = strstr(times.item[i].note, " drop");
        times.item[i].time_ns = backward ? 7000 : drop ? 500 : 1000;
    }
    CHECKED(rm_times_put(&times, 12345, 6, "of another shape"));
    CHECKED(rm_times_write(&times, path));
    rm_times_free(&times);
    remat_plan_summary planted = summary_of(&small, &config); /* 9 stages, 3 segments: 6 stages run twice */
    ck_assert_uint_eq(planted.forward_ns, 6 * 500 + 3 * 1000);
    ck_assert_uint_eq(planted.recompute_ns, 6 * 1000);
    ck_assert_uint_eq(planted.backward_ns, 9 * 7000);
    ck_assert_uint_eq(planted.fixed_ns, 1000);
    config.tile = 16; /* another shape is measured and added; the first shape's times stay */
    ck_assert_uint_ne(summary_of(&small, &config).backward_ns, 5 * 7000);
    config.tile = 8;
    ck_assert_uint_eq(summary_of(&small, &config).backward_ns, 9 * 7000);
    times = read_times();
    ck_assert_uint_eq(rm_times_find(&times, 12345)->time_ns, 6);
    rm_times_free(&times);
    remove_folder();
}
END_TEST

/* Different shapes, attributes, optimizers or threads have different keys, so the number of entries grows. */
START_TEST(keys_tell_shapes_apart) {
    make_folder();
    net n = small;
    remat_config config = config_of("none", path);
    int64_t count = 0;
    rm_contention_pretend(-1);
    for (int change = 0; change < 7; change++) {
        if (change == 1) n.hidden = 7;
        if (change == 2) n.batch = 3;
        if (change == 3) n.vocabulary = 10;
        if (change == 4) config.optimizer = "sgd";
        if (change == 5) n.cell = NET_GRU;
        if (change == 6) config.threads = 2;
        ck_assert(summary_of(&n, &config).measured_times);
        rm_times times = read_times();
        ck_assert_msg(times.count > count, "change %d added nothing", change);
        count = times.count;
        rm_times_free(&times);
    }
    ck_assert(summary_of(&n, &config).measured_times);
    rm_times times = read_times();
    ck_assert_int_eq(times.count, count); /* nothing is measured twice */
    rm_times_free(&times);
    rm_contention_pretend(0);
    remove_folder();
}
END_TEST

/* A session uses and reports times measured on a busy machine, but does not store them. The next session measures
 * again, and stores its times if the machine is idle. With one thread, processor time is measured, which is always
 * stored. */
START_TEST(busy_times_are_not_kept) {
    make_folder();
    remat_config config = config_of("none", path);
    config.threads = 2;
    rm_contention_pretend(1);
    remat_session *s = open_net(&small, &config);
    remat_plan_summary busy = rm_plan_summary_of(s);
    char *text = remat_plan_describe(s);
    ck_assert(busy.measured_times && busy.measured_busy && busy.step_ns > 0);
    ck_says_all(text, "other programs");
    remat_text_free(text);
    remat_session_free(s);
    ck_assert_int_eq(read_times().count, 0);
    rm_contention_pretend(-1);
    remat_plan_summary quiet = summary_of(&small, &config);
    ck_assert(quiet.measured_times && !quiet.measured_busy);
    rm_times times = read_times();
    ck_assert_int_gt(times.count, 5);
    rm_times_free(&times);
    rm_contention_pretend(1);
    ck_assert(!summary_of(&small, &config).measured_busy); /* from the file: measured on an idle machine */
    unlink(path);
    config.threads = 1;
    ck_assert(!summary_of(&small, &config).measured_busy);
    times = read_times();
    ck_assert_int_gt(times.count, 5);
    rm_times_free(&times);
    rm_contention_pretend(0);
    remove_folder();
}
END_TEST

static const struct {
    double others_s, time_s;
    int threads, processors;
    bool contended;
} contentions[] = {
    {0, 1, 2, 2, false},       {0.1, 1, 2, 2, false}, {0.5, 1, 2, 2, true}, {1.8, 2, 2, 2, true},
    {8, 1, 2, 64, false},      {63, 1, 2, 64, false}, /* 64 - 63 processors remain, and a quarter */
    {64, 1, 2, 64, true},      {0, 1, 8, 2, false},   /* too many own threads: not caused by others */
    {0.04, 0.05, 2, 2, false},                        /* below the clocks' resolution */
};

START_TEST(contention_is_computed_from_busy_times) {
    ck_assert_int_eq(rm_is_contended((uint64_t)(1e9 * contentions[_i].others_s),
                                     (uint64_t)(1e9 * contentions[_i].time_s), contentions[_i].threads,
                                     contentions[_i].processors),
                     contentions[_i].contended);
}
END_TEST

/* This process starts more busy processes than there are processors. */
START_TEST(busy_processes_are_detected) {
    pid_t child[64];
    int n = (int)sysconf(_SC_NPROCESSORS_ONLN) + 1;
    FILE *file = fopen("/proc/stat", "r");
    if (!file || n > 64) return;
    fclose(file);
    for (int i = 0; i < n; i++)
        if (!(child[i] = fork()))
            for (volatile int spin = 1; spin;) continue;
    rm_contention begin = rm_contention_begin();
    struct timespec start, now;
    clock_gettime(CLOCK_MONOTONIC, &start);
    do clock_gettime(CLOCK_MONOTONIC, &now);
    while (now.tv_sec - start.tv_sec < 2);
    bool contended = rm_contention_end(&begin, n - 1);
    for (int i = 0; i < n; i++) kill(child[i], SIGKILL), waitpid(child[i], NULL, 0);
    ck_assert(contended);
}
END_TEST

START_TEST(a_corrupt_file_is_measured_again) {
    make_folder();
    remat_config config = config_of("none", path);
    static const char *const texts[] = {"", "remat calibration 1\n", "remat calibration 1\n\xff\xfe\n1 2"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        write_text(texts[i]);
        ck_assert(summary_of(&small, &config).measured_times);
        rm_times times = read_times();
        ck_assert_int_gt(times.count, 5);
        rm_times_free(&times);
    }
    config.calibration = "/nonexistent/folder/times";
    ck_assert(summary_of(&small, &config).measured_times);
    remove_folder();
}
END_TEST

START_TEST(session_refuses_a_file_that_is_not_a_calibration) {
    make_folder();
    remat_config config = config_of("none", path);
    remat_session *s;
    remat_graph *graph;
    CHECKED(remat_graph_create(&graph));
    remat_value loss = net_build(graph, &small);
    write_text("nonsense\n");
    ck_assert_int_eq(remat_session_create(graph, loss, &config, &s), REMAT_INVALID);
    ck_says_all(remat_last_error(), "calibration|remat calibration 1|not changed");
    unlink(path);
    ck_assert_int_eq(mkdir(path, 0700), 0);
    ck_assert_int_eq(remat_session_create(graph, loss, &config, &s), REMAT_INVALID);
    remat_graph_free(graph);
    remove_folder();
}
END_TEST

/* Networks without a time axis: stages of equal layers share keys, and every stage gets a time. */
START_TEST(networks_without_time_are_measured) {
    make_folder();
    remat_graph *graph;
    CHECKED(remat_graph_create(&graph));
    remat_value x = remat_input(graph, "x", REMAT_F32, REMAT_STATIC, 2, (int64_t[]){3, 8});
    for (int i = 0; i < 40; i++)
        x = remat_tanh(graph, remat_linear(graph, x, net_param(graph, "w", "", i, 2, 8, 8, 0.5), REMAT_NONE));
    remat_value loss = remat_mse(graph, x, remat_input(graph, "y", REMAT_F32, REMAT_STATIC, 2, (int64_t[]){3, 8}));
    remat_config config = config_of("sqrt", path);
    config.tile = 0;
    remat_session *s;
    CHECKED(remat_session_create(graph, loss, &config, &s));
    for (int64_t i = 0; i < s->chain.n_stages; i++) ck_assert_uint_gt(s->chain.problem.stage[i].drop.time_ns, 0);
    rm_times times = read_times();
    ck_assert_int_lt(times.count, 40); /* 40 stages of 3 or more programs, most of them equal */
    rm_times_free(&times);
    remat_session_free(s);
    remat_graph_free(graph);
    remove_folder();
}
END_TEST

/* ---- Side effects of measuring -------------------------------------------------------------------------------- */

START_TEST(measuring_changes_no_bits) {
    remat_step_result with, without;
    net n = small;
    n.dropout = 0.3;
    n.layers = 2;
    remat_config config = config_of("segments", "");
    remat_session *a = open_net(&n, &config);
    config.calibration = NULL;
    remat_session *b = open_net(&n, &config);
    for (int step = 0; step < 3; step++) {
        net_feed(a, &n, step);
        net_feed(b, &n, step);
        CHECKED(remat_step(a, 0.01, &with));
        CHECKED(remat_step(b, 0.01, &without));
        ck_assert(!memcmp(&with.loss, &without.loss, sizeof with.loss));
        ck_assert(!memcmp(&with.grad_norm, &without.grad_norm, sizeof with.grad_norm));
    }
    remat_session_free(a);
    remat_session_free(b);
}
END_TEST

/* The smallest budget that works without measuring also works with it. One byte less is refused before anything is
 * measured. */
START_TEST(measuring_needs_no_larger_budget) {
    make_folder();
    remat_graph *graph;
    CHECKED(remat_graph_create(&graph));
    remat_value loss = net_build(graph, &small);
    remat_config config = config_of("optimal", NULL);
    remat_session *s;
    config.memory_budget = 1;
    ck_assert_int_eq(remat_session_create(graph, loss, &config, &s), REMAT_INFEASIBLE);
    config.memory_budget = remat_smallest_budget();
    config.calibration = path;
    CHECKED(remat_session_create(graph, loss, &config, &s));
    ck_assert(rm_plan_summary_of(s).measured_times);
    remat_session_free(s);
    for (uint64_t round = 0; round < 50; round++) { /* the result does not depend on the times */
        rm_times times = read_times();
        for (int64_t i = 0; i < times.count; i++)
            times.item[i].time_ns =
                1 + (rm_random(round, 0, 0, 0, (uint64_t)i) >> rm_random(round, 1, 0, 0, (uint64_t)i) % 32);
        CHECKED(rm_times_write(&times, path));
        rm_times_free(&times);
        CHECKED(remat_session_create(graph, loss, &config, &s));
        remat_session_free(s);
    }
    unlink(path);
    config.memory_budget--;
    ck_assert_int_eq(remat_session_create(graph, loss, &config, &s), REMAT_INFEASIBLE);
    ck_assert(access(path, F_OK) != 0);
    remat_graph_free(graph);
    remove_folder();
}
END_TEST

#ifndef __has_feature
#define __has_feature(name) 0
#endif
#if !defined(__SANITIZE_ADDRESS__) && !__has_feature(address_sanitizer) && !defined(__SANITIZE_THREAD__) &&            \
    !__has_feature(thread_sanitizer)
/* The peak memory of a process that creates a session and makes a step, in KiB. */
static long peak_of(const remat_config *config) {
    int pipes[2];
    ck_assert_int_eq(pipe(pipes), 0);
    pid_t child = fork();
    if (!child) {
        net n = {
            .cell = NET_GRU, .layers = 1, .vocabulary = 32, .embed = 64, .hidden = 128, .timesteps = 2000, .batch = 16};
        remat_session *s = open_net(&n, config);
        remat_step_result result;
        struct rusage usage;
        net_feed(s, &n, 1);
        bool good = !remat_step(s, 0.01, &result) && !getrusage(RUSAGE_SELF, &usage);
        long peak = good ? usage.ru_maxrss : -1;
        good = write(pipes[1], &peak, sizeof peak) == sizeof peak;
        _exit(!good);
    }
    long peak = -1;
    ck_assert(read(pipes[0], &peak, sizeof peak) == sizeof peak && peak > 0);
    waitpid(child, NULL, 0);
    close(pipes[0]);
    close(pipes[1]);
    return peak;
}

/* The plan is mostly inputs and checkpoints, so that any other memory would show. */
START_TEST(measuring_takes_no_additional_memory) {
    remat_config config = config_of("segments", NULL);
    config.tile = 16;
    config.segments = 125;
    long without = peak_of(&config);
    config.calibration = "";
    long with = peak_of(&config);
    ck_assert_msg(with <= without + 1024, "peak %ld KiB with measuring, %ld without", with, without);
}
END_TEST
#else
START_TEST(measuring_takes_no_additional_memory) {} /* sanitizers keep freed memory */
END_TEST
#endif

/* Each allocation of a measuring session fails once: the status is MEMORY, or the session works without a file. */
START_TEST(failed_allocations_of_calibrations_are_reported) {
    make_folder();
    net n = small;
    n.timesteps = 20;
    n.hidden = 2;
    remat_graph *graph;
    CHECKED(remat_graph_create(&graph));
    remat_value loss = net_build(graph, &n);
    remat_config config = config_of("segments", path);
    remat_session *s = NULL;
    remat_status status = REMAT_MEMORY;
    int refused = 0;
    for (int64_t at = 1; at < 100000; at++) {
        unlink(path);
        int64_t before = rm_host_allocations();
        rm_host_fail_at(at);
        status = remat_session_create(graph, loss, &config, &s);
        int64_t made = rm_host_allocations() - before;
        rm_host_fail_at(0);
        ck_assert_msg(status == REMAT_OK || status == REMAT_MEMORY, "allocation %ld: %s", (long)at, remat_last_error());
        if (status == REMAT_OK) remat_session_free(s);
        refused += status == REMAT_MEMORY;
        if (made < at) break; /* no allocation was left to fail */
    }
    ck_assert_int_eq(status, REMAT_OK);
    ck_assert_int_gt(refused, 20);
    remat_graph_free(graph);
    remove_folder();
}
END_TEST

int main(void) {
    TCase *file = tcase_create("file"), *sessions = tcase_create("sessions");
    tcase_add_test(file, entries_are_found_and_replaced);
    tcase_add_test(file, bad_lines_are_skipped);
    tcase_add_test(file, files_that_cannot_be_read_are_empty);
    tcase_add_test(file, other_files_are_not_overwritten);
    tcase_add_test(file, additions_are_merged);
    tcase_add_test(file, concurrent_writers_leave_whole_files);
    tcase_add_test(sessions, measured_times_need_a_calibration);
    tcase_add_test(sessions, assumed_rates_need_the_null_device);
    tcase_add_test(sessions, stages_that_do_not_fit_are_not_measured);
    tcase_add_test(sessions, predicted_times_come_from_the_file);
    tcase_add_test(sessions, keys_tell_shapes_apart);
    tcase_add_test(sessions, busy_times_are_not_kept);
    tcase_add_loop_test(sessions, contention_is_computed_from_busy_times, 0, sizeof contentions / sizeof *contentions);
    tcase_add_test(sessions, busy_processes_are_detected);
    tcase_add_test(sessions, a_corrupt_file_is_measured_again);
    tcase_add_test(sessions, session_refuses_a_file_that_is_not_a_calibration);
    tcase_add_test(sessions, networks_without_time_are_measured);
    tcase_add_test(sessions, measuring_changes_no_bits);
    tcase_add_test(sessions, measuring_needs_no_larger_budget);
    tcase_add_test(sessions, measuring_takes_no_additional_memory);
    tcase_add_test(sessions, failed_allocations_of_calibrations_are_reported);
    return run_cases("calibrate", file, sessions);
}
