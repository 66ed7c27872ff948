/* roles.c: the role of each node (chain.h): dead, table, chain or post; and what training computes of each value. */
#include "engine/chain/chain.h"
#include "memory/host.h"

static void mark_live(const remat_graph *graph, const int32_t *keep, int n_keep, uint8_t *live) {
    for (int i = 0; i < n_keep; i++) live[keep[i]] = 1;
    for (int32_t n = graph->n_nodes - 1; n >= 0; n--) { /* a rewrite may append an unread node: it is never live */
        for (int k = 0; k < REMAT_MAX_STATES; k++) live[graph->node[n].y] |= live[graph->node[n].final[k]];
        for (int i = 0; live[graph->node[n].y] && i < REMAT_MAX_INPUTS; i++) live[graph->node[n].x[i]] = 1;
        live[0] = 0;
    }
}

static bool runs_along_time(const remat_graph *graph, const rm_node *node) { return graph->value[node->x[0]].sequence; }

static void assign(const remat_graph *graph, const uint8_t *live, uint8_t *role) {
    bool any_time = false;
    for (int32_t n = 0; n < graph->n_nodes; n++)
        any_time |= live[graph->node[n].y] && runs_along_time(graph, &graph->node[n]);
    for (int32_t n = 0; n < graph->n_nodes; n++) {
        const rm_node *node = &graph->node[n];
        bool along = !any_time || runs_along_time(graph, node) || node->op->time == REMAT_TIME_BEGIN;
        role[n] = !live[node->y] ? RM_ROLE_DEAD : along ? RM_ROLE_CHAIN : RM_ROLE_POST;
    }
}

/* Makes the counts that losses divide by tables, since micro steps and ranks need them before the stages run, as
 * weights. */
static void find_denominators(const remat_graph *graph, uint8_t *role) {
    for (int32_t n = 0; n < graph->n_nodes; n++) {
        int32_t x = role[n] == RM_ROLE_DEAD ? 0 : rm_denominator(&graph->node[n]);
        if (x && graph->value[x].origin == RM_VALUE_RESULT && rm_graph_counts_symbols(graph, graph->value[x].node))
            role[graph->value[x].node] = RM_ROLE_TABLE;
    }
}

/* Finds nodes that must run before the nodes along time that read them, directly or not. Of those that depend on no
 * sequence, nodes that depend only on parameters become TABLE, and others CHAIN, cut by depth. Counts over integer
 * inputs become TABLE, too. */
static void find_first_part(const remat_graph *graph, uint8_t *role) {
    for (int32_t n = graph->n_nodes - 1; n >= 0; n--)
        for (int i = 0; (role[n] == RM_ROLE_CHAIN || role[n] == RM_ROLE_TABLE) && i < REMAT_MAX_INPUTS; i++) {
            int32_t x = graph->node[n].x[i];
            if (!x || graph->value[x].origin != RM_VALUE_RESULT) continue;
            int32_t maker = graph->value[x].node;
            uint8_t depends = graph->value[x].depends;
            if (depends & RM_ON_SEQUENCE) {
                if (rm_graph_counts_symbols(graph, maker)) role[maker] = RM_ROLE_TABLE;
            } else if (role[maker] == RM_ROLE_POST) {
                role[maker] = depends ? RM_ROLE_CHAIN : RM_ROLE_TABLE;
            }
        }
}

remat_status rm_roles(const remat_graph *graph, const int32_t *keep, int n_keep, uint8_t *role) {
    uint8_t *live = rm_calloc((size_t)graph->n_values, 1);
    REQUIRE(live, MEMORY, "out of memory for %d values", graph->n_values);
    mark_live(graph, keep, n_keep, live);
    assign(graph, live, role);
    find_denominators(graph, role);
    find_first_part(graph, role);
    rm_free(live);
    return REMAT_OK;
}

void rm_training_uses(const remat_graph *graph, const uint8_t *role, bool stateful, uint8_t *use) {
    for (int32_t n = graph->n_nodes - 1; n >= 0; n--) {
        const rm_node *node = &graph->node[n];
        uint8_t *y = &use[node->y];
        if (stateful && role[n] == RM_ROLE_CHAIN && node->op->n_state && *y == RM_UNUSED) *y = RM_MADE;
        for (int k = 0; k < REMAT_MAX_STATES; k++)
            if (node->final[k] && use[node->final[k]] > *y) *y = use[node->final[k]];
        if (node->op->constant && *y == RM_DIFFERENTIATED) *y = RM_MADE;
        for (int i = 0; i < REMAT_MAX_INPUTS; i++)
            if (node->x[i] && use[node->x[i]] < *y) use[node->x[i]] = *y;
    }
    for (int32_t v = 1; v < graph->n_values; v++)
        if (use[v] == RM_DIFFERENTIATED && !graph->value[v].needs_gradient) use[v] = RM_MADE;
}
