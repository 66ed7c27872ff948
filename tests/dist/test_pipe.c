/* test_pipe.c: messages between two ranks (group.h), and jobs whose ranks are replicas of a pipeline (pipe.h,
 * remat_job_pipeline). Ranks are processes; those of MPI are started by mpirun. */
#include "engine/remat.h"

#include <sys/mman.h>

#include "memory/host.h"
#include "tests/dist/messages.h"
#include "tests/dist/mpirun.h"
#include "tests/suite.h"

/* ---- Messages --------------------------------------------------------------------------------------------------- */

/* Each opens groups of the engine in `context`. */
static void go_round_once(int rank, int size, rm_kv *store, void *context) {
    rm_group *group = open_group(context, rank, size, store);
    go_round(group);
    rm_group_close(group);
}

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

/* A part of the world: the ranks from `first` on, `stride` apart. */
static rm_group *open_some(const char *engine, const char *name, int rank, int first, int stride, int64_t timeout_ms,
                           rm_kv *store) {
    rm_group *group;
    rm_group_config config = {.engine = engine,
                              .name = name,
                              .rank = (rank - first) / stride,
                              .size = 2,
                              .store = store,
                              .timeout_ms = timeout_ms,
                              .join_ms = 60000,
                              .first = first,
                              .stride = stride};
    need_ok(rm_group_open(&config, &group));
    return group;
}

/* In two parts of a world of 4, one rank sends nothing in time, but lives. */
static void wait_for_a_late_one(int rank, int size, rm_kv *store, void *context) {
    char name[32], sender[32], receiver[32];
    snprintf(name, sizeof name, "part%d", rank % 2);
    snprintf(sender, sizeof sender, "rank %d ", 2 + rank % 2);
    snprintf(receiver, sizeof receiver, "%d", rank % 2);
    rm_group *group = open_some(context, name, rank, rank % 2, 2, 300, store);
    wait_in_vain(group, sender, receiver);
    rm_group_close(group);
    (void)size;
}

/* Rank 2 waits for rank 1 longer than rank 1 waits for rank 0, which sends nothing. */
static void wait_for_the_first_of_a_chain(int rank, int size, rm_kv *store, void *context) {
    rm_group *group;
    rm_group_config config = {
        .engine = context, .rank = rank, .size = size, .store = store, .timeout_ms = 3000, .join_ms = 60000};
    char byte;
    need_ok(rm_group_open(&config, &group));
    need_ok(rm_group_run(group, &(rm_collective){.kind = RM_BARRIER}));
    if (rank == 1) nap_ms(500);
    if (rank > 0) need_peer(rm_group_receive(group, rank - 1, &byte, 1), "rank 0 ");
    remat_status status = REMAT_OK;
    for (int i = 0; i < 4000 && rank == 0 && !status; i++, nap_ms(50)) status = rm_group_poll(group);
    if (rank == 0) need_peer(status, "rank 0 ");
    rm_group_close(group);
}

/* Two pipelines of two ranks: sums over those at the same place run while messages are exchanged. */
static void do_both(int rank, int size, rm_kv *store, void *context) {
    enum { N = 100000, ROUNDS = 30 };
    static float mine[N], theirs[N], sum[N];
    char name[2][32];
    int place = rank % 2, pipeline = rank / 2;
    snprintf(name[0], sizeof name[0], "pipeline%d", pipeline);
    snprintf(name[1], sizeof name[1], "replicas%d", place);
    rm_group *pipe = open_some(context, name[0], rank, 2 * pipeline, 1, 60000, store);
    rm_group *same = open_some(context, name[1], rank, place, 2, 60000, store);
    for (int k = 0; k < ROUNDS; k++) {
        rm_ticket ticket;
        for (int i = 0; i < N; i++) sum[i] = (float)(rank + k), mine[i] = (float)(10 * rank + k);
        rm_collective what = {.kind = RM_ALL_REDUCE, .count = N, .in = sum, .out = sum};
        need_ok(rm_group_issue(same, &what, &ticket));
        if (place == k % 2) need_ok(rm_group_send(pipe, 1 - place, mine, sizeof mine));
        if (place != k % 2) need_ok(rm_group_receive(pipe, 1 - place, theirs, sizeof theirs));
        need_ok(rm_group_wait(same, ticket));
        for (int i = 0; i < N; i++) need(sum[i] == (float)(2 * place + 2 + 2 * k), "sum %d", k);
        for (int i = 0; i < N && place != k % 2; i++) need(theirs[i] == (float)(10 * (rank ^ 1) + k), "message %d", k);
    }
    need_ok(
        rm_group_run(pipe, &(rm_collective){.kind = RM_BARRIER})); /* closing loses messages that are on their way */
    rm_group_close(same);
    rm_group_close(pipe);
    (void)size;
}

static const struct {
    const char *name;
    rank_body *run;
    int size;
} scenarios[] = {{"messages_arrive_whole_and_in_order", go_round_once, 3},
                 {"sender_runs_ahead", send_ahead, 2},
                 {"late_rank_is_named", wait_for_a_late_one, 4},
                 {"first_of_a_chain_of_late_ranks_is_named", wait_for_the_first_of_a_chain, 3},
                 {"messages_and_sums_at_once", do_both, 4}};
enum { SCENARIOS = sizeof scenarios / sizeof *scenarios };

START_TEST(messages_of_local) { run_ranks(scenarios[_i].size, scenarios[_i].run, (void *)"local"); }
END_TEST
#ifdef REMAT_HAVE_GLOO
START_TEST(messages_of_gloo) { run_ranks(scenarios[_i].size, scenarios[_i].run, (void *)"gloo"); }
END_TEST
#endif
#ifdef REMAT_HAVE_MPI
/* A rank that mpirun started: argv is mpi SCENARIO PATH. */
static int mpi_rank(char **argv) {
    int rank, size, i = atoi(argv[2]);
    rm_kv *store = store_under_mpi(argv[3], &rank, &size);
    scenarios[i].run(rank, size, store, (void *)"mpi");
    return mpi_rank_is_well(store, rank, size);
}

START_TEST(messages_of_mpi) {
    static char said[20000];
    char number[16];
    snprintf(number, sizeof number, "%d", _i);
    int well = well_under_mpi(scenarios[_i].size, number, said, sizeof said);
    ck_assert_msg(well == scenarios[_i].size, "%s: %d ranks are well:\n%s", scenarios[_i].name, well, said);
}
END_TEST
#endif

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
        alarm(280);
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

int main(int argc, char **argv) {
#ifdef REMAT_HAVE_MPI
    if (argc == 4 && !strcmp(argv[1], "mpi")) return mpi_rank(argv);
    if (!find_own_program()) return 1;
#endif
    (void)argc, (void)argv;
    TCase *tests = tcase_create("pipe");
    tcase_set_timeout(tests, 300);
    tcase_add_loop_test(tests, messages_of_local, 0, SCENARIOS);
#ifdef REMAT_HAVE_GLOO
    tcase_add_loop_test(tests, messages_of_gloo, 0, SCENARIOS);
#endif
#ifdef REMAT_HAVE_MPI
    if (have_mpirun())
        tcase_add_loop_test(tests, messages_of_mpi, 0, SCENARIOS);
    else
        puts("no mpirun here: the engine mpi is not tested");
#endif
    tcase_add_test(tests, a_rank_that_left_is_named);
    tcase_add_test(tests, replicas_of_a_pipeline_train_as_ranks_do);
    return run_cases("pipe", tests);
}
