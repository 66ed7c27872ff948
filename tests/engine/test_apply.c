/* test_apply.c: custom ops (remat_apply). Random networks are built twice: by Remat's builders, and by remat_apply from
 * copies of the same descriptors under other names. Both must get the same plans and the same bits. The one difference:
 * embeddings are not folded into custom ops. Invalid descriptors, inputs and results are refused. */
#include <math.h>

#include "engine/abi.h"
#include "engine/graph/graph.h"
#include "memory/host.h"
#include "tests/cases.h"
#include "tests/engine/random_net.h"
#include "tests/says.h"
#include "tests/suite.h"

#define CHECKED(call) ck_assert_msg((call) == REMAT_OK, "%s: %s", #call, remat_last_error())

/* ---- The same network of custom ops ----------------------------------------------------------------------------- */

enum { MOST_OPS = 128 };
static remat_op copies[MOST_OPS];
static char names[MOST_OPS][48];

/* A copy of a built-in op, as a custom op. */
static const remat_op *copy_of(const remat_op *op) {
    for (int i = 0; i < rm_n_ops && i < MOST_OPS; i++) {
        if (rm_ops[i] != op) continue;
        snprintf(names[i], sizeof names[i], "my_%s", op->name);
        copies[i] = *op;
        copies[i].name = names[i];
        return &copies[i];
    }
    ck_abort_msg("%s is not in the list", op->name);
    return NULL;
}

/* Values have the same ids in both networks. The op `but` stays built-in (NULL: none does). */
static remat_graph *from_outside(const remat_graph *graph, const char *but) {
    remat_graph *mine;
    CHECKED(remat_graph_create(&mine));
    for (int32_t v = 1; v < graph->n_values; v++) {
        const rm_value *value = &graph->value[v];
        const rm_node *node = &graph->node[value->node];
        remat_value made, inputs[REMAT_MAX_INPUTS], y = {node->y};
        for (int i = 0; i < REMAT_MAX_INPUTS; i++) inputs[i] = (remat_value){node->x[i]};
        if (value->origin == RM_VALUE_INPUT)
            made = remat_input(mine, value->name, value->desc.dtype, value->sequence ? REMAT_SEQUENCE : REMAT_STATIC,
                               value->desc.rank, value->desc.dim);
        else if (value->origin == RM_VALUE_PARAM)
            made = remat_param(mine, value->name, value->desc.rank, value->desc.dim, value->init);
        else if (value->origin == RM_VALUE_BUFFER)
            made = remat_buffer(mine, value->name, value->desc.rank, value->desc.dim, value->init);
        else if (value->view_of)
            made = remat_reshape(mine, (remat_value){value->view_of}, value->desc.rank, value->desc.dim);
        else if (value->state)
            made = remat_final_state(mine, y, value->state - 1);
        else if (but && !strcmp(node->op->name, but))
            CHECKED(remat_apply(mine, node->op, inputs, node->op->n_in, node->attr, &made));
        else
            CHECKED(remat_apply(mine, copy_of(node->op), inputs, node->op->n_in, node->attr, &made));
        ck_assert_int_eq(made.id, v);
        for (int k = 0; value->origin == RM_VALUE_RESULT && !value->state && k < node->op->n_state; k++)
            remat_initial_state(mine, made, k, (remat_value){rm_initial(node, k)});
    }
    return mine;
}

/* ---- Same plan, same run ---------------------------------------------------------------------------------------- */

static void expect_same_text(char *a, char *b, const char *what) {
    size_t same = 0;
    ck_assert_ptr_nonnull(a);
    while (a[same] && a[same] == b[same]) same++;
    ck_assert_msg(a[same] == b[same], "%s: the plan is ...%.40s, with custom ops ...%.40s", what, a + same, b + same);
    remat_text_free(a), remat_text_free(b);
}

