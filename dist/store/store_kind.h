/* store_kind.h: what a kind of store implements, and how tcp requests look. Private to store*.c, but for rm_kv_who. */
#ifndef RM_STORE_KIND_H
#define RM_STORE_KIND_H

#include <endian.h>

#include "dist/store/hmac.h"
#include "dist/store/store.h"

/* As rm_kv_*; arguments are checked and timeout_ms is filled in (< 0: do not wait). */
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
    bool (*doubt)(const void *kind, char *text, size_t bytes); /* NULL: never */
    bool (*address)(void *kind, bool of_rank_0, char *text, size_t bytes);
} rm_kv_kind;

extern const rm_kv_kind rm_kv_tcp, rm_kv_file;

#define RM_KV_TOKEN_BYTES 16
/* What stands for the job's secret in the file's head. */
void rm_kv_token(const char *secret, uint8_t token[RM_KV_TOKEN_BYTES]);
/* "node7, process 4711", into at least 96 bytes. */
void rm_kv_who(char *text, size_t bytes);

/* ---- tcp: a request and its reply; integers little-endian; key and value follow their head -----------------------
 *
 * A connection begins with two questions, in which both ends show that they know the job's secret, and none tells it:
 *
 *   client                                           rank 0
 *   HELLO rank, nonce, "SIZE ATTEMPT WHO"  ────────►
 *                                          ◄────────  FINE nonce
 *   PROOF proof of "client"                ────────►
 *                                          ◄────────  FINE proof of "server"
 */

/* "RKV3"; the digit is the version: 1 sent a token with each request, 2 knew no attempts. */
#define RM_KV_MAGIC UINT32_C(0x33564b52)
#define RM_KV_IS_STORE(magic) (((magic)&0xffffff) == (RM_KV_MAGIC & 0xffffff)) /* of any version */

typedef enum { RM_KV_HELLO = 1, RM_KV_SET, RM_KV_GET, RM_KV_ADD, RM_KV_BYE, RM_KV_PROOF } rm_kv_op;
/* REFUSED, MISUSED, LATER: the value says why. MISUSED: whoever asks was started wrongly, and would be the next time. LATER: this
 * store is of an attempt that ends, and the next one is for whoever asks. */
typedef enum { RM_KV_FINE, RM_KV_NOT_THERE, RM_KV_REFUSED, RM_KV_MISUSED, RM_KV_LATER } rm_kv_answer;

typedef struct __attribute__((packed)) {
    uint32_t magic;
    uint8_t op, key_bytes;
    uint16_t spare;
    uint32_t value_bytes;
    int64_t number; /* HELLO: the rank; GET: how long to wait, ms; ADD: how much */
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

/* False, errno: the system has no random numbers. */
bool rm_kv_nonce(uint8_t nonce[RM_KV_NONCE_BYTES]);
/* HMAC-SHA256 by the secret of which end this is ("client", "server") and of the meeting. */
void rm_kv_proof(const char *secret, const char *end, const rm_kv_meeting *meeting, uint8_t proof[RM_HMAC_BYTES]);

/* ---- tcp: the server --------------------------------------------------------------------------------------------- */

typedef struct rm_kv_server rm_kv_server;

/* Serves from a thread on a socket that listens, which it takes over. */
remat_status rm_kv_server_start(int listen_fd, const rm_kv_config *config, rm_kv_server **out);
/* Waits until every rank has said goodbye, two seconds at most. NULL allowed. */
void rm_kv_server_stop(rm_kv_server *server);

#endif
