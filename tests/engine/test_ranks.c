/* test_ranks.c: a session's step among ranks (remat_ranks), which are threads of this process (team.h). For every
 * network and plan, each bucket is reduced once, with the gradients of a rank alone without recomputation, and all
 * ranks end with the same bits. */
#include "tests/cases.h"
#include "tests/engine/poison.h"
#include "tests/engine/rank_sessions.h"
#include "tests/sanitized.h"
#include "tests/suite.h"

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

/* A thousand random networks along time and a thousand by depth take some minutes:
 *
 *     REMAT_LONG_TESTS=1 build/release/tests/engine_test_ranks */
START_TEST(random_networks_along_time_are_reduced_exactly) { try_one((uint64_t)_i, true); }
END_TEST

START_TEST(random_networks_by_depth_are_reduced_exactly) { try_one((uint64_t)_i, false); }
END_TEST

/* ---- Bits depend on shards, not on ranks ---------------------------------------------------------------------- */

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

/* ---- Optimizers that measure whole arrays ----------------------------------------------------------------------- */

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

int main(void) {
    int networks = rm_cases(1000, SANITIZED ? 48 : 120);
    TCase *tests = tcase_create("ranks");
    tcase_set_timeout(tests, 300);
    tcase_add_loop_test(tests, random_networks_along_time_are_reduced_exactly, 0, networks);
    tcase_add_loop_test(tests, random_networks_by_depth_are_reduced_exactly, 0, networks);
    tcase_add_loop_test(tests, bits_depend_on_shards_alone, 0, networks / 4);
    tcase_add_test(tests, subnormal_gradients_depend_on_shards_alone);
    tcase_add_loop_test(tests, a_single_rank_does_not_wait, 0, 4);
    tcase_add_test(tests, dropout_depends_on_the_shard);
    tcase_add_test(tests, dropout_depends_on_the_update);
    tcase_add_test(tests, unequal_batches_are_weighted_by_rows);
    tcase_add_test(tests, micro_steps_are_counted);
    return run_cases("ranks", tests);
}
