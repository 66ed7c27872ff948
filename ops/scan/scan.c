/* scan.c: the kernels of a scan (scan.h): they run the body's ops one by one, timestep by timestep. */
#include "ops/real.h"

#include <string.h>

#include "ops/scan/scan.h"
#include "ops/shape.h"

#ifdef RM_REAL_DOUBLE
#define rm_scan_describe rm_scan_describe_f64
#endif

extern const remat_op RM_OP(linear);

static const remat_op *op_of(const rm_scan *s, int32_t n) { return RM_OP(at)(s->node[n].op); }
static const void *attr_of(const rm_scan_node *node) { return node->has_attr ? node->attr : NULL; }
static int32_t result_of(const rm_scan *s, int32_t n) { return rm_scan_first_result(s) + n; }

static bool is_weight(const rm_scan *s, int32_t v) {
    return v >= rm_scan_first_weight(s) && v < rm_scan_first_state(s);
}
/* The index of the state that value v is; -1 if none. */
static int32_t state_of(const rm_scan *s, int32_t v) {
    int32_t k = v - rm_scan_first_state(s);
    return k >= 0 && k < s->n_states ? k : -1;
}

/* The shape of value v in the body, for one timestep. */
static remat_desc desc_of(const rm_scan *s, int32_t v) {
    return v ? rm_desc_make(RM_REAL, (int32_t)s->value[v].rank, s->value[v].dim) : (remat_desc){.rank = -1};
}
static uint64_t bytes_of(const rm_scan *s, int32_t v) {
    remat_desc desc = desc_of(s, v);
    return rm_desc_bytes(&desc);
}
static void descs_of(const rm_scan *s, int32_t n, remat_desc *x) {
    for (int i = 0; i < REMAT_MAX_INPUTS; i++) x[i] = desc_of(s, s->node[n].x[i]);
}
static uint64_t node_aux_bytes(const rm_scan *s, int32_t n) {
    remat_desc x[REMAT_MAX_INPUTS];
    const remat_op *op = op_of(s, n);
    if (!op->aux_bytes) return 0;
    descs_of(s, n, x);
    return op->aux_bytes(x, attr_of(&s->node[n]));
}

/* ---- Values that backward reads ---------------------------------------------------------------------------------- */

/* Whether the body's ops read it in backward, or read it as the state before the next timestep. */
static bool is_read(const rm_scan *s, int32_t v) {
    for (int32_t n = 0; n < s->n_nodes; n++) {
        const remat_op *op = op_of(s, n);
        if (op->saves.out && result_of(s, n) == v) return true;
        for (int i = 0; i < op->n_in; i++)
            if (s->node[n].x[i] == v && op->saves.in >> i & 1) return true;
    }
    for (int32_t k = 0; k < s->n_states; k++)
        if (s->next[k] == v && is_read(s, rm_scan_first_state(s) + k)) return true;
    return false;
}

static bool is_kept(const rm_scan *s, int32_t v) {
    return v >= rm_scan_first_result(s) && v != s->output && is_read(s, v);
}

static uint64_t aux_bytes_of_step(const rm_scan *s) {
    uint64_t bytes = 0;
    for (int32_t n = 0; n < s->n_nodes; n++)
        bytes += node_aux_bytes(s, n) + (is_kept(s, result_of(s, n)) ? bytes_of(s, result_of(s, n)) : 0);
    return bytes;
}

static uint64_t aux_bytes(const remat_desc *x, const void *attr) {
    return (uint64_t)x[0].dim[0] * aux_bytes_of_step(attr);
}

/* Weight gradients of linear layers are computed for all timesteps at once, as one long product. */
static bool is_late(const rm_scan *s, int32_t n) {
    const int32_t *x = s->node[n].x;
    return op_of(s, n) == &RM_OP(linear) && !is_weight(s, x[0]) && is_weight(s, x[1]) && (!x[2] || is_weight(s, x[2]));
}

/* A linear layer that reads a sequence does not depend on states. So its forward, too, runs for all timesteps at once,
 * and so does its backward if no other node contributes to the gradient of the sequence. */
