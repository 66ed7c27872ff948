/* lexer.h: reads the text forms of problems and plans word by word, from arbitrary bytes. A line consists of words
 * separated by spaces; blank lines and text after '#' are ignored. Nothing is copied or allocated.
 *
 *   for (rm_lexer lexer = rm_lexer_begin(text, length); rm_lexer_line(&lexer);)
 *       if (rm_lexer_is(&lexer, "piece") && rm_lexer_number(&lexer, limit, &id) && ... && rm_lexer_done(&lexer)) ...
 */
#ifndef RM_LEXER_H
#define RM_LEXER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    const char *next, *end; /* the text after this line */
    const char *at, *stop;  /* the rest of this line */
    int64_t line;           /* number of this line, from 1 */
} rm_lexer;

rm_lexer rm_lexer_begin(const char *text, size_t length);
bool rm_lexer_line(rm_lexer *lexer); /* goes to the next line with words; false at the end */

/* Each reads one word; if the word does not match, it reads nothing and returns false. */
bool rm_lexer_is(rm_lexer *lexer, const char *word);
bool rm_lexer_number(rm_lexer *lexer, uint64_t limit, uint64_t *out); /* decimal digits only, <= limit */
bool rm_lexer_index(rm_lexer *lexer, int64_t count, int64_t *out);    /* 0 .. count-1 */
/* Index of the word in a NULL-terminated list; -1: not in it */
int rm_lexer_any(rm_lexer *lexer, const char *const *words);

bool rm_lexer_done(const rm_lexer *lexer); /* nothing is left of the line */

/* Copies the rest of the line, trimmed, for a name or an error message into a buffer of `size` bytes, with '?' for
 * unprintable bytes. Returns false if the text was cut short. */
bool rm_lexer_rest(const rm_lexer *lexer, char *buffer, size_t size);

#endif
