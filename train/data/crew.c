/* crew.c: see crew.h. */
#include "train/data/crew.h"

#include "memory/host.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

struct rm_crew {
    pthread_mutex_t lock; /* of all below */
    pthread_cond_t work, done;
    rm_crew_job *job;
    void *context;
    int64_t count, next, busy; /* items; the next to be begun; those under way */
    int64_t failed;            /* the first item that failed; count: none */
    remat_status status;
    char sentence[1024];
    bool ends;
    int64_t n_threads;
    pthread_t thread[];
};

static void note_failure(rm_crew *crew, int64_t item, remat_status status) {
    if (item >= crew->failed) return;
    crew->failed = item;
    crew->status = status;
    snprintf(crew->sentence, sizeof crew->sentence, "%s", remat_last_error());
}

/* With the lock, but while it works. */
static void do_item(rm_crew *crew) {
    int64_t item = crew->next++;
    crew->busy++;
    pthread_mutex_unlock(&crew->lock);
    remat_status status = crew->job(crew->context, item);
    pthread_mutex_lock(&crew->lock);
    crew->busy--;
    if (status) note_failure(crew, item, status);
    if (!crew->busy && crew->next == crew->count) pthread_cond_signal(&crew->done);
}

static void *work(void *context) {
    rm_crew *crew = context;
    pthread_mutex_lock(&crew->lock);
    while (!crew->ends) {
        if (crew->next < crew->count)
            do_item(crew);
        else
            pthread_cond_wait(&crew->work, &crew->lock);
    }
    pthread_mutex_unlock(&crew->lock);
    return NULL;
}

/* Signals are the main thread's. */
static int start_threads(rm_crew *crew, int64_t threads) {
    sigset_t all, before;
    int error = 0;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    while (!error && crew->n_threads < threads) {
        error = pthread_create(&crew->thread[crew->n_threads], NULL, work, crew);
        crew->n_threads += !error;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

remat_status rm_crew_create(int64_t threads, rm_crew **out) {
    rm_crew *crew = rm_calloc(1, sizeof *crew + (size_t)threads * sizeof(pthread_t));
    *out = crew;
    REQUIRE(crew, MEMORY, "no memory for %lld threads", (long long)threads);
    pthread_mutex_init(&crew->lock, NULL);
    pthread_cond_init(&crew->work, NULL);
    pthread_cond_init(&crew->done, NULL);
    int error = start_threads(crew, threads);
    if (!error) return REMAT_OK;
    rm_crew_free(crew);
    *out = NULL;
    FAIL(MEMORY, "no more threads for --loader-threads=%lld: %s: make it smaller", (long long)threads, strerror(error));
}

void rm_crew_start(rm_crew *crew, rm_crew_job *job, void *context, int64_t count) {
    pthread_mutex_lock(&crew->lock);
    crew->job = job;
    crew->context = context;
    crew->next = 0;
    crew->count = crew->failed = count;
    crew->status = REMAT_OK;
    pthread_cond_broadcast(&crew->work);
    pthread_mutex_unlock(&crew->lock);
}

static void wait_until_done(rm_crew *crew) {
    pthread_mutex_lock(&crew->lock);
    while (crew->busy || crew->next < crew->count) pthread_cond_wait(&crew->done, &crew->lock);
    pthread_mutex_unlock(&crew->lock);
}

remat_status rm_crew_wait(rm_crew *crew) {
    wait_until_done(crew);
    return crew->status ? rm_fail(crew->status, "%s", crew->sentence) : REMAT_OK;
}

void rm_crew_free(rm_crew *crew) {
    if (!crew) return;
    wait_until_done(crew); /* whatever failed, nobody asks any more */
    pthread_mutex_lock(&crew->lock);
    crew->ends = true;
    pthread_cond_broadcast(&crew->work);
    pthread_mutex_unlock(&crew->lock);
    for (int64_t i = 0; i < crew->n_threads; i++) pthread_join(crew->thread[i], NULL);
    pthread_cond_destroy(&crew->done);
    pthread_cond_destroy(&crew->work);
    pthread_mutex_destroy(&crew->lock);
    rm_free(crew);
}
