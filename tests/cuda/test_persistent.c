/* test_persistent.c: the kernels that keep a recurrent layer on the chip (ops/recurrent/persistent.cuh), executed on
 * the CPU (shim.h), for layers that need several blocks, clusters and sequences per cluster. Results are near the
 * definition in double precision, and have the same bits for all tiles, for all sequences that share a cluster, and for
 * every order of threads and blocks. test_kernels.c tests the other promises of ops on small layers. No GPU is used. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ops/cuda/cuda_queue.h"
#include "tests/cuda/emulated_op.h"
#include "tests/cuda/emulation.h"
#include "tests/sanitized.h"
#include "tests/suite.h"
#include "ops/check/op_check.h"

static const char *const cell_name[] = {"lstm", "gru", "rnn_tanh", "rnn_relu"};
static const int cell_gates[] = {4, 3, 1, 1};
enum { CELLS = 4, B_IH = 1, B_HH = 2, STATES = 4 };

/* in 0: the embedding is folded. clusters: their number on the GPU; the comments say how many sequences share one. */
typedef struct {
    int64_t steps, batch, in, hidden;
    int given, clusters;
} shape;

/* Up to 256 units, and up to 512: one to four sequences per cluster. Of two clusters, the last is not full. */
static const shape shapes[] = {
    {5, 2, 0, 255, B_IH | STATES, 1},        /* 16 blocks; one sequence per cluster */
    {6, 3, 1, 17, B_HH | STATES, 1},         /* 2; two */
    {5, 5, 0, 40, 0, 1},                     /* 3; three */
    {5, 7, 1, 33, B_IH | B_HH | STATES, 1},  /* 3; four */
    {3, 1, 1, 512, B_IH | STATES, 1},        /* 16 blocks of twice as many units; one */
    {3, 3, 0, 257, B_HH, 2},                 /* 9; two */
    {3, 5, 1, 270, STATES, 1},               /* 9; three */
    {3, 7, 0, 260, B_IH | B_HH | STATES, 1}, /* 9; four */
};
enum { SHAPES = sizeof shapes / sizeof *shapes, WIDE = 256, VOCABULARY = 5 };

static rm_cuda_queue queue; /* with the shape's number of clusters */
static void take_clusters(int clusters) {
    queue = rm_emulated_clusters_queue;
    queue.clusters = clusters;
    rm_op_queue = &queue;
}

static remat_sample sample_of(const shape *s, int gates, remat_dtype real) {
    const int64_t wide = gates * s->hidden;
    remat_sample sample = {.name = "a shape", .sequence = true};
    sample.x[0] = s->in ? rm_desc_make(real, 3, (int64_t[]){s->steps, s->batch, s->in})
                        : rm_desc_make(REMAT_I32, 2, (int64_t[]){s->steps, s->batch});
    sample.x[1] = rm_desc_make(real, 2, s->in ? (int64_t[]){wide, s->in} : (int64_t[]){VOCABULARY, wide});
    sample.x[2] = rm_desc_make(real, 2, (int64_t[]){wide, s->hidden});
    sample.x[3] = sample.x[4] = rm_desc_make(real, 1, (int64_t[]){wide});
    sample.x[5].rank = -1;
    if (!(s->given & B_IH)) sample.x[3].rank = -1;
    if (!(s->given & B_HH)) sample.x[4].rank = -1;
    return sample;
}

/* ---- Near the definition ---------------------------------------------------------------------------------------- */

/* All promises of ops, with two blocks and two clusters; and with resets, for which other kernels are used. */
START_TEST(several_blocks_pass_the_op_check) {
    static const shape s[] = {{3, 3, 2, 17, B_HH, 1}, {2, 1, 0, 18, B_IH, 1}};
    remat_op op = emulated(rm_op_find(cell_name[_i])), op_f64 = *rm_op_find_f64(cell_name[_i]);
    remat_sample sample[3], in_f64[3];
    remat_op_report report;
    for (int i = 0; i < 2; i++) {
        sample[i] = sample_of(&s[i], cell_gates[_i], REMAT_F32);
        in_f64[i] = sample_of(&s[i], cell_gates[_i], REMAT_F64);
    }
    sample[2] = sample[0], in_f64[2] = in_f64[0];
    sample[2].x[5] = rm_desc_make(REMAT_F32, 2, sample[0].x[0].dim),
    in_f64[2].x[5] = rm_desc_make(REMAT_F64, 2, sample[0].x[0].dim);
    op.samples = sample, op_f64.samples = in_f64, op.n_samples = op_f64.n_samples = 3;
    take_clusters(1);
    ck_assert_msg(!rm_op_check_again(&op, &op_f64, &report), "%s", remat_last_error());
}
END_TEST

