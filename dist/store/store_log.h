/* store_log.h: the contents of a file store (private to store_file.c, which has the locks): a header, then records.
 *
 *   | header: magic, job, ranks, used | record | record | ...                             up to `used`
 *   record: | sizes, check | key | check, bytes | value, then zeros up to its room |
 *
 * A key that is set again is overwritten in place. Only if its value has outgrown its room does it get a new record at
 * the end, with twice the room. However many heartbeats ranks send, the file does not grow. Each process remembers the
 * position of every key's last record, and reads what has been added since it last looked.
 *
 * Writers hold a lock; readers need none: checksums detect values that are being overwritten, and a record counts once
 * `used` includes it. */
#ifndef RM_STORE_LOG_H
#define RM_STORE_LOG_H

#include "dist/store/store_kind.h"

#define RM_KV_LOG_BUCKETS 256

typedef struct rm_kv_place rm_kv_place;

typedef struct {
    int fd;           /* borrowed, as is path */
    const char *path; /* for messages */
    uint64_t seen;    /* bytes of the file seen so far */
    rm_kv_place *table[RM_KV_LOG_BUCKETS];
    char *block; /* buffer for a record */
    uint64_t block_bytes;
} rm_kv_log;

typedef enum { RM_KV_LOG_EMPTY, RM_KV_LOG_OURS, RM_KV_LOG_FOREIGN } rm_kv_log_kind;
/* Classifies the file: empty, a store, or something else. For a store, returns its job's token, number of ranks and
 * attempt. */
rm_kv_log_kind rm_kv_log_look(int fd, uint8_t token[RM_KV_TOKEN_BYTES], int32_t *size, int32_t *attempt);

/* Writes the header into an empty file. Returns false with errno. */
bool rm_kv_log_make(int fd, const uint8_t token[RM_KV_TOKEN_BYTES], int32_t size, int32_t attempt);
void rm_kv_log_open(rm_kv_log *log, int fd, const char *path); /* requires a file with a header */
void rm_kv_log_close(rm_kv_log *log);

/* *there: whether the key exists. Then *bytes is the size of its value, which is copied to `value` unless that is NULL.
 * INVALID: the value does not fit. */
remat_status rm_kv_log_read(rm_kv_log *log, const char *key, void *value, uint32_t capacity, uint32_t *bytes,
                            bool *there);
/* The caller holds the lock, so that no other process writes. */
remat_status rm_kv_log_write(rm_kv_log *log, const char *key, const void *value, uint32_t bytes);

#endif
