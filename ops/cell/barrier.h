/* cell/barrier.h: a barrier for a few threads that meet once per timestep, microseconds apart. Each thread publishes how
 * often it has arrived, in a cache line of its own, and reads the others': one transfer between cores, where a shared
 * counter and a flag to release the waiters need three.
 *
 * Waiting spins for some tens of microseconds, then sleeps (on Linux). Where strangers share the processor this matters:
 * a thread that spins through its time slice, or yields, is scheduled like one that works, and the two halves of a step
 * hardly ever run at the same time; one that sleeps is given its core back as soon as the other arrives. */
#ifndef RM_CELL_BARRIER_H
#define RM_CELL_BARRIER_H

#include <sched.h>
#include <stdatomic.h>

enum { RM_BARRIER_THREADS = 64, RM_BARRIER_SPINS = 500 };

typedef struct {
    struct {
        _Alignas(64) atomic_uint arrived; /* how often */
        atomic_uint sleepers;             /* threads that may be asleep until `arrived` changes */
    } thread[RM_BARRIER_THREADS];
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

/* The n-th meeting (n = 1, 2, ...) of `threads` <= RM_BARRIER_THREADS, of which this is `thread`: what any of them wrote
 * before it is visible to all after it. The barrier starts zeroed.
 * No wake-up is lost: either the arriving thread sees the sleeper (both orders are sequentially consistent), or the
 * sleeper, which counts itself before it looks again, sees the arrival, or the kernel does. */
static inline void rm_barrier_wait(rm_barrier *barrier, int thread, int threads, unsigned n) {
    atomic_store(&barrier->thread[thread].arrived, n);
    if (atomic_load(&barrier->thread[thread].sleepers)) rm_barrier_wake(&barrier->thread[thread].arrived);
    for (int other = 0; other < threads; other++) {
        atomic_uint *arrived = &barrier->thread[other].arrived, *sleepers = &barrier->thread[other].sleepers;
        int spins = 0;
        while (atomic_load_explicit(arrived, memory_order_acquire) < n && ++spins < RM_BARRIER_SPINS)
            rm_barrier_pause();
        while (atomic_load_explicit(arrived, memory_order_acquire) < n) {
            atomic_fetch_add(sleepers, 1);
            unsigned seen = atomic_load(arrived);
            if (seen < n) rm_barrier_sleep(arrived, seen);
            atomic_fetch_sub(sleepers, 1);
        }
    }
}

#endif
