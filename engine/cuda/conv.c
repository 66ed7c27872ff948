/* conv.c: cuDNN's convolutions as the kernels of conv and conv_transpose: conv.h. A transposed convolution is the
 * gradient of a plain one by its image (ops/layers/conv.h), so both ops use the same three calls:
 *
 *     to positions   y of conv, dx of conv_transpose
 *     to pixels      dx of conv, y of conv_transpose
 *     to weights     dw of both
 *
 *     scratch, fp32 and tf32    work space
 *     scratch, bf16             work space | the two operands | the result, rounded
 *
 * In bf16 cuDNN reads and writes numbers of two bytes, as under PyTorch's autocast; sums are fp32. Everything outside
 * of scratch stays fp32.
 *
 * cuDNN 9.19, API reference and headers: cudnnConvolutionForward, -BackwardData, -BackwardFilter. The header marks
 * algorithms that are not deterministic: CUDNN_CONVOLUTION_BWD_DATA_ALGO_0, _BWD_FILTER_ALGO_0 and _3. */
#include "engine/cuda/conv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/cuda/cuda.h"
#include "memory/bytes.h"
#include "memory/host.h"
#include "ops/layers/conv.h"

#ifdef RM_HAVE_CUDNN

enum { X, W, B }; /* inputs */
enum { CONV, CONV_TRANSPOSE, OPS };
static const char *const op_names[OPS][2] = {{"conv", "conv_cudnn"}, {"conv_transpose", "conv_transpose_cudnn"}};

typedef enum { TO_POSITIONS, TO_PIXELS, TO_WEIGHTS, WAYS } way;

/* Algorithms in the order in which they are tried. The first forward one is PyTorch's choice, too, if it must be
 * deterministic; the second needs no memory. */
static const struct {
    int n, algorithm[2];
} tries[WAYS] = {{2, {CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM, CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM}},
                 {1, {CUDNN_CONVOLUTION_BWD_DATA_ALGO_1}},
                 {1, {CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1}}};

/* The most memory for a work space: this much, or twice the bytes of x and y if that is more. */
#define MOST_WORK ((uint64_t)64 << 20)

/* A variant's attributes: the op's own come first. All members have 8 bytes, so there is no padding. */
typedef struct {
    rm_conv_attr conv;
    int64_t tau;                  /* timesteps of a full tile; 0: not a sequence */
    uint64_t scratch_bytes[2][2]; /* full tile, last tile; forward, backward */
} attributes;
_Static_assert(sizeof(attributes) <= sizeof((rm_variant){0}.attr), "the attributes must fit in a variant");

typedef struct convolution {
    struct convolution *next;
    rm_conv_shape shape;
    cudnnTensorDescriptor_t pixels, positions; /* the arrays on both sides */
    cudnnFilterDescriptor_t filter;
    cudnnConvolutionDescriptor_t conv;
    int algorithm[WAYS];
    uint64_t work_bytes; /* the most of the three */
} convolution;

struct rm_cuda_convs {
    rm_device *device;
    convolution *known;
    remat_op op[OPS];
};

static bool in_bf16(const rm_device *device) { return device->products->precision == RM_BF16; }

/* ---- Sizes -------------------------------------------------------------------------------------------------------- */

static int64_t pixels_of(const rm_conv_shape *s) { return s->images * s->groups * s->channels * s->pixels; }
static int64_t positions_of(const rm_conv_shape *s) { return s->images * s->groups * s->outputs * s->positions; }
static int64_t weights_of(const rm_conv_shape *s) { return s->groups * s->outputs * rm_conv_taps(s); }

static uint64_t half_bytes(int64_t n) { return rm_cuda_space_bytes((uint64_t)n * sizeof(uint16_t)); }

