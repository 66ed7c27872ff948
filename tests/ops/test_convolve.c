/* test_convolve.c: convolutions of random shapes, plain and transposed, with every instruction set of this machine. They equal the definition
 * in double up to rounding; bits do not depend on the number of threads, on the other images of a batch or, for
 * gradients of weights, on a split of the batch between groups of images that are summed at a time. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cases.h"
#include "tests/suite.h"
#include "ops/layers/conv.h"
#include "ops/cpu/kernels.h"

static uint32_t state;
static int64_t draw(int64_t below) {
    state = state * 1664525u + 1013904223u;
    return (int64_t)(((uint64_t)(state >> 4) * (uint64_t)below) >> 28);
}
static int64_t pick(const int64_t *from, int64_t count) { return from[draw(count)]; }
#define PICK(...) pick((int64_t[]){__VA_ARGS__}, sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t))

/* ---- One convolution, in double ---------------------------------------------------------------------------------- */

enum { X, W, B, ARRAYS };

typedef struct {
    rm_conv_attr attr;
    remat_desc in[REMAT_MAX_INPUTS], out; /* of doubles */
    rm_conv_shape shape;
    double *x[ARRAYS], *dy;           /* inputs */
    double *y, *dx[ARRAYS];           /* expected results */
    double *size_y, *size_dx[ARRAYS]; /* sums of the terms' magnitudes */
} example;

/* Exactly of the requested size, so that a sanitizer detects access past the end; filled with NaN. */
static void *take(int64_t count, size_t size) {
    void *p = NULL;
    ck_assert_int_eq(posix_memalign(&p, RM_ALIGN, (size_t)(count ? count : 1) * size), 0);
    memset(p, 0xff, (size_t)count * size);
    return p;
}

static double *random_values(int64_t count) {
    double *x = take(count, sizeof *x);
    for (int64_t i = 0; i < count; i++) x[i] = (float)draw(1 << 20) * 0x1p-19f - 1;
    return x;
}

static double *magnitudes(const double *x, int64_t count) {
    double *size = take(count, sizeof *size);
    for (int64_t i = 0; i < count; i++) size[i] = fabs(x[i]);
    return size;
}

static const remat_op *op_of(const example *e) {
    return rm_op_find_f64(e->attr.transposed ? "conv_transpose" : "conv");
}

static void define(example *e, double *const x[], double *y, double *dy, double *const dx[]) {
    const remat_op *op = op_of(e);
    remat_call call = {.attr = &e->attr, .t_total = 1, .training = true, .threads = 1};
    for (int i = 0; i < ARRAYS; i++) {
        call.x[i] = (remat_tensor){e->in[i], x[i]}, call.dx[i] = (remat_tensor){e->in[i], dx[i]};
        if (dx[i]) memset(dx[i], 0, rm_desc_bytes(&e->in[i]));
    }
    call.y = (remat_tensor){e->out, y}, call.dy = (remat_tensor){e->out, dy};
    op->define_forward(&call), op->define_backward(&call);
}

static void compute(example *e) {
    double *size[ARRAYS] = {NULL};
    for (int i = 0; i < ARRAYS; i++) {
        int64_t count = rm_desc_count(&e->in[i]);
        if (e->in[i].rank < 0) continue;
        e->x[i] = random_values(count), e->dx[i] = take(count, sizeof(double));
        size[i] = magnitudes(e->x[i], count), e->size_dx[i] = take(count, sizeof(double));
    }
    int64_t count = rm_desc_count(&e->out);
    e->y = take(count, sizeof(double)), e->size_y = take(count, sizeof(double)), e->dy = random_values(count);
    double *size_dy = magnitudes(e->dy, count);
    define(e, e->x, e->y, e->dy, e->dx), define(e, size, e->size_y, size_dy, e->size_dx);
    for (int i = 0; i < ARRAYS; i++) free(size[i]);
    free(size_dy);
}

static void forget(example *e) {
    for (int i = 0; i < ARRAYS; i++) free(e->x[i]), free(e->dx[i]), free(e->size_dx[i]);
    free(e->y), free(e->size_y), free(e->dy);
}

