/* slstm.c: the op `slstm`: the scalar LSTM of xLSTM (Beck et al. 2024). Its gates are exponential and its heads
 * independent. For a head of d units, raw = x + R y + bias, gates i f z o:
 *
 *   m' = max(i, m + log sigmoid(f))                     c' = e^(m + log sigmoid(f) - m') c + e^(i - m') tanh(z)
 *   y' = sigmoid(o) c' / n'                             n' = max(e^(m + log sigmoid(f) - m') n + e^(i - m'), 1)
 *
 * Before the first timestep, and where reset[t,b] > 0, all states are 0, and m' = i if n is 0. From then on n is at
 * least 1. The maximum (flashrnn has it, too) therefore only matters for initial states given by the caller.
 *
 *   inputs   x (tau,B,4H), columns [gate][head][unit], made by linear layers; R (heads,4d,d), rows of a head [gate][unit], as
 *            xlstm's "vanilla" kernel; bias (4H), in the columns' order, optional; reset (tau,B) optional
 *   output   y (tau,B,H); states y, c, n, m (B,H)
 *
 * No aux: since y is known, R y of a tile is one product for each head, and gives c, n and m. Backward recomputes
 * them in scratch. m is differentiated, too: in exact arithmetic its gradient is 0 unless a loss reads a state. */
#include "ops/real.h"

#include <string.h>

#include "ops/cpu/kernels.h"
#include "ops/math/gemm.h"
#include "ops/op.h"
#include "ops/shape.h"

enum { X, R, BIAS, RESET, INPUTS };
enum { I, F, Z, O, GATES };
enum { STATE_Y, STATE_C, STATE_N, STATE_M, STATES };

static remat_status infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    (void)attr;
    char a[REMAT_DESC_TEXT], b[REMAT_DESC_TEXT];
    TRY(rm_want_real("slstm", "x", &x[X]));
    TRY(rm_want_rank("slstm", "x", &x[X], 3, 3));
    TRY(rm_want_real("slstm", "R", &x[R]));
    REQUIRE(x[R].rank == 3 && x[R].dim[1] == GATES * x[R].dim[2] && x[X].dim[2] == x[R].dim[0] * x[R].dim[1], INVALID,
            "slstm: x is %s and R is %s; they must be (T,B,4H) and (heads,4d,d), with H = heads d",
            rm_desc_text(&x[X], a), rm_desc_text(&x[R], b));
    if (x[BIAS].rank >= 0) TRY(rm_want_vector("slstm", "bias", &x[BIAS], x[X].dim[2]));
    if (x[RESET].rank >= 0) TRY(rm_want_reset("slstm", &x[RESET], &x[X]));
    *y = x[X];
    y->dim[2] /= GATES;
    for (int k = 0; k < STATES; k++) state[k] = rm_desc_make(RM_REAL, 2, y->dim + 1);
    return REMAT_OK;
}

/* Scratch of backward. For each row (t,b): gates (4H), slope, c, n, y of the previous timestep; for each row of the
 * batch: m, and the gradients of the states. */
static int64_t scratch_reals(const remat_desc *y) {
    int64_t state = y->dim[1] * y->dim[2];
    return y->dim[0] * state * (GATES + 4) + state * (1 + STATES);
}

static void cost(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass, remat_cost *out) {
    (void)attr;
    bool backward = pass == REMAT_BACKWARD;
    double units = (double)rm_desc_count(y), passes = backward ? 3 : 1;
    *out = (remat_cost){.flops = units * (passes * 2 * GATES * (double)x[R].dim[2] + (backward ? 300 : 150)),
                        .moved_bytes = passes * ((double)rm_desc_bytes(&x[X]) + (double)rm_desc_bytes(y) +
                                                 (double)rm_desc_bytes(&x[R])),
                        .scratch_bytes = backward ? (uint64_t)scratch_reals(y) * sizeof(real) : 0};
}

/* ---- A tile ------------------------------------------------------------------------------------------------------- */

typedef struct {
    int64_t tau, batch, heads, width, wide; /* wide: H */
    const real *x, *r, *bias, *reset, *in[STATES];
    real *gates, *slope, *c, *n, *before, *m, *carry[STATES]; /* scratch */
} tile;

