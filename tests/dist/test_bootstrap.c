/* test_bootstrap.c: ranks that know only rank 0's address, which a pipe carries here, meet in rank 0's store; an error
 * lists the addresses if none of them works. train/ranks and cluster/netns test that MPI carries the address. */
#include "dist/store/bootstrap.h"
#include "tests/dist/ranks.h"
#include "tests/suite.h"

enum { SIZE = 3 };

/* Connects in one of two ways; `from_afar`: over an address that other hosts could use, too. */
static void follow(rm_bootstrap_address address, int rank, bool from_afar) {
    rm_kv *store;
    int64_t sum;
    if (from_afar) address.network[0] = 0;
    need_ok(rm_bootstrap_join(&address, rank, SIZE, &store));
    need_ok(rm_kv_add(store, "came", 1, &sum));
    need_ok(rm_kv_wait(store, "all", 100000));
    rm_kv_close(store);
    need(!__lsan_do_recoverable_leak_check || !__lsan_do_recoverable_leak_check(), "leaks");
    _exit(0);
}

START_TEST(ranks_reach_rank_0_by_its_address) {
    rm_bootstrap_address address, second;
    rm_kv *store, *other;
    int64_t sum = 0;
    pid_t pid[SIZE];
    ck_ok(rm_bootstrap_serve(SIZE, &store, &address));
    ck_assert(address.port > 0 && *address.host[0] && strlen(address.secret) == 32);
    fflush(NULL);
    for (int rank = 1; rank < SIZE; rank++)
        if (!(pid[rank] = fork())) follow(address, rank, _i);
    for (int tries = 0; sum < SIZE - 1 && tries < 6000; tries++) {
        ck_ok(rm_kv_add(store, "came", 0, &sum));
        nap_ms(10);
    }
    ck_assert_int_eq(sum, SIZE - 1);
    ck_ok(rm_kv_set(store, "all", "", 0));
    for (int rank = 1; rank < SIZE; rank++) ck_assert_int_eq(end_of(pid[rank]), 0);
    ck_ok(rm_bootstrap_serve(SIZE, &other, &second)); /* two jobs on one host, each with its own port and secret */
    ck_assert(second.port != address.port && strcmp(second.secret, address.secret));
    rm_kv_close(other);
    rm_kv_close(store);
}
END_TEST

/* A port where no process listens any more; addresses that belong to other hosts are skipped. */
START_TEST(unreachable_addresses_are_an_error) {
    rm_bootstrap_address address;
    rm_kv *store, *other;
    ck_fails(rm_bootstrap_join(&(rm_bootstrap_address){0}, 1, 2, &other), PEER, "rank 0 could not serve a store");
    ck_ok(rm_bootstrap_serve(2, &store, &address));
    rm_bootstrap_address detour = address;
    detour.network[0] = 0;
    strcpy(detour.host[0], "no-such-host.invalid");
    strcpy(detour.host[1], "127.0.0.1");
    ck_ok(rm_bootstrap_join(&detour, 1, 2, &other));
    rm_kv_close(other);
    rm_kv_close(store);
    ck_fails(rm_bootstrap_join(&address, 1, 2, &other), PEER, "rank 1 cannot reach rank 0 at port");
    ck_assert_msg(strstr(remat_last_error(), "MASTER_ADDR") && strstr(remat_last_error(), address.host[0]), "%s",
                  remat_last_error());
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("invite");
    tcase_set_timeout(tests, 300);
    tcase_add_loop_test(tests, ranks_reach_rank_0_by_its_address, 0, 2);
    tcase_add_test(tests, unreachable_addresses_are_an_error);
    return run_cases("dist/invite", tests);
}
