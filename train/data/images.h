/* images.h: images with classes, as a kind of data. An image source reads one image at a time, in any order, as an array
 * (channels,height,width); transform.h converts it to the model's input. Several threads may fill different columns at the same
 * time; each borrows one of the scratch blocks. An image source is one file with one rm_data_kind (kinds.def):
 *
 *     images_array    .npy (N,C,H,W), (N,H,W,C) or (N,H,W), or IDX images (N,H,W); labels from a separate file
 *     images_cifar    one or several of CIFAR-10's binary files: a byte for the label, then 3 x 32 x 32
 *     images_folder   JPEG and PNG files in one folder per class, like ImageNet
 *     images_masks    JPEG and PNG files in a folder, and a mask for each in another one: a class for each pixel
 */
#ifndef RM_IMAGES_H
#define RM_IMAGES_H

#include "train/data/transform.h"
#include "train/data/labels.h"

#include <pthread.h>

typedef struct rm_images rm_images;
struct rm_images {
    rm_dataset base;
    /* Set by the image source in rm_images_find: */
    int64_t channels, height, width; /* height 0: sizes differ, and no image is wider than most_width */
    int64_t most_width;
    double unit;            /* divisor of all numbers: 255 for bytes, else 1 */
    rm_labels labels;       /* one per image or per pixel, less than labels.classes */
    rm_class_names names;   /* of the classes */
    uint64_t scratch_bytes; /* per thread, for `read` */
    uint64_t decoder_bytes; /* per thread: upper bound of what `read` allocates while it runs */
    /* *image points into the source's memory or into `scratch`. IO when the image cannot be read. Thread-safe. */
    remat_status (*read)(rm_images *, int64_t index, uint8_t *scratch, rm_array *image);
    /* NULL, or instead of `labels`: *mask has a byte for each pixel of the image, which class_of maps to its class, or to -1. May
     * overwrite the image in `scratch`. */
    remat_status (*read_mask)(rm_images *, int64_t index, uint8_t *scratch, rm_array *mask);
    int32_t class_of[256];
    /* Set by images.c: */
    rm_augment augment;
    rm_normalize normalize;
    rm_crop crop;
    uint64_t seed;
    pthread_mutex_t lock; /* of the two below */
    struct rm_images_scratch *free;
    int64_t n_free, n_scratch;
};

/* Parts of the rm_data_kind of an image source, whose `find` sets the members above, base.count, held_bytes and
 * shape.class_names. */
remat_status rm_images_open(rm_dataset *images, const rm_data_source *source);
void rm_images_close(rm_images *images);
remat_status rm_images_view(rm_dataset *copy);
void rm_images_close_view(rm_dataset *copy);
remat_status rm_images_fill(rm_dataset *, int64_t index, int64_t column, int64_t batch, void *input, void *target);

#endif
