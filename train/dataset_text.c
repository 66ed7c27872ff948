/* dataset_text.c: the bytes of any file as tokens, for language models. Sample i is bytes [i*T, i*T + T], the last of
 * them only a target. Read from the file as needed: a text larger than memory is no problem. */
#include "train/dataset.h"

#include "memory/host.h"
#include "train/file.h"

#include <unistd.h>
#include <zlib.h>

typedef struct {
    rm_dataset base;
    int fd;
    char *path;
    uint8_t bytes[]; /* T + 1: one sample */
} text_data;

static remat_status fill(rm_dataset *base, int64_t index, int64_t column, int64_t batch, void *input, void *target) {
    text_data *data = (text_data *)base;
    int64_t T = base->shape.timesteps;
    int32_t *x = input, *y = target; /* (T,B) */
    TRY(rm_file_read_at(data->fd, data->path, (uint64_t)(index * T), data->bytes, (size_t)T + 1));
    for (int64_t t = 0; t < T; t++) {
        x[t * batch + column] = data->bytes[t];
        y[t * batch + column] = data->bytes[t + 1];
    }
    return REMAT_OK;
}

enum { STRETCH = 65536, STRETCHES = 4096 };

/* Of the bytes that samples have: not of what is left over at the file's end. */
static remat_status checksum(rm_dataset *base, uint32_t *crc32) {
    const text_data *data = (text_data *)base;
    uint8_t block[STRETCH];
    uint64_t bytes = (uint64_t)(base->count * base->shape.timesteps) + 1;
    bool whole = bytes <= (uint64_t)STRETCH * STRETCHES;
    for (uint64_t i = 0; i < STRETCHES; i++) {
        uint64_t at = whole ? i * STRETCH : (uint64_t)((double)(bytes - STRETCH) * (double)i / (STRETCHES - 1));
        if (at >= bytes) break;
        size_t part = bytes - at < STRETCH ? (size_t)(bytes - at) : STRETCH;
        TRY(rm_file_read_at(data->fd, data->path, at, block, part));
        *crc32 = (uint32_t)crc32_z(*crc32, block, part);
    }
    return REMAT_OK;
}

static void close_text(rm_dataset *base) {
    text_data *data = (text_data *)base;
    if (data->fd >= 0) close(data->fd);
    rm_free(data->path);
    rm_free(data);
}

rm_data_shape rm_text_shape(int64_t timesteps) {
    return (rm_data_shape){
        .timesteps = timesteps ? timesteps : 1000, .vocabulary = 256, .classes = 256, .every_step = true};
}

static remat_status open_file(text_data *data, const char *path) {
    uint64_t size;
    int64_t T = data->base.shape.timesteps;
    REQUIRE(data->path = rm_strdup(path), MEMORY, "no memory to open %s", path);
    TRY(rm_file_open(path, &data->fd, &size));
    data->base.count = size ? (int64_t)((size - 1) / (uint64_t)T) : 0;
    REQUIRE(data->base.count > 0, INVALID,
            "%s has %llu bytes; one sample of %lld timesteps needs %lld: give a longer file or a smaller --seq-len",
            path, (unsigned long long)size, (long long)T, (long long)T + 1);
    return REMAT_OK;
}

remat_status rm_dataset_open_text(const rm_data_source *source, rm_dataset **out) {
    rm_data_shape shape = rm_text_shape(source->timesteps);
    text_data *data = rm_malloc(sizeof *data + (size_t)shape.timesteps + 1);
    REQUIRE(data, MEMORY, "no memory for a sample of %lld bytes", (long long)shape.timesteps + 1);
    *data = (text_data){.base = {.shape = shape,
                                 .held_bytes = (uint64_t)shape.timesteps + 1,
                                 .fill = fill,
                                 .checksum = checksum,
                                 .close = close_text},
                        .fd = -1};
    remat_status status = open_file(data, source->data);
    if (status)
        close_text(&data->base);
    else
        *out = &data->base;
    return status;
}
