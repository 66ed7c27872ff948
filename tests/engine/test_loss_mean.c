/* test_loss_mean.c: the loss of an update whose batch comes in parts: micro steps, ranks (threads, team.h), shards.
 * Loss and gradients are those of one batch, also where targets have different weights or nothing counts in a part. The
 * batches are PyTorch's (loss_mean.golden) and random ones. */
#include "tests/cases.h"
#include "tests/engine/team.h"

#include "engine/rng.h"
#include "engine/session/session.h"
#include "tests/golden/golden.h"
#include "tests/says.h"
#include "tests/suite.h"

#define CHECKED(call) ck_assert_msg((call) == REMAT_OK, "%s: %s", #call, remat_last_error())

/* ---- Losses ----------------------------------------------------------------------------------------------------- */

typedef enum { IGNORE, WEIGHTS, SMOOTHED, LAST, PIXELS, MSE, MAE, HUBER, BCE, CTC, KINDS } kind;
static const char *const kind_name[] = {"ignore", "weights", "smoothed", "last", "pixels",
                                        "mse",    "mae",     "huber",    "bce",  "ctc"};
enum { T = 5, F = 3, H = 6, K = 4, PLACES = 6, LABELS = 3, MOST = 32, IGNORED = -100, FIELDS = 3 };
static const float class_weight[K] = {0.5f, 2, 1.25f, 0};

/* An input for all samples. `along` is the sample axis; -1: none. */
typedef struct {
    const char *name;
    remat_dtype dtype;
    int rank, along;
    int64_t dim[4];
    union {
        float real[T * MOST * PLACES * K];
        int32_t integer[T * MOST * PLACES];
    };
} field;

typedef struct {
    kind kind;
    int64_t samples;
    field field[FIELDS]; /* x, targets, and the loss's other inputs */
    float parameter[4][H * H];
} problem;

static const char *const parameter_name[] = {"hidden.weight", "hidden.bias", "head.weight", "head.bias"};
static const int64_t parameter_dim[][2] = {{H, F}, {H, 1}, {K, H}, {K, 1}};

static void set_field(field *f, const char *name, remat_dtype dtype, int rank, int along, const int64_t *dim) {
    *f = (field){.name = name, .dtype = dtype, .rank = rank, .along = along};
    for (int i = 0; i < rank; i++) f->dim[i] = dim[i];
}

static void shape_fields(problem *p) {
    int64_t n = p->samples;
    field *f = p->field;
    bool pixels = p->kind == PIXELS, reals = p->kind >= MSE && p->kind <= BCE;
    set_field(&f[0], "x", REMAT_F32, 3, !pixels, pixels ? (int64_t[]){n, PLACES, F} : (int64_t[]){T, n, F});
    if (pixels)
        set_field(&f[1], "targets", REMAT_I32, 2, 0, (int64_t[]){n, PLACES});
    else if (p->kind == LAST)
        set_field(&f[1], "targets", REMAT_I32, 1, 0, &n);
    else if (p->kind == CTC)
        set_field(&f[1], "targets", REMAT_I32, 2, 0, (int64_t[]){n, LABELS});
    else
        set_field(&f[1], "targets", reals ? REMAT_F32 : REMAT_I32, reals ? 3 : 2, 1, (int64_t[]){T, n, K});
    f[2].name = NULL;
    if (reals) set_field(&f[2], "padding", REMAT_I32, 2, 1, (int64_t[]){T, n});
    if (p->kind == CTC) set_field(&f[2], "input_lengths", REMAT_I32, 1, 0, &n);
    if (p->kind == WEIGHTS || p->kind == SMOOTHED) set_field(&f[2], "class_weights", REMAT_F32, 1, -1, (int64_t[]){K});
}

static int64_t count_of(const field *f) {
    int64_t n = 1;
    for (int i = 0; i < f->rank; i++) n *= f->dim[i];
    return n;
}

