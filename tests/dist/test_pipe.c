/* test_pipe.c: messages between two ranks (group.h), and jobs whose ranks are replicas of a pipeline (pipe.h,
 * remat_job_pipeline). Ranks are processes. */
#include "engine/remat.h"

#include <sys/mman.h>

#include "memory/host.h"
#include "tests/dist/ranks.h"

/* ---- Messages --------------------------------------------------------------------------------------------------- */

enum { LONG = 3 * 1024 * 1024 + 7 }; /* bytes: several times what the ring holds */

static void fill(unsigned char *data, uint64_t bytes, uint64_t seed) {
    for (uint64_t i = 0; i < bytes; i++) data[i] = (unsigned char)next_random(&seed);
}

/* Each rank sends to the next, and receives from the one before. Rank 0 sends first, the others receive first. */
static void go_round(int rank, int size, rm_kv *store, void *context) {
    static const uint64_t sizes[] = {1, 0, 64, 4096, LONG, 3};
    rm_group *group = open_group(context, rank, size, store);
    unsigned char *mine = malloc(LONG), *theirs = malloc(LONG), *wanted = malloc(LONG);
    int next = (rank + 1) % size, before = (rank + size - 1) % size;
    for (uint64_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        fill(mine, sizes[k], 100 * k + (uint64_t)rank);
        fill(wanted, sizes[k], 100 * k + (uint64_t)before);
        if (rank == 0) need_ok(rm_group_send(group, next, mine, sizes[k]));
        need_ok(rm_group_receive(group, before, theirs, sizes[k]));
        if (rank != 0) need_ok(rm_group_send(group, next, mine, sizes[k]));
        need(!memcmp(theirs, wanted, sizes[k]), "message %d", (int)k);
    }
    free(mine), free(theirs), free(wanted);
    need_ok(rm_group_run(group, &(rm_collective){.kind = RM_BARRIER}));
    rm_group_close(group);
}

static const char *const engines[] = {
    "local",
#ifdef REMAT_HAVE_GLOO
    "gloo",
#endif
};
enum { ENGINES = sizeof engines / sizeof *engines };

START_TEST(messages_arrive_whole_and_in_order) { run_ranks(3, go_round, (void *)engines[_i]); }
END_TEST

/* Many small messages are sent before the first is received. */
static void send_ahead(int rank, int size, rm_kv *store, void *context) {
    rm_group *group = open_group(context, rank, size, store);
    for (int k = 0; k < 1000; k++) {
        int32_t number = k;
        if (rank == 0) need_ok(rm_group_send(group, 1, &number, sizeof number));
    }
    need_ok(rm_group_run(group, &(rm_collective){.kind = RM_BARRIER}));
    for (int k = 0; k < 1000 && rank == 1; k++) {
        int32_t number = -1;
        need_ok(rm_group_receive(group, 0, &number, sizeof number));
        need(number == k, "%d", number);
    }
    need_ok(rm_group_run(group, &(rm_collective){.kind = RM_BARRIER}));
    rm_group_close(group);
}

START_TEST(a_sender_runs_ahead) { run_ranks(2, send_ahead, (void *)engines[_i]); }
END_TEST

static void wait_for_one_that_left(int rank, int size, rm_kv *store, void *context) {
    rm_group *group = open_group("local", rank, size, store);
    char byte;
    if (rank == 0) need_peer(rm_group_receive(group, 1, &byte, 1), "left the group");
    if (rank == 0) need_peer(rm_group_send(group, 1, &byte, 1), "left the group"); /* the first failure is final */
    need(rm_group_send(group, rank, &byte, 1) != REMAT_OK, "a message to itself");
    rm_group_close(group);
    (void)context;
}

START_TEST(a_rank_that_left_is_named) { run_ranks(2, wait_for_one_that_left, NULL); }
END_TEST

/* Ranks 4 and 6 of a world; one sends nothing in time, but lives. */
static void wait_for_a_late_one(int rank, int size, rm_kv *store, void *context) {
    rm_group *group;
    rm_group_config config = {
        .engine = "local", .rank = rank, .size = size, .store = store, .timeout_ms = 300, .first = 4, .stride = 2};
    char byte;
    need_ok(rm_group_open(&config, &group));
    if (rank == 1) need_peer(rm_group_receive(group, 0, &byte, 1), "rank 4 on ");
    if (rank == 1) need(strstr(remat_last_error(), "send to rank 6"), "%s", remat_last_error());
    if (rank == 0) nap_ms(600);
    rm_group_close(group);
    (void)context;
}

START_TEST(a_rank_that_sends_nothing_is_named) { run_ranks(2, wait_for_a_late_one, NULL); }
END_TEST

/* ---- Replicas of a pipeline -------------------------------------------------------------------------------------- */

enum { LAYERS = 2, HIDDEN = 6, TIMESTEPS = 40, ROWS = 2, STEPS = 5, MOST_PARAMS = 16 };

static remat_value build(remat_graph *g) {
    const int64_t shape[] = {TIMESTEPS, ROWS, HIDDEN}, w[] = {4 * HIDDEN, HIDDEN}, square[] = {HIDDEN, HIDDEN};
    remat_value x = remat_input(g, "x", REMAT_F32, REMAT_SEQUENCE, 3, shape);
    remat_value y = remat_input(g, "y", REMAT_F32, REMAT_SEQUENCE, 3, shape), h = x;
    for (int layer = 0; layer < LAYERS; layer++) {
        char name[2][16];
        snprintf(name[0], sizeof name[0], "ih.%d", layer);
        snprintf(name[1], sizeof name[1], "hh.%d", layer);
        remat_value w_ih = remat_param(g, name[0], 2, w, remat_init_uniform(0.3));
        remat_value w_hh = remat_param(g, name[1], 2, w, remat_init_uniform(0.3));
        h = remat_lstm(g, h, w_ih, w_hh, REMAT_NONE, REMAT_NONE);
    }
    return remat_mse(g, remat_linear(g, h, remat_param(g, "head", 2, square, remat_init_uniform(0.3)), REMAT_NONE), y);
}

