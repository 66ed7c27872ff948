/* command_sample.c: `remat sample`: generates text with a trained lm model, byte by byte or token by token: through the tokenizer of its
 * training state or, without one, as numbers. Recurrent models run in a stateful session of one timestep and one sample, so memory does
 * not grow with the text. Models without states read the text again for each token, as far as they have positions.
 * Models of --task=seq2seq: translate.h. */
#include "train/commands/commands.h"

#include "engine/rng.h"
#include "memory/host.h"
#include "train/commands/draw.h"
#include "train/commands/translate.h"
#include "train/data/tokenizer.h"
#include "train/file.h"
#include "train/run/setup.h"
#include "train/state/carried.h"
#include "train/tasks/task.h"
#include "train/text.h"

#include <string.h>

enum { NODE_SAMPLE = 0x5A3B };

typedef struct sampling sampling;

/* Reads and writes tokens. */
typedef struct {
    const char *prompt; /* the default */
    remat_status (*read)(sampling *, const char *text);
    void (*write)(const sampling *, int32_t token);
} writing;

struct sampling {
    char state[RM_PATH_BYTES];
    rm_state_point point;
    rm_model model;
    remat_session *session;
    const writing *writing;
    rm_tokenizer *tokenizer; /* NULL: none */
    rm_tokens prompt;
    int64_t vocabulary;
    int32_t *read; /* (window): the first n_read are set */
    int64_t window, n_read;
    int64_t document_end; /* the token after which states are reset; -1: none */
    bool ended;           /* the last token read was document_end */
    float *logits;
    rm_draw_room room;
};

/* ---- Text, numbers --------------------------------------------------------------------------------------- */

static remat_status read_text(sampling *s, const char *text) {
    return rm_tokenizer_encode(s->tokenizer, (const uint8_t *)text, strlen(text), &s->prompt);
}

/* Before it is read. */
static void write_piece(const sampling *s, int32_t token) {
    rm_tokenizer_print(s->tokenizer, s->n_read ? s->read[s->n_read - 1] : -1, token);
}

/* "12 7 9", or with commas. */
static remat_status read_numbers(sampling *s, const char *text) {
    char word[32];
    int64_t number;
    for (text += strspn(text, " ,"); *text; text += strspn(text, " ,")) {
        size_t length = strcspn(text, " ,");
        snprintf(word, sizeof word, "%.*s", (int)(length < sizeof word ? length : sizeof word - 1), text);
        TRY(rm_text_whole("a token of --prompt", word, 0, s->vocabulary - 1, &number));
        TRY(rm_tokens_add(&s->prompt, (int32_t)number));
        text += length;
    }
    return REMAT_OK;
}

static void write_number(const sampling *s, int32_t token) {
    (void)s;
    printf("%d ", token);
}

static const writing as_text = {"\n", read_text, write_piece}, as_numbers = {"0", read_numbers, write_number};

/* ---- Writing ------------------------------------------------------------------------------------------------------ */

/* Appends a token. A full window drops its first half, so that most tokens still have a long context. */
static void append(sampling *s, int32_t token) {
    if (s->n_read == s->window) {
        int64_t keep = s->window / 2;
        memmove(s->read, s->read + s->window - keep, (size_t)keep * sizeof *s->read);
        memset(s->read + keep, 0, (size_t)(s->window - keep) * sizeof *s->read);
        s->n_read = keep;
    }
    s->read[s->n_read++] = token;
}

/* Feeds one token and leaves the logits of the next in s->logits. Attention is causal, so the unused rest of the window has no effect. */
static remat_status feed(sampling *s, int32_t token) {
    remat_step_result result;
    uint64_t bytes = (uint64_t)s->vocabulary * sizeof *s->logits;
    append(s, token);
    if (s->ended) TRY(rm_carried_clear(s->session)); /* as between documents in training */
    s->ended = token == s->document_end;
    TRY(remat_write(s->session, REMAT_INPUT, 0, s->read, (uint64_t)s->window * sizeof *s->read));
    TRY(remat_evaluate(s->session, &result));
    return remat_read_part(s->session, REMAT_OUTPUT, 0, (uint64_t)(s->n_read - 1) * bytes, s->logits, bytes);
}

