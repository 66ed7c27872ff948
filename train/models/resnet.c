/* resnet.c: the models resnet18, resnet34 and resnet50 (He et al., "Deep residual learning", 2015). Parameters have torchvision's
 * names, shapes and initial distributions, so its state_dict can be read and written.
 *
 *     stem     conv1 7x7 to 64, stride 2; bn1; relu; max_pool 3x3, stride 2.  --stem=cifar: conv1 3x3, bn1, relu
 *     layer1   blocks, 64 wide
 *     layer2   blocks, 128 wide, the first with stride 2; so layer3, 256, and layer4, 512
 *     head     the mean over each channel; fc
 *
 *     basic block       conv1 3x3, bn1, relu, conv2 3x3, bn2                            resnet18, resnet34
 *     bottleneck        conv1 1x1, bn1, relu, conv2 3x3, bn2, relu, conv3 1x1 to 4 times the width, bn3      resnet50
 *     ... + x, or downsample of x: conv 1x1, bn, where shapes differ; relu
 */
#include "train/models/family.h"

#include "train/models/image.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { LAYERS = 4, STEM = 64, BOTTLENECK = 4 };

typedef struct {
    const char *name;
    int blocks[LAYERS];
    bool bottleneck;
} shape;

static const shape shapes[] = {
    {"resnet18", {2, 2, 2, 2}, false}, {"resnet34", {3, 4, 6, 3}, false}, {"resnet50", {3, 4, 6, 3}, true}};

static const shape *find_shape(const char *name) {
    const shape *net = shapes;
    while (strcmp(net->name, name)) net++;
    return net;
}

typedef struct {
    remat_graph *graph;
    bool sync;
    char prefix[40]; /* "layer1.0.", of the current block */
} builder;

static remat_value parameter(builder *b, const char *name, const char *what, int rank, const int64_t *dim,
                             remat_init init) {
    char full[80];
    snprintf(full, sizeof full, "%s%s.%s", b->prefix, name, what);
    return remat_param(b->graph, full, rank, dim, init);
}

static remat_value buffer(builder *b, const char *name, const char *what, int64_t channels, remat_init init) {
    char full[80];
    snprintf(full, sizeof full, "%s%s.%s", b->prefix, name, what);
    return remat_buffer(b->graph, full, 1, &channels, init);
}

/* Kaiming's normal initialisation with fan-out, for relu. No bias: batch norm has one. */
static remat_value convolution(builder *b, const char *name, remat_value x, int64_t in, int64_t out, int64_t kernel,
                               int64_t stride) {
    int64_t padding = kernel / 2, dim[] = {out, in, kernel, kernel};
    remat_init init = remat_init_normal(sqrt(2 / (double)(out * kernel * kernel)));
    remat_value w = parameter(b, name, "weight", 4, dim, init);
    return remat_conv2d(b->graph, x, w, REMAT_NONE, (int64_t[]){stride, stride}, (int64_t[]){padding, padding}, NULL,
                        1);
}

static remat_value norm(builder *b, const char *name, remat_value x, int64_t channels) {
    return remat_batch_norm(b->graph, x, parameter(b, name, "weight", 1, &channels, remat_init_constant(1)),
                            parameter(b, name, "bias", 1, &channels, remat_init_zero()),
                            buffer(b, name, "running_mean", channels, remat_init_zero()),
                            buffer(b, name, "running_var", channels, remat_init_constant(1)), 0.1, 1e-5, b->sync);
}

static remat_value basic(builder *b, remat_value x, int64_t in, int64_t width, int64_t stride) {
    x = remat_relu(b->graph, norm(b, "bn1", convolution(b, "conv1", x, in, width, 3, stride), width));
    return norm(b, "bn2", convolution(b, "conv2", x, width, width, 3, 1), width);
}

static remat_value bottleneck(builder *b, remat_value x, int64_t in, int64_t width, int64_t stride) {
    const int64_t out = BOTTLENECK * width;
    x = remat_relu(b->graph, norm(b, "bn1", convolution(b, "conv1", x, in, width, 1, 1), width));
    x = remat_relu(b->graph, norm(b, "bn2", convolution(b, "conv2", x, width, width, 3, stride), width));
    return norm(b, "bn3", convolution(b, "conv3", x, width, out, 1, 1), out);
}

/* The skip connection of a block. */
static remat_value shortcut(builder *b, remat_value x, int64_t in, int64_t out, int64_t stride) {
    if (in == out && stride == 1) return x;
    return norm(b, "downsample.1", convolution(b, "downsample.0", x, in, out, 1, stride), out);
}

static remat_value blocks(builder *b, const shape *net, int layer, remat_value x, int64_t *channels) {
    const int64_t width = STEM << layer, out = width * (net->bottleneck ? BOTTLENECK : 1);
    for (int i = 0; i < net->blocks[layer]; i++) {
        int64_t stride = layer && !i ? 2 : 1;
        snprintf(b->prefix, sizeof b->prefix, "layer%d.%d.", layer + 1, i);
        remat_value y = (net->bottleneck ? bottleneck : basic)(b, x, *channels, width, stride);
        x = remat_relu(b->graph, remat_add(b->graph, y, shortcut(b, x, *channels, out, stride)));
        *channels = out;
    }
    return x;
}

static remat_value stem(builder *b, const rm_model_spec *spec, remat_value x) {
    const int64_t in = spec->data.channels;
    remat_value y =
        spec->small_stem ? convolution(b, "conv1", x, in, STEM, 3, 1) : convolution(b, "conv1", x, in, STEM, 7, 2);
    y = remat_relu(b->graph, norm(b, "bn1", y, STEM));
    if (spec->small_stem) return y;
    return remat_max_pool2d(b->graph, y, (int64_t[]){3, 3}, (int64_t[]){2, 2}, (int64_t[]){1, 1});
}

static remat_value logits(remat_graph *g, const rm_model_spec *spec, remat_value x) {
    builder b = {.graph = g, .sync = spec->sync_batchnorm};
    const shape *net = find_shape(spec->name);
    int64_t channels = STEM;
    x = stem(&b, spec, x);
    for (int layer = 0; layer < LAYERS; layer++) x = blocks(&b, net, layer, x, &channels);
    return rm_image_linear(g, "fc", remat_mean(g, x, 2), channels, spec->data.classes);
}

/* The block counts of layer1 and layer3 identify the model. */
static bool recognise(const char *name, const rm_safetensors *file, rm_model_found *out) {
    const shape *net = find_shape(name);
    const rm_st_array *stem = rm_weights_named(file, "conv1.weight");
    bool bottleneck = rm_weights_layers(file, "layer1.", ".conv3.weight") > 0;
    const char *last = bottleneck ? ".conv3.weight" : ".conv2.weight";
    bool same = bottleneck == net->bottleneck && rm_weights_layers(file, "layer1.", last) == net->blocks[0] &&
                rm_weights_layers(file, "layer3.", last) == net->blocks[2];
    if (!same) return false;
    rm_found_text(out, "stem", stem && stem->rank == 4 && stem->dim[2] == 3 ? "cifar" : "imagenet");
    rm_found_ends(out, file, NULL, "head.weight"); /* saved under the name fc: see weights.h */
    return true;
}

const rm_model_family rm_resnet_family = {.logits = logits, .head = "fc.", .recognise = recognise};
