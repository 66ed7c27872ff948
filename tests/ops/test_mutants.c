/* test_mutants.c: tests remat_op_check itself. Every op in tests/mutants has one mistake; the check must find it, and
 * for the right reason. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "ops/op.h"
#include "tests/suite.h"

#define MUTANTS(X)                                                                                                     \
    X(wrong_sign, "the objective changes by")                                                                          \
    X(slightly_wrong, "the objective changes by")                                                                      \
    X(undeclared_input, "`saves` does not declare")                                                                    \
    X(undeclared_output, "`saves` does not declare")                                                                   \
    X(undeclared_first, "when another gradient is not wanted")                                                         \
    X(over_declared_output, "no gradient depends on y")                                                                \
    X(over_declared_input, "no gradient depends on it")                                                                \
    X(non_repeatable, "the same call")                                                                                 \
    X(address_dependent, "the same call")                                                                              \
    X(scratch_overrun, "wrote outside scratch")                                                                        \
    X(overwritten_weight_gradient, "is not accumulated")                                                               \
    X(accumulated_gradient, "dx[0][0] is NaN")                                                                         \
    X(forgotten_origin, "tile 1 of 7 timesteps: y is off")                                                             \
    X(forgotten_row, "y[30] is NaN")                                                                                   \
    X(denominator_squared, "y is not divided by the denominator")                                                      \
    X(stuck_shape, "infer's y is f32 (7,5) for 6 timesteps")                                                           \
    X(outgoing_state, "`saves` does not declare")                                                                      \
    X(free_of_charge, "claims to compute nothing")                                                                     \
    X(rebuild_slightly_wrong, "rebuild's aux differs")                                                                 \
    X(rebuild_forgotten_row, "rebuild's aux differs")                                                                  \
    X(rebuild_shape_dependent, "sample \"whole\": kept lean, tile 1: rebuild's aux differs")                           \
    X(rebuild_undeclared_output, "undeclared tensors are NaN")                                                         \
    X(rebuild_aux_overrun, "rebuild wrote outside aux")                                                                \
    X(rebuild_scratch_overrun, "rebuild wrote outside scratch")                                                        \
    X(rebuild_changed_input, "rebuild changed x[0]")                                                                   \
    X(rebuild_free_of_charge, "rebuild has weights, but claims to compute nothing")                                    \
    X(rebuild_half_declared, "of rebuild and define_rebuild")                                                          \
    X(rebuild_and_cheap, "one or the other")                                                                           \
    X(cheap_with_memory, "second forward's aux")                                                                       \
    X(reverse_unturned, "tile 1 of 7 timesteps: y is off")                                                             \
    X(reverse_gradient_unturned, "the kernel in double, tile 1 of 7 timesteps: dx[0] is off")                          \
    X(reverse_pointwise, "tile 1 of 7 timesteps: y is off")

#define DECLARE(name, reason) extern const remat_op rm_op_##name, rm_op_##name##_f64;
MUTANTS(DECLARE)

#define CONTROLS(X)                                                                                                    \
    X(unbroken, "")                                                                                                    \
    X(rebuild_unbroken, "")                                                                                            \
    X(rebuild_excluded_shape, "") X(cheap_unbroken, "") X(reverse_unbroken, "") X(reverse_uncut, "")
CONTROLS(DECLARE)

static const struct {
    const remat_op *op, *op_f64;
    const char *reason;
} mutant[] = {
#define ROW(name, reason) {&rm_op_##name, &rm_op_##name##_f64, reason},
    MUTANTS(ROW)};

START_TEST(mutant_is_caught) {
    remat_status status = remat_op_check(mutant[_i].op, mutant[_i].op_f64, NULL);
    const char *wrong = remat_last_error();
    ck_assert_msg(status == REMAT_INVALID, "the check finds nothing wrong with %s", mutant[_i].op->doc);
    ck_assert_msg(strstr(wrong, mutant[_i].reason), "%s is caught for another reason: %s", mutant[_i].op->doc, wrong);
}
END_TEST

static const struct {
    const remat_op *op, *op_f64;
    const char *reason;
} control[] = {CONTROLS(ROW)};

START_TEST(control_passes) {
    remat_status status = remat_op_check(control[_i].op, control[_i].op_f64, NULL);
    ck_assert_msg(!status, "%s: %s", control[_i].op->doc, remat_last_error());
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("mutants");
    tcase_add_loop_test(tests, mutant_is_caught, 0, (int)(sizeof mutant / sizeof *mutant));
    tcase_add_loop_test(tests, control_passes, 0, (int)(sizeof control / sizeof *control));
    return run_cases("mutants", tests);
}
