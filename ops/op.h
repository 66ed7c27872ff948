/* op.h: the op descriptor, for built-in ops and for the code that runs them. An op is one file that ends in one `const
 * remat_op`. Read engine/remat_op.h first: it is the op author's interface, the same for built-in and external ops.
 *
 * Two precisions. An op file is compiled twice: as float (rm_op_gelu) and, for finite differences in the
 * tests, as double (rm_op_gelu_f64). Its code uses the type `real`. `define_*` is the readable definition in plain
 * loops; the CPU's `forward` and `backward` may be the same functions.
 */
#ifndef RM_OP_H
#define RM_OP_H

#include "engine/status.h"
#include "engine/tensor.h"

/* INVALID if a descriptor cannot work with any inputs; the error names the op and the member. */
remat_status rm_op_check_descriptor(const remat_op *op);     /* descriptor.c */
const char *rm_op_state_name(const remat_op *op, int state); /* its own name for it, or "h", "c", .. */

/* Calls infer, which may belong to an external op: a failure always has an error message. Success keeps the last
 * error. */
remat_status rm_op_infer(const remat_op *op, const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state);
/* INVALID if an input marked `discrete` is not I32: its gradient would be dropped silently. */
remat_status rm_op_check_discrete(const remat_op *op, const remat_desc *x);
/* INVALID if a cost is negative or not finite, or if bytes of aux, scratch or fixed exceed 2^60. */
remat_status rm_op_check_demands(const remat_op *op, const remat_desc *x, const remat_desc *y, const void *attr,
                                 remat_device_kind device);

/* The op maps a sequence to a sequence. */
static inline bool rm_op_keeps_time(const remat_op *op) {
    return op->time != REMAT_TIME_SUM && op->time != REMAT_TIME_LAST;
}
/* Its input must be a sequence. */
static inline bool rm_op_needs_time(const remat_op *op) {
    return op->time == REMAT_TIME_RECURRENT || op->time == REMAT_TIME_LAST || op->time == REMAT_TIME_REVERSE;
}

/* Whether this input has no time axis and is shared by all tiles. */
static inline bool rm_op_shares(const remat_op *op, int input) { return (op->shared | op->buffers) >> input & 1; }

/* NULL: the device has no such kernel. */
static inline remat_kernel *rm_op_kernel(const remat_op *op, remat_device_kind device, remat_pass pass) {
    const remat_op_device *on = &op->on[device];
    remat_kernel *const kernel[] = {on->forward, on->backward, on->rebuild, on->once};
    return kernel[pass];
}

/* The type of call->ranks. */
typedef struct {
    void (*sum)(void *owner, double *values, int64_t count);
    void *owner;
} rm_talk;

/* All ops, in the order of ops.def. */
extern const remat_op *const rm_ops[];
extern const int rm_n_ops;
const remat_op *rm_op_find(const char *name);     /* NULL: no such op */
const remat_op *rm_op_find_f64(const char *name); /* the double-precision op; tests only */
const remat_op *rm_op_at(int32_t i);              /* the op with index i */
const remat_op *rm_op_at_f64(int32_t i);

/* The CUDA column of a descriptor. RM_CUDA(mul, forward) is the launcher in ops/elementwise/mul.cu, or NULL without
 * CUDA. */
#if (defined REMAT_HAVE_CUDA || defined RM_CUDA_EMULATED) && !defined RM_REAL_DOUBLE
#define OP(folder, name)                                                                                               \
    extern remat_kernel rm_##name##_forward_cuda, rm_##name##_backward_cuda, rm_##name##_rebuild_cuda,                 \
        rm_##name##_once_cuda;
#include "ops/ops.def"
#undef OP
#define RM_CUDA(name, pass) rm_##name##_##pass##_cuda
#else
#define RM_CUDA(name, pass) NULL
#endif
#define RM_CUDA_KERNELS(name)                                                                                          \
    { .forward = RM_CUDA(name, forward), .backward = RM_CUDA(name, backward) }
#define RM_CUDA_FORWARD(name) /* of a constant op */                                                                   \
    { .forward = RM_CUDA(name, forward) }

