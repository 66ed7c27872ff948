/* npy.h: one NumPy array as numpy.save writes it. Reads from memory, so a fuzzer can drive it.
 *
 *   | 93 N U M P Y | version | header length | {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), } | data |
 */
#ifndef RM_NPY_H
#define RM_NPY_H

#include "train/data/array.h"

#define RM_NPY_MAGIC "\x93NUMPY"

/* Reads the header only: sets all of `out` but out->item, and the header's length. `name` is for messages. IO when the header is
 * damaged, or the array does not hold numbers; then the message says how to convert it. */
remat_status rm_npy_header(const uint8_t *data, size_t size, const char *name, rm_array *out, size_t *header_bytes);

/* Reads the whole file; out->item points into `data`. IO also when its length does not match the header. */
remat_status rm_npy_parse(const uint8_t *data, size_t size, const char *name, rm_array *out);

/* Writes the header of a file of floats. */
#define RM_NPY_HEADER 128
void rm_npy_make_header(int rank, const int64_t *dim, uint8_t out[RM_NPY_HEADER]); /* rank 2 or 3 */

#endif
