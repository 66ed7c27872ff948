/* fake_dnn.c: cuDNN's handles and tensors, and the functions that Remat's recurrent layers call (fake.h). The RNN runs in plain loops when its
 * turn in the stream comes. Like cuDNN's, its buffers have private layouts: weights lie in an unexpected order, with
 * gaps; the reserve space is filled from the last timestep to the first, and the gradients of data change it before
 * those of weights read it; the work space holds garbage after each call. Sums start at another term for another number
 * of timesteps, and in inference, so that bits differ as cuDNN's may. */
#if __has_include(<cudnn.h>)

#include <cudnn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "fake.h"
#include "fake_dnn.h"

struct cudnnContext {
    cudaStream_t stream;
};
struct cudnnDropoutStruct {
    bool set;
};
struct cudnnRNNStruct {
    cudnnRNNMode_t mode;
    int in, hidden;
};
struct cudnnRNNDataStruct {
    int tau, batch, width;
};

static int64_t count;
int64_t fake_dnn_counted(void) { return count; }
void fake_dnn_reset(void) { count = 0; }

cudnnStatus_t fake_dnn_answer(void) {
    cublasStatus_t status = fake_blas_answer();
    if (!status) return CUDNN_STATUS_SUCCESS;
    return status == CUBLAS_STATUS_ALLOC_FAILED ? CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED
                                                : CUDNN_STATUS_EXECUTION_FAILED;
}

cudaStream_t fake_dnn_stream(cudnnHandle_t handle) { return handle->stream; }

void *fake_dnn_make(const char *what, size_t bytes, cudnnStatus_t *status) {
    *status = fake_dnn_answer();
    void *made = *status ? NULL : calloc(1, bytes);
    fake_blas_handle(*status ? 0 : 1);
    if (made && !strcmp(what, "cudnnCreate")) fake_load(FAKE_CUDNN);
    return made;
}
cudnnStatus_t fake_dnn_unmake(void *handle) {
    if (!handle) fake_violate("a cuDNN object is destroyed that does not exist");
    fake_blas_handle(-1);
    free(handle);
    return fake_dnn_answer();
}

/* ---- Descriptors ------------------------------------------------------------------------------------------------- */

FAKE_DNN_LIFE(cudnnCreate, cudnnDestroy, cudnnHandle_t)
FAKE_DNN_LIFE(cudnnCreateDropoutDescriptor, cudnnDestroyDropoutDescriptor, cudnnDropoutDescriptor_t)
FAKE_DNN_LIFE(cudnnCreateTensorDescriptor, cudnnDestroyTensorDescriptor, cudnnTensorDescriptor_t)
FAKE_DNN_LIFE(cudnnCreateRNNDescriptor, cudnnDestroyRNNDescriptor, cudnnRNNDescriptor_t)
FAKE_DNN_LIFE(cudnnCreateRNNDataDescriptor, cudnnDestroyRNNDataDescriptor, cudnnRNNDataDescriptor_t)

