/* conv_kernels.h: `cost` and the CPU kernels of the ops conv and conv_transpose, which rm_conv_shape.transposed tells
 * apart. The fast kernels are in convolve.c. In memory images are (images, channels, h, w). */
#ifndef RM_CONV_KERNELS_H
#define RM_CONV_KERNELS_H

#include "ops/real.h"

#include <string.h>

#include "ops/layers/conv.h"
#include "ops/math/parallel.h"
#include "ops/op.h"
#include "ops/shape.h"

enum { X, W, B };

/* Checks groups, strides, dilations and paddings of the axes from `from` on: 0 is the height, 1 the width. */
static remat_status check_attr(const char *op, const rm_conv_attr *a, int from) {
    static const char *const axis[] = {"height", "width"};
    REQUIRE(a && a->groups > 0, INVALID, "%s: groups is %lld; it must be 1 or more", op, a ? (long long)a->groups : 0);
    for (int d = from; d < 2; d++)
        REQUIRE(a->stride[d] > 0 && a->dilation[d] > 0 && a->padding[d] >= 0 && a->stride[d] <= INT32_MAX &&
                    a->dilation[d] <= INT32_MAX && a->padding[d] <= INT32_MAX,
                INVALID,
                "%s: along the %s, stride is %lld, padding %lld and dilation %lld; strides and dilations must be 1 or "
                "more, paddings 0 or more, and all below 2^31",
                op, axis[d], (long long)a->stride[d], (long long)a->padding[d], (long long)a->dilation[d]);
    return REMAT_OK;
}

/* ---- The definition ---------------------------------------------------------------------------------------------- */

/* Element (i,j) of the filter at position (r,q) reads pixel (*y,*x) of the image; false: padding. */
static bool pixel_under(const rm_conv_shape *s, int64_t r, int64_t q, int64_t i, int64_t j, int64_t *pixel) {
    int64_t y = r * s->stride[0] - s->padding[0] + i * s->dilation[0];
    int64_t x = q * s->stride[1] - s->padding[1] + j * s->dilation[1];
    *pixel = y * s->in[1] + x;
    return y >= 0 && y < s->in[0] && x >= 0 && x < s->in[1];
}

/* Called for every product of the convolution, with the indices of its factors and of the sum that it is part of.
 * Transposed, the factor is at the position and the sum at the pixel. */
typedef void product(const remat_call *call, int64_t x, int64_t w, int64_t y);

static void each_product(const remat_call *call, const rm_conv_shape *s, product *visit) {
    int64_t outputs = s->groups * s->outputs, pixel;
    for (int64_t n = 0; n < s->images; n++)
        for (int64_t o = 0; o < outputs; o++)
            for (int64_t p = 0; p < s->positions; p++)
                for (int64_t c = 0; c < s->channels; c++)
                    for (int64_t i = 0; i < s->filter[0]; i++)
                        for (int64_t j = 0; j < s->filter[1]; j++) {
                            if (!pixel_under(s, p / s->out[1], p % s->out[1], i, j, &pixel)) continue;
                            int64_t image = n * s->groups * s->channels + o / s->outputs * s->channels + c;
                            int64_t at[] = {image * s->pixels + pixel, (n * outputs + o) * s->positions + p};
                            visit(call, at[s->transposed],
                                  ((o * s->channels + c) * s->filter[0] + i) * s->filter[1] + j, at[!s->transposed]);
                        }
}

static void add_forward(const remat_call *call, int64_t x, int64_t w, int64_t y) {
    ((real *)call->y.data)[y] += ((const real *)call->x[X].data)[x] * ((const real *)call->x[W].data)[w];
}

static void add_backward(const remat_call *call, int64_t x, int64_t w, int64_t y) {
    real dy = ((const real *)call->dy.data)[y], *dx = call->dx[X].data, *dw = call->dx[W].data;
    if (dx) dx[x] += dy * ((const real *)call->x[W].data)[w];
    if (dw) dw[w] += dy * ((const real *)call->x[X].data)[x];
}

/* Channels of y, and elements of one. */
static int64_t channels_of(const rm_conv_shape *s) { return s->groups * (s->transposed ? s->channels : s->outputs); }
static int64_t plane_of(const rm_conv_shape *s) { return s->transposed ? s->pixels : s->positions; }

