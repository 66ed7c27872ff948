/* shard_jobs.h: jobs whose ranks are sessions of this process, and the training states that they save together. */
#ifndef SHARD_JOBS_H
#define SHARD_JOBS_H

#include "train/run/setup.h"

#include "tests/train/train_test.h"

#include <pthread.h>

#define FLAGS "--task=copy --seq-len=21 --batch=2 --hidden=9 --layers=2 --samples=99 --threads=1 "

/* ---- A job: its ranks are sessions of this process, each with its own thread during a save ---- */

enum { MOST = 7 };

typedef struct {
    rm_options options;
    rm_dataset *dataset;
    int size;
    bool sharded;
    remat_session *session[MOST];
    rm_state_store store[MOST];
    /* Meeting. */
    pthread_barrier_t barrier;
    pthread_mutex_t lock;
    remat_status failed;
    int meetings;
    double sum[2 * MOST + 8];    /* sizes and checksums: model, shards, carried states, tokenizer, average */
    void (*before)(int meeting); /* rank 0 calls it after a meeting */
    /* Results of the last save. */
    remat_status status[MOST];
    char sentence[MOST][RM_PATH_BYTES];
} job;

typedef struct {
    job *job;
    int rank;
} member;

static member members[MOST];

static inline remat_status meet(void *context, remat_status mine, double *values, int64_t count) {
    const member *m = context;
    job *j = m->job;
    pthread_mutex_lock(&j->lock);
    if (mine && !j->failed) j->failed = mine;
    for (int64_t i = 0; i < count; i++) j->sum[i] += values[i];
    pthread_mutex_unlock(&j->lock);
    pthread_barrier_wait(&j->barrier);
    remat_status all = j->failed;
    memcpy(values ? values : (double[1]){0}, j->sum, (size_t)count * sizeof *values);
    pthread_barrier_wait(&j->barrier);
    if (m->rank == 0) {
        j->failed = REMAT_OK;
        memset(j->sum, 0, sizeof j->sum);
        j->meetings++;
        if (j->before) j->before(j->meetings);
    }
    pthread_barrier_wait(&j->barrier);
    return mine ? mine : all ? rm_fail(all, "%s", "") : REMAT_OK;
}

/* ---- Stand-ins for ranks ---- */

static inline remat_status no_bucket(void *context, const remat_bucket *bucket) {
    (void)context, (void)bucket;
    return REMAT_OK;
}

static inline remat_status no_sum(void *context, double *values, int64_t count) {
    (void)context, (void)values, (void)count;
    return REMAT_OK;
}

static inline remat_session *create_session(job *j, int rank) {
    rm_model_spec spec;
    rm_model model;
    remat_session *session;
    remat_ranks ranks = {.struct_bytes = sizeof ranks,
                         .rank = rank,
                         .size = j->size,
                         .first_bucket_bytes = 300,
                         .bucket_bytes = 700,
                         .shard_optimizer = j->sharded,
                         .reduce = no_bucket,
                         .wait = no_bucket,
                         .gather = no_bucket,
                         .gathered = no_bucket,
                         .sum = no_sum};
    remat_config config = rm_setup_training_config(&j->options);
    if (j->size > 1) config.ranks = &ranks;
    ck_ok(rm_setup_spec(&j->options, j->dataset, &spec));
    ck_ok(rm_model_build(&spec, j->options.order.batch, true, &model));
    ck_ok(remat_session_create(model.graph, model.loss, &config, &session));
    rm_model_free(&model);
    return session;
}

static inline job *open_job(int size, bool sharded, const char *flags) {
    static char copy[512], *argv[20];
    int argc = 0;
    job *j = calloc(1, sizeof *j);
    ck_assert_ptr_nonnull(j);
    j->size = size;
    j->sharded = sharded && size > 1;
    strcpy(copy, flags);
    for (char *word = strtok(copy, " "); word; word = strtok(NULL, " ")) argv[argc++] = word;
    ck_ok(rm_options_parse(&j->options, RM_TRAIN, argc, argv));
    ck_ok(rm_setup_dataset(&j->options, &j->dataset));
    for (int r = 0; r < size; r++) j->session[r] = create_session(j, r);
    pthread_barrier_init(&j->barrier, NULL, (unsigned)size);
    pthread_mutex_init(&j->lock, NULL);
    return j;
}

