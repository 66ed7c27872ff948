/* unicode.c: see unicode.h. */
#include "train/data/unicode.h"

#include <stdbool.h>

typedef struct {
    uint32_t first, last;
} rm_code_range;

#include "train/data/unicode_ranges.h"

static const rm_code_range spaces[] = {{0x9, 0xD},       {0x20, 0x20},     {0x85, 0x85},     {0xA0, 0xA0},
                                       {0x1680, 0x1680}, {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F},
                                       {0x205F, 0x205F}, {0x3000, 0x3000}};

static bool is_in(const rm_code_range *range, size_t count, uint32_t code) {
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (code > range[middle].last)
            low = middle + 1;
        else
            high = middle;
    }
    return low < count && code >= range[low].first;
}

#define IS_IN(table, code) is_in(table, sizeof table / sizeof *table, code)

static rm_char_kind ascii_kind(uint32_t code) {
    uint32_t lower = code | 0x20;
    if (lower >= 'a' && lower <= 'z') return RM_CHAR_LETTER;
    if (code == ' ' || (code >= '\t' && code <= '\r')) return RM_CHAR_SPACE;
    return code >= '0' && code <= '9' ? RM_CHAR_NUMBER : RM_CHAR_OTHER;
}

rm_char_kind rm_char_kind_of(uint32_t code) {
    if (code < 0x80) return ascii_kind(code);
    if (IS_IN(letters, code)) return RM_CHAR_LETTER;
    if (IS_IN(numbers, code)) return RM_CHAR_NUMBER;
    return IS_IN(spaces, code) ? RM_CHAR_SPACE : RM_CHAR_OTHER;
}

/* Length of a character by its first byte; 0: invalid. */
static size_t utf8_length(uint8_t first) {
    if (first < 0x80) return 1;
    if (first < 0xC2 || first > 0xF4) return 0;
    return first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
}

uint32_t rm_utf8_first(const uint8_t *text, size_t size, size_t *length) {
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t bytes = utf8_length(*text);
    *length = 1;
    if (bytes == 1) return *text;
    if (bytes == 0 || bytes > size) return RM_NO_CHAR;
    uint32_t code = *text & (0x7Fu >> bytes);
    for (size_t i = 1; i < bytes; i++) {
        if ((text[i] & 0xC0) != 0x80) return RM_NO_CHAR;
        code = code << 6 | (text[i] & 0x3Fu);
    }
    if (code < least[bytes] || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) return RM_NO_CHAR;
    *length = bytes;
    return code;
}
