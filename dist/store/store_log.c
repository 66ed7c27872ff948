/* store_log.c: see store_log.h. */
#define _GNU_SOURCE
#include "dist/store/store_log.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/hash.h"
#include "memory/host.h"

/* PATIENCE: how often to re-read a value that is being written, about 2 s */
enum { PATIENCE = 2000, QUICK = 20, ROUND = 32 };

static const char magic[16] = "remat's store 2\n";

typedef struct {
    char magic[16];
    uint8_t token[RM_KV_TOKEN_BYTES];
    int32_t size, attempt;
    uint64_t used;
} head;

typedef struct {
    uint32_t key_bytes, room; /* key_bytes: 1 to RM_KV_KEY_BYTES; room: of the value, a multiple of ROUND */
    uint64_t check;           /* checksum of the key and these two numbers */
} record;

typedef struct {
    uint64_t check; /* checksum of the value */
    uint32_t bytes, spare;
} filling;

struct rm_kv_place {
    rm_kv_place *next;
    uint64_t at; /* of the value and its checksum */
    uint32_t room;
    char key[];
};

static bool read_at(int fd, void *data, size_t bytes, uint64_t at) {
    return pread(fd, data, bytes, (off_t)at) == (ssize_t)bytes;
}
static bool write_at(int fd, const void *data, size_t bytes, uint64_t at) {
    ssize_t n = pwrite(fd, data, bytes, (off_t)at);
    if (n >= 0 && n < (ssize_t)bytes) errno = ENOSPC;
    return n == (ssize_t)bytes;
}

static uint64_t padded(uint64_t bytes) { return (bytes + 7) / 8 * 8; }
static uint64_t check_of_key(const char *key, uint32_t bytes, uint32_t room) {
    return rm_hash(key, bytes, (uint64_t)room << 32 | bytes);
}

/* ---- The header -------------------------------------------------------------------------------------------------- */

rm_kv_log_kind rm_kv_log_look(int fd, uint8_t token[RM_KV_TOKEN_BYTES], int32_t *size, int32_t *attempt) {
    struct stat info;
    head h;
    if (!fstat(fd, &info) && S_ISREG(info.st_mode) && info.st_size == 0) return RM_KV_LOG_EMPTY;
    if (!read_at(fd, &h, sizeof h, 0) || memcmp(h.magic, magic, sizeof magic)) return RM_KV_LOG_FOREIGN;
    memcpy(token, h.token, sizeof h.token);
    *size = h.size;
    *attempt = h.attempt;
    return RM_KV_LOG_OURS;
}

bool rm_kv_log_make(int fd, const uint8_t token[RM_KV_TOKEN_BYTES], int32_t size, int32_t attempt) {
    head h = {.size = size, .attempt = attempt, .used = sizeof h};
    memcpy(h.magic, magic, sizeof magic);
    memcpy(h.token, token, sizeof h.token);
    return write_at(fd, &h, sizeof h, 0);
}

void rm_kv_log_open(rm_kv_log *log, int fd, const char *path) {
    *log = (rm_kv_log){.fd = fd, .path = path, .seen = sizeof(head)};
}

void rm_kv_log_close(rm_kv_log *log) {
    for (int b = 0; b < RM_KV_LOG_BUCKETS; b++)
        for (rm_kv_place *p = log->table[b], *next; p; p = next) {
            next = p->next;
            rm_free(p);
        }
    rm_free(log->block);
    *log = (rm_kv_log){.fd = -1};
}

/* ---- Positions of the keys --------------------------------------------------------------------------------------- */

static rm_kv_place **find(rm_kv_log *log, const char *key) {
    rm_kv_place **link = &log->table[rm_hash(key, strlen(key), 0) % RM_KV_LOG_BUCKETS];
    while (*link && strcmp((*link)->key, key)) link = &(*link)->next;
    return link;
}

static remat_status remember(rm_kv_log *log, const char *key, uint64_t at, uint32_t room) {
    rm_kv_place **link = find(log, key);
    if (!*link) {
        size_t bytes = strlen(key) + 1;
        *link = rm_calloc(1, sizeof **link + bytes);
        REQUIRE(*link, MEMORY, "out of memory for a key of the store");
        memcpy((*link)->key, key, bytes);
    }
    (*link)->at = at;
    (*link)->room = room;
    return REMAT_OK;
}

/* Reads complete records beyond those seen. In a network file system, `used` may become visible before a record. */
static remat_status catch_up(rm_kv_log *log) {
    uint64_t used;
    REQUIRE(read_at(log->fd, &used, sizeof used, offsetof(head, used)), IO, "cannot read %s: %s", log->path,
            strerror(errno));
    while (log->seen < used) {
        record r;
        char key[RM_KV_KEY_BYTES + 1] = "";
        uint64_t at = log->seen + sizeof r;
        if (!read_at(log->fd, &r, sizeof r, log->seen)) break;
        if (!r.key_bytes || r.key_bytes > RM_KV_KEY_BYTES || !read_at(log->fd, key, r.key_bytes, at)) break;
        if (r.check != check_of_key(key, r.key_bytes, r.room)) break;
        at += padded(r.key_bytes);
        TRY(remember(log, key, at, r.room));
        log->seen = at + sizeof(filling) + r.room;
    }
    return REMAT_OK;
}

