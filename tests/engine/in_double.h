/* in_double.h: computes a session's training step again in double precision: every node of the graph by its definition
 * (ops/op.h), over the whole sequence at once, without stages, tiles or plans. Main entries: in_double_forward,
 * in_double_backward, in_double_expect. Link with remat_ops_f64. */
#ifndef IN_DOUBLE_H
#define IN_DOUBLE_H

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/rng.h"
#include "engine/session/session.h"

enum { IN_DOUBLE_BLOCKS = 4096 };
typedef struct {
    remat_session *session;
    void **value;      /* by value id: doubles, or an input's integers */
    double **gradient; /* by value id; NULL: no contribution so far */
    remat_call *call;  /* by node: the forward call */
    void *block[IN_DOUBLE_BLOCKS];
    int n_blocks;
} in_double;

static void *in_double_room(in_double *d, uint64_t bytes) {
    ck_assert_int_lt(d->n_blocks, IN_DOUBLE_BLOCKS);
    return d->block[d->n_blocks++] = calloc(1, bytes + 1);
}

static remat_desc in_double_desc(remat_desc desc) {
    if (desc.rank >= 0 && desc.dtype == REMAT_F32) desc.dtype = REMAT_F64;
    return desc;
}

static void in_double_load(in_double *d, remat_kind kind, int64_t index) {
    const rm_session_array *array = &d->session->array[kind][index];
    int32_t v = 1;
    while (!d->session->graph->value[v].name || strcmp(d->session->graph->value[v].name, array->name)) v++;
    int64_t n = rm_desc_count(&array->desc);
    float *read = in_double_room(d, (uint64_t)n * sizeof *read);
    ck_assert_int_eq(remat_read(d->session, kind, index, read, (uint64_t)n * sizeof *read), REMAT_OK);
    d->value[v] = read;
    if (array->desc.dtype == REMAT_I32) return;
    double *value = d->value[v] = in_double_room(d, (uint64_t)n * sizeof *value);
    for (int64_t i = 0; i < n; i++) value[i] = read[i];
}

static const remat_op *in_double_op(const rm_node *node) { return rm_op_find_f64(node->op->name); }

static void in_double_scratch(in_double *d, const rm_node *node, remat_call *call, remat_pass pass) {
    remat_desc x[REMAT_MAX_INPUTS];
    remat_cost cost = {0};
    for (int i = 0; i < REMAT_MAX_INPUTS; i++) x[i] = call->x[i].desc;
    in_double_op(node)->cost(x, &call->y.desc, call->attr, pass, &cost);
    call->scratch = in_double_room(d, cost.scratch_bytes);
}

static void in_double_run_forward(in_double *d, int32_t n) {
    const remat_session *s = d->session;
    const rm_node *node = &s->graph->node[n];
    const remat_op *op = in_double_op(node);
    bool timed = s->graph->value[node->x[0]].sequence;
    remat_call *call = &d->call[n];
    remat_desc x[REMAT_MAX_INPUTS], y, state[REMAT_MAX_STATES];
    *call = (remat_call){.attr = node->attr,
                         .key = {rm_seed_at(s->runner.seed, s->runner.updates),
                                 rm_step_at(s->runner.updates, s->runner.shard), node->key},
                         .t_total = timed ? s->graph->value[node->x[0]].desc.dim[0] : 1,
                         .training = true,
                         .threads = 1};
    for (int i = 0; i < REMAT_MAX_INPUTS; i++) {
        if (i >= op->n_in) {
            x[i] = (remat_desc){.rank = -1};
            continue;
        }
        x[i] = node->x[i] ? in_double_desc(s->graph->value[node->seen[i] ? node->seen[i] : node->x[i]].desc)
                          : (remat_desc){.rank = -1};
        call->x[i] = (remat_tensor){x[i], node->x[i] ? d->value[node->x[i]] : NULL};
    }
    ck_assert_int_eq(op->infer(x, node->attr, &y, state), REMAT_OK);
    d->value[node->y] = in_double_room(d, rm_desc_bytes(&y));
    call->y = (remat_tensor){y, d->value[node->y]};
    for (int k = 0; k < op->n_state; k++) {
        int32_t initial = rm_initial(node, k);
        call->state_in[k] = (remat_tensor){state[k], initial ? d->value[initial] : NULL};
        call->state_out[k] = (remat_tensor){state[k], in_double_room(d, rm_desc_bytes(&state[k]))};
        if (node->final[k]) d->value[node->final[k]] = call->state_out[k].data;
        call->dstate_in[k] = call->dstate_out[k] = (remat_tensor){state[k], NULL};
    }
    call->aux = in_double_room(d, op->aux_bytes ? op->aux_bytes(x, node->attr) : 0);
    if (op->once_bytes) {
        call->once = in_double_room(d, op->once_bytes(x, node->attr));
        in_double_scratch(d, node, call, REMAT_ONCE);
        op->define_once(call);
    }
    in_double_scratch(d, node, call, REMAT_FORWARD);
    op->define_forward(call);
}

