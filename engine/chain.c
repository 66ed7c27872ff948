/* chain.c: cuts a graph into stages, along time or by depth. The programs of the stages are written by program.c, the resident
 * layout by resident.c, the numbers for the planner by chain_problem.c. Main entry: rm_chain_build. */
#include "engine/chain.h"

#include <string.h>

#include "memory/host.h"

/* ---- Order and carried states --------------------------------------------------------------------------------- */

static remat_status order_nodes(rm_chain *chain) {
    const remat_graph *graph = chain->graph;
    chain->order = rm_calloc((size_t)graph->n_nodes + 1, sizeof *chain->order);
    REQUIRE(chain->order, MEMORY, "out of memory for %d nodes", graph->n_nodes);
    for (int pass = 0; pass < 2; pass++) {
        for (int32_t n = 0; n < graph->n_nodes; n++) {
            if (chain->role[n] != (pass ? RM_ROLE_POST : RM_ROLE_CHAIN)) continue;
            chain->order[chain->n_order++] = n;
            chain->timed |= graph->value[graph->node[n].x[0]].sequence;
        }
        if (!pass) chain->n_chain_nodes = chain->n_order;
    }
    REQUIRE(chain->n_order, INVALID, "nothing to compute: neither the loss nor an output depends on any operation");
    return REMAT_OK;
}

/* By a node whose result is used in training (or, of RM_UNUSED, by any). */
static bool is_read_by(const rm_chain *chain, int32_t value, rm_use use) {
    for (int32_t i = 0; i < chain->n_order; i++) {
        const rm_node *reader = &chain->graph->node[chain->order[i]];
        for (int k = 0; k < RM_MAX_IN; k++)
            if (reader->x[k] == value && chain->use[reader->y] >= use) return true;
    }
    return false;
}

static remat_status add_carried(rm_chain *chain, int32_t node, int state, uint64_t bytes) {
    REQUIRE(rm_grow(&chain->carried, &chain->carried_capacity, chain->n_carried + 1, sizeof *chain->carried), MEMORY,
            "out of memory for %d carried states", chain->n_carried + 1);
    int32_t y = chain->graph->node[node].y;
    bool trained = state >= 0 || is_read_by(chain, y, RM_MADE) || rm_chain_is_differentiated_outside(chain, y);
    chain->carried[chain->n_carried++] =
        (rm_carried){.node = node, .state = state, .trained = trained, .bytes = rm_align_up(bytes)};
    return REMAT_OK;
}

static remat_status find_carried(rm_chain *chain) {
    for (int32_t i = 0; chain->timed && i < chain->n_chain_nodes; i++) {
        const rm_node *node = &chain->graph->node[chain->order[i]];
        rm_desc x[RM_MAX_IN], y, state[RM_MAX_STATE];
        rm_node_descs(chain->graph, node, 0, x, &y, state);
        for (int k = 0; k < node->op->n_state; k++)
            TRY(add_carried(chain, chain->order[i], k, rm_desc_bytes(&state[k])));
        if (node->op->time == RM_TIME_SUM &&
            (is_read_by(chain, node->y, RM_UNUSED) || rm_chain_is_output(chain, node->y)))
            TRY(add_carried(chain, chain->order[i], -1, rm_desc_bytes(&y)));
    }
    return REMAT_OK;
}

/* ---- Cutting -------------------------------------------------------------------------------------------------- */

/* Full tiles are one class; the last tile is another, being short perhaps, and holding the POST nodes. */
static remat_status cut_time(rm_chain *chain, const rm_chain_config *config) {
    chain->tile = rm_tile_of(config->tile, chain->timesteps, chain->batch, config->kernels);
    chain->n_stages = (chain->timesteps + chain->tile - 1) / chain->tile;
    int64_t most = INT32_MAX / (2 * ((int64_t)chain->n_carried + 16)); /* pieces, of states and of their gradients */
    REQUIRE(chain->n_stages < most, INVALID,
            "%lld timesteps in tiles of %lld make more stages than a plan can number; use a larger tile",
            (long long)chain->timesteps, (long long)chain->tile);
    chain->n_classes = chain->n_stages > 1 ? 2 : 1;
    chain->class = rm_calloc((size_t)chain->n_classes, sizeof *chain->class);
    REQUIRE(chain->class, MEMORY, "out of memory for the stages");
    chain->class[0] = (rm_class){.tau = chain->tile, .n_nodes = chain->n_chain_nodes};
    chain->class[chain->n_classes - 1] = (rm_class){
        .tau = chain->timesteps - (chain->n_stages - 1) * chain->tile, .n_nodes = chain->n_order, .last = true};
    return REMAT_OK;
}

