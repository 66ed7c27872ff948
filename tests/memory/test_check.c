/* test_check.c: the judge accepts what is right, names what is wrong, and writes down lifetimes exactly. Plans are
 * mutated at random; what the judge lets pass is rehearsed on values, piece by piece, by a simulation that knows nothing
 * of the judge's. */
#include "memory/check.h"

#include "memory/host.h"
#include "memory/strategy.h"
#include "tests/memory/chains.h"
#include "tests/memory/memory_test.h"

#define FOUR RM_SOURCE_DIR "/tests/problems/four_tiles.problem"
#define SKIP RM_SOURCE_DIR "/tests/problems/skip.problem"

static remat_status check_text(const rm_problem *problem, const char *text, rm_verdict *verdict) {
    rm_plan plan = {0};
    ck_ok(rm_plan_read(problem, &plan, text, strlen(text)));
    remat_status status = rm_plan_check(problem, &plan, verdict, NULL);
    rm_plan_free(&plan);
    return status;
}

/* ---- By hand ------------------------------------------------------------------------------------ */

#define ONE_STAGE                                                                                                      \
    "run forward 0 all\nfree state 1\nrun backward 0\nfree saved 0\nfree state 0\nfree dstate 1\nfree dstate 0\n"

START_TEST(one_stage) {
    rm_problem problem;
    read_problem(RM_SOURCE_DIR "/tests/problems/one_stage.problem", &problem);
    rm_verdict v;
    ck_ok(check_text(&problem, ONE_STAGE, &v));
    ck_assert_uint_eq(v.peak_bytes, 640 + 128);
    ck_assert_int_eq(v.peak_step, 2);
    ck_assert_uint_eq(v.forward_ns, 11);
    ck_assert_uint_eq(v.recompute_ns, 0);
    ck_assert_uint_eq(v.backward_ns, 20);
    ck_assert_int_eq(v.recomputed_stages, 0);
    ck_assert_double_eq(v.recompute_factor, 1);
    rm_problem_free(&problem);
}
END_TEST

/* The skip chain, all kept: every lifetime, worked out on paper. */
START_TEST(lifetimes_to_the_step) {
    rm_problem problem;
    read_problem(SKIP, &problem);
    rm_plan plan = {0};
    ck_ok(rm_plan_from_segments(&problem, (int64_t[]){0}, 1, &plan));
    /* steps 0..4 run forward 0..4; 5 frees state 5; 6 run backward 4, 7-9 free saved 4, state 4, dstate 5;
     * 10 run backward 3, ...; 14 run backward 2; 18 run backward 1; 22 run backward 0; 26 frees dstate 0 */
    static const rm_lifetime expected[] = {
        {RM_BUFFER_PIECE, 0, 0, 23, 256},   {RM_BUFFER_PIECE, 1, 0, 19, 512},   {RM_BUFFER_SAVED, 0, 0, 22, 64},
        {RM_BUFFER_PIECE, 2, 1, 15, 256},   {RM_BUFFER_SAVED, 1, 1, 18, 4096},  {RM_BUFFER_SCRATCH, 1, 1, 1, 64},
        {RM_BUFFER_PIECE, 4, 2, 14, 1024},  {RM_BUFFER_SCRATCH, 2, 2, 2, 64},   {RM_BUFFER_PIECE, 3, 3, 7, 256},
        {RM_BUFFER_SAVED, 3, 3, 10, 128},   {RM_BUFFER_SCRATCH, 3, 3, 3, 2048}, {RM_BUFFER_SAVED, 4, 4, 6, 512},
        {RM_BUFFER_SCRATCH, 4, 4, 4, 64},   {RM_BUFFER_PIECE, 7, 6, 24, 512},   {RM_BUFFER_PIECE, 6, 6, 12, 256},
        {RM_BUFFER_SCRATCH, 4, 6, 6, 64},   {RM_BUFFER_PIECE, 5, 10, 16, 256},  {RM_BUFFER_SCRATCH, 3, 10, 10, 4096},
        {RM_BUFFER_PIECE, 6, 14, 20, 256},  {RM_BUFFER_PIECE, 5, 18, 24, 256},  {RM_BUFFER_SCRATCH, 1, 18, 18, 64},
        {RM_BUFFER_SCRATCH, 0, 22, 22, 64},
    };
    rm_verdict v;
    rm_lifetimes got = {0};
    ck_ok(rm_plan_check(&problem, &plan, &v, &got));
    ck_assert_int_eq(got.count, sizeof expected / sizeof expected[0]);
    for (int64_t i = 0; i < got.count; i++) {
        rm_lifetime a = got.item[i], b = expected[i];
        ck_assert_msg(a.kind == b.kind && a.index == b.index && a.first == b.first && a.last == b.last &&
                          a.bytes == b.bytes,
                      "lifetime %d: kind %d index %d, %d..%d, %d bytes", (int)i, a.kind, (int)a.index, (int)a.first,
                      (int)a.last, (int)a.bytes);
    }
    /* Step 10: pieces 0 1 2 4, saved 0 1 3, pieces 7 6 5, scratch of backward 3. */
    ck_assert_uint_eq(v.peak_bytes, 256 + 512 + 256 + 1024 + 64 + 4096 + 128 + 512 + 256 + 256 + 4096);
    ck_assert_int_eq(v.peak_step, 10);
    rm_lifetimes_free(&got);
    ck_assert_ptr_null(got.item);
    rm_plan_free(&plan);
    rm_problem_free(&problem);
}
END_TEST

