/* arena.h: the one block a session uses. Its size is fixed by the plan before anything runs; offsets inside it are
 * decided by place.h. The arena only holds the memory, watches how far it is really used, and guards its end.
 *
 *   |-- resident: parameters | gradients | ... --|-- activations: placed buffers --|-- guard page --|
 */
#ifndef RM_ARENA_H
#define RM_ARENA_H

#include "engine/status.h"

typedef struct rm_arena rm_arena;

/* MEMORY says how many bytes were wanted and what the machine has. Zero-filled. The page after the block is
 * unreadable, so running over the end is a crash, not a wrong number. */
remat_status rm_arena_create(uint64_t bytes, rm_arena **out);
void rm_arena_free(rm_arena *arena);

void *rm_arena_base(const rm_arena *arena);
uint64_t rm_arena_bytes(const rm_arena *arena);

/* Says that [offset, offset+bytes) is in use from now on, and returns its address; asserts that it is inside. The
 * high-water mark is the furthest byte ever claimed. */
void *rm_arena_claim(rm_arena *arena, uint64_t offset, uint64_t bytes);
uint64_t rm_arena_high_water(const rm_arena *arena);

/* What really was written, in contrast to the claims above; for tests. rm_arena_paint fills [from, size) with a
 * pattern; rm_arena_written_until returns the end of the last 4 bytes (a float) that differ from it, and `from` when
 * none do. Before the first paint it returns the size. */
void rm_arena_paint(rm_arena *arena, uint64_t from);
uint64_t rm_arena_written_until(const rm_arena *arena);

#endif
