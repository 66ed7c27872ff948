/* test_engines.c: the engines for several hosts, mpi and gloo, on this host: the same random collectives, the same
 * faults, ranks that die and ranks that do not arrive. Gloo's ranks are forked; MPI's are this program again, started
 * by mpirun. An engine that this build or machine lacks is skipped. */
#include "tests/dist/collectives.h"
#include "tests/dist/mpirun.h"
#include "tests/suite.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>

typedef struct {
    const char *engine, *scenario;
} job;

static void results(rm_group *group) {
    const int size = rm_group_size(group);
    for (int i = 0; i < 100; i++) do_case(group, (uint64_t)(i * 8 + size), false);
}

/* Sums in another order than that of ranks must still be the same on all ranks. */
static void same_bits(rm_group *group) {
    enum { N = 20000 };
    static float x[N], all[MOST_RANKS][N];
    const int rank = rm_group_rank(group), size = rm_group_size(group);
    random_case c = {.seed = 3};
    bring(&c, rank, N, x);
    rm_collective sum = {.kind = RM_ALL_REDUCE, .reduction = RM_MEAN, .count = N, .in = x, .out = x};
    need_ok(rm_group_run(group, &sum));
    need_ok(rm_group_run(group, &(rm_collective){.kind = RM_ALL_GATHER, .count = N, .in = x, .out = all}));
    for (int r = 1; r < size; r++) need(!memcmp(all[0], all[r], sizeof x), "rank %d has other bits", r);
}

/* The last rank issues something else in its second call. */
static void disagree(rm_group *group, rm_collective odd, const char *words) {
    static float x[64];
    rm_collective what = {.kind = RM_ALL_REDUCE, .count = 8, .tag = 1, .in = x, .out = x};
    const int rank = rm_group_rank(group), last = rm_group_size(group) - 1;
    char ranks[64];
    need_ok(rm_group_run(group, &what));
    odd.in = odd.out = x;
    snprintf(ranks, sizeof ranks, "ranks 0 and %d disagree about the %s", last, words);
    need_peer(rm_group_run(group, rank == last ? &odd : &what), ranks);
    need_peer(rm_group_run(group, &what), ranks);
}

/* The last rank is killed after its third call. */
static void die(rm_group *group) {
    static float x[5000];
    rm_collective what = {.kind = RM_ALL_REDUCE, .count = 5000, .in = x, .out = x};
    const int last = rm_group_size(group) - 1;
    char ranks[64];
    for (uint32_t k = 0; k < 3; k++) {
        what.tag = k;
        need_ok(rm_group_run(group, &what));
    }
    if (rm_group_rank(group) == last) {
        nap_ms(50);
        raise(SIGKILL);
    }
    double start = seconds();
    snprintf(ranks, sizeof ranks, "rank %d (", last);
    need_peer(rm_group_run(group, &what), ranks);
    need(strstr(remat_last_error(), "is gone") && strstr(remat_last_error(), "call 4"), "%s", remat_last_error());
    need(seconds() < start + 5, "only after %.1f s", seconds() - start);
    need_peer(rm_group_poll(group), ranks);
}

/* The last rank lives, but does not issue the second call. */
static void dawdle(rm_group *group, rm_kv *store) {
    static float x[8];
    rm_collective what = {.kind = RM_ALL_REDUCE, .count = 8, .tag = 9, .in = x, .out = x};
    const int last = rm_group_size(group) - 1;
    char ranks[64];
    need_ok(rm_group_run(group, &what));
    snprintf(ranks, sizeof ranks, "rank %d (", last);
    if (rm_group_rank(group) != last) {
        need_peer(rm_group_run(group, &what), ranks);
        need(strstr(remat_last_error(), "did not reach call 2, all_reduce of 8 f32 (tag 9)"), "%s", remat_last_error());
    }
    let_others_finish(store, rm_group_rank(group), last + 1, last);
}

