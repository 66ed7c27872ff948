/* Backward reads forward's outgoing state, which is not saved for it: h[t] = h[t-1]/2 + x[t], y = h. */
#include "ops/real.h"

#include "ops/op.h"
#include "ops/shape.h"

static remat_status infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    (void)attr;
    TRY(rm_want_real("mutant", "x", &x[0]));
    *y = x[0];
    state[0] = rm_desc_make(x[0].dtype, 1, &x[0].dim[1]);
    return REMAT_OK;
}

static void cost(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass, remat_cost *out) {
    (void)x, (void)attr, (void)pass;
    *out = rm_cost_streaming(y, 2, 2);
}

static void forward(const remat_call *call) {
    const real *x = call->x[0].data, *before = call->state_in[0].data;
    real *y = call->y.data, *after = call->state_out[0].data;
    int64_t steps = call->y.desc.dim[0], b = call->y.desc.dim[1];
    for (int64_t i = 0; i < steps * b; i++) y[i] = x[i] + (i >= b ? y[i - b] : before ? before[i] : 0) / 2;
    for (int64_t i = 0; i < b; i++) after[i] = y[(steps - 1) * b + i];
}

static void backward(const remat_call *call) {
    const real *dy = call->dy.data, *d_after = call->dstate_out[0].data, *after = call->state_out[0].data;
    real *dx = call->dx[0].data, *d_before = call->dstate_in[0].data;
    int64_t steps = call->dy.desc.dim[0], b = call->dy.desc.dim[1];
    for (int64_t j = 0; j < b; j++) {
        real dh = (d_after ? d_after[j] : 0) + 0 * after[j];
        for (int64_t t = steps - 1; t >= 0; t--) {
            dh += dy[t * b + j];
            if (dx) dx[t * b + j] = dh;
            dh /= 2;
        }
        if (d_before) d_before[j] = dh;
    }
}

static const remat_sample samples[] = {{.name = "sequence", .sequence = true, .x = {RM_SHAPE2(RM_REAL, 7, 5)}}};

const remat_op RM_OP(outgoing_state) = {
    .struct_bytes = sizeof(remat_op),
    .name = "mutant",
    .doc = "outgoing_state",
    .n_in = 1,
    .n_state = 1,
    .time = REMAT_TIME_RECURRENT,
    .infer = infer,
    .cost = cost,
    .on[REMAT_ON_CPU].forward = forward,
    .on[REMAT_ON_CPU].backward = backward,
    .samples = samples,
    .n_samples = 1,
};
