/* pipe.h: the ranks of a pipeline as threads of one process. Messages are copied into a queue for each pair of ranks,
 * which holds a few of them, so that a rank that sends waits for room as in a real job; or a rank that sends waits until its
 * message is received, as NCCL may. Main entry: pipe_run. */
#ifndef PIPE_H
#define PIPE_H

#include <check.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/remat.h"

enum { PIPE_MOST = 4, PIPE_ROOM = 2 };

typedef struct {
    void *data[PIPE_ROOM];
    uint64_t bytes[PIPE_ROOM];
    int64_t n_sent, n_received;
} pipe_queue;

typedef struct pipe_line {
    int size;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    pipe_queue queue[PIPE_MOST][PIPE_MOST]; /* from, to */
    int64_t messages;
    bool unbuffered; /* a rank that sends waits until its message is received */
    bool stuck;
} pipe_line;

typedef struct {
    pipe_line *line;
    remat_pipeline pipeline;
    remat_session *session;
    void (*body)(remat_session *, void *);
    void *data;
} pipe_rank;

static inline bool pipe_wait(pipe_line *line) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 20;
    if (pthread_cond_timedwait(&line->changed, &line->mutex, &until)) line->stuck = true;
    return !line->stuck;
}

static inline remat_status pipe_send(void *context, int to, const void *data, uint64_t bytes) {
    pipe_rank *rank = context;
    pipe_line *line = rank->line;
    pipe_queue *q = &line->queue[rank->pipeline.rank][to];
    pthread_mutex_lock(&line->mutex);
    while (q->n_sent - q->n_received == PIPE_ROOM && pipe_wait(line)) continue;
    int at = (int)(q->n_sent % PIPE_ROOM);
    q->data[at] = malloc(bytes);
    memcpy(q->data[at], data, bytes);
    q->bytes[at] = bytes;
    int64_t number = ++q->n_sent;
    line->messages++;
    pthread_cond_broadcast(&line->changed);
    while (line->unbuffered && q->n_received < number && pipe_wait(line)) continue;
    pthread_mutex_unlock(&line->mutex);
    return line->stuck ? REMAT_PEER : REMAT_OK;
}

static inline remat_status pipe_receive(void *context, int from, void *data, uint64_t bytes) {
    pipe_rank *rank = context;
    pipe_line *line = rank->line;
    pipe_queue *q = &line->queue[from][rank->pipeline.rank];
    pthread_mutex_lock(&line->mutex);
    while (q->n_sent == q->n_received && pipe_wait(line)) continue;
    int at = (int)(q->n_received % PIPE_ROOM);
    bool right = !line->stuck && q->bytes[at] == bytes;
    if (right) memcpy(data, q->data[at], bytes);
    if (right) free(q->data[at]);
    q->n_received += right;
    pthread_cond_broadcast(&line->changed);
    pthread_mutex_unlock(&line->mutex);
    return right ? REMAT_OK : REMAT_PEER;
}

static inline void pipe_open(pipe_line *line, pipe_rank *rank, int size, const char *cut) {
    ck_assert_int_le(size, PIPE_MOST);
    *line = (pipe_line){.size = size};
    pthread_mutex_init(&line->mutex, NULL);
    pthread_cond_init(&line->changed, NULL);
    for (int r = 0; r < size && r < PIPE_MOST; r++) {
        rank[r] = (pipe_rank){.line = line};
        rank[r].pipeline = (remat_pipeline){.struct_bytes = sizeof(remat_pipeline),
                                            .rank = r,
                                            .size = size,
                                            .cut = cut,
                                            .context = &rank[r],
                                            .send = pipe_send,
                                            .receive = pipe_receive};
    }
}

static inline void *pipe_thread(void *argument) {
    pipe_rank *rank = argument;
    rank->body(rank->session, rank->data);
    return NULL;
}

/* Runs body on every rank's session, each in a thread of its own. */
static inline void pipe_run(pipe_rank *rank, int size, void (*body)(remat_session *, void *)) {
    pthread_t thread[PIPE_MOST];
    for (int r = 0; r < size; r++) {
        rank[r].body = body;
        pthread_create(&thread[r], NULL, pipe_thread, &rank[r]);
    }
    for (int r = 0; r < size; r++) pthread_join(thread[r], NULL);
}

#endif
