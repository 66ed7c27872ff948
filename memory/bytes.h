/* bytes.h: the little arithmetic that everybody does with sizes and counts: alignment, the larger and the smaller of two.
 * What sums up pieces is in problem.h. */
#ifndef RM_BYTES_H
#define RM_BYTES_H

#include <stdint.h>

#define RM_ALIGN 64 /* bytes: every buffer of a plan, and so every buffer handed to an op, starts on such a boundary */
static inline uint64_t rm_align_up(uint64_t bytes) { return (bytes + RM_ALIGN - 1) & ~(uint64_t)(RM_ALIGN - 1); }

static inline uint64_t rm_larger(uint64_t a, uint64_t b) { return a > b ? a : b; }
static inline uint64_t rm_smaller(uint64_t a, uint64_t b) { return a < b ? a : b; }
static inline int64_t rm_fewer(int64_t a, int64_t b) { return a < b ? a : b; }

#endif
