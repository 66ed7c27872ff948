/* program.c: writes the list of kernel calls for each stage kind and each type of run (chain.h), with the address of
 * every operand. Buffers that live only inside a run are placed in the stage's scratch by the algorithm that packs the
 * arena (memory/place.h). saved.c decides what a stage saves. Which stages run, and how often, is decided by the plan,
 * not here. */
#include <math.h>
#include <string.h>

#include "engine/chain/builder.h"
#include "memory/host.h"

static const rm_where nowhere;

/* ---- Scratch buffers and instructions -------------------------------------------------------------------------- */

static remat_status new_buffer(builder *b, uint64_t bytes, rm_where *out) {
    *out = nowhere;
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

static remat_status emit_simple(builder *b, rm_do what, rm_where y, rm_where x, uint64_t bytes) {
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
    if (on->scratch_bytes) cost.scratch_bytes = on->scratch_bytes(x, node->attr, pass, aux);
    return new_buffer(b, cost.scratch_bytes, scratch);
}

static int count_operands(const rm_instruction *instruction) {
    int n = 0;
    for (int i = 0; i < RM_OPERANDS; i++) n += instruction->operand[i].space != RM_NOWHERE;
    return n;
}

/* Copies the instructions into the program's packed form. */
static remat_status pack(builder *b) {
    rm_program *program = b->program;
    int32_t n_where = 0;
    for (int32_t n = 0; n < program->n; n++) n_where += count_operands(&b->item[n].instruction);
    program->item = rm_malloc((size_t)program->n * sizeof *program->item);
    program->where = rm_malloc((size_t)n_where * sizeof *program->where);
    REQUIRE(program->item && program->where, MEMORY, "out of memory for a stage's program");
    for (int32_t n = 0; n < program->n; n++) {
        const rm_instruction *from = &b->item[n].instruction;
        rm_packed_instruction to = {.what = from->what,
                                    .once = from->once,
                                    .peer = from->peer,
                                    .node = from->node,
                                    .count = from->count,
                                    .first = program->n_where};
        for (int i = 0; i < RM_OPERANDS; i++) {
            if (from->operand[i].space == RM_NOWHERE) continue;
            to.there[i / 64] |= UINT64_C(1) << i % 64;
            program->where[program->n_where++] = from->operand[i];
        }
        program->item[n] = to;
    }
    return REMAT_OK;
}

static void add_costs(const builder *b) {
    rm_program *program = b->program;
    for (int32_t n = 0; n < program->n; n++) {
        const rm_written *w = &b->item[n];
        bool once = w->instruction.once;
        program->n_once += once;
        *(once ? &program->once_flops : &program->flops) += w->flops;
        *(once ? &program->once_moved_bytes : &program->moved_bytes) += w->moved_bytes;
    }
}

/* Places the scratch buffers, replaces their numbers by offsets, and packs the program. */
static remat_status finish(builder *b) {
    rm_placement placement = {0};
    if (b->chain->rank != RM_EVERY_RANK) TRY(rm_program_divide(b));
    add_costs(b);
    TRY(rm_place(&b->buffers, &placement));
    rm_program *program = b->program;
    for (int32_t n = 0; n < program->n; n++)
        for (int i = 0; i < RM_OPERANDS; i++) {
            rm_where *where = &b->item[n].instruction.operand[i];
            if (where->space == RM_AT_SCRATCH) where->offset = placement.offset[where->offset] + where->per_time;
            if (where->space == RM_AT_SCRATCH) where->per_time = 0;
        }
    program->scratch_bytes = rm_align_up(placement.bytes);
    rm_placement_free(&placement);
    rm_program_guess(program, &b->config->rates);
    return pack(b);
}

/* ---- Small queries --------------------------------------------------------------------------------------------- */

static bool made_here(const builder *b, int32_t value) {
    const rm_value *v = &b->chain->graph->value[value];
    if (!value || v->origin != RM_VALUE_RESULT || !b->kind || (v->state && !b->kind->last)) return false;
    for (int32_t i = 0; i < b->kind->n_nodes; i++)
        if (node_at(b, i)->y == value || (v->state && index_of(b, node_at(b, i)) == v->node)) return true;
    return false;
}

/* Address of the carried state that a stage receives. */
static rm_where state_in(const builder *b, const rm_node *node, int k) {
    int32_t initial = rm_initial(node, k);
    if (b->kind->first && initial) return b->value[initial];
    return rm_carried_where(b->chain, rm_carried_slot(b->chain, index_of(b, node), k), -1);
}

/* In the last stage, carried states are final states, which are values. */
static void find_final(builder *b, const rm_node *node) {
    for (int k = 0; b->kind && b->kind->last && k < node->op->n_state; k++)
        if (node->final[k])
            b->value[node->final[k]] = rm_carried_where(b->chain, rm_carried_slot(b->chain, index_of(b, node), k), 0);
}

/* A reduction to the last timestep does not run in earlier tiles. */
static bool runs_here(const builder *b, const rm_node *node) {
    return !b->kind || !b->kind->tau || b->kind->last || node->op->time != REMAT_TIME_LAST;
}

/* Whether a stage of all timesteps must gather this value from tiles. */
static bool is_in_tiles(const builder *b, int32_t value) {
    int32_t i = b->kind && sweep_of(b)->whole ? b->chain->cross[value] : -1;
    return i >= 0 && b->chain->crossing[i].tiled;
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
    if (value && !b->value[value].space && is_in_tiles(b, value)) {
        TRY(new_buffer(b, tile_bytes(b, value), &b->value[value]));
        for (int64_t tile = 0; tile < n_tiles(b, value); tile++) {
            uint64_t bytes;
            rm_where part = part_of(b, value, b->value[value], tile, &bytes);
            TRY(emit_simple(b, RM_DO_COPY, part, rm_crossing_where(b->chain, value, sweep_of(b), tile), bytes));
        }
    }
    *where = value ? b->value[value] : nowhere;
    return REMAT_OK;
}

/* Writes a gradient of all timesteps to its tiles by COPY, ADD or ZERO. */
static remat_status scatter(builder *b, int32_t value, rm_where whole, rm_do what) {
    for (int64_t tile = 0; tile < n_tiles(b, value); tile++) {
        uint64_t bytes;
        rm_where part = part_of(b, value, whole, tile, &bytes);
        rm_where target = rm_crossing_gradient(b->chain, value, sweep_of(b), tile);
        TRY(emit_simple(b, what, target, what == RM_DO_ZERO ? nowhere : part, bytes));
    }
    return REMAT_OK;
}

/* ---- Forward --------------------------------------------------------------------------------------------------- */

typedef enum { DROPPING, KEEPING, LEAF } forward_mode;

static remat_status place_result(builder *b, const rm_node *node, forward_mode mode, rm_where *y) {
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

static remat_status place_aux(builder *b, const rm_node *node, forward_mode mode, rm_where *aux) {
    *aux = nowhere;
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
    TRY(emit_simple(b, RM_DO_COPY, after, share, bytes));
    TRY(emit_simple(b, RM_DO_ADD, after, before, bytes));
    b->value[node->y] = after;
    if (!crosses_out(b, node->y) || !b->kind->last) return REMAT_OK;
    return emit_simple(b, RM_DO_COPY, rm_crossing_where(b->chain, node->y, sweep_of(b), -1), after, bytes);
}

/* Whether this program runs the node's `once`, which runs once per step, when the node first runs. */
static bool makes_once(const builder *b, const rm_node *node, forward_mode mode) {
    if (!node->op->once_bytes) return false;
    bool in_backward = b->kind && is_leaf(b, node) && !b->early[index_of(b, node)];
    return mode != LEAF || in_backward;
}

static remat_status emit_once(builder *b, const rm_node *node, forward_mode mode, rm_instruction call) {
    bool once = b->once;
    call.what = RM_DO_ONCE;
    b->once = b->kind && mode != LEAF && !b->evaluating;
    remat_status status = account(b, node, REMAT_ONCE, false, &call.scratch);
    if (!status) status = emit(b, call);
    b->once = once;
    return status;
}

static remat_status emit_forward(builder *b, const rm_node *node, forward_mode mode) {
    if (!runs_here(b, node)) return REMAT_OK;
    b->of_node = index_of(b, node);
    rm_instruction call = {.what = RM_DO_FORWARD, .node = index_of(b, node)};
    for (int i = 0; i < node->op->n_in; i++) TRY(gather(b, node->x[i], &call.x[i]));
    if (makes_once(b, node, mode)) TRY(emit_once(b, node, mode, call));
    for (int i = 0; i < node->op->n_in; i++)
        if (node->op->buffers >> i & 1) call.x[i] = nowhere;
    for (int k = 0; k < node->op->n_state; k++) {
        call.state_in[k] = state_in(b, node, k);
        call.state_out[k] = rm_carried_where(b->chain, rm_carried_slot(b->chain, call.node, k), 0);
    }
    TRY(place_result(b, node, mode, &call.y));
    TRY(place_aux(b, node, mode, &call.aux));
    TRY(account(b, node, REMAT_FORWARD, call.aux.space != RM_NOWHERE, &call.scratch));
    b->value[node->y] = call.y;
    b->aux[call.node] = call.aux;
    find_final(b, node);
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
static bool is_initialised(const builder *b, int32_t value) {
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
        if (made_here(b, value)) {
            TRY(new_buffer(b, tile_bytes(b, value), &b->gradient[value]));
        } else {
            b->gradient[value] = rm_crossing_gradient(chain, value, sweep_of(b), -1);
            b->contributed[value] = is_initialised(b, value);
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
        return emit_simple(b, RM_DO_ZERO, *dy, nowhere, tile_bytes(b, node->y));
    } else {
        *dy = nowhere;
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
    rest->fresh = !b->contributed[value] && !is_initialised(b, value);
    b->contributed[value] = 1;
    return new_buffer(b, tile_bytes(b, value), dx);
}

/* Fills call->dx. Kernels overwrite dx, so a second term goes to a separate buffer and is added afterwards. */
static remat_status place_input_gradients(builder *b, const rm_node *node, rm_instruction *call, rest *rest) {
    for (int i = 0; i < node->op->n_in; i++) {
        int32_t value = node->x[i];
        if (!value || b->chain->use[value] != RM_DIFFERENTIATED || node->op->discrete >> i & 1) continue;
        if (is_in_tiles(b, value) && !b->chain->at.gradient[value].space) {
            TRY(place_scattered(b, value, &call->dx[i], &rest[i]));
            continue;
        }
        rm_where target;
        bool contributed;
        TRY(gradient_of(b, value, &target, &contributed));
        bool adds = node->op->shared >> i & 1;
        if (adds && !contributed) TRY(emit_simple(b, RM_DO_ZERO, target, nowhere, tile_bytes(b, value)));
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
        call->dstate_in[k] = nowhere;
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

static remat_status emit_backward(builder *b, const rm_node *node) {
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
        if (rest[i].scatter) TRY(scatter(b, node->x[i], call.dx[i], rest[i].fresh ? RM_DO_COPY : RM_DO_ADD));
        if (!rest[i].add_to.space) continue;
        rm_where term = i < node->op->n_in ? call.dx[i] : call.dstate_in[i - node->op->n_in];
        TRY(emit_simple(b, RM_DO_ADD, rest[i].add_to, term, tile_bytes(b, node->x[i])));
    }
    if (!accumulates(b, node)) return REMAT_OK;
    /* The gradient of a sum is the same for every tile. */
    rm_where earlier = rm_carried_gradient(b->chain, rm_carried_slot(b->chain, call.node, -1), -1);
    return emit_simple(b, RM_DO_COPY, earlier, call.dy, tile_bytes(b, node->y));
}

/* ---- The programs of one kind ---------------------------------------------------------------------------------- */

/* Starts a program: at first, only values from outside the stage have addresses. */
static void begin(builder *b, rm_program *program) {
    const rm_chain *chain = b->chain;
    size_t values = (size_t)chain->graph->n_values;
    b->program = program;
    b->buffers.count = 0;
    memcpy(b->value, chain->at.value, values * sizeof *b->value);
    memset(b->gradient, 0, values * sizeof *b->gradient);
    memset(b->contributed, 0, values);
    memset(b->aux, 0, (size_t)chain->graph->n_nodes * sizeof *b->aux);
    for (int32_t i = 0; b->kind && i < chain->n_crossing; i++) {
        const rm_crossing *c = &chain->crossing[i];
        if (c->sweep < b->kind->sweep && !is_in_tiles(b, c->value))
            b->value[c->value] = rm_crossing_where(chain, c->value, sweep_of(b), -1);
    }
}

/* Which outputs a program copies to their arrays: an evaluation, all; in training, a stage's first forward run,
 * differentiated outputs; its kept forward run, others on the spine; its backward run, other leaves. Each of these runs
 * happens once per step. */
static bool is_any(const builder *b, const rm_node *node, int32_t output) {
    return (void)b, (void)node, (void)output, true;
}
static bool is_differentiated_outside(const builder *b, const rm_node *node, int32_t output) {
    return (void)node, rm_chain_is_differentiated_outside(b->chain, output);
}
static bool is_other_on_spine(const builder *b, const rm_node *node, int32_t output) {
    return is_on_spine(b, node) && !rm_chain_is_differentiated_outside(b->chain, output);
}
static bool is_other_leaf(const builder *b, const rm_node *node, int32_t output) {
    return is_leaf(b, node) && !rm_chain_is_differentiated_outside(b->chain, output);
}

static bool makes(const rm_node *node, int32_t value) {
    for (int k = 0; value && k < REMAT_MAX_STATES; k++)
        if (node->final[k] == value) return true;
    return node->y == value;
}

/* Copies the outputs made by the wanted nodes of the stage to their arrays. */
static remat_status copy_outputs(builder *b, bool (*wanted)(const builder *, const rm_node *, int32_t)) {
    const rm_chain *chain = b->chain;
    for (int32_t i = 0; i < chain->n_outputs; i++)
        for (int32_t n = 0; n < b->kind->n_nodes; n++) {
            const rm_node *node = node_at(b, n);
            const rm_value *value = &chain->graph->value[chain->outputs[i]];
            bool whole_too_early = b->kind->tau && !value->sequence && !b->kind->last;
            int32_t id = chain->outputs[i];
            if (!makes(node, id) || !wanted(b, node, id) || !b->value[id].space || whole_too_early) continue;
            b->of_node = index_of(b, node);
            TRY(emit_simple(b, RM_DO_COPY, chain->at.output[i], b->value[id], tile_bytes(b, id)));
        }
    return REMAT_OK;
}

static remat_status write_once(builder *b) {
    for (int32_t i = 0; i < b->kind->n_nodes && b->chain->n_differentiated; i++)
        if (b->early[index_of(b, node_at(b, i))] && !is_on_spine(b, node_at(b, i)))
            TRY(emit_forward(b, node_at(b, i), DROPPING));
    return copy_outputs(b, is_differentiated_outside);
}

/* The spine, then the instructions for the stage's first run only. */
static remat_status write_forward(builder *b, rm_program *program, forward_mode mode) {
    begin(b, program);
    for (int32_t i = 0; i < b->kind->n_nodes; i++)
        if (is_on_spine(b, node_at(b, i))) TRY(emit_forward(b, node_at(b, i), mode));
    if (mode == KEEPING) TRY(copy_outputs(b, is_other_on_spine));
    b->once = true;
    remat_status status = write_once(b);
    b->once = false;
    return status ? status : finish(b);
}

static remat_status write_evaluation(builder *b) {
    begin(b, &b->kind->evaluate);
    b->evaluating = true;
    for (int32_t i = 0; i < b->kind->n_nodes; i++) TRY(emit_forward(b, node_at(b, i), DROPPING));
    b->evaluating = false;
    TRY(copy_outputs(b, is_any));
    return finish(b);
}

/* Finds the gradient that later sweeps have written, if the value crosses. */
static void find_gradient(builder *b, int32_t value) {
    if (!value || b->chain->cross[value] < 0) return;
    b->gradient[value] = rm_crossing_gradient(b->chain, value, sweep_of(b), -1);
    b->contributed[value] = b->gradient[value].space != RM_NOWHERE;
}

/* Finds the values that the forward run has left for backward. */
static void find_kept(builder *b, const rm_node *node) {
    int32_t n = index_of(b, node);
    if (accumulates(b, node))
        b->value[node->y] = rm_carried_where(b->chain, rm_carried_slot(b->chain, n, -1), 0);
    else if (crosses_out(b, node->y))
        b->value[node->y] = rm_crossing_where(b->chain, node->y, sweep_of(b), -1);
    else
        b->value[node->y] = b->saved_value[node->y];
    b->aux[n] = b->saved_aux[n];
    find_final(b, node);
    for (int k = 0; b->kind->last && k < node->op->n_state; k++) find_gradient(b, node->final[k]);
    bool by_the_last = crosses_out(b, node->y) && !b->chain->crossing[b->chain->cross[node->y]].tiled;
    if (!crosses_out(b, node->y) || (by_the_last && !b->kind->last)) return;
    find_gradient(b, node->y);
}

/* Finds leaves that the first forward run has copied to their output arrays. */
static void find_copied_outputs(builder *b) {
    const rm_chain *chain = b->chain;
    for (int32_t i = 0; i < chain->n_differentiated; i++) {
        const rm_node *node = &chain->graph->node[chain->graph->value[chain->outputs[i]].node];
        if (made_here(b, node->y) && !is_on_spine(b, node)) b->value[node->y] = chain->at.output[i];
    }
}

static bool reads_it(const builder *b, int32_t value) {
    for (int32_t i = 0; i < b->kind->n_nodes; i++)
        for (int k = 0; k < REMAT_MAX_INPUTS; k++)
            if (node_at(b, i)->x[k] == value && learns(b, node_at(b, i)) &&
                (k < node_at(b, i)->op->n_in || b->kind->first))
                return true;
    return false;
}

/* Zeroes gradients of other sweeps' values that this stage must initialise but has no term for, for example before a
 * reduction to the last timestep. */
static remat_status zero_remaining_gradients(builder *b) {
    for (int32_t i = 0; i < b->chain->n_crossing; i++) {
        const rm_crossing *c = &b->chain->crossing[i];
        if (c->last_reader != b->kind->sweep || b->contributed[c->value] || is_initialised(b, c->value)) continue;
        if (!reads_it(b, c->value)) continue;
        b->of_node = b->chain->graph->value[c->value].node;
        rm_where target = rm_crossing_gradient(b->chain, c->value, sweep_of(b), -1);
        TRY(is_in_tiles(b, c->value) ? scatter(b, c->value, nowhere, RM_DO_ZERO)
                                     : emit_simple(b, RM_DO_ZERO, target, nowhere, tile_bytes(b, c->value)));
    }
    return REMAT_OK;
}

static remat_status write_backward(builder *b, rm_kind_option *option) {
    begin(b, &option->backward);
    for (int32_t i = 0; i < b->kind->n_nodes; i++)
        if (is_on_spine(b, node_at(b, i))) find_kept(b, node_at(b, i));
    find_copied_outputs(b);
    for (int32_t i = 0; i < b->kind->n_nodes; i++)
        if (b->again[index_of(b, node_at(b, i))] == RUN_AGAIN) TRY(emit_forward(b, node_at(b, i), LEAF));
    TRY(copy_outputs(b, is_other_leaf));
    for (int32_t i = b->kind->n_nodes - 1; i >= 0; i--) TRY(emit_backward(b, node_at(b, i)));
    TRY(zero_remaining_gradients(b));
    return finish(b);
}

/* An option that saves no fewer bytes than the previous one is left out. */
static remat_status write_option(builder *b, rm_leanness lean) {
    static const char *const name[] = {[RM_ALL] = "all", [RM_LEAN] = "lean", [RM_LEANER] = "leaner"};
    rm_kind_option *option = &b->kind->option[b->kind->n_options];
    rm_program_lay_out_saved(b, lean, option);
    if (b->kind->n_options && option->saved_bytes >= b->saved_before) return REMAT_OK;
    b->saved_before = option->saved_bytes;
    option->name = name[lean];
    b->kind->n_options++;
    rm_program_forget_saved(b);
    TRY(write_forward(b, &option->forward, KEEPING));
    TRY(write_backward(b, option));
    return b->chain->rank == RM_EVERY_RANK ? REMAT_OK : rm_program_pack_saved(b, option);
}

static remat_status write_kind(builder *b) {
    rm_program_mark_spine(b);
    rm_program_mark_early(b);
    TRY(write_evaluation(b));
    if (b->config->inference) return REMAT_OK;
    TRY(write_forward(b, &b->kind->drop, DROPPING));
    TRY(write_option(b, RM_ALL));
    for (rm_leanness lean = RM_LEAN; b->config->lean && lean <= RM_LEANER; lean++) TRY(write_option(b, lean));
    return REMAT_OK;
}

/* ---- Tables: once per step ------------------------------------------------------------------------------------- */

/* Copies tables that are outputs to their arrays. */
static remat_status copy_output_tables(builder *b) {
    const rm_chain *chain = b->chain;
    for (int32_t i = 0; i < chain->n_outputs; i++) {
        int32_t id = chain->outputs[i];
        if (chain->role[chain->graph->value[id].node] != RM_ROLE_TABLE) continue;
        b->of_node = chain->graph->value[id].node;
        TRY(emit_simple(b, RM_DO_COPY, chain->at.output[i], b->value[id], tile_bytes(b, id)));
    }
    return REMAT_OK;
}

static remat_status write_tables(builder *b) {
    const rm_chain *chain = b->chain;
    b->kind = NULL;
    begin(b, &b->chain->prologue);
    for (int32_t n = 0; n < chain->graph->n_nodes; n++)
        if (chain->role[n] == RM_ROLE_TABLE) TRY(emit_forward(b, &chain->graph->node[n], DROPPING));
    TRY(copy_output_tables(b));
    TRY(finish(b));
    if (b->config->inference) return REMAT_OK;
    begin(b, &b->chain->epilogue); /* tables with aux run forward again and keep it: they are few and small */
    for (int32_t n = 0; n < chain->graph->n_nodes; n++)
        if (chain->role[n] == RM_ROLE_TABLE && chain->graph->node[n].op->aux_bytes)
            TRY(emit_forward(b, &chain->graph->node[n], LEAF));
    for (int32_t n = chain->graph->n_nodes - 1; n >= 0; n--)
        if (chain->role[n] == RM_ROLE_TABLE) TRY(emit_backward(b, &chain->graph->node[n]));
    return finish(b);
}

/* ---- All programs ---------------------------------------------------------------------------------------------- */

static void free_builder(builder *b) {
    rm_free(b->value);
    rm_free(b->gradient);
    rm_free(b->contributed);
    rm_free(b->aux);
    rm_free(b->saved_value);
    rm_free(b->saved_aux);
    rm_free(b->again);
    rm_free(b->spine);
    rm_free(b->early);
    rm_lifetimes_free(&b->buffers);
    rm_free(b->item);
    rm_free(b->copies);
}

static remat_status write_all(builder *b) {
    for (int32_t c = 0; c < b->chain->n_kinds; c++) {
        b->kind = &b->chain->kind[c];
        TRY(write_kind(b));
    }
    return write_tables(b);
}

remat_status rm_chain_write_programs(rm_chain *chain, const rm_chain_config *config) {
    size_t values = (size_t)chain->graph->n_values, nodes = (size_t)chain->graph->n_nodes + 1;
    builder b = {.chain = chain,
                 .config = config,
                 .value = rm_calloc(values, sizeof(rm_where)),
                 .gradient = rm_calloc(values, sizeof(rm_where)),
                 .contributed = rm_calloc(values, 1),
                 .aux = rm_calloc(nodes, sizeof(rm_where)),
                 .saved_value = rm_calloc(values, sizeof(rm_where)),
                 .saved_aux = rm_calloc(nodes, sizeof(rm_where)),
                 .again = rm_calloc(nodes, 1),
                 .spine = rm_calloc(nodes, 1),
                 .early = rm_calloc(nodes, 1)};
    bool got = b.value && b.gradient && b.contributed && b.aux && b.saved_value && b.saved_aux && b.again && b.spine &&
               b.early;
    remat_status status = got ? write_all(&b) : rm_fail(REMAT_MEMORY, "out of memory for the stages' programs");
    free_builder(&b);
    return status;
}
