/* rotary.h: the turn of a pair of features, for the CPU and CUDA. */
#ifndef RM_ROTARY_H
#define RM_ROTARY_H

#include <math.h>

#include "engine/host_device.h"
#include "ops/op.h"

/* Radians per timestep of pair i, of `width` features of a head. An angle is a double: at a million timesteps it is right to 1e-10. */
RM_HD double rm_rotary_speed(double base, int64_t i, int64_t width) {
    return pow(base, -2.0 * (double)i / (double)width);
}

#endif