/* ---- Attributes of ops ---------------------------------------------------------------------------- */
typedef struct {
    double probability;
} rm_dropout_attr;
typedef struct {
    double factor, shift;
} rm_scale_attr;
typedef struct {
    double low, high; /* may be infinite */
    int64_t open;     /* 1: no gradient at the bounds themselves, else 0 */
} rm_clamp_attr;
typedef struct {
    int64_t by_input; /* 0: w is (N,C); 1: (C,N) */
} rm_linear_attr;     /* default: 0 */
typedef struct {
    int64_t transpose_b;  /* 1: b is (..,N,K), else 0 */
} rm_batched_matmul_attr; /* default: 0 */
typedef struct {
    double epsilon;
} rm_layer_norm_attr;
typedef struct {
    double momentum, epsilon;
    int64_t axis, sync; /* axis: of the channels; sync: 1 for statistics over all ranks, else 0 */
    int64_t relu;       /* 1: y = max(y, 0), in the same pass (engine/graph/fold.c), else 0 */
} rm_batch_norm_attr;
typedef struct {
    int64_t stride[2], padding[2], dilation[2], groups; /* height, width; 1D convolutions use the second only */
    int64_t transposed, output_padding[2];              /* of conv_transpose: 1, and PyTorch's output_padding */
} rm_conv_attr;
typedef struct {
    int64_t window[2], stride[2], padding[2]; /* height, width */
} rm_pool_attr;
typedef struct {
    int64_t axes; /* number of trailing axes to reduce */
    int64_t sum;  /* 1: their sum, not their mean, else 0 */
} rm_mean_attr;
typedef struct {
    int64_t sum;     /* 1: the sum over time, not the mean, else 0 */
} rm_over_time_attr; /* default: 0 */
typedef struct {
    int64_t scale[2], mode; /* scale: height, width; mode: of remat_upsample */
} rm_upsample_attr;
typedef struct {
    double epsilon;
    int64_t groups, axis; /* axis: of the channels */
} rm_group_norm_attr;
typedef struct {
    int64_t before[2], after[2]; /* height, width */
} rm_pad_attr;
typedef struct {
    int64_t one, other; /* the axes to be swapped */
} rm_transpose_attr;
typedef struct {
    int64_t axis;
} rm_concat_attr; /* default: the last */
typedef struct {
    double epsilon;
} rm_rms_norm_attr;
typedef struct {
    int64_t first, count;
} rm_slice_attr;
typedef struct {
    int64_t heads, causal; /* causal: 0 or 1 */
    double dropout;        /* probability for each weight */
    int64_t window;        /* with causal: timesteps that each one sees, itself included; 0: all */
} rm_attention_attr;
typedef struct {
    double base;
    int64_t heads;
} rm_rotary_attr;
typedef struct {
    int64_t heads, window; /* window: timesteps that each one sees, itself included */
    int64_t rotary;        /* features of each head that are rotated, the first ones */
    double base;           /* of the rotation */
} rm_local_attention_attr;
typedef struct {
    double smoothing;
    int64_t ignores, ignored; /* ignores: 1 if rows whose target is `ignored` do not count, else 0 */
} rm_cross_entropy_attr;      /* default: 0 */
typedef struct {
    int64_t classes, ignored;
} rm_target_weight_attr;
typedef struct {
    int64_t joint, ignored; /* joint: 1 for one coefficient over all classes, else 0 */
} rm_dice_attr;             /* default: 0, -1 */
typedef struct {
    double delta;
} rm_huber_attr; /* default: 1 */
typedef struct {
    int64_t blank, zero_infinity; /* zero_infinity: 0 or 1 */
} rm_ctc_attr;                    /* default: 0 */

typedef struct {
    int64_t key_heads; /* heads of q and k; 0: as many as of v */
    int64_t negative;  /* 1: beta = 2 sigmoid(b), so that eigenvalues may be negative; 0: sigmoid(b) */
} rm_delta_scan_attr;  /* default: 0 */
typedef struct {
    int64_t groups; /* of heads that share B and C */
} rm_ssd_attr;      /* default: 1 */
typedef struct {
    int64_t heads;
} rm_rwkv7_attr; /* default: 1 */

/* Recurrent ops (lstm, gru, rnn_tanh, rnn_relu): inputs x, w_ih, w_hh, b_ih, b_hh.
 * x (tau,B,C) real: the input projection is x w_ih^T, w_ih (G*H,C).
 * x (tau,B) I32:    the embedding is folded in: the slot of w_ih holds a TABLE (V,G*H), and its row x[t,b] is the
 *                   projection. The gradient of the table is a scatter-add in a fixed order. */

#endif
