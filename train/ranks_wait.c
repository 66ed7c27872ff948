/* ranks_wait.c: see ranks_wait.h. A thread, as whoever connects, or waits to be greeted, does not look at the clock. */
#define _GNU_SOURCE
#include "train/ranks_wait.h"

#include "memory/host.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define FIRST_S 5.0 /* as in dist/roll.c */
#define SECOND_S 30.0
#define LATER_S 60.0

struct rm_ranks_wait {
    const rm_rendezvous *where;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t ending;
    bool ends; /* under the lock */
};

void rm_ranks_wait_say(int32_t rank, int32_t size, const char *sentence) {
    fprintf(stderr, "remat train: rank %d of %d: %s\n", rank, size, sentence);
}

static void say_waiting(const rm_rendezvous *where, double waited_s) {
    char text[1400], place[1100];
    if (where->meeting == RM_MEET_FILE)
        snprintf(place, sizeof place, "in %s", where->path);
    else
        snprintf(place, sizeof place, "at %s:%d", where->host, where->port);
    snprintf(text, sizeof text, "rank 0 is not %s yet, or does not answer; waiting since %.0f s; up to 300 s", place,
             waited_s);
    rm_ranks_wait_say(where->rank, where->size, text);
}

/* With the lock; true when it is over. */
static bool doze_until(rm_ranks_wait *w, struct timespec start, double after_s) {
    int late = 0;
    start.tv_sec += (time_t)after_s;
    while (!w->ends && !late) late = pthread_cond_timedwait(&w->ending, &w->lock, &start);
    return w->ends;
}

static void *speak(void *context) {
    rm_ranks_wait *w = context;
    struct timespec start;
    clock_gettime(CLOCK_REALTIME, &start);
    pthread_mutex_lock(&w->lock);
    for (double s = FIRST_S; !doze_until(w, start, s); s = s < SECOND_S ? SECOND_S : s + LATER_S)
        say_waiting(w->where, s);
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

static int start_thread(rm_ranks_wait *w) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    int error = pthread_create(&w->thread, NULL, speak, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

remat_status rm_ranks_wait_begin(const rm_rendezvous *where, rm_ranks_wait **out) {
    *out = NULL;
    if (where->rank == 0 || where->local_rank > 0 || where->meeting == RM_MEET_NOWHERE) return REMAT_OK;
    rm_ranks_wait *w = rm_calloc(1, sizeof *w);
    REQUIRE(w, MEMORY, "no memory to wait for rank 0");
    w->where = where;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->ending, NULL);
    int error = start_thread(w);
    if (error) rm_free(w);
    REQUIRE(!error, MEMORY, "no thread to tell of waiting for rank 0: %s", strerror(error));
    *out = w;
    return REMAT_OK;
}

void rm_ranks_wait_end(rm_ranks_wait *w) {
    if (!w) return;
    pthread_mutex_lock(&w->lock);
    w->ends = true;
    pthread_cond_signal(&w->ending);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->ending);
    pthread_mutex_destroy(&w->lock);
    rm_free(w);
}
