/* openblas.c: opens OpenBLAS, reserves its memory, sets its number of threads and calls it (openblas.h).
 *
 * If OpenBLAS cannot map memory, it retries for ever. So this file computes what OpenBLAS will map and checks in
 * advance that it is available. */
#define _GNU_SOURCE
#include "ops/math/openblas.h"

#include <dlfcn.h>
#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "engine/shared_library.h"
#include "memory/host.h"

static const rm_shared_library library = {.name = "libopenblas.so.0",
                                          .folders = RM_OPENBLAS_FOLDER,
                                          .variable = "REMAT_OPENBLAS_LIBRARY",
                                          .needs = "the device \"cpu\" of this Remat needs",
                                          .install = "OpenBLAS",
                                          .oldest = "OpenBLAS 0.3"};

/* Declared here, because a machine that builds Remat may lack OpenBLAS's headers. Builds for 64-bit indices (ILP64) have
 * int64_t where others have int. */
enum { ROW_MAJOR = 101, NOT_TRANSPOSED = 111, TRANSPOSED = 112 };
typedef void sgemm_32(int order, int a_is, int b_is, int m, int n, int k, float alpha, const float *a, int lda,
                      const float *b, int ldb, float beta, float *c, int ldc);
typedef void sgemm_64(int order, int a_is, int b_is, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
                      int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc);
static sgemm_32 *multiply_32;
static sgemm_64 *multiply_64; /* NULL: indices have 32 bits */
static char *(*get_config)(void);
static int (*get_threads)(void);
static void (*set_threads)(int);
static void *(*take_buffer)(int position); /* OpenBLAS's own allocator; NULL in builds that hide it */
static void (*give_buffer)(void *buffer);

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

#define MIB ((uint64_t)1 << 20)
enum {
    BUFFER_MIB = 129,  /* 32 << 22 bytes plus alignment, on x86-64 and arm64 */
    LIBRARY_MIB = 48,  /* including the Fortran library */
    REST_MIB = 64,     /* for later needs: the session itself and the allocator */
    MOST_THREADS = 64, /* limit in Debian's build */
};

static uint64_t stack_bytes(void) {
    pthread_attr_t attributes;
    size_t bytes = 0;
    if (!pthread_attr_init(&attributes)) {
        pthread_attr_getstacksize(&attributes, &bytes);
        pthread_attr_destroy(&attributes);
    }
    return bytes;
}

/* The number of threads that OpenBLAS has after it is loaded, including the caller. */
static uint64_t own_threads(void) {
    static const char *const names[] = {"OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS"};
    cpu_set_t set;
    CPU_ZERO(&set);
    unsigned long most = sched_getaffinity(0, sizeof set, &set) ? 1 : (unsigned long)CPU_COUNT(&set);
    if (most > MOST_THREADS) most = MOST_THREADS;
    for (int i = 0; i < 3; i++) {
        const char *value = getenv(names[i]);
        unsigned long said = value ? strtoul(value, NULL, 10) : 0;
        if (said) return said < most ? said : most;
    }
    return most;
}

/* When it is loaded, version 0.3.29 takes a buffer for each of its threads, including the caller; 0.3.21 does not. The
 * version is not known in advance. */
static uint64_t room_to_load(uint64_t stack) {
    return LIBRARY_MIB * MIB + own_threads() * BUFFER_MIB * MIB + (own_threads() - 1) * stack;
}

static remat_status need_address_space(uint64_t bytes, int threads) {
    uint64_t limit, used;
    if (!rm_host_address_space(&limit, &used)) return REMAT_OK;
    unsigned long long enough = (used + bytes) / MIB + 1;
    REQUIRE(
        limit / MIB >= enough, MEMORY,
        "the address space is limited to %llu MiB (ulimit -v), but with %d thread%s the matrix library needs %llu MiB; "
        "raise the limit (ulimit -v %llu)%s. To limit Remat's memory, use a memory budget instead",
        (unsigned long long)(limit / MIB), threads, threads == 1 ? "" : "s", enough, enough * 1024,
        threads > 1 ? " or use fewer threads" : "");
    return REMAT_OK;
}

