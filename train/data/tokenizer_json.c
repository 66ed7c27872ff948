/* tokenizer_json.c: converts a tokenizer.json to tables, and refuses unsupported features by name. See tokenizer.h. */
#include "train/data/tokenizer_tables.h"

#include "memory/host.h"
#include "train/data/unicode.h"
#include "train/data/vocabulary.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_TOKENS = 1 << 20, LONGEST_TOKEN = 4096 };

typedef struct {
    const char *name; /* the file's, for messages */
    const json_t *root, *model, *vocab;
    int64_t *added_number; /* of each added token */
    rm_tokenizer *out;
} reader;

/* ---- Unsupported features ----------------------------------------------------------------------------------------- */

static bool is_off(const json_t *value) {
    return !value || json_is_null(value) || json_is_false(value) ||
           (json_is_string(value) && !json_string_length(value)) ||
           (json_is_number(value) && json_number_value(value) == 0);
}

static remat_status must_be_off(const reader *r, const json_t *object, const char *const *keys) {
    for (; *keys; keys++)
        REQUIRE(is_off(json_object_get(object, *keys)), INVALID,
                "%s has a `%s`, which is not supported: encode with the tokenizer's own library, and give the tokens "
                "as .npy with --vocab=N",
                r->name, *keys);
    return REMAT_OK;
}

/* The part must be missing or have the type of byte-level BPE. */
static remat_status must_be_byte_level(const reader *r, const char *key) {
    const json_t *part = json_object_get(r->root, key);
    const char *type = json_string_value(json_object_get(part, "type"));
    REQUIRE(!part || json_is_null(part) || (type && !strcmp(type, "ByteLevel")), INVALID,
            "%s has a `%s` of type %.40s, but only ByteLevel is supported: encode with the tokenizer's own library, "
            "and give the tokens as .npy with --vocab=N",
            r->name, key, type ? type : "?");
    return REMAT_OK;
}

/* A template may add tokens before and after a text. Is it one that adds none? */
static bool is_text_alone(const json_t *post_processor) {
    const json_t *type = json_object_get(post_processor, "type"), *single = json_object_get(post_processor, "single");
    return json_is_string(type) && !strcmp(json_string_value(type), "TemplateProcessing") &&
           json_array_size(single) == 1 && json_object_get(json_array_get(single, 0), "Sequence");
}

static remat_status check_pre_tokenizer(reader *r) {
    const json_t *part = json_object_get(r->root, "pre_tokenizer"), *regex = json_object_get(part, "use_regex");
    TRY(must_be_byte_level(r, "pre_tokenizer"));
    REQUIRE(json_is_object(part) && (!regex || json_is_true(regex)), INVALID,
            "%s has no pre-tokenizer that splits words; only ByteLevel with use_regex (GPT-2's) is supported: encode "
            "with the tokenizer's own library, and give the tokens as .npy with --vocab=N",
            r->name);
    r->out->space_first = json_is_true(json_object_get(part, "add_prefix_space"));
    return REMAT_OK;
}

static remat_status check_parts(reader *r) {
    static const char *const off[] = {"normalizer", "truncation", "padding", NULL};
    static const char *const off_in_model[] = {
        "dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback", "ignore_merges", NULL};
    const char *type = json_string_value(json_object_get(r->model, "type"));
    REQUIRE(json_is_object(r->model), INVALID, "%s has no model: give a tokenizer.json", r->name);
    REQUIRE(!type || !strcmp(type, "BPE"), INVALID,
            "%s has a model of type %.40s, but only BPE and WordLevel are supported", r->name, type);
    TRY(must_be_off(r, r->root, off));
    TRY(must_be_off(r, r->model, off_in_model));
    if (!is_text_alone(json_object_get(r->root, "post_processor"))) TRY(must_be_byte_level(r, "post_processor"));
    TRY(must_be_byte_level(r, "decoder"));
    return check_pre_tokenizer(r);
}

/* ---- Bytes as characters ------------------------------------------------------------------------------------------ */

/* ByteLevel writes each byte as a printable character: the byte itself if it is printable, else the next character
 * from U+0100 on. */
static bool shows_itself(int byte) {
    return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xFF && byte != 0xAD);
}

