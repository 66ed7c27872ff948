/* sweeps.c: assigns nodes to sweeps, and orders the sweeps (chain.h). Main entry: rm_chain_find_sweeps.
 *
 * Nodes before those along time are cut by depth and run first.
 *   A node along time joins the first sweep of its direction that computes its inputs or comes after those that do.
 * A node that works in either direction (an element-wise layer, a reversal) and reads only resident values runs in the
 * sweep that reads it, so that no copy of an input is passed between sweeps.
 *   Nodes that training needs are placed first, as if there were no others: the order in which gradients are summed, and
 * therefore their bits, must not depend on other outputs. */
#include <string.h>

#include "engine/chain/chain.h"
#include "memory/host.h"

typedef enum { ANY, UP, DOWN } direction;

typedef struct {
    int64_t timesteps, batch; /* 0: a stage cut by depth */
    direction direction;
    bool whole;
    int32_t n_nodes, number; /* number: of the sweep that it becomes */
} candidate;

typedef struct {
    rm_chain *chain;
    candidate *candidate;
    int32_t count;
    int64_t capacity;
} finder;

static const rm_value *first_input(const rm_chain *chain, int32_t n) {
    return &chain->graph->value[chain->graph->node[n].x[0]];
}

/* Ops that carry states or take the last timestep have a direction; a sum over time has none. */
static direction wanted(const rm_chain *chain, int32_t n) {
    remat_time time = chain->graph->node[n].op->time;
    if (time != REMAT_TIME_RECURRENT && time != REMAT_TIME_LAST) return ANY;
    return first_input(chain, n)->reversed ? DOWN : UP;
}

/* The sweep that makes a value; -1: it is resident. */
static int32_t maker(const rm_chain *chain, int32_t value) {
    const rm_value *v = &chain->graph->value[value];
    return value && v->origin == RM_VALUE_RESULT ? chain->sweep_of[v->node] : -1;
}

/* Whether the node is cut by depth: it runs before all sweeps along time, or the graph has none. */
static bool is_by_depth(const rm_chain *chain, int32_t n) {
    return chain->role[n] == RM_ROLE_CHAIN && !first_input(chain, n)->sequence;
}

/* ---- As early as possible -------------------------------------------------------------------------------------- */

/* The first sweep in which all inputs are available: for each, the sweep that makes it, if tile by tile, or else the
 * next. */
static int32_t earliest(const finder *f, int32_t n) {
    const remat_graph *graph = f->chain->graph;
    int32_t first = 0;
    for (int i = 0; i < REMAT_MAX_INPUTS; i++) {
        int32_t x = graph->node[n].x[i], made = maker(f->chain, x);
        if (made < 0) continue;
        bool by_tiles = graph->value[x].sequence && f->candidate[made].timesteps && !f->candidate[made].whole;
        if (made + !by_tiles > first) first = made + !by_tiles;
    }
    return first;
}

static bool may_join(const candidate *c, const rm_value *x, direction wanted) {
    return c->timesteps && !c->whole && c->timesteps == x->desc.dim[0] && c->batch == x->desc.dim[1] &&
           (wanted == ANY || c->direction == ANY || c->direction == wanted);
}

static remat_status add_candidate(finder *f, candidate c) {
    REQUIRE(rm_grow(&f->candidate, &f->capacity, f->count + 1, sizeof *f->candidate), MEMORY,
            "out of memory for %d sweeps", f->count + 1);
    f->candidate[f->count++] = c;
    return REMAT_OK;
}

static remat_status join(finder *f, int32_t n) {
    const rm_value *x = first_input(f->chain, n);
    bool whole = f->chain->graph->node[n].op->time == REMAT_TIME_FULL;
    direction direction = wanted(f->chain, n);
    int32_t i = whole ? f->count : earliest(f, n);
    while (i < f->count && !may_join(&f->candidate[i], x, direction)) i++;
    if (i == f->count)
        TRY(add_candidate(f, (candidate){.timesteps = x->desc.dim[0], .batch = x->desc.dim[1], .whole = whole}));
    if (direction != ANY) f->candidate[i].direction = direction;
    f->chain->sweep_of[n] = i;
    return REMAT_OK;
}

