/* test_arrivals.c: the ranks of a group arrive, are refused, or are missing. */
#include "dist/group/arrivals.h"
#include "tests/dist/collectives.h"
#include "tests/suite.h"
#include "tests/tries.h"

START_TEST(missing_ranks_are_listed) {
    static const struct {
        const char *here, *words; /* 1: the rank is present */
    } cases[] = {
        {"10", "rank 1 of 2"},
        {"01111", "rank 0 of 5"},
        {"1001", "ranks 1, 2 of 4"},
        {"10100000", "ranks 1, 3-7 of 8"},
        {"0100110", "ranks 0, 2, 3, 6 of 7"},
        {"000", "ranks 0-2 of 3"},
    };
    static bool odd[3000];
    char text[480];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bool here[8];
        int32_t size = (int32_t)strlen(cases[i].here);
        for (int32_t r = 0; r < size; r++) here[r] = cases[i].here[r] == '1';
        rm_missing_ranks(here, size, text, sizeof text);
        ck_assert_str_eq(text, cases[i].words);
    }
    for (int r = 0; r < 3000; r++) odd[r] = r % 2;
    rm_missing_ranks(odd, 3000, text, sizeof text);
    ck_assert_msg(!strncmp(text, "ranks 0, 2, 4, 6", 16) && strstr(text, ", ... (1500 in total) of 3000"), "%s", text);
}
END_TEST

typedef struct {
    bool whatever_engine;
    _Atomic bool is_missed; /* rank 0 has said that it waits */
    char heard[3][2000];    /* by each rank */
} lateness;

static int this_rank;

static void hear(void *context, const char *sentence) {
    lateness *late = context;
    char *heard = late->heard[this_rank];
    strncat(heard, sentence, sizeof late->heard[0] - strlen(heard) - 1);
    if (strstr(sentence, "waiting for ")) late->is_missed = true;
}

/* Refusals by the store are reported. Only the store's server normally writes them, so the test does it here. */
static void one_comes_late(int rank, int size, rm_kv *store, void *context) {
    static const char refused[] = "rank 7 of 9 from \x1b[5mnowhere: why";
    lateness *late = context;
    rm_group *group;
    rm_group_config config = {
        .engine = late->whatever_engine ? "local" : NULL, .rank = rank, .size = size, .store = store};
    config.say = hear;
    config.context = late;
    this_rank = rank;
    if (rank == 1) need_ok(rm_kv_set(store, "refused/1", refused, sizeof refused - 1));
    for (double start = seconds(); rank == 2 && !late->is_missed && seconds() < start + 60;) nap_ms(5);
    need_ok(rm_group_open(&config, &group));
    rm_group_close(group);
}

static bool rank_0_hears(lateness *late, bool whatever_engine) {
    static const char words[] =
        "has refused rank 7 of 9 from ?[5mnowhere: whywaiting for rank 2 of 3 since 2 s; up to 300 s";
    *late = (lateness){.whatever_engine = whatever_engine};
    run_ranks(3, one_comes_late, late);
    return !strcmp(late->heard[0], words) && !*late->heard[1] && !*late->heard[2];
}

/* On a busy machine other ranks are late, too. */
START_TEST(missing_and_refused_ranks_are_reported) {
    lateness *late = shared_page(sizeof *late);
    ck_assert_msg(once_of_five(rank_0_hears(late, _i)), "heard '%s', '%s', '%s'", late->heard[0], late->heard[1],
                  late->heard[2]);
}
END_TEST

/* Fails before the timeout, and all ranks get the cause. */
static void one_dies_before(int rank, int size, rm_kv *store, void *context) {
    rm_group *group;
    (void)context;
    if (rank == 1) nap_ms(300);
    if (rank == 1) raise(SIGKILL);
    double start = seconds();
    need_peer(rm_group_open(&(rm_group_config){.rank = rank, .size = size, .store = store}, &group),
              "died before the group had started");
    need(seconds() - start < 5 && strstr(remat_last_error(), "rank 1 ("), "%.1f s: %s", seconds() - start,
         remat_last_error());
}

static void one_does_not_come(int rank, int size, rm_kv *store, void *context) {
    rm_group *group;
    (void)context;
    rm_group_config config = {.rank = rank, .size = size, .store = store, .timeout_ms = rank ? 60000 : 500};
    if (rank == 0) need_ok(rm_kv_wait(store, "world#1/here/2", 60000));
    if (rank != 1) need_peer(rm_group_open(&config, &group), "rank 1 of 3 did not join within 500 ms");
    let_others_finish(store, rank, size, 1);
}

START_TEST(arrival_fails_on_all_ranks) {
    pid_t pid[MOST_RANKS];
    start_ranks(3, one_dies_before, NULL, pid);
    ck_assert_int_eq(end_of(pid[0]), 0);
    ck_assert_int_eq(end_of(pid[1]), 128 + SIGKILL);
    ck_assert_int_eq(end_of(pid[2]), 0);
    run_ranks(3, one_does_not_come, NULL);
}
END_TEST

int main(void) {
    TCase *failures = tcase_create("failures");
    tcase_add_test(failures, missing_ranks_are_listed);
    tcase_add_loop_test(failures, missing_and_refused_ranks_are_reported, 0, 2);
    tcase_add_test(failures, arrival_fails_on_all_ranks);
    return run_cases("dist/arrivals", failures);
}
