/* recurrent.c: code shared by the ops of cells.def (recurrent.h): shapes, costs, and the loops that their
 * readable definitions have in common, in float and in double. call.c calls the fast kernels. */
#include "ops/real.h"

#include "ops/recurrent/recurrent.h"

rm_recurrent rm_recurrent_of(const remat_call *call) {
    const remat_desc *x = &call->x[RM_X].desc, *w_hh = &call->x[RM_W_HH].desc;
    bool folded = x->dtype == REMAT_I32;
    return (rm_recurrent){
        .tau = x->dim[0],
        .batch = x->dim[1],
        .in = folded ? 0 : x->dim[2],
        .hidden = w_hh->dim[1],
        .gates = (int)(w_hh->dim[0] / w_hh->dim[1]),
        .token = folded ? call->x[RM_X].data : NULL,
        .x = folded ? NULL : call->x[RM_X].data,
        .w_ih = call->x[RM_W_IH].data,
        .w_hh = call->x[RM_W_HH].data,
        .b_ih = call->x[RM_B_IH].desc.rank < 0 ? NULL : call->x[RM_B_IH].data,
        .b_hh = call->x[RM_B_HH].desc.rank < 0 ? NULL : call->x[RM_B_HH].data,
        .reset = call->x[RM_RESET].desc.rank < 0 ? NULL : call->x[RM_RESET].data,
    };
}

/* ---- Shapes and costs ------------------------------------------------------------------------------ */

static remat_status want_weight(const char *cell, const char *input, const remat_desc *w, int64_t rows, int64_t columns,
                                const char *meaning) {
    char text[REMAT_DESC_TEXT];
    REQUIRE(w->dim[0] == rows && w->dim[1] == columns, INVALID, "%s: %s is %s; here it must be %s = (%lld,%lld)", cell,
            input, rm_desc_text(w, text), meaning, (long long)rows, (long long)columns);
    return REMAT_OK;
}

remat_status rm_recurrent_infer(rm_cell which, const remat_desc *x, remat_desc *y, remat_desc *state) {
    const rm_cell_layout *l = &rm_cell_layouts[which];
    const char *cell = l->op;
    const remat_desc *w_ih = &x[RM_W_IH], *w_hh = &x[RM_W_HH];
    bool folded = x[RM_X].dtype == REMAT_I32;
    TRY(rm_want_rank(cell, "x", &x[RM_X], folded ? 2 : 3, folded ? 2 : 3));
    if (!folded) TRY(rm_want_real(cell, "x", &x[RM_X]));
    TRY(rm_want_real(cell, "w_ih", w_ih));
    TRY(rm_want_rank(cell, "w_ih", w_ih, 2, 2));
    TRY(rm_want_real(cell, "w_hh", w_hh));
    TRY(rm_want_rank(cell, "w_hh", w_hh, 2, 2));

    int64_t hidden = w_hh->dim[1], wide = l->gates * hidden;
    TRY(want_weight(cell, "w_hh", w_hh, wide, hidden, "(gates*hidden, hidden)"));
    if (folded)
        TRY(want_weight(cell, "the folded table", w_ih, w_ih->dim[0], wide, "(vocabulary, gates*hidden)"));
    else
        TRY(want_weight(cell, "w_ih", w_ih, wide, x[RM_X].dim[2], "(gates*hidden, features of x)"));
    if (x[RM_B_IH].rank >= 0) TRY(rm_want_vector(cell, "b_ih", &x[RM_B_IH], wide));
    if (x[RM_B_HH].rank >= 0) TRY(rm_want_vector(cell, "b_hh", &x[RM_B_HH], wide));
    if (x[RM_RESET].rank >= 0) TRY(rm_want_reset(cell, &x[RM_RESET], &x[RM_X]));

    *y = rm_desc_make(RM_REAL, 3, (int64_t[]){x[RM_X].dim[0], x[RM_X].dim[1], hidden});
    for (int i = 0; i < l->states; i++) state[i] = rm_desc_make(RM_REAL, 2, (int64_t[]){x[RM_X].dim[1], hidden});
    return REMAT_OK;
}

