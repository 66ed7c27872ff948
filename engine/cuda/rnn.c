/* rnn.c: cuDNN's RNN as the kernels of a layer: rnn.h. A tile is one call with the tile's shapes, always in training
 * mode, since cuDNN may compute differently in inference mode, and a recomputed tile would then have other bits than a
 * kept one.
 *
 *   packed                weights in cuDNN's weight space | their gradients in the same layout, accumulated over tiles
 *   scratch of forward    work space | reserve space, if it is not kept
 *   scratch of backward   work space | dx, if it is not needed
 *
 * The lengths of sequences on the GPU are passed as NULL, since all are as long as the tile; cuDNN no longer reads them
 * since 8.9.1.
 *
 * cuDNN 9.19, developer guide and headers: cudnnRNNForward, cudnnRNNBackwardData_v8, cudnnRNNBackwardWeights_v8. */
#include "engine/cuda/rnn.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine/cuda/cuda.h"
#include "memory/bytes.h"
#include "memory/host.h"

#ifdef RM_HAVE_CUDNN

enum { X, W_IH, W_HH, B_IH, B_HH, RESET }; /* inputs */
enum { MOST_GATES = 4, MOST_TIMESTEPS = 65535 };

/* A variant's attributes, for one layer. All members have 8 bytes, so there is no padding. */
typedef struct {
    int64_t mode, batch, in, hidden, tau[2];
    uint64_t weight_bytes, work_bytes[2], reserve_bytes[2];
} shape;
_Static_assert(sizeof(shape) <= sizeof((rm_variant){0}.attr), "the attributes must fit in a variant");

typedef struct layer {
    struct layer *next;
    shape shape;
    cudnnRNNDescriptor_t rnn;
    cudnnTensorDescriptor_t state;       /* (1,B,H) */
    cudnnRNNDataDescriptor_t x[2], y[2]; /* for both tile lengths */
    bool located;
    uint64_t matrix[2 * MOST_GATES], bias[2 * MOST_GATES]; /* offsets in the weight space; gates of x, then of h */
} layer;

enum { LSTM, GRU, RNN_TANH, RNN_RELU, CELLS };
static const struct {
    const char *op, *name;
    cudnnRNNMode_t mode;
    int gates; /* in the same order here and in cuDNN: i f g o; r z n */
} cells[CELLS] = {[LSTM] = {"lstm", "lstm_cudnn", CUDNN_LSTM, 4},
                  [GRU] = {"gru", "gru_cudnn", CUDNN_GRU, 3},
                  [RNN_TANH] = {"rnn_tanh", "rnn_tanh_cudnn", CUDNN_RNN_TANH, 1},
                  [RNN_RELU] = {"rnn_relu", "rnn_relu_cudnn", CUDNN_RNN_RELU, 1}};

/* A tile whose reserve space is kept. before: bytes of its buffer before the space. The buffer's address may change
 * when it comes back from the host. */
typedef struct kept_tile {
    struct kept_tile *next;
    int64_t node, t0, before;
} kept_tile;
enum { TILE_LISTS = 256 };

struct rm_cuda_rnns {
    rm_device *device;
    kept_tile *tile[TILE_LISTS]; /* by number along time */
    const rm_cudnn_library *lib;
    cudnnHandle_t handle; /* of the device */
    cudnnDropoutDescriptor_t no_dropout;
    layer *layers;
    remat_op op[CELLS];
};

/* ---- Sizes for planning ------------------------------------------------------------------------------------------- */

static int which_tile(const shape *s, const remat_desc *x) { return x[X].dim[0] == s->tau[0] ? 0 : 1; }

static uint64_t dx_bytes(const shape *s, const remat_desc *x) {
    return rm_cuda_space_bytes((uint64_t)(x[X].dim[0] * s->batch * s->in) * sizeof(float));
}

