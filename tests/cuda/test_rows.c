/* test_rows.c: kernels whose rows and channels are longer than those of the ops' samples (ops/cuda/fours.cuh,
 * channels.cuh), in emulation: rows of a warp, of a block, and longer than its registers; channels that several blocks
 * sum; pixels of few classes; pools; addresses that are no multiples of 16; and batch norm's statistics where
 * a difference of large sums would lose them. */
#include <check.h>
#include <float.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cuda/emulated_op.h"
#include "tests/cuda/emulation.h"
#include "tests/cuda/long_rows.h"
#include "tests/suite.h"

/* ---- Long rows and channels ------------------------------------------------------------------------------------- */

static void run(const remat_op *op, rm_op_outputs *out) {
    rm_op_setup setup = {.op = op, .threads = 1};
    rm_op_inputs in;
    rm_op_inputs_make(&setup, 21, &in);
    const char *wrong = rm_op_run(&setup, &in, out);
    rm_op_inputs_free(&in);
    ck_assert_msg(!wrong, "%s: %s", op->name, wrong);
}

static void expect_near(const rm_op_array *here, const rm_op_array *there, const char *op, const char *what) {
    ck_assert_int_eq(here->count, there->count);
    const int64_t i = long_row_difference(here, there);
    ck_assert_msg(i < 0, "%s: element %lld of %s is %.9g, not %.9g", op, (long long)i, what, i < 0 ? 0 : there->value[i],
                  i < 0 ? 0 : here->value[i]);
}

static void expect_same(const rm_op_array *a, const rm_op_array *b, const char *op, int order) {
    ck_assert_msg(!a->count || !memcmp(a->value, b->value, (size_t)a->count * sizeof *a->value),
                  "%s: order %d has other bits", op, order);
}

START_TEST(long_rows_match_the_cpu_in_any_order) {
    const remat_sample sample = long_row_sample(&long_rows[_i]);
    remat_op cpu = *rm_op_find(long_rows[_i].op), cuda = emulated(&cpu);
    rm_op_outputs here, there, other;
    cpu.samples = cuda.samples = &sample, cpu.n_samples = cuda.n_samples = 1;
    run(&cpu, &here), run(&cuda, &there);
    expect_near(&here.y, &there.y, cpu.name, "y");
    for (int i = 0; i < REMAT_MAX_INPUTS; i++) {
        expect_near(&here.dx[i], &there.dx[i], cpu.name, rm_op_dx_name[i]);
        expect_near(&here.buffer[i], &there.buffer[i], cpu.name, "a buffer");
    }
    for (int order = 1; order < RM_ORDERS; order++) {
        rm_emulate_in((rm_emulated_order)order);
        run(&cuda, &other);
        expect_same(&there.y, &other.y, cpu.name, order);
        for (int i = 0; i < REMAT_MAX_INPUTS; i++) {
            expect_same(&there.dx[i], &other.dx[i], cpu.name, order);
            expect_same(&there.buffer[i], &other.buffer[i], cpu.name, order);
        }
        rm_op_outputs_free(&other);
    }
    rm_emulate_in(RM_IN_ORDER);
    rm_op_outputs_free(&here), rm_op_outputs_free(&there);
}
END_TEST

/* ---- Addresses -------------------------------------------------------------------------------------------------- */

static float noise(int64_t i) { return (float)((i * 2654435761u) % 20011) / 20011 - 0.5f; }

/* A row has the same bits wherever it starts: at multiples of 16 bytes, where fours are read at once, and elsewhere. */
START_TEST(bits_do_not_depend_on_addresses) {
    enum { C = 1026, MOST = 2 * C + 16 };
    static _Alignas(64) float x[MOST], y[MOST], first[C];
    const remat_op *op = rm_op_find("softmax");
    remat_call call = {.t_total = 1, .queue = (void *)(uintptr_t)&rm_emulated_queue, .training = true};
    call.x[0].desc = call.y.desc = rm_desc_make(REMAT_F32, 2, (int64_t[]){1, C});
    for (int in = 0; in < 5; in++)
        for (int out = 0; out < 5; out++) {
            for (int64_t i = 0; i < C; i++) x[in + i] = noise(i);
            for (int64_t i = 0; i < MOST; i++) y[i] = 7;
            call.x[0].data = x + in, call.y.data = y + out;
            op->on[REMAT_ON_CUDA].forward(&call);
            if (!in && !out) memcpy(first, y, sizeof first);
            ck_assert_msg(!memcmp(first, y + out, sizeof first), "from %d to %d floats past a multiple of 64 bytes", in,
                          out);
            for (int64_t i = 0; i < MOST; i++) ck_assert((y[i] != 7) == (i >= out && i < out + C));
        }
    double sum = 0, other = 0;
    rm_sum_of_squares_cuda(&rm_emulated_queue, first, C, &sum);
    for (int at = 1; at < 4; at++) {
        memcpy(x + at, first, sizeof first);
        rm_sum_of_squares_cuda(&rm_emulated_queue, x + at, C, &other);
        ck_assert_mem_eq(&sum, &other, sizeof sum);
    }
}
END_TEST

