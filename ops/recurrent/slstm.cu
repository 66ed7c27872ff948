/* slstm.cu: the CUDA kernels of the op `slstm` (slstm.c). Forward launches a kernel for each timestep, with a thread for each
 * unit of a row of the batch. Backward knows y, so it first makes all pre-activations and states again; then it launches two
 * kernels for each timestep, and adds up the gradients of weights over all rows, in order. */
#include "ops/cuda/channels.cuh"

enum { X, R, BIAS, RESET };
enum { I, F, Z, O, GATES };
enum { STATE_Y, STATE_C, STATE_N, STATE_M, STATES };

typedef struct {
    int64_t tau, batch, heads, width, wide; /* wide: H */
    const float *x, *r, *bias, *reset, *in[STATES], *dy;
    float *y, *out[STATES];
    float *gates, *m, *c, *n, *before, *carry[STATES]; /* scratch of backward: (rows,4H), (rows,H) each, (B,H) each */
} tile;

static __device__ inline bool starts(const tile &s, int64_t row) { return s.reset && s.reset[row] > 0; }
static __device__ inline float sigmoid(float x) { return 1 / (1 + expf(-x)); }
static __device__ inline float softplus(float x) { return x > 0 ? x + log1pf(expf(-x)) : log1pf(expf(x)); }

/* Gates and states of one unit after a timestep, as in slstm.c. */
typedef struct {
    float i, f, z, o, slope, c, n, m, sum;
    bool by_input;
} unit;

static __device__ inline unit advance(const float raw[GATES], float c, float n, float m) {
    float kept = n == 0 ? -INFINITY : m - softplus(-raw[F]);
    unit a;
    a.z = tanhf(raw[Z]), a.o = sigmoid(raw[O]), a.slope = sigmoid(-raw[F]), a.by_input = raw[I] >= kept;
    a.m = a.by_input ? raw[I] : kept;
    a.i = expf(raw[I] - a.m), a.f = expf(kept - a.m);
    a.c = a.f * c + a.i * a.z, a.sum = a.f * n + a.i;
    a.n = a.sum > 1 ? a.sum : 1;
    return a;
}

/* Pre-activations of unit u of row (t,b). y (H): of the previous timestep; NULL: zeros. */
static __device__ inline void raw_of(const tile &s, int64_t row, int64_t u, const float *y, float raw[GATES]) {
    int64_t head = rm_row_of(u, s.width), j = u - head * s.width;
    for (int g = 0; g < GATES; g++) {
        const float *r = s.r + ((head * GATES + g) * s.width + j) * s.width;
        float sum = s.x[(row * GATES + g) * s.wide + u] + (s.bias ? s.bias[g * s.wide + u] : 0);
        for (int64_t k = 0; y && k < s.width; k++) sum += r[k] * y[head * s.width + k];
        raw[g] = sum;
    }
}

static __global__ void step(tile s, int64_t t) {
    RM_EACH(i, s.batch * s.wide) {
        int64_t b = rm_row_of(i, s.wide), row = t * s.batch + b;
        const float *y = t ? s.y + (t - 1) * s.batch * s.wide : s.in[STATE_Y];
        bool anew = starts(s, row);
        float raw[GATES], old[STATES];
        for (int k = STATE_C; k < STATES; k++) {
            const float *from = t ? s.out[k] : s.in[k];
            old[k] = from && !anew ? from[i] : 0;
        }
        raw_of(s, row, i - b * s.wide, y && !anew ? y + b * s.wide : NULL, raw);
        unit a = advance(raw, old[STATE_C], old[STATE_N], old[STATE_M]);
        s.out[STATE_C][i] = a.c, s.out[STATE_N][i] = a.n, s.out[STATE_M][i] = a.m;
        s.y[t * s.batch * s.wide + i] = a.o * a.c / a.n;
        if (t == s.tau - 1) s.out[STATE_Y][i] = a.o * a.c / a.n;
    }
}

/* ---- Backward ----------------------------------------------------------------------------------------------------- */

/* `before`: y of the previous timestep, or zeros. */
static __global__ void copy_before(tile s, const float *y) {
    int64_t state = s.batch * s.wide;
    RM_EACH(i, s.tau * state) {
        float last = i >= state ? y[i - state] : s.in[STATE_Y] ? s.in[STATE_Y][i] : 0;
        s.before[i] = starts(s, rm_row_of(i, s.wide)) ? 0 : last;
    }
}

