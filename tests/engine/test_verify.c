/* test_verify.c: remat_config.verify_recompute. A single bit flipped in a state, at any moment between its making and its
 * last reading, is caught and named: stage, timesteps, tensor; 100 of 100. Nothing is reported where nothing was flipped
 * (test_random.c verifies half of its random networks and plans, too). And the hash itself. */
#include "engine/hash.h"
#include "engine/session.h"
#include "tests/net.h"
#include "tests/zeros.h"

#include <string.h>

static uint64_t rng_state;
static uint32_t draw(uint32_t below) {
    rng_state = rng_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(rng_state >> 33) % below;
}

/* ---- The hash ------------------------------------------------------------------------------------------------- */

/* Every length from 0 to 300, every bit of each: never the same hash; nor for another seed, or one zero byte more. */
START_TEST(every_bit_counts) {
    unsigned char data[300];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (unsigned char)rm_random(1, 2, 3, 4, i);
    for (size_t n = 0; n < sizeof data; n++) {
        uint64_t hash = rm_hash(data, n, 7);
        ck_assert_uint_eq(hash, rm_hash(data, n, 7));
        ck_assert_uint_ne(hash, rm_hash(data, n, 8));
        unsigned char moved[sizeof data + 1];
        memcpy(moved + 1, data, n);
        ck_assert_uint_eq(hash, rm_hash(moved + 1, n, 7)); /* wherever it lies */
        for (size_t bit = 0; bit < 8 * n; bit++) {
            data[bit / 8] ^= (unsigned char)(1 << bit % 8);
            ck_assert_uint_ne(hash, rm_hash(data, n, 7));
            data[bit / 8] ^= (unsigned char)(1 << bit % 8);
        }
    }
}
END_TEST

/* Words and blocks that change places, and zeros of different lengths. */
START_TEST(order_and_length_count) {
    uint64_t word[64], swapped[64], zero[64] = {0}, hash;
    for (int i = 0; i < 64; i++) word[i] = (uint64_t)rm_random(9, 0, 0, 0, (uint64_t)i) << 32 | (uint32_t)i;
    hash = rm_hash(word, sizeof word, 0);
    for (int i = 0; i < 64; i++)
        for (int j = 0; j < i; j++) {
            memcpy(swapped, word, sizeof word);
            swapped[i] = word[j];
            swapped[j] = word[i];
            ck_assert_uint_ne(hash, rm_hash(swapped, sizeof swapped, 0));
        }
    for (size_t n = 0; n < sizeof zero; n++)
        for (size_t m = 0; m < n; m++) ck_assert_uint_ne(rm_hash(zero, n, 0), rm_hash(zero, m, 0));
}
END_TEST

/* ---- Which flips must be noticed ------------------------------------------------------------------------------ */

/* One possible flip: in `piece`, just before or just after the program of line `step`. */
typedef struct {
    int64_t step;
    bool after;
    int32_t piece;
    int64_t cut; /* by which stage cut-1 is to be named */
} flip;

static bool is_run(const rm_step *step) { return step->verb == RM_RUN_FORWARD || step->verb == RM_RUN_BACKWARD; }

/* In the networks below stage s makes all of state(s+1) and reads all of state(s), in both directions. Is state(cut)
 * read after line `from` (inclusive) before it is made anew or freed? */
static bool is_read_later(const rm_plan *plan, int64_t from, int64_t cut) {
    for (int64_t i = from; i < plan->n_steps; i++) {
        const rm_step *step = &plan->step[i];
        if (is_run(step) && step->index == cut) return true;
        if (step->verb == RM_RUN_FORWARD && step->index == cut - 1) return false;
        if (step->verb == RM_FREE && step->object == RM_STATE && step->index == cut) return false;
    }
    return false;
}

