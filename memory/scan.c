/* scan.c: words and numbers out of text that may be anything. */
#include "memory/scan.h"

#include <string.h>

static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r'; }

static void skip_spaces(rm_scan *scan) {
    while (scan->at < scan->stop && is_space(*scan->at)) scan->at++;
}

/* The length of the word that starts here. */
static size_t word_length(const rm_scan *scan) {
    const char *end = scan->at;
    while (end < scan->stop && !is_space(*end)) end++;
    return (size_t)(end - scan->at);
}

/* Past a word that was understood, on to the next. */
static bool taken(rm_scan *scan, size_t length) {
    scan->at += length;
    skip_spaces(scan);
    return true;
}

rm_scan rm_scan_begin(const char *text, size_t length) {
    return (rm_scan){.next = text, .end = text + length, .at = text, .stop = text};
}

bool rm_scan_line(rm_scan *scan) {
    while (scan->next < scan->end) {
        scan->line++;
        const char *newline = memchr(scan->next, '\n', (size_t)(scan->end - scan->next));
        const char *line_end = newline ? newline : scan->end;
        const char *comment = memchr(scan->next, '#', (size_t)(line_end - scan->next));
        scan->at = scan->next;
        scan->stop = comment ? comment : line_end;
        scan->next = newline ? newline + 1 : scan->end;
        while (scan->stop > scan->at && is_space(scan->stop[-1])) scan->stop--;
        skip_spaces(scan);
        if (scan->at < scan->stop) return true;
    }
    return false;
}

bool rm_scan_is(rm_scan *scan, const char *word) {
    size_t length = word_length(scan);
    return length == strlen(word) && !memcmp(scan->at, word, length) && taken(scan, length);
}

bool rm_scan_number(rm_scan *scan, uint64_t limit, uint64_t *out) {
    uint64_t value = 0;
    size_t length = word_length(scan);
    if (length == 0) return false;
    for (size_t i = 0; i < length; i++) {
        if (scan->at[i] < '0' || scan->at[i] > '9') return false;
        if (__builtin_mul_overflow(value, 10, &value)) return false;
        if (__builtin_add_overflow(value, (uint64_t)(scan->at[i] - '0'), &value)) return false;
    }
    if (value > limit) return false;
    *out = value;
    return taken(scan, length);
}

bool rm_scan_index(rm_scan *scan, int64_t count, int64_t *out) {
    uint64_t value;
    if (count < 1 || !rm_scan_number(scan, (uint64_t)count - 1, &value)) return false;
    *out = (int64_t)value;
    return true;
}

int rm_scan_any(rm_scan *scan, const char *const *words) {
    for (int i = 0; words[i]; i++)
        if (rm_scan_is(scan, words[i])) return i;
    return -1;
}

bool rm_scan_done(const rm_scan *scan) { return scan->at == scan->stop; }

bool rm_scan_rest(const rm_scan *scan, char *buffer, size_t size) {
    size_t length = (size_t)(scan->stop - scan->at), copied = length < size ? length : size - 1;
    for (size_t i = 0; i < copied; i++) buffer[i] = scan->at[i] >= ' ' && scan->at[i] <= '~' ? scan->at[i] : '?';
    buffer[copied] = 0;
    return copied == length;
}
