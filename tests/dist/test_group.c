/* test_group.c: groups of ranks that are processes of this host (the engine `local`), and what all engines share:
 * random collectives compared with a plain sum in rank order, the queue, and every kind of failure with its message. */
#include "dist/group/module.h"
#include "memory/host.h"
#include "tests/dist/collectives.h"
#include "tests/suite.h"
#include "tests/tries.h"

#include <pthread.h>
#include <sys/mman.h>

static const char *const engine = "local";

/* ---- Results ----------------------------------------------------------------------------------------------------- */

static void many_cases(int rank, int size, rm_kv *store, void *context) {
    rm_group *group = open_group(engine, rank, size, store);
    int cases = *(int *)context;
    for (int i = 0; i < cases; i++) do_case(group, (uint64_t)(i * 8 + size), true);
    rm_group_close(group);
}

START_TEST(random_collectives_are_sums_in_rank_order) { run_ranks(_i, many_cases, &(int){_i <= 2 ? 150 : 60}); }
END_TEST

/* Hundreds of unfinished collectives, waited for out of order. */
static void a_full_queue(int rank, int size, rm_kv *store, void *context) {
    enum { CALLS = 600, N = 33 };
    static int32_t data[CALLS][N];
    rm_group *group = open_group(engine, rank, size, store);
    rm_ticket ticket[CALLS];
    (void)context;
    for (int k = 0; k < CALLS; k++) {
        for (int i = 0; i < N; i++) data[k][i] = rank + k * i;
        rm_collective what = {.kind = RM_ALL_REDUCE, .wire = RM_WIRE_I32, .count = N, .in = data[k], .out = data[k]};
        what.tag = (uint32_t)k;
        need_ok(rm_group_issue(group, &what, &ticket[k]));
    }
    need_ok(rm_group_wait(group, ticket[CALLS - 1]));
    for (int k = 0; k < CALLS; k++) {
        need(rm_group_done(group, ticket[k]), "ticket %d", k);
        need_ok(rm_group_wait(group, ticket[k]));
        for (int i = 0; i < N; i++) need(data[k][i] == size * (size - 1) / 2 + size * k * i, "call %d", k);
    }
    need(rm_group_wait(group, ticket[CALLS - 1] + 1) == REMAT_INVALID, "a ticket from nowhere");
    need_ok(rm_group_poll(group));
    rm_group_close(group);
}

START_TEST(queued_collectives_run_in_order) { run_ranks(3, a_full_queue, NULL); }
END_TEST

/* More ranks than cores with long waits: all sleep on their futexes and are woken. */
static void slow_ranks(int rank, int size, rm_kv *store, void *context) {
    rm_group *group = open_group(engine, rank, size, store);
    (void)context;
    for (int k = 0; k < 20; k++) {
        int32_t x = rank;
        if (k % size == rank) nap_ms(15);
        need_ok(rm_group_run(
            group, &(rm_collective){.kind = RM_ALL_REDUCE, .wire = RM_WIRE_I32, .count = 1, .in = &x, .out = &x}));
        need(x == size * (size - 1) / 2, "%d", x);
    }
    rm_group_close(group);
}

START_TEST(waiting_ranks_sleep_and_are_woken) { run_ranks(8, slow_ranks, NULL); }
END_TEST

enum { LATE_CALLS = 10, LATE_MS = 30 };

typedef struct {
    _Atomic int came;
    double blocked_ms[3];
} lateness;

/* Rank 1 arrives late at every collective: only when all others are about to enter it, which are counted in shared memory.
 * They are blocked for as much longer, in both kinds of calls. */
static void rank_1_is_late(int rank, int size, rm_kv *store, void *context) {
    rm_group *group = open_group(engine, rank, size, store);
    lateness *late = context;
    for (int k = 0; k < LATE_CALLS; k++) {
        rm_ticket ticket;
        rm_collective what = {.kind = RM_BARRIER, .tag = (uint32_t)k};
        while (rank == 1 && late->came < (k + 1) * (size - 1)) nap_ms(1);
        if (rank == 1) nap_ms(LATE_MS);
        if (rank != 1) late->came++;
        if (k % 2) {
            need_ok(rm_group_run(group, &what));
        } else {
            need_ok(rm_group_issue(group, &what, &ticket));
            need_ok(rm_group_wait(group, ticket));
        }
    }
    late->blocked_ms[rank] = (double)rm_group_blocked_ns(group) * 1e-6;
    rm_group_close(group);
}

