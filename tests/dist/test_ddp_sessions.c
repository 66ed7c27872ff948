/* test_ddp_sessions.c: training on ranks that are processes of this host, with any plan and any sharding. Parameters
 * have the same bits on all ranks, gradients equal those without recomputing, and a job of many ranks gives the result
 * of one rank with the whole batch. The first command below tries a thousand random networks instead of sixty and takes
 * some minutes:
 *
 *     REMAT_LONG_TESTS=1 build/release/tests/dist_test_ddp_sessions
 */
#include "tests/dist/ddp_sessions.h"
#include "engine/abi.h"

#include <math.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "tests/cases.h"
#include "tests/engine/random_net.h"
#include "tests/suite.h"

/* ---- Many ranks give the result of one rank ---------------------------------------------------------------------- */

typedef struct {
    const char *what;
    rm_ddp_config ddp;
    int micro_steps;
    bool unequal; /* rank 0 has one row, the others have three */
    double clip, tolerance;
    const char *optimizer, *train_only;
} variant;

static const variant variants[] = {
    {.what = "plain", .tolerance = 1e-5},
    {.what = "buckets of all sizes", .ddp = {.first_bucket_bytes = 64, .bucket_bytes = 600}, .tolerance = 1e-5},
    {.what = "sharded", .ddp = {.shard_optimizer = true, .bucket_bytes = 700}, .optimizer = "adam", .tolerance = 1e-4},
    {.what = "sharded and clipped", .ddp = {.shard_optimizer = true}, .clip = 0.05, .tolerance = 1e-5},
    {.what = "fused", .ddp = {.fused_update = true, .first_bucket_bytes = 100, .bucket_bytes = 300}, .tolerance = 1e-5},
    {.what = "micro steps", .micro_steps = 2, .tolerance = 1e-5},
    {.what = "deterministic_world", .ddp = {.deterministic_world = true}, .micro_steps = 2, .tolerance = 1e-5},
    {.what = "unequal batches", .unequal = true, .tolerance = 1e-5},
    {.what = "fp16", .ddp = {.compress = RM_COMPRESS_FP16}, .tolerance = 2e-3},
    {.what = "frozen",
     .train_only = "out.,lstm.weight_ih_l0",
     .ddp = {.first_bucket_bytes = 64, .bucket_bytes = 600},
     .tolerance = 1e-5},
    {.what = "frozen, sharded",
     .train_only = "lstm.weight_hh_l1,lstm.bias_ih_l0",
     .ddp = {.shard_optimizer = true, .bucket_bytes = 64},
     .optimizer = "adam",
     .tolerance = 1e-4},
    {.what = "frozen, deterministic_world",
     .train_only = "out.",
     .ddp = {.deterministic_world = true},
     .micro_steps = 2,
     .tolerance = 1e-5},
    {.what = "bf16, sharded", .ddp = {.compress = RM_COMPRESS_BF16, .shard_optimizer = true}, .tolerance = 1e-2},
};

enum { VARIANTS = sizeof variants / sizeof *variants, UPDATES = 5 };

static remat_config config_of(const variant *v) {
    remat_config config = REMAT_CONFIG_INIT;
    config.threads = 1;
    config.tile = 3;
    config.optimizer = v->optimizer ? v->optimizer : "sgd";
    config.clip_grad_norm = v->clip;
    config.train_only = v->train_only;
    return config;
}

/* `rows` rows per micro step, from `first`; an update's batch has `all` rows per micro step, one micro step after
 * another. */
static remat_step_result update_once(remat_session *s, const variant *v, int step, int64_t first, int64_t rows,
                                     int64_t all) {
    remat_step_result r;
    int micro = v->micro_steps ? v->micro_steps : 1;
    for (int t = 0; t < micro; t++) {
        write_rows(s, step, T, first + all / micro * remat_micro_shard(t, micro, v->ddp.deterministic_world), rows);
        if (micro == 1 && v->ddp.fused_update)
            need_ok(remat_step(s, 0.1, &r));
        else
            need_ok(remat_gradients(s, &r));
    }
    if (!v->ddp.fused_update) need_ok(remat_update(s, 0.1, &r));
    return r;
}