size_t cudnnGetVersion(void) { return 91900; }
const char *cudnnGetErrorString(cudnnStatus_t status) { return status ? "a fault that a test has asked for" : "none"; }
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
    cudnnStatus_t status = fake_dnn_answer();
    if (!status) handle->stream = stream;
    return status;
}
cudnnStatus_t cudnnSetDropoutDescriptor(cudnnDropoutDescriptor_t desc, cudnnHandle_t handle, float dropout,
                                        void *states, size_t bytes, unsigned long long seed) {
    (void)handle, (void)states, (void)bytes, (void)seed;
    desc->set = true;
    if (dropout != 0) fake_violate("cuDNN is asked for dropout, which Remat does itself");
    return fake_dnn_answer();
}
cudnnStatus_t cudnnSetTensorNdDescriptor(cudnnTensorDescriptor_t desc, cudnnDataType_t type, int n, const int dim[],
                                         const int stride[]) {
    cudnnStatus_t status = fake_dnn_answer();
    if (status) return status;
    if (n < 3 || n > 4) return CUDNN_STATUS_BAD_PARAM;
    desc->type = type, desc->n = n;
    memcpy(desc->dim, dim, (size_t)n * sizeof *dim);
    memcpy(desc->stride, stride, (size_t)n * sizeof *stride);
    return status;
}
cudnnStatus_t cudnnGetTensorNdDescriptor(const cudnnTensorDescriptor_t desc, int room, cudnnDataType_t *type, int *n,
                                         int dim[], int stride[]) {
    cudnnStatus_t status = fake_dnn_answer();
    if (status) return status;
    if (room < desc->n) return CUDNN_STATUS_BAD_PARAM;
    *type = desc->type, *n = desc->n;
    memcpy(dim, desc->dim, (size_t)desc->n * sizeof *dim);
    memcpy(stride, desc->stride, (size_t)desc->n * sizeof *stride);
    return status;
}
cudnnStatus_t cudnnSetRNNDescriptor_v8(cudnnRNNDescriptor_t rnn, cudnnRNNAlgo_t algo, cudnnRNNMode_t mode,
                                       cudnnRNNBiasMode_t bias, cudnnDirectionMode_t direction,
                                       cudnnRNNInputMode_t input, cudnnDataType_t type, cudnnDataType_t arithmetic,
                                       cudnnMathType_t math, int32_t in, int32_t hidden, int32_t projected,
                                       int32_t layers, cudnnDropoutDescriptor_t dropout, uint32_t flags) {
    cudnnStatus_t status = fake_dnn_answer();
    if (status) return status;
    bool known = algo == CUDNN_RNN_ALGO_STANDARD && bias == CUDNN_RNN_DOUBLE_BIAS &&
                 direction == CUDNN_UNIDIRECTIONAL && input == CUDNN_LINEAR_INPUT && type == CUDNN_DATA_FLOAT &&
                 arithmetic == CUDNN_DATA_FLOAT && (math == CUDNN_FMA_MATH || math == CUDNN_DEFAULT_MATH) &&
                 projected == hidden && layers == 1 && dropout && dropout->set && flags == CUDNN_RNN_PADDED_IO_ENABLED;
    rnn->mode = mode, rnn->in = in, rnn->hidden = hidden;
    return known ? status : CUDNN_STATUS_NOT_SUPPORTED;
}
cudnnStatus_t cudnnSetRNNDataDescriptor(cudnnRNNDataDescriptor_t data, cudnnDataType_t type,
                                        cudnnRNNDataLayout_t layout, int tau, int batch, int width, const int length[],
                                        void *padding) {
    cudnnStatus_t status = fake_dnn_answer();
    if (status) return status;
    for (int b = 0; b < batch; b++)
        if (length[b] != tau) return CUDNN_STATUS_NOT_SUPPORTED;
    data->tau = tau, data->batch = batch, data->width = width;
    bool known = type == CUDNN_DATA_FLOAT && layout == CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED && !padding;
    return known && tau > 0 && tau <= 65535 ? status : CUDNN_STATUS_NOT_SUPPORTED;
}

/* ---- Spaces ----------------------------------------------------------------------------------------------------- */

enum { MOST_GATES = 4, GAP = 16, HEAD = 16, PER_UNIT = 5 + 2 * MOST_GATES };
enum { EMPTY, AFTER_FORWARD, AFTER_DATA }; /* the first number of a reserve space */

static int gates_of(const struct cudnnRNNStruct *rnn) {
    return rnn->mode == CUDNN_LSTM ? 4 : rnn->mode == CUDNN_GRU ? 3 : 1;
}
static int64_t columns_of(const struct cudnnRNNStruct *rnn, int id) {
    return id < gates_of(rnn) ? rnn->in : rnn->hidden;
}

/* The offset of the bias of `id`, in numbers; its matrix follows. id -1: the total size. */
static int64_t bias_at(const struct cudnnRNNStruct *rnn, int id) {
    int64_t at = GAP;
    for (int i = 2 * gates_of(rnn) - 1; i > id; i--) at += rnn->hidden * (columns_of(rnn, i) + 1) + 2 * GAP;
    return at;
}
static int64_t matrix_at(const struct cudnnRNNStruct *rnn, int id) { return bias_at(rnn, id) + rnn->hidden + GAP; }
static size_t weight_bytes(const struct cudnnRNNStruct *rnn) { return sizeof(float) * (size_t)bias_at(rnn, -1); }
static size_t reserve_bytes(const struct cudnnRNNStruct *rnn, const struct cudnnRNNDataStruct *x) {
    return sizeof(float) * ((size_t)x->tau * (size_t)x->batch * (size_t)rnn->hidden * PER_UNIT + HEAD);
}
static size_t work_bytes(const struct cudnnRNNDataStruct *x) { return 100 + 4 * (size_t)x->tau * (size_t)x->batch; }

