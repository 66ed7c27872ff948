/* planner.c: time and memory of planning, and the distance of plans from the optimum. Needs no device.
 *
 *   1. the binomial schedule in closed form (tests/memory/binomial.h)
 *   2. families of plans, with a feasible and with an infeasible budget (memory/strategy_optimal.c)
 *   3. the gap: chains planned coarse to fine, or by the triangle, compared with every interval solved with many points
 *   4. tiles of an LSTM: the least predicted time for a share of the activations
 *
 *   bench_planner [repetitions [most stages]]                 7, all; processor times, the best of all repetitions
 *   bench_planner frontier FILE N                             for a problem as text: bytes and time of the plans for N
 *   budgets
 *                                                             from the least up, and without recomputation
 *                                                             (integer_program.py) */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/memory/binomial.h"
#include "memory/family.h"
#include "memory/host.h"
#include "memory/nest.h"
#include "memory/schedule.h"
#include "memory/uniform.h"
#include "tests/memory/chains.h"

static int repetitions = 7;
static int64_t most_stages = INT64_MAX; /* of a chain; longer chains are skipped */

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

#define BEST_MS(statement)                                                                                             \
    ({                                                                                                                 \
        double best_ = INFINITY;                                                                                       \
        for (int i_ = 0; i_ < repetitions; i_++) {                                                                     \
            double start_ = now_ms();                                                                                  \
            statement;                                                                                                 \
            best_ = fmin(best_, now_ms() - start_);                                                                    \
        }                                                                                                              \
        best_;                                                                                                         \
    })

static void must(remat_status status) {
    if (!status) return;
    fprintf(stderr, "bench_planner: %s\n", remat_last_error());
    exit(1);
}

/* ---- 1 ------------------------------------------------------------------------------------------ */

static void closed_form(void) {
    printf("| tiles | slots | runs a tile | to plan, us | bytes | each action, ns |\n|--:|--:|--:|--:|--:|--:|\n");
    static const int64_t cases[][2] = {{1000, 50},    {100000, 64},   {1000000, 8},
                                       {1000000, 64}, {1000000, 200}, {1000000000, 64}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int64_t t = cases[i][0], m = cases[i][1], runs = 0, actions = 0, most = 1000000;
        rm_binomial schedule = {0};
        double plan = BEST_MS({
            rm_binomial_free(&schedule);
            runs = rm_binomial_runs(t, m);
            must(rm_binomial_begin(&schedule, t, m));
            rm_binomial_next(&schedule);
        });
        double start = now_ms();
        while (actions < most && rm_binomial_next(&schedule).verb != RM_BINOMIAL_END) actions++;
        double each = (now_ms() - start) / (double)actions;
        printf("| %lld | %lld | %.3f | %.2f | %zu | %.0f |\n", (long long)t, (long long)m, (double)runs / (double)t,
               1e3 * plan, sizeof schedule + (size_t)schedule.capacity * sizeof *schedule.part, 1e6 * each);
        rm_binomial_free(&schedule);
    }
}

/* ---- 2 ------------------------------------------------------------------------------------------ */

typedef struct {
    const char *name;
    chain chain;
} kind;

static const kind kinds[] = {
    {"tiles", {.n_stages = 313, .state_bytes = 2048, .saved_bytes = 1536 << 10, .scratch_bytes = 256 << 10}},
    {"tiles", {.n_stages = 3907, .state_bytes = 2048, .saved_bytes = 1536 << 10, .scratch_bytes = 256 << 10}},
    {"tiles", {.n_stages = 100000, .state_bytes = 2048, .saved_bytes = 1536 << 10, .scratch_bytes = 256 << 10}},
    {"unlike", {30, true, 200000, 1536 << 10, 256 << 10, 0, false, true, false}},
    {"unlike, skips", {100, true, 200000, 1536 << 10, 256 << 10, 4, true, true, false}},
    {"unlike", {100, true, 200000, 1536 << 10, 256 << 10, 0, false, true, false}},
    {"unlike", {1000, true, 200000, 1536 << 10, 256 << 10, 0, false, true, false}},
    {"unlike", {10000, true, 2048, 1536 << 10, 256 << 10, 0, false, true, false}},
};

static double choose(const rm_problem *problem, uint64_t budget, double *factor) {
    rm_plan_request wish = {.budget_bytes = budget};
    return BEST_MS({
        rm_schedule s = {0};
        remat_status status = rm_schedule_propose(problem, rm_strategy_find("optimal"), &wish, &s);
        if (status != REMAT_INFEASIBLE) must(status);
        *factor = s.verdict.recompute_factor;
        rm_schedule_free(&s);
    });
}

