/* bytes.h: arithmetic on sizes and counts that all of memory/ uses: alignment, minimum and maximum. Sums over pieces
 * are in problem.h. */
#ifndef RM_BYTES_H
#define RM_BYTES_H

#include <stdint.h>

#define RM_ALIGN 64 /* bytes; every buffer of a plan, and so every buffer passed to an op, starts at a multiple of it */
static inline uint64_t rm_align_up(uint64_t bytes) { return (bytes + RM_ALIGN - 1) & ~(uint64_t)(RM_ALIGN - 1); }

static inline uint64_t rm_larger(uint64_t a, uint64_t b) { return a > b ? a : b; }
static inline uint64_t rm_smaller(uint64_t a, uint64_t b) { return a < b ? a : b; }
static inline int64_t rm_fewer(int64_t a, int64_t b) { return a < b ? a : b; }

#endif
