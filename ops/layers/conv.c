/* conv.c: the op `conv`, PyTorch's Conv1d and Conv2d (cross-correlation). Its fast kernels are in convolve.c.
 *
 * In memory x is (images, channels, h, w); the leading axes count images, and 1D convolutions have h = 1. */
#include "ops/real.h"

#include <string.h>

#include "ops/layers/conv.h"
#include "ops/math/parallel.h"
#include "ops/op.h"
#include "ops/shape.h"

enum { X, W, B };

static remat_status infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    (void)state;
    static const char *const axis[] = {"height", "width"};
    const rm_conv_attr *a = attr;
    char x_text[REMAT_DESC_TEXT], w_text[REMAT_DESC_TEXT];
    TRY(rm_want_real("conv", "x", &x[X]));
    TRY(rm_want_real("conv", "w", &x[W]));
    TRY(rm_want_rank("conv", "w", &x[W], 3, 4));
    TRY(rm_want_rank("conv", "x", &x[X], x[W].rank, REMAT_MAX_RANK));
    REQUIRE(a && a->groups > 0, INVALID, "conv: groups is %lld; it must be 1 or more", a ? (long long)a->groups : 0);
    int64_t channels = x[X].dim[x[X].rank - x[W].rank + 1];
    rm_desc_text(&x[X], x_text), rm_desc_text(&x[W], w_text);
    REQUIRE(channels == x[W].dim[1] * a->groups && x[W].dim[0] % a->groups == 0, INVALID,
            "conv: x is %s, with %lld channels, w is %s, and groups is %lld; w must be (outputs, channels / groups, "
            "...), and groups must divide both outputs and channels",
            x_text, (long long)channels, w_text, (long long)a->groups);
    for (int d = x[W].rank == 3; d < 2; d++)
        REQUIRE(a->stride[d] > 0 && a->dilation[d] > 0 && a->padding[d] >= 0 && a->stride[d] <= INT32_MAX &&
                    a->dilation[d] <= INT32_MAX && a->padding[d] <= INT32_MAX,
                INVALID,
                "conv: along the %s, stride is %lld, padding %lld and dilation %lld; strides and dilations must be 1 "
                "or more, paddings 0 or more, and all below 2^31",
                axis[d], (long long)a->stride[d], (long long)a->padding[d], (long long)a->dilation[d]);
    if (x[B].rank >= 0) TRY(rm_want_vector("conv", "b", &x[B], x[W].dim[0]));
    rm_conv_shape s = rm_conv_shape_of(&x[X], &x[W], a);
    for (int d = x[W].rank == 3; d < 2; d++)
        REQUIRE(s.out[d] > 0, INVALID,
                "conv: along the %s, a filter of %lld with dilation %lld does not fit into %lld with a padding of %lld "
                "at both ends",
                axis[d], (long long)s.filter[d], (long long)s.dilation[d], (long long)s.in[d], (long long)s.padding[d]);
    *y = x[X];
    y->dim[x[X].rank - x[W].rank + 1] = x[W].dim[0];
    if (x[W].rank == 4) y->dim[x[X].rank - 2] = s.out[0];
    y->dim[x[X].rank - 1] = s.out[1];
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

/* Called for every product of the convolution, with the indices of its factors and of the sum that it is part of. */
typedef void product(const remat_call *call, int64_t x, int64_t w, int64_t y);

