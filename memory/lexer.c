/* lexer.c: reads words and numbers from text that may contain anything. */
#include "memory/lexer.h"

#include <string.h>

static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r'; }

static void skip_spaces(rm_lexer *lexer) {
    while (lexer->at < lexer->stop && is_space(*lexer->at)) lexer->at++;
}

/* The length of the word at the current position. */
static size_t word_length(const rm_lexer *lexer) {
    const char *end = lexer->at;
    while (end < lexer->stop && !is_space(*end)) end++;
    return (size_t)(end - lexer->at);
}

/* Skips a word that was understood and the spaces after it. */
static bool taken(rm_lexer *lexer, size_t length) {
    lexer->at += length;
    skip_spaces(lexer);
    return true;
}

rm_lexer rm_lexer_begin(const char *text, size_t length) {
    return (rm_lexer){.next = text, .end = text + length, .at = text, .stop = text};
}

bool rm_lexer_line(rm_lexer *lexer) {
    while (lexer->next < lexer->end) {
        lexer->line++;
        const char *newline = memchr(lexer->next, '\n', (size_t)(lexer->end - lexer->next));
        const char *line_end = newline ? newline : lexer->end;
        const char *comment = memchr(lexer->next, '#', (size_t)(line_end - lexer->next));
        lexer->at = lexer->next;
        lexer->stop = comment ? comment : line_end;
        lexer->next = newline ? newline + 1 : lexer->end;
        while (lexer->stop > lexer->at && is_space(lexer->stop[-1])) lexer->stop--;
        skip_spaces(lexer);
        if (lexer->at < lexer->stop) return true;
    }
    return false;
}

bool rm_lexer_is(rm_lexer *lexer, const char *word) {
    size_t length = word_length(lexer);
    return length == strlen(word) && !memcmp(lexer->at, word, length) && taken(lexer, length);
}

bool rm_lexer_number(rm_lexer *lexer, uint64_t limit, uint64_t *out) {
    uint64_t value = 0;
    size_t length = word_length(lexer);
    if (length == 0) return false;
    for (size_t i = 0; i < length; i++) {
        if (lexer->at[i] < '0' || lexer->at[i] > '9') return false;
        if (__builtin_mul_overflow(value, 10, &value)) return false;
        if (__builtin_add_overflow(value, (uint64_t)(lexer->at[i] - '0'), &value)) return false;
    }
    if (value > limit) return false;
    *out = value;
    return taken(lexer, length);
}

bool rm_lexer_index(rm_lexer *lexer, int64_t count, int64_t *out) {
    uint64_t value;
    if (count < 1 || !rm_lexer_number(lexer, (uint64_t)count - 1, &value)) return false;
    *out = (int64_t)value;
    return true;
}

int rm_lexer_any(rm_lexer *lexer, const char *const *words) {
    for (int i = 0; words[i]; i++)
        if (rm_lexer_is(lexer, words[i])) return i;
    return -1;
}

bool rm_lexer_done(const rm_lexer *lexer) { return lexer->at == lexer->stop; }

bool rm_lexer_rest(const rm_lexer *lexer, char *buffer, size_t size) {
    size_t length = (size_t)(lexer->stop - lexer->at), copied = length < size ? length : size - 1;
    for (size_t i = 0; i < copied; i++) buffer[i] = lexer->at[i] >= ' ' && lexer->at[i] <= '~' ? lexer->at[i] : '?';
    buffer[copied] = 0;
    return copied == length;
}
