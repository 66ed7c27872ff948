/* optimizer_steps.h: each optimizer's update of one element, shared by the definitions in C and
 * the CUDA kernels. rm_NAME_of converts an rm_update into the floats that the update needs, once per call, on the host.
 * The formulas are in NAME.c. */
#ifndef RM_OPTIMIZER_STEPS_H
#define RM_OPTIMIZER_STEPS_H

#include <math.h>

#include "engine/host_device.h"
#include "ops/optimizers/optimizer.h"

/* Scales and clamps a gradient, the first step of every update. NaN is passed through. */
typedef struct {
    float scale, limit;
} rm_clip;

static inline rm_clip rm_clip_of(const rm_update *u) {
    rm_clip c = {(float)u->gradient_scale, u->gradient_limit > 0 ? (float)u->gradient_limit : INFINITY};
    return c;
}

RM_HD float rm_clipped(rm_clip c, float gradient) {
    float g = gradient * c.scale;
    return g > c.limit ? c.limit : g < -c.limit ? -c.limit : g;
}

/* ---- sgd --------------------------------------------------------------------------------------------------------- */

typedef struct {
    rm_clip clip;
    float decay, momentum, rate;
    bool nesterov, first;
} rm_sgd;

static inline rm_sgd rm_sgd_of(const rm_update *u) {
    rm_sgd s = {rm_clip_of(u), (float)u->weight_decay, (float)u->momentum, -(float)u->lr, u->nesterov, u->step == 1};
    return s;
}

/* `buffer`: the element's momentum; NULL without */
RM_HD void rm_sgd_step(const rm_sgd *s, float *parameter, float gradient, float *buffer) {
    float g = rm_clipped(s->clip, gradient);
    if (s->decay != 0) g += s->decay * *parameter;
    if (buffer) {
        *buffer = s->first ? g : s->momentum * *buffer + g;
        g = s->nesterov ? g + s->momentum * *buffer : *buffer;
    }
    *parameter += s->rate * g;
}

/* ---- adam and adamw, which differ only in the weight decay ------------------------------------------------------- */

/* The order of operations is PyTorch's (torch.optim.Adam, one tensor at a time), so that runs can be compared step by
 * step. */
typedef struct {
    rm_clip clip;
    float epsilon, decay, shrink, weight1, weight1_rest, beta2, weight2, root2, rate;
} rm_adam;

/* decay_gradient: g += weight_decay p (Adam with an L2 penalty). Otherwise: p *= 1 - lr weight_decay (decoupled). */
static inline rm_adam rm_adam_of(const rm_update *u, bool decay_gradient) {
    double correction1 = 1 - pow(u->beta1, (double)u->step), correction2 = 1 - pow(u->beta2, (double)u->step);
    rm_adam a;
    a.clip = rm_clip_of(u), a.epsilon = (float)u->epsilon;
    a.decay = decay_gradient ? (float)u->weight_decay : 0;
    a.shrink = decay_gradient ? 1 : (float)(1 - u->lr * u->weight_decay);
    a.weight1 = (float)(1 - u->beta1), a.weight1_rest = (float)u->beta1;
    a.beta2 = (float)u->beta2, a.weight2 = (float)(1 - u->beta2);
    a.root2 = (float)sqrt(correction2), a.rate = -(float)(u->lr / correction1);
    return a;
}

RM_HD void rm_adam_step(const rm_adam *a, float *parameter, float gradient, float *mean, float *square) {
    float p = *parameter * a->shrink, g = rm_clipped(a->clip, gradient);
    g = a->decay != 0 ? g + a->decay * p : g;
    /* mean = beta1 mean + (1 - beta1) g, as an interpolation that is exact at both ends */
    *mean = a->weight1 < 0.5f ? *mean + a->weight1 * (g - *mean) : g - (g - *mean) * a->weight1_rest;
    *square = *square * a->beta2 + a->weight2 * g * g;
    *parameter = p + a->rate * *mean / (sqrtf(*square) / a->root2 + a->epsilon);
}

/* ---- rmsprop ----------------------------------------------------------------------------------------------------- */

typedef struct {
    rm_clip clip;
    float decay, alpha, weight, epsilon, momentum, rate;
} rm_rmsprop;

static inline rm_rmsprop rm_rmsprop_of(const rm_update *u) {
    rm_rmsprop r;
    r.clip = rm_clip_of(u), r.decay = (float)u->weight_decay;
    r.alpha = (float)u->alpha, r.weight = (float)(1 - u->alpha);
    r.epsilon = (float)u->epsilon, r.momentum = (float)u->momentum, r.rate = -(float)u->lr;
    return r;
}

/* `buffer`: the element's momentum; NULL without */
RM_HD void rm_rmsprop_step(const rm_rmsprop *r, float *parameter, float gradient, float *square, float *buffer) {
    float g = rm_clipped(r->clip, gradient);
    if (r->decay != 0) g += r->decay * *parameter;
    *square = *square * r->alpha + r->weight * g * g;
    float root = sqrtf(*square) + r->epsilon;
    if (buffer) *buffer = r->momentum * *buffer + g / root;
    *parameter += buffer ? r->rate * *buffer : r->rate * g / root;
}

/* ---- adagrad ----------------------------------------------------------------------------------------------------- */

typedef struct {
    rm_clip clip;
    float decay, epsilon, rate;
} rm_adagrad;