static void expect_same_plans(const remat_session *a, const remat_session *b, const char *what) {
    remat_plan_summary x = rm_plan_summary_of(a), y = rm_plan_summary_of(b);
    expect_same_text(remat_plan_problem_text(a), remat_plan_problem_text(b), what); /* bytes and times of every stage */
    expect_same_text(remat_plan_steps_text(a), remat_plan_steps_text(b), what);
    ck_assert_uint_eq(x.budgeted_bytes, y.budgeted_bytes);
    ck_assert_uint_eq(x.planned_peak_bytes, y.planned_peak_bytes);
    ck_assert_uint_eq(x.packed_bytes, y.packed_bytes);
    ck_assert_uint_eq(x.step_ns, y.step_ns);
}

static void expect_same_arrays(remat_session *a, remat_session *b, remat_kind kind, const char *what) {
    ck_assert_int_eq(remat_count(a, kind), remat_count(b, kind));
    for (int64_t i = 0; i < remat_count(a, kind); i++) {
        remat_array info;
        CHECKED(remat_array_info(a, kind, i, &info));
        char *x = malloc(info.bytes), *y = malloc(info.bytes);
        CHECKED(remat_read(a, kind, i, x, info.bytes));
        CHECKED(remat_read(b, kind, i, y, info.bytes));
        ck_assert_msg(!memcmp(x, y, info.bytes), "%s: %s has other bits", what, info.name);
        free(x), free(y);
    }
}

/* The live bytes counted during the run equal the planned ones. */
static void expect_traced(remat_session *s, const char *what) {
    remat_live_point *planned, *traced;
    int64_t n, m;
    CHECKED(remat_plan_timeline(s, &planned, &n));
    CHECKED(remat_traced_timeline(s, &traced, &m));
    ck_assert_int_eq(n, m);
    for (int64_t i = 0; i < n; i++)
        ck_assert_msg(!memcmp(planned[i].bytes, traced[i].bytes, sizeof planned[i].bytes), "%s: step %d", what, (int)i);
    remat_text_free((char *)planned), remat_text_free((char *)traced);
}

static void expect_same_runs(remat_session *a, remat_session *b, uint64_t seed, const char *what) {
    remat_step_result x, y;
    fill_inputs(a, seed), fill_inputs(b, seed);
    CHECKED(remat_trace_next(b));
    for (int step = 0; step < 2; step++) {
        CHECKED(remat_step(a, 0.01, &x));
        CHECKED(remat_step(b, 0.01, &y));
        ck_assert_msg(!memcmp(&x.loss, &y.loss, sizeof x.loss), "%s: loss %.9g, %.9g", what, x.loss, y.loss);
        ck_assert_uint_eq(x.arena_peak_bytes, y.arena_peak_bytes);
        ck_assert_uint_eq(x.recomputed_stages, y.recomputed_stages);
    }
    expect_traced(b, what);
    expect_same_arrays(a, b, REMAT_GRADIENT, what);
    expect_same_arrays(a, b, REMAT_PARAM, what);
}

static const char *const strategies[] = {"none", "segments", "lean", "optimal", "a plan of its own"};

static void try_network(uint64_t seed, bool timed) {
    net n;
    char what[64], *steps = NULL;
    remat_session *a, *b;
    rng_state = seed * 104729 + 3;
    remat_value loss = random_net_with(&n, timed, seed % 2);
    remat_graph *mine = from_outside(n.graph, NULL);
    for (int32_t i = 0; i < n.graph->n_nodes; i++) { /* only a built-in relu is folded into the op that it reads */
        rm_node *node = &n.graph->node[i];
        if (!strcmp(node->op->name, "relu")) node->op = copy_of(node->op);
    }
    remat_config config = REMAT_CONFIG_INIT;
    config.threads = 1 + (int)(seed % 2);
    config.tile = timed ? 1 + draw(4) : draw(3);
    config.optimizer = "sgd";
    config.seed = seed;
    config.segments = 3;
    config.fold_embedding = false;
    ask_for_outputs(&config, &n);
    for (size_t k = 0; k < sizeof strategies / sizeof *strategies; k++) {
        bool last = k + 1 == sizeof strategies / sizeof *strategies;
        config.strategy = last ? "none" : strategies[k];
        config.plan_steps = steps;
        snprintf(what, sizeof what, "seed %d, %s, %s", (int)seed, timed ? "timed" : "deep", strategies[k]);
        CHECKED(remat_session_create(n.graph, loss, &config, &a));
        CHECKED(remat_session_create(mine, loss, &config, &b));
        expect_same_plans(a, b, what);
        expect_same_runs(a, b, seed, what);
        if (!strcmp(config.strategy, "optimal")) steps = random_plan(a);
        remat_session_free(a), remat_session_free(b);
    }
    free(steps);
    remat_graph_free(mine), remat_graph_free(n.graph);
}

