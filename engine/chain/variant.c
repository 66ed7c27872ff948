/* variant.c: replaces ops by a device's own descriptors (device.h, variant) before a graph is cut into stages. Like
 * fold.c, it rewrites the graph; planner and executor see ordinary ops. Variants are cuDNN's RNN (cuda/rnn.c,
 * remat_config.rnn_kernels) and convolutions (cuda/conv.c), and the CPU's cells in bf16 (cpu.c,
 * remat_config.precision). */
#include <string.h>

#include "engine/chain/chain.h"
#include "memory/host.h"

static remat_status choose(remat_graph *graph, rm_node *node, const rm_device_api *api, rm_device *device,
                           const int64_t *tau, int32_t *chosen) {
    rm_variant variant = {.op = NULL};
    remat_desc x[REMAT_MAX_INPUTS], y, state[REMAT_MAX_STATES];
    rm_node_descs(graph, node, tau[0], x, &y, state);
    TRY(api->variant(device, node->op, node->attr, x, tau, &variant));
    if (!variant.op) return REMAT_OK;
    node->op = variant.op;
    ++*chosen;
    if (!variant.attr_bytes) return REMAT_OK;
    void *attr = rm_malloc(variant.attr_bytes);
    REQUIRE(attr, MEMORY, "out of memory for a node");
    memcpy(attr, variant.attr, variant.attr_bytes);
    rm_free(node->attr);
    node->attr = attr;
    node->attr_bytes = variant.attr_bytes;
    return REMAT_OK;
}

remat_status rm_graph_choose_variants(remat_graph *graph, const rm_device_api *api, rm_device *device, int64_t tile,
                                      int64_t carry_stride, int32_t *chosen) {
    *chosen = 0;
    for (int32_t n = 0; api->variant && n < graph->n_nodes; n++) {
        const rm_value *x = &graph->value[graph->node[n].x[0]];
        int64_t tau[2] = {0, 0};
        if (x->sequence) {
            int64_t timesteps = x->desc.dim[0];
            tau[0] = rm_tile_of(tile, carry_stride, timesteps, x->desc.dim[1], api->kernels);
            tau[1] = timesteps - (timesteps - 1) / tau[0] * tau[0];
        }
        TRY(choose(graph, &graph->node[n], api, device, tau, chosen));
    }
    return REMAT_OK;
}
