/* joining.c: see joining.h. Each rank keeps an entry in the store, under NAME/joining/RANK:
 *
 *     STEP BEAT ROUND DOING, a tab, WHO        "3 17 502 connecting by Gloo<tab>node7, process 4711"
 *
 * STEP counts calls of rm_joining_step and BEAT counts heartbeats. ROUND is the time between two heartbeats in ms: half
 * a second plus the time to query the store, which is longer over long distances. NAME/abort holds the message that
 * ends the wait for all ranks. */
#define _GNU_SOURCE
#include "dist/group/joining.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dist/group/side_thread.h"
#include "dist/group/arrivals.h"
#include "dist/store/store_kind.h"
#include "memory/clock.h"
#include "memory/host.h"

#define BEAT_S 0.5
#define FIRST_BEAT_S 0.1
#define REPORT_S 0.1
#define QUIET_S 1.5 /* three heartbeats */
/* Seconds until the user is told which ranks are waited for, first and second time; then every LATER_S */
#define FIRST_S 1.5
#define SECOND_S 30.0
#define LATER_S 60.0
#define STUCK_S 3.0 /* seconds that a library gets to return after the wait is over */
#define OPEN INT32_MAX

/* What is known about a rank. step 0: it has not arrived. */
typedef struct {
    int32_t step;
    char beat[24];
    double round_s, heard_s; /* heard_s: time of its last new heartbeat */
    char doing[80], who[112];
} mate;

struct rm_joining {
    const rm_group_config *config;
    rm_kv *store; /* config->store */
    mate *mates;  /* used by the heartbeat thread only */
    rm_side_thread heartbeat, reporter;
    bool has_heartbeat, has_reporter;
    double round_s; /* duration of the heartbeat thread's last round */
    /* Protected by the lock of `heartbeat`: */
    int32_t step;
    int64_t count;
    const char *doing;
    double since_s;           /* start of this step, on a clock that does not advance while this process is stopped */
    double slept_s, looked_s; /* by how much that clock lags, and when it was last read */
    double asking_s;          /* since when a query of the store has been pending; 0: none is */
    bool stuck, speaks;       /* speaks: this is the lowest live rank */
    char awaited[600 + 240];  /* description of the ranks that this step waits for */
    char failure[900];        /* "": none */
    double failed_s;
    _Atomic bool silent; /* the store did not answer: it is not queried any more, since each query would wait */
    _Atomic bool ending;
    int refused; /* number of refusals reported so far; used by the reporting thread */
};

/* ---- The clock --------------------------------------------------------------------------------------------------- */

static double now_s(void) { return (double)rm_now_ns() * 1e-9; }

/* The caller holds the lock. Both threads and the waiting thread call this often, so a long gap means that this process
 * was stopped, perhaps with the whole job. That time counts for nobody. */
static double clock_s(rm_joining *j) {
    double now = now_s(), gap = now - j->looked_s;
    if (gap > 2 * QUIET_S + j->round_s) j->slept_s += gap;
    j->looked_s = now;
    return now - j->slept_s;
}

/* ---- Entries in the store ---------------------------------------------------------------------------------------- */

static void key_of(const rm_joining *j, int32_t rank, char key[RM_KV_KEY_BYTES]) {
    snprintf(key, RM_KV_KEY_BYTES, "%s/joining/%d", j->config->name, rank);
}

static void set_failure(rm_joining *j, const char *sentence) {
    rm_side_thread_lock(&j->heartbeat);
    if (!*j->failure) {
        snprintf(j->failure, sizeof j->failure, "%s", sentence);
        j->failed_s = now_s();
    }
    rm_side_thread_unlock(&j->heartbeat);
}

static void give_up_store(rm_joining *j) {
    j->silent = true;
    set_failure(j, remat_last_error());
}

