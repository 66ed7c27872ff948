/* test_ops.c: every built-in op keeps the promises of remat_op.h (remat_op_check) and matches values from other
 * implementations. */
#include "ops/check/op_check.h"
#include "ops/cpu/kernels.h"
#include "tests/ops/known_values.h"
#include "tests/sanitized.h"
#include "tests/suite.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

START_TEST(op_keeps_its_promises) {
    const remat_op *op = rm_ops[_i], *op_f64 = rm_op_find_f64(op->name);
    remat_op_report report;
    ck_assert_ptr_nonnull(op_f64);
    remat_status status = (SANITIZED ? rm_op_check_again : remat_op_check)(op, op_f64, &report);
    ck_assert_msg(!status, "%s", remat_last_error());
    printf("%-22s gradients at %4.1f %% and float kernels at %4.1f %% of what is allowed; threads %s\n", op->name,
           100 * report.gradient_error, 100 * report.float_error,
           report.same_across_threads ? "do not matter" : "change the last bits");
    fflush(stdout);
}
END_TEST

/* The previous test checked this machine's best instruction set. */
START_TEST(cells_keep_their_promises_with_every_instruction_set) {
    const remat_op *op = rm_ops[_i / RM_CELL_BF16], *op_f64 = rm_op_find_f64(op->name);
    const rm_cell_kernels *kernels = rm_cell_kernels_list(_i % RM_CELL_BF16);
    if (op->time != REMAT_TIME_RECURRENT || !kernels || kernels == rm_cell_kernels_get()) return;
    rm_cell_kernels_use(kernels);
    remat_status status = rm_op_check_again(op, op_f64, NULL);
    ck_assert_msg(!status, "%s: %s", kernels->isa, remat_last_error());
    rm_cell_kernels_use(NULL);
}
END_TEST

START_TEST(op_list_is_in_order) {
    for (int i = 0; i < rm_n_ops; i++) {
        ck_assert_ptr_eq(rm_op_find(rm_ops[i]->name), rm_ops[i]);
        ck_assert_str_eq(rm_op_find_f64(rm_ops[i]->name)->name, rm_ops[i]->name);
        ck_assert_msg(rm_ops[i]->doc && *rm_ops[i]->doc, "%s has no doc", rm_ops[i]->name);
    }
    ck_assert_ptr_null(rm_op_find("no such op"));
}
END_TEST

/* ---- Known values from other implementations (PyTorch 2 in double) ------------------------------------------- */