/* A node after a reduction over time is in the same sweep as the last of its inputs. */
static void follow(finder *f, int32_t n) {
    for (int i = 0; i < REMAT_MAX_INPUTS; i++) {
        int32_t made = maker(f->chain, f->chain->graph->node[n].x[i]);
        if (made > f->chain->sweep_of[n]) f->chain->sweep_of[n] = made;
    }
}

/* ---- As late as possible --------------------------------------------------------------------------------------- */

/* The first sweep that reads a node's result; `count` if none does. */
static int32_t first_reader(const finder *f, int32_t n) {
    const remat_graph *graph = f->chain->graph;
    int32_t first = f->count;
    for (int32_t r = n + 1; r < graph->n_nodes; r++)
        for (int i = 0; i < REMAT_MAX_INPUTS && f->chain->sweep_of[r] >= 0; i++)
            if (graph->node[r].x[i] == graph->node[n].y && f->chain->sweep_of[r] < first) first = f->chain->sweep_of[r];
    return first;
}

static bool reads_resident(const rm_chain *chain, int32_t n) {
    for (int i = 0; i < REMAT_MAX_INPUTS; i++)
        if (maker(chain, chain->graph->node[n].x[i]) >= 0) return false;
    return true;
}

static void put_off(finder *f, int32_t n) {
    if (is_by_depth(f->chain, n)) return;
    int32_t reader = first_reader(f, n);
    if (f->chain->role[n] == RM_ROLE_POST) {
        if (f->chain->sweep_of[n] < 0) f->chain->sweep_of[n] = reader < f->count ? reader : f->count - 1;
        return;
    }
    remat_time time = f->chain->graph->node[n].op->time;
    bool copies = time == REMAT_TIME_REVERSE || (time == REMAT_TIME_POINTWISE && reads_resident(f->chain, n));
    if (!copies || reader >= f->count) return;
    if (may_join(&f->candidate[reader], first_input(f->chain, n), ANY)) f->chain->sweep_of[n] = reader;
}

/* ---- The sweeps ------------------------------------------------------------------------------------------------ */

/* Removes candidates without nodes; the others keep their order. */
static remat_status settle(finder *f, const rm_chain_config *config) {
    rm_chain *chain = f->chain;
    const remat_graph *graph = chain->graph;
    for (int32_t n = 0; n < graph->n_nodes; n++)
        if (chain->sweep_of[n] >= 0) f->candidate[chain->sweep_of[n]].n_nodes++;
    chain->sweep = rm_calloc((size_t)f->count + 1, sizeof *chain->sweep);
    REQUIRE(chain->sweep, MEMORY, "out of memory for %d sweeps", f->count);
    for (int32_t i = 0; i < f->count; i++) {
        candidate *c = &f->candidate[i];
        if (!c->n_nodes) continue;
        bool whole = c->whole || !c->timesteps;
        int64_t tile = whole ? c->timesteps
                             : rm_tile_of(config->tile, config->carry_stride, c->timesteps, c->batch, config->kernels);
        chain->sweep[chain->n_sweeps] = (rm_sweep){.timesteps = c->timesteps,
                                                   .batch = c->batch,
                                                   .tile = tile,
                                                   .count = tile ? (c->timesteps + tile - 1) / tile : 1,
                                                   .down = c->direction == DOWN,
                                                   .whole = c->whole};
        c->number = chain->n_sweeps++;
    }
    for (int32_t n = 0; n < graph->n_nodes; n++)
        if (chain->sweep_of[n] >= 0) chain->sweep_of[n] = f->candidate[chain->sweep_of[n]].number;
    return REMAT_OK;
}