static uint64_t aux_bytes(const remat_desc *x, const void *attr) {
    const shape *s = attr;
    return s->reserve_bytes[which_tile(s, x)] + RM_CUDA_SPACE_MORE;
}

static uint64_t scratch_bytes(const remat_desc *x, const void *attr, remat_pass pass, bool aux, int threads) {
    (void)threads;
    const shape *s = attr;
    int tile = which_tile(s, x);
    uint64_t bytes = RM_CUDA_SPACE_MORE + rm_cuda_space_bytes(s->work_bytes[tile]);
    if (pass == REMAT_FORWARD) return bytes + (aux ? 0 : s->reserve_bytes[tile]);
    return bytes + dx_bytes(s, x);
}

static uint64_t packed_bytes(const remat_desc *x, const void *attr, int threads) {
    (void)x, (void)threads;
    const shape *s = attr;
    return rm_cuda_space_bytes(s->weight_bytes) + s->weight_bytes + RM_CUDA_SPACE_MORE;
}

/* ---- A call ------------------------------------------------------------------------------------------------------- */

typedef struct {
    const remat_call *call;
    rm_queue *q;
    rm_cuda_rnns *rnns;
    layer *layer;
    const shape *shape;
    int tile;           /* which of the two tile lengths */
    char *work, *after; /* after: the part of scratch after the work space */
    char *weights, *gradients;
} tile_call;

/* Every layer was made when its session was built. */
static layer *layer_of(const rm_cuda_rnns *rnns, const shape *s) {
    layer *l = rnns->layers;
    while (l && memcmp(&l->shape, s, sizeof *s)) l = l->next;
    return l;
}

static int gates_of(const shape *s) { return cells[s->mode].gates; }

/* Returns false if cuDNN cannot be used; the device keeps the failure. */
static bool begin(const remat_call *call, tile_call *t) {
    t->call = call;
    t->q = (rm_queue *)(uintptr_t)call->queue;
    t->rnns = t->q->device->rnns;
    t->shape = call->attr;
    t->layer = layer_of(t->rnns, t->shape);
    t->tile = which_tile(t->shape, &call->x[X].desc);
    t->work = rm_cuda_space_in(call->scratch);
    t->after = t->work + rm_cuda_space_bytes(t->shape->work_bytes[t->tile]);
    t->weights = rm_cuda_space_in(call->packed);
    t->gradients = t->weights + rm_cuda_space_bytes(t->shape->weight_bytes);
    return rm_cuda_dnn_begin(t->q);
}

/* ---- The reserve space ---------------------------------------------------------------------------------------------- */

static kept_tile **list_of(const tile_call *t) { return &t->rnns->tile[t->call->t0 / t->shape->tau[0] % TILE_LISTS]; }

/* NULL: the tile has never been kept. */
static kept_tile *tile_of(const tile_call *t) {
    kept_tile *k = *list_of(t);
    while (k && (k->node != (int64_t)t->call->key.node || k->t0 != t->call->t0)) k = k->next;
    return k;
}

/* Returns and remembers the place where forward writes the reserve space. NULL: out of memory; the device keeps the
 * failure. */
static char *place_reserve(const tile_call *t) {
    if (!t->call->aux) return t->after;
    kept_tile *k = tile_of(t), **list = list_of(t);
    if (!k) {
        k = rm_calloc(1, sizeof *k);
        if (!k) {
            (void)rm_cuda_dnn_went(t->q->device, CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED, "keeping a tile");
            return NULL;
        }
        *k = (kept_tile){*list, (int64_t)t->call->key.node, t->call->t0, 0};
        *list = k;
    }
    char *space = rm_cuda_space_in(t->call->aux);
    k->before = space - (char *)t->call->aux;
    return space;
}

/* Moves bytes between overlapping places through `room`, in the order that does not overwrite bytes still to be
 * moved. */
