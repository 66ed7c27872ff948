/* fake_lt.c: the functions of cuBLASLt that Remat's device calls (fake.h). Products run in plain loops when their turn
 * in the stream comes. It is as difficult as the real library may be: the proposed algorithm depends on the number of
 * columns (Remat's rows), and the order of a sum depends on the algorithm. The first proposals split sums in no fixed
 * order or in a fixed one, need memory, or do not work. On demand (fake_lt_is) bits depend on the number of columns
 * even with the same algorithm. */
#include <stdlib.h>
#include <string.h>

#include <cublasLt.h>

#include "fake.h"

static unsigned whims;
static fake_lt_count count;

void fake_lt_is(unsigned w) { whims = w; }
fake_lt_count fake_lt_counted(void) { return count; }
void fake_lt_reset(void) {
    whims = 0;
    count = (fake_lt_count){0};
}

/* The targets of Remat's descriptors. */
typedef struct {
    int64_t rows, columns, ld, stride;
    int32_t batch;
    cudaDataType_t type;
} layout;
typedef struct {
    cublasComputeType_t compute;
    int32_t turn_a, turn_b;
} operation;
typedef struct {
    uint64_t memory;
    uint32_t scheme, align[4];
} wishes;
struct cublasLtContext {
    int nothing;
};

/* cublasLtMatmulAlgo_t.data */
enum { ID, SPLIT, SCHEME, MEMORY, COLUMNS, NEAR, NUMERICS, LATE };

static const layout *read_layout(cublasLtMatrixLayout_t l) { return (const layout *)(const void *)l; }
static const operation *read_operation(cublasLtMatmulDesc_t o) { return (const operation *)(const void *)o; }

/* Creates a handle; NULL if that failed. */
static void *make(size_t bytes, cublasStatus_t *status) {
    *status = fake_blas_answer();
    void *made = *status ? NULL : calloc(1, bytes);
    fake_blas_handle(*status ? 0 : 1);
    return made;
}
static cublasStatus_t unmake(void *handle) {
    if (!handle) fake_violate("a cuBLASLt object is destroyed that does not exist");
    fake_blas_handle(-1);
    free(handle);
    return fake_blas_answer();
}

uint64_t fake_blas_bytes(cudaDataType_t type) {
    if (type != CUDA_R_32F && type != CUDA_R_16BF) fake_violate("a matrix of another type than float or bf16");
    return type == CUDA_R_16BF ? sizeof(uint16_t) : sizeof(float);
}
float fake_blas_number(const void *x, cudaDataType_t type, int64_t i) {
    if (type == CUDA_R_32F) return ((const float *)x)[i];
    uint32_t bits = (uint32_t)((const uint16_t *)x)[i] << 16;
    float number;
    memcpy(&number, &bits, sizeof number);
    return number;
}

/* ---- Descriptors ------------------------------------------------------------------------------------------------- */