/* What a job leaves: the sum of each parameter's bits, from the ranks that hold it, and the last loss. */
typedef struct {
    char place[200];
    int world, pipeline;
    double loss[MOST_RANKS];
    uint64_t bits[MOST_RANKS][MOST_PARAMS];
} outcome;

static void write_rows(remat_session *s, int replica) {
    float data[TIMESTEPS * ROWS * HIDDEN];
    for (int input = 0; input < 2; input++) {
        uint64_t seed = (uint64_t)(10 * replica + input);
        for (size_t i = 0; i < sizeof data / sizeof *data; i++)
            data[i] = (float)(next_random(&seed) >> 40) / (float)(1 << 24) - 0.5f;
        need_ok(remat_write(s, REMAT_INPUT, input, data, sizeof data));
    }
}

static void note(remat_session *s, uint64_t *bits) {
    for (int64_t i = 0; i < remat_count(s, REMAT_PARAM); i++) {
        remat_array info;
        float data[4 * HIDDEN * HIDDEN];
        need_ok(remat_array_info(s, REMAT_PARAM, i, &info));
        if (!info.count) continue;
        need_ok(remat_read(s, REMAT_PARAM, i, data, info.bytes));
        for (int64_t k = 0; k < info.count; k++) {
            uint32_t word;
            memcpy(&word, &data[k], sizeof word);
            bits[i] = bits[i] * 0x100000001b3u + word + 1;
        }
    }
}

static void train(int rank, outcome *out) {
    remat_job *job;
    remat_job_config job_config = {.struct_bytes = sizeof job_config,
                                   .backend = "local",
                                   .init_method = out->place,
                                   .world_size = out->world,
                                   .rank = rank,
                                   .pipeline = out->pipeline};
    need_ok(remat_join(&job_config, &job));
    remat_graph *g;
    remat_session *s;
    remat_step_result r;
    need_ok(remat_graph_create(&g));
    remat_value loss = build(g);
    remat_config config = REMAT_CONFIG_INIT;
    config.optimizer = "adam";
    config.clip_grad_norm = 0.1;
    config.strategy = "sqrt";
    config.tile = 5;
    config.threads = 1;
    config.ranks = remat_job_ranks(job);
    config.pipeline = remat_job_pipeline(job);
    need((config.pipeline != NULL) == (out->pipeline > 1), "a pipeline's table");
    need_ok(remat_session_create(g, loss, &config, &s));
    need_ok(remat_job_begin(job, s));
    write_rows(s, remat_job_rank(job));
    for (int step = 0; step < STEPS; step++) need_ok(remat_step(s, 0.01, &r));
    out->loss[rank] = r.loss;
    note(s, out->bits[rank]);
    remat_session_free(s);
    remat_graph_free(g);
    remat_leave(job);
}

static void run_job(int world, int pipeline, outcome *out) {
    pid_t pid[MOST_RANKS];
    *out = (outcome){.world = world, .pipeline = pipeline};
    snprintf(out->place, sizeof out->place, "file://%s", meeting_place());
    fflush(NULL);
    for (int rank = 0; rank < world; rank++) {
        pid[rank] = fork();
        ck_assert_int_ge(pid[rank], 0);
        if (pid[rank]) continue;
        alarm(120);
        train(rank, out);
        _exit(0);
    }
    int failed = 0;
    for (int rank = 0; rank < world; rank++) failed += end_of(pid[rank]) != 0;
    ck_assert_msg(!failed, "%d of %d ranks failed; their messages are above", failed, world);
}

/* Two replicas of two ranks end with the bits of two ranks that hold the whole network. */
START_TEST(replicas_of_a_pipeline_train_as_ranks_do) {
    outcome *out = mmap(NULL, 3 * sizeof *out, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert(out != MAP_FAILED);
    run_job(2, 1, &out[0]);
    run_job(4, 2, &out[1]);
    for (int i = 0; i < 2 * LAYERS + 1; i++) {
        int holders = 0;
        for (int rank = 0; rank < 4; rank++) {
            if (!out[1].bits[rank][i]) continue;
            holders++;
            ck_assert_msg(out[1].bits[rank][i] == out[0].bits[0][i], "parameter %d differs on rank %d", i, rank);
        }
        ck_assert_int_eq(holders, 2);
    }
    for (int rank = 0; rank < 4; rank++) ck_assert(out[1].loss[rank] == out[0].loss[0]);
    run_job(2, 2, &out[2]); /* one replica */
    ck_assert(out[2].loss[0] == out[2].loss[1] && out[2].loss[0] > 0);
    munmap(out, 3 * sizeof *out);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("pipe");
    TCase *tests = tcase_create("pipe");
    tcase_set_timeout(tests, 120);
    tcase_add_loop_test(tests, messages_arrive_whole_and_in_order, 0, ENGINES);
    tcase_add_loop_test(tests, a_sender_runs_ahead, 0, ENGINES);
    tcase_add_test(tests, a_rank_that_left_is_named);
    tcase_add_test(tests, a_rank_that_sends_nothing_is_named);
    tcase_add_test(tests, replicas_of_a_pipeline_train_as_ranks_do);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
