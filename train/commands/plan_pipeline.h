/* plan_pipeline.h: what `remat plan --pipeline` says of each rank: its bytes, and how long it computes and waits. */
#ifndef RM_PLAN_PIPELINE_H
#define RM_PLAN_PIPELINE_H

#include "engine/report/pipeline_times.h"
#include "engine/session/pipeline_cut.h"
#include "train/models/model.h"

#include <jansson.h>

typedef struct {
    int n; /* ranks; 0: no pipeline */
    remat_session **session; /* the first is the caller's */
    rm_pipeline_rank *time;
    uint64_t context_bytes; /* of GPUs, which the sessions of ranks after the first do not count */
    const rm_cut_choice *cut; /* the caller's */
} rm_plan_pipeline;

/* `config`: of rank 0's session, `first`, which is borrowed, as is `cut`. Every rank has its plan. Free even after an
 * error. */
remat_status rm_plan_pipeline_make(const rm_model *model, const remat_config *config, remat_session *first,
                                   const rm_cut_choice *cut, rm_plan_pipeline *out);
void rm_plan_pipeline_free(rm_plan_pipeline *pipeline);

void rm_plan_pipeline_print(const rm_plan_pipeline *pipeline);
json_t *rm_plan_pipeline_json(const rm_plan_pipeline *pipeline);

#endif