static void move_over(rm_queue *q, char *to, const char *from, uint64_t bytes, char *room, uint64_t room_bytes) {
    for (uint64_t done = 0, part; done < bytes; done += part) {
        part = rm_smaller(room_bytes, bytes - done);
        uint64_t at = to < from ? done : bytes - done - part;
        rm_cuda_copy(q, room, from + at, part);
        rm_cuda_copy(q, to + at, room, part);
    }
}

/* Returns the place where backward reads the reserve space. If it came back from the host to a buffer of another
 * alignment, it is moved first, through the scratch for dx, which is still free. */
static char *find_reserve(const tile_call *t) {
    const shape *s = t->shape;
    char *buffer = t->call->aux, *space = rm_cuda_space_in(buffer);
    kept_tile *k = tile_of(t);
    if (k && buffer + k->before != space) {
        move_over(t->q, space, buffer + k->before, s->reserve_bytes[t->tile], t->after,
                  dx_bytes(s, &t->call->x[X].desc));
        k->before = space - buffer;
    }
    return space;
}

/* ---- Forward ------------------------------------------------------------------------------------------------------ */

static void forward(const remat_call *call) {
    tile_call t;
    if (!begin(call, &t)) return;
    char *reserve = place_reserve(&t);
    if (!reserve) return;
    const shape *s = t.shape;
    const layer *l = t.layer;
    cudnnStatus_t error = t.rnns->lib->cudnnRNNForward(
        t.rnns->handle, l->rnn, CUDNN_FWD_MODE_TRAINING, NULL, l->x[t.tile], call->x[X].data, l->y[t.tile],
        call->y.data, l->state, call->state_in[0].data, call->state_out[0].data, l->state, call->state_in[1].data,
        call->state_out[1].data, s->weight_bytes, t.weights, s->work_bytes[t.tile], t.work, s->reserve_bytes[t.tile],
        reserve);
    (void)rm_cuda_dnn_went(t.q->device, error, "a recurrent layer by cuDNN");
}

/* ---- Gradients ---------------------------------------------------------------------------------------------------- */

static void add_piece(rm_cuda_pieces *pieces, const char *space, uint64_t at, const remat_tensor *to, int64_t part,
                      int64_t count) {
    if (!to->data) return;
    pieces->piece[pieces->n++] = (rm_cuda_piece){(const float *)(space + at), (float *)to->data + part * count, count};
}

/* dw_ih, dw_hh, db_ih, db_hh += the gradients in the weight space. */
static void add_gradients(const tile_call *t) {
    const char *space = t->gradients;
    const layer *l = t->layer;
    const remat_tensor *dx = t->call->dx;
    int gates = gates_of(t->shape);
    int64_t hidden = t->shape->hidden;
    rm_cuda_pieces pieces = {0};
    for (int g = 0; g < gates; g++) {
        add_piece(&pieces, space, l->matrix[g], &dx[W_IH], g, hidden * t->shape->in);
        add_piece(&pieces, space, l->matrix[gates + g], &dx[W_HH], g, hidden * hidden);
        add_piece(&pieces, space, l->bias[g], &dx[B_IH], g, hidden);
        add_piece(&pieces, space, l->bias[gates + g], &dx[B_HH], g, hidden);
    }
    rm_cuda_kernels_built.add_pieces(&t->q->shown, &pieces);
}

/* cuDNN accumulates the gradients of all tiles. The last tile in time, which backward runs first, starts with zeros;
 * after the first tile in time, the sums are added to our gradients. Nothing else uses this memory in between. */
static void weight_gradients(const tile_call *t, char *reserve) {
    const shape *s = t->shape;
    const layer *l = t->layer;
    const remat_call *call = t->call;
    if (call->t0 + s->tau[t->tile] == call->t_total) rm_cuda_fill(t->q, t->gradients, 0, s->weight_bytes);
    cudnnStatus_t error = t->rnns->lib->cudnnRNNBackwardWeights_v8(
        t->rnns->handle, l->rnn, CUDNN_WGRAD_MODE_ADD, NULL, l->x[t->tile], call->x[X].data, l->state,
        call->state_in[0].data, l->y[t->tile], call->y.data, s->weight_bytes, t->gradients, s->work_bytes[t->tile],
        t->work, s->reserve_bytes[t->tile], reserve);
    if (rm_cuda_dnn_went(t->q->device, error, "a recurrent layer's weight gradients by cuDNN") && call->t0 == 0)
        add_gradients(t);
}

