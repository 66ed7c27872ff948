/* stand_ins.c: CPU kernels on recording streams (stand_ins.h), instead of engine/cuda/kernels.c and devices.c. A
 * launcher copies only what a real one would have read by the time it returns. */
#include "tests/engine/fake_cuda/stand_ins.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 40, MOST_ATTR = 10 };
typedef struct {
    fake_range item[MOST];
    int n;
} ranges;

static void add(ranges *r, const void *start, uint64_t bytes, bool writes) {
    if (start && bytes) r->item[r->n++] = (fake_range){start, bytes, writes};
}
static void add_tensor(ranges *r, const remat_tensor *t, bool writes) {
    if (t->data && t->desc.rank >= 0) add(r, t->data, rm_desc_bytes(&t->desc), writes);
}

/* ---- Ops ------------------------------------------------------------------------------------------------------- */

typedef struct {
    const remat_op *op;
    remat_pass pass;
    void *packed;           /* not NULL: room for packed weights */
    double attr[MOST_ATTR]; /* all attributes are doubles, or integers of the same size */
    remat_call call;
} launch;

static void do_launch(void *context) {
    launch *l = context;
    if (l->call.attr) l->call.attr = l->attr;
    if (l->packed)
        l->op->on[REMAT_ON_CPU].pack(&l->call, l->packed);
    else
        rm_op_kernel(l->op, REMAT_ON_CPU, l->pass)(&l->call);
}

static uint64_t packed_bytes(const remat_op *op, const remat_desc *x, const remat_call *call) {
    const remat_op_device *on = &op->on[REMAT_ON_CPU];
    return on->packed_bytes ? on->packed_bytes(x, call->attr, 1) : 0;
}

static void find_ranges(const launch *l, const remat_call *c, ranges *r) {
    remat_desc x[REMAT_MAX_INPUTS];
    remat_cost cost = {0};
    bool forward = l->pass == REMAT_FORWARD, backward = l->pass == REMAT_BACKWARD, once = l->pass == REMAT_ONCE;
    for (int k = 0; k < REMAT_MAX_INPUTS; k++) {
        x[k] = c->x[k].desc;
        if (k >= l->op->n_in) continue;
        add_tensor(r, &c->x[k], once && l->op->buffers >> k & 1);
        if (backward) add_tensor(r, &c->dx[k], true);
    }
    add_tensor(r, &c->y, forward);
    if (backward) add_tensor(r, &c->dy, false);
    for (int k = 0; k < l->op->n_state; k++) {
        add_tensor(r, &c->state_in[k], false);
        add_tensor(r, &c->state_out[k], forward);
        if (backward) add_tensor(r, &c->dstate_out[k], false);
        if (backward) add_tensor(r, &c->dstate_in[k], true);
    }
    const remat_op_device *on = &l->op->on[REMAT_ON_CPU];
    if (l->op->cost) l->op->cost(x, &c->y.desc, c->attr, l->pass, &cost);
    if (on->scratch_bytes) cost.scratch_bytes = on->scratch_bytes(x, c->attr, l->pass, c->aux, c->threads);
    if (l->op->aux_bytes) add(r, c->aux, l->op->aux_bytes(x, c->attr), true);
    if (l->op->once_bytes) add(r, c->once, l->op->once_bytes(x, c->attr), once);
    add(r, c->scratch, cost.scratch_bytes, true);
    add(r, c->packed, packed_bytes(l->op, x, c), false);
}

static void make_launch(launch *l, const remat_op *op, remat_pass pass, const remat_call *call) {
    memset(l, 0, sizeof *l);
    *l = (launch){.op = op, .pass = pass, .call = *call};
    if (op->attr_bytes > sizeof l->attr) abort();
    if (call->attr) memcpy(l->attr, call->attr, op->attr_bytes);
    l->call.threads = 1;
}

/* The device looks up a kernel and calls it at once; this remembers which one it is. */
static const remat_op *asked_op;
static remat_pass asked_pass;

/* Everything that a launch depends on, except the random key, which changes in every step. */
typedef struct {
    const void *address[2 * REMAT_MAX_INPUTS + 4 * REMAT_MAX_STATES + 6];
    remat_desc desc[REMAT_MAX_INPUTS];
    int64_t t0, t_total;
    double attr[MOST_ATTR];
    bool training;
} launch_key;

