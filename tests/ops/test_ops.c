/* test_ops.c: every built-in op keeps the promises of remat_op.h (remat_op_check) and matches values from other
 * implementations. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "ops/cpu/kernels.h"
#include "ops/op.h"

START_TEST(op_keeps_its_promises) {
    const remat_op *op = rm_ops[_i], *op_f64 = rm_op_find_f64(op->name);
    remat_op_report report;
    ck_assert_ptr_nonnull(op_f64);
    ck_assert_msg(!remat_op_check(op, op_f64, &report), "%s", remat_last_error());
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
    remat_status status = remat_op_check(op, op_f64, NULL);
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

/* y of an op in double, in one call; x[i] are arrays of the given shapes. */
static double y_of(const char *name, const void *attr, remat_tensor a, remat_tensor b, remat_tensor c, double *dx,
                   int64_t which) {
    const remat_op *op = rm_op_find_f64(name);
    remat_call call = {.attr = attr, .x = {a, b, c}, .t_total = 1, .threads = 1, .training = true};
    remat_desc x[REMAT_MAX_INPUTS] = {a.desc, b.desc, c.desc}, state[REMAT_MAX_STATES];
    double y[64], dy[64], gradient[64], aux[64], scratch[64];
    for (int i = 3; i < REMAT_MAX_INPUTS; i++) x[i].rank = call.x[i].desc.rank = -1;
    ck_assert_msg(!op->infer(x, attr, &call.y.desc, state), "%s", remat_last_error());
    call.dy.desc = call.y.desc;
    for (int i = 0; i < 64; i++) dy[i] = 1;
    call.y.data = y, call.dy.data = dy, call.aux = aux, call.scratch = scratch;
    call.dx[0] = (remat_tensor){a.desc, gradient};
    op->on[REMAT_ON_CPU].forward(&call);
    op->on[REMAT_ON_CPU].backward(&call);
    *dx = gradient[which];
    return y[call.y.desc.rank ? which : 0];
}

#define CLOSE(got, expected) ck_assert_msg(fabs((got) - (expected)) <= 1e-14, "%.17g, not %.17g", got, expected)
static const remat_tensor none = {.desc = {.rank = -1}};

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
    double dy[64], h_out[64], scratch[64];
    remat_desc desc[REMAT_MAX_INPUTS], state[REMAT_MAX_STATES];
    remat_call call = {.t_total = 3, .threads = 1, .training = true, .scratch = scratch};
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

/* Two heads of two features; values from the formula, computed independently. */
START_TEST(attention_has_known_values) {
    double q[8] = {1, -2, 0.5, 0, 0, 1, -1, 2}, k[8] = {0.5, 1, 2, -1, -1, 0.25, 1, 1},
           v[8] = {1, 2, 3, 4, -1, 0, 0.5, 2}, dx;
    remat_desc shape = rm_desc_make(REMAT_F64, 3, (int64_t[]){2, 1, 4});
    static const double y[2][8] = {
        {0, 1, 1.9686975020990245, 3.1749580016792196, 0.25912019193928293, 1.259120191939283, 0.5707947963566142,
         2.0566358370852913},
        {1, 2, 3, 4, 0.25912019193928293, 1.259120191939283, 0.5707947963566142, 2.0566358370852913}};
    static const double dq[2][8] = {
        {1.0606601717798212, 0.5303300858899106, 0.7711447824220162, -1.542289564844034, 0.9894439753823172,
         0.4947219876911586, 0.08755542050981527, -0.1751108410196302},
        {0, 0, 0, 0, 0.9894439753823172, 0.4947219876911586, 0.08755542050981527, -0.1751108410196302}};
    for (int causal = 0; causal < 2; causal++)
        for (int i = 0; i < 8; i++) {
            rm_attention_attr attr = {2, causal, 0};
            CLOSE(y_of("attention", &attr, (remat_tensor){shape, q}, (remat_tensor){shape, k}, (remat_tensor){shape, v},
                       &dx, i),
                  y[causal][i]);
            CLOSE(dx, dq[causal][i]);
        }
}
END_TEST

