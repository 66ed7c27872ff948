/* ranks.h: tests with several ranks: real processes, forked from the test, that meet at a file and fail with a message.
 *
 *   static void body(int rank, int size, rm_kv *store, void *context) { ... need_ok(...); need(...); }
 *   run_ranks(4, body, context);              every rank must end well
 *   pid_t pid[8]; start_ranks(...); ...       for tests that kill some
 */
#ifndef TEST_RANKS_H
#define TEST_RANKS_H

#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "dist/group/group.h"
#include "dist/store/store.h"

enum { MOST_RANKS = 8 };

/* In a rank: prints what is wrong and ends the process, without Check, which belongs to the parent. */
#define need(fact, ...)                                                                                                \
    do {                                                                                                               \
        if (!(fact)) {                                                                                                 \
            fprintf(stderr, "%s:%d: process %d: %s: ", __FILE__, __LINE__, (int)getpid(), #fact);                      \
            fprintf(stderr, "" __VA_ARGS__);                                                                           \
            fputc('\n', stderr);                                                                                       \
            _exit(9);                                                                                                  \
        }                                                                                                              \
    } while (0)
#define need_ok(call)                                                                                                  \
    do {                                                                                                               \
        remat_status got_ = (call);                                                                                    \
        need(got_ == REMAT_OK, "%s", remat_last_error());                                                              \
    } while (0)
/* `call` fails with PEER, and its message contains `words`. */
#define need_peer(call, words)                                                                                         \
    do {                                                                                                               \
        remat_status got_ = (call);                                                                                    \
        need(got_ == REMAT_PEER, "status %d, %s", (int)got_, got_ ? remat_last_error() : "");                          \
        need(strstr(remat_last_error(), words), "'%s' does not contain '%s'", remat_last_error(), words);              \
    } while (0)

#define ck_ok(call)                                                                                                    \
    do {                                                                                                               \
        remat_status got_ = (call);                                                                                    \
        ck_assert_msg(got_ == REMAT_OK, "%s: %s", #call, remat_last_error());                                          \
    } while (0)
#define ck_fails(call, status, words)                                                                                  \
    do {                                                                                                               \
        remat_status got_ = (call);                                                                                    \
        ck_assert_msg(got_ == REMAT_##status, "%s: status %d, not %s: %s", #call, (int)got_, #status,                  \
                      remat_last_error());                                                                             \
        ck_assert_msg(strstr(remat_last_error(), words), "'%s' does not contain '%s'", remat_last_error(), words);     \
    } while (0)

int __lsan_do_recoverable_leak_check(void) __attribute__((weak));

static inline double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static inline void nap_ms(int ms) { usleep((useconds_t)ms * 1000); }

/* A file name that no other test uses. Removes the previous file, which a killed rank 0 leaves behind. */
static inline const char *meeting_place(void) {
    static char path[128];
    static int number;
    if (path[0]) unlink(path);
    const char *folder = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/remat-ranks-%d-%d", folder ? folder : "/tmp", (int)getpid(), number++);
    unlink(path); /* of an earlier process with the same number */
    return path;
}

typedef void rank_body(int rank, int size, rm_kv *store, void *context);

/* Zeroed memory that the test shares with the ranks that it starts later. */
static inline void *shared_page(size_t bytes) {
    void *page = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert(page != MAP_FAILED);
    return page;
}

/* Returns on all ranks once all have come: how much later than the others a process starts belongs to no test. */
static inline void await_all(rm_kv *store, int size) {
    int64_t came;
    need_ok(rm_kv_add(store, "await_all/came", 1, &came));
    if (came == size) need_ok(rm_kv_set(store, "await_all/all", "", 0));
    need_ok(rm_kv_wait(store, "await_all/all", 60000));
}

static inline void start_ranks(int size, rank_body *body, void *context, pid_t *pid) {
    const char *path = meeting_place();
    fflush(NULL);
    for (int rank = 0; rank < size; rank++) {
        pid[rank] = fork();
        ck_assert_int_ge(pid[rank], 0);
        if (pid[rank] > 0) continue;
        alarm(280);
        rm_kv *store;
        need_ok(rm_kv_open(&(rm_kv_config){.path = path, .rank = rank, .size = size, .timeout_ms = 60000}, &store));
        await_all(store, size);
        body(rank, size, store, context);
        rm_kv_close(store);
        need(!__lsan_do_recoverable_leak_check || !__lsan_do_recoverable_leak_check(), "leaks");
        _exit(0);
    }
}

/* The exit status, or 128 + signal. */
static inline int end_of(pid_t pid) {
    int status = 0;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

static inline void run_ranks(int size, rank_body *body, void *context) {
    pid_t pid[MOST_RANKS];
    int failed = 0;
    start_ranks(size, body, context, pid);
    for (int rank = 0; rank < size; rank++) failed += end_of(pid[rank]) != 0;
    ck_assert_msg(!failed, "%d of %d ranks failed; their messages are above", failed, size);
}

/* Opens a group of the engine under test, with limits that suit a test. */
static inline rm_group *open_group(const char *engine, int rank, int size, rm_kv *store) {
    rm_group *group;
    rm_group_config config = {.engine = engine, .rank = rank, .size = size, .store = store, .timeout_ms = 60000};
    need_ok(rm_group_open(&config, &group));
    return group;
}

static inline uint64_t next_random(uint64_t *state) { /* splitmix64 */
    uint64_t x = *state += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

/* Rank `who` returns when all others have called this, and they return at once, but for rank 0, whose store `who` still
 * reads. What `who` then does to the group, such as dying, cannot interrupt what they did before. Once for each store. */
static inline void let_others_finish(rm_kv *store, int rank, int size, int who) {
    char key[64];
    for (int r = 0; r < size; r++) {
        snprintf(key, sizeof key, "finished/%d", r);
        if (r != who && rank == r) need_ok(rm_kv_set(store, key, "", 0));
        if (r != who && rank == who) need_ok(rm_kv_wait(store, key, 60000));
    }
    if (rank == who) need_ok(rm_kv_set(store, "finished/all", "", 0));
    if (rank == 0) need_ok(rm_kv_wait(store, "finished/all", 60000));
}

#endif
