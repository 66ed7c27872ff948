/* test_recompute.c: the family of plans that recompute. Its members have the figures that the judge finds. On small
 * chains the family contains the best of all plans of nested segments, which the test finds by writing each of them. A
 * search over everything that the judge accepts bounds how much other plans could gain. */
#include <math.h>

#include "memory/check.h"
#include "memory/family.h"
#include "memory/host.h"
#include "memory/nest.h"
#include "memory/schedule.h"
#include "memory/uniform.h"
#include "tests/memory/chains.h"
#include "tests/memory/memory_test.h"
#include "tests/sanitized.h"

static uint64_t time_of(const rm_verdict *v) { return v->forward_ns + v->recompute_ns + v->backward_ns; }

static rm_family family_of(const rm_problem *problem) {
    rm_family family = {0};
    ck_ok(rm_family_recompute(problem, &(rm_plan_request){0}, &family));
    ck_assert_int_ge(family.count, 1);
    return family;
}

/* ---- Members have the figures they claim -------------------------------------------------------- */

static void check_member(const rm_family *family, const rm_problem *problem, int64_t i) {
    const rm_member *member = &family->member[i];
    rm_plan plan = {0};
    rm_proposal proposal = {0};
    rm_verdict v;
    rm_lifetimes lifetimes;
    ck_ok(family->write(family, problem, i, &plan, &proposal));
    ck_assert_msg(!rm_plan_check(problem, &plan, &v, &lifetimes), "member %lld of %lld: %s", (long long)i,
                  (long long)family->count, remat_last_error());
    uint64_t tables = rm_table_bytes(plan.n_steps, lifetimes.count);
    if (member->exact) ck_assert_uint_eq(v.peak_bytes, member->peak_bytes);
    if (member->exact) ck_assert_uint_eq(tables, member->table_bytes);
    ck_assert_uint_le(v.peak_bytes, member->peak_bytes);
    ck_assert_uint_ge(tables, member->table_bytes);
    ck_assert_uint_eq(time_of(&v), member->time_ns);
    ck_assert_int_eq(v.recomputed_stages + problem->n_stages, member->runs);
    ck_assert_int_le(member->runs, 64 * problem->n_stages);
    ck_assert((proposal.segments == 1) == (v.recomputed_stages == 0));
    rm_lifetimes_free(&lifetimes);
    rm_plan_free(&plan);
}

static void family_is_what_it_says(const rm_problem *problem, int64_t stride) {
    rm_family family = family_of(problem);
    for (int64_t i = 1; i < family.count; i++) {
        ck_assert_uint_gt(family.member[i].peak_bytes, family.member[i - 1].peak_bytes);
        ck_assert_uint_lt(family.member[i].time_ns, family.member[i - 1].time_ns);
    }
    for (int64_t i = 0; i < family.count; i += i + stride < family.count ? stride : 1)
        check_member(&family, problem, i);
    rm_family_free(&family);
}

START_TEST(members_have_the_figures_they_claim) {
    for (uint64_t seed = 0; seed < 3000; seed++) {
        dice d = {seed};
        chain c = {.n_stages = 1 + roll_below(&d, seed % 10 ? 14 : 45),
                   .unlike = seed % 3 > 0,
                   .state_bytes = (uint64_t)roll_below(&d, 4) * 4000,
                   .saved_bytes = (uint64_t)roll_below(&d, 5) * 5000,
                   .scratch_bytes = (uint64_t)roll_below(&d, 3) * 3000,
                   .skips = seed % 5 == 0 ? (int)roll_below(&d, 4) : 0,
                   .shares = seed % 4 == 0,
                   .lean = seed % 2};
        rm_problem problem;
        ck_ok(chain_problem(&c, seed, &problem));
        /* Forward sweeps that need more bytes than anything else */
        for (int64_t i = 0; seed % 7 == 0 && i < c.n_stages; i++) problem.stage[i].drop.scratch_bytes += 100000;
        family_is_what_it_says(&problem, 7);
        rm_problem_free(&problem);
    }
}
END_TEST

