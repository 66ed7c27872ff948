/* test_external.c: arrays in the program's own memory (remat_config.external): the bits are the same, and the arena is
 * smaller by exactly their size. Addresses of all other arrays (remat_array_memory). */
#include "engine/abi.h"
#include "tests/cases.h"
#include "tests/engine/random_net.h"
#include "tests/says.h"
#include "tests/suite.h"

enum { T = 29, B = 2, C = 5 };
typedef float sequence[T][B][C];

static remat_value describe(net *n, remat_value *x, remat_value *y) {
    const int64_t dim[] = {T, B, C};
    *n = (net){.width = C};
    ck_assert(!remat_graph_create(&n->graph));
    *x = remat_input(n->graph, "x", REMAT_F32, REMAT_SEQUENCE, 3, dim);
    remat_value back = remat_reverse(n->graph, *x),
                target = remat_input(n->graph, "target", REMAT_F32, REMAT_SEQUENCE, 3, dim);
    *y = remat_rnn_tanh(n->graph, remat_add(n->graph, back, remat_scale(n->graph, back, 0.5)), param(n, 2, C, C),
                        param(n, 2, C, C), REMAT_NONE, REMAT_NONE); /* a reversed output */
    return remat_mse(n->graph, remat_linear(n->graph, remat_reverse(n->graph, *y), param(n, 2, C, C), REMAT_NONE),
                     target);
}

static void fill(sequence x, int seed) {
    for (int i = 0; i < T * B * C; i++) (&x[0][0][0])[i] = (float)sin(seed + 3 * i);
}

typedef struct {
    sequence y, seen; /* after a step; after an evaluation of another x */
    float gradient[C * C];
    double loss;
    uint64_t bytes;
} outcome;

static remat_config configured(const remat_value *output) {
    remat_config config = REMAT_CONFIG_INIT;
    config.tile = 4;
    config.threads = 1;
    config.strategy = "sqrt";
    config.calibration = ""; /* programs are measured on external memory */
    config.outputs = output;
    config.n_outputs = 1;
    return config;
}

static void copied(outcome *o) {
    net n;
    sequence x;
    remat_session *s;
    remat_step_result r;
    remat_value in, out, loss = describe(&n, &in, &out);
    remat_config config = configured(&out);
    ck_assert_msg(!remat_session_create(n.graph, loss, &config, &s), "%s", remat_last_error());
    o->bytes = rm_plan_summary_of(s).planned_peak_bytes;
    fill(x, 2);
    ck_assert(!remat_write(s, REMAT_INPUT, 1, x, sizeof x));
    fill(x, 1);
    ck_assert(!remat_write(s, REMAT_INPUT, 0, x, sizeof x) && !remat_gradients(s, &r));
    o->loss = r.loss;
    ck_assert(!remat_read(s, REMAT_OUTPUT, 0, o->y, sizeof o->y));
    ck_assert(!remat_read(s, REMAT_GRADIENT, 0, o->gradient, sizeof o->gradient));
    fill(x, 5);
    ck_assert(!remat_write(s, REMAT_INPUT, 0, x, sizeof x) && !remat_evaluate(s, NULL));
    ck_assert(!remat_read(s, REMAT_OUTPUT, 0, o->seen, sizeof o->seen));
    remat_session_free(s);
    remat_graph_free(n.graph);
}

static void lent(outcome *o) {
    net n;
    static sequence x, other, read;
    remat_session *s;
    remat_step_result r;
    remat_value in, out, loss = describe(&n, &in, &out);
    remat_config config = configured(&out);
    config.external = (remat_external[]){{REMAT_OUTPUT, "output.0", o->y}, {REMAT_INPUT, "x", x}};
    config.n_external = 2;
    ck_assert_msg(!remat_session_create(n.graph, loss, &config, &s), "%s", remat_last_error());
    o->bytes = rm_plan_summary_of(s).planned_peak_bytes;
    fill(read, 2);
    ck_assert(!remat_write(s, REMAT_INPUT, 1, read, sizeof read));
    fill(x, 1);
    ck_assert(!remat_gradients(s, &r));
    o->loss = r.loss;
    ck_assert_uint_eq(r.arena_peak_bytes, o->bytes);
    ck_assert(!remat_read(s, REMAT_OUTPUT, 0, read, sizeof read) && !memcmp(read, o->y, sizeof read));
    ck_assert(!remat_read(s, REMAT_GRADIENT, 0, o->gradient, sizeof o->gradient));
    fill(other, 5);
    ck_assert(!remat_forward(s));
    ck_assert(!remat_set_external(s, REMAT_INPUT, 0, other, sizeof other));
    ck_assert(!remat_set_external(s, REMAT_OUTPUT, 0, o->seen, sizeof o->seen));
    ck_assert_int_eq(remat_backward(s, NULL), REMAT_INVALID); /* the inputs changed after the forward pass */
    ck_assert(!remat_evaluate(s, NULL));
    ck_assert_int_eq(remat_set_external(s, REMAT_INPUT, 1, other, sizeof other), REMAT_INVALID);
    ck_says_all(remat_last_error(), "target|arena");
    ck_assert_int_eq(remat_set_external(s, REMAT_INPUT, 0, other, 4), REMAT_INVALID);
    ck_assert_int_eq(remat_set_external(s, REMAT_INPUT, 0, (char *)other + 1, sizeof other), REMAT_INVALID);
    ck_says_all(remat_last_error(), "x|4 bytes");
    remat_session_free(s);
    remat_graph_free(n.graph);
}