/* Writes every field's part for samples first .. first + n - 1. */
static void write_samples(const problem *p, remat_session *s, int64_t first, int64_t n) {
    for (int i = 0; i < FIELDS && p->field[i].name; i++) {
        const field *f = &p->field[i];
        int64_t before = 1, after = 1, all = f->along < 0 ? 1 : f->dim[f->along], here = f->along < 0 ? 1 : n;
        for (int d = 0; d < f->along; d++) before *= f->dim[d];
        for (int d = f->along + 1; d < f->rank; d++) after *= f->dim[d];
        int32_t *data = malloc((size_t)(before * here * after) * 4);
        for (int64_t b = 0; b < before; b++)
            memcpy(data + b * here * after, f->integer + (b * all + (f->along < 0 ? 0 : first)) * after,
                   (size_t)(here * after) * 4);
        CHECKED(remat_write(s, REMAT_INPUT, remat_find(s, REMAT_INPUT, f->name), data,
                            (uint64_t)(before * here * after) * 4));
        free(data);
    }
}

static remat_value loss_of(remat_graph *g, kind k, remat_value y, remat_value targets, remat_value more) {
    switch (k) {
    case MSE:
        return remat_mse_padded(g, y, targets, more);
    case MAE:
        return remat_mae_padded(g, y, targets, more);
    case HUBER:
        return remat_huber_padded(g, y, targets, more, 1);
    case BCE:
        return remat_bce_with_logits_padded(g, y, targets, more);
    case CTC:
        return remat_ctc(g, y, targets, more, REMAT_NONE, 0, false);
    case LAST:
        y = remat_last_step(g, y); /* fallthrough */
    default:
        return remat_softmax_cross_entropy_weighted(g, y, targets, more, IGNORED, k == SMOOTHED ? 0.2 : 0);
    }
}

/* A session for `n` samples at a time, with the problem's parameters. */
static remat_session *open_part(const problem *p, int64_t n, const remat_config *config) {
    remat_graph *g;
    remat_session *s;
    remat_value input[FIELDS] = {REMAT_NONE}, w[4];
    CHECKED(remat_graph_create(&g));
    for (int i = 0; i < FIELDS && p->field[i].name; i++) {
        const field *f = &p->field[i];
        int64_t dim[4];
        for (int d = 0; d < f->rank; d++) dim[d] = d == f->along ? n : f->dim[d];
        input[i] = remat_input(g, f->name, f->dtype, f->along == 1 ? REMAT_SEQUENCE : REMAT_STATIC, f->rank, dim);
    }
    for (int i = 0; i < 4; i++)
        w[i] = remat_param(g, parameter_name[i], i % 2 ? 1 : 2, parameter_dim[i], remat_init_zero());
    remat_value h = remat_tanh(g, remat_linear(g, input[0], w[0], w[1]));
    CHECKED(
        remat_session_create(g, loss_of(g, p->kind, remat_linear(g, h, w[2], w[3]), input[1], input[2]), config, &s));
    remat_graph_free(g);
    for (int i = 0; i < 4; i++)
        CHECKED(remat_write(s, REMAT_PARAM, i, p->parameter[i],
                            (uint64_t)(parameter_dim[i][0] * parameter_dim[i][1]) * sizeof(float)));
    return s;
}

/* ---- An update in parts ----------------------------------------------------------------------------------------- */

enum { NUMBERS = H * F + H + K * H + K };

/* Loss, norm and counted of the last update; gradients before it, parameters after it. */
typedef struct {
    double loss, norm, counted;
    float gradient[NUMBERS], parameter[NUMBERS];
} outcome;

typedef struct {
    const problem *p;
    remat_config config;
    int updates;
    outcome out;
} member;

static void read_numbers(remat_session *s, remat_kind what, float *out) {
    for (int i = 0; i < 4; i++) {
        int64_t n = parameter_dim[i][0] * parameter_dim[i][1];
        CHECKED(remat_read(s, what, i, out, (uint64_t)n * sizeof *out));
        out += n;
    }
}

