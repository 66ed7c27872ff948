/* dataset_features.c: a NumPy array (N,T,F), or (N,T) with F = 1, as N sequences of F features. Bytes are divided by 255,
 * as images are; other types are taken as they are. For MNIST's own files see dataset_images.c. */
#include "train/dataset.h"

#include "memory/host.h"
#include "train/file.h"
#include "train/npy.h"

#include <zlib.h>

typedef struct {
    rm_dataset base;
    uint8_t *file;
    size_t size;  /* of it */
    rm_npy array; /* (N,T,F) */
    int32_t *labels;
} feature_data;

static remat_status fill(rm_dataset *base, int64_t index, int64_t column, int64_t batch, void *input, void *target) {
    const feature_data *data = (feature_data *)base;
    int64_t T = base->shape.timesteps, F = base->shape.features;
    int64_t first = index * data->array.dim[1] * F;
    double unit = data->array.type == RM_NPY_U1 ? 255.0 : 1.0;
    float *x = input; /* (T,B,F) */
    for (int64_t t = 0; t < T; t++)
        for (int64_t f = 0; f < F; f++)
            x[(t * batch + column) * F + f] = (float)(rm_npy_real(&data->array, first + t * F + f) / unit);
    ((int32_t *)target)[column] = data->labels[index];
    return REMAT_OK;
}

static remat_status checksum(rm_dataset *base, uint32_t *crc32) {
    const feature_data *data = (feature_data *)base;
    *crc32 = (uint32_t)crc32_z(0, data->file, data->size);
    *crc32 = (uint32_t)crc32_z(*crc32, (const uint8_t *)data->labels, 4 * (size_t)base->count);
    return REMAT_OK;
}

static void close_features(rm_dataset *base) {
    feature_data *data = (feature_data *)base;
    rm_free(data->file);
    rm_free(data->labels);
    rm_free(data);
}

static remat_status read_features(feature_data *data, const rm_data_source *source) {
    TRY(rm_file_read(source->data, RM_DATA_LIMIT, &data->file, &data->size));
    TRY(rm_npy_parse(data->file, data->size, source->data, &data->array));
    const rm_npy *array = &data->array;
    REQUIRE(array->rank == 2 || array->rank == 3, IO, "%s has %d dimensions; features are [N,T] or [N,T,F]",
            source->data, array->rank);
    int64_t T = source->timesteps ? source->timesteps : array->dim[1];
    REQUIRE(T <= array->dim[1], INVALID, "--seq-len=%lld, but %s has %lld timesteps: leave it out, or give less",
            (long long)T, source->data, (long long)array->dim[1]);
    data->base.count = array->dim[0];
    data->base.held_bytes = data->size + 4 * (uint64_t)data->base.count;
    data->base.shape = (rm_data_shape){.timesteps = T, .features = array->dim[2], .classes = source->classes};
    return rm_labels_read(source->labels, data->base.count, &data->labels, &data->base.shape.classes);
}

remat_status rm_dataset_open_features(const rm_data_source *source, rm_dataset **out) {
    feature_data *data = rm_malloc(sizeof *data);
    REQUIRE(data, MEMORY, "no memory to open %s", source->data);
    *data = (feature_data){.base = {.fill = fill, .checksum = checksum, .close = close_features}};
    remat_status status = read_features(data, source);
    if (status)
        close_features(&data->base);
    else
        *out = &data->base;
    return status;
}