START_TEST(sizes_are_rounded_up) {
    rm_problem problem;
    read_problem(RM_SOURCE_DIR "/tests/problems/one_stage.problem", &problem);
    problem.stage[0].option[0].saved_bytes = 641;
    problem.stage[0].option[0].backward.scratch_bytes = 1;
    rm_verdict v;
    ck_ok(check_text(&problem, ONE_STAGE, &v));
    ck_assert_uint_eq(v.peak_bytes, 704 + 64);
    rm_problem_free(&problem);
}
END_TEST

START_TEST(options_have_their_own_numbers) {
    rm_problem problem;
    read_problem(FOUR, &problem);
    rm_plan plan = {0};
    ck_ok(rm_plan_from_segments(&problem, (int64_t[]){0}, 1, &plan));
    for (int64_t i = 0; i < plan.n_steps; i++)
        if (plan.step[i].verb == RM_RUN_FORWARD) plan.step[i].option = 1;
    rm_verdict v;
    ck_ok(rm_plan_check(&problem, &plan, &v, NULL));
    ck_assert_uint_eq(v.forward_ns, 3 * 95 + 33);
    ck_assert_uint_eq(v.backward_ns, 3 * 230 + 80);
    ck_assert_uint_eq(v.peak_bytes, 3 * 256 + 2 * 128 + 2 * 128 + 1280); /* backward 2; state 3 is freed by then */
    rm_plan_free(&plan);
    rm_problem_free(&problem);
}
END_TEST

START_TEST(what_is_wrong_is_named) {
    static const struct {
        const char *text, *words;
    } wrong[] = {
        {"", "before stage 4 has been differentiated"},
        {"run forward 1 all", "step 0 (run forward 1 all): state 1 is not alive"},
        {"run forward 0 all\nrun forward 0 all", "step 1 (run forward 0 all): state 1 is alive already"},
        {"run forward 0 all\nfree state 1\nrun forward 0 all", "saved 0 is made a second time"},
        {"run forward 0 all\nfree state 1\nfree saved 0\nrun forward 0 all", "saved 0 is made a second time"},
        {"run backward 0", "step 0 (run backward 0): the stage to be differentiated now is 4"},
        {"run backward 4", "state 4 is not alive"},
        {"free state 1", "step 0 (free state 1): state 1 is not alive"},
        {"free saved 0", "saved 0 is not alive"},
        {"free dstate 0", "dstate 0 is not alive"},
        {"free state 0\nfree state 0", "step 1"},
        {"free state 0\nrun forward 0 all", "state 0 is not alive"},
        {"save state 0", "step 0 (save state 0): there is no second tier"},
        {"load state 0", "no second tier"},
    };
    rm_problem problem;
    read_problem(SKIP, &problem);
    rm_verdict v;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        ck_fails(check_text(&problem, wrong[i].text, &v), INTERNAL, wrong[i].words);
    rm_problem_free(&problem);
    read_problem(RM_SOURCE_DIR "/tests/problems/one_stage.problem", &problem);
    ck_fails(check_text(&problem, "run forward 0 all\nfree dstate 1\nrun backward 0", &v), INTERNAL,
             "dstate 1 is not alive");
    ck_fails(check_text(&problem, "run forward 0 drop\nrun backward 0", &v), INTERNAL, "saved 0 is not alive");
    ck_fails(check_text(&problem, "run forward 0 all\nrun backward 0\nrun backward 0", &v), INTERNAL, "every stage");
    ck_fails(check_text(&problem, "run forward 0 all\nfree state 1\nrun backward 0\nrun forward 0 drop", &v), INTERNAL,
             "nobody needs");
    ck_fails(check_text(&problem, "run forward 0 all\nrun backward 0\n", &v), INTERNAL, "never freed");
    rm_problem_free(&problem);
}
END_TEST

