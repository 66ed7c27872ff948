/* store_file.c: a store in one file, in a file system that all ranks see: PyTorch's init_method="file://", for scripts
 * that use it on hosts where no port can be opened, or for ranks of one host. This file contains its locks, and how it
 * is created and removed; store_log.h has the contents of the file.
 *
 * Byte-range locks far beyond the end of the file have three purposes. They end with the process that holds them,
 * however it ends, so a file left behind by an earlier job is distinguished from one in use:
 *
 *   byte REPLACING      held while replacing a file that was left behind
 *   byte WRITING        held while writing
 *   byte PRESENT + r    held by rank r as long as it lives
 *
 * The path may name nothing, an empty file, or a file that an earlier job left behind. Any other file is not
 * touched. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dist/store/store_log.h"
#include "memory/clock.h"
#include "memory/host.h"

enum { REFUSALS = 16 }; /* the most refusals that are recorded */
#define LOCK_US 10000000

#define REPLACING (((off_t)1 << 40) - 1)
#define WRITING ((off_t)1 << 40)
#define PRESENT (((off_t)1 << 40) + 1)
#define LOST " lost" /* key: the first rank whose death was noticed */

typedef struct {
    int fd;
    int32_t rank, size;
    char *path;
    rm_kv_log log;
} file_store;

/* ---- Locks: of the open file, not of the process, so that two stores in one process are two ranks ---------------- */

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

/* ---- The functions ----------------------------------------------------------------------------------------------- */

/* A rank that is stopped while it writes makes the others wait, but not forever. Counts pauses instead of time, so that
 * a rank that was stopped itself blames no other. */
static remat_status begin(file_store *store) {
    uint64_t waited_us = 0;
    for (useconds_t pause = 50; !lock(store->fd, WRITING, F_WRLCK, false); pause = pause < 5000 ? 2 * pause : pause) {
        REQUIRE(errno == EAGAIN || errno == EACCES, IO, "cannot lock %s: %s. Use a file system with byte-range locks",
                store->path, strerror(errno));
        REQUIRE(waited_us < LOCK_US, PEER,
                "another rank has kept %s locked for %d s; check whether one of the ranks is stopped", store->path,
                LOCK_US / 1000000);
        usleep(pause);
        waited_us += pause;
    }
    return REMAT_OK;
}
static void end(file_store *store) { lock(store->fd, WRITING, F_UNLCK, false); }

static remat_status set(void *kind, const char *key, const void *value, uint32_t bytes) {
    file_store *store = kind;
    TRY(begin(store));
    remat_status status = rm_kv_log_write(&store->log, key, value, bytes);
    end(store);
    return status;
}

static remat_status get(void *kind, const char *key, void *value, uint32_t capacity, uint32_t *bytes,
                        int64_t timeout_ms) {
    file_store *store = kind;
    int64_t start = rm_now_ms();
    for (useconds_t pause = 100;; pause = pause < 10000 ? pause * 2 : pause) {
        /* Before the look at the log: rank 0, or another before it, may set the key and end */
        bool there, over = timeout_ms >= 0 && store->rank > 0 && !is_locked(store->fd, PRESENT);
        TRY(rm_kv_log_read(&store->log, key, value, capacity, bytes, &there));
        if (there) return REMAT_OK;
        if (timeout_ms < 0) FAIL(MISSING, "there is no '%s' in %s", key, store->path);
        if (over) FAIL(PEER, "rank 0 is gone, while rank %d waited for '%s' in %s", store->rank, key, store->path);
        if (rm_now_ms() - start >= timeout_ms)
            FAIL(PEER, "rank %d waited %lld ms for '%s' in %s, and no rank has set it", store->rank,
                 (long long)timeout_ms, key, store->path);
        usleep(pause);
    }
}

/* Adding 0 only reads. */
static remat_status add_locked(file_store *store, const char *key, int64_t delta, int64_t *sum) {
    uint64_t number = 0;
    uint32_t bytes = sizeof number;
    bool there;
    remat_status status = rm_kv_log_read(&store->log, key, &number, sizeof number, &bytes, &there);
    REQUIRE(status != REMAT_INVALID && bytes == sizeof number, INVALID, "cannot add to '%s': it does not hold a number",
            key);
    TRY(status);
    number = le64toh(number) + (uint64_t)delta;
    *sum = (int64_t)number;
    number = htole64(number);
    return delta ? rm_kv_log_write(&store->log, key, &number, sizeof number) : REMAT_OK;
}

static remat_status add(void *kind, const char *key, int64_t delta, int64_t *sum) {
    if (!delta) return add_locked(kind, key, 0, sum);
    TRY(begin(kind));
    remat_status status = add_locked(kind, key, delta, sum);
    end(kind);
    return status;
}