static void make_key(const launch *l, launch_key *key) {
    const remat_call *c = &l->call;
    int n = 0;
    memset(key, 0, sizeof *key);
    for (int k = 0; k < REMAT_MAX_INPUTS; k++) {
        key->address[n++] = c->x[k].data;
        key->address[n++] = c->dx[k].data;
        key->desc[k].rank = c->x[k].desc.rank;
        for (int d = 0; d < c->x[k].desc.rank; d++) key->desc[k].dim[d] = c->x[k].desc.dim[d];
    }
    for (int k = 0; k < REMAT_MAX_STATES; k++) {
        const remat_tensor *state[] = {&c->state_in[k], &c->state_out[k], &c->dstate_in[k], &c->dstate_out[k]};
        for (int i = 0; i < 4; i++) key->address[n++] = k < l->op->n_state ? state[i]->data : NULL;
    }
    key->address[n++] = c->y.data, key->address[n++] = c->dy.data, key->address[n++] = c->aux;
    key->address[n++] = c->scratch, key->address[n++] = c->packed, key->address[n++] = c->once;
    key->t0 = c->t0, key->t_total = c->t_total, key->training = c->training;
    memcpy(key->attr, l->attr, sizeof key->attr);
}

static void do_nothing(void *context) { (void)context; }

/* Two launches, which are recorded together if nothing is random. */
static void launch_op(const remat_call *call) {
    const rm_cuda_queue *queue = call->queue;
    launch l;
    launch_key key;
    ranges r = {.n = 0};
    make_launch(&l, asked_op, asked_pass, call);
    make_key(&l, &key);
    find_ranges(&l, call, &r);
    bool draws = !strcmp(l.op->name, "dropout");
    if (!draws && !rm_cuda_begin(queue, &key, sizeof key)) return;
    fake_push(queue->stream, do_nothing, &l, sizeof l, r.item, r.n);
    fake_push(queue->stream, do_launch, &l, sizeof l, r.item, r.n);
    if (!draws) rm_cuda_end(queue);
}

static remat_kernel *kernel(const remat_op *op, remat_pass pass) {
    asked_op = op;
    asked_pass = pass;
    return rm_op_kernel(op, REMAT_ON_CPU, pass) ? launch_op : NULL;
}

/* The CPU's kernels read packed weights; a GPU's do not. */
static void pack(rm_queue *queue, const remat_op *op, const remat_call *call, void *packed) {
    launch l;
    remat_desc x[REMAT_MAX_INPUTS];
    ranges r = {.n = 0};
    make_launch(&l, op, REMAT_FORWARD, call);
    for (int k = 0; k < REMAT_MAX_INPUTS; k++) {
        x[k] = call->x[k].desc;
        if (k < op->n_in && op->shared >> k & 1) add_tensor(&r, &call->x[k], false);
    }
    l.packed = packed;
    add(&r, packed, packed_bytes(op, x, call), true);
    fake_push(queue->stream, do_launch, &l, sizeof l, r.item, r.n);
}

/* ---- Optimizers and sums --------------------------------------------------------------------------------------- */

typedef struct {
    const rm_optimizer *optimizer; /* NULL: the sum of squares of `parameter` */
    rm_update update;
    int64_t n;
    float *parameter;
    const float *gradient;
    float *state[RM_MAX_OPTIMIZER_STATE];
    double *sum; /* NULL: an update */
} updating;

static void do_update(void *context) {
    updating *u = context;
    if (!u->optimizer)
        *u->sum = rm_sum_of_squares(u->parameter, u->n, 1);
    else if (!u->sum)
        u->optimizer->update(&u->update, u->n, u->parameter, u->gradient, u->state);
    else {
        memset(u->sum, 0, RM_MAX_OPTIMIZER_SUMS * sizeof *u->sum);
        u->optimizer->measure(&u->update, u->n, u->parameter, u->gradient, u->state, u->sum);
    }
}

static void push_update(const rm_cuda_queue *queue, updating u, float *const *state) {
    ranges r = {.n = 0};
    uint64_t bytes = (uint64_t)u.n * sizeof(float);
    int states = u.optimizer ? u.optimizer->states_used(&u.update) : 0;
    u.update.threads = 1;
    for (int k = 0; k < states; k++) add(&r, u.state[k] = state[k], bytes, true);
    add(&r, u.parameter, bytes, u.optimizer && !u.sum);
    add(&r, u.gradient, bytes, false);
    add(&r, u.sum, sizeof(double) * (u.optimizer ? RM_MAX_OPTIMIZER_SUMS : 1), true);
    fake_push(queue->stream, do_update, &u, sizeof u, r.item, r.n);
}

static const rm_optimizer *asked_optimizer;