START_TEST(custom_ops_have_the_bits_of_built_in_ops_in_every_plan) {
    for (uint64_t i = 0; i < 8; i++) try_network((uint64_t)_i * 8 + i, i % 2);
}
END_TEST

/* ---- Names ------------------------------------------------------------------------------------------------------ */

enum { T = 24, B = 2, H = 8, V = 5 };

typedef struct {
    remat_graph *graph;
    remat_value loss;
} lstm_net;

/* embedding, lstm, cross-entropy; all but the first as custom ops, or none. */
static lstm_net make_lstm(bool outside) {
    lstm_net n;
    CHECKED(remat_graph_create(&n.graph));
    remat_value tokens = remat_input(n.graph, "tokens", REMAT_I32, REMAT_SEQUENCE, 2, (int64_t[]){T, B});
    remat_value table = remat_param(n.graph, "table", 2, (int64_t[]){V, H}, remat_init_normal(1));
    remat_value w_ih = remat_param(n.graph, "w_ih", 2, (int64_t[]){4 * H, H}, remat_init_uniform(0.3));
    remat_value w_hh = remat_param(n.graph, "w_hh", 2, (int64_t[]){4 * H, H}, remat_init_uniform(0.3));
    remat_value x = remat_embedding(n.graph, tokens, table);
    remat_value h = remat_lstm(n.graph, x, w_ih, w_hh, REMAT_NONE, REMAT_NONE);
    n.loss = remat_softmax_cross_entropy(n.graph, h, tokens);
    CHECKED(remat_graph_check(n.graph));
    if (outside) {
        remat_graph *mine = from_outside(n.graph, "embedding");
        remat_graph_free(n.graph);
        n.graph = mine;
    }
    return n;
}

static remat_session *open_lstm(const lstm_net *n, remat_config config) {
    remat_session *s;
    config.optimizer = "sgd";
    config.tile = 4;
    CHECKED(remat_session_create(n->graph, n->loss, &config, &s));
    return s;
}

/* A custom op cannot read a folded table in place of w_ih, not even a copy of a built-in op that can. */
START_TEST(embeddings_are_not_folded_into_custom_ops) {
    lstm_net ours = make_lstm(false), mine = make_lstm(true);
    remat_config config = REMAT_CONFIG_INIT;
    remat_session *folded = open_lstm(&ours, config), *b = open_lstm(&mine, config);
    config.fold_embedding = false;
    remat_session *a = open_lstm(&ours, config);
    ck_assert_uint_ne(rm_plan_summary_of(folded).planned_peak_bytes, rm_plan_summary_of(a).planned_peak_bytes);
    expect_same_plans(a, b, "not folded");
    expect_same_runs(a, b, 1, "not folded");
    remat_session_free(a), remat_session_free(b), remat_session_free(folded);
    remat_graph_free(ours.graph), remat_graph_free(mine.graph);
}
END_TEST

