/* buckets.c: when gradient buckets become final: how long before the end of the step each bucket could be sent to the
 * other ranks, for a recurrent network and for one without a time axis. There are no other ranks: this is the longest
 * time that a transfer could overlap with.
 *
 *     bench_buckets [threads [rounds, default 5]] */
#include <stdio.h>
#include <stdlib.h>

#include "engine/abi.h"
#include "engine/remat.h"
#include "memory/clock.h"
#include "tests/zeros.h"

enum { MOST = 256 };

static int rounds = 5;

typedef struct {
    int n;
    uint64_t at_ns[MOST];
    int64_t count[MOST];
    char first[MOST][32];
} handed;

static void die_unless(remat_status status) {
    if (!status) return;
    fprintf(stderr, "%s\n", remat_last_error());
    exit(1);
}

static remat_status note(void *context, const remat_bucket *bucket) {
    handed *h = context;
    if (h->n == MOST) return REMAT_OK;
    h->at_ns[h->n] = rm_now_ns();
    h->count[h->n] = bucket->count;
    snprintf(h->first[h->n++], sizeof h->first[0], "%s", bucket->first);
    return REMAT_OK;
}
static remat_status nothing(void *context, const remat_bucket *bucket) {
    (void)context, (void)bucket;
    return REMAT_OK;
}
static remat_status no_sum(void *context, double *values, int64_t count) {
    (void)context, (void)values, (void)count;
    return REMAT_OK;
}

/* Reports the fastest of a few rounds. */
static void measure(const char *name, remat_graph *graph, remat_value loss, int threads, int64_t tile) {
    handed now, best = {0};
    uint64_t best_ns = UINT64_MAX, end_ns = 0;
    remat_ranks ranks = {.struct_bytes = sizeof ranks,
                         .context = &now,
                         .size = 2,
                         .bucket_bytes = 1 << 20,
                         .reduce = note,
                         .wait = nothing,
                         .sum = no_sum};
    remat_config config = REMAT_CONFIG_INIT;
    config.ranks = &ranks;
    config.threads = threads;
    config.tile = tile;
    remat_session *session;
    remat_step_result result;
    die_unless(remat_session_create(graph, loss, &config, &session));
    die_unless(write_zeros(session));
    for (int i = 0; i < rounds; i++) {
        now.n = 0;
        uint64_t start = rm_now_ns();
        die_unless(remat_gradients(session, &result));
        uint64_t end = rm_now_ns();
        if (end - start < best_ns) best_ns = end - start, end_ns = end, best = now;
    }
    printf("%s: %lld stages, %.1f ms forward and backward\n", name, (long long)rm_plan_summary_of(session).n_stages,
           1e-6 * (double)best_ns);
    for (int i = 0; i < best.n; i++)
        printf("  %-16s %6.2f MiB, final %8.2f ms before the end (%4.1f %%)\n", best.first[i],
               (double)best.count[i] * 4 / (1 << 20), 1e-6 * (double)(end_ns - best.at_ns[i]),
               100 * (double)(end_ns - best.at_ns[i]) / (double)best_ns);
    remat_session_free(session);
}

static remat_value matrix(remat_graph *g, int layer, const char *name, int64_t rows, int64_t columns) {
    char text[32];
    snprintf(text, sizeof text, "%d.%s", layer, name);
    return remat_param(g, text, 2, (int64_t[]){rows, columns}, remat_init_uniform(0.03));
}

/* Two LSTM layers of 512 over 512 timesteps of 8 sequences, and a softmax over 256 bytes at each timestep. */
static remat_value lstm(remat_graph *g) {
    enum { T = 512, B = 8, V = 256, H = 512 };
    remat_value tokens = remat_input(g, "tokens", REMAT_I32, REMAT_SEQUENCE, 2, (int64_t[]){T, B});
    remat_value targets = remat_input(g, "targets", REMAT_I32, REMAT_SEQUENCE, 2, (int64_t[]){T, B});
    remat_value x = remat_embedding(g, tokens, matrix(g, 0, "embedding", V, H));
    for (int i = 1; i <= 2; i++)
        x = remat_lstm(g, x, matrix(g, i, "weight_ih", 4 * H, H), matrix(g, i, "weight_hh", 4 * H, H), REMAT_NONE,
                       REMAT_NONE);
    return remat_softmax_cross_entropy(g, remat_linear(g, x, matrix(g, 3, "head", V, H), REMAT_NONE), targets);
}

/* Eight linear layers of 1024 with relu between, 64 rows. */
static remat_value deep(remat_graph *g) {
    enum { B = 64, C = 1024 };
    remat_value x = remat_input(g, "x", REMAT_F32, REMAT_STATIC, 2, (int64_t[]){B, C});
    for (int i = 0; i < 8; i++) x = remat_relu(g, remat_linear(g, x, matrix(g, i, "weight", C, C), REMAT_NONE));
    return remat_mse(g, x, remat_input(g, "y", REMAT_F32, REMAT_STATIC, 2, (int64_t[]){B, C}));
}

int main(int argc, char **argv) {
    int threads = argc > 1 ? atoi(argv[1]) : 0;
    if (argc > 2) rounds = atoi(argv[2]);
    if (rounds < 1) return fprintf(stderr, "bench_buckets [threads [rounds, 1 or more]]\n"), 2;
    remat_graph *g;
    die_unless(remat_graph_create(&g));
    remat_value loss = lstm(g);
    measure("2 x LSTM(512), tiles of 64", g, loss, threads, 64);
    measure("2 x LSTM(512), tiles of 16", g, loss, threads, 16);
    remat_graph_free(g);
    die_unless(remat_graph_create(&g));
    loss = deep(g);
    measure("8 x Linear(1024)", g, loss, threads, 0);
    remat_graph_free(g);
    return 0;
}
