/* batched_matmul.cu: the op `batched_matmul` (batched_matmul.c) on CUDA: batches of the queue's `multiply`. */
#include "ops/cuda/kernel.cuh"

enum { A, B };

/* As in batched_matmul.c. */
typedef struct {
    int64_t count, m, n, k, ldb;
    bool transposed;
} shape;

static shape shape_of(const remat_call *call) {
    const remat_desc *a = &call->x[A].desc, *b = &call->x[B].desc;
    const rm_batched_matmul_attr *attr = (const rm_batched_matmul_attr *)call->attr;
    const int64_t m = a->dim[a->rank - 2], k = a->dim[a->rank - 1], columns = b->dim[b->rank - 1];
    const bool transposed = attr && attr->transpose_b;
    return shape{rm_desc_count(a) / (m * k), m, transposed ? b->dim[b->rank - 2] : columns, k, columns, transposed};
}

/* c (m,n) = a b for each of s.count matrices, which lie one after another. */
static void multiply(const remat_call *call, const shape &s, rm_cuda_product product) {
    const rm_cuda_queue *queue = (const rm_cuda_queue *)call->queue;
    product.batch = s.count, product.ldc = product.n;
    product.stride_a = product.m * product.k, product.stride_b = product.k * product.n;
    product.stride_c = product.m * product.n;
    queue->multiply(queue, &product);
}

void rm_batched_matmul_forward_cuda(const remat_call *call) {
    const shape s = shape_of(call);
    rm_cuda_product product = {};
    product.a = (const float *)call->x[A].data, product.b = (const float *)call->x[B].data;
    product.c = (float *)call->y.data;
    product.m = s.m, product.n = s.n, product.k = s.k;
    product.lda = s.k, product.ldb = s.ldb, product.transpose_b = s.transposed;
    multiply(call, s, product);
}

/* da = dy b^T */
static void first_gradient(const remat_call *call, const shape &s) {
    rm_cuda_product product = {};
    product.a = (const float *)call->dy.data, product.b = (const float *)call->x[B].data;
    product.c = (float *)call->dx[A].data;
    product.m = s.m, product.n = s.k, product.k = s.n;
    product.lda = s.n, product.ldb = s.ldb, product.transpose_b = !s.transposed;
    multiply(call, s, product);
}

/* db = a^T dy, or its transpose, dy^T a */
static void second_gradient(const remat_call *call, const shape &s) {
    const float *a = (const float *)call->x[A].data, *dy = (const float *)call->dy.data;
    rm_cuda_product product = {};
    product.a = s.transposed ? dy : a, product.b = s.transposed ? a : dy;
    product.c = (float *)call->dx[B].data;
    product.m = s.transposed ? s.n : s.k, product.n = s.transposed ? s.k : s.n, product.k = s.m;
    product.lda = product.m, product.ldb = product.n, product.transpose_a = true;
    multiply(call, s, product);
}

void rm_batched_matmul_backward_cuda(const remat_call *call) {
    const shape s = shape_of(call);
    if (call->dx[A].data) first_gradient(call, s);
    if (call->dx[B].data) second_gradient(call, s);
}
