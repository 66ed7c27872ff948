/* onednn_lstm.c: a peer for bench/cells.c: oneDNN's LSTM primitive, training forward and backward, over whole sequences
 * (it saves everything and has no tiles). One layer, left to right, f32; the input is as wide as the hidden state
 * unless C is given; weights are in the layout that the primitive prefers. Times are of the two primitives alone,
 * without the reorders that a framework adds. Threads: OMP_NUM_THREADS.
 *
 *   bench_onednn_lstm [B H T [C]]
 */
#include <math.h>
#include <omp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <oneapi/dnnl/dnnl.h>

static void check(dnnl_status_t status, const char *what) {
    if (status == dnnl_success) return;
    fprintf(stderr, "oneDNN: %s: status %d\n", what, (int)status);
    exit(1);
}
#define DNNL(call) check(call, #call)

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static dnnl_memory_desc_t describe(int rank, const dnnl_dims_t dims, dnnl_format_tag_t tag) {
    dnnl_memory_desc_t desc;
    DNNL(dnnl_memory_desc_init_by_tag(&desc, rank, dims, dnnl_f32, tag));
    return desc;
}

static dnnl_memory_t memory_for(dnnl_engine_t engine, const dnnl_memory_desc_t *desc, float bound) {
    dnnl_memory_t memory;
    void *data;
    DNNL(dnnl_memory_create(&memory, desc, engine, DNNL_MEMORY_ALLOCATE));
    DNNL(dnnl_memory_get_data_handle(memory, &data));
    for (size_t i = 0; i < dnnl_memory_desc_get_size(desc) / 4; i++)
        ((float *)data)[i] = ((float)((uint32_t)(i * 2654435761u) >> 8) * 0x1p-23f - 1) * bound;
    return memory;
}

static const int arguments[] = {DNNL_ARG_SRC_LAYER,     DNNL_ARG_SRC_ITER,     DNNL_ARG_SRC_ITER_C,
                                DNNL_ARG_WEIGHTS_LAYER, DNNL_ARG_WEIGHTS_ITER, DNNL_ARG_BIAS,
                                DNNL_ARG_DST_LAYER,     DNNL_ARG_DST_ITER,     DNNL_ARG_DST_ITER_C};
enum { ARGUMENTS = sizeof arguments / sizeof *arguments };

typedef struct {
    dnnl_primitive_t primitive;
    dnnl_exec_arg_t argument[2 * ARGUMENTS + 1];
    int n;
} step;

/* An operand in the layout that the primitive prefers. */
static void add_operand(step *s, dnnl_engine_t engine, const_dnnl_primitive_desc_t made, int argument, float bound) {
    const dnnl_memory_desc_t *desc = dnnl_primitive_desc_query_md(made, dnnl_query_exec_arg_md, argument);
    s->argument[s->n++] = (dnnl_exec_arg_t){argument, memory_for(engine, desc, bound)};
}

/* The offset of a gradient's argument number from that of its argument. */
enum { DIFF = DNNL_ARG_DIFF_SRC_0 - DNNL_ARG_SRC_0 };

static void add_operands(step *s, dnnl_engine_t engine, const_dnnl_primitive_desc_t made, bool gradients, float bound) {
    for (int i = 0; i < ARGUMENTS; i++) {
        add_operand(s, engine, made, arguments[i], bound);
        if (gradients) add_operand(s, engine, made, arguments[i] + DIFF, bound);
    }
}

static void run(step *s, dnnl_stream_t stream) {
    DNNL(dnnl_primitive_execute(s->primitive, stream, s->n, s->argument));
    DNNL(dnnl_stream_wait(stream));
}