static inline rm_adagrad rm_adagrad_of(const rm_update *u) {
    rm_adagrad a = {rm_clip_of(u), (float)u->weight_decay, (float)u->epsilon, -(float)u->lr};
    return a;
}

RM_HD void rm_adagrad_step(const rm_adagrad *a, float *parameter, float gradient, float *sum) {
    float g = rm_clipped(a->clip, gradient);
    if (a->decay != 0) g += a->decay * *parameter;
    *sum += g * g;
    *parameter += a->rate * g / (sqrtf(*sum) + a->epsilon);
}

/* ---- adadelta ---------------------------------------------------------------------------------------------------- */

typedef struct {
    rm_clip clip;
    float decay, alpha, weight, epsilon, rate;
} rm_adadelta;

static inline rm_adadelta rm_adadelta_of(const rm_update *u) {
    rm_adadelta a;
    a.clip = rm_clip_of(u), a.decay = (float)u->weight_decay;
    a.alpha = (float)u->alpha, a.weight = (float)(1 - u->alpha);
    a.epsilon = (float)u->epsilon, a.rate = -(float)u->lr;
    return a;
}

RM_HD void rm_adadelta_step(const rm_adadelta *a, float *parameter, float gradient, float *square, float *moved) {
    float g = rm_clipped(a->clip, gradient);
    if (a->decay != 0) g += a->decay * *parameter;
    *square = *square * a->alpha + a->weight * g * g;
    float delta = sqrtf(*moved + a->epsilon) / sqrtf(*square + a->epsilon) * g;
    *moved = *moved * a->alpha + a->weight * delta * delta;
    *parameter += a->rate * delta;
}

/* ---- lars -------------------------------------------------------------------------------------------------------- */

enum { RM_LARS_WEIGHTS, RM_LARS_GRADIENT }; /* the sums of squares */

typedef struct {
    float scale, rate, decay, momentum, carried;
    bool nesterov;
} rm_lars;

/* NaN norms are passed through: no comparison hides them. */
static inline double rm_lars_trust(const rm_update *u) {
    double w = sqrt(u->sum[RM_LARS_WEIGHTS]), g = sqrt(u->sum[RM_LARS_GRADIENT]) * u->gradient_scale;
    if (!u->adapt || w == 0 || g == 0) return 1;
    return u->trust_coefficient * w / (g + u->weight_decay * w + u->epsilon);
}

static inline rm_lars rm_lars_of(const rm_update *u) {
    rm_lars l;
    l.scale = (float)u->gradient_scale, l.rate = (float)(u->lr * rm_lars_trust(u));
    l.decay = (float)u->weight_decay;
    l.momentum = (float)u->momentum, l.carried = (float)(u->momentum * u->momentum_factor);
    l.nesterov = u->nesterov;
    return l;
}

/* `velocity`: the element's; NULL without momentum */
RM_HD void rm_lars_step(const rm_lars *l, float *parameter, float gradient, float *velocity) {
    float step = l->rate * (gradient * l->scale + l->decay * *parameter), v = -step;
    if (velocity) {
        *velocity = l->carried * *velocity - step;
        v = l->nesterov ? l->momentum * *velocity - step : *velocity;
    }
    *parameter += v;
}

/* ---- lamb -------------------------------------------------------------------------------------------------------- */

enum { RM_LAMB_WEIGHTS, RM_LAMB_DIRECTION }; /* the sums of squares */

/* Constants for the moments and the direction. measure and update both compute the direction, from the same floats. */
typedef struct {
    float scale, beta1, beta2, weight1, weight2;
    float correction1, root2, epsilon, decay;
    float rate; /* used by update alone: it depends on the sums */
} rm_lamb;

/* NaN norms are passed through: no comparison hides them. */
static inline double rm_lamb_ratio(const rm_update *u) {
    double w = sqrt(u->sum[RM_LAMB_WEIGHTS]), d = sqrt(u->sum[RM_LAMB_DIRECTION]);
    if (!u->adapt || w == 0 || d == 0) return 1;
    return (u->norm_limit > 0 && w > u->norm_limit ? u->norm_limit : w) / d;
}

static inline rm_lamb rm_lamb_of(const rm_update *u) {
    rm_lamb l;
    l.scale = (float)u->gradient_scale, l.beta1 = (float)u->beta1, l.beta2 = (float)u->beta2;
    l.weight1 = (float)(1 - u->beta1), l.weight2 = (float)(1 - u->beta2);
    l.correction1 = (float)(1 / (1 - pow(u->beta1, (double)u->step)));
    l.root2 = (float)(1 / sqrt(1 - pow(u->beta2, (double)u->step)));
    l.epsilon = (float)u->epsilon;
    l.decay = (float)u->weight_decay;
    l.rate = (float)(u->lr * rm_lamb_ratio(u));
    return l;
}

RM_HD void rm_lamb_moments(const rm_lamb *l, float gradient, float *mean, float *square) {
    float g = gradient * l->scale;
    *mean = l->beta1 * *mean + l->weight1 * g;
    *square = l->beta2 * *square + l->weight2 * g * g;
}

RM_HD float rm_lamb_direction(const rm_lamb *l, float p, float mean, float square) {
    return mean * l->correction1 / (sqrtf(square) * l->root2 + l->epsilon) + l->decay * p;
}

#endif
