/* dataset_text.c: the bytes of any file as tokens, for language models. Sample i is bytes [i*T, i*T + T], the last of
 * them only a target. Read from the file as needed: a text larger than memory is no problem. One that is packed by gzip has no
 * places to go to, and is unpacked into memory. */
#include "train/data/dataset.h"

#include "memory/host.h"
#include "train/data/file_kind.h"

#include <string.h>
#include <unistd.h>
#include <zlib.h>

typedef struct {
    rm_dataset base;
    int fd; /* -1: it lies in `unpacked` */
    uint8_t *unpacked;
    char *path;
    uint8_t bytes[]; /* T + 1: one sample */
} text_data;

static remat_status read_at(const text_data *data, uint64_t at, void *to, size_t bytes) {
    if (!data->unpacked) return rm_file_read_at(data->fd, data->path, at, to, bytes);
    memcpy(to, data->unpacked + at, bytes);
    return REMAT_OK;
}

static remat_status fill(rm_dataset *base, int64_t index, int64_t column, int64_t batch, void *input, void *target) {
    text_data *data = (text_data *)base;
    int64_t T = base->shape.timesteps;
    int32_t *x = input, *y = target; /* (T,B) */
    TRY(read_at(data, (uint64_t)(index * T), data->bytes, (size_t)T + 1));
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
        TRY(read_at(data, at, block, part));
        *crc32 = (uint32_t)crc32_z(*crc32, block, part);
    }
    return REMAT_OK;
}

static void close_text(rm_dataset *base) {
    text_data *data = (text_data *)base;
    if (data->fd >= 0) close(data->fd);
    rm_free(data->unpacked);
    rm_free(data->path);
    rm_free(data);
}

rm_data_shape rm_text_shape(int64_t timesteps) {
    return (rm_data_shape){
        .timesteps = timesteps ? timesteps : 1000, .vocabulary = 256, .classes = 256, .every_step = true};
}

/* Its bytes could be learnt, but nobody wants that. */
static remat_status refuse_arrays(const rm_file_start *start, const char *path) {
    rm_file_kind kind = rm_file_kind_of(start, path);
    REQUIRE(kind != RM_KIND_NPY && kind != RM_KIND_IDX, INVALID,
            "%s is an array (%s), not a text: learn from it with --task=classify and --labels=FILE", path,
            kind == RM_KIND_NPY ? ".npy" : "IDX");
    REQUIRE(kind != RM_KIND_ZIP, INVALID,
            "%s is a .zip or .npz, not a text: unpack it, and give a file of it; arrays are learnt from with "
            "--task=classify",
            path);
    REQUIRE(kind != RM_KIND_PACKED, INVALID,
            "%s is packed in a way that is not read here: unpack it (bzip2 -d, xz -d, zstd -d, tar -x), or pack it "
            "once, by gzip",
            path);
    REQUIRE(kind != RM_KIND_SAFETENSORS, INVALID,
            "%s holds weights (.safetensors), not a text: begin with them by --init, and give a text to learn", path);
    return REMAT_OK;
}

static remat_status unpack(text_data *data, uint64_t budget, uint64_t *size) {
    uint64_t most = budget ? budget : RM_UNPACKED_BYTES;
    size_t got;
    TRY(rm_file_read_first(data->path, most + 1, &data->unpacked, &got));
    REQUIRE(
        got <= most, INFEASIBLE,
        "%s is more than %llu bytes when it is unpacked, %s: unpack it with gunzip; of a plain text only one sample "
        "is in memory",
        data->path, (unsigned long long)most, budget ? "the memory budget" : "the most that is held in memory");
    data->base.held_bytes += got;
    *size = got;
    return REMAT_OK;
}

static remat_status open_file(text_data *data, const rm_data_source *source) {
    const char *path = source->data;
    rm_file_start start;
    uint64_t size;
    int64_t T = data->base.shape.timesteps;
    REQUIRE(data->path = rm_strdup(path), MEMORY, "no memory to open %s", path);
    TRY(rm_file_begin(path, &start));
    TRY(refuse_arrays(&start, path));
    TRY(start.packed ? unpack(data, source->budget, &size) : rm_file_open(path, &data->fd, &size));
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
    remat_status status = open_file(data, source);
    if (status)
        close_text(&data->base);
    else
        *out = &data->base;
    return status;
}
