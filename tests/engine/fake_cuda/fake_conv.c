/* fake_conv.c: the functions of cuDNN that Remat's convolutions call (fake.h). They are computed in plain loops when
 * their turn in the stream comes, after checks of descriptors, work spaces and alignment. The work space holds garbage
 * after each call. Sums start at another term for another batch and another algorithm, so that bits differ as cuDNN's
 * may. Operands are rounded as the descriptors allow: floats to TF32 unless the math type forbids it. Numbers in bf16 need
 * a math type that allows tensor cores: without them the real library is slow. */
#if __has_include(<cudnn.h>)

#include <cudnn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "fake.h"
#include "fake_dnn.h"

struct cudnnFilterStruct {
    cudnnDataType_t type;
    int dim[4];
};
struct cudnnConvolutionStruct {
    int padding[2], stride[2], dilation[2], groups;
    cudnnMathType_t math;
};

FAKE_DNN_LIFE(cudnnCreateFilterDescriptor, cudnnDestroyFilterDescriptor, cudnnFilterDescriptor_t)
FAKE_DNN_LIFE(cudnnCreateConvolutionDescriptor, cudnnDestroyConvolutionDescriptor, cudnnConvolutionDescriptor_t)

static int64_t count, refused_groups, extra_work;
int64_t fake_conv_counted(void) { return count; }
void fake_conv_refuses_groups(void) { refused_groups = 1; }
void fake_conv_wants(int64_t bytes) { extra_work = bytes; }
void fake_conv_reset(void) { count = refused_groups = extra_work = 0; }

/* ---- Descriptors ------------------------------------------------------------------------------------------------- */

static bool is_number(cudnnDataType_t type) { return type == CUDNN_DATA_FLOAT || type == CUDNN_DATA_BFLOAT16; }

cudnnStatus_t cudnnSetFilterNdDescriptor(cudnnFilterDescriptor_t filter, cudnnDataType_t type,
                                         cudnnTensorFormat_t format, int n, const int dim[]) {
    cudnnStatus_t status = fake_dnn_answer();
    if (status) return status;
    if (n != 4 || format != CUDNN_TENSOR_NCHW || !is_number(type)) return CUDNN_STATUS_NOT_SUPPORTED;
    filter->type = type;
    memcpy(filter->dim, dim, sizeof filter->dim);
    return status;
}
cudnnStatus_t cudnnSetConvolutionNdDescriptor(cudnnConvolutionDescriptor_t conv, int n, const int padding[],
                                              const int stride[], const int dilation[], cudnnConvolutionMode_t mode,
                                              cudnnDataType_t type) {
    cudnnStatus_t status = fake_dnn_answer();
    if (status) return status;
    if (n != 2 || mode != CUDNN_CROSS_CORRELATION || type != CUDNN_DATA_FLOAT) return CUDNN_STATUS_NOT_SUPPORTED;
    memcpy(conv->padding, padding, sizeof conv->padding);
    memcpy(conv->stride, stride, sizeof conv->stride);
    memcpy(conv->dilation, dilation, sizeof conv->dilation);
    conv->groups = 1;
    conv->math = CUDNN_DEFAULT_MATH;
    return status;
}
cudnnStatus_t cudnnSetConvolutionGroupCount(cudnnConvolutionDescriptor_t conv, int groups) {
    cudnnStatus_t status = fake_dnn_answer();
    if (!status) conv->groups = groups;
    return !status && groups > 1 && refused_groups ? CUDNN_STATUS_NOT_SUPPORTED : status;
}
cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t conv, cudnnMathType_t math) {
    cudnnStatus_t status = fake_dnn_answer();
    if (!status) conv->math = math;
    return status;
}

static int positions_along(const struct cudnnConvolutionStruct *conv, const struct cudnnTensorStruct *x,
                           const struct cudnnFilterStruct *w, int d) {
    return (x->dim[2 + d] + 2 * conv->padding[d] - conv->dilation[d] * (w->dim[2 + d] - 1) - 1) / conv->stride[d] + 1;
}
cudnnStatus_t cudnnGetConvolutionNdForwardOutputDim(const cudnnConvolutionDescriptor_t conv,
                                                    const cudnnTensorDescriptor_t x, const cudnnFilterDescriptor_t w,
                                                    int n, int dim[]) {
    cudnnStatus_t status = fake_dnn_answer();
    if (status) return status;
    if (n != 4 || x->dim[1] != w->dim[1] * conv->groups || w->dim[0] % conv->groups) return CUDNN_STATUS_BAD_PARAM;
    dim[0] = x->dim[0], dim[1] = w->dim[0];
    for (int d = 0; d < 2; d++) dim[2 + d] = positions_along(conv, x, w, d);
    return status;
}

