/* decoder.c: see decoder.h. */
#include "train/commands/decoder.h"

#include "memory/host.h"
#include "train/state/weights.h"

/* ---- The sessions ------------------------------------------------------------------------------------------------- */

static remat_status open_sessions(rm_decoder *d) {
    remat_config config = d->config;
    TRY(rm_model_build(&d->spec, d->width, false, &d->model));
    config.stateful = true;
    config.outputs = &d->model.logits;
    config.n_outputs = 1;
    TRY(remat_session_create(d->model.graph, REMAT_NONE, &config, &d->decoder));
    config.stateful = false;
    config.outputs = d->spec.encoded;
    config.n_outputs = 1 + (int)remat_count(d->decoder, REMAT_CARRIED);
    return remat_session_create(d->model.graph, REMAT_NONE, &config, &d->encoder);
}

/* Inputs are no larger than the encoded sequence, and states are outputs of the encoder. */
static remat_status make_room(rm_decoder *d) {
    uint64_t most = 0;
    for (int64_t i = 0; i < remat_count(d->encoder, REMAT_OUTPUT); i++) {
        remat_array array;
        TRY(remat_array_info(d->encoder, REMAT_OUTPUT, i, &array));
        if (array.bytes > most) most = array.bytes;
    }
    d->room = rm_malloc(most);
    REQUIRE(d->room, MEMORY, "no memory for a line of %lld tokens", (long long)d->spec.data.timesteps);
    return REMAT_OK;
}

remat_status rm_decoder_open(const rm_model_spec *spec, const remat_config *config, int64_t width, rm_decoder *out) {
    *out = (rm_decoder){.spec = *spec, .config = *config, .width = width};
    out->spec.data.answer_steps = 1;
    out->spec.encoded = rm_calloc(1 + 2 * (size_t)spec->layers, sizeof *out->spec.encoded);
    REQUIRE(out->spec.encoded, MEMORY, "no memory for the states of %lld layers", (long long)spec->layers);
    TRY(open_sessions(out));
    return make_room(out);
}

void rm_decoder_free(rm_decoder *d) {
    remat_session_free(d->encoder);
    remat_session_free(d->decoder);
    rm_model_free(&d->model);
    rm_free(d->spec.encoded);
    rm_free(d->room);
}

static remat_status enlarge(rm_decoder *d, int64_t timesteps) {
    rm_decoder larger;
    rm_model_spec spec = d->spec;
    while (spec.data.timesteps < timesteps) spec.data.timesteps *= 2;
    remat_status status = rm_decoder_open(&spec, &d->config, d->width, &larger);
    if (!status) status = rm_weights_copy(d->encoder, larger.encoder);
    if (!status) status = rm_weights_copy(d->encoder, larger.decoder);
    rm_decoder_free(status ? &larger : d);
    if (!status) *d = larger;
    return status;
}

/* ---- A source ----------------------------------------------------------------------------------------------------- */

static remat_status write_input(rm_decoder *d, remat_session *session, const char *name, int64_t count) {
    return remat_write(session, REMAT_INPUT, remat_find(session, REMAT_INPUT, name), d->room,
                       (uint64_t)count * sizeof(int32_t));
}

/* Writes the source, reversed as in training, once for each line to be decoded. */
static remat_status write_source(rm_decoder *d, const int32_t *token, int64_t n) {
    const rm_data_shape *data = &d->spec.data;
    int64_t B = d->width, count = data->timesteps * B;
    int32_t *x = d->room;
    float *begins = d->room;
    for (int64_t i = 0; i < count; i++) {
        int64_t at = n - i / B;
        x[i] = at < 0 ? rm_pair_begin(data) : at == n ? rm_pair_end(data) : token[at];
    }
    TRY(write_input(d, d->encoder, "input", count));
    for (int64_t i = 0; i < count; i++) x[i] = i / B > n;
    TRY(write_input(d, d->decoder, "padding", count));
    for (int64_t i = 0; i < count; i++) begins[i] = i / B == n;
    return write_input(d, d->encoder, "begins", count);
}

static remat_status hand_over(rm_decoder *d, int64_t output, remat_kind kind, int64_t index) {
    remat_array array;
    TRY(remat_array_info(d->encoder, REMAT_OUTPUT, output, &array));
    TRY(remat_read(d->encoder, REMAT_OUTPUT, output, d->room, array.bytes));
    return remat_write(d->decoder, kind, index, d->room, array.bytes);
}

remat_status rm_decoder_read(rm_decoder *d, const int32_t *token, int64_t count) {
    remat_step_result result;
    if (count >= d->spec.data.timesteps) TRY(enlarge(d, count + 1));
    TRY(write_source(d, token, count));
    TRY(remat_evaluate(d->encoder, &result));
    TRY(hand_over(d, 0, REMAT_INPUT, remat_find(d->decoder, REMAT_INPUT, "encoded")));
    for (int64_t i = 0; i < remat_count(d->decoder, REMAT_CARRIED); i++) TRY(hand_over(d, 1 + i, REMAT_CARRIED, i));
    return REMAT_OK;
}

/* ---- A token ------------------------------------------------------------------------------------------------------ */

/* Each line continues from the states of the line that it extends. */
static remat_status move_states(rm_decoder *d, const rm_beam_step *step, int64_t lines) {
    for (int64_t k = 0; k < remat_count(d->decoder, REMAT_CARRIED); k++) {
        remat_array array;
        TRY(remat_array_info(d->decoder, REMAT_CARRIED, k, &array));
        uint64_t row = array.bytes / (uint64_t)d->width;
        TRY(remat_read(d->decoder, REMAT_CARRIED, k, d->room, array.bytes));
        for (int64_t i = 0; i < lines; i++) {
            const char *from = (const char *)d->room + (uint64_t)step[i].line * row;
            TRY(remat_write_part(d->decoder, REMAT_CARRIED, k, (uint64_t)i * row, from, row));
        }
    }
    return REMAT_OK;
}

remat_status rm_decoder_step(rm_decoder *d, const rm_beam_step *step, int64_t lines, float *logits) {
    remat_step_result result;
    int32_t *previous = d->room;
    uint64_t bytes = (uint64_t)(d->width * d->spec.data.classes) * sizeof *logits;
    if (d->width > 1) TRY(move_states(d, step, lines));
    for (int64_t i = 0; i < d->width; i++) previous[i] = i < lines ? step[i].token : rm_pair_begin(&d->spec.data);
    TRY(write_input(d, d->decoder, "previous", d->width));
    TRY(remat_evaluate(d->decoder, &result));
    return remat_read(d->decoder, REMAT_OUTPUT, 0, logits, bytes);
}