/* In backward two results follow one another in the same place. */
static uint64_t scratch_of(const rm_device *device, const convolution *c, remat_pass pass) {
    const rm_conv_shape *s = &c->shape;
    uint64_t bytes = RM_CUDA_SPACE_MORE + rm_cuda_space_bytes(c->work_bytes);
    if (!in_bf16(device)) return bytes;
    bytes += half_bytes(pixels_of(s)) + half_bytes(positions_of(s)) + half_bytes(weights_of(s));
    if (pass == REMAT_FORWARD) return bytes;
    return bytes + rm_larger(half_bytes(s->transposed ? positions_of(s) : pixels_of(s)), half_bytes(weights_of(s)));
}

static uint64_t scratch_bytes(const remat_desc *x, const void *attr, remat_pass pass, bool aux, int threads) {
    const attributes *a = attr;
    (void)aux, (void)threads;
    return a->scratch_bytes[a->tau && x[X].dim[0] != a->tau][pass == REMAT_BACKWARD];
}

/* ---- A call ------------------------------------------------------------------------------------------------------- */

typedef struct {
    const remat_call *call;
    rm_queue *q;
    const rm_cuda_dnn *dnn;
    const convolution *conv;
    char *work, *free; /* free: the rest of scratch */
    bool bf16;
} run;

/* Every convolution was described when its session was built. */
static convolution *find(const rm_cuda_convs *convs, const rm_conv_shape *s) {
    convolution *c = convs->known;
    while (c && memcmp(&c->shape, s, sizeof *s)) c = c->next;
    return c;
}

/* Returns false if cuDNN cannot be used; the device keeps the failure. */
static bool begin(const remat_call *call, run *r) {
    rm_conv_shape s = rm_conv_shape_of(&call->x[X].desc, &call->x[W].desc, call->attr);
    r->call = call;
    r->q = (rm_queue *)(uintptr_t)call->queue;
    r->dnn = r->q->device->dnn;
    r->conv = find(r->q->device->convs, &s);
    r->bf16 = in_bf16(r->q->device);
    r->work = rm_cuda_space_in(call->scratch);
    r->free = r->work + rm_cuda_space_bytes(r->conv->work_bytes);
    return rm_cuda_dnn_begin(r->q);
}

static void *room(run *r, int64_t n) {
    void *start = r->free;
    r->free += half_bytes(n);
    return start;
}

/* The operand as cuDNN reads it: itself, or a rounded copy in scratch. */
static const void *operand(run *r, const void *x, int64_t n) {
    if (!r->bf16 || !x) return x;
    uint16_t *rounded = room(r, n);
    rm_cuda_kernels_built.round(&r->q->shown, 1, n, n, x, n, rounded);
    return rounded;
}

/* to = beta to + the result; of the three arrays, `way` says which is the result and not read. */
static void convolve(const run *r, way way, const void *pixels, const void *weights, const void *positions, float beta,
                     void *to) {
    static const char *const doing[WAYS] = {"a convolution by cuDNN", "a convolution by cuDNN, to pixels",
                                            "a convolution's weight gradients by cuDNN"};
    const rm_cudnn_library *lib = r->dnn->lib;
    const convolution *c = r->conv;
    const float one = 1;
    cudnnStatus_t error = CUDNN_STATUS_SUCCESS;
    switch (way) {
    case TO_POSITIONS:
        error = lib->cudnnConvolutionForward(r->dnn->handle, &one, c->pixels, pixels, c->filter, weights, c->conv,
                                             (cudnnConvolutionFwdAlgo_t)c->algorithm[way], r->work, c->work_bytes,
                                             &beta, c->positions, to);
        break;
    case TO_PIXELS:
        error = lib->cudnnConvolutionBackwardData(r->dnn->handle, &one, c->filter, weights, c->positions, positions,
                                                  c->conv, (cudnnConvolutionBwdDataAlgo_t)c->algorithm[way], r->work,
                                                  c->work_bytes, &beta, c->pixels, to);
        break;
    default:
        error = lib->cudnnConvolutionBackwardFilter(r->dnn->handle, &one, c->pixels, pixels, c->positions, positions,
                                                    c->conv, (cudnnConvolutionBwdFilterAlgo_t)c->algorithm[way],
                                                    r->work, c->work_bytes, &beta, c->filter, to);
    }
    (void)rm_cuda_dnn_went(r->q->device, error, doing[way]);
}

