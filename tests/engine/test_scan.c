/* test_scan.c: cells written as graphs of ops (remat_scan). The built-in cells written this way match the built-in ops.
 * Ops made from bodies, also from random ones, keep the promises of every op (remat_op_check: finite differences,
 * tiles, bit-identical lean saving). Every plan has the same bits and uses the planned bytes. Invalid bodies are
 * refused. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/abi.h"
#include "engine/graph/graph.h"
#include "engine/remat_op.h"
#include "memory/host.h"
#include "ops/scan/scan.h"
#include "tests/engine/cells_of_ops.h"
#include "tests/says.h"
#include "tests/suite.h"

#define CHECKED(call) ck_assert_msg((call) == REMAT_OK, "%s: %s", #call, remat_last_error())

enum { T = 23, B = 3, C = 5, H = 8, TILE = 4, MOST = 1 << 14 };

/* ---- Comparison with the built-in cells ------------------------------------------------------------------------- */

static remat_value layer(remat_graph *g, int kind, bool of_ops, remat_value x, int64_t in, int number) {
    static const char *const names[] = {"w_ih", "w_hh", "b_ih", "b_hh"};
    remat_value w[CELL_WEIGHTS];
    int64_t wide = cell_gates[kind] * H;
    for (int i = 0; i < CELL_WEIGHTS; i++) {
        char name[16];
        snprintf(name, sizeof name, "%s%d", names[i], number);
        w[i] = remat_param(g, name, i < 2 ? 2 : 1, (int64_t[]){wide, i ? H : in}, remat_init_uniform(0.5));
    }
    if (!of_ops)
        return (kind == CELL_LSTM  ? remat_lstm
                : kind == CELL_GRU ? remat_gru
                                   : remat_rnn_tanh)(g, x, w[0], w[1], w[2], w[3]);
    written_cell written;
    write_cell(kind, B, in, H, &written);
    remat_value y = remat_scan(g, &written.cell, &x, w);
    remat_graph_free(written.body); /* remat_scan copied it */
    return y;
}

static remat_session *open_net(int kind, bool of_ops, remat_config config) {
    remat_graph *g;
    remat_session *s;
    CHECKED(remat_graph_create(&g));
    remat_value x = remat_input(g, "x", REMAT_F32, REMAT_SEQUENCE, 3, (int64_t[]){T, B, C});
    remat_value target = remat_input(g, "target", REMAT_F32, REMAT_SEQUENCE, 3, (int64_t[]){T, B, H});
    remat_requires_grad(g, x);
    remat_value h = layer(g, kind, of_ops, x, C, 0);
    if (!config.stateful) h = remat_reverse(g, h); /* stateful sessions run forwards in time */
    remat_value y = layer(g, kind, of_ops, h, H, 1);
    remat_value loss = remat_mse(g, config.stateful ? y : remat_reverse(g, y), target);
    CHECKED(remat_session_create(g, loss, &config, &s));
    remat_graph_free(g);
    float data[T * B * H];
    for (int i = 0; i < T * B * H; i++) data[i] = (float)sin(1 + 0.37 * i);
    CHECKED(remat_write(s, REMAT_INPUT, 0, data, sizeof(float) * T * B * C));
    CHECKED(remat_write(s, REMAT_INPUT, 1, data, sizeof data));
    return s;
}

static remat_config configured(void) {
    remat_config config = REMAT_CONFIG_INIT;
    config.tile = TILE;
    config.threads = 1;
    config.seed = 3;
    config.optimizer = "sgd";
    return config;
}

typedef struct {
    double loss;
    int64_t n;
    float value[MOST];
} numbers;

static void read_all(remat_session *s, remat_kind kind, numbers *out) {
    for (int64_t i = 0; i < remat_count(s, kind); i++) {
        remat_array info;
        CHECKED(remat_array_info(s, kind, i, &info));
        ck_assert(out->n + info.count <= MOST);
        CHECKED(remat_read(s, kind, i, out->value + out->n, info.bytes));
        out->n += info.count;
    }
}

