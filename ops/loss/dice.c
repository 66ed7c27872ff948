/* dice.c: the Dice loss of segmentations (Milletari et al., "V-Net", 2016). For the pixels of an image, let p be the
 * softmax of the logits and q be 1 for the target's class, else 0. Then
 *
 *     Dice of a class = (2 sum of p q + e) / (sum of p + sum of q + e),   e = 1e-6
 *     y = mean over images of (1 - mean over classes of Dice)
 *
 * Joint: one Dice for all classes together, as in milesial's Pytorch-UNet. Pixels with the target `ignored` do not
 * count. The logits are read twice in backward, so nothing is saved but the inputs. */
#include "ops/real.h"

#include "ops/loss/dice.h"
#include "ops/math/exp.h"
#include "ops/math/row.h"
#include "ops/op.h"
#include "ops/shape.h"

#include <string.h>

enum { LOGITS, TARGETS };

static remat_status infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    (void)attr, (void)state;
    char logits_text[REMAT_DESC_TEXT], targets_text[REMAT_DESC_TEXT];
    TRY(rm_want_real("dice", "logits", &x[LOGITS]));
    TRY(rm_want_rank("dice", "logits", &x[LOGITS], 3, REMAT_MAX_RANK));
    TRY(rm_want_integer("dice", "targets", &x[TARGETS]));
    bool fits = x[TARGETS].rank == x[LOGITS].rank - 1;
    for (int i = 0; i < x[LOGITS].rank - 1; i++) fits = fits && x[TARGETS].dim[i] == x[LOGITS].dim[i];
    REQUIRE(fits, INVALID, "dice: logits is %s and targets is %s; targets must have one integer for each row of logits",
            rm_desc_text(&x[LOGITS], logits_text), rm_desc_text(&x[TARGETS], targets_text));
    *y = (remat_desc)RM_SCALAR(RM_REAL);
    return REMAT_OK;
}

/* Sums over blocks of pixels are added in order, so no bits depend on the number of threads. */
enum { BLOCK = 1024 };

typedef struct {
    rm_dice_shape shape;
    int64_t blocks; /* per image */
    double images;  /* of the whole sequence */
    const real *logits;
    const int32_t *target;
} dice;

static dice dice_of(const remat_call *call) {
    const remat_desc *logits = &call->x[LOGITS].desc;
    dice d = {rm_dice_shape_of(logits, call->attr), 0, 0, call->x[LOGITS].data, call->x[TARGETS].data};
    d.blocks = (d.shape.pixels + BLOCK - 1) / BLOCK;
    d.images = rm_call_total(call, logits, d.shape.images);
    return d;
}

static void cost(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass, remat_cost *out) {
    const rm_dice_shape s = rm_dice_shape_of(&x[LOGITS], attr);
    int64_t blocks = s.images * ((s.pixels + BLOCK - 1) / BLOCK);
    (void)y;
    *out = rm_cost_streaming(&x[LOGITS], pass == REMAT_BACKWARD ? 80 : 40, pass == REMAT_BACKWARD ? 3 : 1);
    out->scratch_bytes = (uint64_t)((blocks + s.images) * s.sets) * sizeof(rm_overlap);
}

static int64_t bound(const remat_desc *x, const void *attr, int input) {
    (void)attr;
    return input == TARGETS ? rm_desc_last(&x[LOGITS]) : 0;
}

static int64_t ignored(const void *attr, int input) {
    return input == TARGETS && attr ? ((const rm_dice_attr *)attr)->ignored : 0;
}

/* ---- Forward ----------------------------------------------------------------------------------------------------- */

typedef struct {
    real largest;
    double inverse;
} row_facts;

static row_facts facts_of(const real *x, int64_t classes) {
    real largest = rm_row_largest(x, classes);
    double sum = 0;
    for (int64_t k = 0; k < classes; k++) sum += rm_exp_nonpositive(x[k] - largest);
    return (row_facts){largest, 1 / sum};
}

static double probability(const real *x, int64_t k, row_facts row) {
    return rm_exp_nonpositive(x[k] - row.largest) * row.inverse;
}

/* The sums of block b, which lies within one image; set (sets). */
static void add_block(const dice *d, int64_t b, rm_overlap *set) {
    const int64_t K = d->shape.counted.classes, image = b / d->blocks, from = b % d->blocks * BLOCK;
    const int64_t to = from + BLOCK < d->shape.pixels ? from + BLOCK : d->shape.pixels;
    memset(set, 0, (size_t)d->shape.sets * sizeof *set);
    for (int64_t r = image * d->shape.pixels + from; r < image * d->shape.pixels + to; r++) {
        const real *x = d->logits + r * K;
        row_facts row = facts_of(x, K);
        if (rm_class_weight(d->shape.counted, NULL, d->target[r]) == 0) continue;
        for (int64_t k = 0; k < K; k++)
            rm_overlap_add(&set[rm_dice_set(&d->shape, k)], probability(x, k, row), k == d->target[r]);
    }
}

