/* test_outside.c: a loss computed by the caller: forward, gradients of outputs, backward; and gradients of inputs. With
 * a cross-entropy written here, gradients match those of the built-in loss, and every plan has the same bits. Heads are
 * not recomputed, nothing is allocated, and calls in the wrong order are refused. test_random.c tests random
 * networks. */
#define _GNU_SOURCE
#include "engine/abi.h"
#include "memory/host.h"
#include "tests/engine/callers_loss.h"
#include "tests/engine/in_double.h"
#include "tests/engine/interpose.h"
#include "tests/engine/random_net.h"
#include "tests/engine/team.h"
#include "tests/suite.h"

/* ---- A network, and a loss of the caller ------------------------------------------------------------------------ */

static void expect_near(remat_session *a, remat_session *b, remat_kind kind, double tolerance) {
    ck_assert_int_eq(remat_count(a, kind), remat_count(b, kind));
    for (int64_t i = 0; i < remat_count(a, kind); i++) {
        float x[4 * H * H + T * B * C], y[4 * H * H + T * B * C];
        remat_array info;
        CHECKED(remat_array_info(a, kind, i, &info));
        CHECKED(remat_read(a, kind, i, x, info.bytes));
        CHECKED(remat_read(b, kind, i, y, info.bytes));
        double most = 0;
        for (int64_t k = 0; k < info.count; k++) most = fmax(most, fabs(x[k]));
        ck_assert_msg(most > 0, "%s is zero", info.name);
        for (int64_t k = 0; k < info.count; k++)
            ck_assert_msg(fabs(x[k] - y[k]) <= tolerance * most, "%s has %.9g, and %.9g", info.name, x[k], y[k]);
    }
}

/* ---- Comparison with the built-in loss ------------------------------------------------------------------------- */

/* The built-in gradient of the logits differs by a float rounding, 6e-8, which grows in the sums that follow. Adam
 * divides by a gradient's magnitude, so the rounding of small elements counts as much as that of large ones. */
enum { STEPS = 5 };

static void compare_with_built_in(int cell, remat_config config) {
    tagger mine = build(cell, false), theirs = build(cell, true);
    remat_session *a = open_session(&mine, config), *b = open_session(&theirs, config);
    int micro_steps = config.micro_steps ? config.micro_steps : 1;
    for (int step = 0; step < STEPS; step++) {
        for (int k = 0; k < micro_steps; k++) {
            remat_step_result r, right;
            feed(a, step * micro_steps + k);
            feed(b, step * micro_steps + k);
            CHECKED(own_gradients(a, step * micro_steps + k, &r));
            CHECKED(remat_gradients(b, &right));
            if (micro_steps == 1) ck_assert_msg(fabs(r.loss - right.loss) < 1e-6, "%.9g, %.9g", r.loss, right.loss);
            if (k == micro_steps - 1)
                ck_assert_msg(fabs(r.grad_norm - right.grad_norm) < 2e-5 * right.grad_norm, "%g, %g", r.grad_norm,
                              right.grad_norm);
        }
        expect_near(a, b, REMAT_GRADIENT, step ? 1e-3 : 2e-6);
        CHECKED(remat_update(a, 0.01, NULL));
        CHECKED(remat_update(b, 0.01, NULL));
    }
    expect_near(a, b, REMAT_PARAM, 1e-3);
    close_session(&mine, a);
    close_session(&theirs, b);
}

START_TEST(callers_loss_matches_the_built_in_loss) {
    remat_config config = configured();
    config.strategy = _i < 3 ? "none" : "sqrt";
    compare_with_built_in(_i % 3, config);
}
END_TEST

START_TEST(micro_steps_match_the_built_in_loss) {
    remat_config config = configured();
    config.micro_steps = 4;
    config.deterministic_world = _i;
    compare_with_built_in(1, config);
}
END_TEST

START_TEST(carried_states_match_the_built_in_loss) {
    remat_config config = configured();
    config.stateful = true;
    compare_with_built_in(0, config);
}
END_TEST

static void compare_on_a_rank(teammate *m) {
    remat_config config = configured();
    config.ranks = &m->ranks;
    config.deterministic_world = m->team->deterministic_world;
    config.micro_steps = 2;
    compare_with_built_in(0, config);
}

START_TEST(ranks_match_the_built_in_loss) {
    team_run(&(team){.size = 2, .deterministic_world = _i == 1}, &(remat_ranks){.weight = _i == 2 ? 0.5 : 1},
             compare_on_a_rank, NULL);
}
END_TEST

