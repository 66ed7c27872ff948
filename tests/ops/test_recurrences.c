/* test_recurrences.c: the recurrences of language models of 2024 to 2026 match their references in double precision, to
 * all published digits: transformers' Mamba, Mamba-2 and Gated DeltaNet,
 * xLSTM's sLSTM and mLSTM, the equations of M2RNN, NDM and RWKV-7; and attention with a window, also with its
 * keys as states and rotary positions as in RecurrentGemma: PyTorch's scaled_dot_product_attention with a mask.
 *
 * Inputs are fill(shape, s, a) = a sin(s + 0.7 n), n the index in the reference's layout; the loss is the sum of y
 * fill(shape of y, 9, 1/2). An array is compared by its 2-norm, and y by the loss, too. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ops/op.h"
#include "tests/suite.h"

enum { MOST = 512, AXES = 5 };

/* An array of the reference, and which of its axes are those of Remat, from the first to the last. */
typedef struct {
    int axes;
    int64_t dim[AXES];
    int order[AXES];
} layout;

static int64_t count_of(const layout *l) {
    int64_t n = 1;
    for (int k = 0; k < l->axes; k++) n *= l->dim[k];
    return n;
}

static void fill(const layout *l, double s, double a, double *to) {
    int64_t stride[AXES], at[AXES] = {0}, n = count_of(l);
    for (int k = l->axes - 1, step = 1; k >= 0; step *= (int)l->dim[k--]) stride[k] = step;
    for (int64_t i = 0; i < n; i++) {
        int64_t theirs = 0;
        for (int k = 0; k < l->axes; k++) theirs += at[l->order[k]] * stride[l->order[k]];
        to[i] = a * sin(s + 0.7 * (double)theirs);
        for (int k = l->axes - 1; k >= 0 && ++at[l->order[k]] == l->dim[l->order[k]]; k--) at[l->order[k]] = 0;
    }
}

static double norm(const double *x, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i] * x[i];
    return sqrt(sum);
}

typedef struct {
    const char *op;
    struct {
        const char *name;
        layout layout;
        int rank; /* of the op's input, and its shape */
        int64_t dim[4];
        double s, a, gradient; /* its 2-norm */
    } x[REMAT_MAX_INPUTS];
    layout y;
    double loss, y_norm;
    const void *attr;
} reference;

#define SQUASHED "sigmoid" /* the name of an input x of which the op reads sigmoid(x); the gradient is that of x */
static bool is_squashed(const char *name) { return !strcmp(name, SQUASHED); }

#define TIME_LAST                                                                                                      \
    { 2, 0, 1 }
#define CHANNELS                                                                                                       \
    { 3, {2, 5, 7}, TIME_LAST }
#define STATES                                                                                                         \
    { 3, {2, 4, 7}, TIME_LAST }