static void train(remat_session *s, numbers *out) {
    remat_step_result r;
    out->n = 0;
    for (int step = 0; step < 2; step++) CHECKED(remat_step(s, 0.1, &r));
    out->loss = r.loss;
    ck_assert_uint_eq(r.arena_peak_bytes, rm_plan_summary_of(s).planned_peak_bytes);
    read_all(s, REMAT_GRADIENT, out);
    read_all(s, REMAT_PARAM, out);
    CHECKED(remat_evaluate(s, &r));
    out->value[out->n++] = (float)r.loss;
}

static void expect_near(const numbers *a, const numbers *b, double tolerance) {
    ck_assert_int_eq(a->n, b->n);
    ck_assert_msg(fabs(a->loss - b->loss) <= tolerance * fabs(b->loss), "loss %.9g and %.9g", a->loss, b->loss);
    double most = 0;
    for (int64_t i = 0; i < b->n; i++) most = fmax(most, fabs(b->value[i]));
    for (int64_t i = 0; i < b->n; i++)
        ck_assert_msg(fabs(a->value[i] - b->value[i]) <= tolerance * most, "number %d: %.9g and %.9g", (int)i,
                      a->value[i], b->value[i]);
}

/* Compares losses, gradients, parameters and evaluations, also with states carried from batch to batch. */
START_TEST(cells_of_ops_match_the_built_in_cells) {
    int kind = _i % CELL_KINDS;
    static numbers got[2];
    for (int of_ops = 0; of_ops < 2; of_ops++) {
        remat_config config = configured();
        config.stateful = _i >= CELL_KINDS;
        remat_session *s = open_net(kind, of_ops, config);
        train(s, &got[of_ops]);
        if (config.stateful) read_all(s, REMAT_CARRIED, &got[of_ops]);
        remat_session_free(s);
    }
    expect_near(&got[1], &got[0], 2e-6);
}
END_TEST

START_TEST(cells_of_ops_have_the_same_bits_in_every_plan) {
    static const char *const strategies[] = {"none", "segments", "sqrt", "lean", "optimal"};
    static numbers got[2];
    int kind = _i % CELL_KINDS;
    uint64_t everything = 0;
    for (size_t i = 0; i < sizeof strategies / sizeof *strategies; i++) {
        remat_config config = configured();
        config.strategy = strategies[i];
        config.segments = 3;
        config.threads = 1 + _i / CELL_KINDS;
        config.tile = _i / CELL_KINDS ? 5 : TILE;
        config.verify_recompute = true;
        remat_session *s = open_net(kind, true, config);
        uint64_t bytes = rm_plan_summary_of(s).activations_peak_bytes;
        if (i == 0) everything = bytes;
        if (!strcmp(strategies[i], "lean") && kind != CELL_RNN) ck_assert_uint_lt(2 * bytes, everything);
        train(s, &got[i > 0]);
        remat_session_free(s);
        ck_assert_msg(i == 0 || (got[0].loss == got[1].loss && got[0].n == got[1].n &&
                                 !memcmp(got[0].value, got[1].value, (size_t)got[0].n * sizeof(float))),
                      "%s has other bits", strategies[i]);
    }
}
END_TEST

START_TEST(states_of_cells_of_ops_are_found_by_name) {
    static const char *const names[] = {"lstm of ops.0.h", "lstm of ops.0.c", "lstm of ops.1.h", "lstm of ops.1.c"};
    remat_config config = configured();
    config.stateful = true;
    remat_session *s = open_net(CELL_LSTM, true, config);
    ck_assert_int_eq(remat_count(s, REMAT_CARRIED), 4);
    for (int i = 0; i < 4; i++) ck_assert_int_eq(remat_find(s, REMAT_CARRIED, names[i]), i);
    remat_session_free(s);
}
END_TEST

/* ---- The promises of every op ------------------------------------------------------------------------------------ */

