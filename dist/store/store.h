/* store.h: a small table of keys and values that all ranks of a job see: how they find each other before there is a group,
 * and how they tell afterwards who is gone. Two kinds behind one interface:
 *
 *   tcp   rank 0 serves it from a thread (store_server.c); the others connect (store_tcp.c)
 *   file  on a file system that all ranks see, under byte-range locks (store_file.c, store_log.c)
 *
 * Over tcp both ends of a connection first show each other that they know the job's secret, without telling it: jobs that
 * meet on a port do not mix, and strangers stay out if they cannot guess it. What follows travels in clear (SECURITY.md).
 *
 * Errors: IO (a taken port, an unreachable host, a file), PEER (waited in vain for another rank, or rank 0 is gone),
 * INVALID, MEMORY. A store is used by one thread at a time; the ones below lock, so several may share it. */
#ifndef RM_STORE_H
#define RM_STORE_H

#include "engine/status.h"

#define RM_KV_KEY_BYTES 200u         /* longest key */
#define RM_KV_VALUE_BYTES (1u << 20) /* longest value */

typedef struct {
    const char *path; /* of the file kind; NULL: tcp */
    const char *host; /* of the tcp kind: where rank 0 is */
    int32_t port;
    int32_t listen_fd; /* rank 0: a socket that listens on `port` already (a launcher's), taken over; 0: bind one */
    int32_t rank, size;
    int64_t
        stale_ms; /* how long to try again while port or file belong to somebody else: an attempt before; 0: not at all */
    int32_t
        attempt; /* of the job, from 0: ranks of different ones do not mix, and a later one waits until an earlier has ended */
    int64_t grace_ms;   /* tcp: how long an answer may take that needs no waiting for others; 0: ten seconds */
    const char *secret; /* the same on all ranks of a job, other than that of any other job; NULL: "" */
    int64_t timeout_ms; /* for reaching the store, and the default for waiting; 0: five minutes */
    void (*say)(void *context,
                const char *sentence); /* what people should know while it is not reached yet; NULL: nobody */
    void *context;
} rm_kv_config;

typedef struct rm_kv rm_kv;

/* Under this key, numbered from 1, a store keeps whom it has sent away, for rank 0 to tell people: "rank 1 of 2 from HOST, process
 * 4711: ...". The first few; over tcp the same words only once. */
#define RM_KV_REFUSED_KEY "refused/%d"

/* Rank 0 returns at once; others when they have reached rank 0. INVALID: that has a job of another size, or this rank already. A rank
 * that was there before, and has ended, has no place in that store any more: it waits for the next one, whose ranks all begin anew. */
remat_status rm_kv_open(const rm_kv_config *config, rm_kv **out);
/* NULL allowed. Rank 0 waits up to two seconds for the others to close theirs. Leaves remat_last_error() as it is. */
void rm_kv_close(rm_kv *store);

remat_status rm_kv_set(rm_kv *store, const char *key, const void *value, uint32_t bytes); /* replaces */
/* Waits for the key up to timeout_ms (0: the store's default; -1: not at all, then MISSING says it is not there). *bytes
 * is the size of the value, which must fit `capacity`. */
remat_status rm_kv_get(rm_kv *store, const char *key, void *value, uint32_t capacity, uint32_t *bytes,
                       int64_t timeout_ms);
/* Whether the key is there, with its value. A look-up: remat_last_error() stays as it is, also when the store cannot be asked. */
bool rm_kv_peek(rm_kv *store, const char *key, void *value, uint32_t capacity, uint32_t *bytes);
remat_status rm_kv_wait(rm_kv *store, const char *key, int64_t timeout_ms);
/* Adds to a number kept as 8 bytes, 0 before the first; *sum is the new one. Adding 0 writes nothing. */
remat_status rm_kv_add(rm_kv *store, const char *key, int64_t delta, int64_t *sum);

/* True when `rank` was here and went without closing its store; `who` gets its host and process. Rank -1: when any was,
 * `who` then begins with its number. A look-up, as rm_kv_peek. */
bool rm_kv_lost(rm_kv *store, int32_t rank, char *who, size_t bytes);

/* True when `rank` was here and has closed its store; `who` gets its host and process. A look-up, as rm_kv_peek. */
bool rm_kv_left(rm_kv *store, int32_t rank, char *who, size_t bytes);

/* On rank 0, tcp: true where the host's name that its config gives is unknown here or another host's; `text` says so, as others may
 * look for rank 0 there in vain. May take as long as a look-up of names. */
bool rm_kv_doubt(rm_kv *store, char *text, size_t bytes);

/* tcp: the numeric address by which this rank's connection leaves, or at which it reaches rank 0: how other transports can
 * find the interface that works. False: there is none (a file). */
bool rm_kv_address(rm_kv *store, bool of_rank_0, char *text, size_t bytes);

int32_t rm_kv_port(const rm_kv *store); /* tcp: the port in use; file: 0 */

/* A socket that listens where rank 0's store would: at the one address that `host` stands for, at all of this host where that
 * is not known or another one's. For whoever starts ranks and passes it on (rm_kv_config.listen_fd):
 * *port 0 becomes one that is free. `remedy` ends the sentence about a port that is taken: what to do to get another. */
remat_status rm_kv_listen(const char *host, int32_t *port, const char *remedy, int *listen_fd);

#endif
