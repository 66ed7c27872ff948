/* language.h: what the models of recurrent blocks with an RMS or layer norm have in common: minimal.c, mamba.c, mamba2.c, gdn.c, m2rnn.c, xlstm.c, xlstm_large.c, recurrentgemma.c. Tokens
 * pass through an embedding as wide as the blocks, numeric inputs through a linear layer, `input`; the head reads all
 * timesteps or the last. */
#ifndef RM_MODELS_LANGUAGE_H
#define RM_MODELS_LANGUAGE_H

#include "train/models/family.h"

#include <math.h>

/* A place in a network: names of parameters there begin with `prefix`. */
typedef struct {
    remat_graph *graph;
    char prefix[64];
} rm_place;

rm_place rm_place_of(remat_graph *graph, const char *layers, int64_t layer); /* "LAYERS.LAYER." */
remat_value rm_place_param(const rm_place *at, const char *name, int rank, int64_t d0, int64_t d1, int64_t d2,
                           remat_init init);
/* x w^T, w (out,in). */
remat_value rm_place_linear(const rm_place *at, const char *name, remat_value x, int64_t in, int64_t out,
                            remat_init init);

/* An RMS norm that multiplies by 1 + weight. */
remat_value rm_place_norm(const rm_place *at, const char *name, remat_value x, int64_t width, double epsilon);

/* mlp.down_proj (silu(mlp.gate_proj x) mlp.up_proj x), `inner` wide inside. */
remat_value rm_place_gated_mlp(const rm_place *at, remat_value x, int64_t width, int64_t inner, remat_init init);

/* PyTorch initialises Linear and Conv1d from U(-1/sqrt(n), 1/sqrt(n)) with fan-in n. */
static inline remat_init rm_init_from(int64_t n) { return remat_init_uniform(1 / sqrt((double)n)); }

/* A sequence (T,B,C) in another shape: (T,B,heads,width), or, with 0 heads, (T,B,width). */
static inline remat_value rm_language_view(remat_graph *g, const rm_model_spec *spec, remat_value x, int64_t heads,
                                           int64_t width) {
    int64_t T = spec->window ? spec->window : spec->data.timesteps;
    return remat_reshape(g, x, heads ? 4 : 3, (int64_t[]){T, -1, heads ? heads : width, width});
}

/* The first block's x. Tokens: a new parameter `embedding` is looked up; *table is it (NULL: not wanted). */
remat_value rm_language_input(remat_graph *g, const rm_model_spec *spec, remat_value x, const char *embedding,
                              remat_init init, remat_value *table);
/* Lists of blocks in flags, such as "1,3". Whether a list has a block; INVALID: it is neither "none" nor a list of blocks below
 * `layers` (`also`: another word that the flag takes). */
bool rm_blocks_name(const char *list, int64_t block);
remat_status rm_blocks_check(const char *flag, const char *list, const char *also, int64_t layers);
/* Lists the blocks of a file that have an array BEFOREnAFTER: "none" without any, "" if the list is too long. Returns their
 * number. */
int64_t rm_blocks_found(const rm_safetensors *file, const char *before, const char *after, int64_t layers, char *list,
                        size_t bytes);

/* All timesteps, or the last one. */
remat_value rm_language_answer(remat_graph *g, const rm_model_spec *spec, remat_value x);

#endif