/* Checks the op of the graph's last node, in both precisions, on its own samples: seven timesteps, and one. */
static remat_status check_op(const remat_graph *graph, remat_op_report *report) {
    const rm_scan *scan = graph->node[graph->n_nodes - 1].attr;
    remat_op op, op_f64;
    remat_sample samples[2][2] = {{{.name = "seven timesteps"}, {.name = "one"}}};
    memcpy(samples[1], samples[0], sizeof samples[0]);
    for (int f64 = 0; f64 < 2; f64++)
        for (int k = 0; k < 2; k++) {
            remat_sample *sample = &samples[f64][k];
            sample->sequence = true;
            sample->attr = scan;
            for (int i = 0; i < REMAT_MAX_INPUTS; i++) sample->x[i].rank = -1;
            for (int i = 0; i < scan->n_sequences + scan->n_weights; i++) {
                const rm_scan_value *v = &scan->value[1 + i];
                int timed = i < scan->n_sequences;
                sample->x[i] = rm_desc_make(f64 ? REMAT_F64 : REMAT_F32, (int)v->rank, v->dim);
                for (int d = (int)v->rank; d > 0 && timed; d--) sample->x[i].dim[d] = v->dim[d - 1];
                if (timed) sample->x[i].dim[0] = k ? 1 : 7, sample->x[i].rank++;
            }
        }
    rm_scan_describe(scan, &op);
    rm_scan_describe_f64(scan, &op_f64);
    op.samples = samples[0], op_f64.samples = samples[1];
    op.n_samples = op_f64.n_samples = 2;
    return remat_op_check(&op, &op_f64, report);
}

START_TEST(cells_of_ops_pass_the_op_check) {
    remat_graph *g;
    remat_op_report report;
    CHECKED(remat_graph_create(&g));
    remat_value x = remat_input(g, "x", REMAT_F32, REMAT_SEQUENCE, 3, (int64_t[]){T, B, C});
    layer(g, _i, true, x, C, 0);
    CHECKED(remat_graph_check(g));
    ck_assert(g->node[0].op->on[0].rebuild || _i == CELL_RNN); /* an RNN has no aux */
    CHECKED(check_op(g, &report));
    ck_assert(report.same_across_threads);
    remat_graph_free(g);
}
END_TEST

/* ---- Random bodies ----------------------------------------------------------------------------------------------- */

static uint32_t draw(uint32_t *seed, uint32_t below) {
    *seed = *seed * 1664525u + 1013904223u;
    return (uint32_t)((uint64_t)(*seed >> 8) * below >> 24);
}

/* Adds a layer that reads two values (B,H). Weights are read directly, or by a mul of a table (B,H). */
static remat_value random_layer(remat_graph *g, uint32_t *seed, remat_value a, remat_value b, const remat_value *w) {
    remat_value halves[2];
    switch (draw(seed, 12)) {
    case 0:
        return remat_linear(g, a, w[0], w[1]);
    case 1:
        return remat_linear(g, a, remat_tanh(g, w[0]), REMAT_NONE); /* a computed weight */
    case 2:
        return remat_layer_norm(g, a, w[1], w[1], 1e-3); /* one value twice */
    case 3:
        return remat_mul(g, a, w[2]);
    case 4:
        return remat_mul(g, a, b);
    case 5:
        return remat_mul(g, a, a);
    case 6:
        return remat_add(g, a, b);
    case 7:
        return remat_gelu(g, a);
    case 8:
        return remat_sigmoid(g, remat_add(g, a, w[2]));
    case 9:
        return remat_dropout(g, a, 0.3);
    case 10:
        halves[0] = remat_slice(g, a, 0, H / 2), halves[1] = remat_slice(g, b, H / 2, H / 2);
        return remat_concat(g, halves, 2);
    default:
        return remat_tanh(g, remat_scale(g, a, 0.7));
    }
}

