/* selective_scan.c: the op `selective_scan` of Mamba (Gu and Dao 2023), including everything that the reference kernel
 * fuses. For each channel e of E and state n of N, with A = -exp(A_log) and delta = softplus(dt + dt_bias):
 *
 *   h'[e,n] = exp(delta[e] A[e,n]) h[e,n] + delta[e] B[n] u[e]            h is 0 where reset[t,b] > 0
 *   y[e]    = (sum over n of C[n] h'[e,n] + D[e] u[e]) silu(z[e])         without z: no gate
 *
 * No aux. A state (B,E,N) is as large as many timesteps of inputs, so only the state before the tile is saved.
 * Backward recomputes the others in scratch, some timesteps at a time. Channels are independent except in the
 * gradients of B and C: the sums of spans of channels are added in order, so no bits depend on the threads.
 */
#include "ops/real.h"

#include <string.h>

#include "ops/cpu/kernels.h"
#include "ops/op.h"
#include "ops/shape.h"

enum { U, DT, A_LOG, B, C, D, Z, DT_BIAS, RESET, INPUTS };
enum { MOST_STATES = 256 };

static remat_status infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    (void)attr;
    static const char *const op = "selective_scan";
    char text[REMAT_DESC_TEXT];
    TRY(rm_want_real(op, "u", &x[U]));
    TRY(rm_want_rank(op, "u", &x[U], 3, 3));
    TRY(rm_want_same(op, "u", &x[U], "dt", &x[DT]));
    TRY(rm_want_real(op, "A_log", &x[A_LOG]));
    int64_t channels = x[U].dim[2], states = x[A_LOG].dim[1];
    REQUIRE(x[A_LOG].rank == 2 && x[A_LOG].dim[0] == channels && states <= MOST_STATES, INVALID,
            "%s: A_log is %s; it must be (E,N) = (%lld,1..%d), some states for each channel of u", op,
            rm_desc_text(&x[A_LOG], text), (long long)channels, MOST_STATES);
    remat_desc rows = rm_desc_make(RM_REAL, 3, (int64_t[]){x[U].dim[0], x[U].dim[1], states});
    REQUIRE(rm_desc_equal(&x[B], &rows), INVALID, "%s: B is %s; it must be (T,B,N) = (%lld,%lld,%lld)", op,
            rm_desc_text(&x[B], text), (long long)rows.dim[0], (long long)rows.dim[1], (long long)states);
    TRY(rm_want_same(op, "B", &x[B], "C", &x[C]));
    if (x[D].rank >= 0) TRY(rm_want_vector(op, "D", &x[D], channels));
    if (x[Z].rank >= 0) TRY(rm_want_same(op, "u", &x[U], "z", &x[Z]));
    if (x[DT_BIAS].rank >= 0) TRY(rm_want_vector(op, "dt_bias", &x[DT_BIAS], channels));
    if (x[RESET].rank >= 0) TRY(rm_want_reset(op, &x[RESET], &x[U]));
    *y = x[U];
    *state = rm_desc_make(RM_REAL, 3, (int64_t[]){x[U].dim[1], channels, states});
    return REMAT_OK;
}

/* Scratch of the definition. */
static void cost(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass, remat_cost *out) {
    (void)attr;
    bool backward = pass == REMAT_BACKWARD;
    double n = (double)x[A_LOG].dim[1], streams = 3 + (x[Z].rank >= 0);
    *out = rm_cost_streaming(y, backward ? 60 * n + 120 : 20 * n + 60, backward ? 2 * streams : streams);
    out->moved_bytes += (backward ? 4 : 2) * (double)rm_desc_bytes(&x[B]);
    if (backward) out->scratch_bytes = (uint64_t)((y->dim[0] + 2) * x[A_LOG].dim[1]) * sizeof(real);
}

/* ---- The definition: one row of the batch and one channel after the other ----------------------------------------- */

typedef struct {
    int64_t tau, batch, channels, states;
    const real *u, *dt, *a_log, *b, *c, *d, *z, *dt_bias, *reset;
} tile;

static tile tile_of(const remat_call *call) {
    const remat_desc *u = &call->x[U].desc;
    return (tile){.tau = u->dim[0],
                  .batch = u->dim[1],
                  .channels = u->dim[2],
                  .states = call->x[A_LOG].desc.dim[1],
                  .u = call->x[U].data,
                  .dt = call->x[DT].data,
                  .a_log = call->x[A_LOG].data,
                  .b = call->x[B].data,
                  .c = call->x[C].data,
                  .d = call->x[D].data,
                  .z = call->x[Z].data,
                  .dt_bias = call->x[DT_BIAS].data,
                  .reset = call->x[RESET].data};
}