/* Places the nodes that training uses, or those that it does not use. */
static remat_status place(finder *f, bool used) {
    const rm_chain *chain = f->chain;
    const remat_graph *graph = chain->graph;
    for (int32_t n = 0; n < graph->n_nodes; n++) {
        if ((chain->use[graph->node[n].y] != RM_UNUSED) != used) continue;
        if (chain->role[n] == RM_ROLE_CHAIN && !is_by_depth(chain, n)) TRY(join(f, n));
        if (chain->role[n] == RM_ROLE_POST) follow(f, n);
    }
    for (int32_t n = graph->n_nodes - 1; n >= 0; n--) {
        if ((chain->use[graph->node[n].y] != RM_UNUSED) != used) continue;
        if (chain->role[n] == RM_ROLE_CHAIN || chain->role[n] == RM_ROLE_POST) put_off(f, n);
    }
    for (int32_t i = 0; i < f->count; i++)
        if (f->candidate[i].direction == ANY) f->candidate[i].direction = UP;
    return REMAT_OK;
}

/* A node that reads weights, or a loss. */
static bool begins_stage(const rm_node *node) {
    for (int i = 0; i < node->op->n_in; i++)
        if (node->op->shared >> i & 1 && node->x[i]) return true;
    return node->op->shared && node->op->time == REMAT_TIME_SUM;
}

/* A stage begins at every node with weights and at the loss. In a graph without time it begins after every `tile` nodes
 * instead, if the config sets a tile. */
static remat_status place_by_depth(finder *f, const rm_chain_config *config) {
    rm_chain *chain = f->chain;
    int64_t i = 0, tile = chain->timed ? 0 : config->tile;
    for (int32_t n = 0; n < chain->graph->n_nodes; n++) {
        if (!is_by_depth(chain, n)) continue;
        bool begins = tile ? i % tile == 0 : begins_stage(&chain->graph->node[n]);
        if (i++ == 0 || begins) TRY(add_candidate(f, (candidate){.direction = UP}));
        chain->sweep_of[n] = f->count - 1;
    }
    return REMAT_OK;
}

/* Fills chain->order: the nodes of each sweep, with those of its last stage after the others. */
static void put_in_order(rm_chain *chain) {
    int32_t n_nodes = chain->graph->n_nodes;
    for (int32_t n = 0; n < n_nodes; n++)
        if (chain->sweep_of[n] >= 0)
            (chain->role[n] == RM_ROLE_POST ? &chain->sweep[chain->sweep_of[n]].n_tail
                                            : &chain->sweep[chain->sweep_of[n]].n_nodes)[0]++;
    for (int32_t w = 0; w < chain->n_sweeps; w++) {
        chain->sweep[w].first_node = chain->n_order;
        chain->n_order += chain->sweep[w].n_nodes + chain->sweep[w].n_tail;
        chain->sweep[w].n_nodes = 0;
    }
    for (int tail = 0; tail < 2; tail++)
        for (int32_t n = 0; n < n_nodes; n++) {
            if (chain->sweep_of[n] < 0 || (chain->role[n] == RM_ROLE_POST) != tail) continue;
            rm_sweep *sweep = &chain->sweep[chain->sweep_of[n]];
            chain->order[sweep->first_node + sweep->n_nodes++] = n;
        }
    for (int32_t w = 0; w < chain->n_sweeps; w++) chain->sweep[w].n_nodes -= chain->sweep[w].n_tail;
}

remat_status rm_chain_find_sweeps(rm_chain *chain, const rm_chain_config *config) {
    const remat_graph *graph = chain->graph;
    finder f = {.chain = chain};
    for (int32_t n = 0; n < graph->n_nodes; n++) {
        chain->sweep_of[n] = -1;
        chain->timed |= chain->role[n] == RM_ROLE_CHAIN && first_input(chain, n)->sequence;
    }
    remat_status status = place_by_depth(&f, config);
    for (int used = 1; used >= 0 && !status && chain->timed; used--) status = place(&f, used);
    if (!status) status = settle(&f, config);
    rm_free(f.candidate);
    if (status) return status;
    REQUIRE(chain->n_sweeps, INVALID, "nothing to compute: neither the loss nor an output depends on any operation");
    put_in_order(chain);
    return REMAT_OK;
}
