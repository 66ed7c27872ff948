/* ctc.cu: the CUDA kernels of the op `ctc` (ctc.c), which share its formulas (ctc_math.h). Forward first handles rows,
 * a warp per row; then a block per sample advances its positions through the timesteps of the tile. Backward first
 * handles samples, then rows, a block per row. */
#include "ops/cuda/reduce.cuh"

#include "ops/loss/ctc_math.h"

enum { ROW_THREADS = 128, THREADS = 64 /* per sample */ };

static __global__ void rows_forward(rm_ctc c, rm_ctc_row *row) {
    int64_t lane = threadIdx.x % RM_WARP, r = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / RM_WARP;
    bool mine = r < c.tau * c.batch;
    const float *x = c.logits + (mine ? r : 0) * c.classes;
    float largest = x[0];
    double sum = 0;
    for (int64_t v = lane; v < c.classes; v += RM_WARP) largest = x[v] > largest ? x[v] : largest;
    largest = rm_warp_largest(largest);
    for (int64_t v = lane; v < c.classes; v += RM_WARP) sum += rm_exp_nonpositive(x[v] - largest);
    sum = rm_warp_sum(sum);
    if (mine && lane == 0) row[r] = {largest, (float)log(sum)};
}

/* The maximum over the block, valid in all threads. */
static __device__ float block_largest(float x) {
    __shared__ float of_warp[THREADS / RM_WARP];
    x = rm_warp_largest(x);
    if (threadIdx.x % RM_WARP == 0) of_warp[threadIdx.x / RM_WARP] = x;
    __syncthreads();
    for (int w = 0; w < THREADS / RM_WARP; w++) x = of_warp[w] > x ? of_warp[w] : x;
    __syncthreads(); /* of_warp may be used again */
    return x;
}

/* One timestep of a sample. Returns the largest alpha, which was subtracted. */
static __device__ float step(const rm_ctc &c, const int32_t *target, int64_t ends, const float *x, rm_ctc_row row,
                             const float *before, float *alpha) {
    float most = -INFINITY;
    for (int64_t s = threadIdx.x; s < ends; s += THREADS) {
        alpha[s] = rm_ctc_arrive(target, before, s) + rm_ctc_log_p(x, row, rm_ctc_class(&c, target, s));
        most = alpha[s] > most ? alpha[s] : most;
    }
    most = block_largest(most);
    if (most == -INFINITY) return 0;
    for (int64_t s = threadIdx.x; s < ends; s += THREADS) alpha[s] -= most;
    return most;
}

static __global__ void samples_forward(rm_ctc c, const rm_ctc_row *row, float *alpha, const float *state, float *y,
                                       float *state_out) {
    int64_t b = blockIdx.x, ld = c.batch * c.width, wide = c.width + 2;
    int64_t labels = rm_ctc_labels(&c, b), ends = 2 * labels + 1, steps = rm_ctc_steps(&c, b);
    const int32_t *target = c.target + b * c.labels;
    rm_ctc_scale scale = {0, 0};
    if (state) state += b * wide;
    if (c.t0) scale = {state[c.width], state[c.width + 1]};
    alpha += b * c.width;
    for (int64_t s = threadIdx.x; s < c.width; s += THREADS)
        alpha[s] = s < ends ? rm_ctc_begin(&c, state, s) : -INFINITY;
    for (int64_t t = 0; t < c.tau; t++, alpha += ld) {
        int64_t r = t * c.batch + b;
        __syncthreads(); /* neighbouring positions are written */
        for (int64_t s = threadIdx.x; s < c.width; s += THREADS)
            if (t >= steps || s >= ends) alpha[ld + s] = alpha[s];
        if (t < steps)
            scale = rm_ctc_scale_add(scale, step(c, target, ends, c.logits + r * c.classes, row[r], alpha, alpha + ld));
        if (threadIdx.x == 0) y[r] = 0;
    }
    __syncthreads();
    for (int64_t s = threadIdx.x; s < c.width; s += THREADS) state_out[b * wide + s] = rm_ctc_to_state(alpha[s]);
    if (threadIdx.x > 0) return;
    state_out[b * wide + c.width] = scale.sum, state_out[b * wide + c.width + 1] = scale.rest;
    if (c.t0 + c.tau == c.t_total) y[(c.tau - 1) * c.batch + b] = rm_ctc_loss(&c, alpha, scale, labels);
}

/* ---- Backward ---------------------------------------------------------------------------------------------------- */

/* See ctc.c. One thread. */
static __device__ float begin_backward(const rm_ctc &c, const float *alpha, int64_t labels, float dy, float *d) {
    float end = rm_ctc_end(alpha, labels), share = dy / (float)(labels ? labels : 1);
    if (end == -INFINITY) return c.zero_infinity ? 0 : NAN;
    d[2 * labels] -= share * rm_exp_nonpositive(alpha[2 * labels] - end);
    if (labels) d[2 * labels - 1] -= share * rm_exp_nonpositive(alpha[2 * labels - 1] - end);
    return -share;
}

