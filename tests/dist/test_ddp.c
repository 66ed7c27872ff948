/* test_ddp.c: data-parallel training without a session, on every engine: hand-made buckets through remat_ranks, the
 * comparisons before the first step, and ranks that disagree. test_ddp_sessions.c tests sessions. */
#include "dist/ddp/ddp.h"

#include <math.h>
#include <sys/mman.h>

#include "dist/ddp/ddp_state.h"
#include "memory/host.h"
#include "tests/dist/halves.h"
#include "tests/dist/mpirun.h"
#include "tests/suite.h"

/* ---- Hand-made buckets ------------------------------------------------------------------------------------------- */

enum { BUCKETS = 4, STEPS = 3 };
static const char *const firsts[BUCKETS] = {"out.bias", "out.weight", "lstm.weight_hh_l0", "embedding.weight"};

typedef struct {
    float *parameters, *gradients; /* of all buckets, in whole pages */
    uint64_t bytes;                /* size of each */
    remat_bucket bucket[BUCKETS];
} fake_session;

static float *pages(uint64_t bytes) {
    void *block = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    need(block != MAP_FAILED, "no pages");
    return block;
}

/* Counts are multiples of 16 * size, from eager to staged sizes. */
static fake_session open_fake(const remat_ranks *ranks) {
    static const int64_t units[BUCKETS] = {1, 40, 700, 1500};
    fake_session s = {0};
    int64_t count = 0;
    for (int b = 0; b < BUCKETS; b++) {
        s.bucket[b] = (remat_bucket){.index = b, .count = 16 * ranks->size * units[b], .first = firsts[b]};
        count += s.bucket[b].count;
    }
    s.bytes = ((uint64_t)count * sizeof(float) + 4095) / 4096 * 4096;
    s.parameters = pages(s.bytes);
    s.gradients = pages(s.bytes);
    need_ok(ranks->map(ranks->context, s.gradients, s.bytes));
    if (ranks->shard_optimizer) need_ok(ranks->map(ranks->context, s.parameters, s.bytes));
    count = 0;
    for (int b = 0; b < BUCKETS; count += s.bucket[b++].count) {
        s.bucket[b].gradients = s.gradients + count;
        s.bucket[b].parameters = s.parameters + count;
    }
    return s;
}
static void close_fake(const remat_ranks *ranks, fake_session *s) {
    ranks->unmap(ranks->context, s->gradients);
    if (ranks->shard_optimizer) ranks->unmap(ranks->context, s->parameters);
    munmap(s->gradients, s->bytes);
    munmap(s->parameters, s->bytes);
}

static float gradient(int step, int bucket, int rank, int64_t i) {
    uint64_t state = (uint64_t)(step * 1000 + bucket * 100 + rank) * 1000003 + (uint64_t)i;
    int32_t bits = (int32_t)next_random(&state);
    return ldexpf((float)bits, bits % 12 - 40);
}

/* ---- Expected results -------------------------------------------------------------------------------------------- */

static half_format format_of(rm_compress compress) { return compress == RM_COMPRESS_FP16 ? F16 : BF16; }

/* The term that rank r adds, and the sum by the definition in dist/ddp/ddp.h. */
static float addend(const rm_ddp_config *c, int size, float g) {
    volatile float share = 1.0f / (float)size, scaled = g * share;
    if (!c->compress) return scaled;
    return (float)half_value(half_of((double)scaled, format_of(c->compress)), format_of(c->compress));
}
static float expected(const rm_ddp_config *c, int size, int step, int bucket, int64_t i) {
    volatile float t[MOST_RANKS];
    for (int r = 0; r < size; r++) t[r] = addend(c, size, gradient(step, bucket, r, i));
    if (c->deterministic_world)
        for (int w = size / 2; w > 0; w /= 2)
            for (int r = 0; r < w; r++) t[r] = t[r] + t[r + w];
    else
        for (int r = 1; r < size; r++) t[0] = t[0] + t[r];
    if (!c->compress) return t[0];
    return (float)half_value(half_of((double)t[0], format_of(c->compress)), format_of(c->compress));
}