/* ---- The second tier ---------------------------------------------------------------------------- */

START_TEST(two_clocks) {
    static const char *const text = "run forward 0 all\n"                                  /* until 100  */
                                    "save saved 0\n"                                       /* 100 to 248 */
                                    "run forward 1 all\n"                                  /* until 200  */
                                    "free saved 0\n"                                       /* waits 48   */
                                    "save saved 1\n"                                       /* 248 to 396 */
                                    "run forward 2 all\nrun forward 3 all\nfree state 4\n" /* until 383  */
                                    "free saved 1\n"                                       /* waits 13   */
                                    "run backward 3\n"                                     /* until 466  */
                                    "load saved 1\n"                                       /* 466 to 742 */
                                    "free saved 3\nfree state 3\nfree dstate 4\n"
                                    "run backward 2\n" /* until 666  */
                                    "free saved 2\nfree state 2\nfree dstate 3\n"
                                    "load saved 0\n"   /* asked for at 666, 742 to 1018 */
                                    "run backward 1\n" /* waits 76, until 942 */
                                    "free saved 1\nfree state 1\nfree dstate 2\n"
                                    "run backward 0\n" /* waits 76, until 1218 */
                                    "free saved 0\nfree state 0\nfree dstate 1\nfree dstate 0\n";
    rm_problem problem;
    read_problem(FOUR, &problem);
    problem.tier = (rm_tier){8000000000, 4000000000, 20, 0, 0}; /* 8 and 4 bytes a nanosecond */
    rm_verdict v;
    ck_ok(check_text(&problem, text, &v));
    ck_assert_uint_eq(v.save_bytes, 2048);
    ck_assert_uint_eq(v.load_bytes, 2048);
    ck_assert_uint_eq(v.transfer_ns, 2 * 148 + 2 * 276);
    ck_assert_uint_eq(v.wait_ns, 48 + 13 + 76 + 76);
    ck_assert_uint_eq(v.forward_ns, 335);
    ck_assert_uint_eq(v.backward_ns, 670);
    ck_assert_uint_eq(v.total_ns, 1218);
    ck_assert_uint_eq(v.peak_bytes, 2 * 1024 + 4 * 128 + 1024); /* backward 2: saved 1 is on its way in */
    problem.tier.cost_ns_per_mib = 10 << 10; /* 10 ns a KiB: the computation's clock is 10 later at each transfer */
    ck_ok(check_text(&problem, text, &v));
    /* SAVE 0 100 to 248; forward 1 until 210; waits 38; SAVE 1 248 to 396, and 10; forward 2, 3 until 393; waits 3;
     * backward 3 until 466; LOAD 1 466 to 742, and 10; backward 2 until 676; LOAD 0 742 to 1018, and 10; waits 56 until
     * 742; backward 1 until 942; waits 76 */
    ck_assert_uint_eq(v.wait_ns, 4 * 10 + 38 + 3 + 56 + 76);
    ck_assert_uint_eq(v.total_ns, 335 + 670 + v.wait_ns);
    problem.tier = (rm_tier){UINT64_MAX, UINT64_MAX, 0, 0, 0};
    ck_ok(check_text(&problem, text, &v));
    ck_assert_uint_eq(v.total_ns, 335 + 670);
    problem.tier = (rm_tier){1, 1, (uint64_t)1 << 59, (uint64_t)1 << 59, 0}; /* slow beyond all measure: no overflow */
    ck_ok(check_text(&problem, text, &v));
    ck_assert_uint_ge(v.total_ns, (uint64_t)1 << 61);
    rm_problem_free(&problem);
}
END_TEST