cudnnStatus_t cudnnGetRNNTempSpaceSizes(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn, cudnnForwardMode_t mode,
                                        cudnnRNNDataDescriptor_t x, size_t *work, size_t *reserve) {
    cudnnStatus_t status = fake_dnn_answer();
    (void)handle;
    if (status) return status;
    *work = work_bytes(x);
    *reserve = mode == CUDNN_FWD_MODE_TRAINING ? reserve_bytes(rnn, x) : 0;
    return status;
}
cudnnStatus_t cudnnGetRNNWeightSpaceSize(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn, size_t *bytes) {
    cudnnStatus_t status = fake_dnn_answer();
    (void)handle;
    if (!status) *bytes = weight_bytes(rnn);
    return status;
}

static void describe(cudnnTensorDescriptor_t desc, int rows, int columns) {
    *desc = (struct cudnnTensorStruct){CUDNN_DATA_FLOAT, 3, {1, rows, columns}, {rows * columns, columns, 1}};
}
cudnnStatus_t cudnnGetRNNWeightParams(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn, int32_t layer, size_t bytes,
                                      const void *space, int32_t id, cudnnTensorDescriptor_t matrix, void **matrix_out,
                                      cudnnTensorDescriptor_t bias, void **bias_out) {
    cudnnStatus_t status = fake_dnn_answer();
    float *start = (float *)(uintptr_t)space;
    (void)handle;
    if (status) return status;
    if (layer || bytes < weight_bytes(rnn) || !fake_lies_in(space, bytes, true)) return CUDNN_STATUS_BAD_PARAM;
    describe(matrix, rnn->hidden, (int)columns_of(rnn, id));
    describe(bias, rnn->hidden, 1);
    *matrix_out = start + matrix_at(rnn, id);
    *bias_out = start + bias_at(rnn, id);
    return status;
}

/* ---- A call ----------------------------------------------------------------------------------------------------- */

typedef struct {
    struct cudnnRNNStruct rnn;
    int tau, batch;
    bool keeps;
    const float *x, *hx, *cx, *w, *dy, *dhy, *dcy;
    float *y, *hy, *cy, *dx, *dhx, *dcx, *dw, *reserve;
    char *work;
    size_t work_bytes;
} call;

static void spoil_work(const call *c) { memset(c->work, 0xFF, c->work_bytes); }
static void expect_stage(const call *c, int stage) {
    if (c->reserve[0] != (float)stage || c->reserve[1] != (float)c->tau || c->reserve[2] != (float)c->batch)
        fake_violate("a reserve space at stage %g of %g timesteps, not %d of %d", (double)c->reserve[0],
                     (double)c->reserve[1], stage, c->tau);
}

static float *unit(const call *c, int t, int b, int j) {
    return c->reserve + HEAD + (((int64_t)(c->tau - 1 - t) * c->batch + b) * c->rnn.hidden + j) * PER_UNIT;
}
static const float *h_before(const call *c, int t, int b) {
    const float *all = t ? c->y + (int64_t)(t - 1) * c->batch * c->rnn.hidden : c->hx;
    return all ? all + (int64_t)b * c->rnn.hidden : NULL;
}
static const float *x_of(const call *c, int t, int b) { return c->x + ((int64_t)t * c->batch + b) * c->rnn.in; }

/* Row j of matrix `id` times v, plus the bias. */
static float sum(const call *c, int id, int j, const float *v) {
    int64_t n = columns_of(&c->rnn, id), from = (c->tau + (c->keeps ? 0 : 1)) % n;
    const float *row = c->w + matrix_at(&c->rnn, id) + j * n;
    float s = 0;
    for (int64_t k = 0; k < n && v; k++) s += row[(from + k) % n] * v[(from + k) % n];
    return s + c->w[bias_at(&c->rnn, id) + j];
}

static float sigmoid(float x) { return 1 / (1 + expf(-x)); }

