/* test_cells.c: compares the fast recurrent kernels with the readable definitions, for odd sizes and every instruction
 * set of this machine; and checks that their bits do not depend on threads, tiles or saved gates.
 *
 * Tolerance: definition and kernel round sums of up to rows or 4H products in different places; the bound is 400 float
 * epsilons of the array's largest element, or of 0.05 if all are smaller (after a saturated tanh a gradient contains
 * the difference 1 - h^2, whose error does not shrink with it). Kernels in bf16 round each operand by up to 2^-8 of its
 * value: their bound is 2^-4 of an array's norm, or the bound of floats if all operands are representable in bf16.
 * Everything else is compared bit for bit.
 */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ops/cpu/kernels.h"
#include "ops/op.h"
#include "ops/recurrent/recurrent.h"
#include "tests/sanitized.h"
#include "tests/suite.h"

enum { Y, H_OUT, C_OUT, DX, DW_IH, DW_HH, DB_IH, DB_HH, DH_IN, DC_IN, ARRAYS };
static const char *const array_name[ARRAYS] = {"y",     "h_out", "c_out", "dx",    "dw_ih",
                                               "dw_hh", "db_ih", "db_hh", "dh_in", "dc_in"};
enum { VOCABULARY = 5 };

typedef struct {
    const remat_op *op;
    int64_t gates, tau, batch, in, hidden;
    bool folded, bias_ih, bias_hh, state; /* state: non-zero incoming states and gradients of the outgoing ones */
    bool resets;                          /* about one row in four is reset, at every timestep */
    bool in_bf16;                         /* all inputs are representable in bf16 */
} problem;

typedef struct {
    float *array[ARRAYS];
    int64_t count[ARRAYS];
} result;

/* Exactly of the requested size, so that a sanitizer detects access past the end. */
static void *take(int64_t bytes) {
    void *p = NULL;
    ck_assert_int_eq(posix_memalign(&p, RM_ALIGN, (size_t)(bytes > 0 ? bytes : 1)), 0);
    return p;
}

/* Uniform in [-bound, bound), a function of (salt, i). */
static float *draw(int64_t count, float bound, uint32_t salt) {
    float *x = take(count * 4);
    for (int64_t i = 0; i < count; i++) {
        uint32_t u = ((uint32_t)i + 1) * 2654435761u ^ salt * 40503u;
        u ^= u >> 15, u *= 2246822519u, u ^= u >> 13, u *= 3266489917u, u ^= u >> 16;
        x[i] = ((float)(u >> 8) * 0x1p-23f - 1) * bound;
    }
    return x;
}

static int32_t *draw_tokens(int64_t count) {
    int32_t *token = take(count * 4);
    for (int64_t i = 0; i < count; i++) token[i] = (int32_t)((i * 7 + i / 3) % VOCABULARY);
    return token;
}

static remat_tensor tensor(remat_dtype dtype, void *data, int rank, int64_t a, int64_t b, int64_t c) {
    return (remat_tensor){{dtype, rank, {a, rank > 1 ? b : 1, rank > 2 ? c : 1, 1}}, data};
}

static void result_free(result *r) {
    for (int i = 0; i < ARRAYS; i++) free(r->array[i]);
}

/* Rounds towards zero: keeps the upper 16 bits. */
static void shorten(remat_call *call) {
    remat_tensor *t[] = {&call->x[0], &call->x[1], &call->x[2], &call->state_in[0]};
    for (int i = 0; i < 4; i++)
        for (int64_t j = 0; t[i]->data && t[i]->desc.dtype == REMAT_F32 && j < rm_desc_count(&t[i]->desc); j++)
            memset((float *)t[i]->data + j, 0, 2); /* all machines with these kernels are little-endian */
}

