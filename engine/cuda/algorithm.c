/* algorithm.c: chooses cuBLASLt's algorithm for a product, and describes matrices to cuBLASLt: product.h. product.c
 * uses both.
 *
 * cuBLASLt's matrices are column-major. Ours are row-major, so cuBLASLt sees them transposed, and C = A B is requested
 * as C^T = B^T A^T, with exchanged operands:
 *
 *      ours, row-major                   cuBLASLt's, column-major
 *      C  (m,n), rows ldc apart          D  (n,m), columns ldc apart: a row of C is a column of D
 *      B  (k,n), or (n,k) transposed     first operand   (n,k), or (k,n) transposed
 *      A  (m,k), or (k,m) transposed     second operand  (k,m), or (m,k) transposed */
#include <stdio.h>
#include <string.h>

#include "engine/cuda/cuda.h"
#include "memory/host.h"

/* ---- Layouts ----------------------------------------------------------------------------------------------------- */

cudaDataType_t rm_cuda_operand_type(const rm_cuda_shape *s) {
    return s->how & RM_CUDA_ROUNDED ? CUDA_R_16BF : CUDA_R_32F;
}

/* A row-major matrix of rows by columns; `stride` numbers from one matrix of a batch to the next. */
static cublasStatus_t describe(const rm_cuda_library *lib, cudaDataType_t type, int64_t rows, int64_t columns,
                               int64_t ld, int32_t batch, int64_t stride, cublasLtMatrixLayout_t *out) {
    cublasStatus_t error = lib->cublasLtMatrixLayoutCreate(out, type, (uint64_t)columns, (uint64_t)rows, ld);
    if (error) *out = NULL;
    if (error || batch == 1) return error;
    error = lib->cublasLtMatrixLayoutSetAttribute(*out, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch);
    if (error) return error;
    return lib->cublasLtMatrixLayoutSetAttribute(*out, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride,
                                                 sizeof stride);
}

cublasStatus_t rm_cuda_layouts_make(const rm_cuda_products *products, const rm_cuda_shape *s, int64_t rows,
                                    int64_t batch, rm_cuda_layouts *out) {
    const rm_cuda_library *lib = products->device->lib;
    bool ta = s->how & RM_CUDA_TRANSPOSE_A, tb = s->how & RM_CUDA_TRANSPOSE_B;
    const bool own = s->batch > 1;
    const cudaDataType_t type = rm_cuda_operand_type(s);
    int32_t n = (int32_t)(own ? s->batch : batch);
    *out = (rm_cuda_layouts){NULL, NULL, NULL};
    cublasStatus_t error =
        describe(lib, type, ta ? s->k : rows, ta ? rows : s->k, s->lda, n, own ? s->stride_a : rows * s->lda, &out->a);
    if (!error)
        error = describe(lib, type, tb ? s->n : s->k, tb ? s->k : s->n, s->ldb, n, own ? s->stride_b : 0, &out->b);
    if (!error) error = describe(lib, CUDA_R_32F, rows, s->n, s->ldc, n, own ? s->stride_c : rows * s->ldc, &out->c);
    return error;
}

void rm_cuda_layouts_free(const rm_cuda_products *products, rm_cuda_layouts *layouts) {
    cublasLtMatrixLayout_t all[] = {layouts->a, layouts->b, layouts->c};
    for (int i = 0; i < 3; i++)
        if (all[i]) (void)products->device->lib->cublasLtMatrixLayoutDestroy(all[i]);
    *layouts = (rm_cuda_layouts){NULL, NULL, NULL};
}

/* ---- Requirements on algorithms ---------------------------------------------------------------------------------- */

/* The schemes that add the parts of a split sum in a fixed order: in place, ordered by counters, or in a separate pass.
 * An error is not taken for "no", since it would lead to another algorithm and to other bits. */
enum { IN_ORDER = CUBLASLT_REDUCTION_SCHEME_INPLACE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE };

