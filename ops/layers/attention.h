/* attention.h: the heads and blocks of rows of the op `attention`, for attention.c and attention.cu. */
#ifndef RM_ATTENTION_H
#define RM_ATTENTION_H

#include "ops/op.h"

enum { RM_ATTENTION_Q, RM_ATTENTION_K, RM_ATTENTION_V, RM_ATTENTION_PADDING, RM_ATTENTION_BIAS };

/* Rows of one head's (T,S) scores that are held in scratch at a time; on CUDA those of several heads, at most so many
 * floats unless a single head has more. The last is in attention.c; tests reduce it. */
enum { RM_ATTENTION_ROWS = 128, RM_ATTENTION_ROWS_CUDA = 512 };
extern int64_t rm_attention_most_floats;

typedef struct {
    int64_t steps, batch, heads, width; /* T, B, heads, C / heads */
    int64_t share;                      /* heads of q per head of k and v (grouped-query attention) */
    int64_t keys;                       /* S: timesteps of k and v; T for self-attention */
    int64_t ld, kv_ld;                  /* B C: distance between timesteps of q; of k and v */
    double scale;                       /* of the scores */
    bool causal;
    double dropout;
    int64_t window; /* timesteps that each one sees; T if there is no window */
} rm_attention_shape;

static inline rm_attention_shape rm_attention_shape_of(const remat_desc *x, const void *attr) {
    const rm_attention_attr *a = (const rm_attention_attr *)attr;
    const remat_desc *q = &x[RM_ATTENTION_Q], *k = &x[RM_ATTENTION_K];
    rm_attention_shape s = {q->dim[0],
                            q->dim[1],
                            a->heads,
                            q->dim[2] / a->heads,
                            1,
                            k->dim[0],
                            q->dim[1] * q->dim[2],
                            k->dim[1] * k->dim[2],
                            0,
                            a->causal != 0,
                            a->dropout,
                            a->window && a->window < q->dim[0] ? a->window : q->dim[0]};
    s.share = q->dim[2] / k->dim[2];
    s.scale = 1 / sqrt((double)s.width);
    return s;
}

/* Offset of head `head` within a row of k, v and their gradients; in q, y and their gradients it is head * width. */
static inline int64_t rm_attention_kv_at(const rm_attention_shape *s, int64_t head) {
    return head / s->share * s->width;
}

/* The weights of a row are dropped four at a time: a group of keys has one counter of the row's timestep. */
static inline int64_t rm_attention_groups(const rm_attention_shape *s) { return (s->keys + 3) / 4; }

/* The first key that timestep t sees. */
static inline int64_t rm_attention_first(const rm_attention_shape *s, int64_t t) {
    return s->causal && t >= s->window ? t - s->window + 1 : 0;
}

/* The first key of a block whose first timestep is t: dropout's groups of keys are not cut. */
static inline int64_t rm_attention_block_first(const rm_attention_shape *s, int64_t t) {
    return rm_attention_first(s, t) / 4 * 4;
}

/* Keys visible to the first `end` timesteps, including padding. */
static inline int64_t rm_attention_keys(const rm_attention_shape *s, int64_t end) { return s->causal ? end : s->keys; }

/* The most columns of a block of `rows` timesteps: the keys that they see, from a multiple of four on. */
static inline int64_t rm_attention_columns(const rm_attention_shape *s, int64_t rows) {
    int64_t near = rows + s->window + 3;
    return s->causal && near < s->keys ? near : s->keys;
}

/* Heads of k and v whose scores are computed together on CUDA, for one head of q of each at a time. */
static inline int64_t rm_attention_together(const rm_attention_shape *s) {
    int64_t most_rows = RM_ATTENTION_ROWS_CUDA, rows = s->steps < most_rows ? s->steps : most_rows;
    int64_t most = rm_attention_most_floats / (rows * rm_attention_columns(s, rows)), all = s->batch * s->heads / s->share;
    return most < 1 ? 1 : most < all ? most : all;
}

#endif
