/* fuzz_tokenizer.c: any bytes as a tokenizer.json. An accepted tokenizer must encode a text or name a byte that it
 * lacks. The joined texts of the tokens must equal the text, except for a space added in front, unless whole words are
 * tokens. */
#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory/host.h"
#include "train/data/tokenizer.h"

#define VOCABULARY                                                                                                     \
    "\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"\xC4\xA0\":3,\"\xC4\xA0"                                                    \
    "a\":4,\"abab\":5,\"'\":6,\"s\":7,\"'s\":8,\"\xC3\xA9\":9,\"\xC3\x83\":10,"                                        \
    "\"\xC2\xA9\":11,\"\xC3\x83\xC2\xA9\":12,\"\xC4\x8A\":13,\"1\":14,\"<e>\":18,\"<\":15,\"e\":16,\">\":17}"
#define SEED(text)                                                                                                     \
    { text, sizeof text - 1 }
static const fuzz_seed seeds[] = {
    SEED(
        "{\"version\":\"1.0\",\"truncation\":null,\"added_tokens\":[{\"id\":18,\"content\":\"<e>\",\"lstrip\":false,"
        "\"normalized\":"
        "false}],\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_"
        "regex\":true},"
        "\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":"
        "null," VOCABULARY
        ",\"merges\":[[\"a\",\"b\"],[\"ab\",\"ab\"],[\"\xC4\xA0\",\"a\"],[\"'\",\"s\"],[\"\xC3\x83\",\"\xC2\xA9\"]]}}"),
    SEED("{\"added_tokens\":[{\"id\":30,\"content\":\"ab a\",\"normalized\":true},{\"id\":31,\"content\":\"b \"}],"
         "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true},\"model\":{" VOCABULARY
         ",\"merges\":[\"a b\",\"ab ab\",\"\xC4\xA0 a\",\"' s\",\"\xC3\x83 \xC2\xA9\"]}}"),
    SEED("{\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\"\\n\"},\"content\":\" <eos> \"},"
         "\"pre_tokenizer\":{\"type\":\"WhitespaceSplit\"},\"model\":{\"type\":\"WordLevel\",\"unk_token\":\"<unk>\","
         "\"vocab\":{\"a\":0,\"1\":2,\"<eos>\":1,\"<unk>\":3}}}"),
    SEED("{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[\\\\s\\\\S]\"},\"behavior\":\"Isolated\"},"
         "\"model\":{\"type\":\"WordLevel\",\"unk_token\":\"?\",\"vocab\":{\"a\":0,\"b\":1,\"?\":2}}}"),
};
enum { SEEDS = sizeof seeds / sizeof seeds[0] };

static const uint8_t text[] = "ababa's a 1\n\xC3\xA9 <e>abab aab  b '1<e> <e\xC3 ";

const fuzz_seed *rm_fuzz_seeds(size_t *count) {
    for (int i = 0; i < SEEDS; i++) {
        rm_tokenizer *t;
        if (rm_tokenizer_parse(seeds[i].bytes, seeds[i].size, "seed", &t))
            fprintf(stderr, "%s\n", remat_last_error()), abort();
        rm_tokenizer_free(t);
    }
    *count = SEEDS;
    return seeds;
}

/* Compares a token's text and advances; skips a space that was added in front. */
static size_t follow(size_t at, const uint8_t *piece, size_t length) {
    for (size_t i = 0; i < length; i++) {
        if (at < sizeof text - 1 && text[at] == piece[i])
            at++;
        else if (piece[i] != ' ')
            abort();
    }
    return at;
}

static void encode(const rm_tokenizer *t) {
    rm_tokens tokens = {0};
    size_t at = 0, length;
    remat_status status = rm_tokenizer_encode(t, text, sizeof text - 1, &tokens);
    if (status && (status != REMAT_INVALID || !*remat_last_error())) abort();
    for (int64_t i = 0; i < tokens.count && !status; i++) {
        if (tokens.id[i] < 0 || tokens.id[i] >= rm_tokenizer_vocabulary(t)) abort();
        const uint8_t *piece = rm_tokenizer_decode(t, tokens.id[i], &length);
        if (rm_tokenizer_keeps_bytes(t)) at = follow(at, piece, length);
    }
    if (!status && rm_tokenizer_keeps_bytes(t) && at != sizeof text - 1) abort();
    rm_free(tokens.id);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    rm_tokenizer *t;
    remat_status status = rm_tokenizer_parse((const char *)data, size, "input", &t);
    if (status && (t || !*remat_last_error())) abort();
    if (!status) encode(t);
    rm_tokenizer_free(t);
    return 0;
}
