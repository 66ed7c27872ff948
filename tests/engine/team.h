/* team.h: the ranks of a job as threads of one process, for testing a session among ranks. Their remat_ranks adds in an
 * order that can be checked by hand, at the latest allowed moment (in `wait`). It checks that pages are whole, that
 * buckets come in order and once each, and that nothing touches a bucket between reduce and wait, or between gather and
 * gathered. Values that a rank may not rely on become NaN. Main entry: team_run. */
#ifndef TEAM_H
#define TEAM_H

#define _GNU_SOURCE
#include <check.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/remat.h"

enum { TEAM_MOST = 8, TEAM_BUCKETS = 128, TEAM_CALLS = 4096 };

struct team;

typedef struct {
    struct team *team;
    int rank;
    float *copy[TEAM_BUCKETS]; /* copies of the bucket and of its parameters; NULL: no collective is running */
    int n_reduced, n_waited, n_mapped, n_unmapped, fail_at; /* fail_at: number of the failing reduce call; 0: none */
    int64_t n_calls;
    uint32_t call[TEAM_CALLS]; /* kind and bucket of every collective, the same on all ranks */
    remat_ranks ranks;
    void *data; /* for the test */
} teammate;

typedef struct team {
    int size;
    bool deterministic_world, backwards; /* backwards: rank 0 asks for the worst order of buckets */
    pthread_barrier_t barrier;
    const void *shown[TEAM_MOST];
    teammate mate[TEAM_MOST];
    void (*body)(teammate *);
} team;

/* ---- Meeting -------------------------------------------------------------------------------------------------- */

static void team_meet(team *t) { pthread_barrier_wait(&t->barrier); }

/* Every rank can read what the others show, until all ranks have called team_part. */
static void team_show(teammate *m, const void *what) {
    m->team->shown[m->rank] = what;
    team_meet(m->team);
}
static void team_part(teammate *m) { team_meet(m->team); }

enum { CALL_AGREE = 1, CALL_REDUCE, CALL_WAIT, CALL_GATHER, CALL_GATHERED, CALL_SUM };
static void team_note(teammate *m, uint32_t kind, int64_t which) {
    ck_assert_int_lt(m->n_calls, TEAM_CALLS);
    m->call[m->n_calls++] = kind << 24 | (uint32_t)which;
}

/* ---- The table ------------------------------------------------------------------------------------------------ */

static remat_status team_agree(void *context, int32_t *order, uint8_t *used, int64_t n) {
    teammate *m = context;
    team_note(m, CALL_AGREE, n);
    team_show(m, used);
    uint8_t *any = calloc((size_t)n, 1);
    for (int r = 0; r < m->team->size; r++)
        for (int64_t i = 0; i < n; i++) any[i] |= ((const uint8_t *)m->team->shown[r])[i];
    team_part(m);
    memcpy(used, any, (size_t)n);
    free(any);
    for (int64_t i = 0; i < n / 2 && m->rank == 0 && m->team->backwards; i++) {
        int32_t swapped = order[i];
        order[i] = order[n - 1 - i];
        order[n - 1 - i] = swapped;
    }
    team_show(m, order);
    if (m->rank) memcpy(order, m->team->shown[0], (size_t)n * sizeof *order);
    team_part(m);
    return REMAT_OK;
}

