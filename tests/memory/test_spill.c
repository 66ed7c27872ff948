/* test_spill.c: the spill file returns the data written to it, in any split into parts, and on a disk that transfers
 * half of the requested bytes. A failing disk gives an error instead of a hang. Nothing is left in the directory. */
#define _GNU_SOURCE
#include "memory/spill.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "memory/bytes.h"
#include "memory/host.h"
#include "tests/memory/chains.h"
#include "tests/memory/memory_test.h"

/* The first is on a disk, probably with O_DIRECT, the second in memory, probably without. */
static const char *const places[] = {"/tmp", "/dev/shm"};

static int files_in(const char *directory) {
    DIR *dir = opendir(directory);
    ck_assert_ptr_nonnull(dir);
    int found = 0;
    for (struct dirent *entry; (entry = readdir(dir));) found += !strncmp(entry->d_name, "remat-spill", 11);
    closedir(dir);
    return found;
}

static void paint(char *memory, uint64_t bytes, uint64_t seed) {
    for (uint64_t i = 0; i < bytes; i++) memory[i] = (char)((i * 2654435761u + seed * 97) >> 7);
}

/* One object: its parts lie anywhere in memory, but are contiguous in the file. */
enum { MOST_PARTS = 6 };
typedef struct {
    char *memory, *copy;
    uint64_t at, bytes, part[MOST_PARTS];
    int n;
} object;

static void make_object(dice *d, uint64_t at, uint64_t largest, object *o) {
    *o = (object){.at = at, .n = 1 + (int)roll_below(d, MOST_PARTS)};
    for (int i = 0; i < o->n; i++) o->bytes += o->part[i] = rm_align_up(1 + roll(d) % largest);
    ck_assert(!posix_memalign((void **)&o->memory, 64, o->bytes + 64));
    o->copy = malloc(o->bytes);
    paint(o->memory, o->bytes, at);
    memcpy(o->copy, o->memory, o->bytes);
}

static void drop_object(object *o) {
    free(o->memory);
    free(o->copy);
}

typedef void mover(rm_spill *spill, const rm_part *part);

/* `skip`: the part to be left out. */
static void move(rm_spill *spill, const object *o, mover *mover, int skip) {
    uint64_t done = 0;
    for (int i = 0; i < o->n; i++) {
        rm_part part = {i == skip ? NULL : o->memory + done, o->part[i], o->at + done, o->bytes - done};
        mover(spill, &part);
        done += o->part[i];
    }
}

static rm_spill *opened(const char *directory, uint64_t room) {
    rm_spill *spill;
    ck_ok(rm_spill_open(directory, &spill));
    ck_ok(rm_spill_reserve(spill, room));
    return spill;
}

static void round_trips(rm_spill *spill, dice *d, uint64_t largest) {
    enum { OBJECTS = 9 };
    object o[OBJECTS];
    uint64_t at = 0;
    for (int i = 0; i < OBJECTS; i++) {
        make_object(d, at, largest, &o[i]);
        at += (o[i].bytes + RM_TRANSFER_ALIGN - 1) / RM_TRANSFER_ALIGN * RM_TRANSFER_ALIGN;
    }
    for (int i = 0; i < OBJECTS; i++) move(spill, &o[i], rm_spill_save, -1);
    ck_ok(rm_spill_wait(spill, rm_spill_given(spill)));
    for (int i = 0; i < OBJECTS; i++) memset(o[i].memory, 0x55, o[i].bytes);
    uint64_t first = rm_spill_given(spill);
    for (int i = OBJECTS - 1; i >= 0; i--) move(spill, &o[i], rm_spill_load, -1);
    ck_ok(rm_spill_wait(spill, first + 1)); /* the first of them is done, whatever the others do */
    ck_assert(!memcmp(o[OBJECTS - 1].memory, o[OBJECTS - 1].copy, o[OBJECTS - 1].bytes));
    ck_ok(rm_spill_wait(spill, rm_spill_given(spill)));
    for (int i = 0; i < OBJECTS; i++) ck_assert(!memcmp(o[i].memory, o[i].copy, o[i].bytes));
    /* A part that is left out is not changed; the others are loaded. */
    memset(o[4].memory, 0x55, o[4].bytes);
    move(spill, &o[4], rm_spill_load, 0);
    ck_ok(rm_spill_wait(spill, rm_spill_given(spill)));
    ck_assert(o[4].memory[0] == 0x55 && o[4].memory[o[4].part[0] - 1] == 0x55);
    ck_assert(!memcmp(o[4].memory + o[4].part[0], o[4].copy + o[4].part[0], o[4].bytes - o[4].part[0]));
    for (int i = 0; i < OBJECTS; i++) drop_object(&o[i]);
}

