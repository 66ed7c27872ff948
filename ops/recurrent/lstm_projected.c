/* lstm_projected.c: the op `lstm_projected`: an LSTM whose h is a projection of the cell's output m (LSTMP, Sak et al.
 * 2014; PyTorch's nn.LSTM(proj_size=P)): h has P numbers, c has H.
 *
 *   i f g o, c'  as in lstm.c, of an h of P numbers         m = o tanh(c')         h' = m W_hr^T
 *
 * It is a separate op, not an attribute of `lstm`, because the kernels of `lstm` assume that h, c and the gates have
 * the same width and that threads synchronise once per timestep. Here a timestep is a product, a loop and a product
 * (gemm.h), in forward and in backward. It shares with lstm the mathematics of a unit (cpu/projected.c).
 *
 * aux, from forward to backward: gates (tau,B,4H), activated, i f g o; then c (tau,B,H). m is recomputed from o and
 * c. A forward pass that keeps nothing has all gates of the tile in scratch, so that the products with x are the
 * same calls and have the same bits. There is no rebuild: timestep by timestep, it would cost as much as forward,
 * except for the product with w_hr. An embedding is not folded in. Where reset[t,b] > 0, h and c before that
 * timestep are zeros, as in lstm.c. */
#include "ops/real.h"

#include <string.h>

#include "ops/math/gemm.h"
#include "ops/math/parallel.h"
#include "ops/op.h"
#include "ops/cpu/kernels.h"
#include "ops/recurrent/cell_math.h"
#include "ops/shape.h"

enum { X, W_IH, W_HH, B_IH, B_HH, W_HR, RESET, INPUTS };
enum { I, F, G, O, GATES };
enum { STATE_H, STATE_C, STATES };

/* ---- Shapes and costs ------------------------------------------------------------------------------ */

static remat_status infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    (void)attr;
    static const int matrices[] = {W_IH, W_HH, W_HR};
    static const char *const name[] = {"w_ih", "w_hh", "w_hr"};
    TRY(rm_want_real("lstm_projected", "x", &x[X]));
    TRY(rm_want_rank("lstm_projected", "x", &x[X], 3, 3));
    for (int i = 0; i < 3; i++) {
        TRY(rm_want_real("lstm_projected", name[i], &x[matrices[i]]));
        TRY(rm_want_rank("lstm_projected", name[i], &x[matrices[i]], 2, 2));
    }
    int64_t width = x[W_HR].dim[0], hidden = x[W_HR].dim[1], wide = GATES * hidden, features = x[X].dim[2];
    char a[REMAT_DESC_TEXT], b[REMAT_DESC_TEXT];
    REQUIRE(x[W_HH].dim[0] == wide && x[W_HH].dim[1] == width, INVALID,
            "lstm_projected: w_hr is %s and w_hh is %s; of w_hr (P,H), w_hh must be (4H,P) = (%lld,%lld)",
            rm_desc_text(&x[W_HR], a), rm_desc_text(&x[W_HH], b), (long long)wide, (long long)width);
    REQUIRE(x[W_IH].dim[0] == wide && x[W_IH].dim[1] == features, INVALID,
            "lstm_projected: w_ih is %s; here it must be (4H, features of x) = (%lld,%lld)", rm_desc_text(&x[W_IH], a),
            (long long)wide, (long long)features);
    if (x[B_IH].rank >= 0) TRY(rm_want_vector("lstm_projected", "b_ih", &x[B_IH], wide));
    if (x[B_HH].rank >= 0) TRY(rm_want_vector("lstm_projected", "b_hh", &x[B_HH], wide));
    if (x[RESET].rank >= 0) TRY(rm_want_reset("lstm_projected", &x[RESET], &x[X]));
    *y = rm_desc_make(RM_REAL, 3, (int64_t[]){x[X].dim[0], x[X].dim[1], width});
    state[STATE_H] = rm_desc_make(RM_REAL, 2, (int64_t[]){x[X].dim[1], width});
    state[STATE_C] = rm_desc_make(RM_REAL, 2, (int64_t[]){x[X].dim[1], hidden});
    return REMAT_OK;
}

static uint64_t aux_bytes(const remat_desc *x, const void *attr) {
    (void)attr;
    return (uint64_t)(x[X].dim[0] * x[X].dim[1] * (GATES + 1) * x[W_HR].dim[1]) * sizeof(real);
}

