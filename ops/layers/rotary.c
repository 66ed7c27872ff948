/* rotary.c: rotary positions (Su et al. 2021, "RoFormer"): at timestep t, features i and i + D/2 of each head with D
 * features are rotated by the angle t base^(-2i/D). Products of a rotated q and a rotated k depend only on their
 * distance in time. The pairing is that of Hugging Face's Llama. Backward rotates in the opposite direction. */
#include "ops/layers/rotary.h"

#include "ops/math/parallel.h"
#include "ops/real.h"
#include "ops/shape.h"

static remat_status infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    (void)state;
    char text[REMAT_DESC_TEXT];
    const rm_rotary_attr *a = attr;
    TRY(rm_want_real("rotary", "x", x));
    TRY(rm_want_rank("rotary", "x", x, 3, 3));
    REQUIRE(a && a->heads >= 1 && x->dim[2] % (2 * a->heads) == 0, INVALID,
            "rotary: x is %s, whose %lld features are not pairs in each of %lld heads; use a number that divides half "
            "of them",
            rm_desc_text(x, text), (long long)x->dim[2], (long long)(a ? a->heads : 0));
    REQUIRE(a->base > 0 && isfinite(a->base), INVALID, "rotary: base is %g; it must be above 0", a->base);
    *y = *x;
    return REMAT_OK;
}

static int64_t width_of(const remat_desc *x, const void *attr) {
    return x->dim[2] / ((const rm_rotary_attr *)attr)->heads;
}

static void cost(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass, remat_cost *out) {
    (void)pass;
    int64_t width = width_of(x, attr);
    *out = rm_cost_streaming(y, 3, 2);
    out->flops += 100 * (double)(x->dim[0] * width); /* sines */
    out->scratch_bytes = (uint64_t)(x->dim[0] * width) * sizeof(real);
}

/* table (tau,D): for each timestep the cosines of the pairs' angles, then their sines times `way` (1 or -1). */
static void angles(const remat_call *call, int64_t width, real way, real *table) {
    double base = ((const rm_rotary_attr *)call->attr)->base;
    int64_t steps = call->x[0].desc.dim[0], half = width / 2, t0 = call->t0;
    RM_PARALLEL_FOR(
        call->threads, steps * width > RM_PARALLEL_MIN_HEAVY / 8, for (int64_t i = 0; i < half; i++) {
            double speed = rm_rotary_speed(base, i, width);
            for (int64_t t = 0; t < steps; t++) {
                double angle = (double)(t0 + t) * speed;
                table[t * width + i] = (real)cos(angle), table[t * width + half + i] = way * (real)sin(angle);
            }
        });
}

/* Rotates all heads of one row. */
static void turn_row(int64_t features, int64_t width, const real *table, const real *x, real *y) {
    int64_t half = width / 2;
    const real *cosine = table, *sine = table + half;
    for (int64_t at = 0; at < features; at += width)
        for (int64_t i = 0; i < half; i++) {
            real a = x[at + i], b = x[at + half + i];
            y[at + i] = a * cosine[i] - b * sine[i], y[at + half + i] = b * cosine[i] + a * sine[i];
        }
}

static void turn(const remat_call *call, real way, const real *x, real *y) {
    const remat_desc *d = &call->x[0].desc;
    int64_t width = width_of(d, call->attr), rows = d->dim[0] * d->dim[1], batch = d->dim[1], features = d->dim[2];
    real *table = call->scratch;
    angles(call, width, way, table);
    RM_PARALLEL_FOR(call->threads, rows * features > RM_PARALLEL_MIN,
                    for (int64_t row = 0; row < rows; row++) turn_row(features, width, table + row / batch * width,
                                                                      x + row * features, y + row * features););
}

static void forward(const remat_call *call) { turn(call, 1, call->x[0].data, call->y.data); }

static void backward(const remat_call *call) {
    if (call->dx[0].data) turn(call, -1, call->dy.data, call->dx[0].data);
}

static const remat_sample samples[] = {
    {.name = "two heads", .sequence = true, .x = {RM_SHAPE3(RM_REAL, 7, 2, 8)}, .attr = &(rm_rotary_attr){10000, 2}},
    {.name = "one pair", .sequence = true, .x = {RM_SHAPE3(RM_REAL, 5, 3, 2)}, .attr = &(rm_rotary_attr){2, 1}},
    {.name = "large enough for threads",
     .sequence = true,
     .x = {RM_SHAPE3(RM_REAL, 33, 16, 132)},
     .attr = &(rm_rotary_attr){500, 1}},
};

const remat_op RM_OP(rotary) = {
    .struct_bytes = sizeof(remat_op),
    .name = "rotary",
    .doc = "y (T,B,C): features i and i + D/2 of each head of x, D = C/heads, rotated by t base^(-2i/D)",
    .n_in = 1,
    .attr_bytes = sizeof(rm_rotary_attr),
    .time = REMAT_TIME_POINTWISE,
    .infer = infer,
    .cost = cost,
    .define_forward = forward,
    .define_backward = backward,
    .on = {{.forward = forward, .backward = backward}, RM_CUDA_KERNELS(rotary)},
    .cheap = true,
    .samples = samples,
    .n_samples = sizeof samples / sizeof *samples,
};
