/* heartbeat.c: see heartbeat.h. It uses a separate thread, because a request to a store that rank 0 no longer
 * serves can block, and the thread that prints messages must not block. */
#include "train/ranks/heartbeat.h"

#include "memory/host.h"
#include "dist/group/side_thread.h"
#include "train/text.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define BEAT_S 0.5
#define QUIET_S 1.5 /* three heartbeats */
#define FIRST_S 5.0 /* until the first one: the network's delay is unknown */
#define AWAY_S 1.5  /* neither thread has looked for so long: this process was stopped, or got no processor */
#define LEFT "left"

struct rm_heartbeat {
    rm_group *group;
    rm_kv *store;
    int32_t rank, next;
    char host[200];
    rm_side_thread side; /* its lock protects the members below */
    double asking_s, heard_s,
        awake_s;                  /* clock: since when it asks, 0: it does not; last new sign; last look by anybody */
    double round_s, next_round_s; /* time from one heartbeat to the next: this rank's, the next rank's */
    double answer_s;              /* longest time that an answer of the store has taken */
    double failed_s;              /* when the group was found to have failed; 0: not yet */
    char failure[1024];
    char sign
        [300]; /* the next rank's last one: "COUNT ROUND rank 2 on node7 (process 4711)"; ROUND: its round_s, in ms */
};

static void key_of(int32_t rank, char key[RM_KV_KEY_BYTES]) { snprintf(key, RM_KV_KEY_BYTES, "train/alive/%d", rank); }

/* Ignores a store that fails, because the group notices it. */
static void say(rm_heartbeat *b, const char *text) {
    char key[RM_KV_KEY_BYTES];
    key_of(b->rank, key);
    (void)rm_kv_set(b->store, key, text, (uint32_t)strlen(text));
}

static void listen(rm_heartbeat *b, char *text, uint32_t bytes) {
    char key[RM_KV_KEY_BYTES];
    uint32_t length;
    key_of(b->next, key);
    if (!rm_kv_peek(b->store, key, text, bytes - 1, &length)) length = 0;
    text[length] = 0;
    rm_printable(text);
}

/* Returns the time. Call it with the lock. A process that was stopped cannot tell how long others were silent: if a
 * whole job was suspended, its ranks wake up one after the other, and none may count the time that it slept. Either
 * thread may wake first, so both call this. */
static double look(rm_heartbeat *b) {
    double now = rm_now_s();
    if (now - b->awake_s > AWAY_S) {
        b->heard_s = now;
        if (b->asking_s > 0) b->asking_s = now;
        if (b->failed_s > 0) b->failed_s = now;
    }
    b->awake_s = now;
    return now;
}

static void note(rm_heartbeat *b, const char *sign) {
    double now = look(b);
    if (strcmp(sign, b->sign)) b->heard_s = now;
    if (*sign) snprintf(b->sign, sizeof b->sign, "%s", sign);
    int round_ms;
    if (sscanf(b->sign, "%*d %d", &round_ms) == 1) b->next_round_s = 1e-3 * round_ms;
}

/* The store has answered; the next request starts. */
static void note_answer(rm_heartbeat *b) {
    rm_side_thread_lock(&b->side);
    double now = look(b), took = now - b->asking_s;
    if (took > b->answer_s) b->answer_s = took;
    b->asking_s = now;
    rm_side_thread_unlock(&b->side);
}

static void *beat(void *context) {
    rm_heartbeat *b = context;
    int64_t count = 0;
    rm_side_thread_lock(&b->side);
    do {
        char mine[300], theirs[300];
        double start = rm_now_s();
        b->asking_s = look(b);
        rm_side_thread_unlock(&b->side);
        listen(b, theirs, sizeof theirs);
        note_answer(b);
        bool failed = rm_group_poll(b->group) != REMAT_OK;
        note_answer(b);
        /* Sent last, so that the first heartbeat already knows its own delay. */
        snprintf(mine, sizeof mine, "%lld %d rank %d on %s (process %d)", (long long)count++,
                 (int)(1000 * (BEAT_S + 1.5 * (rm_now_s() - start))), b->rank, b->host, (int)getpid());
        say(b, mine);
        note_answer(b);
        rm_side_thread_lock(&b->side);
        b->round_s = BEAT_S + rm_now_s() - start;
        if (failed && b->failed_s == 0) {
            b->failed_s = rm_now_s();
            snprintf(b->failure, sizeof b->failure, "%s", remat_last_error());
        }
        b->asking_s = 0;
        note(b, theirs);
    } while (rm_side_thread_doze(&b->side, rm_now_s() + BEAT_S));
    rm_side_thread_unlock(&b->side);
    return NULL;
}

remat_status rm_heartbeat_start(rm_group *group, rm_kv *store, const char *host, rm_heartbeat **out) {
    int32_t rank = rm_group_rank(group);
    rm_heartbeat *b = rm_calloc(1, sizeof *b);
    *out = NULL;
    REQUIRE(b, MEMORY, "no memory for heartbeats");
    *b = (rm_heartbeat){.group = group, .store = store, .rank = rank, .next = (rank + 1) % rm_group_size(group)};
    b->heard_s = b->awake_s = rm_now_s();
    b->round_s = b->next_round_s = BEAT_S;
    snprintf(b->host, sizeof b->host, "%s", host);
    remat_status status = rm_side_thread_start(&b->side, beat, b, "send heartbeats");
    if (!status) *out = b;
    if (status) rm_free(b);
    return status;
}

void rm_heartbeat_stop(rm_heartbeat *b) {
    if (!b) return;
    rm_side_thread_end(&b->side);
    say(b, LEFT);
    rm_free(b);
}

double rm_heartbeat_silence(rm_heartbeat *b, char *who, size_t bytes) {
    rm_side_thread_lock(&b->side);
    const char *name = strstr(b->sign, " rank ");
    bool left = !strcmp(b->sign, LEFT), asking = b->asking_s > 0;
    double now = look(b), silence = left || asking ? 0 : now - b->heard_s;
    if (name)
        snprintf(who, bytes, "%s", name + 1);
    else
        snprintf(who, bytes, "rank %d", b->next);
    rm_side_thread_unlock(&b->side);
    return silence;
}

double rm_heartbeat_quiet_s(rm_heartbeat *b) {
    rm_side_thread_lock(&b->side);
    double asking = b->round_s + b->next_round_s - 2 * BEAT_S, quiet = *b->sign ? QUIET_S + 4 * asking : FIRST_S;
    rm_side_thread_unlock(&b->side);
    return quiet;
}

double rm_heartbeat_store_quiet_s(rm_heartbeat *b) {
    rm_side_thread_lock(&b->side);
    double answers = *b->sign ? 3 * b->answer_s : FIRST_S;
    rm_side_thread_unlock(&b->side);
    return answers > QUIET_S ? answers : QUIET_S;
}

double rm_heartbeat_store_silence(rm_heartbeat *b) {
    rm_side_thread_lock(&b->side);
    double now = look(b), silence = b->asking_s > 0 ? now - b->asking_s : 0;
    rm_side_thread_unlock(&b->side);
    return silence;
}

double rm_heartbeat_failure(rm_heartbeat *b, char *sentence, size_t bytes) {
    rm_side_thread_lock(&b->side);
    double now = look(b), since = b->failed_s > 0 ? now - b->failed_s : 0;
    snprintf(sentence, bytes, "%s", b->failure);
    rm_side_thread_unlock(&b->side);
    return since;
}
