/* networks.h: small networks of the kinds that bench/networks.py trains, for test_plans.c: a residual network of
 * convolutions with batch norm, a GPT, and a U-Net. Each has a loss and inputs drawn from the step's number. Main entry:
 * networks. */
#ifndef TEST_GPU_NETWORKS_H
#define TEST_GPU_NETWORKS_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/remat.h"
#include "engine/rng.h"

/* large: enough for tiles of products, blocks of attention and rows of several blocks; else for an emulated device. */
typedef struct {
    const char *name;
    bool convolves;
    remat_value (*build)(remat_graph *g, bool large);
} network;

static inline remat_value network_param(remat_graph *g, const char *layer, const char *part, int rank,
                                        const int64_t *dim, remat_init init) {
    char name[64];
    snprintf(name, sizeof name, "%s.%s", layer, part);
    return remat_param(g, name, rank, dim, init);
}

static inline remat_value network_vector(remat_graph *g, const char *layer, const char *part, int64_t n, double value) {
    return network_param(g, layer, part, 1, &n, remat_init_constant(value));
}

/* ---- Convolutions ------------------------------------------------------------------------------------------------- */

/* Filters of size x size, `groups` of them, with the padding that keeps the size, divided by `stride`. */
static inline remat_value network_conv(remat_graph *g, const char *layer, remat_value x, int64_t in, int64_t out,
                                       int64_t size, int64_t stride, int64_t groups) {
    const int64_t dim[] = {out, in / groups, size, size}, padding[] = {size / 2, size / 2},
                  strides[] = {stride, stride};
    remat_value w = network_param(g, layer, "weight", 4, dim, remat_init_uniform(0.3));
    return remat_conv2d(g, x, w, network_vector(g, layer, "bias", out, 0), strides, padding, NULL, groups);
}

static inline remat_value network_batch_norm(remat_graph *g, const char *layer, remat_value x, int64_t c) {
    char mean[64], variance[64];
    snprintf(mean, sizeof mean, "%s.running_mean", layer), snprintf(variance, sizeof variance, "%s.running_var", layer);
    return remat_batch_norm(g, x, network_vector(g, layer, "gain", c, 1), network_vector(g, layer, "shift", c, 0),
                            remat_buffer(g, mean, 1, &c, remat_init_constant(0)),
                            remat_buffer(g, variance, 1, &c, remat_init_constant(1)), 0.1, 1e-5, false);
}

static inline remat_value network_head(remat_graph *g, remat_value x, int64_t c, int64_t batch) {
    enum { CLASSES = 10 };
    remat_value w = network_param(g, "fc", "weight", 2, (int64_t[]){CLASSES, c}, remat_init_uniform(0.3));
    x = remat_linear(g, remat_mean(g, x, 2), w, network_vector(g, "fc", "bias", CLASSES, 0));
    return remat_softmax_cross_entropy(g, x, remat_input(g, "targets", REMAT_I32, REMAT_STATIC, 1, &batch));
}

/* Blocks of a 1x1, a grouped 3x3 and a depthwise convolution, each with batch norm, beside the identity. */
static inline remat_value network_residual(remat_graph *g, bool large) {
    const int64_t batch = large ? 16 : 2, side = large ? 40 : 8, c = large ? 64 : 4, two[] = {2, 2};
    remat_value x = remat_input(g, "images", REMAT_F32, REMAT_STATIC, 4, (int64_t[]){batch, 3, side, side});
    x = network_batch_norm(g, "bn0", network_conv(g, "conv0", x, 3, c, 7, 2, 1), c);
    x = remat_max_pool2d(g, remat_relu(g, x), two, NULL, NULL);
    for (int i = 0; i < (large ? 3 : 2); i++) {
        char name[3][32];
        for (int k = 0; k < 3; k++) snprintf(name[k], sizeof name[k], "b%d.conv%d", i, k);
        remat_value y = network_conv(g, name[0], x, c, c, 1, 1, 1);
        y = network_conv(g, name[1], remat_relu(g, network_batch_norm(g, name[0], y, c)), c, c, 3, 1, 2);
        y = network_conv(g, name[2], remat_relu(g, network_batch_norm(g, name[1], y, c)), c, c, 3, 1, c);
        x = remat_relu(g, remat_add(g, x, network_batch_norm(g, name[2], y, c)));
    }
    return network_head(g, x, c, batch);
}

static inline remat_value network_norm_silu(remat_graph *g, const char *layer, remat_value x, int64_t c) {
    return remat_silu(g, remat_group_norm(g, x, 2, network_vector(g, layer, "gain", c, 1),
                                          network_vector(g, layer, "shift", c, 0), 1e-5));
}

