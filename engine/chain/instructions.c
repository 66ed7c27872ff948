/* instructions.c: writes the kernel calls of one node: forward, rebuild and backward, with the address of every operand,
 * and copies between tiles and whole values. program.c decides which nodes a program has. */
#include <string.h>

#include "engine/chain/builder.h"
#include "memory/host.h"

/* ---- Scratch buffers and instructions -------------------------------------------------------------------------- */

static remat_status new_buffer(builder *b, uint64_t bytes, rm_where *out) {
    *out = RM_NO_PLACE;
    if (!bytes) return REMAT_OK;
    rm_lifetimes *buffers = &b->buffers;
    REQUIRE(rm_grow(&buffers->item, &buffers->capacity, buffers->count + 1, sizeof *buffers->item), MEMORY,
            "out of memory for a stage's program");
    int64_t now = b->program->n;
    buffers->item[buffers->count] = (rm_lifetime){.kind = RM_BUFFER_SCRATCH,
                                                  .index = (int32_t)buffers->count,
                                                  .first = now,
                                                  .last = now,
                                                  .bytes = rm_align_up(bytes)};
    *out = (rm_where){.space = RM_AT_SCRATCH, .offset = (uint64_t)buffers->count++};
    return REMAT_OK;
}

static void use(builder *b, const rm_where *where) {
    if (where->space == RM_AT_SCRATCH) b->buffers.item[where->offset].last = b->program->n;
}

static remat_status emit(builder *b, rm_instruction instruction) {
    rm_program *program = b->program;
    REQUIRE(rm_grow(&b->item, &b->capacity, program->n + 1, sizeof *b->item), MEMORY,
            "out of memory for a stage's program");
    for (int i = 0; i < RM_OPERANDS; i++) use(b, &instruction.operand[i]);
    instruction.once = b->once;
    int16_t rank = b->chain->owner ? b->chain->owner[b->of_node] : RM_EVERY_RANK;
    b->item[program->n++] = (rm_written){instruction, b->flops, b->moved_bytes, rank};
    b->flops = b->moved_bytes = 0;
    return REMAT_OK;
}

remat_status rm_emit_simple(builder *b, rm_do what, rm_where y, rm_where x, uint64_t bytes) {
    rm_instruction instruction = {.what = (uint8_t)what, .node = -1, .count = (int64_t)(bytes / 4), .y = y};
    instruction.x[0] = x;
    b->moved_bytes = (what == RM_DO_ADD ? 3.0 : 2.0) * (double)bytes;
    return emit(b, instruction);
}

/* Notes a call's cost and reserves its scratch. `aux`: whether the call has aux. */
static remat_status account(builder *b, const rm_node *node, remat_pass pass, bool aux, rm_where *scratch) {
    remat_desc x[REMAT_MAX_INPUTS], y, state[REMAT_MAX_STATES];
    rm_node_descs(b->chain->graph, node, b->kind ? b->kind->tau : 0, x, &y, state);
    remat_cost cost = {0};
    node->op->cost(x, &y, node->attr, pass, &cost);
    b->flops = cost.flops;
    b->moved_bytes = cost.moved_bytes;
    const remat_op_device *on = &node->op->on[b->config->kernels];
    if (on->scratch_bytes) cost.scratch_bytes = on->scratch_bytes(x, node->attr, pass, aux, b->config->threads);
    return new_buffer(b, cost.scratch_bytes, scratch);
}
/* ---- Small queries --------------------------------------------------------------------------------------------- */

/* Address of the carried state that a stage receives. */
static rm_where state_in(const builder *b, const rm_node *node, int k) {
    int32_t initial = rm_initial(node, k);
    if (b->kind->first && initial) return b->value[initial];
    return rm_carried_where(b->chain, rm_carried_slot(b->chain, index_of(b, node), k), -1);
}

/* In the last stage, carried states are final states, which are values. */
void rm_find_final(builder *b, const rm_node *node) {
    for (int k = 0; b->kind && b->kind->last && k < node->op->n_state; k++)
        if (node->final[k])
            b->value[node->final[k]] = rm_carried_where(b->chain, rm_carried_slot(b->chain, index_of(b, node), k), 0);
}

