/* model_image.c: see model_image.h. */
#include "train/run/model_image.h"

#include <math.h>
#include <stdio.h>

/* From U(-1/sqrt(n), 1/sqrt(n)), where n numbers make one. */
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

remat_value rm_mlp_logits(remat_graph *g, const rm_model_spec *spec, remat_value x) {
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
    return rm_image_linear(g, name, x, width, spec->data.classes);
}

void rm_mlp_head(const rm_model_spec *spec, char *out, size_t bytes) {
    snprintf(out, bytes, "%lld.", (long long)(2 * spec->layers));
}
