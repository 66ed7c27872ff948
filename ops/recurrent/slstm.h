/* slstm.h: one tile of the op `slstm`, for its fast kernels (ops/cpu/slstm.c). */
#ifndef RM_SLSTM_H
#define RM_SLSTM_H

#include <stdint.h>

/* Rows are (t,b), row-major; H = heads * width. Heads and rows of the batch are independent, so a unit of work is
 * one head of some rows of the batch, through all timesteps. */
typedef struct {
    int64_t tau, batch, heads, width;
    const float *x, *bias, *reset; /* (rows,4H); (4H) or NULL; (rows) or NULL */
    const float *packed;           /* for each head, packed like the w_hh of an LSTM with `width` units */
    int64_t packed_floats;         /* of a head */
    float *y;                      /* (rows,H): forward fills it, backward reads it */
    const float *in[4];            /* states y c n m before the tile, (B,H) each, or NULL: zeros */
    float *out[4];                 /* forward: states after the tile */
    const float *dy, *dout[4];     /* backward: (rows,H), (B,H); dout[k] NULL: zeros */
    float *gates, *slope, *c, *n;  /* backward, scratch: (rows,4H), (rows,H) each */
    float *before, *m;             /* (rows,H): y of the previous timestep; (B,H) */
    float *carry[4];               /* (B,H) each: gradients of the states; at the end those of the states before the
                                      tile */
} rm_slstm_job;

typedef void rm_slstm_kernel(const rm_slstm_job *job, int64_t head, int64_t from, int64_t count);
typedef struct {
    rm_slstm_kernel *forward; /* rows of the batch */
    rm_slstm_kernel *sums;    /* rows (t,b): `gates` becomes the pre-activations, of x and `before` */
    /* For some rows of the batch: replaces `gates` by the gradients of the pre-activations. */
    rm_slstm_kernel *backward;
} rm_slstm_rows;

#endif
