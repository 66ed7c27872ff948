/* test_cuda_graphs.c: the CUDA device records the kernels that it launches again and again as graphs, and replays them:
 * from the second time on, within a limit of memory, and until a recording fails. On the fake of test_cuda.c. */
#include <check.h>

#ifdef HAVE_CUDA_HEADERS

#include "tests/engine/fake_cuda/expect.h"
#include "tests/engine/fake_cuda/stand_ins.h"
#include "tests/suite.h"

typedef struct {
    rm_device *device;
    rm_block *block;
    rm_queue *queue;
    char *memory;
} bench;

static void open_bench(bench *b, uint64_t seed) {
    const rm_device_api *api = &rm_device_cuda;
    stand_in_reset(seed);
    ck_assert(!api->open(1, &b->device) && !api->block_create(b->device, 64, &b->block));
    ck_assert(!api->queue_create(b->device, &b->queue));
    b->memory = api->claim(b->block, 0, 64);
}

static void close_bench(bench *b) {
    rm_device_cuda.queue_free(b->queue);
    rm_device_cuda.block_free(b->block);
    rm_device_cuda.close(b->device);
}

/* Launches two "kernels"; the first writes `key` to the first byte. Returns true if it launched them. */
static bool launch(bench *b, int64_t key) {
    const rm_cuda_queue *q = &b->queue->shown;
    if (!rm_cuda_begin(q, &key, sizeof key)) return false;
    rm_device_cuda.fill(b->queue, b->memory, (int)(key & 0x7f), 1);
    rm_device_cuda.fill(b->queue, b->memory + 1, 3, 1);
    rm_cuda_end(q);
    return true;
}

static int first_byte(bench *b) {
    char byte = -1;
    rm_device_cuda.copy_out(b->queue, &byte, b->memory, 1);
    ck_assert(!rm_device_cuda.synchronize(b->queue));
    return byte;
}

START_TEST(launches_are_recorded_the_second_time) {
    bench b;
    open_bench(&b, (uint64_t)_i);
    for (int sight = 1; sight <= 5; sight++)
        for (int64_t key = 1; key <= 3; key++) {
            ck_assert_int_eq(launch(&b, key), sight < 3);
            ck_assert_int_eq(first_byte(&b), key);
            ck_assert_int_eq(fake_cuda_graphs(), sight == 1 ? 0 : sight == 2 ? key : 3);
        }
    ck_assert_int_eq(fake_cuda_replays(), 4 * 3);
    b.queue->running[0] ^= 1; /* another op */
    ck_assert(launch(&b, 1));
    ck_assert_int_eq(fake_cuda_replays(), 4 * 3);
    close_bench(&b);
    expect_clean("recorded");
}
END_TEST

/* Graphs recorded by one user of a queue (a calibration, for example) take no memory from the next user. */
START_TEST(released_queue_keeps_no_graphs) {
    bench b;
    open_bench(&b, (uint64_t)_i);
    const rm_queue *first = b.queue;
    int64_t alive = fake_cuda_live();
    for (int user = 1; user <= 3; user++) {
        for (int sight = 1; sight <= 3; sight++) ck_assert_int_eq(launch(&b, 5), sight < 3);
        ck_assert_int_eq(first_byte(&b), 5);
        ck_assert_int_eq(fake_cuda_graphs(), user);
        ck_assert_int_eq(fake_cuda_live(), alive + 1);
        rm_device_cuda.queue_free(b.queue);
        ck_assert_int_eq(fake_cuda_live(), alive);
        ck_assert(!rm_device_cuda.queue_create(b.device, &b.queue));
        ck_assert_ptr_eq(b.queue, first);
    }
    close_bench(&b);
    expect_clean("spare");
}
END_TEST

/* Each graph of the fake takes 64 KiB. */
START_TEST(recording_stops_at_its_memory_limit) {
    enum { GRAPHS = RM_CUDA_GRAPH_BYTES / (64 << 10), CALLS = RM_CUDA_CALLS + 100 };
    bench b;
    open_bench(&b, 1);
    for (int sight = 1; sight <= 3; sight++)
        for (int64_t key = 0; key < CALLS; key++) {
            ck_assert_int_eq(launch(&b, key), sight < 3 || key >= GRAPHS);
            if (key % 500 == 0 || key == CALLS - 1) ck_assert_int_eq(first_byte(&b), key & 0x7f);
        }
    rm_recordings known;
    rm_device_cuda.recordings(b.queue, &known);
    ck_says_all(known.ended, "memory|full");
    ck_assert(known.graphs == GRAPHS && known.calls == RM_CUDA_CALLS && known.bytes == known.limit_bytes);
    ck_assert_int_eq(fake_cuda_graphs(), GRAPHS);
    ck_assert_int_eq(fake_cuda_replays(), 2 * GRAPHS);
    close_bench(&b);
    expect_clean("bounds");
}
END_TEST

