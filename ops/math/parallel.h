/* parallel.h: OpenMP without allocations, and on one thread where more would not pay off.
 *
 * libgomp allocates and frees a team for every region of ONE thread, and whenever the number of threads changes. But
 * Remat must not allocate after the first step. So every region asks for the call's full number of threads, or is not
 * opened at all.
 *
 * If other programs use the processors, too, a thread preempted by the system delays all others for a time slice, which
 * is longer than most regions. So every thread that opens regions keeps a balance of the time that its team has gained
 * and lost (parallel.c), and computes alone while the balance is negative. The results do not change: the division of
 * the work depends on the call's number of threads alone; the balance only decides which threads compute the parts. */
#ifndef RM_PARALLEL_H
#define RM_PARALLEL_H

#include <stdbool.h>
#include <stdint.h>

#include "memory/clock.h"

typedef struct rm_pace rm_pace; /* parallel.c: times of one kind of call, on one thread and on the team */

typedef struct {
    int threads;        /* to request from OpenMP; 1: open no region, compute on this thread alone */
    bool even;          /* all threads have equal work, so waiting at the end is lost time */
    uint64_t begin_ns;  /* 0: nothing is measured */
    uint64_t own_ns;    /* when thread 0 finished its own share */
    uint64_t alone_ns;  /* when thread 0 released the others to finish alone; 0: never */
    rm_pace *pace;      /* NULL: unknown kind */
    int64_t balance_ns; /* of the thread when the region began */
} rm_region;

/* A region of `threads` threads, or of one if more do not pay off now. */
rm_region rm_region_begin(int threads, bool even);
/* The same for repeated calls with equal work. `kind` is a hash of everything that their time depends on. Measured
 * times select the faster of team and single thread; the other one is retried from time to time. The first call uses
 * the team. */
rm_region rm_region_begin_like(int threads, bool even, uint64_t kind);
static inline void rm_region_own(rm_region *region) { region->own_ns = rm_now_ns(); } /* by thread 0, in the region */
/* After the region, or after computing alone. `lost_ns`: delay of thread 0's own share caused by late threads. */
void rm_region_end(const rm_region *region, uint64_t lost_ns);

/* The time that a team of `threads` has saved compared with one thread, if lost_ns of time_ns were lost. Negative: it
 * cost time. */
static inline int64_t rm_region_gain(int threads, uint64_t time_ns, uint64_t lost_ns) {
    int64_t used = lost_ns < time_ns ? (int64_t)(time_ns - lost_ns) : 0;
    return used / 10 * (7 * threads - 10) - (int64_t)lost_ns;
}

/* This thread was forked from one that had opened a region with others, and OpenMP's threads are not forked: gcc's would
 * wait for them for ever. Regions then run on this thread alone. */
bool rm_parallel_lost_team(void);

/* For tests, on this thread. Above 0: always use teams; below 0: never; 0: by the balance, which starts at 0 again. */
void rm_parallel_pretend(int worth);

/* Runs the loop in the last argument, divided evenly among `threads` if `large` is true:
 *
 *     RM_PARALLEL_FOR(call->threads, n > RM_PARALLEL_MIN,
 *                     for (int64_t i = 0; i < n; i++) y[i] = a[i] + b[i];)
 */
#define RM_PARALLEL_FOR(threads, large, ...) RM_PARALLEL_LOOP((large) ? (threads) : 1, false, __VA_ARGS__)
/* The same if all threads have equal work. */
#define RM_PARALLEL_EVEN(threads, large, ...) RM_PARALLEL_LOOP((large) ? (threads) : 1, true, __VA_ARGS__)
#define RM_PARALLEL_LOOP(n_threads, is_even, ...)                                                                      \
    do {                                                                                                               \
        rm_region rm_region_ = rm_region_begin(n_threads, is_even);                                                    \
        if (rm_region_.threads > 1) {                                                                                  \
            _Pragma("omp parallel num_threads(rm_region_.threads)") {                                                  \
                _Pragma("omp for schedule(static) nowait") __VA_ARGS__ _Pragma("omp master")                           \
                    rm_region_own(&rm_region_);                                                                        \
            }                                                                                                          \
        } else {                                                                                                       \
            __VA_ARGS__                                                                                                \
        }                                                                                                              \
        rm_region_end(&rm_region_, 0);                                                                                 \
    } while (0)

/* The same for n elements in spans: the statement handles [from, to). For loops with constants in a struct: passed by
 * value to a function that does one span, they stay in registers, and the loop is vectorised.
 *
 *     RM_PARALLEL_SPANS(u->threads, n > RM_PARALLEL_MIN, n, span(constants, from, to, x);)
 */
#define RM_PARALLEL_SPANS(threads, large, n, ...)                                                                      \
    RM_PARALLEL_EVEN(                                                                                                  \
        threads, large, for (int64_t from = 0; from < (n); from += 8192) {                                             \
            int64_t to = (n)-from < 8192 ? (n) : from + 8192;                                                          \
            __VA_ARGS__                                                                                                \
        })

#endif
