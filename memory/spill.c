/* spill.c: the spill file and its thread. spill.h documents the interface; spill_measure.c measures the speed of a
 * file. Main entries: rm_spill_open, rm_spill_save, rm_spill_load, rm_spill_wait.
 *
 *   caller    ── part, part, part ──►  ring of parts  ──►  thread  ◄── bounce buffer ──►  file
 *
 * A transfer is a sequence of parts. To save, the thread fills the bounce buffer with parts and writes it when it is
 * full or the transfer ends. To load, it reads one buffer at a time and copies it to the parts. Without O_DIRECT
 * nothing needs alignment, and parts move directly between memory and the file. */
#define _GNU_SOURCE
#include "memory/spill.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "memory/bytes.h"
#include "memory/clock.h"
#include "memory/host.h"

enum { BOUNCE = 1 << 20, RING = 1024, STACK = 256 << 10 };

typedef enum { SAVING, LOADING, STOPPING } errand;

typedef struct {
    rm_part part;
    errand errand;
} order;

struct rm_spill {
    char *directory;
    int file;
    bool bounced; /* the file was opened with O_DIRECT: data pass through the bounce buffer */
    /* data pass through the page cache, which must be told to drop them; the thread may set this later */
    atomic_bool cached;
    uint64_t room_bytes;
    pthread_t thread;
    bool started;

    pthread_mutex_t lock; /* protects everything up to the thread's own members */
    pthread_cond_t order_came, order_done;
    order ring[RING];
    uint64_t parts_given, parts_done, given, done; /* since opening; given, done: count transfers */
    int error;                                     /* the first errno since the last report */
    errand failed;                                 /* the operation that failed */
    rm_spill_use use;
    rm_moved *moved; /* NULL: nobody watches */
    void *watcher;

    /* Used only by the thread. */
    uint64_t begin_ns, moved_bytes; /* of the transfer that is being made */
    char *bounce;
    uint64_t begin, end; /* range of the bytes in the bounce buffer: [begin, end) */
    uint64_t at;         /* their offset in the file */
};

static uint64_t aligned(uint64_t bytes) {
    return (bytes + RM_TRANSFER_ALIGN - 1) / RM_TRANSFER_ALIGN * RM_TRANSFER_ALIGN;
}

/* ---- Reading and writing: all bytes or an errno -------------------------------------------------- */

static atomic_llong fail_countdown;
static atomic_int fail_error;

void rm_spill_fail_at(int64_t n, int error) {
    atomic_store(&fail_error, error);
    atomic_store(&fail_countdown, n);
}

/* True for the one operation that a test makes fail. */
static bool must_fail(void) { return atomic_load(&fail_countdown) > 0 && atomic_fetch_sub(&fail_countdown, 1) == 1; }

static ssize_t move_some(rm_spill *spill, errand errand, char *memory, uint64_t bytes, uint64_t at) {
    if (must_fail()) {
        errno = atomic_load(&fail_error);
        if (errno) return -1;
        bytes = bytes > RM_TRANSFER_ALIGN ? bytes / 2 : bytes;
    }
    return errand == SAVING ? pwrite(spill->file, memory, bytes, (off_t)at)
                            : pread(spill->file, memory, bytes, (off_t)at);
}

/* Some file systems accept O_DIRECT when a file is opened but refuse it on write. */
static bool give_up_direct(rm_spill *spill) {
    int flags = fcntl(spill->file, F_GETFL);
    if (flags < 0 || !(flags & O_DIRECT) || fcntl(spill->file, F_SETFL, flags & ~O_DIRECT)) return false;
    spill->cached = true;
    return true;
}

/* Drops the bytes from the page cache, which would otherwise keep them in memory. */
static void let_go(const rm_spill *spill, errand errand, uint64_t at, uint64_t bytes) {
    unsigned write_out = SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
    if (errand == SAVING) sync_file_range(spill->file, (off_t)at, (off_t)bytes, write_out);
    posix_fadvise(spill->file, (off_t)at, (off_t)bytes, POSIX_FADV_DONTNEED);
}