/* The difference from the true mean is at most one rounding of each term and of the sum (half a unit of 2^-10 or 2^-7,
 * or of f16's smallest number), plus that of the additions. */
static void need_close(const rm_ddp_config *c, int size, int step, int bucket, int64_t i, float got) {
    double mean = 0, magnitudes = 0;
    for (int r = 0; r < size; r++) {
        mean += (double)gradient(step, bucket, r, i) / size;
        magnitudes += fabs((double)gradient(step, bucket, r, i)) / size;
    }
    double unit = c->compress == RM_COMPRESS_FP16 ? 0x1p-11 : c->compress ? 0x1p-8 : 0x1p-24;
    double slack = 2.1 * unit * magnitudes + (size + 1) * magnitudes * 0x1p-24;
    if (c->compress == RM_COMPRESS_FP16) slack += (size + 1) * 0x1p-25;
    need(fabs((double)got - mean) <= slack, "bucket %d element %ld: %g is too far from %g", bucket, (long)i, got, mean);
}

/* All ranks have the same bits in `data`. */
static void need_same(rm_group *group, const float *data, int64_t count) {
    const int size = rm_group_size(group);
    float *all = malloc((size_t)(count * size) * sizeof *all);
    need(all, "no memory");
    need_ok(rm_group_run(group, &(rm_collective){.kind = RM_ALL_GATHER, .count = count, .in = data, .out = all}));
    for (int r = 1; r < size; r++)
        need(!memcmp(all, all + r * count, (size_t)count * sizeof *all), "rank %d has other bits", r);
    free(all);
}

/* ---- Steps ------------------------------------------------------------------------------------------------------- */

static void check_bucket(const rm_ddp_config *c, const remat_ranks *ranks, const remat_bucket *bucket, int step) {
    const bool exact = c->compress || c->deterministic_world || !strcmp(rm_group_engine(c->group), "local");
    const int64_t part = bucket->count / ranks->size;
    const int64_t from = c->shard_optimizer ? part * ranks->rank : 0,
                  to = c->shard_optimizer ? from + part : bucket->count;
    for (int64_t i = from; i < to; i++) {
        const float want = expected(c, ranks->size, step, bucket->index, i), got = bucket->gradients[i];
        if (exact)
            need(!memcmp(&got, &want, sizeof got), "bucket %d element %ld: %a, not %a", bucket->index, (long)i, got,
                 want);
        need_close(c, ranks->size, step, bucket->index, i, got);
    }
    if (!c->shard_optimizer) need_same(c->group, bucket->gradients, bucket->count);
}

/* This rank updates its shard of the parameters; all shards are gathered. */
static void update_parts(const remat_ranks *ranks, fake_session *s, int step) {
    for (int b = 0; b < BUCKETS; b++) {
        const int64_t part = s->bucket[b].count / ranks->size;
        for (int64_t i = part * ranks->rank; i < part * (ranks->rank + 1); i++)
            s->bucket[b].parameters[i] = (float)(step * 7 + b) + (float)i;
        need_ok(ranks->gather(ranks->context, &s->bucket[b]));
    }
    for (int b = 0; b < BUCKETS; b++) {
        need_ok(ranks->gathered(ranks->context, &s->bucket[b]));
        for (int64_t i = 0; i < s->bucket[b].count; i++)
            need(s->bucket[b].parameters[i] == (float)(step * 7 + b) + (float)i, "parameter %ld of bucket %d", (long)i,
                 b);
    }
}

static void one_step(const rm_ddp_config *c, const remat_ranks *ranks, fake_session *s, int step) {
    double sums[2] = {ranks->rank + 0.5, step};
    for (int b = 0; b < BUCKETS; b++) {
        for (int64_t i = 0; i < s->bucket[b].count; i++) s->bucket[b].gradients[i] = gradient(step, b, ranks->rank, i);
        need_ok(ranks->reduce(ranks->context, &s->bucket[b]));
        need_ok(ranks->poll(ranks->context));
    }
    for (int b = 0; b < BUCKETS; b++) need_ok(ranks->wait(ranks->context, &s->bucket[b]));
    need_ok(ranks->sum(ranks->context, sums, 2));
    need(sums[0] == ranks->size * ranks->size / 2.0 && sums[1] == step * ranks->size, "%g %g", sums[0], sums[1]);
    for (int b = 0; b < BUCKETS; b++) check_bucket(c, ranks, &s->bucket[b], step);
    if (c->shard_optimizer) update_parts(ranks, s, step);
}

