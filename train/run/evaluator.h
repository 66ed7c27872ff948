/* evaluator.h: the exact mean loss over a data set. Each sample counts once: a second, smaller session evaluates the last, short
 * batch. Used by `remat eval`, `remat predict`, and by --eval-every during training.
 *
 * Ranks share the work; those of a pipeline count as one. Rank i mod W evaluates batch i. Each batch's loss comes from one rank, and all ranks add the losses in the
 * order of the data, so the result has the same bits for every W and the same `batch`. (--batch is per rank; a run that is
 * resumed on other ranks may have another one: start.c.) */
#ifndef RM_EVALUATOR_H
#define RM_EVALUATOR_H

#include "train/data/loader.h"
#include "train/report/metrics.h"
#include "train/run/setup.h"

typedef struct {
    rm_batch batch;
    rm_model model;
    remat_session *session;
} rm_eval_part;

/* Receives the model's outputs for the next n samples, (n,answers,width): logits of classes, or values. */
typedef remat_status rm_eval_sink(void *context, const float *outputs, int64_t n);

typedef struct {
    rm_dataset *dataset;     /* borrowed */
    rm_eval_part full, rest; /* for batches of `batch` samples, and for the last one; without samples, no session */
    int64_t answers;         /* per sample: one, or one for each pixel or timestep that has a class */
    /* Numbers per answer for the sink: the model's outputs; T V if every timestep has real targets; T for transcripts (labels,
     * padded with -1); 0: outputs at every timestep, which are not read. */
    int64_t width;
    /* Outputs of one batch: (batch,answers,width). With answers at every timestep, (T,batch,V), V values or logits, followed by
     * one sample's (T,V). For transcripts, (T,batch,classes). */
    float *outputs;
    int32_t *reading;    /* transcripts: labels of a sample, (T) */
    int64_t *distance;   /* transcripts: scratch to compare them, (S + 1) */
    int64_t *overlap;    /* classes of pixels: scratch for Dice scores, (2 classes) */
    float *row;          /* transcripts: the labels for the sink */
    uint64_t held_bytes; /* of the buffers above */
    rm_eval_sink *sink;  /* called for each batch; may be set between runs; NULL: none */
    void *sink_context;
    /* The caller's, initially zero, (width,width): counts of true class (row) and predicted class (column). May be set between runs
     * of a single rank; NULL: none. */
    int64_t *confusion;
    rm_workers *workers; /* prepare batches; NULL: no threads */
    bool tokens;
    double bytes_per_target; /* lm: bytes of text per target; 0: unknown */
    /* Borrowed; uses rank, size and `sum`. May be set between runs, which are collective then. NULL (initially): a single rank. */
    const remat_ranks *ranks;
    int32_t part; /* this rank's place in its pipeline, whose loss rank 0 counts */
} rm_evaluator;

/* `spec` is the training model's, with the shape of this data. `batch` (0: --batch) affects the last bits of the result.
 * plan_only: sessions are only planned. Free even after an error. */
remat_status rm_evaluator_create(const rm_options *options, const rm_model_spec *spec, rm_dataset *dataset,
                                 int64_t batch, bool plan_only, rm_evaluator *out);

/* Creates the evaluator for --eval-every, --eval-data or --eval-split while `training` is trained; without these flags *out stays
 * zero. The caller closes *dataset; `trained` is the training data, which must outlive it. */
remat_status rm_evaluator_open(const rm_options *options, const rm_model_spec *training, const rm_dataset *trained,
                               int64_t batch, bool plan_only, rm_dataset **dataset, rm_evaluator *out);
void rm_evaluator_free(rm_evaluator *evaluator);

/* Total memory: sessions, batches, outputs and the data set. 0 if *evaluator is zero. */
uint64_t rm_evaluator_bytes(const rm_evaluator *evaluator);

/* The evaluator's session, to load weights into when there is no other session. */
remat_session *rm_evaluator_session(rm_evaluator *evaluator);

/* Do evaluations compute this metric? */
bool rm_evaluator_has(const rm_evaluator *evaluator, rm_score_name metric);

/* Evaluates the parameters of `weights`, which may be rm_evaluator_session's. Sets all of *out but out->step, on every rank. */
remat_status rm_evaluator_run(rm_evaluator *evaluator, remat_session *weights, rm_eval_event *out);

/* ---- Saved weights ------------------------------------------------------------------------------------------------ */

typedef struct {
    char state[RM_PATH_BYTES]; /* "": the weights are those of --init */
    char named[RM_PATH_BYTES]; /* the state with the class names; may contain --init's file; "": none */
    rm_state_point point;
    rm_dataset *dataset;
    rm_evaluator evaluator; /* its session has the weights */
} rm_saved_evaluator;

/* For `remat eval` and `remat predict`: reads a state's flags, opens the data and loads the weights. Batches are those of the run's
 * own evaluations, so that results have the same bits. Free even after an error. */
remat_status rm_saved_evaluator_open(rm_options *options, rm_command command, rm_saved_evaluator *out);
void rm_saved_evaluator_free(rm_saved_evaluator *saved);

#endif