static real sigmoid(real x) { return 1 / (1 + real_exp(-x)); }
static real softplus(real x) { return x > 0 ? x + real_log1p(real_exp(-x)) : real_log1p(real_exp(x)); }

static int64_t at(const tile *s, int64_t t, int64_t b, int64_t e) { return (t * s->batch + b) * s->channels + e; }
static bool begins(const tile *s, int64_t t, int64_t b) { return s->reset && s->reset[t * s->batch + b] > 0; }
static real raw_delta(const tile *s, int64_t t, int64_t b, int64_t e) {
    return s->dt[at(s, t, b, e)] + (s->dt_bias ? s->dt_bias[e] : 0);
}

/* Advances h (N) of channel e by timestep t; returns the sum that the gate multiplies. */
static real advance(const tile *s, int64_t t, int64_t b, int64_t e, real *h) {
    const real *B_t = s->b + (t * s->batch + b) * s->states, *C_t = s->c + (t * s->batch + b) * s->states;
    real delta = softplus(raw_delta(s, t, b, e)), u = s->u[at(s, t, b, e)], sum = s->d ? s->d[e] * u : 0;
    for (int64_t n = 0; n < s->states; n++) {
        real before = begins(s, t, b) ? 0 : h[n];
        h[n] = real_exp(-delta * real_exp(s->a_log[e * s->states + n])) * before + delta * B_t[n] * u;
        sum += C_t[n] * h[n];
    }
    return sum;
}

static void copy_or_clear(real *to, const real *from, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] = from ? from[i] : 0;
}

static void define_forward(const remat_call *call) {
    tile s = tile_of(call);
    const real *h_in = call->state_in[0].data;
    real *y = call->y.data, *h = call->state_out[0].data;
    copy_or_clear(h, h_in, s.batch * s.channels * s.states);
    for (int64_t b = 0; b < s.batch; b++)
        for (int64_t e = 0; e < s.channels; e++)
            for (int64_t t = 0; t < s.tau; t++) {
                real sum = advance(&s, t, b, e, h + (b * s.channels + e) * s.states);
                real z = s.z ? s.z[at(&s, t, b, e)] : 0;
                y[at(&s, t, b, e)] = s.z ? sum * z * sigmoid(z) : sum;
            }
}

static void add_if(void *to, int64_t i, real value) {
    if (to) ((real *)to)[i] += value;
}
static void set_if(void *to, int64_t i, real value) {
    if (to) ((real *)to)[i] = value;
}

/* Backward of timestep t of channel e: `h` (N) is the state before it, `after` the state after it, and `dh` (N) the
 * gradient from later timesteps. */
static void step_back(const remat_call *call, const tile *s, int64_t t, int64_t b, int64_t e, const real *h,
                      const real *after, real sum, real *dh) {
    const remat_tensor *dx = call->dx;
    int64_t i = at(s, t, b, e), row = (t * s->batch + b) * s->states;
    real raw = raw_delta(s, t, b, e), delta = softplus(raw), u = s->u[i], dy = ((real *)call->dy.data)[i];
    real z = s->z ? s->z[i] : 0, open = sigmoid(z), dsum = s->z ? dy * z * open : dy;
    real du = s->d ? s->d[e] * dsum : 0, ddelta = 0;
    for (int64_t n = 0; n < s->states; n++) {
        real A = -real_exp(s->a_log[e * s->states + n]), d = dh[n] + dsum * s->c[row + n];
        real through = begins(s, t, b) ? 0 : d * real_exp(delta * A), dexponent = begins(s, t, b) ? 0 : through * h[n];
        add_if(dx[B].data, row + n, d * delta * u);
        add_if(dx[C].data, row + n, dsum * after[n]);
        add_if(dx[A_LOG].data, e * s->states + n, dexponent * delta * A);
        du += d * delta * s->b[row + n];
        ddelta += dexponent * A + d * s->b[row + n] * u;
        dh[n] = through;
    }
    set_if(dx[U].data, i, du);
    set_if(dx[DT].data, i, ddelta * sigmoid(raw));
    set_if(dx[Z].data, i, dy * sum * open * (1 + z * (1 - open)));
    add_if(dx[D].data, e, dsum * u);
    add_if(dx[DT_BIAS].data, e, ddelta * sigmoid(raw));
}

/* dB and dC are sums over channels; `reset` has no gradient. */
static void clear_sums(const remat_call *call) {
    static const int cleared[] = {B, C, RESET};
    for (int i = 0; i < 3; i++) {
        const remat_tensor *dx = &call->dx[cleared[i]];
        if (dx->data) memset(dx->data, 0, (size_t)rm_desc_count(&call->x[cleared[i]].desc) * sizeof(real));
    }
}

