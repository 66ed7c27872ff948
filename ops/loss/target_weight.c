/* target_weight.c: the total weight of the targets of a loss: the number of targets that are not ignored, or the
 * sum of their class weights. It is the divisor of PyTorch's mean, over all timesteps: the graph computes it before
 * the first tile (engine/chain/roles.c), so that every tile's share of the loss is divided by the same number. */
#include "ops/real.h"

#include "ops/loss/class_weight.h"
#include "ops/op.h"
#include "ops/shape.h"

enum { TARGETS, WEIGHTS };

static int64_t classes_of(const void *attr) { return ((const rm_target_weight_attr *)attr)->classes; }

static rm_counted counted(const void *attr) {
    return (rm_counted){classes_of(attr), ((const rm_target_weight_attr *)attr)->ignored, true};
}

static remat_status infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    (void)state;
    const rm_target_weight_attr *a = attr;
    TRY(rm_want_integer("target_weight", "targets", &x[TARGETS]));
    REQUIRE(a && a->classes > 0, INVALID, "target_weight: the number of classes is missing");
    if (x[WEIGHTS].rank >= 0) TRY(rm_want_vector("target_weight", "class_weights", &x[WEIGHTS], a->classes));
    *y = (remat_desc)RM_SCALAR(RM_REAL);
    return REMAT_OK;
}

/* The sums of blocks of targets are added in order, so no bits depend on the number of threads. */
enum { BLOCK = 4096 };
static int64_t count_blocks(int64_t n) { return (n + BLOCK - 1) / BLOCK; }

static void cost(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass, remat_cost *out) {
    (void)y;
    double n = (double)rm_desc_count(&x[TARGETS]);
    *out = (remat_cost){.flops = 3 * n, .moved_bytes = 4 * n};
    int64_t numbers = pass == REMAT_FORWARD ? count_blocks(rm_desc_count(&x[TARGETS])) : classes_of(attr);
    out->scratch_bytes = (uint64_t)numbers * sizeof(double);
}

static int64_t bound(const remat_desc *x, const void *attr, int input) {
    (void)x;
    return input == TARGETS ? classes_of(attr) : 0;
}

static int64_t ignored(const void *attr, int input) {
    return input == TARGETS ? ((const rm_target_weight_attr *)attr)->ignored : 0;
}

static double sum_of(const remat_call *call, int64_t from, int64_t to) {
    const int32_t *target = call->x[TARGETS].data;
    rm_counted c = counted(call->attr);
    double sum = 0;
    for (int64_t r = from; r < to; r++) sum += rm_class_weight(c, call->x[WEIGHTS].data, target[r]);
    return sum;
}

static void define_forward(const remat_call *call) {
    *(real *)call->y.data = (real)sum_of(call, 0, rm_desc_count(&call->x[TARGETS].desc));
}

static void forward(const remat_call *call) {
    int64_t n = rm_desc_count(&call->x[TARGETS].desc), blocks = count_blocks(n);
    double *partial = call->scratch, sum = 0; /* (blocks) */
    RM_PARALLEL_FOR(call->threads, n > RM_PARALLEL_MIN,
                    for (int64_t b = 0; b < blocks; b++) partial[b] =
                        sum_of(call, b * BLOCK, (b + 1) * BLOCK < n ? (b + 1) * BLOCK : n););
    for (int64_t b = 0; b < blocks; b++) sum += partial[b];
    *(real *)call->y.data = (real)sum;
}

/* y = sum over r of weight[target[r]] */
static void backward(const remat_call *call) {
    const int32_t *target = call->x[TARGETS].data;
    real *dweight = call->dx[WEIGHTS].data, dy = *(const real *)call->dy.data;
    rm_counted c = counted(call->attr);
    int64_t n = rm_desc_count(&call->x[TARGETS].desc);
    double *count = call->scratch; /* (V) */
    if (!dweight) return;
    for (int64_t k = 0; k < c.classes; k++) count[k] = 0;
    for (int64_t r = 0; r < n; r++)
        if (rm_class_weight(c, NULL, target[r]) > 0) count[target[r]]++;
    for (int64_t k = 0; k < c.classes; k++) dweight[k] += (real)(dy * count[k]);
}

static const rm_target_weight_attr third = {7, 2}, none = {5, -100};
static const remat_sample samples[] = {
    {.name = "sequence", .sequence = true, .x = {RM_SHAPE2(REMAT_I32, 5, 3), RM_SHAPE1(RM_REAL, 7)}, .attr = &third},
    {.name = "without weights", .sequence = true, .x = {RM_SHAPE2(REMAT_I32, 6, 2), RM_ABSENT}, .attr = &third},
    {.name = "whole", .x = {RM_SHAPE1(REMAT_I32, 9), RM_SHAPE1(RM_REAL, 5)}, .attr = &none},
    {.name = "several blocks", .x = {RM_SHAPE2(REMAT_I32, 3, 3000), RM_SHAPE1(RM_REAL, 7)}, .attr = &third},
};

const remat_op RM_OP(target_weight) = {
    .struct_bytes = sizeof(remat_op),
    .name = "target_weight",
    .doc = "y = number of targets that are not ignored, or the sum of their class weights; targets (..), class weights "
           "(V)",
    .n_in = 2,
    .optional = 1u << WEIGHTS,
    .shared = 1u << WEIGHTS,
    .discrete = 1u << TARGETS,
    .attr_bytes = sizeof(rm_target_weight_attr),
    .time = REMAT_TIME_SUM,
    .saves = {.in = 1u << TARGETS},
    .infer = infer,
    .cost = cost,
    .bound = bound,
    .ignored = ignored,
    .define_forward = define_forward,
    .define_backward = backward,
    .on = {{.forward = forward, .backward = backward}, RM_CUDA_KERNELS(target_weight)},
    .samples = samples,
    .n_samples = sizeof samples / sizeof *samples,
};