static remat_call make_inputs(const problem *p) {
    int64_t wide = p->gates * p->hidden;
    float bound = 1.5f / sqrtf((float)p->hidden);
    remat_call call = {.t_total = p->tau, .training = true};
    call.x[0] = p->folded ? tensor(REMAT_I32, draw_tokens(p->tau * p->batch), 2, p->tau, p->batch, 1)
                          : tensor(REMAT_F32, draw(p->tau * p->batch * p->in, 1, 1), 3, p->tau, p->batch, p->in);
    int64_t rows = p->folded ? VOCABULARY : wide, columns = p->folded ? wide : p->in;
    call.x[1] = tensor(REMAT_F32, draw(rows * columns, p->folded ? 1 : bound, 2), 2, rows, columns, 1);
    call.x[2] = tensor(REMAT_F32, draw(wide * p->hidden, bound, 3), 2, wide, p->hidden, 1);
    call.x[3] = tensor(REMAT_F32, p->bias_ih ? draw(wide, 0.5f, 4) : NULL, p->bias_ih ? 1 : -1, wide, 1, 1);
    call.x[4] = tensor(REMAT_F32, p->bias_hh ? draw(wide, 0.5f, 5) : NULL, p->bias_hh ? 1 : -1, wide, 1, 1);
    float *reset = p->resets ? draw(p->tau * p->batch, 1, 11) : NULL;
    for (int64_t i = 0; reset && i < p->tau * p->batch; i++) reset[i] -= 0.5f;
    call.x[5] = tensor(REMAT_F32, reset, p->resets ? 2 : -1, p->tau, p->batch, 1);
    call.dy = tensor(REMAT_F32, draw(p->tau * p->batch * p->hidden, 1, 6), 3, p->tau, p->batch, p->hidden);
    for (int i = 0; i < p->op->n_state; i++) {
        int64_t n = p->batch * p->hidden;
        call.state_in[i] = tensor(REMAT_F32, p->state ? draw(n, 1, 7 + i) : NULL, 2, p->batch, p->hidden, 1);
        call.dstate_out[i] = tensor(REMAT_F32, p->state ? draw(n, 1, 9 + i) : NULL, 2, p->batch, p->hidden, 1);
    }
    if (p->in_bf16) shorten(&call);
    return call;
}

static void free_inputs(remat_call *call) {
    for (int i = 0; i < REMAT_MAX_INPUTS; i++) free(call->x[i].data);
    for (int i = 0; i < REMAT_MAX_STATES; i++) free(call->state_in[i].data), free(call->dstate_out[i].data);
    free(call->dy.data);
}

/* Gradients of weights start from random numbers, because kernels add to them. */
static result make_outputs(const problem *p, remat_call *call) {
    int64_t wide = p->gates * p->hidden, state = p->batch * p->hidden;
    int64_t count[ARRAYS] = {p->tau * state,
                             state,
                             p->op->n_state > 1 ? state : 0,
                             p->folded ? 0 : p->tau * p->batch * p->in,
                             rm_desc_count(&call->x[1].desc),
                             wide * p->hidden,
                             p->bias_ih ? wide : 0,
                             p->bias_hh ? wide : 0,
                             state,
                             p->op->n_state > 1 ? state : 0};
    result r = {0};
    for (int i = 0; i < ARRAYS; i++) {
        r.count[i] = count[i];
        if (count[i]) r.array[i] = i >= DW_IH && i <= DB_HH ? draw(count[i], 1, 20) : take(count[i] * 4);
        if (count[i] && !(i >= DW_IH && i <= DB_HH)) memset(r.array[i], 0xff, (size_t)count[i] * 4); /* NaN */
    }
    call->y = tensor(REMAT_F32, r.array[Y], 3, p->tau, p->batch, p->hidden);
    for (int i = 0; i < p->op->n_state; i++) {
        call->state_out[i] = tensor(REMAT_F32, r.array[H_OUT + i], 2, p->batch, p->hidden, 1);
        call->dstate_in[i] = tensor(REMAT_F32, r.array[DH_IN + i], 2, p->batch, p->hidden, 1);
    }
    for (int i = 0; i < 5; i++) call->dx[i] = (remat_tensor){call->x[i].desc, r.array[DX + i]};
    return r;
}

static void *scratch_for(const problem *p, const remat_call *call, remat_pass pass) {
    remat_desc x[REMAT_MAX_INPUTS];
    for (int i = 0; i < REMAT_MAX_INPUTS; i++) x[i] = call->x[i].desc;
    remat_cost cost;
    p->op->cost(x, &call->y.desc, NULL, pass, &cost);
    void *scratch = take((int64_t)cost.scratch_bytes);
    memset(scratch, 0xff, cost.scratch_bytes);
    return scratch;
}

static void run_kernel(const problem *p, remat_call *call, remat_kernel *kernel, remat_pass pass) {
    call->scratch = scratch_for(p, call, pass);
    kernel(call);
    free(call->scratch);
}

