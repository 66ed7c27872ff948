/* suite.h: runs the test cases of a program. Main entry: run_cases. */
#ifndef TEST_SUITE_H
#define TEST_SUITE_H

#include <check.h>
#include <stdlib.h>

/* run_cases(name, tcase, ...): main's exit status. */
#define run_cases(name, ...) run_listed_cases(name, (TCase *[]){__VA_ARGS__, NULL})

static inline int run_listed_cases(const char *name, TCase **listed) {
    Suite *suite = suite_create(name);
    for (; *listed; listed++) suite_add_tcase(suite, *listed);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

#endif
