/* tokenizer.c: see tokenizer.h. tokenizer_json.c reads the file. */
#include "train/data/tokenizer_tables.h"

#include "memory/host.h"
#include "train/data/unicode.h"
#include "train/data/words.h"

#include <stdio.h>
#include <string.h>

void rm_tokenizer_free(rm_tokenizer *t) {
    if (!t) return;
    rm_bpe_free(&t->bpe);
    if (t->cut == RM_CUT_BPE) rm_free(t->piece);
    if (t->cut == RM_CUT_BPE) rm_free(t->bytes);
    rm_pieces_free(&t->whole);
    rm_free(t->added);
    rm_free(t);
}

int64_t rm_tokenizer_vocabulary(const rm_tokenizer *t) { return t->vocabulary; }

remat_status rm_tokenizer_fit(const rm_tokenizer *t, const char *name, int64_t said, int64_t *vocabulary) {
    REQUIRE(!said || said >= t->vocabulary, INVALID,
            "--vocab=%lld is less than the %lld tokens of %s: remove --vocab, or give the tokenizer of this model",
            (long long)said, (long long)t->vocabulary, name);
    *vocabulary = said ? said : t->vocabulary;
    return REMAT_OK;
}

remat_status rm_tokenizer_fit_file(const char *path, int64_t said, int64_t *vocabulary) {
    rm_tokenizer *tokenizer;
    TRY(rm_tokenizer_read(path, &tokenizer));
    remat_status status = rm_tokenizer_fit(tokenizer, path, said, vocabulary);
    rm_tokenizer_free(tokenizer);
    return status;
}

const uint8_t *rm_tokenizer_decode(const rm_tokenizer *t, int64_t id, size_t *length) {
    bool there = id >= 0 && id < t->vocabulary && t->piece[id].at >= 0;
    *length = there ? (size_t)t->piece[id].length : 0;
    return t->bytes + (there ? t->piece[id].at : 0);
}

bool rm_tokenizer_keeps_bytes(const rm_tokenizer *t) {
    return t->cut == RM_CUT_BPE || (t->cut == RM_CUT_CHARS && t->unknown < 0);
}

const char *rm_tokenizer_cut(const rm_tokenizer *t) {
    return t->cut == RM_CUT_WORDS ? "words" : t->cut == RM_CUT_CHARS ? "chars" : "";
}

/* With words: ends a line, or writes a space before a word that is not the first of its line. */
static bool print_between(const rm_tokenizer *t, int64_t before, int64_t id) {
    if (t->cut != RM_CUT_WORDS) return false;
    if (id == t->line_end)
        putchar('\n');
    else if (before >= 0 && before != t->line_end)
        putchar(' ');
    return id == t->line_end;
}

void rm_tokenizer_print(const rm_tokenizer *t, int64_t before, int64_t id) {
    size_t length;
    const uint8_t *piece = t ? rm_tokenizer_decode(t, id, &length) : NULL;
    if (!piece)
        putchar((int)id);
    else if (!print_between(t, before, id))
        fwrite(piece, 1, length, stdout);
}

/* ---- Encoding --------------------------------------------------------------------------------------------------- */

typedef struct {
    const rm_tokenizer *tokenizer;
    rm_tokens *tokens;
    rm_bpe_room room;
} encoder;

static remat_status encode_words(encoder *e, const uint8_t *text, size_t size) {
    for (size_t at = 0, length; at < size; at += length) {
        length = rm_word_length(text + at, size - at);
        TRY(rm_bpe_encode(&e->tokenizer->bpe, text + at, length, &e->room, e->tokens));
    }
    return REMAT_OK;
}

static remat_status encode_after_space(encoder *e, const uint8_t *text, size_t size) {
    uint8_t *copy = rm_malloc(size + 1);
    REQUIRE(copy, MEMORY, "no memory to add a space before %zu bytes", size);
    copy[0] = ' ';
    memcpy(copy + 1, text, size);
    remat_status status = encode_words(e, copy, size + 1);
    rm_free(copy);
    return status;
}

static remat_status encode_plain(encoder *e, const uint8_t *text, size_t size) {
    bool space = e->tokenizer->space_first && size && *text != ' ';
    return (space ? encode_after_space : encode_words)(e, text, size);
}

/* The longest added token, of the late ones or the others, that text[0..size) starts with; NULL: none. */
static const rm_added_token *added_token(const rm_tokenizer *t, bool late, const uint8_t *text, size_t size) {
    if (!t->begins_added[*text]) return NULL;
    for (int64_t i = 0; i < t->n_added; i++) {
        const rm_piece *piece = &t->piece[t->added[i].id];
        bool fits = t->added[i].late == late && (size_t)piece->length <= size;
        if (fits && !memcmp(text, t->bytes + piece->at, (size_t)piece->length)) return &t->added[i];
    }
    return NULL;
}

static remat_status encode_between(encoder *e, bool late, const uint8_t *text, size_t size);

/* Encodes the text between two added tokens: splits it at the late ones, then into words. */
static remat_status encode_part(encoder *e, bool late, const uint8_t *text, size_t size) {
    return late ? encode_plain(e, text, size) : encode_between(e, true, text, size);
}

static remat_status encode_between(encoder *e, bool late, const uint8_t *text, size_t size) {
    size_t begin = 0, at = 0;
    while (at < size) {
        const rm_added_token *added = added_token(e->tokenizer, late, text + at, size - at);
        if (!added) {
            at++;
            continue;
        }
        TRY(encode_part(e, late, text + begin, at - begin));
        TRY(rm_tokens_add(e->tokens, added->id));
        begin = at += (size_t)e->tokenizer->piece[added->id].length;
    }
    return encode_part(e, late, text + begin, size - begin);
}

/* ---- Whole words, and characters ---------------------------------------------------------------------------------- */

static remat_status add_whole(const rm_tokenizer *t, const uint8_t *text, size_t size, rm_tokens *tokens) {
    int64_t id = rm_pieces_find(&t->whole, text, size);
    if (id < 0) id = t->unknown;
    REQUIRE(
        id >= 0, INVALID,
        "the vocabulary has neither the %s '%.*s' nor <unk>: give one that has, --tokenizer=FILE, or remove it from "
        "the text",
        t->cut == RM_CUT_WORDS ? "word" : "character", size < 60 ? (int)size : 60, (const char *)text);
    return rm_tokens_add(tokens, (int32_t)id);
}

static remat_status encode_whole(const rm_tokenizer *t, const uint8_t *text, size_t size, rm_tokens *tokens) {
    for (size_t at = 0, length; at < size; at += length) {
        bool token = t->cut == RM_CUT_CHARS || rm_plain_word(text + at, size - at, &length);
        if (t->cut == RM_CUT_CHARS) rm_utf8_first(text + at, size - at, &length);
        if (token) TRY(add_whole(t, text + at, length, tokens));
        if (!token && text[at] == '\n' && t->line_end >= 0) TRY(rm_tokens_add(tokens, (int32_t)t->line_end));
    }
    return REMAT_OK;
}

/* ---- Any text ------------------------------------------------------------------------------------------------------ */

remat_status rm_tokenizer_encode(const rm_tokenizer *t, const uint8_t *text, size_t size, rm_tokens *tokens) {
    encoder e = {.tokenizer = t, .tokens = tokens};
    for (size_t i = 0; i < size && !t; i++) TRY(rm_tokens_add(tokens, text[i]));
    if (!t) return REMAT_OK;
    if (t->cut != RM_CUT_BPE) return encode_whole(t, text, size, tokens);
    remat_status status = encode_between(&e, false, text, size);
    rm_bpe_room_free(&e.room);
    return status;
}
