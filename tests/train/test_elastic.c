/* test_elastic.c: `remat launch --nnodes=1:4`: four launchers of one rank each, on this host. Ranks and launchers are
 * killed, stopped and cut off; the others go on, those that return are taken in, and the training state has the bits of an
 * undisturbed run on one rank. */
#define _GNU_SOURCE /* prlimit */
#include "tests/cases.h"
#include "tests/ports.h"
#include "tests/train/jobs.h"

#include <sys/resource.h>
#include <sys/syscall.h>

#define REMAT RM_BINARY_DIR "/remat"
#define FLAGS                                                                                                          \
    "--hidden=24 --layers=2 --seq-len=64 --dropout=0.2 --threads=1 --lr=0.01 --deterministic-world=4 --ema=0.9999 "
enum { HOSTS = 4 };

typedef struct {
    int port, out, err;
    const char *nodes, *network, *flags, *restarts;
    char data[600]; /* the flags that name it */
    int batch;
    pid_t launcher[HOSTS];
    int first;   /* the host of rank 0 of the first world of four */
    size_t said; /* how much of stdout comes before the words that are waited for */
} job;

/* ---- A job ---------------------------------------------------------------------------------------------------------- */

static void start_host(job *j, int host) {
    char line[2048];
    snprintf(line, sizeof line,
             "launch --nnodes=%s --node-rank=%d --master-addr=127.0.0.1 --master-port=%d --max-restarts=%s -- " REMAT
             " train %s %s --batch=%d --save=%s --save-every=10 --hang-timeout=2 --join-timeout=30 %s",
             j->nodes, host, j->port, j->restarts, j->data, j->network, j->batch, in_scratch("job"), j->flags);
    j->launcher[host] = start_program(line, j->out, j->err);
}

static bool hosts_world(pid_t pid) {
    char path[64], name[32] = "";
    snprintf(path, sizeof path, "/proc/%d/comm", (int)pid);
    FILE *file = fopen(path, "r");
    if (file && !fgets(name, sizeof name, file)) *name = 0;
    if (file) fclose(file);
    return !strcmp(name, "remat-world\n");
}