enum { OUTPUTS = 1 + REMAT_MAX_STATES + REMAT_MAX_INPUTS + REMAT_MAX_STATES };
static const char *const output_name[OUTPUTS] = {"y",     "h_out", "c_out", "dx[0]", "dx[1]", "dx[2]", "dx[3]",
                                                 "dx[4]", "dx[5]", "dx[6]", "dx[7]", "dx[8]", "dh_in", "dc_in"};
static void list(const rm_op_outputs *out, const rm_op_array **array) {
    *array++ = &out->y;
    for (int i = 0; i < REMAT_MAX_STATES; i++) *array++ = &out->state[i];
    for (int i = 0; i < REMAT_MAX_INPUTS; i++) *array++ = &out->dx[i];
    for (int i = 0; i < REMAT_MAX_STATES; i++) *array++ = &out->dstate[i];
}

/* A number is a sum of a few hundred products of similar magnitude: some tens of roundings of 2^-24 each. */
static void expect_near(const rm_op_outputs *exact, const rm_op_outputs *got, const char *cell) {
    const rm_op_array *a[OUTPUTS], *b[OUTPUTS];
    list(exact, a), list(got, b);
    for (int i = 0; i < OUTPUTS; i++) {
        double largest = 0;
        ck_assert_int_eq(a[i]->count, b[i]->count);
        for (int64_t k = 0; k < a[i]->count; k++) largest = fmax(largest, fabs(a[i]->value[k]));
        for (int64_t k = 0; k < a[i]->count; k++)
            ck_assert_msg(fabs(a[i]->value[k] - b[i]->value[k]) <= 4e-6 * largest,
                          "%s: %s[%d] is %.9g, not %.9g, and the largest is %.3g", cell, output_name[i], (int)k,
                          b[i]->value[k], a[i]->value[k], largest);
    }
}

/* Skips outputs that one of the two lacks. */
static void expect_alike(const rm_op_outputs *all, const rm_op_outputs *some, const char *cell, const char *when) {
    const rm_op_array *a[OUTPUTS], *b[OUTPUTS];
    list(all, a), list(some, b);
    for (int i = 0; i < OUTPUTS; i++)
        ck_assert_msg(!a[i]->count || !b[i]->count ||
                          !memcmp(a[i]->value, b[i]->value, (size_t)a[i]->count * sizeof(double)),
                      "%s: %s has different bits %s", cell, output_name[i], when);
}

static rm_op_outputs outputs_of(const rm_op_setup *setup, const rm_op_inputs *in) {
    rm_op_outputs out;
    const char *wrong = rm_op_run(setup, in, &out);
    ck_assert_msg(!wrong, "%s, tile %d: %s", setup->op->name, (int)setup->tau, wrong);
    return out;
}