/* An input's gradient depends on this rank's batch alone, however the ranks sum theirs. */
static void read_input_gradient(const remat_ranks *ranks, bool deterministic_world, float *gradient) {
    tagger t = build(0, false);
    remat_config config = configured();
    remat_step_result r;
    config.ranks = ranks;
    config.deterministic_world = deterministic_world;
    remat_session *s = open_session(&t, config);
    feed(s, 0);
    CHECKED(own_gradients(s, 0, &r));
    CHECKED(remat_read(s, REMAT_GRADIENT, remat_find(s, REMAT_GRADIENT, "x"), gradient, sizeof(float) * T * B * C));
    close_session(&t, s);
}

static void compare_with_one_rank(teammate *m) {
    float here[T * B * C], alone[T * B * C];
    read_input_gradient(&m->ranks, m->team->deterministic_world, here);
    read_input_gradient(NULL, false, alone);
    ck_assert(m->rank || !memcmp(here, alone, sizeof here)); /* the other rank drops other elements */
}

START_TEST(input_gradients_are_of_the_ranks_own_batch) {
    team_run(&(team){.size = 2, .deterministic_world = _i == 1}, &(remat_ranks){.shard_optimizer = _i == 2},
             compare_with_one_rank, NULL);
}
END_TEST

/* ---- The same bits --------------------------------------------------------------------------------------------- */

static trace run(const tagger *t, remat_config config, uint64_t *recomputed) {
    trace out = {.n = 0};
    remat_step_result r;
    remat_session *s = open_session(t, config);
    for (int step = 0; step < 2; step++) {
        feed(s, step);
        CHECKED(own_gradients(s, step, &r));
        out.norm[step] = r.grad_norm;
        *recomputed = r.recomputed_stages;
        CHECKED(remat_update(s, 0.01, &r));
    }
    read_all(s, REMAT_GRADIENT, &out);
    read_all(s, REMAT_PARAM, &out);
    CHECKED(remat_evaluate(s, &r)); /* both use the arena; a lean plan may need less than the evaluation */
    ck_assert_uint_eq(rm_plan_summary_of(s).planned_peak_bytes, r.arena_peak_bytes);
    remat_session_free(s);
    return out;
}

static void expect_same(const tagger *t, const trace *kept, const remat_config *config, const char *what) {
    uint64_t recomputed;
    trace other = run(t, *config, &recomputed);
    ck_assert_uint_eq(other.n, kept->n);
    ck_assert_msg(!memcmp(other.norm, kept->norm, sizeof kept->norm), "%s: the norm differs", what);
    ck_assert_msg(!memcmp(other.bits, kept->bits, kept->n), "%s: gradients or parameters differ", what);
}

/* Every saved block moves to the file after its run, and returns for its backward run. */
static char *spill_all(const char *steps) {
    char *text, line[64];
    size_t length;
    FILE *out = open_memstream(&text, &length);
    for (long s; sscanf(steps, "%63[^\n]", line) == 1; steps = strchr(steps, '\n') + 1) {
        if (sscanf(line, "run backward %ld", &s) == 1) fprintf(out, "load saved %ld\n", s);
        fprintf(out, "%s\n", line);
        if (sscanf(line, "run forward %ld", &s) == 1 && !strstr(line, "drop"))
            fprintf(out, "save saved %ld\nfree saved %ld\n", s, s);
    }
    fclose(out);
    return text;
}

static void try_random_plans(const tagger *t, const trace *kept, remat_config config) {
    config.plan_only = true;
    remat_session *s = open_session(t, config);
    config.plan_only = false;
    for (int i = 0; i < 8; i++) {
        rng_state = (uint64_t)i;
        char *steps = random_plan(s), *spilled = spill_all(steps);
        config.plan_steps = i % 2 ? spilled : steps;
        config.spill_dir = i % 2 ? "/tmp" : NULL;
        config.verify_recompute = i % 4 < 2;
        expect_same(t, kept, &config, config.plan_steps);
        free(steps);
        free(spilled);
    }
    remat_session_free(s);
}

static void try_budgets(const tagger *t, const trace *kept, remat_config config) {
    remat_session *s;
    config.strategy = "optimal";
    config.outputs = &t->logits;
    config.n_outputs = config.n_differentiated = 1;
    config.memory_budget = 1;
    ck_assert_int_eq(remat_session_create(t->graph, REMAT_NONE, &config, &s), REMAT_INFEASIBLE);
    uint64_t least = remat_smallest_budget();
    for (int i = 0; i < 4; i++) {
        config.memory_budget = least + (uint64_t)i * 2000;
        expect_same(t, kept, &config, "optimal");
    }
}