static void define_backward(const remat_call *call) {
    tile s = tile_of(call);
    const real *h_in = call->state_in[0].data, *dh_out = call->dstate_out[0].data;
    real *h = call->scratch /* (tau + 1,N) */, *dh = h + (s.tau + 1) * s.states, *dh_in = call->dstate_in[0].data;
    clear_sums(call);
    for (int64_t b = 0; b < s.batch; b++)
        for (int64_t e = 0; e < s.channels; e++) {
            int64_t state = (b * s.channels + e) * s.states;
            copy_or_clear(h, h_in ? h_in + state : NULL, s.states);
            copy_or_clear(dh, dh_out ? dh_out + state : NULL, s.states);
            for (int64_t t = 0; t < s.tau; t++) {
                copy_or_clear(h + (t + 1) * s.states, h + t * s.states, s.states);
                advance(&s, t, b, e, h + (t + 1) * s.states);
            }
            for (int64_t t = s.tau - 1; t >= 0; t--) {
                const real *after = h + (t + 1) * s.states, *C_t = s.c + (t * s.batch + b) * s.states;
                real sum = s.d ? s.d[e] * s.u[at(&s, t, b, e)] : 0;
                for (int64_t n = 0; n < s.states; n++) sum += C_t[n] * after[n];
                step_back(call, &s, t, b, e, h + t * s.states, after, sum, dh);
            }
            for (int64_t n = 0; dh_in && n < s.states; n++) dh_in[state + n] = dh[n];
        }
}

/* ---- The fast kernels --------------------------------------------------------------------------------------------- */

#ifndef RM_REAL_DOUBLE
/* Each worker has its own scratch and computes the units (row of the batch, span of channels) from..to. */
static int64_t workers_of(int64_t batch, int64_t channels, int threads) {
    int64_t units = batch * rm_selective_spans(channels);
    return units < threads ? units : threads;
}

/* Floats of partial gradients: one per span for B and C, one per row of the batch for A_log, D and dt_bias. */
static int64_t parts(int64_t tau, int64_t batch, int64_t channels, int64_t states) {
    int64_t rows = rm_selective_spans(channels) * tau * batch * states;
    return rm_cell_whole_vectors(2 * rows + batch * channels * (states + 2));
}

static uint64_t scratch_bytes(const remat_desc *x, const void *attr, remat_pass pass, bool aux, int threads) {
    (void)attr, (void)aux;
    int64_t tau = x[U].dim[0], batch = x[U].dim[1], channels = x[U].dim[2], states = x[A_LOG].dim[1];
    bool backward = pass == REMAT_BACKWARD;
    int64_t floats = workers_of(batch, channels, threads) * rm_selective_room(tau, states, backward);
    if (backward) floats += parts(tau, batch, channels, states);
    return (uint64_t)floats * sizeof(float);
}

static uint64_t cuda_scratch_bytes(const remat_desc *x, const void *attr, remat_pass pass, bool aux, int threads) {
    (void)attr, (void)aux, (void)threads;
    const remat_desc *u = &x[U];
    if (pass != REMAT_BACKWARD) return 0;
    return sizeof(float) * (uint64_t)rm_selective_cuda_floats(u->dim[0], u->dim[1], u->dim[2], x[A_LOG].dim[1]);
}

static rm_selective_job job_of(const remat_call *call, const tile *s) {
    return (rm_selective_job){.tau = s->tau,
                              .batch = s->batch,
                              .channels = s->channels,
                              .states = s->states,
                              .u = s->u,
                              .dt = s->dt,
                              .z = s->z,
                              .a_log = s->a_log,
                              .b = s->b,
                              .c = s->c,
                              .d = s->d,
                              .dt_bias = s->dt_bias,
                              .reset = s->reset,
                              .h_in = call->state_in[0].data};
}

static void run(rm_selective_kernel *kernel, const rm_selective_job *job, int threads, float *room, int64_t room_each) {
    int64_t spans = rm_selective_spans(job->channels), units = job->batch * spans;
    int64_t workers = workers_of(job->batch, job->channels, threads);
    RM_PARALLEL_EVEN(
        threads, job->tau * job->batch * job->channels * job->states > RM_PARALLEL_MIN_HEAVY,
        for (int64_t w = 0; w < workers; w++) {
            for (int64_t i = units * w / workers; i < units * (w + 1) / workers; i++)
                kernel(job, i / spans, i % spans, room + w * room_each);
        });
}

static void forward(const remat_call *call) {
    tile s = tile_of(call);
    rm_selective_job job = job_of(call, &s);
    job.y = call->y.data, job.h_out = call->state_out[0].data;
    run(rm_cell_kernels_get()->selective->forward, &job, call->threads, call->scratch,
        rm_selective_room(s.tau, s.states, false));
}

