/* side_thread.h: a thread beside the main one that dozes, looks at something, and dozes again until it is told to end.
 *
 *     static void *run(void *context) {
 *         rm_side_thread_lock(&w->side);
 *         while (rm_side_thread_doze(&w->side, now + 0.5)) ...;   // false: it is to end
 *         rm_side_thread_unlock(&w->side);
 *     }
 *
 * The lock may guard what the two share besides. Deadlines are seconds of CLOCK_MONOTONIC, the clock that nobody can set back: by the wall's, a
 * thread that gives signs of life would sleep for as long as that was. Signals are for the main thread. */
#ifndef RM_SIDE_THREAD_H
#define RM_SIDE_THREAD_H

#include "engine/status.h"

#include <pthread.h>

/* Must not move from start to end. */
typedef struct {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t ending;
    bool ends; /* under the lock */
} rm_side_thread;

/* `job` names it in a sentence: "no thread to JOB: ...". After a failure there is nothing to end. */
remat_status rm_side_thread_start(rm_side_thread *side, void *(*run)(void *), void *context, const char *job);
void rm_side_thread_end(rm_side_thread *side); /* and waits until it has */

void rm_side_thread_lock(rm_side_thread *side);
void rm_side_thread_unlock(rm_side_thread *side);
/* With the lock, which is free meanwhile. True when the time has come; false when it is to end, at once. */
bool rm_side_thread_doze(rm_side_thread *side, double until_s);

#endif