/* ---- Classes ---------------------------------------------------------------------------------------------------- */

enum { PIXELS = 1500, MOST_CLASSES = 6 };

/* The joint Dice loss of two images, and its gradient, of the first `classes` of `real` classes and others that have
 * probability 0. */
static void dice_of(int64_t classes, int64_t real, float *y, float *dx) {
    static float logits[2 * PIXELS * MOST_CLASSES], dy = 0.7f;
    static int32_t target[2 * PIXELS];
    const remat_op *op = rm_op_find("dice");
    remat_call call = {.attr = &joint, .t_total = 1, .training = true, .queue = (void *)(uintptr_t)&rm_emulated_queue};
    call.x[0] = (remat_tensor){.desc = rm_desc_make(REMAT_F32, 3, (int64_t[]){2, PIXELS, classes}), .data = logits};
    call.x[1] = (remat_tensor){.desc = rm_desc_make(REMAT_I32, 2, (int64_t[]){2, PIXELS}), .data = target};
    call.y = call.dy = (remat_tensor){.desc = rm_desc_make(REMAT_F32, 0, call.x[0].desc.dim), .data = y};
    call.dy.data = &dy, call.dx[0] = call.x[0], call.dx[0].data = dx;
    for (int64_t r = 0; r < 2 * PIXELS; r++) {
        target[r] = (int32_t)(r * 7 % 13 % (real + 1)) - 1; /* -1 does not count */
        for (int64_t k = 0; k < classes; k++) logits[r * classes + k] = k < real ? 9 * noise(r * real + k) : -1000;
    }
    const remat_desc x[] = {call.x[0].desc, call.x[1].desc};
    remat_cost cost = {0};
    op->cost(x, &call.y.desc, &joint, REMAT_BACKWARD, &cost);
    call.scratch = malloc(cost.scratch_bytes);
    ck_assert(call.scratch);
    op->on[REMAT_ON_CUDA].forward(&call);
    op->on[REMAT_ON_CUDA].backward(&call);
    free(call.scratch);
}

START_TEST(dice_of_held_pixels_has_the_bits_of_others) {
    static float dx[2 * PIXELS * MOST_CLASSES], other[2 * PIXELS * MOST_CLASSES];
    float y, other_y;
    dice_of(_i, _i, &y, dx), dice_of(MOST_CLASSES, _i, &other_y, other);
    ck_assert_mem_eq(&y, &other_y, sizeof y);
    for (int64_t r = 0; r < 2 * PIXELS; r++) ck_assert_mem_eq(dx + r * _i, other + r * MOST_CLASSES, (size_t)_i * 4);
}
END_TEST

/* ---- Pools ------------------------------------------------------------------------------------------------------ */

enum { PIXELS_OF_PLANES = 3 * 13 * 13 };

/* y and dx of a pool of three planes of `height` x `width`. */
static void pool(const char *name, int backend, const rm_pool_attr *attr, int64_t height, int64_t width, float *y,
                 float *dx) {
    static const float values[] = {0, -0.f, 1, 2, 2, NAN, -INFINITY, INFINITY, -1};
    static float x[PIXELS_OF_PLANES], dy[PIXELS_OF_PLANES];
    const remat_op *op = rm_op_find(name);
    const remat_desc plane = rm_desc_make(REMAT_F32, 3, (int64_t[]){3, height, width});
    remat_call call = {.attr = attr, .t_total = 1, .training = true, .threads = 1};
    if (backend == REMAT_ON_CUDA) call.queue = (void *)(uintptr_t)&rm_emulated_queue;
    for (int64_t i = 0; i < 3 * height * width; i++) {
        const unsigned random = (unsigned)(i * 2654435761u) >> 16;
        x[i] = i < height * width ? -INFINITY : random % 3 ? (float)(random % 7) : values[random / 3 % 9];
    }
    for (int64_t i = 0; i < PIXELS_OF_PLANES; i++) dy[i] = i % 11 ? noise(i) : -0.f, y[i] = dx[i] = 77;
    call.x[0] = call.dx[0] = (remat_tensor){.desc = plane, .data = x};
    ck_assert_int_eq(op->infer(&plane, attr, &call.y.desc, NULL), REMAT_OK);
    call.dy.desc = call.y.desc;
    call.y.data = y, call.dy.data = dy, call.dx[0].data = dx;
    op->on[backend].forward(&call);
    op->on[backend].backward(&call);
}

