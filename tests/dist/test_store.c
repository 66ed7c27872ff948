/* test_store.c: both kinds of store: stored values, waiting, refusals, and detecting lost ranks. test_store_tcp.c and
 * test_store_file.c test what only one kind has. */
#include <sys/stat.h>

#include "tests/dist/stores.h"
#include "tests/ports.h"

static void many_keys(rm_kv *store, int rank, int size) {
    char key[64], value[100], expected[100];
    uint32_t bytes;
    int64_t sum;
    for (int k = 0; k < 40; k++) {
        snprintf(key, sizeof key, "key %d of %d", k, rank);
        snprintf(value, sizeof value, "value %d of %d", k, rank);
        need_ok(rm_kv_set(store, key, value, (uint32_t)strlen(value) + 1));
        need_ok(rm_kv_add(store, "all", k, &sum));
    }
    for (int r = 0; r < size; r++)
        for (int k = 0; k < 40; k++) { /* waits if that rank is slower */
            snprintf(key, sizeof key, "key %d of %d", k, r);
            snprintf(expected, sizeof expected, "value %d of %d", k, r);
            need_ok(rm_kv_get(store, key, value, sizeof value, &bytes, 0));
            need(bytes == strlen(expected) + 1 && !strcmp(value, expected), "%s is %s", key, value);
        }
    need_ok(rm_kv_add(store, "came", 1, &sum));
    if (sum == size) need_ok(rm_kv_set(store, "all came", "", 0));
    need_ok(rm_kv_wait(store, "all came", 0));
    need_ok(rm_kv_add(store, "all", 0, &sum));
    need(sum == size * 40 * 39 / 2, "%ld", (long)sum);
}

/* Rank 0, whose store it is, closes it last. */
static void await_others(rm_kv *store, int rank, int size) {
    int64_t done;
    need_ok(rm_kv_add(store, "done", 1, &done));
    for (double start = seconds(); rank == 0 && done < size && seconds() < start + 50; nap_ms(1))
        need_ok(rm_kv_add(store, "done", 0, &done));
}

static void odd_values(rm_kv *store) {
    static char large[RM_KV_VALUE_BYTES + 1], back[RM_KV_VALUE_BYTES];
    char key[RM_KV_KEY_BYTES + 2];
    uint32_t bytes;
    int64_t sum;
    memset(key, 'k', sizeof key);
    key[RM_KV_KEY_BYTES] = 0;
    for (uint32_t i = 0; i < RM_KV_VALUE_BYTES; i++) large[i] = (char)(i * 7 >> 3);
    need_ok(rm_kv_set(store, key, large, RM_KV_VALUE_BYTES));
    need_ok(rm_kv_get(store, key, back, sizeof back, &bytes, -1));
    need(bytes == RM_KV_VALUE_BYTES && !memcmp(large, back, bytes), "a large value changed");
    need(rm_kv_get(store, key, back, 100, &bytes, -1) == REMAT_INVALID, "%u bytes into 100", bytes);
    need_ok(rm_kv_set(store, key, "", 0));
    need_ok(rm_kv_get(store, key, back, 100, &bytes, -1));
    need(bytes == 0, "%u", bytes);
    need(rm_kv_set(store, key, large, RM_KV_VALUE_BYTES + 1) == REMAT_INVALID, "too large");
    key[RM_KV_KEY_BYTES] = 'k', key[RM_KV_KEY_BYTES + 1] = 0;
    need(rm_kv_set(store, key, "", 0) == REMAT_INVALID, "a key that is too long");
    need(rm_kv_set(store, "", "", 0) == REMAT_INVALID, "no key");
    need(rm_kv_get(store, "not there", back, 1, &bytes, -1) == REMAT_MISSING, "it is there");
    double start = seconds();
    need_peer(rm_kv_wait(store, "not there", 60), "60 ms for 'not there'");
    need(seconds() - start > 0.055 && seconds() - start < 5, "waited %.3f s", seconds() - start);
    need_ok(rm_kv_add(store, "below", -5, &sum));
    need(sum == -5, "%ld", (long)sum);
}

START_TEST(keys_are_stored_and_waited_for) {
    place p = make_place(_i);
    pid_t pid[5];
    for (int r = 0; r < 5; r++) {
        if ((pid[r] = fork())) continue;
        alarm(280);
        rm_kv *store;
        rm_kv_config config = config_for(&p, r, 5);
        if (r) close(p.listen_fd);
        if (r == 3) nap_ms(50);
        need_ok(rm_kv_open(&config, &store));
        many_keys(store, r, 5);
        if (r == 2) odd_values(store);
        await_others(store, r, 5);
        rm_kv_close(store);
        need(!__lsan_do_recoverable_leak_check || !__lsan_do_recoverable_leak_check(), "leaks");
        _exit(0);
    }
    if (!_i) close(p.listen_fd);
    for (int r = 0; r < 5; r++) ck_assert_int_eq(end_of(pid[r]), 0);
    struct stat info;
    if (_i) ck_assert_msg(stat(p.path, &info), "%s is left behind", p.path);
}
END_TEST

