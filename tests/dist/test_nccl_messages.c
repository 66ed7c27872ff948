/* test_nccl_messages.c: messages between ranks of the engine nccl, on a machine without a GPU (nccl_fakes.h): those that the
 * host waits for, and those that streams exchange. A message of the fakes waits for its receiver, as NCCL's may. */
#include "tests/dist/messages.h"
#include "tests/suite.h"

#ifndef REMAT_HAVE_NCCL
int main(void) {
    puts("this build has no NCCL");
    return 0;
}
#else
#include "dist/nccl/nccl_library.h"
#include "tests/dist/nccl_fakes.h"

/* ---- Of the host ------------------------------------------------------------------------------------------------- */

static void send_messages(int rank, int size, rm_kv *store, void *context) {
    rm_group *group;
    rm_group_config config = config_of(rank, size, store);
    char here[64];
    use_fakes(context);
    need_ok(rm_group_open(&config, &group));
    go_round(group);
    let_others_finish(store, rank, size, 0);
    if (rank == 0) {
        need(rm_group_send(group, 1, here, 1) == REMAT_INVALID, "host memory");
        need(strstr(remat_last_error(), "message is host memory"), "%s", remat_last_error());
    }
    rm_group_close(group);
    need_nothing_left();
}
START_TEST(messages_arrive_whole_and_in_order) { run_ranks(3, send_messages, _i ? (void *)"in_progress=3" : NULL); }
END_TEST

static void sends_nothing(int rank, int size, rm_kv *store, void *context) {
    rm_group *group;
    rm_group_config config = config_of(rank, size, store);
    (void)context;
    config.timeout_ms = 1000;
    config.join_ms = 60000;
    use_fakes(NULL);
    need_ok(rm_group_open(&config, &group));
    wait_in_vain(group, "rank 1 (", "0");
    rm_group_close(group);
    need_nothing_left();
}
START_TEST(rank_that_sends_nothing_is_named) { run_ranks(2, sends_nothing, NULL); }
END_TEST

/* The other rank waits in its first message for one that has NCCL's communicator, but comes later than a collective may last. */
static void comes_late(int rank, int size, rm_kv *store, void *context) {
    rm_group *group;
    rm_group_config config = config_of(rank, size, store);
    (void)context;
    config.messages = true;
    config.timeout_ms = 300;
    config.join_ms = 60000;
    use_fakes(rank ? NULL : "slow_mean=1000");
    need_ok(rm_group_open(&config, &group));
    let_others_finish(store, rank, size, 0);
    rm_group_close(group);
    need_nothing_left();
}
START_TEST(ranks_may_connect_as_late_as_they_may_join) { run_ranks(2, comes_late, NULL); }
END_TEST

/* ---- Of streams -------------------------------------------------------------------------------------------------- */

static rm_group *open_with_stream(int rank, int size, rm_kv *store, int64_t timeout_ms, const rm_nccl_library **lib,
                                  cudaStream_t *stream) {
    rm_group *group;
    rm_group_config config = config_of(rank, size, store);
    config.messages = true;
    config.timeout_ms = timeout_ms;
    config.join_ms = 60000;
    need_ok(rm_group_open(&config, &group));
    need_ok(rm_nccl_library_open(lib));
    need(!(*lib)->cudaSetDevice(rank) && !(*lib)->cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking), "a stream");
    return group;
}

static remat_status wait_for_stream(rm_group *group, const rm_nccl_library *lib, cudaStream_t stream) {
    remat_status status = REMAT_OK;
    while (lib->cudaStreamQuery(stream) == cudaErrorNotReady) {
        status = rm_group_attend(group);
        nap_ms(1);
    }
    return status ? status : rm_group_attend(group);
}

/* Each rank adds one to a number and sends it on, more often than messages are kept in mind; the host never waits for the
 * stream meanwhile. */