START_TEST(unary_ops_have_known_values) {
    double x[2] = {1, -0.5}, dx;
    remat_tensor t = {rm_desc_make(REMAT_F64, 1, (int64_t[]){2}), x};
    CLOSE(y_of("gelu", NULL, t, none, none, &dx, 0), 0.841344746068543);
    CLOSE(dx, 1.0833154705876864);
    CLOSE(y_of("gelu", NULL, t, none, none, &dx, 1), -0.15426876936299349);
    CLOSE(dx, 0.13250487534383712);
    CLOSE(y_of("gelu_tanh", NULL, t, none, none, &dx, 0), 0.8411919906082768);
    CLOSE(dx, 1.0829640838457826);
    CLOSE(y_of("gelu_tanh", NULL, t, none, none, &dx, 1), -0.15428599017485606);
    CLOSE(dx, 0.13263009646535764);
    CLOSE(y_of("silu", NULL, t, none, none, &dx, 0), 0.7310585786300049);
    CLOSE(dx, 0.9276705118714869);
    CLOSE(y_of("silu", NULL, t, none, none, &dx, 1), -0.1887703343990727);
    CLOSE(dx, 0.2600388126973482);
    CLOSE(y_of("sigmoid", NULL, t, none, none, &dx, 1), 0.3775406687981454);
    CLOSE(dx, 0.2350037122015945);
    CLOSE(y_of("tanh", NULL, t, none, none, &dx, 1), -0.4621171572600098);
    CLOSE(dx, 0.7864477329659274);
    CLOSE(y_of("relu", NULL, t, none, none, &dx, 1), 0.0);
    CLOSE(dx, 0.0);
    CLOSE(y_of("relu", NULL, t, none, none, &dx, 0), 1.0);
    CLOSE(dx, 1.0);
    CLOSE(y_of("scale", &(rm_scale_attr){-3, 0}, t, none, none, &dx, 1), 1.5);
    CLOSE(dx, -3.0);
    CLOSE(y_of("reciprocal", NULL, t, none, none, &dx, 1), -2.0);
    CLOSE(dx, -4.0);
    CLOSE(y_of("sin", NULL, t, none, none, &dx, 0), 0.8414709848078965);
    CLOSE(dx, 0.5403023058681398);
    CLOSE(y_of("cos", NULL, t, none, none, &dx, 1), 0.8775825618903728);
    CLOSE(dx, 0.479425538604203);
    CLOSE(y_of("erf", NULL, t, none, none, &dx, 1), -0.5204998778130465);
    CLOSE(dx, 0.8787825789354448);
    CLOSE(y_of("log1p", NULL, t, none, none, &dx, 1), -0.6931471805599453);
    CLOSE(dx, 2.0);
    CLOSE(y_of("expm1", NULL, t, none, none, &dx, 1), -0.3934693402873666);
    CLOSE(dx, 0.6065306597126334);
    x[0] = 0.0625, x[1] = 0;
    CLOSE(y_of("log", NULL, t, none, none, &dx, 0), -2.772588722239781);
    CLOSE(dx, 16.0);
    CLOSE(y_of("sqrt", NULL, t, none, none, &dx, 0), 0.25);
    CLOSE(dx, 2.0);
    CLOSE(y_of("rsqrt", NULL, t, none, none, &dx, 0), 4.0);
    CLOSE(dx, -32.0);
    CLOSE(y_of("norm_root", NULL, t, none, none, &dx, 0), 0.25);
    CLOSE(dx, 2.0);
    CLOSE(y_of("norm_root", NULL, t, none, none, &dx, 1), 0.0);
    CLOSE(dx, 0.0);
    y_of("sqrt", NULL, t, none, none, &dx, 1);
    ck_assert(isinf(dx));
}
END_TEST

/* Of floats of all sizes, and of many near 1. */
static void check_ulps(const char *name, rm_activation which, double (*exact_of)(double), float limit, double ulps) {
    static const float corners[] = {INFINITY, 0, -0.0f, -1, -INFINITY, NAN, 1, 0x1p-149f, 0x1.fffffep127f, 0x1p-126f};
    enum { CORNERS = sizeof corners / sizeof *corners, COUNT = 1 << 16 };
    static float x[COUNT], y[COUNT];
    for (uint32_t i = 0; i < COUNT; i++) {
        uint32_t bits = i % 4 ? i * 32771u % 0x7f800000u : 0x3f800000u - (1u << 14) + i; /* all sizes; near 1 */
        memcpy(&x[i], &bits, sizeof bits);
        if (i % 2) x[i] = -x[i];
        if (i < CORNERS) x[i] = corners[i];
    }
    rm_cell_kernels_get()->activation[which].forward(x, y, COUNT);
    for (int i = 0; i < COUNT; i++) {
        if (isfinite(x[i]) && fabsf(x[i]) > limit) continue;
        const double exact = exact_of((double)x[i]), size = fmax(fabs(exact), 0x1p-126);
        const double ulp = nextafterf((float)size, INFINITY) - (float)size;
        const bool same = isnan(exact) ? isnan(y[i]) : isinf(exact) ? y[i] == exact : fabs(y[i] - exact) <= ulps * ulp;
        ck_assert_msg(same, "%s(%a) is %a, not %a", name, (double)x[i], (double)y[i], exact);
    }
}

