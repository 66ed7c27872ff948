/* test_isa.c: REMAT_ISA selects the instruction set of the CPU's kernels, and names those that are there. */
#include <check.h>
#include <stdlib.h>

#include "engine/remat.h"
#include "ops/cpu/kernels.h"
#include "tests/says.h"
#include "tests/suite.h"

START_TEST(named_instruction_set_is_used) {
    const rm_cell_kernels *kernels = rm_cell_kernels_list(_i);
    remat_build_info build;
    if (!kernels) return; /* this processor lacks it */
    setenv("REMAT_ISA", kernels->isa, 1);
    ck_assert_ptr_eq(rm_cell_kernels_get(), kernels);
    ck_assert_int_eq(rm_cell_kernels_check(), REMAT_OK);
    ck_assert_int_eq(remat_build(&build), REMAT_OK);
    ck_assert_str_eq(build.instruction_set, kernels->isa);
}
END_TEST

START_TEST(widest_instruction_set_is_the_default) {
    const rm_cell_kernels *widest = NULL;
    unsetenv("REMAT_ISA");
    for (int i = 0; i < RM_CELL_BF16; i++)
        if (rm_cell_kernels_list(i)) widest = rm_cell_kernels_list(i);
    ck_assert_ptr_eq(rm_cell_kernels_get(), widest);
}
END_TEST

START_TEST(unknown_instruction_set_is_refused) {
    setenv("REMAT_ISA", "avx9", 1);
    ck_assert_int_eq(remat_device_check("cpu"), REMAT_MISSING);
    ck_says_all(remat_last_error(), "REMAT_ISA|avx9|baseline");
    ck_assert_int_eq(remat_device_check("null"), REMAT_OK);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("isa");
    tcase_add_loop_test(tests, named_instruction_set_is_used, 0, RM_CELL_BF16);
    tcase_add_test(tests, widest_instruction_set_is_the_default);
    tcase_add_test(tests, unknown_instruction_set_is_refused);
    return run_cases("isa", tests);
}
