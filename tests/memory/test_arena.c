/* test_arena.c: the arena has the requested size, reports its use truthfully, and ends at an unreadable page. */
#include "memory/arena.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "memory/host.h"
#include "tests/memory/memory_test.h"

static const uint64_t sizes[] = {0, 64, 4096, 4160, 1000000, (uint64_t)5 << 20};
enum { N_SIZES = sizeof sizes / sizeof sizes[0] };

START_TEST(arena_is_zeroed_aligned_and_of_the_requested_size) {
    for (int i = 0; i < N_SIZES; i++) {
        rm_arena *arena;
        ck_ok(rm_arena_create(sizes[i], &arena));
        unsigned char *base = rm_arena_base(arena);
        ck_assert_uint_eq((uintptr_t)base % 64, 0);
        ck_assert_uint_eq(rm_arena_bytes(arena), sizes[i]);
        ck_assert_uint_eq(rm_arena_high_water(arena), 0);
        for (uint64_t b = 0; b < sizes[i]; b++)
            if (base[b]) ck_abort_msg("byte %llu is not zero", (unsigned long long)b);
        rm_arena_free(arena);
    }
    rm_arena_free(NULL);
}
END_TEST

/* The exit of a child that writes the byte at `offset`: 0, or the signal that killed it. */
static int write_in_child(rm_arena *arena, uint64_t offset) {
    pid_t child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        ((volatile unsigned char *)rm_arena_base(arena))[offset] = 1;
        _exit(0);
    }
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
}

START_TEST(writing_past_the_end_faults) {
    for (int i = 1; i < N_SIZES; i++) {
        rm_arena *arena;
        ck_ok(rm_arena_create(sizes[i], &arena));
        ck_assert_int_eq(write_in_child(arena, sizes[i] - 1), 0);
        ck_assert_int_eq(write_in_child(arena, sizes[i]), SIGSEGV);
        rm_arena_free(arena);
    }
}
END_TEST

START_TEST(high_water_is_the_furthest_claim) {
    rm_arena *arena;
    ck_ok(rm_arena_create(1024, &arena));
    ck_assert_ptr_eq(rm_arena_claim(arena, 128, 64), (char *)rm_arena_base(arena) + 128);
    ck_assert_uint_eq(rm_arena_high_water(arena), 192);
    rm_arena_claim(arena, 0, 64);
    ck_assert_uint_eq(rm_arena_high_water(arena), 192);
    rm_arena_claim(arena, 960, 64);
    ck_assert_uint_eq(rm_arena_high_water(arena), 1024);
    rm_arena_free(arena);
}
END_TEST

START_TEST(paint_shows_written_bytes) {
    rm_arena *arena;
    ck_ok(rm_arena_create(65536, &arena));
    float *floats = rm_arena_base(arena);
    ck_assert_uint_eq(rm_arena_written_until(arena), 65536);
    rm_arena_paint(arena, 256);
    ck_assert_uint_eq(rm_arena_written_until(arena), 256);
    floats[10] = 1; /* before the paint */
    ck_assert_uint_eq(rm_arena_written_until(arena), 256);
    float values[] = {0, 1, -1.5f, 1e30f};
    for (int i = 0; i < 16384 - 64; i++) { /* with growing offsets, every kind of value is detected */
        floats[64 + i] = values[i % 4];
        ck_assert_uint_eq(rm_arena_written_until(arena), 256 + (uint64_t)(i + 1) * 4);
    }
    rm_arena_paint(arena, 0);
    ck_assert_uint_eq(rm_arena_written_until(arena), 0);
    rm_arena_free(arena);
}
END_TEST

START_TEST(too_large_arena_error_has_the_size) {
    rm_arena *arena = (rm_arena *)1;
    ck_fails(rm_arena_create((uint64_t)1 << 50, &arena), MEMORY, "1125899906842624 bytes");
    ck_assert_ptr_null(arena);
    ck_fails(rm_arena_create(UINT64_MAX, &arena), MEMORY, "more segments");
    for (int n = 1; n <= 2; n++) {
        rm_host_fail_at(n);
        ck_assert_int_eq(rm_arena_create(4096, &arena), REMAT_MEMORY);
        ck_assert_ptr_null(arena);
    }
    rm_host_fail_at(0);
}
END_TEST

START_TEST(address_space_limit_is_in_the_error) {
#ifndef REMAT_SANITIZED /* a sanitizer itself needs terabytes */
    rm_arena *arena;
    struct rlimit before, now;
    ck_assert_int_eq(getrlimit(RLIMIT_AS, &before), 0);
    now = before;
    now.rlim_cur = (rlim_t)300 << 20;
    ck_assert_int_eq(setrlimit(RLIMIT_AS, &now), 0);
    remat_status status = rm_arena_create((uint64_t)300 << 20, &arena);
    ck_assert_int_eq(setrlimit(RLIMIT_AS, &before), 0);
    ck_fails(status, MEMORY, "limited to 300.0 MiB (ulimit -v)");
#endif
}
END_TEST

RUN_TESTS("memory/arena", arena_is_zeroed_aligned_and_of_the_requested_size, writing_past_the_end_faults,
          high_water_is_the_furthest_claim, paint_shows_written_bytes, too_large_arena_error_has_the_size,
          address_space_limit_is_in_the_error)
