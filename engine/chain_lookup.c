/* chain_lookup.c: questions about a chain of stages, once it is cut: chain.h lists them. */
#include "engine/chain.h"

static int64_t default_tile(int64_t batch, int64_t rows) {
    int64_t tile = rows / 2;
    while (tile > 8 && tile * batch > rows) tile /= 2;
    return tile;
}

int64_t rm_tile_of(int64_t asked, int64_t timesteps, int64_t batch, rm_device_kind kernels) {
    int64_t tile = asked ? asked : default_tile(batch, kernels == RM_DEVICE_CUDA ? 2048 : 512);
    return tile < timesteps ? tile : timesteps;
}

const rm_class *rm_stage_class(const rm_chain *chain, int64_t stage) {
    if (!chain->timed) return &chain->class[stage];
    return &chain->class[stage == chain->n_stages - 1 ? chain->n_classes - 1 : 0];
}

int32_t rm_carried_slot(const rm_chain *chain, int32_t node, int state) {
    for (int32_t k = 0; k < chain->n_carried; k++)
        if (chain->carried[k].node == node && chain->carried[k].state == state) return k;
    return -1;
}

bool rm_chain_crosses(const rm_chain *chain, int64_t cut, int32_t value, bool gradient) {
    const int32_t *piece = gradient ? chain->dpiece : chain->piece, *until = gradient ? chain->d_until : chain->until;
    return piece[value] >= 0 && chain->from[value] < cut && cut <= until[value];
}

int32_t rm_chain_slot(const rm_chain *chain, int64_t cut, int32_t value, bool gradient) {
    if (chain->timed || !rm_chain_crosses(chain, cut, value, gradient)) return -1;
    int32_t slot = 0;
    for (int32_t v = 1; v < value; v++) slot += rm_chain_crosses(chain, cut, v, gradient);
    return slot;
}

int64_t rm_chain_bound(const rm_chain *chain, int32_t value) {
    int64_t bound = 0;
    for (int32_t n = 0; n < chain->graph->n_nodes; n++) {
        const rm_node *node = &chain->graph->node[n];
        if (chain->role[n] == RM_ROLE_DEAD || !node->op->bound) continue;
        rm_desc x[RM_MAX_IN], y, state[RM_MAX_STATE];
        rm_node_descs(chain->graph, node, 0, x, &y, state);
        for (int i = 0; i < node->op->n_in; i++) {
            int64_t limit = node->x[i] == value ? node->op->bound(x, node->attr, i) : 0;
            if (limit && (!bound || limit < bound)) bound = limit;
        }
    }
    return bound;
}

static bool is_among(const rm_chain *chain, int32_t n_outputs, int32_t value) {
    for (int32_t i = 0; i < n_outputs; i++)
        if (chain->outputs[i] == value) return true;
    return false;
}

bool rm_chain_is_output(const rm_chain *chain, int32_t value) { return is_among(chain, chain->n_outputs, value); }
bool rm_chain_is_differentiated_outside(const rm_chain *chain, int32_t value) {
    return is_among(chain, chain->n_differentiated, value);
}

uint64_t rm_chain_once_ns(const rm_chain *chain) {
    uint64_t sum = 0;
    for (int64_t s = 0; s < chain->n_stages; s++) sum += rm_stage_class(chain, s)->drop.once_ns;
    return sum;
}

int64_t rm_chain_state_pieces(const rm_chain *chain) {
    int64_t n = chain->n_stages * chain->n_carried;
    for (int32_t id = 1; !chain->timed && id < chain->graph->n_values; id++) n += chain->piece[id] >= 0;
    return n;
}
