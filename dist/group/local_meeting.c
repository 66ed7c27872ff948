/* local_meeting.c: see local_meeting.h. A rank that waits for a late one sleeps on the late rank's count, a futex. */
#define _GNU_SOURCE
#include "engine/neutral.h"
#include "dist/group/local_meeting.h"

#include <linux/futex.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "dist/group/joining.h"
#include "dist/group/local_watch.h"
#include "memory/clock.h"
#include "memory/processors.h"

/* How often a rank checks before it sleeps. Fewer checks if there are more ranks than cores, or if the awaited rank was
 * last seen on this very core, where spinning only delays it (this happens on busy machines with ranks that wake each
 * other). */
enum { SPINS = 2000, SPINS_FEW = 50 };
#define NAP_NS 20000000 /* how often a sleeping rank checks the verdict and the clock */

static int spins_for(int32_t ranks) { return ranks <= rm_processors_get()->usable ? SPINS : SPINS_FEW; }

void rm_local_meeting_init(const rm_group_config *config, rm_local_arena *arena, rm_local_meeting *out) {
    *out = (rm_local_meeting){
        .config = config, .arena = arena, .limit_ms = config->join_ms, .spins = spins_for(config->size)};
}

static void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* What a rank waits for: another's arrival at a meeting, or room or bytes in a ring. */
typedef struct event {
    bool (*has_come)(const struct event *);
    _Atomic uint32_t *word, *sleepers; /* the futex that changes before it comes, and how many sleep on it */
    uint32_t meeting;
    rm_ring *ring;
} event;

static bool has_arrived(const event *e) {
    return (int32_t)(atomic_load_explicit(e->word, memory_order_acquire) - e->meeting) >= 0;
}
static uint64_t in_ring(const rm_ring *ring) { return atomic_load(&ring->sent) - atomic_load(&ring->received); }
static bool has_bytes(const event *e) { return in_ring(e->ring) > 0; }
static bool has_room(const event *e) { return in_ring(e->ring) < RM_RING_BYTES; }

static int32_t my_number(const rm_local_meeting *m) { return rm_group_number(m->config, m->config->rank); }

/* Who keeps a rank waiting may itself wait for another: the last of them, or -1. */
static int32_t awaited_by(const rm_local_meeting *m, int32_t rank) {
    int32_t awaited = -1, next = atomic_load(&rm_local_slot(m->arena, rank)->waits_for) - 1;
    for (int32_t i = 0; i < m->config->size && next >= 0; i++) {
        awaited = next;
        next = atomic_load(&rm_local_slot(m->arena, awaited)->waits_for) - 1;
    }
    return awaited;
}

static remat_status nobody_came(rm_local_meeting *m, int32_t rank, const event *e) {
    char who[RM_RANK_TEXT], doing[RM_RANK_TEXT], mine[RM_RANK_TEXT];
    int32_t first = awaited_by(m, rank);
    if (e->ring && first >= 0 && first != m->config->rank)
        return rm_local_announce(m->arena,
                                 "%.130s keeps other ranks waiting, among them rank %d, from which rank %d expects a "
                                 "message since %lld ms: it lives. If it only needs longer, raise the time-out",
                                 rm_local_who(m->arena, first, who), rm_group_number(m->config, rank), my_number(m),
                                 (long long)m->limit_ms);
    if (e->ring)
        return rm_local_announce(m->arena,
                                 "%.130s did not %s rank %d within %lld ms: it lives. If it only needs longer, raise "
                                 "the time-out",
                                 rm_local_who(m->arena, rank, who),
                                 e->has_come == has_bytes ? "send to" : "receive what it was sent by", my_number(m),
                                 (long long)m->limit_ms);
    return rm_local_announce(m->arena,
                             "%.130s did not arrive within %lld ms, while rank %d waits for it %.230s: it is alive, "
                             "and was last %.230s. If it only needs more time, raise the timeout",
                             rm_local_who(m->arena, rank, who), (long long)m->limit_ms, my_number(m),
                             rm_local_doing(m->config, m->arena, m->config->rank, mine),
                             rm_local_doing(m->config, m->arena, rank, doing));
}

static remat_status has_left(rm_local_meeting *m, int32_t rank) {
    char who[RM_RANK_TEXT], doing[RM_RANK_TEXT], mine[RM_RANK_TEXT];
    return rm_local_announce(m->arena, "%.130s left the group %.230s, while rank %d waits for it %.230s",
                             rm_local_who(m->arena, rank, who), rm_local_doing(m->config, m->arena, rank, doing),
                             my_number(m), rm_local_doing(m->config, m->arena, m->config->rank, mine));
}

static void nap(const event *e) {
    struct timespec nap_time = {.tv_nsec = NAP_NS};
    /* Before the next check: a rank that arrives after the check sees a sleeper to wake */
    atomic_fetch_add(e->sleepers, 1);
    uint32_t seen = atomic_load(e->word);
    if (!e->has_come(e)) syscall(SYS_futex, e->word, FUTEX_WAIT, seen, &nap_time, NULL, 0);
    atomic_fetch_sub(e->sleepers, 1);
}

/* Time advances by at most a few naps per check, so that a job that was suspended as a whole does not time out when it
 * resumes. */
