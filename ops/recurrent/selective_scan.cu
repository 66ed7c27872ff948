/* selective_scan.cu: the CUDA kernels of the op `selective_scan` (selective_scan.c). A thread computes one channel of a row of
 * the batch through the tile, some states at a time, which stay in registers. In backward a warp has 32 neighbouring
 * channels, and adds up their gradients of B and C. */
#include "ops/cuda/reduce.cuh"

extern "C" {
#include "ops/recurrent/selective_scan.h"
}

enum { U, DT, A_LOG, B, C, D, Z, DT_BIAS, RESET };
enum { THREADS = 64, SOME = RM_SELECTIVE_CUDA_STATES, CHUNK = RM_SELECTIVE_CUDA_CHUNK };

static __device__ inline float sigmoid(float x) { return 1 / (1 + expf(-x)); }
static __device__ inline float softplus(float x) { return x > 0 ? x + log1pf(expf(-x)) : log1pf(expf(x)); }

/* A timestep of a channel. */
typedef struct {
    int64_t row, at; /* the indices of (t,b) and (t,b,e) */
    float raw, delta, u;
    bool anew;
} step;

static __device__ inline step step_of(const rm_selective_job &s, int64_t t, int64_t b, int64_t e) {
    step p;
    p.row = t * s.batch + b, p.at = p.row * s.channels + e;
    p.raw = s.dt[p.at] + (s.dt_bias ? s.dt_bias[e] : 0);
    p.delta = softplus(p.raw), p.u = s.u[p.at];
    p.anew = s.reset && s.reset[p.row] > 0;
    return p;
}

/* States first, first + 1, .. of unit b channels + e, or zeros. */
static __device__ inline void load(const rm_selective_job &s, const float *from, int64_t unit, int64_t first,
                                   float to[SOME]) {
    for (int n = 0; n < SOME; n++) to[n] = from && first + n < s.states ? from[unit * s.states + first + n] : 0;
}
static __device__ inline void store(const rm_selective_job &s, const float from[SOME], int64_t unit, int64_t first,
                                    float *to) {
    for (int n = 0; n < SOME && first + n < s.states; n++) to[unit * s.states + first + n] = from[n];
}
static __device__ inline void load_rates(const rm_selective_job &s, int64_t e, int64_t first, float rate[SOME]) {
    load(s, s.a_log, e, first, rate);
    for (int n = 0; n < SOME; n++) rate[n] = -expf(rate[n]);
}

/* Advances h by the timestep; returns the sum of C h. */
static __device__ inline float advance(const rm_selective_job &s, const step &p, const float rate[SOME], int64_t first,
                                       float h[SOME]) {
    int64_t at = p.row * s.states + first;
    float sum = 0;
    for (int n = 0; n < SOME; n++) {
        if (first + n >= s.states) continue;
        h[n] = expf(p.delta * rate[n]) * (p.anew ? 0 : h[n]) + p.delta * s.b[at + n] * p.u;
        sum += s.c[at + n] * h[n];
    }
    return sum;
}

static __global__ void forward(rm_selective_job s) {
    RM_EACH(unit, s.batch * s.channels) {
        int64_t b = rm_row_of(unit, s.channels), e = unit - b * s.channels;
        for (int64_t first = 0; first < s.states; first += SOME) {
            float rate[SOME], h[SOME];
            load_rates(s, e, first, rate);
            load(s, s.h_in, unit, first, h);
            for (int64_t t = 0; t < s.tau; t++) {
                step p = step_of(s, t, b, e);
                float sum = advance(s, p, rate, first, h);
                sum += first ? s.y[p.at] : s.d ? s.d[e] * p.u : 0;
                bool last = first + SOME >= s.states;
                s.y[p.at] = last && s.z ? sum * s.z[p.at] * sigmoid(s.z[p.at]) : sum;
            }
            store(s, h, unit, first, s.h_out);
        }
    }
}