/* Scores far apart: no exponential overflows. A NaN reaches the timesteps that attend to it. */
START_TEST(attention_handles_extreme_scores) {
    float q[3] = {1e19f, 1e19f, 1}, k[3] = {1e19f, -1e19f, 2}, v[3] = {1, 2, 3}, y[3], p[9];
    remat_desc shape = rm_desc_make(REMAT_F32, 3, (int64_t[]){3, 1, 1});
    remat_call call = {.attr = &(rm_attention_attr){1, 1, 0},
                       .x = {{shape, q}, {shape, k}, {shape, v}},
                       .y = {shape, y},
                       .scratch = p,
                       .t_total = 3,
                       .threads = 1};
    rm_op_find("attention")->on[REMAT_ON_CPU].forward(&call);
    ck_assert(y[0] == 1 && y[1] == 1 && y[2] == 1);
    q[1] = NAN;
    rm_op_find("attention")->on[REMAT_ON_CPU].forward(&call);
    ck_assert(y[0] == 1 && isnan(y[1]) && y[2] == 1);
    k[2] = NAN;
    rm_op_find("attention")->on[REMAT_ON_CPU].forward(&call);
    ck_assert(y[0] == 1 && isnan(y[2]));
}
END_TEST

/* Same result as without the padded keys, for the definition and the kernel. If all keys are padding, y is 0. */
START_TEST(attention_ignores_padding) {
    enum { T = 2, S = 4, W = 2 };
    const double q[T * W] = {1, -2, 0.5, 1}, k[S * W] = {9, 9, 0.5, 1, 7, -7, -1, 0.25},
                       v[S * W] = {5, 5, 1, 2, 6, 6, -1, 0};
    const double k_left[] = {0.5, 1, -1, 0.25}, v_left[] = {1, 2, -1, 0};
    double y[T * W], y_left[T * W], p[S];
    float qf[T * W], kf[S * W], vf[S * W], yf[T * W], pf[T * S];
    int32_t padding[S] = {1, 0, 1, 0};
    remat_desc query = rm_desc_make(REMAT_F64, 3, (int64_t[]){T, 1, W}),
               keys = rm_desc_make(REMAT_F64, 3, (int64_t[]){S, 1, W}),
               left = rm_desc_make(REMAT_F64, 3, (int64_t[]){2, 1, W}),
               marks = rm_desc_make(REMAT_I32, 2, (int64_t[]){S, 1});
    rm_attention_attr attr = {1, 0, 0};
    for (int i = 0; i < T * W; i++) qf[i] = (float)q[i];
    for (int i = 0; i < S * W; i++) kf[i] = (float)k[i], vf[i] = (float)v[i];
    remat_call whole = {.attr = &attr,
                        .x = {{query, (void *)q}, {keys, (void *)k}, {keys, (void *)v}, {marks, padding}},
                        .y = {query, y},
                        .scratch = p,
                        .t_total = T,
                        .threads = 1};
    remat_call part = whole, fast = whole;
    part.x[1] = (remat_tensor){left, (void *)k_left}, part.x[2] = (remat_tensor){left, (void *)v_left};
    part.x[3] = (remat_tensor){{.rank = -1}, NULL}, part.y.data = y_left;
    fast.x[0].data = qf, fast.x[1].data = kf, fast.x[2].data = vf, fast.y.data = yf, fast.scratch = pf;
    rm_op_find_f64("attention")->define_forward(&whole);
    rm_op_find_f64("attention")->define_forward(&part);
    rm_op_find("attention")->on[REMAT_ON_CPU].forward(&fast);
    for (int i = 0; i < T * W; i++) {
        ck_assert(y[i] == y_left[i]);
        ck_assert_msg(fabs((double)yf[i] - y[i]) < 1e-6, "%g, not %g", (double)yf[i], y[i]);
    }
    padding[1] = padding[3] = 1;
    rm_op_find_f64("attention")->define_forward(&whole);
    rm_op_find("attention")->on[REMAT_ON_CPU].forward(&fast);
    for (int i = 0; i < T * W; i++) ck_assert(y[i] == 0 && yf[i] == 0);
}
END_TEST

/* Fills `count` numbers; those of timesteps from `end` on are 0. */
static void fill_rows(float *x, int64_t count, int64_t width, int64_t end) {
    for (int64_t i = 0; i < count; i++) x[i] = i / width < end ? (float)sin((double)(i * 7 + count)) : 0;
}

/* Keys end before the end of the sequence, at a different timestep in each row, and so do gradients, in various blocks
 * of timesteps. The kernel must equal the definition: for sums of about 300 products of numbers up to 1, both differ
 * by less than 1e-4. */