/* In two lean tiles; unneeded outputs are NULL. */
START_TEST(results_match_the_definition) {
    const shape *s = &shapes[_i];
    take_clusters(s->clusters);
    for (int cell = 0; cell < CELLS; cell++) {
        remat_op op = emulated(rm_op_find(cell_name[cell])), op_f64 = *rm_op_find_f64(cell_name[cell]);
        remat_sample sample = sample_of(s, cell_gates[cell], REMAT_F32),
                     in_f64 = sample_of(s, cell_gates[cell], REMAT_F64);
        op.samples = &sample, op_f64.samples = &in_f64, op.n_samples = op_f64.n_samples = 1;
        rm_op_setup exact = {.op = &op_f64, .define = true, .with_states = s->given & STATES, .threads = 1},
                    setup = exact;
        rm_op_inputs in;
        rm_op_inputs_make(&exact, (uint64_t)(_i * CELLS + cell), &in);
        for (int64_t i = 0; i < in.x[2].count; i++) /* so that no gate is closed */
            in.x[2].value[i] = (float)(in.x[2].value[i] / sqrt((double)s->hidden));
        rm_op_outputs expected = outputs_of(&exact, &in);
        setup.op = &op, setup.define = false, setup.lean = true, setup.tau = s->steps - 2;
        rm_op_outputs got = outputs_of(&setup, &in);
        expect_near(&expected, &got, op.name);
        setup.lean = false, setup.trick = RM_OP_UNWANTED;
        for (int i = 0; i <= op.n_state && s->hidden <= WIDE; i++) {
            setup.no_aux = i == op.n_state, setup.which = REMAT_MAX_INPUTS + i;
            rm_op_outputs other = outputs_of(&setup, &in);
            expect_alike(&got, &other, op.name, setup.no_aux ? "when nothing is kept" : "when one is not needed");
            rm_op_outputs_free(&other);
        }
        rm_op_outputs_free(&got), rm_op_outputs_free(&expected);
        rm_op_inputs_free(&in);
    }
}
END_TEST

/* ---- The same bits ---------------------------------------------------------------------------------------------- */

/* The inputs: (T,B,..) or (B,H) each. x has at most one feature: products of one term have the same bits for any number
 * of rows, so that only the tested kernels can differ. */
typedef struct {
    const remat_op *op;
    shape s;
    int gates;
    int64_t width; /* of saved values and their gradients: columns * H */
    float *x, *w_ih, *w_hh, *b_ih, *b_hh, *dy, *state[2], *dstate[2];
    int32_t *token;
} layer;

static void *room(int64_t numbers) {
    void *at = malloc((size_t)(numbers > 0 ? numbers : 1) * sizeof(float));
    ck_assert_ptr_nonnull(at);
    memset(at, 0xff, (size_t)numbers * sizeof(float)); /* NaN */
    return at;
}

static float *drawn(int64_t numbers, double size, uint32_t *seed) {
    float *at = room(numbers);
    for (int64_t i = 0; i < numbers; i++) {
        *seed = *seed * 1664525u + 1013904223u;
        at[i] = (float)(size * ((double)*seed / 0x1p31 - 1));
    }
    return at;
}

static layer layer_make(const shape *s, int cell) {
    const int64_t rows = s->steps * s->batch, state = s->batch * s->hidden, wide = cell_gates[cell] * s->hidden;
    uint32_t seed = (uint32_t)(s->hidden + cell);
    layer l = {.op = rm_op_find(cell_name[cell]), .s = *s, .gates = cell_gates[cell]};
    l.width = (l.gates > 1 ? 4 : 1) * s->hidden;
    l.x = drawn(rows, 1, &seed), l.token = room(rows);
    for (int64_t i = 0; i < rows; i++) l.token[i] = (int32_t)(i * 7 % VOCABULARY);
    l.w_ih = drawn(s->in ? wide : VOCABULARY * wide, 1, &seed);
    l.w_hh = drawn(wide * s->hidden, 2 / sqrt((double)s->hidden), &seed);
    l.b_ih = drawn(wide, 1, &seed), l.b_hh = drawn(wide, 1, &seed), l.dy = drawn(rows * s->hidden, 1, &seed);
    for (int i = 0; i < 2; i++) l.state[i] = drawn(state, 1, &seed), l.dstate[i] = drawn(state, 1, &seed);
    return l;
}

static void layer_free(layer *l) {
    free(l->x), free(l->token), free(l->w_ih), free(l->w_hh), free(l->b_ih), free(l->b_hh), free(l->dy);
    for (int i = 0; i < 2; i++) free(l->state[i]), free(l->dstate[i]);
}

