/* convolve.c: direct convolutions. The output channels of a pixel are computed side by side in vectors: a sum over
 * input channels and filter taps of one pixel times a vector of weights, for several neighbouring pixels at a time
 * (cpu/convolution.c). Images keep their layout, (images, channels, h, w); only a part of one image, with its
 * padding, is copied at a time and stays in the cache. Weights are packed once per call, output channels side by side.
 *
 * The gradient of x, which is what a transposed convolution computes, is the same sum with input and output channels
 * exchanged. With a stride, the taps that reach a pixel of x depend on its position modulo the stride, so pixels are
 * computed in classes of equal remainder. */
#include "ops/layers/conv.h"

#include <stdbool.h>

#include "ops/math/parallel.h"
#include "ops/cpu/kernels.h"

enum { WIDEST = 32 };         /* most lanes of any instruction set, so that scratch has the same size on all */
enum { PACKED = 1 << 18 };    /* floats of packed weights at a time, except for large filters */
enum { WINDOWS = 1 << 17 };   /* floats of the windows of all threads, except for large images */
enum { WINDOW = 1 << 16 };    /* floats of one thread's window: half of a second-level cache of 512 KiB */
enum { DEPTH = 576 };         /* products per partial sum, so that their weights stay in the cache */
enum { COLUMNS = 480 };       /* pixels of a row at a time, or fewer if the window is smaller; several stages */
enum { STAGE = 96 };          /* sums staged before each lane is stored to its own plane */
enum { SPLIT_MIN = 1 << 18 }; /* multiply-adds from which on more threads pay off */

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t parts(int64_t n, int64_t size) { return (n + size - 1) / size; }

/* ---- Which pixels are summed ------------------------------------------------------------------------------------- */

/* One axis. The targets of class q are phase(q), phase(q) + apart, ... Target m of the class is the sum over taps q, q
 * + period, ... of the filter, applied to sources m step + at(q), m step + at(q) + slope, ... */
typedef struct {
    int64_t source, target, filter;
    int64_t step, apart, period, slope;
    int64_t padding, dilation;
} axis;

typedef struct {
    int64_t taps, phase, at, count; /* count: number of targets */
} class;

static int64_t gcd(int64_t a, int64_t b) { return b ? gcd(b, a % b) : a; }

static axis axis_of(const rm_conv_shape *s, bool backward, int d) {
    axis a = {.source = s->in[d], .target = s->out[d], .filter = s->filter[d], .padding = s->padding[d]};
    a.step = s->stride[d], a.apart = a.period = 1, a.slope = a.dilation = s->dilation[d];
    if (!backward) return a;
    a.source = s->out[d], a.target = s->in[d], a.apart = s->stride[d], a.step = 1;
    a.period = a.apart / gcd(a.apart, a.dilation), a.slope = -(a.dilation * a.period / a.apart);
    return a;
}

static int64_t classes(const axis *a) { return least(a->period, a->filter); }

static class class_of(const axis *a, bool backward, int64_t q) {
    int64_t moved = q * a->dilation - a->padding; /* forward: a source minus step m; backward: a target minus apart
                                                     m' */
    class c = {.taps = parts(a->filter - q, a->period), .phase = 0, .at = moved, .count = a->target};
    if (!backward) return c;
    c.phase = (moved % a->apart + a->apart) % a->apart, c.at = (c.phase - moved) / a->apart;
    c.count = c.phase < a->target ? parts(a->target - c.phase, a->apart) : 0;
    return c;
}

typedef struct {
    bool backward;
    axis axis[2];
    int64_t first[2], last[2]; /* first and last source of a target minus m step, over all classes */
    int64_t channels, lanes;   /* per group: channels are summed over; lanes are computed side by side */
    int64_t taps, w_channel, w_lane;
} sums;

static sums sums_of(const rm_conv_shape *s, bool backward) {
    sums u = {.backward = backward, .axis = {axis_of(s, backward, 0), axis_of(s, backward, 1)}};
    u.taps = s->filter[0] * s->filter[1];
    u.channels = s->channels, u.lanes = s->outputs, u.w_channel = u.taps, u.w_lane = s->channels * u.taps;
    if (backward) u.channels = s->outputs, u.lanes = s->channels, u.w_channel = s->channels * u.taps, u.w_lane = u.taps;
    for (int d = 0; d < 2; d++)
        for (int64_t q = 0; q < classes(&u.axis[d]); q++) {
            class c = class_of(&u.axis[d], backward, q);
            int64_t end = c.at + (c.taps - 1) * u.axis[d].slope;
            if (q == 0) u.first[d] = u.last[d] = c.at;
            u.first[d] = least(u.first[d], least(c.at, end)), u.last[d] = most(u.last[d], most(c.at, end));
        }
    return u;
}

