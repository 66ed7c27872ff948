/* op_run.c: runs one op on one sample, tile by tile (op_run.h). */
#include "ops/check/op_run.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "memory/host.h"
#include "ops/check/guard.h"

/* ---- Shapes ------------------------------------------------------------------------------------- */

static const remat_sample *sample_of(const rm_op_setup *s) { return &s->op->samples[s->sample]; }

static bool given(const rm_op_setup *s, int i) { return i < s->op->n_in && sample_of(s)->x[i].rank >= 0; }

static bool has_time(const rm_op_setup *s, int i) { return sample_of(s)->sequence && !rm_op_shares(s->op, i); }

static bool is_buffer(const rm_op_setup *s, int i) { return s->op->buffers >> i & 1; }

int64_t rm_op_steps(const rm_op_setup *s) { return sample_of(s)->sequence ? sample_of(s)->x[0].dim[0] : 1; }
int64_t rm_op_tiles(const rm_op_setup *s) { return s->op->time == REMAT_TIME_FULL ? 1 : rm_op_steps(s); }

/* The shapes of the inputs for `steps` timesteps. Inputs of a different length, which WHOLE ops may have, keep
 * theirs. */
static void shapes_of(const rm_op_setup *s, int64_t steps, remat_desc *x) {
    for (int i = 0; i < REMAT_MAX_INPUTS; i++) {
        x[i] = i < s->op->n_in ? sample_of(s)->x[i] : (remat_desc){.rank = -1};
        if (given(s, i) && has_time(s, i) && x[i].dim[0] == rm_op_steps(s)) x[i].dim[0] = steps;
    }
}

_Thread_local bool rm_op_starved;
static const char no_memory[] = "out of memory for its buffers";

static rm_op_array array_make(int64_t count) {
    rm_op_array a = {count, rm_calloc((size_t)count + 1, sizeof(double))};
    if (!a.value) {
        rm_op_starved = true;
        a.count = 0;
    }
    return a;
}

static void array_free(rm_op_array *a) {
    rm_free(a->value);
    *a = (rm_op_array){0};
}

/* ---- Inputs --------------------------------------------------------------------------------------- */

