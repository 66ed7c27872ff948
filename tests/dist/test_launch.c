/* test_launch.c: the launcher: the variables of ranks, the exit code, signals, that no process is left whichever one is
 * killed, and ranks that meet. */
#define _GNU_SOURCE
#include "tests/dist/launchers.h"

#include <dirent.h>
#include <sys/prctl.h>

#include "dist/store/rendezvous.h"
#include "memory/host.h"
#include "tests/ports.h"
#include "tests/tries.h"

/* ---- A rank's environment ---------------------------------------------------------------------------------------- */

START_TEST(ranks_get_their_variables) {
    unsetenv("OMP_NUM_THREADS");
    ck_assert_int_eq(run(JOB(3, SCRIPT("echo r=$RANK w=$WORLD_SIZE l=$LOCAL_RANK lw=$LOCAL_WORLD_SIZE g=$GROUP_RANK "
                                       "gw=$GROUP_WORLD_SIZE a=$MASTER_ADDR c=$TORCHELASTIC_RESTART_COUNT "
                                       "m=$TORCHELASTIC_MAX_RESTARTS; test $MASTER_PORT -gt 1023 -a "
                                       "$OMP_NUM_THREADS -ge 1 -a -n \"$TORCHELASTIC_RUN_ID$REMAT_JOB_SECRET\""))),
                     0);
    char *text = output_of("job", "out"), line[200];
    for (int r = 0; r < 3; r++) {
        snprintf(line, sizeof line, "r=%d w=3 l=%d lw=3 g=0 gw=1 a=127.0.0.1 c=0 m=0\n", r, r);
        ck_assert_msg(contains(text, line), "'%s' lacks '%s'", text, line);
    }
    free(text);
    setenv("OMP_NUM_THREADS", "5", 1);
    ck_assert_int_eq(run(JOB(1, SCRIPT("test $OMP_NUM_THREADS = 5"))), 0);
    unsetenv("OMP_NUM_THREADS");
}
END_TEST

START_TEST(second_node_gets_its_variables) {
    rm_launch_config config = {.nproc = 2,
                               .nnodes = 3,
                               .node_rank = 2,
                               .master_addr = "hostA",
                               .master_port = 1234,
                               .run_id = "night",
                               .argv = SCRIPT("echo $RANK $WORLD_SIZE $GROUP_RANK $MASTER_ADDR:$MASTER_PORT "
                                              "$TORCHELASTIC_RUN_ID $REMAT_JOB_SECRET [$REMAT_LISTEN_FD]")};
    ck_assert_int_eq(run(config), 0);
    char *text = output_of("job", "out");
    ck_assert(contains(text, "4 6 2 hostA:1234 night night []\n"));
    ck_assert(contains(text, "5 6 2 hostA:1234 night night []\n"));
    free(text);
}
END_TEST

/* Only the first rank has the socket; for the second, the variable is unset and the descriptor closed. */
START_TEST(only_the_first_rank_gets_the_socket) {
    ck_assert_int_eq(run(JOB(2, SCRIPT("case $RANK in 0) test -S /dev/fd/$REMAT_LISTEN_FD;; "
                                       "1) test -z \"$REMAT_LISTEN_FD\";; esac || exit 1\n"
                                       "n=0; for f in /proc/self/fd/*; do test -S $f && n=$((n+1)); done; "
                                       "test $n = $((1 - RANK))"))),
                     0);
}
END_TEST

/* ---- The exit code ----------------------------------------------------------------------------------------------- */