static void check_cost(const rm_ddp *ddp, const rm_ddp_config *c, const fake_session *s) {
    rm_ddp_cost cost = rm_ddp_last_cost(ddp);
    uint64_t bytes = 0;
    for (int b = 0; b < BUCKETS; b++) bytes += (uint64_t)s->bucket[b].count * (c->compress ? 2 : 4);
    if (c->shard_optimizer)
        for (int b = 0; b < BUCKETS; b++) bytes += (uint64_t)s->bucket[b].count / (uint64_t)rm_ddp_ranks(ddp)->size * 4;
    need(cost.bytes == bytes && cost.buckets == BUCKETS, "%lu bytes, %d buckets", (unsigned long)cost.bytes,
         cost.buckets);
    need(cost.busy_ns > 0 && cost.busy_ns < 60000000000u && cost.waited_ns > 0, "busy %lu waited %lu",
         (unsigned long)cost.busy_ns, (unsigned long)cost.waited_ns);
}

static void all_ways(rm_group *group) {
    const int size = rm_group_size(group);
    for (int way = 0; way < 8; way++) {
        rm_ddp_config c = {.group = group, .rows = 4, .shard_optimizer = way % 2};
        c.compress = way / 2 == 1 ? RM_COMPRESS_FP16 : way / 2 == 2 ? RM_COMPRESS_BF16 : RM_COMPRESS_NONE;
        c.deterministic_world = way / 2 == 3;
        rm_ddp *ddp;
        if (c.deterministic_world && size & (size - 1)) continue;
        need_ok(rm_ddp_open(&c, &ddp));
        const remat_ranks *ranks = rm_ddp_ranks(ddp);
        need(ranks->weight == 1 && ranks->size == size && ranks->shard_optimizer == c.shard_optimizer, "%g",
             ranks->weight);
        fake_session s = open_fake(ranks);
        for (int step = 0; step < STEPS; step++) one_step(&c, ranks, &s, step);
        int64_t allocations = rm_host_allocations();
        one_step(&c, ranks, &s, STEPS);
        if (!strcmp(rm_group_engine(group), "local"))
            need(rm_host_allocations() == allocations, "%ld allocations in a step",
                 (long)(rm_host_allocations() - allocations));
        check_cost(ddp, &c, &s);
        close_fake(ranks, &s);
        rm_ddp_close(ddp);
    }
}

/* ---- Before the first step --------------------------------------------------------------------------------------- */

static void need_order(rm_ddp *ddp) {
    const remat_ranks *ranks = rm_ddp_ranks(ddp);
    int32_t order[3] = {2, 0, 1};
    uint8_t used[3] = {0, ranks->rank == 1, 0};
    if (ranks->rank) order[0] = 1, order[2] = 2;
    need_ok(ranks->agree(ranks->context, order, used, 3));
    need(order[0] == 2 && order[1] == 0 && order[2] == 1, "not rank 0's order");
    need(!used[0] && used[1] == 1 && !used[2], "used are %d %d %d", used[0], used[1], used[2]);
}

static void need_told(rm_ddp *ddp) {
    const remat_ranks *ranks = rm_ddp_ranks(ddp);
    static char longest[300001];
    memset(longest, 'x', sizeof longest - 1);
    const char *const texts[] = {"a plan\nof two lines\n", "", longest};
    for (int i = 0; i < 3; i++) {
        char *text;
        need_ok(rm_ddp_share_text(ddp, ranks->rank ? NULL : texts[i], &text));
        need(!strcmp(text, texts[i]), "text %d", i);
        rm_free(text);
    }
}

