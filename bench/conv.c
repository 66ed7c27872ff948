/* conv.c: the op `conv` on ResNet shapes, forward and backward, compared with oneDNN's primitives if oneDNN 2.x is
 * installed. oneDNN is measured twice: with all operands in its preferred layouts; and as a Remat op would have to call
 * it, with plain images (N,C,H,W): these and the gradient of the weights are reordered into scratch and back, only the
 * weights are reordered in advance, and the caller provides scratchpads. Calls alternate. It prints milliseconds, the
 * best of the rounds.
 *
 *   bench_conv [ROUNDS [ROW]]      ROUNDS: 20; ROW: only this row, as numbers for conv.py. Threads: OMP_NUM_THREADS
 */
#include <math.h>
#include <omp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#ifdef RM_BENCH_DNNL
#include <oneapi/dnnl/dnnl.h>
#endif

#include "ops/op.h"

typedef struct {
    const char *what;
    int64_t batch, channels, side, outputs, filter, stride, padding;
} shape;

static const shape shapes[] = {
    {"64 x 32 x 32, 3 x 3", 16, 64, 32, 64, 3, 1, 1},
    {"128 x 16 x 16, 3 x 3", 16, 128, 16, 128, 3, 1, 1},
    {"256 x 8 x 8, 3 x 3", 16, 256, 8, 256, 3, 1, 1},
    {"64 x 32 x 32, 1 x 1 to 256", 16, 64, 32, 256, 1, 1, 0},
    {"3 x 128 x 128, 7 x 7 to 64, stride 2", 16, 3, 128, 64, 7, 2, 3},
    {"128 x 32 x 32, 3 x 3, stride 2", 16, 128, 32, 128, 3, 2, 1},
    {"512 x 4 x 4, 3 x 3", 16, 512, 4, 512, 3, 1, 1},
    {"512 x 7 x 7, 3 x 3", 16, 512, 7, 512, 3, 1, 1},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static float *fill(int64_t count) {
    float *x = aligned_alloc(RM_ALIGN, ((size_t)count * sizeof *x + RM_ALIGN - 1) / RM_ALIGN * RM_ALIGN);
    if (!x) exit(1);
    for (int64_t i = 0; i < count; i++) x[i] = ((float)((uint32_t)(i * 2654435761u) >> 8) * 0x1p-23f - 1) * 0.1f;
    return x;
}

static remat_tensor tensor(remat_desc desc) { return (remat_tensor){desc, fill(rm_desc_count(&desc))}; }

/* ---- Remat ------------------------------------------------------------------------------------------------------- */

static remat_call describe(const shape *s, const rm_conv_attr *attr) {
    const remat_op *op = rm_op_find("conv");
    remat_call call = {.attr = attr, .t_total = 1, .training = true, .threads = omp_get_max_threads()};
    call.x[0] = tensor(rm_desc_make(REMAT_F32, 4, (int64_t[]){s->batch, s->channels, s->side, s->side}));
    call.x[1] = tensor(rm_desc_make(REMAT_F32, 4, (int64_t[]){s->outputs, s->channels, s->filter, s->filter}));
    call.x[2] = tensor(rm_desc_make(REMAT_F32, 1, (int64_t[]){s->outputs}));
    remat_desc x[REMAT_MAX_INPUTS] = {call.x[0].desc, call.x[1].desc, call.x[2].desc}, y, state[REMAT_MAX_STATES];
    remat_cost forward, backward;
    if (op->infer(x, attr, &y, state)) exit(1);
    op->cost(x, &y, attr, REMAT_FORWARD, &forward), op->cost(x, &y, attr, REMAT_BACKWARD, &backward);
    call.y = tensor(y), call.dy = tensor(y);
    for (int i = 0; i < 3; i++) call.dx[i] = tensor(x[i]);
    uint64_t scratch = forward.scratch_bytes > backward.scratch_bytes ? forward.scratch_bytes : backward.scratch_bytes;
    call.scratch = fill((int64_t)scratch / 4 + 1);
    return call;
}

static void release(remat_call *call) {
    for (int i = 0; i < 3; i++) free(call->x[i].data), free(call->dx[i].data);
    free(call->y.data), free(call->dy.data), free(call->scratch);
}

/* ---- oneDNN ------------------------------------------------------------------------------------------------------ */

#ifdef RM_BENCH_DNNL

static void check(dnnl_status_t status, const char *what) {
    if (status == dnnl_success) return;
    fprintf(stderr, "oneDNN: %s: status %d\n", what, (int)status);
    exit(1);
}
#define DNNL(call) check(call, #call)

enum { MOST = 16 };
typedef struct {
    dnnl_primitive_t primitive;
    dnnl_exec_arg_t argument[MOST];
    int n;
} step;

/* Steps of one pass, in order; `bytes`: their scratch. */
typedef struct {
    step step[MOST];
    int n;
    uint64_t bytes;
} program;

static dnnl_engine_t engine;
static dnnl_stream_t stream;

static dnnl_memory_t memory_of(const dnnl_memory_desc_t *desc, void *data) {
    dnnl_memory_t memory;
    DNNL(dnnl_memory_create(&memory, desc, engine,
                            data ? data : fill((int64_t)dnnl_memory_desc_get_size(desc) / 4 + 1)));
    return memory;
}

static void add_reorder(program *p, const dnnl_memory_desc_t *from_desc, dnnl_memory_t from,
                        const dnnl_memory_desc_t *to_desc, dnnl_memory_t to) {
    dnnl_primitive_desc_t made;
    step *s = &p->step[p->n++];
    DNNL(dnnl_reorder_primitive_desc_create(&made, from_desc, engine, to_desc, engine, NULL));
    DNNL(dnnl_primitive_create(&s->primitive, made));
    s->argument[s->n++] = (dnnl_exec_arg_t){DNNL_ARG_FROM, from};
    s->argument[s->n++] = (dnnl_exec_arg_t){DNNL_ARG_TO, to};
    DNNL(dnnl_primitive_desc_destroy(made));
}

typedef struct {
    int argument;
    const dnnl_memory_desc_t *plain;
    bool reordered, made; /* reordered: if the layout differs; made: it is a result */
} operand;

static void add_convolution(program *p, const void *desc, const_dnnl_primitive_desc_t hint, dnnl_primitive_attr_t attr,
                            const operand *operands, int n, bool plain, dnnl_primitive_desc_t *made) {
    DNNL(dnnl_primitive_desc_create(made, desc, attr, engine, hint));
    step core = {0};
    program after = {0};
    DNNL(dnnl_primitive_create(&core.primitive, *made));
    for (int i = 0; i < n; i++) {
        const operand *o = &operands[i];
        const dnnl_memory_desc_t *wanted = dnnl_primitive_desc_query_md(*made, dnnl_query_exec_arg_md, o->argument);
        dnnl_memory_t memory = memory_of(wanted, NULL);
        core.argument[core.n++] = (dnnl_exec_arg_t){o->argument, memory};
        if (!plain || !o->reordered || dnnl_memory_desc_equal(wanted, o->plain)) continue;
        p->bytes += dnnl_memory_desc_get_size(wanted);
        if (o->made)
            add_reorder(&after, wanted, memory, o->plain, memory_of(o->plain, NULL));
        else
            add_reorder(p, o->plain, memory_of(o->plain, NULL), wanted, memory);
    }
    const dnnl_memory_desc_t *pad = dnnl_primitive_desc_query_md(*made, dnnl_query_scratchpad_md, 0);
    p->bytes += dnnl_memory_desc_get_size(pad);
    core.argument[core.n++] = (dnnl_exec_arg_t){DNNL_ARG_SCRATCHPAD, memory_of(pad, NULL)};
    p->step[p->n++] = core;
    for (int i = 0; i < after.n; i++) p->step[p->n++] = after.step[i];
}

static dnnl_memory_desc_t memory_desc(int rank, const dnnl_dims_t dims, dnnl_format_tag_t tag) {
    dnnl_memory_desc_t desc;
    DNNL(dnnl_memory_desc_init_by_tag(&desc, rank, dims, dnnl_f32, tag));
    return desc;
}

static void build(const shape *s, bool plain, program *forward, program *backward) {
    int64_t out = (s->side + 2 * s->padding - s->filter) / s->stride + 1;
    dnnl_dims_t x = {s->batch, s->channels, s->side, s->side}, w = {s->outputs, s->channels, s->filter, s->filter},
                b = {s->outputs}, y = {s->batch, s->outputs, out, out};
    dnnl_dims_t stride = {s->stride, s->stride}, padding = {s->padding, s->padding};
    dnnl_memory_desc_t ax = memory_desc(4, x, dnnl_format_tag_any), aw = memory_desc(4, w, dnnl_format_tag_any),
                       ab = memory_desc(1, b, dnnl_a), ay = memory_desc(4, y, dnnl_format_tag_any);
    dnnl_memory_desc_t px = memory_desc(4, x, dnnl_nchw), pw = memory_desc(4, w, dnnl_oihw),
                       py = memory_desc(4, y, dnnl_nchw);
    dnnl_primitive_attr_t attr;
    DNNL(dnnl_primitive_attr_create(&attr));
    DNNL(dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user));
    dnnl_convolution_desc_t f, d, g;
    dnnl_primitive_desc_t made, of_data, of_weights;
    *forward = *backward = (program){0};
    DNNL(dnnl_convolution_forward_desc_init(&f, dnnl_forward_training, dnnl_convolution_direct, &ax, &aw, &ab, &ay,
                                            stride, padding, padding));
    add_convolution(forward, &f, NULL, attr,
                    (operand[]){{DNNL_ARG_SRC, &px, true, false},
                                {DNNL_ARG_WEIGHTS, &pw, false, false},
                                {DNNL_ARG_BIAS, &ab, false, false},
                                {DNNL_ARG_DST, &py, true, true}},
                    4, plain, &made);
    DNNL(dnnl_convolution_backward_weights_desc_init(&g, dnnl_convolution_direct, &ax, &aw, &ab, &ay, stride, padding,
                                                     padding));
    add_convolution(backward, &g, made, attr,
                    (operand[]){{DNNL_ARG_SRC, &px, true, false},
                                {DNNL_ARG_DIFF_WEIGHTS, &pw, true, true},
                                {DNNL_ARG_DIFF_BIAS, &ab, false, true},
                                {DNNL_ARG_DIFF_DST, &py, true, false}},
                    4, plain, &of_weights);
    DNNL(
        dnnl_convolution_backward_data_desc_init(&d, dnnl_convolution_direct, &ax, &aw, &ay, stride, padding, padding));
    add_convolution(backward, &d, made, attr,
                    (operand[]){{DNNL_ARG_DIFF_SRC, &px, true, true},
                                {DNNL_ARG_WEIGHTS, &pw, false, false},
                                {DNNL_ARG_DIFF_DST, &py, false, false}}, /* reordered above, in the same layout */
                    3, plain, &of_data);
}

