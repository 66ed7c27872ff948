/* idx.h: the IDX format of MNIST: a big-endian header, then bytes. Reads from memory, so a fuzzer can drive it.
 *
 *   | 0 0 08 rank | dim[0] | ... | dim[rank-1] | bytes, row-major |        each dim a big-endian uint32
 */
#ifndef RM_IDX_H
#define RM_IDX_H

#include "train/data/array.h"

/* Reads the header only: sets all of `out` but out->item, and the header's length. `name` is for messages. IO when the file is
 * not IDX or its elements are not bytes. */
remat_status rm_idx_header(const uint8_t *data, size_t size, const char *name, rm_array *out, size_t *header_bytes);

/* Reads the whole file; out->item points into `data`. IO also when its length does not match the header. */
remat_status rm_idx_parse(const uint8_t *data, size_t size, const char *name, rm_array *out);

#endif
