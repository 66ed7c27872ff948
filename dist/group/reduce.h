/* reduce.h: sums over ranks: the arithmetic of `local`, and the reference for the other engines. */
#ifndef RM_REDUCE_H
#define RM_REDUCE_H

#include "dist/group/group.h"

/* For i < count and every o < outs:
 *
 *   RM_SUM    out[o][i] = in[0][i] + in[1][i] + ...
 *   RM_MEAN   the same sum of x[r] = in[r][i] * fl32(1/ins), rounded to the wire's type
 *   RM_TREE   the tree of dist/group/group.h; ins is a power of two
 *
 * f16 and bf16 are added up as floats and rounded once at the end. An out may be one of the ins. Bits do not depend on
 * the vector unit, on alignment, or on how the data are cut into parts. */
void rm_reduce(rm_wire wire, rm_reduction reduction, const void *const *in, int32_t ins, void *const *out, int32_t outs,
               int64_t count);

bool rm_can_reduce(rm_wire wire, rm_reduction reduction); /* whether this sum is supported */

/* to[i] = from[i] * share, rounded to the type: a rank's contribution to a mean of f32, f16 or bf16. `to` may be
 * `from`. */
void rm_scale(rm_wire wire, float share, const void *from, void *to, int64_t count);

/* Converts from[i] * share from float to a 16-bit wire type, and back. */
void rm_narrow(rm_wire wire, float share, const float *from, uint16_t *to, int64_t count);
void rm_widen(rm_wire wire, const uint16_t *from, float *to, int64_t count);

#endif
