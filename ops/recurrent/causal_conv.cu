/* causal_conv.cu: the CUDA kernels of the op `causal_conv` (causal_conv.c, which says what a row is). A thread
 * computes an element; blocks of some features each sum the gradients of weights over rows. */
#include "ops/cuda/reduce.cuh"

enum { X, W, BIAS, RESET, PARTS = 8 /* parts into which rows are divided, for w and bias */ };

typedef struct {
    int64_t tau, batch, channels, k;
    const float *x, *w, *reset, *state;
} conv;

static conv conv_of(const remat_call *call) {
    const remat_desc *x = &call->x[X].desc;
    conv v = {x->dim[0],
              x->dim[1],
              x->dim[2],
              call->x[W].desc.dim[2],
              (const float *)call->x[X].data,
              (const float *)call->x[W].data,
              (const float *)call->x[RESET].data,
              (const float *)call->state_in[0].data};
    return v;
}

static __device__ inline float row_at(const conv &v, int64_t r, int64_t b, int64_t c) {
    int64_t halo = v.k - 1;
    if (r >= halo) return v.x[((r - halo) * v.batch + b) * v.channels + c];
    return v.state ? v.state[(b * halo + r) * v.channels + c] : 0;
}

/* The first tap of y[t]; and whether row r of the state is passed on (causal_conv.c). */
static __device__ inline int64_t first_tap(const conv &v, int64_t t, int64_t b) {
    for (int64_t back = 0; v.reset && back < v.k - 1 && back <= t; back++)
        if (v.reset[(t - back) * v.batch + b] > 0) return v.k - 1 - back;
    return 0;
}
static __device__ inline bool is_handed_on(const conv &v, int64_t r, int64_t b) {
    return r + 1 >= first_tap(v, v.tau - 1, b);
}

static __global__ void forward(conv v, const float *bias, float *y) {
    RM_EACH(i, v.tau * v.batch * v.channels) {
        int64_t row = rm_row_of(i, v.channels), c = i - row * v.channels, t = rm_row_of(row, v.batch);
        float sum = bias ? bias[c] : 0;
        for (int64_t j = first_tap(v, t, row - t * v.batch); j < v.k; j++)
            sum += v.w[c * v.k + j] * row_at(v, t + j, row - t * v.batch, c);
        y[i] = sum;
    }
}

static __global__ void hand_on(conv v, float *state_out) {
    RM_EACH(i, v.batch * (v.k - 1) * v.channels) {
        int64_t row = rm_row_of(i, v.channels), c = i - row * v.channels, b = row / (v.k - 1), r = row - b * (v.k - 1);
        state_out[i] = is_handed_on(v, r, b) ? row_at(v, v.tau + r, b, c) : 0;
    }
}

/* Computes rows [first, first + rows) of the gradient of the state, (B,k-1,C), or of x, (tau,B,C). */
static __global__ void backward(conv v, const float *dy, const float *dstate_out, int64_t first, int64_t rows,
                                float *out) {
    RM_EACH(i, rows * v.batch * v.channels) {
        int64_t row = rm_row_of(i, v.channels), c = i - row * v.channels, q = rm_row_of(row, v.batch);
        int64_t r = first + q, b = row - q * v.batch, halo = v.k - 1;
        bool handed = dstate_out && r >= v.tau && is_handed_on(v, r - v.tau, b);
        float sum = handed ? dstate_out[(b * halo + r - v.tau) * v.channels + c] : 0;
        for (int64_t j = 0; j < v.k; j++)
            if (r - j >= 0 && r - j < v.tau && j >= first_tap(v, r - j, b))
                sum += v.w[c * v.k + j] * dy[((r - j) * v.batch + b) * v.channels + c];
        out[first ? i : (b * halo + r) * v.channels + c] = sum;
    }
}

/* dw[c,j] += sum of dy row, dbias += sum of dy (j = k). A block computes 32 features and one j; its warp p sums
 * every PARTS-th row from row p on, and the parts are added in order. */
static __global__ void backward_weights(conv v, const float *dy, float *dw, float *dbias) {
    __shared__ float of_part[PARTS][RM_WARP];
    int64_t lane = threadIdx.x % RM_WARP, part = threadIdx.x / RM_WARP, spans = (v.channels + RM_WARP - 1) / RM_WARP;
    int64_t j = blockIdx.x / spans, c = (blockIdx.x - j * spans) * RM_WARP + lane;
    float sum = 0;
    for (int64_t row = part; row < v.tau * v.batch && c < v.channels; row += PARTS) {
        int64_t t = rm_row_of(row, v.batch), b = row - t * v.batch;
        if (j < v.k && j < first_tap(v, t, b)) continue;
        sum += dy[row * v.channels + c] * (j < v.k ? row_at(v, t + j, b, c) : 1);
    }
    of_part[part][lane] = sum;
    __syncthreads();
    if (part > 0 || c >= v.channels) return;
    for (int p = 1; p < PARTS; p++) sum += of_part[p][lane];
    if (j < v.k && dw) dw[c * v.k + j] += sum;
    if (j == v.k && dbias) dbias[c] += sum;
}

static __global__ void clear(int64_t n, float *to) { RM_EACH(i, n) to[i] = 0; }

void rm_causal_conv_forward_cuda(const remat_call *call) {
    conv v = conv_of(call);
    RM_LAUNCH_EACH(forward, v.tau * v.batch * v.channels, call->queue, v, (const float *)call->x[BIAS].data,
                   (float *)call->y.data);
    RM_LAUNCH_EACH(hand_on, v.batch * (v.k - 1) * v.channels, call->queue, v, (float *)call->state_out[0].data);
}

void rm_causal_conv_backward_cuda(const remat_call *call) {
    conv v = conv_of(call);
    const float *dy = (const float *)call->dy.data, *dstate_out = (const float *)call->dstate_out[0].data;
    float *dx = (float *)call->dx[X].data, *dstate = (float *)call->dstate_in[0].data;
    float *dw = (float *)call->dx[W].data, *dbias = (float *)call->dx[BIAS].data;
    int64_t halo = v.k - 1, row = v.batch * v.channels;
    if (dstate) RM_LAUNCH_EACH(backward, halo * row, call->queue, v, dy, dstate_out, (int64_t)0, halo, dstate);
    if (dx) RM_LAUNCH_EACH(backward, v.tau * row, call->queue, v, dy, dstate_out, halo, v.tau, dx);
    if (dw || dbias)
        RM_LAUNCH_TOGETHER(backward_weights, (v.k + 1) * rm_blocks_of(v.channels, RM_WARP), PARTS * RM_WARP,
                           call->queue, v, dy, dw, dbias);
    if (call->dx[RESET].data)
        RM_LAUNCH_EACH(clear, v.tau * v.batch, call->queue, v.tau * v.batch, (float *)call->dx[RESET].data);
}
