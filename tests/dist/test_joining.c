/* test_joining.c: joining ranks: within seconds the user is told which rank the others wait for, and every wait ends
 * with a reason, whatever the engine, when a rank is stopped, ends, differs, or starts again. */
#include "dist/group/arrivals.h"
#include "dist/group/group_auto.h"
#include "dist/group/joining.h"

#include <stdatomic.h>
#include <sys/mman.h>

#include "tests/dist/ranks.h"
#include "tests/ports.h"
#include "tests/says.h"
#include "tests/suite.h"
#include "tests/tries.h"

static const char *const engines[] = {
    "local",
#ifdef REMAT_HAVE_GLOO
    "gloo",
#endif
};
enum { ENGINES = sizeof engines / sizeof *engines, TOLD = 4000 };

/* What each rank reported, in memory that the ranks share. */
typedef struct {
    char text[MOST_RANKS][TOLD];
    double began_s, first_s[MOST_RANKS]; /* time of the beginning, and of the first report; 0: none */
} hearing;
static hearing *heard;
static int this_rank;

static void hear(void *context, const char *sentence) {
    char *text = heard->text[this_rank];
    (void)context;
    size_t used = strlen(text);
    snprintf(text + used, TOLD - used, "%s\n", sentence);
    if (heard->first_s[this_rank] == 0) heard->first_s[this_rank] = seconds();
}