START_TEST(external_memory_has_the_same_bits_in_a_smaller_arena) {
    static outcome a, b;
    copied(&a), lent(&b);
    ck_assert(a.loss == b.loss);
    ck_assert(!memcmp(a.gradient, b.gradient, sizeof a.gradient));
    ck_assert(!memcmp(a.y, b.y, sizeof a.y) && !memcmp(a.seen, b.seen, sizeof a.seen));
    ck_assert_uint_eq(a.bytes - b.bytes, 2 * ((sizeof(sequence) + 63) / 64 * 64));
}
END_TEST

/* A session that only plans allocates memory while it measures; the null device reads none. */
START_TEST(planning_needs_no_external_memory) {
    net n;
    remat_session *s;
    remat_value in, out, loss = describe(&n, &in, &out);
    remat_config config = configured(&out);
    config.external =
        (remat_external[]){{REMAT_OUTPUT, "output.0", NULL}, {REMAT_INPUT, "x", NULL}, {REMAT_PARAM, NULL, NULL}};
    config.n_external = 3;
    config.plan_only = _i;
    config.device = _i ? "cpu" : "null";
    ck_assert_msg(!remat_session_create(n.graph, loss, &config, &s), "%s", remat_last_error());
    ck_assert(_i || (!remat_gradients(s, NULL) && !remat_evaluate(s, NULL)));
    remat_session_free(s);
    remat_graph_free(n.graph);
}
END_TEST

START_TEST(invalid_external_memory_is_refused) {
    static const char *const words[] = {"input|nobody",
                                        "kind|100",
                                        "output|output.0",
                                        "external[0]|external[1]|array|once",
                                        "external|NULL",
                                        "external[0]|external[1]|array|once",
                                        "memory|NULL|remat_set_external"};
    static sequence memory;
    net n;
    remat_session *s;
    remat_value in, out, loss = describe(&n, &in, &out);
    remat_config config = configured(&out);
    const remat_external wrong[] = {{REMAT_INPUT, "nobody", memory},  {(remat_kind)100, "x", memory},
                                    {REMAT_OUTPUT, "output.0", NULL}, {REMAT_INPUT, "x", memory},
                                    {REMAT_INPUT, "x", memory},       {REMAT_INPUT, NULL, NULL},
                                    {REMAT_PARAM, NULL, memory}};
    config.n_outputs = _i != 2;
    config.external = _i == 4 ? NULL : (remat_external[]){{REMAT_INPUT, "x", memory}, wrong[_i]};
    config.n_external = 2;
    ck_assert_int_eq(remat_session_create(n.graph, loss, &config, &s), REMAT_INVALID);
    ck_says_all(remat_last_error(), words[_i]);
    remat_graph_free(n.graph);
}
END_TEST

/* ---- Every kind of array ---------------------------------------------------------------------------------------- */

enum { KINDS = REMAT_BUFFER + 1, MOST = 256 };
typedef struct {
    void *base[KINDS][MOST];
} memory;

/* At the least alignment that is allowed. */
static void *lend(memory *m, remat_session *s, int kind, int64_t i) {
    remat_array info;
    ck_assert(i < MOST && !remat_array_info(s, kind, i, &info));
    char *base = calloc(1, info.bytes + 8);
    ck_assert(!remat_set_external(s, kind, i, base + 4, info.bytes));
    free(m->base[kind][i]);
    m->base[kind][i] = base;
    return base + 4;
}

