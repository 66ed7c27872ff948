/* budget.h: --memory-budget. The engine's budget covers one session. The program subtracts its own memory first: the data set,
 * batches, the order of the samples, and with --eval-every a second session. When nothing fits, rm_budget_advise suggests flags. */
#ifndef RM_BUDGET_H
#define RM_BUDGET_H

#include "train/data/dataset.h"
#include "train/models/model.h"
#include "train/flags/options.h"

/* --memory-budget or --assume-memory; 0: no limit. */
uint64_t rm_budget_given(const rm_options *options);

/* The program's own memory for data: the data set (NULL: unknown, counts as 0), batches, and the order of the samples. */
uint64_t rm_budget_data_bytes(const rm_options *options, const rm_data_shape *shape, const rm_dataset *dataset);

/* Sets the session's budget in the config to the given budget minus held_bytes; INFEASIBLE when nothing is left. */
remat_status rm_budget_apply(const rm_options *options, uint64_t held_bytes, remat_config *config);

typedef struct {
    const char *command;
    uint64_t other_bytes;     /* of the evaluator and the averaged weights; independent of the suggested flags */
    bool resuming;            /* shapes cannot change */
    const remat_ranks *ranks; /* the session's; NULL: none */
} rm_budget_advice;

/* Call after INFEASIBLE. Prints the error on stderr, then the least budget, and the first change of flags that fits, with the
 * bytes it needs. Tried in this order: --recompute=auto, --checkpoint=optimal, both, --spill; then a smaller tile, batch and
 * sequence, each alone and together with the first two. Each try is a plan, and their number is limited. Returns INFEASIBLE with
 * remat_last_error "", because everything is printed. */
remat_status rm_budget_advise(const rm_options *options, const rm_model_spec *spec, const rm_dataset *dataset,
                              const rm_budget_advice *about);

#endif
