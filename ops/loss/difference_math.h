/* difference_math.h: the losses of a difference d = x - target, and their slopes, for C and CUDA alike. Values are added up in
 * double; slopes are of the graph's precision. delta is huber's alone. */
#ifndef RM_DIFFERENCE_MATH_H
#define RM_DIFFERENCE_MATH_H

#include "engine/host_device.h"
#include "ops/real.h"

RM_HD double rm_mse_value(double d, double delta) { return (void)delta, d * d; }
RM_HD real rm_mse_slope(real d, real delta) { return (void)delta, 2 * d; }

/* NaN stays NaN; at 0 the slope is 0. */
RM_HD double rm_mae_value(double d, double delta) { return (void)delta, d < 0 ? -d : d; }
RM_HD real rm_mae_slope(real d, real delta) { return (void)delta, d > 0 ? 1 : d < 0 ? -1 : d; }

/* d^2/2 up to delta, and straight on from there. */
RM_HD double rm_huber_value(double d, double delta) {
    double size = d < 0 ? -d : d;
    return size > delta ? delta * (size - 0.5 * delta) : 0.5 * d * d;
}
RM_HD real rm_huber_slope(real d, real delta) { return d > delta ? delta : d < -delta ? -delta : d; }

#endif
