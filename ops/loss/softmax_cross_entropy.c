/* softmax_cross_entropy.c: the loss of classifiers and language models, in nats. It needs the logits of one tile at a
 * time, and stores no probabilities, only each row's largest logit and the sum of its exponentials.
 *
 * Label smoothing e (torch.nn.functional.cross_entropy's label_smoothing): with the target q = (1 - e) [target] + e/V,
 * the loss is -sum over v of q[v] log p[v] = log(sum over v of exp(x[v])) - (1 - e) x[target] - e mean(x). In
 * evaluation e is 0.
 *
 * Classes may have weights and rows may be ignored (torch's weight and ignore_index): the loss of a row is -sum over v
 * of w[v] q[v] log p[v], that of an ignored row is 0, and y is their sum / total; target_weight computes the total over
 * all timesteps. If no row counts, y is 0. */
#include "ops/real.h"

#include "ops/loss/class_weight.h"
#include "ops/math/exp.h"
#include "ops/math/row.h"
#include "ops/op.h"
#include "ops/shape.h"

#include <string.h>

enum { LOGITS, TARGETS, WEIGHTS, TOTAL };

/* Of a row, in aux: p[v] = exp(x[v] - largest) / sum. */
typedef struct {
    real largest, sum;
} row_facts;

static double smoothing_of(const remat_call *call) {
    const rm_cross_entropy_attr *a = call->attr;
    return a && call->training ? a->smoothing : 0;
}

/* The loss of a row is to_target w[target] (-log p[target]) + to_each (sum over v of w[v] (-log p[v])). */
typedef struct {
    rm_counted counted;
    const real *weight; /* w (V); NULL: all are 1 */
    double to_target, to_each, sum;
} weighing;

static weighing weighing_of(const remat_call *call) {
    const rm_cross_entropy_attr *a = call->attr;
    int64_t v = rm_desc_last(&call->x[LOGITS].desc);
    double e = smoothing_of(call);
    weighing w = {{v, a ? a->ignored : 0, a && a->ignores}, call->x[WEIGHTS].data, 1 - e, e / (double)v, (double)v};
    if (w.weight && e > 0) w.sum = 0;
    for (int64_t i = 0; w.weight && e > 0 && i < v; i++) w.sum += w.weight[i];
    return w;
}
static double weight_at(const weighing *w, int64_t class) { return w->weight ? w->weight[class] : 1; }
static bool counts(const weighing *w, int32_t target) { return rm_class_weight(w->counted, NULL, target) != 0; }

/* The factor of p in the gradient: 1 if all classes have weight 1. */
static double to_probabilities(const weighing *w, int32_t target) {
    if (!w->weight) return 1;
    return w->to_target * w->weight[target] + w->to_each * w->sum;
}

/* Divides by the total weight of the rows of the whole sequence. */
static double divided(const remat_call *call, double sum) {
    const remat_desc *shape = &call->x[LOGITS].desc;
    const real *total = call->x[TOTAL].data;
    if (!total) return sum / rm_call_total(call, shape, rm_desc_rows(shape));
    return *total != 0 ? sum / *total : 0;
}

static remat_status infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    (void)state;
    const char *op = "softmax_cross_entropy";
    TRY(rm_want_real(op, "logits", &x[LOGITS]));
    TRY(rm_want_rank(op, "logits", &x[LOGITS], 2, REMAT_MAX_RANK));
    TRY(rm_want_integer(op, "targets", &x[TARGETS]));
    bool fits = x[TARGETS].rank == x[LOGITS].rank - 1;
    for (int i = 0; i < x[LOGITS].rank - 1; i++) fits = fits && x[TARGETS].dim[i] == x[LOGITS].dim[i];
    char logits_text[REMAT_DESC_TEXT], targets_text[REMAT_DESC_TEXT];
    REQUIRE(fits, INVALID, "%s: logits is %s and targets is %s; targets must have one integer for each row of logits",
            op, rm_desc_text(&x[LOGITS], logits_text), rm_desc_text(&x[TARGETS], targets_text));
    const rm_cross_entropy_attr *a = attr;
    REQUIRE(!a || (a->smoothing >= 0 && a->smoothing <= 1), INVALID,
            "%s: the label smoothing is %g; it must lie between 0 and 1", op, a->smoothing);
    if (x[WEIGHTS].rank >= 0) TRY(rm_want_vector(op, "class_weights", &x[WEIGHTS], rm_desc_last(&x[LOGITS])));
    REQUIRE(x[TOTAL].rank <= 0, INVALID, "%s: total is %s; it must be a scalar", op,
            rm_desc_text(&x[TOTAL], logits_text));
    *y = (remat_desc)RM_SCALAR(RM_REAL);
    return REMAT_OK;
}

