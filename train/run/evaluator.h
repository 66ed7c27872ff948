/* evaluator.h: the exact mean loss over a data set: each sample once, the last short batch by a second, smaller session.
 * Used by `remat eval`, by `remat predict`, and by --eval-every while training.
 *
 * Ranks share the work: batch i is rank i mod W's. A batch's loss comes from one rank alone, and everybody adds them up in the
 * order of the data; so as long as `batch` is the same, the result has the same bits for every W. (--batch is per rank, and
 * a run that goes on with other ranks may have another: start.c.) Nothing is padded, nothing is counted twice. */
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

/* Gets what the model makes of the next n samples, (n,answers,width): logits of classes, or a value. */
typedef remat_status rm_eval_sink(void *context, const float *outputs, int64_t n);

typedef struct {
    rm_dataset *dataset; /* borrowed */
    rm_eval_part full,
        rest;        /* of `batch` samples each, and of those left over; a part without samples has no session */
    int64_t answers; /* of a sample: one, or one for each pixel or timestep that has a class */
    /* Of what the sink is given of an answer: its outputs; T V where every timestep has an answer of numbers; of transcripts a label
     * for each timestep, or -1; 0: there are outputs for each timestep, and nobody wants them all. */
    int64_t width;
    /* Of one batch, (batch,answers,width); with answers at every timestep (T,batch,V), V values or logits, and behind them a sample's
     * (T,V); of transcripts (T,batch,classes). */
    float *outputs;
    int32_t *reading;    /* of transcripts: a sample's labels, (T), */
    int64_t *distance;   /* and room to compare them, (S + 1) */
    float *row;          /* and the labels for the sink */
    uint64_t held_bytes; /* of these four */
    rm_eval_sink *sink;  /* may be set between runs; gets batch after batch. NULL: nobody asks */
    void *sink_context;
    int64_t
        *confusion; /* the caller's, of zeros, (width,width): how often a class (row) was taken for another; may be set
                           between runs of one rank. NULL: nobody asks */
    rm_workers *workers; /* that makes batches ready; NULL: nobody helps */
    bool tokens;
    double bytes_per_target; /* lm: of the text, where they are known; else 0 */
    const remat_ranks
        *ranks; /* borrowed; of it rank, size and `sum`. NULL, as it is created: this one does it all. May be
                                 set and changed between runs, which then are collective */
} rm_evaluator;

/* `spec` as the training model's, but for its data; batches are of `batch` samples (0: --batch), which is part of the
 * result's last bits. plan_only: its sessions only plan. Free in any case. */
remat_status rm_evaluator_create(const rm_options *options, const rm_model_spec *spec, rm_dataset *dataset,
                                 int64_t batch, bool plan_only, rm_evaluator *out);

/* The one that --eval-every or --eval-data asks for, beside training `spec`; neither is given: left zeroed. *dataset
 * is the caller's to close. */
remat_status rm_evaluator_open(const rm_options *options, const rm_model_spec *training, int64_t batch, bool plan_only,
                               rm_dataset **dataset, rm_evaluator *out);
void rm_evaluator_free(rm_evaluator *evaluator);

/* All that it takes: sessions, batches, outputs, and what its data set keeps in memory. 0 for a zeroed one. */
uint64_t rm_evaluator_bytes(const rm_evaluator *evaluator);

/* A session to load weights into when there is no other to take them from. */
remat_session *rm_evaluator_session(rm_evaluator *evaluator);

/* Whether evaluations find this metric. */
bool rm_evaluator_has(const rm_evaluator *evaluator, rm_score_name metric);

/* With the parameters of `weights`, which may be rm_evaluator_session's. Fills everything but out->step, on every rank. */
remat_status rm_evaluator_run(rm_evaluator *evaluator, remat_session *weights, rm_eval_event *out);

/* ---- Of saved weights --------------------------------------------------------------------------------------------- */

typedef struct {
    char state[RM_PATH_BYTES]; /* "": they are --init's */
    char named
        [RM_PATH_BYTES]; /* the state that says what its classes are called, which the file of --init may lie in; "": none */
    rm_state_point point;
    rm_dataset *dataset;
    rm_evaluator evaluator; /* its session has the weights */
} rm_saved_evaluator;

/* What `remat eval` and `remat predict` begin with: a state's flags, the data, and the weights; batches as that run's own
 * evaluations have them, so that both find the same bits. Free in any case. */
remat_status rm_saved_evaluator_open(rm_options *options, rm_command command, rm_saved_evaluator *out);
void rm_saved_evaluator_free(rm_saved_evaluator *saved);

#endif
