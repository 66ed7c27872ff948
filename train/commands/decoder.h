/* decoder.h: generates tokens with a model of --task=seq2seq. The encoder reads a line once; then the decoder, in a stateful session,
 * runs one timestep per token. Its logits equal those of the whole graph, which evaluations run, except for rounding: tiles differ.
 * Sources are padded as in training, to a length that fits most lines and doubles for a longer one. */
#ifndef RM_DECODER_H
#define RM_DECODER_H

#include "train/commands/beam.h"
#include "train/models/model.h"

typedef struct {
    rm_model_spec spec;
    remat_config config;
    int64_t width; /* lines decoded at once, of one source */
    rm_model model;
    remat_session *encoder, *decoder; /* of one graph: each holds all weights */
    void *room;                       /* for any array copied between the two */
} rm_decoder;

/* spec->data.timesteps: the initial room for a source and its end token. Weights have their initial values: load them into both
 * sessions. Free *out even on errors. */
remat_status rm_decoder_open(const rm_model_spec *spec, const remat_config *config, int64_t width, rm_decoder *out);
void rm_decoder_free(rm_decoder *decoder);

/* Reads a source, without its end token. */
remat_status rm_decoder_read(rm_decoder *decoder, const int32_t *token, int64_t count);
/* After rm_decoder_read, called like rm_beam.expect: logits (width,classes), of which the first `lines` rows are valid. */
remat_status rm_decoder_step(rm_decoder *decoder, const rm_beam_step *step, int64_t lines, float *logits);

#endif