static const struct {
    const char *script, *said;
    int code;
} endings[] = {
    {"exit 0", "", 0},
    {"exit $((RANK * 7))", "rank 1 ", 7},
    {"test $RANK = 0 || { mark a; kill -SEGV $$; }; missed a; exit 1", "was killed by signal 11 (Segmentation fault)",
     139},
    {"test $RANK = 1 || { mark a; kill -KILL $$; }; missed a; exit 4", "was killed by signal 9 (Killed)", 137},
    {"test $RANK = 0 && { mark a; exit 6; }; missed a; exit 5", "rank 0 ", 6},
    {"test $RANK = 0 && { mark a; exit 0; }; over a; exit 4", "rank 1 ", 4},
    {"test $RANK = 0 && { mark a; exit 3; }; over a; exit 2", "rank 1 ", 2}, /* 3: another rank failed */
    {"test $RANK = 0 && { mark a; exit 3; }; over a; exit 3", "rank 0 ", 3},
    {"test $RANK = 0 && { mark a; kill -TERM $$; }; missed a", "(Terminated)", 143},
};

START_TEST(first_failure_decides_the_exit_code) {
    ck_assert_int_eq(run(JOB(2, SCRIPT(with_marks(endings[_i].script)))), endings[_i].code);
    if (endings[_i].code) ck_said(endings[_i].said, "remat launch: rank ");
}
END_TEST

/* A delayed supervisor finds both ranks ended at once. The rank that was killed is the cause; the other one exited
 * because of it. */
START_TEST(killed_rank_is_named_as_the_cause) {
    pid_t pids[64];
    char script[300];
    unlink(in_folder("pids"));
    snprintf(script, sizeof script, /* rank 1 is started last, so the supervisor is stopped when all ranks exist */
             "case $RANK in 1) kill -STOP $PPID; echo $$ >> %s; sleep 0.1; kill -9 $$;; "
             "0) while test ! -s %s; do sleep 0.01; done; echo $$ >> %s; exit 1;; esac",
             in_folder("pids"), in_folder("pids"), in_folder("pids"));
    rm_launch_config config = JOB(2, SCRIPT(script));
    pid_t pid = start(&config, "job");
    wait_for_pids(pids, 2);
    (void)until_gone(pids, 2);
    kill(child_of(pid), SIGCONT);
    ck_assert_int_eq(end_of(pid), 137);
    ck_said("rank 1 ", "was killed by signal 9");
}
END_TEST

/* Rank 0 fails; rank 1 notices and reports it; rank 2 has to be asked; rank 3 ignores SIGTERM. Whether all are in time, with
 * what was said in `err` and `out`, which the caller frees. */
static bool report_the_failure(int64_t grace_ms, char **err, char **out) {
    rm_launch_config config = JOB(4, SCRIPT(with_marks("case $RANK in 0) seen a; seen b; seen c; mark d; exit 9;; "
                                                       "1) mark a; missed d; echo rank 0 is gone >&2; exit 1;; "
                                                       "2) trap 'echo asked; exit 0' TERM; mark b; sleep 60 & wait;; "
                                                       "3) trap '' TERM; mark c; sleep 60 & wait; sleep 60;; esac")));
    char words[80];
    config.grace_ms = grace_ms;
    double start_s = seconds();
    ck_assert_int_eq(run(config), 9);
    double took = seconds() - start_s;
    ck_assert_msg(took > 1e-3 * (double)grace_ms && took < 60, "%.3f s", took);
    *err = output_of("job", "err");
    *out = output_of("job", "out");
    snprintf(words, sizeof words, "2 of them did not stop in %d ms: SIGTERM", (int)grace_ms);
    return contains(*err, "rank 0 is gone") && contains(*err, words) &&
           contains(*err, "1 of them did not stop after that: SIGKILL") && !strcmp(*out, "asked\n");
}

START_TEST(other_ranks_get_time_to_report_the_failure) {
    bool well = false;
    for (int64_t grace_ms = 1500; !well; grace_ms *= 2) {
        char *err, *out;
        well = report_the_failure(grace_ms, &err, &out);
        ck_assert_msg(well || grace_ms < 12000, "'%s' and '%s'", err, out);
        free(err);
        free(out);
    }
}
END_TEST

