/* test_gpus.c: ranks with sessions on GPUs: engine/cuda/device.c and dist/nccl/group_nccl.c together, on one fake of
 * CUDA and NCCL (fake_gpus) that runs the CPU's kernels in its streams. Two ranks on "cuda" give the bits of two ranks
 * on "cpu". Gradients are sent during the backward pass, and no stream touches data that another one has not finished.
 * No real GPU is used. */
#include "engine/abi.h"
#include "tests/dist/ranks.h"

#ifdef HAVE_CUDA_HEADERS

#include "dist/ddp/ddp_state.h"
#include "dist/group/pipe.h"
#include "tests/engine/fake_cuda/stand_ins.h"
#include "tests/engine/random_net.h"
#include "tests/suite.h"

enum { STEPS = 3 };

typedef struct {
    uint64_t seed;
    rm_ddp_config ddp;
    const char *optimizer;
    int micro_steps;
} job;

typedef struct {
    rm_group *host, *gpus;
    rm_ddp *ddp;
    remat_ranks ranks; /* the ddp's table, observed */
    remat_session *session;
} member;

static rm_group *open_one(const char *engine, int rank, int size, rm_kv *store, int gpu) {
    rm_group *group;
    rm_group_config config = {
        .engine = engine, .rank = rank, .size = size, .store = store, .name = engine, .timeout_ms = 60000, .gpu = gpu};
    need_ok(rm_group_open(&config, &group));
    return group;
}

static void use_fakes(int rank, uint64_t seed) {
    char number[16];
    stand_in_reset(seed);
    fake_cuda_machine(2, 13000, (size_t)1 << 30);
    snprintf(number, sizeof number, "%d", rank);
    setenv("LOCAL_RANK", number, 1);
    setenv("REMAT_NCCL_LIBRARY", FAKE_CUDA, 1);
}

static int64_t early; /* number of buckets issued while the GPU was still computing them */

/* Data passed to other ranks must be complete, or have an event. With an event they may be sent while the host does
 * nothing else: without it, NCCL would read what another stream is writing, and the fake reports that. */
static void watch_one(const remat_bucket *b, const float *start) {
    bool made = !fake_in_flight(start, (uint64_t)b->count * sizeof(float));
    need(made || b->ready, "it is still being made, and there is no event");
    early += !made;
}
static remat_status wait_till_sent(rm_ddp *ddp, remat_status status) {
    while (!status && ddp->config.gpus && !rm_group_done(ddp->config.gpus, ddp->issued)) usleep(100);
    return status;
}
static remat_status watch_reduce(void *context, const remat_bucket *b) {
    const remat_ranks *ranks = rm_ddp_ranks(context);
    watch_one(b, b->gradients);
    remat_status status = ranks->reduce(ranks->context, b);
    return b->index % 2 ? status : wait_till_sent(context, status);
}
static remat_status watch_gather(void *context, const remat_bucket *b) {
    const remat_ranks *ranks = rm_ddp_ranks(context);
    watch_one(b, b->parameters);
    remat_status status = ranks->gather(ranks->context, b);
    return b->index % 2 ? status : wait_till_sent(context, status);
}

static void watch(member *m) {
    m->ranks = *rm_ddp_ranks(m->ddp);
    need(m->ranks.context == m->ddp, "the table's context is not the ddp");
    m->ranks.reduce = watch_reduce;
    m->ranks.gather = watch_gather;
}

static void join(member *m, int rank, int size, rm_kv *store, const job *j, bool cuda) {
    *m = (member){.host = open_one("local", rank, size, store, 0)};
    if (cuda) m->gpus = open_one("nccl", rank, size, store, 1 + rank);
    rm_ddp_config config = j->ddp;
    config.group = m->host;
    config.gpus = m->gpus;
    config.rows = 3; /* as in random_net */
    need_ok(rm_ddp_open(&config, &m->ddp));
    watch(m);
}

static void leave(member *m) {
    remat_session_free(m->session);
    rm_ddp_close(m->ddp);
    rm_group_close(m->gpus);
    rm_group_close(m->host);
}

