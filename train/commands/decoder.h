/* decoder.h: a model of --task=seq2seq writes tokens one by one: the encoder reads a line once, then the decoder runs one timestep a
 * token, in a stateful session. The logits are those of the whole graph, which evaluations run, to rounding: it is computed in other
 * tiles. Sources are padded as in training, to a length that has room for many lines, and is doubled for a longer one. */
#ifndef RM_DECODER_H
#define RM_DECODER_H

#include "train/commands/beam.h"
#include "train/models/model.h"

typedef struct {
    rm_model_spec spec;
    remat_config config;
    int64_t width; /* lines side by side, of one source */
    rm_model model;
    remat_session *encoder, *decoder; /* of one graph: each has all weights */
    void *room;                       /* for any array between the two */
} rm_decoder;

/* spec->data.timesteps: room for a source and its end, at first. Weights are as they begin: write those of both sessions.
 * Free in any case. */
remat_status rm_decoder_open(const rm_model_spec *spec, const remat_config *config, int64_t width, rm_decoder *out);
void rm_decoder_free(rm_decoder *decoder);

/* A source, without its end. */
remat_status rm_decoder_read(rm_decoder *decoder, const int32_t *token, int64_t count);
/* Behind rm_decoder_read, as rm_beam.expect is called: logits (width,classes), the first `lines` of which count. */
remat_status rm_decoder_step(rm_decoder *decoder, const rm_beam_step *step, int64_t lines, float *logits);

#endif
