/* cutting.h: where the network of a pipeline is cut. Sessions that evaluate, and the average of the weights, take memory on every rank,
 * which depends on the cut; so a cut is chosen, these sessions are planned with it, and a cut is chosen again within what they leave. */
#ifndef RM_CUTTING_H
#define RM_CUTTING_H

#include "train/data/dataset.h"
#include "train/models/model.h"
#include "train/flags/options.h"
#include "train/run/setup.h"

/* As rm_setup_cut, with evaluations counted if there is a budget. */
remat_status rm_cutting_choose(const rm_options *options, const rm_model_spec *spec, const remat_pipeline *pipeline,
                               const rm_dataset *dataset, int lighter, rm_cut_choice *out);

/* Bytes of evaluations and of the average of the weights, on the rank of `pipeline` that has most. `pipeline` has a cut. */
remat_status rm_cutting_evaluation_bytes(const rm_options *options, const rm_model_spec *spec,
                                         const remat_pipeline *pipeline, const rm_dataset *dataset, uint64_t *bytes);

#endif
