/* test_launch.c: the launcher: what ranks are given, what becomes of their output, who decides the exit code, and that
 * nothing is left whichever process is killed. Ranks are shell scripts, or this program in a role (see main). */
#define _GNU_SOURCE
#include "dist/launch.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/stat.h>

#include "dist/rendezvous.h"
#include "memory/host.h"
#include "tests/dist/ranks.h"
#include "train/commands.h"

#define COUNT(table) ((int)(sizeof table / sizeof *table))

/* ---- Launchers, forked from the test -------------------------------------------------------------------------------- */

static char folder[128], self[1024]; /* a folder of this process's own; this program */

static const char *in_folder(const char *name) {
    static char path[4][300];
    static int next;
    char *out = path[next++ % 4];
    snprintf(out, sizeof path[0], "%s/%s", folder, name);
    return out;
}

static char *read_all(const char *path) {
    FILE *file = fopen(path, "r");
    if (!file) return strdup("");
    fseek(file, 0, SEEK_END);
    long bytes = ftell(file);
    rewind(file);
    char *text = malloc((size_t)bytes + 1);
    text[fread(text, 1, (size_t)bytes, file)] = 0;
    fclose(file);
    return text;
}

static void to_file(const char *name, int fd) {
    int file = open(in_folder(name), O_WRONLY | O_CREAT | O_TRUNC, 0666);
    dup2(file, fd);
    close(file);
}

/* Its output goes to the files NAME.out and NAME.err; a failure to start becomes status 100 + the remat_status. */
static pid_t start(const rm_launch_config *config, const char *name) {
    char out[40], err[40];
    fflush(NULL);
    pid_t pid = fork();
    if (pid) return pid;
    alarm(120);
    snprintf(out, sizeof out, "%s.out", name);
    snprintf(err, sizeof err, "%s.err", name);
    to_file(out, 1);
    to_file(err, 2);
    int code = 0;
    remat_status status = rm_launch(config, &code);
    if (status) fprintf(stderr, "%s\n", remat_last_error());
    fflush(stderr);
    need(!__lsan_do_recoverable_leak_check || !__lsan_do_recoverable_leak_check(), "leaks");
    _exit(status ? 100 + (int)status : code);
}

static char *output_of(const char *name, const char *ending) {
    char file[60];
    snprintf(file, sizeof file, "%s.%s", name, ending);
    return read_all(in_folder(file));
}

#define SCRIPT(text) ((char *[]){"sh", "-c", text, NULL})
#define JOB(n, ...) ((rm_launch_config){.nproc = n, .nnodes = 1, .standalone = true, .argv = __VA_ARGS__})

static int run(rm_launch_config config) { return end_of(start(&config, "job")); }

static bool contains(const char *text, const char *words) { return strstr(text, words) != NULL; }

/* What the last job said on stderr contains all of these. */
static void ck_said(const char *first, const char *second) {
    char *text = output_of("job", "err");
    ck_assert_msg(contains(text, first), "'%s' does not say '%s'", text, first);
    ck_assert_msg(!second || contains(text, second), "'%s' does not say '%s'", text, second);
    free(text);
}

static bool gone(pid_t pid) {
    char path[40], text[400] = "", state = 'Z';
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "r");
    if (!file) return true;
    if (fread(text, 1, sizeof text - 1, file) > 0 && strrchr(text, ')')) state = strrchr(text, ')')[2];
    fclose(file);
    return state == 'Z' || state == 'X'; /* nobody is obliged to take its status */
}

/* Processes that have left their number, one a line, in the file "pids"; at most 64. */
static int read_pids(pid_t *pid) {
    char *text = read_all(in_folder("pids"));
    int n = 0;
    for (char *line = strtok(text, "\n"); line && n < 64; line = strtok(NULL, "\n")) pid[n++] = (pid_t)atoi(line);
    free(text);
    return n;
}

static void wait_for_pids(pid_t *pid, int n) {
    double start_s = seconds();
    while (read_pids(pid) < n && seconds() - start_s < 30) nap_ms(1);
    ck_assert_int_eq(read_pids(pid), n);
}

static double until_gone(const pid_t *pid, int n) {
    double start_s = seconds();
    for (int i = 0; i < n; i++)
        while (!gone(pid[i]) && seconds() - start_s < 20) usleep(200);
    return seconds() - start_s;
}

static pid_t child_of(pid_t parent) {
    char path[80];
    int pid = 0;
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)parent, (int)parent);
    FILE *file = fopen(path, "r");
    if (file && fscanf(file, "%d", &pid) != 1) pid = 0;
    if (file) fclose(file);
    return (pid_t)pid;
}

/* ---- What a rank is given ------------------------------------------------------------------------------------------ */