static void send_by_streams(int rank, int size, rm_kv *store, void *context) {
    enum { ROUNDS = 150 };
    const rm_nccl_library *lib;
    cudaStream_t stream;
    use_fakes(context);
    rm_group *group = open_with_stream(rank, size, store, 60000, &lib, &stream);
    need(rm_group_device_bytes(group) > 0, "no memory is counted");
    int *number = rm_group_alloc(group, ROUNDS * sizeof *number), next = (rank + 1) % size;
    for (int i = 0; i < ROUNDS; i++) number[i] = i * (rank == 0);
    for (int i = 0; i < ROUNDS; i++) {
        if (rank == 0) need_ok(rm_group_give_send(group, stream, next, &number[i], sizeof *number));
        need_ok(rm_group_give_receive(group, stream, (rank + size - 1) % size, &number[i], sizeof *number));
        if (rank != 0) need_ok(rm_group_give_send(group, stream, next, &number[i], sizeof *number));
    }
    need_ok(wait_for_stream(group, lib, stream));
    for (int i = 0; i < ROUNDS; i++) need(number[i] == i, "number %d is %d", i, number[i]);
    need(!lib->cudaStreamDestroy(stream), "the stream");
    rm_group_free(group, number);
    rm_group_close(group);
    need_nothing_left();
}
START_TEST(messages_of_streams_arrive) { run_ranks(3, send_by_streams, _i ? (void *)"in_progress=2" : NULL); }
END_TEST

/* Both send before they receive, and NCCL does not buffer: their streams wait for each other for ever. */
static void send_first(int rank, int size, rm_kv *store, void *context) {
    const rm_nccl_library *lib;
    cudaStream_t stream;
    (void)context;
    use_fakes(NULL);
    rm_group *group = open_with_stream(rank, size, store, 1000, &lib, &stream);
    char *byte = rm_group_alloc(group, 2);
    need_ok(rm_group_give_send(group, stream, 1 - rank, byte, 1));
    need_ok(rm_group_give_receive(group, stream, 1 - rank, byte + 1, 1));
    need_peer(wait_for_stream(group, lib, stream), "did not receive what it was sent by");
    need_peer(rm_group_give_send(group, stream, 1 - rank, byte, 1), "did not receive");
    need(!lib->cudaStreamDestroy(stream), "the stream");
    rm_group_free(group, byte);
    rm_group_close(group);
    need_nothing_left();
}
START_TEST(streams_that_wait_for_each_other_are_freed) { run_ranks(2, send_first, NULL); }
END_TEST

/* Rank 2 dies, or sends nothing. Rank 1 waits for it, and rank 0 for rank 1. */
static void waits_in_a_chain(int rank, int size, rm_kv *store, void *dies) {
    const rm_nccl_library *lib;
    cudaStream_t stream;
    use_fakes(NULL);
    rm_group *group = open_with_stream(rank, size, store, dies ? 60000 : 1000, &lib, &stream);
    char *byte = rm_group_alloc(group, 1);
    remat_status status = REMAT_OK;
    let_others_finish(store, rank, size, 2);
    if (rank == 2 && dies) raise(SIGKILL);
    if (rank == 2)
        for (int i = 0; i < 4000 && !status; i++, nap_ms(50)) status = rm_group_poll(group);
    else {
        need_ok(rm_group_give_receive(group, stream, rank + 1, byte, 1));
        status = wait_for_stream(group, lib, stream);
    }
    need_peer(status, "rank 2");
    need(!lib->cudaStreamDestroy(stream), "the stream");
    rm_group_free(group, byte);
    rm_group_close(group);
    need_nothing_left();
}
START_TEST(rank_that_a_stream_waits_for_is_named) {
    pid_t pid[MOST_RANKS];
    start_ranks(3, waits_in_a_chain, _i ? "dies" : NULL, pid);
    ck_assert_int_eq(end_of(pid[0]) + end_of(pid[1]), 0);
    ck_assert_int_eq(end_of(pid[2]), _i ? 128 + SIGKILL : 0);
}
END_TEST

int main(void) {
    TCase *all = tcase_create("nccl_messages");
    tcase_add_loop_test(all, messages_arrive_whole_and_in_order, 0, 2);
    tcase_add_test(all, rank_that_sends_nothing_is_named);
    tcase_add_test(all, ranks_may_connect_as_late_as_they_may_join);
    tcase_add_loop_test(all, messages_of_streams_arrive, 0, 2);
    tcase_add_test(all, streams_that_wait_for_each_other_are_freed);
    tcase_add_loop_test(all, rank_that_a_stream_waits_for_is_named, 0, 2);
    return run_cases("dist/nccl_messages", all);
}
#endif