/* A reduction to the last timestep does not run in earlier tiles. */
static bool runs_here(const builder *b, const rm_node *node) {
    return !b->kind || !b->kind->tau || b->kind->last || node->op->time != REMAT_TIME_LAST;
}

/* ---- Gathering and scattering tiles ---------------------------------------------------------------------------- */

/* A tile's part of a value with all timesteps in scratch. */
static rm_where part_of(const builder *b, int32_t value, rm_where whole, int64_t tile, uint64_t *bytes) {
    const rm_value *v = &b->chain->graph->value[value];
    const rm_sweep *maker = &b->chain->sweep[b->chain->crossing[b->chain->cross[value]].sweep];
    int64_t begin = tile * maker->tile, tau = maker->tile;
    if (begin + tau > maker->timesteps) tau = maker->timesteps - begin;
    if (v->reversed) begin = maker->timesteps - begin - tau;
    uint64_t step = rm_desc_bytes(&v->desc) / (uint64_t)maker->timesteps;
    *bytes = step * (uint64_t)tau;
    whole.per_time = step * (uint64_t)begin;
    whole.of = value;
    return whole;
}

static int64_t n_tiles(const builder *b, int32_t value) {
    return b->chain->sweep[b->chain->crossing[b->chain->cross[value]].sweep].count;
}

/* Address of an operand. Gathers its tiles into scratch first if necessary. */
static remat_status gather(builder *b, int32_t value, rm_where *where) {
    if (value && !b->value[value].space && rm_is_in_tiles(b, value)) {
        TRY(new_buffer(b, tile_bytes(b, value), &b->value[value]));
        for (int64_t tile = 0; tile < n_tiles(b, value); tile++) {
            uint64_t bytes;
            rm_where part = part_of(b, value, b->value[value], tile, &bytes);
            TRY(rm_emit_simple(b, RM_DO_COPY, part, rm_crossing_where(b->chain, value, sweep_of(b), tile), bytes));
        }
    }
    *where = value ? b->value[value] : RM_NO_PLACE;
    return REMAT_OK;
}

/* Writes a gradient of all timesteps to its tiles by COPY, ADD or ZERO. */
remat_status rm_emit_scatter(builder *b, int32_t value, rm_where whole, rm_do what) {
    for (int64_t tile = 0; tile < n_tiles(b, value); tile++) {
        uint64_t bytes;
        rm_where part = part_of(b, value, whole, tile, &bytes);
        rm_where target = rm_crossing_gradient(b->chain, value, sweep_of(b), tile);
        TRY(rm_emit_simple(b, what, target, what == RM_DO_ZERO ? RM_NO_PLACE : part, bytes));
    }
    return REMAT_OK;
}

/* ---- Forward --------------------------------------------------------------------------------------------------- */

static remat_status place_result(builder *b, const rm_node *node, rm_forward_mode mode, rm_where *y) {
    rm_chain *chain = b->chain;
    if (node->y == chain->loss) {
        *y = (rm_where){.space = RM_RESIDENT, .offset = chain->at.loss_offset, .per_stage = sizeof(float)};
    } else if (!b->kind) { /* a table */
        *y = chain->at.value[node->y];
    } else if (mode != LEAF && crosses_out(b, node->y) && !accumulates(b, node)) {
        *y = rm_crossing_where(chain, node->y, sweep_of(b), -1);
    } else if (mode == KEEPING && b->saved_value[node->y].space) {
        *y = b->saved_value[node->y];
    } else {
        return new_buffer(b, tile_bytes(b, node->y), y);
    }
    return REMAT_OK;
}

static remat_status place_aux(builder *b, const rm_node *node, rm_forward_mode mode, rm_where *aux) {
    *aux = RM_NO_PLACE;
    if (mode == DROPPING || !learns(b, node) || !node->op->aux_bytes) return REMAT_OK;
    if (mode == KEEPING && b->kind) {
        *aux = b->saved_aux[index_of(b, node)];
        return REMAT_OK;
    }
    remat_desc x[REMAT_MAX_INPUTS], y, state[REMAT_MAX_STATES];
    rm_node_descs(b->chain->graph, node, b->kind ? b->kind->tau : 0, x, &y, state);
    return new_buffer(b, node->op->aux_bytes(x, node->attr), aux);
}

