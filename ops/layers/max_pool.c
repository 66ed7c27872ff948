/* max_pool.c: the largest of every window of a plane, PyTorch's MaxPool2d. Where it was is found again in backward. */
#include "ops/layers/pool.h"

static remat_status infer(const rm_desc *x, const void *attr, rm_desc *y, rm_desc *state) {
    (void)state;
    return rm_pool_infer("max_pool", x, attr, y);
}

static void cost(const rm_desc *x, const rm_desc *y, const void *attr, rm_pass pass, rm_cost *out) {
    const rm_pool_attr *a = attr;
    double bytes = (double)(rm_desc_count(x) + rm_desc_count(y)) * sizeof(real);
    *out = (rm_cost){.flops = (double)(rm_desc_count(y) * a->window[0] * a->window[1]), .moved_bytes = bytes};
    if (pass == RM_BACKWARD) out->moved_bytes += bytes;
}

static void forward(const rm_call *call) {
    const rm_pool_shape s = rm_pool_shape_of(&call->x[0].desc, call->attr);
    const real *x = call->x[0].data;
    real *y = call->y.data;
    int64_t pixels = s.in[0] * s.in[1], positions = s.out[0] * s.out[1];
    RM_PARALLEL_FOR(
        call->threads, s.planes * pixels > RM_PARALLEL_MIN, for (int64_t plane = 0; plane < s.planes; plane++) {
            const real *from = x + plane * pixels;
            real *to = y + plane * positions;
            for (int64_t r = 0; r < s.out[0]; r++)
                for (int64_t q = 0; q < s.out[1]; q++) *to++ = from[rm_pool_largest(&s, from, r, q)];
        });
}

static void backward(const rm_call *call) {
    const rm_pool_shape s = rm_pool_shape_of(&call->x[0].desc, call->attr);
    const real *x = call->x[0].data, *dy = call->dy.data;
    real *dx = call->dx[0].data;
    int64_t pixels = s.in[0] * s.in[1], positions = s.out[0] * s.out[1];
    if (!dx) return;
    RM_PARALLEL_FOR(
        call->threads, s.planes * pixels > RM_PARALLEL_MIN, for (int64_t plane = 0; plane < s.planes; plane++) {
            const real *from = x + plane * pixels, *above = dy + plane * positions;
            real *to = dx + plane * pixels;
            for (int64_t i = 0; i < pixels; i++) to[i] = 0;
            for (int64_t r = 0; r < s.out[0]; r++)
                for (int64_t q = 0; q < s.out[1]; q++) to[rm_pool_largest(&s, from, r, q)] += *above++;
        });
}

static const rm_pool_attr halves = {{2, 2}, {2, 2}, {0, 0}}, overlapping = {{3, 2}, {2, 1}, {1, 1}};
static const rm_sample samples[] = {
    {.name = "halves", .attr = &halves, .x = {RM_SHAPE4(RM_REAL, 2, 3, 4, 7)}},
    {.name = "windows that overlap", .attr = &overlapping, .x = {RM_SHAPE3(RM_REAL, 2, 5, 6)}},
    {.name = "sequence", .sequence = true, .attr = &overlapping, .x = {RM_SHAPE4(RM_REAL, 4, 2, 3, 4)}},
    {.name = "large enough for threads", .attr = &overlapping, .x = {RM_SHAPE4(RM_REAL, 2, 5, 83, 81)}},
};

const rm_op RM_OP(max_pool) = {
    .struct_bytes = sizeof(rm_op),
    .name = "max_pool",
    .doc = "y (..,H',W') = the largest of each window of x (..,H,W)",
    .n_in = 1,
    .attr_bytes = sizeof(rm_pool_attr),
    .time = RM_TIME_POINTWISE,
    .saves = {.in = 1},
    .infer = infer,
    .cost = cost,
    .define_forward = forward,
    .define_backward = backward,
    .on = {{.forward = forward, .backward = backward}, RM_CUDA_KERNELS(max_pool)},
    .cheap = true,
    .samples = samples,
    .n_samples = sizeof samples / sizeof *samples,
};
