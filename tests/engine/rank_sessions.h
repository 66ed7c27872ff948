/* rank_sessions.h: sessions of the ranks of a team (team.h), and what the tests of ranks read from them. */
#ifndef RANK_SESSIONS_H
#define RANK_SESSIONS_H

#include "tests/engine/team.h"

#include "engine/abi.h"
#include "engine/chain/buckets.h"
#include "tests/engine/random_net.h"
#include "tests/says.h"

#define CHECKED(call) ck_assert_msg((call) == REMAT_OK, "%s: %s", #call, remat_last_error())

/* ---- Reading sessions ----------------------------------------------------------------------------------------- */

/* All arrays of a kind, one after the other; the caller frees them. A sharded part lies at its place in the whole
 * array. */
static inline float *read_all(remat_session *s, remat_kind kind, int64_t *count, float *into) {
    int64_t total = 0;
    remat_array info;
    for (int64_t i = 0; i < remat_count(s, kind); i++) {
        CHECKED(remat_array_info(s, kind, i, &info));
        int64_t n = 1;
        for (int d = 0; d < info.rank; d++) n *= info.dim[d];
        into = kind == REMAT_OPTIMIZER && into ? into : realloc(into, (size_t)(total + n) * sizeof *into);
        ck_assert_uint_eq(info.bytes, (uint64_t)info.count * sizeof *into);
        CHECKED(remat_read(s, kind, i, into + total + info.first, info.bytes));
        total += n;
    }
    if (count) *count = total;
    return into;
}

static inline void expect_same(const float *a, const float *b, int64_t n, const char *what, uint64_t seed) {
    for (int64_t i = 0; i < n; i++)
        ck_assert_msg(!memcmp(&a[i], &b[i], sizeof *a), "%s differ, seed %lu, element %ld: %.9g and %.9g", what,
                      (unsigned long)seed, (long)i, a[i], b[i]);
}

/* The bytes after a bucket's arrays are zero, in gradients and parameters. */
static inline void expect_zero_padding(remat_session *s) {
    const rm_buckets *buckets = &s->chain.at.buckets;
    for (int64_t b = 0; b < remat_bucket_count(s); b++) {
        remat_bucket bucket = rm_bucket_at(s, b);
        uint8_t *used = calloc((size_t)bucket.count, 1);
        for (int32_t i = 0; i < buckets->n_params; i++)
            if (buckets->param[i].bucket == b)
                memset(used + buckets->param[i].at - buckets->item[b].at, 1, (size_t)buckets->param[i].count);
        for (int64_t i = 0; i < bucket.count; i++) {
            ck_assert(used[i] || bucket.parameters[i] == 0);
            bool given =
                i / rm_part_count(buckets, &buckets->item[b]) == buckets->rank; /* everything, if not sharded */
            ck_assert(used[i] || !given || bucket.gradients[i] == 0);
        }
        free(used);
    }
}

/* ---- Random networks, plans, ranks ---------------------------------------------------------------------------- */

/* A table without collectives: for what a rank with this number computes alone. */
static inline remat_status no_bucket(void *context, const remat_bucket *bucket) {
    return (void)context, (void)bucket, REMAT_OK;
}

static inline remat_status no_sum(void *context, double *values, int64_t n) {
    return (void)context, (void)values, (void)n, REMAT_OK;
}

static inline remat_ranks alone_as(int rank, int size) {
    return (remat_ranks){.struct_bytes = sizeof(remat_ranks),
                         .rank = rank,
                         .size = size,
                         .reduce = no_bucket,
                         .wait = no_bucket,
                         .sum = no_sum};
}

static pthread_mutex_t drawing = PTHREAD_MUTEX_INITIALIZER;

/* ---- Bits depend on shards, not on ranks ---------------------------------------------------------------------- */

/* The results of a run, the same on all ranks. */
typedef struct {
    uint64_t seed;
    remat_config config;
    int steps;
    bool by_step, timed; /* remat_step instead of remat_gradients and remat_update */
    net net;
    remat_value loss;
    float *parameters, *optimizer;
    int64_t count, state_count;
    double last_loss, norm;
    uint64_t optimizer_bytes;
} outcome;

static inline void prepare_outcome(outcome *o) {
    rng_state = o->seed * 31 + 7;
    o->loss = random_net_with(&o->net, o->timed, true);
    ask_for_outputs(&o->config, &o->net);
    o->config.threads = 1;
    o->config.seed = o->seed;
    o->config.tile = o->timed ? 2 : 0;
}

