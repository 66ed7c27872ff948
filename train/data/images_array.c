/* images_array.c: an array in a file (array_file.h) as images: IDX (N,H,W), .npy (N,H,W) or with channels. The channel
 * axis is the second or the last one, whichever has 1, 3 or 4 elements; if both or neither do, the second, PyTorch's
 * order. */
#include "train/data/images.h"

#include "memory/host.h"
#include "train/data/array_file.h"

#include <unistd.h>
#include <zlib.h>

typedef struct {
    rm_images images;
    rm_array_file file;
    int channel, row; /* axes of the array; columns are axis row + 1; channel -1: no such axis */
} array_images;

static remat_status read_image(rm_images *images, int64_t index, uint8_t *scratch, rm_array *image) {
    const array_images *from = (array_images *)images;
    const rm_array *all = &from->file.array;
    (void)scratch;
    *image = *all;
    image->rank = 3;
    image->item = all->item + index * all->stride[0] * all->bytes;
    image->dim[0] = images->channels;
    image->stride[0] = from->channel < 0 ? 0 : all->stride[from->channel];
    for (int d = 1; d <= 2; d++) {
        image->dim[d] = all->dim[from->row + d - 1];
        image->stride[d] = all->stride[from->row + d - 1];
    }
    return REMAT_OK;
}

static remat_status checksum(rm_dataset *base, uint32_t *crc32) {
    const array_images *from = (array_images *)base;
    const rm_labels *labels = &from->images.labels;
    *crc32 = (uint32_t)crc32_z(0, from->file.data, from->file.size);
    if (labels->item) *crc32 = (uint32_t)crc32_z(*crc32, labels->item, rm_labels_bytes(labels, base->count));
    return REMAT_OK;
}

static void close_images(rm_dataset *base) {
    rm_array_file_free(&((array_images *)base)->file);
    rm_images_close((rm_images *)base);
}

/* ---- Which axis is which ----------------------------------------------------------------------------------------- */

static bool could_be_channels(int64_t length) { return length == 1 || length == 3 || length == 4; }

static remat_status take_shape(array_images *from, const char *path) {
    const rm_array *array = &from->file.array;
    REQUIRE(array->rank == 3 || array->rank == 4, INVALID,
            "%s has %d dimension%s, but images are (N,H,W), (N,C,H,W) or (N,H,W,C): reshape the array, or use a "
            "recurrent --model, which reads features",
            path, array->rank, array->rank == 1 ? "" : "s");
    bool last = array->rank == 4 && could_be_channels(array->dim[3]) && !could_be_channels(array->dim[1]);
    from->channel = array->rank == 3 ? -1 : last ? 3 : 1;
    from->row = array->rank == 3 || last ? 1 : 2;
    from->images.channels = from->channel < 0 ? 1 : array->dim[from->channel];
    from->images.height = array->dim[from->row];
    from->images.width = from->images.most_width = array->dim[from->row + 1];
    return REMAT_OK;
}

static remat_status check_numbers(rm_images *images, const rm_data_source *source) {
    rm_array p;
    if (((array_images *)images)->file.array.kind != 'f') return REMAT_OK;
    for (int64_t i = 0; i < images->base.count; i++) {
        TRY(read_image(images, i, NULL, &p));
        for (int64_t n = 0; n < images->channels * images->height * images->width; n++) {
            int64_t c = n / (images->height * images->width), y = n / images->width % images->height,
                    x = n % images->width;
            double value = rm_array_at(&p, c, y, x);
            REQUIRE(
                rm_data_takes(source, value), INVALID,
                "%s: image %lld, channel %lld, row %lld, column %lld is %g: replace it (numpy.nan_to_num), or remove "
                "the image",
                source->data, (long long)i, (long long)c, (long long)y, (long long)x, value);
        }
    }
    return REMAT_OK;
}

/* Checks the header first, so that a file with a wrong shape is refused before it is decompressed. */
static remat_status find(rm_images *images, const rm_data_source *source) {
    array_images *from = (array_images *)images;
    const char *eval = source->held_out ? "eval-" : "";
    REQUIRE(!access(source->data, F_OK), IO, "%s does not exist: check the path", source->data);
    REQUIRE(!source->numbers, INVALID,
            "%s has images, whose labels are classes: give --task=classify, or an array [N,F] of vectors",
            source->data);
    REQUIRE(source->labels || source->unlabelled, INVALID,
            "%s has no labels: give --%slabels=FILE, an IDX or .npy file with one label per image", source->data, eval);
    TRY(rm_array_file_begin(source->data, source->budget, &from->file));
    TRY(take_shape(from, source->data));
    TRY(rm_array_file_read(source->data, source->budget, &from->file));
    TRY(take_shape(from, source->data));
    images->base.count = from->file.array.dim[0];
    images->unit = from->file.array.kind == 'u' && from->file.array.bytes == 1 ? 255 : 1;
    images->read = read_image;
    TRY(check_numbers(images, source));
    rm_labelled samples = {.count = images->base.count, .height = images->height, .width = images->width};
    images->labels.classes = source->classes;
    if (source->labels)
        TRY(rm_labels_read(source, &samples, source->pixels ? rm_labels_as_pixels : rm_labels_as_classes,
                           &images->labels));
    images->base.held_bytes = from->file.size + rm_labels_bytes(&images->labels, samples.count);
    return REMAT_OK;
}

static bool reads(const rm_data_source *source) { return source->images; }

const rm_data_kind rm_data_image_array = {.bytes = sizeof(array_images),
                                          .reads = reads,
                                          .open = rm_images_open,
                                          .find = find,
                                          .close = close_images,
                                          .fill = rm_images_fill,
                                          .view = rm_images_view,
                                          .close_view = rm_images_close_view,
                                          .checksum = checksum,
                                          .threads = true};
