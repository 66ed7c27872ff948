/* album.h: where pictures come from, one at a time and in any order, each as an array (channels, height, width). A kind of album is
 * one file:
 *
 *     array    .npy (N,C,H,W), (N,H,W,C) or (N,H,W), or IDX images (N,H,W); labels from a file of their own
 *     cifar    CIFAR-10's binary files, one or several: a byte for the label, then 3 x 32 x 32
 *     folder   a folder of JPEG and PNG files by class, as ImageNet lies
 */
#ifndef RM_ALBUM_H
#define RM_ALBUM_H

#include "train/data/array.h"
#include "train/data/class_names.h"
#include "train/data/dataset.h"

typedef struct rm_album rm_album;
struct rm_album {
    int64_t count;
    int64_t channels, height, width; /* height 0: each picture has its own, up to most_width wide */
    int64_t most_width;
    double unit;         /* what numbers are divided by: 255 where they are bytes */
    int32_t *labels;     /* that come with the pictures, below `classes`; NULL: none do */
    int64_t label_count; /* one for each picture, or for each pixel; of arrays */
    int64_t classes;
    rm_class_names names;   /* of the classes */
    uint32_t class_names;   /* a checksum of them, in order; 0: they have none */
    uint64_t held_bytes;    /* kept in memory, labels included */
    uint64_t scratch_bytes; /* that `read` needs of each thread */
    uint64_t decoder_bytes; /* that it takes besides, at most, while it runs */
    /* *picture points into the album or into `scratch`. IO when it cannot be read. Several threads may call it. */
    remat_status (*read)(rm_album *, int64_t index, uint8_t *scratch, rm_array *picture);
    remat_status (*checksum)(rm_album *, uint32_t *crc32); /* labels included */
    void (*close)(rm_album *);
};

bool rm_album_is_cifar(const char *folder); /* it has files data_batch_*.bin */

/* Of the kind that source->data is: a folder of files data_batch_*.bin, or files that end in .bin, are CIFAR-10's; another
 * folder has a folder for each class; any other file is an array. */
remat_status rm_album_open(const rm_data_source *source, rm_album **out);
void rm_album_close(rm_album *album); /* NULL allowed */

remat_status rm_album_open_array(const rm_data_source *source, rm_album **out);
remat_status rm_album_open_cifar(const rm_data_source *source, rm_album **out);
remat_status rm_album_open_folder(const rm_data_source *source, rm_album **out);

#endif