static bool has(file_store *store, const char *name, int32_t rank, char *text, uint32_t room) {
    char key[40];
    uint32_t length = 0;
    bool there = false;
    snprintf(key, sizeof key, " %s/%d", name, rank);
    if (rm_kv_log_read(&store->log, key, text, room - 1, &length, &there) || !there) return false;
    text[length] = 0;
    return true;
}

/* A rank that was present has an entry in the log; a live rank holds a lock; a rank that closed its store has an entry
 * for that, too. */
static bool is_lost(file_store *store, int32_t rank, char *who, size_t bytes) {
    char text[128] = "", nothing[8];
    if (rank == store->rank || is_locked(store->fd, PRESENT + rank)) return false;
    if (!has(store, "came", rank, text, sizeof text)) return false;
    if (is_locked(store->fd, PRESENT + rank)) return false; /* it arrived between the two queries */
    if (has(store, "left", rank, nothing, sizeof nothing)) return false;
    snprintf(who, bytes, "%s", text);
    return true;
}

static bool left(void *kind, int32_t rank, char *who, size_t bytes) {
    char nothing[8];
    if (!has(kind, "left", rank, nothing, sizeof nothing)) return false;
    if (!has(kind, "came", rank, who, (uint32_t)bytes)) *who = 0;
    return true;
}

static bool first_lost(file_store *store, char *text, uint32_t room) {
    uint32_t length;
    bool there;
    if (rm_kv_log_read(&store->log, LOST, text, room - 1, &length, &there) || !there) return false;
    text[length] = 0;
    return true;
}

/* Ranks that notice a death end, too, and must not be taken for the cause: the first death noticed is recorded. */
static void note_lost(file_store *store, char *text, uint32_t room) {
    if (begin(store)) return;
    if (!first_lost(store, text, room)) (void)rm_kv_log_write(&store->log, LOST, text, (uint32_t)strlen(text));
    end(store);
}

static bool lost(void *kind, int32_t rank, char *who, size_t bytes) {
    file_store *store = kind;
    char text[128], first[160];
    if (rank >= 0) return is_lost(store, rank, who, bytes);
    bool any = first_lost(store, first, sizeof first);
    for (int32_t r = 0; r < store->size && !any; r++) {
        if (!is_lost(store, r, text, sizeof text)) continue;
        snprintf(first, sizeof first, "%d (%s)", r, text);
        note_lost(store, first, sizeof first);
        any = true;
    }
    if (any) snprintf(who, bytes, "%s", first);
    return any;
}

static bool address(void *kind, bool of_rank_0, char *text, size_t bytes) {
    (void)kind, (void)of_rank_0, (void)text, (void)bytes;
    return false;
}

static int32_t port(const void *kind) {
    (void)kind;
    return 0;
}

/* ---- Opening ----------------------------------------------------------------------------------------------------- */

static bool is_at(int fd, const char *path) {
    struct stat here, there;
    return !fstat(fd, &here) && !lstat(path, &there) && here.st_dev == there.st_dev && here.st_ino == there.st_ino;
}

static remat_status refuse_foreign(const char *path) {
    FAIL(INVALID,
         "%s already exists and is not a store of Remat, so it is not touched; give {init_method}=file://PATH a path "
         "of its own",
         path);
}

/* The caller holds the lock REPLACING. A file in which rank 0's byte is locked belongs to a running job. */
static remat_status remove_old(const char *path, int fd) {
    uint8_t token[RM_KV_TOKEN_BYTES];
    int32_t size, attempt;
    REQUIRE(!is_locked(fd, PRESENT), IO, "%s is in use by a running job; choose another path for {init_method}=file://",
            path);
    if (rm_kv_log_look(fd, token, &size, &attempt) == RM_KV_LOG_FOREIGN) return refuse_foreign(path);
    if (is_at(fd, path)) unlink(path); /* another rank may have replaced it meanwhile */
    return REMAT_OK;
}

/* Removes a file that is in the way if it may be removed. */
static remat_status make_way(const char *path) {
    struct stat info;
    if (lstat(path, &info)) return REMAT_OK;
    if (!S_ISREG(info.st_mode)) return refuse_foreign(path);
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    REQUIRE(fd >= 0 || errno == ENOENT, IO, "cannot open %s, where the ranks are to meet: %s", path, strerror(errno));
    if (fd < 0) return REMAT_OK;
    remat_status status = lock(fd, REPLACING, F_WRLCK, true)
                              ? remove_old(path, fd)
                              : rm_fail(REMAT_IO, "cannot lock %s: %s", path, strerror(errno));
    close(fd);
    return status;
}

