/* images_folder.c: a folder with one folder of JPEG and PNG files per class, possibly nested, like ImageNet. It finds
 * the same files in the same order as torchvision's ImageFolder: sorted names number the classes, and symbolic links
 * are followed. Unlike ImageFolder, it skips class folders whose names begin with a dot, because editors and notebooks
 * create such folders. Opening the folder reads every file's header to find the memory that the largest image needs.
 * With --skip-broken it decodes every file and skips those that cannot be decoded. */
#include "train/data/images_folder.h"

#include "memory/host.h"
#include "train/data/workers.h"
#include "train/data/decode.h"
#include "train/file.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>
#include <zlib.h>

enum { HEADER_BYTES = 1 << 16 }; /* usually contains the size; long camera metadata may push it further back */

/* ---- An image --------------------------------------------------------------------------------------------------- */

static remat_status path_of(const rm_folder_images *from, int64_t index, char path[RM_PATH_BYTES]) {
    return rm_path_join(path, RM_PATH_BYTES, from->folder, from->image[index].name);
}

/* Reads the first `most` bytes, or the whole file if it is shorter. */
static remat_status read_bytes(const char *path, uint64_t most, uint8_t *data, uint64_t *size) {
    int fd;
    TRY(rm_file_open(path, &fd, size));
    remat_status status = rm_file_read_at(fd, path, 0, data, *size < most ? *size : most);
    close(fd);
    return status;
}

remat_status rm_folder_read(rm_images *images, int64_t index, uint8_t *scratch, rm_array *out) {
    const rm_folder_images *from = (rm_folder_images *)images;
    const rm_folder_image *p = &from->image[index];
    const int64_t C = images->channels, W = p->size.width;
    uint8_t *file = scratch + from->most_pixels * (uint64_t)C;
    char path[RM_PATH_BYTES];
    uint64_t size;
    TRY(path_of(from, index, path));
    TRY(read_bytes(path, p->bytes, file, &size));
    REQUIRE(size == p->bytes, IO, "%s has changed since the run began: start the run again", path);
    TRY(rm_image_decode(file, size, path, C, &p->size, scratch));
    *out = (rm_array){.kind = 'u', .bytes = 1, .rank = 3, .dim = {C, p->size.height, W, 1}, .stride = {1, W * C, C, 0}};
    out->count = C * W * p->size.height;
    out->item = scratch;
    return REMAT_OK;
}

/* Covers names and file sizes only: reading all of ImageNet would take as long as an epoch. */
remat_status rm_folder_checksum(rm_dataset *base, uint32_t *crc32) {
    const rm_folder_images *from = (rm_folder_images *)base;
    uLong sum = crc32_z(0, NULL, 0);
    for (int64_t i = 0; i < base->count; i++) {
        const rm_folder_image *p = &from->image[i];
        sum = crc32_z(sum, (const uint8_t *)p->name, strlen(p->name) + 1);
        sum = crc32_z(sum, (const uint8_t *)&p->bytes, sizeof p->bytes);
    }
    *crc32 = (uint32_t)sum;
    return REMAT_OK;
}

void rm_folder_free(rm_folder_images *from) {
    for (int64_t i = 0; i < from->images.base.count; i++) rm_free(from->image[i].name);
    rm_free(from->image);
    rm_free(from->folder);
}

static void close_images(rm_dataset *base) {
    rm_folder_free((rm_folder_images *)base);
    rm_images_close((rm_images *)base);
}

/* ---- Names ------------------------------------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

/* All extensions of ImageFolder, including formats that cannot be decoded here: those files are refused, not silently
 * skipped. */
static bool is_image(const char *name) {
    static const char *const endings[] = {".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"};
    const char *dot = strrchr(name, '.');
    for (size_t i = 0; dot && i < sizeof endings / sizeof *endings; i++)
        if (!strcasecmp(dot, endings[i])) return true;
    return false;
}

static remat_status add_name(rm_class_names *list, const char *root, const char *name, bool folders) {
    char path[RM_PATH_BYTES];
    TRY(rm_path_join(path, sizeof path, root, name));
    if (folders != rm_path_is_directory(path) || (!folders && !is_image(name))) return REMAT_OK;
    return rm_class_names_add(list, name);
}

static remat_status add_entry(rm_class_names *list, const char *root, const char *below, const char *name,
                              bool folders) {
    char joined[RM_PATH_BYTES];
    if (!strcmp(name, ".") || !strcmp(name, "..")) return REMAT_OK;
    if (!*below) return add_name(list, root, name, folders);
    TRY(rm_path_join(joined, sizeof joined, below, name));
    return add_name(list, root, joined, folders);
}