static void give_up(rm_group *group) {
    if (rm_group_rank(group) == 0) {
        nap_ms(100);
        rm_group_abort(group, "the disk is full");
    }
    const char *words = "rank 0 ended the group: the disk is full";
    for (double start = seconds(); !rm_group_poll(group) && seconds() < start + 20;) nap_ms(5);
    need_peer(rm_group_poll(group), words); /* also when asked again at once */
    need_peer(rm_group_run(group, &(rm_collective){.kind = RM_BARRIER}), words);
}

static void play(rm_group *group, rm_kv *store, const char *scenario) {
    if (!strcmp(scenario, "results")) results(group), same_bits(group);
    if (!strcmp(scenario, "tag")) disagree(group, (rm_collective){.kind = RM_ALL_REDUCE, .count = 8, .tag = 2}, "tag");
    if (!strcmp(scenario, "type"))
        disagree(group, (rm_collective){.kind = RM_ALL_REDUCE, .wire = RM_WIRE_I32, .count = 8, .tag = 1}, "type");
    if (!strcmp(scenario, "count"))
        disagree(group, (rm_collective){.kind = RM_ALL_REDUCE, .count = 9, .tag = 1}, "count");
    if (!strcmp(scenario, "kind")) disagree(group, (rm_collective){.kind = RM_BARRIER, .tag = 1}, "kind");
    if (!strcmp(scenario, "death")) die(group);
    if (!strcmp(scenario, "absence")) dawdle(group, store);
    if (!strcmp(scenario, "abort")) give_up(group);
}

static void in_a_rank(int rank, int size, rm_kv *store, void *context) {
    const job *j = context;
    rm_group *group;
    rm_group_config config = {.engine = j->engine, .rank = rank, .size = size, .store = store};
    config.timeout_ms = strcmp(j->scenario, "absence") ? 60000 : 3000;
    config.join_ms = 60000; /* MPI starts slowly on a busy machine */
    need_ok(rm_group_open(&config, &group));
    play(group, store, j->scenario);
    if (!strcmp(j->scenario, "absence")) rm_group_abort(group, "seen enough"); /* no rank waits for another */
    rm_group_close(group);
}

static const char *const scenarios[]
    __attribute__((unused)) = {"results", "tag", "type", "count", "kind", "death", "absence", "abort"};
enum { SCENARIOS = sizeof scenarios / sizeof *scenarios };

/* ---- Gloo -------------------------------------------------------------------------------------------------------- */

static void need_ends(const job *j, int size, const pid_t *pid) {
    for (int r = 0; r < size; r++) {
        bool dies = r == size - 1 && !strcmp(j->scenario, "death");
        ck_assert_int_eq(end_of(pid[r]), dies ? 128 + SIGKILL : 0);
    }
}

#ifdef REMAT_HAVE_GLOO
START_TEST(gloo) {
    pid_t pid[MOST_RANKS];
    job j = {"gloo", scenarios[_i]};
    int sizes[] = {2, 3, 4};
    for (int i = 0; i < (_i == 0 ? 3 : 1); i++) {
        start_ranks(sizes[i], in_a_rank, &j, pid);
        need_ends(&j, sizes[i], pid);
    }
}
END_TEST

/* Exchanges until the group fails: a write to a connection whose other end has just gone must not end this rank, too.
 * Gloo sometimes waits for such a write until its own timeout, which is short here. */
static void exchange_until_it_fails(int rank, int size, rm_kv *store, void *context) {
    static float x[100000];
    rm_group *group;
    rm_group_config config = {
        .engine = "gloo", .rank = rank, .size = size, .store = store, .timeout_ms = 5000, .join_ms = 60000};
    need_ok(rm_group_open(&config, &group));
    remat_status status = rm_group_run(group, &(rm_collective){.kind = RM_BARRIER});
    need(write(((const int *)context)[1], "", 1) == 1, "nobody reads");
    for (uint64_t k = 0; !status; k++)
        status = rm_group_run(
            group, &(rm_collective){.kind = RM_ALL_REDUCE, .count = k % 3 ? 100 : 100000, .in = x, .out = x});
    need(status == REMAT_PEER && strstr(remat_last_error(), "rank 2"), "%s", remat_last_error());
    _exit(0);
}