static int move_all(rm_spill *spill, errand errand, char *memory, uint64_t bytes, uint64_t at) {
    for (uint64_t done = 0; done < bytes;) {
        ssize_t moved = move_some(spill, errand, memory + done, bytes - done, at + done);
        if (moved < 0 && errno == EINTR) continue;
        if (moved < 0 && errno == EINVAL && spill->bounced && give_up_direct(spill)) continue;
        if (moved < 0) return errno;
        uint64_t step = (uint64_t)moved;
        /* so that the next chunk is aligned, too */
        if (spill->bounced && step < bytes - done) step -= step % RM_TRANSFER_ALIGN;
        if (step == 0) return errand == SAVING ? ENOSPC : EIO;
        done += step;
    }
    if (spill->cached) let_go(spill, errand, at, bytes);
    return 0;
}

/* ---- Parts (in the thread) ------------------------------------------------------------------------- */

static int save_part(rm_spill *spill, const rm_part *part) {
    const char *from = part->address;
    if (spill->end == 0) spill->at = part->at;
    for (uint64_t left = part->bytes; left > 0;) {
        uint64_t some = rm_smaller(left, BOUNCE - spill->end);
        memcpy(spill->bounce + spill->end, from, some);
        spill->end += some;
        from += some;
        left -= some;
        bool last = left == 0 && part->bytes == part->left;
        if (spill->end < BOUNCE && !last) continue;
        int error = move_all(spill, SAVING, spill->bounce, aligned(spill->end), spill->at);
        if (error) return error;
        spill->at += spill->end;
        spill->end = 0;
    }
    return 0;
}

static int load_part(rm_spill *spill, const rm_part *part) {
    char *to = part->address;
    uint64_t at = part->at;
    for (uint64_t left = part->bytes; left > 0;) {
        if (spill->begin == spill->end) {
            uint64_t wanted = rm_smaller(aligned(part->left - (part->bytes - left)), BOUNCE);
            int error = move_all(spill, LOADING, spill->bounce, wanted, at);
            if (error) return error;
            spill->begin = 0;
            spill->end = wanted;
        }
        uint64_t some = rm_smaller(left, spill->end - spill->begin);
        if (to) memcpy(to, spill->bounce + spill->begin, some);
        if (to) to += some;
        spill->begin += some;
        at += some;
        left -= some;
    }
    return 0;
}

static int buffered_part(rm_spill *spill, const order *order) {
    const rm_part *part = &order->part;
    for (uint64_t done = 0; part->address && done < part->bytes; done += BOUNCE) {
        uint64_t some = rm_smaller(part->bytes - done, BOUNCE);
        int error = move_all(spill, order->errand, (char *)part->address + done, some, part->at + done);
        if (error) return error;
    }
    return 0;
}

static int do_part(rm_spill *spill, const order *order) {
    int error = !spill->bounced           ? buffered_part(spill, order)
                : order->errand == SAVING ? save_part(spill, &order->part)
                                          : load_part(spill, &order->part);
    if (error || order->part.bytes == order->part.left) spill->begin = spill->end = 0; /* the transfer ends */
    return error;
}

/* ---- The thread ---------------------------------------------------------------------------------- */

static void show(rm_spill *spill, const order *order, uint64_t start_ns) {
    if (!spill->moved_bytes) spill->begin_ns = start_ns;
    spill->moved_bytes += order->part.bytes;
    if (order->part.bytes < order->part.left) return; /* more parts of the transfer follow */
    spill->moved(spill->watcher, order->errand == SAVING, spill->begin_ns, spill->moved_bytes);
    spill->moved_bytes = 0;
}

/* After a failure the thread skips all parts until the failure has been reported. */
static void carry_out(rm_spill *spill, const order *order) {
    uint64_t start_ns = rm_now_ns();
    bool skip = spill->error;
    if (!skip) *(order->errand == SAVING ? &spill->use.save_bytes : &spill->use.load_bytes) += order->part.bytes;
    rm_moved *moved = spill->moved;
    pthread_mutex_unlock(&spill->lock);
    int error = skip ? 0 : do_part(spill, order);
    if (moved) show(spill, order, start_ns);
    pthread_mutex_lock(&spill->lock);
    spill->use.busy_ns += rm_now_ns() - start_ns;
    if (!error) return;
    spill->error = error;
    spill->failed = order->errand;
}

