/* step_at.c: the op `step_at`: selects a timestep for each row of a sequence, such as the last one if rows differ in
 * length. A tile gives zeros for timesteps in other tiles; the engine adds the tiles. */
#include "ops/real.h"

#include <string.h>

#include "ops/op.h"
#include "ops/shape.h"

enum { X, INDEX };

static remat_status infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    (void)attr, (void)state;
    char text[REMAT_DESC_TEXT];
    TRY(rm_want_real("step_at", "x", &x[X]));
    TRY(rm_want_rank("step_at", "x", &x[X], 2, REMAT_MAX_RANK));
    TRY(rm_want_integer("step_at", "index", &x[INDEX]));
    REQUIRE(x[INDEX].rank == 1 && x[INDEX].dim[0] == x[X].dim[1], INVALID,
            "step_at: index is %s; it must be (B) = (%lld)", rm_desc_text(&x[INDEX], text), (long long)x[X].dim[1]);
    *y = rm_desc_make(RM_REAL, x[X].rank - 1, x[X].dim + 1);
    return REMAT_OK;
}

static void cost(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass, remat_cost *out) {
    (void)attr;
    *out = rm_cost_streaming(y, 0, 2);
    if (pass == REMAT_BACKWARD) out->moved_bytes = (double)(rm_desc_bytes(&x[X]) + rm_desc_bytes(y));
}

static int64_t bound(const remat_desc *x, const void *attr, int input) {
    (void)attr;
    return input == INDEX ? x[X].dim[0] : 0;
}

/* The selected timestep of row b, relative to the tile's first; -1 if it is in another tile. */
static int64_t place_of(const remat_call *call, int64_t b) {
    int64_t t = ((const int32_t *)call->x[INDEX].data)[b] - call->t0;
    return t >= 0 && t < call->x[X].desc.dim[0] ? t : -1;
}

static void forward(const remat_call *call) {
    int64_t batch = call->y.desc.dim[0], width = rm_desc_count(&call->y.desc) / batch;
    real *y = call->y.data;
    for (int64_t b = 0; b < batch; b++) {
        int64_t t = place_of(call, b);
        if (t < 0)
            memset(y + b * width, 0, (size_t)width * sizeof *y);
        else
            memcpy(y + b * width, (const real *)call->x[X].data + (t * batch + b) * width, (size_t)width * sizeof *y);
    }
}

/* y[b] = x[index[b], b]: the gradient of every other timestep is 0. */
static void backward(const remat_call *call) {
    int64_t batch = call->dy.desc.dim[0], n = rm_desc_count(&call->x[X].desc),
            width = rm_desc_count(&call->dy.desc) / batch;
    real *dx = call->dx[X].data;
    if (!dx) return;
    memset(dx, 0, (size_t)n * sizeof *dx);
    for (int64_t b = 0; b < batch; b++) {
        int64_t t = place_of(call, b);
        if (t >= 0)
            memcpy(dx + (t * batch + b) * width, (const real *)call->dy.data + b * width, (size_t)width * sizeof *dx);
    }
}

static const remat_sample samples[] = {
    {.name = "sequence", .sequence = true, .x = {RM_SHAPE3(RM_REAL, 5, 4, 7), RM_SHAPE1(REMAT_I32, 4)}},
    {.name = "one timestep", .sequence = true, .x = {RM_SHAPE3(RM_REAL, 1, 3, 2), RM_SHAPE1(REMAT_I32, 3)}},
    {.name = "no features", .sequence = true, .x = {RM_SHAPE2(RM_REAL, 4, 6), RM_SHAPE1(REMAT_I32, 6)}},
};

const remat_op RM_OP(step_at) = {
    .struct_bytes = sizeof(remat_op),
    .name = "step_at",
    .doc = "y (B,..) = x[index[b], b], x (T,B,..), index (B) integers",
    .n_in = 2,
    .shared = 1u << INDEX,
    .discrete = 1u << INDEX,
    .time = REMAT_TIME_SUM,
    .saves = {.in = 1u << INDEX},
    .infer = infer,
    .cost = cost,
    .bound = bound,
    .define_forward = forward,
    .define_backward = backward,
    .on = {{.forward = forward, .backward = backward}, RM_CUDA_KERNELS(step_at)},
    .samples = samples,
    .n_samples = sizeof samples / sizeof *samples,
};
