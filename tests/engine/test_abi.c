/* test_abi.c: programs compiled with another version of remat.h (engine/abi.h). The library does not read past the end
 * of a shorter struct; members that it lacks count as zero. Additional members of a longer struct must be zero. */
#include <check.h>
#include <stddef.h>
#include <string.h>

#include "engine/remat_op.h"
#include "ops/op.h"
#include "tests/says.h"
#include "tests/suite.h"

#define CHECKED(call) ck_assert_msg((call) == REMAT_OK, "%s: %s", #call, remat_last_error())

enum {
    LATER = 8,
    UNTOUCHED = 0xa5,
    ROOM = 1024
}; /* bytes that a later release added; marks an unwritten byte; plenty */

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
static longer_op mine; /* tanh, as an op of the caller */
static remat_session *session;
static const float x[24] = {1, -1, 0.5f}, first_w[9] = {0.5f, 0.25f, -1};

static remat_status create(const remat_config *config, remat_session **out) {
    remat_graph *g;
    remat_value y;
    CHECKED(remat_graph_create(&g));
    remat_value in = remat_input(g, "x", REMAT_F32, REMAT_SEQUENCE, 3, (int64_t[]){4, 2, 3});
    remat_value w = remat_param(g, "w", 2, (int64_t[]){3, 3}, remat_init_uniform(1));
    remat_status status = remat_apply(g, &mine.op, &in, 1, NULL, &y);
    if (!status) CHECKED(remat_apply(g, &mine.op, &y, 1, NULL, &y)); /* the same op, not another of its name */
    y = remat_rnn_tanh(g, y, w, w, REMAT_NONE, REMAT_NONE);
    if (!status) status = remat_session_create(g, remat_mse(g, y, in), config, out);
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
    CHECKED(create(&config, &session));
    CHECKED(remat_write(session, REMAT_INPUT, 0, x, sizeof x));
}
static void tear_down(void) { remat_session_free(session); }

/* Two steps give the same results as `session`. Returns for how many gradients the other ranks were asked. */
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

/* ---- Structs that programs fill --------------------------------------------------------------------------------- */

#define FORGET_FROM(member, type, object) /* as if it ended before that member, followed by other data */              \
    memset((char *)(object) + offsetof(type, member), UNTOUCHED, sizeof(type) - offsetof(type, member))

START_TEST(members_that_an_older_struct_lacks_are_zero) {
    remat_config config = first_config();
    remat_session *s;
    config.struct_bytes = offsetof(remat_config, ranks);
    FORGET_FROM(ranks, remat_config, &config);
    CHECKED(create(&config, &s));
    ck_assert_int_eq(learns_as_before(s), 0);

    config = first_config();
    ranks.table.struct_bytes = offsetof(remat_ranks, poll);
    FORGET_FROM(poll, remat_ranks, &ranks.table);
    mine.op.struct_bytes = offsetof(remat_op, n_samples);
    FORGET_FROM(n_samples, remat_op, &mine.op);
    CHECKED(create(&config, &s));
    ck_assert_int_gt(learns_as_before(s), 0);
    ck_assert_int_eq(remat_op_check(&mine.op, rm_op_find_f64("tanh"), NULL), REMAT_INVALID);
    ck_says_all(remat_last_error(), "tanh|samples");
}
END_TEST

/* The planner's problem as text, which includes the bytes that a lean stage saves. The caller frees it. */
static char *problem_text(void) {
    remat_config config = first_config();
    remat_session *s;
    config.tile = 1;
    CHECKED(create(&config, &s));
    char *text = remat_plan_problem_text(s);
    remat_session_free(s);
    return text;
}

/* Sessions read an op as long as they live. */
START_TEST(members_that_an_older_op_lacks_stay_zero) {
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

START_TEST(zeros_in_a_longer_struct_are_accepted) {
    struct {
        remat_config config;
        char later[LATER];
    } theirs = {.config = first_config()};
    remat_session *s;
    memset(ranks.later, 0, LATER);
    memset(mine.later, 0, LATER);
    ranks.table.struct_bytes = sizeof ranks;
    mine.op.struct_bytes = sizeof mine;
    theirs.config.struct_bytes = sizeof theirs;
    CHECKED(create(&theirs.config, &s));
    ck_assert_int_gt(learns_as_before(s), 0);
}
END_TEST

static void expect_refused(remat_status status, const char *type) {
    ck_assert_int_eq(status, REMAT_INVALID);
    ck_assert_msg(strstr(remat_last_error(), type) && strstr(remat_last_error(), "later"), "of a %s it is said: %s",
                  type, remat_last_error());
}

/* An unknown setting would have no effect. */
START_TEST(unknown_members_that_are_set_are_refused) {
    union {
        remat_config config;
        remat_job_config job;
        remat_sampler_config sampler;
        remat_cell cell;
        char bytes[ROOM];
        size_t struct_bytes;
    } theirs = {.bytes[ROOM - 1] = 1};
    theirs.struct_bytes = ROOM;
    remat_session *s;
    remat_job *job;
    remat_sampler *sampler;
    remat_graph *g;
    expect_refused(create(&theirs.config, &s), "remat_config");
    expect_refused(remat_join(&theirs.job, &job), "remat_job_config");
    expect_refused(remat_sampler_create(&theirs.sampler, &sampler), "remat_sampler_config");
    CHECKED(remat_graph_create(&g));
    remat_scan(g, &theirs.cell, NULL, NULL);
    expect_refused(remat_graph_check(g), "remat_cell");
    remat_graph_free(g);

    remat_config config = first_config();
    ranks.table.struct_bytes = sizeof ranks;
    expect_refused(create(&config, &s), "remat_ranks");
    mine.op.struct_bytes = sizeof mine;
    expect_refused(create(&config, &s), "remat_op");
    expect_refused(remat_op_check(&mine.op, &mine.op, NULL), "remat_op");
}
END_TEST

START_TEST(invalid_struct_bytes_are_refused) {
    static const size_t lengths[] = {0, 1, (size_t)1 << 40, SIZE_MAX}; /* not set, or never initialised */
    remat_session *s;
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        remat_config config = first_config();
        mine.op.struct_bytes = lengths[i];
        ck_assert_int_eq(create(&config, &s), REMAT_INVALID);
        ck_says_all(remat_last_error(), "struct_bytes|sizeof(remat_op)");
        mine.op.struct_bytes = sizeof mine.op;
        config.struct_bytes = lengths[i];
        ck_assert_int_eq(create(&config, &s), REMAT_INVALID);
        ck_says_all(remat_last_error(), "struct_bytes|sizeof(remat_config)");
        ck_assert_int_eq(remat_config_defaults(&config), REMAT_INVALID);
    }
}
END_TEST

