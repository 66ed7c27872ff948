/* family.h: a family of models: how to build it, and how to recognise its weight files. A family is a file that ends with an
 * rm_model_family; lines of models.def name it. */
#ifndef RM_MODELS_FAMILY_H
#define RM_MODELS_FAMILY_H

#include "train/models/model.h"
#include "train/state/weights.h"

#include <stdio.h>

/* A key of Hugging Face's config.json that arrays do not tell; "a.b" is b of the object a. It gives a flag's value, or it must have
 * the value that the model computes with. */
typedef struct {
    const char *key, *flag;
    const char *value; /* if there is no flag: a number, "true", "false" or words */
} rm_hub_key;

/* The model and flags that a weight file implies. */
struct rm_model_found {
    const char *model; /* --model's name; NULL: not recognised */
    bool seq2seq;      /* has an encoder and a decoder */
    bool symbols;      /* has an embedding */
    bool both_ways;    /* is bidirectional */
    int64_t outputs;   /* width of the output; 0: unknown */
    const rm_hub_key *untold; /* what a config.json would tell, and there is none; else NULL */
    int n;
    struct {
        const char *flag;
        char value[24];
    } flag[12];
};

static inline void rm_found_text(rm_model_found *found, const char *flag, const char *value) {
    found->flag[found->n].flag = flag;
    snprintf(found->flag[found->n++].value, sizeof found->flag->value, "%s", value);
}
static inline void rm_found_switch(rm_model_found *found, const char *flag, bool on) {
    rm_found_text(found, flag, on ? "true" : "false");
}
static inline void rm_found_number(rm_model_found *found, const char *flag, int64_t number) {
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)number);
    rm_found_text(found, flag, text);
}

/* Notes the width of the last layer, and whether there is an embedding (NULL: these models have none), whose weight is the last
 * layer's where `head` is missing. */
static inline void rm_found_ends(rm_model_found *found, const rm_safetensors *file, const char *embedding,
                                 const char *head) {
    const rm_st_array *table = embedding ? rm_weights_named(file, embedding) : NULL,
                      *last = rm_weights_named(file, head);
    if (!last) last = table;
    found->symbols = table != NULL;
    if (last && last->rank > 1) found->outputs = last->dim[0];
}

/* --heads, or one for every 64 of --hidden, rounded up. */
static inline int64_t rm_model_heads(const rm_model_spec *spec) {
    return spec->heads ? spec->heads : (spec->hidden + 63) / 64;
}

/* Whether the outputs are the inputs' tokens, so that a head may be the embedding, and --no-tie is not given. */
static inline bool rm_model_is_tied(const rm_model_spec *spec) {
    const rm_data_shape *data = &spec->data;
    return data->every_step && data->vocabulary && data->vocabulary == rm_data_outputs(data) && !spec->no_tie;
}

/* The states of the layer that made y are zero where documents begin. Returns y. */
static inline remat_value rm_reset_at_begins(remat_graph *g, const rm_model_spec *spec, remat_value y) {
    return spec->field[RM_BEGINS].id ? remat_reset_states(g, y, spec->field[RM_BEGINS]) : y;
}

typedef struct {
    remat_status (*check)(
        const rm_model_spec
            *); /* INVALID: an unsupported flag or size, besides those that traits tell; NULL: nothing to check */
    remat_value (*logits)(remat_graph *, const rm_model_spec *, remat_value x); /* (T,B,K), or (B,K), or (B,pixels,K) */
    const char *head,
        *tied; /* the prefix of the last layer's parameter names; the same where it is the embedding, or NULL; ... */
    void (*name_head)(const rm_model_spec *, char *out,
                      size_t bytes); /* ... or, if it depends on flags, a function; else NULL */
    /* Whether the file has the weights of model `name`. Then fills in all members except `model`. */
    bool (*recognise)(const char *name, const rm_safetensors *file, rm_model_found *out);
    const rm_hub_key *hub_keys; /* ends with a line without a key; NULL: none */
} rm_model_family;

/* Adds the flags of `keys` that config.json beside the weights `path` gives. IO: config.json is not JSON. INVALID: the model does not
 * compute with its values. */
remat_status rm_found_by_hub_config(rm_model_found *found, const rm_hub_key *keys, const char *path);

#endif
