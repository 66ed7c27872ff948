/* store_file.c: a store in one file on a file system that all ranks see: where no port can be opened, or for ranks of one
 * host. A head, then a log of records, of which the last with a key counts:
 *
 *   | magic | token | size | record: key bytes, value bytes, key, value | record | ...
 *
 * Byte-range locks far beyond the end of the file do three jobs. They end with the process that holds them, however it
 * ends, so a file that an earlier job left behind is told from one in use:
 *
 *   byte WRITING        held while appending
 *   byte PRESENT + r    held by rank r as long as it lives */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "dist/store_kind.h"
#include "memory/host.h"

#define WRITING ((off_t)1 << 40)
#define PRESENT (((off_t)1 << 40) + 1)

typedef struct __attribute__((packed)) {
    uint32_t magic;
    uint8_t token[RM_KV_TOKEN_BYTES];
    int32_t size;
} file_head;

typedef struct __attribute__((packed)) {
    uint32_t key_bytes, value_bytes;
} record;

typedef struct {
    int fd;
    int32_t rank, size;
    char *path;
} file_store;

static int64_t now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* ---- Locks: of the open file, not of the process, so that two stores in one process are two ranks ------------------ */

static bool lock(int fd, off_t byte, short type, bool wait) {
    struct flock what = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    int result;
    do result = fcntl(fd, wait ? F_OFD_SETLKW : F_OFD_SETLK, &what);
    while (result < 0 && errno == EINTR);
    return result == 0;
}

static bool is_locked(int fd, off_t byte) {
    struct flock what = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    return !fcntl(fd, F_OFD_GETLK, &what) && what.l_type != F_UNLCK;
}

/* ---- Reading and appending ---------------------------------------------------------------------------------------- */

static bool read_at(int fd, void *data, size_t bytes, off_t at) { return pread(fd, data, bytes, at) == (ssize_t)bytes; }

/* The last whole record with this key: where its value is. A record that is being written ends beyond the file. */
static bool find(const file_store *store, const char *key, off_t *value_at, uint32_t *bytes) {
    struct stat info;
    record head;
    char name[RM_KV_KEY_BYTES + 1];
    size_t key_bytes = strlen(key);
    bool found = false;
    if (fstat(store->fd, &info)) return false;
    for (off_t at = sizeof(file_head); at + (off_t)sizeof head <= info.st_size;) {
        if (!read_at(store->fd, &head, sizeof head, at)) break;
        off_t value = at + (off_t)sizeof head + head.key_bytes;
        if (head.key_bytes > RM_KV_KEY_BYTES || value + head.value_bytes > info.st_size) break;
        if (head.key_bytes == key_bytes && read_at(store->fd, name, key_bytes, at + (off_t)sizeof head) &&
            !memcmp(name, key, key_bytes)) {
            found = true;
            *value_at = value;
            *bytes = head.value_bytes;
        }
        at = value + head.value_bytes;
    }
    return found;
}

/* In one write, so that nobody sees half of it; with the lock. */
static remat_status append(file_store *store, const char *key, const void *value, uint32_t bytes) {
    size_t key_bytes = strlen(key), whole = sizeof(record) + key_bytes + bytes;
    char *text = rm_malloc(whole);
    REQUIRE(text, MEMORY, "no memory for a value of %u bytes", bytes);
    record head = {.key_bytes = (uint32_t)key_bytes, .value_bytes = bytes};
    memcpy(text, &head, sizeof head);
    memcpy(text + sizeof head, key, key_bytes);
    if (bytes) memcpy(text + sizeof head + key_bytes, value, bytes);
    off_t end = lseek(store->fd, 0, SEEK_END);
    bool written = end >= 0 && pwrite(store->fd, text, whole, end) == (ssize_t)whole;
    int why = errno;
    if (!written && end >= 0) (void)!ftruncate(store->fd, end);
    rm_free(text);
    REQUIRE(written, IO, "cannot write to %s: %s", store->path, strerror(why));
    return REMAT_OK;
}

static remat_status begin(file_store *store) {
    REQUIRE(lock(store->fd, WRITING, F_WRLCK, true), IO,
            "cannot lock %s: %s. Its file system must have byte-range locks", store->path, strerror(errno));
    return REMAT_OK;
}
static void end(file_store *store) { lock(store->fd, WRITING, F_UNLCK, false); }

/* ---- The functions ------------------------------------------------------------------------------------------------ */