static void forward(const remat_call *call) {
    run r;
    if (!begin(call, &r)) return;
    const rm_conv_shape *s = &r.conv->shape;
    const bool to_pixels = s->transposed;
    int64_t n_in = to_pixels ? positions_of(s) : pixels_of(s), n_out = to_pixels ? pixels_of(s) : positions_of(s);
    const void *x = operand(&r, call->x[X].data, n_in), *w = operand(&r, call->x[W].data, weights_of(s));
    void *y = r.bf16 ? room(&r, n_out) : call->y.data;
    convolve(&r, to_pixels ? TO_PIXELS : TO_POSITIONS, x, w, x, 0, y);
    rm_cuda_kernels_built.conv->finish(&r.q->shown, s->images, s->groups * (to_pixels ? s->channels : s->outputs),
                                       to_pixels ? s->pixels : s->positions, r.bf16 ? y : NULL, call->x[B].data,
                                       call->y.data);
}

static void backward(const remat_call *call) {
    const rm_cudnn_conv_kernels *kernels = rm_cuda_kernels_built.conv;
    float *dx = call->dx[X].data, *dw = call->dx[W].data, *db = call->dx[B].data;
    run r;
    if (!begin(call, &r)) return;
    const rm_conv_shape *s = &r.conv->shape;
    const rm_cuda_queue *queue = &r.q->shown;
    const bool transposed = s->transposed;
    int64_t n_x = transposed ? positions_of(s) : pixels_of(s), n_y = transposed ? pixels_of(s) : positions_of(s);
    const void *dy = dx || dw ? operand(&r, call->dy.data, n_y) : NULL;
    const void *x = dw ? operand(&r, call->x[X].data, n_x) : NULL;
    const void *w = dx ? operand(&r, call->x[W].data, weights_of(s)) : NULL;
    if (dx) {
        convolve(&r, transposed ? TO_POSITIONS : TO_PIXELS, dy, w, dy, 0, r.bf16 ? (void *)r.free : dx);
        kernels->finish(queue, 1, 1, n_x, r.bf16 ? (uint16_t *)r.free : NULL, NULL, dx);
    }
    if (dw) {
        convolve(&r, TO_WEIGHTS, transposed ? dy : x, NULL, transposed ? x : dy, r.bf16 ? 0 : 1,
                 r.bf16 ? (void *)r.free : dw);
        if (r.bf16) kernels->add(queue, weights_of(s), (uint16_t *)r.free, dw);
    }
    if (db)
        kernels->bias_gradient(queue, s->images, s->groups * (transposed ? s->channels : s->outputs),
                               transposed ? s->pixels : s->positions, call->dy.data, db);
}

/* ---- Descriptors -------------------------------------------------------------------------------------------------- */

static void free_convolution(const rm_cuda_dnn *dnn, convolution *c) {
    if (c->pixels) (void)dnn->lib->cudnnDestroyTensorDescriptor(c->pixels);
    if (c->positions) (void)dnn->lib->cudnnDestroyTensorDescriptor(c->positions);
    if (c->filter) (void)dnn->lib->cudnnDestroyFilterDescriptor(c->filter);
    if (c->conv) (void)dnn->lib->cudnnDestroyConvolutionDescriptor(c->conv);
    rm_free(c);
}

static cudnnStatus_t describe_images(const rm_cuda_dnn *dnn, cudnnDataType_t type, const rm_conv_shape *s,
                                     int64_t channels, const int64_t size[2], cudnnTensorDescriptor_t *out) {
    const int dim[4] = {(int)s->images, (int)channels, (int)size[0], (int)size[1]};
    const int stride[4] = {dim[1] * dim[2] * dim[3], dim[2] * dim[3], dim[3], 1};
    cudnnStatus_t error = dnn->lib->cudnnCreateTensorDescriptor(out);
    return error ? error : dnn->lib->cudnnSetTensorNdDescriptor(*out, type, 4, dim, stride);
}

