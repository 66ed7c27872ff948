/* test_tokenizer.c: byte-level BPE: the tokens of PyPI's `tokenizers` (tests/golden/make_tokenizer.py), and back; what a
 * tokenizer.json may not ask for. */
#include "train/data/tokenizer.h"

#include "memory/host.h"
#include "tests/golden/golden.h"
#include "tests/train/train_test.h"
#include "train/data/unicode.h"
#include "train/data/words.h"
#include "train/file.h"

/* A file of three tokens, but for what closes it. */
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

START_TEST(tokens_are_those_of_tokenizers) {
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

/* The texts of the tokens, one behind the other, are the text. */
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

/* Of any bytes, no UTF-8 too; of one word of 200,000 bytes, which takes as long as as many short ones; of nothing. */
START_TEST(text_comes_back) {
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
    word = malloc(2); /* a character that is cut off: nothing is read behind it */
    memcpy(word, "\xE2\x82", 2);
    there_and_back(t, word, 2);
    free(word);
    rm_free(text.data);
    rm_tokenizer_free(t);
}
END_TEST

START_TEST(numbers_may_be_left_out) {
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

/* What `tokenizers` 0.23.3 makes of these files: an added token comes behind the vocabulary and the added ones before it, whatever
 * number the file has for it. */
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

/* ---- Words and characters ----------------------------------------------------------------------------------------- */

START_TEST(words_are_cut_as_gpt_2_cuts_them) {
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

/* Unicode 16's. */
START_TEST(every_character_has_a_kind) {
    int64_t count[4] = {0};
    for (uint32_t c = 0; c < 0x110000; c++) count[rm_char_kind_of(c)]++;
    ck_assert_int_eq(count[RM_CHAR_LETTER], 141028);
    ck_assert_int_eq(count[RM_CHAR_NUMBER], 1911);
    ck_assert_int_eq(count[RM_CHAR_SPACE], 25);
}
END_TEST

/* ---- What is refused ---------------------------------------------------------------------------------------------- */

START_TEST(what_is_not_here_is_named) {
    static const struct {
        remat_status status;
        const char *json, *part;
    } cases[] = {
        {REMAT_IO, "{", "not JSON"},
        {REMAT_INVALID, "[]", "no model"},
        {REMAT_INVALID, "{" MODEL "}}", "no pre-tokenizer"},
        {REMAT_INVALID, "{" MODEL "},\"pre_tokenizer\":{\"type\":\"Sequence\"}}", "`pre_tokenizer` of type Sequence"},
        {REMAT_INVALID, "{" MODEL "},\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"use_regex\":false}}", "use_regex"},
        {REMAT_INVALID, "{" MODEL "},\"normalizer\":{\"type\":\"NFC\"}" WORDS "}", "`normalizer`"},
        {REMAT_INVALID, "{" MODEL "},\"truncation\":{}" WORDS "}", "`truncation`"},
        {REMAT_INVALID, "{" MODEL "},\"post_processor\":{\"type\":\"TemplateProcessing\"}" WORDS "}",
         "`post_processor` of type TemplateProcessing"},
        {REMAT_INVALID,
         "{" MODEL "},\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{}}]}" WORDS
         "}",
         "`post_processor` of type TemplateProcessing"},
        {REMAT_INVALID, "{" MODEL "},\"decoder\":{\"type\":\"WordPiece\"}" WORDS "}", "`decoder`"},
        {REMAT_INVALID, "{" MODEL ",\"type\":\"Unigram\"}" WORDS "}", "type Unigram"},
        {REMAT_INVALID, "{" MODEL ",\"dropout\":0.1}" WORDS "}", "`dropout`"},
        {REMAT_INVALID, "{" MODEL ",\"end_of_word_suffix\":\"</w>\"}" WORDS "}", "`end_of_word_suffix`"},
        {REMAT_INVALID, "{" MODEL ",\"ignore_merges\":true}" WORDS "}", "`ignore_merges`"},
        {REMAT_INVALID, "{" MODEL "},\"added_tokens\":[{\"id\":3,\"content\":\"x\",\"lstrip\":true}]" WORDS "}",
         "`lstrip`"},
        {REMAT_IO, "{" MODEL "},\"added_tokens\":[{\"id\":3}]" WORDS "}", "without a text"},
        {REMAT_IO,
         "{\"model\":{\"vocab\":{\"a\":1},\"merges\":[]},\"added_tokens\":[{\"id\":2,\"content\":\"x\"}]" WORDS "}",
         "says otherwise"},
        {REMAT_IO, "{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a\\u0000 a\"]}" WORDS "}", "two tokens of"},
        {REMAT_IO, "{" MODEL "},\"added_tokens\":[{\"id\":3,\"content\":\"ab\"}]" WORDS "}", "says otherwise"},
        {REMAT_IO, "{" MODEL "},\"added_tokens\":[7]" WORDS "}", "is none"},
        {REMAT_INVALID,
         "{\"model\":{\"vocab\":{\"\u00e1\":0},\"merges\":[]},\"added_tokens\":[{\"id\":0,\"content\":\"\u00e1\"}"
         "]" WORDS "}",
         "other bytes"},
        {REMAT_IO, "{\"model\":{\"vocab\":{\"a\":0}}" WORDS "}", "no list of merges"},
        {REMAT_IO, "{\"model\":{\"vocab\":{},\"merges\":[]}" WORDS "}", "empty"},
        {REMAT_IO, "{\"model\":{\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]}" WORDS "}", "two tokens"},
        {REMAT_IO, "{\"model\":{\"vocab\":{\"a\":-1},\"merges\":[]}" WORDS "}", "no number"},
        {REMAT_IO, "{\"model\":{\"vocab\":{\"a\":\"0\"},\"merges\":[]}" WORDS "}", "no number"},
        {REMAT_IO, "{\"model\":{\"vocab\":{\"a\":1048576},\"merges\":[]}" WORDS "}", "no number"},
        {REMAT_IO, "{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a b\"]}" WORDS "}", "lacks"},
        {REMAT_IO, "{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a\"]}" WORDS "}", "two tokens of"},
        {REMAT_IO, "{\"model\":{\"vocab\":{\"a\":0},\"merges\":[[\"a\"]]}" WORDS "}", "two tokens of"},
        {REMAT_IO, "{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a a a\"]}" WORDS "}", "two tokens of"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rm_tokenizer *t;
        ck_fails(rm_tokenizer_parse(cases[i].json, strlen(cases[i].json), "t.json", &t), cases[i].status,
                 cases[i].part);
        ck_assert_ptr_null(t);
    }
}
END_TEST

START_TEST(a_byte_that_the_vocabulary_lacks) {
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
    tcase_add_loop_test(tests, tokens_are_those_of_tokenizers, 0, 2);
    tcase_add_test(tests, text_comes_back);
    tcase_add_test(tests, numbers_may_be_left_out);
    tcase_add_test(tests, added_tokens_are_numbered_as_tokenizers_does);
    tcase_add_test(tests, words_are_cut_as_gpt_2_cuts_them);
    tcase_add_test(tests, every_character_has_a_kind);
    tcase_add_test(tests, what_is_not_here_is_named);
    tcase_add_test(tests, a_byte_that_the_vocabulary_lacks);
    return run_suite("tokenizer", tests);
}
