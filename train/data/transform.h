/* transform.h: from an image to what a model reads: which part of it, at what size, turned round or not, and its numbers brought to
 * the scale that training wants.
 *
 *     evaluation    the shorter side becomes --image-size, and the middle is cut out; without it images stay as they are
 *     crop:P        P zeros on each side, and a part of the old size from anywhere in that: torchvision's RandomCrop(padding=P)
 *     flip          left and right exchanged, for one image in two
 *     resized-crop  a part of 8 to 100 % of the image, 3/4 to 4/3 as wide as it is high: torchvision's RandomResizedCrop
 *
 * Resizing is the triangle filter of Pillow's BILINEAR, widened where an image becomes smaller; it works on numbers, and does not
 * round to bytes. What is drawn is a function of (seed, epoch, sample) alone. */
#ifndef RM_TRANSFORM_H
#define RM_TRANSFORM_H

#include "train/data/array.h"

/* --augment=crop:4,flip. */
typedef struct {
    int64_t crop;
    bool flip, resized_crop;
} rm_augment;
remat_status rm_augment_parse(const char *text, rm_augment *out); /* NULL, "none": nothing */

enum { RM_MOST_CHANNELS = 64 };

/* --normalize=MEAN:STD, or one such for each channel, between commas; NULL, "none": as they are. */
typedef struct {
    float mean[RM_MOST_CHANNELS], deviation[RM_MOST_CHANNELS];
} rm_normalize;
remat_status rm_normalize_parse(const char *text, int64_t channels, rm_normalize *out);

/* Output pixel (y,x) is the image around that point of the box, at the scale of box to output. */
typedef struct {
    double top, left, box_height, box_width;        /* in the image's pixels */
    int64_t first_row, rows, first_column, columns; /* of the image: what may be looked at */
    int64_t height, width;                          /* of the output */
    int64_t down, right;                            /* the output is moved so far, and zeros fill it up */
    bool flip;
} rm_transform;

/* Of an image of this size: without anything random. */
rm_transform rm_transform_fixed(int64_t image_height, int64_t image_width, int64_t height, int64_t width);
/* ... and with it. */
rm_transform rm_transform_random(const rm_augment *augment, uint64_t seed, int64_t epoch, int64_t sample,
                                 int64_t image_height, int64_t image_width, int64_t height, int64_t width);

/* out (channels,height,width) = (value / unit - mean) / deviation. `line` has room for as many floats as the image is wide. */
void rm_transform_apply(const rm_transform *transform, const rm_array *image, double unit,
                        const rm_normalize *normalize, float *line, float *out);

#endif
