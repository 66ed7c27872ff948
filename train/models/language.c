/* language.c: see language.h. */
#include "train/models/language.h"

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
