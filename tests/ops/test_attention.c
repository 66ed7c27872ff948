/* test_attention.c: attention and rotary positions match values from PyTorch 2 in double. */
#include "tests/ops/known_values.h"
#include "tests/suite.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>

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
            rm_attention_attr attr = {2, causal, 0, 0};
            CLOSE(y_of("attention", &attr, (remat_tensor){shape, q}, (remat_tensor){shape, k}, (remat_tensor){shape, v},
                       &dx, i),
                  y[causal][i]);
            CLOSE(dx, dq[causal][i]);
        }
}
END_TEST

/* Two rows of two heads of two features, and a bias of more positions than there are timesteps; values from PyTorch. */
START_TEST(biased_attention_has_known_values) {
    double q[] = {1, -2, 0.5, 0, -1, 0.5, 2, 1, 0, 1, -1, 2, 0.25, -1, 1, 0.5},
           k[] = {0.5, 1, 2, -1, 1, 0, -0.5, 1, -1, 0.25, 1, 1, 2, 1, 0, -2},
           v[] = {1, 2, 3, 4, 0, -1, 2, 1, -1, 0, 0.5, 2, 1, 3, -2, 0},
           bias[] = {0.5, -1, 9, 2, 0.25, 9, 9, 9, 9, -0.5, 1, 9, 0, -2, 9, 9, 9, 9};
    static const double y[2][16] = {
        {0.6351489523872873, 1.6351489523872873, 1.1028468068307213, 2.4822774454645771, 0.13545622781771752,
         -0.45817508872912982, -0.085733865546386956, 0.47856653361340323, 0.81446966115486596, 1.8144696611548659,
         0.94296362901623043, 2.3543709032129843, 0.092765169422567004, -0.62893932230973193, 1.749778794672012,
         0.93744469866800306},
        {1, 2, 3, 4, 0, -1, 2, 1, 0.81446966115486596, 1.8144696611548659, 0.94296362901623043, 2.3543709032129843,
         0.092765169422567004, -0.62893932230973193, 1.749778794672012, 0.93744469866800306}};
    static const double dq[2][16] = {
        {0.63277480589308055, 0.31638740294654022, 0.58227328460150718, -1.1645465692030144, 0.41403873247616668,
         0.41403873247616668, -0.44112963762686169, 2.6467778257611698, 0.3570597610024896, 0.17852988050124494,
         0.46390338100975576, -0.92780676201951207, 0.29754980083540788, 0.29754980083540794, -0.1036656293778867,
         0.62199377626732044},
        {0, 0, 0, 0, 0, 0, 0, 0, 0.3570597610024896, 0.17852988050124494, 0.46390338100975576, -0.92780676201951207,
         0.29754980083540788, 0.29754980083540794, -0.1036656293778867, 0.62199377626732044}};
    static const double dbias[2][18] = {{0.011046617465770847, -0.011046617465770958, 0, -0.084159792764569308,
                                         0.084159792764569474, 0, 0, 0, 0, 2.0711618086842538, -2.0711618086842534, 0,
                                         0.9492691310910305, -0.94926913109103084, 0, 0, 0, 0},
                                        {0, 0, 0, -0.084159792764569308, 0.084159792764569474, 0, 0, 0, 0, 0, 0, 0,
                                         0.9492691310910305, -0.94926913109103084, 0, 0, 0, 0}};
    remat_desc x = rm_desc_make(REMAT_F64, 3, (int64_t[]){2, 2, 4}),
               b = rm_desc_make(REMAT_F64, 3, (int64_t[]){2, 3, 3});
    const remat_op *op = rm_op_find_f64("attention");
    for (int i = 0; i < 4; i++) {
        const int causal = i % 2;
        double got[16], got_dq[16] = {0}, got_dbias[18] = {0}, dy[16], scratch[64];
        rm_attention_attr attr = {2, causal, 0, 0};
        remat_call call = {.attr = &attr,
                           .x = {{x, q}, {x, k}, {x, v}, none, {b, bias}},
                           .dx = {{x, got_dq}, none, none, none, {b, got_dbias}},
                           .y = {x, got},
                           .dy = {x, dy},
                           .scratch = scratch,
                           .t_total = 2,
                           .threads = 1,
                           .training = true};
        for (int j = 0; j < 16; j++) dy[j] = 1;
        (i < 2 ? op->define_forward : op->on[REMAT_ON_CPU].forward)(&call);
        (i < 2 ? op->define_backward : op->on[REMAT_ON_CPU].backward)(&call);
        for (int j = 0; j < 16; j++) CLOSE(got[j], y[causal][j]);
        for (int j = 0; j < 16; j++) CLOSE(got_dq[j], dq[causal][j]);
        for (int j = 0; j < 18; j++) CLOSE(got_dbias[j], dbias[causal][j]);
    }
}
END_TEST

