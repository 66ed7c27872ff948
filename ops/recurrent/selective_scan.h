/* selective_scan.h: one tile of the op `selective_scan`, for its fast kernels (ops/cpu/selective_scan.c). */
#ifndef RM_SELECTIVE_SCAN_H
#define RM_SELECTIVE_SCAN_H

#include <stdint.h>

/* A unit of work is one row of the batch and one SPAN of channels, through all timesteps. Backward recomputes the
 * states of CHUNK timesteps at a time. Both numbers determine the order of sums. */
enum { RM_SELECTIVE_SPAN = 64, RM_SELECTIVE_CHUNK = 32, RM_SELECTIVE_LANES = 16 /* of the widest vectors */ };

typedef struct {
    int64_t tau, batch, channels, states;
    const float *u, *dt, *z;      /* (tau,B,E); z may be NULL */
    const float *a_log;           /* (E,N) */
    const float *b, *c;           /* (tau,B,N) */
    const float *d, *dt_bias;     /* (E), or NULL: zeros */
    const float *reset;           /* (tau,B), or NULL: none */
    const float *h_in, *dh_out;   /* (B,E,N), or NULL: zeros */
    float *y, *h_out;             /* forward: (tau,B,E), (B,E,N) */
    const float *dy;              /* backward: (tau,B,E) */
    float *du, *ddt, *dz, *dh_in; /* backward: NULL: not wanted */
    /* Partial gradients, which the caller adds in order: (tau,B,N) for each span, (E,N) and (E) for each row of the
     * batch. All of them are overwritten. */
    float *db_part, *dc_part, *da_log_part, *dd_part, *ddt_bias_part;
} rm_selective_job;

/* `room`: scratch of rm_selective_room(..) floats. */
typedef void rm_selective_kernel(const rm_selective_job *job, int64_t row, int64_t span, float *room);
typedef struct {
    rm_selective_kernel *forward, *backward;
} rm_selective_rows;

static inline int64_t rm_selective_spans(int64_t channels) {
    return (channels + RM_SELECTIVE_SPAN - 1) / RM_SELECTIVE_SPAN;
}

/* Forward: A and h of one vector of channels. Backward, in this order: rows of a chunk (delta, u, the gradient of the
 * scan's sum, the sum, its gradients by B u and by A), states and decays and the sums of dB and dC of four states, A, dA
 * and dh, and h at the chunks' starts. */
enum { RM_SELECTIVE_ROWS = 6, RM_SELECTIVE_GROUP = 4 };
static inline int64_t rm_selective_room(int64_t tau, int64_t states, int backward) {
    int64_t chunks = (tau + RM_SELECTIVE_CHUNK - 1) / RM_SELECTIVE_CHUNK;
    int64_t group = RM_SELECTIVE_GROUP * RM_SELECTIVE_LANES;
    if (!backward) return 2 * states * RM_SELECTIVE_LANES;
    return RM_SELECTIVE_ROWS * RM_SELECTIVE_CHUNK * RM_SELECTIVE_SPAN + (4 * RM_SELECTIVE_CHUNK + 1) * group +
           (3 + chunks) * states * RM_SELECTIVE_SPAN;
}

/* On CUDA a span of channels is a warp, which computes some states at a time and keeps those of a chunk. Scratch of
 * backward: the parts, whose spans are these, and those states at the chunks' starts. */
enum { RM_SELECTIVE_CUDA_SPAN = 32, RM_SELECTIVE_CUDA_STATES = 16, RM_SELECTIVE_CUDA_CHUNK = 16 };
static inline int64_t rm_selective_cuda_spans(int64_t channels) {
    return (channels + RM_SELECTIVE_CUDA_SPAN - 1) / RM_SELECTIVE_CUDA_SPAN;
}
static inline int64_t rm_selective_cuda_floats(int64_t tau, int64_t batch, int64_t channels, int64_t states) {
    int64_t chunks = (tau + RM_SELECTIVE_CUDA_CHUNK - 1) / RM_SELECTIVE_CUDA_CHUNK, units = batch * channels;
    int64_t sums = 2 * rm_selective_cuda_spans(channels) * tau * batch * states + units * (states + 2);
    return sums + chunks * RM_SELECTIVE_CUDA_STATES * units;
}

#endif
