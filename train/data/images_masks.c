/* images_masks.c: a folder of JPEG and PNG files, and a folder of masks, as milesial's Pytorch-UNet reads data/imgs and data/masks. The mask of
 * a.jpg is a.png or a_mask.png, with any ending, and has the size of its image. The grey values of all masks, sorted, number the classes,
 * unless they are numbers of classes themselves. Masks are read again for each batch; opening the folders decodes each once. */
#include "train/data/images_folder.h"

#include "memory/host.h"
#include "train/data/workers.h"
#include "train/file.h"

#include <stdio.h>
#include <string.h>
#include <zlib.h>

typedef struct {
    rm_folder_images images;
    rm_folder_images
        masks; /* of each image, in the same order; of `images` only base.count and channels are used. count 0: none */
    bool seen[256]; /* grey values of masks */
} masked_images;

/* ---- Names -------------------------------------------------------------------------------------------------------- */

/* Whether `mask` is NAME.png or NAME_mask.png for an image NAME.jpg. */
static bool belongs(const char *mask, const char *image) {
    size_t stem = (size_t)(strrchr(image, '.') - image), length = (size_t)(strrchr(mask, '.') - mask);
    if (strncmp(mask, image, stem)) return false;
    return length == stem || (length == stem + 5 && !strncmp(mask + stem, "_mask", 5));
}

static remat_status add_mask(masked_images *m, const char *image, const rm_class_names *masks) {
    const char *found = NULL;
    for (int64_t i = 0; i < masks->count; i++) {
        if (!belongs(masks->name[i], image)) continue;
        REQUIRE(!found, INVALID, "%s/%s has two masks, %s and %s, in %s: remove one", m->images.folder, image, found,
                masks->name[i], m->masks.folder);
        found = masks->name[i];
    }
    REQUIRE(found, INVALID, "%s/%s has no mask in %s: add one of the same name, or with _mask before the ending",
            m->images.folder, image, m->masks.folder);
    return rm_folder_add(&m->masks, found, 0);
}

static remat_status add_all(masked_images *m, const rm_class_names *images, const rm_class_names *masks) {
    for (int64_t i = 0; i < images->count; i++) {
        TRY(rm_folder_add(&m->images, images->name[i], 0));
        if (m->masks.folder) TRY(add_mask(m, images->name[i], masks));
    }
    REQUIRE(images->count, INVALID, "%s has no JPEG or PNG files: give a folder of images, or an .npy file",
            m->images.folder);
    return REMAT_OK;
}

static remat_status find_files(masked_images *m) {
    rm_class_names images = {0}, masks = {0};
    remat_status status = rm_folder_list(m->images.folder, &images);
    if (!status && m->masks.folder) status = rm_folder_list(m->masks.folder, &masks);
    if (!status) status = add_all(m, &images, &masks);
    rm_class_names_free(&images);
    rm_class_names_free(&masks);
    return status;
}

/* ---- Reading ------------------------------------------------------------------------------------------------------ */

static remat_status read_mask(rm_images *images, int64_t index, uint8_t *scratch, rm_array *mask) {
    return rm_folder_read(&((masked_images *)images)->masks.images, index, scratch, mask);
}

static remat_status look_at_mask(void *context, int64_t i) {
    masked_images *m = context;
    bool seen[256] = {false};
    rm_array mask;
    uint8_t *scratch = rm_malloc(m->masks.images.scratch_bytes);
    REQUIRE(scratch, MEMORY, "no memory to read a mask");
    remat_status status = rm_folder_read(&m->masks.images, i, scratch, &mask);
    for (int64_t k = 0; !status && k < mask.count; k++) seen[mask.item[k]] = true;
    rm_free(scratch);
    pthread_mutex_lock(&m->images.images.lock);
    for (int k = 0; k < 256; k++) m->seen[k] |= seen[k];
    pthread_mutex_unlock(&m->images.images.lock);
    return status;
}

static remat_status look_at_masks(masked_images *m, int64_t threads) {
    for (int64_t i = 0; i < m->masks.images.base.count; i++) {
        const rm_folder_image *image = &m->images.image[i], *mask = &m->masks.image[i];
        REQUIRE(image->size.height == mask->size.height && image->size.width == mask->size.width, INVALID,
                "%s/%s is %lld x %lld, but its mask %s/%s is %lld x %lld: give a mask of the same size",
                m->images.folder, image->name, (long long)image->size.height, (long long)image->size.width,
                m->masks.folder, mask->name, (long long)mask->size.height, (long long)mask->size.width);
    }
    return rm_workers_run(threads, look_at_mask, m, m->masks.images.base.count);
}