/* A stopped rank can report nothing and receives no SIGTERM: it is continued at once instead of getting time that it
 * cannot use. The time until the job has ended. */
static double end_with_a_stopped_rank(void) {
    double start_s = seconds();
    ck_assert_int_eq(run(JOB(2, SCRIPT(with_marks("test $RANK = 0 && { stopped a; exit 9; }; mark a; kill -STOP $$; "
                                                  "echo awake; exit 3")))),
                     9);
    double took = seconds() - start_s;
    char *text = output_of("job", "out");
    ck_assert_str_eq(text, "awake\n");
    free(text);
    return took;
}

START_TEST(stopped_ranks_are_continued) { ck_quick_once(end_with_a_stopped_rank(), 4); }
END_TEST

/* Rank 1 stops when those that had been stopped before the failure, such as rank 2, are awake: SIGTERM continues it. */
START_TEST(ranks_that_stop_later_are_continued_to_end) {
    bool well = false;
    for (int64_t grace_ms = 1000; !well; grace_ms *= 2) {
        rm_launch_config late = JOB(3, SCRIPT(with_marks("case $RANK in 0) stopped a; exit 9;; "
                                                         "1) seen b; kill -STOP $$; exit 3;; "
                                                         "2) mark a; kill -STOP $$; mark b; exit 3;; esac")));
        late.grace_ms = grace_ms;
        ck_assert_int_eq(run(late), 9);
        char *text = output_of("job", "err");
        well = contains(text, "SIGTERM") && !contains(text, "SIGKILL");
        ck_assert_msg(well || grace_ms < 8000, "%s", text);
        free(text);
    }
}
END_TEST

/* A SIGCONT would cancel the SIGSTOP of a debugger that is attaching, so only stopped processes get one; a stopped
 * child of a rank is continued, too. */
START_TEST(only_stopped_ranks_get_sigcont) {
    ck_assert_int_eq(run(JOB(2, SCRIPT(with_marks("test $RANK = 0 && { stopped a; exit 9; }; trap 'echo heard' CONT; "
                                                  "sh -c 'kill -STOP $$; echo awake' & mark a $!; wait $!; wait $!; "
                                                  "exit 3")))),
                     9);
    char *text = output_of("job", "out");
    ck_assert_str_eq(text, "awake\n");
    free(text);
}
END_TEST

/* The time until the job has ended after the signal. */
static double signal_a_stopped_rank(void) {
    char script[300];
    pid_t pids[64];
    unlink(in_folder("pids"));
    snprintf(script, sizeof script, "trap 'exit 143' TERM; echo $$ >> %s; kill -STOP $$; sleep 60", in_folder("pids"));
    rm_launch_config config = JOB(1, SCRIPT(script));
    pid_t pid = start(&config, "job");
    wait_for_pids(pids, 1);
    for (double start_s = seconds(); process_state(pids[0]) != 'T' && seconds() - start_s < 30;) nap_ms(1);
    ck_assert_int_eq(process_state(pids[0]), 'T');
    double start_s = seconds();
    kill(pid, SIGTERM);
    ck_assert_int_eq(end_of(pid), 143);
    return seconds() - start_s;
}

START_TEST(stopped_ranks_receive_signals) { ck_quick_once(signal_a_stopped_rank(), 4); }
END_TEST

