/* test_host.c: host memory: counts, failure injection, alignment, zeroing, overflow. */
#include "memory/host.h"

#include <pthread.h>

#include "tests/memory/memory_test.h"

START_TEST(small_allocations_behave_like_malloc) {
    char *text = rm_strdup("a checkpoint");
    ck_assert_str_eq(text, "a checkpoint");
    text = rm_realloc(text, 100000);
    ck_assert_str_eq(text, "a checkpoint");
    rm_free(text);
    rm_free(NULL);
    unsigned char *zero = rm_calloc(1000, 7);
    for (int i = 0; i < 7000; i++) ck_assert_int_eq(zero[i], 0);
    rm_free(zero);
    void *a = rm_malloc(0), *b = rm_malloc(0);
    ck_assert(a && b && a != b);
    rm_free(a);
    rm_free(b);
    rm_free(rm_realloc(rm_realloc(NULL, 10), 0));
}
END_TEST

START_TEST(oversized_requests_return_null) {
    ck_assert_ptr_null(rm_calloc(SIZE_MAX / 2, 3));
    ck_assert_ptr_null(rm_malloc(SIZE_MAX));
    ck_assert_ptr_null(rm_block_alloc(SIZE_MAX - 5, 64));
    ck_assert_ptr_null(rm_block_alloc((size_t)1 << 62, 64));
    ck_assert_ptr_null(rm_guarded_alloc(SIZE_MAX - 5));
    ck_assert_ptr_null(rm_guarded_alloc((size_t)1 << 62));
    char *kept = rm_strdup("kept");
    ck_assert_ptr_null(rm_realloc(kept, SIZE_MAX / 2 + 10));
    ck_assert_str_eq(kept, "kept");
    rm_free(kept);
}
END_TEST

START_TEST(arrays_grow) {
    int64_t *item = NULL, capacity = 0, before = 0, moves = 0;
    for (int64_t n = 0; n < 10000; n++) {
        ck_assert(rm_grow(&item, &capacity, n + 1, sizeof *item));
        ck_assert_int_ge(capacity, n + 1);
        moves += capacity != before;
        before = capacity;
        item[n] = 3 * n;
    }
    ck_assert_int_le(moves, 12); /* each time it doubles */
    ck_assert(rm_grow(&item, &capacity, 100000, sizeof *item));
    ck_assert_int_ge(capacity, 100000);
    int64_t *kept = item;
    before = capacity;
    ck_assert(!rm_grow(&item, &capacity, INT64_MAX, sizeof *item));
    rm_host_fail_at(1);
    ck_assert(!rm_grow(&item, &capacity, capacity + 1, sizeof *item));
    ck_assert(item == kept && capacity == before);
    for (int64_t n = 0; n < 10000; n++) ck_assert_int_eq(item[n], 3 * n);
    rm_free(item);
}
END_TEST

START_TEST(blocks_are_aligned) {
    size_t sizes[] = {0, 1, 63, 4096, RM_BLOCK_MAPPED - 1, RM_BLOCK_MAPPED, 5000001, (size_t)9 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (size_t alignment = 1; alignment <= (size_t)4 << 20; alignment *= 4) {
            char *block = rm_block_alloc(sizes[i], alignment);
            ck_assert_ptr_nonnull(block);
            ck_assert_uint_eq((uintptr_t)block % alignment, 0);
            if (sizes[i]) block[0] = block[sizes[i] - 1] = 1;
            rm_block_free(block, sizes[i]);
        }
    rm_block_free(NULL, 100);
    rm_guarded_free(NULL, 100);
}
END_TEST

START_TEST(only_the_nth_allocation_fails) {
    for (int n = 1; n <= 6; n++) {
        void *got[6];
        rm_host_fail_at(n);
        got[0] = rm_malloc(8);
        got[1] = rm_calloc(8, 8);
        got[2] = rm_realloc(NULL, 8);
        got[3] = rm_strdup("x");
        got[4] = rm_block_alloc(100, 64);
        got[5] = rm_guarded_alloc(100);
        for (int i = 0; i < 6; i++) ck_assert_msg(!got[i] == (i == n - 1), "n = %d, allocation %d", n, i + 1);
        for (int i = 0; i < 4; i++) rm_free(got[i]);
        rm_block_free(got[4], 100);
        rm_guarded_free(got[5], 100);
    }
    void *kept = rm_malloc(8);
    rm_host_fail_at(1);
    ck_assert_ptr_null(rm_realloc(kept, 80));
    rm_host_fail_at(1);
    rm_host_fail_at(0);
    rm_free(rm_realloc(kept, 80));
}
END_TEST

static void *allocate_a_thousand(void *failures) {
    for (int i = 0; i < 1000; i++) {
        void *p = rm_malloc(16);
        *(int *)failures += !p;
        rm_free(p);
    }
    return NULL;
}

START_TEST(allocations_are_counted_across_threads) {
    int64_t before = rm_host_allocations();
    pthread_t thread[4];
    int failures[4] = {0};
    rm_host_fail_at(2000);
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(pthread_create(&thread[i], NULL, allocate_a_thousand, &failures[i]), 0);
    for (int i = 0; i < 4; i++) pthread_join(thread[i], NULL);
    ck_assert_int_eq(rm_host_allocations() - before, 4000);
    ck_assert_int_eq(failures[0] + failures[1] + failures[2] + failures[3], 1);
}
END_TEST

START_TEST(allocator_statistics_are_plausible) {
    uint64_t allocated, resident, later;
    void *small = rm_malloc(600000);
    memset(small, 1, 600000);
    rm_host_stats(&allocated, &resident);
    if (!strncmp(rm_host_allocator(), "jemalloc ", 9)) {
        ck_assert_uint_ge(allocated, 600000);
        ck_assert_uint_ge(resident, 600000);
        rm_free(small);
        small = NULL;
        rm_host_stats(&later, &resident);
        ck_assert_uint_le(later + 500000, allocated);
    } else {
        ck_assert_str_eq(rm_host_allocator(), "libc");
        ck_assert(allocated == 0 && resident == 0);
    }
    rm_free(small);
}
END_TEST

RUN_TESTS("memory/host", small_allocations_behave_like_malloc, oversized_requests_return_null, arrays_grow,
          blocks_are_aligned, only_the_nth_allocation_fails, allocations_are_counted_across_threads,
          allocator_statistics_are_plausible)
