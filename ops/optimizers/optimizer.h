/* optimizer.h: the descriptor of an optimizer: one file, one `const rm_optimizer`, one line in optimizers.def.
 * An optimizer updates one parameter at a time, in place; gradient clipping is folded into `gradient_scale`. */
#ifndef RM_OPTIMIZER_H
#define RM_OPTIMIZER_H

#include "engine/tensor.h"

struct rm_cuda_queue;

#define RM_MAX_OPTIMIZER_STATE 2
#define RM_MAX_OPTIMIZER_SUMS 2

typedef struct {
    double lr, momentum, beta1, beta2, alpha, epsilon, weight_decay;
    bool nesterov;
    int64_t step;          /* number of this update, from 1: for bias correction, and sgd's first momentum step */
    double gradient_scale; /* the clip coefficient; 1 without clipping. Multiplied in float, as PyTorch does */
    double gradient_limit; /* gradient elements are clamped to +-limit; 0: no limit. Not used by optimizers with
                              `measure` */
    int threads;
    /* For optimizers with `measure`. sum: its sums over the whole array on all ranks. adapt: whether they scale the
     * update of this array (by default not for biases and gains). */
    double sum[RM_MAX_OPTIMIZER_SUMS];
    bool adapt;
    double trust_coefficient; /* lars */
    double momentum_factor;   /* lars: an additional factor of the velocity: lr / last lr, or 1 */
    double norm_limit;        /* lamb: upper limit of the norm of the weights; 0: no limit */
} rm_update;

typedef struct {
    const char *name, *doc;                         /* doc: the formula and its source */
    const char *settings;                           /* members of remat_config that it reads and others may not */
    int n_state;                                    /* arrays of the parameter's size, 0 before the first update */
    const char *state_name[RM_MAX_OPTIMIZER_STATE]; /* PyTorch's names: "momentum_buffer"; "exp_avg", "exp_avg_sq" */
    /* How many of the n_state arrays this configuration needs (sgd without momentum: 0). */
    int (*states_used)(const rm_update *);
    /* For layer-wise optimizers (LARS, LAMB); NULL: `update` works element by element. Adds the share of n elements in
     * up to two sums (squares of weights, of the gradient or of the step) to `sum`, in an order that depends on n
     * alone; may update the state. Called once for each part of an array that a rank holds, before `update` of any part
     * of it; also for arrays that are not adapted. */
    void (*measure)(const rm_update *, int64_t n, const float *parameter, const float *gradient, float *const *state,
                    double sum[RM_MAX_OPTIMIZER_SUMS]);
    /* Updates n elements; state[i] has n elements each. The gradient is not changed. */
    void (*update)(const rm_update *, int64_t n, float *parameter, const float *gradient, float *const *state);
    /* The same on a CUDA device; NULL: not supported. The arrays are in device memory, `state` itself is in host
     * memory. Queued: `sum`, RM_MAX_OPTIMIZER_SUMS doubles in device memory, is overwritten with this call's share. */
    void (*measure_cuda)(const struct rm_cuda_queue *, const rm_update *, int64_t n, const float *parameter,
                         const float *gradient, float *const *state, double *sum);
    void (*update_cuda)(const struct rm_cuda_queue *, const rm_update *, int64_t n, float *parameter,
                        const float *gradient, float *const *state);
} rm_optimizer;

/* The CUDA column of a descriptor. RM_CUDA_OPTIMIZER(lamb, measure) is the launcher in ops/optimizers/lamb.cu, or NULL
 * without CUDA. */
#if defined REMAT_HAVE_CUDA || defined RM_CUDA_EMULATED
#define OPTIMIZER(name)                                                                                                \
    void rm_##name##_measure_cuda(const struct rm_cuda_queue *, const rm_update *, int64_t, const float *,             \
                                  const float *, float *const *, double *);                                            \
    void rm_##name##_update_cuda(const struct rm_cuda_queue *, const rm_update *, int64_t, float *, const float *,     \
                                 float *const *);
#include "ops/optimizers/optimizers.def"
#undef OPTIMIZER
#define RM_CUDA_OPTIMIZER(name, pass) rm_##name##_##pass##_cuda
#else
#define RM_CUDA_OPTIMIZER(name, pass) NULL
#endif

extern const rm_optimizer *const rm_optimizers[];
extern const int rm_n_optimizers;
const rm_optimizer *rm_optimizer_find(const char *name); /* NULL: no such optimizer */

/* Sum of the squares of n floats in double, for the global 2-norm. The order depends on n alone, not on `threads`. NaN
 * and infinity are passed through. */
double rm_sum_of_squares(const float *x, int64_t n, int threads);

#endif