/* ---- Windows: a part of an image with its padding ---------------------------------------------------------------- */

/* Pixel (y,x) of channel c is at data + c plane + y pitch + x, for any part of the image. */
typedef struct {
    const float *data;
    int64_t plane, pitch;
} window;

/* Includes the floats that copy_plane may write past its end; an odd number of cache lines, so that planes do not
 * compete for the same sets. */
static int64_t plane_of(int64_t rows, int64_t columns) { return (parts(rows * columns + 15, 16) | 1) * 16; }

static int64_t extent(const sums *u, int d, int64_t targets) {
    return (targets - 1) * u->axis[d].step + u->last[d] - u->first[d] + 1;
}
static int64_t window_floats(const sums *u, int64_t rows, int64_t columns) {
    return plane_of(extent(u, 0, rows), extent(u, 1, columns));
}

/* All pixels that targets [m[d], m[d] + n[d]) of every class read from `channels` planes at x. */
static window window_of(const rm_convolution *kernel, const sums *u, const float *x, int64_t channels,
                        const int64_t m[2], const int64_t n[2], float *room) {
    int64_t from[2], count[2], image[2];
    bool inside = true;
    for (int d = 0; d < 2; d++) {
        from[d] = m[d] * u->axis[d].step + u->first[d], count[d] = extent(u, d, n[d]), image[d] = u->axis[d].source;
        inside &= from[d] >= 0 && from[d] + count[d] <= image[d];
    }
    if (inside) return (window){x, image[0] * image[1], image[1]};
    int64_t plane = plane_of(count[0], count[1]);
    for (int64_t c = 0; c < channels; c++)
        kernel->copy_plane(x + c * image[0] * image[1], image, from, count, room + c * plane);
    return (window){room - from[0] * count[1] - from[1], plane, count[1]};
}

/* Whether more threads pay off. */
static bool is_large(const rm_conv_shape *s) {
    double products = (double)(s->groups * s->outputs * s->channels) * (double)(s->filter[0] * s->filter[1]);
    return (double)s->images * (double)s->positions * products > SPLIT_MIN;
}

/* ---- Sizes ------------------------------------------------------------------------------------------------------- */

typedef struct {
    int64_t channels, targets[2]; /* channels per partial sum; most targets of a class */
    int64_t columns;              /* most targets per row of a window */
    int64_t round, packed;        /* lanes whose weights are packed at a time; floats of these weights */
    int64_t window, windows;      /* floats: the minimum for one thread; of all threads */
} sizes;

static sizes sizes_of(const rm_conv_shape *s, const sums *u) {
    sizes z = {.channels = least(u->channels, most(DEPTH / u->taps, 1))};
    for (int d = 0; d < 2; d++) z.targets[d] = parts(u->axis[d].target, u->axis[d].apart);
    z.columns = least(z.targets[1], least(COLUMNS, most(WINDOW / z.channels / STAGE, 1) * STAGE));
    int64_t block = z.channels * u->taps * WIDEST, blocks = parts(u->lanes, WIDEST);
    blocks = least(blocks, most(PACKED / block, 1));
    z.round = blocks * WIDEST, z.packed = blocks * block;
    z.window = z.channels * window_floats(u, 1, z.columns);
    int64_t image = z.channels * window_floats(u, z.targets[0], z.columns);
    z.windows = most(z.window, is_large(s) ? least(WINDOWS, s->images * image) : least(WINDOW, image));
    return z;
}

/* The rows of targets that fit into a window of `room` floats. */
static int64_t rows_in(const sums *u, const sizes *z, int64_t columns, int64_t room) {
    int64_t rows = 1;
    while (rows < z->targets[0] && z->channels * window_floats(u, rows + 1, columns) <= room) rows++;
    return rows;
}

/* ---- Sums of pixels ---------------------------------------------------------------------------------------------- */

