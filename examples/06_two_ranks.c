/* 06_two_ranks.c: the same training in several processes.
 *
 *     remat launch --nproc-per-node=2 -- ./06_two_ranks          torchrun, srun and mpirun work, too
 *     ./06_two_ranks                                             without a launcher: a job of one rank
 *
 * It introduces remat_join, the sampler that distributes samples to ranks, and remat_job_begin. It fits the line of the
 * first example again, to 64 points in batches of 16. For each update, each of W ranks computes 16/W rows; gradients
 * are averaged during the backward pass. All ranks end with the same bits, as the hashes in the output show. An
 * argument selects the transport: ./06_two_ranks gloo.
 */
#include "common.h"

enum { POINTS = 64, BATCH = 16, EPOCHS = 25, MOST_RANKS = 16 };

/* Writes this rank's k-th batch into the session. */
static void write_batch(remat_session *s, const remat_sampler *order, int64_t k, int64_t rows) {
    float x[BATCH][2], y[BATCH][1];
    for (int64_t i = 0; i < rows; i++) {
        int64_t point = remat_sampler_at(order, k * rows + i);
        x[i][0] = (float)(point % 8) / 4 - 1;
        x[i][1] = (float)(point / 8) / 4 - 1;
        y[i][0] = 3 * x[i][0] - 2 * x[i][1] + 1;
    }
    check(remat_write(s, REMAT_INPUT, 0, x, (uint64_t)rows * sizeof *x));
    check(remat_write(s, REMAT_INPUT, 1, y, (uint64_t)rows * sizeof *y));
}

/* FNV-1a over the bits of all parameters. */
static unsigned long hash_parameters(remat_session *s) {
    unsigned long hash = 0xcbf29ce484222325;
    for (int64_t i = 0; i < remat_count(s, REMAT_PARAM); i++) {
        unsigned char bytes[8];
        remat_array array;
        check(remat_array_info(s, REMAT_PARAM, i, &array));
        check(remat_read(s, REMAT_PARAM, i, bytes, array.bytes));
        for (uint64_t b = 0; b < array.bytes; b++) hash = (hash ^ bytes[b]) * 0x100000001b3;
    }
    return hash;
}

static remat_session *create_session(int64_t rows, const remat_ranks *ranks) {
    remat_graph *g;
    remat_session *s;
    check(remat_graph_create(&g));
    remat_value x = remat_input(g, "x", REMAT_F32, REMAT_STATIC, 2, (int64_t[]){rows, 2});
    remat_value y = remat_input(g, "y", REMAT_F32, REMAT_STATIC, 2, (int64_t[]){rows, 1});
    remat_value w = remat_param(g, "w", 2, (int64_t[]){1, 2}, remat_init_uniform(1));
    remat_value b = remat_param(g, "b", 1, (int64_t[]){1}, remat_init_zero());
    remat_config config = REMAT_CONFIG_INIT;
    config.optimizer = "sgd";
    config.threads = 1; /* ranks of one machine share its processors */
    config.ranks = ranks;
    check(remat_session_create(g, remat_mse(g, remat_linear(g, x, w, b), y), &config, &s));
    remat_graph_free(g);
    return s;
}

int main(int argc, char **argv) {
    remat_job *job; /* finds this rank's number and the other ranks; returns when all have joined */
    check(remat_join(
        &(remat_job_config){.struct_bytes = sizeof(remat_job_config), .backend = argc > 1 ? argv[1] : NULL}, &job));
    const int rank = remat_job_rank(job), size = remat_job_size(job);
    if (size > MOST_RANKS || BATCH % size) return fprintf(stderr, "use 1, 2, 4, 8 or 16 ranks\n"), 1;
    const int64_t rows = BATCH / size;

    remat_sampler *order;
    check(remat_sampler_create(&(remat_sampler_config){.struct_bytes = sizeof(remat_sampler_config),
                                                       .n = POINTS,
                                                       .replicas = size,
                                                       .rank = rank,
                                                       .seed = 1,
                                                       .shuffle = true},
                               &order));
    remat_session *s = create_session(rows, remat_job_ranks(job));
    check(remat_job_begin(job, s)); /* checks that all ranks train the same; then all start with rank 0's parameters */

    remat_step_result result;
    for (int epoch = 0; epoch < EPOCHS; epoch++) {
        remat_sampler_set_epoch(order, epoch);
        for (int64_t k = 0; k < POINTS / BATCH; k++) {
            write_batch(s, order, k, rows);
            check(remat_step(s, 0.3, &result)); /* the loss is over the rows of all ranks */
        }
    }
    printf("rank %d of %d: loss %.3f, parameters %016lx\n", rank, size, result.loss, hash_parameters(s));

    remat_session_free(s); /* before the job, which it uses */
    remat_sampler_free(order);
    remat_leave(job);
    return 0;
}

/* Expected output, except for the hash, which depends on the machine:
[0] rank 0 of 2: loss 0.000, parameters 0000000000000000
[1] rank 1 of 2: loss 0.000, parameters 0000000000000000
*/
