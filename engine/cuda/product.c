/* product.c: matrix products on the CUDA device, by shape: product.h. Trials on the GPU test that an algorithm that
 * splits sums repeats its bits, and that a product of many rows has the bits of the products of few rows that it
 * replaces. algorithm.c chooses algorithms. */
#include <stdlib.h>
#include <string.h>

#include "engine/cuda/cuda.h"
#include "engine/hash.h"
#include "memory/bytes.h"
#include "memory/host.h"

/* A known shape. */
typedef struct rm_cuda_made {
    struct rm_cuda_made *next;
    rm_cuda_shape shape;
    rm_cuda_way way;
    rm_cuda_algorithm *algorithm;
    rm_cuda_layouts block, whole; /* whole: `step` rows as one product or a batch; empty for BLOCKS */
    int64_t step;                 /* rows of the whole blocks that a trial has memory for */
} made;

/* ---- Life -------------------------------------------------------------------------------------------------------- */

static const cublasComputeType_t compute_type[RM_PRECISIONS] = {
    [RM_FP32] = CUBLAS_COMPUTE_32F, [RM_TF32] = CUBLAS_COMPUTE_32F_FAST_TF32, [RM_BF16] = CUBLAS_COMPUTE_32F_FAST_16BF};

/* The operands are exchanged (algorithm.c), and so are their transpositions. */
static cublasStatus_t describe(const rm_cuda_library *lib, rm_precision precision, int transposed,
                               cublasLtMatmulDesc_t *out) {
    const int32_t first = transposed & RM_CUDA_TRANSPOSE_B ? CUBLAS_OP_T : CUBLAS_OP_N,
                  second = transposed & RM_CUDA_TRANSPOSE_A ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasStatus_t error = lib->cublasLtMatmulDescCreate(out, compute_type[precision], CUDA_R_32F);
    if (error) *out = NULL;
    if (!error) error = lib->cublasLtMatmulDescSetAttribute(*out, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first);
    if (!error) error = lib->cublasLtMatmulDescSetAttribute(*out, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second);
    return error;
}

static bool is_off(const char *name) {
    const char *set = getenv(name);
    return set && !strcmp(set, "OFF");
}

static remat_status start(rm_cuda_products *products) {
    const rm_cuda_library *lib = products->device->lib;
    size_t free = 0, total = 0;
    products->memory_bytes = is_off("REMAT_CUDA_WORKSPACE") ? 0 : products->device->blas_bytes;
    products->splits = !is_off("REMAT_CUDA_SPLIT_K");
    products->rounded_terms = RM_CUDA_ROUNDED_TERMS;
    products->rounded_edge = RM_CUDA_ROUNDED_EDGE;
    TRY(rm_cuda_status(lib, lib->cudaMemGetInfo(&free, &total), "asking for the GPU's memory"));
    products->trial_bytes =
        rm_smaller(rm_larger(RM_CUDA_TRIAL_BYTES, total / RM_CUDA_TRIAL_SHARE), RM_CUDA_MOST_TRIAL_BYTES);
    if (rm_cuda_kernels_built.round && !is_off("REMAT_CUDA_ROUND"))
        products->rounded_bytes =
            rm_smaller(rm_larger(RM_CUDA_ROUNDED_BYTES, total / RM_CUDA_ROUNDED_SHARE), RM_CUDA_MOST_ROUNDED_BYTES);
    cublasStatus_t error = lib->cublasLtCreate(&products->handle);
    if (error) products->handle = NULL;
    for (int p = 0; p < RM_PRECISIONS && !error; p++)
        for (int t = 0; t < 4 && !error; t++) error = describe(lib, (rm_precision)p, t, &products->matmul[p][t]);
    return rm_cublas_status(lib, error, "starting cuBLASLt");
}

