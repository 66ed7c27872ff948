/* dropout.cu: the CUDA kernels of the op `dropout` (dropout.c). The mask is a function of (seed, step, node, timestep,
 * element) alone, so it equals the CPU's, bit for bit. Both passes are the same function. */
#include "ops/cuda/fours.cuh"

#include "engine/rng.h"
#include "ops/elementwise/activation.h"

/* The position of the tile, and the parameters: steps of `width` elements with `quads` counters each. */
typedef struct {
    remat_key key;
    int64_t t0, width, quads;
    uint32_t threshold;
    float scale;
} map;

/* A thread draws four numbers from one counter. */
static __global__ void drop(int64_t n, map m, const float *in, float *out) {
    RM_EACH(job, n) {
        int64_t t = rm_row_of(job, m.quads), quad = job - t * m.quads, at = t * m.width, from = 4 * quad;
        rm_philox draw = rm_random4(m.key.seed, m.key.step, m.key.node, (uint32_t)(m.t0 + t), (uint32_t)quad);
        rm_four x = rm_load_four(in + at + from, m.width - from);
        RM_UNROLL for (int k = 0; k < 4; k++) x.v[k] = rm_dropout(x.v[k], draw.word[k], m.threshold, m.scale);
        rm_store_four(out + at + from, m.width - from, x);
    }
}

static __global__ void copy(int64_t n, const float *in, float *out) {
    rm_map(n, in, out, [](int64_t, float x) { return x; });
}

static void launch(const remat_call *call, const remat_desc *shape, const void *in, void *out) {
    double p = ((const rm_dropout_attr *)call->attr)->probability;
    int64_t count = rm_desc_count(shape), steps = rm_call_steps(call, shape), width = count / steps;
    if (!out) return;
    if (!call->training) {
        RM_LAUNCH_FOURS(copy, count, call->queue, count, (const float *)in, (float *)out);
        return;
    }
    map m = {call->key, call->t0, width, (width + 3) / 4, rm_dropout_threshold(p), rm_dropout_scale(p)};
    int64_t jobs = steps * m.quads;
    RM_LAUNCH_EACH(drop, jobs, call->queue, jobs, m, (const float *)in, (float *)out);
}

void rm_dropout_forward_cuda(const remat_call *call) { launch(call, &call->y.desc, call->x[0].data, call->y.data); }
void rm_dropout_backward_cuda(const remat_call *call) { launch(call, &call->dy.desc, call->dy.data, call->dx[0].data); }