START_TEST(callers_loss_has_the_same_bits_in_every_plan) {
    static const char *const strategies[] = {"segments", "sqrt", "lean", "optimal"};
    tagger t = build(_i % 3, false);
    remat_config config = configured();
    config.threads = 1 + _i / 3;
    uint64_t recomputed;
    trace kept = run(&t, config, &recomputed);
    ck_assert_uint_eq(recomputed, 0);
    config.segments = 3;
    for (int i = 0; i < 4; i++) {
        config.strategy = strategies[i];
        expect_same(&t, &kept, &config, strategies[i]);
    }
    try_random_plans(&t, &kept, config);
    try_budgets(&t, &kept, config);
    remat_graph_free(t.graph);
}
END_TEST

/* Compares with the ops' definitions in double precision. */
START_TEST(gradients_match_double_precision) {
    tagger t = build(_i, false);
    remat_session *s = open_session(&t, configured());
    remat_step_result r;
    feed(s, 0);
    CHECKED(own_gradients(s, 0, &r));
    in_double d = in_double_forward(s);
    const double *logits = d.value[t.logits.id];
    double *gradient = in_double_gradient(&d, t.logits.id);
    for (int row = 0; row < T * B; row++) {
        double sum = 0;
        for (int v = 0; v < V; v++) sum += exp(logits[row * V + v]);
        for (int v = 0; v < V; v++)
            gradient[row * V + v] = (exp(logits[row * V + v]) / sum - (v == target(0, row))) / (T * B);
    }
    in_double_backward(&d);
    in_double_expect(&d, 1e-5, 1e-3, "a tagger");
    in_double_free(&d);
    close_session(&t, s);
}
END_TEST

/* ---- Cost ------------------------------------------------------------------------------------------------------- */

static int forward_calls, backward_calls;

static const char *counted_op;

static void count_and_run(rm_queue *queue, const remat_op *op, remat_pass pass, const remat_call *call) {
    forward_calls += pass == REMAT_FORWARD && !strcmp(op->name, counted_op);
    backward_calls += pass == REMAT_BACKWARD && !strcmp(op->name, counted_op);
    rm_device_cpu.run(queue, op, pass, call);
}

static void expect_calls(remat_session *s, const char *op, int64_t forward, int64_t backward) {
    static rm_device_api counting;
    counting = *s->runner.api;
    counting.run = count_and_run;
    const rm_device_api *before = s->runner.api;
    s->runner.api = &counting;
    counted_op = op;
    forward_calls = backward_calls = 0;
    remat_step_result r;
    CHECKED(own_gradients(s, 0, &r));
    ck_assert_uint_gt(r.recomputed_stages, 0);
    ck_assert_msg(forward_calls == forward && backward_calls == backward, "%s: %d times forward, %d backward", op,
                  forward_calls, backward_calls);
    s->runner.api = before;
}

/* A head runs once per tile although tiles are recomputed. But values inside a head that its backward reads are
 * computed twice. */
START_TEST(heads_are_not_recomputed) {
    tagger t = build(0, false);
    remat_config config = configured();
    config.strategy = "segments";
    config.segments = 3;
    remat_graph *g = t.graph;
    remat_value inner = remat_gelu(g, t.logits);
    for (int kind = 0; kind < 3; kind++) {
        tagger other = {.graph = g, .logits = t.logits};
        if (kind == 1) other.logits = remat_linear(g, inner, matrix(g, "w2", V, V), REMAT_NONE);
        if (kind == 2) other.logits = remat_tanh(g, t.logits); /* its backward reads its result, which is an output */
        remat_session *s = open_session(&other, config);
        int64_t n = rm_plan_summary_of(s).n_stages;
        feed(s, 0);
        expect_calls(s, "linear", kind == 1 ? 3 * n : n, kind == 1 ? 2 * n : n);
        expect_calls(s, "tanh", kind == 2 ? n : 0, kind == 2 ? n : 0);
        ck_assert_uint_gt(s->chain.kind[0].drop.once_ns, 0);
        remat_session_free(s);
    }
    remat_graph_free(g);
}
END_TEST

