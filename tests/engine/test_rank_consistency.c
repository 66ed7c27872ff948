/* test_rank_consistency.c: ranks whose updates would differ are named before they update. */
#include "tests/cases.h"
#include "tests/engine/rank_sessions.h"
#include "tests/suite.h"
#include "tests/zeros.h"

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

int main(void) {
    TCase *tests = tcase_create("rank_consistency");
    tcase_set_timeout(tests, 300);
    tcase_add_loop_test(tests, different_trained_parameters_are_reported, 0, 2);
    tcase_add_loop_test(tests, different_learning_rates_are_reported, 0, 3 * WAYS);
    tcase_add_test(tests, different_update_counts_are_reported);
    tcase_add_test(tests, settings_are_listed_as_text);
    return run_cases("rank_consistency", tests);
}