START_TEST(carried_states_are_named_after_the_op) {
    lstm_net mine = make_lstm(true);
    remat_config config = REMAT_CONFIG_INIT;
    config.stateful = true;
    remat_session *s = open_lstm(&mine, config);
    ck_assert_int_eq(remat_find(s, REMAT_CARRIED, "my_lstm.0.h"), 0);
    ck_assert_int_eq(remat_find(s, REMAT_CARRIED, "my_lstm.0.c"), 1);
    remat_session_free(s);
    remat_op *op = (remat_op *)(uintptr_t)mine.graph->node[1].op;
    op->state_name[1] = "memory";
    s = open_lstm(&mine, config);
    ck_assert_int_eq(remat_find(s, REMAT_CARRIED, "my_lstm.0.memory"), 1);
    remat_session_free(s);
    op->state_name[1] = NULL;
    remat_graph_free(mine.graph);
}
END_TEST

START_TEST(custom_ops_are_calibrated) {
    lstm_net mine = make_lstm(true);
    remat_config config = REMAT_CONFIG_INIT;
    config.strategy = "optimal";
    config.calibration = "";
    remat_session *s = open_lstm(&mine, config);
    ck_assert(rm_plan_summary_of(s).measured_times);
    remat_session_free(s);
    remat_graph_free(mine.graph);
}
END_TEST

/* ---- Attributes ------------------------------------------------------------------------------------------------- */

START_TEST(attributes_are_copied) {
    remat_graph *g;
    CHECKED(remat_graph_create(&g));
    double factor[] = {3, 0}; /* rm_scale_attr */
    float x[2] = {1, 2}, y[2];
    remat_value in = remat_input(g, "x", REMAT_F32, REMAT_STATIC, 1, (int64_t[]){2}), out;
    CHECKED(remat_apply(g, copy_of(rm_op_find("scale")), &in, 1, &factor, &out));
    factor[0] = 100;
    remat_config config = REMAT_CONFIG_INIT;
    config.inference = true;
    config.outputs = &out;
    config.n_outputs = 1;
    remat_session *s;
    CHECKED(remat_session_create(g, REMAT_NONE, &config, &s));
    remat_graph_free(g);
    CHECKED(remat_write(s, REMAT_INPUT, 0, x, sizeof x));
    CHECKED(remat_evaluate(s, NULL));
    CHECKED(remat_read(s, REMAT_OUTPUT, 0, y, sizeof y));
    ck_assert(y[0] == 3 && y[1] == 6);
    remat_session_free(s);
}
END_TEST

/* ---- Constants -------------------------------------------------------------------------------------------------- */

/* What only a constant reads is not differentiated: it takes no memory for a gradient, and w1 gets zeros. */
START_TEST(gradients_stop_at_constants) {
    remat_graph *g;
    CHECKED(remat_graph_create(&g));
    remat_value x = remat_input(g, "x", REMAT_F32, REMAT_SEQUENCE, 3, (int64_t[]){T, B, H}), q;
    remat_value h = remat_linear(g, x, remat_param(g, "w1", 2, (int64_t[]){H, H}, remat_init_uniform(1)), REMAT_NONE);
    CHECKED(remat_apply(g, copy_of(rm_op_find("stop_gradient")), &h, 1, NULL, &q));
    remat_value y = remat_linear(g, q, remat_param(g, "w2", 2, (int64_t[]){H, H}, remat_init_uniform(1)), REMAT_NONE);
    remat_config config = REMAT_CONFIG_INIT;
    remat_session *s;
    remat_step_result result;
    config.optimizer = "sgd";
    CHECKED(remat_session_create(g, remat_mse(g, y, x), &config, &s));
    ck_assert_int_eq(s->chain.use[h.id], RM_MADE);
    ck_assert_int_eq(s->chain.use[y.id], RM_DIFFERENTIATED);
    fill_inputs(s, 1);
    CHECKED(remat_step(s, 0, &result));
    float gradient[2][H * H], sum[2] = {0};
    for (int k = 0; k < 2; k++) {
        CHECKED(remat_read(s, REMAT_GRADIENT, k, gradient[k], sizeof gradient[k]));
        for (int i = 0; i < H * H; i++) sum[k] += fabsf(gradient[k][i]);
    }
    ck_assert(sum[0] == 0 && sum[1] > 0);
    remat_session_free(s);
    ck_assert_int_eq(remat_session_create(g, remat_mse(g, q, x), &config, &s), REMAT_INVALID);
    ck_says_all(remat_last_error(), "loss|gradient|parameter");
    remat_graph_free(g);
}
END_TEST

