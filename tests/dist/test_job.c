/* test_job.c: remat_join and related functions for programs with several ranks (engine/remat.h): from a meeting place,
 * given in the config or by a launcher's variables, to sessions that train together. The layers below have tests of
 * their own; examples/check_ranks.sh tests the example 06_two_ranks and the installed library. */
#include "engine/remat.h"

#include "memory/host.h"
#include "tests/dist/ranks.h"
#include "tests/suite.h"

enum { ROWS = 3 };

static remat_session *open_session(const remat_job *job, const char *optimizer, bool deterministic_world) {
    remat_graph *g;
    remat_session *s;
    need_ok(remat_graph_create(&g));
    remat_value x = remat_input(g, "x", REMAT_F32, REMAT_STATIC, 2, (int64_t[]){ROWS, 2});
    remat_value y = remat_input(g, "y", REMAT_F32, REMAT_STATIC, 2, (int64_t[]){ROWS, 1});
    remat_value w = remat_param(g, "w", 2, (int64_t[]){1, 2}, remat_init_uniform(1));
    remat_config config = REMAT_CONFIG_INIT;
    config.optimizer = optimizer;
    config.threads = 1;
    config.deterministic_world = deterministic_world;
    config.seed = (uint64_t)remat_job_rank(job); /* all ranks get rank 0's parameters */
    config.ranks = remat_job_ranks(job);
    need_ok(remat_session_create(g, remat_mse(g, remat_linear(g, x, w, REMAT_NONE), y), &config, &s));
    remat_graph_free(g);
    return s;
}

static void write_rows(remat_session *s, int rank) {
    float x[ROWS][2], y[ROWS];
    for (int i = 0; i < ROWS; i++) {
        x[i][0] = (float)(rank * ROWS + i);
        x[i][1] = (float)(i - rank);
        y[i] = 0.5f * x[i][0] - x[i][1];
    }
    need_ok(remat_write(s, REMAT_INPUT, 0, x, sizeof x));
    need_ok(remat_write(s, REMAT_INPUT, 1, y, sizeof y));
}

static void train(remat_job *job, const char *optimizer, float w[2]) {
    remat_session *s = open_session(job, optimizer, false);
    remat_step_result r;
    need_ok(remat_job_begin(job, s));
    write_rows(s, remat_job_rank(job));
    for (int step = 0; step < 5; step++) need_ok(remat_step(s, 0.01, &r));
    need_ok(remat_read(s, REMAT_PARAM, 0, w, 2 * sizeof *w));
    remat_session_free(s);
}

/* Sums of equal numbers of at most 24 bits are exact. */
static void need_same(remat_job *job, const float *w, int count) {
    for (int i = 0; i < count; i++) {
        double sum[2] = {(double)w[i], 1};
        need_ok(remat_job_sum(job, sum, 2));
        need(sum[0] == (double)w[i] * remat_job_size(job) && sum[1] == remat_job_size(job), "%.9g of %g", sum[0],
             sum[1]);
    }
}

static char place[200];

static remat_job_config config_of(int rank, int size) {
    return (remat_job_config){.struct_bytes = sizeof(remat_job_config),
                              .init_method = place,
                              .world_size = size,
                              .rank = rank,
                              .timeout_ms = 60000};
}

static void all_train(int rank, int size, rm_kv *store, void *context) {
    remat_job_config config = config_of(rank, size);
    const int variant = *(int *)context;
    (void)store;
    if (variant == 1) config.shard_optimizer = config.fused_update = true;
    if (variant == 2) config.grad_compress = "bf16";
    if (variant == 3) config.rows = 1 + rank;
    remat_job *job;
    float w[2];
    need_ok(remat_join(&config, &job));
    need(remat_job_rank(job) == rank && remat_job_size(job) == size, "rank %d of %d", remat_job_rank(job),
         remat_job_size(job));
    const remat_ranks *ranks = remat_job_ranks(job);
    need(ranks->shard_optimizer == (variant == 1) && ranks->fused_update == (variant == 1), "another table");
    need(ranks->weight == (variant == 3 ? 2 * (1.0 + rank) / (size + 1.0) : 1), "weight %g", ranks->weight);
    train(job, "lamb", w);
    need_same(job, w, 2);
    remat_leave(job);
}

