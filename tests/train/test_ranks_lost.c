/* test_ranks_lost.c: `remat train` on several ranks when ranks are missing, late, killed, stopped, slow or far away. */
#include "tests/ports.h"
#include "tests/process_state.h"
#include "tests/train/rank_jobs.h"
#include "tests/tries.h"

#include <jansson.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <time.h>

/* ---- Running ranks ----------------------------------------------------------------------------------------------- */

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- Results ---------------------------------------------------------------------------------------------------- */

/* Stops a rank while it computes: the others then wait for it in their next collective. A step must compute for much longer than
 * it communicates, because a stop within a collective counts for nobody. */
static void delay(pid_t process) {
    for (int i = 0; i < 5000 && process_state(process) != 'R'; i++) wait_ms(1);
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
        "train --data=%s --hidden=64 --seq-len=64 --threads=1 --batch=64 --steps=100000 --metrics=%s --dist-backend=%s",
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

/* ---- Ranks that die, hang and are stopped ----------------------------------------------------------------------- */

static const char *long_run(const char *more) {
    static char line[2048];
    snprintf(line, sizeof line, "train --data=%s " FLAGS "--batch=4 --steps=1000000 --metrics=%s/run.jsonl %s",
             text_file(), scratch(), more);
    return line;
}

/* The time until the others have stopped. */
static double kill_rank_1(void) {
    job j;
    unlink(in_scratch("run.jsonl"));
    start_ranks(&j, 3, long_run(""), -1, "");
    wait_for_steps(in_scratch("run.jsonl"), 5);
    double killed = now_s();
    kill(j.process[1], SIGKILL);
    reap(&j, 0);
    reap(&j, 2);
    double took = now_s() - killed;
    finish_ranks(&j);
    for (int r = 0; r < 3; r += 2) {
        ck_assert_int_eq(j.status[r], 3);
        ck_says(&j, r, "rank 1");
        ck_says(&j, r, "signal 9");
        ck_says(&j, r, r ? "remat train: rank 2 of 3 on " : "remat train: rank 0 of 3 on ");
    }
    return took;
}

/* At once. On a busy machine processes may end slowly: one quick time of some is enough. */
START_TEST(killed_rank_is_named) { ck_quick_once(kill_rank_1(), 2); }
END_TEST

static void wait_for_more_steps(void) {
    wait_for_steps(in_scratch("run.jsonl"), lines_with(in_scratch("run.jsonl"), "\"event\":\"step\"") + 5);
}

/* A stopped rank is named within two seconds, by rank 0 alone, and the run ends after --hang-timeout. If it continues
 * in time, nothing happens. Engines that do not watch their ranks are watched through the store. */
static const char *const engines[] = {
    "local",
#ifdef REMAT_HAVE_GLOO
    "gloo",
#endif
};

enum { ENGINES = sizeof engines / sizeof *engines };

/* Rank 1 stops for a moment, and then for good. Did rank 0 say so, and end, in time? */
static bool stop_rank_1(const char *engine) {
    job j;
    char more[64], said[4096] = "";
    snprintf(more, sizeof more, "--hang-timeout=4 --dist-backend=%s", engine);
    unlink(in_scratch("run.jsonl"));
    start_ranks(&j, 2, long_run(more), -1, "");
    wait_for_more_steps();
    double stopped = now_s(), named = 0, ended = 0;
    kill(j.process[1], SIGSTOP);
    while (!strstr(said, "rank 1 on ") && now_s() - stopped < 3.5) {
        wait_ms(20);
        ssize_t got = pread(j.err[0], said, sizeof said - 1, 0);
        said[got > 0 ? got : 0] = 0;
        named = now_s() - stopped;
    }
    kill(j.process[1], SIGCONT);
    if (named < 3 && now_s() - stopped < 3.2) {
        ck_says_all(said, "waiting|4 s");
        wait_for_more_steps();
        wait_ms(300);
        ck_assert_int_eq(waitpid(j.process[0], NULL, WNOHANG), 0);
        stopped = now_s();
        kill(j.process[1], SIGSTOP);
        reap(&j, 0);
        ended = now_s() - stopped;
        ck_assert_int_eq(j.status[0], 3);
        ck_says(&j, 0, "--hang-timeout=4");
    }
    for (int r = 0; r < 2; r++)
        if (j.process[r]) kill(j.process[r], SIGKILL);
    finish_ranks(&j);
    if (ended > 3.5 && ended < 9) return true;
    fprintf(stderr, "rank 0 named rank 1 after %.1f s, and ended after %.1f s: \"%s\"\n", named, ended, said);
    return false;
}

START_TEST(stopped_rank_is_named) {
    ck_assert_msg(once_of_five(stop_rank_1(engines[_i])), "rank 0 is late or early, each time");
}
END_TEST

static void signal_all(const job *j, int size, int signal) {
    for (int r = 0; r < size; r++) kill(j->process[r], signal);
}

static void start_three(job *j, int hang_timeout_s, const char *engine) {
    char more[64];
    snprintf(more, sizeof more, "--hang-timeout=%d --dist-backend=%s", hang_timeout_s, engine);
    unlink(in_scratch("run.jsonl"));
    start_ranks(j, 3, long_run(more), -1, "");
    wait_for_more_steps();
}

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

/* Has nobody but rank 0 said anything, and that not about rank 2? */
static bool ends_quietly(job *j) {
    wait_for_more_steps();
    signal_all(j, 3, SIGTERM);
    finish_ranks(j);
    bool quiet = !*j->errors[1] && !*j->errors[2] && !strstr(j->errors[0], "rank 2 on ");
    for (int r = 0; r < 3; r++) quiet &= j->status[r] == 143;
    for (int r = 0; r < 3 && !quiet; r++) fprintf(stderr, "rank %d, exit %d: %s\n", r, j->status[r], j->errors[r]);
    return quiet;
}

static bool suspend_all(const char *engine) {
    job j;
    start_three(&j, 3, engine);
    for (int again = 0; again < 2; again++) {
        if (again) wait_for_more_steps();
        signal_all(&j, 3, SIGSTOP);
        wait_ms(3500);
        signal_all(&j, 3, SIGCONT);
    }
    return ends_quietly(&j);
}

static bool suspend_rank_1(const char *engine) {
    job j;
    start_three(&j, 60, engine); /* however long the rank stands still on a busy machine */
    for (int again = 0; again < 2; again++) {
        kill(j.process[1], SIGSTOP);
        if (again)
            wait_ms(2200);
        else
            ck_assert(is_said(j.err[0], "rank 1 on ", 60));
        kill(j.process[1], SIGCONT);
        wait_ms(700);
    }
    return ends_quietly(&j);
}

/* If a laptop sleeps or a batch system suspends the job, all ranks stop and continue, and the time asleep does not
 * count. A single rank that was suspended is named, and accuses no other. Another may stand still on a busy machine, and
 * be named rightly: one quiet time of some is enough. */
START_TEST(suspended_rank_accuses_no_other) {
    bool (*suspend)(const char *) = _i % 2 ? suspend_rank_1 : suspend_all;
    ck_assert_msg(once_of_five(suspend(engines[_i / 2])), "ranks are accused, each time");
}
END_TEST

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
    int port = reserved_port();
    start_one(&j, 0, port, 0, 5, "--dist-backend=local");
    start_one(&j, 1, port, 1, 2, "--dist-backend=local");
    start_one(&j, 2, port, 3, 5, "--dist-backend=local");
    ck_assert(is_said(j.err[0], "rank 0 of 5: |refused|rank 1 of 2", 60));
    reap(&j, 1);
    ck_assert_int_eq(j.status[1], 2);
    ck_says(&j, 1, "--world-size|--nnodes|--nproc-per-node");
    ck_assert(is_said(j.err[0], "rank 0 of 5: |waiting|ranks 1, 2, 4 of 5|2 s|300 s", 60));
    start_one(&j, 1, port, 1, 5, "--dist-backend=local");
    start_one(&j, 3, port, 2, 5, "--dist-backend=local");
    start_one(&j, 4, port, 4, 5, "--dist-backend=local");
    finish_ranks(&j);
    ck_all_end(&j, 0);
    for (int r = 1; r < 5; r++) ck_quiet(&j, r);
}
END_TEST