/* Shard j has the j-th of equal parts of the samples, so that the batch does not depend on the order of shards. */
static void train_part(teammate *mate) {
    member *m = mate->data;
    remat_config config = m->config;
    remat_step_result r = {0};
    config.ranks = &mate->ranks;
    config.threads = 1;
    int64_t steps = config.micro_steps, n = m->p->samples / (steps * mate->ranks.size);
    remat_session *s = open_part(m->p, n, &config);
    for (int update = 0; update < m->updates; update++) {
        for (int64_t t = 0; t < steps; t++) {
            int64_t shard = mate->rank + mate->ranks.size * remat_micro_shard(t, steps, config.deterministic_world);
            write_samples(m->p, s, shard * n, n);
            if (!mate->ranks.fused_update) CHECKED(remat_gradients(s, &r));
        }
        if (!mate->ranks.shard_optimizer && !mate->ranks.fused_update) read_numbers(s, REMAT_GRADIENT, m->out.gradient);
        if (config.optimizer && mate->ranks.fused_update) CHECKED(remat_step(s, 0.1, &r));
        if (config.optimizer && !mate->ranks.fused_update) {
            double loss = r.loss;
            CHECKED(remat_update(s, 0.1, &r));
            r.loss = loss;
        }
    }
    m->out.loss = r.loss, m->out.norm = r.grad_norm, m->out.counted = r.counted;
    read_numbers(s, REMAT_PARAM, m->out.parameter);
    remat_session_free(s);
}

typedef struct {
    int ranks, micro_steps, updates;
    bool deterministic_world, zero, fused;
    const char *optimizer, *strategy, *loss_mean;
    int64_t tile, segments;
    double clip;
} way;

static outcome train(const problem *p, way how) {
    static member m[TEAM_MOST];
    void *data[TEAM_MOST] = {0};
    for (int r = 0; r < how.ranks; r++) {
        m[r] = (member){.p = p, .config = REMAT_CONFIG_INIT, .updates = how.updates ? how.updates : 1};
        remat_config *c = &m[r].config;
        c->micro_steps = how.micro_steps;
        c->deterministic_world = how.deterministic_world;
        c->optimizer = how.optimizer;
        if (how.strategy) c->strategy = how.strategy;
        c->segments = how.segments;
        c->tile = how.tile;
        c->clip_grad_norm = how.clip;
        c->loss_mean = how.loss_mean;
        data[r] = &m[r];
    }
    remat_ranks like = {
        .first_bucket_bytes = 64, .bucket_bytes = 100, .shard_optimizer = how.zero, .fused_update = how.fused};
    team_run(&(team){.size = how.ranks, .deterministic_world = how.deterministic_world}, &like, train_part, data);
    for (int r = 1; r < how.ranks; r++) {
        ck_assert(m[r].out.loss == m[0].out.loss && m[r].out.counted == m[0].out.counted);
        ck_assert(!memcmp(m[r].out.parameter, m[0].out.parameter, sizeof m[r].out.parameter));
    }
    return m[0].out;
}

static void expect_near(const float *a, const float *b, double part, const char *what, kind k, way how) {
    double largest = 0;
    for (int i = 0; i < NUMBERS; i++) largest = fmax(largest, fabs((double)b[i]));
    for (int i = 0; i < NUMBERS; i++)
        ck_assert_msg(fabs((double)a[i] - (double)b[i]) <= part * largest,
                      "%s: %s %d is %.9g on %d ranks in %d micro steps%s, and %.9g of one batch", kind_name[k], what, i,
                      (double)a[i], how.ranks, how.micro_steps, how.deterministic_world ? ", deterministic_world" : "",
                      (double)b[i]);
}

/* ---- PyTorch's numbers ------------------------------------------------------------------------------------------ */

#define WAY(r, k, tree)                                                                                                \
    { .ranks = r, .micro_steps = k, .deterministic_world = tree }
static const way ways[] = {WAY(1, 1, false), WAY(1, 2, false), WAY(2, 1, false), WAY(1, 4, false), WAY(2, 2, false),
                           WAY(4, 1, false), WAY(1, 4, true),  WAY(2, 2, true),  WAY(4, 1, true)};

static problem golden_problem(const golden *g, kind k) {
    problem p = {.kind = k, .samples = 4};
    shape_fields(&p);
    for (int i = 0; i < FIELDS && p.field[i].name; i++) {
        const golden_array *a = golden_find(g, kind_name[k], p.field[i].name);
        ck_assert_int_eq(a->count, count_of(&p.field[i]));
        memcpy(p.field[i].integer, a->data, (size_t)a->count * 4);
    }
    for (int i = 0; i < 4; i++) {
        const golden_array *a = golden_find(g, kind_name[k], parameter_name[i]);
        memcpy(p.parameter[i], a->data, (size_t)a->count * 4);
    }
    return p;
}

