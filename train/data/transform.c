/* transform.c: see transform.h. */
#include "train/data/transform.h"

#include "engine/rng.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- The flags --------------------------------------------------------------------------------------------------- */

static const char *given(const char *text) { return !text || !strcmp(text, "none") ? "" : text; }

static remat_status parse_word(const char *word, size_t length, rm_augment *out) {
    char *end;
    if (length == 4 && !strncmp(word, "flip", 4)) {
        out->flip = true;
    } else if (length == 12 && !strncmp(word, "resized-crop", 12)) {
        out->resized_crop = true;
    } else {
        bool crop = !strncmp(word, "crop:", 5) && word[5] >= '0' && word[5] <= '9';
        out->crop = crop ? strtoll(word + 5, &end, 10) : 0;
        REQUIRE(crop && end == word + length && out->crop >= 1 && out->crop <= 10000, INVALID,
                "--augment: unknown '%.*s': give crop:PIXELS, flip or resized-crop, separated by commas", (int)length,
                word);
    }
    return REMAT_OK;
}

remat_status rm_augment_parse(const char *text, rm_augment *out) {
    *out = (rm_augment){0};
    for (const char *at = given(text); *at;) {
        size_t length = strcspn(at, ",");
        TRY(parse_word(at, length, out));
        at += length + (at[length] == ',');
    }
    REQUIRE(!(out->crop && out->resized_crop), INVALID,
            "--augment: crop and resized-crop cannot be combined: give one of the two");
    return REMAT_OK;
}

static const char *parse_pair(const char *at, double *mean, double *deviation) {
    char *end;
    *mean = strtod(at, &end);
    if (end == at || *end != ':') return NULL;
    at = end + 1;
    *deviation = strtod(at, &end);
    return end == at || (*end && *end != ',') ? NULL : end + (*end == ',');
}

remat_status rm_normalize_parse(const char *text, int64_t channels, rm_normalize *out) {
    int64_t n = 0;
    REQUIRE(channels >= 1 && channels <= RM_MOST_CHANNELS, INVALID,
            "images have %lld channels, but only 1 to %d are supported: check the order of axes (--help)",
            (long long)channels, RM_MOST_CHANNELS);
    for (int64_t c = 0; c < channels; c++) out->mean[c] = 0, out->deviation[c] = 1;
    for (const char *at = given(text); *at; n++) {
        double mean = 0, deviation = 1;
        const char *next = parse_pair(at, &mean, &deviation);
        REQUIRE(next && n < channels, INVALID,
                "--normalize=%.200s is malformed: give one MEAN:STD, or %lld separated by commas, e.g. "
                "0.5:0.25",
                text, (long long)channels);
        REQUIRE(
            fabs(mean) <= 1e6 && deviation >= 1e-6 && deviation <= 1e6, INVALID,
            "--normalize=%.200s: a mean of %g and a standard deviation of %g cannot be used; give means up to 1e6 and "
            "standard deviations of 1e-6 to 1e6",
            text, mean, deviation);
        out->mean[n] = (float)mean;
        out->deviation[n] = (float)deviation;
        at = next;
    }
    REQUIRE(n <= 1 || n == channels, INVALID,
            "--normalize has %lld pairs for %lld channels or features: give one pair, or %lld", (long long)n,
            (long long)channels, (long long)channels);
    for (int64_t c = 1; n == 1 && c < channels; c++) out->mean[c] = out->mean[0], out->deviation[c] = out->deviation[0];
    return REMAT_OK;
}

/* ---- Which part -------------------------------------------------------------------------------------------------- */

/* torchvision's Resize and CenterCrop: rounds the longer side down, and the crop's position to the nearest pixel. */
rm_transform rm_transform_fixed(int64_t image_height, int64_t image_width, const rm_crop *crop) {
    int64_t height = crop->height, width = crop->width;
    int64_t tall = crop->resize ? crop->resize : height, broad = crop->resize ? crop->resize : width;
    rm_transform f = {.rows = image_height, .columns = image_width, .height = height, .width = width};
    bool wide = image_width * tall > image_height * broad;
    int64_t tall_to = wide ? tall : (int64_t)((double)image_height * (double)broad / (double)image_width);
    int64_t wide_to = wide ? (int64_t)((double)image_width * (double)tall / (double)image_height) : broad;
    if (tall_to < tall) tall_to = tall;
    if (wide_to < broad) wide_to = broad;
    double down = (double)image_height / (double)tall_to, across = (double)image_width / (double)wide_to;
    f.top = nearbyint((double)(tall_to - height) / 2) * down;
    f.left = nearbyint((double)(wide_to - width) / 2) * across;
    f.box_height = (double)height * down;
    f.box_width = (double)width * across;
    return f;
}

enum { NODE = 0xA06, CROP = 0, RESIZED = 1, TRIES = 10 }; /* of the random key */

static int64_t below(uint32_t word, int64_t n) { return (int64_t)((uint64_t)word * (uint64_t)n >> 32); }

/* Crops `height` x `width` pixels at (top,left); the filter does not read pixels outside. */
static void take_box(rm_transform *f, int64_t top, int64_t left, int64_t height, int64_t width) {
    f->top = (double)(f->first_row = top);
    f->left = (double)(f->first_column = left);
    f->box_height = (double)(f->rows = height);
    f->box_width = (double)(f->columns = width);
}

