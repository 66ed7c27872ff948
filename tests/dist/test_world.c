/* test_world.c: the host of an elastic job's world gives places to processes: how many, who is rank 0, and to whom not. */
#define _GNU_SOURCE
#include "dist/launch/world.h"
#include "dist/launch/world_words.h"
#include "dist/store/store.h"
#include "tests/says.h"
#include "tests/suite.h"
#include "tests/tries.h"

#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST = 4 };

typedef struct {
    pid_t pid;
    int32_t port;
    int closing; /* the writing end of its pipe */
} host;

static host start_world(int32_t least) {
    host h = {.port = 0};
    int fd, ends[2];
    ck_assert(!rm_kv_listen("127.0.0.1", &h.port, "", &fd) && !pipe(ends));
    fflush(NULL);
    h.pid = fork();
    if (!h.pid) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(ends[1]);
        rm_world_serve(&(rm_world_config){
            .listen_fd = fd, .closing = ends[0], .least = least, .most = MOST, .secret = "s", .job_id = "job"});
        _exit(0);
    }
    close(fd);
    close(ends[0]);
    h.closing = ends[1];
    return h;
}

/* It ends once its pipe has ended and no process is connected. */
static void end_world(host h) {
    int status;
    close(h.closing);
    ck_assert_int_eq(waitpid(h.pid, &status, 0), h.pid);
    ck_assert_int_eq(status, 0);
}

typedef struct {
    pid_t pid;
    int place; /* of which a line is read */
} process;

static void say(void *out, const char *sentence) {
    fprintf(out, "%s\n", sentence);
    fflush(out);
}

static void set_variables(int slot, int32_t port, const char *secret) {
    char text[64];
    snprintf(text, sizeof text, "%d %d %d 127.0.0.1", slot, MOST, port);
    setenv(RM_WORLD_VARIABLE, text, 1);
    setenv("REMAT_JOB_SECRET", secret, 1);
    unsetenv("TORCHELASTIC_RESTART_COUNT");
}

static _Atomic bool *slow_ends; /* shared with the processes that are started after */

static void give_signs(int ms) {
    for (int i = 0; i < ms / 100; i++) {
        rm_world_alive();
        usleep(100000);
    }
}

/* Joins, writes "RANK/SIZE GENERATION JOB", and then does as the letters say: a: joins again when called; s: the same,
 * after a step that lasts until slow_ends; l: gives signs of life, and joins again when it hears of a lost rank; g: joins again without a call; d: ends the job; q: gives one
 * sign; others wait for the end of the test. */
static process start(host h, int slot, int64_t step, int64_t units, const char *letters) {
    int ends[2];
    process p;
    ck_assert(!pipe(ends));
    fflush(NULL);
    p.pid = fork();
    p.place = ends[0];
    if (p.pid) {
        close(ends[1]);
        return p;
    }
    FILE *out = fdopen(ends[1], "w");
    rm_world_request request = {
        .step = step, .units = units, .engine = "local", .timeout_ms = 60000, .say = say, .context = out};
    bool over = false;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(h.closing);
    set_variables(slot, h.port, "s");
    for (;; letters++) {
        if (rm_world_join(&request, &over)) _exit(1);
        if (over) fprintf(out, "over\n");
        if (!over)
            fprintf(out, "%s/%s %s %s\n", getenv("RANK"), getenv("WORLD_SIZE"), getenv("TORCHELASTIC_RESTART_COUNT"),
                    getenv("REMAT_JOB_ID"));
        fflush(out);
        if (*letters == 'd') rm_world_done();
        if (*letters == 'q') rm_world_alive();
        if (!strchr("aslg", *letters) || !*letters) break;
        int32_t lost = -1;
        while (*letters == 'l' && !rm_world_lost(&lost)) give_signs(100);
        if (lost >= 0) say(out, lost == 1 ? "lost 1" : "lost another");
        while (*letters != 'g' && !rm_world_called()) usleep(1000);
        if (*letters == 's') give_signs(2100);
        while (*letters == 's' && !*slow_ends) give_signs(100);
        rm_world_again();
        request.step++;
    }
    for (;;) pause();
}