static void leave_word(rm_joining *j, int32_t step, int64_t count, const char *doing) {
    char key[RM_KV_KEY_BYTES], who[96], text[300];
    if (!j->store) return;
    rm_reason why = rm_reason_kept();
    key_of(j, j->config->rank, key);
    rm_kv_who(who, sizeof who);
    int length = snprintf(text, sizeof text, "%d %lld %d %.79s\t%s", step, (long long)count,
                          (int)(1000 * (BEAT_S + j->round_s)), doing, who);
    if (rm_kv_set(j->store, key, text, (uint32_t)length)) give_up_store(j);
    (void)rm_reason_again(REMAT_OK, &why);
}

static void read_word(mate *m, char *text, double now) {
    char *end, *tab = strchr(text, '\t');
    int32_t step = (int32_t)strtol(text, &end, 10);
    long long count = strtoll(end, &end, 10);
    char beat[sizeof m->beat];
    snprintf(beat, sizeof beat, "%d.%lld", step, count);
    m->round_s = 1e-3 * (double)strtol(end, &end, 10);
    if (strcmp(beat, m->beat)) m->heard_s = now;
    memcpy(m->beat, beat, sizeof beat);
    m->step = step;
    if (!tab) return;
    *tab = 0;
    snprintf(m->doing, sizeof m->doing, "%s", rm_printable(end + (*end == ' ')));
    snprintf(m->who, sizeof m->who, "%s", rm_printable(tab + 1));
}

/* The store has answered, so the next query's waiting time starts anew. */
static void note_answer(rm_joining *j) {
    rm_side_thread_lock(&j->heartbeat);
    if (j->asking_s > 0) j->asking_s = now_s();
    rm_side_thread_unlock(&j->heartbeat);
}

static void read_mate(rm_joining *j, int32_t rank) {
    char key[RM_KV_KEY_BYTES], text[400];
    uint32_t length;
    key_of(j, rank, key);
    bool there = rm_kv_peek(j->store, key, text, sizeof text - 1, &length);
    note_answer(j);
    if (!there) return;
    text[length] = 0;
    rm_side_thread_lock(&j->heartbeat);
    double now = clock_s(j);
    rm_side_thread_unlock(&j->heartbeat);
    read_word(&j->mates[rank], text, now);
}

static double silence_of(const rm_joining *j, const mate *m, double now) {
    double allowed = QUIET_S + 4 * (m->round_s - BEAT_S + j->round_s), silence = now - m->heard_s;
    return m->step == 0 || m->step == OPEN || silence < allowed ? 0 : silence;
}

/* ---- Descriptions ------------------------------------------------------------------------------------------------ */

/* Finds the ranks that lag behind all others. Returns false if there are none. */
static bool find_lagging(const rm_joining *j, bool *others) {
    int32_t least = OPEN, most = 0, size = j->config->size;
    for (int32_t r = 0; r < size; r++) {
        int32_t step = j->mates[r].step;
        if (step < least) least = step;
        if (step > most) most = step;
    }
    for (int32_t r = 0; r < size; r++) others[r] = j->mates[r].step != least;
    return least < most;
}

/* If all ranks are in the same step, finds those without a heartbeat. Returns false if there are none. */
static bool find_silent(const rm_joining *j, bool *others, double now) {
    bool any = false;
    for (int32_t r = 0; r < j->config->size; r++) {
        others[r] = r == j->config->rank || silence_of(j, &j->mates[r], now) == 0;
        any |= !others[r];
    }
    return any;
}

/* `who`: "rank 1 of 3 (node7, process 4711)", "ranks 1, 3-7 of 8"; `how`: ", which ...", or "" if nothing is known. */
static void describe(const rm_joining *j, const bool *others, double now, char *who, size_t who_bytes, char *how,
                     size_t how_bytes) {
    int32_t one = -1, count = 0;
    char list[480];
    for (int32_t r = 0; r < j->config->size; r++)
        if (!others[r]) one = r, count++;
    rm_missing_ranks(others, j->config->size, list, sizeof list);
    const mate *m = &j->mates[one];
    bool known = count == 1 && m->step > 0;
    snprintf(who, who_bytes, known ? "%s (%s)" : "%s", list, m->who);
    *how = 0;
    if (!known) return;
    if (one == j->config->rank)
        snprintf(how, how_bytes, "it is %s", j->doing);
    else
        snprintf(how, how_bytes, "it was last %s, and last responded %.1f s ago", m->doing, now - m->heard_s);
}