static remat_status reserve(rm_kv_log *log, uint64_t bytes) {
    if (bytes <= log->block_bytes) return REMAT_OK;
    char *larger = rm_realloc(log->block, bytes);
    REQUIRE(larger, MEMORY, "out of memory for %llu bytes of the store", (unsigned long long)bytes);
    log->block = larger;
    log->block_bytes = bytes;
    return REMAT_OK;
}

/* ---- Reading ----------------------------------------------------------------------------------------------------- */

/* Reads into the block. Re-reads a value that is being overwritten. */
static remat_status read_filling(rm_kv_log *log, const rm_kv_place *p, filling *f) {
    TRY(reserve(log, sizeof *f + p->room));
    for (int look = 0; look < PATIENCE; look++) {
        if (look > QUICK) usleep(1000);
        if (!read_at(log->fd, log->block, sizeof *f + p->room, p->at)) continue;
        memcpy(f, log->block, sizeof *f);
        if (f->bytes <= p->room && f->check == rm_hash(log->block + sizeof *f, f->bytes, f->bytes)) return REMAT_OK;
    }
    FAIL(IO, "'%s' in %s is damaged: a rank died while writing it, or another program changed the file", p->key,
         log->path);
}

remat_status rm_kv_log_read(rm_kv_log *log, const char *key, void *value, uint32_t capacity, uint32_t *bytes,
                            bool *there) {
    filling f;
    TRY(catch_up(log));
    const rm_kv_place *p = *find(log, key);
    *there = p != NULL;
    if (!p) return REMAT_OK;
    TRY(read_filling(log, p, &f));
    *bytes = f.bytes;
    if (!value) return REMAT_OK;
    REQUIRE(f.bytes <= capacity, INVALID, "'%s' in the store has %u bytes, but there is room for only %u", key, f.bytes,
            capacity);
    memcpy(value, log->block + sizeof f, f.bytes);
    return REMAT_OK;
}

/* ---- Writing ----------------------------------------------------------------------------------------------------- */

static void fill(char *to, const void *value, uint32_t bytes) {
    filling f = {.check = rm_hash(value, bytes, bytes), .bytes = bytes};
    memcpy(to, &f, sizeof f);
    if (bytes) memcpy(to + sizeof f, value, bytes);
}

static uint32_t room_for(uint32_t bytes, uint32_t before) {
    uint32_t twice = before < RM_KV_VALUE_BYTES / 2 ? 2 * before : RM_KV_VALUE_BYTES;
    if (before && twice > bytes) bytes = twice;
    return (bytes + ROUND - 1) / ROUND * ROUND;
}

/* Also writes the unused part of the room, so that a full disk is noticed now. Updates `used` last, so that no process
 * sees half a record. */
static remat_status append(rm_kv_log *log, const char *key, const void *value, uint32_t bytes, uint32_t room) {
    record r = {.key_bytes = (uint32_t)strlen(key), .room = room};
    uint64_t key_room = padded(r.key_bytes), whole = sizeof r + key_room + sizeof(filling) + room, at = log->seen;
    r.check = check_of_key(key, r.key_bytes, room);
    TRY(reserve(log, whole));
    memset(log->block, 0, whole);
    memcpy(log->block, &r, sizeof r);
    memcpy(log->block + sizeof r, key, r.key_bytes);
    fill(log->block + sizeof r + key_room, value, bytes);
    uint64_t used = at + whole;
    REQUIRE(write_at(log->fd, log->block, whole, at) && write_at(log->fd, &used, sizeof used, offsetof(head, used)), IO,
            "cannot write to %s: %s", log->path, strerror(errno));
    TRY(remember(log, key, at + sizeof r + key_room, room));
    log->seen = used;
    return REMAT_OK;
}

/* While the lock is held, everything that other ranks have written can be read. */
static remat_status check_caught_up(const rm_kv_log *log) {
    uint64_t used;
    REQUIRE(read_at(log->fd, &used, sizeof used, offsetof(head, used)) && used == log->seen, IO,
            "%s is damaged at byte %llu: another program changed it", log->path, (unsigned long long)log->seen);
    return REMAT_OK;
}

remat_status rm_kv_log_write(rm_kv_log *log, const char *key, const void *value, uint32_t bytes) {
    TRY(catch_up(log));
    TRY(check_caught_up(log));
    const rm_kv_place *p = *find(log, key);
    if (!p || bytes > p->room) return append(log, key, value, bytes, room_for(bytes, p ? p->room : 0));
    TRY(reserve(log, sizeof(filling) + bytes));
    fill(log->block, value, bytes);
    REQUIRE(write_at(log->fd, log->block, sizeof(filling) + bytes, p->at), IO, "cannot write to %s: %s", log->path,
            strerror(errno));
    return REMAT_OK;
}
