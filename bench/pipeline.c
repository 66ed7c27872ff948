/* pipeline.c: LSTM layers on one sequence (batch 1) as a pipeline of two ranks, beside one rank with one and with two
 * threads. Every round starts each kind once, in turn, so that a noisy machine disturbs all alike; a kind's time is the
 * median of its rounds. The ratio is to one thread.
 *
 *     bench_pipeline [LAYERS [HIDDEN [TIMESTEPS [ROUNDS [STEPS]]]]]     2 256 20000 3 1
 *     BUSY=1 bench_pipeline ...                                        a process that computes runs beside it
 *     BUDGET=142 bench_pipeline ...                                    memory budget of each of the two ranks, in MiB */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "engine/remat.h"

enum { FEATURES = 256, MOST_ROUNDS = 64 };

typedef struct {
    const char *name;
    int ranks, threads;
} kind;
static const kind kinds[] = {{"1 rank, 1 thread", 1, 1}, {"1 rank, 2 threads", 1, 2}, {"2 ranks, pipeline", 2, 1}};
enum { KINDS = sizeof kinds / sizeof *kinds };

typedef struct {
    double seconds, loss;
    uint64_t bytes[2];
} result;

static int layers = 2, hidden = 256, timesteps = 20000, rounds = 3, steps = 1;

static void must(remat_status status) {
    if (!status) return;
    fprintf(stderr, "bench_pipeline: %s\n", remat_last_error());
    exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static remat_value build(remat_graph *g) {
    const int64_t in[] = {timesteps, 1, FEATURES}, out[] = {timesteps, 1, 1}, head[] = {1, hidden};
    remat_value x = remat_input(g, "x", REMAT_F32, REMAT_SEQUENCE, 3, in);
    remat_value y = remat_input(g, "y", REMAT_F32, REMAT_SEQUENCE, 3, out);
    for (int layer = 0; layer < layers; layer++) {
        const int64_t ih[] = {4 * hidden, layer ? hidden : FEATURES}, hh[] = {4 * hidden, hidden};
        char name[2][32];
        snprintf(name[0], sizeof name[0], "weight_ih_l%d", layer);
        snprintf(name[1], sizeof name[1], "weight_hh_l%d", layer);
        remat_value w_ih = remat_param(g, name[0], 2, ih, remat_init_uniform(0.06));
        remat_value w_hh = remat_param(g, name[1], 2, hh, remat_init_uniform(0.06));
        x = remat_lstm(g, x, w_ih, w_hh, REMAT_NONE, REMAT_NONE);
    }
    return remat_mse(g, remat_linear(g, x, remat_param(g, "head", 2, head, remat_init_uniform(0.06)), REMAT_NONE), y);
}

static void write_input(remat_session *s, int64_t input, int64_t count) {
    float *data = malloc((size_t)count * sizeof *data);
    for (int64_t i = 0; i < count; i++) data[i] = (float)((i * 2654435761u >> 7) % 1000) / 1000 - 0.5f;
    must(remat_write(s, REMAT_INPUT, input, data, (uint64_t)count * sizeof *data));
    free(data);
}

static void run_rank(const kind *k, int rank, const char *place, result *out) {
    remat_job *job = NULL;
    remat_graph *g;
    remat_session *s;
    remat_step_result r;
    remat_plan_summary plan;
    remat_config config = REMAT_CONFIG_INIT;
    remat_job_config job_config = {.struct_bytes = sizeof job_config,
                                   .backend = "local",
                                   .init_method = place,
                                   .world_size = k->ranks,
                                   .rank = rank,
                                   .pipeline = k->ranks};
    if (k->ranks > 1) must(remat_join(&job_config, &job));
    must(remat_graph_create(&g));
    remat_value loss = build(g);
    config.optimizer = "sgd";
    config.threads = k->threads;
    if (job) config.pipeline = remat_job_pipeline(job);
    if (job && getenv("BUDGET")) {
        config.memory_budget = strtoull(getenv("BUDGET"), NULL, 10) << 20;
        config.strategy = "optimal";
    }
    must(remat_session_create(g, loss, &config, &s));
    must(remat_session_plan(s, &plan));
    write_input(s, 0, (int64_t)timesteps * FEATURES);
    write_input(s, 1, timesteps);
    must(remat_step(s, 0.01, &r)); /* touches all memory */
    double start = now();
    for (int i = 0; i < steps; i++) must(remat_step(s, 0.01, &r));
    if (rank == 0) out->seconds = (now() - start) / steps;
    if (rank == 0) out->loss = r.loss;
    out->bytes[rank] = plan.planned_peak_bytes;
    remat_session_free(s);
    remat_graph_free(g);
    remat_leave(job);
}

static void run(const kind *k, result *out) {
    char place[64];
    snprintf(place, sizeof place, "file:///tmp/remat-bench-pipeline-%d", (int)getpid());
    unlink(place + strlen("file://"));
    fflush(NULL);
    pid_t pid[2];
    for (int rank = 0; rank < k->ranks; rank++)
        if (!(pid[rank] = fork())) run_rank(k, rank, place, out), _exit(0);
    for (int rank = 0, status; rank < k->ranks; rank++)
        if (waitpid(pid[rank], &status, 0) < 0 || status) exit(1);
}

static int by_seconds(const void *a, const void *b) {
    const result *x = a, *y = b;
    return (x->seconds > y->seconds) - (x->seconds < y->seconds);
}

static pid_t begin_busy(void) {
    pid_t pid = getenv("BUSY") ? fork() : -1;
    for (volatile unsigned n = 0; pid == 0;) n++;
    return pid;
}

int main(int argc, char **argv) {
    int *const argument[] = {&layers, &hidden, &timesteps, &rounds, &steps};
    for (int i = 1; i < argc && i <= 5; i++) *argument[i - 1] = atoi(argv[i]);
    if (rounds < 1 || rounds > MOST_ROUNDS) return fprintf(stderr, "use 1 to %d rounds\n", MOST_ROUNDS), 2;
    result *all =
        mmap(NULL, KINDS * MOST_ROUNDS * sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (int round = 0; round < rounds; round++)
        for (int k = 0; k < KINDS; k++) {
            pid_t busy = begin_busy();
            run(&kinds[k], &all[k * MOST_ROUNDS + round]);
            if (busy > 0) kill(busy, SIGKILL), waitpid(busy, NULL, 0);
        }
    printf("%d LSTM layers of %d, batch 1, %d timesteps%s\n", layers, hidden, timesteps,
           getenv("BUSY") ? ", beside a busy process" : "");
    for (int k = 0; k < KINDS; k++) qsort(&all[k * MOST_ROUNDS], (size_t)rounds, sizeof *all, by_seconds);
    for (int k = 0; k < KINDS; k++) {
        const result *r = &all[k * MOST_ROUNDS + rounds / 2];
        printf("%-20s %8.3f s a step  %5.2fx  %7.1f", kinds[k].name, r->seconds, all[rounds / 2].seconds / r->seconds,
               (double)r->bytes[0] / (1 << 20));
        if (kinds[k].ranks > 1) printf(" + %.1f", (double)r->bytes[1] / (1 << 20));
        printf(" MiB  loss %.6f\n", r->loss);
    }
    return 0;
}