/* Forward: the gates, unless they are kept, and m of a timestep. Backward: dh and m of all timesteps, dm and dc of
 * a timestep. With resets also h before a timestep, including zeros; in backward that of all timesteps. */
static uint64_t scratch_bytes(const remat_desc *x, const void *attr, remat_pass pass, bool aux, int threads) {
    (void)attr, (void)threads;
    int64_t batch = x[X].dim[1], rows = x[X].dim[0] * batch, width = x[W_HR].dim[0], hidden = x[W_HR].dim[1];
    int64_t before = x[RESET].rank < 0 ? 0 : width;
    int64_t forward = (aux ? 0 : rows * GATES * hidden) + batch * (hidden + before);
    int64_t backward = rows * (hidden + width + before) + 2 * batch * hidden;
    return (uint64_t)(pass == REMAT_BACKWARD ? backward : forward) * sizeof(real);
}

static void cost(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass, remat_cost *out) {
    double rows = (double)x[X].dim[0] * (double)x[X].dim[1], passes = pass == REMAT_BACKWARD ? 2 : 1;
    double weights = (double)(rm_desc_count(&x[W_IH]) + rm_desc_count(&x[W_HH]) + rm_desc_count(&x[W_HR]));
    *out = (remat_cost){
        .flops = passes * 2 * rows * weights + (pass == REMAT_BACKWARD ? 50 : 95) * rows * (double)x[W_HR].dim[1],
        .moved_bytes = passes * (weights * sizeof(real) + (double)rm_desc_bytes(&x[X])) + (double)aux_bytes(x, attr) +
                       2 * (double)rm_desc_bytes(y),
        .scratch_bytes = scratch_bytes(x, attr, pass, false, 1),
    };
}

/* ---- A tile ----------------------------------------------------------------------------------------- */

typedef struct {
    const remat_call *call;
    int64_t tau, batch, rows, in, width, hidden, wide; /* T, B, T B, C, P, H, 4H */
    const real *x, *w_ih, *w_hh, *w_hr, *reset;        /* reset: NULL or (rows) */
    real *gates, *c;                                   /* (rows,4H), (rows,H); c is NULL where nothing is kept */
    int64_t gates_step, c_step;                        /* floats of a timestep */
} tile;

static tile tile_of(const remat_call *call) {
    const remat_desc *x = &call->x[X].desc, *w_hr = &call->x[W_HR].desc;
    tile r = {.call = call, .tau = x->dim[0], .batch = x->dim[1], .in = x->dim[2], .width = w_hr->dim[0]};
    r.hidden = w_hr->dim[1], r.wide = GATES * r.hidden, r.rows = r.tau * r.batch;
    r.x = call->x[X].data, r.w_ih = call->x[W_IH].data, r.w_hh = call->x[W_HH].data, r.w_hr = call->x[W_HR].data;
    r.reset = call->x[RESET].data;
    r.gates = call->aux ? call->aux : call->scratch;
    r.c = call->aux ? r.gates + r.rows * r.wide : NULL;
    r.gates_step = r.batch * r.wide, r.c_step = r.batch * r.hidden;
    return r;
}

static void copy(real *to, const real *from, int64_t n) {
    if (to && from) memcpy(to, from, (size_t)n * sizeof *to);
    if (to && !from) memset(to, 0, (size_t)n * sizeof *to);
}

/* Whether row b is reset at timestep t. */
static bool begins(const tile *r, int64_t t, int64_t b) { return r->reset && r->reset[t * r->batch + b] > 0; }

/* Row b of the state before timestep t: from `sequence` at t - 1, or from state_in. NULL: zeros. */
static const real *before(const real *sequence, const remat_tensor *state_in, int64_t width, const tile *r, int64_t t,
                          int64_t b) {
    if (begins(r, t, b)) return NULL;
    if (t > 0) return sequence + ((t - 1) * r->batch + b) * width;
    return state_in->data ? (const real *)state_in->data + b * width : NULL;
}

/* ---- Definitions ------------------------------------------------------------------------------------ */