static cublasStatus_t adds_in_order(const rm_cuda_products *products, const cublasLtMatmulAlgo_t *algo, int32_t *splits,
                                    bool *answer) {
    const rm_cuda_library *lib = products->device->lib;
    int32_t split = 0;
    uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_MASK;
    size_t written;
    cublasStatus_t error = lib->cublasLtMatmulAlgoConfigGetAttribute(algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &split,
                                                                     sizeof split, &written);
    if (!error)
        error = lib->cublasLtMatmulAlgoConfigGetAttribute(algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme,
                                                          sizeof scheme, &written);
    bool whole = split >= 0 && split <= 1 && scheme == CUBLASLT_REDUCTION_SCHEME_NONE;
    bool parts =
        split > 1 && (scheme == CUBLASLT_REDUCTION_SCHEME_INPLACE || scheme == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
    *answer = whole || (products->splits && parts);
    *splits = split;
    return error;
}

/* Whether cuBLASLt can use an algorithm on these matrices with the available memory. The returned status decides:
 * cuBLASLt's header promises that the check writes the memory needed, but not that it writes the state. */
static cublasStatus_t takes(const rm_cuda_products *products, cublasLtMatmulDesc_t matmul,
                            const cublasLtMatmulAlgo_t *algo, const rm_cuda_layouts *l, bool *answer) {
    cublasLtMatmulHeuristicResult_t result = {.state = CUBLAS_STATUS_SUCCESS, .workspaceSize = 0};
    cublasStatus_t error =
        products->device->lib->cublasLtMatmulAlgoCheck(products->handle, matmul, l->b, l->a, l->c, l->c, algo, &result);
    bool refuses = error == CUBLAS_STATUS_NOT_SUPPORTED || error == CUBLAS_STATUS_INVALID_VALUE ||
                   error == CUBLAS_STATUS_ARCH_MISMATCH;
    *answer = !error && !result.state && result.workspaceSize <= products->memory_bytes;
    return refuses ? CUBLAS_STATUS_SUCCESS : error;
}

bool rm_cuda_algorithm_fits(const rm_cuda_products *products, const rm_cuda_algorithm *algorithm,
                            const rm_cuda_layouts *layouts) {
    bool answer;
    return !takes(products, algorithm->matmul, &algorithm->algo, layouts, &answer) && answer;
}

/* ---- Properties of an algorithm ---------------------------------------------------------------------------------- */

/* Tensor cores are allowed but not required, so an algorithm for bf16 may use fp32 operands. 0: unknown. */
static uint64_t numerics_of(const rm_cuda_library *lib, const cublasLtMatmulAlgo_t *algo) {
    uint64_t flags = 0;
    size_t written;
    bool known = !lib->cublasLtMatmulAlgoCapGetAttribute(algo, CUBLASLT_ALGO_CAP_NUMERICAL_IMPL_FLAGS, &flags,
                                                         sizeof flags, &written);
    return known ? flags : 0;
}

bool rm_cuda_algorithm_rounds(const rm_cuda_algorithm *algorithm) {
    if (algorithm->shape.how & RM_CUDA_ROUNDED) return true;
    return algorithm->matmul && algorithm->precision != RM_FP32 &&
           (algorithm->numerics & CUBLASLT_NUMERICAL_IMPL_FLAGS_OP_INPUT_TYPE_MASK) !=
               CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_32F;
}

static int32_t number_of(const rm_cuda_library *lib, const cublasLtMatmulAlgo_t *algo,
                         cublasLtMatmulAlgoConfigAttributes_t name) {
    int32_t number = -1;
    size_t written;
    return lib->cublasLtMatmulAlgoConfigGetAttribute(algo, name, &number, sizeof number, &written) ? -1 : number;
}

void rm_cuda_algorithm_text(const rm_cuda_products *products, const rm_cuda_algorithm *algorithm, char *text,
                            size_t size) {
    const rm_cuda_library *lib = products->device->lib;
    if (!algorithm->matmul) {
        snprintf(text, size, "cublasGemmEx%s", rm_cuda_algorithm_rounds(algorithm) ? ", in bf16" : "");
        return;
    }
    char splits[24] = "";
    if (algorithm->splits > 1) snprintf(splits, sizeof splits, ", %d splits", algorithm->splits);
    snprintf(text, size, "algorithm %d, tile %d, stages %d%s, in %s",
             number_of(lib, &algorithm->algo, CUBLASLT_ALGO_CONFIG_ID),
             number_of(lib, &algorithm->algo, CUBLASLT_ALGO_CONFIG_TILE_ID),
             number_of(lib, &algorithm->algo, CUBLASLT_ALGO_CONFIG_STAGES_ID), splits,
             rm_precision_names[rm_cuda_algorithm_rounds(algorithm) ? algorithm->precision : RM_FP32]);
}

/* ---- Choosing ---------------------------------------------------------------------------------------------------- */

/* The smallest ld for `columns` numbers that is aligned to exactly `align` bytes, so that the choice depends on the
 * alignment of operands, but not on their ld. */
static int64_t typical_ld(int64_t columns, int64_t align, int64_t bytes_each) {
    int64_t unit = align / bytes_each, ld = (columns + unit - 1) / unit * unit;
    return align < 16 && ld / unit % 2 == 0 ? ld + unit : ld;
}

/* Contiguous rows, or rows 4 times as far apart, as in the matrix of one of four gates. */
enum { CLOSE = 1, APART = 4 };

static rm_cuda_shape typical_shape(const rm_cuda_shape *shape, int64_t apart) {
    rm_cuda_shape typical = *shape;
    bool ta = typical.how & RM_CUDA_TRANSPOSE_A, tb = typical.how & RM_CUDA_TRANSPOSE_B;
    const int64_t bytes = typical.how & RM_CUDA_ROUNDED ? sizeof(uint16_t) : sizeof(float);
    typical.lda = typical_ld(apart * (ta ? typical.m : typical.k), typical.align_a, bytes);
    typical.ldb = typical_ld(apart * (tb ? typical.k : typical.n), typical.align_b, bytes);
    typical.ldc = typical_ld(apart * typical.n, typical.align_c, sizeof(float));
    typical.stride_a = (ta ? typical.k : typical.m) * typical.lda;
    typical.stride_b = (tb ? typical.n : typical.k) * typical.ldb;
    typical.stride_c = typical.m * typical.ldc;
    return typical;
}

static cublasStatus_t make_typical(const rm_cuda_products *products, const rm_cuda_shape *shape, int64_t apart,
                                   rm_cuda_layouts *out) {
    const rm_cuda_shape typical = typical_shape(shape, apart);
    return rm_cuda_layouts_make(products, &typical, typical.m, 1, out);
}

rm_cuda_shape rm_cuda_algorithm_shape(const rm_cuda_algorithm *algorithm) {
    rm_cuda_shape shape = typical_shape(&algorithm->shape, CLOSE);
    shape.at_a = shape.align_a, shape.at_b = shape.align_b, shape.at_c = shape.align_c;
    return shape;
}

static cublasStatus_t prefer(const rm_cuda_products *products, const rm_cuda_shape *s,
                             cublasLtMatmulPreference_t preference) {
    const rm_cuda_library *lib = products->device->lib;
    const uint64_t memory = products->memory_bytes;
    const uint32_t scheme = products->splits ? IN_ORDER : CUBLASLT_REDUCTION_SCHEME_NONE;
    const uint32_t a = (uint32_t)s->align_a, b = (uint32_t)s->align_b, c = (uint32_t)s->align_c;
    const struct {
        cublasLtMatmulPreferenceAttributes_t name;
        const void *value;
        size_t bytes;
    } setting[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &memory, sizeof memory},
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &scheme, sizeof scheme},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &b, sizeof b}, /* operands are exchanged */
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &a, sizeof a},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &c, sizeof c},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &c, sizeof c},
    };
    cublasStatus_t error = CUBLAS_STATUS_SUCCESS;
    for (size_t i = 0; i < sizeof setting / sizeof *setting && !error; i++)
        error =
            lib->cublasLtMatmulPreferenceSetAttribute(preference, setting[i].name, setting[i].value, setting[i].bytes);
    return error;
}

