/* gloo_shim.h: a C interface to Gloo, which is C++; implemented in gloo_shim.cc. No exception escapes. All functions
 * return true, or false with Gloo's message in `why`. */
#ifndef RM_GLOO_SHIM_H
#define RM_GLOO_SHIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct rm_gloo rm_gloo;

/* The store functions that Gloo needs. They return false if the operation fails or times out. */
typedef struct {
    bool (*set)(void *context, const char *key, const void *value, uint32_t bytes);
    bool (*get)(void *context, const char *key, void *value, uint32_t capacity,
                uint32_t *bytes); /* waits for the key */
    void *context;
} rm_gloo_store;

typedef struct {
    int rank, size;
    int64_t timeout_ms;    /* for collectives */
    int64_t connect_ms;    /* for connecting */
    const char *interface; /* a name like eth0, or NULL */
    const char *address;   /* used without an interface: a name or an address of this host that the others can reach */
    rm_gloo_store store;
} rm_gloo_config;

#define RM_GLOO_WHY 400
typedef enum {
    RM_GLOO_F32,
    RM_GLOO_F64,
    RM_GLOO_I32,
    RM_GLOO_U8,
    RM_GLOO_MAX_U64
} rm_gloo_sum; /* the last one is a maximum */

const char *rm_gloo_version(void);

bool rm_gloo_open(const rm_gloo_config *config, rm_gloo **out, char *why);
/* Checks before any collective that each connection leads to the right rank: Gloo takes whoever connects first for the
 * rank it expects, without asking. Takes up to connect_ms. */
bool rm_gloo_meet(rm_gloo *gloo, const rm_gloo_config *config, char *why);
void rm_gloo_close(rm_gloo *gloo);
void rm_gloo_abort(rm_gloo *gloo); /* any thread; makes the current operation fail here and at the other ends */

bool rm_gloo_all_reduce(rm_gloo *gloo, rm_gloo_sum sum, void *data, size_t count, char *why); /* in place */
bool rm_gloo_broadcast(rm_gloo *gloo, void *data, size_t bytes, int root, char *why);
/* Row r of `out` becomes rank r's row for this rank; `bytes` per row. */
bool rm_gloo_exchange(rm_gloo *gloo, const void *in, void *out, size_t bytes, char *why);
/* Messages between two ranks, in order. send copies the data; it waits while `room` bytes to this rank are on their way. */
bool rm_gloo_send(rm_gloo *gloo, int to, const void *data, size_t bytes, size_t room, char *why);
bool rm_gloo_receive(rm_gloo *gloo, int from, void *data, size_t bytes, char *why);
/* `in` may be this rank's row of `out` */
bool rm_gloo_all_gather(rm_gloo *gloo, const void *in, void *out, size_t bytes, char *why);

#ifdef __cplusplus
}
#endif

#endif
