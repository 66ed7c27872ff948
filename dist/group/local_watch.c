/* local_watch.c: the thread that sends this rank's heartbeat and watches the others'. */
#define _GNU_SOURCE
#include "engine/neutral.h"
#include "dist/group/local_watch.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "dist/launch/process.h"
#include "memory/clock.h"
#include "memory/host.h"

#define TICK_MS 100
#define SILENT_NS (UINT64_C(1000) * 1000 * 1000) /* ten ticks */

struct rm_local_watch {
    const rm_group_config *config;
    rm_local_arena *arena;
    struct pollfd *poll; /* one pidfd per rank, -1 for this one and for those known to have ended; then the eventfd */
    int *pidfd;
    pthread_t thread;
    int wake;
    uint64_t awake_since_ns; /* silence before this time does not count: this process itself may have been stopped */
    pthread_mutex_t lock;    /* protects: */
    rm_notice silent;        /* text "": none */
};

/* ---- The shared verdict -------------------------------------------------------------------------------------- */

remat_status rm_local_stopped(const rm_local_arena *arena) {
    const rm_verdict_of_peers *stop = &arena->head->stop;
    uint32_t state = atomic_load_explicit(&stop->state, memory_order_acquire);
    if (state == 0) return REMAT_OK;
    for (uint64_t until = rm_now_ns() + 10000000; state == 1 && rm_now_ns() < until; usleep(100))
        state = atomic_load_explicit(&stop->state, memory_order_acquire);
    if (state == 2) return rm_fail(REMAT_PEER, "%s", stop->text);
    FAIL(PEER, "a rank stopped the group and died before it could say why");
}

remat_status rm_local_announce(rm_local_arena *arena, const char *format, ...) {
    rm_verdict_of_peers *stop = &arena->head->stop;
    uint32_t nothing = 0;
    if (atomic_compare_exchange_strong(&stop->state, &nothing, 1)) {
        va_list arguments;
        va_start(arguments, format);
        rm_vsnprintf(stop->text, sizeof stop->text, format, arguments);
        va_end(arguments);
        atomic_store_explicit(&stop->state, 2, memory_order_release);
        for (int32_t r = 0; r < arena->size; r++) rm_local_wake(rm_local_slot(arena, r));
    }
    return rm_local_stopped(arena);
}

/* ---- Descriptions -------------------------------------------------------------------------------------------- */

const char *rm_local_who(const rm_local_arena *arena, int32_t rank, char *buffer) {
    const rm_slot *slot = rm_local_slot(arena, rank);
    snprintf(buffer, RM_RANK_TEXT, "rank %d on %.60s (process %d)", slot->number, slot->host, slot->pid);
    return buffer;
}

const char *rm_local_doing(const rm_group_config *config, const rm_local_arena *arena, int32_t rank, char *buffer) {
    const rm_slot *slot = rm_local_slot(arena, rank);
    uint64_t call = atomic_load_explicit(&slot->doing, memory_order_acquire);
    rm_fingerprint said[2] = {slot->said[0].print, slot->said[1].print};
    rm_fingerprint *last = &said[said[1].call > said[0].call], *now = &said[call % 2];
    bool inside = call != 0 && now->call == call;
    char text[RM_FINGERPRINT_TEXT];
    snprintf(buffer, RM_RANK_TEXT, "%s %.200s",
             inside       ? "in"
             : last->call ? "after"
                          : "having begun",
             rm_fingerprint_text(config, inside ? now : last, text));
    return buffer;
}

/* ---- The thread ---------------------------------------------------------------------------------------------- */

static void note_end(rm_local_watch *watch, int32_t rank) {
    rm_slot *slot = rm_local_slot(watch->arena, rank);
    char end[96], who[RM_RANK_TEXT], doing[RM_RANK_TEXT];
    watch->poll[rank].fd = -1; /* poll ignores it from now on */
    if (atomic_load(&slot->presence) == RM_LEFT) return;
    rm_process_end(slot->pid, watch->pidfd[rank], end, sizeof end);
    (void)rm_local_announce(watch->arena, "%s %s %s", rm_local_who(watch->arena, rank, who), end,
                            rm_local_doing(watch->config, watch->arena, rank, doing));
}

/* `limit_ms` is already over, or silence_ms. */
static void note_silence(rm_local_watch *watch, int32_t rank, uint64_t silent_ns, int64_t limit_ms) {
    rm_slot *slot = rm_local_slot(watch->arena, rank);
    char who[RM_RANK_TEXT], doing[RM_RANK_TEXT];
    rm_notice silent = {.rank = slot->number};
    const char *name = limit_ms == watch->config->silence_ms ? watch->config->silence_name : NULL;
    char allowed[80];
    snprintf(allowed, sizeof allowed, "the limit of %lld ms", (long long)limit_ms);
    if (name) snprintf(allowed, sizeof allowed, "%s", name);
    const char *how = rm_process_stopped(slot->pid) ? "is stopped (SIGSTOP, or a debugger)" : "has not responded";
    rm_snprintf(silent.text, sizeof silent.text, "%.150s %s for %.1f s, %.250s", rm_local_who(watch->arena, rank, who),
                how, (double)silent_ns * 1e-9, rm_local_doing(watch->config, watch->arena, rank, doing));
    pthread_mutex_lock(&watch->lock);
    watch->silent = silent;
    pthread_mutex_unlock(&watch->lock);
    if (silent_ns > (uint64_t)limit_ms * 1000000u)
        (void)rm_local_announce(watch->arena, "%s, which is longer than %s", silent.text, allowed);
}