size_t cublasLtGetVersion(void) { return 130000; }
cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) {
    cublasStatus_t status;
    *handle = make(sizeof **handle, &status);
    if (!status) fake_load(FAKE_CUBLASLT);
    return status;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) { return unmake(handle); }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t compute, cudaDataType_t scale) {
    cublasStatus_t status;
    operation *o = make(sizeof *o, &status);
    if (o) o->compute = compute;
    if (scale != CUDA_R_32F) fake_violate("products are not scaled by floats");
    *out = (cublasLtMatmulDesc_t)(void *)o;
    return status;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) { return unmake(desc); }
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t name,
                                              const void *value, size_t bytes) {
    cublasStatus_t status = fake_blas_answer();
    operation *o = (operation *)(void *)desc;
    if (status) return status;
    if (bytes != sizeof(int32_t)) return CUBLAS_STATUS_INVALID_VALUE;
    if (name == CUBLASLT_MATMUL_DESC_TRANSA)
        memcpy(&o->turn_a, value, bytes);
    else if (name == CUBLASLT_MATMUL_DESC_TRANSB)
        memcpy(&o->turn_b, value, bytes);
    else
        return CUBLAS_STATUS_INVALID_VALUE;
    return status;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t ld) {
    cublasStatus_t status;
    layout *l = make(sizeof *l, &status);
    if (l) *l = (layout){(int64_t)rows, (int64_t)columns, ld, 0, 1, type};
    (void)fake_blas_bytes(type);
    if (ld < (int64_t)rows) fake_violate("a matrix with %lld rows, %lld numbers apart", (long long)rows, (long long)ld);
    *out = (cublasLtMatrixLayout_t)(void *)l;
    return status;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l) { return unmake(l); }
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t matrix, cublasLtMatrixLayoutAttribute_t name,
                                                const void *value, size_t bytes) {
    cublasStatus_t status = fake_blas_answer();
    layout *l = (layout *)(void *)matrix;
    if (status) return status;
    if (name == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT && bytes == sizeof l->batch)
        memcpy(&l->batch, value, bytes);
    else if (name == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET && bytes == sizeof l->stride)
        memcpy(&l->stride, value, bytes);
    else
        return CUBLAS_STATUS_INVALID_VALUE;
    return status;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out) {
    cublasStatus_t status;
    wishes *w = make(sizeof *w, &status);
    if (w) *w = (wishes){0, CUBLASLT_REDUCTION_SCHEME_MASK, {256, 256, 256, 256}};
    *out = (cublasLtMatmulPreference_t)(void *)w;
    return status;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) { return unmake(preference); }
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t name, const void *value,
                                                    size_t bytes) {
    static const cublasLtMatmulPreferenceAttributes_t align[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    cublasStatus_t status = fake_blas_answer();
    wishes *w = (wishes *)(void *)preference;
    if (status) return status;
    for (int i = 0; i < 4; i++)
        if (name == align[i] && bytes == sizeof w->align[i]) return memcpy(&w->align[i], value, bytes), status;
    if (name == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES && bytes == sizeof w->memory)
        return memcpy(&w->memory, value, bytes), status;
    if (name == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK && bytes == sizeof w->scheme)
        return memcpy(&w->scheme, value, bytes), status;
    return CUBLAS_STATUS_INVALID_VALUE;
}

/* ---- Algorithms -------------------------------------------------------------------------------------------------- */

/* op(A) (m,k) op(B) (k,n) = D (m,n), in batches of one size. Operands in bf16 are not rounded again. */
static bool fits(const operation *o, const layout *a, const layout *b, const layout *d) {
    if (a->type != b->type || d->type != CUDA_R_32F) return false;
    if (a->type == CUDA_R_16BF && o->compute != CUBLAS_COMPUTE_32F) return false;
    int64_t am = o->turn_a ? a->columns : a->rows, ak = o->turn_a ? a->rows : a->columns;
    int64_t bk = o->turn_b ? b->columns : b->rows, bn = o->turn_b ? b->rows : b->columns;
    return am == d->rows && bn == d->columns && ak == bk && a->batch == d->batch && b->batch == d->batch;
}

static bool aligned(const layout *l, uint32_t bytes) { return (uint64_t)l->ld * fake_blas_bytes(l->type) % bytes == 0; }

static uint64_t numerics_of(cublasComputeType_t compute, cudaDataType_t type) {
    if (type == CUDA_R_16BF) return CUBLASLT_NUMERICAL_IMPL_FLAGS_HMMA | CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_16BF;
    if (compute == CUBLAS_COMPUTE_32F_FAST_TF32)
        return CUBLASLT_NUMERICAL_IMPL_FLAGS_HMMA | CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_TF32;
    if (compute == CUBLAS_COMPUTE_32F_FAST_16BF)
        return CUBLASLT_NUMERICAL_IMPL_FLAGS_HMMA | CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_16BF;
    return CUBLASLT_NUMERICAL_IMPL_FLAGS_FMA | CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_32F;
}

/* A good algorithm, which does not split sums. */
static cublasLtMatmulAlgo_t algorithm(uint64_t id, int64_t columns, cublasComputeType_t compute, cudaDataType_t type) {
    return (cublasLtMatmulAlgo_t){
        .data = {[ID] = id, [SPLIT] = 1, [COLUMNS] = (uint64_t)columns, [NUMERICS] = numerics_of(compute, type)}};
}

static bool is_far(const layout *l) { return l->ld > 2 * l->rows + 4; }
static bool refuses(const cublasLtMatmulAlgo_t *algo, const layout *a, const layout *b, const layout *d) {
    return algo->data[NEAR] && (is_far(a) || is_far(b) || is_far(d));
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t matmul,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t *result, int *n) {
    enum { PROPOSALS = 6, NO_ORDER = 0, SPLITS, WANTS_MEMORY, FAILS, GOOD, SLOWER, NEEDED = 1024, MOST_BLOCKS = 65535 };
    cublasStatus_t status = fake_blas_answer();
    const wishes *w = (const wishes *)(const void *)preference;
    const operation *o = read_operation(matmul);
    const layout *x[] = {read_layout(a), read_layout(b), read_layout(c), read_layout(d)};
    (void)handle;
    *n = 0;
    if (status) return status;
    count.searches++;
    if (!fits(o, x[0], x[1], x[3])) return CUBLAS_STATUS_INVALID_VALUE;
    if (w->scheme & ~3u) fake_violate("algorithms that split sums in no fixed order are requested");
    for (int i = 0; i < 4; i++)
        if (w->align[i] > 16 || !aligned(x[i], w->align[i]))
            fake_violate("operand %d has a smaller alignment than declared", i);
    if (whims & FAKE_LT_KNOWS_NOTHING || x[3]->batch > MOST_BLOCKS) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (whims & FAKE_LT_NO_TENSOR_CORES && o->compute != CUBLAS_COMPUTE_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
    const int first = w->memory < NEEDED ? GOOD : w->scheme ? SPLITS : WANTS_MEMORY; /* the first suitable one */
    for (int i = 0; i < PROPOSALS && i < wanted; i++) {
        uint64_t id = 1 + ((uint64_t)x[3]->columns * 7 + (uint64_t)x[0]->ld % 2 + (uint64_t)i) % 11;
        memset(&result[i], 0, sizeof result[i]);
        bool as_they_are = i == first && whims & FAKE_LT_FASTER_IN_FP32;
        result[i].algo = algorithm(id, x[3]->columns, as_they_are ? CUBLAS_COMPUTE_32F : o->compute, x[0]->type);
        result[i].algo.data[NEAR] = i == first && whims & FAKE_LT_REFUSES_FAR;
        result[i].algo.data[LATE] = i == first && whims & FAKE_LT_REFUSES_LATE;
        if (i <= SPLITS) result[i].algo.data[SPLIT] = 4, result[i].algo.data[SCHEME] = i == SPLITS ? 2 - id % 2 : 4;
        if (i <= WANTS_MEMORY) result[i].workspaceSize = result[i].algo.data[MEMORY] = NEEDED;
        if (i == FAILS) result[i].state = CUBLAS_STATUS_NOT_SUPPORTED;
        *n = i + 1;
    }
    return status;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t matmul, cublasLtMatrixLayout_t a,
                                       cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t *algo, cublasLtMatmulHeuristicResult_t *result) {
    cublasStatus_t status = fake_blas_answer();
    const layout *out = read_layout(d);
    bool other = (uint64_t)out->columns != algo->data[COLUMNS];
    (void)handle, (void)c;
    if (status) return status;
    if (!fits(read_operation(matmul), read_layout(a), read_layout(b), out)) return CUBLAS_STATUS_INVALID_VALUE;
    if (whims & FAKE_LT_REFUSES_OTHERS && (other || out->batch > 1)) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (refuses(algo, read_layout(a), read_layout(b), out)) return CUBLAS_STATUS_NOT_SUPPORTED;
    result->workspaceSize = algo->data[MEMORY]; /* `state` stays unchanged */
    return status;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t name, void *value,
                                                    size_t bytes, size_t *written) {
    cublasStatus_t status = fake_blas_answer();
    int32_t number = name == CUBLASLT_ALGO_CONFIG_ID                 ? (int32_t)algo->data[ID]
                     : name == CUBLASLT_ALGO_CONFIG_SPLITK_NUM       ? (int32_t)algo->data[SPLIT]
                     : name == CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME ? (int32_t)algo->data[SCHEME]
                                                                     : 0;
    if (status) return status;
    if (bytes != sizeof number) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(value, &number, bytes);
    *written = bytes;
    return status;
}

cublasStatus_t cublasLtMatmulAlgoCapGetAttribute(const cublasLtMatmulAlgo_t *algo,
                                                 cublasLtMatmulAlgoCapAttributes_t name, void *value, size_t bytes,
                                                 size_t *written) {
    cublasStatus_t status = fake_blas_answer();
    if (status) return status;
    if (name != CUBLASLT_ALGO_CAP_NUMERICAL_IMPL_FLAGS || bytes != sizeof algo->data[NUMERICS])
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(value, &algo->data[NUMERICS], bytes);
    *written = bytes;
    return status;
}

/* ---- Products ---------------------------------------------------------------------------------------------------- */

typedef struct {
    layout a, b, d;
    operation o;
    uint64_t order; /* of a sum's terms */
    uint64_t numerics;
    float alpha, beta;
    const void *x, *y;
    float *out;
} product;

enum { LARGEST = 1 << 24 };

/* Rounds as tensor cores do: TF32 has 10 mantissa bits, bf16 has 7. */
static float rounded(float x, uint64_t numerics) {
    uint32_t bits, off = numerics & CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_TF32   ? 13
                         : numerics & CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_16BF ? 16
                                                                               : 0;
    memcpy(&bits, &x, sizeof bits);
    bits = bits >> off << off;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* x_at, y_at: where the batch's matrices start. */
static float element(const product *p, int64_t x_at, int64_t y_at, int64_t i, int64_t j) {
    int64_t k = p->o.turn_a ? p->a.rows : p->a.columns;
    float sum = 0;
    for (int64_t t = 0; t < k; t++) {
        int64_t l = (t + (int64_t)p->order * k / 13) % k;
        const int64_t at_x = x_at + (p->o.turn_a ? l + i * p->a.ld : i + l * p->a.ld);
        const int64_t at_y = y_at + (p->o.turn_b ? j + l * p->b.ld : l + j * p->b.ld);
        sum += rounded(fake_blas_number(p->x, p->a.type, at_x), p->numerics) *
               rounded(fake_blas_number(p->y, p->b.type, at_y), p->numerics);
    }
    return sum;
}

static void multiply(void *context) {
    const product *p = context;
    int64_t terms = p->o.turn_a ? p->a.rows : p->a.columns;
    if (p->d.rows * p->d.columns * terms > LARGEST) return; /* computed only to measure its time */
    for (int64_t block = 0; block < p->d.batch; block++)
        for (int64_t j = 0; j < p->d.columns; j++)
            for (int64_t i = 0; i < p->d.rows; i++) {
                float *out = p->out + block * p->d.stride + i + j * p->d.ld;
                float sum = element(p, block * p->a.stride, block * p->b.stride, i, j);
                *out = p->alpha * sum + (p->beta != 0 ? p->beta * *out : 0);
            }
}

/* The numbers after the last row of the last column are not accessed. */
static fake_range touched(const void *start, const layout *l, bool writes) {
    int64_t last = (l->batch - 1) * l->stride + (l->columns - 1) * l->ld + l->rows;
    return (fake_range){start, fake_blas_bytes(l->type) * (uint64_t)last, writes};
}

static uint64_t order_of(const cublasLtMatmulAlgo_t *algo, const layout *d) {
    bool other = d->batch > 1 ? whims & FAKE_LT_OTHER_BATCHED
                              : (whims & FAKE_LT_OTHER_WHOLE) && (uint64_t)d->columns != algo->data[COLUMNS];
    return algo->data[ID] + other;
}

static uint64_t not_repeated(void) {
    static uint64_t calls;
    calls++;
    return whims & FAKE_LT_NEVER_REPEATS ? calls : whims & FAKE_LT_SELDOM_REPEATS ? calls % 3 == 0 : 0;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t matmul, const void *alpha, const void *x,
                              cublasLtMatrixLayout_t a, const void *y, cublasLtMatrixLayout_t b, const void *beta,
                              const void *c, cublasLtMatrixLayout_t c_layout, void *out, cublasLtMatrixLayout_t d,
                              const cublasLtMatmulAlgo_t *algo, void *memory, size_t bytes, cudaStream_t stream) {
    cublasStatus_t status = fake_blas_answer();
    (void)handle;
    if (status) return status;
    if (!algo) return CUBLAS_STATUS_INVALID_VALUE;
    if (algo->data[LATE]) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (whims & FAKE_LT_NEVER_MULTIPLIES) return CUBLAS_STATUS_INVALID_VALUE;
    if (refuses(algo, read_layout(a), read_layout(b), read_layout(d))) return CUBLAS_STATUS_NOT_SUPPORTED;
    product p = {*read_layout(a),
                 *read_layout(b),
                 *read_layout(d),
                 *read_operation(matmul),
                 0,
                 algo->data[NUMERICS],
                 *(const float *)alpha,
                 *(const float *)beta,
                 x,
                 y,
                 out};
    if (!fits(&p.o, &p.a, &p.b, &p.d)) return CUBLAS_STATUS_INVALID_VALUE;
    if (algo->data[SCHEME] > 2) fake_violate("a product by an algorithm that splits sums in no fixed order");
    if (algo->data[MEMORY] > bytes) fake_violate("a product by an algorithm that needs more memory");
    if (c != out || c_layout != d) fake_violate("a product that adds to something else");
    p.order = order_of(algo, &p.d);
    count.products++;
    count.batches += p.d.batch > 1;
    count.splits += algo->data[SPLIT] > 1;
    if (algo->data[SPLIT] > 1) p.order += not_repeated();
    if (algo->data[MEMORY] && ((uintptr_t)memory % 256 || !fake_lies_in(memory, bytes, true)))
        fake_violate("a product's workspace is not GPU memory, or is not aligned to 256 bytes");
    fake_range range[] = {
        touched(x, &p.a, false), touched(y, &p.b, false), touched(out, &p.d, true), {memory, algo->data[MEMORY], true}};
    fake_push(stream, multiply, &p, sizeof p, range, 4);
    return status;
}
