/* autotune.h: --autotune: settings that are chosen by measuring steps before the first one. `bits` tries only those that keep the bits
 * of a run: the cut of a pipeline, and the size of buckets (over engines whose sums do not depend on it). `any` also tries tiles and threads. A setting
 * that was given, or that a training state has, is left alone. */
#ifndef RM_AUTOTUNE_H
#define RM_AUTOTUNE_H

#include "train/run/trainer.h"

/* Collective, after ranks have connected, data is open and the network is cut; evaluators are created later. Tries each candidate in a session of its own, of which nothing remains; the
 * slowest rank counts. Sets options, and a line for the user in t->tuned. Times are kept in the calibration file. */
remat_status rm_autotune(rm_trainer *t, const rm_model_spec *spec);

#endif