static remat_status set(void *kind, const char *key, const void *value, uint32_t bytes) {
    TRY(begin(kind));
    remat_status status = append(kind, key, value, bytes);
    end(kind);
    return status;
}

static remat_status wait_for(file_store *store, const char *key, off_t *at, uint32_t *bytes, int64_t timeout_ms) {
    int64_t start = now_ms();
    for (useconds_t pause = 100;; pause = pause < 10000 ? pause * 2 : pause) {
        if (find(store, key, at, bytes)) return REMAT_OK;
        if (timeout_ms < 0) FAIL(MISSING, "there is no '%s' in %s", key, store->path);
        if (store->rank > 0 && !is_locked(store->fd, PRESENT))
            FAIL(PEER, "rank 0 is gone, while rank %d waited for '%s' in %s", store->rank, key, store->path);
        if (now_ms() - start >= timeout_ms)
            FAIL(PEER, "rank %d waited %lld ms for '%s' in %s, and no rank has set it", store->rank,
                 (long long)timeout_ms, key, store->path);
        usleep(pause);
    }
}

static remat_status get(void *kind, const char *key, void *value, uint32_t capacity, uint32_t *bytes,
                        int64_t timeout_ms) {
    file_store *store = kind;
    off_t at;
    TRY(wait_for(store, key, &at, bytes, timeout_ms));
    if (!value) return REMAT_OK;
    REQUIRE(*bytes <= capacity, INVALID, "'%s' in the store has %u bytes; there is room for %u", key, *bytes, capacity);
    REQUIRE(read_at(store->fd, value, *bytes, at), IO, "cannot read %s: %s", store->path, strerror(errno));
    return REMAT_OK;
}

static remat_status add_locked(file_store *store, const char *key, int64_t delta, int64_t *sum) {
    off_t at;
    uint32_t bytes;
    uint64_t number = 0;
    if (find(store, key, &at, &bytes)) {
        REQUIRE(bytes == sizeof number, INVALID, "adding to '%s', which holds no number", key);
        REQUIRE(read_at(store->fd, &number, sizeof number, at), IO, "cannot read %s: %s", store->path, strerror(errno));
    }
    number = le64toh(number) + (uint64_t)delta;
    *sum = (int64_t)number;
    number = htole64(number);
    return append(store, key, &number, sizeof number);
}

static remat_status add(void *kind, const char *key, int64_t delta, int64_t *sum) {
    TRY(begin(kind));
    remat_status status = add_locked(kind, key, delta, sum);
    end(kind);
    return status;
}

/* Who came has said so in the log; who lives holds a lock; who closed has said that too. */
static bool is_lost(file_store *store, int32_t rank, char *who, size_t bytes) {
    char key[40], text[128] = "";
    off_t at;
    uint32_t length;
    if (rank == store->rank || is_locked(store->fd, PRESENT + rank)) return false;
    snprintf(key, sizeof key, " came/%d", rank);
    if (!find(store, key, &at, &length)) return false;
    if (length >= sizeof text || !read_at(store->fd, text, length, at)) return false;
    if (is_locked(store->fd, PRESENT + rank)) return false; /* it came between the two questions */
    snprintf(key, sizeof key, " left/%d", rank);
    if (find(store, key, &at, &length)) return false;
    snprintf(who, bytes, "%s", text);
    return true;
}

static bool lost(void *kind, int32_t rank, char *who, size_t bytes) {
    file_store *store = kind;
    char text[128];
    if (rank >= 0) return is_lost(store, rank, who, bytes);
    for (int32_t r = 0; r < store->size; r++)
        if (is_lost(store, r, text, sizeof text)) {
            snprintf(who, bytes, "%d (%s)", r, text);
            return true;
        }
    return false;
}

static bool address(void *kind, bool of_rank_0, char *text, size_t bytes) {
    (void)kind, (void)of_rank_0, (void)text, (void)bytes;
    return false;
}

static int32_t port(const void *kind) {
    (void)kind;
    return 0;
}

/* ---- Opening -------------------------------------------------------------------------------------------------------- */

