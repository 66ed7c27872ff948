/* parallel.c: decides when teams of threads pay off (parallel.h). A region of n threads is assumed to do the work of
 * 0.7 n; the time that one of them waits for others is lost. Gains minus losses are the balance of a thread. While it
 * is negative, no region is opened, and a sixteenth of the time that the thread computes alone is added to the balance.
 * So a team that does not pay off, for whatever reason, is retried again and again, and costs a sixteenth of the time;
 * once it gains again, it is kept.
 *
 * The balance is at most MOST: the gains of an hour must not hide that the machine is busy now. MOST is some time
 * slices, so that single interruptions, which a team soon makes up for, do not end it. The balance is at least LEAST:
 * the loss in one long product must not disable teams for minutes. For repeated calls, as in recurrent layers, there is
 * also a pace, see below. */
#include "ops/math/parallel.h"

#include <pthread.h>

enum { FIRST_NS = 32000000, MOST_NS = 64000000, LEAST_NS = -100000000, PAID_IN = 16 };
/* In an uneven region, other threads may have several times as much work as thread 0. */
enum { UNEVEN = 3, UNEVEN_NS = 100000 };

static _Thread_local int64_t balance_ns = FIRST_NS;
static _Thread_local int pretended;

void rm_parallel_pretend(int worth) { pretended = worth, balance_ns = FIRST_NS; }

/* ---- The pace of calls of one kind ------------------------------------------------------------------------------- */

/* In narrow layers threads synchronise so often that teams do not pay off even on a quiet machine. Here the time of a
 * single thread need not be guessed: there are thousands of calls of a kind, so both ways are measured. */
enum { ALONE, TOGETHER };
struct rm_pace {
    uint64_t kind;     /* 0: unused */
    uint64_t ns[2];    /* time of a call, alone and together; 0: not tried */
    uint64_t since_ns; /* time spent in such calls since the slower way was last tried */
    uint64_t every;    /* the slower way is retried after this multiple of its time */
};

/* In the long run retries of the slower way take a 128th of the time. At first they are more frequent, because the
 * first calls are slow either way. */
enum { PACES = 64, PROBES = 4, FIRST_EVERY = 4, LAST_EVERY = 128 };
static _Thread_local rm_pace paces[PACES];

static rm_pace *pace_of(uint64_t kind) {
    rm_pace *first = &paces[kind % (PACES - PROBES)], *room = first; /* if all are taken, the first is evicted */
    for (int i = 0; i < PROBES; i++)
        if (first[i].kind == kind)
            return &first[i];
        else if (!first[i].kind)
            room = &first[i];
    *room = (rm_pace){.kind = kind, .every = FIRST_EVERY};
    return room;
}

static int slower(const rm_pace *p) { return p->ns[TOGETHER] > p->ns[ALONE] && p->ns[ALONE] ? TOGETHER : ALONE; }

static int choose(const rm_pace *p) {
    int other = slower(p);
    if (!p->ns[TOGETHER]) return TOGETHER;
    return !p->ns[other] || p->since_ns > p->every * p->ns[other] ? other : !other;
}

/* Keeps an average over some calls, over fewer for the way that is rarely tried. In the beginning, when calls may be
 * slow for other reasons, faster calls replace the average at once. */
static void note(rm_pace *p, int way, uint64_t ns) {
    bool tried = way == slower(p), young = p->every < LAST_EVERY / 4;
    int64_t change = (int64_t)(ns - p->ns[way]);
    p->ns[way] = !p->ns[way] || (young && change < 0) ? ns : p->ns[way] + (uint64_t)(change / (tried ? 2 : 4));
    p->since_ns = tried ? 0 : p->since_ns + ns;
    if (tried && p->every < LAST_EVERY) p->every *= 2;
}

rm_region rm_region_begin_like(int threads, bool even, uint64_t kind) {
    rm_region region = rm_region_begin(threads, even);
    if (threads < 2) return region;
    region.pace = pace_of(kind | 1);
    if (!pretended && choose(region.pace) == ALONE) region.threads = 1;
    return region;
}

/* ---- Forked processes -------------------------------------------------------------------------------------------- */

static _Thread_local bool has_team, lost_team;

/* In the child, on the thread that called fork. */
static void lose_team(void) { lost_team |= has_team; }
static void watch_forks(void) { pthread_atfork(NULL, NULL, lose_team); }

static void note_team(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
    has_team = true;
}

bool rm_parallel_lost_team(void) { return lost_team; }

/* ---- Regions ----------------------------------------------------------------------------------------------------- */

rm_region rm_region_begin(int threads, bool even) {
    rm_region region = {.threads = threads, .even = even};
    if (threads < 2) return region;
    if (lost_team || (pretended ? pretended < 0 : balance_ns < 0)) region.threads = 1;
    if (region.threads > 1 && !has_team) note_team();
    region.begin_ns = rm_now_ns();
    region.balance_ns = pretended > 0 ? INT64_MAX / 2 : balance_ns;
    return region;
}

static void pay_in(int64_t ns) {
    balance_ns += ns;
    if (balance_ns > MOST_NS) balance_ns = MOST_NS;
    if (balance_ns < LEAST_NS) balance_ns = LEAST_NS;
}

void rm_region_end(const rm_region *region, uint64_t lost_ns) {
    if (!region->begin_ns) return;
    uint64_t now = rm_now_ns(), alone_since = region->threads < 2 ? region->begin_ns : region->alone_ns;
    if (region->pace && !region->alone_ns)
        note(region->pace, region->threads > 1 ? TOGETHER : ALONE, now - region->begin_ns);
    if (region->threads > 1) {
        uint64_t own_ns = (alone_since ? alone_since : region->own_ns) - region->begin_ns, waited_ns = 0;
        if (!alone_since) waited_ns = now - region->own_ns;
        if (!region->even && waited_ns < UNEVEN * own_ns + UNEVEN_NS) waited_ns = 0;
        pay_in(rm_region_gain(region->threads, own_ns + waited_ns, lost_ns + waited_ns));
    }
    if (alone_since && balance_ns < 0) pay_in((int64_t)(now - alone_since) / PAID_IN);
}
