/* rank_consistency.c: checks that the settings of all ranks agree. Before the first step, dist/ddp/ddp_compare.c
 * compares them as text (remat_settings_text). In every step, a few numbers are exchanged together with the losses
 * (rm_session_fill_exchange, rm_session_check_exchange). Ranks exchange only gradients, so without these checks the
 * parameters of ranks that update differently would diverge unnoticed. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/hash.h"
#include "engine/neutral.h"
#include "engine/session/session.h"

enum { NUMBER_BYTES = 32 };

/* The fewest digits, at least 6, that read back as the same number. */
static const char *shortest(double value, char text[NUMBER_BYTES]) {
    for (int digits = 6; digits <= 17; digits++) {
        rm_snprintf(text, NUMBER_BYTES, "%.*g", digits, value);
        if (rm_strtod(text, NULL) == value) break;
    }
    return text;
}

/* ---- Settings as text ------------------------------------------------------------------------------------------ */

static void write_number(FILE *out, const char *name, double value) {
    char text[NUMBER_BYTES];
    fprintf(out, "%s %s\n", name, shortest(value, text));
}

static void write_switch(FILE *out, const char *name, bool on) { fprintf(out, "%s %s\n", name, on ? "on" : "off"); }

static void write_optimizer(FILE *out, const remat_session *s) {
    const rm_update *u = &s->update;
    fprintf(out, "optimizer %s\n", s->optimizer ? s->optimizer->name : "none");
    write_number(out, "momentum", u->momentum);
    write_switch(out, "nesterov", u->nesterov);
    write_number(out, "beta1", u->beta1);
    write_number(out, "beta2", u->beta2);
    write_number(out, "epsilon", u->epsilon);
    write_number(out, "weight_decay", u->weight_decay);
    write_number(out, "alpha", u->alpha);
    write_number(out, "clip_grad_norm", s->clip_grad_norm);
    write_number(out, "clip_grad_value", u->gradient_limit);
    write_number(out, "trust_coefficient", u->trust_coefficient);
    write_switch(out, "momentum_correction", s->momentum_correction);
    write_switch(out, "adapt_vectors", s->adapt_vectors);
    write_switch(out, "decay_vectors", s->decay_vectors);
    write_number(out, "norm_limit", u->norm_limit);
}

/* Parameters that train_only excludes or that no rank's loss depends on, and the settings of groups. */
static void write_trained(FILE *out, const remat_session *s) {
    const rm_buckets *buckets = &s->chain.at.buckets;
    for (int32_t i = 0; i < buckets->n_params; i++) {
        const rm_parameter *p = &buckets->param[i];
        const char *name = s->graph->value[p->value].name;
        if (!p->used || p->held_back) fprintf(out, "%s not trained\n", name);
        if (p->lr_factor != 1) fprintf(out, "%s has the learning rate times %.17g\n", name, p->lr_factor);
        if (p->weight_decay != rm_session_weight_decay(s, i))
            fprintf(out, "%s has a weight_decay of %.17g\n", name, p->weight_decay);
    }
}

/* Layers run their collectives in the order of stages, so the stages must be the same on all ranks. */
static void write_collective(FILE *out, const remat_session *s) {
    bool collective = false;
    for (int32_t n = 0; n < s->graph->n_nodes; n++) {
        const rm_node *node = &s->graph->node[n];
        collective |= s->chain.role[n] != RM_ROLE_DEAD && node->op->collective && node->op->collective(node->attr);
    }
    if (collective) fprintf(out, "stages with collective layers: %lld\n", (long long)s->chain.n_stages);
}

