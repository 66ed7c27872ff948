/* test_gemm.c: matrix products of every orientation and odd shapes, in parts of larger matrices, compared with three
 * loops in double; and exp.h, compared with the C library. */
#include <check.h>
#include <dlfcn.h>
#include <float.h>
#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "ops/math/exp.h"
#include "ops/math/gemm.h"
#include "ops/cpu/kernels.h"
#include "tests/suite.h"

typedef struct {
    int64_t rows, columns, stride;
    float *at;
} matrix;

static float pseudo(int64_t i) { return (float)((uint32_t)(i * 2654435761u + 12345u) >> 8) * 0x1p-23f - 1; }

/* Stored rows are PAD longer than needed; the gaps hold NaN, which no product may read or write. */
enum { PAD = 5 };
static matrix matrix_make(int64_t rows, int64_t columns, int64_t seed) {
    matrix m = {rows, columns, columns + PAD, malloc((size_t)(rows * (columns + PAD)) * sizeof(float))};
    ck_assert_ptr_nonnull(m.at);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < m.stride; j++)
            m.at[i * m.stride + j] = j < columns ? pseudo(seed + i * columns + j) : NAN;
    return m;
}

static double element(const matrix *m, rm_orientation is, int64_t i, int64_t j) {
    return is == RM_TRANSPOSED ? m->at[j * m->stride + i] : m->at[i * m->stride + j];
}

/* The bound for k products below 1 and their sum, each rounded once, in any order. */
static void expect_product(const matrix *c, const matrix *before, const matrix *a, rm_orientation a_is, const matrix *b,
                           rm_orientation b_is, int64_t k, double alpha, double beta) {
    for (int64_t i = 0; i < c->rows; i++) {
        for (int64_t j = 0; j < c->columns; j++) {
            double sum = 0, size = 0;
            for (int64_t p = 0; p < k; p++) {
                double term = element(a, a_is, i, p) * element(b, b_is, p, j);
                sum += term;
                size += fabs(term);
            }
            double old = beta ? before->at[i * c->stride + j] : 0;
            double expected = alpha * sum + beta * old;
            double bound = FLT_EPSILON * ((double)k * 0.5 + 2) * (fabs(alpha) * size + fabs(beta * old)) + FLT_MIN;
            ck_assert_msg(fabs(c->at[i * c->stride + j] - expected) <= bound,
                          "(%ld,%ld) of (%ld,%ld) k %ld: %g, not %g", (long)i, (long)j, (long)c->rows, (long)c->columns,
                          (long)k, (double)c->at[i * c->stride + j], expected);
        }
        for (int64_t j = c->columns; j < c->stride; j++) ck_assert(isnan(c->at[i * c->stride + j]));
    }
}

static void try_shape(int threads, rm_orientation a_is, rm_orientation b_is, int64_t m, int64_t n, int64_t k,
                      float alpha, float beta) {
    matrix a = a_is == RM_TRANSPOSED ? matrix_make(k, m, 1) : matrix_make(m, k, 1);
    matrix b = b_is == RM_TRANSPOSED ? matrix_make(n, k, 7) : matrix_make(k, n, 7);
    matrix c = matrix_make(m, n, 3), before = matrix_make(m, n, 3);
    if (beta == 0)
        for (int64_t i = 0; i < m * c.stride; i++) c.at[i] = NAN; /* must not be read */
    rm_gemm(threads, a_is, b_is, m, n, k, alpha, a.at, a.stride, b.at, b.stride, beta, c.at, c.stride);
    expect_product(&c, &before, &a, a_is, &b, b_is, k, alpha, beta);
    free(a.at), free(b.at), free(c.at), free(before.at);
}

/* Small products with every instruction set; the last by OpenBLAS. */
START_TEST(products_of_every_orientation) {
    static const int64_t shape[][3] = {{1, 1, 1},      {1, 33, 7},    {16, 64, 20},    {17, 5, 3},
                                       {5, 129, 1},    {300, 40, 30}, {31, 500, 40},   {40, 37, 300},
                                       {200, 16, 140}, {1, 100, 400}, {130, 130, 130}, {260, 260, 260}};
    static const float factor[][2] = {{1, 0}, {1, 1}, {0.5f, -2}};
    const size_t shapes = sizeof shape / sizeof *shape;
    rm_orientation a_is = _i & 1 ? RM_TRANSPOSED : RM_PLAIN, b_is = _i & 2 ? RM_TRANSPOSED : RM_PLAIN;
    for (int isa = 0; isa < RM_CELL_BF16; isa++) {
        const rm_cell_kernels *kernels = rm_cell_kernels_list(isa);
        if (!kernels) continue;
        rm_cell_kernels_use(kernels);
        for (size_t s = 0; s < shapes - (isa > 0); s++)
            for (size_t f = 0; f < sizeof factor / sizeof *factor; f++)
                for (int threads = 1; threads <= 2; threads++)
                    try_shape(threads, a_is, b_is, shape[s][0], shape[s][1], shape[s][2], factor[f][0], factor[f][1]);
    }
    rm_cell_kernels_use(NULL);
}
END_TEST

