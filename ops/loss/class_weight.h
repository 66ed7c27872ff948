/* class_weight.h: the weight of a row in a loss with class weights, for target_weight (the sum) and
 * softmax_cross_entropy. */
#ifndef RM_CLASS_WEIGHT_H
#define RM_CLASS_WEIGHT_H

#include "engine/host_device.h"
#include "ops/real.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    int64_t classes, ignored;
    bool ignores;
} rm_counted;

/* 0 if the target is ignored or not a class; else its weight; 1 without `weight` (classes). */
RM_HD real rm_class_weight(rm_counted c, const real *weight, int32_t target) {
    if (target < 0 || target >= c.classes || (c.ignores && target == c.ignored)) return 0;
    return weight ? weight[target] : 1;
}

#endif