/* FAST_FORWARD: the definition's backward of the fast forward. */
typedef enum { DEFINITION, FAST, FAST_FORWARD, FAST_FORWARD_ONLY } way;

static result run_problem(const problem *p, way how, int threads) {
    remat_call call = make_inputs(p);
    remat_desc x[REMAT_MAX_INPUTS];
    for (int i = 0; i < REMAT_MAX_INPUTS; i++) x[i] = call.x[i].desc;
    remat_desc y, state[REMAT_MAX_STATES];
    ck_assert_msg(p->op->infer(x, NULL, &y, state) == REMAT_OK, "%s", remat_last_error());
    result r = make_outputs(p, &call);
    call.threads = threads;
    void *packed = take((int64_t)p->op->on[REMAT_ON_CPU].packed_bytes(x, NULL, threads));
    memset(packed, 0xff, p->op->on[REMAT_ON_CPU].packed_bytes(x, NULL, threads));
    p->op->on[REMAT_ON_CPU].pack(&call, packed);
    call.packed = packed;
    int64_t aux_bytes = p->op->aux_bytes ? (int64_t)p->op->aux_bytes(x, NULL) : 0;
    call.aux = how == FAST_FORWARD_ONLY || !aux_bytes ? NULL : take(aux_bytes);
    if (call.aux) memset(call.aux, 0xff, (size_t)aux_bytes);
    run_kernel(p, &call, how == DEFINITION ? p->op->define_forward : p->op->on[REMAT_ON_CPU].forward, REMAT_FORWARD);
    if (how != FAST_FORWARD_ONLY)
        run_kernel(p, &call, how == FAST ? p->op->on[REMAT_ON_CPU].backward : p->op->define_backward, REMAT_BACKWARD);
    free(call.aux);
    free(packed);
    free_inputs(&call);
    return r;
}

static const char *say(const problem *p, int threads) {
    static char text[200];
    snprintf(text, sizeof text, "%s %s tau %d B %d C %d H %d%s%s%s%s%s, %d threads", rm_cell_kernels_get()->isa,
             p->op->name, (int)p->tau, (int)p->batch, (int)p->in, (int)p->hidden, p->folded ? " folded" : "",
             p->bias_ih ? " b_ih" : "", p->bias_hh ? " b_hh" : "", p->state ? " state" : "", p->resets ? " resets" : "",
             threads);
    return text;
}

static void same_numbers(const problem *p, const result *got, const result *want, int last) {
    for (int i = 0; i <= last; i++) {
        double largest = 0.05, worst = 0;
        for (int64_t j = 0; j < want->count[i]; j++) {
            double diff = fabs((double)got->array[i][j] - want->array[i][j]);
            if (!(diff <= worst)) worst = diff;
            if (fabs(want->array[i][j]) > largest) largest = fabs(want->array[i][j]);
        }
        ck_assert_msg(worst <= 400 * 0x1p-23 * largest, "%s: %s differs from the definition by %g of %g", say(p, 1),
                      array_name[i], worst, largest);
    }
}

/* The norm is compared, because in short arrays all elements may be small differences of large numbers. */
static void near_numbers(const problem *p, const result *got, const result *want, int first, int last) {
    for (int i = first; i <= last; i++) {
        double error = 0, norm = 0;
        for (int64_t j = 0; want->count[i] > 3 && j < want->count[i]; j++) {
            error += pow((double)got->array[i][j] - want->array[i][j], 2);
            norm += pow(want->array[i][j], 2);
        }
        ck_assert_msg(sqrt(error) <= 0x1p-4 * sqrt(norm), "%s: %s differs from the definition by %g of %g", say(p, 1),
                      array_name[i], sqrt(error), sqrt(norm));
    }
}

static bool rounds(void) { return rm_cell_kernels_get() == rm_cell_kernels_list(RM_CELL_BF16); }

static void same_bits(const problem *p, const result *a, const result *b, int first, int last, int threads,
                      const char *what) {
    for (int i = first; i <= last; i++)
        ck_assert_msg(a->count[i] == 0 || !memcmp(a->array[i], b->array[i], (size_t)a->count[i] * 4),
                      "%s: %s has other bits %s", say(p, threads), array_name[i], what);
}