/* Packs a block of lanes that starts at `w` as (channels, taps, lanes); lanes past the last are zeros. */
static void pack(const rm_convolution *kernel, const sums *u, const float *w, int64_t channels, int64_t lanes,
                 float *packed) {
    int64_t wide = kernel->wide, together = u->w_channel == u->taps && u->w_lane > 1 ? channels : 1;
    int n = (int)least(wide, lanes);
    for (int64_t c = 0; c < channels; c += together)
        if (u->w_lane == 1)
            kernel->copy_plane(w + c * u->w_channel, (int64_t[]){1, n}, (int64_t[]){0, 0}, (int64_t[]){1, wide},
                               packed + c * wide);
        else
            kernel->side_by_side(w + c * u->w_channel, u->w_lane, together * u->taps, n, packed + c * u->taps * wide);
}

typedef struct {
    const rm_convolution *kernel;
    const sums *sums;
    int64_t m[2], n[2]; /* a block of targets of every class */
    window from;
    int64_t channels;
    const float *w, *start; /* start: initial value of the sums, per lane */
    bool begins;            /* targets are overwritten, not added to */
    float *to;              /* the image of the first lane */
    int lanes;
} block;

/* Sums, pixel by pixel with lanes side by side, before they are stored. */
typedef struct {
    float sum[STAGE * WIDEST];
    float *to; /* destination of the first */
    int64_t plane, step, count;
} stage;

static void unload(const block *b, stage *s) {
    if (s->count) b->kernel->apart(s->sum, !b->begins, s->plane, s->step, s->count, b->lanes, s->to);
    s->count = 0;
}

/* Targets of one class, a few of a row at a time. Rows that follow each other in memory are staged together. */
static void sum_class(const block *b, int64_t p, int64_t q) {
    const axis *rows = &b->sums->axis[0], *columns = &b->sums->axis[1];
    class r = class_of(rows, b->sums->backward, p), c = class_of(columns, b->sums->backward, q);
    int64_t wide = b->kernel->wide, below = least(b->m[0] + b->n[0], r.count), end = least(b->m[1] + b->n[1], c.count);
    int64_t count = end - b->m[1], pieces = parts(count, b->kernel->most);
    rm_conv_pixels t = {.channels = b->channels,
                        .taps = {r.taps, c.taps},
                        .x_plane = b->from.plane,
                        .x_tap = {rows->slope * b->from.pitch, columns->slope},
                        .x_step = columns->step,
                        .w = b->w + (p * columns->filter + q) * wide,
                        .w_channel = b->sums->taps * wide,
                        .w_tap = {rows->period * columns->filter * wide, columns->period * wide},
                        .start = b->start,
                        .lanes = b->lanes};
    stage s = {.plane = rows->target * columns->target, .step = columns->apart};
    for (int64_t m = b->m[0]; m < below; m++)
        for (int64_t piece = 0; piece < pieces; piece++) {
            int64_t n = b->m[1] + count * piece / pieces, next = b->m[1] + count * (piece + 1) / pieces;
            float *to = b->to + (r.phase + m * rows->apart) * columns->target + c.phase + n * columns->apart;
            if (s.count + next - n > STAGE || to != s.to + s.count * s.step) unload(b, &s), s.to = to;
            t.x = b->from.data + (m * rows->step + r.at) * b->from.pitch + n * columns->step + c.at;
            t.y = s.sum + s.count * wide;
            for (int lane = 0; lane < b->lanes; lane++) __builtin_prefetch(to + lane * s.plane, 1, 2);
            b->kernel->pixels[next - n](&t);
            s.count += next - n;
        }
    unload(b, &s);
}

static void sum_block(const block *b) {
    for (int64_t p = 0; p < classes(&b->sums->axis[0]); p++)
        for (int64_t q = 0; q < classes(&b->sums->axis[1]); q++) sum_class(b, p, q);
}

/* Whether every target is in a class. No tap reaches the others: they are the bias, or 0. */
static bool covers(const sums *u) {
    return classes(&u->axis[0]) == u->axis[0].apart && classes(&u->axis[1]) == u->axis[1].apart;
}

/* One product of packed weights and channels: lanes [lane, end), channels [channel, channel + channels). */
typedef struct {
    int64_t lane, end, channel, channels;
    const float *packed, *bias; /* of the group, or NULL */
} round;