static rm_lstm_gates get(const real *unit, int64_t hidden) {
    return (rm_lstm_gates){unit[I * hidden], unit[F * hidden], unit[G * hidden], unit[O * hidden]};
}
static void put(real *unit, int64_t hidden, rm_lstm_gates a) {
    unit[I * hidden] = a.i, unit[F * hidden] = a.f, unit[G * hidden] = a.g, unit[O * hidden] = a.o;
}

static real dot(const real *a, const real *b, int64_t n) {
    real sum = 0;
    for (int64_t i = 0; a && i < n; i++) sum += a[i] * b[i];
    return sum;
}

/* One row of a timestep; c may be the same array as c_before. */
static void define_row(const tile *r, const real *x, const real *h, const real *c_before, real *gates, real *c, real *m,
                       real *h_next) {
    const real *b_ih = r->call->x[B_IH].data, *b_hh = r->call->x[B_HH].data;
    for (int64_t u = 0; u < r->wide; u++)
        gates[u] = (b_ih ? b_ih[u] : 0) + (b_hh ? b_hh[u] : 0) + dot(x, r->w_ih + u * r->in, r->in) +
                   dot(h, r->w_hh + u * r->width, r->width);
    for (int64_t j = 0; j < r->hidden; j++) {
        rm_lstm_gates a = rm_lstm_activate(get(gates + j, r->hidden));
        put(gates + j, r->hidden, a);
        c[j] = rm_lstm_c(a, c_before ? c_before[j] : 0);
        m[j] = rm_lstm_h(a.o, c[j]);
    }
    for (int64_t p = 0; p < r->width; p++) h_next[p] = dot(m, r->w_hr + p * r->hidden, r->hidden);
}

static void define_forward(const remat_call *call) {
    const tile r = tile_of(call);
    real *y = call->y.data, *c_out = call->state_out[STATE_C].data;
    real *m = (real *)call->scratch + (call->aux ? 0 : r.rows * r.wide);
    for (int64_t t = 0; t < r.tau; t++)
        for (int64_t b = 0; b < r.batch; b++) {
            int64_t row = t * r.batch + b;
            const real *h = before(y, &call->state_in[STATE_H], r.width, &r, t, b);
            const real *c_before = before(r.c, &call->state_in[STATE_C], r.hidden, &r, t, b);
            if (!r.c && t > 0 && !begins(&r, t, b))
                c_before = c_out + b * r.hidden; /* nothing is kept: c is in the outgoing state */
            define_row(&r, r.x + row * r.in, h, c_before, r.gates + row * r.wide,
                       r.c ? r.c + row * r.hidden : c_out + b * r.hidden, m, y + row * r.width);
        }
    copy(call->state_out[STATE_H].data, y + (r.rows - r.batch) * r.width, r.batch * r.width);
    if (r.c) copy(c_out, r.c + (r.tau - 1) * r.c_step, r.c_step);
}

/* For one row, dh += dgates w_hh. */
static void define_dh(const tile *r, const real *dgates, real *dh) {
    for (int64_t u = 0; u < r->wide; u++)
        for (int64_t p = 0; p < r->width; p++) dh[p] += dgates[u] * r->w_hh[u * r->width + p];
}

/* Computes dx and one row's part of the weights' gradients from its dgates, dh and m. */
static void define_gradients(const tile *r, int64_t row, const real *h, const real *dgates, const real *dh,
                             const real *m) {
    const remat_call *call = r->call;
    const real *x = r->x + row * r->in;
    real *dx = call->dx[X].data, *dw_ih = call->dx[W_IH].data, *dw_hh = call->dx[W_HH].data;
    real *db_ih = call->dx[B_IH].data, *db_hh = call->dx[B_HH].data, *dw_hr = call->dx[W_HR].data;
    for (int64_t i = 0; dx && i < r->in; i++) dx[row * r->in + i] = 0;
    for (int64_t u = 0; u < r->wide; u++) {
        if (db_ih) db_ih[u] += dgates[u];
        if (db_hh) db_hh[u] += dgates[u];
        for (int64_t i = 0; dw_ih && i < r->in; i++) dw_ih[u * r->in + i] += dgates[u] * x[i];
        for (int64_t i = 0; dx && i < r->in; i++) dx[row * r->in + i] += dgates[u] * r->w_ih[u * r->in + i];
        for (int64_t p = 0; dw_hh && h && p < r->width; p++) dw_hh[u * r->width + p] += dgates[u] * h[p];
    }
    for (int64_t p = 0; dw_hr && p < r->width; p++)
        for (int64_t j = 0; j < r->hidden; j++) dw_hr[p * r->hidden + j] += dh[p] * m[j];
}