enum { CANDIDATES = 32 };

/* A request for an algorithm. */
typedef struct {
    rm_cuda_layouts close, apart;
    cublasLtMatmulPreference_t preference;
    int pass_over; /* number of suitable algorithms to skip */
} question;

/* The suitable algorithm that cuBLASLt estimates to be the fastest; NOT_SUPPORTED: none. cuBLASLt proposes algorithms
 * for contiguous rows. Rows that are further apart must use the same one, so it must support both. */
static cublasStatus_t ask(const rm_cuda_products *products, question *about, rm_cuda_algorithm *out) {
    cublasLtMatmulDesc_t matmul = out->matmul;
    const rm_cuda_library *lib = products->device->lib;
    const rm_cuda_layouts *l = &about->close;
    cublasLtMatmulHeuristicResult_t result[CANDIDATES];
    int n = 0;
    cublasStatus_t error = lib->cublasLtMatmulAlgoGetHeuristic(products->handle, matmul, l->b, l->a, l->c, l->c,
                                                               about->preference, CANDIDATES, result, &n);
    for (int i = 0; i < n && !error; i++) {
        bool will_do = false;
        if (result[i].state || result[i].workspaceSize > products->memory_bytes) continue;
        out->algo = result[i].algo;
        error = adds_in_order(products, &out->algo, &out->splits, &will_do);
        out->guarded = out->splits > 1 || result[i].workspaceSize;
        will_do &= !out->guarded || out->shape.batch == 1; /* a batch has no trial */
        if (!error && will_do) error = takes(products, matmul, &out->algo, &about->apart, &will_do);
        if (!error && will_do && about->pass_over-- == 0) return CUBLAS_STATUS_SUCCESS;
    }
    return error ? error : CUBLAS_STATUS_NOT_SUPPORTED;
}

