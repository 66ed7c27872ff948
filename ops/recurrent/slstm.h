/* slstm.h: one tile of the op `slstm`, for its fast kernels (ops/cpu/slstm.c). */
#ifndef RM_SLSTM_H
#define RM_SLSTM_H

#include <stdint.h>

/* Rows are (t,b), row-major; H = heads * width. A head of a row of the batch meets no other, so a unit of work is a head
 * and some rows of the batch, through all timesteps. */
typedef struct {
    int64_t tau, batch, heads, width;
    const float *x, *bias, *reset; /* (rows,4H); (4H) or NULL; (rows) or NULL */
    const float *packed;           /* of each head: an LSTM's packed w_hh of `width` units */
    int64_t packed_floats;         /* of a head */
    float *y;                      /* (rows,H): forward fills it, backward reads it */
    const float *in[4];            /* states y c n m before the tile, (B,H) each, or NULL: zeros */
    float *out[4];                 /* forward: states after the tile */
    const float *dy, *dout[4];     /* backward: (rows,H), (B,H); dout[k] NULL: zeros */
    float *gates, *slope, *c, *n;  /* backward, scratch: (rows,4H), (rows,H) each */
    float *before, *m;             /* (rows,H): y of the previous timestep; (B,H) */
    float *carry[4];               /* (B,H) each: gradients of the states; at last those before the tile */
} rm_slstm_job;

typedef void rm_slstm_kernel(const rm_slstm_job *job, int64_t head, int64_t from, int64_t count);
typedef struct {
    rm_slstm_kernel *forward; /* rows of the batch */
    rm_slstm_kernel *sums;    /* rows (t,b): `gates` becomes the pre-activations, of x and `before` */
    /* Rows of the batch: `gates` becomes the gradients of the pre-activations. */
    rm_slstm_kernel *backward;
} rm_slstm_rows;

#endif
