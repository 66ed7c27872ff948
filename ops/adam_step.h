/* adam_step.h: the update that adam.c and adamw.c share; they differ only in where weight decay enters. The order of
 * operations is PyTorch's (torch.optim.Adam, one tensor at a time), so that runs can be compared step by step. */
#ifndef RM_ADAM_STEP_H
#define RM_ADAM_STEP_H

#include <math.h>

#include "ops/optimizer.h"
#include "ops/shape.h"

/* decay_gradient: g += weight_decay p (Adam with an L2 penalty). Otherwise: p *= 1 - lr weight_decay (decoupled). */
static inline void rm_adam_step(const rm_update *u, bool decay_gradient, int64_t n, float *parameter,
                                const float *gradient, float *const *state) {
    double correction1 = 1 - pow(u->beta1, (double)u->step), correction2 = 1 - pow(u->beta2, (double)u->step);
    float scale = (float)u->gradient_scale, epsilon = (float)u->epsilon;
    float decay = decay_gradient ? (float)u->weight_decay : 0;
    float shrink = decay_gradient ? 1 : (float)(1 - u->lr * u->weight_decay);
    float weight1 = (float)(1 - u->beta1), weight1_rest = (float)u->beta1;
    float beta2 = (float)u->beta2, weight2 = (float)(1 - u->beta2);
    float root2 = (float)sqrt(correction2), rate = -(float)(u->lr / correction1);
    bool near = weight1 < 0.5f;
    float *mean = state[0], *square = state[1];
    RM_PARALLEL_FOR(
        u->threads, n > RM_PARALLEL_MIN, for (int64_t i = 0; i < n; i++) {
            float p = parameter[i] * shrink, g = gradient[i] * scale;
            g = decay != 0 ? g + decay * p : g;
            /* mean = beta1 mean + (1 - beta1) g, as an interpolation that is exact at both ends */
            mean[i] = near ? mean[i] + weight1 * (g - mean[i]) : g - (g - mean[i]) * weight1_rest;
            square[i] = square[i] * beta2 + weight2 * g * g;
            parameter[i] = p + rate * mean[i] / (sqrtf(square[i]) / root2 + epsilon);
        });
}

#endif