static void define_backward(const remat_call *call) {
    const tile r = tile_of(call);
    real *m = call->scratch, *dm = m + r.hidden, *dc = dm + r.hidden, *all_dh = dc + r.c_step; /* dh: (B,P) */
    real *dh_in = call->dstate_in[STATE_H].data;
    const real *dy = call->dy.data;
    copy(dc, call->dstate_out[STATE_C].data, r.c_step);
    copy(all_dh, call->dstate_out[STATE_H].data, r.batch * r.width);
    copy(call->dx[RESET].data, NULL, r.rows);
    for (int64_t t = r.tau - 1; t >= 0; t--)
        for (int64_t b = 0; b < r.batch; b++) {
            int64_t row = t * r.batch + b;
            real *dgates = r.gates + row * r.wide, *dh = all_dh + b * r.width;
            const real *c = r.c + row * r.hidden;
            const real *c_before = before(r.c, &call->state_in[STATE_C], r.hidden, &r, t, b);
            const real *h = before(call->y.data, &call->state_in[STATE_H], r.width, &r, t, b);
            for (int64_t p = 0; p < r.width; p++) dh[p] += dy[row * r.width + p];
            for (int64_t j = 0; j < r.hidden; j++) {
                rm_lstm_gates a = get(dgates + j, r.hidden);
                dm[j] = 0;
                for (int64_t p = 0; p < r.width; p++) dm[j] += dh[p] * r.w_hr[p * r.hidden + j];
                m[j] = rm_lstm_h(a.o, c[j]);
                a = rm_lstm_backward(a, c[j], c_before ? c_before[j] : 0, dm[j], &dc[b * r.hidden + j]);
                put(dgates + j, r.hidden, a);
            }
            define_gradients(&r, row, h, dgates, dh, m);
            copy(dh, NULL, r.width); /* from here on of the timestep before, as dc is */
            if (begins(&r, t, b))
                copy(dc + b * r.hidden, NULL, r.hidden);
            else
                define_dh(&r, dgates, dh);
        }
    if (dh_in) copy(dh_in, all_dh, r.batch * r.width);
    if (call->dstate_in[STATE_C].data) copy(call->dstate_in[STATE_C].data, dc, r.c_step);
}

/* ---- Fast kernels (float only) ---------------------------------------------------------------------- */

#ifdef RM_REAL_DOUBLE
#define FAST(kernel) define_##kernel
#else
#define FAST(kernel) kernel

/* C (m,n) = A B or, with beta 1, += A B; A (m,k) and B (k,n) without gaps. The product is cut into shares, which
 * depend only on its shape; any thread may compute a share. No bits depend on the number of threads. */
static void multiply(const tile *r, rm_orientation a_is, rm_orientation b_is, int64_t m, int64_t n, int64_t k,
                     const real *a, const real *b, real beta, real *c) {
    enum { GRAIN = 16, MOST = 16 };
    const int64_t lda = a_is == RM_PLAIN ? k : m, ldb = b_is == RM_PLAIN ? n : k, side = m >= n ? m : n;
    const int64_t grains = (side + GRAIN - 1) / GRAIN;
    const double share = 1 << 21; /* multiply-adds */
    int64_t shares = (int64_t)fmin(MOST, fmax(1, (double)m * (double)n * (double)k / share));
    if (shares > grains) shares = grains;
    bool open = rm_gemm_begin(r->call->threads);
    RM_PARALLEL_FOR(
        r->call->threads, shares > 1, for (int64_t i = 0; i < shares; i++) {
            int64_t from = grains * i / shares * GRAIN, to = grains * (i + 1) / shares * GRAIN;
            int64_t size = (to < side ? to : side) - from;
            if (m >= n)
                rm_gemm_alone(open, a_is, b_is, size, n, k, 1, a + from * (a_is == RM_PLAIN ? lda : 1), lda, b, ldb,
                              beta, c + from * n, n);
            else
                rm_gemm_alone(open, a_is, b_is, m, size, k, 1, a, lda, b + from * (b_is == RM_PLAIN ? 1 : ldb), ldb,
                              beta, c + from, n);
        });
    rm_gemm_end(open);
}

