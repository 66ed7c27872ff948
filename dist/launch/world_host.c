/* world_host.c: the host of the world: one process, one poll loop. See world.h.
 *
 *     a world trains ── a rank is lost or joins again, or more have come ──► it calls the others
 *          ▲                                                                        │ all have come back or are gone
 *          └──── the largest size that fits, the latest step first ◄────────────────┘ and a moment for new ones is over
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "dist/launch/process.h"
#include "dist/launch/world.h"
#include "dist/launch/world_words.h"
#include "memory/clock.h"
#include "memory/host.h"

#define HELLO_MS 2000  /* for the proof, and then for the join */
#define SILENT_MS 1000 /* without a sign of life, after which the others no longer wait for a rank to come back */
#define LATE_MS 600000 /* the same for one that gives signs: as long as ranks wait in a collective */
#define LOOK_MS 200    /* how often it looks for silent ranks while a world trains */
#define LOST_MS 300    /* for the replacement of a lost rank */
#define START_MS 2000  /* for more hosts than MIN */
#define NOTE_MS 1500   /* before it says why ranks wait */
enum { STRANGERS = 64 };

typedef enum { GREETS, PROVES, NEW, TRAINS, LEAVES, WAITS } stage;

typedef struct {
    int fd;
    stage stage;
    bool member, noted; /* of the last world; knows why it waits */
    int64_t since_ms;   /* of the stage */
    int64_t heard_ms;   /* last sign of life in this world; 0: none yet */
    int32_t rank;       /* in this world */
    int64_t slot, step, units;
    int32_t port, pid;
    char engine[16];
    bool here;     /* on this host: `pid` is known to it */
    char host[64]; /* from which it came */
    char in[RM_WORLD_LINE];
    size_t in_bytes;
    rm_kv_meeting meeting;
} process;

typedef struct {
    rm_world_config config;
    process *all;
    struct pollfd *poll;
    int n, most;
    int64_t generation, size; /* of the last world; -1, 0: none yet */
    int64_t units;            /* of its rank 0 */
    char engine[16];          /* likewise */
    int64_t asked_ms;         /* before the last poll, which tells of all that had arrived by then */
    int64_t looked_ms;        /* last turn of the loop */
    int64_t told_ms;          /* when those that wait were last told that others will come */
    int64_t began_ms;         /* when a rank of it left, or the last one came before the first world; 0: none */
    bool called, over, closing;
} world;

/* ---- Who is there -------------------------------------------------------------------------------------------------- */

static void enter(process *p, stage next) {
    p->stage = next;
    p->since_ms = rm_now_ms();
}

static bool tell(const process *p, const char *line) {
    ssize_t bytes = (ssize_t)strlen(line);
    return send(p->fd, line, (size_t)bytes, MSG_NOSIGNAL | MSG_DONTWAIT) == bytes;
}

static int64_t count(const world *w, stage s, bool members) {
    int64_t n = 0;
    for (int i = 0; i < w->n; i++) n += w->all[i].stage == s && (!members || w->all[i].member);
    return n;
}

/* It has connected, so it may be about to join. */
static bool arrives(const world *w, const process *p) {
    return p->stage <= NEW && w->asked_ms < p->since_ms + HELLO_MS;
}

static bool any_arrives(const world *w) {
    for (int i = 0; i < w->n; i++)
        if (arrives(w, &w->all[i])) return true;
    return false;
}

/* The largest number of ranks, of at most n, that divides the batch. 0: too few. */
static int64_t fitting(const world *w, int64_t n) {
    int64_t units = w->units;
    for (int i = 0; i < w->n && w->generation < 0; i++)
        if (w->all[i].stage == WAITS) units = w->all[i].units;
    if (n < w->config.least) return 0;
    if (n > w->config.most) n = w->config.most;
    while (units && units % n) n--;
    return n;
}

static void begin(world *w) {
    if (!w->began_ms) w->began_ms = rm_now_ms();
}

static void tell_members(const world *w, const char *line) {
    for (int i = 0; i < w->n; i++)
        if (w->all[i].member && w->all[i].stage == TRAINS) (void)tell(&w->all[i], line);
}

static void call(world *w) {
    if (!w->called) tell_members(w, "call\n");
    w->called = true;
}

/* Its rank is free now. The others notice its end, or follow the call. */
static void drop(world *w, int i) {
    bool member = w->all[i].member;
    close(w->all[i].fd);
    w->all[i] = w->all[--w->n];
    if (!member || w->over) return;
    call(w);
    if (!count(w, TRAINS, true) && !count(w, LEAVES, true)) begin(w);
}

