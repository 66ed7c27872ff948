/* header.h: parses and writes the header of a safetensors file. It works on memory and opens no files.
 *
 *   | header length, 8 bytes LE | {"name":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}, ...} | data |
 *
 * The reader accepts strict JSON only, and the arrays must cover the data exactly, without holes or overlaps.
 * Besides the text it allocates only the list of arrays. */
#ifndef RM_WEIGHTS_HEADER_H
#define RM_WEIGHTS_HEADER_H

#include "engine/status.h"

enum {
    RM_ST_MAX_HEADER = 100000000,
    RM_ST_MAX_RANK = 8
}; /* the format's own limit: metadata may contain a tokenizer, for example */

typedef struct {
    const char *name; /* points into the parsed text */
    char dtype[12];   /* "F32", "BF16", ..; always a dtype of the format */
    int rank;
    int64_t dim[RM_ST_MAX_RANK];
    uint64_t begin, end; /* in the data */
} rm_st_array;

/* Parses the header of `path`, a file with data_bytes of data. Overwrites `text`, which holds the names: free it
 * after the list. *out: the arrays in order of `begin`; rm_free it in any case. IO: the message says what is wrong. */
remat_status rm_st_header_parse(const char *path, char *text, size_t bytes, uint64_t data_bytes, rm_st_array **out,
                                int64_t *count);

/* Makes everything that precedes the data of `count` f32 or f64 arrays with distinct names: the length, and the
 * text padded to a multiple of 8 bytes. Free *out with rm_free. */
remat_status rm_st_header_make(const remat_array *array, int64_t count, char **out, size_t *bytes);

#endif
