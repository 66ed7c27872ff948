/* side_thread.h: a helper thread that sleeps, does something, and sleeps again until it is told to end.
 *
 *     static void *run(void *context) {
 *         rm_side_thread_lock(&w->side);
 *         while (rm_side_thread_doze(&w->side, now + 0.5)) ...;   // false: it is to end
 *         rm_side_thread_unlock(&w->side);
 *     }
 *
 * The lock may also protect data that the thread shares with others. Deadlines are seconds of CLOCK_MONOTONIC, which
 * nobody can set back: a heartbeat thread must not stall because the wall clock was changed. Signals are blocked: they
 * are for the main thread. */
#ifndef RM_SIDE_THREAD_H
#define RM_SIDE_THREAD_H

#include "engine/status.h"

#include <pthread.h>

/* Must not be moved between start and end. */
typedef struct {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t ending;
    bool ends; /* protected by the lock */
} rm_side_thread;

/* `job` describes the thread in an error: "cannot start a thread to JOB: ...". After a failure, rm_side_thread_end does
 * nothing. */
remat_status rm_side_thread_start(rm_side_thread *side, void *(*run)(void *), void *context, const char *job);
void rm_side_thread_end(rm_side_thread *side); /* waits until the thread has ended */

void rm_side_thread_lock(rm_side_thread *side);
void rm_side_thread_unlock(rm_side_thread *side);
/* The caller holds the lock, which is released meanwhile. Returns true when the time has come, and false at once when
 * the thread is to end. */
bool rm_side_thread_doze(rm_side_thread *side, double until_s);

#endif