START_TEST(broken_gloo_connections_do_not_kill_the_rank) {
    pid_t pid[MOST_RANKS];
    int ready[2];
    char byte;
    ck_assert(!pipe(ready));
    for (int round = 0; round < 25; round++) {
        start_ranks(3, exchange_until_it_fails, ready, pid);
        for (int r = 0; r < 3; r++) ck_assert(read(ready[0], &byte, 1) == 1);
        usleep((useconds_t)(1000 + 600 * round));
        kill(pid[2], SIGKILL);
        ck_assert_int_eq(end_of(pid[2]), 128 + SIGKILL);
        for (int r = 0; r < 2; r++) ck_assert_msg(end_of(pid[r]) == 0, "round %d, rank %d", round, r);
    }
    close(ready[0]);
    close(ready[1]);
}
END_TEST

/* ---- Strangers: replaces the listen() that Gloo calls ---- */

static struct {
    int most; /* the most ports that a stranger connects to, in each rank */
    bool junk, leaves, came;
} strangers;

/* Gloo of 2022 waits for one rank at each of its ports and takes whoever comes first for it. Gloo of 2023 has one port
 * for all ranks, which identify themselves, so no stranger is tried there. */
int listen(int fd, int backlog) {
    struct sockaddr_in here;
    socklen_t bytes = sizeof here;
    int status = (int)syscall(SYS_listen, fd, backlog);
    if (backlog != 1 || strangers.most-- <= 0 || getsockname(fd, (struct sockaddr *)&here, &bytes)) return status;
    int stranger = socket(AF_INET, SOCK_STREAM, 0);
    strangers.came = true;
    need(!connect(stranger, (struct sockaddr *)&here, bytes), "%s", strerror(errno));
    for (int i = 0; strangers.junk && i < 40; i++) (void)!send(stranger, "GET / HTTP/1.0\r\n\r\n", 18, MSG_NOSIGNAL);
    if (strangers.leaves) close(stranger);
    return status;
}

static void meet_strangers(int rank, int size, rm_kv *store, void *context) {
    rm_group *group;
    rm_group_config config = {.engine = "gloo", .rank = rank, .size = size, .store = store, .timeout_ms = 60000};
    int32_t sum = rank;
    (void)context;
    bool many = strangers.most > 100;
    remat_status status = rm_group_open(&config, &group);
    bool often = many && strangers.came;
    if (often) need(status == REMAT_PEER && strstr(remat_last_error(), "a port scanner"), "%s", remat_last_error());
    if (often) return;
    need_ok(status);
    need_ok(rm_group_run(
        group, &(rm_collective){.kind = RM_ALL_REDUCE, .wire = RM_WIRE_I32, .count = 1, .in = &sum, .out = &sum}));
    need(sum == size * (size - 1) / 2, "%d", sum);
    rm_group_close(group);
}

/* Strangers that say nothing, that talk, or that leave again; on the first ports, or on all ports ever opened. */
START_TEST(strangers_on_gloo_ports_are_detected) {
    strangers.most = _i < 3 ? 2 : 1000;
    strangers.junk = _i % 3 == 1;
    strangers.leaves = _i % 3 == 2;
    run_ranks(2 + _i % 2, meet_strangers, NULL);
}
END_TEST

/* One rank fails before it listens: the others learn of it long before their time limit. Gloo of 2023 takes ten seconds
 * to give up. */