/* All ranks have the same message, and the group remains usable. */
static void need_same_sentence(rm_group *group) {
    char mine[600] = "", first[600];
    snprintf(mine, sizeof mine, "%s", remat_last_error());
    memcpy(first, mine, sizeof first);
    rm_collective what = {.kind = RM_BROADCAST, .wire = RM_WIRE_U8, .count = sizeof first, .out = first};
    need_ok(rm_group_run(group, &what));
    need(!strcmp(first, mine), "'%s' here, '%s' on rank 0", mine, first);
}

/* The last rank passes `odd`, the others `usual`. */
static void need_difference(rm_group *group, rm_ddp *ddp, const char *usual, const char *odd, const char *words) {
    const int rank = rm_group_rank(group), last = rm_group_size(group) - 1;
    char sentence[600];
    need_ok(rm_ddp_compare(ddp, "the network", usual));
    snprintf(sentence, sizeof sentence, "ranks 0 and %d disagree about the network: %s", last, words);
    need_peer(rm_ddp_compare(ddp, "the network", rank == last ? odd : usual), sentence);
    need_same_sentence(group);
}

static void texts(rm_group *group) {
    rm_ddp *ddp;
    const int rank = rm_group_rank(group), last = rm_group_size(group) - 1;
    need_ok(rm_ddp_open(&(rm_ddp_config){.group = group, .rows = rank == 0 ? 5 : 1}, &ddp));
    const int size = rm_group_size(group);
    need(rm_ddp_ranks(ddp)->weight == (rank == 0 ? 5.0 : 1.0) * size / (size + 4), "%g", rm_ddp_ranks(ddp)->weight);
    need_order(ddp);
    need_told(ddp);
    char words[200];
    snprintf(words, sizeof words, "'w (4,3) f32' on rank 0, but 'w (4,4) f32' on rank %d", last);
    need_difference(group, ddp, "b (4) f32\nw (4,3) f32\n", "b (4) f32\nw (4,4) f32\n", words);
    snprintf(words, sizeof words, "'c' on rank 0, but nothing more on rank %d", last);
    need_difference(group, ddp, "a\nb\nc\n", "a\nb\n", words);
    snprintf(words, sizeof words, "nothing more on rank 0, but 'a' on rank %d", last);
    need_difference(group, ddp, "", "a", words);
    rm_ddp_close(ddp);
}

static void configs(rm_group *group) {
    const int rank = rm_group_rank(group), size = rm_group_size(group);
    rm_ddp *ddp = NULL;
    rm_ddp_config c = {.group = group, .rows = 1, .bucket_bytes = rank ? 1 << 20 : 2 << 20};
    need_peer(rm_ddp_open(&c, &ddp), "gradient reduction settings: 'other buckets: "
                                     "2097152 bytes' on rank 0, but 'other buckets: 1048576 bytes' on rank 1");
    need_same_sentence(group);
    c = (rm_ddp_config){.group = group, .rows = 1, .compress = RM_COMPRESS_BF16, .deterministic_world = true};
    need(rm_ddp_open(&c, &ddp) == REMAT_INVALID && strstr(remat_last_error(), "grad_compress=none"), "%s",
         remat_last_error());
    c = (rm_ddp_config){.group = group, .rows = rank == 1 ? 0 : 3};
    need(rm_ddp_open(&c, &ddp) == REMAT_INVALID && strstr(remat_last_error(), "rank 1 has a batch of 0"), "%s",
         remat_last_error());
    need_same_sentence(group);
    c = (rm_ddp_config){.group = group, .rows = 1, .deterministic_world = true};
    remat_status status = rm_ddp_open(&c, &ddp);
    if (size & (size - 1))
        need(status == REMAT_INVALID && strstr(remat_last_error(), "power of two"), "%s", remat_last_error());
    else
        need_ok(status);
    rm_ddp_close(ddp);
    need(rm_ddp_open(&(rm_ddp_config){.rows = 1}, &ddp) == REMAT_INVALID, "no group");
}

