/* tokenizer.h: byte-level BPE, from the tokenizer.json that PyPI's `tokenizers` writes (GPT-2's, and those trained with its
 * ByteLevel pre-tokenizer): from text to tokens and back, token for token what that library makes.
 *
 *     text ── added tokens cut out ── words (words.h) ── bytes, each a token ── the merge of the lowest rank, again and again
 *
 * A file that asks for more (a normalizer, another pre-tokenizer, a post-processor that adds tokens, ...) is refused. What is no
 * UTF-8 is encoded byte by byte. Works on memory, so a fuzzer can drive it. */
#ifndef RM_TOKENIZER_H
#define RM_TOKENIZER_H

#include "train/data/bpe.h"

typedef struct rm_tokenizer rm_tokenizer;

#define RM_TOKENIZER_FILE_BYTES ((uint64_t)256 << 20) /* the most that is read of one */

/* IO: the file is damaged; INVALID: it asks for what is not here. `name` is for the sentence. *out is NULL unless OK. */
remat_status rm_tokenizer_parse(const char *text, size_t size, const char *name, rm_tokenizer **out);
remat_status rm_tokenizer_read(const char *path, rm_tokenizer **out);
void rm_tokenizer_free(rm_tokenizer *tokenizer); /* NULL allowed */

/* Tokens are numbers below this: the largest that the file has, and one. */
int64_t rm_tokenizer_vocabulary(const rm_tokenizer *tokenizer);

/* How many tokens a model has whose --vocab is `said`: 0: as many as there are; INVALID: less. */
remat_status rm_tokenizer_fit(const rm_tokenizer *tokenizer, const char *name, int64_t said, int64_t *vocabulary);
remat_status rm_tokenizer_fit_file(const char *path, int64_t said, int64_t *vocabulary);

/* Adds the tokens of a text; tokenizer NULL: its bytes. INVALID when it has a byte that the vocabulary lacks. tokens->id is the caller's, freed with rm_free. */
remat_status rm_tokenizer_encode(const rm_tokenizer *tokenizer, const uint8_t *text, size_t size, rm_tokens *tokens);

/* The text of a token, which may end within a character; empty of a number that no token has. Borrowed. */
const uint8_t *rm_tokenizer_decode(const rm_tokenizer *tokenizer, int64_t id, size_t *length);
/* ... to the standard output; tokenizer NULL: the byte. */
void rm_tokenizer_print(const rm_tokenizer *tokenizer, int64_t id);

#endif