START_TEST(members_of_long_chains_have_the_figures_they_claim) {
    static const int64_t stages[] = {97, 150, 400, 1000, 2500};
    for (uint64_t i = 0; i < 20; i++) {
        chain c = {.n_stages = stages[i % 5],
                   .unlike = i / 5 % 2,
                   .state_bytes = i % 3 ? 2048 : 300000,
                   .saved_bytes = 400000,
                   .scratch_bytes = 50000,
                   .skips = i == 5 ? 3 : 0,
                   .shares = i >= 10,
                   .lean = i % 2};
        rm_problem problem;
        ck_ok(chain_problem(&c, i, &problem));
        family_is_what_it_says(&problem, 40);
        rm_problem_free(&problem);
    }
}
END_TEST

static void whole_family(const char *path, const rm_problem *problem) {
    (void)path;
    family_is_what_it_says(problem, 1);
}

START_TEST(members_of_stored_problems_have_the_figures_they_claim) { each_problem(whole_family); }
END_TEST

/* ---- All plans of nested segments --------------------------------------------------------------- */

typedef struct {
    uint64_t peak_bytes, time_ns;
} pair;

static int by_bytes(const void *a, const void *b) {
    const pair *x = a, *y = b;
    if (x->peak_bytes != y->peak_bytes) return x->peak_bytes < y->peak_bytes ? -1 : 1;
    return (x->time_ns > y->time_ns) - (x->time_ns < y->time_ns);
}

/* One plan: for each interval, in the order in which they are met, one of count[] ways. */
typedef struct {
    int64_t way[64], count[64];
    int met;
} choices;

/* Advances to the next plan: the last interval that has another way takes it, and later intervals start again. */
static bool next_choices(choices *c) {
    while (c->met > 0 && c->way[c->met - 1] + 1 == c->count[c->met - 1]) c->met--;
    if (c->met == 0) return false;
    c->way[c->met - 1]++;
    for (int i = c->met; i < 64; i++) c->way[i] = 0;
    c->met = 0;
    return true;
}

static void write_choices(choices *c, const rm_problem *problem, int64_t a, int64_t b, rm_plan *plan) {
    const rm_stage *stage = &problem->stage[a];
    int64_t splits = b - a - 1;
    int at = c->met++;
    c->count[at] = splits + stage->n_options;
    int64_t way = c->way[at];
    if (way < splits) {
        int64_t j = a + 1 + way;
        ck_ok(rm_plan_sweep(plan, a, j));
        write_choices(c, problem, j, b, plan);
        write_choices(c, problem, a, j, plan);
        return;
    }
    ck_ok(rm_plan_run_forward(plan, a, (int)(way - splits)));
    if (b > a + 1) write_choices(c, problem, a + 1, b, plan);
    ck_ok(rm_plan_run_backward(plan, a));
}

/* The frontier of all these plans, as the judge sees them. Returns the number of pairs. */
static int best_of_all(const rm_problem *problem, pair *pairs, int room) {
    choices c = {0};
    int n = 0;
    do {
        rm_plan plan = {0};
        rm_verdict v;
        write_choices(&c, problem, 0, problem->n_stages, &plan);
        ck_ok(rm_plan_free_dead(problem, &plan));
        ck_ok(rm_plan_check(problem, &plan, &v, NULL));
        ck_assert_int_lt(n, room);
        pairs[n++] = (pair){v.peak_bytes, time_of(&v)};
        rm_plan_free(&plan);
    } while (next_choices(&c));
    qsort(pairs, (size_t)n, sizeof *pairs, by_bytes);
    int best = 0;
    for (int i = 0; i < n; i++)
        if (best == 0 || pairs[i].time_ns < pairs[best - 1].time_ns) pairs[best++] = pairs[i];
    return best;
}

static chain small_chain(uint64_t seed, int64_t n_stages) {
    return (chain){.n_stages = n_stages,
                   .unlike = seed % 8 > 0,
                   .state_bytes = 1000 + seed % 3 * 4000,
                   .saved_bytes = 9000,
                   .scratch_bytes = seed % 4 * 2000,
                   .shares = seed % 5 == 0,
                   .lean = seed % 2};
}

