/* linear.cu: the op `linear` (linear.c) on CUDA: products by the queue's `multiply`, and kernels for the bias. */
#include "ops/cuda/columns.cuh"

enum { X, W, B };

static __global__ void repeat_row(int64_t count, int64_t n, const float *row, float *y) {
    RM_EACH(i, count) y[i] = row[i % n];
}

static void multiply(const rm_call *call, rm_cuda_product product) {
    const rm_cuda_queue *queue = (const rm_cuda_queue *)call->queue;
    queue->multiply(queue, &product);
}

void rm_linear_forward_cuda(const rm_call *call) {
    const float *x = (const float *)call->x[X].data, *w = (const float *)call->x[W].data;
    const float *b = (const float *)call->x[B].data;
    float *y = (float *)call->y.data;
    int64_t rows = rm_desc_rows(&call->x[X].desc), c = call->x[W].desc.dim[1], n = call->x[W].desc.dim[0];
    rm_cuda_product product = {};
    if (b) RM_LAUNCH_EACH(repeat_row, rows * n, call->queue, rows * n, n, b, y);
    product.a = x, product.b = w, product.c = y; /* y = x w^T + b */
    product.m = rows, product.n = n, product.k = c;
    product.lda = c, product.ldb = c, product.ldc = n;
    product.transpose_b = true, product.add = b;
    multiply(call, product);
}

/* dx = dy w */
static void input_gradient(const rm_call *call, int64_t rows, int64_t c, int64_t n) {
    rm_cuda_product product = {};
    product.a = (const float *)call->dy.data, product.b = (const float *)call->x[W].data;
    product.c = (float *)call->dx[X].data;
    product.m = rows, product.n = c, product.k = n;
    product.lda = n, product.ldb = c, product.ldc = c;
    multiply(call, product);
}

/* dw += dy^T x */
static void weight_gradient(const rm_call *call, int64_t rows, int64_t c, int64_t n) {
    rm_cuda_product product = {};
    product.a = (const float *)call->dy.data, product.b = (const float *)call->x[X].data;
    product.c = (float *)call->dx[W].data;
    product.m = n, product.n = c, product.k = rows;
    product.lda = n, product.ldb = c, product.ldc = c;
    product.transpose_a = true, product.add = true;
    multiply(call, product);
}

void rm_linear_backward_cuda(const rm_call *call) { /* y = x w^T + b */
    int64_t rows = rm_desc_rows(&call->x[X].desc), c = call->x[W].desc.dim[1], n = call->x[W].desc.dim[0];
    if (call->dx[X].data) input_gradient(call, rows, c, n);
    if (call->dx[W].data) weight_gradient(call, rows, c, n);
    if (call->dx[B].data)
        rm_launch_add_columns(call->queue, rows, n, n, (const float *)call->dy.data, (float *)call->dx[B].data);
}
