/* watch.c: see watch.h. */
#include "train/run/watch.h"

#include <math.h>
#include <string.h>

static void look_for_best(rm_watch *w, double loss) {
    bool better = loss < w->best; /* NaN never is */
    if (better) w->best = loss;
    w->since = better ? 0 : w->since + 1;
}

/* ReduceLROnPlateau of mode min, threshold_mode rel and cooldown 0. */
static bool look_for_plateau(rm_watch *w, const rm_options *o, double loss) {
    bool better = loss < w->plateau_best * (1 - o->threshold);
    if (better) w->plateau_best = loss;
    w->plateau_since = better ? 0 : w->plateau_since + 1;
    if (w->plateau_since <= o->patience) return false;
    w->plateau_since = 0;
    w->reductions++;
    return true;
}

static bool has_plateau(const rm_options *o) { return o->rate.schedule == RM_LR_PLATEAU; }

static bool keeps_best(const rm_options *o) { return strcmp(o->keep_best, "none") != 0; }

bool rm_watch_matters(const rm_options *o) { return o->early_stop || has_plateau(o) || keeps_best(o); }

bool rm_watch_see(rm_watch *w, const rm_options *o, double loss, bool decays) {
    if (!w->seen) *w = (rm_watch){.seen = true, .best = INFINITY, .plateau_best = INFINITY, .best_accuracy = -1};
    look_for_best(w, loss);
    return decays && has_plateau(o) && look_for_plateau(w, o, loss);
}

bool rm_watch_rank(rm_watch *w, const rm_options *o, int64_t step, double accuracy) {
    if (!w->since) w->best_step = step;
    if (accuracy > w->best_accuracy) w->best_accuracy_step = step;
    w->best_accuracy = fmax(w->best_accuracy, accuracy);
    return rm_watch_best_step(w, o) == step;
}

int64_t rm_watch_best_step(const rm_watch *w, const rm_options *o) {
    if (!w->seen || !keeps_best(o)) return 0;
    return strcmp(o->keep_best, "loss") ? w->best_accuracy_step : w->best_step;
}

bool rm_watch_ends(const rm_watch *w, const rm_options *o) {
    return o->early_stop && w->seen && w->since >= o->early_stop;
}