static remat_status sleep_until_it_comes(rm_local_meeting *m, int32_t rank, const event *e) {
    rm_slot *slot = rm_local_slot(m->arena, rank), *mine = rm_local_slot(m->arena, m->config->rank);
    uint64_t waited = 0, before = rm_now_ns();
    remat_status status = REMAT_OK;
    atomic_store(&mine->waits_since_ns, before);
    atomic_store(&mine->waits_for, rank + 1);
    while (!e->has_come(e)) {
        TRY_GOTO(status, done, rm_local_stopped(m->arena));
        TRY_GOTO(status, done, rm_joining_look(m->config->joining)); /* of the first meeting */
        if (atomic_load(&slot->presence) == RM_LEFT && !e->has_come(e)) TRY_GOTO(status, done, has_left(m, rank));
        nap(e);
        uint64_t now = rm_now_ns(), step = now - before;
        waited += step < 5 * NAP_NS ? step : 5 * NAP_NS;
        before = now;
        if (waited > (uint64_t)m->limit_ms * 1000000u && !e->has_come(e))
            TRY_GOTO(status, done, nobody_came(m, rank, e));
    }
done:
    atomic_store(&mine->waits_for, 0);
    return status;
}

static remat_status wait_for(rm_local_meeting *m, int32_t rank, const event *e) {
    const rm_slot *slot = rm_local_slot(m->arena, rank);
    for (int i = 0; i < m->spins; i++) {
        if (e->has_come(e)) return REMAT_OK;
        if (i == SPINS_FEW && atomic_load_explicit(&slot->core, memory_order_relaxed) == sched_getcpu()) break;
        relax();
    }
    return sleep_until_it_comes(m, rank, e);
}

remat_status rm_local_meet(rm_local_meeting *m) {
    rm_slot *mine = rm_local_slot(m->arena, m->config->rank);
    uint32_t meeting = ++m->count;
    atomic_store_explicit(&mine->core, sched_getcpu(), memory_order_relaxed);
    atomic_store(&mine->arrived, meeting);
    if (atomic_load(&mine->sleepers)) rm_local_wake(mine);
    for (int32_t r = 0; r < m->config->size; r++) {
        rm_slot *slot = rm_local_slot(m->arena, r);
        event e = {.has_come = has_arrived, .word = &slot->arrived, .sleepers = &slot->sleepers, .meeting = meeting};
        if (r != m->config->rank) TRY(wait_for(m, r, &e));
    }
    return REMAT_OK;
}

/* ---- Messages -------------------------------------------------------------------------------------------------- */

static event event_of(rm_ring *ring, bool (*has_come)(const event *)) {
    return (event){.has_come = has_come, .word = &ring->changes, .sleepers = &ring->sleepers, .ring = ring};
}

/* After `sent` or `received` has changed. */
static void tell(rm_ring *ring) {
    atomic_fetch_add(&ring->changes, 1);
    if (atomic_load(&ring->sleepers)) syscall(SYS_futex, &ring->changes, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

/* From `at` to the end of the ring, or of the message, or of what the ring has. */
static uint64_t stretch(uint64_t at, uint64_t wanted, uint64_t there) {
    uint64_t most = RM_RING_BYTES - at % RM_RING_BYTES;
    if (wanted < most) most = wanted;
    return there < most ? there : most;
}

remat_status rm_local_send(rm_local_meeting *m, int32_t to, const void *data, uint64_t bytes) {
    rm_ring *ring = rm_local_ring(m->arena, m->config->rank, to);
    event room = event_of(ring, has_room);
    char *base = (char *)ring + 4096;
    if (!atomic_load(&ring->sent)) TRY(rm_local_take_ring(m->arena, m->config->rank, to));
    for (uint64_t done = 0, n; done < bytes; done += n) {
        TRY(wait_for(m, to, &room));
        uint64_t at = atomic_load(&ring->sent);
        n = stretch(at, bytes - done, RM_RING_BYTES - in_ring(ring));
        memcpy(base + at % RM_RING_BYTES, (const char *)data + done, n);
        atomic_store(&ring->sent, at + n);
        tell(ring);
    }
    return REMAT_OK;
}

remat_status rm_local_receive(rm_local_meeting *m, int32_t from, void *data, uint64_t bytes) {
    rm_ring *ring = rm_local_ring(m->arena, from, m->config->rank);
    event there = event_of(ring, has_bytes);
    const char *base = (const char *)ring + 4096;
    for (uint64_t done = 0, n; done < bytes; done += n) {
        TRY(wait_for(m, from, &there));
        uint64_t at = atomic_load(&ring->received);
        n = stretch(at, bytes - done, in_ring(ring));
        memcpy((char *)data + done, base + at % RM_RING_BYTES, n);
        atomic_store(&ring->received, at + n);
        tell(ring);
    }
    return REMAT_OK;
}

bool rm_local_waits(rm_local_meeting *m, rm_notice *out) {
    char who[RM_RANK_TEXT], doing[RM_RANK_TEXT];
    int32_t rank = awaited_by(m, m->config->rank);
    uint64_t waited = rm_now_ns() - atomic_load(&rm_local_slot(m->arena, m->config->rank)->waits_since_ns);
    if (rank < 0 || waited < 1000000000) return false;
    *out = (rm_notice){.rank = rm_local_slot(m->arena, rank)->number, .responds = true};
    rm_snprintf(out->text, sizeof out->text, "rank %d has waited %.1f s for %.130s, which is alive and was last %.230s",
                my_number(m), (double)waited * 1e-9, rm_local_who(m->arena, rank, who),
                rm_local_doing(m->config, m->arena, rank, doing));
    return true;
}