static void sum_round(block b, const round *r, const float *image, float *target, float *room) {
    float start[WIDEST] = {0};
    b.start = start, b.begins = r->channel == 0;
    const sums *u = b.sums;
    int64_t wide = b.kernel->wide, plane = u->axis[0].source * u->axis[1].source;
    b.channels = r->channels;
    b.from = window_of(b.kernel, u, image + r->channel * plane, r->channels, b.m, b.n, room);
    for (int64_t first = r->lane; first < r->end; first += wide) {
        b.w = r->packed + (first - r->lane) * r->channels * u->taps;
        b.to = target + first * u->axis[0].target * u->axis[1].target;
        b.lanes = (int)least(wide, r->end - first);
        for (int i = 0; b.begins && r->bias && i < b.lanes; i++) start[i] = r->bias[first + i];
        sum_block(&b);
    }
}

/* target = the sums, for all images and groups. */
static void sum_pixels(const rm_conv_shape *s, bool backward, int threads, const float *source, const float *w,
                       const float *bias, float *target, float *scratch) {
    const sums u = sums_of(s, backward);
    const sizes z = sizes_of(s, &u);
    const rm_convolution *kernel = rm_cell_kernels_get()->convolution;
    int64_t sources = u.axis[0].source * u.axis[1].source, targets = u.axis[0].target * u.axis[1].target;
    int64_t workers = least(threads, z.windows / z.window), room = z.windows / workers, wide = kernel->wide;
    int64_t columns = z.columns, rows = rows_in(&u, &z, columns, least(room, WINDOW));
    int64_t down = parts(z.targets[0], rows), along = parts(z.targets[1], columns), items = s->images * down * along;
    workers = is_large(s) ? least(workers, items) : 1;
    if (!covers(&u))
        for (int64_t plane = 0; plane < s->images * s->groups * u.lanes; plane++)
            for (int64_t i = 0; i < targets; i++)
                target[plane * targets + i] = bias ? bias[plane % (s->groups * u.lanes)] : 0;
    for (int64_t g = 0; g < s->groups; g++)
        for (round r = {.packed = scratch, .bias = bias ? bias + g * u.lanes : NULL}; r.lane < u.lanes; r.lane = r.end)
            for (r.end = least(r.lane + z.round, u.lanes), r.channel = 0; r.channel < u.channels;
                 r.channel += r.channels) {
                r.channels = least(z.channels, u.channels - r.channel);
                const float *filters = w + g * s->outputs * s->channels * u.taps + r.channel * u.w_channel;
                RM_PARALLEL_FOR(threads, workers > 1,
                                for (int64_t lane = r.lane; lane < r.end; lane += wide)
                                    pack(kernel, &u, filters + lane * u.w_lane, r.channels, r.end - lane,
                                         scratch + (lane - r.lane) * r.channels * u.taps););
                RM_PARALLEL_FOR(
                    threads, workers > 1, for (int64_t part = 0; part < workers; part++) {
                        for (int64_t i = items * part / workers; i < items * (part + 1) / workers; i++) {
                            int64_t image = i / (down * along) * s->groups + g, y = i / along % down * rows,
                                    x = i % along * columns;
                            block b = {.kernel = kernel, .sums = &u, .m = {y, x}};
                            b.n[0] = least(rows, z.targets[0] - y), b.n[1] = least(columns, z.targets[1] - x);
                            sum_round(b, &r, source + image * u.channels * sources, target + image * u.lanes * targets,
                                      scratch + z.packed + part * room);
                        }
                    });
            }
}

/* ---- Sums of weights --------------------------------------------------------------------------------------------- */

/* The pixels of a part of an image, or of several small images; their gradients are stored pixel by pixel, lanes side
 * by side. Sums are added part by part, so they do not depend on the number of threads. */
enum { PIXELS = 256 };

typedef struct {
    int64_t images, n[2]; /* images > 1: whole images */
} portion;

static portion portion_of(const rm_conv_shape *s) {
    portion p = {.images = most(least(s->images, PIXELS / s->positions), 1)};
    p.n[1] = least(s->out[1], PIXELS), p.n[0] = least(s->out[0], PIXELS / p.n[1]);
    return p;
}

/* Lanes that share one copy of a window. */
enum { SPAN = 4 * WIDEST };

