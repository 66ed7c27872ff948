/* album_array.c: an array in a file (array_file.h) as pictures: IDX (N,H,W), .npy (N,H,W) or with channels. Those are the axis that
 * is 1, 3 or 4 long, behind N or last; where both are, or none is, the one behind N: PyTorch's order. */
#include "train/data/album.h"

#include "memory/host.h"
#include "train/data/array_file.h"

#include <float.h>
#include <math.h>
#include <unistd.h>
#include <zlib.h>

typedef struct {
    rm_album base;
    rm_array_file file;
    int channel, row; /* axes of the array; the column's is row + 1. channel -1: there is none */
} array_album;

static remat_status read_picture(rm_album *base, int64_t index, uint8_t *scratch, rm_array *picture) {
    const array_album *album = (array_album *)base;
    const rm_array *all = &album->file.array;
    (void)scratch;
    *picture = *all;
    picture->rank = 3;
    picture->item = all->item + index * all->stride[0] * all->bytes;
    picture->dim[0] = base->channels;
    picture->stride[0] = album->channel < 0 ? 0 : all->stride[album->channel];
    for (int d = 1; d <= 2; d++) {
        picture->dim[d] = all->dim[album->row + d - 1];
        picture->stride[d] = all->stride[album->row + d - 1];
    }
    return REMAT_OK;
}

static remat_status checksum(rm_album *base, uint32_t *crc32) {
    const array_album *album = (array_album *)base;
    *crc32 = (uint32_t)crc32_z(0, album->file.data, album->file.size);
    if (base->labels) *crc32 = (uint32_t)crc32_z(*crc32, (const uint8_t *)base->labels, 4 * (size_t)base->label_count);
    return REMAT_OK;
}

static void close_album(rm_album *base) {
    array_album *album = (array_album *)base;
    rm_array_file_free(&album->file);
    rm_free(base->labels);
    rm_free(album);
}

/* ---- Which axis is which ----------------------------------------------------------------------------------------- */

static bool could_be_channels(int64_t length) { return length == 1 || length == 3 || length == 4; }

static remat_status take_shape(array_album *album, const char *path) {
    const rm_array *array = &album->file.array;
    REQUIRE(array->rank == 3 || array->rank == 4, INVALID,
            "%s has %d dimension%s; pictures are (N,H,W), (N,C,H,W) or (N,H,W,C): save them as one of these, or take a "
            "recurrent --model, which reads features",
            path, array->rank, array->rank == 1 ? "" : "s");
    bool last = array->rank == 4 && could_be_channels(array->dim[3]) && !could_be_channels(array->dim[1]);
    album->channel = array->rank == 3 ? -1 : last ? 3 : 1;
    album->row = array->rank == 3 || last ? 1 : 2;
    album->base.channels = album->channel < 0 ? 1 : array->dim[album->channel];
    album->base.height = array->dim[album->row];
    album->base.width = album->base.most_width = array->dim[album->row + 1];
    return REMAT_OK;
}

/* One number that is none spoils every weight, and would be blamed on the learning rate. */
static remat_status check_numbers(array_album *album, const rm_data_source *source) {
    rm_album *base = &album->base;
    rm_array p;
    if (album->file.array.kind != 'f') return REMAT_OK;
    for (int64_t i = 0; i < base->count; i++) {
        TRY(read_picture(base, i, NULL, &p));
        for (int64_t n = 0; n < base->channels * base->height * base->width; n++) {
            int64_t c = n / (base->height * base->width), y = n / base->width % base->height, x = n % base->width;
            double value = rm_array_at(&p, c, y, x);
            REQUIRE(
                fabs(value) <= (double)FLT_MAX || (source->allow_nan && isnan(value)), INVALID,
                "%s: picture %lld, channel %lld, row %lld, column %lld is %g; only numbers can be learnt from: put one "
                "there (numpy.nan_to_num), or leave the picture out",
                source->data, (long long)i, (long long)c, (long long)y, (long long)x, value);
        }
    }
    return REMAT_OK;
}

/* Looked at before it is read: a shape that is refused anyway is not unpacked for it. */
static remat_status open_file(array_album *album, const rm_data_source *source) {
    rm_album *base = &album->base;
    const char *eval = source->held_out ? "eval-" : "";
    REQUIRE(!access(source->data, F_OK), IO, "%s does not exist: check the path", source->data);
    REQUIRE(source->labels || source->unlabelled, INVALID,
            "there are no labels for %s: say --%slabels=FILE, IDX or .npy, one for each picture", source->data, eval);
    TRY(rm_array_file_begin(source->data, source->budget, &album->file));
    TRY(take_shape(album, source->data));
    TRY(rm_array_file_read(source->data, source->budget, &album->file));
    TRY(take_shape(album, source->data));
    base->count = album->file.array.dim[0];
    base->unit = album->file.array.kind == 'u' && album->file.array.bytes == 1 ? 255 : 1;
    uint64_t labels = (uint64_t)(base->count * (source->pixels ? base->height * base->width : 1));
    base->held_bytes = album->file.size + (source->labels ? 4 * labels : 0);
    TRY(check_numbers(album, source));
    base->classes = source->classes;
    if (!source->labels) return REMAT_OK;
    base->label_count = (int64_t)labels;
    if (source->pixels)
        return rm_pixel_labels_read(source, base->count, base->height, base->width, &base->labels, &base->classes);
    return rm_labels_read(source, base->count, &base->labels, &base->classes);
}

remat_status rm_album_open_array(const rm_data_source *source, rm_album **out) {
    array_album *album = rm_malloc(sizeof *album);
    REQUIRE(album, MEMORY, "no memory to open %s", source->data);
    *album = (array_album){.base = {.read = read_picture, .checksum = checksum, .close = close_album}};
    remat_status status = open_file(album, source);
    if (status)
        close_album(&album->base);
    else
        *out = &album->base;
    return status;
}
