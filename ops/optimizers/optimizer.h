/* optimizer.h: what an optimizer is: one file, one `const rm_optimizer`, one line in optimizers.def.
 * It updates one parameter at a time, in place; clipping has been folded into `gradient_scale`. */
#ifndef RM_OPTIMIZER_H
#define RM_OPTIMIZER_H

#include "engine/tensor.h"

struct rm_cuda_queue;

#define RM_MAX_OPTIMIZER_STATE 2
#define RM_MAX_OPTIMIZER_SUMS 2

typedef struct {
    double lr, momentum, beta1, beta2, alpha, epsilon, weight_decay;
    bool nesterov;
    int64_t step;          /* of this update, from 1: for bias correction, and sgd's first momentum step */
    double gradient_scale; /* the clip coefficient; 1 when not clipping. Multiplied in float, as PyTorch does */
    double gradient_limit; /* no element of the gradient counts as more, in either direction; 0: no limit. Not with `measure` */
    int threads;
    /* Of optimizers with a `measure`: what it added up over the whole array, on all ranks; whether this array is scaled by it
     * (biases and gains are not, by default). */
    double sum[RM_MAX_OPTIMIZER_SUMS];
    bool adapt;
    double trust_coefficient; /* lars */
    double momentum_factor;   /* lars: what the velocity is multiplied by beside momentum: lr / last lr, or 1 */
    double norm_limit;        /* lamb: a larger norm of the weights counts as this much; 0: no limit */
} rm_update;

typedef struct {
    const char *name, *doc;                         /* doc: the formula and where it comes from */
    int n_state;                                    /* arrays of the parameter's size, zero before the first update */
    const char *state_name[RM_MAX_OPTIMIZER_STATE]; /* PyTorch's names: "momentum_buffer"; "exp_avg", "exp_avg_sq" */
    /* How many of n_state this configuration really needs (sgd without momentum: 0). */
    int (*states_used)(const rm_update *);
    /* Layer-wise optimizers (LARS, LAMB); NULL: `update` works element by element. Adds the n elements' share of up to two
     * sums (squares of weights, of the gradient or the step) to `sum`, in an order that n alone decides; may bring state up
     * to date. Called once for each part of an array that a rank holds, before `update` of any part of it; also for arrays
     * that are not adapted. */
    void (*measure)(const rm_update *, int64_t n, const float *parameter, const float *gradient, float *const *state,
                    double sum[RM_MAX_OPTIMIZER_SUMS]);
    /* n elements; state[i] each n elements. The gradient is left as it was. */
    void (*update)(const rm_update *, int64_t n, float *parameter, const float *gradient, float *const *state);
    /* The same on a CUDA device; NULL: lacking. The arrays are the device's, `state` itself the host's. sum is device memory
     * of RM_MAX_OPTIMIZER_SUMS doubles, overwritten with this call's share when the queue gets there. */
    void (*measure_cuda)(const struct rm_cuda_queue *, const rm_update *, int64_t n, const float *parameter,
                         const float *gradient, float *const *state, double *sum);
    void (*update_cuda)(const struct rm_cuda_queue *, const rm_update *, int64_t n, float *parameter,
                        const float *gradient, float *const *state);
} rm_optimizer;

/* The CUDA column of a descriptor, RM_CUDA_OPTIMIZER(lamb, measure): a launcher in ops/optimizers/lamb.cu, or NULL (cuda_queue.h). */
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

/* Sum of squares of n floats in double, in an order that depends on n alone (not on threads): for the global
 * 2-norm. NaN and Inf come through. */
double rm_sum_of_squares(const float *x, int64_t n, int threads);

#endif
