/* words.h: splits a text into words like GPT-2's pre-tokenizer; no token crosses a word boundary. The regular expression is
 *
 *     's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 *
 * so a word includes one space before it: "It's  12 o'clock" becomes It 's _ _12 _o ' clock, where _ is a space. */
#ifndef RM_WORDS_H
#define RM_WORDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of the word that text[0..size) begins with, size > 0. The text after the word matters only if the word is white space. */
size_t rm_word_length(const uint8_t *text, size_t size);

/* The same for words that are separated by white space. True: a word of *length bytes; false: a character of white
 * space. */
bool rm_plain_word(const uint8_t *text, size_t size, size_t *length);

#endif