static void open_session(member *m, const job *j, bool cuda) {
    net n;
    remat_config config = REMAT_CONFIG_INIT;
    rng_state = j->seed * 7919 + 3;
    remat_value loss = random_net_with(&n, j->seed % 3 > 0, j->seed % 2 == 1);
    ask_for_outputs(&config, &n);
    config.device = cuda ? "cuda" : "cpu";
    config.threads = 1;
    config.tile = 2;
    config.seed = j->seed;
    config.optimizer = j->optimizer;
    config.micro_steps = j->micro_steps;
    config.strategy = "sqrt";
    config.ranks = &m->ranks;
    need_ok(remat_session_create(n.graph, loss, &config, &m->session));
    remat_graph_free(n.graph);
    need_ok(rm_ddp_broadcast(m->ddp, m->session));
}

static void write_inputs(remat_session *s, uint64_t seed) {
    rng_state = seed;
    for (int64_t i = 0; i < remat_count(s, REMAT_INPUT); i++) {
        remat_array info;
        need_ok(remat_array_info(s, REMAT_INPUT, i, &info));
        const int64_t bound = s->array[REMAT_INPUT][i].bound;
        float *data = malloc(info.bytes);
        for (uint64_t k = 0; k < info.bytes / 4; k++)
            if (info.dtype == REMAT_I32)
                ((int32_t *)data)[k] = (int32_t)draw(bound ? (uint32_t)bound : 3);
            else
                data[k] = draw_real();
        need_ok(remat_write(s, REMAT_INPUT, i, data, info.bytes));
        free(data);
    }
}

typedef struct {
    double number[2 * STEPS];
    float *parameters;
    uint64_t bytes;
} outcome;

static void train(member *m, const job *j, int rank, outcome *o) {
    for (int step = 0; step < STEPS; step++) {
        remat_step_result r;
        for (int k = 0; k < j->micro_steps; k++) {
            write_inputs(m->session, j->seed + (uint64_t)(100 * step + 10 * k + rank));
            need_ok(remat_gradients(m->session, &r));
        }
        o->number[2 * step] = r.loss;
        need_ok(remat_update(m->session, 0.05, &r));
        o->number[2 * step + 1] = r.grad_norm;
    }
    for (int64_t i = 0; i < remat_count(m->session, REMAT_PARAM); i++) {
        remat_array info;
        need_ok(remat_array_info(m->session, REMAT_PARAM, i, &info));
        o->parameters = realloc(o->parameters, o->bytes + info.bytes);
        need_ok(remat_read(m->session, REMAT_PARAM, i, (char *)o->parameters + o->bytes, info.bytes));
        o->bytes += info.bytes;
    }
}

static outcome run_job(int rank, int size, rm_kv *store, const job *j, bool cuda) {
    member m;
    outcome o = {.bytes = 0};
    join(&m, rank, size, store, j, cuda);
    open_session(&m, j, cuda);
    if (cuda) need(rm_plan_summary_of(m.session).workspace_bytes > rm_group_device_bytes(m.gpus), "not in the budget");
    train(&m, j, rank, &o);
    leave(&m);
    return o;
}

static void need_nothing_wrong(void) {
    need(!fake_cuda_violation(), "%s", fake_cuda_violation());
    need(fake_cuda_live() == 0, "%lld things were not given back", (long long)fake_cuda_live());
}

static void train_twice(int rank, int size, rm_kv *store, void *context) {
    const job *j = context;
    use_fakes(rank, j->seed + (uint64_t)rank);
    outcome cpu = run_job(rank, size, store, j, false);
    early = 0;
    outcome cuda = run_job(rank, size, store, j, true);
    need(early > 0, "the host has waited for every bucket");
    need(!memcmp(cpu.number, cuda.number, sizeof cpu.number), "losses or norms have other bits: %g, %g", cpu.number[0],
         cuda.number[0]);
    need(cpu.bytes && cpu.bytes == cuda.bytes && !memcmp(cpu.parameters, cuda.parameters, cpu.bytes),
         "parameters have other bits");
    need_nothing_wrong();
    free(cpu.parameters);
    free(cuda.parameters);
}