/* The tolerance is a few float roundings in each of about twenty terms. */
START_TEST(parts_match_one_batch_of_pytorch) {
    golden *g = golden_open("loss_mean");
    const kind k = (kind)_i;
    const problem p = golden_problem(g, k);
    double loss = *(const double *)golden_find(g, kind_name[k], "loss")->data;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        outcome o = train(&p, ways[i]);
        float *gradient = o.gradient;
        ck_assert_msg(fabs(o.loss - loss) <= 4e-7 * loss, "%s: loss %.9g on %d ranks in %d micro steps, not %.9g",
                      kind_name[k], o.loss, ways[i].ranks, ways[i].micro_steps, loss);
        for (int w = 0; w < 4; w++) {
            char name[32];
            snprintf(name, sizeof name, "d_%s", parameter_name[w]);
            golden_compare(golden_find(g, kind_name[k], name), gradient, 40);
            gradient += parameter_dim[w][0] * parameter_dim[w][1];
        }
    }
    golden_close(g);
}
END_TEST

/* ---- Random batches --------------------------------------------------------------------------------------------- */

typedef struct {
    uint64_t seed, n;
} source;
static double real(source *s) { return (double)rm_random(s->seed, s->n++, 0, 0, 0) / 0x1p31 - 1; }
static uint32_t below(source *s, uint32_t n) { return rm_random(s->seed, s->n++, 1, 0, 0) % n; }

/* In some samples no target counts; in others all or some do. */
static void fill(problem *p, source *s, bool all_count) {
    shape_fields(p);
    field *f = p->field, *t = &f[1];
    int64_t n = p->samples, rows = count_of(t) / (p->kind >= MSE && p->kind <= BCE ? K : 1);
    int how[MOST];
    for (int64_t i = 0; i < n; i++) how[i] = all_count ? 2 : (int)below(s, 4); /* 0: nothing, 1: some, else: all */
    for (int64_t i = 0; i < count_of(&f[0]); i++) f[0].real[i] = (float)real(s);
    for (int64_t i = 0; i < rows; i++) {
        int64_t sample = t->along == 1 ? i % n : i / (rows / n);
        bool counts = how[sample] > 1 || (how[sample] == 1 && below(s, 2));
        if (t->dtype == REMAT_F32) {
            f[2].integer[i] = !counts;
            for (int v = 0; v < K; v++) t->real[i * K + v] = (float)(p->kind == BCE ? fabs(real(s)) : real(s));
        } else if (p->kind == CTC) {
            t->integer[i] = i % LABELS < 1 ? 1 + (int32_t)below(s, K - 1) : -1;
        } else {
            t->integer[i] = counts ? (int32_t)below(s, K) : IGNORED;
        }
    }
    for (int64_t i = 0; p->kind == CTC && i < n; i++) f[2].integer[i] = 1 + (int32_t)below(s, T);
    if (p->kind == WEIGHTS || p->kind == SMOOTHED) memcpy(f[2].real, class_weight, sizeof class_weight);
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < H * H; j++) p->parameter[i][j] = (float)(0.6 * real(s));
}

static problem random_problem(uint64_t seed, source *s) {
    *s = (source){seed, 0};
    problem p = {.kind = (kind)(seed % KINDS), .samples = 8 << below(s, 2)};
    fill(&p, s, false);
    return p;
}

