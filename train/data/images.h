/* images.h: images as a kind of data: reads them from where they lie, one at a time and in any order, each as an array
 * (channels,height,width); transformed (transform.h) as the model reads them; each with its class. Several threads may fill different columns at a
 * time: each borrows one of as many scratch blocks. A place where images lie is one file with one rm_data_kind
 * (kinds.def):
 *
 *     images_array    .npy (N,C,H,W), (N,H,W,C) or (N,H,W), or IDX images (N,H,W); labels from a file of their own
 *     images_cifar    CIFAR-10's binary files, one or several: a byte for the label, then 3 x 32 x 32
 *     images_folder   a folder of JPEG and PNG files by class, as ImageNet lies
 */
#ifndef RM_IMAGES_H
#define RM_IMAGES_H

#include "train/data/transform.h"
#include "train/data/labels.h"

#include <pthread.h>

typedef struct rm_images rm_images;
struct rm_images {
    rm_dataset base;
    /* What the place says, by rm_images_find: */
    int64_t channels, height, width; /* height 0: each image has its own, up to most_width wide */
    int64_t most_width;
    double unit;            /* what numbers are divided by: 255 where they are bytes */
    rm_labels labels;       /* that come with the images, one each or one for each pixel, below labels.classes */
    rm_class_names names;   /* of the classes */
    uint64_t scratch_bytes; /* that `read` needs of each thread */
    uint64_t decoder_bytes; /* that it takes besides, at most, while it runs */
    /* *image points into what the place holds or into `scratch`. IO when it cannot be read. Several threads may call it. */
    remat_status (*read)(rm_images *, int64_t index, uint8_t *scratch, rm_array *image);
    /* What images.c makes of it: */
    rm_augment augment;
    rm_normalize normalize;
    uint64_t seed;
    pthread_mutex_t lock; /* of the two below */
    struct rm_images_scratch *free;
    int64_t n_free, n_scratch;
};

/* For the kinds: opening, around what finds the images and sets the members above, base.count, held_bytes and
 * shape.class_names; the same for closing; and the rest of the kind. */
typedef remat_status rm_images_find(rm_images *, const rm_data_source *);
remat_status rm_images_open(rm_images *images, const rm_data_source *source, rm_images_find *find);
void rm_images_close(rm_images *images);
remat_status rm_images_fill(rm_dataset *, int64_t index, int64_t column, int64_t batch, void *input, void *target);

#endif
