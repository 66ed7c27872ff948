/* interpose.h: counts what this process asks of the C library for memory, from any library, between two moments. Include
 * it first in one file of a test program. Main entry: interposed_now.
 *
 * Ordinarily the program defines malloc and its relatives itself and passes them on. Under a sanitizer, whose own malloc
 * must stay in charge, the sanitizer's hooks count instead (mmap they do not see; a thread that starts is seen to allocate
 * six times, so run by hand on a busy machine with OPENBLAS_NUM_THREADS=1, as ctest does); under ThreadSanitizer nothing is
 * counted, because the observer of OpenMP that comes with it allocates at every parallel region. For the same reason LLVM's
 * libomp is left out: some builds of it format a text at every loop and throw it away. (gcc's runtime does nothing of the
 * kind.)
 */
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

/* `change` to what is outstanding, asked for by the code at `caller`. */
static void interpose_from(const void *caller, int change) {
    Dl_info library;
    if (dladdr(caller, &library) && library.dli_fname && strstr(library.dli_fname, "libomp")) return;
    interpose_count(change);
}

/* The next definition of a function, found at its first use (glibc's dlsym does not allocate when it succeeds). */
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
