/* translate.c: see translate.h. The decoder's logits equal those of an evaluation except for rounding, so lines that `remat eval` counts
 * as right are written here. */
#include "train/commands/translate.h"

#include "memory/host.h"
#include "train/commands/decoder.h"
#include "train/data/tokenizer.h"
#include "train/file.h"
#include "train/run/outputs.h"
#include "train/state/weights.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_ROOM = 32 };

typedef struct {
    const rm_options *options;
    rm_decoder decoder;
    rm_tokenizer *tokenizer; /* NULL: tokens are bytes */
    rm_tokens line;
    float *logits; /* (beam,classes) */
} translation;

/* ---- A line ------------------------------------------------------------------------------------------------------- */

static void log_softmax(const float *logit, int64_t classes, double *out) {
    double largest, sum = rm_softmax_sum(logit, classes, &largest);
    for (int64_t k = 0; k < classes; k++) out[k] = (double)logit[k] - largest - log(sum);
}

static remat_status expect(void *context, const rm_beam_step *step, int64_t lines, double *out) {
    translation *t = context;
    int64_t K = t->decoder.spec.data.classes;
    TRY(rm_decoder_step(&t->decoder, step, lines, t->logits));
    for (int64_t line = 0; line < lines; line++) log_softmax(t->logits + line * K, K, out + line * K);
    return REMAT_OK;
}

static remat_status translate_line(translation *t, const char *line, size_t bytes, int32_t *out) {
    const rm_data_shape *data = &t->decoder.spec.data;
    int64_t n;
    t->line.count = 0;
    TRY(rm_tokenizer_encode(t->tokenizer, (const uint8_t *)line, bytes, &t->line));
    TRY(rm_decoder_read(&t->decoder, t->line.id, t->line.count));
    rm_beam beam = {.width = t->options->beam,
                    .classes = data->classes,
                    .longest = t->options->length,
                    .begin = rm_pair_begin(data),
                    .end = rm_pair_end(data),
                    .expect = expect,
                    .context = t};
    TRY(rm_beam_search(&beam, out, &n));
    for (int64_t i = 0; i < n; i++) rm_tokenizer_print(t->tokenizer, i ? out[i - 1] : -1, out[i]);
    putchar('\n');
    return rm_file_flush_output();
}

/* Without the line end, LF or CR LF. */
static size_t length_of_line(const char *line, size_t length) {
    if (length && line[length - 1] == '\n') length -= length > 1 && line[length - 2] == '\r' ? 2 : 1;
    return length;
}

static remat_status translate_lines(translation *t, int32_t *out) {
    char *line = NULL;
    size_t room = 0;
    remat_status status = REMAT_OK;
    if (t->options->prompt) return translate_line(t, t->options->prompt, strlen(t->options->prompt), out);
    for (ssize_t n; !status && (n = getline(&line, &room, stdin)) >= 0;)
        status = translate_line(t, line, length_of_line(line, (size_t)n), out);
    free(line);
    return status;
}

static remat_status open_decoder(translation *t, rm_options *o, const char *state, const rm_state_point *point) {
    rm_model_spec spec;
    remat_config config = rm_setup_inference_config(o);
    o->data.timesteps = FIRST_ROOM;
    TRY(rm_setup_spec(o, NULL, &spec));
    TRY(rm_decoder_open(&spec, &config, o->beam, &t->decoder));
    TRY(rm_setup_weights(o, state, point, t->decoder.encoder));
    return rm_weights_copy(t->decoder.encoder, t->decoder.decoder);
}

static remat_status run(translation *t, rm_options *o, const char *state, const rm_state_point *point) {
    TRY(open_decoder(t, o, state, point));
    if (o->data.tokenizer) TRY(rm_tokenizer_read(o->data.tokenizer, &t->tokenizer));
    t->logits = rm_calloc((size_t)(o->beam * t->decoder.spec.data.classes), sizeof *t->logits);
    int32_t *out = rm_calloc((size_t)o->length, sizeof *out);
    remat_status status = t->logits && out
                              ? translate_lines(t, out)
                              : rm_fail(REMAT_MEMORY, "no memory for a line of %lld tokens", (long long)o->length);
    rm_free(out);
    return status;
}

remat_status rm_translate(rm_options *o, const char *state, const rm_state_point *point) {
    translation t = {.options = o};
    remat_status status = run(&t, o, state, point);
    rm_decoder_free(&t.decoder);
    rm_tokenizer_free(t.tokenizer);
    rm_free(t.line.id);
    rm_free(t.logits);
    return status;
}