START_TEST(parts_match_one_batch) {
    source s;
    const problem p = random_problem((uint64_t)_i, &s);
    way one = {.ranks = 1,
               .micro_steps = 1,
               .updates = 2,
               .optimizer = below(&s, 2) ? "sgd" : "lars",
               .clip = below(&s, 2) ? 0.05 : 0};
    const outcome whole = train(&p, one);
    for (int i = 0; i < 4; i++) {
        way how = one;
        how.ranks = 1 << below(&s, 4);
        how.micro_steps = 1 << below(&s, 4);
        while (how.ranks * how.micro_steps > 8) how.ranks /= 2;
        how.zero = below(&s, 2);
        how.fused = how.micro_steps == 1 && below(&s, 2);
        how.tile = below(&s, T + 1);
        how.strategy = below(&s, 2) ? "segments" : "none";
        how.segments = 1 + below(&s, 4);
        how.deterministic_world = below(&s, 2);
        const outcome o = train(&p, how);
        ck_assert_msg(fabs(o.loss - whole.loss) <= 1e-6 * (0.1 + fabs(whole.loss)),
                      "seed %d, %s: loss %.9g on %d ranks in %d micro steps, %.9g of one batch", _i, kind_name[p.kind],
                      o.loss, how.ranks, how.micro_steps, whole.loss);
        ck_assert_msg(fabs(o.norm - whole.norm) <= 1e-5 * (0.01 + whole.norm), "norm %.9g, %.9g of one batch", o.norm,
                      whole.norm);
        ck_assert_msg(fabs(o.counted - whole.counted) <= 1e-6 * whole.counted, "%.9g counts, %.9g of one batch",
                      o.counted, whole.counted);
        expect_near(o.parameter, whole.parameter, 2e-4, "parameter", p.kind, how);
        if (!how.zero && !how.fused) expect_near(o.gradient, whole.gradient, 2e-5, "gradient", p.kind, how);
    }
}
END_TEST

static void expect_bits(const outcome *a, const outcome *b, const char *what, kind k) {
    ck_assert_msg(a->loss == b->loss && a->norm == b->norm, "%s, %s: loss %.17g and %.17g, norm %.17g and %.17g",
                  kind_name[k], what, a->loss, b->loss, a->norm, b->norm);
    ck_assert_msg(!memcmp(a->parameter, b->parameter, sizeof a->parameter), "%s, %s: parameters", kind_name[k], what);
}

START_TEST(means_depend_on_shards_alone) {
    source s;
    const problem p = random_problem((uint64_t)_i + 100, &s);
    way how = {.ranks = 1,
               .micro_steps = 8,
               .updates = 3,
               .optimizer = "adam",
               .deterministic_world = true,
               .clip = below(&s, 2) ? 0.05 : 0};
    const outcome first = train(&p, how);
    for (int ranks = 2; ranks <= 8; ranks *= 2) {
        how.ranks = ranks;
        how.micro_steps = 8 / ranks;
        how.zero = !how.clip && below(&s, 2); /* the norm of parts is summed in another order */
        const outcome o = train(&p, how);
        if (how.zero) ck_assert(!memcmp(o.parameter, first.parameter, sizeof o.parameter));
        if (!how.zero) expect_bits(&o, &first, "ranks", p.kind);
    }
}
END_TEST

START_TEST(every_plan_has_the_same_mean) {
    source s;
    const problem p = random_problem((uint64_t)_i + 200, &s);
    way how = {.ranks = 1 << below(&s, 2), .micro_steps = 2, .updates = 2, .optimizer = "sgd", .tile = 2};
    const outcome first = train(&p, how);
    how.strategy = "segments";
    for (how.segments = 1; how.segments <= 3; how.segments++) {
        const outcome o = train(&p, how);
        expect_bits(&o, &first, "segments", p.kind);
    }
}
END_TEST

/* If all parts count equally, the mean of the means is the mean. */
START_TEST(equal_parts_have_the_bits_of_a_mean_of_means) {
    source s = {(uint64_t)_i + 300, 0};
    problem p = {.kind = (kind)(_i % CTC), .samples = 8};
    fill(&p, &s, true);
    field *t = &p.field[1];
    for (int64_t i = 0; i < count_of(t) && (p.kind == WEIGHTS || p.kind == SMOOTHED); i++) t->integer[i] = 1;
    for (size_t i = 1; i < sizeof ways / sizeof *ways; i++) {
        way how = ways[i];
        const outcome batch = train(&p, how);
        how.loss_mean = "parts";
        const outcome parts = train(&p, how);
        if (how.deterministic_world && (p.kind == WEIGHTS || p.kind == SMOOTHED)) continue; /* a class counts 2 */
        expect_bits(&batch, &parts, "means", p.kind);
        ck_assert(!memcmp(batch.gradient, parts.gradient, sizeof batch.gradient));
    }
}
END_TEST