static remat_status team_map(void *context, void *address, uint64_t bytes) {
    teammate *m = context;
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    ck_assert_uint_eq((uintptr_t)address % page, 0);
    ck_assert_uint_eq(bytes % page, 0);
    void *got = mmap(address, bytes, PROT_READ | PROT_WRITE, MAP_FIXED | MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_eq(got, address);
    m->n_mapped++;
    return REMAT_OK;
}

static void team_unmap(void *context, void *address) {
    (void)address;
    ((teammate *)context)->n_unmapped++;
}

static float *team_copy(const remat_bucket *bucket, const float *from) {
    float *copy = malloc((size_t)bucket->count * sizeof *copy);
    memcpy(copy, from, (size_t)bucket->count * sizeof *copy);
    return copy;
}

static remat_status team_reduce(void *context, const remat_bucket *bucket) {
    teammate *m = context;
    team_note(m, CALL_REDUCE, bucket->index);
    ck_assert_int_lt(bucket->index, TEAM_BUCKETS);
    ck_assert_ptr_null(m->copy[bucket->index]);
    ck_assert_int_eq(bucket->count % (16 * m->team->size), 0);
    m->n_reduced++;
    if (m->n_reduced == m->fail_at) return REMAT_PEER;
    m->copy[bucket->index] = team_copy(bucket, bucket->gradients);
    return REMAT_OK;
}

static float team_mean(const team *t, int64_t i) {
    volatile float term[TEAM_MOST]; /* volatile: rounded after every operation */
    float share = 1.0f / (float)t->size;
    for (int r = 0; r < t->size; r++) term[r] = ((const float *)t->shown[r])[i] * share;
    if (t->deterministic_world)
        for (int w = t->size / 2; w; w /= 2)
            for (int r = 0; r < w; r++) term[r] += term[r + w];
    for (int r = 1; r < t->size && !t->deterministic_world; r++) term[0] += term[r];
    return term[0];
}

static bool team_owns(const teammate *m, const remat_bucket *bucket, int64_t i) {
    return i / (bucket->count / m->team->size) == m->rank;
}

static remat_status team_wait(void *context, const remat_bucket *bucket) {
    teammate *m = context;
    team_note(m, CALL_WAIT, bucket->index);
    float *copy = m->copy[bucket->index];
    ck_assert_ptr_nonnull(copy);
    ck_assert_msg(!memcmp(copy, bucket->gradients, (size_t)bucket->count * sizeof *copy),
                  "bucket %d was touched between reduce and wait", bucket->index);
    team_show(m, copy);
    for (int64_t i = 0; i < bucket->count; i++) {
        bool given = !m->ranks.shard_optimizer || team_owns(m, bucket, i);
        bucket->gradients[i] = given ? team_mean(m->team, i) : NAN;
    }
    team_part(m);
    free(copy);
    m->copy[bucket->index] = NULL;
    m->n_waited++;
    return REMAT_OK;
}

/* This rank's update does not change the other ranks' parts, and nothing changes until `gathered`. */
static remat_status team_gather(void *context, const remat_bucket *bucket) {
    teammate *m = context;
    team_note(m, CALL_GATHER, bucket->index);
    ck_assert_ptr_null(m->copy[bucket->index]);
    m->copy[bucket->index] = team_copy(bucket, bucket->parameters);
    return REMAT_OK;
}

static remat_status team_gathered(void *context, const remat_bucket *bucket) {
    teammate *m = context;
    team_note(m, CALL_GATHERED, bucket->index);
    float *copy = m->copy[bucket->index];
    ck_assert_ptr_nonnull(copy);
    ck_assert_msg(!memcmp(copy, bucket->parameters, (size_t)bucket->count * sizeof *copy),
                  "parameters of bucket %d were touched between gather and gathered", bucket->index);
    team_show(m, copy);
    int64_t part = bucket->count / m->team->size;
    for (int64_t i = 0; i < bucket->count; i++) bucket->parameters[i] = ((const float *)m->team->shown[i / part])[i];
    team_part(m);
    free(copy);
    m->copy[bucket->index] = NULL;
    return REMAT_OK;
}

static remat_status team_sum(void *context, double *values, int64_t count) {
    teammate *m = context;
    team_note(m, CALL_SUM, count);
    double *sum = calloc((size_t)count, sizeof *sum);
    team_show(m, values);
    for (int r = 0; r < m->team->size; r++)
        for (int64_t i = 0; i < count; i++) sum[i] += ((const double *)m->team->shown[r])[i];
    team_part(m);
    memcpy(values, sum, (size_t)count * sizeof *sum);
    free(sum);
    return REMAT_OK;
}

/* ---- Running -------------------------------------------------------------------------------------------------- */

static void *team_thread(void *mate) {
    teammate *m = mate;
    m->team->body(m);
    return NULL;
}

/* Runs `body` once per rank, each in its own thread, with a ranks table filled in like `like`. `how` gives size,
 * deterministic_world and other settings. */
static void team_run(const team *how, const remat_ranks *like, void (*body)(teammate *), void *const *data) {
    static team t; /* large */
    t = *how;
    t.body = body;
    int size = t.size;
    pthread_barrier_init(&t.barrier, NULL, (unsigned)size);
    pthread_t thread[TEAM_MOST];
    for (int r = 0; r < size; r++) {
        teammate *m = &t.mate[r];
        *m = (teammate){.team = &t, .rank = r, .ranks = *like, .data = data ? data[r] : NULL};
        m->ranks.struct_bytes = sizeof m->ranks;
        m->ranks.context = m;
        m->ranks.rank = r;
        m->ranks.size = size;
        m->ranks.agree = team_agree, m->ranks.map = team_map, m->ranks.unmap = team_unmap;
        m->ranks.reduce = team_reduce, m->ranks.wait = team_wait, m->ranks.sum = team_sum;
        m->ranks.gather = team_gather, m->ranks.gathered = team_gathered;
        ck_assert_int_eq(pthread_create(&thread[r], NULL, team_thread, m), 0);
    }
    for (int r = 0; r < size; r++) pthread_join(thread[r], NULL);
    for (int r = 0; r < size; r++) {
        const teammate *m = &t.mate[r];
        ck_assert_int_eq(m->n_unmapped, m->n_mapped);
        ck_assert_int_eq(m->n_calls, t.mate[0].n_calls);
        ck_assert_msg(!memcmp(m->call, t.mate[0].call, (size_t)m->n_calls * sizeof *m->call),
                      "rank %d issued different collectives than rank 0, or in a different order", r);
    }
    pthread_barrier_destroy(&t.barrier);
}

#endif