static char said[200]; /* the last line that was read */
static const char *expected;

/* On a busy machine a process may say that it waits for others where it usually need not. */
static bool is_next(process p, const char *line) {
    expected = line;
    do {
        size_t n = 0;
        while (n < sizeof said - 1 && read(p.place, said + n, 1) == 1 && said[n] != '\n') n++;
        said[n] = 0;
    } while (!strstr(said, line) && (strstr(said, "waiting for more") || strstr(said, "waiting for them")));
    return strstr(said, line);
}

static void next_line(process p, const char *line) {
    ck_assert_msg(is_next(p, line), "'%s', not '%s'", said, expected);
}

static void end(process p) {
    kill(p.pid, SIGKILL);
    waitpid(p.pid, NULL, 0);
    close(p.place);
}

/* Plays a scene in which ranks are called or lost. One that gets no processor for a second then is excluded, as it should be, and
 * the scene takes another course: it must go as written one time of some. */
static void play(bool scene(void)) { ck_assert_msg(once_of_five(scene()), "'%s', not '%s'", said, expected); }

/* 3 ranks cannot divide 16 samples: the two with the latest steps train, and the third is a spare until a fourth comes. */
static bool spare_waits_for_a_fourth(void) {
    host h = start_world(1);
    process a = start(h, 0, 5, 16, "a"), b = start(h, 1, 7, 16, "a"), c = start(h, 2, -1, 16, "");
    bool well =
        is_next(b, "0/2 0 job") && is_next(a, "1/2 0 job") &&
        is_next(c, "the 16 samples (or shards) of an update do not divide by 3 ranks, so 2 train; waiting as a spare");
    process d = start(h, 3, -1, 16, "");
    well = well && is_next(b, "0/4 1 job") && is_next(a, "1/4 1 job") && is_next(c, "2/4 1 job") &&
           is_next(d, "3/4 1 job");
    end(a), end(b), end(c), end(d);
    end_world(h);
    return well;
}

START_TEST(latest_step_is_rank_0_and_spares_wait) { play(spare_waits_for_a_fourth); }
END_TEST

/* A process that comes while others train is told so, too, and then waits longer than its time-out. */
START_TEST(late_process_hears_why_it_is_a_spare) {
    host h = start_world(1);
    process a = start(h, 0, 0, 9, "");
    next_line(a, "0/1 0 job");
    process b = start(h, 1, -1, 9, "");
    next_line(b, "the 9 samples (or shards) of an update do not divide by 2 ranks, so 1 trains; waiting as a spare");
    end(a), end(b);
    end_world(h);
}
END_TEST

START_TEST(more_than_most_are_spares) {
    host h = start_world(1);
    process p[MOST + 1];
    for (int i = 0; i < MOST; i++) p[i] = start(h, i, 0, 0, "");
    for (int i = 0; i < MOST; i++) next_line(p[i], "/4 0 job");
    p[MOST] = start(h, MOST, -1, 0, "");
    next_line(p[MOST], "all places are taken; waiting as a spare");
    for (int i = 0; i <= MOST; i++) end(p[i]);
    end_world(h);
}
END_TEST

/* The answer to hello is a number. Proves with it that this process knows the secret. */
static void prove(int fd) {
    rm_kv_meeting meeting = {.rank = htole64(0)};
    uint8_t proof[RM_HMAC_BYTES];
    char line[2 * RM_HMAC_BYTES + 2];
    ck_assert_int_eq(recv(fd, line, sizeof line, 0), 2 * RM_KV_NONCE_BYTES + 1);
    line[2 * RM_KV_NONCE_BYTES] = 0;
    ck_assert(rm_world_unhex(line, meeting.server, RM_KV_NONCE_BYTES));
    rm_kv_proof("s", "client", &meeting, proof);
    rm_world_hex(proof, sizeof proof, line);
    strcat(line, "\n");
    ck_assert_int_eq(send(fd, line, strlen(line), MSG_NOSIGNAL), 2 * RM_HMAC_BYTES + 1);
}