START_TEST(if_no_target_counts_loss_and_gradients_are_0) {
    source s = {1, 0};
    problem p = {.kind = (kind)_i, .samples = 8};
    fill(&p, &s, true);
    bool reals = p.kind >= MSE && p.kind <= BCE;
    for (int64_t i = 0; i < T * 8 * PLACES; i++) {
        if (reals) p.field[2].integer[i] = 1;
        if (!reals) p.field[1].integer[i] = IGNORED;
    }
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        way how = ways[i];
        how.optimizer = "sgd";
        const outcome o = train(&p, how);
        ck_assert_msg(o.loss == 0 && o.norm == 0 && o.counted == 0, "loss %g, norm %g", o.loss, o.norm);
        for (int w = 0, at = 0; w < 4; at += (int)(parameter_dim[w][0] * parameter_dim[w][1]), w++)
            ck_assert(!memcmp(o.parameter + at, p.parameter[w],
                              (size_t)(parameter_dim[w][0] * parameter_dim[w][1]) * sizeof(float)));
    }
}
END_TEST

/* ---- What a call reports ---------------------------------------------------------------------------------------- */

START_TEST(a_call_reports_the_weight_of_its_loss) {
    source s = {5, 0};
    problem p = {.kind = IGNORE, .samples = 4};
    fill(&p, &s, true);
    for (int i = 0; i < T; i++) p.field[1].integer[4 * i] = IGNORED;     /* sample 0 */
    for (int i = 1; i < T; i++) p.field[1].integer[4 * i + 1] = IGNORED; /* sample 1, except for its first target */
    remat_config config = REMAT_CONFIG_INIT;
    remat_step_result r, alone[4];
    config.threads = 1;
    config.micro_steps = 4;
    remat_session *session = open_part(&p, 1, &config);
    const double counted[] = {0, 1, T, T};
    double sum = 0, total = 0;
    for (int t = 0; t < 4; t++) {
        write_samples(&p, session, t, 1);
        CHECKED(remat_evaluate(session, &alone[t]));
        ck_assert(alone[t].counted == counted[t]);
        CHECKED(remat_gradients(session, &r));
        sum += alone[t].loss * counted[t];
        total += counted[t];
        ck_assert(r.counted == total);
        ck_assert_msg(fabs(r.loss - (total > 0 ? sum / total : 0)) <= 1e-6, "%d: %.9g", t, r.loss);
    }
    remat_session_free(session);
}
END_TEST

/* ---- Refusals --------------------------------------------------------------------------------------------------- */

typedef enum {
    TWICE,
    SCALED,
    FROM_OUTSIDE, /* by custom ops */
    ALL_COUNT,
    PLUS_ANOTHER, /* refused from here on */
    PLUS_PLAIN,
    SQUARED,
    TRAINED_WEIGHTS,
    OUTPUT_BESIDE,
    COUNTED_LATER,
    COMPOSED
} composed;

static remat_value apply(remat_graph *g, const remat_op *op, const remat_value *x, int n, const void *attr) {
    remat_value y;
    CHECKED(remat_apply(g, op, x, n, attr, &y));
    return y;
}

/* Cross-entropy by copies of built-in ops; `total` REMAT_NONE: the number of targets. */
static remat_value loss_from_outside(remat_graph *g, remat_value y, remat_value targets, remat_value total) {
    static remat_op loss, count;
    loss = *rm_op_find("softmax_cross_entropy"), count = *rm_op_find("target_weight");
    loss.name = "loss_from_outside", count.name = "count_from_outside";
    if (!total.id) total = apply(g, &count, &targets, 1, &(rm_target_weight_attr){K, IGNORED});
    const remat_value x[] = {y, targets, REMAT_NONE, total};
    return apply(g, &loss, x, 4, &(rm_cross_entropy_attr){0, 1, IGNORED});
}

