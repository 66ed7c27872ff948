/* product.h: matrix products on the CUDA device by cuBLASLt: rm_cuda_queue.multiply. Private to the device's files.
 * docs/notes/cuda.md explains why bits repeat, what is assumed, and how that is checked.
 *
 *   product.c    products by shape: how each is made, and tested on the GPU if necessary; main entry: rm_cuda_multiply,
 *                declared in cuda.h
 *   algorithm.c  algorithms by shape, and cuBLASLt's descriptions of matrices
 *   rounded.c    operands in bf16
 *
 * An algorithm (kernel, tile, stages, splits of a sum, which are added in a fixed order) is chosen for a shape and
 * kept. One that splits sums or needs memory must first give the same bits three times. If a product of many rows must
 * have the bits of products of few rows (rows_like), it uses their algorithm, in the first of three ways that gives
 * these bits on this GPU:
 *
 *      WHOLE     one product of all rows           both are compared with BLOCKS on random numbers for each new shape;
 *      BATCHED   one batch of blocks of rows       if bits differ or cuBLASLt refuses, the next way is tried
 *      BLOCKS    one product for each block        correct by construction
 *
 * If the rows do not fit in the memory for trials (trial_bytes), the first two ways make them in several parts, and the
 * remaining rows by BLOCKS.
 *
 * At precision bf16, the operands of a product of large blocks are rounded before it, to memory of the queue, and every
 * block is multiplied by itself. All of B must fit there; a block of A may be rounded, and multiplied, in several parts.
 * The block's shape alone decides this. */
#ifndef RM_CUDA_PRODUCT_H
#define RM_CUDA_PRODUCT_H

#include "engine/cuda/library.h"
#include "engine/device/device.h"
#include "ops/cuda/cuda_queue.h"

/* A device's algorithms and descriptions: host memory, allocated for each new shape. */
typedef struct rm_cuda_products rm_cuda_products;
remat_status rm_cuda_products_create(rm_device *device, rm_cuda_products **out);
void rm_cuda_products_free(rm_cuda_products *products); /* NULL allowed */

/* GPU memory for a trial, temporary; the budget includes it. 1 / SHARE of all GPU memory, but at least TRIAL_BYTES and
 * at most MOST_TRIAL_BYTES. Larger products are tried and made in parts. */
#define RM_CUDA_TRIAL_BYTES ((uint64_t)64 << 20)
#define RM_CUDA_MOST_TRIAL_BYTES ((uint64_t)128 << 20)
enum { RM_CUDA_TRIAL_SHARE = 256 };

/* GPU memory of a queue for rounded operands, at precision bf16; the budget includes it. 1 / SHARE of all GPU memory, but
 * at least ROUNDED_BYTES and at most MOST_ROUNDED_BYTES. REMAT_CUDA_ROUND=OFF: none. */
#define RM_CUDA_ROUNDED_BYTES ((uint64_t)32 << 20)
#define RM_CUDA_MOST_ROUNDED_BYTES ((uint64_t)256 << 20)
enum { RM_CUDA_ROUNDED_SHARE = 256 };
/* Operands are rounded if the product has so many terms (m n k), and m n / (m + n) is at least EDGE. */
#define RM_CUDA_ROUNDED_TERMS ((int64_t)1 << 30)
enum { RM_CUDA_ROUNDED_EDGE = 256 };

/* Sets the precision to which operands are rounded before they are multiplied; sums are fp32. Forgets all shapes.
 * Default: fp32. */
void rm_cuda_products_precision(rm_cuda_products *products, rm_precision precision);

typedef enum { RM_CUDA_UNDECIDED, RM_CUDA_WHOLE, RM_CUDA_BATCHED, RM_CUDA_BLOCKS, RM_CUDA_WAYS } rm_cuda_way;
int64_t rm_cuda_products_made(const rm_cuda_products *products, rm_cuda_way way); /* number of shapes made this way */
void rm_cuda_products_known(const rm_cuda_products *products, rm_products *out);  /* rm_device_api.products */

/* ---- Between the files --------------------------------------------------------------------------------------- */

/* Everything except the numbers that a product's bits may depend on. Compared as bytes, so it has no padding. */
typedef struct {
    int64_t m, n, k, lda, ldb, ldc;
    int64_t rows;                                /* of a block: rows_like, or m without it */
    int64_t batch, stride_a, stride_b, stride_c; /* batch 1: all strides are 0 */
    int32_t align_a, align_b, align_c;           /* alignment of every row: 4, 8 or 16 bytes */
    int32_t how;                                 /* RM_CUDA_TRANSPOSE_A ... RM_CUDA_ROUNDED: A and B are in bf16 */
    int32_t at_a, at_b, at_c, nothing;           /* alignment of the first row, if many rows are tried; else 0 */
} rm_cuda_shape;
enum { RM_CUDA_TRANSPOSE_A = 1, RM_CUDA_TRANSPOSE_B = 2, RM_CUDA_ADD = 4, RM_CUDA_ROUNDED = 8 };
enum { RM_CUDA_SHAPE_LISTS = 256 };