static tile tile_of(const remat_call *call) {
    const remat_desc *x = &call->x[X].desc, *r = &call->x[R].desc;
    tile s = {.tau = x->dim[0], .batch = x->dim[1], .heads = r->dim[0], .width = r->dim[2], .wide = x->dim[2] / GATES};
    int64_t state = s.batch * s.wide, all = s.tau * state;
    real *scratch = call->scratch;
    s.x = call->x[X].data, s.r = call->x[R].data, s.bias = call->x[BIAS].data, s.reset = call->x[RESET].data;
    s.gates = scratch, s.slope = s.gates + GATES * all, s.c = s.slope + all, s.n = s.c + all, s.before = s.n + all;
    s.m = s.before + all;
    for (int k = 0; k < STATES; k++) s.in[k] = call->state_in[k].data, s.carry[k] = s.m + (k + 1) * state;
    return s;
}

static bool starts(const tile *s, int64_t t, int64_t b) { return s->reset && s->reset[t * s->batch + b] > 0; }

static void copy(real *to, const real *from, int64_t n) {
    if (to && from) memcpy(to, from, (size_t)n * sizeof *to);
    if (to && !from) memset(to, 0, (size_t)n * sizeof *to);
}

/* `before` = y of the previous timestep; zeros where a row is reset. */
static void copy_before(const tile *s, const real *y) {
    int64_t state = s->batch * s->wide;
    copy(s->before, s->in[STATE_Y], state);
    copy(s->before + state, y, (s->tau - 1) * state);
    for (int64_t row = 0; s->reset && row < s->tau * s->batch; row++)
        if (s->reset[row] > 0) copy(s->before + row * s->wide, NULL, s->wide);
}

static void clear_reset(const remat_call *call, const tile *s) { copy(call->dx[RESET].data, NULL, s->tau * s->batch); }

/* ---- The definition ----------------------------------------------------------------------------------------------- */

static real sigmoid(real x) { return 1 / (1 + real_exp(-x)); }
static real softplus(real x) { return x > 0 ? x + real_log1p(real_exp(-x)) : real_log1p(real_exp(x)); }

/* Gates and states of one unit after a timestep. */
typedef struct {
    real i, f, z, o, slope, c, n, m, sum; /* i' f' tanh z, sigmoid(o), sigmoid(-f); sum: f' n + i' */
    bool by_input;                        /* m' is i */
} unit;

static unit advance(const real raw[GATES], real c, real n, real m) {
    real kept = n == 0 ? (real)-INFINITY : m - softplus(-raw[F]);
    unit a = {.z = real_tanh(raw[Z]), .o = sigmoid(raw[O]), .slope = sigmoid(-raw[F]), .by_input = raw[I] >= kept};
    a.m = a.by_input ? raw[I] : kept;
    a.i = real_exp(raw[I] - a.m), a.f = real_exp(kept - a.m);
    a.c = a.f * c + a.i * a.z, a.sum = a.f * n + a.i;
    a.n = a.sum > 1 ? a.sum : 1;
    return a;
}

/* Pre-activations of unit u = head width + j of row (t,b). `y` (H): y of the previous timestep, or zeros. */
static void raw_of(const tile *s, int64_t row, int64_t u, const real *y, real raw[GATES]) {
    int64_t head = u / s->width, j = u % s->width;
    for (int g = 0; g < GATES; g++) {
        const real *r = s->r + ((head * GATES + g) * s->width + j) * s->width;
        raw[g] = s->x[(row * GATES + g) * s->wide + u] + (s->bias ? s->bias[g * s->wide + u] : 0);
        for (int64_t k = 0; y && k < s->width; k++) raw[g] += r[k] * y[head * s->width + k];
    }
}