typedef struct {
    uint16_t character[256]; /* from byte to character */
    int16_t byte[324];       /* from character to byte; -1: none */
} byte_alphabet;

static byte_alphabet make_alphabet(void) {
    byte_alphabet a;
    uint16_t next = 0x100;
    memset(a.byte, 0xFF, sizeof a.byte);
    for (int b = 0; b < 256; b++) {
        a.character[b] = shows_itself(b) ? (uint16_t)b : next++;
        a.byte[a.character[b]] = (int16_t)b;
    }
    return a;
}

/* The bytes that a token of the vocabulary encodes. A token with characters outside the alphabet (<|a b|>) encodes its
 * own text. */
static int64_t bytes_of(const byte_alphabet *a, const char *token, size_t size, uint8_t *out) {
    const uint8_t *at = (const uint8_t *)token, *end = at + size;
    int64_t n = 0;
    for (size_t length; at < end; at += length) {
        uint32_t code = rm_utf8_first(at, (size_t)(end - at), &length);
        if (code >= 324 || a->byte[code] < 0) {
            memcpy(out, token, size);
            return (int64_t)size;
        }
        out[n++] = (uint8_t)a->byte[code];
    }
    return n;
}

/* ---- The vocabulary ----------------------------------------------------------------------------------------------- */

static remat_status check_id(const reader *r, const json_t *id, const char *token) {
    REQUIRE(json_is_integer(id) && json_integer_value(id) >= 0 && json_integer_value(id) < MOST_TOKENS, IO,
            "%s: the number of token '%.40s' is not in 0 to %d: save the file again", r->name, token, MOST_TOKENS - 1);
    return REMAT_OK;
}

static void make_room_for(const reader *r, int64_t number) {
    if (number >= r->out->vocabulary) r->out->vocabulary = number + 1;
}

static const json_t *added_tokens(const reader *r) { return json_object_get(r->root, "added_tokens"); }

/* The text of an added token, which may contain zero bytes. */
static const char *content_of(const json_t *added) { return json_string_value(json_object_get(added, "content")); }
static size_t length_of(const json_t *added) { return json_string_length(json_object_get(added, "content")); }

/* The token's number in the vocabulary; NULL: none. Keys in the vocabulary contain no zero bytes. */
static const json_t *known_number(const reader *r, const json_t *added) {
    const char *content = content_of(added);
    return strlen(content) == length_of(added) ? json_object_get(r->vocab, content) : NULL;
}

static bool same_content(const json_t *a, const json_t *b) {
    return length_of(a) == length_of(b) && !memcmp(content_of(a), content_of(b), length_of(a));
}

/* Numbers added tokens as `tokenizers` does, which ignores the number in the file: a token that the vocabulary lacks
 * gets the first number after the vocabulary and the earlier added tokens. */
static int64_t number_added(const reader *r, size_t i) {
    const json_t *list = added_tokens(r), *added = json_array_get(list, i), *known = known_number(r, added);
    int64_t next = (int64_t)json_object_size(r->vocab);
    if (known) return json_integer_value(known);
    for (size_t k = 0; k < i; k++) {
        if (same_content(json_array_get(list, k), added)) return r->added_number[k];
        if (r->added_number[k] >= next) next = r->added_number[k] + 1;
    }
    return next;
}

/* Counts the token numbers, and bounds the bytes of all tokens. */
static remat_status measure(reader *r, size_t *bytes) {
    const char *token;
    json_t *id;
    *bytes = 1;
    json_object_foreach((json_t *)r->vocab, token, id) {
        TRY(check_id(r, id, token));
        make_room_for(r, json_integer_value(id));
        *bytes += strlen(token);
    }
    r->added_number = rm_calloc(json_array_size(added_tokens(r)) + 1, sizeof *r->added_number);
    REQUIRE(r->added_number, MEMORY, "no memory for %zu added tokens", json_array_size(added_tokens(r)));
    for (size_t i = 0; i < json_array_size(added_tokens(r)); i++) {
        const json_t *added = json_array_get(added_tokens(r), i);
        REQUIRE(content_of(added) && length_of(added), IO, "%s has an added token without text: save the file again",
                r->name);
        TRY(check_id(r, json_object_get(added, "id"), content_of(added)));
        r->added_number[i] = number_added(r, i);
        make_room_for(r, r->added_number[i]);
        *bytes += length_of(added);
    }
    REQUIRE(json_object_size(r->vocab) > 0, IO, "%s has an empty vocabulary: save the file again", r->name);
    return REMAT_OK;
}