START_TEST(failed_starts_are_explained) {
    int port = reserved_port(), fd;
    char words[60];
    ck_ok(rm_kv_listen("127.0.0.1", &port, "", &fd));
    rm_launch_config taken = JOB(1, SCRIPT("true"));
    taken.standalone = false;
    taken.master_port = port;
    snprintf(words, sizeof words, "port %d on this host is in use", port);
    ck_assert_int_eq(run(taken), 100 + REMAT_IO);
    ck_said(words, "--master-port=N, or let --standalone");
    close(fd);
    ck_assert_int_eq(run(taken), 0);
    ck_assert_int_eq(run(JOB(2, (char *[]){"no-such-program", NULL})), 127);
    ck_said("'no-such-program': there is no such program in PATH", NULL);
    ck_assert_int_eq(run(JOB(2, (char *[]){"/no/such/program", NULL})), 127);
    ck_said("No such file", NULL);
    ck_assert_int_eq(run(JOB(2, (char *[]){"/tmp", NULL})), 126);
    ck_said("a directory", NULL);
    rm_launch_config logs = JOB(1, SCRIPT("true"));
    logs.log_dir = "/dev/null/logs";
    ck_assert_int_eq(run(logs), 100 + REMAT_IO);
    ck_said("directory /dev/null", NULL);
}
END_TEST

static const struct {
    rm_launch_config config;
    const char *words;
} wrong[] = {
    {{.nproc = 0, .nnodes = 1}, "0 ranks on this host"},
    {{.nproc = 5000, .nnodes = 1}, "1 to 4096"},
    {{.nproc = 2, .nnodes = 0}, "0 nodes"},
    {{.nproc = 4000, .nnodes = 4000}, "1 to 32767"},
    {{.nproc = 1, .nnodes = 2, .node_rank = 2}, "node 2 of 2"},
    {{.nproc = 1, .nnodes = 1, .master_port = 70000}, "1 to 65535"},
    {{.nproc = 1, .nnodes = 2, .master_port = 7, .run_id = "x"}, "--master-addr=HOST"},
    {{.nproc = 1, .nnodes = 2, .master_addr = "127.0.0.1", .run_id = "x"}, "that node itself"},
    {{.nproc = 1, .nnodes = 2, .master_addr = "0.0.0.0", .run_id = "x"}, "that node itself"},
    {{.nproc = 1, .nnodes = 2, .master_addr = "::", .run_id = "x"}, "that node itself"},
    {{.nproc = 1, .nnodes = 2, .master_addr = "h"}, "--run-id=NAME"},
    {{.nproc = 1, .nnodes = 2, .master_addr = "h", .run_id = "x", .standalone = true}, "--standalone"},
    {{.nproc = 1, .nnodes = 1, .max_restarts = -1}, "negative"},
    {{.nproc = 1, .nnodes = 1}, "no command"},
};

START_TEST(invalid_configs_are_refused) {
    int code;
    rm_launch_config config = wrong[_i].config;
    char **command = SCRIPT("true");
    if (_i < COUNT(wrong) - 1) config.argv = command;
    ck_fails(rm_launch(&config, &code), INVALID, wrong[_i].words);
}
END_TEST

/* A secret is used whole or refused: jobs whose secrets share a prefix would otherwise meet. */
START_TEST(too_long_secrets_are_refused) {
    char secret[242], words[260];
    int code;
    memset(secret, 's', sizeof secret);
    secret[240] = 0;
    setenv("REMAT_JOB_SECRET", secret, 1);
    ck_assert_int_eq(run(JOB(1, SCRIPT("echo $REMAT_JOB_SECRET"))), 0);
    snprintf(words, sizeof words, "%s\n", secret);
    char *text = output_of("job", "out");
    ck_assert_str_eq(text, words);
    free(text);
    secret[240] = 's', secret[241] = 0;
    setenv("REMAT_JOB_SECRET", secret, 1);
    rm_launch_config config = JOB(1, SCRIPT("true"));
    ck_fails(rm_launch(&config, &code), INVALID, "REMAT_JOB_SECRET has 241 characters; the maximum is 240");
    unsetenv("REMAT_JOB_SECRET");
}
END_TEST

static int open_files(void) {
    int n = 0;
    DIR *all = opendir("/proc/self/fd");
    while (readdir(all)) n++;
    closedir(all);
    return n;
}

