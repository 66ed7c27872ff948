/* tokenizer.h: byte-level BPE with the tokenizer.json that PyPI's `tokenizers` writes (GPT-2's, and those trained with its
 * ByteLevel pre-tokenizer). Converts text to tokens and back, with exactly the tokens of that library.
 *
 *     text ── split at added tokens ── split into words (words.h) ── one token per byte ── merge pairs, lowest rank first
 *
 * Tokens can also be whole words or single characters (vocabulary.h); then nothing else is searched for in a text.
 *
 * Files that need other features (a normalizer, another pre-tokenizer, a post-processor that adds tokens, ...) are refused.
 * Invalid UTF-8 is encoded byte by byte. Reads from memory, so a fuzzer can drive it. */
#ifndef RM_TOKENIZER_H
#define RM_TOKENIZER_H

#include "train/data/bpe.h"

typedef struct rm_tokenizer rm_tokenizer;

#define RM_TOKENIZER_FILE_BYTES ((uint64_t)256 << 20) /* the largest file that is read */

/* IO: the file is damaged; INVALID: it needs an unsupported feature. `name` is for messages. *out is NULL unless OK. */
remat_status rm_tokenizer_parse(const char *text, size_t size, const char *name, rm_tokenizer **out);
remat_status rm_tokenizer_read(const char *path, rm_tokenizer **out);
void rm_tokenizer_free(rm_tokenizer *tokenizer); /* NULL allowed */

/* The largest token number in the file, plus 1. */
int64_t rm_tokenizer_vocabulary(const rm_tokenizer *tokenizer);

/* The model's vocabulary for --vocab=`said`; 0 means the tokenizer's own. INVALID: `said` is less than that. */
remat_status rm_tokenizer_fit(const rm_tokenizer *tokenizer, const char *name, int64_t said, int64_t *vocabulary);
remat_status rm_tokenizer_fit_file(const char *path, int64_t said, int64_t *vocabulary);

/* Appends the tokens of a text; tokenizer NULL: its bytes. INVALID when the vocabulary lacks a byte of the text. Free tokens->id
 * with rm_free. */
remat_status rm_tokenizer_encode(const rm_tokenizer *tokenizer, const uint8_t *text, size_t size, rm_tokens *tokens);

/* The text of a token, which may end in the middle of a character; empty for an unused number. Borrowed. */
const uint8_t *rm_tokenizer_decode(const rm_tokenizer *tokenizer, int64_t id, size_t *length);
/* Writes a token's text to standard output, after the token `before` (-1: none), which a space separates from it between words;
 * tokenizer NULL: the byte. */
void rm_tokenizer_print(const rm_tokenizer *tokenizer, int64_t before, int64_t id);
/* Whether decoding the tokens of a text gives back all of its bytes. */
bool rm_tokenizer_keeps_bytes(const rm_tokenizer *tokenizer);
const char *rm_tokenizer_cut(const rm_tokenizer *tokenizer); /* "words" or "chars", for --tokenizer; "": byte-level BPE */

#endif