/* Describes the ranks that all others wait for. */
static void name_awaited(const rm_joining *j, bool *others, double now, char *who, size_t who_bytes, char *how,
                         size_t how_bytes) {
    if (!j->store) {
        snprintf(who, who_bytes, "the other ranks");
        snprintf(how, how_bytes, "only MPI knows them, and this one is %s", j->doing);
    } else if (find_lagging(j, others) || find_silent(j, others, now)) {
        describe(j, others, now, who, who_bytes, how, how_bytes);
    } else {
        snprintf(who, who_bytes, "all %d ranks", j->config->size);
        snprintf(how, how_bytes, "they are %s", j->doing);
    }
}

/* ---- Ending the wait --------------------------------------------------------------------------------------------- */

/* The first reason holds for all ranks. */
static void tell_all(rm_joining *j, const char *sentence) {
    char key[RM_KV_KEY_BYTES];
    uint32_t length;
    rm_reason why = rm_reason_kept();
    snprintf(key, sizeof key, "%s/abort", j->config->name);
    if (j->store && !j->silent && !rm_kv_peek(j->store, key, NULL, 0, &length))
        (void)rm_kv_set(j->store, key, sentence, (uint32_t)strlen(sentence));
    (void)rm_reason_again(REMAT_OK, &why);
}

static void end_for_all(rm_joining *j, const char *sentence) {
    tell_all(j, sentence);
    set_failure(j, sentence);
}

static bool is_over(rm_joining *j) {
    char key[RM_KV_KEY_BYTES], text[900], who[160];
    uint32_t length;
    snprintf(key, sizeof key, "%s/abort", j->config->name);
    remat_status status = rm_kv_get(j->store, key, text, sizeof text - 1, &length, -1);
    note_answer(j);
    if (status == REMAT_OK) {
        text[length] = 0;
        set_failure(j, rm_printable(text));
    } else if (status != REMAT_MISSING) {
        give_up_store(j);
    }
    if (status != REMAT_MISSING) return true;
    if (!rm_kv_lost(j->store, -1, who, sizeof who)) return false;
    snprintf(text, sizeof text, "rank %s died before the group had started", who);
    end_for_all(j, text);
    return true;
}

/* A rank that has closed its store cannot arrive any more, even if it exited normally. */
static bool has_one_left(rm_joining *j, const bool *others) {
    char who[128], text[400];
    for (int32_t r = 0; r < j->config->size; r++) {
        if (others[r] || r == j->config->rank || !rm_kv_left(j->store, r, who, sizeof who)) continue;
        read_mate(j, r);
        if (j->mates[r].step == OPEN) continue; /* it had opened the group before it ended */
        snprintf(text, sizeof text,
                 "rank %d of %d (%s) ended before the group had started, while the others waited for it", r,
                 j->config->size, who);
        end_for_all(j, text);
        return true;
    }
    return false;
}

static void give_up(rm_joining *j, const char *who, const char *how) {
    const rm_group_config *c = j->config;
    char text[900];
    bool named = strncmp(who, "all ", 4);
    int used =
        snprintf(text, sizeof text,
                 named ? "%.500s did not join within %lld ms" : "%.500s joined, but did not connect within %lld ms",
                 who, (long long)c->join_ms);
    if (*how) used += snprintf(text + used, sizeof text - (size_t)used, ": %.200s", how);
    if (c->join_name) snprintf(text + used, sizeof text - (size_t)used, ". This is the limit of %s", c->join_name);
    end_for_all(j, text);
}

/* ---- The heartbeat thread ---------------------------------------------------------------------------------------- */