static void differ(int rank, int size, rm_kv *store, void *context) {
    remat_job_config config = config_of(rank, size);
    (void)store, (void)context;
    remat_job *job;
    need_ok(remat_join(&config, &job));
    remat_session *s = open_session(job, rank ? "adam" : "adamw", false);
    need_peer(remat_job_begin(job, s), "rank 1 has optimizer adam, but rank 0 has optimizer adamw");
    remat_session_free(s);
    s = open_session(job, "adam", true);
    need(remat_job_begin(job, s) == REMAT_INVALID &&
             strstr(remat_last_error(), "deterministic_world is on for the session"),
         "%s", remat_last_error());
    remat_session_free(s);
    remat_leave(job);
}

static void by_variables(int rank, int size, rm_kv *store, void *context) {
    char number[16];
    (void)store, (void)context;
    snprintf(number, sizeof number, "%d", rank);
    setenv("RANK", number, 1), setenv("LOCAL_RANK", number, 1);
    snprintf(number, sizeof number, "%d", size);
    setenv("WORLD_SIZE", number, 1), setenv("LOCAL_WORLD_SIZE", number, 1);
    remat_job *job;
    float w[2];
    need_ok(remat_join(&(remat_job_config){.struct_bytes = sizeof(remat_job_config), .init_method = place}, &job));
    need(remat_job_rank(job) == rank && remat_job_size(job) == size, "rank %d of %d", remat_job_rank(job),
         remat_job_size(job));
    train(job, "sgd", w);
    need_same(job, w, 2);
    remat_leave(job);
}

/* Leaving in the wrong order is an error on every rank, and nothing is freed twice. */
static void leaves_too_early(int rank, int size, rm_kv *store, void *context) {
    remat_job_config config = config_of(rank, size);
    remat_step_result r;
    const bool shard = *(int *)context;
    (void)store;
    config.shard_optimizer = config.fused_update = shard;
    remat_job *job;
    need_ok(remat_join(&config, &job));
    remat_session *s = open_session(job, "sgd", false);
    need_ok(remat_job_begin(job, s));
    write_rows(s, rank);
    need_ok(remat_step(s, 0.01, &r));
    remat_leave(job);
    need(remat_step(s, 0.01, &r) == REMAT_INVALID && strstr(remat_last_error(), "has been left (remat_leave)"), "%s",
         remat_last_error());
    float w[2];
    need_ok(remat_read(s, REMAT_PARAM, 0, w, sizeof w));
    remat_session_free(s);
}

static void one_is_gone(int rank, int size, rm_kv *store, void *context) {
    remat_job_config config = config_of(rank, size);
    (void)store, (void)context;
    remat_job *job;
    remat_step_result r;
    need_ok(remat_join(&config, &job));
    remat_session *s = open_session(job, "sgd", false);
    need_ok(remat_job_begin(job, s));
    write_rows(s, rank);
    need_ok(remat_step(s, 0.1, &r));
    remat_status status = REMAT_OK;
    for (int k = 0; k < 100 && !status && rank == 0; k++) status = remat_step(s, 0.1, &r);
    if (rank == 0) need_peer(status, "rank 1 on ");
    remat_session_free(s);
    remat_leave(job);
}

static void run_job(int size, rank_body *body, void *context) {
    static int number;
    const char *folder = getenv("TMPDIR");
    snprintf(place, sizeof place, "file://%s/remat-job-%d-%d", folder ? folder : "/tmp", (int)getpid(), number++);
    run_ranks(size, body, context);
    unlink(place + strlen("file://"));
}

START_TEST(ranks_train_together) {
    for (int size = 2; size <= 4; size++) run_job(size, all_train, &_i);
}
END_TEST
START_TEST(ranks_with_different_settings_are_refused) { run_job(2, differ, NULL); }
END_TEST
START_TEST(launcher_variables_are_enough_to_join) { run_job(2, by_variables, NULL); }
END_TEST
START_TEST(rank_that_leaves_is_named) { run_job(2, one_is_gone, NULL); }
END_TEST

