/* reduce.h: adding up what the ranks have: the arithmetic of `local`, and the definition for the others. */
#ifndef RM_REDUCE_H
#define RM_REDUCE_H

#include "dist/group/group.h"

/* For i < count and every o < outs:
 *
 *   RM_SUM    out[o][i] = in[0][i] + in[1][i] + ...
 *   RM_MEAN   the same of x[r] = in[r][i] * fl32(1/ins), rounded to the wire's type
 *   RM_TREE   the tree of dist/group/group.h; ins a power of two
 *
 * f16 and bf16 are added up as floats, and rounded once at the end. An out may be one of the ins. Bits do not depend on the
 * vector unit, alignment or cutting into parts. */
void rm_reduce(rm_wire wire, rm_reduction reduction, const void *const *in, int32_t ins, void *const *out, int32_t outs,
               int64_t count);

bool rm_can_reduce(rm_wire wire, rm_reduction reduction); /* whether there is such a sum */

/* to[i] = from[i] * share, rounded to the type: what a rank brings to a mean of f32, f16 or bf16. to may be from. */
void rm_scale(rm_wire wire, float share, const void *from, void *to, int64_t count);

/* Floats to a 16-bit wire, of from[i] * share, and back. */
void rm_narrow(rm_wire wire, float share, const float *from, uint16_t *to, int64_t count);
void rm_widen(rm_wire wire, const uint16_t *from, float *to, int64_t count);

#endif
