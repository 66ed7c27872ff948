/* vecmath.c: accuracy and speed of ops/math/vecmath.h, compiled for this machine, compared with glibc's libmvec and
 * SLEEF. The reference is the C library in double, for every float (or every `stride`-th); errors are in ulp
 * of the exact result. Results: docs/notes/cells.md.
 *
 *   bench_vecmath [stride]        default 1: all 2^32 floats, a few minutes
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ops/math/vecmath.h"

#ifdef RM_BENCH_SLEEF
#include <sleef.h>
#endif

typedef rm_vec vector_function(rm_vec);
typedef struct {
    const char *name;
    vector_function *vector;
    double (*exact)(double);
} contender;

static double exact_sigmoid(double x) { return 1 / (1 + exp(-x)); }
static rm_vec own_exp(rm_vec x) { return rm_vec_exp(x); }
static rm_vec own_sigmoid(rm_vec x) { return rm_vec_sigmoid(x); }
static rm_vec own_tanh(rm_vec x) { return rm_vec_tanh(x); }
static rm_vec libm_exp(rm_vec x) {
    for (int i = 0; i < RM_LANES; i++) x[i] = expf(x[i]);
    return x;
}
static rm_vec libm_tanh(rm_vec x) {
    for (int i = 0; i < RM_LANES; i++) x[i] = tanhf(x[i]);
    return x;
}

#if RM_LANES == 16
#define MVEC(name) _ZGVeN16v_##name
#define SLEEF(name) Sleef_##name##f16_u10
#elif RM_LANES == 8
#define MVEC(name) _ZGVdN8v_##name
#define SLEEF(name) Sleef_##name##f8_u10
#else
#define MVEC(name) _ZGVbN4v_##name
#define SLEEF(name) Sleef_##name##f4_u10
#endif
rm_vec MVEC(expf)(rm_vec);
rm_vec MVEC(tanhf)(rm_vec);
static rm_vec mvec_exp(rm_vec x) { return MVEC(expf)(x); }
static rm_vec mvec_tanh(rm_vec x) { return MVEC(tanhf)(x); }
static rm_vec mvec_sigmoid(rm_vec x) { return rm_splat(1) / (rm_splat(1) + MVEC(expf)(-x)); }
#ifdef RM_BENCH_SLEEF
static rm_vec sleef_exp(rm_vec x) { return (rm_vec)SLEEF(exp)(x); }
static rm_vec sleef_tanh(rm_vec x) { return (rm_vec)SLEEF(tanh)(x); }
static rm_vec sleef_sigmoid(rm_vec x) { return rm_splat(1) / (rm_splat(1) + (rm_vec)SLEEF(exp)(-x)); }
#endif

static const contender contenders[] = {
    {"exp      vecmath.h", own_exp, exp},
    {"exp      libmvec", mvec_exp, exp},
#ifdef RM_BENCH_SLEEF
    {"exp      SLEEF u10", sleef_exp, exp},
#endif
    {"exp      libm (scalar)", libm_exp, exp},
    {"sigmoid  vecmath.h", own_sigmoid, exact_sigmoid},
    {"sigmoid  libmvec", mvec_sigmoid, exact_sigmoid},
#ifdef RM_BENCH_SLEEF
    {"sigmoid  SLEEF u10", sleef_sigmoid, exact_sigmoid},
#endif
    {"tanh     vecmath.h", own_tanh, tanh},
    {"tanh     libmvec", mvec_tanh, tanh},
#ifdef RM_BENCH_SLEEF
    {"tanh     SLEEF u10", sleef_tanh, tanh},
#endif
    {"tanh     libm (scalar)", libm_tanh, tanh},
};
enum { CONTENDERS = sizeof contenders / sizeof *contenders };

/* Distance in ulps of the exact value; results and exact values below 2^-126 count as equal. */
static double ulps(float got, double exact) {
    if (isnan(exact)) return isnan(got) ? 0 : INFINITY;
    if (isinf((float)exact)) return isinf(got) && (got > 0) == (exact > 0) ? 0 : INFINITY;
    if (fabs(exact) < 0x1p-126 && fabsf(got) <= 0x1p-126f) return 0;
    int exponent;
    frexp(exact, &exponent);
    return fabs((double)got - exact) / ldexp(1, exponent - 24);
}

static double worst_error(const contender *c, uint64_t stride, float *where) {
    double worst = 0;
    for (uint64_t bits = 0; bits < 1ull << 32; bits += stride * RM_LANES) {
        rm_vec x;
        for (int i = 0; i < RM_LANES; i++) {
            uint32_t word = (uint32_t)(bits + (uint64_t)i * stride);
            memcpy((float *)&x + i, &word, sizeof word);
        }
        rm_vec y = c->vector(x);
        for (int i = 0; i < RM_LANES; i++) {
            double error = ulps(y[i], c->exact((double)x[i]));
            if (!(error <= worst)) worst = error, *where = x[i];
        }
    }
    return worst;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Nanoseconds per vector, for a buffer in L1: the best of many passes. */
static double speed(const contender *c) {
    enum { VECTORS = 256 };
    static rm_vec x[VECTORS], y[VECTORS];
    double best = INFINITY;
    for (int i = 0; i < VECTORS * RM_LANES; i++) ((float *)x)[i] = (float)((i * 2654435761u >> 16) % 2000) / 250 - 4;
    for (int pass = 0; pass < 400; pass++) {
        double start = now();
        for (int again = 0; again < 10; again++)
            for (int i = 0; i < VECTORS; i++) y[i] = c->vector(x[i]);
        double elapsed = (now() - start) / (10 * VECTORS);
        __asm__ volatile("" : : "r"(y) : "memory");
        if (elapsed < best) best = elapsed;
    }
    return best * 1e9;
}

int main(int argc, char **argv) {
    uint64_t stride = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    if (stride == 0) stride = 1;
    printf("%d lanes; every %llu-th float\n%-24s %10s %14s %12s\n", RM_LANES, (unsigned long long)stride, "", "max ulp",
           "at x =", "ns/vector");
    for (int i = 0; i < CONTENDERS; i++) {
        float where = 0;
        double worst = worst_error(&contenders[i], stride, &where);
        printf("%-24s %10.3f %14.6g %12.2f\n", contenders[i].name, worst, (double)where, speed(&contenders[i]));
    }
    return 0;
}