static const job jobs[] = {
    {.seed = 1, .optimizer = "sgd", .micro_steps = 1},
    {.seed = 2, .optimizer = "adamw", .micro_steps = 1, .ddp = {.first_bucket_bytes = 64, .bucket_bytes = 300}},
    {.seed = 4, .optimizer = "adam", .micro_steps = 2, .ddp = {.first_bucket_bytes = 64, .bucket_bytes = 300}},
    {.seed = 5, .optimizer = "adamw", .micro_steps = 1, .ddp = {.shard_optimizer = true, .bucket_bytes = 500}},
    {.seed = 7, .optimizer = "sgd", .micro_steps = 1, .ddp = {.fused_update = true, .bucket_bytes = 200}},
};
enum { JOBS = sizeof jobs / sizeof *jobs };

START_TEST(ranks_on_gpus_give_the_bits_of_ranks_on_cpus) { run_ranks(2, train_twice, (void *)(uintptr_t)&jobs[_i]); }
END_TEST

/* ---- Pipelines --------------------------------------------------------------------------------------------------- */

/* NCCL's messages of the fake wait for their receivers, so a wrong order would block all ranks. */
typedef struct {
    uint64_t seed;
    int parts, replicas, micro_steps;
    bool timed, verify, deterministic_world, random_plan;
} pipe_job;

typedef struct {
    rm_group *world, *same, *gpus;
    rm_pipe *pipe;
    rm_ddp *ddp[2]; /* of sessions on the CPU and on GPUs */
} pipe_member;

static void join_pipe(pipe_member *m, int rank, int size, rm_kv *store, int parts, int64_t timeout_ms) {
    rm_group_config like = {.timeout_ms = timeout_ms, .join_ms = 60000, .store = store};
    *m = (pipe_member){.world = open_one("local", rank, size, store, 0)};
    fake_cuda_machine(size, 13000, (size_t)1 << 30);
    need_ok(rm_pipe_open(m->world, parts, &like, &m->pipe, &m->same));
    like.gpu = 1 + rank;
    need_ok(rm_pipe_open_gpus(m->pipe, like, store));
    if (!m->same) return;
    like.engine = "nccl";
    like.name = rank % parts ? "second" : "first";
    like.rank = rank / parts;
    like.size = size / parts;
    need_ok(rm_group_open(&like, &m->gpus));
    need_ok(rm_ddp_open(&(rm_ddp_config){.group = m->same, .rows = 3, .bucket_bytes = 300}, &m->ddp[0]));
    need_ok(
        rm_ddp_open(&(rm_ddp_config){.group = m->same, .gpus = m->gpus, .rows = 3, .bucket_bytes = 300}, &m->ddp[1]));
}

static void leave_pipe(pipe_member *m) {
    for (int i = 0; i < 2; i++) rm_ddp_close(m->ddp[i]);
    rm_group_close(m->gpus);
    rm_group_close(m->same);
    rm_pipe_close(m->pipe);
    rm_group_close(m->world);
}

static remat_config pipe_config(const pipe_job *j, uint64_t seed, const net *n) {
    remat_config config = REMAT_CONFIG_INIT;
    ask_for_outputs(&config, n);
    config.threads = 1;
    config.tile = 2;
    config.seed = seed;
    config.optimizer = "adam";
    config.clip_grad_norm = 0.5;
    config.micro_steps = j->micro_steps;
    config.deterministic_world = j->deterministic_world;
    config.verify_recompute = j->verify;
    config.strategy = "sqrt";
    return config;
}

static void pipe_steps(remat_session *s, const pipe_job *j, uint64_t seed, int replica, double *number) {
    remat_step_result r;
    for (int step = 0; step < STEPS; step++) {
        for (int k = 0; k < j->micro_steps; k++) {
            fill_inputs(s, seed + (uint64_t)(100 * step + 10 * k + replica));
            need_ok(remat_gradients(s, &r));
        }
        number[3 * step] = r.loss;
        need_ok(remat_update(s, 0.01, &r));
        number[3 * step + 1] = r.grad_norm;
        need_ok(remat_evaluate(s, &r));
        number[3 * step + 2] = r.loss;
    }
}

