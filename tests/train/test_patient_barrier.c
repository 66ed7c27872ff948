/* test_patient_barrier.c: ranks wait for each other longer than any collective, but only while all of them live. */
#include "train/ranks/patient_barrier.h"

#include "tests/dist/ranks.h"
#include "tests/suite.h"

typedef struct {
    const char *engine;
    int timeout_ms; /* of collectives */
    int late_ms;
    int failing, dying; /* number of a rank; -1: none */
} scene;

static void open_all(rm_ranks *ranks, int rank, int size, rm_kv *store, const scene *s) {
    rm_group_config config = {.engine = s->engine, .rank = rank, .size = size, .store = store};
    config.timeout_ms = s->timeout_ms;
    config.join_ms = 60000;
    *ranks = (rm_ranks){.rank = rank, .size = size, .store = store};
    strcpy(ranks->host, "here");
    need_ok(rm_group_open(&config, &ranks->group));
    need_ok(rm_ddp_open(&(rm_ddp_config){.group = ranks->group, .rows = 1}, &ranks->all));
}

static void close_all(rm_ranks *ranks) {
    rm_ddp_close(ranks->all);
    rm_group_close(ranks->group);
}

static void body(int rank, int size, rm_kv *store, void *context) {
    const scene *s = context;
    rm_ranks ranks;
    open_all(&ranks, rank, size, store, s);
    for (int i = 0; i < 3; i++) {
        double values[3] = {rank, 1, i == rank ? 4294967295.0 : 0};
        if (rank == i % size) nap_ms(s->late_ms);
        need_ok(rm_patient_barrier(&ranks, REMAT_OK, values, 3));
        need(values[0] == size * (size - 1) / 2 && values[1] == size, "%g %g", values[0], values[1]);
        need(values[2] == (i < size ? 4294967295.0 : 0), "%g", values[2]);
        need_ok(rm_patient_barrier(&ranks, REMAT_OK, NULL, 0));
    }
    close_all(&ranks);
}

/* If one rank fails, all fail, and one says why. */
static void body_failing(int rank, int size, rm_kv *store, void *context) {
    const scene *s = context;
    rm_ranks ranks;
    open_all(&ranks, rank, size, store, s);
    need_ok(rm_patient_barrier(&ranks, REMAT_OK, NULL, 0));
    double value = 1;
    if (rank != s->failing) nap_ms(150); /* the failing rank waits, and watches the others meanwhile */
    remat_status mine = rank == s->failing ? rm_fail(REMAT_IO, "the disk of rank %d is full", rank) : REMAT_OK;
    remat_status all = rm_patient_barrier(&ranks, mine, &value, 1);
    need(all == REMAT_IO, "%d", (int)all);
    need(rank != s->failing || strstr(remat_last_error(), "the disk of rank"), "%s", remat_last_error());
    close_all(&ranks);
}

/* One rank dies while the others wait: they detect it within two seconds, long before any timeout. */
static void body_dying(int rank, int size, rm_kv *store, void *context) {
    const scene *s = context;
    rm_ranks ranks;
    open_all(&ranks, rank, size, store, s);
    need_ok(rm_patient_barrier(&ranks, REMAT_OK, NULL, 0));
    if (rank == s->dying) {
        nap_ms(1500);
        raise(SIGKILL);
    }
    double begin = seconds();
    need_peer(rm_patient_barrier(&ranks, REMAT_OK, NULL, 0), "rank 1");
    need(seconds() - begin < 10, "%g s", seconds() - begin);
    close_all(&ranks);
}

START_TEST(ranks_wait_for_late_ranks) {
    run_ranks(1, body, &(scene){.engine = "local", .timeout_ms = 1000});
    run_ranks(2, body, &(scene){.engine = "local", .timeout_ms = 1000, .late_ms = 1500});
    run_ranks(5, body, &(scene){.engine = "local", .timeout_ms = 60000, .late_ms = 100});
}
END_TEST

static const char *const engines[] = {
    "local",
#ifdef REMAT_HAVE_GLOO
    "gloo", /* asks its store about the others while a rank waits */
#endif
};
enum { ENGINES = sizeof engines / sizeof *engines };

START_TEST(one_failing_rank_fails_all) {
    for (int failing = 0; failing < 3; failing++)
        run_ranks(3, body_failing, &(scene){engines[_i], 60000, 0, failing, -1});
}
END_TEST

START_TEST(a_death_ends_the_wait) {
    pid_t pid[3];
    start_ranks(3, body_dying, &(scene){"local", 1000, 0, -1, 1}, pid);
    for (int rank = 0; rank < 3; rank++) ck_assert_int_eq(end_of(pid[rank]), rank == 1 ? 128 + SIGKILL : 0);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("patient_barrier");
    tcase_set_timeout(tests, 300);
    tcase_add_test(tests, ranks_wait_for_late_ranks);
    tcase_add_loop_test(tests, one_failing_rank_fails_all, 0, ENGINES);
    tcase_add_test(tests, a_death_ends_the_wait);
    return run_cases("train/patient_barrier", tests);
}
