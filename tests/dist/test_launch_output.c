/* test_launch_output.c: the launcher's attempts, and the ranks' output in each: restarts, logs, whole lines with a
 * prefix, and readers that are slow or gone. */
#define _GNU_SOURCE
#include "tests/dist/launchers.h"

#include <dirent.h>
#include <poll.h>

/* ---- Restarts ---------------------------------------------------------------------------------------------------- */

/* The secret belongs to the job: a rank of the next attempt must be able to prove to an earlier one that it waits for
 * its end. The attempts' numbers keep them apart (test_store.c: attempts_do_not_mix). Another job has another
 * secret. */
START_TEST(restarts_have_numbers_and_the_secret_of_the_job) {
    rm_launch_config config = JOB(2, SCRIPT("echo $RANK $TORCHELASTIC_RESTART_COUNT $TORCHELASTIC_MAX_RESTARTS "
                                            "$MASTER_PORT $REMAT_JOB_SECRET; "
                                            "test $TORCHELASTIC_RESTART_COUNT = 2 || exit 5"));
    config.max_restarts = 4;
    ck_assert_int_eq(run(config), 0);
    char *text = output_of("job", "out"), secret[2][3][100];
    int n = 0, ports[6];
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"), n++) {
        int rank, attempt, most, port;
        char word[100];
        ck_assert_int_eq(sscanf(line, "%d %d %d %d %99s", &rank, &attempt, &most, &port, word), 5);
        ck_assert(rank < 2 && attempt == n / 2 && attempt < 3 && most == 4);
        strcpy(secret[rank][attempt], word);
        ports[n] = port;
    }
    ck_assert_int_eq(n, 6);
    for (int a = 0; a < 3; a++) {
        ck_assert_str_eq(secret[0][a], secret[1][a]);
        ck_assert_str_eq(secret[0][a], secret[0][0]);
        ck_assert_int_eq(ports[2 * a], ports[0]);
    }
    ck_assert_uint_eq(strlen(secret[0][0]), 32);
    free(text);
    config.max_restarts = 1; /* the last attempt's failure counts */
    ck_assert_int_eq(run(config), 5);
    ck_said("restart 1 of 1", NULL);
    text = output_of("job", "out");
    ck_assert(contains(text, "0 1 1 ") && !contains(text, secret[0][0]));
    free(text);
}
END_TEST

/* A command line that cannot work will not work the next time either. */
START_TEST(usage_errors_are_not_restarted) {
    rm_launch_config config = JOB(2, SCRIPT("echo attempt $TORCHELASTIC_RESTART_COUNT; exit 2"));
    config.max_restarts = 3;
    ck_assert_int_eq(run(config), 2);
    ck_said("exited with status 2", "remat launch: no restart: exit status 2");
    char *text = output_of("job", "out");
    ck_assert_str_eq(text, "attempt 0\nattempt 0\n");
    free(text);
    config.max_restarts = 0; /* there is no restart left anyway */
    ck_assert_int_eq(run(config), 2);
    text = output_of("job", "err");
    ck_assert_msg(!contains(text, "started again"), "%s", text);
    free(text);
}
END_TEST

/* A rank that was asked to stop and did is not restarted. A rank that a signal killed, even the same signal, has not
 * stopped by itself. */
START_TEST(ranks_that_were_asked_to_stop_are_not_restarted) {
    rm_launch_config config =
        JOB(2, SCRIPT(with_marks("echo attempt $TORCHELASTIC_RESTART_COUNT; trap 'exit 143' TERM; "
                                 "test $RANK = 0 || { mark a; kill -TERM $$; }; missed a; exit 143")));
    config.max_restarts = 3;
    ck_assert_int_eq(run(config), 143);
    ck_said("rank 1 ", "remat launch: no restart: exit status 143");
    char *text = output_of("job", "out");
    ck_assert_str_eq(text, "attempt 0\nattempt 0\n");
    free(text);
    config.argv = SCRIPT("test $TORCHELASTIC_RESTART_COUNT = 1 || kill -TERM $$; exit 0");
    ck_assert_int_eq(run(config), 0);
    ck_said("restart 1 of 3", NULL);
}
END_TEST

