/* stages.c: builds a chain: cuts sweeps into stages, and numbers the states that they pass on. sweeps.c assigns nodes
 * to sweeps; resident.c lays out resident arrays; program.c writes the stages' programs; chain_problem.c the numbers
 * for the planner. Main entry: rm_chain_build. */
#include "engine/chain/buckets.h"

#include <string.h>

#include "memory/host.h"

/* ---- Carried states -------------------------------------------------------------------------------------------- */

/* Whether a node reads the value whose own result is used at least like this; RM_UNUSED: any node. */
static bool is_read_by(const rm_chain *chain, int32_t value, rm_use use) {
    for (int32_t i = 0; i < chain->n_order; i++) {
        const rm_node *reader = &chain->graph->node[chain->order[i]];
        for (int k = 0; k < REMAT_MAX_INPUTS; k++)
            if (reader->x[k] == value && chain->use[reader->y] >= use) return true;
    }
    return false;
}

static remat_status add_carried(rm_chain *chain, int32_t node, int state, uint64_t bytes) {
    REQUIRE(rm_grow(&chain->carried, &chain->carried_capacity, chain->n_carried + 1, sizeof *chain->carried), MEMORY,
            "out of memory for %d carried states", chain->n_carried + 1);
    int32_t y = chain->graph->node[node].y;
    bool trained = state >= 0 || is_read_by(chain, y, RM_MADE) || rm_chain_is_differentiated_outside(chain, y);
    chain->carried[chain->n_carried++] = (rm_carried){.node = node,
                                                      .state = state,
                                                      .trained = trained,
                                                      .keeps = state >= 0 && !chain->graph->node[node].op->within_call,
                                                      .bytes = bytes,
                                                      .piece_bytes = rm_align_up(bytes)};
    return REMAT_OK;
}

static remat_status find_carried_of(rm_chain *chain, int32_t n) {
    const rm_node *node = &chain->graph->node[n];
    remat_desc x[REMAT_MAX_INPUTS], y, state[REMAT_MAX_STATES];
    rm_node_descs(chain->graph, node, 0, x, &y, state);
    for (int k = 0; k < node->op->n_state; k++) TRY(add_carried(chain, n, k, rm_desc_bytes(&state[k])));
    bool sums = node->op->time == REMAT_TIME_SUM;
    if (!sums || !(is_read_by(chain, node->y, RM_UNUSED) || rm_chain_is_output(chain, node->y))) return REMAT_OK;
    return add_carried(chain, n, -1, rm_desc_bytes(&y));
}

static remat_status find_carried(rm_chain *chain) {
    for (int32_t w = 0; w < chain->n_sweeps; w++) {
        rm_sweep *sweep = &chain->sweep[w];
        sweep->first_carried = chain->n_carried;
        for (int32_t i = 0; sweep->timesteps && i < sweep->n_nodes; i++)
            TRY(find_carried_of(chain, chain->order[sweep->first_node + i]));
        sweep->n_carried = chain->n_carried - sweep->first_carried;
    }
    return REMAT_OK;
}

/* ---- Stages and their kinds ------------------------------------------------------------------------------------ */

static int32_t add_kind(rm_chain *chain, int32_t w, int64_t tau, bool first, bool last) {
    const rm_sweep *sweep = &chain->sweep[w];
    chain->kind[chain->n_kinds] = (rm_stage_kind){.tau = tau,
                                                  .sweep = w,
                                                  .first_node = sweep->first_node,
                                                  .n_nodes = sweep->n_nodes + (last ? sweep->n_tail : 0),
                                                  .first = first,
                                                  .last = last};
    return chain->n_kinds++;
}

static bool begins_with_values(const rm_chain *chain, const rm_sweep *sweep) {
    for (int32_t i = 0; i < sweep->n_nodes; i++) {
        const rm_node *node = &chain->graph->node[chain->order[sweep->first_node + i]];
        for (int k = 0; k < node->op->n_state; k++)
            if (rm_initial(node, k)) return true;
    }
    return false;
}

/* Full tiles are one kind. The last stage is another, since it also runs the tail. So is the first, if its tile is the
 * short one or if carried states have initial values. */
