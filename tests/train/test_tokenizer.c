/* test_tokenizer.c: byte-level BPE: the same tokens as PyPI's `tokenizers` (tests/golden/make_tokenizer.py), decoding,
 * and unsupported features of a tokenizer.json. */
#include "train/data/tokenizer.h"

#include "memory/host.h"
#include "tests/golden/golden.h"
#include "tests/train/train_test.h"
#include "train/data/unicode.h"
#include "train/data/words.h"
#include "train/file.h"

/* A file of three tokens, without its closing part. */
#define MODEL "\"model\":{\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]"
#define WORDS ",\"pre_tokenizer\":{\"type\":\"ByteLevel\"}"

typedef struct {
    uint8_t *data;
    size_t size;
} bytes;

static bytes golden_file(const char *name) {
    char path[512];
    bytes b;
    snprintf(path, sizeof path, "%s/tests/golden/%s", RM_SOURCE_DIR, name);
    ck_ok(rm_file_read(path, 1 << 20, &b.data, &b.size));
    return b;
}

static rm_tokenizer *golden_tokenizer(const char *name) {
    char file[64];
    rm_tokenizer *t;
    snprintf(file, sizeof file, "%s.json", name);
    bytes json = golden_file(file);
    ck_ok(rm_tokenizer_parse((const char *)json.data, json.size, file, &t));
    rm_free(json.data);
    return t;
}

static const char *const names[] = {"tokenizer", "tokenizer_strings"};

START_TEST(tokens_match_tokenizers) {
    golden *g = golden_open("tokenizer");
    const golden_array *expected = golden_find(g, names[_i], NULL);
    bytes text = golden_file("tokenizer.txt");
    rm_tokenizer *t = golden_tokenizer(names[_i]);
    rm_tokens tokens = {0};
    ck_ok(rm_tokenizer_encode(t, text.data, text.size, &tokens));
    for (int64_t i = 0; i < tokens.count && i < expected->count; i++)
        ck_assert_msg(tokens.id[i] == ((int32_t *)expected->data)[i], "%s: token %lld is %d, not %d", names[_i],
                      (long long)i, tokens.id[i], ((int32_t *)expected->data)[i]);
    ck_assert_int_eq(tokens.count, expected->count);
    rm_free(tokens.id);
    rm_free(text.data);
    rm_tokenizer_free(t);
    golden_close(g);
}
END_TEST

/* The concatenated texts of the tokens are the text. */
static void there_and_back(const rm_tokenizer *t, const uint8_t *text, size_t size) {
    rm_tokens tokens = {0};
    size_t at = 0, length;
    ck_ok(rm_tokenizer_encode(t, text, size, &tokens));
    for (int64_t i = 0; i < tokens.count; i++, at += length) {
        ck_assert_int_lt(tokens.id[i], rm_tokenizer_vocabulary(t));
        const uint8_t *piece = rm_tokenizer_decode(t, tokens.id[i], &length);
        ck_assert(length > 0 && length <= size - at && !memcmp(piece, text + at, length));
    }
    ck_assert_uint_eq(at, size);
    rm_free(tokens.id);
}

/* Any bytes, also invalid UTF-8; one word of 200,000 bytes, which takes no longer than many short ones; an empty
 * text. */
START_TEST(decoded_tokens_give_the_text) {
    enum { LONG = 200000 };
    rm_tokenizer *t = golden_tokenizer("tokenizer");
    bytes text = golden_file("tokenizer.txt");
    there_and_back(t, text.data, text.size);
    there_and_back(t, text.data, 0);
    uint8_t *word = malloc(LONG);
    memset(word, 'e', LONG);
    there_and_back(t, word, LONG);
    uint32_t x = 1;
    for (int i = 0; i < LONG; i++) word[i] = (uint8_t)((x = x * 1664525 + 1013904223) >> 24);
    there_and_back(t, word, LONG);
    free(word);
    word = malloc(2); /* a truncated character: nothing is read after it */
    memcpy(word, "\xE2\x82", 2);
    there_and_back(t, word, 2);
    free(word);
    rm_free(text.data);
    rm_tokenizer_free(t);
}
END_TEST

START_TEST(added_token_numbers_may_have_gaps) {
    static const char json[] = "{\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"Sequence\":{}}]},"
                               "\"added_tokens\":[{\"id\":3,\"content\":\"b a\"}],\"model\":{\"vocab\":{\"a\":0,\"b\":"
                               "1,\"ab\":5},\"merges\":[]}" WORDS "}";
    size_t length;
    rm_tokenizer *t;
    ck_ok(rm_tokenizer_parse(json, sizeof json - 1, "t.json", &t));
    ck_assert_int_eq(rm_tokenizer_vocabulary(t), 6);
    ck_assert(!memcmp(rm_tokenizer_decode(t, 3, &length), "b a", 3) && length == 3);
    for (int i = 0; i < 3; i++) {
        rm_tokenizer_decode(t, (int[]){-1, 4, 6}[i], &length);
        ck_assert_uint_eq(length, 0);
    }
    rm_tokenizer_free(t);
}
END_TEST