START_TEST(attention_respects_row_ends) {
    enum { MOST = 300, B = 2, WIDTH = 4 };
    static const int64_t steps[][4] = {/* T, S; where dy ends; heads of k and v */
                                       {300, 40, 300, 2}, {300, 40, 90, 1}, {300, 140, 0, 2},
                                       {130, 20, 129, 1}, {7, 5, 3, 2},     {260, 260, 128, 1}};
    static float x[3][MOST * B * WIDTH], dy[MOST * B * WIDTH], dx[2][3][MOST * B * WIDTH], y[2][MOST * B * WIDTH],
        scratch[2 * 128 * MOST];
    static int32_t padding[MOST * B];
    const remat_op *op = rm_op_find("attention");
    for (size_t k = 0; k < sizeof steps / sizeof *steps; k++) {
        int64_t T = steps[k][0], S = steps[k][1], kv = steps[k][3] * 2;
        remat_desc query = rm_desc_make(REMAT_F32, 3, (int64_t[]){T, B, WIDTH}),
                   keys = rm_desc_make(REMAT_F32, 3, (int64_t[]){S, B, kv});
        fill_rows(x[0], T * B * WIDTH, B * WIDTH, T), fill_rows(x[1], S * B * kv, B * kv, S);
        fill_rows(x[2], S * B * kv, B * kv, S), fill_rows(dy, T * B * WIDTH, B * WIDTH, steps[k][2]);
        for (int64_t i = 0; i < S * B; i++) padding[i] = i / B >= S / (2 + i % B * 20) || i / B == 1;
        for (int fast = 0; fast < 2; fast++) {
            remat_call call = {.attr = &(rm_attention_attr){2, T == 260, 0},
                               .x = {{query, x[0]}, {keys, x[1]}, {keys, x[2]}, {.desc.rank = -1}},
                               .y = {query, y[fast]},
                               .dy = {query, dy},
                               .dx = {{query, dx[fast][0]}, {keys, dx[fast][1]}, {keys, dx[fast][2]}},
                               .scratch = scratch,
                               .t_total = T,
                               .threads = 1};
            if (T != 260) call.x[3] = (remat_tensor){rm_desc_make(REMAT_I32, 2, (int64_t[]){S, B}), padding};
            for (int64_t i = 0; i < MOST * B * WIDTH; i++) dx[fast][0][i] = dx[fast][1][i] = dx[fast][2][i] = NAN;
            (fast ? op->on[REMAT_ON_CPU].forward : op->define_forward)(&call);
            (fast ? op->on[REMAT_ON_CPU].backward : op->define_backward)(&call);
        }
        for (int64_t i = 0; i < T * B * WIDTH; i++) {
            ck_assert(fabsf(y[0][i] - y[1][i]) < 1e-4f);
            ck_assert_msg(fabsf(dx[0][0][i] - dx[1][0][i]) < 1e-4f, "case %d, dq %d", (int)k, (int)i);
        }
        for (int64_t i = 0; i < S * B * kv; i++)
            for (int which = 1; which < 3; which++)
                ck_assert_msg(fabsf(dx[0][which][i] - dx[1][which][i]) < 1e-4f, "case %d, d%s %d: %g, not %g", (int)k,
                              which == 1 ? "k" : "v", (int)i, (double)dx[1][which][i], (double)dx[0][which][i]);
    }
}
END_TEST