START_TEST(family_contains_the_best_nested_segments) {
    static pair pairs[4000];
    for (uint64_t seed = 0; seed < 300; seed++) {
        chain c = small_chain(seed, 1 + (int64_t)(seed % 5));
        rm_problem problem;
        ck_ok(chain_problem(&c, seed, &problem));
        int n = best_of_all(&problem, pairs, 4000);
        rm_family family = family_of(&problem);
        ck_assert_int_eq(family.count, n);
        for (int i = 0; i < n; i++) {
            ck_assert_uint_eq(family.member[i].peak_bytes, pairs[i].peak_bytes);
            ck_assert_uint_eq(family.member[i].time_ns, pairs[i].time_ns);
        }
        rm_family_free(&family);
        rm_problem_free(&problem);
    }
}
END_TEST

/* ---- Everything the judge accepts --------------------------------------------------------------- */

/* A moment in any plan: the live states, the kept stages with their options, and the next stage to be differentiated. A
 * plan that frees a saved(s) early cannot finish, because saved(s) cannot be made again, so this does not occur;
 * gradients are freed at once. */
enum { SMALL = 6, SMALL_STATES = 9, SAVED = 729, MOMENTS = (SMALL + 1) * (1 << SMALL_STATES) * SAVED };

typedef struct {
    int next;   /* the next stage to be differentiated; -1: done */
    int states; /* bit set */
    int saved;  /* base-3 digits: 0: not kept, 1 + option */
} moment;

static int number_of(moment m) { return ((m.next + 1) * (1 << SMALL_STATES) + m.states) * SAVED + m.saved; }
static const int power[SMALL + 1] = {1, 3, 9, 27, 81, 243, 729};
static int kept_as(moment m, int s) { return m.saved / power[s] % 3 - 1; }

static int bits_of(const rm_lists *lists, int64_t s) {
    int bits = 0;
    for (int64_t k = lists->start[s]; k < lists->start[s + 1]; k++) bits |= 1 << lists->item[k];
    return bits;
}

static int made_by(const rm_problem *p, int64_t s) { return (1 << p->made[s + 1]) - (1 << p->made[s]); }

typedef struct {
    const rm_problem *problem;
    int32_t last[SMALL_STATES]; /* the last stage to add to a gradient */
    uint64_t limit;
    uint64_t *time; /* by moment */
    moment *queue;  /* queue of moments whose time fell, to be examined again: first in, first out */
    bool *queued;
    int head, tail;
} search;

/* A gradient is alive from the last stage that adds to it until the stage that made its state. */
static uint64_t alive_bytes(const search *s, moment m) {
    const rm_problem *p = s->problem;
    uint64_t bytes = 0;
    for (int i = 0; i < p->n_states; i++) {
        if (m.states >> i & 1) bytes += rm_state_bytes(p, i);
        if (s->last[i] > m.next && rm_state_maker(p, i) <= m.next) bytes += rm_dstate_bytes(p, i);
    }
    for (int t = 0; t < p->n_stages; t++)
        if (kept_as(m, t) >= 0) bytes += rm_align_up(p->stage[t].option[kept_as(m, t)].saved_bytes);
    return bytes;
}

static void reach(search *s, moment m, uint64_t time_ns) {
    int number = number_of(m);
    if (s->time[number] <= time_ns) return;
    s->time[number] = time_ns;
    if (s->queued[number]) return;
    s->queued[number] = true;
    s->queue[s->tail] = m;
    s->tail = (s->tail + 1) % MOMENTS;
}

static void try_run(search *s, moment after, rm_work work, uint64_t time_ns) {
    if (alive_bytes(s, after) + rm_align_up(work.scratch_bytes) <= s->limit) reach(s, after, time_ns + work.time_ns);
}