/* The losses of blocks of rows are summed separately, then in order, so no bits depend on the number of threads. */
enum { BLOCK = 16 };
static int64_t count_blocks(int64_t rows) { return (rows + BLOCK - 1) / BLOCK; }

static void cost(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass, remat_cost *out) {
    (void)y, (void)attr;
    *out = rm_cost_streaming(&x[LOGITS], 20, pass == REMAT_BACKWARD ? 2 : 1); /* an exp is about 16 operations */
    if (pass == REMAT_FORWARD) out->scratch_bytes = (uint64_t)count_blocks(rm_desc_rows(&x[LOGITS])) * sizeof(double);
}

static uint64_t aux_bytes(const remat_desc *x, const void *attr) {
    (void)attr;
    return (uint64_t)rm_desc_rows(&x[LOGITS]) * sizeof(row_facts);
}

static int64_t bound(const remat_desc *x, const void *attr, int input) {
    (void)attr;
    return input == TARGETS ? rm_desc_last(&x[LOGITS]) : 0;
}

static int64_t ignored(const void *attr, int input) {
    const rm_cross_entropy_attr *a = attr;
    return input == TARGETS && a && a->ignores ? a->ignored : 0;
}

/* Sum over v of w[v] (-log p[v]), where log_sum = log(sum over v of exp(x[v])). */
static double of_each(const weighing *w, const real *x, int64_t v, double log_sum) {
    double sum = 0;
    for (int64_t i = 0; i < v && w->to_each > 0; i++) sum += weight_at(w, i) * (log_sum - x[i]);
    return sum;
}

static void define_forward(const remat_call *call) {
    const remat_desc *shape = &call->x[LOGITS].desc;
    const int32_t *target = call->x[TARGETS].data; /* (rows) */
    row_facts *facts = call->aux;                  /* (rows) */
    int64_t rows = rm_desc_rows(shape), v = rm_desc_last(shape);
    const weighing w = weighing_of(call);
    double loss = 0;
    for (int64_t r = 0; r < rows; r++) {
        const real *x = (const real *)call->x[LOGITS].data + r * v; /* (V) */
        double largest = x[0], sum = 0;
        for (int64_t i = 1; i < v; i++) largest = x[i] > largest ? x[i] : largest;
        for (int64_t i = 0; i < v; i++) sum += exp(x[i] - largest);
        if (facts) facts[r] = (row_facts){(real)largest, (real)sum};
        if (!counts(&w, target[r])) continue;
        double log_sum = log(sum) + largest;
        loss += w.to_target * weight_at(&w, target[r]) * (log_sum - x[target[r]]);
        loss += w.to_each * of_each(&w, x, v, log_sum);
    }
    *(real *)call->y.data = (real)divided(call, loss);
}

/* The gradients by total and by w. Rarely needed. */
static void shared_gradients(const remat_call *call) {
    const int32_t *target = call->x[TARGETS].data;
    const row_facts *facts = call->aux;
    real *dweight = call->dx[WEIGHTS].data, *dtotal = call->dx[TOTAL].data;
    int64_t rows = rm_desc_rows(&call->x[LOGITS].desc), v = rm_desc_last(&call->x[LOGITS].desc);
    double scale = divided(call, *(const real *)call->dy.data), sum = 0;
    const weighing w = weighing_of(call);
    for (int64_t r = 0; r < rows && (dweight || dtotal); r++) {
        const real *x = (const real *)call->x[LOGITS].data + r * v;
        if (!counts(&w, target[r])) continue;
        double log_sum = log(facts[r].sum) + facts[r].largest, of_target = w.to_target * (log_sum - x[target[r]]);
        sum += weight_at(&w, target[r]) * of_target + w.to_each * of_each(&w, x, v, log_sum);
        if (!dweight) continue;
        dweight[target[r]] += (real)(scale * of_target);
        for (int64_t i = 0; i < v && w.to_each > 0; i++) dweight[i] += (real)(scale * w.to_each * (log_sum - x[i]));
    }
    if (dtotal) *dtotal -= (real)divided(call, scale * sum);
}

