/* store.h: a small key-value table shared by all ranks of a job. Ranks find each other through it before there is a
 * group, and later find out which rank is gone. Two kinds have the same interface:
 *
 *   tcp   rank 0 serves it from a thread (store_server.c); the other ranks connect (store_tcp.c)
 *   file  in a file system that all ranks see, with byte-range locks (store_file.c, store_log.c)
 *
 * Over tcp, both ends of a connection first prove that they know the job's secret, without revealing it. Jobs that meet
 * on a port therefore do not mix, and strangers stay out unless they can guess it. All later traffic is unencrypted
 * (SECURITY.md).
 *
 * Errors: IO (a port in use, an unreachable host, a file), PEER (another rank did not arrive, or rank 0 is gone),
 * INVALID, MEMORY. One thread at a time may use a store; the functions below lock, so several threads may share it. */
#ifndef RM_STORE_H
#define RM_STORE_H

#include "engine/status.h"

#define RM_KV_KEY_BYTES 200u         /* longest key */
#define RM_KV_VALUE_BYTES (1u << 20) /* longest value */

typedef struct {
    const char *path; /* file kind; NULL: tcp */
    const char *host; /* tcp kind: rank 0's host */
    int32_t port;
    /* Rank 0: a socket that already listens on `port` (from a launcher), which is taken over; 0: bind one */
    int32_t listen_fd;
    int32_t rank, size;
    int64_t
        stale_ms; /* how long to retry while the port or file is still used by an earlier attempt; 0: not at all */
    int32_t
        /* Attempt of the job, from 0: ranks of different attempts do not mix, and a later one waits until an earlier
         * one has ended */
        attempt;
    int64_t grace_ms;   /* tcp: time limit for replies that do not depend on other ranks; 0: ten seconds */
    const char *secret; /* equal on all ranks of a job, and different from any other job's; NULL: "" */
    int64_t timeout_ms; /* for reaching the store, and the default for waiting; 0: five minutes */
    void (*say)(void *context,
                const char *sentence); /* reports progress to the user until the store is reached; NULL: no reports */
    void *context;
} rm_kv_config;

typedef struct rm_kv rm_kv;

/* The store keeps the processes that it has refused under this key, numbered from 1, for rank 0 to report: "rank 1 of 2
 * from HOST, process 4711: ...". Only the first few; over tcp, equal texts only once. */
#define RM_KV_REFUSED_KEY "refused/%d"

/* Rank 0 returns at once, the others when they have reached rank 0. INVALID: rank 0's job has another size, or this
 * rank is already present. A rank that was present before and has ended cannot join the same store again: it waits for
 * the next one, which all ranks join. */
remat_status rm_kv_open(const rm_kv_config *config, rm_kv **out);
/* Accepts NULL. Rank 0 waits up to two seconds for the other ranks to close theirs. Keeps remat_last_error(). */
void rm_kv_close(rm_kv *store);

/* Replaces an earlier value */
remat_status rm_kv_set(rm_kv *store, const char *key, const void *value, uint32_t bytes);
/* Waits for the key up to timeout_ms (0: the store's default; -1: does not wait, and MISSING means that the key is not
 * set). *bytes is the size of the value, which must be at most `capacity`. */
remat_status rm_kv_get(rm_kv *store, const char *key, void *value, uint32_t capacity, uint32_t *bytes,
                       int64_t timeout_ms);
/* Whether the key is set, and its value. Keeps remat_last_error(), even if the store cannot be reached. */
bool rm_kv_peek(rm_kv *store, const char *key, void *value, uint32_t capacity, uint32_t *bytes);
remat_status rm_kv_wait(rm_kv *store, const char *key, int64_t timeout_ms);
/* Adds to a number stored in 8 bytes, initially 0; *sum is the new value. Adding 0 writes nothing. */
remat_status rm_kv_add(rm_kv *store, const char *key, int64_t delta, int64_t *sum);

/* True if `rank` was present and went without closing its store; `who` becomes its host and process. Rank -1: any rank;
 * `who` then begins with its number. Keeps remat_last_error(), as rm_kv_peek does. */
bool rm_kv_lost(rm_kv *store, int32_t rank, char *who, size_t bytes);

/* Every request fails from now on, also one that waits for an answer. For a rank that knows that rank 0, which serves the
 * store, is lost, although its connection still exists. Any thread. A file needs no rank 0: nothing happens. */
void rm_kv_cut(rm_kv *store);

/* True if `rank` was present and has closed its store; `who` becomes its host and process. Keeps remat_last_error(). */
bool rm_kv_left(rm_kv *store, int32_t rank, char *who, size_t bytes);

/* On rank 0, tcp: true if the host name in its config is unknown here or belongs to another host, so that other ranks
 * may not find rank 0 there; `text` says so. May take as long as a name look-up. */
bool rm_kv_doubt(rm_kv *store, char *text, size_t bytes);

/* tcp: the numeric local address of this rank's connection to rank 0, or rank 0's address on it. Other transports use
 * it to choose a network interface that works. False: there is none (a file). */
bool rm_kv_address(rm_kv *store, bool of_rank_0, char *text, size_t bytes);

int32_t rm_kv_port(const rm_kv *store); /* tcp: the port in use; file: 0 */

/* Opens a socket that listens where rank 0's store would: at the single address of `host`, or at all addresses of this
 * host if that is unknown or another host's. For launchers, which pass it on (rm_kv_config.listen_fd). *port 0 becomes
 * a free port. `remedy` ends the message about a port in use: how to choose another. */
remat_status rm_kv_listen(const char *host, int32_t *port, const char *remedy, int *listen_fd);

#endif