/* The saved values of a unit: lstm i f g o c; gru r z n q; rnn h. */
static float forward_unit(const call *c, int t, int b, int j, float *keep) {
    const float *x = x_of(c, t, b), *h = h_before(c, t, b);
    int gates = gates_of(&c->rnn);
    float of_x[MOST_GATES], of_h[MOST_GATES];
    for (int g = 0; g < gates; g++) of_x[g] = sum(c, g, j, x), of_h[g] = sum(c, gates + g, j, h);
    if (c->rnn.mode == CUDNN_LSTM) {
        float before = t ? unit(c, t - 1, b, j)[4] : c->cx ? c->cx[(int64_t)b * c->rnn.hidden + j] : 0;
        for (int g = 0; g < 4; g++) keep[g] = g == 2 ? tanhf(of_x[g] + of_h[g]) : sigmoid(of_x[g] + of_h[g]);
        keep[4] = keep[1] * before + keep[0] * keep[2];
        return keep[3] * tanhf(keep[4]);
    }
    if (c->rnn.mode == CUDNN_GRU) {
        for (int g = 0; g < 2; g++) keep[g] = sigmoid(of_x[g] + of_h[g]);
        keep[3] = of_h[2];
        keep[2] = tanhf(of_x[2] + keep[0] * keep[3]);
        return (1 - keep[1]) * keep[2] + keep[1] * (h ? h[j] : 0);
    }
    float before_f = of_x[0] + of_h[0];
    return keep[0] = c->rnn.mode == CUDNN_RNN_TANH ? tanhf(before_f) : fmaxf(before_f, 0);
}

static void forward(void *context) {
    const call *c = context;
    int hidden = c->rnn.hidden;
    int64_t state = (int64_t)c->batch * hidden;
    spoil_work(c);
    for (int t = 0; t < c->tau; t++)
        for (int b = 0; b < c->batch; b++)
            for (int j = 0; j < hidden; j++)
                c->y[((int64_t)t * c->batch + b) * hidden + j] = forward_unit(c, t, b, j, unit(c, t, b, j));
    if (c->hy) memcpy(c->hy, c->y + (c->tau - 1) * state, sizeof(float) * (size_t)state);
    for (int64_t i = 0; c->cy && i < state; i++)
        c->cy[i] = unit(c, c->tau - 1, (int)(i / hidden), (int)(i % hidden))[4];
    c->reserve[0] = AFTER_FORWARD, c->reserve[1] = (float)c->tau, c->reserve[2] = (float)c->batch;
}

/* Replaces the unit's gates by their gradients, for x and for h. Returns the part of dh that goes directly to the
 * timestep before. */
static float backward_unit(const call *c, int t, int b, int j, float dh, float *dc) {
    float *u = unit(c, t, b, j), *of_x = u + 5, *of_h = of_x + MOST_GATES, direct = 0;
    const float *h = h_before(c, t, b);
    if (c->rnn.mode == CUDNN_LSTM) {
        float before = t ? unit(c, t - 1, b, j)[4] : c->cx ? c->cx[(int64_t)b * c->rnn.hidden + j] : 0;
        float tanh_c = tanhf(u[4]), d = *dc + dh * u[3] * (1 - tanh_c * tanh_c);
        of_x[0] = d * u[2] * u[0] * (1 - u[0]), of_x[1] = d * before * u[1] * (1 - u[1]);
        of_x[2] = d * u[0] * (1 - u[2] * u[2]), of_x[3] = dh * tanh_c * u[3] * (1 - u[3]);
        *dc = d * u[1];
    } else if (c->rnn.mode == CUDNN_GRU) {
        of_x[2] = dh * (1 - u[1]) * (1 - u[2] * u[2]);
        of_x[0] = of_x[2] * u[3] * u[0] * (1 - u[0]);
        of_x[1] = dh * ((h ? h[j] : 0) - u[2]) * u[1] * (1 - u[1]);
        direct = dh * u[1];
    } else
        of_x[0] = c->rnn.mode == CUDNN_RNN_TANH ? dh * (1 - u[0] * u[0]) : u[0] > 0 ? dh : 0;
    for (int g = 0; g < gates_of(&c->rnn); g++) of_h[g] = of_x[g];
    if (c->rnn.mode == CUDNN_GRU) of_h[2] = of_x[2] * u[0];
    return direct;
}

/* to (columns) += gradients of row (t,b) times the matrices from `id` on */
static void go_back(const call *c, int t, int b, int id, float *to) {
    int gates = gates_of(&c->rnn), part = id ? MOST_GATES : 0;
    int64_t n = columns_of(&c->rnn, id);
    for (int g = 0; g < gates; g++)
        for (int j = 0; j < c->rnn.hidden; j++) {
            const float *row = c->w + matrix_at(&c->rnn, id + g) + j * n, d = unit(c, t, b, j)[5 + part + g];
            for (int64_t k = 0; k < n; k++) to[k] += d * row[k];
        }
}

