/* lifetimes_csv.h: a table of buffers with known lifetimes (place.c). Works on memory, so a fuzzer can drive it.
 *
 *     id,lower,upper,size        columns in any order; others are ignored
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
    uint64_t size;        /* 0 is allowed: such a buffer may be placed anywhere; the sum of sizes is below 2^60 */
} rm_lifetimes_row;

typedef struct {
    rm_lifetimes_row *row; /* in the order of the text */
    int64_t count;
    char unused[120]; /* names of ignored columns, as many as fit; "" if none */
} rm_lifetimes_csv;

/* `name` is for error messages, which give line and reason: INVALID, also if two lines have the same id. Lines may end
 * in CR LF; blank lines and spaces around fields are ignored. */
remat_status rm_lifetimes_csv_parse(const char *text, size_t length, const char *name, rm_lifetimes_csv *out);
void rm_lifetimes_csv_free(rm_lifetimes_csv *csv);

#endif
