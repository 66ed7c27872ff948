/* test_products.c: matrix products on a real GPU (docs/notes/cuda.md), in each precision: near those in double
 * precision, repeatable, and with rows_like the bits of few rows alone; and the batches of attention, whose matrices are
 * interleaved. It also prints speeds, which show whether the library can multiply a tile's rows at once (then they are
 * near those of the product without rows_like). A line ends with the algorithm's numbers (CUBLASLT_ALGO_CONFIG_ID and so
 * on) and its precision.
 *
 *     gpu_test_products [--device=cuda] [--small] [--precision=fp32|tf32|bf16]
 *     gpu_test_products --list
 *
 * REMAT_CUDA_SPLIT_K=OFF, REMAT_CUDA_WORKSPACE=OFF and REMAT_CUDA_ROUND=OFF show the benefit of split sums, of the
 * workspace, and of operands rounded beforehand. --list prints the last flag for each precision; run.sh gives each its
 * own process.
 *
 * Exits with 77 without such a device. */
#include <math.h>

#include "ops/cuda/cuda_queue.h"
#include "tests/gpu/skip.h"

typedef struct {
    int64_t rows, blocks, n, k; /* rows: per timestep; blocks: timesteps */
    bool transpose_b, add;
} shape;

/* Those of lstm, gru and linear; then prime sizes. */
static const shape shapes[] = {
    {1, 128, 1024, 256, true, true},   {16, 64, 2048, 512, true, true}, {64, 32, 4096, 1024, true, true},
    {64, 32, 4096, 1024, true, false}, {32, 32, 1536, 512, true, true}, {64, 32, 1024, 4096, false, false},
    {3, 7, 250, 61, true, true},       {5, 9, 129, 130, false, false},  {1, 33, 28, 7, true, true},
};
static const shape small_shapes[] = {{2, 5, 24, 7, true, true}, {3, 4, 8, 16, false, false}};

static const rm_device_api *api;
static rm_device *device;
static rm_block *block;
static rm_queue *queue;
static int failures;

/* A, B, the initial C, and C twice: on the device, and on the host. */
enum { A, B, BEFORE, C, OTHER, ARRAYS };
typedef struct {
    float *there[ARRAYS], *here[ARRAYS];
    int64_t count[ARRAYS];
} arrays;

static void check(remat_status status) {
    if (status) printf("%s\n", remat_last_error()), exit(EXIT_FAILURE);
}

static void make_arrays(int64_t a, int64_t b, int64_t c, arrays *x) {
    int64_t bytes = 0;
    uint64_t random = 1;
    const int64_t count[ARRAYS] = {a, b, c, c, c};
    for (int i = 0; i < ARRAYS; i++) bytes += (count[i] * 4 + 255) / 256 * 256;
    check(api->block_create(device, (uint64_t)bytes, &block));
    uint64_t at = 0;
    for (int i = 0; i < ARRAYS; i++) {
        x->count[i] = count[i];
        x->there[i] = api->claim(block, at, (uint64_t)count[i] * 4);
        x->here[i] = malloc((size_t)count[i] * 4);
        if (!x->here[i]) abort();
        at += (uint64_t)(count[i] * 4 + 255) / 256 * 256;
        for (int64_t k = 0; k < count[i] && i < C; k++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            x->here[i][k] = (float)(int32_t)(random >> 32) * 0x1p-31f;
        }
        if (i < C) api->copy_in(queue, x->there[i], x->here[i], (uint64_t)count[i] * 4);
    }
    check(api->synchronize(queue));
}

static void free_arrays(arrays *x) {
    for (int i = 0; i < ARRAYS; i++) free(x->here[i]);
    api->block_free(block);
}

/* Rows [first, first + rows). */
static rm_cuda_product product_of(const shape *s, const arrays *x, int64_t first, int64_t rows, int64_t rows_like,
                                  int into) {
    return (rm_cuda_product){.a = x->there[A] + first * s->k,
                             .b = x->there[B],
                             .c = x->there[into] + first * s->n,
                             .m = rows,
                             .n = s->n,
                             .k = s->k,
                             .lda = s->k,
                             .ldb = s->transpose_b ? s->k : s->n,
                             .ldc = s->n,
                             .rows_like = rows_like,
                             .transpose_b = s->transpose_b,
                             .add = s->add};
}
static void make(const rm_cuda_product *p) {
    ((const rm_cuda_queue *)queue)->multiply((const rm_cuda_queue *)queue, p);
}
static void multiply(const shape *s, const arrays *x, int64_t first, int64_t rows, int64_t rows_like, int into) {
    const rm_cuda_product p = product_of(s, x, first, rows, rows_like, into);
    make(&p);
}