/* Returns false with errno EEXIST if the name exists. Not every file system supports both ways. */
static bool give_name(const char *fresh, const char *path) {
    if (link(fresh, path)) return errno != EEXIST && !renameat2(AT_FDCWD, fresh, AT_FDCWD, path, RENAME_NOREPLACE);
    unlink(fresh);
    return true;
}

static remat_status take_name(const char *fresh, const char *path) {
    for (int tries = 0; tries < 100; tries++) { /* another rank 0 may be doing the same */
        TRY(make_way(path));
        if (give_name(fresh, path)) return REMAT_OK;
        if (errno != EEXIST) break;
    }
    FAIL(IO, "cannot create %s, where the ranks are to meet: %s", path, strerror(errno));
}

/* Creates the file under another name, locks it, and then gives it its own name. No process sees it without its lock,
 * and an existing file of that name is not lost. */
static remat_status make_as(const rm_kv_config *config, file_store *store, char *fresh) {
    uint8_t token[RM_KV_TOKEN_BYTES];
    rm_kv_token(config->secret, token);
    store->fd = mkostemp(fresh, O_CLOEXEC);
    REQUIRE(store->fd >= 0, IO, "cannot create %s, where the ranks are to meet: %s", store->path, strerror(errno));
    bool made =
        rm_kv_log_make(store->fd, token, config->size, config->attempt) && lock(store->fd, PRESENT, F_WRLCK, false);
    remat_status status =
        made ? take_name(fresh, store->path)
             : rm_fail(REMAT_IO, "cannot create %s, where the ranks are to meet: %s", store->path, strerror(errno));
    if (status) unlink(fresh);
    return status;
}

static remat_status make(const rm_kv_config *config, file_store *store) {
    size_t room = strlen(store->path) + 8;
    char *fresh = rm_malloc(room);
    REQUIRE(fresh, MEMORY, "out of memory for a path");
    snprintf(fresh, room, "%s.XXXXXX", store->path);
    remat_status status = make_as(config, store, fresh);
    rm_free(fresh);
    return status;
}

typedef struct {
    uint8_t token[RM_KV_TOKEN_BYTES];
    int32_t size, attempt;
    bool later; /* the file belongs to an attempt that is ending */
} job;