/* While a stage is differentiated, the gradients it initialises and the ones it uses up are alive. */
static void try_backward(search *s, moment m, uint64_t now) {
    const rm_problem *p = s->problem;
    int i = m.next, keeps = i < 0 ? 0 : bits_of(&p->keeps, i);
    if (i < 0 || (m.states & keeps) != keeps || kept_as(m, i) < 0) return;
    rm_work work = p->stage[i].option[kept_as(m, i)].backward;
    uint64_t bytes = alive_bytes(s, m) + rm_align_up(work.scratch_bytes);
    for (int j = 0; j < p->n_states; j++)
        if (s->last[j] == i) bytes += rm_dstate_bytes(p, j);
    if (bytes <= s->limit)
        reach(s, (moment){i - 1, m.states, m.saved - (kept_as(m, i) + 1) * power[i]}, now + work.time_ns);
}

static void look_from(search *s, moment m) {
    const rm_problem *p = s->problem;
    uint64_t now = s->time[number_of(m)];
    for (int c = 0; c < p->n_states; c++)
        if (m.states >> c & 1) reach(s, (moment){m.next, m.states & ~(1 << c), m.saved}, now);
    for (int i = 0; i <= m.next; i++) {
        int reads = bits_of(&p->reads, i);
        if ((m.states & reads) != reads) continue;
        moment after = {m.next, m.states | made_by(p, i), m.saved};
        try_run(s, after, p->stage[i].drop, now);
        for (int k = 0; k < p->stage[i].n_options && kept_as(m, i) < 0; k++) {
            after.saved = m.saved + (k + 1) * power[i];
            try_run(s, after, p->stage[i].option[k].forward, now);
        }
    }
    try_backward(s, m, now);
}

/* The minimum time of any plan whose peak is at most `limit`; UINT64_MAX: there is none. */
static uint64_t least_time(const rm_problem *problem, uint64_t limit) {
    search s = {.problem = problem,
                .limit = limit,
                .time = malloc(MOMENTS * sizeof *s.time),
                .queue = malloc(MOMENTS * sizeof *s.queue),
                .queued = calloc(MOMENTS, sizeof *s.queued)};
    ck_assert(problem->n_stages <= SMALL && problem->n_states <= SMALL_STATES);
    rm_last_adders(problem, s.last);
    for (int i = 0; i < MOMENTS; i++) s.time[i] = UINT64_MAX;
    reach(&s, (moment){(int)problem->n_stages - 1, 0, 0}, 0);
    while (s.head != s.tail) {
        moment m = s.queue[s.head];
        s.head = (s.head + 1) % MOMENTS;
        s.queued[number_of(m)] = false;
        look_from(&s, m);
    }
    uint64_t least = UINT64_MAX;
    for (int states = 0; states < 1 << SMALL_STATES; states++) {
        uint64_t time = s.time[number_of((moment){-1, states, 0})];
        if (time < least) least = time;
    }
    free(s.time);
    free(s.queue);
    free(s.queued);
    return least;
}

/* The gain of plans that are not nested segments, over budgets from the minimum to the maximum. */
typedef struct {
    int chains, smaller, budgets, faster;
    double most_saved, most_won, sum_won;
} gains;

static void compare(const rm_problem *problem, gains *g) {
    rm_family family = family_of(problem);
    uint64_t least_bytes = family.member[0].peak_bytes;
    while (least_time(problem, least_bytes - 64) < UINT64_MAX) least_bytes -= 64;
    double saved = 1 - (double)least_bytes / (double)family.member[0].peak_bytes;
    g->chains++;
    g->smaller += saved > 0;
    if (saved > g->most_saved) g->most_saved = saved;
    for (int64_t i = 0; i < family.count; i += 1 + family.count / 6) {
        uint64_t least = least_time(problem, family.member[i].peak_bytes);
        ck_assert_uint_le(least, family.member[i].time_ns);
        double won = (double)family.member[i].time_ns / (double)least - 1;
        g->budgets++;
        g->faster += won > 0;
        g->sum_won += won;
        if (won > g->most_won) g->most_won = won;
    }
    rm_family_free(&family);
}