static remat_status compose(composed c, int micro_steps, const char *loss_mean) {
    remat_graph *g;
    remat_session *s = NULL;
    const int64_t rows[] = {2, 3};
    CHECKED(remat_graph_create(&g));
    remat_value x = remat_input(g, "x", REMAT_F32, REMAT_SEQUENCE, 3, (int64_t[]){2, 3, F});
    remat_value targets = remat_input(g, "targets", REMAT_I32, REMAT_SEQUENCE, 2, rows);
    remat_value others = remat_input(g, "others", REMAT_I32, REMAT_SEQUENCE, 2, rows);
    remat_value numbers = remat_input(g, "numbers", REMAT_F32, REMAT_STATIC, 1, rows);
    remat_value w = remat_param(g, "w", 2, (int64_t[]){K, F}, remat_init_uniform(1)), weights = REMAT_NONE;
    if (c == TRAINED_WEIGHTS) weights = remat_param(g, "weights", 1, (int64_t[]){K}, remat_init_constant(1));
    remat_value y = remat_linear(g, x, w, REMAT_NONE), plain = remat_softmax_cross_entropy(g, y, targets);
    remat_value loss = remat_softmax_cross_entropy_weighted(g, y, targets, weights, IGNORED, 0);
    remat_value more = remat_softmax_cross_entropy_weighted(g, remat_tanh(g, y), c == TWICE ? targets : others,
                                                            REMAT_NONE, IGNORED, 0);
    if (c == TWICE || c == PLUS_ANOTHER) loss = remat_add(g, loss, more);
    if (c == SCALED) loss = remat_scale(g, loss, 0.5);
    if (c == PLUS_PLAIN) loss = remat_add(g, loss, plain);
    if (c == SQUARED) loss = remat_mul(g, loss, loss);
    if (c == ALL_COUNT) loss = plain;
    if (c == FROM_OUTSIDE) loss = loss_from_outside(g, y, targets, REMAT_NONE);
    if (c == COUNTED_LATER) loss = loss_from_outside(g, y, targets, remat_mean(g, numbers, 1));
    remat_config config = REMAT_CONFIG_INIT;
    config.threads = 1;
    config.micro_steps = micro_steps;
    config.loss_mean = loss_mean;
    if (c == OUTPUT_BESIDE) config.outputs = &y, config.n_outputs = config.n_differentiated = 1;
    remat_status status = remat_session_create(g, loss, &config, &s);
    if (s) ck_assert_msg(s->weighs == (micro_steps > 1 && !loss_mean && c != ALL_COUNT), "loss %d", (int)c);
    remat_session_free(s);
    remat_graph_free(g);
    return status;
}

START_TEST(losses_without_a_single_divisor_are_refused) {
    static const char *const why[COMPOSED] = {[PLUS_ANOTHER] = "terms|loss|count",
                                              [PLUS_PLAIN] = "terms|loss|count",
                                              [SQUARED] = "terms|loss|count",
                                              [TRAINED_WEIGHTS] = "class|weights|trained",
                                              [OUTPUT_BESIDE] = "outputs|differentiated",
                                              [COUNTED_LATER] = "loss|divi|inputs"};
    for (composed c = 0; c < COMPOSED; c++) {
        CHECKED(compose(c, 1, NULL));
        ck_assert_int_eq(compose(c, 2, NULL), why[c] ? REMAT_INVALID : REMAT_OK);
        if (why[c]) ck_says_all(remat_last_error(), why[c]);
        if (why[c]) ck_says_all(remat_last_error(), "loss_mean|parts");
        ck_assert_int_eq(compose(c, 2, "parts"), c == ALL_COUNT ? REMAT_INVALID : REMAT_OK);
        if (c == ALL_COUNT) ck_says_all(remat_last_error(), "parts|equal");
    }
    ck_assert_int_eq(compose(SCALED, 1, "batches"), REMAT_INVALID);
    ck_says_all(remat_last_error(), "loss_mean|batches|batch or parts");
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("loss mean");
    tcase_set_timeout(tests, 300);
    tcase_add_loop_test(tests, parts_match_one_batch_of_pytorch, 0, KINDS);
    tcase_add_loop_test(tests, parts_match_one_batch, 0, rm_cases(300, 2 * KINDS));
    tcase_add_loop_test(tests, means_depend_on_shards_alone, 0, rm_cases(100, KINDS));
    tcase_add_loop_test(tests, every_plan_has_the_same_mean, 0, rm_cases(100, KINDS));
    tcase_add_loop_test(tests, equal_parts_have_the_bits_of_a_mean_of_means, 0, CTC);
    tcase_add_loop_test(tests, if_no_target_counts_loss_and_gradients_are_0, 0, CTC);
    tcase_add_test(tests, a_call_reports_the_weight_of_its_loss);
    tcase_add_test(tests, losses_without_a_single_divisor_are_refused);
    return run_cases("loss mean", tests);
}