/* One rank with the rows of all ranks. */
static float *alone(const variant *v, int64_t all, double *loss, int64_t *count) {
    remat_config config = config_of(v);
    variant one = {.micro_steps = 0};
    remat_session *s = open_lstm(&config, all, T, H, false);
    for (int step = 0; step < UPDATES; step++) loss[step] = update_once(s, &one, step, 0, all, all).loss;
    float *parameters = read_all(s, REMAT_PARAM, count);
    remat_session_free(s);
    return parameters;
}

static bool is_trained(const char *name, const char *train_only) {
    bool trained = !train_only;
    for (const char *at = train_only; at && *at; at += *at == ',') {
        size_t length = strcspn(at, ",");
        trained |= !strncmp(name, at, length);
        at += length;
    }
    return trained;
}

/* Only trained parameters, whose arrays begin at multiples of 64 bytes, and only their gradients are in buckets. */
static void need_trained_alone_in_buckets(const member *m, const char *train_only) {
    int64_t sent = 0, least = 0, most = 0, trained = 0;
    for (int64_t b = 0; b < remat_bucket_count(m->session); b++) sent += rm_bucket_at(m->session, b).count;
    for (int64_t i = 0; i < remat_count(m->session, REMAT_PARAM); i++) {
        remat_array array;
        need_ok(remat_array_info(m->session, REMAT_PARAM, i, &array));
        if (!is_trained(array.name, train_only)) continue;
        trained++;
        least += array.count;
        most += (array.count + 15) / 16 * 16 + 16 * m->size;
    }
    need(remat_count(m->session, REMAT_GRADIENT) == trained, "%ld trained", (long)trained);
    need(least <= sent && sent <= most, "buckets of %ld elements, for %ld that are trained", (long)sent, (long)least);
}

static void train_together(int rank, int size, rm_kv *store, void *context) {
    const variant *v = context;
    const int micro = v->micro_steps ? v->micro_steps : 1;
    const int64_t rows = v->unequal && rank ? 3
                         : v->unequal       ? 1
                                            : 2,
                  first = v->unequal ? (rank ? 3 * rank - 2 : 0) : 2 * rank;
    const int64_t all = v->unequal ? 3 * size - 2 : 2 * size * micro;
    static const char *const strategies[] = {"none", "segments", "lean", "sqrt"};
    double loss[UPDATES];
    int64_t count, same;
    rm_ddp_config ddp = v->ddp;
    ddp.rows = rows;
    float *want = alone(v, all, loss, &count);
    member m = join(rank, size, store, &ddp);
    remat_config config = config_of(v);
    config.ranks = rm_ddp_ranks(m.ddp);
    config.micro_steps = v->micro_steps;
    config.deterministic_world = v->ddp.deterministic_world;
    config.strategy = strategies[rank % 4]; /* each rank has another strategy */
    config.segments = 2;
    config.seed = rank ? 77 : 0; /* all ranks start with rank 0's parameters */
    m.session = open_lstm(&config, rows, T, H, false);
    need_ok(rm_ddp_broadcast(m.ddp, m.session));
    need_trained_alone_in_buckets(&m, v->train_only);
    for (int step = 0; step < UPDATES; step++) {
        double got = update_once(m.session, v, step, first, rows, all).loss;
        need(fabs(got - loss[step]) <= v->tolerance * loss[step], "%s, step %d: loss %.9g, not %.9g", v->what, step,
             got, loss[step]);
        float single = (float)got;
        need_same(m.group, &single, 1, "losses");
    }
    float *parameters = read_all(m.session, REMAT_PARAM, &same);
    need(same == count, "%ld parameters", (long)same);
    need_same(m.group, parameters, count, "parameters");
    for (int64_t i = 0; i < count; i++)
        need(fabs((double)parameters[i] - (double)want[i]) <= v->tolerance, "%s: parameter %ld is %.9g, not %.9g",
             v->what, (long)i, (double)parameters[i], (double)want[i]);
    free(parameters);
    free(want);
    leave(&m);
}