START_TEST(invalid_attention_is_refused) {
    remat_desc x[4] = {[3] = {.rank = -1}}, y;
    char message[] = "attention: q is f32 (5,2,6), whose 6 features cannot be split into 4 heads";
    for (int i = 0; i < 3; i++) x[i] = rm_desc_make(REMAT_F32, 3, (int64_t[]){5, 2, 6});
    const remat_op *op = rm_op_find("attention");
    ck_assert_int_eq(op->infer(x, &(rm_attention_attr){4, 0, 0}, &y, NULL), REMAT_INVALID);
    ck_assert_msg(strstr(remat_last_error(), message), "%s", remat_last_error());
    ck_assert_int_eq(op->infer(x, &(rm_attention_attr){0, 0, 0}, &y, NULL), REMAT_INVALID);
    ck_assert_int_eq(op->infer(x, NULL, &y, NULL), REMAT_INVALID);
    ck_assert_int_eq(op->infer(x, &(rm_attention_attr){2, 2, 0}, &y, NULL), REMAT_INVALID);
    ck_assert_msg(strstr(remat_last_error(), "causal is 2"), "%s", remat_last_error());
    x[2].dim[2] = 3;
    ck_assert_int_eq(op->infer(x, &(rm_attention_attr){3, 0, 0}, &y, NULL), REMAT_INVALID);
    ck_assert_msg(strstr(remat_last_error(), "v is f32 (5,2,3)"), "%s", remat_last_error());
    x[1].dim[0] = x[2].dim[0] = 7, x[2].dim[2] = 6;
    ck_assert_int_eq(op->infer(x, &(rm_attention_attr){3, 0, 0}, &y, NULL), REMAT_OK);
    ck_assert_int_eq(op->infer(x, &(rm_attention_attr){3, 1, 0}, &y, NULL), REMAT_INVALID);
    ck_assert_msg(strstr(remat_last_error(), "the same number of timesteps"), "%s", remat_last_error());
    x[3] = rm_desc_make(REMAT_I32, 2, (int64_t[]){5, 2});
    ck_assert_int_eq(op->infer(x, &(rm_attention_attr){3, 0, 0}, &y, NULL), REMAT_INVALID);
    ck_assert_msg(strstr(remat_last_error(), "padding is i32 (5,2)"), "%s", remat_last_error());
    x[3].rank = -1;
    static const int64_t wrong[][3] = {{5, 2, 4}, {5, 2, 12}, {5, 2, 1}, {5, 1, 6}}; /* of k and v, for heads of 2 */
    for (int i = 0; i < 4; i++) {
        x[1] = x[2] = rm_desc_make(REMAT_F32, 3, wrong[i]);
        ck_assert_msg(op->infer(x, &(rm_attention_attr){3, 0, 0}, &y, NULL) == REMAT_INVALID, "%d", i);
        ck_assert_ptr_nonnull(strstr(remat_last_error(), "heads of 2 features"));
    }
    x[1] = x[2] = rm_desc_make(REMAT_F32, 3, (int64_t[]){5, 2, 2});
    ck_assert_int_eq(op->infer(x, &(rm_attention_attr){3, 0, 0}, &y, NULL), REMAT_OK);
}
END_TEST

/* Also timestep 2^40 of a pair that rotates by 1 per timestep: its angle is 2^40 modulo 2 pi. */
START_TEST(rotary_has_known_values) {
    double x[4] = {3, 5, 2, 7}, y[4], table[4];
    rm_rotary_attr attr = {10000, 1};
    remat_desc shape = rm_desc_make(REMAT_F64, 3, (int64_t[]){1, 1, 4});
    remat_call call = {.attr = &attr, .x = {{shape, x}}, .y = {shape, y}, .scratch = table, .threads = 1, .t_total = 1};
    for (int64_t t = 0; t < 3; t++) {
        call.t0 = t == 2 ? (int64_t)1 << 40 : t * 100;
        rm_op_find_f64("rotary")->on[REMAT_ON_CPU].forward(&call);
        double angle[2] = {(double)call.t0, (double)call.t0 / 100}; /* 10000^(-2/4) is a hundredth */
        for (int i = 0; i < 2; i++) {
            double error = 1e-14 + 1e-15 * angle[i];
            ck_assert(fabs(y[i] - (x[i] * cos(angle[i]) - x[i + 2] * sin(angle[i]))) <= 20 * error);
            ck_assert(fabs(y[i + 2] - (x[i + 2] * cos(angle[i]) + x[i] * sin(angle[i]))) <= 20 * error);
        }
    }
}
END_TEST