static bool is_early(const rm_scan *s, int32_t n) { return is_late(s, n) && s->node[n].x[0] < rm_scan_first_weight(s); }
static bool is_early_alone(const rm_scan *s, int32_t n) {
    int readers = 0;
    for (int32_t m = 0; m < s->n_nodes; m++)
        for (int i = 0; i < REMAT_MAX_INPUTS; i++) readers += s->node[m].x[i] == s->node[n].x[0];
    return is_early(s, n) && readers == 1;
}

/* A gradient computed by an op of the body is written directly to its destination, or goes to a buffer of its own that
 * is then added. The latter is needed if the op reads the value twice, or if it overwrites a gradient that should be
 * accumulated or the reverse. */
static bool reads_once(const rm_scan_node *node, int i) {
    for (int j = 0; j < REMAT_MAX_INPUTS; j++)
        if (j != i && node->x[j] == node->x[i]) return false;
    return true;
}
static bool adds_directly(const rm_scan *s, int32_t n, int i) {
    return op_of(s, n)->shared >> i & 1 && is_weight(s, s->node[n].x[i]) && reads_once(&s->node[n], i);
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

/* A value, gradient or aux at timestep t of the tile is at data + t * step. step 0: all timesteps share it. */
typedef struct {
    char *data;
    uint64_t step;
} series;

typedef struct {
    const rm_scan *scan;
    const remat_call *call;
    int64_t tau;
    char *scratch; /* NULL: only count bytes */
    uint64_t used;
    series value[RM_SCAN_VALUES], aux[RM_SCAN_NODES], gradient[RM_SCAN_VALUES];
    char *zeros, *now[REMAT_MAX_STATES]; /* states between timesteps, if the sequence of states is not saved */
    char *part[REMAT_MAX_INPUTS], *node_scratch;
    bool begun[RM_SCAN_VALUES]; /* whether the gradient has a first contribution */
} runner;

static char *take(runner *r, uint64_t bytes) {
    char *at = r->scratch ? r->scratch + r->used : NULL;
    r->used += (bytes + 63) / 64 * 64;
    return at;
}

static uint64_t most_node_scratch(const rm_scan *s) {
    uint64_t most = 0;
    for (int32_t n = 0; n < s->n_nodes; n++)
        for (int pass = REMAT_FORWARD; pass <= REMAT_BACKWARD; pass++) {
            remat_desc x[REMAT_MAX_INPUTS], y = desc_of(s, result_of(s, n));
            remat_cost cost = {0};
            descs_of(s, n, x);
            op_of(s, n)->cost(x, &y, attr_of(&s->node[n]), (remat_pass)pass, &cost);
            if (cost.scratch_bytes > most) most = cost.scratch_bytes;
        }
    return most;
}

static void place_common(runner *r) {
    const rm_scan *s = r->scan;
    uint64_t most = 0;
    for (int32_t k = 0; k < s->n_states; k++) {
        uint64_t bytes = bytes_of(s, rm_scan_first_state(s) + k);
        if (bytes > most) most = bytes;
    }
    r->zeros = take(r, most);
    r->node_scratch = take(r, most_node_scratch(s));
}

/* Inputs stay where the call has them; saved values are placed one after the other in aux. */
static void place_saved(runner *r) {
    const rm_scan *s = r->scan;
    char *aux = r->call->aux;
    for (int32_t v = 1; v < rm_scan_first_state(s); v++)
        r->value[v] = (series){r->call->x[v - 1].data, is_weight(s, v) ? 0 : bytes_of(s, v)};
    for (int32_t n = 0; n < s->n_nodes && aux; n++) {
        int32_t v = result_of(s, n);
        uint64_t own = node_aux_bytes(s, n);
        if (is_kept(s, v)) {
            r->value[v] = (series){aux, bytes_of(s, v)};
            aux += (uint64_t)r->tau * bytes_of(s, v);
        }
        r->aux[n] = (series){own ? aux : NULL, own};
        aux += (uint64_t)r->tau * own;
    }
}

/* All other results of forward live for one timestep only. */
static void place_forward(runner *r) {
    const rm_scan *s = r->scan;
    place_common(r);
    for (int32_t n = 0; n < s->n_nodes; n++) {
        uint64_t bytes = bytes_of(s, result_of(s, n));
        bool early = is_early(s, n);
        char *data = take(r, early ? (uint64_t)r->tau * bytes : bytes);
        series *value = &r->value[result_of(s, n)];
        if (!value->data) *value = (series){data, early ? bytes : 0};
    }
    for (int32_t k = 0; k < s->n_states; k++) r->now[k] = take(r, bytes_of(s, s->next[k]));
}

static void place_parts(runner *r) {
    const rm_scan *s = r->scan;
    uint64_t most[REMAT_MAX_INPUTS] = {0};
    for (int32_t n = 0; n < s->n_nodes; n++)
        for (int i = 0; i < op_of(s, n)->n_in; i++) {
            uint64_t bytes = s->node[n].x[i] && !adds_directly(s, n, i) ? bytes_of(s, s->node[n].x[i]) : 0;
            if (bytes > most[i]) most[i] = bytes;
        }
    for (int i = 0; i < REMAT_MAX_INPUTS; i++) r->part[i] = most[i] ? take(r, most[i]) : NULL;
}

static void place_backward(runner *r) {
    const rm_scan *s = r->scan;
    place_common(r);
    place_parts(r);
    for (int32_t v = rm_scan_first_state(s); v < s->n_values; v++) {
        int32_t n = v - rm_scan_first_result(s);
        bool late = n >= 0 && is_late(s, n);
        r->gradient[v] = (series){take(r, bytes_of(s, v) * (late ? (uint64_t)r->tau : 1)), late ? bytes_of(s, v) : 0};
    }
}

static uint64_t scratch_bytes(const rm_scan *s, int64_t tau, remat_pass pass) {
    runner r = {.scan = s, .tau = tau};
    if (pass == REMAT_BACKWARD)
        place_backward(&r);
    else
        place_forward(&r);
    return r.used;
}

static void *at(series place, int64_t t) { return place.data ? place.data + (uint64_t)t * place.step : NULL; }

static void *value_at(const runner *r, int32_t v, int64_t t) {
    int32_t k = state_of(r->scan, v);
    if (k < 0) return at(r->value[v], t);
    if (t == 0) return r->call->state_in[k].data ? r->call->state_in[k].data : r->zeros;
    series next = r->value[r->scan->next[k]];
    return next.step ? at(next, t - 1) : r->now[k];
}

static remat_call call_of(const runner *r, int32_t n, int64_t t) {
    const remat_call *whole = r->call;
    const rm_scan *s = r->scan;
    remat_call c = {.attr = attr_of(&s->node[n]),
                    .aux = at(r->aux[n], t),
                    .scratch = r->node_scratch,
                    .key = whole->key,
                    .t0 = whole->t0 + t,
                    .t_total = whole->t0 + t + 1, /* so that no operand's first axis is taken for time */
                    .training = whole->training,
                    .threads = whole->threads};
    c.key.node += (uint32_t)(n + 1) << 20; /* distinct from the nodes of the outer graph */
    for (int i = 0; i < REMAT_MAX_INPUTS; i++) c.x[i].desc = desc_of(s, s->node[n].x[i]);
    return c;
}

/* ---- Forward and rebuild ----------------------------------------------------------------------------------------- */

static void forward_node(const runner *r, int32_t n, int64_t t) {
    const rm_scan *s = r->scan;
    remat_call c = call_of(r, n, t);
    for (int i = 0; i < REMAT_MAX_INPUTS; i++)
        if (s->node[n].x[i]) c.x[i].data = value_at(r, s->node[n].x[i], t);
    c.y = (remat_tensor){desc_of(s, result_of(s, n)), value_at(r, result_of(s, n), t)};
    op_of(s, n)->on[REMAT_ON_CPU].forward(&c);
}

static void forward_early(const runner *r, int32_t n) {
    const rm_scan *s = r->scan;
    remat_call c = call_of(r, n, 0);
    for (int i = 0; i < REMAT_MAX_INPUTS; i++)
        if (s->node[n].x[i]) c.x[i].data = value_at(r, s->node[n].x[i], 0);
    c.y = (remat_tensor){desc_of(s, result_of(s, n)), value_at(r, result_of(s, n), 0)};
    c.x[0].desc.dim[0] *= r->tau;
    c.y.desc.dim[0] *= r->tau;
    op_of(s, n)->on[REMAT_ON_CPU].forward(&c);
}

static void run_forward(runner *r) {
    const rm_scan *s = r->scan;
    place_forward(r);
    memset(r->zeros, 0, (size_t)((char *)r->node_scratch - r->zeros));
    for (int32_t n = 0; n < s->n_nodes; n++)
        if (is_early(s, n)) forward_early(r, n);
    for (int64_t t = 0; t < r->tau; t++) {
        for (int32_t n = 0; n < s->n_nodes; n++)
            if (!is_early(s, n)) forward_node(r, n, t);
        for (int32_t k = 0; k < s->n_states; k++)
            if (!r->value[s->next[k]].step)
                memcpy(r->now[k], value_at(r, s->next[k], t), (size_t)bytes_of(s, s->next[k]));
    }
}

static runner runner_of(const remat_call *call) {
    runner r = {.scan = call->attr, .call = call, .tau = call->x[0].desc.dim[0], .scratch = call->scratch};
    place_saved(&r);
    return r;
}

static void forward(const remat_call *call) {
    runner r = runner_of(call);
    const rm_scan *s = r.scan;
    r.value[s->output] = (series){call->y.data, bytes_of(s, s->output)};
    run_forward(&r);
    for (int32_t k = 0; k < s->n_states; k++)
        memcpy(call->state_out[k].data, value_at(&r, s->next[k], r.tau - 1), (size_t)bytes_of(s, s->next[k]));
}

/* Runs forward again and discards y. */
static void rebuild(const remat_call *call) {
    runner r = runner_of(call);
    run_forward(&r);
}

/* ---- Backward ---------------------------------------------------------------------------------------------------- */

static void add(real *to, const real *from, uint64_t bytes) {
    for (uint64_t i = 0; i < bytes / sizeof(real); i++) to[i] += from[i];
}

/* Adds a contribution to a gradient; NULL means zeros. */
static void contribute(runner *r, int32_t v, int64_t t, const void *part) {
    uint64_t bytes = bytes_of(r->scan, v);
    void *to = at(r->gradient[v], t);
    if (r->begun[v] && part) add(to, part, bytes);
    if (!r->begun[v] && part) memcpy(to, part, (size_t)bytes);
    if (!r->begun[v] && !part) memset(to, 0, (size_t)bytes);
    r->begun[v] = true;
}

/* The destination of the op's gradient of input i; NULL if it is not wanted. */
static void *target(const runner *r, int32_t n, int i, int64_t t) {
    const rm_scan_node *node = &r->scan->node[n];
    int32_t v = node->x[i];
    bool weight = op_of(r->scan, n)->shared >> i & 1;
    bool late = i > 0 ? is_late(r->scan, n) : is_early_alone(r->scan, n);
    if (!v || late || !r->gradient[v].data) return NULL;
    if (weight ? adds_directly(r->scan, n, i) : !r->begun[v] && reads_once(node, i)) return at(r->gradient[v], t);
    if (weight) memset(r->part[i], 0, (size_t)bytes_of(r->scan, v));
    return r->part[i];
}

static void backward_node(runner *r, int32_t n, int64_t t) {
    const rm_scan *s = r->scan;
    const remat_op *op = op_of(s, n);
    remat_call c = call_of(r, n, t);
    bool wanted = false;
    for (int i = 0; i < op->n_in; i++) {
        if (op->saves.in >> i & 1 && s->node[n].x[i]) c.x[i].data = value_at(r, s->node[n].x[i], t);
        c.dx[i] = (remat_tensor){c.x[i].desc, target(r, n, i, t)};
        wanted |= c.dx[i].data != NULL;
    }
    if (!wanted) return;
    int32_t y = result_of(s, n);
    c.y = (remat_tensor){desc_of(s, y), op->saves.out ? value_at(r, y, t) : NULL};
    c.dy = (remat_tensor){c.y.desc, at(r->gradient[y], t)};
    op->on[REMAT_ON_CPU].backward(&c);
    for (int i = 0; i < op->n_in; i++) {
        if (!c.dx[i].data) continue;
        if (c.dx[i].data == r->part[i]) contribute(r, s->node[n].x[i], t, r->part[i]);
        r->begun[s->node[n].x[i]] = true;
    }
}

/* Initialises the gradients of the body's results: dy, and the gradients of the states from the next timestep. */
static void begin_step(runner *r, int64_t t) {
    const rm_scan *s = r->scan;
    const remat_call *call = r->call;
    memset(r->begun, 0, sizeof r->begun);
    for (int32_t v = rm_scan_first_weight(s); v < rm_scan_first_state(s); v++) r->begun[v] = true;
    contribute(r, s->output, t, (char *)call->dy.data + (uint64_t)t * bytes_of(s, s->output));
    for (int32_t k = 0; k < s->n_states; k++)
        contribute(r, s->next[k], t,
                   t == r->tau - 1 ? call->dstate_out[k].data : r->gradient[rm_scan_first_state(s) + k].data);
}

static void backward_step(runner *r, int64_t t) {
    const rm_scan *s = r->scan;
    begin_step(r, t);
    for (int32_t n = s->n_nodes - 1; n >= 0; n--) backward_node(r, n, t);
}

/* For timesteps t .. t + steps - 1 of y = x w^T + b: dw += dy^T x, db += columns of dy, and dx = dy w if
 * no other node contributes to it. */
static void late_product(const runner *r, int32_t n, int64_t t, int64_t steps, void *x) {
    remat_call c = call_of(r, n, t);
    int32_t y = result_of(r->scan, n);
    c.x[0].data = x;
    c.dy = (remat_tensor){desc_of(r->scan, y), at(r->gradient[y], t)};
    c.x[0].desc.dim[0] *= steps;
    c.dy.desc.dim[0] *= steps;
    bool wanted = false;
    for (int i = is_early_alone(r->scan, n) ? 0 : 1; i < 3; i++) {
        c.dx[i] = (remat_tensor){c.x[i].desc, r->scan->node[n].x[i] ? r->gradient[r->scan->node[n].x[i]].data : NULL};
        wanted |= c.dx[i].data != NULL;
    }
    if (c.dx[0].data) c.x[1].data = r->value[r->scan->node[n].x[1]].data;
    if (steps && wanted) RM_OP(linear).on[REMAT_ON_CPU].backward(&c);
}

/* The state before timestep 0 is state_in, before timestep t > 0 the next state of t - 1. */
static void backward_late(const runner *r, int32_t n) {
    int32_t x = r->scan->node[n].x[0], k = state_of(r->scan, x);
    if (k < 0) {
        late_product(r, n, 0, r->tau, value_at(r, x, 0));
    } else {
        late_product(r, n, 0, 1, value_at(r, x, 0));
        late_product(r, n, 1, r->tau - 1, r->value[r->scan->next[k]].data);
    }
}

static void backward(const remat_call *call) {
    runner r = runner_of(call);
    const rm_scan *s = r.scan;
    place_backward(&r);
    memset(r.zeros, 0, (size_t)(r.node_scratch - r.zeros));
    r.value[s->output] = (series){call->y.data, bytes_of(s, s->output)};
    for (int32_t v = 1; v < rm_scan_first_state(s); v++)
        r.gradient[v] = (series){call->dx[v - 1].data, is_weight(s, v) ? 0 : bytes_of(s, v)};
    for (int64_t t = r.tau - 1; t >= 0; t--) backward_step(&r, t);
    for (int32_t n = s->n_nodes - 1; n >= 0; n--)
        if (is_late(s, n)) backward_late(&r, n);
    for (int32_t k = 0; k < s->n_states; k++)
        if (call->dstate_in[k].data)
            memcpy(call->dstate_in[k].data, r.gradient[rm_scan_first_state(s) + k].data,
                   (size_t)bytes_of(s, rm_scan_first_state(s) + k));
}

/* ---- Shapes and costs -------------------------------------------------------------------------------------------- */

static remat_desc along_time(remat_desc step, int64_t steps) {
    memmove(step.dim + 1, step.dim, (REMAT_MAX_RANK - 1) * sizeof *step.dim);
    step.dim[0] = steps;
    step.rank++;
    return step;
}

static remat_status infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    const rm_scan *s = attr;
    char text[REMAT_DESC_TEXT], expected_text[REMAT_DESC_TEXT];
    REQUIRE(s, INVALID, "a scan needs a body; build it with remat_scan");
    int64_t steps = x[0].rank > 0 ? x[0].dim[0] : 1;
    for (int32_t v = 1; v < rm_scan_first_state(s); v++) {
        remat_desc expected = desc_of(s, v);
        if (!is_weight(s, v)) expected = along_time(expected, steps);
        REQUIRE(rm_desc_equal(&x[v - 1], &expected), INVALID, "%s: %s %d is %s; its body needs %s", s->name,
                is_weight(s, v) ? "weight" : "sequence", is_weight(s, v) ? v - rm_scan_first_weight(s) : v - 1,
                rm_desc_text(&x[v - 1], text), rm_desc_text(&expected, expected_text));
    }
    *y = along_time(desc_of(s, s->output), steps);
    for (int32_t k = 0; k < s->n_states; k++) state[k] = desc_of(s, rm_scan_first_state(s) + k);
    return REMAT_OK;
}

