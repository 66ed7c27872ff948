/* test_openblas.c: OpenBLAS is opened at run time under any spelling of its names, with 32-bit and 64-bit indices. */
#include "engine/status.h"
#include "ops/math/gemm.h"
#include "tests/says.h"
#include "tests/suite.h"

#include <check.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { M = 600, N = 240, K = 260 }; /* half of it is more than small_product.c takes */

static const char *const fakes[] = {"plain", "wide", "scipy", "scipy64"};

/* c = a^T b, where a (K,M) and b (K,N) are small integers, so that sums are exact. */
static void check_product(void) {
    float *a = malloc(sizeof(float) * K * M), *b = malloc(sizeof(float) * K * N), *c = malloc(sizeof(float) * M * N);
    for (int i = 0; i < K * M; i++) a[i] = (float)(i % 7 - 3);
    for (int i = 0; i < K * N; i++) b[i] = (float)(i % 5 - 2);
    rm_gemm(2, RM_TRANSPOSED, RM_PLAIN, M, N, K, 1, a, M, b, N, 0, c, N);
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            float sum = 0;
            for (int p = 0; p < K; p++) sum += a[p * M + i] * b[p * N + j];
            ck_assert_msg(c[i * N + j] == sum, "c[%d,%d] is %g, not %g", i, j, c[i * N + j], sum);
        }
    free(a);
    free(b);
    free(c);
}

START_TEST(every_spelling_is_found) {
    char path[600];
    snprintf(path, sizeof path, FAKES "/libfake_openblas_%s.so", fakes[_i]);
    setenv("REMAT_OPENBLAS_LIBRARY", path, 1);
    ck_says_all(rm_gemm_library(), "Fake");
    check_product();
    void *fake = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    ck_assert_ptr_nonnull(fake);
    ck_assert_int_gt(*(int *)dlsym(fake, "fake_products"), 0);
    ck_assert_int_eq(*(int *)dlsym(fake, "fake_threads"), 4); /* as the program had set it */
}
END_TEST

START_TEST(library_without_products_is_refused) {
    setenv("REMAT_OPENBLAS_LIBRARY", "libm.so.6", 1);
    ck_assert_int_eq(rm_gemm_prepare(1), REMAT_MISSING);
    ck_says_all(remat_last_error(), "cblas_sgemm");
    check_product(); /* by Remat's own kernels */
}
END_TEST

int main(void) {
#ifdef NO_OPENBLAS /* REMAT_OPENBLAS=OFF */
    return 77;
#endif
    TCase *tests = tcase_create("openblas");
    tcase_add_loop_test(tests, every_spelling_is_found, 0, sizeof fakes / sizeof *fakes);
    tcase_add_test(tests, library_without_products_is_refused);
    return run_cases("openblas", tests);
}
