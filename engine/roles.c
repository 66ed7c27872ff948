/* roles.c: which part each node plays (chain.h): dead, table, chain or post; and what training does with each value. */
#include "engine/chain.h"
#include "memory/host.h"

static void mark_live(const remat_graph *graph, const int32_t *keep, int n_keep, uint8_t *live) {
    for (int i = 0; i < n_keep; i++) live[keep[i]] = 1;
    for (int32_t n = graph->n_nodes - 1; n >= 0; n--) /* a rewrite may append an unread node: it is never live */
        for (int i = 0; live[graph->node[n].y] && i < RM_MAX_IN; i++) live[graph->node[n].x[i]] = 1;
}

static bool runs_along_time(const remat_graph *graph, const rm_node *node) { return graph->value[node->x[0]].sequence; }

/* value[v] = 1 when v depends on a sequence. */
static void mark_timed(const remat_graph *graph, uint8_t *timed) {
    for (int32_t v = 1; v < graph->n_values; v++) timed[v] = graph->value[v].sequence;
    for (int32_t n = 0; n < graph->n_nodes; n++)
        for (int i = 0; i < RM_MAX_IN; i++)
            timed[graph->node[n].y] |= graph->node[n].x[i] && timed[graph->node[n].x[i]];
}

/* What no session runs yet. */
static remat_status check_times(const remat_graph *graph, const uint8_t *live) {
    for (int32_t n = 0; n < graph->n_nodes; n++) {
        const rm_op *op = graph->node[n].op;
        REQUIRE(!live[graph->node[n].y] || (op->time != RM_TIME_REVERSE && op->time != RM_TIME_WHOLE), MISSING,
                "%s can be described, but no session runs it yet", op->name);
    }
    return REMAT_OK;
}

static remat_status assign(const remat_graph *graph, const uint8_t *live, const uint8_t *timed, uint8_t *role) {
    bool any_time = false;
    for (int32_t n = 0; n < graph->n_nodes; n++)
        any_time |= live[graph->node[n].y] && runs_along_time(graph, &graph->node[n]);
    for (int32_t n = 0; n < graph->n_nodes; n++) {
        const rm_node *node = &graph->node[n];
        bool along = runs_along_time(graph, node);
        role[n] = !live[node->y] ? RM_ROLE_DEAD : !any_time || along ? RM_ROLE_CHAIN : RM_ROLE_POST;
        for (int i = 0; role[n] && along && i < RM_MAX_IN; i++)
            REQUIRE(!node->x[i] || graph->value[node->x[i]].sequence || !timed[node->x[i]], INVALID,
                    "%s runs along time but reads a value that is known only after the last timestep; Remat makes one "
                    "pass over time",
                    node->op->name);
    }
    return REMAT_OK;
}

/* A POST node that feeds the chain, directly or through others, is a TABLE. */
static void find_tables(const remat_graph *graph, uint8_t *role) {
    for (int32_t n = graph->n_nodes - 1; n >= 0; n--)
        for (int i = 0; (role[n] == RM_ROLE_CHAIN || role[n] == RM_ROLE_TABLE) && i < RM_MAX_IN; i++) {
            const rm_value *x = &graph->value[graph->node[n].x[i]];
            if (graph->node[n].x[i] && x->origin == RM_VALUE_RESULT && role[x->node] == RM_ROLE_POST)
                role[x->node] = RM_ROLE_TABLE;
        }
}

remat_status rm_roles(const remat_graph *graph, const int32_t *keep, int n_keep, uint8_t *role) {
    uint8_t *live = rm_calloc((size_t)graph->n_values, 2);
    REQUIRE(live, MEMORY, "out of memory for %d values", graph->n_values);
    uint8_t *timed = live + graph->n_values;
    mark_live(graph, keep, n_keep, live);
    mark_timed(graph, timed);
    remat_status status = check_times(graph, live);
    if (!status) status = assign(graph, live, timed, role);
    if (!status) find_tables(graph, role);
    rm_free(live);
    return status;
}

void rm_training_uses(const remat_graph *graph, const uint8_t *role, bool stateful, uint8_t *use) {
    for (int32_t n = graph->n_nodes - 1; n >= 0; n--) {
        const rm_node *node = &graph->node[n];
        uint8_t *y = &use[node->y];
        if (stateful && role[n] == RM_ROLE_CHAIN && node->op->n_state && *y == RM_UNUSED) *y = RM_MADE;
        for (int i = 0; i < node->op->n_in; i++)
            if (node->x[i] && use[node->x[i]] < *y) use[node->x[i]] = *y;
    }
    for (int32_t v = 1; v < graph->n_values; v++)
        if (use[v] == RM_DIFFERENTIATED && !graph->value[v].needs_gradient) use[v] = RM_MADE;
}