/* The n-th allocation fails: there is an error or a job that ends, and no open descriptor. */
START_TEST(failed_allocations_are_errors) {
    rm_launch_config config = JOB(2, SCRIPT("echo x; exit 4"));
    config.log_dir = in_folder("logs");
    to_file("job.out", 1);
    to_file("job.err", 2);
    int before = open_files(), failures = 0;
    for (int n = 1; n <= 12; n++) {
        int code = 0;
        rm_host_fail_at(n);
        remat_status status = rm_launch(&config, &code);
        rm_host_fail_at(0);
        ck_assert_msg(status == REMAT_MEMORY || (!status && (code == 4 || code == 1)), "n = %d: status %d, code %d", n,
                      (int)status, code);
        failures += status == REMAT_MEMORY;
        ck_assert_int_eq(open_files(), before);
    }
    ck_assert_int_ge(failures, 3);
}
END_TEST

/* ---- Signals ----------------------------------------------------------------------------------------------------- */

/* Each rank counts its signals and takes its time: a rank that ends as the signal asks stops no other rank. */
START_TEST(signals_are_passed_on_once) {
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
    static const char *const names[] = {"INT", "TERM", "HUP", "QUIT"};
    char script[400];
    pid_t pids[64];
    unlink(in_folder("pids"));
    snprintf(script, sizeof script,
             "n=0; trap 'n=$((n+1))' INT TERM HUP QUIT; echo $$ >> %s; while test $n = 0; do sleep 0.01; done; "
             "sleep 0.$((RANK * 4)); echo rank $RANK had $n; exit $((128 + %d))",
             in_folder("pids"), numbers[_i]);
    rm_launch_config config = JOB(2, SCRIPT(script));
    config.grace_ms = 50;
    config.max_restarts = 3;
    pid_t pid = start(&config, "job");
    wait_for_pids(pids, 2);
    kill(pid, numbers[_i]);
    ck_assert_int_eq(end_of(pid), 128 + numbers[_i]);
    char *text = output_of("job", "out"), words[60];
    ck_assert_msg(contains(text, "rank 0 had 1\n") && contains(text, "rank 1 had 1\n"), "%s", text);
    free(text);
    snprintf(words, sizeof words, "SIG%s is passed on", names[_i]);
    ck_said(words, NULL);
    text = output_of("job", "err");
    ck_assert_msg(!contains(text, "did not stop") && !contains(text, "restarting all ranks"), "%s", text);
    free(text);
}
END_TEST

/* SIGUSR1 is passed on every time: it asks no rank to stop, and a rank that fails after it is restarted. */
START_TEST(sigusr1_stops_no_rank) {
    char script[400];
    pid_t pids[64];
    unlink(in_folder("pids"));
    snprintf(script, sizeof script,
             "n=0; trap 'n=$((n+1))' USR1; echo $$ >> %s; while test $n = 0; do sleep 0.01; done; "
             "echo rank $RANK goes on; sleep 0.2; exit $((RANK ? 4 : 0))",
             in_folder("pids"));
    rm_launch_config config = JOB(2, SCRIPT(script));
    config.max_restarts = 1;
    pid_t pid = start(&config, "job");
    for (int attempt = 1; attempt <= 2; attempt++) {
        wait_for_pids(pids, 2 * attempt);
        kill(pid, SIGUSR1);
    }
    ck_assert_int_eq(end_of(pid), 4);
    char *text = output_of("job", "out");
    ck_assert_msg(contains(text, "rank 0 goes on\n") && contains(text, "rank 1 goes on\n"), "%s", text);
    free(text);
    ck_said("SIGUSR1 is passed on to all ranks", "restart 1 of 1");
}
END_TEST

static void wait_until_said(const char *words) {
    bool said = false;
    for (double start_s = seconds(); !said && seconds() - start_s < 60; nap_ms(1)) {
        char *text = output_of("job", "err");
        said = contains(text, words);
        free(text);
    }
    ck_assert_msg(said, "nobody says '%s'", words);
}