static gains compare_chains(const char *what, bool unlike, uint64_t count) {
    gains g = {0};
    for (uint64_t seed = 0; seed < count; seed++) {
        chain c = small_chain(seed, 3 + (int64_t)(seed % 3));
        c.shares = false;
        c.unlike = unlike;
        rm_problem problem;
        ck_ok(chain_problem(&c, seed, &problem));
        compare(&problem, &g);
        rm_problem_free(&problem);
    }
    if (getenv("RM_REPORT"))
        printf("%s: faster at %d of %d budgets, by %.1f %% at most, %.2f %% on average; smaller on %d of %d chains, by "
               "%.1f %% at most\n",
               what, g.faster, g.budgets, 100 * g.most_won, 100 * g.sum_won / g.budgets, g.smaller, g.chains,
               100 * g.most_saved);
    return g;
}

/* A held state, or the state of a kept stage, may be dropped and recomputed before it is used. Nested segments do not
 * do this. Where stages differ tenfold in everything, it pays at one budget in three, slightly. */
START_TEST(other_plans_gain_little) {
    if (SANITIZED) return; /* an average; the same code runs for equal stages, below */
    gains g = compare_chains("unlike stages", true, 60);
    ck_assert(g.faster * 5 <= g.budgets * 2);
    ck_assert(g.sum_won <= 0.03 * g.budgets && g.most_won <= 0.45);
    ck_assert(g.smaller * 5 <= g.chains && g.most_saved <= 0.15);
}
END_TEST

START_TEST(other_plans_gain_less_on_equal_stages) {
    gains g = compare_chains("like stages", false, 18);
    ck_assert(g.faster * 5 <= g.budgets && g.smaller == 0);
    ck_assert(g.sum_won <= 0.01 * g.budgets && g.most_won <= 0.06);
}
END_TEST

/* ---- Skip connections ---------------------------------------------------------------------------- */

typedef struct {
    rm_family family[2];
} families;

/* The minimum time of our families within a limit; UINT64_MAX: nothing fits. */
static uint64_t own_time(const families *f, uint64_t limit) {
    uint64_t least = UINT64_MAX;
    for (int k = 0; k < 2; k++)
        for (int64_t i = 0; i < f->family[k].count; i++) {
            const rm_member *m = &f->family[k].member[i];
            if (m->peak_bytes <= limit && m->time_ns < least) least = m->time_ns;
        }
    return least;
}

/* Compares at six budgets between our minimum and the size at which everything is kept. */
static void compare_skips(const char *what, const rm_problem *problem, gains *g) {
    families f = {0};
    ck_ok(rm_family_recompute(problem, &(rm_plan_request){0}, &f.family[0]));
    ck_ok(rm_family_evict(problem, &(rm_plan_request){0}, &f.family[1]));
    ck_assert_int_gt(f.family[1].count, 0);
    uint64_t least = UINT64_MAX, most = 0;
    for (int64_t i = 0; i < f.family[1].count; i++) {
        check_member(&f.family[1], problem, i);
        least = rm_smaller(least, f.family[1].member[i].peak_bytes);
        most = rm_larger(most, f.family[1].member[i].peak_bytes);
    }
    g->chains++;
    uint64_t less = least;
    while (less > 64 && least_time(problem, less - 64) < UINT64_MAX) less -= 64;
    double saved = 1 - (double)less / (double)least, own_won = 0;
    g->smaller += saved > 0;
    if (saved > g->most_saved) g->most_saved = saved;
    for (int b = 0; b < 6; b++) {
        uint64_t limit = least + (most - least) * (uint64_t)b / 5, best = least_time(problem, limit);
        double won = (double)own_time(&f, limit) / (double)best - 1;
        ck_assert(won >= 0);
        g->budgets++;
        g->faster += won > 0;
        g->sum_won += won;
        own_won += won / 6;
        if (won > g->most_won) g->most_won = won;
    }
    if (getenv("RM_REPORT"))
        printf("%s: %.2f %% from the best on average; the least that works is %.1f %% below ours\n", what,
               100 * own_won, 100 * saved);
    rm_family_free(&f.family[0]);
    rm_family_free(&f.family[1]);
}

