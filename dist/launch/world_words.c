/* world_words.c: see world_words.h. */
#include "dist/launch/world_words.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define NUMBERS "%" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %" PRId32
#define NUMBERS_IN "%" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd32

void rm_world_write_place(const rm_place *p, char *line) {
    snprintf(line, RM_WORLD_LINE, "world " NUMBERS " %s %s\n", p->generation, p->rank, p->size, p->local_rank,
             p->local_size, p->hosts, p->port, p->host, p->job);
}

bool rm_world_read_place(const char *line, rm_place *p) {
    return sscanf(line, "world " NUMBERS_IN " %63s %63s", &p->generation, &p->rank, &p->size, &p->local_rank,
                  &p->local_size, &p->hosts, &p->port, p->host, p->job) == 9;
}

void rm_world_hex(const uint8_t *data, size_t bytes, char *text) {
    for (size_t i = 0; i < bytes; i++) snprintf(text + 2 * i, 3, "%02x", data[i]);
}

bool rm_world_unhex(const char *text, uint8_t *data, size_t bytes) {
    if (strlen(text) != 2 * bytes) return false;
    for (size_t i = 0; i < bytes; i++)
        if (sscanf(text + 2 * i, "%2hhx", &data[i]) != 1) return false;
    return true;
}