static remat_status make_room(reader *r) {
    size_t bytes, added = json_array_size(added_tokens(r));
    rm_tokenizer *t = r->out;
    TRY(measure(r, &bytes));
    t->piece = rm_malloc((size_t)t->vocabulary * sizeof *t->piece);
    t->bytes = rm_malloc(bytes);
    t->added = rm_malloc(added * sizeof *t->added);
    REQUIRE(t->piece && t->bytes && t->added, MEMORY, "no memory for %lld tokens", (long long)t->vocabulary);
    for (int64_t i = 0; i < t->vocabulary; i++) t->piece[i] = (rm_piece){.at = -1};
    return REMAT_OK;
}

/* Finds the token of each single byte. */
static void find_bytes(reader *r, const byte_alphabet *a) {
    for (int b = 0; b < 256; b++) {
        int c = a->character[b];
        char text[3] = {(char)c, 0, 0};
        if (c >= 0x80) text[0] = (char)(0xC0 | c >> 6), text[1] = (char)(0x80 | (c & 0x3F));
        const json_t *id = json_object_get(r->vocab, text);
        if (id) r->out->bpe.of_byte[b] = (int32_t)json_integer_value(id);
    }
}

static remat_status read_vocabulary(reader *r) {
    const byte_alphabet alphabet = make_alphabet();
    rm_tokenizer *t = r->out;
    const char *token;
    json_t *id;
    TRY(make_room(r));
    json_object_foreach((json_t *)r->vocab, token, id) {
        rm_piece *piece = &t->piece[json_integer_value(id)];
        REQUIRE(piece->at < 0, IO, "%s: two tokens have the number %lld: save the file again", r->name,
                (long long)json_integer_value(id));
        *piece = (rm_piece){t->n_bytes, bytes_of(&alphabet, token, strlen(token), t->bytes + t->n_bytes)};
        t->n_bytes += piece->length;
    }
    find_bytes(r, &alphabet);
    return REMAT_OK;
}

/* ---- Added tokens ------------------------------------------------------------------------------------------------- */

static remat_status add_token(reader *r, const json_t *added, int64_t id) {
    static const char *const off[] = {"single_word", "lstrip", "rstrip", NULL};
    rm_tokenizer *t = r->out;
    const char *content = content_of(added);
    int64_t said = json_integer_value(json_object_get(added, "id"));
    rm_piece *piece = &t->piece[id];
    const json_t *known = known_number(r, added);
    size_t length = length_of(added);
    TRY(must_be_off(r, added, off));
    REQUIRE(known ? said == id : piece->at < 0, IO,
            "%s: the added token '%.40s' has the number %lld, but another one in the vocabulary: save the file again",
            r->name, content, (long long)(known ? said : id));
    if (!known) {
        *piece = (rm_piece){t->n_bytes, (int64_t)length};
        memcpy(t->bytes + t->n_bytes, content, length);
        t->n_bytes += piece->length;
    }
    REQUIRE((size_t)piece->length == length && !memcmp(t->bytes + piece->at, content, length), INVALID,
            "%s: the added token '%.40s' is also the name of other bytes in the vocabulary: give it another text",
            r->name, content);
    int64_t at = t->n_added++;
    for (; at && t->piece[t->added[at - 1].id].length < piece->length; at--) t->added[at] = t->added[at - 1];
    t->begins_added[(uint8_t)*content] = true;
    t->added[at] = (rm_added_token){(int32_t)id, json_is_true(json_object_get(added, "normalized"))};
    return REMAT_OK;
}

static remat_status read_added_tokens(reader *r) {
    for (size_t i = 0; i < json_array_size(added_tokens(r)); i++)
        TRY(add_token(r, json_array_get(added_tokens(r), i), r->added_number[i]));
    return REMAT_OK;
}

/* ---- Merges ------------------------------------------------------------------------------------------------------- */

