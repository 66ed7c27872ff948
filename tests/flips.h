/* flips.h: random networks with one flipped bit in a state, at any moment between its computation and its last use. The
 * session must report the stage, timesteps and tensor, on every device. For tests/engine/test_verify.c (cpu) and
 * tests/cuda/test_verify.c (cuda, emulated); each case is one call with a seed. */
#ifndef RM_TEST_FLIPS_H
#define RM_TEST_FLIPS_H

#include <string.h>

#include "engine/session/session.h"
#include "tests/net.h"
#include "tests/says.h"
#include "tests/zeros.h"

static uint64_t rng_state;
static uint32_t draw(uint32_t below) {
    rng_state = rng_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(rng_state >> 33) % below;
}

/* ---- Which flips must be detected ----------------------------------------------------------------------------- */

/* A flip in `piece`, just before or just after the program of plan line `step`. */
typedef struct {
    int64_t step;
    bool after;
    int32_t piece;
    int64_t cut; /* the report must name stage cut-1 */
} flip;

static bool is_run(const rm_step *step) { return step->verb == RM_RUN_FORWARD || step->verb == RM_RUN_BACKWARD; }

/* Is the state read at or after line `from`, before it is recomputed or freed? */
static bool is_read_later(const remat_session *s, int64_t from, int64_t state) {
    const rm_problem *p = &s->chain.problem;
    const rm_plan *plan = &s->training.plan;
    for (int64_t i = from; i < plan->n_steps; i++) {
        const rm_step *step = &plan->step[i];
        if (is_run(step) && rm_in_list(step->verb == RM_RUN_FORWARD ? &p->reads : &p->keeps, step->index, state))
            return true;
        if (step->verb == RM_RUN_FORWARD && step->index == rm_state_maker(p, state)) return false;
        if (step->verb == RM_FREE && step->object == RM_STATE && step->index == state) return false;
    }
    return false;
}

/* A random flip. piece -1: at the drawn moment there is no state to flip. */
static flip random_flip(const remat_session *s) {
    const rm_plan *plan = &s->training.plan;
    const rm_problem *p = &s->chain.problem;
    bool *made = calloc((size_t)p->n_states + 1, 1), *alive = calloc((size_t)p->n_states + 1, 1);
    flip f = {.step = draw((uint32_t)plan->n_steps), .after = draw(2), .piece = -1};
    const rm_step *now = &plan->step[f.step];
    for (int64_t i = 0; i < f.step; i++) {
        const rm_step *step = &plan->step[i];
        for (int64_t k = p->made[step->index]; step->verb == RM_RUN_FORWARD && k < p->made[step->index + 1]; k++)
            made[k] = alive[k] = true;
        if (step->verb == RM_FREE && step->object == RM_STATE) alive[step->index] = false;
    }
    int64_t state = draw((uint32_t)p->n_states), maker = rm_state_maker(p, state);
    bool again = f.after && now->verb == RM_RUN_FORWARD && now->index == maker;
    bool noticed = again ? made[state] : alive[state] && is_read_later(s, f.step + f.after, state);
    int64_t n = p->state[state + 1] - p->state[state];
    if (is_run(now) && noticed && n > 0) {
        f.cut = maker + 1;
        f.piece = (int32_t)(p->state[state] + draw((uint32_t)n));
    }
    free(made);
    free(alive);
    return f;
}

/* ---- Flipping ------------------------------------------------------------------------------------------------- */

typedef struct {
    flip flip;
    uint64_t bit;
    int done;
} disturbance;

static void disturb(rm_runner *runner, int64_t step, bool after) {
    disturbance *d = runner->disturber;
    if (step != d->flip.step || after != d->flip.after) return;
    unsigned char byte, *at = (unsigned char *)runner->piece[d->flip.piece] + d->bit / 8;
    runner->api->copy_out(runner->queue, &byte, at, 1);
    CHECKED(runner->api->synchronize(runner->queue));
    byte ^= (unsigned char)(1 << d->bit % 8);
    runner->api->copy_in(runner->queue, at, &byte, 1);
    d->done++;
}