static void each_product(const remat_call *call, product *visit) {
    const rm_conv_shape s = rm_conv_shape_of(&call->x[X].desc, &call->x[W].desc, call->attr);
    int64_t outputs = s.groups * s.outputs, pixel;
    for (int64_t n = 0; n < s.images; n++)
        for (int64_t o = 0; o < outputs; o++)
            for (int64_t p = 0; p < s.positions; p++)
                for (int64_t c = 0; c < s.channels; c++)
                    for (int64_t i = 0; i < s.filter[0]; i++)
                        for (int64_t j = 0; j < s.filter[1]; j++) {
                            if (!pixel_under(&s, p / s.out[1], p % s.out[1], i, j, &pixel)) continue;
                            int64_t image = n * s.groups * s.channels + o / s.outputs * s.channels + c;
                            visit(call, image * s.pixels + pixel,
                                  ((o * s.channels + c) * s.filter[0] + i) * s.filter[1] + j,
                                  (n * outputs + o) * s.positions + p);
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

static void begin_with_bias(const remat_call *call, const rm_conv_shape *s) {
    const real *b = call->x[B].data;
    real *y = call->y.data;
    int64_t outputs = s->groups * s->outputs;
    RM_PARALLEL_FOR(call->threads, s->images * outputs * s->positions > RM_PARALLEL_MIN,
                    for (int64_t row = 0; row < s->images * outputs; row++) for (int64_t p = 0; p < s->positions; p++)
                        y[row * s->positions + p] = b ? b[row % outputs] : 0;);
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
    int64_t outputs = s->groups * s->outputs, all = s->images * outputs * s->positions;
    if (!db) return;
    RM_PARALLEL_FOR(
        call->threads, all > RM_PARALLEL_MIN, for (int64_t o = 0; o < outputs; o++) {
            double sum = 0;
            for (int64_t n = 0; n < s->images; n++) sum += sum_of(dy + (n * outputs + o) * s->positions, s->positions);
            db[o] += (real)sum;
        });
}

static void define_forward(const remat_call *call) {
    const rm_conv_shape s = rm_conv_shape_of(&call->x[X].desc, &call->x[W].desc, call->attr);
    begin_with_bias(call, &s);
    each_product(call, add_forward);
}

static void define_backward(const remat_call *call) {
    const rm_conv_shape s = rm_conv_shape_of(&call->x[X].desc, &call->x[W].desc, call->attr);
    if (call->dx[X].data) memset(call->dx[X].data, 0, rm_desc_bytes(&call->x[X].desc));
    add_bias_gradient(call, &s);
    each_product(call, add_backward);
}

/* ---- The fast
 * version--------------------------------------------------------------------------------------------------- */

static void cost(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass, remat_cost *out) {
    const rm_conv_shape s = rm_conv_shape_of(&x[X], &x[W], attr);
    double once = (double)(rm_desc_count(&x[X]) + rm_desc_count(&x[W]) + rm_desc_count(y)) * sizeof(real);
    double products = (double)rm_desc_count(y) * (double)(s.channels * s.filter[0] * s.filter[1]);
    double times = pass == REMAT_BACKWARD ? 2 : 1;
    *out = (remat_cost){.flops = 2 * times * products, .moved_bytes = 2 * times * once};
    out->scratch_bytes = (uint64_t)rm_convolve_scratch(&s, pass) * sizeof(real);
}

#ifdef RM_REAL_DOUBLE
#define FAST(pass) define_##pass
#else
#define FAST(pass) pass
static void forward(const remat_call *call) {
    const rm_conv_shape s = rm_conv_shape_of(&call->x[X].desc, &call->x[W].desc, call->attr);
    rm_convolve_forward(&s, call->threads, call->x[X].data, call->x[W].data, call->x[B].data, call->y.data,
                        call->scratch);
}

static void backward(const remat_call *call) {
    const rm_conv_shape s = rm_conv_shape_of(&call->x[X].desc, &call->x[W].desc, call->attr);
    add_bias_gradient(call, &s);
    rm_convolve_backward(&s, call->threads, call->x[X].data, call->x[W].data, call->dy.data, call->dx[X].data,
                         call->dx[W].data, call->scratch);
}
#endif

static const rm_conv_attr plain = {{1, 1}, {0, 0}, {1, 1}, 1}, same = {{1, 1}, {1, 1}, {1, 1}, 1},
                          mixed = {{2, 1}, {1, 2}, {1, 2}, 2}, deep = {{1, 2}, {2, 1}, {2, 1}, 4},
                          along = {{1, 2}, {0, 3}, {1, 2}, 1};
#define SHAPE5(a, b, c, d, e)                                                                                          \
    {                                                                                                                  \
        RM_REAL, 5, { a, b, c, d, e, 1, 1, 1 }                                                                         \
    }
static const remat_sample samples[] = {
    {.name = "images",
     .attr = &same,
     .x = {RM_SHAPE4(RM_REAL, 2, 3, 5, 4), RM_SHAPE4(RM_REAL, 4, 3, 3, 3), RM_SHAPE1(RM_REAL, 4)}},
    {.name = "groups, strides, dilations, no bias",
     .attr = &mixed,
     .x = {RM_SHAPE4(RM_REAL, 2, 4, 6, 7), RM_SHAPE4(RM_REAL, 6, 2, 3, 2), RM_ABSENT}},
    {.name = "depthwise",
     .attr = &deep,
     .x = {RM_SHAPE4(RM_REAL, 1, 4, 5, 5), RM_SHAPE4(RM_REAL, 4, 1, 3, 3), RM_SHAPE1(RM_REAL, 4)}},
    {.name = "filters of one pixel",
     .attr = &plain,
     .x = {RM_SHAPE4(RM_REAL, 2, 5, 2, 3), RM_SHAPE4(RM_REAL, 3, 5, 1, 1), RM_ABSENT}},
    {.name = "one dimension",
     .attr = &along,
     .x = {RM_SHAPE3(RM_REAL, 2, 3, 11), RM_SHAPE3(RM_REAL, 4, 3, 3), RM_SHAPE1(RM_REAL, 4)}},
    {.name = "a sequence of images",
     .sequence = true,
     .attr = &same,
     .x = {SHAPE5(4, 2, 2, 3, 3), RM_SHAPE4(RM_REAL, 3, 2, 3, 3), RM_SHAPE1(RM_REAL, 3)}},
    {.name = "large enough for threads, blocks and the library",
     .attr = &same,
     .x = {RM_SHAPE4(RM_REAL, 1, 64, 21, 23), RM_SHAPE4(RM_REAL, 5, 64, 3, 3), RM_SHAPE1(RM_REAL, 5)}},
};

const remat_op RM_OP(conv) = {
    .struct_bytes = sizeof(remat_op),
    .name = "conv",
    .doc = "y (N,O,H',W') = x (N,C,H,W) * filters w (O,C/groups,h,w) + optional b (O); or (N,C,L), (O,C/groups,l)",
    .n_in = 3,
    .optional = 1u << B,
    .shared = 1u << W | 1u << B,
    .attr_bytes = sizeof(rm_conv_attr),
    .time = REMAT_TIME_POINTWISE,
    .saves = {.in = 1u << X | 1u << W},
    .infer = infer,
    .cost = cost,
    .define_forward = define_forward,
    .define_backward = define_backward,
    .on = {{.forward = FAST(forward), .backward = FAST(backward)}, RM_CUDA_KERNELS(conv)},
    .samples = samples,
    .n_samples = sizeof samples / sizeof *samples,
    .first_for = 1u << W,
};