/* The two tokens of a merge and the merged token. */
typedef struct {
    char part[3][LONGEST_TOKEN];
} merge_text;

static bool join(const char *left, size_t left_length, const char *right, merge_text *out) {
    size_t right_length = strlen(right);
    if (left_length + right_length >= LONGEST_TOKEN) return false;
    snprintf(out->part[0], LONGEST_TOKEN, "%.*s", (int)left_length, left);
    snprintf(out->part[1], LONGEST_TOKEN, "%s", right);
    memcpy(out->part[2], left, left_length);
    memcpy(out->part[2] + left_length, right, right_length + 1);
    return true;
}

/* NULL if the value is not a string or contains zero bytes. */
static const char *plain_text(const json_t *value) {
    const char *text = json_string_value(value);
    return text && strlen(text) == json_string_length(value) ? text : NULL;
}

/* Reads "Ġ t" or ["Ġ", "t"]. False: malformed or too long. */
static bool read_pair(const json_t *merge, merge_text *out) {
    if (json_is_string(merge)) {
        const char *text = plain_text(merge), *space = text ? strchr(text, ' ') : NULL;
        return space && !strchr(space + 1, ' ') && join(text, (size_t)(space - text), space + 1, out);
    }
    const char *left = plain_text(json_array_get(merge, 0)), *right = plain_text(json_array_get(merge, 1));
    return left && right && json_array_size(merge) == 2 && join(left, strlen(left), right, out);
}

static remat_status read_merge(reader *r, const json_t *merge, int32_t rank) {
    merge_text text;
    int32_t id[3];
    REQUIRE(read_pair(merge, &text), IO,
            "%s: merge %d is not two tokens of less than %d bytes together: save the file again", r->name, rank,
            LONGEST_TOKEN);
    for (int i = 0; i < 3; i++) {
        const json_t *value = json_object_get(r->vocab, text.part[i]);
        REQUIRE(value, IO, "%s: merge %d needs the token '%.40s', which the vocabulary lacks: save the file again",
                r->name, rank, text.part[i]);
        id[i] = (int32_t)json_integer_value(value);
    }
    rm_bpe_add(&r->out->bpe, (rm_bpe_merge){.left = id[0], .right = id[1], .rank = rank, .merged = id[2]});
    return REMAT_OK;
}

static remat_status read_merges(reader *r, const json_t *merges) {
    size_t count = json_array_size(merges);
    for (size_t i = 0; i < count; i++) TRY(read_merge(r, json_array_get(merges, i), (int32_t)i));
    return REMAT_OK;
}

/* ---- Whole words, and characters ---------------------------------------------------------------------------------- */

static bool is_text(const json_t *object, const char *key, const char *text) {
    const char *value = json_string_value(json_object_get(object, key));
    return value && !strcmp(value, text);
}

/* Those that vocabulary.c writes. */
static remat_status check_whole_parts(reader *r) {
    static const char *const off[] = {"truncation", "padding", "post_processor", "decoder", NULL};
    const json_t *split = json_object_get(r->root, "pre_tokenizer"), *lines = json_object_get(r->root, "normalizer");
    bool words = is_text(split, "type", "WhitespaceSplit");
    bool chars = is_text(split, "type", "Split") && is_text(json_object_get(split, "pattern"), "Regex", "[\\s\\S]") &&
                 is_text(split, "behavior", "Isolated");
    bool ends = is_text(lines, "type", "Replace") && is_text(json_object_get(lines, "pattern"), "String", "\n") &&
                is_text(lines, "content", " " RM_LINE_END " ");
    TRY(must_be_off(r, r->root, off));
    REQUIRE((words || chars) && (is_off(lines) || (words && ends)) && !json_array_size(added_tokens(r)), INVALID,
            "%s has whole words as tokens (WordLevel); their pre_tokenizer must be WhitespaceSplit, or Split by "
            "[\\s\\S], and without added tokens: encode with the tokenizer's own library, and give the tokens as .npy "
            "with --vocab=N",
            r->name);
    r->out->cut = words ? RM_CUT_WORDS : RM_CUT_CHARS;
    return REMAT_OK;
}

