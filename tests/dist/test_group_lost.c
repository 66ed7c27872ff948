/* test_group_lost.c: ranks of a group that do not arrive, die or are stopped are named on all others. */
#include "tests/dist/collectives.h"
#include "tests/suite.h"
#include "tests/tries.h"

#include <sys/syscall.h>

static const char *const engine = "local";

/* ---- Ranks that do not arrive ------------------------------------------------------------------------------------ */

static void one_leaves(int rank, int size, rm_kv *store, void *context) {
    rm_group *group = open_group(engine, rank, size, store);
    (void)context;
    need_ok(rm_group_run(group, &(rm_collective){.kind = RM_BARRIER, .tag = 5}));
    if (rank != 1) need_peer(rm_group_run(group, &(rm_collective){.kind = RM_BARRIER}), "rank 1 on ");
    if (rank != 1)
        need(strstr(remat_last_error(), "left the group after call 1, barrier (tag 5)"), "%s", remat_last_error());
    rm_group_close(group);
}

START_TEST(missing_last_call_is_detected) { run_ranks(3, one_leaves, NULL); }
END_TEST

static void one_dawdles(int rank, int size, rm_kv *store, void *context) {
    rm_group *group;
    (void)context;
    rm_group_config config = {
        .engine = engine, .rank = rank, .size = size, .store = store, .timeout_ms = 2500, .join_ms = 60000};
    need_ok(rm_group_open(&config, &group));
    need_ok(rm_group_run(group, &(rm_collective){.kind = RM_BARRIER}));
    rm_notice notice;
    rm_ticket ticket;
    need_ok(rm_group_issue(group, &(rm_collective){.kind = RM_BARRIER, .tag = 8}, &ticket));
    if (rank == 0) {
        double start = seconds();
        while (!rm_group_notice(group, &notice) && seconds() < start + 30) nap_ms(10);
        need(notice.responds && notice.rank == 1, "rank %d: %s", notice.rank, notice.text);
        need(strstr(notice.text, "rank 0 has waited") && strstr(notice.text, "rank 1 on"), "%s", notice.text);
        need_peer(rm_group_wait(group, ticket), "rank 1 on ");
        need(strstr(remat_last_error(), "2500 ms") && strstr(remat_last_error(), "tag 8"), "%s", remat_last_error());
        need(seconds() - start < 20, "only after %.1f s", seconds() - start);
    }
    rm_group_close(group);
}

static void one_sleeps(int rank, int size, rm_kv *store, void *context) {
    if (rank == 0) {
        one_dawdles(rank, size, store, context);
        return;
    }
    rm_group *group;
    rm_group_config config = {
        .engine = engine, .rank = rank, .size = size, .store = store, .timeout_ms = 2500, .join_ms = 60000};
    need_ok(rm_group_open(&config, &group));
    need_ok(rm_group_run(group, &(rm_collective){.kind = RM_BARRIER}));
    double start = seconds();
    while (!rm_group_poll(group) && seconds() < start + 30) nap_ms(10); /* computes, and polls now and then */
    need_peer(rm_group_run(group, &(rm_collective){.kind = RM_BARRIER, .tag = 8}), "2500 ms");
    rm_group_close(group);
}

START_TEST(rank_that_never_arrives_is_named) { run_ranks(2, one_sleeps, NULL); }
END_TEST

/* ---- Ranks that die ---------------------------------------------------------------------------------------------- */

typedef struct {
    int victim, how;       /* how: a signal; 0: exit(3) */
    bool large, computing; /* what the survivors do meanwhile */
    double died_at;        /* shared memory: written by the parent or the victim */
    double took[MOST_RANKS];
} death;

static void one_dies(int rank, int size, rm_kv *store, void *context) {
    death *d = context;
    rm_group *group = open_group(engine, rank, size, store);
    static float x[300000];
    rm_collective what = {.kind = RM_ALL_REDUCE, .count = d->large ? 300000 : 10, .in = x, .out = x};
    for (uint32_t k = 0; rank != d->victim || k < 5; k++) {
        what.tag = k;
        remat_status status = REMAT_OK;
        if (d->computing && k >= 5)
            status = rm_group_poll(group);
        else
            status = rm_group_run(group, &what);
        if (!status) continue;
        char words[64];
        snprintf(words, sizeof words, "rank %d on ", d->victim);
        need_peer(status, words);
        const char *how = d->how ? "signal 9 (Killed)" : "exited with status 3";
        need(strstr(remat_last_error(), how), "'%s' does not say '%s'", remat_last_error(), how);
        need(strstr(remat_last_error(), "call 5, all_reduce"), "%s", remat_last_error());
        d->took[rank] = seconds() - *(volatile double *)&d->died_at;
        rm_group_close(group);
        return;
    }
    *(volatile double *)&d->died_at = seconds();
    if (d->how) raise(d->how);
    syscall(SYS_exit_group, 3); /* not _exit, which sanitizers delay by a second */
}