START_TEST(saved_bytes_are_loaded_unchanged) {
    static const uint64_t largest[] = {64, 5000, 300000, 3000000};
    for (int place = 0; place < 2; place++) {
        rm_spill *spill = opened(places[place], (uint64_t)200 << 20);
        dice d = {7};
        for (int i = 0; i < 8; i++) round_trips(spill, &d, largest[i % 4]);
        ck_assert_int_eq(files_in(places[place]), 0);
        rm_spill_close(spill);
    }
}
END_TEST

/* Makes each operation in turn transfer half of the requested bytes, or be interrupted. */
START_TEST(short_and_interrupted_transfers_are_continued) {
    for (int place = 0; place < 2; place++)
        for (int n = 1; n < 40; n++) {
            rm_spill *spill = opened(places[place], (uint64_t)64 << 20);
            dice d = {(uint64_t)n};
            rm_spill_fail_at(n, n % 3 ? 0 : EINTR);
            round_trips(spill, &d, 400000);
            rm_spill_fail_at(0, 0);
            rm_spill_close(spill);
        }
}
END_TEST

/* O_DIRECT is accepted when the file is opened and refused when it is used. */
START_TEST(refused_o_direct_falls_back_to_the_page_cache) {
    rm_spill *spill = opened("/tmp", (uint64_t)64 << 20);
    dice d = {1};
    rm_spill_fail_at(3, EINVAL);
    if (rm_spill_direct(spill)) {
        round_trips(spill, &d, 300000);
        ck_assert(!rm_spill_direct(spill));
        round_trips(spill, &d, 300000);
    }
    rm_spill_fail_at(0, 0);
    rm_spill_close(spill);
}
END_TEST

/* Makes the n-th operation fail: the error names directory and reason, all queued transfers end, and later ones
 * work. */
START_TEST(failing_disk_is_an_error_and_recoverable) {
    static const struct {
        int error;
        const char *words;
    } failing[] = {{ENOSPC, "No space left on device"}, {EIO, "Input/output error"}, {EDQUOT, "quota"}};
    for (int n = 1; n <= 24; n++) {
        rm_spill *spill = opened(places[n % 2], (uint64_t)64 << 20);
        dice d = {9};
        object o;
        make_object(&d, 0, 900000, &o);
        rm_spill_fail_at(n, failing[n % 3].error);
        remat_status status = REMAT_OK;
        for (int i = 0; i < 20 && !status; i++) {
            for (int k = 0; k < 5; k++) move(spill, &o, i % 2 ? rm_spill_load : rm_spill_save, -1);
            status = rm_spill_wait(spill, rm_spill_given(spill) - 4);
        }
        rm_spill_fail_at(0, 0);
        ck_assert_int_eq(status, REMAT_IO);
        ck_assert_ptr_nonnull(strstr(remat_last_error(), places[n % 2]));
        ck_assert_ptr_nonnull(strstr(remat_last_error(), failing[n % 3].words));
        memcpy(o.memory, o.copy, o.bytes);
        move(spill, &o, rm_spill_save, -1);
        move(spill, &o, rm_spill_load, -1);
        ck_ok(rm_spill_wait(spill, rm_spill_given(spill)));
        ck_assert(!memcmp(o.memory, o.copy, o.bytes));
        drop_object(&o);
        rm_spill_close(spill);
    }
}
END_TEST

START_TEST(missing_directory_and_space_are_errors) {
    rm_spill *spill;
    ck_fails(rm_spill_open("/no/such/directory", &spill), IO, "/no/such/directory: No such file");
    ck_assert_ptr_null(spill);
    ck_fails(rm_spill_open("/dev/null", &spill), IO, "/dev/null: Not a directory");
    ck_fails(rm_spill_open("/proc", &spill), IO, "/proc");
    ck_fails(rm_spill_open("", &spill), INVALID, "directory");
    ck_ok(rm_spill_open("/tmp", &spill));
    ck_fails(rm_spill_reserve(spill, (uint64_t)1 << 50), IO, "in /tmp, which has");
    struct rlimit before, small = {.rlim_cur = 10 << 20, .rlim_max = RLIM_INFINITY};
    ck_assert(!getrlimit(RLIMIT_FSIZE, &before));
    small.rlim_max = before.rlim_max;
    ck_assert(!setrlimit(RLIMIT_FSIZE, &small));
    ck_fails(rm_spill_reserve(spill, (uint64_t)11 << 20), IO, "files of at most 10.0 MiB");
    rm_tier rates;
    ck_fails(rm_spill_measure(spill, &rates), IO, "ulimit");
    ck_ok(rm_spill_reserve(spill, (uint64_t)9 << 20));
    ck_assert(!setrlimit(RLIMIT_FSIZE, &before));
    rm_spill_close(spill);
    rm_spill_close(NULL);
}
END_TEST

