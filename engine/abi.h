/* abi.h: structs of programs that were compiled with another remat.h: shorter, where theirs was older, or longer. What theirs has
 * not is zero; docs/promises.md says what may change in a struct, and what not. */
#ifndef RM_ABI_H
#define RM_ABI_H

#include "engine/status.h"

/* Copies a struct that a program filled. INVALID where bytes are set that ours has not: `type` is its name. */
remat_status rm_take(void *to, size_t to_bytes, const void *from, size_t from_bytes, const char *type);

/* Copies a struct to a program; nothing where it has no place for one. */
void rm_give(void *to, size_t to_bytes, const void *from, size_t from_bytes);

/* `count` structs of the C library's memory, moved to the distance at which the program has them. MEMORY: as they were. */
remat_status rm_give_list(void **list, int64_t count, size_t bytes, size_t their_bytes);

#endif