static void tell_lost(const world *w, int32_t rank) {
    char line[RM_WORLD_LINE];
    snprintf(line, sizeof line, "lost %d\n", rank);
    tell_members(w, line);
}

/* It may not have closed its connections, so the others would wait for it. It joins as a new one when it wakes. */
static void exclude(world *w, int i) {
    int32_t rank = w->all[i].rank;
    drop(w, i);
    tell_lost(w, rank);
}

/* ---- Lines --------------------------------------------------------------------------------------------------------- */

static bool hear_hello(process *p, const char *line) {
    char text[RM_WORLD_LINE], nonce[2 * RM_KV_NONCE_BYTES + 1];
    if (sscanf(line, RM_WORLD_HELLO " %" SCNd64 " %64s", &p->slot, nonce) != 2) return false;
    p->meeting.rank = htole64((uint64_t)p->slot);
    if (!rm_world_unhex(nonce, p->meeting.client, RM_KV_NONCE_BYTES) || !rm_kv_nonce(p->meeting.server)) return false;
    rm_world_hex(p->meeting.server, RM_KV_NONCE_BYTES, nonce);
    snprintf(text, sizeof text, "%s\n", nonce);
    enter(p, PROVES);
    return tell(p, text);
}

static bool hear_proof(const world *w, process *p, const char *line) {
    uint8_t ours[RM_HMAC_BYTES], theirs[RM_HMAC_BYTES];
    char text[RM_WORLD_LINE], proof[2 * RM_HMAC_BYTES + 1];
    rm_kv_proof(w->config.secret, "client", &p->meeting, ours);
    if (!rm_world_unhex(line, theirs, sizeof theirs) || !rm_hmac_same(ours, theirs)) return false;
    rm_kv_proof(w->config.secret, "server", &p->meeting, ours);
    rm_world_hex(ours, sizeof ours, proof);
    snprintf(text, sizeof text, "%s\n", proof);
    enter(p, NEW);
    return tell(p, text);
}

/* With another engine it could not even tell the others that it does not fit. */
static bool refuse(const world *w, const process *p) {
    char line[RM_WORLD_LINE];
    snprintf(line, sizeof line, "refuse %s\n", w->engine);
    return tell(p, line);
}

static bool hear_join(world *w, process *p, const char *line) {
    if (sscanf(line, "join %" SCNd64 " %" SCNd64 " %" SCNd32 " %" SCNd32 " %15s", &p->step, &p->units, &p->port,
               &p->pid, p->engine) != 5)
        return false;
    if (w->over) return tell(p, "over\n");
    if (w->generation >= 0 && strcmp(p->engine, w->engine)) return refuse(w, p);
    if (p->member || w->generation < 0) begin(w);
    if (w->generation < 0) w->began_ms = rm_now_ms();
    p->noted = false;
    enter(p, WAITS);
    return true;
}

static bool end_job(world *w) {
    w->over = true;
    for (int i = 0; i < w->n; i++)
        if (w->all[i].stage == WAITS) (void)tell(&w->all[i], "over\n");
    return true;
}

static bool hear(world *w, process *p, const char *line) {
    if (p->stage == GREETS) return hear_hello(p, line);
    if (p->stage == PROVES) return hear_proof(w, p, line);
    if (!strcmp(line, "alive")) {
        p->heard_ms = rm_now_ms();
        return true;
    }
    if (!strcmp(line, "done")) return end_job(w);
    if (strcmp(line, "again")) return hear_join(w, p, line);
    enter(p, LEAVES);
    if (!p->member) return true;
    if (!w->began_ms) tell_lost(w, p->rank); /* it may have heard a call before the others had all met */
    begin(w);
    return true;
}

/* False: the process is gone, or no process of this job. */
static bool receive(world *w, process *p) {
    ssize_t n = recv(p->fd, p->in + p->in_bytes, sizeof p->in - p->in_bytes, MSG_DONTWAIT);
    if (n <= 0) return false;
    p->in_bytes += (size_t)n;
    for (char *end; (end = memchr(p->in, '\n', p->in_bytes));) {
        size_t used = (size_t)(end + 1 - p->in);
        *end = 0;
        if (!hear(w, p, p->in)) return false;
        p->in_bytes -= used;
        memmove(p->in, p->in + used, p->in_bytes);
    }
    return p->in_bytes < sizeof p->in;
}

/* ---- The next world ------------------------------------------------------------------------------------------------- */

