/* start.c: the start-up time of a job. `remat launch` starts it in place of `remat train`: it loads the same libraries,
 * finds its rank, and opens the store and the group; rank 0 prints when the last rank reached each of these points.
 * ranks.py runs it and passes the start time of the launcher in REMAT_BENCH_START (CLOCK_MONOTONIC, in ns).
 *
 *     REMAT_BENCH_START=NS remat launch --nproc-per-node=8 --no-prefix -- bench_start [local|gloo|mpi] */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "dist/group/group.h"
#include "dist/store/rendezvous.h"
#include "engine/remat.h"

enum { MAIN, STORE, GROUP, CPU, POINTS, MOST_RANKS = 1024 };

static double now_ms(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

static void must(remat_status status) {
    if (!status) return;
    fprintf(stderr, "bench_start: %s\n", remat_last_error());
    exit(1);
}

static void print_last(const double (*all)[POINTS], int ranks, const char *engine, double start) {
    double last[POINTS] = {0};
    for (int r = 0; r < ranks; r++)
        for (int p = 0; p < POINTS; p++)
            if (all[r][p] > last[p]) last[p] = all[r][p];
    printf("{\"ranks\":%d,\"engine\":\"%s\",\"main_ms\":%.3f,\"store_ms\":%.3f,\"group_ms\":%.3f,\"cpu_ms\":%.3f}\n",
           ranks, engine, last[MAIN] - start, last[STORE] - start, last[GROUP] - start, last[CPU]);
}

int main(int argc, char **argv) {
    static double all[MOST_RANKS][POINTS];
    double mine[POINTS] = {[MAIN] = now_ms(CLOCK_MONOTONIC)};
    const char *text = getenv("REMAT_BENCH_START");
    double start = text ? 1e-6 * atof(text) : mine[MAIN];
    rm_rendezvous where;
    rm_kv *store = NULL;
    rm_group *group;
    remat_graph *graph; /* unused; it links the program to the libraries that remat loads */
    must(remat_graph_create(&graph));
    remat_graph_free(graph);
    must(rm_rendezvous_resolve(&(rm_rendezvous_flags){.world_size = -1, .rank = -1, .local_rank = -1},
                               rm_environment_of_process, NULL, &where));
    if (where.size > MOST_RANKS) return 2;
    must(rm_rendezvous_store(&where, 0, NULL, NULL, &store));
    mine[STORE] = now_ms(CLOCK_MONOTONIC);
    rm_group_config config = {
        .engine = argc > 1 ? argv[1] : "local", .rank = where.rank, .size = where.size, .store = store};
    must(rm_group_open(&config, &group));
    mine[GROUP] = now_ms(CLOCK_MONOTONIC);
    mine[CPU] = now_ms(CLOCK_PROCESS_CPUTIME_ID);
    rm_collective what = {.kind = RM_ALL_GATHER, .wire = RM_WIRE_F64, .count = POINTS, .in = mine, .out = all};
    must(rm_group_run(group, &what));
    if (where.rank == 0) print_last((const double(*)[POINTS])all, where.size, rm_group_engine(group), start);
    rm_group_close(group);
    rm_kv_close(store);
    return 0;
}
