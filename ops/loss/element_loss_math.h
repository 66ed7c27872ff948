/* element_loss_math.h: the loss of an element and its derivatives by x and by the target t, for C and CUDA. Values are
 * summed in double; derivatives have the graph's precision. Only huber uses delta. */
#ifndef RM_ELEMENT_LOSS_MATH_H
#define RM_ELEMENT_LOSS_MATH_H

#include "engine/host_device.h"
#include "ops/real.h"

RM_HD double rm_mse_value(double x, double t, double delta) { return (void)delta, (x - t) * (x - t); }
RM_HD real rm_mse_slope(real x, real t, real delta) { return (void)delta, 2 * (x - t); }
RM_HD real rm_mse_target_slope(real x, real t, real delta) { return -rm_mse_slope(x, t, delta); }

/* NaN is passed through; the derivative at x = t is 0. */
RM_HD double rm_mae_value(double x, double t, double delta) { return (void)delta, x < t ? t - x : x - t; }
RM_HD real rm_mae_slope(real x, real t, real delta) { return (void)delta, x > t ? 1 : x < t ? -1 : x - t; }
RM_HD real rm_mae_target_slope(real x, real t, real delta) { return -rm_mae_slope(x, t, delta); }

/* d^2/2 up to |d| = delta, linear from there on; d = x - t. */
RM_HD double rm_huber_value(double x, double t, double delta) {
    double d = x - t, size = d < 0 ? -d : d;
    return size > delta ? delta * (size - 0.5 * delta) : 0.5 * d * d;
}
RM_HD real rm_huber_slope(real x, real t, real delta) {
    real d = x - t;
    return d > delta ? delta : d < -delta ? -delta : d;
}
RM_HD real rm_huber_target_slope(real x, real t, real delta) { return -rm_huber_slope(x, t, delta); }

/* -t log p - (1 - t) log(1 - p), p = sigmoid(x), without exp of a large number. */
RM_HD double rm_bce_value(double x, double t, double delta) {
    return (void)delta, (x > 0 ? x : 0) - x * t + log1p(exp(x > 0 ? -x : x));
}
RM_HD real rm_bce_slope(real x, real t, real delta) {
    real e = real_exp(x > 0 ? -x : x); /* sigmoid(x) = 1 / (1 + e^-x) = e^x / (1 + e^x) */
    return (void)delta, (x > 0 ? 1 : e) / (1 + e) - t;
}
RM_HD real rm_bce_target_slope(real x, real t, real delta) { return (void)t, (void)delta, -x; }

#endif