/* The latest step first: rank 0 gives its state to the others, which must have its settings. */
static int compare_processes(const void *a, const void *b) {
    const process *p = a, *q = b;
    bool p_waits = p->stage == WAITS, q_waits = q->stage == WAITS;
    if (p_waits != q_waits) return p_waits ? -1 : 1;
    if (p->step != q->step) return p->step > q->step ? -1 : 1;
    if (p->member != q->member) return p->member ? -1 : 1;
    return p->slot < q->slot ? -1 : p->slot > q->slot;
}

/* Processes that came from one address are on one host. */
static void find_neighbours(const world *w, int me, int64_t size, rm_place *out) {
    for (int64_t i = 0; i < size; i++) {
        bool same = !strcmp(w->all[i].host, w->all[me].host), first = true;
        for (int64_t k = 0; k < i; k++) first = first && strcmp(w->all[i].host, w->all[k].host);
        out->local_size += same;
        out->local_rank += same && i < me;
        out->hosts += first;
    }
}

static void give_place(world *w, int i, int64_t size) {
    char line[RM_WORLD_LINE];
    process *p = &w->all[i];
    rm_place place = {.generation = w->generation, .rank = i, .size = size, .port = w->all[0].port};
    find_neighbours(w, i, size, &place);
    snprintf(place.host, sizeof place.host, "%s", w->all[0].host);
    snprintf(place.job, sizeof place.job, "%s", w->config.job_id);
    rm_world_write_place(&place, line);
    p->member = true;
    p->rank = i;
    p->heard_ms = 0;
    enter(p, TRAINS);
    (void)tell(p, line); /* if it is gone, the next poll reports it */
}

/* Of those that are here, `there` ranks and spares, `size` train. */
static void tell_spares(world *w, int64_t there, int64_t size) {
    char line[RM_WORLD_LINE] = "note all places are taken; waiting as a spare\nspare\n";
    if (there > w->config.most) there = w->config.most;
    if (there > size)
        snprintf(line, sizeof line,
                 "note the %" PRId64 " samples (or shards) of an update do not divide by %" PRId64 " ranks, so %" PRId64
                 " train%s; waiting as a spare\nspare\n",
                 w->units, there, size, size == 1 ? "s" : "");
    for (int i = 0; i < w->n; i++) {
        process *p = &w->all[i];
        if (p->stage != WAITS || p->noted) continue;
        p->noted = true;
        (void)tell(p, line);
    }
}

static void form(world *w, int64_t size) {
    const int64_t there = count(w, WAITS, false);
    w->generation++;
    w->size = size;
    w->began_ms = 0;
    w->called = false;
    qsort(w->all, (size_t)w->n, sizeof *w->all, compare_processes);
    w->units = w->all[0].units;
    memcpy(w->engine, w->all[0].engine, sizeof w->engine);
    for (int i = 0; i < w->n; i++) w->all[i].member = w->all[i].noted = false;
    for (int i = 0; i < size; i++) give_place(w, i, size);
    tell_spares(w, there, size);
}

/* While a world trains: calls its ranks if it would be larger with those that wait. */
static void consider_growth(world *w) {
    int64_t there = w->size + count(w, WAITS, false);
    if (there == w->size || w->called) return;
    if (fitting(w, there) > w->size)
        call(w);
    else
        tell_spares(w, there, w->size);
}

static int64_t later(int64_t a, int64_t b) { return a > b ? a : b; }

/* While others wait for it, and in the middle of a step, of which a slow one may be. Before a rank's first sign it may
 * load data. */
static bool is_silent(const world *w, const process *p) {
    const int64_t now = rm_now_ms();
    if (!p->member || p->stage != TRAINS) return false;
    if (!w->began_ms) return p->heard_ms && now >= p->heard_ms + 1000 * RM_WORLD_SILENT_S;
    bool late = now >= later(w->began_ms, p->heard_ms) + SILENT_MS || now >= w->began_ms + LATE_MS;
    return late || (p->here && rm_process_stopped(p->pid));
}

static void exclude_silent(world *w) {
    for (int i = w->n; i-- > 0;)
        if (is_silent(w, &w->all[i])) exclude(w, i);
}

/* Whether all ranks of the last world have joined again. */
static bool all_back(world *w) {
    exclude_silent(w);
    return !count(w, TRAINS, true) && !count(w, LEAVES, true);
}

/* Some ranks of the last world are in the middle of a step. */
static void note_slow(world *w) {
    const int64_t now = rm_now_ms();
    if (now < later(w->began_ms, w->told_ms) + NOTE_MS) return;
    for (int i = 0; i < w->n; i++) {
        process *p = &w->all[i];
        if (p->stage != WAITS) continue;
        (void)tell(p, !p->noted ? "note other ranks are still in the middle of a step; waiting for them\nwait\n"
                                : "wait\n");
        p->noted = true;
    }
    w->told_ms = now;
}

