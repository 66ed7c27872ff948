/* rounded.c: operands rounded once, before a product: product.h.
 *
 * At precision bf16, cuBLASLt can read operands in fp32 and round them itself, which is slow: the H100 made 190 TFLOP/s
 * so, of 990 for operands in bf16. Rounding costs 6 bytes of traffic for a number of an operand, and saves the difference
 * for each of its n or m terms; so it pays if both m and n are large, whatever k is. */
#include "engine/cuda/cuda.h"
#include "memory/bytes.h"

/* Rows of A in a part, if there are several: whole tiles of cuBLASLt's kernels. */
enum { TILE = 128, UNIT = 8 };

static int64_t padded(int64_t columns) { return (columns + UNIT - 1) / UNIT * UNIT; }
static uint64_t bytes_of(int64_t rows, int64_t columns) {
    return rm_align_up((uint64_t)rows * (uint64_t)padded(columns) * sizeof(uint16_t));
}
static uint64_t b_bytes(const rm_cuda_product *p) {
    return p->transpose_b ? bytes_of(p->n, p->k) : bytes_of(p->k, p->n);
}

static bool pays(const rm_cuda_products *products, const rm_cuda_product *p, int64_t m) {
    return m > 0 && m * p->n >= products->rounded_edge * (m + p->n) && m * p->n * p->k >= products->rounded_terms;
}

/* The most rows of A that fit beside B. */
static int64_t most_rows(const rm_cuda_products *products, const rm_cuda_product *p) {
    const uint64_t b = b_bytes(p), room = products->rounded_bytes > b ? products->rounded_bytes - b : 0;
    const int64_t numbers = (int64_t)(room / sizeof(uint16_t));
    return p->transpose_a ? numbers / p->k / UNIT * UNIT : numbers / padded(p->k);
}

int64_t rm_cuda_rounded_rows(const rm_queue *q, const rm_cuda_product *p) {
    const rm_cuda_products *products = q->device->products;
    if (!q->rounded || products->precision != RM_BF16 || p->batch > 1) return 0;
    const int64_t most = most_rows(products, p);
    int64_t rows = p->rows_like ? p->rows_like : p->m;
    if (most < rows) {
        const int64_t parts = most ? (rows + most - 1) / most : 1, even = (rows + parts - 1) / parts;
        rows = (even + TILE - 1) / TILE * TILE;
        if (rows > most) rows = most / TILE * TILE;
    }
    return pays(products, p, rows) ? rows : 0;
}

/* Rounds a row-major matrix, and returns the address where the product reads it. */
static const float *round_to(rm_queue *q, uint64_t offset, int64_t rows, int64_t columns, const float *from, int64_t ld,
                             int64_t *new_ld) {
    uint16_t *to = (uint16_t *)(void *)(q->rounded + offset);
    *new_ld = padded(columns);
    rm_cuda_kernels_built.round(&q->shown, rows, columns, ld, from, *new_ld, to);
    return (const float *)(const void *)to;
}

rm_cuda_product rm_cuda_rounded_b(rm_queue *q, const rm_cuda_product *p) {
    rm_cuda_product rounded = *p;
    if (!rm_cuda_ready(q->device)) return rounded;
    const bool turned = p->transpose_b;
    rounded.b = round_to(q, 0, turned ? p->n : p->k, turned ? p->k : p->n, p->b, p->ldb, &rounded.ldb);
    return rounded;
}

rm_cuda_product rm_cuda_rounded_part(rm_queue *q, const rm_cuda_product *p, int64_t row, int64_t rows) {
    rm_cuda_product part = *p;
    part.m = rows;
    part.rows_like = 0;
    part.c = p->c + row * p->ldc;
    if (!rm_cuda_ready(q->device)) return part;
    const float *a = p->a + row * (p->transpose_a ? 1 : p->lda);
    part.a = p->transpose_a ? round_to(q, b_bytes(p), p->k, part.m, a, p->lda, &part.lda)
                            : round_to(q, b_bytes(p), part.m, p->k, a, p->lda, &part.lda);
    (void)rm_cuda_went(q->device, q->device->lib->cudaGetLastError(), "rounding a product's operands");
    return part;
}