/* torchvision's RandomResizedCrop: ten tries, then the largest centre crop with an allowed aspect ratio. */
static void draw_box(rm_transform *f, uint64_t seed, int64_t epoch, int64_t sample, int64_t H, int64_t W) {
    const double narrow = 3.0 / 4, wide = 4.0 / 3;
    for (uint32_t i = 0; i < TRIES; i++) {
        rm_philox draw =
            rm_random4(rm_seed_at(seed, (uint64_t)epoch), (uint64_t)sample, NODE, RESIZED + i, (uint32_t)epoch);
        double area = (double)H * (double)W * (0.08 + 0.92 * (double)rm_uniform(draw.word[0]));
        double ratio = exp(log(narrow) + (log(wide) - log(narrow)) * (double)rm_uniform(draw.word[1]));
        int64_t w = llrint(sqrt(area * ratio)), h = llrint(sqrt(area / ratio));
        if (w < 1 || h < 1 || w > W || h > H) continue;
        take_box(f, below(draw.word[2], H - h + 1), below(draw.word[3], W - w + 1), h, w);
        return;
    }
    double shape = (double)W / (double)H;
    int64_t w = shape > wide ? llrint((double)H * wide) : W, h = shape < narrow ? llrint((double)W / narrow) : H;
    take_box(f, (H - h) / 2, (W - w) / 2, h, w);
}

rm_transform rm_transform_random(const rm_augment *augment, uint64_t seed, int64_t epoch, int64_t sample,
                                 int64_t image_height, int64_t image_width, const rm_crop *crop) {
    rm_transform f = rm_transform_fixed(image_height, image_width, crop);
    rm_philox draw = rm_random4(rm_seed_at(seed, (uint64_t)epoch), (uint64_t)sample, NODE, CROP, (uint32_t)epoch);
    int64_t play = 2 * augment->crop + 1;
    if (augment->resized_crop) draw_box(&f, seed, epoch, sample, image_height, image_width);
    f.down = below(draw.word[0], play) - augment->crop;
    f.right = below(draw.word[1], play) - augment->crop;
    f.flip = augment->flip && draw.word[2] >> 31;
    return f;
}

/* ---- The numbers ------------------------------------------------------------------------------------------------- */

/* The pixels of the image that one output pixel averages, along one axis. */
typedef struct {
    double centre, support;
    int64_t first, end;
} window;

static window window_at(double begin, double scale, int64_t at, int64_t first, int64_t count) {
    double support = scale > 1 ? scale : 1, centre = begin + ((double)at + 0.5) * scale;
    window w = {centre, support, (int64_t)floor(centre - support), (int64_t)ceil(centre + support)};
    if (w.first < first) w.first = first;
    if (w.end > first + count) w.end = first + count;
    return w;
}

static double weight_at(const window *w, int64_t i) {
    return fmax(0, 1 - fabs((double)i + 0.5 - w->centre) / w->support);
}

/* Averages the rows of a window, for each column of the image. */
static void mix_rows(const rm_transform *f, const rm_array *image, int64_t c, const window *rows, float *line) {
    double all = 0;
    for (int64_t x = 0; x < f->columns; x++) line[x] = 0;
    for (int64_t y = rows->first; y < rows->end; y++) all += weight_at(rows, y);
    for (int64_t y = rows->first; y < rows->end; y++) {
        double weight = weight_at(rows, y) / all;
        if (weight == 0) continue;
        for (int64_t x = 0; x < f->columns; x++)
            line[x] += (float)(weight * rm_array_at(image, c, y, f->first_column + x));
    }
}

static float mix_columns(const rm_transform *f, const window *columns, const float *line) {
    double all = 0, sum = 0;
    for (int64_t x = columns->first; x < columns->end; x++) {
        double weight = weight_at(columns, x);
        all += weight;
        sum += weight * (double)line[x - f->first_column];
    }
    return (float)(sum / all);
}

static void make_row(const rm_transform *f, const float *line, double unit, float mean, float deviation, float *out) {
    double scale = f->box_width / (double)f->width;
    for (int64_t x = 0; x < f->width; x++) {
        int64_t at = (f->flip ? f->width - 1 - x : x) + f->right;
        bool inside = line && at >= 0 && at < f->width;
        window columns = window_at(f->left, scale, at, f->first_column, f->columns);
        float value = inside ? (float)((double)mix_columns(f, &columns, line) / unit) : 0;
        out[x] = (value - mean) / deviation;
    }
}

void rm_transform_apply(const rm_transform *f, const rm_array *image, double unit, const rm_normalize *normalize,
                        float *line, float *out) {
    double scale = f->box_height / (double)f->height;
    for (int64_t c = 0; c < image->dim[0]; c++)
        for (int64_t y = 0; y < f->height; y++) {
            int64_t at = y + f->down;
            bool inside = at >= 0 && at < f->height;
            window rows = window_at(f->top, scale, at, f->first_row, f->rows);
            if (inside) mix_rows(f, image, c, &rows, line);
            make_row(f, inside ? line : NULL, unit, normalize->mean[c], normalize->deviation[c],
                     out + (c * f->height + y) * f->width);
        }
}

static int64_t nearest(double begin, double box, int64_t size, int64_t at, int64_t most) {
    int64_t i = (int64_t)floor(begin + ((double)at + 0.5) * box / (double)size);
    return i < 0 ? 0 : i < most ? i : most - 1;
}

uint8_t rm_transform_nearest(const rm_transform *f, const rm_array *mask, int64_t y, int64_t x) {
    int64_t row = nearest(f->top, f->box_height, f->height, y, mask->dim[1]);
    return (uint8_t)rm_array_at(mask, 0, row, nearest(f->left, f->box_width, f->width, x, mask->dim[2]));
}
