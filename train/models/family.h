/* family.h: what a family of models is, a file of its own with one of these at its end, and how its file of weights is told. A line of
 * models.def names the family. */
#ifndef RM_MODELS_FAMILY_H
#define RM_MODELS_FAMILY_H

#include "train/models/model.h"
#include "train/state/weights.h"

#include <stdio.h>

/* What a file of weights says of its model. */
struct rm_model_found {
    const char *model; /* --model's name; NULL: none is recognised */
    bool seq2seq;      /* there are an encoder and a decoder */
    bool symbols;      /* there is an embedding */
    bool both_ways;    /* it reads in both directions */
    int64_t outputs;   /* how wide an answer is; 0: not told */
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

/* The states of the layer that made y are zero where documents begin. Returns y. */
static inline remat_value rm_reset_at_begins(remat_graph *g, const rm_model_spec *spec, remat_value y) {
    return spec->field[RM_BEGINS].id ? remat_reset_states(g, y, spec->field[RM_BEGINS]) : y;
}

typedef struct {
    remat_status (*check)(const rm_model_spec *); /* INVALID: what the model does not have; NULL: it has all */
    remat_value (*logits)(remat_graph *, const rm_model_spec *, remat_value x); /* (T,B,K), or (B,K), or (B,places,K) */
    const char *head; /* what the names of the last layer's parameters begin with, ... */
    void (*name_head)(const rm_model_spec *, char *out,
                      size_t bytes); /* ... where that depends on the spec; else NULL */
    /* Is the file one of the model so called? Then fills in all but `model`. */
    bool (*recognise)(const char *name, const rm_safetensors *file, rm_model_found *out);
} rm_model_family;

#endif