/* Whether the ranks live on after a signal that comes again at once, as timeout(1) sends it: it still counts as the first one. The
 * next one ends them. */
static bool second_signal_kills(void) {
    char script[300];
    pid_t pids[64];
    unlink(in_folder("pids"));
    snprintf(script, sizeof script, "trap '' TERM INT; echo $$ >> %s; while :; do sleep 0.01; done", in_folder("pids"));
    rm_launch_config config = JOB(2, SCRIPT(script));
    pid_t pid = start(&config, "job");
    wait_for_pids(pids, 2);
    kill(pid, SIGTERM);
    wait_until_said("SIGTERM is passed on");
    kill(pid, SIGTERM);
    nap_ms(1100);
    bool live = !gone(pids[0]) && !gone(pids[1]);
    kill(pid, SIGINT);
    ck_assert_int_eq(end_of(pid), 128 + (live ? SIGINT : SIGTERM));
    ck_assert(gone(pids[0]) && gone(pids[1]));
    return live;
}

/* A launcher that gets no processor for a second finds the signal that comes again late. */
START_TEST(second_signal_kills_all_ranks) { ck_assert(once_of_five(second_signal_kills())); }
END_TEST

/* Under nohup SIGHUP is ignored, also in the ranks. */
START_TEST(ignored_signals_stay_ignored) {
    pid_t pid = fork();
    if (!pid) {
        signal(SIGHUP, SIG_IGN);
        rm_launch_config config = JOB(1, SCRIPT("kill -HUP $PPID; kill -HUP $$; exit 6"));
        _exit(end_of(start(&config, "job")));
    }
    ck_assert_int_eq(end_of(pid), 6);
}
END_TEST

/* ---- No process is left ------------------------------------------------------------------------------------------ */

