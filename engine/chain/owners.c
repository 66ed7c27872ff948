/* owners.c: chooses the rank of a pipeline that runs each node. The nodes, in the order of their definition, are
 * cut into one run for each rank: where the config says, or so that the slowest rank takes the least time. Runs that
 * are known not to fit on a rank are ruled out (engine/session/pipeline_cut.c). divide.c then writes each rank's
 * programs. Main entry: rm_chain_choose_owners. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/chain/chain.h"
#include "memory/host.h"

/* The cost of a cut before a node, and whether the cut is allowed. */
typedef struct {
    double before;    /* time of all nodes before it, forward and backward */
    double bytes;     /* bytes of values that cross it */
    int32_t shared;   /* a value that would be read on both sides, and must not be; 0: the cut is allowed */
    int32_t until;    /* no rank fits that begins here and ends there or later */
    const char *name; /* the parameter by which remat_pipeline.cut can name it; NULL: none */
} boundary;

enum { SENT_BYTES_PER_S = 2000000000 }; /* shared memory, copied twice; decides only between cuts of about equal time */

static bool is_alive(const rm_chain *chain, int32_t n) { return chain->role[n] != RM_ROLE_DEAD; }

static bool is_table(const rm_chain *chain, int32_t n) { return chain->role[n] == RM_ROLE_TABLE; }

/* The node before which a cut falls if it is to precede node n: a table moves with its reader. */
static int32_t reader_of(const rm_chain *chain, int32_t n) {
    const remat_graph *graph = chain->graph;
    for (int32_t r = n + 1; is_table(chain, n) && r < graph->n_nodes; r++)
        for (int i = 0; is_alive(chain, r) && i < REMAT_MAX_INPUTS; i++)
            if (graph->node[r].x[i] == graph->node[n].y) return reader_of(chain, r);
    return n;
}

/* ---- The boundaries ------------------------------------------------------------------------------------------- */

static bool reads(const rm_node *node, int32_t value) {
    for (int i = 0; i < node->op->n_in; i++)
        if (node->x[i] == value) return true;
    return false;
}

double rm_chain_counted_ns(const rm_chain *chain, const rm_chain_config *config, int32_t n) {
    const rm_node *node = &chain->graph->node[n];
    remat_desc x[REMAT_MAX_INPUTS], y, state[REMAT_MAX_STATES];
    double ns = 0;
    rm_node_descs(chain->graph, node, 0, x, &y, state);
    for (int pass = REMAT_FORWARD; pass <= (config->inference ? REMAT_FORWARD : REMAT_BACKWARD); pass++) {
        remat_cost cost = {0};
        node->op->cost(x, &y, node->attr, (remat_pass)pass, &cost);
        ns += 1e9 * fmax(cost.flops / config->rates.flops_per_s, cost.moved_bytes / config->rates.bytes_per_s);
    }
    return ns;
}

static double time_of(const rm_chain *chain, const rm_chain_config *config, int32_t n) {
    if (!is_alive(chain, n)) return 0;
    return config->node_ns ? config->node_ns[n] : rm_chain_counted_ns(chain, config, n);
}

/* The first and the last node that read a value. If a table reads it, these are the readers of the table. */
static void find_readers(const rm_chain *chain, int32_t *first, int32_t *last) {
    const remat_graph *graph = chain->graph;
    for (int32_t v = 0; v < graph->n_values; v++) first[v] = INT32_MAX, last[v] = -1;
    for (int32_t n = graph->n_nodes - 1; n >= 0; n--) {
        const rm_node *node = &graph->node[n];
        bool table = is_table(chain, n);
        for (int i = 0; is_alive(chain, n) && i < REMAT_MAX_INPUTS; i++) {
            int32_t x = node->x[i], from = table ? first[node->y] : n, until = table ? last[node->y] : n;
            if (from < first[x]) first[x] = from;
            if (until > last[x]) last[x] = until;
        }
    }
}

/* Whether the table is computed from inputs only, such as the number of targets that count: every rank computes it. */
static bool is_counted(const rm_chain *chain, int32_t n) {
    const remat_graph *graph = chain->graph;
    for (int i = 0; i < REMAT_MAX_INPUTS; i++) {
        int32_t x = graph->node[n].x[i];
        const rm_value *value = &graph->value[x];
        if (!x || value->origin == RM_VALUE_INPUT) continue;
        if (value->origin != RM_VALUE_RESULT || !is_counted(chain, value->node)) return false;
    }
    return true;
}

