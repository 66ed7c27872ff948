/* place.c: quality and speed of the placement of buffers, for several kinds and lengths of chains and several kinds of
 * plans. It prints one row for each; ratios (block size / lower bound) and milliseconds are the worst of all seeds.
 * Needs no device.
 *
 *   bench_place [seeds, 5 by default] [most stages, 100000 by default]
 *
 * Or for tables of buffers (lifetimes_csv.h): the seconds to the first placement within a capacity and within 5 per
 * cent of it, then the smallest found in ten seconds. Hard public instances are in the repository of MiniMalloc
 * (google/minimalloc, benchmarks/challenging); their names end in the capacity: A.1048576.csv.
 *
 *   bench_place FILE.CAPACITY.csv... */
#define _GNU_SOURCE /* memrchr */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench/lifetimes_csv.h"
#include "memory/clock.h"
#include "memory/host.h"
#include "memory/pack.h"
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

/* ---- Tables of buffers ------------------------------------------------------------------------------------------- */

typedef struct {
    rm_lifetimes lifetimes;
    rm_pack_item *item;
    double deadline_s;
} table;

static int by_time(const void *a, const void *b) {
    const rm_lifetime *x = a, *y = b;
    return (x->first > y->first) - (x->first < y->first);
}

static char *read_file(const char *path, size_t *bytes) {
    FILE *file = fopen(path, "rb");
    char *text = file && !fseek(file, 0, SEEK_END) ? malloc((size_t)ftell(file) + 1) : NULL;
    if (text) {
        size_t size = (size_t)ftell(file);
        rewind(file);
        *bytes = fread(text, 1, size, file);
    }
    if (file) fclose(file);
    return text;
}

static remat_status read_table(const char *path, table *t) {
    rm_lifetimes_csv csv = {0};
    size_t bytes = 0;
    char *text = read_file(path, &bytes);
    REQUIRE(text, IO, "%s cannot be read", path);
    remat_status status = rm_lifetimes_csv_parse(text, bytes, path, &csv);
    t->lifetimes.item = calloc((size_t)csv.count + 1, sizeof *t->lifetimes.item);
    t->item = calloc((size_t)csv.count + 1, sizeof *t->item);
    if (!status && !(t->lifetimes.item && t->item)) status = rm_fail(REMAT_MEMORY, "no memory for %s", path);
    for (int64_t i = 0; !status && i < csv.count; i++) {
        const rm_lifetimes_row *row = &csv.row[i];
        if (row->size)
            t->lifetimes.item[t->lifetimes.count++] =
                (rm_lifetime){.first = row->lower, .last = row->upper - 1, .bytes = row->size};
    }
    if (!status) qsort(t->lifetimes.item, (size_t)t->lifetimes.count, sizeof *t->lifetimes.item, by_time);
    for (int64_t i = 0; i < t->lifetimes.count; i++) {
        const rm_lifetime *life = &t->lifetimes.item[i];
        t->item[i] = (rm_pack_item){life->first, life->last, life->bytes};
    }
    rm_lifetimes_csv_free(&csv);
    free(text);
    return status;
}

static bool time_is_over(void *context) { return 1e-9 * (double)rm_now_ns() >= ((const table *)context)->deadline_s; }

/* capacity 0: find the smallest block. `seconds`: the time it took, or -1 if no placement was found. A placement is
 * checked before it counts. */
static remat_status pack(table *t, uint64_t capacity, double limit_s, rm_packing *out, double *seconds) {
    double begin = 1e-9 * (double)rm_now_ns();
    rm_pack_limit limit = {.work = RM_PACK_ENDLESS, .stop = time_is_over, .context = t};
    rm_pack_request request = {.capacity = capacity, .limit = &limit};
    t->deadline_s = begin + limit_s;
    REQUIRE(rm_pack_smallest(t->item, t->lifetimes.count, &request, out) != RM_PACK_NO_MEMORY, MEMORY,
            "no memory to place %lld buffers", (long long)t->lifetimes.count);
    bool fits = !capacity || out->bytes <= capacity;
    *seconds = fits ? 1e-9 * (double)rm_now_ns() - begin : -1;
    rm_placement placement = {.offset = out->offset, .bytes = out->bytes};
    remat_status status = rm_placement_check_aligned(&t->lifetimes, &placement, 1);
    rm_free(out->offset);
    return status;
}

static void print_seconds(double seconds) {
    if (seconds < 0)
        printf(" - |");
    else
        printf(" %.3f |", seconds);
}

static remat_status table_row(const char *path) {
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    int length = (int)(strlen(name) - (strlen(name) > 4 ? strlen(".csv") : 0));
    const char *dot = memrchr(name, '.', (size_t)length);
    uint64_t capacity = dot ? strtoull(dot + 1, NULL, 10) : 0;
    table t = {0};
    rm_packing packing;
    double loose, tight, all;
    REQUIRE(capacity, INVALID, "%s: the name of a table must end in its capacity, as in A.1048576.csv", path);
    remat_status status = read_table(path, &t);
    if (!status) status = pack(&t, capacity + capacity / 20, 60, &packing, &loose);
    if (!status) status = pack(&t, capacity, 60, &packing, &tight);
    if (!status) status = pack(&t, 0, 10, &packing, &all);
    if (!status) {
        printf("| %.*s | %lld | %.4f |", length, name, (long long)t.lifetimes.count,
               (double)packing.floor_bytes / (double)capacity);
        print_seconds(loose), print_seconds(tight);
        printf(" %.4f | %.4f |\n", (double)packing.bytes / (double)capacity,
               packing.floor_bytes ? (double)packing.bytes / (double)packing.floor_bytes : 1);
        fflush(stdout);
    }
    free(t.lifetimes.item);
    free(t.item);
    return status;
}

static int tables(int n, char **path) {
    puts(
        "| instance | buffers | floor / capacity | within 1.05 x capacity, s | within capacity, s | smallest in 10 s / "
        "capacity | / floor |\n|---|--:|--:|--:|--:|--:|--:|");
    for (int i = 0; i < n; i++)
        if (table_row(path[i])) return fprintf(stderr, "%s\n", remat_last_error()), 1;
    return 0;
}

int main(int argc, char **argv) {
    if (argc > 1 && strchr(argv[1], '.')) return tables(argc - 1, argv + 1);
    int seeds = argc > 1 ? atoi(argv[1]) : 5;
    int64_t most = argc > 2 ? atoll(argv[2]) : 100000;
    puts("| chain | plan | stages | buffers | worst block / floor | at the floor | worst ms "
         "|\n|---|---|--:|--:|--:|--:|--:|");
    for (int64_t stages = 10; stages <= most; stages *= stages == 10 || stages == 300 || stages == 3000 ? 3 : 10)
        for (int c = 0; c < CHAINS; c++)
            for (int k = 0; k < PLANS; k++) row(c, k, stages, seeds);
    return 0;
}