START_TEST(many_ranks_give_the_result_of_one) {
    for (int size = 2; size <= 4; size++)
        if (!variants[_i].ddp.deterministic_world || size != 3) run_ranks(size, train_together, (void *)&variants[_i]);
}
END_TEST

/* ---- Every strategy ---------------------------------------------------------------------------------------------- */

static float *gradients_by(const member *m, const char *strategy, uint64_t budget, uint64_t *needed, int64_t *count) {
    enum { STEPS = 60 };
    counter c;
    remat_ranks table = counted(&c, rm_ddp_ranks(m->ddp));
    remat_config config = REMAT_CONFIG_INIT;
    config.threads = 1;
    config.tile = 3;
    config.strategy = strategy;
    config.segments = 5;
    config.memory_budget = budget;
    config.ranks = &table;
    remat_session *s = open_lstm(&config, 2, STEPS, 16, true);
    remat_step_result r;
    write_rows(s, 0, STEPS, 2 * m->rank, 2);
    need_ok(remat_gradients(s, &r));
    for (int64_t b = 0; b < remat_bucket_count(s); b++)
        need(c.reduced[b] == 1, "%s: bucket %ld was reduced %d times", strategy, (long)b, c.reduced[b]);
    need(remat_bucket_count(s) > 2, "only %ld buckets", (long)remat_bucket_count(s));
    *needed = rm_plan_summary_of(s).budgeted_bytes;
    if (budget || !strcmp(strategy, "segments")) need(r.recomputed_stages > 0, "%s recomputed nothing", strategy);
    float *gradients = read_all(s, REMAT_GRADIENT, count);
    remat_session_free(s);
    return gradients;
}

static void by_every_strategy(int rank, int size, rm_kv *store, void *context) {
    static const char *const strategies[] = {"segments", "sqrt", "lean", "optimal"};
    uint64_t most, needed = 0;
    int64_t count;
    (void)context;
    rm_ddp_config ddp = {.rows = 2, .first_bucket_bytes = 500, .bucket_bytes = 3000};
    member m = join(rank, size, store, &ddp);
    float *kept = gradients_by(&m, "none", 0, &most, &count);
    need_same(m.group, kept, count, "gradients");
    for (int k = 0; k < 4; k++) {
        float *gradients = gradients_by(&m, strategies[k], k == 3 ? needed : 0, &needed, &count);
        need(needed < most, "%s saves nothing", strategies[k]);
        need(!memcmp(gradients, kept, (size_t)count * sizeof *kept), "gradients by %s differ from those by none",
             strategies[k]);
        free(gradients);
    }
    free(kept);
    leave(&m);
}

START_TEST(every_strategy_reduces_each_bucket_once) { run_ranks(2 + _i, by_every_strategy, NULL); }
END_TEST

/* ---- Random networks, random plans ------------------------------------------------------------------------------- */

static remat_status no_bucket(void *context, const remat_bucket *bucket) {
    return (void)context, (void)bucket, REMAT_OK;
}

static remat_status no_sum(void *context, double *values, int64_t n) {
    return (void)context, (void)values, (void)n, REMAT_OK;
}

static void make_gradients(remat_session *s, uint64_t seed, const remat_config *config, int rank, int size) {
    remat_step_result r;
    int micro = config->micro_steps ? config->micro_steps : 1;
    for (int t = 0; t < micro; t++) {
        fill_inputs(s,
                    seed * 1000 + (uint64_t)(rank + size * remat_micro_shard(t, micro, config->deterministic_world)));
        need_ok(remat_gradients(s, &r));
    }
    need(isfinite(r.loss), "loss %g", r.loss);
}

