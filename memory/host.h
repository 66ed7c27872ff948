/* host.h: host memory, through malloc: the library brings no allocator along, the program `remat` is linked to jemalloc where
 * that was found when building. Every allocation of the library goes through here, so that tests can count them and make one fail. */
#ifndef RM_HOST_H
#define RM_HOST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void *rm_malloc(size_t bytes);               /* NULL when there is none; bytes 0 gives a unique pointer */
void *rm_calloc(size_t count, size_t bytes); /* NULL also when the product overflows */
void *rm_realloc(void *pointer, size_t bytes);
void rm_free(void *pointer); /* NULL allowed */
void *rm_shrink(void *pointer, size_t bytes); /* to no more than it had; never fails: then it stays as large as it was */
char *rm_strdup(const char *text);

/* Room for `needed` items in an array that grows: at least doubles it where it has to. `array` is the address of the pointer to
 * its items, NULL while *capacity is 0. False: there is none, and array and capacity are as they were.
 *
 *     if (!rm_grow(&list->item, &list->capacity, list->count + 1, sizeof *list->item)) return false;
 *     list->item[list->count++] = item; */
bool rm_grow(void *array, int64_t *capacity, int64_t needed, size_t item_bytes);

/* One large block, aligned to `alignment` (a power of two); NULL when there is none. Contents are undefined. Blocks of
 * RM_BLOCK_MAPPED bytes and more are mapped straight from the system: they go back to it the moment they are freed, and
 * huge pages are asked for. Smaller ones come from the allocator. */
#define RM_BLOCK_MAPPED ((size_t)1 << 20)
void *rm_block_alloc(size_t bytes, size_t alignment);
void rm_block_free(void *block, size_t bytes);

/* A zero-filled block of any size whose end (bytes rounded up to 64) touches an unreadable page. That the END is exact
 * is the point, so the start is aligned to 64 bytes and no more. Always mapped: an allocator has no such page. */
void *rm_guarded_alloc(size_t bytes);
void rm_guarded_free(void *block, size_t bytes);

/* Gives pages that were freed, and that the allocator keeps for next time, back to the system now. */
void rm_host_trim(void);

/* The limit on address space (ulimit -v), and what of it is taken. False: there is none. */
bool rm_host_address_space(uint64_t *limit_bytes, uint64_t *used_bytes);

const char *rm_host_allocator(void);           /* "jemalloc 5.3.0", "libc" */
void rm_host_stats(uint64_t *allocated_bytes, uint64_t *resident_bytes); /* 0 and 0 where unknown */

/* For tests: the n-th allocation from now (1 is the next) and only that one fails; 0: none. And how many allocations
 * (of any kind above) this process has made so far. */
void rm_host_fail_at(int64_t n);
int64_t rm_host_allocations(void);

#endif
