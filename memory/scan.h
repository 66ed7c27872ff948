/* scan.h: reading the text forms of problems and plans, word by word, from bytes that may be anything. A line is words
 * between spaces; blank lines and what follows a '#' do not count. Nothing is copied and nothing allocated.
 *
 *   for (rm_scan scan = rm_scan_begin(text, length); rm_scan_line(&scan);)
 *       if (rm_scan_is(&scan, "piece") && rm_scan_number(&scan, limit, &id) && ... && rm_scan_done(&scan)) ...
 */
#ifndef RM_SCAN_H
#define RM_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    const char *next, *end; /* what is left of the text, after this line */
    const char *at, *stop;  /* what is left of this line */
    int64_t line;           /* its number, from 1 */
} rm_scan;

rm_scan rm_scan_begin(const char *text, size_t length);
bool rm_scan_line(rm_scan *scan); /* on to the next line with words; false at the end */

/* Each takes one word, or takes nothing and answers false. */
bool rm_scan_is(rm_scan *scan, const char *word);
bool rm_scan_number(rm_scan *scan, uint64_t limit, uint64_t *out); /* decimal digits alone, <= limit */
bool rm_scan_index(rm_scan *scan, int64_t count, int64_t *out);    /* 0 .. count-1 */
int rm_scan_any(rm_scan *scan, const char *const *words);          /* which of a NULL-ended list; -1: none of them */

bool rm_scan_done(const rm_scan *scan); /* nothing is left of the line */

/* The rest of the line, without spaces at its ends, for an error or a name: into a buffer of `size`, cut short when
 * longer (false then), with '?' for unprintable bytes. */
bool rm_scan_rest(const rm_scan *scan, char *buffer, size_t size);

#endif