/* Whether this is the lowest live rank, which decides for all. */
static bool is_judge(rm_joining *j) {
    for (int32_t r = 0; r < j->config->rank && !j->ending; r++) {
        read_mate(j, r);
        const mate *m = &j->mates[r];
        rm_side_thread_lock(&j->heartbeat);
        double now = clock_s(j);
        rm_side_thread_unlock(&j->heartbeat);
        if (m->step > 0 && m->step < OPEN && silence_of(j, m, now) == 0) return false;
    }
    return true;
}

static void judge(rm_joining *j, bool late) {
    const rm_group_config *c = j->config;
    char who[600], how[240];
    bool *others = rm_calloc((size_t)c->size, sizeof *others);
    if (!others) return;
    for (int32_t r = 0; j->store && r < c->size && !j->ending; r++) read_mate(j, r);
    rm_side_thread_lock(&j->heartbeat);
    double now = clock_s(j);
    j->mates[c->rank].step = j->step;
    snprintf(j->mates[c->rank].doing, sizeof j->mates[c->rank].doing, "%s", j->doing);
    name_awaited(j, others, now, who, sizeof who, how, sizeof how);
    snprintf(j->awaited, sizeof j->awaited, "%s\n%s", who, how);
    rm_side_thread_unlock(&j->heartbeat);
    if (late)
        give_up(j, who, how);
    else if (j->store && !j->ending)
        (void)has_one_left(j, others);
    rm_free(others);
}

/* The store numbers the processes that it refuses. */
static void tell_refused(rm_joining *j) {
    char key[32], who[400], sentence[440];
    uint32_t bytes;
    for (; j->store && j->config->say && j->config->rank == 0; j->refused++) {
        snprintf(key, sizeof key, RM_KV_REFUSED_KEY, j->refused + 1);
        if (!rm_kv_peek(j->store, key, who, sizeof who - 1, &bytes)) return;
        who[bytes] = 0;
        snprintf(sentence, sizeof sentence, "has refused %s", rm_printable(who));
        j->config->say(j->config->context, sentence);
    }
}

static void look_round(rm_joining *j) {
    rm_side_thread_lock(&j->heartbeat);
    double now = clock_s(j);
    bool late = now - j->since_s > 1e-3 * (double)j->config->join_ms;
    rm_side_thread_unlock(&j->heartbeat);
    if (j->store && is_over(j)) return;
    if (j->ending) return;
    tell_refused(j);
    bool judges = j->store ? is_judge(j) : j->config->rank == 0;
    rm_side_thread_lock(&j->heartbeat);
    j->speaks = judges;
    rm_side_thread_unlock(&j->heartbeat);
    if ((judges || late) && !j->ending) judge(j, late);
}

/* Between two queries, the store has answered. */
static void *beat(void *context) {
    rm_joining *j = context;
    rm_side_thread_lock(&j->heartbeat);
    for (double pause = FIRST_BEAT_S; rm_side_thread_doze(&j->heartbeat, now_s() + pause);) {
        double start = now_s(), due = 1e-3 * (double)j->config->join_ms - (clock_s(j) - j->since_s);
        int32_t step = j->step;
        int64_t count = ++j->count;
        const char *doing = j->doing;
        bool over = *j->failure;
        j->asking_s = start;
        rm_side_thread_unlock(&j->heartbeat);
        if (!over && !j->ending) leave_word(j, step, count, doing);
        if (!over && !j->silent && !j->ending) {
            note_answer(j);
            look_round(j);
        }
        rm_side_thread_lock(&j->heartbeat);
        j->asking_s = 0;
        j->round_s = now_s() - start;
        pause = due > 0 && due < BEAT_S ? due + 0.001 : BEAT_S;
    }
    rm_side_thread_unlock(&j->heartbeat);
    return NULL;
}

/* ---- The reporting thread, which never queries the store and so never blocks ------------------------------------- */

static void say(rm_joining *j, const char *who, const char *how, double waited) {
    char sentence[1000];
    snprintf(sentence, sizeof sentence, "waiting for %.500s since %.0f s; up to %.4g s%s%.380s", who, waited,
             1e-3 * (double)j->config->join_ms, *how ? "; " : "", how);
    j->config->say(j->config->context, rm_printable(sentence));
}

