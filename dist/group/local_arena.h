/* local_arena.h: the memory that the ranks of one host share. It contains each rank's presence and current collective,
 * blocks through which copies pass, and a region for each rank in which buffers are allocated, so that they need no
 * copies at all. It is a memfd: it leaves no name behind and needs no space in /dev/shm.
 *
 *   | head | slot 0 | slot 1 | ... | eager, 2 per rank | stage per rank | sums | rings | region 0 | region 1 | ...
 *
 * Offsets into it mean the same on all ranks; addresses do not. */
#ifndef RM_LOCAL_ARENA_H
#define RM_LOCAL_ARENA_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "dist/group/fingerprint.h"

#define RM_EAGER_BYTES (8u << 10)   /* data up to this size are published together with the fingerprint */
#define RM_STAGE_BYTES (256u << 10) /* larger copies are cut into parts of this size, which fits in a cache */
#define RM_RING_BYTES RM_MESSAGE_ROOM /* of messages from one rank to another that have not been received */
#define RM_HOST_TEXT 64

/* What a rank publishes when it arrives at a collective. */
typedef struct {
    rm_fingerprint print;
    int64_t in_at, out_at; /* offsets of its buffers in the arena; -1: outside it */
} rm_said;

typedef enum { RM_ABSENT, RM_HERE, RM_LEFT } rm_presence;

/* One rank's page. Only that rank writes to it, except for `sleepers`. */
typedef struct {
    _Alignas(128) _Atomic uint32_t arrived; /* number of meetings it has arrived at; a futex */
    _Atomic uint32_t sleepers;              /* number of ranks asleep on `arrived` */
    _Atomic int32_t core;                   /* processor it ran on when it last arrived */
    /* Indexed by the call's number modulo 2, because a rank may be one call ahead */
    _Alignas(128) rm_said said[2];
    _Alignas(128) _Atomic uint64_t doing; /* the call it is in; 0: none */
    _Atomic uint64_t beat_ns;             /* time of its last heartbeat, CLOCK_MONOTONIC */
    _Atomic uint32_t presence;            /* rm_presence */
    _Atomic int32_t waits_for;            /* 1 + the rank that it waits for; 0: none */
    _Atomic uint64_t waits_since_ns;
    int32_t pid, number; /* number: in messages (rm_group_number) */
    char host[RM_HOST_TEXT];
} rm_slot;

/* Messages from one rank to another, on a page of its own before their bytes. Only the sender changes `sent`, only the
 * receiver `received`; the difference is what lies in the ring. */
typedef struct {
    _Alignas(128) _Atomic uint64_t sent;
    _Alignas(128) _Atomic uint64_t received;
    _Alignas(128) _Atomic uint32_t changes; /* of the two; a futex */
    _Atomic uint32_t sleepers;
} rm_ring;

/* Why all ranks must stop. `state`: 0: nothing, 1: being written, 2: readable. */
typedef struct {
    _Atomic uint32_t state;
    char text[800];
} rm_verdict_of_peers;

typedef struct {
    uint64_t magic, bytes, region_bytes;
    int32_t size;
    _Alignas(128) rm_verdict_of_peers stop;
} rm_arena_head;

typedef struct rm_arena_piece rm_arena_piece; /* one allocation in this rank's region */

typedef struct {
    int fd, rank, size;
    char *base; /* this process's mapping */
    uint64_t bytes, slots_at, eager_at, stage_at, sums_at, rings_at, regions_at, region_bytes;
    rm_arena_head *head;
    pthread_mutex_t lock;   /* protects the pieces: one thread allocates and frees, another looks up buffers */
    rm_arena_piece *pieces; /* in this rank's region, in order of address */
} rm_local_arena;

/* Rank 0 creates it and publishes it in the store; the others map it. */
remat_status rm_local_arena_open(const rm_group_config *config, rm_local_arena *out);
void rm_local_arena_close(rm_local_arena *arena); /* also accepts one that failed to open */

static inline rm_slot *rm_local_slot(const rm_local_arena *arena, int32_t rank) {
    return (rm_slot *)(arena->base + arena->slots_at + (uint64_t)rank * 4096);
}
static inline char *rm_local_eager(const rm_local_arena *arena, int32_t rank, uint64_t call) {
    return arena->base + arena->eager_at + (2 * (uint64_t)rank + call % 2) * RM_EAGER_BYTES;
}
static inline char *rm_local_stage(const rm_local_arena *arena, int32_t rank) {
    return arena->base + arena->stage_at + (uint64_t)rank * RM_STAGE_BYTES;
}
/* The ring of messages between two ranks; its bytes begin 4096 bytes later. */
static inline rm_ring *rm_local_ring(const rm_local_arena *arena, int32_t from, int32_t to) {
    uint64_t number = (uint64_t)from * (uint64_t)arena->size + (uint64_t)to;
    return (rm_ring *)(arena->base + arena->rings_at + number * (4096 + RM_RING_BYTES));
}
remat_status rm_local_take_ring(const rm_local_arena *arena, int32_t from, int32_t to); /* before its first message */
static inline char *rm_local_sums(const rm_local_arena *arena) { return arena->base + arena->sums_at; }

/* Wakes the ranks that sleep until this rank arrives. */
void rm_local_wake(rm_slot *slot);

/* The offset of a buffer that lies entirely in this rank's region, or in a piece of it that is mapped over other
 * memory; otherwise -1. */
int64_t rm_local_offset(rm_local_arena *arena, const void *buffer, uint64_t bytes);

/* Memory is allocated from the system here and not on first access, so that a lack of memory is an error instead of a
 * SIGBUS. */
void *rm_local_alloc(rm_local_arena *arena, uint64_t bytes);
void rm_local_free(rm_local_arena *arena, void *buffer);

/* Maps a piece of the region over the caller's anonymous pages at `address`; unmap puts anonymous zero pages in its
 * place. */
remat_status rm_local_map(rm_local_arena *arena, void *address, uint64_t bytes);
void rm_local_unmap(rm_local_arena *arena, void *address); /* ignores an address that is not mapped */

#endif