static void lend_all(memory *m, remat_session *s) {
    for (int kind = 0; kind < KINDS; kind++)
        for (int64_t i = 0; i < remat_count(s, kind); i++) lend(m, s, kind, i);
}

static void free_all(memory *m) {
    for (int kind = 0; kind < KINDS; kind++)
        for (int i = 0; i < MOST; i++) free(m->base[kind][i]);
}

static void copy(remat_session *from, remat_session *to, int kind) {
    for (int64_t i = 0; i < remat_count(from, kind); i++) {
        remat_array info;
        ck_assert(!remat_array_info(from, kind, i, &info));
        void *data = malloc(info.bytes);
        ck_assert(!remat_read(from, kind, i, data, info.bytes) && !remat_write(to, kind, i, data, info.bytes));
        free(data);
    }
}

/* Also where the program looks by itself. */
static uint64_t expect_same(remat_session *a, remat_session *b, int kind) {
    uint64_t bytes = 0;
    for (int64_t i = 0; i < remat_count(a, kind); i++) {
        remat_array info;
        void *memory;
        ck_assert(!remat_array_info(a, kind, i, &info));
        void *x = malloc(info.bytes);
        ck_assert(!remat_read(a, kind, i, x, info.bytes) && !remat_array_memory(b, kind, i, &memory));
        ck_assert_msg(!memcmp(x, memory, info.bytes), "array %s of kind %d", info.name, kind);
        bytes += info.bytes;
        free(x);
    }
    return bytes;
}

static const remat_kind compared[] = {REMAT_GRADIENT, REMAT_PARAM, REMAT_OPTIMIZER, REMAT_BUFFER};
enum { COMPARED = sizeof compared / sizeof *compared };

static uint64_t expect_same_updates(remat_session *a, remat_session *b, int micro_steps) {
    uint64_t bytes = 0;
    for (int i = 0; i < micro_steps; i++) {
        remat_step_result ra, rb;
        ck_assert_msg(!outside_gradients(a, &ra), "%s", remat_last_error());
        ck_assert_msg(!outside_gradients(b, &rb), "%s", remat_last_error());
        ck_assert(ra.loss == rb.loss && ra.grad_norm == rb.grad_norm);
    }
    ck_assert(!remat_update(a, 0.01, NULL) && !remat_update(b, 0.01, NULL));
    for (int k = 0; k < COMPARED; k++) bytes += expect_same(a, b, compared[k]);
    ck_assert(!remat_evaluate(a, NULL) && !remat_evaluate(b, NULL));
    return bytes + expect_same(a, b, REMAT_OUTPUT);
}

static remat_session *opened(const net *n, remat_value loss, const remat_config *config) {
    remat_session *s;
    ck_assert_msg(!remat_session_create(n->graph, loss, config, &s), "%s", remat_last_error());
    return s;
}

START_TEST(every_kind_of_array_may_be_external) {
    static const char *const strategies[] = {"none", "sqrt", "lean", "segments", "optimal"};
    static const remat_external all[] = {{REMAT_INPUT, NULL, NULL},           {REMAT_PARAM, NULL, NULL},
                                         {REMAT_GRADIENT, NULL, NULL},        {REMAT_OUTPUT, NULL, NULL},
                                         {REMAT_OUTPUT_GRADIENT, NULL, NULL}, {REMAT_OPTIMIZER, NULL, NULL},
                                         {REMAT_BUFFER, NULL, NULL}};
    for (int i = 0; i < rm_cases(200, 12); i++) {
        net n;
        memory m = {0};
        rng_state = (uint64_t)(100 * i + _i);
        remat_value loss = random_net_with(&n, draw(4), draw(2));
        differentiate_some(&n);
        remat_config config = REMAT_CONFIG_INIT;
        config.tile = 1 + draw(5);
        config.threads = 1 + (int)draw(2);
        config.strategy = strategies[_i];
        config.segments = 2;
        config.optimizer = "adam";
        config.micro_steps = 1 << draw(3);
        config.deterministic_world = draw(2);
        ask_for_outputs(&config, &n);
        remat_session *a = opened(&n, loss, &config);
        config.external = all;
        config.n_external = sizeof all / sizeof *all;
        remat_session *b = opened(&n, loss, &config);
        ck_assert(remat_count(b, REMAT_INPUT) == 0 || remat_evaluate(b, NULL) == REMAT_INVALID);
        ck_says_all(remat_last_error(), "memory|remat_set_external");
        lend_all(&m, b);
        copy(a, b, REMAT_PARAM);
        copy(a, b, REMAT_BUFFER);
        fill_inputs(a, i), fill_inputs(b, i);
        uint64_t bytes = expect_same_updates(a, b, config.micro_steps);
        ck_assert_uint_ge(rm_plan_summary_of(a).planned_peak_bytes, rm_plan_summary_of(b).planned_peak_bytes + bytes);
        for (int64_t k = 0; k < remat_count(b, REMAT_PARAM); k++) { /* moved, in between */
            remat_array info;
            ck_assert(!remat_array_info(b, REMAT_PARAM, k, &info));
            lend(&m, b, REMAT_PARAM, k);
        }
        copy(a, b, REMAT_PARAM);
        expect_same_updates(a, b, config.micro_steps);
        remat_session_free(a), remat_session_free(b);
        remat_graph_free(n.graph);
        free_all(&m);
    }
}
END_TEST