#define SHARING                                                                                                        \
    "problem 1\ntier save 1000000000 load 1000000000 latency 0 cost 0 host 0\nstages 2\npieces 2\n"                    \
    "piece 0 bytes 64\npiece 1 bytes 128\n"                                                                            \
    "stage 0 drop time 10 scratch 0\n"                                                                                 \
    "stage 0 keep all saved 256 forward time 10 scratch 0 backward time 20 scratch 0\n"                                \
    "stage 1 drop time 10 scratch 0\n"                                                                                 \
    "stage 1 keep all saved 0 forward time 10 scratch 0 backward time 20 scratch 0\n"                                  \
    "state 0 pieces 0\nstate 1 pieces 1 0\n"

#define BACKWARD_1 "run forward 1 all\nfree state 2\nrun backward 1\nfree saved 1\nfree dstate 2\n" /* takes 30 */
#define BACKWARD_0 "run backward 0\nfree saved 0\nfree state 0\nfree dstate 1\nfree dstate 0\n"     /* takes 20 */

/* Piece 0 belongs to state 0 and state 1. */
START_TEST(transfers_of_shared_pieces) {
    static const struct {
        const char *text;
        uint64_t save_bytes, load_bytes, wait_ns;
    } case_[] = {
        /* The copy of state 1 takes 192 from 10 on. Its end waits for piece 1 (162), and fetches piece 1 alone (128). */
        {"run forward 0 all\nsave state 1\n" BACKWARD_1 "free state 1\nload state 1\nfree state 1\n" BACKWARD_0, 192,
         128, 162 + 128},
        /* The copy of state 0 takes 64 from 10 on. State 1 has piece 0 too: the first FREE ends nothing and does not
         * wait, LOAD fetches nothing, and the last FREE comes at 60. */
        {"run forward 0 all\nsave state 0\nfree state 0\nload state 0\n" BACKWARD_1 "free state 1\n" BACKWARD_0, 64, 0,
         14},
        /* Forward 0 writes piece 0 again, which is being copied. */
        {"save state 0\nrun forward 0 all\n" BACKWARD_1 "free state 1\n" BACKWARD_0, 64, 0, 64},
        /* A copy of nothing takes no time and is a copy nevertheless. */
        {"run forward 0 all\nrun forward 1 all\nsave saved 1\nfree saved 1\nload saved 1\nfree state 2\n"
         "run backward 1\nfree saved 1\nfree dstate 2\nfree state 1\n" BACKWARD_0,
         0, 0, 0},
    };
    rm_problem problem;
    ck_ok(rm_problem_read(&problem, SHARING, sizeof SHARING - 1));
    for (size_t i = 0; i < sizeof case_ / sizeof *case_; i++) {
        rm_verdict v;
        ck_ok(check_text(&problem, case_[i].text, &v));
        ck_assert_msg(v.save_bytes == case_[i].save_bytes && v.load_bytes == case_[i].load_bytes, "case %zu", i);
        ck_assert_msg(v.wait_ns == case_[i].wait_ns, "case %zu waits %d", i, (int)v.wait_ns);
        ck_assert_uint_eq(v.total_ns, 60 + v.wait_ns);
    }
    rm_problem_free(&problem);
}
END_TEST

