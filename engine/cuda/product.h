/* product.h: matrix products on the CUDA device, by cuBLASLt: what rm_cuda_queue.multiply is there. Private to the
 * device's files. docs/notes/cuda.md says why its bits repeat, what is assumed, and how that is checked.
 *
 *   product.c    products by shape: how each is made, proven on the GPU where it matters; main entry: rm_cuda_multiply,
 *                declared in cuda.h
 *   algorithm.c  algorithms by shape, and cuBLASLt's descriptions of matrices
 *
 * An algorithm (kernel, tile, stages, parts of a sum that are added in an order of their own) is chosen for a product of so many
 * rows, and kept; one that splits sums, or wants memory, after it gave the same bits three times. A product of many rows whose bits shall be those of few (rows_like) is made by the algorithm of the few, in one of three
 * ways, the first that gives their bits on this GPU:
 *
 *      WHOLE     one product of all rows           both compared with BLOCKS, on random numbers, when the shape is first
 *      BATCHED   one batch of blocks of rows       met; where bits differ or cuBLASLt refuses, the next way is tried
 *      BLOCKS    one product for each block        right by construction
 *
 * The first two in several parts, where all rows are more than there is memory to try them in (trial_bytes); what is
 * left over by BLOCKS. */
#ifndef RM_CUDA_PRODUCT_H
#define RM_CUDA_PRODUCT_H

#include "engine/cuda/library.h"
#include "engine/device/device.h"
#include "ops/cuda/cuda_queue.h"

/* A device's algorithms and descriptions: host memory, taken when a shape is first met. */
typedef struct rm_cuda_products rm_cuda_products;
remat_status rm_cuda_products_create(rm_device *device, rm_cuda_products **out);
void rm_cuda_products_free(rm_cuda_products *products); /* NULL allowed */

/* Of the GPU's memory, for a moment, when a shape is first met that needs a trial; the plan's bytes have it in them. This share
 * of the GPU's memory, but never less than the one nor more than the other: what is larger is tried, and made, in parts. */
#define RM_CUDA_TRIAL_BYTES ((uint64_t)64 << 20)
#define RM_CUDA_MOST_TRIAL_BYTES ((uint64_t)128 << 20)
enum { RM_CUDA_TRIAL_SHARE = 256 };

/* What operands are rounded to before they are multiplied; sums are fp32. Forgets all shapes. fp32 until it is called. */
void rm_cuda_products_precision(rm_cuda_products *products, rm_precision precision);

typedef enum { RM_CUDA_UNDECIDED, RM_CUDA_WHOLE, RM_CUDA_BATCHED, RM_CUDA_BLOCKS, RM_CUDA_WAYS } rm_cuda_way;
int64_t rm_cuda_products_made(const rm_cuda_products *products, rm_cuda_way way); /* shapes that are made that way */
void rm_cuda_products_known(const rm_cuda_products *products, rm_products *out);  /* the slot of rm_device_api */

/* ---- Between the two files --------------------------------------------------------------------------------------- */

/* All that a product's bits may depend on, beside the numbers. Compared as bytes: no padding. */
typedef struct {
    int64_t m, n, k, lda, ldb, ldc;
    int64_t rows;                      /* of a block: rows_like, or m where a product stands for itself */
    int32_t align_a, align_b, align_c; /* bytes: 4, 8 or 16, of every row's first number */
    int32_t how;                       /* RM_CUDA_TRANSPOSE_A ... */
    int32_t at_a, at_b, at_c, nothing; /* ... of the first row's first number, where many rows are tried; else 0 */
} rm_cuda_shape;
enum { RM_CUDA_TRANSPOSE_A = 1, RM_CUDA_TRANSPOSE_B = 2, RM_CUDA_ADD = 4, RM_CUDA_SHAPE_LISTS = 256 };

/* A, B and C as cuBLASLt is told of them. */
typedef struct {
    cublasLtMatrixLayout_t a, b, c;
} rm_cuda_layouts;

typedef struct rm_cuda_algorithm {
    struct rm_cuda_algorithm *next;
    rm_cuda_shape shape;         /* m is the rows; lda, ldb, ldc, at_a ... are 0: they have no say */
    cublasLtMatmulDesc_t matmul; /* borrowed: precision and transpositions; NULL: cuBLASLt has none, cuBLAS makes it */
    cublasLtMatmulAlgo_t algo;
    rm_precision precision; /* that matmul allows; the device's, or fp32 where there is none in it */
    uint64_t numerics;      /* cublasLtNumericalImplFlags_t, where that is not fp32; 0: it does not say */
    int refused;            /* so many were refused when they should have multiplied, or did not repeat: passed over */
    int32_t splits;         /* parts that a sum is made in; 0, 1: it is made in one go */
    bool guarded;           /* it splits sums, or wants memory: it multiplies only after it was seen to repeat */
    bool repeats;           /* ... and so it was */
    bool used;              /* it has multiplied: from then on it stays */
} rm_cuda_algorithm;

struct rm_cuda_products {
    rm_device *device;
    cublasLtHandle_t handle;
    rm_precision precision;
    uint64_t trial_bytes;  /* as above; a test may have less */
    uint64_t memory_bytes; /* of the queue's workspace, for algorithms that want some; 0: for none */
    bool splits;           /* sums may be split */
    cublasLtMatmulDesc_t matmul[RM_PRECISIONS][4]; /* by transpositions */
    rm_cuda_algorithm *algorithms;
    struct rm_cuda_made *made[RM_CUDA_SHAPE_LISTS]; /* by hash */
};

/* `batch` blocks of `rows` rows, below each other. The caller frees, whatever the answer. */
cublasStatus_t rm_cuda_layouts_make(const rm_cuda_products *products, const rm_cuda_shape *shape, int64_t rows,
                                    int64_t batch, rm_cuda_layouts *out);
void rm_cuda_layouts_free(const rm_cuda_products *products, rm_cuda_layouts *layouts);

/* For blocks of shape->rows rows; the same whenever it is asked for. NULL: the device keeps why. */
rm_cuda_algorithm *rm_cuda_algorithm_for(rm_cuda_products *products, const rm_cuda_shape *shape);
/* In place of one that was refused before it was ever used: the next that will do, at last cublasSgemm. False: the device keeps
 * why, or there was nothing but cublasSgemm already. */
bool rm_cuda_algorithm_next(rm_cuda_products *products, rm_cuda_algorithm *algorithm);
/* The key's rows, no further apart than alignment wants: what it is tried with, the same whatever shape met it. */
rm_cuda_shape rm_cuda_algorithm_shape(const rm_cuda_algorithm *algorithm);
/* Whether cuBLASLt would use it on these, with no more memory than there is. */
bool rm_cuda_algorithm_fits(const rm_cuda_products *products, const rm_cuda_algorithm *algorithm,
                            const rm_cuda_layouts *layouts);
/* Whether it rounds its operands to the device's precision: cuBLASLt may lack one that does, or prefer one that does not. */
bool rm_cuda_algorithm_rounds(const rm_cuda_algorithm *algorithm);
/* "algorithm 21, tile 20, stages 10, 4 splits, in bf16": cuBLASLt's own numbers. */
void rm_cuda_algorithm_text(const rm_cuda_products *products, const rm_cuda_algorithm *algorithm, char *text,
                            size_t size);

#endif