/* Returns false if the filter does not fit or the case is too large. */
static bool random_shape(example *e) {
    bool flat = draw(5) == 0, wide = draw(4) == 0;
    rm_conv_attr *a = &e->attr;
    *a = (rm_conv_attr){{1, 1}, {0, 0}, {1, 1}, PICK(1, 1, 1, 2, 3), .transposed = !flat && draw(3) == 0};
    int64_t dim[2][4] = {
        {1 + draw(draw(4) ? 3 : 30), a->groups * PICK(1, 2, 3, 17, 40, 70), 1, wide ? 500 + draw(700) : 1 + draw(24)}};
    int64_t filter[4] = {a->groups * PICK(1, 2, 16, 17, 33, 70), dim[0][1] / a->groups, 1, 1};
    for (int d = flat; d < 2; d++) {
        a->stride[d] = 1 + draw(4), a->padding[d] = draw(4), a->dilation[d] = 1 + draw(3), filter[2 + d] = 1 + draw(4);
        if (!flat && d == 0) dim[0][2] = wide ? 1 + draw(4) : 1 + draw(24);
    }
    if (draw(8) == 0) { /* more weights than are packed at a time */
        a->groups = 1, dim[0][1] = filter[1] = 66, filter[0] = 470;
        for (int d = flat; d < 2; d++)
            dim[0][2 + d] = 1 + draw(3), filter[2 + d] = flat ? 9 : 3, a->padding[d] = flat ? 4 : 1;
    }
    if (draw(6) == 0) { /* filters of one pixel, sometimes with more channels than are summed at once */
        for (int d = flat; d < 2; d++) a->stride[d] = filter[2 + d] = 1, a->padding[d] = 0;
        if (draw(3) == 0)
            a->groups = 1, dim[0][0] = 1, dim[0][1] = filter[1] = 600 + draw(100), filter[0] = PICK(1, 16, 17);
    }
    for (int d = 0; d < 2 && a->transposed; d++) a->output_padding[d] = draw(a->stride[d]);
    int64_t outputs = filter[0];
    if (a->transposed) filter[0] = dim[0][1], filter[1] = outputs / a->groups;
    int rank = flat ? 3 : 4;
    if (flat) dim[0][2] = dim[0][3], filter[2] = filter[3];
    e->in[X] = rm_desc_make(REMAT_F64, rank, dim[0]), e->in[W] = rm_desc_make(REMAT_F64, rank, filter);
    e->in[B] = draw(2) ? rm_desc_make(REMAT_F64, 1, &outputs) : (remat_desc){.rank = -1};
    remat_desc state_desc[REMAT_MAX_STATES];
    if (rm_op_infer(op_of(e), e->in, a, &e->out, state_desc)) return false;
    e->shape = rm_conv_shape_of(&e->in[X], &e->in[W], a);
    return (double)rm_desc_count(&e->out) * (double)(filter[1] * filter[2] * (flat ? 1 : filter[3])) < 3e6;
}

/* ---- The same in float ------------------------------------------------------------------------------------------- */

static float *rounded(const double *x, int64_t count) {
    float *to = take(count, sizeof *to);
    for (int64_t i = 0; x && i < count; i++) to[i] = (float)x[i];
    return to;
}

/* A sum has at most `terms` roundings, of numbers up to `size` + 1. */
static void near(const char *what, const float *got, const double *want, const double *size, int64_t count,
                 double terms) {
    for (int64_t i = 0; i < count; i++)
        ck_assert_msg(!(fabs(got[i] - want[i]) > (terms + 4) * 0x1p-24 * (size[i] + 1)) && !isnan(got[i]),
                      "%s[%lld] is %g, not %g", what, (long long)i, (double)got[i], want[i]);
}

static void same(const char *what, const float *a, const float *b, int64_t count) {
    ck_assert_msg(!memcmp(a, b, (size_t)count * sizeof *a), "%s has different bits", what);
}

typedef struct {
    float *x, *w, *b, *dy; /* inputs */
    float *y, *dx, *dw;    /* results on one thread */
    float *y2, *dx2, *dw2; /* results of the other runs */
    int64_t nx, nw, ny;
} floats;

