/* images_cifar.c: CIFAR-10's binary files (cifar.h) as images: a list of paths separated by commas, or all
 * data_batch_*.bin files in a folder. */
#include "train/data/images.h"

#include "memory/host.h"
#include "train/data/cifar.h"
#include "train/file.h"
#include "train/text.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

enum { MOST_BYTES = 1 << 30 }; /* of a file: five times all of CIFAR-10 */

typedef struct {
    rm_images images;
    uint8_t *data; /* all files, concatenated */
    size_t size;
} cifar_images;

static remat_status read_image(rm_images *images, int64_t index, uint8_t *scratch, rm_array *image) {
    (void)scratch;
    rm_cifar_image(((cifar_images *)images)->data + index * RM_CIFAR_BYTES, image);
    return REMAT_OK;
}

static remat_status checksum(rm_dataset *base, uint32_t *crc32) {
    const cifar_images *from = (cifar_images *)base;
    *crc32 = (uint32_t)crc32_z(0, from->data, from->size);
    return REMAT_OK;
}

static void close_images(rm_dataset *base) {
    rm_free(((cifar_images *)base)->data);
    rm_images_close((rm_images *)base);
}

static remat_status append(cifar_images *from, const char *path) {
    uint8_t *data = NULL;
    size_t size;
    int64_t count;
    remat_status status = rm_file_read(path, MOST_BYTES, &data, &size);
    if (!status) status = rm_cifar_check(data, size, path, &count);
    uint8_t *all = status ? NULL : rm_realloc(from->data, from->size + size);
    if (all) {
        memcpy(all + from->size, data, size);
        from->data = all;
        from->size += size;
    }
    rm_free(data);
    TRY(status);
    REQUIRE(all, MEMORY, "no memory for the images in %s", path);
    return REMAT_OK;
}

/* data_batch_*.bin */
static int is_batch(const struct dirent *entry) {
    size_t length = strlen(entry->d_name);
    return length >= 15 && !strncmp(entry->d_name, "data_batch_", 11) && !strcmp(entry->d_name + length - 4, ".bin");
}

static int by_name(const struct dirent **a, const struct dirent **b) { return strcmp((*a)->d_name, (*b)->d_name); }

/* Does not use glob: the folder's name may contain pattern characters. */
static int list_batches(const char *folder, struct dirent ***list) { return scandir(folder, list, is_batch, by_name); }

static void free_list(struct dirent **list, int count) {
    for (int i = 0; i < count; i++) free(list[i]);
    if (count >= 0) free(list);
}

static bool has_batches(const char *folder) {
    struct dirent **list;
    int count = list_batches(folder, &list);
    free_list(list, count);
    return count > 0;
}

static remat_status append_folder(cifar_images *from, const char *folder) {
    struct dirent **list;
    int count = list_batches(folder, &list);
    REQUIRE(count >= 0, IO, "cannot read the folder %s: %s", folder, strerror(errno));
    remat_status status = count ? REMAT_OK : rm_fail(REMAT_IO, "%s has no data_batch_*.bin: check the path", folder);
    for (int i = 0; i < count && !status; i++) {
        char path[RM_PATH_BYTES];
        status = rm_path_join(path, sizeof path, folder, list[i]->d_name);
        if (!status) status = append(from, path);
    }
    free_list(list, count);
    return status;
}

static remat_status append_list(cifar_images *from, const char *list) {
    char path[RM_PATH_BYTES];
    while (*list) {
        size_t length = strcspn(list, ",");
        REQUIRE(length && length < sizeof path, INVALID, "--data=%.60s: a path between commas is empty or too long",
                list);
        memcpy(path, list, length);
        path[length] = 0;
        TRY(append(from, path));
        list += length + (list[length] == ',');
    }
    return REMAT_OK;
}

static remat_status find(rm_images *images, const rm_data_source *source) {
    cifar_images *from = (cifar_images *)images;
    const char *path = source->data, *eval = source->held_out ? "eval-" : "";
    size_t length = strlen(path);
    bool folder = length < 4 || strcmp(path + length - 4, ".bin");
    REQUIRE(!source->labels, INVALID, "%s contains its labels: remove --%slabels", path, eval);
    TRY(folder ? append_folder(from, path) : append_list(from, path));
    int64_t count = images->base.count = (int64_t)(from->size / RM_CIFAR_BYTES);
    images->channels = 3;
    images->height = images->width = images->most_width = RM_CIFAR_SIDE;
    images->unit = 255;
    images->read = read_image;
    images->labels.classes = RM_CIFAR_CLASSES;
    TRY(rm_labels_make_room(&images->labels, count, 1, 1));
    for (int64_t i = 0; i < count; i++) ((int32_t *)images->labels.item)[i] = from->data[i * RM_CIFAR_BYTES];
    images->base.held_bytes = from->size + rm_labels_bytes(&images->labels, count);
    return REMAT_OK;
}

static bool reads(const rm_data_source *source) {
    bool file = rm_text_ends(source->data, ".bin") && !rm_path_is_directory(source->data);
    return source->images && (file || has_batches(source->data));
}

const rm_data_kind rm_data_image_cifar = {.bytes = sizeof(cifar_images),
                                          .reads = reads,
                                          .open = rm_images_open,
                                          .find = find,
                                          .close = close_images,
                                          .fill = rm_images_fill,
                                          .view = rm_images_view,
                                          .close_view = rm_images_close_view,
                                          .checksum = checksum,
                                          .threads = true};