START_TEST(functions_are_within_a_few_ulp) {
    check_ulps("log", RM_ACTIVATION_log, log, INFINITY, 2);
    check_ulps("log1p", RM_ACTIVATION_log1p, log1p, INFINITY, 2.5);
    check_ulps("expm1", RM_ACTIVATION_expm1, expm1, 87, 4);
    check_ulps("erf", RM_ACTIVATION_erf, erf, INFINITY, 2);
    check_ulps("sin", RM_ACTIVATION_sin, sin, 1e6f, 2);
    check_ulps("cos", RM_ACTIVATION_cos, cos, 1e6f, 2);
    static const float far[] = {0x1p29f, 0x1.fffffep127f};
    float y[2];
    rm_cell_kernels_get()->activation[RM_ACTIVATION_sin].forward(far, y, 2);
    ck_assert(fabs(y[0] - sin(0x1p29)) < 1e-6 && y[1] == 0);
}
END_TEST

START_TEST(quotients_and_picked_columns_have_known_values) {
    double a[4] = {1, -2, 3, 0.5}, b[2] = {4, -0.5}, dx;
    int32_t chosen[2] = {1, -1};
    remat_tensor left = {rm_desc_make(REMAT_F64, 2, (int64_t[]){2, 2}), a};
    remat_tensor right = {rm_desc_make(REMAT_F64, 2, (int64_t[]){2, 1}), b};
    remat_tensor index = {rm_desc_make(REMAT_I32, 1, (int64_t[]){2}), chosen};
    CLOSE(y_of("div", NULL, left, right, none, &dx, 2), -6.0);
    CLOSE(dx, -2.0);
    CLOSE(y_of("pick", NULL, left, index, none, &dx, 0), -2.0);
    CLOSE(dx, 0.0);
    CLOSE(y_of("pick", NULL, left, index, none, &dx, 1), 0.0); /* the second row has none */
    CLOSE(dx, 1.0);
    y_of("pick", NULL, left, index, none, &dx, 3);
    CLOSE(dx, 0.0);
}
END_TEST

/* torch.bmm([[[1, -2], [3, 0.5]]], b), and with b's last axes swapped. */
START_TEST(batched_products_have_known_values) {
    double a[4] = {1, -2, 3, 0.5}, b[4] = {4, -0.5, 1, 2}, dx;
    const rm_batched_matmul_attr transposed = {1};
    remat_tensor left = {rm_desc_make(REMAT_F64, 3, (int64_t[]){1, 2, 2}), a};
    remat_tensor right = {rm_desc_make(REMAT_F64, 3, (int64_t[]){1, 2, 2}), b};
    CLOSE(y_of("batched_matmul", NULL, left, right, none, &dx, 1), -4.5);
    CLOSE(dx, 3.0);
    CLOSE(y_of("batched_matmul", NULL, left, right, none, &dx, 2), 12.5);
    CLOSE(dx, 3.5);
    CLOSE(y_of("batched_matmul", &transposed, left, right, none, &dx, 1), -3.0);
    CLOSE(dx, 1.5);
    CLOSE(y_of("batched_matmul", &transposed, left, right, none, &dx, 2), 11.75);
    CLOSE(dx, 5.0);
}
END_TEST

START_TEST(masked_values_are_not_read) {
    double a[4] = {1, -INFINITY, NAN, INFINITY}, mask[4] = {1, 0, -1, 1}, dx;
    remat_tensor x = {rm_desc_make(REMAT_F64, 1, (int64_t[]){4}), a};
    remat_tensor m = {rm_desc_make(REMAT_F64, 1, (int64_t[]){4}), mask};
    CLOSE(y_of("masked", NULL, x, m, none, &dx, 0), 1.0);
    CLOSE(dx, 1.0);
    for (int i = 1; i < 3; i++) {
        CLOSE(y_of("masked", NULL, x, m, none, &dx, i), 0.0);
        CLOSE(dx, 0.0);
    }
    ck_assert(isinf(y_of("masked", NULL, x, m, none, &dx, 3)));
    CLOSE(dx, 1.0);
}
END_TEST