/* Whether a single rank must hold the value, since its gradients are added up there. */
static bool is_unshared(const rm_chain *chain, int32_t v) {
    const rm_value *value = &chain->graph->value[v];
    if (value->origin == RM_VALUE_RESULT) return is_table(chain, value->node) && !is_counted(chain, value->node);
    return value->origin != RM_VALUE_INPUT || value->needs_gradient;
}

static void weigh(const rm_chain *chain, const int32_t *first, const int32_t *last, int32_t v, boundary *at) {
    const rm_value *value = &chain->graph->value[v];
    bool made = value->origin == RM_VALUE_RESULT && !is_table(chain, value->node);
    int32_t from = made ? value->node : first[v];
    if (last[v] < 0 || from == INT32_MAX) return;
    for (int32_t n = from + 1; n <= last[v]; n++) {
        if (made) at[n].bytes += (double)rm_desc_bytes(&value->desc);
        if (!made && is_unshared(chain, v)) at[n].shared = v;
    }
}

/* A cut has the name of a parameter that no earlier node reads. */
static void name_boundaries(const rm_chain *chain, boundary *at) {
    const remat_graph *graph = chain->graph;
    for (int32_t v = 1; v < graph->n_values; v++) {
        int32_t n = 0;
        if (graph->value[v].origin != RM_VALUE_PARAM) continue;
        while (n < graph->n_nodes && !(is_alive(chain, n) && reads(&graph->node[n], v))) n++;
        if (n < graph->n_nodes && !at[reader_of(chain, n)].name) at[reader_of(chain, n)].name = graph->value[v].name;
    }
}

static remat_status find_boundaries(const rm_chain *chain, const rm_chain_config *config, boundary *at) {
    const remat_graph *graph = chain->graph;
    int32_t *first = rm_calloc((size_t)graph->n_values, sizeof *first);
    int32_t *last = rm_calloc((size_t)graph->n_values, sizeof *last);
    bool got = first && last;
    if (got) {
        find_readers(chain, first, last);
        for (int32_t v = 1; v < graph->n_values; v++) weigh(chain, first, last, v, at);
        name_boundaries(chain, at);
        for (int32_t n = 0; n < graph->n_nodes; n++) at[n + 1].before = at[n].before + time_of(chain, config, n);
    }
    rm_free(first);
    rm_free(last);
    REQUIRE(got, MEMORY, "out of memory for the cuts of a pipeline");
    return REMAT_OK;
}

/* ---- Cuts as told --------------------------------------------------------------------------------------------- */

static bool reads_param(const remat_graph *graph, const rm_node *node, const char *name, size_t length, bool whole) {
    for (int i = 0; i < node->op->n_in; i++) {
        const rm_value *x = &graph->value[node->x[i]];
        bool begins = node->x[i] && x->origin == RM_VALUE_PARAM && !strncmp(x->name, name, length);
        if (begins && (!whole || !x->name[length])) return true;
    }
    return false;
}

/* A whole name has precedence over names that only start like this. */
static remat_status find_named(const rm_chain *chain, const char *name, size_t length, int32_t *begin) {
    const remat_graph *graph = chain->graph;
    for (int whole = 1; whole >= 0; whole--)
        for (int32_t n = 0; n < graph->n_nodes; n++)
            if (length && is_alive(chain, n) && reads_param(graph, &graph->node[n], name, length, whole)) {
                *begin = reader_of(chain, n);
                return REMAT_OK;
            }
    FAIL(INVALID,
         "pipeline cut \"%.*s\": no layer has a parameter whose name starts like this; give the start of a "
         "parameter's name, such as rnn.weight_ih_l1",
         (int)length, name);
}

static int count_names(const char *cut) {
    int n = 1;
    for (; (cut = strchr(cut, ',')); cut++) n++;
    return n;
}

static remat_status cut_as_told(const rm_chain *chain, const rm_chain_config *config, boundary *at, int32_t *begin) {
    const remat_pipeline *p = config->pipeline;
    const char *name = p->cut;
    REQUIRE(count_names(p->cut) == p->size - 1, INVALID,
            "pipeline cut \"%s\": %d ranks have %d cut%s; give one name for each rank after the first", p->cut, p->size,
            p->size - 1, p->size == 2 ? "" : "s");
    for (int r = 1; r < p->size; r++) {
        size_t length = strcspn(name, ",");
        TRY(find_named(chain, name, length, &begin[r]));
        REQUIRE(begin[r] > begin[r - 1], INVALID,
                "pipeline cut \"%.*s\": it comes before the layers of rank %d; name a parameter of a later layer",
                (int)length, name, r - 1);
        int32_t shared = at[begin[r]].shared;
        const char *of = shared ? chain->graph->value[shared].name : NULL;
        REQUIRE(!shared, INVALID,
                "pipeline cut \"%.*s\": layers on both sides read %s, but each parameter belongs to one rank; cut "
                "elsewhere",
                (int)length, name, of ? of : "a table of parameters");
        name += length + (name[length] == ',');
    }
    return REMAT_OK;
}