static void find_kinds(rm_chain *chain, int32_t w) {
    rm_sweep *sweep = &chain->sweep[w];
    int64_t short_tau = sweep->whole ? 0 : sweep->timesteps - (sweep->count - 1) * sweep->tile;
    bool short_head = sweep->down && short_tau != sweep->tile, values = begins_with_values(chain, sweep);
    bool head = sweep->count > 1 && (short_head || values);
    bool inner = sweep->count > 1 + head;
    sweep->inner = sweep->head = sweep->tail = chain->n_kinds;
    if (inner) sweep->inner = sweep->head = add_kind(chain, w, sweep->tile, false, false);
    if (head) sweep->head = add_kind(chain, w, short_head ? short_tau : sweep->tile, true, false);
    bool full = sweep->down && sweep->count > 1;
    sweep->tail = add_kind(chain, w, full ? sweep->tile : short_tau, sweep->count == 1, true);
}

static remat_status check_number(const rm_sweep *sweep, int64_t n) {
    REQUIRE(n < INT32_MAX, INVALID,
            "%lld timesteps in tiles of %lld give more stages than a plan can number; use a larger tile",
            (long long)sweep->timesteps, (long long)sweep->tile);
    return REMAT_OK;
}

static remat_status cut(rm_chain *chain) {
    int64_t stages = 0;
    chain->kind = rm_calloc(3 * (size_t)chain->n_sweeps, sizeof *chain->kind);
    REQUIRE(chain->kind, MEMORY, "out of memory for the stages");
    for (int32_t w = 0; w < chain->n_sweeps; w++) {
        rm_sweep *sweep = &chain->sweep[w];
        sweep->first = stages;
        stages += sweep->count;
        TRY(check_number(sweep, stages));
        find_kinds(chain, w);
    }
    chain->n_stages = stages;
    chain->timesteps = chain->tile = 1;
    for (int32_t w = chain->n_sweeps - 1; w >= 0; w--) {
        const rm_sweep *sweep = &chain->sweep[w];
        if (!sweep->timesteps) continue;
        chain->timesteps = sweep->timesteps;
        chain->batch = sweep->batch;
        chain->tile = sweep->tile;
    }
    return REMAT_OK;
}

/* Checks every node for the tiles of its stages. TABLE nodes run on whole values. */
static remat_status check_nodes(const rm_chain *chain, const rm_chain_config *config) {
    const remat_graph *graph = chain->graph;
    for (int32_t n = 0; n < graph->n_nodes; n++)
        if (chain->role[n] == RM_ROLE_TABLE) TRY(rm_node_check(graph, &graph->node[n], 0, config->kernels));
    for (int32_t c = 0; c < chain->n_kinds; c++)
        for (int32_t i = 0; i < chain->kind[c].n_nodes; i++)
            TRY(rm_node_check(graph, &graph->node[chain->order[chain->kind[c].first_node + i]], chain->kind[c].tau,
                              config->kernels));
    return REMAT_OK;
}

/* ---- Values that cross from sweep to sweep --------------------------------------------------------------------- */

/* Finds the sweeps that read the value. A gradient that the caller provides has its own array. */
static void find_readers(const rm_chain *chain, rm_crossing *c, bool *read) {
    const remat_graph *graph = chain->graph;
    bool outside = rm_chain_is_differentiated_outside(chain, c->value);
    for (int32_t i = 0; i < chain->n_order; i++) {
        const rm_node *node = &graph->node[chain->order[i]];
        int32_t w = chain->sweep_of[chain->order[i]];
        for (int k = 0; k < REMAT_MAX_INPUTS && w > c->sweep; k++) {
            if (node->x[k] != c->value) continue;
            *read = true;
            bool adds = chain->use[node->y] == RM_DIFFERENTIATED && chain->use[c->value] == RM_DIFFERENTIATED;
            if (adds && !outside && w > c->last_reader) c->last_reader = w;
        }
    }
}

