/* translate.c: see translate.h. The decoder reads all that it has written at every token, by a session of the whole graph, as it is
 * evaluated: what `remat eval` counts as right is what is written here. Sessions have room for more than a line needs, so that one
 * serves many lines; it is padded as in training. */
#include "train/commands/translate.h"

#include "memory/host.h"
#include "train/commands/beam.h"
#include "train/data/tokenizer.h"
#include "train/file.h"
#include "train/run/model.h"
#include "train/state/weights.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_ROOM = 32 };

typedef struct {
    const rm_options *options;
    const char *state;
    const rm_state_point *point;
    rm_model_spec spec;
    rm_model model;
    remat_session *session;  /* NULL: there is none yet */
    rm_tokenizer *tokenizer; /* NULL: tokens are bytes */
    rm_tokens line;
    int64_t width; /* lines side by side */
    float *logits; /* (width,classes) */
    int32_t *room; /* for any input */
} translation;

/* ---- The session -------------------------------------------------------------------------------------------------- */

static remat_status load(translation *t, remat_session *session) {
    if (t->session) return rm_weights_copy(t->session, session);
    return rm_setup_weights(t->options, t->state, t->point, session);
}

static remat_status open_session(translation *t, rm_model *model, remat_session **out) {
    remat_config config = rm_setup_inference_config(t->options);
    TRY(rm_model_build(&t->spec, t->width, true, model));
    config.outputs = &model->logits;
    config.n_outputs = 1;
    TRY(remat_session_create(model->graph, model->loss, &config, out));
    return load(t, *out);
}

static int64_t room_for(int64_t room, int64_t wanted) {
    while (room < wanted) room *= 2;
    return room;
}

static remat_status replace(translation *t, int64_t source, int64_t target) {
    rm_model model = {0};
    remat_session *session = NULL;
    rm_free(t->room);
    t->spec.data = rm_pair_shape(source - 1, target - 1, rm_pair_tokens(&t->spec.data));
    t->room = rm_calloc((size_t)((source > target ? source : target) * t->width), sizeof *t->room);
    remat_status status = t->room ? open_session(t, &model, &session) : rm_fail(REMAT_MEMORY, "no memory for a line");
    remat_session_free(t->session);
    rm_model_free(&t->model);
    t->model = model;
    t->session = session;
    return status;
}

static remat_status write_input(translation *t, const char *name, uint64_t count) {
    int64_t at = remat_find(t->session, REMAT_INPUT, name);
    return remat_write(t->session, REMAT_INPUT, at, t->room, count * sizeof *t->room);
}

/* The line, turned round as in training, for each of those that are made of it. */
static remat_status write_source(translation *t) {
    int64_t S = t->spec.data.timesteps, B = t->width, n = t->line.count;
    uint64_t count = (uint64_t)(S * B);
    float *begins = (float *)t->room;
    _Static_assert(sizeof *begins == sizeof *t->room, "both fit");
    for (int64_t i = 0; i < S * B; i++) {
        int64_t at = n - i / B;
        t->room[i] = at < 0 ? rm_pair_begin(&t->spec.data) : at == n ? rm_pair_end(&t->spec.data) : t->line.id[at];
    }
    TRY(write_input(t, "input", count));
    for (int64_t i = 0; i < S * B; i++) t->room[i] = i / B > n;
    TRY(write_input(t, "padding", count));
    for (int64_t i = 0; i < S * B; i++) begins[i] = i / B == n;
    return write_input(t, "begins", count);
}

static remat_status write_targets(translation *t) {
    int64_t count = t->spec.data.answer_steps * t->width;
    for (int64_t i = 0; i < count; i++) t->room[i] = -1; /* there are none */
    return write_input(t, "target", (uint64_t)count);
}

static remat_status make_room(translation *t, int64_t tokens) {
    const rm_data_shape *data = &t->spec.data;
    int64_t S = room_for(t->session ? data->timesteps : FIRST_ROOM, t->line.count + 1);
    int64_t T = room_for(t->session ? data->answer_steps : FIRST_ROOM, tokens);
    if (t->session && S == data->timesteps && T == data->answer_steps) return REMAT_OK;
    TRY(replace(t, S, T));
    TRY(write_source(t));
    return write_targets(t);
}

/* ---- A line ------------------------------------------------------------------------------------------------------- */

