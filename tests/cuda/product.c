/* product.c: replaces cuBLAS for emulated kernels: rm_cuda_queue.multiply in plain loops, at once. As in cuBLAS, the
 * order of sums may depend on the number of rows, their alignment and their distance. So a product that needs the bits
 * of another product's rows, but does not say so (rows_like), is detected. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/cuda/emulation.h"

static void die(const rm_cuda_product *p, const char *what) {
    fprintf(stderr, "a product of (%lld,%lld) by (%lld,%lld): %s\n", (long long)p->m, (long long)p->k, (long long)p->k,
            (long long)p->n, what);
    abort();
}

/* The end of a stored matrix. */
static const float *end(const float *x, int64_t rows, int64_t columns, int64_t ld) {
    return x + (rows - 1) * ld + columns;
}

static void check(const rm_cuda_product *p) {
    int64_t a_rows = p->transpose_a ? p->k : p->m, a_columns = p->transpose_a ? p->m : p->k;
    int64_t b_rows = p->transpose_b ? p->n : p->k, b_columns = p->transpose_b ? p->k : p->n;
    if (p->m < 1 || p->n < 1 || p->k < 1) die(p, "a dimension is 0");
    if (!p->a || !p->b || !p->c) die(p, "an operand is NULL");
    if (p->lda < a_columns || p->ldb < b_columns || p->ldc < p->n) die(p, "rows overlap: lda, ldb or ldc is too small");
    if (p->rows_like < 0 || (p->rows_like && p->m % p->rows_like)) die(p, "m is not a multiple of rows_like");
    if (p->rows_like && p->transpose_a) die(p, "rows_like cannot be used with transposed A");
    const float *c_end = end(p->c, p->m, p->n, p->ldc);
    if (p->c < end(p->a, a_rows, a_columns, p->lda) && p->a < c_end) die(p, "C overlaps A");
    if (p->c < end(p->b, b_rows, b_columns, p->ldb) && p->b < c_end) die(p, "C overlaps B");
}

/* 2: aligned to 4 numbers; 1: to 2; 0: to neither. */
static uint32_t alignment(uint64_t numbers) { return numbers % 4 == 0 ? 2 : numbers % 2 == 0; }

/* The alignment of the block of rows around row i. A kernel for a single row does not read ld. */
static uint32_t alignments(const float *x, int64_t ld, int64_t rows, int64_t i) {
    uint64_t at = (uintptr_t)(x + i / rows * rows * ld) / sizeof *x;
    return alignment(at) << 2 | alignment(rows > 1 ? (uint64_t)ld : 0);
}

/* Sums the terms in one to four parts, depending on the number of rows and their alignment, and adds the parts. */
static float element(const rm_cuda_product *p, int64_t i, int64_t j) {
    int64_t rows = p->rows_like ? p->rows_like : p->m;
    uint32_t known = (uint32_t)rows << 8 | alignments(p->a, p->lda, p->transpose_a ? p->m : rows, i) << 4 |
                     alignments(p->c, p->ldc, rows, i);
    int64_t parts = (known * 2654435761u >> 30) + 1;
    float sum = 0;
    for (int64_t part = 0; part < parts; part++) {
        float of_part = 0;
        for (int64_t t = p->k * part / parts; t < p->k * (part + 1) / parts; t++)
            of_part += p->a[p->transpose_a ? t * p->lda + i : i * p->lda + t] *
                       p->b[p->transpose_b ? j * p->ldb + t : t * p->ldb + j];
        sum += of_part;
    }
    return sum;
}

static int64_t products;
int64_t rm_emulated_products(void) { return products; }

static void multiply(const rm_cuda_queue *queue, const rm_cuda_product *p) {
    (void)queue;
    products++;
    if (p->batch > 1 && p->rows_like) die(p, "rows_like cannot be used with a batch");
    if (p->batch > 1 && p->stride_c < (p->m - 1) * p->ldc + p->n && p->ldc < (p->batch - 1) * p->stride_c + p->n)
        die(p, "the results of a batch overlap");
    rm_cuda_product one = *p;
    for (int64_t b = 0; b < (p->batch > 1 ? p->batch : 1); b++) {
        if (b) one.a += p->stride_a, one.b += p->stride_b, one.c += p->stride_c;
        check(&one);
        for (int64_t i = 0; i < p->m; i++)
            for (int64_t j = 0; j < p->n; j++) {
                float *c = &one.c[i * p->ldc + j];
                *c = element(&one, i, j) + (p->add ? *c : 0);
            }
    }
}

static double partial[RM_CUDA_PARTIAL_BYTES / sizeof(double)];
const rm_cuda_queue rm_emulated_queue = {.partial = partial, .multiply = multiply};
const rm_cuda_queue rm_emulated_clusters_queue = {.partial = partial, .multiply = multiply, .clusters = 2};