START_TEST(columns_have_known_values) {
    double a[4] = {1, 2, 3, 4}, b[2] = {5, 6}, dx;
    remat_tensor left = {rm_desc_make(REMAT_F64, 2, (int64_t[]){2, 2}), a};
    remat_tensor right = {rm_desc_make(REMAT_F64, 2, (int64_t[]){2, 1}), b};
    static const double expected[6] = {1, 2, 5, 3, 4, 6};
    for (int i = 0; i < 4; i++) CLOSE(y_of("concat", NULL, left, right, none, &dx, i), expected[i]);
    CLOSE(dx, 1.0);
    CLOSE(y_of("slice", &(rm_slice_attr){1, 1}, left, none, none, &dx, 1), 4.0);
    CLOSE(dx, 1.0); /* for the second element of the first row */
    y_of("slice", &(rm_slice_attr){1, 1}, left, none, none, &dx, 2);
    CLOSE(dx, 0.0);
}
END_TEST

START_TEST(time_is_reversed) {
    double x[6] = {1, 2, 3, 4, 5, 6}, dx;
    remat_tensor t = {rm_desc_make(REMAT_F64, 2, (int64_t[]){3, 2}), x};
    static const double expected[6] = {5, 6, 3, 4, 1, 2};
    for (int i = 0; i < 6; i++) CLOSE(y_of("reverse", NULL, t, none, none, &dx, i), expected[i]);
}
END_TEST

/* ---- Linear recurrences: y of one call in double, and the gradients of the sum of all y ------------------------ */

typedef struct {
    double y[64], dx[REMAT_MAX_INPUTS][64], dh[64];
} swept;

static swept sweep(const char *name, const remat_tensor *x, int n, const double *h_in) {
    static swept out;
    const remat_op *op = rm_op_find_f64(name);
    double dy[64], h_out[64], scratch[64], aux[64];
    remat_desc desc[REMAT_MAX_INPUTS], state[REMAT_MAX_STATES];
    remat_call call = {.t_total = 3, .threads = 1, .training = true, .scratch = scratch, .aux = aux};
    out = (swept){{0}, {{0}}, {0}};
    for (int i = 0; i < REMAT_MAX_INPUTS; i++) {
        call.x[i] = i < n ? x[i] : none;
        desc[i] = call.x[i].desc;
        if (i < n && desc[i].dtype == REMAT_F64) call.dx[i] = (remat_tensor){desc[i], out.dx[i]};
    }
    ck_assert_msg(!op->infer(desc, NULL, &call.y.desc, state), "%s", remat_last_error());
    for (int i = 0; i < 64; i++) dy[i] = 1;
    call.y.data = out.y, call.dy = (remat_tensor){call.y.desc, dy};
    call.state_in[0] = (remat_tensor){state[0], (void *)(uintptr_t)h_in};
    call.state_out[0] = (remat_tensor){state[0], h_out}, call.dstate_in[0] = (remat_tensor){state[0], out.dh};
    op->on[REMAT_ON_CPU].forward(&call);
    op->on[REMAT_ON_CPU].backward(&call);
    return out;
}

static void all_close(const double *got, const double *expected, int n, const char *what) {
    for (int i = 0; i < n; i++)
        ck_assert_msg(fabs(got[i] - expected[i]) <= 1e-14, "%s[%d]: %.17g, not %.17g", what, i, got[i], expected[i]);
}