/* Down by pooling, up by a transposed convolution and by interpolation, joined across; a class for each image. */
static inline remat_value network_unet(remat_graph *g, bool large) {
    const int64_t batch = large ? 4 : 2, side = large ? 64 : 8, c = large ? 32 : 4, two[] = {2, 2};
    remat_value x = remat_input(g, "images", REMAT_F32, REMAT_STATIC, 4, (int64_t[]){batch, 3, side, side});
    remat_value top = network_norm_silu(g, "down0", network_conv(g, "down0", x, 3, c, 3, 1, 1), c);
    remat_value middle = remat_max_pool2d(g, top, two, NULL, NULL);
    middle = network_norm_silu(g, "down1", network_conv(g, "down1", middle, c, 2 * c, 3, 1, 1), 2 * c);
    remat_value low = network_conv(g, "low", remat_max_pool2d(g, middle, two, NULL, NULL), 2 * c, 2 * c, 3, 1, 1);
    low = remat_upsample2d(g, network_norm_silu(g, "low", low, 2 * c), two, REMAT_BILINEAR);
    middle = remat_add(g, middle, low);
    remat_value w = network_param(g, "up", "weight", 4, (int64_t[]){2 * c, c, 2, 2}, remat_init_uniform(0.3));
    x = remat_conv_transpose2d(g, middle, w, network_vector(g, "up", "bias", c, 0), two, NULL, NULL, 1, NULL);
    x = network_norm_silu(g, "last", network_conv(g, "last", remat_add(g, top, x), c, c, 3, 1, 1), c);
    return network_head(g, x, c, batch);
}

/* ---- GPT ---------------------------------------------------------------------------------------------------------- */

static inline remat_value network_linear(remat_graph *g, const char *layer, remat_value x, int64_t in, int64_t out) {
    remat_value w = network_param(g, layer, "weight", 2, (int64_t[]){out, in}, remat_init_normal(0.1));
    return remat_linear(g, x, w, network_vector(g, layer, "bias", out, 0));
}

static inline remat_value network_layer_norm(remat_graph *g, const char *layer, remat_value x, int64_t c) {
    return remat_layer_norm(g, x, network_vector(g, layer, "gain", c, 1), network_vector(g, layer, "shift", c, 0),
                            1e-5);
}

static inline remat_value network_gpt(remat_graph *g, bool large) {
    const int64_t shape[] = {large ? 600 : 10, large ? 2 : 3}, c = large ? 192 : 8, words = large ? 1500 : 11;
    remat_value tokens = remat_input(g, "tokens", REMAT_I32, REMAT_SEQUENCE, 2, shape);
    remat_value targets = remat_input(g, "targets", REMAT_I32, REMAT_SEQUENCE, 2, shape);
    remat_value x =
        remat_embedding(g, tokens, network_param(g, "wte", "weight", 2, (int64_t[]){words, c}, remat_init_normal(1)));
    x = remat_positions(g, x, network_param(g, "wpe", "weight", 2, (int64_t[]){shape[0], c}, remat_init_normal(0.1)));
    for (int i = 0; i < 2; i++) {
        static const char *const part[] = {"ln1", "q", "k", "v", "proj", "ln2", "fc", "out"};
        char name[8][16];
        for (int k = 0; k < 8; k++) snprintf(name[k], sizeof name[k], "h%d.%s", i, part[k]);
        remat_value y = network_layer_norm(g, name[0], x, c);
        remat_value q = network_linear(g, name[1], y, c, c), k = network_linear(g, name[2], y, c, c);
        y = remat_attention(g, q, k, network_linear(g, name[3], y, c, c), 2, true);
        x = remat_add(g, x, remat_dropout(g, network_linear(g, name[4], y, c, c), 0.1));
        y = remat_gelu(g, network_linear(g, name[6], network_layer_norm(g, name[5], x, c), c, 4 * c));
        x = remat_add(g, x, network_linear(g, name[7], y, 4 * c, c));
    }
    return remat_softmax_cross_entropy(g, network_linear(g, "head", x, c, words), targets);
}

static const network networks[] = {
    {"resnet", true, network_residual}, {"unet", true, network_unet}, {"gpt", false, network_gpt}};
enum { NETWORKS = sizeof networks / sizeof *networks };

/* Fills all inputs: images with numbers, tokens and classes with integers below 10. */
static inline remat_status network_feed(remat_session *s, int64_t step) {
    for (int64_t input = 0; input < remat_count(s, REMAT_INPUT); input++) {
        remat_array info;
        remat_status status = remat_array_info(s, REMAT_INPUT, input, &info);
        int64_t count = (int64_t)info.bytes / 4;
        float *number = status ? NULL : malloc(info.bytes);
        int32_t *integer = (int32_t *)number;
        if (!number) return REMAT_MEMORY;
        for (int64_t i = 0; i < count; i++) {
            uint32_t drawn = rm_random(17, step, (int)input, 0, i);
            if (!strcmp(info.name, "images"))
                number[i] = (float)(drawn % 1001) / 500 - 1;
            else
                integer[i] = (int32_t)(drawn % 10);
        }
        status = remat_write(s, REMAT_INPUT, input, number, info.bytes);
        free(number);
        if (status) return status;
    }
    return REMAT_OK;
}

#endif