/* Scratch of one thread in floats: channel_floats per channel, plus gradient_floats. */
static int64_t channel_floats(const rm_conv_shape *s, const sums *u) {
    portion p = portion_of(s);
    return p.images * window_floats(u, p.n[0], p.n[1]) + least(parts(s->outputs, WIDEST) * WIDEST, SPAN) * u->taps;
}
static int64_t gradient_floats(const rm_conv_shape *s) {
    portion p = portion_of(s);
    return p.images * p.n[0] * p.n[1] * WIDEST;
}

/* The weights of some channels in up to SPAN lanes: dw (lanes, channels, taps). */
typedef struct {
    const rm_conv_shape *shape;
    const sums *sums;
    const rm_convolution *kernel;
    const float *x, *dy; /* in the first image: x at the first channel, dy at the first lane */
    float *dw;
    int64_t channels, lanes;
} piece;

/* One block of lanes, from the pixels of a window. */
static void sum_lanes(const piece *p, rm_conv_weights t, const window *from) {
    const rm_conv_shape *s = p->shape;
    int64_t at[WIDEST];
    int count = 0;
    t.at = at;
    for (int64_t c = 0; c < p->channels; c++)
        for (int64_t i = 0; i < s->filter[0]; i++)
            for (int64_t j = 0; j < s->filter[1]; j++) {
                at[count++] = c * from->plane + i * s->dilation[0] * from->pitch + j * s->dilation[1];
                if (count < p->kernel->most) continue;
                p->kernel->weights[count](&t);
                t.dw += count * p->kernel->wide, count = 0;
            }
    if (count) p->kernel->weights[count](&t);
}

/* Adds the part of images first .. first+images-1 that starts at pixel m, n pixels of each. */
static void sum_part(const piece *p, int64_t first, int64_t images, const int64_t m[2], const int64_t n[2],
                     float *gradients, float *sum, float *room) {
    const rm_conv_shape *s = p->shape;
    int64_t wide = p->kernel->wide, each = p->channels * window_floats(p->sums, n[0], n[1]);
    int64_t x_image = s->groups * s->channels * s->pixels, dy_image = s->groups * s->outputs * s->positions;
    window from = {0}; /* of the first image; the other windows follow it, or are the images themselves */
    for (int64_t i = images - 1; i >= 0; i--)
        from = window_of(p->kernel, p->sums, p->x + (first + i) * x_image, p->channels, m, n, room + i * each);
    rm_conv_weights t = {.images = images,
                         .x_image = from.data == p->x + first * x_image ? x_image : each,
                         .rows = n[0],
                         .columns = n[1],
                         .dy = gradients,
                         .x_row = s->stride[0] * from.pitch,
                         .x_step = s->stride[1],
                         .dw = sum};
    t.x = from.data + (m[0] * s->stride[0] - s->padding[0]) * from.pitch + m[1] * s->stride[1] - s->padding[1];
    for (int64_t lane = 0; lane < p->lanes; lane += wide, t.dw += p->channels * p->sums->taps * wide) {
        t.lanes = (int)least(wide, p->lanes - lane);
        for (int64_t i = 0; i < images; i++)
            for (int64_t r = 0; r < n[0]; r++)
                p->kernel->side_by_side(p->dy + (first + i) * dy_image + lane * s->positions + (m[0] + r) * s->out[1] +
                                            m[1],
                                        s->positions, n[1], t.lanes, gradients + (i * n[0] + r) * n[1] * wide);
        sum_lanes(p, t, &from);
    }
}

static void sum_piece(const piece *p, float *scratch) {
    const rm_conv_shape *s = p->shape;
    const portion most_of = portion_of(s);
    int64_t wide = p->kernel->wide, count = p->channels * p->sums->taps, row = s->channels * p->sums->taps;
    float *gradients = scratch, *sum = gradients + gradient_floats(s); /* sum: of dw, per block: (channels, taps,
                                                                          wide) */
    float *room = sum + parts(p->lanes, wide) * wide * count;
    for (int64_t lane = 0; lane < p->lanes; lane += wide)
        p->kernel->side_by_side(p->dw + lane * row, row, count, (int)least(wide, p->lanes - lane), sum + lane * count);
    for (int64_t image = 0; image < s->images; image += most_of.images)
        for (int64_t y = 0; y < s->out[0]; y += most_of.n[0])
            for (int64_t x = 0; x < s->out[1]; x += most_of.n[1]) {
                int64_t n[2] = {least(most_of.n[0], s->out[0] - y), least(most_of.n[1], s->out[1] - x)};
                sum_part(p, image, least(most_of.images, s->images - image), (int64_t[]){y, x}, n, gradients, sum,
                         room);
            }
    for (int64_t lane = 0; lane < p->lanes; lane += wide)
        p->kernel->apart(sum + lane * count, false, row, 1, count, (int)least(wide, p->lanes - lane),
                         p->dw + lane * row);
}