static void families(void) {
    printf("\n| chain | stages | members | family, ms | 1 %% of all bytes: chosen in, ms | forward runs a stage | "
           "refused in, "
           "ms |\n|---|--:|--:|--:|--:|--:|--:|\n");
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        chain c = kinds[i].chain;
        if (c.n_stages > most_stages) continue;
        if (!c.unlike) c.lean = true;
        rm_problem problem;
        must(chain_problem(&c, 1, &problem));
        int64_t count = 0;
        uint64_t most = 0;
        double family_ms = BEST_MS({
            rm_family f = {0};
            must(rm_family_recompute(&problem, &(rm_plan_request){0}, &f));
            count = f.count;
            most = f.member[f.count - 1].peak_bytes;
            rm_family_free(&f);
        });
        double factor, unused;
        double chosen_ms = choose(&problem, most / (c.n_stages < 1000 ? 10 : 100), &factor);
        double refused_ms = choose(&problem, 1000, &unused);
        printf("| %s | %lld | %lld | %.2f | %.2f%s | %.2f | %.2f |\n", kinds[i].name, (long long)c.n_stages,
               (long long)count, family_ms, chosen_ms, c.n_stages < 1000 ? " (10 %)" : "", factor, refused_ms);
        fflush(stdout);
        rm_problem_free(&problem);
    }
}

/* ---- 3 ------------------------------------------------------------------------------------------ */

typedef struct {
    double sum, most, least_bytes;
    int budgets;
} gap;

/* The least time of a nest's points within a budget; INFINITY: none fits. */
static double time_within(const rm_nest *nest, double budget) {
    double best = INFINITY;
    for (int i = 0; i < rm_nest_count(nest); i++)
        if ((double)rm_nest_point(nest, i).peak_bytes <= budget) best = (double)rm_nest_point(nest, i).time_ns;
    return best;
}

static double member_within(const rm_family *family, double budget) {
    double best = INFINITY;
    for (int64_t i = 0; i < family->count; i++)
        if ((double)family->member[i].peak_bytes <= budget) best = (double)family->member[i].time_ns;
    return best;
}

static void add_gap(const chain *c, uint64_t seed, gap *g) {
    rm_problem problem;
    rm_footprint footprint = {0};
    rm_family family = {0};
    rm_nest *best;
    must(chain_problem(c, seed, &problem));
    must(rm_footprint_make(&problem, &footprint));
    must(rm_nest_make(&footprint, (rm_effort){250, 512, 2048}, &best));
    must(rm_family_recompute(&problem, &(rm_plan_request){0}, &family));
    double least = (double)rm_nest_point(best, 0).peak_bytes, most = (double)family.member[family.count - 1].peak_bytes;
    for (double budget = least * 1.02; budget < most; budget *= 1.03) {
        double here = member_within(&family, budget) / time_within(best, budget) - 1;
        if (isinf(here)) continue; /* below the smallest budget of the family */
        g->sum += here;
        g->most = fmax(g->most, here);
        g->budgets++;
    }
    g->least_bytes = fmax(g->least_bytes, (double)family.member[0].peak_bytes / least);
    rm_family_free(&family);
    rm_nest_free(best);
    rm_footprint_free(&footprint);
    rm_problem_free(&problem);
}

static void gaps(void) {
    static const kind some[] = {
        {"tiles, small states", {100, false, 2048, 1536 << 10, 256 << 10, 0, false, true, false}},
        {"tiles, small states", {200, false, 2048, 1536 << 10, 256 << 10, 0, false, true, false}},
        {"alike, states half a stage", {200, false, 800000, 1536 << 10, 256 << 10, 0, false, true, false}},
        {"unlike, small states", {40, true, 2048, 1536 << 10, 256 << 10, 0, false, true, false}},
        {"unlike, states half a stage", {40, true, 800000, 1536 << 10, 256 << 10, 0, false, true, false}},
        {"unlike, small states", {96, true, 2048, 1536 << 10, 256 << 10, 0, false, true, false}},
        {"unlike, small states", {200, true, 2048, 1536 << 10, 256 << 10, 0, false, true, false}},
        {"unlike, states half a stage", {200, true, 800000, 1536 << 10, 256 << 10, 0, false, true, false}},
    };
    printf("\n| chain | stages | slower on average | at most | least bytes |\n|---|--:|--:|--:|--:|\n");
    for (size_t i = 0; i < sizeof some / sizeof some[0]; i++) {
        gap g = {0};
        if (some[i].chain.n_stages > most_stages) continue;
        for (uint64_t seed = 0; seed < (some[i].chain.unlike ? 3 : 1); seed++) add_gap(&some[i].chain, seed, &g);
        printf("| %s | %lld | %.2f %% | %.1f %% | x%.3f |\n", some[i].name, (long long)some[i].chain.n_stages,
               100 * g.sum / g.budgets, 100 * g.most, g.least_bytes);
        fflush(stdout);
    }
}

