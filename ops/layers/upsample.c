/* upsample.c: makes planes `scale` times as high and wide: PyTorch's Upsample, nearest or bilinear. */
#include "ops/layers/upsample.h"

#include "ops/shape.h"

static remat_status infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    (void)state;
    const rm_upsample_attr *a = attr;
    TRY(rm_want_real("upsample", "x", x));
    TRY(rm_want_rank("upsample", "x", x, 3, REMAT_MAX_RANK));
    REQUIRE(a && a->scale[0] > 0 && a->scale[1] > 0 && a->scale[0] <= INT16_MAX && a->scale[1] <= INT16_MAX, INVALID,
            "upsample: the scale is %lld x %lld; it must be whole numbers from 1 to %d", a ? (long long)a->scale[0] : 0,
            a ? (long long)a->scale[1] : 0, INT16_MAX);
    REQUIRE(a->mode >= REMAT_NEAREST && a->mode <= REMAT_BILINEAR_CORNERS, INVALID,
            "upsample: the mode is %lld; use one that remat_upsample lists", (long long)a->mode);
    *y = *x;
    for (int d = 0; d < 2; d++) {
        int64_t *size = &y->dim[x->rank - 2 + d];
        REQUIRE(!__builtin_mul_overflow(*size, a->scale[d], size), INVALID, "upsample: the result is too large");
    }
    return REMAT_OK;
}

static void cost(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass, remat_cost *out) {
    (void)attr, (void)pass;
    double bytes = (double)(rm_desc_count(x) + rm_desc_count(y)) * sizeof(real);
    *out = (remat_cost){.flops = 8 * (double)rm_desc_count(y), .moved_bytes = bytes};
}

static void enlarge(const rm_upsample_shape *s, const real *from, real *to) {
    for (int64_t r = 0; r < s->out[0]; r++) {
        rm_upsample_source down = rm_upsample_source_of(s, 0, r);
        const real *low = from + down.low * s->in[1], *high = from + down.high * s->in[1];
        for (int64_t q = 0; q < s->out[1]; q++) {
            rm_upsample_source across = rm_upsample_source_of(s, 1, q);
            real above = (1 - across.part) * low[across.low] + across.part * low[across.high];
            real below = (1 - across.part) * high[across.low] + across.part * high[across.high];
            *to++ = (1 - down.part) * above + down.part * below;
        }
    }
}

static void gather(const rm_upsample_shape *s, const real *above, real *to) {
    for (int64_t i = 0; i < s->in[0] * s->in[1]; i++) to[i] = 0;
    for (int64_t r = 0; r < s->out[0]; r++) {
        rm_upsample_source down = rm_upsample_source_of(s, 0, r);
        real *low = to + down.low * s->in[1], *high = to + down.high * s->in[1];
        for (int64_t q = 0; q < s->out[1]; q++, above++) {
            rm_upsample_source across = rm_upsample_source_of(s, 1, q);
            real of_low = (1 - down.part) * *above, of_high = down.part * *above;
            low[across.low] += (1 - across.part) * of_low;
            low[across.high] += across.part * of_low;
            high[across.low] += (1 - across.part) * of_high;
            high[across.high] += across.part * of_high;
        }
    }
}

static void forward(const remat_call *call) {
    const rm_upsample_shape s = rm_upsample_shape_of(&call->x[0].desc, call->attr);
    const real *x = call->x[0].data;
    real *y = call->y.data;
    int64_t pixels = s.in[0] * s.in[1], positions = s.out[0] * s.out[1];
    RM_PARALLEL_FOR(call->threads, s.planes * positions > RM_PARALLEL_MIN,
                    for (int64_t plane = 0; plane < s.planes; plane++)
                        enlarge(&s, x + plane * pixels, y + plane * positions););
}

static void backward(const remat_call *call) {
    const rm_upsample_shape s = rm_upsample_shape_of(&call->x[0].desc, call->attr);
    const real *dy = call->dy.data;
    real *dx = call->dx[0].data;
    int64_t pixels = s.in[0] * s.in[1], positions = s.out[0] * s.out[1];
    if (!dx) return;
    RM_PARALLEL_FOR(call->threads, s.planes * positions > RM_PARALLEL_MIN,
                    for (int64_t plane = 0; plane < s.planes; plane++)
                        gather(&s, dy + plane * positions, dx + plane * pixels););
}

static const rm_upsample_attr nearest = {{2, 3}, REMAT_NEAREST}, bilinear = {{3, 2}, REMAT_BILINEAR},
                              corners = {{2, 2}, REMAT_BILINEAR_CORNERS};
static const remat_sample samples[] = {
    {.name = "nearest", .attr = &nearest, .x = {RM_SHAPE4(RM_REAL, 2, 3, 4, 5)}},
    {.name = "bilinear", .attr = &bilinear, .x = {RM_SHAPE3(RM_REAL, 2, 1, 6)}},
    {.name = "corners", .attr = &corners, .x = {RM_SHAPE4(RM_REAL, 2, 2, 4, 1)}},
    {.name = "sequence", .sequence = true, .attr = &corners, .x = {RM_SHAPE4(RM_REAL, 4, 2, 3, 4)}},
    {.name = "large enough for threads", .attr = &bilinear, .x = {RM_SHAPE4(RM_REAL, 2, 5, 43, 41)}},
};

const remat_op RM_OP(upsample) = {
    .struct_bytes = sizeof(remat_op),
    .name = "upsample",
    .doc = "y (..,s H,s W) = x (..,H,W) upsampled, nearest or bilinear",
    .n_in = 1,
    .attr_bytes = sizeof(rm_upsample_attr),
    .time = REMAT_TIME_POINTWISE,
    .infer = infer,
    .cost = cost,
    .define_forward = forward,
    .define_backward = backward,
    .on = {{.forward = forward, .backward = backward}, RM_CUDA_KERNELS(upsample)},
    .cheap = true,
    .samples = samples,
    .n_samples = sizeof samples / sizeof *samples,
};