START_TEST(what_cannot_be_moved) {
    static const struct {
        const char *text, *words;
    } wrong[] = {
        {"save saved 0", "step 0 (save saved 0): saved 0 is not alive"},
        {"load state 1", "there is no copy of state 1 to load"},
        {"run forward 0 all\nsave state 1\nsave state 1", "state 1 is saved a second time"},
        {"run forward 0 all\nsave state 1\nfree state 1\nload state 1\nsave state 1", "step 4"},
        {"run forward 0 all\nsave state 1\nload state 1", "state 1 is alive already"},
        {"run forward 0 all\nsave saved 0\nfree saved 0\nfree state 1\nrun forward 0 all", "made a second time"},
        {"save dstate 2", "a dstate is never moved to the second tier"},
        {"load dstate 2", "a dstate is never moved to the second tier"},
        {"run forward 0 all\nsave saved 0\nfree saved 0\nload saved 0\nfree saved 0\nfree saved 0", "step 5"},
    };
    rm_problem problem;
    ck_ok(rm_problem_read(&problem, SHARING, sizeof SHARING - 1));
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        rm_verdict v;
        ck_fails(check_text(&problem, wrong[i].text, &v), INTERNAL, wrong[i].words);
    }
    rm_step steps[] = {{.verb = RM_SAVE, .object = 3},
                       {.verb = RM_LOAD, .object = RM_SAVED, .index = 2},
                       {.verb = RM_SAVE, .object = RM_STATE, .index = -1}};
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        rm_plan plan = {.step = &steps[i], .n_steps = 1};
        rm_verdict v;
        ck_fails(rm_plan_check(&problem, &plan, &v, NULL), INTERNAL, "step 0");
    }
    rm_problem_free(&problem);
}
END_TEST

START_TEST(steps_of_any_bits) {
    rm_problem problem;
    read_problem(SKIP, &problem);
    static const rm_step wrong[] = {
        {.verb = 5},
        {.verb = 255},
        {.verb = RM_RUN_FORWARD, .index = -1},
        {.verb = RM_RUN_FORWARD, .index = 5},
        {.verb = RM_RUN_FORWARD, .index = INT32_MAX},
        {.verb = RM_RUN_FORWARD, .option = 1},
        {.verb = RM_RUN_FORWARD, .option = -2},
        {.verb = RM_RUN_FORWARD, .option = 127},
        {.verb = RM_RUN_BACKWARD, .index = 5},
        {.verb = RM_RUN_BACKWARD, .index = INT32_MIN},
        {.verb = RM_FREE, .object = 3},
        {.verb = RM_FREE, .object = RM_SAVED, .index = 5},
        {.verb = RM_FREE, .object = RM_STATE, .index = 6},
        {.verb = RM_FREE, .object = RM_DSTATE, .index = -1},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        rm_plan plan = {0};
        ck_ok(rm_plan_add(&plan, wrong[i]));
        rm_verdict v;
        rm_lifetimes lifetimes = {0};
        ck_fails(rm_plan_check(&problem, &plan, &v, &lifetimes), INTERNAL, "step 0");
        ck_assert_ptr_null(lifetimes.item);
        rm_plan_free(&plan);
    }
    rm_problem_free(&problem);
}
END_TEST

/* ---- The rehearsal: does a plan, run on values, do the right thing? ------------------------------- */

typedef struct {
    const rm_problem *problem;
    bool alive[3][80];   /* by object and index, as the plan claims */
    uint64_t value[400]; /* of a piece; 0: nobody has written it since it was last dead */
    uint64_t block[80];  /* of a stage's private block: 1 + the option that wrote it */
    bool copy[2][80];    /* RM_STATE, RM_SAVED: the second tier has right values */
    uint64_t block_copy[80];
} rehearsal;

static const rm_lists *lists_of(const rm_problem *p, int object) {
    return object == RM_STATE ? &p->state : object == RM_SAVED ? &p->saved : &p->dstate;
}

static void write_pieces(rehearsal *r, int object, int64_t c, bool right) {
    const rm_lists *lists = lists_of(r->problem, object);
    r->alive[object][c] = true;
    for (int64_t k = lists->start[c]; k < lists->start[c + 1]; k++)
        r->value[lists->item[k]] = right ? 1000 + (uint64_t)lists->item[k] : 7;
}

static bool pieces_right(const rehearsal *r, int object, int64_t c) {
    const rm_lists *lists = lists_of(r->problem, object);
    for (int64_t k = lists->start[c]; k < lists->start[c + 1]; k++)
        if (r->value[lists->item[k]] != 1000 + (uint64_t)lists->item[k]) return false;
    return true;
}