/* Each element of a small product is summed separately: its bits depend neither on threads nor on the other rows and
 * columns. */
START_TEST(small_product_elements_are_independent) {
    enum { M = 67, N = 83, K = 131 };
    for (int way = 0; way < 4; way++) {
        rm_orientation a_is = way & 1 ? RM_TRANSPOSED : RM_PLAIN, b_is = way & 2 ? RM_TRANSPOSED : RM_PLAIN;
        matrix a = a_is == RM_TRANSPOSED ? matrix_make(K, M, 1) : matrix_make(M, K, 1);
        matrix b = b_is == RM_TRANSPOSED ? matrix_make(N, K, 7) : matrix_make(K, N, 7);
        matrix c = matrix_make(M, N, 3);
        float part[19 * 21];
        rm_gemm(3, a_is, b_is, M, N, K, 0.3f, a.at, a.stride, b.at, b.stride, 0, c.at, c.stride);
        rm_gemm(1, a_is, b_is, 19, 21, K, 0.3f, a.at + 40 * (a_is == RM_TRANSPOSED ? 1 : a.stride), a.stride,
                b.at + 50 * (b_is == RM_TRANSPOSED ? b.stride : 1), b.stride, 0, part, 21);
        for (int i = 0; i < 19; i++)
            ck_assert_mem_eq(part + 21 * i, c.at + (40 + i) * c.stride + 50, 21 * sizeof *part);
        free(a.at), free(b.at), free(c.at);
    }
}
END_TEST

/* The division of a product depends on the requested number of threads alone, not on the threads that compute it. */
START_TEST(division_is_the_same_on_one_thread) {
    static const int64_t shape[][3] = {{67, 83, 131}, {520, 260, 260}, {100, 300, 1000}};
    for (int i = 0; i < 6; i++) {
        int64_t m = shape[i / 2][0], n = shape[i / 2][1], k = shape[i / 2][2];
        matrix a = matrix_make(m, k, 1), b = matrix_make(k, n, 7), c[2] = {matrix_make(m, n, 3), matrix_make(m, n, 3)};
        for (int together = 0; together < 2; together++) {
            rm_parallel_pretend(together ? 1 : -1);
            rm_gemm(2 + i % 2, RM_PLAIN, RM_PLAIN, m, n, k, 1, a.at, a.stride, b.at, b.stride, 0, c[together].at,
                    c[together].stride);
        }
        rm_parallel_pretend(0);
        ck_assert_mem_eq(c[0].at, c[1].at, (size_t)(m * c[0].stride) * sizeof(float));
        free(a.at), free(b.at), free(c[0].at), free(c[1].at);
    }
}
END_TEST

/* A program that uses OpenBLAS itself keeps its number of OpenBLAS threads, even while products run on several
 * threads. */
START_TEST(programs_openblas_threads_are_kept) {
    void *blas = strstr(rm_gemm_library(), "OpenBLAS") ? dlopen("libopenblas.so.0", RTLD_NOW | RTLD_NOLOAD) : NULL;
    if (!blas) return;
    int (*get)(void);
    int of_openmp = omp_get_max_threads();
    void (*set)(int);
    *(void **)&get = dlsym(blas, "openblas_get_num_threads");
    *(void **)&set = dlsym(blas, "openblas_set_num_threads");
    for (int n = 1; n <= 2; n++) {
        set(n);
#pragma omp parallel num_threads(2)
        for (int i = 0; i < 4; i++) try_shape(1, RM_PLAIN, RM_TRANSPOSED, 260, 260, 260, 1, 0);
        try_shape(2, RM_PLAIN, RM_PLAIN, 520, 260, 260, 1, 0);
        ck_assert_int_eq(get(), n);
        ck_assert_int_eq(omp_get_max_threads(), of_openmp);
    }
    dlclose(blas);
}
END_TEST

/* Every 397th float, and the ends. Results below the smallest normal number become 0. */
START_TEST(exp_is_accurate) {
    double worst = 0;
    for (uint32_t bits = 0x80000000u; bits <= 0xff800000u - 397; bits += 397) {
        float x;
        memcpy(&x, &bits, sizeof x);
        double got = rm_expf_nonpositive(x), exact = exp((double)x);
        if (x < -87.3f) {
            ck_assert(got == 0);
            continue;
        }
        double ulps = fabs(got - exact) / ldexp(1, ilogb(exact) - 23);
        if (!(ulps <= worst)) worst = ulps;
    }
    ck_assert_msg(worst <= 1.5, "off by %g ulp", worst);
    ck_assert(rm_expf_nonpositive(0) == 1);
    ck_assert(rm_expf_nonpositive(-INFINITY) == 0);
    ck_assert(isnan(rm_expf_nonpositive(NAN)));
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("gemm");
    tcase_set_timeout(tests, 300);
    tcase_add_loop_test(tests, products_of_every_orientation, 0, 4);
    tcase_add_test(tests, small_product_elements_are_independent);
    tcase_add_test(tests, division_is_the_same_on_one_thread);
    tcase_add_test(tests, programs_openblas_threads_are_kept);
    tcase_add_test(tests, exp_is_accurate);
    return run_cases("gemm", tests);
}