START_TEST(invalid_rotary_arguments_are_refused) {
    remat_desc x[REMAT_MAX_INPUTS] = {rm_desc_make(REMAT_F32, 3, (int64_t[]){5, 2, 6})}, y;
    const remat_op *op = rm_op_find("rotary");
    static const rm_rotary_attr wrong[] = {{10000, 2}, {10000, 0}, {0, 1}, {NAN, 1}, {INFINITY, 1}};
    for (int i = 0; i < 5; i++) {
        ck_assert_msg(op->infer(x, &wrong[i], &y, NULL) == REMAT_INVALID, "%d", i);
        ck_assert_ptr_nonnull(strstr(remat_last_error(), i < 2 ? "pairs in each of" : "base is"));
    }
    ck_assert_int_eq(op->infer(x, &(rm_rotary_attr){10000, 3}, &y, NULL), REMAT_OK);
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
    remat_call call = {.attr = &(rm_batch_norm_attr){0.3, 1e-3, 1, 0},
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

START_TEST(losses_have_known_values) {
    double logits[6] = {1, 2, 3, -1, 0.5, 0}, dx;
    int32_t targets[2] = {2, 0};
    remat_tensor x = {rm_desc_make(REMAT_F64, 2, (int64_t[]){2, 3}), logits};
    remat_tensor t = {rm_desc_make(REMAT_I32, 1, (int64_t[]){2}), targets};
    CLOSE(y_of("softmax_cross_entropy", NULL, x, t, none, &dx, 3), 1.2558682848905545);
    CLOSE(dx, -0.4390241738451356);
    double other[6] = {0, 2, 1, 1, 0.5, -2};
    remat_tensor o = {x.desc, other};
    CLOSE(y_of("mse", NULL, x, o, none, &dx, 5), 13.0 / 6);
    CLOSE(dx, 2.0 / 3);
    CLOSE(y_of("mae", NULL, x, o, none, &dx, 3), 7.0 / 6);
    CLOSE(dx, -1.0 / 6);
    y_of("mae", NULL, x, o, none, &dx, 1);
    CLOSE(dx, 0.0);
    CLOSE(y_of("huber", &(rm_huber_attr){1.5}, x, o, none, &dx, 5), 1.0208333333333333);
    CLOSE(dx, 0.25);
    y_of("huber", &(rm_huber_attr){1.5}, x, o, none, &dx, 0);
    CLOSE(dx, 1.0 / 6);
    CLOSE(y_of("huber", NULL, x, o, none, &dx, 3), 5.0 / 6); /* delta is 1 */
    CLOSE(dx, -1.0 / 6);
}
END_TEST

/* With one row of two padded, the loss is the mean over the other row; padded values are not read. If all rows are
 * padding, it is 0. */
START_TEST(padding_does_not_count) {
    double x[6] = {1, 2, 3, NAN, 0.5, INFINITY}, target[6] = {0, 2, 1, 1, NAN, -2}, y, dx[6], scratch[1], dy = 1;
    static const char *const names[] = {"mse", "mae", "huber", "bce_with_logits"};
    static const double mean[] = {5.0 / 3, 1, 2.0 / 3, -0.1704076499550209};
    for (int i = 0; i < 8; i++) {
        const remat_op *op = rm_op_find_f64(names[i / 2]);
        int32_t padding[2] = {i % 2, 1};
        double rows = 1 - i % 2;
        remat_call call = {.t_total = 1, .threads = 1, .training = true, .scratch = scratch};
        const remat_desc shape = rm_desc_make(REMAT_F64, 2, (int64_t[]){2, 3}),
                         scalar = rm_desc_make(REMAT_F64, 0, NULL);
        call.x[0] = (remat_tensor){shape, x}, call.x[1] = (remat_tensor){shape, target};
        call.x[2] = (remat_tensor){rm_desc_make(REMAT_I32, 1, (int64_t[]){2}), padding};
        call.x[3] = (remat_tensor){scalar, &rows}, call.y = (remat_tensor){scalar, &y},
        call.dy = (remat_tensor){scalar, &dy};
        call.dx[0] = (remat_tensor){shape, dx};
        op->on[REMAT_ON_CPU].forward(&call);
        op->on[REMAT_ON_CPU].backward(&call);
        CLOSE(y, i % 2 ? 0.0 : mean[i / 2]);
        for (int k = 3 - 3 * (i % 2); k < 6; k++) CLOSE(dx[k], 0.0);
        if (i == 0) CLOSE(dx[2], 4.0 / 3);
    }
}
END_TEST

/* 1 - dice_coeff(softmax, one_hot) of milesial's Pytorch-UNet (utils/dice_score.py) for each image and class, and
 * its dice_loss(multiclass=True) of one image; two elements of the gradient. Pixels that do not count change nothing. */
START_TEST(dice_matches_pytorch) {
    static const struct {
        int64_t images, joint;
        double loss, dx4, dx17;
    } expected[] = {{2, 0, 0.7530385380903781, -0.008322324352248625, 0.0009886500058464151},
                    {1, 0, 0.7868189064936318, -0.01664464870449725, 0.0019773000116928303},
                    {1, 1, 0.8129079119754152, -0.01885054619404822, 0.0007141667887688982}};
    int32_t targets[14] = {0, 1, 2, 1, 0, 1, 2, 2, 0, 0, 0, 0};
    double logits[36], dx;
    for (int i = 0; i < 36; i++) logits[i] = 2 * sin(i);
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        rm_dice_attr attr = {expected[i].joint, -1};
        int64_t n = expected[i].images;
        remat_tensor x = {rm_desc_make(REMAT_F64, 3, (int64_t[]){n, 6, 3}), logits};
        remat_tensor t = {rm_desc_make(REMAT_I32, 2, (int64_t[]){n, 6}), targets};
        CLOSE(y_of("dice", &attr, x, t, none, &dx, 4), expected[i].loss);
        CLOSE(dx, expected[i].dx4);
        y_of("dice", &attr, x, t, none, &dx, 17);
        CLOSE(dx, expected[i].dx17);
    }
    targets[6] = targets[7] = -1;
    for (int joint = 0; joint < 2; joint++) { /* an image of 8 pixels */
        rm_dice_attr attr = {joint, -1};
        remat_tensor x = {rm_desc_make(REMAT_F64, 3, (int64_t[]){1, 8, 3}), logits};
        remat_tensor t = {rm_desc_make(REMAT_I32, 2, (int64_t[]){1, 8}), targets};
        CLOSE(y_of("dice", &attr, x, t, none, &dx, 17), expected[1 + joint].loss);
        CLOSE(dx, expected[1 + joint].dx17);
        y_of("dice", &attr, x, t, none, &dx, 20);
        CLOSE(dx, 0.0);
    }
}
END_TEST

/* torch.nn.functional.cross_entropy(x, t, label_smoothing=...), and two elements of its gradient. */
START_TEST(label_smoothing_matches_pytorch) {
    static const struct {
        double smoothing, loss, dx2, dx3;
    } expected[] = {{0, 1.2558682848905545, -0.1673795221125891, -0.4390241738451356},
                    {0.1, 1.264201618223888, -0.13404618877925578, -0.40569084051180226},
                    {1, 1.3392016182238877, 0.16595381122074424, -0.10569084051180223}};
    double logits[6] = {1, 2, 3, -1, 0.5, 0}, dx;
    int32_t targets[2] = {2, 0};
    remat_tensor x = {rm_desc_make(REMAT_F64, 2, (int64_t[]){2, 3}), logits};
    remat_tensor t = {rm_desc_make(REMAT_I32, 1, (int64_t[]){2}), targets};
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        rm_cross_entropy_attr attr = {.smoothing = expected[i].smoothing};
        CLOSE(y_of("softmax_cross_entropy", &attr, x, t, none, &dx, 2), expected[i].loss);
        CLOSE(dx, expected[i].dx2);
        y_of("softmax_cross_entropy", &attr, x, t, none, &dx, 3);
        CLOSE(dx, expected[i].dx3);
    }
}
END_TEST

