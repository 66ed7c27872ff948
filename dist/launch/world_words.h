/* world_words.h: the lines between a process and the host of the world. Private to world*.c. */
#ifndef RM_WORLD_WORDS_H
#define RM_WORLD_WORDS_H

#include <netdb.h>

#include "dist/store/store_kind.h"

enum { RM_WORLD_LINE = 512 };
#define RM_WORLD_HELLO "remat-world-3"

typedef struct {
    int64_t generation, rank, size, local_rank, local_size, hosts;
    int32_t port; /* of rank 0's store */
    char host[64], job[64];
} rm_place;

/* One line, with its end, of at most RM_WORLD_LINE bytes. */
void rm_world_write_place(const rm_place *place, char *line);
bool rm_world_read_place(const char *line, rm_place *out);

void rm_world_hex(const uint8_t *data, size_t bytes, char *text); /* 2 * bytes + 1 characters */
bool rm_world_unhex(const char *text, uint8_t *data, size_t bytes);

#endif
