/* unet.c: U-Net (Ronneberger et al. 2015) for a class at each pixel, with the names, shapes and starting distributions of
 * milesial's Pytorch-UNet: twice a 3x3 convolution, batch norm and relu at each level, max_pool 2 down, and twice the size
 * up, by bilinear interpolation (bilinear=True) or a transposed convolution (bilinear=False, --up=transposed), with the
 * level's result on the way down beside it:
 *
 *     inc ──────────────────────────────── up4 ─ outc
 *       down1 ────────────────────── up3
 *           down2 ──────────── up2               --layers: the number of downs; --hidden: channels of inc
 *               down3 ── up1
 *                   down4
 */
#include "train/models/family.h"

#include <math.h>
#include <stdio.h>

enum { MOST_LEVELS = 12 };

static remat_status check(const rm_model_spec *spec) {
    REQUIRE(spec->layers <= MOST_LEVELS, INVALID, "--layers=%lld: a unet has at most %d levels; give fewer",
            (long long)spec->layers, MOST_LEVELS);
    REQUIRE(spec->transposed || spec->hidden % 2 == 0, INVALID,
            "--hidden=%lld: a unet halves its channels on the way up: give an even number", (long long)spec->hidden);
    int64_t times = (int64_t)1 << spec->layers;
    REQUIRE(spec->data.height % times == 0 && spec->data.width % times == 0, INVALID,
            "--model=unet halves images --layers=%lld times, and these are %lld x %lld: crop or pad them to multiples "
            "of %lld, or reduce --layers",
            (long long)spec->layers, (long long)spec->data.height, (long long)spec->data.width, (long long)times);
    return REMAT_OK;
}

typedef struct {
    remat_graph *graph;
    const rm_model_spec *spec;
    char prefix[48]; /* "up1.conv.double_conv.", of the current block */
} builder;

static const char *named(const builder *b, char full[80], int number, const char *what) {
    snprintf(full, 80, "%s%d.%s", b->prefix, number, what);
    return full;
}

/* A batch norm's parameter; `at` is its index in nn.Sequential. */
static remat_value channel_param(builder *b, int at, const char *what, int64_t channels, remat_init init) {
    char full[80];
    return remat_param(b->graph, named(b, full, at, what), 1, &channels, init);
}
static remat_value channel_buffer(builder *b, int at, const char *what, int64_t channels, remat_init init) {
    char full[80];
    return remat_buffer(b->graph, named(b, full, at, what), 1, &channels, init);
}

/* Convolution `at`, the norm after it, and relu. No bias: batch norm has one. */
static remat_value convolution(builder *b, int at, remat_value x, int64_t in, int64_t out) {
    char full[80];
    const int64_t dim[] = {out, in, 3, 3};
    remat_value w =
        remat_param(b->graph, named(b, full, at, "weight"), 4, dim, remat_init_uniform(1 / sqrt(9 * (double)in)));
    x = remat_conv2d(b->graph, x, w, REMAT_NONE, NULL, (int64_t[]){1, 1}, NULL, 1);
    remat_value gain = channel_param(b, at + 1, "weight", out, remat_init_constant(1));
    remat_value bias = channel_param(b, at + 1, "bias", out, remat_init_zero());
    remat_value mean = channel_buffer(b, at + 1, "running_mean", out, remat_init_zero());
    remat_value var = channel_buffer(b, at + 1, "running_var", out, remat_init_constant(1));
    return remat_relu(b->graph,
                      remat_batch_norm(b->graph, x, gain, bias, mean, var, 0.1, 1e-5, b->spec->sync_batchnorm));
}

static remat_value twice(builder *b, remat_value x, int64_t in, int64_t middle, int64_t out) {
    return convolution(b, 3, convolution(b, 0, x, in, middle), middle, out);
}

/* Channels of level l on the way down. Interpolation cannot halve them, so with it the lowest level has as many as
 * the level above. */
static int64_t channels_at(const rm_model_spec *spec, int64_t level) {
    return spec->hidden << (level < spec->layers || spec->transposed ? level : spec->layers - 1);
}

