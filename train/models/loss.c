/* loss.c: see loss.h. */
#include "train/models/loss.h"

#include "memory/words.h"
#include "train/run/outputs.h"

#include <string.h>

/* ---- By name ------------------------------------------------------------------------------------------------------- */

/* With PyTorch's default of delta. */
static remat_value huber(remat_graph *g, remat_value x, remat_value target) { return remat_huber(g, x, target, 1); }
static remat_value huber_padded(remat_graph *g, remat_value x, remat_value target, remat_value padding) {
    return remat_huber_padded(g, x, target, padding, 1);
}

static remat_value dice(remat_graph *g, remat_value x, remat_value target) {
    return remat_dice(g, x, target, -1, false);
}
static remat_value joint_dice(remat_graph *g, remat_value x, remat_value target) {
    return remat_dice(g, x, target, -1, true);
}

typedef struct {
    const char *name;
    remat_value (*loss)(remat_graph *, remat_value x, remat_value target);
    remat_value (*padded)(remat_graph *, remat_value x, remat_value target, remat_value padding);
    const char *traits;
} named_loss;

static const named_loss losses[] = {
#define LOSS(NAME, FUNCTION, PADDED, TRAITS) {NAME, FUNCTION, PADDED, TRAITS},
#include "train/models/losses.def"
#undef LOSS
};

static const named_loss *find_loss(const char *name) {
    const named_loss *l = losses;
    while (name && strcmp(l->name, name)) l++;
    return l;
}

bool rm_loss_is(const char *name, const char *trait) { return rm_has_word(find_loss(name)->traits, trait); }

/* ---- By the kind of answers ---------------------------------------------------------------------------------------- */

static remat_value of_values(remat_graph *g, const rm_model_spec *spec, remat_value x, remat_value target) {
    const named_loss *by = find_loss(spec->loss);
    const remat_value padding = spec->field[RM_PADDING];
    return padding.id ? by->padded(g, x, target, padding) : by->loss(g, x, target);
}

static remat_value of_classes(remat_graph *g, const rm_model_spec *spec, remat_value logits, remat_value target) {
    const double smoothing = spec->label_smoothing;
    if (rm_model_counts(spec))
        return remat_softmax_cross_entropy_weighted(g, logits, target, spec->field[RM_CLASS_WEIGHTS], -1, smoothing);
    if (smoothing == 0) return remat_softmax_cross_entropy(g, logits, target);
    return remat_softmax_cross_entropy_smoothed(g, logits, target, smoothing);
}

static remat_value of_pixels(remat_graph *g, const rm_model_spec *spec, remat_value logits, remat_value target) {
    const remat_value entropy = of_classes(g, spec, logits, target);
    const named_loss *by = find_loss(spec->loss);
    return rm_has_word(by->traits, "pixels") ? remat_add(g, entropy, by->loss(g, logits, target)) : entropy;
}

static remat_value of_rows(remat_graph *g, const rm_model_spec *spec, remat_value logits, remat_value target) {
    return remat_ctc(g, logits, target, spec->field[RM_LENGTH], REMAT_NONE, RM_BLANK, false);
}

/* ---- Of a model ---------------------------------------------------------------------------------------------------- */

/* Targets are -1 past the end of a sequence. */
static bool has_ends(const rm_data_shape *data) { return data->answer_steps || (data->every_step && data->lengths); }

bool rm_model_counts(const rm_model_spec *spec) {
    const rm_answer answer = rm_data_answer(&spec->data);
    if (answer == RM_ANSWER_ROW || answer == RM_ANSWER_VALUES) return rm_data_pads(&spec->data);
    return spec->ignores || spec->data.weighted || has_ends(&spec->data);
}

remat_value rm_model_loss(remat_graph *g, const rm_model_spec *spec, remat_value logits, remat_value target) {
    static remat_value (*const loss[])(remat_graph *, const rm_model_spec *, remat_value, remat_value) = {
#define ANSWER(NAME, LOSS, SCORES) LOSS,
#include "train/data/answers.def"
#undef ANSWER
    };
    return loss[rm_data_answer(&spec->data)](g, spec, logits, target);
}