/* The token of each number, which are 0 to their number - 1, each once. */
static remat_status order_tokens(const reader *r, const char **token) {
    size_t count = json_object_size(r->vocab);
    const char *name;
    json_t *id;
    json_object_foreach((json_t *)r->vocab, name, id) {
        int64_t number = json_is_integer(id) ? json_integer_value(id) : -1;
        bool sound = *name && number >= 0 && number < (int64_t)count && !token[number];
        REQUIRE(sound, IO, "%s: the number of token '%.40s' is not one of 0 to %zu, each once: save the file again",
                r->name, name, count - 1);
        token[number] = name;
    }
    return REMAT_OK;
}

static remat_status read_tokens(reader *r, const char **token) {
    rm_tokenizer *t = r->out;
    const char *unknown = json_string_value(json_object_get(r->model, "unk_token"));
    TRY(order_tokens(r, token));
    for (size_t i = 0; i < json_object_size(r->vocab); i++)
        TRY(rm_pieces_add(&t->whole, (const uint8_t *)token[i], strlen(token[i])));
    bool ends = !is_off(json_object_get(r->root, "normalizer"));
    t->unknown = unknown ? rm_pieces_find(&t->whole, (const uint8_t *)unknown, strlen(unknown)) : -1;
    t->line_end = ends ? rm_pieces_find(&t->whole, (const uint8_t *)RM_LINE_END, strlen(RM_LINE_END)) : -1;
    t->piece = t->whole.piece;
    t->bytes = t->whole.bytes;
    t->vocabulary = t->whole.count;
    return REMAT_OK;
}

static remat_status read_whole(reader *r) {
    size_t count = json_object_size(r->vocab);
    TRY(check_whole_parts(r));
    REQUIRE(count && count <= MOST_TOKENS, IO, "%s has %zu tokens; 1 to %d are supported", r->name, count, MOST_TOKENS);
    const char **token = rm_calloc(count, sizeof *token);
    REQUIRE(token, MEMORY, "no memory for %zu tokens", count);
    remat_status status = read_tokens(r, token);
    rm_free(token);
    return status;
}

/* ---- The file ----------------------------------------------------------------------------------------------------- */

static remat_status read_tables(reader *r) {
    r->model = json_object_get(r->root, "model");
    r->vocab = json_object_get(r->model, "vocab");
    const json_t *merges = json_object_get(r->model, "merges");
    if (is_text(r->model, "type", "WordLevel")) return read_whole(r);
    TRY(check_parts(r));
    REQUIRE(json_is_object(r->vocab) && json_is_array(merges) && json_array_size(merges) < MOST_TOKENS, IO,
            "%s has no vocabulary or no list of merges: save the file again", r->name);
    for (size_t i = 0; i < json_array_size(added_tokens(r)); i++)
        REQUIRE(json_is_object(json_array_get(added_tokens(r), i)), IO,
                "%s: added token %zu is not an object: save the file again", r->name, i);
    TRY(rm_bpe_create((int64_t)json_array_size(merges), &r->out->bpe));
    TRY(read_vocabulary(r));
    TRY(read_merges(r, merges));
    return read_added_tokens(r);
}

remat_status rm_tokenizer_parse(const char *text, size_t size, const char *name, rm_tokenizer **out) {
    json_error_t error;
    *out = NULL;
    json_t *root = json_loadb(text, size, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    REQUIRE(root, IO, "%s is not valid JSON, in line %d: %s: save the file again", name, error.line, error.text);
    rm_tokenizer *t = rm_calloc(1, sizeof *t);
    reader r = {.name = name, .root = root, .out = t};
    remat_status status = t ? read_tables(&r) : rm_fail(REMAT_MEMORY, "no memory for the tokenizer %s", name);
    json_decref(root);
    rm_free(r.added_number);
    if (status)
        rm_tokenizer_free(t);
    else
        *out = t;
    return status;
}

remat_status rm_tokenizer_read(const char *path, rm_tokenizer **out) {
    uint8_t *text;
    size_t size;
    *out = NULL;
    TRY(rm_vocabulary_json(path, NULL, &text, &size));
    remat_status status = rm_tokenizer_parse((const char *)text, size, path, out);
    rm_free(text);
    return status;
}
