/* running_max.c: the op `running_max`: y[t] = max(x[0], .., x[t]), element by element, PyTorch's cummax. The maximum so far is
 * carried from tile to tile, not from call to call: the first timestep of a call begins anew.
 *
 * Of several equal elements the first is the maximum; NaN counts as larger than any number. So x[t] is the maximum from t
 * on exactly if y[t] is larger than y[t-1]. Backward reads this from y and, for a tile's first timestep, from aux (B,..): 1 if
 * it is larger than the maximum of the tiles before, else 0. Each thread has its own columns. */
#include "ops/real.h"

#include "ops/op.h"
#include "ops/shape.h"

enum { SPAN = 64 /* columns that a thread computes together through the tile */ };

static remat_status infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    (void)attr;
    TRY(rm_want_real("running_max", "x", &x[0]));
    TRY(rm_want_rank("running_max", "x", &x[0], 2, REMAT_MAX_RANK));
    *y = x[0];
    *state = rm_desc_make(RM_REAL, x[0].rank - 1, x[0].dim + 1);
    return REMAT_OK;
}

static void cost(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass, remat_cost *out) {
    (void)x, (void)attr;
    *out = rm_cost_streaming(y, 1, pass == REMAT_BACKWARD ? 3 : 2);
    if (pass == REMAT_BACKWARD) out->scratch_bytes = rm_desc_bytes(y) / (uint64_t)y->dim[0];
}

static uint64_t aux_bytes(const remat_desc *x, const void *attr) {
    (void)attr;
    return rm_desc_bytes(x) / (uint64_t)x->dim[0];
}

static bool is_larger(real now, real before) { return now > before || (now != now && before == before); }

static int64_t columns_of(const remat_call *call) { return rm_desc_count(&call->x[0].desc) / call->x[0].desc.dim[0]; }

static void forward_span(const remat_call *call, int64_t columns, int64_t from, int64_t to) {
    const real *x = call->x[0].data, *most = call->t0 ? call->state_in[0].data : NULL;
    real *y = call->y.data, *out = call->state_out[0].data;
    real *aux = call->aux;
    for (int64_t i = from; aux && i < to; i++) aux[i] = !most || is_larger(x[i], most[i]);
    for (int64_t t = 0; t < call->x[0].desc.dim[0]; t++, most = y, x += columns, y += columns)
        for (int64_t i = from; i < to; i++) y[i] = !most || is_larger(x[i], most[i]) ? x[i] : most[i];
    for (int64_t i = from; i < to; i++) out[i] = most[i];
}

static void forward(const remat_call *call) {
    const int64_t columns = columns_of(call);
    RM_PARALLEL_FOR(call->threads, rm_desc_count(&call->x[0].desc) > RM_PARALLEL_MIN_HEAVY,
                    for (int64_t from = 0; from < columns; from += SPAN)
                        forward_span(call, columns, from, from + SPAN < columns ? from + SPAN : columns););
}

/* d, scratch: the gradient of the maximum so far, from later timesteps. It ends where this maximum began. */
static void backward_span(const remat_call *call, int64_t columns, int64_t from, int64_t to) {
    const real *y = call->y.data, *dy = call->dy.data, *d_out = call->dstate_out[0].data, *aux = call->aux;
    real *d = call->scratch, *dx = call->dx[0].data, *d_in = call->dstate_in[0].data;
    for (int64_t i = from; i < to; i++) d[i] = d_out ? d_out[i] : 0;
    for (int64_t t = call->x[0].desc.dim[0] - 1; t >= 0; t--) {
        const real *now = y + t * columns;
        for (int64_t i = from; i < to; i++) {
            bool begins = t ? is_larger(now[i], now[i - columns]) : aux[i] > 0;
            real all = d[i] + dy[t * columns + i];
            if (dx) dx[t * columns + i] = begins ? all : 0;
            d[i] = begins ? 0 : all;
        }
    }
    for (int64_t i = from; d_in && i < to; i++) d_in[i] = d[i];
}

static void backward(const remat_call *call) {
    const int64_t columns = columns_of(call);
    RM_PARALLEL_FOR(call->threads, rm_desc_count(&call->x[0].desc) > RM_PARALLEL_MIN_HEAVY,
                    for (int64_t from = 0; from < columns; from += SPAN)
                        backward_span(call, columns, from, from + SPAN < columns ? from + SPAN : columns););
}

static const remat_sample samples[] = {
    {.name = "sequence", .sequence = true, .x = {RM_SHAPE3(RM_REAL, 6, 2, 7)}},
    {.name = "one timestep", .sequence = true, .x = {RM_SHAPE3(RM_REAL, 1, 3, 2)}},
    {.name = "no width", .sequence = true, .x = {RM_SHAPE2(RM_REAL, 5, 3)}},
    {.name = "large enough for threads", .sequence = true, .x = {RM_SHAPE3(RM_REAL, 60, 1, 280)}},
};

const remat_op RM_OP(running_max) = {
    .struct_bytes = sizeof(remat_op),
    .name = "running_max",
    .doc = "y[t] = max(x[0], .., x[t]), element by element; x (T,B,..)",
    .n_in = 1,
    .n_state = 1,
    .state_name = {"max"},
    .time = REMAT_TIME_RECURRENT,
    .saves = {.out = true},
    .infer = infer,
    .cost = cost,
    .aux_bytes = aux_bytes,
    .define_forward = forward,
    .define_backward = backward,
    .on = {{.forward = forward, .backward = backward}, RM_CUDA_KERNELS(running_max)},
    .samples = samples,
    .n_samples = sizeof samples / sizeof *samples,
    .within_call = 1,
};
