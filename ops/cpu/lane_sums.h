/* cpu/lane_sums.h: sums over the lanes of vectors, four vectors at a time, in an order that the width decides. */
#ifndef RM_LANE_SUMS_H
#define RM_LANE_SUMS_H

#include "ops/math/vecmath.h"

typedef float rm_four __attribute__((vector_size(16), may_alias));

RM_INLINE rm_four rm_sum_quarters(const float *lanes) {
    rm_four sum = *(const rm_four *)lanes;
    for (int i = 4; i < RM_LANES; i += 4) sum += *(const rm_four *)(lanes + i);
    return sum;
}

/* Element i is the sum of lanes[i], i < many; the others are 0. `lanes` starts at a multiple of 16 bytes. */
RM_INLINE rm_four rm_sum_lanes(int many, float (*lanes)[RM_LANES]) {
    rm_four q[4], low, high;
    for (int i = 0; i < 4; i++) q[i] = i < many ? rm_sum_quarters(lanes[i]) : (rm_four){0};
    low = __builtin_shufflevector(q[0], q[1], 0, 4, 1, 5) + __builtin_shufflevector(q[0], q[1], 2, 6, 3, 7);
    high = __builtin_shufflevector(q[2], q[3], 0, 4, 1, 5) + __builtin_shufflevector(q[2], q[3], 2, 6, 3, 7);
    return __builtin_shufflevector(low, high, 0, 1, 4, 5) + __builtin_shufflevector(low, high, 2, 3, 6, 7);
}

#endif