/* ---- 4 ------------------------------------------------------------------------------------------ */

/* In units of H floats per timestep: 6 are saved, 1 if lean; a state has 2. Backward takes as long as two forwards;
 * `rebuild` is the time that lean adds, as a share of a whole step of one stage. */
static void lstm_tiles(int64_t timesteps, int64_t tile, double rebuild, rm_problem *problem) {
    const uint64_t row = 256 * 4, second = 1000000;
    chain c = {.n_stages = timesteps / tile, .state_bytes = 2 * row, .saved_bytes = 6 * row * (uint64_t)tile};
    must(chain_problem(&c, 1, problem));
    for (int64_t s = 0; s < problem->n_stages; s++) {
        rm_stage *stage = &problem->stage[s];
        stage->drop = (rm_work){second, 0};
        stage->n_options = rebuild >= 0 ? 2 : 1;
        stage->option[0].forward = stage->drop;
        stage->option[0].backward = (rm_work){2 * second, 0};
        stage->option[1] = stage->option[0];
        stage->option[1].name = "lean";
        stage->option[1].saved_bytes = row * (uint64_t)tile;
        stage->option[1].backward.time_ns += (uint64_t)(3 * (double)second * fmax(rebuild, 0));
    }
}

static void savings(void) {
    printf("\n| timesteps | tile | share of the activations | all or nothing | lean at +5 %% | lean at +12 %% |\n"
           "|--:|--:|--:|--:|--:|--:|\n");
    static const struct {
        int64_t timesteps, tile;
        double share;
    } rows[] = {{1000, 8, 0.05}, {1000, 8, 0.02}, {10000, 8, 0.02}, {10000, 32, 0.01}, {100000, 32, 0.01}};
    static const double rebuild[] = {-1, 0.05, 0.12};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (rows[i].timesteps / rows[i].tile > most_stages) continue;
        printf("| %lld | %lld | %.0f %% ", (long long)rows[i].timesteps, (long long)rows[i].tile, 100 * rows[i].share);
        for (int k = 0; k < 3; k++) {
            rm_problem problem;
            rm_family family = {0};
            lstm_tiles(rows[i].timesteps, rows[i].tile, rebuild[k], &problem);
            must(rm_family_recompute(&problem, &(rm_plan_request){0}, &family));
            double all = (double)family.member[family.count - 1].peak_bytes;
            double fastest = (double)family.member[family.count - 1].time_ns;
            printf("| +%.1f %% ", 100 * (member_within(&family, rows[i].share * all) / fastest - 1));
            rm_family_free(&family);
            rm_problem_free(&problem);
        }
        printf("|\n");
    }
}

/* ---- Of a file -------------------------------------------------------------------------------------- */

static rm_schedule planned(const rm_problem *problem, uint64_t budget) {
    rm_schedule schedule = {0};
    remat_status status = rm_schedule_propose(problem, rm_strategy_find("optimal"),
                                              &(rm_plan_request){.budget_bytes = budget}, &schedule);
    if (status != REMAT_INFEASIBLE) must(status);
    return schedule;
}

static int frontier(const char *path, int n) {
    FILE *file = fopen(path, "r");
    static char text[1 << 24];
    size_t length = file ? fread(text, 1, sizeof text, file) : 0;
    if (file) fclose(file);
    rm_problem problem = {0};
    must(rm_problem_read(&problem, text, length));
    rm_schedule most = planned(&problem, 0), least = planned(&problem, 1);
    uint64_t low = rm_schedule_bytes(&least), high = rm_schedule_bytes(&most);
    for (int i = 0; i <= n; i++) {
        uint64_t bytes = i < n ? low + (high - low) / (uint64_t)n * (uint64_t)i : high;
        rm_schedule s = planned(&problem, bytes);
        printf("%llu %llu\n", (unsigned long long)(bytes - rm_schedule_table_bytes(&s)),
               (unsigned long long)s.verdict.total_ns);
        rm_schedule_free(&s);
    }
    rm_schedule_free(&least), rm_schedule_free(&most);
    rm_problem_free(&problem);
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 4 && !strcmp(argv[1], "frontier")) return frontier(argv[2], atoi(argv[3]));
    if (argc > 1) repetitions = atoi(argv[1]);
    if (repetitions < 1) repetitions = 1;
    if (argc > 2) most_stages = atoll(argv[2]);
    closed_form();
    families();
    gaps();
    savings();
}
