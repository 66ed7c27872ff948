/* words.c: see words.h. */
#include "train/data/words.h"

#include "train/data/unicode.h"

#include <string.h>

/* Bytes of the run of characters of this kind at the start of text[0..size); *last: bytes of the run's last
 * character. */
static size_t run_of(rm_char_kind kind, const uint8_t *text, size_t size, size_t *last) {
    size_t at = 0, length;
    *last = 0;
    while (at < size && rm_char_kind_of(rm_utf8_first(text + at, size - at, &length)) == kind) {
        at += length;
        *last = length;
    }
    return at;
}

/* Bytes of a contraction such as 's or 'll; 0: none. */
static size_t contraction(const uint8_t *text, size_t size) {
    static const char *const endings[] = {"s", "t", "re", "ve", "m", "ll", "d"};
    if (*text != '\'') return 0;
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        size_t length = strlen(endings[i]);
        if (size > length && !memcmp(text + 1, endings[i], length)) return 1 + length;
    }
    return 0;
}

size_t rm_word_length(const uint8_t *text, size_t size) {
    size_t length, last, space = *text == ' ' && size > 1;
    if ((length = contraction(text, size))) return length;
    rm_char_kind kind = rm_char_kind_of(rm_utf8_first(text + space, size - space, &length));
    if (kind != RM_CHAR_SPACE) return space + run_of(kind, text + space, size - space, &last);
    length = run_of(kind, text, size, &last); /* the last of several spaces belongs to the next word */
    return length == size || length == last ? length : length - last;
}

bool rm_plain_word(const uint8_t *text, size_t size, size_t *length) {
    size_t at = 0, char_length;
    for (; at < size; at += char_length)
        if (rm_char_kind_of(rm_utf8_first(text + at, size - at, &char_length)) == RM_CHAR_SPACE) break;
    *length = at ? at : char_length;
    return at > 0;
}
