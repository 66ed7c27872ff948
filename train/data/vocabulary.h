/* vocabulary.h: vocabularies of whole words or of single characters: --tokenizer=words, chars or a plain list in a
 * file. They are written as a tokenizer.json, which PyPI's `tokenizers` can read, too, so training states have one
 * format.
 *
 *     words   what white space separates, and <eos> where a line ends, as in PyTorch's word_language_model; numbered in the order of the
 *             text, <eos> like a word at the end of each line. <unk> is for other words, and is added where the text has none.
 *     chars   characters, in the order of their code points, as in nanoGPT's shakespeare_char
 *     FILE    one token a line, in the order of their numbers (a file that begins with { is a tokenizer.json); characters if all are single ones, where \n is written for a line feed,
 *             otherwise words. <unk> is for all others, if it is listed; and <eos>, if it is listed, for ends of lines between words */
#ifndef RM_VOCABULARY_H
#define RM_VOCABULARY_H

#include "engine/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RM_UNKNOWN "<unk>"
#define RM_LINE_END "<eos>"

/* The texts from which a vocabulary is built: none, one, or two. If there are two (sources and translations), a
 * line end is not a token. */
typedef struct {
    const char *path[2];
    uint64_t budget; /* maximum bytes of a text; 0: RM_UNPACKED_BYTES */
} rm_vocabulary_texts;

bool rm_vocabulary_is_made(const char *tokenizer); /* is it `words` or `chars`? */

/* The tokenizer.json for --tokenizer: the file itself, if it is one; otherwise built from the list in the file, or
 * from the texts. The caller frees *json. INVALID: there are no texts, or they contain no valid words; IO: a file
 * cannot be read. */
remat_status rm_vocabulary_json(const char *tokenizer, const rm_vocabulary_texts *texts, uint8_t **json, size_t *size);

#endif