static void expect_caught(remat_session *s, const flip *f, uint64_t piece_bytes, const char *names) {
    remat_step_result clean, result;
    size_t bytes;
    CHECKED(remat_gradients(s, &clean));
    unsigned char *before = net_read_all(s, REMAT_CARRIED, &bytes);
    disturbance d = {*f, draw((uint32_t)piece_bytes * 8), 0};
    s->runner.disturb = disturb;
    s->runner.disturber = &d;
    remat_status status = remat_gradients(s, &result);
    const char *said = remat_last_error();
    ck_assert_int_eq(d.done, 1);
    ck_assert_msg(status == REMAT_DEVICE, "bit %lu of piece %d flipped %s step %ld: not detected", (unsigned long)d.bit,
                  f->piece, f->after ? "after" : "before", (long)f->step);
    ck_says_all(said, names);
    ck_assert_msg(remat_update(s, 0.1, &result) == REMAT_INVALID, "a failed step's gradients could be used");
    s->runner.disturb = NULL;
    unsigned char *after = net_read_all(s, REMAT_CARRIED, &bytes);
    ck_assert_msg(!bytes || !memcmp(before, after, bytes), "a failed step advanced the carried states");
    CHECKED(remat_gradients(s, &result)); /* the next step succeeds */
    ck_assert(s->stateful || !memcmp(&clean.loss, &result.loss, sizeof clean.loss));
    free(before), free(after);
}

static flip some_flip(const remat_session *s) {
    flip f;
    do f = random_flip(s);
    while (f.piece < 0);
    return f;
}

static remat_config verified(const char *device, int64_t tile) {
    static const char *const strategy[] = {"none", "segments", "sqrt"};
    remat_config config = REMAT_CONFIG_INIT;
    config.device = device;
    config.threads = 1;
    config.tile = tile;
    config.strategy = strategy[draw(3)];
    config.segments = 1 + draw(6);
    config.verify_recompute = true;
    config.optimizer = "sgd";
    return config;
}

static void flip_along_time(const char *device, int seed) {
    rng_state = 1000 + (uint64_t)seed;
    net n = {.cell = seed % NET_CELLS,
             .layers = 1 + (int)draw(2),
             .vocabulary = 7,
             .embed = 3,
             .hidden = 2 + draw(5),
             .timesteps = 8 + draw(40),
             .batch = 1 + draw(3)};
    remat_graph *graph;
    CHECKED(remat_graph_create(&graph));
    remat_value loss = net_build(graph, &n);
    remat_config config = verified(device, 1 + draw(4));
    config.stateful = seed % 4 == 3;
    remat_session *s;
    CHECKED(remat_session_create(graph, loss, &config, &s));
    net_feed(s, &n, seed);
    flip f = some_flip(s);
    int states = n.cell == NET_LSTM ? 2 : 1, slot = f.piece % s->chain.n_carried;
    int64_t first = (f.cut - 1) * config.tile, last = f.cut * config.tile - 1;
    char names[160];
    snprintf(names, sizeof names, "stage %ld|timesteps %ld|%ld|%s of %s rnn.weight_hh_l%d", (long)f.cut - 1,
             (long)first, (long)(last < n.timesteps ? last : n.timesteps - 1), slot % states ? "c" : "h",
             n.cell == NET_RNN ? "rnn_tanh" : net_cell_name[n.cell], slot / states);
    expect_caught(s, &f, (uint64_t)(n.batch * n.hidden) * 4, names);
    remat_session_free(s);
    remat_graph_free(graph);
}