/* Adds the folders or images in root/below, each as below/NAME. below "": root itself. */
static remat_status add_names(rm_class_names *list, const char *root, const char *below, bool folders) {
    char path[RM_PATH_BYTES];
    remat_status status = REMAT_OK;
    TRY(rm_path_join(path, sizeof path, root, below));
    DIR *open = opendir(path);
    REQUIRE(open, IO, "cannot read the folder %s: %s", path, strerror(errno));
    for (struct dirent *entry; !status && (entry = readdir(open));)
        status = add_entry(list, root, below, entry->d_name, folders);
    closedir(open);
    return status;
}

static void sort_names(rm_class_names *list) {
    if (list->count) qsort(list->name, (size_t)list->count, sizeof *list->name, by_name);
}

remat_status rm_folder_add(rm_folder_images *from, const char *name, int32_t label) {
    REQUIRE(rm_grow(&from->image, &from->capacity, from->images.base.count + 1, sizeof *from->image), MEMORY,
            "no memory for the names of images");
    rm_folder_image *p = &from->image[from->images.base.count];
    *p = (rm_folder_image){.name = rm_strdup(name), .label = label};
    REQUIRE(p->name, MEMORY, "no memory for the names of images");
    from->images.base.held_bytes += strlen(name) + 1;
    from->images.base.count++;
    return REMAT_OK;
}

remat_status rm_folder_list(const char *folder, rm_class_names *out) {
    remat_status status = add_names(out, folder, "", false);
    sort_names(out);
    return status;
}

/* Adds the images of one folder, without its subfolders. */
static remat_status add_images(rm_folder_images *from, const char *folder, int32_t label) {
    rm_class_names files = {0};
    remat_status status = add_names(&files, from->folder, folder, false);
    sort_names(&files);
    for (int64_t i = 0; i < files.count && !status; i++) status = rm_folder_add(from, files.name[i], label);
    rm_class_names_free(&files);
    return status;
}

/* Adds a class's folder and all its subfolders, sorted by path: a, a-b, a/c. */
static remat_status add_class(rm_folder_images *from, const char *class_name, int32_t label) {
    rm_class_names folders = {0};
    remat_status status = add_name(&folders, from->folder, class_name, true);
    for (int64_t i = 0; i < folders.count && !status; i++)
        status = add_names(&folders, from->folder, folders.name[i], true);
    sort_names(&folders);
    for (int64_t i = 0; i < folders.count && !status; i++) status = add_images(from, folders.name[i], label);
    rm_class_names_free(&folders);
    return status;
}

static remat_status find_classes(rm_folder_images *from) {
    rm_class_names *names = &from->images.names;
    rm_class_names folders = {0};
    uLong sum = crc32_z(0, NULL, 0);
    remat_status status = add_names(&folders, from->folder, "", true);
    sort_names(&folders);
    for (int64_t i = 0; i < folders.count && !status; i++) {
        if (*folders.name[i] == '.') continue;
        sum = crc32_z(sum, (const uint8_t *)folders.name[i], strlen(folders.name[i]) + 1);
        status = rm_class_names_add(names, folders.name[i]);
    }
    rm_class_names_free(&folders);
    from->images.labels.classes = names->count;
    from->images.base.shape.class_names = (uint32_t)sum;
    return status;
}

/* With one class there is nothing to learn; often the given folder is the parent of the right one. */
static remat_status check_classes(const rm_folder_images *from, const rm_data_source *source) {
    const rm_folder_image *first = from->image, *last = first + from->images.base.count - 1;
    if (source->classes || source->unlabelled) return REMAT_OK;
    const char *only = from->images.names.name[first->label];
    REQUIRE(first->label != last->label, INVALID,
            "%s: all images are in one folder, %s, so there is only one class and nothing to learn: give the folder "
            "that has one folder per class",
            from->folder, only);
    return REMAT_OK;
}

static remat_status find_images(rm_folder_images *from, const rm_data_source *source) {
    TRY(find_classes(from));
    for (int64_t i = 0; i < from->images.names.count; i++) TRY(add_class(from, from->images.names.name[i], (int32_t)i));
    REQUIRE(from->images.base.count, INVALID,
            "%s has no folders with JPEG or PNG files: give a folder that has one folder per class, like ImageNet, an "
            "IDX or .npy file, or CIFAR-10's data_batch_*.bin",
            from->folder);
    return check_classes(from, source);
}

/* ---- Scanning all files -------------------------------------------------------------------------------------------- */

static remat_status decode_once(const rm_folder_images *from, const char *path, const rm_folder_image *p,
                                const uint8_t *file) {
    uint8_t *pixels = rm_malloc((size_t)(p->size.height * p->size.width * from->images.channels));
    REQUIRE(pixels, MEMORY, "no memory for the image in %s", path);
    remat_status status = rm_image_decode(file, p->bytes, path, from->images.channels, &p->size, pixels);
    rm_free(pixels);
    return status;
}