static void backward_data(void *context) {
    const call *c = context;
    int hidden = c->rnn.hidden, gates = gates_of(&c->rnn);
    size_t state = (size_t)c->batch * (size_t)hidden;
    float *dh = calloc(2 * state, sizeof *dh), *dc = dh + state;
    spoil_work(c);
    expect_stage(c, AFTER_FORWARD);
    if (c->dhy) memcpy(dh, c->dhy, state * sizeof *dh);
    if (c->dcy) memcpy(dc, c->dcy, state * sizeof *dc);
    for (int t = c->tau - 1; t >= 0; t--)
        for (int b = 0; b < c->batch; b++) {
            float *row = dh + b * hidden, *dx = c->dx + ((int64_t)t * c->batch + b) * c->rnn.in;
            for (int j = 0; j < hidden; j++)
                row[j] = backward_unit(c, t, b, j, row[j] + c->dy[((int64_t)t * c->batch + b) * hidden + j],
                                       &dc[b * hidden + j]);
            go_back(c, t, b, gates, row);
            memset(dx, 0, sizeof *dx * (size_t)c->rnn.in);
            go_back(c, t, b, 0, dx);
        }
    if (c->dhx) memcpy(c->dhx, dh, state * sizeof *dh);
    if (c->dcx) memcpy(c->dcx, dc, state * sizeof *dc);
    c->reserve[0] = AFTER_DATA;
    free(dh);
}

static void add_outer(const call *c, int id, float d, int j, const float *v) {
    int64_t n = columns_of(&c->rnn, id);
    float *row = c->dw + matrix_at(&c->rnn, id) + j * n;
    for (int64_t k = 0; k < n && v; k++) row[k] += d * v[k];
    c->dw[bias_at(&c->rnn, id) + j] += d;
}

static void backward_weights(void *context) {
    const call *c = context;
    int gates = gates_of(&c->rnn);
    spoil_work(c);
    expect_stage(c, AFTER_DATA);
    for (int t = 0; t < c->tau; t++)
        for (int b = 0; b < c->batch; b++)
            for (int j = 0; j < c->rnn.hidden; j++)
                for (int g = 0; g < gates; g++) {
                    const float *d = unit(c, t, b, j) + 5;
                    add_outer(c, g, d[g], j, x_of(c, t, b));
                    add_outer(c, gates + g, d[MOST_GATES + g], j, h_before(c, t, b));
                }
}

/* ---- Main entries ----------------------------------------------------------------------------------------------- */

static bool fits(cudnnRNNDescriptor_t rnn, cudnnRNNDataDescriptor_t x, cudnnRNNDataDescriptor_t y,
                 cudnnTensorDescriptor_t state, size_t weights, size_t work, size_t reserve) {
    return x->tau == y->tau && x->batch == y->batch && x->width == rnn->in && y->width == rnn->hidden &&
           state->dim[0] == 1 && state->dim[1] == x->batch && state->dim[2] == rnn->hidden &&
           weights >= weight_bytes(rnn) && work >= work_bytes(x) && reserve >= reserve_bytes(rnn, x);
}

