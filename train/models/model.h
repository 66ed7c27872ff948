/* model.h: the networks that `remat` trains, by name: builds the graph from a specification. Parameters have PyTorch's names,
 * shapes and initial distributions.
 *
 *     tokens ─ embedding ┐
 *                        ├─ layer 0 ─ dropout ─ ... ─ layer L-1 ─ [last step] ─ head ─ loss
 *     reals ─────────────┘
 *
 * A bidirectional layer is two layers, weight_ih_l0 and weight_ih_l0_reverse, whose outputs are concatenated. The last step is the last
 * that each direction computes: timestep T-1 forwards, 0 in reverse.
 *
 * Encoder and decoder: seq2seq.h. Image models: image.h, resnet.c, unet.c. gpt2: gpt2.c.
 */
#ifndef RM_MODEL_H
#define RM_MODEL_H

#include "train/data/batch.h"

typedef struct {
    const char *name; /* --model: a line of the table in model.c */
    int64_t layers, hidden, embed;
    int64_t heads, positions; /* of models with heads (0: rm_model_heads); of gpt2 (0: timesteps) */
    int64_t state_size;       /* mamba, mamba2: states of a channel or head; 0: 16 or 128 */
    int64_t n_groups;         /* mamba2: groups of heads that share B and C; 0: 1 */
    bool no_bias;             /* of recurrent and linear layers and layer norms: PyTorch's bias=False */
    bool bidirectional;       /* each layer reads the outputs of both directions below */
    bool tie_embeddings;      /* head.weight is embedding.weight */
    bool no_tie;              /* gpt2, mamba2: lm_head.weight is separate from the embeddings */
    double dropout_in, dropout_out; /* recurrent models: dropout of the inputs of the first layer and of the head */
    double init_range;              /* recurrent models: embedding and head.weight from U(-X,X), head.bias 0; 0: PyTorch's defaults */
    double dropout, label_smoothing;
    rm_data_shape data; /* decides the embedding, the head's width and the loss */
    bool ignores;       /* targets of -1 do not count */
    const char *loss;   /* a name of losses.def; NULL: the first */
    int64_t window;     /* timesteps of one call; 0: all of data's */
    const char *slstm_at; /* of xlstm: "all", "none", or a list of blocks; NULL: all */
    const char *attention_at; /* of recurrentgemma: "third", "none", or a list of blocks; NULL: third */
    int64_t attention_window, kv_heads; /* of recurrentgemma's attention; 0: 2048, 1 */
    bool small_stem;    /* of a resnet: --stem=cifar */
    bool transposed;    /* of a unet: --up=transposed */
    bool allow_neg_eigval; /* of gdn: its transitions may have negative eigenvalues */
    bool no_conv;       /* of mingru and minlstm: minGRU-pytorch's enable_conv=False */
    bool sync_batchnorm;
    int64_t projection; /* lstm: PyTorch's proj_size; 0: none */
    remat_value
        field[RM_FIELDS]; /* set by rm_model_build: inputs for the fields, after the first two, that the model reads */
    remat_value *encoded; /* seq2seq: room for 1 + 2 * layers to build it in two parts (seq2seq.h); else NULL */
} rm_model_spec;

typedef struct {
    remat_graph *graph;
    remat_value logits; /* (T,B,K), or (B,K) of the last step, or (B,pixels,K) */
    remat_value loss;   /* REMAT_NONE without targets */
    int64_t classes;    /* K if each sample has one class, so accuracy is defined; else 0 */
} rm_model;

/* Traits of a model are words in its line of models.def. Some describe the model: it reads sequences, images or
 * also vectors; it has states; it can be the encoder and decoder of seq2seq; it answers for whole images or for
 * pixels. Others are names of flags that only some models read. */
bool rm_model_is(const char *name, const char *trait);          /* also false if there is no such model */
void rm_model_list(const char *trait, char *out, size_t bytes); /* those that are: "lstm|gru" */
/* Writes the prefix of the last layer's parameter names, "head." or "fc.", to `out`. The model must exist. */
void rm_model_head(const rm_model_spec *spec, char *out, size_t bytes);

/* Finds the model of a weight file, and its flags, as far as names and shapes determine them (family.h). `wanted`, if not
 * NULL, is preferred to other models that have the same arrays. */
typedef struct rm_model_found rm_model_found;
remat_status rm_model_recognise(const char *path, const char *wanted, rm_model_found *out);

/* T = spec->window, or spec->data.timesteps. Inputs: 0 "input"; with_loss also 1 "target", then the batch's other fields (batch.h) that
 * the model reads; seq2seq has these even without a loss. Free *out even on errors. */
remat_status rm_model_build(const rm_model_spec *spec, int64_t batch, bool with_loss, rm_model *out);
void rm_model_free(rm_model *model);
#endif
