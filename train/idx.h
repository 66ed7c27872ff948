/* idx.h: the IDX format of MNIST: a big-endian header, then bytes. Works on memory, so a fuzzer can drive it.
 *
 *   | 0 0 08 rank | dim[0] | ... | dim[rank-1] | bytes, row-major |        each dim a big-endian uint32
 */
#ifndef RM_IDX_H
#define RM_IDX_H

#include "engine/status.h"

typedef struct {
    int rank;       /* 1..4 */
    int64_t dim[4]; /* unused ones are 1 */
    int64_t count;  /* the product */
    const uint8_t *item;
} rm_idx;

/* `name` is for the sentence. out->item points into `data`. IO when it is not IDX, not of bytes, or too short or long. */
remat_status rm_idx_parse(const uint8_t *data, size_t size, const char *name, rm_idx *out);

#endif
