/* matrix_scan.h: one tile of a recurrence of matrices, for the ops delta_scan, ssd, mlstm, rwkv7 and ndm (matrix_op.h) and their
 * fast kernels (ops/cpu/matrix_scan.c). Each head has a matrix S (K,V). At each timestep
 *
 *   ADD     S' = decay S + k (beta v)^T                                    Mamba-2's SSD, mLSTM
 *   DELTA   S' = D + k (beta (v - D^T k))^T,  D = decay S                  Gated DeltaNet, KDA
 *   RANK1   S' = decay S + b (S^T a)^T + k v^T                             RWKV-7
 *   TANH    S' = tanh(decay S + k (v - S^T k)^T)                           NDM
 *
 * and y = S'^T q. decay is one number for each head, or for each of its keys. */
#ifndef RM_MATRIX_SCAN_H
#define RM_MATRIX_SCAN_H

#include <stdint.h>

/* The precision of the op file that includes this (ops/real.h, which kernels need not include). */
#ifdef RM_REAL_DOUBLE
typedef double rm_matrix_real;
#else
typedef float rm_matrix_real;
#endif

typedef enum { RM_MATRIX_ADD, RM_MATRIX_DELTA, RM_MATRIX_RANK1, RM_MATRIX_TANH, RM_MATRIX_RULES } rm_matrix_rule;

/* A unit of work is one head of one row of the batch, through all timesteps. Columns of S are independent, so SPAN
 * of them are computed at a time, which stay in the caches. Backward recomputes the states of CHUNK timesteps at a
 * time. Both numbers determine the order of sums. */
enum { RM_MATRIX_SPAN = 32, RM_MATRIX_CHUNK = 16, RM_MATRIX_GROUP = 4 };

typedef struct {
    rm_matrix_rule rule;
    int64_t tau, batch, heads, repeat, keys, values, rates; /* repeat: heads that share q and k; rates: 1, or K */
    const rm_matrix_real *q, *k;                            /* (tau,B,heads/repeat,K) */
    const rm_matrix_real *v;                                /* (tau,B,heads,V) */
    const rm_matrix_real *decay;                            /* (tau,B,heads,rates) */
    const rm_matrix_real *beta;                             /* ADD, DELTA: (tau,B,heads) */
    const rm_matrix_real *a, *b;                            /* RANK1: (tau,B,heads,K) */
    const rm_matrix_real *reset;                            /* (tau,B), or NULL: none. Where above 0, S is 0 */
    const rm_matrix_real *s_in, *ds_out;                    /* (B,heads,K,V), or NULL: zeros */
    rm_matrix_real *y, *s_out;                              /* forward: like v; (B,heads,K,V) */
    const rm_matrix_real *dy;                               /* backward */
    rm_matrix_real *dq, *dk;                                /* (tau,B,heads,K): for each head */
    rm_matrix_real *dv, *ds_in;                             /* NULL: not wanted */
    rm_matrix_real *dlog_decay, *dbeta, *da, *db;           /* like decay, beta, a, b */
} rm_matrix_job;

/* `room`: scratch of rm_matrix_room(..) floats. */
typedef void rm_matrix_kernel(const rm_matrix_job *job, int64_t row, int64_t head, float *room);
typedef struct {
    rm_matrix_kernel *forward, *backward;
} rm_matrix_rows;

/* Rows of S, with zeros past the keys. */
static inline int64_t rm_matrix_padded(int64_t keys) {
    return (keys + RM_MATRIX_GROUP - 1) / RM_MATRIX_GROUP * RM_MATRIX_GROUP;
}

/* Forward: S, and a timestep's q, k, decay, a and b. Backward also: zeros, the gradient of S, the states of a chunk, S
 * at the chunks' starts; two vectors of each timestep of a chunk. */
static inline int64_t rm_matrix_room(int64_t tau, int64_t keys, int backward) {
    int64_t chunks = (tau + RM_MATRIX_CHUNK - 1) / RM_MATRIX_CHUNK, matrix = rm_matrix_padded(keys) * RM_MATRIX_SPAN;
    int64_t step = 5 * (rm_matrix_padded(keys) + 12);
    if (!backward) return matrix + step;
    return (2 + RM_MATRIX_CHUNK + 1 + chunks) * matrix + 2 * RM_MATRIX_CHUNK * RM_MATRIX_SPAN + step;
}

/* On CUDA all units are computed at once. Backward: S at the chunks' starts, the states of a chunk and their gradients, the
 * gradient of S, two vectors of each timestep of a chunk, and one number for each of its keys. */
enum { RM_MATRIX_CUDA_CHUNK = 8 };
static inline int64_t rm_matrix_cuda_room(int64_t tau, int64_t units, int64_t keys, int64_t values) {
    int64_t chunks = (tau + RM_MATRIX_CUDA_CHUNK - 1) / RM_MATRIX_CUDA_CHUNK, matrix = units * keys * values;
    return (chunks + 2 * RM_MATRIX_CUDA_CHUNK + 1) * matrix + RM_MATRIX_CUDA_CHUNK * units * (2 * values + keys);
}

#endif
