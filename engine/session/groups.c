/* groups.c: parameter groups with their own learning rate and weight decay, selected by name: remat_config.groups. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/neutral.h"
#include "engine/session/session.h"
#include "memory/host.h"

/* `length` characters, borrowed. */
typedef struct {
    const char *at;
    size_t length;
} piece;

/* Returns the text before the first of the separators, without spaces around it, and removes it and the separator from
 * *text. */
static piece cut(piece *text, const char *separators) {
    piece first = {text->at, 0};
    while (first.length < text->length && !strchr(separators, first.at[first.length])) first.length++;
    size_t taken = first.length + (first.length < text->length);
    text->at += taken;
    text->length -= taken;
    while (first.length && *first.at == ' ') first.at++, first.length--;
    while (first.length && first.at[first.length - 1] == ' ') first.length--;
    return first;
}

static bool occurs(piece word, const char *name) {
    for (; *name; name++)
        if (!strncmp(name, word.at, word.length)) return true;
    return false;
}

/* Accepts "weight-decay" for "weight_decay", as in flags. */
static bool is_called(piece name, const char *what) {
    size_t i = 0;
    for (; i < name.length && what[i]; i++)
        if ((name.at[i] == '-' ? '_' : name.at[i]) != what[i]) return false;
    return i == name.length && !what[i];
}

static bool read_number(piece text, double *out) {
    char copy[32], *end;
    if (!text.length || text.length >= sizeof copy) return false;
    memcpy(copy, text.at, text.length);
    copy[text.length] = 0;
    *out = rm_strtod(copy, &end);
    return !*end && isfinite(*out) && *out >= 0;
}

/* Settings of a group; negative: not set. */
typedef struct {
    double lr, weight_decay;
} settings;

static remat_status read_settings(piece words, piece text, settings *out) {
    *out = (settings){-1, -1};
    while (text.length) {
        piece value = cut(&text, ","), name = cut(&value, "=");
        double number;
        REQUIRE(is_called(name, "lr") || is_called(name, "weight_decay"), INVALID,
                "{groups}: \"%.*s\" is not a setting of a group; use lr=FACTOR or weight_decay=NUMBER",
                (int)name.length, name.at);
        REQUIRE(read_number(value, &number), INVALID, "{groups}: %.*s=%.*s must be a number of at least 0",
                (int)name.length, name.at, (int)value.length, value.at);
        double *setting = is_called(name, "lr") ? &out->lr : &out->weight_decay;
        REQUIRE(*setting < 0, INVALID, "{groups}: a group sets %.*s twice; set it once", (int)name.length, name.at);
        *setting = number;
    }
    REQUIRE(out->lr >= 0 || out->weight_decay >= 0, INVALID,
            "{groups}: \"%.*s\" sets nothing; add :lr=FACTOR or :weight_decay=NUMBER to it", (int)words.length,
            words.at);
    return REMAT_OK;
}

/* Applies the settings to all parameters with this word in their names that no earlier group has taken. */
static remat_status take_by_word(remat_session *s, piece word, const settings *own, uint8_t *taken, bool *took) {
    bool found = false;
    for (int32_t i = 0; i < s->chain.at.buckets.n_params; i++) {
        rm_parameter *p = &s->chain.at.buckets.param[i];
        if (!word.length || !occurs(word, s->graph->value[p->value].name)) continue;
        found = true;
        if (taken[i]) continue;
        taken[i] = *took = true;
        if (own->lr >= 0) p->lr_factor = own->lr;
        if (own->weight_decay >= 0) p->weight_decay = own->weight_decay;
    }
    REQUIRE(found, INVALID, "{groups}: no parameter has \"%.*s\" in its name; the first is \"%s\"", (int)word.length,
            word.at, s->graph->value[s->chain.at.buckets.param[0].value].name);
    return REMAT_OK;
}

/* Layer-wise optimizers do not decay biases and gains unless decay_vectors is set. */
double rm_session_weight_decay(const remat_session *s, int32_t param) {
    const rm_value *value = &s->graph->value[s->chain.at.buckets.param[param].value];
    bool exempt = s->optimizer && s->optimizer->measure && value->desc.rank < 2 && !s->decay_vectors;
    return exempt ? 0 : s->update.weight_decay;
}

/* Whether a word of one of these groups occurs in the name. */
static bool names(piece groups, const char *name) {
    while (groups.length) {
        piece group = cut(&groups, ";"), words = cut(&group, ":");
        while (words.length) {
            piece word = cut(&words, ",");
            if (word.length && occurs(word, name)) return true;
        }
    }
    return false;
}

/* Refuses a group without effect: none of its parameters is trained, or all have its weight decay by default and no
 * later group would take one of them. `before`: parameters taken by earlier groups. */
static remat_status check_effect(const remat_session *s, piece words, const settings *own, piece later,
                                 const uint8_t *before, const uint8_t *taken) {
    const rm_buckets *b = &s->chain.at.buckets;
    bool trained = false, changes = own->lr >= 0;
    for (int32_t i = 0; i < b->n_params; i++) {
        const rm_value *value = &s->graph->value[b->param[i].value];
        if (before[i] || !taken[i] || !value->needs_gradient) continue;
        trained = true;
        changes = changes || own->weight_decay != rm_session_weight_decay(s, i) || names(later, value->name);
    }
    REQUIRE(trained, INVALID,
            "{groups}: none of the parameters of \"%.*s\" is trained; name them in {train_only}, too, or leave the "
            "group out",
            (int)words.length, words.at);
    REQUIRE(
        changes, INVALID,
        "{groups}: \"%.*s\" sets weight_decay=%g, the default of its parameters; leave it out, or set another value",
        (int)words.length, words.at, own->weight_decay);
    return REMAT_OK;
}

static remat_status take(remat_session *s, piece group, piece later, uint8_t *taken, uint8_t *before) {
    piece words = cut(&group, ":");
    const piece all = words;
    settings own;
    bool took = false;
    memcpy(before, taken, (size_t)s->chain.at.buckets.n_params);
    TRY(read_settings(words, group, &own));
    do {
        piece word = cut(&words, ",");
        TRY(take_by_word(s, word, &own, taken, &took));
    } while (words.length);
    REQUIRE(took, INVALID, "{groups}: earlier groups contain all parameters of \"%.*s\"; put it first, or leave it out",
            (int)all.length, all.at);
    return check_effect(s, all, &own, later, before, taken);
}

remat_status rm_session_choose_groups(remat_session *s, const char *groups) {
    rm_buckets *buckets = &s->chain.at.buckets;
    for (int32_t i = 0; i < buckets->n_params; i++) {
        buckets->param[i].lr_factor = 1;
        buckets->param[i].weight_decay = rm_session_weight_decay(s, i);
    }
    if (!groups || s->inference || !buckets->n_params) return REMAT_OK;
    uint8_t *taken = rm_calloc((size_t)buckets->n_params, 2);
    REQUIRE(taken, MEMORY, "out of memory for the groups of %d parameters", buckets->n_params);
    remat_status status = REMAT_OK;
    piece text = {groups, strlen(groups)};
    do {
        piece group = cut(&text, ";");
        status = take(s, group, text, taken, taken + buckets->n_params);
    } while (!status && text.length);
    rm_free(taken);
    return status;
}
