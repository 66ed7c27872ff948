/* lifetimes_csv.h: a table of buffers with known lifetimes (place.c). Works on memory, so a fuzzer can drive it.
 *
 *     id,lower,upper,size        columns in any order, others are not used
 *     7,120,340,65536            alive in lower <= step < upper; id is any text without a comma
 */
#ifndef RM_LIFETIMES_CSV_H
#define RM_LIFETIMES_CSV_H

#include "engine/status.h"

typedef struct {
    const char *id; /* points into the text */
    int32_t id_length;
    int64_t line;         /* of the text, from 1 */
    int64_t lower, upper; /* 0 <= lower < upper < 2^62 */
    uint64_t size;        /* 0 allowed: such a buffer lies anywhere; the sum is below 2^60 */
} rm_lifetimes_row;

typedef struct {
    rm_lifetimes_row *row; /* in the order of the text */
    int64_t count;
    char unused[120]; /* names of columns that mean nothing here, as many as there is room for; "" */
} rm_lifetimes_csv;

/* `name` is for the sentence, which says line and reason: INVALID, also for an id that two lines have. Lines may end in CR LF, blank ones do not count, spaces
 * around a field do not either. */
remat_status rm_lifetimes_csv_parse(const char *text, size_t length, const char *name, rm_lifetimes_csv *out);
void rm_lifetimes_csv_free(rm_lifetimes_csv *csv);

#endif