/* ---- Refusals --------------------------------------------------------------------------------------------------- */

static remat_graph *graph;
static remat_value sequence, whole, slope;

static void set_up(void) {
    CHECKED(remat_graph_create(&graph));
    sequence = remat_input(graph, "x", REMAT_F32, REMAT_SEQUENCE, 3, (int64_t[]){T, B, H});
    whole = remat_input(graph, "whole", REMAT_F32, REMAT_STATIC, 2, (int64_t[]){B, H});
    slope = remat_param(graph, "slope", 1, (int64_t[]){H}, remat_init_constant(1));
}
static void tear_down(void) { remat_graph_free(graph); }

/* The call and all later calls on the graph fail, and no value is created. */
static void expect_refused(const remat_op *op, const remat_value *inputs, int n, const void *attr,
                           const char *because) {
    remat_value y = {99}, later;
    ck_assert_int_eq(remat_apply(graph, op, inputs, n, attr, &y), REMAT_INVALID);
    ck_says_all(remat_last_error(), because);
    ck_assert_msg(!op->name || !*op->name || strstr(remat_last_error(), op->name), "\"%s\" does not name the op",
                  remat_last_error());
    ck_assert_int_eq(y.id, 0);
    ck_assert_int_eq(remat_graph_check(graph), REMAT_INVALID);
    ck_assert_int_eq(remat_apply(graph, copy_of(rm_op_find("tanh")), &sequence, 1, NULL, &later), REMAT_INVALID);
    ck_says_all(remat_last_error(), because);
    ck_assert_int_eq(later.id, 0);
}

#define MISTAKES(X)                                                                                                    \
    X("tanh", op.name = NULL, "name")                                                                                  \
    X("tanh", op.name = "a name of more than forty letters, all of them", "needs|name")                                \
    X("tanh", op.name = "gelu", "gelu|name")                                                                           \
    X("tanh", op.n_in = 0, "n_in|0")                                                                                   \
    X("tanh", op.n_in = REMAT_MAX_INPUTS + 1, "n_in|13")                                                               \
    X("tanh", op.n_state = -1, "n_state|-1")                                                                           \
    X("tanh", op.n_state = 1, "n_state|1")                                                                             \
    X("tanh", op.time = (remat_time)7, "time|7")                                                                       \
    X("tanh", op.optional = 1, "x[0]|optional")                                                                        \
    X("tanh", op.optional = 2, "n_in|1")                                                                               \
    X("tanh", op.saves.in = 2, "n_in|1")                                                                               \
    X("tanh", op.discrete = 1, "discrete|bound")                                                                       \
    X("tanh", op.infer = NULL, "infer|cost")                                                                           \
    X("tanh", op.cost = NULL, "infer|cost")                                                                            \
    X("tanh", op.on[REMAT_ON_CPU].forward = NULL, "forward|backward")                                                  \
    X("tanh", op.on[REMAT_ON_CPU].backward = NULL, "forward|backward")                                                 \
    X("tanh", op.define_backward = NULL, "define_forward|define_backward")                                             \
    X("tanh", op.on[REMAT_ON_CPU].rebuild = op.define_forward, "rebuild|define_rebuild")                               \
    X("tanh", op.rebuilds = any_shape, "rebuilds|rebuild")                                                             \
    X("tanh", op.infer = shrinking_infer, "(24,2)")                                                                    \
    X("tanh", op.infer = stuck_infer, "one timestep|f32 (24,2,8)")                                                     \
    X("tanh", op.infer = double_infer, "result|f32")                                                                   \
    X("tanh", op.infer = empty_infer, "size|0")                                                                        \
    X("tanh", op.infer = refusing_infer, "my_tanh|nothing (24,2,8) will do")                                           \
    X("tanh", op.infer = untyped_infer, "dtype|7")                                                                     \
    X("tanh", op.infer = silent_infer, "refuses|inputs")                                                               \
    X("tanh", op.cost = endless_cost, "cost|finite|negative")                                                          \
    X("tanh", op.cost = negative_cost, "cost|finite|negative")                                                         \
    X("tanh", op.cost = wrapping_cost, "scratch_bytes|18446744073709551615")                                           \
    X("tanh", op.aux_bytes = wrapping_aux, "aux_bytes|18446744073709551615")                                           \
    X("tanh", (op.discrete = 1, op.bound = any_bound), "input 0|f32 (24,2,8)|discrete")                                \
    X("lstm", op.on[REMAT_ON_CPU].pack = NULL, "pack|packed_bytes")                                                    \
    X("lstm", op.cheap = true, "cheap|rebuild")                                                                        \
    X("lstm", op.aux_bytes = NULL, "aux|rebuil")                                                                       \
    X("tanh", op.buffers = 1, "buffer|x[0]")                                                                           \
    X("linear", op.buffers = 4, "buffer|x[0]|shared")                                                                  \
    X("tanh", op.collective = any_talk, "once_bytes")                                                                  \
    X("tanh", op.once_bytes = wrapping_aux, "once|once_bytes")                                                         \
    X("batch_norm", op.define_once = NULL, "once|define_once")                                                         \
    X("lstm", op.state_name[1] = "", "state 1|name")                                                                   \
    X("last_step", op.cheap = true, "cheap|x")

