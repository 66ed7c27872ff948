/* gemm.c: the fastest matrix product for the shapes of an LSTM and of attention. It compares OpenBLAS, which this
 * program is linked with, with oneDNN and BLIS, if these are installed (opened privately, because their symbols share
 * names), and with Remat's own small_product. Calls
 * alternate between the libraries, so that other load on the machine affects all alike. It prints the best of the
 * rounds.
 *
 *     bench_gemm [seconds per row, default 1]
 *
 * Results, and the choice that followed from them: docs/notes/cells.md. */
#define _GNU_SOURCE
#include <cblas.h>
#include <dlfcn.h>
#include <math.h>
#include <omp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ops/math/gemm.h"
#include "ops/cpu/kernels.h"

typedef struct {
    const char *what;
    int m, n, k;
    bool a_transposed, b_transposed;
} shape;

/* C (m,n) = op(A) (m,k) op(B) (k,n). */
static const shape shapes[] = {
    {"step forward, B16 H256", 16, 1024, 256, false, true},
    {"  the same, weights stored transposed", 16, 1024, 256, false, false},
    {"step backward, B16 H256", 16, 256, 1024, false, false},
    {"step forward, B32 H512", 32, 2048, 512, false, true},
    {"  the same, weights stored transposed", 32, 2048, 512, false, false},
    {"step backward, B32 H512", 32, 512, 2048, false, false},
    {"step forward, B1 H128", 1, 512, 128, false, true},
    {"input projection, a tile of 512 rows", 512, 1024, 256, false, true},
    {"input projection, 4000 rows", 4000, 2048, 512, false, true},
    {"input gradient, a tile of 512 rows", 512, 256, 1024, false, false},
    {"weight gradient, a tile of 512 rows", 1024, 256, 512, true, false},
    {"weight gradient, 4000 rows", 2048, 512, 4000, true, false},
    {"linear head, a tile of 512 rows", 512, 256, 256, false, true},
    {"square", 2048, 2048, 2048, false, false},
    {"scores of 128 x 128 tokens, heads of 32", 128, 128, 32, false, true},
    {"their values", 128, 32, 128, false, false},
    {"gradient of their keys", 128, 32, 128, true, false},
    {"scores of 512 x 512 tokens, heads of 64", 512, 512, 64, false, true},
    {"their values", 512, 64, 512, false, false},
    {"gradient of their keys", 512, 64, 512, true, false},
    {"10 classes of 64 samples", 64, 10, 512, false, true},
};

/* ---- The contenders --------------------------------------------------------------------------------- */

static void *blis, *dnnl;
static void (*blis_sgemm)(int, int, int, int, int, int, float, const float *, int, const float *, int, float, float *,
                          int);
static int (*dnnl_sgemm)(char, char, int64_t, int64_t, int64_t, float, const float *, int64_t, const float *, int64_t,
                         float, float *, int64_t);

