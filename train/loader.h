/* loader.h: batches: the order of dist/sampler.h cut into B samples each, the last short one dropped, time-major in two
 * buffers, written into a session's inputs. Knows how far it has got, and can start there again. */
#ifndef RM_LOADER_H
#define RM_LOADER_H

#include "dist/sampler.h"
#include "train/dataset.h"

/* Buffers for one batch, and what they hold. */
typedef struct {
    rm_dataset *dataset; /* borrowed */
    int64_t batch;
    void *input, *target;
    uint64_t input_bytes, target_bytes;
} rm_batch;

/* MEMORY when there is not enough. Free in any case. */
remat_status rm_batch_create(rm_dataset *dataset, int64_t batch, rm_batch *out);
void rm_batch_free(rm_batch *batch);
remat_status rm_batch_put(rm_batch *batch, int64_t column, int64_t sample);
remat_status rm_batch_write(const rm_batch *batch, remat_session *session); /* inputs 0 and 1 */

typedef struct {
    rm_batch batch;
    rm_sampler *sampler;
    int64_t epoch, position; /* the next batch is the position-th of this epoch; position <= per_epoch */
    int64_t per_epoch;       /* batches */
} rm_loader;

/* Over all of `dataset`, which is borrowed. INVALID when it has fewer than `batch` samples. Free in any case. */
remat_status rm_loader_create(rm_dataset *dataset, int64_t batch, int64_t seed, bool shuffle, rm_loader *out);
void rm_loader_free(rm_loader *loader);
remat_status rm_loader_seek(rm_loader *loader, int64_t epoch, int64_t position);
/* Fills the batch with the next samples, going on to the next epoch where one ends. */
remat_status rm_loader_next(rm_loader *loader);

#endif
