/* store.c: the functions of store.h, which dispatch to the two kinds. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "dist/store/store_kind.h"
#include "memory/host.h"

struct rm_kv {
    const rm_kv_kind *kind;
    void *store;
    int64_t timeout_ms;
    pthread_mutex_t lock;
};

void rm_kv_who(char *text, size_t bytes) {
    char host[65] = "an unnamed host";
    (void)gethostname(host, sizeof host - 1);
    snprintf(text, bytes, "%s, process %d", host, (int)getpid());
}

remat_status rm_kv_open(const rm_kv_config *config, rm_kv **out) {
    REQUIRE(config->size >= 1 && config->rank >= 0 && config->rank < config->size, INVALID, "rank %d of %d ranks",
            config->rank, config->size);
    REQUIRE(config->timeout_ms >= 0, INVALID, "a timeout of %lld ms is not possible; use 0 or more",
            (long long)config->timeout_ms);
    REQUIRE(config->path || config->host, INVALID, "a store needs a host and port, or a path");
    rm_kv *store = rm_calloc(1, sizeof *store);
    REQUIRE(store, MEMORY, "out of memory for a store");
    rm_kv_config filled = *config;
    if (!filled.timeout_ms) filled.timeout_ms = 300000;
    *store = (rm_kv){.kind = config->path ? &rm_kv_file : &rm_kv_tcp, .timeout_ms = filled.timeout_ms};
    remat_status status = store->kind->open(&filled, &store->store);
    if (status) {
        rm_free(store);
        return status;
    }
    pthread_mutex_init(&store->lock, NULL);
    *out = store;
    return REMAT_OK;
}

void rm_kv_close(rm_kv *store) {
    if (!store) return;
    rm_reason why = rm_reason_kept();
    store->kind->close(store->store);
    (void)rm_reason_again(REMAT_OK, &why);
    pthread_mutex_destroy(&store->lock);
    rm_free(store);
}

static remat_status check_key(const char *key) {
    REQUIRE(key[0] && strlen(key) <= RM_KV_KEY_BYTES, INVALID, "a key of %zu bytes is not possible; use 1 to %u",
            strlen(key), RM_KV_KEY_BYTES);
    return REMAT_OK;
}

remat_status rm_kv_set(rm_kv *store, const char *key, const void *value, uint32_t bytes) {
    TRY(check_key(key));
    REQUIRE(bytes <= RM_KV_VALUE_BYTES, INVALID, "a value of %u bytes is too long; the maximum is %u", bytes,
            RM_KV_VALUE_BYTES);
    pthread_mutex_lock(&store->lock);
    remat_status status = store->kind->set(store->store, key, value, bytes);
    pthread_mutex_unlock(&store->lock);
    return status;
}

remat_status rm_kv_get(rm_kv *store, const char *key, void *value, uint32_t capacity, uint32_t *bytes,
                       int64_t timeout_ms) {
    TRY(check_key(key));
    pthread_mutex_lock(&store->lock);
    remat_status status =
        store->kind->get(store->store, key, value, capacity, bytes, timeout_ms ? timeout_ms : store->timeout_ms);
    pthread_mutex_unlock(&store->lock);
    return status;
}

bool rm_kv_peek(rm_kv *store, const char *key, void *value, uint32_t capacity, uint32_t *bytes) {
    rm_reason why = rm_reason_kept();
    bool there = !rm_kv_get(store, key, value, capacity, bytes, -1);
    (void)rm_reason_again(REMAT_OK, &why);
    return there;
}

remat_status rm_kv_wait(rm_kv *store, const char *key, int64_t timeout_ms) {
    uint32_t bytes;
    return rm_kv_get(store, key, NULL, 0, &bytes, timeout_ms);
}

remat_status rm_kv_add(rm_kv *store, const char *key, int64_t delta, int64_t *sum) {
    TRY(check_key(key));
    pthread_mutex_lock(&store->lock);
    remat_status status = store->kind->add(store->store, key, delta, sum);
    pthread_mutex_unlock(&store->lock);
    return status;
}

bool rm_kv_lost(rm_kv *store, int32_t rank, char *who, size_t bytes) {
    rm_reason why = rm_reason_kept();
    pthread_mutex_lock(&store->lock);
    bool lost = store->kind->lost(store->store, rank, who, bytes);
    pthread_mutex_unlock(&store->lock);
    (void)rm_reason_again(REMAT_OK, &why);
    if (lost) (void)rm_printable(who);
    return lost;
}

/* Without the lock, which the request holds. */
void rm_kv_cut(rm_kv *store) {
    if (store->kind->cut) store->kind->cut(store->store);
}

bool rm_kv_left(rm_kv *store, int32_t rank, char *who, size_t bytes) {
    rm_reason why = rm_reason_kept();
    pthread_mutex_lock(&store->lock);
    bool left = store->kind->left(store->store, rank, who, bytes);
    pthread_mutex_unlock(&store->lock);
    (void)rm_reason_again(REMAT_OK, &why);
    if (left) (void)rm_printable(who);
    return left;
}

bool rm_kv_doubt(rm_kv *store, char *text, size_t bytes) {
    return store->kind->doubt && store->kind->doubt(store->store, text, bytes);
}

bool rm_kv_address(rm_kv *store, bool of_rank_0, char *text, size_t bytes) {
    return store->kind->address(store->store, of_rank_0, text, bytes);
}

int32_t rm_kv_port(const rm_kv *store) { return store->kind->port(store->store); }
