/* transform.h: converts an image to the model's input: crops, resizes, flips and normalises it.
 *
 *     evaluation    the shorter side is resized to --resize, otherwise to --image-size, then the centre of --image-size is cropped; without
 *                   these flags, images are unchanged
 *     crop:P        pads each side with P zeros and crops a random part of the original size: torchvision's RandomCrop(padding=P)
 *     flip          mirrors left and right, with probability 1/2
 *     resized-crop  crops 8 to 100 % of the area at an aspect ratio of 3/4 to 4/3: torchvision's RandomResizedCrop
 *
 * Resizing uses the triangle filter of Pillow's BILINEAR, widened when an image becomes smaller, without rounding to bytes. Random
 * numbers are a function of (seed, epoch, sample). */
#ifndef RM_TRANSFORM_H
#define RM_TRANSFORM_H

#include "train/data/array.h"

/* --augment=crop:4,flip. */
typedef struct {
    int64_t crop;
    bool flip, resized_crop;
} rm_augment;
remat_status rm_augment_parse(const char *text, rm_augment *out); /* NULL, "none": no augmentation */

enum { RM_MOST_CHANNELS = 64 };

/* --normalize=MEAN:STD, or one pair per channel (of sequences: per feature), separated by commas; NULL, "none": mean 0, deviation 1. */
typedef struct {
    float mean[RM_MOST_CHANNELS], deviation[RM_MOST_CHANNELS];
} rm_normalize;
remat_status rm_normalize_parse(const char *text, int64_t channels, rm_normalize *out);

/* Output pixel (y,x) is the filtered image around the corresponding point of the box. */
typedef struct {
    double top, left, box_height, box_width;        /* in the image's pixels */
    int64_t first_row, rows, first_column, columns; /* the part of the image that the filter may read */
    int64_t height, width;                          /* of the output */
    int64_t down, right;                            /* shift of the output; the gap is filled with zeros */
    bool flip;
} rm_transform;

/* What images become. */
typedef struct {
    int64_t height, width;
    int64_t resize; /* the shorter side, before the centre is cropped; 0: as small as the crop allows */
} rm_crop;

/* The transform for evaluation, without randomness. */
rm_transform rm_transform_fixed(int64_t image_height, int64_t image_width, const rm_crop *crop);
/* The transform for training. */
rm_transform rm_transform_random(const rm_augment *augment, uint64_t seed, int64_t epoch, int64_t sample,
                                 int64_t image_height, int64_t image_width, const rm_crop *crop);

/* out (channels,height,width) = (value / unit - mean) / deviation. `line` is scratch for one row of the image. */
void rm_transform_apply(const rm_transform *transform, const rm_array *image, double unit,
                        const rm_normalize *normalize, float *line, float *out);

/* The byte of a mask (1,height,width) that is nearest to pixel (y,x) of the output, for transforms without randomness. */
uint8_t rm_transform_nearest(const rm_transform *transform, const rm_array *mask, int64_t y, int64_t x);

#endif
