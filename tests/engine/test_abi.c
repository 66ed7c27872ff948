/* test_abi.c: programs that were compiled with another remat.h (engine/abi.h). What they have beyond their struct is not read and
 * not written; what theirs lacks is zero; what only theirs has is zero, or refused. Programs of earlier releases: tests/abi. */
#include <check.h>
#include <stddef.h>
#include <string.h>

#include "engine/remat_op.h"
#include "ops/op.h"

#define CHECKED(call) ck_assert_msg((call) == REMAT_OK, "%s: %s", #call, remat_last_error())

enum {
    LATER = 8,
    UNTOUCHED = 0xa5,
    ROOM = 1024
}; /* bytes that a later release added; a byte that nobody wrote; plenty */

static int64_t reduced;
static remat_status reduce(void *context, const remat_bucket *bucket) {
    reduced += bucket->count;
    return context ? REMAT_OK : REMAT_INVALID;
}
static remat_status nothing(void *context, const remat_bucket *bucket) {
    (void)context, (void)bucket;
    return REMAT_OK;
}
static remat_status no_sum(void *context, double *values, int64_t n) {
    (void)context, (void)values, (void)n;
    return REMAT_OK;
}

typedef struct {
    remat_ranks table;
    unsigned char later[LATER];
} longer_ranks;
typedef struct {
    remat_op op;
    unsigned char later[LATER];
} longer_op;

static longer_ranks ranks;
static longer_op mine; /* tanh, as a stranger would bring it */
static remat_session *session;
static const float x[24] = {1, -1, 0.5f}, first_w[9] = {0.5f, 0.25f, -1};

static remat_status create(size_t config_bytes, const remat_config *config, remat_session **out) {
    remat_graph *g;
    remat_value y;
    CHECKED(remat_graph_create(&g));
    remat_value in = remat_input(g, "x", REMAT_F32, REMAT_SEQUENCE, 3, (int64_t[]){4, 2, 3});
    remat_value w = remat_param(g, "w", 2, (int64_t[]){3, 3}, remat_init_uniform(1));
    remat_status status = remat_apply(g, &mine.op, &in, 1, NULL, &y);
    if (!status) CHECKED(remat_apply(g, &mine.op, &y, 1, NULL, &y)); /* the same op, not another of its name */
    y = remat_rnn_tanh(g, y, w, w, REMAT_NONE, REMAT_NONE);
    if (!status) status = remat_session_create_sized(g, remat_mse(g, y, in), config, config_bytes, out);
    remat_graph_free(g);
    return status;
}

static remat_config first_config(void) {
    remat_config config = REMAT_CONFIG_INIT;
    config.threads = 1;
    config.optimizer = "sgd";
    config.ranks = &ranks.table;
    return config;
}

static void set_up(void) {
    reduced = 0;
    memset(&ranks, UNTOUCHED, sizeof ranks);
    ranks.table = (remat_ranks){.struct_bytes = sizeof ranks.table,
                                .context = &ranks,
                                .size = 1,
                                .reduce = reduce,
                                .wait = nothing,
                                .sum = no_sum};
    memset(&mine, UNTOUCHED, sizeof mine);
    mine.op = *rm_op_find("tanh");
    mine.op.name = "my_tanh";
    remat_config config = first_config();
    CHECKED(create(sizeof config, &config, &session));
    CHECKED(remat_write(session, REMAT_INPUT, 0, x, sizeof x));
}
static void tear_down(void) { remat_session_free(session); }

/* Two steps end as those of `session`. How many gradients other ranks were asked for. */
static int64_t learns_as_before(remat_session *s) {
    remat_session *both[] = {session, s};
    float w[2][9];
    for (int i = 0; i < 2; i++) {
        reduced = 0;
        CHECKED(remat_write(both[i], REMAT_INPUT, 0, x, sizeof x));
        CHECKED(remat_write(both[i], REMAT_PARAM, 0, first_w, sizeof first_w));
        for (int step = 0; step < 2; step++) CHECKED(remat_step(both[i], 0.1, NULL));
        CHECKED(remat_read(both[i], REMAT_PARAM, 0, w[i], sizeof w[i]));
    }
    ck_assert_mem_eq(w[0], w[1], sizeof w[0]);
    remat_session_free(s);
    return reduced;
}

/* ---- Structs that programs fill -------------------------------------------------------------------------------------- */

#define FORGET_FROM(member, type, object) /* as if it ended before that member, with something else behind it */       \
    memset((char *)(object) + offsetof(type, member), UNTOUCHED, sizeof(type) - offsetof(type, member))

