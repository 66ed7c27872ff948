/* place.c: how close to the floor, and how fast, buffers of plans are placed: chains of several kinds and lengths, times
 * plans of several kinds. One row for each; ratios and milliseconds are the worst of all seeds. For the public hard
 * instances see place.sh. Needs no device.
 *
 *   bench_place [seeds, 5 by default] [most stages, 100000 by default] */
#include <stdio.h>
#include <time.h>

#include "memory/place.h"
#include "tests/memory/plans.h"

static const struct {
    const char *name;
    chain chain;
} chains[] = {
    {"alike", {.state_bytes = 4096, .saved_bytes = 1 << 20, .scratch_bytes = 1 << 20, .lean = true}},
    {"unlike", {.unlike = true, .state_bytes = 65536, .saved_bytes = 1 << 20, .scratch_bytes = 1 << 20, .lean = true}},
    {"deep", {.unlike = true, .state_bytes = 1 << 20, .saved_bytes = 1 << 20, .scratch_bytes = 1 << 20, .lean = true}},
    {"skips",
     {.unlike = true,
      .state_bytes = 1 << 18,
      .saved_bytes = 1 << 20,
      .scratch_bytes = 1 << 20,
      .skips = 3,
      .lean = true}},
    {"deep, skips",
     {.unlike = true,
      .state_bytes = 1 << 20,
      .saved_bytes = 1 << 20,
      .scratch_bytes = 1 << 19,
      .skips = 6,
      .lean = true}},
    {"shares",
     {.unlike = true, .state_bytes = 1 << 19, .saved_bytes = 1 << 20, .scratch_bytes = 1 << 19, .shares = true}},
};
enum { CHAINS = sizeof chains / sizeof chains[0] };

static const char *const plans[] = {"none",     "segments", "sqrt",    "nested 1",
                                    "nested 8", "ragged",   "spilled", "nested, spilled"};
enum { PLANS = sizeof plans / sizeof plans[0] };

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

static remat_status make(int kind, dice *d, const rm_problem *problem, rm_lifetimes *l) {
    rm_plan plan = {0};
    rm_proposal proposal;
    rm_verdict verdict;
    rm_plan_request wish = {.segments = 1 + roll_below(d, problem->n_stages)};
    if (kind <= 2)
        TRY(rm_strategy_find(plans[kind])->propose(problem, &wish, &plan, &proposal));
    else if (kind == 6)
        TRY(leaf_plan(d, problem, 0, problem->n_stages, &plan));
    else
        TRY(nested_plan(d, problem, kind == 3 ? 1 : 8, kind == 5, &plan));
    if (kind == 6) TRY(rm_plan_free_dead(problem, &plan));
    TRY(rm_plan_check(problem, &plan, &verdict, l));
    if (kind >= 6) spill_some(d, 2, 20, l);
    rm_plan_free(&plan);
    return REMAT_OK;
}

static void row(int c, int k, int64_t stages, int seeds) {
    double worst = 1, worst_ms = 0;
    int64_t most = 0;
    int at_floor = 0;
    for (int seed = 1; seed <= seeds; seed++) {
        dice d = {(uint64_t)seed};
        chain chain = chains[c].chain;
        chain.n_stages = stages - roll_below(&d, stages / 4 + 1);
        rm_problem problem;
        rm_lifetimes l = {0};
        rm_placement p;
        if (chain_problem(&chain, roll(&d), &problem) || make(k, &d, &problem, &l)) goto failed;
        double begin = now_ms();
        if (rm_place(&l, &p)) goto failed;
        double ms = now_ms() - begin;
        if (rm_placement_check(&l, &p)) goto failed;
        double ratio = p.floor_bytes ? (double)p.bytes / (double)p.floor_bytes : 1;
        if (ratio > worst) worst = ratio;
        if (ms > worst_ms) worst_ms = ms;
        if (l.count > most) most = l.count;
        at_floor += p.bytes == p.floor_bytes;
        rm_placement_free(&p);
        rm_lifetimes_free(&l);
        rm_problem_free(&problem);
    }
    printf("| %s | %s | %lld | %lld | %.4f | %d/%d | %.1f |\n", chains[c].name, plans[k], (long long)stages,
           (long long)most, worst, at_floor, seeds, worst_ms);
    fflush(stdout);
    return;
failed:
    printf("| %s | %s | %lld | failed: %s |\n", chains[c].name, plans[k], (long long)stages, remat_last_error());
}

int main(int argc, char **argv) {
    int seeds = argc > 1 ? atoi(argv[1]) : 5;
    int64_t most = argc > 2 ? atoll(argv[2]) : 100000;
    puts("| chain | plan | stages | buffers | worst block / floor | at the floor | worst ms "
         "|\n|---|---|--:|--:|--:|--:|--:|");
    for (int64_t stages = 10; stages <= most; stages *= stages == 10 || stages == 300 || stages == 3000 ? 3 : 10)
        for (int c = 0; c < CHAINS; c++)
            for (int k = 0; k < PLANS; k++) row(c, k, stages, seeds);
    return 0;
}
