/* vocabulary.c: see vocabulary.h. */
#include "train/data/vocabulary.h"

#include "memory/host.h"
#include "train/data/dataset.h"
#include "train/data/pieces.h"
#include "train/data/tokenizer.h"
#include "train/data/unicode.h"
#include "train/data/words.h"
#include "train/file.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

bool rm_vocabulary_is_made(const char *tokenizer) { return !strcmp(tokenizer, "words") || !strcmp(tokenizer, "chars"); }

static remat_status add_text(rm_pieces *p, const char *text) {
    return rm_pieces_add(p, (const uint8_t *)text, strlen(text));
}

/* ---- Of texts ----------------------------------------------------------------------------------------------------- */

static remat_status add_words(rm_pieces *p, const uint8_t *text, size_t size, bool line_ends) {
    for (size_t at = 0, length; at < size; at += length) {
        bool word = rm_plain_word(text + at, size - at, &length);
        if (word) TRY(rm_pieces_add(p, text + at, length));
        if (!word && line_ends && text[at] == '\n') TRY(add_text(p, RM_LINE_END));
    }
    return REMAT_OK;
}

static remat_status add_chars(rm_pieces *p, const uint8_t *text, size_t size, bool line_ends) {
    for (size_t at = 0, length; at < size; at += length) {
        rm_utf8_first(text + at, size - at, &length);
        if (line_ends || text[at] != '\n') TRY(rm_pieces_add(p, text + at, length));
    }
    return REMAT_OK;
}

static remat_status add_file(rm_pieces *p, bool words, const rm_vocabulary_texts *texts, const char *path) {
    uint64_t most = texts->budget ? texts->budget : RM_UNPACKED_BYTES;
    uint8_t *text;
    size_t size;
    TRY(rm_file_read_first(path, most + 1, &text, &size));
    remat_status status = REMAT_OK;
    if (size > most)
        status = rm_fail(REMAT_INFEASIBLE, "%s is larger than %llu bytes: give --tokenizer=FILE with its vocabulary",
                         path, (unsigned long long)most);
    if (!status) status = (words ? add_words : add_chars)(p, text, size, !texts->path[1]);
    rm_free(text);
    return status;
}

/* Bytes of UTF-8 sort in the order of code points. */
static bool is_before(const rm_pieces *p, rm_piece a, rm_piece b) {
    int64_t length = a.length < b.length ? a.length : b.length;
    int order = memcmp(p->bytes + a.at, p->bytes + b.at, (size_t)length);
    return order ? order < 0 : a.length < b.length;
}

/* An insertion sort, because there are few characters. After it the set cannot look up a number by its text. */
static void sort(rm_pieces *p) {
    for (int64_t i = 1; i < p->count; i++) {
        rm_piece piece = p->piece[i];
        int64_t at = i;
        for (; at && is_before(p, piece, p->piece[at - 1]); at--) p->piece[at] = p->piece[at - 1];
        p->piece[at] = piece;
    }
}

static remat_status make(bool words, const rm_vocabulary_texts *texts, rm_pieces *p) {
    REQUIRE(texts && texts->path[0], INVALID,
            "--tokenizer=%s makes a vocabulary of the text that is trained on: give --resume=DIR, or the vocabulary, "
            "--tokenizer=FILE",
            words ? "words" : "chars");
    for (int i = 0; i < 2 && texts->path[i]; i++) TRY(add_file(p, words, texts, texts->path[i]));
    if (words) return add_text(p, RM_UNKNOWN);
    sort(p);
    return REMAT_OK;
}

/* ---- Of a list ---------------------------------------------------------------------------------------------------- */

static bool is_special(const uint8_t *token, size_t size) {
    static const char *const special[] = {RM_UNKNOWN, RM_LINE_END, "\\n"};
    for (size_t i = 0; i < sizeof special / sizeof *special; i++)
        if (strlen(special[i]) == size && !memcmp(special[i], token, size)) return true;
    return false;
}

/* Whether all tokens are single characters, except for special tokens. */
static bool are_chars(const rm_pieces *p) {
    int64_t chars = 0;
    for (int64_t i = 0; i < p->count; i++) {
        const uint8_t *token = p->bytes + p->piece[i].at;
        size_t length, size = (size_t)p->piece[i].length;
        rm_utf8_first(token, size, &length);
        if (length < size && !is_special(token, size)) return false;
        chars += length == size;
    }
    return chars > 0;
}

static remat_status add_line(rm_pieces *p, const uint8_t *line, size_t size, const char *path, int64_t number) {
    REQUIRE(size, INVALID, "%s: line %lld is empty: a vocabulary has one token a line", path, (long long)number);
    REQUIRE(rm_pieces_find(p, line, size) < 0, INVALID, "%s: line %lld repeats the token '%.*s': remove it", path,
            (long long)number, size < 60 ? (int)size : 60, (const char *)line);
    return rm_pieces_add(p, line, size);
}