/* Pieces that no living object has lose their value. Looks at everything: this is the dumb one. */
static void bury(rehearsal *r) {
    bool needed[400] = {false};
    for (int object = 0; object < 3; object++)
        for (int64_t c = 0; c < r->problem->n_stages + (object != RM_SAVED); c++) {
            const rm_lists *lists = lists_of(r->problem, object);
            if (!r->alive[object][c]) continue;
            for (int64_t k = lists->start[c]; k < lists->start[c + 1]; k++) needed[lists->item[k]] = true;
        }
    for (int64_t i = 0; i < r->problem->n_pieces; i++)
        if (!needed[i]) r->value[i] = 0;
}

static bool rehearse_step(rehearsal *r, rm_step step, int64_t *to_differentiate) {
    int64_t i = step.index;
    if (step.verb == RM_FREE) {
        r->alive[step.object][i] = false;
        if (step.object == RM_SAVED) r->block[i] = 0;
        bury(r);
        return true;
    }
    if (step.verb == RM_SAVE) {
        r->copy[step.object][i] = pieces_right(r, step.object, i);
        r->block_copy[i] = step.object == RM_SAVED ? r->block[i] : r->block_copy[i];
        return true;
    }
    if (step.verb == RM_LOAD) {
        write_pieces(r, step.object, i, r->copy[step.object][i]);
        r->block[i] = step.object == RM_SAVED ? r->block_copy[i] : r->block[i];
        return true;
    }
    if (step.verb == RM_RUN_FORWARD) {
        bool right = pieces_right(r, RM_STATE, i);
        write_pieces(r, RM_STATE, i + 1, right);
        if (step.option == RM_DROP) return true;
        write_pieces(r, RM_SAVED, i, right);
        r->block[i] = right ? 1 + (uint64_t)step.option : 0;
        return true;
    }
    bool right = pieces_right(r, RM_STATE, i) && pieces_right(r, RM_SAVED, i) && pieces_right(r, RM_DSTATE, i + 1);
    write_pieces(r, RM_DSTATE, i, right);
    return right && r->block[i] > 0 && i == (*to_differentiate)--;
}

/* Every stage is differentiated once, last first, from right values; at the end nothing is alive. */
static bool rehearse(const rm_problem *problem, const rm_plan *plan) {
    rehearsal r = {.problem = problem};
    ck_assert(problem->n_stages < 80 && problem->n_pieces < 400);
    int64_t to_differentiate = problem->n_stages - 1;
    write_pieces(&r, RM_STATE, 0, true);
    write_pieces(&r, RM_DSTATE, problem->n_stages, true);
    for (int64_t t = 0; t < plan->n_steps; t++)
        if (!rehearse_step(&r, plan->step[t], &to_differentiate)) return false;
    for (int object = 0; object < 3; object++)
        for (int64_t c = 0; c < 80; c++)
            if (r.alive[object][c]) return false;
    return to_differentiate == -1;
}

/* ---- Mutants ------------------------------------------------------------------------------------ */

typedef enum mutation { LEAVE_OUT, REPEAT, SWAP, INDEX, OPTION, OBJECT, VERB, MOVE, N_MUTATIONS } mutation;

static void erase(rm_plan *plan, int64_t at) {
    memmove(plan->step + at, plan->step + at + 1, (size_t)(plan->n_steps-- - at - 1) * sizeof *plan->step);
}

static void insert(rm_plan *plan, int64_t at, rm_step step) {
    ck_ok(rm_plan_add(plan, step));
    memmove(plan->step + at + 1, plan->step + at, (size_t)(plan->n_steps - 1 - at) * sizeof *plan->step);
    plan->step[at] = step;
}

