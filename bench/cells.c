/* cells.c: speed of the recurrent cells: forward and backward over T timesteps in tiles, as a training step runs
 * them, without the rest of the step. For each shape and number of threads it prints the best of some repetitions,
 * GFLOP/s and the share of this machine's multiply-add peak, which is measured first. FLOPs count the products alone.
 *
 *   bench_cells [cell [B H T [C]]]       C 0 (the default): the embedding is folded into the projection
 *   bench_cells lean [cell [B [H]]]      saving everything compared with lean saving, a table of B x H
 *   bench_cells bf16 ...                 the same with products in bf16; the peak is still that of fp32
 */
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ops/cpu/kernels.h"
#include "ops/op.h"

typedef struct {
    const remat_op *op;
    int64_t batch, hidden, steps, in, gates, tau;
} shape;

/* A single thread measures its own processor time, which other processes disturb less. */
static clockid_t measured_clock = CLOCK_MONOTONIC;

static double now(void) {
    struct timespec t;
    clock_gettime(measured_clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- The peak: independent multiply-adds in registers ------------------------------------------------ */

enum { SPINS = 100000, CHAINS = 12 };

#if defined(__x86_64__)
/* CHAINS chains of multiply-adds, SPINS long, on registers called `name`. */
#define SPIN(name, i) "vfmadd231ps %%" name "12, %%" name "12, %%" name #i "\n"
#define SPIN_ALL(name)                                                                                                 \
    SPIN(name, 0)                                                                                                      \
    SPIN(name, 1)                                                                                                      \
    SPIN(name, 2) SPIN(name, 3) SPIN(name, 4) SPIN(name, 5) SPIN(name, 6) SPIN(name, 7) SPIN(name, 8) SPIN(name, 9)    \
        SPIN(name, 10) SPIN(name, 11)
#define SPINNER(name, set)                                                                                             \
    __attribute__((target(set), noinline)) static void spin_##name(void) {                                             \
        __asm__ volatile("vxorps %%xmm12, %%xmm12, %%xmm12" ::: "xmm12");                                              \
        for (int64_t k = 0; k < SPINS; k++)                                                                            \
            __asm__ volatile(SPIN_ALL(#name)::                                                                         \
                                 : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",     \
                                   "xmm10", "xmm11");                                                                  \
    }
SPINNER(zmm, "avx512f")
SPINNER(ymm, "avx2,fma")

static double peak_of(void (*spin)(void), int lanes) {
    double best = INFINITY;
    for (int pass = 0; pass < 20; pass++) {
        double start = now();
        spin();
        best = fmin(best, now() - start);
    }
    return (double)SPINS * CHAINS * lanes * 2 / best * 1e-9;
}
#endif

/* GFLOP/s of one core with its widest vectors; 0 if it cannot be measured. */
static double peak_gflops(void) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) return peak_of(spin_zmm, 16);
    if (__builtin_cpu_supports("fma")) return peak_of(spin_ymm, 8);
#endif
    return 0;
}

/* ---- A tiled pass ------------------------------------------------------------------------------------ */

static float *fill(int64_t count, float bound) {
    float *x = aligned_alloc(RM_ALIGN, rm_align_up((uint64_t)count * 4 + 1));
    if (!x) exit(1);
    for (int64_t i = 0; i < count; i++) x[i] = ((float)((uint32_t)(i * 2654435761u) >> 8) * 0x1p-23f - 1) * bound;
    return x;
}

static remat_tensor tensor(remat_dtype dtype, void *data, int rank, int64_t a, int64_t b, int64_t c) {
    return (remat_tensor){{dtype, rank, {a, b, c, 1}}, data};
}

/* The data of one shape: a call per tile, with its own y, aux and states, as when everything is saved. */
typedef struct {
    shape s;
    int64_t n_tiles;
    remat_call *tile;
    void *packed;
} work;

static int64_t tile_of(const shape *s) {
    int64_t tau = 512 / s->batch;
    return tau < 8 ? 8 : tau > 256 ? 256 : tau;
}

static void add_tile(work *w, int64_t i, const remat_call *weights) {
    const shape *s = &w->s;
    remat_call *c = &w->tile[i];
    int64_t rows = s->tau * s->batch, state = s->batch * s->hidden;
    *c = *weights;
    if (s->in) {
        c->x[0] = tensor(REMAT_F32, fill(rows * s->in, 1), 3, s->tau, s->batch, s->in);
        c->dx[0] = tensor(REMAT_F32, fill(rows * s->in, 1), 3, s->tau, s->batch, s->in);
    } else {
        int32_t *token = (int32_t *)fill(rows, 1);
        for (int64_t r = 0; r < rows; r++) token[r] = (int32_t)((uint32_t)((r + i * rows) * 2654435761u) >> 24);
        c->x[0] = tensor(REMAT_I32, token, 2, s->tau, s->batch, 1);
    }
    c->y = tensor(REMAT_F32, fill(rows * s->hidden, 1), 3, s->tau, s->batch, s->hidden);
    c->dy = tensor(REMAT_F32, fill(rows * s->hidden, 0.01f), 3, s->tau, s->batch, s->hidden);
    remat_desc x[REMAT_MAX_INPUTS];
    for (int j = 0; j < REMAT_MAX_INPUTS; j++) x[j] = c->x[j].desc;
    c->aux = s->op->aux_bytes ? fill((int64_t)s->op->aux_bytes(x, NULL) / 4, 1) : NULL;
    for (int j = 0; j < s->op->n_state; j++) {
        if (i > 0) c->state_in[j] = w->tile[i - 1].state_out[j];
        if (i > 0) c->dstate_in[j] = tensor(REMAT_F32, fill(state, 1), 2, s->batch, s->hidden, 1);
        if (i > 0) w->tile[i - 1].dstate_out[j] = c->dstate_in[j];
        c->state_out[j] = tensor(REMAT_F32, fill(state, 1), 2, s->batch, s->hidden, 1);
    }
}

static void make_weights(const shape *s, remat_call *c) {
    int64_t wide = s->gates * s->hidden, rows = s->in ? wide : 256, columns = s->in ? s->in : wide;
    float bound = 1 / sqrtf((float)s->hidden);
    for (int twice = 0; twice < 2; twice++) {
        remat_tensor *x = twice ? c->dx : c->x;
        x[1] = tensor(REMAT_F32, fill(rows * columns, bound), 2, rows, columns, 1);
        x[2] = tensor(REMAT_F32, fill(wide * s->hidden, bound), 2, wide, s->hidden, 1);
        x[3] = tensor(REMAT_F32, fill(wide, bound), 1, wide, 1, 1);
        x[4] = tensor(REMAT_F32, fill(wide, bound), 1, wide, 1, 1);
        x[5].desc.rank = -1;
    }
}

static work make_work(shape s) {
    s.tau = tile_of(&s);
    work w = {.s = s, .n_tiles = s.steps / s.tau};
    if (w.n_tiles < 1) w.n_tiles = 1;
    w.tile = calloc((size_t)w.n_tiles, sizeof *w.tile);
    remat_call weights = {.t_total = s.steps, .training = true};
    make_weights(&s, &weights);
    for (int64_t i = 0; i < w.n_tiles; i++) add_tile(&w, i, &weights);
    remat_desc x[REMAT_MAX_INPUTS];
    remat_cost forward, backward;
    for (int j = 0; j < REMAT_MAX_INPUTS; j++) x[j] = w.tile[0].x[j].desc;
    s.op->cost(x, &w.tile[0].y.desc, NULL, REMAT_FORWARD, &forward);
    s.op->cost(x, &w.tile[0].y.desc, NULL, REMAT_BACKWARD, &backward);
    w.packed = fill((int64_t)s.op->on[REMAT_ON_CPU].packed_bytes(x, NULL, 1) / 4, 0);
    void *scratch = fill((int64_t)(forward.scratch_bytes + backward.scratch_bytes) / 4, 0);
    for (int64_t i = 0; i < w.n_tiles; i++) w.tile[i].scratch = scratch, w.tile[i].packed = w.packed;
    return w;
}

/* Seconds of a pass over all tiles. `only_forward`: nothing is saved. */
static double forward_pass(work *w, int threads, bool only_forward) {
    double start = now();
    w->tile[0].threads = threads;
    w->s.op->on[REMAT_ON_CPU].pack(&w->tile[0], w->packed);
    for (int64_t i = 0; i < w->n_tiles; i++) {
        remat_call call = w->tile[i];
        call.threads = threads;
        if (only_forward) call.aux = NULL;
        w->s.op->on[REMAT_ON_CPU].forward(&call);
    }
    return now() - start;
}

static double backward_pass(work *w, int threads) {
    double start = now();
    for (int64_t i = w->n_tiles - 1; i >= 0; i--) {
        w->tile[i].threads = threads;
        w->s.op->on[REMAT_ON_CPU].backward(&w->tile[i]);
    }
    return now() - start;
}

/* The same without saved aux: each tile's aux is rebuilt first, in one buffer for all. *rebuild: seconds of rebuilding
 * alone. */
static double lean_backward_pass(work *w, int threads, double *rebuild) {
    double start = now();
    *rebuild = 0;
    for (int64_t i = w->n_tiles - 1; i >= 0; i--) {
        remat_call call = w->tile[i];
        call.threads = threads;
        call.aux = w->tile[0].aux;
        double before = now();
        w->s.op->on[REMAT_ON_CPU].rebuild(&call);
        *rebuild += now() - before;
        w->s.op->on[REMAT_ON_CPU].backward(&call);
    }
    return now() - start;
}

/* Seconds of the passes of a step: the best of some interleaved repetitions. */
typedef struct {
    double drop, forward, backward; /* drop: nothing saved; others: all saved */
    double lean_backward, rebuild;  /* INFINITY without rebuild; lean_backward includes rebuild */
} timing;

static timing measure(work *w, int threads, int repetitions) {
    timing best = {INFINITY, INFINITY, INFINITY, INFINITY, INFINITY};
    for (int pass = 0; pass < repetitions; pass++) {
        double rebuild;
        best.forward = fmin(best.forward, forward_pass(w, threads, false));
        best.backward = fmin(best.backward, backward_pass(w, threads));
        best.drop = fmin(best.drop, forward_pass(w, threads, true));
        if (!w->s.op->on[REMAT_ON_CPU].rebuild) continue;
        best.lean_backward = fmin(best.lean_backward, lean_backward_pass(w, threads, &rebuild));
        best.rebuild = fmin(best.rebuild, rebuild);
    }
    return best;
}

static void report(const shape *s, double peak) {
    work w = make_work(*s);
    double rows = (double)(w.n_tiles * w.s.tau * s->batch), wide = (double)(s->gates * s->hidden);
    double gflop = 2 * rows * wide * (double)(s->hidden + s->in) * 1e-9;
    int most = omp_get_max_threads();
    for (int threads = 1; threads <= most; threads++) {
        measured_clock = threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC;
        timing t = measure(&w, threads, 5);
        double rate_f = gflop / t.forward, rate_b = 2 * gflop / t.backward, all = peak * threads;
        printf("%-8s B%-3lld H%-4lld C%-4lld T%-6lld tau %-3lld %d thr | drop %7.1f ms | keep %7.1f ms %6.1f GF/s "
               "%3.0f%% | "
               "backward %7.1f ms %6.1f GF/s %3.0f%%\n",
               s->op->name, (long long)s->batch, (long long)s->hidden, (long long)s->in, (long long)s->steps,
               (long long)w.s.tau, threads, t.drop * 1e3, t.forward * 1e3, rate_f, all > 0 ? 100 * rate_f / all : 0,
               t.backward * 1e3, rate_b, all > 0 ? 100 * rate_b / all : 0);
        fflush(stdout);
    }
}

static shape shape_of(const char *cell, int64_t batch, int64_t hidden, int64_t steps, int64_t in) {
    shape s = {rm_op_find(cell), batch, hidden, steps, in, 4, 0};
    if (!s.op || !s.op->on[REMAT_ON_CPU].packed_bytes)
        fprintf(stderr, "no such cell: %s (lstm, gru, rnn_tanh or rnn_relu)\n", cell), exit(2);
    s.gates = !strcmp(cell, "lstm") ? 4 : !strcmp(cell, "gru") ? 3 : 1;
    return s;
}

/* A row of the table: saving everything compared with saving only y. */
static void report_lean(const shape *s, double peak) {
    work w = make_work(*s);
    double gflop = 2 * (double)(w.n_tiles * w.s.tau * s->batch * s->gates * s->hidden * (s->hidden + s->in)) * 1e-9;
    int most = omp_get_max_threads();
    for (int threads = 1; threads <= most; threads++) {
        measured_clock = threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC;
        timing t = measure(&w, threads, 15);
        double rate = gflop / t.rebuild;
        printf("| %-4s B%-2lld H%-3lld C%-3lld | %d | %6.1f | %6.1f | %6.1f | %6.1f (%3.0f%%) | %6.1f | %+5.1f%% |\n",
               s->op->name, (long long)s->batch, (long long)s->hidden, (long long)s->in, threads, t.forward * 1e3,
               t.backward * 1e3, t.drop * 1e3, t.rebuild * 1e3, peak > 0 ? 100 * rate / (peak * threads) : 0,
               t.lean_backward * 1e3, 100 * ((t.drop + t.lean_backward) / (t.forward + t.backward) - 1));
        fflush(stdout);
    }
}

/* `batch`, `hidden_only`: print only these rows; 0: all. */
static void lean_table(const char *cell, int64_t batch, int64_t hidden_only, double peak) {
    static const int64_t batches[] = {1, 8, 32}, hiddens[] = {128, 256, 512};
    printf("| work | threads | forward, all kept | backward | forward, lean | rebuild (of peak) | lean backward with "
           "it | step |\n");
    for (int b = 0; b < 3; b++)
        for (int h = 0; h < 3; h++)
            for (int folded = 1; folded >= 0; folded--) {
                if ((batch && batch != batches[b]) || (hidden_only && hidden_only != hiddens[h])) continue;
                int64_t hidden = hiddens[h], steps = (1 << 27) / (batches[b] * hidden * hidden);
                shape s = shape_of(cell, batches[b], hidden, steps < 128 ? 128 : steps, folded ? 0 : hidden);
                report_lean(&s, peak);
            }
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "bf16")) {
        if (!rm_cell_kernels_list(RM_CELL_BF16)) return fprintf(stderr, "no AVX512_BF16 on this machine\n"), 2;
        rm_cell_kernels_use(rm_cell_kernels_list(RM_CELL_BF16));
        argc--, argv++;
    }
    if (argc > 1 && !strcmp(argv[1], "lean")) {
        lean_table(argc > 2 ? argv[2] : "lstm", argc > 3 ? atoll(argv[3]) : 0, argc > 4 ? atoll(argv[4]) : 0,
                   peak_gflops());
        return 0;
    }
    const char *cell = argc > 1 ? argv[1] : "lstm";
    double peak = peak_gflops();
    printf("kernels: %s; multiply-add peak of one core: %.0f GFLOP/s\n", rm_cell_kernels_get()->isa, peak);
    if (argc > 4) {
        shape s = shape_of(cell, atoll(argv[2]), atoll(argv[3]), atoll(argv[4]), argc > 5 ? atoll(argv[5]) : 0);
        if (s.batch < 1 || s.hidden < 1 || s.steps < 1 || s.in < 0)
            return fprintf(stderr, "sizes must be positive\n"), 2;
        report(&s, peak);
        return 0;
    }
    static const int64_t sizes[][4] = {{16, 256, 1024, 0},  {16, 256, 1024, 256}, {32, 512, 256, 0},
                                       {32, 512, 256, 512}, {1, 128, 8192, 0},    {64, 1024, 64, 0}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        shape s = shape_of(cell, sizes[i][0], sizes[i][1], sizes[i][2], sizes[i][3]);
        report(&s, peak);
    }
    return 0;
}