remat_status rm_cuda_products_create(rm_device *device, rm_cuda_products **out) {
    rm_cuda_products *products = rm_calloc(1, sizeof *products);
    *out = NULL;
    REQUIRE(products, MEMORY, "out of host memory for the list of matrix products");
    products->device = device;
    products->trial_bytes = RM_CUDA_TRIAL_BYTES;
    remat_status status = start(products);
    if (status)
        rm_cuda_products_free(products);
    else
        *out = products;
    return status;
}

static void forget(rm_cuda_products *products) {
    for (int i = 0; i < RM_CUDA_SHAPE_LISTS; i++)
        while (products->made[i]) {
            made *m = products->made[i];
            products->made[i] = m->next;
            rm_cuda_layouts_free(products, &m->block);
            rm_cuda_layouts_free(products, &m->whole);
            rm_free(m);
        }
    while (products->algorithms) {
        rm_cuda_algorithm *algorithm = products->algorithms;
        products->algorithms = algorithm->next;
        rm_free(algorithm);
    }
}

void rm_cuda_products_free(rm_cuda_products *products) {
    if (!products) return;
    const rm_cuda_library *lib = products->device->lib;
    forget(products);
    for (int i = 0; i < RM_PRECISIONS * 4; i++)
        if (products->matmul[i / 4][i % 4]) (void)lib->cublasLtMatmulDescDestroy(products->matmul[i / 4][i % 4]);
    if (products->handle) (void)lib->cublasLtDestroy(products->handle);
    rm_free(products);
}

void rm_cuda_products_precision(rm_cuda_products *products, rm_precision precision) {
    if (precision != products->precision) forget(products);
    products->precision = precision;
}

int64_t rm_cuda_products_made(const rm_cuda_products *products, rm_cuda_way way) {
    int64_t n = 0;
    for (int i = 0; i < RM_CUDA_SHAPE_LISTS; i++)
        for (const made *m = products->made[i]; m; m = m->next) n += m->way == way;
    return n;
}

void rm_cuda_products_known(const rm_cuda_products *products, rm_products *out) {
    const rm_cuda_algorithm *latest = products->algorithms;
    *out = (rm_products){.shapes = 0};
    if (latest) rm_cuda_algorithm_text(products, latest, out->latest, sizeof out->latest);
    for (const rm_cuda_algorithm *a = latest; a; a = a->next) {
        out->shapes++;
        out->in_fp32 += products->precision != RM_FP32 && !rm_cuda_algorithm_rounds(a);
        out->by_cublas += !a->matmul;
        out->split += a->splits > 1;
    }
    for (int i = 0; i < RM_CUDA_SHAPE_LISTS; i++)
        for (const made *m = products->made[i]; m; m = m->next) {
            out->alone += m->shape.m == m->shape.rows;
            out->blocks += m->way <= RM_CUDA_UNDECIDED || (m->way == RM_CUDA_BLOCKS && m->shape.m > m->shape.rows);
        }
    out->whole = rm_cuda_products_made(products, RM_CUDA_WHOLE);
    out->batched = rm_cuda_products_made(products, RM_CUDA_BATCHED);
}

/* ---- Making one -------------------------------------------------------------------------------------------------- */

/* A and B are in bf16 if the shape is RM_CUDA_ROUNDED, which is neither a batch nor several blocks, so that numbers are
 * not counted. */
typedef struct {
    const float *a, *b;
    float *c;
} operands;

static cublasStatus_t by_algorithm(const rm_queue *q, const made *m, const rm_cuda_layouts *layouts, operands x) {
    const rm_cuda_products *products = q->device->products;
    const float one = 1, into = m->shape.how & RM_CUDA_ADD ? 1 : 0;
    return products->device->lib->cublasLtMatmul(
        products->handle, m->algorithm->matmul, &one, x.b, layouts->b, x.a, layouts->a, &into, x.c, layouts->c, x.c,
        layouts->c, &m->algorithm->algo, products->memory_bytes ? q->own : NULL, products->memory_bytes, q->stream);
}

