/* delta_scan.h: one tile of the op `delta_scan`, for its fast kernels (ops/cpu/delta_scan.c). */
#ifndef RM_DELTA_SCAN_H
#define RM_DELTA_SCAN_H

#include <stdint.h>

/* A unit of work is one head of one row of the batch, through all timesteps. Columns of S are independent, so SPAN
 * of them are computed at a time, which stay in the caches. Backward recomputes the states of CHUNK timesteps at a
 * time. Both numbers determine the order of sums. */
enum { RM_DELTA_SPAN = 32, RM_DELTA_CHUNK = 16, RM_DELTA_GROUP = 4 };

typedef struct {
    int64_t tau, batch, heads, repeat, keys, values, rates; /* repeat: heads that share q and k; rates: 1, or K */
    const float *q, *k;                                     /* (tau,B,heads/repeat,K), normalised */
    const float *v;                                         /* (tau,B,heads,V) */
    const float *decay, *beta;                              /* (tau,B,heads,rates), (tau,B,heads) */
    const float *reset;                                     /* (tau,B), or NULL: none */
    const float *s_in, *ds_out;                             /* (B,heads,K,V), or NULL: zeros */
    float *y, *s_out;                                       /* forward: like v; (B,heads,K,V) */
    const float *dy;                                        /* backward */
    float *dq, *dk;            /* (tau,B,heads,K): gradients of each head's normalised q and k */
    float *dv, *ds_in;         /* NULL: not wanted */
    float *dlog_decay, *dbeta; /* like decay and beta */
} rm_delta_job;

/* `room`: scratch of rm_delta_room(..) floats. */
typedef void rm_delta_kernel(const rm_delta_job *job, int64_t row, int64_t head, float *room);
typedef struct {
    rm_delta_kernel *forward, *backward;
} rm_delta_rows;

/* Rows of S, with zeros past the keys. */
static inline int64_t rm_delta_padded(int64_t keys) {
    return (keys + RM_DELTA_GROUP - 1) / RM_DELTA_GROUP * RM_DELTA_GROUP;
}

/* Forward: S, and a timestep's q, k, decay and k decay. Backward also: zeros, the gradient of S, the states of a chunk, S
 * at the chunks' starts; delta and error of a chunk. */
static inline int64_t rm_delta_room(int64_t tau, int64_t keys, int backward) {
    int64_t chunks = (tau + RM_DELTA_CHUNK - 1) / RM_DELTA_CHUNK, matrix = rm_delta_padded(keys) * RM_DELTA_SPAN;
    int64_t step = 4 * (rm_delta_padded(keys) + 12);
    if (!backward) return matrix + step;
    return (2 + RM_DELTA_CHUNK + 1 + chunks) * matrix + 2 * RM_DELTA_CHUNK * RM_DELTA_SPAN + step;
}

#endif