/* The head's time is predicted besides the plan, whose times are those of the network without a head. */
START_TEST(predicted_time_of_a_head_is_the_same_in_every_plan) {
    tagger t = build(0, false);
    remat_config config = configured();
    remat_session *s = open_session(&t, config);
    uint64_t fixed = rm_plan_summary_of(s).fixed_ns;
    ck_assert_uint_gt(fixed, rm_chain_once_ns(&s->chain));
    remat_session_free(s);
    config.strategy = "sqrt";
    s = open_session(&t, config);
    ck_assert_uint_eq(rm_plan_summary_of(s).fixed_ns, fixed);
    ck_assert_uint_gt(rm_plan_summary_of(s).recompute_ns, 0);
    remat_session_free(s);
    config.calibration = ""; /* measured, except for values that are computed once */
    s = open_session(&t, config);
    ck_assert(rm_plan_summary_of(s).measured_times);
    ck_assert_uint_gt(rm_plan_summary_of(s).fixed_ns, rm_chain_once_ns(&s->chain));
    close_session(&t, s);
}
END_TEST

/* The backward pass writes outputs that are not differentiated, as in any training step. A gradient from the caller
 * stays where it was written. */
START_TEST(backward_writes_the_other_outputs) {
    static float inner[T * B * V], outer[T * B * V];
    tagger t = build(0, false);
    remat_value outputs[] = {remat_scale(t.graph, t.logits, 2), t.logits};
    remat_config config = configured();
    config.outputs = outputs;
    config.n_outputs = 2;
    config.n_differentiated = 1;
    remat_session *s;
    remat_step_result r;
    CHECKED(remat_session_create(t.graph, REMAT_NONE, &config, &s));
    poison(s);
    feed(s, 0);
    CHECKED(remat_forward(s));
    ck_assert_int_eq(remat_read(s, REMAT_OUTPUT, 1, inner, sizeof inner), REMAT_INVALID);
    CHECKED(remat_read(s, REMAT_OUTPUT, 0, outer, sizeof outer));
    CHECKED(own_gradients(s, 0, &r));
    CHECKED(remat_read(s, REMAT_OUTPUT, 1, inner, sizeof inner));
    for (int i = 0; i < T * B * V; i++) ck_assert(outer[i] == 2 * inner[i] && inner[i] != 0);
    close_session(&t, s);
}
END_TEST

START_TEST(callers_gradient_overwrites_no_other_value) {
    remat_graph *g;
    remat_session *s;
    CHECKED(remat_graph_create(&g));
    remat_value x = remat_input(g, "x", REMAT_F32, REMAT_STATIC, 2, (int64_t[]){B, H});
    remat_value h = remat_linear(g, x, matrix(g, "w0", H, H), REMAT_NONE);
    remat_value y = remat_linear(g, h, matrix(g, "w1", H, H), REMAT_NONE), outputs[] = {y, h};
    remat_config config = configured();
    config.tile = 0;
    config.plan_only = true;
    config.outputs = outputs;
    config.n_outputs = 2;
    for (int n = 1; n <= 2; n++) {
        config.n_differentiated = n;
        CHECKED(remat_session_create(g, REMAT_NONE, &config, &s));
        ck_assert_int_eq(s->chain.crossing[s->chain.cross[h.id]].d_place >= 0, n == 1);
        remat_session_free(s);
    }
    remat_graph_free(g);
}
END_TEST

START_TEST(callers_loss_allocates_nothing_after_the_first_step) {
    tagger t = build(0, false);
    remat_config config = configured();
    config.strategy = "sqrt";
    config.threads = 2;
    remat_session *s = open_session(&t, config);
    remat_step_result r;
    feed(s, 0);
    CHECKED(own_gradients(s, 0, &r));
    CHECKED(remat_update(s, 0.01, &r));
    remat_status status = REMAT_OK;
    interposed before = interposed_now();
    int64_t ours = rm_host_allocations();
    for (int step = 1; step < 5 && !status; step++) {
        status = remat_forward(s);
        if (!status)
            status = remat_write(s, REMAT_OUTPUT_GRADIENT, 0, (float[T * B * V]){1}, sizeof(float) * T * B * V);
        if (!status) status = remat_backward(s, &r);
        if (!status) status = remat_update(s, 0.01, &r);
    }
    interposed after = interposed_now();
    CHECKED(status);
    ck_assert_int_eq(after.calls - before.calls, 0);
    ck_assert_int_eq(rm_host_allocations() - ours, 0);
    close_session(&t, s);
}
END_TEST

/* ---- Final states ----------------------------------------------------------------------------------------------- */