/* to[i] (+)= the sum of `count` parts, `step` apart, in order. */
static void add_parts(const float *part, int64_t count, int64_t step, int64_t from, int64_t end, bool adds, float *to) {
    for (int64_t i = from; i < end; i++) {
        float sum = 0;
        for (int64_t p = 0; p < count; p++) sum += part[p * step + i];
        to[i] = adds ? to[i] + sum : sum;
    }
}

static void backward(const remat_call *call) {
    tile s = tile_of(call);
    rm_selective_job job = job_of(call, &s);
    int64_t spans = rm_selective_spans(s.channels), rows = s.tau * s.batch * s.states, matrix = s.channels * s.states;
    float *part = call->scratch;
    job.dy = call->dy.data, job.dh_out = call->dstate_out[0].data, job.dh_in = call->dstate_in[0].data;
    job.du = call->dx[U].data, job.ddt = call->dx[DT].data, job.dz = call->dx[Z].data;
    job.db_part = part, part += spans * rows;
    job.dc_part = part, part += spans * rows;
    job.da_log_part = part, part += s.batch * matrix;
    job.dd_part = part, part += s.batch * s.channels;
    job.ddt_bias_part = part;
    run(rm_cell_kernels_get()->selective->backward, &job, call->threads,
        (float *)call->scratch + parts(s.tau, s.batch, s.channels, s.states), rm_selective_room(s.tau, s.states, true));
    clear_sums(call);
    if (call->dx[B].data) add_parts(job.db_part, spans, rows, 0, rows, false, call->dx[B].data);
    if (call->dx[C].data) add_parts(job.dc_part, spans, rows, 0, rows, false, call->dx[C].data);
    if (call->dx[A_LOG].data) add_parts(job.da_log_part, s.batch, matrix, 0, matrix, true, call->dx[A_LOG].data);
    if (call->dx[D].data) add_parts(job.dd_part, s.batch, s.channels, 0, s.channels, true, call->dx[D].data);
    if (call->dx[DT_BIAS].data)
        add_parts(job.ddt_bias_part, s.batch, s.channels, 0, s.channels, true, call->dx[DT_BIAS].data);
}
#endif

#define TILE(t, b, e, n) RM_SHAPE3(RM_REAL, t, b, e), RM_SHAPE3(RM_REAL, t, b, e), RM_SHAPE2(RM_REAL, e, n)
#define STATES(t, b, n) RM_SHAPE3(RM_REAL, t, b, n), RM_SHAPE3(RM_REAL, t, b, n)
#define OPTIONS(t, b, e) RM_SHAPE1(RM_REAL, e), RM_SHAPE3(RM_REAL, t, b, e), RM_SHAPE1(RM_REAL, e)
static const remat_sample samples[] = {
    {.name = "everything",
     .sequence = true,
     .x = {TILE(5, 2, 7, 19), STATES(5, 2, 19), OPTIONS(5, 2, 7), RM_SHAPE2(RM_REAL, 5, 2)}},
    {.name = "nothing optional",
     .sequence = true,
     .x = {TILE(4, 3, 5, 4), STATES(4, 3, 4), RM_ABSENT, RM_ABSENT, RM_ABSENT, RM_ABSENT}},
    {.name = "several chunks",
     .sequence = true,
     .x = {TILE(70, 1, 3, 2), STATES(70, 1, 2), OPTIONS(70, 1, 3), RM_ABSENT}},
    {.name = "spans and threads",
     .sequence = true,
     .x = {TILE(4, 2, 150, 16), STATES(4, 2, 16), OPTIONS(4, 2, 150), RM_ABSENT}},
};

const remat_op RM_OP(selective_scan) = {
    .struct_bytes = sizeof(remat_op),
    .name = "selective_scan",
    .doc =
        "Mamba's scan: y (T,B,E) of u, dt, A_log (E,N), B and C (T,B,N), D (E), z, dt_bias (E); h (B,E,N) is carried",
    .n_in = INPUTS,
    .n_state = 1,
    .optional = 1u << D | 1u << Z | 1u << DT_BIAS | 1u << RESET,
    .resets = 1u << RESET,
    .shared = 1u << A_LOG | 1u << D | 1u << DT_BIAS,
    .time = REMAT_TIME_RECURRENT,
    .saves = {.in = (1u << INPUTS) - 1, .state = true},
    .infer = infer,
    .cost = cost,
    .define_forward = define_forward,
    .define_backward = define_backward,
    .on = {{.forward = RM_FAST(forward, define_forward),
            .backward = RM_FAST(backward, define_backward),
            .scratch_bytes = RM_FAST(scratch_bytes, NULL)},
           {.forward = RM_CUDA(selective_scan, forward),
            .backward = RM_CUDA(selective_scan, backward),
            .scratch_bytes = RM_FAST(cuda_scratch_bytes, NULL)}},
    .samples = samples,
    .n_samples = sizeof samples / sizeof *samples,
};