char *remat_settings_text(const remat_session *s) {
    char *text = NULL;
    size_t bytes;
    FILE *out = s ? open_memstream(&text, &bytes) : NULL;
    if (!out) return NULL;
    locale_t before = rm_neutral_begin();
    write_optimizer(out, s);
    fprintf(out, "precision %s\n", rm_precision_names[s->precision]);
    if (s->cudnn) fprintf(out, "recurrent layers by cuDNN\n");
    write_number(out, "micro_steps", s->micro_steps);
    write_switch(out, "deterministic_world", s->deterministic_world);
    fprintf(out, "loss_mean %s\n", s->mean_of_parts ? "parts" : s->weighs ? "batch" : "of equal parts");
    write_switch(out, "stateful", s->stateful);
    write_number(out, "updates made", (double)remat_step_count(s));
    write_number(out, "learning rate of the last update", remat_last_lr(s));
    write_collective(out, s);
    write_trained(out, s);
    rm_neutral_end(before);
    const bool bad = ferror(out);
    if (!fclose(out) && !bad) return text;
    remat_text_free(text);
    return NULL;
}

/* ---- Numbers exchanged in every step --------------------------------------------------------------------------- */

/* A rank's words. Each has its own element, and other ranks add 0 to it, so the sum over ranks preserves its value. */
enum {
    UPDATES, /* updates before these gradients, plus 1; 0: this rank's words did not arrive (ranks.sum does nothing) */
    LAST_LR, /* of the last of these updates */
    COMING_LR, /* of the update that these gradients are for; -1: not known yet (remat_gradients) */
    TRAINED,   /* a hash of which parameters updates leave out (remat_train_only) */
    WORDS
};

static int64_t losses(const remat_session *s) { return (int64_t)s->ranks.size * s->micro_steps; }

int64_t rm_session_exchange_count(const remat_session *s) {
    return losses(s) + (s->ranks.size > 1 ? (int64_t)s->ranks.size * WORDS : 0);
}

static double *words_of(const remat_session *s, int32_t rank) {
    return s->shard_loss + losses(s) + (int64_t)rank * WORDS;
}

static double hash_of_trained(const remat_session *s) {
    uint64_t hash = 0;
    for (int32_t i = 0; i < s->chain.at.buckets.n_params; i++)
        hash = rm_hash(&s->chain.at.buckets.param[i].held_back, sizeof(bool), hash);
    return (double)(hash >> 16); /* exact */
}

void rm_session_fill_exchange(remat_session *s) {
    if (s->ranks.size == 1) return;
    double *word = words_of(s, s->ranks.rank);
    word[UPDATES] = (double)s->runner.updates + 1;
    word[LAST_LR] = s->last_lr;
    word[COMING_LR] = s->coming_lr;
    word[TRAINED] = hash_of_trained(s);
}

static remat_status compare_words(const remat_session *s, int32_t rank) {
    const double *first = words_of(s, 0), *other = words_of(s, rank);
    char here[NUMBER_BYTES], there[NUMBER_BYTES];
    if (first[UPDATES] == 0 || other[UPDATES] == 0) return REMAT_OK;
    REQUIRE(other[UPDATES] == first[UPDATES], PEER,
            "rank %d has made %.0f updates, but rank 0 has made %.0f; make the same updates on all ranks, and when "
            "resuming, call remat_set_step_count on all of them",
            rank, other[UPDATES] - 1, first[UPDATES] - 1);
    REQUIRE(
        other[LAST_LR] == first[LAST_LR], PEER,
        "rank %d used learning rate %s in update %.0f, but rank 0 used %s, so their parameters differ; give all ranks "
        "the same rate",
        rank, shortest(other[LAST_LR], there), other[UPDATES] - 1, shortest(first[LAST_LR], here));
    REQUIRE(
        other[TRAINED] == first[TRAINED], PEER,
        "rank %d trains other parameters than rank 0 in update %.0f; call remat_train_only with the same names on all "
        "ranks",
        rank, other[UPDATES]);
    const bool both = first[COMING_LR] >= 0 && other[COMING_LR] >= 0;
    REQUIRE(!both || other[COMING_LR] == first[COMING_LR], PEER,
            "rank %d has learning rate %s in update %.0f, rank 0 has %s; give all ranks the same rate", rank,
            shortest(other[COMING_LR], there), other[UPDATES], shortest(first[COMING_LR], here));
    return REMAT_OK;
}

remat_status rm_session_check_exchange(const remat_session *s) {
    for (int32_t r = 1; r < s->ranks.size; r++) TRY(compare_words(s, r));
    return REMAT_OK;
}