static void begin_with_bias(const remat_call *call, const rm_conv_shape *s) {
    const real *b = call->x[B].data;
    real *y = call->y.data;
    int64_t channels = channels_of(s), plane = plane_of(s);
    RM_PARALLEL_FOR(call->threads, s->images * channels * plane > RM_PARALLEL_MIN,
                    for (int64_t row = 0; row < s->images * channels; row++) for (int64_t p = 0; p < plane; p++)
                        y[row * plane + p] = b ? b[row % channels] : 0;);
}

/* Uses eight running sums, a fixed order that can be vectorised. */
static double sum_of(const real *x, int64_t n) {
    enum { LANES = 8 };
    double lane[LANES] = {0}, sum = 0;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++) lane[j] += x[i + j];
    for (int j = 0; j < LANES; j++) sum += lane[j];
    for (; i < n; i++) sum += x[i];
    return sum;
}

static void add_bias_gradient(const remat_call *call, const rm_conv_shape *s) {
    const real *dy = call->dy.data;
    real *db = call->dx[B].data;
    int64_t channels = channels_of(s), plane = plane_of(s), all = s->images * channels * plane;
    if (!db) return;
    RM_PARALLEL_FOR(
        call->threads, all > RM_PARALLEL_MIN, for (int64_t o = 0; o < channels; o++) {
            double sum = 0;
            for (int64_t n = 0; n < s->images; n++) sum += sum_of(dy + (n * channels + o) * plane, plane);
            db[o] += (real)sum;
        });
}

static rm_conv_shape shape_of(const remat_call *call) {
    return rm_conv_shape_of(&call->x[X].desc, &call->x[W].desc, call->attr);
}

static void define_forward(const remat_call *call) {
    const rm_conv_shape s = shape_of(call);
    begin_with_bias(call, &s);
    each_product(call, &s, add_forward);
}

static void define_backward(const remat_call *call) {
    const rm_conv_shape s = shape_of(call);
    if (call->dx[X].data) memset(call->dx[X].data, 0, rm_desc_bytes(&call->x[X].desc));
    add_bias_gradient(call, &s);
    each_product(call, &s, add_backward);
}

/* ---- The fast version -------------------------------------------------------------------------------------------- */

static void cost(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass, remat_cost *out) {
    const rm_conv_shape s = rm_conv_shape_of(&x[X], &x[W], attr);
    double once = (double)(rm_desc_count(&x[X]) + rm_desc_count(&x[W]) + rm_desc_count(y)) * sizeof(real);
    double sums = (double)(s.images * s.positions), each = (double)(s.channels * s.filter[0] * s.filter[1]);
    double products = sums * (double)(s.groups * s.outputs) * each, times = pass == REMAT_BACKWARD ? 2 : 1;
    *out = (remat_cost){.flops = 2 * times * products, .moved_bytes = 2 * times * once};
    out->scratch_bytes = (uint64_t)rm_convolve_scratch(&s, pass) * sizeof(real);
}

#ifdef RM_REAL_DOUBLE
#define FAST(pass) define_##pass
#else
static uint64_t scratch_bytes_cuda(const remat_desc *x, const void *attr, remat_pass pass, bool aux, int threads) {
    const rm_conv_shape s = rm_conv_shape_of(&x[X], &x[W], attr);
    (void)aux, (void)threads;
    return (uint64_t)rm_conv_scratch_cuda(&s, pass) * sizeof(float);
}

#define FAST(pass) pass
static void forward(const remat_call *call) {
    const rm_conv_shape s = shape_of(call);
    rm_convolve_forward(&s, call->threads, call->x[X].data, call->x[W].data, call->x[B].data, call->y.data,
                        call->scratch);
}

static void backward(const remat_call *call) {
    const rm_conv_shape s = shape_of(call);
    add_bias_gradient(call, &s);
    rm_convolve_backward(&s, call->threads, call->x[X].data, call->x[W].data, call->dy.data, call->dx[X].data,
                         call->dx[W].data, call->scratch);
}
#endif

#endif
