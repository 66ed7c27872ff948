/* interpose.h: counts the memory allocations of this process, from any library, between two moments. Include it
 * first, in one file of a test program. Main entry: interposed_now.
 *
 * Ordinarily the program defines malloc and its relatives itself and passes them on. Under a sanitizer, whose own
 * malloc must stay in charge, the sanitizer's hooks count instead. They do not see mmap, and they count six
 * allocations for each started thread, so set OPENBLAS_NUM_THREADS=1 on a busy machine, as ctest does. Under
 * ThreadSanitizer nothing is counted, because its OpenMP observer allocates at every parallel region. LLVM's libomp
 * is not counted either: some builds format a message at every loop and discard it. (gcc's runtime does not allocate
 * in loops.) */
#ifndef INTERPOSE_H
#define INTERPOSE_H

#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef struct {
    long calls;       /* allocations and frees */
    long outstanding; /* allocations minus frees */
} interposed;

static atomic_long interpose_calls, interpose_outstanding;

static interposed interposed_now(void) {
    return (interposed){atomic_load(&interpose_calls), atomic_load(&interpose_outstanding)};
}

static inline void interpose_count(int change) {
    atomic_fetch_add_explicit(&interpose_calls, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&interpose_outstanding, change, memory_order_relaxed);
}

#ifndef __has_feature
#define __has_feature(name) 0
#endif

#if defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer)

#define INTERPOSE_BLIND 1

#elif defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)

int __sanitizer_install_malloc_and_free_hooks(void (*)(const volatile void *, size_t), void (*)(const volatile void *));
static void interpose_malloc(const volatile void *p, size_t bytes) {
    (void)p, (void)bytes;
    interpose_count(1);
}
static void interpose_free(const volatile void *p) {
    (void)p;
    interpose_count(-1);
}
__attribute__((constructor)) static void interpose_install(void) {
    __sanitizer_install_malloc_and_free_hooks(interpose_malloc, interpose_free);
}

#else

/* Adds `change` to the outstanding allocations, on behalf of the code at `caller`. */
static void interpose_from(const void *caller, int change) {
    Dl_info library;
    if (dladdr(caller, &library) && library.dli_fname && strstr(library.dli_fname, "libomp")) return;
    interpose_count(change);
}

/* The next definition of a function, looked up at its first use. (glibc's dlsym does not allocate when it succeeds.) */
#define NEXT(name, change)                                                                                             \
    static __typeof__(&name) next;                                                                                     \
    if (!next) next = (__typeof__(&name))dlsym(RTLD_NEXT, #name);                                                      \
    interpose_from(__builtin_return_address(0), change)

void *malloc(size_t bytes);
void *calloc(size_t count, size_t bytes);
void *realloc(void *p, size_t bytes);
void free(void *p);
void *aligned_alloc(size_t alignment, size_t bytes);
void *memalign(size_t alignment, size_t bytes);
int posix_memalign(void **out, size_t alignment, size_t bytes);

void *malloc(size_t bytes) {
    NEXT(malloc, 1);
    return next(bytes);
}
void *calloc(size_t count, size_t bytes) {
    NEXT(calloc, 1);
    return next(count, bytes);
}
void *realloc(void *p, size_t bytes) {
    NEXT(realloc, p ? 0 : 1);
    return next(p, bytes);
}
void free(void *p) {
    NEXT(free, p ? -1 : 0);
    next(p);
}
void *aligned_alloc(size_t alignment, size_t bytes) {
    NEXT(aligned_alloc, 1);
    return next(alignment, bytes);
}
void *memalign(size_t alignment, size_t bytes) {
    NEXT(memalign, 1);
    return next(alignment, bytes);
}
int posix_memalign(void **out, size_t alignment, size_t bytes) {
    NEXT(posix_memalign, 1);
    return next(out, alignment, bytes);
}
void *mmap(void *address, size_t bytes, int protection, int flags, int file, off_t offset) {
    interpose_from(__builtin_return_address(0), 1);
    return (void *)syscall(SYS_mmap, address, bytes, protection, flags, file, offset);
}
int munmap(void *address, size_t bytes) {
    interpose_from(__builtin_return_address(0), -1);
    return (int)syscall(SYS_munmap, address, bytes);
}

#endif
#endif