/* A file of that name in which rank 0's byte is locked belongs to a job that runs. */
static remat_status refuse_if_in_use(const file_store *store) {
    int fd = open(store->path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return REMAT_OK;
    bool in_use = is_locked(fd, PRESENT);
    close(fd);
    REQUIRE(!in_use, IO, "%s is in use by a job that runs: choose another path for --init-method=file://", store->path);
    return REMAT_OK;
}

/* Made under another name, locked, and then moved to its place: nobody sees it without its lock. */
static remat_status make(const rm_kv_config *config, file_store *store) {
    file_head head = {.magic = RM_KV_MAGIC, .size = config->size};
    rm_kv_token(config->secret, head.token);
    TRY(refuse_if_in_use(store));
    size_t room = strlen(store->path) + 32;
    char *fresh = rm_malloc(room);
    REQUIRE(fresh, MEMORY, "no memory for a path");
    snprintf(fresh, room, "%s.%d.new", store->path, (int)getpid());
    store->fd = open(fresh, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    bool made = store->fd >= 0 && write(store->fd, &head, sizeof head) == sizeof head &&
                lock(store->fd, PRESENT, F_WRLCK, false) && !rename(fresh, store->path);
    int why = errno;
    if (!made && store->fd >= 0) unlink(fresh);
    rm_free(fresh);
    REQUIRE(made, IO, "cannot make %s, where the ranks are to meet: %s", store->path, strerror(why));
    return REMAT_OK;
}

/* Whether the file is there, with a living rank 0. */
static bool find_file(file_store *store, file_head *head) {
    store->fd = open(store->path, O_RDWR | O_CLOEXEC);
    if (store->fd < 0) return false;
    if (is_locked(store->fd, PRESENT) && read_at(store->fd, head, sizeof *head, 0)) return true;
    close(store->fd);
    store->fd = -1;
    return false;
}

static remat_status join(const rm_kv_config *config, file_store *store) {
    file_head head;
    uint8_t token[RM_KV_TOKEN_BYTES];
    int64_t start = now_ms();
    while (!find_file(store, &head)) {
        REQUIRE(now_ms() - start < config->timeout_ms, PEER,
                "rank %d waited %lld ms at %s, and rank 0 did not come: do both see the same file system?",
                config->rank, (long long)config->timeout_ms, store->path);
        usleep(1000);
    }
    rm_kv_token(config->secret, token);
    REQUIRE(head.magic == RM_KV_MAGIC && !memcmp(head.token, token, sizeof token), PEER,
            "%s belongs to another job (the secrets differ): choose another path", store->path);
    REQUIRE(head.size == config->size, PEER,
            "rank 0 belongs to a job of %d ranks, and this is rank %d of %d: do all ranks have the same --world-size?",
            head.size, config->rank, config->size);
    REQUIRE(lock(store->fd, PRESENT + config->rank, F_WRLCK, false), PEER,
            "rank %d is in %s already: two jobs use one path, or two processes one --rank", config->rank, store->path);
    return REMAT_OK;
}

static void close_store(void *kind) {
    file_store *store = kind;
    char key[40];
    snprintf(key, sizeof key, " left/%d", store->rank);
    if (store->fd >= 0) (void)set(store, key, "", 0);
    if (store->rank == 0) { /* what still waits here must see the file; its name can be taken again */
        int64_t until = now_ms() + 2000;
        for (int32_t r = 1; r < store->size; r++)
            while (is_locked(store->fd, PRESENT + r) && now_ms() < until) usleep(1000);
        unlink(store->path);
    }
    close(store->fd);
    rm_free(store->path);
    rm_free(store);
}

static remat_status open_store(const rm_kv_config *config, void **out) {
    char who[96], key[40];
    file_store *store = rm_calloc(1, sizeof *store);
    REQUIRE(store, MEMORY, "no memory for a store");
    *store = (file_store){.fd = -1, .rank = config->rank, .size = config->size, .path = rm_strdup(config->path)};
    remat_status status = store->path ? REMAT_OK : rm_fail(REMAT_MEMORY, "no memory for a path");
    if (!status) status = config->rank == 0 ? make(config, store) : join(config, store);
    if (!status) {
        rm_kv_who(who, sizeof who);
        snprintf(key, sizeof key, " came/%d", store->rank);
        status = set(store, key, who, (uint32_t)strlen(who));
    }
    if (!status) {
        *out = store;
        return REMAT_OK;
    }
    if (store->fd >= 0) close(store->fd);
    rm_free(store->path);
    rm_free(store);
    return status;
}

const rm_kv_kind rm_kv_file = {.open = open_store,
                               .close = close_store,
                               .set = set,
                               .get = get,
                               .add = add,
                               .lost = lost,
                               .port = port,
                               .address = address};