/* The state of a process is read only when its heartbeat is late. */
static int64_t limit_of(const rm_local_watch *watch, int32_t rank, uint64_t silent_ns) {
    const int64_t limit_ms = watch->config->stopped_ms;
    bool late = limit_ms && silent_ns > (uint64_t)limit_ms * 1000000u;
    return late && rm_process_stopped(rm_local_slot(watch->arena, rank)->pid) ? limit_ms : watch->config->silence_ms;
}

static void look_round(rm_local_watch *watch, uint64_t now) {
    bool all_well = true;
    for (int32_t r = 0; r < watch->arena->size; r++) {
        rm_slot *slot = rm_local_slot(watch->arena, r);
        if (r == watch->arena->rank || atomic_load(&slot->presence) != RM_HERE) continue;
        uint64_t last = atomic_load_explicit(&slot->beat_ns, memory_order_relaxed);
        if (last < watch->awake_since_ns) last = watch->awake_since_ns;
        if (now < last) continue;
        int64_t limit_ms = limit_of(watch, r, now - last);
        if (now < last + SILENT_NS && limit_ms == watch->config->silence_ms) continue;
        note_silence(watch, r, now - last, limit_ms);
        all_well = false;
    }
    if (!all_well) return;
    pthread_mutex_lock(&watch->lock);
    watch->silent.text[0] = 0;
    pthread_mutex_unlock(&watch->lock);
}

static void *keep_watch(void *context) {
    rm_local_watch *watch = context;
    rm_slot *mine = rm_local_slot(watch->arena, watch->arena->rank);
    const int32_t size = watch->arena->size;
    uint64_t before = rm_now_ns();
    watch->awake_since_ns = before;
    while (!(watch->poll[size].revents & POLLIN)) {
        uint64_t now = rm_now_ns();
        if (now - before > SILENT_NS / 2) watch->awake_since_ns = now;
        before = now;
        atomic_store_explicit(&mine->beat_ns, now, memory_order_relaxed);
        look_round(watch, now);
        if (poll(watch->poll, (nfds_t)size + 1, TICK_MS) <= 0) continue;
        for (int32_t r = 0; r < size; r++)
            if (watch->poll[r].fd >= 0 && watch->poll[r].revents) note_end(watch, r);
    }
    return NULL;
}

bool rm_local_silent(rm_local_watch *watch, rm_notice *out) {
    pthread_mutex_lock(&watch->lock);
    *out = watch->silent;
    pthread_mutex_unlock(&watch->lock);
    return *out->text;
}

/* ---- Start and stop ------------------------------------------------------------------------------------------ */

static void watch_free(rm_local_watch *watch) {
    for (int32_t r = 0; watch->pidfd && r < watch->arena->size; r++)
        if (watch->pidfd[r] >= 0) close(watch->pidfd[r]);
    if (watch->wake >= 0) close(watch->wake);
    pthread_mutex_destroy(&watch->lock);
    rm_free(watch->pidfd);
    rm_free(watch->poll);
    rm_free(watch);
}

/* Without a pidfd (an old kernel, or the process has just ended) heartbeats still detect the end, only later. */
static remat_status open_descriptors(rm_local_watch *watch) {
    const int32_t size = watch->arena->size;
    watch->poll = rm_calloc((size_t)size + 1, sizeof *watch->poll);
    watch->pidfd = rm_malloc((size_t)size * sizeof *watch->pidfd);
    REQUIRE(watch->poll && watch->pidfd, MEMORY, "out of memory to watch %d ranks", size);
    for (int32_t r = 0; r < size; r++) {
        rm_slot *slot = rm_local_slot(watch->arena, r);
        /* In tests, ranks may be threads of one process */
        bool other = r != watch->arena->rank && slot->pid != getpid();
        watch->pidfd[r] = other ? rm_process_watch(slot->pid) : -1;
        watch->poll[r] = (struct pollfd){.fd = watch->pidfd[r], .events = POLLIN};
        if (other && watch->pidfd[r] < 0 && errno == ESRCH) note_end(watch, r);
    }
    watch->wake = eventfd(0, EFD_CLOEXEC);
    REQUIRE(watch->wake >= 0, IO, "cannot create an eventfd: %s", strerror(errno));
    watch->poll[size] = (struct pollfd){.fd = watch->wake, .events = POLLIN};
    return REMAT_OK;
}

/* Blocks signals in the thread: they are for the program's own threads. */
static int start_thread(rm_local_watch *watch) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    int failed = pthread_create(&watch->thread, NULL, keep_watch, watch);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed;
}

remat_status rm_local_watch_start(const rm_group_config *config, rm_local_arena *arena, rm_local_watch **out) {
    rm_local_watch *watch = rm_calloc(1, sizeof *watch);
    REQUIRE(watch, MEMORY, "out of memory to watch the other ranks");
    *watch = (rm_local_watch){.config = config, .arena = arena, .wake = -1};
    pthread_mutex_init(&watch->lock, NULL);
    remat_status status = open_descriptors(watch);
    if (!status && start_thread(watch))
        status = rm_fail(REMAT_MEMORY, "cannot start a thread to watch the other ranks");
    if (status)
        watch_free(watch);
    else
        *out = watch;
    return status;
}

void rm_local_watch_stop(rm_local_watch *watch) {
    if (!watch) return;
    uint64_t one = 1;
    while (write(watch->wake, &one, sizeof one) < 0 && errno == EINTR) {}
    pthread_join(watch->thread, NULL);
    watch_free(watch);
}