static void report(const char *what, const gains *g) {
    if (getenv("RM_REPORT"))
        printf("%s: from the best at %d of %d budgets, by %.1f %% at most, %.2f %% on average; least bytes on %d of "
               "%d, by "
               "%.1f %% at most\n",
               what, g->faster, g->budgets, 100 * g->most_won, 100 * g->sum_won / g->budgets, g->smaller, g->chains,
               100 * g->most_saved);
}

START_TEST(skip_connections_are_planned_near_the_optimum) {
    gains g = {0};
    for (uint64_t seed = 0; seed < (SANITIZED ? 6 : 40); seed++) {
        chain c = small_chain(seed, 4 + (int64_t)(seed % 3));
        c.skips = 1 + (int)(seed % 3);
        c.loose = seed % 3 == 0;
        rm_problem problem;
        ck_ok(chain_problem(&c, seed, &problem));
        rm_footprint footprint = {0};
        ck_ok(rm_footprint_make(&problem, &footprint));
        if (!footprint.exact) compare_skips("a made-up net", &problem, &g);
        rm_footprint_free(&footprint);
        rm_problem_free(&problem);
    }
    report("made-up nets with skips", &g);
    if (SANITIZED) return; /* the rest are averages */
    ck_assert_int_gt(g.chains, 20);
    /* 0.016 without the last phase of evict.c, which undoes unnecessary edits */
    ck_assert(g.sum_won <= 0.012 * g.budgets);
}
END_TEST

/* The last cut that state i crosses, found by looking at all of its readers. */
static int64_t last_cut(const rm_problem *p, int64_t i) {
    int64_t maker = rm_state_maker(p, i), last = maker + 1;
    for (int64_t s = maker + 1; s < p->n_stages; s++)
        if (rm_in_list(&p->reads, s, i) || rm_in_list(&p->keeps, s, i)) last = s;
    return last;
}

/* Bytes that cross cut a but not cut j, in problems with up to 40 skips, counted state by state. */
START_TEST(bytes_beside_equal_the_sum_over_states) {
    for (uint64_t seed = 0; seed < 30; seed++) {
        chain c = small_chain(seed, 2 + (int64_t)seed);
        c.skips = (int)(seed * 4 / 3);
        c.loose = seed % 2;
        rm_problem p;
        rm_footprint f = {0};
        ck_ok(chain_problem(&c, seed, &p));
        ck_ok(rm_footprint_make(&p, &f));
        for (int64_t a = 0; a < p.n_stages; a++)
            for (int64_t j = a + 1; j < p.n_stages; j++) {
                uint64_t bytes = 0;
                for (int64_t i = 0; i < p.n_states; i++) {
                    int64_t last = last_cut(&p, i);
                    if (rm_state_maker(&p, i) < a && last >= a && last < j) bytes += rm_state_bytes(&p, i);
                }
                ck_assert_uint_eq(rm_beside(&f, a, j), bytes);
            }
        rm_footprint_free(&f);
        rm_problem_free(&p);
    }
}
END_TEST

static void planned_near_the_best(const char *file, double allowed) {
    gains g = {0};
    rm_problem problem;
    read_problem(file, &problem);
    compare_skips(file, &problem, &g);
    rm_problem_free(&problem);
    ck_assert_msg(g.sum_won <= allowed * g.budgets && g.most_saved <= allowed, "%s: %.4f from the best", file,
                  g.sum_won / g.budgets);
}

START_TEST(bidirectional_and_u_net_are_planned_near_the_optimum) {
    planned_near_the_best(RM_SOURCE_DIR "/tests/problems/both_directions.problem", 0.004);
    planned_near_the_best(RM_SOURCE_DIR "/tests/problems/u_net.problem", 0.012);
}
END_TEST

RUN_TESTS("memory/recompute", bytes_beside_equal_the_sum_over_states, skip_connections_are_planned_near_the_optimum,
          bidirectional_and_u_net_are_planned_near_the_optimum, members_have_the_figures_they_claim,
          members_of_long_chains_have_the_figures_they_claim, members_of_stored_problems_have_the_figures_they_claim,
          family_contains_the_best_nested_segments, other_plans_gain_little, other_plans_gain_less_on_equal_stages)
