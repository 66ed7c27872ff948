/* cell/barrier.h: a barrier for threads that meet once per timestep, microseconds apart: the last to arrive flips a
 * generation the others spin on. After a while they yield, because the processor may be shared with strangers. */
#ifndef RM_CELL_BARRIER_H
#define RM_CELL_BARRIER_H

#include <sched.h>
#include <stdatomic.h>

typedef struct {
    _Alignas(64) atomic_int arrived;
    _Alignas(64) atomic_uint generation;
} rm_barrier;

static inline void rm_barrier_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

enum { RM_BARRIER_SPINS = 1000 }; /* pauses before yielding: some tens of microseconds */

/* Everything written before by any of the `threads` is visible to all after. The barrier starts zeroed. */
static inline void rm_barrier_wait(rm_barrier *barrier, int threads) {
    if (threads == 1) return;
    unsigned generation = atomic_load_explicit(&barrier->generation, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&barrier->arrived, 1, memory_order_acq_rel) == threads - 1) {
        atomic_store_explicit(&barrier->arrived, 0, memory_order_relaxed);
        atomic_store_explicit(&barrier->generation, generation + 1, memory_order_release);
        return;
    }
    for (int spins = 0; atomic_load_explicit(&barrier->generation, memory_order_acquire) == generation;)
        if (++spins < RM_BARRIER_SPINS)
            rm_barrier_pause();
        else
            sched_yield();
}

#endif
