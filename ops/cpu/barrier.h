/* cpu/barrier.h: a barrier for a few threads that synchronise once per timestep, microseconds apart. Each thread
 * publishes its number of arrivals in its own cache line and reads those of the others: one transfer between cores,
 * where a shared counter and a flag to release the waiters need three.
 *
 * A waiting thread spins for some tens of microseconds, then sleeps (on Linux). This matters if other programs use the
 * processors: a thread that spins through its time slice, or yields, is scheduled like one that works, and the two
 * halves of a step hardly ever run at the same time; a thread that sleeps gets its core back as soon as the other
 * arrives.
 *
 * But waking a thread takes longer than that spinning, much longer on a virtual machine. So one interruption (an
 * interrupt, a thread that transfers bytes to a disk) would make the waiting thread sleep, then the other one that
 * waits for it to wake up, and so on at every later timestep. Hence a thread whose sleeps are short spins for some
 * hundred microseconds instead. If even that fails, because another program took the core for a time slice, it stops
 * doing so for a while, twice as long each time.
 *
 * If waiting costs more than the threads gain, thread 0 releases the others: they leave at the next barrier, with all
 * work complete, and thread 0 continues alone. The balance of ops/math/parallel.h limits the loss of a call. */
#ifndef RM_CELL_BARRIER_H
#define RM_CELL_BARRIER_H

#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "memory/clock.h"
#include "ops/math/parallel.h"

enum { RM_BARRIER_THREADS = 64, RM_BARRIER_AT_ONCE = 100, RM_BARRIER_SPINS = 500, RM_BARRIER_MORE_SPINS = 7500 };
enum { RM_BARRIER_LEAST_PAUSE = 8, RM_BARRIER_MOST_PAUSE = 4096 };
#define RM_BARRIER_SHORT_SLEEP_NS 300000u
#define RM_BARRIER_NOT_LATE_NS 5000u /* the barrier itself, and slightly unequal shares */

typedef struct {
    struct {
        _Alignas(64) atomic_uint arrived; /* number of arrivals */
        atomic_uint sleepers;             /* threads that may be asleep until `arrived` changes */
        atomic_uint last;                 /* of thread 0: the barrier at which the others leave; 0: none */
        _Atomic uint64_t waited_ns;       /* time spent waiting for late threads */
    } thread[RM_BARRIER_THREADS];
    rm_region *region; /* loss limit of thread 0, and its start time */
} rm_barrier;

static inline void rm_barrier_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#ifdef __linux__
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
static inline void rm_barrier_sleep(atomic_uint *word, unsigned while_it_is) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, while_it_is, NULL, NULL, 0);
}
static inline void rm_barrier_wake(atomic_uint *word) {
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}
#else
static inline void rm_barrier_sleep(atomic_uint *word, unsigned while_it_is) {
    (void)word, (void)while_it_is, sched_yield();
}
static inline void rm_barrier_wake(atomic_uint *word) { (void)word; }
#endif

static inline bool rm_barrier_spin(atomic_uint *arrived, unsigned n, int spins) {
    while (atomic_load_explicit(arrived, memory_order_acquire) < n)
        if (--spins < 0)
            return false;
        else
            rm_barrier_pause();
    return true;
}

/* The other thread is late. After a short sleep spin longer next time; after spinning without success spin less. */
static inline void rm_barrier_wait_long(atomic_uint *arrived, atomic_uint *sleepers, unsigned n) {
    static _Thread_local int pause = RM_BARRIER_LEAST_PAUSE; /* short sleeps until longer spinning is retried */
    static _Thread_local int next_pause = RM_BARRIER_LEAST_PAUSE;
    bool more = pause <= 0;
    if (more && rm_barrier_spin(arrived, n, RM_BARRIER_MORE_SPINS)) return;
    uint64_t start_ns = rm_now_ns();
    while (atomic_load_explicit(arrived, memory_order_acquire) < n) {
        atomic_fetch_add(sleepers, 1);
        unsigned seen = atomic_load(arrived);
        if (seen < n) rm_barrier_sleep(arrived, seen);
        atomic_fetch_sub(sleepers, 1);
    }
    if (more) {
        next_pause = next_pause < RM_BARRIER_MOST_PAUSE ? 2 * next_pause : next_pause;
        pause = next_pause;
    } else if (rm_now_ns() - start_ns < RM_BARRIER_SHORT_SLEEP_NS) {
        pause--;
    }
}

/* While one thread is late, all others wait. */
static inline uint64_t rm_barrier_lost_ns(rm_barrier *barrier, int threads) {
    uint64_t sum = 0;
    for (int i = 0; i < threads; i++) sum += atomic_load_explicit(&barrier->thread[i].waited_ns, memory_order_relaxed);
    return sum / (uint64_t)(threads - 1);
}

/* Not inlined, because it is rarely called. */
static __attribute__((noinline)) void rm_barrier_late(rm_barrier *barrier, int thread, int threads, int other,
                                                      unsigned n) {
    atomic_uint *arrived = &barrier->thread[other].arrived, *sleepers = &barrier->thread[other].sleepers;
    atomic_uint *last = &barrier->thread[0].last;
    uint64_t start_ns = rm_now_ns(), now_ns;
    if (!rm_barrier_spin(arrived, n, RM_BARRIER_SPINS)) rm_barrier_wait_long(arrived, sleepers, n);
    now_ns = rm_now_ns();
    if (now_ns - start_ns < RM_BARRIER_NOT_LATE_NS) return;
    atomic_fetch_add_explicit(&barrier->thread[thread].waited_ns, now_ns - start_ns, memory_order_relaxed);
    if (thread || atomic_load_explicit(last, memory_order_relaxed)) return;
    int64_t gain = rm_region_gain(threads, now_ns - barrier->region->begin_ns, rm_barrier_lost_ns(barrier, threads));
    if (barrier->region->balance_ns + gain < 0) atomic_store_explicit(last, n + 1, memory_order_relaxed);
}

/* The n-th barrier (n = 1, 2, ...) of `threads` <= RM_BARRIER_THREADS threads, called by `thread`: writes of any thread
 * before it are visible to all after it. The barrier starts zeroed. Returns false if thread 0 continues alone and the
 * others leave. It decides that before it arrives at this barrier, so all threads see it.
 * No wake-up is lost: either the arriving thread sees the sleeper (both orders are sequentially consistent), or the
 * sleeper, which counts itself before it checks again, sees the arrival, or the kernel does. */
static inline bool rm_barrier_wait(rm_barrier *barrier, int thread, int threads, unsigned n) {
    atomic_store(&barrier->thread[thread].arrived, n);
    if (atomic_load(&barrier->thread[thread].sleepers)) rm_barrier_wake(&barrier->thread[thread].arrived);
    for (int other = 0; other < threads; other++)
        if (!rm_barrier_spin(&barrier->thread[other].arrived, n, RM_BARRIER_AT_ONCE))
            rm_barrier_late(barrier, thread, threads, other, n);
    return n != atomic_load_explicit(&barrier->thread[0].last, memory_order_relaxed);
}

#endif