static void backward(const remat_call *call) {
    tile_call t;
    if (!begin(call, &t)) return;
    const shape *s = t.shape;
    const layer *l = t.layer;
    char *reserve = find_reserve(&t);
    cudnnStatus_t error = t.rnns->lib->cudnnRNNBackwardData_v8(
        t.rnns->handle, l->rnn, NULL, l->y[t.tile], call->y.data, call->dy.data, l->x[t.tile],
        call->dx[X].data ? call->dx[X].data : t.after, l->state, call->state_in[0].data, call->dstate_out[0].data,
        call->dstate_in[0].data, l->state, call->state_in[1].data, call->dstate_out[1].data, call->dstate_in[1].data,
        s->weight_bytes, t.weights, s->work_bytes[t.tile], t.work, s->reserve_bytes[t.tile], reserve);
    if (!rm_cuda_dnn_went(t.q->device, error, "a recurrent layer's gradients by cuDNN")) return;
    if (call->dx[W_IH].data || call->dx[W_HH].data || call->dx[B_IH].data || call->dx[B_HH].data)
        weight_gradients(&t, reserve);
}

/* ---- Weights ------------------------------------------------------------------------------------------------------ */

/* Whether a matrix is (1,rows,columns), or a bias (1,rows,1), without gaps, as cuDNN documents it. */
static bool is_plain(const rm_cudnn_library *lib, cudnnTensorDescriptor_t desc, int64_t rows, int64_t columns) {
    cudnnDataType_t type;
    int n, dim[3], stride[3];
    if (lib->cudnnGetTensorNdDescriptor(desc, 3, &type, &n, dim, stride)) return false;
    return n == 3 && type == CUDNN_DATA_FLOAT && dim[0] == 1 && dim[1] == rows && dim[2] == columns &&
           (dim[2] == 1 || stride[2] == 1) && (dim[1] == 1 || stride[1] == columns);
}

static cudnnStatus_t locate_one(const rm_cuda_rnns *rnns, layer *l, int id, void *space, cudnnTensorDescriptor_t matrix,
                                cudnnTensorDescriptor_t bias) {
    const shape *s = &l->shape;
    void *at[2] = {NULL, NULL};
    cudnnStatus_t error = rnns->lib->cudnnGetRNNWeightParams(rnns->handle, l->rnn, 0, s->weight_bytes, space, id,
                                                             matrix, &at[0], bias, &at[1]);
    if (error) return error;
    bool plain = at[0] && at[1] && is_plain(rnns->lib, matrix, s->hidden, id < gates_of(s) ? s->in : s->hidden) &&
                 is_plain(rnns->lib, bias, s->hidden, 1);
    if (!plain) return CUDNN_STATUS_NOT_SUPPORTED;
    l->matrix[id] = (uint64_t)((char *)at[0] - (char *)space);
    l->bias[id] = (uint64_t)((char *)at[1] - (char *)space);
    return error;
}

static cudnnStatus_t locate(const rm_cuda_rnns *rnns, layer *l, void *space) {
    const rm_cudnn_library *lib = rnns->lib;
    cudnnTensorDescriptor_t matrix = NULL, bias = NULL;
    cudnnStatus_t error = lib->cudnnCreateTensorDescriptor(&matrix);
    if (error) return error;
    error = lib->cudnnCreateTensorDescriptor(&bias);
    for (int id = 0; id < 2 * gates_of(&l->shape) && !error; id++) error = locate_one(rnns, l, id, space, matrix, bias);
    if (bias) (void)lib->cudnnDestroyTensorDescriptor(bias);
    (void)lib->cudnnDestroyTensorDescriptor(matrix);
    l->located = !error;
    return error;
}

