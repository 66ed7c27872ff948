/* dataset_images.c: IDX images (MNIST's format, plain or .gz) as sequences of pixels, row by row: 784 timesteps of one
 * feature for MNIST, a pixel being its byte / 255. For arrays made with NumPy see dataset_features.c. */
#include "train/dataset.h"

#include "memory/host.h"
#include "train/file.h"
#include "train/idx.h"

#include <zlib.h>

typedef struct {
    rm_dataset base;
    uint8_t *file;
    size_t size;          /* of it */
    const uint8_t *pixel; /* (N, pixels) */
    int64_t pixels;
    int32_t *labels;
} image_data;

static remat_status fill(rm_dataset *base, int64_t index, int64_t column, int64_t batch, void *input, void *target) {
    const image_data *data = (image_data *)base;
    float *x = input; /* (T,B,1) */
    const uint8_t *pixel = data->pixel + index * data->pixels;
    for (int64_t t = 0; t < base->shape.timesteps; t++) x[t * batch + column] = (float)pixel[t] / 255.0f;
    ((int32_t *)target)[column] = data->labels[index];
    return REMAT_OK;
}

static remat_status checksum(rm_dataset *base, uint32_t *crc32) {
    const image_data *data = (image_data *)base;
    *crc32 = (uint32_t)crc32_z(0, data->file, data->size);
    *crc32 = (uint32_t)crc32_z(*crc32, (const uint8_t *)data->labels, 4 * (size_t)base->count);
    return REMAT_OK;
}

static void close_images(rm_dataset *base) {
    image_data *data = (image_data *)base;
    rm_free(data->file);
    rm_free(data->labels);
    rm_free(data);
}

static remat_status read_images(image_data *data, const rm_data_source *source) {
    rm_idx idx;
    TRY(rm_file_read(source->data, RM_DATA_LIMIT, &data->file, &data->size));
    TRY(rm_idx_parse(data->file, data->size, source->data, &idx));
    REQUIRE(idx.rank >= 2, IO, "%s has one dimension; images have 3: is this the file for --labels?", source->data);
    data->pixel = idx.item;
    data->base.count = idx.dim[0];
    data->base.held_bytes = data->size + 4 * (uint64_t)data->base.count;
    data->pixels = idx.count / idx.dim[0];
    int64_t T = source->timesteps ? source->timesteps : data->pixels;
    REQUIRE(T <= data->pixels, INVALID,
            "--seq-len=%lld, but the images of %s have %lld pixels: leave it out, or give less", (long long)T,
            source->data, (long long)data->pixels);
    data->base.shape = (rm_data_shape){.timesteps = T, .features = 1, .classes = source->classes};
    return rm_labels_read(source->labels, data->base.count, &data->labels, &data->base.shape.classes);
}

remat_status rm_dataset_open_images(const rm_data_source *source, rm_dataset **out) {
    image_data *data = rm_malloc(sizeof *data);
    REQUIRE(data, MEMORY, "no memory to open %s", source->data);
    *data = (image_data){.base = {.fill = fill, .checksum = checksum, .close = close_images}};
    remat_status status = read_images(data, source);
    if (status)
        close_images(&data->base);
    else
        *out = &data->base;
    return status;
}