/* A bounded sum of all leaves and some layers. */
static void random_body(uint32_t seed, remat_graph *g, remat_value *x, remat_value *w, int n_states, remat_value *state,
                        remat_value *next, remat_value *output) {
    static const char *const names[REMAT_MAX_STATES] = {"h", "c", "n", "m"};
    remat_value pool[60];
    int n = 0;
    pool[n++] = x[0] = body_input(g, "x0", 2, B, H);
    pool[n++] = x[1] = body_input(g, "x1", 2, B, H);
    w[0] = body_input(g, "w", 2, H, H), w[1] = body_input(g, "b", 1, H, 0), w[2] = body_input(g, "table", 2, B, H);
    for (int k = 0; k < n_states; k++) pool[n++] = state[k] = body_input(g, names[k], 2, B, H);
    int leaves = n, layers = 3 + (int)draw(&seed, 9);
    for (int i = 0; i < layers; i++, n++) {
        uint32_t a = i < leaves ? (uint32_t)i : draw(&seed, (uint32_t)n);
        pool[n] = random_layer(g, &seed, pool[a], pool[draw(&seed, (uint32_t)n)], w);
    }
    for (int i = 0; i < leaves; i++) pool[n] = remat_add(g, i ? pool[n] : pool[n - 1], pool[i]); /* all are read */
    pool[n] = remat_add(g, remat_linear(g, remat_tanh(g, pool[n]), w[0], w[1]), w[2]);
    next[0] = remat_tanh(g, pool[n]);
    for (int k = 1; k < n_states; k++) next[k] = remat_sigmoid(g, remat_add(g, pool[n - k], pool[n]));
    *output = draw(&seed, 2) ? next[0] : remat_mul(g, next[0], pool[leaves + (int)draw(&seed, (uint32_t)layers)]);
}

START_TEST(random_bodies_pass_the_op_check) {
    remat_graph *g, *body;
    remat_value x[2], w[3], state[4], next[4], output, outer_x[2], outer_w[3];
    int n_states = 1 + _i % 4;
    CHECKED(remat_graph_create(&body));
    CHECKED(remat_graph_create(&g));
    random_body(77u * (uint32_t)_i + 5, body, x, w, n_states, state, next, &output);
    remat_cell cell = {sizeof cell, "random", body, x, 2, w, 3, state, next, n_states, output};
    for (int i = 0; i < 2; i++)
        outer_x[i] = remat_input(g, i ? "x1" : "x0", REMAT_F32, REMAT_SEQUENCE, 3, (int64_t[]){T, B, H});
    outer_w[0] = remat_param(g, "w", 2, (int64_t[]){H, H}, remat_init_zero());
    outer_w[1] = remat_param(g, "b", 1, (int64_t[]){H}, remat_init_zero());
    outer_w[2] = remat_param(g, "table", 2, (int64_t[]){B, H}, remat_init_zero());
    remat_scan(g, &cell, outer_x, outer_w);
    CHECKED(remat_graph_check(g));
    CHECKED(check_op(g, NULL));
    remat_graph_free(g);
    remat_graph_free(body);
}
END_TEST

/* Dropout in a body depends on the timestep and the layer, so the tile does not change the mask. */
static float dropped(int64_t tile, bool training) {
    remat_graph *g, *body;
    remat_session *s;
    remat_step_result r;
    CHECKED(remat_graph_create(&g));
    CHECKED(remat_graph_create(&body));
    remat_value x = body_input(body, "x", 2, B, C), h = body_input(body, "h", 2, B, C);
    remat_value next =
        remat_add(body, remat_dropout(body, x, 0.5), remat_scale(body, remat_dropout(body, h, 0.5), 0.5));
    remat_cell cell = {sizeof cell, "drops", body, &x, 1, NULL, 0, &h, &next, 1, next};
    remat_value outer = remat_requires_grad(g, remat_input(g, "x", REMAT_F32, REMAT_SEQUENCE, 3, (int64_t[]){T, B, C}));
    remat_value target = remat_input(g, "target", REMAT_F32, REMAT_SEQUENCE, 3, (int64_t[]){T, B, C});
    remat_value loss = remat_mse(g, remat_scan(g, &cell, &outer, NULL), target);
    remat_config config = configured();
    config.tile = tile;
    CHECKED(remat_session_create(g, loss, &config, &s));
    float data[T * B * C];
    for (int i = 0; i < T * B * C; i++) data[i] = (float)sin(i);
    for (int i = 0; i < 2; i++) CHECKED(remat_write(s, REMAT_INPUT, i, data, sizeof data));
    CHECKED(training ? remat_gradients(s, &r) : remat_evaluate(s, &r));
    remat_session_free(s);
    remat_graph_free(g);
    remat_graph_free(body);
    return (float)r.loss;
}

