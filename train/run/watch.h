/* watch.h: what a run makes of its evaluations: is the loss still getting smaller? Two that ask keep count apart: --early-stop, and
 * --lr-schedule=plateau, which is PyTorch's ReduceLROnPlateau. --keep-best asks which was the best. All are in the training state. */
#ifndef RM_WATCH_H
#define RM_WATCH_H

#include "train/flags/options.h"

typedef struct {
    bool seen; /* there was an evaluation; else the rest means nothing */
    double best;
    int64_t since; /* evaluations after the best */
    double plateau_best;
    int64_t plateau_since, reductions; /* of the learning rate */
    int64_t best_step;                 /* after which the loss was `best`; 0: not known */
    double best_accuracy;              /* -1: there was none */
    int64_t best_accuracy_step;
} rm_watch;

/* An evaluation's loss. `decays`: the plateau counts it, too, which a warm-up is no time for. True where the rate was reduced. */
bool rm_watch_see(rm_watch *watch, const rm_options *options, double loss, bool decays);
/* Behind rm_watch_see, of the same evaluation: after which step it was, and its accuracy (-1: none). True where it is the best by
 * what --keep-best names. */
bool rm_watch_rank(rm_watch *watch, const rm_options *options, int64_t step, double accuracy);
/* The step of the best evaluation by what --keep-best names; 0: there is none, or nobody asks. */
int64_t rm_watch_best_step(const rm_watch *watch, const rm_options *options);
/* Does what a run does next depend on its evaluations? */
bool rm_watch_matters(const rm_options *options);
/* Is it time to stop? */
bool rm_watch_ends(const rm_watch *watch, const rm_options *options);

#endif
