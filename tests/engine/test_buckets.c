/* test_buckets.c: which gradients are sent together, when, and the calls that a session makes for them. */
#include "tests/cases.h"
#include "tests/engine/rank_sessions.h"
#include "tests/suite.h"

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

int main(void) {
    TCase *tests = tcase_create("buckets");
    tcase_set_timeout(tests, 300);
    tcase_add_test(tests, buckets_match_pytorch);
    tcase_add_test(tests, buckets_are_final_after_the_same_instruction_for_every_batch);
    tcase_add_loop_test(tests, unused_parameters_keep_their_values, 0, 2);
    tcase_add_test(tests, a_failing_collective_fails_the_step);
    tcase_add_test(tests, mapped_pages_are_released);
    tcase_add_test(tests, null_device_calls_no_collectives);
    tcase_add_test(tests, invalid_ranks_are_refused);
    return run_cases("buckets", tests);
}
