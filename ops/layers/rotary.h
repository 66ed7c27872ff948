/* rotary.h: the rotation of a pair of features, for the CPU and CUDA. */
#ifndef RM_ROTARY_H
#define RM_ROTARY_H

#include <math.h>

#include "engine/host_device.h"
#include "ops/op.h"

/* Radians per timestep for pair i of a head with `width` features. Angles are doubles: after a million timesteps the
 * error is about 1e-10. */
RM_HD double rm_rotary_speed(double base, int64_t i, int64_t width) {
    return pow(base, -2.0 * (double)i / (double)width);
}

#endif