/* ---- Cuts by time --------------------------------------------------------------------------------------------- */

static double part_time(const boundary *at, int32_t from, int32_t until) {
    return at[until].before - at[from].before + 1e9 * at[until].bytes / SENT_BYTES_PER_S;
}

static void rule_out(const rm_chain_config *config, boundary *at, int32_t n_nodes) {
    for (int32_t n = 0; n <= n_nodes; n++) at[n].until = INT32_MAX;
    for (int i = 0; i < config->n_full; i++) {
        const rm_node_run *full = &config->full[i];
        if (full->end < at[full->begin].until) at[full->begin].until = full->end;
    }
    for (int32_t n = n_nodes; n-- > 0;)
        if (at[n + 1].until < at[n].until) at[n].until = at[n + 1].until;
}

static bool may_end(const boundary *at, int32_t n, int32_t n_nodes) {
    return !at[n].shared && (at[n].name || n == n_nodes);
}

/* best[r][n]: the smallest possible time of the slowest of ranks 0 to r if rank r ends before node n; from[r][n]: the
 * first node of rank r in that case. */
static void find_best(const boundary *at, int32_t n_nodes, int size, double *best, int32_t *from) {
    int32_t n_at = n_nodes + 1;
    for (int32_t i = 0; i < n_at * size; i++) best[i] = INFINITY;
    for (int32_t n = 1; n < n_at; n++)
        if (may_end(at, n, n_nodes) && n < at[0].until) best[n] = part_time(at, 0, n);
    for (int r = 1; r < size; r++)
        for (int32_t n = r + 1; n < n_at; n++)
            for (int32_t b = r; b < n && may_end(at, n, n_nodes); b++) {
                double time = fmax(best[(r - 1) * n_at + b], part_time(at, b, n));
                if (n >= at[b].until || time >= best[r * n_at + n]) continue;
                best[r * n_at + n] = time;
                from[r * n_at + n] = b;
            }
}

static remat_status cut_by_time(const rm_chain *chain, const rm_chain_config *config, boundary *at, int32_t *begin) {
    const remat_pipeline *p = config->pipeline;
    int32_t n_nodes = chain->graph->n_nodes, n_at = n_nodes + 1, end = n_nodes;
    double *best = rm_calloc((size_t)n_at * (size_t)p->size, sizeof *best);
    int32_t *from = rm_calloc((size_t)n_at * (size_t)p->size, sizeof *from);
    bool got = best && from;
    rule_out(config, at, n_nodes);
    if (got) find_best(at, n_nodes, p->size, best, from);
    bool found = got && best[(p->size - 1) * n_at + n_nodes] < INFINITY;
    int most = 1;
    for (int r = 1; got && r < p->size; r++)
        if (best[r * n_at + n_nodes] < INFINITY) most = r + 1;
    for (int r = p->size - 1; r > 0 && found; r--) end = begin[r] = from[r * n_at + end];
    rm_free(best);
    rm_free(from);
    REQUIRE(got, MEMORY, "out of memory for the cuts of a pipeline");
    REQUIRE(
        found, INVALID,
        "this network can be cut into at most %d part%s, not %d: a part begins with a layer that has parameters, and "
        "all layers that read one parameter are in one part (tied weights tie the first layer to the last)",
        most, most == 1 ? "" : "s", p->size);
    return REMAT_OK;
}

/* ---- Every cut -------------------------------------------------------------------------------------------------- */

/* Cuts wherever it is allowed, or at every second or third such place if there are too many. Returns the number of
 * parts. */
static int cut_everywhere(const boundary *at, int32_t n_nodes, int32_t *begin) {
    int allowed = 0, every, size = 1;
    for (int32_t n = 1; n < n_nodes; n++) allowed += may_end(at, n, n_nodes);
    every = allowed / RM_MOST_PIPELINE_RANKS + 1;
    for (int32_t n = 1, k = 0; n < n_nodes; n++)
        if (may_end(at, n, n_nodes) && k++ % every == 0) begin[size++] = n;
    return size;
}