/* ---- Refusals ---------------------------------------------------------------------------------------------------- */

START_TEST(strangers_are_refused) {
    place p = make_place(_i);
    rm_kv *store, *other;
    rm_kv_config first = config_for(&p, 0, 2), config = config_for(&p, 1, 2);
    ck_ok(rm_kv_open(&first, &store));
    config.secret = "theirs";
    ck_fails(rm_kv_open(&config, &other), PEER, "another job");
    config = config_for(&p, 1, 3);
    ck_fails(rm_kv_open(&config, &other), INVALID, "rank 1 of 3");
    ck_fails(rm_kv_open(&config, &other), INVALID, "give all ranks the same world_size");
    config = config_for(&p, 1, 2);
    ck_ok(rm_kv_open(&config, &other));
    rm_kv *third;
    ck_fails(rm_kv_open(&config, &third), INVALID, "already");
    int n = 1; /* a file store records no strangers */
    if (!_i) ck_refused(store, n++, "rank 1 of another job, from 127.0.0.1: the secrets differ");
    ck_refused(store, n++, "rank 1 of 3 from ");
    if (_i) ck_refused(store, n++, "rank 1 of 3 from ");
    ck_refused(store, n++, _i ? "rank is already present" : "rank 1 is already present (");
    ck_ok(rm_kv_set(store, "still", "well", 4));
    ck_ok(rm_kv_wait(other, "still", 1000));
    rm_kv_close(other);
    rm_kv_close(store);
}
END_TEST

/* Rank 1 of the next attempt arrives while rank 0 of this one is still present; then rank 0 of its own attempt arrives,
 * on the same socket or at the same path. */
START_TEST(attempts_do_not_meet) {
    place p = make_place(_i);
    rm_kv *old, *store;
    rm_kv_config config = config_for(&p, 0, 2);
    if (!_i) config.listen_fd = dup(p.listen_fd);
    config.secret = "job.0";
    ck_ok(rm_kv_open(&config, &old));
    int refused[2];
    char byte;
    ck_assert(!pipe(refused));
    pid_t pid = fork();
    if (!pid) {
        rm_kv_config next = config_for(&p, 1, 2);
        next.secret = "job.1";
        need_peer(rm_kv_open(&next, &store), "another job");
        need(write(refused[1], "", 1) == 1, "nobody reads");
        next.stale_ms = 20000;
        need_ok(rm_kv_open(&next, &store));
        need_ok(rm_kv_set(store, "here", "", 0));
        rm_kv_close(store);
        _exit(0);
    }
    ck_assert(read(refused[0], &byte, 1) == 1);
    nap_ms(100); /* meanwhile it tries again */
    rm_kv_close(old);
    config.listen_fd = p.listen_fd;
    config.secret = "job.1";
    ck_ok(rm_kv_open(&config, &store));
    ck_ok(rm_kv_wait(store, "here", 20000));
    rm_kv_close(store);
    ck_assert_int_eq(end_of(pid), 0);
}
END_TEST

START_TEST(missing_rank_0_is_an_error) {
    rm_kv *store;
    rm_kv_config config = {.host = "127.0.0.1", .port = reserved_port(), .rank = 1, .size = 2, .timeout_ms = 200};
    ck_fails(rm_kv_open(&config, &store), PEER, "cannot reach rank 0");
    config.host = "no-such-host.invalid";
    ck_fails(rm_kv_open(&config, &store), PEER, "no-such-host.invalid");
    config.path = meeting_place();
    ck_fails(rm_kv_open(&config, &store), PEER, "rank 0 did not arrive");
    config.path = "/no/such/folder/file";
    config.rank = 0;
    ck_fails(rm_kv_open(&config, &store), IO, "/no/such/folder/file");
}
END_TEST

/* ---- Lost ranks -------------------------------------------------------------------------------------------------- */

