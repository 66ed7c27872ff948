/* local_attention.h: shapes and rows of the op `local_attention`, for the CPU and CUDA. */
#ifndef RM_LOCAL_ATTENTION_H
#define RM_LOCAL_ATTENTION_H

#include "ops/layers/rotary.h"

enum { RM_LOCAL_Q, RM_LOCAL_K, RM_LOCAL_V, RM_LOCAL_RESET, RM_LOCAL_INPUTS };
/* Carried states: keys and values of the last `past` timesteps (B,past,KV), and how many of these there have been (B). */
enum { RM_LOCAL_KEYS, RM_LOCAL_VALUES, RM_LOCAL_SEEN, RM_LOCAL_STATES };

/* "Row j" is row j of the state followed by the tile: timestep t of the tile is row past + t. */
typedef struct {
    int64_t tau, batch, heads, width; /* width: features of a head */
    int64_t share, kv_heads;          /* neighbouring heads of q that share one of k and v; heads of k and v */
    int64_t ld, kv_ld;                /* features of a timestep of one batch row: of q; of k and v */
    int64_t past;                     /* window - 1 */
    int64_t half;                     /* pairs that are rotated: features i and half + i of a head, i < half */
    double scale, base;
} rm_local_shape;

static inline rm_local_shape rm_local_shape_of(const remat_desc *q, const remat_desc *k, const void *attr) {
    const rm_local_attention_attr *a = (const rm_local_attention_attr *)attr;
    rm_local_shape s = {q->dim[0], q->dim[1], a->heads,      q->dim[2] / a->heads, 0, 0,
                        q->dim[2], k->dim[2], a->window - 1, a->rotary / 2,        0, a->base};
    s.share = q->dim[2] / k->dim[2];
    s.kv_heads = s.heads / s.share;
    s.scale = 1 / sqrt((double)s.width);
    return s;
}

/* Keys before the tile that its first timestep sees. `seen` is the state, a whole number unless a caller sets it. */
RM_HD int32_t rm_local_seen(const rm_local_shape *s, double seen) {
    return seen >= (double)s->past ? (int32_t)s->past : seen > 0 ? (int32_t)(seen + 0.5) : 0;
}

/* Keys that a timestep sees, itself included; `before`: that number of the timestep before, or rm_local_seen. */
RM_HD int32_t rm_local_visible(const rm_local_shape *s, int32_t before, bool reset) {
    return reset ? 1 : before < s->past ? before + 1 : (int32_t)s->past + 1;
}

#endif