static bool is_blocked_least(lateness *late) {
    *late = (lateness){0};
    run_ranks(3, rank_1_is_late, late);
    const double *ms = late->blocked_ms, least = LATE_CALLS * LATE_MS * 0.6;
    return ms[0] - ms[1] > least && ms[2] - ms[1] > least;
}

/* On a busy machine another rank may wait for a processor while rank 1 waits: one time of some without that is enough. */
START_TEST(late_rank_is_blocked_least) {
    lateness *late = shared_page(sizeof *late);
    ck_assert_msg(once_of_five(is_blocked_least(late)), "blocked for %f ms, rank 1 for %f ms, and for %f ms",
                  late->blocked_ms[0], late->blocked_ms[1], late->blocked_ms[2]);
}
END_TEST

/* Two groups over one store do not mix; one is closed while the other is used. */
static void two_groups(int rank, int size, rm_kv *store, void *context) {
    rm_group *a = open_group(engine, rank, size, store), *b;
    (void)context;
    need_ok(rm_group_open(
        &(rm_group_config){.engine = "auto", .rank = rank, .size = size, .store = store, .name = "second"}, &b));
    need(!strcmp(rm_group_engine(b), "local"), "auto chose %s", rm_group_engine(b));
    for (int k = 0; k < 30; k++) do_case(k % 2 ? a : b, (uint64_t)k, true);
    rm_group_close(a);
    do_case(b, 77, true);
    rm_group_close(b);
    for (int k = 0; k < 3; k++) { /* and a name can be reused */
        a = open_group(engine, rank, size, store);
        do_case(a, (uint64_t)k, true);
        rm_group_close(a);
    }
}

START_TEST(groups_do_not_mix) { run_ranks(2, two_groups, NULL); }
END_TEST

/* Buffers from the arena are zeroed, can be freed and allocated again, and end with the group. */
static void buffers(int rank, int size, rm_kv *store, void *context) {
    rm_group *group;
    (void)context;
    rm_group_config config = {.engine = engine, .rank = rank, .size = size, .store = store, .arena_bytes = 1 << 20};
    need_ok(rm_group_open(&config, &group));
    char *a = rm_group_alloc(group, 300000), *b = rm_group_alloc(group, 1), *c = rm_group_alloc(group, 600000);
    need(a && b && c && (uintptr_t)b % 4096 == 0, "no buffers");
    need(!rm_group_alloc(group, 300000) && strstr(remat_last_error(), "do not fit"), "%s", remat_last_error());
    memset(a, 77, 300000);
    rm_group_free(group, a);
    need(!rm_group_alloc(group, UINT64_MAX), "that was too much");
    need((a = rm_group_alloc(group, 200000)) && a[0] == 0 && a[199999] == 0, "not zero");
    rm_group_free(group, NULL);
    rm_group_close(group); /* frees b and c */
}

START_TEST(buffers_are_allocated_freed_and_reused) { run_ranks(2, buffers, NULL); }
END_TEST

/* The caller's pages, mapped in place, next to pages that are not; unmapped, mapped again, and still mapped when the
 * group is closed. */
