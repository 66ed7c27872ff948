/* idx.h: the IDX format of MNIST: a big-endian header, then bytes. Works on memory, so a fuzzer can drive it.
 *
 *   | 0 0 08 rank | dim[0] | ... | dim[rank-1] | bytes, row-major |        each dim a big-endian uint32
 */
#ifndef RM_IDX_H
#define RM_IDX_H

#include "train/data/array.h"

/* The header alone: all of `out` but out->item, and the header's own length. `name` is for the sentence. IO when it is not IDX,
 * or not of bytes. */
remat_status rm_idx_header(const uint8_t *data, size_t size, const char *name, rm_array *out, size_t *header_bytes);

/* The whole file; out->item points into `data`. IO also when it is too short or too long. */
remat_status rm_idx_parse(const uint8_t *data, size_t size, const char *name, rm_array *out);

#endif