/* Divides the channels of all groups and the spans of lanes evenly among the threads. */
static void sum_weights(const rm_conv_shape *s, int threads, const float *x, const float *dy, float *dw, float *scratch,
                        int64_t floats) {
    const sums u = sums_of(s, false);
    const rm_convolution *kernel = rm_cell_kernels_get()->convolution;
    int64_t spans = parts(s->outputs, SPAN), all = s->groups * spans * s->channels;
    int64_t each = channel_floats(s, &u), besides = gradient_floats(s);
    int64_t workers = least(is_large(s) ? threads : 1, least(all, floats / (besides + each)));
    int64_t room = floats / workers, together = (room - besides) / each;
    RM_PARALLEL_FOR(
        threads, workers > 1, for (int64_t part = 0; part < workers; part++) {
            int64_t end = all * (part + 1) / workers, count;
            for (int64_t i = all * part / workers; i < end; i += count) {
                int64_t channel = i % s->channels, lane = i / s->channels % spans * SPAN, g = i / s->channels / spans;
                count = least(least(together, end - i), s->channels - channel);
                piece p = {.shape = s,
                           .sums = &u,
                           .kernel = kernel,
                           .channels = count,
                           .lanes = least(SPAN, s->outputs - lane),
                           .x = x + (g * s->channels + channel) * s->pixels,
                           .dy = dy + (g * s->outputs + lane) * s->positions,
                           .dw = dw + ((g * s->outputs + lane) * s->channels + channel) * u.taps};
                sum_piece(&p, scratch + part * room);
            }
        });
}

/* ---- Both -------------------------------------------------------------------------------------------------------- */

static int64_t pixels_scratch(const rm_conv_shape *s, bool backward) {
    const sums u = sums_of(s, backward);
    const sizes z = sizes_of(s, &u);
    return z.packed + z.windows;
}

static int64_t weights_scratch(const rm_conv_shape *s) {
    const sums u = sums_of(s, false);
    int64_t each = channel_floats(s, &u), besides = gradient_floats(s);
    int64_t all = s->groups * parts(s->outputs, SPAN) * s->channels, alone = besides + s->channels * each;
    return most(besides + each, least(WINDOWS, is_large(s) ? all * (besides + each) : alone));
}

/* For 1 x 1 filters without stride and padding, treats an image as one long row. A transposed convolution may have
 * output padding: in then differs from out. */
static rm_conv_shape straightened(const rm_conv_shape *shape) {
    rm_conv_shape s = *shape;
    for (int d = 0; d < 2; d++)
        if (s.filter[d] != 1 || s.stride[d] != 1 || s.padding[d] || s.in[d] != s.out[d]) return s;
    s.in[0] = s.out[0] = 1, s.in[1] = s.out[1] = s.pixels;
    return s;
}

int64_t rm_convolve_scratch(const rm_conv_shape *shape, remat_pass pass) {
    const rm_conv_shape s = straightened(shape);
    if (pass == REMAT_FORWARD) return pixels_scratch(&s, s.transposed);
    return most(pixels_scratch(&s, !s.transposed), weights_scratch(&s));
}

void rm_convolve_forward(const rm_conv_shape *shape, int threads, const float *x, const float *w, const float *b,
                         float *y, float *scratch) {
    const rm_conv_shape s = straightened(shape);
    sum_pixels(&s, s.transposed, threads, x, w, b, y, scratch);
}

void rm_convolve_backward(const rm_conv_shape *shape, int threads, const float *x, const float *w, const float *dy,
                          float *dx, float *dw, float *scratch) {
    const rm_conv_shape s = straightened(shape);
    const float *image = s.transposed ? dy : x, *sums = s.transposed ? x : dy;
    if (dx) sum_pixels(&s, !s.transposed, threads, dy, w, NULL, dx, scratch);
    if (dw) sum_weights(&s, threads, image, sums, dw, scratch, weights_scratch(&s));
}