static bool any_talk(const void *attr) { return (void)attr, true; }
static bool any_shape(const remat_desc *x, const void *attr) { return (void)x, (void)attr, true; }
static remat_status shrinking_infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    (void)attr, (void)state;
    *y = x[0];
    y->dim[0] = 1;
    return REMAT_OK;
}
static remat_status stuck_infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    (void)attr, (void)state;
    *y = x[0];
    y->dim[0] = T;
    return REMAT_OK;
}
static remat_status double_infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    (void)attr, (void)state;
    *y = x[0];
    y->dtype = REMAT_F64;
    return REMAT_OK;
}
static remat_status empty_infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    (void)attr, (void)state;
    *y = x[0];
    y->dim[2] = 0;
    return REMAT_OK;
}
static remat_status untyped_infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    (void)attr, (void)state;
    *y = x[0];
    y->dtype = (remat_dtype)7;
    return REMAT_OK;
}
static remat_status silent_infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    return (void)x, (void)attr, (void)y, (void)state, REMAT_INVALID;
}
static void endless_cost(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass, remat_cost *out) {
    (void)x, (void)y, (void)attr, (void)pass;
    out->flops = NAN;
}
static void negative_cost(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass,
                          remat_cost *out) {
    (void)x, (void)y, (void)attr, (void)pass;
    out->moved_bytes = -1;
}
static void wrapping_cost(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass,
                          remat_cost *out) {
    (void)x, (void)y, (void)attr, (void)pass;
    out->scratch_bytes = UINT64_MAX;
}
static uint64_t wrapping_aux(const remat_desc *x, const void *attr) { return (void)x, (void)attr, UINT64_MAX; }
static int64_t any_bound(const remat_desc *x, const void *attr, int input) {
    return (void)x, (void)attr, (void)input, 1;
}
static remat_status refusing_infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    (void)attr, (void)y, (void)state;
    char text[REMAT_DESC_TEXT];
    return remat_refuse("my_tanh: nothing %s will do", remat_desc_text(&x[0], text) + strlen("f32 "));
}