/* Compares y and the states of two tiles, cut at `cut`, with those of one tile. */
static void check_cut(const problem *p, const result *whole, int64_t cut) {
    remat_call call = make_inputs(p);
    remat_desc x[REMAT_MAX_INPUTS];
    for (int i = 0; i < REMAT_MAX_INPUTS; i++) x[i] = call.x[i].desc;
    void *packed = take((int64_t)p->op->on[REMAT_ON_CPU].packed_bytes(x, NULL, 2));
    call.threads = 2;
    p->op->on[REMAT_ON_CPU].pack(&call, packed);
    call.packed = packed;
    result r = make_outputs(p, &call);
    int64_t state = p->batch * p->hidden;
    float *between[REMAT_MAX_STATES] = {take(state * 4), take(state * 4)};
    float *all_x = call.x[0].data, *resets = call.x[5].data;
    problem part = *p;
    for (int half = 0; half < 2; half++) {
        part.tau = half ? p->tau - cut : cut;
        call.x[0].desc.dim[0] = call.x[5].desc.dim[0] = call.y.desc.dim[0] = part.tau;
        call.x[5].data = resets ? resets + (half ? cut * p->batch : 0) : NULL;
        call.x[0].data = all_x + (half ? cut * p->batch * (p->folded ? 1 : p->in) : 0);
        call.y.data = r.array[Y] + (half ? cut * state : 0);
        void *old[REMAT_MAX_STATES] = {call.state_in[0].data, call.state_in[1].data};
        for (int i = 0; i < p->op->n_state; i++) {
            if (half) call.state_in[i].data = between[i];
            call.state_out[i].data = half ? r.array[H_OUT + i] : between[i];
        }
        run_kernel(&part, &call, p->op->on[REMAT_ON_CPU].forward, REMAT_FORWARD);
        for (int i = 0; half == 0 && i < REMAT_MAX_STATES; i++) free(old[i]);
    }
    same_bits(p, &r, whole, Y, C_OUT, 2, "when the tile is cut in two");
    call.x[0].data = all_x, call.x[5].data = resets;
    call.state_in[0].data = call.state_in[1].data = NULL;
    free_inputs(&call);
    free(between[0]), free(between[1]), free(packed);
    result_free(&r);
}

static void check_rounded(const problem *p, const result *one, const result *defined) {
    near_numbers(p, one, defined, Y, C_OUT);
    near_numbers(p, one, defined, DX, DC_IN);
}

/* The last h may be a few small numbers, after larger ones were cut off. The definition's backward, which reads y, gets
 * the rounded y: the gradient of a ReLU jumps at 0. */
static void check_rounded_relu(const problem *p, const result *one, const result *defined) {
    int64_t state = one->count[H_OUT];
    near_numbers(p, one, defined, Y, Y);
    ck_assert(!memcmp(one->array[H_OUT], one->array[Y] + (p->tau - 1) * state, (size_t)state * 4));
    result backward = run_problem(p, FAST_FORWARD, 1);
    near_numbers(p, one, &backward, DX, DC_IN);
    result_free(&backward);
}

static void check_problem(const problem *p, bool every_way) {
    result one = run_problem(p, FAST, 1), defined = run_problem(p, DEFINITION, 1);
    if (rounds())
        (strcmp(p->op->name, "rnn_relu") ? check_rounded : check_rounded_relu)(p, &one, &defined);
    else
        same_numbers(p, &one, &defined, ARRAYS - 1);
    for (int threads = 2; every_way && threads <= 3; threads++) {
        result more = run_problem(p, FAST, threads);
        same_bits(p, &more, &one, Y, DC_IN, threads, "than with one thread");
        result_free(&more);
    }
    const int64_t lasts[] = {1, 2, p->tau / 2, p->tau - 1, p->tau};
    for (int i = 0; every_way && i < 5; i++) {
        rm_recurrent_pretend_last((unsigned)lasts[i]);
        result less = run_problem(p, FAST, 3), dropped = run_problem(p, FAST_FORWARD_ONLY, 2);
        rm_recurrent_pretend_last(0);
        same_bits(p, &less, &one, Y, DC_IN, 3, "when two of them are sent away");
        same_bits(p, &dropped, &one, Y, C_OUT, 2, "when one of them is sent away, and no gates are kept");
        result_free(&less), result_free(&dropped);
    }
    if (every_way) {
        result dropped = run_problem(p, FAST_FORWARD_ONLY, 1);
        same_bits(p, &dropped, &one, Y, C_OUT, 1, "when no gates are kept");
        result_free(&dropped);
        if (p->tau > 1) check_cut(p, &one, (p->tau + 1) / 2);
    }
    result_free(&one);
    result_free(&defined);
}