static void define_forward(const remat_call *call) {
    tile s = tile_of(call);
    int64_t state = s.batch * s.wide;
    real *y = call->y.data, *out[STATES];
    for (int k = 0; k < STATES; k++) out[k] = call->state_out[k].data, copy(out[k], s.in[k], state);
    for (int64_t t = 0; t < s.tau; t++)
        for (int64_t b = 0; b < s.batch; b++)
            for (int64_t u = 0; u < s.wide; u++) {
                const real *before = t ? y + (t - 1) * state : s.in[STATE_Y];
                int64_t i = b * s.wide + u;
                real raw[GATES];
                bool anew = starts(&s, t, b);
                raw_of(&s, t * s.batch + b, u, before && !anew ? before + b * s.wide : NULL, raw);
                unit a =
                    advance(raw, anew ? 0 : out[STATE_C][i], anew ? 0 : out[STATE_N][i], anew ? 0 : out[STATE_M][i]);
                out[STATE_C][i] = a.c, out[STATE_N][i] = a.n, out[STATE_M][i] = a.m;
                y[t * state + i] = a.o * a.c / a.n;
            }
    copy(out[STATE_Y], y + (s.tau - 1) * state, state);
}

/* A state of unit u before row (t,b): from `sequence` at t - 1, or from state_in. */
static real previous(const tile *s, const real *sequence, int k, int64_t t, int64_t b, int64_t u) {
    int64_t i = b * s->wide + u;
    if (starts(s, t, b)) return 0;
    return t ? sequence[(t - 1) * s->batch * s->wide + i] : s->in[k] ? s->in[k][i] : 0;
}

/* Backward of one unit of a row: computes dgates and the carried gradients of c, n and m. `m` (B,H) is m before the
 * timestep. */
static void define_unit_back(const tile *s, const real *dy_all, int64_t t, int64_t b, int64_t u, const real *m,
                             real *dgates) {
    int64_t i = b * s->wide + u;
    real raw[GATES], c = previous(s, s->c, STATE_C, t, b, u), n = previous(s, s->n, STATE_N, t, b, u);
    raw_of(s, t * s->batch + b, u, s->before + (t * s->batch + b) * s->wide, raw);
    unit a = advance(raw, c, n, m[i]);
    real dy = dy_all[t * s->batch * s->wide + i] + s->carry[STATE_Y][i], ratio = a.c / a.n;
    real dc = s->carry[STATE_C][i] + dy * a.o / a.n, dn = s->carry[STATE_N][i] - dy * a.o * ratio / a.n;
    if (a.sum < 1) dn = 0;
    real by_i = (dc * a.z + dn) * a.i, by_f = (dc * c + dn * n) * a.f, dm = s->carry[STATE_M][i] - by_i - by_f;
    real dkept = by_f + (a.by_input ? 0 : dm);
    bool anew = starts(s, t, b);
    dgates[I * s->wide] = by_i + (a.by_input ? dm : 0);
    dgates[F * s->wide] = dkept * a.slope;
    dgates[Z * s->wide] = dc * a.i * (1 - a.z * a.z);
    dgates[O * s->wide] = dy * ratio * a.o * (1 - a.o);
    s->carry[STATE_C][i] = anew ? 0 : dc * a.f;
    s->carry[STATE_N][i] = anew ? 0 : dn * a.f;
    s->carry[STATE_M][i] = anew ? 0 : dkept;
}

/* From dgates of row (t,b), computes the carried gradient of y, and adds the row's share of dR and dbias. */
static void define_row_back(const remat_call *call, const tile *s, int64_t t, int64_t b, const real *dgates) {
    real *dr = call->dx[R].data, *dbias = call->dx[BIAS].data, *carry = s->carry[STATE_Y] + b * s->wide;
    const real *before = s->before + (t * s->batch + b) * s->wide;
    copy(carry, NULL, s->wide);
    for (int64_t u = 0; u < s->wide; u++)
        for (int g = 0; g < GATES; g++) {
            int64_t head = u / s->width, from = ((head * GATES + g) * s->width + u % s->width) * s->width;
            real d = dgates[g * s->wide + u];
            if (dbias) dbias[g * s->wide + u] += d;
            for (int64_t k = 0; k < s->width; k++) {
                if (dr) dr[from + k] += d * before[head * s->width + k];
                if (!starts(s, t, b)) carry[head * s->width + k] += d * s->r[from + k];
            }
        }
}

