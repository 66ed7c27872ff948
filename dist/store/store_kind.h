/* store_kind.h: the functions of a kind of store, and the tcp protocol. Private to store*.c, except for
 * rm_kv_who, rm_kv_connect and the proofs. */
#ifndef RM_STORE_KIND_H
#define RM_STORE_KIND_H

#include <endian.h>

#include "dist/store/hmac.h"
#include "dist/store/store.h"

/* As rm_kv_*, with checked arguments and timeout_ms filled in (< 0: do not wait). */
typedef struct {
    remat_status (*open)(const rm_kv_config *config, void **out);
    void (*close)(void *kind);
    remat_status (*set)(void *kind, const char *key, const void *value, uint32_t bytes);
    remat_status (*get)(void *kind, const char *key, void *value, uint32_t capacity, uint32_t *bytes,
                        int64_t timeout_ms);
    remat_status (*add)(void *kind, const char *key, int64_t delta, int64_t *sum);
    bool (*lost)(void *kind, int32_t rank, char *who, size_t bytes);
    bool (*left)(void *kind, int32_t rank, char *who, size_t bytes);
    int32_t (*port)(const void *kind);
    void (*cut)(void *kind); /* optional; see rm_kv_cut */
    bool (*doubt)(const void *kind, char *text, size_t bytes); /* optional; NULL: false */
    bool (*address)(void *kind, bool of_rank_0, char *text, size_t bytes);
} rm_kv_kind;

extern const rm_kv_kind rm_kv_tcp, rm_kv_file;

#define RM_KV_TOKEN_BYTES 16
/* A token derived from the job's secret, for the file's header. */
void rm_kv_token(const char *secret, uint8_t token[RM_KV_TOKEN_BYTES]);
/* "node7, process 4711", into at least 96 bytes. */
void rm_kv_who(char *text, size_t bytes);

/* A connected socket, or -1: `why` says why. *unknown: the name of the host is not known here. */
int rm_kv_connect(const char *host, int32_t port, bool *unknown, char *why, size_t bytes);

/* ---- tcp: a request and its reply; integers are little-endian; key and value follow the header -----------------------
 *
 * A connection begins with two requests, in which both ends prove that they know the job's secret without revealing it:
 *
 *   client                                           rank 0
 *   HELLO rank, nonce, "SIZE ATTEMPT WHO"  ────────►
 *                                          ◄────────  FINE nonce
 *   PROOF proof of "client"                ────────►
 *                                          ◄────────  FINE proof of "server"
 */

/* "RKV3"; the digit is the version: 1 sent a token with each request, 2 had no attempts. */
#define RM_KV_MAGIC UINT32_C(0x33564b52)
#define RM_KV_IS_STORE(magic) (((magic)&0xffffff) == (RM_KV_MAGIC & 0xffffff)) /* of any version */

typedef enum { RM_KV_HELLO = 1, RM_KV_SET, RM_KV_GET, RM_KV_ADD, RM_KV_BYE, RM_KV_PROOF } rm_kv_op;
/* For REFUSED, MISUSED and LATER, the value says why. MISUSED: the client was started with wrong settings, and would
 * fail again. LATER: this store belongs to an attempt that is ending; the client must wait for the next one. */
typedef enum { RM_KV_FINE, RM_KV_NOT_THERE, RM_KV_REFUSED, RM_KV_MISUSED, RM_KV_LATER } rm_kv_answer;

typedef struct __attribute__((packed)) {
    uint32_t magic;
    uint8_t op, key_bytes;
    uint16_t spare;
    uint32_t value_bytes;
    int64_t number; /* HELLO: the rank; GET: how long to wait in ms; ADD: the number to add */
} rm_kv_request;

typedef struct __attribute__((packed)) {
    uint32_t magic, answer, value_bytes;
    int64_t number; /* ADD: the sum */
} rm_kv_reply;

#define RM_KV_NONCE_BYTES 32
typedef struct {
    uint8_t client[RM_KV_NONCE_BYTES], server[RM_KV_NONCE_BYTES];
    uint64_t rank; /* little-endian */
} rm_kv_meeting;

/* Returns false with errno if the system provides no random numbers. */
bool rm_kv_nonce(uint8_t nonce[RM_KV_NONCE_BYTES]);
/* HMAC-SHA256, with the secret as key, of the end's role ("client", "server") and of the meeting. */
void rm_kv_proof(const char *secret, const char *end, const rm_kv_meeting *meeting, uint8_t proof[RM_HMAC_BYTES]);

/* ---- tcp: the server --------------------------------------------------------------------------------------------- */

typedef struct rm_kv_server rm_kv_server;

/* Serves from a thread, on a listening socket that it takes over. */
remat_status rm_kv_server_start(int listen_fd, const rm_kv_config *config, rm_kv_server **out);
/* Waits until every rank has said goodbye, at most two seconds. Accepts NULL. */
void rm_kv_server_stop(rm_kv_server *server);

#endif