/* The arrays of this rank. */
static void need_same_arrays(remat_session *part, remat_session *whole, remat_kind kind) {
    for (int64_t i = 0; i < remat_count(part, kind); i++) {
        remat_array info;
        need_ok(remat_array_info(part, kind, i, &info));
        if (!info.count) continue;
        char *x = malloc(info.bytes), *y = malloc(info.bytes);
        need_ok(remat_read(part, kind, i, x, info.bytes));
        need_ok(remat_read(whole, kind, i, y, info.bytes));
        need(!memcmp(x, y, info.bytes), "%s (kind %d) has other bits", info.name, (int)kind);
        free(x);
        free(y);
    }
}

/* Every rank trains the whole network on the CPU, and then its part of it on its GPU. False: it cannot be cut. */
static bool train_in_parts(pipe_member *m, int rank, const pipe_job *j, uint64_t seed) {
    net n;
    remat_session *whole, *part;
    double expected[3 * STEPS], number[3 * STEPS];
    int replica = rank / j->parts;
    rng_state = seed * 7919 + 1;
    remat_value loss = random_net_with(&n, j->timed, seed % 2);
    remat_config config = pipe_config(j, seed, &n);
    config.ranks = m->ddp[0] ? rm_ddp_ranks(m->ddp[0]) : NULL;
    need_ok(remat_session_create(n.graph, loss, &config, &whole));
    rng_state = seed + 12345;
    char *steps = j->random_plan ? random_plan(whole) : NULL;
    config.plan_steps = steps;
    config.device = "cuda";
    config.pipeline = rm_pipe_table(m->pipe);
    config.ranks = m->ddp[1] ? rm_ddp_ranks(m->ddp[1]) : NULL;
    remat_status status = remat_session_create(n.graph, loss, &config, &part);
    if (!status) {
        pipe_steps(whole, j, seed, replica, expected);
        pipe_steps(part, j, seed, replica, number);
        need(!memcmp(expected, number, sizeof number), "seed %d: other bits: %.9g, %.9g", (int)seed, expected[0],
             number[0]);
        need_same_arrays(part, whole, REMAT_PARAM);
        need_same_arrays(part, whole, REMAT_OUTPUT);
        need_same_arrays(part, whole, REMAT_OPTIMIZER);
        remat_session_free(part);
    }
    need(!status || strstr(remat_last_error(), "can be cut into at most"), "%s", remat_last_error());
    remat_session_free(whole);
    remat_graph_free(n.graph);
    free(steps);
    return !status;
}

static void train_pipelines(int rank, int size, rm_kv *store, void *context) {
    enum { TRIED = 4 };
    const pipe_job *j = context;
    pipe_member m;
    int cut = 0;
    use_fakes(rank, j->seed + (uint64_t)rank);
    join_pipe(&m, rank, size, store, j->parts, 60000);
    need(rm_pipe_table(m.pipe)->device_bytes > 0, "NCCL's buffers are not counted");
    for (uint64_t i = 0; i < TRIED; i++) cut += train_in_parts(&m, rank, j, j->seed + i);
    need(2 * cut >= TRIED, "only %d networks could be cut", cut);
    leave_pipe(&m);
    need_nothing_wrong();
}

static const pipe_job pipe_jobs[] = {
    {.seed = 10, .parts = 2, .replicas = 1, .micro_steps = 1, .timed = true},
    {.seed = 20, .parts = 2, .replicas = 1, .micro_steps = 1, .timed = true, .random_plan = true, .verify = true},
    {.seed = 30, .parts = 3, .replicas = 1, .micro_steps = 1, .timed = true, .random_plan = true},
    {.seed = 40, .parts = 2, .replicas = 1, .micro_steps = 4, .verify = true, .deterministic_world = true},
    {.seed = 50, .parts = 3, .replicas = 1, .micro_steps = 4},
    {.seed = 60, .parts = 2, .replicas = 2, .micro_steps = 1, .timed = true},
    {.seed = 70, .parts = 2, .replicas = 2, .micro_steps = 2},
};
enum { PIPE_JOBS = sizeof pipe_jobs / sizeof *pipe_jobs };