static void choose_no_interface(int rank, int size, rm_kv *store, void *context) {
    rm_group *group;
    rm_group_config config = {.engine = "gloo", .rank = rank, .size = size, .store = store, .timeout_ms = 60000};
    double start = seconds();
    (void)context;
    if (rank == 1) setenv("GLOO_SOCKET_IFNAME", "nonexist0", 1);
    need_peer(rm_group_open(&config, &group), "rank 1 could not connect to the other ranks through nonexist0");
    need(seconds() - start < 20, "%.1f s", seconds() - start);
}
START_TEST(missing_interface_is_an_error_on_all_ranks) { run_ranks(3, choose_no_interface, NULL); }
END_TEST

/* SIGPIPE is blocked in the threads that Gloo starts; the program's own handling of it does not change. */
static void keep_the_signal(int rank, int size, rm_kv *store, void *context) {
    sigset_t mask;
    struct sigaction action;
    rm_group *group = open_group("gloo", rank, size, store);
    (void)context;
    need_ok(rm_group_run(group, &(rm_collective){.kind = RM_BARRIER}));
    need(!pthread_sigmask(SIG_BLOCK, NULL, &mask) && !sigismember(&mask, SIGPIPE), "it is blocked here");
    need(!sigaction(SIGPIPE, NULL, &action) && action.sa_handler == SIG_DFL, "its action has changed");
    rm_group_close(group);
}
START_TEST(gloo_leaves_the_programs_sigpipe_handling_unchanged) { run_ranks(2, keep_the_signal, NULL); }
END_TEST
#endif

/* ---- MPI --------------------------------------------------------------------------------------------------------- */

#ifdef REMAT_HAVE_MPI
/* A rank that mpirun started: argv is mpi SCENARIO PATH. */
static int mpi_rank(char **argv) {
    int rank, size;
    job j = {"mpi", argv[2]};
    rm_kv *store = store_under_mpi(argv[3], &rank, &size);
    in_a_rank(rank, size, store, &j);
    return mpi_rank_is_well(store, rank, size - !strcmp(j.scenario, "death"));
}

/* A death is a race between the others and mpirun, which kills them soon: one time of some in which they win is enough. */
START_TEST(mpi) {
    static char said[20000];
    const bool death = !strcmp(scenarios[_i], "death");
    int size = _i == 0 ? 4 : 2, well = -1;
    for (int time = 0; time < (death ? 5 : 1) && well != size - death; time++)
        well = well_under_mpi(size, scenarios[_i], said, sizeof said);
    ck_assert_msg(well == size - death, "%s: %d of %d ranks are well:\n%s", scenarios[_i], well, size, said);
}
END_TEST
#endif

/* For LeakSanitizer: Gloo loses its list of interfaces if the requested one does not exist. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void) { return "leak:gloo::transport::tcp::CreateDevice\n"; }

int main(int argc, char **argv) {
#ifdef REMAT_HAVE_MPI
    if (argc == 4 && !strcmp(argv[1], "mpi")) return mpi_rank(argv);
    if (!find_own_program()) return 1;
#endif
    (void)argc, (void)argv, (void)need_ends, (void)in_a_rank;
    TCase *engines = tcase_create("engines"), *signals = tcase_create("signals");
#ifdef REMAT_HAVE_GLOO
    tcase_add_loop_test(engines, gloo, 0, SCENARIOS);
    tcase_add_test(signals, broken_gloo_connections_do_not_kill_the_rank);
    tcase_add_test(signals, gloo_leaves_the_programs_sigpipe_handling_unchanged);
    tcase_add_test(signals, missing_interface_is_an_error_on_all_ranks);
    tcase_add_loop_test(signals, strangers_on_gloo_ports_are_detected, 0, 6);
    tcase_set_timeout(signals, 250);
#endif
#ifdef REMAT_HAVE_MPI
    if (have_mpirun())
        tcase_add_loop_test(engines, mpi, 0, SCENARIOS);
    else
        puts("no mpirun here: the engine mpi is not tested");
#endif
    return run_cases("dist/engines", signals, engines);
}
