/* host.c: host memory. Small allocations come from the process's malloc. Large blocks come from the system, for two
 * reasons: the arena needs an unreadable page directly after its last byte, which no allocator offers, and a freed
 * block of several gigabytes should leave the process at once instead of staying in a cache. */
#include "memory/host.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <sys/resource.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#define HUGE_PAGE ((size_t)2 << 20)

/* ---- Counting and failure injection ------------------------------------------------------------- */

static _Atomic int64_t allocations;
static _Atomic int64_t until_failure; /* each allocation decrements it; the one that reaches 0 fails */

void rm_host_fail_at(int64_t n) { atomic_store(&until_failure, n > 0 ? n : 0); }
int64_t rm_host_allocations(void) { return atomic_load(&allocations); }

/* Counts one allocation. Returns true if this one has to fail. */
static bool must_fail(void) {
    atomic_fetch_add_explicit(&allocations, 1, memory_order_relaxed);
    int64_t left = atomic_load_explicit(&until_failure, memory_order_relaxed);
    while (left > 0) /* 0 stays 0, so that only one allocation fails; hence not a plain decrement */
        if (atomic_compare_exchange_weak(&until_failure, &left, left - 1)) return left == 1;
    return false;
}

/* ---- Small allocations -------------------------------------------------------------------------- */

/* Requests above PTRDIFF_MAX can never be met, and some allocators assert on them. */
static void *take_plain(size_t bytes) { return bytes > PTRDIFF_MAX ? NULL : malloc(bytes); }
static void *take_zeroed(size_t bytes) { return bytes > PTRDIFF_MAX ? NULL : calloc(1, bytes); }
static void *take_aligned(size_t bytes, size_t alignment) {
    void *pointer = NULL;
    if (alignment < sizeof(void *)) alignment = sizeof(void *);
    return bytes > PTRDIFF_MAX || posix_memalign(&pointer, alignment, bytes) ? NULL : pointer;
}
static void *resize(void *pointer, size_t bytes) { return bytes > PTRDIFF_MAX ? NULL : realloc(pointer, bytes); }

static size_t at_least_one(size_t bytes) { return bytes ? bytes : 1; }

void *rm_malloc(size_t bytes) { return must_fail() ? NULL : take_plain(at_least_one(bytes)); }

void *rm_calloc(size_t count, size_t bytes) {
    size_t total;
    if (must_fail() || __builtin_mul_overflow(count, bytes, &total)) return NULL;
    return take_zeroed(at_least_one(total));
}

void *rm_realloc(void *pointer, size_t bytes) {
    if (!pointer) return rm_malloc(bytes);
    return must_fail() ? NULL : resize(pointer, at_least_one(bytes));
}

void rm_free(void *pointer) { free(pointer); }

void *rm_shrink(void *pointer, size_t bytes) {
    void *moved = pointer ? resize(pointer, at_least_one(bytes)) : NULL;
    return moved ? moved : pointer;
}

bool rm_grow(void *array, int64_t *capacity, int64_t needed, size_t item_bytes) {
    if (needed <= *capacity) return true;
    int64_t larger = *capacity <= INT64_MAX / 2 && 2 * *capacity > needed ? 2 * *capacity : needed;
    if (larger < 16) larger = 16;
    size_t bytes;
    void *items;
    memcpy(&items, array, sizeof items); /* works for pointers of any type */
    if (__builtin_mul_overflow((size_t)larger, item_bytes, &bytes)) return false;
    items = rm_realloc(items, bytes);
    if (!items) return false;
    memcpy(array, &items, sizeof items);
    *capacity = larger;
    return true;
}

char *rm_strdup(const char *text) {
    size_t bytes = strlen(text) + 1;
    char *copy = rm_malloc(bytes);
    return copy ? memcpy(copy, text, bytes) : NULL;
}

/* ---- Large blocks ------------------------------------------------------------------------------- */

static size_t page_bytes(void) { return (size_t)sysconf(_SC_PAGESIZE); }

/* Rounds up to a power of two; 0 when that overflows. */
static size_t round_up(size_t bytes, size_t to) { return (bytes + to - 1) & ~(to - 1); }

/* Maps whole pages that start at a multiple of `alignment`: maps more than needed and unmaps both ends. */
static void *map_pages(size_t bytes, size_t alignment) {
    size_t page = page_bytes(), slack = alignment > page ? alignment - page : 0;
    if (bytes > PTRDIFF_MAX - slack) return NULL;
    char *start = mmap(NULL, bytes + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED) return NULL;
    char *block = (char *)round_up((size_t)start, alignment > page ? alignment : page);
    if (block > start) munmap(start, (size_t)(block - start));
    if (start + slack > block) munmap(block + bytes, (size_t)(start + slack - block));
    if (bytes >= 2 * HUGE_PAGE) (void)madvise(block, bytes, MADV_HUGEPAGE); /* a hint: a system may lack huge pages */
    return block;
}

