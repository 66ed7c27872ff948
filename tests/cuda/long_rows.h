/* long_rows.h: samples of ops whose rows and channels are longer than those of the ops' own samples (ops/cuda/fours.cuh,
 * channels.cuh), for cuda/rows, in emulation, and tests/gpu/test_ops.c, on a card. */
#ifndef TEST_CUDA_LONG_ROWS_H
#define TEST_CUDA_LONG_ROWS_H

#include <float.h>
#include <math.h>

#include "ops/check/op_run.h"
#include "ops/op.h"

static const rm_layer_norm_attr layer = {1e-5};
static const rm_rms_norm_attr rms = {1e-5};
static const rm_group_norm_attr groups = {1e-5, 2, 1};
static const rm_batch_norm_attr batch = {0.1, 1e-5, 1, 0, 0}, batch_relu = {0.1, 1e-5, 1, 0, 1};
static const rm_cross_entropy_attr smoothed = {.smoothing = 0.1};
static const rm_mean_attr all_of_row = {1, 0};
static const rm_dice_attr joint = {1, -1}, ignores = {0, 1};
static const rm_pool_attr halves = {{2, 2}, {2, 2}, {0, 0}}, overlapping = {{3, 3}, {2, 2}, {1, 1}};

typedef struct {
    const char *op;
    const void *attr;
    int64_t rank, dim[4]; /* of x */
    int vectors;          /* inputs after it with one number for each element of axis 1 */
    int targets;          /* 1: an input after it with an integer for each row of the last axis */
} long_row;

/* Rows are held by a warp up to 1,024 floats, by a block up to 8,192, then by the largest block up to 32,768. */
static const long_row long_rows[] = {
    {"layer_norm", &layer, 2, {5, 1024}, 2, 0},
    {"layer_norm", &layer, 2, {3, 1027}, 2, 0},
    {"layer_norm", &layer, 2, {2, 8195}, 2, 0},
    {"layer_norm", &layer, 2, {1, 33001}, 2, 0},
    {"layer_norm", &layer, 2, {1201, 35}, 2, 0},
    {"layer_norm", &layer, 2, {3301, 35}, 2, 0}, /* up to 1,024 floats, a warp has several rows, for the sums down the columns */
    {"layer_norm", &layer, 2, {1601, 8}, 2, 0},
    {"layer_norm", &layer, 2, {601, 1037}, 2, 0}, /* up to 4,096 a block has several */
    {"layer_norm", &layer, 2, {3, 4096}, 2, 0},
    {"rms_norm", &rms, 2, {3301, 33}, 1, 0},
    {"rms_norm", &rms, 2, {5, 1022}, 1, 0},
    {"rms_norm", &rms, 2, {601, 1041}, 1, 0},
    {"rms_norm", &rms, 2, {2, 4097}, 1, 0},
    {"rms_norm", &rms, 2, {2, 8194}, 1, 0},
    {"rms_norm", &rms, 2, {1, 33002}, 1, 0},
    {"group_norm", &groups, 3, {2, 6, 350}, 2, 0},
    {"group_norm", &groups, 3, {1, 4, 4101}, 2, 0},
    {"group_norm", &groups, 3, {1, 4, 16503}, 2, 0},
    {"softmax", NULL, 2, {3, 1030}, 0, 0},
    {"softmax", NULL, 2, {1, 33001}, 0, 0},
    {"log_softmax", NULL, 2, {3, 8193}, 0, 0},
    {"log_softmax", NULL, 2, {1, 33001}, 0, 0},
    {"softmax_cross_entropy", NULL, 2, {17, 1029}, 0, 1},
    {"softmax_cross_entropy", &smoothed, 2, {2, 33001}, 0, 1},
    {"batch_norm", &batch, 4, {2, 3, 70, 71}, 4, 0},
    {"batch_norm", &batch, 3, {3, 5, 4099}, 4, 0},
    {"batch_norm", &batch, 2, {3001, 34}, 4, 0},
    {"batch_norm", &batch_relu, 3, {3, 5, 4099}, 4, 0},
    {"batch_norm", &batch_relu, 2, {3001, 34}, 4, 0},
    {"mean", &all_of_row, 2, {3, 5001}, 0, 0},
    {"mul", NULL, 2, {3001, 34}, 1, 0}, /* gradients that are sums: of as many terms as rows */
    {"div", NULL, 2, {2051, 3}, 1, 0},
    {"add", NULL, 2, {9001, 1}, 1, 0},
    {"sub", NULL, 2, {63, 1030}, 1, 0},
    {"dice", NULL, 3, {2, 1500, 2}, 0, 1}, /* pixels of 2, 3 and 4 classes are held, those of 5 are not */
    {"dice", &joint, 3, {3, 1030, 2}, 0, 1},
    {"dice", &ignores, 3, {2, 1500, 3}, 0, 1},
    {"dice", NULL, 4, {2, 2, 1100, 4}, 0, 1},
    {"dice", &joint, 3, {1, 4097, 4}, 0, 1},
    {"dice", &ignores, 3, {2, 1500, 5}, 0, 1},
    {"max_pool", &halves, 3, {3, 7, 9}, 0, 0}, /* odd sizes: rows and columns in no window, rows at every alignment */
    {"max_pool", &halves, 4, {2, 2, 6, 16}, 0, 0},
    {"max_pool", &halves, 3, {1, 5, 3}, 0, 0},
    {"max_pool", &overlapping, 3, {3, 7, 9}, 0, 0},
    {"max_pool", &overlapping, 4, {2, 2, 6, 16}, 0, 0},
    {"avg_pool", &halves, 3, {3, 7, 9}, 0, 0},
    {"avg_pool", &halves, 4, {2, 2, 6, 16}, 0, 0},
    {"avg_pool", &halves, 3, {1, 5, 3}, 0, 0},
    {"avg_pool", &overlapping, 3, {3, 7, 9}, 0, 0},
};
enum { LONG_ROWS = sizeof long_rows / sizeof *long_rows };

static inline remat_sample long_row_sample(const long_row *s) {
    remat_sample sample = {.name = "long", .attr = s->attr};
    for (int i = 0; i < REMAT_MAX_INPUTS; i++) sample.x[i].rank = -1;
    sample.x[0] = rm_desc_make(REMAT_F32, (int)s->rank, s->dim);
    for (int i = 1; i <= s->vectors; i++) sample.x[i] = rm_desc_make(REMAT_F32, 1, &s->dim[1]);
    if (s->targets) sample.x[1] = rm_desc_make(REMAT_I32, (int)s->rank - 1, s->dim);
    return sample;
}

/* The first element in which two results differ; -1: none does. Both sides add in double, and then round a few times, by a
 * unit of the largest number each time. */
static inline int64_t long_row_difference(const rm_op_array *here, const rm_op_array *there) {
    double largest = 0;
    for (int64_t i = 0; i < here->count; i++) largest = fmax(largest, fabs(here->value[i]));
    for (int64_t i = 0; i < here->count; i++)
        if (!(fabs(here->value[i] - there->value[i]) <= 16 * FLT_EPSILON * largest)) return i;
    return -1;
}

#endif
