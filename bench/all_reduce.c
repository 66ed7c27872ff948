/* all_reduce.c: the time of an all-reduce with each engine of dist/, compared with bare calls of Open MPI and Gloo.
 * bench/all_reduce.sh starts one process per rank. Every round times
 * every way once, so that other load on the machine affects all alike. It prints the best round and the median.
 *
 *     bench_all_reduce FILE [rounds, default 31]        FILE: through which the ranks meet
 *
 * Results: docs/notes/ranks.md. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "dist/group/group.h"
#ifdef REMAT_HAVE_MPI
#include <mpi.h>
#endif
#ifdef REMAT_HAVE_GLOO
#include "dist/group/gloo_shim.h"
#endif

enum { SIZES = 3, MOST_ROUNDS = 101 };
static const int64_t counts[SIZES] = {1, 1 << 16, 1 << 24}; /* f32: 4 B, 256 KiB, 64 MiB */
static const int calls[SIZES] = {300, 40, 1};               /* short rounds, so that some are undisturbed on a busy
                                                               machine */

static int rank, size;
static rm_group *local, *mpi, *gloo;
static float *shared, *private, *mapped;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void must(remat_status status) {
    if (!status) return;
    fprintf(stderr, "rank %d: %s\n", rank, remat_last_error());
    exit(1);
}

/* ---- The ways ---------------------------------------------------------------------------------------------------- */

static void reduce(rm_group *group, float *x, int64_t count) {
    must(rm_group_run(group, &(rm_collective){.kind = RM_ALL_REDUCE, .count = count, .in = x, .out = x}));
}
static void in_arena(int64_t count) { reduce(local, shared, count); }
static void in_mapped_pages(int64_t count) { reduce(local, mapped, count); }
static void copied(int64_t count) { reduce(local, private, count); }