/* linear -> gelu, several times. Stage s is one pair; the gelu's result crosses the cut after it. */
static void flip_by_depth(const char *device, int seed) {
    rng_state = 5000 + (uint64_t)seed;
    int64_t batch = 1 + draw(4), width = 1 + draw(9), layers = 4 + draw(8);
    remat_graph *graph;
    CHECKED(remat_graph_create(&graph));
    remat_value x = remat_input(graph, "x", REMAT_F32, REMAT_STATIC, 2, (int64_t[]){batch, width});
    remat_value target = remat_input(graph, "target", REMAT_F32, REMAT_STATIC, 2, (int64_t[]){batch, width});
    for (int64_t i = 0; i < layers; i++)
        x = remat_gelu(graph,
                       remat_linear(graph, x, net_param(graph, "w", "", (int)i, 2, width, width, 0.5), REMAT_NONE));
    remat_config config = verified(device, 0);
    remat_session *s;
    CHECKED(remat_session_create(graph, remat_mse(graph, x, target), &config, &s));
    CHECKED(write_zeros(s));
    flip f = some_flip(s);
    char names[64];
    snprintf(names, sizeof names, "stage %ld|gelu", (long)f.cut - 1);
    expect_caught(s, &f, (uint64_t)(batch * width) * 4, names);
    remat_session_free(s);
    remat_graph_free(graph);
}

/* A state that the second tier returns changed. The backward run that reads it detects the change. */
static void flip_in_the_second_tier(const char *device, int seed) {
    static const char plan[] = "run forward 0 all\nrun forward 1 all\nsave state 0\nfree state 0\nrun forward 2 all\n"
                               "free state 2\nrun backward 2\nfree saved 2\nfree state 1\nload state 0\n"
                               "run backward 1\nfree saved 1\nfree dstate 1\nfree state 0\nrun backward 0\n"
                               "free saved 0\nfree dstate 0\n";
    rng_state = (uint64_t)seed;
    net n = {.cell = NET_LSTM, .layers = 2, .vocabulary = 5, .embed = 3, .hidden = 4, .timesteps = 11, .batch = 2};
    remat_graph *graph;
    CHECKED(remat_graph_create(&graph));
    remat_value loss = net_build(graph, &n);
    remat_config config = verified(device, 4);
    config.plan_steps = plan;
    config.spill_dir = "/tmp";
    remat_session *s;
    CHECKED(remat_session_create(graph, loss, &config, &s));
    net_feed(s, &n, 1);
    flip f = {.step = 10, .piece = (int32_t)s->chain.problem.state[0] + seed % 4, .cut = 1};
    char names[96];
    snprintf(names, sizeof names, "stage 0|timesteps 0|3|%s of lstm rnn.weight_hh_l%d", seed % 2 ? "c" : "h", seed / 2);
    expect_caught(s, &f, (uint64_t)(n.batch * n.hidden) * 4, names);
    remat_session_free(s);
    remat_graph_free(graph);
}

/* ---- Nothing flipped ------------------------------------------------------------------------------------------ */

static void nothing_flipped(const char *device, int seed) {
    rng_state = (uint64_t)seed;
    net n = {.cell = seed % NET_CELLS,
             .layers = 2,
             .vocabulary = 11,
             .embed = 5,
             .hidden = 7,
             .timesteps = 100,
             .batch = 3,
             .dropout = 0.2};
    remat_graph *graph;
    CHECKED(remat_graph_create(&graph));
    remat_value loss = net_build(graph, &n);
    remat_config config = verified(device, 8);
    config.stateful = seed % 2;
    remat_session *with, *without;
    CHECKED(remat_session_create(graph, loss, &config, &with));
    config.verify_recompute = false;
    CHECKED(remat_session_create(graph, loss, &config, &without));
    for (int step = 0; step < 3; step++) {
        remat_step_result a, b;
        net_feed(with, &n, step);
        net_feed(without, &n, step);
        CHECKED(remat_step(with, 0.1, &a));
        CHECKED(remat_step(without, 0.1, &b));
        ck_assert(!memcmp(&a.loss, &b.loss, sizeof a.loss) && !memcmp(&a.grad_norm, &b.grad_norm, sizeof a.grad_norm));
        CHECKED(remat_evaluate(with, &a));
        CHECKED(remat_evaluate(without, &b));
    }
    ck_assert(without->runner.verify == NULL);
    ck_assert_int_gt(rm_verify_comparisons(with->runner.verify), 3 * with->chain.n_stages);
    remat_session_free(with);
    remat_session_free(without);
    remat_graph_free(graph);
}

#endif
