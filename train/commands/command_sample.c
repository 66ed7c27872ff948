/* command_sample.c: `remat sample`: a trained lm model writes text, byte after byte, by a stateful session of one timestep
 * and one sample: it can go on for ever in the same memory. */
#include "train/commands/commands.h"

#include "engine/rng.h"
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
    float logits[BYTES];
} sampling;

/* Feeds one byte; leaves what the model expects next in s->logits. */
static remat_status feed(sampling *s, uint8_t byte) {
    int32_t token = byte;
    remat_step_result result;
    TRY(remat_write(s->session, REMAT_INPUT, 0, &token, sizeof token));
    TRY(remat_evaluate(s->session, &result));
    return remat_read(s->session, REMAT_OUTPUT, 0, s->logits, sizeof s->logits);
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
    REQUIRE(strcmp(o->device, "null"), INVALID, "--device=null computes nothing, so it has nothing to write: use cpu");
    o->seq_len = 1;
    TRY(rm_setup_spec(o, NULL, &spec));
    TRY(rm_model_build(&spec, 1, false, &s->model));
    config.stateful = true;
    config.outputs = &s->model.logits;
    config.n_outputs = 1;
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
    return status;
}