static cudnnStatus_t describe_filter(const rm_cuda_dnn *dnn, cudnnDataType_t type, const rm_conv_shape *s,
                                     cudnnFilterDescriptor_t *out) {
    const int dim[4] = {(int)(s->groups * s->outputs), (int)s->channels, (int)s->filter[0], (int)s->filter[1]};
    cudnnStatus_t error = dnn->lib->cudnnCreateFilterDescriptor(out);
    return error ? error : dnn->lib->cudnnSetFilterNdDescriptor(*out, type, CUDNN_TENSOR_NCHW, 4, dim);
}

/* By default cuDNN multiplies floats in TF32, so fp32 must be requested, and numbers in bf16 without tensor cores (cuDNN's
 * "Legacy API", Convolution Functions), so these must be requested, too. */
static const cudnnMathType_t math_type[RM_PRECISIONS] = {
    [RM_FP32] = CUDNN_FMA_MATH, [RM_TF32] = CUDNN_DEFAULT_MATH, [RM_BF16] = CUDNN_TENSOR_OP_MATH};

static cudnnStatus_t describe_conv(const rm_device *device, const rm_conv_shape *s, cudnnConvolutionDescriptor_t *out) {
    const rm_cudnn_library *lib = device->dnn->lib;
    int padding[2], stride[2], dilation[2];
    for (int d = 0; d < 2; d++)
        padding[d] = (int)s->padding[d], stride[d] = (int)s->stride[d], dilation[d] = (int)s->dilation[d];
    cudnnStatus_t error = lib->cudnnCreateConvolutionDescriptor(out);
    if (!error)
        error = lib->cudnnSetConvolutionNdDescriptor(*out, 2, padding, stride, dilation, CUDNN_CROSS_CORRELATION,
                                                     CUDNN_DATA_FLOAT);
    if (!error) error = lib->cudnnSetConvolutionGroupCount(*out, (int)s->groups);
    return error ? error : lib->cudnnSetConvolutionMathType(*out, math_type[device->products->precision]);
}

/* cuDNN counts positions as conv does. A transposed convolution may have an output padding that leaves room for more. */
static cudnnStatus_t check_positions(const rm_cuda_dnn *dnn, const convolution *c) {
    const rm_conv_shape *s = &c->shape;
    int dim[4];
    cudnnStatus_t error = dnn->lib->cudnnGetConvolutionNdForwardOutputDim(c->conv, c->pixels, c->filter, 4, dim);
    if (error) return error;
    return dim[2] == s->out[0] && dim[3] == s->out[1] ? error : CUDNN_STATUS_NOT_SUPPORTED;
}

static cudnnStatus_t work_of(const rm_cuda_dnn *dnn, const convolution *c, way way, int algorithm, size_t *bytes) {
    const rm_cudnn_library *lib = dnn->lib;
    switch (way) {
    case TO_POSITIONS:
        return lib->cudnnGetConvolutionForwardWorkspaceSize(dnn->handle, c->pixels, c->filter, c->conv, c->positions,
                                                            (cudnnConvolutionFwdAlgo_t)algorithm, bytes);
    case TO_PIXELS:
        return lib->cudnnGetConvolutionBackwardDataWorkspaceSize(
            dnn->handle, c->filter, c->positions, c->conv, c->pixels, (cudnnConvolutionBwdDataAlgo_t)algorithm, bytes);
    default:
        return lib->cudnnGetConvolutionBackwardFilterWorkspaceSize(dnn->handle, c->pixels, c->positions, c->conv,
                                                                   c->filter,
                                                                   (cudnnConvolutionBwdFilterAlgo_t)algorithm, bytes);
    }
}

/* cuDNN does not compute this shape this way; other errors end the session. */
static bool refuses(cudnnStatus_t error) {
    int category = CUDNN_STATUS_CATEGORY((int)error);
    return category == CUDNN_STATUS_NOT_SUPPORTED || category == CUDNN_STATUS_BAD_PARAM;
}

