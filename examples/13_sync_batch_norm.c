/* 13_sync_batch_norm.c: batch norm with statistics over the batches of all ranks.
 *
 *     remat launch --nproc-per-node=2 -- ./13_sync_batch_norm
 *     ./13_sync_batch_norm                                       one rank with all rows: the same numbers
 *
 * It introduces remat_batch_norm and its buffers. A step computes the statistics once, however often the plan
 * recomputes a layer, so ranks may use different plans: here rank 0 keeps all activations, and the others recompute.
 * PyTorch's counterpart is SyncBatchNorm under DistributedDataParallel.
 */
#include <math.h>

#include "common.h"

enum { ROWS = 96, WIDTH = 24, LAYERS = 4, STEPS = 25, MOST_RANKS = 8 };

static remat_value parameter(remat_graph *g, const char *what, int layer, int64_t rows, int64_t columns,
                             remat_init init) {
    char name[32];
    snprintf(name, sizeof name, "%s.%d", what, layer);
    return remat_param(g, name, columns ? 2 : 1, (int64_t[]){rows, columns}, init);
}

static remat_value normalise(remat_graph *g, remat_value x, int layer) {
    const int64_t dim[] = {WIDTH};
    char mean[32], var[32];
    snprintf(mean, sizeof mean, "norm.running_mean.%d", layer);
    snprintf(var, sizeof var, "norm.running_var.%d", layer);
    return remat_batch_norm(g, x, parameter(g, "norm.weight", layer, WIDTH, 0, remat_init_constant(1)),
                            parameter(g, "norm.bias", layer, WIDTH, 0, remat_init_zero()),
                            remat_buffer(g, mean, 1, dim, remat_init_zero()),
                            remat_buffer(g, var, 1, dim, remat_init_constant(1)), 0.1, 1e-5, true);
}

/* Classifies points of a square: inside a ring or not. */
static remat_value describe(remat_graph *g, int64_t rows) {
    remat_value x = remat_input(g, "x", REMAT_F32, REMAT_STATIC, 2, (int64_t[]){rows, 2});
    remat_value inside = remat_input(g, "inside", REMAT_I32, REMAT_STATIC, 1, (int64_t[]){rows});
    for (int layer = 0; layer < LAYERS; layer++) {
        int64_t in = layer ? WIDTH : 2;
        remat_value w = parameter(g, "linear", layer, WIDTH, in, remat_init_normal(1 / sqrt((double)in)));
        x = remat_relu(g, normalise(g, remat_linear(g, x, w, REMAT_NONE), layer));
    }
    remat_value head = parameter(g, "head", 0, 2, WIDTH, remat_init_normal(0.2));
    return remat_softmax_cross_entropy(g, remat_linear(g, x, head, REMAT_NONE), inside);
}

/* Rows first .. first+rows-1 of the points that all ranks share. */
static void write_rows(remat_session *s, int64_t first, int64_t rows) {
    float x[ROWS][2];
    int32_t inside[ROWS];
    for (int64_t i = 0; i < rows; i++) {
        double a = fmod(0.754877666 * (double)(first + i), 1) * 2 - 1,
               b = fmod(0.569840291 * (double)(first + i), 1) * 2 - 1;
        double radius = sqrt(a * a + b * b);
        x[i][0] = (float)a, x[i][1] = (float)b;
        inside[i] = radius > 0.4 && radius < 0.8;
    }
    check(remat_write(s, REMAT_INPUT, 0, x, (uint64_t)rows * sizeof *x));
    check(remat_write(s, REMAT_INPUT, 1, inside, (uint64_t)rows * sizeof *inside));
}

int main(void) {
    remat_job *job;
    remat_graph *g;
    remat_session *s;
    remat_step_result trained, evaluated;
    check(remat_join(&(remat_job_config){.struct_bytes = sizeof(remat_job_config), .timeout_ms = 60000}, &job));
    const int rank = remat_job_rank(job), size = remat_job_size(job);
    if (size > MOST_RANKS || ROWS % size) return fprintf(stderr, "use 1, 2, 3, 4, 6 or 8 ranks\n"), 1;

    check(remat_graph_create(&g));
    remat_value loss = describe(g, ROWS / size);
    remat_config config = REMAT_CONFIG_INIT;
    config.optimizer = "adam";
    config.threads = 1;
    config.ranks = remat_job_ranks(job);
    config.strategy = rank ? "sqrt" : "none";
    check(remat_session_create(g, loss, &config, &s));
    check(remat_job_begin(job, s));
    write_rows(s, rank * (ROWS / size), ROWS / size);
    for (int step = 0; step < STEPS; step++) check(remat_step(s, 0.005, &trained));

    float mean[WIDTH];
    check(remat_evaluate(s, &evaluated)); /* with the running statistics, on this rank's rows alone */
    check(remat_job_sum(job, &evaluated.loss, 1));
    check(remat_read(s, REMAT_BUFFER, remat_find(s, REMAT_BUFFER, "norm.running_mean.0"), mean, sizeof mean));
    printf("rank %d of %d: loss %.3f, evaluated %.3f, first running mean %.4f, %s\n", rank, size, trained.loss,
           evaluated.loss / size, mean[0], trained.recomputed_stages ? "recomputing" : "keeping everything");

    remat_session_free(s);
    remat_graph_free(g);
    remat_leave(job);
    return 0;
}

/* Expected output:
[0] rank 0 of 2: loss 0.053, evaluated 0.201, first running mean -0.0194, keeping everything
[1] rank 1 of 2: loss 0.053, evaluated 0.201, first running mean -0.0194, recomputing
*/