static remat_status begin(sampling *s, const char *said) {
    remat_status status = s->writing->read(s, said ? said : s->writing->prompt);
    bool lacking = status == REMAT_INVALID || (!status && !s->prompt.count);
    REQUIRE(said || !lacking, INVALID,
            "without --prompt a text begins after a newline, which the vocabulary lacks: give --prompt=TEXT");
    TRY(status);
    REQUIRE(s->prompt.count, INVALID, "--prompt is empty: give the start of the text, or remove --prompt");
    for (int64_t i = 0; i < s->prompt.count; i++) {
        if (said) s->writing->write(s, s->prompt.id[i]);
        TRY(feed(s, s->prompt.id[i]));
    }
    return REMAT_OK;
}

static remat_status write_text(sampling *s, const rm_options *o) {
    rm_draw_rule rule = {.temperature = o->temperature, .top_k = (int)o->top_k, .top_p = o->top_p};
    TRY(begin(s, o->prompt));
    for (int64_t i = 0; i < o->length; i++) {
        double uniform = rm_uniform(rm_random((uint64_t)o->data.seed, 0, NODE_SAMPLE, 0, (uint64_t)i));
        int32_t token = rm_draw(s->logits, &rule, uniform, &s->room);
        s->writing->write(s, token);
        TRY(rm_file_flush_output());
        if (i + 1 < o->length) TRY(feed(s, token));
    }
    putchar('\n');
    return rm_file_flush_output();
}

/* ---- The model ---------------------------------------------------------------------------------------------------- */

static remat_status make_room(sampling *s, const rm_options *o, const rm_data_shape *shape) {
    s->window = o->data.timesteps;
    s->vocabulary = shape->vocabulary;
    s->document_end = o->data.document_end;
    REQUIRE(o->data.document_end < shape->vocabulary, INVALID,
            "--document-end=%lld is not a token: tokens are 0 to %lld", (long long)o->data.document_end,
            (long long)shape->vocabulary - 1);
    s->writing = o->data.vocab && !o->data.tokenizer ? &as_numbers : &as_text;
    s->read = rm_calloc((size_t)s->window, sizeof *s->read);
    s->logits = rm_calloc((size_t)s->vocabulary, sizeof *s->logits);
    REQUIRE(s->read && s->logits, MEMORY, "no memory for %lld tokens of text", (long long)s->window);
    if (o->data.tokenizer) TRY(rm_tokenizer_read(o->data.tokenizer, &s->tokenizer));
    return rm_draw_room_create((int)s->vocabulary, &s->room);
}

static remat_status sample(sampling *s, rm_options *o) {
    rm_model_spec spec;
    remat_config config = rm_setup_inference_config(o);
    if (o->resume) TRY(rm_setup_resume(o, RM_SAMPLE, s->state, &s->point));
    rm_task_writing writes = rm_task_find(o->task)->writes;
    REQUIRE(writes, INVALID, "only models of --task=lm and seq2seq can write text; this one is of --task=%s", o->task);
    REQUIRE(strcmp(o->session.device, "null"), INVALID,
            "--device=null does not compute anything, so there is no text to write: use --device=cpu");
    if (writes == RM_WRITES_LINES) return rm_translate(o, s->state, &s->point);
    bool stateful = rm_model_is(o->model.name, "states");
    o->data.timesteps = stateful ? 1 : o->model.positions;
    TRY(rm_setup_spec(o, NULL, &spec));
    TRY(make_room(s, o, &spec.data));
    TRY(rm_model_build(&spec, 1, false, &s->model));
    config.stateful = stateful;
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
    rm_tokenizer_free(s.tokenizer);
    rm_draw_room_free(&s.room);
    rm_free(s.prompt.id);
    rm_free(s.logits);
    rm_free(s.read);
    return status;
}