static const int64_t batches[] = {1, 2, 3, 5, 7, 8, 16, 17}, hiddens[] = {1, 3, 16, 17, 31, 64, 100};
static const int64_t ins[] = {1, 5, 64}, taus[] = {1, 2, 7};
#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))

/* All sizes for one cell and one kind of input; biases and states alternate. */
static void check_sizes(const char *name, int gates, bool folded) {
    int turn = 0;
    for (int b = 0; b < COUNT(batches); b++)
        for (int h = 0; h < COUNT(hiddens); h++)
            for (int c = 0; c < (folded ? 1 : COUNT(ins)); c++)
                for (int t = 0; t < COUNT(taus); t++, turn++) {
                    problem p = {.op = rm_op_find(name), .gates = gates, .tau = taus[t], .batch = batches[b]};
                    p.in = ins[c], p.hidden = hiddens[h], p.folded = folded;
                    p.bias_ih = turn % 2, p.bias_hh = turn / 2 % 2, p.state = turn % 3 > 0;
                    p.resets = turn / 3 % 2;
                    if (SANITIZED && turn / 5 % 4) continue;
                    check_problem(&p, turn % 5 == 0);
                }
}

static const struct {
    const char *name;
    int gates;
} cells[] = {{"lstm", 4}, {"gru", 3}, {"rnn_tanh", 1}, {"rnn_relu", 1}};

static void check_isa(int isa) {
    const rm_cell_kernels *kernels = rm_cell_kernels_list(isa);
    if (!kernels) {
        printf("instruction set %d: not on this machine\n", isa);
        return;
    }
    rm_cell_kernels_use(kernels);
    for (int i = 0; i < COUNT(cells); i++)
        for (int folded = 0; folded < 2; folded++) check_sizes(cells[i].name, cells[i].gates, folded);
    rm_cell_kernels_use(NULL);
}

START_TEST(fast_kernels_match_the_definition) { check_isa(_i); }
END_TEST

/* More rows than are summed at once (48), and deeper than one block of weights (128, or 256 in bf16). */
START_TEST(sizes_beyond_one_chunk_match_the_definition) {
    for (int isa = 0; isa < RM_CELL_ISAS; isa++) {
        if (!rm_cell_kernels_list(isa)) continue;
        rm_cell_kernels_use(rm_cell_kernels_list(isa));
        problem p = {.op = rm_op_find(cells[_i].name),
                     .gates = cells[_i].gates,
                     .tau = 5,
                     .batch = 65,
                     .in = 260,
                     .hidden = 144,
                     .bias_ih = true,
                     .bias_hh = true,
                     .state = true};
        if (!SANITIZED) check_problem(&p, true);
        p.resets = true;
        check_problem(&p, true);
        rm_cell_kernels_use(NULL);
    }
}
END_TEST

/* One timestep of forward; no operand has more than 8 significant bits. */
START_TEST(bf16_rounds_only_operands) {
    const rm_cell_kernels *kernels = rm_cell_kernels_list(RM_CELL_BF16);
    if (kernels) rm_cell_kernels_use(kernels);
    for (int i = 0; kernels && i < 2 * COUNT(batches) * COUNT(hiddens) * COUNT(ins); i++) {
        problem p = {
            .op = rm_op_find(cells[_i].name), .gates = cells[_i].gates, .tau = 1, .in_bf16 = true, .state = true};
        p.folded = i % 2, p.batch = batches[i / 2 % COUNT(batches)];
        p.hidden = hiddens[i / 2 / COUNT(batches) % COUNT(hiddens)];
        p.in = ins[i / 2 / COUNT(batches) / COUNT(hiddens)];
        result fast = run_problem(&p, FAST, 1), defined = run_problem(&p, DEFINITION, 1);
        same_numbers(&p, &fast, &defined, C_OUT);
        result_free(&fast), result_free(&defined);
    }
    rm_cell_kernels_use(NULL);
}
END_TEST

