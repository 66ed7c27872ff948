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

/* Whether values depend on data, and on a sequence. */
enum { ON_DATA = 1, ON_A_SEQUENCE = 2 };

static void mark_origins(const remat_graph *graph, uint8_t *on) {
    for (int32_t v = 1; v < graph->n_values; v++)
        on[v] = graph->value[v].origin != RM_VALUE_INPUT ? 0 : graph->value[v].sequence ? ON_A_SEQUENCE : ON_DATA;
    for (int32_t n = 0; n < graph->n_nodes; n++) {
        const rm_node *node = &graph->node[n];
        for (int i = 0; i < REMAT_MAX_INPUTS; i++)
            if (node->x[i]) on[node->y] |= on[node->x[i]];
        if (graph->value[node->y].sequence) on[node->y] |= ON_A_SEQUENCE | ON_DATA;
        for (int k = 0; k < REMAT_MAX_STATES; k++) on[node->final[k]] = on[node->y];
    }
}

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

/* Whether the node counts over an integer input, such as the number of targets. All of the input is known before the
 * step. */
static bool counts_symbols(const remat_graph *graph, int32_t n, const uint8_t *on) {
    const rm_node *node = &graph->node[n];
    const rm_value *symbols = &graph->value[node->x[0]];
    bool counts =
        node->op->time == REMAT_TIME_SUM && symbols->origin == RM_VALUE_INPUT && symbols->desc.dtype == REMAT_I32;
    for (int i = 1; i < REMAT_MAX_INPUTS; i++) {
        int32_t x = node->x[i];
        counts = counts && (!x || on[x] == 0 || (graph->value[x].origin == RM_VALUE_INPUT && on[x] == ON_DATA));
    }
    return counts;
}

/* Makes the counts that losses divide by tables, since micro steps and ranks need them before the stages run, as
 * weights. */
static void find_denominators(const remat_graph *graph, const uint8_t *on, uint8_t *role) {
    for (int32_t n = 0; n < graph->n_nodes; n++) {
        int32_t x = role[n] == RM_ROLE_DEAD ? 0 : rm_denominator(&graph->node[n]);
        if (x && graph->value[x].origin == RM_VALUE_RESULT && counts_symbols(graph, graph->value[x].node, on))
            role[graph->value[x].node] = RM_ROLE_TABLE;
    }
}

/* Finds nodes that must run before the nodes along time that read them, directly or not. Of those that depend on no
 * sequence, nodes that depend only on parameters become TABLE, and others CHAIN, cut by depth. Counts over integer
 * inputs become TABLE, too. */
static void find_first_part(const remat_graph *graph, const uint8_t *on, uint8_t *role) {
    for (int32_t n = graph->n_nodes - 1; n >= 0; n--)
        for (int i = 0; (role[n] == RM_ROLE_CHAIN || role[n] == RM_ROLE_TABLE) && i < REMAT_MAX_INPUTS; i++) {
            int32_t x = graph->node[n].x[i];
            if (!x || graph->value[x].origin != RM_VALUE_RESULT) continue;
            int32_t maker = graph->value[x].node;
            if (on[x] & ON_A_SEQUENCE) {
                if (counts_symbols(graph, maker, on)) role[maker] = RM_ROLE_TABLE;
            } else if (role[maker] == RM_ROLE_POST) {
                role[maker] = on[x] & ON_DATA ? RM_ROLE_CHAIN : RM_ROLE_TABLE;
            }
        }
}

/* Inputs of ops that make a sequence must be known before all stages along time. */
static remat_status check_sequences(const remat_graph *graph, const uint8_t *on, const uint8_t *role) {
    for (int32_t n = 0; n < graph->n_nodes; n++) {
        const rm_node *node = &graph->node[n];
        for (int i = 0; i < REMAT_MAX_INPUTS && node->op->time == REMAT_TIME_BEGIN && role[n] != RM_ROLE_DEAD; i++) {
            const rm_value *value = &graph->value[node->x[i]];
            bool made_later = node->x[i] && on[node->x[i]] & ON_A_SEQUENCE && value->origin == RM_VALUE_RESULT &&
                              role[value->node] != RM_ROLE_TABLE;
            REQUIRE(
                !made_later, INVALID,
                "%s: its input depends on a sequence, but it must be known before layers along time run; compute it "
                "from inputs and parameters without a time axis",
                node->op->name);
        }
    }
    return REMAT_OK;
}

/* Collectives run only inside stages, not in tables. */
static remat_status check_collectives(const remat_graph *graph, const uint8_t *role) {
    for (int32_t n = 0; n < graph->n_nodes; n++) {
        const rm_node *node = &graph->node[n];
        bool collective = node->op->collective && node->op->collective(node->attr);
        REQUIRE(!collective || role[n] != RM_ROLE_TABLE, INVALID,
                "%s: it sums over ranks, but its input depends only on parameters, which are the same on all ranks; "
                "remove `sync`",
                node->op->name);
    }
    return REMAT_OK;
}

remat_status rm_roles(const remat_graph *graph, const int32_t *keep, int n_keep, uint8_t *role) {
    uint8_t *live = rm_calloc((size_t)graph->n_values, 2);
    REQUIRE(live, MEMORY, "out of memory for %d values", graph->n_values);
    uint8_t *on = live + graph->n_values;
    mark_live(graph, keep, n_keep, live);
    mark_origins(graph, on);
    assign(graph, live, role);
    find_denominators(graph, on, role);
    find_first_part(graph, on, role);
    remat_status status = check_sequences(graph, on, role);
    if (!status) status = check_collectives(graph, role);
    rm_free(live);
    return status;
}

void rm_training_uses(const remat_graph *graph, const uint8_t *role, bool stateful, uint8_t *use) {
    for (int32_t n = graph->n_nodes - 1; n >= 0; n--) {
        const rm_node *node = &graph->node[n];
        uint8_t *y = &use[node->y];
        if (stateful && role[n] == RM_ROLE_CHAIN && node->op->n_state && *y == RM_UNUSED) *y = RM_MADE;
        for (int k = 0; k < REMAT_MAX_STATES; k++)
            if (node->final[k] && use[node->final[k]] > *y) *y = use[node->final[k]];
        for (int i = 0; i < REMAT_MAX_INPUTS; i++)
            if (node->x[i] && use[node->x[i]] < *y) use[node->x[i]] = *y;
    }
    for (int32_t v = 1; v < graph->n_values; v++)
        if (use[v] == RM_DIFFERENTIATED && !graph->value[v].needs_gradient) use[v] = RM_MADE;
}