/* ---- Classes ------------------------------------------------------------------------------------------------------ */

static remat_status add_class(rm_images *images, int grey, uLong *sum) {
    char name[12];
    snprintf(name, sizeof name, "%d", grey);
    *sum = crc32_z(*sum, (const uint8_t *)name, strlen(name) + 1);
    return rm_class_names_add(&images->names, name);
}

/* Numbers the grey values; the ignored one becomes -1. Values that all lie below the number of classes are numbers of classes. */
static remat_status number_classes(masked_images *m, const rm_data_source *source) {
    rm_images *images = &m->images.images;
    int64_t count = 0, largest = 0;
    uLong sum = crc32_z(0, NULL, 0);
    if (source->ignores && source->ignored >= 0 && source->ignored < 256) m->seen[source->ignored] = false;
    for (int k = 0; k < 256; k++)
        if (m->seen[k]) count++, largest = k;
    const bool numbers = largest < (source->classes ? source->classes : count);
    REQUIRE(
        source->classes || count > 1, INVALID,
        "%s: all masks have one grey value, %lld, so there is only one class and nothing to learn: give other masks",
        m->masks.folder, (long long)largest);
    images->labels.classes = numbers && source->classes ? source->classes : count;
    for (int k = 0, next = 0; k < 256; k++) {
        images->class_of[k] = !m->seen[k] ? -1 : numbers ? k : next++;
        if (m->seen[k] && !numbers) TRY(add_class(images, k, &sum));
    }
    images->base.shape.class_names = numbers ? 0 : (uint32_t)sum;
    return REMAT_OK;
}

/* ---- Opening ------------------------------------------------------------------------------------------------------ */

/* 0 if sizes differ. */
static void find_size(rm_folder_images *from) {
    rm_image_size first = from->image[0].size;
    bool same = true;
    for (int64_t i = 1; i < from->images.base.count && same; i++)
        same = from->image[i].size.height == first.height && from->image[i].size.width == first.width;
    if (same) from->images.height = first.height, from->images.width = first.width;
}

static remat_status find(rm_images *images, const rm_data_source *source) {
    masked_images *m = (masked_images *)images;
    const char *eval = source->held_out ? "eval-" : "";
    m->masks.images.channels = 1;
    TRY(rm_folder_begin(&m->images, source));
    REQUIRE(!source->labels || rm_path_is_directory(source->labels), INVALID,
            "--%slabels=%s is no folder, and the images in %s need one with a mask for each", eval, source->labels,
            source->data);
    m->masks.folder = source->labels ? rm_strdup(source->labels) : NULL;
    REQUIRE(m->masks.folder || !source->labels, MEMORY, "no memory to open %s", source->labels);
    TRY(find_files(m));
    TRY(rm_folder_look_at_all(&m->images, source->threads));
    rm_folder_measure(&m->images);
    find_size(&m->images);
    if (!source->labels) return REMAT_OK;
    TRY(rm_folder_look_at_all(&m->masks, source->threads));
    rm_folder_measure(&m->masks);
    rm_images *masks = &m->masks.images;
    if (masks->scratch_bytes > images->scratch_bytes) images->scratch_bytes = masks->scratch_bytes;
    if (masks->decoder_bytes > images->decoder_bytes) images->decoder_bytes = masks->decoder_bytes;
    images->base.held_bytes += masks->base.held_bytes;
    images->read_mask = read_mask;
    TRY(look_at_masks(m, source->threads));
    return number_classes(m, source);
}

static void close_images(rm_dataset *base) {
    masked_images *m = (masked_images *)base;
    rm_folder_free(&m->masks);
    rm_folder_free(&m->images);
    rm_images_close((rm_images *)base);
}

static remat_status checksum(rm_dataset *base, uint32_t *crc32) {
    uint32_t images, masks;
    TRY(rm_folder_checksum(base, &images));
    TRY(rm_folder_checksum(&((masked_images *)base)->masks.images.base, &masks));
    *crc32 = (uint32_t)crc32_combine(images, masks, sizeof masks);
    return REMAT_OK;
}

static bool reads(const rm_data_source *source) {
    return source->images && source->pixels && rm_path_is_directory(source->data);
}

const rm_data_kind rm_data_image_masks = {.bytes = sizeof(masked_images),
                                          .reads = reads,
                                          .open = rm_images_open,
                                          .find = find,
                                          .close = close_images,
                                          .fill = rm_images_fill,
                                          .view = rm_images_view,
                                          .close_view = rm_images_close_view,
                                          .checksum = checksum,
                                          .threads = true};
