/* words.h: where GPT-2's pre-tokenizer cuts a text into words, which no token reaches across. Its regular expression is
 *
 *     's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 *
 * so a word takes the one space before it along: "It's  12 o'clock" is It 's _ _12 _o ' clock, where _ is a space. */
#ifndef RM_WORDS_H
#define RM_WORDS_H

#include <stddef.h>
#include <stdint.h>

/* Bytes of the word that text[0..size) begins with, size > 0. What comes later decides nothing but where spaces are cut. */
size_t rm_word_length(const uint8_t *text, size_t size);

#endif
