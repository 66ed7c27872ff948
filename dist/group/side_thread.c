/* side_thread.c: see side_thread.h. */
#include "dist/group/side_thread.h"

#include <signal.h>
#include <string.h>
#include <time.h>

void rm_side_thread_lock(rm_side_thread *side) { pthread_mutex_lock(&side->lock); }
void rm_side_thread_unlock(rm_side_thread *side) { pthread_mutex_unlock(&side->lock); }

bool rm_side_thread_doze(rm_side_thread *side, double until_s) {
    struct timespec until = {.tv_sec = (time_t)until_s};
    until.tv_nsec = (long)((until_s - (double)until.tv_sec) * 1e9);
    int late = 0;
    while (!side->ends && !late) late = pthread_cond_timedwait(&side->ending, &side->lock, &until);
    return !side->ends;
}

static void make(rm_side_thread *side) {
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&side->ending, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_mutex_init(&side->lock, NULL);
    side->ends = false;
}

static void unmake(rm_side_thread *side) {
    pthread_cond_destroy(&side->ending);
    pthread_mutex_destroy(&side->lock);
}

remat_status rm_side_thread_start(rm_side_thread *side, void *(*run)(void *), void *context, const char *job) {
    sigset_t all, before;
    make(side);
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    int error = pthread_create(&side->thread, NULL, run, context);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error) unmake(side);
    REQUIRE(!error, MEMORY, "cannot start a thread to %s: %s", job, strerror(error));
    return REMAT_OK;
}

void rm_side_thread_end(rm_side_thread *side) {
    rm_side_thread_lock(side);
    side->ends = true;
    pthread_cond_signal(&side->ending);
    rm_side_thread_unlock(side);
    pthread_join(side->thread, NULL);
    unmake(side);
}
