/* store_log.h: what lies in the file of a file store (private to store_file.c, which has the locks): a head, then one record
 * after another.
 *
 *   | head: magic, job, ranks, used | record | record | ...                             up to `used`
 *   record: | sizes, check | key | check, bytes | value, then zeros up to its room |
 *
 * A key that is set again is written over in its place, and only when its value has outgrown its room does it get a
 * record at the end, with twice the room: however often ranks say that they live, the file does not grow. Each process
 * remembers where every key's last record is and reads what was added since it looked last.
 *
 * Who writes holds a lock; who reads needs none: checks tell values that are just being written over, and a record is part of
 * the file when `used` says so. */
#ifndef RM_STORE_LOG_H
#define RM_STORE_LOG_H

#include "dist/store/store_kind.h"

#define RM_KV_LOG_BUCKETS 256

typedef struct rm_kv_place rm_kv_place;

typedef struct {
    int fd;           /* borrowed, like path */
    const char *path; /* for sentences */
    uint64_t seen;    /* of the file, in bytes */
    rm_kv_place *table[RM_KV_LOG_BUCKETS];
    char *block; /* a record */
    uint64_t block_bytes;
} rm_kv_log;

typedef enum { RM_KV_LOG_EMPTY, RM_KV_LOG_OURS, RM_KV_LOG_FOREIGN } rm_kv_log_kind;
/* What is in this file: nothing, a store's head, or something else. Of a store: its job's token, ranks and attempt. */
rm_kv_log_kind rm_kv_log_look(int fd, uint8_t token[RM_KV_TOKEN_BYTES], int32_t *size, int32_t *attempt);

/* Writes the head into an empty file. False, errno. */
bool rm_kv_log_make(int fd, const uint8_t token[RM_KV_TOKEN_BYTES], int32_t size, int32_t attempt);
void rm_kv_log_open(rm_kv_log *log, int fd, const char *path); /* of a file that has a head */
void rm_kv_log_close(rm_kv_log *log);

/* *there: whether the key is in the file. Then *bytes is the size of its value, which is copied to `value` unless that is NULL.
 * INVALID: it does not fit. */
remat_status rm_kv_log_read(rm_kv_log *log, const char *key, void *value, uint32_t capacity, uint32_t *bytes,
                            bool *there);
/* With the lock, so that nobody else writes. */
remat_status rm_kv_log_write(rm_kv_log *log, const char *key, const void *value, uint32_t bytes);

#endif