/* ---- A call ------------------------------------------------------------------------------------------------------ */

typedef enum { TO_POSITIONS, TO_PIXELS, TO_WEIGHTS } way;

typedef struct {
    way way;
    int algorithm;
    struct cudnnTensorStruct x, y;
    struct cudnnFilterStruct w;
    struct cudnnConvolutionStruct conv;
    const void *x_data, *w_data, *y_data;
    void *to, *work;
    size_t work_bytes;
    float beta;
} call;

static bool repeats(way way, int algorithm) {
    if (way == TO_POSITIONS)
        return algorithm == CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM ||
               algorithm == CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM;
    return algorithm ==
           (way == TO_PIXELS ? (int)CUDNN_CONVOLUTION_BWD_DATA_ALGO_1 : (int)CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1);
}

static int64_t numbers_of(const int dim[4]) { return (int64_t)dim[0] * dim[1] * dim[2] * dim[3]; }
static size_t bytes_of(cudnnDataType_t type, const int dim[4]) {
    return (size_t)numbers_of(dim) * (type == CUDNN_DATA_FLOAT ? 4 : 2);
}

/* The algorithm without precomputed indices needs no memory. */
static size_t work_bytes(const call *c) {
    if (c->way == TO_POSITIONS && c->algorithm == CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM) return 0;
    return 300 + 4 * (size_t)numbers_of(c->w.dim) + (size_t)extra_work;
}

static bool fits(const call *c) {
    bool packed = true;
    for (int side = 0; side < 2; side++) {
        const struct cudnnTensorStruct *t = side ? &c->y : &c->x;
        int distance = 1;
        for (int d = 3; d >= 0; d--) packed &= t->n == 4 && t->stride[d] == distance, distance *= t->dim[d];
    }
    for (int d = 0; d < 2; d++) packed &= c->y.dim[2 + d] == positions_along(&c->conv, &c->x, &c->w, d);
    return packed && c->x.type == c->w.type && c->y.type == c->w.type && is_number(c->w.type) &&
           c->x.dim[0] == c->y.dim[0] && c->x.dim[1] == c->w.dim[1] * c->conv.groups && c->y.dim[1] == c->w.dim[0] &&
           c->w.dim[0] % c->conv.groups == 0;
}