/* As `tokenizers` 0.23.3 reads these files: an added token is numbered after the vocabulary and the earlier added
 * tokens, whatever its number in the file. */
START_TEST(added_tokens_are_numbered_as_tokenizers_does) {
    static const struct {
        const char *added, *text;
        size_t bytes;
        int32_t id[4];
        int64_t vocabulary;
    } cases[] = {
        {"{\"id\":9,\"content\":\"<x>\"}", "ab<x>a", 6, {2, 3, 0, -1}, 4},
        {"{\"id\":9,\"content\":\"<x>\"},{\"id\":3,\"content\":\"<y>\"}", "<x>a<y>", 7, {3, 0, 4, -1}, 5},
        {"{\"id\":3,\"content\":\"<x>\"},{\"id\":7,\"content\":\"<y>\"}", "<x>a<y>", 7, {3, 0, 4, -1}, 5},
        {"{\"id\":1,\"content\":\"b\"},{\"id\":2,\"content\":\"<y>\"}", "ba<y>", 5, {1, 0, 3, -1}, 4},
        {"{\"id\":3,\"content\":\"n\\u0000l\"},{\"id\":4,\"content\":\"n\"}", "an\0lan", 6, {0, 3, 0, 4}, 5},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char json[400];
        rm_tokenizer *t;
        rm_tokens tokens = {0};
        int n = snprintf(json, sizeof json, "{" MODEL "},\"added_tokens\":[%s]" WORDS "}", cases[i].added);
        ck_ok(rm_tokenizer_parse(json, (size_t)n, "t.json", &t));
        ck_assert_int_eq(rm_tokenizer_vocabulary(t), cases[i].vocabulary);
        ck_ok(rm_tokenizer_encode(t, (const uint8_t *)cases[i].text, cases[i].bytes, &tokens));
        for (int64_t k = 0; k < 4; k++)
            ck_assert_msg((k < tokens.count ? tokens.id[k] : -1) == cases[i].id[k], "%s: token %lld", cases[i].added,
                          (long long)k);
        rm_free(tokens.id);
        rm_tokenizer_free(t);
    }
}
END_TEST

/* ---- Words and characters --------------------------------------------------------------------------------------- */

START_TEST(words_are_split_as_in_gpt_2) {
    static const struct {
        const char *text;
        int length[8];
    } words[] = {
        {"It's  12 o'clock", {2, 2, 1, 3, 2, 1, 5}},
        {"we'll'S", {2, 3, 1, 1}},
        {"a! 's", {1, 1, 2, 1}},
        {"a  \n b", {1, 3, 2}},
        {"a \nb", {1, 1, 1, 1}},
        {"a  ", {1, 2}},
        {"\xC2\xA0\xC2\xA0x", {2, 2, 1}},
        {"1\xC2\xBD"
         "a",
         {3, 1}},
        {"\xFF\xC3(", {3}},
    };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        const uint8_t *at = (const uint8_t *)words[i].text, *end = at + strlen(words[i].text);
        for (int w = 0; at < end; w++) {
            size_t length = rm_word_length(at, (size_t)(end - at));
            ck_assert_msg((int)length == words[i].length[w], "\"%s\": word %d has %zu bytes", words[i].text, w, length);
            at += length;
        }
    }
}
END_TEST

/* The classes of Unicode 16. */
START_TEST(characters_have_unicode_classes) {
    int64_t count[4] = {0};
    for (uint32_t c = 0; c < 0x110000; c++) count[rm_char_kind_of(c)]++;
    ck_assert_int_eq(count[RM_CHAR_LETTER], 141028);
    ck_assert_int_eq(count[RM_CHAR_NUMBER], 1911);
    ck_assert_int_eq(count[RM_CHAR_SPACE], 25);
}
END_TEST

/* ---- Refusals --------------------------------------------------------------------------------------------------- */

