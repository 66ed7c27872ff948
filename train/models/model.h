/* model.h: the networks that `remat` trains, by name: one graph from a few numbers. Parameters have PyTorch's names,
 * shapes and starting distributions.
 *
 *     tokens ─ embedding ┐
 *                        ├─ layer 0 ─ dropout ─ ... ─ layer L-1 ─ [last step] ─ head ─ loss
 *     reals ─────────────┘
 *
 * In both directions a layer is two, weight_ih_l0 and weight_ih_l0_reverse, whose results lie side by side; the last step is each
 * one's own last: timestep T-1 of the one, 0 of the other.
 *
 * Of pairs, with an encoder and a decoder: seq2seq.h.
 * Models of images: image.h, resnet.h; gpt2: gpt2.h.
 */
#ifndef RM_MODEL_H
#define RM_MODEL_H

#include "train/data/batch.h"

typedef struct {
    const char *name; /* --model: a line of the table in model.c */
    int64_t layers, hidden, embed;
    int64_t heads, positions; /* of gpt2; 0: by hidden, by timesteps */
    bool no_bias;             /* of the recurrent layers and the head: PyTorch's bias=False */
    bool bidirectional;       /* each layer reads what both directions of the one below have made */
    bool tie_embeddings;      /* head.weight is embedding.weight */
    bool no_tie;              /* of gpt2: lm_head.weight is not wte.weight */
    double dropout_in, dropout_out; /* recurrent models: of what the first layer and the head read */
    double init_range;              /* recurrent models: embedding and head.weight from U(-X,X), head.bias 0; 0: PyTorch's defaults */
    double dropout, label_smoothing;
    rm_data_shape data; /* decides the embedding, the head's width and the loss */
    bool ignores;       /* targets of -1 count nothing */
    const char *loss;   /* of reals: "mse", "mae", "huber" or "bce"; NULL: mse */
    int64_t window;     /* timesteps of one call; 0: all of data's */
    bool small_stem;    /* of a resnet: --stem=cifar */
    bool transposed;    /* of a unet: --up=transposed */
    bool no_conv;       /* of mingru and minlstm: minGRU-pytorch's enable_conv=False */
    bool sync_batchnorm;
    int64_t projection; /* of an lstm: PyTorch's proj_size; 0: none */
    remat_value
        field[RM_FIELDS]; /* by rm_model_build: inputs for fields after the first two, as far as the model reads them */
    remat_value *encoded; /* of pairs: NULL, or room for 1 + 2 * layers: in two parts (seq2seq.h) */
} rm_model_spec;

typedef struct {
    remat_graph *graph;
    remat_value logits; /* (T,B,K), or (B,K) of the last step, or (B,places,K) */
    remat_value loss;   /* REMAT_NONE without targets */
    int64_t classes;    /* of samples as wholes, K: predictions can be right or wrong. 0: they cannot */
} rm_model;

/* Traits of models are words in their lines of models.def. Some say what a model reads: sequences, or images; whether it has states,
 * can be a seq2seq's encoder and decoder, answers for whole-images or for pixels, reads vectors, too. Others are the names of flags that it reads and
 * other models do not. */
bool rm_model_is(const char *name, const char *trait);          /* false also where there is no such model */
void rm_model_list(const char *trait, char *out, size_t bytes); /* those that are: "lstm|gru" */
/* What the names of the last layer's parameters begin with: "head.", "fc."; into `out`. Of a model that there is. */
void rm_model_head(const rm_model_spec *spec, char *out, size_t bytes);

/* Which model a file of weights is of, and with which flags (family.h): those that its names and shapes tell. */
typedef struct rm_model_found rm_model_found;
remat_status rm_model_recognise(const char *path, rm_model_found *out);

/* T = spec->window, or spec->data.timesteps. Inputs: 0 "input"; with_loss also 1 "target", and after it those of the batch's other fields
 * (batch.h) that the model reads; of pairs these in any case. Free in any case. */
remat_status rm_model_build(const rm_model_spec *spec, int64_t batch, bool with_loss, rm_model *out);
void rm_model_free(rm_model *model);
bool rm_model_counts(
    const rm_model_spec *spec); /* its loss is a mean over targets that count: remat_config.loss_mean */

/* Of n samples, with logits (n,K) and targets (n): how many have their class among the `among` largest logits, and how many
 * have one, not -1. */
int64_t rm_count_right(const float *logits, const int32_t *target, int64_t n, int64_t classes, int64_t among);
/* Of B samples side by side, logits (T,B,classes) and targets (T,B): those whose targets are all the likeliest, but for -1. Who decodes
 * greedily writes exactly these. */
int64_t rm_count_exact(const float *logits, const int32_t *target, int64_t timesteps, int64_t batch, int64_t classes);
int64_t rm_count_targets(const int32_t *target, int64_t n);
int64_t rm_likeliest(const float *logits, int64_t classes); /* of one sample: the class with the largest logit */

#endif
