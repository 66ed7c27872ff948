/* budget.h: --memory-budget as the program sees it. The engine's budget covers a session; the program holds a few
 * buffers besides (the data set, one batch, the order of the samples, and with --eval-every a second session), and
 * they come off first. When nothing fits, this is also where the change of flags is found that would. */
#ifndef RM_BUDGET_H
#define RM_BUDGET_H

#include "train/data/dataset.h"
#include "train/models/model.h"
#include "train/flags/options.h"

/* --memory-budget or --assume-memory; 0: no limit. */
uint64_t rm_budget_given(const rm_options *options);

/* What the program holds for its data beside the session: what `dataset` keeps in memory (NULL: nothing is known of
 * it), a batch, and the order of the samples. */
uint64_t rm_budget_data_bytes(const rm_options *options, const rm_data_shape *shape, const rm_dataset *dataset);

/* Puts what is left of the budget for the session into the config; INFEASIBLE when nothing is. */
remat_status rm_budget_apply(const rm_options *options, uint64_t held_bytes, remat_config *config);

typedef struct {
    const char *command;
    uint64_t other_bytes;     /* held whatever the flags: an evaluator */
    bool resuming;            /* then the shapes cannot be changed */
    const remat_ranks *ranks; /* as the session's; NULL: none */
} rm_budget_advice;

/* After an INFEASIBLE: prints the sentence on stderr, and then, when they are found, a line with the least budget and one
 * that names the cheapest change of flags that would fit, in this order: allow recomputation, --checkpoint=optimal, both,
 * --spill; a smaller tile, batch, sequence, each alone, then together with the first two. Found by planning, of which only
 * so much is done: it says what it needs. Returns INFEASIBLE, with nothing left to say: remat_last_error is "". */
remat_status rm_budget_advise(const rm_options *options, const rm_model_spec *spec, const rm_dataset *dataset,
                              const rm_budget_advice *about);

#endif