/* Adds the tile's share of a sum over time to the sum of earlier tiles. The last stage copies the sum to other
 * sweeps. */
static remat_status carry_sum(builder *b, const rm_node *node) {
    int32_t slot = rm_carried_slot(b->chain, index_of(b, node), -1);
    rm_where before = rm_carried_where(b->chain, slot, -1), after = rm_carried_where(b->chain, slot, 0);
    rm_where share = b->value[node->y];
    uint64_t bytes = tile_bytes(b, node->y);
    TRY(rm_emit_simple(b, RM_DO_COPY, after, share, bytes));
    TRY(rm_emit_simple(b, RM_DO_ADD, after, before, bytes));
    b->value[node->y] = after;
    if (!crosses_out(b, node->y) || !b->kind->last) return REMAT_OK;
    return rm_emit_simple(b, RM_DO_COPY, rm_crossing_where(b->chain, node->y, sweep_of(b), -1), after, bytes);
}

/* Whether this program runs the node's `once`, which runs once per step, when the node first runs. */
static bool makes_once(const builder *b, const rm_node *node, rm_forward_mode mode) {
    if (!node->op->once_bytes) return false;
    bool in_backward = b->kind && is_leaf(b, node) && !b->early[index_of(b, node)];
    return mode != LEAF || in_backward;
}

static remat_status emit_once(builder *b, const rm_node *node, rm_forward_mode mode, rm_instruction call) {
    bool once = b->once;
    call.what = RM_DO_ONCE;
    b->once = b->kind && mode != LEAF && !b->evaluating;
    remat_status status = account(b, node, REMAT_ONCE, false, &call.scratch);
    if (!status) status = emit(b, call);
    b->once = once;
    return status;
}

remat_status rm_emit_forward(builder *b, const rm_node *node, rm_forward_mode mode) {
    if (!runs_here(b, node)) return REMAT_OK;
    b->of_node = index_of(b, node);
    rm_instruction call = {.what = RM_DO_FORWARD, .node = index_of(b, node)};
    for (int i = 0; i < node->op->n_in; i++) TRY(gather(b, node->x[i], &call.x[i]));
    if (makes_once(b, node, mode)) TRY(emit_once(b, node, mode, call));
    for (int i = 0; i < node->op->n_in; i++)
        if (node->op->buffers >> i & 1) call.x[i] = RM_NO_PLACE;
    for (int k = 0; k < node->op->n_state; k++) {
        call.state_in[k] = state_in(b, node, k);
        call.state_out[k] = rm_carried_where(b->chain, rm_carried_slot(b->chain, call.node, k), 0);
    }
    TRY(place_result(b, node, mode, &call.y));
    TRY(place_aux(b, node, mode, &call.aux));
    TRY(account(b, node, REMAT_FORWARD, call.aux.space != RM_NOWHERE, &call.scratch));
    b->value[node->y] = call.y;
    b->aux[call.node] = call.aux;
    rm_find_final(b, node);
    TRY(emit(b, call));
    return accumulates(b, node) && mode != LEAF ? carry_sum(b, node) : REMAT_OK;
}

/* ---- Backward -------------------------------------------------------------------------------------------------- */

/* Whether the last stage of the sweep reads the value, other than as an initial state. */
static bool is_read_by_the_last(const builder *b, int32_t value) {
    for (int32_t i = 0; i < sweep_of(b)->n_nodes + sweep_of(b)->n_tail; i++) {
        const rm_node *node = &b->chain->graph->node[b->chain->order[sweep_of(b)->first_node + i]];
        for (int k = 0; k < node->op->n_in; k++)
            if (node->x[k] == value && learns(b, node)) return true;
    }
    return false;
}

/* Whether a stage that runs earlier in backward has initialised the gradient of a value from another sweep. Each stage
 * of this sweep has its own part of the gradient, or all of them share it. */
bool rm_is_initialised(const builder *b, int32_t value) {
    const rm_crossing *c = &b->chain->crossing[b->chain->cross[value]];
    bool shared = !c->tiled && !b->chain->graph->value[value].sequence;
    return c->last_reader > b->kind->sweep || (shared && !b->kind->last && is_read_by_the_last(b, value));
}