static void cost(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass, remat_cost *out) {
    const rm_scan *s = attr;
    double steps = (double)x[0].dim[0];
    (void)y;
    *out = (remat_cost){.scratch_bytes = scratch_bytes(s, x[0].dim[0], pass)};
    for (int32_t n = 0; n < s->n_nodes; n++) {
        remat_desc of_x[REMAT_MAX_INPUTS], of_y = desc_of(s, result_of(s, n));
        remat_cost one = {0};
        descs_of(s, n, of_x);
        op_of(s, n)->cost(of_x, &of_y, attr_of(&s->node[n]), pass == REMAT_REBUILD ? REMAT_FORWARD : pass, &one);
        out->flops += steps * one.flops;
        out->moved_bytes += steps * one.moved_bytes;
    }
}

/* Whether aux can be recomputed: backward must get everything that forward started from. */
static bool is_rebuilt(const rm_scan *s) {
    bool all = aux_bytes_of_step(s) > 0, state = false;
    for (int32_t v = 1; v < rm_scan_first_weight(s); v++) all &= is_read(s, v);
    for (int32_t k = 0; k < s->n_states; k++) state |= is_read(s, rm_scan_first_state(s) + k);
    return all && state;
}

void rm_scan_describe(const rm_scan *s, remat_op *op) {
    *op = (remat_op){.struct_bytes = sizeof *op,
                     .name = s->name,
                     .doc = "y (T,B,..): a body of other ops, run timestep by timestep",
                     .n_in = s->n_sequences + s->n_weights,
                     .n_state = s->n_states,
                     .attr_bytes = sizeof *s,
                     .time = REMAT_TIME_RECURRENT,
                     .infer = infer,
                     .cost = cost,
                     .aux_bytes = aux_bytes_of_step(s) ? aux_bytes : NULL,
                     .on = {{.forward = forward, .backward = backward, .rebuild = is_rebuilt(s) ? rebuild : NULL}}};
    for (int32_t v = 1; v < rm_scan_first_state(s); v++) {
        if (is_weight(s, v)) op->shared |= 1u << (v - 1);
        if (is_read(s, v)) op->saves.in |= 1u << (v - 1);
    }
    op->saves.out = is_read(s, s->output);
    for (int32_t k = 0; k < s->n_states; k++) op->saves.state |= is_read(s, rm_scan_first_state(s) + k);
}