typedef struct {
    int32_t step;
    double next_s; /* when to report again, in seconds since the start of the step */
    char who[500]; /* the ranks named in the last report */
    bool store;    /* the store has been reported */
} told;

/* While ranks are arriving, the list changes all the time; after that, a change is reported at once. */
static bool is_due(const told *t, const char *who, double waited) {
    return waited >= t->next_s ||
           (t->step > 1 && *t->who && strncmp(t->who, who, sizeof t->who - 1) && waited >= FIRST_S);
}

static void speak(rm_joining *j, told *t, char *awaited, double waited) {
    char *how = strchr(awaited, '\n');
    if (!how) return;
    *how++ = 0;
    if (!is_due(t, awaited, waited)) return;
    if (waited >= t->next_s) t->next_s = t->next_s < SECOND_S ? SECOND_S : waited + LATER_S;
    snprintf(t->who, sizeof t->who, "%.*s", (int)sizeof t->who - 1, awaited);
    char doubt[400] = "";
    bool doubtful = t->step == 1 && j->config->rank == 0 && j->store && rm_kv_doubt(j->store, doubt, sizeof doubt);
    say(j, awaited, doubtful ? doubt : how, waited);
}

static void speak_of_store(rm_joining *j, told *t, double asking) {
    char sentence[128];
    const char *who =
        rm_kv_port(j->store) > 0 ? "rank 0, whose store does not answer," : "the file in which ranks meet";
    snprintf(sentence, sizeof sentence, "waiting for %s since %.0f s", who, asking);
    if (!t->store) j->config->say(j->config->context, sentence);
    t->store = true;
}

static void talk_once(rm_joining *j, told *t) {
    char awaited[sizeof j->awaited];
    rm_side_thread_lock(&j->heartbeat);
    const double now = now_s(), waited = clock_s(j) - j->since_s, asking = j->asking_s > 0 ? now - j->asking_s : 0;
    const bool over = *j->failure, stuck = over && !j->stuck && now - j->failed_s > STUCK_S;
    const bool late = asking > QUIET_S + 3 * j->round_s, speaks = j->speaks;
    if (t->step != j->step) *t = (told){.step = j->step, .next_s = FIRST_S, .store = t->store};
    memcpy(awaited, j->awaited, sizeof awaited);
    j->stuck |= stuck;
    rm_side_thread_unlock(&j->heartbeat);
    if (stuck && j->config->stuck) j->config->stuck(j->config->context, j->failure);
    if (!late) t->store &= asking > 0;
    if (over) return;
    if (late)
        speak_of_store(j, t, asking);
    else if (speaks)
        speak(j, t, awaited, waited);
}

static void *report_waiting(void *context) {
    rm_joining *j = context;
    told t = {.next_s = FIRST_S};
    rm_side_thread_lock(&j->reporter);
    while (rm_side_thread_doze(&j->reporter, now_s() + REPORT_S)) {
        rm_side_thread_unlock(&j->reporter);
        talk_once(j, &t);
        rm_side_thread_lock(&j->reporter);
    }
    rm_side_thread_unlock(&j->reporter);
    return NULL;
}

/* ---- For who joins ----------------------------------------------------------------------------------------------- */

static remat_status start(rm_joining *j) {
    if (j->config->size == 1) return REMAT_OK;
    TRY(rm_side_thread_start(&j->heartbeat, beat, j, "send heartbeats"));
    j->has_heartbeat = true;
    if (!j->config->say) return REMAT_OK;
    TRY(rm_side_thread_start(&j->reporter, report_waiting, j, "report waiting"));
    j->has_reporter = true;
    return REMAT_OK;
}