static cudnnStatus_t choose_algorithm(const rm_cuda_dnn *dnn, convolution *c, way way) {
    const rm_conv_shape *s = &c->shape;
    uint64_t most = rm_larger(MOST_WORK, 2 * sizeof(float) * (uint64_t)(pixels_of(s) + positions_of(s)));
    for (int i = 0; i < tries[way].n; i++) {
        size_t bytes = 0;
        cudnnStatus_t error = work_of(dnn, c, way, tries[way].algorithm[i], &bytes);
        if (error && !refuses(error)) return error;
        if (error || bytes > most) continue;
        c->algorithm[way] = tries[way].algorithm[i];
        c->work_bytes = rm_larger(c->work_bytes, bytes);
        return CUDNN_STATUS_SUCCESS;
    }
    return CUDNN_STATUS_NOT_SUPPORTED;
}

static cudnnStatus_t describe(const rm_device *device, convolution *c) {
    const rm_cuda_dnn *dnn = device->dnn;
    const rm_conv_shape *s = &c->shape;
    const cudnnDataType_t type = in_bf16(device) ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_FLOAT;
    cudnnStatus_t error = describe_images(dnn, type, s, s->groups * s->channels, s->in, &c->pixels);
    if (!error) error = describe_images(dnn, type, s, s->groups * s->outputs, s->out, &c->positions);
    if (!error) error = describe_filter(dnn, type, s, &c->filter);
    if (!error) error = describe_conv(device, s, &c->conv);
    if (!error) error = check_positions(dnn, c);
    for (way way = 0; way < WAYS && !error; way++) error = choose_algorithm(dnn, c, way);
    return error;
}

/* *out NULL: cuDNN refuses it. */
static remat_status make_convolution(rm_cuda_convs *convs, const rm_conv_shape *s, convolution **out) {
    *out = find(convs, s);
    if (*out) return REMAT_OK;
    convolution *c = rm_calloc(1, sizeof *c);
    REQUIRE(c, MEMORY, "out of host memory for a convolution");
    c->shape = *s;
    cudnnStatus_t error = describe(convs->device, c);
    if (error) {
        free_convolution(convs->device->dnn, c);
        return refuses(error) ? REMAT_OK
                              : rm_cuda_dnn_status(convs->device, error, "describing a convolution to cuDNN");
    }
    c->next = convs->known;
    *out = convs->known = c;
    return REMAT_OK;
}

/* ---- The variant -------------------------------------------------------------------------------------------------- */

/* Copies the op's descriptor and replaces its kernels. */
static void make_descriptor(remat_op *op, int number) {
    *op = *rm_op_find(op_names[number][0]);
    op->name = op_names[number][1];
    memset(op->on, 0, sizeof op->on);
    op->on[REMAT_ON_CUDA] = (remat_op_device){.forward = forward, .backward = backward, .scratch_bytes = scratch_bytes};
}

/* Opens cuDNN for the first convolution. Without it device->convs stays NULL. */
static remat_status open_convs(rm_device *device) {
    const char *set = getenv("REMAT_CUDA_CUDNN");
    if (device->convs || !rm_cuda_kernels_built.conv || (set && !strcmp(set, "OFF"))) return REMAT_OK;
    remat_status status = rm_cuda_use_dnn(device);
    if (status) return status == REMAT_MISSING ? REMAT_OK : status;
    rm_cuda_convs *convs = rm_calloc(1, sizeof *convs);
    REQUIRE(convs, MEMORY, "out of host memory for convolutions");
    convs->device = device;
    for (int i = 0; i < OPS; i++) make_descriptor(&convs->op[i], i);
    device->convs = convs;
    return REMAT_OK;
}

/* The indices of cuDNN, which are ints, must reach every element. Filters of a single channel have kernels of their
 * own. */
static bool suits(const rm_conv_shape *s) {
    return pixels_of(s) <= INT32_MAX && positions_of(s) <= INT32_MAX && weights_of(s) <= INT32_MAX &&
           (s->groups == 1 || s->channels > 1);
}

