/* unicode.h: what kind of character a code point is, as a regular expression asks: \p{L}, \p{N}, \s of Unicode 16; and UTF-8. */
#ifndef RM_UNICODE_H
#define RM_UNICODE_H

#include <stddef.h>
#include <stdint.h>

typedef enum { RM_CHAR_SPACE, RM_CHAR_LETTER, RM_CHAR_NUMBER, RM_CHAR_OTHER } rm_char_kind;

rm_char_kind rm_char_kind_of(uint32_t code);

/* The code point that text[0..size) begins with, size > 0, and its bytes. A byte that is no UTF-8 is a character by itself,
 * RM_NO_CHAR, which counts as OTHER. */
#define RM_NO_CHAR 0xFFFDu
uint32_t rm_utf8_first(const uint8_t *text, size_t size, size_t *length);

#endif