#define ONE(title, mistake, reason)                                                                                    \
    case __COUNTER__ - FIRST: {                                                                                        \
        remat_op op = *copy_of(rm_op_find(title));                                                                     \
        mistake;                                                                                                       \
        expect_refused(&op, &sequence, 1, NULL, reason);                                                               \
        break;                                                                                                         \
    }
#define COUNTED(...) +1
enum { N_MISTAKES = 0 MISTAKES(COUNTED), FIRST = __COUNTER__ + 1 };

START_TEST(invalid_descriptors_are_refused) {
    switch (_i) {
        MISTAKES(ONE)
    default:
        ck_abort_msg("no mistake %d", _i);
    }
}
END_TEST

START_TEST(invalid_inputs_are_refused) {
    const remat_op *mul = copy_of(rm_op_find("mul")), *norm = copy_of(rm_op_find("layer_norm"));
    const remat_op *two = copy_of(rm_op_find("positions")); /* of two inputs */
    remat_op twin = *mul;
    double attr = 0;
    remat_value y;
    switch (_i) {
    case 0:
        expect_refused(two, (remat_value[]){sequence, sequence, sequence}, 3, NULL, "3|inputs");
        break;
    case 1:
        expect_refused(two, &sequence, 1, NULL, "input 1|missing");
        break;
    case 2:
        expect_refused(mul, (remat_value[]){sequence, {1000}}, 2, NULL, "input 1|value|graph");
        break;
    case 3:
        expect_refused(mul, (remat_value[]){sequence, whole}, 2, NULL, "input 1|time axis");
        break;
    case 4:
        expect_refused(norm, (remat_value[]){whole, slope, sequence}, 3, &attr, "sequence");
        break;
    case 5:
        expect_refused(mul, (remat_value[]){sequence, sequence}, 2, &attr, "attr_bytes|0");
        break;
    case 6:
        expect_refused(copy_of(rm_op_find("last_step")), &whole, 1, NULL, "along time");
        break;
    case 7:
        CHECKED(remat_apply(graph, mul, (remat_value[]){sequence, sequence}, 2, NULL, &y));
        expect_refused(&twin, (remat_value[]){sequence, sequence}, 2, NULL, "different ops");
        break;
    }
}
END_TEST

START_TEST(null_op_is_refused) {
    remat_value y = {99};
    ck_assert_int_eq(remat_apply(graph, NULL, &sequence, 1, NULL, &y), REMAT_INVALID);
    ck_assert_int_eq(y.id, 0);
    ck_assert_int_eq(remat_graph_check(graph), REMAT_INVALID);
    ck_says_all(remat_last_error(), "remat_apply|op|NULL");
}
END_TEST

/* The result may overwrite the variable that held the input. */
START_TEST(result_may_overwrite_the_input_variable) {
    remat_value h = sequence;
    const remat_op *op = copy_of(rm_op_find("tanh"));
    for (int i = 0; i < 3; i++) CHECKED(remat_apply(graph, op, &h, 1, NULL, &h));
    ck_assert_int_eq(h.id, slope.id + 3);
}
END_TEST

static remat_status even_infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    (void)attr, (void)state;
    if (x[0].dim[0] == 3) return remat_refuse("my_tanh: 3 is too odd");
    *y = x[0];
    if (x[0].dim[0] == 5) y->dim[0] = 6;
    return REMAT_OK;
}

/* Only a session knows the tiles. */
static void expect_tiles_refused(int64_t tile, const char *because) {
    remat_op op = *copy_of(rm_op_find("tanh"));
    remat_config config = REMAT_CONFIG_INIT;
    remat_session *s = NULL;
    remat_value y;
    op.infer = even_infer;
    CHECKED(remat_apply(graph, &op, &sequence, 1, NULL, &y));
    config.tile = tile;
    remat_requires_grad(graph, sequence);
    remat_value loss = remat_mse(graph, remat_mul(graph, y, y), sequence);
    ck_assert_int_eq(remat_session_create(graph, loss, &config, &s), REMAT_INVALID);
    ck_says_all(remat_last_error(), because);
}