/* See ctc.c. The smallest position whose alpha is 0 is found as the maximum of the negated positions. */
static __device__ void unscale(const float *alpha, int64_t ends, float d_scale, float *d) {
    double sum = 0;
    float first = -INFINITY;
    for (int64_t s = threadIdx.x; s < ends; s += THREADS) {
        if (alpha[s] == -INFINITY) d[s] = 0;
        if (alpha[s] == 0 && first == -INFINITY) first = -(float)s;
        sum += d[s];
    }
    first = block_largest(first);
    sum = rm_block_sum(sum);
    if (threadIdx.x == 0 && first != -INFINITY) d[(int64_t)-first] += (float)(d_scale - sum);
    __syncthreads();
}

static __global__ void samples_backward(rm_ctc c, float *alpha, const float *dy, const float *d_out, float *d_in,
                                        float *all_d, float *all_arrived, float *d_scales) {
    __shared__ float shared_scale;
    int64_t b = blockIdx.x, ld = c.batch * c.width, wide = c.width + 2;
    int64_t labels = rm_ctc_labels(&c, b), ends = 2 * labels + 1;
    const int32_t *target = c.target + b * c.labels;
    float *d = all_d + b * c.width, *arrived = all_arrived + b * c.width;
    for (int64_t s = threadIdx.x; s < c.width; s += THREADS) d[s] = d_out ? d_out[b * wide + s] : 0;
    __syncthreads();
    alpha += b * c.width;
    if (threadIdx.x == 0) {
        float d_scale = d_out ? d_out[b * wide + c.width] : 0;
        if (c.t0 + c.tau == c.t_total)
            d_scale += begin_backward(c, alpha + c.tau * ld, labels, dy[(c.tau - 1) * c.batch + b], d);
        d_scales[b] = shared_scale = d_scale;
    }
    __syncthreads();
    for (int64_t t = rm_ctc_steps(&c, b) - 1; t >= 0; t--) {
        float *now = alpha + (t + 1) * ld, *before = now - ld;
        unscale(now, ends, shared_scale, d);
        for (int64_t s = threadIdx.x; s < ends; s += THREADS) {
            now[s] = d[s];
            arrived[s] = rm_ctc_arrive(target, before, s);
        }
        __syncthreads();
        for (int64_t s = threadIdx.x; s < ends; s += THREADS)
            d[s] = rm_ctc_leave(target, before, arrived, now, s, ends);
        __syncthreads();
    }
    for (int64_t s = threadIdx.x; d_in && s < wide; s += THREADS)
        d_in[b * wide + s] = c.t0 == 0 || (s >= ends && s < c.width) ? 0 : s < ends ? d[s] : shared_scale;
}

/* One thread adds the positions, in order. */
static __global__ void rows_backward(rm_ctc c, const rm_ctc_row *row, const float *d, const float *d_scale, float *dx) {
    int64_t r = blockIdx.x, b = r % c.batch, ends = 2 * rm_ctc_labels(&c, b) + 1;
    bool counts = r / c.batch < rm_ctc_steps(&c, b);
    const float *x = c.logits + r * c.classes;
    dx += r * c.classes, d += (r + c.batch) * c.width;
    for (int64_t v = threadIdx.x; v < c.classes; v += ROW_THREADS)
        dx[v] = counts ? -d_scale[b] * rm_exp_nonpositive(rm_ctc_log_p(x, row[r], v)) : 0;
    __syncthreads();
    if (threadIdx.x == 0 && counts)
        for (int64_t s = 0; s < ends; s++) dx[rm_ctc_class(&c, c.target + b * c.labels, s)] += d[s];
}

void rm_ctc_forward_cuda(const remat_call *call) {
    rm_ctc c = rm_ctc_of(call);
    int64_t rows = c.tau * c.batch;
    rm_ctc_row *row = (rm_ctc_row *)(call->aux ? call->aux : call->scratch);
    RM_LAUNCH_TOGETHER(rows_forward, rm_blocks_of(rows * RM_WARP, ROW_THREADS), ROW_THREADS, call->queue, c, row);
    RM_LAUNCH_TOGETHER(samples_forward, c.batch, THREADS, call->queue, c, row, (float *)(row + rows),
                       (const float *)call->state_in[0].data, (float *)call->y.data, (float *)call->state_out[0].data);
}

void rm_ctc_backward_cuda(const remat_call *call) {
    rm_ctc c = rm_ctc_of(call);
    int64_t rows = c.tau * c.batch;
    rm_ctc_row *row = (rm_ctc_row *)call->aux;
    float *alpha = (float *)(row + rows), *dx = (float *)call->dx[RM_CTC_LOGITS].data;
    float *d = (float *)call->scratch, *arrived = d + c.batch * c.width, *d_scale = arrived + c.batch * c.width;
    RM_LAUNCH_TOGETHER(samples_backward, c.batch, THREADS, call->queue, c, alpha, (const float *)call->dy.data,
                       (const float *)call->dstate_out[0].data, (float *)call->dstate_in[0].data, d, arrived, d_scale);
    if (dx) RM_LAUNCH_TOGETHER(rows_backward, rows, ROW_THREADS, call->queue, c, row, alpha, d_scale, dx);
}