START_TEST(pipelines_on_gpus_have_the_bits_of_one_rank) {
    const pipe_job *j = &pipe_jobs[_i];
    run_ranks(j->parts * j->replicas, train_pipelines, (void *)(uintptr_t)j);
}
END_TEST

/* ---- What fails -------------------------------------------------------------------------------------------------- */

/* A GPU breaks in the second step, when the host may already have issued gradients that will never be computed. (With
 * one rank only: the fake NCCL waits in a collective without a limit.) */
static void breaks(int rank, int size, rm_kv *store, void *context) {
    member m;
    remat_step_result r;
    const job *j = &jobs[1];
    use_fakes(rank, j->seed);
    join(&m, rank, size, store, j, true);
    open_session(&m, j, true);
    const double start = seconds();
    alarm(280);
    write_inputs(m.session, 1);
    need_ok(remat_step(m.session, 0.05, &r));
    write_inputs(m.session, 2);
    fake_cuda_break_at(*(const int *)context);
    need(remat_step(m.session, 0.05, &r), "nothing fails");
    need(strstr(remat_last_error(), "error 700") || strstr(remat_last_error(), "a fault that a test has asked for"),
         "%s", remat_last_error());
    leave(&m);
    need(seconds() - start < 20, "only after %.1f s", seconds() - start);
}
START_TEST(broken_gpu_is_an_error) {
    static const int work[] = {1, 7, 20, 40};
    run_ranks(1, breaks, (void *)&work[_i]);
}
END_TEST

/* Rank 1 dies, or does nothing, in the second step, when the stream of rank 0 already waits for it, or for its gradient. */
static void loses_rank_1(int rank, int size, rm_kv *store, void *context) {
    enum { TIMEOUT_MS = 2500 };
    const bool dies = context != NULL;
    static const pipe_job job = {.seed = 10, .parts = 2, .micro_steps = 1};
    net n;
    pipe_member m;
    remat_session *s;
    remat_step_result r;
    use_fakes(rank, 1);
    join_pipe(&m, rank, size, store, 2, dies ? 60000 : TIMEOUT_MS);
    rng_state = 10 * 7919 + 1;
    remat_value loss = random_net_with(&n, true, false);
    remat_config config = pipe_config(&job, 10, &n);
    config.device = "cuda";
    config.pipeline = rm_pipe_table(m.pipe);
    need_ok(remat_session_create(n.graph, loss, &config, &s));
    fill_inputs(s, 10);
    need_ok(remat_step(s, 0.01, &r));
    let_others_finish(store, rank, size, 1);
    if (rank == 1 && dies) raise(SIGKILL);
    const double start = seconds();
    remat_status given_up = REMAT_OK;
    while (rank == 1 && !given_up) {
        nap_ms(50);
        given_up = config.pipeline->poll(config.pipeline->context);
    }
    need_peer(remat_step(s, 0.01, &r), "rank 1");
    need(seconds() - start < 20, "only after %.1f s", seconds() - start);
    remat_session_free(s);
    remat_graph_free(n.graph);
    leave_pipe(&m);
    need_nothing_wrong();
}
START_TEST(lost_rank_of_a_pipeline_is_named) {
    pid_t pid[MOST_RANKS];
    start_ranks(2, loses_rank_1, _i ? "dies" : NULL, pid);
    ck_assert_int_eq(end_of(pid[0]), 0);
    ck_assert_int_eq(end_of(pid[1]), _i ? 128 + SIGKILL : 0);
}
END_TEST

/* ---- What is refused --------------------------------------------------------------------------------------------- */

static void is_refused(int rank, int size, rm_kv *store, void *context) {
    member m;
    rm_ddp *ddp = NULL;
    (void)context;
    use_fakes(rank, 1);
    m.host = open_one("local", rank, size, store, 0);
    m.gpus = open_one("nccl", rank, size, store, 1 + rank);
    rm_ddp_config config = {.group = m.host, .gpus = m.gpus, .rows = 3, .compress = RM_COMPRESS_BF16};
    need(rm_ddp_open(&config, &ddp) == REMAT_MISSING, "compressed gradients on GPUs are accepted");
    need(strstr(remat_last_error(), "on GPUs"), "%s", remat_last_error());
    config.compress = RM_COMPRESS_NONE;
    config.deterministic_world = true;
    need(rm_ddp_open(&config, &ddp) == REMAT_MISSING, "deterministic_world sums on GPUs are accepted");
    rm_group_close(m.gpus);
    rm_group_close(m.host);
    need_nothing_wrong();
}
START_TEST(unsupported_settings_are_refused) { run_ranks(2, is_refused, NULL); }
END_TEST