/* The same ID for all ranks and attempts, and another one for the next job, whatever the jobs are called. */
START_TEST(each_job_has_its_own_id) {
    char ids[2][100];
    for (int job = 0; job < 2; job++) {
        rm_launch_config config = JOB(2, SCRIPT("echo $REMAT_JOB_ID; exit 5"));
        config.max_restarts = 1;
        config.run_id = "night";
        setenv("REMAT_JOB_ID", "of-a-launcher-around-this-one", 1);
        ck_assert_int_eq(run(config), 5);
        char *text = output_of("job", "out");
        int n = 0;
        for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"), n++) {
            if (!n) snprintf(ids[job], sizeof ids[job], "%s", line);
            ck_assert_str_eq(line, ids[job]);
        }
        ck_assert_int_eq(n, 4);
        ck_assert_int_eq((int)strlen(ids[job]), 32);
        free(text);
    }
    ck_assert_str_ne(ids[0], ids[1]);
}
END_TEST

/* The directories of runs in DIR, oldest first, since their names are times. Returns their number. */
static int runs_in(const char *dir, char names[2][40]) {
    struct dirent **entry;
    int n = 0, all = scandir(dir, &entry, NULL, alphasort);
    for (int i = 0; i < all; i++) {
        if (*entry[i]->d_name != '.' && n++ < 2) snprintf(names[n - 1], 40, "%.39s", entry[i]->d_name);
        free(entry[i]);
    }
    if (all >= 0) free(entry);
    return n;
}

/* A second job that starts at once does not touch the first one's logs, and none of them lie next to its own. */
START_TEST(each_run_has_its_own_logs) {
    char names[2][40], path[120];
    rm_launch_config config = JOB(2, SCRIPT("echo first"));
    config.log_dir = in_folder("logs");
    ck_assert_int_eq(run(config), 0);
    config.nproc = 1;
    config.argv = SCRIPT("echo second");
    ck_assert_int_eq(run(config), 0);
    ck_said("logs are in ", "/logs/20");
    ck_assert_int_eq(runs_in(in_folder("logs"), names), 2);
    for (int job = 0; job < 2; job++)
        for (int r = 0; r < 2; r++) {
            snprintf(path, sizeof path, "logs/%s/attempt-0/rank-%d.log", names[job], r);
            char *text = read_all(in_folder(path));
            ck_assert_str_eq(text, !job ? "first\n" : r ? "" : "second\n");
            free(text);
        }
}
END_TEST

START_TEST(logs_are_split_by_attempt_and_rank) {
    rm_launch_config config = JOB(2, SCRIPT("echo out $RANK; echo err $RANK >&2; printf unfinished; "
                                            "exit $((1 - TORCHELASTIC_RESTART_COUNT))"));
    char names[2][40];
    config.max_restarts = 1;
    config.prefix = true;
    config.log_dir = in_folder("some/logs");
    ck_assert_int_eq(run(config), 0);
    ck_assert_int_eq(runs_in(in_folder("some/logs"), names), 1);
    for (int attempt = 0; attempt < 2; attempt++)
        for (int r = 0; r < 2; r++) {
            char name[120], words[30];
            snprintf(name, sizeof name, "some/logs/%s/attempt-%d/rank-%d.log", names[0], attempt, r);
            char *text = read_all(in_folder(name));
            snprintf(words, sizeof words, "out %d\n", r);
            ck_assert_msg(contains(text, words), "%s: '%s'", name, text);
            snprintf(words, sizeof words, "err %d\n", r);
            ck_assert_msg(contains(text, words) && contains(text, "unfinished\n"), "%s: '%s'", name, text);
            ck_assert_msg(strlen(text) == 23, "%s: '%s'", name, text);
            free(text);
        }
    char *text = output_of("job", "out");
    ck_assert(contains(text, "[0] out 0\n") && contains(text, "[1] out 1\n") && contains(text, "[1] unfinished\n"));
    free(text);
}
END_TEST

/* --redirects, --tee and --local-ranks-filter of torchrun. Rank 0 has `redirects`, rank 1 the same with `tee` and its stderr
 * in both, which is shown. Only rank 1 is shown. */
