/* headwise_linear.cu: the op `headwise_linear` (headwise_linear.c) on CUDA: the queue's `multiply` for each head. */
#include "ops/cuda/channels.cuh"

enum { X, W, B };

/* As in headwise_linear.c. */
typedef struct {
    int64_t rows, heads, n, c;
} shape;

static shape shape_of(const remat_call *call) {
    const remat_desc *w = &call->x[W].desc;
    return shape{rm_desc_rows(&call->x[X].desc), w->dim[0], w->dim[1], w->dim[2]};
}

static void multiply(const remat_call *call, rm_cuda_product product) {
    const rm_cuda_queue *queue = (const rm_cuda_queue *)call->queue;
    queue->multiply(queue, &product);
}

void rm_headwise_linear_forward_cuda(const remat_call *call) {
    const float *x = (const float *)call->x[X].data, *w = (const float *)call->x[W].data;
    const float *b = (const float *)call->x[B].data;
    float *y = (float *)call->y.data;
    const shape s = shape_of(call);
    int64_t wide = s.heads * s.n;
    if (b) rm_launch_repeat_row(call->queue, s.rows, wide, b, y);
    for (int64_t h = 0; h < s.heads; h++) {
        rm_cuda_product product = {};
        product.a = x + h * s.c, product.b = w + h * s.n * s.c, product.c = y + h * s.n; /* y = x w^T + b */
        product.m = s.rows, product.n = s.n, product.k = s.c;
        product.lda = s.heads * s.c, product.ldb = s.c, product.ldc = wide;
        product.transpose_b = true, product.add = b;
        multiply(call, product);
    }
}

/* dx = dy w */
static void input_gradient(const remat_call *call, const shape &s, int64_t h) {
    rm_cuda_product product = {};
    product.a = (const float *)call->dy.data + h * s.n, product.b = (const float *)call->x[W].data + h * s.n * s.c;
    product.c = (float *)call->dx[X].data + h * s.c;
    product.m = s.rows, product.n = s.c, product.k = s.n;
    product.lda = s.heads * s.n, product.ldb = s.c, product.ldc = s.heads * s.c;
    multiply(call, product);
}

/* dw += dy^T x */
static void weight_gradient(const remat_call *call, const shape &s, int64_t h) {
    rm_cuda_product product = {};
    product.a = (const float *)call->dy.data + h * s.n, product.b = (const float *)call->x[X].data + h * s.c;
    product.c = (float *)call->dx[W].data + h * s.n * s.c;
    product.m = s.n, product.n = s.c, product.k = s.rows;
    product.lda = s.heads * s.n, product.ldb = s.heads * s.c, product.ldc = s.c;
    product.transpose_a = true, product.add = true;
    multiply(call, product);
}

void rm_headwise_linear_backward_cuda(const remat_call *call) {
    const shape s = shape_of(call);
    int64_t wide = s.heads * s.n;
    for (int64_t h = 0; h < s.heads; h++) {
        if (call->dx[X].data) input_gradient(call, s, h);
        if (call->dx[W].data) weight_gradient(call, s, h);
    }
    if (call->dx[B].data)
        rm_launch_add_columns(call->queue, s.rows, wide, wide, (const float *)call->dy.data, (float *)call->dx[B].data);
}
