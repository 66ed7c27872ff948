/* album_cifar.c: CIFAR-10's binary files (cifar.h) as one album: those named, between commas, or the data_batch_*.bin of a folder. */
#include "train/data/album.h"

#include "memory/host.h"
#include "train/data/cifar.h"
#include "train/file.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

enum { MOST_BYTES = 1 << 30 }; /* of a file: five times all of CIFAR-10 */

typedef struct {
    rm_album base;
    uint8_t *data; /* of all files, one behind the other */
    size_t size;
} cifar_album;

static remat_status read_picture(rm_album *base, int64_t index, uint8_t *scratch, rm_array *picture) {
    (void)scratch;
    rm_cifar_picture(((cifar_album *)base)->data + index * RM_CIFAR_BYTES, picture);
    return REMAT_OK;
}

static remat_status checksum(rm_album *base, uint32_t *crc32) {
    const cifar_album *album = (cifar_album *)base;
    *crc32 = (uint32_t)crc32_z(0, album->data, album->size);
    return REMAT_OK;
}

static void close_album(rm_album *base) {
    cifar_album *album = (cifar_album *)base;
    rm_free(album->data);
    rm_free(base->labels);
    rm_free(album);
}

static remat_status append(cifar_album *album, const char *path) {
    uint8_t *data = NULL;
    size_t size;
    int64_t count;
    remat_status status = rm_file_read(path, MOST_BYTES, &data, &size);
    if (!status) status = rm_cifar_check(data, size, path, &count);
    uint8_t *all = status ? NULL : rm_realloc(album->data, album->size + size);
    if (all) {
        memcpy(all + album->size, data, size);
        album->data = all;
        album->size += size;
    }
    rm_free(data);
    TRY(status);
    REQUIRE(all, MEMORY, "no memory for the pictures in %s", path);
    return REMAT_OK;
}

/* data_batch_*.bin */
static int is_batch(const struct dirent *entry) {
    size_t length = strlen(entry->d_name);
    return length >= 15 && !strncmp(entry->d_name, "data_batch_", 11) && !strcmp(entry->d_name + length - 4, ".bin");
}

static int by_name(const struct dirent **a, const struct dirent **b) { return strcmp((*a)->d_name, (*b)->d_name); }

/* Without patterns: the folder's own name may hold what would be one. */
static int list_batches(const char *folder, struct dirent ***list) { return scandir(folder, list, is_batch, by_name); }

static void free_list(struct dirent **list, int count) {
    for (int i = 0; i < count; i++) free(list[i]);
    if (count >= 0) free(list);
}

bool rm_album_is_cifar(const char *folder) {
    struct dirent **list;
    int count = list_batches(folder, &list);
    free_list(list, count);
    return count > 0;
}

static remat_status append_folder(cifar_album *album, const char *folder) {
    struct dirent **list;
    int count = list_batches(folder, &list);
    REQUIRE(count >= 0, IO, "cannot read the folder %s: %s", folder, strerror(errno));
    remat_status status = count ? REMAT_OK : rm_fail(REMAT_IO, "%s has no data_batch_*.bin", folder);
    for (int i = 0; i < count && !status; i++) {
        char path[RM_PATH_BYTES];
        status = rm_path_join(path, sizeof path, folder, list[i]->d_name);
        if (!status) status = append(album, path);
    }
    free_list(list, count);
    return status;
}

static remat_status append_list(cifar_album *album, const char *list) {
    char path[RM_PATH_BYTES];
    while (*list) {
        size_t length = strcspn(list, ",");
        REQUIRE(length && length < sizeof path, INVALID, "--data=%.60s: a name between commas is empty or too long",
                list);
        memcpy(path, list, length);
        path[length] = 0;
        TRY(append(album, path));
        list += length + (list[length] == ',');
    }
    return REMAT_OK;
}

static remat_status read_files(cifar_album *album, const rm_data_source *source) {
    rm_album *base = &album->base;
    const char *path = source->data, *eval = source->held_out ? "eval-" : "";
    size_t length = strlen(path);
    bool folder = length < 4 || strcmp(path + length - 4, ".bin");
    REQUIRE(!source->labels, INVALID, "%s has its labels in it: leave --%slabels out", path, eval);
    TRY(folder ? append_folder(album, path) : append_list(album, path));
    base->count = (int64_t)(album->size / RM_CIFAR_BYTES);
    base->labels = rm_calloc((size_t)base->count, sizeof *base->labels);
    REQUIRE(base->labels, MEMORY, "no memory for %lld labels", (long long)base->count);
    for (int64_t i = 0; i < base->count; i++) base->labels[i] = album->data[i * RM_CIFAR_BYTES];
    base->held_bytes = album->size + 4 * (uint64_t)base->count;
    return REMAT_OK;
}

remat_status rm_album_open_cifar(const rm_data_source *source, rm_album **out) {
    cifar_album *album = rm_malloc(sizeof *album);
    REQUIRE(album, MEMORY, "no memory to open %s", source->data);
    *album = (cifar_album){.base = {.channels = 3,
                                    .height = RM_CIFAR_SIDE,
                                    .width = RM_CIFAR_SIDE,
                                    .most_width = RM_CIFAR_SIDE,
                                    .classes = RM_CIFAR_CLASSES,
                                    .unit = 255,
                                    .read = read_picture,
                                    .checksum = checksum,
                                    .close = close_album}};
    remat_status status = read_files(album, source);
    if (status)
        close_album(&album->base);
    else
        *out = &album->base;
    return status;
}