/* ---- All of it ------------------------------------------------------------------------------------------------ */

static int16_t owner_of(const int32_t *begin, int size, int32_t n) {
    int16_t r = (int16_t)(size - 1);
    while (r > 0 && begin[r] > n) r--;
    return r;
}

/* "rnn.weight_ih_l1,head.weight" */
static remat_status name_cut(rm_chain *chain, const boundary *at, const int32_t *begin, int size) {
    size_t bytes = 1, end = 0;
    for (int r = 1; r < size; r++) bytes += at[begin[r]].name ? strlen(at[begin[r]].name) + 1 : 0;
    chain->cut = rm_calloc(bytes, 1);
    REQUIRE(chain->cut, MEMORY, "out of memory for the cuts of a pipeline");
    for (int r = 1; r < size; r++)
        if (at[begin[r]].name)
            end += (size_t)snprintf(chain->cut + end, bytes - end, "%s%s", end ? "," : "", at[begin[r]].name);
    return REMAT_OK;
}

static void assign(rm_chain *chain, const int32_t *begin, int size) {
    for (int r = 0; r < size; r++)
        chain->part[r] = (rm_node_run){begin[r], r + 1 < size ? begin[r + 1] : chain->graph->n_nodes};
    for (int32_t n = chain->graph->n_nodes - 1; n >= 0; n--) {
        bool counted = is_table(chain, n) && is_counted(chain, n);
        chain->owner[n] = counted ? RM_EVERY_RANK : owner_of(begin, size, reader_of(chain, n));
    }
}

remat_status rm_chain_choose_owners(rm_chain *chain, const rm_chain_config *config) {
    const remat_pipeline *p = config->pipeline;
    size_t nodes = (size_t)chain->graph->n_nodes;
    chain->rank = RM_EVERY_RANK;
    if (!p) return REMAT_OK;
    chain->rank = config->pipeline_rank;
    chain->owner = rm_calloc(nodes + 1, sizeof *chain->owner);
    chain->part = rm_calloc(RM_MOST_PIPELINE_RANKS, sizeof *chain->part);
    boundary *at = rm_calloc(nodes + 1, sizeof *at);
    int32_t *begin = rm_calloc(RM_MOST_PIPELINE_RANKS, sizeof *begin);
    bool got = chain->owner && chain->part && at && begin;
    remat_status status =
        got ? find_boundaries(chain, config, at) : rm_fail(REMAT_MEMORY, "out of memory for the cuts of a pipeline");
    if (!status && p->size != RM_EVERY_CUT) status = (p->cut ? cut_as_told : cut_by_time)(chain, config, at, begin);
    if (!status) chain->n_ranks = p->size == RM_EVERY_CUT ? cut_everywhere(at, (int32_t)nodes, begin) : p->size;
    if (!status) status = name_cut(chain, at, begin, chain->n_ranks);
    if (!status) assign(chain, begin, chain->n_ranks);
    rm_free(at);
    rm_free(begin);
    return status;
}

bool rm_chain_reads(const rm_chain *chain, int32_t value, int rank) {
    const remat_graph *graph = chain->graph;
    for (int32_t n = 0; n < graph->n_nodes; n++)
        for (int i = 0; i < REMAT_MAX_INPUTS && is_alive(chain, n) && rm_runs_on(chain, n, rank); i++)
            if (graph->node[n].x[i] == value) return true;
    return false;
}

int rm_chain_holder(const rm_chain *chain, int32_t value) {
    const rm_value *v = &chain->graph->value[value];
    if (!chain->owner) return 0;
    if (v->origin == RM_VALUE_RESULT) return chain->owner[v->node] == RM_EVERY_RANK ? 0 : chain->owner[v->node];
    for (int r = 0; r < chain->n_ranks; r++)
        if (rm_chain_reads(chain, value, r)) return r;
    return 0; /* nobody reads it */
}

bool rm_chain_holds(const rm_chain *chain, int32_t value) {
    const rm_value *v = &chain->graph->value[value];
    if (chain->rank == RM_EVERY_RANK) return true;
    if (v->origin == RM_VALUE_RESULT) return rm_runs_on(chain, v->node, chain->rank);
    return rm_chain_reads(chain, value, chain->rank) || rm_chain_holder(chain, value) == chain->rank;
}