/* Values of minGRU-pytorch: min_gru in log space, min_lstm step by step. */
START_TEST(minimal_cells_have_known_values) {
    static double x[2][18] = {{0.5, -1, 2, -0.25, -2, 0.75, -1, 3, 1.5, -0.5, 0.25, -0.75},
                              {0.5, -1, 2, -0.25, 1, -3, -2, 0.75, -1, 3, 0.5, 0, 1.5, -0.5, 0.25, -0.75, -2, 1}};
    static const double h_in[2] = {0.75, 0.3};
    static const double y[2][6] = {{0.9701992694944704, 0.2864018244266977, 0.7413311022245815, 1.2043005151311261,
                                    1.4489251789497506, 0.9390583457610269},
                                   {0.8633877242098248, 0.29696448816775295, 0.34372833091914284, 0.6250150482851399,
                                    0.6334823445849909, 0.4530198693214461}};
    static const double dx[2][18] = {
        {1.806632132259538, 0.09293654136410645, 0.0538389572960965, -0.008253362062821443, 0.040600000568536306,
         1.5995421831458292, -0.24057092986062506, 0.07309825379579842, 0.5621765008857981, 0.07539419664712714,
         0.3098013146242965, -0.18014683155924305},
        {0.7032902807450703, 0.035660752225107804, -0.01145278856890018, 0.0028573864203464932, 0.02583937695586471,
         -0.004841668710924494, 0.1338064530413599, 0.4492018738368913, 0.20918568695343773, -0.013314548851798034,
         -0.10802978921798669, 0.14037220571508713, 0.174943530747372, 0.16332804074924373, -0.10466758457250815,
         0.03562848684470274, 0.21056636484105434, -0.014108180814431074}};
    static const double dh[2][2] = {{0.24450107132371013, 0.606946278810034}, {0.8473411602820606, 1.6744198286611227}};
    int64_t parts = 2 + _i;
    remat_tensor t = {rm_desc_make(REMAT_F64, 3, (int64_t[]){3, 1, 2 * parts}), x[_i]};
    swept got = sweep(_i ? "min_lstm" : "min_gru", &t, 1, h_in);
    all_close(got.y, y[_i], 6, "y");
    all_close(got.dx[0], dx[_i], (int)(6 * parts), "dx");
    all_close(got.dh, dh[_i], 2, "dh");
}
END_TEST

START_TEST(linear_scan_has_known_values) {
    double a[6] = {2, 0.5, -1, 3, 0.5, 4}, b[6] = {1, 2, 3, -1, 5, 0.5}, h_in[2] = {10, 20};
    double reset[6] = {0, -1, 1, 0, 0, 0}; /* resets the first row at t = 1 */
    remat_desc shape = rm_desc_make(REMAT_F64, 3, (int64_t[]){3, 2, 1}), rows = rm_desc_make(REMAT_F64, 2, shape.dim);
    remat_tensor x[3] = {{shape, a}, {shape, b}, {rows, reset}};
    swept got = sweep("linear_scan", x, 3, h_in);
    all_close(got.y, (double[]){21, 12, 3, 35, 6.5, 140.5}, 6, "y");
    all_close(got.dx[0], (double[]){10, 320, 0, 60, 3, 35}, 6, "da");
    all_close(got.dx[1], (double[]){1, 16, 1.5, 5, 1, 1}, 6, "db");
    all_close(got.dh, (double[]){2, 8}, 2, "dh");
}
END_TEST

/* Values of PyTorch's cummax and its gradient: the first of equal elements is the largest, and NaN is larger than any. A
 * state is not read at the start of a call. */
START_TEST(running_max_has_known_values) {
    double x[6] = {1, 2, 1, NAN, 3, INFINITY}, h_in[2] = {10, 20};
    remat_tensor t = {rm_desc_make(REMAT_F64, 3, (int64_t[]){3, 2, 1}), x};
    swept got = sweep("running_max", &t, 1, h_in);
    all_close(got.y, (double[]){1, 2, 1}, 3, "y");
    ck_assert(isnan(got.y[3]) && isnan(got.y[5]));
    CLOSE(got.y[4], 3.0);
    all_close(got.dx[0], (double[]){2, 1, 0, 2, 1, 0}, 6, "dx");
    all_close(got.dh, (double[]){0, 0}, 2, "dh");
}
END_TEST

