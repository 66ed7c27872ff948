/* by_length.c: see by_length.h. */
#include "train/data/by_length.h"

#include <stdlib.h>

#include "engine/rng.h"

enum { BUCKETS = 0xB0C4E75, TURN = -1 }; /* random keys: BUCKETS for all draws of this file, TURN for `turn` */

static int64_t size_of(const rm_by_length *o) {
    int64_t left = o->dataset->count - o->pool * RM_POOL;
    return left < RM_POOL ? left : RM_POOL;
}

/* Samples of equal length keep the sampler's order: qsort need not be stable. */
static int by_length(const void *a, const void *b) {
    const rm_long_sample *x = a, *y = b;
    if (x->length != y->length) return x->length < y->length ? -1 : 1;
    if (x->answer != y->answer) return x->answer < y->answer ? -1 : 1;
    return (x->place > y->place) - (x->place < y->place);
}

static uint32_t draw(const rm_by_length *o, int32_t of, uint32_t below) {
    return rm_random(o->seed, (uint64_t)o->epoch, BUCKETS, (uint32_t)of, (uint64_t)o->pool) % below;
}

/* The last bucket may be short. It stays last, where an epoch drops samples. A random offset in each epoch changes
 * which samples are dropped (otherwise always the longest) and how samples form batches. */
static void shuffle(rm_by_length *o) {
    int32_t whole = (int32_t)(size_of(o) / RM_BUCKET);
    for (int32_t i = 0; i < RM_POOL / RM_BUCKET; i++) o->bucket[i] = i;
    o->turn = o->shuffle ? draw(o, TURN, (uint32_t)size_of(o)) : 0;
    for (int32_t i = whole - 1; o->shuffle && i > 0; i--) {
        uint32_t k = draw(o, i, (uint32_t)i + 1);
        int32_t other = o->bucket[k];
        o->bucket[k] = o->bucket[i];
        o->bucket[i] = other;
    }
}

static void sort_pool(rm_by_length *o) {
    const rm_dataset *data = o->dataset;
    int64_t size = size_of(o);
    for (int64_t i = 0; i < size; i++) {
        int64_t sample = remat_sampler_at(o->sampler, o->pool * RM_POOL + i);
        int64_t answer = data->kind->answer_length ? data->kind->answer_length(data, sample) : 0;
        o->sorted[i] =
            (rm_long_sample){(uint32_t)sample, (int32_t)data->kind->length(data, sample), (int32_t)answer, (int32_t)i};
    }
    qsort(o->sorted, (size_t)size, sizeof *o->sorted, by_length);
    shuffle(o);
}

int64_t rm_by_length_at(rm_by_length *o, int64_t epoch, int64_t position) {
    if (epoch != o->epoch || position / RM_POOL != o->pool) {
        o->epoch = epoch;
        o->pool = position / RM_POOL;
        sort_pool(o);
    }
    int64_t within = position % RM_POOL, at = o->bucket[within / RM_BUCKET] * RM_BUCKET + within % RM_BUCKET;
    return o->sorted[(at + o->turn) % size_of(o)].sample;
}