/* Shapes that tensor cores do not support are multiplied in fp32; rounded operands, in bf16, as they are. */
static cublasStatus_t choose(rm_cuda_products *products, question *about, rm_cuda_algorithm *algorithm) {
    const bool rounded = algorithm->shape.how & RM_CUDA_ROUNDED;
    const rm_precision wanted[] = {rounded ? RM_FP32 : products->precision, RM_FP32};
    const int n = wanted[0] == RM_FP32 ? 1 : 2;
    int transposed = algorithm->shape.how & (RM_CUDA_TRANSPOSE_A | RM_CUDA_TRANSPOSE_B);
    cublasStatus_t error = CUBLAS_STATUS_NOT_SUPPORTED;
    algorithm->numerics = 0;
    for (int i = 0; i < n && error == CUBLAS_STATUS_NOT_SUPPORTED; i++) {
        algorithm->precision = wanted[i];
        algorithm->matmul = products->matmul[wanted[i]][transposed];
        error = ask(products, about, algorithm);
    }
    if (rounded) algorithm->precision = products->precision;
    if (!error && algorithm->precision != RM_FP32)
        algorithm->numerics = numerics_of(products->device->lib, &algorithm->algo);
    return error;
}

static cublasStatus_t search(rm_cuda_products *products, rm_cuda_algorithm *algorithm) {
    const rm_cuda_library *lib = products->device->lib;
    const rm_cuda_shape *shape = &algorithm->shape;
    question about = {.pass_over = algorithm->refused};
    cublasStatus_t error = lib->cublasLtMatmulPreferenceCreate(&about.preference);
    if (error) return error;
    error = prefer(products, shape, about.preference);
    if (!error) error = make_typical(products, shape, CLOSE, &about.close);
    if (!error) error = make_typical(products, shape, APART, &about.apart);
    if (!error) error = choose(products, &about, algorithm);
    rm_cuda_layouts_free(products, &about.close);
    rm_cuda_layouts_free(products, &about.apart);
    (void)lib->cublasLtMatmulPreferenceDestroy(about.preference);
    return error;
}

/* Returns false if it failed; the device keeps the failure. */
static bool find(rm_cuda_products *products, rm_cuda_algorithm *algorithm) {
    cublasStatus_t error = search(products, algorithm);
    if (error == CUBLAS_STATUS_NOT_SUPPORTED) {
        algorithm->matmul = NULL;
        algorithm->guarded = false;
        algorithm->splits = 0;
        error = CUBLAS_STATUS_SUCCESS;
    }
    return rm_cublas_went(products->device, error, "choosing how to multiply matrices");
}

bool rm_cuda_algorithm_next(rm_cuda_products *products, rm_cuda_algorithm *algorithm) {
    algorithm->refused++;
    algorithm->repeats = false;
    return algorithm->matmul && find(products, algorithm);
}

rm_cuda_algorithm *rm_cuda_algorithm_for(rm_cuda_products *products, const rm_cuda_shape *shape) {
    rm_cuda_shape key = *shape;
    key.m = shape->rows;
    key.lda = key.ldb = key.ldc = 0;
    key.stride_a = key.stride_b = key.stride_c = 0;
    key.at_a = key.at_b = key.at_c = 0;
    for (rm_cuda_algorithm *a = products->algorithms; a; a = a->next)
        if (!memcmp(&a->shape, &key, sizeof key)) return a;
    rm_cuda_algorithm *algorithm = rm_calloc(1, sizeof *algorithm);
    if (algorithm) algorithm->shape = key;
    if (!algorithm)
        (void)rm_cublas_went(products->device, CUBLAS_STATUS_ALLOC_FAILED, "choosing how to multiply matrices");
    if (!algorithm || !find(products, algorithm)) {
        rm_free(algorithm);
        return NULL;
    }
    algorithm->next = products->algorithms;
    return products->algorithms = algorithm;
}