/* The session is on one device, but the ranks sum in another device's memory. */
static void does_not_match(int rank, int size, rm_kv *store, void *context) {
    member m;
    net n;
    job j = jobs[0];
    (void)context;
    use_fakes(rank, 1);
    join(&m, rank, size, store, &j, false);
    rng_state = 10;
    remat_value loss = random_net_with(&n, true, false);
    remat_config config = REMAT_CONFIG_INIT;
    config.device = "cuda";
    config.ranks = rm_ddp_ranks(m.ddp);
    need(remat_session_create(n.graph, loss, &config, &m.session) == REMAT_MISSING, "it is accepted");
    need(strstr(remat_last_error(), "memory of the device \"cpu\""), "%s", remat_last_error());
    m.session = NULL;
    remat_graph_free(n.graph);
    leave(&m);
    need_nothing_wrong();
}
START_TEST(mismatched_memory_is_refused) { run_ranks(2, does_not_match, NULL); }
END_TEST

/* A pipeline whose messages are in host memory, for a session on a GPU, and the other way round. */
static void sends_from_elsewhere(int rank, int size, rm_kv *store, void *context) {
    net n;
    pipe_member m;
    remat_session *s;
    static const pipe_job job = {.seed = 10, .parts = 2, .micro_steps = 1};
    (void)context;
    use_fakes(rank, 1);
    join_pipe(&m, rank, size, store, 2, 60000);
    rng_state = 10 * 7919 + 1;
    remat_value loss = random_net_with(&n, true, false);
    remat_config config = pipe_config(&job, 10, &n);
    remat_pipeline pipeline = *rm_pipe_table(m.pipe);
    config.pipeline = &pipeline;
    need(remat_session_create(n.graph, loss, &config, &s) == REMAT_MISSING, "it is accepted");
    need(strstr(remat_last_error(), "memory of the device \"cuda\""), "%s", remat_last_error());
    config.device = "cuda";
    pipeline.give_send = NULL;
    need(remat_session_create(n.graph, loss, &config, &s) == REMAT_INVALID, "it is accepted");
    need(strstr(remat_last_error(), "lacks give_send"), "%s", remat_last_error());
    pipeline.device = NULL;
    need(remat_session_create(n.graph, loss, &config, &s) == REMAT_MISSING, "it is accepted");
    need(strstr(remat_last_error(), "memory of the device \"cpu\""), "%s", remat_last_error());
    remat_graph_free(n.graph);
    leave_pipe(&m);
    need_nothing_wrong();
}
START_TEST(pipeline_on_another_device_is_refused) { run_ranks(2, sends_from_elsewhere, NULL); }
END_TEST

int main(void) {
    TCase *all = tcase_create("gpus");
    tcase_add_loop_test(all, ranks_on_gpus_give_the_bits_of_ranks_on_cpus, 0, JOBS);
    tcase_add_loop_test(all, broken_gpu_is_an_error, 0, 4);
    tcase_add_test(all, unsupported_settings_are_refused);
    tcase_add_test(all, mismatched_memory_is_refused);
    TCase *pipelines = tcase_create("pipelines");
    tcase_add_loop_test(pipelines, pipelines_on_gpus_have_the_bits_of_one_rank, 0, PIPE_JOBS);
    tcase_add_loop_test(pipelines, lost_rank_of_a_pipeline_is_named, 0, 2);
    tcase_add_test(pipelines, pipeline_on_another_device_is_refused);
    return run_cases("dist/gpus", all, pipelines);
}

#else

#include <stdio.h>

int main(void) { return puts("skipped: needs CUDA's and NCCL's headers"), 77; }

#endif