static void define_backward(const remat_call *call) {
    const remat_desc *shape = &call->x[LOGITS].desc;
    const int32_t *target = call->x[TARGETS].data;
    const row_facts *facts = call->aux;
    int64_t rows = rm_desc_rows(shape), v = rm_desc_last(shape);
    double scale = divided(call, *(const real *)call->dy.data);
    const weighing w = weighing_of(call);
    shared_gradients(call);
    if (!call->dx[LOGITS].data) return;
    for (int64_t r = 0; r < rows; r++) {
        const real *x = (const real *)call->x[LOGITS].data + r * v;
        real *dx = (real *)call->dx[LOGITS].data + r * v;
        if (!counts(&w, target[r])) {
            memset(dx, 0, (size_t)v * sizeof *dx);
            continue;
        }
        for (int64_t i = 0; i < v; i++) {
            double p = exp(x[i] - facts[r].largest) / facts[r].sum, q = w.to_each + (i == target[r]) * w.to_target;
            dx[i] = (real)(scale * (p * to_probabilities(&w, target[r]) - weight_at(&w, i) * q));
        }
    }
}

/* ---- The fast version: the same for a row in a few passes that compilers vectorise ---------------------- */

enum { LANES = RM_ROW_LANES };

static double sum_of_exp(const real *x, int64_t n, real largest) {
    real lane[LANES] = {0};
    double sum = 0;
    int64_t whole = n / LANES * LANES;
    for (int64_t from = 0; from < whole; from += LANES)
        for (int i = 0; i < LANES; i++) lane[i] += rm_exp_nonpositive(x[from + i] - largest);
    for (int64_t i = whole; i < n; i++) sum += rm_exp_nonpositive(x[i] - largest);
    for (int i = 0; i < LANES; i++) sum += lane[i];
    return sum;
}

/* The sum over a row of w (largest - x). No term is negative, so there is no cancellation. */
static double sum_below(const real *x, const real *w, int64_t n, real largest) {
    double lane[LANES] = {0}, sum = 0;
    int64_t whole = n / LANES * LANES;
    for (int64_t from = 0; from < whole; from += LANES)
        for (int i = 0; i < LANES; i++) lane[i] += (w ? w[from + i] : 1) * (double)(largest - x[from + i]);
    for (int64_t i = whole; i < n; i++) sum += (w ? w[i] : 1) * (double)(largest - x[i]);
    for (int i = 0; i < LANES; i++) sum += lane[i];
    return sum;
}

/* The loss of rows [from, to), in nats, not yet divided. */
static double block_loss(const remat_call *call, const weighing *w, int64_t from, int64_t to) {
    int64_t v = rm_desc_last(&call->x[LOGITS].desc);
    const int32_t *target = call->x[TARGETS].data;
    row_facts *facts = call->aux;
    double loss = 0;
    for (int64_t r = from; r < to; r++) {
        const real *x = (const real *)call->x[LOGITS].data + r * v;
        real largest = rm_row_largest(x, v);
        double sum = sum_of_exp(x, v, largest);
        if (facts) facts[r] = (row_facts){largest, (real)sum};
        if (!counts(w, target[r])) continue;
        loss += to_probabilities(w, target[r]) * log(sum);
        loss += w->to_target * weight_at(w, target[r]) * ((double)largest - x[target[r]]);
        if (w->to_each > 0) loss += w->to_each * sum_below(x, w->weight, v, largest);
    }
    return loss;
}

static void forward(const remat_call *call) {
    const remat_desc *shape = &call->x[LOGITS].desc;
    int64_t rows = rm_desc_rows(shape), blocks = count_blocks(rows);
    double *partial = call->scratch, loss = 0; /* (blocks) */
    const weighing w = weighing_of(call);
    RM_PARALLEL_FOR(call->threads, rm_desc_count(shape) > RM_PARALLEL_MIN_HEAVY,
                    for (int64_t b = 0; b < blocks; b++) partial[b] =
                        block_loss(call, &w, b * BLOCK, (b + 1) * BLOCK < rows ? (b + 1) * BLOCK : rows););
    for (int64_t b = 0; b < blocks; b++) loss += partial[b];
    *(real *)call->y.data = (real)divided(call, loss);
}

/* The gradient of one row: proportional to the probabilities, minus the share of the target. */
static void row_backward(const weighing *w, const real *x, int64_t v, row_facts row, int32_t target, double scale,
                         real *dx) {
    real factor = (real)(scale * to_probabilities(w, target) / row.sum), to_each = (real)(scale * w->to_each);
    real largest = row.largest;
    const real *weight = w->weight;
    for (int64_t i = 0; i < v; i++)
        dx[i] = rm_exp_nonpositive(x[i] - largest) * factor - (weight ? to_each * weight[i] : to_each);
    dx[target] -= (real)(scale * w->to_target * weight_at(w, target));
}