/* The gradients that this rank computes alone, with its own inputs, keeping everything; also chooses another plan for
 * it. */
static float *gradients_alone(const net *n, remat_value loss, remat_config config, uint64_t seed, int rank, int size,
                              char **plan) {
    remat_ranks nobody = {.struct_bytes = sizeof(remat_ranks),
                          .rank = rank,
                          .size = size,
                          .reduce = no_bucket,
                          .wait = no_bucket,
                          .sum = no_sum};
    int64_t count;
    remat_session *s;
    config.ranks = &nobody;
    need_ok(remat_session_create(n->graph, loss, &config, &s));
    rng_state += (uint64_t)rank * 104729; /* another plan on each rank */
    *plan = random_plan(s);
    make_gradients(s, seed, &config, rank, size);
    float *gradients = read_all(s, REMAT_GRADIENT, &count);
    remat_session_free(s);
    return gradients;
}

/* The definition (dist/ddp/ddp.h): the sum, in the order of ranks or as a tree, of fl32(g_r * fl32(1/W)). */
static float mean_of(const float *all, int64_t count, int64_t i, int size, bool tree) {
    volatile float t[MOST_RANKS], share = 1.0f / (float)size;
    for (int r = 0; r < size; r++) t[r] = all[r * count + i] * share;
    if (tree)
        for (int w = size / 2; w > 0; w /= 2)
            for (int r = 0; r < w; r++) t[r] = t[r] + t[r + w];
    else
        for (int r = 1; r < size; r++) t[0] = t[0] + t[r];
    return t[0];
}

static void one_random_job(member *m, uint64_t seed) {
    net n;
    char *plan;
    rng_state = seed * 7919 + 3;
    const bool timed = draw(3) > 0;
    remat_value loss = random_net_with(&n, timed, true);
    rm_ddp_config ddp = {
        .group = m->group, .rows = n.batch, .first_bucket_bytes = 1 + draw(300), .bucket_bytes = 1 + draw(2000)};
    remat_config config = REMAT_CONFIG_INIT;
    ask_for_outputs(&config, &n);
    config.threads = 1;
    config.tile = timed ? 1 + draw(4) : draw(3);
    config.seed = seed;
    config.micro_steps = (int)draw(3);
    float *own = gradients_alone(&n, loss, config, seed, m->rank, m->size, &plan);
    need_ok(rm_ddp_open(&ddp, &m->ddp));
    config.ranks = rm_ddp_ranks(m->ddp);
    config.plan_steps = plan;
    need_ok(remat_session_create(n.graph, loss, &config, &m->session));
    need_ok(rm_ddp_broadcast(m->ddp, m->session));
    make_gradients(m->session, seed, &config, m->rank, m->size);
    int64_t count;
    float *together = read_all(m->session, REMAT_GRADIENT, &count), *all = gather_all(m->group, own, count);
    for (int64_t i = 0; i < count; i++) {
        float want = mean_of(all, count, i, m->size, false);
        need(!memcmp(&together[i], &want, sizeof want), "seed %lu, element %ld: %.9g, not %.9g", (unsigned long)seed,
             (long)i, (double)together[i], (double)want);
    }
    need_same(m->group, together, count, "gradients");
    remat_session_free(m->session);
    rm_ddp_close(m->ddp);
    remat_graph_free(n.graph);
    free(plan), free(own), free(together), free(all);
}

static void random_jobs(int rank, int size, rm_kv *store, void *context) {
    const int cases = *(int *)context;
    member m = join(rank, size, store, NULL);
    alarm(600);
    for (int k = 0; k < cases; k++) one_random_job(&m, (uint64_t)(k * 8 + size));
    m.ddp = NULL;
    m.session = NULL;
    leave(&m);
}

START_TEST(random_networks_and_plans_give_the_defined_mean) {
    int cases = rm_cases(334, 20);
    run_ranks(2 + _i, random_jobs, &cases);
}
END_TEST

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