static void pack_piece(rm_queue *q, char *space, uint64_t at, const remat_tensor *from, int64_t part, int64_t count) {
    const float *start = from->desc.rank < 0 ? NULL : from->data;
    if (start) rm_cuda_copy(q, space + at, start + part * count, (uint64_t)count * sizeof(float));
}

/* Missing biases are zeros. */
static void pack(const remat_call *call, void *buffer) {
    char *packed = rm_cuda_space_in(buffer);
    rm_queue *q = (rm_queue *)(uintptr_t)call->queue;
    const shape *s = call->attr;
    rm_cuda_rnns *rnns = q->device->rnns;
    layer *l = layer_of(rnns, s);
    int gates = gates_of(s);
    if (!l->located && !rm_cuda_dnn_went(q->device, locate(rnns, l, packed), "finding weights in cuDNN's weight space"))
        return;
    rm_cuda_fill(q, packed, 0, s->weight_bytes);
    for (int g = 0; g < gates; g++) {
        pack_piece(q, packed, l->matrix[g], &call->x[W_IH], g, s->hidden * s->in);
        pack_piece(q, packed, l->matrix[gates + g], &call->x[W_HH], g, s->hidden * s->hidden);
        pack_piece(q, packed, l->bias[g], &call->x[B_IH], g, s->hidden);
        pack_piece(q, packed, l->bias[gates + g], &call->x[B_HH], g, s->hidden);
    }
}

/* ---- A layer ------------------------------------------------------------------------------------------------------ */

static void free_layer(const rm_cuda_rnns *rnns, layer *l) {
    const rm_cudnn_library *lib = rnns->lib;
    if (!l) return;
    for (int i = 0; i < 2; i++) {
        if (l->x[i]) (void)lib->cudnnDestroyRNNDataDescriptor(l->x[i]);
        if (l->y[i]) (void)lib->cudnnDestroyRNNDataDescriptor(l->y[i]);
    }
    if (l->state) (void)lib->cudnnDestroyTensorDescriptor(l->state);
    if (l->rnn) (void)lib->cudnnDestroyRNNDescriptor(l->rnn);
    rm_free(l);
}

/* cuDNN multiplies floats in TF32 by default, so fp32 must be requested. */
static cudnnStatus_t describe_rnn(const rm_cuda_rnns *rnns, layer *l) {
    const shape *s = &l->shape;
    bool tf32 = rnns->device->products->precision == RM_TF32;
    cudnnStatus_t error = rnns->lib->cudnnCreateRNNDescriptor(&l->rnn);
    if (error) return error;
    return rnns->lib->cudnnSetRNNDescriptor_v8(
        l->rnn, CUDNN_RNN_ALGO_STANDARD, cells[s->mode].mode, CUDNN_RNN_DOUBLE_BIAS, CUDNN_UNIDIRECTIONAL,
        CUDNN_LINEAR_INPUT, CUDNN_DATA_FLOAT, CUDNN_DATA_FLOAT, tf32 ? CUDNN_DEFAULT_MATH : CUDNN_FMA_MATH,
        (int32_t)s->in, (int32_t)s->hidden, (int32_t)s->hidden, 1, rnns->no_dropout, CUDNN_RNN_PADDED_IO_ENABLED);
}

static cudnnStatus_t describe_state(const rm_cuda_rnns *rnns, layer *l) {
    int b = (int)l->shape.batch, h = (int)l->shape.hidden;
    const int dim[3] = {1, b, h}, stride[3] = {b * h, h, 1};
    cudnnStatus_t error = rnns->lib->cudnnCreateTensorDescriptor(&l->state);
    return error ? error : rnns->lib->cudnnSetTensorNdDescriptor(l->state, CUDNN_DATA_FLOAT, 3, dim, stride);
}