/* Starts from the session's current inputs, parameters and buffers. */
static in_double in_double_forward(remat_session *s) {
    in_double d = {.session = s};
    const remat_graph *g = s->graph;
    d.value = in_double_room(&d, (uint64_t)g->n_values * sizeof *d.value);
    d.gradient = in_double_room(&d, (uint64_t)g->n_values * sizeof *d.gradient);
    d.call = in_double_room(&d, (uint64_t)g->n_nodes * sizeof *d.call);
    for (int64_t i = 0; i < remat_count(s, REMAT_INPUT); i++) in_double_load(&d, REMAT_INPUT, i);
    for (int64_t i = 0; i < remat_count(s, REMAT_PARAM); i++) in_double_load(&d, REMAT_PARAM, i);
    for (int64_t i = 0; i < remat_count(s, REMAT_BUFFER); i++) in_double_load(&d, REMAT_BUFFER, i);
    for (int32_t n = 0; n < g->n_nodes; n++)
        if (s->chain.role[n] != RM_ROLE_DEAD) in_double_run_forward(&d, n);
    return d;
}

/* The gradient of a value, for adding to it. */
static double *in_double_gradient(in_double *d, int32_t v) {
    const remat_desc desc = in_double_desc(d->session->graph->value[v].desc);
    if (!d->gradient[v]) d->gradient[v] = in_double_room(d, rm_desc_bytes(&desc));
    return d->gradient[v];
}

static void in_double_run_backward(in_double *d, int32_t n) {
    const remat_graph *g = d->session->graph;
    const rm_node *node = &g->node[n];
    remat_call call = d->call[n];
    if (d->session->chain.role[n] == RM_ROLE_DEAD) return;
    for (int k = 0; k < node->op->n_state; k++) {
        int32_t initial = rm_initial(node, k), final = node->final[k];
        if (final && d->gradient[final]) in_double_gradient(d, node->y); /* zeros, unless something reads it */
        call.dstate_out[k].data = final ? d->gradient[final] : NULL;
        bool wanted = initial && g->value[initial].needs_gradient;
        call.dstate_in[k].data = wanted ? in_double_room(d, rm_desc_bytes(&call.dstate_in[k].desc)) : NULL;
    }
    if (!d->gradient[node->y]) return;
    call.dy = (remat_tensor){call.y.desc, d->gradient[node->y]};
    for (int i = 0; i < REMAT_MAX_INPUTS; i++) {
        call.dx[i] = (remat_tensor){call.x[i].desc, NULL};
        if (i < node->op->n_in && node->x[i] && g->value[node->x[i]].needs_gradient && !(node->op->discrete >> i & 1))
            call.dx[i].data = in_double_room(d, rm_desc_bytes(&call.x[i].desc));
    }
    in_double_scratch(d, node, &call, REMAT_BACKWARD);
    in_double_op(node)->define_backward(&call);
    for (int i = 0; i < REMAT_MAX_INPUTS; i++) {
        double *sum = call.dx[i].data ? in_double_gradient(d, node->x[i]) : NULL;
        for (int64_t k = 0; sum && k < rm_desc_count(&call.dx[i].desc); k++) sum[k] += ((double *)call.dx[i].data)[k];
    }
    for (int i = 0; i < node->op->n_state; i++) {
        double *sum = call.dstate_in[i].data ? in_double_gradient(d, rm_initial(node, i)) : NULL;
        for (int64_t k = 0; sum && k < rm_desc_count(&call.dstate_in[i].desc); k++)
            sum[k] += ((double *)call.dstate_in[i].data)[k];
    }
}

/* Call it after setting the gradients of the outputs. The gradient of the loss is 1. */
static void in_double_backward(in_double *d) {
    if (d->session->chain.loss) *in_double_gradient(d, d->session->chain.loss) += 1;
    for (int32_t n = d->session->graph->n_nodes - 1; n >= 0; n--) in_double_run_backward(d, n);
}

/* Compares every gradient of the session. The tolerance is relative to the array's largest element, or to `scale` if
 * that is larger. Returns the largest error in these units. */
static double in_double_expect(const in_double *d, double tolerance, double scale, const char *what) {
    double worst = 0;
    for (int64_t i = 0; i < remat_count(d->session, REMAT_GRADIENT); i++) {
        const rm_session_array *array = &d->session->array[REMAT_GRADIENT][i];
        int32_t v = 1;
        while (!d->session->graph->value[v].name || strcmp(d->session->graph->value[v].name, array->name)) v++;
        int64_t n = rm_desc_count(&array->desc);
        float *got = malloc((uint64_t)n * sizeof *got);
        ck_assert_int_eq(remat_read(d->session, REMAT_GRADIENT, i, got, (uint64_t)n * sizeof *got), REMAT_OK);
        double largest = scale;
        for (int64_t k = 0; k < n && d->gradient[v]; k++) largest = fmax(largest, fabs(d->gradient[v][k]));
        for (int64_t k = 0; k < n; k++) {
            double right = d->gradient[v] ? d->gradient[v][k] : 0, error = fabs(got[k] - right) / largest;
            ck_assert_msg(error <= tolerance, "%s: the gradient of %s has %.9g at %ld, in double precision %.9g", what,
                          array->name, got[k], (long)k, right);
            worst = fmax(worst, error);
        }
        free(got);
    }
    return worst;
}

static void in_double_free(in_double *d) {
    for (int i = d->n_blocks - 1; i >= 0; i--) free(d->block[i]);
}

#endif
