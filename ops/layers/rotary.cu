/* rotary.cu: the op `rotary` (rotary.c) on CUDA: a thread per angle, then a thread per pair. */
#include "ops/cuda/kernel.cuh"

extern "C" {
#include "ops/layers/rotary.h"
}

/* table (tau,D): for each timestep the cosines of its D/2 angles, then the sines; `count`: number of angles. */
static __global__ void angles(int64_t count, int64_t half, int64_t t0, double base, float way, float *table) {
    RM_EACH(n, count) {
        int64_t t = rm_row_of(n, half), i = n - t * half;
        double angle = (double)(t0 + t) * rm_rotary_speed(base, i, 2 * half);
        table[t * 2 * half + i] = (float)cos(angle);
        table[t * 2 * half + half + i] = way * (float)sin(angle);
    }
}

/* `pairs`: pairs per timestep, over batch and heads. */
static __global__ void turn(int64_t count, int64_t pairs, int64_t half, const float *table, const float *x, float *y) {
    RM_EACH(n, count) {
        int64_t t = rm_row_of(n, pairs), head = rm_row_of(n, half), i = n - head * half, at = head * 2 * half + i;
        float cosine = table[t * 2 * half + i], sine = table[t * 2 * half + half + i], a = x[at], b = x[at + half];
        y[at] = a * cosine - b * sine;
        y[at + half] = b * cosine + a * sine;
    }
}

static void launch(const remat_call *call, float way, const void *x, void *y) {
    const rm_rotary_attr *a = (const rm_rotary_attr *)call->attr;
    const remat_desc *d = &call->x[0].desc;
    int64_t half = d->dim[2] / a->heads / 2, pairs = d->dim[1] * d->dim[2] / 2;
    float *table = (float *)call->scratch;
    RM_LAUNCH_EACH(angles, d->dim[0] * half, call->queue, d->dim[0] * half, half, call->t0, a->base, way, table);
    RM_LAUNCH_EACH(turn, d->dim[0] * pairs, call->queue, d->dim[0] * pairs, pairs, half, table, (const float *)x,
                   (float *)y);
}

void rm_rotary_forward_cuda(const remat_call *call) { launch(call, 1, call->x[0].data, call->y.data); }
void rm_rotary_backward_cuda(const remat_call *call) {
    if (call->dx[0].data) launch(call, -1, call->dy.data, call->dx[0].data);
}