/* torch.nn.functional.cross_entropy(x, t, weight=, ignore_index=-100, label_smoothing=), and elements of its
 * gradient. */
START_TEST(weighted_mean_matches_pytorch) {
    static const struct {
        bool weighted;
        double smoothing, total, loss, dx3, dx11;
    } expected[] = {{false, 0, 3, 1.5605275297791315, -0.2926827825634237, 0.014003355378022015},
                    {true, 0, 5.5, 1.2026500427480138, -0.07982257706275192, 0.015276387685114927},
                    {false, 0.1, 3, 1.554971974223576, -0.2704605603412015, 0.002892244266910906},
                    {true, 0.1, 5.5, 1.2323771853905197, -0.0708055673097888, -0.003032733727412543}};
    double logits[12] = {1, 2, 3, -1, 0.5, 0, 0.25, -2, 1, 2, 0, -1}, weight[3] = {0.5, 2, 3}, total[1];
    int32_t targets[4] = {2, 0, -100, 1};
    const remat_op *op = rm_op_find_f64("softmax_cross_entropy"), *sum = rm_op_find_f64("target_weight");
    remat_tensor x = {rm_desc_make(REMAT_F64, 2, (int64_t[]){4, 3}), logits};
    remat_tensor t = {rm_desc_make(REMAT_I32, 1, (int64_t[]){4}), targets};
    remat_tensor w = {rm_desc_make(REMAT_F64, 1, (int64_t[]){3}), weight};
    for (int i = 0; i < 8; i++) {
        int k = i / 2;
        double y, dy = 1, dx[12], aux[8], scratch[1];
        remat_call call = {.attr = &(rm_target_weight_attr){3, -100},
                           .x = {t, expected[k].weighted ? w : none},
                           .y.data = total,
                           .scratch = scratch,
                           .t_total = 1,
                           .threads = 1};
        (i % 2 ? sum->define_forward : sum->on[REMAT_ON_CPU].forward)(&call);
        CLOSE(total[0], expected[k].total);
        call.attr = &(rm_cross_entropy_attr){expected[k].smoothing, 1, -100};
        call.x[0] = x, call.x[1] = t, call.x[2] = expected[k].weighted ? w : none;
        call.x[3] = (remat_tensor){rm_desc_make(REMAT_F64, 0, NULL), total};
        call.y.data = &y, call.dy.data = &dy, call.dx[0].data = dx, call.aux = aux, call.training = true;
        (i % 2 ? op->define_forward : op->on[REMAT_ON_CPU].forward)(&call);
        (i % 2 ? op->define_backward : op->on[REMAT_ON_CPU].backward)(&call);
        CLOSE(y, expected[k].loss);
        CLOSE(dx[3], expected[k].dx3);
        CLOSE(dx[11], expected[k].dx11);
        ck_assert(dx[6] == 0 && dx[7] == 0 && dx[8] == 0);
    }
}
END_TEST

