/* parallel.h: OpenMP without allocations, and without threads where they cost more than they bring.
 *
 * libgomp allocates and frees a team for every region of ONE thread, and anew whenever the number of threads changes; after the first
 * step Remat allocates nothing. So every region asks for the call's full number of threads, or is not opened at all.
 *
 * Where other programs use the processors, too, a thread that the system has put aside holds up all others for a time slice, which is
 * longer than most regions. So every thread that opens regions keeps an account of the time that its team has gained and lost
 * (parallel.c), and computes alone while the account is in debt. What is computed does not change: how work is cut depends on
 * the call's number of threads, and only who computes the parts depends on the account. */
#ifndef RM_PARALLEL_H
#define RM_PARALLEL_H

#include <stdbool.h>
#include <stdint.h>

#include "memory/clock.h"

typedef struct rm_pace rm_pace; /* parallel.c: how long calls of one kind take, alone and together */

typedef struct {
    int threads;        /* to ask OpenMP for; 1: open no region, and compute alone */
    bool even;          /* all threads have as much to do, so that a wait at the end is time lost */
    uint64_t begin_ns;  /* 0: nothing is measured */
    uint64_t own_ns;    /* when the thread that opened it had done its own share */
    uint64_t alone_ns;  /* since when it has computed alone, the others having been sent away; 0: never */
    rm_pace *pace;      /* NULL: its kind is not known */
    int64_t balance_ns; /* of the account when it began */
} rm_region;

/* Of `threads`, if they are worth it now. */
rm_region rm_region_begin(int threads, bool even);
/* The same for calls that come again and again, all with as much to do: a hash of all that their time depends on. The faster way is chosen
 * by their times, and the other tried at times. The first is made together. */
rm_region rm_region_begin_like(int threads, bool even, uint64_t kind);
static inline void rm_region_own(rm_region *region) { region->own_ns = rm_now_ns(); } /* by thread 0, in the region */
/* After the region, or what was computed alone. `lost_ns`: what thread 0's own share took longer because others were late. */
void rm_region_end(const rm_region *region, uint64_t lost_ns);

/* What a team of `threads` has gained over one thread, in a time of which some is lost. Below 0: it has cost so much. */
static inline int64_t rm_region_gain(int threads, uint64_t time_ns, uint64_t lost_ns) {
    int64_t used = lost_ns < time_ns ? (int64_t)(time_ns - lost_ns) : 0;
    return used / 10 * (7 * threads - 10) - (int64_t)lost_ns;
}

/* For tests, on this thread: above 0 teams are always worth it, below 0 never; 0: by the account, which starts afresh. */
void rm_parallel_pretend(int worth);

/* The loop given as the last argument, cut evenly among `threads` where `large` says it is worth waking them:
 *
 *     RM_PARALLEL_FOR(call->threads, n > RM_PARALLEL_MIN,
 *                     for (int64_t i = 0; i < n; i++) y[i] = a[i] + b[i];)
 */
#define RM_PARALLEL_FOR(threads, large, ...) RM_PARALLEL_LOOP((large) ? (threads) : 1, false, __VA_ARGS__)
/* The same where all threads have as much to do. */
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

/* The same for n elements, in spans: the statement is about [from, to). For loops whose constants come in a struct: given by
 * value to a function that does one span, they stay in registers, and the loop becomes vector code.
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