/* Finds the address where the gradient of input `value` is accumulated, and whether it already holds a first term. */
static remat_status gradient_of(builder *b, int32_t value, rm_where *where, bool *contributed) {
    rm_chain *chain = b->chain;
    if (chain->at.gradient[value].space) { /* zeroed at the start of the step, or written by the caller */
        *where = chain->at.gradient[value];
        *contributed = true;
        return REMAT_OK;
    }
    if (!b->gradient[value].space) {
        if (rm_made_here(b, value)) {
            TRY(new_buffer(b, tile_bytes(b, value), &b->gradient[value]));
        } else {
            b->gradient[value] = rm_crossing_gradient(chain, value, sweep_of(b), -1);
            b->contributed[value] = rm_is_initialised(b, value);
        }
    }
    *where = b->gradient[value];
    *contributed = b->contributed[value];
    return REMAT_OK;
}

/* Address of a node's dy. NOWHERE if it has no gradient and the node has no state that carries one through time. */
static remat_status incoming(builder *b, const rm_node *node, rm_where *dy) {
    rm_chain *chain = b->chain;
    if (node->y == chain->loss) {
        *dy = (rm_where){.space = RM_RESIDENT, .offset = chain->at.one_offset};
    } else if (chain->at.gradient[node->y].space) { /* of a table, or of an output, to which its readers have added */
        *dy = chain->at.gradient[node->y];
    } else if (accumulates(b, node) && !b->kind->last) {
        *dy = rm_carried_gradient(chain, rm_carried_slot(chain, index_of(b, node), -1), 0);
    } else if (b->contributed[node->y]) {
        *dy = b->gradient[node->y];
    } else if (node->op->n_state) {
        TRY(new_buffer(b, tile_bytes(b, node->y), dy));
        return rm_emit_simple(b, RM_DO_ZERO, *dy, RM_NO_PLACE, tile_bytes(b, node->y));
    } else {
        *dy = RM_NO_PLACE;
    }
    return REMAT_OK;
}

/* How a call's dx is added to the gradient after the call. */
typedef struct {
    rm_where add_to;
    bool scatter, fresh;
} rest;

static remat_status place_scattered(builder *b, int32_t value, rm_where *dx, rest *rest) {
    rest->scatter = true;
    rest->fresh = !b->contributed[value] && !rm_is_initialised(b, value);
    b->contributed[value] = 1;
    return new_buffer(b, tile_bytes(b, value), dx);
}

/* Fills call->dx. Kernels overwrite dx, so a second term goes to a separate buffer and is added afterwards. */
static remat_status place_input_gradients(builder *b, const rm_node *node, rm_instruction *call, rest *rest) {
    for (int i = 0; i < node->op->n_in; i++) {
        int32_t value = node->x[i];
        if (!value || b->chain->use[value] != RM_DIFFERENTIATED || node->op->discrete >> i & 1) continue;
        if (rm_is_in_tiles(b, value) && !b->chain->at.gradient[value].space) {
            TRY(place_scattered(b, value, &call->dx[i], &rest[i]));
            continue;
        }
        rm_where target;
        bool contributed;
        TRY(gradient_of(b, value, &target, &contributed));
        bool adds = node->op->shared >> i & 1;
        if (adds && !contributed) TRY(rm_emit_simple(b, RM_DO_ZERO, target, RM_NO_PLACE, tile_bytes(b, value)));
        if (adds || !contributed) {
            call->dx[i] = target;
        } else {
            TRY(new_buffer(b, tile_bytes(b, value), &call->dx[i]));
            rest[i].add_to = target;
        }
        b->contributed[value] = 1;
    }
    return REMAT_OK;
}

static remat_status place_saves(builder *b, const rm_node *node, rm_instruction *call) {
    for (int i = 0; i < node->op->n_in; i++)
        if (backward_reads(b, node, i)) TRY(gather(b, node->x[i], &call->x[i]));
    if (node->op->saves.out) call->y = b->value[node->y];
    call->aux = b->aux[call->node];
    for (int k = 0; k < node->op->n_state; k++) {
        int32_t slot = rm_carried_slot(b->chain, call->node, k);
        int32_t final = b->kind->last ? node->final[k] : 0;
        if (node->op->saves.state) call->state_in[k] = state_in(b, node, k);
        call->dstate_in[k] = rm_carried_gradient(b->chain, slot, -1);
        if (b->chain->at.gradient[final].space) /* of an output, to which its readers have added */
            call->dstate_out[k] = b->chain->at.gradient[final];
        else
            call->dstate_out[k] =
                final && b->contributed[final] ? b->gradient[final] : rm_carried_gradient(b->chain, slot, 0);
    }
    return REMAT_OK;
}

