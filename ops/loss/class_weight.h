/* class_weight.h: what a row counts for in a weighted loss, for the ops that sum it up and those that use it. */
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

/* 0 of what is ignored or no class; else 1, or the class's weight (classes). */
RM_HD real rm_class_weight(rm_counted c, const real *weight, int32_t target) {
    if (target < 0 || target >= c.classes || (c.ignores && target == c.ignored)) return 0;
    return weight ? weight[target] : 1;
}

#endif
