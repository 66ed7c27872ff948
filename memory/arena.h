/* arena.h: the one block of memory that a session uses. The plan fixes its size before anything runs, and place.h
 * decides the offsets inside it. The arena only holds the memory, records how much of it is really used, and guards its
 * end.
 *
 *   |-- resident: parameters | gradients | ... --|-- activations: placed buffers --|-- guard page --| */
#ifndef RM_ARENA_H
#define RM_ARENA_H

#include "engine/status.h"

typedef struct rm_arena rm_arena;

/* Allocates a zero-filled block. The page after it is unreadable, so that a write past the end crashes instead of
 * corrupting data. MEMORY: the message says how many bytes were requested and how many the machine has. */
remat_status rm_arena_create(uint64_t bytes, rm_arena **out);
void rm_arena_free(rm_arena *arena);

void *rm_arena_base(const rm_arena *arena);
uint64_t rm_arena_bytes(const rm_arena *arena);

/* Declares that [offset, offset+bytes) is in use from now on, and returns its address. Asserts that the range lies
 * inside the block. The high-water mark is the furthest byte ever claimed. */
void *rm_arena_claim(rm_arena *arena, uint64_t offset, uint64_t bytes);
uint64_t rm_arena_high_water(const rm_arena *arena);

/* For tests: the bytes that were really written, as opposed to claimed. rm_arena_paint fills [from, size) with a
 * pattern. rm_arena_written_until returns the end of the last 4 bytes (a float) that differ from the pattern, or `from`
 * if none do. Before the first paint it returns the size. */
void rm_arena_paint(rm_arena *arena, uint64_t from);
uint64_t rm_arena_written_until(const rm_arena *arena);

#endif
