/* test_plans.c: the program's models under random plans: any strategy, any budget between the smallest and that of
 * keeping everything, lean or not, spilled to a file, or a random plan; on one to four ranks, each with its own plan.
 * Losses, norms, and the final parameters, running statistics and optimizer state are bit-identical to those of the
 * same job with everything kept, and the used bytes are the planned ones. 300 plans of each model take longer than
 * ctest's limit:
 *     REMAT_LONG_TESTS=1 build/release/tests/train_test_plans
 *
 * A job consists of everything that may decide bits: the number of ranks, the tile, micro steps and so on. Ranks are
 * threads (tests/engine/team.h). */
#include "engine/abi.h"
#include "tests/cases.h"
#include "tests/engine/team.h"

#include "tests/engine/poison.h"
#include "tests/engine/random_net.h"
#include "tests/sanitized.h"
#include "tests/suite.h"
#include "train/models/model.h"

#define CHECKED(call) ck_assert_msg((call) == REMAT_OK, "%s: %s", #call, remat_last_error())

enum { STEPS = 2, BATCH = 2, RANKS = 4, JOBS = 12 };

#define TEXT                                                                                                           \
    { .timesteps = 13, .vocabulary = 7, .classes = 7, .every_step = true }
#define NUMBERS                                                                                                        \
    { .timesteps = 13, .features = 3, .classes = 4 }
#define IMAGES(channels_, side, classes_)                                                                              \
    {                                                                                                                  \
        .timesteps = 1, .channels = channels_, .height = side, .width = side, .features = channels_ * side * side,     \
        .classes = classes_                                                                                            \
    }
#define PIXELS                                                                                                         \
    { .timesteps = 1, .channels = 3, .height = 8, .width = 8, .features = 192, .classes = 3, .pixels = 64 }

static const rm_model_spec models[] = {
    {.name = "mlp", .layers = 3, .hidden = 9, .dropout = 0.2, .data = IMAGES(2, 5, 3)},
    {.name = "cnn", .dropout = 0.2, .data = IMAGES(1, 8, 3)},
    {.name = "resnet18", .small_stem = true, .data = IMAGES(3, 8, 3)},
    {.name = "unet", .layers = 2, .hidden = 4, .data = PIXELS},
    {.name = "unet", .layers = 1, .hidden = 3, .transposed = true, .data = PIXELS},
    {.name = "gpt2", .layers = 2, .hidden = 8, .embed = 8, .heads = 2, .dropout = 0.2, .data = TEXT},
    {.name = "lstm", .layers = 2, .hidden = 6, .embed = 5, .dropout = 0.2, .data = TEXT},
    {.name = "lstm", .layers = 2, .hidden = 6, .bidirectional = true, .dropout = 0.2, .data = NUMBERS},
    {.name = "gru", .layers = 2, .hidden = 6, .embed = 5, .dropout = 0.2, .data = TEXT},
    {.name = "rnn", .layers = 2, .hidden = 6, .embed = 5, .dropout = 0.2, .data = TEXT},
    {.name = "mingru", .layers = 2, .hidden = 6, .embed = 6, .dropout = 0.2, .data = TEXT},
    {.name = "mingru", .layers = 2, .hidden = 6, .embed = 6, .no_conv = true, .data = TEXT},
    {.name = "minlstm", .layers = 2, .hidden = 6, .embed = 6, .dropout = 0.2, .data = NUMBERS},
    {.name = "mamba", .layers = 2, .hidden = 6, .embed = 6, .data = TEXT},
    {.name = "mamba2", .layers = 2, .hidden = 8, .embed = 8, .heads = 2, .data = TEXT},
    {.name = "m2rnn", .layers = 2, .hidden = 8, .embed = 8, .heads = 2, .data = TEXT},
    {.name = "rwkv7", .layers = 2, .hidden = 8, .embed = 8, .heads = 2, .data = TEXT},
    {.name = "gdn", .layers = 2, .hidden = 8, .embed = 8, .heads = 2, .data = TEXT},
    {.name = "xlstm", .layers = 2, .hidden = 8, .embed = 8, .heads = 2, .slstm_at = "1", .data = TEXT},
    {.name = "xlstm_large", .layers = 2, .hidden = 8, .embed = 8, .heads = 2, .data = TEXT},
    {.name = "recurrentgemma", .layers = 2, .hidden = 8, .embed = 8, .heads = 2, .data = TEXT},
    {.name = "recurrentgemma", .layers = 3, .hidden = 8, .embed = 8, .heads = 2, .attention_window = 3, .data = TEXT},
};
enum { MODELS = sizeof models / sizeof *models };

/* ---- Jobs ------------------------------------------------------------------------------------------------------- */

typedef struct {
    rm_model model;
    int size;
    remat_ranks ranks; /* template for every rank */
    remat_config config;
} job;