/* Values of PyTorch's Conv1d(2, 2, 3, groups=2) after two zeros of padding. */
START_TEST(causal_convolution_has_known_values) {
    double x[6] = {1, -2, 0.5, 3, -1, 2}, w[6] = {1, 2, -1, 0.5, -0.25, 3}, bias[2] = {0.5, -1};
    remat_tensor t[3] = {{rm_desc_make(REMAT_F64, 3, (int64_t[]){3, 1, 2}), x},
                         {rm_desc_make(REMAT_F64, 3, (int64_t[]){2, 1, 3}), w},
                         {rm_desc_make(REMAT_F64, 1, (int64_t[]){2}), bias}};
    swept got = sweep("causal_conv", t, 3, NULL);
    all_close(got.y, (double[]){-0.5, -7, 2, 8.5, 3.5, 3.25}, 6, "y");
    all_close(got.dx[1], (double[]){1, 1.5, 0.5, -2, 1, 3}, 6, "dw");
    all_close(got.dx[2], (double[]){3, 3}, 2, "dbias");
}
END_TEST

START_TEST(rms_norm_has_known_values) {
    double x[4] = {1, 2, 4, -1}, gain[4] = {1, 2, 0.5, -1}, dx;
    remat_tensor t = {rm_desc_make(REMAT_F64, 1, (int64_t[]){4}), x}, g = {t.desc, gain};
    static const double y[4] = {0.4264010450740834, 1.7056041802963335, 0.8528020901481668, 0.4264010450740834};
    static const double expected[4] = {0.27134640151013223, 0.5426928030202645, -0.4070180517187628,
                                       -0.27134640151013223};
    for (int i = 0; i < 4; i++) {
        CLOSE(y_of("rms_norm", &(rm_rms_norm_attr){1e-5}, t, g, none, &dx, i), y[i]);
        CLOSE(dx, expected[i]);
    }
}
END_TEST

/* Saturated gates keep or replace the whole state, and cause no NaN. */
START_TEST(saturated_minimal_gates_give_no_nan) {
    static const float gate[][2] = {{-3e38f, -3e38f}, {3e38f, -3e38f}, {-3e38f, 3e38f}, {3e38f, 3e38f},
                                    {-200, -100},     {-100, -200},    {500, 500},      {-500, -500}};
    static const float lstm[] = {4.5f, 2, 7, 4.5f, 7, 2, 4.5f, 4.5f}, gru[] = {2, 7, 2, 7, 2, 2, 7, 2};
    for (int i = 0; i < 8; i++)
        for (int kind = 0; kind < 2; kind++) {
            float x[3] = {6.5f, gate[i][0], gate[i][1]}, h = 2, y, h_out, dy = 1, dx[3], dh, scratch;
            remat_call call = {
                .t_total = 1, .threads = 1, .x[0] = {rm_desc_make(REMAT_F32, 3, (int64_t[]){1, 1, 2 + kind}), x}};
            remat_desc one = rm_desc_make(REMAT_F32, 3, (int64_t[]){1, 1, 1}),
                       state = rm_desc_make(REMAT_F32, 2, one.dim);
            call.y = (remat_tensor){one, &y}, call.dy = (remat_tensor){one, &dy}, call.scratch = &scratch;
            call.state_in[0] = (remat_tensor){state, &h}, call.state_out[0] = (remat_tensor){state, &h_out};
            call.dx[0] = (remat_tensor){call.x[0].desc, dx}, call.dstate_in[0] = (remat_tensor){state, &dh};
            const remat_op *op = rm_op_find(kind ? "min_lstm" : "min_gru");
            op->on[REMAT_ON_CPU].forward(&call);
            op->on[REMAT_ON_CPU].backward(&call);
            float expected = kind ? lstm[i] : gru[i];
            ck_assert_msg(fabsf(y - expected) <= 1e-5f, "%s, %d: %g, not %g", op->name, i, (double)y, (double)expected);
            for (int k = 0; k < 2 + kind; k++) ck_assert_msg(isfinite(dx[k]), "%s, %d: dx", op->name, i);
            ck_assert(isfinite(dh));
        }
}
END_TEST