static const rm_ssd_attr groups = {2};
static const rm_rwkv7_attr heads = {2};
static const rm_delta_scan_attr negative = {.negative = 1};
static const rm_attention_attr near = {2, 1, 0, 3};
static const rm_local_attention_attr near_and_rotated = {2, 3, 4, 100};
static const reference references[] = {
    {"selective_scan",
     {{"u", CHANNELS, 3, {7, 2, 5}, 1, 0.5, 0.255685758988},
      {"dt", CHANNELS, 3, {7, 2, 5}, 2, 0.5, 0.025724057534},
      {"A_log", {2, {5, 4}, {0, 1}}, 2, {5, 4}, 6, 0.5, 0.037193507295},
      {"B", STATES, 3, {7, 2, 4}, 3, 0.5, 0.043990102764},
      {"C", STATES, 3, {7, 2, 4}, 4, 0.5, 0.057354622434},
      {"D", {1, {5}, {0}}, 1, {5}, 7, 0.5, 0.069186311311},
      {"z", CHANNELS, 3, {7, 2, 5}, 5, 0.5, 0.208741591152},
      {"dt_bias", {1, {5}, {0}}, 1, {5}, 8, 0.5, 0.023757155186}},
     CHANNELS,
     0.057992487580,
     0.283747486653,
     NULL},
    {"slstm",
     {{"x", {5, {2, 7, 4, 2, 3}, {1, 0, 2, 3, 4}}, 3, {7, 2, 24}, 1, 2, 0.877894776805},
      {"R", {4, {2, 3, 4, 3}, {0, 2, 3, 1}}, 3, {2, 12, 3}, 2, 0.5, 0.757010272679},
      {"bias", {3, {2, 4, 3}, {1, 0, 2}}, 1, {24}, 3, 0.5, 1.482603454844}},
     {3, {2, 7, 6}, {1, 0, 2}},
     4.212848689325,
     3.007452956174,
     NULL},
    {"delta_scan", /* A_log and dt_bias are absent: a is what the reference's decay is -softplus of */
     {{"q", {4, {2, 7, 2, 4}, {1, 0, 2, 3}}, 3, {7, 2, 8}, 1, 0.5, 0.456896782374},
      {"k", {4, {2, 7, 2, 4}, {1, 0, 2, 3}}, 3, {7, 2, 8}, 2, 0.5, 0.440060152855},
      {"v", {4, {2, 7, 2, 3}, {1, 0, 2, 3}}, 3, {7, 2, 6}, 3, 0.5, 0.528821682277},
      {"a", {3, {2, 7, 2}, {1, 0, 2}}, 3, {7, 2, 2}, 4, 0.5, 0.020247889102},
      {"b", {3, {2, 7, 2}, {1, 0, 2}}, 3, {7, 2, 2}, 5, 0.5, 0.174972615712}},
     {4, {2, 7, 2, 3}, {1, 0, 2, 3}},
     1.604772804383,
     0.525024024856,
     NULL},
    {"delta_scan", /* with beta 2 sigmoid(b) */
     {{"q", {4, {2, 7, 2, 4}, {1, 0, 2, 3}}, 3, {7, 2, 8}, 1, 0.5, 1.051449508463},
      {"k", {4, {2, 7, 2, 4}, {1, 0, 2, 3}}, 3, {7, 2, 8}, 2, 0.5, 1.016163638802},
      {"v", {4, {2, 7, 2, 3}, {1, 0, 2, 3}}, 3, {7, 2, 6}, 3, 0.5, 1.148311049805},
      {"a", {3, {2, 7, 2}, {1, 0, 2}}, 3, {7, 2, 2}, 4, 0.5, 0.088859488389},
      {"b", {3, {2, 7, 2}, {1, 0, 2}}, 3, {7, 2, 2}, 5, 0.5, 0.408311853397}},
     {4, {2, 7, 2, 3}, {1, 0, 2, 3}},
     3.571272181554,
     1.142004645602,
     &negative},
    {"ssd",
     {{"x", {4, {2, 7, 4, 3}, {1, 0, 2, 3}}, 3, {7, 2, 12}, 1, 0.5, 2.894830273519},
      {"dt", {3, {2, 7, 4}, {1, 0, 2}}, 3, {7, 2, 4}, 2, 0.5, 0.222310787207},
      {"A_log", {1, {4}, {0}}, 1, {4}, 3, 0.5, 0.479272699694},
      {"B", {4, {2, 7, 2, 5}, {1, 0, 2, 3}}, 3, {7, 2, 10}, 4, 0.5, 1.182626681973},
      {"C", {4, {2, 7, 2, 5}, {1, 0, 2, 3}}, 3, {7, 2, 10}, 5, 0.5, 1.222365070117},
      {"D", {1, {4}, {0}}, 1, {4}, 6, 0.5, 1.515800228583},
      {"dt_bias", {1, {4}, {0}}, 1, {4}, 7, 0.5, 0.238654300780}},
     {4, {2, 7, 4, 3}, {1, 0, 2, 3}},
     -2.404347584246,
     2.941648512212,
     &groups},
    {"mlstm",
     {{"q", {4, {2, 2, 7, 4}, {2, 0, 1, 3}}, 3, {7, 2, 8}, 1, 0.5, 2.842594555651},
      {"k", {4, {2, 2, 7, 4}, {2, 0, 1, 3}}, 3, {7, 2, 8}, 2, 0.5, 2.577349976506},
      {"v", {4, {2, 2, 7, 3}, {2, 0, 1, 3}}, 3, {7, 2, 6}, 3, 0.5, 1.669931573713},
      {"i", {3, {2, 2, 7}, {2, 0, 1}}, 3, {7, 2, 2}, 4, 2, 1.073091814942},
      {"f", {3, {2, 2, 7}, {2, 0, 1}}, 3, {7, 2, 2}, 5, 2, 0.062840583192}},
     {4, {2, 2, 7, 3}, {2, 0, 1, 3}},
     3.326719847967,
     1.714378934126,
     NULL},
    {"rwkv7",
     {{"r", {4, {2, 7, 2, 4}, {1, 0, 2, 3}}, 3, {7, 2, 8}, 1, 0.5, 1.015044919338},
      {"w", {4, {2, 7, 2, 4}, {1, 0, 2, 3}}, 3, {7, 2, 8}, 2, 0.5, 0.151127335823},
      {"k", {4, {2, 7, 2, 4}, {1, 0, 2, 3}}, 3, {7, 2, 8}, 3, 0.5, 1.286446161300},
      {"v", {4, {2, 7, 2, 4}, {1, 0, 2, 3}}, 3, {7, 2, 8}, 4, 0.5, 2.021923913416},
      {"kappa", {4, {2, 7, 2, 4}, {1, 0, 2, 3}}, 3, {7, 2, 8}, 5, 0.5, 1.018129683072},
      {"a", {4, {2, 7, 2, 4}, {1, 0, 2, 3}}, 3, {7, 2, 8}, 6, 0.5, 0.125531818629}},
     {4, {2, 7, 2, 4}, {1, 0, 2, 3}},
     2.810178424547,
     2.033599313643,
     &heads},
    {"attention",
     {{"q", {3, {6, 1, 4}, {0, 1, 2}}, 3, {6, 1, 4}, 1, 0.5, 0.225394065971},
      {"k", {3, {6, 1, 4}, {0, 1, 2}}, 3, {6, 1, 4}, 2, 0.5, 0.183370840987},
      {"v", {3, {6, 1, 4}, {0, 1, 2}}, 3, {6, 1, 4}, 3, 0.5, 0.750543268096}},
     {3, {6, 1, 4}, {0, 1, 2}},
     0.933600816933,
     0.837914212169,
     &near},
    {"local_attention", /* with transformers' apply_rotary_pos_emb of RecurrentGemma */
     {{"q", {3, {7, 2, 12}, {0, 1, 2}}, 3, {7, 2, 12}, 1, 0.5, 0.601149959080},
      {"k", {3, {7, 2, 6}, {0, 1, 2}}, 3, {7, 2, 6}, 2, 0.5, 0.792691355702},
      {"v", {3, {7, 2, 6}, {0, 1, 2}}, 3, {7, 2, 6}, 3, 0.5, 1.097873141779}},
     {3, {7, 2, 12}, {0, 1, 2}},
     0.649273193087,
     1.995959670636,
     &near_and_rotated},
    {"m2rnn", /* the equations in double, by PyTorch's autograd: xma itself rounds to float, and differs by 4e-9 */
     {{"q", {4, {2, 7, 2, 4}, {1, 0, 2, 3}}, 3, {7, 2, 8}, 1, 0.5, 0.520564968008},
      {"k", {4, {2, 7, 2, 4}, {1, 0, 2, 3}}, 3, {7, 2, 8}, 2, 0.5, 0.547983315463},
      {"v", {4, {2, 7, 2, 3}, {1, 0, 2, 3}}, 3, {7, 2, 6}, 3, 0.5, 0.438207564077},
      {SQUASHED, {3, {2, 7, 2}, {1, 0, 2}}, 3, {7, 2, 2}, 5, 0.5, 0.134910202699},
      {"w", {3, {2, 3, 3}, {0, 1, 2}}, 3, {2, 3, 3}, 4, 0.5, 0.090835497902}},
     {4, {2, 7, 2, 3}, {1, 0, 2, 3}},
     1.263066604957,
     0.439592157091,
     NULL},
    {"ndm", /* the equations in double, by PyTorch's autograd */
     {{"q", {4, {2, 7, 2, 4}, {1, 0, 2, 3}}, 3, {7, 2, 8}, 1, 0.5, 1.209051862860},
      {"k", {4, {2, 7, 2, 4}, {1, 0, 2, 3}}, 3, {7, 2, 8}, 2, 0.5, 1.852898898110},
      {"v", {4, {2, 7, 2, 3}, {1, 0, 2, 3}}, 3, {7, 2, 6}, 3, 0.5, 1.256875574456},
      {"g", {3, {2, 7, 2}, {1, 0, 2}}, 3, {7, 2, 2}, 4, 0.5, 0.653721889256}},
     {4, {2, 7, 2, 3}, {1, 0, 2, 3}},
     3.016892352972,
     1.263287146484,
     NULL},
};

