/* image.c: see image.h. */
#include "train/models/image.h"

#include "train/models/family.h"

#include <math.h>
#include <stdio.h>

/* Initialised from U(-1/sqrt(n), 1/sqrt(n)) with fan-in n. */
static remat_value parameter(remat_graph *g, const char *name, const char *what, int rank, const int64_t *dim,
                             int64_t n) {
    char full[80];
    snprintf(full, sizeof full, "%s.%s", name, what);
    return remat_param(g, full, rank, dim, remat_init_uniform(1 / sqrt((double)n)));
}

remat_value rm_image_linear(remat_graph *g, const char *name, remat_value x, int64_t in, int64_t out) {
    remat_value w = parameter(g, name, "weight", 2, (int64_t[]){out, in}, in);
    return remat_linear(g, x, w, parameter(g, name, "bias", 1, &out, in));
}

static remat_value as_rows(remat_graph *g, remat_value x, int64_t features) {
    return remat_reshape(g, x, 2, (int64_t[]){-1, features});
}

/* ---- mlp ----------------------------------------------------------------------------------------------------------- */

static remat_value mlp_logits(remat_graph *g, const rm_model_spec *spec, remat_value x) {
    char name[32];
    int64_t width = spec->data.features;
    x = as_rows(g, x, width);
    for (int64_t layer = 0; layer < spec->layers; layer++) {
        snprintf(name, sizeof name, "%lld", (long long)(2 * layer));
        x = remat_relu(g, rm_image_linear(g, name, x, width, spec->hidden));
        if (spec->dropout > 0) x = remat_dropout(g, x, spec->dropout);
        width = spec->hidden;
    }
    snprintf(name, sizeof name, "%lld", (long long)(2 * spec->layers));
    return rm_image_linear(g, name, x, width, rm_data_outputs(&spec->data));
}

static void mlp_head(const rm_model_spec *spec, char *out, size_t bytes) {
    snprintf(out, bytes, "%lld.", (long long)(2 * spec->layers));
}

/* Layers are named by numbers: 0.weight, 2.weight, ... */
static bool recognise_mlp(const char *name, const rm_safetensors *file, rm_model_found *out) {
    int64_t last = rm_weights_layers(file, "", ".weight") - 1;
    const rm_st_array *first = rm_weights_named(file, "0.weight"), *head;
    char full[32];
    (void)name;
    snprintf(full, sizeof full, "%lld.weight", (long long)last);
    head = rm_weights_named(file, full);
    if (!first || !head || last < 1 || first->rank != 2 || head->rank != 2) return false;
    rm_found_number(out, "layers", last / 2);
    rm_found_number(out, "hidden", first->dim[0]);
    out->outputs = head->dim[0];
    return true;
}

const rm_model_family rm_mlp_family = {.logits = mlp_logits, .name_head = mlp_head, .recognise = recognise_mlp};

/* ---- cnn ----------------------------------------------------------------------------------------------------------- */

enum { CNN_FIRST = 32, CNN_SECOND = 64, CNN_HIDDEN = 128 };

static remat_status cnn_check(const rm_model_spec *spec) {
    REQUIRE(spec->data.height >= 6 && spec->data.width >= 6, INVALID,
            "--model=cnn: images have %lld x %lld pixels; its two convolutions and its max_pool need 6 x 6 or more",
            (long long)spec->data.height, (long long)spec->data.width);
    return REMAT_OK;
}

/* A convolution without padding, and relu. */
static remat_value conv_block(remat_graph *g, const char *name, remat_value x, int64_t in, int64_t out) {
    remat_value w = parameter(g, name, "weight", 4, (int64_t[]){out, in, 3, 3}, in * 9);
    return remat_relu(g, remat_conv2d(g, x, w, parameter(g, name, "bias", 1, &out, in * 9), NULL, NULL, NULL, 1));
}

static remat_value cnn_logits(remat_graph *g, const rm_model_spec *spec, remat_value x) {
    const rm_data_shape *data = &spec->data;
    int64_t features = CNN_SECOND * ((data->height - 4) / 2) * ((data->width - 4) / 2);
    x = conv_block(g, "conv1", x, data->channels, CNN_FIRST);
    x = conv_block(g, "conv2", x, CNN_FIRST, CNN_SECOND);
    x = as_rows(g, remat_max_pool2d(g, x, (int64_t[]){2, 2}, NULL, NULL), features);
    if (spec->dropout > 0) x = remat_dropout(g, x, spec->dropout / 2);
    x = remat_relu(g, rm_image_linear(g, "fc1", x, features, CNN_HIDDEN));
    if (spec->dropout > 0) x = remat_dropout(g, x, spec->dropout);
    return rm_image_linear(g, "fc2", x, CNN_HIDDEN, data->classes);
}

static bool recognise_cnn(const char *name, const rm_safetensors *file, rm_model_found *out) {
    (void)name;
    if (!rm_weights_named(file, "fc1.weight")) return false;
    rm_found_ends(out, file, NULL, "fc2.weight");
    return true;
}

const rm_model_family rm_cnn_family = {
    .check = cnn_check, .logits = cnn_logits, .head = "fc2.", .recognise = recognise_cnn};