static remat_value encoder(remat_graph *g, int cell) {
    remat_value x = remat_input(g, "x", REMAT_F32, REMAT_SEQUENCE, 3, (int64_t[]){T, B, C});
    return layer(g, cell, x, C, "w_ih0", "w_hh0");
}

/* Starts from `state`. */
static remat_value decoder(remat_graph *g, int cell, const remat_value *state) {
    remat_value x = remat_input(g, "later", REMAT_F32, REMAT_SEQUENCE, 3, (int64_t[]){T, B, C});
    remat_value target = remat_input(g, "target", REMAT_F32, REMAT_SEQUENCE, 3, (int64_t[]){T, B, H});
    remat_value y = layer(g, cell, x, C, "w_ih1", "w_hh1");
    for (int k = 0; k < (cell ? 1 : 2); k++) remat_initial_state(g, y, k, state[k]);
    return remat_mse(g, y, target);
}

static remat_session *open_part(remat_graph *g, remat_value loss, remat_config config) {
    remat_session *s;
    CHECKED(remat_session_create(g, loss, &config, &s));
    for (int64_t i = 0; i < remat_count(s, REMAT_INPUT); i++) {
        float data[T * B * H];
        remat_array info;
        CHECKED(remat_array_info(s, REMAT_INPUT, i, &info));
        for (int k = 0; k < T * B * H; k++) data[k] = (float)sin(info.name[0] + 0.37 * k);
        CHECKED(remat_write(s, REMAT_INPUT, i, data, info.bytes));
    }
    remat_graph_free(g);
    return s;
}

static void move_array(remat_session *from, remat_kind kind, int64_t i, remat_session *to, remat_kind as, int64_t j) {
    float data[B * H];
    CHECKED(remat_read(from, kind, i, data, sizeof data));
    CHECKED(remat_write(to, as, j, data, sizeof data));
}

static void expect_gradient(remat_session *all, remat_session *part) {
    for (int64_t i = 0; i < remat_count(part, REMAT_GRADIENT); i++) {
        float expected[4 * H * H], got[4 * H * H];
        remat_array info;
        CHECKED(remat_array_info(part, REMAT_GRADIENT, i, &info));
        if (*info.name == 's') continue; /* a state, which is no parameter of the whole */
        CHECKED(remat_read(part, REMAT_GRADIENT, i, got, info.bytes));
        CHECKED(remat_read(all, REMAT_GRADIENT, remat_find(all, REMAT_GRADIENT, info.name), expected, info.bytes));
        ck_assert_msg(!memcmp(expected, got, info.bytes), "%s", info.name);
    }
}

/* An encoder and a decoder in sessions of their own have the bits of both in one. */
START_TEST(final_states_may_be_differentiated) {
    static const char *const strategies[] = {"none", "segments", "lean", "optimal"};
    int cell = _i % 3, n = cell ? 1 : 2;
    remat_value state[2], outputs[2];
    remat_graph *g[3];
    remat_config config = REMAT_CONFIG_INIT;
    remat_step_result whole, r;
    config.tile = TILE;
    config.threads = 1;
    config.strategy = strategies[_i / 3];
    config.segments = 3;
    for (int k = 0; k < 3; k++) CHECKED(remat_graph_create(&g[k]));
    remat_value y = encoder(g[0], cell);
    for (int k = 0; k < n; k++) state[k] = remat_final_state(g[0], y, k);
    remat_session *all = open_part(g[0], decoder(g[0], cell, state), config);
    static const char *const names[] = {"state.h", "state.c"};
    for (int k = 0; k < n; k++) {
        state[k] = remat_input(g[2], names[k], REMAT_F32, REMAT_STATIC, 2, (int64_t[]){B, H});
        remat_requires_grad(g[2], state[k]);
    }
    remat_session *late = open_part(g[2], decoder(g[2], cell, state), config);
    y = encoder(g[1], cell);
    for (int k = 0; k < n; k++) outputs[k] = remat_final_state(g[1], y, k);
    config.outputs = outputs;
    config.n_outputs = config.n_differentiated = n;
    remat_session *early = open_part(g[1], REMAT_NONE, config);
    CHECKED(remat_copy_parameters(early, all));
    CHECKED(remat_copy_parameters(late, all));
    CHECKED(remat_gradients(all, &whole));
    CHECKED(remat_forward(early));
    for (int k = 0; k < n; k++)
        move_array(early, REMAT_OUTPUT, k, late, REMAT_INPUT, remat_find(late, REMAT_INPUT, names[k]));
    CHECKED(remat_gradients(late, &r));
    ck_assert(r.loss == whole.loss);
    for (int k = 0; k < n; k++)
        move_array(late, REMAT_GRADIENT, remat_find(late, REMAT_GRADIENT, names[k]), early, REMAT_OUTPUT_GRADIENT, k);
    CHECKED(remat_backward(early, NULL));
    expect_gradient(all, early);
    expect_gradient(all, late);
    remat_session_free(all), remat_session_free(early), remat_session_free(late);
}
END_TEST