/* Fills the addresses of gradients of initial states. As for other inputs, a second term is added afterwards. */
static remat_status place_initial_gradients(builder *b, const rm_node *node, rm_instruction *call, rest *rest) {
    for (int k = 0; k < node->op->n_state && b->kind->first; k++) {
        int32_t value = rm_initial(node, k);
        if (!value) continue;
        rm_where target;
        bool contributed;
        call->dstate_in[k] = RM_NO_PLACE;
        if (b->chain->use[value] != RM_DIFFERENTIATED) continue;
        TRY(gradient_of(b, value, &target, &contributed));
        if (contributed) {
            TRY(new_buffer(b, tile_bytes(b, value), &call->dstate_in[k]));
            rest[node->op->n_in + k].add_to = target;
        } else {
            call->dstate_in[k] = target;
        }
        b->contributed[value] = 1;
    }
    return REMAT_OK;
}

/* Rebuilds a node's aux in scratch from values that backward may read and the weights. */
static remat_status emit_rebuild(builder *b, const rm_node *node) {
    rm_instruction call = {.what = RM_DO_REBUILD, .node = index_of(b, node), .y = b->value[node->y]};
    for (int i = 0; i < node->op->n_in; i++)
        if ((node->op->saves.in | node->op->shared) >> i & 1) TRY(gather(b, node->x[i], &call.x[i]));
    for (int k = 0; k < node->op->n_state; k++) call.state_in[k] = state_in(b, node, k);
    remat_desc x[REMAT_MAX_INPUTS], y, state[REMAT_MAX_STATES];
    rm_node_descs(b->chain->graph, node, b->kind->tau, x, &y, state);
    TRY(new_buffer(b, node->op->aux_bytes(x, node->attr), &call.aux));
    TRY(account(b, node, REMAT_REBUILD, true, &call.scratch));
    b->aux[call.node] = call.aux;
    return emit(b, call);
}

remat_status rm_emit_backward(builder *b, const rm_node *node) {
    if (!runs_here(b, node) || !learns(b, node)) return REMAT_OK;
    rm_instruction call = {.what = RM_DO_BACKWARD, .node = index_of(b, node)};
    b->of_node = call.node;
    rest rest[REMAT_MAX_INPUTS] = {0};
    TRY(incoming(b, node, &call.dy));
    if (!call.dy.space) return REMAT_OK;
    if (b->kind && b->again[call.node] == REBUILT) TRY(emit_rebuild(b, node));
    TRY(place_saves(b, node, &call));
    TRY(place_input_gradients(b, node, &call, rest));
    TRY(place_initial_gradients(b, node, &call, rest));
    TRY(account(b, node, REMAT_BACKWARD, call.aux.space != RM_NOWHERE, &call.scratch));
    TRY(emit(b, call));
    for (int i = 0; i < REMAT_MAX_INPUTS; i++) {
        if (rest[i].scatter) TRY(rm_emit_scatter(b, node->x[i], call.dx[i], rest[i].fresh ? RM_DO_COPY : RM_DO_ADD));
        if (!rest[i].add_to.space) continue;
        rm_where term = i < node->op->n_in ? call.dx[i] : call.dstate_in[i - node->op->n_in];
        TRY(rm_emit_simple(b, RM_DO_ADD, rest[i].add_to, term, tile_bytes(b, node->x[i])));
    }
    if (!accumulates(b, node)) return REMAT_OK;
    /* The gradient of a sum is the same for every tile. */
    rm_where earlier = rm_carried_gradient(b->chain, rm_carried_slot(b->chain, call.node, -1), -1);
    return rm_emit_simple(b, RM_DO_COPY, earlier, call.dy, tile_bytes(b, node->y));
}
