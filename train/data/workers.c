/* workers.c: see workers.h. */
#include "train/data/workers.h"

#include "memory/host.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

struct rm_workers {
    pthread_mutex_t lock; /* protects all members below */
    pthread_cond_t work, done;
    rm_workers_job *job;
    void *context;
    int64_t count, next, busy; /* items; the next item to start; running items */
    int64_t failed;            /* the lowest failed item; count: none */
    remat_status status;
    char sentence[1024];
    bool ends;
    int64_t n_threads;
    pthread_t thread[];
};

static void note_failure(rm_workers *workers, int64_t item, remat_status status) {
    if (item >= workers->failed) return;
    workers->failed = item;
    workers->status = status;
    snprintf(workers->sentence, sizeof workers->sentence, "%s", remat_last_error());
}

/* Called with the lock; releases it while the job runs. */
static void do_item(rm_workers *workers) {
    int64_t item = workers->next++;
    workers->busy++;
    pthread_mutex_unlock(&workers->lock);
    remat_status status = workers->job(workers->context, item);
    pthread_mutex_lock(&workers->lock);
    workers->busy--;
    if (status) note_failure(workers, item, status);
    if (!workers->busy && workers->next == workers->count) pthread_cond_signal(&workers->done);
}

static void *work(void *context) {
    rm_workers *workers = context;
    pthread_mutex_lock(&workers->lock);
    while (!workers->ends) {
        if (workers->next < workers->count)
            do_item(workers);
        else
            pthread_cond_wait(&workers->work, &workers->lock);
    }
    pthread_mutex_unlock(&workers->lock);
    return NULL;
}

/* Blocks all signals, because the main thread handles them. */
static int start_threads(rm_workers *workers, int64_t threads) {
    sigset_t all, before;
    int error = 0;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    while (!error && workers->n_threads < threads) {
        error = pthread_create(&workers->thread[workers->n_threads], NULL, work, workers);
        workers->n_threads += !error;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

remat_status rm_workers_create(int64_t threads, rm_workers **out) {
    rm_workers *workers = rm_calloc(1, sizeof *workers + (size_t)threads * sizeof(pthread_t));
    *out = workers;
    REQUIRE(workers, MEMORY, "no memory for %lld threads", (long long)threads);
    pthread_mutex_init(&workers->lock, NULL);
    pthread_cond_init(&workers->work, NULL);
    pthread_cond_init(&workers->done, NULL);
    int error = start_threads(workers, threads);
    if (!error) return REMAT_OK;
    rm_workers_free(workers);
    *out = NULL;
    FAIL(MEMORY, "cannot create threads for --loader-threads=%lld: %s: reduce it", (long long)threads, strerror(error));
}

void rm_workers_start(rm_workers *workers, rm_workers_job *job, void *context, int64_t count) {
    pthread_mutex_lock(&workers->lock);
    workers->job = job;
    workers->context = context;
    workers->next = 0;
    workers->count = workers->failed = count;
    workers->status = REMAT_OK;
    pthread_cond_broadcast(&workers->work);
    pthread_mutex_unlock(&workers->lock);
}

static void wait_until_done(rm_workers *workers) {
    pthread_mutex_lock(&workers->lock);
    while (workers->busy || workers->next < workers->count) pthread_cond_wait(&workers->done, &workers->lock);
    pthread_mutex_unlock(&workers->lock);
}

remat_status rm_workers_wait(rm_workers *workers) {
    wait_until_done(workers);
    return workers->status ? rm_fail(workers->status, "%s", workers->sentence) : REMAT_OK;
}

void rm_workers_free(rm_workers *workers) {
    if (!workers) return;
    wait_until_done(workers); /* ignores failures */
    pthread_mutex_lock(&workers->lock);
    workers->ends = true;
    pthread_cond_broadcast(&workers->work);
    pthread_mutex_unlock(&workers->lock);
    for (int64_t i = 0; i < workers->n_threads; i++) pthread_join(workers->thread[i], NULL);
    pthread_cond_destroy(&workers->done);
    pthread_cond_destroy(&workers->work);
    pthread_mutex_destroy(&workers->lock);
    rm_free(workers);
}

remat_status rm_workers_run(int64_t threads, rm_workers_job *job, void *context, int64_t count) {
    rm_workers *workers;
    TRY(rm_workers_create(threads > 1 ? threads : 1, &workers));
    rm_workers_start(workers, job, context, count);
    remat_status status = rm_workers_wait(workers);
    rm_workers_free(workers);
    return status;
}
