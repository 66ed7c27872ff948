/* test_losses.c: losses match values from PyTorch 2 in double. */
#include "tests/ops/known_values.h"
#include "tests/suite.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>

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
    TCase *numbers = tcase_create("numbers");
    tcase_add_test(numbers, losses_have_known_values);
    tcase_add_test(numbers, dice_matches_pytorch);
    tcase_add_test(numbers, padding_does_not_count);
    tcase_add_test(numbers, label_smoothing_matches_pytorch);
    tcase_add_test(numbers, weighted_mean_matches_pytorch);
    tcase_add_test(numbers, ignored_class_does_not_count);
    tcase_add_test(numbers, evaluation_ignores_label_smoothing);
    tcase_add_test(numbers, label_smoothing_outside_0_to_1_is_refused);
    tcase_add_test(numbers, loss_handles_extreme_logits);
    return run_cases("losses", numbers);
}