static void mapped_pages(int rank, int size, rm_kv *store, void *context) {
    enum { PAGES = 40, N = 30 * 4096 / 4, CALLS = 25 };
    (void)context;
    rm_group_config config = {.engine = engine, .rank = rank, .size = size, .store = store, .arena_bytes = 1 << 20};
    rm_group *group;
    need_ok(rm_group_open(&config, &group));
    char *own = mmap(NULL, PAGES * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    need(own != MAP_FAILED, "no pages");
    memset(own, 7, PAGES * 4096);
    need(rm_group_map(group, own + 5, 4096) == REMAT_INVALID && rm_group_map(group, own, 5) == REMAT_INVALID,
         "half a page");
    need(rm_group_map(group, own, UINT64_C(1) << 40) == REMAT_MEMORY && own[0] == 7, "that was too much");
    for (int time = 0; time < 3; time++) {
        need_ok(rm_group_map(group, own + 4096, 30 * 4096));
        void *other = rm_group_alloc(group, 8000);
        need(own[0] == 7 && own[31 * 4096] == 7, "neighbours were changed");
        float *x = (float *)(void *)(own + 4096), *all = rm_group_alloc(group, N * 4);
        for (int i = 0; i < N; i++) need(x[i] == 0, "not zero");
        for (int call = 0; call < CALLS; call++) {
            for (int i = 0; i < N; i++) x[i] = (float)(i + rank), all[i] = (float)call;
            rm_collective what = {.kind = RM_ALL_REDUCE, .count = N - call * 7, .in = x + call, .out = x + call};
            if (call % 3 == 1) what.out = all;
            need_ok(rm_group_run(group, &what));
            const float *sum = what.out;
            for (int64_t i = 0; i < what.count; i++)
                need(sum[i] == (float)((i + call) * size + size * (size - 1) / 2), "call %d: element %ld", call,
                     (long)i);
        }
        rm_group_free(group, other);
        rm_group_free(group, all);
        if (time == 2) break;
        rm_group_unmap(group, own + 4096);
        for (int i = 0; i < N; i++) need(x[i] == 0, "not zero again");
        memset(x, 1, N * 4);
        rm_group_unmap(group, own + 4096); /* nothing is mapped there, so it is ignored */
        need(own[4096] == 1, "was not left alone");
    }
    rm_group_close(group);
    own[4096] = 5; /* it is memory again */
    munmap(own, PAGES * 4096);
}

START_TEST(mapped_pages_are_shared_in_place) { run_ranks(2 + _i, mapped_pages, NULL); }
END_TEST

START_TEST(single_rank_needs_no_store) {
    rm_group *group;
    ck_ok(rm_group_open(&(rm_group_config){.size = 1}, &group));
    for (uint64_t k = 0; k < 60; k++) do_case(group, k, true);
    rm_group_close(group);
}
END_TEST

/* Whichever allocation fails, opening reports it and frees what it took (sanitizers find leaks). */
static remat_status open_and_close(const char *path) {
    rm_kv *store;
    rm_group *group;
    rm_kv_config meeting = {.path = path, .host = "127.0.0.1", .size = 1};
    TRY(rm_kv_open(&meeting, &store));
    remat_status status = rm_group_open(&(rm_group_config){.size = 1, .store = store}, &group);
    if (!status) {
        void *buffer = rm_group_alloc(group, 100);
        if (!buffer) status = REMAT_MEMORY;
        rm_group_close(group);
    }
    rm_kv_close(store);
    return status;
}

START_TEST(every_failed_allocation_is_an_error) {
    const char *path = _i ? meeting_place() : NULL;
    for (int64_t n = 1;; n++) {
        ck_assert_int_lt(n, 100);
        rm_host_fail_at(n);
        remat_status status = open_and_close(path);
        rm_host_fail_at(0);
        if (!status && n > 5) break;
        ck_assert_msg(!status || status == REMAT_MEMORY || status == REMAT_PEER, "allocation %ld: %s", (long)n,
                      remat_last_error());
    }
}
END_TEST

/* ---- Arguments --------------------------------------------------------------------------------------------------- */

START_TEST(bad_arguments_are_refused_and_harmless) {
    float x[8] = {1, 2, 3, 4};
    int32_t y[2] = {0};
    const rm_collective bad[] = {
        {.kind = RM_KINDS},
        {.kind = RM_ALL_REDUCE, .wire = RM_WIRES, .count = 1, .in = x, .out = x},
        {.kind = RM_ALL_REDUCE, .count = -1, .in = x, .out = x},
        {.kind = RM_ALL_REDUCE, .count = INT64_MAX, .in = x, .out = x},
        {.kind = RM_ALL_REDUCE, .count = 4, .in = x, .out = x + 1},
        {.kind = RM_ALL_REDUCE, .count = 1, .out = x},
        {.kind = RM_ALL_REDUCE, .wire = RM_WIRE_I32, .reduction = RM_MEAN, .count = 2, .in = y, .out = y},
        {.kind = RM_ALL_REDUCE, .wire = RM_WIRE_F64, .reduction = RM_MEAN, .count = 1, .in = x, .out = x},
        {.kind = RM_ALL_REDUCE, .wire = RM_WIRE_BF16, .reduction = RM_TREE, .count = 2, .in = y, .out = y},
        {.kind = RM_REDUCE_SCATTER, .reduction = RM_REDUCTIONS, .count = 1, .in = x, .out = x},
        {.kind = RM_BROADCAST, .root = 1, .count = 1, .out = x},
        {.kind = RM_BROADCAST, .root = -1, .count = 1, .out = x},
    };
    rm_group *group;
    rm_ticket ticket;
    ck_ok(rm_group_open(&(rm_group_config){.size = 1}, &group));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ck_assert_int_eq(rm_group_run(group, &bad[i]), REMAT_INVALID);
        ck_assert_int_eq(rm_group_issue(group, &bad[i], &ticket), REMAT_INVALID);
    }
    ck_ok(rm_group_run(group, &(rm_collective){.kind = RM_ALL_REDUCE, .count = 4, .in = x, .out = x}));
    ck_assert(x[3] == 4);
    rm_group_close(group);
    ck_fails(rm_group_open(&(rm_group_config){.size = 0}, &group), INVALID, "0 ranks");
    ck_fails(rm_group_open(&(rm_group_config){.size = 2, .rank = 2}, &group), INVALID, "count from 0");
    ck_fails(rm_group_open(&(rm_group_config){.size = 2}, &group), INVALID, "init_method");
    ck_fails(rm_group_open(&(rm_group_config){.size = 1, .engine = "carrier pigeon"}, &group), INVALID, "pigeon");
    const rm_group_api *api;
    ck_fails(rm_module_open("pigeon", &api), MISSING, "remat_pigeon.so");
    ck_assert(rm_group_open(&(rm_group_config){.size = 1, .engine = "nccl"}, &group)); /* the config names no GPU */
    ck_assert_ptr_nonnull(strstr(remat_last_error(), "GPU"));
}
END_TEST

