/* test_check.c: the judge accepts right plans, names the error of wrong ones, and records lifetimes exactly. Plans are
 * mutated at random. Those that the judge accepts are rehearsed on values, piece by piece, by a simulation that shares
 * no code with it. */
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

/* ---- Hand-written plans ------------------------------------------------------------------------- */

#define ONE_STAGE "run forward 0 all\nrun backward 0\nfree saved 0\n"

START_TEST(one_stage_has_the_expected_peak_and_times) {
    rm_problem problem;
    read_problem(RM_SOURCE_DIR "/tests/problems/one_stage.problem", &problem);
    rm_verdict v;
    ck_ok(check_text(&problem, ONE_STAGE, &v));
    ck_assert_uint_eq(v.peak_bytes, 640 + 128);
    ck_assert_int_eq(v.peak_step, 1);
    ck_assert_uint_eq(v.forward_ns, 11);
    ck_assert_uint_eq(v.recompute_ns, 0);
    ck_assert_uint_eq(v.backward_ns, 20);
    ck_assert_int_eq(v.recomputed_stages, 0);
    ck_assert_double_eq(v.recompute_factor, 1);
    rm_problem_free(&problem);
}
END_TEST

/* The skip chain, all kept: every lifetime, derived by hand. */
START_TEST(lifetimes_of_the_skip_chain_are_exact) {
    rm_problem problem;
    read_problem(SKIP, &problem);
    rm_plan plan = {0};
    ck_ok(rm_plan_from_segments(&problem, (int64_t[]){0}, 1, &plan));
    /* steps 0..4 run forward 0..4; 5 run backward 4, 6-8 free saved 4, state 1, state 4; 9 run backward 3, 10-12 free
     * saved 3, state 3 is kept, dstate 4; 12 run backward 2, 13-16 free saved 2, states 2, 3, dstate 3; 17 run backward 1,
     * 18-20; 21 run backward 0, 22-24 free saved 0, dstates 0, 1 */
    static const rm_lifetime expected[] = {
        {RM_BUFFER_PIECE, 0, 0, 18, 256},   {RM_BUFFER_PIECE, 1, 0, 6, 512},    {RM_BUFFER_SAVED, 0, 0, 21, 64},
        {RM_BUFFER_PIECE, 2, 1, 13, 256},   {RM_BUFFER_SAVED, 1, 1, 17, 4096},  {RM_BUFFER_SCRATCH, 1, 1, 1, 64},
        {RM_BUFFER_PIECE, 3, 2, 14, 1024},  {RM_BUFFER_SCRATCH, 2, 2, 2, 64},   {RM_BUFFER_PIECE, 4, 3, 7, 256},
        {RM_BUFFER_SAVED, 3, 3, 9, 128},    {RM_BUFFER_SCRATCH, 3, 3, 3, 2048}, {RM_BUFFER_SAVED, 4, 4, 5, 512},
        {RM_BUFFER_SCRATCH, 4, 4, 4, 64},   {RM_BUFFER_PIECE, 6, 5, 23, 512},   {RM_BUFFER_PIECE, 9, 5, 10, 256},
        {RM_BUFFER_SCRATCH, 4, 5, 5, 64},   {RM_BUFFER_PIECE, 8, 9, 15, 1024},  {RM_BUFFER_SCRATCH, 3, 9, 9, 4096},
        {RM_BUFFER_PIECE, 7, 12, 19, 256},  {RM_BUFFER_PIECE, 5, 17, 22, 256},  {RM_BUFFER_SCRATCH, 1, 17, 17, 64},
        {RM_BUFFER_SCRATCH, 0, 21, 21, 64},
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
    /* Step 9: pieces 0 2 3, saved 0 1 3, pieces 6 9 8, scratch of backward 3. */
    ck_assert_uint_eq(v.peak_bytes, 256 + 256 + 1024 + 64 + 4096 + 128 + 512 + 256 + 1024 + 4096);
    ck_assert_int_eq(v.peak_step, 9);
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

START_TEST(each_option_has_its_own_bytes_and_times) {
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

#define ALL_FORWARD "run forward 0 all\nrun forward 1 all\nrun forward 2 all\nrun forward 3 all\nrun forward 4 all\n"

START_TEST(wrong_step_is_named_in_the_error) {
    static const struct {
        const char *text, *words;
    } wrong[] = {
        {"", "before stage 4 has been differentiated"},
        {"run forward 1 all", "step 0 (run forward 1 all): stage 0 has not run yet"},
        {"run forward 0 all\nfree state 0\nrun forward 1 all", "step 2 (run forward 1 all): state 0 is not alive"},
        {"run forward 0 all\nrun forward 0 all", "step 1 (run forward 0 all): saved 0 is made a second time"},
        {"run forward 0 all\nfree state 0\nfree saved 0\nrun forward 0 all", "saved 0 is made a second time"},
        {"run backward 0", "step 0 (run backward 0): the next stage to be differentiated is 4"},
        {"run backward 4", "saved 4 is not alive"},
        {ALL_FORWARD "free state 4\nrun backward 4", "state 4 is not alive"},
        {ALL_FORWARD "free state 1\nrun backward 4", "state 1 is not alive"},
        {ALL_FORWARD "run backward 4\nfree dstate 4\nrun backward 3", "dstate 4 is not alive"},
        {ALL_FORWARD "run backward 4\nrun backward 3\nfree state 3\nrun backward 2", "state 3 is not alive"},
        {"free state 1", "step 0 (free state 1): state 1 is not alive"},
        {"free saved 0", "saved 0 is not alive"},
        {"free dstate 0", "dstate 0 is not alive"},
        {"run forward 0 all\nfree state 0\nfree state 0", "step 2"},
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
    ck_fails(check_text(&problem, "run forward 0 drop\nrun backward 0", &v), INTERNAL, "saved 0 is not alive");
    ck_fails(check_text(&problem, "run forward 0 all\nrun backward 0\nrun backward 0", &v), INTERNAL, "every stage");
    ck_fails(check_text(&problem, "run forward 0 all\nrun backward 0\nrun forward 0 drop", &v), INTERNAL,
             "differentiated");
    ck_fails(check_text(&problem, "run forward 0 all\nrun backward 0\n", &v), INTERNAL, "never freed");
    rm_problem_free(&problem);
}
END_TEST

/* ---- The second tier ---------------------------------------------------------------------------- */

START_TEST(computation_and_channel_run_concurrently) {
    static const char *const text = "run forward 0 all\n"                                  /* until 100  */
                                    "save saved 0\n"                                       /* 100 to 248 */
                                    "run forward 1 all\n"                                  /* until 200  */
                                    "free saved 0\n"                                       /* waits 48   */
                                    "save saved 1\n"                                       /* 248 to 396 */
                                    "run forward 2 all\nrun forward 3 all\nfree state 3\n" /* until 383  */
                                    "free saved 1\n"                                       /* waits 13   */
                                    "run backward 3\n"                                     /* until 466  */
                                    "load saved 1\n"                                       /* 466 to 742 */
                                    "free saved 3\nfree state 2\n"
                                    "run backward 2\n" /* until 666  */
                                    "free saved 2\nfree state 1\nfree dstate 2\n"
                                    "load saved 0\n"   /* issued at 666, runs from 742 to 1018 */
                                    "run backward 1\n" /* waits 76, until 942 */
                                    "free saved 1\nfree state 0\nfree dstate 1\n"
                                    "run backward 0\n" /* waits 76, until 1218 */
                                    "free saved 0\nfree dstate 0\n";
    rm_problem problem;
    read_problem(FOUR, &problem);
    problem.tier = (rm_tier){8000000000, 4000000000, 20, 0, 0}; /* 8 and 4 bytes per nanosecond */
    rm_verdict v;
    ck_ok(check_text(&problem, text, &v));
    ck_assert_uint_eq(v.save_bytes, 2048);
    ck_assert_uint_eq(v.load_bytes, 2048);
    ck_assert_uint_eq(v.transfer_ns, 2 * 148 + 2 * 276);
    ck_assert_uint_eq(v.wait_ns, 48 + 13 + 76 + 76);
    ck_assert_uint_eq(v.forward_ns, 335);
    ck_assert_uint_eq(v.backward_ns, 670);
    ck_assert_uint_eq(v.total_ns, 1218);
    ck_assert_uint_eq(v.peak_bytes, 2 * 1024 + 4 * 128 + 1024); /* backward 2: saved 1 is being loaded */
    problem.tier.cost_ns_per_mib = 10 << 10; /* 10 ns per KiB: each transfer delays the computation's clock by 10 */
    ck_ok(check_text(&problem, text, &v));
    /* SAVE 0 100 to 248; forward 1 until 210; waits 38; SAVE 1 248 to 396, and 10; forward 2, 3 until 393; waits 3;
     * backward 3 until 466; LOAD 1 466 to 742, and 10; backward 2 until 676; LOAD 0 742 to 1018, and 10; waits 56 until
     * 742; backward 1 until 942; waits 76 */
    ck_assert_uint_eq(v.wait_ns, 4 * 10 + 38 + 3 + 56 + 76);
    ck_assert_uint_eq(v.total_ns, 335 + 670 + v.wait_ns);
    problem.tier = (rm_tier){UINT64_MAX, UINT64_MAX, 0, 0, 0};
    ck_ok(check_text(&problem, text, &v));
    ck_assert_uint_eq(v.total_ns, 335 + 670);
    problem.tier = (rm_tier){1, 1, (uint64_t)1 << 59, (uint64_t)1 << 59, 0}; /* extremely slow: no overflow */
    ck_ok(check_text(&problem, text, &v));
    ck_assert_uint_ge(v.total_ns, (uint64_t)1 << 61);
    rm_problem_free(&problem);
}
END_TEST

#define MOVING                                                                                                         \
    "problem 2\ntier save 1000000000 load 1000000000 latency 0 cost 0 host 0\nstages 2\nstates 2\npieces 2\n"          \
    "piece 0 bytes 64\npiece 1 bytes 128\n"                                                                            \
    "stage 0 drop time 10 scratch 0\n"                                                                                 \
    "stage 0 keep all saved 256 forward time 10 scratch 0 backward time 20 scratch 0\n"                                \
    "stage 1 drop time 10 scratch 0\n"                                                                                 \
    "stage 1 keep all saved 0 forward time 10 scratch 0 backward time 20 scratch 0\n"                                  \
    "state 0 of 0 pieces 2\nstate 1 of 1 pieces 0\nreads 1 states 0\nkeeps 1 states 0\n"

#define BACKWARD_1 "run forward 1 all\nfree state 1\nrun backward 1\nfree saved 1\n" /* takes 30 */
#define BACKWARD_0 "run backward 0\nfree saved 0\n"                                  /* takes 20 */

START_TEST(steps_wait_for_the_transfers_they_need) {
    static const struct {
        const char *text;
        uint64_t save_bytes, load_bytes, wait_ns;
    } case_[] = {
        /* The copy of state 0 takes 192 ns from 10 on. Freeing it waits for the copy (162), and LOAD takes 192; nobody
         * reads it. */
        {"run forward 0 all\nsave state 0\n" BACKWARD_1 "free state 0\nload state 0\nfree state 0\n" BACKWARD_0, 192,
         192, 162 + 192},
        /* The reader waits for both. */
        {"run forward 0 all\nsave state 0\nfree state 0\nload state 0\n" BACKWARD_1 "free state 0\n" BACKWARD_0, 192,
         192, 192 + 192},
        /* Forward 0 overwrites state 0 while it is being copied. */
        {"run forward 0 drop\nsave state 0\nrun forward 0 all\n" BACKWARD_1 "free state 0\n" BACKWARD_0, 192, 0, 192},
        /* A copy of no bytes takes no time but still counts as a copy. */
        {"run forward 0 all\nrun forward 1 all\nsave saved 1\nfree saved 1\nload saved 1\nfree state 1\n"
         "run backward 1\nfree saved 1\nfree state 0\n" BACKWARD_0,
         0, 0, 0},
    };
    rm_problem problem;
    ck_ok(rm_problem_read(&problem, MOVING, sizeof MOVING - 1));
    for (size_t i = 0; i < sizeof case_ / sizeof *case_; i++) {
        rm_verdict v;
        ck_ok(check_text(&problem, case_[i].text, &v));
        ck_assert_msg(v.save_bytes == case_[i].save_bytes && v.load_bytes == case_[i].load_bytes, "case %zu", i);
        ck_assert_msg(v.wait_ns == case_[i].wait_ns, "case %zu waits %d", i, (int)v.wait_ns);
        ck_assert_uint_eq(v.total_ns, 60 + 10 * (i == 2) + v.wait_ns);
    }
    rm_problem_free(&problem);
}
END_TEST

START_TEST(wrong_moves_are_refused) {
    static const struct {
        const char *text, *words;
    } wrong[] = {
        {"save saved 0", "step 0 (save saved 0): saved 0 is not alive"},
        {"load state 0", "step 0 (load state 0)"},
        {"run forward 0 all\nsave state 0\nsave state 0", "state 0 is saved a second time"},
        {"run forward 0 all\nsave state 0\nfree state 0\nload state 0\nsave state 0", "step 4"},
        {"run forward 0 all\nsave state 0\nload state 0", "step 2 (load state 0)"},
        {"run forward 0 all\nsave saved 0\nfree saved 0\nfree state 0\nrun forward 0 all", "made a second time"},
        {"save dstate 1", "step 0 (save dstate 1)"},
        {"load dstate 1", "step 0 (load dstate 1)"},
        {"run forward 0 all\nsave saved 0\nfree saved 0\nload saved 0\nfree saved 0\nfree saved 0", "step 5"},
    };
    rm_problem problem;
    ck_ok(rm_problem_read(&problem, MOVING, sizeof MOVING - 1));
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

START_TEST(arbitrary_bits_as_steps_are_safe) {
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

/* ---- The rehearsal: does a plan, run on values, give the right result? ---------------------------- */

enum { MOST = 120 };

typedef struct {
    const rm_problem *problem;
    bool alive[3][MOST];     /* by object and index, according to the plan */
    uint64_t value[3][MOST]; /* of a live object: 1000 or more is right; for saved(s), the option is added */
    uint64_t terms[MOST];    /* of a gradient: the number of stages that have added to it */
    bool copied[2][MOST];
    uint64_t copy[2][MOST]; /* RM_STATE, RM_SAVED: the copy in the second tier */
} rehearsal;

enum { RIGHT = 1000, WRONG = 7 };

static bool is_right(const rehearsal *r, int object, int64_t i) {
    return r->alive[object][i] && r->value[object][i] >= RIGHT;
}

static bool all_right(const rehearsal *r, const rm_lists *lists, int64_t s) {
    for (int64_t k = lists->start[s]; k < lists->start[s + 1]; k++)
        if (!is_right(r, RM_STATE, lists->item[k])) return false;
    return true;
}

static void write_object(rehearsal *r, int object, int64_t i, uint64_t value) {
    r->alive[object][i] = true;
    r->value[object][i] = value;
}

/* The total number of stages that add to a gradient. */
static uint64_t terms_of(const rm_problem *p, int64_t i) {
    uint64_t n = 0;
    for (int64_t k = 0; k < p->adds.start[p->n_stages]; k++) n += p->adds.item[k] == i;
    return n;
}

static bool rehearse_backward(rehearsal *r, int64_t s, int64_t *to_differentiate) {
    const rm_problem *p = r->problem;
    bool right = is_right(r, RM_SAVED, s) && all_right(r, &p->keeps, s);
    for (int64_t i = p->made[s]; i < p->made[s + 1]; i++)
        right &= terms_of(p, i) == 0 || (is_right(r, RM_DSTATE, i) && r->terms[i] == terms_of(p, i));
    for (int64_t k = p->adds.start[s]; k < p->adds.start[s + 1]; k++) {
        int32_t i = p->adds.item[k];
        bool begins = r->terms[i] == 0;
        right &= begins ? !r->alive[RM_DSTATE][i] : is_right(r, RM_DSTATE, i);
        r->terms[i]++;
        write_object(r, RM_DSTATE, i, right ? RIGHT : WRONG);
    }
    return right && s == (*to_differentiate)--;
}

static bool rehearse_step(rehearsal *r, rm_step step, int64_t *to_differentiate) {
    int64_t i = step.index;
    if (step.verb == RM_FREE) r->alive[step.object][i] = false;
    if (step.verb == RM_SAVE) {
        r->copy[step.object][i] = is_right(r, step.object, i) ? r->value[step.object][i] : WRONG;
        r->copied[step.object][i] = true;
    }
    if (step.verb == RM_LOAD)
        write_object(r, step.object, i, r->copied[step.object][i] ? r->copy[step.object][i] : WRONG);
    if (step.verb == RM_RUN_FORWARD) {
        uint64_t value = all_right(r, &r->problem->reads, i) ? RIGHT : WRONG;
        for (int64_t k = r->problem->made[i]; k < r->problem->made[i + 1]; k++) write_object(r, RM_STATE, k, value);
        if (step.option != RM_DROP) write_object(r, RM_SAVED, i, value + (uint64_t)step.option);
    }
    return step.verb != RM_RUN_BACKWARD || rehearse_backward(r, i, to_differentiate);
}

/* Whether every stage is differentiated once, last first, from right values, and nothing is alive at the end. */
static bool rehearse(const rm_problem *problem, const rm_plan *plan) {
    rehearsal r = {.problem = problem};
    ck_assert(problem->n_stages < MOST && problem->n_states < MOST);
    int64_t to_differentiate = problem->n_stages - 1;
    for (int64_t t = 0; t < plan->n_steps; t++)
        if (!rehearse_step(&r, plan->step[t], &to_differentiate)) return false;
    for (int object = 0; object < 3; object++)
        for (int64_t c = 0; c < MOST; c++)
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

/* Makes one random change. Returns false if it happened to change nothing. */
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
               .lean = seed % 7 < 3,
               .loose = seed % 6 < 2};
    ck_ok(chain_problem(&c, seed, problem));
    problem->tier = (rm_tier){3000000000, 2000000000, 100, 0, 0};
}

/* Loads the spilled objects that a backward run reads. */
static void load_for(const rm_problem *p, rm_plan *plan, bool away[2][MOST], int64_t s) {
    if (away[RM_SAVED][s]) ck_ok(rm_plan_load(plan, RM_SAVED, s));
    away[RM_SAVED][s] = false;
    for (int64_t k = p->keeps.start[s]; k < p->keeps.start[s + 1]; k++) {
        int32_t i = p->keeps.item[k];
        if (away[RM_STATE][i]) ck_ok(rm_plan_load(plan, RM_STATE, i));
        away[RM_STATE][i] = false;
    }
}

static bool is_read_forward(const rm_problem *p, const rm_plan *plan, int64_t from, int64_t i) {
    for (; from < plan->n_steps; from++)
        if (plan->step[from].verb == RM_RUN_FORWARD && rm_in_list(&p->reads, plan->step[from].index, i)) return true;
    return false;
}

/* Spills some saved blocks, and some states that no later forward run reads, and loads them before a backward run reads
 * them. */
static void spill_some(dice *d, const rm_problem *problem, rm_plan *plan) {
    rm_plan out = {0};
    bool away[2][MOST] = {{false}}, made[MOST] = {false};
    for (int64_t i = 0; i < plan->n_steps; i++) {
        rm_step step = plan->step[i];
        int64_t s = step.index;
        if (step.verb == RM_FREE) continue; /* FREEs are added again at the end */
        if (step.verb == RM_RUN_BACKWARD) load_for(problem, &out, away, s);
        ck_ok(rm_plan_add(&out, step));
        if (step.verb != RM_RUN_FORWARD || step.option == RM_DROP || made[s]) continue;
        made[s] = true;
        if (roll_below(d, 2)) {
            away[RM_SAVED][s] = true;
            ck_ok(rm_plan_save(&out, RM_SAVED, s));
            ck_ok(rm_plan_free_object(&out, RM_SAVED, s));
        }
        for (int64_t k = problem->made[s]; k < problem->made[s + 1]; k++) {
            if (roll_below(d, 2) || is_read_forward(problem, plan, i + 1, k)) continue;
            away[RM_STATE][k] = true;
            ck_ok(rm_plan_save(&out, RM_STATE, k));
            ck_ok(rm_plan_free_object(&out, RM_STATE, k));
        }
    }
    rm_plan_free(plan);
    *plan = out;
    ck_ok(rm_plan_free_dead(problem, plan));
    ck_assert(rehearse(problem, plan));
}

static int64_t runs(const rm_plan *plan) {
    int64_t n = 0;
    for (int64_t i = 0; i < plan->n_steps; i++) n += plan->step[i].verb < RM_FREE;
    return n;
}

START_TEST(mutated_plans_are_rejected_or_harmless) {
    int64_t tried[N_MUTATIONS] = {0}, passed[N_MUTATIONS] = {0}, left_out = 0; /* RUN steps left out */
    dice d = {2026};
    for (uint64_t seed = 0; seed < 150; seed++) {
        rm_problem problem;
        some_chain(seed, &problem);
        rm_plan plan = {0};
        rm_proposal proposal;
        rm_plan_request request = {.segments = 1 + roll_below(&d, problem.n_stages)};
        ck_ok(rm_strategy_find("segments")->propose(&problem, &request, &plan, &proposal));
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
                left_out += accepted && mutation == LEAVE_OUT && runs(&mutant) < runs(&plan);
            }
            rm_plan_free(&mutant);
        }
        rm_plan_free(&plan);
        rm_problem_free(&problem);
    }
    for (int m = 0; m < N_MUTATIONS; m++) ck_assert_int_gt(tried[m], 1000);
    /* No RUN is superfluous. Harmless mutants have an extra step, or lack a FREE where a run overwrites a live
     * object. */
    ck_assert_int_eq(left_out, 0);
    ck_assert_int_lt((passed[OBJECT] + passed[VERB]) * 50, tried[OBJECT] + tried[VERB]);
    ck_assert_int_lt(passed[REPEAT] * 5, tried[REPEAT]);
    ck_assert_int_lt(passed[INDEX] * 20, tried[INDEX]);
    /* Order and options leave some freedom, so the judge must accept some mutants. */
    ck_assert(passed[SWAP] > 0 && passed[MOVE] > 0 && passed[OPTION] > 0);
    ck_assert_int_lt(passed[SWAP] * 2, tried[SWAP]);
}
END_TEST

/* ---- Other properties --------------------------------------------------------------------------- */

START_TEST(lifetimes_add_up_to_the_peak) {
    dice d = {60};
    for (uint64_t seed = 0; seed < 60; seed++) {
        rm_problem problem;
        some_chain(seed, &problem);
        rm_plan plan = {0};
        rm_proposal proposal;
        ck_ok(rm_strategy_find("sqrt")->propose(&problem, &(rm_plan_request){0}, &plan, &proposal));
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

START_TEST(every_failed_allocation_is_handled) {
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

RUN_TESTS("memory/check", one_stage_has_the_expected_peak_and_times, lifetimes_of_the_skip_chain_are_exact,
          sizes_are_rounded_up, each_option_has_its_own_bytes_and_times, wrong_step_is_named_in_the_error,
          computation_and_channel_run_concurrently, steps_wait_for_the_transfers_they_need, wrong_moves_are_refused,
          arbitrary_bits_as_steps_are_safe, mutated_plans_are_rejected_or_harmless, lifetimes_add_up_to_the_peak,
          every_failed_allocation_is_handled)