static void measure(dnnl_engine_t engine, int64_t batch, int64_t hidden, int64_t steps, int64_t in) {
    dnnl_stream_t stream;
    DNNL(dnnl_stream_create(&stream, engine, dnnl_stream_default_flags));
    dnnl_memory_desc_t x = describe(3, (dnnl_dims_t){steps, batch, in}, dnnl_tnc);
    dnnl_memory_desc_t y = describe(3, (dnnl_dims_t){steps, batch, hidden}, dnnl_tnc);
    dnnl_memory_desc_t state = describe(4, (dnnl_dims_t){1, 1, batch, hidden}, dnnl_ldnc);
    dnnl_memory_desc_t w_layer = describe(5, (dnnl_dims_t){1, 1, in, 4, hidden}, dnnl_format_tag_any);
    dnnl_memory_desc_t w_iter = describe(5, (dnnl_dims_t){1, 1, hidden, 4, hidden}, dnnl_format_tag_any);
    dnnl_memory_desc_t bias = describe(4, (dnnl_dims_t){1, 1, 4, hidden}, dnnl_ldgo);
    dnnl_rnn_desc_t forward, backward;
    DNNL(dnnl_lstm_forward_desc_init(&forward, dnnl_forward_training, dnnl_unidirectional_left2right, &x, &state,
                                     &state, &w_layer, &w_iter, &bias, &y, &state, &state, 0));
    DNNL(dnnl_lstm_backward_desc_init(&backward, dnnl_backward, dnnl_unidirectional_left2right, &x, &state, &state,
                                      &w_layer, &w_iter, &bias, &y, &state, &state, &x, &state, &state, &w_layer,
                                      &w_iter, &bias, &y, &state, &state, 0));
    dnnl_primitive_desc_t made_forward, made_backward;
    DNNL(dnnl_primitive_desc_create(&made_forward, &forward, NULL, engine, NULL));
    DNNL(dnnl_primitive_desc_create(&made_backward, &backward, NULL, engine, made_forward));
    step f = {0}, b = {0};
    DNNL(dnnl_primitive_create(&f.primitive, made_forward));
    DNNL(dnnl_primitive_create(&b.primitive, made_backward));
    float bound = 1 / sqrtf((float)hidden);
    add_operands(&f, engine, made_forward, false, bound);
    add_operands(&b, engine, made_backward, true, bound);
    const dnnl_memory_desc_t *kept = dnnl_primitive_desc_query_md(made_forward, dnnl_query_workspace_md, 0);
    dnnl_memory_t workspace = memory_for(engine, kept, 0);
    f.argument[f.n++] = b.argument[b.n++] = (dnnl_exec_arg_t){DNNL_ARG_WORKSPACE, workspace};

    double forward_s = INFINITY, backward_s = INFINITY;
    for (int pass = 0; pass < 4; pass++) { /* the first warms up */
        double start = now();
        run(&f, stream);
        double middle = now();
        run(&b, stream);
        double end = now();
        forward_s = fmin(forward_s, middle - start), backward_s = fmin(backward_s, end - middle);
    }
    double gflop = 2.0 * (double)(steps * batch * 4 * hidden) * (double)(hidden + in) * 1e-9;
    printf("onednn   B%-3lld H%-4lld C%-4lld T%-6lld %d thr | forward %8.1f ms %6.1f GF/s | backward %8.1f ms %6.1f "
           "GF/s | "
           "workspace %.1f MiB\n",
           (long long)batch, (long long)hidden, (long long)in, (long long)steps, omp_get_max_threads(), forward_s * 1e3,
           gflop / forward_s, backward_s * 1e3, 2 * gflop / backward_s,
           (double)dnnl_memory_desc_get_size(kept) / 1048576);
    fflush(stdout);
}

int main(int argc, char **argv) {
    dnnl_engine_t engine;
    DNNL(dnnl_engine_create(&engine, dnnl_cpu, 0));
    const dnnl_version_t *version = dnnl_version();
    printf("oneDNN %d.%d.%d\n", version->major, version->minor, version->patch);
    if (argc > 3) {
        int64_t size[4] = {atoll(argv[1]), atoll(argv[2]), atoll(argv[3]), argc > 4 ? atoll(argv[4]) : atoll(argv[2])};
        for (int i = 0; i < 4; i++)
            if (size[i] < 1) return fprintf(stderr, "sizes must be positive\n"), 2;
        measure(engine, size[0], size[1], size[2], size[3]);
        return 0;
    }
    static const int64_t sizes[][4] = {{16, 256, 1024, 256}, {32, 512, 256, 512}, {1, 128, 8192, 128}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        measure(engine, sizes[i][0], sizes[i][1], sizes[i][2], sizes[i][3]);
    return 0;
}
