/* command_sample.c: `remat sample`: a trained lm model writes text, byte after byte, or token after token: through the tokenizer that
 * its training state has, or as numbers, where it has none. A recurrent one by a stateful session of one timestep and one sample: it
 * can go on for ever in the same memory. One without states reads all that it has written at every token, as far as it has
 * positions. A model of --task=seq2seq: translate.h. */
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

/* How tokens are read and written. */
typedef struct {
    const char *prompt; /* where none is said */
    remat_status (*read)(sampling *, const char *text);
    void (*write)(const sampling *, int32_t token);
} writing;

struct sampling {
    char state[RM_PATH_BYTES];
    rm_state_point point;
    rm_model model;
    remat_session *session;
    const writing *writing;
    rm_tokenizer *tokenizer; /* NULL: there is none */
    rm_tokens prompt;
    int64_t vocabulary;
    int32_t *read; /* window of them; n_read: so many, from the first on */
    int64_t window, n_read;
    int64_t document_end; /* the token after which states begin anew; -1: none */
    bool ended;           /* the token read last was it */
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

/* One more token was read. A full window loses its first half, so that most are read with much before them. */
static void append(sampling *s, int32_t token) {
    if (s->n_read == s->window) {
        int64_t keep = s->window / 2;
        memmove(s->read, s->read + s->window - keep, (size_t)keep * sizeof *s->read);
        memset(s->read + keep, 0, (size_t)(s->window - keep) * sizeof *s->read);
        s->n_read = keep;
    }
    s->read[s->n_read++] = token;
}

/* Feeds one token; leaves what the model expects next in s->logits. What lies behind the last no timestep before it sees. */
static remat_status feed(sampling *s, int32_t token) {
    remat_step_result result;
    uint64_t bytes = (uint64_t)s->vocabulary * sizeof *s->logits;
    append(s, token);
    if (s->ended) TRY(rm_carried_clear(s->session)); /* the next document begins as it did in training */
    s->ended = token == s->document_end;
    TRY(remat_write(s->session, REMAT_INPUT, 0, s->read, (uint64_t)s->window * sizeof *s->read));
    TRY(remat_evaluate(s->session, &result));
    return remat_read_part(s->session, REMAT_OUTPUT, 0, (uint64_t)(s->n_read - 1) * bytes, s->logits, bytes);
}

static remat_status begin(sampling *s, const char *said) {
    TRY(s->writing->read(s, said ? said : s->writing->prompt));
    REQUIRE(s->prompt.count, INVALID, "--prompt is empty: say what the text begins with, or leave it out");
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
    REQUIRE(o->data.document_end < shape->vocabulary, INVALID, "--document-end=%lld is no token: there are 0 to %lld",
            (long long)o->data.document_end, (long long)shape->vocabulary - 1);
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
            "--device=null computes nothing, so it has nothing to write: use cpu");
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