START_TEST(what_an_older_program_lacks_is_zero) {
    remat_config config = first_config();
    remat_session *s;
    FORGET_FROM(ranks, remat_config, &config);
    CHECKED(create(offsetof(remat_config, ranks), &config, &s));
    ck_assert_int_eq(learns_as_before(s), 0);

    config = first_config();
    ranks.table.struct_bytes = offsetof(remat_ranks, poll);
    FORGET_FROM(poll, remat_ranks, &ranks.table);
    mine.op.struct_bytes = offsetof(remat_op, n_samples);
    FORGET_FROM(n_samples, remat_op, &mine.op);
    CHECKED(create(sizeof config, &config, &s));
    ck_assert_int_gt(learns_as_before(s), 0);
    ck_assert_int_eq(remat_op_check(&mine.op, rm_op_find_f64("tanh"), NULL), REMAT_INVALID);
    ck_assert_ptr_nonnull(strstr(remat_last_error(), "samples"));
}
END_TEST

/* What strategies are told of stages: among it, what a lean one saves. The caller's. */
static char *problem_text(void) {
    remat_config config = first_config();
    remat_session *s;
    config.tile = 1;
    CHECKED(create(sizeof config, &config, &s));
    char *text = remat_plan_problem_text(s);
    remat_session_free(s);
    return text;
}

/* An op is read as long as there are sessions. */
START_TEST(what_an_older_op_lacks_stays_zero) {
    mine.op.cheap = true;
    char *cheap = problem_text();
    mine.op.cheap = false;
    char *text = problem_text();
    ck_assert_str_ne(cheap, text);
    mine.op.struct_bytes = offsetof(remat_op, cheap);
    FORGET_FROM(cheap, remat_op, &mine.op);
    char *older = problem_text();
    ck_assert_str_eq(older, text);
    remat_text_free(cheap), remat_text_free(text), remat_text_free(older);
}
END_TEST

START_TEST(what_a_later_program_leaves_zero_does_no_harm) {
    struct {
        remat_config config;
        char later[LATER];
    } theirs = {.config = first_config()};
    remat_session *s;
    memset(ranks.later, 0, LATER);
    memset(mine.later, 0, LATER);
    ranks.table.struct_bytes = sizeof ranks;
    mine.op.struct_bytes = sizeof mine;
    CHECKED(create(sizeof theirs, &theirs.config, &s));
    ck_assert_int_gt(learns_as_before(s), 0);
}
END_TEST

static void expect_refused(remat_status status, const char *type) {
    ck_assert_int_eq(status, REMAT_INVALID);
    ck_assert_msg(strstr(remat_last_error(), type) && strstr(remat_last_error(), "compiled for a later Remat"),
                  "of a %s it is said: %s", type, remat_last_error());
}

/* Whatever it is that it asks for, it would not get it. */
START_TEST(what_a_later_program_sets_is_refused) {
    union {
        remat_config config;
        remat_job_config job;
        remat_sampler_config sampler;
        remat_cell cell;
        char bytes[ROOM];
    } theirs = {.bytes[ROOM - 1] = 1};
    remat_session *s;
    remat_job *job;
    remat_sampler *sampler;
    remat_graph *g;
    expect_refused(create(ROOM, &theirs.config, &s), "remat_config");
    expect_refused(remat_join_sized(&theirs.job, ROOM, &job), "remat_job_config");
    expect_refused(remat_sampler_create_sized(&theirs.sampler, ROOM, &sampler), "remat_sampler_config");
    CHECKED(remat_graph_create(&g));
    remat_scan_sized(g, &theirs.cell, ROOM, NULL, NULL);
    expect_refused(remat_graph_check(g), "remat_cell");
    remat_graph_free(g);

    remat_config config = first_config();
    ranks.table.struct_bytes = sizeof ranks;
    expect_refused(create(sizeof config, &config, &s), "remat_ranks");
    mine.op.struct_bytes = sizeof mine;
    expect_refused(create(sizeof config, &config, &s), "remat_op");
    expect_refused(remat_op_check(&mine.op, &mine.op, NULL), "remat_op");
}
END_TEST

START_TEST(a_table_without_its_size_is_refused) {
    remat_config config = first_config();
    remat_session *s;
    mine.op.struct_bytes = 0;
    ck_assert_int_eq(create(sizeof config, &config, &s), REMAT_INVALID);
    ck_assert_ptr_nonnull(strstr(remat_last_error(), "set its struct_bytes to sizeof(remat_op)"));
}
END_TEST

/* ---- Structs that the library fills ---------------------------------------------------------------------------------- */