START_TEST(ranks_wait_for_rank_0) {
    job j = {0}, lost = {0};
    int port = reserved_port();
    char words[100];
    start_one(&j, 0, port, 1, 2, "");
    start_one(&lost, 0, port, 1, 2, "--init-method=tcp://no-such-host.invalid:5");
    ck_assert(is_said(lost.err[0], "rank 1 of 2: |no-such-host.invalid|rank 0", 60));
    kill(lost.process[0], SIGKILL);
    finish_ranks(&lost);
    snprintf(words, sizeof words, "remat train: rank 1 of 2: rank 0 is not at 127.0.0.1:%d yet", port);
    ck_assert(is_said(j.err[0], words, 60));
    start_one(&j, 1, port, 0, 2, "");
    finish_ranks(&j);
    ck_all_end(&j, 0);
    ck_quiet(&j, 1);
}
END_TEST

/* All ranks print the same message, and end with the status for a missing rank. */
START_TEST(join_timeout_ends_the_program) {
    job j = {0};
    int port = reserved_port();
    start_one(&j, 0, port, 0, 3, "--join-timeout=4");
    start_one(&j, 1, port, 2, 3, "--join-timeout=4");
    finish_ranks(&j);
    ck_all_end(&j, 3);
    for (int r = 0; r < 2; r++) ck_says(&j, r, "rank 1 of 3|4000 ms|--join-timeout=4");
    ck_says(&j, 0, "rank 0 of 3: |waiting|rank 1 of 3|2 s");
    start_one(&j, 0, port, 1, 3, "--join-timeout=2");
    finish_ranks(&j);
    ck_assert_int_eq(j.status[0], 3);
    ck_says(&j, 0, "rank 1|rank 0");
    ck_says(&j, 0, "2000 ms");
}
END_TEST