/* Fills `sum` (images,sets) at the start of the scratch, and returns it. */
static rm_overlap *sums_of(const remat_call *call, const dice *d) {
    const int64_t sets = d->shape.sets, images = d->shape.images, blocks = images * d->blocks;
    rm_overlap *sum = call->scratch, *partial = sum + images * sets; /* partial (images,blocks,sets) */
    RM_PARALLEL_FOR(call->threads, rm_desc_count(&call->x[LOGITS].desc) > RM_PARALLEL_MIN_HEAVY,
                    for (int64_t b = 0; b < blocks; b++) add_block(d, b, partial + b * sets););
    memset(sum, 0, (size_t)(images * sets) * sizeof *sum);
    for (int64_t b = 0; b < blocks; b++)
        for (int64_t k = 0; k < sets; k++) rm_overlap_join(&sum[b / d->blocks * sets + k], partial[b * sets + k]);
    return sum;
}

static void forward(const remat_call *call) {
    const dice d = dice_of(call);
    const rm_overlap *sum = sums_of(call, &d);
    double loss = 0;
    for (int64_t i = 0; i < d.shape.images * d.shape.sets; i++) loss += 1 - rm_overlap_dice(sum[i]);
    *(real *)call->y.data = (real)(loss / ((double)d.shape.sets * d.images));
}

/* ---- Backward: dx = p (g - sum over classes of g p), where g is the gradient of p -------------------------------- */

static void row_backward(const dice *d, int64_t r, const rm_dice_slope *set, double scale, real *dx) {
    const int64_t K = d->shape.counted.classes, target = d->target[r];
    const real *x = d->logits + r * K;
    row_facts row = facts_of(x, K);
    double mean = set[rm_dice_set(&d->shape, target)].of_target * probability(x, target, row);
    for (int64_t k = 0; k < K; k++) mean += set[rm_dice_set(&d->shape, k)].of_all * probability(x, k, row);
    for (int64_t k = 0; k < K; k++) {
        const rm_dice_slope *slope = &set[rm_dice_set(&d->shape, k)];
        double g = k == target ? slope->of_target + slope->of_all : slope->of_all;
        dx[k] = (real)(scale * probability(x, k, row) * (g - mean));
    }
}

static void backward(const remat_call *call) {
    const dice d = dice_of(call);
    const int64_t K = d.shape.counted.classes, rows = d.shape.images * d.shape.pixels, sets = d.shape.sets;
    real *dx = call->dx[LOGITS].data;
    if (!dx) return;
    const rm_overlap *sum = sums_of(call, &d);
    rm_dice_slope *slope = (rm_dice_slope *)(sum + d.shape.images * sets); /* over the partial sums */
    for (int64_t i = 0; i < d.shape.images * sets; i++) slope[i] = rm_dice_slope_of(sum[i]);
    double scale = -*(const real *)call->dy.data / ((double)sets * d.images);
    RM_PARALLEL_FOR(
        call->threads, rows * K > RM_PARALLEL_MIN_HEAVY, for (int64_t r = 0; r < rows; r++) {
            if (rm_class_weight(d.shape.counted, NULL, d.target[r]) != 0)
                row_backward(&d, r, slope + r / d.shape.pixels * sets, scale, dx + r * K);
            else
                memset(dx + r * K, 0, (size_t)K * sizeof *dx);
        });
}

static const rm_dice_attr joint = {1, -1}, ignores = {0, 2};
static const remat_sample samples[] = {
    {.name = "images", .x = {RM_SHAPE3(RM_REAL, 3, 20, 4), RM_SHAPE2(REMAT_I32, 3, 20)}},
    {.name = "one class ignored", .x = {RM_SHAPE3(RM_REAL, 2, 15, 5), RM_SHAPE2(REMAT_I32, 2, 15)}, .attr = &ignores},
    {.name = "classes together", .x = {RM_SHAPE3(RM_REAL, 2, 15, 3), RM_SHAPE2(REMAT_I32, 2, 15)}, .attr = &joint},
    {.name = "sequence", .sequence = true, .x = {RM_SHAPE4(RM_REAL, 5, 2, 6, 3), RM_SHAPE3(REMAT_I32, 5, 2, 6)}},
    {.name = "several blocks", .x = {RM_SHAPE3(RM_REAL, 2, 2500, 4), RM_SHAPE2(REMAT_I32, 2, 2500)}},
};

const remat_op RM_OP(dice) = {
    .struct_bytes = sizeof(remat_op),
    .name = "dice",
    .doc = "y = mean over images of 1 - Dice coefficient of softmax(logits), averaged over classes or joint; logits "
           "(..,pixels,V), targets (..,pixels)",
    .n_in = 2,
    .attr_bytes = sizeof(rm_dice_attr),
    .discrete = 1u << TARGETS,
    .time = REMAT_TIME_SUM,
    .saves = {.in = 1u << LOGITS | 1u << TARGETS},
    .infer = infer,
    .cost = cost,
    .bound = bound,
    .ignored = ignored,
    .on = {{.forward = forward, .backward = backward}, RM_CUDA_KERNELS(dice)},
    .samples = samples,
    .n_samples = sizeof samples / sizeof *samples,
};
