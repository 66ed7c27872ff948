/* npy.h: one NumPy array as numpy.save writes it. Works on memory, so a fuzzer can drive it.
 *
 *   | 93 N U M P Y | version | header length | {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), } | data |
 */
#ifndef RM_NPY_H
#define RM_NPY_H

#include "train/data/array.h"

#define RM_NPY_MAGIC "\x93NUMPY"

/* The header alone: all of `out` but out->item, and the header's own length. `name` is for the sentence. IO when it is damaged, or
 * the array is not of numbers; then the sentence says how to make it so. */
remat_status rm_npy_header(const uint8_t *data, size_t size, const char *name, rm_array *out, size_t *header_bytes);

/* The whole file; out->item points into `data`. IO also when it is too short or too long. */
remat_status rm_npy_parse(const uint8_t *data, size_t size, const char *name, rm_array *out);

/* Of a file of floats, (rows,columns): what comes before them. */
#define RM_NPY_HEADER 128
void rm_npy_make_header(int rank, const int64_t *dim, uint8_t out[RM_NPY_HEADER]); /* rank 2 or 3 */

#endif
