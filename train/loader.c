/* loader.c: see loader.h. */
#include "train/loader.h"

#include "memory/host.h"

/* ---- Batches ---------------------------------------------------------------------------------------------------- */

remat_status rm_batch_create(rm_dataset *dataset, int64_t batch, rm_batch *out) {
    const rm_data_shape *shape = &dataset->shape;
    uint64_t per_step = 4 * (uint64_t)(shape->vocabulary ? 1 : shape->features);
    *out = (rm_batch){.dataset = dataset, .batch = batch};
    bool huge = __builtin_mul_overflow((uint64_t)shape->timesteps * (uint64_t)batch, per_step, &out->input_bytes);
    out->target_bytes = 4 * (uint64_t)batch * (uint64_t)(shape->every_step ? shape->timesteps : 1);
    if (!huge) {
        out->input = rm_malloc(out->input_bytes);
        out->target = rm_malloc(out->target_bytes);
    }
    REQUIRE(out->input && out->target, MEMORY,
            "no memory for a batch of %lld samples of %lld timesteps: make --batch or --seq-len smaller",
            (long long)batch, (long long)shape->timesteps);
    return REMAT_OK;
}

void rm_batch_free(rm_batch *batch) {
    rm_free(batch->input);
    rm_free(batch->target);
    batch->input = batch->target = NULL;
}

remat_status rm_batch_put(rm_batch *b, int64_t column, int64_t sample) {
    return b->dataset->fill(b->dataset, sample, column, b->batch, b->input, b->target);
}

remat_status rm_batch_write(const rm_batch *b, remat_session *session) {
    TRY(remat_write(session, REMAT_INPUT, 0, b->input, b->input_bytes));
    return remat_write(session, REMAT_INPUT, 1, b->target, b->target_bytes);
}

/* ---- Order ------------------------------------------------------------------------------------------------------ */

remat_status rm_loader_create(rm_dataset *dataset, int64_t batch, int64_t seed, bool shuffle, rm_loader *out) {
    *out = (rm_loader){.per_epoch = dataset->count / batch};
    REQUIRE(
        out->per_epoch > 0, INVALID,
        "the data has %lld samples of %lld timesteps, fewer than --batch=%lld: give more data, or a smaller --batch or "
        "--seq-len",
        (long long)dataset->count, (long long)dataset->shape.timesteps, (long long)batch);
    rm_sampler_config order = {.n = dataset->count, .replicas = 1, .seed = seed, .shuffle = shuffle};
    TRY(rm_sampler_create(&order, &out->sampler));
    return rm_batch_create(dataset, batch, &out->batch);
}

void rm_loader_free(rm_loader *loader) {
    rm_sampler_free(loader->sampler);
    loader->sampler = NULL;
    rm_batch_free(&loader->batch);
}

remat_status rm_loader_seek(rm_loader *loader, int64_t epoch, int64_t position) {
    REQUIRE(epoch >= 0 && position >= 0 && position <= loader->per_epoch, INVALID,
            "the training state is at batch %lld of epoch %lld, but an epoch of this data has %lld: it was saved with "
            "other "
            "data",
            (long long)position, (long long)epoch, (long long)loader->per_epoch);
    if (epoch != loader->epoch) rm_sampler_set_epoch(loader->sampler, epoch);
    loader->epoch = epoch;
    loader->position = position;
    return REMAT_OK;
}

remat_status rm_loader_next(rm_loader *loader) {
    if (loader->position == loader->per_epoch) TRY(rm_loader_seek(loader, loader->epoch + 1, 0));
    int64_t first = loader->position * loader->batch.batch;
    for (int64_t b = 0; b < loader->batch.batch; b++)
        TRY(rm_batch_put(&loader->batch, b, rm_sampler_at(loader->sampler, first + b)));
    loader->position++;
    return REMAT_OK;
}