/* ---- Ranks that disagree ----------------------------------------------------------------------------------------- */

static float fault_data[MOST_RANKS * 70000], fault_out[MOST_RANKS * 70000];
#define DATA .in = fault_data, .out = fault_out

static const char *bucket_name(void *context, uint32_t tag) {
    static _Thread_local char text[32];
    (void)context;
    snprintf(text, sizeof text, "bucket %u", tag);
    return text;
}

/* How the odd rank deviates in its 4th call, and what the message must say. */
typedef struct {
    const char *what, *words;
    rm_collective usual, odd;
} fault;

static const fault faults[] = {
    {"another bucket first",
     "the tag",
     {.kind = RM_ALL_REDUCE, .count = 64, .tag = 3, DATA},
     {.kind = RM_ALL_REDUCE, .count = 64, .tag = 4, DATA}},
    {"another type",
     "the type",
     {.kind = RM_ALL_REDUCE, .count = 64, DATA},
     {.kind = RM_ALL_REDUCE, .wire = RM_WIRE_I32, .count = 64, DATA}},
    {"another type, large",
     "the type",
     {.kind = RM_ALL_REDUCE, .count = 70000, DATA},
     {.kind = RM_ALL_REDUCE, .wire = RM_WIRE_I32, .count = 70000, DATA}},
    {"another count",
     "the count",
     {.kind = RM_ALL_REDUCE, .count = 64, DATA},
     {.kind = RM_ALL_REDUCE, .count = 65, DATA}},
    {"small against large",
     "the count",
     {.kind = RM_ALL_REDUCE, .count = 64, DATA},
     {.kind = RM_ALL_REDUCE, .count = 70000, DATA}},
    {"another kind",
     "the kind",
     {.kind = RM_ALL_REDUCE, .count = 64, DATA},
     {.kind = RM_REDUCE_SCATTER, .count = 64, DATA}},
    {"a barrier", "the kind", {.kind = RM_ALL_GATHER, .count = 64, DATA}, {.kind = RM_BARRIER}},
    {"a mean",
     "the reduction",
     {.kind = RM_ALL_REDUCE, .count = 64, DATA},
     {.kind = RM_ALL_REDUCE, .reduction = RM_MEAN, .count = 64, DATA}},
    {"another half",
     "the type",
     {.kind = RM_ALL_REDUCE, .wire = RM_WIRE_F16, .count = 70000, DATA},
     {.kind = RM_ALL_REDUCE, .wire = RM_WIRE_BF16, .count = 70000, DATA}},
    {"another root",
     "the root",
     {.kind = RM_BROADCAST, .root = 0, .count = 64, DATA},
     {.kind = RM_BROADCAST, .root = 1, .count = 64, DATA}},
};