/* By depth a stage begins at every node with weights, or every `tile` nodes where that is asked for. */
static remat_status cut_depth(rm_chain *chain, const rm_chain_config *config) {
    chain->class = rm_calloc((size_t)chain->n_order, sizeof *chain->class);
    REQUIRE(chain->class, MEMORY, "out of memory for the stages");
    for (int32_t i = 0; i < chain->n_order; i++) {
        bool begins = config->tile ? i % config->tile == 0 : chain->graph->node[chain->order[i]].op->weights != 0;
        if (i == 0 || begins) chain->class[chain->n_classes++].first_node = i;
        chain->class[chain->n_classes - 1].n_nodes++;
    }
    chain->class[chain->n_classes - 1].last = true;
    chain->n_stages = chain->n_classes;
    chain->timesteps = chain->tile = 1;
    return REMAT_OK;
}

/* Every node in the stages that run it; TABLE nodes are run whole. */
static remat_status check_nodes(const rm_chain *chain, const rm_chain_config *config) {
    const remat_graph *graph = chain->graph;
    for (int32_t n = 0; n < graph->n_nodes; n++)
        if (chain->role[n] == RM_ROLE_TABLE) TRY(rm_node_check(graph, &graph->node[n], 0, config->kernels));
    for (int32_t c = 0; c < chain->n_classes; c++)
        for (int32_t i = 0; i < chain->class[c].n_nodes; i++)
            TRY(rm_node_check(graph, &graph->node[chain->order[chain->class[c].first_node + i]], chain->class[c].tau,
                              config->kernels));
    return REMAT_OK;
}

/* ---- Which values cross which cuts (by depth) ----------------------------------------------------------------- */

static void find_spans(rm_chain *chain) {
    const remat_graph *graph = chain->graph;
    for (int32_t v = 0; v < graph->n_values; v++)
        chain->from[v] = chain->until[v] = chain->d_until[v] = chain->piece[v] = chain->dpiece[v] = -1;
    for (int32_t s = 0; !chain->timed && s < chain->n_classes; s++)
        for (int32_t i = 0; i < chain->class[s].n_nodes; i++) {
            const rm_node *node = &graph->node[chain->order[chain->class[s].first_node + i]];
            chain->from[node->y] = s;
            for (int k = 0; k < RM_MAX_IN; k++) {
                int32_t x = node->x[k];
                if (!x || graph->value[x].origin != RM_VALUE_RESULT) continue;
                chain->until[x] = s;
                if (chain->use[node->y] == RM_DIFFERENTIATED && chain->use[x] == RM_DIFFERENTIATED)
                    chain->d_until[x] = s;
            }
        }
    int32_t pieces = 0;
    for (int32_t v = 1; v < graph->n_values; v++) /* the loss has a place of its own, from where any stage reads it */
        if (v != chain->loss && chain->from[v] >= 0 && chain->until[v] > chain->from[v]) chain->piece[v] = pieces++;
    for (int32_t v = 1; v < graph->n_values; v++) /* and so has a gradient that comes from outside */
        if (chain->piece[v] >= 0 && chain->d_until[v] > chain->from[v] && !rm_chain_is_differentiated_outside(chain, v))
            chain->dpiece[v] = pieces++;
}

/* ---- What is differentiated ----------------------------------------------------------------------------------- */

