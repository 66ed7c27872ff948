/* unicode.h: classes of code points as in regular expressions, \p{L}, \p{N} and \s of Unicode 16; and UTF-8. */
#ifndef RM_UNICODE_H
#define RM_UNICODE_H

#include <stddef.h>
#include <stdint.h>

typedef enum { RM_CHAR_SPACE, RM_CHAR_LETTER, RM_CHAR_NUMBER, RM_CHAR_OTHER } rm_char_kind;

rm_char_kind rm_char_kind_of(uint32_t code);

/* The code point that text[0..size) begins with, size > 0, and its length in bytes. An invalid byte is RM_NO_CHAR, a character of
 * kind OTHER. */
#define RM_NO_CHAR 0xFFFDu
uint32_t rm_utf8_first(const uint8_t *text, size_t size, size_t *length);

#endif