/* Forward passes do not touch gradients. Gradients of outputs that no layer reads are only read. */
START_TEST(gradients_may_get_their_memory_after_the_forward_pass) {
    static sequence x, dy, seen;
    net n;
    remat_value in, out;
    describe(&n, &in, &out);
    remat_requires_grad(n.graph, in);
    remat_config config = configured(&out);
    config.n_differentiated = 1;
    remat_session *a = opened(&n, REMAT_NONE, &config);
    config.external = (remat_external[]){{REMAT_GRADIENT, NULL, NULL}, {REMAT_OUTPUT_GRADIENT, NULL, NULL}};
    config.n_external = 2;
    remat_session *b = opened(&n, REMAT_NONE, &config);
    memory m = {0};
    fill(x, 1), fill(dy, 2);
    memcpy(seen, dy, sizeof dy);
    for (int pass = 0; pass < 2; pass++) {
        ck_assert(!remat_write(a, REMAT_INPUT, 0, x, sizeof x) && !remat_forward(a));
        ck_assert(!remat_write(a, REMAT_OUTPUT_GRADIENT, 0, dy, sizeof dy) && !remat_backward(a, NULL));
        ck_assert(!remat_write(b, REMAT_INPUT, 0, x, sizeof x));
        ck_assert_msg(!remat_forward(b), "%s", remat_last_error());
        ck_assert(pass || remat_backward(b, NULL) == REMAT_INVALID);
        if (!pass) ck_says_all(remat_last_error(), "memory|remat_set_external");
        ck_assert(!remat_set_external(b, REMAT_OUTPUT_GRADIENT, 0, seen, sizeof seen));
        for (int64_t i = 0; i < remat_count(b, REMAT_GRADIENT); i++) lend(&m, b, REMAT_GRADIENT, i);
        ck_assert_msg(!remat_backward(b, NULL), "%s", remat_last_error());
        ck_assert_uint_gt(expect_same(a, b, REMAT_GRADIENT), sizeof x);
        ck_assert(!memcmp(seen, dy, sizeof dy));
        fill(x, 3);
    }
    remat_session_free(a), remat_session_free(b);
    remat_graph_free(n.graph);
    free_all(&m);
}
END_TEST

/* A session reads what the program wrote at an address, or into external memory, without a word. */
START_TEST(integers_that_the_program_writes_by_itself_are_checked) {
    enum { N = 4 };
    static int32_t own[N];
    const int64_t dim[] = {N};
    remat_graph *g;
    remat_session *s;
    void *tokens = own;
    remat_config config = REMAT_CONFIG_INIT;
    ck_assert(!remat_graph_create(&g));
    remat_value x = remat_input(g, "tokens", REMAT_I32, REMAT_STATIC, 1, dim);
    remat_value table = remat_param(g, "table", 2, (int64_t[]){3, 2}, remat_init_uniform(1));
    remat_value loss = remat_mean(g, remat_embedding(g, x, table), 2);
    config.external = &(remat_external){REMAT_INPUT, "tokens", own};
    config.n_external = _i;
    ck_assert_msg(!remat_session_create(g, loss, &config, &s), "%s", remat_last_error());
    if (!_i) ck_assert(!remat_array_memory(s, REMAT_INPUT, 0, &tokens));
    ((int32_t *)tokens)[2] = 2;
    ck_assert(!remat_gradients(s, NULL));
    ((int32_t *)tokens)[2] = 3;
    ck_assert_int_eq(remat_gradients(s, NULL), REMAT_INVALID);
    ck_says_all(remat_last_error(), "tokens|element 2|3");
    remat_session_free(s);
    remat_graph_free(g);
}
END_TEST