static void *work(void *argument) {
    rm_spill *spill = argument;
    pthread_mutex_lock(&spill->lock);
    for (;;) {
        while (spill->parts_done == spill->parts_given) pthread_cond_wait(&spill->order_came, &spill->lock);
        order order = spill->ring[spill->parts_done % RING];
        if (order.errand == STOPPING) break;
        carry_out(spill, &order);
        spill->parts_done++;
        spill->done += order.part.bytes == order.part.left;
        pthread_cond_signal(&spill->order_done);
    }
    pthread_mutex_unlock(&spill->lock);
    return NULL;
}

static void give(rm_spill *spill, const rm_part *part, errand errand) {
    pthread_mutex_lock(&spill->lock);
    while (spill->parts_given - spill->parts_done == RING) pthread_cond_wait(&spill->order_done, &spill->lock);
    spill->ring[spill->parts_given++ % RING] = (order){*part, errand};
    spill->given += part->bytes == part->left;
    pthread_cond_signal(&spill->order_came);
    pthread_mutex_unlock(&spill->lock);
}

void rm_spill_save(rm_spill *spill, const rm_part *part) { give(spill, part, SAVING); }
void rm_spill_load(rm_spill *spill, const rm_part *part) { give(spill, part, LOADING); }

static remat_status failure(const rm_spill *spill, int error, errand failed) {
    const char *verb = failed == SAVING ? "written" : "read";
    FAIL(IO,
         "the spill file in %s cannot be %s: %s; this step was aborted and can be repeated. Free space there or check "
         "the disk, or name another directory",
         spill->directory, verb, strerror(error));
}

remat_status rm_spill_wait(rm_spill *spill, uint64_t count) {
    pthread_mutex_lock(&spill->lock);
    uint64_t start_ns = spill->done < count ? rm_now_ns() : 0;
    while (spill->done < count && !spill->error) pthread_cond_wait(&spill->order_done, &spill->lock);
    int error = spill->error;
    while (error && spill->parts_done < spill->parts_given) pthread_cond_wait(&spill->order_done, &spill->lock);
    spill->error = 0;
    if (start_ns) spill->use.wait_ns += rm_now_ns() - start_ns;
    errand failed = spill->failed;
    pthread_mutex_unlock(&spill->lock);
    return error ? failure(spill, error, failed) : REMAT_OK;
}

void rm_spill_watch(rm_spill *spill, rm_moved *moved, void *context) {
    pthread_mutex_lock(&spill->lock);
    spill->watcher = context;
    spill->moved = moved;
    pthread_mutex_unlock(&spill->lock);
}

uint64_t rm_spill_given(const rm_spill *spill) { return spill->given; } /* counted by the caller's thread */
bool rm_spill_direct(const rm_spill *spill) { return !spill->cached; }

uint64_t rm_spill_disk(const rm_spill *spill) {
    struct stat about;
    return fstat(spill->file, &about) ? 0 : (uint64_t)about.st_dev;
}

/* The CPU time that the thread has used so far. */
static uint64_t thread_ns(const rm_spill *spill) {
    clockid_t clock;
    return pthread_getcpuclockid(spill->thread, &clock) ? 0 : rm_clock_ns(clock);
}

void rm_spill_forget_use(rm_spill *spill) {
    pthread_mutex_lock(&spill->lock);
    spill->use = (rm_spill_use){0};
    pthread_mutex_unlock(&spill->lock);
}

rm_spill_use rm_spill_used(const rm_spill *spill) {
    pthread_mutex_t *lock = (pthread_mutex_t *)&spill->lock;
    pthread_mutex_lock(lock);
    rm_spill_use use = spill->use;
    pthread_mutex_unlock(lock);
    use.thread_ns = thread_ns(spill);
    return use;
}

/* ---- Opening ------------------------------------------------------------------------------------- */

/* Without O_TMPFILE: creates a named file and removes its name at once. */
static int open_named(const char *directory, int direct) {
    size_t size = strlen(directory) + sizeof "/remat-spill-XXXXXX";
    char *name = rm_malloc(size);
    if (!name) return -1;
    snprintf(name, size, "%s/remat-spill-XXXXXX", directory);
    int file = mkostemp(name, O_CLOEXEC | direct);
    int error = errno;
    unlink(name); /* open may create the file even though it refuses O_DIRECT */
    rm_free(name);
    errno = error;
    return file;
}