/* As on a busy machine. While it is stopped, three processes connect, one that has connected before says hello, and the
 * moment for new ones ends. */
START_TEST(stopped_world_takes_in_those_that_have_connected) {
    host h = start_world(1);
    process p[MOST];
    char text[200];
    bool unknown;
    p[0] = start(h, 0, 0, 0, "");
    int slow = rm_kv_connect("127.0.0.1", h.port, &unknown, text, sizeof text);
    usleep(300000); /* the first one joins */
    kill(h.pid, SIGSTOP);
    for (int i = 1; i < MOST; i++) p[i] = start(h, i, 0, 0, "");
    int n = snprintf(text, sizeof text, RM_WORLD_HELLO " 0 %064d\n", 0);
    ck_assert_int_eq(send(slow, text, (size_t)n, 0), n);
    usleep(2200000);
    kill(h.pid, SIGCONT);
    prove(slow);
    ck_assert_int_eq(recv(slow, text, sizeof text, 0), 2 * RM_HMAC_BYTES + 1); /* the world's own proof */
    close(slow);
    for (int i = 0; i < MOST; i++) next_line(p[i], "/4 0 job");
    for (int i = 0; i < MOST; i++) end(p[i]);
    end_world(h);
}
END_TEST

/* No rank holds a step. The others have the settings of rank 0, which are those of the job. */
static bool newcomer_comes(void) {
    host h = start_world(2);
    process a = start(h, 1, -2, 12, "a"), b = start(h, 2, -2, 12, "a");
    bool well = is_next(a, "0/2 0 job") && is_next(b, "1/2 0 job");
    process c = start(h, 0, -1, 2, "");
    well = well && is_next(a, "0/3 1 job") && is_next(b, "1/3 1 job") && is_next(c, "2/3 1 job");
    end(a), end(b), end(c);
    end_world(h);
    return well;
}

START_TEST(newcomer_is_not_rank_0) { play(newcomer_comes); }
END_TEST

START_TEST(lost_rank_is_replaced) {
    host h = start_world(2);
    process a = start(h, 0, 0, 0, "a"), b = start(h, 1, 0, 0, "");
    next_line(a, "0/2 0 job");
    next_line(b, "1/2 0 job");
    end(b);
    process again = start(h, 1, -1, 0, "");
    next_line(a, "0/2 1 job");
    next_line(again, "1/2 1 job");
    end(a), end(again);
    end_world(h);
}
END_TEST

START_TEST(rank_is_called_when_another_is_lost) {
    host h = start_world(1);
    process a = start(h, 0, 0, 0, "a"), b = start(h, 1, 0, 0, "");
    next_line(a, "0/2 0 job");
    next_line(b, "1/2 0 job");
    end(b);
    next_line(a, "0/1 1 job");
    end(a);
    end_world(h);
}
END_TEST

/* More than twice as long as a silent one. */
static bool waits_for_slow_rank(void) {
    host h = start_world(1);
    *slow_ends = false;
    process a = start(h, 0, 0, 0, "a"), b = start(h, 1, 0, 0, "s"), c = start(h, 2, 0, 0, "a"),
            d = start(h, 3, 0, 0, "");
    bool well = is_next(a, "0/4 0 job") && is_next(b, "1/4 0 job") && is_next(d, "3/4 0 job");
    end(d);
    well = well && is_next(a, "still in the middle of a step");
    *slow_ends = true;
    well = well && is_next(a, "0/3 1 job") && is_next(b, "1/3 1 job");
    end(a), end(b), end(c);
    end_world(h);
    return well;
}

