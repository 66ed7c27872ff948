/* recurrences.c: training steps, forward and backward, of one layer of a language model of 2024 to 2026: mamba and gdn,
 * which are whole mixers, or slstm and m2rnn, without norms. recurrences.py runs it to compare it with PyTorch. It
 * prints one line: the seconds of each step, the bytes of activations, and by how many bytes the steps make the process
 * grow.
 *
 *     bench_recurrences LAYER B D T [KEEP [STEPS [THREADS]]]
 *
 * The layer reads and makes D numbers per timestep; the loss is the mean square. KEEP: 0, no recomputation; N, that many
 * segments; NMiB, the fastest plan within a memory budget, which counts inputs, parameters and gradients, too.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/abi.h"
#include "engine/remat.h"

static void check(remat_status status) {
    if (status) fprintf(stderr, "%s\n", remat_last_error()), exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* A line of /proc/self/status, in bytes. */
static int64_t status_bytes(const char *field) {
    FILE *file = fopen("/proc/self/status", "r");
    char line[256];
    int64_t kib = 0;
    while (file && fgets(line, sizeof line, file))
        if (!strncmp(line, field, strlen(field))) kib = strtoll(line + strlen(field), NULL, 10);
    if (file) fclose(file);
    return kib << 10;
}

static int64_t number(char **argv, int argc, int i, int64_t otherwise) {
    return i < argc ? strtoll(argv[i], NULL, 10) : otherwise;
}

static remat_value param(remat_graph *g, const char *name, int64_t rows, int64_t columns) {
    int64_t dim[] = {rows, columns};
    return remat_param(g, name, columns ? 2 : 1, dim, remat_init_uniform(1 / sqrt((double)(columns ? columns : rows))));
}

/* As train/models/mamba.c. */
static remat_value mamba(remat_graph *g, remat_value x, const int64_t *shape) {
    int64_t D = shape[2], E = 2 * D, N = 16, R = (D + 15) / 16;
    remat_value xz = remat_linear(g, x, param(g, "in_proj", 2 * E, D), REMAT_NONE);
    remat_value filter = remat_param(g, "conv", 3, (int64_t[]){E, 1, 4}, remat_init_uniform(0.5));
    remat_value u = remat_silu(g, remat_causal_conv(g, remat_slice(g, xz, 0, E), filter, param(g, "conv_bias", E, 0)));
    remat_value made = remat_linear(g, u, param(g, "x_proj", R + 2 * N, E), REMAT_NONE);
    remat_value dt = remat_linear(g, remat_slice(g, made, 0, R), param(g, "dt_proj", E, R), REMAT_NONE);
    remat_value a_log = remat_param(g, "A_log", 2, (int64_t[]){E, N}, remat_init_of(REMAT_INIT_LOG_COUNT, 0));
    remat_value bias = remat_param(g, "dt_bias", 1, &E, remat_init_of(REMAT_INIT_TIME_STEP, 0.1));
    remat_value y = remat_selective_scan(g, u, dt, a_log, remat_slice(g, made, R, N), remat_slice(g, made, R + N, N),
                                         param(g, "D", E, 0), remat_slice(g, xz, E, E), bias);
    return remat_linear(g, y, param(g, "out_proj", D, E), REMAT_NONE);
}

static remat_value filtered(remat_graph *g, remat_value x, int64_t width) {
    remat_value filter = remat_param(g, "conv", 3, (int64_t[]){width, 1, 4}, remat_init_uniform(0.5));
    return remat_silu(g, remat_causal_conv(g, x, filter, REMAT_NONE));
}

/* Gated DeltaNet of Qwen3-Next: at D 2048 its 16 heads of keys and 32 of values, of 128 numbers each; below that 4 and 8
 * heads of 64. */
static remat_value gdn(remat_graph *g, remat_value x, const int64_t *shape) {
    const int64_t D = shape[2], size = D < 2048 ? 64 : 128, shared = D < 2048 ? 4 : 16, heads = 2 * shared;
    const int64_t keys = shared * size, values = heads * size, width = 2 * keys + values;
    const int64_t split[] = {shape[0], shape[1], heads, size}, joined[] = {shape[0], shape[1], values};
    remat_value qkv = filtered(g, remat_linear(g, x, param(g, "qkv", width, D), REMAT_NONE), width);
    remat_value a = remat_linear(g, x, param(g, "a", heads, D), REMAT_NONE), z = param(g, "z", values, D);
    remat_value b = remat_linear(g, x, param(g, "b", heads, D), REMAT_NONE);
    remat_value y = remat_delta_scan(g, remat_slice(g, qkv, 0, keys), remat_slice(g, qkv, keys, keys),
                                     remat_slice(g, qkv, 2 * keys, values), a, b, param(g, "A_log", heads, 0),
                                     remat_param(g, "dt_bias", 1, &heads, remat_init_constant(1)), shared, false);
    y = remat_rms_norm(g, remat_reshape(g, y, 4, split), param(g, "norm", size, 0), 1e-6);
    y = remat_mul(g, remat_reshape(g, y, 3, joined), remat_silu(g, remat_linear(g, x, z, REMAT_NONE)));
    return remat_linear(g, y, param(g, "out", D, values), REMAT_NONE);
}

