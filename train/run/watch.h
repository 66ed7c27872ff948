/* watch.h: what a run makes of its evaluations: are they still getting better? Two that ask keep count apart: --early-stop, and
 * --lr-schedule=plateau, which is PyTorch's ReduceLROnPlateau. Both judge by --metric. --keep-best asks which was the best. All are in the
 * training state. */
#ifndef RM_WATCH_H
#define RM_WATCH_H

#include "train/flags/options.h"

/* Which evaluation was the best by a metric. */
typedef struct {
    double best;  /* NaN: there was none */
    int64_t step; /* 0: there was none, or it is not known */
} rm_best;

typedef struct {
    bool seen;     /* there was an evaluation; else the rest means nothing */
    int64_t since; /* evaluations after the best by --metric */
    double plateau_best; /* NaN: there was none */
    int64_t plateau_since, reductions; /* of the learning rate */
    rm_best by[RM_SCORES];
} rm_watch;

/* An evaluation. `decays`: the plateau counts it, too, which a warm-up is no time for. True where the rate was reduced. */
bool rm_watch_see(rm_watch *watch, const rm_options *options, const rm_eval_event *event, bool decays);
/* The step of the best evaluation by what --keep-best names; 0: there is none, or nobody asks. */
int64_t rm_watch_best_step(const rm_watch *watch, const rm_options *options);
/* Does what a run does next depend on its evaluations? */
bool rm_watch_matters(const rm_options *options);
/* Is it time to stop? */
bool rm_watch_ends(const rm_watch *watch, const rm_options *options);

#endif