/* Appends the node's result if it crosses. The loss has its own resident place, which any stage can read. */
static void find_crossing_of(rm_chain *chain, int32_t n, bool tail) {
    const rm_node *node = &chain->graph->node[n];
    rm_sweep *sweep = &chain->sweep[chain->sweep_of[n]];
    bool sequence = chain->graph->value[node->y].sequence, read = false;
    rm_crossing c = {.value = node->y, .sweep = chain->sweep_of[n], .last_reader = -1, .d_place = -1};
    c.tiled = sweep->timesteps && sequence && !sweep->whole;
    c.trained = chain->use[node->y] != RM_UNUSED;
    if (node->y == chain->loss || c.tiled == tail) return;
    find_readers(chain, &c, &read);
    if (!read) return;
    int32_t *n_crossing = tail ? &sweep->n_tail_crossing : &sweep->n_crossing;
    int32_t *n_gradients = tail ? &sweep->n_tail_gradients : &sweep->n_gradients;
    c.place = sweep->n_crossing + (tail ? sweep->n_carried + sweep->n_tail_crossing : 0);
    if (c.last_reader >= 0) c.d_place = sweep->n_gradients + (tail ? sweep->n_tail_gradients : 0);
    *n_gradients += c.last_reader >= 0;
    ++*n_crossing;
    chain->cross[node->y] = chain->n_crossing;
    chain->crossing[chain->n_crossing++] = c;
}

/* Final states that cross are at the place of the last stage's carried states. */
static void find_final_states(rm_chain *chain, int32_t n) {
    const rm_node *node = &chain->graph->node[n];
    rm_sweep *sweep = &chain->sweep[chain->sweep_of[n]];
    for (int k = 0; k < node->op->n_state; k++) {
        bool read = false;
        int32_t place = rm_carried_slot(chain, n, k) - sweep->first_carried;
        rm_crossing c = {.value = node->final[k], .sweep = chain->sweep_of[n], .last_reader = -1, .d_place = -1};
        if (!c.value) continue;
        find_readers(chain, &c, &read);
        if (!read) continue;
        c.trained = true;
        c.place = sweep->n_crossing + place;
        if (c.last_reader >= 0) c.d_place = sweep->n_gradients + place;
        sweep->hands_on |= c.last_reader >= 0;
        chain->cross[c.value] = chain->n_crossing;
        chain->crossing[chain->n_crossing++] = c;
    }
}

/* First values of tiles, then those that only the last stage passes on, then final states. */
static void find_crossing(rm_chain *chain) {
    for (int32_t v = 0; v < chain->graph->n_values; v++) chain->cross[v] = -1;
    for (int32_t w = 0; w < chain->n_sweeps; w++) {
        rm_sweep *sweep = &chain->sweep[w];
        sweep->first_crossing = chain->n_crossing;
        for (int tail = 0; tail < 2; tail++)
            for (int32_t i = 0; i < sweep->n_nodes + sweep->n_tail; i++)
                find_crossing_of(chain, chain->order[sweep->first_node + i], tail);
        for (int32_t i = 0; i < sweep->n_nodes; i++) find_final_states(chain, chain->order[sweep->first_node + i]);
    }
}

/* In the last stage, gradients of values that it alone passes on come after those of carried states. */
static void move_tail_gradients(rm_chain *chain, const rm_sweep *sweep) {
    for (int32_t i = 0; sweep->hands_on && i < sweep->n_tail_crossing; i++) {
        rm_crossing *c = &chain->crossing[sweep->first_crossing + sweep->n_crossing + i];
        if (c->d_place >= 0) c->d_place += sweep->n_carried;
    }
}

static remat_status number(rm_chain *chain) {
    int64_t state = 0, piece = 0, dpiece = 0;
    for (int32_t w = 0; w < chain->n_sweeps; w++) {
        rm_sweep *sweep = &chain->sweep[w];
        move_tail_gradients(chain, sweep);
        sweep->state = state;
        sweep->piece = piece;
        sweep->dpiece = dpiece;
        sweep->states = (sweep->n_carried > 0) + sweep->n_crossing;
        sweep->pieces = sweep->n_carried + sweep->n_crossing;
        sweep->dpieces = sweep->n_carried + sweep->n_gradients;
        state += sweep->count * sweep->states + sweep->n_tail_crossing;
        piece += sweep->count * sweep->pieces + sweep->n_tail_crossing;
        dpiece += sweep->count * sweep->dpieces + sweep->n_tail_gradients;
        if (!sweep->hands_on) dpiece -= sweep->n_carried;
        TRY(check_number(sweep, piece + dpiece));
    }
    for (int32_t w = 0; w < chain->n_sweeps; w++) chain->sweep[w].dpiece += piece; /* gradients come after states */
    return REMAT_OK;
}