START_TEST(ranks_know_who_they_are) {
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

START_TEST(a_node_of_several) {
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
    ck_assert(contains(text, "4 6 2 hostA:1234 night night.0 []\n"));
    ck_assert(contains(text, "5 6 2 hostA:1234 night night.0 []\n"));
    free(text);
}
END_TEST

/* Only the first rank has the socket; the second finds its number unset and the descriptor closed. */
START_TEST(the_first_rank_has_the_socket) {
    ck_assert_int_eq(run(JOB(2, SCRIPT("case $RANK in 0) test -S /dev/fd/$REMAT_LISTEN_FD;; "
                                       "1) test -z \"$REMAT_LISTEN_FD\";; esac || exit 1\n"
                                       "n=0; for f in /proc/self/fd/*; do test -S $f && n=$((n+1)); done; "
                                       "test $n = $((1 - RANK))"))),
                     0);
}
END_TEST

/* ---- Who decides the exit code ---------------------------------------------------------------------------------------- */

static const struct {
    const char *script, *said;
    int code;
} endings[] = {
    {"exit 0", "", 0},
    {"exit $((RANK * 7))", "rank 1 ", 7},
    {"test $RANK = 0 || kill -SEGV $$; sleep 0.8; exit 1", "was killed by signal 11 (Segmentation fault)", 139},
    {"test $RANK = 1 || kill -KILL $$; sleep 0.8; exit 4", "was killed by signal 9 (Killed)", 137},
    {"test $RANK = 0 && exit 6; sleep 0.3; exit 5", "rank 0 ", 6},
    {"test $RANK = 0 && exit 0; sleep 0.1; exit 4", "rank 1 ", 4},
    {"test $RANK = 0 && exit 3; sleep 0.2; exit 2", "rank 1 ", 2}, /* 3: another rank failed */
    {"sleep 0.$((RANK * 2)); exit 3", "rank 0 ", 3},
    {"test $RANK = 0 && kill -TERM $$; sleep 0.2", "(Terminated)", 143},
};

START_TEST(the_first_failure_decides) {
    ck_assert_int_eq(run(JOB(2, SCRIPT((char *)endings[_i].script))), endings[_i].code);
    if (endings[_i].code) ck_said(endings[_i].said, "remat launch: rank ");
}
END_TEST

/* Both are found ended at once, by a keeper that was held up: the one that exits did so because the other was killed. */
START_TEST(a_killed_rank_is_the_cause) {
    pid_t pids[64];
    char script[300];
    unlink(in_folder("pids"));
    snprintf(script, sizeof script, /* rank 1 is started last, and so sees the keeper stopped with all ranks there */
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

/* For scripts: "seen x" waits until a rank has done "mark x", and "stopped x" until one that did so is stopped, however busy
 * the machine is. */
static char *with_marks(const char *script) {
    static char text[1500];
    snprintf(text, sizeof text,
             "d=%s; mark() { echo ${2:-$$} > $d/$1.new; mv $d/$1.new $d/$1; }; "
             "seen() { until test -e $d/$1; do sleep 0.01; done; }; "
             "stopped() { seen $1; until grep -q '^State:.T' /proc/$(cat $d/$1)/status; do sleep 0.01; done; }; %s",
             folder, script);
    unlink(in_folder("a"));
    unlink(in_folder("b"));
    unlink(in_folder("c"));
    return text;
}

/* Rank 0 fails; rank 1 sees it and says so; rank 2 has to be asked; rank 3 does not listen. */
START_TEST(the_others_have_time_to_say_so) {
    rm_launch_config config =
        JOB(4, SCRIPT(with_marks("case $RANK in 0) seen a; seen b; seen c; exit 9;; "
                                 "1) mark a; seen b; seen c; sleep 0.3; echo rank 0 is gone >&2; exit 1;; "
                                 "2) trap 'echo asked; exit 0' TERM; mark b; sleep 60 & wait;; "
                                 "3) trap '' TERM; mark c; sleep 60 & wait; sleep 60;; esac")));
    config.grace_ms = 1500;
    double start_s = seconds();
    ck_assert_int_eq(run(config), 9);
    double took = seconds() - start_s;
    ck_assert_msg(took > 1.5 && took < 30, "%.3f s", took);
    ck_said("rank 0 is gone", "2 of them did not stop in 1500 ms: SIGTERM");
    ck_said("1 of them did not stop after that: SIGKILL", NULL);
    char *text = output_of("job", "out");
    ck_assert_str_eq(text, "asked\n");
    free(text);
}
END_TEST

/* A rank that is stopped can say nothing and hears no SIGTERM: it is woken at once, and not given time that it cannot use. */
START_TEST(stopped_ranks_are_woken) {
    double start_s = seconds();
    ck_assert_int_eq(run(JOB(2, SCRIPT(with_marks("test $RANK = 0 && { stopped a; exit 9; }; mark a; kill -STOP $$; "
                                                  "echo awake; exit 3")))),
                     9);
    double took = seconds() - start_s;
    ck_assert_msg(took < 4, "%.3f s", took);
    char *text = output_of("job", "out");
    ck_assert_str_eq(text, "awake\n");
    free(text);
    rm_launch_config late = JOB(2, SCRIPT("test $RANK = 0 && exit 9; sleep 0.3; kill -STOP $$; exit 3"));
    late.grace_ms = 1000;
    ck_assert_int_eq(run(late), 9);
    text = output_of("job", "err");
    ck_assert_msg(contains(text, "SIGTERM") && !contains(text, "SIGKILL"), "%s", text);
    free(text);
}
END_TEST

/* A SIGCONT would undo the SIGSTOP of a debugger that is just attaching; also a stopped child of a rank is woken. */
START_TEST(only_stopped_ranks_are_woken) {
    ck_assert_int_eq(run(JOB(2, SCRIPT(with_marks("test $RANK = 0 && { stopped a; exit 9; }; trap 'echo heard' CONT; "
                                                  "sh -c 'kill -STOP $$; echo awake' & mark a $!; wait $!; wait $!; "
                                                  "exit 3")))),
                     9);
    char *text = output_of("job", "out");
    ck_assert_str_eq(text, "awake\n");
    free(text);
}
END_TEST

START_TEST(stopped_ranks_hear_signals) {
    char script[300];
    pid_t pids[64];
    unlink(in_folder("pids"));
    snprintf(script, sizeof script, "trap 'exit 143' TERM; echo $$ >> %s; kill -STOP $$; sleep 60", in_folder("pids"));
    rm_launch_config config = JOB(1, SCRIPT(script));
    pid_t pid = start(&config, "job");
    wait_for_pids(pids, 1);
    nap_ms(200);
    double start_s = seconds();
    kill(pid, SIGTERM);
    ck_assert_int_eq(end_of(pid), 143);
    double took = seconds() - start_s;
    ck_assert_msg(took < 4, "%.3f s", took);
}
END_TEST

START_TEST(what_cannot_be_started) {
    int port = 0, fd;
    char words[60];
    ck_ok(rm_kv_listen("127.0.0.1", &port, "", &fd));
    rm_launch_config taken = JOB(1, SCRIPT("true"));
    taken.standalone = false;
    taken.master_port = port;
    snprintf(words, sizeof words, "port %d on this host is taken", port);
    ck_assert_int_eq(run(taken), 100 + REMAT_IO);
    ck_said(words, "--master-port=N, or let --standalone");
    close(fd);
    ck_assert_int_eq(run(taken), 0);
    ck_assert_int_eq(run(JOB(2, (char *[]){"no-such-program", NULL})), 100 + REMAT_IO);
    ck_said("'no-such-program': there is no such program in PATH", NULL);
    ck_assert_int_eq(run(JOB(2, (char *[]){"/no/such/program", NULL})), 100 + REMAT_IO);
    ck_said("No such file", NULL);
    ck_assert_int_eq(run(JOB(2, (char *[]){"/tmp", NULL})), 100 + REMAT_IO);
    ck_said("it is a folder", NULL);
    rm_launch_config logs = JOB(1, SCRIPT("true"));
    logs.log_dir = "/dev/null/logs";
    ck_assert_int_eq(run(logs), 100 + REMAT_IO);
    ck_said("cannot make the folder /dev/null", NULL);
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
    {{.nproc = 1, .nnodes = 2, .node_rank = 2}, "nodes are 0 to 1"},
    {{.nproc = 1, .nnodes = 1, .master_port = 70000}, "ports are 1 to 65535"},
    {{.nproc = 1, .nnodes = 2, .master_port = 7, .run_id = "x"}, "--master-addr=HOST"},
    {{.nproc = 1, .nnodes = 2, .master_addr = "127.0.0.1", .run_id = "x"}, "that node itself"},
    {{.nproc = 1, .nnodes = 2, .master_addr = "0.0.0.0", .run_id = "x"}, "that node itself"},
    {{.nproc = 1, .nnodes = 2, .master_addr = "::", .run_id = "x"}, "that node itself"},
    {{.nproc = 1, .nnodes = 2, .master_addr = "h"}, "--run-id=NAME"},
    {{.nproc = 1, .nnodes = 2, .master_addr = "h", .run_id = "x", .standalone = true}, "--standalone"},
    {{.nproc = 1, .nnodes = 1, .max_restarts = -1}, "negative"},
    {{.nproc = 1, .nnodes = 1}, "no command"},
};

START_TEST(configs_that_cannot_work) {
    int code;
    rm_launch_config config = wrong[_i].config;
    char **command = SCRIPT("true");
    if (_i < COUNT(wrong) - 1) config.argv = command;
    ck_fails(rm_launch(&config, &code), INVALID, wrong[_i].words);
}
END_TEST

/* Whole, with the attempt's number; or not at all: attempts with one secret would meet. */
START_TEST(long_secrets) {
    char secret[242], words[260];
    int code;
    memset(secret, 's', sizeof secret);
    secret[240] = 0;
    setenv("REMAT_JOB_SECRET", secret, 1);
    ck_assert_int_eq(run(JOB(1, SCRIPT("echo $REMAT_JOB_SECRET"))), 0);
    snprintf(words, sizeof words, "%s.0\n", secret);
    char *text = output_of("job", "out");
    ck_assert_str_eq(text, words);
    free(text);
    secret[240] = 's', secret[241] = 0;
    setenv("REMAT_JOB_SECRET", secret, 1);
    rm_launch_config config = JOB(1, SCRIPT("true"));
    ck_fails(rm_launch(&config, &code), INVALID, "REMAT_JOB_SECRET has 241 characters; 240 are possible");
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

/* The n-th allocation fails: a sentence, or a job that ends, and nothing left open. */
START_TEST(without_memory) {
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

/* ---- Signals -------------------------------------------------------------------------------------------------------- */

/* Each rank counts the signals it gets, and takes its time: ending as the signal asks stops nobody else. */
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
    ck_assert_msg(!contains(text, "did not stop") && !contains(text, "again: restart"), "%s", text);
    free(text);
}
END_TEST

START_TEST(a_second_signal_kills) {
    char script[300];
    pid_t pids[64];
    unlink(in_folder("pids"));
    snprintf(script, sizeof script, "trap '' TERM INT; echo $$ >> %s; while :; do sleep 0.01; done", in_folder("pids"));
    rm_launch_config config = JOB(2, SCRIPT(script));
    pid_t pid = start(&config, "job");
    wait_for_pids(pids, 2);
    kill(pid, SIGTERM);
    nap_ms(100);
    kill(pid, SIGTERM); /* timeout(1) does that: still the first */
    nap_ms(1100);
    ck_assert(!gone(pids[0]) && !gone(pids[1]));
    kill(pid, SIGINT);
    ck_assert_int_eq(end_of(pid), 128 + SIGINT);
    ck_assert(gone(pids[0]) && gone(pids[1]));
}
END_TEST

/* Under nohup SIGHUP is ignored, and stays so in the ranks. */
START_TEST(what_was_ignored_stays_ignored) {
    pid_t pid = fork();
    if (!pid) {
        signal(SIGHUP, SIG_IGN);
        rm_launch_config config = JOB(1, SCRIPT("kill -HUP $PPID; kill -HUP $$; exit 6"));
        _exit(end_of(start(&config, "job")));
    }
    ck_assert_int_eq(end_of(pid), 6);
}
END_TEST

/* ---- Restarts --------------------------------------------------------------------------------------------------------- */

START_TEST(restarts_have_numbers_and_secrets) {
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
        ck_assert_str_ne(secret[0][a], secret[0][(a + 1) % 3]);
        ck_assert_int_eq(ports[2 * a], ports[0]);
    }
    free(text);
    config.max_restarts = 1; /* the last attempt's failure decides */
    ck_assert_int_eq(run(config), 5);
    ck_said("restart 1 of 1", NULL);
}
END_TEST

/* What was asked for in the wrong way will not work the next time either. */
START_TEST(wrong_use_is_not_repeated) {
    rm_launch_config config = JOB(2, SCRIPT("echo attempt $TORCHELASTIC_RESTART_COUNT; exit 2"));
    config.max_restarts = 3;
    ck_assert_int_eq(run(config), 2);
    ck_said("exited with status 2", "remat launch: nothing is started again: exit status 2 says");
    char *text = output_of("job", "out");
    ck_assert_str_eq(text, "attempt 0\nattempt 0\n");
    free(text);
    config.max_restarts = 0; /* nothing would be anyway */
    ck_assert_int_eq(run(config), 2);
    text = output_of("job", "err");
    ck_assert_msg(!contains(text, "started again"), "%s", text);
    free(text);
}
END_TEST

/* Somebody has asked a rank to stop, and it did: the same job again is not what was wanted. A rank that a signal killed, even
 * that one, has not stopped in order. */
START_TEST(what_was_asked_to_stop_is_not_repeated) {
    rm_launch_config config = JOB(2, SCRIPT("echo attempt $TORCHELASTIC_RESTART_COUNT; trap 'exit 143' TERM; "
                                            "test $RANK = 0 || kill -TERM $$; sleep 0.2; exit 143"));
    config.max_restarts = 3;
    ck_assert_int_eq(run(config), 143);
    ck_said("rank 1 ", "remat launch: nothing is started again: exit status 143 says that the rank was asked to stop");
    char *text = output_of("job", "out");
    ck_assert_str_eq(text, "attempt 0\nattempt 0\n");
    free(text);
    config.argv = SCRIPT("test $TORCHELASTIC_RESTART_COUNT = 1 || kill -TERM $$; exit 0");
    ck_assert_int_eq(run(config), 0);
    ck_said("restart 1 of 3", NULL);
}
END_TEST

/* One for all ranks and attempts, and another for the next job, whatever jobs are called. */
START_TEST(jobs_have_an_id) {
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

/* The folders of runs in DIR, the oldest first: their names are times. How many. */
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

/* A second job, at once, leaves the first one's logs as they are, and has none beside its own. */
START_TEST(each_run_has_its_logs) {
    char names[2][40], path[120];
    rm_launch_config config = JOB(2, SCRIPT("echo first"));
    config.log_dir = in_folder("logs");
    ck_assert_int_eq(run(config), 0);
    config.nproc = 1;
    config.argv = SCRIPT("echo second");
    ck_assert_int_eq(run(config), 0);
    ck_said("the logs of its ranks are in ", "/logs/20");
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

START_TEST(logs_by_attempt_and_rank) {
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

/* ---- Output ------------------------------------------------------------------------------------------------------------ */

/* Line i of rank r is "r i xxx...", with a length of its own; every 1,000th has 20,000 characters, a few 300,000. */
static int line_length(int rank, int i) {
    return i % 9000 == 8999 ? 300000 : i % 1000 == 999 ? 20000 : (i * 7 + rank * 13) % 60;
}

static void print_lines(int rank, int n) {
    static char x[300001];
    memset(x, 'x', sizeof x - 1);
    for (int i = 0; i < n; i++) fprintf(i % 5 ? stdout : stderr, "%d %d %.*s\n", rank, i, line_length(rank, i), x);
}

/* Checks one line and counts it: those of a rank and stream come in order, but stdout's and stderr's may cross. */
static void check_line(const char *line, int next[4][2], int lines_of_a_rank) {
    int prefix, rank, i, used = 0;
    ck_assert_msg(sscanf(line, "[%d] %d %d %n", &prefix, &rank, &i, &used) == 3, "'%.100s'", line);
    ck_assert(prefix == rank && rank < 4 && i < lines_of_a_rank);
    int *expected = &next[rank][i % 5 == 0];
    ck_assert_msg(i == *expected, "rank %d has line %d after %d", rank, i, *expected);
    ck_assert_int_eq((int)strlen(line + used), line_length(rank, i));
    *expected += i % 5 == 0 ? 5 : i % 5 == 4 ? 2 : 1;
}

/* Both outputs go to one file, through one pipe or as themselves. */
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

/* Nobody reads at first: ranks wait, the launcher does not; a rank that fails then is still dealt with in time. */
START_TEST(a_slow_reader_holds_up_nobody_else) {
    int ends[2], status = 0;
    pid_t pids[64];
    char script[1600], buffer[65536];
    unlink(in_folder("pids"));
    snprintf(script, sizeof script,
             "echo $$ >> %s; case $RANK in 0) exec %s --print 20000;; 1) sleep 0.3; exit 5;; esac", in_folder("pids"),
             self);
    rm_launch_config config = JOB(2, SCRIPT(script));
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
    close(ends[1]);
    wait_for_pids(pids, 2);
    ck_assert_msg(until_gone(pids, 2) < 15, "the ranks are still there");
    ck_assert_int_eq(waitpid(pid, &status, WNOHANG), 0); /* it has lines to write */
    bool named = false;
    for (ssize_t n; (n = read(ends[0], buffer, sizeof buffer - 1)) > 0;) {
        buffer[n] = 0;
        named |= contains(buffer, "exited with status 5");
    }
    ck_assert_int_eq(end_of(pid), 5);
    ck_assert(named);
    close(ends[0]);
}
END_TEST

/* `| head -1`: the rest is lost, the job goes on, and stderr says so. */
START_TEST(a_reader_that_goes_away) {
    int ends[2];
    ck_assert(!pipe(ends));
    pid_t pid = fork();
    if (!pid) {
        int code = 9;
        rm_launch_config config = JOB(2, SCRIPT("for i in 1 2 3 4 5 6 7 8 9; do echo $i; sleep 0.02; done; exit 3"));
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
    ck_assert_int_eq(end_of(pid), 3);
    ck_said("cannot write to stdout: Broken pipe", "exited with status 3");
}
END_TEST

/* The first rank may have the launcher's own output. */
START_TEST(a_rank_may_write_by_itself) {
    rm_launch_config config = JOB(2, SCRIPT("echo rank $RANK"));
    config.direct_rank_0 = config.prefix = true;
    ck_assert_int_eq(run(config), 0);
    char *text = output_of("job", "out");
    ck_assert_msg(contains(text, "[1] rank 1\n") && contains(text, "rank 0\n") && !contains(text, "[0]"), "%s", text);
    free(text);
}
END_TEST

/* ---- Nothing is left ---------------------------------------------------------------------------------------------------- */

/* Each rank: itself, a child in a session of its own, and an orphan in another, whose parent is gone: six processes. */
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
    config->master_port = 0;
    int fd;
    ck_ok(rm_kv_listen("127.0.0.1", &config->master_port, "", &fd));
    close(fd);
    *launcher = start(config, "job");
    wait_for_pids(pids, 6);
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* REMAT_LAUNCH_TRIALS=100 repeats it, and prints how long it took. */
START_TEST(killing_the_launcher_leaves_nothing) {
    const char *asked = getenv("REMAT_LAUNCH_TRIALS");
    int trials = asked ? atoi(asked) : 5;
    double *took = calloc((size_t)trials, sizeof *took);
    for (int t = 0; t < trials; t++) {
        rm_launch_config config;
        pid_t launcher, pids[64];
        int fd = -1;
        start_tree(&config, &launcher, pids);
        double start_s = seconds();
        kill(launcher, SIGKILL);
        (void)until_gone(pids, 6);
        while (rm_kv_listen("127.0.0.1", &config.master_port, "", &fd) && seconds() - start_s < 20) usleep(200);
        took[t] = seconds() - start_s;
        close(fd);
        ck_assert_int_eq(end_of(launcher), 128 + SIGKILL);
        ck_assert_msg(took[t] < 2, "trial %d: %.3f s until all was gone", t, took[t]);
    }
    qsort(took, (size_t)trials, sizeof *took, compare);
    if (asked)
        printf("%d trials: median %.1f ms, worst %.1f ms\n", trials, 1e3 * took[trials / 2], 1e3 * took[trials - 1]);
    free(took);
}
END_TEST

/* The ranks die with it, by themselves; what they had started becomes the launcher's, which ends it too. */
START_TEST(killing_the_keeper_leaves_nothing) {
    rm_launch_config config;
    pid_t launcher, pids[64];
    start_tree(&config, &launcher, pids);
    pid_t keeper = child_of(launcher);
    ck_assert_int_gt(keeper, 0);
    kill(launcher, SIGSTOP);
    kill(keeper, SIGKILL);
    int ended = 0;
    for (double start_s = seconds(); ended < 2 && seconds() - start_s < 5; usleep(500)) {
        ended = 0;
        for (int i = 0; i < 6; i++) ended += gone(pids[i]);
    }
    ck_assert_msg(ended == 2, "%d of 2 ranks ended with the keeper", ended);
    kill(launcher, SIGCONT);
    ck_assert_int_eq(end_of(launcher), 137);
    ck_assert_msg(until_gone(pids, 6) < 2, "something is left");
    ck_said("was killed by signal 9 (Killed), and all ranks with it", NULL);
}
END_TEST

/* Of a job that ended well, too. */
START_TEST(an_end_leaves_nothing) {
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

/* The process that calls may have children of its own: they are not ours to end. */
START_TEST(other_children_are_left_alone) {
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

/* ---- Ranks that meet ------------------------------------------------------------------------------------------------------ */

/* A rank of a job: finds the others over the store. With a number after it: the last rank leaves attempts before that one
 * as soon as all have met, and the others see it go. */
static int meet(int last_attempt) {
    rm_rendezvous_flags none = {.world_size = -1, .rank = -1, .local_rank = -1};
    rm_rendezvous where;
    rm_kv *store;
    int64_t sum;
    char who[200];
    need_ok(rm_rendezvous_resolve(&none, rm_environment_of_process, NULL, &where));
    need_ok(rm_rendezvous_store(&where, 30000, &store));
    need_ok(rm_kv_add(store, "sum", where.rank + 1, &sum));
    if (sum == where.size * (where.size + 1) / 2) need_ok(rm_kv_set(store, "all", "", 0));
    need_ok(rm_kv_wait(store, "all", 30000));
    if (where.attempt < last_attempt) {
        if (where.rank == where.size - 1) _exit(5);
        while (!rm_kv_lost(store, -1, who, sizeof who)) nap_ms(5);
        _exit(1);
    }
    rm_kv_close(store);
    printf("%d of %d met, attempt %d\n", where.rank, where.size, where.attempt);
    return 0;
}

START_TEST(many_jobs_at_once) {
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

/* Two nodes, which are both this host: under this name, which is not known for that. Every attempt fails on node 1; node 0 follows. */
START_TEST(two_nodes_start_again_together) {
    pid_t pid[2];
    int fd, port = 0;
    ck_ok(rm_kv_listen("0x7f000001", &port, "", &fd));
    close(fd);
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

/* ---- Flags ---------------------------------------------------------------------------------------------------------------- */

/* Runs `remat launch` with these words, split at spaces, in a process of its own. */
static int launch_words(const char *words) {
    fflush(NULL);
    pid_t pid = fork();
    if (pid) return end_of(pid);
    char copy[600], *argv[40];
    int argc = 0, code = 0;
    snprintf(copy, sizeof copy, "%s", words);
    for (char *word = strtok(copy, " "); word && argc < 30; word = strtok(NULL, " ")) argv[argc++] = word;
    argv[argc] = NULL;
    alarm(60);
    to_file("job.out", 1);
    to_file("job.err", 2);
    remat_status status = rm_command_launch(argc, argv, &code);
    if (status) fprintf(stderr, "%s\n", remat_last_error());
    fflush(NULL);
    _exit(status ? 100 + (int)status : code);
}

static const struct {
    const char *environment, *words, *line;
} understood[] = {
    {"", "--nproc-per-node=2 --no-prefix --", "0/2 0/1 127.0.0.1 "},
    {"", "--nproc_per_node 2 --no-prefix", "1/2 0/1 127.0.0.1 "},
    {"", "--standalone --no_python --monitor_interval 5 --nproc-per-node=1 --nnodes=1:1", "[0] 0/1 0/1 127.0.0.1 "},
    {"", "--nnodes=2 --node_rank=1 --master_addr=h --master_port=77 --nproc=2", "[3] 3/4 1/2 h 77 h:77"},
    {"", "--nnodes=2 --node-rank 1 --master-addr h --run-id=night", "[1] 1/2 1/2 h 29500 night"},
    {"", "--nnodes=4:4 --node-rank=3 --rdzv-endpoint=h:5 --rdzv-id=x --rdzv-backend=c10d", "[3] 3/4 3/4 h 5 x"},
    {"", "--nnodes=2 --node-rank=1 --rdzv_endpoint=h", "[1] 1/2 1/2 h 29400 h:29400"},
    {"", "--nnodes=2 --node-rank=1 --rdzv-endpoint=[fe80::1]:9", "[1] 1/2 1/2 fe80::1 9 "},
    {"", "--rdzv-endpoint=localhost:0 --rdzv-backend=c10d --rdzv-id=7", "[0] 0/1 0/1 127.0.0.1 "},
    {"PET_NNODES=2 PET_NODE_RANK=1 PET_MASTER_ADDR=h PET_NPROC_PER_NODE=2", "--master-port=6", "[2] 2/4 1/2 h 6 h:6"},
    {"PET_NPROC_PER_NODE=3", "--nproc-per-node=1", "[0] 0/1 0/1"},
    {"SLURM_NODEID=1 SLURM_STEP_NUM_NODES=2", "--nnodes=2 --master-addr=h", "[1] 1/2 1/2 h 29500 h:29500"},
};

static void set_variables(const char *variables, bool set) {
    char copy[300];
    snprintf(copy, sizeof copy, "%s", variables);
    for (char *word = strtok(copy, " "); word; word = strtok(NULL, " ")) {
        char *equals = strchr(word, '=');
        *equals = 0;
        if (set)
            setenv(word, equals + 1, 1);
        else
            unsetenv(word);
    }
}

START_TEST(flags_are_torchruns) {
    char words[600];
    snprintf(words, sizeof words, "%s %s", understood[_i].words, in_folder("show"));
    FILE *show = fopen(in_folder("show"), "w");
    fputs("#!/bin/sh\necho $RANK/$WORLD_SIZE $GROUP_RANK/$GROUP_WORLD_SIZE $MASTER_ADDR $MASTER_PORT "
          "$TORCHELASTIC_RUN_ID\n",
          show);
    fclose(show);
    chmod(in_folder("show"), 0755);
    set_variables(understood[_i].environment, true);
    int code = launch_words(words);
    set_variables(understood[_i].environment, false);
    char *out = output_of("job", "out"), *err = output_of("job", "err");
    ck_assert_msg(!code && contains(out, understood[_i].line), "%s: %d, %s%s", words, code, out, err);
    free(out);
    free(err);
}
END_TEST

static const struct {
    const char *words, *said;
} refused[] = {
    {"", "there is no command to start"},
    {"--nproc-per-node=2", "there is no command to start"},
    {"--nproc-per-node=2 --", "there is no command to start"},
    {"--nproc-per-node=0 true", "must be from 1 to 4096"},
    {"--nproc-per-node=two true", "--nproc-per-node=two: is not a whole number"},
    {"--nproc-per-node=+2 true", "is not a whole number"},
    {"--nproc-per-node= true", "is empty"},
    {"--nproc-per-node=gpu true", "GPUs are not counted here"},
    {"--nproc-per-node --standalone true", "--nproc-per-node needs a value"},
    {"--nproc-per-nod=2 true", "--nproc-per-nod is not a flag"},
    {"-m train", "-m is not a flag"},
    {"--standalone=yes true", "is a switch"},
    {"--nnodes=1:4 true", "the number of hosts is fixed"},
    {"--nnodes=2 true", "which of the 2 hosts is this"},
    {"--nnodes=2 --node-rank=0 true", "--master-addr=HOST"},
    {"--nnodes=2 --node-rank=2 --master-addr=h true", "nodes are 0 to 1"},
    {"--nnodes=2 --node-rank=0 --master-addr=localhost true", "that node itself"},
    {"--nnodes=2 --node-rank=0 --master-addr=h --master-port=0 true", "and not 0"},
    {"--master-port=65536 true", "must be from 0 to 65535"},
    {"--standalone --master-port=5 true", "--standalone finds a port"},
    {"--rdzv-endpoint=h:5 --master-addr=h true", "give one or the other"},
    {"--rdzv-endpoint=:5 true", "HOST:PORT"},
    {"--rdzv-endpoint=h:x true", "whole number"},
    {"--rdzv-backend=etcd true", "static|c10d"},
    {"--max-restarts=-1 true", "is not a whole number"},
    {"--standalone no-such-script.py", "put python in front"},
    {"--standalone train --data=x", "put remat in front"},
};

/* A folder of a program's name in PATH is no program. */
START_TEST(folders_are_no_programs) {
    char path[400];
    ck_assert_int_eq(mkdir(in_folder("train"), 0777), 0);
    snprintf(path, sizeof path, "%s:%s", folder, getenv("PATH"));
    setenv("PATH", path, 1);
    int code = launch_words("--standalone train --data=x");
    char *err = output_of("job", "err");
    ck_assert_msg(code == 100 + REMAT_INVALID && contains(err, "put remat in front"), "%d, %s", code, err);
    free(err);
}
END_TEST

START_TEST(wrong_flags_are_refused) {
    int code = launch_words(refused[_i].words);
    char *err = output_of("job", "err");
    ck_assert_msg(code == 100 + REMAT_INVALID && contains(err, refused[_i].said), "%s: %d, %s", refused[_i].words, code,
                  err);
    free(err);
}
END_TEST

/* Words at random: an answer, or a sentence; nothing is ever started, for there is no such command. */
START_TEST(any_words_have_an_answer) {
    static const char *const pieces[] = {"--",
                                         "nproc-per-node",
                                         "nnodes",
                                         "=",
                                         "2",
                                         ":",
                                         "_",
                                         "-",
                                         "node_rank",
                                         "rdzv-endpoint",
                                         "=[",
                                         "]",
                                         "127.0",
                                         "%s",
                                         " ",
                                         " ",
                                         "help",
                                         "log-dir",
                                         "99999999999999999999",
                                         "\x01",
                                         "h",
                                         "master-port"};
    uint64_t state = 7;
    char *argv[12], text[400];
    int null = open("/dev/null", O_WRONLY), kept = dup(1), code;
    dup2(null, 1);
    for (int trial = 0; trial < 20000; trial++) {
        size_t at = 0;
        int argc = 0, n = (int)(next_random(&state) % 14);
        text[0] = 0;
        for (int p = 0; p < n; p++)
            at += (size_t)snprintf(text + at, sizeof text - at, "%s", pieces[next_random(&state) % COUNT(pieces)]);
        for (char *word = strtok(text, " "); word && argc < 11; word = strtok(NULL, " ")) argv[argc++] = word;
        argv[argc] = NULL;
        bool help = false;
        for (int i = 0; i < argc; i++) help |= !strcmp(argv[i], "--help") || !strcmp(argv[i], "-h");
        remat_status status = rm_command_launch(argc, argv, &code);
        ck_assert_msg(status == REMAT_INVALID || status == REMAT_IO || (help && !status), "status %d", (int)status);
        ck_assert(!status || *remat_last_error());
    }
    fflush(stdout);
    dup2(kept, 1);
    close(kept);
    close(null);
}
END_TEST

/* ---- --devices ------------------------------------------------------------------------------------------------------------- */

/* As `remat train --devices=WORDS` would do, with all other flags at their defaults. */
static remat_status start_devices(const char *words, bool *ran, int *code) {
    rm_options options = {0};
    remat_status status = rm_options_defaults(&options);
    if (!status && words) options.devices = rm_strdup(words);
    if (!status) status = rm_command_devices(&options, ran, code);
    rm_options_free(&options);
    return status;
}

/* GPUs that there are not: refused by the build, or by the list of those that may be seen. */
static void ck_gpus_are_refused(bool *ran, int *code) {
    bool cuda = strstr(remat_build().devices, "cuda") != NULL;
    setenv("CUDA_VISIBLE_DEVICES", "3,4", 1);
    ck_fails(start_devices("0,1,2", ran, code), INVALID,
             cuda ? "CUDA_VISIBLE_DEVICES=3,4 leaves no GPU 2"
                  : "CUDA_VISIBLE_DEVICES=3,4), and this build has no CUDA");
    unsetenv("CUDA_VISIBLE_DEVICES");
    if (!cuda) ck_fails(start_devices("cuda:0,1", ran, code), INVALID, "--devices=cpu:2 starts 2 ranks");
}

START_TEST(devices_start_ranks_of_this_program) {
    bool ran = true;
    int code = 9;
    ck_ok(start_devices(NULL, &ran, &code));
    ck_assert(!ran);
    ck_ok(start_devices("cpu", &ran, &code));
    ck_assert(!ran);
    ck_ok(start_devices("cpu:1", &ran, &code));
    ck_assert(!ran);
    ck_gpus_are_refused(&ran, &code);
    ck_fails(start_devices("cpu:0", &ran, &code), INVALID, "from 1 to 4096");
    ck_fails(start_devices("cpu:x", &ran, &code), INVALID, "whole number");
    ck_fails(start_devices("gpus", &ran, &code), INVALID, "write cpu:N");
    setenv("RANK", "1", 1);
    setenv("WORLD_SIZE", "2", 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", "7", 1);
    ck_fails(start_devices("cpu:2", &ran, &code), INVALID, "this is rank 1 of 2 (torchrun's variables) already");
    set_variables("MASTER_ADDR= MASTER_PORT=", false); /* that its ranks could not meet makes it no less of a rank */
    ck_fails(start_devices("cpu:2", &ran, &code), INVALID, "this is rank 1 of 2 (torchrun's variables) already");
    setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
    setenv("OMPI_COMM_WORLD_RANK", "0", 1);
    ck_fails(start_devices("cpu:2", &ran, &code), INVALID, "says two things");
    set_variables("OMPI_COMM_WORLD_SIZE= OMPI_COMM_WORLD_RANK=", false);
    ck_assert(!ran);
    set_variables("RANK= WORLD_SIZE= MASTER_ADDR= MASTER_PORT=", false);
    char command[1200];
    snprintf(command, sizeof command, "%s --devices 'a b' '' > %s 2>&1", self, in_folder("job.out"));
    ck_assert_int_eq(system(command), 3 << 8);
    char *text = output_of("job", "out");
    for (int r = 0; r < 3; r++) {
        char line[60];
        snprintf(line, sizeof line, "%srank %d of 3, 4 words, 'a b', ''\n", r ? "] " : "", r);
        ck_assert_msg(contains(text, line), "'%s' lacks '%s'", text, line);
    }
    free(text);
}
END_TEST

static int show_devices(int argc, char **argv) {
    bool ran = true;
    int code = 9;
    remat_status status = start_devices("cpu:3", &ran, &code);
    if (status) fprintf(stderr, "%s\n", remat_last_error());
    if (status || ran) return status ? 9 : code;
    printf("rank %s of %s, %d words, '%s', '%s'\n", getenv("RANK"), getenv("WORLD_SIZE"), argc, argv[2], argv[3]);
    return 3; /* the others are still printing, or have ended the same way */
}

/* ---- main ------------------------------------------------------------------------------------------------------------------ */

static void set_up(void) {
    const char *tmp = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/remat-launch-XXXXXX", tmp ? tmp : "/tmp");
    ck_assert_ptr_nonnull(mkdtemp(folder));
}

static void tear_down(void) {
    char command[200];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    if (system(command)) perror("rm");
}

int main(int argc, char **argv) {
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    self[n > 0 ? n : 0] = 0;
    if (argc == 3 && !strcmp(argv[1], "--meet")) return meet(atoi(argv[2]));
    if (argc == 3 && !strcmp(argv[1], "--print")) return print_lines(atoi(getenv("RANK")), atoi(argv[2])), 0;
    if (argc == 4 && !strcmp(argv[1], "--devices")) return show_devices(argc, argv);
    Suite *suite = suite_create("dist/launch");
    TCase *cases = tcase_create("launch");
    tcase_add_checked_fixture(cases, set_up, tear_down);
    tcase_add_test(cases, ranks_know_who_they_are);
    tcase_add_test(cases, a_node_of_several);
    tcase_add_test(cases, the_first_rank_has_the_socket);
    tcase_add_loop_test(cases, the_first_failure_decides, 0, COUNT(endings));
    tcase_add_test(cases, a_killed_rank_is_the_cause);
    tcase_add_test(cases, the_others_have_time_to_say_so);
    tcase_add_test(cases, stopped_ranks_are_woken);
    tcase_add_test(cases, only_stopped_ranks_are_woken);
    tcase_add_test(cases, stopped_ranks_hear_signals);
    tcase_add_test(cases, what_cannot_be_started);
    tcase_add_test(cases, without_memory);
    tcase_add_loop_test(cases, configs_that_cannot_work, 0, COUNT(wrong));
    tcase_add_test(cases, long_secrets);
    tcase_add_loop_test(cases, signals_are_passed_on_once, 0, 4);
    tcase_add_test(cases, a_second_signal_kills);
    tcase_add_test(cases, what_was_ignored_stays_ignored);
    tcase_add_test(cases, restarts_have_numbers_and_secrets);
    tcase_add_test(cases, wrong_use_is_not_repeated);
    tcase_add_test(cases, what_was_asked_to_stop_is_not_repeated);
    tcase_add_test(cases, jobs_have_an_id);
    tcase_add_test(cases, logs_by_attempt_and_rank);
    tcase_add_test(cases, each_run_has_its_logs);
    tcase_add_test(cases, lines_arrive_whole);
    tcase_add_test(cases, a_slow_reader_holds_up_nobody_else);
    tcase_add_test(cases, a_reader_that_goes_away);
    tcase_add_test(cases, a_rank_may_write_by_itself);
    tcase_add_test(cases, killing_the_launcher_leaves_nothing);
    tcase_add_test(cases, killing_the_keeper_leaves_nothing);
    tcase_add_test(cases, an_end_leaves_nothing);
    tcase_add_test(cases, other_children_are_left_alone);
    tcase_add_test(cases, many_jobs_at_once);
    tcase_add_test(cases, two_nodes_start_again_together);
    tcase_add_loop_test(cases, flags_are_torchruns, 0, COUNT(understood));
    tcase_add_loop_test(cases, wrong_flags_are_refused, 0, COUNT(refused));
    tcase_add_test(cases, folders_are_no_programs);
    tcase_add_test(cases, any_words_have_an_answer);
    tcase_add_test(cases, devices_start_ranks_of_this_program);
    suite_add_tcase(suite, cases);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? 1 : 0;
}