remat_status rm_cuda_conv_variant(rm_device *device, const remat_op *op, const void *attr, const remat_desc *x,
                                  const int64_t tau[2], rm_variant *out) {
    int number = 0;
    while (number < OPS && strcmp(op->name, op_names[number][0])) number++;
    out->op = NULL;
    if (number == OPS || x[X].dtype != REMAT_F32) return REMAT_OK;
    attributes a = {.conv = *(const rm_conv_attr *)attr, .tau = tau[0]};
    for (int tile = 0; tile < 2; tile++) {
        remat_desc part = x[X];
        if (tau[tile]) part.dim[0] = tau[tile];
        rm_conv_shape s = rm_conv_shape_of(&part, &x[W], attr);
        convolution *c = NULL;
        if (!suits(&s)) return REMAT_OK;
        TRY(open_convs(device));
        if (device->convs) TRY(make_convolution(device->convs, &s, &c));
        if (!c) return REMAT_OK;
        a.scratch_bytes[tile][0] = scratch_of(device, c, REMAT_FORWARD);
        a.scratch_bytes[tile][1] = scratch_of(device, c, REMAT_BACKWARD);
    }
    out->op = &device->convs->op[number];
    out->attr_bytes = sizeof a;
    memcpy(out->attr, &a, sizeof a);
    return REMAT_OK;
}

static bool cudnn_method(rm_device *device, const remat_op *op, const void *attr, const remat_desc *x, rm_method *out) {
    static const char *const forward[] = {[CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM] = "IMPLICIT_GEMM",
                                          [CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM] = "IMPLICIT_PRECOMP_GEMM"};
    const rm_cuda_convs *convs = device->convs;
    if (!convs || (op != &convs->op[CONV] && op != &convs->op[CONV_TRANSPOSE])) return false;
    const rm_conv_shape s = rm_conv_shape_of(&x[X], &x[W], attr);
    const convolution *c = find(convs, &s);
    if (!c) return false;
    out->work_bytes = c->work_bytes;
    snprintf(out->by, sizeof out->by, "cuDNN: FWD %s, BWD_DATA ALGO_%d, BWD_FILTER ALGO_%d",
             forward[c->algorithm[TO_POSITIONS]], c->algorithm[TO_PIXELS], c->algorithm[TO_WEIGHTS]);
    return true;
}

void rm_cuda_convs_free(rm_cuda_convs *convs) {
    if (!convs) return;
    for (convolution *c = convs->known, *next; c; c = next) {
        next = c->next;
        free_convolution(convs->device->dnn, c);
    }
    rm_free(convs);
}

#else

static bool cudnn_method(rm_device *device, const remat_op *op, const void *attr, const remat_desc *x, rm_method *out) {
    (void)device, (void)op, (void)attr, (void)x, (void)out;
    return false;
}

void rm_cuda_convs_free(rm_cuda_convs *convs) { (void)convs; }
remat_status rm_cuda_conv_variant(rm_device *device, const remat_op *op, const void *attr, const remat_desc *x,
                                  const int64_t tau[2], rm_variant *out) {
    (void)device, (void)op, (void)attr, (void)x, (void)tau;
    out->op = NULL;
    return REMAT_OK;
}

#endif

bool rm_cuda_conv_method(rm_device *device, const remat_op *op, const void *attr, const remat_desc *x, rm_method *out) {
    if (cudnn_method(device, op, attr, x, out)) return true;
    if (strcmp(op->name, "conv") && strcmp(op->name, "conv_transpose")) return false;
    const rm_conv_shape s = rm_conv_shape_of(&x[0], &x[1], attr);
    const char *by = rm_conv_is_depthwise(&s) ? "kernels for filters of one channel" : "matrix products";
    out->work_bytes = (uint64_t)rm_conv_scratch_cuda(&s, REMAT_BACKWARD) * sizeof(float);
    snprintf(out->by, sizeof out->by, "%s", by);
    return true;
}