int64_t rm_recurrent_bound(const remat_desc *x, const void *attr, int input) {
    (void)attr;
    return input == RM_X && x[RM_X].dtype == REMAT_I32 ? x[RM_W_IH].dim[0] : 0;
}

remat_cost rm_recurrent_cost(rm_cell cell, const remat_desc *x, remat_pass pass, double element_flops) {
    bool folded = x[RM_X].dtype == REMAT_I32;
    double rows = (double)x[RM_X].dim[0] * (double)x[RM_X].dim[1];
    double wide = (double)x[RM_W_HH].dim[0], hidden = (double)x[RM_W_HH].dim[1];
    double in = folded ? 0 : (double)x[RM_X].dim[2];
    double passes = pass == REMAT_BACKWARD ? 2 : 1; /* backward: the gradients of the weights and of the operand */
    double weights = wide * hidden + (folded ? fmin(rows, (double)x[RM_W_IH].dim[0]) * wide : wide * in);
    return (remat_cost){
        .flops = passes * 2 * rows * wide * (in + hidden) + element_flops * rows * hidden,
        .moved_bytes = passes * (weights * sizeof(real) + (double)rm_desc_bytes(&x[RM_X])),
        .scratch_bytes = pass == REMAT_REBUILD
                             ? 0
                             : rm_cell_scratch_bytes(cell, pass == REMAT_BACKWARD, folded, x[RM_X].dim[0],
                                                     x[RM_X].dim[1], (int64_t)in, x[RM_W_HH].dim[1]) /
                                   sizeof(float) * sizeof(real),
    };
}

/* A forward pass without aux: x's parts of the tile's gates, computed by one product. (A plain RNN stores them in
 * y; with a folded embedding they are read from the table.) Backward of a plain RNN: the gradients of its sums,
 * which have no other place. With resets also the states before each timestep, including zeros. */
uint64_t rm_recurrent_cuda_scratch_bytes(rm_cell cell, const remat_desc *x, remat_pass pass, bool aux) {
    const rm_cell_layout *l = &rm_cell_layouts[cell];
    bool folded = x[RM_X].dtype == REMAT_I32;
    int64_t rows = x[RM_X].dim[0] * x[RM_X].dim[1], hidden = x[RM_W_HH].dim[1];
    bool needed = pass == REMAT_FORWARD ? !aux && !folded && l->keeps : pass == REMAT_BACKWARD && !l->keeps;
    uint64_t sums = needed ? (uint64_t)(rows * l->columns * hidden) * sizeof(real) : 0;
    bool resets = pass == REMAT_BACKWARD && x[RM_RESET].rank >= 0;
    return resets ? rm_align_up(sums) + (uint64_t)(rows * hidden) * sizeof(real) : sums;
}

/* A list of addresses; gates (B,columns*H); h and, for an lstm, c, or their gradients, (B,H). */
uint64_t rm_recurrent_cuda_fixed_bytes(rm_cell cell, const remat_desc *x) {
    enum { ARRAYS = 256 };
    uint64_t state = (uint64_t)(x[RM_X].dim[1] * x[RM_W_HH].dim[1]) * sizeof(real);
    const rm_cell_layout *l = &rm_cell_layouts[cell];
    return ARRAYS + rm_align_up((uint64_t)l->columns * state) + (uint64_t)l->states * rm_align_up(state);
}

/* ---- Definitions ------------------------------------------------------------------------------------ */

real rm_recurrent_input(const rm_recurrent *r, int64_t t, int64_t b, int64_t u) {
    int64_t row = t * r->batch + b;
    real sum = r->b_ih ? r->b_ih[u] : 0;
    if (r->token) return sum + r->w_ih[r->token[row] * r->gates * r->hidden + u];
    for (int64_t c = 0; c < r->in; c++) sum += r->x[row * r->in + c] * r->w_ih[u * r->in + c];
    return sum;
}