/* The time that the slowest rank took to notice it. The victim is waited for last: until then the others can read in /proc how
 * it ended. */
static double see_death(int size, death d, death *shared) {
    pid_t pid[MOST_RANKS];
    double slowest = 0;
    *shared = d;
    start_ranks(size, one_dies, shared, pid);
    for (int r = 0; r < size; r++)
        if (r != d.victim) ck_assert_int_eq(end_of(pid[r]), 0);
    ck_assert_int_eq(end_of(pid[d.victim]), d.how ? 128 + d.how : 3);
    for (int r = 0; r < size; r++) slowest = shared->took[r] > slowest ? shared->took[r] : slowest;
    return slowest;
}

/* On a busy machine ranks may have to wait for a processor: one quick time of some is enough. */
static void need_death(int size, death d) {
    death *shared = shared_page(sizeof d);
    ck_quick_once(see_death(size, d, shared), __lsan_do_recoverable_leak_check ? 2 : 0.5);
}

START_TEST(dead_rank_is_named_at_once) {
    need_death(2, (death){.victim = 1, .how = SIGKILL});
    need_death(3, (death){.victim = 0, .how = SIGKILL, .large = true});
    need_death(4, (death){.victim = 2, .how = SIGKILL, .computing = true});
    need_death(2, (death){.victim = 1, .how = 0});
}
END_TEST

/* ---- The launcher dies ------------------------------------------------------------------------------------------- */

/* Ranks that only compute for a while learn of it, too. */
static void works_on(int rank, int size, rm_kv *store, void *context) {
    _Atomic int *well = context;
    rm_group *group = open_group(engine, rank, size, store);
    remat_status status = REMAT_OK;
    (*well)++;
    for (double start = seconds(); !status && seconds() - start < 20; nap_ms(5)) status = rm_group_poll(group);
    need_peer(status, "which started this rank");
    rm_group_close(group);
    (*well)++;
}

START_TEST(ranks_end_when_mpirun_is_killed) {
    _Atomic int *well = shared_page(sizeof *well);
    pid_t pid[MOST_RANKS], mpirun = fork();
    ck_assert_int_ge(mpirun, 0);
    if (mpirun == 0) {
        setenv("OMPI_COMM_WORLD_RANK", "0", 1);
        start_ranks(3, works_on, (void *)well, pid);
        for (;;) pause();
    }
    for (double start = seconds(); *well < 3 && seconds() - start < 20;) nap_ms(2);
    ck_assert_int_eq(*well, 3);
    kill(mpirun, SIGKILL);
    for (double start = seconds(); *well < 6 && seconds() - start < 15;) nap_ms(2);
    ck_assert_int_eq(*well, 6);
    ck_assert_int_eq(end_of(mpirun), 128 + SIGKILL);
}
END_TEST

/* ---- Ranks that are stopped -------------------------------------------------------------------------------------- */

typedef struct {
    _Atomic int ready;
    _Atomic double stopped_at;
    bool let_go; /* the rank is continued in time, and the group must go on */
    double took; /* until it is named */
} pause_run;

