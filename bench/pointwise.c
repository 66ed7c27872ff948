/* pointwise.c: the cost of recomputing a pointwise op's output compared with the cost of saving it. It decides whether
 * an op is marked `cheap` (docs/notes/cells.md). It prints picoseconds per element on one thread, the best of some
 * repetitions:
 *
 *   forward    with the operand still in the cache from the neighbouring ops of the tile (262,144 elements)
 *   save+load  the cost of saving: a copy from the cache to memory that has left the caches, and back
 *
 *   bench_pointwise
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ops/op.h"

enum { STEPS = 64, ROWS = 8, WIDTH = 512, COUNT = STEPS * ROWS * WIDTH, TILES = 256 /* 256 MiB: past the caches */ };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static float *fill(int64_t count) {
    float *x = aligned_alloc(RM_ALIGN, (size_t)count * sizeof *x);
    if (!x) exit(1);
    for (int64_t i = 0; i < count; i++) x[i] = ((float)((uint32_t)(i * 2654435761u) >> 8) * 0x1p-23f - 1) * 2;
    return x;
}

static double picoseconds(double seconds, double elements) { return seconds / elements * 1e12; }

/* The forward time of an op whose other inputs have the shape of x, or are vectors. */
static double forward_time(const remat_op *op, const void *attr, bool vectors) {
    remat_desc whole = rm_desc_make(REMAT_F32, 3, (int64_t[]){STEPS, ROWS, WIDTH});
    remat_call call = {.attr = attr, .t_total = STEPS, .training = true, .threads = 1, .key = {1, 2, 3}};
    for (int i = 0; i < op->n_in; i++) {
        bool vector = vectors && i > 0;
        call.x[i] = (remat_tensor){vector ? rm_desc_make(REMAT_F32, 1, (int64_t[]){WIDTH}) : whole,
                                   fill(vector ? WIDTH : COUNT)};
    }
    call.y = (remat_tensor){whole, fill(COUNT)};
    call.aux = fill(COUNT);
    double best = INFINITY;
    for (int pass = 0; pass < 30; pass++) {
        double start = now();
        op->on[REMAT_ON_CPU].forward(&call);
        best = fmin(best, now() - start);
    }
    for (int i = 0; i < op->n_in; i++) free(call.x[i].data);
    free(call.y.data), free(call.aux);
    return picoseconds(best, COUNT);
}

static double save_and_load_time(void) {
    float *near = fill(COUNT), *far = fill((int64_t)TILES * COUNT);
    double best = INFINITY;
    for (int pass = 0; pass < 3; pass++) {
        double start = now();
        for (int64_t i = 0; i < TILES; i++) memcpy(far + i * COUNT, near, COUNT * sizeof *near);
        for (int64_t i = TILES - 1; i >= 0; i--) memcpy(near, far + i * COUNT, COUNT * sizeof *near);
        best = fmin(best, now() - start);
    }
    free(near), free(far);
    return picoseconds(best, (double)TILES * COUNT);
}

int main(void) {
    const struct {
        const char *name;
        const void *attr;
        bool vectors;
    } ops[] = {
        {"scale", &(rm_scale_attr){2, 0}, false},
        {"add", NULL, false},
        {"mul", NULL, false},
        {"div", NULL, false},
        {"relu", NULL, false},
        {"log", NULL, false},
        {"sqrt", NULL, false},
        {"rsqrt", NULL, false},
        {"reciprocal", NULL, false},
        {"sin", NULL, false},
        {"cos", NULL, false},
        {"erf", NULL, false},
        {"log1p", NULL, false},
        {"expm1", NULL, false},
        {"sigmoid", NULL, false},
        {"tanh", NULL, false},
        {"dropout", &(rm_dropout_attr){0.1}, false},
        {"gelu", NULL, false},
        {"layer_norm", &(rm_layer_norm_attr){1e-5}, true},
    };
    printf("| op | forward, ps | cheap |\n|---|--:|---|\n");
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        const remat_op *op = rm_op_find(ops[i].name);
        printf("| %s | %.0f | %s |\n", op->name, forward_time(op, ops[i].attr, ops[i].vectors),
               op->cheap ? "yes" : "no");
        fflush(stdout);
    }
    printf("| save+load | %.0f | |\n", save_and_load_time());
    return 0;
}