/* Loops over the rows of a timestep, on all threads if there are many rows. */
#define EACH_ROW(r, ...)                                                                                               \
    RM_PARALLEL_FOR((r)->call->threads, (r)->batch > 1 && (r)->c_step > RM_PARALLEL_MIN_HEAVY,                         \
                    for (int64_t b = 0; b < (r)->batch; b++) __VA_ARGS__)

/* gates = x w_ih^T + b_ih + b_hh for all rows */
static void project_input(const tile *r) {
    const real *b_ih = r->call->x[B_IH].data, *b_hh = r->call->x[B_HH].data;
    RM_PARALLEL_FOR(
        r->call->threads, r->rows * r->wide > RM_PARALLEL_MIN, for (int64_t row = 0; row < r->rows; row++) {
            real *gates = r->gates + row * r->wide;
            for (int64_t u = 0; u < r->wide; u++) gates[u] = (b_ih ? b_ih[u] : 0) + (b_hh ? b_hh[u] : 0);
        });
    multiply(r, RM_PLAIN, RM_TRANSPOSED, r->rows, r->wide, r->in, r->x, r->w_ih, 1, r->gates);
}

/* h before timestep t, (B,P), or NULL: zeros. If rows may be reset, it is copied to `to`. */
static const real *h_before(const tile *r, int64_t t, real *to) {
    const remat_tensor *h_in = &r->call->state_in[STATE_H], *y = &r->call->y;
    if (!r->reset) return t ? (const real *)y->data + (t - 1) * r->batch * r->width : h_in->data;
    for (int64_t b = 0; b < r->batch; b++) copy(to + b * r->width, before(y->data, h_in, r->width, r, t, b), r->width);
    return to;
}

static void forward(const remat_call *call) {
    const tile r = tile_of(call);
    real *y = call->y.data, *c_out = call->state_out[STATE_C].data;
    real *m = (real *)call->scratch + (call->aux ? 0 : r.rows * r.wide), *masked = m + r.c_step;
    const real *c_before = call->state_in[STATE_C].data; /* NULL: zeros */
    const rm_projected_rows *rows = rm_cell_kernels_get()->projected;
    project_input(&r);
    for (int64_t t = 0; t < r.tau; t++) {
        real *gates = r.gates + t * r.gates_step, *c = r.c ? r.c + t * r.c_step : c_out;
        const real *h = h_before(&r, t, masked);
        if (h) multiply(&r, RM_PLAIN, RM_TRANSPOSED, r.batch, r.wide, r.width, h, r.w_hh, 1, gates);
        EACH_ROW(&r, rows->forward(r.hidden, gates + b * r.wide,
                                   c_before && !begins(&r, t, b) ? c_before + b * r.hidden : NULL, c + b * r.hidden,
                                   m + b * r.hidden););
        multiply(&r, RM_PLAIN, RM_TRANSPOSED, r.batch, r.width, r.hidden, m, r.w_hr, 0, y + t * r.batch * r.width);
        c_before = c;
    }
    copy(call->state_out[STATE_H].data, y + (r.rows - r.batch) * r.width, r.batch * r.width);
    if (r.c) copy(c_out, c_before, r.c_step);
}

/* ---- Backward ---------------------------------------------------------------------------------------- */

/* Each column of dgates is summed in the order of the rows, whatever the number of threads. */
static void add_biases(const tile *r) {
    enum { COLUMNS = 64 };
    real *db_ih = r->call->dx[B_IH].data, *db_hh = r->call->dx[B_HH].data;
    if (!db_ih && !db_hh) return;
    RM_PARALLEL_FOR(
        r->call->threads, r->rows * r->wide > RM_PARALLEL_MIN, for (int64_t u = 0; u < r->wide; u += COLUMNS) {
            int64_t n = r->wide - u < COLUMNS ? r->wide - u : COLUMNS;
            real sum[COLUMNS] = {0};
            for (int64_t row = 0; row < r->rows; row++)
                for (int64_t j = 0; j < n; j++) sum[j] += r->gates[row * r->wide + u + j];
            for (int64_t j = 0; db_ih && j < n; j++) db_ih[u + j] += sum[j];
            for (int64_t j = 0; db_hh && j < n; j++) db_hh[u + j] += sum[j];
        });
}