/* Whether cuBLASLt refused without multiplying, which it may do even after a successful AlgoCheck (cublasLt.h). */
static bool is_refusal(cublasStatus_t error) {
    return error == CUBLAS_STATUS_NOT_SUPPORTED || error == CUBLAS_STATUS_INVALID_VALUE;
}

/* For shapes without an algorithm of cuBLASLt, in fp32 unless operands are rounded. cuBLAS promises the same bits for the
 * same call. */
static cublasStatus_t by_cublas(const rm_queue *q, const rm_cuda_shape *s, operands x) {
    const float one = 1, into = s->how & RM_CUDA_ADD ? 1 : 0;
    const cublasOperation_t turn_a = s->how & RM_CUDA_TRANSPOSE_A ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t turn_b = s->how & RM_CUDA_TRANSPOSE_B ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cudaDataType_t type = rm_cuda_operand_type(s);
    cublasStatus_t error = CUBLAS_STATUS_SUCCESS;
    for (int64_t i = 0; i < s->batch && !error; i++)
        error = q->device->lib->cublasGemmEx_64(q->blas, turn_b, turn_a, s->n, s->rows, s->k, &one,
                                                x.b + i * s->stride_b, type, s->ldb, x.a + i * s->stride_a, type,
                                                s->lda, &into, x.c + i * s->stride_c, CUDA_R_32F, s->ldc,
                                                CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
    return error;
}

static operands from_row(const rm_cuda_shape *s, operands x, int64_t row) {
    return (operands){x.a + row * s->lda, x.b, x.c + row * s->ldc};
}

/* Starts at row `row`. */
static cublasStatus_t by_blocks(const rm_queue *q, const made *m, operands x, int64_t row) {
    const rm_cuda_shape *s = &m->shape;
    cublasStatus_t error = CUBLAS_STATUS_SUCCESS;
    for (; row < s->m && !error; row += s->rows) {
        operands block = from_row(s, x, row);
        error = m->algorithm->matmul ? by_algorithm(q, m, &m->block, block) : by_cublas(q, s, block);
    }
    return error;
}

static cublasStatus_t by_any(const rm_queue *q, const made *m, operands x) {
    const rm_cuda_shape *s = &m->shape;
    bool whole = m->way == RM_CUDA_WHOLE || m->way == RM_CUDA_BATCHED;
    int64_t row = 0;
    cublasStatus_t error = CUBLAS_STATUS_SUCCESS;
    for (; whole && row + m->step <= s->m && !error; row += m->step)
        error = by_algorithm(q, m, &m->whole, from_row(s, x, row));
    return error ? error : by_blocks(q, m, x, row);
}

/* ---- Trials ------------------------------------------------------------------------------------------------------ */

/* Temporary memory of a trial: random numbers, which contain A and B, and C twice. */
typedef struct {
    char *memory;
    uint64_t random_bytes, c_bytes;
    operands x;
    float *other_c;
    float *host; /* 2 PIECE numbers, or two rows of C if they are longer */
} trial;

/* The period of the random numbers is a prime, so that rows differ. B starts APART numbers after A. */
enum { PERIOD = 65521, PIECE = 65536, APART = 4096, SLACK = 256 };

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* Numbers in +-1 with 24 bits, so that different orders of summation round differently. */
static void draw(float *pattern) {
    uint64_t random = 1;
    for (int i = 0; i < PERIOD; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        pattern[i] = (float)((int32_t)(random >> 39) - (1 << 24)) * 0x1p-24f;
    }
}

/* Numbers in bf16, for the same reason of many sizes: 2^-16 to 1. Two of them are also a float. */
static void draw_halves(void *pattern) {
    uint64_t random = 1;
    for (size_t i = 0; i < 2 * PERIOD; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        const uint64_t sign = random >> 63, size = 111 + (random >> 59 & 15), mantissa = random >> 52 & 127;
        const uint16_t half = (uint16_t)(sign << 15 | size << 7 | mantissa);
        memcpy((char *)pattern + i * sizeof half, &half, sizeof half);
    }
}

static void fill_randomly(rm_queue *q, const trial *t, bool halves) {
    uint64_t done = rm_smaller(PERIOD * sizeof *t->host, t->random_bytes);
    if (halves)
        draw_halves(t->host);
    else
        draw(t->host);
    rm_cuda_copy_in(q, t->memory, t->host, done);
    for (uint64_t part; done < t->random_bytes; done += part) {
        part = rm_smaller(done, t->random_bytes - done);
        rm_cuda_copy(q, t->memory + done, t->memory, part);
    }
}

/* Aligns exactly as the shape's operands, since kernels may depend on alignment. */
static float *aligned_as(char *at, int32_t align) { return (float *)at + (align < 16 ? align / 4 : 0); }

/* Sets the sizes of a trial of `rows` rows and returns its bytes on the GPU. */
static uint64_t measure(const rm_cuda_shape *s, int64_t rows, trial *t) {
    int64_t a_rows = s->how & RM_CUDA_TRANSPOSE_A ? s->k : rows, b_rows = s->how & RM_CUDA_TRANSPOSE_B ? s->n : s->k;
    int64_t c = rows * s->ldc, a = a_rows * s->lda, b = b_rows * s->ldb;
    if (s->how & RM_CUDA_ROUNDED) a = (a + 1) / 2, b = (b + 1) / 2;
    t->random_bytes = rm_align_up((uint64_t)(larger(larger(a, APART + b), c) + SLACK) * sizeof(float));
    t->c_bytes = rm_align_up((uint64_t)(c + SLACK) * sizeof(float));
    return t->random_bytes + 2 * t->c_bytes;
}

/* Rows of a trial: all whole blocks, or a part of them that fits in trial_bytes, with parts of similar size. 0: not
 * even two blocks fit. */
static int64_t rows_to_try(const rm_cuda_products *products, const rm_cuda_shape *s) {
    int64_t blocks = s->m / s->rows, step = blocks;
    trial t;
    for (int64_t parts = 2; step > 1 && measure(s, step * s->rows, &t) > products->trial_bytes; parts++)
        step = (blocks + parts - 1) / parts;
    return step > 1 ? step * s->rows : 0;
}

/* Returns false if there is no memory. Call tear_down in either case. */
static bool set_up(const rm_queue *q, const rm_cuda_shape *s, trial *t) {
    const rm_cuda_library *lib = q->device->lib;
    void *memory = NULL;
    uint64_t bytes = measure(s, s->m, t);
    t->host = rm_malloc((size_t)larger(2 * PIECE, 2 * s->ldc) * sizeof *t->host);
    if (t->host && lib->cudaMalloc(&memory, bytes)) {
        (void)lib->cudaGetLastError();
        memory = NULL;
    }
    t->memory = memory;
    if (!memory) return false;
    t->x.a = aligned_as(t->memory, s->at_a);
    t->x.b = aligned_as(t->memory + APART * sizeof(float), s->at_b);
    t->x.c = aligned_as(t->memory + t->random_bytes, s->at_c);
    t->other_c = aligned_as(t->memory + t->random_bytes + t->c_bytes, s->at_c);
    return true;
}

/* If the product adds, C starts with the same numbers in all runs. Otherwise both C start with different bytes, so that
 * elements that are not written are detected. */
static void prepare(rm_queue *q, const rm_cuda_shape *s, const trial *t, bool other) {
    char *c = t->memory + t->random_bytes + (other ? t->c_bytes : 0);
    if (s->how & RM_CUDA_ADD)
        rm_cuda_copy(q, c, t->memory, t->c_bytes);
    else
        rm_cuda_fill(q, c, other ? 0xff : 0, t->c_bytes);
}

/* Whether both results have the same bits. Reads them piece by piece and ignores the gaps between rows. */
static bool results_are_equal(rm_queue *q, const rm_cuda_shape *s, const trial *t) {
    int64_t step = larger(PIECE / s->ldc, 1);
    float *one = t->host, *other = t->host + step * s->ldc;
    for (int64_t row = 0; row < s->m; row += step) {
        int64_t rows = s->m - row < step ? s->m - row : step;
        uint64_t bytes = (uint64_t)((rows - 1) * s->ldc + s->n) * sizeof(float);
        rm_cuda_copy_out(q, one, t->x.c + row * s->ldc, bytes);
        rm_cuda_copy_out(q, other, t->other_c + row * s->ldc, bytes);
        rm_cuda_queue_settle(q);
        for (int64_t i = 0; i < rows && !q->device->failed; i++)
            if (memcmp(one + i * s->ldc, other + i * s->ldc, (size_t)s->n * sizeof *one)) return false;
        if (q->device->failed) return false;
    }
    return true;
}

/* Whether one result by blocks and `times` results by `layouts` have the same bits. Several are needed, since a split
 * sum might differ only occasionally. *error: the failure of `layouts`. */
enum { TIMES = 3 };
static bool all_are_equal(rm_queue *q, const made *m, const rm_cuda_layouts *layouts, const trial *t, int times,
                          cublasStatus_t *error) {
    rm_device *device = q->device;
    const operands other = {t->x.a, t->x.b, t->other_c};
    fill_randomly(q, t, m->shape.how & RM_CUDA_ROUNDED);
    prepare(q, &m->shape, t, false);
    *error = device->failed ? CUBLAS_STATUS_NOT_SUPPORTED : by_blocks(q, m, t->x, 0);
    if (!is_refusal(*error)) (void)rm_cublas_went(device, *error, "trying a matrix product");
    bool equal = !*error && !device->failed;
    for (int i = 0; i < times && equal; i++) {
        prepare(q, &m->shape, t, true);
        *error = device->failed ? CUBLAS_STATUS_NOT_SUPPORTED : by_algorithm(q, m, layouts, other);
        equal = !*error && results_are_equal(q, &m->shape, t);
    }
    return equal;
}

static void tear_down(rm_queue *q, trial *t) {
    if (t->memory) {
        rm_cuda_queue_settle(q); /* no work on it may be pending */
        (void)rm_cuda_went(q->device, q->device->lib->cudaFree(t->memory), "giving back memory");
    }
    rm_free(t->host);
}

/* Whether m->whole gives the bits of the blocks. False if there is no memory for the trial. */
static bool is_proven(rm_queue *q, const made *m) {
    trial t = {.memory = NULL};
    made part = *m;
    cublasStatus_t error;
    part.shape.m = m->step;
    bool proven = set_up(q, &part.shape, &t) && all_are_equal(q, &part, &m->whole, &t, TIMES, &error);
    tear_down(q, &t);
    return proven && !q->device->failed;
}

/* Whether an algorithm gives the same bits for the same call. The answer affects bits, so it must depend only on the
 * algorithm: a refusal, or a size above trial_bytes, counts as no. A temporary lack of memory is an error, like any
 * other failure. */
static bool repeats(rm_queue *q, rm_cuda_algorithm *algorithm) {
    rm_device *device = q->device;
    trial t = {.memory = NULL};
    made m = {.shape = rm_cuda_algorithm_shape(algorithm), .algorithm = algorithm};
    bool equal = false;
    if (measure(&m.shape, m.shape.m, &t) > device->products->trial_bytes) return false;
    cublasStatus_t error = rm_cuda_layouts_make(device->products, &m.shape, m.shape.m, 1, &m.block);
    if (rm_cublas_went(device, error, "describing a matrix product")) {
        if (set_up(q, &m.shape, &t)) {
            equal = all_are_equal(q, &m, &m.block, &t, TIMES - 1, &error);
            if (!is_refusal(error)) (void)rm_cublas_went(device, error, "trying a matrix product");
        } else
            (void)rm_cuda_went(device, cudaErrorMemoryAllocation, "taking memory to try a matrix product");
    }
    tear_down(q, &t);
    rm_cuda_layouts_free(device->products, &m.block);
    return equal && !device->failed;
}

/* Tries an algorithm that splits sums or needs memory before its first use, and replaces it by the next one if its bits
 * do not repeat. */
static void guard(rm_queue *q, rm_cuda_algorithm *algorithm) {
    rm_device *device = q->device;
    while (algorithm->guarded && !algorithm->repeats && !device->failed) {
        algorithm->repeats = repeats(q, algorithm);
        if (!algorithm->repeats && !device->failed) (void)rm_cuda_algorithm_next(device->products, algorithm);
    }
}

static void decide(rm_queue *q, made *m) {
    rm_cuda_products *products = q->device->products;
    const rm_cuda_shape *s = &m->shape;
    m->step = m->algorithm->matmul ? rows_to_try(products, s) : 0;
    bool alone = !m->step;
    for (rm_cuda_way way = RM_CUDA_WHOLE; way < RM_CUDA_BLOCKS && !alone && !q->device->failed; way++) {
        int64_t batch = way == RM_CUDA_WHOLE ? 1 : m->step / s->rows;
        bool fits = !rm_cuda_layouts_make(products, s, m->step / batch, batch, &m->whole) &&
                    rm_cuda_algorithm_fits(products, m->algorithm, &m->whole);
        if (fits && is_proven(q, m)) {
            m->way = way;
            return;
        }
        rm_cuda_layouts_free(products, &m->whole);
    }
    if (!q->device->failed) m->way = RM_CUDA_BLOCKS;
}

/* ---- Main entry -------------------------------------------------------------------------------------------------- */

/* Alignment of every row of a batch in bytes, at most 16. */
static int32_t alignment(const float *x, int64_t ld, int64_t stride) {
    uintptr_t bits = (uintptr_t)x | (uintptr_t)ld * sizeof *x | (uintptr_t)stride * sizeof *x | 16;
    return (int32_t)(bits & -bits);
}

static rm_cuda_shape shape_of(const rm_cuda_product *p, bool rounded) {
    const bool tried = p->rows_like && p->m > p->rows_like;
    const int64_t many = p->batch > 1;
    return (rm_cuda_shape){.m = p->m,
                           .n = p->n,
                           .k = p->k,
                           .lda = p->lda,
                           .ldb = p->ldb,
                           .ldc = p->ldc,
                           .rows = p->rows_like ? p->rows_like : p->m,
                           .batch = many ? p->batch : 1,
                           .stride_a = many * p->stride_a,
                           .stride_b = many * p->stride_b,
                           .stride_c = many * p->stride_c,
                           .align_a = rounded ? 16 : alignment(p->a, p->lda, many * p->stride_a),
                           .align_b = rounded ? 16 : alignment(p->b, p->ldb, many * p->stride_b),
                           .align_c = alignment(p->c, p->ldc, many * p->stride_c),
                           .at_a = tried ? alignment(p->a, 0, 0) : 0,
                           .at_b = tried ? alignment(p->b, 0, 0) : 0,
                           .at_c = tried ? alignment(p->c, 0, 0) : 0,
                           .how = (p->transpose_a ? RM_CUDA_TRANSPOSE_A : 0) |
                                  (p->transpose_b ? RM_CUDA_TRANSPOSE_B : 0) | (p->add ? RM_CUDA_ADD : 0) |
                                  (rounded ? RM_CUDA_ROUNDED : 0)};
}

/* NULL: the device keeps the failure. */
static made *make(rm_cuda_products *products, const rm_cuda_shape *shape, made **list) {
    made *m = rm_calloc(1, sizeof *m);
    if (m) m->algorithm = rm_cuda_algorithm_for(products, shape);
    cublasStatus_t error = m ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
    if (m && m->algorithm) error = rm_cuda_layouts_make(products, shape, shape->rows, 1, &m->block);
    if (!rm_cublas_went(products->device, error, "describing a matrix product") || !m->algorithm) {
        if (m) rm_cuda_layouts_free(products, &m->block);
        rm_free(m);
        return NULL;
    }
    m->shape = *shape;
    m->next = *list;
    return *list = m;
}

static made *find_or_make(rm_cuda_products *products, const rm_cuda_shape *shape) {
    made **list = &products->made[rm_hash(shape, sizeof *shape, 0) % RM_CUDA_SHAPE_LISTS];
    for (made *m = *list; m; m = m->next)
        if (!memcmp(&m->shape, shape, sizeof *shape)) return m;
    return make(products, shape, list);
}

/* Replaces an algorithm that was refused before its first use. One that has been used stays, since other shapes have
 * its bits. */
static bool another(rm_cuda_products *products, made *m, cublasStatus_t error) {
    if (!is_refusal(error) || m->algorithm->used || !rm_cuda_algorithm_next(products, m->algorithm)) return false;
    rm_cuda_layouts_free(products, &m->whole);
    m->way = RM_CUDA_UNDECIDED;
    return true;
}

/* No trials are possible while launches are recorded; a new shape is then made by BLOCKS and stays undecided. */
static void multiply(rm_queue *q, const rm_cuda_product *product, bool rounded) {
    rm_device *device = q->device;
    const rm_cuda_shape shape = shape_of(product, rounded);
    operands x = {product->a, product->b, product->c};
    made *m = device->failed ? NULL : find_or_make(device->products, &shape);
    const bool tries = !rm_cuda_graph_records(q);
    cublasStatus_t error = CUBLAS_STATUS_SUCCESS;
    if (!m) return;
    do {
        if (tries) guard(q, m->algorithm);
        if (!m->way && tries && !device->failed) decide(q, m);
        if (!device->failed) error = by_any(q, m, x);
        m->algorithm->used |= !device->failed && !error;
    } while (tries && error && !device->failed && another(device->products, m, error));
    if (!device->failed) (void)rm_cublas_went(device, error, "a matrix product");
}

/* Matrices of a batch. Kernels count them along an axis of at most 65,535 blocks, so cuBLASLt has no algorithm for more. */
enum { MOST_BATCH = 32768 };

static void multiply_batch(rm_queue *q, const rm_cuda_product *product) {
    rm_cuda_product part = *product;
    for (int64_t left = product->batch; left > MOST_BATCH; left -= MOST_BATCH, part.batch = left) {
        part.batch = MOST_BATCH;
        multiply(q, &part, false);
        part.a += MOST_BATCH * part.stride_a, part.b += MOST_BATCH * part.stride_b,
            part.c += MOST_BATCH * part.stride_c;
    }
    multiply(q, &part, false);
}

/* In blocks of rows_like rows, or one of all rows; each in parts of `rows` rows. */
static void multiply_rounded(rm_queue *q, const rm_cuda_product *product, int64_t rows) {
    const rm_cuda_product rounded = rm_cuda_rounded_b(q, product);
    const int64_t block = product->rows_like ? product->rows_like : product->m;
    for (int64_t first = 0; first < product->m; first += block)
        for (int64_t row = 0; row < block; row += rows) {
            const rm_cuda_product part =
                rm_cuda_rounded_part(q, &rounded, first + row, block - row < rows ? block - row : rows);
            multiply(q, &part, true);
        }
}

void rm_cuda_multiply(const rm_cuda_queue *shown, const rm_cuda_product *product) {
    rm_queue *q = (rm_queue *)(uintptr_t)shown;
    const int64_t rows = rm_cuda_rounded_rows(q, product);
    if (rows)
        multiply_rounded(q, product, rows);
    else
        multiply_batch(q, product);
}
