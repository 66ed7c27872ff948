/* images_folder.h: JPEG and PNG files in a folder, by name, as image sources read them: images_folder.c, with a folder for each class, and
 * images_masks.c, with a mask for each image. */
#ifndef RM_IMAGES_FOLDER_H
#define RM_IMAGES_FOLDER_H

#include "train/data/decode.h"
#include "train/data/images.h"

typedef struct {
    char *name; /* path below `folder` */
    int32_t label;
    bool broken;
    uint64_t bytes;
    rm_image_size size;
} rm_folder_image;

typedef struct {
    rm_images images;
    char *folder;
    rm_folder_image *image; /* (images.base.count) */
    int64_t capacity;
    uint64_t most_bytes, most_pixels;
    bool decodes; /* opening decodes every image, to find broken ones */
} rm_folder_images;

/* Adds the names of a folder's images, without its subfolders, sorted. IO: it cannot be read. */
remat_status rm_folder_list(const char *folder, rm_class_names *out);
remat_status rm_folder_add(rm_folder_images *from, const char *name, int32_t label);
/* Sets what both kinds have in common. INVALID: an unsupported number of channels. */
remat_status rm_folder_begin(rm_folder_images *from, const rm_data_source *source);
/* Reads the sizes of all files on this many threads. */
remat_status rm_folder_look_at_all(rm_folder_images *from, int64_t threads);
/* Computes the largest sizes and the scratch that rm_folder_read needs. */
void rm_folder_measure(rm_folder_images *from);
remat_status rm_folder_read(rm_images *images, int64_t index, uint8_t *scratch, rm_array *out);
remat_status rm_folder_checksum(rm_dataset *base, uint32_t *crc32);
void rm_folder_free(rm_folder_images *from); /* but for from->images */

#endif