static cudnnStatus_t give(cudnnHandle_t handle, void (*work)(void *), const call *c, bool weights) {
    size_t rows = (size_t)c->tau * (size_t)c->batch, hidden = (size_t)c->rnn.hidden, in = (size_t)c->rnn.in;
    size_t state = 4 * (size_t)c->batch * hidden, reserve = 4 * (rows * hidden * PER_UNIT + HEAD);
    bool is_forward = work == forward;
#define READS(p, n)                                                                                                    \
    { (p), (p) ? (n) : 0, false }
#define WRITES(p, n)                                                                                                   \
    { (p), (p) ? (n) : 0, true }
    const fake_range range[] = {READS(c->x, 4 * rows * in),
                                READS(c->hx, state),
                                READS(c->cx, state),
                                READS(c->w, weight_bytes(&c->rnn)),
                                READS(c->dy, 4 * rows * hidden),
                                READS(c->dhy, state),
                                READS(c->dcy, state),
                                {c->y, 4 * rows * hidden, is_forward},
                                WRITES(c->hy, state),
                                WRITES(c->cy, state),
                                WRITES(c->dx, 4 * rows * in),
                                WRITES(c->dhx, state),
                                WRITES(c->dcx, state),
                                WRITES(c->dw, weight_bytes(&c->rnn)),
                                {c->reserve, reserve, !weights},
                                WRITES(c->work, c->work_bytes)};
    count++;
    const void *const space[] = {c->w, c->dw, c->work, c->reserve};
    for (int i = 0; i < 4; i++)
        if ((uintptr_t)space[i] % 256) fake_violate("space %d of a cuDNN layer is not aligned to 256 bytes", i);
    if (fake_records()) fake_violate("a cuDNN layer while launches are recorded");
    fake_push(handle->stream, work, c, sizeof *c, range, sizeof range / sizeof *range);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnRNNForward(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn, cudnnForwardMode_t mode,
                              const int32_t length[], cudnnRNNDataDescriptor_t x_desc, const void *x,
                              cudnnRNNDataDescriptor_t y_desc, void *y, cudnnTensorDescriptor_t h, const void *hx,
                              void *hy, cudnnTensorDescriptor_t c_desc, const void *cx, void *cy, size_t weight_size,
                              const void *weights, size_t work_size, void *work, size_t reserve_size, void *reserve) {
    cudnnStatus_t status = fake_dnn_answer();
    if (length) fake_violate("sequence lengths are given, which cuDNN 9 does not read");
    (void)c_desc;
    if (status) return status;
    if (!fits(rnn, x_desc, y_desc, h, weight_size, work_size, reserve_size)) return CUDNN_STATUS_BAD_PARAM;
    call c = {.rnn = *rnn,
              .tau = x_desc->tau,
              .batch = x_desc->batch,
              .keeps = mode == CUDNN_FWD_MODE_TRAINING,
              .x = x,
              .y = y,
              .hx = hx,
              .hy = hy,
              .cx = cx,
              .cy = cy,
              .w = weights,
              .work = work,
              .work_bytes = work_size,
              .reserve = reserve};
    return give(handle, forward, &c, false);
}

cudnnStatus_t cudnnRNNBackwardData_v8(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn, const int32_t length[],
                                      cudnnRNNDataDescriptor_t y_desc, const void *y, const void *dy,
                                      cudnnRNNDataDescriptor_t x_desc, void *dx, cudnnTensorDescriptor_t h,
                                      const void *hx, const void *dhy, void *dhx, cudnnTensorDescriptor_t c_desc,
                                      const void *cx, const void *dcy, void *dcx, size_t weight_size,
                                      const void *weights, size_t work_size, void *work, size_t reserve_size,
                                      void *reserve) {
    cudnnStatus_t status = fake_dnn_answer();
    if (length) fake_violate("sequence lengths are given, which cuDNN 9 does not read");
    (void)c_desc;
    if (status) return status;
    if (!dx || !fits(rnn, x_desc, y_desc, h, weight_size, work_size, reserve_size)) return CUDNN_STATUS_BAD_PARAM;
    call c = {.rnn = *rnn,
              .tau = x_desc->tau,
              .batch = x_desc->batch,
              .y = (float *)(uintptr_t)y,
              .dy = dy,
              .dx = dx,
              .hx = hx,
              .dhy = dhy,
              .dhx = dhx,
              .cx = cx,
              .dcy = dcy,
              .dcx = dcx,
              .w = weights,
              .work = work,
              .work_bytes = work_size,
              .reserve = reserve};
    return give(handle, backward_data, &c, false);
}

cudnnStatus_t cudnnRNNBackwardWeights_v8(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn, cudnnWgradMode_t mode,
                                         const int32_t length[], cudnnRNNDataDescriptor_t x_desc, const void *x,
                                         cudnnTensorDescriptor_t h, const void *hx, cudnnRNNDataDescriptor_t y_desc,
                                         const void *y, size_t weight_size, void *dw, size_t work_size, void *work,
                                         size_t reserve_size, void *reserve) {
    cudnnStatus_t status = fake_dnn_answer();
    if (length) fake_violate("sequence lengths are given, which cuDNN 9 does not read");
    if (status) return status;
    bool fit = mode == CUDNN_WGRAD_MODE_ADD && fits(rnn, x_desc, y_desc, h, weight_size, work_size, reserve_size);
    if (!fit) return CUDNN_STATUS_BAD_PARAM;
    call c = {.rnn = *rnn,
              .tau = x_desc->tau,
              .batch = x_desc->batch,
              .x = x,
              .hx = hx,
              .y = (float *)(uintptr_t)y,
              .dw = dw,
              .work = work,
              .work_bytes = work_size,
              .reserve = reserve};
    return give(handle, backward_weights, &c, true);
}

#else

#include "fake.h"
int64_t fake_dnn_counted(void) { return 0; }
void fake_dnn_reset(void) {}

#endif
