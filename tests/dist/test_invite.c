/* test_invite.c: ranks that know nothing of each other but an invitation, which here a pipe carries: they meet in rank 0's store;
 * and what is said when none of its addresses leads there. That MPI carries it is tested by train/ranks and cluster/netns. */
#include "dist/invite.h"
#include "tests/dist/ranks.h"

enum { SIZE = 3 };

/* Whichever way there is: over an address that other hosts could take, too. */
static void follow(rm_invitation invitation, int rank, bool from_afar) {
    rm_kv *store;
    int64_t sum;
    if (from_afar) invitation.network[0] = 0;
    need_ok(rm_invite_accept(&invitation, rank, SIZE, &store));
    need_ok(rm_kv_add(store, "came", 1, &sum));
    need_ok(rm_kv_wait(store, "all", 10000));
    rm_kv_close(store);
    need(!__lsan_do_recoverable_leak_check || !__lsan_do_recoverable_leak_check(), "leaks");
    _exit(0);
}

START_TEST(an_invitation_leads_to_rank_0) {
    rm_invitation invitation, second;
    rm_kv *store, *other;
    int64_t sum = 0;
    pid_t pid[SIZE];
    ck_ok(rm_invite_make(SIZE, &store, &invitation));
    ck_assert(invitation.port > 0 && *invitation.host[0] && strlen(invitation.secret) == 32);
    fflush(NULL);
    for (int rank = 1; rank < SIZE; rank++)
        if (!(pid[rank] = fork())) follow(invitation, rank, _i);
    for (int tries = 0; sum < SIZE - 1 && tries < 1000; tries++) {
        ck_ok(rm_kv_add(store, "came", 0, &sum));
        nap_ms(10);
    }
    ck_assert_int_eq(sum, SIZE - 1);
    ck_ok(rm_kv_set(store, "all", "", 0));
    for (int rank = 1; rank < SIZE; rank++) ck_assert_int_eq(end_of(pid[rank]), 0);
    ck_ok(rm_invite_make(SIZE, &other, &second)); /* two jobs on one host: each its own port and secret */
    ck_assert(second.port != invitation.port && strcmp(second.secret, invitation.secret));
    rm_kv_close(other);
    rm_kv_close(store);
}
END_TEST

/* A port where nobody listens any more; and addresses that others have are passed by. */
START_TEST(an_invitation_that_leads_nowhere) {
    rm_invitation invitation;
    rm_kv *store, *other;
    ck_fails(rm_invite_accept(&(rm_invitation){0}, 1, 2, &other), PEER, "rank 0 could not serve a store");
    ck_ok(rm_invite_make(2, &store, &invitation));
    rm_invitation detour = invitation;
    detour.network[0] = 0;
    strcpy(detour.host[0], "no-such-host.invalid");
    strcpy(detour.host[1], "127.0.0.1");
    ck_ok(rm_invite_accept(&detour, 1, 2, &other));
    rm_kv_close(other);
    rm_kv_close(store);
    ck_fails(rm_invite_accept(&invitation, 1, 2, &other), PEER, "rank 1 cannot reach rank 0 at port");
    ck_assert_msg(strstr(remat_last_error(), "MASTER_ADDR") && strstr(remat_last_error(), invitation.host[0]), "%s",
                  remat_last_error());
}
END_TEST

int main(void) {
    Suite *suite = suite_create("dist/invite");
    TCase *tests = tcase_create("invite");
    tcase_set_timeout(tests, 120);
    tcase_add_loop_test(tests, an_invitation_leads_to_rank_0, 0, 2);
    tcase_add_test(tests, an_invitation_that_leads_nowhere);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? 1 : 0;
}