static inline void make_outcome(teammate *mate) {
    outcome *o = mate->data;
    remat_session *s;
    remat_step_result r = {0};
    o->config.ranks = &mate->ranks;
    CHECKED(remat_session_create(o->net.graph, o->loss, &o->config, &s));
    for (int step = 0; step < o->steps; step++) {
        int64_t n = s->micro_steps;
        for (int64_t t = 0; t < n; t++) {
            pthread_mutex_lock(&drawing);
            fill_inputs(
                s, o->seed + (uint64_t)step * 64 +
                       (uint64_t)(mate->rank + mate->team->size * remat_micro_shard(t, n, s->deterministic_world)));
            pthread_mutex_unlock(&drawing);
            if (!o->by_step) CHECKED(remat_gradients(s, &r));
        }
        if (o->by_step)
            CHECKED(remat_step(s, 0.1, &r));
        else
            CHECKED(remat_update(s, 0.1, &r));
    }
    o->last_loss = r.loss;
    o->norm = r.grad_norm;
    o->parameters = read_all(s, REMAT_PARAM, &o->count, NULL);
    int64_t states = s->optimizer->states_used(&s->update);
    if (!o->optimizer) o->optimizer = malloc((size_t)(states * o->count + 1) * sizeof *o->optimizer);
    read_all(s, REMAT_OPTIMIZER, &o->state_count, o->optimizer);
    o->optimizer_bytes = rm_plan_summary_of(s).optimizer_bytes;
    expect_zero_padding(s);
    remat_session_free(s);
}

/* The same job on `size` ranks. If *shared is not NULL, all ranks copy their part of the optimizer's state there. */
static inline outcome run_job(const outcome *like, int size, const remat_ranks *ranks, float *shared) {
    static outcome o[TEAM_MOST];
    void *data[TEAM_MOST] = {0};
    for (int r = 0; r < size; r++) {
        o[r] = *like;
        prepare_outcome(&o[r]);
        o[r].optimizer = shared;
        data[r] = &o[r];
    }
    team_run(&(team){.size = size, .deterministic_world = like->config.deterministic_world}, ranks, make_outcome, data);
    for (int r = 0; r < size; r++) {
        expect_same(o[0].parameters, o[r].parameters, o[0].count, "parameters of ranks", like->seed);
        ck_assert(o[r].last_loss == o[0].last_loss);
        ck_assert(o[r].norm == o[0].norm);
        remat_graph_free(o[r].net.graph);
        if (r) free(o[r].parameters);
        if (r && !shared) free(o[r].optimizer);
    }
    return o[0];
}

static inline void free_outcome(outcome *o) {
    free(o->parameters);
    free(o->optimizer);
}

static inline outcome job(uint64_t seed) {
    outcome o = {.seed = seed, .config = REMAT_CONFIG_INIT, .steps = 3, .timed = seed % 2};
    o.config.optimizer = seed % 3 ? "adam" : "sgd";
    o.config.momentum = 0.9;
    o.config.weight_decay = 0.01;
    return o;
}

/* ---- Optimizers that measure whole arrays ----------------------------------------------------------------------- */

static inline void expect_same_outcome(const outcome *a, const outcome *b, const char *what) {
    expect_same(a->parameters, b->parameters, a->count, what, a->seed);
    ck_assert(a->state_count == b->state_count);
    expect_same(a->optimizer, b->optimizer, a->state_count, what, a->seed);
    ck_assert_msg(a->norm == b->norm && a->last_loss == b->last_loss, "%s: norms %.17g, %.17g, losses %.17g, %.17g",
                  what, a->norm, b->norm, a->last_loss, b->last_loss);
}

static inline outcome measured_job(int i, remat_ranks *ranks) {
    outcome like = job((uint64_t)i + 900);
    like.config.optimizer = i % 2 ? "lamb" : "lars";
    *ranks = (remat_ranks){.first_bucket_bytes = 64, .bucket_bytes = 300};
    return like;
}

/* ---- Buckets, dropout, weights of ranks, failures ------------------------------------------------------------- */

/* y = x w, and an unused parameter. */
static inline remat_value small_net(remat_graph *g, int64_t batch) {
    remat_value x = remat_input(g, "x", REMAT_F32, REMAT_STATIC, 2, (int64_t[]){batch, 3});
    remat_param(g, "unused", 1, (int64_t[]){5}, remat_init_constant(1));
    remat_value w = remat_param(g, "w", 2, (int64_t[]){2, 3}, remat_init_uniform(0.5));
    remat_value y = remat_dropout(g, remat_linear(g, x, w, REMAT_NONE), 0.5);
    return remat_mse(g, y, remat_input(g, "target", REMAT_F32, REMAT_STATIC, 2, (int64_t[]){batch, 2}));
}

static inline remat_session *open_small(remat_config *config, int64_t batch) {
    remat_graph *g;
    remat_session *s;
    CHECKED(remat_graph_create(&g));
    config->threads = 1;
    CHECKED(remat_session_create(g, small_net(g, batch), config, &s));
    remat_graph_free(g);
    fill_inputs(s, 5);
    return s;
}

static inline void expect_refused(remat_status status, const char *words) {
    ck_assert_int_eq(status, REMAT_INVALID);
    ck_says_all(remat_last_error(), words);
}

#endif