/* `slope` temporarily holds m before each timestep. */
static void define_backward(const remat_call *call) {
    tile s = tile_of(call);
    int64_t state = s.batch * s.wide;
    real *m = s.slope;
    copy_before(&s, call->y.data);
    for (int k = 0; k < STATES; k++) copy(s.carry[k], call->dstate_out[k].data, state);
    copy(m, s.in[STATE_M], state);
    for (int64_t t = 0; t < s.tau; t++)
        for (int64_t i = 0; i < state; i++) {
            int64_t b = i / s.wide, u = i % s.wide, row = t * s.batch + b;
            real raw[GATES];
            raw_of(&s, row, u, s.before + row * s.wide, raw);
            unit a = advance(raw, previous(&s, s.c, STATE_C, t, b, u), previous(&s, s.n, STATE_N, t, b, u),
                             m[t * state + i]);
            s.c[t * state + i] = a.c, s.n[t * state + i] = a.n;
            if (t + 1 < s.tau) m[(t + 1) * state + i] = a.m;
        }
    for (int64_t t = s.tau - 1; t >= 0; t--)
        for (int64_t b = 0; b < s.batch; b++) {
            real *dgates = s.gates + (t * s.batch + b) * GATES * s.wide;
            for (int64_t u = 0; u < s.wide; u++)
                define_unit_back(&s, call->dy.data, t, b, u, m + t * state, dgates + u);
            define_row_back(call, &s, t, b, dgates);
        }
    if (call->dx[X].data) copy(call->dx[X].data, s.gates, s.tau * GATES * state);
    for (int k = 0; k < STATES; k++) copy(call->dstate_in[k].data, s.carry[k], state);
    clear_reset(call, &s);
}

/* ---- The fast kernels --------------------------------------------------------------------------------------------- */

#ifndef RM_REAL_DOUBLE
enum { ROWS = 16 /* limit of a unit of work: its sums fit in one chunk of every instruction set */ };

/* Heads are packed like an LSTM's w_hh of d units, whose rows are in the same order. */
static uint64_t head_bytes(const remat_desc *r) {
    return rm_cell_kernels_get()->packed_bytes(RM_CELL_lstm, true, 0, r->dim[2]);
}
static uint64_t packed_bytes(const remat_desc *x, const void *attr, int threads) {
    (void)attr, (void)threads;
    return (uint64_t)x[R].dim[0] * head_bytes(&x[R]);
}
static void pack(const remat_call *call, void *packed) {
    const remat_desc *r = &call->x[R].desc;
    for (int64_t head = 0; head < r->dim[0]; head++)
        rm_cell_kernels_get()->pack(RM_CELL_lstm, true, 0, r->dim[2], NULL,
                                    (const float *)call->x[R].data + head * r->dim[1] * r->dim[2], NULL, NULL,
                                    (float *)packed + (uint64_t)head * head_bytes(r) / sizeof(float), 0, 1);
}

static rm_slstm_job job_of(const remat_call *call, const tile *s) {
    rm_slstm_job job = {.tau = s->tau, .batch = s->batch, .heads = s->heads, .width = s->width};
    job.x = s->x, job.bias = s->bias, job.reset = s->reset, job.packed = call->packed, job.y = call->y.data;
    job.packed_floats = (int64_t)(head_bytes(&call->x[R].desc) / sizeof(float));
    for (int k = 0; k < STATES; k++) job.in[k] = s->in[k], job.out[k] = call->state_out[k].data;
    return job;
}

/* Processes all heads of `rows` rows, a few rows at a time, so few that every thread has work. */
static void run(rm_slstm_kernel *kernel, const rm_slstm_job *job, int64_t rows, int threads) {
    int64_t some = ROWS;
    while (some > 1 && job->heads * ((rows + some - 1) / some) < threads) some /= 2;
    int64_t groups = (rows + some - 1) / some;
    bool large = job->tau * job->batch * job->heads * job->width > RM_PARALLEL_MIN_HEAVY;
    RM_PARALLEL_EVEN(
        threads, large, for (int64_t i = 0; i < job->heads * groups; i++) {
            int64_t from = i % groups * some;
            kernel(job, i / groups, from, rows - from < some ? rows - from : some);
        });
}

static void forward(const remat_call *call) {
    tile s = tile_of(call);
    rm_slstm_job job = job_of(call, &s);
    run(rm_cell_kernels_get()->slstm->forward, &job, s.batch, call->threads);
}