/* *there: the file exists, and its rank 0 is alive. */
static remat_status find_file(file_store *store, job *found, bool *there) {
    *there = false;
    store->fd = open(store->path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (store->fd < 0) return REMAT_OK;
    rm_kv_log_kind kind = rm_kv_log_look(store->fd, found->token, &found->size, &found->attempt);
    *there = kind == RM_KV_LOG_OURS && is_locked(store->fd, PRESENT);
    if (*there) return REMAT_OK;
    close(store->fd);
    store->fd = -1;
    return kind == RM_KV_LOG_FOREIGN ? refuse_foreign(store->path) : REMAT_OK;
}

static remat_status await_file(const rm_kv_config *config, file_store *store, int64_t deadline, job *found) {
    for (bool there;; usleep(1000)) {
        TRY(find_file(store, found, &there));
        if (there) return REMAT_OK;
        REQUIRE(rm_now_ms() < deadline, PEER,
                "rank %d waited %lld ms at %s, but rank 0 did not arrive; check that both see the same file system",
                config->rank, (long long)config->timeout_ms, store->path);
    }
}

/* Written by the refused rank itself, for rank 0 to report: a file store has no server. */
static void note_refusal(const rm_kv_config *config, file_store *store, const char *why) {
    char key[32], who[96], text[256];
    bool there = true;
    uint32_t bytes;
    rm_kv_who(who, sizeof who);
    snprintf(text, sizeof text, "rank %d of %d from %s: %s", config->rank, config->size, who, why);
    rm_kv_log_open(&store->log, store->fd, store->path);
    remat_status status = begin(store);
    bool locked = !status;
    for (int i = 1; !status && there && i <= REFUSALS; i++) {
        snprintf(key, sizeof key, RM_KV_REFUSED_KEY, i);
        status = rm_kv_log_read(&store->log, key, NULL, 0, &bytes, &there);
    }
    if (!status && !there) (void)rm_kv_log_write(&store->log, key, text, (uint32_t)strlen(text));
    if (locked) end(store);
    rm_kv_log_close(&store->log);
}

/* The caller holds the lock. Checks whether an earlier process of this rank was here: the other ranks, which see the
 * lock, must learn that it died. */
static remat_status check_new(file_store *store, job *found) {
    char who[128] = "", first[160], nothing[8];
    rm_kv_log_open(&store->log, store->fd, store->path);
    bool before = has(store, "came", store->rank, who, sizeof who);
    if (before && !has(store, "left", store->rank, nothing, sizeof nothing)) {
        snprintf(first, sizeof first, "%d (%s)", store->rank, who);
        note_lost(store, first, sizeof first);
    }
    rm_kv_log_close(&store->log);
    store->log.fd = -1;
    found->later = before;
    REQUIRE(!before, PEER, "rank %d was in %s before (%s), and has ended: that attempt ends without it", store->rank,
            store->path, rm_printable(who));
    return REMAT_OK;
}

static remat_status check_attempt(const rm_kv_config *config, const file_store *store, job *found) {
    found->later = config->attempt > found->attempt;
    REQUIRE(config->attempt == found->attempt, PEER,
            "%s is of attempt %d of this job, and this is rank %d of attempt %d", store->path, found->attempt,
            config->rank, config->attempt);
    return REMAT_OK;
}

/* PEER: a later store may accept this rank. INVALID: it was started with wrong settings. */
static remat_status enter(const rm_kv_config *config, file_store *store, job *found) {
    uint8_t token[RM_KV_TOKEN_BYTES];
    rm_kv_token(config->secret, token);
    REQUIRE(!memcmp(found->token, token, sizeof token), PEER,
            "%s belongs to another job (the secrets differ); choose another path", store->path);
    TRY(check_attempt(config, store, found));
    bool fits = found->size == config->size, entered = fits && lock(store->fd, PRESENT + config->rank, F_WRLCK, false);
    if (entered) return check_new(store, found);
    note_refusal(config, store, fits ? "this rank is already present" : "this job has another number of ranks");
    REQUIRE(fits, INVALID,
            "rank 0 belongs to a job of %d ranks, but this is rank %d of %d; give all ranks the same {world_size}, and "
            "all hosts the same --nnodes and --nproc-per-node",
            found->size, config->rank, config->size);
    FAIL(INVALID, "rank %d is already in %s: two jobs use one path, or two processes one {rank}", config->rank,
         store->path);
}

static void say_later(const rm_kv_config *config, int64_t left_ms) {
    char sentence[1500];
    if (!config->say) return;
    snprintf(sentence, sizeof sentence, "%s; waiting for the next one, up to %.4g s", remat_last_error(),
             1e-3 * (double)(left_ms > 0 ? left_ms : 0));
    config->say(config->context, sentence);
}

/* As over tcp: an earlier attempt may still be present and ending. */
static remat_status join(const rm_kv_config *config, file_store *store) {
    int64_t start = rm_now_ms(), deadline = start + config->timeout_ms;
    bool said = false;
    for (job found;;) {
        found.later = false;
        TRY(await_file(config, store, deadline, &found));
        remat_status status = enter(config, store, &found);
        if (status != REMAT_PEER || rm_now_ms() >= (found.later ? deadline : start + config->stale_ms)) return status;
        if (found.later && !said) say_later(config, deadline - rm_now_ms());
        said |= found.later;
        close(store->fd);
        store->fd = -1;
        usleep(50000);
    }
}

static void close_store(void *kind) {
    file_store *store = kind;
    char key[40];
    snprintf(key, sizeof key, " left/%d", store->rank);
    (void)set(store, key, "", 0);
    if (store->rank == 0) { /* ranks that still wait must see the file; then its name can be reused */
        int64_t until = rm_now_ms() + 2000;
        for (int32_t r = 1; r < store->size; r++)
            while (is_locked(store->fd, PRESENT + r) && rm_now_ms() < until) usleep(1000);
        if (is_at(store->fd, store->path)) unlink(store->path);
    }
    rm_kv_log_close(&store->log);
    close(store->fd);
    rm_free(store->path);
    rm_free(store);
}

static remat_status say_who(file_store *store) {
    char who[96], key[40];
    rm_kv_who(who, sizeof who);
    snprintf(key, sizeof key, " came/%d", store->rank);
    return set(store, key, who, (uint32_t)strlen(who));
}

static remat_status open_store(const rm_kv_config *config, void **out) {
    file_store *store = rm_calloc(1, sizeof *store);
    REQUIRE(store, MEMORY, "out of memory for a store");
    *store = (file_store){.fd = -1, .rank = config->rank, .size = config->size, .path = rm_strdup(config->path)};
    remat_status status = store->path ? REMAT_OK : rm_fail(REMAT_MEMORY, "out of memory for a path");
    if (!status) status = config->rank == 0 ? make(config, store) : join(config, store);
    rm_kv_log_open(&store->log, store->fd, store->path);
    if (!status) status = say_who(store);
    if (!status) {
        *out = store;
        return REMAT_OK;
    }
    rm_kv_log_close(&store->log);
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
                               .left = left,
                               .port = port,
                               .address = address};