/* Scores far apart: no exponential overflows. A NaN reaches the timesteps that attend to it. */
START_TEST(attention_handles_extreme_scores) {
    float q[3] = {1e19f, 1e19f, 1}, k[3] = {1e19f, -1e19f, 2}, v[3] = {1, 2, 3}, y[3], p[9];
    remat_desc shape = rm_desc_make(REMAT_F32, 3, (int64_t[]){3, 1, 1});
    remat_call call = {.attr = &(rm_attention_attr){1, 1, 0, 0},
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
    rm_attention_attr attr = {1, 0, 0, 0};
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
            remat_call call = {.attr = &(rm_attention_attr){2, T == 260, 0, 0},
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
    remat_desc x[5] = {[3] = {.rank = -1}, [4] = {.rank = -1}}, y;
    char message[] = "attention: q is f32 (5,2,6), whose 6 features cannot be split into 4 heads";
    for (int i = 0; i < 3; i++) x[i] = rm_desc_make(REMAT_F32, 3, (int64_t[]){5, 2, 6});
    const remat_op *op = rm_op_find("attention");
    ck_assert_int_eq(op->infer(x, &(rm_attention_attr){4, 0, 0, 0}, &y, NULL), REMAT_INVALID);
    ck_assert_msg(strstr(remat_last_error(), message), "%s", remat_last_error());
    ck_assert_int_eq(op->infer(x, &(rm_attention_attr){0, 0, 0, 0}, &y, NULL), REMAT_INVALID);
    ck_assert_int_eq(op->infer(x, NULL, &y, NULL), REMAT_INVALID);
    ck_assert_int_eq(op->infer(x, &(rm_attention_attr){2, 2, 0, 0}, &y, NULL), REMAT_INVALID);
    ck_assert_msg(strstr(remat_last_error(), "causal is 2"), "%s", remat_last_error());
    ck_assert_int_eq(op->infer(x, &(rm_attention_attr){2, 1, 0, -1}, &y, NULL), REMAT_INVALID);
    ck_assert_int_eq(op->infer(x, &(rm_attention_attr){2, 0, 0, 3}, &y, NULL), REMAT_INVALID);
    ck_assert_msg(strstr(remat_last_error(), "window is 3"), "%s", remat_last_error());
    x[2].dim[2] = 3;
    ck_assert_int_eq(op->infer(x, &(rm_attention_attr){3, 0, 0, 0}, &y, NULL), REMAT_INVALID);
    ck_assert_msg(strstr(remat_last_error(), "v is f32 (5,2,3)"), "%s", remat_last_error());
    x[1].dim[0] = x[2].dim[0] = 7, x[2].dim[2] = 6;
    ck_assert_int_eq(op->infer(x, &(rm_attention_attr){3, 0, 0, 0}, &y, NULL), REMAT_OK);
    ck_assert_int_eq(op->infer(x, &(rm_attention_attr){3, 1, 0, 0}, &y, NULL), REMAT_INVALID);
    ck_assert_msg(strstr(remat_last_error(), "the same number of timesteps"), "%s", remat_last_error());
    x[3] = rm_desc_make(REMAT_I32, 2, (int64_t[]){5, 2});
    ck_assert_int_eq(op->infer(x, &(rm_attention_attr){3, 0, 0, 0}, &y, NULL), REMAT_INVALID);
    ck_assert_msg(strstr(remat_last_error(), "padding is i32 (5,2)"), "%s", remat_last_error());
    x[3].rank = -1;
    static const int64_t wrong[][3] = {{5, 2, 4}, {5, 2, 12}, {5, 2, 1}, {5, 1, 6}}; /* of k and v, for heads of 2 */
    for (int i = 0; i < 4; i++) {
        x[1] = x[2] = rm_desc_make(REMAT_F32, 3, wrong[i]);
        ck_assert_msg(op->infer(x, &(rm_attention_attr){3, 0, 0, 0}, &y, NULL) == REMAT_INVALID, "%d", i);
        ck_assert_ptr_nonnull(strstr(remat_last_error(), "heads of 2 features"));
    }
    x[1] = x[2] = rm_desc_make(REMAT_F32, 3, (int64_t[]){5, 2, 2});
    ck_assert_int_eq(op->infer(x, &(rm_attention_attr){3, 0, 0, 0}, &y, NULL), REMAT_OK);
    static const int64_t small[][3] = {{2, 5, 5}, {6, 5, 5}, {3, 4, 5}, {3, 5, 4}}; /* of a bias */
    for (int i = 0; i < 4; i++) {
        x[4] = rm_desc_make(REMAT_F32, 3, small[i]);
        ck_assert_msg(op->infer(x, &(rm_attention_attr){3, 0, 0, 0}, &y, NULL) == REMAT_INVALID, "%d", i);
        ck_assert_ptr_nonnull(strstr(remat_last_error(), "it must be at least (3,5,5)"));
    }
    x[4] = rm_desc_make(REMAT_F32, 3, (int64_t[]){3, 5, 6});
    ck_assert_int_eq(op->infer(x, &(rm_attention_attr){3, 0, 0, 0}, &y, NULL), REMAT_OK);
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

int main(void) {
    TCase *numbers = tcase_create("numbers");
    tcase_add_test(numbers, attention_has_known_values);
    tcase_add_test(numbers, biased_attention_has_known_values);
    tcase_add_test(numbers, attention_handles_extreme_scores);
    tcase_add_test(numbers, attention_ignores_padding);
    tcase_add_test(numbers, attention_respects_row_ends);
    tcase_add_test(numbers, invalid_attention_is_refused);
    tcase_add_test(numbers, rotary_has_known_values);
    tcase_add_test(numbers, invalid_rotary_arguments_are_refused);
    return run_cases("attention", numbers);
}