/* `gates`: the pre-activations. */
static __global__ void all_gates(tile s) {
    RM_EACH(i, s.tau * s.batch * s.wide) {
        int64_t row = rm_row_of(i, s.wide), u = i - row * s.wide;
        float raw[GATES];
        raw_of(s, row, u, s.before + row * s.wide, raw);
        for (int g = 0; g < GATES; g++) s.gates[(row * GATES + g) * s.wide + u] = raw[g];
    }
}

static __device__ inline void gates_at(const tile &s, int64_t row, int64_t u, float raw[GATES]) {
    for (int g = 0; g < GATES; g++) raw[g] = s.gates[(row * GATES + g) * s.wide + u];
}

/* c, n and m before each timestep, and the gradients of the states after the tile, from `dout`. */
static __global__ void all_states(tile s, const float *dy, const float *dc, const float *dn, const float *dm) {
    const float *dout[STATES] = {dy, dc, dn, dm};
    RM_EACH(i, s.batch * s.wide) {
        int64_t b = rm_row_of(i, s.wide), u = i - b * s.wide, state = s.batch * s.wide;
        float old[STATES];
        for (int k = 0; k < STATES; k++) {
            s.carry[k][i] = dout[k] ? dout[k][i] : 0;
            old[k] = s.in[k] ? s.in[k][i] : 0;
        }
        for (int64_t t = 0; t < s.tau; t++) {
            float raw[GATES];
            bool anew = starts(s, t * s.batch + b);
            float c = anew ? 0 : old[STATE_C], n = anew ? 0 : old[STATE_N], m = anew ? 0 : old[STATE_M];
            s.c[t * state + i] = c, s.n[t * state + i] = n, s.m[t * state + i] = m;
            gates_at(s, t * s.batch + b, u, raw);
            unit a = advance(raw, c, n, m);
            old[STATE_C] = a.c, old[STATE_N] = a.n, old[STATE_M] = a.m;
        }
    }
}

/* Replaces pre-activations of a timestep by their gradients, and the gradients of c, n and m after it by those before it. */
static __global__ void units_back(tile s, int64_t t) {
    RM_EACH(i, s.batch * s.wide) {
        int64_t b = rm_row_of(i, s.wide), u = i - b * s.wide, row = t * s.batch + b, at = row * s.wide + u;
        float raw[GATES], c = s.c[at], n = s.n[at];
        gates_at(s, row, u, raw);
        unit a = advance(raw, c, n, s.m[at]);
        float dy = s.dy[at] + s.carry[STATE_Y][i], ratio = a.c / a.n;
        float dc = s.carry[STATE_C][i] + dy * a.o / a.n, dn = s.carry[STATE_N][i] - dy * a.o * ratio / a.n;
        if (a.sum < 1) dn = 0;
        float by_i = (dc * a.z + dn) * a.i, by_f = (dc * c + dn * n) * a.f, dm = s.carry[STATE_M][i] - by_i - by_f;
        float dkept = by_f + (a.by_input ? 0 : dm), *dgates = s.gates + row * GATES * s.wide + u;
        bool anew = starts(s, row);
        dgates[I * s.wide] = by_i + (a.by_input ? dm : 0);
        dgates[F * s.wide] = dkept * a.slope;
        dgates[Z * s.wide] = dc * a.i * (1 - a.z * a.z);
        dgates[O * s.wide] = dy * ratio * a.o * (1 - a.o);
        s.carry[STATE_C][i] = anew ? 0 : dc * a.f;
        s.carry[STATE_N][i] = anew ? 0 : dn * a.f;
        s.carry[STATE_M][i] = anew ? 0 : dkept;
    }
}

/* The gradient of y before the timestep. */
static __global__ void outputs_back(tile s, int64_t t) {
    RM_EACH(i, s.batch * s.wide) {
        int64_t b = rm_row_of(i, s.wide), u = i - b * s.wide, row = t * s.batch + b, head = rm_row_of(u, s.width);
        const float *dgates = s.gates + row * GATES * s.wide + head * s.width;
        const float *r = s.r + head * GATES * s.width * s.width + (u - head * s.width);
        float sum = 0;
        for (int g = 0; g < GATES && !starts(s, row); g++)
            for (int64_t j = 0; j < s.width; j++) sum += dgates[g * s.wide + j] * r[(g * s.width + j) * s.width];
        s.carry[STATE_Y][i] = sum;
    }
}