#ifdef REMAT_HAVE_MPI
static void bare_mpi(int64_t count) {
    MPI_Allreduce(MPI_IN_PLACE, private, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}
static void by_mpi(int64_t count) { reduce(mpi, private, count); }
#endif

#ifdef REMAT_HAVE_GLOO
static rm_gloo *gloo_alone;
static void bare_gloo(int64_t count) {
    char why[RM_GLOO_WHY];
    if (!rm_gloo_all_reduce(gloo_alone, RM_GLOO_F32, private, (size_t)count, why)) {
        fprintf(stderr, "rank %d: %s\n", rank, why);
        exit(1);
    }
}
static void by_gloo(int64_t count) { reduce(gloo, private, count); }
#endif

typedef struct {
    const char *name;
    void (*run)(int64_t count);
} way;

static const way ways[] = {
    {"local, allocated in the arena", in_arena},
    {"local, the arena mapped over other pages", in_mapped_pages},
    {"local, copied in and out", copied},
#ifdef REMAT_HAVE_MPI
    {"MPI_Allreduce alone", bare_mpi},
    {"mpi: the same with fingerprints", by_mpi},
#endif
#ifdef REMAT_HAVE_GLOO
    {"Gloo alone", bare_gloo},
    {"gloo: the same with fingerprints", by_gloo},
#endif
};
enum { WAYS = sizeof ways / sizeof *ways };

/* ---- Measuring --------------------------------------------------------------------------------------------------- */

static double times[WAYS][SIZES][MOST_ROUNDS]; /* seconds a call */

/* Repeated sums grow without bound, so the numbers are reset to values small enough to stay finite. */
static void refill(int64_t count) {
    for (int64_t i = 0; i < count; i++) shared[i] = private[i] = mapped[i] = (float)(i % 1000 + rank) * 1e-20f;
}

static double time_of(const way *w, int s) {
    refill(counts[s]);
    must(rm_group_run(local, &(rm_collective){.kind = RM_BARRIER}));
    w->run(counts[s]);
    double start = now();
    for (int i = 0; i < calls[s]; i++) w->run(counts[s]);
    return (now() - start) / calls[s];
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print_time(double seconds, const char *end) {
    if (seconds < 1e-4)
        printf(" %.1f us%s", seconds * 1e6, end);
    else
        printf(" %.2f ms%s", seconds * 1e3, end);
}

static void print_table(int rounds) {
    printf("%d ranks, f32, %d rounds: the best, and the median\n\n", size, rounds);
    printf("| way | 4 B | 256 KiB | 64 MiB |\n|---|--:|--:|--:|\n");
    for (int w = 0; w < WAYS; w++) {
        printf("| %s |", ways[w].name);
        for (int s = 0; s < SIZES; s++) {
            qsort(times[w][s], (size_t)rounds, sizeof(double), by_value);
            print_time(times[w][s][0], ",");
            print_time(times[w][s][rounds / 2], " |");
        }
        printf("\n");
    }
}

/* ---- Starting ---------------------------------------------------------------------------------------------------- */

static rm_group *open_group(const char *engine, const char *name, rm_kv *store) {
    rm_group *group;
    must(rm_group_open(&(rm_group_config){.engine = engine, .rank = rank, .size = size, .store = store, .name = name},
                       &group));
    return group;
}

#ifdef REMAT_HAVE_GLOO
static bool set_key(void *store, const char *key, const void *value, uint32_t bytes) {
    return !rm_kv_set(store, key, value, bytes);
}
static bool get_key(void *store, const char *key, void *value, uint32_t capacity, uint32_t *bytes) {
    return !rm_kv_get(store, key, value, capacity, bytes, 0);
}
static void open_gloo_alone(rm_kv *store) {
    char why[RM_GLOO_WHY];
    rm_gloo_config config = {.rank = rank,
                             .size = size,
                             .timeout_ms = 60000,
                             .connect_ms = 60000,
                             .address = "127.0.0.1",
                             .store = {.set = set_key, .get = get_key, .context = store}};
    if (rm_gloo_open(&config, &gloo_alone, why) && rm_gloo_meet(gloo_alone, &config, why)) return;
    fprintf(stderr, "rank %d: %s\n", rank, why);
    exit(1);
}
#endif

static void open_all(rm_kv *store) {
    local = open_group("local", "local", store);
#ifdef REMAT_HAVE_MPI
    mpi = open_group("mpi", "mpi", store);
#endif
#ifdef REMAT_HAVE_GLOO
    gloo = open_group("gloo", "gloo", store);
    open_gloo_alone(store);
#endif
    const size_t bytes = (size_t)counts[SIZES - 1] * sizeof(float);
    shared = rm_group_alloc(local, bytes);
    private = aligned_alloc(4096, bytes);
    mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!shared || !private || mapped == MAP_FAILED) exit(1);
    must(rm_group_map(local, mapped, bytes));
}

static void close_all(rm_kv *store) {
    rm_group_unmap(local, mapped);
#ifdef REMAT_HAVE_GLOO
    rm_gloo_close(gloo_alone);
#endif
    rm_group_close(gloo);
    rm_group_close(local);
    rm_group_close(mpi);
    free(private);
    rm_kv_close(store);
}

static int number(const char *name, const char *other) {
    const char *text = getenv(name);
    if (!text) text = getenv(other);
    return text ? atoi(text) : -1;
}

int main(int argc, char **argv) {
    int rounds = argc > 2 ? atoi(argv[2]) : 31;
    rm_kv *store;
    rank = number("OMPI_COMM_WORLD_RANK", "RANK");
    size = number("OMPI_COMM_WORLD_SIZE", "WORLD_SIZE");
    if (argc < 2 || rank < 0 || rounds < 1 || rounds > MOST_ROUNDS) {
        fprintf(stderr, "bench_all_reduce FILE [rounds]: started by bench/all_reduce.sh\n");
        return 2;
    }
    must(rm_kv_open(&(rm_kv_config){.path = argv[1], .rank = rank, .size = size}, &store));
    open_all(store);
    for (int round = -1; round < rounds; round++) /* the first warms up */
        for (int s = 0; s < SIZES; s++)
            for (int w = 0; w < WAYS; w++) {
                double t = time_of(&ways[w], s);
                if (round >= 0) times[w][s][round] = t;
            }
    if (rank == 0) print_table(rounds);
    close_all(store);
    return 0;
}
