/* text.h: human-readable numbers, and the process's clock and peak memory. */
#ifndef RM_TEXT_H
#define RM_TEXT_H

#include "engine/status.h"

#include <stddef.h>
#include <stdint.h>

#define RM_TEXT 32
const char *rm_bytes_text(uint64_t bytes, char text[RM_TEXT]);    /* "812 B", "45.6 MiB" */
const char *rm_duration_text(double seconds, char text[RM_TEXT]); /* "0:12", "1:02:03"   */
const char *rm_count_text(double count, char text[RM_TEXT]);      /* "812", "45.6 k"     */

/* Parses a decimal integer; INVALID: not an integer, or not in [low, high]. `where` names its place in the message. */
remat_status rm_text_whole(const char *where, const char *value, int64_t low, int64_t high, int64_t *out);

/* Whether `text` ends with `with` and is longer. */
bool rm_text_ends(const char *text, const char *with);

/* Quotes `word` for a POSIX shell if it needs quotes, up to 4 * strlen(word) + 3 bytes. Returns `out`. */
const char *rm_shell_quote(const char *word, char *out, size_t bytes);

double rm_now_s(void);            /* monotonic clock */
uint64_t rm_rss_peak_bytes(void); /* peak resident memory of this process (VmHWM); 0: unknown */

#endif
