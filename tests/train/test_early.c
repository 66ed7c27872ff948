/* test_early.c: train/run/early.h: copies of what a step changes before its update. Ranks that die are in test_elastic.c. */
#include "memory/host.h"
#include "tests/train/train_test.h"
#include "train/models/model.h"
#include "train/run/early.h"

enum { ROWS = 4, MOST = 4096 };

/* On one rank of `size`; the others are not asked. */
static rm_ranks ranks_of(int32_t size) { return (rm_ranks){.size = size, .replicas = size, .parts = 1}; }

static remat_session *open_session(const char *model, int64_t rows) {
    remat_session *s;
    rm_model built;
    rm_model_spec spec = {.name = model, .layers = 2, .hidden = 6, .embed = 6, .data = rm_text_shape(8, 0)};
    remat_config config = REMAT_CONFIG_INIT;
    config.threads = 1;
    config.optimizer = "sgd";
    config.stateful = true;
    ck_ok(rm_model_build(&spec, rows, true, &built));
    ck_ok(remat_session_create(built.graph, built.loss, &config, &s));
    rm_model_free(&built);
    return s;
}

/* Element k of row b of array i. */
static float state_at(int version, int64_t i, int64_t b, int64_t k) {
    return (float)(1000 * version + 100 * i + 10 * b) + (float)k / 16;
}

static void write_states(remat_session *s, int version, int64_t first, int64_t stride) {
    static float data[MOST];
    for (int64_t i = 0; i < remat_count(s, REMAT_CARRIED); i++) {
        remat_array array;
        ck_ok(remat_array_info(s, REMAT_CARRIED, i, &array));
        int64_t rows = array.dim[0], width = array.count / rows;
        for (int64_t e = 0; e < array.count; e++)
            data[e] = state_at(version, i, first + stride * (e / width), e % width);
        ck_ok(remat_write(s, REMAT_CARRIED, i, data, array.bytes));
    }
}

static void ck_states(remat_session *s, int version, int64_t first, int64_t stride) {
    static float data[MOST];
    ck_assert(remat_count(s, REMAT_CARRIED) > 0);
    for (int64_t i = 0; i < remat_count(s, REMAT_CARRIED); i++) {
        remat_array array;
        ck_ok(remat_array_info(s, REMAT_CARRIED, i, &array));
        int64_t rows = array.dim[0], width = array.count / rows;
        ck_ok(remat_read(s, REMAT_CARRIED, i, data, array.bytes));
        for (int64_t e = 0; e < array.count; e++)
            ck_assert_float_eq(data[e], state_at(version, i, first + stride * (e / width), e % width));
    }
}

/* A rank whose update failed has the parameters of the step before. */
START_TEST(copies_of_two_steps_are_kept) {
    rm_early early = {0};
    rm_ranks alone = ranks_of(1);
    remat_session *s = open_session("gru", ROWS);
    ck_assert(rm_early_any(s, true) && !rm_early_any(s, false) && !rm_early_find(&early, 0));
    for (int step = 0; step < 6; step++) {
        write_states(s, step, 0, 1);
        ck_ok(rm_early_keep(&early, &alone, s, true, step));
        write_states(s, 9, 0, 1);
        for (int before = 0; before <= 1 && before <= step; before++) {
            rm_early_copy copy = *rm_early_find(&early, step - before);
            ck_ok(rm_early_share(&copy, &alone, s, true));
            ck_states(s, step - before, 0, 1);
        }
        ck_assert(!rm_early_find(&early, step + 1) && (step < 2 || !rm_early_find(&early, step - 2)));
    }
    rm_early_free(&early);
    remat_session_free(s);
}
END_TEST

/* What `from` ranks kept, as their collective puts it together; rank 0 of `to` takes it up. */
static void take_up(int64_t from, int32_t to) {
    rm_ranks alone = ranks_of(1), some = ranks_of(to);
    rm_early early = {0};
    rm_early_copy all = {0};
    remat_session *old = open_session("gru", ROWS / from), *new = open_session("gru", ROWS / to);
    for (int64_t rank = 0; rank < from; rank++) {
        write_states(old, 1, rank, from);
        ck_ok(rm_early_keep(&early, &alone, old, true, 1));
        const rm_early_copy *own = rm_early_find(&early, 1);
        uint64_t head = sizeof(int64_t), states = own->bytes - head;
        if (!rank) all = (rm_early_copy){rm_malloc(head + (uint64_t)from * states), head + (uint64_t)from * states, 1};
        memcpy(all.data, &from, head);
        memcpy(all.data + head + (uint64_t)rank * states, own->data + head, states);
    }
    ck_ok(rm_early_share(&all, &some, new, true));
    ck_states(new, 1, 0, to);
    all.bytes--;
    ck_fails(rm_early_share(&all, &some, new, true), REMAT_INTERNAL, "running statistics");
    rm_free(all.data);
    rm_early_free(&early);
    remat_session_free(old);
    remat_session_free(new);
}

START_TEST(states_follow_their_rows) {
    for (int from = 1; from <= ROWS; from *= 2)
        for (int to = 1; to <= ROWS; to *= 2) take_up(from, to);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("early");
    tcase_add_test(tests, copies_of_two_steps_are_kept);
    tcase_add_test(tests, states_follow_their_rows);
    return run_suite("train/early", tests);
}