/* For each rank: itself, a child in a session of its own, and an orphan in another session: six processes in total. */
static void start_tree(rm_launch_config *config, pid_t *launcher, pid_t *pids) {
    static char script[900];
    const char *path = in_folder("pids");
    unlink(path);
    snprintf(script, sizeof script,
             "setsid sh -c 'echo $$ >> %s; exec sleep 1000' & (setsid sh -c 'trap \"\" TERM INT HUP; echo $$ >> %s; "
             "while :; do sleep 1000; done' &) ; echo $$ >> %s; exec sleep 1000",
             path, path, path);
    *config = JOB(2, SCRIPT(script));
    config->standalone = false;
    config->master_port = reserved_port();
    *launcher = start(config, "job");
    wait_for_pids(pids, 6);
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The time until all is gone. */
static double kill_launcher(void) {
    rm_launch_config config;
    pid_t launcher, pids[64];
    int fd = -1;
    start_tree(&config, &launcher, pids);
    double start_s = seconds();
    kill(launcher, SIGKILL);
    (void)until_gone(pids, 6);
    while (rm_kv_listen("127.0.0.1", &config.master_port, "", &fd) && seconds() - start_s < 20) usleep(200);
    double took = seconds() - start_s;
    close(fd);
    ck_assert_int_eq(end_of(launcher), 128 + SIGKILL);
    return took;
}

/* REMAT_LAUNCH_TRIALS=100 repeats it and prints how long it took. On a busy machine one quick time of some is enough. */
START_TEST(killing_the_launcher_leaves_no_process) {
    const char *asked = getenv("REMAT_LAUNCH_TRIALS");
    int trials = asked ? atoi(asked) : 5;
    double *took = calloc((size_t)trials, sizeof *took);
    for (int t = 0; t < trials; t++) {
        took[t] = kill_launcher();
        for (int time = 1; time < 5 && took[t] >= 2; time++) took[t] = kill_launcher();
        ck_assert_msg(took[t] < 2, "trial %d: %.3f s until all was gone", t, took[t]);
    }
    qsort(took, (size_t)trials, sizeof *took, compare);
    if (asked)
        printf("%d trials: median %.1f ms, worst %.1f ms\n", trials, 1e3 * took[trials / 2], 1e3 * took[trials - 1]);
    free(took);
}
END_TEST

/* The ranks die with the supervisor, without the launcher. Processes that they started become the launcher's children,
 * which ends them. */
START_TEST(killing_the_supervisor_leaves_no_process) {
    rm_launch_config config;
    pid_t launcher, pids[64];
    start_tree(&config, &launcher, pids);
    pid_t supervisor = child_of(launcher);
    ck_assert_int_gt(supervisor, 0);
    kill(launcher, SIGSTOP);
    kill(supervisor, SIGKILL);
    int ended = 0;
    for (double start_s = seconds(); ended < 2 && seconds() - start_s < 5; usleep(500)) {
        ended = 0;
        for (int i = 0; i < 6; i++) ended += gone(pids[i]);
    }
    ck_assert_msg(ended == 2, "%d of 2 ranks ended with the supervisor", ended);
    kill(launcher, SIGCONT);
    ck_assert_int_eq(end_of(launcher), 137);
    ck_assert_msg(until_gone(pids, 6) < 15, "something is left");
    ck_said("was killed by signal 9 (Killed), and all ranks with it", NULL);
}
END_TEST

/* The same after a job that ended well. */
START_TEST(successful_job_leaves_no_process) {
    pid_t pids[64];
    char script[300];
    unlink(in_folder("pids"));
    snprintf(script, sizeof script,
             "(setsid sh -c 'echo $$ >> %s; exec sleep 1000' &); while test ! -s %s; do sleep 0.01; done",
             in_folder("pids"), in_folder("pids"));
    ck_assert_int_eq(run(JOB(1, SCRIPT(script))), 0);
    ck_assert_int_eq(read_pids(pids), 1);
    ck_assert(gone(pids[0]));
}
END_TEST

/* The calling process may have children of its own, which the launcher must not end. */
START_TEST(other_children_of_the_caller_survive) {
    pid_t other = fork();
    if (!other) {
        pause();
        _exit(0);
    }
    int code = 9;
    rm_launch_config config = JOB(1, SCRIPT("kill -9 $PPID"));
    to_file("job.err", 2);
    ck_ok(rm_launch(&config, &code));
    ck_assert_int_eq(code, 137);
    ck_assert(!gone(other));
    kill(other, SIGKILL);
    ck_assert_int_eq(end_of(other), 137);
    int subreaper = 1;
    prctl(PR_GET_CHILD_SUBREAPER, &subreaper, 0, 0, 0);
    ck_assert_int_eq(subreaper, 0);
}
END_TEST

/* ---- Ranks that meet --------------------------------------------------------------------------------------------- */

/* A rank of a job, which finds the others through the store. With an argument: in attempts before that number, the last
 * rank leaves as soon as all have met, and the others notice. */
static int meet(int last_attempt) {
    rm_rendezvous_flags none = {.world_size = -1, .rank = -1, .local_rank = -1};
    rm_rendezvous where;
    rm_kv *store;
    int64_t sum;
    char who[200];
    need_ok(rm_rendezvous_resolve(&none, rm_environment_of_process, NULL, &where));
    need_ok(rm_rendezvous_store(&where, 100000, NULL, NULL, &store));
    need_ok(rm_kv_add(store, "sum", where.rank + 1, &sum));
    if (sum == where.size * (where.size + 1) / 2) need_ok(rm_kv_set(store, "all", "", 0));
    need_ok(rm_kv_wait(store, "all", 100000));
    if (where.attempt < last_attempt) {
        if (where.rank == where.size - 1) _exit(5);
        while (!rm_kv_lost(store, -1, who, sizeof who)) nap_ms(5);
        _exit(1);
    }
    rm_kv_close(store);
    printf("%d of %d met, attempt %d\n", where.rank, where.size, where.attempt);
    return 0;
}

START_TEST(many_jobs_run_at_once) {
    pid_t pid[20];
    char name[20];
    for (int j = 0; j < 20; j++) {
        rm_launch_config config = JOB(2, (char *[]){self, "--meet", "0", NULL});
        snprintf(name, sizeof name, "job%d", j);
        pid[j] = start(&config, name);
    }
    for (int j = 0; j < 20; j++) {
        int code = end_of(pid[j]);
        snprintf(name, sizeof name, "job%d", j);
        char *text = output_of(name, "err");
        ck_assert_msg(!code, "job %d: status %d: %s", j, code, text);
        free(text);
    }
}
END_TEST

/* Two nodes that are both this host, under a name not known to be local. Every attempt fails on node 1, and node 0
 * follows. */
START_TEST(two_nodes_restart_together) {
    pid_t pid[2];
    int port = reserved_port();
    for (int node = 0; node < 2; node++) {
        rm_launch_config config = {.nproc = 2,
                                   .nnodes = 2,
                                   .node_rank = node,
                                   .master_addr = "0x7f000001",
                                   .master_port = port,
                                   .max_restarts = 2,
                                   .run_id = "together",
                                   .argv = (char *[]){self, "--meet", "2", NULL}};
        pid[node] = start(&config, node ? "node1" : "node0");
        nap_ms(node ? 0 : 100);
    }
    for (int node = 0; node < 2; node++) {
        int code = end_of(pid[node]);
        char *err = output_of(node ? "node1" : "node0", "err"), *out = output_of(node ? "node1" : "node0", "out");
        ck_assert_msg(!code, "node %d: status %d: %s", node, code, err);
        ck_assert_msg(contains(out, "of 4 met, attempt 2"), "node %d: %s", node, out);
        free(err);
        free(out);
    }
}
END_TEST

/* ---- main -------------------------------------------------------------------------------------------------------- */

int main(int argc, char **argv) {
    find_self();
    if (argc == 3 && !strcmp(argv[1], "--meet")) return meet(atoi(argv[2]));
    TCase *cases = tcase_create("launch");
    tcase_add_test(cases, ranks_get_their_variables);
    tcase_add_test(cases, second_node_gets_its_variables);
    tcase_add_test(cases, only_the_first_rank_gets_the_socket);
    tcase_add_loop_test(cases, first_failure_decides_the_exit_code, 0, COUNT(endings));
    tcase_add_test(cases, killed_rank_is_named_as_the_cause);
    tcase_add_test(cases, other_ranks_get_time_to_report_the_failure);
    tcase_add_test(cases, stopped_ranks_are_continued);
    tcase_add_test(cases, ranks_that_stop_later_are_continued_to_end);
    tcase_add_test(cases, only_stopped_ranks_get_sigcont);
    tcase_add_test(cases, stopped_ranks_receive_signals);
    tcase_add_test(cases, failed_starts_are_explained);
    tcase_add_test(cases, failed_allocations_are_errors);
    tcase_add_loop_test(cases, invalid_configs_are_refused, 0, COUNT(wrong));
    tcase_add_test(cases, too_long_secrets_are_refused);
    tcase_add_loop_test(cases, signals_are_passed_on_once, 0, 4);
    tcase_add_test(cases, sigusr1_stops_no_rank);
    tcase_add_test(cases, second_signal_kills_all_ranks);
    tcase_add_test(cases, ignored_signals_stay_ignored);
    tcase_add_test(cases, killing_the_launcher_leaves_no_process);
    tcase_add_test(cases, killing_the_supervisor_leaves_no_process);
    tcase_add_test(cases, successful_job_leaves_no_process);
    tcase_add_test(cases, other_children_of_the_caller_survive);
    tcase_add_test(cases, many_jobs_run_at_once);
    tcase_add_test(cases, two_nodes_restart_together);
    return run_in_directories("dist/launch", cases);
}