static void one_is_stopped(int rank, int size, rm_kv *store, void *context) {
    pause_run *run = context;
    rm_group *group;
    rm_group_config config = {.engine = engine, .rank = rank, .size = size, .store = store};
    config.silence_ms = run->let_go ? 60000 : 2500;
    need_ok(rm_group_open(&config, &group));
    need_ok(rm_group_run(group, &(rm_collective){.kind = RM_BARRIER, .tag = 6}));
    run->ready++;
    rm_notice notice;
    if (rank == 1) {
        while (run->stopped_at == 0) nap_ms(1); /* it is stopped here */
        if (run->let_go) need_ok(rm_group_run(group, &(rm_collective){.kind = RM_BARRIER}));
        rm_group_close(group);
        return;
    }
    while (run->stopped_at == 0) nap_ms(1);
    /* If it got no processor just before, it is silent at first, and then stopped */
    while (!rm_group_notice(group, &notice) || !strstr(notice.text, "is stopped")) {
        need_ok(rm_group_poll(group));
        need(seconds() < run->stopped_at + 20, "nobody noticed");
        nap_ms(5);
    }
    run->took = seconds() - run->stopped_at;
    const char *text = notice.text;
    need(!notice.responds && notice.rank == 1, "rank %d: %s", notice.rank, text);
    need(strstr(text, "rank 1 on") && strstr(text, "is stopped") && strstr(text, "call 1, barrier (tag 6)"), "%s",
         text);
    run->ready++;
    if (run->let_go)
        need_ok(rm_group_run(group, &(rm_collective){.kind = RM_BARRIER}));
    else
        need_peer(rm_group_run(group, &(rm_collective){.kind = RM_BARRIER}), "is stopped");
    rm_group_close(group);
}

/* The time until it is named. */
static double stop_one(pause_run *run, bool let_go) {
    pid_t pid[MOST_RANKS];
    *run = (pause_run){.let_go = let_go};
    start_ranks(2, one_is_stopped, run, pid);
    while (run->ready < 2) nap_ms(1);
    kill(pid[1], SIGSTOP);
    run->stopped_at = seconds();
    if (run->let_go) {
        while (run->ready < 3) nap_ms(5);
        kill(pid[1], SIGCONT);
        ck_assert_int_eq(end_of(pid[0]), 0);
        ck_assert_int_eq(end_of(pid[1]), 0);
    } else {
        ck_assert_int_eq(end_of(pid[0]), 0);
        kill(pid[1], SIGKILL);
        ck_assert_int_eq(end_of(pid[1]), 128 + SIGKILL);
    }
    return run->took;
}

START_TEST(stopped_rank_is_named_in_two_seconds) {
    pause_run *run = shared_page(sizeof *run);
    ck_quick_once(stop_one(run, _i), 2);
}
END_TEST

/* A job that is suspended as a whole and continued later loses no rank. */
static void all_wait(int rank, int size, rm_kv *store, void *context) {
    pause_run *run = context;
    rm_group *group;
    rm_group_config config = {.engine = engine, .rank = rank, .size = size, .store = store};
    config.silence_ms = config.timeout_ms = 1500;
    config.join_ms = 60000;
    need_ok(rm_group_open(&config, &group));
    run->ready++;
    if (rank == 0)
        while (run->stopped_at == 0) nap_ms(1);
    need_ok(rm_group_run(group, &(rm_collective){.kind = RM_BARRIER}));
    rm_group_close(group);
}

/* Whether it goes on. Rank 1, which waits for rank 0, continues first: it must count neither rank 0's silence nor its own wait. */
static bool suspend_all(pause_run *run) {
    pid_t pid[MOST_RANKS];
    int failed = 0;
    *run = (pause_run){0};
    start_ranks(2, all_wait, run, pid);
    while (run->ready < 2) nap_ms(1);
    nap_ms(50);
    for (int r = 0; r < 2; r++) kill(pid[r], SIGSTOP);
    nap_ms(2500);
    run->stopped_at = seconds();
    kill(pid[1], SIGCONT);
    nap_ms(300);
    kill(pid[0], SIGCONT);
    for (int r = 0; r < 2; r++) failed += end_of(pid[r]) != 0;
    return !failed;
}

/* If this process gets no processor between two signals, only one of the ranks is suspended meanwhile. */
START_TEST(suspended_job_continues) {
    pause_run *run = shared_page(sizeof *run);
    ck_assert_msg(once_of_five(suspend_all(run)), "the ranks' messages are above");
}
END_TEST

int main(void) {
    TCase *failures = tcase_create("failures");
    tcase_add_test(failures, missing_last_call_is_detected);
    tcase_add_test(failures, rank_that_never_arrives_is_named);
    tcase_add_test(failures, dead_rank_is_named_at_once);
    tcase_add_test(failures, ranks_end_when_mpirun_is_killed);
    tcase_add_loop_test(failures, stopped_rank_is_named_in_two_seconds, 0, 2);
    tcase_add_test(failures, suspended_job_continues);
    return run_cases("dist/group_lost", failures);
}