/* If rank 0 itself has the wrong address, no rank reaches it. 192.0.2.1 is reserved for documentation (RFC 5737). */
START_TEST(wrong_address_of_rank_0_is_reported) {
    static const char *const wrong[] = {"192.0.2.1", "no-such-host.invalid"};
    static const char *const words[] = {"192.0.2.1|MASTER_ADDR", "no-such-host.invalid|MASTER_ADDR"};
    job j = {0};
    char more[200];
    int port = reserved_port();
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

/* With a round trip of 400 ms to the store a heartbeat takes two seconds, which must not count as silence. */
START_TEST(slow_network_does_not_count_as_silence) {
    job j = {0};
    char more[300];
    int port = reserved_port(), far_port;
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
        snprintf(place, sizeof place, "tcp://127.0.0.1:%d", reserved_port());
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
    if (_i < 2) ck_assert(is_said(after.err[1], "rank 1 was in ", 60));
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
        ck_assert(is_said(err, "rank 1 with PID", 20));
    } else if (_i) {
        ck_assert(is_said(err, "rank 1 (", 20));
        ck_assert(is_said(err, "store", 20));
    } else {
        ck_assert(is_said(err, "rank 0 of 3: |rank 1", 20));
        ck_assert(is_said(err, "--hang-timeout=3", 20));
    }
    double start = now_s();
    while (!waitpid(mpirun, &status, WNOHANG) && now_s() - start < 60) wait_ms(20);
    ck_assert_msg(now_s() - start < 60, "mpirun goes on");
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
    ck_quiet(&j, 1);
    ck_runs("train --resume=%s --steps=%lld --metrics=%s", in_scratch("st"), (long long)step + 3,
            in_scratch("run.jsonl"));
    ck_runs("train --data=%s " FLAGS "--batch=8 --deterministic-world=2 --steps=%lld --metrics=%s", text,
            (long long)step + 3, in_scratch("alone.jsonl"));
    ck_runs("report --require-identical %s %s", in_scratch("run.jsonl"), in_scratch("alone.jsonl"));
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("ranks_lost");
    tcase_add_loop_test(tests, straggler_is_named, 0, 2);
    tcase_add_test(tests, killed_rank_is_named);
    tcase_add_loop_test(tests, stopped_rank_is_named, 0, ENGINES);
    tcase_add_loop_test(tests, suspended_rank_accuses_no_other, 0, 2 * ENGINES);
#ifdef REMAT_HAVE_MPI
    tcase_add_loop_test(tests, silent_ranks_are_named_with_mpi_alone, 0, 2);
    tcase_add_test(tests, waiting_mpi_is_ended);
#endif
    tcase_add_test(tests, missing_ranks_are_named);
    tcase_add_test(tests, ranks_wait_for_rank_0);
    tcase_add_test(tests, join_timeout_ends_the_program);
    tcase_add_loop_test(tests, wrong_address_of_rank_0_is_reported, 0, 2);
    if (HAS_GLOO) tcase_add_test(tests, slow_network_does_not_count_as_silence);
    tcase_add_loop_test(tests, restarted_rank_waits_for_the_others, 0, 3);
    tcase_add_loop_test(tests, signals_stop_all_after_the_same_step, 0, 3);
    return run_suite("train/ranks_lost", tests);
}
