/* fingerprint.h: describes the collective that a rank is about to run. All ranks compare their fingerprints before
 * anything is summed. */
#ifndef RM_FINGERPRINT_H
#define RM_FINGERPRINT_H

#include "dist/group/group.h"

typedef struct {
    uint64_t call; /* number of the collective; 0: none yet */
    int64_t count;
    uint32_t tag;
    int16_t root;
    uint8_t kind, wire, reduction, spare[7];
} rm_fingerprint; /* 32 bytes without padding: it is sent and hashed as raw memory */

_Static_assert(sizeof(rm_fingerprint) == 32, "a fingerprint has padding");

rm_fingerprint rm_fingerprint_of(uint64_t call, const rm_collective *what);
static inline bool rm_fingerprint_equal(const rm_fingerprint *a, const rm_fingerprint *b) {
    return !__builtin_memcmp(a, b, sizeof *a);
}

/* OK if all are equal; otherwise PEER, with a message about rank 0 and the first rank that differs from it. Ranks that
 * compare the same fingerprints give the same message. `at(context, r)` returns the fingerprint of rank r; `host` may
 * be NULL. */
typedef struct {
    const rm_group_config *config;
    const rm_fingerprint *(*at)(void *context, int32_t rank);
    const char *(*host)(void *context, int32_t rank);
    void *context;
} rm_fingerprints;
remat_status rm_fingerprints_compare(const rm_fingerprints *all);

/* "call 12, all_reduce of 4096 f32 (tag 3)" or "nothing yet", into a buffer of at least RM_FINGERPRINT_TEXT bytes. */
#define RM_FINGERPRINT_TEXT 256
const char *rm_fingerprint_text(const rm_group_config *config, const rm_fingerprint *print, char *buffer);

const char *rm_kind_text(int kind); /* "all_reduce", ...; "kind 77" for invalid values */
const char *rm_wire_text(int wire);
const char *rm_reduction_text(int reduction); /* "sum", "mean", "tree" */

#endif