remat_status rm_joining_begin(const rm_group_config *config, rm_joining **out) {
    rm_joining *j = rm_calloc(1, sizeof *j);
    mate *mates = rm_calloc((size_t)config->size, sizeof *mates);
    if (!j || !mates) {
        rm_free(j);
        rm_free(mates);
        FAIL(MEMORY, "out of memory to meet %d ranks", config->size);
    }
    *j = (rm_joining){
        .config = config, .store = config->store, .mates = mates, .step = 1, .doing = "meeting the other ranks"};
    j->since_s = j->looked_s = now_s();
    if (config->size > 1) leave_word(j, j->step, 0, j->doing);
    j->round_s = 3 * (now_s() - j->since_s); /* a first guess, from the duration of one of several queries */
    remat_status status = start(j);
    if (status)
        rm_joining_free(j);
    else
        *out = j;
    return status;
}

void rm_joining_step(rm_joining *j, const char *doing) {
    if (!j->has_heartbeat) return;
    rm_side_thread_lock(&j->heartbeat);
    j->step++;
    j->doing = doing;
    j->since_s = clock_s(j);
    j->awaited[0] = 0;
    rm_side_thread_unlock(&j->heartbeat);
}

remat_status rm_joining_look(rm_joining *j) {
    char text[sizeof j->failure];
    if (!j->has_heartbeat) return REMAT_OK;
    rm_side_thread_lock(&j->heartbeat);
    (void)clock_s(j);
    memcpy(text, j->failure, sizeof text);
    rm_side_thread_unlock(&j->heartbeat);
    return *text ? rm_fail(REMAT_PEER, "%s", text) : REMAT_OK;
}

remat_status rm_joining_pause(rm_joining *j, int64_t *pause_us) {
    const int64_t longest = 20000 + 250 * j->config->size; /* with more ranks, each one queries less often */
    TRY(rm_joining_look(j));
    *pause_us = *pause_us ? *pause_us * 3 / 2 : 100;
    if (*pause_us > longest) *pause_us = longest;
    usleep((useconds_t)*pause_us);
    return REMAT_OK;
}

/* A rank that ends publishes the reason before its store goes. */
remat_status rm_joining_get(rm_joining *j, const char *key, void *value, uint32_t capacity, uint32_t *bytes) {
    for (int64_t pause = 0;;) {
        remat_status status = rm_kv_get(j->store, key, value, capacity, bytes, -1);
        if (status == REMAT_OK) return REMAT_OK;
        rm_reason why = rm_reason_kept();
        TRY(rm_joining_look(j));
        if (status != REMAT_MISSING) {
            j->silent = true;
            return rm_reason_again(status, &why);
        }
        note_answer(j);
        TRY(rm_joining_pause(j, &pause));
    }
}

int64_t rm_joining_left_ms(rm_joining *j) {
    if (!j->has_heartbeat) return j->config->join_ms;
    rm_side_thread_lock(&j->heartbeat);
    int64_t left = j->config->join_ms - (int64_t)(1000 * (clock_s(j) - j->since_s));
    rm_side_thread_unlock(&j->heartbeat);
    return left > 1 ? left : 1;
}

static void stop(rm_joining *j) {
    j->ending = true;
    if (j->has_reporter) rm_side_thread_end(&j->reporter);
    if (j->has_heartbeat) rm_side_thread_end(&j->heartbeat);
    j->has_reporter = j->has_heartbeat = false;
}

void rm_joining_end(rm_joining *j, remat_status status) {
    char who[96], text[900];
    rm_reason why = rm_reason_kept();
    stop(j);
    rm_kv_who(who, sizeof who);
    snprintf(text, sizeof text, "rank %d of %d (%s) could not join: %.600s", j->config->rank, j->config->size, who,
             why.text);
    if (j->config->size > 1 && status && !*j->failure) tell_all(j, text);
    if (j->config->size > 1 && !status) leave_word(j, OPEN, 0, "training");
    (void)rm_reason_again(REMAT_OK, &why);
}

void rm_joining_free(rm_joining *j) {
    if (!j) return;
    stop(j);
    rm_free(j->mates);
    rm_free(j);
}
