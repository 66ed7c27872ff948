/* avg_pool.c: the mean of every window of a plane; padding counts as zeros. PyTorch's AvgPool2d. */
#include "ops/layers/pool.h"

static remat_status infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    (void)state;
    return rm_pool_infer("avg_pool", x, attr, y);
}

static void cost(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass, remat_cost *out) {
    (void)pass;
    const rm_pool_attr *a = attr;
    double bytes = (double)(rm_desc_count(x) + rm_desc_count(y)) * sizeof(real);
    *out = (remat_cost){.flops = (double)(rm_desc_count(y) * a->window[0] * a->window[1]), .moved_bytes = bytes};
}

static void average(const rm_pool_shape *s, const real *from, real *to) {
    const real share = 1 / (real)(s->window[0] * s->window[1]);
    for (int64_t r = 0; r < s->out[0]; r++)
        for (int64_t q = 0; q < s->out[1]; q++) {
            rm_pool_window w = rm_pool_window_at(s, r, q);
            real sum = 0;
            for (int64_t y = w.y[0]; y < w.y[1]; y++)
                for (int64_t x = w.x[0]; x < w.x[1]; x++) sum += from[y * s->in[1] + x];
            *to++ = sum * share;
        }
}

static void spread(const rm_pool_shape *s, const real *above, real *to) {
    const real share = 1 / (real)(s->window[0] * s->window[1]);
    for (int64_t i = 0; i < s->in[0] * s->in[1]; i++) to[i] = 0;
    for (int64_t r = 0; r < s->out[0]; r++)
        for (int64_t q = 0; q < s->out[1]; q++, above++) {
            rm_pool_window w = rm_pool_window_at(s, r, q);
            for (int64_t y = w.y[0]; y < w.y[1]; y++)
                for (int64_t x = w.x[0]; x < w.x[1]; x++) to[y * s->in[1] + x] += *above * share;
        }
}

static void forward(const remat_call *call) {
    const rm_pool_shape s = rm_pool_shape_of(&call->x[0].desc, call->attr);
    const real *x = call->x[0].data;
    real *y = call->y.data;
    int64_t pixels = s.in[0] * s.in[1], positions = s.out[0] * s.out[1];
    RM_PARALLEL_FOR(call->threads, s.planes * pixels > RM_PARALLEL_MIN,
                    for (int64_t plane = 0; plane < s.planes; plane++)
                        average(&s, x + plane * pixels, y + plane * positions););
}

static void backward(const remat_call *call) {
    const rm_pool_shape s = rm_pool_shape_of(&call->x[0].desc, call->attr);
    const real *dy = call->dy.data;
    real *dx = call->dx[0].data;
    int64_t pixels = s.in[0] * s.in[1], positions = s.out[0] * s.out[1];
    if (!dx) return;
    RM_PARALLEL_FOR(call->threads, s.planes * pixels > RM_PARALLEL_MIN,
                    for (int64_t plane = 0; plane < s.planes; plane++)
                        spread(&s, dy + plane * positions, dx + plane * pixels););
}

static const rm_pool_attr halves = {{2, 2}, {2, 2}, {0, 0}}, overlapping = {{3, 2}, {2, 1}, {1, 1}};
static const remat_sample samples[] = {
    {.name = "halves", .attr = &halves, .x = {RM_SHAPE4(RM_REAL, 2, 3, 4, 7)}},
    {.name = "windows that overlap", .attr = &overlapping, .x = {RM_SHAPE3(RM_REAL, 2, 5, 6)}},
    {.name = "sequence", .sequence = true, .attr = &overlapping, .x = {RM_SHAPE4(RM_REAL, 4, 2, 3, 4)}},
    {.name = "large enough for threads", .attr = &overlapping, .x = {RM_SHAPE4(RM_REAL, 2, 5, 83, 81)}},
};

const remat_op RM_OP(avg_pool) = {
    .struct_bytes = sizeof(remat_op),
    .name = "avg_pool",
    .doc = "y (..,H',W') = the mean of each window of x (..,H,W)",
    .n_in = 1,
    .attr_bytes = sizeof(rm_pool_attr),
    .time = REMAT_TIME_POINTWISE,
    .infer = infer,
    .cost = cost,
    .define_forward = forward,
    .define_backward = backward,
    .on = {{.forward = forward, .backward = backward}, RM_CUDA_KERNELS(avg_pool)},
    .cheap = true,
    .samples = samples,
    .n_samples = sizeof samples / sizeof *samples,
};