/* Computes the other gradients from dgates, dh and m of the whole tile. masked (rows,P): scratch for h before each
 * timestep. */
static void add_gradients(const tile *r, const real *dh, const real *m, real *masked) {
    const remat_call *call = r->call;
    const int64_t h_step = r->batch * r->width;
    const real *h_in = h_before(r, 0, masked), *h = r->reset ? masked + h_step : call->y.data, *dgates = r->gates;
    for (int64_t t = 1; r->reset && t < r->tau; t++) h_before(r, t, masked + t * h_step);
    real *dx = call->dx[X].data, *dw_ih = call->dx[W_IH].data, *dw_hh = call->dx[W_HH].data;
    real *dw_hr = call->dx[W_HR].data;
    if (dx) multiply(r, RM_PLAIN, RM_PLAIN, r->rows, r->in, r->wide, dgates, r->w_ih, 0, dx);
    if (dw_ih) multiply(r, RM_TRANSPOSED, RM_PLAIN, r->wide, r->in, r->rows, dgates, r->x, 1, dw_ih);
    if (dw_hr) multiply(r, RM_TRANSPOSED, RM_PLAIN, r->width, r->hidden, r->rows, dh, m, 1, dw_hr);
    if (dw_hh && h_in) multiply(r, RM_TRANSPOSED, RM_PLAIN, r->wide, r->width, r->batch, dgates, h_in, 1, dw_hh);
    if (dw_hh && r->tau > 1)
        multiply(r, RM_TRANSPOSED, RM_PLAIN, r->wide, r->width, r->rows - r->batch, dgates + r->gates_step, h, 1,
                 dw_hh);
    add_biases(r);
}

/* Replaces the rows of `to` (B,width) that are reset at timestep t by those of `from`, or by zeros. */
static void restart(const tile *r, int64_t t, int64_t width, const real *from, real *to) {
    for (int64_t b = 0; r->reset && b < r->batch; b++)
        if (begins(r, t, b)) copy(to + b * width, from ? from + b * width : NULL, width);
}

/* dh of timestep t: dy plus the gradient from t + 1. */
static void gather_dh(const tile *r, int64_t t, real *dh) {
    int64_t n = r->batch * r->width;
    const real *dh_out = r->call->dstate_out[STATE_H].data, *dy = (const real *)r->call->dy.data + t * n;
    copy(dh, dy, n);
    if (t + 1 == r->tau) {
        for (int64_t i = 0; dh_out && i < n; i++) dh[i] += dh_out[i];
        return;
    }
    multiply(r, RM_PLAIN, RM_PLAIN, r->batch, r->width, r->wide, r->gates + (t + 1) * r->gates_step, r->w_hh, 1, dh);
    restart(r, t + 1, r->width, dy, dh);
}

static void backward(const remat_call *call) {
    const tile r = tile_of(call);
    real *all_m = call->scratch, *dm = all_m + r.rows * r.hidden, *dc = dm + r.c_step, *all_dh = dc + r.c_step;
    real *dh_in = call->dstate_in[STATE_H].data;
    const rm_projected_rows *rows = rm_cell_kernels_get()->projected;
    copy(dc, call->dstate_out[STATE_C].data, r.c_step);
    for (int64_t t = r.tau - 1; t >= 0; t--) {
        real *gates = r.gates + t * r.gates_step, *dh = all_dh + t * r.batch * r.width, *m = all_m + t * r.c_step;
        const real *c = r.c + t * r.c_step, *c_before = t ? c - r.c_step : call->state_in[STATE_C].data;
        gather_dh(&r, t, dh);
        multiply(&r, RM_PLAIN, RM_PLAIN, r.batch, r.hidden, r.width, dh, r.w_hr, 0, dm);
        EACH_ROW(&r, rows->backward(r.hidden, gates + b * r.wide,
                                    c_before && !begins(&r, t, b) ? c_before + b * r.hidden : NULL, c + b * r.hidden,
                                    dm + b * r.hidden, dc + b * r.hidden, m + b * r.hidden););
        restart(&r, t, r.hidden, NULL, dc);
    }
    if (dh_in) {
        multiply(&r, RM_PLAIN, RM_PLAIN, r.batch, r.width, r.wide, r.gates, r.w_hh, 0, dh_in);
        restart(&r, 0, r.width, NULL, dh_in);
    }
    if (call->dstate_in[STATE_C].data) copy(call->dstate_in[STATE_C].data, dc, r.c_step);
    copy(call->dx[RESET].data, NULL, r.rows);
    add_gradients(&r, all_dh, all_m, all_dh + r.rows * r.width);
}

