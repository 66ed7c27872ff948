/* loader.c: see loader.h. */
#include "train/data/loader.h"

#include "memory/host.h"

#include <stdio.h>

/* ---- An epoch --------------------------------------------------------------------------------------------------- */

/* The end of the epoch, counted like `consumed`. With `pad`, the remaining samples are padded to a multiple of the
 * ranks (or shards). Unless a run was resumed elsewhere than at such a multiple, DistributedSampler does the same. */
static int64_t end_of_epoch(const rm_loader *l, int64_t consumed) {
    int64_t ranks = l->config.shards ? l->config.shards : l->config.size;
    if (!l->config.pad) return l->samples;
    return consumed + (l->samples - consumed + ranks - 1) / ranks * ranks;
}

static int64_t left_in_epoch(const rm_loader *l, int64_t consumed) {
    return (end_of_epoch(l, consumed) - consumed) / l->global;
}

int64_t rm_loader_left(const rm_loader *l, int64_t epochs) {
    int64_t whole, left;
    if (l->epoch >= epochs) return 0;
    bool endless = __builtin_mul_overflow(epochs - l->epoch - 1, l->per_epoch, &whole) ||
                   __builtin_add_overflow(whole, left_in_epoch(l, l->consumed), &left);
    return endless ? INT64_MAX / 2 : left;
}

/* ---- Who has what ----------------------------------------------------------------------------------------------- */

/* The position of micro step t's i-th sample in the global batch. */
static int64_t place_of(const rm_loader *l, int64_t t, int64_t i) {
    const rm_loader_config *c = &l->config;
    if (!c->shards) return t * c->size * c->batch + c->rank + c->size * i;
    return c->rank + c->size * (remat_micro_shard(t, c->micro_steps, true) + c->micro_steps * i);
}

/* The position of row i's sample in micro step t. Rows of all ranks are numbered together. */
static int64_t place_in_stream(const rm_loader *l, int64_t t, int64_t i) {
    const rm_loader_config *c = &l->config;
    int64_t row = c->rank + c->size * i, length = l->samples / (c->size * c->batch);
    return row * length + l->filling.consumed / l->global * c->micro_steps + t;
}

/* Padding repeats samples from the start of the epoch. */
static int64_t sample_of(const rm_loader *l, int64_t t, int64_t i) {
    if (l->config.stateful) return place_in_stream(l, t, i);
    int64_t position = (l->filling.consumed + place_of(l, t, i)) % l->samples;
    if (l->by_length) return rm_by_length_at(l->by_length, l->filling.epoch, position);
    return remat_sampler_at(l->sampler, position);
}

/* ---- The loader ------------------------------------------------------------------------------------------------- */

static remat_status check_config(const rm_loader_config *c) {
    REQUIRE(c->rank >= 0 && c->rank < c->size, INVALID, "rank %lld of %lld does not exist", (long long)c->rank,
            (long long)c->size);
    REQUIRE(!c->shards || c->shards == c->size * c->micro_steps, INVALID,
            "%lld shards cannot be divided among %lld ranks with %lld micro steps each", (long long)c->shards,
            (long long)c->size, (long long)c->micro_steps);
    REQUIRE(!c->shards || c->batch % c->micro_steps == 0, INVALID,
            "--batch=%lld cannot be divided into the %lld shards of each of %lld ranks: make it a multiple of "
            "%lld",
            (long long)c->batch, (long long)c->micro_steps, (long long)c->size, (long long)c->micro_steps);
    return REMAT_OK;
}

static remat_status too_few(const rm_loader *l, const rm_dataset *dataset) {
    const rm_loader_config *c = &l->config;
    char share[128] = "";
    if (l->global != c->batch)
        snprintf(share, sizeof share, " on %lld ranks, %lld micro step%s each: %lld", (long long)c->size,
                 (long long)c->micro_steps, c->micro_steps == 1 ? "" : "s", (long long)l->global);
    const bool text = (dataset->whole ? dataset->whole : dataset)->drawn_from;
    const char *what = dataset->shape.height > 1 ? "image" : "sample", *s = l->samples == 1 ? "" : "s";
    REQUIRE(text, INVALID, "the data has %lld %s%s, fewer than --batch=%lld%s: give more %ss, or a smaller --batch",
            (long long)l->samples, what, s, (long long)c->batch, share, what);
    FAIL(INVALID,
         "the data has %lld sample%s of %lld timesteps, fewer than --batch=%lld%s: give more data, or a smaller "
         "--batch or --seq-len",
         (long long)l->samples, s, (long long)dataset->shape.timesteps, (long long)c->batch, share);
}

static remat_status open_by_length(rm_loader *l, const rm_dataset *dataset) {
    REQUIRE(dataset->kind->length, INVALID,
            "--bucket-by-length needs samples of different lengths: add --lengths=FILE");
    l->by_length = rm_malloc(sizeof *l->by_length);
    REQUIRE(l->by_length, MEMORY, "no memory to sort samples by length");
    *l->by_length = (rm_by_length){.dataset = dataset,
                                   .sampler = l->sampler,
                                   .seed = (uint64_t)l->config.seed,
                                   .shuffle = l->config.shuffle,
                                   .pool = -1};
    return REMAT_OK;
}

