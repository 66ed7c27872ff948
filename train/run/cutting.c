/* cutting.c: see cutting.h. */
#include "train/run/cutting.h"

#include "train/run/budget.h"
#include "train/run/ema.h"
#include "train/run/evaluator.h"

enum { TRIES = 4 };

/* Of the rank in options->session.pipeline. */
static remat_status plan_rank(const rm_options *o, const rm_model_spec *spec, const rm_dataset *dataset,
                              uint64_t *bytes) {
    rm_ema ema = {0};
    rm_evaluator evaluator = {0};
    rm_dataset *held_out = NULL;
    remat_status status = rm_ema_create(o, spec, true, &ema);
    if (!status) status = rm_evaluator_open(o, spec, dataset, rm_setup_eval_batch(o), true, &held_out, &evaluator);
    *bytes = rm_evaluator_bytes(&evaluator) + rm_ema_bytes(&ema);
    rm_evaluator_free(&evaluator);
    rm_ema_free(&ema);
    rm_dataset_close(held_out);
    return status;
}

remat_status rm_cutting_evaluation_bytes(const rm_options *options, const rm_model_spec *spec,
                                         const remat_pipeline *pipeline, const rm_dataset *dataset, uint64_t *bytes) {
    rm_options o = *options; /* texts are borrowed */
    remat_pipeline of_rank = *pipeline;
    o.session.pipeline = &of_rank;
    *bytes = 0;
    for (of_rank.rank = 0; of_rank.rank < of_rank.size; of_rank.rank++) {
        uint64_t own;
        TRY(plan_rank(&o, spec, dataset, &own));
        if (own > *bytes) *bytes = own;
    }
    return REMAT_OK;
}

static bool is_settled(const rm_options *o, const rm_cut_choice *choice) {
    return !rm_budget_given(o) || choice->told || !choice->cut || !choice->fits;
}

/* The bytes that are counted only grow, so this ends: the last cut leaves at least what its own evaluations need. */
remat_status rm_cutting_choose(const rm_options *o, const rm_model_spec *spec, const remat_pipeline *pipeline,
                               const rm_dataset *dataset, int lighter, rm_cut_choice *out) {
    uint64_t counted = 0;
    *out = (rm_cut_choice){0};
    for (int i = 0; i < TRIES; i++) {
        uint64_t bytes;
        rm_cut_choice_free(out);
        TRY(rm_setup_cut(o, spec, pipeline, dataset, counted, lighter, out));
        if (is_settled(o, out)) return REMAT_OK;
        remat_pipeline cut = *pipeline;
        cut.cut = out->cut;
        TRY(rm_cutting_evaluation_bytes(o, spec, &cut, dataset, &bytes));
        if (bytes <= counted) return REMAT_OK;
        counted = bytes;
    }
    return REMAT_OK;
}