enum { FAULTS = sizeof faults / sizeof *faults };

typedef struct {
    const fault *fault;
    int odd; /* the deviating rank */
    bool queued;
} faulty_run;

static void one_fault(int rank, int size, rm_kv *store, void *context) {
    const faulty_run *run = context;
    rm_group *group;
    rm_group_config config = {.engine = engine, .rank = rank, .size = size, .store = store, .tag_name = bucket_name};
    need_ok(rm_group_open(&config, &group));
    for (int k = 0; k < 3; k++) need_ok(rm_group_run(group, &run->fault->usual));
    const rm_collective *what = rank == run->odd ? &run->fault->odd : &run->fault->usual;
    rm_ticket ticket;
    char words[64];
    if (run->queued) need_ok(rm_group_issue(group, what, &ticket));
    need_peer(run->queued ? rm_group_wait(group, ticket) : rm_group_run(group, what), run->fault->words);
    snprintf(words, sizeof words, "ranks 0 and %d disagree", run->odd ? run->odd : 1);
    need(strstr(remat_last_error(), words), "'%s' does not say '%s'", remat_last_error(), words);
    need(strstr(remat_last_error(), "call 4") && strstr(remat_last_error(), "bucket"), "%s", remat_last_error());
    need_peer(rm_group_run(group, what), words); /* every later call fails in the same way */
    need_peer(rm_group_poll(group), words);
    rm_group_close(group);
}

START_TEST(disagreement_fails_in_the_same_call) {
    for (int odd = 0; odd < 3; odd++) {
        faulty_run run = {.fault = &faults[_i], .odd = odd, .queued = odd == 1};
        run_ranks(3, one_fault, &run);
    }
}
END_TEST

/* Random sequences in which one rank skips a call, repeats one, or swaps two similar ones: never a wrong sum. */
static void skip_or_swap(int rank, int size, rm_kv *store, void *context) {
    uint64_t state = *(uint64_t *)context;
    rm_group *group = open_group(engine, rank, size, store);
    int odd = (int)(next_random(&state) % (uint64_t)size), at = (int)(next_random(&state) % 10);
    int how = (int)(next_random(&state) % 3);
    remat_status status = REMAT_OK;
    for (int k = 0; k < 12 && !status; k++) {
        int tag = k;
        if (rank == odd && how == 0 && k >= at) tag = k + 1;                           /* skips one */
        if (rank == odd && how == 1 && k > at) tag = k - 1;                            /* repeats one */
        if (rank == odd && how == 2 && (k == at || k == at + 1)) tag = 2 * at + 1 - k; /* swaps two */
        float x[3] = {(float)tag, 1, 2};
        rm_collective what = {.kind = RM_ALL_REDUCE, .count = 3, .tag = (uint32_t)tag, .in = x, .out = x};
        status = rm_group_run(group, &what);
        if (!status) need(x[0] == (float)(k * size), "a wrong sum in call %d", k);
        if (status) need(status == REMAT_PEER && k == at + (how == 1), "call %d: %s", k, remat_last_error());
    }
    need(status, "nobody noticed");
    rm_group_close(group);
}