/* Silence does not count while this process itself was stopped, or got no processor. */
static void look_at_clock(world *w) {
    const int64_t now = rm_now_ms();
    for (int i = 0; i < w->n && now - w->looked_ms > SILENT_MS; i++)
        if (w->all[i].heard_ms) w->all[i].heard_ms = now;
    w->looked_ms = now;
}

static void note_too_few(const world *w, int64_t waiting) {
    char line[RM_WORLD_LINE];
    snprintf(line, sizeof line, "note %" PRId64 " of at least %d ranks are here; waiting for more\n", waiting,
             w->config.least);
    for (int i = 0; i < w->n; i++) {
        process *p = &w->all[i];
        if (p->stage != WAITS || p->noted || rm_now_ms() < p->since_ms + NOTE_MS) continue;
        p->noted = true;
        (void)tell(p, line);
    }
}

static void consider(world *w) {
    if (w->over) return;
    if (!w->began_ms) {
        exclude_silent(w);
        consider_growth(w);
        return;
    }
    if (!all_back(w)) {
        note_slow(w);
        return;
    }
    int64_t waiting = count(w, WAITS, false), size = fitting(w, waiting);
    bool whole = size >= (w->generation < 0 ? w->config.most : w->size);
    int64_t patience = w->generation < 0 ? START_MS : LOST_MS;
    bool enough = whole || (w->asked_ms >= w->began_ms + patience && !any_arrives(w));
    if (!size) note_too_few(w, waiting);
    if (size && enough) form(w, size);
}

/* ---- The loop ------------------------------------------------------------------------------------------------------- */

/* Whether both ends of a connection have the same address. */
static bool is_of_this_host(int fd, const char *host) {
    char own[64] = "";
    struct sockaddr_storage at;
    socklen_t length = sizeof at;
    bool known = !getsockname(fd, (struct sockaddr *)&at, &length) &&
                 !getnameinfo((struct sockaddr *)&at, length, own, sizeof own, NULL, 0, NI_NUMERICHOST);
    return known && !strcmp(own, host);
}

static void take_in(world *w) {
    process p = {.fd = accept4(w->config.listen_fd, NULL, NULL, SOCK_CLOEXEC), .step = -1};
    struct sockaddr_storage at;
    socklen_t length = sizeof at;
    if (p.fd < 0) return;
    if (w->n == w->most || getpeername(p.fd, (struct sockaddr *)&at, &length) ||
        getnameinfo((struct sockaddr *)&at, length, p.host, sizeof p.host, NULL, 0, NI_NUMERICHOST)) {
        close(p.fd);
        return;
    }
    p.here = is_of_this_host(p.fd, p.host);
    enter(&p, GREETS);
    w->all[w->n++] = p;
}

static void turn(world *w) {
    w->poll[0] = (struct pollfd){.fd = w->config.listen_fd, .events = POLLIN};
    w->poll[1] = (struct pollfd){.fd = w->closing ? -1 : w->config.closing, .events = POLLIN};
    int n = w->n;
    for (int i = 0; i < n; i++) w->poll[i + 2] = (struct pollfd){.fd = w->all[i].fd, .events = POLLIN};
    bool timed = w->began_ms || count(w, GREETS, false) || count(w, PROVES, false);
    w->asked_ms = rm_now_ms();
    if (poll(w->poll, (nfds_t)n + 2, timed ? 20 : count(w, TRAINS, true) > 1 ? LOOK_MS : -1) < 0) return;
    look_at_clock(w);
    for (int i = n; i-- > 0;) { /* from the end: drop() fills a gap with the last one */
        process *p = &w->all[i];
        bool gone = w->poll[i + 2].revents && !receive(w, p);
        if (gone || (p->stage < NEW && !arrives(w, p))) drop(w, i);
    }
    if (w->poll[0].revents) take_in(w);
    if (w->poll[1].revents) w->closing = true;
    consider(w);
}

void rm_world_serve(const rm_world_config *config) {
    world w = {.config = *config, .most = 2 * config->most + STRANGERS, .generation = -1};
    w.all = rm_calloc((size_t)w.most, sizeof *w.all);
    w.poll = rm_calloc((size_t)w.most + 2, sizeof *w.poll);
    while (w.all && w.poll && !(w.closing && !w.n)) turn(&w);
    rm_free(w.all);
    rm_free(w.poll);
}