static remat_status check_words(const rm_pieces *p, const char *path) {
    for (int64_t i = 0; i < p->count; i++) {
        size_t length, size = (size_t)p->piece[i].length;
        const uint8_t *token = p->bytes + p->piece[i].at;
        REQUIRE(rm_plain_word(token, size, &length) && length == size, INVALID,
                "%s: line %lld, '%.*s', has white space, which separates words: give a tokenizer.json, or a vocabulary "
                "with one word a line",
                path, (long long)i + 1, size < 60 ? (int)size : 60, (const char *)token);
    }
    return REMAT_OK;
}

static remat_status read_list(const uint8_t *text, size_t size, const char *path, rm_pieces *p, bool *words) {
    int64_t number = 0;
    for (size_t at = 0; at < size; at++) {
        const uint8_t *end = memchr(text + at, '\n', size - at);
        size_t length = end ? (size_t)(end - text) - at : size - at;
        bool windows = length > 1 && text[at + length - 1] == '\r';
        TRY(add_line(p, text + at, length - windows, path, ++number));
        at += length;
    }
    *words = !are_chars(p);
    return *words ? check_words(p, path) : REMAT_OK;
}

/* ---- As tokenizer.json -------------------------------------------------------------------------------------------- */

/* JSON names are UTF-8 without zero bytes. */
static remat_status add_token(json_t *vocabulary, const rm_pieces *p, int64_t number, bool words, const char *source) {
    const rm_piece *piece = &p->piece[number];
    bool feed = !words && piece->length == 2 && !memcmp(p->bytes + piece->at, "\\n", 2);
    char *token = rm_calloc(1, (size_t)piece->length + 1);
    REQUIRE(token, MEMORY, "no memory for a token of %lld bytes", (long long)piece->length);
    memcpy(token, feed ? "\n" : (const char *)p->bytes + piece->at, feed ? 1 : (size_t)piece->length);
    bool sound = strlen(token) == (feed ? 1 : (size_t)piece->length) &&
                 !json_object_set_new(vocabulary, token, json_integer(number));
    rm_free(token);
    REQUIRE(sound, INVALID,
            "%s is not UTF-8, or has bytes that are 0, in token %lld of its vocabulary: convert it, or train on its "
            "bytes, without --tokenizer",
            source, (long long)number + 1);
    return REMAT_OK;
}

static json_t *split_of(bool words) {
    return words ? json_pack("{s:s}", "type", "WhitespaceSplit")
                 : json_pack("{s:s, s:{s:s}, s:s, s:b}", "type", "Split", "pattern", "Regex", "[\\s\\S]", "behavior",
                             "Isolated", "invert", 0);
}

static remat_status write_json(const rm_pieces *p, bool words, const char *source, uint8_t **json, size_t *size) {
    bool ends = words && rm_pieces_find(p, (const uint8_t *)RM_LINE_END, strlen(RM_LINE_END)) >= 0;
    json_t *vocabulary = json_object();
    json_t *root = json_pack("{s:s, s:o?, s:o, s:{s:s, s:O, s:s}}", "version", "1.0", "normalizer",
                             ends ? json_pack("{s:s, s:{s:s}, s:s}", "type", "Replace", "pattern", "String", "\n",
                                              "content", " " RM_LINE_END " ")
                                  : NULL,
                             "pre_tokenizer", split_of(words), "model", "type", "WordLevel", "vocab", vocabulary,
                             "unk_token", RM_UNKNOWN);
    remat_status status = REMAT_OK;
    for (int64_t i = 0; i < p->count && !status; i++) status = add_token(vocabulary, p, i, words, source);
    char *text = status ? NULL : json_dumps(root, JSON_INDENT(1));
    *size = text ? strlen(text) : 0;
    *json = text ? rm_malloc(*size) : NULL;
    if (*json) memcpy(*json, text, *size);
    if (!status && !*json) status = rm_fail(REMAT_MEMORY, "no memory for a vocabulary of %lld", (long long)p->count);
    free(text);
    json_decref(vocabulary);
    json_decref(root);
    return status;
}

static remat_status make_json(const char *tokenizer, const rm_vocabulary_texts *texts, const uint8_t *list,
                              size_t list_size, uint8_t **json, size_t *size) {
    rm_pieces p = {0};
    bool words = !strcmp(tokenizer, "words");
    const char *source = list ? tokenizer : texts ? texts->path[0] : NULL;
    remat_status status = list ? read_list(list, list_size, tokenizer, &p, &words) : make(words, texts, &p);
    if (!status && !p.count) status = rm_fail(REMAT_INVALID, "%s is empty: there are no tokens in it", source);
    if (!status) status = write_json(&p, words, source, json, size);
    rm_pieces_free(&p);
    return status;
}

remat_status rm_vocabulary_json(const char *tokenizer, const rm_vocabulary_texts *texts, uint8_t **json, size_t *size) {
    uint8_t *file;
    size_t file_size;
    *json = NULL;
    if (rm_vocabulary_is_made(tokenizer)) return make_json(tokenizer, texts, NULL, 0, json, size);
    TRY(rm_file_read(tokenizer, RM_TOKENIZER_FILE_BYTES, &file, &file_size));
    if (file_size && *file == '{') {
        *json = file;
        *size = file_size;
        return REMAT_OK;
    }
    remat_status status = make_json(tokenizer, NULL, file, file_size, json, size);
    rm_free(file);
    return status;
}