static inline void close_job(job *j) {
    for (int r = 0; r < j->size; r++) remat_session_free(j->session[r]);
    rm_dataset_close(j->dataset);
    rm_options_free(&j->options);
    pthread_barrier_destroy(&j->barrier);
    pthread_mutex_destroy(&j->lock);
    free(j);
}

static const char *save_to;

static const rm_state_point saved_point = {.step = 12, .epoch = 3, .consumed = 31, .samples = 99, .last_lr = 0.1};

static inline void *save_rank(void *context) {
    member *m = context;
    job *j = m->job;
    int r = m->rank;
    rm_state_ranks ranks = {r, j->size, r, j->size, 0, 1, j->sharded, m, meet};
    remat_status status = rm_state_store_open(save_to, 0, saved_point.step, &ranks, &j->store[r]);
    if (!status) status = rm_state_save(&j->store[r], j->session[r], &j->options, saved_point);
    j->status[r] = status;
    snprintf(j->sentence[r], sizeof j->sentence[r], "%s", status ? remat_last_error() : "");
    rm_state_store_close(&j->store[r]);
    return NULL;
}

static inline void save_job(job *j, const char *directory) {
    pthread_t thread[MOST];
    save_to = directory;
    j->meetings = 0;
    for (int r = 0; r < j->size; r++) members[r] = (member){j, r};
    for (int r = 1; r < j->size; r++) ck_assert_int_eq(pthread_create(&thread[r], NULL, save_rank, &members[r]), 0);
    save_rank(&members[0]);
    for (int r = 1; r < j->size; r++) pthread_join(thread[r], NULL);
}

/* ---- Contents of arrays: a distinct number for each element ---- */

static inline float value_of(remat_kind kind, int64_t array, int64_t element) {
    return (float)(kind * 1000003 + array * 10007 + element);
}

static inline float *buffer_of(const remat_array *array) {
    float *buffer = malloc(array->bytes + 1);
    ck_assert_ptr_nonnull(buffer);
    return buffer;
}

static inline void fill_session(remat_session *s, remat_kind kind, float times) {
    for (int64_t i = 0; i < remat_count(s, kind); i++) {
        remat_array array;
        ck_ok(remat_array_info(s, kind, i, &array));
        float *buffer = buffer_of(&array);
        for (int64_t e = 0; e < array.count; e++) buffer[e] = times * value_of(kind, i, array.first + e);
        ck_ok(remat_write(s, kind, i, buffer, array.bytes));
        free(buffer);
    }
}

/* The number of elements that it holds. All must have the values of fill_session. */
static inline int64_t check_filled(remat_session *s, remat_kind kind, float times) {
    int64_t held = 0;
    for (int64_t i = 0; i < remat_count(s, kind); i++) {
        remat_array array;
        ck_ok(remat_array_info(s, kind, i, &array));
        float *buffer = buffer_of(&array);
        ck_ok(remat_read(s, kind, i, buffer, array.bytes));
        for (int64_t e = 0; e < array.count; e++)
            ck_assert_msg(buffer[e] == times * value_of(kind, i, array.first + e), "%s[%lld] is %g", array.name,
                          (long long)(array.first + e), (double)buffer[e]);
        held += array.count;
        free(buffer);
    }
    return held;
}

static inline void fill_job(job *j, float times) {
    for (int r = 0; r < j->size; r++) {
        fill_session(j->session[r], REMAT_PARAM, times);
        fill_session(j->session[r], REMAT_OPTIMIZER, times);
    }
}

static inline void saved_ok(job *j) {
    for (int r = 0; r < j->size; r++) ck_assert_msg(!j->status[r], "rank %d: %s", r, j->sentence[r]);
}

#endif