static void prepare(void) {
    heard = mmap(NULL, sizeof *heard, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert(heard != MAP_FAILED);
}

static rm_group_config config_of(const char *engine, int rank, int size, rm_kv *store, int64_t join_ms) {
    this_rank = rank;
    return (rm_group_config){.engine = engine,
                             .rank = rank,
                             .size = size,
                             .store = store,
                             .join_ms = join_ms,
                             .join_name = "--join-timeout=3",
                             .say = hear};
}

/* Like a rank that has arrived and gets no further. */
static rm_joining *only_answer(const char *engine, int rank, int size, rm_kv *store) {
    static rm_group_config config;
    rm_arrival mine;
    char chosen[16];
    config = config_of(engine, rank, size, store, 60000);
    config.name = "world#1";
    need_ok(rm_joining_begin(&config, &config.joining));
    rm_arrival_fill(engine, false, true, &mine);
    need_ok(rm_wait_for_ranks(&config, &mine, chosen));
    need(!strcmp(chosen, engine), "%s", chosen);
    return config.joining;
}

/* ---- A stopped rank ---------------------------------------------------------------------------------------------- */

typedef struct {
    const char *engine;
    int late; /* the late rank */
    bool answers, ends;
} scene;

static void wait_until_here(int size, int but, rm_kv *store) {
    char key[40];
    for (int r = 0; r < size; r++) {
        snprintf(key, sizeof key, "world#1/here/%d", r);
        if (r != but) need_ok(rm_kv_wait(store, key, 60000));
    }
}

static void one_lags(int rank, int size, rm_kv *store, void *context) {
    const scene *s = context;
    rm_group *group;
    if (rank == 0) heard->began_s = seconds();
    rm_group_config config = config_of(s->engine, rank, size, store, s->ends ? 60000 : 3000);
    rm_joining *joining = rank == s->late && s->answers ? only_answer(s->engine, rank, size, store) : NULL;
    /* The others must have seen this rank before it ends */
    if (rank == s->late && s->ends) wait_until_here(size, rank, store);
    if (rank == s->late && s->ends) rm_joining_free(joining);
    if (rank == s->late && s->ends) return;
    if (rank == s->late) raise(SIGSTOP);
    const char *words =
        s->ends ? "ended before the group had started, while the others waited for it" : "did not join within 3000 ms";
    need_peer(rm_group_open(&config, &group), words);
    char who[20];
    snprintf(who, sizeof who, "rank %d of 3", s->late);
    need(strstr(remat_last_error(), who), "%s", remat_last_error());
    if (!s->ends) need(strstr(remat_last_error(), "--join-timeout=3"), "%s", remat_last_error());
    if (s->answers && !s->ends)
        need(strstr(remat_last_error(), "it was last meeting the other ranks"), "%s", remat_last_error());
}

/* Whether rank 0, and nobody else, soon tells who is late and how long ago it responded. */
static bool stop_rank_1(scene s) {
    pid_t pid[3];
    memset(heard, 0, sizeof *heard);
    start_ranks(3, one_lags, &s, pid);
    ck_assert_int_eq(end_of(pid[0]), 0);
    ck_assert_int_eq(end_of(pid[2]), 0);
    kill(pid[1], SIGKILL);
    ck_assert_int_eq(end_of(pid[1]), 128 + SIGKILL);
    const char *last = s.answers ? "it was last meeting the other ranks, and last responded 1." : "";
    return strstr(heard->text[0], "waiting for rank 1 of 3") && strstr(heard->text[0], last) && !*heard->text[2] &&
           heard->first_s[0] - heard->began_s < 3.5;
}

/* Only rank 0 reports, long before the time limit, and all ranks fail with the same message. On a busy machine other ranks
 * arrive late, too: one time of some is enough. */
START_TEST(stopped_rank_is_named_and_ends_the_wait) {
    scene s = {.engine = engines[_i % ENGINES], .late = 1, .answers = _i / ENGINES};
    ck_assert_msg(once_of_five(stop_rank_1(s)), "after %.1f s '%s'; '%s'", heard->first_s[0] - heard->began_s,
                  heard->text[0], heard->text[2]);
}
END_TEST

/* It closes its store like a rank that has finished, and exits with 0. */
START_TEST(normally_exiting_rank_ends_the_wait) {
    scene s = {.engine = engines[_i % ENGINES], .answers = _i / ENGINES, .ends = true};
    for (; s.late < 2; s.late++) run_ranks(3, one_lags, &s);
}
END_TEST

/* ---- The engine -------------------------------------------------------------------------------------------------- */

static void engines_differ(int rank, int size, rm_kv *store, void *context) {
    rm_group *group;
    const char *const *wanted = context;
    rm_group_config config = config_of(wanted[rank], rank, size, store, 60000);
    remat_status status = rm_group_open(&config, &group);
    need(status == REMAT_INVALID && strstr(remat_last_error(), "rank 0 has backend=local, but rank 2 (") &&
             strstr(remat_last_error(), ") has backend=auto"),
         "status %d, %s", (int)status, status ? remat_last_error() : "");
}
START_TEST(different_backends_are_named) {
    double start = seconds();
    run_ranks(4, engines_differ, (const char *[]){"local", "local", NULL, "local"});
    ck_assert_msg(seconds() - start < 20, "%.1f s", seconds() - start);
}
END_TEST

static rm_arrival arrival(const char *engine, const char *place, bool mpi, bool gloo) {
    rm_arrival a = {.mpi = mpi, .gloo = gloo, .who = "node7, process 4711"};
    strcpy(a.engine, engine);
    strcpy(a.place, place);
    return a;
}

/* The engine that "auto" selects follows from the builds of all ranks, and is the same on all of them. */
START_TEST(auto_selects_an_engine_that_all_ranks_have) {
    char engine[16];
    rm_arrival all[3];
    for (int r = 0; r < 3; r++) all[r] = arrival("auto", "here", true, true);
    ck_ok(rm_arrivals_choose(all, 3, engine));
    ck_assert_str_eq(engine, "local");
    ck_says_all(rm_engine_reason("auto", engine), "auto|one host");
    strcpy(all[2].place, "there");
    ck_ok(rm_arrivals_choose(all, 3, engine));
    ck_assert_str_eq(engine, "mpi");
    ck_says_all(rm_engine_reason("auto", engine), "auto|MPI's launcher started");
    all[0].mpi = false;
    ck_ok(rm_arrivals_choose(all, 3, engine));
    ck_assert_str_eq(engine, "gloo");
    ck_says_all(rm_engine_reason("auto", engine), "auto|several hosts|not");
    all[1].gloo = false;
    ck_fails(rm_arrivals_choose(all, 3, engine), MISSING,
             "the Remat of rank 1 (node7, process 4711) was built without it");
    all[0].mpi = true;
    ck_ok(rm_arrivals_choose(all, 3, engine));
    ck_assert_str_eq(engine, "mpi");
}
END_TEST

static void one_cannot(int rank, int size, rm_kv *store, void *context) {
    rm_group *group;
    (void)context;
    rm_group_config config = config_of(rank == 1 ? "no-such" : "local", rank, size, store, 60000);
    remat_status status = rm_group_open(&config, &group);
    if (rank == 1) need(status == REMAT_INVALID, "%d", (int)status);
    if (rank != 1)
        need(status == REMAT_PEER && strstr(remat_last_error(), "could not join: there is no engine 'no-such'"),
             "status %d, %s", (int)status, remat_last_error());
    let_others_finish(store, rank, size, 1);
}
START_TEST(failure_of_one_rank_is_reported_to_all) { run_ranks(3, one_cannot, NULL); }
END_TEST

static _Atomic int meets_late_ms;

/* Also for the library, which calls it when a rank arrives at a meeting. */
int sched_getcpu(void) {
    nap_ms(atomic_exchange(&meets_late_ms, 0));
    return 0;
}

static void one_meets_late(int rank, int size, rm_kv *store, void *context) {
    rm_group *group;
    rm_group_config config = config_of("local", rank, size, store, 60000);
    (void)context;
    config.timeout_ms = 200;
    if (rank == 1) meets_late_ms = 800;
    need_ok(rm_group_open(&config, &group));
    need(!meets_late_ms, "ranks meet without sched_getcpu()");
    let_others_finish(store, rank, size, 0);
    rm_group_close(group);
}
/* The limit of a collective does not hold for the first meeting. */
START_TEST(ranks_may_meet_as_late_as_they_may_join) { run_ranks(3, one_meets_late, NULL); }
END_TEST

/* ---- Over tcp ---------------------------------------------------------------------------------------------------- */

/* Whether rank 1 says in time that rank 0 is stopped, whose store does not reply. */
static bool stop_rank_0(void) {
    int port = reserved_port();
    pid_t pid[2];
    memset(heard, 0, sizeof *heard);
    for (int rank = 0; rank < 2; rank++) {
        if ((pid[rank] = fork()) > 0) continue;
        rm_kv *store;
        rm_group *group;
        alarm(280);
        need_ok(rm_kv_open(
            &(rm_kv_config){.host = "127.0.0.1", .port = port, .rank = rank, .size = 2, .grace_ms = 3000}, &store));
        if (rank == 0) need_ok(rm_kv_wait(store, "world#1/here/1", 20000));
        if (rank == 0) raise(SIGSTOP);
        rm_group_config config = config_of("local", rank, 2, store, 30000);
        need_peer(rm_group_open(&config, &group), "rank 0 is stopped");
        _exit(0);
    }
    ck_assert_int_eq(end_of(pid[1]), 0);
    kill(pid[0], SIGKILL);
    ck_assert_int_eq(end_of(pid[0]), 128 + SIGKILL);
    return strstr(heard->text[1], "waiting for rank 0, whose store does not answer, since 2 s");
}

START_TEST(stopped_rank_0_is_named) { ck_assert_msg(once_of_five(stop_rank_0()), "'%s'", heard->text[1]); }
END_TEST

int main(void) {
    TCase *all = tcase_create("all"), *tcp = tcase_create("tcp");
    tcase_set_timeout(all, 300);
    tcase_add_checked_fixture(all, prepare, NULL);
    tcase_add_loop_test(all, stopped_rank_is_named_and_ends_the_wait, 0, 2 * ENGINES);
    tcase_add_loop_test(all, normally_exiting_rank_ends_the_wait, 0, 2 * ENGINES);
    tcase_add_test(all, different_backends_are_named);
    tcase_add_test(all, auto_selects_an_engine_that_all_ranks_have);
    tcase_add_test(all, failure_of_one_rank_is_reported_to_all);
    tcase_add_test(all, ranks_may_meet_as_late_as_they_may_join);
    tcase_set_timeout(tcp, 300);
    tcase_add_checked_fixture(tcp, prepare, NULL);
    tcase_add_test(tcp, stopped_rank_0_is_named);
    return run_cases("dist/joining", all, tcp);
}