START_TEST(streams_have_their_own_logs) {
    for (int streams = 0; streams < 4; streams++) {
        char names[2][40], logs[40], name[120];
        rm_launch_config config = JOB(2, SCRIPT("echo out $RANK; echo err $RANK >&2"));
        snprintf(logs, sizeof logs, "apart%d", streams);
        config.log_dir = in_folder(logs);
        config.redirects = (uint8_t[]){(uint8_t)streams, 2};
        config.tee = (uint8_t[]){0, (uint8_t)streams};
        config.shown = (bool[]){false, true};
        ck_assert_int_eq(run(config), 0);
        ck_assert_int_eq(runs_in(in_folder(logs), names), 1);
        for (int i = 0; i < 4; i++) {
            char line[20];
            bool logged = streams >> i % 2 & 1 || i == 3;
            snprintf(name, sizeof name, "%s/%s/attempt-0/rank-%d.%s.log", logs, names[0], i / 2,
                     i % 2 ? "stderr" : "stdout");
            char *text = read_all(in_folder(name)), *terminal = output_of("job", i % 2 ? "err" : "out");
            snprintf(line, sizeof line, "%s %d\n", i % 2 ? "err" : "out", i / 2);
            ck_assert_str_eq(text, logged ? line : "");
            ck_assert_int_eq(access(in_folder(name), F_OK) == 0, logged);
            ck_assert_int_eq(contains(terminal, line), i == 2 || (i == 3 && streams & 2));
            free(text);
            free(terminal);
        }
    }
}
END_TEST

/* ---- Output ------------------------------------------------------------------------------------------------------ */

/* Line i of rank r is "r i xxx...", with varying length; every 1,000th line has 20,000 characters, a few have
 * 300,000. */
static int line_length(int rank, int i) {
    return i % 9000 == 8999 ? 300000 : i % 1000 == 999 ? 20000 : (i * 7 + rank * 13) % 60;
}

static void print_lines(int rank, int n) {
    static char x[300001];
    memset(x, 'x', sizeof x - 1);
    for (int i = 0; i < n; i++) fprintf(i % 5 ? stdout : stderr, "%d %d %.*s\n", rank, i, line_length(rank, i), x);
}

/* Checks and counts one line: the lines of a rank and stream arrive in order, but stdout and stderr may interleave. */
static void check_line(const char *line, int next[4][2], int lines_of_a_rank) {
    int prefix, rank, i, used = 0;
    ck_assert_msg(sscanf(line, "[%d] %d %d %n", &prefix, &rank, &i, &used) == 3, "'%.100s'", line);
    ck_assert(prefix == rank && rank < 4 && i < lines_of_a_rank);
    int *expected = &next[rank][i % 5 == 0];
    ck_assert_msg(i == *expected, "rank %d has line %d after %d", rank, i, *expected);
    ck_assert_int_eq((int)strlen(line + used), line_length(rank, i));
    *expected += i % 5 == 0 ? 5 : i % 5 == 4 ? 2 : 1;
}

/* Both outputs go to one file, through the same pipe or through separate ones. */
START_TEST(lines_arrive_whole) {
    enum { LINES = 25000 };
    int next[4][2] = {{1, 0}, {1, 0}, {1, 0}, {1, 0}}, n = 0;
    pid_t pid = fork();
    if (!pid) {
        int code = 9;
        rm_launch_config config = JOB(4, (char *[]){self, "--print", "25000", NULL});
        config.prefix = true;
        to_file("job.out", 1);
        dup2(1, 2);
        if (rm_launch(&config, &code)) code = 8;
        _exit(code);
    }
    ck_assert_int_eq(end_of(pid), 0);
    char *text = output_of("job", "out");
    for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1, n++) {
        *end = 0;
        check_line(line, next, LINES);
    }
    ck_assert_int_eq(n, 4 * LINES);
    free(text);
}
END_TEST

/* As ranks do in scripts. */
static void mark(const char *name) {
    FILE *file = fopen(in_folder(name), "w");
    ck_assert(file && !fclose(file));
}

/* Waits until the launcher's output, a pipe, is full, and then until the rank that marked b, which only prints, sleeps because
 * its own pipe is full, too. */
static void wait_until_blocked(int output) {
    struct pollfd room = {.fd = output, .events = POLLOUT};
    double start_s = seconds();
    while (poll(&room, 1, 0) > 0 && seconds() - start_s < 60) nap_ms(1);
    char *printer = read_all(in_folder("b"));
    while (process_state((pid_t)atoi(printer)) != 'S' && seconds() - start_s < 60) nap_ms(1);
    free(printer);
}