static void begin_job(job *j, int model, int number) {
    static const int64_t tiles[] = {4, 1, 0};
    rm_model_spec spec = models[model];
    *j = (job){.size = 1 + number % RANKS, .config = REMAT_CONFIG_INIT};
    spec.sync_batchnorm = number % 2;
    CHECKED(rm_model_build(&spec, BATCH, true, &j->model));
    j->ranks = (remat_ranks){.first_bucket_bytes = 256, .bucket_bytes = 2 << 20, .shard_optimizer = number % 5 == 2};
    j->config.tile = tiles[(number + number / RANKS) % 3];
    j->config.micro_steps = 1 + (number + number / RANKS) / 2 % 2;
    j->config.optimizer = number % 3 ? "sgd" : "adam";
    j->config.momentum = 0.9;
    j->config.clip_grad_norm = 0.5;
    j->config.threads = 1 + (j->size == 1 && number / RANKS % 2);
    j->config.seed = (uint64_t)number;
}

/* The task of one rank, and its results. */
typedef struct {
    const job *job;
    remat_config config;
    char *steps, what[160];
    double loss[STEPS + 1], norm[STEPS];
    unsigned char *end; /* all arrays at the end */
    size_t bytes;
    uint64_t recomputed;
} member;

static void feed(remat_session *s, uint64_t step, uint32_t shard) {
    for (int64_t i = 0; i < remat_count(s, REMAT_INPUT); i++) {
        remat_array info;
        CHECKED(remat_array_info(s, REMAT_INPUT, i, &info));
        uint32_t bound = (uint32_t)s->array[REMAT_INPUT][i].bound;
        int32_t *data = malloc(info.bytes);
        for (int64_t k = 0; k < info.count; k++) {
            uint32_t drawn = rm_random(17, step, shard, (uint32_t)i, (uint64_t)k);
            float real = (float)drawn * 0x1p-31f - 1;
            if (info.dtype == REMAT_I32) data[k] = (int32_t)(drawn % bound);
            if (info.dtype == REMAT_F32) memcpy(&data[k], &real, sizeof real);
        }
        CHECKED(remat_write(s, REMAT_INPUT, i, data, info.bytes));
        free(data);
    }
}

static void read_all(member *m, remat_session *s, remat_kind kind) {
    for (int64_t i = 0; i < remat_count(s, kind); i++) {
        remat_array info;
        CHECKED(remat_array_info(s, kind, i, &info));
        m->end = realloc(m->end, m->bytes + info.bytes + 1);
        CHECKED(remat_read(s, kind, i, m->end + m->bytes, info.bytes));
        m->bytes += info.bytes;
    }
}

static void one_step(member *m, remat_session *s, const teammate *mate, int step) {
    remat_step_result r = {0};
    for (int64_t t = 0, n = m->config.micro_steps; t < n; t++) {
        feed(s, (uint64_t)step, (uint32_t)(mate->rank + mate->team->size * remat_micro_shard(t, n, false)));
        CHECKED(remat_gradients(s, &r));
        m->recomputed += r.recomputed_stages;
    }
    m->loss[step] = r.loss;
    CHECKED(remat_update(s, 0.05, &r));
    m->norm[step] = r.grad_norm;
}

static void train(teammate *mate) {
    member *m = mate->data;
    remat_session *s;
    remat_step_result r;
    m->config.ranks = &mate->ranks;
    remat_status status = remat_session_create(m->job->model.graph, m->job->model.loss, &m->config, &s);
    ck_assert_msg(status == REMAT_OK, "%s: %s", m->what, remat_last_error());
    poison(s);
    for (int step = 0; step < STEPS; step++) one_step(m, s, mate, step);
    CHECKED(remat_evaluate(s, &r));
    m->loss[STEPS] = r.loss;
    remat_plan_summary plan = rm_plan_summary_of(s);
    ck_assert_msg(plan.planned_peak_bytes == r.arena_peak_bytes, "%s: %lu bytes planned, %lu seen", m->what,
                  (unsigned long)plan.planned_peak_bytes, (unsigned long)r.arena_peak_bytes);
    ck_assert(!m->config.memory_budget || plan.budgeted_bytes <= m->config.memory_budget);
    read_all(m, s, REMAT_PARAM);
    read_all(m, s, REMAT_BUFFER);
    read_all(m, s, REMAT_OPTIMIZER);
    remat_session_free(s);
}

static void run_job(const job *j, member m[RANKS]) {
    void *data[RANKS];
    for (int r = 0; r < j->size; r++) data[r] = &m[r];
    team_run(&(team){.size = j->size}, &j->ranks, train, data);
}

/* ---- Plans ------------------------------------------------------------------------------------------------------ */

static remat_status no_bucket(void *context, const remat_bucket *bucket) {
    return (void)context, (void)bucket, REMAT_OK;
}
static remat_status no_sum(void *context, double *values, int64_t n) {
    return (void)context, (void)values, (void)n, REMAT_OK;
}

/* A session as one of the ranks, only for its plan. */
static remat_status planned(const job *j, int rank, remat_config config, remat_session **s) {
    remat_ranks ranks = j->ranks;
    ranks.struct_bytes = sizeof ranks;
    ranks.rank = rank, ranks.size = j->size;
    ranks.reduce = ranks.wait = ranks.gather = ranks.gathered = no_bucket;
    ranks.sum = no_sum;
    config.ranks = &ranks;
    config.plan_only = true;
    return remat_session_create(j->model.graph, j->model.loss, &config, s);
}

