/* array.h: an array of numbers as stored in a file, of any type, byte order and order of dimensions. npy.h and idx.h create
 * one from a header; array_file.h reads the file. Callers need not know the file's format. */
#ifndef RM_ARRAY_H
#define RM_ARRAY_H

#include "engine/status.h"

#define RM_ARRAY_MAX_RANK 4
typedef struct {
    char kind;     /* 'f' floating point, 'i' signed integer, 'u' unsigned integer, 'b' boolean: NumPy's letters */
    int64_t bytes; /* of an element */
    bool big_endian;
    int rank;                          /* 0..4 */
    int64_t dim[RM_ARRAY_MAX_RANK];    /* unused ones are 1 */
    int64_t stride[RM_ARRAY_MAX_RANK]; /* in elements */
    int64_t count;
    const uint8_t *item; /* unaligned: read it with rm_array_at */
} rm_array;

/* Computes count and strides from the header's fields, kind to dim. fortran: the first dimension varies fastest, not the last.
 * IO when the array is empty or larger than any file. */
remat_status rm_array_settle(rm_array *array, bool fortran, const char *name);

/* Points the array at its elements, which follow the header in `data`; IO when their size does not match. */
remat_status rm_array_place(rm_array *array, const uint8_t *data, size_t size, size_t header_bytes, const char *name);

/* Integers above 2^53 are rounded. */
double rm_array_at(const rm_array *array, int64_t i, int64_t j, int64_t k);

/* Whether elements of this kind and size can be read. */
bool rm_array_type_known(char kind, int64_t bytes);

#endif