START_TEST(unsupported_features_are_refused) {
    static const struct {
        remat_status status;
        const char *json, *part;
    } cases[] = {
        {REMAT_IO, "{", "JSON"},
        {REMAT_INVALID, "[]", "model"},
        {REMAT_INVALID, "{" MODEL "}}", "tokenizer"},
        {REMAT_INVALID, "{" MODEL "},\"pre_tokenizer\":{\"type\":\"Sequence\"}}", "pre_tokenizer|Sequence"},
        {REMAT_INVALID, "{" MODEL "},\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"use_regex\":false}}", "use_regex"},
        {REMAT_INVALID, "{" MODEL "},\"normalizer\":{\"type\":\"NFC\"}" WORDS "}", "`normalizer`"},
        {REMAT_INVALID, "{" MODEL "},\"truncation\":{}" WORDS "}", "`truncation`"},
        {REMAT_INVALID, "{" MODEL "},\"post_processor\":{\"type\":\"TemplateProcessing\"}" WORDS "}",
         "post_processor|TemplateProcessing"},
        {REMAT_INVALID,
         "{" MODEL "},\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{}}]}" WORDS
         "}",
         "post_processor|TemplateProcessing"},
        {REMAT_INVALID, "{" MODEL "},\"decoder\":{\"type\":\"WordPiece\"}" WORDS "}", "`decoder`"},
        {REMAT_INVALID, "{" MODEL ",\"type\":\"Unigram\"}" WORDS "}", "type Unigram"},
        {REMAT_INVALID, "{" MODEL ",\"dropout\":0.1}" WORDS "}", "`dropout`"},
        {REMAT_INVALID, "{" MODEL ",\"end_of_word_suffix\":\"</w>\"}" WORDS "}", "`end_of_word_suffix`"},
        {REMAT_INVALID, "{" MODEL ",\"ignore_merges\":true}" WORDS "}", "`ignore_merges`"},
        {REMAT_INVALID, "{" MODEL "},\"added_tokens\":[{\"id\":3,\"content\":\"x\",\"lstrip\":true}]" WORDS "}",
         "`lstrip`"},
        {REMAT_IO, "{" MODEL "},\"added_tokens\":[{\"id\":3}]" WORDS "}", "text"},
        {REMAT_IO,
         "{\"model\":{\"vocab\":{\"a\":1},\"merges\":[]},\"added_tokens\":[{\"id\":2,\"content\":\"x\"}]" WORDS "}",
         "added token|number 1|vocabulary"},
        {REMAT_IO, "{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a\\u0000 a\"]}" WORDS "}", "tokens"},
        {REMAT_IO, "{" MODEL "},\"added_tokens\":[{\"id\":3,\"content\":\"ab\"}]" WORDS "}",
         "added token|number 3|vocabulary"},
        {REMAT_IO, "{" MODEL "},\"added_tokens\":[7]" WORDS "}", "added token 0|object"},
        {REMAT_INVALID,
         "{\"model\":{\"vocab\":{\"\u00e1\":0},\"merges\":[]},\"added_tokens\":[{\"id\":0,\"content\":\"\u00e1\"}"
         "]" WORDS "}",
         "other bytes"},
        {REMAT_IO, "{\"model\":{\"vocab\":{\"a\":0}}" WORDS "}", "merges"},
        {REMAT_IO, "{\"model\":{\"vocab\":{},\"merges\":[]}" WORDS "}", "empty"},
        {REMAT_IO, "{\"model\":{\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]}" WORDS "}", "tokens"},
        {REMAT_IO, "{\"model\":{\"vocab\":{\"a\":-1},\"merges\":[]}" WORDS "}", "number"},
        {REMAT_IO, "{\"model\":{\"vocab\":{\"a\":\"0\"},\"merges\":[]}" WORDS "}", "number"},
        {REMAT_IO, "{\"model\":{\"vocab\":{\"a\":1048576},\"merges\":[]}" WORDS "}", "number"},
        {REMAT_IO, "{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a b\"]}" WORDS "}", "lacks"},
        {REMAT_IO, "{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a\"]}" WORDS "}", "tokens"},
        {REMAT_IO, "{\"model\":{\"vocab\":{\"a\":0},\"merges\":[[\"a\"]]}" WORDS "}", "tokens"},
        {REMAT_IO, "{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a a a\"]}" WORDS "}", "tokens"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rm_tokenizer *t;
        ck_fails(rm_tokenizer_parse(cases[i].json, strlen(cases[i].json), "t.json", &t), cases[i].status,
                 cases[i].part);
        ck_assert_ptr_null(t);
    }
}
END_TEST

START_TEST(bytes_missing_from_the_vocabulary_are_refused) {
    static const char json[] = "{" MODEL "}" WORDS "}";
    rm_tokenizer *t;
    rm_tokens tokens = {0};
    ck_ok(rm_tokenizer_parse(json, sizeof json - 1, "t.json", &t));
    ck_ok(rm_tokenizer_encode(t, (const uint8_t *)"abba", 4, &tokens));
    ck_assert(tokens.count == 3 && tokens.id[0] == 2 && tokens.id[1] == 1 && tokens.id[2] == 0);
    ck_fails(rm_tokenizer_encode(t, (const uint8_t *)"abc", 3, &tokens), REMAT_INVALID, "0x63");
    rm_free(tokens.id);
    rm_tokenizer_free(t);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("tokenizer");
    tcase_add_loop_test(tests, tokens_match_tokenizers, 0, 2);
    tcase_add_test(tests, decoded_tokens_give_the_text);
    tcase_add_test(tests, added_token_numbers_may_have_gaps);
    tcase_add_test(tests, added_tokens_are_numbered_as_tokenizers_does);
    tcase_add_test(tests, words_are_split_as_in_gpt_2);
    tcase_add_test(tests, characters_have_unicode_classes);
    tcase_add_test(tests, unsupported_features_are_refused);
    tcase_add_test(tests, bytes_missing_from_the_vocabulary_are_refused);
    return run_suite("tokenizer", tests);
}