/* Both add the same floats in the same order. Equal maxima, NaN and infinities; planes of all small sizes, so that rows
 * start at all alignments and windows end at all places. */
START_TEST(pools_have_the_bits_of_the_cpu) {
    static const rm_pool_attr attrs[] = {{{2, 2}, {2, 2}, {0, 0}}, {{3, 3}, {2, 2}, {0, 0}}, {{3, 3}, {2, 2}, {1, 1}},
                                         {{3, 3}, {2, 2}, {1, 0}}, {{3, 3}, {1, 1}, {1, 1}}, {{3, 3}, {2, 3}, {1, 1}},
                                         {{2, 3}, {2, 2}, {1, 1}}};
    static float y[2][PIXELS_OF_PLANES], dx[2][PIXELS_OF_PLANES];
    const char *name = _i % 2 ? "avg_pool" : "max_pool";
    const rm_pool_attr *attr = &attrs[_i / 2];
    for (int64_t height = attr->window[0] - attr->padding[0]; height <= 13; height++)
        for (int64_t width = attr->window[1] - attr->padding[1]; width <= 13; width++) {
            for (int backend = 0; backend < 2; backend++)
                pool(name, backend ? REMAT_ON_CUDA : REMAT_ON_CPU, attr, height, width, y[backend], dx[backend]);
            for (int64_t i = 0; i < PIXELS_OF_PLANES; i++) {
                const float *cpu[2] = {&y[0][i], &dx[0][i]}, *cuda[2] = {&y[1][i], &dx[1][i]};
                for (int k = 0; k < 2; k++)
                    ck_assert_msg(!memcmp(cpu[k], cuda[k], sizeof(float)) || (isnan(*cpu[k]) && isnan(*cuda[k])),
                                  "%s of %lld x %lld: element %lld of %s is %.9g, not %.9g", name, (long long)height,
                                  (long long)width, (long long)i, k ? "dx" : "y", *cuda[k], *cpu[k]);
            }
        }
}
END_TEST

/* ---- The statistics of batch norm ------------------------------------------------------------------------------- */

enum { CHANNELS = 3, EACH = 9001, FLOATS = CHANNELS * EACH };

/* A batch of (EACH,CHANNELS), or of one image (CHANNELS,EACH), and its statistics. */
typedef struct {
    bool columns;
    float x[2 * FLOATS];
    float running_mean[CHANNELS], running_var[CHANNELS];
} batch_of;

static float *element(batch_of *b, int64_t i, int64_t c, int64_t from) {
    return &b->x[from * CHANNELS + (b->columns ? i * CHANNELS + c : c * EACH + i)];
}

/* Numbers far from 0 with a small variance. The first of each channel is far from all others. */
static void fill(batch_of *b, bool columns, double mean) {
    b->columns = columns;
    for (int64_t from = 0; from <= EACH; from += EACH)
        for (int64_t c = 0; c < CHANNELS; c++)
            for (int64_t i = 0; i < EACH; i++)
                *element(b, i, c, from) = (float)(mean * (double)(c + 1)) + (from ? 3 : 1) * noise(i + 7 * c);
    for (int64_t c = 0; c < CHANNELS; c++) *element(b, 0, c, 0) += 1000;
}

/* Of `many` batches, in long double. */
static void expect_statistics(batch_of *b, int64_t many) {
    for (int64_t c = 0; c < CHANNELS; c++) {
        long double sum = 0, squares = 0, n = (long double)(many * EACH);
        for (int64_t k = 0; k < many * EACH; k++) sum += *element(b, k % EACH, c, k / EACH * EACH);
        for (int64_t k = 0; k < many * EACH; k++) {
            long double d = *element(b, k % EACH, c, k / EACH * EACH) - sum / n;
            squares += d * d;
        }
        const double mean = (double)(sum / n), variance = (double)(squares / (n - 1));
        ck_assert_msg(fabs(b->running_mean[c] - mean) <= FLT_EPSILON * fabs(mean), "the mean is %.9g, not %.9g",
                      (double)b->running_mean[c], mean);
        ck_assert_msg(fabs(b->running_var[c] - variance) <= FLT_EPSILON * variance, "the variance is %.9g, not %.9g",
                      (double)b->running_var[c], variance);
    }
}