/* The op that a device runs in its place differs in its kernels only. */
START_TEST(bf16_variant_has_its_own_kernels) {
    remat_op in_bf16;
    const rm_cell_kernels *kernels = rm_cell_kernels_list(RM_CELL_BF16);
    ck_assert_int_eq(rm_recurrent_in_bf16((rm_cell)_i, &in_bf16), kernels != NULL);
    if (!kernels) return;
    ck_assert_str_eq(in_bf16.name, cells[_i].name);
    problem p = {.op = &in_bf16, .gates = cells[_i].gates, .tau = 4, .batch = 3, .in = 5, .hidden = 20, .state = true};
    result device = run_problem(&p, FAST, 1);
    p.op = rm_op_find(cells[_i].name);
    result fp32 = run_problem(&p, FAST, 1);
    rm_cell_kernels_use(kernels);
    result bf16 = run_problem(&p, FAST, 1);
    rm_cell_kernels_use(NULL);
    same_bits(&p, &device, &bf16, 0, ARRAYS - 1, 1, "than the kernels");
    ck_assert(memcmp(bf16.array[Y], fp32.array[Y], (size_t)bf16.count[Y] * 4));
    result_free(&device), result_free(&fp32), result_free(&bf16);
}
END_TEST

/* Unwanted gradients are skipped; the others do not change. */
START_TEST(unwanted_gradients_are_skipped) {
    problem p = {
        .op = rm_op_find(cells[_i].name), .gates = cells[_i].gates, .tau = 3, .batch = 2, .in = 3, .hidden = 5};
    remat_call call = make_inputs(&p);
    remat_desc x[REMAT_MAX_INPUTS];
    for (int i = 0; i < REMAT_MAX_INPUTS; i++) x[i] = call.x[i].desc;
    result all = run_problem(&p, FAST, 1), r = make_outputs(&p, &call);
    void *packed = take((int64_t)p.op->on[REMAT_ON_CPU].packed_bytes(x, NULL, 1));
    call.threads = 1;
    p.op->on[REMAT_ON_CPU].pack(&call, packed);
    call.packed = packed;
    call.aux = take(p.op->aux_bytes ? (int64_t)p.op->aux_bytes(x, NULL) : 0);
    run_kernel(&p, &call, p.op->on[REMAT_ON_CPU].forward, REMAT_FORWARD);
    call.dx[0].data = call.dx[1].data = call.dstate_in[0].data = call.dstate_in[1].data = NULL;
    run_kernel(&p, &call, p.op->on[REMAT_ON_CPU].backward, REMAT_BACKWARD);
    same_bits(&p, &r, &all, DW_HH, DW_HH, 1, "when dx is not wanted");
    ck_assert(isnan(r.array[DX][0]) && isnan(r.array[DH_IN][0]));
    free(call.aux), free(packed);
    free_inputs(&call);
    result_free(&all), result_free(&r);
}
END_TEST

START_TEST(invalid_shapes_are_refused) {
    const remat_op *op = rm_op_find(cells[_i].name);
    remat_desc y, state[REMAT_MAX_STATES], good[REMAT_MAX_INPUTS];
    for (int i = 0; i < op->n_in; i++) good[i] = op->samples[0].x[i];
    ck_assert_int_eq(op->infer(good, NULL, &y, state), REMAT_OK);
    for (int i = 0; i < op->n_in; i++) {
        remat_desc bad[REMAT_MAX_INPUTS];
        memcpy(bad, good, sizeof bad);
        if (bad[i].rank < 0) bad[i] = (remat_desc){REMAT_F32, 1, {3}};
        bad[i].dim[bad[i].rank - 1]++;
        ck_assert_int_eq(op->infer(bad, NULL, &y, state), REMAT_INVALID);
        ck_assert_ptr_nonnull(strstr(remat_last_error(), cells[_i].name));
    }
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("cells");
    rm_parallel_pretend(1); /* use several threads even on a busy machine */
    tcase_set_timeout(tests, 300);
    tcase_add_loop_test(tests, fast_kernels_match_the_definition, 0, RM_CELL_ISAS);
    tcase_add_loop_test(tests, sizes_beyond_one_chunk_match_the_definition, 0, COUNT(cells));
    tcase_add_loop_test(tests, bf16_rounds_only_operands, 0, COUNT(cells));
    tcase_add_loop_test(tests, bf16_variant_has_its_own_kernels, 0, COUNT(cells));
    tcase_add_loop_test(tests, unwanted_gradients_are_skipped, 0, COUNT(cells));
    tcase_add_loop_test(tests, invalid_shapes_are_refused, 0, COUNT(cells));
    return run_cases("cells", tests);
}