/* xLSTM's, with 4 heads; its four gates come from one linear layer, where xlstm has a smaller one for each head. */
static remat_value slstm(remat_graph *g, remat_value x, const int64_t *shape) {
    int64_t D = shape[2];
    remat_value r = remat_param(g, "R", 3, (int64_t[]){4, D, D / 4}, remat_init_uniform(0.05));
    remat_value gates = remat_linear(g, filtered(g, x, D), param(g, "gates", 4 * D, D), REMAT_NONE);
    return remat_slstm(g, gates, r, param(g, "bias", 4 * D, 0));
}

/* 16 heads, or one for every 64 of D. The decay is a sigmoid. */
static remat_value m2rnn(remat_graph *g, remat_value x, const int64_t *shape) {
    const int64_t D = shape[2], heads = (D + 63) / 64, V = D / heads;
    remat_value qkv = remat_linear(g, x, param(g, "qkv", 3 * D, D), REMAT_NONE);
    remat_value f = remat_sigmoid(g, remat_linear(g, x, param(g, "f", heads, D), REMAT_NONE));
    remat_value w = remat_param(g, "w", 3, (int64_t[]){heads, V, V}, remat_init_of(REMAT_INIT_IDENTITY, 0));
    remat_value y =
        remat_m2rnn(g, remat_slice(g, qkv, 0, D), remat_slice(g, qkv, D, D), remat_slice(g, qkv, 2 * D, D), f, w);
    return remat_linear(g, y, param(g, "out", D, D), REMAT_NONE);
}

static const struct {
    const char *name;
    remat_value (*build)(remat_graph *g, remat_value x, const int64_t *shape); /* of x: (T,B,D) */
} layers[] = {{"mamba", mamba}, {"gdn", gdn}, {"slstm", slstm}, {"m2rnn", m2rnn}};
enum { LAYERS = sizeof layers / sizeof *layers };

static remat_config config_of(const char *keep, int threads) {
    remat_config config = REMAT_CONFIG_INIT;
    char *unit;
    int64_t n = strtoll(keep, &unit, 10);
    config.threads = threads;
    if (!strcmp(unit, "MiB"))
        config.strategy = "optimal", config.memory_budget = (uint64_t)n << 20;
    else if (n)
        config.strategy = "segments", config.segments = n;
    return config;
}

static void fill(remat_session *s) {
    for (int64_t i = 0; i < remat_count(s, REMAT_INPUT); i++) {
        remat_array info;
        check(remat_array_info(s, REMAT_INPUT, i, &info));
        float *data = calloc(1, info.bytes);
        for (int64_t k = 0; k < info.count && data && i == 0; k++) data[k] = sinf((float)k);
        check(remat_write(s, REMAT_INPUT, i, data, info.bytes));
        free(data);
    }
}

int main(int argc, char **argv) {
    int layer = 0;
    while (argc > 1 && layer < LAYERS && strcmp(argv[1], layers[layer].name)) layer++;
    if (argc < 5 || layer == LAYERS)
        return fprintf(stderr, "bench_recurrences mamba|gdn|slstm|m2rnn B D T [KEEP [STEPS [THREADS]]]\n"), 2;
    int64_t shape[] = {number(argv, argc, 4, 1), number(argv, argc, 2, 1), number(argv, argc, 3, 1)};
    remat_graph *g;
    remat_session *s;
    remat_config config = config_of(argc > 5 ? argv[5] : "0", (int)number(argv, argc, 7, 0));
    check(remat_graph_create(&g));
    remat_value x = remat_input(g, "x", REMAT_F32, REMAT_SEQUENCE, 3, shape);
    remat_value target = remat_input(g, "target", REMAT_F32, REMAT_SEQUENCE, 3, shape);
    remat_value loss = remat_mse(g, layers[layer].build(g, x, shape), target);
    check(remat_session_create(g, loss, &config, &s));
    fill(s);
    int64_t before = status_bytes("VmRSS:");
    for (int64_t i = 0, steps = number(argv, argc, 6, 5); i < steps; i++) {
        double start = now();
        check(remat_gradients(s, NULL));
        printf("%.6f ", now() - start);
    }
    printf("%llu %lld\n", (unsigned long long)rm_plan_summary_of(s).activations_peak_bytes,
           (long long)(status_bytes("VmHWM:") - before));
    remat_session_free(s);
    remat_graph_free(g);
    return 0;
}