START_TEST(skipped_and_swapped_calls_never_sum) {
    for (uint64_t seed = 0; seed < 25; seed++) run_ranks(2 + (int)(seed % 3), skip_or_swap, &seed);
}
END_TEST

/* ---- Abort, and starts that fail --------------------------------------------------------------------------------- */

static void *abort_from_the_side(void *group) {
    nap_ms(100);
    rm_group_abort(group, "the disk is full");
    return NULL;
}

static void one_aborts(int rank, int size, rm_kv *store, void *context) {
    rm_group *group = open_group(engine, rank, size, store);
    pthread_t thread;
    (void)context;
    if (rank == 2) {
        pthread_create(&thread, NULL, abort_from_the_side, group);
        pthread_join(thread, NULL);
    }
    need_peer(rm_group_run(group, &(rm_collective){.kind = RM_BARRIER}), "the disk is full");
    need(strstr(remat_last_error(), "rank 2"), "%s", remat_last_error());
    rm_group_close(group);
}

START_TEST(abort_ends_the_group_on_all_ranks) { run_ranks(3, one_aborts, NULL); }
END_TEST

static void one_is_late(int rank, int size, rm_kv *store, void *context) {
    rm_group *group;
    (void)context;
    rm_group_config config = {
        .engine = engine, .rank = rank, .size = size, .store = store, .timeout_ms = rank ? 60000 : 300};
    if (rank == 0) need_ok(rm_kv_wait(store, "world#1/here/1", 60000)); /* or it might miss rank 1, too */
    if (rank < 2) need_peer(rm_group_open(&config, &group), "rank 2 of 3 did not join");
    let_others_finish(store, rank, size, 2);
}

START_TEST(opening_fails_if_a_rank_is_missing) { run_ranks(3, one_is_late, NULL); }
END_TEST

static void one_dies_early(int rank, int size, rm_kv *store, void *context) {
    rm_group *group;
    (void)context;
    if (rank == 1) raise(SIGKILL);
    rm_group_config config = {.engine = engine, .rank = rank, .size = size, .store = store};
    need_peer(rm_group_open(&config, &group), "died before the group had started");
}

START_TEST(rank_that_dies_before_opening_is_named) {
    pid_t pid[MOST_RANKS];
    start_ranks(2, one_dies_early, NULL, pid);
    ck_assert_int_eq(end_of(pid[0]), 0);
    ck_assert_int_eq(end_of(pid[1]), 128 + SIGKILL);
}
END_TEST

int main(void) {
    TCase *results = tcase_create("results"), *failures = tcase_create("failures");
    tcase_add_loop_test(results, random_collectives_are_sums_in_rank_order, 1, MOST_RANKS + 1);
    tcase_add_test(results, queued_collectives_run_in_order);
    tcase_add_test(results, late_rank_is_blocked_least);
    tcase_add_test(results, waiting_ranks_sleep_and_are_woken);
    tcase_add_test(results, groups_do_not_mix);
    tcase_add_test(results, buffers_are_allocated_freed_and_reused);
    tcase_add_loop_test(results, mapped_pages_are_shared_in_place, 0, 2);
    tcase_add_test(results, single_rank_needs_no_store);
    tcase_add_loop_test(results, every_failed_allocation_is_an_error, 0, 2);
    tcase_add_test(results, bad_arguments_are_refused_and_harmless);
    tcase_add_loop_test(failures, disagreement_fails_in_the_same_call, 0, FAULTS);
    tcase_add_test(failures, skipped_and_swapped_calls_never_sum);
    tcase_add_test(failures, abort_ends_the_group_on_all_ranks);
    tcase_add_test(failures, opening_fails_if_a_rank_is_missing);
    tcase_add_test(failures, rank_that_dies_before_opening_is_named);
    return run_cases("dist/group", results, failures);
}
