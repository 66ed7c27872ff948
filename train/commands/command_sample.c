/* command_sample.c: `remat sample`: a trained lm model writes text, byte after byte. A recurrent one by a stateful session of one
 * timestep and one sample: it can go on for ever in the same memory. One without states reads all that it has written at every
 * byte, as far as it has positions. */
#include "train/commands/commands.h"

#include "engine/rng.h"
#include "memory/host.h"
#include "train/commands/draw.h"
#include "train/file.h"
#include "train/run/setup.h"

#include <string.h>

enum { BYTES = 256, NODE_SAMPLE = 0x5A3B };

typedef struct {
    char state[RM_PATH_BYTES];
    rm_state_point point;
    rm_model model;
    remat_session *session;
    int32_t *read; /* window of them; n_read: so many, from the first on */
    int64_t window, n_read;
    float logits[BYTES];
} sampling;

/* One more byte was read. A full window loses its first half, so that most bytes are read with much before them. */
static void append(sampling *s, uint8_t byte) {
    if (s->n_read == s->window) {
        int64_t keep = s->window / 2;
        memmove(s->read, s->read + s->window - keep, (size_t)keep * sizeof *s->read);
        memset(s->read + keep, 0, (size_t)(s->window - keep) * sizeof *s->read);
        s->n_read = keep;
    }
    s->read[s->n_read++] = byte;
}

/* Feeds one byte; leaves what the model expects next in s->logits. What lies behind the last byte no timestep before it sees. */
static remat_status feed(sampling *s, uint8_t byte) {
    remat_step_result result;
    append(s, byte);
    TRY(remat_write(s->session, REMAT_INPUT, 0, s->read, (uint64_t)s->window * sizeof *s->read));
    TRY(remat_evaluate(s->session, &result));
    uint64_t first = (uint64_t)(s->n_read - 1) * sizeof s->logits;
    return remat_read_part(s->session, REMAT_OUTPUT, 0, first, s->logits, sizeof s->logits);
}

static remat_status write_text(sampling *s, const rm_options *o) {
    const char *prompt = o->prompt ? o->prompt : "\n";
    rm_draw_rule rule = {.temperature = o->temperature, .top_k = (int)o->top_k, .top_p = o->top_p};
    for (const char *at = prompt; *at; at++) TRY(feed(s, (uint8_t)*at));
    if (o->prompt) fputs(prompt, stdout);
    for (int64_t i = 0; i < o->length; i++) {
        double uniform = rm_uniform(rm_random((uint64_t)o->seed, 0, NODE_SAMPLE, 0, (uint64_t)i));
        int byte = rm_draw(s->logits, BYTES, &rule, uniform);
        putchar(byte);
        TRY(rm_file_flush_output());
        if (i + 1 < o->length) TRY(feed(s, (uint8_t)byte));
    }
    putchar('\n');
    return rm_file_flush_output();
}

static remat_status sample(sampling *s, rm_options *o) {
    rm_model_spec spec;
    remat_config config = rm_setup_inference_config(o);
    if (o->resume) TRY(rm_setup_resume(o, RM_SAMPLE, s->state, &s->point));
    REQUIRE(!strcmp(o->task, "lm"), INVALID, "only a model of --task=lm can write text; this one is of --task=%s",
            o->task);
    REQUIRE(!o->vocab, INVALID, "a model of --vocab=%lld knows tokens, which `remat sample` has no letters for: it writes bytes",
            (long long)o->vocab);
    REQUIRE(strcmp(o->device, "null"), INVALID, "--device=null computes nothing, so it has nothing to write: use cpu");
    bool stateful = rm_model_has_states(o->model);
    o->seq_len = stateful ? 1 : o->positions;
    TRY(rm_setup_spec(o, NULL, &spec));
    TRY(rm_model_build(&spec, 1, false, &s->model));
    config.stateful = stateful;
    config.outputs = &s->model.logits;
    config.n_outputs = 1;
    s->window = o->seq_len;
    s->read = rm_calloc((size_t)s->window, sizeof *s->read);
    REQUIRE(s->read, MEMORY, "no memory for %lld bytes of text", (long long)s->window);
    TRY(remat_session_create(s->model.graph, REMAT_NONE, &config, &s->session));
    TRY(rm_setup_weights(o, s->state, &s->point, s->session));
    return write_text(s, o);
}

remat_status rm_command_sample(rm_options *options, int *exit_status) {
    (void)exit_status;
    sampling s = {0};
    remat_status status = sample(&s, options);
    remat_session_free(s.session);
    rm_model_free(&s.model);
    rm_free(s.read);
    return status;
}