static void backward(const remat_call *call) {
    const remat_desc *shape = &call->x[LOGITS].desc;
    const int32_t *target = call->x[TARGETS].data;
    const row_facts *facts = call->aux;
    int64_t rows = rm_desc_rows(shape), v = rm_desc_last(shape);
    double scale = divided(call, *(const real *)call->dy.data);
    const weighing w = weighing_of(call);
    shared_gradients(call);
    if (!call->dx[LOGITS].data) return;
    RM_PARALLEL_FOR(
        call->threads, rows * v > RM_PARALLEL_MIN_HEAVY, for (int64_t r = 0; r < rows; r++) {
            const real *x = (const real *)call->x[LOGITS].data + r * v;
            real *dx = (real *)call->dx[LOGITS].data + r * v;
            if (counts(&w, target[r]))
                row_backward(&w, x, v, facts[r], target[r], scale, dx);
            else
                memset(dx, 0, (size_t)v * sizeof *dx);
        });
}

static const remat_sample samples[] = {
    {.name = "sequence",
     .sequence = true,
     .x = {RM_SHAPE3(RM_REAL, 5, 3, 7), RM_SHAPE2(REMAT_I32, 5, 3), RM_ABSENT, RM_ABSENT}},
    {.name = "whole", .x = {RM_SHAPE2(RM_REAL, 4, 37), RM_SHAPE1(REMAT_I32, 4), RM_ABSENT, RM_ABSENT}},
    {.name = "two classes, one row", .x = {RM_SHAPE2(RM_REAL, 1, 2), RM_SHAPE1(REMAT_I32, 1), RM_ABSENT, RM_ABSENT}},
    {.name = "large enough for threads",
     .sequence = true,
     .x = {RM_SHAPE3(RM_REAL, 17, 5, 256), RM_SHAPE2(REMAT_I32, 17, 5), RM_ABSENT, RM_ABSENT}},
    {.name = "smoothed",
     .sequence = true,
     .x = {RM_SHAPE4(RM_REAL, 5, 3, 2, 37), RM_SHAPE3(REMAT_I32, 5, 3, 2), RM_ABSENT, RM_ABSENT},
     .attr = &(rm_cross_entropy_attr){.smoothing = 0.1}},
    {.name = "smoothed until no target is left",
     .x = {RM_SHAPE2(RM_REAL, 4, 5), RM_SHAPE1(REMAT_I32, 4), RM_ABSENT, RM_ABSENT},
     .attr = &(rm_cross_entropy_attr){.smoothing = 1}},
    {.name = "weighted, one class ignored",
     .sequence = true,
     .x = {RM_SHAPE3(RM_REAL, 5, 4, 6), RM_SHAPE2(REMAT_I32, 5, 4), RM_SHAPE1(RM_REAL, 6), RM_SCALAR(RM_REAL)},
     .attr = &(rm_cross_entropy_attr){0, 1, 2}},
    {.name = "weighted and smoothed, one class ignored",
     .sequence = true,
     .x = {RM_SHAPE3(RM_REAL, 5, 4, 35), RM_SHAPE2(REMAT_I32, 5, 4), RM_SHAPE1(RM_REAL, 35), RM_SCALAR(RM_REAL)},
     .attr = &(rm_cross_entropy_attr){0.3, 1, 2}},
    {.name = "smoothed, one class ignored",
     .x = {RM_SHAPE2(RM_REAL, 9, 4), RM_SHAPE1(REMAT_I32, 9), RM_ABSENT, RM_SCALAR(RM_REAL)},
     .attr = &(rm_cross_entropy_attr){0.2, 1, 3}},
};

const remat_op RM_OP(softmax_cross_entropy) = {
    .struct_bytes = sizeof(remat_op),
    .name = "softmax_cross_entropy",
    .doc = "y = mean over rows of -log softmax(logits)[target], or of -sum q log softmax(logits) with q the smoothed "
           "target, weighted by class if there are weights; logits (..,V), targets (..), class weights (V), total "
           "weight of the targets ()",
    .n_in = 4,
    .optional = 1u << WEIGHTS | 1u << TOTAL,
    .shared = 1u << WEIGHTS | 1u << TOTAL,
    .attr_bytes = sizeof(rm_cross_entropy_attr),
    .discrete = 1u << TARGETS,
    .time = REMAT_TIME_SUM,
    .denominator = 1u << TOTAL,
    .saves = {.in = 1u << LOGITS | 1u << TARGETS | 1u << WEIGHTS | 1u << TOTAL},
    .infer = infer,
    .cost = cost,
    .aux_bytes = aux_bytes,
    .bound = bound,
    .ignored = ignored,
    .define_forward = define_forward,
    .define_backward = define_backward,
    .on = {{.forward = forward, .backward = backward}, RM_CUDA_KERNELS(softmax_cross_entropy)},
    .samples = samples,
    .n_samples = sizeof samples / sizeof *samples,
};