/* momentum 1: the running statistics are those of the batch, rounded once. */
static void once(batch_of *b, int64_t from, const void *talk, float *mean, float *variance) {
    const rm_batch_norm_attr attr = {1, 1e-5, 1, talk != NULL, 0};
    const remat_op *op = rm_op_find("batch_norm");
    remat_call call = {.attr = &attr, .t_total = 1, .training = true, .ranks = talk};
    call.queue = (void *)(uintptr_t)&rm_emulated_queue;
    call.x[0] = (remat_tensor){
        .desc = rm_desc_make(REMAT_F32, 3, (int64_t[]){b->columns ? EACH : 1, CHANNELS, b->columns ? 1 : EACH}),
        .data = b->x + from * CHANNELS};
    for (int i = 1; i < 5; i++) call.x[i].desc = rm_desc_make(REMAT_F32, 1, (int64_t[]){CHANNELS});
    for (int c = 0; c < CHANNELS; c++) mean[c] = variance[c] = 0;
    call.x[1].data = mean, call.x[2].data = variance;
    remat_desc x[REMAT_MAX_INPUTS];
    for (int i = 0; i < REMAT_MAX_INPUTS; i++) x[i] = call.x[i].desc;
    call.scratch = malloc(op->on[REMAT_ON_CUDA].scratch_bytes(x, &attr, REMAT_ONCE, false, 1));
    call.once = malloc(op->once_bytes(x, &attr));
    ck_assert(call.scratch && call.once);
    op->on[REMAT_ON_CUDA].once(&call);
    free(call.scratch), free(call.once);
}

START_TEST(statistics_far_from_zero_are_exact) {
    static batch_of b;
    static const double means[] = {0, 1000, 1e6, -1e5};
    for (int columns = 0; columns < 2; columns++) {
        fill(&b, columns, means[_i]);
        once(&b, 0, NULL, b.running_mean, b.running_var);
        expect_statistics(&b, 1);
    }
}
END_TEST

/* Two ranks, each in a thread. Only one of them runs at a time: the emulation has one GPU. */
static pthread_mutex_t gpu = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t arrived = PTHREAD_COND_INITIALIZER;
static double *waiting;
static int sums;

static void sum_of_two(void *owner, double *values, int64_t count) {
    (void)owner;
    if (!waiting) {
        waiting = values;
        for (int before = sums; sums == before;) pthread_cond_wait(&arrived, &gpu);
        return;
    }
    for (int64_t i = 0; i < count; i++) waiting[i] = values[i] += waiting[i];
    waiting = NULL;
    sums++;
    pthread_cond_signal(&arrived);
}
static const rm_talk talk = {.sum = sum_of_two};

static void *second_rank(void *batches) {
    float mean[CHANNELS], variance[CHANNELS];
    batch_of *b = batches;
    pthread_mutex_lock(&gpu);
    once(b, EACH, &talk, mean, variance);
    ck_assert_mem_eq(mean, b->running_mean, sizeof mean);
    ck_assert_mem_eq(variance, b->running_var, sizeof variance);
    pthread_mutex_unlock(&gpu);
    return NULL;
}

START_TEST(statistics_of_two_ranks_are_those_of_both_batches) {
    static batch_of b;
    pthread_t other;
    fill(&b, _i, 1e5);
    pthread_mutex_lock(&gpu);
    ck_assert_int_eq(pthread_create(&other, NULL, second_rank, &b), 0);
    once(&b, 0, &talk, b.running_mean, b.running_var);
    pthread_mutex_unlock(&gpu);
    pthread_join(other, NULL);
    expect_statistics(&b, 2);
}
END_TEST

int main(void) {
    rm_op_queue = &rm_emulated_queue;
    TCase *rows = tcase_create("rows"), *statistics = tcase_create("statistics");
    tcase_add_loop_test(rows, long_rows_match_the_cpu_in_any_order, 0, LONG_ROWS);
    tcase_add_test(rows, bits_do_not_depend_on_addresses);
    tcase_add_loop_test(rows, pools_have_the_bits_of_the_cpu, 0, 14);
    tcase_add_loop_test(rows, dice_of_held_pixels_has_the_bits_of_others, 2, 5);
    tcase_add_loop_test(statistics, statistics_far_from_zero_are_exact, 0, 4);
    tcase_add_loop_test(statistics, statistics_of_two_ranks_are_those_of_both_batches, 0, 2);
    return run_cases("rows", rows, statistics);
}
