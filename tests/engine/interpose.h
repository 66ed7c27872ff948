/* interpose.h: counts what this process asks of the C library for memory, from any library, between two moments. Include
 * it in one file of a test program. Main entry: interposed_calls.
 *
 * Ordinarily the program defines malloc and its relatives itself and passes them on. Under a sanitizer, whose own malloc
 * must stay in charge, the sanitizer's hooks count instead (mmap is counted either way). */
#ifndef INTERPOSE_H
#define INTERPOSE_H

#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define INTERPOSE_BY_HOOK 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define INTERPOSE_BY_HOOK 1
#endif
#endif

static atomic_long interposed;

/* malloc, calloc, realloc, free, aligned allocations, mmap and munmap so far. */
static long interposed_calls(void) { return atomic_load(&interposed); }
static void interpose_count(void) { atomic_fetch_add_explicit(&interposed, 1, memory_order_relaxed); }

#ifdef INTERPOSE_BY_HOOK

int __sanitizer_install_malloc_and_free_hooks(void (*)(const volatile void *, size_t), void (*)(const volatile void *));
static void count_malloc(const volatile void *p, size_t bytes) { (void)p, (void)bytes, interpose_count(); }
static void count_free(const volatile void *p) { (void)p, interpose_count(); }
__attribute__((constructor)) static void interpose_install(void) {
    __sanitizer_install_malloc_and_free_hooks(count_malloc, count_free);
}

#else

void *mmap(void *address, size_t bytes, int protection, int flags, int file, off_t offset) {
    interpose_count();
    return (void *)syscall(SYS_mmap, address, bytes, protection, flags, file, offset);
}
int munmap(void *address, size_t bytes) {
    interpose_count();
    return (int)syscall(SYS_munmap, address, bytes);
}

/* The next definition of a function, found at its first use (glibc's dlsym does not allocate when it succeeds). */
#define NEXT(name)                                                                                                     \
    static __typeof__(&name) next;                                                                                     \
    if (!next) next = (__typeof__(&name))dlsym(RTLD_NEXT, #name);                                                      \
    interpose_count()

void *aligned_alloc(size_t alignment, size_t bytes);
void *memalign(size_t alignment, size_t bytes);
int posix_memalign(void **out, size_t alignment, size_t bytes);

void *malloc(size_t bytes) {
    NEXT(malloc);
    return next(bytes);
}
void *calloc(size_t count, size_t bytes) {
    NEXT(calloc);
    return next(count, bytes);
}
void *realloc(void *p, size_t bytes) {
    NEXT(realloc);
    return next(p, bytes);
}
void free(void *p) {
    NEXT(free);
    next(p);
}
void *aligned_alloc(size_t alignment, size_t bytes) {
    NEXT(aligned_alloc);
    return next(alignment, bytes);
}
void *memalign(size_t alignment, size_t bytes) {
    NEXT(memalign);
    return next(alignment, bytes);
}
int posix_memalign(void **out, size_t alignment, size_t bytes) {
    NEXT(posix_memalign);
    return next(out, alignment, bytes);
}

#endif
#endif