/* The results for n sequences: (T,n,width) or (T,n,H), then (n,H) each; D: gradients of the gates. */
enum { Y, GATES, C, D, H_OUT, C_OUT, DH_IN, DC_IN, ARRAYS };
static const char *const array_name[] = {"y", "a gate", "c", "a gate's gradient", "h_out", "c_out", "dh_in", "dc_in"};
typedef struct {
    float *of[ARRAYS]; /* NULL: the cell has none */
} outcome;

static int64_t width_of(const layer *l, int array) { return array == GATES || array == D ? l->width : l->s.hidden; }
static int64_t steps_of(const layer *l, int array) { return array <= D ? l->s.steps : 1; }

static bool there_is(const layer *l, int array) {
    bool is_c = array == C || array == C_OUT || array == DC_IN;
    if (is_c && l->op->n_state < 2) return false;
    if (array == GATES && !l->op->aux_bytes) return false;
    return l->s.given & STATES || (array != DH_IN && array != DC_IN);
}

static void outcome_free(outcome *o) {
    for (int i = 0; i < ARRAYS; i++) free(o->of[i]);
}

/* Sequences [first, first + n) of (steps,B,width). */
static float *part_of(const layer *l, const void *all, int64_t steps, int64_t width, int64_t first, int64_t n) {
    float *part = room(steps * n * width);
    for (int64_t t = 0; t < steps; t++)
        memcpy(part + t * n * width, (const float *)all + (t * l->s.batch + first) * width,
               (size_t)(n * width) * sizeof(float));
    return part;
}

/* The parts of a layer and its results that a tile's call uses. */
typedef struct {
    const layer *l;
    int64_t n, t0, tau;
    remat_call call;
    float *x, *dy, *state[2], *dstate[2]; /* of these n sequences; x may be tokens */
    float *between[2][2];                 /* states, or their gradients, between tiles */
    outcome *out;
} tile;

static float *at(const tile *t, int array) {
    float *a = t->out->of[array];
    return a ? a + t->t0 * t->n * width_of(t->l, array) : NULL;
}

static size_t bytes_of(const tile *t, int array) {
    return (size_t)(t->tau * t->n * width_of(t->l, array)) * sizeof(float);
}

/* Calls `kernel`, with the saved aux as its initial content. Returns aux, or scratch for a cell without aux. */
static float *call_tile(tile *t, remat_kernel *kernel, remat_pass pass, bool fill) {
    const layer *l = t->l;
    remat_call *call = &t->call;
    remat_desc x[REMAT_MAX_INPUTS];
    for (int i = 0; i < REMAT_MAX_INPUTS; i++) x[i] = call->x[i].desc;
    float *aux = l->op->aux_bytes ? room((int64_t)l->op->aux_bytes(x, NULL) / 4) : NULL;
    if (aux && fill) memcpy(aux, at(t, GATES), bytes_of(t, GATES));
    if (at(t, C) && fill) memcpy(aux + t->tau * t->n * l->width, at(t, C), bytes_of(t, C));
    call->aux = aux;
    call->scratch = room((int64_t)l->op->on[REMAT_ON_CUDA].scratch_bytes(x, NULL, pass, aux, 1) / 4);
    call->fixed = room((int64_t)l->op->on[REMAT_ON_CUDA].fixed_bytes(x, NULL) / 4);
    kernel(call);
    free(call->fixed);
    if (!aux) return call->scratch;
    free(call->scratch);
    return aux;
}

static void tile_set(tile *t, int64_t t0, int64_t tau) {
    const shape *s = &t->l->s;
    t->t0 = t0, t->tau = t0 + tau < s->steps ? tau : s->steps - t0;
    t->call.t0 = t0, t->call.x[0].desc.dim[0] = t->tau;
    t->call.x[0].data = t->x + t0 * t->n;
    t->call.y.data = at(t, Y), t->call.dy.data = t->dy + t0 * t->n * s->hidden;
}