static void run(program *p) {
    for (int i = 0; i < p->n; i++)
        DNNL(dnnl_primitive_execute(p->step[i].primitive, stream, p->step[i].n, p->step[i].argument));
    DNNL(dnnl_stream_wait(stream));
}

#endif

/* ---- Measuring --------------------------------------------------------------------------------------------------- */

enum { REMAT, DNNL_PREFERRED, DNNL_PLAIN, CONTENDERS };

static double took(double *best, double start) {
    double end = now();
    *best = fmin(*best, end - start);
    return end;
}

static void measure(const shape *s, int rounds, bool numbers) {
    const rm_conv_attr attr = {{s->stride, s->stride}, {s->padding, s->padding}, {1, 1}, .groups = 1};
    const remat_op *op = rm_op_find("conv");
    remat_call call = describe(s, &attr);
    double best[CONTENDERS][2];
    for (int i = 0; i < CONTENDERS; i++) best[i][0] = best[i][1] = INFINITY;
#ifdef RM_BENCH_DNNL
    program p[CONTENDERS][2];
    for (int i = 1; i < CONTENDERS && !numbers; i++) build(s, i == DNNL_PLAIN, &p[i][0], &p[i][1]);
#endif
    for (int round = 0; round < rounds; round++) {
        double start = now();
        op->on[REMAT_ON_CPU].forward(&call), start = took(&best[REMAT][0], start);
        op->on[REMAT_ON_CPU].backward(&call), took(&best[REMAT][1], start);
#ifdef RM_BENCH_DNNL
        for (int i = 1; i < CONTENDERS && !numbers; i++)
            for (int pass = 0; pass < 2; pass++) start = now(), run(&p[i][pass]), took(&best[i][pass], start);
#endif
    }
    if (numbers) {
        printf("%.6f %.6f\n", best[0][0] * 1e3, best[0][1] * 1e3);
    } else {
        double gflop = 2e-9 * (double)(rm_desc_count(&call.y.desc) * s->channels * s->filter * s->filter);
        printf("| %s |", s->what);
        for (int i = 0; i < CONTENDERS; i++) printf(" %.2f + %.2f |", best[i][0] * 1e3, best[i][1] * 1e3);
        printf(" %.0f |", 3 * gflop / (best[0][0] + best[0][1]));
#ifdef RM_BENCH_DNNL
        printf(" %.1f |", (double)(p[2][0].bytes > p[2][1].bytes ? p[2][0].bytes : p[2][1].bytes) / 1048576);
#endif
        printf("\n");
    }
    fflush(stdout);
    release(&call);
}

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 20, row = argc > 2 ? atoi(argv[2]) : -1;
    if (rounds < 1 || row >= SHAPES) return fprintf(stderr, "bench_conv [ROUNDS [ROW below %d]]\n", SHAPES), 2;
#ifdef RM_BENCH_DNNL
    DNNL(dnnl_engine_create(&engine, dnnl_cpu, 0));
    DNNL(dnnl_stream_create(&stream, engine, dnnl_stream_default_flags));
#endif
    if (row >= 0) return measure(&shapes[row], rounds, true), 0;
    printf("| batch of 16, %d threads; forward + backward [ms] | Remat | oneDNN, its layouts | oneDNN, plain images | "
           "Remat [GFLOP/s] | the latter's scratch [MiB] |\n|---|--:|--:|--:|--:|--:|\n",
           omp_get_max_threads());
    for (int i = 0; i < SHAPES; i++) measure(&shapes[i], rounds, false);
}