static __device__ inline void put(float *to, int64_t i, float value, bool adds) {
    if (to) to[i] = adds ? to[i] + value : value;
}

/* The sums of one channel over the timesteps. */
typedef struct {
    float a_log[SOME], d, dt_bias;
} sums;

/* Backward of a timestep from states before and after it, of which `sum` is the sum of C h. dh: the gradient of the states.
 * Lanes without a channel have zeros in dh. */
static __device__ inline void step_back(const rm_selective_job &s, const step &p, int64_t e, int64_t span, bool active,
                                        const float rate[SOME], int64_t first, const float before[SOME],
                                        const float after[SOME], float sum, float dh[SOME], sums &total) {
    int64_t at = p.row * s.states + first, part = span * s.tau * s.batch * s.states + at;
    float dy = active ? s.dy[p.at] : 0, z = s.z ? s.z[p.at] : 0, open = sigmoid(z), dsum = s.z ? dy * z * open : dy;
    float skip = s.d && !first ? s.d[e] : 0, du = skip * dsum, ddelta = 0;
    for (int n = 0; n < SOME && first + n < s.states; n++) {
        float d = dh[n] + dsum * s.c[at + n], through = p.anew ? 0 : d * expf(p.delta * rate[n]);
        float dexponent = p.anew ? 0 : through * before[n];
        float db = rm_warp_sum(d * p.delta * p.u), dc = rm_warp_sum(dsum * after[n]);
        if (threadIdx.x == 0) s.db_part[part + n] = db, s.dc_part[part + n] = dc;
        total.a_log[n] += dexponent * p.delta * rate[n];
        du += d * p.delta * s.b[at + n];
        ddelta += dexponent * rate[n] + d * s.b[at + n] * p.u;
        dh[n] = through;
    }
    float draw = ddelta * sigmoid(p.raw);
    total.dt_bias += draw;
    if (!first) total.d += dsum * p.u;
    if (!active) return;
    put(s.du, p.at, du, first > 0);
    put(s.ddt, p.at, draw, first > 0);
    put(s.dz, p.at, dy * (sum + skip * p.u) * open * (1 + z * (1 - open)), first > 0);
}

/* starts: `SOME` states at the starts of all chunks, (chunks,SOME,B,E). A block is one warp. */
static __global__ void backward(rm_selective_job s, int64_t spans, float *starts) {
    int64_t b = rm_row_of(blockIdx.x, spans), span = blockIdx.x - b * spans;
    int64_t e = span * RM_WARP + threadIdx.x, units = s.batch * s.channels;
    bool active = e < s.channels;
    if (!active) e = s.channels - 1;
    int64_t unit = b * s.channels + e;
    sums total;
    total.d = total.dt_bias = 0;
    for (int64_t first = 0; first < s.states; first += SOME) {
        float rate[SOME], dh[SOME], state[CHUNK + 1][SOME], sum[CHUNK];
        load_rates(s, e, first, rate);
        load(s, s.h_in, unit, first, state[0]);
        for (int64_t t = 0; t < s.tau; t++) {
            if (t % CHUNK == 0 && active)
                for (int n = 0; n < SOME; n++) starts[(t / CHUNK * SOME + n) * units + unit] = state[0][n];
            advance(s, step_of(s, t, b, e), rate, first, state[0]);
        }
        load(s, active ? s.dh_out : NULL, unit, first, dh);
        for (int n = 0; n < SOME; n++) total.a_log[n] = 0;
        for (int64_t t0 = (s.tau - 1) / CHUNK * CHUNK; t0 >= 0; t0 -= CHUNK) {
            int count = s.tau - t0 < CHUNK ? (int)(s.tau - t0) : (int)CHUNK;
            for (int n = 0; n < SOME; n++) state[0][n] = active ? starts[(t0 / CHUNK * SOME + n) * units + unit] : 0;
            for (int j = 0; j < count; j++) {
                for (int n = 0; n < SOME; n++) state[j + 1][n] = state[j][n];
                sum[j] = advance(s, step_of(s, t0 + j, b, e), rate, first, state[j + 1]);
            }
            for (int j = count - 1; j >= 0; j--)
                step_back(s, step_of(s, t0 + j, b, e), e, span, active, rate, first, state[j], state[j + 1], sum[j], dh,
                          total);
        }
        if (!active) continue;
        store(s, total.a_log, unit, first, s.da_log_part);
        if (s.dh_in) store(s, dh, unit, first, s.dh_in);
    }
    if (active) s.dd_part[unit] = total.d, s.ddt_bias_part[unit] = total.dt_bias;
}

