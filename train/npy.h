/* npy.h: one NumPy array as numpy.save writes it. Works on memory, so a fuzzer can drive it.
 *
 *   | 93 N U M P Y | version | header length | {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), } | data |
 */
#ifndef RM_NPY_H
#define RM_NPY_H

#include "engine/status.h"

typedef enum { RM_NPY_F4, RM_NPY_F8, RM_NPY_U1, RM_NPY_I4, RM_NPY_I8 } rm_npy_type;

#define RM_NPY_MAX_RANK 4
typedef struct {
    rm_npy_type type;
    int rank;                     /* 0..4 */
    int64_t dim[RM_NPY_MAX_RANK]; /* unused ones are 1 */
    int64_t count;
    const uint8_t *item; /* unaligned, little-endian, row-major: read it with the two below */
} rm_npy;

/* `name` is for the sentence. out->item points into `data`. IO when it is not an array of these types in C order, or
 * when its length is not what its header says. */
remat_status rm_npy_parse(const uint8_t *data, size_t size, const char *name, rm_npy *out);

double rm_npy_real(const rm_npy *array, int64_t index);
int64_t rm_npy_integer(const rm_npy *array, int64_t index); /* of a U1, I4 or I8 array */
bool rm_npy_is_integer(const rm_npy *array);

#endif