/* ---- Differentiated values ------------------------------------------------------------------------------------- */

static remat_status find_uses(rm_chain *chain, const rm_chain_config *config) {
    if (chain->loss) chain->use[chain->loss] = RM_DIFFERENTIATED;
    for (int32_t i = 0; i < chain->n_differentiated; i++) {
        int32_t id = chain->outputs[i];
        REQUIRE(chain->role[chain->graph->value[id].node] != RM_ROLE_TABLE, INVALID,
                "output %d cannot be differentiated, because layers along time read it as a weight; differentiate "
                "their results instead",
                i);
        chain->use[id] = RM_DIFFERENTIATED;
    }
    rm_training_uses(chain->graph, chain->role, config->stateful, chain->use);
    return REMAT_OK;
}

/* In a stateful session, states continue from call to call, at the first timestep. */
static remat_status check_stateful(const rm_chain *chain, const rm_chain_config *config) {
    for (int32_t w = 0; w < chain->n_sweeps && config->stateful; w++) {
        const rm_sweep *sweep = &chain->sweep[w];
        REQUIRE(!sweep->down, INVALID,
                "a layer runs from the last timestep to the first, so its state cannot continue in the next call; "
                "remove it, or leave {stateful} out");
        REQUIRE(!begins_with_values(chain, sweep), INVALID,
                "a layer's state has an initial value (remat_initial_state), so it cannot continue from the last call; "
                "remove the value, or leave {stateful} out");
    }
    return REMAT_OK;
}

/* The loss starts the backward pass, so nothing can be added to its gradient. */
static remat_status check_loss_is_last(const rm_chain *chain) {
    REQUIRE(!chain->loss || !is_read_by(chain, chain->loss, RM_DIFFERENTIATED), INVALID,
            "a differentiated output is computed from the loss; differentiate the values that the loss is computed "
            "from instead");
    return REMAT_OK;
}

/* ---- Building a chain ------------------------------------------------------------------------------------------ */

remat_status rm_chain_build(const remat_graph *graph, int32_t loss, const int32_t *outputs, int32_t n_outputs,
                            const rm_chain_config *config, rm_chain *chain) {
    chain->graph = graph;
    chain->loss = loss;
    chain->n_outputs = n_outputs;
    chain->n_differentiated = config->n_differentiated;
    size_t values = (size_t)graph->n_values;
    chain->role = rm_calloc((size_t)graph->n_nodes + 1, 1);
    chain->use = rm_calloc(values, 1);
    chain->outputs = rm_calloc((size_t)n_outputs + 1, sizeof *chain->outputs);
    chain->cross = rm_calloc(values, sizeof *chain->cross);
    chain->crossing = rm_calloc(values, sizeof *chain->crossing);
    chain->order = rm_calloc((size_t)graph->n_nodes + 1, sizeof *chain->order);
    chain->sweep_of = rm_calloc((size_t)graph->n_nodes + 1, sizeof *chain->sweep_of);
    REQUIRE(chain->role && chain->use && chain->outputs && chain->cross && chain->crossing && chain->order &&
                chain->sweep_of,
            MEMORY, "out of memory for the chain of stages");
    for (int32_t i = 0; i < n_outputs; i++) chain->outputs[i] = outputs[i];
    chain->outputs[n_outputs] = loss;
    TRY(rm_roles(graph, chain->outputs, n_outputs + (loss != 0), chain->role));
    TRY(find_uses(chain, config));
    TRY(rm_chain_choose_owners(chain, config));
    TRY(rm_chain_find_sweeps(chain, config));
    TRY(check_stateful(chain, config));
    TRY(check_loss_is_last(chain));
    TRY(find_carried(chain));
    TRY(cut(chain));
    TRY(check_nodes(chain, config));
    find_crossing(chain);
    TRY(number(chain));
    TRY(rm_chain_lay_out(chain, config));
    TRY(rm_chain_write_programs(chain, config));
    if (!config->inference) rm_buckets_find_final(chain);
    rm_chain_lay_out_rest(chain, config);
    return rm_chain_write_problems(chain, config);
}