static cudnnStatus_t describe_sequence(const rm_cuda_rnns *rnns, const layer *l, int tile, int64_t width,
                                       const int *lengths, cudnnRNNDataDescriptor_t *out) {
    cudnnStatus_t error = rnns->lib->cudnnCreateRNNDataDescriptor(out);
    if (error) return error;
    return rnns->lib->cudnnSetRNNDataDescriptor(*out, CUDNN_DATA_FLOAT, CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED,
                                                (int)l->shape.tau[tile], (int)l->shape.batch, (int)width, lengths,
                                                NULL);
}

static cudnnStatus_t describe_tile(const rm_cuda_rnns *rnns, layer *l, int tile, int *lengths) {
    shape *s = &l->shape;
    size_t work = 0, reserve = 0;
    for (int64_t b = 0; b < s->batch; b++) lengths[b] = (int)s->tau[tile];
    cudnnStatus_t error = describe_sequence(rnns, l, tile, s->in, lengths, &l->x[tile]);
    if (!error) error = describe_sequence(rnns, l, tile, s->hidden, lengths, &l->y[tile]);
    if (!error)
        error = rnns->lib->cudnnGetRNNTempSpaceSizes(rnns->handle, l->rnn, CUDNN_FWD_MODE_TRAINING, l->x[tile], &work,
                                                     &reserve);
    s->work_bytes[tile] = work;
    s->reserve_bytes[tile] = reserve;
    return error;
}

static remat_status describe(const rm_cuda_rnns *rnns, layer *l) {
    int *lengths = rm_malloc((size_t)l->shape.batch * sizeof *lengths);
    size_t weights = 0;
    REQUIRE(lengths, MEMORY, "out of host memory for the lengths of %" PRId64 " sequences", l->shape.batch);
    cudnnStatus_t error = describe_rnn(rnns, l);
    if (!error) error = describe_state(rnns, l);
    if (!error) error = rnns->lib->cudnnGetRNNWeightSpaceSize(rnns->handle, l->rnn, &weights);
    for (int tile = 0; tile < 2 && !error; tile++) error = describe_tile(rnns, l, tile, lengths);
    l->shape.weight_bytes = weights;
    rm_free(lengths);
    return rm_cuda_dnn_status(rnns->device, error, "describing a recurrent layer to cuDNN");
}

/* Layers of the same shape share a descriptor. */
static remat_status make_layer(rm_cuda_rnns *rnns, const shape *s, shape *out) {
    layer *l = rm_calloc(1, sizeof *l);
    REQUIRE(l, MEMORY, "out of host memory for a recurrent layer");
    l->shape = *s;
    remat_status status = describe(rnns, l);
    bool known = !status && layer_of(rnns, &l->shape);
    *out = l->shape;
    if (status || known) {
        free_layer(rnns, l);
        return status;
    }
    l->next = rnns->layers;
    rnns->layers = l;
    return REMAT_OK;
}

static remat_status check_sizes(const char *name, const shape *s) {
    REQUIRE(s->tau[0] <= MOST_TIMESTEPS, INVALID,
            "%s: cuDNN takes at most %d timesteps at once, but a tile has %" PRId64 "; use a smaller tile", name,
            MOST_TIMESTEPS, s->tau[0]);
    REQUIRE(s->batch * s->hidden <= INT32_MAX && s->batch * s->in <= INT32_MAX, INVALID,
            "%s: a timestep of %" PRId64 " sequences, %" PRId64
            " wide, is too large for cuDNN's indices; use a smaller "
            "batch, or the recurrent kernels remat",
            name, s->batch, s->in > s->hidden ? s->in : s->hidden);
    return REMAT_OK;
}