/* Rebuilding from y and the states must give the bits of forward. */
static void forward_tile(tile *t, int64_t t0, int64_t tau) {
    const layer *l = t->l;
    tile_set(t, t0, tau);
    const bool last = t0 + t->tau == l->s.steps, odd = t0 / tau % 2;
    for (int i = 0; i < l->op->n_state; i++) {
        t->call.state_in[i].data = t0 ? t->between[i][!odd] : l->s.given & STATES ? t->state[i] : NULL;
        t->call.state_out[i].data = last ? t->out->of[H_OUT + i] : t->between[i][odd];
    }
    float *aux = call_tile(t, l->op->on[REMAT_ON_CUDA].forward, REMAT_FORWARD, false);
    const int64_t c = t->tau * t->n * l->width; /* its offset */
    if (at(t, GATES)) memcpy(at(t, GATES), aux, bytes_of(t, GATES));
    if (at(t, C)) memcpy(at(t, C), aux + c, bytes_of(t, C));
    free(aux);
    if (!l->op->on[REMAT_ON_CUDA].rebuild) return;
    aux = call_tile(t, l->op->on[REMAT_ON_CUDA].rebuild, REMAT_REBUILD, false);
    ck_assert_msg(!memcmp(aux, at(t, GATES), bytes_of(t, GATES)), "%s: rebuilt gates differ", l->op->name);
    ck_assert_msg(!at(t, C) || !memcmp(aux + c, at(t, C), bytes_of(t, C)), "%s: the rebuilt c differs", l->op->name);
    free(aux);
}

static void backward_tile(tile *t, int64_t t0, int64_t tau) {
    const layer *l = t->l;
    tile_set(t, t0, tau);
    const bool last = t0 + t->tau == l->s.steps, odd = t0 / tau % 2;
    const int64_t before = (t0 - 1) * t->n * l->s.hidden;
    for (int i = 0; i < l->op->n_state; i++) {
        t->call.state_in[i].data = t0 ? t->out->of[i ? C : Y] + before : l->s.given & STATES ? t->state[i] : NULL;
        t->call.dstate_out[i].data = last ? l->s.given & STATES ? t->dstate[i] : NULL : t->between[i][!odd];
        t->call.dstate_in[i].data = t0 ? t->between[i][odd] : t->out->of[DH_IN + i];
    }
    float *d = call_tile(t, l->op->on[REMAT_ON_CUDA].backward, REMAT_BACKWARD, true);
    memcpy(at(t, D), d, bytes_of(t, D));
    free(d);
}

/* Sequences [first, first + n) forward and backward, in tiles of tau timesteps. */
static outcome run(const layer *l, int64_t first, int64_t n, int64_t tau, int clusters) {
    const shape *s = &l->s;
    const remat_sample sample = sample_of(s, l->gates, REMAT_F32);
    const void *data[] = {NULL, l->w_ih, l->w_hh, l->b_ih, l->b_hh};
    outcome o = {{NULL}};
    tile t = {.l = l, .n = n, .out = &o};
    for (int i = 0; i < ARRAYS; i++)
        if (there_is(l, i)) o.of[i] = room(steps_of(l, i) * n * width_of(l, i));
    take_clusters(clusters);
    t.call = (remat_call){.queue = &queue, .threads = 1, .training = true, .t_total = s->steps};
    for (int i = 0; i < (int)(sizeof data / sizeof *data); i++) {
        t.call.x[i] = (remat_tensor){sample.x[i], (void *)(uintptr_t)data[i]};
        t.call.dx[i].desc = sample.x[i];
    }
    t.call.x[0].desc.dim[1] = n;
    t.x = part_of(l, s->in ? (void *)l->x : l->token, s->steps, 1, first, n);
    t.dy = part_of(l, l->dy, s->steps, s->hidden, first, n);
    for (int i = 0; i < 2; i++) {
        t.state[i] = part_of(l, l->state[i], 1, s->hidden, first, n);
        t.dstate[i] = part_of(l, l->dstate[i], 1, s->hidden, first, n);
        for (int k = 0; k < 2; k++) t.between[i][k] = room(n * s->hidden);
    }
    const int64_t tiles = (s->steps + tau - 1) / tau;
    for (int64_t k = 0; k < tiles; k++) forward_tile(&t, k * tau, tau);
    for (int64_t k = tiles; k-- > 0;) backward_tile(&t, k * tau, tau);
    free(t.x), free(t.dy);
    for (int i = 0; i < 2; i++) free(t.state[i]), free(t.dstate[i]), free(t.between[i][0]), free(t.between[i][1]);
    return o;
}

