/* test_ranks.c: a session's step among ranks (remat_ranks), which are threads of this process (team.h). For every
 * network and plan, each bucket is reduced once, with the gradients of a rank alone without recomputation, and all
 * ranks end with the same bits. */
#include "tests/cases.h"
#include "tests/engine/team.h"

#include "engine/abi.h"
#include "engine/chain/buckets.h"
#include "engine/session/session.h"
#include "tests/engine/poison.h"
#include "tests/engine/random_net.h"
#include "tests/says.h"
#include "tests/zeros.h"

#define CHECKED(call) ck_assert_msg((call) == REMAT_OK, "%s: %s", #call, remat_last_error())

/* ---- Reading sessions ----------------------------------------------------------------------------------------- */

/* All arrays of a kind, one after the other; the caller frees them. A sharded part lies at its place in the whole
 * array. */
static float *read_all(remat_session *s, remat_kind kind, int64_t *count, float *into) {
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

static void expect_same(const float *a, const float *b, int64_t n, const char *what, uint64_t seed) {
    for (int64_t i = 0; i < n; i++)
        ck_assert_msg(!memcmp(&a[i], &b[i], sizeof *a), "%s differ, seed %lu, element %ld: %.9g and %.9g", what,
                      (unsigned long)seed, (long)i, a[i], b[i]);
}

/* The bytes after a bucket's arrays are zero, in gradients and parameters. */
static void expect_zero_padding(remat_session *s) {
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

/* One rank's part of a random job. */
typedef struct {
    uint64_t seed;
    bool timed;
    net net;
    remat_value loss;
    remat_config config;
    char *steps;
    float *alone, *together; /* gradients: of this rank alone without recomputation; of all ranks */
    int64_t count;
    double loss_alone, loss_together;
} member;

/* A table without collectives: for what a rank with this number computes alone. */
static remat_status no_bucket(void *context, const remat_bucket *bucket) {
    return (void)context, (void)bucket, REMAT_OK;
}
static remat_status no_sum(void *context, double *values, int64_t n) {
    return (void)context, (void)values, (void)n, REMAT_OK;
}

static remat_ranks alone_as(int rank, int size) {
    return (remat_ranks){.struct_bytes = sizeof(remat_ranks),
                         .rank = rank,
                         .size = size,
                         .reduce = no_bucket,
                         .wait = no_bucket,
                         .sum = no_sum};
}

static remat_step_result make_gradients(remat_session *s, uint64_t seed, int rank, int size) {
    remat_step_result r;
    int64_t steps = s->micro_steps;
    for (int64_t t = 0; t < steps; t++) {
        fill_inputs(s, seed * 1000 + (uint64_t)(rank + size * remat_micro_shard(t, steps, s->deterministic_world)));
        CHECKED(remat_gradients(s, &r));
    }
    return r;
}

/* Draws from rng_state, which threads share; so it runs before the threads start. */
static void prepare(member *m, uint64_t seed, bool timed, int rank, int size) {
    *m = (member){.seed = seed, .timed = timed, .config = REMAT_CONFIG_INIT};
    rng_state = seed * 7919 + 3;
    m->loss = random_net_with(&m->net, timed, true);
    ask_for_outputs(&m->config, &m->net);
    m->config.threads = 1;
    m->config.tile = timed ? 1 + draw(4) : draw(3);
    m->config.seed = seed;
    m->config.micro_steps = (int)draw(3);
    remat_ranks alone = alone_as(rank, size);
    m->config.ranks = &alone;
    remat_session *s;
    CHECKED(remat_session_create(m->net.graph, m->loss, &m->config, &s));
    rng_state += (uint64_t)rank * 104729; /* a different plan on each rank */
    m->steps = random_plan(s);
    remat_step_result r = make_gradients(s, seed, rank, size);
    double own = 0;
    for (int t = 0; t < s->micro_steps; t++) own += s->shard_loss[rank + size * t];
    m->loss_alone = own;
    m->alone = read_all(s, REMAT_GRADIENT, &m->count, NULL);
    ck_assert(isfinite(r.loss));
    remat_session_free(s);
}

static pthread_mutex_t drawing = PTHREAD_MUTEX_INITIALIZER;

static void train_together(teammate *mate) {
    member *m = mate->data;
    remat_session *s;
    m->config.ranks = &mate->ranks;
    m->config.plan_steps = m->steps;
    CHECKED(remat_session_create(m->net.graph, m->loss, &m->config, &s));
    poison(s);
    remat_step_result r = {0};
    for (int t = 0; t < s->micro_steps; t++) {
        ck_assert_int_eq(mate->n_reduced, 0);
        pthread_mutex_lock(&drawing);
        fill_inputs(s, m->seed * 1000 + (uint64_t)(mate->rank + mate->team->size * t));
        pthread_mutex_unlock(&drawing);
        CHECKED(remat_gradients(s, &r));
    }
    ck_assert_int_eq(mate->n_reduced, remat_bucket_count(s));
    ck_assert_int_eq(mate->n_waited, remat_bucket_count(s));
    m->together = read_all(s, REMAT_GRADIENT, NULL, NULL);
    m->loss_together = r.loss;
    expect_zero_padding(s);
    remat_session_free(s);
}

static float mean_of(const member *m, int size, int64_t i) {
    volatile float sum = 0, share = 1.0f / (float)size;
    for (int r = 0; r < size; r++) {
        volatile float term = m[r].alone[i] * share;
        sum = r ? sum + term : term;
    }
    return sum;
}

static void try_one(uint64_t seed, bool timed) {
    static member m[TEAM_MOST];
    void *data[TEAM_MOST] = {0};
    int size = 1 + (int)(seed % 4);
    for (int r = 0; r < size; r++) {
        prepare(&m[r], seed, timed, r, size);
        data[r] = &m[r];
    }
    remat_ranks like = {.first_bucket_bytes = 1 + seed % 3 * 64, .bucket_bytes = 1 + seed % 5 * 100};
    team_run(&(team){.size = size, .backwards = seed % 7 < 2}, &like, train_together, data);
    double loss = 0;
    int micro_steps = m[0].config.micro_steps ? m[0].config.micro_steps : 1;
    for (int r = 0; r < size; r++) loss += m[r].loss_alone / (size * micro_steps);
    for (int r = 0; r < size; r++) {
        ck_assert_int_eq(m[r].count, m[0].count);
        for (int64_t i = 0; i < m[r].count; i++) {
            float expected = mean_of(m, size, i);
            ck_assert_msg(!memcmp(&expected, &m[r].together[i], sizeof expected),
                          "seed %lu, rank %d of %d, gradient %ld: %.9g, and %.9g without recomputing",
                          (unsigned long)seed, r, size, (long)i, m[r].together[i], expected);
        }
        ck_assert_msg(fabs(m[r].loss_together - loss) <= 1e-6 * (1 + fabs(loss)), "loss %.9g, expected %.9g",
                      m[r].loss_together, loss);
        ck_assert(m[r].loss_together == m[0].loss_together);
    }
    for (int r = 0; r < size; r++) {
        free(m[r].alone), free(m[r].together), free(m[r].steps);
        remat_graph_free(m[r].net.graph);
    }
}

START_TEST(random_networks_along_time_are_reduced_exactly) { try_one((uint64_t)_i, true); }
END_TEST
START_TEST(random_networks_by_depth_are_reduced_exactly) { try_one((uint64_t)_i, false); }
END_TEST

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

static void prepare_outcome(outcome *o) {
    rng_state = o->seed * 31 + 7;
    o->loss = random_net_with(&o->net, o->timed, true);
    ask_for_outputs(&o->config, &o->net);
    o->config.threads = 1;
    o->config.seed = o->seed;
    o->config.tile = o->timed ? 2 : 0;
}

static void make_outcome(teammate *mate) {
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
static outcome run_job(const outcome *like, int size, const remat_ranks *ranks, float *shared) {
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

static void free_outcome(outcome *o) {
    free(o->parameters);
    free(o->optimizer);
}

static outcome job(uint64_t seed) {
    outcome o = {.seed = seed, .config = REMAT_CONFIG_INIT, .steps = 3, .timed = seed % 2};
    o.config.optimizer = seed % 3 ? "adam" : "sgd";
    o.config.momentum = 0.9;
    o.config.weight_decay = 0.01;
    return o;
}

START_TEST(bits_depend_on_shards_alone) {
    outcome like = job((uint64_t)_i + 100), first = {0};
    like.config.deterministic_world = true;
    for (int size = 1; size <= 8; size *= 2) {
        like.config.micro_steps = 8 / size;
        remat_ranks ranks = {.first_bucket_bytes = 64, .bucket_bytes = 200};
        outcome o = run_job(&like, size, &ranks, NULL);
        if (size == 1) {
            first = o;
            continue;
        }
        expect_same(first.parameters, o.parameters, o.count, "parameters after 1 and more ranks", like.seed);
        ck_assert_msg(first.last_loss == o.last_loss, "the loss is %.17g on 1 rank, %.17g on %d", first.last_loss,
                      o.last_loss, size);
        free_outcome(&o);
    }
    free_outcome(&first);
}
END_TEST

/* Gradients so small that 1/8 of them is not representable: scaling by 1/8 is not always exact. */
static void make_tiny_gradient(teammate *mate) {
    int size = mate->team->size;
    remat_config config = REMAT_CONFIG_INIT;
    remat_step_result r;
    config.ranks = &mate->ranks;
    config.threads = 1;
    config.deterministic_world = true;
    config.micro_steps = 8 / size;
    remat_graph *g;
    remat_session *s;
    CHECKED(remat_graph_create(&g));
    remat_value x = remat_input(g, "x", REMAT_F32, REMAT_STATIC, 2, (int64_t[]){3, 5});
    remat_value y = remat_input(g, "y", REMAT_F32, REMAT_STATIC, 2, (int64_t[]){3, 4});
    remat_value w = remat_param(g, "w", 2, (int64_t[]){4, 5}, remat_init_uniform(1));
    remat_value tiny = remat_scale(g, remat_scale(g, remat_linear(g, x, w, REMAT_NONE), 1e-20), 1e-20);
    CHECKED(remat_session_create(g, remat_mse(g, tiny, y), &config, &s));
    for (int64_t t = 0; t < s->micro_steps; t++) {
        pthread_mutex_lock(&drawing);
        fill_inputs(s, 1 + (uint64_t)(mate->rank + size * remat_micro_shard(t, s->micro_steps, true)));
        pthread_mutex_unlock(&drawing);
        CHECKED(remat_gradients(s, &r));
    }
    if (mate->rank == 0) CHECKED(remat_read(s, REMAT_GRADIENT, 0, mate->data, 80));
    remat_session_free(s);
    remat_graph_free(g);
}

START_TEST(subnormal_gradients_depend_on_shards_alone) {
    float gradient[4][20];
    for (int i = 0; i < 4; i++) {
        void *data[TEAM_MOST] = {gradient[i]};
        team_run(&(team){.size = 1 << i, .deterministic_world = true}, &(remat_ranks){0}, make_tiny_gradient, data);
    }
    for (int k = 0; k < 20; k++) ck_assert(fabsf(gradient[0][k]) < 1e-38f);
    ck_assert(gradient[0][0] != 0);
    for (int i = 1; i < 4; i++) expect_same(gradient[0], gradient[i], 20, "subnormal gradients on 1 and more ranks", 0);
}
END_TEST

/* ---- ZeRO-1 --------------------------------------------------------------------------------------------------- */

START_TEST(sharded_optimizers_have_the_same_bits) {
    outcome like = job((uint64_t)_i + 300);
    int size = 2 + _i % 3;
    remat_ranks ranks = {.first_bucket_bytes = 64, .bucket_bytes = 300};
    outcome whole = run_job(&like, size, &ranks, NULL);
    ranks.shard_optimizer = true;
    ranks.fused_update = like.by_step = _i % 2;
    float *state = malloc((size_t)(2 * whole.count + 1) * sizeof *state);
    for (int64_t i = 0; i < 2 * whole.count; i++) state[i] = NAN; /* each element belongs to some rank */
    outcome parts = run_job(&like, size, &ranks, state);
    expect_same(whole.parameters, parts.parameters, whole.count, "parameters, whole and sharded", like.seed);
    expect_same(whole.optimizer, parts.optimizer, whole.state_count, "states, whole and sharded", like.seed);
    ck_assert_msg(fabs(whole.norm - parts.norm) <= 1e-12 * whole.norm, "norms %.17g, %.17g", whole.norm, parts.norm);
    ck_assert_uint_le(parts.optimizer_bytes * (uint64_t)size, whole.optimizer_bytes + 64u * (uint64_t)(size * 2) * 200);
    free_outcome(&whole);
    free_outcome(&parts);
}
END_TEST

START_TEST(clipping_uses_the_norm_of_all_parts) {
    outcome like = job((uint64_t)_i + 500);
    static const char *const optimizers[] = {"adam", "lars", "lamb"};
    like.config.optimizer = optimizers[_i % 3];
    like.config.clip_grad_norm = _i % 2 ? 0.01 : 0;
    like.config.momentum_correction = _i % 2;
    remat_ranks ranks = {.first_bucket_bytes = 64, .bucket_bytes = 300};
    outcome whole = run_job(&like, 3, &ranks, NULL);
    ranks.shard_optimizer = true;
    outcome parts = run_job(&like, 3, &ranks, malloc((size_t)(2 * whole.count + 1) * sizeof(float)));
    for (int64_t i = 0; i < whole.count; i++) /* three updates of at most 0.1, each to a few roundings */
        ck_assert_msg(fabs(whole.parameters[i] - parts.parameters[i]) <= 1e-5,
                      "%s, parameter %ld: %.9g whole, %.9g sharded", like.config.optimizer, (long)i,
                      whole.parameters[i], parts.parameters[i]);
    free_outcome(&whole);
    free_outcome(&parts);
}
END_TEST

START_TEST(updates_per_bucket_have_the_same_bits) {
    outcome like = job((uint64_t)_i + 700);
    if (_i % 4 == 3) like.config.optimizer = "lamb";
    like.by_step = true;
    remat_ranks ranks = {.first_bucket_bytes = 64, .bucket_bytes = 300};
    outcome after = run_job(&like, 2, &ranks, NULL);
    ranks.fused_update = true;
    like.by_step = _i < 8; /* remat_gradients and remat_update are not fused */
    outcome fused = run_job(&like, 2, &ranks, NULL);
    expect_same(after.parameters, fused.parameters, after.count, "parameters, fused and not", like.seed);
    ck_assert(after.norm == fused.norm && after.last_loss == fused.last_loss);
    free_outcome(&after);
    free_outcome(&fused);
}
END_TEST

/* ---- Optimizers that measure whole arrays ----------------------------------------------------------------------- */

static void expect_same_outcome(const outcome *a, const outcome *b, const char *what) {
    expect_same(a->parameters, b->parameters, a->count, what, a->seed);
    ck_assert(a->state_count == b->state_count);
    expect_same(a->optimizer, b->optimizer, a->state_count, what, a->seed);
    ck_assert_msg(a->norm == b->norm && a->last_loss == b->last_loss, "%s: norms %.17g, %.17g, losses %.17g, %.17g",
                  what, a->norm, b->norm, a->last_loss, b->last_loss);
}

static float *room_for_states(const outcome *like) { return malloc((size_t)(2 * like->count + 1) * sizeof(float)); }

static outcome measured_job(int i, remat_ranks *ranks) {
    outcome like = job((uint64_t)i + 900);
    like.config.optimizer = i % 2 ? "lamb" : "lars";
    *ranks = (remat_ranks){.first_bucket_bytes = 64, .bucket_bytes = 300};
    return like;
}

/* The norm of an array covers the parts of all ranks, also when buckets are updated as they arrive. A rank that used
 * its own parts alone would get other bits than remat_gradients and remat_update. */
START_TEST(layerwise_norms_cover_all_parts) {
    remat_ranks ranks;
    outcome like = measured_job(_i, &ranks);
    int size = _i / 2 % 2 ? 4 : 2;
    outcome whole = run_job(&like, size, &ranks, NULL);
    ranks.shard_optimizer = true;
    outcome parts = run_job(&like, size, &ranks, room_for_states(&whole));
    ranks.fused_update = like.by_step = true;
    outcome fused = run_job(&like, size, &ranks, room_for_states(&whole));
    expect_same_outcome(&parts, &fused, "sharded, by bucket and after the last");
    ck_assert_msg(fabs(whole.norm - parts.norm) <= 1e-12 * whole.norm, "norms %.17g, %.17g", whole.norm, parts.norm);
    for (int64_t i = 0; i < whole.count; i++) /* three updates of at most 0.1, each to a few roundings */
        ck_assert_msg(fabs(whole.parameters[i] - fused.parameters[i]) <= 1e-5,
                      "%s, parameter %ld: %.9g whole, %.9g sharded", like.config.optimizer, (long)i,
                      whole.parameters[i], fused.parameters[i]);
    free_outcome(&whole);
    free_outcome(&parts);
    free_outcome(&fused);
}
END_TEST

/* Compares one rank that has all shards with W ranks that have one each and update after the last bucket, or as buckets
 * arrive. */
START_TEST(layerwise_norms_do_not_depend_on_ranks) {
    remat_ranks ranks;
    outcome like = measured_job(_i, &ranks);
    int size = _i / 2 % 2 ? 4 : 2;
    like.config.deterministic_world = true;
    like.config.micro_steps = size;
    outcome one = run_job(&like, 1, &ranks, NULL);
    like.config.micro_steps = 1;
    outcome after = run_job(&like, size, &ranks, NULL);
    expect_same_outcome(&one, &after, "one rank and several");
    ranks.fused_update = like.by_step = true;
    outcome fused = run_job(&like, size, &ranks, NULL);
    expect_same_outcome(&one, &fused, "one rank, and several by bucket");
    free_outcome(&one);
    free_outcome(&after);
    free_outcome(&fused);
}
END_TEST

/* A single rank holds the whole optimizer state, so it does not wait. */
START_TEST(a_single_rank_does_not_wait) {
    remat_ranks ranks;
    outcome like = measured_job(_i, &ranks);
    outcome whole = run_job(&like, 1, &ranks, NULL);
    ranks.shard_optimizer = ranks.fused_update = like.by_step = true;
    outcome fused = run_job(&like, 1, &ranks, NULL);
    expect_same_outcome(&whole, &fused, "one rank, and one that shards");
    free_outcome(&whole);
    free_outcome(&fused);
}
END_TEST

/* ---- Buckets, dropout, weights of ranks, failures ------------------------------------------------------------- */

/* 20 x Linear(512,512) in the buckets of PyTorch's DDP, cap 4 MiB: bytes and first parameter of each bucket. */
START_TEST(buckets_match_pytorch) {
    remat_graph *g;
    CHECKED(remat_graph_create(&g));
    remat_value x = remat_input(g, "x", REMAT_F32, REMAT_STATIC, 2, (int64_t[]){2, 512});
    for (int i = 0; i < 20; i++) {
        char name[32];
        snprintf(name, sizeof name, "%d.weight", i);
        remat_value w = remat_param(g, name, 2, (int64_t[]){512, 512}, remat_init_uniform(0.05));
        snprintf(name, sizeof name, "%d.bias", i);
        x = remat_linear(g, x, w, remat_param(g, name, 1, (int64_t[]){512}, remat_init_zero()));
    }
    remat_value loss = remat_mse(g, x, remat_input(g, "y", REMAT_F32, REMAT_STATIC, 2, (int64_t[]){2, 512}));
    remat_config config = REMAT_CONFIG_INIT;
    config.plan_only = true;
    config.ranks = &(remat_ranks){.struct_bytes = sizeof(remat_ranks), .size = 2, .bucket_bytes = 4 << 20};
    remat_session *s;
    CHECKED(remat_session_create(g, loss, &config, &s));
    static const int64_t bytes[] = {1050624, 4202496, 4202496, 4202496, 4202496, 3151872};
    static const char *const first[] = {"19.bias", "18.bias", "14.bias", "10.bias", "6.bias", "2.bias"};
    ck_assert_int_eq(remat_bucket_count(s), 6);
    ck_assert_int_eq(rm_plan_summary_of(s).n_buckets, 6);
    for (int i = 0; i < 6; i++) {
        remat_bucket bucket = rm_bucket_at(s, i);
        ck_assert_int_eq(bucket.index, i);
        ck_assert_int_eq(bucket.count * 4, bytes[i]);
        ck_assert_str_eq(bucket.first, first[i]);
        ck_assert_ptr_null(bucket.gradients);
    }
    remat_session_free(s);
    remat_graph_free(g);
}
END_TEST

/* y = x w, and an unused parameter. */
static remat_value small_net(remat_graph *g, int64_t batch) {
    remat_value x = remat_input(g, "x", REMAT_F32, REMAT_STATIC, 2, (int64_t[]){batch, 3});
    remat_param(g, "unused", 1, (int64_t[]){5}, remat_init_constant(1));
    remat_value w = remat_param(g, "w", 2, (int64_t[]){2, 3}, remat_init_uniform(0.5));
    remat_value y = remat_dropout(g, remat_linear(g, x, w, REMAT_NONE), 0.5);
    return remat_mse(g, y, remat_input(g, "target", REMAT_F32, REMAT_STATIC, 2, (int64_t[]){batch, 2}));
}

static remat_session *open_small(remat_config *config, int64_t batch) {
    remat_graph *g;
    remat_session *s;
    CHECKED(remat_graph_create(&g));
    config->threads = 1;
    CHECKED(remat_session_create(g, small_net(g, batch), config, &s));
    remat_graph_free(g);
    fill_inputs(s, 5);
    return s;
}

START_TEST(unused_parameters_keep_their_values) {
    remat_config config = REMAT_CONFIG_INIT;
    config.optimizer = _i ? "adamw" : "sgd";
    config.weight_decay = 0.5;
    remat_session *s = open_small(&config, 4);
    remat_step_result r;
    float before[5], after[5], w[6], changed[6];
    CHECKED(remat_read(s, REMAT_PARAM, 0, before, sizeof before));
    CHECKED(remat_read(s, REMAT_PARAM, 1, w, sizeof w));
    CHECKED(remat_step(s, 0.1, &r));
    CHECKED(remat_read(s, REMAT_PARAM, 0, after, sizeof after));
    CHECKED(remat_read(s, REMAT_PARAM, 1, changed, sizeof changed));
    ck_assert(!memcmp(before, after, sizeof before));
    ck_assert(memcmp(w, changed, sizeof w));
    remat_session_free(s);
}
END_TEST

/* Shard 0 has the dropout mask of a session without ranks; each other shard has its own. */
START_TEST(dropout_depends_on_the_shard) {
    float gradient[9][6];
    for (int i = 0; i < 9; i++) { /* without ranks; ranks 0 to 3 of 4; shards 0 to 3 of one rank, one at a time */
        remat_config config = REMAT_CONFIG_INIT;
        remat_ranks alone = alone_as(i < 5 ? i - 1 : 0, i < 5 ? 4 : 1);
        remat_step_result r;
        config.ranks = i ? &alone : NULL;
        config.micro_steps = i < 5 ? 1 : 4;
        remat_session *s = open_small(&config, 64);
        for (int t = 0; t <= (i < 5 ? 0 : i - 5); t++) {
            if (t) CHECKED(remat_write(s, REMAT_GRADIENT, 1, (float[6]){0}, sizeof(float[6])));
            CHECKED(remat_gradients(s, &r));
        }
        CHECKED(remat_read(s, REMAT_GRADIENT, 1, gradient[i], sizeof gradient[i]));
        for (int k = 0; k < 6 && i >= 5; k++) gradient[i][k] *= 4; /* each is a quarter of the mean */
        remat_session_free(s);
    }
    ck_assert(!memcmp(gradient[0], gradient[1], sizeof *gradient));
    for (int i = 1; i < 5; i++)
        ck_assert_msg(!memcmp(gradient[i], gradient[i + 4], sizeof *gradient), "shard %d", i - 1);
    for (int i = 1; i < 5; i++)
        for (int j = 1; j < i; j++) ck_assert(memcmp(gradient[i], gradient[j], sizeof *gradient));
}
END_TEST

/* Dropout depends on the shard and on all 64 bits of the update's number: no two masks are equal. */
START_TEST(dropout_depends_on_the_update) {
    static const int64_t updates[] = {0, 1, 1ll << 32, (1ll << 32) + 1, 1ll << 33, 3ll << 32, 1ll << 56, INT64_MAX};
    enum { UPDATES = sizeof updates / sizeof *updates, SHARDS = 4, N = UPDATES * SHARDS };
    float gradient[N][6];
    for (int i = 0; i < N; i++) {
        remat_config config = REMAT_CONFIG_INIT;
        remat_ranks alone = alone_as(i % SHARDS, SHARDS);
        config.ranks = &alone;
        remat_session *s = open_small(&config, 64);
        remat_set_step_count(s, updates[i / SHARDS]);
        CHECKED(remat_gradients(s, NULL));
        CHECKED(remat_read(s, REMAT_GRADIENT, 1, gradient[i], sizeof gradient[i]));
        remat_session_free(s);
        for (int k = 0; k < i; k++)
            ck_assert_msg(memcmp(gradient[i], gradient[k], sizeof *gradient),
                          "shard %d of update %ld has the mask of shard %d of update %ld", i % SHARDS,
                          (long)updates[i / SHARDS], k % SHARDS, (long)updates[k / SHARDS]);
    }
}
END_TEST

static void unequal(teammate *mate) {
    static const int64_t rows[] = {3, 1};
    remat_config config = REMAT_CONFIG_INIT;
    remat_step_result r;
    mate->ranks.weight = (double)rows[mate->rank] * 2 / 4;
    config.ranks = &mate->ranks;
    config.threads = 1;
    remat_graph *g;
    remat_session *s;
    CHECKED(remat_graph_create(&g));
    remat_value x = remat_input(g, "x", REMAT_F32, REMAT_STATIC, 2, (int64_t[]){rows[mate->rank], 2});
    remat_value w = remat_param(g, "w", 2, (int64_t[]){1, 2}, remat_init_constant(0.5));
    remat_value y = remat_input(g, "y", REMAT_F32, REMAT_STATIC, 2, (int64_t[]){rows[mate->rank], 1});
    CHECKED(remat_session_create(g, remat_mse(g, remat_linear(g, x, w, REMAT_NONE), y), &config, &s));
    static const float all_x[] = {1, 2, 3, 4, 5, 6, 7, 8}, all_y[] = {1, -1, 2, 0.5f};
    CHECKED(remat_write(s, REMAT_INPUT, 0, all_x + mate->rank * 6, (uint64_t)rows[mate->rank] * 8));
    CHECKED(remat_write(s, REMAT_INPUT, 1, all_y + mate->rank * 3, (uint64_t)rows[mate->rank] * 4));
    CHECKED(remat_gradients(s, &r));
    float gradient[2];
    CHECKED(remat_read(s, REMAT_GRADIENT, 0, gradient, sizeof gradient));
    double loss = 0, expected[2] = {0};
    for (int i = 0; i < 4; i++) { /* d/dw of the mean of (x w - y)^2 */
        double error = 0.5 * all_x[2 * i] + 0.5 * all_x[2 * i + 1] - all_y[i];
        loss += error * error / 4;
        for (int k = 0; k < 2; k++) expected[k] += 2 * error * all_x[2 * i + k] / 4;
    }
    ck_assert_msg(fabs(r.loss - loss) <= 1e-6 * loss, "loss %.9g, expected %.9g", r.loss, loss);
    for (int k = 0; k < 2; k++)
        ck_assert_msg(fabs(gradient[k] - expected[k]) <= 1e-6 * fabs(expected[k]), "gradient %.9g, expected %.9g",
                      gradient[k], expected[k]);
    remat_session_free(s);
    remat_graph_free(g);
}

START_TEST(unequal_batches_are_weighted_by_rows) { team_run(&(team){.size = 2}, &(remat_ranks){0}, unequal, NULL); }
END_TEST

static void fail_in_step(teammate *mate) {
    remat_config config = REMAT_CONFIG_INIT;
    remat_step_result r;
    mate->fail_at = 1;
    config.ranks = &mate->ranks;
    config.optimizer = "sgd";
    remat_session *s = open_small(&config, 4);
    ck_assert_int_eq(remat_gradients(s, &r), REMAT_PEER);
    ck_assert_int_eq(remat_update(s, 0.1, &r), REMAT_INVALID);
    remat_session_free(s);
}

START_TEST(a_failing_collective_fails_the_step) { team_run(&(team){.size = 1}, &(remat_ranks){0}, fail_in_step, NULL); }
END_TEST

static remat_status refuse_map(void *context, void *address, uint64_t bytes) {
    teammate *mate = context;
    return mate->n_mapped ? REMAT_MEMORY : team_map(context, address, bytes);
}

/* Mapped sections are released, wherever the creation of a session fails. */
static void fail_in_create(teammate *mate) {
    remat_config config = REMAT_CONFIG_INIT;
    remat_graph *g;
    remat_session *s = NULL;
    mate->ranks.map = refuse_map;
    mate->ranks.shard_optimizer = true;
    config.ranks = &mate->ranks;
    config.threads = 1;
    CHECKED(remat_graph_create(&g));
    ck_assert_int_eq(remat_session_create(g, small_net(g, 4), &config, &s), REMAT_MEMORY);
    ck_assert_ptr_null(s);
    ck_assert_int_eq(mate->n_mapped, 1);
    ck_assert_int_eq(mate->n_unmapped, 1);
    remat_graph_free(g);
}

START_TEST(mapped_pages_are_released) { team_run(&(team){.size = 1}, &(remat_ranks){0}, fail_in_create, NULL); }
END_TEST

static void expect_refused(remat_status status, const char *words) {
    ck_assert_int_eq(status, REMAT_INVALID);
    ck_says_all(remat_last_error(), words);
}

START_TEST(micro_steps_are_counted) {
    remat_config config = REMAT_CONFIG_INIT;
    remat_step_result r;
    config.micro_steps = 3;
    config.optimizer = "sgd";
    remat_session *s = open_small(&config, 4);
    expect_refused(remat_step(s, 0.1, &r), "3 micro");
    expect_refused(remat_update(s, 0.1, &r), "0|3");
    for (int t = 0; t < 3; t++) {
        ck_assert_int_eq(remat_step_count(s), 0);
        CHECKED(remat_gradients(s, &r));
        ck_assert((t == 2) == (r.grad_norm > 0));
        if (t < 2) expect_refused(remat_update(s, 0.1, &r), t ? "2|3" : "1|3");
    }
    CHECKED(remat_update(s, 0.1, &r));
    expect_refused(remat_update(s, 0.1, &r), "0|3");
    remat_session_free(s);
}
END_TEST

static void refuse_config(const remat_config *config, const char *words) {
    remat_graph *g;
    remat_session *s;
    CHECKED(remat_graph_create(&g));
    expect_refused(remat_session_create(g, small_net(g, 4), config, &s), words);
    remat_graph_free(g);
}

START_TEST(invalid_ranks_are_refused) {
    remat_config config = REMAT_CONFIG_INIT;
    remat_ranks ranks = alone_as(0, 3);
    config.ranks = &ranks;
    config.deterministic_world = true;
    refuse_config(&config, "powers of two");
    ranks.size = 4;
    ranks.weight = 1.5;
    refuse_config(&config, "size|ranks");
    config.deterministic_world = false;
    ranks.rank = 4;
    refuse_config(&config, "rank 4|4");
    ranks.rank = 1;
    ranks.shard_optimizer = true;
    refuse_config(&config, "gather");
    ranks.shard_optimizer = false;
    ranks.wait = NULL;
    refuse_config(&config, "wait");
}
END_TEST

/* ---- Ranks with different updates ------------------------------------------------------------------------------- */

typedef enum { BY_STEP, BY_UPDATE, FUSED, MIXED, WAYS } way;

static remat_status one_update(remat_session *s, bool by_step, double lr) {
    remat_step_result r;
    if (by_step) return remat_step(s, lr, &r);
    TRY(remat_gradients(s, &r));
    return remat_update(s, lr, &r);
}

static remat_session *open_mates(teammate *mate, remat_config *config, way how) {
    mate->ranks.fused_update = how == FUSED;
    config->ranks = &mate->ranks;
    config->optimizer = "sgd";
    config->threads = 1;
    remat_graph *g;
    remat_session *s;
    CHECKED(remat_graph_create(&g));
    CHECKED(remat_session_create(g, small_net(g, 4), config, &s));
    remat_graph_free(g);
    CHECKED(write_zeros(s));
    return s;
}

static void expect_peer(remat_status status, const char *words) {
    ck_assert_msg(status == REMAT_PEER, "status %d, not PEER", (int)status);
    ck_says_all(remat_last_error(), words);
}

/* The last rank has a different learning rate in update 3. */
static void with_another_rate(teammate *mate) {
    const way how = *(const way *)mate->data;
    const bool odd = mate->rank == mate->team->size - 1;
    const bool by_step = how == MIXED ? mate->rank % 2 : how != BY_UPDATE;
    remat_config config = REMAT_CONFIG_INIT;
    remat_session *s = open_mates(mate, &config, how);
    float before[6], after[6];
    char words[100];
    for (int step = 1; step < 3; step++) CHECKED(one_update(s, by_step, 0.3 / step));
    CHECKED(remat_read(s, REMAT_PARAM, 1, before, sizeof before));
    remat_status status = one_update(s, by_step, odd ? 0.01 : 0.02);
    if (how == BY_UPDATE || how == MIXED) { /* not all ranks knew it before; the sum of update 4 shows it */
        CHECKED(status);
        CHECKED(remat_read(s, REMAT_PARAM, 1, before, sizeof before));
        status = one_update(s, by_step, 0.02);
    }
    snprintf(words, sizeof words, "rank %d|learning rate|0.01|update 3|rank 0|0.02", mate->team->size - 1);
    expect_peer(status, words);
    CHECKED(remat_read(s, REMAT_PARAM, 1, after, sizeof after));
    ck_assert(how == FUSED || !memcmp(before, after, sizeof before));
    remat_session_free(s);
}

START_TEST(different_learning_rates_are_reported) {
    way how = (way)(_i % WAYS);
    int size = 2 + _i / WAYS;
    void *data[TEAM_MOST] = {&how, &how, &how, &how};
    team_run(&(team){.size = size}, &(remat_ranks){0}, with_another_rate, data);
}
END_TEST

static void with_other_parameters(teammate *mate) {
    remat_config config = REMAT_CONFIG_INIT;
    remat_session *s = open_mates(mate, &config, BY_STEP);
    char words[100];
    CHECKED(remat_train_only(s, "w"));
    CHECKED(one_update(s, true, 0.1));
    if (mate->rank == mate->team->size - 1) CHECKED(remat_train_only(s, NULL));
    snprintf(words, sizeof words, "rank %d|rank 0|update 2|remat_train_only", mate->team->size - 1);
    expect_peer(one_update(s, true, 0.1), words);
    remat_session_free(s);
}

START_TEST(different_trained_parameters_are_reported) {
    team_run(&(team){.size = 2 + _i}, &(remat_ranks){0}, with_other_parameters, (void *[TEAM_MOST]){0});
}
END_TEST

static void with_another_count(teammate *mate) {
    remat_config config = REMAT_CONFIG_INIT;
    remat_session *s = open_mates(mate, &config, BY_STEP);
    if (mate->rank == 0) remat_set_step_count(s, 100);
    expect_peer(one_update(s, true, 0.1), "rank 1|0 updates|rank 0|100");
    remat_session_free(s);
}

START_TEST(different_update_counts_are_reported) {
    team_run(&(team){.size = 3}, &(remat_ranks){0}, with_another_count, NULL);
}
END_TEST

/* Two sessions' settings must differ in this line, and in nothing else. */
static void expect_setting(const remat_config *config, const char *line) {
    remat_config plain = REMAT_CONFIG_INIT, other = *config;
    plain.optimizer = "sgd";
    remat_session *a = open_small(&plain, 4), *b = open_small(&other, 4);
    char *first = remat_settings_text(a), *second = remat_settings_text(b);
    ck_assert_msg(!strstr(first, line), "%s in %s", line, first);
    ck_assert_msg(strstr(second, line), "no %s in %s", line, second);
    remat_text_free(first);
    remat_text_free(second);
    remat_session_free(a);
    remat_session_free(b);
}

START_TEST(settings_are_listed_as_text) {
    remat_config config = REMAT_CONFIG_INIT;
    config.optimizer = "sgd";
#define SETTING(change, line)                                                                                          \
    do {                                                                                                               \
        remat_config changed = config;                                                                                 \
        changed.change;                                                                                                \
        expect_setting(&changed, line "\n");                                                                           \
    } while (0)
    SETTING(optimizer = "adamw", "optimizer adamw");
    SETTING(optimizer = NULL, "optimizer none");
    SETTING(momentum = 0.95, "momentum 0.95");
    SETTING(momentum = 0.1 + 0.2, "momentum 0.30000000000000004");
    SETTING(beta1 = 0.5, "beta1 0.5");
    SETTING(beta2 = 0.5, "beta2 0.5");
    SETTING(epsilon = 1e-6, "epsilon 1e-06");
    SETTING(weight_decay = 0.01, "weight_decay 0.01");
    SETTING(alpha = 0.5, "alpha 0.5");
    SETTING(clip_grad_norm = 1, "clip_grad_norm 1");
    SETTING(clip_grad_value = 1, "clip_grad_value 1");
    SETTING(trust_coefficient = 0.02, "trust_coefficient 0.02");
    SETTING(momentum_correction = true, "momentum_correction on");
    SETTING(adapt_vectors = true, "adapt_vectors on");
    SETTING(decay_vectors = true, "decay_vectors on");
    SETTING(norm_limit = 10, "norm_limit 10");
    SETTING(micro_steps = 2, "micro_steps 2");
    SETTING(deterministic_world = true, "deterministic_world on");
    SETTING(stateful = true, "stateful on");
    SETTING(groups = "used:lr=0.5", "unused has the learning rate times 0.5");
    SETTING(groups = "w:weight_decay=0.25", "w has a weight_decay of 0.25");
    config.momentum = 0.9;
    SETTING(nesterov = true, "nesterov on");
}
END_TEST

static void read_part(teammate *mate) {
    remat_config config = REMAT_CONFIG_INIT;
    remat_step_result r;
    float gradient[6];
    config.ranks = &mate->ranks;
    config.optimizer = "adam";
    remat_graph *g;
    remat_session *s;
    config.threads = 1;
    CHECKED(remat_graph_create(&g));
    CHECKED(remat_session_create(g, small_net(g, 4), &config, &s));
    remat_graph_free(g);
    CHECKED(write_zeros(s));
    CHECKED(remat_gradients(s, &r));
    expect_refused(remat_read(s, REMAT_GRADIENT, 1, gradient, sizeof gradient), "sharded");
    remat_array info;
    CHECKED(remat_array_info(s, REMAT_OPTIMIZER, 2,
                             &info)); /* w.exp_avg: 6 of the 16 elements of its bucket's first half */
    ck_assert_int_eq(info.count, mate->rank ? 0 : 6);
    ck_assert_uint_eq(info.bytes, mate->rank ? 0 : 24);
    remat_session_free(s);
}

START_TEST(sharded_arrays_are_not_read_as_whole) {
    team_run(&(team){.size = 2}, &(remat_ranks){.shard_optimizer = true, .first_bucket_bytes = 1}, read_part, NULL);
}
END_TEST

/* A plan of four Linear(8,8) along time, all in each stage. Each weight has its own bucket. The first KiB holds the
 * weights, the second one their gradients. */
static remat_session *linears_of_batch(int64_t batch) {
    remat_graph *g;
    remat_session *s;
    CHECKED(remat_graph_create(&g));
    remat_value x = remat_input(g, "x", REMAT_F32, REMAT_SEQUENCE, 3, (int64_t[]){6, batch, 8});
    for (int i = 0; i < 4; i++) {
        char name[32];
        snprintf(name, sizeof name, "%d.weight", i);
        x = remat_linear(g, x, remat_param(g, name, 2, (int64_t[]){8, 8}, remat_init_uniform(0.05)), REMAT_NONE);
    }
    remat_value loss = remat_mse(g, x, remat_input(g, "y", REMAT_F32, REMAT_SEQUENCE, 3, (int64_t[]){6, batch, 8}));
    remat_config config = REMAT_CONFIG_INIT;
    config.plan_only = true;
    config.tile = 2;
    config.ranks =
        &(remat_ranks){.struct_bytes = sizeof(remat_ranks), .size = 2, .first_bucket_bytes = 1, .bucket_bytes = 1};
    CHECKED(remat_session_create(g, loss, &config, &s));
    remat_graph_free(g);
    return s;
}

/* Scratch, activations and their gradients have their own offsets, which reach those of parameter gradients if the
 * batch is large. They must not be confused. */
START_TEST(buckets_are_final_after_the_same_instruction_for_every_batch) {
    remat_session *small = linears_of_batch(1);
    ck_assert_int_eq(small->chain.at.buckets.n, 4);
    for (int64_t batch = 16; batch <= 256; batch *= 2) {
        remat_session *s = linears_of_batch(batch);
        for (int i = 0; i < 4; i++) {
            const rm_bucket *a = &small->chain.at.buckets.item[i], *b = &s->chain.at.buckets.item[i];
            ck_assert_int_eq(a->stage, b->stage);
            for (int k = 0; k < RM_MAX_OPTIONS; k++) ck_assert_int_eq(a->after[k], b->after[k]);
        }
        remat_session_free(s);
    }
    remat_session_free(small);
}
END_TEST

START_TEST(null_device_calls_no_collectives) {
    remat_config config = REMAT_CONFIG_INIT;
    remat_ranks ranks = alone_as(0, 2);
    remat_graph *g;
    remat_session *s;
    config.device = "null";
    config.ranks = &ranks;
    CHECKED(remat_graph_create(&g));
    remat_value loss = small_net(g, 4);
    ck_assert_int_eq(remat_session_create(g, loss, &config, &s), REMAT_MISSING);
    config.plan_only = true;
    ranks = (remat_ranks){
        .struct_bytes = sizeof(remat_ranks), .size = 2, .shard_optimizer = true}; /* plan_only needs no functions */
    CHECKED(remat_session_create(g, loss, &config, &s));
    char *text = remat_plan_describe(s);
    ck_assert_ptr_nonnull(strstr(text, "gradients for 2 ranks: 1 bucket, final in stage 0 (1)"));
    remat_text_free(text);
    remat_session_free(s);
    remat_graph_free(g);
}
END_TEST

/* A thousand random networks along time and a thousand by depth take some minutes:
 *
 *     REMAT_LONG_TESTS=1 build/release/tests/engine_test_ranks */
int main(void) {
    int networks = rm_cases(1000, 120);
    Suite *suite = suite_create("ranks");
    TCase *tests = tcase_create("ranks");
    tcase_set_timeout(tests, 120);
    tcase_add_loop_test(tests, random_networks_along_time_are_reduced_exactly, 0, networks);
    tcase_add_loop_test(tests, random_networks_by_depth_are_reduced_exactly, 0, networks);
    tcase_add_loop_test(tests, bits_depend_on_shards_alone, 0, networks / 4);
    tcase_add_test(tests, subnormal_gradients_depend_on_shards_alone);
    tcase_add_loop_test(tests, sharded_optimizers_have_the_same_bits, 0, networks / 4);
    tcase_add_loop_test(tests, clipping_uses_the_norm_of_all_parts, 0, 12);
    tcase_add_loop_test(tests, updates_per_bucket_have_the_same_bits, 0, 12);
    tcase_add_loop_test(tests, layerwise_norms_cover_all_parts, 0, 12);
    tcase_add_loop_test(tests, layerwise_norms_do_not_depend_on_ranks, 0, 8);
    tcase_add_loop_test(tests, a_single_rank_does_not_wait, 0, 4);
    tcase_add_test(tests, buckets_match_pytorch);
    tcase_add_test(tests, buckets_are_final_after_the_same_instruction_for_every_batch);
    tcase_add_loop_test(tests, unused_parameters_keep_their_values, 0, 2);
    tcase_add_test(tests, dropout_depends_on_the_shard);
    tcase_add_test(tests, dropout_depends_on_the_update);
    tcase_add_test(tests, unequal_batches_are_weighted_by_rows);
    tcase_add_test(tests, a_failing_collective_fails_the_step);
    tcase_add_test(tests, mapped_pages_are_released);
    tcase_add_test(tests, micro_steps_are_counted);
    tcase_add_loop_test(tests, different_trained_parameters_are_reported, 0, 2);
    tcase_add_loop_test(tests, different_learning_rates_are_reported, 0, 3 * WAYS);
    tcase_add_test(tests, different_update_counts_are_reported);
    tcase_add_test(tests, settings_are_listed_as_text);
    tcase_add_test(tests, sharded_arrays_are_not_read_as_whole);
    tcase_add_test(tests, null_device_calls_no_collectives);
    tcase_add_test(tests, invalid_ranks_are_refused);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
