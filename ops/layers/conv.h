/* conv.h: the shape of a convolution, plain or transposed, for the CPU and CUDA, and the fast convolutions of the CPU.
 *
 * A transposed convolution is the gradient of a plain one by its image: it has the plain one's shape and products, and
 * x and y change places. x is then (.., groups * outputs, out) and y (.., groups * channels, in). */
#ifndef RM_CONV_H
#define RM_CONV_H

#include "engine/host_device.h"
#include "ops/op.h"

typedef struct {
    int64_t images, groups, channels, outputs; /* channels, outputs: per group */
    int64_t in[2], out[2], filter[2], stride[2], padding[2], dilation[2];
    int64_t pixels, positions; /* in[0] in[1], out[0] out[1] */
    int64_t transposed;
} rm_conv_shape;

/* 1D convolutions have height 1; transposed ones are 2D. */
static inline rm_conv_shape rm_conv_shape_of(const remat_desc *x, const remat_desc *w, const void *attr) {
    const rm_conv_attr *a = (const rm_conv_attr *)attr;
    int lead = x->rank - w->rank + 1, flat = w->rank == 3; /* lead: axes that count images; flat: 1D, without height */
    rm_conv_shape s = {1,      a->groups, w->dim[1], w->dim[0] / a->groups, {1, 1}, {1, 1}, {1, 1}, {1, 1}, {0, 0},
                       {1, 1}, 1,         1,         a->transposed};
    for (int d = 0; d < lead; d++) s.images *= x->dim[d];
    for (int d = flat; d < 2; d++) {
        int64_t size = x->dim[lead + 1 + d - flat];
        s.filter[d] = w->dim[2 + d - flat];
        s.stride[d] = a->stride[d], s.padding[d] = a->padding[d], s.dilation[d] = a->dilation[d];
        int64_t room = size + 2 * s.padding[d] - s.dilation[d] * (s.filter[d] - 1) - 1;
        s.in[d] = size, s.out[d] = room < 0 ? 0 : room / s.stride[d] + 1;
        if (!s.transposed) continue;
        s.out[d] = size;
        s.in[d] =
            (size - 1) * s.stride[d] - 2 * s.padding[d] + s.dilation[d] * (s.filter[d] - 1) + a->output_padding[d] + 1;
    }
    s.pixels = s.in[0] * s.in[1], s.positions = s.out[0] * s.out[1];
    return s;
}

/* ---- conv.cuh: convolutions on CUDA as matrix products --------------------------------------------------------------------- */

/* Convolutions are products with a matrix that has a column for each position, the pixels under the filter; scratch holds
 * that matrix and one of all outputs, for each group, and for a part of all positions at a time: at most these many, and no
 * more floats than these. The first is in conv.c; tests reduce it. */
extern int64_t rm_conv_most_columns;
enum { RM_CONV_MOST_FLOATS = 1 << 24 };

/* Of one group. */
static inline int64_t rm_conv_taps(const rm_conv_shape *s) { return s->channels * s->filter[0] * s->filter[1]; }

static inline int64_t rm_conv_columns(const rm_conv_shape *s) {
    int64_t all = s->images * s->positions, most = RM_CONV_MOST_FLOATS / s->groups / (rm_conv_taps(s) + s->outputs);
    if (most > rm_conv_most_columns) most = rm_conv_most_columns;
    if (most < 1) most = 1;
    return all < most ? all : most;
}

/* Where the second matrix starts in scratch: aligned, as cuBLAS likes it. */
static inline int64_t rm_conv_planes_at(const rm_conv_shape *s) {
    return (s->groups * rm_conv_taps(s) * rm_conv_columns(s) + 3) / 4 * 4;
}

/* Filters of one pixel that read every pixel once: y is a product of w and the image as it lies. */
static inline bool rm_conv_is_pointwise(const rm_conv_shape *s) {
    bool is = s->groups == 1;
    for (int d = 0; d < 2; d++)
        is = is && s->filter[d] == 1 && s->stride[d] == 1 && !s->padding[d] && s->in[d] == s->out[d];
    return is;
}

/* Filters that read a single channel of several; they have kernels of their own. */
static inline bool rm_conv_is_depthwise(const rm_conv_shape *s) { return s->groups > 1 && s->channels == 1; }

/* Floats of scratch; 0: no matrices. */
static inline int64_t rm_conv_scratch_cuda(const rm_conv_shape *s, remat_pass pass) {
    const bool none = rm_conv_is_depthwise(s) || (pass == REMAT_FORWARD && rm_conv_is_pointwise(s));
    return none ? 0 : rm_conv_planes_at(s) + s->groups * s->outputs * rm_conv_columns(s);
}

/* ---- convolve.c: float convolutions on the CPU with the kernels of this machine's instruction set ------------------------ */

/* Floats of scratch for this pass; enough for any number of threads. */
int64_t rm_convolve_scratch(const rm_conv_shape *s, remat_pass pass);

/* y and dx are overwritten, dw is added to. b, dx, dw: NULL if absent. No bits depend on `threads`, and those of
 * y and dx do not depend on the other images of the batch. dw is summed in groups of 256 / positions images, at least
 * one: a batch that is split between such groups gives the same bits. */
void rm_convolve_forward(const rm_conv_shape *s, int threads, const float *x, const float *w, const float *b, float *y,
                         float *scratch);
void rm_convolve_backward(const rm_conv_shape *s, int threads, const float *x, const float *w, const float *dy,
                          float *dx, float *dw, float *scratch);

#endif
