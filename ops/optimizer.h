/* optimizer.h: what an optimizer is: one file, one `const rm_optimizer`, one line in optimizers.def.
 * It updates one parameter at a time, in place; clipping has been folded into `gradient_scale`. */
#ifndef RM_OPTIMIZER_H
#define RM_OPTIMIZER_H

#include "engine/tensor.h"

#define RM_MAX_OPTIMIZER_STATE 2

typedef struct {
    double lr, momentum, beta1, beta2, epsilon, weight_decay;
    bool nesterov;
    int64_t step;          /* of this update, from 1: for bias correction, and sgd's first momentum step */
    double gradient_scale; /* the clip coefficient; 1 when not clipping. Multiplied in float, as PyTorch does */
    int threads;
} rm_update;

typedef struct {
    const char *name, *doc; /* doc: the formula and where it comes from */
    int n_state;            /* arrays of the parameter's size, zero before the first update */
    const char *state_name[RM_MAX_OPTIMIZER_STATE]; /* PyTorch's names: "momentum_buffer"; "exp_avg", "exp_avg_sq" */
    /* How many of n_state this configuration really needs (sgd without momentum: 0). */
    int (*states_used)(const rm_update *);
    /* n elements; state[i] each n elements. The gradient is left as it was. */
    void (*update)(const rm_update *, int64_t n, float *parameter, const float *gradient, float *const *state);
} rm_optimizer;

extern const rm_optimizer *const rm_optimizers[];
extern const int rm_n_optimizers;
const rm_optimizer *rm_optimizer_find(const char *name); /* NULL: no such optimizer */

/* Sum of squares of n floats in double, in an order that depends on n alone (not on threads): for the global
 * 2-norm. NaN and Inf come through. */
double rm_sum_of_squares(const float *x, int64_t n, int threads);

#endif
