/* linear.cu: the op `linear` (linear.c) on CUDA: products by the queue's `multiply`, and kernels for the bias. */
#include "ops/cuda/channels.cuh"

enum { X, W, B };

static void multiply(const remat_call *call, rm_cuda_product product) {
    const rm_cuda_queue *queue = (const rm_cuda_queue *)call->queue;
    queue->multiply(queue, &product);
}

/* As in linear.c. */
typedef struct {
    int64_t rows, c, n, ld;
    bool by_input;
} shape;

static shape shape_of(const remat_call *call) {
    const rm_linear_attr *a = (const rm_linear_attr *)call->attr;
    int64_t rows = rm_desc_rows(&call->x[X].desc), first = call->x[W].desc.dim[0], second = call->x[W].desc.dim[1];
    if (a && a->by_input) return shape{rows, first, second, second, true};
    return shape{rows, second, first, second, false};
}

void rm_linear_forward_cuda(const remat_call *call) {
    const float *x = (const float *)call->x[X].data, *w = (const float *)call->x[W].data;
    const float *b = (const float *)call->x[B].data;
    float *y = (float *)call->y.data;
    const shape s = shape_of(call);
    rm_cuda_product product = {};
    if (b) rm_launch_repeat_row(call->queue, s.rows, s.n, b, y);
    product.a = x, product.b = w, product.c = y; /* y = x w^T + b */
    product.m = s.rows, product.n = s.n, product.k = s.c;
    product.lda = s.c, product.ldb = s.ld, product.ldc = s.n;
    product.transpose_b = !s.by_input, product.add = b;
    multiply(call, product);
}

/* dx = dy w */
static void input_gradient(const remat_call *call, const shape &s) {
    rm_cuda_product product = {};
    product.a = (const float *)call->dy.data, product.b = (const float *)call->x[W].data;
    product.c = (float *)call->dx[X].data;
    product.m = s.rows, product.n = s.c, product.k = s.n;
    product.lda = s.n, product.ldb = s.ld, product.ldc = s.c;
    product.transpose_b = s.by_input;
    multiply(call, product);
}

/* dw += dy^T x, or x^T dy */
static void weight_gradient(const remat_call *call, const shape &s) {
    const float *x = (const float *)call->x[X].data, *dy = (const float *)call->dy.data;
    rm_cuda_product product = {};
    product.a = s.by_input ? x : dy, product.b = s.by_input ? dy : x;
    product.c = (float *)call->dx[W].data;
    product.m = s.by_input ? s.c : s.n, product.n = s.by_input ? s.n : s.c, product.k = s.rows;
    product.lda = product.m, product.ldb = product.n, product.ldc = product.n;
    product.transpose_a = true, product.add = true;
    multiply(call, product);
}

void rm_linear_backward_cuda(const remat_call *call) { /* y = x w^T + b */
    const shape s = shape_of(call);
    if (call->dx[X].data) input_gradient(call, s);
    if (call->dx[W].data) weight_gradient(call, s);
    if (call->dx[B].data)
        rm_launch_add_columns(call->queue, s.rows, s.n, s.n, (const float *)call->dy.data, (float *)call->dx[B].data);
}