/* dR of gate g of a head += dgates^T before, over all rows. */
static void weight_gradients(const remat_call *call, const tile *s) {
    float *dr = call->dx[R].data;
    int64_t products = s->heads * GATES, d = s->width, rows = s->tau * s->batch;
    if (!dr) return;
    bool open = rm_gemm_begin(call->threads);
    RM_PARALLEL_EVEN(
        call->threads, rows * d * d > RM_PARALLEL_MIN, for (int64_t i = 0; i < products; i++) {
            const float *dgates = s->gates + i % GATES * s->wide + i / GATES * d;
            rm_gemm_alone(open, RM_TRANSPOSED, RM_PLAIN, d, d, rows, 1, dgates, GATES * s->wide,
                          s->before + i / GATES * d, s->wide, 1, dr + i * d * d, d);
        });
    rm_gemm_end(open);
}

static void backward(const remat_call *call) {
    tile s = tile_of(call);
    rm_slstm_job job = job_of(call, &s);
    const rm_slstm_rows *kernels = rm_cell_kernels_get()->slstm;
    int64_t rows = s.tau * s.batch, columns = GATES * s.wide;
    float *dx = call->dx[X].data, *dbias = call->dx[BIAS].data;
    job.gates = s.gates, job.slope = s.slope, job.c = s.c, job.n = s.n, job.before = s.before, job.m = s.m;
    job.dy = call->dy.data;
    for (int k = 0; k < STATES; k++) job.dout[k] = call->dstate_out[k].data, job.carry[k] = s.carry[k];
    copy_before(&s, call->y.data);
    run(kernels->sums, &job, rows, call->threads);
    run(kernels->backward, &job, s.batch, call->threads);
    weight_gradients(call, &s);
    for (int64_t row = 0; dbias && row < rows; row++)
        for (int64_t u = 0; u < columns; u++) dbias[u] += s.gates[row * columns + u];
    if (dx) copy(dx, s.gates, rows * columns);
    for (int k = 0; k < STATES; k++) copy(call->dstate_in[k].data, s.carry[k], s.batch * s.wide);
    clear_reset(call, &s);
}
#endif

#define SHAPES(t, b, heads, d) RM_SHAPE3(RM_REAL, t, b, 4 * (heads) * (d)), RM_SHAPE3(RM_REAL, heads, 4 * (d), d)
static const remat_sample samples[] = {
    {.name = "heads and resets",
     .sequence = true,
     .x = {SHAPES(6, 3, 2, 5), RM_SHAPE1(RM_REAL, 40), RM_SHAPE2(RM_REAL, 6, 3)}},
    {.name = "no bias", .sequence = true, .x = {SHAPES(5, 2, 3, 4), RM_ABSENT, RM_ABSENT}},
    {.name = "whole vectors and a rest",
     .sequence = true,
     .x = {SHAPES(4, 2, 1, 35), RM_SHAPE1(RM_REAL, 140), RM_ABSENT}},
    {.name = "large enough for threads",
     .sequence = true,
     .x = {SHAPES(4, 23, 7, 27), RM_SHAPE1(RM_REAL, 756), RM_ABSENT}},
};

const remat_op RM_OP(slstm) = {
    .struct_bytes = sizeof(remat_op),
    .name = "slstm",
    .doc = "y (T,B,H) of xLSTM's sLSTM over projections x (T,B,4H), gates i f z o; R (heads,4d,d), bias (4H)",
    .n_in = INPUTS,
    .n_state = STATES,
    .state_name = {"y", "c", "n", "m"},
    .optional = 1u << BIAS | 1u << RESET,
    .resets = 1u << RESET,
    .shared = 1u << R | 1u << BIAS,
    .time = REMAT_TIME_RECURRENT,
    .saves = {.in = (1u << INPUTS) - 1, .out = true, .state = true},
    .infer = infer,
    .cost = cost,
    .define_forward = define_forward,
    .define_backward = define_backward,
    .on = {{.forward = RM_FAST(forward, define_forward),
            .backward = RM_FAST(backward, define_backward),
            .packed_bytes = RM_FAST(packed_bytes, NULL),
            .pack = RM_FAST(pack, NULL)},
           RM_CUDA_KERNELS(slstm)},
    .samples = samples,
    .n_samples = sizeof samples / sizeof *samples,
};
