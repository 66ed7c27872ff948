/* ddp.c: the cost of data-parallel training. The same network, with one thread per rank, in five ways: one rank alone,
 * all ranks side by side without communication, data parallel, data parallel that also reduces a set of partial sums
 * ahead of time, and the reductions alone. bench/ddp.sh starts one process per rank. Every round runs every way, so
 * that other load on the machine affects all alike.
 *
 *     bench_ddp FILE ENGINE [rounds, default 11] [KiB per bucket, default 1024]       FILE: through which the ranks
 *     meet
 *
 * Results and their discussion: docs/notes/ranks.md. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/abi.h"
#include "dist/ddp/ddp.h"

enum { MOST_ROUNDS = 101 };

static int rank, size;
static rm_group *group;
static rm_ddp *ddp;
static double sink;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void must(remat_status status) {
    if (!status) return;
    fprintf(stderr, "rank %d: %s\n", rank, remat_last_error());
    exit(1);
}
static void meet(void) { must(rm_group_run(group, &(rm_collective){.kind = RM_BARRIER, .tag = 0xFFFF})); }

/* ---- Networks ---------------------------------------------------------------------------------------------------- */

static remat_value weight(remat_graph *g, const char *layer, int number, const char *part, int64_t a, int64_t b) {
    char name[64];
    snprintf(name, sizeof name, "%s%d.%s", layer, number, part);
    return remat_param(g, name, b ? 2 : 1, (int64_t[]){a, b}, remat_init_uniform(0.05));
}

static remat_value lstm(remat_graph *g, int64_t T) {
    enum { B = 8, H = 256, LAYERS = 3 };
    remat_value x = remat_input(g, "x", REMAT_F32, REMAT_SEQUENCE, 3, (int64_t[]){T, B, H});
    for (int l = 0; l < LAYERS; l++)
        x = remat_lstm(g, x, weight(g, "lstm", l, "weight_ih", 4 * H, H), weight(g, "lstm", l, "weight_hh", 4 * H, H),
                       weight(g, "lstm", l, "bias_ih", 4 * H, 0), weight(g, "lstm", l, "bias_hh", 4 * H, 0));
    x = remat_linear(g, x, weight(g, "out", 0, "weight", H, H), weight(g, "out", 0, "bias", H, 0));
    return remat_mse(g, x, remat_input(g, "target", REMAT_F32, REMAT_SEQUENCE, 3, (int64_t[]){T, B, H}));
}

static remat_value short_lstm(remat_graph *g) { return lstm(g, 128); }
static remat_value long_lstm(remat_graph *g) { return lstm(g, 512); }

static remat_value mlp(remat_graph *g) {
    enum { B = 64, H = 1024, LAYERS = 6 };
    remat_value x = remat_input(g, "x", REMAT_F32, REMAT_STATIC, 2, (int64_t[]){B, H});
    for (int l = 0; l < LAYERS; l++)
        x = remat_gelu(g,
                       remat_linear(g, x, weight(g, "layer", l, "weight", H, H), weight(g, "layer", l, "bias", H, 0)));
    return remat_mse(g, x, remat_input(g, "target", REMAT_F32, REMAT_STATIC, 2, (int64_t[]){B, H}));
}

typedef struct {
    const char *name;
    remat_value (*build)(remat_graph *);
} network;
static const network networks[] = {{"LSTM: 3 layers of 256, 128 timesteps, batch 8", short_lstm},
                                   {"LSTM: the same over 512 timesteps", long_lstm},
                                   {"MLP: 6 layers of 1024, batch 64", mlp}};
enum { NETWORKS = sizeof networks / sizeof *networks };

static remat_session *open_session(const network *net, const remat_ranks *ranks) {
    remat_graph *g;
    remat_session *s;
    remat_config config = REMAT_CONFIG_INIT;
    config.threads = 1;
    config.optimizer = "sgd";
    config.ranks = ranks;
    must(remat_graph_create(&g));
    must(remat_session_create(g, net->build(g), &config, &s));
    remat_graph_free(g);
    for (int64_t i = 0; i < 2; i++) {
        remat_array info;
        must(remat_array_info(s, REMAT_INPUT, i, &info));
        float *data = malloc(info.bytes);
        for (uint64_t k = 0; data && k < info.bytes / 4; k++)
            data[k] = (float)((k * 7919 + (uint64_t)rank) % 1000) / 1000;
        must(remat_write(s, REMAT_INPUT, i, data, info.bytes));
        free(data);
    }
    return s;
}

/* ---- Ways -------------------------------------------------------------------------------------------------------- */

static remat_session *alone, *together;
static float *partial; /* as large as all gradients */
static int64_t partial_count;

static void step(remat_session *s) {
    remat_step_result r;
    must(remat_step(s, 1e-6, &r));
    sink += r.loss;
}
static void by_one(void) {
    if (rank == 0) step(alone);
}
static void side_by_side(void) { step(alone); }
static void by_ddp(void) { step(together); }