static uint64_t next_word(uint64_t *seed) { /* splitmix64 */
    uint64_t z = *seed += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

/* Never near 0, where relu has its kink. */
static double next_real(uint64_t *seed) {
    uint64_t word = next_word(seed);
    double size = 0.1 + (double)(word >> 40) * 0x1p-24;
    return (float)(word & 1 ? size : -size);
}

static rm_op_array reals(int64_t count, uint64_t *seed) {
    rm_op_array a = array_make(count);
    for (int64_t i = 0; i < a.count; i++) a.value[i] = next_real(seed);
    return a;
}

static rm_op_array integers(int64_t count, int64_t bound, uint64_t *seed) {
    rm_op_array a = array_make(count);
    for (int64_t i = 0; i < a.count; i++) a.value[i] = (double)(next_word(seed) % (uint64_t)(bound > 0 ? bound : 1));
    return a;
}

void rm_op_inputs_make(const rm_op_setup *s, uint64_t seed, rm_op_inputs *out) {
    *out = (rm_op_inputs){0};
    remat_desc x[REMAT_MAX_INPUTS], y, state[REMAT_MAX_STATES];
    shapes_of(s, rm_op_steps(s), x);
    for (int i = 0; i < s->op->n_in; i++) {
        if (!given(s, i)) continue;
        int64_t count = rm_desc_count(&x[i]);
        bool integer = x[i].dtype == REMAT_I32;
        out->x[i] = integer ? integers(count, s->op->bound ? s->op->bound(x, sample_of(s)->attr, i) : 1, &seed)
                            : reals(count, &seed);
        bool above = is_buffer(s, i) || sample_of(s)->positive;
        for (int64_t k = 0; above && k < out->x[i].count; k++) out->x[i].value[k] = fabs(out->x[i].value[k]);
    }
    if (rm_op_infer(s->op, x, sample_of(s)->attr, &y, state)) return;
    out->dy = reals(rm_desc_count(&y), &seed);
    for (int k = 0; k < s->op->n_state; k++) {
        out->state[k] = reals(rm_desc_count(&state[k]), &seed);
        out->dstate[k] = reals(rm_desc_count(&state[k]), &seed);
    }
}

void rm_op_inputs_free(rm_op_inputs *in) {
    for (int i = 0; i < REMAT_MAX_INPUTS; i++) array_free(&in->x[i]);
    for (int k = 0; k < REMAT_MAX_STATES; k++) array_free(&in->state[k]), array_free(&in->dstate[k]);
    array_free(&in->dy);
}

void rm_op_outputs_free(rm_op_outputs *out) {
    for (int i = 0; i < REMAT_MAX_INPUTS; i++) array_free(&out->dx[i]), array_free(&out->buffer[i]);
    for (int k = 0; k < REMAT_MAX_STATES; k++) array_free(&out->state[k]), array_free(&out->dstate[k]);
    array_free(&out->y);
}

static double dot(const rm_op_array *a, const rm_op_array *b) {
    double sum = 0;
    for (int64_t i = 0; i < a->count && i < b->count; i++) sum += a->value[i] * b->value[i];
    return sum;
}

double rm_op_objective(const rm_op_inputs *in, const rm_op_outputs *out) {
    double sum = dot(&in->dy, &out->y);
    for (int k = 0; k < REMAT_MAX_STATES; k++) sum += dot(&in->dstate[k], &out->state[k]);
    return sum;
}

/* ---- Between doubles and tensors ------------------------------------------------------------------ */

static void put(const remat_tensor *to, const double *from) {
    int64_t n = to->data && from ? rm_desc_count(&to->desc) : 0;
    for (int64_t i = 0; i < n; i++) switch (to->desc.dtype) {
        case REMAT_F32:
            ((float *)to->data)[i] = (float)from[i];
            break;
        case REMAT_F64:
            ((double *)to->data)[i] = from[i];
            break;
        case REMAT_I32:
            ((int32_t *)to->data)[i] = (int32_t)from[i];
            break;
        }
}

static double get(const remat_tensor *from, int64_t i) {
    switch (from->desc.dtype) {
    case REMAT_F32:
        return ((const float *)from->data)[i];
    case REMAT_F64:
        return ((const double *)from->data)[i];
    case REMAT_I32:
        return ((const int32_t *)from->data)[i];
    }
    return NAN;
}

/* Copies (or adds) a tensor to an array, from element `at` on. */
static void collect(const remat_tensor *from, rm_op_array *to, int64_t at, bool add) {
    int64_t n = from->data && to->value ? rm_desc_count(&from->desc) : 0;
    for (int64_t i = 0; i < n; i++) to->value[at + i] = get(from, i) + (add ? to->value[at + i] : 0);
}

/* ---- The runner ----------------------------------------------------------------------------------- */

typedef struct {
    int64_t t0, steps;
    remat_call call; /* of forward; the call of backward is derived from it */
} tile;

typedef struct {
    const rm_op_setup *s;
    const rm_op_inputs *in;
    rm_op_outputs *out;
    rm_guard_set memory;
    int64_t n_tiles;
    tile *tiles;
    remat_desc y, state[REMAT_MAX_STATES];                            /* of the whole sequence */
    remat_tensor weight[REMAT_MAX_INPUTS], dweight[REMAT_MAX_INPUTS]; /* shared by the tiles   */
    void *packed;
} runner;

const void *rm_op_queue;

#define FOUR(x) x "[0]", x "[1]", x "[2]", x "[3]"
#define TWELVE(x) FOUR(x), x "[4]", x "[5]", x "[6]", x "[7]", x "[8]", x "[9]", x "[10]", x "[11]"
_Static_assert(REMAT_MAX_INPUTS == 12 && REMAT_MAX_STATES == 4, "a name for each, and no more");
const char *const rm_op_x_name[] = {TWELVE("x")}, *const rm_op_dx_name[] = {TWELVE("dx")};
const char *const rm_op_state_in_name[] = {FOUR("state_in")}, *const rm_op_state_out_name[] = {FOUR("state_out")};
const char *const rm_op_dstate_in_name[] = {FOUR("dstate_in")};

static _Thread_local char message[512];

/* A new tensor, filled from `values` if there are any. */
static remat_tensor tensor_make(runner *r, remat_desc desc, const double *values, const char *what) {
    remat_tensor t = {desc, rm_guard_alloc(&r->memory, rm_desc_bytes(&desc), what)};
    if (values) {
        put(&t, values);
        rm_guard_seal(&r->memory, t.data);
    }
    return t;
}

/* Whether all allocations succeeded. */
static bool is_ready(const runner *r) { return !rm_op_starved && !r->memory.starved; }

/* Whether to run the definition, if the op has one besides its kernels. */
static bool is_defined(const rm_op_setup *s) { return s->define && s->op->define_forward; }

/* Returns false if memory was short; then nothing has run. */
static bool run_kernel(runner *r, const remat_call *call, remat_pass pass) {
    const remat_op *op = r->s->op;
    remat_kernel *const defined[] = {op->define_forward, op->define_backward, op->define_rebuild, op->define_once};
    if (!is_ready(r)) return false;
    (is_defined(r->s) ? defined[pass] : rm_op_kernel(op, REMAT_ON_CPU, pass))(call);
    return true;
}

static const char *judge(runner *r, const char *pass) {
    if (!is_ready(r)) return no_memory;
    bool overrun;
    const char *what = rm_guard_complaint(&r->memory, &overrun);
    if (!what) return NULL;
    snprintf(message, sizeof message, "%s %s %s", pass, overrun ? "wrote outside" : "changed", what);
    return message;
}

static int64_t stride_of(const remat_desc *desc) { return rm_desc_count(desc) / desc->dim[0]; } /* of one timestep */

static bool y_has_time(const runner *r) { return sample_of(r->s)->sequence && rm_op_keeps_time(r->s->op); }

/* Index of the tile's first element in y and dy. */
static int64_t place_in_y(const runner *r, const tile *t) {
    int64_t t0 = r->s->op->time == REMAT_TIME_REVERSE ? rm_op_steps(r->s) - t->t0 - t->steps : t->t0;
    return y_has_time(r) ? t0 * stride_of(&r->y) : 0;
}

/* Sets x, and the sizes that depend on it, for the steps of the tile. */
static void tile_inputs(runner *r, tile *t) {
    remat_desc x[REMAT_MAX_INPUTS];
    shapes_of(r->s, t->steps, x);
    for (int i = 0; i < REMAT_MAX_INPUTS; i++) {
        t->call.x[i] = (remat_tensor){x[i], NULL};
        if (!given(r->s, i)) continue;
        if (has_time(r->s, i))
            t->call.x[i] = tensor_make(r, x[i], r->in->x[i].value + t->t0 * stride_of(&x[i]), rm_op_x_name[i]);
        else
            t->call.x[i] = r->weight[i];
    }
}

static void tile_descs(const remat_call *call, remat_desc *x) {
    for (int i = 0; i < REMAT_MAX_INPUTS; i++) x[i] = call->x[i].desc;
}

static void tile_scratch(runner *r, remat_call *call, remat_pass pass) {
    remat_desc x[REMAT_MAX_INPUTS];
    remat_cost cost = {0};
    tile_descs(call, x);
    r->s->op->cost(x, &call->y.desc, call->attr, pass, &cost);
    const remat_op_device *on = &r->s->op->on[REMAT_ON_CPU];
    bool defined = is_defined(r->s);
    if (!defined && on->scratch_bytes)
        cost.scratch_bytes = on->scratch_bytes(x, call->attr, pass, call->aux, call->threads);
    call->scratch = rm_guard_alloc(&r->memory, cost.scratch_bytes, "scratch");
    if (!defined && on->fixed_bytes)
        call->fixed = rm_guard_alloc(&r->memory, on->fixed_bytes(x, call->attr), "the fixed memory");
}

/* Once, before forward, which sees no buffers any more. */
static const char *once_of_tile(runner *r, remat_call *forward) {
    const remat_op *op = r->s->op;
    remat_desc x[REMAT_MAX_INPUTS];
    remat_call c = *forward;
    if (!op->once_bytes) return NULL;
    tile_descs(forward, x);
    c.y.data = c.aux = NULL;
    forward->once = c.once = rm_guard_alloc(&r->memory, op->once_bytes(x, c.attr), "once");
    for (int i = 0; i < REMAT_MAX_INPUTS; i++)
        if (is_buffer(r->s, i)) forward->x[i].data = NULL;
    tile_scratch(r, &c, REMAT_ONCE);
    if (!run_kernel(r, &c, REMAT_ONCE)) return no_memory;
    rm_guard_seal(&r->memory, c.once);
    return judge(r, "once");
}

static const char *forward_tile(runner *r, int64_t k) {
    const rm_op_setup *s = r->s;
    const remat_op *op = s->op;
    tile *t = &r->tiles[k];
    remat_call *c = &t->call;
    *c = (remat_call){.attr = sample_of(s)->attr, .packed = r->packed, .key = {42, 7, 3}, .threads = s->threads};
    c->queue = (void *)(uintptr_t)rm_op_queue;
    c->training = !s->evaluate;
    c->t0 = t->t0, c->t_total = rm_op_steps(s);
    tile_inputs(r, t);
    remat_desc x[REMAT_MAX_INPUTS], y, state[REMAT_MAX_STATES] = {{0}};
    tile_descs(c, x);
    if (rm_op_infer(op, x, c->attr, &y, state)) return remat_last_error();
    c->y = tensor_make(r, y, NULL, "y");
    for (int j = 0; j < op->n_state; j++) {
        c->state_in[j] = (remat_tensor){state[j], NULL};
        if (k > 0) c->state_in[j] = r->tiles[k - 1].call.state_out[j];
        if (k == 0 && s->with_states) c->state_in[j] = tensor_make(r, state[j], r->in->state[j].value, "state_in");
        c->state_out[j] = tensor_make(r, state[j], NULL, "state_out");
    }
    if (!s->no_aux) c->aux = rm_guard_alloc(&r->memory, op->aux_bytes ? op->aux_bytes(x, c->attr) : 0, "aux");
    const char *wrong = once_of_tile(r, c);
    if (wrong) return wrong;
    tile_scratch(r, c, REMAT_FORWARD);
    if (!run_kernel(r, c, REMAT_FORWARD)) return no_memory;
    rm_guard_seal(&r->memory, c->y.data);
    for (int j = 0; j < op->n_state; j++) rm_guard_seal(&r->memory, c->state_out[j].data);
    return judge(r, "forward");
}

/* ---- Tricks: the tensors that backward gets ----------------------------------------------------------- */

/* Whether the pass may read tensor `item`. Rebuild may also read weights, but not the outgoing state. */
static bool declared(const remat_op *op, remat_pass pass, int item) {
    if (item < REMAT_MAX_INPUTS && pass == REMAT_REBUILD && op->shared >> item & 1) return true;
    return item == RM_OP_OUT ? op->saves.out : item == RM_OP_STATE ? op->saves.state : op->saves.in >> item & 1;
}

/* The same shape with other values: finite, integers within their bound, often with the opposite sign. */
static void *others(runner *r, const remat_tensor *t, int64_t bound, const char *what) {
    remat_tensor other = {t->desc, rm_guard_alloc(&r->memory, rm_desc_bytes(&t->desc), what)};
    int64_t n = rm_desc_count(&t->desc);
    double *value = array_make(n).value;
    for (int64_t i = 0; value && i < n; i++)
        value[i] = t->desc.dtype == REMAT_I32 ? (double)(((int64_t)get(t, i) + 1) % bound) : 0.7 - 1.3 * get(t, i);
    put(&other, value);
    rm_free(value);
    return other.data;
}

static void trick(runner *r, remat_tensor *t, bool is_declared, int item, int64_t bound) {
    const rm_op_setup *s = r->s;
    if (!t->data) return;
    if (s->trick == RM_OP_DECLARED_OTHER && is_declared && s->which == item)
        t->data = others(r, t, bound, "a stand-in");
    if (is_declared) return;
    if (s->trick == RM_OP_UNDECLARED_ABSENT) t->data = NULL;
    if (s->trick == RM_OP_UNDECLARED_OTHER || (s->trick == RM_OP_UNDECLARED_NAN && t->desc.dtype == REMAT_I32))
        t->data = others(r, t, bound, "a stand-in");
    else if (s->trick == RM_OP_UNDECLARED_NAN)
        t->data = rm_guard_alloc(&r->memory, rm_desc_bytes(&t->desc), "a stand-in"); /* poisoned: NaN */
}

static void trick_all(runner *r, remat_call *c, remat_pass pass) {
    const remat_op *op = r->s->op;
    remat_desc x[REMAT_MAX_INPUTS];
    tile_descs(c, x);
    for (int i = 0; i < op->n_in; i++) {
        bool integer = x[i].rank >= 0 && x[i].dtype == REMAT_I32;
        trick(r, &c->x[i], declared(op, pass, i), i, integer && op->bound ? op->bound(x, c->attr, i) : 1);
    }
    trick(r, &c->y, declared(op, pass, RM_OP_OUT), RM_OP_OUT, 1);
    bool state = declared(op, pass, RM_OP_STATE);
    for (int j = 0; j < op->n_state; j++) {
        trick(r, &c->state_in[j], state, RM_OP_STATE, 1);
        trick(r, &c->state_out[j], false, RM_OP_STATE, 1);
    }
}

/* ---- Lean: tensors that backward reads are recomputed ------------------------------------------------- */

/* The first byte that differs, or -1. */
static int64_t first_difference(const void *a, const void *b, uint64_t bytes) {
    const unsigned char *left = a, *right = b;
    for (uint64_t i = 0; i < bytes; i++)
        if (left[i] != right[i]) return (int64_t)i;
    return -1;
}

/* Rebuilds *aux of forward's call. If the op claims equal bits for this shape, they must be equal. */
static const char *rebuild_tile(runner *r, const remat_call *forward, void **aux) {
    const rm_op_setup *s = r->s;
    remat_desc x[REMAT_MAX_INPUTS];
    tile_descs(forward, x);
    if (s->op->rebuilds && !s->op->rebuilds(x, forward->attr)) return NULL;
    remat_call c = *forward;
    uint64_t bytes = s->op->aux_bytes(x, forward->attr);
    c.aux = rm_guard_alloc(&r->memory, bytes, "aux");
    tile_scratch(r, &c, REMAT_REBUILD);
    trick_all(r, &c, REMAT_REBUILD);
    if (!run_kernel(r, &c, REMAT_REBUILD)) return no_memory;
    const char *wrong = judge(r, "rebuild");
    int64_t at = first_difference(c.aux, forward->aux, bytes);
    *aux = c.aux;
    if (wrong || at < 0) return wrong;
    snprintf(message, sizeof message, "rebuild's aux differs from forward's, from byte %lld of %llu", (long long)at,
             (unsigned long long)bytes);
    return message;
}

/* Runs forward again into new buffers, which backward then reads. */
static const char *repeat_tile(runner *r, const remat_call *forward, remat_call *backward) {
    const rm_op_setup *s = r->s;
    remat_desc x[REMAT_MAX_INPUTS];
    tile_descs(forward, x);
    remat_call c = *forward;
    uint64_t bytes = rm_desc_bytes(&c.y.desc), aux_bytes = s->op->aux_bytes ? s->op->aux_bytes(x, c.attr) : 0;
    c.y.data = rm_guard_alloc(&r->memory, bytes, "y");
    c.aux = rm_guard_alloc(&r->memory, aux_bytes, "aux");
    tile_scratch(r, &c, REMAT_FORWARD);
    if (!run_kernel(r, &c, REMAT_FORWARD)) return no_memory;
    const char *wrong = judge(r, "the second forward");
    backward->y.data = c.y.data, backward->aux = c.aux;
    if (wrong) return wrong;
    if (first_difference(c.y.data, forward->y.data, bytes) >= 0) return "the second forward's y differs from the first";
    if (first_difference(c.aux, forward->aux, aux_bytes) >= 0) return "the second forward's aux differs from the first";
    return NULL;
}

static bool wanted(const runner *r, int which) { return !(r->s->trick == RM_OP_UNWANTED && r->s->which == which); }

/* ---- Backward --------------------------------------------------------------------------------------- */

static void ask_for_gradients(runner *r, int64_t k, remat_call *c) {
    const rm_op_setup *s = r->s;
    for (int i = 0; i < REMAT_MAX_INPUTS; i++) {
        c->dx[i] = (remat_tensor){c->x[i].desc, NULL};
        if (!given(s, i) || is_buffer(s, i) || c->x[i].desc.dtype == REMAT_I32 || !wanted(r, i)) continue;
        c->dx[i] = s->op->shared >> i & 1 ? r->dweight[i] : tensor_make(r, c->x[i].desc, NULL, rm_op_dx_name[i]);
    }
    for (int j = 0; j < s->op->n_state; j++) {
        remat_desc desc = c->state_out[j].desc;
        bool last = k == r->n_tiles - 1;
        c->dstate_in[j] = c->dstate_out[j] = (remat_tensor){desc, NULL};
        if (!last) c->dstate_out[j] = r->tiles[k + 1].call.dstate_in[j];
        if (last && s->with_states) c->dstate_out[j] = tensor_make(r, desc, r->in->dstate[j].value, "dstate_out");
        if (k > 0 || (s->with_states && wanted(r, REMAT_MAX_INPUTS + j)))
            c->dstate_in[j] = tensor_make(r, desc, NULL, "dstate_in");
    }
}

/* Whether backward reads x[0]: always, or if one of the gradients in op->first_for is wanted. */
static bool reads_first(const remat_op *op, const remat_call *c) {
    bool reads = !op->first_for;
    for (int i = 0; i < op->n_in; i++) reads |= op->first_for >> i & 1 && c->dx[i].data;
    return reads;
}

static const char *backward_tile(runner *r, int64_t k) {
    const rm_op_setup *s = r->s;
    tile *t = &r->tiles[k];
    remat_call c = t->call;
    ask_for_gradients(r, k, &c);
    if (!reads_first(s->op, &c))
        c.x[0].data = rm_guard_alloc(&r->memory, rm_desc_bytes(&c.x[0].desc), "a stand-in"); /* NaN */
    c.dy = tensor_make(r, c.y.desc, r->in->dy.value + place_in_y(r, t), "dy");
    const char *wrong = NULL;
    if (s->lean && s->op->on[REMAT_ON_CPU].rebuild) wrong = rebuild_tile(r, &t->call, &c.aux);
    if (s->lean && s->op->cheap) wrong = repeat_tile(r, &t->call, &c);
    if (wrong) return wrong;
    tile_scratch(r, &c, REMAT_BACKWARD);
    trick_all(r, &c, REMAT_BACKWARD);
    if (!run_kernel(r, &c, REMAT_BACKWARD)) return no_memory;
    for (int i = 0; i < REMAT_MAX_INPUTS; i++) t->call.dx[i] = c.dx[i];
    for (int j = 0; j < s->op->n_state; j++) {
        t->call.dstate_in[j] = c.dstate_in[j];
        rm_guard_seal(&r->memory, c.dstate_in[j].data);
    }
    return judge(r, "backward");
}

/* ---- The whole -------------------------------------------------------------------------------------- */

/* Prepares weights, their gradients, packed weights and tiles. */
static const char *prepare(runner *r) {
    const rm_op_setup *s = r->s;
    remat_desc x[REMAT_MAX_INPUTS];
    int64_t steps = rm_op_steps(s), tau = s->tau > 0 && s->tau < rm_op_tiles(s) ? s->tau : steps;
    shapes_of(s, steps, x);
    if (rm_op_infer(s->op, x, sample_of(s)->attr, &r->y, r->state)) return remat_last_error();
    remat_call call = {.attr = sample_of(s)->attr, .threads = s->threads};
    for (int i = 0; i < REMAT_MAX_INPUTS; i++) {
        call.x[i].desc = x[i];
        if (!given(s, i) || has_time(s, i)) continue;
        bool written = is_buffer(s, i) && !s->evaluate;
        call.x[i] = r->weight[i] = tensor_make(r, x[i], written ? NULL : r->in->x[i].value, rm_op_x_name[i]);
        if (written) put(&r->weight[i], r->in->x[i].value);
        if (x[i].dtype == REMAT_I32 || !(s->op->shared >> i & 1)) continue;
        rm_op_array start = array_make(rm_desc_count(&x[i]));
        for (int64_t j = 0; j < start.count; j++) start.value[j] = s->trick == RM_OP_ONTO ? 3 : 0;
        r->dweight[i] = (remat_tensor){x[i], rm_guard_alloc(&r->memory, rm_desc_bytes(&x[i]), rm_op_dx_name[i])};
        put(&r->dweight[i], start.value);
        array_free(&start);
    }
    const remat_op_device *on = &s->op->on[REMAT_ON_CPU];
    if (on->pack) {
        r->packed = rm_guard_alloc(&r->memory, on->packed_bytes(x, call.attr, s->threads), "packed");
        if (!is_ready(r)) return no_memory;
        on->pack(&call, r->packed);
        rm_guard_seal(&r->memory, r->packed);
    }
    r->n_tiles = (steps + tau - 1) / tau;
    r->tiles = rm_calloc((size_t)r->n_tiles, sizeof *r->tiles);
    rm_op_starved |= !r->tiles;
    if (!is_ready(r)) return no_memory;
    for (int64_t k = 0; k < r->n_tiles; k++) {
        r->tiles[k].t0 = k * tau;
        r->tiles[k].steps = steps - k * tau < tau ? steps - k * tau : tau;
    }
    return judge(r, "pack");
}

static void collect_forward(runner *r) {
    rm_op_outputs *out = r->out;
    tile *last = &r->tiles[r->n_tiles - 1];
    out->y = array_make(rm_desc_count(&r->y));
    for (int64_t k = 0; k < r->n_tiles; k++) {
        tile *t = &r->tiles[k];
        if (y_has_time(r))
            collect(&t->call.y, &out->y, place_in_y(r, t), false);
        else if (r->s->op->time == REMAT_TIME_LAST)
            collect(&t->call.y, &out->y, 0, false); /* the last one is kept */
        else
            collect(&t->call.y, &out->y, 0, true);
    }
    for (int j = 0; j < r->s->op->n_state; j++) {
        out->state[j] = array_make(rm_desc_count(&r->state[j]));
        collect(&last->call.state_out[j], &out->state[j], 0, false);
    }
    for (int i = 0; i < r->s->op->n_in; i++) {
        if (!is_buffer(r->s, i) || !given(r->s, i)) continue;
        out->buffer[i] = array_make(rm_desc_count(&r->weight[i].desc));
        collect(&r->weight[i], &out->buffer[i], 0, false);
    }
}

static void collect_backward(runner *r) {
    rm_op_outputs *out = r->out;
    for (int i = 0; i < r->s->op->n_in; i++) {
        if (!given(r->s, i) || is_buffer(r->s, i) || sample_of(r->s)->x[i].dtype == REMAT_I32 || !wanted(r, i))
            continue;
        out->dx[i] = array_make(rm_desc_count(&sample_of(r->s)->x[i]));
        if (r->s->op->shared >> i & 1)
            collect(&r->dweight[i], &out->dx[i], 0, false);
        else
            for (int64_t k = 0; k < r->n_tiles; k++)
                collect(&r->tiles[k].call.dx[i], &out->dx[i],
                        has_time(r->s, i) ? r->tiles[k].t0 * stride_of(&sample_of(r->s)->x[i]) : 0, false);
    }
    for (int j = 0; j < r->s->op->n_state; j++) {
        if (!r->tiles[0].call.dstate_in[j].data) continue;
        out->dstate[j] = array_make(rm_desc_count(&r->state[j]));
        collect(&r->tiles[0].call.dstate_in[j], &out->dstate[j], 0, false);
    }
}

static const char *run_tiles(runner *r) {
    const char *wrong = NULL;
    for (int64_t k = 0; k < r->n_tiles && !wrong; k++) wrong = forward_tile(r, k);
    if (wrong) return wrong;
    collect_forward(r);
    if (r->s->forward_only || r->s->no_aux || r->s->op->constant) return NULL;
    int64_t first = r->s->op->time == REMAT_TIME_LAST ? r->n_tiles - 1 : 0; /* only the last tile is differentiated */
    for (int64_t k = r->n_tiles - 1; k >= first && !wrong; k--) wrong = backward_tile(r, k);
    if (!wrong) collect_backward(r);
    return wrong;
}

const char *rm_op_run(const rm_op_setup *s, const rm_op_inputs *in, rm_op_outputs *out) {
    runner r = {.s = s, .in = in, .out = out, .memory = {.variant = s->variant}};
    *out = (rm_op_outputs){0};
    if (rm_op_starved) return no_memory;
    const char *wrong = prepare(&r);
    if (!wrong) wrong = run_tiles(&r);
    if (!is_ready(&r)) wrong = no_memory;
    rm_op_starved |= r.memory.starved;
    rm_free(r.tiles);
    rm_guard_free(&r.memory);
    return wrong;
}