static void ck_digits(const char *op, const char *what, double got, double expected) {
    ck_assert_msg(fabs(got - expected) <= 1e-12, "%s, %s: %.12f, not %.12f", op, what, got, expected);
}

START_TEST(recurrences_match_their_references) {
    const reference *r = &references[_i];
    const remat_op *op = rm_op_find_f64(r->op);
    static double x[REMAT_MAX_INPUTS][MOST], dx[REMAT_MAX_INPUTS][MOST], y[MOST], dy[MOST];
    static double state[REMAT_MAX_STATES][MOST], aux[16 * MOST], scratch[16 * MOST];
    remat_call call = {
        .t_total = r->x[0].dim[0], .threads = 1, .training = true, .attr = r->attr, .aux = aux, .scratch = scratch};
    remat_desc in[REMAT_MAX_INPUTS], states[REMAT_MAX_STATES];
    memset(dx, 0, sizeof dx);
    for (int i = 0; i < REMAT_MAX_INPUTS; i++) {
        in[i] = call.x[i].desc = (remat_desc){.rank = -1};
        if (!r->x[i].name) continue;
        fill(&r->x[i].layout, r->x[i].s, r->x[i].a, x[i]);
        for (int64_t n = 0; is_squashed(r->x[i].name) && n < count_of(&r->x[i].layout); n++)
            x[i][n] = 1 / (1 + exp(-x[i][n]));
        in[i] = rm_desc_make(REMAT_F64, r->x[i].rank, r->x[i].dim);
        call.x[i] = (remat_tensor){in[i], x[i]}, call.dx[i] = (remat_tensor){in[i], dx[i]};
    }
    ck_assert_msg(!op->infer(in, r->attr, &call.y.desc, states), "%s", remat_last_error());
    fill(&r->y, 9, 0.5, dy);
    call.y.data = y, call.dy = (remat_tensor){call.y.desc, dy};
    for (int k = 0; k < op->n_state; k++) {
        call.state_in[k].desc = states[k];
        call.state_out[k] = (remat_tensor){states[k], state[k]};
    }
    op->on[REMAT_ON_CPU].forward(&call);
    op->on[REMAT_ON_CPU].backward(&call);
    double loss = 0;
    int64_t n = count_of(&r->y);
    for (int64_t i = 0; i < n; i++) loss += y[i] * dy[i];
    ck_digits(r->op, "the loss", loss, r->loss);
    ck_digits(r->op, "y", norm(y, n), r->y_norm);
    for (int i = 0; r->x[i].name; i++) {
        for (int64_t n = 0; is_squashed(r->x[i].name) && n < count_of(&r->x[i].layout); n++)
            dx[i][n] *= x[i][n] * (1 - x[i][n]);
        ck_digits(r->op, r->x[i].name, norm(dx[i], count_of(&r->x[i].layout)), r->x[i].gradient);
    }
}
END_TEST