/* The best case for partial sums: they are ready when the step starts, and are transferred while it computes. */
static void by_ddp_ahead(void) {
    rm_ticket ticket;
    rm_collective ahead = {.kind = RM_ALL_REDUCE, .reduction = RM_MEAN, .tag = 0xFFFE, .count = partial_count};
    ahead.in = ahead.out = partial;
    must(rm_group_issue(group, &ahead, &ticket));
    step(together);
    must(rm_group_wait(group, ticket));
}
static void reductions_alone(void) {
    const remat_ranks *ranks = rm_ddp_ranks(ddp);
    for (int64_t b = 0; b < remat_bucket_count(together); b++) {
        remat_bucket bucket = rm_bucket_at(together, b);
        must(ranks->reduce(ranks->context, &bucket));
    }
    for (int64_t b = 0; b < remat_bucket_count(together); b++) {
        remat_bucket bucket = rm_bucket_at(together, b);
        must(ranks->wait(ranks->context, &bucket));
    }
}

typedef struct {
    const char *name;
    void (*run)(void);
    bool communicates;
} way;
static const way ways[] = {{"one rank", by_one, false},
                           {"all ranks side by side, without communication", side_by_side, false},
                           {"data parallel", by_ddp, true},
                           {"... and partial sums ahead of time", by_ddp_ahead, true},
                           {"the reductions alone", reductions_alone, true}};
enum { WAYS = sizeof ways / sizeof *ways };

static double times[WAYS][MOST_ROUNDS], waited[WAYS][MOST_ROUNDS], busy[WAYS][MOST_ROUNDS];

static void one_round(int round) {
    for (int w = 0; w < WAYS; w++) {
        meet();
        double start = now();
        ways[w].run();
        times[w][round] = now() - start;
        meet(); /* rank 0 measures the time of a round; other ranks may be later */
        rm_ddp_cost cost = rm_ddp_last_cost(ddp);
        waited[w][round] = ways[w].communicates ? 1e-9 * (double)cost.waited_ns : 0;
        busy[w][round] = ways[w].communicates ? 1e-9 * (double)cost.busy_ns : 0;
    }
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static void print_ms(double *of, int rounds) {
    qsort(of, (size_t)rounds, sizeof *of, by_value);
    printf(" %.2f, %.2f |", 1e3 * of[0], 1e3 * of[rounds / 2]);
}

static void print_table(const network *net, int rounds) {
    rm_ddp_cost cost = rm_ddp_last_cost(ddp);
    printf("\n%s, %ld tiles; %d ranks by %s, %d buckets, %.2f MiB of gradients; ms, the best of %d and the median\n\n",
           net->name, (long)rm_plan_summary_of(together).n_tiles, size, rm_group_engine(group), cost.buckets,
           (double)cost.bytes / (1 << 20), rounds);
    printf("| way | a step | of it waiting for gradients | the group's thread busy |\n|---|--:|--:|--:|\n");
    for (int w = 0; w < WAYS; w++) {
        printf("| %s |", ways[w].name);
        print_ms(times[w], rounds);
        print_ms(waited[w], rounds);
        print_ms(busy[w], rounds);
        printf("\n");
    }
}

static void measure(const network *net, int rounds) {
    alone = open_session(net, NULL);
    together = open_session(net, rm_ddp_ranks(ddp));
    must(rm_ddp_broadcast(ddp, together));
    partial_count = 0;
    for (int64_t b = 0; b < remat_bucket_count(together); b++) partial_count += rm_bucket_at(together, b).count;
    partial = rm_group_alloc(group, (uint64_t)partial_count * sizeof *partial);
    if (!partial) must(REMAT_MEMORY);
    one_round(0); /* warms up; overwritten */
    for (int round = 0; round < rounds; round++) one_round(round);
    if (rank == 0) print_table(net, rounds);
    rm_group_free(group, partial);
    remat_session_free(together);
    remat_session_free(alone);
}

static int number(const char *name, const char *other) {
    const char *text = getenv(name);
    if (!text) text = getenv(other);
    return text ? atoi(text) : 0;
}

int main(int argc, char **argv) {
    int rounds = argc > 3 ? atoi(argv[3]) : 11;
    uint64_t bucket = (argc > 4 ? strtoull(argv[4], NULL, 10) : 1024) << 10;
    rank = number("RANK", "OMPI_COMM_WORLD_RANK");
    size = number("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE");
    if (argc < 3 || size < 1 || rounds < 1 || rounds > MOST_ROUNDS) {
        fprintf(stderr, "usage: bench/ddp.sh starts it: bench_ddp FILE ENGINE [1 to %d rounds] [KiB a bucket]\n",
                MOST_ROUNDS);
        return 2;
    }
    rm_kv *store;
    must(rm_kv_open(&(rm_kv_config){.path = argv[1], .rank = rank, .size = size}, &store));
    rm_group_config config = {.engine = argv[2], .rank = rank, .size = size, .store = store};
    must(rm_group_open(&config, &group));
    rm_ddp_config how = {.group = group, .rows = 1, .first_bucket_bytes = bucket, .bucket_bytes = bucket};
    must(rm_ddp_open(&how, &ddp));
    for (int n = 0; n < NETWORKS; n++) measure(&networks[n], rounds);
    rm_ddp_close(ddp);
    rm_group_close(group);
    rm_kv_close(store);
    return sink == 0;
}
