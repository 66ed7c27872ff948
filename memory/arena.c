/* arena.c: the one block of memory that a session uses. The arena holds it, records how much of it is used and guards
 * its end. place.c decides the offsets inside it; rm_guarded_alloc (host.c) allocates it. */
#include "memory/arena.h"

#include <assert.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "memory/host.h"

struct rm_arena {
    unsigned char *base;
    uint64_t bytes, high_water;
    uint64_t painted_from; /* equal to `bytes` while nothing is painted */
};

/* The machine's total memory, not what is free now: the system can drop caches to make room, but it cannot grow. */
static uint64_t machine_bytes(void) {
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    return pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : UINT64_MAX;
}

static remat_status too_large(uint64_t bytes) {
    double mib = 1.0 / (1 << 20);
    uint64_t limit, used, rest = 32 << 20; /* rest: address space left for later allocations */
    if (rm_host_address_space(&limit, &used) && limit < used + bytes + rest)
        FAIL(MEMORY,
             "the step needs one block of %.1f MiB, but the address space is limited to %.1f MiB (ulimit -v); raise "
             "the limit to %.0f MiB (ulimit -v %llu), or ask for more segments",
             (double)bytes * mib, (double)limit * mib, ceil((double)(used + bytes + rest) * mib),
             (unsigned long long)ceil((double)(used + bytes + rest) * mib) * 1024);
    FAIL(MEMORY,
         "the step needs one block of %.1f MiB (%llu bytes), but this machine, with %.1f MiB of memory, cannot provide "
         "it; ask for more segments, or make the batch or the network smaller",
         (double)bytes * mib, (unsigned long long)bytes, (double)machine_bytes() * mib);
}

remat_status rm_arena_create(uint64_t bytes, rm_arena **out) {
    *out = NULL;
    /* The system hands out more address space than it has memory and kills the process later. An error now is
     * better. */
    if (bytes > machine_bytes()) return too_large(bytes);
    rm_arena *arena = rm_calloc(1, sizeof *arena);
    REQUIRE(arena, MEMORY, "out of host memory (%zu bytes for the arena's record)", sizeof *arena);
    arena->base = rm_guarded_alloc(bytes);
    if (!arena->base) {
        rm_free(arena);
        return too_large(bytes);
    }
    arena->bytes = arena->painted_from = bytes;
    *out = arena;
    return REMAT_OK;
}

void rm_arena_free(rm_arena *arena) {
    if (!arena) return;
    rm_guarded_free(arena->base, arena->bytes);
    rm_free(arena);
}

void *rm_arena_base(const rm_arena *arena) { return arena->base; }
uint64_t rm_arena_bytes(const rm_arena *arena) { return arena->bytes; }
uint64_t rm_arena_high_water(const rm_arena *arena) { return arena->high_water; }

void *rm_arena_claim(rm_arena *arena, uint64_t offset, uint64_t bytes) {
    assert(offset <= arena->bytes && bytes <= arena->bytes - offset);
    if (offset + bytes > arena->high_water) arena->high_water = offset + bytes;
    return arena->base + offset;
}

/* ---- Paint -------------------------------------------------------------------------------------- */

/* A word that depends on its position, so that neither a constant fill nor real data looks like a run of them. */
static uint32_t paint_at(uint64_t word) {
    uint32_t x = (uint32_t)word * 0x9E3779B1u + (uint32_t)(word >> 32) + 0x7F4A7C15u;
    x ^= x >> 15;
    x *= 0x85EBCA77u;
    return x ^ x >> 13;
}

void rm_arena_paint(rm_arena *arena, uint64_t from) {
    uint64_t word = (from + 3) / 4, end = arena->bytes / 4;
    arena->painted_from = word < end ? word * 4 : arena->bytes;
    for (; word < end; word++) {
        uint32_t paint = paint_at(word);
        memcpy(arena->base + word * 4, &paint, 4);
    }
}

uint64_t rm_arena_written_until(const rm_arena *arena) {
    uint64_t first = arena->painted_from / 4, word = arena->bytes / 4;
    for (; word > first; word--) {
        uint32_t found, paint = paint_at(word - 1);
        memcpy(&found, arena->base + (word - 1) * 4, 4);
        if (found != paint) return word * 4;
    }
    return arena->painted_from;
}