/* torch.nn.BatchNorm1d(2, momentum=0.3, eps=1e-3), in training and then in evaluation. */
START_TEST(batch_norm_has_known_values) {
    double x[8] = {1, 2, 3, -4, 0.5, 6, -7, 8}, dy[8] = {1, 2, 3, 4, 5, 6, 7, 9}, gain[2] = {2, 0.5},
           bias[2] = {0.25, -1};
    double mean[2] = {0}, var[2] = {1, 1}, y[8], dx[8], dgain[2] = {0}, dbias[2] = {0}, once[5], scratch[5];
    static const double trained[8] = {-1.022156707060009, -0.096951829198184, -0.744626741807269, -1.340497677590307,
                                      -1.484759145990921, 3.603867682249114,  -1.595870935783038, -0.319004644819385};
    static const double slope[8] = {-1.615389946714851, -1.197546703718271, -0.263699788854508, -0.109490886597531,
                                    2.339110382165069,  0.473826268268053,  0.175490007106371,  0.197700668345668};
    static const double evaluated[8] = {0.608692591954323,  1.856318998751970, -0.606094284142371, -1.525207621143506,
                                        -0.015120611444500, 6.846824625942559, -1.919113337001135, 0.050415242287011};
    remat_desc shape = rm_desc_make(REMAT_F64, 3, (int64_t[]){2, 2, 2}),
               vector = rm_desc_make(REMAT_F64, 1, (int64_t[]){2});
    const remat_op *op = rm_op_find_f64("batch_norm");
    remat_call call = {.attr = &(rm_batch_norm_attr){0.3, 1e-3, 1, 0, 0},
                       .x = {{shape, x}, {vector, mean}, {vector, var}, {vector, gain}, {vector, bias}},
                       .y = {shape, y},
                       .dy = {shape, dy},
                       .dx = {{shape, dx}, {vector, NULL}, {vector, NULL}, {vector, dgain}, {vector, dbias}},
                       .once = once,
                       .scratch = scratch,
                       .training = true,
                       .t_total = 1,
                       .threads = 1};
    ck_assert_uint_eq(op->once_bytes((remat_desc[]){shape}, call.attr), sizeof once);
    for (int pass = 0; pass < 2; pass++, call.training = false) {
        op->on[REMAT_ON_CPU].once(&call);
        op->on[REMAT_ON_CPU].forward(&call);
        for (int i = 0; i < 8; i++) CLOSE(y[i], pass ? evaluated[i] : trained[i]);
        if (pass) break;
        op->on[REMAT_ON_CPU].backward(&call);
        for (int i = 0; i < 8; i++) CLOSE(dx[i], slope[i]);
    }
    CLOSE(dgain[0], 4.741674999041851);
    CLOSE(dgain[1], 2.723981420722459);
    CLOSE(dbias[1], 23.0);
    CLOSE(mean[0], 0.7125);
    CLOSE(var[0], 2.56875);
    CLOSE(var[1], 14.5);
}
END_TEST

