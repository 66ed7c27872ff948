/* arrivals.c: see arrivals.h. Every rank leaves its name in the store; the last to come says so, and rank 0, which looks again
 * and again while it waits, says so too when that cannot happen any more. */
#define _GNU_SOURCE
#include "dist/store/arrivals.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "dist/store/boot_id.h"
#include "memory/clock.h"
#include "memory/host.h"

#define MS UINT64_C(1000000)
#define LOOK_NS (200 * MS)     /* between looks at who is refused or dead */
#define FIRST_NS (5000 * MS)   /* until the first words about who is missing; clusters start slowly */
#define SECOND_NS (30000 * MS) /* until the second; from then on */
#define LATER_NS (60000 * MS)
#define ELSEWHERE 1000001 /* what a rank adds that cannot share memory with rank 0; others add 1 */

/* What ends the call. sum < 0: it has failed, and why. */
typedef struct {
    int64_t sum;
    char why[700];
} verdict;

/* What two ranks have in common when they can share memory: the running kernel and the numbering of processes. */
static void place_of_this_process(char *text, size_t bytes) {
    char boot[RM_BOOT_ID_BYTES], pids[64] = "";
    rm_boot_id(boot);
    if (readlink("/proc/self/ns/pid", pids, sizeof pids - 1) < 0) pids[0] = 0;
    snprintf(text, bytes, "%s %s %u", boot, pids, (unsigned)geteuid());
}

/* ---- Who is missing -------------------------------------------------------------------------------------------------
 * */

void rm_missing_ranks(const bool *here, int32_t size, char *text, size_t bytes) {
    char list[400] = "";
    int32_t missing = 0;
    size_t used = 0, room = sizeof list - 40;
    for (int32_t r = 0, end; r < size; r = end) {
        for (end = r + 1; end < size && here[end] == here[r];) end++;
        if (here[r]) continue;
        missing += end - r;
        if (used >= room) continue; /* the count says how many there are */
        used += (size_t)snprintf(list + used, sizeof list - used, used ? ", %d" : "%d", r);
        if (end - r > 1)
            used += (size_t)snprintf(list + used, sizeof list - used, end - r > 2 ? "-%d" : ", %d", end - 1);
    }
    if (used >= room) snprintf(list + used, sizeof list - used, ", ... (%d in all)", missing);
    snprintf(text, bytes, "rank%s %s of %d", missing == 1 ? "" : "s", list, size);
}

static void key_of(const rm_group_config *config, const char *what, char key[RM_KV_KEY_BYTES]) {
    snprintf(key, RM_KV_KEY_BYTES, "%s/%s", config->name, what);
}

static remat_status who_is_missing(const rm_group_config *config, char *text, size_t bytes) {
    bool *here = rm_calloc((size_t)config->size, sizeof *here);
    REQUIRE(here, MEMORY, "no memory to count %d ranks", config->size);
    for (int32_t r = 0; r < config->size; r++) {
        char key[RM_KV_KEY_BYTES], what[32];
        snprintf(what, sizeof what, "here/%d", r);
        key_of(config, what, key);
        here[r] = rm_kv_wait(config->store, key, -1) == REMAT_OK;
    }
    rm_missing_ranks(here, config->size, text, bytes);
    rm_free(here);
    return REMAT_OK;
}

/* ---- Rank 0, which waits and tells --------------------------------------------------------------------------------
 * */

typedef struct {
    const rm_group_config *config;
    uint64_t start_ns, looked_ns, next_ns; /* next_ns: from the start, when to speak of the missing again */
    int refused;                           /* refusals told so far */
} caller;

static void tell_missing(caller *c, uint64_t waited_ns) {
    char who[480], sentence[640];
    if (!c->config->say || waited_ns < c->next_ns) return;
    c->next_ns = c->next_ns < SECOND_NS ? SECOND_NS : waited_ns + LATER_NS;
    if (who_is_missing(c->config, who, sizeof who)) return;
    snprintf(sentence, sizeof sentence, "waiting for %s since %llu s; up to %lld s", who,
             (unsigned long long)(waited_ns / (1000 * MS)), (long long)c->config->timeout_ms / 1000);
    c->config->say(c->config->context, sentence);
}