/* Gates so far below 0 that e^-m is infinite. */
START_TEST(mlstm_gradients_of_closed_gates_are_finite) {
    enum { T = 3, D = 2, INPUTS = 5 };
    const remat_op *op = rm_op_find_f64("mlstm");
    double x[INPUTS][T * D], dx[INPUTS][T * D], y[T * D], dy[T * D], state[3][D * D], scratch[1024];
    remat_call call = {.t_total = T, .threads = 1, .training = true, .scratch = scratch};
    remat_desc in[REMAT_MAX_INPUTS], states[REMAT_MAX_STATES];
    for (int i = 0; i < REMAT_MAX_INPUTS; i++) {
        in[i] = call.x[i].desc = (remat_desc){.rank = -1};
        if (i >= INPUTS) continue;
        for (int n = 0; n < T * D; n++) x[i][n] = i < 3 ? 1 + n : -1000, dy[n] = 1;
        in[i] = rm_desc_make(REMAT_F64, 3, (int64_t[]){T, 1, i < 3 ? D : 1});
        call.x[i] = (remat_tensor){in[i], x[i]}, call.dx[i] = (remat_tensor){in[i], dx[i]};
    }
    ck_assert_msg(!op->infer(in, NULL, &call.y.desc, states), "%s", remat_last_error());
    call.y.data = y, call.dy = (remat_tensor){call.y.desc, dy};
    for (int k = 0; k < op->n_state; k++) call.state_out[k] = (remat_tensor){states[k], state[k]};
    op->on[REMAT_ON_CPU].forward(&call);
    op->on[REMAT_ON_CPU].backward(&call);
    for (int i = 0; i < INPUTS; i++)
        for (int64_t n = 0; n < T * (i < 3 ? D : 1); n++)
            ck_assert_msg(isfinite(dx[i][n]), "input %d: %g", i, dx[i][n]);
}
END_TEST

/* A thread has heads of its own; the sample has 3. */
START_TEST(m2rnn_has_room_for_the_threads_that_work) {
    const remat_op *op = rm_op_find("m2rnn");
    const remat_desc *x = op->samples[0].x;
    for (int pass = REMAT_FORWARD; pass <= REMAT_BACKWARD; pass++) {
        uint64_t one = op->on[REMAT_ON_CPU].scratch_bytes(x, NULL, (remat_pass)pass, false, 1);
        for (int threads = 2; threads <= 5; threads++)
            ck_assert_uint_eq(op->on[REMAT_ON_CPU].scratch_bytes(x, NULL, (remat_pass)pass, false, threads),
                              one * (threads < 3 ? (uint64_t)threads : 3));
    }
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("recurrences");
    tcase_add_loop_test(tests, recurrences_match_their_references, 0, sizeof references / sizeof *references);
    tcase_add_test(tests, mlstm_gradients_of_closed_gates_are_finite);
    tcase_add_test(tests, m2rnn_has_room_for_the_threads_that_work);
    return run_cases("recurrences", tests);
}