static void open_libraries(void) {
    setenv("BLIS_NUM_THREADS", "1", 1);
    blis = dlopen("libblis.so.4", RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    dnnl = dlopen("libdnnl.so.2", RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    if (!dnnl) dnnl = dlopen("libdnnl.so.3", RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    if (blis) *(void **)&blis_sgemm = dlsym(blis, "cblas_sgemm");
    if (dnnl) *(void **)&dnnl_sgemm = dlsym(dnnl, "dnnl_sgemm");
}

static int lda_of(const shape *s) { return s->a_transposed ? s->m : s->k; }
static int ldb_of(const shape *s) { return s->b_transposed ? s->k : s->n; }

typedef void multiply(const shape *s, const float *a, const float *b, float *c);

static void by_openblas(const shape *s, const float *a, const float *b, float *c) {
    cblas_sgemm(CblasRowMajor, s->a_transposed ? CblasTrans : CblasNoTrans, s->b_transposed ? CblasTrans : CblasNoTrans,
                s->m, s->n, s->k, 1, a, lda_of(s), b, ldb_of(s), 0, c, s->n);
}
static void by_dnnl(const shape *s, const float *a, const float *b, float *c) {
    dnnl_sgemm(s->a_transposed ? 'T' : 'N', s->b_transposed ? 'T' : 'N', s->m, s->n, s->k, 1, a, lda_of(s), b,
               ldb_of(s), 0, c, s->n);
}
static void by_blis(const shape *s, const float *a, const float *b, float *c) {
    blis_sgemm(CblasRowMajor, s->a_transposed ? CblasTrans : CblasNoTrans, s->b_transposed ? CblasTrans : CblasNoTrans,
               s->m, s->n, s->k, 1, a, lda_of(s), b, ldb_of(s), 0, c, s->n);
}
static void by_small_product(const shape *s, const float *a, const float *b, float *c) {
    rm_cell_kernels_get()->small_product(&(rm_small_product){s->a_transposed, s->b_transposed, s->m, s->n, s->k, 1, 0,
                                                             a, b, lda_of(s), ldb_of(s), c, s->n});
}
static void by_remat(const shape *s, const float *a, const float *b, float *c) {
    rm_gemm(omp_get_max_threads(), s->a_transposed ? RM_TRANSPOSED : RM_PLAIN,
            s->b_transposed ? RM_TRANSPOSED : RM_PLAIN, s->m, s->n, s->k, 1, a, lda_of(s), b, ldb_of(s), 0, c, s->n);
}

typedef struct {
    const char *name;
    int threads; /* of OpenMP; with own_threads also of OpenBLAS */
    bool own_threads;
    multiply *run;
} contender;

static const contender contenders[] = {
    {"OpenBLAS", 1, false, by_openblas}, {"oneDNN", 1, false, by_dnnl},
    {"BLIS", 1, false, by_blis},         {"small_product", 1, false, by_small_product},
    {"rm_gemm", 2, false, by_remat},     {"OpenBLAS", 2, true, by_openblas},
    {"oneDNN", 2, false, by_dnnl},
};
enum { CONTENDERS = sizeof contenders / sizeof *contenders };

static bool here(const contender *c) { return (c->run != by_dnnl || dnnl_sgemm) && (c->run != by_blis || blis_sgemm); }

/* ---- Measuring ---------------------------------------------------------------------------------------- */

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double flops_of(const shape *s) { return 2.0 * s->m * s->n * s->k; }

/* One round: about a millisecond of calls. Gives GFLOP/s. */
static double round_of(const contender *c, const shape *s, const float *a, const float *b, float *out) {
    int calls = (int)(1e8 / flops_of(s)) + 1;
    omp_set_num_threads(c->threads);
    openblas_set_num_threads(c->own_threads ? c->threads : 1);
    c->run(s, a, b, out); /* wakes the threads */
    double start = now();
    for (int i = 0; i < calls; i++) c->run(s, a, b, out);
    return flops_of(s) * calls / (now() - start) * 1e-9;
}

static float *random_floats(size_t n) {
    float *x = aligned_alloc(64, (n * sizeof *x + 63) / 64 * 64);
    if (!x) abort();
    for (size_t i = 0; i < n; i++) x[i] = (float)(i * 2654435761u % 1000) / 1000 - 0.5f;
    return x;
}

static void measure(const shape *s, double seconds, double *best) {
    size_t m = (size_t)s->m, n = (size_t)s->n, k = (size_t)s->k;
    float *a = random_floats(m * k), *b = random_floats(k * n), *c = random_floats(m * n),
          *check = random_floats(m * n);
    by_openblas(s, a, b, check);
    for (int i = 0; i < CONTENDERS; i++) best[i] = 0;
    for (double until = now() + seconds; now() < until;)
        for (int i = 0; i < CONTENDERS; i++) {
            if (!here(&contenders[i])) continue;
            double speed = round_of(&contenders[i], s, a, b, c);
            if (speed > best[i]) best[i] = speed;
        }
    for (int i = 0; i < CONTENDERS; i++) {
        if (!here(&contenders[i])) continue;
        contenders[i].run(s, a, b, c);
        for (size_t j = 0; j < m * n; j++)
            if (!(fabsf(c[j] - check[j]) <= 1e-6f * (float)k)) {
                fprintf(stderr, "%s computes a wrong product for %s\n", contenders[i].name, s->what);
                exit(1);
            }
    }
    free(a), free(b), free(c), free(check);
}

static void print_machine(void) {
    char line[4096] = "";
    FILE *f = fopen("/proc/cpuinfo", "r");
    bool avx512 = false, amx = false;
    while (f && fgets(line, sizeof line, f)) {
        if (!strncmp(line, "model name", 10)) printf("CPU:%s", strchr(line, ':') + 1);
        if (strncmp(line, "flags", 5)) continue;
        avx512 = strstr(line, " avx512f") != NULL;
        amx = strstr(line, " amx_tile") != NULL;
        break;
    }
    if (f) fclose(f);
    printf("%d processors%s%s; OpenBLAS runs its kernels for %s\n\n", omp_get_num_procs(), avx512 ? ", AVX-512" : "",
           amx ? ", AMX" : "", openblas_get_corename());
}

int main(int argc, char **argv) {
    double seconds = argc > 1 ? atof(argv[1]) : 1;
    open_libraries();
    print_machine();
    printf("| GFLOP/s | M x N x K |");
    for (int i = 0; i < CONTENDERS; i++)
        printf(" %s, %d thread%s |", contenders[i].name, contenders[i].threads, contenders[i].threads > 1 ? "s" : "");
    printf("\n|---|---|--:|--:|--:|--:|--:|--:|--:|\n");
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        double best[CONTENDERS];
        measure(&shapes[i], seconds, best);
        printf("| %s | %d x %d x %d |", shapes[i].what, shapes[i].m, shapes[i].n, shapes[i].k);
        for (int j = 0; j < CONTENDERS; j++) here(&contenders[j]) ? printf(" %.0f |", best[j]) : printf(" |");
        printf("\n");
        fflush(stdout);
    }
}