static remat_value down(builder *b, int64_t level, remat_value x) {
    const int64_t out = channels_at(b->spec, level);
    snprintf(b->prefix, sizeof b->prefix, "down%lld.maxpool_conv.1.double_conv.", (long long)level);
    x = remat_max_pool2d(b->graph, x, (int64_t[]){2, 2}, NULL, NULL);
    return twice(b, x, channels_at(b->spec, level - 1), out, out);
}

/* Twice as high and wide, with `width` channels instead of twice as many. */
static remat_value widened(builder *b, long long number, remat_value x, int64_t width) {
    const int64_t dim[] = {2 * width, width, 2, 2};
    const remat_init init = remat_init_uniform(1 / sqrt(4 * (double)width));
    char weight[40], bias[40];
    snprintf(weight, sizeof weight, "up%lld.up.weight", number);
    snprintf(bias, sizeof bias, "up%lld.up.bias", number);
    remat_value w = remat_param(b->graph, weight, 4, dim, init), shift = remat_param(b->graph, bias, 1, &width, init);
    return remat_conv_transpose2d(b->graph, x, w, shift, (int64_t[]){2, 2}, NULL, NULL, 1, NULL);
}

/* From the level below up to `level`; `skip` is its output on the way down. */
static remat_value up(builder *b, int64_t level, remat_value x, remat_value skip) {
    const int64_t width = channels_at(b->spec, level), out = level && !b->spec->transposed ? width / 2 : width;
    const long long number = (long long)(b->spec->layers - level);
    x = b->spec->transposed ? widened(b, number, x, width)
                            : remat_upsample2d(b->graph, x, (int64_t[]){2, 2}, REMAT_BILINEAR_CORNERS);
    snprintf(b->prefix, sizeof b->prefix, "up%lld.conv.double_conv.", number);
    x = remat_concat_axis(b->graph, (remat_value[]){skip, x}, 2, 1);
    return twice(b, x, 2 * width, width, out);
}

/* Moves classes to the last axis, as losses need. */
static remat_value classes_of(remat_graph *g, const rm_model_spec *spec, remat_value x) {
    const int64_t K = spec->data.classes, in = spec->hidden;
    const remat_init init = remat_init_uniform(1 / sqrt((double)in));
    remat_value w = remat_param(g, "outc.conv.weight", 4, (int64_t[]){K, in, 1, 1}, init);
    x = remat_conv2d(g, x, w, remat_param(g, "outc.conv.bias", 1, &K, init), NULL, NULL, NULL, 1);
    return remat_transpose(g, remat_reshape(g, x, 3, (int64_t[]){-1, K, spec->data.pixels}), 1, 2);
}

static remat_value logits(remat_graph *g, const rm_model_spec *spec, remat_value x) {
    builder b = {.graph = g, .spec = spec, .prefix = "inc.double_conv."};
    remat_value made[MOST_LEVELS + 1];
    made[0] = twice(&b, x, spec->data.channels, spec->hidden, spec->hidden);
    for (int64_t level = 1; level <= spec->layers; level++) made[level] = down(&b, level, made[level - 1]);
    x = made[spec->layers];
    for (int64_t level = spec->layers - 1; level >= 0; level--) x = up(&b, level, x, made[level]);
    return classes_of(g, spec, x);
}

static bool recognise(const char *name, const rm_safetensors *file, rm_model_found *out) {
    const rm_st_array *first = rm_weights_named(file, "inc.double_conv.0.weight");
    int64_t levels = rm_weights_layers(file, "down", ".maxpool_conv.1.double_conv.0.weight") - 1; /* from 1 on */
    (void)name;
    if (!first || first->rank != 4) return false;
    if (levels > 0) rm_found_number(out, "layers", levels);
    rm_found_number(out, "hidden", first->dim[0]);
    rm_found_text(out, "up", rm_weights_named(file, "up1.up.weight") ? "transposed" : "bilinear");
    rm_found_ends(out, file, NULL, "outc.conv.weight");
    return true;
}

const rm_model_family rm_unet_family = {.check = check, .logits = logits, .head = "outc.", .recognise = recognise};
