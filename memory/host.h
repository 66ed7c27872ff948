/* host.h: host memory, through malloc. The library contains no allocator; the program `remat` is linked to jemalloc if
 * the build found it. Every allocation of the library goes through these functions, so that tests can count allocations
 * and make one fail. */
#ifndef RM_HOST_H
#define RM_HOST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void *rm_malloc(size_t bytes);               /* NULL if out of memory; bytes 0 gives a unique pointer */
void *rm_calloc(size_t count, size_t bytes); /* NULL also when the product overflows */
void *rm_realloc(void *pointer, size_t bytes);
void rm_free(void *pointer); /* NULL allowed */
/* bytes <= the old size; never fails: at worst the block keeps its size */
void *rm_shrink(void *pointer, size_t bytes);
char *rm_strdup(const char *text);

/* Makes room for `needed` items in a growing array and at least doubles it when it grows. `array` is the address of the
 * pointer to its items, which is NULL while *capacity is 0. Returns false if out of memory; then array and capacity are
 * unchanged.
 *
 *     if (!rm_grow(&list->item, &list->capacity, list->count + 1, sizeof *list->item)) return false;
 *     list->item[list->count++] = item;
 */
bool rm_grow(void *array, int64_t *capacity, int64_t needed, size_t item_bytes);

/* One large block, aligned to `alignment` (a power of two); NULL if out of memory. Its contents are undefined. Blocks
 * of at least RM_BLOCK_MAPPED bytes are mapped directly from the system, with huge pages where possible, and are
 * unmapped as soon as they are freed. Smaller ones come from the allocator. */
#define RM_BLOCK_MAPPED ((size_t)1 << 20)
void *rm_block_alloc(size_t bytes, size_t alignment);
void rm_block_free(void *block, size_t bytes);

/* A zero-filled block of any size whose end (bytes rounded up to 64) touches an unreadable page. Because the end is
 * exact, the start is only aligned to 64 bytes. Always mapped, since an allocator offers no such page. */
void *rm_guarded_alloc(size_t bytes);
void rm_guarded_free(void *block, size_t bytes);

/* Returns freed pages that the allocator caches to the system. */
void rm_host_trim(void);

/* The limit on address space (ulimit -v) and the part in use. Returns false if there is no limit. */
bool rm_host_address_space(uint64_t *limit_bytes, uint64_t *used_bytes);

const char *rm_host_allocator(void);           /* "jemalloc 5.3.0", "libc" */
void rm_host_stats(uint64_t *allocated_bytes, uint64_t *resident_bytes); /* 0 and 0 where unknown */

/* For tests: makes only the n-th allocation from now fail (1 is the next; 0: none). rm_host_allocations returns the
 * number of allocations (of any kind above) that this process has made. */
void rm_host_fail_at(int64_t n);
int64_t rm_host_allocations(void);

#endif