static void launch_update(const rm_cuda_queue *queue, const rm_update *update, int64_t n, float *parameter,
                          const float *gradient, float *const *state) {
    push_update(queue, (updating){asked_optimizer, *update, n, parameter, gradient, {0}, NULL}, state);
}
static void launch_measure(const rm_cuda_queue *queue, const rm_update *update, int64_t n, const float *parameter,
                           const float *gradient, float *const *state, double *sum) {
    push_update(queue, (updating){asked_optimizer, *update, n, (float *)(uintptr_t)parameter, gradient, {0}, sum},
                state);
}
static void launch_squares(const rm_cuda_queue *queue, const float *x, int64_t n, double *sum) {
    push_update(queue, (updating){NULL, {0}, n, (float *)(uintptr_t)x, NULL, {0}, sum}, NULL);
}

static void do_check(void *context) {
    const rm_comparison *check = context;
    uint64_t hash = 0;
    for (uint64_t at = 0; at < check->bytes; at += 8) {
        uint64_t word = 0;
        memcpy(&word, (const char *)check->state + at, check->bytes - at < 8 ? 4 : 8);
        hash += rm_compare_term(word, (int64_t)at / 8, check->seed);
    }
    rm_compare_settle(check, hash);
}
static void launch_check(const rm_cuda_queue *queue, const rm_comparison *check) {
    ranges r = {.n = 0};
    add(&r, check->state, check->bytes, false);
    add(&r, check->kept, sizeof *check->kept, true);
    add(&r, check->first, sizeof *check->first, true);
    fake_push(queue->stream, do_check, check, sizeof *check, r.item, r.n);
}

typedef struct {
    int64_t rows, columns, ld, to_ld;
    const float *from;
    uint16_t *to;
} rounding;

static void do_round(void *context) {
    const rounding *r = context;
    for (int64_t row = 0; row < r->rows; row++)
        for (int64_t i = 0; i < r->columns; i++) {
            uint32_t bits;
            memcpy(&bits, &r->from[row * r->ld + i], sizeof bits);
            r->to[row * r->to_ld + i] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
        }
}
static void launch_round(const rm_cuda_queue *queue, int64_t rows, int64_t columns, int64_t ld, const float *from,
                         int64_t to_ld, uint16_t *to) {
    const rounding rounding = {rows, columns, ld, to_ld, from, to};
    ranges r = {.n = 0};
    if ((uintptr_t)to % 8 || (rows > 1 && to_ld % 4)) fake_violate("numbers in bf16 that are not aligned");
    add(&r, from, sizeof *from * (uint64_t)((rows - 1) * ld + columns), false);
    add(&r, to, sizeof *to * (uint64_t)((rows - 1) * to_ld + columns), true);
    fake_push(queue->stream, do_round, &rounding, sizeof rounding, r.item, r.n);
}

static __typeof__(((rm_optimizer *)0)->update_cuda) update(const rm_optimizer *optimizer) {
    asked_optimizer = optimizer;
    return launch_update;
}
static __typeof__(((rm_optimizer *)0)->measure_cuda) measure(const rm_optimizer *optimizer) {
    asked_optimizer = optimizer;
    return optimizer->measure ? launch_measure : NULL;
}

static cudaError_t kernels_error;
static int error_of_kernels(void) { return (int)kernels_error; }
void stand_in_kernels_answer(cudaError_t error) { kernels_error = error; }

const rm_cuda_kernels rm_cuda_kernels_built = {kernel, update,       measure,          launch_squares, launch_check,
                                               NULL,   launch_round, error_of_kernels, NULL,           NULL};

/* ---- The device ------------------------------------------------------------------------------------------------ */

/* The layout for the CPU's kernels. */
const rm_device_api *rm_device_find(const char *name) {
    static rm_device_api cuda;
    cuda = rm_device_cuda;
    cuda.kernels = REMAT_ON_CPU;
    cuda.pack = pack;
    const rm_device_api *all[] = {&rm_device_cpu, &cuda, &rm_device_null};
    for (int i = 0; i < 3; i++)
        if (!strcmp(all[i]->name, name)) return all[i];
    return NULL;
}

void stand_in_reset(uint64_t seed) {
    setenv("REMAT_CUDART_LIBRARY", FAKE_CUDA, 1);
    setenv("REMAT_CUBLAS_LIBRARY", FAKE_CUDA, 1);
    setenv("REMAT_CUBLASLT_LIBRARY", FAKE_CUDA, 1);
    setenv("REMAT_NVML_LIBRARY", FAKE_CUDA, 1);
    unsetenv("LOCAL_RANK");
    fake_cuda_reset(seed);
}