START_TEST(slow_rank_is_waited_for) {
    slow_ends = mmap(NULL, sizeof *slow_ends, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert(slow_ends != MAP_FAILED);
    play(waits_for_slow_rank);
}
END_TEST

/* Its connection exists, as that of a host that is down. */
static bool one_is_silent(void) {
    host h = start_world(1);
    process a = start(h, 0, 0, 0, "l"), b = start(h, 1, 0, 0, "q"), c = start(h, 2, 0, 0, "l"),
            d = start(h, 3, 0, 0, "l");
    bool well = is_next(a, "0/4 0 job") && is_next(b, "1/4 0 job") && is_next(a, "lost 1") && is_next(a, "0/3 1 job");
    end(a), end(b), end(c), end(d);
    end_world(h);
    return well;
}

START_TEST(silent_rank_is_lost) { play(one_is_silent); }
END_TEST

/* It may do so while the others wait for it: without a call, none of them would. */
static bool one_leaves(void) {
    host h = start_world(1);
    process a = start(h, 0, 0, 0, "l"), b = start(h, 1, 0, 0, "g"), c = start(h, 2, 0, 0, "l"),
            d = start(h, 3, 0, 0, "l");
    bool well = is_next(a, "0/4 0 job") && is_next(b, "1/4 0 job") && is_next(a, "lost 1") && is_next(a, "0/4 1 job");
    end(a), end(b), end(c), end(d);
    end_world(h);
    return well;
}

START_TEST(rank_that_leaves_is_lost) { play(one_leaves); }
END_TEST

START_TEST(too_few_wait_and_say_so) {
    host h = start_world(2);
    process a = start(h, 0, 0, 0, "");
    next_line(a, "1 of at least 2 ranks");
    process b = start(h, 1, 0, 0, "");
    next_line(a, "0/2 0 job");
    end(a), end(b);
    end_world(h);
}
END_TEST

START_TEST(ended_job_takes_no_process_in) {
    host h = start_world(1);
    process a = start(h, 0, 0, 0, "d");
    next_line(a, "0/1 0 job");
    process late = start(h, 1, -1, 0, "");
    next_line(late, "over");
    end(a), end(late);
    end_world(h);
}
END_TEST

START_TEST(strangers_get_no_place) {
    host h = start_world(1);
    rm_world_request request = {.step = -1, .engine = "local", .timeout_ms = 300, .say = say, .context = stderr};
    bool over;
    set_variables(0, h.port, "another secret");
    ck_assert_int_eq(rm_world_join(&request, &over), REMAT_PEER);
    ck_says_all(remat_last_error(), "secret|--master-addr|--run-id");
    end_world(h);
}
END_TEST

/* The others are not called: they train on. */
START_TEST(process_with_another_engine_is_refused) {
    host h = start_world(1);
    process a = start(h, 0, -1, 0, "a");
    next_line(a, "0/1 0 job");
    rm_world_request request = {.step = -1, .engine = "gloo", .timeout_ms = 5000, .say = say, .context = stderr};
    bool over;
    set_variables(1, h.port, "s");
    ck_assert_int_eq(rm_world_join(&request, &over), REMAT_INVALID);
    ck_says_all(remat_last_error(),
                "job have --dist-backend=local, but this process has --dist-backend=gloo|without it");
    process b = start(h, 2, -1, 0, "");
    next_line(a, "0/2 1 job");
    next_line(b, "1/2 1 job");
    end(a), end(b);
    end_world(h);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("world");
    tcase_set_timeout(tests, 300);
    tcase_add_test(tests, latest_step_is_rank_0_and_spares_wait);
    tcase_add_test(tests, late_process_hears_why_it_is_a_spare);
    tcase_add_test(tests, more_than_most_are_spares);
    tcase_add_test(tests, stopped_world_takes_in_those_that_have_connected);
    tcase_add_test(tests, newcomer_is_not_rank_0);
    tcase_add_test(tests, lost_rank_is_replaced);
    tcase_add_test(tests, rank_is_called_when_another_is_lost);
    tcase_add_test(tests, slow_rank_is_waited_for);
    tcase_add_test(tests, silent_rank_is_lost);
    tcase_add_test(tests, rank_that_leaves_is_lost);
    tcase_add_test(tests, too_few_wait_and_say_so);
    tcase_add_test(tests, ended_job_takes_no_process_in);
    tcase_add_test(tests, strangers_get_no_place);
    tcase_add_test(tests, process_with_another_engine_is_refused);
    return run_cases("dist/world", tests);
}