/* One change at random; false when it happened to change nothing. */
static bool mutate(dice *d, const rm_problem *problem, mutation mutation, rm_plan *plan) {
    int64_t a = roll_below(d, plan->n_steps), b = roll_below(d, plan->n_steps);
    rm_step before = plan->step[a], *step = &plan->step[a];
    switch (mutation) {
    case LEAVE_OUT:
        erase(plan, a);
        return true;
    case REPEAT:
        insert(plan, b, before);
        return true;
    case SWAP:
        *step = plan->step[b];
        plan->step[b] = before;
        return memcmp(step, &before, sizeof before) != 0;
    case INDEX:
        step->index = (int32_t)roll_below(d, problem->n_stages + 3) - 1;
        return step->index != before.index;
    case OPTION:
        step->option = (int8_t)(roll_below(d, 5) - 2);
        return step->verb == RM_RUN_FORWARD && step->option != before.option;
    case OBJECT:
        step->object = (uint8_t)roll_below(d, 4);
        return step->verb >= RM_FREE && step->object != before.object;
    case VERB:
        step->verb = (uint8_t)roll_below(d, 6);
        return step->verb != before.verb;
    default:
        erase(plan, a);
        insert(plan, roll_below(d, plan->n_steps + 1), before);
        return true;
    }
}

static void copy_plan(const rm_plan *from, rm_plan *to) {
    *to = (rm_plan){0};
    for (int64_t i = 0; i < from->n_steps; i++) ck_ok(rm_plan_add(to, from->step[i]));
}

static void some_chain(uint64_t seed, rm_problem *problem) {
    chain c = {.n_stages = 1 + (int64_t)(seed % 13),
               .unlike = seed % 2,
               .state_bytes = seed % 3 * 128,
               .saved_bytes = 4000,
               .scratch_bytes = 999,
               .skips = (int)(seed % 4),
               .shares = seed % 5 < 2,
               .lean = seed % 7 < 3};
    ck_ok(chain_problem(&c, seed, problem));
    problem->tier = (rm_tier){3000000000, 2000000000, 100, 0, 0};
}

static void load_what_is_away(rm_plan *plan, bool away[2][80], int64_t s) {
    for (int object = 0; object < 2; object++) {
        if (away[object][s]) ck_ok(rm_plan_load(plan, (rm_object)object, s));
        away[object][s] = false;
    }
}

/* Moves some saved blocks and states out after their forward run, and in again before their backward run: right before,
 * or while the stage behind it still has all it needed. */
static void spill_some(dice *d, const rm_problem *problem, rm_plan *plan) {
    rm_plan out = {0};
    bool away[2][80] = {{false}}, made[80] = {false};
    for (int64_t i = 0; i < plan->n_steps; i++) {
        rm_step step = plan->step[i];
        int64_t s = step.index;
        if (step.verb == RM_RUN_BACKWARD) load_what_is_away(&out, away, s);
        ck_ok(rm_plan_add(&out, step));
        if (step.verb == RM_RUN_BACKWARD && s > 0 && roll_below(d, 2)) load_what_is_away(&out, away, s - 1);
        if (step.verb != RM_RUN_FORWARD || step.option == RM_DROP || made[s]) continue;
        made[s] = true;
        for (int object = 0; object < 2; object++) {
            if (roll_below(d, 2)) continue;
            away[object][s] = true;
            ck_ok(rm_plan_save(&out, (rm_object)object, s));
            ck_ok(rm_plan_free_object(&out, (rm_object)object, s));
        }
    }
    rm_plan_free(plan);
    *plan = out;
    ck_assert(rehearse(problem, plan));
}