/* cuBLASLt's descriptions of A, B and C. */
typedef struct {
    cublasLtMatrixLayout_t a, b, c;
} rm_cuda_layouts;

typedef struct rm_cuda_algorithm {
    struct rm_cuda_algorithm *next;
    rm_cuda_shape shape;         /* m equals rows; lda, stride_a, at_a ... are 0, since the choice ignores them */
    cublasLtMatmulDesc_t matmul; /* borrowed: precision and transpositions; NULL: no algorithm, cuBLAS is used */
    cublasLtMatmulAlgo_t algo;
    rm_precision precision; /* of the operands: the device's, or fp32 if it has no algorithm for that */
    uint64_t numerics;      /* cublasLtNumericalImplFlags_t, if precision is not fp32; 0: unknown */
    int refused;            /* algorithms passed over, because they refused to multiply or did not repeat */
    int32_t splits;         /* number of parts of a sum; 0, 1: not split */
    bool guarded;           /* it splits sums or needs memory, so it is used only after a trial has repeated its bits */
    bool repeats;           /* that trial has succeeded */
    bool used;              /* it has multiplied, so it must not change any more */
} rm_cuda_algorithm;

struct rm_cuda_products {
    rm_device *device;
    cublasLtHandle_t handle;
    rm_precision precision;
    uint64_t trial_bytes;   /* as above; tests reduce it */
    uint64_t memory_bytes;  /* bytes of the queue's workspace that algorithms may use */
    bool splits;            /* algorithms may split sums */
    uint64_t rounded_bytes; /* of a queue, at precision bf16: as above, or 0; tests change these three */
    int64_t rounded_terms, rounded_edge;
    cublasLtMatmulDesc_t matmul[RM_PRECISIONS][4]; /* by transpositions */
    rm_cuda_algorithm *algorithms;
    struct rm_cuda_made *made[RM_CUDA_SHAPE_LISTS]; /* by hash */
};

cudaDataType_t rm_cuda_operand_type(const rm_cuda_shape *shape); /* of A and B */

/* Describes `batch` consecutive blocks of `rows` rows, or the shape's own batch. The caller frees *out even after an
 * error. */
cublasStatus_t rm_cuda_layouts_make(const rm_cuda_products *products, const rm_cuda_shape *shape, int64_t rows,
                                    int64_t batch, rm_cuda_layouts *out);
void rm_cuda_layouts_free(const rm_cuda_products *products, rm_cuda_layouts *layouts);

/* The algorithm for blocks of shape->rows rows, the same in every call. NULL: the device keeps the failure. */
rm_cuda_algorithm *rm_cuda_algorithm_for(rm_cuda_products *products, const rm_cuda_shape *shape);
/* Replaces an algorithm that was refused before its first use by the next suitable one, finally by cuBLAS. False:
 * it failed, and the device keeps the failure, or it already was cuBLAS. */
bool rm_cuda_algorithm_next(rm_cuda_products *products, rm_cuda_algorithm *algorithm);
/* The shape for trials of an algorithm: rows as close as its alignment permits, whichever shape requested it. */
rm_cuda_shape rm_cuda_algorithm_shape(const rm_cuda_algorithm *algorithm);
/* Whether cuBLASLt can use it on these matrices with the available memory. */
bool rm_cuda_algorithm_fits(const rm_cuda_products *products, const rm_cuda_algorithm *algorithm,
                            const rm_cuda_layouts *layouts);
/* Whether it rounds operands to the device's precision. cuBLASLt may have no such algorithm, or prefer another. */
bool rm_cuda_algorithm_rounds(const rm_cuda_algorithm *algorithm);
/* "algorithm 21, tile 20, stages 10, 4 splits, in bf16": cuBLASLt's own numbers. */
void rm_cuda_algorithm_text(const rm_cuda_products *products, const rm_cuda_algorithm *algorithm, char *text,
                            size_t size);

/* Rows of A, at most a block, that are rounded at a time; 0: the operands stay in fp32. */
int64_t rm_cuda_rounded_rows(const rm_queue *queue, const rm_cuda_product *product);
/* Rounds B. The address in the result is of numbers in bf16. */
rm_cuda_product rm_cuda_rounded_b(rm_queue *queue, const rm_cuda_product *product);
/* Rounds `rows` rows of A from row `row`, for the product of these with the rounded B. */
rm_cuda_product rm_cuda_rounded_part(rm_queue *queue, const rm_cuda_product *product, int64_t row, int64_t rows);

#endif