/* The shared memory that all ranks use. */
static uint64_t shared_bytes(void) {
    for (int fd = 3; fd < 64; fd++) {
        char path[64], target[128] = "";
        struct stat about;
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        if (readlink(path, target, sizeof target - 1) < 0 || strncmp(target, "/memfd:remat", 12)) continue;
        need(!fstat(fd, &about), "cannot look at %s", path);
        return (uint64_t)about.st_blocks * 512;
    }
    need(false, "ranks share no memory");
    return 0;
}

/* Gradients, and the buffers in which they are sent, take exactly the bytes of the plan, all before the first step. */
static void take_no_more(int rank, int size, rm_kv *store, void *context) {
    rm_ddp_config ddp = {.rows = 2, .compress = *(rm_compress *)context, .first_bucket_bytes = 1, .bucket_bytes = 3000};
    member m = join(rank, size, store, &ddp);
    remat_config config = REMAT_CONFIG_INIT;
    config.threads = 1;
    config.ranks = rm_ddp_ranks(m.ddp);
    uint64_t before = shared_bytes(), page = 4096;
    need_ok(rm_group_run(m.group, &(rm_collective){.kind = RM_BARRIER}));
    m.session = open_lstm(&config, 2, T, 40, false);
    need_ok(rm_ddp_broadcast(m.ddp, m.session));
    remat_plan_summary plan = rm_plan_summary_of(m.session);
    uint64_t taken = shared_bytes() - before, gradients = (plan.gradients_bytes + page - 1) / page * page, halves = 0;
    for (int64_t i = 0; i < remat_bucket_count(m.session) && ddp.compress; i++)
        halves += ((uint64_t)rm_bucket_at(m.session, i).count * 2 + page - 1) / page * page;
    need(plan.n_buckets > 3 && plan.workspace_bytes == halves, "%lu and %lu bytes", (unsigned long)halves,
         (unsigned long)plan.workspace_bytes);
    need(taken == (uint64_t)size * (gradients + halves), "%lu bytes, not %d times %lu and %lu", (unsigned long)taken,
         size, (unsigned long)gradients, (unsigned long)halves);
    for (int step = 0; step < 2; step++) {
        remat_step_result r;
        write_rows(m.session, step, T, 2 * rank, 2);
        need_ok(remat_gradients(m.session, &r));
        need(shared_bytes() - before == taken, "step %d takes more", step);
    }
    need_ok(rm_group_run(m.group, &(rm_collective){.kind = RM_BARRIER}));
    leave(&m);
}

START_TEST(steps_allocate_no_shared_memory) {
    rm_compress ways[] = {RM_COMPRESS_NONE, RM_COMPRESS_FP16, RM_COMPRESS_BF16};
    for (int size = 2; size <= 3; size++) run_ranks(size, take_no_more, &ways[_i]);
}
END_TEST

/* ---- Bits that do not depend on the number of ranks -------------------------------------------------------------- */

enum { SHARDS = 8 };

typedef struct {
    float parameters[4000];
    double loss[3];
} result;

static void one_of_eight_shards(int rank, int size, rm_kv *store, void *context) {
    result *out = context;
    int64_t count;
    rm_ddp_config ddp = {.rows = 2, .deterministic_world = true, .bucket_bytes = 1000};
    member m = join(rank, size, store, &ddp);
    remat_config config = REMAT_CONFIG_INIT;
    config.threads = 1;
    config.tile = 3;
    config.optimizer = "adam";
    config.clip_grad_norm = 0.5;
    config.ranks = rm_ddp_ranks(m.ddp);
    config.deterministic_world = true;
    config.micro_steps = SHARDS / size;
    m.session = open_lstm(&config, 2, T, H, true);
    for (int step = 0; step < 3; step++) {
        remat_step_result r;
        for (int t = 0; t < config.micro_steps; t++) {
            write_rows(m.session, step, T, 2 * (rank + size * remat_micro_shard(t, config.micro_steps, true)), 2);
            need_ok(remat_gradients(m.session, &r));
        }
        need_ok(remat_update(m.session, 0.01, &r));
        if (rank == 0) out->loss[step] = r.loss;
    }
    need_same_kind(&m, REMAT_PARAM, "parameters");
    float *parameters = read_all(m.session, REMAT_PARAM, &count);
    need(count <= 4000, "%ld parameters", (long)count);
    if (rank == 0) memcpy(out->parameters, parameters, (size_t)count * sizeof *parameters);
    free(parameters);
    leave(&m);
}