/* Memory that another program takes while a graph is created is not charged to the graph, and does not end
 * recording. */
START_TEST(memory_of_other_programs_does_not_end_recording) {
    enum { LAUNCHES = 20 };
    bench b;
    rm_recordings known;
    open_bench(&b, 1);
    for (int sight = 1; sight <= 2; sight++)
        for (int64_t key = 0; key < LAUNCHES; key++) {
            if (sight == 2 && key == 3) fake_cuda_others_take((size_t)200 << 20);
            (void)launch(&b, key);
        }
    rm_device_cuda.recordings(b.queue, &known);
    ck_assert_msg(known.calls == LAUNCHES && known.graphs == LAUNCHES && !known.ended, "%lld of %lld: %s",
                  (long long)known.graphs, (long long)known.calls, known.ended ? known.ended : "");
    ck_assert_uint_eq(known.bytes,
                      (LAUNCHES - 1) * (64u << 10) + 2 * RM_CUDA_NODE_BYTES); /* the last graph has two launches */
    close_bench(&b);
    expect_clean("others");
}
END_TEST

START_TEST(large_gpu_allows_more_graphs) {
    static const uint64_t gib[] = {1, 80, 140}, mib[] = {16, 80, 128};
    for (int i = 0; i < 3; i++) {
        rm_device *device;
        rm_queue *queue;
        rm_recordings known;
        stand_in_reset(1);
        fake_cuda_machine(1, 13000, gib[i] << 30);
        ck_assert(!rm_device_cuda.open(1, &device) && !rm_device_cuda.queue_create(device, &queue));
        rm_device_cuda.recordings(queue, &known);
        ck_assert_uint_eq(known.limit_bytes >> 20, mib[i]);
        ck_assert_uint_ge(rm_device_cuda.overhead_bytes(device), known.limit_bytes);
        rm_device_cuda.queue_free(queue);
        rm_device_cuda.close(device);
    }
}
END_TEST

/* Each call that recording makes fails once: one message, and from then on kernels are launched one by one. */
START_TEST(failed_recording_falls_back_to_single_launches) {
    bench b;
    open_bench(&b, 3);
    ck_assert(launch(&b, 1) && !rm_device_cuda.synchronize(b.queue));
    int64_t before = fake_cuda_calls();
    ck_assert(launch(&b, 1));
    int64_t calls = fake_cuda_calls() - before;
    close_bench(&b);
    ck_assert_int_ge(calls, 7);
    for (int64_t call = 1; call <= calls; call++) {
        open_bench(&b, (uint64_t)call);
        ck_assert(launch(&b, 1) && !rm_device_cuda.synchronize(b.queue));
        fake_cuda_fail_at(fake_cuda_calls() + call, cudaErrorUnknown);
        (void)launch(&b, 1);
        ck_assert_int_eq(rm_device_cuda.synchronize(b.queue), REMAT_DEVICE);
        expect_sentence("a test");
        (void)launch(&b, 1);
        ck_assert_int_eq(first_byte(&b), 1);
        (void)launch(&b, 2), (void)launch(&b, 2);
        ck_assert_int_eq(first_byte(&b), 2);
        close_bench(&b);
        expect_clean("a recording that failed");
    }
}
END_TEST

int main(void) {
    TCase *c = tcase_create("cuda_graphs");
    tcase_add_loop_test(c, launches_are_recorded_the_second_time, 0, 4);
    tcase_add_loop_test(c, released_queue_keeps_no_graphs, 0, 2);
    tcase_add_test(c, recording_stops_at_its_memory_limit);
    tcase_add_test(c, memory_of_other_programs_does_not_end_recording);
    tcase_add_test(c, large_gpu_allows_more_graphs);
    tcase_add_test(c, failed_recording_falls_back_to_single_launches);
    return run_cases("cuda_graphs", c);
}

#else

#include <stdio.h>

int main(void) { return puts("skipped: needs CUDA's headers"), 77; }

#endif