static int end_of_host(const job *j, int host) {
    int status;
    ck_assert_int_eq(waitpid(j->launcher[host], &status, 0), j->launcher[host]);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* ---- What it says and saves ----------------------------------------------------------------------------------------- */

/* The job still writes: its place in the file must stay. */
static void read_so_far(int fd, char *text, size_t bytes) {
    ssize_t got = pread(fd, text, bytes - 1, 0);
    text[got > 0 ? got : 0] = 0;
}

static void read_output(const job *j) {
    read_so_far(j->out, program_output, sizeof program_output);
    read_so_far(j->err, program_errors, sizeof program_errors);
}

static bool is_done(const job *j) {
    read_output(j);
    return strstr(program_output, "done after step");
}

/* Waits until the job says so after this place in the text. NULL: it is done and has not. */
static const char *wait_until_says(const job *j, const char *text, size_t after, const char *words) {
    for (int waited = 0; waited < 120000; waited += 10) {
        bool done = is_done(j);
        const char *at = strstr(text + after, words);
        if (at || done) return at;
        wait_ms(10);
    }
    ck_abort_msg("no '%s' in %s%s", words, program_output, program_errors);
    return NULL;
}

/* After the words that were waited for before, since an earlier world may have said the same. */
static const char *says(job *j, const char *words) {
    const char *at = wait_until_says(j, program_output, j->said, words);
    if (at) j->said = (size_t)(at - program_output) + strlen(words);
    return at;
}

static void wait_for_words(job *j, const char *words) { ck_assert_ptr_nonnull(says(j, words)); }

static void wait_for_errors(const job *j, const char *words) {
    ck_assert_ptr_nonnull(wait_until_says(j, program_errors, 0, words));
}

/* Waits for a state that was not there at the last call. False: the job is done and has none. */
static bool progresses(const job *j) {
    for (int waited = 0; waited < 100000; waited++) {
        bool done = is_done(j);
        if (has_progressed("job")) return true;
        if (done) return false;
        wait_ms(1);
    }
    ck_abort_msg("there is no state after '%s': %s%s", last_progress, program_output, program_errors);
    return false;
}

/* Waits for a state that is not there yet. */
static bool saves(const job *j) {
    (void)has_progressed("job");
    return progresses(j);
}

/* False: the job is done. */
static bool find_rank(const job *j, int host, pid_t *rank) {
    pid_t child[8];
    for (int waited = 0; waited < 100000; waited++) {
        int n = ranks_of(j->launcher[host], child, 8);
        for (int i = 0; i < n; i++) {
            *rank = child[i];
            if (!hosts_world(child[i])) return true;
        }
        if (is_done(j)) return false;
        wait_ms(1);
    }
    ck_abort_msg("host %d has no rank", host);
    return false;
}

static pid_t rank_of(const job *j, int host) {
    pid_t rank = 0;
    ck_assert(find_rank(j, host, &rank));
    return rank;
}

/* ---- Starting and ending it ----------------------------------------------------------------------------------------- */

/* Returns when four ranks train. On a busy machine the first world may be smaller, and grows. False: the job is done before. */
static bool start_hosts(job *j) {
    j->port = reserved_port();
    j->out = temporary();
    j->err = temporary();
    j->said = 0;
    for (int host = 0; host < HOSTS; host++) start_host(j, host);
    const char *line = says(j, "4 ranks over");
    while (line && line > program_output && line[-1] != '\n') line--;
    if (!line || !saves(j)) return false;
    ck_assert_int_eq(sscanf(line, "[%d]", &j->first), 1);
    j->said = strlen(program_output); /* a world that has grown goes on, too */
    return true;
}

static job make_job(const char *restarts, const char *flags) {
    job j = {.nodes = "1:4", .network = FLAGS, .batch = 4, .restarts = restarts, .flags = flags};
    snprintf(j.data, sizeof j.data, "--data=%s", make_text("text", 8192));
    return j;
}

/* A job that trains for ever. */
static job start_job(const char *restarts, const char *flags) {
    job j = make_job(restarts, flags);
    ck_assert(start_hosts(&j));
    return j;
}

/* Kills a rank on this host, then one on the next, and so on. False: the job is done and has not said these words after. */
static bool kill_ranks(job *j, int host, int kills, const char *words) {
    for (int i = 0; i < kills; i++) {
        pid_t rank;
        wait_ms(rand() % 20);
        if (!find_rank(j, (host + i) % HOSTS, &rank)) return false;
        kill(rank, SIGKILL);
        if (!progresses(j)) return false;
    }
    return says(j, words);
}

/* On a busy machine a job may be done before its ranks are killed: then another one is started, up to five in all. */
static void start_and_kill(job *j, int host, int kills, const char *words) {
    for (int again = 0; again < 5; again++) {
        if (start_hosts(j) && kill_ranks(j, host, kills, words)) return;
        char command[300];
        for (int i = 0; i < HOSTS; i++) (void)end_of_host(j, i);
        snprintf(command, sizeof command, "rm -rf %s", in_scratch("job"));
        ck_assert_int_eq(system(command), 0);
        *last_progress = 0;
    }
    ck_abort_msg("five jobs have not said '%s': %s%s", words, program_output, program_errors);
}

/* The newest state has the bits of a job with these flags that has trained as long, undisturbed. */
static void same_as(const job *j, const char *undisturbed) {
    char state[RM_PATH_BYTES];
    bool found;
    long step;
    ck_assert(!rm_state_find(in_scratch("job"), state, &found) && found);
    ck_assert_int_eq(sscanf(strstr(state, "step-"), "step-%ld", &step), 1);
    char alone[RM_PATH_BYTES];
    ck_runs("train %s %s %s --steps=%ld --save=%s", j->data, j->network, undisturbed, step, in_scratch("alone"));
    ck_assert(!rm_state_find(in_scratch("alone"), alone, &found) && found);
    same_files(alone, state);
}

static void same_as_alone(const job *j) { same_as(j, "--batch=16"); }

/* Whether the newest world has four ranks. */
static bool is_whole(const job *j) {
    static const char four[] = "4 ranks go";
    const char *at = program_output, *newest = NULL;
    read_output(j);
    while ((at = strstr(at, " on from step"))) newest = at++;
    return !newest || !strncmp(newest - strlen(four), four, strlen(four));
}

/* The first state may be of steps before the last rank was lost; the second one is of the newest world. */
static void wait_until_whole(const job *j) {
    for (int again = 0; again < 1000; again++) {
        ck_assert(saves(j) && saves(j));
        if (is_whole(j)) return;
        wait_ms(100);
    }
    ck_abort_msg("the four ranks do not train together: %s%s", program_output, program_errors);
}

/* Ends a job that trains for ever. A rank outside the world would end with status 0. */
static void stop_job(const job *j) {
    wait_until_whole(j);
    for (int host = 0; host < HOSTS; host++) kill(j->launcher[host], SIGTERM);
    for (int host = 0; host < HOSTS; host++) {
        int code = end_of_host(j, host);
        read_output(j);
        ck_assert_msg(code == 143, "host %d: %d: %s", host, code, program_errors);
    }
    same_as_alone(j);
}

static void end_all(const job *j) {
    for (int host = 0; host < HOSTS; host++) {
        int code = end_of_host(j, host);
        read_output(j);
        ck_assert_msg(code == 0, "host %d: %d: %s", host, code, program_errors);
    }
}

/* ---- Tests ---------------------------------------------------------------------------------------------------------- */

START_TEST(killed_ranks_are_replaced) {
    job j = start_job("100", "--steps=1000000");
    srand(7);
    for (int i = 0; i < rm_cases(20, 4); i++) {
        wait_ms(rand() % 50);
        kill(rank_of(&j, i % HOSTS), SIGKILL);
        ck_assert(progresses(&j));
    }
    stop_job(&j);
    read_output(&j);
    ck_says_all(program_errors, "killed by signal 9|restart 1 of 100");
    ck_says_all(program_output, "4 ranks go on from step|held in memory|stopped after step");
}
END_TEST

START_TEST(others_go_on_without_a_lost_rank) {
    job j = make_job("0", "--steps=400");
    start_and_kill(&j, 1, 1, "2 ranks go on");
    ck_assert_int_eq(end_of_host(&j, 1), 137);
    for (int host = 0; host < HOSTS; host++)
        if (host != 1) ck_assert_int_eq(end_of_host(&j, host), 0);
    read_output(&j);
    ck_says_all(program_errors, "others continue without it|waiting as a spare");
    ck_says_all(program_output, "2 ranks go on from step|held in memory|done after step 400");
    same_as_alone(&j);
}
END_TEST

START_TEST(returning_host_is_taken_in) {
    job j = start_job("0", "--steps=1000000");
    kill(j.launcher[2], SIGKILL);
    (void)end_of_host(&j, 2);
    wait_for_words(&j, "2 ranks go on");
    start_host(&j, 2);
    wait_for_words(&j, "4 ranks go on");
    stop_job(&j);
}
END_TEST

/* Processes that return with another command line, or without the data. The same host then returns as it was. */
static const struct {
    const char *flag, *words, *last_words; /* `last_words`: of rank 0 */
    int code;
} misfits[] = {
    {"--lr=0.5", "'--lr=0.01' on rank 0, but '--lr=0.5' on rank|the job goes on without the ranks that differ",
     "but '--lr=0.5' on rank", 2},
    {"--batch=3", "'--batch=4' on rank 0, but '--batch=3' on rank|the job goes on without the ranks that differ",
     "but '--batch=3' on rank", 2},
    {"--dist-backend=mpi", "ranks of the job have --dist-backend=auto, but this process has --dist-backend=mpi",
     "so the job goes on without it", 2},
    {"--data=missing.txt", "cannot take part, and the others go on without it: missing.txt does not exist",
     "go on without it: missing.txt", 1}};

START_TEST(misfits_do_not_end_the_job) {
    job j = start_job("0", "--steps=1000000");
    kill(j.launcher[2], SIGKILL);
    (void)end_of_host(&j, 2);
    wait_for_words(&j, "2 ranks go on");
    for (size_t i = 0; i < sizeof misfits / sizeof *misfits; i++) {
        char flags[100];
        snprintf(flags, sizeof flags, "--steps=1000000 %s", misfits[i].flag);
        j.flags = flags;
        start_host(&j, 2);
        ck_assert_int_eq(end_of_host(&j, 2), misfits[i].code);
        wait_for_errors(&j, misfits[i].last_words);
        ck_says_all(program_errors, misfits[i].words);
        ck_assert(saves(&j));
    }
    j.flags = "--steps=1000000";
    start_host(&j, 2);
    wait_for_words(&j, "4 ranks go on");
    stop_job(&j);
}
END_TEST

/* Rank 0, which saves, is stopped; it wakes in another world. On one host the others do not wait for --hang-timeout. */
START_TEST(stopped_rank_is_left_out_and_returns) {
    job j = start_job("0", "--steps=1000000 --hang-timeout=60");
    pid_t rank = rank_of(&j, j.first);
    kill(rank, SIGSTOP);
    wait_for_words(&j, "2 ranks go on");
    ck_assert(saves(&j));
    kill(rank, SIGCONT);
    wait_for_words(&j, "4 ranks go on");
    stop_job(&j);
}
END_TEST

#ifdef REMAT_HAVE_GLOO
/* Rank 0 serves the store through which ranks find out who is lost. No survivor waits for it in Gloo, so all keep the step that
 * they hold. */
START_TEST(stopped_rank_is_left_out_over_gloo) {
    job j = start_job("0", "--steps=1000000 --dist-backend=gloo");
    pid_t rank = rank_of(&j, j.first);
    kill(rank, SIGSTOP);
    const char *said = says(&j, "2 ranks go on");
    ck_says_all(said, "held in memory");
    ck_assert_msg(!strstr(program_errors, "exited with"), "%s", program_errors);
    kill(rank, SIGCONT);
    wait_for_words(&j, "4 ranks go on");
    stop_job(&j);
}
END_TEST
#endif

/* Shuts down the process's connections to this port, as a broken network does. Returns their number. */
static int cut(pid_t pid, int port) {
    int pidfd = (int)syscall(SYS_pidfd_open, pid, 0), cuts = 0;
    for (int i = 3; i < 100 && pidfd >= 0; i++) {
        struct sockaddr_in at;
        socklen_t length = sizeof at;
        int fd = (int)syscall(SYS_pidfd_getfd, pidfd, i, 0);
        bool ours = fd >= 0 && !getpeername(fd, (struct sockaddr *)&at, &length) && at.sin_family == AF_INET;
        if (ours && ntohs(at.sin_port) == port) cuts += !shutdown(fd, SHUT_RDWR);
        if (fd >= 0) close(fd);
    }
    close(pidfd);
    return cuts;
}

START_TEST(cut_connection_is_made_again) {
    job j = start_job("0", "--steps=1000000");
    if (cut(rank_of(&j, 3), j.port))
        wait_for_words(&j, "go on from step");
    else
        puts("skipped in part: needs pidfd_getfd");
    stop_job(&j);
}
END_TEST

static void limit_files(const job *j, rlim_t bytes) {
    for (int host = 0; host < HOSTS; host++)
        ck_assert(!prlimit(rank_of(j, host), RLIMIT_FSIZE, &(struct rlimit){bytes, RLIM_INFINITY}, NULL));
}

START_TEST(full_disk_does_not_end_the_job) {
    job j = start_job("0", "--steps=1000000");
    limit_files(&j, 4096);
    wait_for_errors(&j, "continues without it");
    limit_files(&j, RLIM_INFINITY);
    ck_says_all(program_errors, "was not saved|continues without it");
    stop_job(&j);
}
END_TEST

/* Four of at most five hosts: a lost rank is waited for, so there are always four ranks, and each has five of the rows of an
 * update. What a step changes before its update comes from memory, too. */
static void ck_goes_on_from_memory(const char *data, const char *network, int kills) {
    job j = {.nodes = "4:5", .network = network, .batch = 4, .restarts = "100", .flags = ""};
    snprintf(j.data, sizeof j.data, "%s", data);
    srand(11);
    start_and_kill(&j, 1, kills, "4 ranks go on");
    end_all(&j);
    ck_says_all(program_output, "4 ranks go on from step|held in memory|done after step");
    ck_assert_ptr_null(strstr(program_output, "resumed from"));
    same_as(&j, "--batch=5 --devices=cpu:4");
}

START_TEST(carried_states_go_on_from_memory) {
    char data[300];
    snprintf(data, sizeof data, "--data=%s", make_text("text", 8192));
    ck_goes_on_from_memory(data,
                           "--hidden=24 --layers=2 --seq-len=16 --stateful --dropout=0.2 --threads=1 --lr=0.01 "
                           "--steps=600",
                           rm_cases(8, 2));
}
END_TEST

/* Statistics forget in tens of steps, so the job ends soon after. */
START_TEST(running_statistics_go_on_from_memory) {
    static uint8_t images[40 * 64], pixels[40 * 64];
    char data[600];
    for (int i = 0; i < 40 * 64; i++) images[i] = (uint8_t)(i * 37 % 251), pixels[i] = images[i] > 120;
    int n = snprintf(data, sizeof data, "--data=%s", make_npy("x.npy", "|u1", "(40, 1, 8, 8)", images, sizeof images));
    snprintf(data + n, sizeof data - (size_t)n, " --labels=%s",
             make_npy("y.npy", "|u1", "(40, 8, 8)", pixels, sizeof pixels));
    ck_goes_on_from_memory(data,
                           "--model=unet --layers=3 --hidden=24 --sync-batchnorm --threads=1 --lr=0.01 --steps=40", 1);
}
END_TEST

/* With a sharded optimizer no rank has the whole state: the next world reads the last training state. */
START_TEST(sharded_state_is_read_from_disk) {
    job j = make_job("100", "--steps=600 --zero=1");
    start_and_kill(&j, 2, 1, "resumed from");
    for (int host = 0; host < HOSTS; host++) ck_assert_int_eq(end_of_host(&j, host), 0);
    read_output(&j);
    ck_says_all(program_output, "resumed from|done after step 600");
}
END_TEST

/* The signal comes while three ranks wait for a fourth. No training state has their last step. */
START_TEST(signal_between_worlds_saves_the_step_held_in_memory) {
    job j = make_job("0", "--steps=1000000 --save-every=100");
    j.nodes = "4:5";
    ck_assert(start_hosts(&j));
    wait_ms(30);
    kill(rank_of(&j, 1), SIGKILL);
    ck_assert_int_eq(end_of_host(&j, 1), 137);
    wait_for_errors(&j, "3 of at least 4 ranks");
    kill(j.launcher[0], SIGTERM);
    start_host(&j, 1);
    for (int host = 0; host < HOSTS; host++) ck_assert_int_eq(end_of_host(&j, host), 143);
    const char *line = says(&j, "4 ranks go on from step");
    long step;
    char name[32];
    ck_assert_int_eq(sscanf(line, "4 ranks go on from step %ld", &step), 1);
    ck_says_all(line, "before the first of this run|saved in");
    snprintf(name, sizeof name, "job/step-%08ld", step);
    ck_assert(!access(in_scratch(name), R_OK));
    same_as(&j, "--batch=20");
}
END_TEST

/* Each launcher says so once, in spite of restarts that are left. */
START_TEST(job_ends_with_the_launcher_of_host_0) {
    job j = start_job("100", "--steps=1000000");
    kill(j.launcher[0], SIGKILL);
    ck_assert_int_eq(end_of_host(&j, 0), 137);
    for (int host = 1; host < HOSTS; host++) ck_assert_int_eq(end_of_host(&j, host), 4);
    read_output(&j);
    int said = 0;
    for (const char *at = program_errors; (at = strstr(at, "launcher of host 0")); at++) said++;
    ck_assert_msg(said == HOSTS - 1 && !strstr(program_errors, "status 4"), "%d: %s", said, program_errors);
}
END_TEST

START_TEST(too_few_ranks_end_the_job) {
    int status = run_program("launch --nnodes=2:4 --node-rank=0 --master-addr=127.0.0.1 --master-port=%d -- " REMAT
                             " train --data=%s " FLAGS "--batch=4 --join-timeout=4",
                             reserved_port(), make_text("text", 8192));
    ck_assert_msg(status == 4, "%d: %s", status, program_errors);
    ck_says_all(program_errors, "1 of at least 2 ranks|too few ranks|--nnodes=MIN:MAX");
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("elastic");
    tcase_add_test(tests, killed_ranks_are_replaced);
    tcase_add_test(tests, others_go_on_without_a_lost_rank);
    tcase_add_test(tests, returning_host_is_taken_in);
    tcase_add_test(tests, misfits_do_not_end_the_job);
    tcase_add_test(tests, stopped_rank_is_left_out_and_returns);
#ifdef REMAT_HAVE_GLOO
    tcase_add_test(tests, stopped_rank_is_left_out_over_gloo);
#endif
    tcase_add_test(tests, cut_connection_is_made_again);
    tcase_add_test(tests, full_disk_does_not_end_the_job);
    tcase_add_test(tests, carried_states_go_on_from_memory);
    tcase_add_test(tests, running_statistics_go_on_from_memory);
    tcase_add_test(tests, sharded_state_is_read_from_disk);
    tcase_add_test(tests, signal_between_worlds_saves_the_step_held_in_memory);
    tcase_add_test(tests, job_ends_with_the_launcher_of_host_0);
    tcase_add_test(tests, too_few_ranks_end_the_job);
    return run_suite("train/elastic", tests);
}