remat_status rm_cuda_rnn_variant(rm_device *device, const remat_op *op, const remat_desc *x, const int64_t tau[2],
                                 rm_variant *out) {
    rm_cuda_rnns *rnns = device->rnns;
    int cell = 0;
    while (cell < CELLS && strcmp(op->name, cells[cell].op)) cell++;
    out->op = NULL;
    if (!rnns || cell == CELLS || x[X].dtype != REMAT_F32 || x[RESET].rank >= 0) return REMAT_OK;
    shape s = {
        .mode = cell, .batch = x[X].dim[1], .in = x[X].dim[2], .hidden = x[W_HH].dim[1], .tau = {tau[0], tau[1]}};
    TRY(check_sizes(op->name, &s));
    TRY(make_layer(rnns, &s, &s));
    out->op = &rnns->op[cell];
    out->attr_bytes = sizeof s;
    memcpy(out->attr, &s, sizeof s);
    return REMAT_OK;
}

/* ---- Life --------------------------------------------------------------------------------------------------------- */

/* Copies the op's descriptor and replaces its kernels. */
static void make_descriptor(remat_op *op, int cell) {
    *op = *rm_op_find(cells[cell].op);
    op->name = cells[cell].name;
    op->aux_bytes = aux_bytes;
    memset(op->on, 0, sizeof op->on);
    op->on[REMAT_ON_CUDA] = (remat_op_device){.forward = forward,
                                              .backward = backward,
                                              .scratch_bytes = scratch_bytes,
                                              .packed_bytes = packed_bytes,
                                              .pack = pack};
    op->define_rebuild = NULL;
    op->rebuilds = NULL;
}

static cudnnStatus_t start(rm_cuda_rnns *rnns) {
    const rm_cudnn_library *lib = rnns->lib;
    cudnnStatus_t error = lib->cudnnCreateDropoutDescriptor(&rnns->no_dropout);
    if (error) {
        rnns->no_dropout = NULL;
        return error;
    }
    return lib->cudnnSetDropoutDescriptor(rnns->no_dropout, rnns->handle, 0, NULL, 0, 0);
}

remat_status rm_cuda_rnns_create(rm_device *device, rm_cuda_rnns **out) {
    REQUIRE(
        device->products->precision != RM_BF16, MISSING,
        "cuDNN's recurrent kernels do not support bf16; use precision fp32 or tf32, or the recurrent kernels remat");
    TRY(rm_cuda_use_dnn(device));
    rm_cuda_rnns *rnns = rm_calloc(1, sizeof *rnns);
    REQUIRE(rnns, MEMORY, "out of host memory for cuDNN's layers");
    rnns->device = device;
    rnns->lib = device->dnn->lib;
    rnns->handle = device->dnn->handle;
    for (int cell = 0; cell < CELLS; cell++) make_descriptor(&rnns->op[cell], cell);
    *out = rnns; /* freed with the device, even after a failure */
    return rm_cuda_dnn_status(device, start(rnns), "starting cuDNN");
}

void rm_cuda_rnns_free(rm_cuda_rnns *rnns) {
    if (!rnns) return;
    for (int i = 0; i < TILE_LISTS; i++)
        for (kept_tile *k = rnns->tile[i], *next; k; k = next) {
            next = k->next;
            rm_free(k);
        }
    while (rnns->layers) {
        layer *l = rnns->layers;
        rnns->layers = l->next;
        free_layer(rnns, l);
    }
    if (rnns->no_dropout) (void)rnns->lib->cudnnDestroyDropoutDescriptor(rnns->no_dropout);
    rm_free(rnns);
}

#else

remat_status rm_cuda_rnns_create(rm_device *device, rm_cuda_rnns **out) {
    *out = NULL;
    return rm_cuda_use_dnn(device);
}
void rm_cuda_rnns_free(rm_cuda_rnns *rnns) { (void)rnns; }
remat_status rm_cuda_rnn_variant(rm_device *device, const remat_op *op, const remat_desc *x, const int64_t tau[2],
                                 rm_variant *out) {
    (void)device, (void)op, (void)x, (void)tau;
    out->op = NULL;
    return REMAT_OK;
}

#endif