/* A class can be ignored, too: the other rows are the two of losses_have_known_values. */
START_TEST(ignored_class_does_not_count) {
    double logits[12] = {1, 2, 3, -1, 0.5, 0, 0.25, -2, 1, 2, 0, -1}, total[1], y, scratch[1];
    int32_t targets[4] = {2, 0, 1, 1};
    remat_call call = {.attr = &(rm_target_weight_attr){3, 1},
                       .x = {{rm_desc_make(REMAT_I32, 1, (int64_t[]){4}), targets}, none},
                       .y.data = total,
                       .scratch = scratch,
                       .t_total = 1,
                       .threads = 1};
    rm_op_find_f64("target_weight")->on[REMAT_ON_CPU].forward(&call);
    CLOSE(total[0], 2.0);
    call.attr = &(rm_cross_entropy_attr){0, 1, 1};
    call.x[1] = call.x[0], call.x[2] = none;
    call.x[0] = (remat_tensor){rm_desc_make(REMAT_F64, 2, (int64_t[]){4, 3}), logits};
    call.x[3] = (remat_tensor){rm_desc_make(REMAT_F64, 0, NULL), total};
    call.y.data = &y;
    rm_op_find_f64("softmax_cross_entropy")->on[REMAT_ON_CPU].forward(&call);
    CLOSE(y, 1.2558682848905545);
}
END_TEST

/* An evaluation gives the loss of a run without smoothing, bit for bit, for the definition and the kernel. */
START_TEST(evaluation_ignores_label_smoothing) {
    const remat_op *op = rm_op_find("softmax_cross_entropy");
    float logits[6] = {1, 2, 3, -1, 0.5f, 0}, y[3];
    double scratch[1];
    int32_t targets[2] = {2, 0};
    remat_call call = {.x = {{rm_desc_make(REMAT_F32, 2, (int64_t[]){2, 3}), logits},
                             {rm_desc_make(REMAT_I32, 1, (int64_t[]){2}), targets}},
                       .scratch = scratch,
                       .t_total = 1,
                       .threads = 1};
    for (int form = 0; form < 2; form++) {
        remat_kernel *forward = form ? op->define_forward : op->on[REMAT_ON_CPU].forward;
        for (int i = 0; i < 3; i++) {
            call.attr = i ? &(rm_cross_entropy_attr){.smoothing = 0.3} : NULL;
            call.training = i == 2;
            call.y.data = &y[i];
            forward(&call);
        }
        ck_assert_mem_eq(&y[0], &y[1], sizeof *y);
        ck_assert_float_ne(y[1], y[2]);
    }
}
END_TEST