/* Whether one buffer can be mapped now. The limit on address space is not the only one. */
static bool has_room(void) {
    void *room = mmap(NULL, BUFFER_MIB * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return room != MAP_FAILED && !munmap(room, BUFFER_MIB * MIB);
}

/* OpenBLAS maps a new pack buffer whenever there are more concurrent callers than ever before, which may happen by
 * chance in any step. So this function takes as many buffers as there can be callers, and gives them back; OpenBLAS
 * keeps them. */
static remat_status take_buffers(int n) {
    enum { MOST_BUFFERS = 64 };
    void *buffer[MOST_BUFFERS];
    int taken = 0;
    if (!take_buffer || !give_buffer) return REMAT_OK;
    if (n > MOST_BUFFERS) n = MOST_BUFFERS;
    for (; taken < n && has_room(); taken++) buffer[taken] = take_buffer(0);
    for (int i = 0; i < taken; i++) give_buffer(buffer[i]);
    REQUIRE(taken == n, MEMORY, "out of memory for the matrix library: %d threads need %d MiB; use fewer threads", n,
            n * BUFFER_MIB);
    return REMAT_OK;
}

/* ---- Opening ----------------------------------------------------------------------------------------------------- */

/* Some builds, such as PyPI's scipy-openblas32 and scipy-openblas64, have all names between a prefix and a suffix. */
typedef struct {
    const char *prefix, *suffix;
} spelling;

static void *spelled(void *handle, const spelling *s, const char *name) {
    char symbol[80];
    snprintf(symbol, sizeof symbol, "%s%s%s", s->prefix, name, s->suffix);
    return dlsym(handle, symbol);
}

static spelling find_spelling(void *handle) {
    static const spelling known[] = {{"", ""}, {"scipy_", ""}, {"", "64_"}, {"scipy_", "64_"}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (spelled(handle, &known[i], "cblas_sgemm")) return known[i];
    return known[0];
}

static remat_status find(void *handle, const spelling *s, const char *name, void *function) {
    char symbol[80];
    snprintf(symbol, sizeof symbol, "%s%s%s", s->prefix, name, s->suffix);
    return rm_shared_library_find(&library, handle, symbol, function);
}

static remat_status open_library(void) {
    void *handle = NULL, *multiply = NULL;
    TRY(rm_shared_library_open(&library, &handle));
    spelling s = find_spelling(handle);
    TRY(find(handle, &s, "cblas_sgemm", &multiply));
    TRY(find(handle, &s, "openblas_get_config", &get_config));
    TRY(find(handle, &s, "openblas_get_num_threads", &get_threads));
    TRY(find(handle, &s, "openblas_set_num_threads", &set_threads));
    *(void **)&take_buffer = spelled(handle, &s, "blas_memory_alloc");
    *(void **)&give_buffer = spelled(handle, &s, "blas_memory_free");
    bool wide = *s.suffix || strstr(get_config(), "USE64BITINT");
    *(void **)(wide ? (void *)&multiply_64 : (void *)&multiply_32) = multiply;
    return REMAT_OK;
}

static bool is_loaded(void) {
    void *handle = dlopen(library.name, RTLD_NOW | RTLD_NOLOAD);
    if (handle) dlclose(handle);
    return handle;
}

static atomic_int prepared; /* threads; 0: not open */
static atomic_bool absent;  /* not on this machine, and this build can do without */

/* A build that found no OpenBLAS uses one that the machine has, and one that the variable names must be there. */
static remat_status open_if_there(void) {
    remat_status status = open_library();
    if (status != REMAT_MISSING || RM_OPENBLAS_EXPECTED || rm_shared_library_is_named(&library)) return status;
    atomic_store(&absent, true);
    return REMAT_OK;
}

static remat_status prepare(int threads) {
    int before = atomic_load(&prepared);
    if (before >= threads || atomic_load(&absent)) return REMAT_OK;
    uint64_t stack = stack_bytes(), room = REST_MIB * MIB + (uint64_t)(threads - 1) * stack;
    room += (uint64_t)(threads - before) * BUFFER_MIB * MIB;
    if (!before && !is_loaded()) room += room_to_load(stack);
    TRY(need_address_space(room, threads));
    if (!before) TRY(open_if_there());
    if (atomic_load(&absent)) return REMAT_OK;
    TRY(take_buffers(threads));
    atomic_store_explicit(&prepared, threads, memory_order_release);
    return REMAT_OK;
}

remat_status rm_openblas_prepare(int threads) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    if (atomic_load_explicit(&prepared, memory_order_acquire) >= threads || atomic_load(&absent)) return REMAT_OK;
    pthread_mutex_lock(&lock);
    remat_status status = prepare(threads);
    pthread_mutex_unlock(&lock);
    return status;
}

bool rm_openblas_is_open(void) { return atomic_load_explicit(&prepared, memory_order_acquire); }
const char *rm_openblas_config(void) { return get_config(); }

void rm_openblas_sgemm(bool a_transposed, bool b_transposed, int64_t m, int64_t n, int64_t k, float alpha,
                       const float *a, int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc) {
    int a_is = a_transposed ? TRANSPOSED : NOT_TRANSPOSED, b_is = b_transposed ? TRANSPOSED : NOT_TRANSPOSED;
    if (multiply_64)
        multiply_64(ROW_MAJOR, a_is, b_is, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
    else
        multiply_32(ROW_MAJOR, a_is, b_is, (int)m, (int)n, (int)k, alpha, a, (int)lda, b, (int)ldb, beta, c, (int)ldc);
}

/* ---- Threads ----------------------------------------------------------------------------------------------------- */

/* The number of OpenBLAS threads is global to the program, so it is set to one only while Remat computes products, and
 * then restored. OpenBLAS's OpenMP build also sets OpenMP's number of threads. */
static void set_threads_of_blas(int n) {
    int of_openmp = omp_get_max_threads();
    set_threads(n);
    if (omp_get_max_threads() != of_openmp) omp_set_num_threads(of_openmp);
}

static pthread_mutex_t inside_lock = PTHREAD_MUTEX_INITIALIZER;
static int inside, of_program;

void rm_openblas_begin(void) {
    pthread_mutex_lock(&inside_lock);
    if (inside++ == 0 && (of_program = get_threads()) != 1) set_threads_of_blas(1);
    pthread_mutex_unlock(&inside_lock);
}

void rm_openblas_end(void) {
    pthread_mutex_lock(&inside_lock);
    if (--inside == 0 && of_program != 1) set_threads_of_blas(of_program);
    pthread_mutex_unlock(&inside_lock);
}