/* Every third time the smallest budget. */
static uint64_t draw_budget(const job *j, int rank, remat_config config, uint64_t everything) {
    remat_session *s;
    config.memory_budget = 1;
    ck_assert_int_eq(planned(j, rank, config, &s), REMAT_INFEASIBLE);
    uint64_t least = remat_smallest_budget();
    if (draw(3) == 0 || least >= everything) return least;
    return least + (everything - least) / 1000 * draw(1000);
}

static void draw_plan(member *m, const job *j, int rank) {
    static const char *const strategies[] = {"segments", "sqrt", "lean", "optimal", "optimal", "optimal"};
    enum { STRATEGIES = sizeof strategies / sizeof *strategies };
    remat_session *all;
    *m = (member){.job = j, .config = j->config};
    CHECKED(planned(j, rank, j->config, &all));
    uint32_t which = draw(STRATEGIES + 2);
    m->config.verify_recompute = draw(4) == 0;
    if (which >= STRATEGIES) m->config.plan_steps = m->steps = random_plan(all);
    if (which < STRATEGIES) m->config.strategy = strategies[which];
    if (which == 0) m->config.segments = 1 + draw((uint32_t)all->chain.n_stages);
    if (which >= 3 && which < STRATEGIES) {
        m->config.recompute = draw(3) ? "auto" : "exact-only";
        m->config.spill_dir = draw(3) ? NULL : "/tmp";
        m->config.memory_budget = draw_budget(j, rank, m->config, rm_plan_summary_of(all).budgeted_bytes);
    }
    remat_session_free(all);
    snprintf(m->what, sizeof m->what, "rank %d of %d, tile %ld, %s, %ld segments, budget %lu, %s, spill %d, verify %d",
             rank, j->size, (long)m->config.tile, m->steps ? "a random plan" : m->config.strategy,
             (long)m->config.segments, (unsigned long)m->config.memory_budget, m->config.recompute,
             m->config.spill_dir != NULL, m->config.verify_recompute);
}

static void forget(member m[RANKS]) {
    for (int r = 0; r < RANKS; r++) free(m[r].steps), free(m[r].end);
    memset(m, 0, RANKS * sizeof *m);
}

static void expect_same(const member *kept, const member *m, const char *model, int number) {
    for (int i = 0; i <= STEPS; i++)
        ck_assert_msg(isfinite(m->loss[i]) && !memcmp(&kept->loss[i], &m->loss[i], sizeof m->loss[i]),
                      "%s, plan %d, %s: loss %d is %.17g, and %.17g with everything kept", model, number, m->what, i,
                      m->loss[i], kept->loss[i]);
    ck_assert_msg(!memcmp(kept->norm, m->norm, sizeof m->norm), "%s, plan %d, %s: norms differ", model, number,
                  m->what);
    ck_assert_uint_eq(kept->bytes, m->bytes);
    ck_assert_msg(!memcmp(kept->end, m->end, m->bytes), "%s, plan %d, %s: what is there in the end differs", model,
                  number, m->what);
}

/* Compares the plans of a job, one after the other, with keeping everything. Returns how many recomputed. */
static int try_job(int model, int number, int plans) {
    static member kept[RANKS], m[RANKS];
    int recomputed = 0;
    job j;
    begin_job(&j, model, number);
    for (int r = 0; r < j.size; r++) {
        kept[r] = (member){.job = &j, .config = j.config};
        snprintf(kept[r].what, sizeof kept[r].what, "everything kept");
    }
    run_job(&j, kept);
    for (int plan = 0; plan < plans; plan++) {
        rng_state = (uint64_t)((model * JOBS + number) * 1000 + plan) * 7919 + 1;
        for (int r = 0; r < j.size; r++) draw_plan(&m[r], &j, r);
        run_job(&j, m);
        for (int r = 0; r < j.size; r++) {
            expect_same(&kept[r], &m[r], models[model].name, number * 1000 + plan);
            recomputed += m[r].recomputed > 0;
        }
        forget(m);
    }
    forget(kept);
    rm_model_free(&j.model);
    return recomputed;
}

START_TEST(bits_do_not_depend_on_the_plan) {
    if (rm_release_only(_i, 3)) return;
    const bool large = !strcmp(models[_i].name, "resnet18"); /* initialising its weights takes most of the time */
    int recomputed = 0, jobs = rm_cases(JOBS, large ? 2 - SANITIZED : JOBS), plans = rm_cases(300 / JOBS, large ? 1 : 2);
    for (int number = 0; number < jobs; number++) recomputed += try_job(_i, number, plans);
    ck_assert_int_gt(recomputed, 0);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("plans");
    tcase_set_timeout(tests, 3600);
    tcase_add_loop_test(tests, bits_do_not_depend_on_the_plan, 0, MODELS);
    return run_cases("plans", tests);
}