/* The store numbers those whom it sends away. */
static void tell_refused(caller *c) {
    char key[32], who[400], sentence[440];
    uint32_t bytes;
    for (;; c->refused++) {
        snprintf(key, sizeof key, RM_KV_REFUSED_KEY, c->refused + 1);
        if (!c->config->say || rm_kv_get(c->config->store, key, who, sizeof who - 1, &bytes, -1)) return;
        who[bytes] = 0;
        snprintf(sentence, sizeof sentence, "has refused %s", rm_printable(who));
        c->config->say(c->config->context, sentence);
    }
}

/* PEER when it cannot come to an end any more. */
static remat_status look_around(caller *c) {
    char who[480];
    uint64_t now = rm_now_ns(), waited = now - c->start_ns;
    if (now - c->looked_ns < LOOK_NS) return REMAT_OK;
    c->looked_ns = now;
    tell_refused(c);
    if (rm_kv_lost(c->config->store, -1, who, sizeof who)) FAIL(PEER, "rank %s died before the group had started", who);
    tell_missing(c, waited);
    if (waited < (uint64_t)c->config->timeout_ms * MS) return REMAT_OK;
    TRY(who_is_missing(c->config, who, sizeof who));
    FAIL(PEER, "%s did not come within %lld ms", who, (long long)c->config->timeout_ms);
}

static remat_status wait_and_tell(const rm_group_config *config, const char *key, verdict *out) {
    caller c = {.config = config, .start_ns = rm_now_ns(), .next_ns = FIRST_NS};
    uint32_t bytes;
    for (long pause_us = 200;; pause_us = pause_us < 20000 ? 2 * pause_us : pause_us) {
        remat_status status = rm_kv_get(config->store, key, out, sizeof *out, &bytes, -1);
        if (status != REMAT_MISSING) return status;
        status = look_around(&c);
        if (status) { /* the others are told: they would take the end of the store for the cause */
            *out = (verdict){.sum = -1};
            snprintf(out->why, sizeof out->why, "%s", remat_last_error());
            (void)rm_kv_set(config->store, key, out, sizeof *out);
            return rm_fail(status, "%s", out->why);
        }
        nanosleep(&(struct timespec){.tv_nsec = pause_us * 1000}, NULL);
    }
}

/* ---- The call -----------------------------------------------------------------------------------------------------
 * */

static remat_status answer(const rm_group_config *config) {
    char key[RM_KV_KEY_BYTES], what[32];
    snprintf(what, sizeof what, "here/%d", config->rank);
    key_of(config, what, key);
    return rm_kv_set(config->store, key, "", 0);
}

/* Everybody compares with rank 0 and adds to the count of those elsewhere; the last to come knows the sum. */
remat_status rm_wait_for_ranks(const rm_group_config *config, bool *one_host) {
    char place[RM_KV_KEY_BYTES], count[RM_KV_KEY_BYTES], all[RM_KV_KEY_BYTES], mine[160], first[160] = "";
    uint32_t bytes;
    verdict end = {0};
    place_of_this_process(mine, sizeof mine);
    key_of(config, "place", place);
    key_of(config, "places", count);
    key_of(config, "all places", all);
    if (config->rank == 0) TRY(rm_kv_set(config->store, place, mine, (uint32_t)strlen(mine)));
    TRY(answer(config));
    TRY(rm_kv_get(config->store, place, first, sizeof first - 1, &bytes, config->timeout_ms));
    TRY(rm_kv_add(config->store, count, strcmp(mine, first) ? ELSEWHERE : 1, &end.sum));
    if (end.sum % (ELSEWHERE - 1) == config->size) TRY(rm_kv_set(config->store, all, &end, sizeof end));
    if (config->rank == 0)
        TRY(wait_and_tell(config, all, &end));
    else
        TRY(rm_kv_get(config->store, all, &end, sizeof end, &bytes, config->timeout_ms));
    if (end.sum < 0) FAIL(PEER, "%.690s", end.why);
    *one_host = end.sum < ELSEWHERE - 1;
    return REMAT_OK;
}