static void run(rm_conv_shape s, const floats *f, int threads, int64_t first, int64_t images, float *y, float *dx,
                float *dw) {
    int64_t x_at = f->nx / s.images * first, y_at = f->ny / s.images * first;
    s.images = images;
    float *scratch = take(rm_convolve_scratch(&s, REMAT_FORWARD), sizeof *scratch);
    rm_convolve_forward(&s, threads, f->x + x_at, f->w, f->b, y + y_at, scratch);
    free(scratch), scratch = take(rm_convolve_scratch(&s, REMAT_BACKWARD), sizeof *scratch);
    rm_convolve_backward(&s, threads, f->x + x_at, f->w, f->dy + y_at, dx + x_at, dw, scratch);
    free(scratch);
}

static void compare(const example *e, floats *f) {
    const rm_conv_shape *s = &e->shape;
    memset(f->dw, 0, (size_t)f->nw * sizeof *f->dw);
    run(*s, f, 1, 0, s->images, f->y, f->dx, f->dw);
    double taps = (double)(s->filter[0] * s->filter[1]),
           terms[] = {(double)s->channels * taps, (double)s->outputs * taps};
    near("y", f->y, e->y, e->size_y, f->ny, terms[s->transposed]);
    near("dx", f->dx, e->dx[X], e->size_dx[X], f->nx, terms[!s->transposed]);
    near("dw", f->dw, e->dx[W], e->size_dx[W], f->nw, (double)(s->images * s->positions));
    for (int threads = 2; threads <= 5; threads += 3) {
        memset(f->dw2, 0, (size_t)f->nw * sizeof *f->dw);
        run(*s, f, threads, 0, s->images, f->y2, f->dx2, f->dw2);
        same("y on more threads", f->y2, f->y, f->ny), same("dx on more threads", f->dx2, f->dx, f->nx);
        same("dw on more threads", f->dw2, f->dw, f->nw);
    }
    int64_t together = s->positions < 256 ? 256 / s->positions : 1; /* images whose weight gradients are summed at a
                                                                       time: conv.h */
    memset(f->dw2, 0, (size_t)f->nw * sizeof *f->dw);
    for (int64_t i = 0; i < s->images; i += together)
        run(*s, f, 2, i, i + together < s->images ? together : s->images - i, f->y2, f->dx2, f->dw2);
    same("dw cut between such images", f->dw2, f->dw, f->nw);
    memset(f->dw2, 0, (size_t)f->nw * sizeof *f->dw);
    for (int64_t image = 0; image < s->images; image++) run(*s, f, 2, image, 1, f->y2, f->dx2, f->dw2);
    same("y image by image", f->y2, f->y, f->ny), same("dx image by image", f->dx2, f->dx, f->nx);
    near("dw image by image", f->dw2, e->dx[W], e->size_dx[W], f->nw, (double)(s->images * s->positions));
}

START_TEST(random_convolutions_are_accurate_and_bit_identical) {
    example e = {.attr = {.groups = 1}};
    state = (uint32_t)_i * 2654435761u + 1;
    while (!random_shape(&e)) continue;
    compute(&e);
    floats f = {.nx = rm_desc_count(&e.in[X]), .nw = rm_desc_count(&e.in[W]), .ny = rm_desc_count(&e.out)};
    f.x = rounded(e.x[X], f.nx), f.w = rounded(e.x[W], f.nw), f.dy = rounded(e.dy, f.ny);
    f.b = e.x[B] ? rounded(e.x[B], e.in[B].dim[0]) : NULL;
    float **result[] = {&f.y, &f.dx, &f.dw, &f.y2, &f.dx2, &f.dw2};
    for (int i = 0; i < 6; i++) *result[i] = take(i % 3 == 0 ? f.ny : i % 3 == 1 ? f.nx : f.nw, sizeof(float));
    for (int isa = 0; isa < RM_CELL_BF16; isa++) {
        if (!rm_cell_kernels_list(isa)) continue;
        rm_cell_kernels_use(rm_cell_kernels_list(isa));
        compare(&e, &f);
    }
    rm_cell_kernels_use(NULL);
    for (int i = 0; i < 6; i++) free(*result[i]);
    free(f.x), free(f.w), free(f.b), free(f.dy), forget(&e);
}
END_TEST

int main(void) {
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 300);
    tcase_add_loop_test(tc, random_convolutions_are_accurate_and_bit_identical, 0, rm_cases(2000, 200));
    return run_cases("convolve", tc);
}