static remat_status find_uses(rm_chain *chain, const rm_chain_config *config) {
    if (chain->loss) chain->use[chain->loss] = RM_DIFFERENTIATED;
    for (int32_t i = 0; i < chain->n_differentiated; i++) {
        int32_t id = chain->outputs[i];
        REQUIRE(chain->role[chain->graph->value[id].node] != RM_ROLE_TABLE, INVALID,
                "output %d is to be differentiated, but layers along time read it as a weight; differentiate what they "
                "make",
                i);
        chain->use[id] = RM_DIFFERENTIATED;
    }
    rm_training_uses(chain->graph, chain->role, config->stateful, chain->use);
    return REMAT_OK;
}

/* The loss begins the backward pass: its own gradient is not added to. */
static remat_status check_loss_is_last(const rm_chain *chain) {
    REQUIRE(!chain->loss || !is_read_by(chain, chain->loss, RM_DIFFERENTIATED), INVALID,
            "an output that is to be differentiated is made of the loss; differentiate what the loss is made of");
    return REMAT_OK;
}

/* ---- All of it ------------------------------------------------------------------------------------------------ */

remat_status rm_chain_build(const remat_graph *graph, int32_t loss, const int32_t *outputs, int32_t n_outputs,
                            const rm_chain_config *config, rm_chain *chain) {
    chain->graph = graph;
    chain->loss = loss;
    chain->n_outputs = n_outputs;
    chain->n_differentiated = config->n_differentiated;
    chain->timesteps = graph->timesteps;
    chain->batch = graph->batch;
    size_t values = (size_t)graph->n_values;
    chain->role = rm_calloc((size_t)graph->n_nodes + 1, 1);
    chain->use = rm_calloc(values, 1);
    chain->outputs = rm_calloc((size_t)n_outputs + 1, sizeof *chain->outputs);
    chain->piece = rm_calloc(5 * values, sizeof *chain->piece);
    REQUIRE(chain->role && chain->use && chain->outputs && chain->piece, MEMORY,
            "out of memory for the chain of stages");
    for (int32_t i = 0; i < n_outputs; i++) chain->outputs[i] = outputs[i];
    chain->outputs[n_outputs] = loss;
    chain->dpiece = chain->piece + values;
    chain->from = chain->piece + 2 * values;
    chain->until = chain->piece + 3 * values;
    chain->d_until = chain->piece + 4 * values;
    TRY(rm_roles(graph, chain->outputs, n_outputs + (loss != 0), chain->role));
    TRY(find_uses(chain, config));
    TRY(order_nodes(chain));
    TRY(check_loss_is_last(chain));
    TRY(find_carried(chain));
    TRY((chain->timed ? cut_time : cut_depth)(chain, config));
    TRY(check_nodes(chain, config));
    find_spans(chain);
    TRY(rm_chain_lay_out(chain, config));
    TRY(rm_chain_write_programs(chain, config));
    if (!config->inference) rm_buckets_find_final(chain);
    rm_chain_lay_out_rest(chain, config);
    return rm_chain_write_problems(chain, config);
}

static void free_program(rm_program *program) { rm_free(program->item); }

void rm_chain_free(rm_chain *chain) {
    for (int32_t c = 0; chain->class && c < chain->n_classes; c++) {
        rm_class *class = &chain->class[c];
        free_program(&class->drop);
        free_program(&class->evaluate);
        for (int k = 0; k < RM_MAX_OPTIONS; k++) {
            free_program(&class->option[k].forward);
            free_program(&class->option[k].backward);
        }
    }
    free_program(&chain->prologue);
    free_program(&chain->epilogue);
    rm_free(chain->class);
    rm_free(chain->role);
    rm_free(chain->use);
    rm_free(chain->outputs);
    rm_free(chain->carried);
    rm_free(chain->order);
    rm_free(chain->piece);
    rm_free(chain->at.value);
    rm_free(chain->at.gradient);
    rm_free(chain->at.packed);
    rm_free(chain->at.output);
    rm_free(chain->at.optimizer_state);
    rm_buckets_free(&chain->at.buckets);
    rm_problem_free(&chain->problem);
    rm_problem_free(&chain->evaluation);
    memset(chain, 0, sizeof *chain);
}
