/* gloo_shim.h: Gloo, which is C++, as C functions: the interface of gloo_shim.cc. No exception leaves it. All return true, or
 * false with what Gloo said in `why`. */
#ifndef RM_GLOO_SHIM_H
#define RM_GLOO_SHIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct rm_gloo rm_gloo;

/* What Gloo needs of a store: true, or false when it cannot be had (in time). */
typedef struct {
    bool (*set)(void *context, const char *key, const void *value, uint32_t bytes);
    bool (*get)(void *context, const char *key, void *value, uint32_t capacity,
                uint32_t *bytes); /* waits for the key */
    void *context;
} rm_gloo_store;

typedef struct {
    int rank, size;
    int64_t timeout_ms;    /* of collectives */
    int64_t connect_ms;    /* of connecting */
    const char *interface; /* a name like eth0, or NULL */
    const char *address;   /* without an interface: a name or number of this host that the others can reach */
    rm_gloo_store store;
} rm_gloo_config;

#define RM_GLOO_WHY 400
typedef enum {
    RM_GLOO_F32,
    RM_GLOO_F64,
    RM_GLOO_I32,
    RM_GLOO_U8,
    RM_GLOO_MAX_U64
} rm_gloo_sum; /* the last: a maximum */

const char *rm_gloo_version(void);

bool rm_gloo_open(const rm_gloo_config *config, rm_gloo **out, char *why);
/* Before anything else: is each connection one to its rank? Gloo takes whoever connects first to be the rank that it waits for,
 * and does not ask. Up to connect_ms. */
bool rm_gloo_meet(rm_gloo *gloo, const rm_gloo_config *config, char *why);
void rm_gloo_close(rm_gloo *gloo);
void rm_gloo_abort(rm_gloo *gloo); /* from any thread: whatever is under way fails, here and at the other ends */

bool rm_gloo_all_reduce(rm_gloo *gloo, rm_gloo_sum sum, void *data, size_t count, char *why); /* in place */
bool rm_gloo_broadcast(rm_gloo *gloo, void *data, size_t bytes, int root, char *why);
/* Row r of out, `bytes` a row, becomes what rank r has in its row for this rank. */
bool rm_gloo_exchange(rm_gloo *gloo, const void *in, void *out, size_t bytes, char *why);
bool rm_gloo_all_gather(rm_gloo *gloo, const void *in, void *out, size_t bytes, char *why); /* in may be out's row */

#ifdef __cplusplus
}
#endif

#endif