static void begin_again(const arrays *x, int into) {
    api->copy(queue, x->there[into], x->there[BEFORE], (uint64_t)x->count[into] * 4);
}
static void read_back(const arrays *x, int which) {
    api->copy_out(queue, x->here[which], x->there[which], (uint64_t)x->count[which] * 4);
    check(api->synchronize(queue));
}

static void expect_same(const char *name, const arrays *x, const char *what) {
    if (!memcmp(x->here[C], x->here[OTHER], (size_t)x->count[C] * 4)) return;
    printf("%s FAILED: %s\n", name, what);
    failures++;
}

/* Checks a sample of C's elements. Operands are rounded by 2^-11 in TF32, and by 2^-8 in bf16. */
static void expect_near(const char *name, const rm_cuda_product *p, const arrays *x, rm_precision precision) {
    static const double unit[RM_PRECISIONS] = {0x1p-24, 0x1p-10, 0x1p-7};
    const int64_t batch = p->batch > 1 ? p->batch : 1, each = p->m * p->n, step = batch * each / 997 + 1;
    for (int64_t at = 0; at < batch * each; at += step) {
        const int64_t l = at / each, i = at % each / p->n, j = at % p->n, to = l * p->stride_c + i * p->ldc + j;
        const float *a = x->here[A] + l * p->stride_a, *b = x->here[B] + l * p->stride_b;
        double sum = p->add ? (double)x->here[BEFORE][to] : 0, size = fabs(sum);
        for (int64_t t = 0; t < p->k; t++) {
            double term = (double)a[p->transpose_a ? t * p->lda + i : i * p->lda + t] *
                          (double)b[p->transpose_b ? j * p->ldb + t : t * p->ldb + j];
            sum += term;
            size += fabs(term);
        }
        double allowed = size * (2 * unit[precision] + (double)(p->k + 1) * 0x1p-24);
        if (fabs((double)x->here[C][to] - sum) <= allowed) continue;
        printf("%s FAILED: element %lld is %.9g, not %.9g\n", name, (long long)to, (double)x->here[C][to], sum);
        failures++;
        return;
    }
}

/* Microseconds of the fastest of five calls; 0: no timers. */
static double time_of(const rm_cuda_product *p) {
    rm_event *from, *to;
    double best = 1e30;
    if (!api->timer_create) return 0;
    check(api->timer_create(device, &from));
    check(api->timer_create(device, &to));
    for (int i = 0; i < 5; i++) {
        api->event_record(queue, from);
        make(p);
        api->event_record(queue, to);
        check(api->synchronize(queue));
        best = fmin(best, 1e-3 * (double)api->between_ns(from, to));
    }
    api->event_free(from);
    api->event_free(to);
    return best;
}

static void try_shape(const shape *s, rm_precision precision) {
    char name[96];
    arrays x;
    rm_products known;
    int64_t m = s->rows * s->blocks;
    snprintf(name, sizeof name, "%s (%lld x %lld, %lld, %lld)%s%s", rm_precision_names[precision], (long long)s->blocks,
             (long long)s->rows, (long long)s->n, (long long)s->k, s->transpose_b ? " B'" : "", s->add ? " +" : "");
    make_arrays(m * s->k, s->n * s->k, m * s->n, &x);
    begin_again(&x, C);
    multiply(s, &x, 0, m, s->rows, C);
    begin_again(&x, OTHER);
    for (int64_t b = 0; b < s->blocks; b++) multiply(s, &x, b * s->rows, s->rows, 0, OTHER);
    read_back(&x, C), read_back(&x, OTHER);
    api->products(device, &known); /* the algorithm of both */
    const rm_cuda_product rows = product_of(s, &x, 0, m, s->rows, C), whole = product_of(s, &x, 0, m, 0, C);
    expect_near(name, &rows, &x, precision);
    expect_same(name, &x, "rows differ from those of their timestep's product");
    begin_again(&x, OTHER);
    multiply(s, &x, 0, m, s->rows, OTHER);
    read_back(&x, OTHER);
    expect_same(name, &x, "the second product differs");
    double like = time_of(&rows), alone = time_of(&whole);
    printf("%-40s rows as alone: %9.1f us, %6.2f TFLOP/s; for itself: %9.1f us; %s\n", name, like,
           2e-6 * (double)m * (double)s->n * (double)s->k / (like + 1e-9), alone, known.latest);
    fflush(stdout);
    free_arrays(&x);
}

/* The heads of attention, whose q, k and y are interleaved: (rows,heads,width), (keys,heads,width). A single head makes the
 * products of a linear layer: y, the gradient of x, and that of the weights. */