real rm_recurrent_hidden(const rm_recurrent *r, const real *h, int64_t u) {
    real sum = r->b_hh ? r->b_hh[u] : 0;
    for (int64_t k = 0; h && k < r->hidden; k++) sum += h[k] * r->w_hh[u * r->hidden + k];
    return sum;
}

bool rm_recurrent_begins(const rm_recurrent *r, int64_t t, int64_t b) {
    return r->reset && r->reset[t * r->batch + b] > 0;
}

const real *rm_recurrent_previous(const rm_recurrent *r, const real *sequence, const remat_tensor *state_in, int64_t t,
                                  int64_t b) {
    if (rm_recurrent_begins(r, t, b)) return NULL;
    if (t > 0) return sequence + ((t - 1) * r->batch + b) * r->hidden;
    return state_in->data ? (const real *)state_in->data + b * r->hidden : NULL;
}

void rm_recurrent_define_dh(const rm_recurrent *r, const rm_dgates *d, int64_t t, real *dh) {
    int64_t hidden = r->hidden;
    for (int64_t b = 0; b < r->batch; b++)
        for (int g = 0; g < r->gates && !rm_recurrent_begins(r, t, b); g++)
            for (int64_t j = 0; j < hidden; j++) {
                real dgate = d->dgates[(t * r->batch + b) * d->width + d->h_part[g] * hidden + j];
                const real *w = r->w_hh + (g * hidden + j) * hidden;
                for (int64_t k = 0; k < hidden; k++) dh[b * hidden + k] += dgate * w[k];
            }
}

/* pre = x w_ih^T + b_ih: adds the gradient of pre of one row and gate unit u to row u of dw_ih, to db_ih and to dx. */
static void define_input_gradient(const remat_call *call, const rm_recurrent *r, int64_t row, int64_t u, real dpre) {
    real *dw_ih = call->dx[RM_W_IH].data, *db_ih = call->dx[RM_B_IH].data, *dx = call->dx[RM_X].data;
    if (db_ih) db_ih[u] += dpre;
    if (dw_ih && r->token) dw_ih[r->token[row] * r->gates * r->hidden + u] += dpre;
    for (int64_t c = 0; dw_ih && c < r->in; c++) dw_ih[u * r->in + c] += dpre * r->x[row * r->in + c];
    for (int64_t c = 0; dx && c < r->in; c++) dx[row * r->in + c] += dpre * r->w_ih[u * r->in + c];
}

/* pre = h w_hh^T + b_hh */
static void define_hidden_gradient(const remat_call *call, const rm_recurrent *r, const real *h, int64_t u, real dpre) {
    real *dw_hh = call->dx[RM_W_HH].data, *db_hh = call->dx[RM_B_HH].data;
    if (db_hh) db_hh[u] += dpre;
    for (int64_t k = 0; h && dw_hh && k < r->hidden; k++) dw_hh[u * r->hidden + k] += dpre * h[k];
}

void rm_recurrent_define_gradients(const remat_call *call, const rm_recurrent *r, const rm_dgates *d) {
    real *dx = call->dx[RM_X].data, *dreset = call->dx[RM_RESET].data;
    for (int64_t i = 0; dreset && i < r->tau * r->batch; i++) dreset[i] = 0;
    for (int64_t i = 0; dx && i < r->tau * r->batch * r->in; i++) dx[i] = 0;
    for (int64_t t = 0; t < r->tau; t++)
        for (int64_t b = 0; b < r->batch; b++) {
            int64_t row = t * r->batch + b;
            const real *dgates = d->dgates + row * d->width;
            const real *h = rm_recurrent_previous(r, call->y.data, &call->state_in[0], t, b);
            for (int g = 0; g < r->gates; g++)
                for (int64_t j = 0; j < r->hidden; j++) {
                    int64_t u = g * r->hidden + j;
                    define_input_gradient(call, r, row, u, dgates[d->x_part[g] * r->hidden + j]);
                    define_hidden_gradient(call, r, h, u, dgates[d->h_part[g] * r->hidden + j]);
                }
        }
}
