/* array.h: an array of numbers as it lies in a file, of any type, byte order and order of dimensions. npy.h and idx.h make
 * one from a header, array_file.h reads the file; whoever uses it need not know which it was. */
#ifndef RM_ARRAY_H
#define RM_ARRAY_H

#include "engine/status.h"

#define RM_ARRAY_MAX_RANK 4
typedef struct {
    char kind;     /* 'f' floating point, 'i' whole, 'u' whole without a sign, 'b' true or false: NumPy's letters */
    int64_t bytes; /* of an element */
    bool big_endian;
    int rank;                          /* 0..4 */
    int64_t dim[RM_ARRAY_MAX_RANK];    /* unused ones are 1 */
    int64_t stride[RM_ARRAY_MAX_RANK]; /* in elements */
    int64_t count;
    const uint8_t *item; /* unaligned: read it with rm_array_at */
} rm_array;

/* What a header says, kind to dim, becomes count and strides; fortran: the first dimension runs fastest, not the last. IO when
 * there are no elements, or more than a file can have. */
remat_status rm_array_settle(rm_array *array, bool fortran, const char *name);

/* The elements are what lies in `data` behind the header; IO when that has not their length. */
remat_status rm_array_place(rm_array *array, const uint8_t *data, size_t size, size_t header_bytes, const char *name);

/* A whole number beyond 2^53 is rounded. */
double rm_array_at(const rm_array *array, int64_t i, int64_t j, int64_t k);

/* Whether elements of this kind and size can be read. */
bool rm_array_type_known(char kind, int64_t bytes);

#endif