/* dR += dgates^T before, a thread for each number. */
static __global__ void weights_back(tile s, float *dr) {
    RM_EACH(i, s.heads * GATES * s.width * s.width) {
        int64_t to = rm_row_of(i, s.width), from = i - to * s.width, gate = rm_row_of(to, s.width);
        int64_t head = gate / GATES, j = to - gate * s.width, u = head * s.width + j;
        float sum = 0;
        for (int64_t row = 0; row < s.tau * s.batch; row++)
            sum += s.gates[(row * GATES + gate % GATES) * s.wide + u] * s.before[row * s.wide + head * s.width + from];
        dr[i] += sum;
    }
}

static __global__ void copy(int64_t n, const float *from, float *to) { RM_EACH(i, n) to[i] = from ? from[i] : 0; }

/* to = from, which may be NULL: zeros. to NULL: nothing. */
static void launch_copy(const remat_call *call, int64_t n, const float *from, float *to) {
    if (to) RM_LAUNCH_EACH(copy, n, call->queue, n, from, to);
}

static tile tile_of(const remat_call *call) {
    const remat_desc *x = &call->x[X].desc, *r = &call->x[R].desc;
    tile s = {};
    s.tau = x->dim[0], s.batch = x->dim[1], s.heads = r->dim[0], s.width = r->dim[2], s.wide = x->dim[2] / GATES;
    s.x = (const float *)call->x[X].data, s.r = (const float *)call->x[R].data;
    s.bias = (const float *)call->x[BIAS].data, s.reset = (const float *)call->x[RESET].data;
    for (int k = 0; k < STATES; k++) s.in[k] = (const float *)call->state_in[k].data;
    return s;
}

void rm_slstm_forward_cuda(const remat_call *call) {
    tile s = tile_of(call);
    s.y = (float *)call->y.data;
    for (int k = 0; k < STATES; k++) s.out[k] = (float *)call->state_out[k].data;
    for (int64_t t = 0; t < s.tau; t++) RM_LAUNCH_EACH(step, s.batch * s.wide, call->queue, s, t);
}

void rm_slstm_backward_cuda(const remat_call *call) {
    tile s = tile_of(call);
    int64_t state = s.batch * s.wide, all = s.tau * state, rows = s.tau * s.batch;
    float *dr = (float *)call->dx[R].data, *dbias = (float *)call->dx[BIAS].data;
    const float *dout[STATES];
    s.gates = (float *)call->scratch, s.m = s.gates + GATES * all, s.c = s.m + all, s.n = s.c + all;
    s.before = s.n + all, s.dy = (const float *)call->dy.data;
    for (int k = 0; k < STATES; k++) {
        s.carry[k] = s.before + all + k * state;
        dout[k] = (const float *)call->dstate_out[k].data;
    }
    RM_LAUNCH_EACH(copy_before, all, call->queue, s, (const float *)call->y.data);
    RM_LAUNCH_EACH(all_gates, all, call->queue, s);
    RM_LAUNCH_EACH(all_states, state, call->queue, s, dout[STATE_Y], dout[STATE_C], dout[STATE_N], dout[STATE_M]);
    for (int64_t t = s.tau - 1; t >= 0; t--) {
        RM_LAUNCH_EACH(units_back, state, call->queue, s, t);
        RM_LAUNCH_EACH(outputs_back, state, call->queue, s, t);
    }
    if (dr) RM_LAUNCH_EACH(weights_back, s.heads * GATES * s.width * s.width, call->queue, s, dr);
    if (dbias) rm_launch_add_columns(call->queue, rows, GATES * s.wide, GATES * s.wide, s.gates, dbias);
    launch_copy(call, rows * GATES * s.wide, s.gates, (float *)call->dx[X].data);
    for (int k = 0; k < STATES; k++) launch_copy(call, state, s.carry[k], (float *)call->dstate_in[k].data);
    launch_copy(call, rows, NULL, (float *)call->dx[RESET].data);
}