/* Compares sequences [first, first + n) in a run of all sequences and in a run of these alone. Frees the latter. */
static void expect_same(const layer *l, const outcome *all, int64_t first, int64_t n, outcome some, const char *when) {
    for (int i = 0; i < ARRAYS; i++) {
        const int64_t width = width_of(l, i), bytes = width * (int64_t)sizeof(float);
        for (int64_t row = 0; all->of[i] && row < steps_of(l, i) * n; row++)
            ck_assert_msg(!memcmp(all->of[i] + (row / n * l->s.batch + first + row % n) * width,
                                  some.of[i] + row * width, (size_t)bytes),
                          "%s, H %d: %s has different bits %s", l->op->name, (int)l->s.hidden, array_name[i], when);
    }
    outcome_free(&some);
}

static void expect_finite(const layer *l, const outcome *o) {
    for (int i = 0; i < ARRAYS; i++)
        for (int64_t k = 0; o->of[i] && k < steps_of(l, i) * l->s.batch * width_of(l, i); k++)
            ck_assert_msg(isfinite(o->of[i][k]), "%s: %s is not written", l->op->name, array_name[i]);
}

/* A tile of any number of timesteps is one launch, except for layers that are too wide or fit into one block, and for
 * very many sequences. */
START_TEST(unsuitable_layers_use_other_kernels) {
    static const shape s[] = {
        {3, 1, 0, 512, 0, 1}, {3, 16, 0, 17, 0, 1}, {3, 1, 0, 513, 0, 1}, {3, 17, 0, 17, 0, 1}, {3, 1, 0, 16, 0, 1}};
    layer l = layer_make(&s[_i], 2);
    int64_t launches = rm_emulated_launches();
    outcome o = run(&l, 0, s[_i].batch, 3, 1);
    expect_finite(&l, &o);
    ck_assert_int_eq(rm_emulated_launches() - launches == 2, _i < 2);
    outcome_free(&o);
    layer_free(&l);
}
END_TEST

START_TEST(bits_depend_on_the_sequence_alone) {
    const shape *s = &shapes[_i];
    for (int cell = 0; cell < CELLS; cell++) {
        if (SANITIZED && cell != _i % CELLS) continue;
        layer l = layer_make(s, cell);
        const int64_t n = s->batch, steps = s->steps;
        const int64_t least = s->hidden > WIDE ? steps - 1 : 1; /* timesteps of a tile: fewer would take seconds */
        outcome all = run(&l, 0, n, steps, s->clusters);
        expect_finite(&l, &all);
        for (int64_t tau = least; tau < steps; tau++) {
            rm_emulate_in((rm_emulated_order)(tau % RM_ORDERS));
            expect_same(&l, &all, 0, n, run(&l, 0, n, tau, s->clusters), "with other tiles");
        }
        for (int order = 1; order < RM_ORDERS && least == 1; order++) {
            rm_emulate_in((rm_emulated_order)order);
            expect_same(&l, &all, 0, n, run(&l, 0, n, steps, s->clusters), "in another order of threads and blocks");
        }
        rm_emulate_in(RM_WARPS_APART);
        expect_same(&l, &all, n - 1, 1, run(&l, n - 1, 1, steps, s->clusters), "when the sequence is alone");
        expect_same(&l, &all, 0, n, run(&l, 0, n, steps, 100), "when each sequence has a cluster");
        rm_emulate_in(RM_IN_ORDER);
        outcome_free(&all);
        layer_free(&l);
    }
}
END_TEST

int main(void) {
    TCase *c = tcase_create("persistent");
    tcase_set_timeout(c, 300);
    tcase_add_loop_test(c, several_blocks_pass_the_op_check, 0, CELLS);
    tcase_add_loop_test(c, results_match_the_definition, 0, SHAPES);
    tcase_add_loop_test(c, bits_depend_on_the_sequence_alone, 0, SHAPES);
    tcase_add_loop_test(c, unsuitable_layers_use_other_kernels, 0, 5);
    return run_cases("persistent", c);
}