remat_status rm_loader_create(rm_dataset *dataset, const rm_loader_config *config, rm_loader *out) {
    *out = (rm_loader){.config = *config, .samples = dataset->count};
    rm_loader_config *c = &out->config;
    if (!c->size) c->size = 1;
    if (!c->micro_steps) c->micro_steps = 1;
    TRY(check_config(c));
    int64_t here = c->shards ? c->batch : c->batch * c->micro_steps;
    REQUIRE(!__builtin_mul_overflow(here, c->size, &out->global), INVALID,
            "--batch=%lld on %lld ranks overflows: reduce it", (long long)here, (long long)c->size);
    out->per_epoch = left_in_epoch(out, 0);
    if (out->per_epoch == 0) return too_few(out, dataset);
    remat_sampler_config order = {
        .struct_bytes = sizeof order, .n = dataset->count, .replicas = 1, .seed = c->seed, .shuffle = c->shuffle};
    TRY(remat_sampler_create(&order, &out->sampler));
    TRY(rm_batch_create(dataset, here / c->micro_steps, &out->batch));
    out->sample = rm_malloc(4 * (size_t)out->batch.batch);
    REQUIRE(out->sample, MEMORY, "no memory for a batch of %lld samples", (long long)out->batch.batch);
    if (c->by_length) TRY(open_by_length(out, dataset));
    if (!c->threads || !dataset->kind->threads) return REMAT_OK;
    TRY(rm_batch_create(dataset, here / c->micro_steps, &out->spare));
    return rm_workers_create(c->threads, &out->workers);
}

void rm_loader_free(rm_loader *loader) {
    rm_workers_free(loader->workers);
    loader->workers = NULL;
    rm_free(loader->by_length);
    rm_free(loader->sample);
    loader->by_length = NULL;
    loader->sample = NULL;
    rm_batch_free(&loader->spare);
    remat_sampler_free(loader->sampler);
    loader->sampler = NULL;
    rm_batch_free(&loader->batch);
}

/* Drops the batch that is being prepared. */
static void abandon(rm_loader *l) {
    if (l->workers && l->under_way) (void)rm_workers_wait(l->workers);
    l->under_way = false;
}

static void set_epoch(rm_loader *l, int64_t epoch) {
    if (epoch != l->filling.epoch) remat_sampler_set_epoch(l->sampler, epoch);
    l->filling.epoch = epoch;
}

remat_status rm_loader_seek(rm_loader *l, int64_t epoch, int64_t consumed) {
    REQUIRE(
        epoch >= 0 && consumed >= 0 && consumed <= l->samples, INVALID,
        "the training state is at sample %lld of epoch %lld, but this data has %lld samples: give the data that the "
        "state was saved with",
        (long long)consumed, (long long)epoch, (long long)l->samples);
    abandon(l);
    set_epoch(l, epoch);
    l->epoch = epoch;
    l->consumed = consumed;
    l->micro = 0;
    return REMAT_OK;
}

static remat_status fill_row(void *context, int64_t i) {
    rm_loader *l = context;
    return rm_batch_put(l->workers ? &l->spare : &l->batch, i, l->sample[i]);
}

/* Starts preparing the batch of the next micro step, in the next epoch if this one has ended. */
static remat_status begin(rm_loader *l) {
    bool ends = left_in_epoch(l, l->consumed) == 0;
    int64_t rows = l->batch.batch;
    set_epoch(l, ends ? l->epoch + 1 : l->epoch);
    l->filling.consumed = ends ? 0 : l->consumed;
    l->filling.micro = ends ? 0 : l->micro;
    rm_dataset_set_epoch(l->batch.dataset, l->filling.epoch);
    for (int64_t i = 0; i < rows; i++) l->sample[i] = (uint32_t)sample_of(l, l->filling.micro, i);
    l->under_way = l->workers;
    if (l->workers) rm_workers_start(l->workers, fill_row, l, rows);
    for (int64_t i = 0; i < rows && !l->workers; i++) TRY(fill_row(l, i));
    return REMAT_OK;
}

/* Moves the position past the prepared batch. */
static void go_on(rm_loader *l) {
    bool last = l->filling.micro + 1 == l->config.micro_steps;
    l->begins = !l->config.stateful || (l->filling.consumed == 0 && l->filling.micro == 0);
    l->epoch = l->filling.epoch;
    l->consumed = l->filling.consumed + (last ? l->global : 0);
    if (l->consumed > l->samples) l->consumed = l->samples; /* excludes padding */
    l->micro = last ? 0 : l->filling.micro + 1;
}

remat_status rm_loader_next(rm_loader *l) {
    rm_batch made = l->spare;
    if (!l->under_way) TRY(begin(l));
    if (!l->workers) return go_on(l), REMAT_OK;
    l->under_way = false;
    TRY(rm_workers_wait(l->workers));
    l->spare = l->batch;
    l->batch = made;
    go_on(l);
    return begin(l);
}