START_TEST(dropout_does_not_depend_on_the_tile) {
    float whole = dropped(T, true), tiles = dropped(3, true);
    ck_assert_msg(fabsf(whole - tiles) <= 1e-6f * whole, "%.9g and %.9g", whole, tiles);
    ck_assert(fabsf(whole - dropped(T, false)) > 1e-3f);
}
END_TEST

/* ---- Refusals --------------------------------------------------------------------------------------------------- */

/* A valid RNN, of which each test spoils a part. */
typedef struct {
    remat_graph *g, *body;
    written_cell written;
    remat_cell *cell;
    remat_value x, w[CELL_WEIGHTS];
} spoiled;

static void begin(spoiled *r) {
    CHECKED(remat_graph_create(&r->g));
    write_cell(CELL_RNN, B, C, H, &r->written);
    r->cell = &r->written.cell;
    r->body = r->written.body;
    r->x = remat_input(r->g, "x", REMAT_F32, REMAT_SEQUENCE, 3, (int64_t[]){T, B, C});
    for (int i = 0; i < CELL_WEIGHTS; i++) {
        char name[] = {(char)('a' + i), 0};
        r->w[i] = remat_param(r->g, name, i < 2 ? 2 : 1, (int64_t[]){H, i ? H : C}, remat_init_zero());
    }
}

static void end(spoiled *r, const char *sentence) {
    remat_value y = remat_scan(r->g, r->cell, &r->x, r->w);
    ck_assert_msg(y.id == 0, "not refused: %s", sentence);
    ck_assert_int_eq(remat_graph_check(r->g), REMAT_INVALID);
    ck_says_all(remat_last_error(), sentence);
    remat_graph_free(r->g);
    remat_graph_free(r->body);
}

#define REFUSED(sentence, ...)                                                                                         \
    do {                                                                                                               \
        begin(&r);                                                                                                     \
        __VA_ARGS__;                                                                                                   \
        end(&r, sentence);                                                                                             \
    } while (0)

START_TEST(invalid_cells_are_refused) {
    spoiled r;
    REFUSED("remat_scan|cell", r.cell = NULL);
    REFUSED("name", r.cell->name = "linear");
    REFUSED("cell|name|40", r.cell->name = NULL);
    REFUSED("cell|name|40", r.cell->name = "a name that is longer than forty bytes is");
    REFUSED("body", r.cell->body = NULL);
    REFUSED("input|12", r.cell->n_weights = 12);
    REFUSED("1 input", r.cell->n_inputs = 0);
    REFUSED("1 to 4|remat_concat", r.cell->n_states = 5);
    REFUSED("1 to 4", r.cell->n_states = 0);
    REFUSED("states|NULL", r.cell->states = NULL);
    REFUSED("weight 1|body", r.written.weight[1].id = 99);
    REFUSED("input 0|body", r.written.x = r.written.next[0]);
    REFUSED("b_ih|twice", r.written.weight[3] = r.written.weight[2]);
    REFUSED("output 0|layer", r.cell->output = r.written.state[0]);
    REFUSED("next state 0|layer", r.written.next[0] = REMAT_NONE);
}
END_TEST

