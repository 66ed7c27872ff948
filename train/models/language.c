/* language.c: see language.h. */
#include "train/models/language.h"

#include <stdlib.h>
#include <string.h>

rm_place rm_place_of(remat_graph *graph, const char *layers, int64_t layer) {
    rm_place at = {.graph = graph};
    snprintf(at.prefix, sizeof at.prefix, "%s.%lld.", layers, (long long)layer);
    return at;
}

remat_value rm_place_param(const rm_place *at, const char *name, int rank, int64_t d0, int64_t d1, int64_t d2,
                           remat_init init) {
    char full[128];
    snprintf(full, sizeof full, "%s%s", at->prefix, name);
    return remat_param(at->graph, full, rank, (int64_t[]){d0, d1, d2}, init);
}

remat_value rm_place_linear(const rm_place *at, const char *name, remat_value x, int64_t in, int64_t out,
                            remat_init init) {
    return remat_linear(at->graph, x, rm_place_param(at, name, 2, out, in, 0, init), REMAT_NONE);
}

remat_value rm_place_norm(const rm_place *at, const char *name, remat_value x, int64_t width, double epsilon) {
    remat_value weight = rm_place_param(at, name, 1, width, 0, 0, remat_init_zero());
    return remat_rms_norm(at->graph, x, remat_shift(at->graph, weight, 1), epsilon);
}

remat_value rm_place_gated_mlp(const rm_place *at, remat_value x, int64_t width, int64_t inner, remat_init init) {
    remat_value gate = remat_silu(at->graph, rm_place_linear(at, "mlp.gate_proj.weight", x, width, inner, init));
    remat_value up = rm_place_linear(at, "mlp.up_proj.weight", x, width, inner, init);
    return rm_place_linear(at, "mlp.down_proj.weight", remat_mul(at->graph, gate, up), inner, width, init);
}

remat_value rm_language_input(remat_graph *g, const rm_model_spec *spec, remat_value x, const char *embedding,
                              remat_init init, remat_value *table) {
    const int64_t D = spec->hidden, features = spec->data.features;
    remat_value w = REMAT_NONE;
    if (spec->data.vocabulary) {
        w = remat_param(g, embedding, 2, (int64_t[]){spec->data.vocabulary, D}, init);
        x = remat_embedding(g, x, w);
    } else {
        remat_value in = remat_param(g, "input.weight", 2, (int64_t[]){D, features}, rm_init_from(features));
        x = remat_linear(g, x, in, remat_param(g, "input.bias", 1, &D, rm_init_from(features)));
    }
    if (table) *table = w;
    return x;
}

remat_value rm_language_answer(remat_graph *g, const rm_model_spec *spec, remat_value x) {
    if (spec->data.every_step) return x;
    return spec->field[RM_LAST].id ? remat_step_at(g, x, spec->field[RM_LAST]) : remat_last_step(g, x);
}

/* Reads the next number of a list "1,3" and moves *list past it; -1: there is none, or something else. */
static int64_t next_block(const char **list) {
    char *end;
    if (**list < '0' || **list > '9') return -1;
    int64_t block = strtoll(*list, &end, 10);
    *list = end + (*end == ',');
    return block;
}

bool rm_blocks_name(const char *list, int64_t block) {
    for (int64_t next; (next = next_block(&list)) >= 0;)
        if (next == block) return true;
    return false;
}

remat_status rm_blocks_check(const char *flag, const char *list, const char *also, int64_t layers) {
    const char *rest = list;
    if (!strcmp(list, "none")) return REMAT_OK;
    for (int64_t block; (block = next_block(&rest)) >= 0;)
        REQUIRE(block < layers, INVALID, "--%s=%s: there is no block %lld; name blocks 0 to %lld", flag, list,
                (long long)block, (long long)layers - 1);
    REQUIRE(*list && !*rest, INVALID, "--%s=%s is not a list of blocks; give numbers such as 1,3, or %s, or none", flag,
            list, also);
    return REMAT_OK;
}

int64_t rm_blocks_found(const rm_safetensors *file, const char *before, const char *after, int64_t layers, char *list,
                        size_t bytes) {
    int64_t count = 0;
    size_t length = 0;
    snprintf(list, bytes, "none");
    for (int64_t layer = 0; layer < layers; layer++) {
        char full[128];
        snprintf(full, sizeof full, "%s%lld%s", before, (long long)layer, after);
        if (!rm_weights_named(file, full)) continue;
        if (length < bytes)
            length += (size_t)snprintf(list + length, bytes - length, "%s%lld", count ? "," : "", (long long)layer);
        count++;
    }
    if (length >= bytes) *list = 0;
    return count;
}
