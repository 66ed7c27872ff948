/* conv.c: the op `conv`, PyTorch's Conv1d and Conv2d (cross-correlation). Fast, a convolution is a product for each image: the pixels
 * under the filter at every position, unfolded (K,P), times the filters (outputs,K); K = channels kh kw of a group. Only a block
 * of positions is unfolded at a time, so scratch does not grow with the batch.
 *
 * In memory x is (images, channels, h, w); leading axes are images, and in one dimension h is 1. */
#include "ops/real.h"

#include <string.h>

#include "ops/layers/conv.h"
#include "ops/math/gemm.h"
#include "ops/op.h"
#include "ops/shape.h"

enum { X, W, B };

static remat_status infer(const rm_desc *x, const void *attr, rm_desc *y, rm_desc *state) {
    (void)state;
    static const char *const axis[] = {"height", "width"};
    const rm_conv_attr *a = attr;
    char x_text[RM_DESC_TEXT], w_text[RM_DESC_TEXT];
    TRY(rm_want_real("conv", "x", &x[X]));
    TRY(rm_want_real("conv", "w", &x[W]));
    TRY(rm_want_rank("conv", "w", &x[W], 3, 4));
    TRY(rm_want_rank("conv", "x", &x[X], x[W].rank, REMAT_MAX_RANK));
    REQUIRE(a && a->groups > 0, INVALID, "conv: groups is %lld; it must be 1 or more", a ? (long long)a->groups : 0);
    int64_t channels = x[X].dim[x[X].rank - x[W].rank + 1];
    rm_desc_text(&x[X], x_text), rm_desc_text(&x[W], w_text);
    REQUIRE(channels == x[W].dim[1] * a->groups && x[W].dim[0] % a->groups == 0, INVALID,
            "conv: x is %s, of %lld channels, w is %s, and groups is %lld; w must be (outputs, channels / groups, "
            "...), and groups "
            "divide both outputs and channels",
            x_text, (long long)channels, w_text, (long long)a->groups);
    for (int d = x[W].rank == 3; d < 2; d++)
        REQUIRE(a->stride[d] > 0 && a->dilation[d] > 0 && a->padding[d] >= 0 && a->stride[d] <= INT32_MAX &&
                    a->dilation[d] <= INT32_MAX && a->padding[d] <= INT32_MAX,
                INVALID,
                "conv: over the %s, stride is %lld, padding %lld and dilation %lld; strides and dilations are 1 or "
                "more, paddings "
                "0 or more, and all below 2^31",
                axis[d], (long long)a->stride[d], (long long)a->padding[d], (long long)a->dilation[d]);
    if (x[B].rank >= 0) TRY(rm_want_vector("conv", "b", &x[B], x[W].dim[0]));
    rm_conv_shape s = rm_conv_shape_of(&x[X], &x[W], a);
    for (int d = x[W].rank == 3; d < 2; d++)
        REQUIRE(s.out[d] > 0, INVALID,
                "conv: over the %s, a filter of %lld with dilation %lld does not fit into %lld with a padding of %lld "
                "at both ends",
                axis[d], (long long)s.filter[d], (long long)s.dilation[d], (long long)s.in[d], (long long)s.padding[d]);
    *y = x[X];
    y->dim[x[X].rank - x[W].rank + 1] = x[W].dim[0];
    if (x[W].rank == 4) y->dim[x[X].rank - 2] = s.out[0];
    y->dim[x[X].rank - 1] = s.out[1];
    return REMAT_OK;
}

/* ---- The definition -------------------------------------------------------------------------------------------------- */

/* Element (i,j) of the filter at position (r,q) reads pixel (*y,*x) of the image; false: padding. */
static bool pixel_under(const rm_conv_shape *s, int64_t r, int64_t q, int64_t i, int64_t j, int64_t *pixel) {
    int64_t y = r * s->stride[0] - s->padding[0] + i * s->dilation[0];
    int64_t x = q * s->stride[1] - s->padding[1] + j * s->dilation[1];
    *pixel = y * s->in[1] + x;
    return y >= 0 && y < s->in[0] && x >= 0 && x < s->in[1];
}

/* Every product of the convolution: where its factors are, and its sum. */
typedef void product(const rm_call *call, int64_t x, int64_t w, int64_t y);