/* At first nobody reads: ranks wait, but the launcher does not, and still handles a rank that fails then in time. */
START_TEST(slow_reader_does_not_delay_the_launcher) {
    int ends[2], status = 0;
    pid_t pids[64];
    char script[1600], buffer[65536];
    static const char words[] = "exited with status 5";
    unlink(in_folder("pids"));
    snprintf(script, sizeof script,
             "echo $$ >> %s; case $RANK in 0) mark b; exec %s --print 20000;; 1) seen a; exit 5;; esac",
             in_folder("pids"), self);
    rm_launch_config config = JOB(2, SCRIPT(with_marks(script)));
    config.grace_ms = 200;
    ck_assert(!pipe(ends));
    pid_t pid = fork();
    if (!pid) {
        int code = 9;
        dup2(ends[1], 1);
        dup2(ends[1], 2);
        close(ends[0]);
        close(ends[1]);
        if (rm_launch(&config, &code)) code = 8;
        _exit(code);
    }
    wait_for_pids(pids, 2);
    wait_until_blocked(ends[1]);
    close(ends[1]);
    mark("a");
    ck_assert_msg(until_gone(pids, 2) < 15, "the ranks are still there");
    ck_assert_int_eq(waitpid(pid, &status, WNOHANG), 0); /* it still has lines to write */
    bool named = false;
    size_t kept = 0; /* the words may lie across the ends of two reads */
    for (ssize_t n; (n = read(ends[0], buffer + kept, sizeof buffer - 1 - kept)) > 0;) {
        size_t there = kept + (size_t)n;
        buffer[there] = 0;
        named |= contains(buffer, words);
        kept = there < sizeof words - 2 ? there : sizeof words - 2;
        memmove(buffer, buffer + there - kept, kept);
    }
    ck_assert_int_eq(end_of(pid), 5);
    ck_assert(named);
    close(ends[0]);
}
END_TEST

/* `| head -1`: the rest of the output is lost, the job continues, and stderr says so. */
START_TEST(closed_output_does_not_stop_the_job) {
    int ends[2];
    ck_assert(!pipe(ends));
    pid_t pid = fork();
    if (!pid) {
        int code = 9;
        rm_launch_config config =
            JOB(2, SCRIPT(with_marks("echo 1; seen a; for i in 2 3 4 5 6 7 8 9; do echo $i; done; exit 3")));
        to_file("job.err", 2);
        dup2(ends[1], 1);
        close(ends[0]);
        close(ends[1]);
        if (rm_launch(&config, &code)) code = 8;
        _exit(code);
    }
    close(ends[1]);
    char byte;
    ck_assert_int_eq(read(ends[0], &byte, 1), 1);
    close(ends[0]);
    mark("a");
    ck_assert_int_eq(end_of(pid), 3);
    ck_said("cannot write to stdout: Broken pipe", "exited with status 3");
}
END_TEST

/* The first rank may write directly to the launcher's own output. */
START_TEST(first_rank_may_write_directly) {
    rm_launch_config config = JOB(2, SCRIPT("echo rank $RANK"));
    config.direct_rank_0 = config.prefix = true;
    ck_assert_int_eq(run(config), 0);
    char *text = output_of("job", "out");
    ck_assert_msg(contains(text, "[1] rank 1\n") && contains(text, "rank 0\n") && !contains(text, "[0]"), "%s", text);
    free(text);
}
END_TEST

/* ---- main -------------------------------------------------------------------------------------------------------- */

int main(int argc, char **argv) {
    find_self();
    if (argc == 3 && !strcmp(argv[1], "--print")) return print_lines(atoi(getenv("RANK")), atoi(argv[2])), 0;
    TCase *cases = tcase_create("launch_output");
    tcase_add_test(cases, restarts_have_numbers_and_the_secret_of_the_job);
    tcase_add_test(cases, usage_errors_are_not_restarted);
    tcase_add_test(cases, ranks_that_were_asked_to_stop_are_not_restarted);
    tcase_add_test(cases, each_job_has_its_own_id);
    tcase_add_test(cases, logs_are_split_by_attempt_and_rank);
    tcase_add_test(cases, streams_have_their_own_logs);
    tcase_add_test(cases, each_run_has_its_own_logs);
    tcase_add_test(cases, lines_arrive_whole);
    tcase_add_test(cases, slow_reader_does_not_delay_the_launcher);
    tcase_add_test(cases, closed_output_does_not_stop_the_job);
    tcase_add_test(cases, first_rank_may_write_directly);
    return run_in_directories("dist/launch_output", cases);
}