START_TEST(layer_norm_has_known_values) {
    double x[4] = {1, 2, 4, -1}, gain[4] = {1, 2, 0.5, 1}, bias[4] = {0, 1, 0, -1};
    remat_tensor t = {rm_desc_make(REMAT_F64, 2, (int64_t[]){1, 4}), x};
    remat_tensor g = {rm_desc_make(REMAT_F64, 1, (int64_t[]){4}), gain}, b = {g.desc, bias};
    const remat_op *op = rm_op_find_f64("layer_norm");
    ck_assert_ptr_nonnull(op);
    double dgain[4] = {0}, dbias[4] = {0}, y[4], dy[4] = {1, 1, 1, 1}, gradient[4], aux[2];
    remat_call call = {.attr = &(rm_layer_norm_attr){1e-5},
                       .x = {t, g, b},
                       .y = {t.desc, y},
                       .dy = {t.desc, dy},
                       .dx = {{t.desc, gradient}, {g.desc, dgain}, {b.desc, dbias}},
                       .aux = aux,
                       .t_total = 1,
                       .threads = 1};
    op->on[REMAT_ON_CPU].forward(&call);
    op->on[REMAT_ON_CPU].backward(&call);
    /* mean 1.5, variance 3.25 */
    double rstd = 1 / sqrt(3.25 + 1e-5);
    CLOSE(y[0], -0.5 * rstd);
    CLOSE(y[1], 2 * 0.5 * rstd + 1);
    CLOSE(y[3], -2.5 * rstd - 1);
    CLOSE(dgain[2], 2.5 * rstd);
    CLOSE(dbias[2], 1.0);
    CLOSE(gradient[0] + gradient[1] + gradient[2] + gradient[3], 0.0); /* y does not depend on a shift of the row */
}
END_TEST

/* A row whose mean is far larger than its spread: a single pass in float would lose the variance. */
START_TEST(layer_norm_survives_a_large_mean) {
    enum { C = 512 };
    static float x[C], y[C], gain[C], bias[C];
    for (int i = 0; i < C; i++) x[i] = 20000 + (float)(i % 2), gain[i] = 1;
    const remat_op *op = rm_op_find("layer_norm");
    remat_desc row = rm_desc_make(REMAT_F32, 2, (int64_t[]){1, C}), vector = rm_desc_make(REMAT_F32, 1, (int64_t[]){C});
    remat_call call = {.attr = &(rm_layer_norm_attr){1e-5},
                       .x = {{row, x}, {vector, gain}, {vector, bias}},
                       .y = {row, y},
                       .t_total = 1,
                       .threads = 1};
    op->on[REMAT_ON_CPU].forward(&call);
    for (int i = 0; i < C; i++) ck_assert_msg(fabs(y[i] - (i % 2 ? 1.0 : -1.0)) < 1e-4, "%g", (double)y[i]);
}
END_TEST

int main(void) {
    TCase *promises = tcase_create("promises"), *numbers = tcase_create("numbers");
    tcase_set_timeout(promises, 300);
    tcase_add_loop_test(promises, op_keeps_its_promises, 0, rm_n_ops);
    tcase_add_loop_test(promises, cells_keep_their_promises_with_every_instruction_set, 0, rm_n_ops * RM_CELL_BF16);
    tcase_add_test(promises, op_list_is_in_order);
    tcase_add_test(numbers, unary_ops_have_known_values);
    tcase_add_test(numbers, functions_are_within_a_few_ulp);
    tcase_add_test(numbers, quotients_and_picked_columns_have_known_values);
    tcase_add_test(numbers, batched_products_have_known_values);
    tcase_add_test(numbers, masked_values_are_not_read);
    tcase_add_test(numbers, columns_have_known_values);
    tcase_add_test(numbers, time_is_reversed);
    tcase_add_loop_test(numbers, minimal_cells_have_known_values, 0, 2);
    tcase_add_test(numbers, saturated_minimal_gates_give_no_nan);
    tcase_add_test(numbers, linear_scan_has_known_values);
    tcase_add_test(numbers, running_max_has_known_values);
    tcase_add_test(numbers, causal_convolution_has_known_values);
    tcase_add_test(numbers, rms_norm_has_known_values);
    tcase_add_test(numbers, batch_norm_has_known_values);
    tcase_add_test(numbers, layer_norm_has_known_values);
    tcase_add_test(numbers, layer_norm_survives_a_large_mean);
    return run_cases("ops", promises, numbers);
}