/* The last rank pretends to be another version of Remat. */
static void versions(rm_group *group) {
    const int rank = rm_group_rank(group), last = rm_group_size(group) - 1;
    char host[200] = "", sentence[600];
    rm_ddp *ddp = NULL;
    gethostname(host, sizeof host - 1);
    snprintf(sentence, sizeof sentence, "rank 0 on %s runs Remat " REMAT_VERSION ", but rank %d on %s runs Remat 9.8.7",
             host, last, host);
    if (rank == last) rm_ddp_version = "9.8.7";
    need_peer(rm_ddp_open(&(rm_ddp_config){.group = group, .rows = 1}, &ddp), sentence);
    need_same_sentence(group);
    rm_ddp_version = REMAT_VERSION;
    need_ok(rm_ddp_open(&(rm_ddp_config){.group = group, .rows = 1}, &ddp));
    rm_ddp_close(ddp);
}

/* ---- Ranks that disagree ----------------------------------------------------------------------------------------- */

typedef enum { ANOTHER_ORDER, ANOTHER_CAP, A_BUCKET_TWICE, ONE_IS_MISSING, FAULTS } odd_doing;

/* The last rank deviates in the second step; the others learn of it in the same collective. */
static void do_odd_step(const remat_ranks *ranks, fake_session *s, odd_doing doing) {
    remat_bucket *b = s->bucket, swapped = b[1];
    if (doing == ANOTHER_ORDER) b[1] = b[2], b[2] = swapped;
    if (doing == ANOTHER_CAP) b[1].count += 16 * ranks->size;
    if (doing == A_BUCKET_TWICE) b[1] = b[0];
    if (doing == ONE_IS_MISSING) b[1] = b[2];
}

static void play_odd(rm_group *group, rm_ddp **where, odd_doing doing) {
    const int last = rm_group_size(group) - 1;
    rm_ddp_config c = {.group = group, .rows = 1};
    char words[100];
    need_ok(rm_ddp_open(&c, where));
    const remat_ranks *ranks = rm_ddp_ranks(*where);
    fake_session s = open_fake(ranks);
    one_step(&c, ranks, &s, 0);
    if (ranks->rank == last) do_odd_step(ranks, &s, doing);
    remat_status status = REMAT_OK;
    for (int b = 0; b < BUCKETS && !status; b++) {
        status = ranks->reduce(ranks->context, &s.bucket[b]);
        if (!status) status = ranks->wait(ranks->context, &s.bucket[b]);
        if (status) need(b == 1, "only in bucket %d", b);
    }
    snprintf(words, sizeof words, "ranks 0 and %d disagree about the count", last);
    need_peer(status, words);
    need(strstr(remat_last_error(), "bucket 1, which begins with out.weight"), "%s", remat_last_error());
    if (doing == ANOTHER_ORDER)
        need(strstr(remat_last_error(), "bucket 2, which begins with lstm.weight_hh_l0"), "%s", remat_last_error());
    need_peer(ranks->poll(ranks->context), words);
    close_fake(ranks, &s);
    rm_ddp *closed = *where;
    rm_ddp_close(closed);
    need(!strcmp(rm_ddp_tag_name(where, 1), "bucket 1"), "a ddp that is closed is no longer asked");
}

/* ---- Ranks of every engine --------------------------------------------------------------------------------------- */

static const char *const scenarios[] = {"all_ways", "texts", "configs", "versions", "order", "cap", "twice", "missing"};
enum { SCENARIOS = sizeof scenarios / sizeof *scenarios };

typedef struct {
    const char *engine, *scenario;
} job;

static void in_a_rank(int rank, int size, rm_kv *store, void *context) {
    const job *j = context;
    static rm_ddp *ddp;
    rm_group *group;
    rm_group_config config = {.engine = j->engine, .rank = rank, .size = size, .store = store, .timeout_ms = 60000};
    config.tag_name = rm_ddp_tag_name;
    config.context = &ddp;
    need_ok(rm_group_open(&config, &group));
    void (*const play[])(rm_group *) = {all_ways, texts, configs, versions};
    enum { PLAYED = sizeof play / sizeof *play };
    for (int i = 0; i < SCENARIOS; i++) {
        if (strcmp(j->scenario, scenarios[i])) continue;
        if (i < PLAYED)
            play[i](group);
        else
            play_odd(group, &ddp, (odd_doing)(i - PLAYED));
    }
    rm_group_close(group);
}