/* More parts than the queue holds; empty transfers; closing with transfers in the queue. */
START_TEST(long_queues_empty_transfers_and_early_close_work) {
    rm_spill *spill = opened("/tmp", (uint64_t)64 << 20);
    char *memory = aligned_alloc(64, 64 * 5000), *copy = malloc(64 * 5000);
    paint(memory, 64 * 5000, 3);
    memcpy(copy, memory, 64 * 5000);
    for (uint64_t i = 0; i < 5000; i++) rm_spill_save(spill, &(rm_part){memory + 64 * i, 64, 64 * i, 64 * (5000 - i)});
    ck_assert_uint_eq(rm_spill_given(spill), 1);
    rm_spill_save(spill, &(rm_part){NULL, 0, 4096 * 100, 0});
    rm_spill_load(spill, &(rm_part){NULL, 0, 4096 * 100, 0});
    ck_assert_uint_eq(rm_spill_given(spill), 3);
    ck_ok(rm_spill_wait(spill, 3));
    memset(memory, 0, 64 * 5000);
    for (uint64_t i = 0; i < 5000; i++) rm_spill_load(spill, &(rm_part){memory + 64 * i, 64, 64 * i, 64 * (5000 - i)});
    ck_ok(rm_spill_wait(spill, 4));
    ck_assert(!memcmp(memory, copy, 64 * 5000));
    rm_spill_use use = rm_spill_used(spill);
    ck_assert_uint_eq(use.save_bytes, 64 * 5000);
    ck_assert_uint_eq(use.load_bytes, 64 * 5000);
    ck_assert_uint_gt(use.busy_ns, 0);
    rm_spill_save(spill, &(rm_part){memory, 64 * 5000, 0, 64 * 5000});
    rm_spill_close(spill);
    free(memory);
    free(copy);
}
END_TEST

START_TEST(rates_are_measured_once) {
    rm_tier first = {0}, second = {0};
    rm_spill *spill;
    ck_ok(rm_spill_open("/tmp", &spill));
    ck_ok(rm_spill_measure(spill, &first));
    rm_spill_close(spill);
    ck_assert_uint_gt(first.save_bytes_per_s, 100000);
    ck_assert_uint_gt(first.load_bytes_per_s, 100000);
    ck_assert_uint_gt(first.latency_ns, 100);
    ck_assert_uint_lt(first.latency_ns, 1000000000);
    ck_ok(rm_spill_open("/tmp", &spill));
    ck_ok(rm_spill_measure(spill, &second));
    rm_spill_close(spill);
    ck_assert_mem_eq(&first, &second, sizeof first);
}
END_TEST

START_TEST(transfers_allocate_nothing) {
    rm_spill *spill = opened("/tmp", (uint64_t)64 << 20);
    dice d = {9};
    object o;
    make_object(&d, 0, 900000, &o);
    int64_t before = rm_host_allocations();
    for (int i = 0; i < 20; i++) move(spill, &o, i % 2 ? rm_spill_load : rm_spill_save, -1);
    ck_ok(rm_spill_wait(spill, rm_spill_given(spill)));
    ck_assert_int_eq(rm_host_allocations(), before);
    drop_object(&o);
    rm_spill_close(spill);
}
END_TEST

START_TEST(every_failed_allocation_is_handled) {
    for (int n = 1;; n++) {
        rm_spill *spill;
        rm_host_fail_at(n);
        remat_status status = rm_spill_open("/tmp", &spill);
        rm_host_fail_at(0);
        if (!status) {
            ck_assert_int_gt(n, 3);
            rm_spill_close(spill);
            break;
        }
        ck_assert_int_eq(status, REMAT_MEMORY);
        ck_assert_ptr_null(spill);
    }
}
END_TEST

RUN_TESTS("memory/spill", saved_bytes_are_loaded_unchanged, short_and_interrupted_transfers_are_continued,
          refused_o_direct_falls_back_to_the_page_cache, failing_disk_is_an_error_and_recoverable,
          missing_directory_and_space_are_errors, long_queues_empty_transfers_and_early_close_work,
          rates_are_measured_once, transfers_allocate_nothing, every_failed_allocation_is_handled)