/* Equal texts may lie at two addresses, because the library has its own. */
static void take_equal_text(const char **text, const char *wanted) {
    ck_assert_str_eq(*text, wanted);
    *text = wanted;
}

/* Defaults come from the header's macro, which is compiled into C programs, and from the function, which bindings
 * call. */
START_TEST(defaults_fill_the_callers_struct) {
    const remat_config wanted = REMAT_CONFIG_INIT;
    unsigned char room[ROOM], untouched[ROOM];
    memset(untouched, UNTOUCHED, ROOM);
    for (size_t bytes = sizeof wanted - 8; bytes <= sizeof wanted + 8; bytes += 8) {
        remat_config *config = (remat_config *)room;
        size_t both = bytes < sizeof wanted ? bytes : sizeof wanted;
        memset(room, UNTOUCHED, ROOM);
        config->struct_bytes = bytes;
        CHECKED(remat_config_defaults(config));
        ck_assert_uint_eq(config->struct_bytes, bytes);
        config->struct_bytes = sizeof wanted;
        take_equal_text(&config->device, wanted.device);
        take_equal_text(&config->precision, wanted.precision);
        take_equal_text(&config->strategy, wanted.strategy);
        take_equal_text(&config->recompute, wanted.recompute);
        ck_assert_mem_eq(config, &wanted, both);
        for (size_t i = both; i < bytes; i++) ck_assert_int_eq(room[i], 0);
        ck_assert_mem_eq(room + bytes, untouched, ROOM - bytes);
    }
}
END_TEST

/* Structs that the library fills never change their size, and their reserved members are zero. */
START_TEST(reserved_members_are_zero) {
#define EXPECT_ZEROS(type, fill)                                                                                       \
    do {                                                                                                               \
        type out;                                                                                                      \
        memset(&out, UNTOUCHED, sizeof out);                                                                           \
        CHECKED(fill);                                                                                                 \
        for (size_t i = 0; i < sizeof out.reserved / sizeof *out.reserved; i++) ck_assert(!out.reserved[i]);           \
    } while (0)
    EXPECT_ZEROS(remat_plan_summary, remat_session_plan(session, &out));
    EXPECT_ZEROS(remat_products, remat_session_products(session, &out));
    EXPECT_ZEROS(remat_recordings, remat_session_recordings(session, &out));
    EXPECT_ZEROS(remat_bucket, remat_bucket_info(session, 0, &out));
    EXPECT_ZEROS(remat_array, remat_array_info(session, REMAT_PARAM, 0, &out));
    EXPECT_ZEROS(remat_build_info, remat_build(&out));
    EXPECT_ZEROS(remat_builder, remat_builder_info(0, &out));
    EXPECT_ZEROS(remat_step_result, remat_gradients(session, &out));
    EXPECT_ZEROS(remat_step_result, remat_step(session, 0.1, &out));
    EXPECT_ZEROS(remat_step_result, remat_evaluate(session, &out));
    EXPECT_ZEROS(remat_op_report, remat_op_check(rm_op_find("tanh"), rm_op_find_f64("tanh"), &out));
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("abi");
    tcase_add_checked_fixture(tests, set_up, tear_down);
    tcase_add_test(tests, members_that_an_older_struct_lacks_are_zero);
    tcase_add_test(tests, members_that_an_older_op_lacks_stay_zero);
    tcase_add_test(tests, zeros_in_a_longer_struct_are_accepted);
    tcase_add_test(tests, unknown_members_that_are_set_are_refused);
    tcase_add_test(tests, invalid_struct_bytes_are_refused);
    tcase_add_test(tests, defaults_fill_the_callers_struct);
    tcase_add_test(tests, reserved_members_are_zero);
    return run_cases("abi", tests);
}