/* A type, and what fills `bytes` bytes of one at `out`. */
#define FILLED(X)                                                                                                      \
    X(remat_config, remat_config_init_sized(out, bytes))                                                               \
    X(remat_plan_summary, remat_session_plan_sized(session, out, bytes))                                               \
    X(remat_products, remat_session_products_sized(session, out, bytes))                                               \
    X(remat_recordings, remat_session_recordings_sized(session, out, bytes))                                           \
    X(remat_bucket, remat_bucket_info_sized(session, 0, out, bytes))                                                   \
    X(remat_array, CHECKED(remat_array_info_sized(session, REMAT_PARAM, 0, out, bytes)))                               \
    X(remat_build_info, remat_build_sized(out, bytes))                                                                 \
    X(remat_step_result, CHECKED(remat_gradients_sized(session, out, bytes)))                                          \
    X(remat_step_result, CHECKED(remat_step_sized(session, 0.1, out, bytes)))                                          \
    X(remat_step_result, CHECKED(remat_evaluate_sized(session, out, bytes)))                                           \
    X(remat_step_result, CHECKED(remat_forward(session)); CHECKED(remat_backward_sized(session, out, bytes)))          \
    X(remat_op_report, CHECKED(remat_op_check_sized(rm_op_find("tanh"), rm_op_find_f64("tanh"), out, bytes)))

START_TEST(as_much_is_filled_as_the_program_has) {
    _Alignas(16) unsigned char room[ROOM], untouched[ROOM];
    void *out = room;
    memset(untouched, UNTOUCHED, ROOM);
#define TRY_SIZES(type, fill)                                                                                          \
    for (size_t bytes = sizeof(type) - 8; bytes <= sizeof(type) + 8; bytes += 8) {                                     \
        memset(room, UNTOUCHED, ROOM);                                                                                 \
        fill;                                                                                                          \
        ck_assert_msg(memcmp(room + bytes - 8, untouched, 8), #fill " leaves the last of %zu bytes", bytes);           \
        ck_assert_msg(!memcmp(room + bytes, untouched, ROOM - bytes), #fill " writes more than %zu bytes", bytes);     \
        if (bytes > sizeof(type)) ck_assert_msg(!room[bytes - 8], #fill " makes up what it does not know");            \
    }
    FILLED(TRY_SIZES)
}
END_TEST

START_TEST(what_is_not_wanted_is_not_filled) {
    remat_config_init_sized(NULL, 0);
    remat_session_plan_sized(session, NULL, 0);
    remat_session_products_sized(session, NULL, 0);
    remat_session_recordings_sized(session, NULL, 0);
    remat_bucket_info_sized(session, 0, NULL, 0);
    remat_build_sized(NULL, 0);
}
END_TEST

typedef remat_status get_live(const remat_session *, remat_live_point **points, size_t point_bytes, int64_t *count);

/* Points are numbered from 0, as far apart as the program has them. */
static void expect_spaced(get_live *get, size_t bytes) {
    remat_live_point *points;
    int64_t n, step;
    CHECKED(get(session, &points, bytes, &n));
    ck_assert_int_gt(n, 1);
    for (int64_t i = 0; i < n; i++) {
        memcpy(&step, (char *)points + (size_t)i * bytes, sizeof step);
        ck_assert_int_eq(step, i);
    }
    remat_text_free((char *)points);
}

START_TEST(lists_are_spaced_as_the_program_has_them) {
    CHECKED(remat_trace_next(session));
    CHECKED(remat_gradients(session, NULL));
    for (size_t bytes = sizeof(remat_live_point) - 8; bytes <= sizeof(remat_live_point) + 8; bytes += 8) {
        expect_spaced(remat_plan_timeline_sized, bytes);
        expect_spaced(remat_traced_timeline_sized, bytes);
    }
    remat_pareto_point *points;
    int64_t n, segments, last = 0;
    size_t bytes = sizeof *points + 8;
    CHECKED(remat_plan_pareto_sized(session, &points, bytes, &n));
    for (int64_t i = 0; i < n; i++, last = segments) {
        memcpy(&segments, (char *)points + (size_t)i * bytes + offsetof(remat_pareto_point, segments), sizeof segments);
        ck_assert(segments >= 1 && segments <= 4);
    }
    ck_assert_int_gt(last, 0);
    remat_text_free((char *)points);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("abi");
    TCase *tests = tcase_create("abi");
    tcase_add_checked_fixture(tests, set_up, tear_down);
    tcase_add_test(tests, what_an_older_program_lacks_is_zero);
    tcase_add_test(tests, what_an_older_op_lacks_stays_zero);
    tcase_add_test(tests, what_a_later_program_leaves_zero_does_no_harm);
    tcase_add_test(tests, what_a_later_program_sets_is_refused);
    tcase_add_test(tests, a_table_without_its_size_is_refused);
    tcase_add_test(tests, as_much_is_filled_as_the_program_has);
    tcase_add_test(tests, what_is_not_wanted_is_not_filled);
    tcase_add_test(tests, lists_are_spaced_as_the_program_has_them);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