START_TEST(label_smoothing_outside_0_to_1_is_refused) {
    remat_desc x[4] = {rm_desc_make(REMAT_F32, 2, (int64_t[]){2, 3}),
                       rm_desc_make(REMAT_I32, 1, (int64_t[]){2}),
                       {.rank = -1},
                       {.rank = -1}},
               y;
    static const double wrong[] = {-0.1, 1.1, NAN};
    for (int i = 0; i < 3; i++) {
        rm_cross_entropy_attr attr = {.smoothing = wrong[i]};
        ck_assert_int_eq(rm_op_find("softmax_cross_entropy")->infer(x, &attr, &y, NULL), REMAT_INVALID);
        ck_assert_ptr_nonnull(strstr(remat_last_error(), "label smoothing"));
    }
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

/* Logits at the ends of the float range, and NaN, which must reach the loss. */
START_TEST(loss_handles_extreme_logits) {
    const remat_op *op = rm_op_find("softmax_cross_entropy");
    float x[4][3] = {{1000, 0, -1000}, {-INFINITY, 0, 0}, {3e38f, 3e38f, -3e38f}, {0, NAN, 0}};
    double expected[4] = {0, 0.69314718055994531, 0.69314718055994531, NAN};
    int32_t target = 0;
    for (int i = 0; i < 4; i++) {
        float y, dy = 1, dx[3], aux[2];
        double scratch[1];
        int32_t t = i == 1 ? 1 : target;
        remat_desc shape = rm_desc_make(REMAT_F32, 2, (int64_t[]){1, 3}),
                   one = rm_desc_make(REMAT_I32, 1, (int64_t[]){1});
        remat_call call = {.x = {{shape, x[i]}, {one, &t}},
                           .y = {{REMAT_F32, 0, {1, 1, 1, 1}}, &y},
                           .dy = {{REMAT_F32, 0, {1, 1, 1, 1}}, &dy},
                           .dx = {{shape, dx}},
                           .aux = aux,
                           .scratch = scratch,
                           .t_total = 1,
                           .threads = 1};
        op->on[REMAT_ON_CPU].forward(&call);
        op->on[REMAT_ON_CPU].backward(&call);
        if (i < 3) {
            ck_assert_msg(fabs(y - expected[i]) <= 1e-6, "row %d: %g, not %g", i, (double)y, expected[i]);
            ck_assert_msg(fabs((double)dx[0] + dx[1] + dx[2]) <= 1e-6, "row %d: gradients do not cancel", i);
        } else {
            ck_assert(isnan(y));
        }
    }
}
END_TEST

int main(void) {
    Suite *suite = suite_create("ops");
    TCase *promises = tcase_create("promises"), *numbers = tcase_create("numbers");
    tcase_set_timeout(promises, 120);
    tcase_add_loop_test(promises, op_keeps_its_promises, 0, rm_n_ops);
    tcase_add_loop_test(promises, cells_keep_their_promises_with_every_instruction_set, 0, rm_n_ops * RM_CELL_BF16);
    tcase_add_test(promises, op_list_is_in_order);
    tcase_add_test(numbers, unary_ops_have_known_values);
    tcase_add_test(numbers, columns_have_known_values);
    tcase_add_test(numbers, time_is_reversed);
    tcase_add_loop_test(numbers, minimal_cells_have_known_values, 0, 2);
    tcase_add_test(numbers, saturated_minimal_gates_give_no_nan);
    tcase_add_test(numbers, linear_scan_has_known_values);
    tcase_add_test(numbers, causal_convolution_has_known_values);
    tcase_add_test(numbers, rms_norm_has_known_values);
    tcase_add_test(numbers, attention_has_known_values);
    tcase_add_test(numbers, attention_handles_extreme_scores);
    tcase_add_test(numbers, attention_ignores_padding);
    tcase_add_test(numbers, attention_respects_row_ends);
    tcase_add_test(numbers, invalid_attention_is_refused);
    tcase_add_test(numbers, rotary_has_known_values);
    tcase_add_test(numbers, invalid_rotary_arguments_are_refused);
    tcase_add_test(numbers, batch_norm_has_known_values);
    tcase_add_test(numbers, losses_have_known_values);
    tcase_add_test(numbers, dice_matches_pytorch);
    tcase_add_test(numbers, padding_does_not_count);
    tcase_add_test(numbers, label_smoothing_matches_pytorch);
    tcase_add_test(numbers, weighted_mean_matches_pytorch);
    tcase_add_test(numbers, ignored_class_does_not_count);
    tcase_add_test(numbers, evaluation_ignores_label_smoothing);
    tcase_add_test(numbers, label_smoothing_outside_0_to_1_is_refused);
    tcase_add_test(numbers, layer_norm_has_known_values);
    tcase_add_test(numbers, layer_norm_survives_a_large_mean);
    tcase_add_test(numbers, loss_handles_extreme_logits);
    suite_add_tcase(suite, promises);
    suite_add_tcase(suite, numbers);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