START_TEST(bits_do_not_depend_on_the_number_of_ranks) {
    result *r = mmap(NULL, 4 * sizeof *r, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert(r != MAP_FAILED);
    for (int k = 0; k < 4; k++) run_ranks(1 << k, one_of_eight_shards, &r[k]);
    ck_assert(r[0].loss[2] > 0 && r[0].parameters[0] != 0);
    for (int k = 1; k < 4; k++) ck_assert_msg(!memcmp(&r[0], &r[k], sizeof *r), "%d ranks", 1 << k);
}
END_TEST

/* ---- Sending parameters from rank 0 ------------------------------------------------------------------------------ */

/* Small arrays, of which one broadcast carries many, and arrays that are split: of exactly 1 MiB and above. */
static void get_parameters(int rank, int size, rm_kv *store, void *context) {
    static const int64_t width[] = {3, 700, 512, 512, 5, 1};
    enum { LAYERS = (int)(sizeof width / sizeof *width) - 1, ROWS = 2 };
    rm_ddp_config ddp = {.rows = ROWS};
    member m = join(rank, size, store, &ddp);
    remat_graph *g;
    (void)context;
    need_ok(remat_graph_create(&g));
    remat_value x = remat_input(g, "x", REMAT_F32, REMAT_STATIC, 2, (int64_t[]){ROWS, width[0]});
    remat_value y = remat_input(g, "y", REMAT_F32, REMAT_STATIC, 2, (int64_t[]){ROWS, width[LAYERS]});
    for (int i = 0; i < LAYERS; i++) {
        char name[16];
        snprintf(name, sizeof name, "w%d", i);
        x = remat_linear(g, x, remat_param(g, name, 2, (int64_t[]){width[i + 1], width[i]}, remat_init_uniform(1)),
                         REMAT_NONE);
    }
    remat_config config = REMAT_CONFIG_INIT;
    config.threads = 1;
    config.seed = (uint64_t)rank;
    config.ranks = rm_ddp_ranks(m.ddp);
    need_ok(remat_session_create(g, remat_mse(g, x, y), &config, &m.session));
    remat_graph_free(g);
    int64_t count;
    float *before = read_all(m.session, REMAT_PARAM, &count);
    need_ok(rm_ddp_broadcast(m.ddp, m.session));
    float *after = read_all(m.session, REMAT_PARAM, &count);
    need(!memcmp(before, after, (size_t)count * sizeof *after) == (rank == 0), "rank 0 alone keeps its own");
    need_same(m.group, after, count, "parameters");
    free(before);
    free(after);
    leave(&m);
}

START_TEST(parameters_of_any_size_are_sent) { run_ranks(2, get_parameters, NULL); }
END_TEST

int main(void) {
    TCase *training = tcase_create("training");
    tcase_set_timeout(training, 600);
    tcase_add_loop_test(training, many_ranks_give_the_result_of_one, 0, VARIANTS);
    tcase_add_loop_test(training, every_strategy_reduces_each_bucket_once, 0, 2);
    tcase_add_loop_test(training, random_networks_and_plans_give_the_defined_mean, 0, 3);
    tcase_add_loop_test(training, steps_allocate_no_shared_memory, 0, 3);
    tcase_add_test(training, parameters_of_any_size_are_sent);
    tcase_add_test(training, bits_do_not_depend_on_the_number_of_ranks);
    return run_cases("dist/ddp_sessions", training);
}