void *rm_block_alloc(size_t bytes, size_t alignment) {
    if (must_fail() || bytes > PTRDIFF_MAX) return NULL;
    if (bytes < RM_BLOCK_MAPPED) return take_aligned(at_least_one(bytes), alignment);
    return map_pages(round_up(bytes, page_bytes()), alignment > HUGE_PAGE ? alignment : HUGE_PAGE);
}

void rm_block_free(void *block, size_t bytes) {
    if (!block) return;
    if (bytes < RM_BLOCK_MAPPED)
        free(block);
    else
        munmap(block, round_up(bytes, page_bytes()));
}

/*   | pages, starting at a huge page                  | guard |
 *   |<- less than a page ->|<- bytes, rounded to 64 ->|       |
 *                          ^ the block                        */
void *rm_guarded_alloc(size_t bytes) {
    size_t page = page_bytes();
    if (must_fail() || bytes > PTRDIFF_MAX - 2 * page) return NULL;
    size_t inside = round_up(at_least_one(bytes), page);
    char *pages = map_pages(inside + page, inside >= HUGE_PAGE ? HUGE_PAGE : page);
    if (!pages) return NULL;
    if (mprotect(pages + inside, page, PROT_NONE)) {
        munmap(pages, inside + page);
        return NULL;
    }
    return pages + inside - round_up(at_least_one(bytes), 64);
}

void rm_guarded_free(void *block, size_t bytes) {
    if (!block) return;
    size_t page = page_bytes(), inside = round_up(at_least_one(bytes), page);
    munmap((char *)block + round_up(at_least_one(bytes), 64) - inside, inside + page);
}

/* ---- Address space ------------------------------------------------------------------------------ */

static uint64_t mapped_bytes(void) {
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file && fscanf(file, "%lu", &pages) != 1) pages = 0;
    if (file) fclose(file);
    return (uint64_t)pages * page_bytes();
}

bool rm_host_address_space(uint64_t *limit_bytes, uint64_t *used_bytes) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_AS, &limit) || limit.rlim_cur == RLIM_INFINITY) return false;
    *limit_bytes = limit.rlim_cur;
    *used_bytes = mapped_bytes();
    return true;
}

/* ---- Allocator statistics ----------------------------------------------------------------------- */

/* jemalloc's function if the program is linked to jemalloc, as `remat` is; otherwise NULL. */
int mallctl(const char *name, void *old, size_t *old_bytes, void *new, size_t new_bytes) __attribute__((weak));

static bool read_from_jemalloc(const char *name, void *value, size_t bytes) {
    return mallctl && !mallctl(name, value, &bytes, NULL, 0);
}

static char allocator[40] = "libc";

/* "jemalloc 5.3.0" out of "5.3.0-0-g54eaed1d8b56". */
static void name_allocator(void) {
    const char *version = "";
    if (read_from_jemalloc("version", &version, sizeof version))
        snprintf(allocator, sizeof allocator, "jemalloc %.*s", (int)strcspn(version, "-"), version);
}

const char *rm_host_allocator(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, name_allocator);
    return allocator;
}

/* Sanitizers replace the allocator. Then glibc's own malloc is first initialised in malloc_trim, which is not safe on
 * two threads at once: each takes itself for the owner of the main arena, and the second to finish aborts the
 * process. */
void rm_host_trim(void) {
    if (mallctl) {
        (void)mallctl("thread.tcache.flush", NULL, NULL, NULL, 0); /* freed small blocks keep whole pages from being purged */
        (void)mallctl("arena.4096.purge", NULL, NULL, NULL, 0);    /* 4096: all arenas */
        return;
    }
#if defined __GLIBC__ && !defined REMAT_SANITIZED
    (void)malloc_trim(0);
#endif
}

void rm_host_stats(uint64_t *allocated_bytes, uint64_t *resident_bytes) {
    uint64_t epoch = 1; /* jemalloc caches its statistics; writing the epoch refreshes them */
    size_t allocated = 0, resident = 0;
    if (mallctl) (void)mallctl("epoch", NULL, NULL, &epoch, sizeof epoch);
    if (!read_from_jemalloc("stats.allocated", &allocated, sizeof allocated)) allocated = 0;
    if (!read_from_jemalloc("stats.resident", &resident, sizeof resident)) resident = 0;
    *allocated_bytes = allocated;
    *resident_bytes = resident;
}
