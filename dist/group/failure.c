/* failure.c: finds out through the store which rank failed. */
#define _GNU_SOURCE
#include "dist/group/failure.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "dist/store/store_kind.h"
#include "memory/clock.h"

#define LOOK_NS 50000000
#define CONFESS_MS 2000   /* ranks that are affected by one failure notice it within this time, also on busy machines */
#define LEARN_MS 1000     /* a connection ends before the store knows why */
#define LONG_NS 250000000 /* a wait that the store is told of: within LEARN_MS, and rare */

remat_status rm_failure_begin(rm_failure *failure, const rm_group_config *config) {
    char key[RM_KV_KEY_BYTES], who[96];
    failure->config = config;
    atomic_store(&failure->looked_ns, 0);
    if (!config->store) return REMAT_OK;
    rm_kv_who(who, sizeof who);
    snprintf(key, sizeof key, "%s/who/%d", config->name, config->rank);
    return rm_kv_set(config->store, key, who, (uint32_t)strlen(who));
}

static const char *who_is(const rm_group_config *config, int32_t rank, char *text, size_t bytes) {
    char key[RM_KV_KEY_BYTES];
    uint32_t length = 0;
    snprintf(key, sizeof key, "%s/who/%d", config->name, rank);
    if (!rm_kv_peek(config->store, key, text, (uint32_t)bytes - 1, &length)) length = 0;
    text[length] = 0;
    return length ? text : "on an unknown host";
}

static remat_status is_lost(const rm_group_config *config, const rm_fingerprint *now) {
    char who[160], doing[RM_FINGERPRINT_TEXT];
    if (!rm_kv_lost(config->store, -1, who, sizeof who)) return REMAT_OK;
    if (!now) FAIL(PEER, "rank %s is gone: it ended without closing its store", who);
    FAIL(PEER, "rank %s is gone: it ended without closing its store, while rank %d was in %s", who,
         rm_group_number(config, config->rank), rm_fingerprint_text(config, now, doing));
}

static remat_status is_aborted(const rm_group_config *config) {
    char key[RM_KV_KEY_BYTES], reason[700];
    uint32_t length;
    snprintf(key, sizeof key, "%s/abort", config->name);
    if (!rm_kv_peek(config->store, key, reason, sizeof reason - 1, &length)) return REMAT_OK;
    reason[length] = 0;
    return rm_fail(REMAT_PEER, "%s", reason);
}

remat_status rm_failure_look(rm_failure *failure, const rm_fingerprint *now) {
    if (!failure->config->store) return REMAT_OK;
    uint64_t time = rm_now_ns();
    if (time - atomic_load(&failure->looked_ns) < LOOK_NS) return REMAT_OK;
    atomic_store(&failure->looked_ns, time);
    TRY(is_lost(failure->config, now));
    return is_aborted(failure->config);
}

void rm_failure_abort(rm_failure *failure, const char *reason) {
    char key[RM_KV_KEY_BYTES], text[700];
    if (!failure->config->store) return;
    snprintf(key, sizeof key, "%s/abort", failure->config->name);
    snprintf(text, sizeof text, "rank %d ended the group: %.600s",
             rm_group_number(failure->config, failure->config->rank), reason);
    rm_reason why = rm_reason_kept();
    uint32_t length;
    if (!rm_kv_peek(failure->config->store, key, NULL, 0, &length)) /* the first reason holds for all ranks */
        (void)rm_kv_set(failure->config->store, key, text, (uint32_t)strlen(text));
    (void)rm_reason_again(REMAT_OK, &why);
}

/* Reports that this rank has reached the call. Returns the first rank that has not; -1: all have. */
static int32_t who_did_not_come(const rm_group_config *config, uint64_t call) {
    char key[RM_KV_KEY_BYTES];
    uint32_t bytes;
    for (int32_t r = 0; r < config->size; r++) {
        snprintf(key, sizeof key, "%s/failed/%llu/%d", config->name, (unsigned long long)call, r);
        if (!rm_kv_peek(config->store, key, NULL, 0, &bytes)) return r;
    }
    return -1;
}