START_TEST(ops_may_refuse_a_tile) {
    if (_i) return expect_tiles_refused(3, "my_tanh|tiles of 3|3 is too odd");
    expect_tiles_refused(5, "my_tanh|tiles of 5|f32 (6,2,8)|f32 (5,2,8)");
}
END_TEST

static uint64_t most_aux(const remat_desc *x, const void *attr) { return (void)x, (void)attr, (uint64_t)1 << 60; }

/* Each op of a stage asks for an allowed size, but 16 times 2^60 wraps to 0. */
START_TEST(sizes_of_a_stage_do_not_overflow) {
    remat_op op = *copy_of(rm_op_find("tanh"));
    remat_config config = REMAT_CONFIG_INIT;
    remat_session *s = NULL;
    remat_value y = sequence, w = remat_param(graph, "w", 2, (int64_t[]){H, H}, remat_init_uniform(1));
    op.aux_bytes = most_aux;
    op.cheap = false;
    for (int i = 0; i < 16; i++) CHECKED(remat_apply(graph, &op, &y, 1, NULL, &y));
    remat_requires_grad(graph, sequence);
    y = remat_rnn_tanh(graph, y, w, w, REMAT_NONE, REMAT_NONE);
    ck_assert_int_eq(remat_session_create(graph, remat_mse(graph, y, sequence), &config, &s), REMAT_INVALID);
    ck_says_all(remat_last_error(), "2^60");
}
END_TEST

/* A built-in op that is applied by its own descriptor stays built-in. */
START_TEST(built_in_ops_may_be_applied) {
    remat_value y;
    CHECKED(remat_apply(graph, rm_op_find("tanh"), &sequence, 1, NULL, &y));
    ck_assert_int_eq(y.id, slope.id + 1);
}
END_TEST

START_TEST(failed_allocations_of_custom_ops_are_reported) {
    for (int64_t n = 1;; n++) {
        remat_graph *g;
        double factor[] = {2, 0};
        remat_value y;
        CHECKED(remat_graph_create(&g));
        remat_value x = remat_input(g, "x", REMAT_F32, REMAT_STATIC, 1, (int64_t[]){2});
        CHECKED(remat_graph_check(g));
        rm_host_fail_at(n);
        remat_status status = remat_apply(g, copy_of(rm_op_find("scale")), &x, 1, &factor, &y);
        rm_host_fail_at(0);
        remat_graph_free(g);
        ck_assert(status == REMAT_MEMORY || (n > 1 && !status));
        if (!status) break;
    }
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("apply"), *refused = tcase_create("refused");
    tcase_set_timeout(tests, 300);
    tcase_add_loop_test(tests, custom_ops_have_the_bits_of_built_in_ops_in_every_plan, 0, rm_cases(50, 6));
    tcase_add_test(tests, embeddings_are_not_folded_into_custom_ops);
    tcase_add_test(tests, carried_states_are_named_after_the_op);
    tcase_add_test(tests, custom_ops_are_calibrated);
    tcase_add_test(tests, attributes_are_copied);
    tcase_add_test(tests, gradients_stop_at_constants);
    tcase_add_test(tests, failed_allocations_of_custom_ops_are_reported);
    tcase_add_checked_fixture(refused, set_up, tear_down);
    tcase_add_loop_test(refused, invalid_descriptors_are_refused, 0, N_MISTAKES);
    tcase_add_loop_test(refused, invalid_inputs_are_refused, 0, 8);
    tcase_add_test(refused, null_op_is_refused);
    tcase_add_loop_test(refused, ops_may_refuse_a_tile, 0, 2);
    tcase_add_test(refused, sizes_of_a_stage_do_not_overflow);
    tcase_add_test(refused, result_may_overwrite_the_input_variable);
    tcase_add_test(refused, built_in_ops_may_be_applied);
    return run_cases("apply", tests, refused);
}
