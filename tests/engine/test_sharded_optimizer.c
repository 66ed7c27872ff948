/* test_sharded_optimizer.c: ZeRO-1: each rank keeps a part of the optimizer's state, and updates have the bits of
 * unsharded ones. */
#include "tests/cases.h"
#include "tests/engine/rank_sessions.h"
#include "tests/suite.h"
#include "tests/zeros.h"

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

static float *room_for_states(const outcome *like) { return malloc((size_t)(2 * like->count + 1) * sizeof(float)); }

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

/* ---- Reading sharded arrays ------------------------------------------------------------------------------------ */

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

int main(void) {
    int networks = rm_cases(1000, 120);
    TCase *tests = tcase_create("sharded_optimizer");
    tcase_set_timeout(tests, 300);
    tcase_add_loop_test(tests, sharded_optimizers_have_the_same_bits, 0, networks / 4);
    tcase_add_loop_test(tests, clipping_uses_the_norm_of_all_parts, 0, 12);
    tcase_add_loop_test(tests, updates_per_bucket_have_the_same_bits, 0, 12);
    tcase_add_loop_test(tests, layerwise_norms_cover_all_parts, 0, 12);
    tcase_add_loop_test(tests, layerwise_norms_do_not_depend_on_ranks, 0, 8);
    tcase_add_test(tests, sharded_arrays_are_not_read_as_whole);
    return run_cases("sharded_optimizer", tests);
}