static void log_softmax(const float *logit, int64_t classes, double *out) {
    double most = -INFINITY, sum = 0;
    for (int64_t k = 0; k < classes; k++) most = fmax(most, (double)logit[k]);
    for (int64_t k = 0; k < classes; k++) sum += exp((double)logit[k] - most);
    for (int64_t k = 0; k < classes; k++) out[k] = (double)logit[k] - most - log(sum);
}

static remat_status expect(void *context, const int32_t *tokens, int64_t lines, int64_t length, double *out) {
    translation *t = context;
    const rm_data_shape *data = &t->spec.data;
    remat_step_result result;
    int64_t B = t->width, K = data->classes, longest = t->options->length;
    uint64_t bytes = (uint64_t)(B * K) * sizeof *t->logits;
    TRY(make_room(t, length + 1));
    for (int64_t i = 0; i < data->answer_steps * B; i++) {
        int64_t at = i / B - 1, line = i % B;
        bool there = at >= 0 && at < length && line < lines;
        t->room[i] = there ? tokens[line * longest + at] : rm_pair_begin(data);
    }
    TRY(write_input(t, "previous", (uint64_t)(data->answer_steps * B)));
    TRY(remat_evaluate(t->session, &result));
    TRY(remat_read_part(t->session, REMAT_OUTPUT, 0, (uint64_t)length * bytes, t->logits, bytes));
    for (int64_t line = 0; line < lines; line++) log_softmax(t->logits + line * K, K, out + line * K);
    return REMAT_OK;
}

static remat_status read_line(translation *t, const char *line, size_t bytes) {
    t->line.count = 0;
    if (t->tokenizer) return rm_tokenizer_encode(t->tokenizer, (const uint8_t *)line, bytes, &t->line);
    for (size_t i = 0; i < bytes; i++) TRY(rm_tokens_add(&t->line, (uint8_t)line[i]));
    return REMAT_OK;
}

static void write_token(const translation *t, int32_t token) {
    uint8_t byte = (uint8_t)token;
    const uint8_t *piece = &byte;
    size_t bytes = 1;
    if (t->tokenizer) piece = rm_tokenizer_decode(t->tokenizer, token, &bytes);
    fwrite(piece, 1, bytes, stdout);
}

static remat_status translate_line(translation *t, const char *line, size_t bytes, int32_t *out) {
    int64_t n;
    TRY(read_line(t, line, bytes));
    TRY(make_room(t, 1));
    TRY(write_source(t));
    rm_beam beam = {.width = t->width,
                    .classes = t->spec.data.classes,
                    .longest = t->options->length,
                    .end = rm_pair_end(&t->spec.data),
                    .expect = expect,
                    .context = t};
    TRY(rm_beam_search(&beam, out, &n));
    for (int64_t i = 0; i < n; i++) write_token(t, out[i]);
    putchar('\n');
    return rm_file_flush_output();
}

static remat_status translate_lines(translation *t, int32_t *out) {
    char *line = NULL;
    size_t room = 0;
    remat_status status = REMAT_OK;
    if (t->options->prompt) return translate_line(t, t->options->prompt, strlen(t->options->prompt), out);
    for (ssize_t n; !status && (n = getline(&line, &room, stdin)) >= 0;)
        status = translate_line(t, line, (size_t)(n - (line[n - 1] == '\n')), out);
    free(line);
    return status;
}

static remat_status run(translation *t, rm_options *o) {
    o->seq_len = FIRST_ROOM;
    TRY(rm_setup_spec(o, NULL, &t->spec));
    if (o->tokenizer) TRY(rm_tokenizer_read(o->tokenizer, &t->tokenizer));
    t->width = o->beam;
    t->logits = rm_calloc((size_t)(t->width * t->spec.data.classes), sizeof *t->logits);
    int32_t *out = rm_calloc((size_t)o->length, sizeof *out);
    remat_status status = t->logits && out
                              ? translate_lines(t, out)
                              : rm_fail(REMAT_MEMORY, "no memory for a line of %lld tokens", (long long)o->length);
    rm_free(out);
    return status;
}

remat_status rm_translate(rm_options *o, const char *state, const rm_state_point *point) {
    translation t = {.options = o, .state = state, .point = point};
    remat_status status = run(&t, o);
    remat_session_free(t.session);
    rm_model_free(&t.model);
    rm_tokenizer_free(t.tokenizer);
    rm_free(t.line.id);
    rm_free(t.logits);
    rm_free(t.room);
    return status;
}