/* to[i] (+)= the sum of `count` parts of n numbers, in order. */
static __global__ void add_parts(int64_t n, int64_t count, const float *part, bool adds, float *to) {
    RM_EACH(i, n) {
        float sum = 0;
        for (int64_t p = 0; p < count; p++) sum += part[p * n + i];
        put(to, i, sum, adds);
    }
}
static void launch_add_parts(const remat_call *call, int input, int64_t n, int64_t count, const float *part,
                             bool adds) {
    float *to = (float *)call->dx[input].data;
    if (to) RM_LAUNCH_EACH(add_parts, n, call->queue, n, count, part, adds, to);
}

static rm_selective_job job_of(const remat_call *call) {
    const remat_desc *u = &call->x[U].desc;
    rm_selective_job s = {};
    s.tau = u->dim[0], s.batch = u->dim[1], s.channels = u->dim[2], s.states = call->x[A_LOG].desc.dim[1];
    s.u = (const float *)call->x[U].data, s.dt = (const float *)call->x[DT].data;
    s.z = (const float *)call->x[Z].data, s.a_log = (const float *)call->x[A_LOG].data;
    s.b = (const float *)call->x[B].data, s.c = (const float *)call->x[C].data;
    s.d = (const float *)call->x[D].data, s.dt_bias = (const float *)call->x[DT_BIAS].data;
    s.reset = (const float *)call->x[RESET].data, s.h_in = (const float *)call->state_in[0].data;
    return s;
}

void rm_selective_scan_forward_cuda(const remat_call *call) {
    rm_selective_job s = job_of(call);
    s.y = (float *)call->y.data, s.h_out = (float *)call->state_out[0].data;
    RM_LAUNCH(forward, rm_blocks_within(s.batch * s.channels, THREADS, RM_EACH_BLOCKS), THREADS, call->queue, s);
}

void rm_selective_scan_backward_cuda(const remat_call *call) {
    rm_selective_job s = job_of(call);
    int64_t spans = rm_selective_cuda_spans(s.channels), rows = s.tau * s.batch * s.states;
    int64_t units = s.batch * s.channels;
    s.dy = (const float *)call->dy.data, s.dh_out = (const float *)call->dstate_out[0].data;
    s.du = (float *)call->dx[U].data, s.ddt = (float *)call->dx[DT].data, s.dz = (float *)call->dx[Z].data;
    s.dh_in = (float *)call->dstate_in[0].data;
    s.db_part = (float *)call->scratch, s.dc_part = s.db_part + spans * rows, s.da_log_part = s.dc_part + spans * rows;
    s.dd_part = s.da_log_part + units * s.states, s.ddt_bias_part = s.dd_part + units;
    RM_LAUNCH_TOGETHER(backward, s.batch * spans, RM_WARP, call->queue, s, spans, s.ddt_bias_part + units);
    launch_add_parts(call, B, rows, spans, s.db_part, false);
    launch_add_parts(call, C, rows, spans, s.dc_part, false);
    launch_add_parts(call, A_LOG, s.channels * s.states, s.batch, s.da_log_part, true);
    launch_add_parts(call, D, s.channels, s.batch, s.dd_part, true);
    launch_add_parts(call, DT_BIAS, s.channels, s.batch, s.ddt_bias_part, true);
    launch_add_parts(call, RESET, s.tau * s.batch, 0, NULL, false);
}
