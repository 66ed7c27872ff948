/* test_max_pool.c: windows of random shapes over planes with ties, infinities and NaNs, compared bit for bit with the
 * definition. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cases.h"
#include "tests/suite.h"
#include "ops/layers/pool.h"

static uint32_t state;
static int64_t draw(int64_t below) {
    state = state * 1664525u + 1013904223u;
    return (int64_t)(((uint64_t)(state >> 4) * (uint64_t)below) >> 28);
}

/* Few distinct values, so that ties are frequent. */
static float draw_value(void) {
    static const float value[] = {-INFINITY, -2, -1, 0, 1, 2, INFINITY, NAN};
    return value[draw(draw(8) ? 6 : 8)];
}

/* The first maximum, or the last NaN if there is one; -1 for an empty window. */
static int64_t largest(const rm_pool_attr *a, const int64_t in[2], const float *x, int64_t r, int64_t q) {
    int64_t best = -1;
    for (int64_t i = 0; i < a->window[0]; i++)
        for (int64_t j = 0; j < a->window[1]; j++) {
            int64_t y = r * a->stride[0] - a->padding[0] + i, z = q * a->stride[1] - a->padding[1] + j;
            if (y < 0 || y >= in[0] || z < 0 || z >= in[1]) continue;
            float value = x[y * in[1] + z];
            if (best < 0 || value > x[best] || isnan(value)) best = y * in[1] + z;
        }
    return best;
}

/* Exactly of the requested size, so that a sanitizer detects access past the end. */
static float *take(int64_t count) {
    float *p = malloc((size_t)count * sizeof *p);
    ck_assert_ptr_nonnull(p);
    return p;
}

START_TEST(maximum_is_taken_and_gets_the_gradient) {
    state = (uint32_t)_i * 2654435761u + 1;
    rm_pool_attr a = {{0}, {0}, {0}};
    int64_t planes = 1 + draw(3), in[2] = {1 + draw(12), draw(4) ? 1 + draw(40) : 500 + draw(100)};
    for (int d = 0; d < 2; d++) {
        a.window[d] = 1 + draw(5), a.stride[d] = 1 + draw(4), a.padding[d] = draw(a.window[d] / 2 + 1);
        if (in[d] + 2 * a.padding[d] < a.window[d]) a.window[d] = 1, a.padding[d] = 0;
    }
    remat_call call = {.attr = &a,
                       .threads = 1 + (int)draw(3),
                       .t_total = 1,
                       .x = {{.desc = RM_SHAPE3(REMAT_F32, planes, in[0], in[1])}}};
    const remat_op *op = rm_op_find("max_pool");
    ck_assert_int_eq(op->infer(&call.x[0].desc, &a, &call.y.desc, NULL), REMAT_OK);
    call.dx[0].desc = call.x[0].desc, call.dy.desc = call.y.desc;
    int64_t pixels = in[0] * in[1], rows = call.y.desc.dim[1], columns = call.y.desc.dim[2], windows = rows * columns;
    float *x = take(planes * pixels), *y = take(planes * windows), *dy = take(planes * windows),
          *dx = take(planes * pixels);
    float *right = take(pixels);
    for (int64_t i = 0; i < planes * pixels; i++) x[i] = draw_value();
    for (int64_t i = 0; i < planes * windows; i++) dy[i] = (float)draw(100) / 7;
    call.x[0].data = x, call.y.data = y, call.dy.data = dy, call.dx[0].data = dx;
    op->on[0].forward(&call), op->on[0].backward(&call);
    for (int64_t p = 0; p < planes; p++) {
        memset(right, 0, (size_t)pixels * sizeof *right);
        for (int64_t w = 0; w < windows; w++) {
            int64_t at = largest(&a, in, x + p * pixels, w / columns, w % columns);
            ck_assert_msg(!memcmp(&y[p * windows + w], &x[p * pixels + at], sizeof *y), "window %d is %g, not %g",
                          (int)w, (double)y[p * windows + w], (double)x[p * pixels + at]);
            right[at] += dy[p * windows + w];
        }
        ck_assert_int_eq(memcmp(right, dx + p * pixels, (size_t)pixels * sizeof *right), 0);
    }
    free(x), free(y), free(dy), free(dx), free(right);
}
END_TEST

int main(void) {
    TCase *tc = tcase_create("all");
    tcase_add_loop_test(tc, maximum_is_taken_and_gets_the_gradient, 0, rm_cases(2000, 300));
    return run_cases("max_pool", tc);
}