START_TEST(session_may_outlive_its_job) { run_job(2, leaves_too_early, &_i); }
END_TEST

START_TEST(single_rank_is_a_job) {
    remat_job *job;
    float w[2];
    double number = 5;
    ck_ok(remat_join(&(remat_job_config){.struct_bytes = sizeof(remat_job_config)}, &job));
    ck_assert_int_eq(remat_job_rank(job), 0);
    ck_assert_int_eq(remat_job_size(job), 1);
    ck_assert_ptr_null(remat_job_ranks(job));
    ck_ok(remat_job_sum(job, &number, 1));
    ck_assert(number == 5);
    train(job, "sgd", w);
    ck_assert(w[0] == w[0]);
    remat_leave(job);
    remat_leave(NULL);
}
END_TEST

START_TEST(join_timeout_ends_the_wait) {
    remat_job *job;
    snprintf(place, sizeof place, "file://%s", meeting_place());
    remat_job_config config = config_of(0, 2);
    config.join_timeout_ms = 600;
    ck_fails(remat_join(&config, &job), PEER,
             "rank 1 of 2 did not join within 600 ms. This is the limit of join_timeout_ms");
}
END_TEST

START_TEST(invalid_job_configs_are_refused) {
    remat_job *job;
    setenv("REMAT_WORLD", "0 4 29500 localhost", 1);
    ck_fails(remat_join(&(remat_job_config){.struct_bytes = sizeof(remat_job_config)}, &job), INVALID, "--nnodes");
    unsetenv("REMAT_WORLD");
    ck_fails(remat_join(&(remat_job_config){.struct_bytes = sizeof(remat_job_config), .grad_compress = "int8"}, &job),
             INVALID, "none, fp16 or bf16");
    ck_fails(remat_join(&(remat_job_config){.struct_bytes = sizeof(remat_job_config), .rows = -1}, &job), INVALID,
             "-1 rows");
    ck_fails(remat_join(&(remat_job_config){.struct_bytes = sizeof(remat_job_config), .join_timeout_ms = -1}, &job),
             INVALID, "join_timeout_ms -1; use 0 or more");
    ck_fails(remat_join(&(remat_job_config){.struct_bytes = sizeof(remat_job_config), .rank = 1}, &job), INVALID,
             "world_size");
    ck_fails(remat_join(&(remat_job_config){.struct_bytes = sizeof(remat_job_config), .world_size = -2}, &job), INVALID,
             "world_size");
    ck_fails(remat_join(&(remat_job_config){.struct_bytes = sizeof(remat_job_config),
                                            .world_size = 2,
                                            .rank = 2,
                                            .init_method = "file:///nowhere"},
                        &job),
             INVALID, "rank 2 of 2");
    ck_fails(remat_join(&(remat_job_config){.struct_bytes = sizeof(remat_job_config),
                                            .world_size = 2,
                                            .backend = "nccl",
                                            .init_method = "file:///tmp/x"},
                        &job),
             INVALID, "is for GPUs");
    ck_fails(remat_join(NULL, &job), INVALID, "needs a config");
    rm_host_fail_at(1);
    ck_fails(remat_join(&(remat_job_config){.struct_bytes = sizeof(remat_job_config)}, &job), MEMORY,
             "memory for a job");
    rm_host_fail_at(0);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("job");
    tcase_set_timeout(tests, 300);
    tcase_add_loop_test(tests, ranks_train_together, 0, 4);
    tcase_add_test(tests, ranks_with_different_settings_are_refused);
    tcase_add_test(tests, launcher_variables_are_enough_to_join);
    tcase_add_test(tests, rank_that_leaves_is_named);
    tcase_add_loop_test(tests, session_may_outlive_its_job, 0, 2);
    tcase_add_test(tests, single_rank_is_a_job);
    tcase_add_test(tests, join_timeout_ends_the_wait);
    tcase_add_test(tests, invalid_job_configs_are_refused);
    return run_cases("dist/job", tests);
}
