/* watch.c: see watch.h. */
#include "train/run/watch.h"

#include <math.h>
#include <string.h>

static bool is_better(rm_score_name metric, double value, double best) {
    if (isnan(best) || !isfinite(value)) return isfinite(value);
    return rm_scores[metric].grows ? value > best : value < best;
}

static void look_for_best(rm_watch *w, rm_score_name metric, const rm_eval_event *event) {
    bool better = event->has[metric] && is_better(metric, event->score[metric], w->by[metric].best);
    if (better) w->by[metric] = (rm_best){event->score[metric], event->step};
}

/* ReduceLROnPlateau with mode=min, or max for a metric that grows, threshold_mode=rel and cooldown=0. */
static bool look_for_plateau(rm_watch *w, const rm_options *o, double value) {
    double margin = rm_scores[o->metric].grows ? o->threshold : -o->threshold;
    bool better = is_better(o->metric, value, w->plateau_best * (1 + margin));
    if (better) w->plateau_best = value;
    w->plateau_since = better ? 0 : w->plateau_since + 1;
    if (w->plateau_since <= o->patience) return false;
    w->plateau_since = 0;
    w->reductions++;
    return true;
}

static bool has_plateau(const rm_options *o) { return o->rate.schedule == RM_LR_PLATEAU; }

static bool keeps_best(const rm_options *o) { return strcmp(o->keep_best, "none") != 0; }

bool rm_watch_matters(const rm_options *o) { return o->early_stop || has_plateau(o) || keeps_best(o); }

bool rm_watch_see(rm_watch *w, const rm_options *o, const rm_eval_event *event, bool decays) {
    if (!w->seen) {
        *w = (rm_watch){.seen = true, .plateau_best = NAN};
        for (int i = 0; i < RM_SCORES; i++) w->by[i].best = NAN;
    }
    for (int i = 0; i < RM_SCORES; i++) look_for_best(w, i, event);
    w->since = w->by[o->metric].step == event->step ? 0 : w->since + 1;
    return decays && has_plateau(o) && look_for_plateau(w, o, event->score[o->metric]);
}

int64_t rm_watch_best_step(const rm_watch *w, const rm_options *o) {
    return w->seen && keeps_best(o) ? w->by[rm_score_find(o->keep_best)].step : 0;
}

bool rm_watch_ends(const rm_watch *w, const rm_options *o) {
    return o->early_stop && w->seen && w->since >= o->early_stop;
}