static remat_status open_file(rm_spill *spill) {
    int error = 0;
    for (int try = 0; try < 4 && spill->file < 0; try++) {
        int direct = try % 2 ? 0 : O_DIRECT;
        spill->bounced = direct;
        spill->cached = !direct;
        spill->file = try < 2 ? open(spill->directory, O_TMPFILE | O_RDWR | O_CLOEXEC | direct, 0600)
                              : open_named(spill->directory, direct);
        error = errno;
        bool no_use = error == ENOENT || error == ENOTDIR || error == EACCES || error == EROFS;
        if (spill->file < 0 && no_use) break;
    }
    if (spill->file >= 0) return REMAT_OK;
    FAIL(IO, "cannot create a spill file in %s: %s; name a directory that exists and is writable", spill->directory,
         strerror(error));
}

/* Blocks signals in the thread: they are for the program's own threads. */
static int start_thread(rm_spill *spill) {
    sigset_t all, before;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&spill->thread, &attributes, work, spill);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    spill->started = !error;
    return error;
}

static remat_status set_up(rm_spill *spill, const char *directory) {
    spill->directory = rm_strdup(directory);
    spill->bounce = rm_block_alloc(BOUNCE, RM_TRANSFER_ALIGN);
    REQUIRE(spill->directory && spill->bounce, MEMORY, "out of host memory for a spill file's buffer of %d bytes",
            BOUNCE);
    memset(spill->bounce, 0, BOUNCE); /* the padding at the end of a copy is written, too */
    TRY(open_file(spill));
    int error = start_thread(spill);
    REQUIRE(!error, MEMORY, "cannot start a thread for spilling: %s", strerror(error));
    return REMAT_OK;
}

remat_status rm_spill_open(const char *directory, rm_spill **out) {
    *out = NULL;
    REQUIRE(directory && *directory, INVALID, "spilling needs a directory; name one");
    rm_spill *spill = rm_calloc(1, sizeof *spill);
    REQUIRE(spill, MEMORY, "out of host memory for a spill file's record");
    spill->file = -1;
    pthread_mutex_init(&spill->lock, NULL);
    pthread_cond_init(&spill->order_came, NULL);
    pthread_cond_init(&spill->order_done, NULL);
    remat_status status = set_up(spill, directory);
    if (status)
        rm_spill_close(spill);
    else
        *out = spill;
    return status;
}

void rm_spill_close(rm_spill *spill) {
    if (!spill) return;
    if (spill->started) {
        give(spill, &(rm_part){0}, STOPPING);
        pthread_join(spill->thread, NULL);
    }
    if (spill->file >= 0) close(spill->file);
    pthread_cond_destroy(&spill->order_done);
    pthread_cond_destroy(&spill->order_came);
    pthread_mutex_destroy(&spill->lock);
    if (spill->bounce) rm_block_free(spill->bounce, BOUNCE);
    rm_free(spill->directory);
    rm_free(spill);
}

remat_status rm_spill_reserve(rm_spill *spill, uint64_t bytes) {
    double mib = 1.0 / (1 << 20);
    if (bytes <= spill->room_bytes) return REMAT_OK;
    struct rlimit limit; /* growing beyond the limit would raise a signal instead of an error */
    bool limited = !getrlimit(RLIMIT_FSIZE, &limit) && limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < bytes;
    REQUIRE(!limited, IO,
            "spilling needs a file of %.1f MiB in %s, but this process may write files of at most %.1f MiB; raise that "
            "limit (ulimit -f), or the memory budget",
            (double)bytes * mib, spill->directory, (double)limit.rlim_cur * mib);
    int error = posix_fallocate(spill->file, 0, (off_t)bytes);
    struct statvfs disk;
    double free_mib = statvfs(spill->directory, &disk) ? 0 : (double)disk.f_bavail * (double)disk.f_frsize * mib;
    REQUIRE(!error, IO,
            "spilling needs a file of %.1f MiB in %s, which has %.1f MiB left: %s; free space, name another directory, "
            "or raise the memory budget",
            (double)bytes * mib, spill->directory, free_mib, strerror(error));
    spill->room_bytes = bytes;
    return REMAT_OK;
}