/* A random one; piece -1: there is none at the moment that was drawn. */
static flip random_flip(const remat_session *s) {
    const rm_plan *plan = &s->training.plan;
    const rm_lists *state = &s->chain.problem.state;
    int64_t cuts = s->chain.n_stages + 1;
    bool *made = calloc((size_t)cuts, 1), *alive = calloc((size_t)cuts, 1);
    flip f = {.step = draw((uint32_t)plan->n_steps), .after = draw(2), .piece = -1};
    const rm_step *now = &plan->step[f.step];
    for (int64_t i = 0; i < f.step; i++) {
        const rm_step *step = &plan->step[i];
        if (step->verb == RM_RUN_FORWARD) made[step->index + 1] = alive[step->index + 1] = true;
        if (step->verb == RM_FREE && step->object == RM_STATE) alive[step->index] = false;
    }
    int64_t cut = draw((uint32_t)cuts);
    bool again = f.after && now->verb == RM_RUN_FORWARD && now->index == cut - 1;
    bool noticed = again ? made[cut] : alive[cut] && is_read_later(plan, f.step + f.after, cut);
    int64_t n = state->start[cut + 1] - state->start[cut];
    if (is_run(now) && noticed && n > 0) {
        f.cut = cut;
        f.piece = state->item[state->start[cut] + draw((uint32_t)n)];
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
    ((unsigned char *)runner->piece[d->flip.piece])[d->bit / 8] ^= (unsigned char)(1 << d->bit % 8);
    d->done++;
}

static void expect_caught(remat_session *s, const flip *f, uint64_t piece_bytes, const char *names) {
    remat_step_result clean, result;
    CHECKED(remat_gradients(s, &clean));
    disturbance d = {*f, draw((uint32_t)piece_bytes * 8), 0};
    s->runner.disturb = disturb;
    s->runner.disturber = &d;
    remat_status status = remat_gradients(s, &result);
    const char *said = remat_last_error();
    ck_assert_int_eq(d.done, 1);
    ck_assert_msg(status == REMAT_DEVICE, "bit %lu of piece %d flipped %s step %ld: not noticed", (unsigned long)d.bit,
                  f->piece, f->after ? "after" : "before", (long)f->step);
    ck_assert_msg(strstr(said, names), "expected \"%s\" in \"%s\"", names, said);
    ck_assert_msg(remat_update(s, 0.1, &result) == REMAT_INVALID, "gradients that failed could be used");
    s->runner.disturb = NULL;
    CHECKED(remat_gradients(s, &result)); /* and the next step is a good one */
    ck_assert(!memcmp(&clean.loss, &result.loss, sizeof clean.loss));
}

static flip some_flip(const remat_session *s) {
    flip f;
    do f = random_flip(s);
    while (f.piece < 0);
    return f;
}

static remat_config verified(int64_t tile) {
    static const char *const strategy[] = {"none", "segments", "sqrt"};
    remat_config config = REMAT_CONFIG_INIT;
    config.threads = 1;
    config.tile = tile;
    config.strategy = strategy[draw(3)];
    config.segments = 1 + draw(6);
    config.verify_recompute = true;
    config.optimizer = "sgd";
    return config;
}

START_TEST(flips_along_time_are_caught) {
    rng_state = 1000 + (uint64_t)_i;
    net n = {.cell = _i % NET_CELLS,
             .layers = 1 + (int)draw(2),
             .vocabulary = 7,
             .embed = 3,
             .hidden = 2 + draw(5),
             .timesteps = 8 + draw(40),
             .batch = 1 + draw(3)};
    remat_graph *graph;
    CHECKED(remat_graph_create(&graph));
    remat_value loss = net_build(graph, &n);
    remat_config config = verified(1 + draw(4));
    remat_session *s;
    CHECKED(remat_session_create(graph, loss, &config, &s));
    net_feed(s, &n, _i);
    flip f = some_flip(s);
    int states = n.cell == NET_LSTM ? 2 : 1, slot = f.piece % s->chain.n_carried;
    int64_t first = (f.cut - 1) * config.tile, last = f.cut * config.tile - 1;
    char names[160];
    snprintf(names, sizeof names, "stage %ld, timesteps %ld to %ld: %s of %s rnn.weight_hh_l%d ", (long)f.cut - 1,
             (long)first, (long)(last < n.timesteps ? last : n.timesteps - 1), slot % states ? "c" : "h",
             n.cell == NET_RNN ? "rnn_tanh" : net_cell_name[n.cell], slot / states);
    expect_caught(s, &f, (uint64_t)(n.batch * n.hidden) * 4, names);
    remat_session_free(s);
    remat_graph_free(graph);
}
END_TEST

/* linear -> gelu, several times: stage s is one pair, and what crosses the cut behind it is the gelu's result. */
START_TEST(flips_by_depth_are_caught) {
    rng_state = 5000 + (uint64_t)_i;
    int64_t batch = 1 + draw(4), width = 1 + draw(9), layers = 4 + draw(8);
    remat_graph *graph;
    CHECKED(remat_graph_create(&graph));
    remat_value x = remat_input(graph, "x", REMAT_F32, REMAT_WHOLE, 2, (int64_t[]){batch, width});
    remat_value target = remat_input(graph, "target", REMAT_F32, REMAT_WHOLE, 2, (int64_t[]){batch, width});
    for (int64_t i = 0; i < layers; i++)
        x = remat_gelu(graph,
                       remat_linear(graph, x, net_param(graph, "w", "", (int)i, 2, width, width, 0.5), REMAT_NONE));
    remat_config config = verified(0);
    remat_session *s;
    CHECKED(remat_session_create(graph, remat_mse(graph, x, target), &config, &s));
    CHECKED(write_zeros(s));
    flip f = some_flip(s);
    char names[64];
    snprintf(names, sizeof names, "stage %ld: result of gelu ", (long)f.cut - 1);
    expect_caught(s, &f, (uint64_t)(batch * width) * 4, names);
    remat_session_free(s);
    remat_graph_free(graph);
}
END_TEST

/* A state that went to the second tier and came back otherwise: noticed by the backward run that reads it. */
START_TEST(flips_in_the_second_tier_are_caught) {
    static const char plan[] = "run forward 0 all\nrun forward 1 all\nsave state 1\nfree state 1\nrun forward 2 all\n"
                               "free state 3\nrun backward 2\nfree saved 2\nfree dstate 3\nfree state 2\nload state 1\n"
                               "run backward 1\nfree saved 1\nfree dstate 2\nfree state 1\nrun backward 0\n"
                               "free saved 0\nfree dstate 1\nfree state 0\nfree dstate 0\n";
    rng_state = (uint64_t)_i;
    net n = {.cell = NET_LSTM, .layers = 2, .vocabulary = 5, .embed = 3, .hidden = 4, .timesteps = 11, .batch = 2};
    remat_graph *graph;
    CHECKED(remat_graph_create(&graph));
    remat_value loss = net_build(graph, &n);
    remat_config config = verified(4);
    config.plan_steps = plan;
    config.spill_dir = "/tmp";
    remat_session *s;
    CHECKED(remat_session_create(graph, loss, &config, &s));
    net_feed(s, &n, 1);
    flip f = {.step = 11, .piece = s->chain.problem.state.item[s->chain.problem.state.start[1] + _i % 4], .cut = 1};
    char names[96];
    snprintf(names, sizeof names, "stage 0, timesteps 0 to 3: %s of lstm rnn.weight_hh_l%d ", _i % 2 ? "c" : "h",
             _i / 2);
    expect_caught(s, &f, (uint64_t)(n.batch * n.hidden) * 4, names);
    remat_session_free(s);
    remat_graph_free(graph);
}
END_TEST

/* ---- Nothing flipped ------------------------------------------------------------------------------------------ */

START_TEST(same_bits_and_no_alarm) {
    rng_state = (uint64_t)_i;
    net n = {.cell = _i % NET_CELLS,
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
    remat_config config = verified(8);
    config.stateful = _i % 2;
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
        CHECKED(remat_evaluate(without, &b)); /* a stateful session goes on from there */
    }
    ck_assert(without->runner.verify == NULL);
    ck_assert_int_gt(rm_verify_comparisons(with->runner.verify), 3 * with->chain.n_stages);
    remat_session_free(with);
    remat_session_free(without);
    remat_graph_free(graph);
}
END_TEST

/* The tables are part of what the session says it takes. */
START_TEST(the_hashes_are_counted) {
    net n = {.cell = NET_LSTM, .layers = 1, .vocabulary = 5, .embed = 2, .hidden = 2, .timesteps = 64, .batch = 1};
    remat_graph *graph;
    CHECKED(remat_graph_create(&graph));
    remat_value loss = net_build(graph, &n);
    rng_state = 3;
    remat_config config = verified(1);
    remat_session *s;
    CHECKED(remat_session_create(graph, loss, &config, &s));
    ck_assert_uint_ge(rm_verify_bytes(&s->chain), 64 * 2 * 8);
    remat_session_free(s);
    remat_graph_free(graph);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("verify");
    TCase *tests = tcase_create("verify");
    tcase_add_test(tests, every_bit_counts);
    tcase_add_test(tests, order_and_length_count);
    tcase_add_loop_test(tests, flips_along_time_are_caught, 0, 100);
    tcase_add_loop_test(tests, flips_by_depth_are_caught, 0, 100);
    tcase_add_loop_test(tests, flips_in_the_second_tier_are_caught, 0, 4);
    tcase_add_loop_test(tests, same_bits_and_no_alarm, 0, 12);
    tcase_add_test(tests, the_hashes_are_counted);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
