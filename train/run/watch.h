/* watch.h: tracks the results of evaluations for --early-stop and --lr-schedule=plateau (PyTorch's ReduceLROnPlateau), which compare
 * by --metric, and for --keep-best. Training states contain it. */
#ifndef RM_WATCH_H
#define RM_WATCH_H

#include "train/flags/options.h"

/* The best evaluation by a metric. */
typedef struct {
    double best;  /* NaN: none */
    int64_t step; /* 0: none or unknown */
} rm_best;

typedef struct {
    bool seen;           /* false: no evaluation so far, and the rest is undefined */
    int64_t since;       /* evaluations since the best one by --metric */
    double plateau_best; /* NaN: none */
    int64_t plateau_since, reductions; /* of the learning rate */
    rm_best by[RM_SCORES];
} rm_watch;

/* Records an evaluation. `decays`: false during warm-up, when the plateau ignores it. True if the rate was reduced. */
bool rm_watch_see(rm_watch *watch, const rm_options *options, const rm_eval_event *event, bool decays);
/* The step of the best evaluation according to --keep-best; 0: none. */
int64_t rm_watch_best_step(const rm_watch *watch, const rm_options *options);
/* Does the run depend on its evaluations? */
bool rm_watch_matters(const rm_options *options);
/* Does --early-stop end the run now? */
bool rm_watch_ends(const rm_watch *watch, const rm_options *options);

#endif