static remat_status look_at_bytes(const rm_folder_images *from, const char *path, uint64_t most, rm_folder_image *p) {
    uint8_t *file = rm_malloc(most ? most : 1);
    REQUIRE(file, MEMORY, "no memory to read %s", path);
    remat_status status = read_bytes(path, most, file, &p->bytes);
    uint64_t size = p->bytes < most ? p->bytes : most;
    if (!status) status = rm_image_size_of(file, size, path, &p->size);
    if (!status && from->decodes) status = decode_once(from, path, p, file);
    rm_free(file);
    return status;
}

/* Reads the start of the file; if that is not enough, all of it. */
static remat_status look_at(void *context, int64_t i) {
    rm_folder_images *from = context;
    rm_folder_image *p = &from->image[i];
    char path[RM_PATH_BYTES];
    int fd = -1;
    uint64_t bytes;
    TRY(path_of(from, i, path));
    remat_status status = rm_file_open(path, &fd, &bytes);
    if (fd >= 0) close(fd);
    bool part = !status && !from->decodes && bytes > HEADER_BYTES;
    if (!status) status = look_at_bytes(from, path, part ? HEADER_BYTES : bytes, p);
    if (status == REMAT_IO && part) status = look_at_bytes(from, path, bytes, p);
    p->broken = status == REMAT_IO && from->decodes;
    return p->broken ? REMAT_OK : status;
}

remat_status rm_folder_look_at_all(rm_folder_images *from, int64_t threads) {
    return rm_workers_run(threads, look_at, from, from->images.base.count);
}

/* Reports the first broken file and how many others there are. */
static remat_status leave_broken_out(rm_folder_images *from) {
    int64_t n = 0, broken = 0;
    for (int64_t i = 0; i < from->images.base.count; i++) {
        rm_folder_image *p = &from->image[i];
        if (p->broken && !broken++)
            fprintf(stderr, "remat: %s/%s cannot be read and is skipped\n", from->folder, p->name);
        if (p->broken)
            rm_free(p->name);
        else
            from->image[n++] = *p;
    }
    from->images.base.count = n;
    if (broken > 1) fprintf(stderr, "remat: ... and %lld more\n", (long long)broken - 1);
    REQUIRE(n, IO, "no file in %s can be read: check one of them in an image viewer", from->folder);
    return REMAT_OK;
}

static uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

void rm_folder_measure(rm_folder_images *from) {
    rm_images *images = &from->images;
    for (int64_t i = 0; i < images->base.count; i++) {
        const rm_folder_image *p = &from->image[i];
        images->decoder_bytes = larger(images->decoder_bytes, p->size.decoder_bytes);
        from->most_bytes = larger(from->most_bytes, p->bytes);
        from->most_pixels = larger(from->most_pixels, (uint64_t)(p->size.height * p->size.width));
        if (p->size.width > images->most_width) images->most_width = p->size.width;
    }
    images->scratch_bytes = from->most_pixels * (uint64_t)images->channels + from->most_bytes;
    images->base.held_bytes += (uint64_t)from->capacity * sizeof *from->image;
}

static remat_status settle(rm_folder_images *from) {
    rm_images *images = &from->images;
    int64_t count = images->base.count;
    TRY(rm_labels_make_room(&images->labels, count, 1, 1));
    for (int64_t i = 0; i < count; i++) ((int32_t *)images->labels.item)[i] = from->image[i].label;
    rm_folder_measure(from);
    images->base.held_bytes += rm_labels_bytes(&images->labels, count);
    return REMAT_OK;
}

remat_status rm_folder_begin(rm_folder_images *from, const rm_data_source *source) {
    rm_images *images = &from->images;
    images->channels = source->channels ? source->channels : 3;
    images->unit = 255;
    images->read = rm_folder_read;
    from->folder = rm_strdup(source->data);
    REQUIRE(from->folder, MEMORY, "no memory to open %s", source->data);
    REQUIRE(images->channels == 1 || images->channels == 3, INVALID,
            "--channels=%lld: images in folders are read with 3 channels (red, green, blue) or 1 (grey): give 3 or 1",
            (long long)images->channels);
    return REMAT_OK;
}

static remat_status find(rm_images *images, const rm_data_source *source) {
    rm_folder_images *from = (rm_folder_images *)images;
    REQUIRE(!source->labels, INVALID, "%s gets its classes from its folders: remove --%slabels", source->data,
            source->held_out ? "eval-" : "");
    TRY(rm_folder_begin(from, source));
    from->decodes = source->skip_broken;
    TRY(find_images(from, source));
    TRY(rm_folder_look_at_all(from, source->threads));
    if (from->decodes) TRY(leave_broken_out(from));
    return settle(from);
}

static bool reads(const rm_data_source *source) { return source->images && rm_path_is_directory(source->data); }

const rm_data_kind rm_data_image_folder = {.bytes = sizeof(rm_folder_images),
                                           .reads = reads,
                                           .open = rm_images_open,
                                           .find = find,
                                           .close = close_images,
                                           .fill = rm_images_fill,
                                           .view = rm_images_view,
                                           .close_view = rm_images_close_view,
                                           .checksum = rm_folder_checksum,
                                           .threads = true};
