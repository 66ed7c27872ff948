/* optimizer.cuh: the loop of the optimizers' CUDA kernels: a thread updates four elements at a time, so each array is read
 * and written once, 16 bytes at a time. */
#ifndef RM_OPTIMIZER_CUH
#define RM_OPTIMIZER_CUH

#include "ops/cuda/fours.cuh"

#include "ops/optimizers/optimizer_steps.h"

/* step(&parameter, gradient, &first, &second) for each element; the states `first` and `second` may be NULL, and then
 * their elements are not stored. */
template <typename F>
static __device__ inline void rm_each_update(int64_t n, float *parameter, const float *gradient, float *first,
                                             float *second, F step) {
    RM_EACH_FOUR(i, n) {
        const int64_t left = n - i;
        const rm_four g = rm_load_four(gradient + i, left);
        rm_four p = rm_load_four(parameter + i, left), a = {}, b = {};
        if (first) a = rm_load_four(first + i, left);
        if (second) b = rm_load_four(second + i, left);
        RM_UNROLL for (int k = 0; k < 4; k++) step(&p.v[k], g.v[k], &a.v[k], &b.v[k]);
        rm_store_four(parameter + i, left, p);
        if (first) rm_store_four(first + i, left, a);
        if (second) rm_store_four(second + i, left, b);
    }
}

#endif