/* ---- Networks without parameters -------------------------------------------------------------------------------- */

/* Nothing is trained: the gradients of mean((x - y)^2) with respect to x and y. One of them requires a gradient only
 * after it was read. */
START_TEST(inputs_have_gradients_without_parameters) {
    remat_graph *g;
    remat_session *s;
    CHECKED(remat_graph_create(&g));
    remat_value x = remat_input(g, "x", REMAT_F32, REMAT_STATIC, 1, (int64_t[]){4});
    remat_value y = remat_requires_grad(g, remat_input(g, "y", REMAT_F32, REMAT_STATIC, 1, (int64_t[]){4}));
    remat_value unread = remat_requires_grad(g, remat_input(g, "unread", REMAT_F32, REMAT_STATIC, 1, (int64_t[]){4}));
    remat_value loss = remat_mse(g, x, y);
    ck_assert_int_eq(remat_requires_grad(g, x).id, x.id);
    ck_assert_int_ne(unread.id, 0);
    remat_config config = REMAT_CONFIG_INIT;
    CHECKED(remat_session_create(g, loss, &config, &s));
    CHECKED(remat_write(s, REMAT_INPUT, 0, (float[]){1, 2, 3, 4}, 16));
    CHECKED(remat_write(s, REMAT_INPUT, 1, (float[]){0, 4, 3, 5}, 16));
    remat_step_result r;
    for (int i = 0; i < 2; i++) CHECKED(remat_gradients(s, &r)); /* gradients start at zero each time */
    float dx[4], dy[4], dunread[4];
    ck_assert_int_eq(remat_count(s, REMAT_GRADIENT), 3);
    CHECKED(remat_read(s, REMAT_GRADIENT, remat_find(s, REMAT_GRADIENT, "x"), dx, 16));
    CHECKED(remat_read(s, REMAT_GRADIENT, remat_find(s, REMAT_GRADIENT, "y"), dy, 16));
    CHECKED(remat_read(s, REMAT_GRADIENT, remat_find(s, REMAT_GRADIENT, "unread"), dunread, 16));
    const float right[] = {0.5f, -1, 0, -0.5f};
    for (int i = 0; i < 4; i++) ck_assert(dx[i] == right[i] && dy[i] == -right[i] && dunread[i] == 0);
    ck_assert(r.loss == 1.5 && r.grad_norm == 0);
    char *problem = remat_plan_problem_text(s);
    ck_assert_ptr_nonnull(strstr(problem, "resident 192 input and table gradients\n"));
    remat_text_free(problem);
    remat_session_free(s);
    remat_graph_free(g);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("outside");
    tcase_set_timeout(tests, 300);
    tcase_add_loop_test(tests, callers_loss_matches_the_built_in_loss, 0, 6);
    tcase_add_loop_test(tests, micro_steps_match_the_built_in_loss, 0, 2);
    tcase_add_test(tests, carried_states_match_the_built_in_loss);
    tcase_add_loop_test(tests, ranks_match_the_built_in_loss, 0, 3);
    tcase_add_loop_test(tests, input_gradients_are_of_the_ranks_own_batch, 0, 3);
    tcase_add_loop_test(tests, callers_loss_has_the_same_bits_in_every_plan, 0, 6);
    tcase_add_loop_test(tests, gradients_match_double_precision, 0, 3);
    tcase_add_test(tests, heads_are_not_recomputed);
    tcase_add_test(tests, backward_writes_the_other_outputs);
    tcase_add_test(tests, callers_gradient_overwrites_no_other_value);
    tcase_add_test(tests, predicted_time_of_a_head_is_the_same_in_every_plan);
    tcase_add_test(tests, callers_loss_allocates_nothing_after_the_first_step);
    tcase_add_loop_test(tests, final_states_may_be_differentiated, 0, 12);
    tcase_add_test(tests, inputs_have_gradients_without_parameters);
    return run_cases("outside", tests);
}