START_TEST(mutants_are_rejected_or_harmless) {
    int64_t tried[N_MUTATIONS] = {0}, passed[N_MUTATIONS] = {0};
    dice d = {2026};
    for (uint64_t seed = 0; seed < 150; seed++) {
        rm_problem problem;
        some_chain(seed, &problem);
        rm_plan plan = {0};
        rm_proposal proposal;
        rm_wish wish = {.segments = 1 + roll_below(&d, problem.n_stages)};
        ck_ok(rm_strategy_find("segments")->propose(&problem, &wish, &plan, &proposal));
        ck_assert(rehearse(&problem, &plan));
        if (seed % 2) spill_some(&d, &problem, &plan);
        for (int i = 0; i < 400; i++) {
            mutation mutation = (enum mutation)(i % N_MUTATIONS);
            rm_plan mutant;
            copy_plan(&plan, &mutant);
            if (mutate(&d, &problem, mutation, &mutant)) {
                rm_verdict v;
                bool accepted = rm_plan_check(&problem, &mutant, &v, NULL) == REMAT_OK;
                ck_assert_msg(!accepted || rehearse(&problem, &mutant), "seed %d: a harmful mutant of kind %d passed",
                              (int)seed, mutation);
                tried[mutation]++;
                passed[mutation] += accepted;
            }
            rm_plan_free(&mutant);
        }
        rm_plan_free(&plan);
        rm_problem_free(&problem);
    }
    for (int m = 0; m < N_MUTATIONS; m++) ck_assert_int_gt(tried[m], 1000);
    /* No step is superfluous, none may happen twice, and there is no other index, object or verb for it. */
    ck_assert_int_eq(passed[LEAVE_OUT] + passed[REPEAT] + passed[INDEX] + passed[OBJECT] + passed[VERB], 0);
    /* Order and options leave some freedom, so the judge is not simply saying no. */
    ck_assert(passed[SWAP] > 0 && passed[MOVE] > 0 && passed[OPTION] > 0);
    ck_assert_int_lt(passed[SWAP] * 2, tried[SWAP]);
}
END_TEST

/* ---- The rest ----------------------------------------------------------------------------------- */

START_TEST(lifetimes_add_up_to_the_peak) {
    dice d = {60};
    for (uint64_t seed = 0; seed < 60; seed++) {
        rm_problem problem;
        some_chain(seed, &problem);
        rm_plan plan = {0};
        rm_proposal proposal;
        ck_ok(rm_strategy_find("sqrt")->propose(&problem, &(rm_wish){0}, &plan, &proposal));
        if (seed % 2) spill_some(&d, &problem, &plan);
        rm_verdict v;
        rm_lifetimes l = {0};
        ck_ok(rm_plan_check(&problem, &plan, &v, &l));
        uint64_t peak = 0;
        int64_t peak_step = 0;
        for (int64_t t = 0; t < plan.n_steps; t++) {
            uint64_t alive = 0;
            for (int64_t i = 0; i < l.count; i++)
                if (l.item[i].first <= t && t <= l.item[i].last) alive += l.item[i].bytes;
            if (alive > peak) {
                peak = alive;
                peak_step = t;
            }
        }
        ck_assert_uint_eq(v.peak_bytes, peak);
        ck_assert_int_eq(v.peak_step, peak_step);
        ck_assert_int_eq(v.buffers, l.count);
        for (int64_t i = 1; i < l.count; i++) {
            rm_lifetime a = l.item[i - 1], b = l.item[i];
            ck_assert(b.bytes > 0 && (a.first < b.first || (a.first == b.first && a.kind <= b.kind)));
        }
        rm_lifetimes_free(&l);
        rm_plan_free(&plan);
        rm_problem_free(&problem);
    }
}
END_TEST

START_TEST(every_failed_allocation_is_survived) {
    rm_problem problem;
    read_problem(SKIP, &problem);
    rm_plan plan = {0};
    ck_ok(rm_plan_from_segments(&problem, (int64_t[]){0, 2}, 2, &plan));
    for (int n = 1;; n++) {
        rm_verdict v;
        rm_lifetimes l = {0};
        rm_host_fail_at(n);
        remat_status status = rm_plan_check(&problem, &plan, &v, &l);
        rm_host_fail_at(0);
        if (!status) {
            ck_assert_int_gt(n, 3);
            rm_lifetimes_free(&l);
            break;
        }
        ck_assert_int_eq(status, REMAT_MEMORY);
        ck_assert_ptr_null(l.item);
    }
    rm_plan_free(&plan);
    rm_problem_free(&problem);
}
END_TEST

RUN_TESTS("memory/check", one_stage, lifetimes_to_the_step, sizes_are_rounded_up, options_have_their_own_numbers,
          what_is_wrong_is_named, two_clocks, transfers_of_shared_pieces, what_cannot_be_moved, steps_of_any_bits,
          mutants_are_rejected_or_harmless, lifetimes_add_up_to_the_peak, every_failed_allocation_is_survived)