/* LSTMs keep rearranged copies of their weights. */
START_TEST(parameter_changed_by_the_program_is_used_as_a_whole) {
    static float own[2][4 * C * C];
    float changed[4 * C * C];
    net n = {.width = C};
    ck_assert(!remat_graph_create(&n.graph));
    remat_value x = remat_input(n.graph, "x", REMAT_F32, REMAT_SEQUENCE, 3, (int64_t[]){T, B, C});
    remat_value w = param(&n, 2, 4 * C, C), v = param(&n, 2, 4 * C, C);
    remat_value y = remat_lstm(n.graph, x, w, v, REMAT_NONE, REMAT_NONE);
    remat_value loss = remat_mse(n.graph, remat_linear(n.graph, y, v, REMAT_NONE),
                                 remat_linear(n.graph, x, w, REMAT_NONE)); /* read as they are, too */
    remat_config config = REMAT_CONFIG_INIT;
    remat_step_result a, b;
    sequence data;
    fill(data, 1);
    remat_session *like = opened(&n, loss, &config);
    config.external = (remat_external[]){{REMAT_PARAM, "p0", own[0]}, {REMAT_PARAM, "p1", own[1]}};
    config.n_external = _i == 1 ? 2 : 0;
    remat_session *s = opened(&n, loss, &config);
    if (_i == 1) copy(like, s, REMAT_PARAM);
    ck_assert(!remat_write(s, REMAT_INPUT, 0, data, sizeof data) && !remat_evaluate(s, NULL));
    ck_assert(!remat_write(like, REMAT_INPUT, 0, data, sizeof data));
    for (int i = 0; i < 4 * C * C; i++) changed[i] = (float)sin(i);
    ck_assert(!remat_write(like, REMAT_PARAM, 1, changed, sizeof changed) && !remat_gradients(like, &a));
    void *memory = own[1];
    if (_i == 0) ck_assert(!remat_array_memory(s, REMAT_PARAM, 1, &memory));
    for (int i = 0; i < 2; i++) {
        ((float *)memory)[0] += 1;
        ck_assert(!remat_gradients(s, &b) && a.loss != b.loss);
        memcpy(memory, changed, sizeof changed);
        ck_assert(!remat_gradients(s, &b));
        ck_assert(a.loss == b.loss && a.grad_norm == b.grad_norm);
    }
    remat_session_free(s), remat_session_free(like);
    remat_graph_free(n.graph);
}
END_TEST

/* What is reduced or gathered lies in buckets. */
static remat_status never(void *context, const remat_bucket *bucket) { return (void)context, (void)bucket, REMAT_OK; }
static remat_status never_sum(void *context, double *values, int64_t n) {
    return (void)context, (void)values, (void)n, REMAT_OK;
}
START_TEST(arrays_that_ranks_exchange_cannot_be_external) {
    net n;
    remat_session *s;
    remat_value in, out, loss = describe(&n, &in, &out);
    remat_config config = configured(&out);
    const remat_ranks ranks = {.struct_bytes = sizeof ranks,
                               .size = 2,
                               .reduce = never,
                               .wait = never,
                               .gather = never,
                               .gathered = never,
                               .sum = never_sum,
                               .shard_optimizer = _i == 1};
    config.ranks = &ranks;
    config.external = &(remat_external){_i ? REMAT_PARAM : REMAT_GRADIENT, NULL, NULL};
    config.n_external = 1;
    remat_status status = remat_session_create(n.graph, loss, &config, &s);
    ck_assert_int_eq(status, _i == 2 ? REMAT_OK : REMAT_INVALID);
    if (status) ck_says_all(remat_last_error(), _i ? "parameters|shard" : "gradients|ranks");
    if (!status) remat_session_free(s);
    remat_graph_free(n.graph);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("external");
    tcase_add_test(tests, external_memory_has_the_same_bits_in_a_smaller_arena);
    tcase_add_loop_test(tests, planning_needs_no_external_memory, 0, 2);
    tcase_add_loop_test(tests, invalid_external_memory_is_refused, 0, 7);
    tcase_add_loop_test(tests, every_kind_of_array_may_be_external, 0, 5);
    tcase_add_test(tests, gradients_may_get_their_memory_after_the_forward_pass);
    tcase_add_loop_test(tests, integers_that_the_program_writes_by_itself_are_checked, 0, 2);
    tcase_add_loop_test(tests, parameter_changed_by_the_program_is_used_as_a_whole, 0, 2);
    tcase_add_loop_test(tests, arrays_that_ranks_exchange_cannot_be_external, 0, 3);
    return run_cases("external", tests);
}