#endif

#define WEIGHTS(C, H, P) RM_SHAPE2(RM_REAL, 4 * (H), C), RM_SHAPE2(RM_REAL, 4 * (H), P)
static const remat_sample samples[] = {
    {.name = "biases",
     .sequence = true,
     .x = {RM_SHAPE3(RM_REAL, 5, 3, 4), WEIGHTS(4, 7, 3), RM_SHAPE1(RM_REAL, 28), RM_SHAPE1(RM_REAL, 28),
           RM_SHAPE2(RM_REAL, 3, 7), RM_ABSENT}},
    {.name = "no biases",
     .sequence = true,
     .x = {RM_SHAPE3(RM_REAL, 3, 2, 5), WEIGHTS(5, 3, 2), RM_ABSENT, RM_ABSENT, RM_SHAPE2(RM_REAL, 2, 3), RM_ABSENT}},
    {.name = "one bias, several vectors of units",
     .sequence = true,
     .x = {RM_SHAPE3(RM_REAL, 3, 5, 2), WEIGHTS(2, 18, 5), RM_ABSENT, RM_SHAPE1(RM_REAL, 72), RM_SHAPE2(RM_REAL, 5, 18),
           RM_ABSENT}},
    {.name = "resets",
     .sequence = true,
     .x = {RM_SHAPE3(RM_REAL, 6, 5, 4), WEIGHTS(4, 7, 3), RM_SHAPE1(RM_REAL, 28), RM_SHAPE1(RM_REAL, 28),
           RM_SHAPE2(RM_REAL, 3, 7), RM_SHAPE2(RM_REAL, 6, 5)}},
    {.name = "one of everything",
     .sequence = true,
     .x = {RM_SHAPE3(RM_REAL, 1, 1, 1), WEIGHTS(1, 1, 1), RM_SHAPE1(RM_REAL, 4), RM_ABSENT, RM_SHAPE2(RM_REAL, 1, 1),
           RM_ABSENT}},
    {.name = "large enough for threads and the library",
     .sequence = true,
     .x = {RM_SHAPE3(RM_REAL, 3, 40, 3), WEIGHTS(3, 112, 60), RM_SHAPE1(RM_REAL, 448), RM_SHAPE1(RM_REAL, 448),
           RM_SHAPE2(RM_REAL, 60, 112), RM_SHAPE2(RM_REAL, 3, 40)}},
};

const remat_op RM_OP(lstm_projected) = {
    .struct_bytes = sizeof(remat_op),
    .name = "lstm_projected",
    .doc =
        "y (T,B,P) = h of an LSTM with projection over x (T,B,C); w_ih (4H,C), w_hh (4H,P), b_ih (4H), b_hh (4H); w_hr "
        "(P,H)",
    .n_in = INPUTS,
    .n_state = STATES,
    .optional = 1u << B_IH | 1u << B_HH | 1u << RESET,
    .resets = 1u << RESET,
    .shared = 1u << W_IH | 1u << W_HH | 1u << B_IH | 1u << B_HH | 1u << W_HR,
    .time = REMAT_TIME_RECURRENT,
    .saves = {.in = 1u << X | 1u << W_IH | 1u << W_HH | 1u << W_HR | 1u << RESET, .out = true, .state = true},
    .infer = infer,
    .cost = cost,
    .aux_bytes = aux_bytes,
    .define_forward = define_forward,
    .define_backward = define_backward,
    .on = {{.forward = FAST(forward), .backward = FAST(backward), .scratch_bytes = scratch_bytes},
           {.forward = RM_CUDA(lstm_projected, forward),
            .backward = RM_CUDA(lstm_projected, backward),
            .scratch_bytes = scratch_bytes}},
    .samples = samples,
    .n_samples = sizeof samples / sizeof *samples,
};