static float from_half(uint16_t half) {
    uint32_t bits = (uint32_t)half << 16;
    float x;
    return memcpy(&x, &bits, sizeof x), x;
}
static uint16_t to_half(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
static float to_tf32(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits = (bits + 0xfff + (bits >> 13 & 1)) & ~0x1fffu;
    return memcpy(&x, &bits, sizeof x), x;
}

static float number(const call *c, const void *data, int64_t i) {
    if (c->w.type == CUDNN_DATA_BFLOAT16) return from_half(((const uint16_t *)data)[i]);
    float x = ((const float *)data)[i];
    return c->conv.math == CUDNN_FMA_MATH ? x : to_tf32(x);
}

static void store(const call *c, int64_t i, float sum) {
    if (c->w.type == CUDNN_DATA_BFLOAT16)
        ((uint16_t *)c->to)[i] = to_half(sum + (c->beta != 0 ? c->beta * from_half(((uint16_t *)c->to)[i]) : 0));
    else
        ((float *)c->to)[i] = sum + (c->beta != 0 ? c->beta * ((float *)c->to)[i] : 0);
}

/* One term of the sum: the indices of its pixel, weight and position. False: padding. */
static bool term_at(const call *c, const int at[7], int64_t index[3]) {
    enum { N, GROUP, O, CHANNEL, P, I, J };
    int each = c->w.dim[0] / c->conv.groups, o = at[GROUP] * each + at[O];
    int r = at[P] / c->y.dim[3], q = at[P] % c->y.dim[3];
    int y = r * c->conv.stride[0] - c->conv.padding[0] + at[I] * c->conv.dilation[0];
    int x = q * c->conv.stride[1] - c->conv.padding[1] + at[J] * c->conv.dilation[1];
    int channel = at[GROUP] * c->w.dim[1] + at[CHANNEL];
    index[0] = (((int64_t)at[N] * c->x.dim[1] + channel) * c->x.dim[2] + y) * c->x.dim[3] + x;
    index[1] = (((int64_t)o * c->w.dim[1] + at[CHANNEL]) * c->w.dim[2] + at[I]) * c->w.dim[3] + at[J];
    index[2] = ((int64_t)at[N] * c->y.dim[1] + o) * c->y.dim[2] * c->y.dim[3] + at[P];
    return y >= 0 && y < c->x.dim[2] && x >= 0 && x < c->x.dim[3];
}

/* All terms in an order that starts elsewhere for another batch and algorithm, each added to its sum. */
static void compute(void *context) {
    const call *c = context;
    const int size[7] = {
        c->y.dim[0], c->conv.groups, c->w.dim[0] / c->conv.groups, c->w.dim[1], c->y.dim[2] * c->y.dim[3],
        c->w.dim[2], c->w.dim[3]};
    const int *result = c->way == TO_POSITIONS ? c->y.dim : c->way == TO_PIXELS ? c->x.dim : c->w.dim;
    int64_t n = numbers_of(result), terms = 1, index[3];
    float *sum = calloc((size_t)n, sizeof *sum);
    if (c->work) memset(c->work, 0xFF, c->work_bytes);
    for (int d = 0; d < 7; d++) terms *= size[d];
    int64_t first = (c->y.dim[0] * 7919 + c->algorithm * 104729) % terms;
    for (int64_t t = 0; t < terms; t++) {
        int at[7];
        int64_t rest = (first + t) % terms;
        for (int d = 6; d >= 0; d--) at[d] = (int)(rest % size[d]), rest /= size[d];
        if (!term_at(c, at, index)) continue;
        if (c->way == TO_POSITIONS) sum[index[2]] += number(c, c->x_data, index[0]) * number(c, c->w_data, index[1]);
        if (c->way == TO_PIXELS) sum[index[0]] += number(c, c->w_data, index[1]) * number(c, c->y_data, index[2]);
        if (c->way == TO_WEIGHTS) sum[index[1]] += number(c, c->x_data, index[0]) * number(c, c->y_data, index[2]);
    }
    for (int64_t i = 0; i < n; i++) store(c, i, sum[i]);
    free(sum);
}

static cudnnStatus_t give(cudnnHandle_t handle, call c, const void *alpha, const void *beta) {
    cudnnStatus_t status = fake_dnn_answer();
    if (status) return status;
    if (!fits(&c)) return CUDNN_STATUS_BAD_PARAM;
    if (c.work_bytes < work_bytes(&c)) return CUDNN_STATUS_BAD_PARAM;
    if (!repeats(c.way, c.algorithm)) fake_violate("cuDNN's algorithm %d does not repeat its bits", c.algorithm);
    if (*(const float *)alpha != 1) fake_violate("a convolution is scaled by %g", (double)*(const float *)alpha);
    if (c.work_bytes && (uintptr_t)c.work % 256) fake_violate("a work space is not aligned to 256 bytes");
    if (c.w.type == CUDNN_DATA_BFLOAT16 && c.conv.math != CUDNN_TENSOR_OP_MATH)
        fake_violate("a convolution in bf16 without tensor cores");
    if (fake_records()) fake_violate("a convolution by cuDNN while launches are recorded");
    c.beta = *(const float *)beta;
    const fake_range range[] = {{c.x_data, c.x_data ? bytes_of(c.x.type, c.x.dim) : 0, false},
                                {c.w_data, c.w_data ? bytes_of(c.w.type, c.w.dim) : 0, false},
                                {c.y_data, c.y_data ? bytes_of(c.y.type, c.y.dim) : 0, false},
                                {c.to,
                                 c.way == TO_POSITIONS ? bytes_of(c.y.type, c.y.dim)
                                 : c.way == TO_PIXELS  ? bytes_of(c.x.type, c.x.dim)
                                                       : bytes_of(c.w.type, c.w.dim),
                                 true},
                                {c.work, c.work_bytes, true}};
    count++;
    fake_push(fake_dnn_stream(handle), compute, &c, sizeof c, range, sizeof range / sizeof *range);
    return status;
}

/* ---- Main entries ------------------------------------------------------------------------------------------------ */

static cudnnStatus_t tell_work(call c, size_t *bytes) {
    cudnnStatus_t status = fake_dnn_answer();
    if (status) return status;
    *bytes = work_bytes(&c); /* descriptors that do not fit together are found by the call itself */
    return status;
}

cudnnStatus_t cudnnGetConvolutionForwardWorkspaceSize(cudnnHandle_t handle, const cudnnTensorDescriptor_t x,
                                                      const cudnnFilterDescriptor_t w,
                                                      const cudnnConvolutionDescriptor_t conv,
                                                      const cudnnTensorDescriptor_t y,
                                                      cudnnConvolutionFwdAlgo_t algorithm, size_t *bytes) {
    (void)handle;
    return tell_work((call){.way = TO_POSITIONS, .algorithm = (int)algorithm, .x = *x, .y = *y, .w = *w, .conv = *conv},
                     bytes);
}
cudnnStatus_t cudnnGetConvolutionBackwardDataWorkspaceSize(cudnnHandle_t handle, const cudnnFilterDescriptor_t w,
                                                           const cudnnTensorDescriptor_t y,
                                                           const cudnnConvolutionDescriptor_t conv,
                                                           const cudnnTensorDescriptor_t x,
                                                           cudnnConvolutionBwdDataAlgo_t algorithm, size_t *bytes) {
    (void)handle;
    return tell_work((call){.way = TO_PIXELS, .algorithm = (int)algorithm, .x = *x, .y = *y, .w = *w, .conv = *conv},
                     bytes);
}
cudnnStatus_t cudnnGetConvolutionBackwardFilterWorkspaceSize(cudnnHandle_t handle, const cudnnTensorDescriptor_t x,
                                                             const cudnnTensorDescriptor_t y,
                                                             const cudnnConvolutionDescriptor_t conv,
                                                             const cudnnFilterDescriptor_t w,
                                                             cudnnConvolutionBwdFilterAlgo_t algorithm, size_t *bytes) {
    (void)handle;
    return tell_work((call){.way = TO_WEIGHTS, .algorithm = (int)algorithm, .x = *x, .y = *y, .w = *w, .conv = *conv},
                     bytes);
}

#define CALL(direction)                                                                                                \
    .way = (direction), .algorithm = (int)algorithm, .x = *x, .y = *y, .w = *w, .conv = *conv, .work = work,           \
    .work_bytes = bytes

cudnnStatus_t cudnnConvolutionForward(cudnnHandle_t handle, const void *alpha, const cudnnTensorDescriptor_t x,
                                      const void *x_data, const cudnnFilterDescriptor_t w, const void *w_data,
                                      const cudnnConvolutionDescriptor_t conv, cudnnConvolutionFwdAlgo_t algorithm,
                                      void *work, size_t bytes, const void *beta, const cudnnTensorDescriptor_t y,
                                      void *to) {
    return give(handle, (call){CALL(TO_POSITIONS), .x_data = x_data, .w_data = w_data, .to = to}, alpha, beta);
}
cudnnStatus_t cudnnConvolutionBackwardData(cudnnHandle_t handle, const void *alpha, const cudnnFilterDescriptor_t w,
                                           const void *w_data, const cudnnTensorDescriptor_t y, const void *y_data,
                                           const cudnnConvolutionDescriptor_t conv,
                                           cudnnConvolutionBwdDataAlgo_t algorithm, void *work, size_t bytes,
                                           const void *beta, const cudnnTensorDescriptor_t x, void *to) {
    return give(handle, (call){CALL(TO_PIXELS), .w_data = w_data, .y_data = y_data, .to = to}, alpha, beta);
}
cudnnStatus_t cudnnConvolutionBackwardFilter(cudnnHandle_t handle, const void *alpha, const cudnnTensorDescriptor_t x,
                                             const void *x_data, const cudnnTensorDescriptor_t y, const void *y_data,
                                             const cudnnConvolutionDescriptor_t conv,
                                             cudnnConvolutionBwdFilterAlgo_t algorithm, void *work, size_t bytes,
                                             const void *beta, const cudnnFilterDescriptor_t w, void *to) {
    return give(handle, (call){CALL(TO_WEIGHTS), .x_data = x_data, .y_data = y_data, .to = to}, alpha, beta);
}

#else

#include "fake.h"
int64_t fake_conv_counted(void) { return 0; }
void fake_conv_reset(void) {}

#endif