static void each_product(const rm_call *call, product *visit) {
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

static void add_forward(const rm_call *call, int64_t x, int64_t w, int64_t y) {
    ((real *)call->y.data)[y] += ((const real *)call->x[X].data)[x] * ((const real *)call->x[W].data)[w];
}

static void add_backward(const rm_call *call, int64_t x, int64_t w, int64_t y) {
    real dy = ((const real *)call->dy.data)[y], *dx = call->dx[X].data, *dw = call->dx[W].data;
    if (dx) dx[x] += dy * ((const real *)call->x[W].data)[w];
    if (dw) dw[w] += dy * ((const real *)call->x[X].data)[x];
}

static void begin_with_bias(const rm_call *call, const rm_conv_shape *s) {
    const real *b = call->x[B].data;
    real *y = call->y.data;
    int64_t outputs = s->groups * s->outputs;
    RM_PARALLEL_FOR(call->threads, s->images * outputs * s->positions > RM_PARALLEL_MIN,
                    for (int64_t row = 0; row < s->images * outputs; row++) for (int64_t p = 0; p < s->positions; p++)
                        y[row * s->positions + p] = b ? b[row % outputs] : 0;);
}

static void add_bias_gradient(const rm_call *call, const rm_conv_shape *s) {
    const real *dy = call->dy.data;
    real *db = call->dx[B].data;
    int64_t outputs = s->groups * s->outputs;
    if (!db) return;
    RM_PARALLEL_FOR(
        call->threads, s->images * outputs * s->positions > RM_PARALLEL_MIN, for (int64_t o = 0; o < outputs; o++) {
            double sum = 0;
            for (int64_t n = 0; n < s->images; n++)
                for (int64_t p = 0; p < s->positions; p++) sum += dy[(n * outputs + o) * s->positions + p];
            db[o] += (real)sum;
        });
}

static void define_forward(const rm_call *call) {
    const rm_conv_shape s = rm_conv_shape_of(&call->x[X].desc, &call->x[W].desc, call->attr);
    begin_with_bias(call, &s);
    each_product(call, add_forward);
}

static void define_backward(const rm_call *call) {
    const rm_conv_shape s = rm_conv_shape_of(&call->x[X].desc, &call->x[W].desc, call->attr);
    if (call->dx[X].data) memset(call->dx[X].data, 0, rm_desc_bytes(&call->x[X].desc));
    add_bias_gradient(call, &s);
    each_product(call, add_backward);
}

/* ---- Unfolding ------------------------------------------------------------------------------------------------------- */

/* Positions from `from` to `to` of one row, under element (i,j) of the filter: those in [*first, *last) read pixels that are
 * `stride` apart from *pixel on; the others padding. */
static void pixels_under(const rm_conv_shape *s, int64_t from, int64_t to, int64_t i, int64_t j, int64_t *first,
                         int64_t *last, int64_t *pixel) {
    int64_t r = from / s->out[1], start = r * s->out[1], stride = s->stride[1];
    int64_t y = r * s->stride[0] - s->padding[0] + i * s->dilation[0];
    int64_t x0 = j * s->dilation[1] - s->padding[1]; /* of the row's first position */
    int64_t least = x0 < 0 ? (-x0 + stride - 1) / stride : 0;
    int64_t end = s->in[1] > x0 ? (s->in[1] - x0 + stride - 1) / stride : 0;
    bool inside = y >= 0 && y < s->in[0];
    *first = start + least > from ? start + least : from;
    *last = start + end < to ? start + end : to;
    if (!inside || *last < *first) *first = *last = from;
    *pixel = y * s->in[1] + x0 + (*first - start) * stride;
}

/* Rows (channel,i,j) of `count` channels, beginning with the one at x, by positions [from,to). */
static void unfold(const rm_conv_shape *s, const real *x, int64_t count, int64_t from, int64_t to, real *columns) {
    int64_t first, last, pixel, end, stride = s->stride[1];
    for (int64_t c = 0; c < count; c++, x += s->pixels)
        for (int64_t i = 0; i < s->filter[0]; i++)
            for (int64_t j = 0; j < s->filter[1]; j++, columns += to - from)
                for (int64_t p = from; p < to; p = end) {
                    end = (p / s->out[1] + 1) * s->out[1];
                    if (end > to) end = to;
                    pixels_under(s, p, end, i, j, &first, &last, &pixel);
                    real *row = columns - from;
                    for (int64_t q = p; q < first; q++) row[q] = 0;
                    if (stride == 1)
                        memcpy(row + first, x + (first < last ? pixel : 0), (size_t)(last - first) * sizeof *row);
                    else
                        for (int64_t q = first; q < last; q++) row[q] = x[pixel + (q - first) * stride];
                    for (int64_t q = last; q < end; q++) row[q] = 0;
                }
}

/* The other way: what every row holds is added where it was read. */
static void fold(const rm_conv_shape *s, const real *columns, int64_t count, int64_t from, int64_t to, real *x) {
    int64_t first, last, pixel, end;
    for (int64_t c = 0; c < count; c++, x += s->pixels)
        for (int64_t i = 0; i < s->filter[0]; i++)
            for (int64_t j = 0; j < s->filter[1]; j++, columns += to - from)
                for (int64_t p = from; p < to; p = end) {
                    end = (p / s->out[1] + 1) * s->out[1];
                    if (end > to) end = to;
                    pixels_under(s, p, end, i, j, &first, &last, &pixel);
                    const real *row = columns - from;
                    for (int64_t q = first; q < last; q++) x[pixel + (q - first) * s->stride[1]] += row[q];
                }
}

/* A filter of one pixel, moved by one: x is its own unfolding. */
static bool is_its_own(const rm_conv_shape *s) {
    bool is = true;
    for (int d = 0; d < 2; d++) is &= s->filter[d] == 1 && s->stride[d] == 1 && s->padding[d] == 0;
    return is;
}

/* ---- Blocks of positions --------------------------------------------------------------------------------------------- */

/* Floats that all threads together unfold at a time; and the fewest positions for which a product is worth its call. */
enum { UNFOLDED = 1 << 18, FEW = 32 };

static int64_t patch(const rm_conv_shape *s) { return s->channels * s->filter[0] * s->filter[1]; }

/* Positions of a block where `parts` are unfolded at a time. */
static int64_t block_of(const rm_conv_shape *s, int64_t parts) {
    int64_t block = UNFOLDED / (parts * patch(s));
    if (block < FEW) block = FEW;
    return block < s->positions ? block : s->positions;
}

/* As many threads as scratch has room for, each with a block of its own. */
static int64_t workers(const rm_conv_shape *s, int threads) {
    int64_t most = UNFOLDED / (FEW * patch(s));
    return most < 1 ? 1 : most < threads ? most : threads;
}

static void cost(const rm_desc *x, const rm_desc *y, const void *attr, rm_pass pass, rm_cost *out) {
    const rm_conv_shape s = rm_conv_shape_of(&x[X], &x[W], attr);
    double once = (double)(rm_desc_count(&x[X]) + rm_desc_count(&x[W]) + rm_desc_count(y)) * sizeof(real);
    double products = (double)rm_desc_count(y) * (double)patch(&s);
    *out = (rm_cost){.flops = 2 * products, .moved_bytes = 2 * once};
    if (pass == RM_BACKWARD) *out = (rm_cost){.flops = 4 * products, .moved_bytes = 4 * once};
    int64_t least = patch(&s) * block_of(&s, 1), all = 2 * s.images * s.groups * patch(&s) * s.positions;
    int64_t unfolded = all < UNFOLDED ? all : UNFOLDED;
    out->scratch_bytes = is_its_own(&s) ? 0 : (uint64_t)(least > unfolded ? least : unfolded) * sizeof(real);
}

/* ---- Forward: images and blocks of positions among threads ------------------------------------------------------------- */

static void forward_block(const rm_call *call, const rm_conv_shape *s, bool open, int64_t image, int64_t from,
                          int64_t to, real *columns) {
    const real *x = call->x[X].data, *w = call->x[W].data;
    real *y = call->y.data;
    int64_t k = patch(s), m = s->outputs, wide = s->positions;
    for (int64_t g = 0; g < s->groups; g++) {
        const real *part = x + (image * s->groups + g) * s->channels * s->pixels, *unfolded = part + from;
        int64_t stride = wide;
        if (columns) unfold(s, part, s->channels, from, to, columns), unfolded = columns, stride = to - from;
        rm_gemm_alone(open, RM_PLAIN, RM_PLAIN, m, to - from, k, 1, w + g * m * k, k, unfolded, stride, 1,
                      y + (image * s->groups + g) * m * wide + from, wide);
    }
}

static void forward(const rm_call *call) {
    const rm_conv_shape s = rm_conv_shape_of(&call->x[X].desc, &call->x[W].desc, call->attr);
    int64_t threads = workers(&s, call->threads), block = block_of(&s, threads);
    int64_t blocks = (s.positions + block - 1) / block, items = s.images * blocks;
    if (items < threads) threads = items;
    real *scratch = is_its_own(&s) ? NULL : call->scratch;
    begin_with_bias(call, &s);
    bool open = rm_gemm_begin(call->threads);
    RM_PARALLEL_FOR(
        call->threads, threads > 1, for (int64_t part = 0; part < threads; part++) {
            real *columns = scratch ? scratch + part * block * patch(&s) : NULL;
            for (int64_t item = items * part / threads; item < items * (part + 1) / threads; item++) {
                int64_t from = item % blocks * block, to = from + block < s.positions ? from + block : s.positions;
                forward_block(call, &s, open, item / blocks, from, to, columns);
            }
        });
    rm_gemm_end(open);
}

/* ---- Backward: channels among threads, so that every sum is one thread's ------------------------------------------------ */

/* Channels [first, first + count) of group g of x; all images in order. */
static void backward_channels(const rm_call *call, const rm_conv_shape *s, bool open, int64_t g, int64_t first,
                              int64_t count, int64_t block, real *columns) {
    const real *x = call->x[X].data, *w = call->x[W].data, *dy = call->dy.data;
    real *dx = call->dx[X].data, *dw = call->dx[W].data;
    int64_t m = s->outputs, wide = s->positions, k = patch(s), each = s->filter[0] * s->filter[1], n = count * each;
    const int64_t at = g * m * k + first * each;
    for (int64_t image = 0; image < s->images; image++) {
        int64_t part = ((image * s->groups + g) * s->channels + first) * s->pixels;
        const real *from_above = dy + (image * s->groups + g) * m * wide;
        for (int64_t from = 0, to; from < wide; from = to) {
            to = from + block < wide ? from + block : wide;
            int64_t size = to - from, stride = columns ? size : wide;
            if (columns && dw) unfold(s, x + part, count, from, to, columns);
            if (dw)
                rm_gemm_alone(open, RM_PLAIN, RM_TRANSPOSED, m, n, size, 1, from_above + from, wide,
                              columns ? columns : x + part + from, stride, 1, dw + at, k);
            if (dx)
                rm_gemm_alone(open, RM_TRANSPOSED, RM_PLAIN, n, size, m, 1, w + at, k, from_above + from, wide, 0,
                              columns ? columns : dx + part + from, stride);
            if (dx && columns) fold(s, columns, count, from, to, dx + part);
        }
    }
}

static void backward_all_channels(const rm_call *call, const rm_conv_shape *s, bool open, real *scratch) {
    int64_t block = block_of(s, 1), each = s->filter[0] * s->filter[1] * block;
    int64_t parts = s->channels < call->threads ? s->channels : call->threads;
    RM_PARALLEL_FOR(
        call->threads, parts > 1, for (int64_t part = 0; part < parts; part++) {
            int64_t first = s->channels * part / parts, end = s->channels * (part + 1) / parts;
            backward_channels(call, s, open, 0, first, end - first, block, scratch ? scratch + first * each : NULL);
        });
}

/* Each thread has some groups, and a block of its own. */
static void backward_groups(const rm_call *call, const rm_conv_shape *s, bool open, real *scratch) {
    enum { AT_ONCE = 16 };
    int64_t block = block_of(s, AT_ONCE), each = patch(s) * block, room = UNFOLDED / each;
    int64_t parts = s->groups < call->threads ? s->groups : call->threads;
    if (parts > room) parts = room > 0 ? room : 1;
    RM_PARALLEL_FOR(
        call->threads, parts > 1, for (int64_t part = 0; part < parts; part++) {
            for (int64_t g = s->groups * part / parts; g < s->groups * (part + 1) / parts; g++)
                backward_channels(call, s, open, g, 0, s->channels, block, scratch ? scratch + part * each : NULL);
        });
}

static void backward(const rm_call *call) {
    const rm_conv_shape s = rm_conv_shape_of(&call->x[X].desc, &call->x[W].desc, call->attr);
    real *scratch = is_its_own(&s) ? NULL : call->scratch;
    if (call->dx[X].data && scratch) memset(call->dx[X].data, 0, rm_desc_bytes(&call->x[X].desc));
    add_bias_gradient(call, &s);
    bool open = rm_gemm_begin(call->threads);
    (s.groups > 1 ? backward_groups : backward_all_channels)(call, &s, open, scratch);
    rm_gemm_end(open);
}

static const rm_conv_attr plain = {{1, 1}, {0, 0}, {1, 1}, 1}, same = {{1, 1}, {1, 1}, {1, 1}, 1},
                          mixed = {{2, 1}, {1, 2}, {1, 2}, 2}, deep = {{1, 2}, {2, 1}, {2, 1}, 4},
                          along = {{1, 2}, {0, 3}, {1, 2}, 1};
#define SHAPE5(a, b, c, d, e)                                                                                          \
    {                                                                                                                  \
        RM_REAL, 5, { a, b, c, d, e, 1, 1, 1 }                                                                         \
    }
static const rm_sample samples[] = {
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

const rm_op RM_OP(conv) = {
    .struct_bytes = sizeof(rm_op),
    .name = "conv",
    .doc = "y (N,O,H',W') = x (N,C,H,W) under filters w (O,C/groups,h,w), + b (O) optional; or (N,C,L), (O,C/groups,l)",
    .n_in = 3,
    .optional = 1u << B,
    .weights = 1u << W | 1u << B,
    .attr_bytes = sizeof(rm_conv_attr),
    .time = RM_TIME_POINTWISE,
    .saves = {.in = 1u << X | 1u << W},
    .infer = infer,
    .cost = cost,
    .define_forward = define_forward,
    .define_backward = define_backward,
    .on = {{.forward = forward, .backward = backward}, RM_CUDA_KERNELS(conv)},
    .samples = samples,
    .n_samples = sizeof samples / sizeof *samples,
    .first_for = 1u << W,
};