START_TEST(dead_ranks_are_reported_as_lost) {
    place p = make_place(_i);
    pid_t pid[3];
    char who[128];
    rm_kv *store;
    rm_kv_config config = config_for(&p, 0, 4);
    fflush(NULL);
    for (int r = 1; r < 4; r++) {
        if ((pid[r - 1] = fork())) continue;
        alarm(280);
        config = config_for(&p, r, 4);
        if (!_i) close(p.listen_fd);
        need_ok(rm_kv_open(&config, &store));
        char key[20];
        snprintf(key, sizeof key, "%d is here", r);
        need_ok(rm_kv_set(store, key, "", 0));
        need_ok(rm_kv_wait(store, "go", 0));
        if (r == 1) raise(SIGKILL);
        if (r == 2) rm_kv_close(store);
        if (r == 3) need_peer(rm_kv_wait(store, "never", 0), "gone"); /* rank 0 ends before it is set */
        if (r == 3 && !_i) need(rm_kv_lost(store, -1, who, sizeof who) && who[0] == '0', "'%s'", who);
        _exit(0);
    }
    ck_ok(rm_kv_open(&config, &store));
    for (int r = 1; r < 4; r++) {
        snprintf(who, sizeof who, "%d is here", r);
        ck_ok(rm_kv_wait(store, who, 0));
        ck_assert(!rm_kv_lost(store, r, who, sizeof who));
    }
    ck_ok(rm_kv_set(store, "go", "", 0));
    double start = seconds();
    while (!rm_kv_lost(store, 1, who, sizeof who) && seconds() < start + 20) nap_ms(1);
    ck_assert_msg(strstr(who, "process"), "'%s'", who);
    ck_assert_int_eq(end_of(pid[0]), 128 + SIGKILL);
    ck_assert_int_eq(end_of(pid[1]), 0);
    ck_assert(!rm_kv_lost(store, 2, who, sizeof who)); /* it said goodbye */
    ck_assert(!rm_kv_lost(store, 3, who, sizeof who));
    ck_assert(rm_kv_lost(store, -1, who, sizeof who) && who[0] == '1');
    rm_kv_close(store);
    ck_assert_int_eq(end_of(pid[2]), 0);
}
END_TEST

/* The launcher's next attempt neither takes the attempt that is still ending for another job nor mixes with it. Ranks
 * left over from an earlier attempt are refused. Over tcp and in a file. */
START_TEST(attempts_do_not_mix) {
    place p = make_place(_i);
    rm_kv *store, *other;
    rm_kv_config config = config_for(&p, 0, 2);
    config.attempt = 1;
    ck_ok(rm_kv_open(&config, &store));
    config = config_for(&p, 1, 2);
    config.attempt = 2;
    config.timeout_ms = 300;
    ck_fails(rm_kv_open(&config, &other), PEER, "of attempt 1 of this job, and this is rank 1 of attempt 2");
    config.attempt = 0;
    config.timeout_ms = 60000;
    ck_fails(rm_kv_open(&config, &other), PEER, "of attempt 1 of this job, and this is rank 1 of attempt 0");
    config.attempt = 1;
    ck_ok(rm_kv_open(&config, &other));
    rm_kv_close(other);
    config.timeout_ms = 300;
    ck_fails(rm_kv_open(&config, &other), PEER, "and has ended: "); /* each rank is accepted once */
    rm_kv_close(store);
}
END_TEST

/* Ranks that join and leave never count as lost, not even for a moment. */
START_TEST(leaving_ranks_are_not_reported_as_lost) {
    for (int i = 0; i < 100; i++) {
        const char *path = meeting_place();
        rm_kv *store;
        char who[160] = "";
        int status;
        pid_t pid = fork();
        if (!pid) {
            need_ok(rm_kv_open(&(rm_kv_config){.path = path, .rank = 1, .size = 2}, &store));
            rm_kv_close(store);
            _exit(0);
        }
        ck_ok(rm_kv_open(&(rm_kv_config){.path = path, .rank = 0, .size = 2}, &store));
        while (waitpid(pid, &status, WNOHANG) == 0)
            ck_assert_msg(!rm_kv_lost(store, -1, who, sizeof who), "round %d: %s is missed", i, who);
        ck_assert_int_eq(status, 0);
        rm_kv_close(store);
    }
}
END_TEST

int main(void) {
    TCase *cases = tcase_create("store");
    tcase_add_loop_test(cases, keys_are_stored_and_waited_for, 0, 2);
    tcase_add_loop_test(cases, strangers_are_refused, 0, 2);
    tcase_add_loop_test(cases, attempts_do_not_meet, 0, 2);
    tcase_add_test(cases, missing_rank_0_is_an_error);
    tcase_add_loop_test(cases, dead_ranks_are_reported_as_lost, 0, 2);
    tcase_add_test(cases, leaving_ranks_are_not_reported_as_lost);
    tcase_add_loop_test(cases, attempts_do_not_mix, 0, 2);
    return run_cases("dist/store", cases);
}