remat_status rm_failure_find(rm_failure *failure, const rm_fingerprint *now, const char *why) {
    const rm_group_config *config = failure->config;
    char key[RM_KV_KEY_BYTES], doing[RM_FINGERPRINT_TEXT], who[96];
    rm_fingerprint_text(config, now, doing);
    if (!config->store)
        FAIL(PEER, "rank %d could not finish %s: %.300s", rm_group_number(config, config->rank), doing, why);
    snprintf(key, sizeof key, "%s/failed/%llu/%d", config->name, (unsigned long long)now->call, config->rank);
    (void)rm_kv_set(config->store, key, "", 0);
    int32_t missing = -1;
    for (uint64_t start = rm_now_ns(); rm_now_ns() - start < CONFESS_MS * UINT64_C(1000000); usleep(10000)) {
        TRY(is_lost(config, now));
        TRY(is_aborted(config));
        if ((missing = who_did_not_come(config, now->call)) < 0) break;
    }
    if (missing < 0) FAIL(PEER, "all ranks reached %s, but could not finish it: %.300s", doing, why);
    FAIL(PEER, "rank %d (%s) did not reach %s, where rank %d waited for it: %.300s", rm_group_number(config, missing),
         who_is(config, missing, who, sizeof who), doing, rm_group_number(config, config->rank), why);
}

/* ---- Chains of ranks that wait ----------------------------------------------------------------------------------- */

static void tell(const rm_failure *failure, int32_t waits_for) {
    char key[RM_KV_KEY_BYTES];
    snprintf(key, sizeof key, "%s/waits/%d", failure->config->name, failure->config->rank);
    rm_reason why = rm_reason_kept();
    (void)rm_kv_set(failure->config->store, key, &waits_for, sizeof waits_for);
    (void)rm_reason_again(REMAT_OK, &why);
}

static void *watch(void *context) {
    rm_failure *failure = context;
    rm_side_thread_lock(&failure->side);
    while (rm_side_thread_doze(&failure->side, 1e-9 * (double)rm_now_ns() + 0.1)) {
        if (failure->told || !failure->since_ns || rm_now_ns() - failure->since_ns < LONG_NS) continue;
        tell(failure, failure->waits_for);
        failure->told = true;
    }
    rm_side_thread_unlock(&failure->side);
    return NULL;
}

remat_status rm_failure_wait(rm_failure *failure, int32_t rank) {
    if (!failure->config->store || failure->config->size == 2) return REMAT_OK; /* no chain */
    if (!failure->watches) TRY(rm_side_thread_start(&failure->side, watch, failure, "watch messages"));
    failure->watches = true;
    rm_side_thread_lock(&failure->side);
    failure->waits_for = rank;
    failure->since_ns = rm_now_ns();
    rm_side_thread_unlock(&failure->side);
    return REMAT_OK;
}

void rm_failure_waited(rm_failure *failure) {
    if (!failure->watches) return;
    rm_side_thread_lock(&failure->side);
    failure->since_ns = 0;
    if (failure->told) tell(failure, -1);
    failure->told = false;
    rm_side_thread_unlock(&failure->side);
}

void rm_failure_end(rm_failure *failure) {
    if (failure->watches) rm_side_thread_end(&failure->side);
    failure->watches = false;
}

/* Follows the chain from `waiter`, which waits for `rank`, to the first rank that does not wait for another. */
static void find_end_of_chain(const rm_group_config *config, int32_t *waiter, int32_t *rank) {
    for (int32_t hops = 0; hops < config->size; hops++) {
        char key[RM_KV_KEY_BYTES];
        int32_t next = -1;
        uint32_t bytes;
        snprintf(key, sizeof key, "%s/waits/%d", config->name, *rank);
        if (!rm_kv_peek(config->store, key, &next, sizeof next, &bytes) || next < 0 || next >= config->size) return;
        if (next == config->rank) return; /* both wait for each other */
        *waiter = *rank;
        *rank = next;
    }
}

remat_status rm_failure_find_rank(rm_failure *failure, int32_t rank, bool sending, const char *why) {
    const rm_group_config *config = failure->config;
    char who[96] = "on an unknown host";
    for (uint64_t start = rm_now_ns(); config->store && rm_now_ns() - start < LEARN_MS * UINT64_C(1000000);
         usleep(10000)) {
        TRY(is_lost(config, NULL));
        TRY(is_aborted(config));
    }
    int32_t waiter = config->rank;
    if (config->store) find_end_of_chain(config, &waiter, &rank);
    if (config->store) who_is(config, rank, who, sizeof who);
    const char *what = waiter != config->rank ? "exchange messages with"
                       : sending              ? "receive what it was sent by"
                                              : "send to";
    remat_status status = rm_fail(REMAT_PEER, "rank %d (%s) did not %s rank %d: %.300s", rm_group_number(config, rank),
                                  who, what, rm_group_number(config, waiter), why);
    rm_failure_abort(failure, remat_last_error());
    return status;
}