START_TEST(local) {
    for (int size = 2; size <= 4; size++) run_ranks(size, in_a_rank, &(job){"local", scenarios[_i]});
}
END_TEST

#ifdef REMAT_HAVE_GLOO
START_TEST(gloo) {
    for (int size = 2; size <= (_i ? 2 : 4); size += 2) run_ranks(size, in_a_rank, &(job){"gloo", scenarios[_i]});
}
END_TEST
#endif

#ifdef REMAT_HAVE_MPI
static int mpi_rank(char **argv) {
    int rank, size;
    job j = {"mpi", argv[2]};
    rm_kv *store = store_under_mpi(argv[3], &rank, &size);
    in_a_rank(rank, size, store, &j);
    return mpi_rank_is_well(store, rank, size);
}
START_TEST(mpi) {
    static char said[20000];
    int size = _i ? 2 : 4, well = well_under_mpi(size, scenarios[_i], said, sizeof said);
    ck_assert_msg(well == size, "%s: %d of %d ranks are well:\n%s", scenarios[_i], well, size, said);
}
END_TEST
#endif

/* ---- One rank ---------------------------------------------------------------------------------------------------- */

START_TEST(single_rank_needs_no_other_ranks) {
    rm_group *group;
    ck_ok(rm_group_open(&(rm_group_config){.size = 1}, &group));
    all_ways(group);
    rm_group_close(group);
}
END_TEST

/* Whichever allocation fails, there is a message, and no memory is lost (sanitizers find leaks). */
static remat_status live_once(rm_group *group) {
    rm_ddp *ddp;
    rm_ddp_config c = {.group = group, .rows = 1, .compress = RM_COMPRESS_FP16};
    float gradients[16] = {1}, parameters[16] = {0};
    remat_bucket bucket = {.gradients = gradients, .parameters = parameters, .count = 16, .first = "w"};
    TRY(rm_ddp_open(&c, &ddp));
    const remat_ranks *ranks = rm_ddp_ranks(ddp);
    int32_t order = 0;
    uint8_t used = 1;
    char *text = NULL;
    remat_status status = ranks->agree(ranks->context, &order, &used, 1);
    if (!status) status = rm_ddp_compare(ddp, "x", "y");
    if (!status) status = rm_ddp_share_text(ddp, "z", &text);
    if (!status) status = ranks->reduce(ranks->context, &bucket);
    if (!status) status = ranks->wait(ranks->context, &bucket);
    rm_free(text);
    rm_ddp_close(ddp);
    return status;
}
START_TEST(every_failed_allocation_is_an_error) {
    rm_group *group;
    ck_ok(rm_group_open(&(rm_group_config){.size = 1}, &group));
    for (int64_t n = 1;; n++) {
        ck_assert_int_lt(n, 100);
        rm_host_fail_at(n);
        remat_status status = live_once(group);
        rm_host_fail_at(0);
        if (!status && n > 8) break;
        ck_assert_msg(!status || status == REMAT_MEMORY, "allocation %ld: %s", (long)n, remat_last_error());
    }
    rm_group_close(group);
}
END_TEST

int main(int argc, char **argv) {
#ifdef REMAT_HAVE_MPI
    if (argc == 4 && !strcmp(argv[1], "mpi")) return mpi_rank(argv);
    if (!find_own_program()) return 1;
#endif
    (void)argc, (void)argv;
    TCase *ranks = tcase_create("ranks"), *alone = tcase_create("alone");
    tcase_add_loop_test(ranks, local, 0, SCENARIOS);
#ifdef REMAT_HAVE_GLOO
    tcase_add_loop_test(ranks, gloo, 0, SCENARIOS);
#endif
#ifdef REMAT_HAVE_MPI
    if (have_mpirun())
        tcase_add_loop_test(ranks, mpi, 0, SCENARIOS);
    else
        puts("no mpirun here: the engine mpi is not tested");
#endif
    tcase_add_test(alone, single_rank_needs_no_other_ranks);
    tcase_add_test(alone, every_failed_allocation_is_an_error);
    return run_cases("dist/ddp", ranks, alone);
}