typedef struct {
    int64_t heads, rows, keys, width;
} heads;
static const heads batches[] = {{24, 512, 1024, 64}, {12, 512, 512, 128}, {5, 37, 61, 24}, {1, 8192, 3072, 768}};
static const heads small_batches[] = {{3, 5, 7, 4}};
/* The layer before the loss of a GPT-2: in bf16, its operands are rounded in parts. */
static const heads classes = {1, 4096, 50257, 768};
enum { SCORES, RESULTS, KEY_GRADIENTS, BATCHES }; /* q k^T, p v, dp^T q */

static rm_cuda_product batch_of(const heads *h, int which, const arrays *x, int into) {
    const int64_t apart = h->heads * h->width, each = h->rows * h->keys;
    rm_cuda_product p = {.a = x->there[A], .b = x->there[B], .c = x->there[into], .batch = h->heads};
    p.m = which == KEY_GRADIENTS ? h->keys : h->rows, p.n = which == SCORES ? h->keys : h->width;
    p.k = which == SCORES ? h->width : which == RESULTS ? h->keys : h->rows;
    p.transpose_a = which == KEY_GRADIENTS, p.transpose_b = which == SCORES;
    p.lda = which == SCORES ? apart : h->keys, p.stride_a = which == SCORES ? h->width : each;
    p.ldb = apart, p.stride_b = h->width;
    p.ldc = which == SCORES ? h->keys : apart, p.stride_c = which == SCORES ? each : h->width;
    return p;
}

static void try_batch(const heads *h, int which, rm_precision precision) {
    static const char *const what[BATCHES] = {"scores", "results", "gradients of keys"};
    char name[96];
    arrays x;
    rm_products known;
    const int64_t q = h->heads * h->rows * h->width, k = h->heads * h->keys * h->width,
                  p = h->heads * h->rows * h->keys;
    snprintf(name, sizeof name, "%s %lld heads, (%lld,%lld), %lld: %s", rm_precision_names[precision],
             (long long)h->heads, (long long)h->rows, (long long)h->keys, (long long)h->width, what[which]);
    make_arrays(which == SCORES ? q : p, which == KEY_GRADIENTS ? q : k,
                which == SCORES    ? p
                : which == RESULTS ? q
                                   : k,
                &x);
    const rm_cuda_product product = batch_of(h, which, &x, C), again = batch_of(h, which, &x, OTHER);
    make(&product), make(&again);
    read_back(&x, C), read_back(&x, OTHER);
    api->products(device, &known);
    expect_near(name, &product, &x, precision);
    expect_same(name, &x, "the second batch differs");
    const double us = time_of(&product), work = 2e-6 * (double)(p * h->width);
    printf("%-52s %9.1f us, %6.2f TFLOP/s; %s\n", name, us, work / (us + 1e-9), known.latest);
    fflush(stdout);
    free_arrays(&x);
}

int main(int argc, char **argv) {
    const char *name = value_of(argc, argv, "--device=", "cuda");
    const char *only = value_of(argc, argv, "--precision=", NULL);
    bool small = has_flag(argc, argv, "--small");
    for (rm_precision p = RM_FP32; p < RM_PRECISIONS && has_flag(argc, argv, "--list"); p++)
        printf("--precision=%s\n", rm_precision_names[p]);
    if (has_flag(argc, argv, "--list")) return EXIT_SUCCESS;
    need_device(try_device(name));
    api = rm_device_find(name);
    if (api->kernels != REMAT_ON_CUDA) printf("skipped: the device %s has no CUDA queue\n", name), exit(SKIPPED);
    check(api->open(1, &device));
    for (rm_precision p = RM_FP32; p < RM_PRECISIONS; p++) {
        if (only && strcmp(only, rm_precision_names[p])) continue;
        if (api->set_precision(device, p)) {
            printf("%s: %s\n", rm_precision_names[p], remat_last_error());
            continue;
        }
        check(api->queue_create(device, &queue)); /* it has memory for this precision */
        const shape *list = small ? small_shapes : shapes;
        size_t n = small ? sizeof small_shapes / sizeof *list : sizeof shapes / sizeof *list;
        for (size_t i = 0; i < n; i++) try_shape(&list[i], p);
        for (size_t i = 0; i < (small ? 1 : sizeof batches / sizeof *batches); i++)
            for (int which = 0; which < BATCHES; which++) try_batch(small ? small_batches : &batches[i], which, p);
        rm_products known;
        for (int which = 0; which < BATCHES && !small && p == RM_BF16; which++) try_batch(&classes, which, p);
        api->products(device, &known);
        api->queue_free(queue);
        if (known.in_fp32)
            printf("%s: %lld of %lld products are made in fp32 all the same\n", rm_precision_names[p],
                   (long long)known.in_fp32, (long long)known.shapes);
    }
    api->close(device);
    printf(failures ? "%d failures\n" : "every row keeps its bits\n", failures);
    return failures ? EXIT_FAILURE : EXIT_SUCCESS;
}
