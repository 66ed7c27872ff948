/* reduce.h: adding up what the ranks have, in the order of ranks: the arithmetic of `local`, and its definition. */
#ifndef RM_REDUCE_H
#define RM_REDUCE_H

#include "dist/group.h"

/* out[o][i] = in[0][i] + in[1][i] + ... for i < count, for every o < outs; RM_MEAN: of fl32(in[r][i] * fl32(1/ins)).
 * An out may be one of the ins. Bits do not depend on the vector unit, alignment or cutting into parts. */
void rm_reduce(rm_wire wire, rm_reduction reduction, const void *const *in, int32_t ins, void *const *out, int32_t outs,
               int64_t count);

#endif