START_TEST(invalid_bodies_are_refused) {
    spoiled r;
    remat_value both[2];
    REFUSED("b_hh|input|weight|state", r.cell->n_weights = 3);
    REFUSED("state 0|f32 (3,8)|f32 (3,5)", r.written.next[0] = remat_scale(r.body, r.written.x, 2));
    REFUSED("output 0|f32 (8,8)|batch|3", r.cell->output = remat_tanh(r.body, r.written.weight[1]));
    REFUSED("body|parameter|p", remat_param(r.body, "p", 1, (int64_t[]){H}, remat_init_zero()));
    remat_op mine = *rm_op_find("tanh");
    mine.name = "mine";
    REFUSED("mine|linear", CHECKED(remat_apply(r.body, &mine, &r.cell->output, 1, NULL, &r.cell->output)));
    REFUSED("input t|sequence",
            r.written.x = remat_input(r.body, "t", REMAT_F32, REMAT_SEQUENCE, 3, (int64_t[]){B, 2, H}));
    REFUSED("input t|integer", r.written.x = remat_input(r.body, "t", REMAT_I32, REMAT_STATIC, 2, (int64_t[]){B, 2}));
    REFUSED("input s|depend", both[0] = r.written.x; both[1] = body_input(r.body, "s", 2, B, C); r.cell->inputs = both;
            r.cell->n_inputs = 2);
    REFUSED("name x|twice", body_input(r.body, "x", 2, B, C));
    REFUSED("64 layers", for (int i = 0; i < 64; i++) r.cell->output = remat_scale(r.body, r.cell->output, 1));
}
END_TEST

START_TEST(invalid_operands_are_refused) {
    spoiled r;
    REFUSED("rnn of ops|weight 0|f32 (8,8)|f32 (8,5)", r.w[0] = r.w[1]);
    REFUSED("rnn of ops|sequence 0|f32 (23,3,4)|f32 (23,3,5)",
            r.x = remat_input(r.g, "y", REMAT_F32, REMAT_SEQUENCE, 3, (int64_t[]){T, B, C - 1}));
    REFUSED("rnn of ops|sequence", r.x = remat_input(r.g, "y", REMAT_F32, REMAT_STATIC, 3, (int64_t[]){T, B, C}));
    REFUSED("rnn of ops|input 2|missing", r.w[1] = REMAT_NONE);
}
END_TEST

/* Allocations fail while the graph is built, and while a session copies it. */
START_TEST(failed_allocations_of_scans_are_reported) {
    for (int copied = 0; copied < 2; copied++)
        for (int64_t n = 1;; n++) {
            spoiled r;
            remat_graph *copy = NULL;
            begin(&r);
            if (!copied) rm_host_fail_at(n);
            remat_scan(r.g, r.cell, &r.x, r.w);
            if (copied) rm_host_fail_at(n);
            remat_status status = copied ? rm_graph_copy(r.g, &copy) : remat_graph_check(r.g);
            rm_host_fail_at(0);
            ck_assert(status == REMAT_MEMORY || (n > 3 && !status));
            remat_graph_free(copy);
            remat_graph_free(r.g);
            remat_graph_free(r.body);
            if (!status) break;
        }
}
END_TEST

/* The null device plans the same bytes. */
START_TEST(null_device_plans_the_same_bytes) {
    uint64_t bytes[2];
    for (int i = 0; i < 2; i++) {
        remat_config config = configured();
        if (i) config.device = "null";
        config.strategy = "lean";
        remat_session *s = open_net(CELL_GRU, true, config);
        bytes[i] = rm_plan_summary_of(s).activations_peak_bytes;
        remat_session_free(s);
    }
    ck_assert_uint_eq(bytes[0], bytes[1]);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("scan");
    tcase_set_timeout(tests, 300);
    tcase_add_loop_test(tests, cells_of_ops_match_the_built_in_cells, 0, 2 * CELL_KINDS);
    tcase_add_loop_test(tests, cells_of_ops_have_the_same_bits_in_every_plan, 0, 2 * CELL_KINDS);
    tcase_add_test(tests, states_of_cells_of_ops_are_found_by_name);
    tcase_add_loop_test(tests, cells_of_ops_pass_the_op_check, 0, CELL_KINDS);
    tcase_add_loop_test(tests, random_bodies_pass_the_op_check, 0, 24);
    tcase_add_test(tests, dropout_does_not_depend_on_the_tile);
    tcase_add_test(tests, invalid_cells_are_refused);
    tcase_add_test(tests, invalid_bodies_are_refused);
    tcase_add_test(tests, invalid_operands_are_refused);
    tcase_add_test(tests, failed_allocations_of_scans_are_reported);
    tcase_add_test(tests, null_device_plans_the_same_bytes);
    return run_cases("scan", tests);
}
